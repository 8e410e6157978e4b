//! The gateway between a scripted MME and a scripted UPF: procedures, bad input, and failures of the neighbours.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests: a panic is how they fail")]

mod common;

use std::time::Duration;

use common::*;
use gtpv2c::message::*;
use gtpv2c::value::*;
use net::time;
use serde_json::json;

/// What the UPF was asked last about the downlink of a bearer's FAR.
fn far_of(asked: &[Asked], far: u32) -> Option<(pfcp::ApplyAction, Option<u32>)> {
    asked.iter().rev().find_map(|asked| match asked {
        Asked::Establish(_, request) => {
            let far = request.create_fars.iter().find(|create| create.far_id.0 == far)?;
            let header = far.forwarding_parameters.as_ref().and_then(|to| to.outer_header_creation);
            Some((far.apply_action, header.and_then(|header| header.teid)))
        }
        Asked::Modify(_, request) => {
            let far = request.update_fars.iter().find(|update| update.far_id.0 == far)?;
            let to = far.update_forwarding_parameters.as_ref();
            let header = to.and_then(|to| to.outer_header_creation);
            Some((far.apply_action?, header.and_then(|header| header.teid)))
        }
        Asked::Delete(_) => None,
    })
}

#[tokio::test]
async fn attach_idle_service_request_and_detach() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, created) = mme.attach(IMSI, 0x77).await;
    let address = created.paa.and_then(Paa::ipv4).unwrap();
    assert!(address.octets().starts_with(&[10, 45]));
    let bearer = &created.bearers_created[0];
    assert_eq!((bearer.ebi, bearer.cause.value), (Ebi(5), CauseValue::ACCEPTED));
    assert_eq!(bearer.s1u_sgw_f_teid.and_then(|own| own.address()), Some(core.upf.ip));
    let asked = core.upf.asked();
    assert_eq!(far_of(&asked[..1], 16), Some((pfcp::ApplyAction::BUFF, None)), "no eNB yet");
    assert_eq!(far_of(&asked, 16), Some((pfcp::ApplyAction::FORW, Some(0x77))));

    assert_eq!(mme.release(gateway).await, CauseValue::ACCEPTED);
    let buffer = pfcp::ApplyAction::BUFF | pfcp::ApplyAction::NOCP;
    assert_eq!(far_of(&core.upf.asked(), 16), Some((buffer, None)));
    assert_eq!(core.sessions().await[0]["state"], "idle");

    // A packet for the UE: it is paged, and comes.
    core.upf.report_data();
    let (id, teid, message) = mme.request().await;
    let Message::DownlinkDataNotification(notification) = message else { panic!("{message:?}") };
    assert_eq!((teid, &notification.ebis[..]), (0x77, &[Ebi(5)][..]));
    let ack =
        DownlinkDataNotificationAcknowledge { cause: CauseValue::ACCEPTED.into(), ..Default::default() };
    mme.respond(id, gateway, ack);
    assert_eq!(mme.connect(gateway, 5, 0x88).await.cause.value, CauseValue::ACCEPTED);
    assert_eq!(far_of(&core.upf.asked(), 16), Some((pfcp::ApplyAction::FORW, Some(0x88))));
    assert_eq!(core.sessions().await[0]["bearers"][0]["enb_teid"], types::Teid(0x88).to_string());

    assert_eq!(mme.delete(gateway, 5).await, CauseValue::ACCEPTED);
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (0, 0));
    assert_eq!(mme.delete(gateway, 5).await, CauseValue::CONTEXT_NOT_FOUND);
}

/// The eNB's tunnel in the Create Session Request: packets go there from the start, and the answer says so where that was asked.
#[tokio::test]
async fn a_session_may_begin_with_the_enbs_tunnel() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let enb = FTeid::new(InterfaceType::S1U_ENB, 0x77, core.network.ip(7));
    for (tunnel, is_asked) in [(Some(enb), true), (Some(enb), false), (None, true)] {
        let mut request = mme.create_request(IMSI, 9);
        request.bearers_to_be_created[0].s1u_enb_f_teid = tunnel;
        request.private_extensions.extend(is_asked.then(PrivateExtension::asks_for_enb_tunnels));
        let created = mme.create(request).await;
        let says_so = created.private_extensions.contains(&PrivateExtension::has_enb_tunnels());
        assert_eq!(says_so, is_asked && tunnel.is_some());
        let expected = match tunnel {
            Some(_) => ((pfcp::ApplyAction::FORW, Some(0x77)), "connected"),
            None => ((pfcp::ApplyAction::BUFF, None), "idle"),
        };
        assert_eq!(far_of(&core.upf.asked(), 16), Some(expected.0));
        assert_eq!(core.sessions().await[0]["state"], expected.1);
    }
    assert_eq!(core.upf.sessions(), 1);
}

