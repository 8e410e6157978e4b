//! How tunnels are set up: handles for the control plane, commands for the worker.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use l2::pdcp;
use packet::gtpu;
use path::Ports;
use path::calls::{self, Caller};
use pktio::Peers;
use telemetry::DropReason;
use tokio::sync::mpsc;
use types::Qfi;

use super::bearer::{Bearer, Down, End, FarEnd, Session, Up};
use super::flow::Flow;
use super::queue::Queue;
use super::signalling::Events;
use super::stats::{BearerStats, Stats};
use super::tunnels::Allocator;
use super::{FLOWS, Relay};

/// Events that may wait for the control plane.
const EVENTS: usize = 4096;
/// Memory for the waiting packets of a bearer, unless it is configured.
const QUEUE_OCTETS: usize = 1 << 20;

/// What an interface is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Tunnels of DUs.
    F1u,
    /// Tunnels of UPFs.
    N3,
    /// Both.
    Both,
}

/// An interface of the relay. Its number is its position among the relay's interfaces, and that of its port among the worker's.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Its name, for messages.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Our address there.
    pub address: IpAddr,
}

impl Interface {
    /// An interface.
    pub fn new(name: &str, role: Role, address: IpAddr) -> Interface {
        Interface { name: name.to_owned(), role, address }
    }

    fn has_n3(&self) -> bool {
        self.role != Role::F1u
    }

    fn has_f1u(&self) -> bool {
        self.role != Role::N3
    }
}

/// One end of a GTP-U tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Address of the node.
    pub address: IpAddr,
    /// The tunnel there.
    pub teid: u32,
}

/// A PDU session of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    interface: u8,
    teid: u32,
}

/// A radio bearer of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BearerId {
    interface: u8,
    teid: u32,
}

/// What a radio bearer does.
#[derive(Debug)]
pub struct BearerConfig {
    /// PDCP to the UE.
    pub tx: pdcp::Tx,
    /// PDCP from the UE.
    pub rx: pdcp::Rx,
    /// Whether PDUs to the UE have an SDAP header.
    pub downlink_header: bool,
    /// Whether PDUs from the UE have one. Without, all belong to the first flow.
    pub uplink_header: bool,
    /// The QoS flows that the bearer carries.
    pub flows: Vec<Qfi>,
    /// Whether it carries flows without a bearer of their own as well.
    pub default: bool,
    /// How long a packet waits for the DU at most; for ever if there is room without.
    pub discard: Option<Duration>,
    /// Memory for packets that wait.
    pub queue_octets: usize,
}

impl BearerConfig {
    /// The default bearer of a session, with SDAP headers as `header` says.
    pub fn new(tx: pdcp::Tx, rx: pdcp::Rx, header: bool, flows: Vec<Qfi>) -> BearerConfig {
        BearerConfig {
            tx,
            rx,
            downlink_header: header,
            uplink_header: header,
            flows,
            default: true,
            discard: None,
            queue_octets: QUEUE_OCTETS,
        }
    }
}

/// What the worker tells the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A peer does not know the tunnel to which we send.
    ErrorIndication {
        /// Number of the interface: peers on different ones may have the same address.
        interface: u8,
        /// The peer.
        peer: IpAddr,
        /// The tunnel there.
        teid: u32,
    },
    /// A peer answered an Echo Request.
    EchoResponse {
        /// Number of the interface.
        interface: u8,
        /// The peer.
        peer: IpAddr,
        /// Sequence number of the request.
        sequence: u16,
    },
    /// No more packets come on a tunnel: its path has been switched.
    EndMarker {
        /// Our tunnel.
        teid: u32,
    },
}

/// Why a tunnel could not be set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There are no more TEIDs, no more numbers for peers, or the session has as many bearers as it can.
    #[error("the user plane has no room for another tunnel")]
    Full,
    /// There is no such session or bearer.
    #[error("the session or bearer does not exist")]
    Unknown,
    /// There is no such interface, it is not for such tunnels, its peers have addresses of another IP version, or the address is no
    /// peer's.
    #[error("the interface is not for this tunnel")]
    Interface,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets tunnels up and takes them down. Clones refer to the same user plane.
#[derive(Clone)]
pub struct UserPlane(Arc<Inner>);

