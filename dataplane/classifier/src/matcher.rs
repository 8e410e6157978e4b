//! A [`Filter`] compiled to masks, values and port ranges: the form in which classifiers use it.
//!
//! A key matches when `key[w] & mask[w] == value[w]` for every word and both ports are in their ranges. Every
//! field of a PDI except the ports can be written as a mask and a value, so all conditions of PDR-1 become one
//! masked comparison and two ranges. Prefixes, exact values and non-contiguous masks need no code of their own.
//!
//! [`Field`] cuts the words into fields again, for classifiers that divide the space by dimension (trees, tuples,
//! sorted intervals).

use crate::key::{Key, WORDS, mac_words, present};
use crate::rule::{EthernetFilter, Family, Filter, Prefix, Rule, Side};

/// A compiled filter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C, align(16))]
pub struct Matcher {
    /// Bits that are compared. Zero in word 2: ports are matched as ranges.
    pub mask: [u32; WORDS],
    /// The values of these bits; zero outside the mask.
    pub value: [u32; WORDS],
    /// First and last source port, both included.
    pub source_ports: (u16, u16),
    /// First and last destination port, both included.
    pub destination_ports: (u16, u16),
}

/// A compiled rule with its rank, as backends pass it to one another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranked {
    /// Precedence and id: [`crate::rank`].
    pub rank: u64,
    /// What a match returns.
    pub value: u32,
    /// Which packets the rule selects.
    pub matcher: Matcher,
}

impl Ranked {
    /// A rule, compiled.
    #[inline]
    pub fn new(rule: &Rule) -> Ranked {
        let mut ranked = Ranked { rank: rule.rank(), value: rule.value, matcher: Matcher::ALL };
        if ranked.matcher.demand(&rule.filter).is_none() {
            ranked.matcher = Matcher::NEVER;
        }
        ranked
    }

    /// Id of the rule: the lower half of the rank.
    #[cfg(feature = "learned")]
    pub fn id(&self) -> u32 {
        self.rank as u32
    }
}

/// The fields of a matcher on which nearly every comparison fails: addresses, ports, protocol, ToS and QFI,
/// side by side in 32 octets. For backends that compare rules one by one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FiveTuple {
    mask: [u32; 3],
    expected: [u32; 3],
    source_ports: (u16, u16),
    destination_ports: (u16, u16),
}

impl FiveTuple {
    /// The words of a key that are compared under a mask. Word 2 holds the ports, which are compared as ranges.
    const WORDS: [usize; 3] = [0, 1, 3];

    /// Copies these fields from a matcher.
    pub fn new(matcher: &Matcher) -> FiveTuple {
        FiveTuple {
            mask: FiveTuple::WORDS.map(|word| matcher.mask[word]),
            expected: FiveTuple::WORDS.map(|word| matcher.value[word]),
            source_ports: matcher.source_ports,
            destination_ports: matcher.destination_ports,
        }
    }

    /// Whether a matcher that uses the words `used` ([`Matcher::used_words`]) has no other condition than these
    /// fields.
    pub fn is_all_of(used: u32) -> bool {
        let held: u32 = FiveTuple::WORDS.iter().map(|word| 1 << word).sum();
        used & !held == 0
    }

    /// Whether these fields of the key match.
    #[inline]
    pub fn matches(&self, key: &Key) -> bool {
        let words = &key.words;
        let (source, destination) = ((words[2] >> 16) as u16, words[2] as u16);
        words[0] & self.mask[0] == self.expected[0]
            && words[1] & self.mask[1] == self.expected[1]
            && words[3] & self.mask[2] == self.expected[2]
            && (self.source_ports.0..=self.source_ports.1).contains(&source)
            && (self.destination_ports.0..=self.destination_ports.1).contains(&destination)
    }
}

/// The range of all ports.
pub const ANY_PORT: (u16, u16) = (0, u16::MAX);

impl Matcher {
    /// A matcher that every key matches.
    pub const ALL: Matcher =
        Matcher { mask: [0; WORDS], value: [0; WORDS], source_ports: ANY_PORT, destination_ports: ANY_PORT };