#[tokio::test]
async fn a_handover_ends_the_former_enbs_packets_with_a_marker() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    core.upf.asked();
    mme.connect(gateway, 5, 2).await;
    let asked = core.upf.asked();
    let [Asked::Modify(_, request)] = &asked[..] else { panic!("{asked:?}") };
    let to = request.update_fars[0].update_forwarding_parameters.as_ref().unwrap();
    assert_eq!(to.sm_req_flags, Some(pfcp::SmReqFlags::SNDEM));
    // The same tunnel again: there is no former eNB.
    mme.connect(gateway, 5, 2).await;
    let asked = core.upf.asked();
    let [Asked::Modify(_, request)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(request.update_fars[0].update_forwarding_parameters.as_ref().unwrap().sm_req_flags, None);
}

#[tokio::test]
async fn addresses_types_and_options_are_negotiated() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    // A requested address is honoured once.
    let fixed = Paa::Ipv4([10, 45, 7, 7].into());
    let request =
        |mme: &Mme, imsi: &str| CreateSessionRequest { paa: Some(fixed), ..mme.create_request(imsi, 9) };
    let first = mme.create(request(&mme, IMSI)).await;
    assert_eq!(first.paa, Some(fixed));
    let second = mme.create(request(&mme, "999700000000002")).await;
    assert_eq!(second.cause.value, CauseValue::ADDRESSES_OCCUPIED);
    let foreign = CreateSessionRequest {
        paa: Some(Paa::Ipv4([10, 99, 0, 1].into())),
        ..mme.create_request("999700000000002", 9)
    };
    assert!(!mme.create(foreign).await.cause.is_accepted());

    // Both versions only where the dual address flag is set.
    let both = |indication| CreateSessionRequest {
        pdn_type: Some(PdnType::Ipv4v6),
        paa: None,
        indication,
        ..mme_request(&core, "999700000000003")
    };
    let single = mme.create(both(None)).await;
    assert_eq!(single.cause.value, CauseValue::NEW_PDN_TYPE_SINGLE_ADDRESS);
    assert!(matches!(single.paa, Some(Paa::Ipv4(_))));
    let dual = mme.create(both(Some(Indication::DAF))).await;
    assert!(matches!(dual.paa, Some(Paa::Ipv4v6(..))), "{dual:?}");
    assert_eq!(core.sessions().await.len(), 2, "an attach replaces what the UE had");

    let options = nas::Pco { items: vec![nas::PcoItem::DnsIpv4Request, nas::PcoItem::Ipv4MtuRequest] };
    let asking = CreateSessionRequest {
        pco: Some(Octets(options.encode())),
        ..mme.create_request("999700000000004", 9)
    };
    let answer = nas::Pco::decode(&mme.create(asking).await.pco.unwrap().0).unwrap();
    assert_eq!(answer.items, [nas::PcoItem::DnsIpv4([1, 1, 1, 1].into()), nas::PcoItem::Ipv4Mtu(1400)]);
    let unknown = CreateSessionRequest { apn: "nowhere".into(), ..mme.create_request("999700000000005", 9) };
    assert_eq!(mme.create(unknown).await.cause.value, CauseValue::UNKNOWN_APN);
    assert_eq!(core.sessions().await.len(), 3, "refusals leave nothing");
}

fn mme_request(core: &Core, imsi: &str) -> CreateSessionRequest {
    CreateSessionRequest {
        imsi: Some(imsi.parse().unwrap()),
        rat_type: RatType::EUTRAN,
        sender_f_teid: FTeid::new(InterfaceType::S11_MME, 9, core.network.ip(6)),
        apn: "internet".into(),
        bearers_to_be_created: vec![default_bearer(5)],
        ..Default::default()
    }
}

#[tokio::test]
async fn an_exhausted_pool_gives_back_what_is_released() {
    let core = Core::with(|config| config["apn"][0]["ue_pool"] = json!({"ipv4": "10.45.0.0/29"})).await;
    let mut mme = core.mme(6).await;
    let mut gateways = Vec::new();
    for n in 1..=5 {
        gateways.push(mme.attach(&format!("99970000000000{n}"), n).await.0);
    }
    let sixth = mme.create(mme.create_request("999700000000006", 6)).await;
    assert_eq!(sixth.cause.value, CauseValue::ADDRESSES_OCCUPIED);
    mme.delete(gateways[2], 5).await;
    mme.attach("999700000000006", 6).await;
    assert_eq!(core.upf.sessions(), 5);
}

