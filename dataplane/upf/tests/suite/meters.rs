//! Rates and interfaces of a running UPF, with the kernel's UDP and TCP at both ends: a QER passes the rate that the SMF
//! set (UP-1), and the UPF uses an interface again after it was down.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::lab::*;
use crate::support::*;
use net::link::Links;
use pfcp::message::*;
use pfcp::*;

/// Low enough that even a busy machine always offers more.
const RATE_KBPS: u64 = 20_000;
/// Most seconds that are measured until one has the right rate. When the machine pauses for longer than a meter's burst,
/// less passes, independently of the meter.
const ATTEMPTS: usize = 12;

/// What is measured of a network.
trait Rates {
    fn set_rate(&mut self, rate_kbps: u64);
    /// Octets of IP packets that have left for the data network.
    fn sent(&self) -> u64;
    /// Asserts that the rate of one second is right within 2 %, and that no second has a noticeably higher one.
    fn assert_rate(&self, what: &str);
}

impl Rates for Network {
    fn set_rate(&mut self, rate_kbps: u64) {
        let mbr = Some(BitRates { uplink_kbps: rate_kbps, downlink_kbps: rate_kbps });
        let update = UpdateQer { qer_id: QerId(1), mbr, ..Default::default() };
        let request = SessionModificationRequest { update_qers: vec![update], ..Default::default() };
        match self.smf.ask(self.seid, request) {
            Message::SessionModificationResponse(response) => assert_eq!(response.cause, Cause::ACCEPTED),
            other => panic!("{other:?}"),
        }
    }

    fn sent(&self) -> u64 {
        let stats = self.handle.stats();
        stats["interfaces"]["internet"]["sent"]["bytes"].as_u64().unwrap()
    }

    fn assert_rate(&self, what: &str) {
        let mut measured = Vec::new();
        for _ in 0..ATTEMPTS {
            // The clock is read before and after the counters, so a pause of this thread lowers the measured rate.
            let start = net::time::now_std();
            let before = self.sent();
            net::time::sleep_thread(Duration::from_secs(1));
            let (after, elapsed) = (self.sent(), start.elapsed());
            let share = (after - before) as f64 * 8.0 / 1000.0 / elapsed.as_secs_f64() / RATE_KBPS as f64;
            measured.push(share);
            // After a pause of the machine, one second may include the burst of 50 ms.
            assert!(share < 1.08, "{what}: {measured:?} of the rate");
            if (share - 1.0).abs() <= 0.02 {
                return;
            }
        }
        panic!("{what}: {measured:?} of the rate in each of {ATTEMPTS} seconds");
    }
}

/// Ends its threads when dropped.
struct Traffic {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Traffic {
    fn new() -> Traffic {
        Traffic { stop: Arc::new(AtomicBool::new(false)), threads: Vec::new() }
    }

    fn add(&mut self, mut step: impl FnMut() + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                step();
            }
        }));
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A UDP flow of `kbps` from the UE to the data network, where a socket takes it.
fn udp_flow(network: &Network, kbps: u64) -> (Traffic, UdpSocket) {
    let sink = network.lab.dn.enter(|| UdpSocket::bind((SERVER_V4, 5000))).unwrap().unwrap();
    let source = network.lab.ue.enter(|| UdpSocket::bind((UE_V4, 4000))).unwrap().unwrap();
    source.connect((SERVER_V4, 5000)).unwrap();
    let start: Instant = net::time::now_std();
    let mut sent_bits = 0;
    let mut traffic = Traffic::new();
    traffic.add(move || {
        // After a pause of this thread, the missed packets are not sent all at once.
        let due = start.elapsed().as_micros() as u64 * kbps / 1000;
        sent_bits = sent_bits.max(due.saturating_sub(kbps * 20));
        while sent_bits < due {
            let _ = source.send(&[0x55; 1200]);
            sent_bits += 1228 * 8;
        }
        net::time::sleep_thread(Duration::from_millis(2));
    });
    (traffic, sink)
}

