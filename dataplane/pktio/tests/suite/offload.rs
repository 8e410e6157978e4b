//! Cutting and joining of super-packets against a model that is as simple as can be: it builds every frame from what the
//! flow is, and adds checksums octet by octet.

use packet::protocol::{TCP, UDP};
use pktio::offload::cut::{Cut, Malformed, complete_checksum};
use pktio::offload::join::{HEADER, PACKETS, Run};
use pktio::offload::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VNET_HEADER, VnetHeader};
use proptest::prelude::*;

const FIN: u8 = 1;
const SYN: u8 = 2;
const PSH: u8 = 8;
const ACK: u8 = 16;
const CWR: u8 = 128;

/// Everything that the packets of a flow have in common.
#[derive(Clone, Debug)]
struct Flow {
    is_ipv6: bool,
    is_udp: bool,
    tos: u8,
    ttl: u8,
    dont_fragment: bool,
    /// IPv4 options, or extension headers whose last one names the transport; a multiple of four, or eight octets.
    network_options: Vec<u8>,
    /// TCP options, a multiple of four octets.
    options: Vec<u8>,
    ports: [u8; 4],
    window: u16,
}

/// What a packet has for itself.
#[derive(Clone, Debug, PartialEq)]
struct Own {
    sequence: u32,
    id: u16,
    flags: u8,
    payload: Vec<u8>,
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(0, |sum, pair| {
        let sum = sum + u32::from(pair[0]) * 256 + u32::from(*pair.get(1).unwrap_or(&0));
        (sum & 0xFFFF) + (sum >> 16)
    })
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

impl Flow {
    fn network_len(&self) -> usize {
        self.network_options.len() + if self.is_ipv6 { 40 } else { 20 }
    }

    fn header_len(&self) -> usize {
        self.network_len() + if self.is_udp { 8 } else { 20 + self.options.len() }
    }

    fn checksum_at(&self) -> usize {
        self.network_len() + if self.is_udp { 6 } else { 16 }
    }

    fn transport(&self) -> u8 {
        if self.is_udp { UDP } else { TCP }
    }

    /// The sum of the pseudo header.
    fn pseudo_header(&self, length: usize) -> u32 {
        let addresses = if self.is_ipv6 { vec![0xFD; 32] } else { vec![10, 45, 0, 1, 10, 201, 0, 2] };
        let length = length - self.network_len();
        let sum = sum(&addresses) + length as u32 + u32::from(self.transport());
        (sum & 0xFFFF) + (sum >> 16)
    }

    /// A packet without transport checksum.
    fn unsummed(&self, own: &Own) -> Vec<u8> {
        let mut packet = Vec::new();
        let length = self.header_len() + own.payload.len();
        if self.is_ipv6 {
            let [a, b] = ((length - 40) as u16).to_be_bytes();
            let next = if self.network_options.is_empty() { self.transport() } else { 0 };
            packet.extend([0x60 | self.tos >> 4, self.tos << 4, 0x12, 0x34, a, b, next, self.ttl]);
            packet.extend([0xFD; 32]);
            packet.extend(&self.network_options);
        } else {
            let [a, b] = (length as u16).to_be_bytes();
            let [c, d] = own.id.to_be_bytes();
            let words = 0x40 | (self.network_len() / 4) as u8;
            let flags = if self.dont_fragment { 0x40 } else { 0 };
            packet.extend([words, self.tos, a, b, c, d, flags, 0, self.ttl, self.transport(), 0, 0]);
            packet.extend([10, 45, 0, 1, 10, 201, 0, 2]);
            packet.extend(&self.network_options);
            let sum = sum(&packet);
            put(&mut packet, 10, !(sum as u16));
        }
        packet.extend(self.ports);
        if self.is_udp {
            packet.extend(((length - self.network_len()) as u16).to_be_bytes());
            packet.extend([0, 0]);
        } else {
            packet.extend(own.sequence.to_be_bytes());
            packet.extend([1, 2, 3, 4, ((20 + self.options.len()) / 4 * 16) as u8, own.flags]);
            packet.extend(self.window.to_be_bytes());
            packet.extend([0; 4]);
            packet.extend(&self.options);
        }
        packet.extend(&own.payload);
        packet
    }

    /// A whole packet.
    fn frame(&self, own: &Own) -> Vec<u8> {
        let mut packet = self.unsummed(own);
        let sum = sum(&packet[self.network_len()..]) + self.pseudo_header(packet.len());
        let checksum = !(((sum & 0xFFFF) + (sum >> 16)) as u16);
        put(&mut packet, self.checksum_at(), if checksum == 0 { 0xFFFF } else { checksum });
        packet
    }

