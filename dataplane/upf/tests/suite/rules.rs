//! Each kind of N4 rule: its effect on the plan, refused requests, and the reports that the UPF sends on its own (UP-1).

use std::net::IpAddr;
use std::sync::Arc;

use crate::support::*;
use pfcp::message::{
    SessionEstablishmentRequest, SessionModificationRequest, SessionReportRequest, SessionReportResponse,
};
use pfcp::*;
use upf::interfaces::Interfaces;
use upf::n4::compile::compile;
use upf::n4::rules::urr::Now;
use upf::n4::session::Sessions;
use upf::plan::{Action, Container, Destination, Direction, Kind, MarkKind, Measure, Place, Plan};
use upf::tables::Tables;

fn at(ms: u64) -> Now {
    Now { ms, wall: NtpSeconds(3_900_000_000 + (ms / 1000) as u32) }
}

struct World {
    sessions: Sessions,
    config: Arc<upf::Config>,
}

impl World {
    fn new() -> World {
        let config = Arc::new(ethernet_config("gw0", "tap0"));
        let tables = Arc::new(Tables::new(&config));
        World { sessions: Sessions::new(Arc::clone(&config), tables, 7), config }
    }

    fn establish(&mut self, request: &SessionEstablishmentRequest) -> Result<u64, (Cause, Option<u16>)> {
        let established = self.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), at(0));
        let response = established.response;
        match response.up_f_seid {
            Some(f_seid) => Ok(f_seid.seid),
            None => Err((response.cause, response.offending_ie.map(|ie| ie.0))),
        }
    }

    fn modify(
        &mut self,
        seid: u64,
        request: &SessionModificationRequest,
        ms: u64,
    ) -> upf::n4::session::Modified {
        let modified = self.sessions.modify(seid, SMF.into(), request, at(ms)).unwrap();
        assert_eq!(modified.response.cause, Cause::ACCEPTED, "{:?}", modified.response);
        modified
    }

    fn plan(&self, seid: u64) -> Plan {
        compile(seid, &self.sessions.get(seid).unwrap().rules, &Interfaces::of(&self.config)).unwrap().0
    }

    fn count(&self, seid: u64, direction: Direction, bytes: usize) {
        self.sessions.get(seid).unwrap().compiled.count(direction, bytes);
    }

    /// What is reported about the session after an event at `ms`.
    fn reports(&mut self, seid: u64, ms: u64) -> Vec<UsageReport> {
        self.sessions.check(seid, at(ms)).map_or_else(Vec::new, |out| out.request.usage_reports)
    }

    /// Runs all timers until `ms` and returns what is reported, with the time.
    fn run(&mut self, ms: u64) -> Vec<(u64, SessionReportRequest)> {
        let mut out = Vec::new();
        for _ in 0..10_000 {
            let Some(next) = self.sessions.next_timeout().filter(|next| *next <= ms) else { return out };
            if let Some(Some(report)) = self.sessions.handle_timeout(at(next)) {
                out.push((next, report.request));
            }
        }
        panic!("timers never rest");
    }
}

fn with_far(change: impl FnOnce(&mut CreateFar)) -> SessionEstablishmentRequest {
    let mut request = establishment(1);
    change(&mut request.create_fars[0]);
    request
}

fn with_urr(change: impl FnOnce(&mut CreateUrr)) -> SessionEstablishmentRequest {
    let mut request = establishment(1);
    request.create_urrs[0] =
        CreateUrr { urr_id: UrrId(1), measurement_method: MeasurementMethod::VOLUM, ..Default::default() };
    change(&mut request.create_urrs[0]);
    request
}

fn volume(total: u64) -> Option<Volume> {
    Some(Volume { total: Some(total), ..Default::default() })
}

fn update_urr(change: impl FnOnce(&mut UpdateUrr)) -> SessionModificationRequest {
    let mut update = UpdateUrr { urr_id: UrrId(1), ..Default::default() };
    change(&mut update);
    SessionModificationRequest { update_urrs: vec![update], ..Default::default() }
}

fn parameters(far: &mut CreateFar) -> &mut ForwardingParameters {
    far.forwarding_parameters.as_mut().unwrap()
}

