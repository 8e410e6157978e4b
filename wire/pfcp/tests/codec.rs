//! Codec against messages built by scapy, against damaged bytes, and against itself.

use pfcp::message::*;
use pfcp::*;
use proptest::prelude::*;

const VECTORS: &str = include_str!("scapy.txt");

fn vector(name: &str) -> Vec<u8> {
    let line = VECTORS.lines().find(|line| line.split(' ').next() == Some(name)).expect(name);
    let hex = line.split(' ').nth(1).expect("octets after the name");
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect()
}

fn names() -> Vec<&'static str> {
    let names: Vec<_> =
        VECTORS.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split(' ').next()).collect();
    assert!(names.len() >= 15);
    names
}

fn encode(header: &Header, message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(header.seid.unwrap_or(0), header.sequence, &mut out).expect("fits a datagram");
    out
}

#[test]
fn every_foreign_message_reads_and_writes_back_identically() {
    for name in names() {
        let bytes = vector(name);
        let (header, message) = Message::decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(encode(&header, &message), bytes, "{name}");
    }
}

#[test]
fn establishment_means_what_scapy_said() {
    let (header, message) = Message::decode(&vector("session_establishment_request")).unwrap();
    assert_eq!((header.seid, header.sequence), (Some(0), 2));
    let Message::SessionEstablishmentRequest(request) = message else { panic!("{message:?}") };
    assert_eq!(request.cp_f_seid, FSeid::new(0x1122_3344_5566_7788, "127.0.0.4".parse().unwrap()));
    assert_eq!(request.create_pdrs.len(), 2);
    let up = &request.create_pdrs[0];
    assert_eq!(up.pdi.f_teid, Some(FTeid::Choose { ipv4: true, ipv6: false, id: Some(5) }));
    assert_eq!(up.pdi.qfis, [Qfi(9)]);
    assert_eq!(up.outer_header_removal.unwrap().description, OuterHeaderRemoval::GTPU_UDP_IPV4);
    let filter = &up.pdi.sdf_filters[0];
    assert_eq!(
        filter.flow_description.as_ref().unwrap().as_str(),
        Some("permit out ip from any to assigned")
    );
    assert_eq!(filter.tos_traffic_class, Some((0x28, 0xfc)));
    assert_eq!(filter.security_parameter_index, Some(0x0102_0304));
    assert_eq!(filter.flow_label, Some(0xabcde));
    assert_eq!(filter.filter_id, Some(7));
    let ue = request.create_pdrs[1].pdi.ue_ip_address.unwrap();
    assert!(ue.destination);
    assert_eq!(ue.ipv4, Some("10.45.0.2".parse().unwrap()));
    let forwarding = request.create_fars[1].forwarding_parameters.as_ref().unwrap();
    let outer = forwarding.outer_header_creation.unwrap();
    assert_eq!(outer, OuterHeaderCreation::gtpu(0xdead_beef, "10.200.0.2".parse().unwrap()));
    assert_eq!(forwarding.transport_level_marking, Some(TransportLevelMarking { tos: 0xb8, mask: 0xfc }));
    let qer = &request.create_qers[0];
    assert_eq!(qer.gate_status, GateStatus { uplink: Gate::Open, downlink: Gate::Closed });
    assert_eq!(qer.mbr, Some(BitRates { uplink_kbps: 1_000_000, downlink_kbps: 2_000_000 }));
    let urr = &request.create_urrs[0];
    assert_eq!(
        urr.reporting_triggers,
        ReportingTriggers::PERIO | ReportingTriggers::VOLTH | ReportingTriggers::TIMQU
    );
    assert_eq!(urr.volume_quota, Some(Volume { total: Some(3), uplink: Some(1), downlink: Some(2) }));
    assert_eq!(request.user_plane_inactivity_timer, Some(Seconds(30)));
    assert_eq!(request.dnn, Some(ApnDnn("internet.mnc070.mcc999.gprs".into())));
}