    /// A super-packet as the kernel gives it.
    fn super_packet(&self, own: &Own, segment: u16) -> (VnetHeader, Vec<u8>) {
        let mut packet = self.unsummed(own);
        put(
            &mut packet,
            self.checksum_at(),
            self.pseudo_header(self.header_len() + own.payload.len()) as u16,
        );
        let gso_type = match (self.is_udp, self.is_ipv6) {
            (true, _) => GSO_UDP_L4,
            (false, true) => GSO_TCPV6,
            (false, false) => GSO_TCPV4,
        };
        let csum_start = self.network_len() as u16;
        let csum_offset = self.checksum_at() as u16 - csum_start;
        // The kernel's hint is not always right, and not used.
        let vnet = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: 7,
            gso_size: segment,
            csum_start,
            csum_offset,
        };
        (vnet, packet)
    }

    /// The packets that a super-packet stands for.
    fn model(&self, own: &Own, segment: usize) -> Vec<Vec<u8>> {
        let pieces: Vec<&[u8]> = own.payload.chunks(segment).collect();
        let last = pieces.len() - 1;
        let frames = pieces.iter().enumerate().map(|(n, piece)| {
            let mut flags = own.flags;
            if n > 0 {
                flags &= !CWR;
            }
            if n < last {
                flags &= !(FIN | PSH);
            }
            self.frame(&Own {
                sequence: own.sequence.wrapping_add((n * segment) as u32),
                id: own.id.wrapping_add(n as u16),
                flags,
                payload: piece.to_vec(),
            })
        });
        frames.collect()
    }
}

fn cut(vnet: &VnetHeader, packet: &[u8]) -> Vec<Vec<u8>> {
    let cut = Cut::new(vnet, packet).expect("a right super-packet");
    let frames: Vec<_> = (0..cut.frames())
        .map(|number| {
            let mut out = vec![0xEE; cut.longest()];
            let length = cut.write(packet, number, &mut out).expect("there is such a frame");
            out.truncate(length);
            out
        })
        .collect();
    assert_eq!(cut.write(packet, cut.frames(), &mut [0; 70_000]), None, "there are no more");
    assert_eq!(cut.write(packet, usize::MAX, &mut [0; 70_000]), None);
    assert_eq!(cut.write(packet, 0, &mut vec![0; frames[0].len() - 1]), None, "no room");
    assert_eq!(frames.iter().map(Vec::len).max(), Some(cut.longest()));
    frames
}

/// Joins what can be joined, as a port does: each packet that leaves, and how many it stands for.
fn join(packets: &[Vec<u8>]) -> Vec<(usize, VnetHeader, Vec<u8>)> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(first) = packets.get(at) {
        let mut run = Run::begin(first);
        if let Some(run) = &mut run {
            while packets.get(at + run.packets()).is_some_and(|next| run.takes(first, next)) {}
        }
        let run = run.filter(|run| run.packets() > 1);
        let count = run.map_or(1, |run| run.packets());
        out.push(match run {
            None => (1, VnetHeader::default(), first.clone()),
            Some(run) => {
                let mut header = [0; HEADER];
                let vnet = run.write_header(first, &mut header);
                let mut packet = header[..run.header_len()].to_vec();
                packets[at..at + count].iter().for_each(|part| packet.extend(&part[run.header_len()..]));
                (count, vnet, packet)
            }
        });
        at += count;
    }
    out
}

/// Checks that cutting what was joined gives `packets` again; returns how many each packet that left stands for.
fn join_and_cut(packets: &[Vec<u8>]) -> Vec<usize> {
    let joined = join(packets);
    let mut expected = packets.iter();
    for (count, vnet, packet) in &joined {
        assert_eq!(VnetHeader::from_bytes(vnet.to_bytes()), *vnet);
        let frames = if vnet.is_plain() { vec![packet.clone()] } else { cut(vnet, packet) };
        assert_eq!(frames.len(), *count);
        for (mut frame, expected) in frames.into_iter().zip(expected.by_ref()) {
            if *count > 1 && expected[0] == 0x45 && expected[6] & 0x40 != 0 {
                // Its identification says nothing (RFC 6864 §4.1), and is in the header's checksum.
                frame[4..6].copy_from_slice(&expected[4..6]);
                frame[10..12].copy_from_slice(&expected[10..12]);
            }
            assert_eq!(frame, *expected);
        }
    }
    assert_eq!(expected.next(), None, "every packet left, in order");
    joined.into_iter().map(|(count, ..)| count).collect()
}

