//! What a UPF may send, octet by octet as the tables of TS 29.244 say: our codec has no part in these messages.

use std::time::Duration;

use crate::sessions::{reject_cause, wait_for_end};
use crate::world::*;
use nas::{GsmCause, SmBody};
use pfcp::{ApplyAction, Message};
use sbi::model::smf::{N2SmInfoType, UpCnxState};
use types::PduSessionType;

// Causes (table 8.2.1-1) and IEs (table 8.1.2-1).
const ACCEPTED: u8 = 1;
const MANDATORY_IE_MISSING: u8 = 66;
const CONDITIONAL_IE_MISSING: u8 = 67;
const NO_RESOURCES: u8 = 75;
const CAUSE: u16 = 19;
const F_TEID: u16 = 21;
const OFFENDING_IE: u16 = 40;
const F_SEID: u16 = 57;
const USAGE_REPORT: u16 = 80;
const DOWNLINK_DATA_REPORT: u16 = 83;
const ERROR_INDICATION_REPORT: u16 = 99;

fn ie(kind: u16, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [&kind.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
}

/// A message with SEID: version 1, S flag (§7.2.2).
fn message(kind: u8, seid: u64, sequence: &[u8], ies: &[Vec<u8>]) -> Vec<u8> {
    let content = [&seid.to_be_bytes()[..], sequence, &[0], &ies.concat()].concat();
    [&[0x21, kind][..], &(content.len() as u16).to_be_bytes(), &content].concat()
}

/// The first IE of a kind in a message with SEID.
fn find(octets: &[u8], kind: u16) -> Option<&[u8]> {
    let mut rest = &octets[16..];
    while let [a, b, c, d, content @ ..] = rest {
        let (value, next) = content.split_at(u16::from_be_bytes([*c, *d]).into());
        if u16::from_be_bytes([*a, *b]) == kind {
            return Some(value);
        }
        rest = next;
    }
    None
}

impl World {
    /// A Session Report Request of the session's UPF; cause and offending IE of the answer.
    async fn report_octets(
        &mut self,
        session: &Established,
        number: u8,
        ies: &[Vec<u8>],
    ) -> (u8, Option<u16>) {
        let seid = session.establishment.cp_f_seid.seid;
        self.upf.write(self.n4, message(56, seid, &[0xf0, 0, number], ies));
        let answer = net::time::timeout(Duration::from_secs(10), self.answers.recv()).await;
        let octets = answer.expect("an answer").unwrap();
        assert_eq!((octets[0], octets[1], &octets[12..15]), (0x21, 57, &[0xf0, 0, number][..]));
        let up_seid = *self.upf.sessions.lock().unwrap().keys().next().unwrap();
        assert_eq!(octets[4..12], up_seid.to_be_bytes());
        let offending = find(&octets, OFFENDING_IE);
        (
            find(&octets, CAUSE).unwrap()[0],
            offending.map(|octets| u16::from_be_bytes(octets.try_into().unwrap())),
        )
    }
}

/// Report Type (§8.2.21).
fn report_type(flags: u8) -> Vec<u8> {
    ie(39, [flags])
}

/// F-TEID with IPv4 (§8.2.3).
fn f_teid(teid: u32, last: u8) -> Vec<u8> {
    ie(F_TEID, [&[0x01][..], &teid.to_be_bytes(), &[10, 200, 0, last]].concat())
}

/// What a report announces must be in it, and an error indication be about the tunnel that the session has.
#[tokio::test]
async fn incomplete_and_foreign_reports_change_nothing() {
    let mut world = World::new().await;
    let session = world.establish(supi(1), id(5), PduSessionType::Ipv4).await;
    // DLDR, USAR, ERIR, each alone.
    for (number, flag, ie) in
        [(1, 0x01, DOWNLINK_DATA_REPORT), (2, 0x02, USAGE_REPORT), (3, 0x04, ERROR_INDICATION_REPORT)]
    {
        let answer = world.report_octets(&session, number, &[report_type(flag)]).await;
        assert_eq!(answer, (CONDITIONAL_IE_MISSING, Some(ie)));
    }
    // One of two that are announced.
    let downlink = ie(DOWNLINK_DATA_REPORT, ie(56, [0, 2]));
    let answer = world.report_octets(&session, 4, &[report_type(0x05), downlink]).await;
    assert_eq!(answer, (CONDITIONAL_IE_MISSING, Some(ERROR_INDICATION_REPORT)));
    let indication = |tunnels: &[Vec<u8>]| [report_type(0x04), ie(ERROR_INDICATION_REPORT, tunnels.concat())];
    let answer = world.report_octets(&session, 5, &indication(&[])).await;
    assert_eq!(answer, (MANDATORY_IE_MISSING, Some(F_TEID)));
    // The TEID at another address, another TEID at the address: not the session's tunnel.
    let foreign = indication(&[f_teid(0xbeef, 3), f_teid(0xbee, 2)]);
    assert_eq!(world.report_octets(&session, 6, &foreign).await, (ACCEPTED, None));
    net::time::sleep(Duration::from_millis(200)).await;
    assert!(world.at_upf.try_recv().is_err() && world.seen.try_recv().is_err());
    assert_eq!(world.oam("GET", "/sessions").await[0]["user_plane"], "activated");
    // The one that it has.
    assert_eq!(world.report_octets(&session, 7, &indication(&[f_teid(0xbeef, 2)])).await, (ACCEPTED, None));
    let Message::SessionModificationRequest(change) = world.next_at_upf().await else { panic!() };
    assert_eq!(change.update_fars[0].apply_action, Some(ApplyAction::BUFF | ApplyAction::NOCP));
}

/// Session Establishment Response: its header has the SMF's SEID and `wrong`, the UPF's own SEID is `up_seid`.
fn established(request: &[u8], wrong: u64, up_seid: u64) -> Vec<u8> {
    let cp_seid = u64::from_be_bytes(find(request, F_SEID).unwrap()[1..9].try_into().unwrap());
    let tunnel = ie(F_TEID, [1, 0, 0, 0, 9, 127, 0, 0, 7]);
    let ies = [
        ie(60, [0, 127, 0, 0, 7]),
        ie(CAUSE, [ACCEPTED]),
        ie(F_SEID, [&[0x02][..], &up_seid.to_be_bytes(), &[127, 0, 0, 7]].concat()),
        ie(8, [ie(56, [0, 1]), tunnel].concat()),
    ];
    message(51, cp_seid ^ wrong, &request[12..15], &ies)
}

/// A response that is about another session, or about one that nobody can ask about, is of no use; one that is right but
/// for nothing is.
#[tokio::test]
async fn responses_with_a_wrong_or_no_seid_are_refused() {
    let mut world = World::new().await;
    for (wrong, up_seid) in [(1, 77), (1 << 63, 77), (0, 0)] {
        let write = move |request: &[u8]| established(request, wrong, up_seid);
        world.upf.written.lock().unwrap().insert(ESTABLISHMENT, Box::new(write));
        world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
        let (n1, n2) = world.next_transfer().await;
        assert_eq!(
            (reject_cause(&n1.unwrap().body), n2),
            (GsmCause::NetworkFailure, None),
            "{wrong} {up_seid}"
        );
        wait_for_end(&mut world, false).await;
    }
    let right = |request: &[u8]| established(request, 0, 77);
    world.upf.written.lock().unwrap().insert(ESTABLISHMENT, Box::new(right));
    let context =
        world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    let (n1, n2) = world.next_transfer().await;
    assert!(matches!(n1.unwrap().body, SmBody::EstablishmentAccept(_)));
    assert_eq!(n2.unwrap().0, N2SmInfoType::PduResSetupReq);
    // The gNB's tunnel is not taken over in answer to which another session is modified: the session ends.
    let modified = |request: &[u8]| message(53, 4711, &request[12..15], &[ie(CAUSE, [ACCEPTED])]);
    world.upf.written.lock().unwrap().insert(MODIFICATION, Box::new(modified));
    let updated = world.gnb_says(&context, N2SmInfoType::PduResSetupRsp, gnb_answer()).await;
    assert_eq!(updated.up_cnx_state, Some(UpCnxState::Deactivated));
    let (n1, _) = world.next_transfer().await;
    assert!(matches!(n1.unwrap().body, SmBody::ReleaseCommand(_)));
}

/// Session Establishment Response with cause 75 and no other IE, as some UPFs send it: no malformed answer, which would be
/// a network failure.
#[tokio::test]
async fn a_refusal_without_node_id_is_a_refusal() {
    let mut world = World::new().await;
    let refusal = |request: &[u8]| {
        let cp_seid = u64::from_be_bytes(find(request, F_SEID).unwrap()[1..9].try_into().unwrap());
        message(51, cp_seid, &request[12..15], &[ie(CAUSE, [NO_RESOURCES])])
    };
    world.upf.written.lock().unwrap().insert(ESTABLISHMENT, Box::new(refusal));
    world.create(supi(1), id(5), "internet", &request(id(5), PduSessionType::Ipv4)).await.unwrap();
    let (n1, _) = world.next_transfer().await;
    assert_eq!(reject_cause(&n1.unwrap().body), GsmCause::InsufficientResources);
}