struct Inner {
    interfaces: Arc<[Interface]>,
    calls: Caller<Relay>,
    peers: Arc<Peers>,
    stats: Arc<Stats>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    teids: Allocator,
    /// The numbers of peers by interface and address. A number is never given to another: packets on their way have it.
    numbers: HashMap<(u8, IpAddr), u16>,
    sessions: HashMap<SessionId, SessionState>,
}

struct SessionState {
    upf: FarEnd,
    bearers: HashMap<BearerId, Arc<BearerStats>>,
}

impl State {
    /// The number of a peer.
    fn number(&mut self, peers: &Peers, interface: u8, address: IpAddr) -> Result<u16, Refused> {
        if let Some(known) = self.numbers.get(&(interface, address)) {
            return Ok(*known);
        }
        // Number 0 is nobody's.
        let number = u16::try_from(self.numbers.len() + 1).map_err(|_| Refused::Full)?;
        if !peers.set(number, SocketAddr::new(address, gtpu::PORT)) {
            return Err(Refused::Full);
        }
        self.numbers.insert((interface, address), number);
        Ok(number)
    }
}

impl UserPlane {
    /// The user plane on these interfaces: its handle, the graph for its worker, and what the worker has to say.
    ///
    /// # Errors
    /// There are more interfaces than a worker can have.
    pub fn new(interfaces: Vec<Interface>) -> Result<(UserPlane, Relay, mpsc::Receiver<Event>), Refused> {
        if interfaces.len() > path::outputs::MAX_INTERFACES {
            return Err(Refused::Interface);
        }
        let interfaces: Arc<[Interface]> = interfaces.into();
        let (sender, events) = mpsc::channel(EVENTS);
        let (peers, stats) = (Arc::<Peers>::default(), Arc::<Stats>::default());
        let (caller, calls) = calls::channel();
        let relay = Relay::new(
            Arc::clone(&interfaces),
            calls,
            Arc::clone(&peers),
            Arc::clone(&stats),
            Events(sender),
        );
        let inner = Inner { interfaces, calls: caller, peers, stats, state: Mutex::default() };
        Ok((UserPlane(Arc::new(inner)), relay, events))
    }

    /// An interface for tunnels to `peer`, if it has one.
    fn interface(
        &self,
        number: u8,
        is_for: impl Fn(&Interface) -> bool,
        peer: Option<IpAddr>,
    ) -> Result<&Interface, Refused> {
        let interface = self.0.interfaces.get(usize::from(number)).filter(|interface| is_for(interface));
        // A DU that names an address of ours would have packets go round in circles.
        let is_peer = |peer: IpAddr| {
            let own = self.0.interfaces.iter().any(|interface| interface.address == peer);
            !own && !peer.is_unspecified() && !peer.is_multicast()
        };
        let reaches = |interface: &&Interface| {
            peer.is_none_or(|peer| peer.is_ipv4() == interface.address.is_ipv4() && is_peer(peer))
        };
        interface.filter(reaches).ok_or(Refused::Interface)
    }

    /// Has the worker execute something, after all that was posted before. If it has ended, so have its tunnels.
    fn post(&self, call: impl FnOnce(&mut Relay, &mut Ports) + Send + 'static) {
        let _ = self.0.calls.post(move |relay, _, ports| call(relay, ports));
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// Opens a PDU session whose packets go to `upf` by the interface with number `n3`. Packets to its UE come to
    /// [`UserPlane::n3_tunnel`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn open(&self, n3: u8, upf: Tunnel) -> Result<SessionId, Refused> {
        self.interface(n3, Interface::has_n3, Some(upf.address))?;
        let state = &mut *lock(&self.0.state);
        let peer = state.number(&self.0.peers, n3, upf.address)?;
        let teid = state.teids.allocate().ok_or(Refused::Full)?;
        let upf = FarEnd { interface: n3, address: upf.address, peer, teid: upf.teid };
        let known = SessionState { upf, bearers: HashMap::new() };
        let id = SessionId { interface: n3, teid };
        state.sessions.insert(id, known);
        self.post(move |relay, _| relay.open(teid, upf));
        Ok(id)
    }

