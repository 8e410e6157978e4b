//! The codec as a whole: round trips, the standard's object sets, damaged input, §10 answers.
//!
//! `oxirush_ngap` is used here, and here only, to look at PDUs from outside our own code.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

mod common;

use bytes::Bytes;
use common::*;
use ngap::cause::Protocol;
use ngap::transfer::*;
use ngap::*;
use oxirush_ngap::ngap::{NGAP_PDU, ProtocolIEField};
use proptest::prelude::*;

#[test]
fn every_message_is_sampled() {
    let sampled: std::collections::BTreeSet<_> = all().iter().map(Pdu::name).collect();
    assert_eq!(sampled, Pdu::NAMES.iter().copied().collect());
}

#[test]
fn every_message_round_trips_and_deviates_in_nothing() {
    for pdu in all() {
        let octets = pdu.encode().unwrap();
        let decoded = Pdu::decode(&octets).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(decoded.pdu, pdu);
        assert_eq!(decoded.notify, None);
        let seen = NGAP_PDU::decode(&octets).unwrap();
        assert_eq!(seen.check().unwrap(), [], "{}", pdu.name());
        let direction = format!("{:?}", pdu.procedure().1);
        assert_eq!((seen.procedure_code(), seen.direction()), (pdu.procedure().0, direction.as_str()));
    }
}

#[test]
fn ue_identities_are_found_in_every_message_that_has_them() {
    for pdu in all() {
        let seen = NGAP_PDU::decode(&pdu.encode().unwrap()).unwrap();
        let ids = seen.protocol_ies().unwrap();
        let has = |id| ids.0.iter().any(|ie| ie.id.0 == id || ie.id.0 == 114);
        let (amf, ran) = pdu.ue_ids();
        assert_eq!(amf.is_some(), has(10), "{}", pdu.name());
        if pdu.name() != "UEContextReleaseCommand" {
            assert_eq!(ran.is_some(), has(85), "{}", pdu.name());
        }
    }
}

#[test]
fn transfers_round_trip() {
    fn check<T: PartialEq + std::fmt::Debug>(
        value: T,
        encode: fn(&T) -> Result<Bytes, EncodeError>,
        decode: fn(&[u8]) -> Result<T, TransferError>,
    ) {
        let octets = encode(&value).unwrap();
        assert_eq!(decode(&octets).unwrap(), value);
        for end in 0..octets.len() {
            let _ = decode(&octets[..end]);
        }
        for bit in 0..octets.len() * 8 {
            let mut damaged = octets.to_vec();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            let _ = decode(&damaged);
        }
    }
    macro_rules! check {
        ($($type:ident: $value:expr;)*) => { $(check($value, $type::encode, $type::decode);)* };
    }
    let cause = Cause::default();
    check! {
        PduSessionResourceSetupRequestTransfer: setup_request_transfer();
        PduSessionResourceSetupResponseTransfer: setup_response_transfer();
        PduSessionResourceSetupUnsuccessfulTransfer: PduSessionResourceSetupUnsuccessfulTransfer {
            cause, criticality_diagnostics: diagnostics(),
        };
        PduSessionResourceReleaseCommandTransfer: PduSessionResourceReleaseCommandTransfer { cause };
        PduSessionResourceReleaseResponseTransfer: PduSessionResourceReleaseResponseTransfer;
        PduSessionResourceModifyRequestTransfer: modify_request_transfer();
        PduSessionResourceModifyResponseTransfer: modify_response_transfer();
        PduSessionResourceModifyUnsuccessfulTransfer: PduSessionResourceModifyUnsuccessfulTransfer {
            cause, criticality_diagnostics: None,
        };
        PduSessionResourceNotifyTransfer: PduSessionResourceNotifyTransfer {
            qos_flows: vec![(types::Qfi::new(1).unwrap(), false), (types::Qfi::new(2).unwrap(), true)],
            released_qos_flows: setup_response_transfer().failed_qos_flows,
        };
        PduSessionResourceNotifyReleasedTransfer: PduSessionResourceNotifyReleasedTransfer { cause };
    }
}

