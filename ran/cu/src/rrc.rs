//! RRC on the signalling bearers of a UE: PDCP, transactions, decoding.

use std::collections::VecDeque;

use bytes::Bytes;
use l2::keys::AsKeys;
use l2::pdcp::Security;
use l2::pdcp::{Config, Discard, Rx, RxConfig, SealError, SrbId, Tx, Verdict};
use l2::security::{Direction, MAC_LEN};
use rrc::{DlDcch, RrcTransactionIdentifier, UlDcch};

use crate::counters;

/// SDUs that wait for older ones on a signalling bearer. RLC AM delivers all, and a UE has few messages under way.
const HELD: usize = 64;
const HELD_OCTETS: usize = 64 * 1024;
/// Messages that were received and not yet handled.
const RECEIVED: usize = 64;

/// Longest PDU: an SDU with header and MAC-I (TS 38.323 §4.3.1). What is longer need not wait to be refused.
pub(crate) const LONGEST_PDU: usize = l2::pdcp::MAX_SDU + SRB_HEADER + MAC_LEN;
/// Octets of PDCP's header on signalling bearers (TS 38.323 §6.2.2.1).
const SRB_HEADER: usize = 2;
/// PDUs that may overtake SecurityModeComplete.
const MOST_EARLY: usize = 8;

/// A signalling bearer.
struct Srb {
    tx: Tx,
    rx: Rx,
}

impl Srb {
    fn new(id: SrbId, security: &Security) -> Srb {
        // The default configuration waits for ever for what is missing (TS 38.331 §9.2.1).
        let rx = RxConfig {
            t_reordering: None,
            out_of_order_delivery: false,
            max_held: HELD,
            max_held_octets: HELD_OCTETS,
        };
        Srb {
            tx: Tx::new(Config::srb(id, Direction::Downlink), security.clone()),
            rx: Rx::new(Config::srb(id, Direction::Uplink), security.clone(), rx),
        }
    }
}

/// A security mode command that the UE has not completed.
struct Command {
    /// What protects messages meanwhile.
    signed: Security,
    /// SRB1 before the command.
    before: Tx,
}

/// SRB1 and SRB2 of a UE.
pub(crate) struct Rrc {
    srb1: Srb,
    srb2: Option<Srb>,
    transaction: u8,
    /// While the security mode command is on its way.
    command: Option<Command>,
    /// PDUs of SRB1 that may be ciphered already, while SecurityModeComplete has not come.
    early: Vec<Vec<u8>>,
    received: VecDeque<UlDcch>,
}