    /// Packets of a session's UE go to another end at a UPF, by the same interface. Our end stays.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn move_to(&self, session: SessionId, upf: Tunnel) -> Result<(), Refused> {
        let n3 = session.interface;
        self.interface(n3, Interface::has_n3, Some(upf.address))?;
        let state = &mut *lock(&self.0.state);
        let peer = state.number(&self.0.peers, n3, upf.address)?;
        let known = state.sessions.get_mut(&session).ok_or(Refused::Unknown)?;
        known.upf = FarEnd { interface: n3, address: upf.address, peer, teid: upf.teid };
        let upf = known.upf;
        self.post(move |relay, _| relay.move_to(session.teid, upf));
        Ok(())
    }

    /// Our end of a session's tunnel on N3.
    pub fn n3_tunnel(&self, session: SessionId) -> Tunnel {
        self.tunnel(session.interface, session.teid)
    }

    /// Our end of a bearer's tunnel on F1-U.
    pub fn f1u_tunnel(&self, bearer: BearerId) -> Tunnel {
        self.tunnel(bearer.interface, bearer.teid)
    }

    fn tunnel(&self, interface: u8, teid: u32) -> Tunnel {
        Tunnel { address: self.0.interfaces[usize::from(interface)].address, teid }
    }

    /// Adds a bearer to a session, whose DU is reached by the interface with number `f1u`. Packets to the UE wait until the
    /// bearer has been connected with the DU's end.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add(&self, session: SessionId, f1u: u8, config: BearerConfig) -> Result<BearerId, Refused> {
        self.interface(f1u, Interface::has_f1u, None)?;
        let state = &mut *lock(&self.0.state);
        let known = state.sessions.get_mut(&session).ok_or(Refused::Unknown)?;
        if known.bearers.len() >= super::MOST_BEARERS {
            return Err(Refused::Full);
        }
        let id = BearerId { interface: f1u, teid: state.teids.allocate().ok_or(Refused::Full)? };
        let flows = config.flows.iter().fold(0, |flows, qfi| flows | 1 << (usize::from(qfi.value()) % FLOWS));
        let stats = Arc::<BearerStats>::default();
        known.bearers.insert(id, Arc::clone(&stats));
        let flow = Flow::new(config.tx.tx_next().unwrap_or(u32::MAX), config.tx.config().sn().bits());
        let bearer = Bearer {
            interface: f1u,
            session: session.teid,
            tx: config.tx,
            down: Down {
                header: config.downlink_header,
                du: None,
                nr_u: 0,
                flow,
                queue: Queue::new(config.queue_octets, config.discard),
                probe_ns: None,
            },
            rx: config.rx,
            up: Up {
                header: config.uplink_header,
                qfi: config.flows.first().map_or(0, |qfi| qfi.value()),
                flows,
                upf: known.upf,
            },
            stats,
            due_ns: None,
        };
        let (teid, default) = (id.teid, config.default);
        self.post(move |relay, _| relay.add(teid, flows, default, Box::new(bearer)));
        Ok(id)
    }

    /// Says where the DU takes a bearer's PDUs. Those that wait are sent.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn connect(&self, session: SessionId, bearer: BearerId, du: Tunnel) -> Result<(), Refused> {
        let state = &mut *lock(&self.0.state);
        if !state.sessions.get(&session).is_some_and(|known| known.bearers.contains_key(&bearer)) {
            return Err(Refused::Unknown);
        }
        let interface = bearer.interface;
        self.interface(interface, Interface::has_f1u, Some(du.address))?;
        let peer = state.number(&self.0.peers, interface, du.address)?;
        let du = FarEnd { interface, address: du.address, peer, teid: du.teid };
        self.post(move |relay, ports| relay.connect(bearer.teid, du, ports));
        Ok(())
    }

    /// The counters of a bearer.
    pub fn bearer_stats(&self, session: SessionId, bearer: BearerId) -> Option<Arc<BearerStats>> {
        lock(&self.0.state).sessions.get(&session)?.bearers.get(&bearer).cloned()
    }

    /// Removes a bearer; packets that wait are lost.
    pub fn remove(&self, session: SessionId, bearer: BearerId) {
        let state = &mut *lock(&self.0.state);
        let known = state.sessions.get_mut(&session).and_then(|known| known.bearers.remove(&bearer));
        if known.is_some() {
            self.forget(state, bearer);
        }
    }

    fn forget(&self, state: &mut State, bearer: BearerId) {
        state.teids.release(bearer.teid);
        self.post(move |relay, _| relay.remove(bearer.teid));
    }

    /// Closes a session with its bearers.
    pub fn close(&self, session: SessionId) {
        let state = &mut *lock(&self.0.state);
        let Some(known) = state.sessions.remove(&session) else { return };
        for bearer in known.bearers.keys() {
            self.forget(state, *bearer);
        }
        state.teids.release(session.teid);
        self.post(move |relay, _| relay.close(session.teid));
    }

    /// Sends an Echo Request by the interface with this number. The answer is an [`Event`].
    ///
    /// # Errors
    /// There is no such interface, or it does not reach the peer.
    pub fn echo(&self, interface: u8, peer: IpAddr, sequence: u16) -> Result<(), Refused> {
        self.interface(interface, |_| true, Some(peer))?;
        self.post(move |relay, ports| {
            relay.echoes.insert((interface, peer), sequence);
            let request = gtpu::Signalling::EchoRequest { sequence };
            relay.reply(interface.into(), &request, SocketAddr::new(peer, gtpu::PORT));
            relay.send_extra(ports);
        });
        Ok(())
    }
}

