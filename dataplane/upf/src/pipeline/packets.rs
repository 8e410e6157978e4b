//! What the stages know of the packets of a vector: arrays beside its frames, by the packet's position.

use classifier::Key;
use rcu::Line;
use telemetry::DropReason;

use super::BATCH;
pub(super) use crate::session::NO_QFI;
use crate::session::{self, Endpoint, Entry, flag, kind};

/// Progress of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Live,
    Dropped(DropReason),
    Consumed,
}

/// RQI beside the QFI in the marks of a packet, at its place in the PDU Session Container (TS 38.415 §5.5.2.1).
pub(super) const RQI: u8 = 0x40;

/// The QFI in a packet's marks: QFI and [`RQI`] of a PDU Session Container, or [`NO_QFI`] if there was none.
#[inline(always)]
pub(super) fn qfi_of(marks: u8) -> Option<u8> {
    (marks != NO_QFI).then_some(marks & 0x3F)
}

/// Data of a packet that stages exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    pub state: State,
    /// Whether it came without tunnel.
    pub native: bool,
    /// What its PDU Session Container says: see [`qfi_of`].
    pub marks: u8,
    /// TEID at which it arrived; for a frame without tunnel, the station that is its destination.
    pub teid: u32,
    /// Length of the IP packet, or of the frame.
    pub length: u32,
    /// Octets that were cut off after the end of the IP packet.
    pub cut: u16,
}

impl Meta {
    pub const NEW: Meta =
        Meta { state: State::Live, native: false, marks: NO_QFI, teid: 0, length: 0, cut: 0 };

    pub fn drop(&mut self, reason: DropReason) {
        self.state = State::Dropped(reason);
    }
}

/// Result of a packet's look-up.
#[derive(Clone, Copy)]
pub(super) struct Verdict<'g> {
    /// The endpoint of the packet's session, and the further lines of its block.
    pub block: &'g [Endpoint],
    /// The entry of the packet's PDR, and the first line of the session's state.
    pub matched: Option<(&'g Entry, &'g Line)>,
}

/// A packet of the batch that matched a PDR.
#[derive(Clone, Copy)]
pub(super) struct Matched<'g> {
    /// Its position.
    pub at: usize,
    pub endpoint: &'g Endpoint,
    /// The block that begins with the endpoint.
    pub block: &'g [Endpoint],
    /// The entry of its PDR.
    pub entry: &'g Entry,
}

impl<'g> Matched<'g> {
    /// The further entries of the entry.
    #[inline]
    pub fn further(&self) -> impl Iterator<Item = &'g Entry> + use<'g> {
        let (block, entry) = (self.block, self.entry);
        let first = entry.is(flag::MORE).then(|| entry.more());
        let entries =
            first.into_iter().flat_map(move |first| (first..).map_while(|at| session::entry(block, at)));
        entries.take_while(|entry| entry.kind() != kind::END)
    }
}

/// The results of a vector.
pub(super) type Verdicts<'g> = [Verdict<'g>; BATCH];

impl<'g> Verdict<'g> {
    pub const NONE: Verdict<'static> = Verdict { block: &[], matched: None };
}

/// Metadata and keys of the packets. The arrays have a fixed length, so that a position below [`Packets::len`] needs no
/// check.
pub(super) struct Packets {
    pub metas: [Meta; BATCH],
    pub keys: [Key; BATCH],
    len: usize,
}

impl Packets {
    pub fn new() -> Packets {
        Packets { metas: [Meta::NEW; BATCH], keys: [Key::unknown(); BATCH], len: 0 }
    }

    /// Number of packets.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len.min(BATCH)
    }

    /// Begins with `count` packets of which nothing is known. Old keys need not be cleared: parsing replaces a key, or the
    /// packet has none.
    #[inline]
    pub fn begin(&mut self, count: usize) {
        self.len = count.min(BATCH);
        self.metas[..self.len].fill(Meta::NEW);
    }

    /// Adds a packet; without effect when there are [`BATCH`].
    pub fn push(&mut self, meta: Meta, key: Key) {
        if self.len < BATCH {
            (self.metas[self.len], self.keys[self.len]) = (meta, key);
            self.len += 1;
        }
    }
}
