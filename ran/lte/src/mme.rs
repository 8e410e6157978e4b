//! The MME's end of S11: GTP-C, and who of its UEs a message is for.
//!
//! [`Mme::open`] gives a UE a TEID of its own, with which it sends requests ([`S11::request`]) and gets those of the gateway
//! ([`S11::next`]). One task of [`gtpc`] receives and keeps the timers, another one gives UEs what gateways begin; both end with
//! the last handle. A UE sends on its own task.
//!
//! Invariants: a request ends with its answer or an error; a request of a gateway is answered, if not by its UE, then here; a UE
//! gets only requests of its own gateway.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use gtpc::{Gtpc, GtpcError, GtpcEvent, Outcome};
use gtpv2c::endpoint::{Counters, Failure, PORT, RequestId, SendError};
use gtpv2c::{Cause, CauseValue, FTeid, InterfaceType, Message, Recovery};
use net::task::Boxed;
use net::time;
use telemetry::counters::{Counter, Family};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

static COUNTS: gtpc::Counts = gtpc::Counts {
    failures: Family::new("mme_gtpc_failure", "cause"),
    events_dropped: Counter::new("mme_gtpc_events_dropped"),
    watch_refused: Counter::new("mme_gtpc_watch_refused"),
};

/// Requests of the gateway that wait for one UE; more are refused.
const MAX_WAITING: usize = 32;

/// The MME.
#[derive(Debug, Clone)]
pub struct MmeConfig {
    /// Local address of S11. A gateway sends its requests to port 2123.
    pub s11: SocketAddr,
    /// T3-RESPONSE: time until a request is repeated.
    pub t3_response: Duration,
    /// N3-REQUESTS: how often a request is sent at most.
    pub n3_requests: u8,
    /// Time between Echo Requests.
    pub echo_interval: Duration,
    /// Restart counter. `None`: the seconds of the clock modulo 256, so that a gateway usually notices that the MME is another
    /// run of the program.
    pub restart_counter: Option<u8>,
}

impl Default for MmeConfig {
    fn default() -> Self {
        Self {
            s11: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)),
            t3_response: Duration::from_secs(2),
            n3_requests: 3,
            echo_interval: Duration::from_secs(60),
            restart_counter: None,
        }
    }
}

/// Why a request was not successful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum S11Error {
    /// The gateway refused.
    #[error("refused: {}", .0.value)]
    Refused(Cause),
    /// The gateway did not answer, or not in a way that can be decoded.
    #[error("gateway: {0}")]
    Failed(Failure),
    /// The answer is for another UE, or lacks something it must have.
    #[error("the gateway's answer has no {0}")]
    Lacks(&'static str),
    /// The request could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The MME has ended.
    #[error("the MME has ended")]
    Ended,
}

/// What a gateway begins.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // consumed as they come
pub enum FromGateway {
    /// A request to answer with [`S11::respond`] or [`S11::reject`].
    Request {
        /// The request.
        id: RequestId,
        /// Its content.
        message: Message,
    },
    /// The gateway has restarted and has lost the UE's PDN connection.
    Restarted,
}

impl From<GtpcError> for S11Error {
    fn from(error: GtpcError) -> Self {
        match error {
            GtpcError::Failed(Failure::Refused(cause)) => Self::Refused(cause),
            GtpcError::Failed(failure) => Self::Failed(failure),
            GtpcError::Send(error) => Self::Send(error),
            GtpcError::NoAddress => Self::Lacks("address"),
            GtpcError::Stopped => Self::Ended,
        }
    }
}

type Answer = Result<Message, S11Error>;

/// What the MME keeps of a UE's end of S11.
struct Context {
    gateway: SocketAddr,
    /// The gateway's TEID for this UE; 0 until the gateway has given one.
    gateway_teid: u32,
    /// When the gateway gave its TEID.
    since: Option<std::time::Instant>,
    requests: mpsc::Sender<FromGateway>,
}

struct Contexts {
    /// UEs by the MME's TEID.
    by_teid: HashMap<u32, Context>,
    /// Makes TEIDs out of `opened`, seeded with random numbers of the operating system.
    hasher: RandomState,
    /// How many TEIDs have been tried.
    opened: u64,
}

/// The MME's table of UEs, shared with the task that looks into it.
#[derive(Clone)]
struct Table(Arc<Mutex<Contexts>>);

/// Handle to the MME; clones share it.
#[derive(Clone)]
pub struct Mme {
    gtpc: Gtpc,
    table: Table,
    /// End when this is dropped.
    _tasks: Arc<JoinSet<()>>,
}

impl std::fmt::Debug for Mme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mme").field("local", &self.local()).finish_non_exhaustive()
    }
}

