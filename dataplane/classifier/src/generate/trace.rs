//! Packets that fit a set of rules.

use super::fields::{self, ACCESS, CORE};
use super::{Random, random};
use crate::key::{WORDS, present};
use crate::{Classifier, Ethernet, Key, List, Matcher, Rule};

/// Kind of traffic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Traffic {
    /// Every packet matches a rule that is drawn anew, and lies anywhere in what the rule selects, as with the
    /// trace generator of ClassBench. (An earlier rule may match the packet too.)
    Uniform,
    /// Packets of this many flows, the k-th with a share of 1/k (Zipf's law with exponent 1). Flows are drawn like
    /// uniform packets.
    Zipf {
        /// Number of flows.
        flows: usize,
    },
    /// Packets that no rule matches, of which most miss a rule by one field.
    NoMatch,
}

/// Most different packets of a trace without matches: each was checked against all rules.
pub const MISSES: usize = 2048;

/// Draws `count` packets. Empty when there is no packet of that kind: when there are no rules, or, for
/// [`Traffic::NoMatch`], when the rules match everything.
pub fn trace(rules: &[Rule], traffic: Traffic, count: usize, seed: u64) -> Vec<Key> {
    let mut random = Random::new(random::mix(seed) ^ 0x0074_7261_6365);
    let drawer = Drawer::new(rules);
    match traffic {
        Traffic::Uniform => drawer.draw(count, &mut random),
        Traffic::Zipf { flows } => {
            let flows = drawer.draw(flows.max(1), &mut random);
            zipf(&flows, count, &mut random)
        }
        Traffic::NoMatch => {
            let misses = misses(rules, &drawer, count.min(MISSES), &mut random);
            if misses.is_empty() {
                return misses;
            }
            (0..count).map(|_| misses[random.below(misses.len())]).collect()
        }
    }
}

/// The rules that can match, and what they have in common.
struct Drawer {
    matchers: Vec<Matcher>,
    /// Whether rules use fields beyond the IPv4 5-tuple, so that packets get these too.
    full: bool,
    teids: usize,
}

impl Drawer {
    fn new(rules: &[Rule]) -> Drawer {
        let matchers: Vec<Matcher> = rules.iter().filter_map(|rule| Matcher::new(&rule.filter)).collect();
        // A rule on an IPv4 prefix requires that the packet is not IPv6.
        let five_tuple = |matcher: &Matcher| {
            let fields = 0xFF | present::V4 | present::V6 | present::PORTS;
            matcher.used_words() & !0b1011 == 0
                && matcher.mask[3] & !fields == 0
                && matcher.value[3] & present::V6 == 0
        };
        Drawer { full: !matchers.iter().all(five_tuple), teids: fields::teids(rules.len()), matchers }
    }

    fn draw(&self, count: usize, random: &mut Random) -> Vec<Key> {
        if self.matchers.is_empty() {
            return Vec::new();
        }
        (0..count).map(|_| self.inside(&self.matchers[random.below(self.matchers.len())], random)).collect()
    }

    /// A packet that the matcher matches. Fields that the matcher leaves open are drawn as for other packets.
    fn inside(&self, matcher: &Matcher, random: &mut Random) -> Key {
        let v6 = match matcher.mask[3] & (present::V4 | present::V6) {
            0 => self.full && random.chance(100),
            _ => matcher.value[3] & present::V6 != 0,
        };
        let mut key = self.packet(v6, matcher, random);
        for word in 0..WORDS {
            key.words[word] = key.words[word] & !matcher.mask[word] | matcher.value[word];
        }
        key
    }

    /// A random packet with ports in the matcher's ranges.
    fn packet(&self, v6: bool, matcher: &Matcher, random: &mut Random) -> Key {
        let mut key = Key::unknown();
        key.words[0] = random.word();
        key.words[1] = random.word();
        let mut protocol = [6, 17, 6, 17, 6, 1, 47, 50][random.below(8)];
        if matcher.mask[3] & 0xFF == 0xFF {
            protocol = matcher.value[3] as u8;
        } else if matcher.mask[3] & present::PORTS != 0 {
            protocol = 6;
        }
        key.words[3] = u32::from(protocol) | if v6 { present::V6 } else { present::V4 };
        if v6 {
            (9..15).for_each(|word| key.words[word] = random.word());
        }
        if matches!(protocol, 6 | 17 | 132) || matcher.mask[3] & present::PORTS != 0 {
            let port = |range: (u16, u16), random: &mut Random| random.between(range.0, range.1);
            key = key.with_ports(port(matcher.source_ports, random), port(matcher.destination_ports, random));
        }
        if self.full { self.more(key, v6, protocol, random) } else { key }
    }

