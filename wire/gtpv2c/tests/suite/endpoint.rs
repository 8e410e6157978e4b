//! Endpoint over a simulated network: loss, duplicates, silence, commands, piggybacking, restart.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common;
use gtpv2c::endpoint::*;
use gtpv2c::message::*;
use gtpv2c::*;

fn mme() -> SocketAddr {
    "127.0.0.4:2123".parse().expect("a socket address")
}
fn sgw() -> SocketAddr {
    "127.0.0.7:2123".parse().expect("a socket address")
}

fn endpoint(restart_counter: u8) -> Endpoint {
    Endpoint::new(Config::new(Recovery(restart_counter), 0xff_fffe))
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

fn request() -> CreateSessionRequest {
    common::create_session_request()
}
fn accepted() -> CreateSessionResponse {
    CreateSessionResponse { cause: CauseValue::ACCEPTED.into(), ..Default::default() }
}
fn delete() -> DeleteSessionRequest {
    DeleteSessionRequest { linked_ebi: Some(Ebi(5)), ..Default::default() }
}

fn encoded(message: impl Into<Message>, teid: u32, sequence: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.into().encode(teid, sequence, &mut bytes).expect("it fits");
    bytes
}

fn header(transmit: &Transmit) -> Header {
    Header::decode(&transmit.payload).expect("what we send is well-formed").0
}

/// Passes what both have to send, once.
fn exchange(a: &mut Endpoint, b: &mut Endpoint, now: Instant) {
    for transmit in sent(a) {
        b.handle_datagram(now, mme(), &transmit.payload);
    }
    for transmit in sent(b) {
        a.handle_datagram(now, sgw(), &transmit.payload);
    }
}

/// The only event, which must be a request.
fn received(endpoint: &mut Endpoint) -> (RequestId, u32, Message) {
    let got = events(endpoint);
    let [Event::Request { id, teid, message, .. }] = &got[..] else { panic!("{got:?}") };
    (*id, *teid, message.clone())
}

#[test]
fn request_and_response_meet_although_the_first_transmissions_are_lost() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    let mut now = start();
    let handle = a.send_request(now, sgw(), 0, request()).unwrap();
    assert_eq!(sent(&mut a).len(), 1, "lost");
    now = a.poll_timeout().unwrap();
    a.handle_timeout(now);
    b.handle_datagram(now, mme(), &sent(&mut a).remove(0).payload);
    let (id, teid, _) = received(&mut b);
    assert_eq!(teid, 0);
    b.respond(now, id, 5, accepted()).unwrap();
    let lost = sent(&mut b).remove(0);
    // The response is lost, the request comes again, and is answered from memory without an event.
    now = a.poll_timeout().unwrap();
    a.handle_timeout(now);
    b.handle_datagram(now, mme(), &sent(&mut a)[0].payload);
    assert_eq!((events(&mut b), b.counters().duplicates), (vec![], 1));
    let response = sent(&mut b).remove(0);
    assert_eq!(response, lost);
    a.handle_datagram(now, sgw(), &response.payload);
    let got = events(&mut a);
    assert!(matches!(&got[..], [Event::Response { handle: h, teid: 5, .. }] if *h == handle), "{got:?}");
    assert_eq!(a.poll_timeout(), None);
    // A second copy of the response is nobody's.
    a.handle_datagram(now, sgw(), &response.payload);
    assert_eq!((events(&mut a), a.counters().unmatched_responses), (vec![], 1));
}

