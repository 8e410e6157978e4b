//! How many PFCP sessions per second are decoded, applied and answered, and what each part costs?
//!
//! `cargo run --release -p upf --example establish [sessions] [policies]`: requests of ordinary sessions (four PDRs, three
//! FARs, two QERs, one URR), encoded beforehand, go through the endpoint and the N4 rules into the tables; then each is
//! modified (a path switch) and deleted. The sessions are of so many policies, one unless said otherwise: rules that differ
//! in a filter. No socket is involved; after that, a CP function on another thread establishes them once more over UDP. What
//! the process grows by is told as well.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic)] // a tool that reports on standard output

#[path = "../tests/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use net::udp::Options;
use net::udp::burst::{Burst, send};
use pfcp::endpoint::{Config as EndpointConfig, Endpoint, Event, RequestId};
use pfcp::message::{AssociationSetupRequest, SessionDeletionRequest};
use pfcp::*;
use support::*;
use upf::Config;
use upf::n4::session::Sessions;
use upf::n4::{Wiring, serve};
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
                let cp_seid = request.cp_f_seid.seid;
                let response = self.sessions.establish(NodeId::Ipv4(GTPU), cp, request, now).response;
                assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
                (cp_seid, response.up_f_seid.unwrap().seid, response.into())
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

fn nth(n: usize, policies: usize) -> Vec<u8> {
    let mut request = establishment(n as u64 + 1);
    if policies > 1 {
        let text = format!("permit out 17 from 192.0.2.1 {} to assigned", 8000 + n % policies);
        let filter = SdfFilter { flow_description: Some(text.as_str().into()), ..Default::default() };
        request.create_pdrs[2].pdi.sdf_filters = vec![filter];
    }
    for pdr in &mut request.create_pdrs {
        if let Some(ue) = &mut pdr.pdi.ue_ip_address {
            ue.ipv4 = Some((u32::from(UE_V4) + n as u32).into());
            ue.ipv6 = Some((UE_PREFIX.to_bits() + ((n as u128) << 64)).into());
        }
    }
    request.create_fars[1] = forward(2, DestinationInterface::Access, Some((n as u32 + 1, GNB)));
    encode(request, 0, n)
}

/// Octets of memory that the process has.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
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

/// Requests under way at once over UDP.
const WINDOW: usize = 256;

/// Establishes sessions over loopback: N4 as a UPF serves it, on a thread of its own.
fn over_udp(config: Config, requests: &[Vec<u8>]) {
    let (told, address) = std::sync::mpsc::channel();
    let served = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let roomy =
                Options { receive_buffer: Some(8 << 20), send_buffer: Some(8 << 20), ..Options::default() };
            let socket = net::udp::bind_with("127.0.0.1:0".parse().unwrap(), roomy).await.unwrap();
            let (_events, events) = tokio::sync::mpsc::channel(1);
            let (_queries, queries) = tokio::sync::mpsc::channel(1);
            let (stop, stopped) = tokio::sync::watch::channel(false);
            told.send((socket.local_addr().unwrap(), stop)).unwrap();
            let config = Arc::new(config);
            let tables = Arc::new(Tables::new(&config));
            let signalling: Vec<Vec<Box<dyn pktio::Port>>> =
                vec![vec![Box::new(pktio::memory::Sink::default())]];
            serve(config, Wiring { socket, signalling, tables, events, queries, stop: stopped }).await;
        });
    });
    let (upf, stop) = address.recv().unwrap();
    let roomy = Options { receive_buffer: Some(8 << 20), ..Options::default() };
    let socket = net::udp::bind_std("127.0.0.1:0".parse().unwrap(), roomy).unwrap();
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let setup = AssociationSetupRequest { node_id: NodeId::Ipv4(SMF), ..Default::default() };
    socket.send_to(&encode(setup, 0, 0xff_ffff), upf).unwrap();
    let mut burst = Burst::new(2048);
    burst.receive_now(&socket).unwrap();
    let (mut sent, mut answered, start) = (0, 0, net::time::now_std());
    while answered < requests.len() {
        let until = requests.len().min(answered + WINDOW);
        let due: Vec<_> = requests[sent..until].iter().map(|request| (upf, request)).collect();
        let mut rest = &due[..];
        while !rest.is_empty() {
            rest = &rest[send(&socket, rest).unwrap()..];
        }
        sent = until;
        answered += burst.receive_now(&socket).expect("answers");
    }
    let rate = requests.len() as f64 / start.elapsed().as_secs_f64() / 1e3;
    println!("establishment over UDP, {WINDOW} under way: {rate:.0} k/s");
    stop.send(true).unwrap();
    served.join().unwrap();
}

fn main() {
    let count: usize = std::env::args().nth(1).map_or(200_000, |n| n.parse().unwrap());
    let mut config = config("gw0");
    config.max_tunnels = 1 << 20;
    config.dnn[0].ue_pool.ipv4 = Some("10.0.0.0/8".parse().unwrap());
    config.dnn[0].ue_pool.ipv6 = Some("fd00:45::/40".parse().unwrap());
    let policies: usize = std::env::args().nth(2).map_or(1, |n| n.parse().unwrap());
    let again = config.clone();
    let config = Arc::new(config);
    let tables = Arc::new(Tables::new(&config));
    let node_id = NodeId::Ipv4(GTPU);
    let mut upf = Upf {
        endpoint: Endpoint::new(EndpointConfig::new(node_id, NtpSeconds(1), 1)),
        sessions: Sessions::new(config, tables, 1),
        peer: SocketAddr::from((SMF, 8805)),
    };
    let requests: Vec<Vec<u8>> = (0..count).map(|n| nth(n, policies)).collect();
    println!("{count} sessions of {policies} policies, requests of {} octets", requests[0].len());
    let before = resident();
    let (mut spent, start) = (Spent::default(), net::time::now_std());
    let seids: Vec<u64> = requests.iter().map(|request| upf.handle(request, &mut spent)).collect();
    report("establishment", count, start.elapsed(), &spent);
    println!(
        "memory: {} octets per session, N4's rules and the answers kept for T1 · N1 included",
        (resident() - before) / count
    );
    let establishments = requests;

    let switched = |(n, seid): (usize, &u64)| encode(path_switch(!(n as u32), GNB.into()), *seid, count + n);
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
    drop(upf);
    over_udp(again, &establishments);
}
