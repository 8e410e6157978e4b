//! A CU and a DU with bearers between them, as graphs. The ends in memory stand for UPF and UEs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use cu::user_plane::{BearerConfig, Interface, Relay, Role, Tunnel, UserPlane};
use du::{BearerSetup, Place, Radio, Settings};
use l2::pdcp::{self, Rx, RxConfig, Security, SnLength, Tx};
use l2::sdap::DrbId;
use l2::security::Direction;
use net::time;
use packet::gtpu::{self, PduSession};
use path::{Graph, Ports};
use pktio::poll::Waker;
use pktio::{Pool, Port, Sent, Vector};
use types::{NrCellId, Qfi};

/// Addresses on F1-U.
pub(super) const CU: Ipv4Addr = Ipv4Addr::new(10, 210, 0, 1);
pub(super) const DU: Ipv4Addr = Ipv4Addr::new(10, 210, 0, 2);
/// Numbers of interfaces, in both nodes: F1-U, and the end in memory.
pub(super) const F1U: u8 = 0;
pub(super) const END: u8 = 1;
/// UEs, with a bearer each.
const UES: u16 = 16;
const LCID: u8 = 4;
const QFI: u8 = 1;
const CELL: u64 = 1;
/// Octets of a time stamp, with which user packets begin.
const STAMP: usize = 8;

/// Both nodes.
pub(super) struct Nodes {
    pub(super) cu: Relay,
    pub(super) cu_plane: UserPlane,
    pub(super) du: du::UserPlane,
    pub(super) du_control: du::Control,
    /// The CU's TEIDs on N3, by UE.
    pub(super) n3: Vec<u32>,
    /// Those on F1-U.
    pub(super) f1u: Vec<u32>,
}

impl Nodes {
    /// Nodes whose bearers are connected, and whose data is not protected. Their ends are in memory.
    pub(super) fn new() -> anyhow::Result<Nodes> {
        let end = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        Nodes::with_upf(end, end)
    }

    /// The same with a UPF at an address, and the CU at another on N3.
    pub(super) fn with_upf(end: IpAddr, upf: IpAddr) -> anyhow::Result<Nodes> {
        let (cu_address, du_address) = (IpAddr::V4(CU), IpAddr::V4(DU));
        let interfaces =
            vec![Interface::new("f1u", Role::F1u, cu_address), Interface::new("n3", Role::N3, end)];
        let (cu_plane, cu, _events) = UserPlane::new(interfaces)?;
        let interface = |name: &str, role, address, port| du::Interface {
            name: name.to_owned(),
            role,
            local: SocketAddr::new(address, port),
        };
        let settings = Settings {
            cell: NrCellId::new(CELL)?,
            interfaces: vec![
                interface("f1u", du::Role::F1u, du_address, gtpu::PORT),
                interface("uu", du::Role::Uu, end, l2::uu::PORT),
            ],
            downlink: Radio::UNLIMITED,
            uplink: Radio::UNLIMITED,
            seed: 1,
            // Nothing but user packets and their reports.
            echo: None,
        };
        let (mut du, du_control, _events) = du::UserPlane::new(settings)?;
        let (mut n3, mut f1u) = (Vec::new(), Vec::new());
        for ue in 0..UES {
            let session = cu_plane.open(END, Tunnel { address: upf, teid: ue.into() })?;
            let tx = Tx::new(config(Direction::Downlink)?, Security::none());
            let rx = Rx::new(config(Direction::Uplink)?, Security::none(), RxConfig::default());
            let bearer = cu_plane.add(session, F1U, BearerConfig::new(tx, rx, true, vec![Qfi::new(QFI)?]))?;
            let place = Place { interface: END, address: SocketAddr::new(end, 40_000 + ue) };
            du.add_ue(1 + ue, place)?;
            let to = du::Tunnel {
                interface: F1U,
                address: SocketAddr::new(cu_address, gtpu::PORT),
                teid: cu_plane.f1u_tunnel(bearer).teid,
            };
            let added = du.add_bearer(1 + ue, &BearerSetup::new(LCID, to), 0)?;
            cu_plane.connect(session, bearer, Tunnel { address: du_address, teid: added.teid })?;
            n3.push(cu_plane.n3_tunnel(session).teid);
            f1u.push(to.teid);
        }
        Ok(Nodes { cu, cu_plane, du, du_control, n3, f1u })
    }
}

/// PDCP of a broadband bearer.
fn config(direction: Direction) -> anyhow::Result<pdcp::Config> {
    Ok(pdcp::Config::drb(DrbId::new(1).context("DRB")?, direction, SnLength::Eighteen, true))
}

