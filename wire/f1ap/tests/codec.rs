//! F1AP against an independent encoder (vectors/generate.py), the rules of TS 38.473 §10.3, and hostile octets.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use f1ap::cause::{Cause, Protocol};
use f1ap::ie::{Criticality, TypeOfError};
use f1ap::message::{UeContextSetupFailure, UlRrcMessageTransfer};
use f1ap::{ErrorKind, Pdu};

fn vectors() -> Vec<(&'static str, Vec<u8>)> {
    let lines = include_str!("vectors/vectors.tsv").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, hex) = line.split_once('\t').unwrap();
            let octets =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap());
            (name, octets.collect())
        })
        .collect()
}

#[test]
fn an_independent_encoder_agrees_on_every_message() {
    let messages = common::messages();
    let vectors = vectors();
    assert_eq!(messages.len(), vectors.len());
    for (message, (name, octets)) in messages.iter().zip(&vectors) {
        assert_eq!(message.name(), *name);
        let decoded = Pdu::decode(octets).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(decoded.pdu, *message);
        assert_eq!(decoded.notify, None);
        assert_eq!(message.encode().unwrap(), *octets, "{name}");
    }
    for name in Pdu::NAMES {
        assert!(vectors.iter().any(|(vector, _)| vector == name), "no vector of {name}");
    }
}

#[test]
fn truncated_and_changed_octets_are_errors_or_other_messages() {
    for (name, octets) in vectors() {
        for len in 0..octets.len() {
            let error = Pdu::decode(&octets[..len]).unwrap_err();
            assert!(matches!(error.kind, ErrorKind::TransferSyntax(_)), "{name} at {len}: {error}");
        }
        for bit in 0..octets.len() * 8 {
            let mut changed = octets.clone();
            changed[bit / 8] ^= 0x80 >> (bit % 8);
            match Pdu::decode(&changed) {
                // What was read can be written, and reads the same.
                Ok(decoded) => {
                    let again = decoded.pdu.encode().unwrap();
                    assert_eq!(Pdu::decode(&again).unwrap().pdu, decoded.pdu, "{name} bit {bit}");
                }
                Err(error) => {
                    if let Some(reply) = error.reply() {
                        let reply = reply.encode().unwrap_or_else(|why| panic!("{name} bit {bit}: {why}"));
                        Pdu::decode(&reply).unwrap();
                    }
                }
            }
        }
    }
}

/// A UL RRC MESSAGE TRANSFER of these IEs: id, criticality (0 reject, 1 ignore, 2 notify), value.
fn ul_rrc(ies: &[(u16, u8, &[u8])]) -> Vec<u8> {
    message(13, 1, ies)
}

fn message(code: u8, criticality: u8, ies: &[(u16, u8, &[u8])]) -> Vec<u8> {
    let mut value = vec![0, 0, ies.len() as u8];
    for (id, criticality, octets) in ies {
        value.extend(id.to_be_bytes());
        value.extend([criticality << 6, octets.len() as u8]);
        value.extend_from_slice(octets);
    }
    [&[0, code, criticality << 6, value.len() as u8], &value[..]].concat()
}

const CU: (u16, u8, &[u8]) = (40, 0, &[0, 1]);
const DU: (u16, u8, &[u8]) = (41, 0, &[0, 2]);
const SRB: (u16, u8, &[u8]) = (64, 0, &[0x20]);
const RRC: (u16, u8, &[u8]) = (50, 0, &[1, 0xaa]);

#[test]
fn ies_are_read_in_any_order() {
    let straight = Pdu::decode(&ul_rrc(&[CU, DU, SRB, RRC])).unwrap();
    let expected = UlRrcMessageTransfer {
        gnb_cu_ue_f1ap_id: f1ap::ie::GnbCuUeF1apId(1),
        gnb_du_ue_f1ap_id: f1ap::ie::GnbDuUeF1apId(2),
        srb_id: f1ap::ie::SrbId(1),
        rrc_container: vec![0xaa],
    };
    assert_eq!(straight.pdu, expected.into());
    assert_eq!(Pdu::decode(&ul_rrc(&[RRC, SRB, DU, CU])).unwrap(), straight);
}

