//! Users steered in their tunnels: the paper's Table I with real frames, SW-1 to SW-12, SEL-4 to SEL-6.

use std::net::{IpAddr, Ipv4Addr};

use crate::common::*;
use openflow::*;
use packet::gtpu::Signalling;
use packet::{ethernet, gtpu, icmp, ipv4, ipv6, protocol};
use switch::pipeline::Pipeline;
use switch::pipeline::trace::Dropped;

fn steering(teids: &[u32]) -> Pipeline {
    let mut pipeline = pipeline();
    install(&mut pipeline, table_one());
    install(&mut pipeline, teids.iter().map(|teid| divert(*teid)));
    pipeline
}

/// Packets that took each entry, by table and priority.
fn counts(pipeline: &Pipeline) -> Vec<((u8, u16), u64)> {
    let flows = pipeline.tables().iter().flat_map(|table| table.flows());
    let mut counts: Vec<_> = flows
        .map(|flow| ((flow.table.0, flow.priority), flow.counters.get().0))
        .filter(|(_, n)| *n > 0)
        .collect();
    counts.sort();
    counts
}

#[test]
fn sw_1_one_uplink_packet_of_a_diverted_user_counts_each_rule_once() {
    let pipeline = steering(&[7]);
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    let (port, _) = pass(&pipeline, 1, &frame);
    assert_eq!(port, 3);
    // M1, H, T1-H, M2 of the second anchor, and the rule of table 2; bytes are those of the frame.
    let expected = [(0, 200), (0, 260), (0, 300), (1, 100), (2, 100)];
    assert_eq!(counts(&pipeline), expected.map(|rule| (rule, 1)));
    let bytes = pipeline.tables()[1].flows().map(|flow| flow.counters.get().1).max();
    assert_eq!(bytes, Some(frame.len() as u64));
    let table_counts: Vec<_> = pipeline.tables().iter().map(|table| table.counts()).take(4).collect();
    assert_eq!(table_counts, [(3, 3), (1, 1), (1, 1), (0, 0)]);
}

#[test]
fn sw_2_the_teid_stays_and_only_the_anchor_changes() {
    let pipeline = steering(&[7]);
    for message in [gpdu(7, &user_packet()), gpdu_5g(7, &user_packet()), gpdu_full(7, &user_packet())] {
        let frame = uplink(GW1, &message);
        let (port, sent) = pass(&pipeline, 1, &frame);
        assert_eq!((port, &sent), (3, &readdressed(&frame, GW2_MAC, GW2)));
        check(&sent);
    }
}

#[test]
fn sw_3_packets_of_others_are_byte_identical() {
    let pipeline = steering(&[7]);
    for message in [gpdu(8, &user_packet()), gpdu_5g(8, &user_packet()), gpdu_full(8, &user_packet())] {
        let frame = uplink(GW1, &message);
        assert_eq!(pass(&pipeline, 1, &frame), (2, frame));
    }
    // Octets behind the IP packet, and wrong checksums, too.
    let mut frame = uplink(GW1, &gpdu(8, &user_packet()));
    frame[25] ^= 1;
    frame[41] ^= 1;
    frame.extend([0xee; 7]);
    assert_eq!(pass(&pipeline, 1, &frame), (2, frame));
}

/// SW-T1-L of the paper sets the address that the packet has already.
#[test]
fn sw_3_setting_what_is_there_changes_nothing() {
    let mut pipeline = steering(&[]);
    let low = [set(Oxm::tun_ipv4_dst(GW1)), Action::output(PortNo::IN_PORT)];
    install(&mut pipeline, [add(1, 0, [], Instructions::apply(low))]);
    for checksum in [[0xff, 0xff], [0, 0], [0x12, 0x34]] {
        let mut frame = uplink(GW1, &gpdu(8, &user_packet()));
        frame[40..42].copy_from_slice(&checksum);
        frame[24..26].copy_from_slice(&checksum);
        assert_eq!(pass(&pipeline, 1, &frame), (2, frame));
    }
}

