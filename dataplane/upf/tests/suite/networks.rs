//! Several interfaces and data networks: each session has the interfaces of its network instances (TS 29.244 §8.2.4), and
//! what one network instance knows is unknown in the others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::support::*;
use crate::world::*;
use packet::gtpu::{self, PduSession, Signalling, build_gpdu};
use pfcp::message::SessionEstablishmentRequest;
use pfcp::*;
use pktio::Port;
use pktio::memory::{self, Wire};
use telemetry::DropReason;
use upf::interface::Role;
use upf::pipeline::Graph;
use upf::pipeline::links::{Link, Links};
use upf::pipeline::mtu::Router;
use upf::plan::Peer;
use upf::stats;

/// A UPF with two data networks, and the far end of the second one.
fn two() -> (World, Wire) {
    let mut config = config("gw0");
    let ims = r#"{"name": "ims", "tun": "gw1", "ue_pool": {"ipv4": "10.46.0.0/16"}}"#;
    config.dnn.push(serde_json::from_str(ims).unwrap());
    let mut world = World::with_config(config);
    let (port, wire) = memory::pair(100);
    world.ports[N6 + 1] = Box::new(port) as Box<dyn Port>;
    (world, wire)
}

#[test]
fn a_ue_is_reached_from_its_own_data_network_only() {
    let down = udp(SERVER_V4.into(), UE_V4.into(), b"x");
    // Without a name the pool of the UE's address decides, which is internet's; otherwise the name, as text or labels.
    for (instance, expected) in [
        (None, 0),
        (Some(&b"internet"[..]), 0),
        (Some(b"ims"), 1),
        (Some(b"\x03ims"), 1),
        (Some(b"\x08internet"), 0),
    ] {
        let (mut world, second) = two();
        let mut request = establishment(1);
        request.create_pdrs[1].pdi.network_instance = instance.map(Into::into);
        world.establish_by(&request);
        for network in [0, 1] {
            let wire = if network == 0 { &world.n6 } else { &second };
            wire.inject(&down, "0.0.0.0:0".parse().unwrap());
            world.run(N6 + network);
            let passed = usize::from(network == expected);
            assert_eq!(world.n3.take().len(), passed, "{instance:?} from {network}");
        }
        assert_eq!(world.drops(DropReason::DirectionMismatch), 1, "{instance:?}");
    }
}

#[test]
fn a_session_of_two_data_networks_is_refused() {
    let (mut world, _) = two();
    let mut request = establishment(1);
    let mut other = request.create_pdrs[1].clone();
    other.pdr_id = PdrId(9);
    other.pdi.network_instance = Some("ims".into());
    request.create_pdrs.push(other);
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
    assert_eq!(response.cause, Cause::RULE_FAILURE);
    assert_eq!(response.failed_rule_id, Some(FailedRuleId::Pdr(PdrId(9).0)));
}

/// Buffered packets are released also if the last batch before their release came from another data network.
#[test]
fn buffered_packets_are_released_whichever_network_was_served_last() {
    let (mut world, second) = two();
    let (seid, ..) = world.establish();
    world.modify(seid, &update_far(2, ApplyAction::BUFF));
    for _ in 0..3 {
        world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), b"x"));
    }
    second.inject(&udp(SERVER_V4.into(), [10, 46, 0, 9].into(), b"x"), "0.0.0.0:0".parse().unwrap());
    world.run(N6 + 1);
    assert_eq!(world.drops(DropReason::UnknownUe), 1);
    world.modify(seid, &update_far(2, ApplyAction::FORW));
    world.pipeline.turn(world.now_ns, &mut world.ports);
    assert_eq!(world.n3.take().len(), 3);
}

/// Numbers of the interfaces of [`Split`].
const RAN: usize = 0;
const PLANT_RAN: usize = 1;
const WAN: usize = 2;
const LAN: usize = 3;
const PLANT_GTPU: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 7);

/// A UPF between two networks that know nothing of each other: same UE addresses, same gNB address, same TEID at the
/// gNB.
struct Split {
    world: World,
    wires: [Wire; 4],
}

