//! The control plane's end of N4 (TS 29.244): PFCP over UDP to each configured UPF, and the associations
//! with them. The SMF has one; so has a gateway of the EPC, where N4 is called Sxa and Sxb.
//!
//! [`N4::request`] sends a session message and waits for its response. [`N4Event`]s are requests of
//! UPFs. One task receives and keeps the timers (`receive.rs`); one task per UPF keeps the association
//! (`association.rs`). The endpoint is behind a mutex that is held for microseconds, so a procedure sends
//! on its own task. [`rules`] has the parts that the rules of all sessions share.
//!
//! A UPF whose recovery time stamp changed has lost its sessions: the association is set up again, and
//! [`N4Event::Restore`] asks the owner to set up the sessions again.
//!
//! UDP does not prove the sender. A request of a UPF is accepted only from its configured address and
//! port, and does not change the association: a restart is believed only when the UPF reports it in a
//! response to a request of ours (`pfcp::endpoint`).
//!
//! Invariants: each request ends, with the response or an error; what a UPF reports is given to the owner or refused;
//! [`N4Event::Restore`] reaches the owner, however full the queue of events is; no message of a peer ends the process.
#![forbid(unsafe_code)]

mod association;
mod receive;
pub mod rules;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use net::time;
use net::udp::UdpSocket;
use pfcp::endpoint::{Endpoint, Failure, Handle, RequestId, SendError};
use pfcp::message::SessionReportRequest;
use pfcp::{Cause, Message, NodeId, NtpSeconds};
use telemetry::counters::Family;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use association::Upf;
use receive::Receiver;

/// Most unhandled events; reports that find no room are refused, and restorations wait.
const MAX_EVENTS: usize = 4096;

static FAILURES: Family = Family::new("n4_failure", "cause");

/// What the owner configures.
#[derive(Debug, Clone)]
pub struct Config {
    /// Our PFCP address and port (8805 by convention). The address is also our node ID.
    pub local: SocketAddr,
    /// PFCP addresses of the UPFs, the preferred one first. Each has an IP address of its own.
    pub upfs: Vec<SocketAddr>,
    /// T1 of PFCP: time until a request is repeated.
    pub t1: Duration,
    /// N1 of PFCP: most transmissions of a request.
    pub n1: u8,
    /// Time between heartbeats.
    pub heartbeat_interval: Duration,
}

/// Why an N4 request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum N4Error {
    /// No UPF is associated.
    #[error("no UPF is reachable")]
    NoUpf,
    /// The UPF did not answer.
    #[error("UPF: {0}")]
    Failed(Failure),
    /// The UPF refused.
    #[error("UPF refused with cause {0:?}")]
    Refused(Cause),
    /// The UPF answered with a message of another type, or a mandatory IE is missing.
    #[error("the UPF's answer is unusable")]
    Unusable,
    /// The request could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// N4 is stopping.
    #[error("stopping")]
    Stopped,
}

/// A request of a UPF, or a change of its association.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // consumed as they come
pub enum N4Event {
    /// A session report to answer.
    Report {
        /// The request, for [`N4::respond`].
        id: RequestId,
        /// Our SEID.
        seid: u64,
        /// The report.
        report: SessionReportRequest,
    },
    /// A session request that cannot be decoded, to be rejected towards the UPF's SEID.
    Malformed {
        /// The request, for [`N4::reject`].
        id: RequestId,
        /// Our SEID.
        seid: u64,
        /// What is wrong with it.
        error: pfcp::DecodeError,
    },
    /// An association was set up again: the UPF has lost its sessions, or may have lost them.
    Restore {
        /// The UPF.
        upf: SocketAddr,
        /// Whether the UPF has certainly lost them: it restarted or released the association.
        lost: bool,
    },
}

/// The state of a UPF in the status.
#[derive(Debug, Clone, serde::Serialize)]
pub struct UpfStatus {
    /// Its PFCP address.
    pub address: SocketAddr,
    /// Whether the UPF is associated and answers.
    pub associated: bool,
    /// Its recovery time stamp, seconds since 1900.
    pub recovery_time_stamp: Option<u32>,
}

/// The response to a request, or why there is none that can be used.
type Answer = Result<Message, N4Error>;

/// The SEIDs of both ends of a PFCP session.
#[derive(Debug, Clone, Copy)]
pub struct Seids {
    /// Our SEID, which responses must carry.
    pub own: u64,
    /// The UPF's; 0 in an establishment.
    pub upf: u64,
}

/// A procedure that waits for a response.
struct Waiting {
    /// Our SEID, if the request is about a session.
    seid: Option<u64>,
    sender: oneshot::Sender<Answer>,
}

struct State {
    endpoint: Endpoint,
    /// Procedures that wait for a response.
    waiting: HashMap<Handle, Waiting>,
    upfs: Vec<Upf>,
    /// UPFs with a [`N4Event::Restore`] for which the queue has had no room, and its `lost`.
    restore: HashMap<SocketAddr, bool>,
    /// When the receiving task's timer expires.
    armed: Option<std::time::Instant>,
    /// The receiving task has ended, and nobody would pass on a response.
    stopped: bool,
}

struct Inner {
    socket: UdpSocket,
    /// Our address, whose IP address is our node ID.
    local: SocketAddr,
    /// Our recovery time stamp.
    recovery: NtpSeconds,
    /// Held for microseconds, never over an await.
    state: Mutex<State>,
    /// Wakes the receiving task if its timer must expire earlier.
    rearm: Notify,
    events: mpsc::Sender<N4Event>,
}

/// Handle to N4; clones share it.
#[derive(Clone)]
pub struct N4 {
    inner: Arc<Inner>,
}