#[test]
fn responses_in_another_order_find_their_requests() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    let now = start();
    let handles: Vec<_> = (1..4).map(|teid| a.send_request(now, sgw(), teid, delete()).unwrap()).collect();
    for transmit in sent(&mut a).into_iter().rev() {
        b.handle_datagram(now, mme(), &transmit.payload);
    }
    for event in events(&mut b) {
        let Event::Request { id, teid, .. } = event else { panic!() };
        b.reject(now, id, teid, CauseValue::CONTEXT_NOT_FOUND).unwrap();
    }
    for transmit in sent(&mut b) {
        a.handle_datagram(now, sgw(), &transmit.payload);
    }
    let got: Vec<_> = events(&mut a)
        .into_iter()
        .map(|event| match event {
            Event::Response { handle, teid, .. } => (handle, teid),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(got, [(handles[2], 3), (handles[1], 2), (handles[0], 1)]);
}

#[test]
fn silence_ends_after_n3_transmissions() {
    let mut a = endpoint(1);
    let begin = start();
    let handle = a.send_request(begin, sgw(), 0, request()).unwrap();
    let mut transmissions = sent(&mut a).len();
    let mut now = begin;
    while let Some(next) = a.poll_timeout() {
        now = next;
        a.handle_timeout(now);
        transmissions += sent(&mut a).len();
    }
    assert_eq!((transmissions, now - begin), (3, Duration::from_secs(6)));
    let got = events(&mut a);
    assert!(
        matches!(&got[..], [Event::Failed { handle: h, failure: Failure::TimedOut, .. }] if *h == handle),
        "{got:?}"
    );
    assert_eq!((a.counters().retransmissions, a.counters().timeouts), (2, 1));
}

#[test]
fn a_response_from_elsewhere_or_of_another_type_does_not_count() {
    let mut a = endpoint(1);
    let now = start();
    a.send_request(now, sgw(), 0, request()).unwrap();
    let sequence = header(&sent(&mut a)[0]).sequence;
    let forged = encoded(accepted(), 5, sequence);
    a.handle_datagram(now, "127.0.0.8:2123".parse().unwrap(), &forged);
    a.handle_datagram(now, "127.0.0.7:4000".parse().unwrap(), &forged);
    a.handle_datagram(now, sgw(), &encoded(DeleteSessionResponse::default(), 5, sequence));
    assert_eq!((events(&mut a), a.counters().unmatched_responses), (vec![], 3));
    a.handle_datagram(now, sgw(), &forged);
    assert_eq!(events(&mut a).len(), 1);
}

#[test]
fn requests_in_progress_and_answered_are_given_to_the_owner_once() {
    let mut b = endpoint(2);
    let now = start();
    let bytes = encoded(request(), 0, 7);
    b.handle_datagram(now, mme(), &bytes);
    b.handle_datagram(now, mme(), &bytes);
    let (id, ..) = received(&mut b);
    b.respond(now, id, 5, accepted()).unwrap();
    b.respond(now, id, 5, accepted()).unwrap();
    assert_eq!(sent(&mut b).len(), 1, "a second answer is not sent");
    // The same number from another port or for another message is another request.
    b.handle_datagram(now, "127.0.0.4:9".parse().unwrap(), &bytes);
    b.handle_datagram(now, mme(), &encoded(delete(), 5, 7));
    assert_eq!(events(&mut b).len(), 2);
    // Long after, the number is free again.
    b.handle_datagram(now + Duration::from_secs(60), mme(), &bytes);
    assert_eq!(events(&mut b).len(), 1);
}

/// The response has the priority of the request (§5.5.3).
#[test]
fn a_response_has_the_priority_of_its_request() {
    let mut b = endpoint(2);
    let now = start();
    let message_type = MessageType::DeleteSessionRequest;
    let sent_header =
        Header { message_type, teid: Some(4), sequence: 9, piggybacking: false, priority: Some(3) };
    let mut bytes = Vec::new();
    Message::from(delete()).encode_with(sent_header, &mut bytes).unwrap();
    b.handle_datagram(now, mme(), &bytes);
    let (id, ..) = received(&mut b);
    b.reject(now, id, 0, CauseValue::CONTEXT_NOT_FOUND).unwrap();
    let answer = header(&sent(&mut b)[0]);
    assert_eq!((answer.priority, answer.teid, answer.sequence), (Some(3), Some(0), 9));
}

#[test]
fn memory_for_duplicates_is_bounded() {
    let mut config = Config::new(Recovery(1), 0);
    config.max_remembered = 8;
    let mut b = Endpoint::new(config);
    let now = start();
    for sequence in 0..100 {
        b.handle_datagram(now, mme(), &encoded(request(), 0, sequence));
    }
    assert_eq!(events(&mut b).len(), 100);
    b.handle_datagram(now, mme(), &encoded(request(), 0, 99));
    assert_eq!((events(&mut b).len(), b.counters().duplicates), (0, 1), "the newest is still known");
    b.handle_datagram(now, mme(), &encoded(request(), 0, 0));
    assert_eq!(events(&mut b).len(), 1, "the oldest is not");
}

/// A peer that makes us answer at length must not fill the memory with answers.
#[test]
fn answers_kept_for_duplicates_are_bounded_in_octets() {
    let mut config = Config::new(Recovery(1), 0);
    config.max_remembered_octets = 10_000;
    let mut b = Endpoint::new(config);
    let now = start();
    let long = || CreateSessionResponse { pco: Some(Octets(vec![0; 1000])), ..accepted() };
    let mut length = 0;
    for sequence in 0..100 {
        b.handle_datagram(now, mme(), &encoded(request(), 0, sequence));
        let (id, ..) = received(&mut b);
        b.respond(now, id, 5, long()).unwrap();
        length = sent(&mut b).remove(0).payload.len();
    }
    let kept = 10_000 / length;
    assert!((2..20).contains(&kept), "answers of {length} octets");
    for age in 0..100 {
        b.handle_datagram(now, mme(), &encoded(request(), 0, 99 - age));
        assert_eq!(sent(&mut b).len(), usize::from((age as usize) < kept), "number {}", 99 - age);
        events(&mut b);
    }
    // Long after, all is forgotten, and the room is free again.
    let later = now + Duration::from_secs(60);
    for sequence in 0..2 {
        b.handle_datagram(later, mme(), &encoded(request(), 0, sequence));
        let (id, ..) = received(&mut b);
        b.respond(later, id, 5, long()).unwrap();
        sent(&mut b);
        b.handle_datagram(later, mme(), &encoded(request(), 0, sequence));
        assert_eq!(sent(&mut b).len(), 1);
    }
}

#[test]
fn a_full_endpoint_says_so() {
    let mut config = Config::new(Recovery(1), 0);
    config.max_outstanding = 2;
    let mut a = Endpoint::new(config);
    let now = start();
    a.send_request(now, sgw(), 0, request()).unwrap();
    a.send_request(now, sgw(), 0, request()).unwrap();
    assert_eq!(a.send_request(now, sgw(), 0, request()), Err(SendError::Busy));
    assert!(matches!(a.send_request(now, sgw(), 0, accepted()), Err(SendError::Direction(_))));
}

/// Commands have the top bit, other requests do not; all are without order, and none comes twice.
#[test]
fn sequence_numbers_do_not_repeat_and_depend_on_the_secret() {
    let command = || BearerResourceCommand { linked_ebi: Ebi(5), pti: Pti(1), ..Default::default() };
    let numbers = |secret| {
        let mut config = Config::new(Recovery(1), secret);
        config.max_outstanding = usize::MAX;
        let mut endpoint = Endpoint::new(config);
        let now = start();
        let mut draw = |turn| {
            let message: Message = if turn % 2 == 0 { delete().into() } else { command().into() };
            endpoint.send_request(now, sgw(), 0, message).unwrap();
            let sequence = header(&sent(&mut endpoint)[0]).sequence;
            assert_eq!(sequence >> 23 == 1, turn % 2 == 1);
            sequence & 0x7f_ffff
        };
        (0..30_000).map(&mut draw).collect::<Vec<_>>()
    };
    let (a, b) = (numbers(1), numbers(2));
    assert_eq!(a.iter().collect::<std::collections::HashSet<_>>().len(), a.len());
    let same = a.iter().zip(&b).filter(|(a, b)| a == b).count();
    let steps = a.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
    assert!(same < 5 && steps < 5, "{same} {steps}");
}

mod commands {
    use super::*;

    fn command() -> BearerResourceCommand {
        BearerResourceCommand { linked_ebi: Ebi(5), pti: Pti(7), ..Default::default() }
    }

    /// The command is answered by the request that it triggers, which has its number.
    #[test]
    fn a_command_is_answered_by_the_request_that_it_triggers() {
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let now = start();
        let command = a.send_request(now, sgw(), 11, command()).unwrap();
        exchange(&mut a, &mut b, now);
        let (id, teid, _) = received(&mut b);
        assert_eq!((teid, id.sequence >> 23), (11, 1));
        let wrong = b.send_triggered(now, id, mme(), 12, DownlinkDataNotification::default());
        assert!(matches!(wrong, Err(SendError::Direction(_))));
        let triggered = b.send_triggered(now, id, mme(), 12, common::create_bearer_request()).unwrap();
        // It comes from any port of the peer.
        let request = sent(&mut b).remove(0);
        assert_eq!(header(&request).sequence, id.sequence);
        a.handle_datagram(now, "127.0.0.7:40000".parse().unwrap(), &request.payload);
        let got = events(&mut a);
        let [Event::Request { id: bearer, teid: 12, command: Some(handle), .. }] = got[..] else {
            panic!("{got:?}")
        };
        assert_eq!(handle, command);
        assert_eq!(a.poll_timeout(), None, "the command is not repeated");
        a.respond(now, bearer, 11, common::create_bearer_response()).unwrap();
        let response = sent(&mut a).remove(0);
        assert_eq!(response.to.port(), 40000);
        b.handle_datagram(now, mme(), &response.payload);
        let got = events(&mut b);
        assert!(matches!(&got[..], [Event::Response { handle, .. }] if *handle == triggered), "{got:?}");
        // Both sides know their numbers: a repetition changes nothing.
        a.handle_datagram(now, "127.0.0.7:40000".parse().unwrap(), &request.payload);
        assert_eq!((events(&mut a).len(), sent(&mut a).len()), (0, 1));
    }

    #[test]
    fn a_repeated_command_is_neither_handled_nor_answered_twice() {
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let mut now = start();
        a.send_request(now, sgw(), 11, command()).unwrap();
        let command = sent(&mut a).remove(0);
        b.handle_datagram(now, mme(), &command.payload);
        let (id, ..) = received(&mut b);
        b.send_triggered(now, id, mme(), 12, common::create_bearer_request()).unwrap();
        assert_eq!(sent(&mut b).len(), 1, "lost");
        now = a.poll_timeout().unwrap();
        a.handle_timeout(now);
        b.handle_datagram(now, mme(), &sent(&mut a)[0].payload);
        assert_eq!((events(&mut b).len(), sent(&mut b).len()), (0, 0));
        b.reject(now, id, 12, CauseValue::NO_RESOURCES).unwrap();
        assert_eq!(sent(&mut b).len(), 0, "it has been answered");
        // The triggered request repeats itself.
        b.handle_timeout(now);
        assert_eq!(sent(&mut b).len(), 1);
    }

    #[test]
    fn a_command_is_refused_by_its_failure_indication() {
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let now = start();
        let handle = a.send_request(now, sgw(), 11, command()).unwrap();
        exchange(&mut a, &mut b, now);
        let (id, ..) = received(&mut b);
        b.reject(now, id, 12, CauseValue::NO_RESOURCES).unwrap();
        exchange(&mut a, &mut b, now);
        let got = events(&mut a);
        let [Event::Response { handle: h, teid: 12, message, .. }] = &got[..] else { panic!("{got:?}") };
        assert_eq!(*h, handle);
        assert!(matches!(message, Message::BearerResourceFailureIndication(_)));
    }

    /// A peer's command and one of this side may have the same number.
    #[test]
    fn commands_of_both_sides_with_one_number_do_not_meet() {
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let now = start();
        a.send_request(now, sgw(), 1, command()).unwrap();
        b.send_request(now, mme(), 2, command()).unwrap();
        let (from_a, from_b) = (sent(&mut a).remove(0), sent(&mut b).remove(0));
        assert_eq!(header(&from_a).sequence, header(&from_b).sequence, "the same secret");
        a.handle_datagram(now, sgw(), &from_b.payload);
        let (id, ..) = received(&mut a);
        a.send_triggered(now, id, sgw(), 2, common::create_bearer_request()).unwrap();
        b.handle_datagram(now, mme(), &sent(&mut a)[0].payload);
        let got = events(&mut b);
        let [Event::Request { id, command: Some(_), .. }] = got[..] else { panic!("{got:?}") };
        b.respond(now, id, 1, common::create_bearer_response()).unwrap();
        a.handle_datagram(now, sgw(), &sent(&mut b)[0].payload);
        assert!(matches!(events(&mut a)[..], [Event::Response { .. }]));
        assert!(a.poll_timeout().is_some(), "its own command still waits");
    }
}

mod piggybacking {
    use super::*;

    /// Create Session Response with Create Bearer Request, then Modify Bearer Request with Create Bearer Response
    /// (TS 23.401 §5.3.2.1).
    #[test]
    fn both_ways() {
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let now = start();
        let session = a.send_request(now, sgw(), 0, request()).unwrap();
        exchange(&mut a, &mut b, now);
        let (id, ..) = received(&mut b);
        let response = common::create_session_response();
        let bearer =
            b.respond_with_request(now, id, 1, response, common::create_bearer_request()).unwrap().unwrap();
        let datagrams = sent(&mut b);
        assert_eq!(datagrams.len(), 1);
        a.handle_datagram(now, sgw(), &datagrams[0].payload);
        let got = events(&mut a);
        let [Event::Response { handle, .. }, Event::Request { id: to_answer, piggybacked: true, .. }] =
            got[..]
        else {
            panic!("{got:?}")
        };
        assert_eq!(handle, session);
        let answer = (to_answer, 2, common::create_bearer_response().into());
        let modify =
            a.send_request_with_response(now, sgw(), 2, common::modify_bearer_request(), answer).unwrap();
        let datagram = sent(&mut a).remove(0);
        // The MME sends requests from any port.
        let from = "127.0.0.4:50000".parse().unwrap();
        b.handle_datagram(now, from, &datagram.payload);
        let got = events(&mut b);
        let [Event::Request { id, piggybacked: false, .. }, Event::Response { handle, .. }] = got[..] else {
            panic!("{got:?}")
        };
        assert_eq!((handle, id.peer), (bearer, from));
        b.reject(now, id, 1, CauseValue::ACCEPTED).unwrap();
        a.handle_datagram(now, sgw(), &sent(&mut b)[0].payload);
        let got = events(&mut a);
        assert!(matches!(&got[..], [Event::Response { handle, .. }] if *handle == modify), "{got:?}");
        assert_eq!((a.poll_timeout(), b.poll_timeout()), (None, None));
    }

    #[test]
    fn what_is_lost_is_repeated() {
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let mut now = start();
        a.send_request(now, sgw(), 0, request()).unwrap();
        let first = sent(&mut a).remove(0);
        b.handle_datagram(now, mme(), &first.payload);
        let (id, ..) = received(&mut b);
        b.respond_with_request(now, id, 1, accepted(), common::create_bearer_request()).unwrap();
        let both = sent(&mut b).remove(0);
        // The repeated request is answered with both.
        b.handle_datagram(now, mme(), &first.payload);
        assert_eq!(sent(&mut b), std::slice::from_ref(&both));
        // Without an answer, the piggybacked request is sent alone to the port of requests.
        now = b.poll_timeout().unwrap();
        b.handle_timeout(now);
        let alone = sent(&mut b).remove(0);
        assert_eq!((header(&alone).message_type, alone.to), (MessageType::CreateBearerRequest, mme()));
        // The peer takes it once, whichever comes first.
        a.handle_datagram(now, sgw(), &alone.payload);
        a.handle_datagram(now, sgw(), &both.payload);
        let got = events(&mut a);
        assert!(matches!(got[..], [Event::Request { .. }, Event::Response { .. }]), "{got:?}");
        // A second answer to the same request sends nothing.
        let again = b.respond_with_request(now, id, 1, accepted(), common::create_bearer_request());
        assert_eq!((again, sent(&mut b).len()), (Ok(None), 0));
    }

    #[test]
    fn a_third_message_is_not_read() {
        let mut b = endpoint(2);
        let mut bytes = Vec::new();
        for sequence in 1..4 {
            let start = bytes.len();
            Message::from(delete()).encode(1, sequence, &mut bytes).unwrap();
            bytes[start] |= 0x10;
        }
        b.handle_datagram(start(), mme(), &bytes);
        assert_eq!((events(&mut b).len(), b.counters().malformed), (2, 1));
    }

    #[test]
    fn two_messages_that_do_not_fit_are_not_sent() {
        let mut b = endpoint(2);
        let now = start();
        b.handle_datagram(now, mme(), &encoded(request(), 0, 7));
        let (id, ..) = received(&mut b);
        let long = CreateSessionResponse { pco: Some(Octets(vec![0; 60_000])), ..accepted() };
        let also =
            CreateBearerRequest { pco: Some(Octets(vec![0; 60_000])), ..common::create_bearer_request() };
        assert!(matches!(b.respond_with_request(now, id, 1, long, also), Err(SendError::Encode(_))));
        assert_eq!((sent(&mut b).len(), b.poll_timeout()), (0, None));
        b.respond(now, id, 1, accepted()).unwrap();
        assert_eq!(sent(&mut b).len(), 1, "the request can still be answered");
    }
}

#[test]
fn an_indication_is_given_to_the_owner_and_not_answered() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    let now = start();
    let indication = DownlinkDataNotificationFailureIndication {
        cause: CauseValue::UE_NOT_RESPONDING.into(),
        ..Default::default()
    };
    a.send_indication(sgw(), 9, indication.clone()).unwrap();
    assert!(matches!(a.send_indication(sgw(), 9, delete()), Err(SendError::Direction(_))));
    exchange(&mut a, &mut b, now);
    let message = indication.into();
    assert_eq!(events(&mut b), [Event::Indication { peer: mme(), teid: 9, message }]);
    assert_eq!((a.poll_timeout(), sent(&mut b).len()), (None, 0));
}

