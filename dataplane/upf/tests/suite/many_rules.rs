//! Sessions with very many PDRs: each packet matches its own, with all further entries of that PDR.

use std::net::Ipv4Addr;

use crate::support::*;
use crate::world::*;
use packet::gtpu;
use packet::transport::build_udp;
use packet::{ipv4, protocol};
use pfcp::*;
use telemetry::DropReason;

/// As many PDRs as there are identifiers.
const PDRS: u32 = 1 << 16;
/// FARs, each with a tunnel of its own.
const TUNNELS: u32 = 251;
/// The TEID of the first of them.
const FIRST: u32 = 0x100;

/// The filter of PDR number `n`: packets from port `n` + 1.
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
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
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

/// Each PDR has a UE address of its own, in no pool. Comparing each address with all others for every PDR would take
/// minutes.
#[test]
fn pdrs_with_65535_different_ue_addresses_are_established() {
    let mut world = World::new();
    let ue = |n: u32| Ipv4Addr::from_bits(Ipv4Addr::new(172, 16, 0, 0).to_bits() + n);
    let mut request = establishment(1);
    let uplink = request.create_pdrs.remove(0);
    request.create_pdrs.clear();
    for n in 0..PDRS - 1 {
        let mut rule = CreatePdr { pdr_id: PdrId(n as u16), ..uplink.clone() };
        rule.pdi.ue_ip_address = Some(UeIpAddress { ipv4: Some(ue(n)), ..Default::default() });
        request.create_pdrs.push(rule);
    }
    let (_, teid, _) = world.establish_by(&request);
    for n in [0, 1, 40_000, PDRS - 2] {
        world.uplink(&uplink_gpdu(teid, &udp(ue(n).into(), SERVER_V4.into(), b"x")));
        assert_eq!(world.n6.take().len(), 1, "PDR {n}");
    }
    world.uplink(&uplink_gpdu(teid, &udp(ue(PDRS).into(), SERVER_V4.into(), b"x")));
    assert!(world.n6.take().is_empty());
}

/// PDR `n` has FAR `n`, and the first PDRs have QER and URR `n`. URR `n` is linked to URR 1 and to the URR of its partner,
/// and its FAR for an exhausted quota is that of its neighbour.
#[test]
fn thousands_of_rules_are_removed_at_once() {
    const RULES: u32 = 8192;
    /// PDRs that count for themselves: a session has room for fewer counters than rules.
    const COUNTED: u32 = 64;
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_pdrs.truncate(1);
    let number = |n: u32| 100 + n;
    for n in 0..RULES {
        let pdi = Pdi {
            source_interface: SourceInterface::Core,
            ue_ip_address: ue_address(true),
            sdf_filters: vec![filter(n)],
            ..Default::default()
        };
        let mut rule = pdr(number(n) as u16, n, pdi, number(n), &[2]);
        if n < COUNTED {
            rule.qer_ids.push(QerId(number(n)));
            rule.urr_ids.push(UrrId(number(n)));
        }
        request.create_pdrs.push(rule);
        request.create_fars.push(forward(number(n), DestinationInterface::Access, Some((FIRST + n, GNB))));
        request.create_qers.push(CreateQer { qer_id: QerId(number(n)), ..Default::default() });
        let (neighbour, partner) = (number(n ^ 1), number(n ^ 2));
        request.create_urrs.push(CreateUrr {
            urr_id: UrrId(number(n)),
            measurement_method: MeasurementMethod::VOLUM,
            linked_urr_ids: vec![UrrId(1), UrrId(partner)],
            quota_far_id: Some(FarId(neighbour)),
            ..Default::default()
        });
    }
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response;
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    let seid = response.up_f_seid.unwrap().seid;
    // Of each four PDRs one stays as it is, one loses its FAR, one its QER and URR, and one is removed.
    let those = |kinds: &[u32]| -> Vec<u32> {
        (0..RULES).rev().filter(|n| kinds.contains(&(n % 4))).map(number).collect()
    };
    let (fars, others, pdrs) = (those(&[1, 3]), those(&[2, 3]), those(&[3]));
    let mut removal = message::SessionModificationRequest {
        remove_pdrs: pdrs.iter().map(|id| RemovePdr { pdr_id: PdrId(*id as u16) }).collect(),
        remove_fars: fars.iter().map(|id| RemoveFar { far_id: FarId(*id) }).collect(),
        remove_qers: others.iter().map(|id| RemoveQer { qer_id: QerId(*id) }).collect(),
        remove_urrs: others.iter().map(|id| RemoveUrr { urr_id: UrrId(*id) }).collect(),
        query_urrs: those(&[0]).iter().map(|id| QueryUrr { urr_id: UrrId(*id) }).collect(),
        ..Default::default()
    };
    // A request that names an identifier twice is refused as a whole.
    removal.remove_fars.push(RemoveFar { far_id: FarId(number(5)) });
    let refused = world.sessions.modify(seid, SMF.into(), &removal, NOW).unwrap().response;
    assert_eq!(
        (refused.cause, refused.failed_rule_id),
        (Cause::RULE_FAILURE, Some(FailedRuleId::Far(number(5))))
    );
    assert_eq!(world.sessions.get(seid).unwrap().rules.fars.len(), RULES as usize + 3);
    removal.remove_fars.pop();
    let accepted = world.sessions.modify(seid, SMF.into(), &removal, NOW).unwrap().response;
    assert_eq!(accepted.cause, Cause::ACCEPTED, "{accepted:?}");
    // Removed URRs report first, in the order of the request, and then the URRs that the request queries.
    let reports = |trigger: UsageReportTrigger| -> Vec<u32> {
        let reports = accepted.usage_reports.iter().filter(|report| report.trigger.contains(trigger));
        reports.map(|report| report.urr_id.0).collect()
    };
    assert_eq!(reports(UsageReportTrigger::TERMR), others);
    let mut asked = those(&[0]);
    asked.reverse();
    assert_eq!(reports(UsageReportTrigger::IMMER), asked);

    let rules = &world.sessions.get(seid).unwrap().rules;
    for n in 0..RULES {
        let (id, kind) = (number(n), n % 4);
        assert_eq!((rules.fars.contains(id), rules.qers.contains(id)), (kind % 2 == 0, kind < 2), "{n}");
        let urr = rules.urrs.get(id);
        assert_eq!(urr.is_some(), kind < 2, "{n}");
        if let Some(urr) = urr {
            // Of each four, only the neighbour of the second kept its FAR, and no partner kept its URR.
            let far = (kind == 1).then_some(number(n ^ 1));
            assert_eq!((&urr.linked[..], urr.quota_far), (&[1][..], far), "{n}");
        }
        let pdr = rules.pdrs.get(id as u16);
        assert_eq!(pdr.is_some(), kind < 3, "{n}");
        if let Some(pdr) = pdr {
            assert_eq!(pdr.far_id, (kind != 1).then_some(id), "{n}");
            let own = |first: u32| if kind == 2 || n >= COUNTED { vec![first] } else { vec![first, id] };
            assert_eq!((pdr.qer_ids.to_vec(), pdr.urr_ids.to_vec()), (own(2), own(1)), "{n}");
        }
    }
    for n in [0, 2, RULES - 4, RULES - 2] {
        world.downlink(&packet_of(n as u16));
        let sent = world.n3.take();
        assert_eq!(gtpu::Packet::new(&sent[0].0).unwrap().teid(), FIRST + n, "PDR {n}");
    }
    for n in [1, RULES - 3, RULES - 1] {
        world.downlink(&packet_of(n as u16));
        assert!(world.n3.take().is_empty(), "PDR {n}");
    }
}
