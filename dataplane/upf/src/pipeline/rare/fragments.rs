//! Finds the flow of a fragment (virtual reassembly).
//!
//! Only the first fragment of a packet has the ports that rules match. They are remembered under the packet's
//! identification, and later fragments are looked up with the same ports. Packets are not reassembled: each
//! fragment is forwarded by itself. A later fragment that arrives before the first one waits for it.
//! The same holds for packets inside Ethernet frames, per VLAN.
//!
//! Bounds against senders of incomplete packets: the number of fragmented packets and of octets that wait, per
//! worker and per direction of a session ([`Share`]), and a time after which a packet is given up. What exceeds
//! the share of its session is dropped. When the worker has no room, because many sessions use their shares,
//! fragments are looked up by what they show themselves, so that packets of other sessions still pass.
//! Where all packets of a session have one rule ([`Route::Only`]), fragments need no ports and are not noted.
//!
//! Overlapping fragments make a packet ambiguous: it is refused as a whole (RFC 5722 §4, RFC 1858 §4); a
//! repeated fragment is dropped alone. When all fragments have arrived, the packet is forgotten.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use classifier::Key;
use foldhash::HashMap;
use packet::flow::{Flow, Fragment};
use pktio::Vector;
use telemetry::DropReason;

use crate::pipeline::context::{Context, Pass, Snapshot};
use crate::pipeline::ethernet::View;
use crate::pipeline::graph::Way;
use crate::pipeline::packets::{Meta, State, qfi_of};
use crate::pipeline::{Ports, Stages};
use crate::session::Route;

/// Most fragmented packets of a worker.
const PACKETS: usize = 8192;
/// Most fragmented packets of one session in one direction.
const PACKETS_OF_ONE: u32 = 512;
/// Time for all fragments to arrive. Hosts wait 15 to 60 seconds (RFC 791 §3.2, RFC 8200 §4.5), but send the
/// fragments at once.
const LIFE_NS: u64 = 3_000_000_000;
/// Most fragments of one packet that wait: 64 kB in fragments of 576 octets.
const WAITING: usize = 128;
/// Most octets that wait in all, and of one session in one direction.
const WAITING_OCTETS: usize = 4 << 20;
const WAITING_OCTETS_OF_ONE: usize = 256 << 10;
/// Most gaps in a packet.
const GAPS: usize = 8;
/// Longest payload of an IP packet in octets.
const LONGEST: usize = 65_535;

/// Session and path of fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Origin {
    /// The UPF's SEID.
    seid: u64,
    path: Path,
}

/// Where fragments come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Path {
    /// The tunnel with this TEID.
    Tunnel(u32),
    /// No tunnel: the session has one network instance, in which the flow is unique.
    Native,
    /// Inside frames: of a tunnel with this TEID, or (`native`) on their way to this station. In a VLAN, or in 0.
    Frames { native: bool, of: u32, vlan: u16 },
}

/// A session and whether the fragments are on their way to the UE. Bounds apply to these: a sender chooses
/// TEIDs, addresses and VLANs.
type Party = (u64, bool);

impl Origin {
    fn party(self) -> Party {
        let down = match self.path {
            Path::Tunnel(_) => false,
            Path::Native => true,
            Path::Frames { native, .. } => native,
        };
        (self.seid, down)
    }
}

/// What the fragments of one party occupy.
#[derive(Debug, Default)]
struct Share {
    packets: u32,
    waiting_octets: usize,
}

/// Identifies a fragmented packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    origin: Origin,
    source: IpAddr,
    destination: IpAddr,
    /// In IPv4 only, where identifications belong to a protocol.
    protocol: u8,
    identification: u32,
}

/// The fields that only the first fragment has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct First {
    protocol: u8,
    ports: Option<(u16, u16)>,
    spi: Option<u32>,
}

