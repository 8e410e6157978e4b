//! Frames without state: vectors, round trips, truncation at every octet (CO-12).

use bytes::Bytes;
use cotcp::Code;
use cotcp::error::Violation;
use cotcp::frame::{CALLS, EXTENDED, Frame, HEADER, Options, Side, header, read_header};
use proptest::prelude::*;

use crate::pair::octets;

/// Each type of frame once, with who sends it and the octets after the length, by hand from SPEC §3.
fn vectors() -> Vec<(Side, u32, Frame, &'static [u8])> {
    let trace = Some(Bytes::from_static(b"tp"));
    let all = Options { deadline_ms: Some(1000), priority: 0, trace, size: Some(5) };
    let body = || Bytes::from_static(b"de");
    let (client, server) = (Side::Client, Side::Server);
    vec![
        (
            client,
            2,
            Frame::Request { more: true, one_way: true, options: all, body: body() },
            b"\x01\x03\x17\x01\x04\0\0\x03\xe8\x02\x01\0\x03\x02tp\x04\x08\0\0\0\0\0\0\0\x05de",
        ),
        (
            client,
            3,
            Frame::Request { more: false, one_way: false, options: Options::default(), body: body() },
            b"\x01\0\0de",
        ),
        (server, 2, Frame::Response { more: true, body: body() }, b"\x02\x01\0de"),
        (client, 2, Frame::Data { more: false, body: body() }, b"\x03\0de"),
        (server, 2, Frame::Data { more: true, body: body() }, b"\x03\x01de"),
        (
            server,
            2,
            Frame::Error { code: Code::OVERLOADED, not_processed: true, text: "busy".into() },
            b"\x04\x01\0\x04busy",
        ),
        (client, 2, Frame::Cancel { code: Code::DEADLINE }, b"\x05\0\0\x05"),
        (server, 0, Frame::Credit { connection: true, octets: 65_536 }, b"\x06\x01\0\x01\0\0"),
        (client, 9, Frame::Credit { connection: false, octets: 1 }, b"\x06\0\0\0\0\x01"),
        (client, 0, Frame::Ping(*b"12345678"), b"\x07\x0012345678"),
        (server, 0, Frame::Pong(*b"12345678"), b"\x08\x0012345678"),
        (server, 0, Frame::GoAway { code: Code::NONE, text: "".into() }, b"\x09\0\0\0"),
    ]
}

#[test]
fn each_type_is_written_and_read_as_specified() {
    for (from, call, frame, rest) in vectors() {
        let wire = [&header(call | EXTENDED, rest.len() as u16)[..], rest].concat();
        assert_eq!(octets(call, &frame), wire, "{frame:?}");
        let read = Frame::decode(call | EXTENDED, Bytes::from_static(rest), from);
        assert_eq!(read, Ok((call, frame)));
    }
}

/// What is cut off is an error, or means something shorter; nothing panics.
#[test]
fn truncation_at_every_octet() {
    for (from, call, frame, rest) in vectors() {
        for length in 0..rest.len() {
            match Frame::decode(call | EXTENDED, Bytes::from_static(&rest[..length]), from) {
                Err(Violation::Short | Violation::Option(_)) => {}
                Ok((_, cut)) => assert_ne!(cut, frame),
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(read_header(&[0; HEADER - 1]), None);
}

/// Flags and options that this text does not know are ignored, as are octets after the last field.
#[test]
fn what_is_not_known_is_ignored() {
    let read = |rest: &'static [u8]| {
        Frame::decode(EXTENDED | 1, Bytes::from_static(rest), Side::Client).map(|(_, frame)| frame)
    };
    let request = |body: &'static [u8]| Frame::Request {
        more: false,
        one_way: false,
        options: Options::default(),
        body: Bytes::from_static(body),
    };
    assert_eq!(read(b"\x01\xfc\x05\x63\x03abcx"), Ok(request(b"x")));
    assert_eq!(read(b"\x05\xff\0\x06more"), Ok(Frame::Cancel { code: Code::CANCELLED }));
    // Of an option that comes twice the last one holds.
    let Ok(Frame::Request { options, .. }) = read(b"\x01\0\x06\x02\x01\x01\x02\x01\x05") else { panic!() };
    assert_eq!(options.priority, 5);
    // A text that is no UTF-8, or too long, is still a text.
    let long = [&b"\x09\0\0\x01"[..], &[b'a'; 3000], b"\xff"].concat();
    let Ok((_, Frame::GoAway { text, .. })) = Frame::decode(EXTENDED, long.into(), Side::Server) else {
        panic!()
    };
    assert_eq!(text.len(), 1024);
}

prop_compose! {
    fn options()(
        deadline_ms in any::<Option<u32>>(),
        priority in 0..8u8,
        trace in prop::option::of(prop::collection::vec(any::<u8>(), 0..=128)),
        size in any::<Option<u64>>(),
    ) -> Options {
        Options { deadline_ms, priority, trace: trace.map(Bytes::from), size }
    }
}

proptest! {
    #[test]
    fn requests_survive(
        call in 0..CALLS,
        options in options(),
        (more, one_way) in any::<(bool, bool)>(),
        body in prop::collection::vec(any::<u8>(), 0..5000),
    ) {
        let frame = Frame::Request { more, one_way, options, body: body.into() };
        let wire = octets(call, &frame);
        let (id, length) = read_header(&wire).unwrap();
        prop_assert_eq!(length, wire.len() - HEADER);
        prop_assert_eq!(Frame::decode(id, Bytes::copy_from_slice(&wire[HEADER..]), Side::Client), Ok((call, frame)));
    }

    #[test]
    fn whatever_is_read_can_be_written_and_read_again(
        id in any::<u32>(),
        rest in prop::collection::vec(any::<u8>(), 0..60),
        from_client in any::<bool>(),
    ) {
        let from = if from_client { Side::Client } else { Side::Server };
        if let Ok((call, frame)) = Frame::decode(id | EXTENDED, rest.into(), from) {
            let wire = octets(call, &frame);
            let again = Frame::decode(call | EXTENDED, Bytes::copy_from_slice(&wire[HEADER..]), from);
            prop_assert_eq!(again, Ok((call, frame)));
        }
    }
}
