//! The fields of one packet, as columns of 32-bit words.
//!
//! Every match field has a fixed place in [`WORDS`] words, so that a rule is a mask and a value per word (see
//! [`Matcher`](crate::Matcher)) and a classifier need not know what a field means. IPv4 packets use the first eight
//! words only, one half of a cache line.
//!
//! ```text
//! word  bits
//!  0    source address: IPv4, or the first 32 bits of IPv6      (9, 10, 11: the others)
//!  1    destination address, likewise                           (12, 13, 14)
//!  2    source port 16 | destination port 16
//!  3    presence 10 | QFI 6 | ToS 8 | protocol 8
//!  4    SPI
//!  5    source interface + 1: 8 | unused 4 | flow label 20
//!  6    TEID
//!  7    local address + 1: 7 | traffic endpoint + 1: 9 | network instance 16
//!  8    application
//! 15    Ethernet destination 32     16    destination 16 | source 16     17    source 32
//! 18    Ethertype 16 | C-TAG 16     19    S-TAG 16 | unused 16
//! ```
//! "+ 1" leaves zero for "not known", which no rule on that field matches. A field in which every value is
//! valid has a presence bit in word 3 instead; a rule on the field also requires this bit.

use std::net::IpAddr;

/// Words of a key.
pub const WORDS: usize = 20;

/// Presence bits of word 3.
pub(crate) mod present {
    pub const QFI: u32 = 1 << 22;
    pub const S_TAG: u32 = 1 << 23;
    pub const SPI: u32 = 1 << 24;
    pub const V4: u32 = 1 << 25;
    pub const V6: u32 = 1 << 26;
    pub const ETHERNET: u32 = 1 << 27;
    pub const C_TAG: u32 = 1 << 28;
    pub const PORTS: u32 = 1 << 29;
    pub const TEID: u32 = 1 << 30;
    pub const APPLICATION: u32 = 1 << 31;
}

/// The fields of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C, align(16))]
pub struct Key {
    pub(crate) words: [u32; WORDS],
}

/// The fields of an Ethernet header that rules can match.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ethernet {
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// Ethertype of the payload, behind the tags.
    pub ethertype: u16,
    /// Customer tag (IEEE 802.1Q): priority 3, drop eligible 1, VLAN 12 bits.
    pub c_tag: Option<u16>,
    /// Service tag (IEEE 802.1ad), with the same bits.
    pub s_tag: Option<u16>,
}

impl Key {
    /// The key of a packet of which no field is known.
    pub fn unknown() -> Key {
        Key { words: [0; WORDS] }
    }

