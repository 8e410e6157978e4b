//! Stage 2: which session a packet belongs to, and which of its PDRs applies.
//!
//! Parsing has prefetched the slots. Three steps run over the batch, each a burst of packets behind the previous step, so
//! that the memory of one burst is fetched while others are processed. Step 1 reads where the endpoint is and prefetches
//! that. Step 2 reads the endpoint, finds the entry and prefetches its state. Where the rules are not in the caches yet, or
//! are so many that some have to be chosen first, step 2 only prefetches them, and step 3 finds the entry. Packets that
//! matched no rule then get their drop reason.

use std::net::IpAddr;
use std::ops::Range;

use classifier::Key;
use classifier::session::{OwnAddresses, Rows, StartedLookup};
use packet::flow::Flow;
use pktio::Vector;
use telemetry::DropReason;

use super::context::Snapshot;
use super::packets::{State, Verdict, Verdicts};
use super::rare::signalling;
use super::{BATCH, Stages};
use crate::session::{self, Endpoint, Policy, Route};
use crate::state::PER_LINE;
use crate::tables::{Instance, SlotRef, Tables};
use rcu::{Guard as Inside, Place};

/// Packets of a burst. A core has about twenty outstanding requests to memory, and a packet needs up to three:
/// endpoint, rows, state.
const BURST: usize = 8;

/// What a step has found out.
#[derive(Default)]
struct Found {
    /// Look-ups of its burst wait for their rules.
    begun: bool,
    /// A packet has no entry.
    unmatched: bool,
}

/// Where the endpoint of a packet is.
#[derive(Clone, Copy, Default)]
pub(super) struct PlaceOf<'g>(Option<Place<'g, Endpoint>>);

/// The places of the packets of a batch.
pub(super) type Places<'g> = [PlaceOf<'g>; BATCH];

impl<'g> PlaceOf<'g> {
    /// No packet of a batch has a place.
    pub const NONE: Places<'static> = [PlaceOf(None); BATCH];

    /// Notes a slot, and prefetches it.
    #[inline(always)]
    pub fn set(&mut self, slot: Option<SlotRef<'g>>) {
        self.0 = slot.and_then(|(slots, index)| slots.place(index)).inspect(|place| place.prefetch());
    }
}

