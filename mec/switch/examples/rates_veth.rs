//! How many packets a second the switch forwards between veth links, by one worker and AF_XDP, and known tunnels in XDP; and how long
//! changes take beside tunnels in XDP. As root:
//!
//! ```text
//! cargo run --release -p switch --features clang --example rates_veth [seconds]
//! ```
//! A sender on another core offers more than the switch can take; what its ports sent is what was forwarded. XDP runs on the sender's
//! core, as it does where an interface's interrupts come.
#![allow(clippy::print_stdout, reason = "it is what it is for")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use openflow::*;
use packet::{ethernet, gtpu, ipv4, protocol, transport};
use pktio::af_xdp::device::Device;
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::{FramePort as _, Port as _, VECTOR, Vector};
use switch::{Config, Service};

const USERS: u32 = 1024;

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn rules(steered: bool) -> Result<Vec<FlowMod>, Code> {
    if !steered {
        let output = Instructions::apply([Action::output(PortNo(2))]);
        return Ok(vec![FlowMod::add(TableId(0), 1, Match::new([Oxm::in_port(PortNo(1))])?, output)]);
    }
    let goto = |table: u8, fields: Vec<Oxm>, next: u8| -> Result<FlowMod, Code> {
        Ok(FlowMod::add(TableId(table), 300, Match::new(fields)?, Instructions::goto(TableId(next))))
    };
    let tunnel = [Oxm::eth_type(0x0800), Oxm::ip_proto(17), Oxm::udp_dst(2152), Oxm::in_port(PortNo(1))];
    let steer = [Action::set(Oxm::tun_ipv4_dst([10, 0, 0, 12].into()))?, Action::output(PortNo::IN_PORT)];
    let forward = [Action::set(Oxm::eth_dst(MacAddr([2, 0, 0, 0, 0, 12])))?, Action::output(PortNo(2))];
    let local = Instructions::apply([Action::output(PortNo::LOCAL)]);
    let mut rules = vec![
        goto(0, vec![Oxm::in_port(PortNo(100))], 1)?,
        goto(0, vec![Oxm::in_port(PortNo::LOCAL)], 2)?,
        FlowMod::add(TableId(0), 200, Match::new(tunnel)?, local),
        FlowMod::add(TableId(2), 1, Match::default(), Instructions::apply(forward)),
    ];
    for teid in 1..=USERS {
        let user = Match::new([Oxm::tun_ipv4_dst([10, 0, 0, 11].into()), Oxm::tunnel_id(teid.into())])?;
        rules.push(FlowMod::add(TableId(1), 100, user, Instructions::apply(steer.clone())));
    }
    Ok(rules)
}

fn frame() -> Result<Vec<u8>, Failed> {
    let message = gtpu::build_gpdu(0, Some(gtpu::PduSession::Uplink { qfi: 9 }), &[0x45; 20])?;
    let datagram =
        transport::build_udp(([10, 0, 0, 1].into(), 2152), ([10, 0, 0, 11].into(), 2152), &message)?;
    let packet =
        ipv4::Header::new([10, 0, 0, 1].into(), [10, 0, 0, 11].into(), protocol::UDP).build(&datagram)?;
    Ok(ethernet::build([2, 0, 0, 0, 0, 11], [2, 0, 0, 0, 0, 1], None, ethernet::IPV4, &packet))
}

/// Sends until it is told to stop.
fn offer(stop: &AtomicBool, frame: &[u8]) -> Result<u64, Failed> {
    let interface = Interface::open("eth0", None, &[Select::Everything])?;
    let mut memory = Memory::with_more(1, 4 * VECTOR, [interface.device()])?;
    let mut port = AfXdpPort::open(&interface, [0], &mut memory, Options::default())?;
    let (mut vector, mut sent, mut next) = (Vector::new(VECTOR, 2048), 0u64, 0u32);
    if let Some(pool) = port.pool() {
        vector.settle(&pool);
    }
    let all: Vec<u16> = (0..VECTOR as u16).collect();
    while !stop.load(Relaxed) {
        let count = port.draw(&mut vector, 32);
        for mut out in vector.frames_mut() {
            out.set(frame);
            next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let octets = out.packet_mut();
            octets[40..42].fill(0);
            octets[46..50].copy_from_slice(&(1 + (next >> 22)).to_be_bytes());
        }
        sent += port.transmit(&mut vector, &all[..count]).packets as u64;
        let _ = port.receive(&mut vector);
    }
    Ok(sent)
}