#[test]
fn sw_4_rules_match_anchor_and_teid_and_downlink_is_plain() {
    let pipeline = steering(&[7]);
    // The same TEID at another anchor is another user.
    let mut frame = uplink(GW2, &gpdu(7, &user_packet()));
    frame[..6].copy_from_slice(&GW2_MAC);
    assert_eq!(pass(&pipeline, 1, &frame), (3, frame));
    // Downlink has the TEID of the base station, which may be the same number.
    let packet = udp((GW1.into(), 2152), (ENB.into(), 2152), &gpdu(7, &user_packet()));
    let frame = ethernet::build(ENB_MAC, GW1_MAC, None, ethernet::IPV4, &packet);
    assert_eq!(pass(&pipeline, 2, &frame), (1, frame));
}

#[test]
fn sw_5_one_application_of_a_user_and_a_pair_of_users() {
    let mut pipeline = steering(&[]);
    let user = [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(7), Oxm::packet_type(PacketType::IPV4)];
    let divert = || Instructions::apply([set(Oxm::tun_ipv4_dst(GW2)), Action::output(PortNo::IN_PORT)]);
    let dns = [Oxm::ipv4_dst(SERVER), Oxm::ip_proto(17), Oxm::udp_dst(53)];
    let pair = [Oxm::ipv4_dst(Ipv4Addr::new(10, 45, 0, 9))];
    install(
        &mut pipeline,
        [
            add(1, 200, user.into_iter().chain(dns), divert()),
            add(1, 150, user.into_iter().chain(pair), divert()),
        ],
    );
    let via = |destination: Ipv4Addr, port, full: bool| {
        let packet = udp((UE1.into(), 40_000), (destination.into(), port), b"data");
        // Behind extension headers, too.
        let message = if full { gpdu_full(7, &packet) } else { gpdu_5g(7, &packet) };
        pass(&pipeline, 1, &uplink(GW1, &message)).0
    };
    for full in [false, true] {
        assert_eq!(via(SERVER, 53, full), 3);
        assert_eq!(via(SERVER, 54, full), 2);
        assert_eq!(via(Ipv4Addr::new(10, 45, 0, 9), 99, full), 3);
    }
    // A user without such rules is not asked for its ports.
    let frame = uplink(GW1, &gpdu_5g(8, &user_packet()));
    let (_, trace) = send(&pipeline, 1, &frame);
    assert_eq!(trace.consulted.inner[9..21], [0; 12], "only the tunnel was consulted");
}

#[test]
fn sw_8_path_messages_are_never_swallowed() {
    let mut pipeline = steering(&[7]);
    let signalling = [
        Signalling::EchoRequest { sequence: 77 },
        Signalling::EchoResponse { sequence: 77 },
        Signalling::EndMarker { teid: 8, pdu_session: None },
        Signalling::our_extension_headers(),
    ];
    let mut messages: Vec<Vec<u8>> = signalling.iter().map(Signalling::build).collect();
    messages.push(Signalling::ErrorIndication { teid: 8, peer: ENB.into(), udp_port: None }.build());
    for message in &messages {
        let frame = uplink(GW1, message);
        assert_eq!(pass(&pipeline, 1, &frame), (2, frame), "to the anchor to which it was sent");
    }
    // A diverted user's End Marker goes where its packets go.
    let frame = uplink(GW1, &Signalling::EndMarker { teid: 7, pdu_session: None }.build());
    assert_eq!(pass(&pipeline, 1, &frame), (3, readdressed(&frame, GW2_MAC, GW2)));
    // Rules can tell them apart.
    let echo = add(
        1,
        500,
        [Oxm::tun_gtpu_msgtype(1)],
        Instructions::apply([set(Oxm::tun_ipv4_dst(GW2)), Action::output(PortNo::IN_PORT)]),
    );
    install(&mut pipeline, [echo]);
    assert_eq!(pass(&pipeline, 1, &uplink(GW1, &messages[0])).0, 3);
    assert_eq!(pass(&pipeline, 1, &uplink(GW1, &messages[1])).0, 2);
}