impl First {
    /// The key of a fragment of this packet.
    pub fn key(&self, flow: &Flow) -> Key {
        let mut key = Key::new(flow.source, flow.destination, self.protocol)
            .with_tos(flow.tos)
            .with_flow_label(flow.flow_label);
        if let Some((source, destination)) = self.ports {
            key = key.with_ports(source, destination);
        }
        if let Some(spi) = self.spi {
            key = key.with_spi(spi);
        }
        key
    }
}

/// A later fragment that waits for the first one.
#[derive(Debug)]
struct Waiting {
    pub octets: Box<[u8]>,
    /// Number of the interface from which it came.
    pub interface: u8,
    pub peer: SocketAddr,
    pub marks: u8,
}

#[derive(Debug)]
struct Partial {
    /// Its number in [`Fragments::ages`].
    number: u64,
    since_ns: u64,
    first: Option<First>,
    /// Ranges of the payload that have arrived, in order and not adjacent.
    ranges: Vec<(usize, usize)>,
    /// Length of the payload, once the last fragment has arrived.
    end: Option<usize>,
    refused: bool,
    waiting: Vec<Waiting>,
}

/// What happens to a fragment.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Its flow is known: it is a first fragment, or the first one has arrived.
    Known(First),
    /// It has to wait: [`Fragments::wait`].
    Early,
    /// The worker has no room to note it: it is looked up by what it shows itself.
    NoRoom,
    Drop(DropReason),
}

/// What happens to an early fragment.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    Waits,
    /// As [`Verdict::NoRoom`].
    NoRoom,
    Drop(DropReason),
}

/// The fragmented packets of a worker.
#[derive(Debug, Default)]
pub(in crate::pipeline) struct Fragments {
    partials: HashMap<Name, Partial>,
    shares: HashMap<Party, Share>,
    /// The same packets, numbered in the order in which their first fragments to arrive did.
    ages: BTreeMap<u64, Name>,
    /// Number of the next packet.
    next: u64,
    waiting_octets: usize,
    /// Packets whose first fragment has arrived and whose other fragments wait.
    ready: Vec<Name>,
    /// Number of fragments that have waited in vain.
    lost: usize,
}

impl Fragments {
    /// Notes the arrival of a fragment.
    fn note(&mut self, origin: Origin, flow: &Flow, part: &Fragment, now_ns: u64) -> Verdict {
        self.expire(now_ns);
        let name = name(origin, flow, part);
        if !self.partials.contains_key(&name)
            && let Err(verdict) = self.admit(name, now_ns)
        {
            return verdict;
        }
        let Some(partial) = self.partials.get_mut(&name) else { return Verdict::NoRoom };
        if let Err(reason) = partial.add(part) {
            if partial.refused {
                let waiting = std::mem::take(&mut partial.waiting);
                self.give_up(&name, &waiting);
            }
            return Verdict::Drop(reason);
        }
        if part.offset == 0 {
            let first = First { protocol: flow.protocol, ports: flow.ports, spi: flow.spi };
            partial.first = Some(first);
            if !partial.waiting.is_empty() {
                self.ready.push(name);
            }
        }
        let Some(first) = partial.first else { return Verdict::Early };
        if partial.is_whole() && partial.waiting.is_empty() {
            self.remove(&name);
        }
        Verdict::Known(first)
    }

    /// Keeps an early fragment.
    fn wait(&mut self, origin: Origin, flow: &Flow, part: &Fragment, waiting: Waiting) -> Kept {
        let length = waiting.octets.len();
        let (share, partial) =
            (self.shares.get_mut(&origin.party()), self.partials.get_mut(&name(origin, flow, part)));
        let (Some(share), Some(partial)) = (share, partial) else { return Kept::NoRoom };
        if partial.waiting.len() >= WAITING || share.waiting_octets + length > WAITING_OCTETS_OF_ONE {
            return Kept::Drop(DropReason::FragmentOverflow);
        }
        if self.waiting_octets + length > WAITING_OCTETS {
            return Kept::NoRoom;
        }
        partial.waiting.push(waiting);
        share.waiting_octets += length;
        self.waiting_octets += length;
        Kept::Waits
    }

