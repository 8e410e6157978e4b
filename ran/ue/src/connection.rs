//! An RRC connection of a UE: random access, set-up, and what the upper layers hear and ask for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ::rrc::message::*;
use ::rrc::{DlCcch, UlCcch};
use bytes::Bytes;
use pktio::tun::TunPort;
use tokio::sync::{mpsc, oneshot};
use types::{Key, PduSessionId, STmsi};

use crate::control::{BearerId, BearerSetup, Control, Refused, SessionId, UeId};
use crate::counters;
use crate::rrc::{Action, Failure, Machine};
use crate::sink::{self, Packets};
use crate::stats::SessionStats;
use crate::ues::{Input, Shared};

/// T300 (TS 38.331 §7.1.1): how long the network may take for RRCSetup.
const T300: Duration = Duration::from_secs(2);
/// After which RRCSetupRequest is repeated: nothing else repeats what is lost on SRB0 (docs/uu.md).
const REPEAT: Duration = Duration::from_millis(200);
/// Attempts for one connection, each with random access.
const ATTEMPTS: u32 = 3;
/// After which a UE asks again that was rejected without a time.
const WAIT: Duration = Duration::from_secs(1);
/// Inputs that wait to be handled.
pub(crate) const INPUTS: usize = 256;

/// Why a UE gets no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// MIB or SIB1 say that the cell serves no UEs.
    #[error("the cell is barred or reserved")]
    Barred,
    /// No C-RNTI.
    #[error("random access: {0}")]
    Access(#[from] Refused),
    /// RRCReject.
    #[error("rejected by the network{}", .wait_s.map(|s| format!("; it may be asked again in {s} s")).unwrap_or_default())]
    Rejected {
        /// How long to wait before the next attempt.
        wait_s: Option<u8>,
    },
    /// T300 has expired.
    #[error("no RRCSetup in time")]
    NoAnswer,
    /// RRCSetup cannot be complied with.
    #[error("{0}")]
    Setup(#[from] Failure),
}

impl ConnectError {
    /// Its name in counters.
    fn name(self) -> &'static str {
        match self {
            ConnectError::Barred => "barred",
            ConnectError::Access(_) => "random_access",
            ConnectError::Rejected { .. } => "rejected",
            ConnectError::NoAnswer => "no_answer",
            ConnectError::Setup(_) => "setup",
        }
    }
}

/// The connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection is lost")]
pub struct Lost;

/// What reaches the upper layers.
#[derive(Debug)]
pub enum Downlink {
    /// NAS.
    Nas(Bytes),
    /// Security begins: [`Connection::activate_security`] is called with K_gNB, before anything else comes.
    SecurityMode,
    /// Sessions have got their data bearers.
    SessionsUp(Vec<Bearer>),
    /// A session has lost its data bearers.
    SessionDown(PduSessionId),
    /// The network has released the connection; nothing follows.
    Released,
}

/// What a session has in the user plane.
#[derive(Debug, Clone, Copy)]
struct Session {
    number: SessionId,
}

/// A bearer that the worker adds.
#[derive(Debug)]
struct Adding {
    id: PduSessionId,
    lcid: u8,
    packets: Packets,
    result: oneshot::Receiver<Result<Added, Refused>>,
}

/// What the worker has added.
#[derive(Debug)]
struct Added {
    session: SessionId,
    /// Of a new session.
    stats: Option<Arc<SessionStats>>,
    bearer: BearerId,
}

/// An RRC connection. When it is dropped, the UE gives its C-RNTI back.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    ue: UeId,
    inbox: mpsc::Receiver<Input>,
    machine: Box<Machine>,
    /// RRCSetupComplete waits for the first NAS message.
    setup: Option<(rrc::RrcTransactionIdentifier, Option<Ng5gSTmsiValue>)>,
    sessions: BTreeMap<PduSessionId, Session>,
    /// Bearers by logical channel.
    bearers: BTreeMap<u8, BearerId>,
    adding: Option<Adding>,
    /// Of sessions whose bearers are being added.
    new: BTreeMap<PduSessionId, Bearer>,
    ready: VecDeque<Downlink>,
    lost: bool,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

