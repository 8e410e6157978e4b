//! Our client and servers that mean no good (CO-13): what they send ends in an error of its kind for the calls that are
//! open, no answer reaches another call, and nothing hangs, leaks or grows.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cotcp::driver::client::Client;
use cotcp::driver::config::ClientConfig;
use cotcp::error::{Code, ConnectionError};
use cotcp::frame::{Frame, HELLO_ID};
use cotcp::hello::Limits;
use cotcp::{CallError, Config};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::ours::runtime;
use crate::raw::{Came, PATIENCE, Peer, extended, plain, unchecked};

type Answer = JoinHandle<Result<Bytes, CallError>>;

/// A client in a runtime of its own, and the bare server that it is connected to.
struct Pair {
    runtime: Runtime,
    client: Client,
    listener: TcpListener,
    peer: Peer,
}

impl Pair {
    /// Connected; the HELLO of the client, if it sends one, is still to be read.
    fn connect(config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let runtime = runtime();
        let address = listener.local_addr().unwrap();
        // The pause is long enough to see what happens on the first connection alone.
        let config = ClientConfig { backoff_min: Duration::from_millis(50), repeats: 0, ..config.into() };
        let client = runtime.block_on(Client::connect(address, config)).unwrap();
        let peer = Peer::server(&listener);
        Self { runtime, client, listener, peer }
    }

    /// The same with version 2.
    fn version_2(config: Config, limits: Limits) -> Self {
        let mut pair = Self::connect(config);
        pair.peer.hello(limits);
        pair
    }

    /// Makes a call, which is on its way then or waits for room.
    fn call(&self, body: impl Into<Bytes>) -> Answer {
        let (client, body) = (self.client.clone(), body.into());
        self.runtime.spawn(async move { client.call(body).await })
    }

    fn result(&self, answer: Answer) -> Result<Bytes, CallError> {
        let within = async { tokio::time::timeout(PATIENCE, answer).await };
        self.runtime.block_on(within).expect("the call hangs").unwrap()
    }

    fn error(&self, answer: Answer) -> ConnectionError {
        match self.result(answer) {
            Err(CallError::Connection { error, sent: true }) => error,
            other => panic!("{other:?}"),
        }
    }

    /// The ID of the next request.
    fn request(&mut self) -> u32 {
        match self.peer.next_of_calls() {
            Came::Plain(id, _) if id != HELLO_ID => id,
            Came::Extended(id, Frame::Request { .. }) => id,
            other => panic!("{other:?}"),
        }
    }

    /// A call that works, from request to answer.
    fn works(&mut self) {
        let answer = self.call("works?");
        let id = self.request();
        self.peer.send(&plain(id, b"works"));
        assert_eq!(self.result(answer), Ok("works".into()));
    }

    /// The client says why, and closes.
    fn ends_with(&mut self, code: Code, what: &str) {
        loop {
            match self.peer.next() {
                Came::Extended(0, Frame::GoAway { code: got, text }) => {
                    break assert_eq!(got, code, "{what}: {text}");
                }
                Came::End => panic!("{what}: closed without a word"),
                _ => {}
            }
        }
        assert_eq!(self.peer.next(), Came::End, "{what}");
    }
}

fn quick() -> Config {
    Config {
        call_timeout: Some(Duration::from_millis(600)),
        frame_timeout: Duration::from_millis(300),
        message_timeout: Duration::from_millis(300),
        write_timeout: Duration::from_millis(500),
        ping_after: Some(Duration::from_millis(300)),
        ping_timeout: Duration::from_millis(300),
        ..Config::default()
    }
}

fn response(octets: usize, more: bool) -> Frame {
    Frame::Response { more, body: vec![b'r'; octets].into() }
}

fn data(octets: usize, more: bool) -> Frame {
    Frame::Data { more, body: vec![b'd'; octets].into() }
}

