//! How control reaches the user plane of a DU, and what it hears from there.
//!
//! The worker executes commands between two vectors, in order ([`path::calls`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use l2::rlc::um;
use path::Ports;
use path::calls::{self, Caller, Calls};
use path::events::{self, EventSender};

use crate::graph::UserPlane;
use crate::radio::Radio;
use crate::stats::{BearerStats, Stats};

/// Most time that a command may take: a worker answers within microseconds unless it is stopped or stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// Events that wait to be read. More are lost and counted.
const EVENTS: usize = 4096;
/// Of these, places for events that nothing repeats: what UEs send again is not taken while only so many are left.
const RESERVE: usize = 512;

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
    /// The usual t-Reassembly of RLC.
    pub const T_REASSEMBLY: Duration = Duration::from_millis(50);

    /// A bearer with usual values: 12 bit sequence numbers of RLC, 18 of PDCP, 1 MiB of queue, 50 ms of t-Reassembly.
    pub fn new(lcid: u8, cu: Tunnel) -> BearerSetup {
        BearerSetup {
            lcid,
            rlc: um::SnLength::Bits12,
            pdcp: PdcpSn::Bits18,
            cu,
            queue: 1 << 20,
            t_reassembly: BearerSetup::T_REASSEMBLY,
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
    /// The CU does not know the tunnel to which the bearer's packets go, and that for a while.
    UnknownAtCu {
        /// The UE.
        c_rnti: u16,
        /// The bearer.
        lcid: u8,
    },
}

/// A handle on the user plane; clones refer to the same one.
#[derive(Clone, Debug)]
pub struct Control {
    calls: Caller<UserPlane>,
    stats: Arc<Stats>,
}

/// The events of a user plane.
pub type Events = events::Events<Event>;

/// The worker's ends of the channels.
pub(crate) struct Ends {
    pub(crate) calls: Calls<UserPlane>,
    pub(crate) events: EventSender<Event>,
}

pub(crate) fn channels(stats: &Arc<Stats>) -> (Control, Events, Ends) {
    let (caller, calls) = calls::channel();
    let (teller, events) = events::channel(EVENTS, RESERVE);
    let control = Control { calls: caller, stats: Arc::clone(stats) };
    (control, events, Ends { calls, events: teller })
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
        self.ask(move |du, _, _| du.add_ue(c_rnti, place))
    }

    /// Removes the context of a UE with its bearers, and what waits for it.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_ue(&self, c_rnti: u16) -> Result<(), Refused> {
        self.ask(move |du, _, ports| du.remove_ue(c_rnti, ports))
    }

    /// Releases a UE: its data bearers go at once, its context when it has acknowledged the last RRC message (channel and octets), or
    /// after a second. A UE that has not acknowledged one is told on `uu`. No more events are about this UE.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn release_ue(&self, c_rnti: u16, last: Option<(u8, Vec<u8>)>) -> Result<(), Refused> {
        self.ask(move |du, now_ns, ports| du.release_ue(c_rnti, last, now_ns, ports))
    }

    /// Adds a data bearer.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_bearer(&self, c_rnti: u16, setup: BearerSetup) -> Result<Added, Refused> {
        self.ask(move |du, now_ns, _| du.add_bearer(c_rnti, &setup, now_ns))
    }

    /// Sends what a bearer carries to another tunnel from now on.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn redirect_bearer(&self, c_rnti: u16, lcid: u8, cu: Tunnel) -> Result<(), Refused> {
        self.ask(move |du, now_ns, _| du.redirect_bearer(c_rnti, lcid, cu, now_ns))
    }

    /// Removes a data bearer, and what waits on it.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_bearer(&self, c_rnti: u16, lcid: u8) -> Result<(), Refused> {
        self.ask(move |du, _, ports| du.remove_bearer(c_rnti, lcid, ports))
    }

    /// Changes how a UE's radio link behaves from now on. What waits or is under way stays.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn set_radio(&self, c_rnti: u16, downlink: Radio, uplink: Radio) -> Result<(), Refused> {
        self.ask(move |du, now_ns, _| du.set_radio(c_rnti, downlink, uplink, now_ns))
    }

    /// Sends an RRC message to a UE.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn send_rrc(&self, c_rnti: u16, lcid: u8, sdu: Vec<u8>) -> Result<(), Refused> {
        self.ask(move |du, now_ns, _| du.send_rrc(c_rnti, lcid, sdu, now_ns))
    }

    /// Broadcasts these messages from now on, to all that camp now and to each that will. The cell is in service.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn set_system_information(&self, mib: Vec<u8>, sib1: Vec<u8>) -> Result<(), Refused> {
        self.ask(move |du, now_ns, ports| du.set_system_information(mib, sib1, now_ns, ports))
    }

    /// Takes the cell out of service: it broadcasts nothing, and answers random access with backoff. UEs stay.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn take_out_of_service(&self) -> Result<(), Refused> {
        self.ask(move |du, _, _| {
            du.take_out_of_service();
            Ok(())
        })
    }

    /// Sends a PCCH message to all that camp.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn page(&self, pcch: Vec<u8>) -> Result<(), Refused> {
        self.ask(move |du, now_ns, ports| du.page(&pcch, now_ns, ports))
    }

    fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut UserPlane, u64, &mut Ports) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        self.calls.call(PATIENCE, call).unwrap_or(Err(Refused::NotRunning))
    }
}
