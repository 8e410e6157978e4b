//! The Wireshark dissector reads what our code writes (CO-12): tshark runs it over captures made here.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use cotcp::driver::client::Client;
use cotcp::error::Code;
use cotcp::frame::{self, Frame, Options, Side};
use cotcp::hello::{self, Limits};
use cotcp::{CallError, Config};

use crate::ours::{Server, runtime};
use crate::pcap::{Capture, PORT};
use crate::process;
use crate::tap::Tap;

/// Fields that a test compares, without `cotcp.` before them.
const FIELDS: [&str; 38] = [
    "from",
    "version",
    "request",
    "response",
    "type",
    "call",
    "length",
    "flags",
    "flags.more",
    "flags.one_way",
    "flags.not_processed",
    "flags.connection",
    "deadline_ms",
    "priority",
    "trace",
    "size",
    "option.type",
    "option.value",
    "code",
    "code_name",
    "text",
    "credit",
    "ping",
    "body",
    "surplus",
    "hello.role",
    "hello.version",
    "hello.max_calls",
    "hello.call_window",
    "hello.connection_window",
    "hello.max_message",
    "response_in",
    "response_to",
    "begun_in",
    "time",
    "message_length",
    "fragments",
    "error",
];

/// Reads a capture with the dissector. For each packet with CoTCP: its number, and the fields it has as `name=value`;
/// several values of one field are in the order of the frames, with commas. `error` is what the dissector remarks.
fn decode(capture: Capture, options: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made.pcap");
    std::fs::write(&file, capture.finish()).unwrap();
    let mut command = Command::new("tshark");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("dissector/cotcp.lua");
    // Two passes, so that a request knows its response. No settings of whoever runs the test.
    command.env("HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
    command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(&file).args(["-n", "-2"]);
    command.args(["-Y", "cotcp || _ws.malformed || _ws.lua"]).args(options);
    command.args(["-T", "fields", "-E", "separator=|", "-e", "frame.number"]);
    for field in FIELDS {
        let name = if field == "error" { "_ws.expert.message".to_owned() } else { format!("cotcp.{field}") };
        command.args(["-e", &name]);
    }
    let text = process::output(&mut command, Duration::from_secs(60));
    let line = |line: &str| {
        let mut values = line.split('|');
        let mut words = vec![values.next().unwrap_or_default().to_owned() + ":"];
        let named = FIELDS.iter().zip(values).filter(|(_, value)| !value.is_empty());
        // Newer versions of tshark write truth as a word.
        words.extend(
            named.map(|(name, value)| format!("{name}={}", value.replace("True", "1").replace("False", "0"))),
        );
        words.join(" ")
    };
    text.lines().map(line).collect()
}

fn v1(id: u32, body: &[u8]) -> Vec<u8> {
    [&frame::header(id, u16::try_from(body.len()).unwrap()), body].concat()
}

fn v2(call: u32, frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(call, &mut out);
    out
}

/// A frame with type and flags, whatever is in it.
fn raw(call: u32, rest: &[u8]) -> Vec<u8> {
    v1(call | frame::EXTENDED, rest)
}

fn client_hello() -> Vec<u8> {
    v1(frame::HELLO_ID, &hello::encode(true, Limits::default()))
}

fn server_hello() -> Vec<u8> {
    v1(frame::HELLO_ID, &hello::encode(false, Limits::default()))
}

/// Compares what tshark reads, line by line, with what it should read: one of the files beside this one.
fn assert_lines(got: &[String], want: &str) {
    let want: Vec<&str> = want.lines().collect();
    let first =
        got.iter().zip(&want).position(|(got, want)| got != want).unwrap_or(got.len().min(want.len()));
    assert!(
        got.len() == want.len() && first == got.len(),
        "from line {first} on:\n got {:#?}\nwant {:#?}",
        &got[first..],
        &want[first..]
    );
}

/// A call is begun with options, answered in fragments, fails, is cancelled; the connection is kept alive and ended.
fn every_frame() -> Capture {
    let mut capture = Capture::new();
    let more = true;
    let whole = false;
    let trace = Bytes::from_static(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let all = Options { deadline_ms: Some(1500), priority: 1, trace: Some(trace), size: Some(7) };
    let limits = Limits { max_calls: 64, call_window: 5000, connection_window: 70_000, max_message: 1 << 20 };
    let plain = |body| Frame::Request { more: whole, one_way: false, options: Options::default(), body };
    let error = |code, not_processed, text: &str| Frame::Error { code, not_processed, text: text.into() };
    let bytes = Bytes::from_static;

    capture.client(&v1(frame::HELLO_ID, &hello::encode(true, limits)));
    capture.client(&v1(0, b"ab"));
    capture.server(&server_hello());
    capture.server(&v1(0, b"AB"));
    capture.client(&v2(1, &Frame::Request { more, one_way: false, options: all, body: bytes(b"abc") }));
    capture.client(&v2(1, &Frame::Data { more, body: bytes(b"de") }));
    capture.server(&v2(1, &Frame::Credit { connection: false, octets: 5000 }));
    capture.server(&v2(0, &Frame::Credit { connection: true, octets: 70_000 }));
    capture.client(&v2(1, &Frame::Data { more: whole, body: bytes(b"fg") }));
    capture.server(&v2(1, &Frame::Response { more, body: bytes(b"ABC") }));
    capture.server(&v2(1, &Frame::Data { more: whole, body: bytes(b"DEFG") }));
    capture.client(&v2(2, &plain(bytes(b"x"))));
    capture.server(&v2(2, &error(Code::OVERLOADED, true, "busy; später")));
    capture.client(&v2(3, &plain(bytes(b"y"))));
    capture.client(&v2(3, &Frame::Cancel { code: Code::CANCELLED }));
    capture.server(&v2(3, &Frame::Response { more: whole, body: bytes(b"Y") }));
    let nobody_waits =
        Frame::Request { more: whole, one_way: true, options: Options::default(), body: bytes(b"z") };
    capture.client(&v2(4, &nobody_waits));
    capture.client(&v2(5, &plain(bytes(b""))));
    capture.server(&v2(5, &error(Code(300), false, "")));
    capture.client(&v2(0, &Frame::Ping(*b"are you?")));
    capture.server(&v2(0, &Frame::Pong(*b"are you?")));
    capture.server(&v2(0, &Frame::GoAway { code: Code::NONE, text: "maintenance".into() }));
    capture.client(&v2(0, &Frame::GoAway { code: Code::TIMEOUT, text: "".into() }));
    capture
}

#[test]
fn every_frame_is_read_with_all_its_fields() {
    if !process::present("tshark") {
        return;
    }
    assert_lines(&decode(every_frame(), &[]), include_str!("decoded/every_frame.txt"));
}

#[test]
fn what_is_not_allowed_is_marked() {
    if !process::present("tshark") {
        return;
    }
    let mut capture = Capture::new();
    capture.client(&client_hello());
    capture.server(&server_hello());
    let request = v2(
        7,
        &Frame::Request { more: false, one_way: false, options: Options::default(), body: Bytes::new() },
    );
    capture.client(&raw(1 << 30 | 1, &[3, 0]));
    capture.client(&raw(1, &[42, 0]));
    capture.client(&raw(1, &[]));
    capture.client(&raw(1, &[1]));
    capture.client(&raw(1, &[1, 0]));
    capture.client(&raw(1, &[5, 0, 0]));
    capture.client(&raw(0, &[7, 0, 1, 2, 3]));
    capture.client(&raw(0, &[7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    capture.client(&raw(1, &[8, 0, 1, 2, 3, 4, 5, 6, 7, 8]));
    capture.client(&raw(1, &[2, 0, 0]));
    capture.client(&raw(1, &[4, 0, 0, 1]));
    capture.server(&raw(1, &[1, 0, 0]));
    capture.server(&raw(1, &[5, 0, 0, 6]));
    // Options: longer than the frame, cut off, of another length, too large, unknown.
    capture.client(&raw(1, &[1, 0, 9, 1, 4]));
    capture.client(&raw(1, &[1, 0, 3, 1, 4, 0]));
    capture.client(&raw(1, &[1, 0, 4, 1, 2, 0, 1]));
    capture.client(&raw(1, &[1, 0, 3, 2, 1, 8]));
    capture.client(&raw(1, &[&[1, 0, 131, 3, 129], [b'x'; 129].as_slice()].concat()));
    capture.client(&raw(2, &[1, 0, 3, 99, 1, 5]));
    capture.client(&raw(3, &[1, 0xF0, 0]));
    capture.client(&request);
    capture.client(&request);
    capture.client(&raw(7, &[3, 0]));
    capture.client(&raw(8, &[3, 0]));
    capture.client(&raw(0, &[6, 1, 0x80, 0, 0, 0]));
    capture.client(&v1(1 << 30, b"ID"));
    capture.server(&v1(9, b"nobody asked"));
    capture.server(&raw(2, &[4, 0, 0, 0]));
    capture.server(&raw(3, &[&[4, 0, 0, 4], [b't'; 1025].as_slice()].concat()));
    assert_lines(&decode(capture, &[]), include_str!("decoded/not_allowed.txt"));
}

#[test]
fn frames_are_put_together_and_taken_apart_wherever_segments_end() {
    if !process::present("tshark") {
        return;
    }
    // The client's side of `every_frame` in one segment, in segments of one octet, and of any length between: the same
    // frames come out, in the same order.
    let mut client = [client_hello(), v1(0, b"ab"), v1(1, &[7; 3000])].concat();
    let begin = Frame::Request {
        more: true,
        one_way: false,
        options: Options::default(),
        body: vec![1; 4096].into(),
    };
    client.extend_from_slice(&v2(2, &begin));
    client.extend_from_slice(&v2(2, &Frame::Data { more: false, body: vec![2; 4096].into() }));
    let server = [
        server_hello(),
        v1(1, b""),
        v2(2, &Frame::Response { more: true, body: vec![3; 4096].into() }),
        v1(0, &[4; 65_535]),
        v2(2, &Frame::Data { more: false, body: vec![5; 4096].into() }),
    ]
    .concat();
    let port = format!("cotcp.ports:{PORT}");
    let named = ["-o", &port];
    for cut in [1, 5, 6, 7, 100, 1448, 60_000] {
        let mut capture = Capture::new();
        // Octet by octet only as far as the small frames go. There the port has to tell what this is, as a HELLO is
        // recognised in one piece only.
        let (at, options) = if cut < 100 { (50, &named[..]) } else { (0, &[][..]) };
        capture.segments(Side::Client, &client[..at], cut);
        capture.segments(Side::Client, &client[at..], cut.max(100));
        capture.segments(Side::Server, &server[..at], cut);
        capture.segments(Side::Server, &server[at..], cut.max(100));
        let mut frames = [const { [const { Vec::new() }; 2] }; 2];
        for line in decode(capture, options) {
            let words: HashMap<&str, &str> =
                line.split(' ').filter_map(|word| word.split_once('=')).collect();
            let side = &mut frames[usize::from(words["from"].starts_with("server"))];
            for (list, name) in side.iter_mut().zip(["call", "length"]) {
                list.extend(
                    words.get(name).into_iter().flat_map(|values| values.split(',')).map(str::to_owned),
                );
            }
        }
        // A HELLO belongs to no call.
        let want = [
            [vec!["0", "1", "2", "2"], vec!["8", "2", "3000", "4099", "4098"]],
            [vec!["1", "2", "0", "2"], vec!["8", "0", "4099", "65535", "4098"]],
        ];
        assert_eq!(frames, want, "in segments of {cut}");
    }
}

#[test]
fn version_1_needs_its_port_named_and_stays_version_1() {
    if !process::present("tshark") {
        return;
    }
    let conversation = || {
        let mut capture = Capture::new();
        capture.client(&[v1(u32::MAX, b"no HELLO"), v1(0x8000_0001, b"two")].concat());
        capture.server(&v1(0x8000_0001, b"TWO"));
        capture.server(&v1(u32::MAX, b"1"));
        capture
    };
    assert!(
        decode(conversation(), &[]).is_empty(),
        "nothing tells version 1 without a HELLO from other protocols"
    );
    let port = format!("cotcp.ports:{PORT}");
    let want = include_str!("decoded/version_1.txt");
    assert_lines(&decode(conversation(), &["-o", &port]), want);
    assert_lines(&decode(conversation(), &["-d", &format!("tcp.port=={PORT},cotcp")]), want);

    // A version 1 server that echoes the HELLO, or answers something else, changes nothing.
    let echoed = include_str!("decoded/hello_echoed.txt");
    let refused = include_str!("decoded/hello_refused.txt");
    for (answer, want) in [(client_hello(), echoed), (v1(frame::HELLO_ID, b"what?"), refused)] {
        let mut capture = Capture::new();
        capture.client(&client_hello());
        capture.client(&v1(5, b"five"));
        capture.server(&answer);
        capture.server(&v1(5, b"FIVE"));
        assert_lines(&decode(capture, &[]), want);
    }
}

#[test]
fn a_capture_may_begin_within_a_connection() {
    if !process::present("tshark") {
        return;
    }
    let conversation = || {
        let mut capture = Capture::new();
        capture.server(&v2(3, &Frame::Data { more: false, body: Bytes::from_static(b"end") }));
        capture.client(&raw(5, &[5, 0, 0, 6]));
        capture
    };
    let port = format!("cotcp.ports:{PORT}");
    // The port says who is who, and the user what cannot be seen.
    let want = "\
        4: from=server version=2 type=3 call=3 length=5 flags=0x00 flags.more=0 body=656e64 \
        error=No such call is open: ignored\n\
        5: from=client version=2 type=5 call=5 length=4 flags=0x00 code=6 code_name=CANCELLED \
        error=No such call is open: ignored";
    assert_lines(&decode(conversation(), &["-o", &port, "-o", "cotcp.version:version 2"]), want);
    // Otherwise it is taken for version 1.
    let want = "\
        4: from=server version=1 response=1 call=2147483651 length=5 body=0300656e64 \
        error=No such call is open: ignored\n\
        5: from=client version=1 request=1 call=2147483653 length=4 body=05000006";
    assert_lines(&decode(conversation(), &["-o", &port]), want);
}

/// What tshark reads of one side: call, type and length of each frame, in order.
fn frames_of<'a>(lines: &'a [String], side: &str) -> Vec<[&'a str; 3]> {
    let mut frames = Vec::new();
    for line in lines {
        let words: HashMap<&str, &str> = line.split(' ').filter_map(|word| word.split_once('=')).collect();
        // A packet has frames of one side only.
        if words["from"].starts_with(side) {
            let values = |name| {
                words.get(name).map(|values| values.split(',').collect::<Vec<_>>()).unwrap_or_default()
            };
            let (calls, types, lengths) = (values("call"), values("type"), values("length"));
            // Only one frame of a packet may lack what others have: then there is nothing to line up.
            if calls.len() == lengths.len() && types.len() == lengths.len() {
                frames.extend((0..calls.len()).map(|at| [calls[at], types[at], lengths[at]]));
            }
        }
    }
    frames
}

/// The same as our own codec reads it.
fn extended_frames(octets: &[u8]) -> Vec<[String; 3]> {
    let (mut frames, mut rest) = (Vec::new(), octets);
    while let Some((id, length)) = frame::read_header(rest) {
        if id >= frame::EXTENDED && id != frame::HELLO_ID {
            let kind = rest[frame::HEADER];
            frames.push([(id & !frame::EXTENDED).to_string(), kind.to_string(), length.to_string()]);
        }
        rest = &rest[frame::HEADER + length..];
    }
    assert!(rest.is_empty(), "both sides closed between frames");
    frames
}

#[test]
fn what_the_driver_sends_is_read_without_a_complaint() {
    if !process::present("tshark") {
        return;
    }
    let server = Server::start(Config::default());
    let tap = Tap::new(server.address);
    runtime().block_on(async {
        let client = Client::connect(tap.address, Config::default()).await.unwrap();
        assert_eq!(client.call("small").await, Ok("small".into()));
        let large = vec![b'l'; 300_000];
        assert_eq!(client.call(large.clone()).await, Ok(large.into()));
        assert_eq!(client.call("1M").await.map(|body| body.len()), Ok(1 << 20));
        let request = client.request("slow").deadline(Duration::from_secs(5)).priority(1).trace("00-1-2-03");
        let (answer, _) = tokio::join!(request.send(), client.call("beside it"));
        assert_eq!(answer, Ok("slow".into()));
        let given_up = tokio::time::timeout(Duration::from_millis(50), client.call("wait")).await;
        assert!(given_up.is_err());
        assert!(client.request("nobody waits").send_one_way().await.is_ok());
        let late = client.request("wait").deadline(Duration::from_millis(50)).send().await;
        assert_eq!(late, Err(CallError::Deadline));
        assert_eq!(client.call("last").await, Ok("last".into()));
        client.close().await;
    });
    let (sent, capture) = tap.finish(700);
    let lines = decode(capture, &[]);
    for (side, name) in [(Side::Client, "client"), (Side::Server, "server")] {
        let octets: Vec<u8> =
            sent.iter().filter(|(from, _)| *from == side).flat_map(|(_, o)| o.clone()).collect();
        let want = extended_frames(&octets);
        let got = frames_of(&lines, name);
        // Packets with frames of both kinds are left out; the large ones are far more.
        assert!(got.len() * 10 > want.len() * 9 && want.len() > 70, "{} of {}", got.len(), want.len());
        let mut want = want.iter();
        assert!(got.iter().all(|frame| want.any(|other| other == frame)), "{name}: not in this order");
    }
    let text = lines.join("\n");
    // Of everything that went wrong, the two calls that were given up remain.
    for line in lines.iter().filter(|line| line.contains("error=")) {
        let expected = ["The call failed", "No such call is open: ignored", "No new calls are wanted"];
        let remarks = line.split("error=").nth(1).unwrap();
        assert!(remarks.split(',').all(|remark| expected.contains(&remark)), "{line}");
    }
    for what in [
        "hello.role=1",
        "hello.role=2",
        "message_length=300000",
        "message_length=1048576",
        "deadline_ms=5000 priority=1 trace=00-1-2-03",
        "flags.one_way=1",
        "code_name=CANCELLED",
        "credit=",
        "code_name=NONE",
    ] {
        assert!(text.contains(what), "no {what} in\n{text}");
    }
}
