//! What a well-behaved pair does: calls, versions, errors, cancellation, going away.

use std::time::Duration;

use bytes::Bytes;
use cotcp::core::{CallOptions, ClientEvent, ServerEvent, Version};
use cotcp::{CallError, Code, Config, ConnectionError};

use crate::pair::{Pair, answered, body, plain, v1};

/// CO-2: answers in any order, each to its own call; also with each version at each side.
#[test]
fn answers_find_their_calls_in_any_order() {
    for (client, server) in [(Config::default(), Config::default()), (v1(), Config::default()), (v1(), v1())]
    {
        let mut pair = Pair::new(client, server);
        let ids: Vec<_> = (0..100).map(|n| pair.call(format!("request {n}"))).collect();
        pair.settle();
        pair.server_events.retain(|event| matches!(event, ServerEvent::Request(_)));
        let mut requests: Vec<_> = (0..100).map(|_| pair.request()).collect();
        requests.reverse();
        requests.swap(3, 70);
        for request in requests {
            let text = String::from_utf8(request.body.to_vec()).unwrap();
            pair.respond(request.id, text.replace("request", "answer"));
        }
        pair.settle();
        for (n, id) in ids.into_iter().enumerate() {
            assert!(pair.client_events.contains(&answered(id, format!("answer {n}"))));
        }
        assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (0, 0));
        assert_eq!(pair.client.stats().answered, 100);
    }
}

/// §9, octet for octet.
#[test]
fn the_example_of_the_specification() {
    use crate::pair::carry;
    let mut pair = Pair::new(Config { max_calls: 64, ..Config::default() }, Config::default());
    pair.call("ab");
    pair.call("c");
    let mut wire = bytes::BytesMut::new();
    carry(pair.client.output(), &mut wire, usize::MAX);
    let client = b"\xff\xff\xff\xff\x00\x0e\x00CoTCP\x01\x02\x01\x04\x00\x00\x00\x40\
        \x00\x00\x00\x00\x00\x02ab\x00\x00\x00\x01\x00\x01c";
    assert_eq!(wire[..], client[..]);
    pair.feed_server(&wire);
    pair.server_events.remove(0);
    let (first, second) = (pair.request(), pair.request());
    pair.respond(second.id, "C");
    pair.respond(first.id, "AB");
    wire.clear();
    carry(pair.server.output(), &mut wire, usize::MAX);
    let server =
        b"\xff\xff\xff\xff\x00\x08\x00CoTCP\x02\x02\x00\x00\x00\x01\x00\x01C\x00\x00\x00\x00\x00\x02AB";
    assert_eq!(wire[..], server[..]);
    pair.feed_client(&wire);
    let options = CallOptions { deadline: Some(Duration::from_secs(1)), ..CallOptions::default() };
    pair.call_with("de", &options);
    wire.clear();
    carry(pair.client.output(), &mut wire, usize::MAX);
    assert_eq!(wire[..], b"\x80\x00\x00\x02\x00\x0b\x01\x00\x06\x01\x04\x00\x00\x03\xe8de"[..]);
    pair.feed_server(&wire);
    let request = pair.request();
    assert_eq!(request.deadline(), Some(pair.now + Duration::from_secs(1)));
    pair.server.fail(pair.now, request.id, Code::OVERLOADED, "busy", false).unwrap();
    wire.clear();
    carry(pair.server.output(), &mut wire, usize::MAX);
    assert_eq!(wire[..], b"\x80\x00\x00\x02\x00\x08\x04\x00\x00\x04busy"[..]);
}