mod peers {
    use super::*;

    fn echo(counter: u8) -> EchoRequest {
        EchoRequest { recovery: Recovery(counter), node_features: None }
    }

    /// An endpoint that knows that the peer's restart counter is 200.
    fn watching(now: Instant) -> Endpoint {
        let mut a = endpoint(100);
        assert!(a.add_peer(now, sgw()));
        exchange(&mut a, &mut endpoint(200), now);
        assert_eq!(events(&mut a), []);
        assert_eq!(a.peer_restart_counter(sgw().ip()), Some(Recovery(200)));
        a
    }

    fn restarted(counter: u8, since: Instant) -> Vec<Event> {
        vec![Event::PeerRestarted { peer: sgw().ip(), restart_counter: Recovery(counter), since }]
    }

    fn ask_next(a: &mut Endpoint, b: &mut Endpoint, now: &mut Instant) -> Vec<Event> {
        *now = a.poll_timeout().unwrap();
        a.handle_timeout(*now);
        exchange(a, b, *now);
        events(a)
    }

    #[test]
    fn echo_is_answered_here() {
        let mut b = endpoint(9);
        b.handle_datagram(start(), mme(), &encoded(echo(1), 0, 5));
        assert_eq!(events(&mut b), []);
        let (header, message) = Message::decode(&sent(&mut b)[0].payload).unwrap();
        assert_eq!((header.teid, header.sequence), (None, 5));
        assert_eq!(message, EchoResponse { recovery: Recovery(9), node_features: None }.into());
    }