    /// A matcher that no key matches: its value has bits outside its mask.
    pub const NEVER: Matcher = {
        let mut never = Matcher::ALL;
        never.value[0] = 1;
        never
    };

    /// Compiles a filter; `None` when two of its fields exclude each other, so that no packet can ever match.
    ///
    /// Only addresses and the IP versions that fields imply can exclude each other; every other field has bits
    /// of its own. Every update compiles a filter, so this function avoids unneeded work.
    pub fn new(filter: &Filter) -> Option<Matcher> {
        let mut matcher = Matcher::ALL;
        matcher.demand(filter)?;
        Some(matcher)
    }

    /// Adds the conditions of `filter` to this matcher, which must be [`Matcher::ALL`]. Returns
    /// [`used_words`](Self::used_words); `None` when no packet can ever match.
    ///
    /// It writes in place and notes which words it uses. Copying or searching words right after they were
    /// written one by one would stall the processor until each write has finished.
    #[inline(always)]
    pub(crate) fn demand(&mut self, filter: &Filter) -> Option<u32> {
        // Word 3: most fields set bits in it.
        let (mut mask, mut value) = (0, 0);
        let mut require = |bits: u32, of: u32| {
            mask |= bits;
            value |= of;
        };
        let (mut family, mut used) = (0, 0);
        self.addresses(filter, &mut family, &mut used)?;
        if let Some(protocol) = filter.protocol {
            require(0xFF, protocol.into());
        }
        if let Some(range) = filter.source_ports {
            self.source_ports = range.bounds();
            require(present::PORTS, present::PORTS);
        }
        if let Some(range) = filter.destination_ports {
            self.destination_ports = range.bounds();
            require(present::PORTS, present::PORTS);
        }
        if let Some(tos) = filter.tos {
            require(u32::from(tos.mask()) << 8, u32::from(tos.value()) << 8);
        }
        if let Some(qfi) = filter.qfi {
            require(0x3F << 16 | present::QFI, u32::from(qfi.get()) << 16 | present::QFI);
        }
        if let Some(spi) = filter.spi {
            self.add(4, u32::MAX, spi);
            used |= 1 << 4;
            require(present::SPI, present::SPI);
        }
        if let Some(label) = filter.flow_label {
            self.add(5, 0xF_FFFF, label.get());
            used |= 1 << 5;
            family |= present::V6;
        }
        if filter.teid.is_some() {
            require(present::TEID, present::TEID);
        }
        if filter.application.is_some() {
            require(present::APPLICATION, present::APPLICATION);
        }
        if let Some(ethernet) = &filter.ethernet {
            let bits = self.ethernet(ethernet, &mut used);
            require(bits, bits);
        }
        self.tunnel(filter, &mut used);
        if family == present::V4 | present::V6 {
            return None;
        }
        if family != 0 {
            require(present::V4 | present::V6, family);
        }
        (self.mask[3], self.value[3]) = (mask, value);
        used |= u32::from(mask != 0) << 3;
        debug_assert_eq!(used, self.used_words());
        Some(used)
    }

    /// Adds the conditions on addresses, and the IP versions that they imply to `family`. `None` when they
    /// exclude each other.
    #[inline(always)]
    fn addresses(&mut self, filter: &Filter, family: &mut u32, used: &mut u32) -> Option<()> {
        if let Some(prefix) = &filter.source {
            *family |= self.prefix(Side::Source, prefix, used)?;
        }
        if let Some(prefix) = &filter.destination {
            *family |= self.prefix(Side::Destination, prefix, used)?;
        }
        if let Some((side, prefix)) = &filter.ue {
            *family |= match side {
                Side::Source => self.prefix(Side::Source, prefix, used)?,
                Side::Destination => self.prefix(Side::Destination, prefix, used)?,
            };
        }
        Some(())
    }

