//! Super-packets: the kernel's devices exchange up to 64 kB of one flow as a single packet, which a header of virtio
//! describes. [`cut`] makes frames of such a packet, [`join`] makes one of frames.
//!
//! Both are pure functions on octets, so that ports, tests and the fuzzer share them. They keep these invariants:
//! - a packet that was cut is what the kernel would have sent on a link without segmentation;
//! - only packets with right checksums are joined, as what is joined gets a new one;
//! - cutting what was joined gives the same packets again, apart from the IPv4 identification of packets that must not
//!   be fragmented, which has no meaning (RFC 6864 §4.1).
//!
//! Clauses are of Virtual I/O Device (VIRTIO) 1.2; the kernel's names are those of `linux/virtio_net.h`.

pub mod cut;
pub mod join;

/// Length of [`VnetHeader`] in octets: `struct virtio_net_hdr`, which a TUN device uses unless told otherwise.
pub const VNET_HEADER: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds the sum of the pseudo header only.
pub const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_NONE`: an ordinary packet.
pub const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`: TCP on IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`: TCP on IPv6.
pub const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: UDP datagrams of one length.
pub const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`: besides TCP, there may be CWR in the first segment.
pub const GSO_ECN: u8 = 0x80;

/// Octets of an IPv4 header without options.
const IPV4: usize = 20;
/// Octets of an IPv6 header without extension headers.
const IPV6: usize = 40;
/// Octets of a TCP header without options.
const TCP: usize = 20;
/// Octets of a UDP header.
const UDP: usize = 8;
/// Where the checksum is in a TCP header.
const TCP_CHECKSUM: usize = 16;
/// Where the checksum is in a UDP header.
const UDP_CHECKSUM: usize = 6;

/// TCP flags in octet 13 of the header (RFC 9293 §3.1).
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;

/// The header in front of each packet of a device with `IFF_VNET_HDR` (virtio §5.1.6), in the machine's byte order as
/// for every device that has not chosen one by `TUNSETVNETLE`.
///
/// | octet | 0 | 1 | 2–3 | 4–5 | 6–7 | 8–9 |
/// |---|---|---|---|---|---|---|
/// | field | flags | gso_type | hdr_len | gso_size | csum_start | csum_offset |
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`] and others.
    pub flags: u8,
    /// One of the constants `GSO_…`, perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Octets of all headers; a hint.
    pub hdr_len: u16,
    /// Payload of each packet but the last.
    pub gso_size: u16,
    /// Where the checksum begins: the transport header.
    pub csum_start: u16,
    /// Where its field is behind `csum_start`.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Reads the octets that the kernel wrote.
    pub fn from_bytes(bytes: [u8; VNET_HEADER]) -> VnetHeader {
        let [flags, gso_type, l0, l1, s0, s1, c0, c1, o0, o1] = bytes;
        VnetHeader {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([l0, l1]),
            gso_size: u16::from_ne_bytes([s0, s1]),
            csum_start: u16::from_ne_bytes([c0, c1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    /// The octets that the kernel reads.
    pub fn to_bytes(self) -> [u8; VNET_HEADER] {
        let [l0, l1] = self.hdr_len.to_ne_bytes();
        let [s0, s1] = self.gso_size.to_ne_bytes();
        let [c0, c1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        [self.flags, self.gso_type, l0, l1, s0, s1, c0, c1, o0, o1]
    }

    /// Whether the packet is one frame.
    pub fn is_plain(&self) -> bool {
        self.gso_type & !GSO_ECN == GSO_NONE
    }
}

/// The two octets at `at`; the caller has checked the length.
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Writes two octets at `at`; the caller has checked the length.
fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The four octets at `at`; the caller has checked the length.
fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes the checksum of an IPv4 header, which `header` is.
fn set_ipv4_checksum(header: &mut [u8]) {
    set_word(header, 10, 0);
    let checksum = packet::checksum::checksum(header);
    set_word(header, 10, checksum);
}
