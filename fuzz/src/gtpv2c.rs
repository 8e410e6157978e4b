//! GTPv2-C: one message, and a conversation of two endpoints over a network that a program of the input damages.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use gtpv2c::endpoint::{Config, Endpoint, Event, Handle, PORT, RequestId};
use gtpv2c::message::{
    BearerResourceCommand, CreateBearerRequest, CreateSessionRequest, CreateSessionResponse,
};
use gtpv2c::tft::Tft;
use gtpv2c::{BearerInCreateRequest, BearerToBeCreated, CauseValue, Header, Message, Recovery};

/// One message: what decodes also encodes, and decodes to the same. The same for a traffic flow template.
pub fn message(data: &[u8]) {
    if let Ok((header, message)) = Message::decode(data) {
        let mut octets = Vec::new();
        if message.encode_with(header, &mut octets).is_ok() {
            let (again, same) = Message::decode(&octets).expect("what we encode is well-formed");
            assert_eq!((again.sequence, again.priority), (header.sequence, header.priority));
            assert_eq!(same, message);
        }
    }
    if let Ok(tft) = Tft::decode(data) {
        let octets = tft.encode().expect("what was read fits");
        assert_eq!(Tft::decode(octets.as_bytes()), Ok(tft));
    }
}

/// Steps of one program.
const STEPS_MAX: usize = 64;
/// Datagrams under way; more are lost.
const UNDER_WAY_MAX: usize = 64;

/// One side: its endpoint, what it waits for, and what it has to answer.
struct Side {
    address: SocketAddr,
    endpoint: Endpoint,
    waiting: BTreeSet<String>,
    to_answer: VecDeque<RequestId>,
}

impl Side {
    fn new(last: u8, secret: u64, now: Instant, peer: SocketAddr) -> Self {
        let mut config = Config::new(Recovery(last), secret);
        (config.max_outstanding, config.max_remembered) = (16, 16);
        let mut endpoint = Endpoint::new(config);
        endpoint.add_peer(now, peer);
        let (waiting, to_answer) = Default::default();
        Self { address: address(last), endpoint, waiting, to_answer }
    }

    fn waits_for(&mut self, handle: Handle) {
        assert!(self.waiting.insert(format!("{handle:?}")), "a handle is given once");
    }

    fn ended(&mut self, handle: Handle) {
        assert!(self.waiting.remove(&format!("{handle:?}")), "a request ends once");
    }

    fn poll(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Request { id, command, .. } | Event::MalformedRequest { id, command, .. } => {
                    self.to_answer.push_back(id);
                    if let Some(handle) = command {
                        self.ended(handle);
                    }
                }
                Event::Response { handle, .. } | Event::Failed { handle, .. } => self.ended(handle),
                _ => {}
            }
        }
    }

    fn act(&mut self, now: Instant, action: u8, peer: SocketAddr) {
        match action % 5 {
            0 => {
                if let Ok(handle) = self.endpoint.send_request(now, peer, 1, session()) {
                    self.waits_for(handle);
                }
            }
            1 => {
                let command = BearerResourceCommand::default();
                if let Ok(handle) = self.endpoint.send_request(now, peer, 1, command) {
                    self.waits_for(handle);
                }
            }
            2 => {
                if let Some(id) = self.to_answer.pop_front() {
                    let _ = self.endpoint.reject(now, id, 1, CauseValue::SYSTEM_FAILURE);
                }
            }
            3 => {
                if let Some(id) = self.to_answer.pop_front()
                    && let Ok(handle) = self.endpoint.send_triggered(now, id, peer, 1, bearer())
                {
                    self.waits_for(handle);
                }
            }
            _ => {
                let response =
                    CreateSessionResponse { cause: CauseValue::ACCEPTED.into(), ..Default::default() };
                if let Some(id) = self.to_answer.pop_front()
                    && let Ok(Some(handle)) =
                        self.endpoint.respond_with_request(now, id, 1, response, bearer())
                {
                    self.waits_for(handle);
                }
            }
        }
    }
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], PORT))
}

fn session() -> CreateSessionRequest {
    let bearers_to_be_created = vec![BearerToBeCreated::default()];
    let mut request = CreateSessionRequest { bearers_to_be_created, ..Default::default() };
    request.sender_f_teid.ipv4 = Some([127, 0, 0, 1].into());
    request
}

fn bearer() -> CreateBearerRequest {
    CreateBearerRequest { bearers: vec![BearerInCreateRequest::default()], ..Default::default() }
}

/// A conversation. Each step has two octets: what happens, and a number for it. Whatever the network does, each request
/// ends exactly once.
pub fn endpoint(data: &[u8]) {
    let mut now = net::time::now_std();
    let mut sides = [Side::new(1, 1, now, address(2)), Side::new(2, 2, now, address(1))];
    let mut under_way: VecDeque<(usize, Vec<u8>)> = VecDeque::new();
    let mut rest = data;
    for _ in 0..STEPS_MAX {
        let Some((&[step, number], after)) = rest.split_first_chunk::<2>() else { break };
        rest = after;
        let at = usize::from(step & 1);
        let (this, peer) = (usize::from(number), sides[1 - at].address);
        match step >> 1 & 7 {
            0 | 1 => sides[at].act(now, number, peer),
            // Delivered, in any order, perhaps twice, and perhaps with a damaged octet.
            kind @ 2..=4 if !under_way.is_empty() => {
                let chosen = this % under_way.len();
                let (to, mut datagram) = under_way[chosen].clone();
                if kind != 3 {
                    let _ = under_way.remove(chosen);
                }
                if kind == 4
                    && let Some(octet) = datagram.get_mut(usize::from(step >> 4) * 7)
                {
                    *octet ^= number | 1;
                }
                let from = sides[1 - to].address;
                sides[to].endpoint.handle_datagram(now, from, &datagram);
            }
            // Octets of the input.
            5 => {
                let (datagram, after) = rest.split_at(this.min(rest.len()));
                rest = after;
                sides[at].endpoint.handle_datagram(now, peer, datagram);
            }
            6 => now += Duration::from_millis(100 * u64::from(number)),
            _ => {
                let _ = under_way.pop_front();
            }
        }
        for (at, side) in sides.iter_mut().enumerate() {
            side.endpoint.handle_timeout(now);
            side.poll();
            while let Some(transmit) = side.endpoint.poll_transmit() {
                Header::decode(&transmit.payload).expect("what we send is well-formed");
                if under_way.len() < UNDER_WAY_MAX {
                    under_way.push_back((1 - at, transmit.payload.to_vec()));
                }
            }
        }
    }
    // Nothing arrives any more: all that is left ends.
    for mut side in sides {
        for _ in 0..8 {
            now += Duration::from_secs(2);
            side.endpoint.handle_timeout(now);
        }
        side.poll();
        assert!(side.waiting.is_empty(), "{:?}", side.waiting);
        while side.endpoint.poll_transmit().is_some() {}
    }
}

/// A session with a piggybacked bearer, answered; then a command that triggers one.
pub fn conversations() -> Vec<Vec<u8>> {
    let deliver = [4, 0];
    let session = [[0, 0], deliver, deliver, deliver, deliver, deliver, [1, 4], deliver, [0, 2], deliver];
    let command = [[1, 1], deliver, deliver, deliver, deliver, deliver, [0, 3], deliver, [12, 30], [1, 2]];
    vec![session.concat(), command.concat(), [session, command].concat().concat()]
}