impl Connection {
    /// Random access and RRC connection establishment, a few times if need be; after RRCReject when its time is over (§5.3.3, §5.3.15).
    pub(crate) async fn establish(
        shared: Arc<Shared>,
        cell: usize,
        cause: EstablishmentCause,
        s_tmsi: Option<STmsi>,
    ) -> Result<Connection, ConnectError> {
        let mut attempt = 1;
        loop {
            if shared.is_barred(cell) {
                counters::CONNECTS.inc("barred");
                return Err(ConnectError::Barred);
            }
            let error = match Connection::open(Arc::clone(&shared), cell, cause, s_tmsi).await {
                Ok(connection) => {
                    counters::CONNECTS.inc("ok");
                    return Ok(connection);
                }
                Err(error) => error,
            };
            counters::CONNECTS.inc(error.name());
            let wait = match error {
                ConnectError::Rejected { wait_s } => wait_s.map_or(WAIT, |s| Duration::from_secs(s.into())),
                ConnectError::NoAnswer => Duration::ZERO,
                ConnectError::Barred | ConnectError::Access(_) | ConnectError::Setup(_) => return Err(error),
            };
            if attempt == ATTEMPTS {
                return Err(error);
            }
            attempt += 1;
            net::time::sleep(wait).await;
        }
    }

    /// Random access and RRC connection establishment (TS 38.331 §5.3.3).
    async fn open(
        shared: Arc<Shared>,
        cell: usize,
        cause: EstablishmentCause,
        s_tmsi: Option<STmsi>,
    ) -> Result<Connection, ConnectError> {
        let (id, du) = shared.place(cell);
        let ue = shared.control.access_async(id, du, random()).await?;
        let mut inbox = shared.routes.add(ue);
        // From here on a failure gives the C-RNTI back.
        let guard = Guard { shared: &shared, ue, armed: true };
        let (ue_identity, rest) = match s_tmsi {
            Some(s_tmsi) => {
                let (part1, part2) = split_s_tmsi(s_tmsi);
                (InitialUeIdentity::Ng5gSTmsiPart1(part1), Some(Ng5gSTmsiValue::Ng5gSTmsiPart2(part2)))
            }
            None => {
                let [a, b, c, d, e, _] = random();
                let value = i64::from_be_bytes([0, 0, 0, a & 0x7f, b, c, d, e]);
                let value = Bits39::new(value).expect("39 bits");
                (InitialUeIdentity::RandomValue(value), None)
            }
        };
        let request = RrcSetupRequest { ue_identity, establishment_cause: cause };
        let request = UlCcch::from(request).encode().map_err(|_| Failure::Message)?;
        let answer = async {
            let mut answer = std::pin::pin!(setup_answer(&mut inbox));
            loop {
                let message = request.to_vec();
                let send =
                    shared.control.run(move |ues, now_ns, ports| ues.send_rrc(ue, 0, message, now_ns, ports));
                send.await?;
                tokio::select! {
                    answer = &mut answer => return answer,
                    () = net::time::sleep(REPEAT) => {}
                }
            }
        };
        let setup = net::time::timeout(T300, answer).await.unwrap_or(Err(ConnectError::NoAnswer))?;
        let machine = Box::new(Machine::new(&setup)?);
        guard.disarm();
        let setup = Some((setup.rrc_transaction_identifier, rest));
        Ok(Connection {
            shared,
            ue,
            inbox,
            machine,
            setup,
            sessions: BTreeMap::new(),
            bearers: BTreeMap::new(),
            adding: None,
            new: BTreeMap::new(),
            ready: VecDeque::new(),
            lost: false,
        })
    }

