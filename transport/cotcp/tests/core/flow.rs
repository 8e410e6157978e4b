//! Large messages and streams: fragments, turns, credit, parts (CO-6, CO-8).

use bytes::Bytes;
use cotcp::core::{CallOptions, ClientEvent, ServerEvent};
use cotcp::{CallError, Code, Config};

use crate::pair::{Pair, answered, body};

fn parts() -> Config {
    Config { parts: true, ..Config::default() }
}

/// CO-6: small calls pass a large message, both ways, and never wait behind more than the outbox holds.
#[test]
fn small_calls_pass_large_ones() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    let large = pair.call(body(4_000_000));
    let mut small_done = 0;
    for round in 0.. {
        if round < 100 {
            pair.call("small");
        }
        pair.up(20_000);
        for event in std::mem::take(&mut pair.server_events) {
            let ServerEvent::Request(request) = event else { panic!("{event:?}") };
            let body = if request.body == "small" { request.body } else { body(3_000_000) };
            pair.respond(request.id, body);
        }
        pair.down(20_000);
        for event in std::mem::take(&mut pair.client_events) {
            match event {
                ClientEvent::Answered { id, body: answer } if id == large => {
                    assert_eq!(answer, body(3_000_000));
                    assert_eq!(small_done, 100);
                    // The last credit is still to be sent.
                    pair.settle();
                    assert_eq!(pair.client.held_octets() + pair.server.held_octets(), 0);
                    return;
                }
                ClientEvent::Answered { .. } => small_done += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(pair.client.output().len() < 32_768 + 5_000);
        assert!(round >= 100 || small_done == round + 1, "round {round}: {small_done}");
    }
}

/// CO-9: of two messages the more urgent is done first, and the other has moved meanwhile.
#[test]
fn urgent_messages_get_more_of_the_stream() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    let slow = pair.call_with(body(1_000_000), &CallOptions { priority: 5, ..CallOptions::default() });
    let fast = pair.call_with(body(1_000_000), &CallOptions { priority: 2, ..CallOptions::default() });
    let mut order = Vec::new();
    while order.len() < 2 {
        pair.up(16_384);
        pair.down(usize::MAX);
        for event in std::mem::take(&mut pair.server_events) {
            let ServerEvent::Request(request) = event else { panic!("{event:?}") };
            order.push((request.id.wire(), pair.client.held_octets()));
        }
    }
    assert_eq!([order[0].0, order[1].0], [fast.wire(), slow.wire()]);
    assert!((800_000..900_000).contains(&order[0].1), "{order:?}");
}

/// A storm of small calls that keeps the outbox full does not keep a large one from ending.
#[test]
fn large_messages_do_not_starve() {
    let mut pair = Pair::v2(
        Config { max_calls: 30_000, ..Config::default() },
        Config { max_calls: 30_000, ..Config::default() },
    );
    pair.call_with(body(200_000), &CallOptions { priority: 7, ..CallOptions::default() });
    for round in 0.. {
        while pair.client.output().len() < 40_000 {
            pair.call(body(100));
        }
        pair.up(8_000);
        for event in std::mem::take(&mut pair.server_events) {
            let ServerEvent::Request(request) = event else { panic!("{event:?}") };
            if request.body.len() == 200_000 {
                return;
            }
            pair.respond(request.id, "");
        }
        pair.down(usize::MAX);
        pair.client_events.clear();
        assert!(round < 2000);
    }
}

/// CO-8: what is not consumed is not sent on; each direction of a stream stops at its window and goes on with credit.
#[test]
fn parts_are_bounded_by_credit() {
    let mut pair = Pair::v2(Config::default(), parts());
    let options = CallOptions { more: true, parts: true, ..CallOptions::default() };
    let id = pair.call_with("", &options);
    pair.settle();
    let request = pair.request();
    assert!(!request.whole);
    // Until the queue here is full as well.
    let (mut pushed, mut busy) = (0, false);
    while !busy {
        match pair.client.send_part(pair.now, id, body(10_000), false) {
            Ok(()) => pushed += 10_000,
            Err(CallError::Busy) => busy = true,
            Err(other) => panic!("{other:?}"),
        }
        pair.settle();
    }
    let mut received = 0;
    let mut take = |pair: &mut Pair| {
        let mut taken = 0;
        for event in std::mem::take(&mut pair.server_events) {
            let ServerEvent::Part { body, last: false, .. } = event else { panic!("{event:?}") };
            taken += body.len();
        }
        received += taken;
        (taken, received)
    };
    assert_eq!(take(&mut pair), (65_536, 65_536));
    assert!(pushed < 2 * 65_536 + 10_000);
    pair.server.consumed(request.id, 40_000);
    pair.settle();
    assert_eq!(take(&mut pair), (40_000, 105_536));
    assert_eq!(pair.client_events, [ClientEvent::Writable { id }]);
    pair.client_events.clear();
    // Both ends of both streams.
    pair.client.send_part(pair.now, id, Bytes::new(), true).unwrap();
    assert_eq!(pair.client.send_part(pair.now, id, Bytes::new(), true), Err(CallError::Unknown));
    pair.server.consumed(request.id, usize::MAX);
    pair.settle();
    assert!(matches!(pair.server_events.last(), Some(ServerEvent::Part { last: true, .. })));
    pair.server.send_part(pair.now, request.id, "one".into(), false).unwrap();
    pair.server.send_part(pair.now, request.id, "two".into(), true).unwrap();
    assert_eq!(pair.server.send_part(pair.now, request.id, "x".into(), true), Err(CallError::Unknown));
    pair.settle();
    let part = |body: &'static str, last| ClientEvent::Part { id, body: body.into(), last };
    assert_eq!(pair.client_events, [part("one", false), part("two", true)]);
    assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (0, 0));
}

