//! A session that is laid out by a template equals the session that compiling its own rules would give.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::*;
use proptest::prelude::*;

use super::super::session::Sessions;
use super::Templates;
use crate::config::Config;
use crate::state::Cells;
use crate::tables::Tables;

const SMF: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
const NOW: NtpSeconds = NtpSeconds(1000);

fn sessions(classifier: &str) -> Sessions {
    let text = format!(
        r#"{{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.7:2152", "classifier": "{classifier}", "dnn": [
            {{"name": "internet", "tun": "gw0", "ue_pool": {{"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}}}},
            {{"name": "ims", "tun": "gw1", "ue_pool": {{"ipv4": "10.46.0.0/16", "ipv6": "fd00:46::/48"}}}}]}}"#
    );
    let config: Arc<Config> = Arc::new(serde_json::from_str(&text).unwrap());
    let tables = Arc::new(Tables::new(&config));
    Sessions::new(config, tables, 1)
}

/// The values in which sessions of a test differ.
#[derive(Clone, Copy)]
struct Of {
    v4: [u8; 4],
    v6: Ipv6Addr,
    teid: u32,
    gnb: u8,
}

const FIRST: Of =
    Of { v4: [10, 45, 0, 2], v6: Ipv6Addr::new(0xfd00, 0x45, 0, 2, 0, 0, 0, 0), teid: 0x11, gnb: 1 };
const SECOND: Of =
    Of { v4: [10, 45, 3, 77], v6: Ipv6Addr::new(0xfd00, 0x45, 0, 0x77, 0, 0, 0, 0), teid: 0x22, gnb: 2 };

fn pdr(id: u16, precedence: u32, pdi: Pdi, far: u32, qers: &[u32], urrs: &[u32]) -> CreatePdr {
    CreatePdr {
        pdr_id: PdrId(id),
        precedence: Precedence(precedence),
        pdi,
        far_id: Some(FarId(far)),
        qer_ids: qers.iter().map(|id| QerId(*id)).collect(),
        urr_ids: urrs.iter().map(|id| UrrId(*id)).collect(),
        ..Default::default()
    }
}

fn far(id: u32, to: DestinationInterface, tunnel: Option<(u32, Ipv4Addr)>) -> CreateFar {
    let parameters = ForwardingParameters {
        destination_interface: to,
        outer_header_creation: tunnel.map(|(teid, peer)| OuterHeaderCreation::gtpu(teid, peer.into())),
        ..Default::default()
    };
    CreateFar {
        far_id: FarId(id),
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(Box::new(parameters)),
        ..Default::default()
    }
}

/// A session with features selected by the bits of `kind`, which is below [`KINDS`].
fn request(kind: u32, of: Of) -> SessionEstablishmentRequest {
    let has = |bit: u32| kind >> bit & 1 != 0;
    let ue = |destination| {
        Some(UeIpAddress {
            ipv4: (!has(0)).then_some(of.v4.into()),
            ipv6: (has(0) || has(1)).then_some(of.v6),
            destination,
            ..Default::default()
        })
    };
    let choose = |id| Some(FTeid::Choose { ipv4: true, ipv6: false, id: Some(id) });
    let texts = [
        "permit out 58 from ff02::2/128 to any",
        "permit out ip from 192.0.2.0/24 to assigned",
        "permit out 17 from 10.45.0.2/32 53 to any",
        "permit out ip from any to 10.45.0.0/23",
    ];
    let text = texts[(kind >> 2 & 3) as usize];
    let sdf_filters = vec![SdfFilter { flow_description: Some(text.into()), ..Default::default() }];
    let urrs: &[u32] = if has(4) { &[1] } else { &[] };
    let mut fars = vec![
        far(1, DestinationInterface::Core, None),
        far(2, DestinationInterface::Access, Some((of.teid, Ipv4Addr::new(10, 100, 0, of.gnb)))),
        far(3, DestinationInterface::CpFunction, Some((77, SMF))),
    ];
    if has(5) {
        fars[1].apply_action = ApplyAction::BUFF | ApplyAction::NOCP;
    }
    if has(6)
        && let Some(parameters) = &mut fars[0].forwarding_parameters
    {
        parameters.network_instance = Some("ims".into());
        parameters.transport_level_marking = Some(TransportLevelMarking { tos: 0xB8, mask: 0xFC });
    }
    let rates = BitRates { uplink_kbps: 1000, downlink_kbps: 2000 };
    let core = SourceInterface::Core;
    let cp = SourceInterface::CpFunction;
    let native = Pdi { source_interface: core, ue_ip_address: ue(true), ..Default::default() };
    let limit = Volume { total: Some(100_000), ..Default::default() };
    SessionEstablishmentRequest {
        node_id: NodeId::Ipv4(SMF),
        cp_f_seid: FSeid::new(u64::from(of.teid), SMF.into()),
        create_pdrs: vec![
            pdr(
                1,
                255,
                Pdi { f_teid: choose(1), ue_ip_address: ue(false), ..Default::default() },
                1,
                &[1, 2],
                urrs,
            ),
            pdr(2, 255, native.clone(), 2, &[1, 2], urrs),
            pdr(
                3,
                1,
                Pdi { f_teid: choose(1), sdf_filters: sdf_filters.clone(), ..Default::default() },
                3,
                &[],
                &[],
            ),
            pdr(4, 1, Pdi { source_interface: cp, f_teid: choose(2), ..Default::default() }, 2, &[2], &[]),
            pdr(5, 9, Pdi { sdf_filters, ..native }, 2, &[2], urrs),
        ],
        create_fars: fars,
        create_qers: vec![
            CreateQer {
                qer_id: QerId(1),
                mbr: Some(rates),
                gbr: has(7).then_some(rates),
                ..Default::default()
            },
            CreateQer { qer_id: QerId(2), qfi: Some(Qfi(9)), ..Default::default() },
        ],
        create_urrs: vec![CreateUrr {
            urr_id: UrrId(1),
            measurement_method: MeasurementMethod::VOLUM,
            reporting_triggers: ReportingTriggers::VOLTH,
            volume_threshold: has(8).then_some(limit),
            ..Default::default()
        }],
        ..Default::default()
    }
}

const KINDS: u32 = 1 << 9;

fn establish(sessions: &mut Sessions, request: &SessionEstablishmentRequest) -> u64 {
    let response = sessions.establish(NodeId::Ipv4(SMF), SMF.into(), request.clone(), NOW).response;
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    response.up_f_seid.unwrap().seid
}

/// Everything that is published of a session, and the initial content of its state.
fn published(sessions: &Sessions, seid: u64) -> String {
    let session = sessions.get(seid).unwrap();
    let tables = &session.compiled.tables;
    let cells = Cells::new(&tables.lines, session.compiled.state.first);
    let words: Vec<_> = (0..session.compiled.state.cells()).map(|cell| cells.get(cell as u8)).collect();
    let mut reader = tables.domain.reader();
    let guard = reader.enter();
    let blocks: Vec<_> = session.compiled.keys.iter().map(|key| (key, tables.block(&guard, key))).collect();
    let uses = &session.compiled.state.uses;
    format!("{blocks:#?} {uses:?} {words:?} {:?} {}", session.ineffective, session.compiled.buffered)
}

/// Establishes the second session after the first, by the first's template if it fits, and also by compiling;
/// returns whether the template fitted.
fn both_ways(
    classifier: &str,
    first: &SessionEstablishmentRequest,
    second: &SessionEstablishmentRequest,
) -> bool {
    let (mut by_template, mut compiled) = (sessions(classifier), sessions(classifier));
    for sessions in [&mut by_template, &mut compiled] {
        establish(sessions, first);
    }
    compiled.templates = Default::default();
    let known = by_template.templates.all.len();
    let seids = [&mut by_template, &mut compiled].map(|sessions| establish(sessions, second));
    assert_eq!(published(&by_template, seids[0]), published(&compiled, seids[1]));
    let fits = known > 0 && by_template.templates.all.len() == known;
    // Either way, it can be changed and deleted like any other session.
    let now = Ipv4Addr::new(10, 100, 0, 9);
    let parameters = UpdateForwardingParameters {
        outer_header_creation: Some(OuterHeaderCreation::gtpu(5, now.into())),
        ..Default::default()
    };
    let update = UpdateFar {
        far_id: FarId(2),
        update_forwarding_parameters: Some(Box::new(parameters)),
        ..Default::default()
    };
    let request = SessionModificationRequest { update_fars: vec![update], ..Default::default() };
    for (sessions, seid) in [&mut by_template, &mut compiled].into_iter().zip(seids) {
        let modified = sessions.modify(seid, SMF.into(), &request, NOW).unwrap();
        assert_eq!(modified.response.cause, Cause::ACCEPTED);
    }
    assert_eq!(published(&by_template, seids[0]), published(&compiled, seids[1]), "after a modification");
    assert_eq!(by_template.remove_all_of(SMF.into()), 2);
    assert_eq!(by_template.writer.memory_bytes(), 0);
    fits
}

#[test]
fn a_session_like_one_before_is_published_as_if_it_were_compiled() {
    for kind in 0..KINDS {
        let fits = both_ways("auto", &request(kind, FIRST), &request(kind, SECOND));
        // The third filter is on the first UE's own IPv4 address, the fourth on a prefix that contains only
        // that UE.
        let names_the_first = kind & 1 == 0 && kind >> 2 & 3 >= 2;
        assert_eq!(fits, !names_the_first, "{kind:#b}");
    }
}

#[test]
fn sessions_that_differ_otherwise_are_compiled() {
    for bit in 0..9 {
        let kind = 0b1_0001_0110;
        let (first, second) = (request(kind, FIRST), request(kind ^ 1 << bit, SECOND));
        // Without the URR, volume is not measured, but the rule is there.
        assert!(!both_ways("auto", &first, &second), "bit {bit}");
    }
    // Another data network by the address; TEIDs shared by other PDRs; no shared rows.
    let mut second = request(0, Of { v4: [10, 46, 0, 1], ..SECOND });
    assert!(!both_ways("auto", &request(0, FIRST), &second));
    second = request(0, SECOND);
    second.create_pdrs[3].pdi.f_teid = Some(FTeid::Choose { ipv4: true, ipv6: false, id: Some(1) });
    assert!(!both_ways("auto", &request(0, FIRST), &second));
    assert!(!both_ways("list", &request(0, FIRST), &request(0, SECOND)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..Default::default() })]

    /// Sessions of a few policies in any order; the UEs are in prefixes that filters name, or not.
    #[test]
    fn any_order_of_sessions_publishes_what_compiling_does(
        kinds in prop::collection::vec(0..KINDS, 1..4),
        order in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8), 1..16),
    ) {
        let (mut by_template, mut compiled) = (sessions("auto"), sessions("auto"));
        for (n, (kind, third)) in (2..).zip(order) {
            let v6 = ["fd00:45:0:2::", "fd00:46:0:2::"][usize::from(third) / 2];
            let v6 = Ipv6Addr::from_bits(v6.parse::<Ipv6Addr>().unwrap().to_bits() + (u128::from(n) << 64));
            let of = Of { v4: [10, 45 + third / 2, third, n], v6, teid: n.into(), gnb: third };
            let request = request(*kind.get(&kinds), of);
            compiled.templates = Default::default();
            let seids = [&mut by_template, &mut compiled].map(|sessions| establish(sessions, &request));
            prop_assert_eq!(published(&by_template, seids[0]), published(&compiled, seids[1]));
        }
    }
}

