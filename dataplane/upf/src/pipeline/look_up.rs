//! Stage 2: which session a packet belongs to, and which of its PDRs applies.
//!
//! Four steps roll over the batch, each a burst of packets behind the one before, so that the memory of a burst is on its
//! way while others are worked on: the slot is asked for; it says where the endpoint is and that is asked for; the endpoint
//! says which rows can match and these are asked for; the rows say which entry applies and its state is asked for. Packets that
//! matched no rule get their drop reason after that.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use classifier::Key;
use classifier::session::{Rows, StartedLookup};
use packet::flow::Flow;
use pktio::{Batch, Buffer};
use telemetry::DropReason;

use super::{BATCH, Inside, Meta, Pass, Pipeline, State, Verdict};
use crate::session::{self, Endpoint, Policy, Route};
use crate::state::PER_LINE;
use crate::tables::Tables;
use rcu::Place;

/// Packets of a burst. A core keeps some twenty requests for memory, and a packet has up to four: slot, endpoint, rows,
/// state.
const BURST: usize = 8;

/// Places of a burst.
type Places<'g> = [Option<Place<'g, Endpoint>>; BURST];

/// A look-up under way.
#[derive(Clone, Copy)]
enum Looking<'g> {
    /// In few rows.
    Rows(&'g Rows, StartedLookup),
    /// It is this entry, or none.
    Only(Option<u32>),
    /// In another way.
    Other(&'g Policy),
}

/// The policy that was asked for last: mostly the next packet's too.
#[derive(Clone, Copy)]
struct Last<'g> {
    number: u32,
    policy: Option<&'g Policy>,
}

impl<'g> Last<'g> {
    #[inline(always)]
    fn policy(&mut self, tables: &'g Tables, inside: &'g Inside<'_>, number: u32) -> Option<&'g Policy> {
        if self.number != number {
            *self = Last { number, policy: tables.policy(inside, number) };
            if let Some(Policy::Rows(rows)) = self.policy {
                rows.prefetch();
            }
        }
        self.policy
    }
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
        let verdicts = &mut verdicts[..count];
        let mut places: Places<'g> = [None; BURST];
        let mut looking = [Looking::Only(None); BURST];
        // No policy has this number.
        let mut last = Last { number: u32::MAX, policy: None };
        let mut unmatched = false;
        let bursts = count.div_ceil(BURST);
        let of_burst = |number: usize| number * BURST..count.min((number + 1) * BURST);
        for step in 0..bursts + 3 {
            // From the last stage to the first: each writes where the stage behind it has just read.
            if (3..bursts + 3).contains(&step) {
                let burst = of_burst(step - 3);
                unmatched |= !self.finish(tables, start + burst.start, &looking, &mut verdicts[burst]);
            }
            if (2..bursts + 2).contains(&step) {
                let burst = of_burst(step - 2);
                let at = start + burst.start;
                self.enter(tables, inside, batch, at, &mut last, &mut looking, &mut verdicts[burst]);
            }
            if (1..bursts + 1).contains(&step) {
                load(inside, &places, &mut verdicts[of_burst(step - 1)]);
            }
            if step < bursts {
                self.place(tables, inside, batch, of_burst(step), start, &mut places);
            }
        }
        if unmatched {
            for (at, verdict) in range.zip(verdicts).filter(|(_, verdict)| verdict.entry.is_none()) {
                self.without_entry(tables, inside, batch, at, verdict, now_ns);
            }
        }
    }