#[test]
fn no_answer_reaches_another_call() {
    for version_2 in [false, true] {
        let config = Config { negotiate: version_2, ..Config::default() };
        let mut pair = Pair::connect(config);
        if version_2 {
            pair.peer.hello(Limits::default());
        }
        let (first, second) = (pair.call("first"), pair.call("second"));
        let ids = [pair.request(), pair.request()];
        // Nobody asked: other generations of the same places, and places that were never used.
        for id in [ids[0] ^ 1 << 16, ids[0] ^ 1 << 29, ids[1] ^ 1 << 15] {
            pair.peer.send(&plain(id, b"wrong"));
        }
        // Answered twice.
        pair.peer.send(&[plain(ids[1], b"2"), plain(ids[1], b"wrong"), plain(ids[0], b"1")].concat());
        let mut answers = [pair.result(first).unwrap(), pair.result(second).unwrap()];
        answers.sort();
        assert_eq!(answers, ["1", "2"]);
        // Given up, and answered when the same place may have another call.
        let client = pair.client.clone();
        let given_up = pair.runtime.spawn(async move {
            tokio::time::timeout(Duration::from_millis(30), client.call("given up")).await.is_err()
        });
        let late = pair.request();
        assert!(pair.runtime.block_on(given_up).unwrap());
        let others: Vec<Answer> = (0..200).map(|_| pair.call("others")).collect();
        for _ in 0..200 {
            let mut came = pair.peer.next_of_calls();
            if matches!(came, Came::Extended(id, Frame::Cancel { .. }) if id == late) {
                assert!(version_2);
                came = pair.peer.next_of_calls();
            }
            let Came::Plain(id, _) = came else { panic!("{came:?}") };
            pair.peer.send(&[plain(late, b"wrong"), plain(id, b"right")].concat());
        }
        for answer in others {
            assert_eq!(pair.result(answer), Ok("right".into()));
        }
    }
}

#[test]
fn frames_that_are_not_allowed_fail_the_open_calls_with_the_reason() {
    // What the octets are for the call with this ID.
    type Octets = fn(u32) -> Vec<u8>;
    let cases: [(&str, Octets); 17] = [
        ("no type", |id| unchecked(id, &[])),
        ("no flags", |id| unchecked(id, &[2])),
        ("no options", |id| unchecked(id, &[2, 0])),
        ("options longer than the frame", |id| unchecked(id, &[2, 0, 9, 1])),
        ("type 0", |id| unchecked(id, &[0, 0])),
        ("type 10", |id| unchecked(id, &[10, 0])),
        ("the reserved bit", |id| unchecked(1 << 30 | id, &[2, 0, 0])),
        ("an ID beyond 2^30", |id| plain(1 << 30 | id, b"x")),
        ("a second HELLO", |_| plain(HELLO_ID, b"\x00CoTCP\x02\x02")),
        ("REQUEST from a server", |id| unchecked(id, &[1, 0, 0])),
        ("CANCEL from a server", |id| unchecked(id, &[5, 0, 0, 6])),
        ("a short ERROR", |id| unchecked(id, &[4, 0, 0])),
        ("a short CREDIT", |id| unchecked(id, &[6, 0, 0, 0, 1])),
        ("a short PONG", |_| unchecked(0, &[8, 0, 1])),
        ("GO_AWAY of a call", |id| unchecked(id | 1, &[9, 0, 0, 0])),
        ("DATA before the response", |id| extended(id, &data(5, true))),
        ("the response begins twice", |id| extended(id, &response(5, true)).repeat(2)),
    ];
    for (what, octets) in cases {
        let mut pair = Pair::version_2(Config::default(), Limits::default());
        let calls = [pair.call("1"), pair.call("2"), pair.call("3")];
        let _first = pair.request();
        let (answered, id) = (pair.request(), pair.request());
        pair.peer.send(&[plain(answered, b"in time"), octets(id)].concat());
        pair.ends_with(Code::PROTOCOL, what);
        let mut results = calls.map(|call| pair.result(call)).to_vec();
        results.retain(|result| result != &Ok("in time".into()));
        assert_eq!(results.len(), 2, "{what}: the answer before it counts");
        for result in results {
            let Err(CallError::Connection { error, sent: true }) = result else {
                panic!("{what}: {result:?}")
            };
            assert!(matches!(error, ConnectionError::Protocol(_)), "{what}: {error}");
        }
        // And the client connects again.
        pair.peer = Peer::server(&pair.listener);
        pair.peer.hello(Limits::default());
        pair.works();
    }
}

#[test]
fn streams_that_end_or_stop_in_the_middle_fail_at_once() {
    // In the middle of a frame.
    let mut pair = Pair::version_2(Config::default(), Limits::default());
    let call = pair.call("?");
    let id = pair.request();
    pair.peer.send(&plain(id, b"length lies")[..10]);
    pair.peer.finish();
    assert_eq!(pair.error(call), ConnectionError::Truncated);
    // Between frames.
    let mut pair = Pair::version_2(Config::default(), Limits::default());
    let call = pair.call("?");
    pair.request();
    pair.peer.finish();
    assert_eq!(pair.error(call), ConnectionError::Closed);
    // By a reset.
    let mut pair = Pair::version_2(Config::default(), Limits::default());
    let call = pair.call("?");
    let id = pair.request();
    pair.peer.send(&plain(id, b"reset")[..8]);
    let Pair { peer, client, runtime, listener } = pair;
    peer.reset();
    let peer = Peer::server(&listener);
    let pair = Pair { runtime, client, listener, peer };
    assert!(matches!(pair.error(call), ConnectionError::Io(_)));
    // It stops.
    let mut pair = Pair::version_2(quick(), Limits::default());
    let begin = Instant::now();
    let call = pair.call("?");
    let id = pair.request();
    pair.peer.send(&plain(id, b"stops")[..7]);
    assert_eq!(pair.error(call), ConnectionError::FrameTimeout);
    assert!(begin.elapsed() >= Duration::from_millis(290));
    pair.ends_with(Code::TIMEOUT, "a frame that is not finished");
}