impl Mme {
    /// Binds S11 and starts to receive.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn start(config: &MmeConfig) -> Boxed<'_, io::Result<Self>> {
        Box::pin(async move {
            let seconds = || time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let gtpc = gtpc::Config {
                address: config.s11,
                restart_counter: Recovery(config.restart_counter.unwrap_or_else(|| seconds() as u8)),
                t3_response: config.t3_response,
                n3_requests: config.n3_requests,
                echo_interval: config.echo_interval,
                counts: &COUNTS,
            };
            let mut tasks = JoinSet::new();
            let (gtpc, events) = Gtpc::start(gtpc, &mut tasks).await?;
            let contexts = Contexts { by_teid: HashMap::new(), hasher: RandomState::new(), opened: 0 };
            let table = Table(Arc::new(Mutex::new(contexts)));
            tasks.spawn(dispatch(gtpc.clone(), table.clone(), events));
            Ok(Self { gtpc, table, _tasks: Arc::new(tasks) })
        })
    }

    /// The address of S11.
    pub fn local(&self) -> SocketAddr {
        self.gtpc.local()
    }

    /// The restart counter that gateways see.
    pub fn restart_counter(&self) -> Recovery {
        self.gtpc.restart_counter()
    }

    /// Counts of the GTPv2-C endpoint.
    pub fn counters(&self) -> Counters {
        self.gtpc.counters()
    }

    /// A new UE's end of S11, with a TEID that cannot be guessed. The gateway is sent Echo Requests from now on.
    pub fn open(&self, gateway: SocketAddr) -> S11 {
        self.gtpc.watch_at(gateway);
        let mut contexts = self.table.lock();
        let teid = contexts.free_teid();
        let (sender, requests) = mpsc::channel(MAX_WAITING);
        let context = Context { gateway, gateway_teid: 0, since: None, requests: sender };
        contexts.by_teid.insert(teid, context);
        drop(contexts);
        S11 { mme: self.clone(), teid, requests }
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Contexts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contexts {
    fn free_teid(&mut self) -> u32 {
        loop {
            self.opened += 1;
            let teid = self.hasher.hash_one(self.opened) as u32;
            if teid != 0 && !self.by_teid.contains_key(&teid) {
                return teid;
            }
        }
    }

    /// The gateway's TEID of the UE with this TEID, if the UE is one of this gateway.
    fn gateway_teid(&self, teid: u32, gateway: IpAddr) -> Option<u32> {
        let context = self.by_teid.get(&teid)?;
        (context.gateway.ip() == gateway).then_some(context.gateway_teid)
    }

    /// Gives a UE a request of its gateway; or else the gateway's TEID and the cause with which to refuse it.
    fn give(&self, id: RequestId, teid: u32, message: Message) -> Option<(u32, CauseValue)> {
        let Some(gateway_teid) = self.gateway_teid(teid, id.peer.ip()) else {
            return Some((0, CauseValue::CONTEXT_NOT_FOUND));
        };
        let request = FromGateway::Request { id, message };
        let context = self.by_teid.get(&teid);
        let queued = context.is_some_and(|context| context.requests.try_send(request).is_ok());
        (!queued).then_some((gateway_teid, CauseValue::NO_RESOURCES))
    }

    /// Tells the UEs of a gateway that was restarted after they were set up.
    fn restarted(&self, gateway: IpAddr, since: std::time::Instant) {
        for context in self.by_teid.values().filter(|context| context.gateway.ip() == gateway) {
            if context.since.is_some_and(|set_up| set_up < since) {
                // A UE that has not read so many requests learns it with its next own one.
                let _ = context.requests.try_send(FromGateway::Restarted);
            }
        }
    }
}

/// A UE's end of S11. Dropping it forgets the TEID: later requests for it are refused with "Context not found".
#[derive(Debug)]
pub struct S11 {
    mme: Mme,
    teid: u32,
    requests: mpsc::Receiver<FromGateway>,
}

impl S11 {
    /// This end, for the gateway.
    pub fn f_teid(&self) -> FTeid {
        FTeid::new(InterfaceType::S11_MME, self.teid, self.mme.local().ip())
    }

    /// The restart counter of the MME.
    pub fn restart_counter(&self) -> Recovery {
        self.mme.restart_counter()
    }

    /// Takes the gateway's end into use, which it has given in its answer.
    pub fn set_gateway(&self, f_teid: FTeid) {
        if let Some(context) = self.mme.table.lock().by_teid.get_mut(&self.teid) {
            if let Some(address) = f_teid.address() {
                context.gateway.set_ip(address);
            }
            context.gateway_teid = f_teid.teid;
            context.since = Some(time::now().into_std());
        }
    }

    /// Sends a request and waits for the answer, which accepts it wholly or in part.
    ///
    /// # Errors
    /// The gateway refuses, or does not answer.
    pub async fn request(&self, message: impl Into<Message>) -> Answer {
        let (to, teid) = self.gateway().ok_or(S11Error::Ended)?;
        let answer = self.mme.gtpc.exchange(to, teid, message).await?;
        let refusal = cause_of(&answer.message).filter(|cause| !cause.is_accepted());
        // A gateway that does not know the UE does not know its TEID.
        if answer.teid != self.teid && (refusal.is_none() || answer.teid != 0) {
            return Err(S11Error::Lacks("TEID"));
        }
        match refusal {
            Some(cause) => Err(S11Error::Refused(cause)),
            None => Ok(answer.message),
        }
    }

    /// Sends a command, and waits for the request that it triggers, which is to be answered like one from [`S11::next`].
    ///
    /// # Errors
    /// The gateway refuses, or does not answer.
    pub async fn command(&self, message: impl Into<Message>) -> Result<FromGateway, S11Error> {
        let (to, teid) = self.gateway().ok_or(S11Error::Ended)?;
        match self.mme.gtpc.command(to, teid, message).await? {
            Outcome::Triggered { id, teid, message } if teid == self.teid => {
                Ok(FromGateway::Request { id, message })
            }
            Outcome::Triggered { id, .. } => {
                self.mme.gtpc.reject(id, 0, CauseValue::CONTEXT_NOT_FOUND);
                Err(S11Error::Lacks("TEID"))
            }
            Outcome::Refused(answer) => {
                Err(cause_of(&answer.message).map_or(S11Error::Lacks("cause"), S11Error::Refused))
            }
        }
    }

    /// Answers a request of the gateway.
    pub fn respond(&self, id: RequestId, message: impl Into<Message>) {
        if let Some((_, teid)) = self.gateway() {
            self.mme.gtpc.respond(id, teid, message);
        }
    }

    /// Refuses a request of the gateway.
    pub fn reject(&self, id: RequestId, cause: impl Into<Cause>) {
        if let Some((_, teid)) = self.gateway() {
            self.mme.gtpc.reject(id, teid, cause);
        }
    }

    /// Sends a message that is not answered.
    pub fn indicate(&self, message: impl Into<Message>) {
        if let Some((to, teid)) = self.gateway() {
            self.mme.gtpc.indicate(to, teid, message);
        }
    }

    /// What the gateway begins next. Cancel-safe.
    pub async fn next(&mut self) -> Option<FromGateway> {
        self.requests.recv().await
    }

    /// The gateway's address and TEID.
    fn gateway(&self) -> Option<(SocketAddr, u32)> {
        let contexts = self.mme.table.lock();
        contexts.by_teid.get(&self.teid).map(|context| (context.gateway, context.gateway_teid))
    }
}

impl Drop for S11 {
    fn drop(&mut self) {
        self.mme.table.lock().by_teid.remove(&self.teid);
    }
}

/// Gives UEs what gateways begin.
async fn dispatch(gtpc: Gtpc, table: Table, mut events: mpsc::Receiver<GtpcEvent>) {
    while let Some(event) = events.recv().await {
        match event {
            GtpcEvent::Request { id, teid, message } => {
                let refusal = table.lock().give(id, teid, message);
                if let Some((gateway_teid, cause)) = refusal {
                    gtpc.reject(id, gateway_teid, cause);
                }
            }
            GtpcEvent::Malformed { id, teid, error } => {
                let gateway_teid = table.lock().gateway_teid(teid, id.peer.ip()).unwrap_or(0);
                let cause = error.cause().unwrap_or(CauseValue::INVALID_MESSAGE_FORMAT.into());
                gtpc.reject(id, gateway_teid, cause);
            }
            // A gateway sends none to an MME.
            GtpcEvent::Indication { .. } => {}
            GtpcEvent::PeerRestarted { peer, since } => {
                tracing::warn!(%peer, "gateway restarted: its UEs attach again");
                table.lock().restarted(peer, since);
            }
        }
    }
}

/// The cause of an answer to a request or command of an MME.
fn cause_of(message: &Message) -> Option<Cause> {
    Some(match message {
        Message::CreateSessionResponse(m) => m.cause,
        Message::ModifyBearerResponse(m) => m.cause,
        Message::DeleteSessionResponse(m) => m.cause,
        Message::ReleaseAccessBearersResponse(m) => m.cause,
        Message::BearerResourceFailureIndication(m) => m.cause,
        Message::DeleteBearerFailureIndication(m) => m.cause,
        Message::ModifyBearerFailureIndication(m) => m.cause,
        _ => return None,
    })
}