#[tokio::test]
async fn a_ue_that_attaches_again_leaves_nothing_behind() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (first, _) = mme.attach(IMSI, 1).await;
    // A second PDN connection of the UE, with the gateway's TEID.
    let second = CreateSessionRequest {
        bearers_to_be_created: vec![default_bearer(6)],
        ..mme.create_request(IMSI, 1)
    };
    let response = mme.create_at(first, second).await;
    assert_eq!(response.sender_f_teid.unwrap().teid, first, "one TEID for all of a UE's PDN connections");
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (2, 2));
    // The same default bearer again replaces its PDN connection alone.
    let again = CreateSessionRequest {
        bearers_to_be_created: vec![default_bearer(6)],
        ..mme.create_request(IMSI, 1)
    };
    assert!(mme.create_at(first, again).await.cause.is_accepted());
    assert_eq!(core.upf.sessions(), 2);
    // An attach replaces all.
    mme.attach(IMSI, 2).await;
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (1, 1));
}

#[tokio::test]
async fn only_a_ues_own_mme_changes_what_it_has() {
    let core = Core::start().await;
    let (mut mme, mut other) = (core.mme(6).await, core.mme(8).await);
    let (gateway, _) = mme.attach(IMSI, 1).await;
    assert_eq!(other.release(gateway).await, CauseValue::INVALID_PEER);
    assert_eq!(other.delete(gateway, 5).await, CauseValue::INVALID_PEER);
    assert_eq!(other.connect(gateway, 5, 0x66).await.cause.value, CauseValue::INVALID_PEER);
    assert_eq!(other.release(gateway ^ 1).await, CauseValue::CONTEXT_NOT_FOUND);
    assert_eq!(core.sessions().await[0]["state"], "connected");
    // A UE that moves is named with the new MME's own tunnel end.
    let enb = FTeid::new(InterfaceType::S1U_ENB, 3, core.network.ip(9));
    let moved = ModifyBearerRequest { sender_f_teid: Some(other.f_teid(0x99)), ..modify_request(5, enb) };
    assert!(other.modify(gateway, moved).await.cause.is_accepted());
    assert_eq!(mme.release(gateway).await, CauseValue::INVALID_PEER);
    assert_eq!(other.release(gateway).await, CauseValue::ACCEPTED);
}

#[tokio::test]
async fn a_repeated_request_is_answered_once_more_and_done_once() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let mut octets = Vec::new();
    let request: Message = mme.create_request(IMSI, 1).into();
    request.encode(0, 0x1234, &mut octets).unwrap();
    for _ in 0..5 {
        mme.send_octets(&octets);
    }
    time::sleep(Duration::from_millis(300)).await;
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (1, 1));
    let establishments =
        core.upf.asked().iter().filter(|asked| matches!(asked, Asked::Establish(..))).count();
    assert_eq!(establishments, 1);
}

#[tokio::test]
async fn missing_and_contradictory_elements_are_refused() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let cause = |response: CreateSessionResponse| {
        (response.cause.value, response.cause.offending_ie.map(|ie| ie.ie_type))
    };
    let nobody = CreateSessionRequest { imsi: None, ..mme.create_request(IMSI, 1) };
    let missing = CauseValue::CONDITIONAL_IE_MISSING;
    assert_eq!(cause(mme.create(nobody).await), (missing, Some(gtpv2c::ie::IMSI)));
    let twice = CreateSessionRequest {
        bearers_to_be_created: vec![default_bearer(5), default_bearer(5)],
        linked_ebi: Some(Ebi(5)),
        ..mme.create_request(IMSI, 1)
    };
    let incorrect = CauseValue::MANDATORY_IE_INCORRECT;
    assert_eq!(cause(mme.create(twice).await), (incorrect, Some(gtpv2c::ie::BEARER_CONTEXT)));
    let reserved = CreateSessionRequest {
        bearers_to_be_created: vec![default_bearer(3)],
        ..mme.create_request(IMSI, 1)
    };
    assert_eq!(cause(mme.create(reserved).await), (incorrect, Some(gtpv2c::ie::BEARER_CONTEXT)));
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (0, 0));
}

#[tokio::test]
async fn damaged_messages_change_nothing() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    let enb = FTeid::new(InterfaceType::S1U_ENB, 1, core.network.ip(9));
    let messages: [(u32, Message); 4] = [
        (0, mme.create_request("999700000000002", 2).into()),
        (gateway, modify_request(5, enb).into()),
        (gateway, DeleteSessionRequest::default().into()),
        (gateway, ReleaseAccessBearersRequest::default().into()),
    ];
    for (number, (teid, message)) in messages.into_iter().enumerate() {
        let mut octets = Vec::new();
        message.encode(teid, 0x20_0000 + number as u32, &mut octets).unwrap();
        // The length in the header stays: each of these ends too early.
        for end in 0..octets.len() {
            mme.send_octets(&octets[..end]);
        }
    }
    assert_eq!(mme.connect(gateway, 5, 0x55).await.cause.value, CauseValue::ACCEPTED);
    let sessions = core.sessions().await;
    assert_eq!((sessions.len(), &sessions[0]["state"]), (1, &json!("connected")));
}

