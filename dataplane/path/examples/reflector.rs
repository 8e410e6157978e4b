//! A UDP reflector: sends each datagram back to where it came from, over the kernel's sockets or AF_XDP.
//!
//! ```text
//! cargo run --release -p path --example reflector -- 192.0.2.1:7000          # kernel
//! cargo run --release -p path --example reflector -- 192.0.2.1:7000 eth0     # AF_XDP on this interface
//! ```
#![allow(clippy::print_stderr, reason = "it has nobody else to tell")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use path::{Graph, Ports, Worker};
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::stack::{Neighbours, kernel::KernelTables, udp::UdpStack};
use pktio::udp::UdpPort;
use pktio::{Pool, Port, Slab, VECTOR, Vector};

struct Reflector {
    home: Arc<dyn Pool>,
    all: Vec<u16>,
}

impl Graph for Reflector {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, _: u64, ports: &mut Ports) {
        // Each frame's peer is its sender, and a UDP port sends to the peer.
        let sent = ports[input].transmit(vector, &self.all[..vector.len()]);
        if sent.packets < vector.len() {
            eprintln!("not all were sent: {sent:?}");
        }
    }

    fn recover(&mut self, lost: usize) {
        eprintln!("{lost} datagrams were lost by a defect");
    }

    fn interface_name(&self, _: usize) -> &str {
        "udp"
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let local: SocketAddr = arguments.next().ok_or("which address? 192.0.2.1:7000 [interface]")?.parse()?;
    let socket = UdpPort::bind(local, false)?;
    // Follows the kernel's routes and neighbours as long as it lives.
    let mut tables = None;
    let port: Box<dyn Port> = match arguments.next() {
        None => Box::new(socket),
        Some(name) => {
            let interface = Interface::open(&name, None, &[Select::Udp(local.ip(), local.port())])?;
            let mut memory = Memory::new(1, [interface.device()])?;
            let frames = AfXdpPort::open(&interface, [0], &mut memory, Options::default())?;
            let follower = tables.insert(KernelTables::follow(interface.device().index)?);
            let neighbours = Neighbours::Kernel(follower.reader(), Box::new(socket));
            Box::new(UdpStack::new(frames, local, None, neighbours)?)
        }
    };
    let graph = Reflector { home: Slab::new(2 * VECTOR, 9000), all: (0..VECTOR as u16).collect() };
    let _worker = Worker::start("reflector", graph, vec![port], vec![0], Duration::from_micros(100))?;
    loop {
        std::thread::park();
    }
}