fn main() -> Result<(), Failed> {
    let seconds: u64 = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;
    let (ours, peers) = (NetNs::new()?, [NetNs::new()?, NetNs::new()?]);
    let runtime = ours.runtime(1)?;
    runtime.block_on(async {
        let links = Links::in_ns(&ours)?;
        for (number, peer) in (1..).zip(&peers) {
            let name = format!("port{number}");
            links.add_veth(&name, "eth0", peer).await?;
            links.up(&name).await?;
            Links::in_ns(peer)?.up("eth0").await?;
        }
        Ok::<_, Failed>(())
    })?;
    for peer in &peers {
        peer.enter(|| Device::find("eth0")?.receive_redirected())??;
    }
    for xdp in [false, true] {
        if xdp && !xdp::programs::BUILT {
            println!("no XDP programs in this build");
            break;
        }
        let mut config: Config = serde_json::from_str(
            r#"{"datapath_id": 1, "gtp_port": 100, "workers": {"cores": [0], "count": 1, "poll_us": 1000000},
                "ports": [{"number": 1, "interface": "port1"}, {"number": 2, "interface": "port2"}]}"#,
        )?;
        config.xdp = if xdp { Some(serde_json::from_str("{}")?) } else { None };
        let handle = runtime.handle().clone();
        let service = ours.enter(|| handle.block_on(Service::start(&config)))??;
        for steered in [false, true, false, true] {
            forward(&service, &peers[0], steered, seconds)?;
        }
        change(&service)?;
        let _entered = runtime.enter();
        drop(service);
    }
    Ok(())
}

fn forward(service: &Service, from: &NetNs, steered: bool, seconds: u64) -> Result<(), Failed> {
    let mut changes = vec![FlowMod::delete(TableId::ALL, Match::default())];
    changes.extend(rules(steered)?);
    service.switch().commit(&changes.into_iter().map(Change::FlowMod).collect::<Vec<_>>())?;
    let (stop, frame) = (Arc::new(AtomicBool::new(false)), frame()?);
    let stopped = Arc::clone(&stop);
    let sender = from.spawn("sender", move || {
        pktio::poll::stay_on(1)?;
        offer(&stopped, &frame)
    })?;
    net::time::sleep_thread(Duration::from_secs(2));
    let (before, began) = (count(service), net::time::now_ns());
    net::time::sleep_thread(Duration::from_secs(seconds));
    let (packets, took_ns) = (count(service) - before, net::time::now_ns() - began);
    stop.store(true, Relaxed);
    let offered = sender.join().map_err(|_| "the sender failed")??;
    let name = if steered { "1,024 users steered" } else { "port to port" };
    let tunnels = service.switch().offload().map_or(0.into(), |offload| offload.status()["tunnels"].clone());
    let rate = packets as f64 * 1e3 / took_ns as f64;
    println!("{rate:.3} Mpps, {name} ({offered} offered, {tunnels} tunnels in XDP)");
    Ok(())
}

/// Changes of the users above, without packets, and of others.
fn change(service: &Service) -> Result<(), Failed> {
    let user = |teid: u32, last: u8| -> Result<Change, Code> {
        let user = Match::new([Oxm::tun_ipv4_dst([10, 0, 0, 11].into()), Oxm::tunnel_id(teid.into())])?;
        let steer =
            [Action::set(Oxm::tun_ipv4_dst([10, 0, 0, last].into()))?, Action::output(PortNo::IN_PORT)];
        Ok(Change::FlowMod(FlowMod::add(TableId(1), 100, user, Instructions::apply(steer))))
    };
    let mut taken = Vec::new();
    for round in 0..41 {
        let changes: Vec<_> = (1..=1000).map(|teid| user(teid, 12 + round % 2)).collect::<Result<_, _>>()?;
        let began = net::time::now_ns();
        service.switch().commit(&changes)?;
        taken.push((net::time::now_ns() - began) / 1000);
    }
    taken.sort_unstable();
    println!("1,000 users moved in {} us (median of 41; from {} to {})", taken[20], taken[0], taken[40]);
    for (first, name) in [(1, "of the users above"), (1_000_000, "of users who are not in XDP")] {
        let changes: Vec<_> = (0..100_000)
            .map(|number| user(first + if first == 1 { number % 1000 } else { number }, 13))
            .collect::<Result<_, _>>()?;
        let began = net::time::now_ns();
        changes.iter().try_for_each(|change| service.switch().commit(std::slice::from_ref(change)))?;
        let rate = 1e9 * changes.len() as f64 / (net::time::now_ns() - began) as f64;
        println!("{rate:.0} flow-mods a second, one after the other, {name}");
    }
    if let Some(offload) = service.switch().offload() {
        println!("{}", offload.status());
    }
    Ok(())
}

/// Packets that the second port has sent.
fn count(service: &Service) -> u64 {
    service.switch().settle();
    service.switch().ports()[1].counts.tx_packets.load(Relaxed)
}
