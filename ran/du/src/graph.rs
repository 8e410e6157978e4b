//! The user plane as a graph of the engine, and its commands.

use std::net::SocketAddr;
use std::sync::Arc;

use l2::uu;
use path::{Graph, Outputs, Ports};
use pktio::poll::Waker;
use pktio::{Pool, Slab, VECTOR, Vector};
use telemetry::DropReason;
use types::NrCellId;

use crate::broadcast::Cell;
use crate::control::{self, Added, BearerSetup, Control, Ends, Event, Events, Place, Refused, Tunnel};
use crate::exits::Exits;
use crate::limit::Limit;
use crate::paths::{Echo, Paths};
use crate::radio::Radio;
use crate::scheduler::Scheduler;
use crate::stats::Stats;
use crate::status;
use crate::tables::Tables;
use crate::timers::{Task, Timers};

/// Longest packet of an interface without memory of its own.
const PACKET_LEN: usize = 9_216;

/// What an interface is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Towards CUs.
    F1u,
    /// Towards UEs.
    Uu,
}

/// An interface. Its number is its position in [`Settings::interfaces`], and that of its port in [`Ports`].
#[derive(Clone, Debug)]
pub struct Interface {
    /// Name for messages.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its address and port.
    pub local: SocketAddr,
}

/// How the user plane is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cell that the DU serves.
    pub cell: NrCellId,
    /// Its interfaces: 256 at most.
    pub interfaces: Vec<Interface>,
    /// The radio link of a new UE, towards it.
    pub downlink: Radio,
    /// The same, from it.
    pub uplink: Radio,
    /// What the radio link's losses and jitter follow from.
    pub seed: u64,
    /// When CUs get Echo Requests; `None` for never.
    pub echo: Option<Echo>,
}

impl Settings {
    /// With radio links without limits, and the usual Echo Requests.
    pub fn new(cell: NrCellId, interfaces: Vec<Interface>) -> Settings {
        Settings {
            cell,
            interfaces,
            downlink: Radio::UNLIMITED,
            uplink: Radio::UNLIMITED,
            seed: 1,
            echo: Some(Echo::default()),
        }
    }
}

/// What becomes of a packet of a vector.
pub(crate) enum Verdict {
    /// It leaves through this interface.
    Send(u8),
    /// It was used, and does not leave.
    Taken,
    /// It is dropped.
    Drop(DropReason),
}

/// The user plane of a DU; see the crate.
pub struct UserPlane {
    pub(crate) settings: Settings,
    pub(crate) cell: u64,
    home: Arc<dyn Pool>,
    pub(crate) tables: Tables,
    pub(crate) timers: Timers,
    pub(crate) scheduler: Scheduler,
    pub(crate) paths: Paths,
    pub(crate) exits: Exits,
    /// What the cell broadcasts, and to whom.
    pub(crate) broadcast: Cell,
    outputs: Outputs,
    pub(crate) ends: Ends,
    pub(crate) stats: Arc<Stats>,
    /// Error Indications, and lists of extension headers.
    pub(crate) f1u_replies: Limit,
    /// Releases, for UEs that have no context.
    pub(crate) releases: Limit,
    /// C-RNTIs that are given out.
    pub(crate) accesses: Limit,
}

impl UserPlane {
    /// A user plane without UEs, its control and its events.
    ///
    /// # Errors
    /// There are too many interfaces, or a radio link that cannot be.
    pub fn new(settings: Settings) -> Result<(UserPlane, Control, Events), Refused> {
        let count = settings.interfaces.len();
        let possible = settings.downlink.is_possible() && settings.uplink.is_possible();
        if count > path::outputs::MAX_INTERFACES || !possible {
            return Err(Refused::Value);
        }
        let stats = Arc::new(Stats::default());
        let (control, events, ends) = control::channels(&stats);
        let cell = settings.cell.value();
        let user_plane = UserPlane {
            scheduler: Scheduler::new(settings.seed),
            cell,
            home: Slab::new(2 * VECTOR, PACKET_LEN),
            tables: Tables::new(cell, settings.downlink, settings.uplink),
            paths: Paths::new(settings.echo),
            settings,
            timers: Timers::default(),
            exits: Exits::new(count, PACKET_LEN),
            broadcast: Cell::new(count),
            outputs: Outputs::new(count),
            ends,
            stats,
            f1u_replies: Limit::new(1_000, 100),
            releases: Limit::new(100, 20),
            accesses: Limit::new(2_000, 500),
        };
        Ok((user_plane, control, events))
    }

