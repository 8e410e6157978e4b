//! Endpoint over a simulated network: loss, duplicates, silence, restart.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pfcp::endpoint::*;
use pfcp::message::*;
use pfcp::*;

const SMF: &str = "127.0.0.4:8805";
const UPF: &str = "127.0.0.7:8805";

fn smf() -> SocketAddr {
    SMF.parse().expect("a socket address")
}
fn upf() -> SocketAddr {
    UPF.parse().expect("a socket address")
}

fn endpoint(stamp: u32) -> Endpoint {
    Endpoint::new(Config::new(NodeId::Ipv4([127, 0, 0, 4].into()), NtpSeconds(stamp), 0xff_fffe))
}

/// The standard clock is only a starting point; all time below is added by hand.
#[allow(clippy::disallowed_methods)]
fn start() -> Instant {
    Instant::now()
}

fn sent(endpoint: &mut Endpoint) -> Vec<Transmit> {
    std::iter::from_fn(|| endpoint.poll_transmit()).collect()
}
fn events(endpoint: &mut Endpoint) -> Vec<Event> {
    std::iter::from_fn(|| endpoint.poll_event()).collect()
}

fn establishment() -> SessionEstablishmentRequest {
    SessionEstablishmentRequest { cp_f_seid: FSeid::new(5, smf().ip()), ..Default::default() }
}
fn accepted() -> SessionEstablishmentResponse {
    SessionEstablishmentResponse { cause: Cause::ACCEPTED, ..Default::default() }
}

#[test]
fn request_and_response_meet_although_the_first_transmissions_are_lost() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    let mut now = start();
    let handle = a.send_request(now, upf(), 0, establishment()).unwrap();
    assert_eq!(sent(&mut a).len(), 1, "lost");
    now = a.poll_timeout().unwrap();
    a.handle_timeout(now);
    let request = sent(&mut a).remove(0);
    b.handle_datagram(now, smf(), &request.payload);
    let Event::Request { id, seid: Some(0), .. } = events(&mut b).remove(0) else { panic!() };
    b.respond(now, id, 5, accepted()).unwrap();
    let lost = sent(&mut b).remove(0);
    // The response is lost, the request comes again, and is answered from memory without an event.
    now = a.poll_timeout().unwrap();
    a.handle_timeout(now);
    b.handle_datagram(now, smf(), &sent(&mut a)[0].payload);
    assert_eq!(events(&mut b), []);
    assert_eq!(b.counters().duplicates, 1);
    let response = sent(&mut b).remove(0);
    assert_eq!(response, lost);
    a.handle_datagram(now, upf(), &response.payload);
    let got = events(&mut a);
    assert!(
        matches!(&got[..], [Event::Response { handle: h, seid: Some(5), .. }] if *h == handle),
        "{got:?}"
    );
    assert_eq!(a.poll_timeout(), None);
    // A second copy of the response is nobody's.
    a.handle_datagram(now, upf(), &response.payload);
    assert_eq!((events(&mut a), a.counters().unmatched_responses), (vec![], 1));
}

#[test]
fn silence_ends_after_n1_transmissions() {
    let mut a = endpoint(1);
    let begin = start();
    let handle = a.send_request(begin, upf(), 0, establishment()).unwrap();
    let mut transmissions = sent(&mut a).len();
    let mut now = begin;
    while let Some(next) = a.poll_timeout() {
        now = next;
        a.handle_timeout(now);
        transmissions += sent(&mut a).len();
    }
    assert_eq!((transmissions, now - begin), (3, Duration::from_secs(3)));
    let got = events(&mut a);
    assert!(
        matches!(&got[..], [Event::Failed { handle: h, failure: Failure::TimedOut, .. }] if *h == handle),
        "{got:?}"
    );
}