#[test]
fn modification_and_reports_mean_what_scapy_said() {
    let (_, message) = Message::decode(&vector("session_modification_request")).unwrap();
    let Message::SessionModificationRequest(request) = message else { panic!("{message:?}") };
    assert_eq!(request.remove_pdrs, [RemovePdr { pdr_id: PdrId(3) }]);
    assert_eq!(request.remove_bar, Some(RemoveBar { bar_id: BarId(6) }));
    let far = &request.update_fars[0];
    assert_eq!(far.apply_action, Some(ApplyAction::BUFF | ApplyAction::NOCP));
    let forwarding = far.update_forwarding_parameters.as_ref().unwrap();
    assert_eq!(forwarding.sm_req_flags, Some(SmReqFlags::SNDEM));
    assert_eq!(request.flags, Some(SmReqFlags::DROBU | SmReqFlags::QAURR));
    assert_eq!(request.query_urrs, [QueryUrr { urr_id: UrrId(1) }]);

    let (_, message) = Message::decode(&vector("session_report_request")).unwrap();
    let Message::SessionReportRequest(report) = message else { panic!("{message:?}") };
    let data = report.downlink_data_report.unwrap();
    assert_eq!(data.pdr_ids, [PdrId(2)]);
    assert_eq!(data.service_information[0].qfi, Some(Qfi(9)));
    assert_eq!(report.usage_reports[0].trigger, UsageReportTrigger::IMMER);
    assert_eq!(report.usage_reports[0].volume.unwrap().downlink, Some(20));
    assert_eq!(report.error_indication_report.unwrap().remote_f_teids.len(), 1);

    let (_, message) = Message::decode(&vector("session_establishment_rejected")).unwrap();
    let Message::SessionEstablishmentResponse(response) = message else { panic!("{message:?}") };
    assert_eq!((response.cause, response.offending_ie), (Cause::MANDATORY_IE_MISSING, Some(OffendingIe(2))));
}

#[test]
fn load_ethernet_addresses_and_session_sets_mean_what_scapy_said() {
    let (_, message) = Message::decode(&vector("session_deletion_response_with_load")).unwrap();
    let Message::SessionDeletionResponse(response) = message else { panic!("{message:?}") };
    assert_eq!(response.load_control, Some(LoadControl { sequence: ControlSequence(7), metric: Metric(40) }));
    let overload = response.overload_control.unwrap();
    assert_eq!((overload.reduction, overload.validity.seconds()), (Metric(10), Some(180)));
    assert_eq!(overload.flags, Some(OciFlags::AOCI));

    let (_, message) = Message::decode(&vector("session_report_request_ethernet")).unwrap();
    let Message::SessionReportRequest(request) = message else { panic!("{message:?}") };
    let traffic = request.usage_reports[0].ethernet_traffic.as_ref().unwrap();
    assert_eq!(traffic.detected[0].addresses, [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]]);
    let removed = &traffic.removed[0];
    assert_eq!((removed.c_tag.unwrap().vid, removed.s_tag), (Some(0x101), None));

    let (_, message) = Message::decode(&vector("session_modification_monitoring")).unwrap();
    let Message::SessionModificationRequest(request) = message else { panic!("{message:?}") };
    let urr = &request.create_urrs[0];
    assert_eq!(urr.additional_monitoring_times[0].monitoring_time, NtpSeconds(3_900_000_100));

    let (_, message) = Message::decode(&vector("session_set_deletion_request")).unwrap();
    let Message::SessionSetDeletionRequest(request) = message else { panic!("{message:?}") };
    let set = FqCsid { node: CsidNode::Ipv4([127, 0, 0, 4].into()), csids: vec![9], node_type: Some(2) };
    assert!(request.fq_csids[0].meets(&set));
    assert!(!request.fq_csids[0].meets(&FqCsid { csids: vec![8], ..set }));
}

#[test]
fn truncation_at_every_byte_is_an_error_never_a_panic() {
    for name in names() {
        let bytes = vector(name);
        for cut in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..cut]), Err(DecodeError::Truncated), "{name} cut at {cut}");
            // The same with a header whose length agrees: the IEs themselves are cut.
            if cut >= 16 {
                let mut shorter = bytes[..cut].to_vec();
                shorter[2..4].copy_from_slice(&((cut - 4) as u16).to_be_bytes());
                let _ = Message::decode(&shorter);
            }
        }
    }
}

