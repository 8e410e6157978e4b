//! N4 (TS 29.244): PFCP over UDP to each configured UPF, and the associations with them.
//!
//! [`N4::request`] sends a session message and waits for its response. [`N4Event`]s are requests of
//! UPFs. One task receives and keeps the timers; one task per UPF keeps the association. The endpoint
//! is behind a mutex that is held for microseconds, so a procedure sends on its own task.
//!
//! A UPF whose recovery time stamp changed has lost its sessions: the association is set up again, and
//! [`N4Event::Restore`] makes `procedure::restoration` set up the sessions again.
//!
//! UDP does not prove the sender. A request of a UPF is accepted only from its configured address and
//! port, and does not change the association: a restart is believed only when the UPF reports it in a
//! response to a request of ours (`pfcp::endpoint`).

pub mod rules;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use net::time;
use net::udp::UdpSocket;
use pfcp::endpoint::{Endpoint, Event, Failure, Handle, RequestId, SendError};
use pfcp::message::*;
use pfcp::{Cause, CpFunctionFeatures, Message, NodeId, NtpSeconds, UpFunctionFeatures};
use telemetry::counters::{Counter, Family};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::config::Config;

/// Most unhandled events; the UPF repeats reports that find no room.
const MAX_EVENTS: usize = 4096;
/// Pause between attempts to associate.
const RETRY: Duration = Duration::from_secs(1);

static FAILURES: Family = Family::new("smf_n4_failure", "cause");
static EVENTS_DROPPED: Counter = Counter::new("smf_n4_events_dropped");
static UNEXPECTED: Counter = Counter::new("smf_n4_unexpected_request");
static WRONG_SEIDS: Counter = Counter::new("smf_n4_wrong_seids");

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
    /// The SMF is stopping.
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

struct Upf {
    address: SocketAddr,
    /// The association was set up and has not been lost since.
    associated: bool,
    /// The UPF answers heartbeats.
    alive: bool,
    /// The UPF has lost its sessions since the last [`N4Event::Restore`].
    lost_sessions: bool,
    /// How often the UPF was associated again after losing its sessions; see [`N4::epoch`].
    epoch: u64,
    features: UpFunctionFeatures,
    wake: Arc<Notify>,
}

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
    /// When the receiving task's timer expires.
    armed: Option<std::time::Instant>,
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

/// Tasks that end when their owner is dropped.
#[derive(Default)]
pub struct Tasks(Vec<tokio::task::JoinHandle<()>>);

impl Tasks {
    /// Runs `task` until the owner is dropped.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl N4 {
    /// Binds the socket and starts associating with every UPF.
    pub async fn start(config: &Config, tasks: &mut Tasks) -> io::Result<(Self, mpsc::Receiver<N4Event>)> {
        let socket = net::udp::bind(config.pfcp).await?;
        let local = socket.local_addr()?;
        let since_epoch = time::wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let recovery = NtpSeconds::from_unix(since_epoch.as_secs());
        let node_id = NodeId::from(local.ip());
        // Derived from random numbers of the operating system.
        let secret = std::hash::RandomState::new().hash_one(recovery.0);
        let mut endpoint = pfcp::endpoint::Config::new(node_id, recovery, secret);
        endpoint.t1 = Duration::from_millis(config.timers.pfcp_t1_ms);
        endpoint.n1 = config.timers.pfcp_n1;
        endpoint.heartbeat_interval = Duration::from_millis(config.timers.pfcp_heartbeat_ms);
        let mut endpoint = Endpoint::new(endpoint);
        let mut upfs = Vec::new();
        for &address in &config.upf {
            endpoint.add_peer(time::now().into_std(), address);
            upfs.push(Upf {
                address,
                associated: false,
                alive: true,
                lost_sessions: false,
                epoch: 0,
                features: UpFunctionFeatures::default(),
                wake: Arc::new(Notify::new()),
            });
        }
        let (events, receiver) = mpsc::channel(MAX_EVENTS);
        let state = State { endpoint, waiting: HashMap::new(), upfs, armed: None };
        let inner = Inner { socket, local, recovery, state: state.into(), rearm: Notify::new(), events };
        let n4 = Self { inner: Arc::new(inner) };
        tasks.spawn(n4.clone().receive());
        for &upf in &config.upf {
            tasks.spawn(n4.clone().associate(upf));
        }
        Ok((n4, receiver))
    }

