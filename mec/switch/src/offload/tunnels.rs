//! The tunnels that XDP has: their entries, whom a change concerns, and their packets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::fast::RandomState;
use openflow::{Action, Field, PortNo};
use telemetry::worker::Drops;
use xdp::steer::{
    self, Began, Capacity, Counters, Entry as SteerEntry, Forward, Key, Passed, Steer, SteerError, Teids,
};

use super::Offer;
use crate::config::Xdp;
use crate::core::SwitchPort;
use crate::host::graph;
use crate::pipeline::exact::{self, Exact, Inner, Tunnel};
use crate::pipeline::field::{self, Words};
use crate::pipeline::flow::Flow;
use crate::pipeline::trace::Trace;
use crate::pipeline::{Pipeline, Touched};

/// How long packets from before an entry may be in the host path: longer than a worker has a vector.
pub const FRESH_NS: u64 = 100_000_000;
/// How long programs that have begun may count in an entry that was taken out.
const LEAVING_NS: u64 = 100_000_000;
/// Without packets for so long, an entry makes room where some is needed.
const IDLE_NS: u64 = 5_000_000_000;
/// Without packets for so long, an entry gives way to one of another base station or neighbour.
const QUIET_NS: u64 = 1_000_000_000;
/// Entries that are translated again while a change holds the pipeline: some 10 ms.
const AT_ONCE: usize = 4096;
/// Outer destinations, and different combinations of what is written and looked at.
const ANCHORS: u32 = 8192;
const HOPS: u32 = 16_384;

type Map<K, V> = HashMap<K, V, RandomState>;

/// What holds while the locks are held.
pub struct Present<'p> {
    /// The rules.
    pub pipeline: &'p Pipeline,
    /// The ports, which count.
    pub ports: &'p [SwitchPort],
    /// The time.
    pub now_ns: u64,
}

/// What has been, for people.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    /// Packets that entries have treated.
    pub packets: u64,
    /// Their octets.
    pub bytes: u64,
    /// Entries that were added.
    pub learned: u64,
    /// Entries that were translated again.
    pub renewed: u64,
    /// Entries that were taken out.
    pub left: u64,
    /// Offers for which there was no room.
    pub no_room: u64,
    /// Offers that were no longer what the rules say.
    pub outdated: u64,
    /// Offers of tunnels whose packets come another way at present.
    pub other_way: u64,
    /// How often XDP passed all packets on after a change.
    pub pauses: u64,
}

/// A tunnel in XDP.
#[derive(Debug)]
struct Entry {
    /// The fields of a packet of it, to translate it again.
    outer: Words,
    inner: Words,
    exact: Exact,
    /// Without its steps.
    trace: Trace,
    /// What was brought to the rules' counters.
    counted: Counters,
    /// When packets were last seen to have come.
    used_ns: u64,
    since_ns: u64,
    /// Since when packets are passed on. It is taken out when no program can count in it any more.
    leaving_ns: Option<u64>,
}

/// Whom a rule concerns.
enum Concerned {
    Nobody,
    Teid(u32),
    Everybody,
}

/// How far the entries were translated again.
pub enum Renewed {
    /// All of them.
    All,
    /// There are others.
    Some,
    /// There is no room for the next ones before this grace period is over.
    Waits(Began),
}

/// All tunnels in XDP.
#[derive(Debug)]
pub struct Tunnels {
    steer: Steer,
    drops: Arc<Drops>,
    /// Indexes of the ports' interfaces.
    interfaces: BTreeMap<u32, u32>,
    capacity: usize,
    own: HashSet<IpAddr>,
    entries: Vec<Option<Box<Entry>>>,
    free: Vec<u32>,
    by_tunnel: Map<Tunnel, u32>,
    /// By the TEIDs that rules can match in a translation: that of the packets, and those that rules set.
    by_teid: Map<u32, Vec<u32>>,
    /// How many entries have a link-layer address, as packets come or as rules set it.
    addresses: Map<u64, u32>,
    /// Entries of each anchor.
    anchors: Map<IpAddr, u32>,
    /// While XDP pauses: the first entry that was not translated again.
    stale_from: Option<usize>,
    resumed_ns: u64,
    is_short: bool,
    gives_back: bool,
    has_failed: bool,
    /// What has been.
    pub counts: Counts,
}