#[test]
fn any_flipped_bit_is_survived() {
    for name in names() {
        let bytes = vector(name);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok((header, message)) = Message::decode(&flipped) {
                // What we understood of it, we can also write and understand again.
                let again = encode(&header, &message);
                assert_eq!(Message::decode(&again).map(|(_, m)| m), Ok(message), "{name} bit {bit}");
            }
        }
    }
}

/// An IE by hand.
fn ie(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = kind.to_be_bytes().to_vec();
    out.extend((value.len() as u16).to_be_bytes());
    out.extend(value);
    out
}

#[test]
fn faults_name_cause_and_offending_ie() {
    use MessageType::*;
    let node = ie(ie::NODE_ID, &[0, 127, 0, 0, 4]);
    let seid = ie(ie::F_SEID, &[2, 0, 0, 0, 0, 0, 0, 0, 1, 127, 0, 0, 4]);
    let check = |kind, ies: Vec<Vec<u8>>, error: DecodeError, cause| {
        let got = Message::decode_ies(kind, &ies.concat()).unwrap_err();
        assert_eq!(got, error);
        assert_eq!(got.cause(), Some(cause));
        assert!(got.offending_ie().is_some());
    };
    check(
        SessionEstablishmentRequest,
        vec![node.clone()],
        DecodeError::MandatoryMissing(ie::F_SEID),
        Cause::MANDATORY_IE_MISSING,
    );
    // Inside a grouped IE: the Create PDR lacks its PDI.
    let pdr = ie(ie::CREATE_PDR, &[ie(ie::PDR_ID, &[0, 1]), ie(ie::PRECEDENCE, &[0, 0, 0, 1])].concat());
    check(
        SessionEstablishmentRequest,
        vec![node.clone(), seid.clone(), pdr],
        DecodeError::MandatoryMissing(ie::PDI),
        Cause::MANDATORY_IE_MISSING,
    );
    check(
        HeartbeatRequest,
        vec![ie(ie::RECOVERY_TIME_STAMP, &[1, 2, 3])],
        DecodeError::InvalidLength(ie::RECOVERY_TIME_STAMP),
        Cause::INVALID_LENGTH,
    );
    check(
        SessionEstablishmentRequest,
        vec![ie(ie::NODE_ID, &[9, 127, 0, 0, 4]), seid],
        DecodeError::Incorrect(ie::NODE_ID),
        Cause::MANDATORY_IE_INCORRECT,
    );
    // An IE that reaches beyond the message.
    let mut long = node;
    long[3] = 200;
    check(
        AssociationReleaseRequest,
        vec![long],
        DecodeError::InvalidLength(ie::NODE_ID),
        Cause::INVALID_LENGTH,
    );
}

#[test]
fn unknown_and_vendor_ies_are_skipped_and_repetitions_ignored() {
    let stamp = |n: u8| ie(ie::RECOVERY_TIME_STAMP, &[0, 0, 0, n]);
    let ies =
        [ie(0x7000, &[1, 2, 3]), stamp(1), ie(0x8001, &[0, 10, 9, 9]), stamp(2), ie(9999, &[])].concat();
    let message = Message::decode_ies(MessageType::HeartbeatRequest, &ies).unwrap();
    assert_eq!(message, HeartbeatRequest { recovery_time_stamp: NtpSeconds(1) }.into());
    // A later release made the IE longer: what we know of it counts.
    let longer = ie(ie::RECOVERY_TIME_STAMP, &[0, 0, 0, 7, 1, 2]);
    let message = Message::decode_ies(MessageType::HeartbeatRequest, &longer).unwrap();
    assert_eq!(message, HeartbeatRequest { recovery_time_stamp: NtpSeconds(7) }.into());
}

#[test]
fn a_message_too_long_for_a_datagram_is_not_made() {
    let request =
        SessionReportRequest { usage_reports: vec![UsageReport::default(); 4000], ..Default::default() };
    let mut out = vec![1, 2, 3];
    assert!(matches!(Message::from(request).encode(1, 1, &mut out), Err(EncodeError::TooLong(_))));
    assert_eq!(out, [1, 2, 3]);
}

fn short() -> impl Strategy<Value = ShortBytes> {
    prop::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| bytes.as_slice().into())
}

