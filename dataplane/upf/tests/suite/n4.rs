//! N4 session requests: what is refused, with which cause, and that a refused request changes nothing.

use std::net::IpAddr;
use std::sync::Arc;

use crate::support::{self, *};
use pfcp::message::{SessionEstablishmentRequest, SessionEstablishmentResponse, SessionModificationRequest};
use pfcp::*;
use proptest::prelude::*;
use upf::interfaces::Interfaces;
use upf::n4::session::Sessions;
use upf::plan::Direction;
use upf::tables::Tables;

const NOW: NtpSeconds = NtpSeconds(1000);

fn sessions(max_tunnels: u32) -> (Sessions, Arc<Tables>) {
    started_at(5, max_tunnels)
}

fn started_at(seed: u64, max_tunnels: u32) -> (Sessions, Arc<Tables>) {
    let mut config = config("gw0");
    config.max_tunnels = max_tunnels;
    let config = Arc::new(config);
    let tables = Arc::new(Tables::new(&config));
    (Sessions::new(config, Arc::clone(&tables), seed), tables)
}

fn establish(sessions: &mut Sessions, request: &SessionEstablishmentRequest) -> SessionEstablishmentResponse {
    sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW).response
}

fn seid_of(response: &SessionEstablishmentResponse) -> u64 {
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    response.up_f_seid.unwrap().seid
}

fn teid_of(response: &SessionEstablishmentResponse, pdr: u16) -> u32 {
    match response.created_pdrs.iter().find(|created| created.pdr_id.0 == pdr).unwrap().f_teid {
        Some(FTeid::Assigned { teid, .. }) => teid,
        other => panic!("{other:?}"),
    }
}

/// Moves the ordinary session to other UE addresses.
fn other_ue(mut request: SessionEstablishmentRequest, n: u8) -> SessionEstablishmentRequest {
    for pdr in &mut request.create_pdrs {
        if let Some(ue) = &mut pdr.pdi.ue_ip_address {
            ue.ipv4 = Some([10, 45, 1, n].into());
            ue.ipv6 = None;
        }
    }
    request
}

