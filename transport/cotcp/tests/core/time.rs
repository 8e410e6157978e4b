//! What happens when nothing happens: deadlines, time-outs, keep-alive, slow readers (CO-9, CO-10, CO-13).

use std::time::Duration;

use cotcp::core::{CallOptions, ClientEvent, ServerEvent};
use cotcp::{CallError, Code, Config, ConnectionError};

use crate::pair::{Pair, body, plain, v1};

const SECOND: Duration = Duration::from_secs(1);

/// A deadline ends the call at both sides, to the millisecond, large or small, sent or not.
#[test]
fn deadlines_end_calls_on_both_sides() {
    for size in [10, 500_000] {
        let mut pair = Pair::v2(Config::default(), Config { call_window: 20_000, ..Config::default() });
        let options = CallOptions { deadline: Some(SECOND), ..CallOptions::default() };
        let id = pair.call_with(body(size), &options);
        pair.settle();
        let request = pair.request().id;
        assert!(pair.client.deadline().unwrap() <= pair.now + SECOND);
        pair.pass_flowing(SECOND - Duration::from_millis(2));
        assert_eq!((pair.client_events.len(), pair.server_events.len()), (0, 0));
        pair.pass_flowing(Duration::from_millis(4));
        assert_eq!(pair.client_events, [ClientEvent::Failed { id, error: CallError::Deadline }]);
        let cancelled = ServerEvent::Cancelled { id: request, code: Code::DEADLINE };
        assert_eq!(pair.server_events, [cancelled]);
        assert_eq!((pair.client.stats().timed_out, pair.server.stats().timed_out), (1, 1));
        assert_eq!((pair.client.open_calls(), pair.server.open_calls()), (0, 0));
    }
    let now = CallOptions { deadline: Some(Duration::ZERO), ..CallOptions::default() };
    let mut pair = Pair::v2(Config::default(), Config::default());
    assert_eq!(pair.client.call(pair.now, "x".into(), &now), Err(CallError::Deadline));
}

/// A version 1 server that says nothing: the deadline and the default time-out are the client's own.
#[test]
fn calls_time_out_without_help() {
    let mut pair = Pair::new(v1(), v1());
    let short = pair.call_with("x", &CallOptions { deadline: Some(SECOND), ..CallOptions::default() });
    let long = pair.call("y");
    pair.pass_flowing(SECOND);
    assert_eq!(pair.client_events, [ClientEvent::Failed { id: short, error: CallError::Deadline }]);
    pair.client_events.clear();
    pair.pass_flowing(SECOND * 31);
    assert_eq!(pair.client_events, [ClientEvent::Failed { id: long, error: CallError::Timeout }]);
}

/// A version 1 server that is gone without a word is taken for dead; one that says anything is not.
#[test]
fn a_mute_server_is_left() {
    for mute in [true, false] {
        let mut pair = Pair::new(v1(), v1());
        pair.call("x");
        pair.settle();
        for second in 0..70 {
            pair.pass(SECOND);
            if !mute && second % 20 == 0 {
                pair.call("y");
                pair.up(usize::MAX);
                let Some(ServerEvent::Request(request)) = pair.server_events.pop() else { panic!() };
                pair.respond(request.id, "y");
                pair.down(usize::MAX);
            }
        }
        assert_eq!(pair.client_error, mute.then_some(ConnectionError::Silent));
    }
}

/// Deadlines of calls that ended long before take no room.
#[test]
fn deadlines_of_ended_calls_are_forgotten() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    let options = CallOptions { deadline: Some(SECOND * 3600), ..CallOptions::default() };
    for _ in 0..20_000 {
        pair.call_with("x", &options);
        pair.up(usize::MAX);
        let id = pair.request().id;
        pair.respond(id, "");
        pair.down(usize::MAX);
    }
    assert_eq!(pair.client_events.len(), 20_000);
    let held = format!("{:?}", pair.client).len() + format!("{:?}", pair.server).len();
    assert!(held < 60_000, "{held} characters of state");
}

/// Silence is answered with a PING, silence after it ends the connection; a peer that answers stays.
#[test]
fn keep_alive_tells_the_silent_from_the_dead() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    pair.pass_flowing(SECOND * 3600);
    assert_eq!((&pair.client_error, &pair.server_error), (&None, &None));
    let pings = pair.client.stats().pings + pair.server.stats().pings;
    assert!((200..=500).contains(&pings), "{pings}");
    // Nothing flows any more.
    let id = pair.call("x");
    pair.pass(SECOND * 15);
    pair.pass(SECOND * 9);
    assert_eq!(pair.client_error, None);
    pair.pass(SECOND * 2);
    assert!(matches!(pair.client_error, Some(ConnectionError::Silent | ConnectionError::WriteTimeout)));
    assert!(matches!(pair.client_events[..], [ClientEvent::Failed { id: failed, .. }] if failed == id));
    // A version 1 connection cannot be pinged; the server closes it when it is idle for long.
    let mut pair = Pair::new(v1(), Config::default());
    pair.pass_flowing(SECOND * 599);
    assert_eq!(pair.server_error, None);
    pair.pass_flowing(SECOND * 2);
    assert_eq!(pair.server_error, Some(ConnectionError::Silent));
}