/// What the end at the CU sends, set by the measuring thread.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Packets per second; 0: none; `u64::MAX`: as many as the CU takes.
    pub(super) rate: AtomicU64,
    /// Octets of the UE's IP packet.
    pub(super) size: AtomicU64,
    /// Packets made so far.
    pub(super) made: AtomicU64,
}

/// The end in memory at the CU: the UPF.
pub(super) struct Source {
    load: Arc<Load>,
    n3: Vec<u32>,
    /// Rate and size of the messages in hand.
    present: (u64, u64),
    messages: Vec<Vec<u8>>,
    /// When the next packet is due.
    due_ns: f64,
    next: usize,
}

/// Where the time stamp lies in a message of the UPF: behind a header with a PDU Session Container of one word.
const STAMP_AT: usize = 16;
/// Most packets that are sent at once when they are late.
const LATE: usize = 8;

impl Source {
    pub(super) fn new(load: &Arc<Load>, n3: &[u32]) -> Source {
        Source {
            load: Arc::clone(load),
            n3: n3.to_vec(),
            present: (0, 0),
            messages: Vec::new(),
            due_ns: 0.0,
            next: 0,
        }
    }

    fn change(&mut self, now: (u64, u64)) {
        self.present = now;
        self.due_ns = time::now_ns() as f64;
        self.messages = self.n3.iter().map(|teid| from_upf(*teid, now.1 as usize)).collect();
    }
}

impl Port for Source {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        let now = (self.load.rate.load(Relaxed), self.load.size.load(Relaxed));
        if now != self.present {
            self.change(now);
        }
        let now_ns = time::now_ns();
        let count = match now.0 {
            0 => 0,
            u64::MAX => vector.capacity(),
            rate => {
                let between = 1e9 / rate as f64;
                let due = ((now_ns as f64 - self.due_ns) / between).floor();
                if due > 100_000.0 {
                    // The thread has lost its core for long: what it missed is not made up for.
                    self.due_ns = now_ns as f64;
                }
                let count = due.clamp(0.0, LATE as f64);
                self.due_ns += count * between;
                count as usize
            }
        };
        for _ in 0..count {
            self.next = (self.next + 1) % self.messages.len();
            let message = &mut self.messages[self.next];
            message[STAMP_AT..STAMP_AT + STAMP].copy_from_slice(&now_ns.to_be_bytes());
            vector.push(message, upf());
        }
        self.load.made.store(self.load.made.load(Relaxed) + count as u64, Relaxed);
        Ok(count)
    }

    fn transmit(&mut self, _: &mut Vector, selected: &[u16]) -> Sent {
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn upf() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), gtpu::PORT)
}

/// A packet of the UPF for the UE with this TEID, of `size` octets that begin with a time stamp.
pub(super) fn from_upf(teid: u32, size: usize) -> Vec<u8> {
    let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
    let mut message = vec![0; gtpu::encapsulation_len(container)];
    gtpu::encapsulate(&mut message, teid, size, container);
    message.extend((0..size).map(|octet| octet as u8));
    message
}

/// What arrived at the UEs.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Packets.
    pub(super) packets: AtomicU64,
    /// Of these, those with other octets than were sent.
    pub(super) wrong: AtomicU64,
    /// Jitter as RFC 3550 §6.4.1 has it, in 1/16 ns.
    pub(super) jitter: AtomicU64,
    /// Time from the source to here of the last packet, in ns.
    pub(super) transit_ns: AtomicU64,
}

/// The end in memory at the DU: the UEs.
pub(super) struct Ues {
    arrivals: Arc<Arrivals>,
    transit: Option<u64>,
}

/// Headers of `uu`, RLC, PDCP and SDAP in front of the UE's IP packet.
const UE_HEADERS: usize = l2::uu::HEADER_LEN + 1 + 3 + 1;

impl Ues {
    pub(super) fn new(arrivals: &Arc<Arrivals>) -> Ues {
        Ues { arrivals: Arc::clone(arrivals), transit: None }
    }
}

