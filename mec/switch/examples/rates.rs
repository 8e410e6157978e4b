//! How fast the switch takes rules, translates packets, and forwards them in memory.
//!
//! ```text
//! cargo run --release -p switch --example rates
//! ```
#![allow(clippy::print_stdout, reason = "it is what it is for")]

use std::sync::Arc;
use std::time::Instant;

use openflow::*;
use packet::{ethernet, gtpu, ipv4, protocol, transport};
use path::{Graph as _, Ports};
use pktio::memory::{Generator, Sink};
use pktio::{Port as _, Vector};
use switch::agent::peer::Peer;
use switch::agent::session::Session;
use switch::core::{Identity, PortCounts, Switch, SwitchPort};
use switch::pipeline::parse::Headers;
use switch::pipeline::{Limits, Pipeline, Ports as PipelinePorts};

const GTP: u32 = 100;
const USERS: u32 = 65_536;
const BASE: [u8; 4] = [10, 0, 0, 1];
const ANCHOR: [u8; 4] = [10, 0, 0, 11];
const NEW: [u8; 4] = [10, 0, 0, 12];

fn rules() -> Result<Vec<FlowMod>, Code> {
    let to = |last: u8, port: u32| -> Result<FlowMod, Code> {
        let fields = [Oxm::eth_dst(MacAddr([2, 0, 0, 0, 0, last]))];
        Ok(FlowMod::add(
            TableId(2),
            100,
            Match::new(fields)?,
            Instructions::apply([Action::output(PortNo(port))]),
        ))
    };
    let goto = |table: u8, priority, fields: Vec<Oxm>, next: u8| -> Result<FlowMod, Code> {
        Ok(FlowMod::add(TableId(table), priority, Match::new(fields)?, Instructions::goto(TableId(next))))
    };
    let tunnel = [Oxm::eth_type(0x0800), Oxm::ip_proto(17), Oxm::udp_dst(2152)];
    let outbound = tunnel.into_iter().chain([Oxm::ipv4_src(BASE.into()), Oxm::ipv4_dst(ANCHOR.into())]);
    let inbound = tunnel.into_iter().chain([Oxm::in_port(PortNo::LOCAL), Oxm::ipv4_dst(NEW.into())]);
    let mac = Action::set(Oxm::eth_dst(MacAddr([2, 0, 0, 0, 0, 12])))?;
    let to_new = Instructions { goto_table: Some(TableId(2)), ..Instructions::apply([mac]) };
    let back = || Instructions::apply([Action::output(PortNo::IN_PORT)]);
    let local = Instructions::apply([Action::output(PortNo::LOCAL)]);
    Ok(vec![
        goto(0, 300, vec![Oxm::in_port(PortNo(GTP))], 1)?,
        FlowMod::add(TableId(0), 260, Match::new(inbound)?, to_new),
        goto(0, 250, vec![Oxm::in_port(PortNo::LOCAL)], 2)?,
        FlowMod::add(TableId(0), 200, Match::new(outbound)?, local),
        goto(0, 0, vec![], 2)?,
        FlowMod::add(TableId(1), 0, Match::default(), back()),
        to(1, 1)?,
        to(11, 2)?,
        to(12, 3)?,
    ])
}

fn divert(teid: u32) -> Result<FlowMod, Code> {
    let user = Match::new([Oxm::tun_ipv4_dst(ANCHOR.into()), Oxm::tunnel_id(teid.into())])?;
    let steer = [Action::set(Oxm::tun_ipv4_dst(NEW.into()))?, Action::output(PortNo::IN_PORT)];
    Ok(FlowMod::add(TableId(1), 100, user, Instructions::apply(steer)))
}

