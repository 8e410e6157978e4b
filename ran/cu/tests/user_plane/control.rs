//! Setting up and taking down, and GTP-U signalling.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cu::user_plane::{Event, Refused, Tunnel};
use packet::gtpu::{self, Signalling};
use telemetry::DropReason;

use crate::support::*;

#[test]
fn tunnels_of_closed_sessions_are_unknown() {
    let mut world = World::new();
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    let mut ue = Ue::new(PLAIN);
    let old = [world.user_plane.n3_tunnel(session), world.user_plane.f1u_tunnel(bearer)];
    assert_eq!(old.map(|tunnel| tunnel.address), [N3, F1U]);
    world.user_plane.close(session);
    world.upf_sends(session, 1, b"x");
    world.du_sends(bearer, &ue.pdu(1, b"x"));
    world.run();
    assert_eq!(world.drops(DropReason::UnknownTeid), 2);
    for (wire, (peer, tunnel)) in [(0, (DU, old[1])), (1, (UPF, old[0]))] {
        let sent = world.wires[wire].take();
        let [(message, to)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(*to, SocketAddr::new(peer, gtpu::PORT));
        let Ok(Some(Signalling::ErrorIndication { teid, peer: named, .. })) = gtpu::decode(message) else {
            panic!("{message:02x?}")
        };
        assert_eq!((teid, named), (tunnel.teid, tunnel.address));
    }
    // Their successors have other TEIDs.
    let (next, next_bearer) = world.session(PLAIN.bearer(&[1]));
    let new = [world.user_plane.n3_tunnel(next), world.user_plane.f1u_tunnel(next_bearer)];
    assert!(new.iter().all(|tunnel| !old.contains(tunnel)));
    assert!(world.user_plane.add(session, world.f1u, PLAIN.bearer(&[1])).is_err());
    assert!(world.user_plane.connect(session, bearer, Tunnel { address: DU, teid: 1 }).is_err());
    // Twice does nothing.
    world.user_plane.close(session);
    world.user_plane.remove(session, bearer);
    world.upf_sends(next, 1, b"x");
    world.run();
    assert_eq!(world.at_du().len(), 1);
}

#[test]
fn many_sessions_come_and_go() {
    let mut world = World::new();
    let mut open = Vec::new();
    for round in 0..2000u32 {
        let address = IpAddr::V4(Ipv4Addr::from_bits(0x0A00_0000 + round % 16));
        let session = world.user_plane.open(world.n3, Tunnel { address: UPF, teid: round }).unwrap();
        let bearer = world.user_plane.add(session, world.f1u, PLAIN.bearer(&[1])).unwrap();
        world.user_plane.connect(session, bearer, Tunnel { address, teid: round }).unwrap();
        open.push((session, bearer, address, round));
        if round % 3 == 2 {
            let (session, ..) = open.remove(round as usize % open.len());
            world.user_plane.close(session);
        }
    }
    for (session, ..) in &open {
        world.upf_sends(*session, 1, b"down");
    }
    world.run();
    let sent = world.at_du();
    let seen: Vec<_> = sent.iter().map(|sent| (sent.to.ip(), sent.teid)).collect();
    let expected: Vec<_> = open.iter().map(|(_, _, address, teid)| (*address, *teid)).collect();
    assert!(seen == expected, "{} of {} arrived where they must", seen.len(), expected.len());
    open.iter().for_each(|(session, ..)| world.user_plane.close(*session));
    world.turn();
    world.upf_sends(open[0].0, 1, b"late");
    world.run();
    assert_eq!(world.all_drops(), 1);
}

#[test]
fn echo_and_what_peers_say_reach_who_they_are_for() {
    let mut world = World::new();
    let (session, _) = world.session(PLAIN.bearer(&[1]));
    let request = Signalling::EchoRequest { sequence: 0xABCD }.build();
    world.inject_n3(&request);
    world.inject_f1u(&request);
    world.run();
    for (wire, peer) in [(0, DU), (1, UPF)] {
        let sent = world.wires[wire].take();
        let response = Signalling::EchoResponse { sequence: 0xABCD }.build();
        assert_eq!(sent, [(response, SocketAddr::new(peer, gtpu::PORT))]);
    }
    world.user_plane.echo(world.f1u, DU, 7).unwrap();
    world.user_plane.echo(world.n3, UPF, 8).unwrap();
    assert_eq!(world.user_plane.echo(9, UPF, 8), Err(Refused::Interface));
    world.turn();
    for (wire, (peer, sequence)) in [(0, (DU, 7)), (1, (UPF, 8))] {
        let request = Signalling::EchoRequest { sequence }.build();
        assert_eq!(world.wires[wire].take(), [(request, SocketAddr::new(peer, gtpu::PORT))]);
    }
    // An answer to nothing, the answer, and the same again.
    for sequence in [8, 7, 7] {
        world.inject_f1u(&Signalling::EchoResponse { sequence }.build());
    }
    let teid = world.user_plane.n3_tunnel(session).teid;
    world.inject_n3(&Signalling::EndMarker { teid, pdu_session: None }.build());
    world.inject_f1u(&Signalling::ErrorIndication { teid: DU_TEID, peer: DU, udp_port: None }.build());
    // A tunnel that does not lead there, and somebody else who speaks for the UPF.
    world.inject_f1u(&Signalling::ErrorIndication { teid: DU_TEID + 1, peer: DU, udp_port: None }.build());
    world.inject_f1u(&Signalling::EndMarker { teid, pdu_session: None }.build());
    world.inject_n3(&Signalling::EndMarker { teid: teid + 1, pdu_session: None }.build());
    world.inject_f1u(&Signalling::ErrorIndication { teid: UPF_TEID, peer: UPF, udp_port: None }.build());
    world.inject_n3(&Signalling::SupportedExtensionHeaders { types: vec![0x85] }.build());
    world.run();
    let mut events = Vec::new();
    while let Ok(event) = world.events.try_recv() {
        events.push(event);
    }
    let expected = [
        Event::EchoResponse { interface: world.f1u, peer: DU, sequence: 7 },
        Event::ErrorIndication { interface: world.f1u, peer: DU, teid: DU_TEID },
        Event::EndMarker { teid },
    ];
    assert_eq!(events, expected);
    assert_eq!(world.stats().error_indications_received.get(), 3);
    assert_eq!(world.all_drops(), 0);
}

#[test]
fn events_that_nobody_takes_are_bounded_and_counted() {
    let mut world = World::new();
    let (session, _) = world.session(PLAIN.bearer(&[1]));
    let teid = world.user_plane.n3_tunnel(session).teid;
    let message = Signalling::EndMarker { teid, pdu_session: None }.build();
    for _ in 0..5000 {
        world.inject_n3(&message);
    }
    world.run();
    assert_eq!(world.stats().lost_events.get(), 5000 - 4096);
}

#[test]
fn the_upf_of_a_session_may_move() {
    let mut world = World::new();
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    let mut ue = Ue::new(PLAIN);
    let own = world.user_plane.n3_tunnel(session);
    let next = Tunnel { address: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 3)), teid: 5 };
    for tunnel in [Tunnel { address: UPF, teid: UPF_TEID }, next] {
        if tunnel == next {
            world.user_plane.move_to(session, next).unwrap();
        }
        world.du_sends(bearer, &ue.pdu(1, b"up"));
        world.run();
        let to = SocketAddr::new(tunnel.address, gtpu::PORT);
        assert_eq!(world.at_upf(), [(to, tunnel.teid, 1, b"up".to_vec())]);
    }
    // Our end is the same, and a bearer that is added sends to the new one.
    assert_eq!(world.user_plane.n3_tunnel(session), own);
    let second = world.user_plane.add(session, world.f1u, PLAIN.bearer(&[2])).unwrap();
    world.turn();
    world.du_sends(second, &Ue::new(PLAIN).pdu(2, b"up"));
    world.run();
    assert_eq!(world.at_upf()[0].1, next.teid);
    // The former end speaks for nobody any more.
    world.inject_n3(&Signalling::ErrorIndication { teid: UPF_TEID, peer: UPF, udp_port: None }.build());
    world.run();
    assert!(world.events.try_recv().is_err());
    world.user_plane.close(session);
    assert_eq!(world.user_plane.move_to(session, next), Err(Refused::Unknown));
}