/// Why a message cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RrcError {
    #[error(transparent)]
    Encode(#[from] rrc::EncodeError),
    #[error(transparent)]
    Seal(#[from] SealError),
}

impl Rrc {
    /// SRB1, without protection.
    pub(crate) fn new() -> Rrc {
        Rrc {
            srb1: Srb::new(SrbId::Srb1, &Security::none()),
            srb2: None,
            transaction: 0,
            command: None,
            early: Vec::new(),
            received: VecDeque::new(),
        }
    }

    /// A transaction for a message that the UE answers.
    pub(crate) fn next_transaction(&mut self) -> RrcTransactionIdentifier {
        self.transaction = (self.transaction + 1) % 4;
        RrcTransactionIdentifier::new(self.transaction).expect("0 to 3 are transactions")
    }

    /// From now on messages are signed in both directions: the next one is the security mode command (TS 33.501 §6.7.4).
    pub(crate) fn sign(&mut self, keys: &AsKeys) {
        let signed = keys.signalling(false);
        self.command = Some(Command { signed: signed.clone(), before: self.srb1.tx.clone() });
        self.set_security(signed);
    }

    /// The UE has completed the security mode command: from now on messages are ciphered as well.
    pub(crate) fn cipher(&mut self, keys: &AsKeys) {
        self.command = None;
        self.set_security(keys.signalling(true));
        for pdu in std::mem::take(&mut self.early) {
            self.receive(1, pdu);
        }
    }

    /// The UE goes on as before the security mode command, which has reached it or not (TS 38.331 §5.3.4.3). One that has not must
    /// leave no gap: the UE would wait for it for ever.
    pub(crate) fn unprotect(&mut self, command_reached_ue: bool) {
        let Some(command) = self.command.take() else { return };
        if !command_reached_ue {
            self.srb1.tx = command.before;
        }
        self.set_security(Security::none());
        self.early.clear();
    }

    fn set_security(&mut self, security: Security) {
        self.srb1.tx.set_security(security.clone());
        self.srb1.rx.set_security(security);
    }

    /// Whether the UE has not yet completed the security mode command.
    pub(crate) fn awaits_ciphering(&self) -> bool {
        self.command.is_some()
    }

    /// The UE has SRB2.
    pub(crate) fn add_srb2(&mut self, keys: &AsKeys) {
        self.srb2.get_or_insert_with(|| Srb::new(SrbId::Srb2, &keys.signalling(true)));
    }

    /// The bearer of NAS: SRB2 once the UE has it (TS 38.331 §5.7.1).
    pub(crate) fn nas_srb(&self) -> u8 {
        if self.srb2.is_some() { 2 } else { 1 }
    }

    /// The PDCP PDU of a message on SRB1 (`srb` 1) or SRB2.
    pub(crate) fn seal(&mut self, srb: u8, message: impl Into<DlDcch>) -> Result<Vec<u8>, RrcError> {
        let message = message.into().encode()?;
        let tx = match &mut self.srb2 {
            Some(srb2) if srb == 2 => &mut srb2.tx,
            _ => &mut self.srb1.tx,
        };
        let (header, trailer) = (tx.header_len(), tx.trailer_len());
        let mut pdu = vec![0; header + message.len() + trailer];
        pdu[header..header + message.len()].copy_from_slice(&message);
        tx.seal(&mut pdu)?;
        Ok(pdu)
    }

    /// Takes a PDCP PDU of a bearer. What it contains, and what has waited for it, comes from [`Rrc::next`].
    pub(crate) fn receive(&mut self, srb: u8, mut pdu: Vec<u8>) {
        let rx = match (srb, &mut self.srb2) {
            (1, _) => &mut self.srb1.rx,
            (2, Some(srb2)) => &mut srb2.rx,
            _ => return counters::RRC_REJECTED.inc("unknown_srb"),
        };
        let now_ns = net::time::now_ns();
        let mut verdict = rx.open(&mut pdu, now_ns);
        if let (Verdict::Discarded(Discard::IntegrityFailure), Some(command)) = (&verdict, &self.command) {
            // Without ciphering the PDU is as it was.
            if may_be_unprotected(&pdu) {
                rx.set_security(Security::none());
                verdict = rx.open(&mut pdu, now_ns);
                rx.set_security(command.signed.clone());
            } else if self.early.len() < MOST_EARLY {
                // RLC may deliver a ciphered PDU before SecurityModeComplete.
                return self.early.push(pdu);
            }
        }
        match verdict {
            Verdict::Deliver { sdu, .. } => keep(&mut self.received, &pdu[sdu]),
            Verdict::Held | Verdict::Control(_) => {}
            Verdict::Discarded(why) => return counters::RRC_REJECTED.inc(name(why)),
        }
        rx.release(|sdu, _| keep(&mut self.received, sdu));
    }

    /// The next message of the UE.
    pub(crate) fn next(&mut self) -> Option<UlDcch> {
        self.received.pop_front()
    }
}

/// What comes without protection while the security mode command is on its way: NAS of a UE that the command has not reached, and
/// the failure of one whose keys differ (TS 38.331 §5.3.4.3, annex B.1). The MAC-I is 0 then (TS 38.323 §6.3.4).
fn may_be_unprotected(pdu: &[u8]) -> bool {
    let Some((pdu, [0, 0, 0, 0])) = pdu.split_last_chunk::<MAC_LEN>() else { return false };
    let message = pdu.get(SRB_HEADER..).map(UlDcch::decode);
    matches!(message, Some(Ok(UlDcch::UlInformationTransfer(_) | UlDcch::SecurityModeFailure(_))))
}

fn keep(received: &mut VecDeque<UlDcch>, sdu: &[u8]) {
    match UlDcch::decode(sdu) {
        Ok(_) if received.len() >= RECEIVED => counters::RRC_REJECTED.inc("too_many"),
        Ok(message) => received.push_back(message),
        Err(error) => {
            tracing::debug!(%error, "RRC message of a UE rejected");
            counters::RRC_REJECTED.inc("malformed");
        }
    }
}

fn name(why: Discard) -> &'static str {
    match why {
        Discard::Malformed => "pdcp_malformed",
        Discard::IntegrityFailure => "integrity",
        Discard::Duplicate => "duplicate",
        Discard::Stale => "replay",
        Discard::NoRoom => "no_room",
    }
}

/// NAS to the UE (TS 38.331 §5.7.1).
pub(crate) fn dl_information_transfer(
    rrc_transaction_identifier: RrcTransactionIdentifier,
    nas: Bytes,
) -> rrc::message::DlInformationTransfer {
    rrc::message::DlInformationTransfer { rrc_transaction_identifier, dedicated_nas_message: Some(nas) }
}