impl Port for Ues {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        Ok(0)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let (arrivals, now_ns) = (&self.arrivals, time::now_ns());
        let (mut jitter, mut wrong) = (arrivals.jitter.load(Relaxed), 0);
        for at in selected {
            let packet = vector.frames()[usize::from(*at)].packet();
            let Some((stamp, rest)) =
                packet.get(UE_HEADERS..).and_then(|packet| packet.split_first_chunk::<STAMP>())
            else {
                wrong += 1;
                continue;
            };
            // The last octet of each packet; the nodes' own tests compare all.
            wrong += u64::from(rest.last().is_some_and(|last| *last != (rest.len() + STAMP - 1) as u8));
            let transit = now_ns.saturating_sub(u64::from_be_bytes(*stamp));
            if let Some(before) = self.transit.replace(transit) {
                jitter = jitter + transit.abs_diff(before) - (jitter + 8) / 16;
            }
        }
        arrivals.transit_ns.store(self.transit.unwrap_or(0), Relaxed);
        arrivals.jitter.store(jitter, Relaxed);
        arrivals.wrong.store(arrivals.wrong.load(Relaxed) + wrong, Relaxed);
        arrivals.packets.store(arrivals.packets.load(Relaxed) + selected.len() as u64, Relaxed);
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// PDUs of a UE on `uu`, one after the other.
pub(super) struct Ue {
    tx: Tx,
    size: usize,
}

impl Ue {
    /// The first UE, with packets of `size` octets.
    pub(super) fn new(size: usize) -> anyhow::Result<Ue> {
        Ok(Ue { tx: Tx::new(config(Direction::Uplink)?, Security::none()), size })
    }

    /// Packets have so many octets from now on.
    pub(super) fn size(&mut self, size: usize) {
        self.size = size;
    }

    /// The next PDU, on `uu`.
    pub(super) fn next(&mut self, message: &mut Vec<u8>) -> anyhow::Result<()> {
        message.clear();
        message.extend(l2::uu::Header::uplink(CELL, 1, LCID).octets());
        // RLC: a whole SDU.
        message.push(0);
        self.append(message)
    }

    /// The next PDU, as the DU sends it to the CU's tunnel.
    pub(super) fn next_on_f1u(&mut self, teid: u32, message: &mut Vec<u8>) -> anyhow::Result<()> {
        message.clear();
        message.extend([0; gtpu::HEADER_LEN]);
        self.append(message)?;
        let length = message.len() - gtpu::HEADER_LEN;
        gtpu::encapsulate(&mut message[..gtpu::HEADER_LEN], teid, length, None).context("it fits")?;
        Ok(())
    }

    fn append(&mut self, message: &mut Vec<u8>) -> anyhow::Result<()> {
        let pdu = message.len();
        message.extend(vec![0; self.tx.header_len()]);
        message.push(0x80 | QFI);
        message.extend(time::now_ns().to_be_bytes());
        message.extend((STAMP..self.size).map(|octet| octet as u8));
        self.tx.seal(&mut message[pdu..])?;
        Ok(())
    }

    /// Where it is on `uu`.
    pub(super) fn address() -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000)
    }
}

/// Packets that the CU has sent to its UPF, with their TEIDs.
type Taken = Arc<Mutex<Vec<(u32, Vec<u8>)>>>;

/// A CU whose UPF sends every packet back.
pub(super) struct Echo {
    relay: Relay,
    taken: Taken,
    n3: Vec<u32>,
    vector: Vector,
}

/// The end in memory of an [`Echo`].
pub(super) struct Mirror(Taken);

impl Echo {
    pub(super) fn new(relay: Relay, n3: &[u32]) -> (Echo, Mirror) {
        let taken = Taken::default();
        let vector = Vector::of(relay.home());
        (Echo { relay, taken: Arc::clone(&taken), n3: n3.to_vec(), vector }, Mirror(taken))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Graph for Echo {
    fn home(&self) -> &Arc<dyn Pool> {
        self.relay.home()
    }

    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports) {
        self.relay.process(input, vector, now_ns, ports);
        self.vector.clear();
        for (ue, packet) in lock(&self.taken).drain(..) {
            let Some(teid) = self.n3.get(ue as usize) else { continue };
            let mut message = from_upf(*teid, packet.len());
            message[STAMP_AT..].copy_from_slice(&packet);
            self.vector.push(&message, upf());
        }
        if !self.vector.is_empty() {
            self.relay.process(END.into(), &mut self.vector, now_ns, ports);
        }
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        self.relay.turn(now_ns, ports)
    }

    fn recover(&mut self, lost: usize) {
        self.relay.recover(lost);
    }

    fn wake_with(&mut self, waker: Waker) {
        self.relay.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        self.relay.interface_name(number)
    }
}

impl Port for Mirror {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        Ok(0)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let mut taken = lock(&self.0);
        for at in selected {
            if let Ok(packet) = gtpu::Packet::new(vector.frames()[usize::from(*at)].packet()) {
                taken.push((packet.teid(), packet.payload().to_vec()));
            }
        }
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