#[test]
fn answers_that_never_end_are_given_up_and_the_connection_goes_on() {
    let config = Config { ping_after: None, max_message: 20_000, ..quick() };
    let mut pair = Pair::version_2(config, Limits::default());
    // Not begun, not finished, and too long.
    let calls = [pair.call("1"), pair.call("2"), pair.call("3")];
    let ids = [pair.request(), pair.request(), pair.request()];
    pair.peer.send(&[extended(ids[1], &response(5, true)), extended(ids[2], &response(5, true))].concat());
    pair.peer.send(&extended(ids[2], &data(20_000, true)));
    let mut results = calls.map(|call| pair.result(call).unwrap_err()).to_vec();
    results.sort_by_key(|error| *error == CallError::TooLarge);
    assert_eq!(results, [CallError::Timeout, CallError::Timeout, CallError::TooLarge]);
    // The server is told, and what it sends all the same is ignored.
    for _ in 0..3 {
        assert!(
            matches!(pair.peer.next_of_calls(), Came::Extended(id, Frame::Cancel { .. }) if ids.contains(&id))
        );
    }
    pair.peer.send(
        &[extended(ids[1], &data(9, false)), extended(ids[2], &data(9, false)), plain(ids[0], b"")].concat(),
    );
    pair.works();
}

#[test]
fn flow_control_and_floods() {
    type Octets = fn(u32) -> Vec<u8>;
    let over: [(&str, Octets); 4] = [
        ("a message's window", |id| {
            [extended(id, &response(0, true)), extended(id, &data(16_385, true))].concat()
        }),
        ("the connection's window", |_| extended(77, &data(32_769, true))),
        ("credit of the connection", |_| {
            extended(0, &Frame::Credit { connection: true, octets: i32::MAX as u32 })
        }),
        ("most credit", |_| extended(0, &Frame::Credit { connection: true, octets: u32::MAX })),
    ];
    for (what, octets) in over {
        let config = Config { call_window: 16_384, connection_window: 32_768, ..Config::default() };
        let mut pair = Pair::version_2(config, Limits::default());
        let call = pair.call("?");
        let id = pair.request();
        pair.peer.send(&octets(id));
        assert_eq!(pair.error(call), ConnectionError::FlowControl, "{what}");
        pair.ends_with(Code::FLOW_CONTROL, what);
    }
    let floods: [(&str, Vec<u8>); 3] = [
        ("PING", extended(0, &Frame::Ping(*b"flooding"))),
        ("CREDIT", extended(7, &Frame::Credit { connection: false, octets: 1 })),
        ("empty DATA", extended(7, &data(0, true))),
    ];
    for (what, octets) in floods {
        let mut pair = Pair::version_2(Config::default(), Limits::default());
        let call = pair.call("?");
        pair.request();
        pair.peer.send(&octets.repeat(1500));
        assert_eq!(pair.error(call), ConnectionError::Abuse, "{what}");
        pair.ends_with(Code::ABUSE, what);
    }
}

#[test]
fn silent_servers_are_left() {
    // Version 2: asked, and found to be gone.
    let mut pair = Pair::version_2(Config { call_timeout: None, ..quick() }, Limits::default());
    let call = pair.call("?");
    pair.request();
    assert!(matches!(pair.peer.next(), Came::Extended(0, Frame::Ping(_))));
    assert_eq!(pair.error(call), ConnectionError::Silent);
    pair.ends_with(Code::TIMEOUT, "silent");
    // Version 1 cannot be asked: the call alone is given up.
    let mut pair = Pair::connect(Config { negotiate: false, ..quick() });
    let call = pair.call("?");
    pair.request();
    assert_eq!(pair.result(call), Err(CallError::Timeout));
    pair.works();
}