#[test]
fn forwarding_is_marked_duplicated_and_redirected_as_the_far_says() {
    let mut world = World::new();
    let seid = world.establish(&with_far(|far| {
        far.apply_action |= ApplyAction::DUPL;
        parameters(far).transport_level_marking = Some(TransportLevelMarking { tos: 0xb9, mask: 0xfc });
        far.duplicating_parameters = vec![DuplicatingParameters {
            destination_interface: DestinationInterface::LiFunction,
            outer_header_creation: Some(OuterHeaderCreation::gtpu(9, SMF.into())),
            ..Default::default()
        }];
    }));
    let plan = world.plan(seid.unwrap());
    let uplink = plan.pdrs.iter().find(|pdr| pdr.id == 1).unwrap();
    let Action::Forward(forward) = &uplink.action else { panic!("{uplink:?}") };
    assert_eq!((forward.to, forward.tos), (Destination::DataNetwork(N6 as u16), Some(0xb8)));
    let Destination::Tunnel(copy) = uplink.duplicates[0].to else { panic!("{uplink:?}") };
    assert_eq!((copy.teid, copy.peer.ip(), copy.container), (9, SMF.into(), Container::None));

    let redirected = |kind, text: &str| {
        let information = RedirectInformation { address_type: kind, server: text.into(), other_server: None };
        let mut world = World::new();
        let seid = world.establish(&with_far(|far| {
            parameters(far).redirect_information = Some(information);
        }))?;
        Ok::<_, (Cause, Option<u16>)>(world.plan(seid).pdrs[0].action.clone())
    };
    assert_eq!(
        redirected(2, "http://portal.example/"),
        Ok(Action::RedirectUrl("http://portal.example/".into()))
    );
    assert!(matches!(redirected(0, "10.201.0.9"), Ok(Action::RedirectAddress(IpAddr::V4(_), _))));
    let incorrect = Err((Cause::MANDATORY_IE_INCORRECT, Some(ie::REDIRECT_INFORMATION)));
    for (kind, text) in
        [(0, "fd00::1"), (1, "10.0.0.1"), (2, "http://a b"), (2, ""), (2, "x\r\nSet-Cookie: y")]
    {
        assert_eq!(redirected(kind, text), incorrect, "{kind} {text:?}");
    }
    assert_eq!(redirected(3, "sip:a@b"), Err((Cause::SERVICE_NOT_SUPPORTED, Some(ie::REDIRECT_INFORMATION))));
}

