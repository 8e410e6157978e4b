//! RRC of a UE with a connection (TS 38.331), without I/O.
//!
//! ```text
//!  PDCP PDUs of SRB1, SRB2 ──receive──► Machine ──next_action──► Action
//!  NAS, keys, bearers done ───────────►
//! ```
//! The owner gives what the DU sends to [`Machine::receive`], and executes [`Machine::next_action`]'s actions in order. An action that
//! changes the user plane comes before the message that tells the network of it.

mod bearers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use ::rrc::message::*;
use ::rrc::{DlDcch, RrcTransactionIdentifier, UlDcch, bearer};
use bytes::Bytes;
use l2::keys::AsKeys;
use l2::pdcp::{Config, Discard, Rx, RxConfig, Security, SrbId, Tx, Verdict};
use l2::security::{CipheringAlgorithm, Direction, IntegrityAlgorithm};
use types::{Key, PduSessionId};

use crate::control::BearerSetup;
use bearers::Bearers;

/// SDUs that wait for older ones on a signalling bearer; RLC AM delivers all.
const HELD: usize = 64;
const HELD_OCTETS: usize = 256 * 1024;
/// PDUs and NAS messages that wait for the key.
const MOST_WAITING: usize = 64;

/// What the owner does.
#[derive(Debug)]
pub enum Action {
    /// Sends a PDCP PDU on SRB1 (1) or SRB2 (2).
    Send(u8, Vec<u8>),
    /// Gives NAS to the upper layers.
    Nas(Bytes),
    /// Asks the upper layers for K_gNB, which goes to [`Machine::activate_security`]. Nothing else comes before that.
    SecurityMode,
    /// Removes the data bearer on a logical channel.
    RemoveBearer(u8),
    /// Removes what a session has in the user plane.
    RemoveSession(PduSessionId),
    /// Adds a data bearer to a session, and the session if it is new.
    AddBearer(PduSessionId, Box<BearerSetup>),
    /// These sessions have got their first bearers.
    SessionsUp(Vec<PduSessionId>),
    /// The network has released the connection; nothing follows.
    Released,
    /// The connection cannot go on; nothing follows.
    Failed(Failure),
}

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A reconfiguration that cannot be complied with (§5.3.5.8.2).
    #[error("a reconfiguration cannot be complied with: {0}")]
    Reconfiguration(&'static str),
    /// A message of ours cannot be made.
    #[error("a message cannot be made")]
    Message,
}

/// Counts of what was not acted on.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Rejected {
    /// Messages that do not decode.
    pub malformed: u64,
    /// PDUs with a wrong MAC-I.
    pub integrity: u64,
    /// PDUs that came before, or are far off.
    pub stale: u64,
    /// Messages that the state does not allow.
    pub state: u64,
    /// Messages without room.
    pub no_room: u64,
}

struct Srb {
    tx: Tx,
    rx: Rx,
}

/// PDCP of a signalling bearer, which expects `count` next.
fn receiver(id: SrbId, security: &Security, count: u32) -> Rx {
    // The default configuration waits for ever for what is missing (§9.2.1).
    let rx = RxConfig {
        t_reordering: None,
        out_of_order_delivery: false,
        max_held: HELD,
        max_held_octets: HELD_OCTETS,
    };
    Rx::starting_at(Config::srb(id, Direction::Downlink), security.clone(), rx, count)
}

impl Srb {
    fn new(id: SrbId, security: &Security) -> Srb {
        Srb {
            tx: Tx::new(Config::srb(id, Direction::Uplink), security.clone()),
            rx: receiver(id, security, 0),
        }
    }
}

/// SecurityModeCommand while it waits for the key.
struct Command {
    /// The PDU in which it came, and its COUNT: its MAC-I is verified with the keys that follow from it (§5.3.4.3).
    pdu: Vec<u8>,
    count: u32,
    command: SecurityModeCommand,
    /// PDUs that came after it.
    pdus: VecDeque<(u8, Vec<u8>)>,
    /// NAS messages for the network, which takes no unprotected ones any more.
    nas: VecDeque<Bytes>,
}