#[test]
fn unknown_ies_follow_their_criticality() {
    let with = |criticality| Pdu::decode(&ul_rrc(&[CU, DU, (9999, criticality, &[1, 2, 3]), SRB, RRC]));
    assert_eq!(with(1).unwrap().notify, None);

    let notify = with(2).unwrap().notify.unwrap();
    assert_eq!((notify.ies[0].ie_id, notify.ies[0].criticality), (9999, Criticality::Notify));

    let error = with(0).unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnknownIe(9999));
    assert_eq!(error.cause(), Cause::Protocol(Protocol::AbstractSyntaxErrorReject));
    let Some(Pdu::ErrorIndication(reply)) = error.reply() else { panic!("{error}") };
    assert_eq!(reply.gnb_cu_ue_f1ap_id.unwrap().0, 1);
    assert_eq!(reply.gnb_du_ue_f1ap_id.unwrap().0, 2);
    let ies = reply.criticality_diagnostics.unwrap().ies;
    assert_eq!((ies[0].ie_id, ies[0].type_of_error), (9999, TypeOfError::NotUnderstood));
}

#[test]
fn a_message_without_a_mandatory_ie_is_rejected() {
    for missing in [CU, DU, SRB, RRC] {
        let ies: Vec<_> = [CU, DU, SRB, RRC].into_iter().filter(|ie| ie.0 != missing.0).collect();
        let error = Pdu::decode(&ul_rrc(&ies)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::MissingIe(missing.0));
        let ies = error.diagnostics.unwrap().ies;
        assert_eq!((ies[0].ie_id, ies[0].type_of_error), (missing.0, TypeOfError::Missing));
    }
}

#[test]
fn a_repeated_ie_is_falsely_constructed() {
    let error = Pdu::decode(&ul_rrc(&[CU, DU, SRB, RRC, SRB])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FalselyConstructed(64));
}

#[test]
fn a_request_is_answered_with_its_failure() {
    // UE CONTEXT SETUP REQUEST with nothing but the CU's identity.
    let error = Pdu::decode(&message(5, 0, &[CU])).unwrap_err();
    let Some(Pdu::UeContextSetupFailure(UeContextSetupFailure { gnb_cu_ue_f1ap_id, cause, .. })) =
        error.reply()
    else {
        panic!("{error}")
    };
    assert_eq!(gnb_cu_ue_f1ap_id.0, 1);
    assert_eq!(cause, Cause::Protocol(Protocol::AbstractSyntaxErrorReject));
    // Not even that.
    assert!(matches!(Pdu::decode(&message(5, 0, &[])).unwrap_err().reply(), Some(Pdu::ErrorIndication(_))));
}

#[test]
fn unknown_procedures_follow_their_criticality() {
    let error = Pdu::decode(&message(200, 0, &[])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnknownProcedure);
    assert!(matches!(error.reply(), Some(Pdu::ErrorIndication(_))));
    assert_eq!(Pdu::decode(&message(200, 1, &[])).unwrap_err().reply(), None);
    // Errors in an Error Indication are not answered.
    assert_eq!(Pdu::decode(&message(2, 1, &[(9999, 0, &[0])])).unwrap_err().reply(), None);
}

#[test]
fn values_that_the_standard_does_not_have_do_not_encode() {
    for pdu in common::messages() {
        let error = match pdu {
            Pdu::Paging(mut message) => {
                message.cells = vec![message.cells[0].clone(); 513];
                Pdu::from(message).encode().unwrap_err()
            }
            Pdu::F1SetupRequest(mut message) => {
                message.gnb_du_id.0 = 1 << 36;
                Pdu::from(message).encode().unwrap_err()
            }
            _ => continue,
        };
        assert!(error.to_string().contains("does not encode"), "{error}");
    }
}