#[test]
fn what_a_far_cannot_do_is_refused() {
    type Case = (&'static str, fn(&mut CreateFar), Cause, u16);
    let cases: &[Case] = &[
        (
            "notify without buffering",
            |far| far.apply_action |= ApplyAction::NOCP,
            Cause::MANDATORY_IE_INCORRECT,
            ie::APPLY_ACTION,
        ),
        (
            "multicast",
            |far| far.apply_action |= ApplyAction::IPMA,
            Cause::SERVICE_NOT_SUPPORTED,
            ie::APPLY_ACTION,
        ),
        (
            "nothing",
            |far| far.apply_action = ApplyAction::default(),
            Cause::MANDATORY_IE_INCORRECT,
            ie::APPLY_ACTION,
        ),
        (
            "header enrichment",
            |far| parameters(far).header_enrichment = Some(HeaderEnrichment::default()),
            Cause::SERVICE_NOT_SUPPORTED,
            ie::HEADER_ENRICHMENT,
        ),
        (
            "policy",
            |far| parameters(far).forwarding_policy = Some(ForwardingPolicy("gold".into())),
            Cause::INVALID_FORWARDING_POLICY,
            ie::FORWARDING_POLICY,
        ),
        (
            "a tunnel of plain UDP",
            |far| {
                parameters(far).outer_header_creation = Some(OuterHeaderCreation {
                    description: OuterHeaderCreation::UDP_IPV4,
                    ipv4: Some(GNB),
                    port: Some(1),
                    ..Default::default()
                });
            },
            Cause::SERVICE_NOT_SUPPORTED,
            ie::OUTER_HEADER_CREATION,
        ),
        (
            "5G LAN",
            |far| parameters(far).destination_interface = DestinationInterface::FiveGvnInternal,
            Cause::SERVICE_NOT_SUPPORTED,
            ie::DESTINATION_INTERFACE,
        ),
    ];
    for (what, change, cause, ie) in cases {
        assert_eq!(World::new().establish(&with_far(change)), Err((*cause, Some(*ie))), "{what}");
    }
    let unknown_bar = with_far(|far| far.bar_id = Some(BarId(3)));
    assert_eq!(World::new().establish(&unknown_bar), Err((Cause::RULE_FAILURE, None)));
}

#[test]
fn outer_headers_are_removed_in_the_kinds_that_exist() {
    let with = |pdr: usize, kind| {
        let mut request = establishment(1);
        request.create_pdrs[pdr].outer_header_removal =
            Some(OuterHeaderRemoval { description: kind, extension_header_deletion: None });
        World::new().establish(&request).map(|_| ())
    };
    for kind in [0, 1, 6] {
        assert_eq!(with(0, kind), Ok(()));
    }
    for kind in [2, 3, 4, 5, 7, 8] {
        assert_eq!(with(0, kind), Err((Cause::SERVICE_NOT_SUPPORTED, Some(ie::OUTER_HEADER_REMOVAL))));
    }
    // Packets without tunnel have no outer header.
    assert_eq!(with(1, 0), Err((Cause::MANDATORY_IE_INCORRECT, Some(ie::OUTER_HEADER_REMOVAL))));
}

#[test]
fn gates_rates_and_marks_of_qers_reach_the_plan() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_qers[1].gbr = Some(BitRates { uplink_kbps: 0, downlink_kbps: 1 << 39 });
    request.create_qers[1].rqi = Some(Rqi::RQI);
    request.create_qers[1].paging_policy_indicator = Some(PagingPolicyIndicator(5));
    let seid = world.establish(&request).unwrap();
    let update = |id, change: fn(&mut UpdateQer)| {
        let mut update = UpdateQer { qer_id: QerId(id), ..Default::default() };
        change(&mut update);
        SessionModificationRequest { update_qers: vec![update], ..Default::default() }
    };
    world.modify(
        seid,
        &update(1, |qer| qer.mbr = Some(BitRates { uplink_kbps: 0, downlink_kbps: 1 << 39 })),
        0,
    );
    world.modify(
        seid,
        &update(1, |qer| qer.gate_status = Some(GateStatus { uplink: Gate::Closed, downlink: Gate::Open })),
        0,
    );
    let plan = world.plan(seid);
    let ambr = plan.qers[0];
    assert_eq!((ambr.uplink.open, ambr.downlink.open), (false, true));
    assert_eq!((ambr.uplink.mbr_kbps, ambr.downlink.mbr_kbps), (Some(0), Some(1 << 39)));
    assert_eq!((plan.qers[1].uplink.gbr_kbps, plan.qers[1].downlink.gbr_kbps), (None, Some(1 << 39)));
    let downlink = plan.pdrs.iter().find(|pdr| pdr.id == 2).unwrap();
    assert_eq!(
        (downlink.qers.clone(), downlink.qfi, downlink.rqi, downlink.ppi),
        (vec![0, 1], Some(QFI), true, Some(5))
    );
    // An update changes nothing that it does not name.
    world.modify(seid, &update(2, |qer| qer.rqi = Some(Rqi::default())), 0);
    let downlink = world.plan(seid).pdrs[1].clone();
    assert_eq!((downlink.rqi, downlink.ppi, downlink.qfi), (false, Some(5), Some(QFI)));
}

#[test]
fn a_traffic_endpoint_stands_for_what_its_pdrs_have_in_common() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_traffic_endpoints = vec![
        CreateTrafficEndpoint {
            id: TrafficEndpointId(1),
            f_teid: choose(1),
            ue_ip_address: ue_address(false),
            ..Default::default()
        },
        CreateTrafficEndpoint {
            id: TrafficEndpointId(2),
            ue_ip_address: ue_address(true),
            ..Default::default()
        },
    ];
    for (pdr, endpoint) in [(0, 1), (1, 2)] {
        let pdi = &mut request.create_pdrs[pdr].pdi;
        (pdi.f_teid, pdi.ue_ip_address) = (None, None);
        pdi.traffic_endpoint_id = Some(TrafficEndpointId(endpoint));
    }
    let response = world.sessions.establish(NodeId::Ipv4(GTPU), SMF.into(), request.clone(), at(0)).response;
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    let created = &response.created_traffic_endpoints;
    assert_eq!((created.len(), created[0].id), (1, TrafficEndpointId(1)));
    let Some(FTeid::Assigned { teid, .. }) = created[0].f_teid else { panic!("{created:?}") };
    let seid = response.up_f_seid.unwrap().seid;
    let plan = world.plan(seid);
    assert!(
        plan.arrivals.iter().any(|arrival| arrival.place == Place::Tunnel(teid) && !arrival.rules.is_empty())
    );
    assert_eq!(plan.native.ipv4, [UE_V4]);

    // A rule must not repeat what its traffic endpoint says.
    let mut twice = request.clone();
    twice.create_pdrs[0].pdi.f_teid = choose(3);
    assert_eq!(world.establish(&twice), Err((Cause::MANDATORY_IE_INCORRECT, Some(ie::F_TEID))));
    let mut unknown = request.clone();
    unknown.create_pdrs[0].pdi.traffic_endpoint_id = Some(TrafficEndpointId(9));
    assert_eq!(world.establish(&unknown), Err((Cause::RULE_FAILURE, None)));
    // Its removal removes its PDRs.
    let remove = SessionModificationRequest {
        remove_traffic_endpoints: vec![RemoveTrafficEndpoint { id: TrafficEndpointId(1) }],
        ..Default::default()
    };
    world.modify(seid, &remove, 0);
    assert!(world.plan(seid).pdrs.iter().all(|pdr| pdr.id != 1));
}