    /// Asks for the slots of a burst.
    #[inline(never)]
    fn place<'g>(
        &self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &Batch,
        burst: Range<usize>,
        start: usize,
        places: &mut Places<'g>,
    ) {
        let burst = start + burst.start..start + burst.end;
        let packets = self.metas[burst.clone()].iter().zip(&self.keys[burst.clone()]);
        for (((meta, key), buffer), place) in packets.zip(&batch.buffers()[burst]).zip(places) {
            *place = place_of(tables, inside, meta, key, buffer);
            if let Some(place) = place {
                place.prefetch();
            }
        }
    }

    /// Looks at the endpoints of a burst that begins `at`.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // what the one caller has at hand
    fn enter<'g>(
        &self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &Batch,
        at: usize,
        last: &mut Last<'g>,
        looking: &mut [Looking<'g>; BURST],
        verdicts: &mut [Verdict<'g>],
    ) {
        let packets = self.metas[at..].iter().zip(&self.keys[at..]);
        let from = self.origin();
        for (i, (((meta, key), verdict), looking)) in packets.zip(verdicts).zip(looking).enumerate() {
            // A stale TEID, or one that the CP function chose; an address of a longer or a shorter prefix.
            let elsewhere = match verdict.block.first() {
                Some(endpoint) => !meta.native && endpoint.teid() != meta.teid,
                None => true,
            };
            if elsewhere {
                verdict.block = self.elsewhere(tables, inside, batch, at + i).unwrap_or_default();
            }
            *looking = match verdict.block.first() {
                // Of another data network: see `unmatched`.
                Some(endpoint) if meta.native && !endpoint.admits(from) => Looking::Only(None),
                Some(endpoint) if meta.state == State::Live => match endpoint.route() {
                    Route::Policy(number) => match last.policy(tables, inside, number) {
                        Some(Policy::Rows(rows)) => {
                            Looking::Rows(rows, rows.begin(endpoint.own_addresses(), key))
                        }
                        Some(policy) => Looking::Other(policy),
                        None => Looking::Only(None),
                    },
                    Route::Only(position) => Looking::Only(Some(position)),
                    Route::None => Looking::Only(None),
                },
                _ => Looking::Only(None),
            };
        }
    }

    /// Finds the entries of a burst that begins `at` and asks for their state; `false` when one has none.
    #[inline(never)]
    fn finish<'g>(
        &self,
        tables: &'g Tables,
        at: usize,
        looking: &[Looking<'g>; BURST],
        verdicts: &mut [Verdict<'g>],
    ) -> bool {
        let mut all = true;
        for ((key, verdict), looking) in self.keys[at..].iter().zip(verdicts).zip(looking) {
            let Some(endpoint) = verdict.block.first() else {
                all = false;
                continue;
            };
            let position = match *looking {
                Looking::Rows(rows, begun) => rows.finish(key, begun),
                Looking::Only(position) => position,
                Looking::Other(policy) => policy.classify_one(endpoint.own_addresses(), key),
            };
            verdict.entry = position.and_then(|position| session::entry(verdict.block, position as usize));
            match verdict.entry {
                Some(entry) => {
                    tables.lines.prefetch(endpoint.state() + u32::from(entry.account) / PER_LINE as u32);
                }
                None => all = false,
            }
        }
        all
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

    /// Where packets without tunnel come from. Those that were buffered, or made here, came from where they may.
    fn origin(&self) -> u32 {
        session::came_from(self.network.filter(|_| self.pass == Pass::Port))
    }

    /// No rule matched. PDIs name the UE's address, so a foreign source matches none of them: say which it was.
    #[cold]
    fn unmatched(&mut self, batch: &Batch, at: usize, endpoint: &Endpoint) {
        let owned = |key: &Key| endpoint.own_addresses().owns(key);
        let foreign = !self.metas[at].native && !owned(&self.keys[at]);
        let flow = Flow::parse(batch.buffers()[at].packet());
        let elsewhere = self.metas[at].native && !endpoint.admits(self.origin());
        self.metas[at].drop(match flow {
            _ if elsewhere => DropReason::DirectionMismatch,
            Ok(flow) if foreign && is_link_local(&flow) => DropReason::LinkLocal,
            _ if foreign => DropReason::SourceAddress,
            _ => DropReason::NoPdr,
        });
    }
}

/// Where a packet's endpoint is to be found.
#[inline(always)]
fn place_of<'g>(
    tables: &'g Tables,
    inside: &'g Inside<'_>,
    meta: &Meta,
    key: &Key,
    buffer: &Buffer,
) -> Option<Place<'g, Endpoint>> {
    let (slots, index) = if !meta.native {
        match meta.state {
            // A packet whose content is bad is only dropped for that if the tunnel exists.
            State::Live | State::Dropped(DropReason::IpMalformed | DropReason::NotIp) => {
                tables.place_of_teid(meta.teid)
            }
            _ => return None,
        }
    } else if meta.state != State::Live {
        return None;
    } else {
        let packet = buffer.packet();
        match packet.first().map(|octet| octet >> 4) {
            Some(4) => tables.place_of_v4(inside, key.words()[1])?,
            _ => {
                let address: &[u8; 16] = packet.get(24..40)?.first_chunk()?;
                tables.place_of_v6(inside, Ipv6Addr::from(*address))?
            }
        }
    };
    slots.place(index)
}

/// Finds the endpoints of a burst, and asks for them.
#[inline(never)]
fn load<'g>(inside: &'g Inside<'_>, places: &Places<'g>, verdicts: &mut [Verdict<'g>]) {
    for (verdict, place) in verdicts.iter_mut().zip(places) {
        if let Some(block) = place.and_then(|place| place.load(inside)) {
            verdict.block = block;
        }
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
