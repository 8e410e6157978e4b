//! Bad input against each core (CO-13): a typed error, counted; the other calls answered, or failed with the reason.

use bytes::Bytes;
use cotcp::core::{ClientEvent, ServerEvent};
use cotcp::error::Violation;
use cotcp::frame::{EXTENDED, Frame, Options, kind};
use cotcp::{CallError, Code, Config, ConnectionError};

use crate::pair::{Pair, answered, body, octets, plain, v1};

fn pair() -> Pair {
    Pair::v2(Config::default(), Config::default())
}

/// A frame of any type and content.
fn raw(id: u32, kind: u8, rest: &[u8]) -> Vec<u8> {
    plain(id | EXTENDED, &[&[kind, 0], rest].concat())
}

fn begins() -> Frame {
    Frame::Request { more: true, one_way: false, options: Options::default(), body: body(10) }
}

fn data(more: bool, length: usize) -> Frame {
    Frame::Data { more, body: body(length) }
}

/// The connection ends with `error`; the peer is told its code; every open call hears of it.
fn server_ends(mut pair: Pair, wire: &[u8], error: ConnectionError) {
    pair.call("open");
    pair.settle();
    let open = match pair.server_events.pop() {
        Some(ServerEvent::Request(request)) => request.id,
        other => panic!("{other:?}"),
    };
    pair.server_events.clear();
    pair.feed_server(wire);
    assert_eq!(pair.server_error, Some(error.clone()), "{wire:02x?}");
    assert!(pair.server_events.contains(&ServerEvent::Cancelled { id: open, code: Code::INTERNAL }));
    assert_eq!(pair.server.stats().violations, 1);
    assert_eq!(pair.server.held_octets() - pair.server.output().len(), 0);
    pair.down(usize::MAX);
    let Some(ConnectionError::Peer { code, .. }) = pair.client_error else {
        panic!("{:?}", pair.client_error)
    };
    assert_eq!(Some(code), error.code());
    assert!(matches!(
        pair.client_events.last(),
        Some(ClientEvent::Failed { error: CallError::Connection { .. }, .. })
    ));
}

/// The same at the client. The call's ID is 0.
fn client_ends(mut pair: Pair, wire: &[u8], error: ConnectionError) {
    pair.settle();
    pair.client_events.clear();
    let calls = pair.client.open_calls();
    pair.feed_client(wire);
    assert_eq!(pair.client_error, Some(error.clone()), "{wire:02x?}");
    let failed = CallError::Connection { error, sent: true };
    let failed = pair
        .client_events
        .iter()
        .filter(|event| matches!(event, ClientEvent::Failed { error, .. } if *error == failed));
    assert_eq!(failed.count(), calls);
    assert_eq!((pair.client.stats().violations, pair.client.open_calls()), (1, 0));
}

#[test]
fn frames_that_may_not_be_end_the_connection() {
    let cases: [(Vec<u8>, Violation); 17] = [
        (plain(EXTENDED, b""), Violation::Short),
        (plain(EXTENDED, b"\x01"), Violation::Short),
        (raw(1, kind::REQUEST, b""), Violation::Short),
        (raw(1, kind::REQUEST, b"\x05\x01\x04\0\0"), Violation::Short),
        (raw(1, kind::REQUEST, b"\x04\x01\x04\0\0"), Violation::Option(1)),
        (raw(1, kind::REQUEST, b"\x03\x01\x01\0"), Violation::Option(1)),
        (raw(1, kind::REQUEST, b"\x03\x02\x01\x08"), Violation::Option(2)),
        (raw(1, kind::REQUEST, b"\x01\x09"), Violation::Option(9)),
        (raw(1, kind::CANCEL, b"\0"), Violation::Short),
        (raw(1, kind::CREDIT, b"\0\0\0"), Violation::Short),
        (raw(0, kind::PING, b"1234567"), Violation::Short),
        (raw(1, kind::PING, b"12345678"), Violation::Reserved(EXTENDED | 1)),
        (raw(0, 0, b""), Violation::UnknownType(0)),
        (raw(0, 10, b""), Violation::UnknownType(10)),
        (raw(1, kind::RESPONSE, b"\0"), Violation::WrongSide(kind::RESPONSE)),
        (raw(1 << 30 | 1, kind::DATA, b""), Violation::Reserved(3 << 30 | 1)),
        (plain(1 << 30, b""), Violation::Reserved(1 << 30)),
    ];
    for (wire, violation) in cases {
        server_ends(pair(), &wire, violation.into());
    }
    for (wire, violation) in [
        (raw(0, kind::REQUEST, b"\0"), Violation::WrongSide(kind::REQUEST)),
        (raw(0, kind::CANCEL, b"\0\0"), Violation::WrongSide(kind::CANCEL)),
        (raw(0, kind::RESPONSE, b""), Violation::Short),
        (raw(0, kind::ERROR, b"\0"), Violation::Short),
        (plain(1 << 30, b""), Violation::Reserved(1 << 30)),
        (plain(u32::MAX, b""), Violation::Short),
        (raw(0, kind::DATA, b"x"), Violation::Sequence(0)),
    ] {
        let mut pair = pair();
        pair.call("x");
        client_ends(pair, &wire, violation.into());
    }
}