/// Whatever is sent to the port of GTP-U and is none: cut at every octet, wrong versions, endless extension headers.
#[test]
fn sw_8_what_is_not_gtpu_is_forwarded_as_it_is() {
    let pipeline = steering(&[7]);
    let whole = gpdu_full(7, &user_packet());
    let mut messages: Vec<Vec<u8>> = (0..20).map(|length| whole[..length].to_vec()).collect();
    for first in [0x50, 0x20, 0xff] {
        messages.push([&[first], &whole[1..]].concat());
    }
    let mut endless = gpdu_full(7, &[1, 0xaa, 0xbb, 0x85].repeat(20));
    endless[19] = 0x85;
    messages.push(endless);
    for message in messages {
        let frame = uplink(GW1, &message);
        assert_eq!(pass(&pipeline, 1, &frame), (2, frame), "{message:02x?}");
    }
}

/// G-PDUs whose content is no IP packet are steered by their tunnel.
#[test]
fn sw_8_user_packets_that_are_not_ip_take_their_tunnel() {
    let pipeline = steering(&[7]);
    for content in [&b""[..], b"\xff\xff\xff\xff\xff\xff", b"\x45", b"\x60\0\0\0"] {
        let frame = uplink(GW1, &gpdu_5g(7, content));
        assert_eq!(pass(&pipeline, 1, &frame), (3, readdressed(&frame, GW2_MAC, GW2)));
    }
}

#[test]
fn sw_9_flags_numbers_and_extension_headers_survive() {
    let pipeline = steering(&[7]);
    for message in [gpdu_5g(7, &user_packet()), gpdu_full(7, &user_packet())] {
        let (_, sent) = pass(&pipeline, 1, &uplink(GW1, &message));
        assert_eq!(sent[42..], message[..]);
    }
}

#[test]
fn sw_10_outer_checksum_is_right_or_zero_and_ttl_dscp_ecn_stay() {
    let pipeline = steering(&[7]);
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    let (_, sent) = pass(&pipeline, 1, &frame);
    check(&sent);
    assert_eq!((sent[15], sent[22]), (0xba, 61));
    let mut without = frame.clone();
    without[40..42].fill(0);
    let (_, sent) = pass(&pipeline, 1, &without);
    assert_eq!(sent[40..42], [0, 0]);
    check(&sent);
    // The one sum that would be zero is sent as ones.
    for salt in 0..=u16::MAX {
        let mut packet = user_packet();
        let end = packet.len();
        packet[end - 2..].copy_from_slice(&salt.to_be_bytes());
        let frame = uplink(GW1, &gpdu_5g(7, &packet));
        if readdressed(&frame, GW2_MAC, GW2)[40..42] == [0xff, 0xff] {
            let (_, sent) = pass(&pipeline, 1, &frame);
            assert_eq!(sent[40..42], [0xff, 0xff]);
            return;
        }
    }
    panic!("no packet has this sum");
}

/// SW-11, SEL-5: downlink of the second anchor looks as if it came from the first one, with the UE's first address and the
/// base station's TEID.
#[test]
fn sw_11_downlink_is_rewritten_in_selective_mode() {
    let mut pipeline = steering(&[]);
    let new_address = Ipv4Addr::new(10, 46, 0, 77);
    let back = [
        set(Oxm::ipv4_dst(UE1)),
        set(Oxm::tun_ipv4_src(GW1)),
        set(Oxm::tunnel_id(0x1111)),
        Action::output(PortNo::IN_PORT),
    ];
    let user = [
        Oxm::tun_ipv4_src(GW2),
        Oxm::tunnel_id(0x2222),
        Oxm::packet_type(PacketType::IPV4),
        Oxm::ipv4_dst(new_address),
    ];
    install(
        &mut pipeline,
        [
            add(0, 200, tunnel(GW2, ENB), Instructions::apply([Action::output(PortNo::LOCAL)])),
            add(1, 100, user, Instructions::apply(back)),
        ],
    );
    let downlink = |from: Ipv4Addr, mac, teid, packet: &[u8]| {
        let packet = udp((from.into(), 2152), (ENB.into(), 2152), &gpdu_5g(teid, packet));
        ethernet::build(ENB_MAC, mac, None, ethernet::IPV4, &packet)
    };
    let content = |ue: Ipv4Addr| udp((SERVER.into(), 53), (ue.into(), 40_000), b"noon");
    let frame = downlink(GW2, GW2_MAC, 0x2222, &content(new_address));
    let (port, sent) = pass(&pipeline, 3, &frame);
    check(&sent);
    // Apart from the Ethernet source, it is what the first anchor would have sent.
    let expected = downlink(GW1, GW2_MAC, 0x1111, &content(UE1));
    assert_eq!((port, sent), (1, expected));
}