/// Sixteen DUs, each on an interface of its own: PDUs go to the right one, and come from it only.
#[test]
fn each_du_may_have_an_interface() {
    const DUS: u8 = 16;
    let mut world = World::with_dus(DUS);
    let upf = Tunnel { address: UPF, teid: UPF_TEID };
    let n3 = DUS;
    let mut bearers = Vec::new();
    for du in 0..DUS {
        let session = world.user_plane.open(n3, upf).unwrap();
        let bearer = world.user_plane.add(session, du, PLAIN.bearer(&[1])).unwrap();
        world.user_plane.connect(session, bearer, Tunnel { address: DU, teid: du.into() }).unwrap();
        let message = gtpu::build_gpdu(world.user_plane.n3_tunnel(session).teid, None, &[du]).unwrap();
        world.wires[usize::from(n3)].inject(&message, SocketAddr::new(UPF, gtpu::PORT));
        bearers.push(bearer);
    }
    world.run();
    for du in 0..DUS {
        let sent = world.wires[usize::from(du)].take();
        let teids: Vec<u32> =
            sent.iter().map(|(message, _)| gtpu::Packet::new(message).unwrap().teid()).collect();
        assert_eq!(teids, [u32::from(du)]);
    }
    // The neighbour's tunnel is none of this interface.
    for (du, bearer) in bearers.into_iter().enumerate() {
        let pdu = Ue::new(PLAIN).pdu(1, b"up");
        let own = gtpu::build_gpdu(world.user_plane.f1u_tunnel(bearer).teid, None, &pdu).unwrap();
        let neighbour = (du + 1) % usize::from(DUS);
        world.wires[neighbour].inject(&own, SocketAddr::new(DU, gtpu::PORT));
        world.wires[du].inject(&own, SocketAddr::new(DU, gtpu::PORT));
    }
    world.run();
    assert_eq!(world.wires[usize::from(n3)].take().len(), usize::from(DUS));
    assert_eq!((world.drops(DropReason::DirectionMismatch), world.all_drops()), (DUS.into(), DUS.into()));
}