#[test]
fn a_response_from_elsewhere_or_of_another_type_does_not_count() {
    let mut a = endpoint(1);
    let now = start();
    a.send_request(now, upf(), 0, establishment()).unwrap();
    let (header, _, _) = Header::decode(&sent(&mut a)[0].payload).unwrap();
    let mut forged = Vec::new();
    Message::from(accepted()).encode(5, header.sequence, &mut forged).unwrap();
    a.handle_datagram(now, "127.0.0.8:8805".parse().unwrap(), &forged);
    let mut other = Vec::new();
    Message::from(SessionDeletionResponse::default()).encode(5, header.sequence, &mut other).unwrap();
    a.handle_datagram(now, upf(), &other);
    assert_eq!((events(&mut a), a.counters().unmatched_responses), (vec![], 2));
    a.handle_datagram(now, upf(), &forged);
    assert_eq!(events(&mut a).len(), 1);
}

#[test]
fn requests_in_progress_and_answered_are_given_to_the_owner_once() {
    let mut b = endpoint(2);
    let now = start();
    let mut bytes = Vec::new();
    Message::from(establishment()).encode(0, 7, &mut bytes).unwrap();
    b.handle_datagram(now, smf(), &bytes);
    b.handle_datagram(now, smf(), &bytes);
    let got = events(&mut b);
    assert_eq!(got.len(), 1);
    let Event::Request { id, .. } = got[0] else { panic!() };
    b.respond(now, id, 5, accepted()).unwrap();
    b.respond(now, id, 5, accepted()).unwrap();
    assert_eq!(sent(&mut b).len(), 1, "a second answer is not sent");
    // Long after, the number is free again.
    b.handle_datagram(now + Duration::from_secs(60), smf(), &bytes);
    assert_eq!(events(&mut b).len(), 1);
}

#[test]
fn memory_for_duplicates_is_bounded() {
    let mut config = Config::new(NodeId::default(), NtpSeconds(1), 0);
    config.max_remembered = 8;
    let mut b = Endpoint::new(config);
    let now = start();
    for sequence in 0..100 {
        let mut bytes = Vec::new();
        Message::from(establishment()).encode(0, sequence, &mut bytes).unwrap();
        b.handle_datagram(now, smf(), &bytes);
    }
    assert_eq!(events(&mut b).len(), 100);
    let mut bytes = Vec::new();
    Message::from(establishment()).encode(0, 99, &mut bytes).unwrap();
    b.handle_datagram(now, smf(), &bytes);
    assert_eq!((events(&mut b).len(), b.counters().duplicates), (0, 1), "the newest is still known");
}

/// A CP function that makes us answer at length must not fill the memory with answers.
#[test]
fn answers_kept_for_duplicates_are_bounded_in_octets() {
    let mut config = Config::new(NodeId::default(), NtpSeconds(1), 0);
    config.max_remembered_octets = 100_000;
    let mut b = Endpoint::new(config);
    let now = start();
    let reports = vec![UsageReport::default(); 500];
    let request = |sequence| {
        let mut bytes = Vec::new();
        Message::from(SessionModificationRequest::default()).encode(7, sequence, &mut bytes).unwrap();
        bytes
    };
    let mut length = 0;
    for sequence in 0..100 {
        b.handle_datagram(now, smf(), &request(sequence));
        let Event::Request { id, .. } = events(&mut b).remove(0) else { panic!() };
        let response = SessionModificationResponse { usage_reports: reports.clone(), ..Default::default() };
        b.respond(now, id, 5, response).unwrap();
        length = sent(&mut b).remove(0).payload.len();
    }
    let kept = 100_000 / length;
    assert!((2..20).contains(&kept), "answers of {length} octets");
    for sequence in 0..100 {
        b.handle_datagram(now, smf(), &request(99 - sequence));
        let repeated = sent(&mut b).len();
        assert_eq!(repeated, usize::from((sequence as usize) < kept), "number {}", 99 - sequence);
        // The others come anew, and push out what was kept only once they are answered.
        events(&mut b);
    }
    // Long after, all is forgotten, and the room is free again.
    let later = now + Duration::from_secs(60);
    for sequence in 0..2 {
        b.handle_datagram(later, smf(), &request(sequence));
        let Event::Request { id, .. } = events(&mut b).remove(0) else { panic!() };
        let response = SessionModificationResponse { usage_reports: reports.clone(), ..Default::default() };
        b.respond(later, id, 5, response).unwrap();
        sent(&mut b);
    }
    for sequence in 0..2 {
        b.handle_datagram(later, smf(), &request(sequence));
        assert_eq!(sent(&mut b).len(), 1);
    }
}