#[test]
fn framed_routes_belong_to_the_ue() {
    let mut world = World::new();
    let mut request = establishment(1);
    for pdr in [0, 1] {
        request.create_pdrs[pdr].pdi.framed_routes = vec!["192.0.2.0/24".into()];
        request.create_pdrs[pdr].pdi.framed_ipv6_routes = vec!["2001:db8::/32".into()];
    }
    let seid = world.establish(&request).unwrap();
    let plan = world.plan(seid);
    for address in ["192.0.2.77", "2001:db8:7::1", "10.45.0.2"] {
        assert!(plan.ue.contain(address.parse().unwrap()), "{address}");
        assert!(plan.native.contain(address.parse().unwrap()), "{address}");
    }
    for route in ["192.0.2.0/33", "nowhere", "2001:db8::/32"] {
        request.create_pdrs[0].pdi.framed_routes = vec![route.into()];
        let refused = World::new().establish(&request);
        assert_eq!(refused, Err((Cause::MANDATORY_IE_INCORRECT, Some(ie::FRAMED_ROUTE))), "{route}");
    }
}

#[test]
fn ethernet_sessions_select_by_address_tag_and_type() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.pdn_type = Some(PdnType::Ethernet);
    request.create_pdrs.truncate(2);
    let filter = EthernetPacketFilter {
        filter_id: Some(EthernetFilterId(5)),
        properties: Some(EthernetFilterProperties::BIDE),
        mac_addresses: vec![MacAddresses { destination: Some([2, 0, 0, 0, 0, 1]), ..Default::default() }],
        ethertype: Some(Ethertype(0x0800)),
        c_tag: Some(VlanTag { vid: Some(100), ..Default::default() }),
        ..Default::default()
    };
    for pdr in &mut request.create_pdrs {
        pdr.pdi.ue_ip_address = None;
        pdr.pdi.ethernet_pdu_session = Some(EthernetPduSessionInformation::ETHI);
    }
    request.create_pdrs[0].pdi.ethernet_filters = vec![filter];
    // The other direction names the same filter.
    request.create_pdrs[1].pdi.ethernet_filters =
        vec![EthernetPacketFilter { filter_id: Some(EthernetFilterId(5)), ..Default::default() }];
    let seid = world.establish(&request).unwrap();
    let plan = world.plan(seid);
    assert_eq!(plan.kind, Kind::Ethernet);
    assert!(plan.pdrs.iter().all(|pdr| !pdr.check_source));
    let filter_at = |native: bool| {
        let arrival =
            plan.arrivals.iter().find(|arrival| (arrival.place == Place::Native) == native).unwrap();
        arrival.rules[0].filter.ethernet.unwrap()
    };
    let (uplink, downlink) = (filter_at(false), filter_at(true));
    assert_eq!((uplink.destination.value(), uplink.ethertype), ([2, 0, 0, 0, 0, 1], Some(0x0800)));
    assert_eq!((downlink.source, downlink.c_tag.unwrap().mask()), (uplink.destination, 0xfff));
    request.create_pdrs[1].pdi.ethernet_filters[0].filter_id = Some(EthernetFilterId(6));
    assert_eq!(World::new().establish(&request), Err((Cause::RULE_FAILURE, None)));
}

