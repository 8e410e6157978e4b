//! Stage 3: gates, meters and counters of a packet's PDR (TS 29.244 §5.4, §5.2.2), then its FAR ([`super::forward`]).
//!
//! Rates and volumes count IP packets. A packet that one meter refuses is not charged to later meters, and only
//! packets that are forwarded are counted.

use std::ops::Range;

use pktio::Vector;
use telemetry::DropReason;

use super::{BATCH, Event, Inside, Pipeline, Source, State, Verdict};
use crate::session::{self, Endpoint, Entry, flag, kind};
use crate::state::{Cells, Gauged, NO_CELL, Writers};
use crate::tables::Tables;

/// Consecutive packets that count in the same account: a burst of one session is counted once.
#[derive(Clone, Copy)]
struct Run {
    state: u32,
    account: u8,
    writers: Writers,
    packets: u64,
    bytes: u64,
}

impl Run {
    const NONE: Run = Run { state: 0, account: NO_CELL, writers: Writers::One, packets: 0, bytes: 0 };
}

impl Pipeline {
    /// Applies to each packet in `range` its entry.
    pub(super) fn execute<'g>(
        &mut self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &mut Vector,
        range: Range<usize>,
        verdicts: &[Verdict<'g>; BATCH],
        now_ns: u64,
    ) {
        if self.source == Source::Router {
            return self.execute_answers(tables, inside, batch, range, verdicts, now_ns);
        }
        let mut run = Run::NONE;
        let again = self.source == Source::Frame;
        for (at, verdict) in range.zip(verdicts) {
            let meta = &self.metas[at];
            let (State::Live, Some(entry), Some(endpoint)) =
                (meta.state, verdict.entry, verdict.block.first())
            else {
                if meta.state == State::Dropped(DropReason::NoPdr) && meta.native {
                    self.not_matched(tables, batch, at);
                }
                continue;
            };
            let bytes = u64::from(meta.length);
            if !again && !self.held.is_empty() && self.held.holds(endpoint.seid()) {
                // Queues behind the session's buffered packets, so that all are released in order.
                self.hold(batch, at, endpoint, entry);
                continue;
            }
            if entry.flags & (flag::TRANSLATE | flag::ANSWERS) != 0
                && !self.translate(tables, inside, batch, at, verdict.block, entry)
            {
                continue;
            }
            let cells = Cells::new(&tables.lines, endpoint.state());
            if entry.kind() != kind::BUFFER
                && let Err(reason) = self.enforce(cells, verdict.block, entry, now_ns, bytes)
            {
                self.metas[at].drop(reason);
                continue;
            }
            if !self.forward(tables, inside, batch, at, verdict.block, entry, now_ns) {
                continue;
            }
            if run.account == entry.account && run.state == endpoint.state() {
                (run.packets, run.bytes) = (run.packets + 1, run.bytes + bytes);
            } else {
                self.count(tables, run);
                let writers = self.writers_of(entry);
                run = Run { state: endpoint.state(), account: entry.account, writers, packets: 1, bytes };
            }
            if entry.is(flag::MORE) {
                // Counts before any event of a reached limit is sent, because N4 then reads the counters at
                // once.
                self.count(tables, std::mem::replace(&mut run, Run::NONE));
                self.gauge_and_copy(tables, batch, at, cells, verdict.block, entry, bytes);
            }
        }
        self.count(tables, run);
    }

    #[inline(always)]
    fn count(&self, tables: &Tables, run: Run) {
        if run.packets > 0 {
            Cells::new(&tables.lines, run.state).count(run.account, run.packets, run.bytes, run.writers);
        }
    }

    /// Whether workers of other inputs write the cells of an entry too.
    #[inline(always)]
    fn writers_of(&self, entry: &Entry) -> Writers {
        if entry.is(flag::SHARED) { Writers::Many } else { self.writers }
    }

    /// Applies gates and rates; returns the reason if the packet must be dropped.
    #[inline(always)]
    fn enforce(
        &self,
        cells: Cells<'_>,
        block: &[Endpoint],
        entry: &Entry,
        now_ns: u64,
        bytes: u64,
    ) -> Result<(), DropReason> {
        if entry.flags & (flag::CLOSED | flag::MORE) != 0 {
            return self.enforce_more(cells, block, entry, now_ns, bytes);
        }
        let writers = self.writers_of(entry);
        for cell in entry.meters {
            if cell != NO_CELL && !cells.conforms(cell, now_ns, bytes, writers) {
                return Err(DropReason::RateLimit);
            }
        }
        Ok(())
    }

    fn enforce_more(
        &self,
        cells: Cells<'_>,
        block: &[Endpoint],
        entry: &Entry,
        now_ns: u64,
        bytes: u64,
    ) -> Result<(), DropReason> {
        if entry.is(flag::CLOSED) {
            return Err(DropReason::GateClosed);
        }
        let writers = self.writers_of(entry);
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

/// The further entries of an entry.
#[inline]
pub(super) fn further<'g>(block: &'g [Endpoint], entry: &Entry) -> impl Iterator<Item = &'g Entry> {
    let first = entry.is(flag::MORE).then(|| entry.more());
    let entries =
        first.into_iter().flat_map(move |first| (first..).map_while(|at| session::entry(block, at)));
    entries.take_while(|entry| entry.kind() != kind::END)
}
