//! How many PFCP sessions per second are decoded, applied and answered, and what each part costs?
//!
//! `cargo run --release -p upf --example establish [sessions]`: requests of ordinary sessions (four PDRs, three FARs,
//! two QERs, one URR), encoded beforehand, go through the endpoint and the N4 rules into the tables; then each is
//! modified (a path switch) and deleted. No socket is involved.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic)] // a tool that reports on standard output

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pfcp::endpoint::{Config as EndpointConfig, Endpoint, Event, RequestId};
use pfcp::message::{SessionDeletionRequest, SessionModificationRequest};
use pfcp::*;
use support::*;
use upf::n4::session::Sessions;
use upf::tables::Tables;

/// What is spent where.
#[derive(Default)]
struct Spent {
    receive: Duration,
    apply: Duration,
    answer: Duration,
}

struct Upf {
    endpoint: Endpoint,
    sessions: Sessions,
    peer: SocketAddr,
}

impl Upf {
    fn handle(&mut self, datagram: &[u8], spent: &mut Spent) -> u64 {
        let start = net::time::now_std();
        self.endpoint.handle_datagram(start, self.peer, datagram);
        let Some(Event::Request { id, seid, message }) = self.endpoint.poll_event() else {
            panic!("no request")
        };
        let received = net::time::now_std();
        let (cp_seid, seid, response) = self.apply(&id, seid.unwrap(), message);
        let applied = net::time::now_std();
        self.endpoint.respond(applied, id, cp_seid, response).unwrap();
        while self.endpoint.poll_transmit().is_some() {}
        spent.receive += received - start;
        spent.apply += applied - received;
        spent.answer += applied.elapsed();
        seid
    }

    fn apply(&mut self, id: &RequestId, seid: u64, message: Message) -> (u64, u64, Message) {
        let (now, cp) = (NtpSeconds(1000), id.peer.ip());
        match message {
            Message::SessionEstablishmentRequest(request) => {
                let response = self.sessions.establish(NodeId::Ipv4(GTPU), cp, &request, now).response;
                assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
                (request.cp_f_seid.seid, response.up_f_seid.unwrap().seid, response.into())
            }
            Message::SessionModificationRequest(request) => {
                let modified = self.sessions.modify(seid, cp, &request, now).unwrap();
                assert_eq!(modified.response.cause, Cause::ACCEPTED);
                (modified.cp_seid, seid, modified.response.into())
            }
            Message::SessionDeletionRequest(_) => {
                let (cp_seid, response) = self.sessions.delete(seid, cp, now).unwrap();
                (cp_seid, seid, response.into())
            }
            other => panic!("{other:?}"),
        }
    }
}

fn encode(message: impl Into<Message>, seid: u64, sequence: usize) -> Vec<u8> {
    let mut out = Vec::new();
    message.into().encode(seid, sequence as u32 & 0xff_ffff, &mut out).unwrap();
    out
}

fn nth(n: usize) -> Vec<u8> {
    let mut request = establishment(n as u64);
    for pdr in &mut request.create_pdrs {
        if let Some(ue) = &mut pdr.pdi.ue_ip_address {
            ue.ipv4 = Some((u32::from(UE_V4) + n as u32).into());
            ue.ipv6 = Some((UE_PREFIX.to_bits() + ((n as u128) << 64)).into());
        }
    }
    request.create_fars[1] = forward(2, DestinationInterface::Access, Some((n as u32, GNB)));
    encode(request, 0, n)
}

fn report(what: &str, count: usize, took: Duration, spent: &Spent) {
    let each = |part: Duration| part.as_nanos() as usize / count;
    let rate = count as f64 / took.as_secs_f64() / 1e3;
    println!(
        "{what}: {rate:.0} k/s; ns each: receive and decode {}, apply {}, encode and answer {}",
        each(spent.receive),
        each(spent.apply),
        each(spent.answer)
    );
}

fn main() {
    let count: usize = std::env::args().nth(1).map_or(200_000, |n| n.parse().unwrap());
    let mut config = config("gw0");
    config.max_tunnels = 1 << 20;
    config.dnn[0].ue_pool.ipv4 = Some("10.0.0.0/8".parse().unwrap());
    config.dnn[0].ue_pool.ipv6 = Some("fd00:45::/40".parse().unwrap());
    let config = Arc::new(config);
    let tables = Arc::new(Tables::new(&config));
    let node_id = NodeId::Ipv4(GTPU);
    let mut upf = Upf {
        endpoint: Endpoint::new(EndpointConfig::new(node_id, NtpSeconds(1), 1)),
        sessions: Sessions::new(config, tables, 1),
        peer: SocketAddr::from((SMF, 8805)),
    };
    let requests: Vec<Vec<u8>> = (0..count).map(nth).collect();
    println!("{count} sessions, requests of {} octets", requests[0].len());
    let (mut spent, start) = (Spent::default(), net::time::now_std());
    let seids: Vec<u64> = requests.iter().map(|request| upf.handle(request, &mut spent)).collect();
    report("establishment", count, start.elapsed(), &spent);

    let switched = |(n, seid): (usize, &u64)| {
        let parameters = UpdateForwardingParameters {
            outer_header_creation: Some(OuterHeaderCreation::gtpu(!(n as u32), GNB.into())),
            ..Default::default()
        };
        let far = UpdateFar {
            far_id: FarId(2),
            update_forwarding_parameters: Some(Box::new(parameters)),
            ..Default::default()
        };
        let request = SessionModificationRequest { update_fars: vec![far], ..Default::default() };
        encode(request, *seid, count + n)
    };
    let requests: Vec<Vec<u8>> = seids.iter().enumerate().map(switched).collect();
    let (mut spent, start) = (Spent::default(), net::time::now_std());
    for request in &requests {
        upf.handle(request, &mut spent);
    }
    report("modification", count, start.elapsed(), &spent);

    let deletion = |(n, seid): (usize, &u64)| encode(SessionDeletionRequest {}, *seid, 2 * count + n);
    let requests: Vec<Vec<u8>> = seids.iter().enumerate().map(deletion).collect();
    let (mut spent, start) = (Spent::default(), net::time::now_std());
    for request in &requests {
        upf.handle(request, &mut spent);
    }
    report("deletion", count, start.elapsed(), &spent);
}
