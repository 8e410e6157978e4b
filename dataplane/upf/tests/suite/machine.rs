//! Addresses of the UPF's own machine: no tunnel leads back to them, and UEs do not reach them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::support::*;
use crate::world::*;
use packet::{ipv4, ipv6, protocol};
use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::*;
use telemetry::DropReason;
use upf::tables::Receiver;

/// An address that this machine gets during a test.
const NEW: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

fn local(addresses: &[Ipv4Addr]) -> impl Iterator<Item = (IpAddr, Receiver)> {
    addresses.iter().map(|address| (IpAddr::from(*address), Receiver::Local))
}

fn refused(
    world: &mut World,
    request: &SessionEstablishmentRequest,
) -> (Cause, Option<u16>, Option<FailedRuleId>) {
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
    assert!(response.created_pdrs.is_empty());
    (response.cause, response.offending_ie.map(|ie| ie.0), response.failed_rule_id)
}

#[test]
fn a_far_that_leads_back_to_this_machine_is_refused() {
    let mut world = World::new();
    let incorrect =
        |far| (Cause::MANDATORY_IE_INCORRECT, Some(ie::OUTER_HEADER_CREATION), Some(FailedRuleId::Far(far)));
    let to = |far: u32, destination, peer| {
        let mut request = establishment(1);
        request.create_fars[far as usize - 1] = forward(far, destination, Some((7, peer)));
        request
    };
    for (far, destination) in [
        (1, DestinationInterface::Core),
        (2, DestinationInterface::Access),
        (3, DestinationInterface::CpFunction),
    ] {
        assert_eq!(refused(&mut world, &to(far, destination, GTPU)), incorrect(far));
    }
    let mut copying = establishment(1);
    copying.create_fars[0].apply_action = ApplyAction::FORW | ApplyAction::DUPL;
    copying.create_fars[0].duplicating_parameters = vec![DuplicatingParameters {
        destination_interface: DestinationInterface::Core,
        outer_header_creation: Some(OuterHeaderCreation::gtpu(7, GTPU.into())),
        ..Default::default()
    }];
    assert_eq!(refused(&mut world, &copying), incorrect(1));
    // The same applies to a new address of this machine, except for tunnels to the CP function.
    world.tables.set_local_addresses(local(&[GTPU, NEW]));
    assert_eq!(refused(&mut world, &to(2, DestinationInterface::Access, NEW)), incorrect(2));
    let (seid, ..) = world.establish_by(&to(3, DestinationInterface::CpFunction, NEW));
    // A path switch to it is refused and changes nothing.
    let modified = world.sessions.modify(seid, SMF.into(), &path_switch(9, NEW.into()), NOW).unwrap();
    assert_eq!(modified.response.cause, Cause::MANDATORY_IE_INCORRECT);
    world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), b"x"));
    assert_eq!(world.n3.take().into_iter().map(|(_, peer)| peer).collect::<Vec<_>>(), [gnb()]);
    assert_eq!(world.sessions.count(), 1);
}

/// No machine has a broadcast address, so it is refused for the CP function too.
#[test]
fn no_tunnel_leads_to_all_machines_of_a_network() {
    let mut world = World::new();
    let broadcast = Ipv4Addr::new(192, 0, 2, 255);
    let to = |far: u32, destination| {
        let mut request = establishment(1);
        request.create_fars[far as usize - 1] = forward(far, destination, Some((7, broadcast)));
        request
    };
    let control = DestinationInterface::CpFunction;
    let (seid, ..) = world.establish_by(&to(2, DestinationInterface::Access));
    let down = udp(SERVER_V4.into(), UE_V4.into(), b"x");
    world.downlink(&down);
    assert_eq!(world.n3.take().len(), 1);
    // The network becomes one of this machine's.
    let now = || local(&[GTPU]).chain([(broadcast.into(), Receiver::All)]);
    assert_eq!(world.tables.set_local_addresses(now()), [IpAddr::from(broadcast)]);
    assert!(world.tables.set_local_addresses(now()).is_empty(), "told once");
    world.downlink(&down);
    world.assert_only_dropped(DropReason::TunnelLoop, 1);
    for (far, destination) in
        [(1, DestinationInterface::Core), (2, DestinationInterface::Access), (3, control)]
    {
        let incorrect =
            (Cause::MANDATORY_IE_INCORRECT, Some(ie::OUTER_HEADER_CREATION), Some(FailedRuleId::Far(far)));
        assert_eq!(refused(&mut world, &to(far, destination)), incorrect);
    }
    let modified = world.sessions.modify(seid, SMF.into(), &path_switch(9, broadcast.into()), NOW).unwrap();
    assert_eq!(modified.response.cause, Cause::MANDATORY_IE_INCORRECT);
}

