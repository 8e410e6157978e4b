//! A chain with the steering program on an interface of an anonymous namespace, and frames through it without traffic.

use net::link::Links;
use net::netns::NetNs;
use pktio::bpf::asm::{Assembler, Reg};
use pktio::bpf::{Program, TestFrame, Turn};
use pktio::xdp::{Chain, Place};
use xdp::steer::{Capacity, Loaded, Steer};

/// Verdict of a program behind the steering program: the packet was passed on.
pub const PASSED_ON: i32 = 77;
pub const PLACE: u32 = 2;

/// Three veth pairs; their near ends have the chain, are ports, and are up.
pub struct Rig {
    pub ours: NetNs,
    /// Keeps the far ends.
    pub _peer: NetNs,
    /// Indexes of the near ends.
    pub interfaces: [u32; 3],
    /// What frames are given to: the steering program, with a program at the place behind it.
    pub loaded: Loaded,
    _parts: Vec<pktio::xdp::Part>,
}

/// A program that ends with a verdict.
pub fn ending(verdict: i32) -> Program {
    let mut asm = Assembler::new();
    asm.set(Reg::R0, verdict);
    asm.exit();
    Program::load("test_end", &asm.finish().unwrap()).unwrap()
}

impl Rig {
    pub fn new(steer: &mut Steer) -> Rig {
        let (ours, peer) = (NetNs::new().expect("needs CAP_SYS_ADMIN"), NetNs::new().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let interfaces = runtime.block_on(async {
            let links = Links::in_ns(&ours).unwrap();
            let mut indexes = [0; 3];
            for (at, index) in indexes.iter_mut().enumerate() {
                links.add_veth(&format!("up{at}"), &format!("peer{at}"), &peer).await.unwrap();
                links.up(&format!("up{at}")).await.unwrap();
                *index = ours.enter(|| Links::here().unwrap().index(&format!("up{at}")).unwrap()).unwrap();
            }
            indexes
        });
        ours.enter(|| interfaces.map(|index| steer.add_port(index).unwrap())).unwrap();
        let chains: Vec<_> =
            interfaces.map(|index| ours.enter(|| Chain::attach(index).unwrap()).unwrap()).into();
        let place = Place::new(PLACE).unwrap();
        let loaded = steer.load(&chains[0], place).unwrap();
        let mut parts = vec![chains[0].add(Place::new(PLACE + 2).unwrap(), ending(PASSED_ON)).unwrap()];
        for other in &chains[1..] {
            parts.push(other.add(place, ending(pktio::bpf::XDP_DROP)).unwrap());
        }
        Rig { ours, _peer: peer, interfaces, loaded, _parts: parts }
    }

    /// Gives frames to the program as if they came from an interface.
    pub fn turns<'a>(&self, frames: impl IntoIterator<Item = (u32, &'a [u8])> + Send) -> Vec<Turn> {
        let turn = |(interface, octets)| self.loaded.program.turn(TestFrame { octets, interface }).unwrap();
        self.ours.enter(|| frames.into_iter().map(turn).collect()).unwrap()
    }

    /// Gives a frame to the program as if it came from the first interface.
    pub fn turn(&self, frame: &[u8]) -> Turn {
        self.turns([(self.interfaces[0], frame)]).remove(0)
    }
}

/// Capacities of tests.
pub fn small() -> Capacity {
    Capacity { own: 64, foreign: 64, inside: 64, frames: 16, anchors: 16, hops: 256, ipv6_addresses: 64 }
}
