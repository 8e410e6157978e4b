//! The MME's end of S11: the socket, the GTPv2-C endpoint (TS 29.274), and who of its UEs a message is for.
//!
//! [`Mme::open`] gives a UE a TEID of its own, with which it sends requests ([`S11::request`]) and gets those of the gateway
//! ([`S11::next`]). One task receives and keeps the timers; it ends with the last handle. The endpoint is behind a mutex that is
//! held for microseconds, so a UE sends on its own task.
//!
//! Invariants: a request ends with its answer or an error; a request of a gateway is answered, if not by its UE, then here; a UE
//! gets only requests of its own gateway.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use gtpv2c::endpoint::{Counters, Endpoint, Event, Failure, Handle, PORT, RequestId, SendError};
use gtpv2c::{Cause, CauseValue, FTeid, InterfaceType, Message, Recovery};
use net::time;
use net::udp::UdpSocket;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;

/// Requests of the gateway that wait for one UE; more are refused.
const MAX_WAITING: usize = 32;
/// How long the receiving task sleeps when no timer runs.
const NO_TIMER: Duration = Duration::from_secs(3600);

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

type Answer = Result<Message, S11Error>;

/// A request that waits for its answer.
struct Waiting {
    /// The UE's TEID, which the answer must carry.
    teid: u32,
    sender: oneshot::Sender<Answer>,
}

/// What the MME keeps of a UE's end of S11.
struct Context {
    gateway: SocketAddr,
    /// The gateway's TEID for this UE; 0 until the gateway has given one.
    gateway_teid: u32,
    /// When the gateway gave its TEID.
    since: Option<std::time::Instant>,
    requests: mpsc::Sender<FromGateway>,
}

struct State {
    endpoint: Endpoint,
    waiting: HashMap<Handle, Waiting>,
    /// UEs by the MME's TEID.
    contexts: HashMap<u32, Context>,
    /// Makes TEIDs out of `opened`.
    hasher: RandomState,
    /// How many TEIDs have been tried.
    opened: u64,
    /// When the receiving task's timer expires.
    armed: Option<std::time::Instant>,
}

struct Shared {
    socket: UdpSocket,
    local: SocketAddr,
    restart_counter: Recovery,
    /// Held for microseconds, never over an await.
    state: Mutex<State>,
    /// Wakes the receiving task if its timer must expire earlier.
    rearm: Notify,
}

/// Handle to the MME; clones share it.
#[derive(Clone)]
pub struct Mme {
    shared: Arc<Shared>,
    _receiving: Arc<Receiving>,
}

/// The receiving task, which ends when this is dropped.
struct Receiving(AbortHandle);

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl std::fmt::Debug for Mme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mme").field("local", &self.shared.local).finish_non_exhaustive()
    }
}

impl Mme {
    /// Binds S11 and starts to receive.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub async fn start(config: &MmeConfig) -> io::Result<Self> {
        let socket = net::udp::bind(config.s11).await?;
        let local = socket.local_addr()?;
        let seconds = || time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let restart_counter = Recovery(config.restart_counter.unwrap_or_else(|| seconds() as u8));
        // Seeded with random numbers of the operating system.
        let hasher = RandomState::new();
        let mut endpoint =
            gtpv2c::endpoint::Config::new(restart_counter, hasher.hash_one("sequence numbers"));
        endpoint.t3_response = config.t3_response;
        endpoint.n3_requests = config.n3_requests;
        endpoint.echo_interval = config.echo_interval;
        let state = State {
            endpoint: Endpoint::new(endpoint),
            waiting: HashMap::new(),
            contexts: HashMap::new(),
            hasher,
            opened: 0,
            armed: None,
        };
        let shared =
            Arc::new(Shared { socket, local, restart_counter, state: state.into(), rearm: Notify::new() });
        let task = tokio::spawn(Arc::clone(&shared).receive());
        Ok(Self { shared, _receiving: Arc::new(Receiving(task.abort_handle())) })
    }

    /// The address of S11.
    pub fn local(&self) -> SocketAddr {
        self.shared.local
    }

    /// The restart counter that gateways see.
    pub fn restart_counter(&self) -> Recovery {
        self.shared.restart_counter
    }

    /// Counts of the GTPv2-C endpoint.
    pub fn counters(&self) -> Counters {
        self.shared.lock().endpoint.counters()
    }

    /// A new UE's end of S11, with a TEID that cannot be guessed. The gateway is sent Echo Requests from now on.
    pub fn open(&self, gateway: SocketAddr) -> S11 {
        let mut state = self.shared.lock();
        state.endpoint.add_peer(time::now().into_std(), gateway);
        let teid = state.free_teid();
        let (sender, requests) = mpsc::channel(MAX_WAITING);
        state.contexts.insert(teid, Context { gateway, gateway_teid: 0, since: None, requests: sender });
        self.shared.flush(&mut state);
        S11 { mme: self.clone(), teid, requests }
    }
}