#[test]
fn volume_thresholds_report_once_per_volume() {
    let mut world = World::new();
    let request = with_urr(|urr| {
        urr.reporting_triggers = ReportingTriggers::VOLTH;
        urr.volume_threshold = volume(1000);
    });
    let seid = world.establish(&request).unwrap();
    let mark = world.plan(seid).urrs[0].marks[0];
    assert_eq!((mark.measure, mark.kind, mark.at), (Measure::Total, MarkKind::Threshold, 1000));
    world.count(seid, Direction::Uplink, 600);
    assert_eq!(world.reports(seid, 1000), []);
    world.count(seid, Direction::Downlink, 500);
    let reports = world.reports(seid, 2000);
    assert_eq!((reports.len(), reports[0].trigger), (1, UsageReportTrigger::VOLTH));
    assert_eq!(reports[0].volume.unwrap().total, Some(1100));
    assert_eq!(reports[0].duration, None, "only volume is measured");
    assert_eq!(world.reports(seid, 2000), [], "an event that comes twice does no harm");
    assert_eq!(world.plan(seid).urrs[0].marks[0].at, 2100);
    // A new threshold below the present volume is reported at once.
    world.count(seid, Direction::Uplink, 300);
    let modified = world.modify(seid, &update_urr(|urr| urr.volume_threshold = volume(200)), 3000);
    assert_eq!(modified.report.unwrap().request.usage_reports[0].volume.unwrap().uplink, Some(300));
}

#[test]
fn an_exhausted_volume_quota_stops_traffic_until_there_is_a_new_one() {
    let mut world = World::new();
    let request = with_urr(|urr| {
        urr.reporting_triggers = ReportingTriggers::VOLQU | ReportingTriggers::VOLTH;
        urr.volume_threshold = volume(800);
        urr.volume_quota = volume(1000);
    });
    let seid = world.establish(&request).unwrap();
    world.count(seid, Direction::Uplink, 900);
    assert_eq!(world.reports(seid, 0)[0].trigger, UsageReportTrigger::VOLTH);
    // The report does not renew the quota.
    world.count(seid, Direction::Uplink, 100);
    let reports = world.reports(seid, 0);
    assert_eq!(
        (reports[0].trigger, reports[0].volume.unwrap().total),
        (UsageReportTrigger::VOLQU, Some(100))
    );
    assert!(world.plan(seid).pdrs.iter().all(|pdr| pdr.action == Action::Drop));
    world.modify(seid, &update_urr(|urr| urr.volume_quota = volume(500)), 0);
    let plan = world.plan(seid);
    assert!(plan.pdrs.iter().all(|pdr| pdr.action != Action::Drop));
    assert!(plan.urrs[0].marks.iter().any(|mark| (mark.kind, mark.at) == (MarkKind::Quota, 1500)));
    // A quota of zero stops packets at once, or another FAR applies if there is one for this case.
    let instead = SessionModificationRequest {
        create_fars: vec![forward(9, DestinationInterface::Access, Some((5, GNB)))],
        update_urrs: vec![UpdateUrr {
            urr_id: UrrId(1),
            volume_quota: volume(0),
            quota_far_id: Some(FarId(9)),
            ..Default::default()
        }],
        ..Default::default()
    };
    world.modify(seid, &instead, 0);
    assert!(world.plan(seid).pdrs.iter().all(
        |pdr| matches!(&pdr.action, Action::Forward(forward) if matches!(forward.to, Destination::Tunnel(header) if header.teid == 5))
    ));
}

#[test]
fn time_is_measured_from_the_first_packet_and_not_in_pauses() {
    let mut world = World::new();
    let request = with_urr(|urr| {
        urr.measurement_method = MeasurementMethod::DURAT;
        urr.reporting_triggers =
            ReportingTriggers::TIMTH | ReportingTriggers::START | ReportingTriggers::STOPT;
        urr.time_threshold = Some(Seconds(10));
        urr.inactivity_detection_time = Some(Seconds(4));
    });
    let seid = world.establish(&request).unwrap();
    assert_eq!(world.run(60_000), [], "nothing is measured before there is traffic");
    assert_eq!(world.plan(seid).urrs[0].marks[0].at, 1, "the first octet is waited for");
    world.count(seid, Direction::Uplink, 10);
    let reports = world.reports(seid, 60_000);
    assert_eq!(reports[0].trigger, UsageReportTrigger::START);
    let stopped = world.run(100_000);
    assert_eq!(stopped.len(), 1, "{stopped:?}");
    let report = &stopped[0].1.usage_reports[0];
    assert_eq!(report.trigger, UsageReportTrigger::STOPT);
    assert!((64_000..=64_500).contains(&stopped[0].0), "{}", stopped[0].0);
    // 10 s of continuous traffic cause a report.
    let mut reported = Vec::new();
    for second in 0..12 {
        world.count(seid, Direction::Uplink, 10);
        reported.extend(world.reports(seid, 200_000 + second * 1000));
        reported.extend(
            world.run(200_999 + second * 1000).into_iter().flat_map(|(_, request)| request.usage_reports),
        );
    }
    let triggers: Vec<_> = reported.iter().map(|report| report.trigger).collect();
    assert_eq!(triggers, [UsageReportTrigger::START, UsageReportTrigger::TIMTH]);
    assert_eq!(reported[1].duration, Some(Seconds(10)));
}

