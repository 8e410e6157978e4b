//! A UPF whose interfaces the kernel does not know, and hosts at their far ends: frames pass through shared memory and another
//! process, which is the test program started again, and can be killed.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each binary uses its part; helpers of tests"
)]

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use net::netns::NetNs;
use net::time::Instant;
use packet::ethernet::{self, Mac};
use packet::{gtpu, ipv4, protocol};
use pktio::vlan::Tags;
use pktio::{Port, Vector};

use super::lab::*;
use super::support::*;

/// Environment variable for the other process: its devices and this process's socket for each.
const RELAY: &str = "GODWIT_TEST_RELAY";
/// Time to wait for a frame before the request for it is repeated.
const LOOK: Duration = Duration::from_millis(50);
/// Longest frame.
const FRAME: usize = 2048;

/// A UPF that runs in a namespace, and a CP function with an association.
pub struct Running {
    pub core: tokio::runtime::Runtime,
    pub upf: upf::Upf,
    pub smf: Smf,
}

impl Running {
    pub fn start(namespace: &NetNs, config: &upf::Config) -> Running {
        let core = namespace.runtime(2).unwrap();
        let upf = core.block_on(core.spawn(upf::start(config.clone()))).unwrap().unwrap();
        let socket = namespace.enter(|| UdpSocket::bind((SMF, 8805)).unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut smf = Smf { socket, upf: config.pfcp, sequence: 0, started: 100 };
        smf.associate(100);
        Running { core, upf, smf }
    }

    pub fn stop(self) {
        let Running { core, upf, .. } = self;
        core.block_on(async move { upf.stop().await });
    }
}

/// The far end of a link to the UPF: a host simulated by this test.
pub struct Host {
    pub socket: UdpSocket,
    /// The other process's socket.
    relay: Cell<Option<SocketAddr>>,
    pub mac: Mac,
    pub tags: Tags,
    pub address: Ipv4Addr,
    /// The UPF's.
    pub upf_mac: Mac,
    pub upf: Ipv4Addr,
}

impl Host {
    pub fn new(number: u8, tags: impl Into<Tags>) -> Host {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(LOOK)).unwrap();
        let network = 200 + number;
        Host {
            socket,
            relay: Cell::new(None),
            tags: tags.into(),
            mac: [2, 0, 0, 0, 9, number],
            address: Ipv4Addr::new(10, network, 0, 2),
            upf_mac: [2, 0, 0, 0, 0, number],
            upf: Ipv4Addr::new(10, network, 0, 1),
        }
    }

    /// Another host behind the same device, on a VLAN of its own. Both read the same frames, so one at a time may.
    pub fn beside(&self, number: u8, tags: Tags) -> Host {
        let socket = self.socket.try_clone().unwrap();
        let relay = Cell::new(self.relay.get());
        Host { socket, relay, upf_mac: self.upf_mac, ..Host::new(number, tags) }
    }

    /// Waits for the process that replaces the one before.
    pub fn greet(&self) {
        wait_for("the other process", || match self.socket.recv_from(&mut [0; FRAME]) {
            Ok((0, from)) => self.relay.replace(Some(from)) != Some(from),
            _ => false,
        });
    }

    pub fn send_frame(&self, frame: &[u8]) {
        self.socket.send_to(frame, self.relay.get().unwrap()).unwrap();
    }

    pub fn frame(&self, to: Mac, from: Mac, ethertype: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = ethernet::build(to, from, None, ethertype, packet);
        frame.splice(12..12, self.tags.octets().iter().copied());
        frame
    }

    pub fn send(&self, ethertype: u16, packet: &[u8]) {
        self.send_frame(&self.frame(self.upf_mac, self.mac, ethertype, packet));
    }