    /// Whether there are no fragmented packets.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.partials.is_empty()
    }

    /// Whether fragments wait whose first one has arrived.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the waiting fragments of a packet whose first fragment has arrived, with the fields of that.
    fn take_ready(&mut self) -> Option<(Origin, First, Vec<Waiting>)> {
        let name = self.ready.pop()?;
        let partial = self.partials.get_mut(&name)?;
        let (first, waiting) = (partial.first?, std::mem::take(&mut partial.waiting));
        let whole = partial.is_whole();
        self.release(&name, &waiting);
        if whole {
            self.remove(&name);
        }
        Some((name.origin, first, waiting))
    }

    /// Number of fragments that have waited in vain since the last call.
    #[inline(always)]
    fn take_lost(&mut self) -> usize {
        std::mem::take(&mut self.lost)
    }

    /// Gives up packets whose time is over.
    pub fn expire(&mut self, now_ns: u64) {
        while let Some(oldest) = self.ages.first_entry() {
            let waits = |partial: &Partial| partial.expiry_ns() > now_ns;
            if self.partials.get(oldest.get()).is_some_and(waits) {
                return;
            }
            let name = oldest.remove();
            self.remove(&name);
        }
    }

    /// When the next packet's time is over.
    #[inline]
    pub fn next_expiry_ns(&self) -> Option<u64> {
        let (_, oldest) = self.ages.first_key_value()?;
        self.partials.get(oldest).map(Partial::expiry_ns)
    }

    /// Makes room for another fragmented packet, unless its session or the worker has too many.
    fn admit(&mut self, name: Name, now_ns: u64) -> Result<(), Verdict> {
        let party = name.origin.party();
        let packets = self.shares.get(&party).map_or(0, |share| share.packets);
        if packets >= PACKETS_OF_ONE {
            return Err(Verdict::Drop(DropReason::FragmentOverflow));
        }
        if self.partials.len() >= PACKETS {
            return Err(Verdict::NoRoom);
        }
        self.shares.entry(party).or_default().packets += 1;
        let number = self.next;
        self.next += 1;
        self.ages.insert(number, name);
        let partial = Partial {
            number,
            since_ns: now_ns,
            first: None,
            ranges: Vec::new(),
            end: None,
            refused: false,
            waiting: Vec::new(),
        };
        self.partials.insert(name, partial);
        Ok(())
    }

    fn remove(&mut self, name: &Name) {
        let Some(partial) = self.partials.remove(name) else { return };
        self.ages.remove(&partial.number);
        self.give_up(name, &partial.waiting);
        let party = name.origin.party();
        if let Some(share) = self.shares.get_mut(&party) {
            share.packets -= 1;
            if share.packets == 0 {
                self.shares.remove(&party);
            }
        }
    }

    fn give_up(&mut self, name: &Name, waiting: &[Waiting]) {
        self.lost += waiting.len();
        self.release(name, waiting);
    }

    /// Frees the room of fragments that wait no longer.
    fn release(&mut self, name: &Name, waiting: &[Waiting]) {
        let octets: usize = waiting.iter().map(|waiting| waiting.octets.len()).sum();
        self.waiting_octets -= octets;
        if let Some(share) = self.shares.get_mut(&name.origin.party()) {
            share.waiting_octets -= octets;
        }
    }
}

fn name(origin: Origin, flow: &Flow, part: &Fragment) -> Name {
    Name {
        origin,
        source: flow.source,
        destination: flow.destination,
        protocol: if flow.source.is_ipv4() { flow.protocol } else { 0 },
        identification: part.identification,
    }
}

impl Partial {
    /// When its time is over.
    fn expiry_ns(&self) -> u64 {
        self.since_ns.saturating_add(LIFE_NS)
    }