    /// Our PFCP address.
    pub fn local(&self) -> SocketAddr {
        self.inner.local
    }

    /// The UPF for a new session: the first one that is associated and answers.
    pub fn select_upf(&self) -> Result<SocketAddr, N4Error> {
        let state = self.lock();
        state.upfs.iter().find(|upf| upf.associated && upf.alive).map(|upf| upf.address).ok_or(N4Error::NoUpf)
    }

    /// Whether a UPF is associated and answers.
    pub fn is_up(&self, upf: SocketAddr) -> bool {
        self.lock().upfs.iter().any(|other| other.address == upf && other.associated && other.alive)
    }

    /// A number that changes each time a UPF is associated again after it lost its sessions. A session
    /// set up in the present epoch needs no restoration.
    pub fn epoch(&self, upf: SocketAddr) -> u64 {
        self.lock().upfs.iter().find(|other| other.address == upf).map_or(0, |upf| upf.epoch)
    }

    /// The status of every configured UPF.
    pub fn status(&self) -> Vec<UpfStatus> {
        let state = self.lock();
        let stamp =
            |upf: &Upf| state.endpoint.peer_recovery_time_stamp(upf.address.ip()).map(|stamp| stamp.0);
        state
            .upfs
            .iter()
            .map(|upf| UpfStatus {
                address: upf.address,
                associated: upf.associated && upf.alive,
                recovery_time_stamp: stamp(upf),
            })
            .collect()
    }

    /// Sends a session request to a UPF and waits for the response.
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