    pub fn arp(&self, kind: u8, (mac, address): (Mac, Ipv4Addr), (to_mac, to): (Mac, Ipv4Addr)) -> Vec<u8> {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, kind];
        arp.extend(mac);
        arp.extend(address.octets());
        arp.extend(to_mac);
        arp.extend(to.octets());
        arp
    }

    /// Repeats a frame until the expected one is received.
    pub fn expect(&self, what: &str, expected: &[u8], mut send: impl FnMut()) {
        let start = Instant::now();
        let mut others = Vec::new();
        loop {
            send();
            let mut frame = [0; FRAME];
            while let Ok(length) = self.socket.recv(&mut frame) {
                if frame[..length] == *expected {
                    return;
                }
                others.push(frame[..length].to_vec());
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {expected:02x?} did not come, but {others:02x?}");
        }
    }

    /// The next `count` frames.
    pub fn receive(&self, count: usize) -> Vec<Vec<u8>> {
        let (start, mut frames) = (Instant::now(), Vec::new());
        while frames.len() < count {
            frames.extend(self.next());
            assert!(start.elapsed() < PATIENCE, "{} of {count} frames came", frames.len());
        }
        frames
    }

    /// The frames that come before nothing comes for a while.
    pub fn drain(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn next(&self) -> Option<Vec<u8>> {
        let mut frame = [0; FRAME];
        let length = self.socket.recv(&mut frame).ok()?;
        Some(frame[..length].to_vec())
    }

    /// Asks for the UPF's link-layer address; the UPF learns ours from the question.
    pub fn ask(&self) {
        let answer = self.arp(2, (self.upf_mac, self.upf), (self.mac, self.address));
        let question = self.arp(1, (self.mac, self.address), ([0; 6], self.upf));
        self.expect("ARP", &self.frame(self.mac, self.upf_mac, ethernet::ARP, &answer), || {
            self.send_frame(&self.frame([0xFF; 6], self.mac, ethernet::ARP, &question));
        });
    }
}

/// The outer packet from gNB to UPF, or back.
pub fn outer(from: Ipv4Addr, to: Ipv4Addr, gtpu: &[u8], dont_fragment: bool) -> Vec<u8> {
    let mut datagram = Vec::new();
    for field in [gtpu::PORT, gtpu::PORT, 8 + gtpu.len() as u16, 0] {
        datagram.extend(field.to_be_bytes());
    }
    datagram.extend(gtpu);
    ipv4::Header { dont_fragment, ..ipv4::Header::new(from, to, protocol::UDP) }.build(&datagram).unwrap()
}

/// A directory that is deleted at the end of the test.
pub struct Directory(pub PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Directory {
    pub fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("godwit-upf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

/// The other process, killed at the end.
pub struct Relay(Child);

impl Relay {
    /// Starts the test `test` of this program as relay between devices and hosts.
    pub fn start(test: &str, links: &[(String, &Host)]) -> Relay {
        let link =
            |(device, host): &(String, &Host)| format!("{device}>{}", host.socket.local_addr().unwrap());
        let links: Vec<String> = links.iter().map(link).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(RELAY, links.join(" "))
            .stdout(Stdio::null())
            .spawn();
        Relay(child.unwrap())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Whether this process is a relay, and not a test.
pub fn is_relay() -> bool {
    std::env::var(RELAY).is_ok()
}

/// Moves frames between the devices that this process was told and sockets, until it is killed.
pub fn relay<P: Port>(open: impl Fn(&str) -> P, is_up: impl Fn(&P) -> bool) {
    let told = std::env::var(RELAY).unwrap();
    let mut links: Vec<(P, UdpSocket)> = told
        .split(' ')
        .map(|link| {
            let (device, to) = link.split_once('>').unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(to).unwrap();
            socket.set_nonblocking(true).unwrap();
            (open(device), socket)
        })
        .collect();
    let (mut batch, mut frame) = (Vector::new(32, FRAME), [0; FRAME]);
    let start = Instant::now();
    let mut greeted = false;
    while start.elapsed() < 3 * PATIENCE {
        if !greeted && links.iter().all(|(port, _)| is_up(port)) {
            // An empty datagram tells the test this socket's address.
            links.iter().for_each(|(_, socket)| assert_eq!(socket.send(&[]).unwrap(), 0));
            greeted = true;
        }
        for (port, socket) in &mut links {
            port.receive(&mut batch).unwrap();
            for buffer in batch.frames() {
                // An error means that the test has ended.
                let _ = socket.send(buffer.packet());
            }
            batch.clear();
            while let Ok(length) = socket.recv(&mut frame) {
                let mut out = Vector::new(1, FRAME);
                assert!(out.push(&frame[..length], ([0, 0, 0, 0], 0).into()));
                port.transmit(&mut out, &[0]);
            }
        }
        net::time::sleep_thread(Duration::from_micros(100));
    }
}