/// A peer that sends but does not read (CO-8: slow reader).
#[test]
fn a_slow_reader_is_cut_off() {
    let mut pair = Pair::v2(Config::default(), Config::default());
    pair.call("x");
    pair.settle();
    let request = pair.request();
    pair.respond(request.id, body(1_000_000));
    pair.server.fill(pair.now);
    for _ in 0..9 {
        pair.pass(SECOND);
        pair.server.fill(pair.now);
    }
    assert_eq!(pair.server_error, None);
    // A little progress counts.
    crate::pair::carry(pair.server.output(), &mut bytes::BytesMut::new(), 1);
    pair.server.fill(pair.now);
    pair.pass(SECOND * 9);
    assert_eq!(pair.server_error, None);
    pair.pass(SECOND * 2);
    assert_eq!(pair.server_error, Some(ConnectionError::WriteTimeout));
}

/// While a server does not read, for its client reads nothing, the client's silence is not held against it.
#[test]
fn backpressure_is_not_silence() {
    let server = Config { max_output: 1000, write_timeout: SECOND * 3600, ..Config::default() };
    let mut pair = Pair::v2(Config::default(), server);
    for _ in 0..10 {
        pair.call(body(200));
    }
    pair.up(1000);
    while !pair.server_events.is_empty() {
        let request = pair.request();
        pair.respond(request.id, body(2000));
    }
    assert!(!pair.server.wants_input());
    for _ in 0..100 {
        pair.now += SECOND;
        pair.server.time_out(pair.now);
        pair.poll_server();
    }
    assert_eq!(pair.server_error, None);
    // As soon as the client reads, all goes on.
    loop {
        let moved = pair.up(usize::MAX) + pair.down(usize::MAX);
        while !pair.server_events.is_empty() {
            let request = pair.request();
            pair.respond(request.id, body(2000));
        }
        if moved == 0 {
            break;
        }
    }
    assert_eq!(pair.client_events.len(), 10);
}

/// A frame that is begun and never finished (slow-loris), however it trickles.
#[test]
fn a_frame_must_end_in_time() {
    for config in [v1(), Config::default()] {
        let mut pair = Pair::new(config, Config::default());
        pair.settle();
        pair.feed_server(&plain(1, &body(100))[..7]);
        for _ in 0..9 {
            pair.pass(SECOND);
            pair.feed_server(b"x");
            assert_eq!(pair.server_error, None);
        }
        pair.pass(SECOND * 2);
        assert_eq!(pair.server_error, Some(ConnectionError::FrameTimeout));
    }
}

/// A message that is begun and never finished ends as a call; the connection goes on.
#[test]
fn a_message_must_go_on() {
    use cotcp::frame::{Frame, Options};
    let mut pair = Pair::v2(Config::default(), Config::default());
    let request = Frame::Request { more: true, one_way: false, options: Options::default(), body: body(10) };
    pair.frame_up(5, &request);
    let id = pair.call("y");
    pair.frame_down(id.wire(), &Frame::Response { more: true, body: body(10) });
    for _ in 0..32 {
        pair.pass_flowing(SECOND);
    }
    assert_eq!((pair.server.stats().timed_out, pair.client.stats().timed_out), (1, 1));
    assert_eq!(pair.client_events, [ClientEvent::Failed { id, error: CallError::Timeout }]);
    assert_eq!((pair.server.held_octets(), pair.client.held_octets()), (0, 0));
    assert_eq!((&pair.client_error, &pair.server_error), (&None, &None));
}

/// A peer that gives no credit holds up its own message only.
#[test]
fn a_message_without_credit_ends() {
    let mut pair =
        Pair::v2(Config { parts: true, ..Config::default() }, Config { parts: true, ..Config::default() });
    let id = pair.call(body(200_000));
    pair.settle();
    for _ in 0..31 {
        pair.pass_flowing(SECOND);
    }
    assert_eq!(pair.client_events, [ClientEvent::Failed { id, error: CallError::Timeout }]);
    assert!(matches!(pair.server_events.last(), Some(ServerEvent::Cancelled { code: Code::TIMEOUT, .. })));
    let id = pair.call("z");
    pair.settle();
    let Some(ServerEvent::Request(request)) = pair.server_events.pop() else { panic!() };
    pair.respond(request.id, "z");
    pair.settle();
    assert_eq!(pair.client_events.last(), Some(&crate::pair::answered(id, "z")));
}

/// Calls that all time out at once do not make the server think that it is attacked.
#[test]
fn cancels_are_spread() {
    let many = Config { max_calls: 5000, ..Config::default() };
    let mut pair = Pair::v2(many.clone(), many);
    let options = CallOptions { deadline: Some(SECOND), ..CallOptions::default() };
    for _ in 0..5000 {
        pair.call_with("x", &options);
    }
    pair.settle();
    assert_eq!(pair.server.open_calls(), 5000);
    // Only the client's clock reaches the deadline: the server's would end the calls by itself.
    pair.now += SECOND;
    pair.client.time_out(pair.now);
    pair.poll_client();
    assert_eq!(pair.client_events.len(), 5000);
    assert!(pair.client.capacity() < 1000);
    for _ in 0..200 {
        pair.client.time_out(pair.now);
        pair.up(usize::MAX);
        pair.now += Duration::from_millis(100);
    }
    assert_eq!(pair.server_error, None);
    assert_eq!((pair.server.open_calls(), pair.server.stats().cancelled), (0, 5000));
    assert_eq!(pair.client.capacity(), 5000);
}