/// Fragments out of order, and messages that begin twice or go on after their end.
#[test]
fn messages_out_of_order_end_the_connection() {
    let first = octets(9, &begins());
    let response = Frame::Response { more: true, body: body(5) };
    let whole = Frame::Request { more: false, one_way: false, options: Options::default(), body: body(5) };
    let cases = [
        ([first.clone(), first.clone()].concat(), Violation::Duplicate(9)),
        ([first.clone(), plain(9, b"x")].concat(), Violation::Duplicate(9)),
        ([plain(9, b"x"), plain(9, b"x")].concat(), Violation::Duplicate(9)),
        ([plain(9, b"x"), octets(9, &data(false, 5))].concat(), Violation::Sequence(9)),
        ([octets(9, &whole), octets(9, &data(true, 5))].concat(), Violation::Sequence(9)),
        (
            [first.clone(), octets(9, &data(false, 5)), octets(9, &data(false, 5))].concat(),
            Violation::Sequence(9),
        ),
    ];
    for (wire, violation) in cases {
        server_ends(pair(), &wire, violation.into());
    }
    for wire in [
        [octets(0, &response), octets(0, &response)].concat(),
        [octets(0, &response), plain(0, b"x")].concat(),
        octets(0, &data(false, 5)),
    ] {
        let mut pair = pair();
        pair.call("x");
        pair.call("y");
        client_ends(pair, &wire, Violation::Sequence(0).into());
    }
}

/// A duplicate ID with version 1: there is no way to tell the answers apart, so the connection ends.
#[test]
fn a_duplicate_id_of_version_1_ends_the_connection() {
    let mut pair = Pair::new(v1(), Config::default());
    pair.feed_server(&[plain(7, b"x"), plain(8, b"y"), plain(7, b"z")].concat());
    assert_eq!(pair.server_error, Some(Violation::Duplicate(7).into()));
    let cancelled = pair.server_events.iter().filter(|event| matches!(event, ServerEvent::Cancelled { .. }));
    assert_eq!(cancelled.count(), 2);
    // One that was answered may come again.
    let mut pair = Pair::new(v1(), Config::default());
    for _ in 0..3 {
        pair.feed_server(&plain(7, b"x"));
        pair.server_events.retain(|event| !matches!(event, ServerEvent::Version(_)));
        let Some(ServerEvent::Request(request)) = pair.server_events.pop() else { panic!() };
        pair.respond(request.id, "y");
    }
    assert_eq!(pair.server_error, None);
}

/// Unknown, late and duplicate answers reach nobody and hurt nobody.
#[test]
fn answers_to_nothing_are_counted() {
    for mut pair in [pair(), Pair::new(v1(), v1())] {
        let id = pair.call("x");
        pair.settle();
        pair.server_events.clear();
        let next = plain(id.wire() + (1 << 16), b"another generation");
        pair.feed_client(
            &[next, plain(77, b"unknown"), plain(id.wire(), b"once"), plain(id.wire(), b"twice")].concat(),
        );
        assert_eq!(pair.client_events, [answered(id, "once")]);
        assert_eq!((pair.client.stats().late, pair.client_error), (3, None));
    }
    let mut pair = pair();
    let none = pair.call("x");
    pair.client.cancel(pair.now, none, Code::CANCELLED);
    for frame in [
        Frame::Response { more: true, body: body(5) },
        data(true, 5),
        Frame::Error { code: Code(400), not_processed: false, text: "".into() },
        Frame::Credit { connection: false, octets: 5000 },
    ] {
        pair.frame_down(none.wire(), &frame);
        pair.frame_down(12345, &frame);
    }
    assert_eq!((pair.client.stats().late, &pair.client_error), (6, &None));
    for frame in
        [data(true, 5), Frame::Cancel { code: Code::NONE }, Frame::Credit { connection: false, octets: 5000 }]
    {
        pair.frame_up(12345, &frame);
    }
    assert_eq!((pair.server.stats().late, pair.server_error), (2, None));
}

/// More DATA than there is credit for, of the message and of the connection; more credit than there can be.
#[test]
fn overrunning_a_window_ends_the_connection() {
    let parts = || Pair::v2(Config::default(), Config { parts: true, ..Config::default() });
    let mut wire = octets(9, &begins());
    for _ in 0..16 {
        wire.extend(octets(9, &data(true, 4096)));
    }
    server_ends(parts(), &[&wire[..], &octets(9, &data(true, 1))].concat(), ConnectionError::FlowControl);
    let mut wire = Vec::new();
    for call in 100..116 {
        wire.extend(octets(call, &begins()));
        (0..16).for_each(|_| wire.extend(octets(call, &data(true, 4096))));
    }
    wire.extend(octets(116, &begins()));
    wire.extend(octets(116, &data(true, 1)));
    server_ends(parts(), &wire, ConnectionError::FlowControl);
    // What is put together gives credit back by itself, but not more than was used.
    let mut wire = octets(9, &begins());
    wire.extend(octets(9, &data(true, 32_000)));
    wire.extend(octets(9, &data(true, 33_537)));
    server_ends(pair(), &wire, ConnectionError::FlowControl);
    let credit = |connection| Frame::Credit { connection, octets: i32::MAX as u32 };
    server_ends(pair(), &octets(0, &credit(true)), ConnectionError::FlowControl);
    let mut pair = pair();
    let id = pair.call(body(500_000));
    let wire = octets(id.wire(), &credit(false));
    pair.client.fill(pair.now);
    pair.feed_client(&wire);
    assert_eq!(pair.client_error, Some(ConnectionError::FlowControl));
}

