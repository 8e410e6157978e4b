//! Rule sets and packet traces for tests and benchmarks, from a seed.
//!
//! Sets resemble those of ClassBench (Taylor, Turner: "ClassBench: A Packet Classification Benchmark", IEEE INFOCOM
//! 2005 and IEEE/ACM ToN 15(3), 2007): [`Family::Acl`] access lists, [`Family::Fw`] firewalls, [`Family::Ipc`] IP
//! chains, drawn from published statistics of protocols, port classes, prefix lengths and address trees
//! (`families.rs`). None of ClassBench's code or seed files is used. [`Fields::Full`] adds the other fields of
//! PDRs (`fields.rs`). [`trace()`] draws packets that fit a set (`trace.rs`).
//!
//! A rule is drawn as ClassBench does: protocol; port classes given the protocol; prefix lengths given the classes;
//! ports from the lists of the family; addresses by a walk down a random tree whose branching and skew are given per
//! level. The tree is not built: whether a node branches follows from a hash of its prefix, so it costs no memory and
//! the same seed has the same addresses at every size. Larger sets have more of them: branching in the lower half of
//! a tree grows so that the number of addresses doubles when the number of rules grows fourfold. In 15 % of the rules
//! prefix lengths are moved by up to two bits (ClassBench's "smoothing").
//!
//! No two rules of a set have the same filter: a repeated rule is drawn anew. After [`PATIENCE`] tries, exact
//! ports and addresses are drawn at random. No rule selects every packet, so that a packet without a match
//! exists. Narrow rules come before wide ones (as in ClassBench sets). The precedence is the position in that
//! order, except that 5 % of the rules have their predecessor's. Id and value are the position too.
//!
//! Everything follows from the seed by integer arithmetic, so sets are equal on every machine.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use crate::{Field, Filter, Matcher, PortRange, Prefix, Rule};

mod families;
mod fields;
mod random;
mod trace;

use families::{Levels, Port, Profile};
pub use random::Random;
pub use trace::{Traffic, trace};

/// Kind of rule set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// Access control lists (acl1): mostly host pairs and destination ports.
    Acl,
    /// Firewalls (fw1): many wildcards, so many overlaps.
    Fw,
    /// IP chains (ipc1): a mixture of both.
    Ipc,
    /// The best case of tuple space search: all rules in one tuple (exact hosts, ports and protocol).
    OneTuple,
    /// The worst case of tuple space search: every rule in a tuple of its own, up to 314 thousand rules.
    EachItsTuple,
}

impl Family {
    /// The three families of ClassBench.
    pub const CLASSBENCH: [Family; 3] = [Family::Acl, Family::Fw, Family::Ipc];

    /// The name in benchmark results.
    pub fn name(self) -> &'static str {
        match self {
            Family::Acl => "acl",
            Family::Fw => "fw",
            Family::Ipc => "ipc",
            Family::OneTuple => "one_tuple",
            Family::EachItsTuple => "each_its_tuple",
        }
    }
}

/// Which fields rules have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fields {
    /// IPv4 addresses, protocol, ports.
    FiveTuple,
    /// All fields of a PDR, some IPv6 and Ethernet among them.
    Full,
}

/// Number of repeated draws of one rule before its ports and addresses are drawn at random.
pub const PATIENCE: usize = 12;

/// Draws `n` rules, in order of precedence.
pub fn rules(family: Family, fields: Fields, n: usize, seed: u64) -> Vec<Rule> {
    let generator = Generator::new(family, n, seed);
    let mut random = Random::new(seed);
    let mut seen = HashSet::with_capacity(n);
    let mut filters = Vec::with_capacity(n);
    while filters.len() < n {
        let mut tries = 0;
        loop {
            let mut filter = match family {
                Family::Acl | Family::Fw | Family::Ipc => {
                    generator.classbench(&mut random, tries >= PATIENCE)
                }
                Family::OneTuple => one_tuple(&mut random),
                Family::EachItsTuple => each_its_tuple(filters.len(), &mut random),
            };
            if fields == Fields::Full {
                fields::extend(&mut filter, n, &mut random);
            }
            if !filter.selects_all() && seen.insert(filter) {
                filters.push(filter);
                break;
            }
            tries += 1;
        }
    }
    if Family::CLASSBENCH.contains(&family) {
        filters.sort_by_cached_key(scope);
    }
    let mut precedence = 0;
    let place = |(at, filter): (usize, &Filter)| {
        let id = at as u32;
        if !random.chance(50) {
            precedence = id;
        }
        Rule { id, precedence, value: id, filter: *filter }
    };
    filters.iter().enumerate().map(place).collect()
}

/// The number of bits that a filter leaves open: the logarithm of how many packets it selects.
fn scope(filter: &Filter) -> u32 {
    let Some(matcher) = Matcher::new(filter) else { return 0 };
    let open = |field: &Field| {
        let (first, last) = matcher.range(*field);
        match *field {
            Field::SOURCE_PORT | Field::DESTINATION_PORT => u32::BITS - (last - first).leading_zeros(),
            field => field.width() - matcher.mask(field).count_ones(),
        }
    };
    Field::ALL.iter().map(open).sum()
}

/// Parameters that are equal for all rules of a set.
struct Generator {
    profile: &'static Profile,
    seed: u64,
    /// Permille of branching that are added in the lower half of the address trees.
    growth: u32,
}

impl Generator {
    fn new(family: Family, n: usize, seed: u64) -> Generator {
        let profile = Profile::of(family);
        // Over 16 levels, 22 permille more branching each make 2^(1/2) times the leaves.
        let doublings = (n / profile.scale).checked_ilog2().unwrap_or(0);
        Generator { profile, seed, growth: 22 * doublings }
    }