    /// Sends NAS; the first message completes the set-up.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn send_nas(&mut self, nas: Bytes) -> Result<(), Lost> {
        match self.setup.take() {
            Some((transaction, s_tmsi)) => self.machine.complete_setup(transaction, s_tmsi, nas),
            None => self.machine.send_nas(nas),
        }
        self.execute().await
    }

    /// Gives the key that [`Downlink::SecurityMode`] asks for.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn activate_security(&mut self, k_gnb: &Key<32>) -> Result<(), Lost> {
        self.machine.activate_security(k_gnb);
        self.execute().await
    }

    /// What comes next; `None` when the connection is lost. Cancel-safe.
    pub async fn next(&mut self) -> Option<Downlink> {
        loop {
            // Actions that a cancelled call has not executed come first.
            let executed = self.execute().await;
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            executed.ok()?;
            match self.inbox.recv().await? {
                Input::Rrc(srb @ 1..=2, pdu) => self.machine.receive(srb, pdu),
                // Nothing comes on SRB0 any more.
                Input::Rrc(..) => counters::RRC_REJECTED.inc("repeated_ccch"),
                Input::Released => self.lose("released_by_du"),
                Input::Failed => self.lose("radio_link_failure"),
            }
        }
    }

    /// Executes what the machine wants, in order.
    async fn execute(&mut self) -> Result<(), Lost> {
        if self.lost {
            return Err(Lost);
        }
        loop {
            let done = match &mut self.adding {
                // A cancelled call waits for it again.
                Some(adding) => {
                    let added = Control::finish(&mut adding.result).await;
                    added.map(|added| self.added(added))
                }
                None => match self.machine.next_action() {
                    Some(action) => self.act(action),
                    None => break,
                },
            };
            if let Err(error) = done {
                self.adding = None;
                // The network is not told that bearers are there that are not (§5.3.5.8.2).
                tracing::warn!(%error, "RRC connection given up: the user plane refuses what RRC asks for");
                self.lose("user_plane");
                return Err(Lost);
            }
        }
        if self.lost { Err(Lost) } else { Ok(()) }
    }

    fn lose(&mut self, why: &str) {
        if !std::mem::replace(&mut self.lost, true) {
            counters::CONNECTIONS_ENDED.inc(why);
        }
    }

    fn act(&mut self, action: Action) -> Result<(), Refused> {
        let ue = self.ue;
        match action {
            Action::Send(srb, pdu) => {
                let send = move |ues: &mut crate::UserPlane, now_ns, ports: &mut path::Ports| {
                    if let Err(error) = ues.send_rrc(ue, srb, pdu, now_ns, ports) {
                        tracing::debug!(%error, "RRC message not sent");
                    }
                };
                self.shared.control.post(send);
            }
            Action::Nas(nas) => self.ready.push_back(Downlink::Nas(nas)),
            Action::SecurityMode => self.ready.push_back(Downlink::SecurityMode),
            Action::RemoveBearer(lcid) => {
                if let Some(bearer) = self.bearers.remove(&lcid) {
                    self.shared.control.post(move |ues, _, _| {
                        // A bearer that is gone needs no removal.
                        let _ = ues.remove_bearer(bearer);
                    });
                }
            }
            Action::RemoveSession(id) => {
                if let Some(session) = self.sessions.remove(&id) {
                    self.shared.devices.detach(session.number);
                    self.shared.control.post(move |ues, _, _| {
                        let _ = ues.remove_session(session.number);
                    });
                    self.ready.push_back(Downlink::SessionDown(id));
                }
            }
            Action::AddBearer(id, setup) => self.begin_adding(id, setup)?,
            Action::SessionsUp(ids) => {
                let up = ids.into_iter().filter_map(|id| self.new.remove(&id)).collect();
                self.ready.push_back(Downlink::SessionsUp(up));
            }
            Action::Released => {
                self.lose("released");
                self.ready.push_back(Downlink::Released);
            }
            Action::Failed(error) => {
                tracing::warn!(%error, "RRC connection given up");
                self.lose("cannot_comply");
            }
        }
        Ok(())
    }

    /// Adds a bearer, and its session if that is new: its uplink packets are of the bearer's first flow.
    fn begin_adding(&mut self, id: PduSessionId, setup: Box<BearerSetup>) -> Result<(), Refused> {
        let (ue, lcid) = (self.ue, setup.lcid);
        let known = self.sessions.get(&id).map(|session| session.number);
        let flow = setup.flows.first().copied();
        let (sink, packets) = sink::channel();
        let add = move |ues: &mut crate::UserPlane, _, ports: &mut path::Ports| {
            let (session, stats) = match known {
                Some(session) => (session, None),
                None => {
                    let (session, stats) = ues.add_session(ue, flow.ok_or(Refused::Value)?)?;
                    ues.give_packets_to(session, sink)?;
                    (session, Some(stats))
                }
            };
            let bearer = ues.add_bearer(session, *setup, ports)?;
            Ok(Added { session, stats, bearer })
        };
        let result = self.shared.control.begin(add);
        self.adding = Some(Adding { id, lcid, packets, result });
        Ok(())
    }

    fn added(&mut self, added: Added) {
        let Some(Adding { id, lcid, packets, .. }) = self.adding.take() else { return };
        let Added { session: number, stats, bearer } = added;
        self.bearers.insert(lcid, bearer);
        if let Some(stats) = stats {
            self.sessions.insert(id, Session { number });
            self.new.insert(id, Bearer { id, number, stats, packets, shared: Arc::clone(&self.shared) });
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.lose("dropped");
        let rejected = self.machine.rejected();
        for (reason, count) in [
            ("malformed", rejected.malformed),
            ("integrity", rejected.integrity),
            ("stale", rejected.stale),
            ("state", rejected.state),
            ("no_room", rejected.no_room),
        ] {
            (0..count).for_each(|_| counters::RRC_REJECTED.inc(reason));
        }
        for session in self.sessions.values() {
            self.shared.devices.detach(session.number);
        }
        self.shared.leave(self.ue);
    }
}

