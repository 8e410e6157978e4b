//! Two cores under an arbitrary program of octets: calls, streams, cuts of the stream, time, loss (CO-8, CO-10, CO-13).
//!
//! A model beside them knows what every message must be. Whatever the program: a message arrives whole and once, or its
//! call fails once; nothing stays open after everything was answered and time went by; nothing is held then. The fuzz
//! target `cotcp-wired` runs this file.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use cotcp::core::{CallId, CallOptions, Client, ClientEvent, Outbox, RequestId, Server, ServerEvent};
use cotcp::{CallError, Code, Config, ConnectionError};

/// Lengths around every limit.
const SIZES: [usize; 16] =
    [0, 1, 10, 10, 10, 2047, 2048, 4095, 4096, 4097, 9000, 65_535, 65_536, 70_000, 200_000, 500_000];
/// A program does no more than this, however long.
const STEPS: usize = 400;

/// What one side has sent of a message.
#[derive(Default)]
struct Message {
    content: Vec<u8>,
    ended: bool,
}

impl Message {
    fn push(&mut self, body: &[u8], last: bool) {
        self.content.extend_from_slice(body);
        self.ended |= last;
    }
}

struct World {
    now: Instant,
    client: Client,
    server: Server,
    /// Requests by ID on the wire, which no test uses up.
    requests: HashMap<u32, Message>,
    answers: HashMap<u32, Message>,
    /// Calls that no event has ended, with what has come of the answer.
    open: BTreeMap<CallId, Vec<u8>>,
    /// Requests that the server has not ended, with what has come of each and whether that was all.
    pending: BTreeMap<RequestId, (Vec<u8>, bool)>,
    seen: HashSet<u32>,
    unused: BTreeSet<(RequestId, usize)>,
    unused_answers: Vec<(CallId, usize)>,
    lost: bool,
    number: usize,
}

/// The octets of a program, zeros after its end.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn next(&mut self) -> usize {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                usize::from(*first)
            }
            None => 0,
        }
    }
}

fn carry(from: &mut Outbox, to: &mut BytesMut, most: usize) -> usize {
    let mut carried = 0;
    while carried < most && from.has_remaining() {
        let size = from.chunk().len().min(most - carried);
        to.extend_from_slice(&from.chunk()[..size]);
        from.advance(size);
        carried += size;
    }
    carried
}

fn config(flags: usize) -> Config {
    Config {
        negotiate: flags & 3 != 0,
        parts: flags & 4 != 0,
        max_calls: if flags & 8 != 0 { 5 } else { 1024 },
        call_window: if flags & 16 != 0 { 16_384 } else { 65_536 },
        connection_window: if flags & 32 != 0 { 20_000 } else { 1_048_576 },
        assembly_budget: if flags & 64 != 0 { 300_000 } else { 64 << 20 },
        max_output: if flags & 128 != 0 { 10_000 } else { 1 << 20 },
        ..Config::default()
    }
}

/// Runs a program.
///
/// # Panics
/// When a core did what it must not.
pub fn run(now: Instant, data: &[u8]) {
    let mut program = Program(data);
    let mut world = World {
        now,
        client: Client::new(now, config(program.next())),
        server: Server::new(now, config(program.next())),
        requests: HashMap::new(),
        answers: HashMap::new(),
        open: BTreeMap::new(),
        pending: BTreeMap::new(),
        seen: HashSet::new(),
        unused: BTreeSet::new(),
        unused_answers: Vec::new(),
        lost: false,
        number: 0,
    };
    for _ in 0..STEPS {
        if program.0.is_empty() || world.lost {
            break;
        }
        world.step(&mut program);
    }
    world.finish();
}

impl World {
    fn step(&mut self, program: &mut Program<'_>) {
        match program.next() % 20 {
            0..=4 => self.call(program.next(), program.next()),
            5 | 6 => drop(self.up(1 << (program.next() % 18))),
            7 | 8 => drop(self.down(1 << (program.next() % 18))),
            9 => {
                self.up(usize::MAX);
                self.down(usize::MAX);
            }
            10 => {
                if let Some(id) = self.pick_call(program.next())
                    && self.client.cancel(self.now, id, Code::CANCELLED)
                {
                    self.open.remove(&id);
                }
            }
            11..=13 => self.respond(program.next(), program.next()),
            14 => self.send_part(program.next(), program.next()),
            15 => self.send_answer_part(program.next(), program.next()),
            16 => self.pass(Duration::from_millis((program.next() as u64).pow(2) / 4)),
            17 => self.consume(program.next()),
            18 => match program.next() % 16 {
                0 => self.client.go_away(),
                1 => self.server.go_away("leaving"),
                _ => {}
            },
            _ => {
                if program.next().is_multiple_of(8) {
                    self.lose();
                }
            }
        }
    }