/// Many messages at once share the connection's credit, and it never dries up, whatever is cancelled or refused.
#[test]
fn credit_of_the_connection_comes_back() {
    let config = Config { max_message: 300_000, ..Config::default() };
    let mut pair = Pair::v2(Config::default(), config);
    for round in 0..60 {
        let ids: Vec<_> = (0..8).map(|_| pair.call(body(250_000))).collect();
        pair.up(1 << 17);
        // One is cancelled half way, one answered before it is whole, as far as the server knows of it.
        pair.client.cancel(pair.now, ids[round % 8], Code::CANCELLED);
        pair.settle();
        for event in std::mem::take(&mut pair.server_events) {
            let ServerEvent::Request(request) = event else { panic!("{event:?}") };
            pair.respond(request.id, "done");
        }
        pair.settle();
        assert_eq!(std::mem::take(&mut pair.client_events).len(), 7, "round {round}");
        assert_eq!((pair.client.held_octets(), pair.server.held_octets()), (0, 0));
    }
}

/// §4.2: a server may answer before the request has ended; the rest of the request is dropped on both sides.
#[test]
fn an_early_answer_ends_the_request() {
    for size in [10, 100_000] {
        let mut pair = Pair::v2(Config::default(), parts());
        for _ in 0..30 {
            let id = pair.call(body(1_000_000));
            pair.up(50_000);
            let request = pair.request();
            assert_eq!(request.size(), Some(1_000_000));
            pair.respond(request.id, body(size));
            pair.settle();
            pair.server_events.clear();
            assert_eq!(std::mem::take(&mut pair.client_events), [answered(id, body(size))]);
            assert_eq!((pair.client.held_octets(), pair.server.held_octets()), (0, 0));
            assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (0, 0));
        }
    }
}

/// One-way calls of every size end at both sides without a word back.
#[test]
fn one_way_calls_end_alone() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    let one_way = CallOptions { one_way: true, ..CallOptions::default() };
    for size in [0, 4096, 4097, 300_000] {
        let id = pair.call_with(body(size), &one_way);
        pair.settle();
        assert_eq!(std::mem::take(&mut pair.client_events), [ClientEvent::Sent { id }]);
        assert_eq!(pair.client.open_calls(), 0);
        let request = pair.request();
        assert!(request.is_one_way());
        assert_eq!(request.body.len(), size);
        assert_eq!(pair.server.open_calls(), 1);
        if size == 0 {
            pair.server.fail(pair.now, request.id, Code::INTERNAL, "", false).unwrap();
        } else {
            pair.respond(request.id, "nobody hears this");
        }
        assert_eq!(pair.server.open_calls(), 0);
        assert!(pair.server.output().is_empty() || size > 4096);
    }
    pair.settle();
    assert_eq!(pair.client.stats().late, 0);
}

/// What is longer than the peer takes is refused before it is sent; one that lies about itself, by what has come.
#[test]
fn too_large_is_said_at_both_sides() {
    let small = Config { max_message: 5000, ..Config::default() };
    let mut pair = Pair::v2(small.clone(), Config::default());
    let id = pair.call("x");
    pair.settle();
    let request = pair.request();
    assert_eq!(pair.server.respond(pair.now, request.id, body(5001)), Err(CallError::TooLarge));
    pair.settle();
    let error = CallError::Remote {
        code: Code::TOO_LARGE,
        not_processed: false,
        text: "the answer is longer than the client takes".into(),
    };
    assert_eq!(pair.client_events, [ClientEvent::Failed { id, error }]);

    let mut pair = Pair::v2(Config::default(), small);
    let refused = pair.client.call(pair.now, body(5001), &CallOptions::default());
    assert_eq!(refused, Err(CallError::TooLarge));
    let id = pair.call_with("", &CallOptions { more: true, ..CallOptions::default() });
    pair.client.send_part(pair.now, id, body(6000), false).unwrap();
    pair.settle();
    assert_eq!(pair.server_events, []);
    let failed = matches!(
        &pair.client_events[..],
        [ClientEvent::Failed {
            error: CallError::Remote { code: Code::TOO_LARGE, not_processed: true, .. },
            ..
        }]
    );
    assert!(failed, "{:?}", pair.client_events);
}

/// What is held of unfinished messages is bounded: the one that goes beyond fails, the others go on.
#[test]
fn the_assembly_budget_holds() {
    let config = Config { assembly_budget: 100_000, ..Config::default() };
    let mut pair = Pair::v2(config.clone(), config);
    for _ in 0..4 {
        pair.call(body(60_000));
    }
    pair.settle();
    let mut answers = 0;
    for event in std::mem::take(&mut pair.server_events) {
        let ServerEvent::Request(request) = event else { panic!("{event:?}") };
        pair.respond(request.id, body(60_000));
        answers += 1;
    }
    let overloaded = std::mem::take(&mut pair.client_events);
    assert_eq!(overloaded.len() + answers, 4);
    assert!(answers >= 1 && !overloaded.is_empty());
    pair.settle();
    assert_eq!(pair.client_events.len(), answers);
    assert_eq!((pair.client.held_octets(), pair.server.held_octets()), (0, 0));
}
