//! Exact-match entries of translations: they do what the host path does, and only where they may.

use crate::common::*;
use openflow::*;
use switch::pipeline::Pipeline;
use switch::pipeline::exact::{Exact, Inner, Only, Rewrite, Tunnel, exact};
use switch::pipeline::parse::Headers;

/// The entry for the user packets like this frame from the base station.
fn of_frame(pipeline: &Pipeline, frame: &[u8]) -> Option<Exact> {
    let headers = Headers::parse(frame, 1);
    exact(pipeline, &headers.outer, &headers.inner, &pipeline.trace(&headers.outer, &headers.inner))
}

fn of(pipeline: &Pipeline, teid: u32, packet: &[u8]) -> Option<Exact> {
    of_frame(pipeline, &uplink(GW1, &gpdu_5g(teid, packet)))
}

fn v6_packet() -> Vec<u8> {
    udp((v6(2).into(), 40_000), (v6(0x80).into(), 53), b"what is the time")
}

fn steering(teids: impl IntoIterator<Item = u32>) -> Pipeline {
    let mut pipeline = pipeline();
    install(&mut pipeline, table_one());
    install(&mut pipeline, teids.into_iter().map(divert));
    pipeline
}

#[test]
fn a_diverted_user_is_one_entry() {
    let pipeline = steering([7]);
    for message in [gpdu(7, &user_packet()), gpdu_5g(7, &user_packet()), gpdu_full(7, &user_packet())] {
        let entry = of_frame(&pipeline, &uplink(GW1, &message)).unwrap();
        assert_eq!(entry.tunnel, Tunnel { destination: GW1.into(), teid: 7 });
        // The base station's entry of table 0 names its address.
        let only =
            Only { in_port: 1, eth_source: ENB_MAC, eth_destination: GW1_MAC, source: Some(ENB.into()) };
        assert_eq!(entry.only, only);
        let rewrite =
            Rewrite { destination: Some(GW2.into()), eth_destination: Some(GW2_MAC), ..Rewrite::default() };
        assert_eq!((entry.rewrite, entry.port), (rewrite, Some(3)));
    }
    // What is inside does not matter, nor does anything that cannot be read there.
    assert_eq!(of(&pipeline, 7, &v6_packet()), of(&pipeline, 7, &user_packet()));
    assert_eq!(of(&pipeline, 7, b"\x4f"), of(&pipeline, 7, &user_packet()));
    // Another user is not diverted.
    let other = of(&pipeline, 8, &user_packet()).unwrap();
    assert_eq!((other.rewrite, other.port), (Rewrite::default(), Some(2)));
}

/// What is there already is not written: an entry could change a checksum from one form of zero to the other.
#[test]
fn what_is_there_already_is_not_written() {
    let mut pipeline = steering([]);
    let low = [
        set(Oxm::tun_ipv4_dst(GW1)),
        set(Oxm::tun_ipv4_src(ENB)),
        set(Oxm::tunnel_id(7)),
        Action::output(PortNo::IN_PORT),
    ];
    install(&mut pipeline, [add(1, 0, [], Instructions::apply(low))]);
    assert_eq!(of(&pipeline, 7, &user_packet()).unwrap().rewrite, Rewrite::default());
    let other = of(&pipeline, 8, &user_packet()).unwrap();
    assert_eq!(other.rewrite, Rewrite { teid: Some(7), ..Rewrite::default() });
    assert_eq!(other.only.source, Some(ENB.into()));
}

#[test]
fn inner_addresses_are_replaced_in_packets_of_their_version() {
    let mut pipeline = steering([]);
    let user = |packet_type| [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(7), Oxm::packet_type(packet_type)];
    let steer = |actions: Vec<Action>| {
        let back = vec![set(Oxm::tun_ipv4_dst(GW2)), Action::output(PortNo::IN_PORT)];
        Instructions::apply([actions, back].concat())
    };
    let source = steer(vec![set(Oxm::ipv4_src(UE1))]);
    install(&mut pipeline, [add(1, 200, user(PacketType::IPV4), source)]);
    let entry = of(&pipeline, 7, &user_packet()).unwrap();
    assert_eq!(entry.rewrite.inner, Some(Inner::Source(UE1.into())));
    assert_eq!(of(&pipeline, 7, &v6_packet()), None, "they are told apart by what is inside only");
    let both = steer(vec![set(Oxm::ipv4_src(UE1)), set(Oxm::ipv4_dst(SERVER))]);
    install(&mut pipeline, [add(1, 200, user(PacketType::IPV4), both)]);
    assert_eq!(of(&pipeline, 7, &user_packet()), None);
}