    fn body(&mut self, kind: usize) -> Bytes {
        self.number += 1;
        let number = self.number;
        (0..SIZES[kind % SIZES.len()]).map(|index| (index * 7 + index / 251 + number * 13) as u8).collect()
    }

    fn call(&mut self, kind: usize, flags: usize) {
        let more = flags & 0x38 == 0x38;
        let options = CallOptions {
            deadline: (flags & 0x03 == 0x03).then(|| Duration::from_millis(flags as u64 * 20)),
            priority: if flags & 4 != 0 { (flags >> 5) as u8 } else { 3 },
            trace: (flags & 0x0c == 0x0c).then(|| Bytes::from_static(b"trace")),
            one_way: flags & 0x70 == 0x70,
            more,
            parts: flags & 0x80 != 0,
        };
        let body = self.body(kind);
        if let Ok(id) = self.client.call(self.now, body.clone(), &options) {
            let mut message = Message::default();
            message.push(&body, !more);
            assert!(self.requests.insert(id.wire(), message).is_none(), "{id:?} again");
            assert!(
                self.open.keys().all(|open| open.place() != id.place()),
                "{id:?} in a place that is taken"
            );
            assert!(self.open.insert(id, Vec::new()).is_none());
        }
        // Drivers need not poll at once.
        if flags & 1 == 0 {
            self.poll_client();
        }
    }

    fn pick_call(&self, index: usize) -> Option<CallId> {
        self.open.keys().nth(index % self.open.len().max(1)).copied()
    }

    fn pick_request(&self, index: usize) -> Option<RequestId> {
        self.pending.keys().nth(index % self.pending.len().max(1)).copied()
    }

    fn send_part(&mut self, index: usize, kind: usize) {
        let (body, last) = (self.body(kind), kind & 0x40 != 0);
        if let Some(id) = self.pick_call(index)
            && self.client.send_part(self.now, id, body.clone(), last).is_ok()
            && let Some(message) = self.requests.get_mut(&id.wire())
        {
            assert!(!message.ended);
            message.push(&body, last);
        }
    }

    fn respond(&mut self, index: usize, kind: usize) {
        let Some(id) = self.pick_request(index) else { return };
        let body = self.body(kind);
        let begun = self.answers.contains_key(&id.wire());
        let result = match kind {
            0xe0.. => self.server.fail(self.now, id, Code(300), "no", true),
            _ => self.server.respond(self.now, id, body.clone()),
        };
        match result {
            Ok(()) => {
                self.pending.remove(&id);
                if kind < 0xe0 {
                    self.answers.entry(id.wire()).or_default().push(&body, true);
                }
            }
            Err(CallError::TooLarge) => drop(self.pending.remove(&id)),
            // Some of the answer was sent in parts: only parts may follow.
            Err(error) => assert!(begun && error == CallError::Unknown, "{error:?}"),
        }
    }

    fn send_answer_part(&mut self, index: usize, kind: usize) {
        let (body, last) = (self.body(kind), kind & 0x40 != 0);
        let Some(id) = self.pick_request(index) else { return };
        if self.server.send_part(self.now, id, body.clone(), last).is_ok() {
            self.answers.entry(id.wire()).or_default().push(&body, last);
            if last {
                self.pending.remove(&id);
            }
        }
    }

    fn consume(&mut self, index: usize) {
        let unused = self.unused.iter().nth(index % self.unused.len().max(1)).copied();
        if let Some((id, size)) = unused {
            self.unused.remove(&(id, size));
            self.server.consumed(id, size);
        }
        if let Some((id, size)) = self.unused_answers.pop() {
            self.client.consumed(id, size);
        }
    }

    fn up(&mut self, most: usize) -> usize {
        self.client.fill(self.now);
        let mut carried = 0;
        if self.server.wants_input() && !self.lost {
            carried = carry(self.client.output(), self.server.input(), most);
        }
        self.poll_server();
        carried
    }

    fn down(&mut self, most: usize) -> usize {
        self.server.fill(self.now);
        let mut carried = 0;
        if self.client.wants_input() && !self.lost {
            carried = carry(self.server.output(), self.client.input(), most);
        }
        self.poll_client();
        carried
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.client.time_out(self.now);
        self.server.time_out(self.now);
        self.poll_client();
        self.poll_server();
    }

    fn poll_server(&mut self) {
        loop {
            match self.server.poll(self.now) {
                Ok(Some(event)) => self.server_event(event),
                Ok(None) => break,
                Err(error) => return self.over(error),
            }
        }
        assert!(self.server.open_calls() <= 1024);
    }

    /// The peer is honest, so a connection ends by loss or by time only.
    fn over(&mut self, error: ConnectionError) {
        assert!(!error.is_violation(), "{error:?}");
        if !std::mem::replace(&mut self.lost, true) {
            self.lose();
        }
    }

