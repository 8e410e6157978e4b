//! Our server and peers that mean no good (CO-13): what they send ends in an error of its kind, others on the server do
//! not notice, and nothing hangs, leaks or grows.

use std::time::Duration;

use bytes::Bytes;
use cotcp::Config;
use cotcp::error::Code;
use cotcp::frame::{Frame, HELLO_ID, Options};
use cotcp::hello::Limits;

use crate::ours::Server;
use crate::raw::{Came, Peer, extended, plain, unchecked};

fn request(body: &'static [u8], more: bool) -> Frame {
    Frame::Request { more, one_way: false, options: Options::default(), body: Bytes::from_static(body) }
}

fn data(octets: usize, more: bool) -> Frame {
    Frame::Data { more, body: vec![b'd'; octets].into() }
}

/// Times that a test can wait for.
fn quick() -> Config {
    Config {
        frame_timeout: Duration::from_millis(300),
        message_timeout: Duration::from_millis(300),
        write_timeout: Duration::from_millis(500),
        ping_after: Some(Duration::from_millis(300)),
        ping_timeout: Duration::from_millis(300),
        idle_timeout: Some(Duration::from_millis(300)),
        ..Config::default()
    }
}

/// The server says why, and closes; what was open there is dropped.
fn ends_with(peer: &mut Peer, code: Code, what: &str) {
    loop {
        match peer.next_of_calls() {
            Came::Extended(0, Frame::GoAway { code: got, text }) => {
                assert_eq!(got, code, "{what}: {text}");
                assert!(!text.is_empty(), "{what}: no text");
                break;
            }
            Came::End => panic!("{what}: closed without a word"),
            // Answers that were on their way.
            _ => {}
        }
    }
    assert_eq!(peer.next(), Came::End, "{what}");
}

/// Asks an innocent question on a connection of its own.
fn still_serves(server: &Server) {
    let mut peer = Peer::client(server.address);
    peer.send(&plain(1, b"hello"));
    assert_eq!(peer.next(), Came::Plain(1, b"hello".to_vec()));
}

#[test]
fn frames_that_are_not_allowed_end_the_connection_and_say_so() {
    let server = Server::start(Config::default());
    let long = [&[1, 0, 131, 3, 129], [b'x'; 129].as_slice()].concat();
    let cases: [(&str, Vec<u8>); 22] = [
        ("no type", unchecked(1, &[])),
        ("no flags", unchecked(1, &[1])),
        ("no options", unchecked(1, &[1, 0])),
        ("type 0", unchecked(1, &[0, 0])),
        ("type 42", unchecked(1, &[42, 0])),
        ("the reserved bit", unchecked(1 << 30 | 1, &[1, 0, 0])),
        ("a second HELLO", plain(HELLO_ID, b"\x00CoTCP\x01\x02")),
        ("an ID beyond 2^30", plain(1 << 30, b"x")),
        ("RESPONSE from a client", unchecked(1, &[2, 0, 0])),
        ("ERROR from a client", unchecked(1, &[4, 0, 0, 1])),
        ("a short CANCEL", unchecked(1, &[5, 0, 0])),
        ("a short CREDIT", unchecked(1, &[6, 0, 0, 0, 1])),
        ("a short PING", unchecked(0, &[7, 0, 1, 2, 3])),
        ("a PING with a call", unchecked(1, &[7, 0, 1, 2, 3, 4, 5, 6, 7, 8])),
        ("a short GO_AWAY", unchecked(0, &[9, 0, 0])),
        ("options longer than the frame", unchecked(1, &[1, 0, 9, 1, 4])),
        ("an option that is cut off", unchecked(1, &[1, 0, 3, 1, 4, 0])),
        ("a DEADLINE of two octets", unchecked(1, &[1, 0, 4, 1, 2, 0, 1])),
        ("priority 8", unchecked(1, &[1, 0, 3, 2, 1, 8])),
        ("a TRACE of 129 octets", unchecked(1, &long)),
        ("the ID of an open call", plain(7, b"again")),
        ("DATA of a request that was whole", extended(7, &data(1, false))),
    ];
    for (count, (what, octets)) in cases.iter().enumerate() {
        let mut peer = Peer::client(server.address);
        peer.hello(Limits::default());
        peer.send(&plain(7, b"wait"));
        server.until(what, |seen| seen.waiting == 1);
        peer.send(octets);
        ends_with(&mut peer, Code::PROTOCOL, what);
        server.until(what, |seen| seen.waiting == 0 && seen.dropped == count + 1);
    }
    still_serves(&server);
}

