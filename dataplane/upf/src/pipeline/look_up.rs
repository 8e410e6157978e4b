//! Stage 2: which session a packet belongs to, and which of its PDRs applies.
//!
//! Four steps run over the batch, each a burst of packets behind the previous step, so that the memory of one
//! burst is fetched while others are processed. Step 1 prefetches the slot. Step 2 reads where the endpoint is
//! and prefetches that. Step 3 reads the endpoint, finds which rows can match and prefetches these. Step 4
//! finds the entry in the rows and prefetches its state. Packets that matched no rule then get their drop
//! reason.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use classifier::Key;
use classifier::session::{Rows, StartedLookup};
use packet::flow::Flow;
use pktio::{Frame, Vector};
use telemetry::DropReason;

use super::{BATCH, Inside, Meta, Pipeline, State, Verdict};
use crate::session::{self, Endpoint, Policy, Route};
use crate::state::PER_LINE;
use crate::tables::{Instance, Tables};
use rcu::Place;

/// Packets of a burst. A core has about twenty outstanding requests to memory, and a packet needs up to four:
/// slot, endpoint, rows, state.
const BURST: usize = 8;

/// Places of a burst.
type Places<'g> = [Option<Place<'g, Endpoint>>; BURST];

/// A look-up that has begun.
#[derive(Clone, Copy)]
enum Lookup<'g> {
    /// In a few rows.
    Rows(&'g Rows, StartedLookup),
    /// The entry is already known; `None` for no entry.
    Only(Option<u32>),
    /// In another kind of policy.
    Other(&'g Policy),
}

/// The policy of the last look-up, which the next packet mostly has too.
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
    /// Finds the entry of each packet in `range`.
    pub(super) fn look_up<'g>(
        &mut self,
        tables: &'g Tables,
        inside: &'g Inside<'_>,
        batch: &Vector,
        range: Range<usize>,
        verdicts: &mut [Verdict<'g>; BATCH],
        now_ns: u64,
    ) {
        let (start, count) = (range.start, range.len().min(BATCH));
        let keys = tables.instance(self.input.instance);
        let verdicts = &mut verdicts[..count];
        let mut places: Places<'g> = [None; BURST];
        let mut looking = [Lookup::Only(None); BURST];
        // No policy has this number.
        let mut last = Last { number: u32::MAX, policy: None };
        let mut unmatched = false;
        let bursts = count.div_ceil(BURST);
        let of_burst = |number: usize| number * BURST..count.min((number + 1) * BURST);
        for step in 0..bursts + 3 {
            // The last step comes first: each step writes to the place that the next one has just read.
            if (3..bursts + 3).contains(&step) {
                let burst = of_burst(step - 3);
                unmatched |=
                    !self.finish_look_ups(tables, start + burst.start, &looking, &mut verdicts[burst]);
            }
            if (2..bursts + 2).contains(&step) {
                let burst = of_burst(step - 2);
                let at = start + burst.start;
                self.begin_look_ups(keys, inside, batch, at, &mut last, &mut looking, &mut verdicts[burst]);
            }
            if (1..bursts + 1).contains(&step) {
                load(inside, &places, &mut verdicts[of_burst(step - 1)]);
            }
            if step < bursts {
                self.prefetch_slots(keys, inside, batch, of_burst(step), start, &mut places);
            }
        }
        if unmatched {
            for (at, verdict) in range.zip(verdicts).filter(|(_, verdict)| verdict.entry.is_none()) {
                self.drop_without_entry(tables, inside, batch, at, verdict, now_ns);
            }
        }
    }

    /// Prefetches the slots of a burst.
    #[inline(never)]
    fn prefetch_slots<'g>(
        &self,
        keys: Instance<'g>,
        inside: &'g Inside<'_>,
        batch: &Vector,
        burst: Range<usize>,
        start: usize,
        places: &mut Places<'g>,
    ) {
        let burst = start + burst.start..start + burst.end;
        let packets = self.metas[burst.clone()].iter().zip(&self.keys[burst.clone()]);
        for (((meta, key), frame), place) in packets.zip(&batch.frames()[burst]).zip(places) {
            *place = place_of(keys, inside, meta, key, frame);
            if let Some(place) = place {
                place.prefetch();
            }
        }
    }

    /// Reads the endpoints of the burst that begins at `at`, and begins its look-ups.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // the variables of its one caller
    fn begin_look_ups<'g>(
        &self,
        keys: Instance<'g>,
        inside: &'g Inside<'_>,
        batch: &Vector,
        at: usize,
        last: &mut Last<'g>,
        looking: &mut [Lookup<'g>; BURST],
        verdicts: &mut [Verdict<'g>],
    ) {
        let (tables, packets) = (keys.tables(), self.metas[at..].iter().zip(&self.keys[at..]));
        for (i, (((meta, key), verdict), looking)) in packets.zip(verdicts).zip(looking).enumerate() {
            // The slot does not have the packet's session: a stale TEID or one assigned by the CP function; an
            // address under a prefix of another length.
            let elsewhere = match verdict.block.first() {
                Some(endpoint) => !meta.native && endpoint.teid() != meta.teid,
                None => true,
            };
            if elsewhere {
                verdict.block = self.find_elsewhere(keys, inside, batch, at + i).unwrap_or_default();
            }
            *looking = match verdict.block.first() {
                Some(endpoint) if meta.state == State::Live => match endpoint.route() {
                    Route::Policy(number) => match last.policy(tables, inside, number) {
                        Some(Policy::Rows(rows)) => {
                            Lookup::Rows(rows, rows.begin(endpoint.own_addresses(), key))
                        }
                        Some(policy) => Lookup::Other(policy),
                        None => Lookup::Only(None),
                    },
                    Route::Only(position) => Lookup::Only(Some(position)),
                    Route::None => Lookup::Only(None),
                },
                _ => Lookup::Only(None),
            };
        }
    }

    /// Finishes the look-ups of the burst that begins at `at` and prefetches the entries' state. Returns
    /// `false` when a packet has no entry.
    #[inline(never)]
    fn finish_look_ups<'g>(
        &self,
        tables: &'g Tables,
        at: usize,
        looking: &[Lookup<'g>; BURST],
        verdicts: &mut [Verdict<'g>],
    ) -> bool {
        let mut all = true;
        for ((key, verdict), looking) in self.keys[at..].iter().zip(verdicts).zip(looking) {
            let Some(endpoint) = verdict.block.first() else {
                all = false;
                continue;
            };
            let position = match *looking {
                Lookup::Rows(rows, begun) => rows.finish(key, begun),
                Lookup::Only(position) => position,
                Lookup::Other(policy) => policy.classify_one(endpoint.own_addresses(), key),
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

    /// The endpoint of a packet whose slot is empty or belongs to another session.
    #[cold]
    fn find_elsewhere<'g>(
        &self,
        keys: Instance<'g>,
        inside: &'g Inside<'_>,
        batch: &Vector,
        at: usize,
    ) -> Option<&'g [Endpoint]> {
        let meta = &self.metas[at];
        if !meta.native {
            return keys.assigned(inside, meta.teid);
        }
        let packet = batch.frames()[at].packet();
        let destination = match packet.first().filter(|_| meta.state == State::Live)? >> 4 {
            4 => IpAddr::from(*packet.get(16..20)?.first_chunk::<4>()?),
            _ => IpAddr::from(*packet.get(24..40)?.first_chunk::<16>()?),
        };
        keys.routed_to(inside, destination)
    }

    /// Gives a packet without entry its drop reason, unless it has one.
    #[cold]
    fn drop_without_entry(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        batch: &Vector,
        at: usize,
        verdict: &Verdict<'_>,
        now_ns: u64,
    ) {
        let Some(endpoint) = verdict.block.first() else {
            return self.drop_unknown(tables, inside, batch, at, now_ns);
        };
        // The packet is malformed as an IP packet, but may be a frame.
        if !self.may_be_frame(tables, inside, at, endpoint) && self.metas[at].state == State::Live {
            self.drop_unmatched(batch, at, endpoint);
        }
    }

    /// Drops a packet that belongs to no session in the network instance of its interface.
    #[cold]
    fn drop_unknown(&mut self, tables: &Tables, inside: &Inside<'_>, batch: &Vector, at: usize, now_ns: u64) {
        let (meta, frame, peer) = (&mut self.metas[at], &batch.frames()[at], batch.peer(at));
        if !meta.native {
            match meta.state {
                State::Live | State::Dropped(DropReason::IpMalformed | DropReason::NotIp) => {}
                _ => return,
            }
            meta.drop(DropReason::UnknownTeid);
            let teid = meta.teid;
            // Buffered packets have the UPF's own address as peer.
            if peer != self.input.local {
                self.unknown_teid(now_ns, teid, peer);
            }
        } else if meta.state == State::Live {
            meta.drop(match Flow::parse(frame.packet()) {
                Ok(flow) if is_link_local(&flow) => DropReason::LinkLocal,
                // From the wrong network instance.
                Ok(flow) if tables.has_ue(inside, flow.destination) => DropReason::DirectionMismatch,
                _ => DropReason::UnknownUe,
            });
        }
    }

    /// Drops a packet that matched no rule. As PDIs name the UE's address, a packet with a foreign source
    /// matches none of them; it gets a drop reason of its own.
    #[cold]
    fn drop_unmatched(&mut self, batch: &Vector, at: usize, endpoint: &Endpoint) {
        let owned = |key: &Key| endpoint.own_addresses().owns(key);
        let foreign = !self.metas[at].native && !owned(&self.keys[at]);
        let flow = Flow::parse(batch.frames()[at].packet());
        self.metas[at].drop(match flow {
            Ok(flow) if foreign && is_link_local(&flow) => DropReason::LinkLocal,
            _ if foreign => DropReason::SourceAddress,
            _ => DropReason::NoPdr,
        });
    }
}

/// The table place of a packet's endpoint.
#[inline(always)]
fn place_of<'g>(
    keys: Instance<'g>,
    inside: &'g Inside<'_>,
    meta: &Meta,
    key: &Key,
    frame: &Frame,
) -> Option<Place<'g, Endpoint>> {
    let (slots, index) = if !meta.native {
        match meta.state {
            // A malformed packet is dropped for that reason only if its tunnel exists.
            State::Live | State::Dropped(DropReason::IpMalformed | DropReason::NotIp) => {
                keys.place_of_teid(meta.teid)
            }
            _ => return None,
        }
    } else if meta.state != State::Live {
        return None;
    } else {
        let packet = frame.packet();
        match packet.first().map(|octet| octet >> 4) {
            Some(4) => keys.place_of_v4(inside, key.words()[1])?,
            _ => {
                let address: &[u8; 16] = packet.get(24..40)?.first_chunk()?;
                keys.place_of_v6(inside, Ipv6Addr::from(*address))?
            }
        }
    };
    slots.place(index)
}

/// Reads the places of a burst's endpoints and prefetches these.
#[inline(never)]
fn load<'g>(inside: &'g Inside<'_>, places: &Places<'g>, verdicts: &mut [Verdict<'g>]) {
    for (verdict, place) in verdicts.iter_mut().zip(places) {
        if let Some(block) = place.and_then(|place| place.load(inside)) {
            verdict.block = block;
        }
    }
}

/// Whether a packet must stay on its link: link multicast, link-local or unspecified addresses.
fn is_link_local(flow: &Flow) -> bool {
    let local = |address: IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
    };
    flow.destination.is_multicast() || local(flow.source) || local(flow.destination)
}