    /// Adds the conditions on fields that do not come from the packet's headers.
    #[inline(always)]
    fn tunnel(&mut self, filter: &Filter, used: &mut u32) {
        let mut add = |word: usize, mask: u32, value: u32| {
            self.add(word, mask, value);
            *used |= 1 << word;
        };
        if let Some(interface) = filter.source_interface {
            add(5, 0xFF << 24, (u32::from(interface.get()) + 1) << 24);
        }
        if let Some(teid) = filter.teid {
            add(6, u32::MAX, teid);
        }
        if let Some(number) = filter.local_address {
            add(7, 0x7F << 25, (u32::from(number.get()) + 1) << 25);
        }
        if let Some(id) = filter.traffic_endpoint {
            add(7, 0x1FF << 16, (u32::from(id) + 1) << 16);
        }
        if let Some(number) = filter.network_instance {
            add(7, 0xFFFF, u32::from(number.get()));
        }
        if let Some(number) = filter.application {
            add(8, u32::MAX, number);
        }
    }

    /// Adds the conditions on the Ethernet header. Returns the presence bits that they require.
    fn ethernet(&mut self, ethernet: &EthernetFilter, used: &mut u32) -> u32 {
        let mut required = present::ETHERNET;
        let mut add = |word: usize, mask: u32, value: u32| {
            self.add(word, mask, value);
            *used |= u32::from(mask != 0) << word;
        };
        let masks = mac_words(ethernet.destination.mask(), ethernet.source.mask());
        let values = mac_words(ethernet.destination.value(), ethernet.source.value());
        for (at, (mask, value)) in masks.into_iter().zip(values).enumerate() {
            add(15 + at, mask, value);
        }
        if let Some(ethertype) = ethernet.ethertype {
            add(18, 0xFFFF_0000, u32::from(ethertype) << 16);
        }
        if let Some(tag) = ethernet.c_tag {
            add(18, u32::from(tag.mask()), u32::from(tag.value()));
            required |= present::C_TAG;
        }
        if let Some(tag) = ethernet.s_tag {
            add(19, u32::from(tag.mask()) << 16, u32::from(tag.value()) << 16);
            required |= present::S_TAG;
        }
        required
    }

    /// Adds a condition on bits that have no condition yet.
    #[inline(always)]
    fn add(&mut self, word: usize, mask: u32, value: u32) {
        self.mask[word] |= mask;
        self.value[word] |= value;
    }

    /// Adds a condition on an address and returns the IP version that it implies; `None` when it excludes a
    /// condition that is already there.
    #[inline(always)]
    fn prefix(&mut self, side: Side, prefix: &Prefix, used: &mut u32) -> Option<u32> {
        let (first, rest) = if side == Side::Source { (0, 9) } else { (1, 12) };
        let mut differ = 0;
        let mut require = |word: usize, at: usize| {
            let (mask, value) = (prefix.mask(at), prefix.word(at));
            differ |= (self.value[word] ^ value) & self.mask[word] & mask;
            self.add(word, mask, value);
            *used |= u32::from(mask != 0) << word;
        };
        require(first, 0);
        if prefix.family() == Family::V6 {
            (1..4).for_each(|at| require(rest + at - 1, at));
        }
        let family = if prefix.family() == Family::V4 { present::V4 } else { present::V6 };
        (differ == 0).then_some(family)
    }

    /// Whether the key matches.
    #[inline]
    pub fn matches(&self, key: &Key) -> bool {
        self.ports_match(key)
            && std::iter::zip(&self.mask, &self.value)
                .zip(&key.words)
                .all(|((mask, value), word)| word & mask == *value)
    }

    /// Whether the ports of the key are in both ranges.
    #[inline]
    pub fn ports_match(&self, key: &Key) -> bool {
        let (source, destination) = ((key.words[2] >> 16) as u16, key.words[2] as u16);
        (self.source_ports.0..=self.source_ports.1).contains(&source)
            && (self.destination_ports.0..=self.destination_ports.1).contains(&destination)
    }

    /// One bit for every word whose mask is not zero.
    pub fn used_words(&self) -> u32 {
        (0..WORDS).fold(0, |used, word| used | u32::from(self.mask[word] != 0) << word)
    }

    /// The bits of `field` that must have a certain value, shifted so that the field starts at bit 0. For
    /// ports: the leading bits that are equal in the whole range. They say less than the range does, unless the
    /// range is a prefix.
    #[inline]
    pub fn mask(&self, field: Field) -> u32 {
        match field {
            Field::SOURCE_PORT => common(self.source_ports),
            Field::DESTINATION_PORT => common(self.destination_ports),
            _ => field.cut(self.mask[field.word as usize]),
        }
    }