    fn server_event(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Request(request) => {
                // The HELLO, for a server that does not know what it is.
                if request.id.wire() == u32::MAX {
                    self.pending.insert(request.id, Default::default());
                    return;
                }
                assert!(self.seen.insert(request.id.wire()), "{:?} came twice", request.id);
                let sent = &self.requests[&request.id.wire()];
                if request.whole {
                    assert!(sent.ended && sent.content == request.body, "{:?}", request.id);
                } else {
                    assert!(sent.content.starts_with(&request.body));
                    self.unused.insert((request.id, request.body.len()));
                }
                let content = if request.whole { Vec::new() } else { request.body.to_vec() };
                self.pending.insert(request.id, (content, request.whole));
            }
            ServerEvent::Part { id, body, last } => {
                self.unused.insert((id, body.len()));
                let sent = &self.requests[&id.wire()];
                if let Some((content, ended)) = self.pending.get_mut(&id) {
                    content.extend_from_slice(&body);
                    assert!(!*ended && sent.content.starts_with(content));
                    assert!(!last || (sent.ended && sent.content.len() == content.len()));
                    *ended = last;
                }
            }
            ServerEvent::Cancelled { id, .. } => {
                assert!(self.pending.remove(&id).is_some(), "{id:?} was over");
            }
            ServerEvent::Writable { .. } | ServerEvent::Version(_) | ServerEvent::GoAway => {}
        }
    }

    fn poll_client(&mut self) {
        loop {
            match self.client.poll(self.now) {
                Ok(Some(event)) => self.client_event(event),
                Ok(None) => break,
                Err(error) => return self.over(error),
            }
        }
        assert_eq!(self.client.open_calls(), self.open.len());
    }

    fn client_event(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Answered { id, body } => {
                assert_eq!(self.open.remove(&id), Some(Vec::new()), "{id:?}");
                let sent = &self.answers[&id.wire()];
                assert!(sent.ended && sent.content == body, "{id:?}");
            }
            ClientEvent::Part { id, body, last } => {
                self.unused_answers.push((id, body.len()));
                let content = self.open.get_mut(&id).expect("it is open");
                content.extend_from_slice(&body);
                let sent = &self.answers[&id.wire()];
                assert!(sent.content.starts_with(content));
                if last {
                    assert!(sent.ended && sent.content.len() == content.len());
                    self.open.remove(&id);
                }
            }
            ClientEvent::Failed { id, .. } | ClientEvent::Sent { id } => {
                assert!(self.open.remove(&id).is_some(), "{id:?} was over");
            }
            ClientEvent::Writable { .. } | ClientEvent::Version(_) | ClientEvent::GoAway => {}
        }
    }

    /// Both ends of the stream are gone: each says so of all that is open.
    fn lose(&mut self) {
        self.lost = true;
        self.client.end_of_stream();
        self.server.end_of_stream();
        self.poll_client();
        self.poll_server();
        assert_eq!((self.open.len(), self.pending.len()), (0, 0), "calls of a lost connection");
        assert!(!self.client.wants_input() && !self.server.wants_input());
        assert_eq!((self.client.deadline(), self.server.deadline()), (None, None));
        assert!(self.client.call(self.now, Bytes::new(), &CallOptions::default()).is_err());
    }

    /// Everything is answered and used, and time goes by: nothing stays.
    fn finish(&mut self) {
        for _ in 0..400 {
            if self.lost {
                return;
            }
            let open: Vec<_> = self.open.keys().copied().collect();
            for id in open {
                if self.requests.get(&id.wire()).is_some_and(|message| !message.ended)
                    && self.client.send_part(self.now, id, Bytes::new(), true).is_ok()
                    && let Some(message) = self.requests.get_mut(&id.wire())
                {
                    message.ended = true;
                }
            }
            let pending: Vec<_> = self.pending.keys().copied().collect();
            for id in pending {
                if self.answers.contains_key(&id.wire()) {
                    let _ = self.server.send_part(self.now, id, Bytes::new(), true).is_ok();
                    self.answers.entry(id.wire()).or_default().ended = true;
                    self.pending.remove(&id);
                } else if self.server.respond(self.now, id, Bytes::new()).is_ok() {
                    self.answers.entry(id.wire()).or_default().ended = true;
                    self.pending.remove(&id);
                }
            }
            for _ in 0..4 {
                (0..self.unused.len().max(self.unused_answers.len())).for_each(|_| self.consume(0));
                while self.up(usize::MAX) + self.down(usize::MAX) > 0 && !self.lost {}
            }
            self.pass(Duration::from_millis(500));
        }
        // A PING may just have been due.
        while self.up(usize::MAX) + self.down(usize::MAX) > 0 {}
        let open = (self.client.open_calls(), self.server.open_calls());
        assert_eq!(open, (0, 0), "calls that never end: {:?} {:?}", self.client, self.server);
        assert_eq!((self.client.held_octets(), self.server.held_octets()), (0, 0), "{:?}", self.server);
    }
}