    /// Draws a filter on the 5-tuple.
    fn classbench(&self, random: &mut Random, at_random: bool) -> Filter {
        let profile = self.profile;
        let &(protocol, classes) = random.weighted(profile.protocols);
        let &(source_class, destination_class) = random.weighted(classes);
        let &(mut source, mut destination) =
            random.weighted(profile.lengths_of((source_class, destination_class)));
        if random.chance(150) {
            source = smooth(source, random);
            destination = smooth(destination, random);
        }
        let (mut from, mut to) = self.addresses(random);
        if at_random {
            (from, to) = (from ^ random.word() & 0xFF_FFFF, to ^ random.word() & 0xFF_FFFF);
        }
        Filter {
            source: prefix(from, source),
            destination: prefix(to, destination),
            protocol,
            source_ports: ports(source_class, profile.source_ranges, profile.source_ports, at_random, random),
            destination_ports: ports(
                destination_class,
                profile.destination_ranges,
                profile.destination_ports,
                at_random,
                random,
            ),
            ..Filter::default()
        }
    }

    /// Draws source and destination address.
    fn addresses(&self, random: &mut Random) -> (u32, u32) {
        let profile = self.profile;
        let source = self.walk(profile.sources, 1, (0, 0), random);
        let start = if random.chance(profile.correlated) {
            let bits = profile.common_bits;
            (bits, source >> (32 - bits))
        } else {
            (0, 0)
        };
        (source, self.walk(profile.destinations, 2, start, random))
    }

    /// Walks down a tree from the prefix `start` (length and bits).
    fn walk(&self, levels: Levels, tree: u64, start: (u8, u32), random: &mut Random) -> u32 {
        let (mut depth, mut bits) = start;
        while depth < 32 {
            let (branching, skew) = at_level(levels, depth);
            let branching = if depth < 16 { branching } else { branching + self.growth };
            let node =
                random::mix(self.seed ^ tree << 40 ^ u64::from(depth) << 32 ^ u64::from(bits) ^ tree << 61);
            let heavy = (node >> 32) as u32 & 1;
            // Weights of the children are 1 and 1 - skew.
            let light =
                node % 1000 < u64::from(branching) && random.below(200 - skew as usize) < 100 - skew as usize;
            bits = bits << 1 | heavy ^ u32::from(light);
            depth += 1;
        }
        bits
    }
}

/// Branching and skew at this depth.
fn at_level(levels: Levels, depth: u8) -> (u32, u32) {
    let mut below = 0;
    for &(count, branching, skew) in levels {
        below += count;
        if depth < below {
            return (branching, skew);
        }
    }
    (0, 0)
}

/// Moves a prefix length by up to two bits, mostly not at all or by one.
fn smooth(length: u8, random: &mut Random) -> u8 {
    let up = random.below(2) + random.below(2);
    let down = random.below(2) + random.below(2);
    (length + up as u8).saturating_sub(down as u8).min(32)
}

fn prefix(address: u32, length: u8) -> Option<Prefix> {
    if length == 0 {
        return None;
    }
    Prefix::new(IpAddr::V4(Ipv4Addr::from(address)), length).ok()
}

fn ports(
    class: Port,
    ranges: &[(u32, (u16, u16))],
    exact: &[(u32, u16)],
    at_random: bool,
    random: &mut Random,
) -> Option<PortRange> {
    match class {
        Port::Any => None,
        Port::High => PortRange::new(1024, u16::MAX).ok(),
        Port::Range => {
            let &(first, last) = random.weighted(ranges);
            PortRange::new(first, last).ok()
        }
        Port::Exact if at_random => Some(PortRange::single(random.word() as u16)),
        Port::Exact => Some(PortRange::single(*random.weighted(exact))),
    }
}

/// A filter on two hosts, two ports and a protocol.
fn one_tuple(random: &mut Random) -> Filter {
    Filter {
        source: prefix(random.word(), 32),
        destination: prefix(random.word(), 32),
        protocol: Some(if random.chance(500) { 6 } else { 17 }),
        source_ports: Some(PortRange::single(random.word() as u16)),
        destination_ports: Some(PortRange::single(random.word() as u16)),
        ..Filter::default()
    }
}

/// The filter of the tuple with this number: 33 source and 33 destination prefix lengths, and 17 prefix lengths
/// of either port. Neighbours differ in all four, so that small sets have long and short prefixes of each.
fn each_its_tuple(number: usize, random: &mut Random) -> Filter {
    const TUPLES: u64 = 33 * 33 * 17 * 17;
    // The step has no factor in common with the number of tuples, so every tuple is visited once.
    let tuple = ((number as u64 * 142_111 + 3) % TUPLES) as usize;
    let (source, rest) = (tuple % 33, tuple / 33);
    let (destination, rest) = (rest % 33, rest / 33);
    let (source_port, destination_port) = (rest % 17, rest / 17);
    let port = |bits: usize, random: &mut Random| {
        let open = u16::MAX.checked_shr(bits as u32).unwrap_or(0);
        let first = random.word() as u16 & !open;
        PortRange::new(first, first | open).ok()
    };
    Filter {
        source: Prefix::new(IpAddr::V4(Ipv4Addr::from(random.word())), source as u8).ok(),
        destination: Prefix::new(IpAddr::V4(Ipv4Addr::from(random.word())), destination as u8).ok(),
        protocol: Some(17),
        source_ports: port(source_port, random),
        destination_ports: port(destination_port, random),
        ..Filter::default()
    }
}

#[cfg(test)]
mod tests;