#[test]
fn invalid_requests_are_refused_with_cause_and_place() {
    type Damage = fn(&mut SessionEstablishmentRequest);
    type Case = (&'static str, Damage, Cause, Option<u16>, Option<FailedRuleId>);
    let cases: &[Case] = &[
        ("no PDR", |r| r.create_pdrs.clear(), Cause::MANDATORY_IE_MISSING, Some(ie::CREATE_PDR), None),
        ("no FAR", |r| r.create_fars.clear(), Cause::MANDATORY_IE_MISSING, Some(ie::CREATE_FAR), None),
        (
            "PDR without FAR",
            |r| r.create_pdrs[1].far_id = None,
            Cause::CONDITIONAL_IE_MISSING,
            Some(ie::FAR_ID),
            None,
        ),
        (
            "unknown FAR",
            |r| r.create_pdrs[1].far_id = Some(FarId(99)),
            Cause::RULE_FAILURE,
            None,
            Some(FailedRuleId::Pdr(2)),
        ),
        (
            "unknown QER",
            |r| r.create_pdrs[0].qer_ids.push(QerId(99)),
            Cause::RULE_FAILURE,
            None,
            Some(FailedRuleId::Pdr(1)),
        ),
        ("unknown URR", |r| r.create_urrs.clear(), Cause::RULE_FAILURE, None, Some(FailedRuleId::Pdr(1))),
        (
            "PDR twice",
            |r| r.create_pdrs[1].pdr_id = PdrId(1),
            Cause::RULE_FAILURE,
            None,
            Some(FailedRuleId::Pdr(1)),
        ),
        (
            "FAR twice",
            |r| r.create_fars[1].far_id = FarId(1),
            Cause::RULE_FAILURE,
            None,
            Some(FailedRuleId::Far(1)),
        ),
        (
            "QER twice",
            |r| r.create_qers[1].qer_id = QerId(1),
            Cause::RULE_FAILURE,
            None,
            Some(FailedRuleId::Qer(1)),
        ),
        (
            "forward to nowhere",
            |r| r.create_fars[0].forwarding_parameters = None,
            Cause::CONDITIONAL_IE_MISSING,
            Some(ie::FORWARDING_PARAMETERS),
            None,
        ),
        (
            "to access without tunnel",
            |r| r.create_fars[1] = forward(2, DestinationInterface::Access, None),
            Cause::CONDITIONAL_IE_MISSING,
            Some(ie::OUTER_HEADER_CREATION),
            None,
        ),
        (
            "drop and forward",
            |r| r.create_fars[0].apply_action |= ApplyAction::DROP,
            Cause::MANDATORY_IE_INCORRECT,
            Some(ie::APPLY_ACTION),
            None,
        ),
        (
            "duplicate to nowhere",
            |r| r.create_fars[0].apply_action |= ApplyAction::DUPL,
            Cause::CONDITIONAL_IE_MISSING,
            Some(ie::DUPLICATING_PARAMETERS),
            None,
        ),
        (
            "no F-TEID on N3",
            |r| r.create_pdrs[0].pdi.f_teid = None,
            Cause::CONDITIONAL_IE_MISSING,
            Some(ie::F_TEID),
            None,
        ),
        (
            "no UE address on N6",
            |r| r.create_pdrs[1].pdi.ue_ip_address = None,
            Cause::CONDITIONAL_IE_MISSING,
            Some(ie::UE_IP_ADDRESS),
            None,
        ),
        (
            "IPv6 tunnel",
            |r| r.create_pdrs[0].pdi.f_teid = Some(FTeid::Choose { ipv4: false, ipv6: true, id: None }),
            Cause::INVALID_F_TEID_ALLOCATION,
            Some(ie::F_TEID),
            None,
        ),
        (
            "foreign tunnel",
            |r| {
                r.create_pdrs[0].pdi.f_teid = Some(FTeid::Assigned { teid: 1, ipv4: Some(GNB), ipv6: None });
            },
            Cause::MANDATORY_IE_INCORRECT,
            Some(ie::F_TEID),
            None,
        ),
        (
            "nonsense filter",
            |r| {
                r.create_pdrs[2].pdi.sdf_filters[0].flow_description = Some("permit everything".into());
            },
            Cause::MANDATORY_IE_INCORRECT,
            Some(ie::SDF_FILTER),
            None,
        ),
        (
            "application",
            |r| r.create_pdrs[1].pdi.application_id = Some("game".into()),
            Cause::UNKNOWN_APPLICATION_ID,
            Some(ie::APPLICATION_ID),
            None,
        ),
        (
            "predefined rule",
            |r| r.create_pdrs[1].activate_predefined_rules.push("gold".into()),
            Cause::UNKNOWN_PREDEFINED_RULE,
            None,
            None,
        ),
    ];
    let (mut sessions, tables) = sessions(64);
    for (what, damage, cause, offending, failed) in cases {
        // Repeated so often that no TEID would be left if each request lost one.
        for _ in 0..100 {
            let mut request = establishment(1);
            damage(&mut request);
            let response = establish(&mut sessions, &request);
            assert_eq!(response.cause, *cause, "{what}");
            assert_eq!(response.offending_ie, offending.map(OffendingIe), "{what}");
            assert_eq!(response.failed_rule_id, *failed, "{what}");
            assert!(response.up_f_seid.is_none() && response.created_pdrs.is_empty());
        }
        assert_eq!(sessions.count(), 0);
        assert!(tables.owner_of_ue(UE_V4.into()).is_none() && tables.owner_of_ue(UE_V6.into()).is_none());
    }
    seid_of(&establish(&mut sessions, &establishment(1)));
}

#[test]
fn refused_modifications_change_nothing() {
    let (mut sessions, tables) = sessions(64);
    let response = establish(&mut sessions, &establishment(1));
    let seid = seid_of(&response);
    let before = tables.version_of_ue(UE_V4.into());
    // Three valid changes and a last one that is not.
    let request = SessionModificationRequest {
        remove_pdrs: vec![RemovePdr { pdr_id: PdrId(3) }],
        update_fars: vec![UpdateFar {
            far_id: FarId(1),
            apply_action: Some(ApplyAction::DROP),
            ..Default::default()
        }],
        update_qers: vec![
            UpdateQer {
                qer_id: QerId(1),
                gate_status: Some(GateStatus { uplink: Gate::Closed, downlink: Gate::Closed }),
                ..Default::default()
            },
            UpdateQer { qer_id: QerId(42), ..Default::default() },
        ],
        ..Default::default()
    };
    let modified = sessions.modify(seid, SMF.into(), &request, NOW).unwrap();
    assert_eq!(modified.response.cause, Cause::RULE_FAILURE);
    assert_eq!(modified.response.failed_rule_id, Some(FailedRuleId::Qer(42)));
    let after = tables.version_of_ue(UE_V4.into());
    assert!(before.is_some());
    assert_eq!(before, after, "workers still execute the same session");
    let rules = &sessions.get(seid).unwrap().rules;
    assert!(rules.pdrs.contains(3) && rules.fars.get(1).unwrap().action == ApplyAction::FORW);

    let request = SessionModificationRequest {
        remove_pdrs: vec![RemovePdr { pdr_id: PdrId(3) }],
        remove_fars: vec![RemoveFar { far_id: FarId(3) }],
        ..Default::default()
    };
    let accepted = sessions.modify(seid, SMF.into(), &request, NOW).unwrap();
    assert_eq!(accepted.response.cause, Cause::ACCEPTED);
    assert!(tables.owner_of_teid(teid_of(&response, 1)).is_some(), "PDR 1 still uses the tunnel");
}

#[test]
fn ue_addresses_and_assigned_teids_belong_to_one_session() {
    let (mut sessions, tables) = sessions(64);
    let first = seid_of(&establish(&mut sessions, &establishment(1)));
    let other_smf = IpAddr::from([127, 0, 0, 5]);
    let stolen = sessions.establish(NodeId::Ipv4(GTPU), other_smf, establishment(2), NOW).response;
    assert_eq!((stolen.cause, stolen.failed_rule_id), (Cause::RULE_FAILURE, Some(FailedRuleId::Pdr(2))));
    assert_eq!(tables.owner_of_ue(UE_V4.into()), Some(first));

    let assigned = FTeid::Assigned { teid: 0x7700_0001, ipv4: Some(GTPU), ipv6: None };
    let with_assigned = |n| {
        let mut request = other_ue(establishment(3), n);
        request.create_pdrs[0].pdi.f_teid = Some(assigned);
        request.create_pdrs[2].pdi.f_teid = Some(assigned);
        request
    };
    let second = establish(&mut sessions, &with_assigned(1));
    let second = seid_of(&second);
    assert_eq!(tables.owner_of_teid(0x7700_0001), Some(second));
    let third = establish(&mut sessions, &with_assigned(2));
    assert_eq!(
        (third.cause, third.offending_ie),
        (Cause::INVALID_F_TEID_ALLOCATION, Some(OffendingIe(ie::F_TEID)))
    );
    assert_eq!(sessions.remove_all_of(SMF.into()), 2);
    assert!(tables.owner_of_teid(0x7700_0001).is_none() && tables.owner_of_ue(UE_V6.into()).is_none());
    seid_of(&establish(&mut sessions, &with_assigned(2)));
}

#[test]
fn a_restarted_upf_does_not_know_the_seids_of_before() {
    let (mut before, _) = started_at(3_900_000_000, 64);
    let old: Vec<u64> =
        (0..10).map(|n| seid_of(&establish(&mut before, &other_ue(establishment(1), n)))).collect();
    let (mut after, _) = started_at(3_900_000_001, 64);
    for n in 0..10 {
        seid_of(&establish(&mut after, &other_ue(establishment(1), n)));
    }
    let request = SessionModificationRequest::default();
    for seid in old {
        assert!(after.modify(seid, SMF.into(), &request, NOW).is_none(), "{seid:#x} is another UE's");
        assert!(after.delete(seid, SMF.into(), NOW).is_none(), "{seid:#x} is another UE's");
    }
    assert_eq!(after.count(), 10);
}

#[test]
fn an_address_assigned_again_replaces_the_session_that_had_it() {
    let (mut sessions, tables) = sessions(64);
    let first = establish(&mut sessions, &establishment(1));
    let (old, old_teid) = (seid_of(&first), teid_of(&first, 1));
    // The request is refused for another reason, and the old session stays.
    let mut wrong = establishment(2);
    wrong.create_pdrs[1].far_id = Some(FarId(99));
    assert_eq!(establish(&mut sessions, &wrong).cause, Cause::RULE_FAILURE);
    assert_eq!(tables.owner_of_teid(old_teid), Some(old));
    assert_eq!(tables.owner_of_ue(UE_V4.into()), Some(old));

    let again = sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), establishment(2), NOW);
    let new = seid_of(&again.response);
    assert_eq!((again.replaced, sessions.count()), (vec![old], 1));
    assert!(tables.owner_of_teid(old_teid).is_none() && sessions.get(old).is_none());
    for address in [IpAddr::V4(UE_V4), UE_V6.into()] {
        assert_eq!(tables.owner_of_ue(address), Some(new));
    }
    assert!(sessions.by_remote(GNB_PEER, GNB_TEID).map(|(seid, _)| seid).eq([new]));
    // The late deletion of the old session finds nothing, and the new session keeps its address.
    assert!(sessions.delete(old, SMF.into(), NOW).is_none());
    assert_eq!(tables.owner_of_ue(UE_V4.into()), Some(new));
}