fn f_teid() -> impl Strategy<Value = FTeid> {
    prop_oneof![
        (any::<u32>(), any::<[u8; 4]>(), prop::option::of(any::<[u8; 16]>())).prop_map(|(teid, v4, v6)| {
            FTeid::Assigned { teid, ipv4: Some(v4.into()), ipv6: v6.map(Into::into) }
        }),
        (any::<bool>(), prop::option::of(any::<u8>())).prop_map(|(both, id)| FTeid::Choose {
            ipv4: true,
            ipv6: both,
            id
        }),
    ]
}

fn ue() -> impl Strategy<Value = UeIpAddress> {
    (
        prop::option::of(any::<[u8; 4]>()),
        prop::option::of(any::<[u8; 16]>()),
        any::<[bool; 3]>(),
        prop::option::of(0u8..=128),
    )
        .prop_map(|(v4, v6, [destination, choose_ipv4, choose_ipv6], ipv6_prefix_length)| UeIpAddress {
            ipv4: v4.map(Into::into),
            ipv6: v6.map(Into::into),
            destination,
            ipv6_delegation_bits: ipv6_prefix_length.map(|n| n / 3),
            ipv6_prefix_length,
            choose_ipv4,
            choose_ipv6,
        })
}

fn filter() -> impl Strategy<Value = SdfFilter> {
    (
        prop::option::of("[ -~]{0,90}"),
        any::<Option<(u8, u8)>>(),
        any::<Option<u32>>(),
        prop::option::of(0u32..1 << 20),
        any::<Option<u32>>(),
    )
        .prop_map(|(text, tos_traffic_class, security_parameter_index, flow_label, filter_id)| {
            SdfFilter {
                flow_description: text.map(|text| text.as_str().into()),
                tos_traffic_class,
                security_parameter_index,
                flow_label,
                filter_id,
            }
        })
}

fn pdr() -> impl Strategy<Value = CreatePdr> {
    let pdi = (
        prop::option::of(f_teid()),
        prop::option::of(short()),
        prop::option::of(ue()),
        prop::collection::vec(filter(), 0..4),
        prop::collection::vec(0u8..64, 0..3),
    );
    (
        any::<(u16, u32, Option<u32>)>(),
        pdi,
        prop::collection::vec(any::<u32>(), 0..4),
        prop::option::of(0u8..=8),
    )
        .prop_map(
            |(
                (id, precedence, far),
                (f_teid, network_instance, ue_ip_address, sdf_filters, qfis),
                ids,
                removal,
            )| CreatePdr {
                pdr_id: PdrId(id),
                precedence: Precedence(precedence),
                pdi: Pdi {
                    source_interface: SourceInterface::Core,
                    f_teid,
                    network_instance,
                    ue_ip_address,
                    sdf_filters,
                    qfis: qfis.into_iter().map(Qfi).collect(),
                    ..Default::default()
                },
                outer_header_removal: removal.map(|description| OuterHeaderRemoval {
                    description,
                    extension_header_deletion: Some(description),
                }),
                far_id: far.map(FarId),
                urr_ids: ids.iter().copied().map(UrrId).collect(),
                qer_ids: ids.into_iter().map(QerId).collect(),
                ..Default::default()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..Default::default() })]

    #[test]
    fn establishment_round_trips(
        pdrs in prop::collection::vec(pdr(), 0..5),
        instance in short(),
        seid in any::<u64>(), sequence in 0u32..1 << 24,
        tag in any::<(Option<bool>, u16)>(),
    ) {
        let message: Message = SessionEstablishmentRequest {
            create_pdrs: pdrs,
            cp_f_seid: FSeid::new(seid, "::1".parse().unwrap()),
            create_fars: vec![CreateFar {
                apply_action: ApplyAction(u64::from(tag.1)),
                forwarding_parameters: Some(Box::new(ForwardingParameters {
                    network_instance: Some(instance),
                    ..Default::default()
                })),
                ..Default::default()
            }],
            ..Default::default()
        }.into();
        let mut out = Vec::new();
        message.encode(seid, sequence, &mut out).unwrap();
        let (header, back) = Message::decode(&out).unwrap();
        prop_assert_eq!((header.seid, header.sequence), (Some(seid), sequence));
        prop_assert_eq!(back, message);
    }

    #[test]
    fn ethernet_filters_round_trip(mac in any::<[Option<[u8; 6]>; 4]>(), pcp in prop::option::of(0u8..8), dei in any::<Option<bool>>(), vid in prop::option::of(0u16..4096)) {
        let tag = VlanTag { pcp, dei, vid };
        let [source, destination, upper_source, upper_destination] = mac;
        let pdi = Pdi {
            ethernet_filters: vec![EthernetPacketFilter {
                mac_addresses: vec![MacAddresses { source, destination, upper_source, upper_destination }],
                c_tag: Some(tag), s_tag: Some(tag), ethertype: Some(Ethertype(0x86dd)),
                ..Default::default()
            }],
            ..Default::default()
        };
        let mut out = Vec::new();
        codec::Value::encode(&pdi, &mut out);
        prop_assert_eq!(<Pdi as codec::Value>::decode(&out), Ok(pdi));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 1u8..58) {
        let _ = Message::decode(&bytes);
        if let Some(kind) = MessageType::from_code(kind) {
            let _ = Message::decode_ies(kind, &bytes);
        }
    }
}