#[test]
fn a_far_end_that_becomes_this_machines_gets_nothing_more() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_fars[1] = forward(2, DestinationInterface::Access, Some((GNB_TEID, NEW)));
    let (seid, ..) = world.establish_by(&request);
    let down = udp(SERVER_V4.into(), UE_V4.into(), b"x");
    world.downlink(&down);
    assert_eq!(world.n3.take().len(), 1);
    assert_eq!(world.tables.set_local_addresses(local(&[GTPU, NEW])), [IpAddr::from(NEW)]);
    world.downlink(&down);
    world.assert_only_dropped(DropReason::TunnelLoop, 1);
    assert!(world.n3.take().is_empty());
    assert!(world.tables.set_local_addresses(local(&[GTPU, NEW])).is_empty(), "told once");
    // Other changes of the session are accepted, and its packets are still dropped.
    let qer = UpdateQer { qer_id: QerId(1), mbr: None, ..Default::default() };
    world.modify(seid, &SessionModificationRequest { update_qers: vec![qer], ..Default::default() });
    world.downlink(&down);
    world.assert_only_dropped(DropReason::TunnelLoop, 2);
    world.modify(seid, &path_switch(GNB_TEID, GNB.into()));
    world.downlink(&down);
    assert!(world.n3.take().iter().any(|(_, peer)| *peer == gnb()));
    world.tables.set_local_addresses(local(&[GTPU]));
    world.modify(seid, &path_switch(GNB_TEID, NEW.into()));
    world.n3.take();
    world.downlink(&down);
    assert_eq!(world.n3.take().len(), 1, "somebody else's again");
}

/// A packet that this UPF sent into a tunnel and that comes back does not enter a tunnel again.
#[test]
fn what_we_have_sent_does_not_go_round() {
    let mut world = World::new();
    let mut request = establishment(1);
    let next = Ipv4Addr::new(127, 0, 0, 30);
    request.create_fars[0] = forward(1, DestinationInterface::Core, Some((5, next)));
    let (_, teid, _) = world.establish_by(&request);
    let up = uplink_gpdu(teid, &udp(UE_V4.into(), SERVER_V4.into(), b"x"));
    world.uplink(&up);
    assert_eq!(world.n3.take().len(), 1);
    world.n3.inject(&up, SocketAddr::new(GTPU.into(), 2152));
    world.run(N3);
    world.assert_only_dropped(DropReason::TunnelLoop, 1);
    assert!(world.n3.take().is_empty());
}

/// A packet from the UE, of any protocol; checksums do not matter to a router.
fn from_ue(to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match to {
        IpAddr::V4(to) => ipv4::Header::new(UE_V4, to, protocol).build(payload).unwrap(),
        IpAddr::V6(to) => ipv6::Header::new(UE_V6, to, protocol).build(payload).unwrap(),
    }
}

/// As a first and as a later fragment.
fn fragments(mut packet: Vec<u8>) -> [Vec<u8>; 2] {
    packet[6] = 0x20;
    let first = packet.clone();
    (packet[6], packet[7]) = (0, 5);
    [first, packet]
}

#[test]
fn nothing_from_a_ue_reaches_this_machine() {
    let (mut world, _, teid, _) = World::with_session();
    let mut dropped = 0;
    let targets: [IpAddr; 8] = [
        MACHINE_V4.into(),
        MACHINE_V6.into(),
        GTPU.into(),
        Ipv4Addr::LOCALHOST.into(),
        Ipv4Addr::UNSPECIFIED.into(),
        "169.254.9.9".parse().unwrap(),
        "::1".parse().unwrap(),
        "fe80::1".parse().unwrap(),
    ];
    for to in targets {
        for protocol in [
            protocol::UDP,
            protocol::TCP,
            protocol::SCTP,
            if to.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 },
            protocol::ESP,
            99,
        ] {
            let packet = from_ue(to, protocol, &[0x10; 40]);
            world.uplink(&uplink_gpdu(teid, &packet));
            dropped += 1;
            world.assert_only_dropped(DropReason::CoreInterface, dropped);
        }
    }
    for fragment in fragments(from_ue(MACHINE_V4.into(), protocol::UDP, &[0x10; 40])) {
        world.uplink(&uplink_gpdu(teid, &fragment));
    }
    world.assert_only_dropped(DropReason::CoreInterface, dropped + 2);
    // Neighbours of the machine, other UEs and other networks are reached.
    for to in ["10.200.0.2", "10.45.0.99", "203.0.113.1", "fd00:200::2", "fd00:45:0:99::1"] {
        world.uplink(&uplink_gpdu(teid, &from_ue(to.parse().unwrap(), protocol::UDP, &[0x10; 40])));
        assert_eq!(world.n6.take().len(), 1, "{to}");
    }
    // An address that the machine gets later.
    let packet = from_ue(NEW.into(), protocol::TCP, &[0x10; 40]);
    world.uplink(&uplink_gpdu(teid, &packet));
    assert_eq!(world.n6.take().len(), 1);
    world.guard.set_addresses(["192.0.2.1/24".parse().unwrap()]);
    world.uplink(&uplink_gpdu(teid, &packet));
    world.assert_only_dropped(DropReason::CoreInterface, dropped + 3);
}

/// Copies of packets do not reach this machine either.
#[test]
fn copies_do_not_reach_this_machine() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_fars[0] = forward(1, DestinationInterface::Core, Some((5, GNB)));
    request.create_fars[0].apply_action = ApplyAction::FORW | ApplyAction::DUPL;
    request.create_fars[0].duplicating_parameters = vec![DuplicatingParameters {
        destination_interface: DestinationInterface::SgiLan,
        ..Default::default()
    }];
    let (_, teid, _) = world.establish_by(&request);
    for (to, copies) in [(SERVER_V4, 1), (MACHINE_V4, 0)] {
        world.uplink(&uplink_gpdu(teid, &udp(UE_V4.into(), to.into(), b"x")));
        assert_eq!((world.n3.take().len(), world.n6.take().len()), (1, copies));
    }
    assert_eq!(world.drops(DropReason::CoreInterface), 1);
}
