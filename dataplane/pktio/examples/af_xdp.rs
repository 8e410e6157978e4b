//! What does the frame stack cost on AF_XDP? `cargo run --release -p pktio --example af_xdp [seconds]`, as root.
//!
//! One thread sends GTP-U-sized UDP frames over a veth pair and takes back what comes; another echoes them: bare, by
//! exchanging addresses in place, and through the UDP stack with the kernel's neighbours, in turn. Prints thousand
//! packets per second of both and the median of the pairwise ratios; and first what the stack costs without any
//! interface, received and sent, which a busy machine disturbs less.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic)] // a tool that reports on standard output

#[path = "../tests/suite/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use packet::transport::build_udp;
use packet::{ethernet, ipv4, protocol};
use pktio::af_xdp::AfXdpPort;
use pktio::bpf::filter::Select;
use pktio::memory::Generator;
use pktio::stack::Neighbours;
use pktio::stack::kernel::KernelTables;
use pktio::stack::udp::UdpStack;
use pktio::udp::UdpPort;
use pktio::{FrameMut, FramePort, Port, Sent, Vector};
use support::{Net, exchange_addresses, open};

const PAIRS: usize = 5;
const LOCAL: &str = "10.0.0.1:2152";
const PEER: &str = "10.0.0.2:2152";

/// Sends for ever and discards what comes back.
fn generate(mut port: AfXdpPort, frame: &[u8], stop: &AtomicBool) {
    let mut batch = Vector::new(64, 2048);
    let mut back = Vector::new(64, 2048);
    let all: Vec<u16> = (0..64).collect();
    while !stop.load(Relaxed) {
        batch.clear();
        while batch.push(frame, LOCAL.parse().unwrap()) {}
        port.transmit(&mut batch, &all);
        while port.receive(&mut back).unwrap() > 0 {}
    }
}

/// Echoes for a while and returns packets per second sent.
fn echo(port: &mut impl Port, time: Duration, mut turn: impl FnMut(&mut Vector)) -> f64 {
    let mut batch = Vector::new(64, 2048);
    let all: Vec<u16> = (0..64).collect();
    let start = net::time::now_std();
    let mut packets = 0;
    while start.elapsed() < time {
        let received = port.receive(&mut batch).unwrap();
        if received > 0 {
            turn(&mut batch);
            packets += port.transmit(&mut batch, &all[..received]).packets;
        }
    }
    packets as f64 / start.elapsed().as_secs_f64()
}

/// Exchanges the addresses of every frame.
fn exchange(batch: &mut Vector) {
    batch.frames_mut().for_each(|mut buffer| exchange_addresses(buffer.packet_mut()));
}

/// Frames from nowhere to nowhere.
struct Nowhere<F>(Generator<F>);

impl<F: FnMut(usize, FrameMut<'_>) + Send> Port for Nowhere<F> {
    fn receive(&mut self, batch: &mut Vector) -> std::io::Result<usize> {
        self.0.receive(batch)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.0.transmit(batch, selected)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl<F: FnMut(usize, FrameMut<'_>) + Send> FramePort for Nowhere<F> {
    fn mac(&self) -> ethernet::Mac {
        [2, 0, 0, 0, 0, 1]
    }

    fn mtu(&self) -> usize {
        1500
    }
}

/// Nanoseconds per packet for receiving a frame and sending the answer, the best of many batches.
fn stack_alone(frame: &[u8], neighbours: Neighbours) -> f64 {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    let frames = Nowhere(Generator::new(|_, mut buffer: FrameMut<'_>| {
        buffer.set(&frame);
    }));
    let mut stack = UdpStack::new(frames, LOCAL.parse().unwrap(), None, neighbours).unwrap();
    let mut batch = Vector::new(64, 2048);
    let all: Vec<u16> = (0..64).collect();
    let mut best = f64::MAX;
    for _ in 0..20_000 {
        let start = net::time::now_std();
        // A first batch that comes from the kernel's socket has no packets.
        let received = stack.receive(&mut batch).unwrap();
        stack.transmit(&mut batch, &all[..received]);
        if received == all.len() {
            best = best.min(start.elapsed().as_nanos() as f64 / received as f64);
        }
    }
    best
}

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.5);
    let time = Duration::from_secs_f64(seconds);
    let Net { ours, peer, runtime: _runtime } = Net::new();
    let local: SocketAddr = LOCAL.parse().unwrap();
    let socket = ours.enter(|| UdpPort::bind(local, false).unwrap()).unwrap();
    // The kernels get to know each other.
    let mut hello = Vector::new(1, 64);
    assert!(hello.push(b"hello", PEER.parse().unwrap()));
    socket.share().transmit(&mut hello, &[0]);
    net::time::sleep_thread(Duration::from_millis(100));

    let select = [Select::Udp(local.ip(), local.port())];
    let others = [Select::Udp("10.0.0.2".parse().unwrap(), 2152)];
    let (_peer, generator, _) = open(&peer, "peer0", &others).unwrap();
    let from = generator.mac();
    let (interface, mut bare, _) = open(&ours, "up0", &select).unwrap();
    let index = interface.device().index;
    let datagram = build_udp((("10.0.0.2").parse().unwrap(), 2152), (local.ip(), 2152), &[0; 64]).unwrap();
    let header = ipv4::Header::new("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap(), protocol::UDP);
    let frame = ethernet::build(bare.mac(), from, None, ethernet::IPV4, &header.build(&datagram).unwrap());
    let tables = ours.enter(|| KernelTables::follow(index).unwrap()).unwrap();
    let neighbours = Neighbours::Kernel(tables.reader(), Box::new(socket.share()));
    println!("the stack alone: {:.1} ns per packet", stack_alone(&frame, neighbours));
    let stop = Arc::new(AtomicBool::new(false));
    let thread = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || generate(generator, &frame, &stop))
    };
    let mut ratios = Vec::new();
    for _ in 0..PAIRS {
        let plain = echo(&mut bare, time, exchange);
        let neighbours = Neighbours::Kernel(tables.reader(), Box::new(socket.share()));
        // The stack takes over the port, which goes back afterwards: one socket, one program.
        let mut stack = UdpStack::new(bare, local, None, neighbours).unwrap();
        let through = echo(&mut stack, time, |_| ());
        bare = stack.into_frames();
        println!("bare {:6.0} k/s   stack {:6.0} k/s   {:.3}", plain / 1e3, through / 1e3, through / plain);
        ratios.push(through / plain);
    }
    stop.store(true, Relaxed);
    thread.join().unwrap();
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.3}", ratios[PAIRS / 2]);
}