#[tokio::test]
async fn a_ue_that_does_not_answer_is_paged_again_after_a_pause() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    mme.release(gateway).await;
    let ack =
        || DownlinkDataNotificationAcknowledge { cause: CauseValue::ACCEPTED.into(), ..Default::default() };
    core.upf.report_data();
    let (id, ..) = mme.request().await;
    mme.respond(id, gateway, ack());
    // A second report while the UE is paged asks nobody.
    core.upf.report_data();
    assert!(mme.request_within(Duration::from_millis(100)).await.is_none());
    core.upf.asked();
    let failed = DownlinkDataNotificationFailureIndication {
        cause: CauseValue::UE_NOT_RESPONDING.into(),
        ..Default::default()
    };
    mme.indicate(gateway, failed);
    let wait = |action| {
        let upf = &core.upf;
        async move {
            for _ in 0..400 {
                if far_of(&upf.asked(), 16).is_some_and(|(found, _)| found == action) {
                    return;
                }
                time::sleep(Duration::from_millis(5)).await;
            }
            panic!("not asked for {action:?}");
        }
    };
    wait(pfcp::ApplyAction::DROP).await;
    assert_eq!(core.sessions().await[0]["state"], "unreachable");
    wait(pfcp::ApplyAction::BUFF | pfcp::ApplyAction::NOCP).await;
    core.upf.report_data();
    assert!(matches!(mme.request().await, (_, 1, Message::DownlinkDataNotification(_))));
}

#[tokio::test]
async fn an_mme_that_has_lost_the_ue_ends_it() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    mme.release(gateway).await;
    core.upf.report_data();
    let (id, ..) = mme.request().await;
    let cause = CauseValue::CONTEXT_NOT_FOUND.into();
    mme.respond(id, gateway, DownlinkDataNotificationAcknowledge { cause, ..Default::default() });
    for _ in 0..400 {
        if core.upf.sessions() == 0 {
            assert_eq!(core.sessions().await.len(), 0);
            return;
        }
        time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the session stays");
}

#[tokio::test]
async fn a_dedicated_bearer_comes_and_goes() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    core.upf.asked();
    let body = json!({"linked_ebi": 5, "qci": 1, "protocol": 17, "remote": "9.9.9.9", "remote_port": 5060,
        "gbr_kbps": {"uplink": 64, "downlink": 128}, "mbr_kbps": {"uplink": 64, "downlink": 128}});
    let create = core.oam("POST", "/ues/999700000000001/bearers", Some(body));
    let accept = async {
        let (id, teid, message) = mme.request().await;
        let Message::CreateBearerRequest(request) = message else { panic!("{message:?}") };
        assert_eq!((teid, request.linked_ebi, request.bearers[0].ebi), (1, Ebi(5), Ebi(0)));
        let own = request.bearers[0].s1u_sgw_f_teid;
        let bearer = gtpv2c::BearerInCreateResponse {
            ebi: Ebi(6),
            cause: CauseValue::ACCEPTED.into(),
            s1u_enb_f_teid: Some(FTeid::new(InterfaceType::S1U_ENB, 0x66, core.network.ip(9))),
            s1u_sgw_f_teid: own,
            ..Default::default()
        };
        let cause = CauseValue::ACCEPTED.into();
        mme.respond(id, gateway, CreateBearerResponse { cause, bearers: vec![bearer], ..Default::default() });
        mme.event_within(Duration::from_millis(50)).await;
    };
    let (created, ()) = tokio::join!(create, accept);
    assert_eq!(created, Ok(json!({"ebi": 6})));
    let asked = core.upf.asked();
    let Asked::Modify(_, added) = &asked[0] else { panic!("{asked:?}") };
    let text =
        added.create_pdrs[1].pdi.sdf_filters[0].flow_description.as_ref().and_then(|text| text.as_str());
    assert_eq!(text, Some("permit out 17 from 9.9.9.9/32 5060 to assigned"));
    assert_eq!(added.create_qers[0].gbr.unwrap().downlink_kbps, 128);
    assert_eq!(far_of(&asked, 17), Some((pfcp::ApplyAction::FORW, Some(0x66))));
    assert_eq!(core.sessions().await[0]["bearers"].as_array().unwrap().len(), 2);

    let delete = core.oam("POST", "/ues/999700000000001/bearers/6/delete", None);
    let accept = async {
        let (id, _, message) = mme.request().await;
        let Message::DeleteBearerRequest(request) = message else { panic!("{message:?}") };
        assert_eq!((request.linked_ebi, &request.ebis[..]), (None, &[Ebi(6)][..]));
        let cause = CauseValue::ACCEPTED.into();
        mme.respond(id, gateway, DeleteBearerResponse { cause, ..Default::default() });
        mme.event_within(Duration::from_millis(50)).await;
    };
    let (deleted, ()) = tokio::join!(delete, accept);
    assert_eq!(deleted, Ok(json!({"deleted": true})));
    assert_eq!(core.sessions().await[0]["bearers"].as_array().unwrap().len(), 1);
    let asked = core.upf.asked();
    assert!(matches!(&asked[..], [Asked::Modify(_, removed)] if removed.remove_pdrs.len() == 2), "{asked:?}");
}

