//! One switch: its messages out of the stream, requests and their answers, bundles.
//!
//! Flow: the reader's loop in `server.rs` gives every message to [`Connection::take_answer`]; answers go to the request with their
//! transaction, everything else is an event. Requests ([`Connection::ask`], [`Connection::apply`]) run in the tasks of those who ask.
//! A writer task sends from a bounded queue; a switch that does not read is disconnected when the queue stays full.
//!
//! Invariant: memory is bounded by the queue and by the limits on answers, whatever the switch sends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use net::time::{self, Duration};
use openflow::multipart::{Reply, Request};
use openflow::{
    BundleAdd, BundleControl, BundleControlType, BundleFlags, Change, Code, Desc, ErrorMessage, FlowMod,
    FlowStats, FlowStatsRequest, JoinError, Joiner, Limits, MAX_MESSAGE, Message, Multipart, PacketOut,
    TableId,
};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::diverting::explain;
use crate::rule::{APP_MASK, App};

/// Buffers that may wait for a switch. A buffer is a message, or all messages of a bundle.
pub(crate) const QUEUE: usize = 1024;
/// How bundles take effect.
const BUNDLE: BundleFlags = BundleFlags(BundleFlags::ATOMIC.0 | BundleFlags::ORDERED.0);
/// Octets of a bundle that go to the writer at once.
const CHUNK: usize = 64 << 10;
/// How long a switch may take to answer a request, or to take a message from the queue.
const PATIENCE: Duration = Duration::from_secs(10);
/// Answers in parts of a switch that has not said yet which one it is, as anybody may have connected: about 8000 ports.
const UNKNOWN: Limits = Limits { transactions: 1, parts: 8, octets: 8 * MAX_MESSAGE };
/// Most errors that are kept of a request; the first one is told.
const MAX_ERRORS: usize = 16;

/// Which switch it is. It decides the form of rules for tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Ours, and whatever behaves like it.
    Native,
    /// Open vSwitch, with what has to be worked around.
    OpenVswitch,
}

impl Dialect {
    /// By the description that the switch gives of itself.
    pub fn of(desc: &Desc) -> Dialect {
        let is_open_vswitch = [desc.hardware.as_str(), desc.manufacturer.as_str()]
            .iter()
            .any(|text| text.contains("Open vSwitch") || text.contains("Nicira"));
        if is_open_vswitch { Dialect::OpenVswitch } else { Dialect::Native }
    }
}

