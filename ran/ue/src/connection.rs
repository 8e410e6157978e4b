//! An RRC connection of a UE: random access, set-up, and what the upper layers hear and ask for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ::rrc::message::*;
use ::rrc::{DlCcch, UlCcch};
use bytes::Bytes;
use pktio::tun::TunPort;
use tokio::sync::mpsc;
use types::{Key, PduSessionId, Qfi, STmsi};

use crate::control::{Refused, SessionId, UeId};
use crate::rrc::{Action, Failure, Machine};
use crate::sink::{self, Packets};
use crate::stats::SessionStats;
use crate::ues::{Input, Shared};

/// T300 (TS 38.331 §7.1.1): how long the network may take for RRCSetup.
const T300: Duration = Duration::from_secs(2);
/// Inputs that wait to be handled.
pub(crate) const INPUTS: usize = 256;

/// Why a UE gets no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
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
    bearers: BTreeMap<u8, crate::control::BearerId>,
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
    /// Random access and RRC connection establishment (TS 38.331 §5.3.3).
    pub(crate) async fn open(
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
        let message = request.to_vec();
        shared.control.run(move |ues, now_ns, ports| ues.send_rrc(ue, 0, message, now_ns, ports)).await?;
        let setup = setup_answer(&mut inbox).await?;
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
                Input::Rrc(..) => {}
                Input::Released | Input::Failed => self.lost = true,
            }
        }
    }

    /// Executes what the machine wants, in order.
    async fn execute(&mut self) -> Result<(), Lost> {
        while let Some(action) = self.machine.next_action() {
            let done = self.act(action).await;
            if done.is_err() {
                self.lost = true;
            }
        }
        if self.lost { Err(Lost) } else { Ok(()) }
    }

    async fn act(&mut self, action: Action) -> Result<(), Refused> {
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
                    self.shared.control.run(move |ues, _, _| ues.remove_bearer(bearer)).await?;
                }
            }
            Action::RemoveSession(id) => {
                if let Some(session) = self.sessions.remove(&id) {
                    self.shared.devices.detach(session.number);
                    self.shared.control.run(move |ues, _, _| ues.remove_session(session.number)).await?;
                    self.ready.push_back(Downlink::SessionDown(id));
                }
            }
            Action::AddBearer(id, setup) => {
                let (lcid, flow) = (setup.lcid, setup.flows.first().copied());
                let number = match self.sessions.get(&id) {
                    Some(session) => session.number,
                    None => self.add_session(id, flow).await?,
                };
                let add = move |ues: &mut crate::UserPlane, _, ports: &mut path::Ports| {
                    ues.add_bearer(number, *setup, ports)
                };
                let bearer = self.shared.control.run(add).await?;
                self.bearers.insert(lcid, bearer);
            }
            Action::SessionsUp(ids) => {
                let up = ids.into_iter().filter_map(|id| self.new.remove(&id)).collect();
                self.ready.push_back(Downlink::SessionsUp(up));
            }
            Action::Released => {
                self.lost = true;
                self.ready.push_back(Downlink::Released);
            }
            Action::Failed(error) => {
                tracing::warn!(%error, "RRC connection given up");
                self.lost = true;
            }
        }
        Ok(())
    }

    /// Adds a session whose uplink packets are of `flow`.
    async fn add_session(&mut self, id: PduSessionId, flow: Option<Qfi>) -> Result<SessionId, Refused> {
        let (ue, flow) = (self.ue, flow.ok_or(Refused::Value)?);
        let (sink, packets) = sink::channel();
        let add = move |ues: &mut crate::UserPlane, _, _: &mut path::Ports| {
            let (session, stats) = ues.add_session(ue, flow)?;
            ues.give_packets_to(session, sink)?;
            Ok((session, stats))
        };
        let (number, stats) = self.shared.control.run(add).await?;
        self.sessions.insert(id, Session { number });
        self.new.insert(id, Bearer { id, number, stats, packets, shared: Arc::clone(&self.shared) });
        Ok(number)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
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

/// Waits for RRCSetup, until T300 expires.
async fn setup_answer(inbox: &mut mpsc::Receiver<Input>) -> Result<RrcSetup, ConnectError> {
    let answer = async {
        loop {
            match inbox.recv().await {
                Some(Input::Rrc(0, message)) => match DlCcch::decode(&message) {
                    Ok(DlCcch::RrcSetup(setup)) => return Ok(setup),
                    Ok(DlCcch::RrcReject(reject)) => {
                        let wait_s = reject.wait_time.map(|wait| wait.value());
                        return Err(ConnectError::Rejected { wait_s });
                    }
                    Err(error) => tracing::debug!(%error, "answer of a cell rejected"),
                },
                Some(Input::Rrc(..)) => {}
                Some(Input::Released | Input::Failed) | None => return Err(ConnectError::NoAnswer),
            }
        }
    };
    net::time::timeout(T300, answer).await.unwrap_or(Err(ConnectError::NoAnswer))
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