#[tokio::test]
async fn a_bearer_that_the_mme_refuses_is_taken_back() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    let body = json!({"linked_ebi": 5, "qci": 8, "protocol": 6, "remote_port": 80});
    let create = core.oam("POST", "/ues/999700000000001/bearers", Some(body));
    let refuse = async {
        let (id, ..) = mme.request().await;
        let cause = CauseValue::UE_REFUSES.into();
        mme.respond(id, gateway, CreateBearerResponse { cause, ..Default::default() });
        mme.event_within(Duration::from_millis(50)).await;
    };
    let (created, ()) = tokio::join!(create, refuse);
    assert!(created.unwrap_err().contains("88"));
    assert_eq!(core.sessions().await[0]["bearers"].as_array().unwrap().len(), 1);
    assert!(
        matches!(core.upf.asked().last(), Some(Asked::Modify(_, removed)) if removed.remove_fars.len() == 1)
    );
}

#[tokio::test]
async fn a_restarted_upf_gets_its_sessions_back_with_the_same_tunnels() {
    let mut core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, created) = mme.attach(IMSI, 0x77).await;
    let own = created.bearers_created[0].s1u_sgw_f_teid.unwrap();
    core.upf.asked();
    core.upf.restart().await;
    for _ in 0..1000 {
        if core.upf.sessions() == 1 {
            break;
        }
        time::sleep(Duration::from_millis(5)).await;
    }
    let asked = core.upf.asked();
    let establish = asked.iter().find_map(|asked| match asked {
        Asked::Establish(_, request) => Some(request),
        _ => None,
    });
    let uplink = &establish.expect("set up again").create_pdrs[0];
    let IpAddrV4(v4) = own.ipv4.into();
    assert_eq!(uplink.pdi.f_teid, Some(pfcp::FTeid::Assigned { teid: own.teid, ipv4: v4, ipv6: None }));
    assert_eq!(far_of(&asked, 16), Some((pfcp::ApplyAction::FORW, Some(0x77))));
    assert_eq!(mme.release(gateway).await, CauseValue::ACCEPTED);
}

struct IpAddrV4(Option<std::net::Ipv4Addr>);

impl From<Option<std::net::Ipv4Addr>> for IpAddrV4 {
    fn from(address: Option<std::net::Ipv4Addr>) -> Self {
        Self(address)
    }
}