#[test]
fn every_cause_has_its_number_and_survives_the_wire() {
    for (group, count) in [65, 2, 8, 7, 6].into_iter().enumerate() {
        for value in 0..count {
            let cause = Cause::from_numbers(group as u8, value).unwrap();
            assert_eq!((cause.group(), cause.value()), (group as u8, value));
            let transfer = PduSessionResourceReleaseCommandTransfer { cause };
            let octets = transfer.encode().unwrap();
            assert_eq!(PduSessionResourceReleaseCommandTransfer::decode(&octets).unwrap().cause, cause);
        }
        assert_eq!(Cause::from_numbers(group as u8, count), None);
    }
    assert_eq!(Cause::from_numbers(5, 0), None);
    let cause = Cause::from_numbers(0, 20).unwrap();
    assert_eq!(cause.to_string(), "radioNetwork: user-inactivity");
}

/// Whatever is decoded from damaged octets can be encoded again, or is a typed error with an answer.
fn survives(octets: &[u8]) {
    match Pdu::decode(octets) {
        Ok(decoded) => {
            let _ = decoded.pdu.encode();
        }
        Err(error) => {
            if let Some(reply) = error.reply() {
                reply.encode().unwrap_or_else(|why| panic!("{error}: {why}"));
            }
        }
    }
}

#[test]
fn truncated_at_every_octet() {
    for pdu in all() {
        let octets = pdu.encode().unwrap();
        for end in 0..octets.len() {
            survives(&octets[..end]);
            let error = Pdu::decode(&octets[..end]).expect_err(pdu.name());
            assert_eq!(error.cause(), Cause::Protocol(Protocol::TransferSyntaxError), "{error}");
        }
    }
}

#[test]
fn every_bit_flipped() {
    for pdu in all() {
        let octets = pdu.encode().unwrap();
        for bit in 0..octets.len() * 8 {
            let mut damaged = octets.to_vec();
            damaged[bit / 8] ^= 0x80 >> (bit % 8);
            survives(&damaged);
        }
    }
}

/// The PDU with its IEs changed by `edit`.
fn edited(pdu: &Pdu, edit: impl FnOnce(&mut Vec<ProtocolIEField<'static>>)) -> Vec<u8> {
    let mut seen = NGAP_PDU::decode(&pdu.encode().unwrap()).unwrap();
    let mut ies = seen.protocol_ies().unwrap().into_owned();
    edit(&mut ies.0);
    seen.set_protocol_ies(ies).unwrap();
    seen.encode().unwrap()
}

fn sample(name: &str) -> Pdu {
    all().into_iter().find(|pdu| pdu.name() == name).unwrap()
}

fn ie(id: u16, criticality: oxirush_ngap::ngap::Criticality, value: &[u8]) -> ProtocolIEField<'static> {
    ProtocolIEField::new(id, criticality, oxirush_ngap::Octets::owned(value.to_vec()))
}

use oxirush_ngap::ngap::Criticality as AsnCriticality;

#[test]
fn unknown_ies_follow_their_criticality() {
    let pdu = sample("UplinkNASTransport");
    let with = |criticality| edited(&pdu, |ies| ies.push(ie(60_000, criticality, b"later")));

    let ignored = Pdu::decode(&with(AsnCriticality::ignore)).unwrap();
    assert_eq!((&ignored.pdu, ignored.notify), (&pdu, None));

    let notified = Pdu::decode(&with(AsnCriticality::notify)).unwrap();
    assert_eq!(notified.pdu, pdu);
    let report = notified.notify.unwrap();
    assert_eq!((report.procedure_code, report.ies.len(), report.ies[0].ie_id), (Some(46), 1, 60_000));

    let error = Pdu::decode(&with(AsnCriticality::reject)).unwrap_err();
    assert_eq!(error.cause(), Cause::Protocol(Protocol::AbstractSyntaxErrorReject));
    let Some(Pdu::ErrorIndication(answer)) = error.reply() else { panic!("{error:?}") };
    assert_eq!((answer.amf_ue_ngap_id, answer.ran_ue_ngap_id), (Some(AMF_ID), Some(RAN_ID)));
    let report = answer.criticality_diagnostics.unwrap();
    assert_eq!(report.triggering_message, Some(TriggeringMessage::InitiatingMessage));
    assert_eq!(report.ies[0].error, TypeOfError::NotUnderstood);
}

#[test]
fn a_missing_mandatory_ie_is_reported_with_the_ue_it_concerns() {
    let octets = edited(&sample("UplinkNASTransport"), |ies| ies.retain(|ie| ie.id.0 != 38));
    let error = Pdu::decode(&octets).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::AbstractSyntaxReject(_)), "{error}");
    assert_eq!((error.amf_ue_ngap_id, error.ran_ue_ngap_id), (Some(AMF_ID), Some(RAN_ID)));
    let found = &error.diagnostics.as_ref().unwrap().ies[0];
    assert_eq!((found.ie_id, found.error), (38, TypeOfError::Missing));
}