#[test]
fn the_same_id_twice_in_version_1_closes() {
    let server = Server::start(Config::default());
    let mut peer = Peer::client(server.address);
    peer.send(&[plain(7, b"wait"), plain(8, b"ok"), plain(7, b"wait")].concat());
    assert_eq!(peer.next(), Came::Plain(8, b"ok".to_vec()));
    assert_eq!(peer.next(), Came::End);
    server.until("dropped", |seen| seen.dropped == 1);
    // After the answer the ID is free.
    let mut peer = Peer::client(server.address);
    for round in 0..3 {
        peer.send(&plain(7, b"ok"));
        assert_eq!(peer.next(), Came::Plain(7, b"ok".to_vec()), "{round}");
    }
}

#[test]
fn lengths_lie() {
    let server = Server::start(quick());
    // More is announced than comes, then silence: not for ever.
    let mut peer = Peer::client(server.address);
    peer.send(&[plain(1, b"ok"), plain(2, b"cut short")[..10].to_vec()].concat());
    assert_eq!(peer.next(), Came::Plain(1, b"ok".to_vec()));
    assert_eq!(peer.next(), Came::End);
    // The same in version 2, one octet at a time: what arrives late does not count as progress of the frame.
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    let mut cut = plain(2, &[b'.'; 200]).into_iter();
    while peer.is_quiet_for(Duration::from_millis(20)) {
        peer.send(&[cut.next().expect("the frame is not finished in four seconds")]);
    }
    ends_with(&mut peer, Code::TIMEOUT, "one octet at a time");
    // An end in the middle of a frame, and of a header: nothing of it is delivered, what came before is answered.
    for cut in 1..9 {
        let mut peer = Peer::client(server.address);
        peer.send(&[plain(1, b"ok"), plain(2, b"cut")[..cut].to_vec()].concat());
        peer.finish();
        assert!(matches!(peer.next(), Came::Plain(1, _) | Came::End));
    }
    // A reset there.
    let mut peer = Peer::client(server.address);
    peer.send(&[plain(1, b"wait"), plain(2, b"cut")[..7].to_vec()].concat());
    server.until("taken", |seen| seen.waiting == 1);
    peer.reset();
    server.until("dropped", |seen| seen.waiting == 0);
    // No body, and the longest.
    let mut peer = Peer::client(server.address);
    peer.send(&[plain(1, b""), plain(2, &[b'l'; 65_535])].concat());
    assert_eq!(peer.next(), Came::Plain(1, Vec::new()));
    assert_eq!(peer.next(), Came::Plain(2, vec![b'l'; 65_535]));
    still_serves(&server);
    assert_eq!(server.seen().handled.get(b"cut".as_slice()), None);
}

#[test]
fn messages_that_do_not_fit_or_never_end_fail_alone() {
    let server = Server::start(Config { max_message: 20_000, ..quick() });
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    let error = |code| {
        move |came: Came| match came {
            Came::Extended(call, Frame::Error { code: got, .. }) if got == code => call,
            other => panic!("{other:?}"),
        }
    };
    // Too large as announced, and as it comes.
    let size = Options { size: Some(20_001), ..Options::default() };
    peer.send(&extended(
        1,
        &Frame::Request { more: true, one_way: false, options: size, body: Bytes::new() },
    ));
    assert_eq!(error(Code::TOO_LARGE)(peer.next_of_calls()), 1);
    peer.send(&extended(2, &request(b"begin", true)));
    for _ in 0..4 {
        // As much as the window is: credit comes back as it is put together.
        peer.send(&extended(2, &data(4096, true)));
    }
    peer.send(&extended(2, &data(4096, true)));
    assert_eq!(error(Code::TOO_LARGE)(peer.next_of_calls()), 2);
    // What still comes of both is ignored.
    peer.send(&extended(1, &data(10, true)));
    peer.send(&extended(2, &data(10, false)));
    // Begun and not finished: an error after a while. And DATA, CANCEL, CREDIT of calls that never were.
    peer.send(&extended(3, &request(b"begin", true)));
    for (call, frame) in [
        (40, data(10, false)),
        (41, Frame::Cancel { code: Code::CANCELLED }),
        (42, Frame::Credit { connection: false, octets: 5000 }),
    ] {
        peer.send(&extended(call, &frame));
    }
    assert_eq!(error(Code::TIMEOUT)(peer.next_of_calls()), 3);
    // The connection has lived through all of it.
    peer.send(&plain(4, b"ok"));
    assert_eq!(peer.next_of_calls(), Came::Plain(4, b"ok".to_vec()));
    assert_eq!(server.seen().handled.len(), 1, "only the last was a whole request");
}