    #[test]
    fn a_restart_is_told_once_and_counters_wrap() {
        let mut now = start();
        let mut a = watching(now);
        assert_eq!(ask_next(&mut a, &mut endpoint(201), &mut now), restarted(201, now));
        assert_eq!(ask_next(&mut a, &mut endpoint(201), &mut now), [], "told once");
        assert_eq!(ask_next(&mut a, &mut endpoint(200), &mut now), [], "a late message");
        assert_eq!(a.peer_restart_counter(sgw().ip()), Some(Recovery(201)));
        // 255 is followed by 0.
        assert_eq!(ask_next(&mut a, &mut endpoint(3), &mut now), restarted(3, now));
    }

    /// A peer that numbers its requests from the start after each restart gets no answer of its former run, once the restart is
    /// confirmed. What it has asked since is remembered.
    #[test]
    fn a_restarted_peer_may_use_its_numbers_again() {
        let mut now = start();
        let mut a = watching(now);
        let deleted = || DeleteSessionResponse { cause: CauseValue::ACCEPTED.into(), ..Default::default() };
        for (peer, sequence) in [(sgw(), 1), (sgw(), 2), (mme(), 1)] {
            a.handle_datagram(now, peer, &encoded(delete(), 5, sequence));
            let (id, ..) = received(&mut a);
            a.respond(now, id, 5, deleted()).unwrap();
        }
        now += Duration::from_secs(1);
        let suspected = now;
        let first = encoded(CreateSessionRequest { recovery: Some(Recovery(201)), ..request() }, 0, 2);
        a.handle_datagram(now, sgw(), &first);
        let (id, ..) = received(&mut a);
        a.respond(now, id, 5, accepted()).unwrap();
        sent(&mut a);
        assert_eq!(ask_next(&mut a, &mut endpoint(201), &mut now), restarted(201, suspected));

        a.handle_datagram(now, sgw(), &encoded(delete(), 6, 1));
        let (id, teid, _) = received(&mut a);
        assert_eq!((id.sequence, teid), (1, 6), "another request with a number of the former run");
        a.handle_datagram(now, sgw(), &first);
        a.handle_datagram(now, mme(), &encoded(delete(), 5, 1));
        assert_eq!(
            (events(&mut a), sent(&mut a).len()),
            (vec![], 2),
            "repeated ones are answered from memory"
        );
    }