#[test]
fn servers_that_do_not_read_push_back() {
    let times = Config { call_timeout: Some(Duration::from_secs(2)), ..quick() };
    let pair = Pair::connect(Config { negotiate: false, max_output: 1 << 20, max_calls: 100_000, ..times });
    let Pair { runtime, client, listener, peer } = pair;
    // There is no other server to go to.
    drop(listener);
    // 64 MiB in calls: what neither the kernel nor the outbox takes waits with its caller.
    let call = || {
        let client = client.clone();
        runtime.spawn(async move { client.call(vec![0; 65_535]).await })
    };
    let calls: Vec<Answer> = (0..1000).map(|_| call()).collect();
    let (mut sent, mut unsent) = (0, 0);
    for call in calls {
        match runtime.block_on(async { tokio::time::timeout(PATIENCE, call).await }).unwrap().unwrap() {
            Err(CallError::Connection { error: ConnectionError::WriteTimeout, sent: true }) => sent += 1,
            Err(CallError::Connection { sent: false, .. } | CallError::Busy) => unsent += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(sent > 0 && sent < 400 && unsent > 0, "{sent} {unsent}");
    drop(peer);
}

#[test]
fn a_server_that_takes_few_calls_gets_few() {
    let limits = Limits { max_calls: 2, ..Limits::default() };
    let mut pair = Pair::version_2(Config::default(), limits);
    // One round, so that the client knows the version and the limit.
    pair.works();
    let calls: Vec<Answer> = (0..20).map(|_| pair.call("?")).collect();
    for round in 0..10 {
        let ids = [pair.request(), pair.request()];
        assert!(
            pair.peer.is_quiet_for(Duration::from_millis(if round < 2 { 50 } else { 1 })),
            "a third call"
        );
        pair.peer.send(&ids.map(|id| plain(id, b"!")).concat());
    }
    for call in calls {
        assert_eq!(pair.result(call), Ok("!".into()));
    }
}

#[test]
fn going_away_is_orderly_or_has_a_reason() {
    // Open calls go on, new ones go to a new connection.
    let mut pair = Pair::version_2(Config::default(), Limits::default());
    let open = pair.call("open");
    let id = pair.request();
    pair.peer.send(&extended(0, &Frame::GoAway { code: Code::NONE, text: "maintenance".into() }));
    // Nothing says when the client has read it but that it closes once the answer is there.
    pair.peer.send(&plain(id, b"done"));
    assert_eq!(pair.result(open), Ok("done".into()));
    while pair.peer.next() != Came::End {}
    pair.peer = Peer::server(&pair.listener);
    pair.peer.hello(Limits::default());
    pair.works();
    // With a reason all is over.
    let mut pair = Pair::version_2(Config::default(), Limits::default());
    let open = pair.call("open");
    pair.request();
    pair.peer.send(&extended(0, &Frame::GoAway { code: Code(300), text: "out of order".into() }));
    assert_eq!(pair.error(open), ConnectionError::Peer { code: Code(300), text: "out of order".into() });
}

#[test]
fn whatever_answers_the_hello_small_calls_work() {
    let bodies: [&[u8]; 8] = [
        b"",
        b"error: what?",
        b"\x00CoTCP",
        b"\x00CoTCP\x01\x02",                         // the client's own, echoed
        b"\x00CoTCP\x02\x03",                         // a version that was not offered
        b"\x00CoTCP\x02\x01",                         // an older one
        b"\x00CoTCP\x02\x02\x01\x04\x00\x00\x00\x00", // no calls
        b"\x00CoTCP\x02\x02\x02\x04\x00\x00",         // cut off
    ];
    for body in bodies {
        let mut pair = Pair::connect(Config::default());
        let Came::Plain(HELLO_ID, _) = pair.peer.next() else { panic!("no HELLO") };
        pair.works();
        pair.peer.send(&plain(HELLO_ID, body));
        pair.works();
        // It stays version 1, and says so to calls that need more.
        let large = pair.call(vec![0; 65_536]);
        assert_eq!(pair.result(large), Err(CallError::NeedsVersion2), "{body:?}");
        // A frame that would be version 2 is an answer to no call.
        pair.peer.send(&unchecked(1, &[9, 0, 0, 1]));
        pair.works();
    }
    // A HELLO that comes when nobody waits for it any more still counts.
    let mut pair = Pair::connect(Config { hello_timeout: Duration::from_millis(50), ..Config::default() });
    let Came::Plain(HELLO_ID, _) = pair.peer.next() else { panic!("no HELLO") };
    let large = pair.call(vec![0; 65_536]);
    assert_eq!(pair.result(large), Err(CallError::NeedsVersion2));
    pair.peer.send(&plain(HELLO_ID, b"\x00CoTCP\x02\x02"));
    pair.works();
    let large = pair.call(vec![0; 65_536]);
    let id = pair.request();
    pair.peer.send(&plain(id, b"large"));
    assert_eq!(pair.result(large), Ok("large".into()));
}
