//! Sessions of very many PDRs: each packet finds its own, with whatever more its PDR says.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod support;
#[path = "support/world.rs"]
mod world;

use packet::gtpu;
use packet::transport::build_udp;
use packet::{ipv4, protocol};
use pfcp::*;
use support::*;
use telemetry::DropReason;
use world::*;

/// As many PDRs as there are identifiers.
const PDRS: u32 = 1 << 16;
/// FARs, each with a tunnel of its own.
const TUNNELS: u32 = 251;
/// The TEID of the first of them.
const FIRST: u32 = 0x100;

/// PDR number `n` is for what comes from port `n` and one, and goes to one of the tunnels.
fn filter(n: u32) -> SdfFilter {
    let text = format!("permit out 17 from 10.201.0.2 {} to assigned", n + 1);
    SdfFilter { flow_description: Some(text.as_str().into()), ..Default::default() }
}

/// A packet of PDR number `n`.
fn packet_of(n: u16) -> Vec<u8> {
    from_port(n + 1)
}

fn from_port(port: u16) -> Vec<u8> {
    let datagram = build_udp((SERVER_V4.into(), port), (UE_V4.into(), 9), b"x").unwrap();
    ipv4::Header::new(SERVER_V4, UE_V4, protocol::UDP).build(&datagram).unwrap()
}

/// `limits` of the PDRs have a usage rule with a threshold, and so further entries.
fn forwards(limits: u32) {
    let mut world = World::new();
    let mut request = establishment(1);
    let tunnels = |n: u32| forward(10 + n, DestinationInterface::Access, Some((FIRST + n, GNB)));
    request.create_fars.extend((0..TUNNELS).map(tunnels));
    request.create_urrs.push(CreateUrr {
        urr_id: UrrId(2),
        measurement_method: MeasurementMethod::VOLUM,
        reporting_triggers: ReportingTriggers::VOLTH,
        volume_threshold: Some(Volume { total: Some(1 << 40), ..Default::default() }),
        ..Default::default()
    });
    let uplink = request.create_pdrs.remove(0);
    request.create_pdrs.clear();
    for n in 0..PDRS - 1 {
        let pdi = Pdi {
            source_interface: SourceInterface::Core,
            ue_ip_address: Some(UeIpAddress { ipv4: Some(UE_V4), destination: true, ..Default::default() }),
            sdf_filters: vec![filter(n)],
            ..Default::default()
        };
        let mut rule = pdr(n as u16, n, pdi, 10 + n % TUNNELS, &[2]);
        if n < limits {
            rule.urr_ids.push(UrrId(2));
        }
        request.create_pdrs.push(rule);
    }
    request.create_pdrs.push(CreatePdr { pdr_id: PdrId(u16::MAX), ..uplink });
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), &request, NOW).response;
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    let seid = response.up_f_seid.unwrap().seid;
    assert_eq!(world.sessions.get(seid).unwrap().rules.pdrs.len(), PDRS as usize);
    let some = (0..PDRS - 1).filter(|n| *n < 5 || n % 997 == 0 || *n > PDRS - 5);
    let some: Vec<u16> = some.map(|n| n as u16).collect();
    for n in &some {
        world.downlink(&packet_of(*n));
        let sent = world.n3.take();
        assert_eq!(sent.len(), 1, "PDR {n}");
        let teid = gtpu::Packet::new(&sent[0].0).unwrap().teid();
        assert_eq!(teid, FIRST + u32::from(*n) % TUNNELS, "PDR {n}");
    }
    world.downlink(&from_port(0));
    world.assert_only_dropped(DropReason::NoPdr, 1);
    let compiled = &world.sessions.get(seid).unwrap().compiled;
    let limited = some.iter().filter(|n| u32::from(**n) < limits).count() as u64;
    assert_eq!((compiled.urr(1).1.packets, compiled.urr(2).1.packets), (some.len() as u64, limited));
    // One rule changes, all others stay.
    let moved = UpdatePdr { pdr_id: PdrId(997), far_id: Some(FarId(10)), ..Default::default() };
    world.modify(
        seid,
        &message::SessionModificationRequest { update_pdrs: vec![moved], ..Default::default() },
    );
    for (n, tunnel) in [(997, 0), (998, 998 % TUNNELS)] {
        world.downlink(&packet_of(n));
        assert_eq!(gtpu::Packet::new(&world.n3.take()[0].0).unwrap().teid(), FIRST + tunnel);
    }
    assert!(world.sessions.delete(seid, SMF.into(), NOW).is_some());
    world.downlink(&packet_of(1));
    assert_eq!(world.drops(DropReason::UnknownUe), 1);
}

#[test]
fn every_packet_of_65536_pdrs_finds_its_own() {
    forwards(0);
}

#[test]
fn further_entries_are_found_behind_the_first_and_the_last_of_many_pdrs() {
    forwards(PDRS);
}
