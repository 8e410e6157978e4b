//! Two cores and the wire between them.

use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use cotcp::core::{
    CallId, CallOptions, Client, ClientEvent, Outbox, Request, RequestId, Server, ServerEvent,
};
use cotcp::{Config, ConnectionError, frame::Frame};

/// Both sides, and what they reported that no test has looked at.
pub struct Pair {
    pub now: Instant,
    pub client: Client,
    pub server: Server,
    pub client_events: Vec<ClientEvent>,
    pub server_events: Vec<ServerEvent>,
    pub client_error: Option<ConnectionError>,
    pub server_error: Option<ConnectionError>,
}

/// Moves up to `most` octets.
pub fn carry(from: &mut Outbox, to: &mut BytesMut, most: usize) -> usize {
    let mut carried = 0;
    while carried < most && from.has_remaining() {
        let size = from.chunk().len().min(most - carried);
        to.extend_from_slice(&from.chunk()[..size]);
        from.advance(size);
        carried += size;
    }
    carried
}

impl Pair {
    pub fn new(client: Config, server: Config) -> Self {
        let now = Instant::now();
        Self {
            now,
            client: Client::new(now, client),
            server: Server::new(now, server),
            client_events: Vec::new(),
            server_events: Vec::new(),
            client_error: None,
            server_error: None,
        }
    }

    /// Two that have agreed on version 2.
    pub fn v2(client: Config, server: Config) -> Self {
        let mut pair = Self::new(client, server);
        pair.settle();
        assert_eq!(pair.client.version(), cotcp::core::Version::V2);
        assert_eq!(pair.server.version(), cotcp::core::Version::V2);
        pair.client_events.clear();
        pair.server_events.clear();
        pair
    }

    /// Up to `most` octets from the client to the server, and what the server makes of them.
    pub fn up(&mut self, most: usize) -> usize {
        self.client.fill(self.now);
        let mut carried = 0;
        if self.server.wants_input() {
            carried = carry(self.client.output(), self.server.input(), most);
        }
        self.poll_server();
        carried
    }

    /// The same the other way.
    pub fn down(&mut self, most: usize) -> usize {
        self.server.fill(self.now);
        let mut carried = 0;
        if self.client.wants_input() {
            carried = carry(self.server.output(), self.client.input(), most);
        }
        self.poll_client();
        carried
    }

    pub fn poll_server(&mut self) {
        loop {
            match self.server.poll(self.now) {
                Ok(Some(event)) => self.server_events.push(event),
                Ok(None) => break,
                Err(error) => {
                    self.server_error = Some(error);
                    break;
                }
            }
        }
    }

    pub fn poll_client(&mut self) {
        loop {
            match self.client.poll(self.now) {
                Ok(Some(event)) => self.client_events.push(event),
                Ok(None) => break,
                Err(error) => {
                    self.client_error = Some(error);
                    break;
                }
            }
        }
    }

    /// Until neither side has anything to say.
    pub fn settle(&mut self) {
        while self.up(usize::MAX) + self.down(usize::MAX) > 0 {}
    }

    /// Time goes on; both do what is due.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        self.client.time_out(self.now);
        self.server.time_out(self.now);
        self.poll_client();
        self.poll_server();
    }

    /// Time goes on in the steps that the cores ask for, everything flowing in between.
    pub fn pass_flowing(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let due = [self.client.deadline(), self.server.deadline()].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= end) else { break };
            assert!(due > self.now || self.now != end, "a deadline that stays");
            self.pass(due.saturating_duration_since(self.now).max(Duration::from_millis(1)));
        }
        self.now = self.now.max(end);
        self.settle();
    }

    pub fn call(&mut self, body: impl Into<Bytes>) -> CallId {
        self.call_with(body, &CallOptions::default())
    }

    pub fn call_with(&mut self, body: impl Into<Bytes>, options: &CallOptions) -> CallId {
        self.client.call(self.now, body.into(), options).unwrap()
    }

    /// The next request that the server has reported.
    pub fn request(&mut self) -> Request {
        match self.server_events.remove(0) {
            ServerEvent::Request(request) => request,
            other => panic!("{other:?}"),
        }
    }

    pub fn respond(&mut self, id: RequestId, body: impl Into<Bytes>) {
        self.server.respond(self.now, id, body.into()).unwrap();
    }

    /// Octets as if the server had sent them.
    pub fn feed_client(&mut self, octets: &[u8]) {
        self.client.input().extend_from_slice(octets);
        self.poll_client();
    }

    /// Octets as if the client had sent them.
    pub fn feed_server(&mut self, octets: &[u8]) {
        self.server.input().extend_from_slice(octets);
        self.poll_server();
    }

    pub fn frame_up(&mut self, call: u32, frame: &Frame) {
        self.feed_server(&octets(call, frame));
    }

    pub fn frame_down(&mut self, call: u32, frame: &Frame) {
        self.feed_client(&octets(call, frame));
    }
}

/// A frame with a type.
pub fn octets(call: u32, frame: &Frame) -> Vec<u8> {
    let mut octets = Vec::new();
    frame.encode(call, &mut octets);
    octets
}

/// A frame of version 1.
pub fn plain(id: u32, body: &[u8]) -> Vec<u8> {
    let mut octets = cotcp::frame::header(id, body.len() as u16).to_vec();
    octets.extend_from_slice(body);
    octets
}

/// A body of this length that is not all the same.
pub fn body(length: usize) -> Bytes {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

/// Version 1 only.
pub fn v1() -> Config {
    Config { negotiate: false, ..Config::default() }
}

pub fn answered(id: CallId, body: impl Into<Bytes>) -> ClientEvent {
    ClientEvent::Answered { id, body: body.into() }
}
