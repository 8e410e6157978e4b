//! Filters and rules.
//!
//! Constructors check their arguments: a prefix longer than its address or a reversed port range is an error.
//! It never becomes a rule with another meaning.

use std::fmt;
use std::net::IpAddr;

use crate::key::split;
use crate::{Key, Matcher};

/// Why a filter could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RuleError {
    /// Prefix longer than the address.
    #[error("prefix length {length} exceeds the {bits} bits of the address")]
    PrefixLength {
        /// The length as given.
        length: u8,
        /// Length of the address in bits: 32 or 128.
        bits: u8,
    },
    /// First port above the last.
    #[error("port range {0}-{1} is reversed")]
    PortRange(u16, u16),
    /// A number out of its range.
    #[error("{field} {value} is out of range")]
    Number {
        /// Name of the field.
        field: &'static str,
        /// The number as given.
        value: u32,
    },
}

/// IP version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Which of a packet's two addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// A mask of the first `length` bits of a word; all 32 bits when `length` is greater.
#[inline]
fn mask(length: u8) -> u32 {
    (u64::MAX << (32 - length.min(32))) as u32
}

/// An address prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    family: Family,
    length: u8,
    /// Words of the address, most significant first; zero behind the prefix. IPv4 uses the first word only.
    words: [u32; 4],
}

impl Prefix {
    /// The prefix of `length` bits of `address`; later bits of the address are ignored.
    pub fn new(address: IpAddr, length: u8) -> Result<Prefix, RuleError> {
        let host = Prefix::host(address);
        if length > host.length {
            return Err(RuleError::PrefixLength { length, bits: host.length });
        }
        let mut prefix = Prefix { length, ..host };
        for at in 0..4 {
            prefix.words[at] &= prefix.mask(at);
        }
        Ok(prefix)
    }

    /// A prefix that holds this address only.
    pub fn host(address: IpAddr) -> Prefix {
        match address {
            IpAddr::V4(address) => {
                Prefix { family: Family::V4, length: 32, words: [address.to_bits(), 0, 0, 0] }
            }
            IpAddr::V6(address) => {
                Prefix { family: Family::V6, length: 128, words: split(address.to_bits()) }
            }
        }
    }

    /// IP version.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The first address of the prefix.
    pub fn address(&self) -> IpAddr {
        match self.family {
            Family::V4 => IpAddr::V4(self.words[0].into()),
            Family::V6 => {
                let bits = self.words.iter().fold(0, |bits, word| bits << 32 | u128::from(*word));
                IpAddr::V6(bits.into())
            }
        }
    }

    /// Length in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Word `at` (0 to 3) of the address, most significant word first; IPv4 has word 0 only. Bits behind the
    /// prefix are 0.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> u32 {
        self.words[at]
    }

    /// Mask of the bits of word `at` that belong to the prefix.
    #[inline]
    pub(crate) fn mask(&self, at: usize) -> u32 {
        mask(self.length.saturating_sub(32 * at as u8))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address(), self.length())
    }
}

/// Ports from `first` to `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// A range of ports; an error when `first` is above `last`.
    pub fn new(first: u16, last: u16) -> Result<PortRange, RuleError> {
        if first > last { Err(RuleError::PortRange(first, last)) } else { Ok(PortRange { first, last }) }
    }

    /// A range of one port.
    pub fn single(port: u16) -> PortRange {
        PortRange { first: port, last: port }
    }

    /// First and last port.
    pub fn bounds(self) -> (u16, u16) {
        (self.first, self.last)
    }
}

/// A value and a mask: only the bits of the mask are compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Masked<T = u8> {
    value: T,
    mask: T,
}

impl Masked<u8> {
    /// Bits of `value` outside `mask` are ignored. The mask need not be contiguous.
    pub fn new(value: u8, mask: u8) -> Masked {
        Masked { value: value & mask, mask }
    }
}

impl Masked<u16> {
    /// A value and mask of a VLAN tag (tag control information): priority 3 bits, drop eligible 1, VLAN 12.
    pub fn tag(value: u16, mask: u16) -> Masked<u16> {
        Masked { value: value & mask, mask }
    }
}

impl Masked<[u8; 6]> {
    /// A value and mask of an Ethernet address.
    pub fn mac(value: [u8; 6], mask: [u8; 6]) -> Masked<[u8; 6]> {
        Masked { value: std::array::from_fn(|at| value[at] & mask[at]), mask }
    }
}

impl<T: Copy> Masked<T> {
    /// The value; zero outside the mask.
    pub fn value(self) -> T {
        self.value
    }

    /// The mask: the bits that are compared.
    pub fn mask(self) -> T {
        self.mask
    }
}