    /// Somebody who forges the peer's address can send requests and guess responses. So a new counter is believed only
    /// when the peer has confirmed it in an Echo Response that was asked for.
    #[test]
    fn a_forged_restart_counter_is_not_believed() {
        let mut now = start();
        let mut a = watching(now);
        let forged = CreateSessionRequest { recovery: Some(Recovery(210)), ..request() };
        a.handle_datagram(now, sgw(), &encoded(forged, 0, 1));
        assert!(matches!(events(&mut a)[..], [Event::Request { .. }]), "left to the owner");
        // It makes us ask the peer, once however often it is repeated.
        for sequence in 2..100 {
            a.handle_datagram(now, sgw(), &encoded(echo(210), 0, sequence));
        }
        assert_eq!(events(&mut a), []);
        let out = sent(&mut a);
        let asked: Vec<_> =
            out.iter().map(header).filter(|header| header.message_type == MessageType::EchoRequest).collect();
        assert_eq!((out.len(), asked.len()), (99, 1));
        let answer = |sequence| {
            encoded(EchoResponse { recovery: Recovery(210), node_features: None }, 0, sequence & 0x7f_ffff)
        };
        // Responses with numbers near ours are nobody's, nor is one from another port.
        for near in 1..1000 {
            a.handle_datagram(now, sgw(), &answer(asked[0].sequence.wrapping_add(near)));
            a.handle_datagram(now, sgw(), &answer(asked[0].sequence.wrapping_sub(near)));
        }
        a.handle_datagram(now, "127.0.0.7:4000".parse().unwrap(), &answer(asked[0].sequence));
        assert_eq!(events(&mut a), []);
        assert_eq!(a.peer_restart_counter(sgw().ip()), Some(Recovery(200)));
        // The peer's own answer counts, whatever it says.
        let mut real = endpoint(200);
        for transmit in out {
            real.handle_datagram(now, mme(), &transmit.payload);
        }
        exchange(&mut a, &mut real, now);
        assert_eq!(events(&mut a), []);
        // When it has restarted indeed, it says so to the next question. The first message that showed it counts.
        now += Duration::from_secs(3);
        let suspected = now;
        a.handle_datagram(now, sgw(), &encoded(echo(201), 0, 500));
        now += Duration::from_millis(50);
        exchange(&mut a, &mut endpoint(201), now);
        assert_eq!(events(&mut a), restarted(201, suspected));
    }

