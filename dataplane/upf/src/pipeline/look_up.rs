//! Stage 2: which session a packet belongs to, and which of its PDRs applies.
//!
//! Four steps run over the batch, each a burst of packets behind the previous step, so that the memory of one
//! burst is fetched while others are processed. Step 1 prefetches the slot. Step 2 reads where the endpoint is
//! and prefetches that. Step 3 reads the endpoint, finds the entry and prefetches its state. Where the rules are not in
//! the caches yet, or are so many that some have to be chosen first, step 3 only prefetches them, and step 4 finds the
//! entry. Packets that matched no rule then get their drop reason.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

use classifier::Key;
use classifier::session::{Rows, StartedLookup};
use packet::flow::Flow;
use pktio::Vector;
use telemetry::DropReason;

use super::context::Snapshot;
use super::packets::{Meta, State, Verdict, Verdicts};
use super::rare::signalling;
use super::{BATCH, Stages};
use crate::session::{self, Endpoint, Policy, Route};
use crate::state::PER_LINE;
use crate::tables::{Instance, Tables};
use rcu::{Guard as Inside, Place};

/// Packets of a burst. A core has about twenty outstanding requests to memory, and a packet needs up to four:
/// slot, endpoint, rows, state.
const BURST: usize = 8;

/// What the steps have found out so far.
#[derive(Default)]
struct Found {
    /// Look-ups of the last burst wait for their rules.
    begun: bool,
    /// A packet has no entry.
    unmatched: bool,
}

/// Places of a burst.
type Places<'g> = [Option<Place<'g, Endpoint>>; BURST];