/// Sessions of as many policies as the benchmark has, in turn: each policy is compiled once.
#[test]
fn every_policy_is_compiled_once() {
    let mut sessions = sessions("auto");
    const POLICIES: u32 = 64;
    let by_policy = |n: u32| {
        let of = Of { v4: [10, 45, (n >> 8) as u8 + 1, n as u8], teid: n + 1, ..FIRST };
        let mut request = request(0, of);
        let text = format!("permit out 17 from 192.0.2.1 {} to assigned", 8000 + n % POLICIES);
        request.create_pdrs[4].pdi.sdf_filters[0].flow_description = Some(text.as_str().into());
        request
    };
    let seids: Vec<u64> = (0..10 * POLICIES).map(|n| establish(&mut sessions, &by_policy(n))).collect();
    assert_eq!(sessions.templates.all.len(), POLICIES as usize);
    assert_eq!(sessions.templates.by_hash.len(), POLICIES as usize, "each has a hash of its own");
    seids.into_iter().for_each(|seid| sessions.remove(seid));
}

/// Sessions of one policy share what their rules have in common, until one of them changes.
#[test]
fn changed_rules_are_no_longer_shared() {
    let mut sessions = sessions("auto");
    let seids = [FIRST, SECOND].map(|of| establish(&mut sessions, &request(0, of)));
    let shared = |sessions: &Sessions| {
        let [one, other] = seids.map(|seid| &sessions.get(seid).unwrap().rules);
        let pdrs = one.pdrs.values().zip(other.pdrs.values());
        let fars = one.fars.values().zip(other.fars.values());
        let pdrs: Vec<bool> = pdrs.map(|(one, other)| std::ptr::eq(&**one, &**other)).collect();
        (pdrs, fars.map(|(one, other)| Arc::ptr_eq(one, other)).collect::<Vec<bool>>())
    };
    let count = sessions.get(seids[0]).unwrap().rules.pdrs.len();
    // The downlink tunnels differ.
    assert_eq!(shared(&sessions), (vec![true; count], vec![true, false, true]));
    let terms = |sessions: &Sessions, of: usize| -> Vec<_> {
        sessions.get(seids[of]).unwrap().rules.pdrs.values().map(|pdr| (**pdr).clone()).collect()
    };
    let before = terms(&sessions, 0);
    let changed = UpdatePdr { pdr_id: PdrId(1), precedence: Some(Precedence(7)), ..Default::default() };
    let far = UpdateFar { far_id: FarId(1), apply_action: Some(ApplyAction::DROP), ..Default::default() };
    let request = SessionModificationRequest {
        update_pdrs: vec![changed],
        update_fars: vec![far],
        ..Default::default()
    };
    let modified = sessions.modify(seids[1], SMF.into(), &request, NOW).unwrap();
    assert_eq!(modified.response.cause, Cause::ACCEPTED);
    let mut expected = vec![true; count];
    expected[0] = false;
    assert_eq!(shared(&sessions), (expected, vec![false, false, true]));
    assert_eq!((terms(&sessions, 0), terms(&sessions, 1)[0].precedence), (before, 7));
    assert_eq!(sessions.get(seids[0]).unwrap().rules.fars.get(1).unwrap().action, ApplyAction::FORW);
}

#[test]
fn templates_are_bounded_and_hold_no_more_than_themselves() {
    let mut sessions = sessions("auto");
    let policies = super::MAX_TEMPLATES as u32 + 100;
    let by_policy = |n: u32| {
        let mut request = request(0, FIRST);
        request.create_pdrs[0].precedence = Precedence(1000 + n);
        request
    };
    for round in 0..2 {
        for n in 0..policies {
            let seid = establish(&mut sessions, &by_policy(n));
            sessions.remove(seid);
            // A template that is used all the time stays.
            let seid = establish(&mut sessions, &by_policy(0));
            sessions.remove(seid);
            let Templates { all, by_hash, .. } = &sessions.templates;
            assert!(all.len() <= super::MAX_TEMPLATES, "{round}");
            assert_eq!(by_hash.values().map(Vec::len).sum::<usize>(), all.len());
            assert!(all.iter().any(|known| known.rules.pdrs.get(1).unwrap().precedence == 1000));
        }
    }
    assert_eq!((sessions.count(), sessions.writer.memory_bytes()), (0, 0));
}