    async fn ask(&self, upf: SocketAddr, seids: Option<Seids>, message: Message) -> Answer {
        let (sender, answer) = oneshot::channel();
        {
            let mut state = self.lock();
            let seid = seids.map_or(0, |seids| seids.upf);
            let handle = state.endpoint.send_request(time::now().into_std(), upf, seid, message)?;
            state.waiting.insert(handle, Waiting { seid: seids.map(|seids| seids.own), sender });
            self.flush(&mut state);
        }
        let answer = answer.await.unwrap_or(Err(N4Error::Stopped));
        if let Ok(message) = &answer
            && let Some(cause) = cause_of(message)
            && !cause.is_accepted()
        {
            FAILURES.inc(&cause.0.to_string());
            if cause == Cause::NO_ASSOCIATION {
                self.lose_association(upf);
            }
            return Err(N4Error::Refused(cause));
        }
        if let Err(error) = &answer {
            FAILURES.inc(match error {
                N4Error::Failed(Failure::TimedOut) => "timeout",
                _ => "other",
            });
        }
        answer
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

    /// Receives datagrams, keeps the timers, and passes on the endpoint's events.
    async fn receive(self) {
        let mut buffer = vec![0u8; 65_536];
        loop {
            let armed = {
                let mut state = self.lock();
                state.armed = state.endpoint.poll_timeout();
                state.armed
            };
            // Without a timer, the next request wakes this task.
            let wait = armed.map_or_else(|| time::now() + Duration::from_secs(3600), time::Instant::from_std);
            tokio::select! {
                received = self.inner.socket.recv_from(&mut buffer) => match received {
                    Ok((length, from)) => self.process(|endpoint, now| {
                        endpoint.handle_datagram(now, from, buffer.get(..length).unwrap_or_default());
                    }),
                    // ICMP errors of unreachable peers; requests to them time out.
                    Err(error) => tracing::debug!(%error, "N4 socket"),
                },
                () = time::sleep_until(wait) => self.process(|endpoint, now| endpoint.handle_timeout(now)),
                () = self.inner.rearm.notified() => {}
            }
        }
    }

    /// Performs one step of the endpoint and handles its events and datagrams.
    fn process(&self, step: impl FnOnce(&mut Endpoint, std::time::Instant)) {
        let mut state = self.lock();
        step(&mut state.endpoint, time::now().into_std());
        while let Some(event) = state.endpoint.poll_event() {
            self.handle_event(&mut state, event);
        }
        self.flush(&mut state);
    }

    fn handle_event(&self, state: &mut State, event: Event) {
        match event {
            Event::Response { handle, seid, message, .. } => {
                if let Some(waiting) = state.waiting.remove(&handle) {
                    let answer = if matches_request(waiting.seid, seid, &message) {
                        Ok(message)
                    } else {
                        WRONG_SEIDS.inc();
                        Err(N4Error::Unusable)
                    };
                    // The procedure may have stopped waiting.
                    let _ = waiting.sender.send(answer);
                }
            }
            Event::Failed { handle, failure, .. } => {
                if let Some(waiting) = state.waiting.remove(&handle) {
                    let error = match failure {
                        Failure::Refused(cause) => N4Error::Refused(cause),
                        failure => N4Error::Failed(failure),
                    };
                    let _ = waiting.sender.send(Err(error));
                }
            }
            Event::Request { id, seid, message } => self.handle_request(state, id, seid, message),
            Event::MalformedRequest { id, seid, error } => {
                if state.upfs.iter().any(|upf| upf.address == id.peer) {
                    self.queue(N4Event::Malformed { id, seid: seid.unwrap_or(0), error });
                }
            }
            Event::PeerRestarted { peer, .. } => {
                tracing::warn!(%peer, "UPF restarted: its sessions will be set up again");
                for upf in state.upfs.iter_mut().filter(|upf| upf.address.ip() == peer) {
                    upf.lost_sessions |= upf.associated;
                    upf.associated = false;
                    upf.wake.notify_one();
                }
            }
            Event::PeerFailed { peer } => {
                tracing::warn!(%peer, "UPF does not answer: the association is set up again when it does");
                set_alive(state, peer, false);
            }
            Event::PeerRecovered { peer } => {
                tracing::info!(%peer, "UPF answers again");
                set_alive(state, peer, true);
            }
        }
    }

    /// Handles the requests of UPFs to a CP function (§6.2, §7.4).
    fn handle_request(&self, state: &mut State, id: RequestId, seid: Option<u64>, message: Message) {
        let now = time::now().into_std();
        let node_id = NodeId::from(self.inner.local.ip());
        let upf = state.upfs.iter_mut().find(|upf| upf.address == id.peer);
        let response: Message = match (message, upf) {
            (Message::SessionReportRequest(report), Some(_)) => {
                return self.queue(N4Event::Report { id, seid: seid.unwrap_or(0), report });
            }
            (Message::AssociationSetupRequest(_), Some(upf)) => {
                // We set up associations by our own request. Whether the UPF has restarted, we ask the
                // UPF itself.
                state.endpoint.ask(now, upf.address.ip());
                AssociationSetupResponse {
                    node_id,
                    cause: Cause::ACCEPTED,
                    recovery_time_stamp: self.inner.recovery,
                    cp_function_features: Some(CpFunctionFeatures::default()),
                    ..Default::default()
                }
                .into()
            }
            (Message::AssociationUpdateRequest(_), Some(upf)) => {
                let cause = if upf.associated { Cause::ACCEPTED } else { Cause::NO_ASSOCIATION };
                AssociationUpdateResponse { node_id, cause, ..Default::default() }.into()
            }
            (Message::NodeReportRequest(report), Some(upf)) => {
                tracing::warn!(upf = %upf.address, report = ?report.report_type, "node report");
                NodeReportResponse { node_id, cause: Cause::ACCEPTED, offending_ie: None }.into()
            }
            // Not one of our UPFs, or not a request that a UPF may send.
            (_, upf) => {
                UNEXPECTED.inc();
                let cause = if upf.is_some() { Cause::SERVICE_NOT_SUPPORTED } else { Cause::NO_ASSOCIATION };
                let _ = state.endpoint.reject(now, id, 0, cause, None);
                return;
            }
        };
        let _ = state.endpoint.respond(now, id, 0, response);
    }

    /// Queues an event. If the queue is full, the UPF repeats its request.
    fn queue(&self, event: N4Event) {
        if self.inner.events.try_send(event).is_err() {
            EVENTS_DROPPED.inc();
        }
    }

    /// The UPF reports that it has no association with us: it restarted and we did not notice.
    fn lose_association(&self, address: SocketAddr) {
        let mut state = self.lock();
        for upf in state.upfs.iter_mut().filter(|upf| upf.address == address && upf.associated) {
            upf.associated = false;
            upf.lost_sessions = true;
            upf.wake.notify_one();
        }
    }

    /// Keeps the association with one UPF (§6.2.6). A UPF that answers no heartbeat is also asked for a
    /// new association until it answers either: after a restart it may ignore heartbeats of CP
    /// functions without association.
    async fn associate(self, upf: SocketAddr) {
        loop {
            let (associated, wake) = {
                let state = self.lock();
                let Some(upf) = state.upfs.iter().find(|other| other.address == upf) else { return };
                (upf.associated && upf.alive, upf.wake.clone())
            };
            if associated {
                wake.notified().await;
                continue;
            }
            let request = AssociationSetupRequest {
                node_id: self.inner.local.ip().into(),
                recovery_time_stamp: self.inner.recovery,
                cp_function_features: Some(CpFunctionFeatures::default()),
                ..Default::default()
            };
            match self.ask(upf, None, request.into()).await {
                Ok(Message::AssociationSetupResponse(response)) => self.associated(upf, &response),
                Ok(_) => time::sleep(RETRY).await,
                Err(N4Error::Stopped) => return,
                Err(error) => {
                    tracing::warn!(%upf, %error, "PFCP association not set up; trying again");
                    time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Records that an association was set up. Lost sessions are restored now.
    fn associated(&self, address: SocketAddr, response: &AssociationSetupResponse) {
        let mut state = self.lock();
        let Some(upf) = state.upfs.iter_mut().find(|upf| upf.address == address) else { return };
        upf.features = response.up_function_features.unwrap_or_default();
        tracing::info!(upf = %address, features = ?upf.features, "PFCP association is set up");
        if !upf.features.contains(UpFunctionFeatures::FTUP) {
            tracing::warn!(upf = %address, "UPF does not say that it allocates F-TEIDs; it is asked to all the same");
        }
        // If there was an association before, the UPF may have deleted its sessions (§6.2.6.2.2).
        let repeated = std::mem::replace(&mut upf.associated, true);
        upf.alive = true;
        let lost = std::mem::take(&mut upf.lost_sessions);
        if lost {
            upf.epoch += 1;
        }
        if lost || repeated {
            self.queue(N4Event::Restore { upf: upf.address, lost });
        }
    }
}

fn set_alive(state: &mut State, peer: IpAddr, alive: bool) {
    for upf in state.upfs.iter_mut().filter(|upf| upf.address.ip() == peer) {
        upf.alive = alive;
        upf.wake.notify_one();
    }
}

/// Whether a response belongs to the session of the request, that is, carries our SEID. A rejection may
/// carry 0 if the UPF does not know the session (TS 29.244 §7.2.2.4.2).
fn matches_request(own: Option<u64>, seid: Option<u64>, message: &Message) -> bool {
    let refused = cause_of(message).is_some_and(|cause| !cause.is_accepted());
    own.is_none() || seid == own || refused && seid == Some(0)
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
