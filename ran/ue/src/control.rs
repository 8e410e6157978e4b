//! How control reaches the user plane of UEs, and what it hears from there.
//!
//! The worker executes commands between two vectors, in order ([`path::calls`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::time::Duration;

use l2::pdcp;
use l2::rlc::um;
use l2::sdap::Drb;
use l2::uu::ContentionIdentity;
use path::Ports;
use path::calls::{self, Caller, Calls};
use path::events::{self, EventSender};
use types::{NrCellId, Qfi};

use crate::graph::UserPlane;
use crate::stats::{SessionStats, Stats};
use crate::tuns::peer_of;

/// Most time that a command may take: a worker answers within microseconds unless it is stopped or stuck.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most time that random access may take, with backoffs.
const ACCESS_PATIENCE: Duration = Duration::from_secs(15);
/// Events that wait to be read. More are lost and counted.
const EVENTS: usize = 4096;
/// Of these, places for events that nothing repeats: what DUs send again is not taken while only so many are left.
const RESERVE: usize = 512;

/// A UE with a C-RNTI. The number is not used again before 4,096 other UEs had its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct UeId(pub(crate) u32);

/// A PDU session of a UE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SessionId(pub(crate) u32);

impl SessionId {
    /// The peer that stands for the session on the interface with the TUN devices, for a port that takes their place.
    pub fn peer(self) -> SocketAddr {
        peer_of(self.0)
    }
}

/// A data bearer of a UE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BearerId(pub(crate) u32);

/// A data bearer of a session.
#[derive(Debug)]
pub struct BearerSetup {
    /// Logical channel: 4 to 32.
    pub lcid: u8,
    /// Its identity, and in which directions it has the SDAP header; as in the configurations of `tx` and `rx`.
    pub drb: Drb,
    /// Whether it carries the QoS flows of the session that have no bearer of their own.
    pub default: bool,
    /// QoS flows that it carries.
    pub flows: Vec<Qfi>,
    /// Length of RLC's sequence numbers.
    pub rlc: um::SnLength,
    /// RLC's t-Reassembly.
    pub t_reassembly: Duration,
    /// PDCP, uplink.
    pub tx: pdcp::Tx,
    /// PDCP, downlink.
    pub rx: pdcp::Rx,
}

/// Why a command was not executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// There is no such UE, session or bearer (any more).
    #[error("no such UE, session or bearer")]
    Unknown,
    /// The C-RNTI, the logical channel or the bearer's identity is in use.
    #[error("the C-RNTI, logical channel or bearer is in use")]
    InUse,
    /// A C-RNTI, logical channel, address or message that cannot be.
    #[error("a value is out of range")]
    Value,
    /// SDAP refuses the bearer.
    #[error("{0}")]
    Sdap(#[from] l2::sdap::ConfigError),
    /// The DU has answered no preamble, or asked to wait too often.
    #[error("the distributed unit gives no C-RNTI")]
    NoAnswer,
    /// No number is left.
    #[error("the tables are full")]
    Full,
    /// The worker has ended, or does not answer.
    #[error("the user plane is not running")]
    NotRunning,
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An RRC message.
    Rrc {
        /// The UE.
        ue: UeId,
        /// Logical channel of its signalling bearer: 0, 1 or 2; on SRB1 and SRB2 with PDCP's header.
        lcid: u8,
        /// The message.
        message: Vec<u8>,
    },
    /// The DU has released the UE's C-RNTI. The UE's context is still there.
    ReleasedByDu {
        /// The UE.
        ue: UeId,
    },
    /// An RRC message was sent as often as allowed, and not acknowledged.
    RadioLinkFailure {
        /// The UE.
        ue: UeId,
    },
    /// An RRC message for all that camp in a cell.
    Broadcast {
        /// The cell.
        cell: NrCellId,
        /// Its DU.
        du: SocketAddr,
        /// [`l2::uu::BCH`], [`l2::uu::SI_RNTI`] or [`l2::uu::P_RNTI`].
        channel: u16,
        /// The message.
        message: Vec<u8>,
    },
}

/// Where the result of a command goes that takes a while.
pub(crate) enum Reply<T> {
    /// To a thread that waits.
    Sync(SyncSender<Result<T, Refused>>),
    /// To a task that waits.
    Async(tokio::sync::oneshot::Sender<Result<T, Refused>>),
}

impl<T> Reply<T> {
    /// Gives the result; the result comes back if nobody waits any more.
    pub(crate) fn give(self, result: Result<T, Refused>) -> Result<(), Result<T, Refused>> {
        match self {
            Reply::Sync(sender) => sender.try_send(result).map_err(|error| match error {
                TrySendError::Full(result) | TrySendError::Disconnected(result) => result,
            }),
            Reply::Async(sender) => sender.send(result),
        }
    }
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