fn split_config() -> upf::Config {
    let text = r#"{"pfcp": "127.0.0.7:8805", "smf": ["127.0.0.0/8"], "restoration_s": 0, "interfaces": [
        {"name": "ran", "role": "n3", "network_instance": "ran", "gtpu": "127.0.0.7:2152"},
        {"name": "plant-ran", "role": "n3", "network_instance": "plant", "gtpu": "127.0.1.7:2152"},
        {"name": "wan", "role": "n6", "device": "gw0"},
        {"name": "lan", "role": "n6", "device": "gw1", "network_instance": "plant"}],
        "dnn": [{"name": "internet", "interfaces": ["wan"], "ue_pool": {"ipv4": "10.45.0.0/16"}},
                {"name": "factory", "interfaces": ["lan"], "ue_pool": {"ipv4": "10.45.0.0/16"}}]}"#;
    let config: upf::Config = serde_json::from_str(text).unwrap();
    config.validate().unwrap();
    config
}

impl Split {
    fn new() -> Split {
        let mut world = World::with_config(split_config());
        let wires = std::array::from_fn(|number| {
            let (port, wire) = memory::pair(100);
            world.ports[number] = Box::new(port) as Box<dyn Port>;
            wire
        });
        Split { world, wires }
    }

    /// Returns SEID, and TEID and address of the tunnel on N3.
    fn establish(&mut self, cp_seid: u64, n3: &str, n6: &str) -> (u64, u32, Ipv4Addr) {
        let request = placed(cp_seid, n3, n6);
        let response =
            self.world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
        assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
        match response.created_pdrs[0].f_teid {
            Some(FTeid::Assigned { teid, ipv4: Some(address), .. }) => {
                (response.up_f_seid.unwrap().seid, teid, address)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Runs a packet that arrives on an interface; returns what leaves, with the number of the interface.
    fn pass(&mut self, interface: usize, packet: &[u8]) -> Vec<(usize, Vec<u8>, SocketAddr)> {
        self.wires[interface].inject(packet, gnb());
        self.world.run(interface);
        let all = self.wires.iter().enumerate();
        all.flat_map(|(number, wire)| wire.take().into_iter().map(move |(sent, peer)| (number, sent, peer)))
            .collect()
    }
}

fn tunnelled(packet: &[u8]) -> Vec<u8> {
    let container = PduSession::Downlink { qfi: QFI, rqi: false, ppi: None };
    build_gpdu(GNB_TEID, Some(container), packet).unwrap()
}

#[test]
fn one_ue_address_in_two_network_instances_is_two_ues() {
    let mut split = Split::new();
    let (first, first_teid, address) = split.establish(1, "ran", "internet");
    assert_eq!(address, GTPU);
    let (second, second_teid, address) = split.establish(2, "PLANT", "plant");
    assert_eq!(address, PLANT_GTPU, "the address of the interface of the network instance");
    assert_eq!(split.world.sessions.count(), 2, "neither replaces the other");

    let (up, down) =
        (udp(UE_V4.into(), SERVER_V4.into(), b"up"), udp(SERVER_V4.into(), UE_V4.into(), b"down"));
    for (n3, teid, n6) in [(RAN, first_teid, WAN), (PLANT_RAN, second_teid, LAN)] {
        let sent: Vec<_> =
            split.pass(n3, &uplink_gpdu(teid, &up)).into_iter().map(|(to, sent, _)| (to, sent)).collect();
        assert_eq!(sent, [(n6, up.clone())]);
        assert_eq!(split.pass(n6, &down), [(n3, tunnelled(&down), gnb())]);
    }
    // A TEID of one is unknown on the interface of the other, and the answer names the address at which it arrived.
    let indication =
        |teid, own: Ipv4Addr| Signalling::ErrorIndication { teid, peer: own.into(), udp_port: None }.build();
    for (n3, teid, own) in [(PLANT_RAN, first_teid, PLANT_GTPU), (RAN, second_teid, GTPU)] {
        assert_eq!(split.pass(n3, &uplink_gpdu(teid, &up)), [(n3, indication(teid, own), gnb())]);
    }
    assert_eq!(split.world.drops(DropReason::UnknownTeid), 2);
    let echo = Signalling::EchoRequest { sequence: 7 }.build();
    let answer = Signalling::EchoResponse { sequence: 7 }.build();
    assert_eq!(split.pass(PLANT_RAN, &echo), [(PLANT_RAN, answer, gnb())]);

    // The gNBs are two peers, although they have one address: each has its path, its tunnels and its failures.
    let peer = |interface: usize| Peer { interface: interface as u8, address: GNB.into() };
    let echoes = split.world.sessions.paths.poll(61_000 + 1000 * 1000).echoes;
    let mut asked: Vec<u8> = echoes.iter().map(|(peer, _)| peer.interface).collect();
    asked.sort_unstable();
    assert_eq!(asked, [RAN as u8, PLANT_RAN as u8]);
    for (n3, seid) in [(RAN, first), (PLANT_RAN, second)] {
        let told = split.world.sessions.error_indications(peer(n3), GNB_TEID);
        assert_eq!(told.iter().map(|report| report.seid).collect::<Vec<_>>(), [seid]);
    }

    // Without the first session, packets from its network do not reach the UE of the other.
    split.world.sessions.delete(first, SMF.into(), NOW).unwrap();
    assert!(split.pass(WAN, &down).is_empty());
    assert_eq!(split.world.drops(DropReason::DirectionMismatch), 1);
    assert_eq!(split.pass(LAN, &down), [(PLANT_RAN, tunnelled(&down), gnb())]);

    let counted = stats::json(&split.world.stats, split.world.tables.interfaces());
    let packets = |name: &str, way: &str| counted["interfaces"][name][way]["packets"].as_u64().unwrap();
    let counts = |name: &str| [packets(name, "received"), packets(name, "sent")];
    assert_eq!(["ran", "plant-ran", "wan", "lan"].map(counts), [[2, 2], [3, 4], [2, 1], [2, 1]]);
}

/// Buffered packets and answers of the router stay in the network instance of their session.
#[test]
fn what_the_upf_keeps_or_makes_stays_in_its_network_instance() {
    let mut split = Split::new();
    split.establish(1, "ran", "internet");
    let (second, teid, _) = split.establish(2, "plant", "plant");
    split.world.modify(second, &update_far(2, ApplyAction::BUFF));
    let down = udp(SERVER_V4.into(), UE_V4.into(), b"down");
    assert!(split.pass(LAN, &down).is_empty(), "buffered");
    assert_eq!(split.pass(WAN, &down).len(), 1, "the other session's packets pass");
    split.world.modify(second, &update_far(2, ApplyAction::FORW));
    split.world.pipeline.turn(split.world.now_ns, &mut split.world.ports);
    assert_eq!(split.wires[PLANT_RAN].take(), [(tunnelled(&down), gnb())]);
    assert!(split.wires[RAN].take().is_empty());

    let router = Router { ipv4: Some([10, 45, 0, 1].into()), ipv6: None };
    let network = |mtu| (Role::N6, Link { mtu, clamp: mtu, router });
    let tunnels = (Role::N3, Link::of_tunnels(1500, GTPU.into()));
    split.world.pipeline.set_links(Links::new([tunnels, tunnels, network(1400), network(600)]));
    let mut long = udp(UE_V4.into(), SERVER_V4.into(), &[6; 1000]);
    // Sets Don't Fragment, and corrects the checksum.
    long[6] |= 0x40;
    long[10..12].fill(0);
    let sum = packet::checksum::checksum(&long[..20]);
    long[10..12].copy_from_slice(&sum.to_be_bytes());
    let sent = split.pass(PLANT_RAN, &uplink_gpdu(teid, &long));
    assert_eq!((sent.len(), sent[0].0), (1, PLANT_RAN), "one answer, to the UE that sent");
    let answer = gtpu::Packet::new(&sent[0].1).unwrap();
    let answer = packet::ipv4::Packet::new(answer.payload()).unwrap();
    assert_eq!((answer.source(), answer.destination()), ([10, 45, 0, 1].into(), UE_V4));
    assert_eq!(split.world.drops(DropReason::TooBig), 1);
}

/// TS 29.244 table 8.2.1-1: a rule that cannot be created, and the IE that is at fault.
#[test]
fn network_instances_without_interface_are_refused() {
    let refused = |change: fn(&mut SessionEstablishmentRequest)| {
        let mut split = Split::new();
        let mut request = placed(1, "ran", "internet");
        change(&mut request);
        let response =
            split.world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
        assert_eq!(split.world.sessions.count() == 0, response.cause != Cause::ACCEPTED);
        (response.cause, response.offending_ie.map(|ie| ie.0), response.failed_rule_id)
    };
    fn parameters(far: &mut CreateFar) -> &mut ForwardingParameters {
        far.forwarding_parameters.as_mut().unwrap()
    }
    let unknown = |rule| (Cause::RULE_FAILURE, Some(ie::NETWORK_INSTANCE), Some(rule));
    assert_eq!(refused(|_| ()).0, Cause::ACCEPTED);
    let of_tunnel = refused(|request| request.create_pdrs[0].pdi.network_instance = Some("wan".into()));
    assert_eq!(of_tunnel, unknown(FailedRuleId::Pdr(1)));
    let native = refused(|request| request.create_pdrs[1].pdi.network_instance = Some("n6.elsewhere".into()));
    assert_eq!(native, unknown(FailedRuleId::Pdr(2)));
    let to_network =
        refused(|request| parameters(&mut request.create_fars[0]).network_instance = Some("ran".into()));
    assert_eq!(to_network, unknown(FailedRuleId::Far(1)));
    let to_tunnel =
        refused(|request| parameters(&mut request.create_fars[1]).network_instance = Some("internet".into()));
    assert_eq!(to_tunnel, unknown(FailedRuleId::Far(2)));
    // The interface exists, but has no address of this IP version.
    let six = refused(|request| {
        request.create_pdrs[0].pdi.f_teid = Some(FTeid::Choose { ipv4: false, ipv6: true, id: None });
    });
    assert_eq!(six, (Cause::INVALID_F_TEID_ALLOCATION, Some(ie::F_TEID), None));
    // An assigned F-TEID must have the address of the interface that the PDI asks for.
    let other = refused(|request| {
        let assigned = FTeid::Assigned { teid: 0x7700_0001, ipv4: Some(PLANT_GTPU), ipv6: None };
        request.create_pdrs[0].pdi.f_teid = Some(assigned);
        request.create_pdrs.remove(2);
    });
    assert_eq!(other, (Cause::MANDATORY_IE_INCORRECT, Some(ie::F_TEID), None));
}

/// An N3 of each IP version: the gNB's address, and the kind of F-TEID that is asked for, choose the interface.
#[test]
fn tunnels_of_both_ip_versions_have_an_interface_each() {
    let mut config = config("gw0");
    let six = r#"[{"name": "n3-ipv6", "role": "n3", "gtpu": "[fd00:200::1]:2152"}]"#;
    config.interfaces = serde_json::from_str(six).unwrap();
    config.validate().unwrap();
    let mut world = World::with_config(config);
    let mut request = establishment(1);
    request.create_pdrs[0].pdi.f_teid = Some(FTeid::Choose { ipv4: false, ipv6: true, id: None });
    let far = request.create_fars[1].forwarding_parameters.as_mut().unwrap();
    far.outer_header_creation = Some(OuterHeaderCreation::gtpu(GNB_TEID, "fd00:200::2".parse().unwrap()));
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    let created: Vec<bool> = response
        .created_pdrs
        .iter()
        .map(|created| matches!(created.f_teid, Some(FTeid::Assigned { ipv6: Some(_), ipv4: None, .. })))
        .collect();
    assert_eq!(created, [true, false, false]);
    let (port, wire) = memory::pair(10);
    world.ports[2] = Box::new(port) as Box<dyn Port>;
    world.downlink(&udp(SERVER_V4.into(), UE_V4.into(), b"down"));
    assert_eq!(
        wire.take().into_iter().map(|(_, peer)| peer.ip()).collect::<Vec<_>>(),
        ["fd00:200::2".parse::<IpAddr>().unwrap()]
    );
}

/// What an establishment that `change` makes of one of the plant's session is answered: cause, IE and rule at fault.
fn answer(
    config: upf::Config,
    change: impl Fn(&mut SessionEstablishmentRequest),
) -> (Cause, Option<u16>, Option<FailedRuleId>) {
    let mut world = World::with_config(config);
    let mut request = placed(1, "plant", "plant");
    change(&mut request);
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
    assert_eq!(world.sessions.count() == 0, response.cause != Cause::ACCEPTED);
    (response.cause, response.offending_ie.map(|ie| ie.0), response.failed_rule_id)
}

/// The configuration of [`Split`] with further interfaces, which come first.
fn split_with(further: &str) -> upf::Config {
    let mut config = split_config();
    let mut interfaces: Vec<_> = serde_json::from_str(further).unwrap();
    interfaces.append(&mut config.interfaces);
    config.interfaces = interfaces;
    config.validate().unwrap();
    config
}

fn without_instances(request: &mut SessionEstablishmentRequest) {
    for far in &mut request.create_fars {
        far.forwarding_parameters.as_mut().unwrap().network_instance = None;
    }
}

/// TS 29.244 table 7.5.2.3-2, NOTE 1: the UPF is connected to gNBs in several IP domains, and a session has its tunnels in one.
#[test]
fn a_far_without_network_instance_leads_to_the_network_of_its_session() {
    for first in ["[]", r#"[{"name": "common", "role": "n3", "gtpu": "127.0.2.7:2152"}]"#] {
        let mut world = World::with_config(split_with(first));
        let plant = world.tables.interfaces().iter().position(|own| own.name() == "plant-ran").unwrap();
        let lan = world.tables.interfaces().iter().position(|own| own.name() == "lan").unwrap();
        let wires = [plant, lan].map(|number| {
            let (port, wire) = memory::pair(100);
            world.ports[number] = Box::new(port) as Box<dyn Port>;
            wire
        });
        // The second session is laid out by the template of the first.
        for cp_seid in [1, 2] {
            let mut request = placed(cp_seid, "plant", "plant");
            without_instances(&mut request);
            let ue = Ipv4Addr::new(10, 45, 7, cp_seid as u8);
            for pdr in &mut request.create_pdrs {
                if let Some(address) = &mut pdr.pdi.ue_ip_address {
                    (address.ipv4, address.ipv6) = (Some(ue), None);
                }
            }
            let response =
                world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
            assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
            for created in response.created_pdrs.iter().filter(|created| created.pdr_id != PdrId(4)) {
                let plant = matches!(created.f_teid, Some(FTeid::Assigned { ipv4: Some(PLANT_GTPU), .. }));
                assert!(plant, "{created:?}");
            }
            wires[1].inject(&udp(SERVER_V4.into(), ue.into(), b"down"), gnb());
            world.run(lan);
            assert_eq!(wires[0].take().len(), 1, "session {cp_seid} with {first}");
            let seid = response.up_f_seid.unwrap().seid;
            let other = Ipv4Addr::new(127, 0, 0, 21);
            let switched =
                world.sessions.modify(seid, SMF.into(), &path_switch(9, other.into()), NOW).unwrap();
            assert_eq!(switched.response.cause, Cause::ACCEPTED);
            let markers: Vec<_> = switched.end_markers.iter().map(|marker| marker.tunnel.far_end()).collect();
            assert_eq!(markers, [Peer { interface: plant as u8, address: GNB.into() }]);
            wires[1].inject(&udp(SERVER_V4.into(), ue.into(), b"down"), gnb());
            world.run(lan);
            let sent: Vec<_> = wires[0].take().into_iter().map(|(_, peer)| peer.ip()).collect();
            assert_eq!(sent, [IpAddr::from(other)]);
        }
    }
}

/// Tables 7.5.2.2-2 and 7.5.2.3-2: the network instance is needed where the UPF is connected to several IP domains.
#[test]
fn rules_that_could_mean_several_networks_are_refused() {
    let unknown = |rule| (Cause::RULE_FAILURE, Some(ie::NETWORK_INSTANCE), Some(rule));
    // Neither the rule nor another of its session says which N3.
    let pdr = answer(split_config(), |request| {
        for pdr in &mut request.create_pdrs {
            pdr.pdi.network_instance.take_if(|_| pdr.pdi.source_interface == SourceInterface::Access);
        }
    });
    assert_eq!(pdr, unknown(FailedRuleId::Pdr(1)));
    // A name whose interface has another IP version is not that of an interface without name.
    let six = r#"[{"name": "common", "role": "n3", "gtpu": "[fd00:200::1]:2152"}]"#;
    let far = answer(split_with(six), |request| {
        let parameters = request.create_fars[1].forwarding_parameters.as_mut().unwrap();
        parameters.outer_header_creation =
            Some(OuterHeaderCreation::gtpu(GNB_TEID, "fd00:200::2".parse().unwrap()));
    });
    let no_address = (Cause::MANDATORY_IE_INCORRECT, Some(ie::OUTER_HEADER_CREATION));
    assert_eq!(far, (no_address.0, no_address.1, Some(FailedRuleId::Far(2))));
    let choose = answer(split_with(six), |request| {
        request.create_pdrs[0].pdi.f_teid = Some(FTeid::Choose { ipv4: false, ipv6: true, id: None });
    });
    assert_eq!(choose, (Cause::INVALID_F_TEID_ALLOCATION, Some(ie::F_TEID), None));
}

/// Two data networks have the UE's address in their pools.
#[test]
fn a_ue_address_of_two_pools_belongs_to_the_network_that_the_session_names() {
    let native =
        |request: &mut SessionEstablishmentRequest| request.create_pdrs[1].pdi.network_instance = None;
    let unknown = |rule| (Cause::RULE_FAILURE, Some(ie::NETWORK_INSTANCE), Some(rule));
    // The tunnels are in neither network.
    let ambiguous = answer(split_config(), |request| {
        *request = placed(1, "ran", "internet");
        native(request);
        without_instances(request);
    });
    assert_eq!(ambiguous, unknown(FailedRuleId::Pdr(2)));
    let (down, far_only, tunnel_only) = (
        udp(SERVER_V4.into(), UE_V4.into(), b"down"),
        |request: &mut SessionEstablishmentRequest| native(request),
        |request: &mut SessionEstablishmentRequest| {
            native(request);
            without_instances(request);
        },
    );
    for (n3, n6, from, change) in [
        ("ran", "internet", WAN, &far_only as &dyn Fn(&mut SessionEstablishmentRequest)),
        ("ran", "plant", LAN, &far_only),
        ("plant", "plant", LAN, &tunnel_only),
        ("plant", "plant", LAN, &|request| {
            // Another PDR has the name.
            let mut other = request.create_pdrs[1].clone();
            other.pdr_id = PdrId(9);
            other.precedence = Precedence(300);
            request.create_pdrs.push(other);
            tunnel_only(request);
        }),
    ] {
        let mut split = Split::new();
        let mut request = placed(1, n3, n6);
        change(&mut request);
        let response =
            split.world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
        assert_eq!(response.cause, Cause::ACCEPTED, "{n3} {n6}: {response:?}");
        for network in [WAN, LAN] {
            assert_eq!(split.pass(network, &down).len(), usize::from(network == from), "{n3} {n6}");
        }
    }
}

/// §8.2.3: PDRs with one CHOOSE ID have one F-TEID, which is that of one interface.
#[test]
fn a_choose_id_on_two_interfaces_is_refused() {
    let (cause, ie, _) = answer(split_config(), |request| {
        request.create_pdrs[2].pdi.network_instance = Some("ran".into());
    });
    assert_eq!((cause, ie), (Cause::INVALID_F_TEID_ALLOCATION, Some(ie::F_TEID)));
    // Without a name it is the network of the session, in whatever order the PDRs come.
    for reversed in [false, true] {
        let (cause, ..) = answer(split_config(), |request| {
            request.create_pdrs[2].pdi.network_instance = None;
            if reversed {
                request.create_pdrs.reverse();
            }
        });
        assert_eq!(cause, Cause::ACCEPTED);
    }
}

/// A loopback address of a peer is on this machine; the network is only there if the interface has one too.
#[test]
fn one_loopback_interface_does_not_open_the_others_to_loops() {
    let text = r#"{"pfcp": "127.0.0.7:8805", "smf": ["127.0.0.0/8"], "restoration_s": 0, "interfaces": [
        {"name": "lab", "role": "n3", "network_instance": "lab", "gtpu": "127.0.0.7:2152"},
        {"name": "field", "role": "n3", "network_instance": "field", "gtpu": "192.0.2.7:2152"}],
        "dnn": [{"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/16"}}]}"#;
    let config: upf::Config = serde_json::from_str(text).unwrap();
    let of = |n3: &'static str| answer(config.clone(), |request| *request = placed(1, n3, "internet"));
    assert_eq!(of("lab").0, Cause::ACCEPTED);
    let refused =
        (Cause::MANDATORY_IE_INCORRECT, Some(ie::OUTER_HEADER_CREATION), Some(FailedRuleId::Far(2)));
    assert_eq!(of("field"), refused);
}