#[test]
fn a_time_quota_runs_out_without_an_event() {
    let mut world = World::new();
    let request = with_urr(|urr| {
        urr.measurement_method = MeasurementMethod::DURAT;
        urr.reporting_triggers = ReportingTriggers::TIMQU;
        urr.time_quota = Some(Seconds(5));
        urr.measurement_information = Some(MeasurementInformation::ISTM);
    });
    let seid = world.establish(&request).unwrap();
    let out = world.run(20_000);
    assert_eq!((out.len(), out[0].0), (1, 5000));
    assert_eq!(out[0].1.usage_reports[0].trigger, UsageReportTrigger::TIMQU);
    assert!(world.plan(seid).pdrs.iter().all(|pdr| pdr.action == Action::Drop));
}

#[test]
fn events_are_starts_of_traffic() {
    let mut world = World::new();
    let request = with_urr(|urr| {
        urr.measurement_method = MeasurementMethod::EVENT;
        urr.reporting_triggers = ReportingTriggers::EVETH | ReportingTriggers::EVEQU;
        urr.event_threshold = Some(Events(2));
        urr.event_quota = Some(Events(3));
        urr.inactivity_detection_time = Some(Seconds(2));
    });
    let seid = world.establish(&request).unwrap();
    let mut triggers = Vec::new();
    for n in 0..3u64 {
        world.count(seid, Direction::Downlink, 100);
        for report in world.reports(seid, n * 10_000) {
            triggers.push((report.trigger, report.event_times.len()));
        }
        world.run(n * 10_000 + 9000);
    }
    assert_eq!(triggers, [(UsageReportTrigger::EVETH, 2), (UsageReportTrigger::EVEQU, 1)]);
    assert!(world.plan(seid).pdrs.iter().all(|pdr| pdr.action == Action::Drop));
}

#[test]
fn periodic_reports_come_in_time_and_end_after_their_number() {
    let mut world = World::new();
    let request = with_urr(|urr| {
        urr.reporting_triggers = ReportingTriggers::PERIO;
        urr.measurement_period = Some(Seconds(10));
        urr.number_of_reports = Some(ReportCount(3));
    });
    let seid = world.establish(&request).unwrap();
    world.count(seid, Direction::Uplink, 70);
    let out = world.run(100_000);
    let times: Vec<u64> = out.iter().map(|(ms, _)| *ms).collect();
    assert_eq!(times, [10_000, 20_000, 30_000]);
    let sums: Vec<_> = out.iter().map(|(_, r)| r.usage_reports[0].volume.unwrap().total.unwrap()).collect();
    assert_eq!(sums, [70, 0, 0]);
    assert_eq!(out[2].1.usage_reports[0].sequence, UrSeqn(2));
}

#[test]
fn linked_rules_report_together_and_monitoring_times_split_reports() {
    let mut world = World::new();
    let mut request = with_urr(|urr| {
        urr.reporting_triggers = ReportingTriggers::VOLTH;
        urr.volume_threshold = volume(100);
    });
    request.create_urrs.push(CreateUrr {
        urr_id: UrrId(2),
        measurement_method: MeasurementMethod::VOLUM,
        reporting_triggers: ReportingTriggers::LIUSA,
        linked_urr_ids: vec![UrrId(1)],
        monitoring_time: Some(at(5000).wall),
        ..Default::default()
    });
    for pdr in &mut request.create_pdrs {
        pdr.urr_ids.push(UrrId(2));
    }
    let seid = world.establish(&request).unwrap();
    world.count(seid, Direction::Uplink, 30);
    assert_eq!(world.run(6000), []);
    world.count(seid, Direction::Uplink, 80);
    let reports = world.reports(seid, 7000);
    let said: Vec<_> = reports
        .iter()
        .map(|r| (r.urr_id.0, r.trigger, r.volume.unwrap().total.unwrap(), r.usage_information))
        .collect();
    assert_eq!(
        said,
        [
            (1, UsageReportTrigger::VOLTH, 110, None),
            (2, UsageReportTrigger::LIUSA, 30, Some(UsageInformation::BEF)),
            (2, UsageReportTrigger::LIUSA, 80, Some(UsageInformation::AFT)),
        ]
    );
    let unknown = UpdateUrr { urr_id: UrrId(2), linked_urr_ids: vec![UrrId(8)], ..Default::default() };
    let request = SessionModificationRequest { update_urrs: vec![unknown], ..Default::default() };
    let refused = world.sessions.modify(seid, SMF.into(), &request, at(8000)).unwrap().response;
    assert_eq!(refused.failed_rule_id, Some(FailedRuleId::Urr(2)));
}

