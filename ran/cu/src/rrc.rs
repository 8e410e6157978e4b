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
const HELD_OCTETS: usize = 256 * 1024;
/// Messages that were received and not yet handled.
const RECEIVED: usize = 64;

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

/// SRB1 and SRB2 of a UE.
pub(crate) struct Rrc {
    srb1: Srb,
    srb2: Option<Srb>,
    transaction: u8,
    /// The security mode command is on its way.
    awaits_ciphering: bool,
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
            awaits_ciphering: false,
            early: Vec::new(),
            received: VecDeque::new(),
        }
    }

    /// A transaction for a message that the UE answers.
    pub(crate) fn next_transaction(&mut self) -> RrcTransactionIdentifier {
        self.transaction = (self.transaction + 1) % 4;
        RrcTransactionIdentifier::new(self.transaction).expect("0 to 3 are transactions")
    }

    /// From now on messages are signed in both directions, and ciphered once the UE has completed the security mode command
    /// (TS 33.501 §6.7.4).
    pub(crate) fn protect(&mut self, keys: &AsKeys, ciphered: bool) {
        let security = keys.signalling(ciphered);
        self.srb1.tx.set_security(security.clone());
        self.srb1.rx.set_security(security);
        self.awaits_ciphering = !ciphered;
        for pdu in std::mem::take(&mut self.early) {
            self.receive(1, pdu);
        }
    }

    /// Whether the UE has not yet completed the security mode command.
    pub(crate) fn awaits_ciphering(&self) -> bool {
        self.awaits_ciphering
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
        match rx.open(&mut pdu, net::time::now_ns()) {
            Verdict::Deliver { sdu, .. } => keep(&mut self.received, &pdu[sdu]),
            Verdict::Held | Verdict::Control(_) => {}
            // A UE whose keys differ says so without protection (TS 38.331 §5.3.4.3).
            Verdict::Discarded(Discard::IntegrityFailure)
                if self.awaits_ciphering && is_security_mode_failure(&pdu) =>
            {
                let sdu = pdu.len() - MAC_LEN;
                return keep(&mut self.received, &pdu[SRB_HEADER..sdu]);
            }
            // RLC may deliver a ciphered PDU before SecurityModeComplete. Without ciphering the PDU is as it was.
            Verdict::Discarded(Discard::IntegrityFailure)
                if self.awaits_ciphering && self.early.len() < MOST_EARLY =>
            {
                return self.early.push(pdu);
            }
            Verdict::Discarded(why) => return counters::RRC_REJECTED.inc(name(why)),
        }
        rx.release(|sdu, _| keep(&mut self.received, sdu));
    }

    /// The next message of the UE.
    pub(crate) fn next(&mut self) -> Option<UlDcch> {
        self.received.pop_front()
    }
}

fn is_security_mode_failure(pdu: &[u8]) -> bool {
    let sdu = pdu.len().checked_sub(MAC_LEN).and_then(|end| pdu.get(SRB_HEADER..end));
    sdu.is_some_and(|sdu| matches!(UlDcch::decode(sdu), Ok(UlDcch::SecurityModeFailure(_))))
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