#[tokio::test]
async fn without_a_upf_nothing_is_created_and_nothing_stays() {
    let mut core = Core::start().await;
    let mut mme = core.mme(6).await;
    core.upf.refuse(pfcp::Cause::NO_RESOURCES.0);
    assert_eq!(mme.create(mme.create_request(IMSI, 1)).await.cause.value, CauseValue::NO_RESOURCES);
    core.upf.refuse(0);
    core.upf.stop().await;
    for _ in 0..1000 {
        if !core.spgw.as_ref().unwrap().has_upf() {
            break;
        }
        time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(mme.create(mme.create_request(IMSI, 1)).await.cause.value, CauseValue::NO_RESOURCES);
    assert_eq!(core.sessions().await.len(), 0);
}

#[tokio::test]
async fn a_restarted_mme_ends_its_ues_and_a_spoofed_counter_does_not() {
    let core = Core::start().await;
    let (mut mme, mut other) = (core.mme(6).await, core.mme(8).await);
    mme.attach(IMSI, 1).await;
    other.attach("999700000000002", 2).await;
    // Let the gateway learn both counters.
    mme.event_within(Duration::from_millis(200)).await;
    other.event_within(Duration::from_millis(200)).await;
    // A message that claims a newer counter, which the MME itself does not confirm.
    let claim =
        CreateSessionRequest { recovery: Some(Recovery(9)), ..mme.create_request("999700000000003", 3) };
    assert!(mme.create(claim).await.cause.is_accepted());
    mme.event_within(Duration::from_millis(700)).await;
    assert_eq!(core.sessions().await.len(), 3, "asked before believed");
    // The other MME has really restarted.
    other.restart(2);
    let fresh =
        CreateSessionRequest { recovery: Some(Recovery(2)), ..other.create_request("999700000000004", 4) };
    assert!(other.create(fresh).await.cause.is_accepted());
    for _ in 0..50 {
        other.event_within(Duration::from_millis(100)).await;
        let mut imsis: Vec<_> = core
            .sessions()
            .await
            .iter()
            .map(|session| session["imsi"].as_str().unwrap().to_owned())
            .collect();
        imsis.sort();
        if imsis == ["999700000000001", "999700000000003", "999700000000004"] {
            return;
        }
    }
    panic!("{:?}", core.sessions().await);
}

#[tokio::test]
async fn the_restart_counter_grows_with_each_start() {
    let mut core = Core::start().await;
    let counter = |text: &str| text.trim().parse::<u8>().unwrap();
    let first = counter(&std::fs::read_to_string(core.restarts()).unwrap());
    core.restart_gateway().await;
    assert_eq!(counter(&std::fs::read_to_string(core.restarts()).unwrap()), first + 1);
    // Nobody is known any more.
    let mut mme = core.mme(6).await;
    assert_eq!(mme.release(0x1234).await, CauseValue::CONTEXT_NOT_FOUND);
}

#[tokio::test]
async fn a_teid_that_is_not_the_ues_names_nobody() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    let (other, _) = mme.attach("999700000000002", 2).await;
    // As after a restart of the gateway that the MME has not noticed; and of another UE.
    for teid in [gateway ^ 1, other] {
        let second = CreateSessionRequest {
            bearers_to_be_created: vec![default_bearer(6)],
            ..mme.create_request(IMSI, 1)
        };
        assert_eq!(mme.create_at(teid, second).await.cause.value, CauseValue::CONTEXT_NOT_FOUND);
    }
    assert_eq!(core.sessions().await.len(), 2, "nothing was replaced");
    // A UE that nobody knows.
    let unknown = mme.create_request("999700000000003", 3);
    assert_eq!(mme.create_at(gateway, unknown).await.cause.value, CauseValue::CONTEXT_NOT_FOUND);
    assert_eq!(core.sessions().await.len(), 2);
    // A UE that keeps a P-GW elsewhere, whose tunnel for packets is not named.
    let moved = CreateSessionRequest {
        pgw_f_teid: Some(FTeid::new(InterfaceType::S5S8_PGW_GTPC, 77, [192, 0, 2, 1].into())),
        ..mme.create_request("999700000000004", 4)
    };
    assert_eq!(mme.create(moved).await.cause.value, CauseValue::CONDITIONAL_IE_MISSING);
}

/// The UE attaches again while the MME is asked to delete what it had: the new PDN connection with the same identity stays.
#[tokio::test]
async fn what_ends_late_is_what_was_meant() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    mme.attach(IMSI, 1).await;
    let delete = core.oam("POST", "/ues/999700000000001/bearers/5/delete", None);
    let attach_again = async {
        let (id, _, message) = mme.request().await;
        assert!(
            matches!(&message, Message::DeleteBearerRequest(request) if request.linked_ebi == Some(Ebi(5)))
        );
        let (gateway, _) = mme.attach(IMSI, 2).await;
        let cause = CauseValue::ACCEPTED.into();
        mme.respond(id, gateway, DeleteBearerResponse { cause, ..Default::default() });
        mme.event_within(Duration::from_millis(100)).await;
    };
    let (deleted, ()) = tokio::join!(delete, attach_again);
    assert_eq!(deleted, Ok(json!({"deleted": true})));
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (1, 1));
}

#[tokio::test]
async fn a_ue_gives_back_only_its_own_dedicated_bearers() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    let release = tft::Tft { operation: tft::Operation::Delete, ..Default::default() };
    let command = BearerResourceCommand {
        linked_ebi: Ebi(5),
        pti: Pti(3),
        ebi: Some(Ebi(5)),
        tad: Some(release.encode().unwrap()),
        ..Default::default()
    };
    // Guaranteed rates are not for the asking.
    let filter = tft::PacketFilter {
        id: 1,
        direction: tft::Direction::Bidirectional,
        precedence: 1,
        components: vec![tft::Component::Protocol(17)],
    };
    let create = tft::Tft { operation: tft::Operation::Create(vec![filter]), ..Default::default() };
    let greedy = BearerResourceCommand {
        ebi: None,
        flow_qos: Some(FlowQos { qci: 1, gbr_uplink_kbps: 1, ..Default::default() }),
        tad: Some(create.encode().unwrap()),
        ..command.clone()
    };
    for (command, cause) in [(command, CauseValue::TAD_SEMANTIC_ERROR), (greedy, CauseValue::SERVICE_DENIED)]
    {
        let (teid, message) = mme.ask(gateway, command).await.unwrap();
        let Message::BearerResourceFailureIndication(refused) = message else { panic!("{message:?}") };
        assert_eq!((teid, refused.cause.value, refused.pti), (1, cause, Pti(3)));
    }
    assert_eq!(core.sessions().await.len(), 1);
}