/// Why a switch has not done what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// There is no connection, or it has ended.
    #[error("the switch is not connected")]
    Gone,
    /// No answer.
    #[error("the switch has not answered within {} s", PATIENCE.as_secs())]
    Late,
    /// It refused.
    #[error("the switch refused {what}: {code}")]
    Refused {
        /// Its error.
        code: Code,
        /// What it refused.
        what: String,
    },
    /// Its answer is not one to the question.
    #[error("the switch answered {0} to another question")]
    Unexpected(&'static str),
    /// The parts of its answer do not make one.
    #[error("the switch's answer: {0}")]
    Parts(#[from] JoinError),
    /// A message that does not fit.
    #[error("{0}")]
    Message(#[from] openflow::EncodeError),
}

/// Answers to the messages of one request.
#[derive(Debug, Default)]
struct Answers {
    /// The whole answer to the last one.
    last: Option<Message>,
    errors: Vec<(u32, ErrorMessage)>,
}

type Answered = Result<Answers, SwitchError>;

#[derive(Debug)]
struct Waiting {
    /// Transaction of the last message of the request; its answer ends it.
    last: u32,
    errors: Vec<(u32, ErrorMessage)>,
    done: oneshot::Sender<Answered>,
}

#[derive(Debug)]
struct Transactions {
    next: u32,
    /// By the transaction of the first message.
    waiting: BTreeMap<u32, Waiting>,
    /// Answers of which parts are missing.
    parts: Joiner<Reply>,
}

/// A connection that has said hello.
#[derive(Debug)]
pub struct Connection {
    queue: mpsc::Sender<Vec<u8>>,
    transactions: Mutex<Transactions>,
    /// Whether the switch knows bundles, until it says otherwise.
    bundles: AtomicBool,
    closed: AtomicBool,
    /// Ends the connection's task.
    close: Notify,
}

impl Connection {
    pub(crate) fn new(queue: mpsc::Sender<Vec<u8>>) -> Connection {
        Connection {
            queue,
            transactions: Mutex::new(Transactions {
                next: 1,
                waiting: BTreeMap::new(),
                parts: Joiner::new(UNKNOWN),
            }),
            bundles: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            close: Notify::new(),
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.close.notify_one();
        let waiting = std::mem::take(&mut self.transactions().waiting);
        for (_, request) in waiting {
            // Who asked may have gone.
            let _ = request.done.send(Err(SwitchError::Gone));
        }
    }

    /// The switch is one of the configuration: its answers may be longer from now on. Nothing is asked meanwhile.
    pub(crate) fn known(&self) {
        self.transactions().parts = Joiner::new(Limits::REPLIES);
    }

    /// Returns when the connection was told to end.
    pub(crate) async fn closing(&self) {
        while !self.closed.load(Ordering::Acquire) {
            self.close.notified().await;
        }
    }

    fn transactions(&self) -> std::sync::MutexGuard<'_, Transactions> {
        self.transactions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `count` transactions in a row, and where the answers to them will come.
    fn begin(&self, count: u32) -> Result<(u32, oneshot::Receiver<Answered>), SwitchError> {
        let (done, answers) = oneshot::channel();
        let mut all = self.transactions();
        // Transaction 0 is for messages without answers.
        let first = if all.next.checked_add(count).is_none() { 1 } else { all.next };
        all.next = first + count;
        let last = first + count - 1;
        all.waiting.insert(first, Waiting { last, errors: Vec::new(), done });
        // Under the lock, so that `close` has seen the request or this sees the closing.
        if self.closed.load(Ordering::Acquire) {
            all.waiting.remove(&first);
            return Err(SwitchError::Gone);
        }
        Ok((first, answers))
    }

    /// Sends octets when there is room for them.
    async fn send(&self, octets: Vec<u8>) -> Result<(), SwitchError> {
        match time::timeout(PATIENCE, self.queue.send(octets)).await {
            Ok(sent) => sent.map_err(|_| SwitchError::Gone),
            Err(_) => {
                self.close();
                Err(SwitchError::Late)
            }
        }
    }

    /// Sends a message that has no answer, if there is room; packets may be lost.
    pub fn tell(&self, message: &Message) -> Result<(), SwitchError> {
        self.tell_as(0, message)
    }

    /// As [`Connection::tell`], in a transaction of the switch.
    pub(crate) fn tell_as(&self, xid: u32, message: &Message) -> Result<(), SwitchError> {
        self.try_send(message.encode(xid)?)
    }

    /// As [`Connection::tell`], of many.
    pub(crate) fn tell_all(&self, messages: impl Iterator<Item = Message>) -> Result<(), SwitchError> {
        let mut octets = Vec::new();
        for message in messages {
            message.encode_into(0, &mut octets)?;
        }
        self.try_send(octets)
    }

    fn try_send(&self, octets: Vec<u8>) -> Result<(), SwitchError> {
        self.queue.try_send(octets).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SwitchError::Late,
            mpsc::error::TrySendError::Closed(_) => SwitchError::Gone,
        })
    }

    async fn finish(&self, first: u32, octets: Vec<u8>, answers: oneshot::Receiver<Answered>) -> Answered {
        let all = async {
            self.send(octets).await?;
            answers.await.map_err(|_| SwitchError::Gone)?
        };
        let result = time::timeout(PATIENCE, all).await.unwrap_or(Err(SwitchError::Late));
        let mut all = self.transactions();
        if let Some(late) = all.waiting.remove(&first) {
            all.parts.forget(late.last);
        }
        result
    }

    /// Sends a request and returns the answer, as a whole.
    ///
    /// # Errors
    /// The switch refuses, does not answer, or is gone.
    pub async fn ask(&self, request: impl Into<Message>) -> Result<Message, SwitchError> {
        let request = request.into();
        let (first, answers) = self.begin(1)?;
        let octets = request.encode(first)?;
        let answers = self.finish(first, octets, answers).await?;
        match (answers.errors.first(), answers.last) {
            (Some((_, error)), _) => {
                Err(SwitchError::Refused { code: error.code, what: request.name().to_owned() })
            }
            (None, Some(answer)) => Ok(answer),
            (None, None) => Err(SwitchError::Unexpected("nothing")),
        }
    }

    /// The flows of an application, or all.
    pub(crate) async fn flows(&self, app: Option<App>) -> Result<Vec<FlowStats>, SwitchError> {
        match app {
            Some(app) => self.flows_of(app.cookie(), APP_MASK).await,
            None => self.flows_of(0, 0).await,
        }
    }

    /// The flows whose cookies have these bits.
    pub(crate) async fn flows_of(&self, cookie: u64, mask: u64) -> Result<Vec<FlowStats>, SwitchError> {
        let mut request = FlowStatsRequest::all(TableId::ALL);
        (request.cookie, request.cookie_mask) = (cookie, mask);
        match self.ask(Request::Flow(request)).await? {
            Message::MultipartReply(Multipart { body: Reply::Flow(flows), .. }) => Ok(flows),
            other => Err(SwitchError::Unexpected(other.name())),
        }
    }

    /// Makes changes take effect together, and sends packets behind what the switch has treated before; without bundles one after
    /// another, and ends with a barrier.
    ///
    /// # Errors
    /// The first refusal. With a bundle nothing has changed then.
    pub(crate) async fn apply(
        &self,
        changes: impl ExactSizeIterator<Item = FlowMod> + Clone,
        packets: &[PacketOut],
    ) -> Result<(), SwitchError> {
        if changes.len() == 0 && packets.is_empty() {
            return Ok(());
        }
        if self.bundles.load(Ordering::Relaxed) {
            match self.apply_bundle(changes.clone(), packets).await {
                Err(SwitchError::Refused { code, .. }) if is_ignorance(code) => {
                    self.bundles.store(false, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        let count = changes.len() as u32;
        let (first, answers) = self.begin(count + 1)?;
        let mut octets = Vec::new();
        for (xid, change) in (first..).zip(changes.clone()) {
            Message::from(change).encode_into(xid, &mut octets)?;
        }
        Message::BarrierRequest(()).encode_into(first + count, &mut octets)?;
        let answers = self.finish(first, octets, answers).await?;
        refusal(&answers, first, changes)?;
        packets.iter().try_for_each(|packet| self.tell(&packet.clone().into()))
    }

    /// Gives the switch changes that take effect together when it is told so ([`Staged::commit`]).
    ///
    /// # Errors
    /// The switch does not take them, or has no bundles.
    pub(crate) async fn stage(
        self: &Arc<Self>,
        changes: impl ExactSizeIterator<Item = FlowMod> + Clone,
    ) -> Result<Staged, SwitchError> {
        if !self.bundles.load(Ordering::Relaxed) {
            return Err(SwitchError::Refused {
                code: Code::OFPBRC_BAD_EXP_TYPE,
                what: "a bundle".to_owned(),
            });
        }
        let bundle_id = self.bundle(changes, &[], BundleControlType::CloseRequest).await?;
        Ok(Staged { connection: self.clone(), bundle_id, is_there: AtomicBool::new(true) })
    }

    async fn apply_bundle(
        &self,
        changes: impl ExactSizeIterator<Item = FlowMod> + Clone,
        packets: &[PacketOut],
    ) -> Result<(), SwitchError> {
        self.bundle(changes, packets, BundleControlType::CommitRequest).await.map(|_| ())
    }

    /// Opens a bundle, fills it, and does with it what is said; its number.
    async fn bundle(
        &self,
        changes: impl ExactSizeIterator<Item = FlowMod> + Clone,
        packets: &[PacketOut],
        then: BundleControlType,
    ) -> Result<u32, SwitchError> {
        let count = (changes.len() + packets.len()) as u32;
        let (first, answers) = self.begin(count + 2)?;
        let bundle_id = first;
        let flags = BUNDLE;
        let control = |kind| Message::from(BundleControl { bundle_id, kind, flags });
        let mut octets = Vec::new();
        control(BundleControlType::OpenRequest).encode_into(first, &mut octets)?;
        let changes_first = changes.clone().map(Change::FlowMod);
        let all = changes_first.chain(packets.iter().cloned().map(Change::PacketOut));
        for (xid, change) in (first + 1..).zip(all) {
            Message::from(BundleAdd { bundle_id, flags, change }).encode_into(xid, &mut octets)?;
            if octets.len() >= CHUNK {
                // The switch reads it while the rest is made.
                self.send(std::mem::replace(&mut octets, Vec::with_capacity(CHUNK + MAX_MESSAGE))).await?;
            }
        }
        control(then).encode_into(first + count + 1, &mut octets)?;
        let answers = self.finish(first, octets, answers).await?;
        let result = refusal(&answers, first + 1, changes);
        // A switch may keep a bundle whose commit failed.
        if result.is_err() && answers.errors.iter().all(|(_, error)| !is_ignorance(error.code)) {
            let _ = self.tell(&control(BundleControlType::DiscardRequest));
        }
        result.map(|()| bundle_id)
    }

    /// Takes a message of `octets` octets that answers a request, or is a part of the answer; gives it back if it answers none.
    pub(crate) fn take_answer(&self, xid: u32, message: Message, octets: usize) -> Option<Message> {
        let mut all = self.transactions();
        let all = &mut *all;
        let Some((&first, waiting)) = all.waiting.range_mut(..=xid).next_back() else { return Some(message) };
        if xid > waiting.last || is_event(&message) {
            return Some(message);
        }
        let is_last = xid == waiting.last;
        let answer = match message {
            Message::Error(error) => {
                if waiting.errors.len() < MAX_ERRORS {
                    waiting.errors.push((xid, error));
                }
                all.parts.forget(xid);
                None
            }
            Message::MultipartReply(part) if is_last => match all.parts.push(xid, part, octets) {
                Ok(Some(body)) => Some(Ok(Multipart { more: false, body }.into())),
                Ok(None) => return None,
                Err(error) => {
                    if error.is_fatal() {
                        // Under the lock of `close`.
                        self.closed.store(true, Ordering::Release);
                        self.close.notify_one();
                    }
                    Some(Err(error.into()))
                }
            },
            other => Some(Ok(other)),
        };
        // Opening a bundle is answered, but what counts is its commit.
        if is_last && let Some(Waiting { errors, done, .. }) = all.waiting.remove(&first) {
            // Who asked may have gone.
            let _ = done.send(answer.transpose().map(|last| Answers { last, errors }));
        }
        None
    }
}

/// A bundle that a switch has and has not committed. It is forgotten with this.
#[derive(Debug)]
pub(crate) struct Staged {
    connection: Arc<Connection>,
    bundle_id: u32,
    is_there: AtomicBool,
}

impl Staged {
    /// Whether it came by this connection: a switch forgets bundles with theirs.
    pub(crate) fn is_of(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.connection, connection)
    }

    /// Makes the changes take effect, once.
    ///
    /// # Errors
    /// The switch refuses, and has changed nothing, or does not answer.
    pub(crate) async fn commit(&self) -> Result<(), SwitchError> {
        self.is_there.store(false, Ordering::Relaxed);
        self.connection.ask(self.control(BundleControlType::CommitRequest)).await.map(drop)
    }

    fn control(&self, kind: BundleControlType) -> BundleControl {
        BundleControl { bundle_id: self.bundle_id, kind, flags: BUNDLE }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if *self.is_there.get_mut() {
            // What is not said goes with the connection at the latest.
            let _ = self.connection.tell(&self.control(BundleControlType::DiscardRequest).into());
        }
    }
}

/// Whether the switch tells this by itself, whatever transaction it writes on it.
fn is_event(message: &Message) -> bool {
    matches!(
        message,
        Message::PacketIn(_)
            | Message::FlowRemoved(_)
            | Message::PortStatus(_)
            | Message::EchoRequest(_)
            | Message::Hello(_)
    )
}

/// Whether a switch says by this that it has no bundles.
fn is_ignorance(code: Code) -> bool {
    [Code::OFPBRC_BAD_EXPERIMENTER, Code::OFPBRC_BAD_EXP_TYPE, Code::OFPBRC_BAD_TYPE].contains(&code)
}

/// The first error, with the change that it is about.
fn refusal(
    answers: &Answers,
    first: u32,
    mut changes: impl Iterator<Item = FlowMod>,
) -> Result<(), SwitchError> {
    let Some((xid, error)) = answers.errors.first() else { return Ok(()) };
    let at = xid.checked_sub(first).and_then(|at| changes.nth(at as usize));
    let what = match at {
        Some(change) => format!(
            "a rule of table {}, priority {}, {}",
            change.table_id.0,
            change.priority,
            explain::show_all(&change.matching)
        ),
        None => "the bundle".to_owned(),
    };
    Err(SwitchError::Refused { code: error.code, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(more: bool, count: usize) -> Message {
        let group = || openflow::GroupDesc {
            group_type: openflow::GroupType::All,
            group_id: openflow::GroupId(1),
            buckets: Vec::new(),
        };
        Multipart { more, body: Reply::GroupDesc((0..count).map(|_| group()).collect()) }.into()
    }

    /// A connection with a request under way, and its transaction.
    async fn asking() -> (Arc<Connection>, u32, tokio::task::JoinHandle<Result<Message, SwitchError>>) {
        let (queue, mut sent) = mpsc::channel(8);
        let connection = Arc::new(Connection::new(queue));
        let asking = connection.clone();
        let task = tokio::spawn(async move { asking.ask(Request::GroupDesc(())).await });
        let (xid, _) = Message::decode(&sent.recv().await.unwrap()).unwrap();
        (connection, xid, task)
    }

    #[tokio::test]
    async fn answers_go_to_whom_they_concern_as_a_whole() {
        let (connection, xid, task) = asking().await;
        assert!(connection.take_answer(xid + 1, part(false, 1), 100).is_some(), "nobody asked");
        assert!(connection.take_answer(xid, part(true, 1), 100).is_none());
        let event = Message::EchoRequest(Vec::new());
        assert!(connection.take_answer(xid, event, 8).is_some(), "an event");
        assert!(connection.take_answer(xid, part(false, 2), 100).is_none());
        assert_eq!(task.await.unwrap(), Ok(part(false, 3)));
        connection.close();
        assert_eq!(connection.ask(Request::Desc(())).await, Err(SwitchError::Gone));
    }

    #[tokio::test]
    async fn answers_of_unknown_switches_and_errors_are_bounded() {
        let (connection, xid, task) = asking().await;
        for _ in 0..=UNKNOWN.parts {
            assert!(connection.take_answer(xid, part(true, 1), 100).is_none());
        }
        assert_eq!(task.await.unwrap(), Err(JoinError::Overflow.into()));
        assert_eq!(connection.transactions().parts.pending(), 0);
        let (first, mut answers) = connection.begin(101).unwrap();
        for xid in first..=first + 100 {
            let error = ErrorMessage { code: Code::OFPBRC_BAD_TYPE, data: Vec::new() };
            assert!(connection.take_answer(xid, error.into(), 12).is_none());
        }
        let answers = answers.try_recv().unwrap().unwrap();
        assert_eq!((answers.errors.len(), answers.errors[0].0), (MAX_ERRORS, first));
    }

    #[tokio::test]
    async fn a_known_switch_may_answer_in_more_parts_but_not_in_parts_of_other_types() {
        let (connection, xid, task) = asking().await;
        connection.known();
        for _ in 0..100 {
            assert!(connection.take_answer(xid, part(true, 1), 100).is_none());
        }
        assert!(connection.take_answer(xid, part(false, 0), 16).is_none());
        assert_eq!(task.await.unwrap(), Ok(part(false, 100)));

        let (connection, xid, task) = asking().await;
        assert!(connection.take_answer(xid, part(true, 1), 100).is_none());
        let other = Multipart { more: false, body: Reply::PortDesc(Vec::new()) };
        assert!(connection.take_answer(xid, other.into(), 16).is_none());
        assert_eq!(task.await.unwrap(), Err(JoinError::Mixed.into()));
    }

    /// A request that is not answered in time leaves no parts behind.
    #[tokio::test(start_paused = true)]
    async fn parts_of_a_late_answer_are_forgotten() {
        let (connection, xid, task) = asking().await;
        assert!(connection.take_answer(xid, part(true, 1), 100).is_none());
        assert_eq!(connection.transactions().parts.pending(), 100);
        assert_eq!(task.await.unwrap(), Err(SwitchError::Late));
        assert_eq!(connection.transactions().parts.pending(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_switch_that_does_not_answer_is_late() {
        let (queue, _sent) = mpsc::channel(8);
        let connection = Connection::new(queue);
        assert_eq!(connection.ask(Request::Desc(())).await, Err(SwitchError::Late));
    }
}