/// What the host decides on.
const HOST: SteerEntry = SteerEntry {
    only: steer::Only { interface: None, source: None, eth_source: None, eth_destination: None },
    action: steer::Action::Host,
};

/// Which packets of its tunnel an entry takes.
fn taken(exact: &Exact) -> (exact::Only, Option<bool>) {
    let is_ipv6 = exact.rewrite.inner.map(|(Inner::Source(new) | Inner::Destination(new))| new.is_ipv6());
    (exact.only, is_ipv6)
}

fn key(tunnel: &Tunnel) -> Key {
    Key::Tunnel(steer::Tunnel { destination: tunnel.destination, teid: tunnel.teid })
}

impl Entry {
    /// TEIDs that the tunnel's packets have before tables, sorted.
    fn teids(&self) -> Vec<u32> {
        let mut teids = vec![self.exact.tunnel.teid];
        teids.extend(self.set_values(&[Field::TunnelId]).map(|teid| teid as u32));
        teids.sort_unstable();
        teids.dedup();
        teids
    }

    /// The same for link-layer addresses.
    fn addresses(&self) -> Vec<u64> {
        let came = [Field::EthSrc, Field::EthDst].map(|of| field::get(&self.outer, of) as u64);
        let mut addresses = came.to_vec();
        addresses.extend(self.set_values(&[Field::EthSrc, Field::EthDst]).map(|address| address as u64));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Whether the state of a port makes a difference.
    fn asks_for(&self, number: u32) -> bool {
        let mut actions = self.trace.rules.iter().flat_map(|flow| flow.actions());
        actions.any(|action| match action {
            Action::Output { port: PortNo::ALL | PortNo::FLOOD, .. } | Action::Group(_) => true,
            Action::Output { port: PortNo::IN_PORT, .. } => self.exact.only.in_port == number,
            Action::Output { port, .. } => port.0 == number,
            _ => false,
        })
    }

    /// Values that its rules give to these fields.
    fn set_values(&self, fields: &'static [Field]) -> impl Iterator<Item = u128> {
        let actions = self.trace.rules.iter().flat_map(|flow| flow.actions());
        actions.filter_map(|action| match action {
            Action::SetField(set) if fields.contains(&set.oxm().field()) => Some(set.oxm().value()),
            _ => None,
        })
    }
}

impl Tunnels {
    /// No tunnels.
    ///
    /// # Errors
    /// As [`Steer::new`], [`Steer::add_port`] and [`Steer::add_anchor`].
    pub fn new(
        config: &Xdp,
        interfaces: BTreeMap<u32, u32>,
        drops: Arc<Drops>,
    ) -> Result<Tunnels, SteerError> {
        let own = config.own.iter().map(|own| own.teids).sum();
        let mut steer = Steer::new(Capacity {
            own,
            foreign: config.tunnels,
            inside: 1,
            frames: 1,
            anchors: ANCHORS,
            hops: HOPS,
            // An entry that changes has the old one and the new one until a grace period is over.
            ipv6_addresses: 2 * (config.tunnels + own),
        })?;
        for interface in interfaces.values() {
            steer.add_port(*interface)?;
        }
        for own in &config.own {
            steer.add_anchor(own.address, Teids::Own { first: own.first_teid, count: own.teids })?;
        }
        // Changes hold the pipeline's lock.
        steer.never_wait();
        Ok(Tunnels {
            steer,
            drops,
            interfaces,
            capacity: (config.tunnels + own) as usize,
            own: config.own.iter().map(|own| own.address).collect(),
            entries: Vec::new(),
            free: Vec::new(),
            by_tunnel: Map::default(),
            by_teid: Map::default(),
            addresses: Map::default(),
            anchors: config.own.iter().map(|own| (own.address, 0)).collect(),
            stale_from: None,
            resumed_ns: 0,
            is_short: false,
            gives_back: false,
            has_failed: false,
            counts: Counts::default(),
        })
    }

    /// The tables.
    pub fn steer(&mut self) -> &mut Steer {
        &mut self.steer
    }

    /// Number of tunnels.
    pub fn len(&self) -> usize {
        self.by_tunnel.len()
    }

    /// How many there can be.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Behind the last position of an entry.
    pub fn end(&self) -> usize {
        self.entries.len()
    }