/// AS security.
#[allow(clippy::large_enum_variant, reason = "one for each UE, and most of them are active")]
enum As {
    /// Not active.
    None,
    /// The security mode command waits for the key.
    Command(Box<Command>),
    /// Active.
    Active(AsKeys),
}

/// RRC of a UE in state RRC_CONNECTED.
pub struct Machine {
    srb1: Srb,
    srb2: Option<Srb>,
    security: As,
    bearers: Bearers,
    /// While there are no keys: PDUs on SRB1 that wait for older ones, by sequence number. One may be the security mode command.
    held: BTreeMap<u32, Vec<u8>>,
    actions: VecDeque<Action>,
    ended: bool,
    rejected: Rejected,
}

impl Machine {
    /// After RRCSetup: the UE has SRB1.
    ///
    /// # Errors
    /// The configuration cannot be complied with.
    pub fn new(setup: &RrcSetup) -> Result<Machine, Failure> {
        let mut bearers = Bearers::default();
        bearers.take_cell_group(&setup.master_cell_group)?;
        let has_srb1 =
            setup.radio_bearer_config.srb_to_add_mod_list.iter().any(|srb| srb.srb_identity.value() == 1);
        if !has_srb1 {
            return Err(Failure::Reconfiguration("no SRB1"));
        }
        Ok(Machine {
            srb1: Srb::new(SrbId::Srb1, &Security::none()),
            srb2: None,
            security: As::None,
            bearers,
            held: BTreeMap::new(),
            actions: VecDeque::new(),
            ended: false,
            rejected: Rejected::default(),
        })
    }

    /// The next action.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What was not acted on.
    pub fn rejected(&self) -> Rejected {
        self.rejected
    }

    /// RRCSetupComplete with the first NAS message (§5.3.3.4).
    pub fn complete_setup(
        &mut self,
        transaction: RrcTransactionIdentifier,
        ng_5g_s_tmsi_value: Option<Ng5gSTmsiValue>,
        nas: Bytes,
    ) {
        let complete = RrcSetupComplete {
            rrc_transaction_identifier: transaction,
            selected_plmn_identity: SelectedPlmn::new(1).expect("1 is a position"),
            registered_amf: None,
            guami_type: None,
            s_nssai_list: Vec::new(),
            dedicated_nas_message: nas,
            ng_5g_s_tmsi_value,
        };
        self.send(1, complete.into());
    }

    /// Sends NAS (§5.7.2): on SRB2 once it is there. While the security mode command waits for the key, NAS waits as well.
    pub fn send_nas(&mut self, nas: Bytes) {
        if let As::Command(command) = &mut self.security {
            if command.nas.len() < MOST_WAITING {
                command.nas.push_back(nas);
            } else {
                self.rejected.no_room += 1;
            }
            return;
        }
        let srb = if self.srb2.is_some() { 2 } else { 1 };
        self.send(srb, UlInformationTransfer { dedicated_nas_message: Some(nas) }.into());
    }

