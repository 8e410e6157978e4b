//! Stage 2: which session a packet belongs to, and which of its PDRs applies.
//!
//! Steps roll over the batch, some packets apart, so that the memory of one packet is on its way while others are worked
//! on: the slot is asked for; it says where the endpoint is and that is asked for; the endpoint says which rows can match
//! and these are asked for; the rows say which entry applies and its state is asked for. What became of packets without
//! entry is looked into behind all that.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use classifier::Key;
use classifier::session::Begun;
use packet::flow::Flow;
use pktio::Batch;
use telemetry::DropReason;

use super::{BATCH, Inside, Pipeline, State, Verdict};
use crate::session::{self, Endpoint, Policy, Route};
use crate::state::PER_LINE;
use crate::tables::{Found, Tables};

/// Packets between the steps. A core keeps some twenty requests for memory, and a packet has up to four: slot, endpoint,
/// rows, state.
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
        let (start, count) = (range.start, range.len().min(BATCH));
        let mut found: [Option<Found<'g>>; BATCH] = [None; BATCH];
        let mut looking = [Looking::Not; BATCH];
        let mut unmatched = false;
        for step in 0..count + 3 * AHEAD {
            if step < count {
                found[step] = self.place(tables, inside, batch, start + step);
                if let Some((slots, index)) = found[step] {
                    slots.prefetch(index);
                }
            }
            if let Some(at) = step.checked_sub(AHEAD)
                && at < count
                && let Some((slots, index)) = found[at]
                && let Some(block) = slots.load(inside, index)
            {
                verdicts[at].block = block;
            }
            if let Some(at) = step.checked_sub(2 * AHEAD)
                && at < count
            {
                looking[at] = self.enter(tables, inside, batch, start + at, &mut verdicts[at]);
            }
            if let Some(at) = step.checked_sub(3 * AHEAD)
                && at < count
            {
                unmatched |= !self.finish(tables, start + at, looking[at], &mut verdicts[at]);
            }
        }
        if unmatched {
            for (at, verdict) in range.zip(verdicts).filter(|(_, verdict)| verdict.entry.is_none()) {
                self.without_entry(tables, inside, batch, at, verdict, now_ns);
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
        batch: &Batch,
        at: usize,
        verdict: &mut Verdict<'g>,
    ) -> Looking<'g> {
        let meta = &self.metas[at];
        // A stale TEID, or one that the CP function chose; an address of a longer or a shorter prefix.
        let elsewhere = match verdict.block.first() {
            Some(endpoint) => !meta.native && endpoint.teid() != meta.teid,
            None => true,
        };
        if elsewhere {
            verdict.block = self.elsewhere(tables, inside, batch, at).unwrap_or_default();
        }
        let Some(endpoint) = verdict.block.first().filter(|_| meta.state == State::Live) else {
            return Looking::Not;
        };
        match endpoint.route() {
            Route::Only(position) => Looking::Only(position),
            Route::None => Looking::Nothing,
            Route::Policy(number) => match tables.policy(inside, number) {
                Some(policy @ Policy::Rows(rows)) => {
                    Looking::Begun(policy, rows.begin(endpoint.entrance(), &self.keys[at]))
                }
                Some(policy) => Looking::Begun(policy, Begun::default()),
                None => Looking::Nothing,
            },
        }
    }

    /// The endpoint of a packet whose slot is empty or another's.
    #[cold]
    fn elsewhere<'g>(
        &self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &Batch,
        at: usize,
    ) -> Option<&'g [Endpoint]> {
        let meta = &self.metas[at];
        if !meta.native {
            return tables.assigned(inside, meta.teid);
        }
        let packet = batch.buffers()[at].packet();
        let destination = match packet.first().filter(|_| meta.state == State::Live)? >> 4 {
            4 => IpAddr::from(*packet.get(16..20)?.first_chunk::<4>()?),
            _ => IpAddr::from(*packet.get(24..40)?.first_chunk::<16>()?),
        };
        tables.routed_to(inside, destination)
    }

    /// Finds the entry and asks for its state; `false` when there is none.
    #[inline(always)]
    fn finish<'g>(
        &self,
        tables: &'g Tables,
        at: usize,
        looking: Looking<'g>,
        verdict: &mut Verdict<'g>,
    ) -> bool {
        let Some(endpoint) = verdict.block.first() else { return false };
        let key = &self.keys[at];
        let position = match looking {
            Looking::Begun(Policy::Rows(rows), begun) => rows.finish(key, begun),
            Looking::Begun(policy, _) => policy.classify_one(endpoint.entrance(), key),
            Looking::Only(position) => Some(position),
            Looking::Not | Looking::Nothing => None,
        };
        verdict.entry = position.and_then(|position| session::entry(verdict.block, position as usize));
        let Some(entry) = verdict.entry else { return false };
        tables.lines.prefetch(endpoint.state() + u32::from(entry.account) / PER_LINE as u32);
        true
    }

    /// Says why a packet has no entry, unless that is known already.
    #[cold]
    fn without_entry(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        batch: &Batch,
        at: usize,
        verdict: &Verdict<'_>,
        now_ns: u64,
    ) {
        let Some(endpoint) = verdict.block.first() else { return self.unknown(batch, at, now_ns) };
        // Bad as a packet, which a frame may be.
        if !self.may_be_frame(tables, inside, at, endpoint) && self.metas[at].state == State::Live {
            self.unmatched(batch, at, endpoint);
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