    /// Outer destinations.
    pub fn anchors(&self) -> usize {
        self.anchors.len()
    }

    /// How many packets XDP passed on, and why.
    pub fn passed(&self) -> Vec<(Passed, u64)> {
        self.steer.passed().to_vec()
    }

    /// Whether XDP passes everything on.
    pub fn is_paused(&self) -> bool {
        self.steer.is_paused()
    }

    /// Whether the host path has everything from now on.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// After a panic: what is known of the entries may be wrong, so XDP passes everything on until the switch starts again.
    pub fn fail(&mut self) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::error!(
                "a defect in the tables for XDP: all packets take the host path until the switch starts again"
            );
            self.pause();
        }
    }

    fn entry(&self, at: usize) -> Option<&Entry> {
        self.entries.get(at)?.as_deref()
    }

    /// One that treats packets.
    fn active(&self, at: usize) -> Option<&Entry> {
        self.entry(at).filter(|entry| entry.leaving_ns.is_none())
    }

    /// What the tables are told; `None` for ports that XDP does not reach.
    fn steer_entry(&self, exact: &Exact) -> Option<SteerEntry> {
        let Exact { only, rewrite, port, .. } = exact;
        let only = steer::Only {
            interface: Some(*self.interfaces.get(&only.in_port)?),
            source: only.source,
            eth_source: Some(only.eth_source),
            eth_destination: Some(only.eth_destination),
        };
        let action = match port {
            None => steer::Action::Drop,
            Some(port) => steer::Action::Forward(Forward {
                interface: *self.interfaces.get(port)?,
                eth_destination: rewrite.eth_destination,
                eth_source: rewrite.eth_source,
                destination: rewrite.destination,
                source: rewrite.source,
                teid: rewrite.teid,
                inner: rewrite.inner.map(|inner| match inner {
                    Inner::Source(address) => steer::Inner::Source(address),
                    Inner::Destination(address) => steer::Inner::Destination(address),
                }),
                // An End Marker's translation is another one.
                end_markers: false,
            }),
        };
        Some(SteerEntry { only, action })
    }

    /// Brings the packets of an entry to the counters; whether there were some.
    pub fn count(&mut self, present: &Present<'_>, at: usize) -> bool {
        let Some(entry) = self.entries.get_mut(at).and_then(Option::as_deref_mut) else { return false };
        let Some(total) = self.steer.counters(&key(&entry.exact.tunnel)) else { return false };
        let packets = total.packets.saturating_sub(entry.counted.packets);
        let bytes = total.octets.saturating_sub(entry.counted.octets);
        if packets == 0 {
            return false;
        }
        entry.counted = total;
        entry.used_ns = present.now_ns;
        entry.trace.count(present.pipeline, packets, bytes, present.now_ns);
        let port = |number: u32| present.ports.iter().find(|port| port.number == number);
        if let Some(port) = port(entry.exact.only.in_port) {
            port.counts.rx_packets.fetch_add(packets, Relaxed);
            port.counts.rx_bytes.fetch_add(bytes, Relaxed);
        }
        if let Some(port) = entry.exact.port.and_then(port) {
            port.counts.tx_packets.fetch_add(packets, Relaxed);
            port.counts.tx_bytes.fetch_add(bytes, Relaxed);
        }
        if let Some(dropped) = entry.trace.dropped {
            self.drops.count_n(graph::reason(dropped), packets as usize);
        }
        self.counts.packets += packets;
        self.counts.bytes += bytes;
        true
    }

    /// Adds entries for translations that packets use.
    pub fn learn(&mut self, present: &Present<'_>, offers: Vec<Offer>) {
        if self.is_paused() {
            return;
        }
        let (mut changes, mut learned, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for offer in offers {
            if seen.insert(offer.exact.tunnel)
                && let Some((entry, trace)) = self.consider(present, &offer, learned.len())
            {
                changes.push(steer::Change::Set(key(&offer.exact.tunnel), entry));
                learned.push((offer, trace));
            }
        }
        if self.commit(&changes).is_ok() {
            learned.into_iter().for_each(|(offer, trace)| self.put(present, offer, trace));
            return;
        }
        // One of them is for what there is no room.
        for (change, (offer, trace)) in changes.into_iter().zip(learned) {
            match self.commit(&[change]) {
                Ok(()) => self.put(present, offer, trace),
                Err(_) => self.refuse_for_room(),
            }
        }
    }

    fn commit(&mut self, changes: &[steer::Change]) -> Result<(), SteerError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.gives_back = true;
        self.steer.commit(changes)
    }

    fn refuse_for_room(&mut self) {
        self.counts.no_room += 1;
        self.is_short = true;
    }

    /// Whether an offer becomes an entry, beside so many others.
    fn consider(
        &mut self,
        present: &Present<'_>,
        offer: &Offer,
        others: usize,
    ) -> Option<(SteerEntry, Trace)> {
        let tunnel = offer.exact.tunnel;
        if let Some(at) = self.by_tunnel.get(&tunnel).map(|at| *at as usize) {
            let came = self.count(present, at);
            if let Some(known) = self.active(at) {
                if known.exact.only == offer.exact.only {
                    return None;
                }
                // A sender that pretends to be another base station does not drive the right one out.
                if came || present.now_ns.saturating_sub(known.used_ns.max(known.since_ns)) < QUIET_NS {
                    self.counts.other_way += 1;
                    return None;
                }
            }
        } else if self.len() + others >= self.capacity {
            self.refuse_for_room();
            return None;
        }
        let trace = present.pipeline.trace(&offer.outer, &offer.inner);
        if exact::exact(present.pipeline, &offer.outer, &offer.inner, &trace) != Some(offer.exact) {
            self.counts.outdated += 1;
            return None;
        }
        let entry = self.steer_entry(&offer.exact)?;
        if !self.has_anchor(tunnel.destination) {
            self.refuse_for_room();
            return None;
        }
        Some((entry, trace))
    }

    /// Whether there can be entries for an outer destination.
    fn has_anchor(&mut self, address: IpAddr) -> bool {
        if self.anchors.contains_key(&address) {
            return true;
        }
        match self.steer.add_anchor(address, Teids::Foreign) {
            Ok(()) => {
                self.anchors.insert(address, 0);
                true
            }
            Err(_) => false,
        }
    }

    /// Notes an entry that the tables have.
    fn put(&mut self, present: &Present<'_>, offer: Offer, mut trace: Trace) {
        let Offer { outer, inner, exact } = offer;
        trace.steps = Vec::new();
        let mut entry = Box::new(Entry {
            outer,
            inner,
            exact,
            trace,
            counted: Counters::default(),
            used_ns: present.now_ns,
            since_ns: present.now_ns,
            leaving_ns: None,
        });
        if let Some(at) = self.by_tunnel.get(&exact.tunnel).copied()
            && let Some(old) = self.take(at)
        {
            // The tables go on counting.
            entry.counted = old.counted;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        self.by_tunnel.insert(exact.tunnel, at);
        *self.anchors.entry(exact.tunnel.destination).or_default() += 1;
        self.index(at, &entry.teids(), &entry.addresses());
        self.entries[at as usize] = Some(entry);
        self.counts.learned += 1;
    }

    /// Forgets an entry.
    fn take(&mut self, at: u32) -> Option<Box<Entry>> {
        let entry = self.entries.get_mut(at as usize)?.take()?;
        self.free.push(at);
        self.by_tunnel.remove(&entry.exact.tunnel);
        if let Some(entries) = self.anchors.get_mut(&entry.exact.tunnel.destination) {
            *entries = entries.saturating_sub(1);
        }
        self.unindex(at, &entry.teids(), &entry.addresses());
        Some(entry)
    }

    fn index(&mut self, at: u32, teids: &[u32], addresses: &[u64]) {
        teids.iter().for_each(|teid| self.by_teid.entry(*teid).or_default().push(at));
        addresses.iter().for_each(|address| *self.addresses.entry(*address).or_default() += 1);
    }

    fn unindex(&mut self, at: u32, teids: &[u32], addresses: &[u64]) {
        for teid in teids {
            if let Some(known) = self.by_teid.get_mut(teid) {
                known.retain(|known| *known != at);
                if known.is_empty() {
                    self.by_teid.remove(teid);
                }
            }
        }
        for address in addresses {
            if let Some(entries) = self.addresses.get_mut(address) {
                *entries -= 1;
                if *entries == 0 {
                    self.addresses.remove(address);
                }
            }
        }
    }

    /// Makes a change of the pipeline hold; whether there is something to do for the manager.
    pub fn changed(&mut self, present: &Present<'_>, touched: &Touched) -> bool {
        if self.by_tunnel.is_empty() || self.has_failed {
            return false;
        }
        let mut concerned = Vec::new();
        match touched {
            Touched::Entries(flows) => {
                for flow in flows {
                    match self.concerned(flow) {
                        Concerned::Nobody => {}
                        Concerned::Teid(teid) => {
                            concerned.extend(self.by_teid.get(&teid).into_iter().flatten().copied())
                        }
                        Concerned::Everybody => return self.pause(),
                    }
                }
            }
            Touched::Port(port) => {
                let all = self.entries.iter().enumerate();
                let ask = |(at, entry): (usize, &Option<Box<Entry>>)| {
                    entry.as_ref().filter(|entry| entry.asks_for(*port)).map(|_| at as u32)
                };
                concerned.extend(all.filter_map(ask));
            }
        }
        // An entry that was replaced is there twice.
        concerned.sort_unstable();
        concerned.dedup();
        if concerned.len() > AT_ONCE {
            return self.pause();
        }
        if !self.renew(present, &concerned, true) {
            self.give_up(present, concerned);
        }
        self.is_paused()
    }

    /// Whom it concerns that a rule is there or not.
    fn concerned(&self, flow: &Flow) -> Concerned {
        let exactly = |of| flow.matching.get(of).filter(|oxm| oxm.is_exact()).map(|oxm| oxm.value());
        // Zero is the value of packets that do not have the field, the frame around a tunnel among them.
        let has_no =
            |of| exactly(of).is_some_and(|value| value != 0 && !self.addresses.contains_key(&(value as u64)));
        match exactly(Field::TunnelId) {
            Some(teid) if teid != 0 => u32::try_from(teid).map_or(Concerned::Nobody, Concerned::Teid),
            _ if has_no(Field::EthSrc) || has_no(Field::EthDst) => Concerned::Nobody,
            _ => Concerned::Everybody,
        }
    }

    fn pause(&mut self) -> bool {
        if !self.is_paused() {
            self.steer.pause();
            self.counts.pauses += 1;
        }
        self.stale_from = Some(0);
        true
    }

    /// Translates entries again; `false`: there is no room for what they become, and nothing has changed. With `in_order`, those whose
    /// packets may still be in the host path are taken out if they change.
    fn renew(&mut self, present: &Present<'_>, positions: &[u32], in_order: bool) -> bool {
        let mut changes = Vec::with_capacity(positions.len());
        let (mut renewed, mut leaving) = (Vec::with_capacity(positions.len()), Vec::new());
        for at in positions {
            let Some(entry) = self.active(*at as usize) else { continue };
            let trace = present.pipeline.trace(&entry.outer, &entry.inner);
            let exact = exact::exact(present.pipeline, &entry.outer, &entry.inner, &trace);
            let tunnel = key(&entry.exact.tunnel);
            let is_fresh = self.is_paused()
                || present.now_ns.saturating_sub(entry.since_ns.max(self.resumed_ns)) < FRESH_NS;
            let is_same = exact == Some(entry.exact);
            // Packets that the entry did not take are in the host path; nobody knows for how long they have come.
            let takes_others = exact.is_some_and(|exact| taken(&exact) != taken(&entry.exact));
            match exact.and_then(|exact| Some((exact, self.steer_entry(&exact)?))) {
                Some((exact, new)) if is_same || !(in_order && (is_fresh || takes_others)) => {
                    if !is_same {
                        changes.push(steer::Change::Set(tunnel, new));
                    }
                    renewed.push((*at, exact, trace));
                }
                _ => {
                    changes.push(steer::Change::Set(tunnel, HOST));
                    leaving.push(*at);
                }
            }
        }
        // Right in front of the commit: what is counted until then belongs to the rules from before.
        renewed.iter().map(|(at, ..)| *at).chain(leaving.iter().copied()).for_each(|at| {
            self.count(present, at as usize);
        });
        if self.commit(&changes).is_err() {
            return false;
        }
        self.counts.renewed += renewed.len() as u64;
        for (at, exact, trace) in renewed {
            self.replace(at, exact, trace);
        }
        self.leave(present, leaving);
        true
    }

    /// Gives an entry the translation that the tables have for it.
    fn replace(&mut self, at: u32, exact: Exact, mut trace: Trace) {
        let Some(mut entry) = self.entries[at as usize].take() else { return };
        trace.steps = Vec::new();
        let before = (entry.teids(), entry.addresses());
        (entry.exact, entry.trace) = (exact, trace);
        let after = (entry.teids(), entry.addresses());
        if before != after {
            self.unindex(at, &before.0, &before.1);
            self.index(at, &after.0, &after.1);
        }
        self.entries[at as usize] = Some(entry);
    }

    /// Notes that the host decides on the packets of these entries.
    fn leave(&mut self, present: &Present<'_>, leaving: Vec<u32>) {
        self.counts.left += leaving.len() as u64;
        for at in leaving {
            if let Some(entry) = self.entries[at as usize].as_deref_mut() {
                entry.leaving_ns = Some(present.now_ns);
            }
        }
    }

    /// There is no room for what entries have become: the host path has.
    fn give_up(&mut self, present: &Present<'_>, positions: Vec<u32>) {
        self.is_short = true;
        let positions: Vec<_> =
            positions.into_iter().filter(|at| self.active(*at as usize).is_some()).collect();
        let active = positions.iter().filter_map(|at| self.active(*at as usize));
        let changes: Vec<_> =
            active.map(|entry| steer::Change::Set(key(&entry.exact.tunnel), HOST)).collect();
        match self.commit(&changes) {
            Ok(()) => self.leave(present, positions),
            Err(error) => {
                // Taking out needs no room, so this is a defect; nothing wrong may hold because of it.
                tracing::error!(%error, "XDP does not take a change, and passes everything on");
                self.pause();
            }
        }
    }

    /// Translates some more entries again while XDP pauses. Those without room stay with the host path if a grace period `has_been`.
    pub fn renew_some(&mut self, present: &Present<'_>, count: usize, has_been: bool) -> Renewed {
        let Some(from) = self.stale_from else { return Renewed::All };
        let end = self.end().min(from + count);
        let positions: Vec<u32> = (from as u32..end as u32).collect();
        // Before the slice, so that a failure in it begins anew.
        self.stale_from = (end < self.end()).then_some(end);
        if !self.renew(present, &positions, false) {
            if !has_been {
                self.stale_from = Some(from);
                return Renewed::Waits(self.steer.begin_grace());
            }
            self.give_up(present, positions);
        }
        if self.stale_from.is_some() { Renewed::Some } else { Renewed::All }
    }

    /// Ends the pause, if all entries were translated again.
    pub fn resume(&mut self, now_ns: u64) {
        if self.stale_from.is_none() && !self.has_failed {
            self.resumed_ns = now_ns;
            self.steer.resume();
        }
    }

    /// Counts some entries, takes out those that left, and makes others leave where room is needed.
    pub fn look_after(&mut self, present: &Present<'_>, range: Range<usize>) {
        let (mut changes, mut gone, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        for at in range {
            self.count(present, at);
            let Some(entry) = self.entry(at) else { continue };
            let tunnel = key(&entry.exact.tunnel);
            let since = |then: u64| present.now_ns.saturating_sub(then);
            match entry.leaving_ns {
                Some(then) if since(then) >= LEAVING_NS => {
                    changes.push(steer::Change::Remove(tunnel));
                    gone.push(at as u32);
                }
                None if self.is_short && since(entry.used_ns) >= IDLE_NS => {
                    changes.push(steer::Change::Set(tunnel, HOST));
                    leaving.push(at as u32);
                }
                _ => {}
            }
        }
        if let Err(error) = self.commit(&changes) {
            tracing::error!(%error, "XDP cannot take entries out");
            return;
        }
        gone.into_iter().for_each(|at| drop(self.take(at)));
        self.leave(present, leaving);
    }

    /// All entries were looked at: a grace period for what was given back, if something was.
    pub fn looked_after(&mut self) -> Option<Began> {
        if std::mem::take(&mut self.is_short) {
            let (steer, own) = (&mut self.steer, &self.own);
            self.anchors.retain(|address, entries| {
                *entries > 0 || own.contains(address) || steer.remove_anchor(*address).is_err()
            });
            self.gives_back = true;
        }
        std::mem::take(&mut self.gives_back).then(|| self.steer.begin_grace())
    }
}
