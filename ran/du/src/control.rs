//! How control reaches the user plane of a DU, and what it hears from there.
//!
//! A command goes through a channel to the worker, which executes it between two vectors and answers. All commands of one
//! [`Control`] are executed in order.

use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use l2::rlc::um;
use pktio::poll::Waker;

use crate::radio::Radio;
use crate::stats::{BearerStats, Stats};

/// Most time that a command may take: a worker answers within microseconds unless it is stopped or stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events that wait to be read. More are lost and counted.
const EVENTS: usize = 4096;

/// Where a UE is: the number of the interface towards UEs, and the address on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Place {
    /// Number of the interface in [`crate::Settings`].
    pub interface: u8,
    /// The UE's address and port.
    pub address: SocketAddr,
}

/// The far end of a tunnel on F1-U.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Tunnel {
    /// Number of the interface in [`crate::Settings`].
    pub interface: u8,
    /// The CU's address and port.
    pub address: SocketAddr,
    /// The CU's TEID.
    pub teid: u32,
}

/// Length of PDCP sequence numbers of a data bearer (TS 38.323 §6.3.2), which the DU reads for its delivery status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PdcpSn {
    /// 12 bits.
    Bits12,
    /// 18 bits.
    Bits18,
}

/// A data bearer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BearerSetup {
    /// Logical channel: 4 to 32.
    pub lcid: u8,
    /// Length of RLC's sequence numbers.
    pub rlc: um::SnLength,
    /// Length of PDCP's sequence numbers.
    pub pdcp: PdcpSn,
    /// Where uplink packets and delivery status go.
    pub cu: Tunnel,
    /// Octets of memory of packets that may wait for the radio link.
    pub queue: usize,
    /// RLC's t-Reassembly.
    pub t_reassembly: Duration,
}

impl BearerSetup {
    /// A bearer with usual values: 12 bit sequence numbers of RLC, 18 of PDCP, 1 MiB of queue, 50 ms of t-Reassembly.
    pub fn new(lcid: u8, cu: Tunnel) -> BearerSetup {
        BearerSetup {
            lcid,
            rlc: um::SnLength::Bits12,
            pdcp: PdcpSn::Bits18,
            cu,
            queue: 1 << 20,
            t_reassembly: Duration::from_millis(50),
        }
    }
}

/// A bearer that was added.
#[derive(Clone, Debug)]
pub struct Added {
    /// Our TEID, to which the CU sends.
    pub teid: u32,
    /// What the bearer counts.
    pub stats: Arc<BearerStats>,
}

/// Why a command was not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// No UE has the C-RNTI.
    #[error("no UE has this C-RNTI")]
    UnknownUe,
    /// The UE has no such bearer.
    #[error("the UE has no such bearer")]
    UnknownBearer,
    /// The C-RNTI or logical channel is in use.
    #[error("the C-RNTI or logical channel is in use")]
    InUse,
    /// A C-RNTI, logical channel, address, interface or property of a radio link that cannot be.
    #[error("a value is out of range")]
    Value,
    /// No TEID, C-RNTI or number of a peer is left.
    #[error("the tables are full")]
    Full,
    /// The worker has ended, or does not answer.
    #[error("the user plane is not running")]
    NotRunning,
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A UE has asked for a C-RNTI and got it.
    RandomAccess {
        /// The C-RNTI.
        c_rnti: u16,
        /// Where the UE is.
        place: Place,
    },
    /// A UE says that it has released its C-RNTI. Its context is still there.
    ReleasedByUe {
        /// The C-RNTI.
        c_rnti: u16,
    },
    /// A UE has sent no message after its random access: its context is gone.
    AccessTimedOut {
        /// The C-RNTI.
        c_rnti: u16,
    },
    /// An RRC message of a UE.
    Rrc {
        /// The UE.
        c_rnti: u16,
        /// Logical channel: that of a signalling bearer.
        lcid: u8,
        /// The message; on SRB1 and SRB2 with PDCP's header.
        sdu: Vec<u8>,
    },
    /// An RRC message was sent again as often as allowed: the bearer has stopped.
    RadioLinkFailure {
        /// The UE.
        c_rnti: u16,
        /// The signalling bearer.
        lcid: u8,
    },
    /// A CU does not answer Echo Requests any more.
    PathFailed {
        /// Number of the interface.
        interface: u8,
        /// The CU.
        address: SocketAddr,
    },
    /// A CU that had failed answers again.
    PathRestored {
        /// Number of the interface.
        interface: u8,
        /// The CU.
        address: SocketAddr,
    },
    /// The CU does not know the tunnel to which the bearer's packets go.
    UnknownAtCu {
        /// The UE.
        c_rnti: u16,
        /// The bearer.
        lcid: u8,
    },
}