/// PING floods and their like; the answers are bounded as well.
#[test]
fn floods_end_the_connection() {
    let floods = [
        (0, Frame::Ping([0; 8])),
        (0, Frame::Pong([0; 8])),
        (5, Frame::Cancel { code: Code::NONE }),
        (5, Frame::Credit { connection: false, octets: 1 }),
        (0, Frame::Credit { connection: true, octets: 0 }),
        (5, data(true, 0)),
        (0, Frame::GoAway { code: Code::NONE, text: "".into() }),
    ];
    for (call, frame) in floods {
        let few = octets(call, &frame).repeat(1000);
        server_ends(pair(), &octets(call, &frame).repeat(1002), ConnectionError::Abuse);
        // As many in every second are stood.
        let mut pair = pair();
        for _ in 0..5 {
            pair.feed_server(&few);
            pair.now += std::time::Duration::from_secs(1);
            pair.down(usize::MAX);
        }
        assert_eq!(pair.server_error, None, "{frame:?}");
    }
    // Requests and their CANCELs in turn.
    let mut wire = Vec::new();
    for call in 0..1100 {
        wire.extend(plain(call << 8 | 5, b"work"));
        wire.extend(octets(call << 8 | 5, &Frame::Cancel { code: Code::CANCELLED }));
    }
    server_ends(pair(), &wire, ConnectionError::Abuse);
}

/// A client that opens more calls than it may gets each refused, and the others go on.
#[test]
fn calls_beyond_the_limit_are_refused() {
    let mut pair = Pair::v2(Config::default(), Config { max_calls: 10, ..Config::default() });
    for call in 0..30 {
        pair.feed_server(&plain(call, b"x"));
    }
    assert_eq!((pair.server_events.len(), pair.server.stats().refused), (10, 20));
    assert_eq!(pair.server.open_calls(), 10);
    let id = pair.request().id;
    pair.respond(id, "");
    pair.feed_server(&plain(50, b"x"));
    assert_eq!(pair.server_events.len(), 10);
}

/// A SIZE that lies: what is held is what came; a size beyond the limit is refused at once.
#[test]
fn sizes_that_lie_hold_nothing() {
    let mut pair = pair();
    let request = |size| Frame::Request {
        more: true,
        one_way: false,
        options: Options { size: Some(size), ..Options::default() },
        body: Bytes::new(),
    };
    for call in 0..500 {
        pair.frame_up(call, &request(16_777_216));
    }
    assert_eq!((pair.server.open_calls(), pair.server.held_octets()), (500, 0));
    pair.frame_up(500, &request(16_777_217));
    assert_eq!(pair.server.stats().refused, 1);
    // One that is longer than it said is a message like any other.
    pair.frame_up(600, &request(1));
    pair.frame_up(600, &data(false, 5000));
    assert!(matches!(&pair.server_events[..], [ServerEvent::Request(request)] if request.body.len() == 5000));
}

/// The most that one frame holds, and the frame after it.
#[test]
fn the_longest_frame_is_taken_whole() {
    let mut pair = Pair::new(v1(), v1());
    pair.feed_server(&[plain(1, &body(65_535)), plain(2, b"")].concat());
    assert_eq!(pair.request().body, body(65_535));
    assert_eq!(pair.request().body, "");
    let refused = pair.client.call(pair.now, body(65_536), &Default::default());
    assert_eq!(refused, Err(CallError::NeedsVersion2));
    let id = pair.call("x");
    pair.settle();
    let request = pair.request();
    assert_eq!(request.id.wire(), id.wire());
    assert_eq!(pair.server.respond(pair.now, request.id, body(65_536)), Err(CallError::TooLarge));
    assert_eq!(pair.server.stats().unanswered, 1);
}

/// Small parts do not keep the buffers that they came in.
#[test]
fn small_parts_are_copied() {
    let mut pair = Pair::v2(Config::default(), Config { parts: true, ..Config::default() });
    let mut wire = octets(9, &begins());
    wire.extend(octets(9, &data(true, 100)));
    wire.extend(octets(9, &data(true, 2000)));
    pair.feed_server(&wire);
    let unique: Vec<_> = pair
        .server_events
        .drain(..)
        .filter_map(|event| match event {
            ServerEvent::Part { body, .. } => Some(body.is_unique()),
            _ => None,
        })
        .collect();
    assert!(unique[0]);
}