    /// The values of the bits of [`mask`](Self::mask()).
    #[inline]
    pub fn value(&self, field: Field) -> u32 {
        match field {
            Field::SOURCE_PORT => u32::from(self.source_ports.0) & common(self.source_ports),
            Field::DESTINATION_PORT => u32::from(self.destination_ports.0) & common(self.destination_ports),
            _ => field.cut(self.value[field.word as usize]),
        }
    }

    /// Smallest and greatest value of `field` that can match, both included. Exact for ranges and prefixes; a
    /// non-contiguous mask matches only some of the values in between.
    #[inline]
    pub fn range(&self, field: Field) -> (u32, u32) {
        match field {
            Field::SOURCE_PORT => (self.source_ports.0.into(), self.source_ports.1.into()),
            Field::DESTINATION_PORT => (self.destination_ports.0.into(), self.destination_ports.1.into()),
            _ => {
                let (mask, value) = (self.mask(field), self.value(field));
                (value, value | !mask & field.max())
            }
        }
    }
}

/// Mask of the leading bits that are equal in all ports of a range.
#[inline]
pub(crate) fn common((first, last): (u16, u16)) -> u32 {
    let differ = u32::from(first ^ last);
    0xFFFF & !(u32::MAX.checked_shr(differ.leading_zeros()).unwrap_or(0))
}

/// A field of a key: `width` bits of a word, starting at bit `shift`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Field {
    pub(crate) word: u8,
    pub(crate) shift: u8,
    pub(crate) width: u8,
}

impl Field {
    const fn new(word: u8, shift: u8, width: u8) -> Field {
        Field { word, shift, width }
    }

    /// Source port.
    pub const SOURCE_PORT: Field = Field::new(2, 16, 16);
    /// Destination port.
    pub const DESTINATION_PORT: Field = Field::new(2, 0, 16);
    /// Source address: IPv4, or the first 32 bits of IPv6.
    pub const SOURCE: Field = Field::new(0, 0, 32);
    /// Destination address, in the same form.
    pub const DESTINATION: Field = Field::new(1, 0, 32);
    /// Transport protocol.
    pub const PROTOCOL: Field = Field::new(3, 0, 8);

    /// Every field, those of the 5-tuple first. No two fields share a bit of the key.
    pub const ALL: [Field; 28] = [
        Field::SOURCE,
        Field::DESTINATION,
        Field::SOURCE_PORT,
        Field::DESTINATION_PORT,
        Field::PROTOCOL,
        Field::new(3, 8, 8),   // ToS
        Field::new(3, 16, 6),  // QFI
        Field::new(3, 22, 10), // presence
        Field::new(4, 0, 32),  // SPI
        Field::new(5, 0, 20),  // flow label
        Field::new(5, 24, 8),  // source interface
        Field::new(6, 0, 32),  // TEID
        Field::new(7, 0, 16),  // network instance
        Field::new(7, 16, 9),  // traffic endpoint
        Field::new(7, 25, 7),  // local address
        Field::new(8, 0, 32),  // application
        Field::new(9, 0, 32),  // source, the rest of IPv6
        Field::new(10, 0, 32),
        Field::new(11, 0, 32),
        Field::new(12, 0, 32), // destination, the rest of IPv6
        Field::new(13, 0, 32),
        Field::new(14, 0, 32),
        Field::new(15, 0, 32), // Ethernet addresses
        Field::new(16, 0, 32),
        Field::new(17, 0, 32),
        Field::new(18, 16, 16), // Ethertype
        Field::new(18, 0, 16),  // C-TAG
        Field::new(19, 16, 16), // S-TAG
    ];

    /// Width in bits.
    pub const fn width(self) -> u32 {
        self.width as u32
    }

    /// Greatest value.
    #[inline]
    pub const fn max(self) -> u32 {
        u32::MAX >> (32 - self.width)
    }

    #[inline]
    fn cut(self, word: u32) -> u32 {
        word >> self.shift & self.max()
    }

    /// The field's value in a key.
    #[inline]
    pub fn of(self, key: &Key) -> u32 {
        self.cut(key.words[self.word as usize])
    }
}