/// Passes what both have to send once; what the first one tells.
fn exchange(a: &mut Endpoint, b: &mut Endpoint, now: Instant) -> Vec<Event> {
    for transmit in sent(a) {
        b.handle_datagram(now, smf(), &transmit.payload);
    }
    for transmit in sent(b) {
        a.handle_datagram(now, upf(), &transmit.payload);
    }
    events(a)
}

fn encoded(message: impl Into<Message>, sequence: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.into().encode(0, sequence, &mut bytes).expect("it fits");
    bytes
}

fn heartbeat(stamp: u32) -> HeartbeatRequest {
    HeartbeatRequest { recovery_time_stamp: NtpSeconds(stamp) }
}

fn restarted(stamp: u32) -> Vec<Event> {
    vec![Event::PeerRestarted { peer: upf().ip(), recovery_time_stamp: NtpSeconds(stamp) }]
}

/// An endpoint that has heard the stamp 200 of its peer.
fn watching(now: &mut Instant) -> Endpoint {
    let mut a = endpoint(100);
    a.add_peer(*now, upf());
    *now = a.poll_timeout().expect("heartbeats are due");
    a.handle_timeout(*now);
    assert_eq!(exchange(&mut a, &mut endpoint(200), *now), []);
    assert_eq!(a.peer_recovery_time_stamp(upf().ip()), Some(NtpSeconds(200)));
    a
}

#[test]
fn restart_is_told_by_answered_heartbeats_and_associations_but_not_by_a_late_heartbeat() {
    let mut now = start();
    let mut a = watching(&mut now);
    let mut next_heartbeat = |a: &mut Endpoint, b: &mut Endpoint| {
        now = a.poll_timeout().unwrap();
        a.handle_timeout(now);
        exchange(a, b, now)
    };
    let mut b = endpoint(300);
    assert_eq!(next_heartbeat(&mut a, &mut b), restarted(300));
    assert_eq!(next_heartbeat(&mut a, &mut b), [], "told once");
    assert_eq!(next_heartbeat(&mut a, &mut endpoint(250)), []);
    // Its clock has gone back: the association that it accepts says so.
    a.send_request(now, upf(), 0, AssociationSetupRequest::default()).unwrap();
    let (header, _, _) = Header::decode(&sent(&mut a)[0].payload).unwrap();
    let cause = Cause::ACCEPTED;
    let response =
        AssociationSetupResponse { cause, recovery_time_stamp: NtpSeconds(250), ..Default::default() };
    a.handle_datagram(now, upf(), &encoded(response, header.sequence));
    let got = events(&mut a);
    assert_eq!(got[..1], restarted(250)[..]);
    assert!(matches!(got[1], Event::Response { .. }));
}