#[test]
fn tunnels_run_out_and_come_back_under_other_names() {
    // Index 0 is not used, each session takes two.
    let (mut sessions, tables) = sessions(5);
    let one = establish(&mut sessions, &other_ue(establishment(1), 1));
    let two = establish(&mut sessions, &other_ue(establishment(2), 2));
    seid_of(&two);
    let three = establish(&mut sessions, &other_ue(establishment(3), 3));
    assert_eq!(three.cause, Cause::NO_RESOURCES);
    let old_teid = teid_of(&one, 1);
    sessions.delete(seid_of(&one), SMF.into(), NOW).unwrap();
    let three = establish(&mut sessions, &other_ue(establishment(3), 3));
    seid_of(&three);
    assert!([teid_of(&three, 1), teid_of(&three, 4)].iter().all(|teid| *teid != old_teid && *teid != 0));
    assert!(tables.owner_of_teid(old_teid).is_none());
    assert!(tables.owner_of_teid(teid_of(&three, 1)).is_some());
}

/// What is removed is removed from the PDRs that refer to it (§6.3.3.3); a PDR without FAR drops its packets.
#[test]
fn removed_rules_are_taken_out_of_those_that_refer_to_them() {
    let (mut sessions, tables) = sessions(64);
    let response = establish(&mut sessions, &establishment(1));
    let seid = seid_of(&response);
    let request = SessionModificationRequest {
        remove_fars: vec![RemoveFar { far_id: FarId(1) }],
        remove_qers: vec![RemoveQer { qer_id: QerId(1) }],
        remove_urrs: vec![RemoveUrr { urr_id: UrrId(1) }],
        ..Default::default()
    };
    let modified = sessions.modify(seid, SMF.into(), &request, NOW).unwrap().response;
    assert_eq!((modified.cause, modified.usage_reports.len()), (Cause::ACCEPTED, 1));
    let rules = &sessions.get(seid).unwrap().rules;
    let uplink = rules.pdrs.get(1).unwrap();
    assert_eq!((uplink.far_id, &uplink.qer_ids[..], &uplink.urr_ids[..]), (None, &[2][..], &[][..]));
    assert_eq!(rules.pdrs.get(2).unwrap().far_id, Some(2));
    assert_eq!(tables.owner_of_teid(teid_of(&response, 1)), Some(seid));
    let config = config("gw0");
    let (plan, _) = upf::n4::compile::compile(seid, rules, &Interfaces::of(&config)).unwrap();
    let action = |id| &plan.pdrs.iter().find(|pdr| pdr.id == id).unwrap().action;
    assert_eq!(*action(1), upf::plan::Action::Drop);
    assert!(matches!(action(2), upf::plan::Action::Forward(_)));
    // The rules cannot be removed again.
    let again = sessions.modify(seid, SMF.into(), &request, NOW).unwrap().response;
    assert_eq!((again.cause, again.failed_rule_id), (Cause::RULE_FAILURE, Some(FailedRuleId::Far(1))));
    // A PDR gets another FAR.
    let request = SessionModificationRequest {
        update_pdrs: vec![UpdatePdr { pdr_id: PdrId(1), far_id: Some(FarId(3)), ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(sessions.modify(seid, SMF.into(), &request, NOW).unwrap().response.cause, Cause::ACCEPTED);
}

/// Tunnels that no packet could be sent into: the CP function is told, instead of each packet being lost.
#[test]
fn tunnels_to_nowhere_are_refused() {
    let octets = |description: u8, teid: u32, address: &[u8]| {
        let value = [&[description, 0][..], &teid.to_be_bytes(), address].concat();
        <OuterHeaderCreation as codec::Value>::decode(&value).unwrap()
    };
    let v6 = "fd00:200::2".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let cases = [
        ("IPv6 on an N3 of IPv4", octets(2, 7, &v6)),
        ("no address", octets(1, 7, &[0; 4])),
        ("broadcast", octets(1, 7, &[255; 4])),
        ("a group", octets(1, 7, &[224, 0, 0, 1])),
        ("TEID of signalling", octets(1, 0, &GNB.octets())),
    ];
    let (mut sessions, _) = sessions(64);
    let refusal = (Cause::MANDATORY_IE_INCORRECT, Some(OffendingIe(ie::OUTER_HEADER_CREATION)));
    let seid = seid_of(&establish(&mut sessions, &establishment(1)));
    for (what, header) in cases {
        let mut request = other_ue(establishment(2), 9);
        if let Some(parameters) = &mut request.create_fars[1].forwarding_parameters {
            parameters.outer_header_creation = Some(header);
        }
        let response = establish(&mut sessions, &request);
        assert_eq!((response.cause, response.offending_ie), refusal, "{what}");
        assert_eq!(response.failed_rule_id, Some(FailedRuleId::Far(2)), "{what}");
        let mut change = path_switch(1, GNB.into());
        if let Some(parameters) = &mut change.update_fars[0].update_forwarding_parameters {
            parameters.outer_header_creation = Some(header);
        }
        let response = sessions.modify(seid, SMF.into(), &change, NOW).unwrap();
        assert_eq!((response.response.cause, response.response.offending_ie), refusal, "{what}");
        assert!(response.end_markers.is_empty());
        assert_eq!(sessions.by_remote(GNB_PEER, GNB_TEID).count(), 1, "as before");
    }
}

/// IPv6 addresses to which the kernel would refuse every packet.
#[test]
fn far_ends_of_ipv6_are_hosts_with_routes() {
    let mut config = config("gw0");
    config.gtpu = Some("[fd00:200::1]:2152".parse().unwrap());
    let interfaces = Interfaces::of(&config);
    for (peer, accepted) in [
        ("fd00:200::2", true),
        ("2001:db8::1", true),
        ("::ffff:10.0.0.1", false),
        ("fe80::1", false),
        ("febf::1", false),
        ("::", false),
        ("ff02::1", false),
    ] {
        let mut far = forward(2, DestinationInterface::Access, None);
        if let Some(parameters) = &mut far.forwarding_parameters {
            parameters.outer_header_creation = Some(OuterHeaderCreation::gtpu(7, peer.parse().unwrap()));
        }
        let mut rules = upf::n4::rules::Rules::default();
        rules.create_far(&far).unwrap();
        assert_eq!(rules.check_destinations(&interfaces).is_ok(), accepted, "{peer}");
    }
}

/// Without a UE address the sources of uplink packets could not be checked.
#[test]
fn an_uplink_without_ue_address_needs_a_network_that_allows_it() {
    let mut request = establishment(1);
    request.create_pdrs.truncate(1);
    request.create_pdrs[0].pdi.ue_ip_address = None;
    let (mut refusing, _) = sessions(64);
    let response = establish(&mut refusing, &request);
    assert_eq!(
        (response.cause, response.offending_ie, response.failed_rule_id),
        (Cause::CONDITIONAL_IE_MISSING, Some(OffendingIe(ie::UE_IP_ADDRESS)), Some(FailedRuleId::Pdr(1)))
    );
    // Another rule of the session names the address, so sources are checked.
    let mut elsewhere = establishment(1);
    elsewhere.create_pdrs[0].pdi.ue_ip_address = None;
    seid_of(&establish(&mut refusing, &elsewhere));
    let mut config = config("gw0");
    config.dnn[0].any_source = true;
    let config = Arc::new(config);
    let tables = Arc::new(Tables::new(&config));
    seid_of(&establish(&mut Sessions::new(config, tables, 5), &request));
}

/// A session whose uplink has no UE address and goes to another UPF, with FAR 9 for an exhausted quota of URR 1.
fn uplink_with_quota(far: CreateFar) -> SessionEstablishmentRequest {
    let mut request = establishment(1);
    request.create_pdrs.truncate(1);
    request.create_pdrs[0].pdi.ue_ip_address = None;
    request.create_fars[0] = forward(1, DestinationInterface::Core, Some((7, GNB)));
    request.create_fars.push(CreateFar { far_id: FarId(9), ..far });
    request.create_urrs[0] = CreateUrr {
        urr_id: UrrId(1),
        measurement_method: MeasurementMethod::VOLUM,
        reporting_triggers: ReportingTriggers::VOLQU,
        volume_quota: Some(Volume { total: Some(1000), ..Default::default() }),
        quota_far_id: Some(FarId(9)),
        ..Default::default()
    };
    request
}

/// The FAR for an exhausted quota is checked in advance: when the quota is exhausted, there is no request to refuse.
#[test]
fn a_far_for_an_exhausted_quota_is_checked_when_it_is_given() {
    let to_network = forward(9, DestinationInterface::Core, None);
    let refused = (Cause::CONDITIONAL_IE_MISSING, Some(OffendingIe(ie::UE_IP_ADDRESS)));
    let refused = (refused.0, refused.1, Some(FailedRuleId::Pdr(1)));
    for far in [to_network.clone(), redirecting(2, "http://portal.example/"), redirecting(0, "10.45.9.9")] {
        let (mut sessions, _) = sessions(64);
        let response = establish(&mut sessions, &uplink_with_quota(far.clone()));
        assert_eq!((response.cause, response.offending_ie, response.failed_rule_id), refused, "{far:?}");
        assert_eq!(sessions.count(), 0);
    }
    // FARs that need no source, and a UE address that another rule gives, are accepted.
    let (mut sessions, _) = sessions(64);
    let drop =
        CreateFar { apply_action: ApplyAction::DROP, forwarding_parameters: None, ..to_network.clone() };
    seid_of(&establish(&mut sessions, &uplink_with_quota(drop)));
    let mut addressed = uplink_with_quota(to_network.clone());
    addressed.create_pdrs.push(establishment(1).create_pdrs.remove(1));
    seid_of(&establish(&mut sessions, &addressed));
    // The check also applies after a similar session without this FAR was accepted and became a template.
    let mut without = uplink_with_quota(to_network.clone());
    without.create_urrs[0].quota_far_id = None;
    let seid = seid_of(&establish(&mut sessions, &without));
    let response = establish(&mut sessions, &uplink_with_quota(to_network));
    assert_eq!((response.cause, response.offending_ie, response.failed_rule_id), refused);
    // A modification with this FAR is refused too.
    let update = UpdateUrr { urr_id: UrrId(1), quota_far_id: Some(FarId(9)), ..Default::default() };
    let update = SessionModificationRequest { update_urrs: vec![update], ..Default::default() };
    let response = sessions.modify(seid, SMF.into(), &update, NOW).unwrap().response;
    assert_eq!((response.cause, response.offending_ie, response.failed_rule_id), refused);
}

/// Frames do not go to IP networks and IP packets not to Ethernet networks, also when a quota is exhausted.
#[test]
fn a_far_for_an_exhausted_quota_leads_to_a_network_of_the_sessions_kind() {
    let config = Arc::new(ethernet_config("gw0", "gw1"));
    let tables = Arc::new(Tables::new(&config));
    let mut sessions = Sessions::new(config, tables, 5);
    let named = |name: &str, mut far: CreateFar| {
        let name = [&[name.len() as u8], name.as_bytes()].concat();
        far.forwarding_parameters.as_mut().unwrap().network_instance = Some(name[..].into());
        CreateFar { far_id: FarId(9), ..far }
    };
    let to = |name: &str| named(name, forward(9, DestinationInterface::Core, None));
    let mut answer = |mut request: SessionEstablishmentRequest, far: CreateFar| {
        let quota = uplink_with_quota(far);
        request.create_fars.push(quota.create_fars.last().unwrap().clone());
        request.create_urrs = quota.create_urrs;
        let response = establish(&mut sessions, &request);
        (response.cause, response.offending_ie, response.failed_rule_id)
    };
    let (ip, frames) = (establishment(1), ethernet_establishment(0x1234));
    let (accepted, wrong) =
        ((Cause::ACCEPTED, None, None), (Cause::RULE_FAILURE, None, Some(FailedRuleId::Pdr(1))));
    assert_eq!(answer(ip.clone(), to("factory")), wrong);
    assert_eq!(answer(ip.clone(), named("factory", redirecting(0, "10.45.9.9"))), wrong);
    assert_eq!(answer(ip, to("internet")), accepted);
    assert_eq!(answer(frames.clone(), to("internet")), wrong);
    let unsupported = (Cause::SERVICE_NOT_SUPPORTED, Some(OffendingIe(ie::REDIRECT_INFORMATION)), None);
    assert_eq!(answer(frames.clone(), redirecting(2, "http://portal.example/")), unsupported);
    assert_eq!(answer(frames, to("factory")), accepted);
}

#[test]
fn a_cp_function_without_seid_is_refused() {
    let (mut sessions, _) = sessions(64);
    let response = establish(&mut sessions, &establishment(0));
    let incorrect = (Cause::MANDATORY_IE_INCORRECT, Some(OffendingIe(ie::F_SEID)));
    assert_eq!((response.cause, response.offending_ie), incorrect);
    let seid = seid_of(&establish(&mut sessions, &establishment(1)));
    let request =
        SessionModificationRequest { cp_f_seid: Some(FSeid::new(0, SMF.into())), ..Default::default() };
    let modified = sessions.modify(seid, SMF.into(), &request, NOW).unwrap();
    assert_eq!(
        (modified.response.cause, modified.response.offending_ie, modified.cp_seid),
        (incorrect.0, incorrect.1, 1)
    );
}

/// From known SEIDs and TEIDs nobody can guess the next ones, or those after a restart.
#[test]
fn identifiers_cannot_be_foreseen() {
    let draw = |secret| {
        let (mut sessions, _) = started_at(secret, 4096);
        let made = (0..200).map(|n| establish(&mut sessions, &other_ue(establishment(1), n)));
        made.map(|response| (seid_of(&response), teid_of(&response, 1))).collect::<Vec<_>>()
    };
    let (a, b) = (draw(1), draw(2));
    let near = |a: u64, b: u64| a.abs_diff(b) < 1 << 32;
    assert!(!a.windows(2).any(|pair| near(pair[0].0, pair[1].0)));
    assert!(!a.iter().any(|(seid, _)| b.iter().any(|(other, _)| near(*seid, *other))));
    let next = a.windows(2).filter(|pair| pair[0].1.abs_diff(pair[1].1) <= 2).count();
    assert!(next < 5, "{next}");
}

/// Two CP functions name the same remote tunnel: each is told of its own session, and changes nothing for the other.
#[test]
fn remote_tunnels_are_known_for_each_cp_function() {
    let (mut sessions, _) = sessions(64);
    let first = seid_of(&establish(&mut sessions, &establishment(1)));
    let other_smf = IpAddr::from([127, 0, 0, 5]);
    let request = other_ue(establishment(2), 1);
    let second = sessions.establish(NodeId::Ipv4(GTPU), other_smf, request.clone(), NOW).response;
    let told = sessions.error_indications(GNB_PEER, GNB_TEID);
    let mut cps: Vec<_> = told.iter().map(|report| (report.cp, report.seid)).collect();
    cps.sort_unstable();
    assert_eq!(cps, [(SMF.into(), first), (other_smf, seid_of(&second))]);
    assert_eq!((sessions.count_of(SMF.into()), sessions.count_of(other_smf)), (1, 1));
    sessions.delete(seid_of(&second), other_smf, NOW).unwrap();
    let told = sessions.error_indications(GNB_PEER, GNB_TEID);
    assert_eq!((told.len(), told[0].seid, sessions.count_of(other_smf)), (1, first, 0));
}

#[test]
fn usage_is_reported_when_asked_and_only_once() {
    let (mut sessions, _) = sessions(64);
    let seid = seid_of(&establish(&mut sessions, &establishment(1)));
    let compiled = &sessions.get(seid).unwrap().compiled;
    compiled.count(Direction::Uplink, 100);
    compiled.count(Direction::Downlink, 1000);
    let query = SessionModificationRequest {
        query_urrs: vec![QueryUrr { urr_id: UrrId(1) }],
        query_urr_reference: Some(QueryUrrReference(9)),
        ..Default::default()
    };
    let report = |sessions: &mut Sessions, at| {
        let modified = sessions.modify(seid, SMF.into(), &query, NtpSeconds(at)).unwrap();
        modified.response.usage_reports.into_iter().next().unwrap()
    };
    let first = report(&mut sessions, 1010);
    let volume = first.volume.unwrap();
    assert_eq!((volume.total, volume.uplink, volume.downlink_packets), (Some(1100), Some(100), Some(1)));
    assert_eq!((first.sequence, first.trigger), (UrSeqn(0), UsageReportTrigger::IMMER));
    assert_eq!((first.duration, first.query_reference), (Some(Seconds(10)), Some(QueryUrrReference(9))));
    let second = report(&mut sessions, 1015);
    assert_eq!((second.sequence, second.volume.unwrap().total), (UrSeqn(1), Some(0)));
    assert_eq!(second.start_time, Some(NtpSeconds(1010)));
    let unknown =
        SessionModificationRequest { query_urrs: vec![QueryUrr { urr_id: UrrId(7) }], ..Default::default() };
    let refused = sessions.modify(seid, SMF.into(), &unknown, NOW).unwrap();
    assert_eq!(refused.response.failed_rule_id, Some(FailedRuleId::Urr(7)));
}

proptest! {
    /// After any sequence of valid messages the tables agree with the sessions, and removed sessions leave nothing.
    #[test]
    fn tables_and_sessions_agree(
        steps in proptest::collection::vec((0u8..4, 0u8..6, 0u16..5, 0u32..5, 0u8..3), 1..40),
    ) {
        let (mut sessions, tables) = sessions(16);
        let mut seids = Vec::new();
        for (kind, n, pdr, far, variant) in steps {
            match kind {
                0 | 1 => {
                    let mut request = other_ue(establishment(u64::from(n) + 1), n);
                    if variant == 2 {
                        request.create_pdrs[usize::from(pdr) % 4].far_id = Some(FarId(far));
                    }
                    let established = sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), NOW);
                    seids.retain(|seid| !established.replaced.contains(seid));
                    if let Some(f_seid) = established.response.up_f_seid {
                        seids.push(f_seid.seid);
                    }
                }
                2 if !seids.is_empty() => {
                    let seid = seids[usize::from(n) % seids.len()];
                    let request = SessionModificationRequest {
                        remove_pdrs: if variant == 0 { vec![RemovePdr { pdr_id: PdrId(pdr) }] } else { vec![] },
                        remove_fars: if variant == 1 { vec![RemoveFar { far_id: FarId(far) }] } else { vec![] },
                        create_pdrs: if variant == 2 {
                            vec![support::pdr(pdr, 9, Pdi { f_teid: choose(pdr as u8), ..Default::default() }, far, &[])]
                        } else { vec![] },
                        ..Default::default()
                    };
                    sessions.modify(seid, SMF.into(), &request, NOW);
                }
                3 if !seids.is_empty() => {
                    let seid = seids.swap_remove(usize::from(n) % seids.len());
                    prop_assert!(sessions.delete(seid, SMF.into(), NOW).is_some());
                }
                _ => {}
            }
            for (seid, session) in sessions.iter() {
                for teid in session.rules.teids() {
                    prop_assert_eq!(tables.owner_of_teid(teid), Some(*seid));
                }
                for address in session.rules.native_addresses() {
                    prop_assert_eq!(tables.owner_of_ue(address), Some(*seid));
                }
            }
        }
        sessions.remove_all_of(SMF.into());
        for n in 0..6 {
            prop_assert!(tables.owner_of_ue(IpAddr::from([10, 45, 1, n])).is_none());
        }
        // All tunnels are free again: 15 of them, two per session.
        let fit = (0..10).take_while(|n| {
            establish(&mut sessions, &other_ue(establishment(1), *n)).cause == Cause::ACCEPTED
        }).count();
        prop_assert_eq!(fit, 7);
    }
}