/// Gives a C-RNTI back unless it has become a connection's.
struct Guard<'a> {
    shared: &'a Shared,
    ue: UeId,
    armed: bool,
}

impl Guard<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.shared.leave(self.ue);
        }
    }
}

/// Waits for RRCSetup.
async fn setup_answer(inbox: &mut mpsc::Receiver<Input>) -> Result<RrcSetup, ConnectError> {
    loop {
        match inbox.recv().await {
            Some(Input::Rrc(0, message)) => match DlCcch::decode(&message) {
                Ok(DlCcch::RrcSetup(setup)) => return Ok(setup),
                Ok(DlCcch::RrcReject(reject)) => {
                    let wait_s = reject.wait_time.map(|wait| wait.value());
                    return Err(ConnectError::Rejected { wait_s });
                }
                Err(error) => {
                    tracing::debug!(%error, "answer of a cell rejected");
                    counters::RRC_REJECTED.inc("malformed");
                }
            },
            Some(Input::Rrc(..)) => counters::RRC_REJECTED.inc("state"),
            Some(Input::Released | Input::Failed) | None => return Err(ConnectError::NoAnswer),
        }
    }
}

/// Radio resources of a session.
#[derive(Debug)]
pub struct Bearer {
    id: PduSessionId,
    number: SessionId,
    stats: Arc<SessionStats>,
    packets: Packets,
    shared: Arc<Shared>,
}

impl Bearer {
    /// The session.
    pub fn id(&self) -> PduSessionId {
        self.id
    }

    /// Packets in both directions.
    pub fn packets(&self) -> u64 {
        self.stats.uplink.get().packets + self.stats.downlink.get().packets
    }

    /// Lets packets come from a TUN device and go to it.
    pub fn attach(&self, tun: TunPort) {
        self.packets.attach();
        self.shared.devices.attach(self.number, tun);
    }

    /// Sends an IP packet.
    pub fn send(&self, packet: Vec<u8>) {
        let session = self.number;
        self.shared.control.post(move |ues, _, ports| {
            if let Err(error) = ues.send_packet(session, &packet, ports) {
                tracing::debug!(%error, "packet not sent");
            }
        });
    }

    /// The next packet received. With a TUN device, only router advertisements arrive here. Cancel-safe.
    pub async fn received(&mut self) -> Option<Bytes> {
        self.packets.next().await.map(Bytes::from)
    }
}

/// Six octets of chance.
fn random() -> [u8; 6] {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let [a, b, c, d, e, f, ..] = RandomState::new().build_hasher().finish().to_be_bytes();
    [a, b, c, d, e, f]
}