#[test]
fn what_a_urr_cannot_do_is_refused() {
    type Case = (fn(&mut CreateUrr), Cause, u16);
    let cases: &[Case] = &[
        (
            |urr| urr.measurement_method = MeasurementMethod::default(),
            Cause::MANDATORY_IE_INCORRECT,
            ie::MEASUREMENT_METHOD,
        ),
        (
            |urr| urr.reporting_triggers = ReportingTriggers::ENVCL,
            Cause::SERVICE_NOT_SUPPORTED,
            ie::REPORTING_TRIGGERS,
        ),
        (
            |urr| urr.measurement_information = Some(MeasurementInformation::MBQE),
            Cause::SERVICE_NOT_SUPPORTED,
            ie::MEASUREMENT_INFORMATION,
        ),
    ];
    for (change, cause, ie) in cases {
        assert_eq!(World::new().establish(&with_urr(change)), Err((*cause, Some(*ie))));
    }
}

#[test]
fn downlink_data_is_told_once_after_the_delay_of_the_bar() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_bar = Some(CreateBar {
        bar_id: BarId(1),
        notification_delay: Some(NotificationDelay(4)),
        suggested_packets: Some(PacketCount(7)),
    });
    request.create_fars[1].apply_action = ApplyAction::BUFF | ApplyAction::NOCP;
    request.create_fars[1].bar_id = Some(BarId(1));
    let seid = world.establish(&request).unwrap();
    let plan = world.plan(seid);
    assert_eq!(
        (plan.buffer_packets, plan.pdrs[1].notify, &plan.pdrs[1].action),
        (Some(7), true, &Action::Buffer)
    );
    assert_eq!(world.sessions.downlink_data(seid, 2, Default::default(), at(1000)), None);
    let told = world.run(5000);
    assert_eq!((told.len(), told[0].0), (1, 1200));
    let report = told[0].1.downlink_data_report.as_ref().unwrap();
    assert_eq!((told[0].1.report_type, report.pdr_ids.clone()), (ReportType::DLDR, vec![PdrId(2)]));
    assert_eq!(report.service_information[0].qfi, Some(Qfi(QFI)));
    assert_eq!(world.sessions.downlink_data(seid, 2, Default::default(), at(9000)), None, "told already");
    // The answer may change the BAR.
    let response = SessionReportResponse {
        cause: Cause::ACCEPTED,
        update_bar: Some(UpdateBarInReportResponse {
            bar_id: BarId(1),
            suggested_packet_count: Some(SuggestedPacketCount(300)),
            notification_delay: Some(NotificationDelay(0)),
            ..Default::default()
        }),
        flags: Some(SrRspFlags::DROBU),
        ..Default::default()
    };
    assert!(world.sessions.report_answered(seid, &response), "what is buffered is to be dropped");
    assert_eq!(world.plan(seid).buffer_packets, Some(300));
    // After a change of rules the next packet is reported again, and without delay.
    world.modify(seid, &SessionModificationRequest::default(), 10_000);
    assert!(world.sessions.downlink_data(seid, 2, Default::default(), at(10_000)).is_some());
}

#[test]
fn an_idle_user_plane_is_reported_once_per_pause() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.user_plane_inactivity_timer = Some(Seconds(8));
    let seid = world.establish(&request).unwrap();
    world.count(seid, Direction::Uplink, 1);
    let told = world.run(100_000);
    assert_eq!((told.len(), told[0].1.report_type), (1, ReportType::UPIR));
    assert!((8000..=10_000).contains(&told[0].0), "{}", told[0].0);
}

#[test]
fn too_many_rules_are_answered_and_change_nothing() {
    let mut world = World::new();
    let seid = world.establish(&establishment(1)).unwrap();
    let create = |ids: std::ops::Range<u32>| SessionModificationRequest {
        create_fars: ids.map(|id| forward(id, DestinationInterface::Core, None)).collect(),
        ..Default::default()
    };
    // With these the session has room for one more FAR; the next request has two.
    world.modify(seid, &create(4..65_536), 0);
    let answer = world.sessions.modify(seid, SMF.into(), &create(65_536..65_538), at(0)).unwrap().response;
    assert_eq!((answer.cause, answer.failed_rule_id), (Cause::NO_RESOURCES, Some(FailedRuleId::Far(65_537))));
    assert_eq!(world.sessions.get(seid).unwrap().rules.fars.len(), 65_535);
    assert!(world.sessions.delete(seid, SMF.into(), at(0)).is_some());
}

