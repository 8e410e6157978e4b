//! Stage 2: which session a packet belongs to, and which of its PDRs applies.
//!
//! Three steps roll over the batch, some packets apart, so that the memory of one packet is on its way while others
//! are worked on: the slot says where the endpoint is and its lines are asked for; the entrance says which rows can
//! match and these are asked for; the rows say which entry applies and its state is asked for.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use classifier::Key;
use classifier::session::Begun;
use packet::flow::Flow;
use pktio::Batch;
use telemetry::DropReason;

use super::{BATCH, Inside, Pipeline, State, Verdict};
use crate::session::{self, Endpoint, Policy, Route};
use crate::tables::{Found, Tables};

/// Packets between the steps. A core keeps some twenty requests for memory, an endpoint is two and its state one more;
/// with 8 a packet of a million sessions took a quarter longer.
const AHEAD: usize = 4;

/// A look-up under way.
#[derive(Clone, Copy)]
enum Looking<'g> {
    /// Not live.
    Not,
    Only(u32),
    Begun(&'g Policy, Begun),
    /// No rules.
    Nothing,
}

impl Pipeline {
    /// Finds the entries of the packets in `range`.
    pub(super) fn look_up<'g>(
        &mut self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &Batch,
        range: Range<usize>,
        verdicts: &mut [Verdict<'g>; BATCH],
        now_ns: u64,
    ) {
        let count = range.len();
        let mut found: [Option<Found<'g>>; BATCH] = [None; BATCH];
        for (at, place) in range.clone().zip(&mut found) {
            *place = self.place(tables, inside, batch, at);
            if let Some((slots, index)) = place {
                slots.prefetch(*index);
            }
        }
        let mut looking = [Looking::Not; BATCH];
        for step in 0..count + 2 * AHEAD {
            if step < count
                && let Some((slots, index)) = found[step]
                && let Some(block) = slots.load(inside, index)
            {
                verdicts[step].block = block;
            }
            if let Some(at) = step.checked_sub(AHEAD)
                && at < count
            {
                looking[at] = self.enter(tables, inside, range.start + at, &mut verdicts[at]);
            }
            if let Some(at) = step.checked_sub(2 * AHEAD)
                && at < count
            {
                self.finish(tables, inside, batch, range.start + at, looking[at], &mut verdicts[at], now_ns);
            }
        }
    }

    /// Where a packet's endpoint is to be found.
    #[inline(always)]
    fn place<'g>(
        &self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &Batch,
        at: usize,
    ) -> Option<Found<'g>> {
        let meta = &self.metas[at];
        if !meta.native {
            return match meta.state {
                // A packet whose content is bad is only dropped for that if the tunnel exists.
                State::Live | State::Dropped(DropReason::IpMalformed | DropReason::NotIp) => {
                    Some(tables.place_of_teid(meta.teid))
                }
                _ => None,
            };
        }
        if meta.state != State::Live {
            return None;
        }
        let packet = batch.buffers()[at].packet();
        match packet.first().map(|octet| octet >> 4) {
            Some(4) => tables.place_of_v4(inside, self.keys[at].words()[1]),
            _ => {
                let address: &[u8; 16] = packet.get(24..40)?.first_chunk()?;
                tables.place_of_v6(inside, Ipv6Addr::from(*address))
            }
        }
    }

    /// Looks at the endpoint.
    #[inline(always)]
    fn enter<'g>(
        &self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        at: usize,
        verdict: &mut Verdict<'g>,
    ) -> Looking<'g> {
        let meta = &self.metas[at];
        if !meta.native && verdict.block.first().is_none_or(|endpoint| endpoint.teid() != meta.teid) {
            // A stale TEID, or one that the CP function chose.
            verdict.block = tables.assigned(inside, meta.teid).unwrap_or_default();
        }
        let Some(endpoint) = verdict.block.first().filter(|_| meta.state == State::Live) else {
            return Looking::Not;
        };
        match endpoint.route() {
            Route::Only(position) => Looking::Only(position),
            Route::None => Looking::Nothing,
            Route::Policy(number) => match tables.policy(inside, number) {
                Some(policy @ Policy::Rows(rows)) => {
                    Looking::Begun(policy, endpoint.entrance().begin(rows, &self.keys[at]))
                }
                Some(policy) => Looking::Begun(policy, Begun::default()),
                None => Looking::Nothing,
            },
        }
    }

    /// Finds the entry and asks for its state, or says why there is none.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // what the one caller has at hand
    fn finish<'g>(
        &mut self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &Batch,
        at: usize,
        looking: Looking<'g>,
        verdict: &mut Verdict<'g>,
        now_ns: u64,
    ) {
        let Some(endpoint) = verdict.block.first() else {
            return self.unknown(batch, at, now_ns);
        };
        let key = &self.keys[at];
        let position = match looking {
            // Bad as a packet, which a frame may be.
            Looking::Not => {
                self.may_be_frame(tables, inside, at, endpoint);
                return;
            }
            Looking::Only(position) => Some(position),
            Looking::Begun(Policy::Rows(rows), begun) => endpoint.entrance().finish(rows, key, begun),
            Looking::Begun(policy, _) => policy.classify_one(endpoint.entrance(), key),
            Looking::Nothing => None,
        };
        verdict.entry = position.and_then(|position| session::entry(verdict.block, position as usize));
        match verdict.entry {
            Some(entry) => tables.lines.prefetch(endpoint.state() + u32::from(entry.account) / 4),
            None if self.may_be_frame(tables, inside, at, endpoint) => {}
            None => self.unmatched(batch, at, endpoint),
        }
    }

    /// No session has the packet.
    #[cold]
    fn unknown(&mut self, batch: &Batch, at: usize, now_ns: u64) {
        let (meta, buffer) = (&mut self.metas[at], &batch.buffers()[at]);
        if !meta.native {
            match meta.state {
                State::Live | State::Dropped(DropReason::IpMalformed | DropReason::NotIp) => {}
                _ => return,
            }
            meta.drop(DropReason::UnknownTeid);
            let teid = meta.teid;
            // Our own address marks what was buffered.
            if buffer.peer != self.local {
                self.unknown_teid(now_ns, teid, buffer.peer);
            }
        } else if meta.state == State::Live {
            meta.drop(match Flow::parse(buffer.packet()) {
                Ok(flow) if is_link_local(&flow) => DropReason::LinkLocal,
                _ => DropReason::UnknownUe,
            });
        }
    }

    /// No rule matched. PDIs name the UE's address, so a foreign source matches none of them: say which it was.
    #[cold]
    fn unmatched(&mut self, batch: &Batch, at: usize, endpoint: &Endpoint) {
        let owned = |key: &Key| endpoint.entrance().owns(key);
        let foreign = !self.metas[at].native && !owned(&self.keys[at]);
        let flow = Flow::parse(batch.buffers()[at].packet());
        self.metas[at].drop(match flow {
            Ok(flow) if foreign && is_link_local(&flow) => DropReason::LinkLocal,
            _ if foreign => DropReason::SourceAddress,
            _ => DropReason::NoPdr,
        });
    }
}

/// Whether a packet concerns its link only: multicast, or link-local or unspecified addresses.
fn is_link_local(flow: &Flow) -> bool {
    let local = |address: IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
    };
    flow.destination.is_multicast() || local(flow.source) || local(flow.destination)
}