fn ipv4_tcp() -> Flow {
    Flow {
        is_ipv6: false,
        is_udp: false,
        tos: 0x28,
        ttl: 63,
        dont_fragment: true,
        network_options: Vec::new(),
        options: vec![1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8],
        ports: [0x1F, 0x90, 0xC3, 0x50],
        window: 501,
    }
}

/// `count` packets of a flow, of which each but the last has `payload` octets.
fn packets(flow: &Flow, count: usize, payload: usize, last: usize) -> Vec<Vec<u8>> {
    let own = |n: usize| Own {
        sequence: 0xFFFF_FF00u32.wrapping_add((n * payload) as u32),
        id: 0xFFFEu16.wrapping_add(n as u16),
        flags: if n == count - 1 { ACK | PSH } else { ACK },
        payload: (0..if n == count - 1 { last } else { payload }).map(|at| (at * 7 + n) as u8).collect(),
    };
    (0..count).map(|n| flow.frame(&own(n))).collect()
}

fn flows() -> impl Strategy<Value = Flow> {
    let options = (0usize..=10).prop_flat_map(|words| prop::collection::vec(any::<u8>(), words * 4));
    let network = (0usize..3, any::<u8>());
    let fields = (any::<u8>(), any::<u8>(), any::<bool>(), any::<[u8; 4]>(), any::<u16>());
    (any::<bool>(), any::<bool>(), options, network, fields).prop_map(
        |(is_ipv6, is_udp, options, (network, fill), (tos, ttl, dont_fragment, ports, window))| {
            let transport = if is_udp { UDP } else { TCP };
            let network_options = match (is_ipv6, network) {
                (_, 0) => Vec::new(),
                (true, 1) => vec![transport, 0, 1, 4, fill, 0, 0, 0],
                // Hop-by-hop options of 16 octets, then destination options.
                (true, _) => [&[60, 1, 1, 12][..], &[fill; 12], &[transport, 0, 1, 4, 0, 0, 0, 0]].concat(),
                (false, words) => vec![fill; words * 8],
            };
            Flow { is_ipv6, is_udp, tos, ttl, dont_fragment, network_options, options, ports, window }
        },
    )
}

/// What a packet has unlike another one, and how it gets it.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Flow));

/// Changes that make a packet another flow's, damaged, or odd.
fn disturb(packet: &mut Vec<u8>, kind: u8, at: usize, value: u8) {
    let length = packet.len();
    match kind {
        // Any octet, without mending the checksums.
        0 => packet[at % length] ^= value,
        1 => packet.truncate(at % length),
        2 => packet.push(value),
        _ => {}
    }
}