/// Steering over several accesses (ATSSS) is not supported: its rules are refused, and the answer names them (TS 29.244
/// §8.2.25).
#[test]
fn multi_access_rules_are_a_service_that_is_not_offered() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_mars.push("any".into());
    assert_eq!(world.establish(&request), Err((Cause::SERVICE_NOT_SUPPORTED, Some(ie::CREATE_MAR))));
    let mut request = establishment(1);
    (request.create_pdrs[0].far_id, request.create_pdrs[0].mar_id) = (None, Some(MarId(1)));
    assert_eq!(world.establish(&request), Err((Cause::SERVICE_NOT_SUPPORTED, Some(ie::MAR_ID))));
    // As they come over N4.
    let mut octets = Vec::new();
    Message::from(request.clone()).encode(0, 1, &mut octets).unwrap();
    let (_, message) = Message::decode(&octets).unwrap();
    assert_eq!(message, Message::from(request));
    let seid = world.establish(&establishment(1)).unwrap();
    for (request, offending) in [
        (SessionModificationRequest { create_mars: vec!["x".into()], ..Default::default() }, ie::CREATE_MAR),
        (SessionModificationRequest { update_mars: vec!["x".into()], ..Default::default() }, ie::UPDATE_MAR),
        (SessionModificationRequest { remove_mars: vec!["x".into()], ..Default::default() }, ie::REMOVE_MAR),
    ] {
        let answer = world.sessions.modify(seid, SMF.into(), &request, at(0)).unwrap().response;
        let ie = answer.offending_ie.map(|ie| ie.0);
        assert_eq!((answer.cause, ie), (Cause::SERVICE_NOT_SUPPORTED, Some(offending)));
    }
}

#[test]
fn a_set_of_sessions_goes_together() {
    let mut world = World::new();
    let set = |csid| FqCsid { node: CsidNode::Ipv4(SMF), csids: vec![csid], node_type: None };
    for n in 0..6u8 {
        let mut request = establishment(u64::from(n) + 1);
        request.fq_csids = vec![set(u16::from(n % 3))];
        for pdr in &mut request.create_pdrs {
            if let Some(ue) = &mut pdr.pdi.ue_ip_address {
                (ue.ipv4, ue.ipv6) = (Some([10, 45, 3, n].into()), None);
            }
        }
        world.establish(&request).unwrap();
    }
    assert_eq!(world.sessions.remove_sets(SMF.into(), &[set(1), set(7)]), 2);
    assert_eq!(world.sessions.remove_sets(GNB.into(), &[set(2)]), 0, "another CP function's");
    assert_eq!(world.sessions.count(), 4);
}

/// Downlink Data Service Information would be empty without paging policy and QFI, and is left out (§8.2.27).
#[test]
fn service_information_that_says_nothing_is_left_out() {
    let mut world = World::new();
    let mut request = establishment(1);
    request.create_fars[1].apply_action = ApplyAction::BUFF | ApplyAction::NOCP;
    request.create_pdrs[1].qer_ids = vec![QerId(1)];
    let seid = world.establish(&request).unwrap();
    let told = world.sessions.downlink_data(seid, 2, Default::default(), at(0)).unwrap();
    let report = told.request.downlink_data_report.as_ref().unwrap();
    assert_eq!((report.pdr_ids.clone(), report.service_information.clone()), (vec![PdrId(2)], vec![]));
    let mut octets = Vec::new();
    Message::from(told.request).encode(1, 1, &mut octets).unwrap();
    // Downlink Data Service Information has type 45.
    assert!(!octets.windows(4).any(|ie| ie[..2] == [0, 45]), "{octets:02x?}");
}

/// Bits of later releases are ignored, and their octet is kept (§8.1.1).
#[test]
fn spare_bits_of_apply_action_are_ignored() {
    let octets = [0, 44, 0, 2, 0x02, 0xe0];
    let mut request = establishment(1);
    let mut encoded = Vec::new();
    request.create_fars[0].apply_action = ApplyAction(0xe002);
    Message::from(request.clone()).encode(0, 1, &mut encoded).unwrap();
    assert!(encoded.windows(6).any(|ie| ie == octets), "{encoded:02x?}");
    assert!(World::new().establish(&request).is_ok());
}