#[test]
fn unfinished_messages_take_a_limited_amount_of_memory() {
    let server = Server::start(Config { assembly_budget: 100_000, ..Config::default() });
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    let begin = Frame::Request {
        more: true,
        one_way: false,
        options: Options::default(),
        body: vec![b'u'; 30_000].into(),
    };
    for call in 0..100 {
        peer.send(&extended(call, &begin));
        // Three fit, and stay; each one more is refused, and can be repeated.
        if call >= 3 {
            match peer.next_of_calls() {
                Came::Extended(id, Frame::Error { code: Code::OVERLOADED, not_processed: true, .. }) => {
                    assert_eq!(id, call)
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // Those that stayed can be finished.
    for call in 0..3 {
        peer.send(&extended(call, &data(0, false)));
        let Came::Extended(id, Frame::Response { more: true, body }) = peer.next_of_calls() else {
            panic!("no answer")
        };
        assert_eq!((id, body.len()), (call, 4096));
        while !matches!(peer.next_of_calls(), Came::Extended(_, Frame::Data { more: false, .. })) {}
    }
    still_serves(&server);
}

#[test]
fn flow_control_is_not_optional() {
    let config = || Config { call_window: 16_384, connection_window: 32_768, ..Config::default() };
    let server = Server::start(config());
    let begin = |peer: &mut Peer, call| peer.send(&extended(call, &request(b"", true)));
    // More than the window in one breath. Credit may come back between, so much more is sent.
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    begin(&mut peer, 1);
    peer.send(&extended(1, &data(16_385, true)));
    ends_with(&mut peer, Code::FLOW_CONTROL, "more than a message's window");
    // Of a call that is over: its DATA still uses credit of the connection, which comes back.
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    for _ in 0..20 {
        peer.send(&extended(9, &data(16_384, true)));
        let credit = Came::Extended(0, Frame::Credit { connection: true, octets: 16_384 });
        assert_eq!(peer.next(), credit);
    }
    peer.send(&extended(9, &data(32_769, true)));
    ends_with(&mut peer, Code::FLOW_CONTROL, "more than the connection's window");
    // More credit than there can be: of the connection at any time, of a message while it is sent.
    for connection in [false, true] {
        let mut peer = Peer::client(server.address);
        // Little for all together, so that the server's word about it need not wait behind much.
        let limits = Limits { call_window: i32::MAX as u32, connection_window: 4096, ..Limits::default() };
        peer.hello(limits);
        peer.send(&plain(1, b"1M"));
        while !matches!(peer.next(), Came::Extended(1, Frame::Data { .. })) {}
        let call = u32::from(!connection);
        peer.send(&extended(call, &Frame::Credit { connection, octets: 1 << 31 }));
        ends_with(&mut peer, Code::FLOW_CONTROL, "credit");
    }
    still_serves(&server);
}

#[test]
fn floods_of_frames_that_cost_nothing_are_stopped() {
    let server = Server::start(Config::default());
    let cancel =
        [extended(1, &request(b"wait", false)), extended(1, &Frame::Cancel { code: Code::CANCELLED })];
    let floods: [(&str, Vec<u8>); 6] = [
        ("PING", extended(0, &Frame::Ping(*b"flooding"))),
        ("PONG", extended(0, &Frame::Pong(*b"flooding"))),
        ("requests and CANCEL at once", cancel.concat()),
        ("CANCEL of nothing", extended(5, &Frame::Cancel { code: Code::CANCELLED })),
        ("empty CREDIT", extended(0, &Frame::Credit { connection: true, octets: 0 })),
        ("empty DATA", extended(5, &data(0, true))),
    ];
    for (what, octets) in floods {
        let mut peer = Peer::client(server.address);
        peer.hello(Limits::default());
        peer.send(&octets.repeat(1500));
        ends_with(&mut peer, Code::ABUSE, what);
        server.until(what, |seen| seen.waiting == 0);
    }
    // What is allowed in a second stays allowed.
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    peer.send(&extended(0, &Frame::Ping(*b"allowed.")).repeat(900));
    for _ in 0..900 {
        assert_eq!(peer.next(), Came::Extended(0, Frame::Pong(*b"allowed.")));
    }
}

#[test]
fn more_calls_than_allowed_are_refused_and_the_others_go_on() {
    let server = Server::start(Config { max_calls: 10, ..Config::default() });
    let mut peer = Peer::client(server.address);
    assert_eq!(peer.hello(Limits::default()).max_calls, 10);
    for id in 0..10 {
        peer.send(&plain(id, b"wait"));
    }
    for id in 10..20 {
        peer.send(&plain(id, b"one too many"));
        match peer.next_of_calls() {
            Came::Extended(call, Frame::Error { code: Code::OVERLOADED, not_processed: true, .. }) => {
                assert_eq!(call, id);
            }
            other => panic!("{other:?}"),
        }
    }
    server.until("ten", |seen| seen.waiting == 10);
    peer.send(&extended(3, &Frame::Cancel { code: Code::CANCELLED }));
    server.until("cancelled", |seen| seen.waiting == 9 && seen.dropped == 1);
    peer.send(&plain(20, b"ok"));
    assert_eq!(peer.next_of_calls(), Came::Plain(20, b"ok".to_vec()));

    // Version 1 has no refusal: nothing more is read, and nothing is lost.
    let mut peer = Peer::client(server.address);
    for id in 0..10 {
        peer.send(&plain(id, b"slow"));
    }
    for id in 10..30 {
        peer.send(&plain(id, b"ok"));
    }
    let mut answers: Vec<u32> = (0..30)
        .map(|_| match peer.next() {
            Came::Plain(id, _) => id,
            other => panic!("{other:?}"),
        })
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, (0..30).collect::<Vec<_>>());
}

#[test]
fn who_does_not_read_is_not_waited_for_and_fills_no_memory() {
    let config = Config { max_output: 1 << 20, max_queued: 4 << 20, ..quick() };
    // Version 1, small requests, answers of 64 KiB each: the server stops taking requests.
    let server = Server::start(config.clone());
    let mut peer = Peer::client(server.address);
    for id in 0..1000 {
        peer.send(&plain(id, b"64k"));
    }
    server.until("taken", |seen| seen.connections == 1 && !seen.handled.is_empty());
    server.until("given up", |seen| seen.connections == 0);
    let handled = server.seen().handled.get(b"64k".as_slice()).copied().unwrap_or(0);
    // The kernel's buffers on both sides take a few megabytes.
    assert!((1..400).contains(&handled), "{handled} answers were made");
    drop(peer);
    // Version 2, a megabyte each and no credit for it beyond the first 64 KiB.
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    for id in 0..1000 {
        peer.send(&plain(id, b"1M"));
    }
    // The client reads, but gives no credit: those calls fail, the connection goes on.
    let (mut begun, mut ended) = (0, 0);
    while ended < 1000 {
        match peer.next_of_calls() {
            Came::Extended(_, Frame::Response { .. }) => begun += 1,
            Came::Extended(_, Frame::Error { .. }) => ended += 1,
            Came::Extended(_, Frame::Data { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(begun >= 4, "{begun}");
    peer.send(&plain(2000, b"ok"));
    assert_eq!(peer.next_of_calls(), Came::Plain(2000, b"ok".to_vec()));
}

#[test]
fn half_open_connections_are_found() {
    let server = Server::start(quick());
    // Says nothing at all.
    let mut silent = Peer::client(server.address);
    assert_eq!(silent.next(), Came::End);
    // Says HELLO and nothing more: it is asked, and then left.
    let mut gone = Peer::client(server.address);
    gone.hello(Limits::default());
    assert!(matches!(gone.next(), Came::Extended(0, Frame::Ping(_))));
    ends_with(&mut gone, Code::TIMEOUT, "silent after HELLO");
    // Who answers stays.
    let mut alive = Peer::client(server.address);
    alive.hello(Limits::default());
    for _ in 0..4 {
        let Came::Extended(0, Frame::Ping(octets)) = alive.next() else { panic!("no PING") };
        alive.send(&extended(0, &Frame::Pong(octets)));
    }
    alive.send(&plain(1, b"ok"));
    assert_eq!(alive.next_of_calls(), Came::Plain(1, b"ok".to_vec()));
    // A client that ended its direction has ended the connection.
    let mut half = Peer::client(server.address);
    half.send(&[plain(1, b"ok"), plain(2, b"wait")].concat());
    assert_eq!(half.next(), Came::Plain(1, b"ok".to_vec()));
    half.finish();
    assert_eq!(half.next(), Came::End);
    server.until("dropped", |seen| seen.dropped == 1);
    server.until("all gone", |seen| seen.connections <= 1);
}

#[test]
fn waiting_handlers_are_not_the_clients_fault() {
    // All calls are open and take long, so nothing is read: neither the frame that has begun to arrive nor the PONG that
    // is not read may end the connection.
    let server = Server::start(Config { max_calls: 2, ..quick() });
    let mut peer = Peer::client(server.address);
    peer.send(&[plain(1, b"1 s"), plain(2, b"1 s"), plain(3, b"ok")[..4].to_vec()].concat());
    std::thread::sleep(Duration::from_millis(600));
    peer.send(&plain(3, b"ok")[4..]);
    let ids = [(); 3].map(|()| match peer.next() {
        Came::Plain(id, _) => id,
        other => panic!("{other:?}"),
    });
    assert_eq!((ids[0] + ids[1], ids[2]), (3, 3), "{ids:?}");
}

#[test]
fn who_goes_away_gets_what_it_asked_for_and_nothing_else() {
    let server = Server::start(Config::default());
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    peer.send(&plain(1, b"slow"));
    peer.send(&extended(0, &Frame::GoAway { code: Code::NONE, text: "done".into() }));
    assert_eq!(peer.next_of_calls(), Came::Plain(1, b"slow".to_vec()));
    ends_with(&mut peer, Code::NONE, "all is answered");
    // With a reason it is at once.
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    peer.send(&plain(1, b"wait"));
    peer.send(&extended(0, &Frame::GoAway { code: Code(300), text: "out of order".into() }));
    assert_eq!(peer.next_of_calls(), Came::End);
    server.until("dropped", |seen| seen.waiting == 0);
}

#[test]
fn hellos_are_answered_or_are_requests() {
    let server = Server::start(Config::default());
    let hello: &[u8] = b"\x00CoTCP\x02\x02";
    let version_2: [&[u8]; 3] = [
        b"\x00CoTCP\x01\x02",
        b"\x00CoTCP\x01\x09", // a later version speaks this one, too
        b"\x00CoTCP\x01\x02\x63\x03new\x01\x04\x00\x00\x00\x05", // an option of another type
    ];
    for body in version_2 {
        // The request behind it is answered after it, and what is version 2 is understood.
        let mut peer = Peer::client(server.address);
        peer.send(&[plain(HELLO_ID, body), plain(1, b"ok")].concat());
        assert_eq!(peer.next(), Came::Plain(HELLO_ID, hello.to_vec()));
        assert_eq!(peer.next(), Came::Plain(1, b"ok".to_vec()));
        peer.send(&extended(0, &Frame::Ping(*b"version2")));
        assert_eq!(peer.next(), Came::Extended(0, Frame::Pong(*b"version2")));
    }
    let requests: [&[u8]; 8] = [
        b"",
        b"\x00CoTCP",
        b"\x00CoTCP\x01\x01",                         // an older version
        hello,                                        // a server's
        b"\x00CoTCP\x01\x02\x01",                     // an option cut off
        b"\x00CoTCP\x01\x02\x01\x04\x00\x00\x00\x00", // no calls
        b"\x00CoTCP\x01\x02\x02\x04\x80\x00\x00\x00", // more credit than there can be
        b"\x00CoTCP\x01\x02\x01\x04\x00\x00\x00\x05\x01\x04\x00\x00\x00\x05", // twice
    ];
    for body in requests {
        let mut peer = Peer::client(server.address);
        peer.send(&plain(HELLO_ID, body));
        assert_eq!(peer.next(), Came::Plain(HELLO_ID, body.to_vec()), "echoed, as any request is");
        // It stays version 1, also for a HELLO that comes too late, and for IDs that version 2 would read otherwise.
        peer.send(&[plain(HELLO_ID, version_2[0]), unchecked(5, &[7, 0])].concat());
        assert_eq!(peer.next(), Came::Plain(HELLO_ID, version_2[0].to_vec()));
        assert_eq!(peer.next_plain(), (5 | 1 << 31, vec![7, 0]));
    }
    // Switched off, it is a request as well.
    let server = Server::start(Config { negotiate: false, ..Config::default() });
    let mut peer = Peer::client(server.address);
    peer.send(&plain(HELLO_ID, version_2[0]));
    assert_eq!(peer.next(), Came::Plain(HELLO_ID, version_2[0].to_vec()));
}

#[test]
fn whatever_comes_nothing_is_left_behind() {
    let server = Server::start(Config { max_calls: 8, assembly_budget: 50_000, ..Config::default() });
    // The same octets in each run: a seed for each connection.
    for seed in 0..200u32 {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let mut peer = Peer::client(server.address);
        if random(4) > 0 {
            peer.send(&plain(HELLO_ID, b"\x00CoTCP\x01\x02"));
        }
        let mut octets = Vec::new();
        for _ in 0..random(60) {
            let call = random(12);
            let more = random(2) == 0;
            let credit = Frame::Credit { connection: more, octets: random(1 << 20) };
            octets.extend(match random(14) {
                0 | 1 => plain(call, b"wait"),
                2 => plain(call, b"64k"),
                3 => plain(call, b"1M"),
                4 => plain(call, &vec![b'p'; random(5000) as usize]),
                5 | 6 => extended(call, &request(b"wait", more)),
                7 | 8 => extended(call, &data(random(9000) as usize, more)),
                9 => extended(call, &Frame::Cancel { code: Code::CANCELLED }),
                10 => extended(if more { 0 } else { call }, &credit),
                11 => extended(0, &Frame::Ping([seed as u8; 8])),
                12 => extended(0, &Frame::GoAway { code: Code::NONE, text: "".into() }),
                _ if random(8) == 0 => {
                    unchecked(call, &[random(12) as u8, random(256) as u8, random(256) as u8])
                }
                _ => plain(call, b"slow"),
            });
        }
        // Whole, cut off somewhere, or one octet changed.
        let at = random(octets.len() as u32 + 1) as usize;
        match random(3) {
            0 => octets.truncate(at),
            1 if at < octets.len() => octets[at] ^= 1 << random(8),
            _ => {}
        }
        peer.send(&octets);
        match random(3) {
            0 => peer.finish(),
            1 => peer.reset(),
            _ => drop(peer),
        }
    }
    // Who comes now comes after all of them.
    still_serves(&server);
    server.until("all gone", |seen| seen.connections == 0 && seen.waiting == 0);
    assert!(server.seen().dropped > 100, "{}", server.seen().dropped);
}

#[test]
fn the_reason_arrives_behind_much_else() {
    let server = Server::start(Config::default());
    let mut peer = Peer::client(server.address);
    peer.hello(Limits { call_window: 8 << 20, connection_window: 8 << 20, ..Limits::default() });
    for id in 0..5 {
        peer.send(&plain(id, b"1M"));
    }
    while !matches!(peer.next(), Came::Extended(1, Frame::Data { .. })) {}
    peer.send(&unchecked(1, &[42, 0]));
    ends_with(&mut peer, Code::PROTOCOL, "behind much");
}

#[test]
fn what_is_allowed_is_no_abuse() {
    let server = Server::start(Config { max_calls: 4, ..Config::default() });
    // Small windows: thousands of CREDITs in a second, each for DATA that came.
    let mut peer = Peer::client(server.address);
    peer.hello(Limits { call_window: 600, connection_window: 600, ..Limits::default() });
    peer.send(&plain(1, b"1M"));
    loop {
        match peer.next_of_calls() {
            Came::Extended(1, Frame::Response { more: true, .. }) => {}
            Came::Extended(1, Frame::Data { more: true, body }) => {
                let octets = body.len() as u32;
                let credit = |connection| Frame::Credit { connection, octets };
                peer.send(&[extended(1, &credit(false)), extended(0, &credit(true))].concat());
            }
            Came::Extended(1, Frame::Data { more: false, .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    // One-way calls that come faster than they are handled are not handled; other calls go on.
    let mut peer = Peer::client(server.address);
    peer.hello(Limits::default());
    peer.send(&[plain(1, b"slow"), plain(2, b"1 s"), plain(3, b"1 s"), plain(4, b"1 s")].concat());
    let one_way = |id| Frame::Request {
        more: false,
        one_way: true,
        options: Options::default(),
        body: plain(id, b"").into(),
    };
    for id in 10..5000 {
        peer.send(&extended(id, &one_way(id)));
    }
    assert_eq!(peer.next_of_calls(), Came::Plain(1, b"slow".to_vec()));
}