    /// Adds the fields that only packets of a UPF have.
    fn more(&self, mut key: Key, v6: bool, protocol: u8, random: &mut Random) -> Key {
        let access = random.chance(500);
        key = key
            .with_tos([46, 34, 26, 18, 10, 8, 0, 0][random.below(8)] << 2)
            .with_source_interface(if access { ACCESS } else { CORE })
            .with_network_instance(1 + random.below(8) as u16);
        if access {
            let qfi = [1, 5, 9, 1, 9, 9, 2 + random.below(62) as u8, 1][random.below(8)];
            key = key
                .with_teid(fields::teid(random.below(self.teids)))
                .with_local_address(random.below(2) as u8)
                .with_qfi(qfi);
        }
        if random.chance(300) {
            key = key.with_application(1 + random.below(64) as u32);
        }
        if random.chance(200) {
            key = key.with_traffic_endpoint(random.below(16) as u8);
        }
        if protocol == 50 {
            key = key.with_spi(random.word());
        }
        if v6 {
            key = key.with_flow_label(random.word());
        }
        if random.chance(50) {
            key = key.with_ethernet(Ethernet {
                destination: [0x02, 0x47, 0x57, 0, random.below(2) as u8, random.word() as u8],
                source: [0x02, 0x47, 0x57, 0, random.below(2) as u8, random.word() as u8],
                ethertype: if v6 { 0x86DD } else { 0x0800 },
                c_tag: random.chance(400).then(|| 1 + random.below(100) as u16),
                s_tag: None,
            });
        }
        key
    }
}

fn zipf(flows: &[Key], count: usize, random: &mut Random) -> Vec<Key> {
    if flows.is_empty() {
        return Vec::new();
    }
    // Cumulated shares in units of 2⁻³²: integers, so that all machines agree.
    let mut shares = Vec::with_capacity(flows.len());
    let mut sum = 0;
    for rank in 1..=flows.len() as u64 {
        sum += (1 << 32) / rank;
        shares.push(sum);
    }
    let one = |_| {
        let at = random.below(sum as usize) as u64;
        flows[shares.partition_point(|share| *share <= at)]
    };
    (0..count).map(one).collect()
}

/// Up to `count` different packets that no rule matches.
fn misses(rules: &[Rule], drawer: &Drawer, count: usize, random: &mut Random) -> Vec<Key> {
    let mut list = List::new();
    for rule in rules {
        // An id that exists twice is the caller's mistake; the second rule is ignored.
        let _ = list.insert(*rule);
    }
    let mut found = Vec::new();
    // A set of wide rules matches nearly everything. The search is bounded, but long enough when one packet in
    // 16 matches no rule.
    for attempt in 0..64 * count {
        let near = drawer.matchers.get(random.below(drawer.matchers.len()));
        let key = match near {
            Some(matcher) if attempt % 16 < 12 => beside(drawer.inside(matcher, random), attempt, random),
            _ => {
                let key = drawer.packet(drawer.full && random.chance(100), &Matcher::ALL, random);
                beside(key, attempt / 16, random)
            }
        };
        let mut verdict = [None];
        list.classify(&[key], &mut verdict);
        if verdict[0].is_none() {
            found.push(key);
            if found.len() == count {
                break;
            }
        }
    }
    found
}

/// The packet with one field changed.
fn beside(mut key: Key, which: usize, random: &mut Random) -> Key {
    match which % 4 {
        0 => key.words[0] = random.word(),
        1 => key.words[1] = random.word(),
        2 => key.words[2] = random.word(),
        // Protocols that rules do not use.
        _ => key.words[3] = key.words[3] & !0xFF | [132, 2, 89, 253][random.below(4)],
    }
    key
}
