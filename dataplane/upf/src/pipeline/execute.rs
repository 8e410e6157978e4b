//! Stage 3: gates, meters and counters of a packet's PDR (TS 29.244 §5.4, §5.2.2), then its FAR ([`super::forward`]).
//!
//! Rates and volumes count IP packets. A packet that one meter refuses is not charged to later meters, and only
//! packets that are forwarded are counted.

use pktio::Vector;
use telemetry::DropReason;

use super::context::{Snapshot, Source};
use super::packets::{Matched, State, Verdicts};
use super::rare::{copy, redirect, translate};
use super::{Event, Stages};
use crate::session::{Entry, flag, kind};
use crate::state::{Cells, Gauged, NO_CELL, Writers};

/// The entries that the straight way knows: their packets leave through a tunnel or to a data network, at once and
/// unchanged. These bits of their flags are [`STRAIGHT`].
const STRAIGHT_MASK: u16 =
    (kind::MASK & !1) | flag::CLOSED | flag::CONTROL | flag::TRANSLATE | flag::ANSWERS | flag::FRAME;
const STRAIGHT: u16 = kind::TUNNEL;
const _: () = assert!(kind::TUNNEL & 1 == 0 && kind::NETWORK == kind::TUNNEL | 1);
/// No entry has these bits.
const NEVER: u16 = u16::MAX;