impl State {
    fn free_teid(&mut self) -> u32 {
        loop {
            self.opened += 1;
            let teid = self.hasher.hash_one(self.opened) as u32;
            if teid != 0 && !self.contexts.contains_key(&teid) {
                return teid;
            }
        }
    }

    /// The gateway's TEID of the UE with this TEID, if the UE is one of this gateway.
    fn gateway_teid(&self, teid: u32, gateway: IpAddr) -> Option<u32> {
        let context = self.contexts.get(&teid)?;
        (context.gateway.ip() == gateway).then_some(context.gateway_teid)
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
        let mut state = self.mme.shared.lock();
        if let Some(context) = state.contexts.get_mut(&self.teid) {
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
        let answer = {
            let shared = &self.mme.shared;
            let mut state = shared.lock();
            let context = state.contexts.get(&self.teid).ok_or(S11Error::Ended)?;
            let (to, teid) = (context.gateway, context.gateway_teid);
            let handle = state.endpoint.send_request(time::now().into_std(), to, teid, message)?;
            let (sender, answer) = oneshot::channel();
            state.waiting.insert(handle, Waiting { teid: self.teid, sender });
            shared.flush(&mut state);
            answer
        };
        let message = answer.await.unwrap_or(Err(S11Error::Ended))?;
        match cause_of(&message) {
            Some(cause) if !cause.is_accepted() => Err(S11Error::Refused(cause)),
            _ => Ok(message),
        }
    }

    /// Answers a request of the gateway.
    pub fn respond(&self, id: RequestId, message: impl Into<Message>) {
        let message = message.into();
        self.step(|endpoint, now, _, teid| endpoint.respond(now, id, teid, message));
    }

    /// Refuses a request of the gateway.
    pub fn reject(&self, id: RequestId, cause: impl Into<Cause>) {
        let cause = cause.into();
        self.step(|endpoint, now, _, teid| endpoint.reject(now, id, teid, cause));
    }

    /// Sends a message that is not answered.
    pub fn indicate(&self, message: impl Into<Message>) {
        let message = message.into();
        self.step(|endpoint, _, to, teid| endpoint.send_indication(to, teid, message));
    }

    /// What the gateway begins next. Cancel-safe.
    pub async fn next(&mut self) -> Option<FromGateway> {
        self.requests.recv().await
    }

    /// Lets the endpoint send something to the gateway's address and TEID.
    fn step(
        &self,
        send: impl FnOnce(&mut Endpoint, std::time::Instant, SocketAddr, u32) -> Result<(), SendError>,
    ) {
        let shared = &self.mme.shared;
        let mut state = shared.lock();
        let Some(context) = state.contexts.get(&self.teid) else { return };
        let (to, teid) = (context.gateway, context.gateway_teid);
        if let Err(error) = send(&mut state.endpoint, time::now().into_std(), to, teid) {
            tracing::warn!(%error, "S11: a message could not be sent");
        }
        shared.flush(&mut state);
    }
}

impl Drop for S11 {
    fn drop(&mut self) {
        self.mme.shared.lock().contexts.remove(&self.teid);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the endpoint's datagrams and wakes the receiving task if its timer must expire earlier.
    fn flush(&self, state: &mut State) {
        while let Some(transmit) = state.endpoint.poll_transmit() {
            // A full socket buffer loses the datagram, which is then repeated.
            let _ = self.socket.try_send_to(&transmit.payload, transmit.to);
        }
        let next = state.endpoint.poll_timeout();
        if next.is_some_and(|next| state.armed.is_none_or(|armed| next < armed)) {
            self.rearm.notify_one();
        }
    }

    /// Receives datagrams, keeps the timers, and passes on what the endpoint makes of them.
    async fn receive(self: Arc<Self>) {
        let mut buffer = vec![0u8; 65_536];
        loop {
            let armed = {
                let mut state = self.lock();
                state.armed = state.endpoint.poll_timeout();
                state.armed
            };
            let wait = armed.map_or_else(|| time::now() + NO_TIMER, time::Instant::from_std);
            tokio::select! {
                received = self.socket.recv_from(&mut buffer) => match received {
                    Ok((length, from)) => self.process(|endpoint, now| {
                        endpoint.handle_datagram(now, from, buffer.get(..length).unwrap_or_default());
                    }),
                    // ICMP errors of a gateway that does not run; requests to it time out.
                    Err(error) => tracing::debug!(%error, "S11 socket"),
                },
                () = time::sleep_until(wait) => self.process(|endpoint, now| endpoint.handle_timeout(now)),
                () = self.rearm.notified() => {}
            }
        }
    }

    /// Performs one step of the endpoint and handles its events and datagrams.
    fn process(&self, step: impl FnOnce(&mut Endpoint, std::time::Instant)) {
        let mut state = self.lock();
        step(&mut state.endpoint, time::now().into_std());
        while let Some(event) = state.endpoint.poll_event() {
            handle_event(&mut state, event);
        }
        self.flush(&mut state);
    }
}

fn handle_event(state: &mut State, event: Event) {
    let now = time::now().into_std();
    match event {
        Event::Response { handle, teid, message, .. } => {
            let Some(waiting) = state.waiting.remove(&handle) else { return };
            let refused = cause_of(&message).is_some_and(|cause| !cause.is_accepted());
            // A gateway that does not know the UE does not know its TEID.
            let ours = teid == waiting.teid || refused && teid == 0;
            // The UE may have stopped waiting.
            let _ = waiting.sender.send(if ours { Ok(message) } else { Err(S11Error::Lacks("TEID")) });
        }
        Event::Failed { handle, failure, .. } => {
            let Some(waiting) = state.waiting.remove(&handle) else { return };
            let error = match failure {
                Failure::Refused(cause) => S11Error::Refused(cause),
                failure => S11Error::Failed(failure),
            };
            let _ = waiting.sender.send(Err(error));
        }
        Event::Request { id, teid, message, .. } => {
            let refusal = match state.gateway_teid(teid, id.peer.ip()) {
                None => Some((0, CauseValue::CONTEXT_NOT_FOUND)),
                Some(gateway_teid) => {
                    let request = FromGateway::Request { id, message };
                    let context = state.contexts.get(&teid);
                    let queued = context.is_some_and(|context| context.requests.try_send(request).is_ok());
                    (!queued).then_some((gateway_teid, CauseValue::NO_RESOURCES))
                }
            };
            if let Some((gateway_teid, cause)) = refusal {
                // Fails only for a message that cannot be refused.
                let _ = state.endpoint.reject(now, id, gateway_teid, cause);
            }
        }
        Event::MalformedRequest { id, teid, error, .. } => {
            let gateway_teid = state.gateway_teid(teid, id.peer.ip()).unwrap_or(0);
            let cause = error.cause().unwrap_or(CauseValue::INVALID_MESSAGE_FORMAT.into());
            let _ = state.endpoint.reject(now, id, gateway_teid, cause);
        }
        // A gateway sends none to an MME.
        Event::Indication { .. } => {}
        Event::PeerRestarted { peer, since, .. } => {
            tracing::warn!(%peer, "gateway restarted: its UEs attach again");
            for context in state.contexts.values().filter(|context| context.gateway.ip() == peer) {
                if context.since.is_some_and(|set_up| set_up < since) {
                    // A UE that has not read so many requests learns it with its next own one.
                    let _ = context.requests.try_send(FromGateway::Restarted);
                }
            }
        }
        Event::PeerFailed { peer } => tracing::warn!(%peer, "gateway does not answer"),
        Event::PeerRecovered { peer } => tracing::info!(%peer, "gateway answers again"),
    }
}

/// The cause of an answer to a request of an MME.
fn cause_of(message: &Message) -> Option<Cause> {
    Some(match message {
        Message::CreateSessionResponse(m) => m.cause,
        Message::ModifyBearerResponse(m) => m.cause,
        Message::DeleteSessionResponse(m) => m.cause,
        Message::ReleaseAccessBearersResponse(m) => m.cause,
        Message::BearerResourceFailureIndication(m) => m.cause,
        _ => return None,
    })
}