    /// Counters in responses to requests other than echo are asked about, too.
    #[test]
    fn a_counter_in_a_response_makes_us_ask() {
        let now = start();
        let mut a = watching(now);
        a.send_request(now, sgw(), 1, delete()).unwrap();
        let sequence = header(&sent(&mut a)[0]).sequence;
        let response = DeleteSessionResponse { recovery: Some(Recovery(201)), ..Default::default() };
        a.handle_datagram(now, sgw(), &encoded(response, 5, sequence));
        assert!(matches!(events(&mut a)[..], [Event::Response { .. }]));
        exchange(&mut a, &mut endpoint(201), now);
        assert_eq!(events(&mut a), restarted(201, now));
    }

    #[test]
    fn a_silent_peer_fails_once_and_recovers() {
        let (mut a, mut b) = (endpoint(1), endpoint(2));
        let mut now = start();
        a.add_peer(now, sgw());
        let mut got = Vec::new();
        for _ in 0..20 {
            now = a.poll_timeout().unwrap();
            a.handle_timeout(now);
            sent(&mut a);
            got.extend(events(&mut a));
        }
        assert_eq!(got, [Event::PeerFailed { peer: sgw().ip() }]);
        let recovered = (0..20).flat_map(|_| ask_next(&mut a, &mut b, &mut now)).next();
        assert_eq!(recovered, Some(Event::PeerRecovered { peer: sgw().ip() }));
    }

    /// Who waits for a dead peer waits for one T3-RESPONSE, and one that is back is reached at once.
    #[test]
    fn a_peer_that_has_failed_is_tried_once() {
        let (mut a, mut now) = (endpoint(1), start());
        a.add_peer(now, sgw());
        pass(&mut a, &mut now, Duration::from_secs(10), None);
        let tries = |a: &mut Endpoint, now: &mut Instant| {
            let handle = a.send_request(*now, sgw(), 1, delete()).unwrap();
            let mut out = sent(a);
            while !events(a)
                .iter()
                .any(|event| matches!(event, Event::Failed { handle: h, .. } if *h == handle))
            {
                *now = a.poll_timeout().unwrap();
                a.handle_timeout(*now);
                out.extend(sent(a));
            }
            out.iter().filter(|sent| header(sent).message_type == MessageType::DeleteSessionRequest).count()
        };
        assert_eq!(tries(&mut a, &mut now), 1);
        // It is there again: it sends something, or answers.
        a.handle_datagram(now, sgw(), &encoded(delete(), 5, 7));
        assert_eq!(tries(&mut a, &mut now), 3);
        pass(&mut a, &mut now, Duration::from_secs(70), Some(&mut endpoint(2)));
        assert_eq!(a.peer_restart_counter(sgw().ip()), Some(Recovery(2)));
        assert_eq!(tries(&mut a, &mut now), 3);
        pass(&mut a, &mut now, Duration::from_secs(100), None);
        let handle = a.send_request(now, sgw(), 1, delete()).unwrap();
        let sequence = header(&sent(&mut a)[0]).sequence;
        a.handle_datagram(now, sgw(), &encoded(DeleteSessionResponse::default(), 5, sequence));
        let got = events(&mut a);
        assert!(
            matches!(&got[..], [Event::PeerRecovered { .. }, Event::Response { handle: h, .. }] if *h == handle),
            "{got:?}"
        );
    }

    /// A peer that answers requests needs no Echo Requests; one that is no longer watched gets none.
    #[test]
    fn echo_waits_while_the_peer_answers() {
        let mut now = start();
        let mut a = watching(now);
        let first = a.poll_timeout().unwrap();
        assert_eq!(first, now + Duration::from_secs(60));
        now += Duration::from_secs(30);
        a.send_request(now, sgw(), 1, delete()).unwrap();
        let sequence = header(&sent(&mut a)[0]).sequence;
        a.handle_datagram(now, sgw(), &encoded(DeleteSessionResponse::default(), 5, sequence));
        assert_eq!(a.poll_timeout(), Some(now + Duration::from_secs(60)));
        a.remove_peer(sgw().ip());
        assert_eq!(a.poll_timeout(), None);
    }

