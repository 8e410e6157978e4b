//! Arbitrary octets into each core, in arbitrary pieces, while time goes on (CO-8, CO-13). The fuzz targets `cotcp-client`
//! and `cotcp-server` run this file.
//!
//! No panic; each call ends once; what is held stays within the limits; what is written is well-formed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use cotcp::core::{CallOptions, Client, ClientEvent, Outbox, RequestId, Server, ServerEvent, Version};
use cotcp::frame::{self, Frame, HEADER, Side};
use cotcp::{Code, Config, hello};

/// Small limits are reached with few octets.
fn config(flags: u8) -> Config {
    Config {
        negotiate: flags & 1 == 0,
        parts: flags & 2 != 0,
        max_calls: 8,
        max_message: 20_000,
        assembly_budget: 30_000,
        max_output: 50_000,
        max_queued: 100_000,
        v1_error_body: (flags & 4 != 0).then(|| "error".into()),
        ..Config::default()
    }
}

/// The octets in pieces, as the first one says.
fn pieces(data: &[u8]) -> (u8, impl Iterator<Item = &[u8]>) {
    let (flags, rest) = data.split_first().map_or((0, data), |(first, rest)| (*first, rest));
    let size = usize::from(flags >> 4) * usize::from(flags >> 4) * 16 + 1;
    (flags, rest.chunks(size.max(rest.len() / 500 + 1)))
}

/// Takes out what is written, as far as the peer reads, and reads it as the peer would.
fn drain(outbox: &mut Outbox, written: &mut BytesMut, from: Side, version: Version) {
    while outbox.has_remaining() {
        let size = outbox.chunk().len();
        written.extend_from_slice(outbox.chunk());
        outbox.advance(size);
    }
    while let Some((id, length)) = frame::read_header(written)
        && written.len() >= HEADER + length
    {
        written.advance(HEADER);
        let body = written.split_to(length).freeze();
        if version == Version::V2 && id & frame::EXTENDED != 0 && id != frame::HELLO_ID {
            Frame::decode(id, body, from).expect("what we write is well-formed");
        }
    }
}

/// A server whose client sends anything.
///
/// # Panics
/// When it does what it must not.
pub fn server(mut now: Instant, data: &[u8]) {
    let (flags, pieces) = pieces(data);
    let config = config(flags);
    let mut server = Server::new(now, config.clone());
    if flags & 8 != 0 {
        let body = hello::encode(true, hello::Limits::default());
        server.input().extend_from_slice(&frame::header(frame::HELLO_ID, body.len() as u16));
        server.input().extend_from_slice(&body);
    }
    let (mut open, mut written) = (BTreeSet::new(), BytesMut::new());
    for (turn, piece) in pieces.enumerate() {
        if server.wants_input() {
            server.input().extend_from_slice(piece);
        }
        serve(&mut server, now, turn, &mut open);
        server.fill(now);
        if turn % 3 == 0 {
            let version = server.version();
            drain(server.output(), &mut written, Side::Server, version);
        }
        assert!(server.open_calls() <= 8);
        // An answer of 10,000 octets for each call, the outbox, and what was read at once.
        let most = 30_000 + 20_000 + 50_000 + 100_000 + 8 * 10_000 + 2 * piece.len();
        assert!(server.held_octets() <= most, "{}", server.held_octets());
        now += Duration::from_millis(u64::from(flags) * 7);
        if server.deadline().is_some_and(|at| at <= now) {
            server.time_out(now);
        }
    }
    server.end_of_stream();
    serve(&mut server, now, 0, &mut open);
    assert!(open.is_empty(), "{open:?}");
    assert!(server.poll(now).is_err());
}