#[test]
fn udp_passes_a_meter_at_its_rate() {
    let mut network = Network::new(|_| ());
    network.set_rate(RATE_KBPS);
    let (_traffic, _sink) = udp_flow(&network, 3 * RATE_KBPS);
    net::time::sleep_thread(Duration::from_millis(300));
    network.assert_rate("UDP");
    // A new rate applies from the next packet on; a rate of zero passes no packet.
    network.set_rate(0);
    wait_for("nothing more passes", || {
        let before = network.sent();
        net::time::sleep_thread(Duration::from_millis(200));
        network.sent() == before
    });
}

#[test]
fn tcp_passes_a_meter_at_its_rate() {
    let mut network = Network::new(|_| ());
    network.set_rate(RATE_KBPS);
    let listener = network.lab.dn.enter(|| TcpListener::bind((SERVER_V4, 6000))).unwrap().unwrap();
    let mut traffic = Traffic::new();
    // Several connections, because one that lost a packet sends nothing for a moment.
    for _ in 0..12 {
        let mut stream = network.lab.ue.enter(|| TcpStream::connect((SERVER_V4, 6000))).unwrap().unwrap();
        let (mut far, _) = listener.accept().unwrap();
        for side in [&stream, &far] {
            side.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
            side.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        }
        traffic.add(move || {
            let _ = stream.write(&[0x55; 16_384]);
        });
        traffic.add(move || {
            let _ = far.read(&mut [0; 65_536]);
        });
    }
    net::time::sleep_thread(Duration::from_millis(500));
    network.assert_rate("TCP");
}

#[test]
fn interfaces_that_were_down_carry_traffic_again() {
    let network = Network::new(|_| ());
    let address = "10.201.0.2";
    assert!(ping(&network.lab.ue, address, 3, 56), "at first");
    let (_traffic, _sink) = udp_flow(&network, 1000);
    let links = {
        let _entered = network.runtime.enter();
        Links::in_ns(&network.lab.core).unwrap()
    };
    for name in ["n3", "n6"] {
        network.runtime.block_on(links.down(name)).unwrap();
        assert!(!ping(&network.lab.ue, address, 1, 56), "{name} is down");
        network.runtime.block_on(links.up(name)).unwrap();
        // Neighbours have to be found anew.
        let again = (0..20).any(|_| ping(&network.lab.ue, address, 1, 56));
        assert!(again, "{name} is up again: {}", network.handle.stats());
    }
    assert!(ping(&network.lab.ue, address, 5, 56), "as before");
}

/// The UPF owns the device of a data network, and undoes changes of others to it.
#[test]
fn the_device_of_a_data_network_is_put_right() {
    let network = Network::new(|_| ());
    let reaches = |what: &str| {
        wait_for(what, || {
            ping(&network.lab.ue, "10.201.0.2", 1, 56) && ping(&network.lab.ue, "fd00:201::2", 1, 56)
        });
    };
    reaches("at first");
    let ip = |arguments: &[&str]| {
        let run = || std::process::Command::new("ip").args(arguments).status();
        assert!(network.lab.core.enter(run).unwrap().unwrap().success(), "{arguments:?}");
    };
    let is_whole = || {
        let whole = || {
            let listed = net::link::local_addresses().unwrap();
            let own: Vec<_> = listed.iter().filter(|own| own.interface == "gw0").collect();
            let wanted = ["10.45.0.1/16", "fd00:45::1/48"];
            wanted.iter().all(|text| own.iter().any(|own| own.address == cidr(text) && own.up))
                && net::link::mtu_of("gw0").unwrap() == 1400
        };
        network.lab.core.enter(whole).unwrap()
    };
    assert!(is_whole());
    for change in [
        &["link", "set", "gw0", "down"][..],
        &["address", "flush", "dev", "gw0"],
        &["-4", "address", "flush", "dev", "gw0"],
        &["-6", "address", "flush", "dev", "gw0"],
        &["link", "set", "gw0", "mtu", "1300"],
    ] {
        ip(change);
        wait_for("it is put right", is_whole);
        reaches("packets pass again");
    }
}