impl Stages {
    /// Applies to each packet its entry. Returns whether all packets are sent.
    pub(super) fn execute<'g>(
        &mut self,
        snapshot: Snapshot<'g>,
        batch: &mut Vector,
        verdicts: &Verdicts<'g>,
    ) -> bool {
        if self.pass.source == Source::Router {
            self.execute_answers(snapshot, batch, verdicts);
            return false;
        }
        let mut all_sent = true;
        // While packets are buffered, each packet may belong to a session that has some.
        let released = self.pass.source == Source::Buffer;
        let straight = if released || self.buffer.is_empty() { STRAIGHT } else { NEVER };
        #[expect(
            clippy::needless_range_loop,
            reason = "one register for the position instead of three for an iterator"
        )]
        for at in 0..self.pass.packets.len() {
            let (meta, verdict) = (&self.pass.packets.metas[at], &verdicts[at]);
            let (State::Live, Some((entry, line)), Some(endpoint)) =
                (meta.state, verdict.matched, verdict.block.first())
            else {
                if meta.state == State::Dropped(DropReason::NoPdr) && meta.native {
                    translate::not_matched(&self.context, &mut self.pass, &mut self.exits, batch, at);
                }
                all_sent = false;
                continue;
            };
            let bytes = u64::from(meta.length);
            // Made where it is needed: the straight way keeps its parts in registers.
            let matched = || Matched { at, endpoint, block: verdict.block, entry };
            if entry.flags & STRAIGHT_MASK != straight && !self.prepare(snapshot, batch, matched()) {
                all_sent = false;
                continue;
            }
            let cells = Cells::at(&snapshot.tables.lines, endpoint.state(), Some(line));
            let writers = endpoint.writers();
            let allowed = if entry.is(flag::MORE) {
                enforce_more(cells, matched(), writers, snapshot.now_ns, bytes)
            } else {
                enforce(cells, entry.meters, writers, snapshot.now_ns, bytes)
            };
            if let Err(reason) = allowed {
                self.pass.drop(at, reason);
                all_sent = false;
                continue;
            }
            let sent = match entry.kind() {
                kind::TUNNEL => self.send_into_tunnel(snapshot, batch, at, entry),
                kind::NETWORK => self.send_to_network(snapshot, batch, at, entry),
                kind::BRIDGE => self.bridge(snapshot, batch, matched()),
                _ => {
                    self.not_forwarded(snapshot, batch, matched());
                    false
                }
            };
            if !sent {
                all_sent = false;
                continue;
            }
            // Counts before any event of a reached limit is sent, because N4 then reads the counters at once.
            cells.count(entry.account, 1, bytes, writers);
            if entry.is(flag::MORE) {
                self.gauge_and_copy(batch, cells, matched(), bytes);
            }
        }
        all_sent
    }

    /// What comes before the meters for packets that do not go the straight way: buffering, translation, closed gates,
    /// the limit of packets to the CP function. Returns whether the packet goes on.
    #[cold]
    fn prepare(&mut self, snapshot: Snapshot<'_>, batch: &mut Vector, matched: Matched<'_>) -> bool {
        let Matched { endpoint, entry, .. } = matched;
        let again = self.pass.source == Source::Buffer;
        // A packet queues behind the session's buffered packets, so that all are released in order.
        let queues = !again && self.buffer.holds(endpoint.seid());
        let translates = entry.flags & (flag::TRANSLATE | flag::ANSWERS) != 0;
        if !queues
            && translates
            && !translate::run(&self.context, &mut self.pass, &mut self.exits, snapshot, batch, matched)
        {
            return false;
        }
        let refused = match entry.kind() {
            _ if queues => None,
            kind::BUFFER => None,
            _ if entry.is(flag::CLOSED) => Some(DropReason::GateClosed),
            kind::TUNNEL if entry.is(flag::CONTROL) && !self.context.admits_control(snapshot.now_ns) => {
                Some(DropReason::ControlOverflow)
            }
            _ => return true,
        };
        match refused {
            Some(reason) => self.pass.drop(matched.at, reason),
            None => self.buffer.hold(&self.context, &mut self.pass, &mut self.exits.events, batch, matched),
        }
        false
    }

    /// Answers or drops a packet that is not forwarded.
    #[cold]
    fn not_forwarded(&mut self, snapshot: Snapshot<'_>, batch: &Vector, matched: Matched<'_>) {
        if matched.entry.kind() == kind::REDIRECT {
            return redirect::run(&self.context, &mut self.pass, &mut self.exits, snapshot, batch, matched);
        }
        let (at, seid) = (matched.at, matched.endpoint.seid());
        self.pass.drop(at, DropReason::FarDrop);
        let cells = Cells::new(&snapshot.tables.lines, matched.endpoint.state());
        for further in matched.further() {
            match further.kind() {
                kind::NOTICE if cells.gauge(further.account, 1) == Gauged::Reached => {
                    self.exits.events.send(Event::DownlinkData { seid, pdr: matched.entry.pdr });
                }
                kind::COPY_TUNNEL | kind::COPY_NETWORK => self.copy(batch, at, further),
                _ => {}
            }
        }
    }

    /// Updates gauges and makes copies for a packet that is forwarded.
    fn gauge_and_copy(&mut self, batch: &Vector, cells: Cells<'_>, matched: Matched<'_>, bytes: u64) {
        let (at, seid) = (matched.at, matched.endpoint.seid());
        for further in matched.further() {
            match further.kind() {
                kind::GAUGE if cells.gauge(further.account, bytes) == Gauged::Reached => {
                    self.exits.events.send(Event::Usage { seid, urr: further.teid });
                }
                kind::COPY_TUNNEL | kind::COPY_NETWORK => self.copy(batch, at, further),
                _ => {}
            }
        }
    }

    /// Sends a copy of a packet, or counts why it is not sent.
    fn copy(&mut self, batch: &Vector, at: usize, further: &Entry) {
        let result = copy::run(&self.context, &self.pass, &mut self.exits.extra, batch, at, further);
        if let Err(reason) = result {
            self.context.count_drop(reason);
        }
    }
}

/// Applies the rates of an entry without further entries; returns the reason if the packet must be dropped.
#[inline(always)]
fn enforce(
    cells: Cells<'_>,
    meters: [u8; 2],
    writers: Writers,
    now_ns: u64,
    bytes: u64,
) -> Result<(), DropReason> {
    for cell in meters {
        if cell != NO_CELL && !cells.conforms(cell, now_ns, bytes, writers) {
            return Err(DropReason::RateLimit);
        }
    }
    Ok(())
}

/// Applies rates and quotas of the further entries of an entry.
fn enforce_more(
    cells: Cells<'_>,
    matched: Matched<'_>,
    writers: Writers,
    now_ns: u64,
    bytes: u64,
) -> Result<(), DropReason> {
    let mut guaranteed = false;
    for further in matched.further() {
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