/// SEL-4, SEL-6: uplink to an anchor that gave the UE another address and TEID; TCP, UDP with and without checksum, ICMP and
/// fragments.
#[test]
fn sel_6_inner_addresses_change_and_all_checksums_with_them() {
    let mut pipeline = steering(&[]);
    let new_address = Ipv4Addr::new(10, 46, 0, 77);
    let there = [
        set(Oxm::ipv4_src(new_address)),
        set(Oxm::tunnel_id(0x9999)),
        set(Oxm::tun_ipv4_dst(GW2)),
        Action::output(PortNo::IN_PORT),
    ];
    let user = [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(7), Oxm::packet_type(PacketType::IPV4)];
    install(&mut pipeline, [add(1, 100, user, Instructions::apply(there))]);
    let tcp = |source: Ipv4Addr| tcp_packet(source.into(), SERVER.into());
    let ping = |source: Ipv4Addr| {
        let message = icmp::build_echo(source.into(), SERVER.into(), icmp::ECHO_REQUEST_V4, 7, 1, b"ping");
        ipv4::Header::new(source, SERVER, protocol::ICMP).build(&message).unwrap()
    };
    let datagram = |source: Ipv4Addr| udp((source.into(), 40_000), (SERVER.into(), 53), b"odd");
    let unprotected = |source: Ipv4Addr| {
        let mut packet = datagram(source);
        packet[26..28].fill(0);
        packet
    };
    let cases: [&dyn Fn(Ipv4Addr) -> Vec<u8>; 4] = [&tcp, &ping, &datagram, &unprotected];
    for (case, packet) in cases.iter().enumerate() {
        let (_, sent) = pass(&pipeline, 1, &uplink(GW1, &gpdu_5g(7, &packet(UE1))));
        check(&sent);
        let mut expected = uplink(GW2, &gpdu_5g(0x9999, &packet(new_address)));
        expected[..6].copy_from_slice(&GW2_MAC);
        assert_eq!(sent, expected, "case {case}");
    }
    // A datagram in two fragments: joined at the far end, its checksum is right. The later one has none to mend.
    let whole = udp((UE1.into(), 40_000), (SERVER.into(), 53), &[0x5a; 100]);
    let translated = udp((new_address.into(), 40_000), (SERVER.into(), 53), &[0x5a; 100]);
    let mut payload = Vec::new();
    for fragment in fragments(&whole, 64) {
        let (_, sent) = pass(&pipeline, 1, &uplink(GW1, &gpdu_5g(7, &fragment)));
        let inner = ipv4::Packet::new(&sent[58..]).unwrap();
        assert!(inner.checksum_ok());
        assert_eq!(inner.source(), new_address);
        payload.extend_from_slice(inner.payload());
    }
    assert_eq!(payload, translated[20..]);
}

/// A TCP segment with checksum.
fn tcp_packet(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    let mut segment = vec![0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0];
    segment.extend(b"GET / HTTP/1.1\r\n\r\n!");
    let sum = packet::checksum::Sum::default()
        .pseudo_header(source, destination, protocol::TCP, segment.len())
        .octets(&segment)
        .finish();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ipv4::Header::new(source, destination, protocol::TCP).build(&segment).unwrap()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            ipv6::Header::new(source, destination, protocol::TCP).build(&segment).unwrap()
        }
        _ => panic!("mixed versions"),
    }
}