/// CO-7: whatever a version 1 server makes of the HELLO, the connection goes on with version 1.
#[test]
fn a_version_1_server_survives_the_hello() {
    let client_hello = cotcp::hello::encode(true, cotcp::hello::Limits::default());
    for reply in [Some(&b"error: what is this?"[..]), Some(&client_hello), Some(b""), None] {
        let mut pair = Pair::new(Config::default(), v1());
        let id = pair.call("plain");
        let long = pair.call_with(body(100_000), &CallOptions::default());
        pair.settle();
        let hello = pair.request();
        assert_eq!(hello.id.wire(), u32::MAX);
        if let Some(reply) = reply {
            pair.respond(hello.id, Bytes::copy_from_slice(reply));
        }
        let request = pair.request();
        pair.respond(request.id, "answer");
        pair.settle();
        if reply.is_none() {
            assert_eq!(pair.client.version(), Version::Undecided);
            pair.pass_flowing(Duration::from_secs(3));
        }
        assert_eq!(pair.client.version(), Version::V1);
        assert!(pair.client_events.contains(&answered(id, "answer")));
        let failed = ClientEvent::Failed { id: long, error: CallError::NeedsVersion2 };
        assert!(pair.client_events.contains(&failed), "{:?}", pair.client_events);
        let refused = pair.client.call(pair.now, body(100_000), &CallOptions::default());
        assert_eq!(refused, Err(CallError::NeedsVersion2));
        // Up to 65,535 octets go whole.
        let most = pair.call(body(65_535));
        pair.settle();
        let request = pair.request();
        assert_eq!(request.body, body(65_535));
        pair.respond(request.id, request.body);
        pair.settle();
        assert!(pair.client_events.contains(&answered(most, body(65_535))));
    }
}

/// §2: a HELLO that comes late still counts, and calls that waited for it go.
#[test]
fn a_late_hello_counts() {
    let mut pair = Pair::new(Config::default(), Config::default());
    pair.pass(Duration::from_secs(4));
    assert_eq!(pair.client.version(), Version::V1);
    pair.settle();
    assert_eq!(pair.client.version(), Version::V2);
    pair.server_events.clear();
    let mut pair = Pair::new(Config::default(), Config::default());
    let id = pair.call(body(1_000_000));
    pair.settle();
    pair.server_events.remove(0);
    let request = pair.request();
    assert_eq!(request.body, body(1_000_000));
    pair.respond(request.id, body(2_000_000));
    pair.settle();
    assert!(pair.client_events.contains(&answered(id, body(2_000_000))));
}

/// §2: a HELLO is one only as the first frame; a request with its ID is like any other.
#[test]
fn a_hello_that_is_not_first_is_a_request() {
    let mut pair = Pair::new(v1(), Config::default());
    pair.call("first");
    pair.settle();
    let hello = cotcp::hello::encode(true, cotcp::hello::Limits::default());
    pair.feed_server(&plain(u32::MAX, &hello));
    assert_eq!(pair.server.version(), Version::V1);
    assert_eq!(pair.server_events.len(), 3);
    assert!(matches!(&pair.server_events[2], ServerEvent::Request(request) if request.body == hello));
}

/// CO-9: an error of the application reaches the caller whole; with version 1 as configured.
#[test]
fn errors_reach_the_caller() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    let id = pair.call("x");
    pair.settle();
    let request = pair.request();
    pair.server.fail(pair.now, request.id, Code(300), &"ä".repeat(600), true).unwrap();
    assert_eq!(pair.server.respond(pair.now, request.id, Bytes::new()), Err(CallError::Unknown));
    pair.settle();
    let error = CallError::Remote { code: Code(300), not_processed: true, text: "ä".repeat(512).into() };
    assert!(error.not_processed());
    assert_eq!(pair.client_events, [ClientEvent::Failed { id, error }]);

    let told = Config { v1_error_body: Some("oops".into()), ..Config::default() };
    for (config, answer) in [(told, Some("oops")), (Config::default(), None)] {
        let mut pair = Pair::new(v1(), config);
        let id = pair.call("x");
        pair.settle();
        pair.server_events.remove(0);
        let request = pair.request();
        pair.server.fail(pair.now, request.id, Code::INTERNAL, "", false).unwrap();
        pair.settle();
        assert_eq!(pair.client_events, answer.map(|text| answered(id, text)).into_iter().collect::<Vec<_>>());
        assert_eq!(pair.server.stats().unanswered, u64::from(answer.is_none()));
    }
}

