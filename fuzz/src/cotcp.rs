//! CoTCP: arbitrary octets into each state machine, and two state machines connected to each other under a
//! program with cuts, time and loss.
//!
//! The checks are those of the crate's own tests, from the same files; here they run longer.

use ::cotcp::frame::{self, Frame, Options, Side};
use ::cotcp::{Code, hello};
use bytes::Bytes;

#[path = "../../transport/cotcp/tests/core/flood.rs"]
mod flood;
#[path = "../../transport/cotcp/tests/core/program.rs"]
mod program;

/// Octets into a client.
pub fn client(data: &[u8]) {
    flood::client(net::time::now_std(), data);
}

/// Octets into a server.
pub fn server(data: &[u8]) {
    flood::server(net::time::now_std(), data);
}

/// Two state machines under a program.
pub fn wired(data: &[u8]) {
    program::run(net::time::now_std(), data);
}

/// One frame of each type that a side may send, small ones first, after the octet that configures the state
/// machine.
fn frames(flags: u8, from: Side) -> Vec<u8> {
    let mut out = vec![flags];
    let mut plain = |id: u32, body: &[u8]| {
        out.extend_from_slice(&frame::header(id, body.len() as u16));
        out.extend_from_slice(body);
    };
    if flags & 8 == 0 {
        plain(frame::HELLO_ID, &hello::encode(from == Side::Client, hello::Limits::default()));
    }
    (0..3).for_each(|id| plain(id, b"body"));
    let text = || "text".into();
    let body = || Bytes::from_static(&[7; 300]);
    let trace = Some(Bytes::from_static(b"trace"));
    let options = Options { deadline_ms: Some(900), priority: 1, trace, size: Some(900) };
    let begin = |more, one_way| match from {
        Side::Client => Frame::Request { more, one_way, options: options.clone(), body: body() },
        Side::Server => Frame::Response { more, body: body() },
    };
    let end = match from {
        Side::Client => Frame::Cancel { code: Code::CANCELLED },
        Side::Server => Frame::Error { code: Code::INTERNAL, not_processed: true, text: text() },
    };
    let frames = [
        (4, begin(false, true)),
        (5, begin(true, false)),
        (6, begin(true, true)),
        (0, Frame::Ping(*b"12345678")),
        (5, Frame::Data { more: true, body: body() }),
        (6, Frame::Data { more: false, body: body() }),
        (5, Frame::Data { more: false, body: body() }),
        (0, Frame::Credit { connection: true, octets: 70_000 }),
        (5, Frame::Credit { connection: false, octets: 70_000 }),
        (2, end),
        (0, Frame::Pong(*b"\0\0\0\0\0\0\0\x01")),
        (0, Frame::GoAway { code: Code::NONE, text: text() }),
        (7, begin(false, false)),
        (0, Frame::GoAway { code: Code::PROTOCOL, text: text() }),
    ];
    frames.iter().for_each(|(call, frame)| frame.encode(*call, &mut out));
    out
}

/// What an honest server may send.
pub fn client_seeds() -> Vec<Vec<u8>> {
    [0x00, 0x08, 0x2a, 0x4c, 0xfe].map(|flags| frames(flags, Side::Server)).to_vec()
}

/// What an honest client may send.
pub fn server_seeds() -> Vec<Vec<u8>> {
    [0x00, 0x01, 0x08, 0x2a, 0x4c, 0xfe].map(|flags| frames(flags, Side::Client)).to_vec()
}

/// Programs: both sides version 2, calls of several lengths and kinds, answers, streams, time, going away,
/// loss.
pub fn wired_seeds() -> Vec<Vec<u8>> {
    let calls = [0, 2, 0, 0, 9, 0, 0, 14, 0x88, 0, 13, 0x3b, 9, 11, 0, 12, 9];
    let streams =
        [0, 2, 0x38, 0, 2, 0xb8, 9, 14, 0, 7, 14, 1, 0x49, 15, 0, 5, 9, 17, 0, 15, 0, 0x42, 5, 12, 7, 12];
    let end = [10, 0, 16, 40, 18, 1, 9, 0, 3, 0, 19, 8];
    let pairs = [[0x01, 0x01], [0x01, 0x05], [0x31, 0x39], [0x00, 0x01], [0x01, 0x00], [0xff, 0xff]];
    pairs.iter().map(|pair| [&pair[..], &calls, &streams, &calls, &end].concat()).collect()
}