/// Somebody who forges the peer's address can send requests and guess responses. So a new recovery time stamp is believed
/// only when the peer has confirmed it in a response to a request of ours.
#[test]
fn a_forged_recovery_time_stamp_is_not_believed() {
    let mut now = start();
    let mut a = watching(&mut now);
    let setup = AssociationSetupRequest { recovery_time_stamp: NtpSeconds(999), ..Default::default() };
    a.handle_datagram(now, upf(), &encoded(setup, 1));
    assert!(matches!(events(&mut a)[..], [Event::Request { .. }]), "left to the owner");
    a.handle_datagram(now, upf(), &encoded(heartbeat(999), 2));
    assert_eq!(events(&mut a), []);
    // Our answer, and a heartbeat that asks the peer, once however often that is repeated.
    for sequence in 3..100 {
        a.handle_datagram(now, upf(), &encoded(heartbeat(999), sequence));
    }
    let requests = |out: &[Transmit]| {
        let kinds = out.iter().map(|t| Header::decode(&t.payload).unwrap().0);
        kinds
            .filter(|header| header.message_type.is_request())
            .map(|header| header.sequence)
            .collect::<Vec<_>>()
    };
    let out = sent(&mut a);
    let asked = requests(&out);
    assert_eq!((out.len(), asked.len()), (99, 1));
    // Responses with numbers near ours are nobody's, also while a heartbeat is under way.
    for near in 0..1000 {
        for sequence in [asked[0].wrapping_add(near + 1), asked[0].wrapping_sub(near + 1), near] {
            if sequence & 0xff_ffff != asked[0] {
                let forged = HeartbeatResponse { recovery_time_stamp: NtpSeconds(999) };
                a.handle_datagram(now, upf(), &encoded(forged, sequence & 0xff_ffff));
            }
        }
    }
    // Nor is a response from another port of its address.
    let forged = HeartbeatResponse { recovery_time_stamp: NtpSeconds(999) };
    a.handle_datagram(now, "127.0.0.7:4000".parse().unwrap(), &encoded(forged, asked[0]));
    assert_eq!(events(&mut a), []);
    assert_eq!(a.peer_recovery_time_stamp(upf().ip()), Some(NtpSeconds(200)));
    // The peer's own answer counts, whatever it says.
    let mut real = endpoint(200);
    for transmit in out {
        real.handle_datagram(now, smf(), &transmit.payload);
    }
    assert_eq!(exchange(&mut a, &mut real, now), []);
    // When it has restarted indeed, it says so to the next question.
    now += Duration::from_secs(2);
    a.handle_datagram(now, upf(), &encoded(heartbeat(300), 500));
    assert_eq!(exchange(&mut a, &mut endpoint(300), now), restarted(300));
}

#[test]
fn sequence_numbers_do_not_repeat_and_depend_on_the_secret() {
    let numbers = |secret| {
        let mut config = Config::new(NodeId::default(), NtpSeconds(1), secret);
        config.max_outstanding = usize::MAX;
        let mut endpoint = Endpoint::new(config);
        let mut draw = || {
            endpoint.send_request(start(), upf(), 0, heartbeat(1)).unwrap();
            Header::decode(&sent(&mut endpoint)[0].payload).unwrap().0.sequence
        };
        (0..50_000).map(|_| draw()).collect::<Vec<_>>()
    };
    let (a, b) = (numbers(1), numbers(2));
    assert_eq!(a.iter().collect::<std::collections::HashSet<_>>().len(), a.len());
    let same = a.iter().zip(&b).filter(|(a, b)| a == b).count();
    let steps = a.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    assert!(same < 5 && steps < 5, "{same} {steps}");
}

#[test]
fn a_silent_peer_fails_once_and_recovers() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    let mut now = start();
    a.add_peer(now, upf());
    let mut got = Vec::new();
    for _ in 0..20 {
        now = a.poll_timeout().unwrap();
        a.handle_timeout(now);
        sent(&mut a);
        got.extend(events(&mut a));
    }
    assert_eq!(got, [Event::PeerFailed { peer: upf().ip() }]);
    loop {
        now = a.poll_timeout().unwrap();
        a.handle_timeout(now);
        for transmit in sent(&mut a) {
            b.handle_datagram(now, smf(), &transmit.payload);
            for transmit in sent(&mut b) {
                a.handle_datagram(now, upf(), &transmit.payload);
            }
        }
        if let Some(event) = a.poll_event() {
            assert_eq!(event, Event::PeerRecovered { peer: upf().ip() });
            break;
        }
    }
}

