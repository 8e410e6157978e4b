//! Stage 3: gates, meters and counters of a packet's PDR (TS 29.244 §5.4, §5.2.2), then its FAR ([`super::forward`]).
//!
//! Rates and volumes count IP packets. A packet that one meter refuses is not charged to later meters, and only
//! packets that are forwarded are counted.

use pktio::Vector;
use telemetry::DropReason;

use super::{Event, Inside, Pipeline, Source, State, Verdicts};
use crate::session::{self, Endpoint, Entry, flag, kind};
use crate::state::{Cells, Gauged, NO_CELL, Writers};
use crate::tables::Tables;

/// The entries that the straight way knows: their packets leave through a tunnel or to a data network, at once and
/// unchanged. These bits of their flags are [`STRAIGHT`].
const STRAIGHT_MASK: u16 =
    (kind::MASK & !1) | flag::CLOSED | flag::CONTROL | flag::TRANSLATE | flag::ANSWERS | flag::FRAME;
const STRAIGHT: u16 = kind::TUNNEL;
const _: () = assert!(kind::TUNNEL & 1 == 0 && kind::NETWORK == kind::TUNNEL | 1);
/// No entry has these bits.
const NEVER: u16 = u16::MAX;

impl Pipeline {
    /// Applies to each packet its entry.
    pub(super) fn execute<'g>(
        &mut self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &mut Vector,
        verdicts: &Verdicts<'g>,
        now_ns: u64,
    ) {
        if self.source == Source::Router {
            return self.execute_answers(tables, batch, verdicts, now_ns);
        }
        // While packets are buffered, each packet may belong to a session that has some.
        let straight = if self.source == Source::Frame || self.held.is_empty() { STRAIGHT } else { NEVER };
        for (at, verdict) in verdicts.iter().enumerate().take(self.packets.len()) {
            let meta = &self.packets.metas[at];
            let (State::Live, Some(entry)) = (meta.state, verdict.entry) else {
                if meta.state == State::Dropped(DropReason::NoPdr) && meta.native {
                    self.not_matched(tables, batch, at);
                }
                continue;
            };
            let bytes = u64::from(meta.length);
            if entry.flags & STRAIGHT_MASK != straight
                && !self.prepare(tables, inside, batch, at, verdict.block, entry, now_ns)
            {
                continue;
            }
            let (cells, writers) = (verdict.cells(tables), self.writers_of(entry));
            if let Err(reason) = self.enforce(cells, verdict.block, entry, writers, now_ns, bytes) {
                self.packets.metas[at].drop(reason);
                continue;
            }
            let sent = match entry.kind() {
                kind::TUNNEL => self.send_into_tunnel(tables, batch, at, entry, now_ns),
                kind::NETWORK => self.send_to_network(tables, batch, at, entry, now_ns),
                kind::BRIDGE => self.bridge(tables, batch, at, verdict.block, entry, now_ns),
                _ => {
                    self.not_forwarded(tables, inside, batch, at, verdict.block, entry);
                    false
                }
            };
            if !sent {
                continue;
            }
            // Counts before any event of a reached limit is sent, because N4 then reads the counters at once.
            cells.count(entry.account, 1, bytes, writers);
            if entry.is(flag::MORE) {
                self.gauge_and_copy(tables, batch, at, cells, verdict.block, entry, bytes);
            }
        }
    }

    /// What comes before the meters for packets that do not go the straight way: buffering, translation, closed gates,
    /// the limit of packets to the CP function. Returns whether the packet goes on.
    #[cold]
    #[allow(clippy::too_many_arguments)] // the variables of its one caller
    fn prepare(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        batch: &mut Vector,
        at: usize,
        block: &[Endpoint],
        entry: &Entry,
        now_ns: u64,
    ) -> bool {
        let Some(endpoint) = block.first() else { return false };
        let again = self.source == Source::Frame;
        if !again && self.held.holds(endpoint.seid()) {
            // Queues behind the session's buffered packets, so that all are released in order.
            self.hold(batch, at, endpoint, entry);
            return false;
        }
        if entry.flags & (flag::TRANSLATE | flag::ANSWERS) != 0
            && !self.translate(tables, inside, batch, at, block, entry)
        {
            return false;
        }
        let refused = match entry.kind() {
            kind::BUFFER => {
                self.hold(batch, at, endpoint, entry);
                return false;
            }
            _ if entry.is(flag::CLOSED) => Some(DropReason::GateClosed),
            kind::TUNNEL if entry.is(flag::CONTROL) && !self.admits_control(now_ns) => {
                Some(DropReason::ControlOverflow)
            }
            _ => None,
        };
        if let Some(reason) = refused {
            self.packets.metas[at].drop(reason);
        }
        refused.is_none()
    }

    /// Whether workers of other inputs write the cells of an entry too.
    #[inline(always)]
    fn writers_of(&self, entry: &Entry) -> Writers {
        if entry.is(flag::SHARED) { Writers::Many } else { self.writers }
    }

    /// Applies rates and quotas; returns the reason if the packet must be dropped.
    #[inline(always)]
    fn enforce(
        &self,
        cells: Cells<'_>,
        block: &[Endpoint],
        entry: &Entry,
        writers: Writers,
        now_ns: u64,
        bytes: u64,
    ) -> Result<(), DropReason> {
        if entry.is(flag::MORE) {
            return enforce_more(cells, block, entry, writers, now_ns, bytes);
        }
        for cell in entry.meters {
            if cell != NO_CELL && !cells.conforms(cell, now_ns, bytes, writers) {
                return Err(DropReason::RateLimit);
            }
        }
        Ok(())
    }

    /// Updates gauges and makes copies for a packet that is forwarded.
    #[allow(clippy::too_many_arguments)] // the variables of its one caller
    fn gauge_and_copy(
        &mut self,
        tables: &Tables,
        batch: &Vector,
        at: usize,
        cells: Cells<'_>,
        block: &[Endpoint],
        entry: &Entry,
        bytes: u64,
    ) {
        let seid = block.first().map_or(0, Endpoint::seid);
        for further in further(block, entry) {
            match further.kind() {
                kind::GAUGE if cells.gauge(further.account, bytes) == Gauged::Reached => {
                    self.send_event(Event::Usage { seid, urr: further.teid });
                }
                kind::COPY_TUNNEL | kind::COPY_NETWORK => {
                    self.copy(tables, batch, at, further, bytes as usize)
                }
                _ => {}
            }
        }
    }
}