#[test]
fn an_interface_takes_its_own_tunnels_only() {
    let mut world = World::new();
    let (session, bearer) = world.session(PLAIN.bearer(&[1]));
    let (plane, upf) = (&world.user_plane, Tunnel { address: UPF, teid: 1 });
    let v6 = Tunnel { address: "2001:db8::1".parse().unwrap(), teid: 1 };
    assert_eq!(plane.open(world.f1u, upf), Err(Refused::Interface));
    assert_eq!(plane.open(9, upf), Err(Refused::Interface));
    assert_eq!(plane.open(world.n3, v6), Err(Refused::Interface));
    assert_eq!(plane.add(session, world.n3, PLAIN.bearer(&[2])), Err(Refused::Interface));
    // Packets would come back, or go to nobody.
    for address in [F1U, N3, Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(224, 0, 0, 1).into()] {
        assert_eq!(plane.connect(session, bearer, Tunnel { address, teid: 1 }), Err(Refused::Interface));
        assert_eq!(plane.move_to(session, Tunnel { address, teid: 1 }), Err(Refused::Interface));
    }
    assert_eq!(plane.connect(session, bearer, v6), Err(Refused::Interface));
    for _ in 1..32 {
        plane.add(session, world.f1u, PLAIN.bearer(&[2])).unwrap();
    }
    assert_eq!(plane.add(session, world.f1u, PLAIN.bearer(&[2])), Err(Refused::Full));
}
