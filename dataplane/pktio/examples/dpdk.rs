//! DPDK ports by hand: what a device carries before anything is done with the packets.
//!
//! ```sh
//! cargo run --release -p pktio --features dpdk --example dpdk -- forward 5 net_null0,size=64 net_null1
//! # Two processes: a forwarder that serves two memifs, and a generator at their other ends.
//! … -- forward 10 net_memif0,role=server,id=0,socket-abstract=no,socket=/tmp/a.sock \
//!                 net_memif1,role=server,id=0,socket-abstract=no,socket=/tmp/b.sock
//! … -- generate 5 net_memif0,id=0,socket-abstract=no,socket=/tmp/a.sock net_memif1,id=0,socket-abstract=no,socket=/tmp/b.sock
//! ```
//!
//! `forward` sends what arrives on one device out of the other, in both directions, and prints packets per second of
//! the time that it was busy. `generate` sends 64-octet frames into the first device and counts what comes out of the
//! second.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program to try things with")]

#[cfg(not(feature = "dpdk"))]
fn main() {
    println!("built without the feature `dpdk`");
}

#[cfg(feature = "dpdk")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["forward", seconds, a, b] => dpdk::forward(seconds.parse().unwrap(), a, b),
        ["generate", seconds, a, b] => dpdk::generate(seconds.parse().unwrap(), a, b),
        _ => println!("forward|generate SECONDS DEVICE DEVICE"),
    }
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::time::Duration;

    use net::time::Instant;
    use pktio::dpdk::{DpdkPort, Settings, eal};
    use pktio::{FramePort, Port, Vector};

    const BATCH: usize = 32;

    fn open(device: &str) -> DpdkPort {
        let core = std::env::var("CORE").ok().map(|core| core.parse().unwrap());
        eal::start_with(&eal::Options { core, ..eal::Options::default() }).unwrap();
        println!("huge pages: {:?}", eal::uses_huge_pages());
        DpdkPort::open(device, &Settings::default()).unwrap().remove(0)
    }

    /// Packets one way; returns how many were received and sent.
    fn once(from: &mut DpdkPort, to: &mut DpdkPort, batch: &mut Vector, selected: &[u16]) -> (usize, usize) {
        let received = from.receive(batch).unwrap();
        (received, to.transmit(batch, &selected[..received]).packets)
    }

    pub fn forward(seconds: u64, a: &str, b: &str) {
        let (mut a, mut b) = (open(a), open(b));
        let mut batch = Vector::new(BATCH, 64);
        let selected: Vec<u16> = (0..BATCH as u16).collect();
        let (mut received, mut sent) = ([0; 2], [0; 2]);
        let start = Instant::now();
        let (mut first, mut last) = (None, start);
        while start.elapsed() < Duration::from_secs(seconds) {
            let before = received[0] + received[1];
            for _ in 0..64 {
                let (in_a, out_b) = once(&mut a, &mut b, &mut batch, &selected);
                let (in_b, out_a) = once(&mut b, &mut a, &mut batch, &selected);
                received[0] += in_a;
                received[1] += in_b;
                sent[0] += out_b;
                sent[1] += out_a;
            }
            if received[0] + received[1] > before {
                last = Instant::now();
                first.get_or_insert(last);
            }
        }
        let busy = last.duration_since(first.unwrap_or(start)).as_secs_f64();
        for direction in 0..2 {
            let rate = sent[direction] as f64 / busy / 1e6;
            println!(
                "direction {direction}: received {} sent {} {rate:.2} Mpps",
                received[direction], sent[direction]
            );
        }
    }

    pub fn generate(seconds: u64, a: &str, b: &str) {
        let (mut a, mut b) = (open(a), open(b));
        let start = Instant::now();
        while !(a.is_up() && b.is_up()) && start.elapsed() < Duration::from_secs(5) {
            std::thread::yield_now();
        }
        let (mut out, mut back) = (Vector::new(BATCH, 64), Vector::new(2 * BATCH, 64));
        let selected: Vec<u16> = (0..BATCH as u16).collect();
        let (mut sent, mut received) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) {
            for _ in 0..64 {
                let count = a.draw(&mut out, BATCH);
                for mut buffer in out.frames_mut() {
                    buffer.restore(64);
                }
                sent += a.transmit(&mut out, &selected[..count]).packets;
                received += b.receive(&mut back).unwrap();
                back.clear();
            }
        }
        let took = start.elapsed().as_secs_f64();
        println!("sent {sent} {:.2} Mpps", sent as f64 / took / 1e6);
        println!("received {received} {:.2} Mpps", received as f64 / took / 1e6);
    }
}