/// One user with an application of its own stays with the host path, and no other does.
#[test]
fn what_depends_on_more_stays_with_the_host_path() {
    let mut pipeline = steering([7, 8, 9]);
    let user = |teid| [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(teid), Oxm::packet_type(PacketType::IPV4)];
    let steer =
        |actions: Vec<Action>| Instructions::apply([vec![set(Oxm::tun_ipv4_dst(GW2))], actions].concat());
    let back = || Action::output(PortNo::IN_PORT);
    let dns = [Oxm::ip_proto(17), Oxm::udp_dst(53)];
    let pair = [Oxm::ipv4_dst(SERVER)];
    install(
        &mut pipeline,
        [
            add(1, 200, user(7).into_iter().chain(dns), steer(vec![back()])),
            add(1, 150, user(7).into_iter().chain(pair), steer(vec![back()])),
            add(1, 200, user(8), steer(vec![Action::output(PortNo::CONTROLLER), back()])),
            add(1, 200, user(9), steer(vec![Action::DecNwTtl, back()])),
        ],
    );
    for teid in [7, 8, 9] {
        assert_eq!(of(&pipeline, teid, &user_packet()), None, "{teid}");
    }
    for packet in [user_packet(), v6_packet()] {
        let entry = of(&pipeline, 11, &packet).unwrap();
        assert_eq!((entry.rewrite, entry.port), (Rewrite::default(), Some(2)));
    }
    // Path messages, End Markers, and frames without tunnel are none of these entries.
    let mut end_marker = gpdu(11, &[]);
    end_marker[1] = 254;
    for message in
        [packet::gtpu::Signalling::EchoRequest { sequence: 1 }.build(), b"none".to_vec(), end_marker]
    {
        assert_eq!(of_frame(&pipeline, &uplink(GW1, &message)), None);
    }
}

/// Entries with an EthType or type of packet in front of those for tunnels: all packets are asked for it, and treated alike or not.
#[test]
fn what_is_inside_may_be_asked_for_if_it_makes_no_difference() {
    let mut pipeline = steering([7]);
    let before = of(&pipeline, 7, &user_packet());
    let arp = [Oxm::eth_type(0x0806), Oxm::arp_tpa(GW1)];
    install(&mut pipeline, [add(0, 400, arp, Instructions::apply([Action::output(PortNo::CONTROLLER)]))]);
    assert!(before.is_some());
    for packet in [user_packet(), v6_packet(), b"neither".to_vec()] {
        assert_eq!(of(&pipeline, 7, &packet), before);
    }
    // The same actions by another rule are counted there.
    let of_v6 = [Oxm::in_port(PortNo(GTP)), Oxm::packet_type(PacketType::IPV6)];
    install(&mut pipeline, [add(0, 350, of_v6, Instructions::goto(TableId(1)))]);
    for packet in [user_packet(), v6_packet(), b"neither".to_vec()] {
        assert_eq!(of(&pipeline, 7, &packet), None);
    }
}

/// A rule that looks into IP packets, in front of the one for the GTP port, is asked about what is inside tunnels; behind it, it is not.
#[test]
fn rules_for_the_gtp_port_come_first() {
    let mut pipeline = steering([7]);
    let echo = [Oxm::eth_type(0x0800), Oxm::ipv4_dst(UE1), Oxm::ip_proto(17), Oxm::udp_src(2152)];
    install(&mut pipeline, [add(0, 400, echo, Instructions::apply([Action::output(PortNo::CONTROLLER)]))]);
    assert_eq!(of(&pipeline, 7, &user_packet()), None);
    install(&mut pipeline, [add(0, 500, [Oxm::in_port(PortNo(GTP))], Instructions::goto(TableId(1)))]);
    assert!(of(&pipeline, 7, &user_packet()).is_some());
}

/// Nor does an entry do what has to be done by the host, or hide a packet from groups that count it.
#[test]
fn outputs_that_are_no_interface_stay_with_the_host_path() {
    let mut pipeline = steering([7]);
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    let tagged = ethernet_tagged(&frame);
    assert_eq!(of_frame(&pipeline, &tagged), None);
    let local = Headers::parse(&frame, PortNo::LOCAL.0);
    let trace = pipeline.trace(&local.outer, &local.inner);
    assert_eq!(
        exact(&pipeline, &local.outer, &local.inner, &trace),
        None,
        "XDP does not see what the host sends"
    );
    let group = GroupMod {
        command: GroupModCommand::Add,
        group_type: GroupType::All,
        group_id: GroupId(1),
        buckets: vec![Bucket::new([output(3)])],
    };
    pipeline.commit(&[Change::GroupMod(group)], 0).unwrap();
    for actions in [vec![Action::Group(GroupId(1))], vec![output(2), output(3)]] {
        install(&mut pipeline, [add(0, 900, tunnel(ENB, GW1), Instructions::apply(actions))]);
        assert_eq!(of_frame(&pipeline, &frame), None);
    }
    install(&mut pipeline, [add(0, 900, tunnel(ENB, GW1), Instructions::default())]);
    assert_eq!(of_frame(&pipeline, &frame).unwrap().port, None);
    // To a port that cannot send, packets go nowhere.
    install(&mut pipeline, [add(0, 900, tunnel(ENB, GW1), Instructions::apply([output(2)]))]);
    assert_eq!(of_frame(&pipeline, &frame).unwrap().port, Some(2));
    pipeline.set_live(2, false);
    assert_eq!(of_frame(&pipeline, &frame).unwrap().port, None);
}

fn ethernet_tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat()
}