/// Two fragments of an IPv4 packet, cut behind `at` octets of its payload.
fn fragments(whole: &[u8], at: usize) -> [Vec<u8>; 2] {
    let part = |payload: &[u8], flags_and_offset: u16| {
        let mut out = [&whole[..20], payload].concat();
        out[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
        out[6..8].copy_from_slice(&flags_and_offset.to_be_bytes());
        out[10..12].fill(0);
        let sum = packet::checksum::checksum(&out[..20]);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        out
    };
    [part(&whole[20..20 + at], 0x2000), part(&whole[20 + at..], (at / 8) as u16)]
}

#[test]
fn sw_12_ipv6_inside_and_outside() {
    let (enb, gw1, gw2) = (v6(1), v6(11), v6(12));
    let mut pipeline = pipeline();
    let outer = [Oxm::eth_type(0x86dd), Oxm::ip_proto(17), Oxm::udp_dst(2152)];
    let new_address = v6(0x77);
    let user = [
        Oxm::tun_ipv6_dst(gw1),
        Oxm::tunnel_id(7),
        Oxm::packet_type(PacketType::IPV6),
        Oxm::ipv6_src(v6(0x45)),
    ];
    let actions = [
        set(Oxm::ipv6_src(new_address)),
        set(Oxm::tun_ipv6_dst(gw2)),
        set(Oxm::tunnel_id(0x9999)),
        Action::output(PortNo::IN_PORT),
    ];
    install(
        &mut pipeline,
        [
            add(0, 300, [Oxm::in_port(PortNo(GTP))], Instructions::goto(TableId(1))),
            add(0, 250, [Oxm::in_port(PortNo::LOCAL)], Instructions::goto(TableId(2))),
            add(
                0,
                200,
                outer.into_iter().chain([Oxm::ipv6_dst(gw1)]),
                Instructions::apply([Action::output(PortNo::LOCAL)]),
            ),
            add(0, 0, [], Instructions::goto(TableId(2))),
            add(1, 100, user, Instructions::apply(actions)),
            add(1, 0, [], Instructions::apply([Action::output(PortNo::IN_PORT)])),
            add(
                2,
                100,
                [Oxm::eth_type(0x86dd), Oxm::ipv6_dst(gw2)],
                then([set(Oxm::eth_dst(MacAddr(GW2_MAC)))], 3),
            ),
        ],
    );
    install(&mut pipeline, forwarding().into_iter().map(|rule| FlowMod { table_id: TableId(3), ..rule }));
    install(&mut pipeline, [add(2, 0, [], Instructions::goto(TableId(3)))]);
    let uplink = |mac, to, message: &[u8]| {
        let packet = udp((enb.into(), 2152), (IpAddr::V6(to), 2152), message);
        ethernet::build(mac, ENB_MAC, None, ethernet::IPV6, &packet)
    };
    let packets: [&dyn Fn(IpAddr) -> Vec<u8>; 2] =
        [&|from| udp((from, 40_000), (v6(0x80).into(), 53), b"what is the time"), &|from| {
            tcp_packet(from, v6(0x80).into())
        }];
    for packet in packets {
        let frame = uplink(GW1_MAC, gw1, &gpdu_5g(7, &packet(v6(0x45).into())));
        let (port, sent) = pass(&pipeline, 1, &frame);
        check(&sent);
        assert_eq!((port, sent), (3, uplink(GW2_MAC, gw2, &gpdu_5g(0x9999, &packet(new_address.into())))));
        let other = uplink(GW1_MAC, gw1, &gpdu_5g(8, &packet(v6(0x45).into())));
        assert_eq!(pass(&pipeline, 1, &other), (2, other));
    }
}

/// Extension headers of IPv6 in front of UDP, outside and inside, and priority tags.
#[test]
fn sw_12_options_extension_headers_and_priority_tags() {
    let pipeline = steering(&[7]);
    let mut with_options = uplink(GW1, &gpdu(7, &user_packet()));
    // A header of 24 octets: a router alert.
    with_options.splice(34..34, [0x94, 4, 0, 0]);
    with_options[14] = 0x46;
    let total = with_options.len() as u16 - 14;
    with_options[16..18].copy_from_slice(&total.to_be_bytes());
    with_options[24..26].fill(0);
    let sum = packet::checksum::checksum(&with_options[14..38]);
    with_options[24..26].copy_from_slice(&sum.to_be_bytes());
    let (port, sent) = pass(&pipeline, 1, &with_options);
    assert_eq!((port, &sent[30..34]), (3, &GW2.octets()[..]));
    check(&sent);
    let plain = uplink(GW1, &gpdu(7, &user_packet()));
    let tagged = [&plain[..12], &[0x81, 0, 0xe0, 0], &plain[12..]].concat();
    let (port, sent) = pass(&pipeline, 1, &tagged);
    assert_eq!((port, &sent[12..16], &sent[34..38]), (3, &[0x81, 0, 0xe0, 0][..], &GW2.octets()[..]));
    check(&sent);
}

/// Fragments of the tunnel's packets have no view; they are forwarded.
#[test]
fn fragments_of_tunnel_packets_are_forwarded() {
    let pipeline = steering(&[7]);
    let packet = udp((ENB.into(), 2152), (GW1.into(), 2152), &gpdu(7, &[0x45; 200]));
    for fragment in fragments(&packet, 64) {
        let frame = ethernet::build(GW1_MAC, ENB_MAC, None, ethernet::IPV4, &fragment);
        assert_eq!(pass(&pipeline, 1, &frame), (2, frame));
    }
}

/// What the rules of a tunnel cannot mean is dropped and said.
#[test]
fn packets_that_a_tunnel_cannot_take_are_dropped() {
    let frame = uplink(GW1, &gpdu(7, &user_packet()));
    let drops = |rules: Vec<FlowMod>| {
        let mut pipeline = steering(&[]);
        install(&mut pipeline, rules);
        let (left, trace) = send(&pipeline, 1, &frame);
        assert!(left.is_empty());
        trace.dropped
    };
    let to_port = add(1, 1, [], Instructions::apply([output(3)]));
    assert_eq!(drops(vec![to_port]), Some(Dropped::Tunnel), "a packet without Ethernet header");
    let to_gtp = add(0, 900, [], Instructions::apply([output(GTP)]));
    assert_eq!(drops(vec![to_gtp]), Some(Dropped::Tunnel), "a frame that did not come by the GTP port");
    let other_version = [set(Oxm::tun_ipv6_dst(v6(1))), Action::output(PortNo::IN_PORT)];
    assert_eq!(drops(vec![add(1, 1, [], Instructions::apply(other_version))]), Some(Dropped::Tunnel));
    // Sent back to LOCAL as soon as it comes from there: OpenFlow does not send a packet back unless it is said.
    let again = add(0, 900, tunnel(ENB, GW1), Instructions::apply([Action::output(PortNo::LOCAL)]));
    assert_eq!(drops(vec![again]), Some(Dropped::NoOutput));
    let round = add(
        0,
        900,
        tunnel(ENB, GW1),
        Instructions::apply([Action::output(PortNo::LOCAL), Action::output(PortNo::IN_PORT)]),
    );
    let (left, trace) = {
        let mut pipeline = steering(&[]);
        install(&mut pipeline, [round]);
        send(&pipeline, 1, &frame)
    };
    assert!(left.len() < 64 && trace.rules.len() < 1025, "rounds are bounded");
}

/// A frame for the switch's host that is no tunnel's goes there.
#[test]
fn other_packets_for_local_reach_the_host() {
    let mut pipeline = pipeline();
    install(&mut pipeline, [add(0, 0, [], Instructions::apply([Action::output(PortNo::LOCAL)]))]);
    let packet = udp((ENB.into(), 2152), (GW1.into(), 2153), b"not ours");
    let frame = ethernet::build(GW1_MAC, ENB_MAC, None, ethernet::IPV4, &packet);
    assert_eq!(pass(&pipeline, 1, &frame), (PortNo::LOCAL.0, frame));
    let _ = gtpu::PORT;
}