/// Answers some requests, leaves others, and fails others.
fn serve(server: &mut Server, now: Instant, turn: usize, open: &mut BTreeSet<RequestId>) {
    while let Ok(Some(event)) = server.poll(now) {
        match event {
            ServerEvent::Request(request) => {
                let id = request.id;
                match (id.wire() as usize + request.body.len()) % 5 {
                    0 => server.respond(now, id, request.body).unwrap_or_default(),
                    1 => server.respond(now, id, vec![0; 10_000].into()).unwrap_or_default(),
                    2 => server.fail(now, id, Code(400), "no", false).unwrap_or_default(),
                    3 if !request.is_one_way() => {
                        let _ = server.send_part(now, id, Bytes::from_static(b"part"), false);
                        assert!(open.insert(id));
                    }
                    _ => assert!(open.insert(id)),
                }
            }
            ServerEvent::Part { id, body, .. } => {
                server.consumed(id, body.len() / 2);
            }
            ServerEvent::Cancelled { id, .. } => {
                // One that was answered with less than it asked may be told of again only if it was open.
                assert!(open.remove(&id), "{id:?} was over");
            }
            ServerEvent::Writable { .. } | ServerEvent::Version(_) | ServerEvent::GoAway => {}
        }
    }
    if turn % 16 == 15
        && let Some(id) = open.pop_first()
    {
        // It may have been answered in parts, which has to go on in parts.
        if server.respond(now, id, Bytes::new()).is_err() {
            let _ = server.send_part(now, id, Bytes::new(), true);
        }
    }
}

/// A client whose server sends anything.
///
/// # Panics
/// When it does what it must not.
pub fn client(mut now: Instant, data: &[u8]) {
    let (flags, pieces) = pieces(data);
    let mut client = Client::new(now, config(flags & !1));
    if flags & 8 != 0 {
        let body = hello::encode(false, hello::Limits::default());
        client.input().extend_from_slice(&frame::header(frame::HELLO_ID, body.len() as u16));
        client.input().extend_from_slice(&body);
        let _ = client.poll(now);
    }
    let (mut open, mut written) = (BTreeMap::new(), BytesMut::new());
    for (turn, piece) in pieces.enumerate() {
        let options = CallOptions {
            parts: turn % 3 == 0,
            more: turn % 5 == 1,
            one_way: turn % 7 == 2,
            deadline: (turn % 11 == 3).then_some(Duration::from_millis(500)),
            ..CallOptions::default()
        };
        let body = vec![1; [0, 10, 5000, 18_000][turn % 4]];
        if let Ok(id) = client.call(now, body.into(), &options) {
            assert!(open.insert(id, ()).is_none());
        }
        client.input().extend_from_slice(piece);
        hear(&mut client, now, &mut open);
        client.fill(now);
        if turn % 3 == 0 {
            let version = client.version();
            drain(client.output(), &mut written, Side::Client, version);
        }
        assert!(client.open_calls() <= 8);
        let most = 30_000 + 20_000 + 50_000 + 8 * 18_000 + 2 * piece.len() + 60_000;
        assert!(client.held_octets() <= most, "{}", client.held_octets());
        now += Duration::from_millis(u64::from(flags) * 7);
        if client.deadline().is_some_and(|at| at <= now) {
            client.time_out(now);
        }
    }
    client.end_of_stream();
    hear(&mut client, now, &mut open);
    assert!(open.is_empty(), "{open:?}");
    assert!(client.poll(now).is_err());
}

fn hear(client: &mut Client, now: Instant, open: &mut BTreeMap<cotcp::core::CallId, ()>) {
    while let Ok(Some(event)) = client.poll(now) {
        match event {
            ClientEvent::Answered { id, .. } | ClientEvent::Failed { id, .. } | ClientEvent::Sent { id } => {
                assert!(open.remove(&id).is_some(), "{id:?} was over");
            }
            ClientEvent::Part { id, body, last } => {
                assert!(open.contains_key(&id), "{id:?} was over");
                client.consumed(id, body.len());
                let given_up = !last && body.len() % 5 == 4 && client.cancel(now, id, Code::CANCELLED);
                if last || given_up {
                    open.remove(&id);
                }
            }
            ClientEvent::Writable { .. } | ClientEvent::Version(_) | ClientEvent::GoAway => {}
        }
    }
}