/// Applies the further entries of an entry.
fn enforce_more(
    cells: Cells<'_>,
    block: &[Endpoint],
    entry: &Entry,
    writers: Writers,
    now_ns: u64,
    bytes: u64,
) -> Result<(), DropReason> {
    let mut guaranteed = false;
    for further in further(block, entry) {
        match further.kind() {
            kind::GAUGE if further.is(flag::QUOTA) && cells.reached(further.account) => {
                return Err(DropReason::QuotaExhausted);
            }
            // A packet within the guarantee is charged to shared meters, but they do not refuse it.
            kind::GUARANTEE => guaranteed = cells.conforms(further.account, now_ns, bytes, writers),
            kind::METER if guaranteed => cells.charge(further.account, now_ns, bytes),
            kind::METER if !cells.conforms(further.account, now_ns, bytes, writers) => {
                return Err(DropReason::RateLimit);
            }
            _ => {}
        }
    }
    Ok(())
}

/// The further entries of an entry.
#[inline]
pub(super) fn further<'g>(block: &'g [Endpoint], entry: &Entry) -> impl Iterator<Item = &'g Entry> {
    let first = entry.is(flag::MORE).then(|| entry.more());
    let entries =
        first.into_iter().flat_map(move |first| (first..).map_while(|at| session::entry(block, at)));
    entries.take_while(|entry| entry.kind() != kind::END)
}
