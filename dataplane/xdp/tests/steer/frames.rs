//! Frames of all kinds, from a seed.

use std::net::IpAddr;

use packet::checksum::Sum;
use packet::ethernet::Mac;

/// Random numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What a frame consists of.
#[derive(Clone, Debug)]
pub struct Spec {
    pub macs: (Mac, Mac),
    pub outer: (IpAddr, IpAddr),
    pub outer_checksum: bool,
    pub teid: u32,
    pub kind: u8,
    /// E, S and PN.
    pub flags: u8,
    /// Lengths of extension headers in units of four octets, when E is set.
    pub extensions: Vec<u8>,
    pub inner: (IpAddr, IpAddr),
    pub protocol: u8,
    pub ports: (u16, u16),
    pub inner_checksum: bool,
    /// Offset in units of eight octets, and whether more follow.
    pub fragment: Option<(u16, bool)>,
    pub options: bool,
    pub payload: usize,
    /// Octets behind the packet.
    pub padding: usize,
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A plain uplink packet to an anchor.
pub fn plain(destination: &str, teid: u32) -> Spec {
    let destination = ip(destination);
    let source = ip(if destination.is_ipv6() { "2001:db8::9" } else { "10.0.0.9" });
    Spec {
        macs: ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]),
        outer: (source, destination),
        outer_checksum: true,
        teid,
        kind: 255,
        flags: 0,
        extensions: Vec::new(),
        inner: (ip("10.45.0.2"), ip("192.0.2.1")),
        protocol: 17,
        ports: (4000, 53),
        inner_checksum: true,
        fragment: None,
        options: false,
        payload: 40,
        padding: 0,
    }
}

fn checksum_at(packet: &mut [u8], at: usize, addresses: (IpAddr, IpAddr), protocol: u8) {
    packet[at..at + 2].fill(0);
    let sum = Sum::default().pseudo_header(addresses.0, addresses.1, protocol, packet.len());
    let checksum = sum.octets(packet).finish();
    let checksum = if checksum == 0 && protocol == 17 { 0xFFFF } else { checksum };
    packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// An IP packet with its checksum right.
fn ip_packet(
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    payload: &[u8],
    fragment: Option<(u16, bool)>,
    options: bool,
) -> Vec<u8> {
    let mut packet = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = if options { 28 } else { 20 };
            packet.extend([0x40 | (header as u8 / 4), 0xB9]);
            packet.extend(((header + payload.len()) as u16).to_be_bytes());
            let (offset, more) = fragment.unwrap_or((0, false));
            packet.extend([0x12, 0x34]);
            packet.extend((offset | u16::from(more) << 13).to_be_bytes());
            packet.extend([61, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            packet.resize(header, 1);
            let checksum = packet::checksum::checksum(&packet);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let length = payload.len() + if fragment.is_some() { 8 } else { 0 };
            packet.extend([0x6B, 0x91, 0x23, 0x45]);
            packet.extend((length as u16).to_be_bytes());
            packet.extend([if fragment.is_some() { 44 } else { protocol }, 61]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            if let Some((offset, more)) = fragment {
                packet.extend([protocol, 0]);
                packet.extend((offset << 3 | u16::from(more)).to_be_bytes());
                packet.extend([0, 0, 0, 7]);
            }
        }
        _ => panic!("one IP version"),
    }
    packet.extend(payload);
    packet
}

impl Spec {
    pub fn build(&self) -> Vec<u8> {
        let mut upper: Vec<u8> = (0..self.payload).map(|at| (at * 7 + 3) as u8).collect();
        let later = self.fragment.is_some_and(|(offset, _)| offset > 0);
        let checksum = match self.protocol {
            _ if later => None,
            6 => Some((20, 16)),
            17 => Some((8, 6)),
            58 => Some((8, 2)),
            _ => None,
        };
        if let Some((header, at)) = checksum {
            let mut headed = vec![0; header];
            headed[..2].copy_from_slice(&self.ports.0.to_be_bytes());
            headed[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
            if self.protocol == 17 {
                headed[4..6].copy_from_slice(&((header + upper.len()) as u16).to_be_bytes());
            }
            headed.extend(upper);
            upper = headed;
            if self.inner_checksum {
                checksum_at(&mut upper, at, self.inner, self.protocol);
            }
        }
        let inner = ip_packet(self.inner, self.protocol, &upper, self.fragment, self.options);

        let mut behind = Vec::new();
        if self.flags & 7 != 0 {
            behind.extend([0xAB, 0xCD, 0x42, 0]);
            if self.flags & 4 != 0 {
                for length in &self.extensions {
                    *behind.last_mut().unwrap() = 0x85;
                    behind.push(*length);
                    behind.extend((0..usize::from(*length) * 4 - 2).map(|at| at as u8));
                    behind.push(0);
                }
            }
        }
        if self.kind == 255 {
            behind.extend(inner);
        }
        let mut datagram = vec![0x08, 0x68, 0x08, 0x68];
        datagram.extend(((16 + behind.len()) as u16).to_be_bytes());
        datagram.extend([0, 0, 0x30 | self.flags, self.kind]);
        datagram.extend((behind.len() as u16).to_be_bytes());
        datagram.extend(self.teid.to_be_bytes());
        datagram.extend(behind);
        if self.outer_checksum {
            checksum_at(&mut datagram, 6, self.outer, 17);
        }
        let mut frame = Vec::new();
        frame.extend(self.macs.0);
        frame.extend(self.macs.1);
        frame.extend(if self.outer.1.is_ipv6() { [0x86, 0xDD] } else { [0x08, 0x00] });
        frame.extend(ip_packet(self.outer, 17, &datagram, None, false));
        frame.resize(frame.len() + self.padding, 0xEE);
        frame
    }

    /// Any frame, towards one of these outer destinations.
    pub fn random(random: &mut Random, anchors: &[IpAddr]) -> Spec {
        let mut spec = plain("192.0.2.9", random.below(12) as u32 + 100);
        let destination = random.pick(anchors);
        spec.outer = match destination {
            IpAddr::V4(_) => (ip(random.pick(&["10.0.0.9", "10.0.0.10"])), destination),
            IpAddr::V6(_) => (ip(random.pick(&["2001:db8::9", "2001:db8::10"])), destination),
        };
        spec.macs.0[5] = random.below(4) as u8;
        spec.macs.1[5] = random.below(3) as u8;
        spec.outer_checksum = random.chance(60);
        spec.kind = if random.chance(85) { 255 } else { random.pick(&[254, 1, 2, 26, 31]) };
        spec.flags = random.below(8) as u8;
        spec.extensions = (0..random.below(4)).map(|_| random.pick(&[1, 1, 1, 2, 5])).collect();
        let ipv6 = random.chance(40);
        spec.inner = if ipv6 {
            (
                ip(random.pick(&["2001:db8:45::2", "2001:db8:45::3"])),
                ip(random.pick(&["2001:db8::53", "::1"])),
            )
        } else {
            (ip(random.pick(&["10.45.0.2", "10.45.0.3"])), ip(random.pick(&["192.0.2.1", "192.0.2.2"])))
        };
        spec.protocol = random.pick(&[6, 17, 17, 17, 58, 1, 132, 50, 33, 0, 60]);
        spec.ports = (random.pick(&[4000, 4001]), random.pick(&[53, 80]));
        spec.inner_checksum = random.chance(80);
        spec.fragment =
            random.chance(20).then(|| random.pick(&[(0, true), (3, true), (9, false), (0, false)]));
        spec.options = random.chance(15);
        spec.payload = random.below(90);
        spec.padding = if random.chance(15) { random.below(20) } else { 0 };
        spec
    }
}