    /// What it counts.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Adds a UE; see [`Control::add_ue`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_ue(&mut self, c_rnti: u16, place: Place) -> Result<(), Refused> {
        self.check(place.interface, place.address, Role::Uu)?;
        self.tables.add_ue(c_rnti, place, None).map(drop)
    }

    /// Adds a bearer; see [`Control::add_bearer`]. The CU gets a first delivery status.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_bearer(&mut self, c_rnti: u16, setup: &BearerSetup, now_ns: u64) -> Result<Added, Refused> {
        self.check(setup.cu.interface, setup.cu.address, Role::F1u)?;
        let bearer = self.tables.add_bearer(c_rnti, setup)?;
        self.paths.add_user(&setup.cu, &mut self.timers, now_ns);
        status::arm(&mut self.timers, bearer, now_ns);
        Ok(Added { teid: bearer.teid, stats: Arc::clone(&bearer.stats) })
    }

    /// Whether an interface has a role, and may send to an address.
    fn check(&self, interface: u8, address: SocketAddr, role: Role) -> Result<(), Refused> {
        let fits = self.settings.interfaces.get(usize::from(interface)).is_some_and(|known| {
            known.role == role && known.local.is_ipv4() == address.is_ipv4() && address.port() != 0
        });
        if fits { Ok(()) } else { Err(Refused::Value) }
    }

    /// Sends what a bearer carries to another tunnel; see [`Control::redirect_bearer`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn redirect_bearer(&mut self, c_rnti: u16, lcid: u8, cu: Tunnel, now_ns: u64) -> Result<(), Refused> {
        self.check(cu.interface, cu.address, Role::F1u)?;
        let before = self.tables.redirect(c_rnti, lcid, cu)?;
        self.paths.add_user(&cu, &mut self.timers, now_ns);
        self.paths.remove_user(&before);
        if let Some(bearer) = self.tables.bearer_of(c_rnti, lcid) {
            status::arm(&mut self.timers, bearer, now_ns);
        }
        Ok(())
    }

    /// Removes a bearer; the CU gets a last delivery status; see [`Control::remove_bearer`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_bearer(&mut self, c_rnti: u16, lcid: u8, ports: &mut Ports) -> Result<(), Refused> {
        let mut bearer = self.tables.remove_bearer(c_rnti, lcid)?;
        self.paths.remove_user(&bearer.cu);
        let discarded = self.tables.ue_mut(c_rnti).map_or(0, |ue| ue.uplink_queue.discard(bearer.teid));
        let lost = discarded + bearer.tx.reset() + bearer.rx.incomplete();
        self.stats.drops.count_n(DropReason::BearerReleased, lost);
        status::send(&mut bearer, &Radio::UNLIMITED, true, &mut self.exits, &self.stats, ports);
        Ok(())
    }

    /// Removes a UE; see [`Control::remove_ue`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_ue(&mut self, c_rnti: u16, ports: &mut Ports) -> Result<(), Refused> {
        for lcid in 0..=uu::MAX_LCID {
            // Most channels have no bearer.
            let _ = self.remove_bearer(c_rnti, lcid, ports);
        }
        self.forget(c_rnti);
        self.tables.remove_ue(c_rnti)
    }

    /// Tells control, or counts what it was not told.
    pub(crate) fn tell(&self, event: Event) {
        if !self.ends.events.send(event) {
            self.stats.drops.count(DropReason::ControlOverflow);
        }
    }

    fn do_what_is_due(&mut self, now_ns: u64, ports: &mut Ports) {
        while let Some((due_ns, task)) = self.timers.due(now_ns) {
            match task {
                Task::Status(teid) => self.status_is_due(teid, due_ns, ports),
                Task::Reassembly(teid) => self.reassembly_is_due(teid, now_ns),
                Task::Signalling(c_rnti, serial) => self.signalling_is_due(c_rnti, serial, due_ns, now_ns),
                Task::Echo(interface, address) => {
                    self.echo_is_due(interface, address, due_ns, now_ns, ports);
                }
                Task::Slot => self.slot(now_ns),
                Task::FirstMessage(c_rnti, serial) => self.first_message_is_due(c_rnti, serial, ports),
                Task::Leave(c_rnti, serial) => self.leave_is_due(c_rnti, serial, now_ns, ports),
            }
        }
    }
}

impl Graph for UserPlane {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports) {
        let Some(role) = self.settings.interfaces.get(input).map(|interface| interface.role) else { return };
        self.outputs.clear();
        for at in 0..vector.len() {
            let frame = &mut vector.frame_mut(at);
            let verdict = match role {
                Role::F1u => self.downlink(input, frame, now_ns, ports),
                Role::Uu => self.uplink(input, frame, now_ns, ports),
            };
            match verdict {
                Verdict::Send(interface) => self.outputs.push(interface, at),
                Verdict::Taken => {}
                Verdict::Drop(reason) => self.stats.drops.count(reason),
            }
        }
        vector.set_peers(&self.tables.peers.table);
        let stats = &self.stats;
        self.outputs.transmit(vector, ports, |_, sent| stats.count_unsent(sent));
        ports[input].losses(&mut |reason, packets| stats.drops.count_n(reason, packets));
        // What a radio link without delay has let pass.
        self.land(now_ns, ports);
        self.exits.flush(&self.stats, ports);
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        for call in self.ends.calls.take() {
            call(self, now_ns, ports);
        }
        self.do_what_is_due(now_ns, ports);
        self.land(now_ns, ports);
        self.exits.flush(&self.stats, ports);
        self.timers.next_ns().into_iter().chain(self.scheduler.next_ns()).min()
    }

    fn recover(&mut self, lost: usize) {
        self.stats.drops.count_n(DropReason::WorkerFailed, lost);
    }

    fn wake_with(&mut self, waker: Waker) {
        self.ends.calls.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        self.settings.interfaces.get(number).map_or("?", |interface| &interface.name)
    }
}