/// A look-up that has begun.
#[derive(Clone, Copy)]
enum Lookup<'g> {
    /// It has ended: the verdict is complete, or there is none.
    Done,
    /// In rows, which are being fetched.
    Rows(&'g Rows, StartedLookup),
    /// In another kind of policy.
    Other(&'g Policy),
}

/// The numbers of the policies that the last packets had, by the last bits: their rules are in the caches. Nothing but
/// the time of a look-up depends on them.
pub(super) struct Recent(Box<[u32; RECENT]>);

/// Their rules take 48 kB of the caches.
const RECENT: usize = 256;

impl Recent {
    /// No policy has this number.
    pub fn new() -> Recent {
        Recent(Box::new([u32::MAX; RECENT]))
    }

    /// Notes a policy; returns whether it was noted before.
    #[inline(always)]
    fn note(&mut self, number: u32) -> bool {
        std::mem::replace(&mut self.0[number as usize % RECENT], number) == number
    }
}

impl Stages {
    /// Finds the entry of each packet.
    pub(super) fn look_up<'g>(
        &mut self,
        snapshot: Snapshot<'g>,
        batch: &Vector,
        verdicts: &mut Verdicts<'g>,
    ) {
        let Snapshot { tables, inside, .. } = snapshot;
        let count = self.pass.packets.len();
        let keys = tables.instance(self.pass.input.instance);
        let mut places: Places<'g> = [None; BURST];
        let mut looking = [Lookup::Done; BURST];
        let mut found = Found::default();
        let bursts = count.div_ceil(BURST);
        let of_burst = |number: usize| number * BURST..count.min((number + 1) * BURST);
        for step in 0..bursts + 3 {
            // The last step comes first: each step writes to the place that the next one has just read.
            if found.begun {
                found.begun = false;
                self.finish_look_ups(tables, of_burst(step - 3), &mut looking, verdicts, &mut found);
            }
            if (2..bursts + 2).contains(&step) {
                let burst = of_burst(step - 2);
                self.begin_look_ups(keys, inside, batch, burst, &mut looking, verdicts, &mut found);
            }
            if (1..bursts + 1).contains(&step) {
                load(inside, &places, &mut verdicts[of_burst(step - 1)]);
            }
            if step < bursts {
                self.prefetch_slots(keys, inside, batch, of_burst(step), &mut places);
            }
        }
        if found.unmatched {
            let verdicts = verdicts[..count].iter().enumerate();
            for (at, verdict) in verdicts.filter(|(_, verdict)| verdict.entry.is_none()) {
                self.drop_without_entry(snapshot, batch, at, verdict);
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
        places: &mut Places<'g>,
    ) {
        for (at, place) in burst.zip(places) {
            let at = at % BATCH;
            *place =
                place_of(keys, inside, &self.pass.packets.metas[at], &self.pass.packets.keys[at], batch, at);
            if let Some(place) = place {
                place.prefetch();
            }
        }
    }

    /// Reads the endpoints of a burst, and begins its look-ups.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)] // the variables of its one caller
    fn begin_look_ups<'g>(
        &mut self,
        keys: Instance<'g>,
        inside: &'g Inside<'_>,
        batch: &Vector,
        burst: Range<usize>,
        looking: &mut [Lookup<'g>; BURST],
        verdicts: &mut Verdicts<'g>,
        found: &mut Found,
    ) {
        let tables = keys.tables();
        for (at, looking) in burst.zip(looking) {
            let at = at % BATCH;
            let (meta, key, verdict) =
                (&self.pass.packets.metas[at], &self.pass.packets.keys[at], &mut verdicts[at]);
            // The slot does not have the packet's session: a stale TEID or one assigned by the CP function; an
            // address under a prefix of another length.
            let elsewhere = match verdict.block.first() {
                Some(endpoint) => !meta.native && endpoint.teid() != meta.teid,
                None => true,
            };
            if elsewhere {
                verdict.block = self.find_elsewhere(keys, inside, batch, at).unwrap_or_default();
            }
            let Some(endpoint) = verdict.block.first().filter(|_| meta.state == State::Live) else {
                found.unmatched = true;
                continue;
            };
            let position = match endpoint.route() {
                Route::Policy(number) => match tables.policy(inside, number) {
                    Some(Policy::Rows(rows)) => {
                        let own = endpoint.own_addresses();
                        let is_near = self.recent.note(number);
                        if let Some(position) = rows.few(own, key, is_near) {
                            position
                        } else {
                            *looking = Lookup::Rows(rows, rows.begin(own, key));
                            found.begun = true;
                            continue;
                        }
                    }
                    Some(policy) => {
                        *looking = Lookup::Other(policy);
                        found.begun = true;
                        continue;
                    }
                    None => None,
                },
                Route::Only(position) => Some(position),
                Route::None => None,
            };
            found.unmatched |= !verdict.complete(tables, position);
        }
    }

    /// Finishes the look-ups of a burst that have not ended yet.
    #[inline(never)]
    fn finish_look_ups<'g>(
        &self,
        tables: &'g Tables,
        burst: Range<usize>,
        looking: &mut [Lookup<'g>; BURST],
        verdicts: &mut Verdicts<'g>,
        found: &mut Found,
    ) {
        for (at, looking) in burst.zip(looking) {
            let at = at % BATCH;
            let (key, verdict) = (&self.pass.packets.keys[at], &mut verdicts[at]);
            let position = match std::mem::replace(looking, Lookup::Done) {
                Lookup::Done => continue,
                Lookup::Rows(rows, begun) => rows.finish(key, begun),
                Lookup::Other(policy) => {
                    let own = verdict.block.first().map(Endpoint::own_addresses);
                    own.and_then(|own| policy.classify_one(own, key))
                }
            };
            found.unmatched |= !verdict.complete(tables, position);
        }
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
        let meta = &self.pass.packets.metas[at];
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
        snapshot: Snapshot<'_>,
        batch: &Vector,
        at: usize,
        verdict: &Verdict<'_>,
    ) {
        let Some(endpoint) = verdict.block.first() else {
            return self.drop_unknown(snapshot, batch, at);
        };
        // The packet is malformed as an IP packet, but may be a frame.
        if !self.may_be_frame(snapshot, at, endpoint) && self.pass.packets.metas[at].state == State::Live {
            self.drop_unmatched(batch, at, endpoint);
        }
    }

    /// Drops a packet that belongs to no session in the network instance of its interface.
    #[cold]
    fn drop_unknown(&mut self, snapshot: Snapshot<'_>, batch: &Vector, at: usize) {
        let Snapshot { tables, inside, now_ns } = snapshot;
        let (meta, frame, peer) = (&mut self.pass.packets.metas[at], &batch.frames()[at], batch.peer(at));
        if !meta.native {
            match meta.state {
                State::Live | State::Dropped(DropReason::IpMalformed | DropReason::NotIp) => {}
                _ => return,
            }
            meta.drop(DropReason::UnknownTeid);
            let teid = meta.teid;
            // Buffered packets have the UPF's own address as peer.
            if peer != self.pass.input.local {
                let extra = &mut self.exits.extra;
                signalling::unknown_tunnel(&self.context, &self.pass, extra, teid, peer, now_ns);
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
        let foreign = !self.pass.packets.metas[at].native && !owned(&self.pass.packets.keys[at]);
        let flow = Flow::parse(batch.frames()[at].packet());
        self.pass.packets.metas[at].drop(match flow {
            Ok(flow) if foreign && is_link_local(&flow) => DropReason::LinkLocal,
            _ if foreign => DropReason::SourceAddress,
            _ => DropReason::NoPdr,
        });
    }
}

impl<'g> Verdict<'g> {
    /// Takes the entry at a position of the block, and prefetches its state; `false` without entry.
    #[inline(always)]
    fn complete(&mut self, tables: &'g Tables, position: Option<u32>) -> bool {
        let (Some(position), Some(endpoint)) = (position, self.block.first()) else { return false };
        let Some(entry) = session::entry(self.block, position as usize) else { return false };
        self.entry = Some(entry);
        self.line = tables.lines.prefetched(endpoint.state());
        if usize::from(entry.account) >= PER_LINE {
            tables.lines.prefetch(endpoint.state() + u32::from(entry.account) / PER_LINE as u32);
        }
        true
    }
}

/// The table place of a packet's endpoint.
#[inline(always)]
fn place_of<'g>(
    keys: Instance<'g>,
    inside: &'g Inside<'_>,
    meta: &Meta,
    key: &Key,
    batch: &Vector,
    at: usize,
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
        match key.destination_v4() {
            Some(destination) => keys.place_of_v4(inside, destination)?,
            None => {
                let address: &[u8; 16] = batch.frames().get(at)?.packet().get(24..40)?.first_chunk()?;
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