#[test]
fn a_missing_ie_of_criticality_ignore_does_not_matter() {
    let octets = edited(&sample("UEContextReleaseRequest"), |ies| ies.retain(|ie| ie.id.0 != 15));
    let Pdu::UeContextReleaseRequest(request) = Pdu::decode(&octets).unwrap().pdu else { panic!() };
    assert_eq!(request.cause, Cause::default());
    let octets = edited(&sample("UplinkNASTransport"), |ies| ies.retain(|ie| ie.id.0 != 121));
    let Pdu::UplinkNasTransport(transport) = Pdu::decode(&octets).unwrap().pdu else { panic!() };
    assert_eq!(transport.user_location, None);
}

#[test]
fn repeated_and_misordered_ies_are_falsely_constructed() {
    let pdu = sample("UplinkNASTransport");
    let repeated = edited(&pdu, |ies| ies.push(ies[0].clone()));
    let misordered = edited(&pdu, |ies| ies.swap(0, 2));
    for octets in [repeated, misordered] {
        let error = Pdu::decode(&octets).unwrap_err();
        let expected = Protocol::AbstractSyntaxErrorFalselyConstructedMessage;
        assert_eq!(error.cause(), Cause::Protocol(expected), "{error}");
    }
}

#[test]
fn faulty_requests_get_the_failure_message_of_their_procedure() {
    let octets = edited(&sample("NGSetupRequest"), |ies| ies.retain(|ie| ie.id.0 != 102));
    let Some(Pdu::NgSetupFailure(failure)) = Pdu::decode(&octets).unwrap_err().reply() else { panic!() };
    let report = failure.criticality_diagnostics.unwrap();
    assert_eq!((report.procedure_code, report.ies[0].ie_id), (None, 102));

    let octets = edited(&sample("InitialContextSetupRequest"), |ies| ies.retain(|ie| ie.id.0 != 94));
    let reply = Pdu::decode(&octets).unwrap_err().reply();
    let Some(Pdu::InitialContextSetupFailure(failure)) = reply else { panic!("{reply:?}") };
    assert_eq!((failure.amf_ue_ngap_id, failure.ran_ue_ngap_id), (AMF_ID, RAN_ID));
}

#[test]
fn unknown_procedures_are_answered_by_their_criticality() {
    // Procedure 200, an empty container, of each criticality.
    let pdu = |criticality: u8| vec![0x00, 200, criticality << 6, 3, 0, 0, 0];
    let reject = Pdu::decode(&pdu(0)).unwrap_err();
    assert_eq!(reject.kind, ErrorKind::UnknownProcedure);
    assert_eq!(reject.cause(), Cause::Protocol(Protocol::AbstractSyntaxErrorReject));
    let Some(Pdu::ErrorIndication(answer)) = reject.reply() else { panic!() };
    assert_eq!(answer.criticality_diagnostics.unwrap().procedure_code, Some(200));
    assert_eq!(Pdu::decode(&pdu(1)).unwrap_err().reply(), None);
    let notify = Pdu::decode(&pdu(2)).unwrap_err();
    assert_eq!(notify.cause(), Cause::Protocol(Protocol::AbstractSyntaxErrorIgnoreAndNotify));
}

#[test]
fn a_faulty_error_indication_is_not_answered() {
    let octets = edited(&sample("ErrorIndication"), |ies| {
        ies.push(ie(60_000, AsnCriticality::reject, b""));
    });
    assert_eq!(Pdu::decode(&octets).unwrap_err().reply(), None);
}

#[test]
fn plmn_digits_are_in_the_order_of_ngap() {
    // TS 38.413 §9.3.3.5: 310-410 is 13 40 01, where NAS writes 13 00 14.
    let plmn: types::Plmn = "310-410".parse().unwrap();
    let pdu = Pdu::from(NgSetupRequest {
        global_ran_node_id: GlobalRanNodeId::Gnb { plmn, id: GnbId::new(1, 22).unwrap() },
        ran_node_name: None,
        supported_tas: vec![SupportedTa {
            tac: types::Tac::new(1).unwrap(),
            broadcast_plmns: vec![PlmnSlices { plmn, slices: slices() }],
        }],
        default_paging_drx: PagingDrx::V128,
    });
    let octets = pdu.encode().unwrap();
    assert!(octets.windows(3).any(|three| three == [0x13, 0x40, 0x01]));
    assert_eq!(Pdu::decode(&octets).unwrap().pdu, pdu);
}