proptest! {
    #[test]
    fn cutting_gives_what_the_model_gives(
        flow in flows(), sequence: u32, id: u16, flags: u8,
        payload in prop::collection::vec(any::<u8>(), 1..6000), segment in 1u16..3000,
    ) {
        let own = Own { sequence, id, flags, payload };
        let (vnet, packet) = flow.super_packet(&own, segment);
        prop_assert_eq!(cut(&vnet, &packet), flow.model(&own, usize::from(segment)));
    }

    #[test]
    fn completing_a_checksum_gives_what_the_model_gives(
        flow in flows(), payload in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let own = Own { sequence: 1, id: 2, flags: SYN, payload };
        let (vnet, mut packet) = flow.super_packet(&own, 1);
        complete_checksum(&vnet, &mut packet).unwrap();
        prop_assert_eq!(packet, flow.frame(&own));
    }

    /// Packets of two flows, some disturbed, some of another length or with other flags: what leaves stands for them.
    #[test]
    fn what_was_joined_is_cut_to_the_same(
        flows in [flows(), flows()],
        step in 0u16..3,
        plan in prop::collection::vec(
            (any::<prop::sample::Index>(), 0u8..12, any::<usize>(), any::<u8>(), 0u8..20, 0usize..4), 1..80),
    ) {
        let (mut sequences, mut ids, mut current) = ([u32::MAX - 3000; 2], [u16::MAX - 10; 2], 0);
        let packets: Vec<Vec<u8>> = plan.iter().map(|(index, kind, at, value, other, length)| {
            if *other == 0 {
                current = index.index(2);
            }
            let flags = match *kind { 3 => ACK | PSH, 4 => ACK | FIN, 5 => ACK | CWR, 6 => SYN, _ => ACK };
            let payload = vec![*value; [500, 500, 500, 499][*length] + usize::from(*kind == 7)];
            let own = Own { sequence: sequences[current], id: ids[current], flags, payload };
            sequences[current] = sequences[current].wrapping_add(own.payload.len() as u32);
            ids[current] = ids[current].wrapping_add(step);
            let mut packet = flows[current].frame(&own);
            disturb(&mut packet, *kind, *at, *value);
            packet
        }).collect();
        join_and_cut(&packets);
    }

    /// Whatever the kernel wrote: an error, or frames.
    #[test]
    fn no_header_and_no_packet_is_too_absurd(
        flow in flows(), payload in prop::collection::vec(any::<u8>(), 0..200),
        vnet in any::<[u8; VNET_HEADER]>(), mask in any::<[bool; VNET_HEADER]>(),
        kind in 0u8..4, at: usize, value: u8,
    ) {
        let own = Own { sequence: 1, id: 2, flags: ACK, payload };
        let (right, mut packet) = flow.super_packet(&own, 13);
        disturb(&mut packet, kind, at, value);
        let mut bytes = right.to_bytes();
        for at in 0..VNET_HEADER {
            if mask[at] && vnet[at] % 3 == 0 {
                bytes[at] = vnet[at];
            }
        }
        let vnet = VnetHeader::from_bytes(bytes);
        if Cut::new(&vnet, &packet).is_ok() {
            let frames = cut(&vnet, &packet);
            let own: usize = frames.iter().map(Vec::len).sum();
            prop_assert!(own >= packet.len());
        }
        let _ = complete_checksum(&vnet, &mut packet);
        let _ = complete_checksum(&vnet, &mut []);
    }
}

#[test]
fn a_stream_leaves_as_one_packet() {
    let mut flow = ipv4_tcp();
    for (is_ipv6, is_udp) in [(false, false), (true, false), (false, true), (true, true)] {
        (flow.is_ipv6, flow.is_udp) = (is_ipv6, is_udp);
        assert_eq!(join_and_cut(&packets(&flow, 40, 1400, 1400)), [40]);
        assert_eq!(join_and_cut(&packets(&flow, 40, 1400, 3)), [40]);
        assert_eq!(join_and_cut(&packets(&flow, 2, 1400, 1401)), [1, 1], "only the last may be shorter");
        assert_eq!(join_and_cut(&packets(&flow, 100, 100, 100)), [PACKETS, 100 - PACKETS]);
        let longest = (65_535 - flow.header_len()) / 1400;
        assert_eq!(join_and_cut(&packets(&flow, 60, 1400, 1400)), [longest, 60 - longest]);
        // What was joined has a partial checksum, which is right when it is completed.
        let (_, vnet, mut packet) = join(&packets(&flow, 3, 700, 9)).remove(0);
        complete_checksum(&vnet, &mut packet).unwrap();
        let sum = sum(&packet[flow.network_len()..]) + flow.pseudo_header(packet.len());
        assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF);
    }
}