/// CO-9: options arrive; a response given later goes through the table.
#[test]
fn options_arrive() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    let options = CallOptions {
        deadline: Some(Duration::from_millis(1500)),
        priority: 0,
        trace: Some("00-0af7-b7ad-01".into()),
        ..CallOptions::default()
    };
    for size in [10, 4096, 4097, 100_000] {
        let id = pair.call_with(body(size), &options);
        pair.settle();
        let request = pair.request();
        assert_eq!(request.body.len(), size);
        assert_eq!(request.deadline(), Some(pair.now + Duration::from_millis(1500)));
        assert_eq!((request.priority(), request.is_one_way()), (0, false));
        assert_eq!(request.trace().unwrap(), "00-0af7-b7ad-01");
        assert_eq!(request.size(), (size > 4096).then_some(size as u64));
        pair.respond(request.id, request.body);
        pair.settle();
        assert_eq!(std::mem::take(&mut pair.client_events), [answered(id, body(size))]);
    }
    let trace = CallOptions { trace: Some(body(129)), ..CallOptions::default() };
    assert_eq!(pair.client.call(pair.now, Bytes::new(), &trace), Err(CallError::TooLarge));
}

/// CO-9: a call that is given up is told to the server; the late answer reaches nobody.
#[test]
fn cancelled_calls_end_on_both_sides() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    let (first, second) = (pair.call("1"), pair.call("2"));
    pair.settle();
    let (one, two) = (pair.request(), pair.request());
    assert!(pair.client.cancel(pair.now, first, Code::CANCELLED));
    assert!(!pair.client.cancel(pair.now, first, Code::CANCELLED));
    assert!(pair.client.cancel(pair.now, second, Code::CANCELLED));
    // The answer to the first crosses its CANCEL.
    pair.respond(one.id, "late");
    pair.settle();
    let cancelled = ServerEvent::Cancelled { id: two.id, code: Code::CANCELLED };
    assert_eq!(pair.server_events, [cancelled]);
    assert_eq!(pair.server.respond(pair.now, two.id, "x".into()), Err(CallError::Unknown));
    assert_eq!(pair.client_events, []);
    assert_eq!((pair.client.stats().late, pair.server.stats().late), (1, 1));
    assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (0, 0));
}

/// Version 1 cannot cancel; the ID stays reserved until the answer comes, and the answer reaches nobody.
#[test]
fn version_1_keeps_the_id_of_a_call_given_up() {
    let mut pair = Pair::new(v1(), v1());
    let id = pair.call("x");
    assert!(pair.client.cancel(pair.now, id, Code::CANCELLED));
    pair.settle();
    let request = pair.request();
    pair.pass_flowing(Duration::from_secs(20));
    pair.respond(request.id, "late");
    pair.settle();
    assert_eq!(pair.client_events, []);
    assert_eq!(pair.client.stats().late, 1);
}

/// CO-10: after GO_AWAY no new calls, the open ones end, both sides see that they are done.
#[test]
fn both_sides_drain() {
    for server_leaves in [true, false] {
        let mut pair = Pair::v2(Config::default(), Config::default());
        let id = pair.call(body(50_000));
        pair.settle();
        let request = pair.request();
        if server_leaves {
            // This one crosses the GO_AWAY.
            let crossing = pair.call("crossing");
            pair.server.go_away("maintenance");
            assert!(!pair.server.is_drained());
            pair.settle();
            let text = "the server takes no new calls".into();
            let error = CallError::Remote { code: Code::REFUSED, not_processed: true, text };
            assert_eq!(
                pair.client_events,
                [ClientEvent::GoAway, ClientEvent::Failed { id: crossing, error }]
            );
        } else {
            pair.client.go_away();
            pair.settle();
            assert_eq!(pair.server_events, [ServerEvent::GoAway]);
        }
        let refused = pair.client.call(pair.now, Bytes::new(), &CallOptions::default());
        assert_eq!(refused, Err(CallError::GoingAway));
        assert!(!pair.client.is_drained() && !pair.server.is_drained());
        pair.respond(request.id, body(60_000));
        pair.settle();
        assert!(pair.client_events.contains(&answered(id, body(60_000))));
        assert!(pair.client.is_drained() && pair.server.is_drained());
    }
}

