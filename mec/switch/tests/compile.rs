//! Exact-match entries of translations: they do what the host path does, and only where they may.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::*;
use openflow::*;
use switch::pipeline::compile::{Only, Rewrite, Tunnel, Way, compile, exact};
use switch::pipeline::parse::Headers;

fn way() -> Way {
    Way { in_port: 1, eth: (ENB_MAC, GW1_MAC), source: ENB.into(), destination: GW1.into() }
}

#[test]
fn a_diverted_user_is_one_entry() {
    let mut pipeline = pipeline();
    install(&mut pipeline, table_one());
    install(&mut pipeline, (0..1000).map(divert));
    let entries = compile(&pipeline, &[way()]);
    assert_eq!(entries.len(), 1000);
    let entry = &entries[7];
    assert_eq!(entry.tunnel, Tunnel { destination: GW1.into(), teid: 7 });
    // The base station's entry of table 0 names its address; the destination on the link was set before table 2 asked for it.
    assert_eq!(entry.only, Only { in_port: Some(1), source: Some(ENB.into()), ..Only::default() });
    let rewrite =
        Rewrite { destination: Some(GW2.into()), eth_destination: Some(GW2_MAC), ..Rewrite::default() };
    assert_eq!((entry.rewrite, entry.port), (rewrite, Some(3)));
    let rules: Vec<_> = entry.rules.iter().map(|flow| (flow.table.0, flow.priority)).collect();
    assert_eq!(rules, [(0, 200), (0, 300), (1, 100), (0, 260), (2, 100)]);
    assert!(pipeline.tables()[1].counts() == (0, 0), "nothing was counted");
}

/// A real packet leads to the same entry as the made-up one.
#[test]
fn real_packets_and_made_up_ones_agree() {
    let mut pipeline = pipeline();
    install(&mut pipeline, table_one());
    install(&mut pipeline, [divert(7)]);
    for message in [gpdu(7, &user_packet()), gpdu_5g(7, &user_packet()), gpdu_full(7, &user_packet())] {
        let headers = Headers::parse(&uplink(GW1, &message), 1);
        assert_eq!(Way::of(&headers.outer), Some(way()));
        let trace = pipeline.trace(&headers.outer, &headers.inner);
        let real = exact(&headers.outer, &headers.inner, &trace).unwrap();
        let made_up = &compile(&pipeline, &[way()])[0];
        assert_eq!(
            (real.tunnel, real.only, real.rewrite, real.port),
            (made_up.tunnel, made_up.only, made_up.rewrite, made_up.port)
        );
    }
}

#[test]
fn what_depends_on_more_stays_with_the_host_path() {
    let mut pipeline = pipeline();
    install(&mut pipeline, table_one());
    install(&mut pipeline, [divert(7), divert(8), divert(9), divert(10)]);
    let user = |teid| [Oxm::tun_ipv4_dst(GW1), Oxm::tunnel_id(teid), Oxm::packet_type(PacketType::IPV4)];
    let steer =
        |actions: Vec<Action>| Instructions::apply([vec![set(Oxm::tun_ipv4_dst(GW2))], actions].concat());
    let back = || Action::output(PortNo::IN_PORT);
    install(
        &mut pipeline,
        [
            // An application of one user; a copy for the controllers of another; TTL of a third.
            add(
                1,
                200,
                user(7).into_iter().chain([Oxm::ip_proto(17), Oxm::udp_dst(53)]),
                steer(vec![back()]),
            ),
            add(1, 200, user(8), steer(vec![Action::output(PortNo::CONTROLLER), back()])),
            add(1, 200, user(9), steer(vec![Action::DecNwTtl, back()])),
            // The address of the fourth is translated, with IPv4 only.
            add(1, 200, user(10), steer(vec![set(Oxm::ipv4_src(UE1)), back()])),
        ],
    );
    let entries = compile(&pipeline, &[way()]);
    let of = |teid: u32| -> Vec<_> {
        let entries = entries.iter().filter(|entry| entry.tunnel.teid == teid);
        entries.map(|entry| (entry.only.inner_ipv6, entry.rewrite.inner_source)).collect()
    };
    // Packets of IPv6 cannot be of these rules: for them, the rule below holds.
    assert_eq!(of(8), [(Some(true), None)]);
    assert_eq!(of(9), [(Some(true), None)]);
    assert_eq!(of(10), [(Some(false), Some(UE1.into())), (Some(true), None)]);
    assert!(of(7).iter().all(|(ipv6, _)| *ipv6 == Some(true)), "{:?}", of(7));
    // Another user is not concerned.
    let frame = uplink(GW1, &gpdu_5g(11, &user_packet()));
    let headers = Headers::parse(&frame, 1);
    let entry =
        exact(&headers.outer, &headers.inner, &pipeline.trace(&headers.outer, &headers.inner)).unwrap();
    assert_eq!((entry.rewrite, entry.port), (Rewrite::default(), Some(2)));
    assert_eq!(entry.only.eth_destination, Some(GW1_MAC), "table 2 asked for it");
    // Path messages, and frames without tunnel, are none of these entries.
    for message in [packet::gtpu::Signalling::EchoRequest { sequence: 1 }.build(), b"none".to_vec()] {
        let headers = Headers::parse(&uplink(GW1, &message), 1);
        assert!(
            exact(&headers.outer, &headers.inner, &pipeline.trace(&headers.outer, &headers.inner)).is_none()
        );
    }
}