    #[test]
    fn peers_are_bounded() {
        let mut config = Config::new(Recovery(1), 0);
        config.max_peers = 2;
        let mut a = Endpoint::new(config);
        let peer = |last: u8| SocketAddr::from(([10, 0, 0, last], PORT));
        let added: Vec<_> = (0..4).map(|last| a.add_peer(start(), peer(last))).collect();
        assert_eq!(added, [true, true, false, false]);
        assert!(a.add_peer(start(), peer(0)), "known");
        a.remove_peer(peer(0).ip());
        assert!(a.add_peer(start(), peer(3)));
    }

    fn few(most: usize) -> Endpoint {
        let mut config = Config::new(Recovery(1), 0);
        config.max_peers = most;
        Endpoint::new(config)
    }

    fn invented(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], PORT))
    }

    /// Lets time pass, in which the S-GW answers while `alive`, and nobody else.
    fn pass(a: &mut Endpoint, now: &mut Instant, time: Duration, mut alive: Option<&mut Endpoint>) {
        let end = *now + time;
        while let Some(next) = a.poll_timeout().filter(|next| *next <= end) {
            *now = next;
            a.handle_timeout(*now);
            for transmit in sent(a).into_iter().filter(|transmit| transmit.to == sgw()) {
                let Some(b) = &mut alive else { continue };
                b.handle_datagram(*now, mme(), &transmit.payload);
                for answer in sent(b) {
                    a.handle_datagram(*now, sgw(), &answer.payload);
                }
            }
        }
        *now = end;
        events(a);
    }

    #[test]
    fn a_peer_that_has_failed_gives_its_place_to_a_new_one() {
        let (mut a, mut now) = (few(4), start());
        let mut b = endpoint(200);
        assert!(a.add_peer(now, sgw()));
        exchange(&mut a, &mut b, now);
        assert!(a.add_peer(now, invented(1)));
        pass(&mut a, &mut now, Duration::from_secs(20), Some(&mut b));
        assert!(a.add_peer(now, invented(2)) && a.add_peer(now, invented(3)));
        assert!(a.add_peer(now, invented(4)), "the first has failed");
        assert!(!a.add_peer(now, invented(5)), "the others may still answer");
        assert_eq!((a.peers(), a.counters().peers_replaced, a.counters().peers_refused), (4, 1, 1));
        // The S-GW fails, too, but has answered before.
        pass(&mut a, &mut now, Duration::from_secs(200), None);
        assert!((6..9).all(|last| a.add_peer(now, invented(last))));
        assert_eq!(
            a.peer_restart_counter(sgw().ip()),
            Some(Recovery(200)),
            "those that never answered go first"
        );
        assert!(a.add_peer(now, invented(9)));
        assert_eq!((a.peers(), a.peer_restart_counter(sgw().ip())), (4, None));
        // One that answers again keeps its place.
        pass(&mut a, &mut now, Duration::from_secs(200), None);
        assert!(a.add_peer(now, sgw()));
        pass(&mut a, &mut now, Duration::from_secs(200), None);
        pass(&mut a, &mut now, Duration::from_secs(200), Some(&mut b));
        assert!((20..40).all(|last| {
            pass(&mut a, &mut now, Duration::from_secs(200), Some(&mut b));
            a.add_peer(now, invented(last))
        }));
        assert_eq!((a.peers(), a.peer_restart_counter(sgw().ip())), (4, Some(Recovery(200))));
    }

    #[test]
    fn a_peer_that_never_answers_is_forgotten_when_nothing_else_comes_from_it() {
        let (mut a, mut now) = (few(4), start());
        assert!(a.add_peer(now, sgw()) && a.add_peer(now, invented(1)) && a.add_peer(now, invented(2)));
        exchange(&mut a, &mut endpoint(200), now);
        for sequence in 1..8 {
            pass(&mut a, &mut now, Duration::from_secs(100), None);
            a.handle_datagram(now, invented(1), &encoded(delete(), 5, sequence));
        }
        assert_eq!(a.peers(), 2, "one still sends requests, and the S-GW has a restart counter");
        pass(&mut a, &mut now, Duration::from_secs(800), None);
        assert_eq!((a.peers(), a.peer_restart_counter(sgw().ip())), (1, Some(Recovery(200))));
        // It comes back after a long time.
        let back = (0..10).flat_map(|_| ask_next(&mut a, &mut endpoint(201), &mut now)).collect::<Vec<_>>();
        assert!(back.iter().any(|event| matches!(event, Event::PeerRestarted { .. })), "{back:?}");
    }

    #[test]
    fn a_counter_from_a_file_is_compared_with_the_first_answer() {
        let now = start();
        let mut a = endpoint(1);
        a.add_peer(now, sgw());
        a.set_restart_counter(sgw().ip(), Recovery(7));
        exchange(&mut a, &mut endpoint(8), now);
        assert_eq!(events(&mut a), restarted(8, now));
    }
}