    /// Takes a PDCP PDU of SRB1 or SRB2.
    pub fn receive(&mut self, srb: u8, mut pdu: Vec<u8>) {
        if self.ended || self.waits(srb, &pdu) {
            return;
        }
        let rx = match (srb, &mut self.srb2) {
            (1, _) => &mut self.srb1.rx,
            (2, Some(srb2)) => &mut srb2.rx,
            _ => return self.rejected.state += 1,
        };
        let original = matches!(self.security, As::None).then(|| pdu.clone());
        let mut messages = Vec::new();
        match rx.open(&mut pdu, 0) {
            Verdict::Deliver { sdu, count } => messages.push((pdu[sdu].to_vec(), original, count)),
            Verdict::Held => {
                if let (Some(original), Some(sn)) = (original, sn_of(&pdu)) {
                    self.held.insert(sn, original);
                }
            }
            Verdict::Control(_) => {}
            Verdict::Discarded(Discard::IntegrityFailure) => self.rejected.integrity += 1,
            Verdict::Discarded(Discard::Malformed) => self.rejected.malformed += 1,
            Verdict::Discarded(Discard::Duplicate | Discard::Stale) => self.rejected.stale += 1,
            Verdict::Discarded(Discard::NoRoom) => self.rejected.no_room += 1,
        }
        let held = &mut self.held;
        rx.release(|sdu, count| messages.push((sdu.to_vec(), held.remove(&(count & SN_MASK)), count)));
        for (message, original, count) in messages {
            // What was opened together with a security mode command before it is opened again with keys.
            if self.ended || original.as_ref().is_some_and(|pdu| self.waits(srb, pdu)) {
                continue;
            }
            match (DlDcch::decode(&message), original) {
                (Ok(DlDcch::SecurityModeCommand(command)), Some(pdu)) => self.command(pdu, count, command),
                (Ok(message), _) => self.handle(message),
                (Err(_), _) => self.rejected.malformed += 1,
            }
        }
    }

    /// Whether a PDU waits for the key, behind the security mode command.
    fn waits(&mut self, srb: u8, pdu: &[u8]) -> bool {
        let As::Command(command) = &mut self.security else { return false };
        if command.pdus.len() < MOST_WAITING {
            command.pdus.push_back((srb, pdu.to_vec()));
        } else {
            self.rejected.no_room += 1;
        }
        true
    }

    /// The security mode command has come in its place.
    fn command(&mut self, pdu: Vec<u8>, count: u32, command: SecurityModeCommand) {
        let (pdus, nas) = Default::default();
        self.security = As::Command(Box::new(Command { pdu, count, command, pdus, nas }));
        self.actions.push_back(Action::SecurityMode);
    }

    fn handle(&mut self, message: DlDcch) {
        match message {
            DlDcch::DlInformationTransfer(transfer) => match transfer.dedicated_nas_message {
                Some(nas) => self.actions.push_back(Action::Nas(nas)),
                None => self.rejected.state += 1,
            },
            DlDcch::RrcReconfiguration(reconfiguration) => self.reconfigure(reconfiguration),
            DlDcch::RrcRelease(_) => {
                self.ended = true;
                self.actions.push_back(Action::Released);
            }
            // Once there are keys, a command has no place (§5.3.4.1).
            DlDcch::SecurityModeCommand(_) => self.rejected.state += 1,
        }
    }

    /// K_gNB for the security mode command (§5.3.4.3): the command is verified and answered.
    pub fn activate_security(&mut self, k_gnb: &Key<32>) {
        let Command { mut pdu, count, command, pdus, nas } =
            match std::mem::replace(&mut self.security, As::None) {
                As::Command(command) => *command,
                other => {
                    self.security = other;
                    return self.rejected.state += 1;
                }
            };
        self.held.clear();
        let transaction = command.rrc_transaction_identifier;
        // The command is signed with the new keys and not ciphered (TS 33.501 §6.7.4).
        let verified = algorithms(&command).and_then(|(ciphering, integrity)| {
            let keys = AsKeys::derive(k_gnb, ciphering, integrity);
            let mut rx = receiver(SrbId::Srb1, &keys.signalling(false), count);
            matches!(rx.open(&mut pdu, 0), Verdict::Deliver { .. }).then_some(keys)
        });
        let next = count.wrapping_add(1);
        match verified {
            Some(keys) => {
                self.srb1.tx.set_security(keys.signalling(false));
                self.send(1, SecurityModeComplete { rrc_transaction_identifier: transaction }.into());
                // Ciphered from the next message on, in both directions.
                self.srb1.tx.set_security(keys.signalling(true));
                self.srb1.rx = receiver(SrbId::Srb1, &keys.signalling(true), next);
                self.security = As::Active(keys);
            }
            None => {
                // As before the command, without protection.
                self.rejected.integrity += 1;
                self.srb1.rx = receiver(SrbId::Srb1, &Security::none(), next);
                self.send(1, SecurityModeFailure { rrc_transaction_identifier: transaction }.into());
            }
        }
        for nas in nas {
            self.send_nas(nas);
        }
        for (srb, pdu) in pdus {
            self.receive(srb, pdu);
        }
    }