#[test]
fn packets_that_differ_stay_apart() {
    let flow = ipv4_tcp();
    let plain = packets(&flow, 3, 100, 100);
    assert_eq!(join_and_cut(&plain), [3]);
    let own = |flags, id, sequence: u32| Own { sequence, id, flags, payload: vec![1; 100] };
    let second = |change: &dyn Fn(&mut Flow)| {
        let mut other = flow.clone();
        change(&mut other);
        vec![flow.frame(&own(ACK, 5, 1000)), other.frame(&own(ACK, 6, 1100))]
    };
    assert_eq!(join_and_cut(&second(&|_| ())), [2]);
    let changes: [Change; 9] = [
        ("traffic class", &|flow| flow.tos = 3),
        ("time to live", &|flow| flow.ttl = 62),
        ("port", &|flow| flow.ports[3] ^= 1),
        ("window", &|flow| flow.window = 7),
        ("options", &|flow| flow.options[11] ^= 1),
        ("no options", &|flow| flow.options.clear()),
        ("IPv4 options", &|flow| flow.network_options = vec![1; 4]),
        ("may be fragmented", &|flow| flow.dont_fragment = false),
        ("UDP", &|flow| flow.is_udp = true),
    ];
    for (what, change) in changes {
        assert_eq!(join_and_cut(&second(change)), [1, 1], "{what}");
    }
    let pairs = [
        ("a gap", own(ACK, 5, 1000), own(ACK, 6, 1101)),
        ("again", own(ACK, 5, 1000), own(ACK, 6, 1000)),
        ("PSH before", own(ACK | PSH, 5, 1000), own(ACK, 6, 1100)),
        ("FIN before", own(ACK | FIN, 5, 1000), own(ACK, 6, 1100)),
        ("SYN", own(SYN, 5, 1000), own(SYN, 6, 1100)),
        ("CWR", own(ACK | CWR, 5, 1000), own(ACK, 6, 1100)),
        ("RST", own(ACK, 5, 1000), own(ACK | 4, 6, 1100)),
        ("identification", own(ACK, 5, 1000), own(ACK, 7, 1100)),
    ];
    for (what, first, next) in pairs {
        assert_eq!(join_and_cut(&[flow.frame(&first), flow.frame(&next)]), [1, 1], "{what}");
    }
    // The same identification means nothing only where nobody may fragment.
    for (dont_fragment, expected) in [(true, &[2][..]), (false, &[1, 1][..])] {
        let flow = Flow { dont_fragment, ..flow.clone() };
        let pair = [flow.frame(&own(ACK, 5, 1000)), flow.frame(&own(ACK, 5, 1100))];
        assert_eq!(join_and_cut(&pair), expected);
    }
}

/// A damaged segment must not get a good checksum.
#[test]
fn damaged_packets_stay_as_they_are() {
    for is_udp in [false, true] {
        let flow = Flow { is_udp, ..ipv4_tcp() };
        for (damaged, expected) in [(0, &[1, 4][..]), (2, &[2, 1, 2][..]), (4, &[4, 1][..])] {
            for at in [11, flow.checksum_at(), 130] {
                let mut packets = packets(&flow, 5, 200, 200);
                packets[damaged][at] ^= 0x10;
                assert_eq!(join_and_cut(&packets), expected, "octet {at}");
            }
        }
        // Octets behind the packet, and a datagram without checksum.
        let mut longer = packets(&flow, 3, 200, 200);
        longer[1].push(0);
        assert_eq!(join_and_cut(&longer), [1, 1, 1]);
        if is_udp {
            let mut packets = packets(&flow, 3, 200, 200);
            put(&mut packets[1], 26, 0);
            assert_eq!(join_and_cut(&packets), [1, 1, 1]);
        }
    }
}

#[test]
fn wrong_super_packets_are_refused() {
    let flow = ipv4_tcp();
    let own = Own { sequence: 9, id: 9, flags: ACK, payload: vec![3; 3000] };
    let (right, packet) = flow.super_packet(&own, 1000);
    let refused = |change: &dyn Fn(&mut VnetHeader), packet: &[u8]| {
        let mut vnet = right;
        change(&mut vnet);
        Cut::new(&vnet, packet).expect_err("refused")
    };
    assert_eq!(refused(&|vnet| vnet.flags = 0, &packet), Malformed::Checksum);
    assert_eq!(refused(&|vnet| vnet.csum_offset = 6, &packet), Malformed::Checksum);
    assert_eq!(refused(&|vnet| vnet.csum_start = 24, &packet), Malformed::Ip);
    assert_eq!(refused(&|vnet| vnet.csum_start = u16::MAX, &packet), Malformed::Ip);
    assert_eq!(refused(&|vnet| vnet.gso_size = 0, &packet), Malformed::Size);
    // `VIRTIO_NET_HDR_GSO_UDP`, fragments of a datagram, was not asked for.
    assert_eq!(refused(&|vnet| vnet.gso_type = 3, &packet), Malformed::Kind);
    assert_eq!(refused(&|vnet| vnet.gso_type = GSO_TCPV6, &packet), Malformed::Ip);
    assert_eq!(refused(&|_| (), &packet[..2000]), Malformed::Ip);
    assert_eq!(refused(&|_| (), &[]), Malformed::Ip);
    let (_, empty) = flow.super_packet(&Own { payload: Vec::new(), ..own }, 1000);
    assert_eq!(refused(&|_| (), &empty), Malformed::Size);
    let mut odd = packet.clone();
    odd[32] = 0x40;
    assert_eq!(refused(&|_| (), &odd), Malformed::Transport);
    let mut fragment = packet;
    fragment[7] = 1;
    assert_eq!(refused(&|_| (), &fragment), Malformed::Ip);
}