/// A request by hand: header, then these IEs.
fn by_hand(kind: MessageType, ies: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x48, kind as u8, 0, 0, 0, 0, 0, 9, 0, 0, kind as u8, 0];
    bytes.extend_from_slice(ies);
    let length = (bytes.len() - 4) as u16;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

#[test]
fn malformed_requests_are_answered_with_cause_and_offending_ie() {
    let mut b = endpoint(2);
    let now = start();
    let mut send = |kind: MessageType, ies: &[u8]| {
        b.handle_datagram(now, mme(), &by_hand(kind, ies));
        (sent(&mut b), events(&mut b))
    };
    // Create Session Request with the sender's F-TEID: rejected towards that.
    let f_teid = [ie::F_TEID, 0, 9, 0, 0x8a, 0, 0, 0, 77, 127, 0, 0, 4];
    let (answers, got) = send(MessageType::CreateSessionRequest, &f_teid);
    assert_eq!(got, []);
    let (header, message) = Message::decode(&answers[0].payload).unwrap();
    let Message::CreateSessionResponse(response) = message else { panic!("{message:?}") };
    assert_eq!((header.teid, response.cause.value), (Some(77), CauseValue::MANDATORY_IE_MISSING));
    assert_eq!(response.cause.offending_ie, Some(OffendingIe::new(ie::RAT_TYPE, 0)));

    // The others: the owner knows the TEID.
    let (answers, got) = send(MessageType::UpdateBearerRequest, &[ie::BEARER_CONTEXT, 0, 0, 0]);
    assert_eq!(answers, []);
    let [Event::MalformedRequest { id, teid: 9, error, command: None }] = got[..] else { panic!("{got:?}") };
    assert_eq!(error, DecodeError::MandatoryMissing(OffendingIe::new(ie::EBI, 0)));
    b.reject(now, id, 42, error.cause().unwrap()).unwrap();
    let (header, message) = Message::decode(&sent(&mut b)[0].payload).unwrap();
    assert_eq!(header.teid, Some(42));
    assert!(
        matches!(message, Message::UpdateBearerResponse(r) if r.cause.value == CauseValue::MANDATORY_IE_MISSING)
    );
    assert_eq!(b.counters().malformed, 2);
}

/// A refusal may lack what an acceptance must have; an acceptance may not.
#[test]
fn malformed_responses_end_their_requests() {
    let mut a = endpoint(1);
    let now = start();
    let mut answered = |cause: &[u8], rest: &[u8]| {
        a.send_request(now, sgw(), 1, BearerResourceCommand::default()).unwrap();
        let sequence = header(&sent(&mut a)[0]).sequence.to_be_bytes();
        let mut bytes = by_hand(MessageType::BearerResourceFailureIndication, &[cause, rest].concat());
        bytes[8..11].copy_from_slice(&sequence[1..]);
        a.handle_datagram(now, sgw(), &bytes);
        events(&mut a)
    };
    let got = answered(&[ie::CAUSE, 0, 2, 0, 73, 0], &[]);
    let [Event::Failed { failure: Failure::Refused(cause), .. }] = got[..] else { panic!("{got:?}") };
    assert_eq!(cause.value, CauseValue::NO_RESOURCES);
    let got = answered(&[], &[ie::EBI, 0, 1, 0, 5]);
    let [Event::Failed { failure: Failure::Malformed(error), .. }] = got[..] else { panic!("{got:?}") };
    assert_eq!(error, DecodeError::MandatoryMissing(OffendingIe::new(ie::CAUSE, 0)));
}

#[test]
fn other_versions_are_answered_as_such_and_end_our_request() {
    let (mut a, mut b) = (endpoint(1), endpoint(2));
    let now = start();
    a.send_request(now, sgw(), 3, delete()).unwrap();
    let mut bytes = sent(&mut a)[0].payload.to_vec();
    bytes[0] |= 0x60;
    b.handle_datagram(now, mme(), &bytes);
    let answer = sent(&mut b).remove(0);
    a.handle_datagram(now, sgw(), &answer.payload);
    assert!(matches!(events(&mut a)[..], [Event::Failed { failure: Failure::Version, .. }]));

    // Version 1: an Echo Request with sequence number 0x1234.
    b.handle_datagram(now, mme(), &[0x32, 1, 0, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 0]);
    let header = header(&sent(&mut b)[0]);
    assert_eq!((header.message_type, header.sequence), (MessageType::VersionNotSupportedIndication, 0x1234));
    // Not answered: the indication itself, version 0, and what is too short to have a number.
    b.handle_datagram(now, mme(), &[0x32, 3, 0, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 0]);
    b.handle_datagram(now, mme(), &[0x12, 1, 0, 4, 0, 0, 0, 0, 0x12, 0x34, 0, 0]);
    b.handle_datagram(now, mme(), &[0x32, 1, 0, 4]);
    assert_eq!((sent(&mut b), b.counters().version), (vec![], 5));
}

#[test]
fn what_is_too_short_or_unknown_is_dropped_and_counted() {
    let mut b = endpoint(2);
    let now = start();
    b.handle_datagram(now, mme(), &[]);
    b.handle_datagram(now, mme(), &[0x48, 32, 0, 8, 0, 0, 0, 0]);
    b.handle_datagram(now, mme(), &[0x48, 254, 0, 8, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!((events(&mut b), sent(&mut b)), (vec![], vec![]));
    assert_eq!((b.counters().malformed, b.counters().unknown, b.counters().received), (2, 1, 3));
}