    /// RRCReconfiguration (§5.3.5): all of it, or the connection fails.
    fn reconfigure(&mut self, reconfiguration: RrcReconfiguration) {
        let As::Active(keys) = &self.security else {
            // Without security the UE cannot comply, and goes to idle mode (§5.3.5.8.2).
            return self.fail(Failure::Reconfiguration("bearers without security"));
        };
        if reconfiguration.secondary_cell_group.is_some() {
            return self.fail(Failure::Reconfiguration("a secondary cell group"));
        }
        let v1530 = reconfiguration.v1530.unwrap_or_default();
        let config = reconfiguration.radio_bearer_config.unwrap_or_default();
        let changes = self.bearers.change(v1530.master_cell_group.as_ref(), &config, v1530.full_config, keys);
        let changes = match changes {
            Ok(changes) => changes,
            Err(failure) => return self.fail(failure),
        };
        let adds_srb2 = config.srb_to_add_mod_list.iter().any(|srb| srb.srb_identity.value() == 2);
        let security = keys.signalling(true);
        if adds_srb2 {
            self.srb2.get_or_insert_with(|| Srb::new(SrbId::Srb2, &security));
        }
        self.actions.extend(changes);
        let transaction = reconfiguration.rrc_transaction_identifier;
        self.send(1, RrcReconfigurationComplete { rrc_transaction_identifier: transaction }.into());
        self.actions.extend(v1530.dedicated_nas_message_list.into_iter().map(Action::Nas));
    }

    fn send(&mut self, srb: u8, message: UlDcch) {
        if self.ended {
            return;
        }
        let tx = match &mut self.srb2 {
            Some(srb2) if srb == 2 => &mut srb2.tx,
            _ => &mut self.srb1.tx,
        };
        let sealed = message.encode().ok().and_then(|message| {
            let (header, trailer) = (tx.header_len(), tx.trailer_len());
            let mut pdu = vec![0; header + message.len() + trailer];
            pdu[header..header + message.len()].copy_from_slice(&message);
            tx.seal(&mut pdu).ok().map(|_| pdu)
        });
        match sealed {
            Some(pdu) => self.actions.push_back(Action::Send(srb, pdu)),
            None => self.fail(Failure::Message),
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.ended = true;
        self.actions.push_back(Action::Failed(failure));
    }
}

/// Sequence numbers of signalling bearers have 12 bits (TS 38.323 §6.2.2.1).
const SN_MASK: u32 = 0xFFF;

fn sn_of(pdu: &[u8]) -> Option<u32> {
    match pdu {
        [a, b, ..] => Some((u32::from(*a) << 8 | u32::from(*b)) & SN_MASK),
        _ => None,
    }
}

/// The algorithms of a command; `None` if one is not known, or signalling is to be without integrity protection.
fn algorithms(command: &SecurityModeCommand) -> Option<(CipheringAlgorithm, IntegrityAlgorithm)> {
    let config = &command.security_config_smc.security_algorithm_config;
    let ciphering = match config.ciphering_algorithm {
        bearer::CipheringAlgorithm::Nea0 => CipheringAlgorithm::Nea0,
        bearer::CipheringAlgorithm::Nea2 => CipheringAlgorithm::Nea2,
        _ => return None,
    };
    match config.integrity_prot_algorithm {
        Some(bearer::IntegrityProtAlgorithm::Nia2) => Some((ciphering, IntegrityAlgorithm::Nia2)),
        _ => None,
    }
}