    /// Notes the range of a fragment.
    fn add(&mut self, part: &Fragment) -> Result<(), DropReason> {
        let (from, to) = (part.offset, part.offset + part.length);
        if self.refused {
            return Err(DropReason::FragmentOverlap);
        }
        // All fragments but the last have a multiple of eight octets (RFC 791 §3.2, RFC 8200 §4.5).
        if part.length == 0 || to > LONGEST || part.more && !part.length.is_multiple_of(8) {
            return Err(DropReason::IpMalformed);
        }
        if self.ranges.iter().any(|(first, last)| *first <= from && to <= *last) {
            // The same fragment has arrived before.
            return Err(DropReason::FragmentOverlap);
        }
        let end = if part.more { self.end } else { Some(to) };
        let beyond = end.is_some_and(|end| to > end || self.ranges.iter().any(|(_, last)| *last > end));
        let another_end = self.end.is_some() && self.end != end;
        if beyond || another_end || self.ranges.iter().any(|(first, last)| from < *last && *first < to) {
            self.refused = true;
            return Err(DropReason::FragmentOverlap);
        }
        let at = self.ranges.partition_point(|(first, _)| *first < from);
        let joins_next = self.ranges.get(at).is_some_and(|(first, _)| *first == to);
        let joins_last = at > 0 && self.ranges[at - 1].1 == from;
        if !joins_next && !joins_last && self.ranges.len() > GAPS {
            return Err(DropReason::FragmentOverflow);
        }
        match (joins_last, joins_next) {
            (true, true) => self.ranges[at - 1].1 = self.ranges.remove(at).1,
            (true, false) => self.ranges[at - 1].1 = to,
            (false, true) => self.ranges[at].0 = from,
            (false, false) => self.ranges.insert(at, (from, to)),
        }
        self.end = end;
        Ok(())
    }

    /// Whether all fragments have arrived.
    fn is_whole(&self) -> bool {
        self.end.is_some_and(|end| self.ranges == [(0, end)])
    }
}

impl Fragments {
    /// Gives the fragments in a batch the keys of their flows. Fragments that arrive before the first of their
    /// packet wait.
    #[cold]
    pub fn assign(&mut self, context: &Context, pass: &mut Pass, snapshot: Snapshot<'_>, batch: &Vector) {
        let fragments = std::mem::take(&mut pass.fragments);
        context.count_way(Way::Fragments, fragments.len());
        for at in &fragments {
            self.assign_one(context, pass, snapshot, batch, usize::from(*at));
        }
        pass.fragments = fragments;
        pass.fragments.clear();
        self.count_lost(context);
    }

    fn assign_one(
        &mut self,
        context: &Context,
        pass: &mut Pass,
        snapshot: Snapshot<'_>,
        batch: &Vector,
        at: usize,
    ) {
        let Snapshot { tables, inside, now_ns } = snapshot;
        let (meta, keys) = (pass.packets.metas[at], tables.instance(pass.input.instance));
        let Ok(flow) = Flow::parse(batch.frames()[at].packet()) else { return };
        let Some(part) = flow.fragment.filter(|_| meta.state == State::Live) else { return };
        let (path, block) = if meta.native {
            (Path::Native, keys.endpoint_of_ue(inside, flow.destination))
        } else {
            (Path::Tunnel(meta.teid), keys.tunnel(inside, meta.teid))
        };
        // Nothing is kept for unknown sessions. In a session of frames, what looks like a fragment is a
        // frame.
        let Some(endpoint) = block.and_then(|block| block.first()) else { return };
        let needs_ports = match endpoint.route() {
            Route::Policy(_) => !tables.is_of_frames(inside, endpoint),
            // For open services of this machine.
            Route::Only(_) => !meta.native && context.closed.contains(flow.destination),
            Route::None => false,
        };
        if !needs_ports {
            return;
        }
        let origin = Origin { seid: endpoint.seid(), path };
        match self.note(origin, &flow, &part, now_ns) {
            Verdict::Known(first) => pass.packets.keys[at] = with_qfi(first.key(&flow), meta.marks),
            Verdict::Early => {
                self.keep_early(pass, origin, (&flow, &part), batch, at);
            }
            Verdict::NoRoom => {}
            Verdict::Drop(reason) => pass.drop(at, reason),
        }
    }

