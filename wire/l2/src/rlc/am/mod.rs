//! Acknowledged mode (§5.2.3): every SDU arrives, or the entity fails after too many retransmissions.
//!
//! ```text
//!  push ──► waiting ──► sent, until acknowledged ──pull──► PDU
//!                          ▲ NACK, t-PollRetransmit
//!  PDU ──receive──► segments ──► SDU, once each; a status when asked for, or when t-Reassembly expires
//! ```
//! [`Entity`] is both sides of a bearer. SDUs are delivered when they are whole, and so out of order after losses: PDCP puts them
//! in order (§5.2.3.2.3).

pub mod pdu;
mod rx;
mod tx;

pub use pdu::SnLength;

use super::{PduError, SduError};
use rx::Rx;
use tx::Tx;

const MS: u64 = 1_000_000;

/// The parameters of an entity (RLC-Config of TS 38.331).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Length of the sequence numbers in both directions.
    pub sn: SnLength,
    /// maxRetxThreshold: retransmissions of an SDU with which the entity fails.
    pub max_retx_threshold: u32,
    /// pollPDU: PDUs after which one asks for a status; `None` for infinity.
    pub poll_pdu: Option<u32>,
    /// pollByte: octets after which a PDU asks for a status; `None` for infinity.
    pub poll_byte: Option<usize>,
    /// t-PollRetransmit.
    pub t_poll_retransmit_ns: u64,
    /// t-Reassembly.
    pub t_reassembly_ns: u64,
    /// t-StatusProhibit.
    pub t_status_prohibit_ns: u64,
    /// Octets of memory of SDUs that wait or were not acknowledged.
    pub tx_limit: usize,
    /// Octets of memory of what has come of incomplete SDUs.
    pub rx_limit: usize,
}

impl Config {
    /// The default of signalling bearers (TS 38.331 §9.2.1).
    pub const SIGNALLING: Config = Config {
        sn: SnLength::Bits12,
        max_retx_threshold: 8,
        poll_pdu: None,
        poll_byte: None,
        t_poll_retransmit_ns: 45 * MS,
        t_reassembly_ns: 35 * MS,
        t_status_prohibit_ns: 0,
        tx_limit: 256 * 1024,
        rx_limit: 256 * 1024,
    };
}

/// Why an entity has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// An SDU was sent again as often as allowed (§5.3.2): the radio link has failed.
    #[error("the maximum number of retransmissions was reached")]
    MaxRetransmissions,
}

/// What [`Entity::receive`] has made of a PDU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received<T> {
    /// The PDU completes this SDU.
    Sdu(Vec<u8>),
    /// The segment waits for others of its SDU.
    Kept,
    /// The far end has these SDUs, by their marks.
    Acknowledged(Vec<T>),
}

/// Both sides of a bearer. SDUs have marks of the caller.
#[derive(Debug)]
pub struct Entity<T> {
    config: Config,
    tx: Tx<T>,
    rx: Rx,
    /// No status is sent before this time: t-StatusProhibit.
    prohibited_until_ns: u64,
}

impl<T> Entity<T> {
    /// An entity that has sent and received nothing.
    pub fn new(config: Config) -> Entity<T> {
        Entity {
            config,
            tx: Tx::new(config),
            rx: Rx::new(config.sn, config.t_reassembly_ns, config.rx_limit),
            prohibited_until_ns: 0,
        }
    }

    /// Takes an SDU for transmission.
    ///
    /// # Errors
    /// The SDU's length, or no room. The SDU is lost.
    pub fn push(&mut self, sdu: Vec<u8>, mark: T) -> Result<(), SduError> {
        self.tx.push(sdu, mark)
    }

    /// Writes the next PDU, of `grant` octets at most, behind what `out` holds; returns its length. A status comes first, then
    /// retransmissions, then new SDUs. `None`: there is nothing to send, or the grant has no room for it.
    pub fn pull(&mut self, grant: usize, now_ns: u64, out: &mut Vec<u8>) -> Option<usize> {
        let before = out.len();
        if self.has_status(now_ns) && self.rx.write_status(grant, out) {
            self.prohibited_until_ns = now_ns.saturating_add(self.config.t_status_prohibit_ns);
            return Some(out.len() - before);
        }
        self.tx.pull(grant, now_ns, out)
    }

    fn has_status(&self, now_ns: u64) -> bool {
        self.rx.status_triggered && now_ns >= self.prohibited_until_ns
    }

    /// Whether [`Entity::pull`] has a PDU now, for a grant that is large enough.
    pub fn has_data(&self, now_ns: u64) -> bool {
        self.has_status(now_ns) || self.tx.has_data()
    }

    /// Handles a PDU.
    ///
    /// # Errors
    /// The PDU is discarded. A discarded data PDU may still have asked for a status.
    pub fn receive(&mut self, octets: &[u8], now_ns: u64) -> Result<Received<T>, PduError> {
        match pdu::Pdu::parse(octets, self.config.sn)? {
            pdu::Pdu::Data(header, data) => {
                let sdu = self.rx.receive(&header, data, now_ns)?;
                Ok(sdu.map_or(Received::Kept, Received::Sdu))
            }
            pdu::Pdu::Status(status) => self.tx.acknowledge(&status).map(Received::Acknowledged),
        }
    }

    /// When [`Entity::expire`] is due, or a status may be sent that waits.
    pub fn deadline_ns(&self) -> Option<u64> {
        let status = self.rx.status_triggered.then_some(self.prohibited_until_ns);
        self.tx.deadline_ns().into_iter().chain(self.rx.deadline_ns()).chain(status).min()
    }

    /// Does what is due.
    pub fn expire(&mut self, now_ns: u64) {
        self.tx.expire(now_ns);
        self.rx.expire(now_ns);
    }

    /// Whether the entity still works.
    ///
    /// # Errors
    /// Why it sends nothing any more.
    pub fn check(&self) -> Result<(), Failure> {
        self.tx.failure().map_or(Ok(()), Err)
    }

    /// Whether the far end has acknowledged all that was given to this entity.
    pub fn is_all_acknowledged(&self) -> bool {
        self.tx.memory() == 0
    }

    /// Octets of memory of SDUs in both directions.
    pub fn memory(&self) -> usize {
        self.tx.memory() + self.rx.memory()
    }

    /// Octets of memory that the entity takes at most.
    pub fn most_memory(&self) -> usize {
        self.config.tx_limit + self.rx.most_memory()
    }

    /// Discards everything and begins anew (re-establishment, §5.1.2).
    pub fn reset(&mut self) {
        *self = Entity::new(self.config);
    }
}