/// A look-up that has begun.
#[derive(Clone, Copy)]
enum Lookup<'g> {
    /// It has ended: the verdict is complete, or there is none.
    Done,
    /// In rows, which are being fetched.
    Rows(&'g Rows, StartedLookup),
    /// In another kind of policy.
    Other(&'g Policy),
    /// There are no rules.
    Nowhere,
}

impl<'g> Lookup<'g> {
    /// Begins in a policy whose rules have to be fetched.
    #[inline(never)]
    fn begin(policy: Option<&'g Policy>, own: &OwnAddresses, key: &Key) -> Lookup<'g> {
        match policy {
            Some(Policy::Rows(rows)) => Lookup::Rows(rows, rows.begin(own, key)),
            Some(policy) => Lookup::Other(policy),
            None => Lookup::Nowhere,
        }
    }
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
        places: &Places<'g>,
        verdicts: &mut Verdicts<'g>,
    ) {
        let Snapshot { tables, inside, .. } = snapshot;
        let count = self.pass.packets.len();
        let keys = tables.instance(self.pass.input.instance);
        let mut looking = [Lookup::Done; BURST];
        let (mut begun, mut unmatched) = (false, false);
        let bursts = count.div_ceil(BURST);
        let of_burst = |number: usize| number * BURST..count.min((number + 1) * BURST);
        for step in 0..bursts + 2 {
            // The last step comes first: each step writes to the place that the next one has just read.
            if std::mem::take(&mut begun) {
                unmatched |= self.finish_look_ups(tables, of_burst(step - 2), &mut looking, verdicts);
            }
            if (1..bursts + 1).contains(&step) {
                let burst = of_burst(step - 1);
                let found = self.begin_look_ups(keys, inside, batch, burst, &mut looking, verdicts);
                begun = found.begun;
                unmatched |= found.unmatched;
            }
            if step < bursts {
                load(inside, &places[of_burst(step)], &mut verdicts[of_burst(step)]);
            }
        }
        if unmatched {
            let verdicts = verdicts[..count].iter().enumerate();
            for (at, verdict) in verdicts.filter(|(_, verdict)| verdict.matched.is_none()) {
                self.drop_without_entry(snapshot, batch, at, verdict);
            }
        }
    }

    /// Reads the endpoints of a burst, and begins its look-ups.
    #[inline(never)]
    fn begin_look_ups<'g>(
        &mut self,
        keys: Instance<'g>,
        inside: &'g Inside<'_>,
        batch: &Vector,
        burst: Range<usize>,
        looking: &mut [Lookup<'g>; BURST],
        verdicts: &mut Verdicts<'g>,
    ) -> Found {
        let (tables, mut found) = (keys.tables(), Found::default());
        let Some(policies) = tables.policies(inside) else { return Found { unmatched: true, ..found } };
        for (at, looking) in burst.zip(looking) {
            let at = at % BATCH;
            let (meta, verdict) = (&self.pass.packets.metas[at], &mut verdicts[at]);
            // The slot does not have the packet's session: a stale TEID or one assigned by the CP function; an
            // address under a prefix of another length.
            let elsewhere = match verdict.block.first() {
                Some(endpoint) => !meta.native && endpoint.teid() != meta.teid,
                None => true,
            };
            if elsewhere {
                verdict.block = self.find_elsewhere(keys, inside, batch, at).unwrap_or_default();
            }
            let block = verdict.block;
            let Some(endpoint) = block.first().filter(|_| meta.state == State::Live) else {
                found.unmatched = true;
                continue;
            };
            let position = match endpoint.route() {
                Route::Policy(number) => {
                    let (policy, near) = (policies.get(number as usize), self.recent.note(number));
                    let (own, key) = (endpoint.own_addresses(), &self.pass.packets.keys[at]);
                    let position = match policy {
                        Some(Policy::Rows(rows)) => rows.few(own, key, near),
                        _ => None,
                    };
                    match position {
                        Some(position) => position,
                        None => {
                            *looking = Lookup::begin(policy, own, key);
                            found.begun = true;
                            continue;
                        }
                    }
                }
                Route::Only(position) => Some(position),
                Route::None => None,
            };
            found.unmatched |= !verdict.complete(tables, block, position);
        }
        found
    }

    /// Finishes the look-ups of a burst that have not ended yet. Returns whether one has no entry.
    #[inline(never)]
    fn finish_look_ups<'g>(
        &self,
        tables: &'g Tables,
        burst: Range<usize>,
        looking: &mut [Lookup<'g>; BURST],
        verdicts: &mut Verdicts<'g>,
    ) -> bool {
        let mut unmatched = false;
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
                Lookup::Nowhere => None,
            };
            unmatched |= !verdict.complete(tables, verdict.block, position);
        }
        unmatched
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
        let state = self.pass.packets.metas[at].state;
        let Some(endpoint) = verdict.block.first() else {
            return self.drop_unknown(snapshot, batch, at);
        };
        // A packet that is malformed as an IP packet may be a frame.
        if matches!(state, State::Live | State::Dropped(DropReason::IpMalformed | DropReason::NotIp))
            && !self.may_be_frame(snapshot, at, endpoint)
            && state == State::Live
        {
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
                signalling::unknown_tunnel(&self.context, &self.pass.input, extra, teid, peer, now_ns);
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
    /// Takes the entry at a position of its block, and prefetches the session's state; `false` without entry.
    #[inline(always)]
    pub(super) fn complete(
        &mut self,
        tables: &'g Tables,
        block: &'g [Endpoint],
        position: Option<u32>,
    ) -> bool {
        let (Some(position), Some(endpoint)) = (position, block.first()) else { return false };
        let Some(entry) = session::entry(block, position as usize) else { return false };
        let Some(line) = tables.lines.prefetched(endpoint.state()) else { return false };
        self.matched = Some((entry, line));
        if usize::from(entry.account) >= PER_LINE {
            tables.lines.prefetch(endpoint.state() + u32::from(entry.account) / PER_LINE as u32);
        }
        true
    }
}

/// Reads the places of a burst's endpoints and prefetches these.
#[inline(never)]
fn load<'g>(inside: &'g Inside<'_>, places: &[PlaceOf<'g>], verdicts: &mut [Verdict<'g>]) {
    for (verdict, place) in verdicts.iter_mut().zip(places) {
        if let Some(block) = place.0.and_then(|place| place.load(inside)) {
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