impl N4 {
    /// Binds the socket and starts associating with every UPF. When `tasks` is dropped, N4 stops: requests
    /// that wait for their response, and later ones, end with [`N4Error::Stopped`].
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub async fn start(
        config: &Config,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<(Self, mpsc::Receiver<N4Event>)> {
        let socket = net::udp::bind_with(config.local, net::udp::Options::CONTROL).await?;
        let local = socket.local_addr()?;
        let since_epoch = time::wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let recovery = NtpSeconds::from_unix(since_epoch.as_secs());
        let node_id = NodeId::from(local.ip());
        // Derived from random numbers of the operating system.
        let secret = std::hash::RandomState::new().hash_one(recovery.0);
        let mut endpoint = pfcp::endpoint::Config::new(node_id, recovery, secret);
        endpoint.t1 = config.t1;
        endpoint.n1 = config.n1;
        endpoint.heartbeat_interval = config.heartbeat_interval;
        let mut endpoint = Endpoint::new(endpoint);
        let mut upfs = Vec::new();
        for &address in &config.upfs {
            endpoint.add_peer(time::now().into_std(), address);
            upfs.push(Upf::new(address));
        }
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        let state = State {
            endpoint,
            waiting: HashMap::new(),
            upfs,
            restore: HashMap::new(),
            armed: None,
            stopped: false,
        };
        let inner = Inner { socket, local, recovery, state: state.into(), rearm: Notify::new(), events };
        let n4 = Self { inner: Arc::new(inner) };
        tasks.spawn(Receiver(n4.clone()).run());
        for &upf in &config.upfs {
            tasks.spawn(n4.clone().associate(upf));
        }
        Ok((n4, receiver))
    }

    /// Our PFCP address.
    pub fn local(&self) -> SocketAddr {
        self.inner.local
    }

    /// Sends a session request to a UPF and waits for the response.
    ///
    /// # Errors
    /// The UPF does not answer, refuses, or answers with something that cannot be used; see [`N4Error`]. One that
    /// refuses because it knows no association is associated again, which ends in [`N4Event::Restore`].
    pub async fn request(&self, upf: SocketAddr, seids: Seids, message: impl Into<Message>) -> Answer {
        let answer = self.ask(upf, Some(seids), message.into()).await?;
        match &answer {
            // An accepted session without the UPF's SEID is unusable, because no later request could
            // name it.
            Message::SessionEstablishmentResponse(response)
                if response.up_f_seid.is_none_or(|f_seid| f_seid.seid == 0) =>
            {
                Err(N4Error::Unusable)
            }
            _ => Ok(answer),
        }
    }

    /// As [`N4::request`], also for requests that are not about a session. A response that refuses is an error.
    async fn ask(&self, upf: SocketAddr, seids: Option<Seids>, message: Message) -> Answer {
        let answer = self.send(upf, seids, message)?;
        let answer = match answer.await.unwrap_or(Err(N4Error::Stopped)) {
            Ok(message) => match cause_of(&message).filter(|cause| !cause.is_accepted()) {
                Some(cause) => Err(N4Error::Refused(cause)),
                None => Ok(message),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = &answer {
            match error {
                N4Error::Refused(cause) => FAILURES.inc(&cause.0.to_string()),
                N4Error::Failed(Failure::TimedOut) => FAILURES.inc("timeout"),
                _ => FAILURES.inc("other"),
            }
        }
        if let Err(N4Error::Refused(Cause::NO_ASSOCIATION)) = answer {
            self.lose_association(upf);
        }
        answer
    }

    /// Sends a request. The receiver gets the response when it comes.
    fn send(
        &self,
        upf: SocketAddr,
        seids: Option<Seids>,
        message: Message,
    ) -> Result<oneshot::Receiver<Answer>, N4Error> {
        let mut state = self.lock();
        if state.stopped {
            return Err(N4Error::Stopped);
        }
        let seid = seids.map_or(0, |seids| seids.upf);
        let handle = state.endpoint.send_request(time::now().into_std(), upf, seid, message)?;
        let (sender, answer) = oneshot::channel();
        state.waiting.insert(handle, Waiting { seid: seids.map(|seids| seids.own), sender });
        self.flush(&mut state);
        Ok(answer)
    }

    /// Answers a request of a UPF; `seid` is the UPF's.
    pub fn respond(&self, id: RequestId, seid: u64, response: impl Into<Message>) {
        let mut state = self.lock();
        // A response that does not fit into a datagram is not sent; the UPF repeats its request and
        // then fails.
        let _ = state.endpoint.respond(time::now().into_std(), id, seid, response);
        self.flush(&mut state);
    }

    /// Refuses a request of a UPF.
    pub fn reject(&self, id: RequestId, seid: u64, cause: Cause, offending_ie: Option<u16>) {
        let mut state = self.lock();
        let _ = state.endpoint.reject(time::now().into_std(), id, seid, cause, offending_ie);
        self.flush(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the endpoint's datagrams and wakes the receiving task if its timer must expire earlier.
    fn flush(&self, state: &mut State) {
        while let Some(transmit) = state.endpoint.poll_transmit() {
            // A full socket buffer loses the datagram, which is then retransmitted.
            let _ = self.inner.socket.try_send_to(&transmit.payload, transmit.to);
        }
        let next = state.endpoint.poll_timeout();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            self.inner.rearm.notify_one();
        }
    }
}

/// The cause of a response.
fn cause_of(message: &Message) -> Option<Cause> {
    Some(match message {
        Message::AssociationSetupResponse(m) => m.cause,
        Message::AssociationReleaseResponse(m) => m.cause,
        Message::SessionEstablishmentResponse(m) => m.cause,
        Message::SessionModificationResponse(m) => m.cause,
        Message::SessionDeletionResponse(m) => m.cause,
        _ => return None,
    })
}