impl Relay {
    fn open(&mut self, teid: u32, upf: FarEnd) {
        self.ends.insert(teid, End::Session(Box::new(Session::new(upf))));
        self.count_far_end(upf, 1);
    }

    fn close(&mut self, teid: u32) {
        if let Some(End::Session(session)) = self.ends.remove(teid) {
            self.count_far_end(session.upf, -1);
        }
    }

    fn move_to(&mut self, teid: u32, upf: FarEnd) {
        let Some(End::Session(session)) = self.ends.get_mut(teid) else { return };
        let former = std::mem::replace(&mut session.upf, upf);
        for bearer in session.bearers() {
            if let Some(bearer) = self.bearer(bearer) {
                bearer.up.upf = upf;
            }
        }
        self.count_far_end(former, -1);
        self.count_far_end(upf, 1);
    }

    /// One tunnel more, or less, leads to a far end.
    fn count_far_end(&mut self, end: FarEnd, change: i32) {
        let key = (end.interface, end.address, end.teid);
        let count = self.far_ends.entry(key).or_default();
        *count = count.saturating_add_signed(change);
        if *count == 0 {
            self.far_ends.remove(&key);
        }
    }

    fn add(&mut self, teid: u32, flows: u64, default: bool, bearer: Box<Bearer>) {
        let session = bearer.session;
        if let Some(End::Session(known)) = self.ends.get_mut(session) {
            known.add(teid, flows, default);
            self.ends.insert(teid, End::Bearer(bearer));
            self.map_flows(session);
        }
    }

    /// Bearers take the flows from UEs that they carry to UEs.
    fn map_flows(&mut self, session: u32) {
        let Some(End::Session(known)) = self.ends.get_mut(session) else { return };
        let flows: Vec<(u32, u64)> = known.bearers().map(|teid| (teid, known.flows_of(teid))).collect();
        for (teid, flows) in flows {
            if let Some(bearer) = self.bearer(teid) {
                bearer.up.flows = flows;
            }
        }
    }

    fn connect(&mut self, teid: u32, du: FarEnd, ports: &mut Ports) {
        let Some(bearer) = self.bearer(teid) else { return };
        let former = bearer.down.du.replace(du);
        if former == Some(du) {
            return;
        }
        // A new far end knows nothing of what its predecessor has got and wanted.
        bearer.down.flow = Flow::new(bearer.tx.tx_next().unwrap_or(u32::MAX), bearer.tx.config().sn().bits());
        (bearer.down.nr_u, bearer.down.probe_ns) = (0, None);
        if let Some(former) = former {
            self.count_far_end(former, -1);
        }
        self.count_far_end(du, 1);
        self.send_waiting(teid, ports);
        // If it does not want all of them, it is asked again.
        if let Some(bearer) = self.bearer(teid)
            && !bearer.down.queue.is_empty()
        {
            bearer.down.probe_ns = Some(net::time::now_ns());
            self.plan(teid);
        }
    }

    fn remove(&mut self, teid: u32) {
        let Some(End::Bearer(bearer)) = self.ends.remove(teid) else { return };
        self.waiting_octets -= bearer.down.queue.octets();
        let lost = bearer.down.queue.len() + bearer.rx.held().0;
        self.stats.drops.count_n(DropReason::NoBearer, lost);
        if let Some(du) = bearer.down.du {
            self.count_far_end(du, -1);
        }
        if let Some(End::Session(session)) = self.ends.get_mut(bearer.session) {
            session.remove(teid);
        }
        self.map_flows(bearer.session);
    }
}