fn filter(id: u8, port: u16) -> tft::PacketFilter {
    tft::PacketFilter {
        id,
        direction: tft::Direction::Bidirectional,
        precedence: 10 + id,
        components: vec![tft::Component::Protocol(17), tft::Component::RemotePort(port)],
    }
}

/// Bearer Resource Command for bearer 6; without it the UE wants a new bearer.
fn resource_command(
    operation: tft::Operation,
    flow_qos: Option<FlowQos>,
    ebi: Option<Ebi>,
) -> BearerResourceCommand {
    let tad = tft::Tft { operation, ..Default::default() };
    BearerResourceCommand {
        linked_ebi: Ebi(5),
        pti: Pti(3),
        ebi,
        flow_qos,
        tad: Some(tad.encode().unwrap()),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_ue_changes_the_filters_of_its_bearer_and_the_network_numbers_them() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    let flow = FlowQos { qci: 8, ..Default::default() };
    let new = tft::Operation::Create(vec![filter(9, 1_000), filter(4, 2_000)]);
    mme.send(gateway, resource_command(new, Some(flow), None));
    let (id, _, message) = mme.request().await;
    let Message::CreateBearerRequest(request) = message else { panic!("{message:?}") };
    let Ok(tft::Tft { operation: tft::Operation::Create(filters), .. }) =
        tft::Tft::decode(&request.bearers[0].tft.0)
    else {
        panic!("{request:?}")
    };
    assert_eq!(filters.iter().map(|filter| filter.id).collect::<Vec<_>>(), [0, 1]);
    let cause = CauseValue::ACCEPTED.into();
    let bearer = gtpv2c::BearerInCreateResponse { ebi: Ebi(6), cause, ..Default::default() };
    mme.respond(id, gateway, CreateBearerResponse { cause, bearers: vec![bearer], ..Default::default() });
    core.until(async || core.sessions().await[0]["bearers"][1]["ebi"] == 6).await;

    // What cannot be is refused, and changes nothing.
    let deletes = |ids: &[u8]| tft::Operation::DeleteFilters(ids.to_vec());
    for (operation, flow, cause) in [
        (tft::Operation::Replace(vec![filter(7, 1)]), None, CauseValue::TAD_SEMANTIC_ERROR),
        (deletes(&[0, 9]), None, CauseValue::TAD_SEMANTIC_ERROR),
        (
            tft::Operation::Add((0..14).map(|id| filter(id, 1)).collect()),
            None,
            CauseValue::TAD_SEMANTIC_ERROR,
        ),
        (tft::Operation::Create(vec![filter(0, 1)]), Some(flow), CauseValue::TAD_SEMANTIC_ERROR),
        (deletes(&[0]), Some(FlowQos { qci: 9, ..flow }), CauseValue::SERVICE_DENIED),
    ] {
        let (_, message) = mme.ask(gateway, resource_command(operation, flow, Some(Ebi(6)))).await.unwrap();
        let Message::BearerResourceFailureIndication(refused) = message else { panic!("{message:?}") };
        assert_eq!(refused.cause.value, cause);
    }

    // One added, one replaced, one deleted; the UPF gets only what is different.
    core.upf.asked();
    let sizes = |asked: &[Asked]| match asked {
        [Asked::Modify(_, change)] => {
            (change.remove_pdrs.len(), change.create_pdrs.len(), change.update_pdrs.len())
        }
        other => panic!("{other:?}"),
    };
    for (operation, expected) in [
        (tft::Operation::Add(vec![filter(0, 3_000)]), (0, 1, 1)),
        (tft::Operation::Replace(vec![filter(1, 4_000)]), (0, 0, 2)),
        (deletes(&[0]), (1, 0, 1)),
    ] {
        mme.send(gateway, resource_command(operation, None, Some(Ebi(6))));
        let (id, _, message) = mme.request().await;
        assert!(matches!(&message, Message::UpdateBearerRequest(request) if request.pti == Some(Pti(3))));
        let bearer = gtpv2c::BearerResultWithOptions { ebi: Ebi(6), cause, ..Default::default() };
        mme.respond(id, gateway, UpdateBearerResponse { cause, bearers: vec![bearer], ..Default::default() });
        let mut asked = Vec::new();
        core.until(async || {
            asked.extend(core.upf.asked());
            !asked.is_empty()
        })
        .await;
        assert_eq!(sizes(&asked), expected);
    }
    let filters = core.sessions().await[0]["bearers"][1]["filters"].to_string();
    assert!(filters.contains("4000") && filters.contains("3000") && !filters.contains("1000"), "{filters}");

    // The MME refuses: nothing changes.
    mme.send(gateway, resource_command(deletes(&[1]), None, Some(Ebi(6))));
    let (id, ..) = mme.request().await;
    let cause = CauseValue::UE_REFUSES.into();
    mme.respond(id, gateway, UpdateBearerResponse { cause, ..Default::default() });
    mme.event_within(Duration::from_millis(100)).await;
    assert_eq!(core.sessions().await[0]["bearers"][1]["filters"].to_string(), filters);
    assert!(core.upf.asked().is_empty());
    // With the last filters the bearer ends.
    mme.send(gateway, resource_command(deletes(&[1, 2]), None, Some(Ebi(6))));
    let (_, _, message) = mme.request().await;
    assert!(
        matches!(&message, Message::DeleteBearerRequest(request) if request.ebis == [Ebi(6)]),
        "{message:?}"
    );
}

/// The MME has given up, or the request was forged.
#[tokio::test]
async fn a_pdn_connection_without_enb_ends_after_some_time() {
    let core = Core::with(|config| config["timers"]["unclaimed_ms"] = json!(400)).await;
    let mut mme = core.mme(6).await;
    // One that had an eNB and is idle stays.
    let (gateway, _) = mme.attach(IMSI, 1).await;
    assert_eq!(mme.release(gateway).await, CauseValue::ACCEPTED);
    let forgotten = mme.create(mme.create_request("999700000000002", 2)).await;
    assert!(forgotten.cause.is_accepted());
    core.until(async || core.upf.sessions() == 1).await;
    assert_eq!(core.sessions().await[0]["imsi"], IMSI);
}

#[tokio::test]
async fn a_upf_that_did_not_answer_deletes_the_session_later() {
    let mut core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    core.upf.stop().await;
    assert_eq!(mme.delete(gateway, 5).await, CauseValue::ACCEPTED);
    assert_eq!((core.upf.sessions(), core.sessions().await.len()), (1, 0), "the UPF has not heard of it");
    core.upf.resume();
    core.until(async || core.upf.sessions() == 0).await;
}

/// The UPF may have rules of the former bearer: the numbers of another one are others.
#[tokio::test]
async fn a_bearer_that_the_upf_has_not_removed_keeps_its_numbers() {
    let mut core = Core::start().await;
    let mut mme = core.mme(6).await;
    let (gateway, _) = mme.attach(IMSI, 1).await;
    let body = |port: u16| json!({"linked_ebi": 5, "qci": 8, "protocol": 17, "remote_port": port});
    let route = "/ues/999700000000001/bearers";
    let mut uplinks = Vec::new();
    for ebi in [6, 7] {
        core.upf.asked();
        let create = core.oam("POST", route, Some(body(ebi.into())));
        let accept = async {
            let (id, ..) = mme.request().await;
            let cause = CauseValue::ACCEPTED.into();
            let bearer = gtpv2c::BearerInCreateResponse { ebi: Ebi(ebi), cause, ..Default::default() };
            mme.respond(
                id,
                gateway,
                CreateBearerResponse { cause, bearers: vec![bearer], ..Default::default() },
            );
            mme.event_within(Duration::from_millis(50)).await;
        };
        assert!(tokio::join!(create, accept).0.is_ok());
        let asked = core.upf.asked();
        let Asked::Modify(_, added) = &asked[0] else { panic!("{asked:?}") };
        uplinks.push(added.create_pdrs[0].pdr_id);
        if ebi == 7 {
            break;
        }
        core.upf.stop().await;
        let delete = core.oam("POST", "/ues/999700000000001/bearers/6/delete", None);
        let accept = async {
            let (id, ..) = mme.request().await;
            let cause = CauseValue::ACCEPTED.into();
            mme.respond(id, gateway, DeleteBearerResponse { cause, ..Default::default() });
            mme.event_within(Duration::from_millis(50)).await;
        };
        assert!(tokio::join!(delete, accept).0.is_ok());
        core.upf.resume();
        core.until(async || core.spgw.as_ref().unwrap().has_upf()).await;
    }
    assert_ne!(uplinks[0], uplinks[1]);
}
