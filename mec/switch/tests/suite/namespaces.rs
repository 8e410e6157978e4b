//! The whole switch in a network of namespaces: a base station and two anchors on veth links.
#![allow(dead_code, reason = "not every test needs all of it")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, reason = "the tests wait for the kernel")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use openflow::{Change, FlowMod};
use pktio::af_xdp::device::Device;
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::frame::NO_PEER;
use pktio::{Port as _, Vector};
use switch::{Config, Service};
use tokio::runtime::Runtime;

use crate::common::*;

/// Base station, first and second anchor, and the switch between them.
pub struct Network {
    workers: u64,
    pub peers: [NetNs; 3],
    // The service ends before its runtime.
    pub service: Option<Service>,
    pub runtime: Runtime,
    pub ours: NetNs,
}

impl Drop for Network {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        self.service = None;
    }
}

/// The switch's configuration, with more keys.
pub fn config(more: &serde_json::Value) -> Config {
    let mut config = serde_json::json!({
        "datapath_id": 7,
        "gtp_port": GTP,
        "local": "edge0",
        "ports": [
            {"number": 1, "interface": "port1"},
            {"number": 2, "interface": "port2"},
            {"number": 3, "interface": "port3"},
        ],
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(config).unwrap()
}

/// `None`: namespaces are not allowed here.
pub fn network() -> Option<Network> {
    network_with(&serde_json::json!({}))
}

/// With these keys in the switch's configuration. Links have as many queues as there are workers.
pub fn network_with(more: &serde_json::Value) -> Option<Network> {
    let ours = match NetNs::new() {
        Ok(ours) => ours,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "namespaces: {error}");
            eprintln!("skipped: namespaces: {error}");
            return None;
        }
    };
    let workers = more["workers"]["count"].as_u64().unwrap_or(1);
    let peers = [(); 3].map(|()| NetNs::new().unwrap());
    // Else the kernels say something now and then, which is counted.
    let quiet = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    peers.iter().chain([&ours]).for_each(|namespace| namespace.enter(quiet).unwrap());
    let runtime = ours.runtime(2).unwrap();
    let addresses = [(ENB, ENB_MAC), (GW1, GW1_MAC), (GW2, GW2_MAC)];
    runtime.block_on(async {
        let links = Links::in_ns(&ours).unwrap();
        for (number, peer) in peers.iter().enumerate() {
            let name = format!("port{}", number + 1);
            let queues = format!("numrxqueues {workers} numtxqueues {workers}");
            let arguments = format!("link add {name} {queues} type veth peer name far {queues}");
            let ip = || Command::new("ip").args(arguments.split(' ')).status().unwrap();
            assert!(ours.enter(ip).unwrap().success(), "ip {arguments}");
            links.move_to("far", peer).await.unwrap();
            Links::in_ns(peer).unwrap().rename("far", "eth0").await.unwrap();
            links.up(&name).await.unwrap();
            let far = Links::in_ns(peer).unwrap();
            far.add_address("eth0", format!("{}/24", addresses[number].0).parse().unwrap()).await.unwrap();
            far.up("eth0").await.unwrap();
            // Checksums are in the frames, as on a cable.
            let settings = || {
                let device = Device::find("eth0").unwrap();
                device.send_whole_frames().unwrap();
                device.receive_redirected().unwrap();
            };
            peer.enter(settings).unwrap();
        }
    });
    let config = config(more);
    let handle = runtime.handle().clone();
    let service = ours.enter(|| handle.block_on(Service::start(&config)).unwrap()).unwrap();
    Some(Network { workers, peers, service: Some(service), runtime, ours })
}

impl Network {
    pub fn service(&self) -> &Service {
        self.service.as_ref().unwrap()
    }

    pub fn install(&self, rules: impl IntoIterator<Item = FlowMod>) {
        let changes: Vec<_> = rules.into_iter().map(Change::FlowMod).collect();
        self.service().switch().commit(&changes).unwrap();
        self.service().switch().settle();
    }

    /// Opens a peer's link for raw frames.
    pub fn link(&self, peer: usize) -> Link {
        let open = || {
            let interface = Interface::open("eth0", None, &[Select::Everything]).unwrap();
            let sockets = self.workers as usize;
            let mut memory = Memory::with_more(sockets, 256 * sockets, [interface.device()]).unwrap();
            let ports = (0..self.workers as u32)
                .map(|queue| AfXdpPort::open(&interface, [queue], &mut memory, Options::default()).unwrap())
                .collect();
            (interface, ports, memory)
        };
        let (interface, ports, memory): (_, Vec<AfXdpPort>, _) = self.peers[peer].enter(open).unwrap();
        let vector = Vector::of(&ports[0].pool().unwrap());
        Link { ports, vector, _interface: interface, _memory: memory }
    }

    /// Packets that took the entries of a table.
    pub fn counts(&self, table: u8) -> Vec<(u16, u64)> {
        self.service().switch().settle();
        let pipeline = self.service().switch().pipeline();
        let flows = pipeline.tables()[usize::from(table)].flows();
        let mut counts: Vec<_> = flows.map(|flow| (flow.priority, flow.counters.get().0)).collect();
        counts.sort_unstable();
        counts
    }
}

/// A far end.
pub struct Link {
    /// By queue.
    ports: Vec<AfXdpPort>,
    vector: Vector,
    _interface: Arc<Interface>,
    _memory: Memory,
}

impl Link {
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        self.send_by(0, frames);
    }

    pub fn send_by(&mut self, queue: usize, frames: &[Vec<u8>]) {
        for frames in frames.chunks(32) {
            self.vector.clear();
            for frame in frames {
                assert!(self.vector.push(frame, NO_PEER));
            }
            let all: Vec<u16> = (0..frames.len() as u16).collect();
            assert_eq!(self.ports[queue].transmit(&mut self.vector, &all).packets, frames.len());
            let _ = self.ports[queue].receive(&mut self.vector);
        }
    }

    /// Takes away what has come.
    pub fn drain(&mut self) {
        while !self.receive(0).is_empty() {}
    }

    /// The next `count` frames; fewer if they do not come.
    pub fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for _ in 0..2000 {
            frames.extend(self.waiting());
            if frames.len() >= count {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        frames
    }

    /// Frames that have come.
    pub fn waiting(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for port in &mut self.ports {
            port.receive(&mut self.vector).unwrap();
            // What the kernel of the far end says by itself is not ours.
            let ours = self.vector.frames().iter().map(|frame| frame.packet().to_vec());
            let is_ip = |frame: &Vec<u8>| {
                frame.len() > 34 && [[8, 0], [0x86, 0xdd]].contains(&[frame[12], frame[13]])
            };
            frames.extend(ours.filter(is_ip));
        }
        frames
    }
}