#[test]
fn malformed_requests_are_answered_with_cause_and_offending_ie() {
    let mut b = endpoint(2);
    let now = start();
    let mut send = |kind: MessageType, ies: &[u8]| {
        let seid: &[u8] = if kind.has_seid() { &[0, 0, 0, 0, 0, 0, 0, 9] } else { &[] };
        let mut bytes = vec![0x20 | u8::from(kind.has_seid()), kind as u8, 0, 0];
        bytes.extend_from_slice(seid);
        bytes.extend_from_slice(&[0, 0, kind as u8, 0]);
        bytes.extend_from_slice(ies);
        let length = (bytes.len() - 4) as u16;
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
        b.handle_datagram(now, smf(), &bytes);
        (sent(&mut b), events(&mut b))
    };
    let (answers, got) = send(MessageType::AssociationSetupRequest, &[]);
    assert_eq!(got, []);
    let (_, message) = Message::decode(&answers[0].payload).unwrap();
    let Message::AssociationSetupResponse(response) = message else { panic!("{message:?}") };
    assert_eq!(response.cause, Cause::MANDATORY_IE_MISSING);

    // Establishment without node ID but with F-SEID: rejected towards that SEID.
    let f_seid = [0, 57, 0, 13, 2, 0, 0, 0, 0, 0, 0, 0, 77, 127, 0, 0, 4];
    let (answers, got) = send(MessageType::SessionEstablishmentRequest, &f_seid);
    assert_eq!(got, []);
    let (header, message) = Message::decode(&answers[0].payload).unwrap();
    let Message::SessionEstablishmentResponse(response) = message else { panic!("{message:?}") };
    assert_eq!((header.seid, response.offending_ie), (Some(77), Some(OffendingIe(ie::NODE_ID))));

    // Modification: the owner knows the SEID.
    let (answers, got) = send(MessageType::SessionModificationRequest, &[0, 15, 0, 0]);
    assert_eq!(answers, []);
    let [Event::MalformedRequest { id, seid: Some(9), error }] = got[..] else { panic!("{got:?}") };
    assert_eq!(error, DecodeError::MandatoryMissing(ie::PDR_ID));
    b.reject(now, id, 42, error.cause().unwrap(), error.offending_ie()).unwrap();
    let (header, message) = Message::decode(&sent(&mut b)[0].payload).unwrap();
    assert_eq!(header.seid, Some(42));
    assert!(
        matches!(message, Message::SessionModificationResponse(r) if r.cause == Cause::MANDATORY_IE_MISSING)
    );
    assert_eq!(b.counters().malformed, 3);
}

#[test]
fn another_version_is_answered_as_such_and_ends_our_request() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    let now = start();
    a.send_request(now, upf(), 0, AssociationReleaseRequest::default()).unwrap();
    let mut bytes = sent(&mut a)[0].payload.to_vec();
    bytes[0] = 0x40;
    b.handle_datagram(now, smf(), &bytes);
    let answer = sent(&mut b).remove(0);
    a.handle_datagram(now, upf(), &answer.payload);
    assert!(matches!(events(&mut a)[..], [Event::Failed { failure: Failure::Version, .. }]));
}

#[test]
fn bundled_messages_are_all_seen() {
    let mut b = endpoint(2);
    let mut bytes = Vec::new();
    Message::from(establishment()).encode(0, 1, &mut bytes).unwrap();
    bytes[0] |= 4;
    Message::from(establishment()).encode(0, 2, &mut bytes).unwrap();
    b.handle_datagram(start(), smf(), &bytes);
    assert_eq!(events(&mut b).len(), 2);
}

#[test]
fn a_full_endpoint_says_so() {
    let mut config = Config::new(NodeId::default(), NtpSeconds(1), 0);
    config.max_outstanding = 2;
    let mut a = Endpoint::new(config);
    let now = start();
    a.send_request(now, upf(), 0, establishment()).unwrap();
    a.send_request(now, upf(), 0, establishment()).unwrap();
    assert_eq!(a.send_request(now, upf(), 0, establishment()), Err(SendError::Busy));
    assert!(matches!(a.send_request(now, upf(), 0, accepted()), Err(SendError::Direction(_))));
}