#[test]
fn keys_do_not_show_in_debug_output() {
    let text = format!("{:?}", sample("InitialContextSetupRequest"));
    assert!(!text.contains("5a5a") && !text.contains("90, 90"), "{text}");
}

#[test]
fn values_the_standard_does_not_allow_do_not_encode() {
    let Pdu::UplinkNasTransport(mut transport) = sample("UplinkNASTransport") else { panic!() };
    transport.amf_ue_ngap_id = AmfUeNgapId(1 << 40);
    assert!(Pdu::from(transport).encode().is_err());
    let Pdu::NgSetupRequest(mut request) = sample("NGSetupRequest") else { panic!() };
    request.supported_tas.clear();
    assert!(Pdu::from(request).encode().is_err());
}

proptest! {
    #[test]
    fn any_octets_decode_or_fail_cleanly(octets in prop::collection::vec(any::<u8>(), 0..512)) {
        survives(&octets);
    }

    /// A valid envelope around arbitrary IEs: what random octets alone would seldom reach.
    #[test]
    fn any_ies_decode_or_fail_cleanly(
        at in 0..37usize,
        ies in prop::collection::vec((0..130u16, 0..3u8, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
    ) {
        let pdus = all();
        let octets = edited(&pdus[at % pdus.len()], |fields| {
            for (id, criticality, value) in ies {
                let criticality = match criticality {
                    0 => AsnCriticality::reject,
                    1 => AsnCriticality::ignore,
                    _ => AsnCriticality::notify,
                };
                fields.insert(fields.len().min(id as usize % 7), ie(id, criticality, &value));
            }
        });
        survives(&octets);
    }

    #[test]
    fn nas_transport_round_trips(
        amf in 0..1u64 << 40,
        ran in any::<u32>(),
        nas in prop::collection::vec(any::<u8>(), 0..20_000),
    ) {
        let pdu = Pdu::from(DownlinkNasTransport {
            amf_ue_ngap_id: AmfUeNgapId(amf),
            ran_ue_ngap_id: RanUeNgapId(ran),
            old_amf: None,
            nas_pdu: nas.into(),
            ue_ambr: None,
            allowed_nssai: None,
        });
        prop_assert_eq!(Pdu::decode(&pdu.encode().unwrap()).unwrap().pdu, pdu);
    }

    #[test]
    fn setup_request_transfers_round_trip(
        teid in any::<u32>(),
        qfis in prop::collection::btree_set(0..64u8, 1..10),
        five_qi in any::<u8>(),
        priority in prop::option::of(1..=127u8),
        uplink in 0..4_000_000_000_000u64,
    ) {
        let mut transfer = setup_request_transfer();
        transfer.ul_tunnel = tunnel(teid);
        transfer.session_ambr = Some(types::Ambr { uplink: types::BitRate::from_bps(uplink), ..ambr() });
        let mut parameters = transfer.qos_flows[0].parameters.clone();
        parameters.characteristics =
            QosCharacteristics::NonDynamic { five_qi: types::FiveQi(five_qi), priority };
        transfer.qos_flows = qfis
            .into_iter()
            .map(|qfi| QosFlow { qfi: types::Qfi::new(qfi).unwrap(), parameters: parameters.clone() })
            .collect();
        let octets = transfer.encode().unwrap();
        prop_assert_eq!(PduSessionResourceSetupRequestTransfer::decode(&octets).unwrap(), transfer);
    }
}

/// What pycrate made of the same values, written down a second time in `vectors/generate.py`.
#[test]
fn an_independent_encoder_writes_the_same_octets() {
    let hex = |octets: &[u8]| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
    let mut checked = 0;
    for line in include_str!("vectors/vectors.tsv").lines().filter(|line| !line.starts_with('#')) {
        let (name, expected) = line.split_once('\t').unwrap();
        let ours: Vec<String> = match name {
            "PDUSessionResourceSetupRequestTransfer" => {
                vec![hex(&setup_request_transfer().encode().unwrap())]
            }
            "PDUSessionResourceSetupResponseTransfer" => {
                vec![hex(&setup_response_transfer().encode().unwrap())]
            }
            _ => {
                all().iter().filter(|pdu| pdu.name() == name).map(|pdu| hex(&pdu.encode().unwrap())).collect()
            }
        };
        assert!(ours.iter().any(|ours| ours == expected), "{name}: {ours:?}\n{expected}");
        checked += 1;
    }
    assert_eq!(checked, 14);
}