fn frame() -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let udp = |from: [u8; 4], to: [u8; 4], port, payload: &[u8]| -> Result<Vec<u8>, packet::ParseError> {
        let datagram = transport::build_udp((from.into(), port), (to.into(), port), payload)?;
        ipv4::Header::new(from.into(), to.into(), protocol::UDP).build(&datagram)
    };
    let user = udp([10, 45, 0, 2], [192, 0, 2, 80], 53, b"data")?;
    let message = gtpu::build_gpdu(0, Some(gtpu::PduSession::Uplink { qfi: 9 }), &user)?;
    let packet = udp(BASE, ANCHOR, gtpu::PORT, &message)?;
    Ok(ethernet::build([2, 0, 0, 0, 0, 11], [2, 0, 0, 0, 0, 1], None, ethernet::IPV4, &packet))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port =
        |number: u32| SwitchPort { number, name: String::new(), mac: [0; 6], counts: PortCounts::default() };
    let live = (1..4).map(|number| (number, true)).collect();
    let pipeline = Pipeline::new(Limits::default(), PipelinePorts { live, gtp: Some(GTP) });
    let identity = Identity { datapath_id: 1, description: String::new() };
    let switch = Switch::new(identity, pipeline, (1..4).map(port).collect(), 1000);

    let mut session =
        Session::new(Arc::clone(&switch), Arc::new(Peer::new(1, ([127, 0, 0, 1], 1).into())), 0);
    session.receive(&Message::from(Hello::OURS).encode(0)?, 0)?;
    let mut octets = Vec::new();
    for rule in rules()? {
        Message::from(rule).encode_into(1, &mut octets)?;
    }
    for teid in 0..USERS {
        Message::from(divert(teid)?).encode_into(1, &mut octets)?;
    }
    let began = now();
    for part in octets.chunks(65_536) {
        session.receive(part, 0)?;
    }
    let taken = began.elapsed();
    let entries: usize = switch.pipeline().tables().iter().map(|table| table.len()).sum();
    println!(
        "{:.0} flow-mods/s, one after the other ({entries} entries)",
        f64::from(USERS) / taken.as_secs_f64()
    );
    let changes: Vec<_> =
        (0..1000).map(|teid| divert(teid).map(Change::FlowMod)).collect::<Result<_, _>>()?;
    let began = now();
    switch.commit(&changes)?;
    println!("{} us for a bundle of 1,000", began.elapsed().as_micros());

    let frame = frame()?;
    let began = now();
    let mut passed = 0;
    for _ in 0..200_000 {
        let headers = Headers::parse(&frame, 1);
        passed += switch.pipeline().trace(&headers.outer, &headers.inner).rules.len();
    }
    println!(
        "{:.0} ns for a translation ({} entries passed)",
        began.elapsed().as_nanos() as f64 / 200_000.0,
        passed / 200_000
    );
    for users in [1, 1024, USERS] {
        forward(&switch, &frame, users)?;
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "it measures")]
fn now() -> Instant {
    net::time::now_std()
}

/// Forwards packets of so many users from a generator to sinks, a vector at a time.
fn forward(switch: &Arc<Switch>, frame: &[u8], users: u32) -> std::io::Result<()> {
    let mut next = 0u32;
    let whole = frame.to_vec();
    let fill = move |_: usize, mut out: pktio::FrameMut<'_>| {
        out.set(&whole);
        next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let octets = out.packet_mut();
        octets[40..42].fill(0);
        octets[46..50].copy_from_slice(&((next >> 8) % users).to_be_bytes());
    };
    let mut source = Generator::new(fill);
    let mut ports: Ports = (0..3).map(|_| Box::new(Sink::default()) as _).collect();
    let (mut graph, ..) = switch::host::graph(switch, &ports);
    let mut vector = Vector::of(graph.home());
    let (mut packets, mut made) = (0u64, std::time::Duration::ZERO);
    // The first rounds fill the cache.
    for round in 0..60_000u64 {
        if round == 20_000 {
            (packets, made) = (0, std::time::Duration::ZERO);
        }
        let count = source.receive(&mut vector)?;
        let began = now();
        graph.process(0, &mut vector, round, &mut ports);
        made += began.elapsed();
        packets += count as u64;
    }
    graph.turn(u64::MAX / 2, &mut ports);
    println!(
        "{:.2} Mpps, {users} users at random ({} ns a packet)",
        packets as f64 / made.as_secs_f64() / 1e6,
        made.as_nanos() as u64 / packets
    );
    Ok(())
}