/// CO-10: what is in flight when the stream ends fails at once, with the reason, and whether it may be repeated.
#[test]
fn the_end_of_the_stream_fails_what_is_open() {
    let mut pair = Pair::new(Config::default(), Config::default());
    let sent = pair.call("sent");
    let held = pair.call(body(100_000));
    pair.up(usize::MAX);
    let id = match &pair.server_events[1] {
        ServerEvent::Request(request) => request.id,
        other => panic!("{other:?}"),
    };
    pair.client.end_of_stream();
    pair.server.input().extend_from_slice(b"\0\0");
    pair.server.end_of_stream();
    pair.poll_client();
    pair.poll_server();
    let failed = |id, sent| {
        let error = CallError::Connection { error: ConnectionError::Closed, sent };
        ClientEvent::Failed { id, error }
    };
    assert_eq!(pair.client_events, [failed(sent, true), failed(held, false)]);
    assert_eq!(pair.client_error, Some(ConnectionError::Closed));
    assert_eq!(pair.server_events[2..], [ServerEvent::Cancelled { id, code: Code::INTERNAL }]);
    assert_eq!(pair.server_error, Some(ConnectionError::Truncated));
    assert!(!pair.client.wants_input() && !pair.server.wants_input());
    let refused = pair.client.call(pair.now, Bytes::new(), &CallOptions::default()).unwrap_err();
    assert!(refused.not_processed());
    assert_eq!(pair.server.respond(pair.now, id, Bytes::new()), Err(CallError::Unknown));
    assert_eq!((pair.client.deadline(), pair.server.deadline()), (None, None));
}

/// A limit on calls: the client holds to its own and the server's.
#[test]
fn calls_are_bounded() {
    let few = Config { max_calls: 3, ..Config::default() };
    for (client, server) in [(few.clone(), Config::default()), (Config::default(), few.clone())] {
        let mut pair = Pair::v2(client, server);
        for _ in 0..3 {
            pair.call("x");
        }
        assert_eq!(pair.client.capacity(), 0);
        let refused = pair.client.call(pair.now, Bytes::new(), &CallOptions::default());
        assert_eq!(refused, Err(CallError::Busy));
        pair.settle();
        let id = pair.request().id;
        pair.respond(id, "");
        pair.settle();
        assert_eq!(pair.client.capacity(), 1);
    }
    // A version 1 server does not read on instead.
    let mut pair = Pair::new(v1(), few);
    for _ in 0..5 {
        pair.call("x");
    }
    pair.settle();
    assert_eq!(pair.server_events.len(), 1 + 3);
    assert!(!pair.server.wants_input());
    pair.server_events.remove(0);
    let id = pair.request().id;
    pair.respond(id, "");
    pair.poll_server();
    assert_eq!(pair.server_events.len(), 3);
}

/// A call's place is nobody else's until its end was reported, however the end came.
#[test]
fn places_are_free_when_the_end_was_reported() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    let one_way = CallOptions { one_way: true, ..CallOptions::default() };
    let deadline = CallOptions { deadline: Some(Duration::from_secs(1)), ..CallOptions::default() };
    for round in 0..3 {
        let mut ids: Vec<_> = (0..200).map(|_| pair.call_with("x", &one_way)).collect();
        ids.extend((0..200).map(|_| pair.call_with(body(5000), &one_way)));
        pair.client.fill(pair.now);
        ids.extend((0..200).map(|_| pair.call_with(body(5000), &deadline)));
        pair.now += Duration::from_secs(1);
        pair.client.time_out(pair.now);
        ids.extend((0..200).map(|_| pair.call("x")));
        let places: std::collections::HashSet<_> = ids.iter().map(|id| id.place()).collect();
        assert_eq!(places.len(), 800, "round {round}");
        while pair.client.open_calls() > 0 {
            pair.up(usize::MAX);
            for event in std::mem::take(&mut pair.server_events) {
                if let ServerEvent::Request(request) = event {
                    pair.respond(request.id, "");
                }
            }
            pair.down(usize::MAX);
        }
        assert_eq!(std::mem::take(&mut pair.client_events).len(), 800);
    }
}