    /// Lets an early fragment wait. Returns whether it is looked up by what it shows itself instead.
    fn keep_early(
        &mut self,
        pass: &mut Pass,
        origin: Origin,
        (flow, part): (&Flow, &Fragment),
        batch: &Vector,
        at: usize,
    ) -> bool {
        let (frame, peer) = (&batch.frames()[at], batch.peer(at));
        let meta = &mut pass.packets.metas[at];
        let (octets, interface) = (frame.packet().into(), pass.input.interface);
        let waiting = Waiting { octets, interface, peer, marks: meta.marks };
        match self.wait(origin, flow, part, waiting) {
            Kept::Waits => meta.state = State::Consumed,
            Kept::NoRoom => return true,
            Kept::Drop(reason) => meta.drop(reason),
        }
        false
    }

    /// What a frame of a session is looked up by. A frame with a later fragment is looked up as the first fragment of
    /// its packet says; `None` when it waits for that fragment, or is dropped.
    pub fn frame_key(
        &mut self,
        context: &Context,
        pass: &mut Pass,
        (seid, view): (u64, &View),
        batch: &Vector,
        at: usize,
        now_ns: u64,
    ) -> Option<Key> {
        let meta = pass.packets.metas[at];
        let own = view.key(qfi_of(meta.marks));
        let Some((flow, part)) = view.flow.as_ref().and_then(|flow| Some((flow, flow.fragment?))) else {
            // Nobody behind this looks into the frame as into a packet.
            pass.packets.keys[at] = Key::unknown();
            return Some(own);
        };
        if pass.keys_are_known {
            return Some(pass.packets.keys[at]).filter(|known| *known != Key::unknown()).or(Some(own));
        }
        pass.packets.keys[at] = Key::unknown();
        let path = Path::Frames { native: meta.native, of: meta.teid, vlan: view.vlan() };
        let origin = Origin { seid, path };
        let key = match self.note(origin, flow, &part, now_ns) {
            Verdict::Known(_) if part.offset == 0 => Some(own),
            Verdict::Known(first) => {
                pass.packets.keys[at] = with_qfi(first.key(flow), meta.marks).with_ethernet(view.header);
                Some(pass.packets.keys[at])
            }
            Verdict::Early => self.keep_early(pass, origin, (flow, &part), batch, at).then_some(own),
            Verdict::NoRoom => Some(own),
            Verdict::Drop(reason) => {
                pass.drop(at, reason);
                None
            }
        };
        self.count_lost(context);
        key
    }

    /// Counts fragments that have waited in vain.
    pub fn count_lost(&mut self, context: &Context) {
        context.stats().drops.count_n(DropReason::FragmentOverflow, self.take_lost());
    }
}

impl Stages {
    /// Runs the stages for waiting fragments whose first one has arrived.
    #[inline(always)]
    pub(in crate::pipeline) fn run_early_fragments(&mut self, snapshot: Snapshot<'_>, ports: &mut Ports) {
        if self.fragments.is_ready() {
            self.run_ready(snapshot, ports);
        }
    }