/// Lists are as long as they are, whatever room was made for them at first, and hold no room for what did not come.
#[test]
fn long_lists_are_read_whole_and_their_room_is_what_they_need() {
    for count in [1, 3, 64, 65, 300] {
        let create_pdrs =
            (0..count).map(|id| CreatePdr { pdr_id: PdrId(id), ..Default::default() }).collect();
        let cp_f_seid = FSeid::new(1, "10.0.0.5".parse().unwrap());
        let request = SessionEstablishmentRequest { cp_f_seid, create_pdrs, ..Default::default() };
        let message: Message = request.into();
        let mut out = Vec::new();
        message.encode(1, 1, &mut out).unwrap();
        let (_, back) = Message::decode(&out).unwrap();
        assert_eq!(back, message);
        let Message::SessionEstablishmentRequest(request) = back else { panic!("{back:?}") };
        assert!(count > 64 || request.create_pdrs.capacity() == usize::from(count), "{count}");
    }
    // The headers promise many; the second is broken.
    let mut ies = vec![0, 29, 0, 4, 0, 0, 0, 9];
    ies.extend([0, 1, 0, 0].repeat(10_000));
    assert!(Message::decode_ies(MessageType::SessionEstablishmentRequest, &ies).is_err());
}

/// Not a timed test: prints figures, `cargo test --release -p pfcp -- --ignored --nocapture measure`.
#[test]
#[ignore = "prints a measurement, asserts nothing"]
#[allow(clippy::disallowed_methods)]
fn measure() {
    let bytes = vector("session_establishment_request");
    let (header, message) = Message::decode(&bytes).unwrap();
    let mut out = Vec::with_capacity(2048);
    const N: u32 = 1_000_000;
    for _ in 0..3 {
        let start = std::time::Instant::now();
        for _ in 0..N {
            out.clear();
            message.encode(1, header.sequence, &mut out).unwrap();
            std::hint::black_box(&out);
        }
        let encode = start.elapsed() / N;
        let start = std::time::Instant::now();
        for _ in 0..N {
            std::hint::black_box(Message::decode(std::hint::black_box(&bytes))).unwrap();
        }
        println!("{} octets: encode {encode:?}, decode {:?}", bytes.len(), start.elapsed() / N);
    }
}

/// A Node ID names somebody: of a domain name there is at least one label (§8.2.38).
#[test]
fn a_node_id_without_name_is_refused() {
    for name in [&[2][..], &[2, 0]] {
        let ie = [&[0, 60, 0, name.len() as u8][..], name].concat();
        let octets =
            [&[0x20, 5, 0, (ie.len() + 12) as u8, 0, 0, 1, 0][..], &ie, &[0, 96, 0, 4, 0, 0, 0, 1]].concat();
        let refused = Message::decode(&octets).map(|_| ());
        assert_eq!(refused, Err(DecodeError::Incorrect(ie::NODE_ID)), "{name:?}");
    }
}