pub(crate) type Reply<T> = SyncSender<Result<T, Refused>>;

/// What control can ask for.
pub(crate) enum Command {
    AddUe { c_rnti: u16, place: Place, reply: Reply<()> },
    RemoveUe { c_rnti: u16, reply: Reply<()> },
    AddBearer { c_rnti: u16, setup: BearerSetup, reply: Reply<Added> },
    RedirectBearer { c_rnti: u16, lcid: u8, cu: Tunnel, reply: Reply<()> },
    RemoveBearer { c_rnti: u16, lcid: u8, reply: Reply<()> },
    SetRadio { c_rnti: u16, downlink: Radio, uplink: Radio, reply: Reply<()> },
    SendRrc { c_rnti: u16, lcid: u8, sdu: Vec<u8>, reply: Reply<()> },
}

/// A handle on the user plane; clones refer to the same one.
#[derive(Clone, Debug)]
pub struct Control {
    commands: Sender<Command>,
    /// Set when the worker has started.
    waker: Arc<Mutex<Option<Waker>>>,
    stats: Arc<Stats>,
}

/// The events of a user plane.
#[derive(Debug)]
pub struct Events(Receiver<Event>);

impl Events {
    /// The next event, if one comes in time.
    pub fn next(&self, timeout: Duration) -> Option<Event> {
        self.0.recv_timeout(timeout).ok()
    }
}

/// The worker's ends of the channels.
pub(crate) struct Ends {
    pub(crate) commands: Receiver<Command>,
    events: SyncSender<Event>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Ends {
    /// Tells control; `false` if too many events wait. Where nobody listens, nothing is lost.
    pub(crate) fn tell(&self, event: Event) -> bool {
        !matches!(self.events.try_send(event), Err(TrySendError::Full(_)))
    }

    pub(crate) fn wake_with(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }
}

pub(crate) fn channels(stats: &Arc<Stats>) -> (Control, Events, Ends) {
    let (commands, receiver) = mpsc::channel();
    let (events, event_receiver) = mpsc::sync_channel(EVENTS);
    let waker = Arc::default();
    let control = Control { commands, waker: Arc::clone(&waker), stats: Arc::clone(stats) };
    (control, Events(event_receiver), Ends { commands: receiver, events, waker })
}

impl Control {
    /// What the user plane has counted so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Adds the context of a UE that is at `place`.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_ue(&self, c_rnti: u16, place: Place) -> Result<(), Refused> {
        self.ask(|reply| Command::AddUe { c_rnti, place, reply })
    }

    /// Removes the context of a UE with its bearers, and what waits for it.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_ue(&self, c_rnti: u16) -> Result<(), Refused> {
        self.ask(|reply| Command::RemoveUe { c_rnti, reply })
    }

    /// Adds a data bearer.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_bearer(&self, c_rnti: u16, setup: BearerSetup) -> Result<Added, Refused> {
        self.ask(|reply| Command::AddBearer { c_rnti, setup, reply })
    }

    /// Sends what a bearer carries to another tunnel from now on.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn redirect_bearer(&self, c_rnti: u16, lcid: u8, cu: Tunnel) -> Result<(), Refused> {
        self.ask(|reply| Command::RedirectBearer { c_rnti, lcid, cu, reply })
    }

    /// Removes a data bearer, and what waits on it.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_bearer(&self, c_rnti: u16, lcid: u8) -> Result<(), Refused> {
        self.ask(|reply| Command::RemoveBearer { c_rnti, lcid, reply })
    }

    /// Changes how a UE's radio link behaves from now on. What waits or is under way stays.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn set_radio(&self, c_rnti: u16, downlink: Radio, uplink: Radio) -> Result<(), Refused> {
        self.ask(|reply| Command::SetRadio { c_rnti, downlink, uplink, reply })
    }

    /// Sends an RRC message to a UE.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn send_rrc(&self, c_rnti: u16, lcid: u8, sdu: Vec<u8>) -> Result<(), Refused> {
        self.ask(|reply| Command::SendRrc { c_rnti, lcid, sdu, reply })
    }

    fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Refused> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.commands.send(command(reply)).map_err(|_| Refused::NotRunning)?;
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake();
        }
        answer.recv_timeout(PATIENCE).unwrap_or(Err(Refused::NotRunning))
    }
}