    #[cold]
    fn run_ready(&mut self, snapshot: Snapshot<'_>, ports: &mut Ports) {
        let mut batch = Vector::of(&self.context.home);
        while let Some((origin, first, waiting)) = self.fragments.take_ready() {
            let (native, teid, frames) = match origin.path {
                Path::Tunnel(teid) => (false, teid, false),
                Path::Native => (true, 0, false),
                Path::Frames { native, of, .. } => (native, of, true),
            };
            let mut waiting = waiting.into_iter().peekable();
            while let Some(interface) = waiting.peek().map(|next| next.interface) {
                self.enter(interface);
                batch.clear();
                self.begin(0);
                while let Some(next) = waiting.peek().filter(|next| next.interface == interface)
                    && batch.push(&next.octets, next.peer)
                {
                    let Some(Waiting { octets, marks, .. }) = waiting.next() else { break };
                    let mut meta = Meta { native, teid, marks, length: octets.len() as u32, ..Meta::NEW };
                    let key = match early_key(&first, &octets, marks, frames) {
                        Some(key) => key,
                        None => {
                            meta.drop(DropReason::IpMalformed);
                            Key::unknown()
                        }
                    };
                    self.pass.packets.push(meta, key);
                }
                if batch.is_empty() {
                    // Cannot happen: the packet came from a frame, so it fits into one.
                    break;
                }
                self.run_again(snapshot, frames, &mut batch, ports);
            }
        }
    }
}

/// What a fragment that has waited for the first one of its packet is looked up by.
fn early_key(first: &First, octets: &[u8], marks: u8, frame: bool) -> Option<Key> {
    if !frame {
        return Some(with_qfi(first.key(&Flow::parse(octets).ok()?), marks));
    }
    let view = View::parse(octets).ok()?;
    Some(with_qfi(first.key(view.flow.as_ref()?), marks).with_ethernet(view.header))
}