/// Defines a number type whose constructor checks the range.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $range:expr, $field:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name($inner);

        impl $name {
            /// The number; an error when it is out of range.
            pub fn new(value: $inner) -> Result<$name, RuleError> {
                if $range.contains(&value) {
                    Ok($name(value))
                } else {
                    Err(RuleError::Number { field: $field, value: value.into() })
                }
            }

            /// The number.
            pub fn get(self) -> $inner {
                self.0
            }
        }
    };
}

number!(/** An IPv6 flow label of 20 bits. */ FlowLabel, u32, (0..=0x000F_FFFF), "flow label");
number!(/** A QoS flow identifier of 6 bits. */ Qfi, u8, (0..=63), "QFI");
number!(/** A source interface of 4 bits (TS 29.244 §8.2.2). */ Interface, u8, (0..=15), "source interface");
number!(
    /** A network instance, numbered from 1 by the user of the crate. */
    NetworkInstance, u16, (1..=u16::MAX), "network instance"
);
number!(
    /** A local address that tunnels end at, numbered by the user of the crate. */
    LocalAddress, u8, (0..=126), "local address"
);

/// Conditions on the Ethernet header (TS 29.244 §8.2.93 to §8.2.97). The default selects every packet with an
/// Ethernet header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EthernetFilter {
    /// Destination address.
    pub destination: Masked<[u8; 6]>,
    /// Source address.
    pub source: Masked<[u8; 6]>,
    /// Ethertype of the payload.
    pub ethertype: Option<u16>,
    /// Customer tag (C-TAG). A packet without this tag does not match.
    pub c_tag: Option<Masked<u16>>,
    /// Service tag (S-TAG). A packet without this tag does not match.
    pub s_tag: Option<Masked<u16>>,
}

/// What a rule selects: all fields that are set must match. The default selects every packet.
///
/// These are the fields of the packet detection information, TS 29.244 §7.5.2.2-2 (PDR-1). Two of them are not
/// fields of a packet and are resolved before: an SDF filter ID names a filter that was sent before, and a
/// bidirectional filter is two filters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Filter {
    /// Source prefix.
    pub source: Option<Prefix>,
    /// Destination prefix.
    pub destination: Option<Prefix>,
    /// The UE's address or prefix, and the side on which it must stand. Applies in addition to `source` and
    /// `destination`.
    pub ue: Option<(Side, Prefix)>,
    /// Transport protocol.
    pub protocol: Option<u8>,
    /// Source ports. A packet without ports does not match.
    pub source_ports: Option<PortRange>,
    /// Destination ports. A packet without ports does not match.
    pub destination_ports: Option<PortRange>,
    /// Type of service or traffic class.
    pub tos: Option<Masked>,
    /// Security parameter index. A packet without SPI does not match.
    pub spi: Option<u32>,
    /// IPv6 flow label. IPv4 packets do not match.
    pub flow_label: Option<FlowLabel>,
    /// QoS flow identifier. A packet without QFI does not match.
    pub qfi: Option<Qfi>,
    /// Source interface.
    pub source_interface: Option<Interface>,
    /// Local F-TEID: tunnel endpoint identifier.
    pub teid: Option<u32>,
    /// Local F-TEID: address.
    pub local_address: Option<LocalAddress>,
    /// Network instance.
    pub network_instance: Option<NetworkInstance>,
    /// Traffic endpoint.
    pub traffic_endpoint: Option<u8>,
    /// Application ID, numbered by the user of the crate. A packet of an unknown application does not match.
    pub application: Option<u32>,
    /// Ethernet header. A packet without Ethernet header does not match.
    pub ethernet: Option<EthernetFilter>,
}

impl Filter {
    /// Whether the filter selects every packet, so that the caller need not build a key.
    pub fn selects_all(&self) -> bool {
        *self == Filter::default()
    }

    /// Whether the filter selects this packet. To test many packets, compile the filter to a [`Matcher`] once.
    pub fn matches(&self, key: &Key) -> bool {
        Matcher::new(self).is_some_and(|matcher| matcher.matches(key))
    }
}

/// A filter with its precedence and the value that a match returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Unique in its classifier; the lower id wins among equal precedences.
    pub id: u32,
    /// The lower value wins.
    pub precedence: u32,
    /// What a match returns: the position of a PDR, for instance. Several rules may share it, as
    /// several SDF filters share a PDR.
    pub value: u32,
    /// Which packets the rule selects.
    pub filter: Filter,
}

impl Rule {
    /// Position in the order of precedence, then id. The matching rule with the least rank wins.
    #[inline]
    pub fn rank(&self) -> u64 {
        rank(self.precedence, self.id)
    }
}

/// The rank of a rule: precedence in the upper half, id in the lower.
#[inline]
pub fn rank(precedence: u32, id: u32) -> u64 {
    u64::from(precedence) << 32 | u64::from(id)
}