    /// The key of an IP packet. When the two addresses are of different families, no rule on an address
    /// matches.
    #[inline]
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8) -> Key {
        let mut key = Key::unknown();
        key.words[3] = u32::from(protocol);
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                key.words[0] = source.to_bits();
                key.words[1] = destination.to_bits();
                key.words[3] |= present::V4;
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (source, destination) = (split(source.to_bits()), split(destination.to_bits()));
                (key.words[0], key.words[1]) = (source[0], destination[0]);
                key.words[9..12].copy_from_slice(&source[1..]);
                key.words[12..15].copy_from_slice(&destination[1..]);
                key.words[3] |= present::V6;
            }
            _ => {}
        }
        key
    }

    /// Sets this key, in place, to that of an IPv4 packet with ports; `ports` has the source port in the upper
    /// half. `qfi` is the QoS flow identifier, if the packet has one. Most packets are of this kind, and this
    /// way none of the key is copied.
    #[inline(always)]
    pub fn set_v4(&mut self, addresses: [u32; 2], ports: u32, protocol: u8, tos: u8, qfi: Option<u8>) {
        let flow = qfi.map_or(0, |qfi| u32::from(qfi & 0x3F) << 16 | present::QFI);
        let known = present::V4 | present::PORTS | u32::from(tos) << 8 | u32::from(protocol);
        self.words = [0; WORDS];
        self.words[..4].copy_from_slice(&[addresses[0], addresses[1], ports, flow | known]);
    }

    /// Sets source and destination port, for protocols with ports when the packet shows them.
    #[inline]
    pub fn with_ports(mut self, source: u16, destination: u16) -> Key {
        self.words[2] = u32::from(source) << 16 | u32::from(destination);
        self.words[3] |= present::PORTS;
        self
    }

    /// Sets the type of service or traffic class.
    #[inline]
    pub fn with_tos(mut self, tos: u8) -> Key {
        self.words[3] = self.words[3] & !0xFF00 | u32::from(tos) << 8;
        self
    }

    /// Sets the QoS flow identifier of the PDU Session Container; the lower 6 bits are used.
    #[inline]
    pub fn with_qfi(mut self, qfi: u8) -> Key {
        self.words[3] = self.words[3] & !(0x3F << 16) | u32::from(qfi & 0x3F) << 16 | present::QFI;
        self
    }

    /// Sets the security parameter index of ESP or AH.
    #[inline]
    pub fn with_spi(mut self, spi: u32) -> Key {
        self.words[4] = spi;
        self.words[3] |= present::SPI;
        self
    }

    /// Sets the IPv6 flow label; the lower 20 bits are used. Rules on the flow label match IPv6 packets only.
    #[inline]
    pub fn with_flow_label(mut self, label: u32) -> Key {
        self.words[5] = self.words[5] & !0xF_FFFF | label & 0xF_FFFF;
        self
    }

    /// Sets the source interface (TS 29.244 §8.2.2).
    #[inline]
    pub fn with_source_interface(mut self, interface: u8) -> Key {
        self.words[5] = self.words[5] & 0x00FF_FFFF | (u32::from(interface & 0x0F) + 1) << 24;
        self
    }

    /// Sets the identifier of the tunnel endpoint (TEID) at which the packet arrived.
    #[inline]
    pub fn with_teid(mut self, teid: u32) -> Key {
        self.words[6] = teid;
        self.words[3] |= present::TEID;
        self
    }

    /// Sets the local address at which the tunnel ends, as a number below 127 that the user of the crate
    /// assigned.
    #[inline]
    pub fn with_local_address(mut self, number: u8) -> Key {
        self.words[7] = self.words[7] & 0x01FF_FFFF | (u32::from(number.min(126)) + 1) << 25;
        self
    }

    /// Sets the network instance, as a number above zero that the user of the crate assigned.
    #[inline]
    pub fn with_network_instance(mut self, number: u16) -> Key {
        self.words[7] = self.words[7] & !0xFFFF | u32::from(number);
        self
    }

    /// Sets the traffic endpoint (TS 29.244 §8.2.92).
    #[inline]
    pub fn with_traffic_endpoint(mut self, id: u8) -> Key {
        self.words[7] = self.words[7] & !(0x1FF << 16) | (u32::from(id) + 1) << 16;
        self
    }

    /// Sets the application that was detected, as a number that the user of the crate assigned.
    #[inline]
    pub fn with_application(mut self, number: u32) -> Key {
        self.words[8] = number;
        self.words[3] |= present::APPLICATION;
        self
    }

    /// Sets the fields of the Ethernet header.
    #[inline]
    pub fn with_ethernet(mut self, header: Ethernet) -> Key {
        let [high, middle, low] = mac_words(header.destination, header.source);
        (self.words[15], self.words[16], self.words[17]) = (high, middle, low);
        self.words[18] = u32::from(header.ethertype) << 16 | u32::from(header.c_tag.unwrap_or(0));
        self.words[19] = u32::from(header.s_tag.unwrap_or(0)) << 16;
        self.words[3] &= !(present::C_TAG | present::S_TAG);
        self.words[3] |= present::ETHERNET;
        self.words[3] |= if header.c_tag.is_some() { present::C_TAG } else { 0 };
        self.words[3] |= if header.s_tag.is_some() { present::S_TAG } else { 0 };
        self
    }

    /// The words, laid out as the module's table shows.
    #[inline]
    pub fn words(&self) -> &[u32; WORDS] {
        &self.words
    }

    /// The destination address of an IPv4 packet.
    #[inline(always)]
    pub fn destination_v4(&self) -> Option<u32> {
        (self.words[3] & present::V4 != 0).then_some(self.words[1])
    }

    /// A key of any words, for tests and fuzzers: classifiers must be right for these too. Words that claim
    /// both IP versions, as no real key does, become an IPv4 key.
    pub fn from_words(mut words: [u32; WORDS]) -> Key {
        if words[3] & present::V4 != 0 {
            words[3] &= !present::V6;
        }
        Key { words }
    }
}

/// The four words of an address, most significant first.
pub(crate) fn split(bits: u128) -> [u32; 4] {
    [(bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32]
}

/// The words 15 to 17 of a pair of Ethernet addresses.
pub(crate) fn mac_words(destination: [u8; 6], source: [u8; 6]) -> [u32; 3] {
    let [d0, d1, d2, d3, d4, d5] = destination;
    let [s0, s1, s2, s3, s4, s5] = source;
    [
        u32::from_be_bytes([d0, d1, d2, d3]),
        u32::from_be_bytes([d4, d5, s0, s1]),
        u32::from_be_bytes([s2, s3, s4, s5]),
    ]
}