fn with_qfi(key: Key, marks: u8) -> Key {
    qfi_of(marks).map_or(key, |qfi| key.with_qfi(qfi))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = of_tunnel(7);

    const fn of_tunnel(teid: u32) -> Origin {
        Origin { seid: teid as u64, path: Path::Tunnel(teid) }
    }

    fn part(identification: u32, offset: usize, length: usize, more: bool) -> (Flow, Fragment) {
        let part = Fragment { identification, offset, length, more };
        let flow = Flow {
            source: [10, 45, 0, 2].into(),
            destination: [192, 0, 2, 1].into(),
            protocol: 17,
            ports: (offset == 0).then_some((4000, 53)),
            tos: 0,
            spi: None,
            flow_label: 0,
            length: 20 + length,
            fragment: Some(part),
        };
        (flow, part)
    }

    fn note(fragments: &mut Fragments, origin: Origin, of: (Flow, Fragment), now_ns: u64) -> Verdict {
        let verdict = fragments.note(origin, &of.0, &of.1, now_ns);
        if verdict == Verdict::Early {
            let peer = ([127, 0, 0, 1], 2152).into();
            let waiting = Waiting { octets: vec![0; of.1.length].into(), interface: 0, peer, marks: 9 };
            assert_eq!(fragments.wait(origin, &of.0, &of.1, waiting), Kept::Waits);
        }
        verdict
    }

    fn is_empty(fragments: &Fragments) -> bool {
        fragments.partials.is_empty()
            && fragments.ages.is_empty()
            && fragments.shares.is_empty()
            && fragments.waiting_octets == 0
    }

    const FIRST: First = First { protocol: 17, ports: Some((4000, 53)), spi: None };

    #[test]
    fn parts_in_any_order_belong_to_the_first_and_leave_nothing_behind() {
        let parts = [part(1, 0, 800, true), part(1, 800, 800, true), part(1, 1600, 100, false)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut fragments = Fragments::default();
            let mut released = 0;
            let mut known = 0;
            for at in order {
                match note(&mut fragments, ORIGIN, parts[at], 1) {
                    Verdict::Known(first) => {
                        assert_eq!(first, FIRST);
                        known += 1;
                    }
                    Verdict::Early => {}
                    other => panic!("{other:?}"),
                }
                while let Some((origin, first, waiting)) = fragments.take_ready() {
                    assert_eq!((origin, first), (ORIGIN, FIRST));
                    released += waiting.len();
                }
            }
            assert_eq!(known + released, 3, "{order:?}");
            assert!(is_empty(&fragments) && fragments.take_lost() == 0, "{order:?}");
        }
    }

    #[test]
    fn what_overlaps_is_refused_and_what_came_before_is_dropped_alone() {
        for (second, refuses) in [
            (part(1, 0, 800, true), false),
            (part(1, 8, 80, true), false),
            (part(1, 0, 808, true), true),
            (part(1, 792, 80, true), true),
            (part(1, 0, 400, false), false),
        ] {
            let mut fragments = Fragments::default();
            assert_eq!(note(&mut fragments, ORIGIN, part(1, 0, 800, true), 1), Verdict::Known(FIRST));
            let overlap = Verdict::Drop(DropReason::FragmentOverlap);
            assert_eq!(note(&mut fragments, ORIGIN, second, 1), overlap, "{second:?}");
            let last = note(&mut fragments, ORIGIN, part(1, 800, 80, false), 1);
            assert_eq!(last == overlap, refuses, "{second:?}");
        }
        // A second end, and fragments with impossible ranges.
        let mut fragments = Fragments::default();
        note(&mut fragments, ORIGIN, part(1, 0, 800, true), 1);
        for bad in [part(1, 800, 81, true), part(1, 800, 0, true), part(1, 65_528, 16, true)] {
            assert_eq!(note(&mut fragments, ORIGIN, bad, 1), Verdict::Drop(DropReason::IpMalformed));
        }
        note(&mut fragments, ORIGIN, part(1, 1600, 8, false), 1);
        let end = note(&mut fragments, ORIGIN, part(1, 1608, 8, true), 1);
        assert_eq!(end, Verdict::Drop(DropReason::FragmentOverlap));
    }

    #[test]
    fn time_and_numbers_are_bounded() {
        let mut fragments = Fragments::default();
        assert_eq!(note(&mut fragments, ORIGIN, part(1, 8, 8, true), 1), Verdict::Early);
        fragments.expire(LIFE_NS);
        assert_eq!(fragments.take_lost(), 0);
        fragments.expire(LIFE_NS + 1);
        assert_eq!(fragments.take_lost(), 1);
        assert!(is_empty(&fragments));
        // One sender's incomplete packets leave room for others'.
        let overflow = Verdict::Drop(DropReason::FragmentOverflow);
        for number in 0..10_000 {
            let verdict = note(&mut fragments, ORIGIN, part(number, 0, 8, true), 1);
            assert_eq!(verdict == overflow, number >= PACKETS_OF_ONE);
        }
        // Other tunnels, VLANs and directions of the same session share its bounds, or do not.
        let of_7 = |path| Origin { path, ..ORIGIN };
        let verdict = note(&mut fragments, of_7(Path::Tunnel(8)), part(0, 0, 8, true), 1);
        assert_eq!(verdict, overflow);
        let frames = |native| of_7(Path::Frames { native, of: 7, vlan: 9 });
        assert_eq!(note(&mut fragments, frames(false), part(0, 0, 8, true), 1), overflow);
        assert_eq!(note(&mut fragments, frames(true), part(0, 0, 8, true), 1), Verdict::Known(FIRST));
        assert_eq!(note(&mut fragments, of_tunnel(8), part(0, 0, 8, true), 1), Verdict::Known(FIRST));
        for tunnel in 9..100_000 {
            note(&mut fragments, of_tunnel(tunnel), part(0, 0, 8, true), 1);
        }
        assert_eq!(fragments.partials.len(), PACKETS);
        // The worker has no room: others go by what they show, and what is noted stays noted.
        assert_eq!(note(&mut fragments, of_tunnel(100_000), part(0, 0, 8, true), 1), Verdict::NoRoom);
        assert_eq!(note(&mut fragments, of_tunnel(8), part(0, 8, 8, true), 1), Verdict::Known(FIRST));
        fragments.expire(2 + LIFE_NS);
        assert!(is_empty(&fragments));
        // Many gaps.
        let far = |n: usize| part(1, n * 16, 8, true);
        let verdicts: Vec<_> = (0..20).map(|n| note(&mut fragments, ORIGIN, far(n), 1)).collect();
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == overflow).count(), 20 - GAPS - 1);
    }

    /// However many packets others complete meanwhile, with new identifications or with one again and again.
    #[test]
    fn complete_packets_do_not_shorten_the_time_of_others() {
        let mut fragments = Fragments::default();
        assert_eq!(note(&mut fragments, ORIGIN, part(1, 8, 8, false), 1), Verdict::Early);
        for number in 0..3 * PACKETS as u32 {
            for identification in [number, 7] {
                let first = part(identification, 0, 8, true);
                assert_eq!(note(&mut fragments, of_tunnel(8), first, 2), Verdict::Known(FIRST));
                let last = part(identification, 8, 8, false);
                assert_eq!(note(&mut fragments, of_tunnel(8), last, 2), Verdict::Known(FIRST));
            }
            assert_eq!((fragments.ages.len(), fragments.take_lost()), (1, 0), "{number}");
        }
        assert_eq!(note(&mut fragments, ORIGIN, part(1, 0, 8, true), LIFE_NS), Verdict::Known(FIRST));
        assert_eq!(fragments.take_ready().map(|(.., waiting)| waiting.len()), Some(1));
        assert!(is_empty(&fragments));
    }

    /// One session's waiting fragments leave room for those of others.
    #[test]
    fn waiting_octets_are_bounded_per_session_and_in_all() {
        const LENGTH: usize = 32 << 10;
        let keep = |fragments: &mut Fragments, tunnel: u32, identification: u32| {
            let (flow, part) = part(identification, 8, 8, false);
            assert_eq!(fragments.note(of_tunnel(tunnel), &flow, &part, 1), Verdict::Early);
            let peer = ([127, 0, 0, 1], 2152).into();
            let waiting = Waiting { octets: vec![0; LENGTH].into(), interface: 0, peer, marks: 9 };
            fragments.wait(of_tunnel(tunnel), &flow, &part, waiting)
        };
        let mut fragments = Fragments::default();
        let (of_one, sessions) =
            ((WAITING_OCTETS_OF_ONE / LENGTH) as u32, (WAITING_OCTETS / WAITING_OCTETS_OF_ONE) as u32);
        for tunnel in 0..sessions {
            for number in 0..=of_one {
                let expected = match number < of_one {
                    true => Kept::Waits,
                    false => Kept::Drop(DropReason::FragmentOverflow),
                };
                assert_eq!(keep(&mut fragments, tunnel, number), expected, "{tunnel} {number}");
            }
        }
        assert_eq!(keep(&mut fragments, sessions, 0), Kept::NoRoom);
        // What is released or given up makes room.
        assert_eq!(note(&mut fragments, of_tunnel(0), part(0, 0, 8, true), 1), Verdict::Known(FIRST));
        assert_eq!(fragments.take_ready().map(|(.., waiting)| waiting.len()), Some(1));
        assert_eq!(keep(&mut fragments, 0, 100), Kept::Waits);
        fragments.expire(1 + LIFE_NS);
        assert!(is_empty(&fragments));
        assert_eq!(keep(&mut fragments, 0, 0), Kept::Waits);
    }

    #[test]
    fn origins_protocols_and_addresses_are_apart() {
        let mut fragments = Fragments::default();
        note(&mut fragments, ORIGIN, part(1, 0, 8, true), 1);
        let mut other = part(1, 8, 8, false);
        assert_eq!(note(&mut fragments, of_tunnel(8), other, 1), Verdict::Early);
        assert_eq!(note(&mut fragments, ORIGIN, part(2, 8, 8, false), 1), Verdict::Early);
        other.0.protocol = 6;
        assert_eq!(note(&mut fragments, ORIGIN, other, 1), Verdict::Early);
        assert_eq!(note(&mut fragments, ORIGIN, part(1, 8, 8, false), 1), Verdict::Known(FIRST));
    }
}