    /// Gets a C-RNTI from the DU at `du` by random access, and adds the UE. Waits for the DU's answer: a second, and longer if
    /// the DU asks to wait. `identity` should be random.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn access(
        &self,
        cell: NrCellId,
        du: SocketAddr,
        identity: ContentionIdentity,
    ) -> Result<UeId, Refused> {
        let (reply, answer) = mpsc::sync_channel(1);
        let begin = move |ues: &mut UserPlane, now_ns, _: &mut Ports| {
            ues.begin_access(cell, du, identity, now_ns, Reply::Sync(reply));
        };
        self.calls.post(begin).map_err(|_| Refused::NotRunning)?;
        answer.recv_timeout(ACCESS_PATIENCE).unwrap_or(Err(Refused::NotRunning))
    }

    /// Adds a UE that has got a C-RNTI in a cell, whose DU is at `du`.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_ue(&self, cell: NrCellId, du: SocketAddr, c_rnti: u16) -> Result<UeId, Refused> {
        self.ask(move |ues, _, _| ues.add_ue(cell, du, c_rnti))
    }

    /// Removes a UE with its sessions and bearers.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_ue(&self, ue: UeId) -> Result<(), Refused> {
        self.ask(move |ues, _, _| ues.remove_ue(ue))
    }

    /// Adds a PDU session whose uplink packets are of one QoS flow. [`crate::Devices::attach`] gives it a TUN device.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_session(&self, ue: UeId, flow: Qfi) -> Result<(SessionId, Arc<SessionStats>), Refused> {
        self.ask(move |ues, _, _| ues.add_session(ue, flow))
    }

    /// Removes a session with its bearers.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_session(&self, session: SessionId) -> Result<(), Refused> {
        self.ask(move |ues, _, _| ues.remove_session(session))
    }

    /// Adds a data bearer to a session. Flows that move to it end with a marker on the bearer that they had.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_bearer(&self, session: SessionId, setup: BearerSetup) -> Result<BearerId, Refused> {
        self.ask(move |ues, _, ports| ues.add_bearer(session, setup, ports))
    }

    /// Removes a data bearer, and what waits on it for older packets.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_bearer(&self, bearer: BearerId) -> Result<(), Refused> {
        self.ask(move |ues, _, _| ues.remove_bearer(bearer))
    }

    /// Sends an RRC message on SRB0.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn send_rrc(&self, ue: UeId, message: Vec<u8>) -> Result<(), Refused> {
        self.ask(move |ues, now_ns, ports| ues.send_rrc(ue, 0, message, now_ns, ports))
    }

    /// Has the worker execute something. The result comes to who waits for it, if anybody does.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut UserPlane, u64, &mut Ports) -> Result<T, Refused> + Send + 'static,
    ) -> tokio::sync::oneshot::Receiver<Result<T, Refused>> {
        let (sender, result) = tokio::sync::oneshot::channel();
        self.post(move |ues, now_ns, ports| {
            // Who does not wait any more does not want the result.
            let _ = sender.send(call(ues, now_ns, ports));
        });
        result
    }

    /// Waits for a result of [`Control::begin`]. Cancel-safe.
    pub(crate) async fn finish<T>(
        result: &mut tokio::sync::oneshot::Receiver<Result<T, Refused>>,
    ) -> Result<T, Refused> {
        match net::time::timeout(PATIENCE, result).await {
            Ok(Ok(result)) => result,
            _ => Err(Refused::NotRunning),
        }
    }

    /// Executes something on the worker, without blocking the caller's thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut UserPlane, u64, &mut Ports) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        Control::finish(&mut self.begin(call)).await
    }

    /// Executes something on the worker when it comes to it.
    pub(crate) fn post(&self, call: impl FnOnce(&mut UserPlane, u64, &mut Ports) + Send + 'static) {
        // Without a worker there is nothing to do.
        let _ = self.calls.post(call);
    }

    /// As [`Control::access`], without blocking the caller's thread.
    pub(crate) async fn access_async(
        &self,
        cell: NrCellId,
        du: SocketAddr,
        identity: ContentionIdentity,
    ) -> Result<UeId, Refused> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let begin = move |ues: &mut UserPlane, now_ns, _: &mut Ports| {
            ues.begin_access(cell, du, identity, now_ns, Reply::Async(reply));
        };
        self.calls.post(begin).map_err(|_| Refused::NotRunning)?;
        match net::time::timeout(ACCESS_PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            _ => Err(Refused::NotRunning),
        }
    }

    fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut UserPlane, u64, &mut Ports) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        self.calls.call(PATIENCE, call).unwrap_or(Err(Refused::NotRunning))
    }
}
