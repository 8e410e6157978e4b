//! Packets on real links: two veth pairs between our namespace and a peer's, and the whole chain with the kernel behind it.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use pktio::bpf::asm::{Assembler, Reg, Size};
use pktio::bpf::{Program, SharedWords, XDP_DROP, XDP_PASS};
use pktio::xdp::{Chain, Part, Place};
use xdp::generate::{FRAME, Generator};
use xdp::steer::{Steer, Varied};

use crate::rig::ending;

/// Words of a frame, and the word behind them that counts.
const WORDS: usize = FRAME / 8;
const PLACE: u32 = 1;

/// `up0` and `up1` are ours, `peer0` and `peer1` the others' ends.
pub struct Veth {
    pub ours: NetNs,
    pub peer: NetNs,
    pub runtime: tokio::runtime::Runtime,
    /// Indexes of `up0` and `up1`, `peer0` and `peer1`.
    pub near: [u32; 2],
    pub far: [u32; 2],
}

impl Veth {
    pub fn new() -> Veth {
        let (ours, peer) = (NetNs::new().expect("needs CAP_SYS_ADMIN"), NetNs::new().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (near, far) = (Links::in_ns(&ours).unwrap(), Links::in_ns(&peer).unwrap());
            for (at, (up, down)) in [("up0", "peer0"), ("up1", "peer1")].into_iter().enumerate() {
                near.add_veth(up, down, &peer).await.unwrap();
                near.add_address(up, format!("10.9.{at}.1/24").parse().unwrap()).await.unwrap();
                near.up(up).await.unwrap();
                far.add_address(down, format!("10.9.{at}.2/24").parse().unwrap()).await.unwrap();
                far.up(down).await.unwrap();
            }
        });
        let index = |namespace: &NetNs, name: &str| {
            let find = || runtime.block_on(async { Links::here().unwrap().index(name).unwrap() });
            namespace.enter(find).unwrap()
        };
        let near = ["up0", "up1"].map(|name| index(&ours, name));
        let far = ["peer0", "peer1"].map(|name| index(&peer, name));
        Veth { ours, peer, runtime, near, far }
    }

    pub fn chain(&self, ours: bool, interface: u32) -> Arc<Chain> {
        let namespace = if ours { &self.ours } else { &self.peer };
        namespace.enter(|| Chain::attach(interface).unwrap()).unwrap()
    }

    /// Adds the steering program to `up0`, and makes both of our ends ports.
    pub fn steer(&self, steer: &mut Steer) -> (Arc<Chain>, xdp::steer::Attached) {
        self.ours.enter(|| self.near.map(|interface| steer.add_port(interface).unwrap())).unwrap();
        let chain = self.chain(true, self.near[0]);
        let part = steer.attach(&chain, Place::new(PLACE).unwrap()).unwrap();
        (chain, part)
    }

    /// Ends packets that come to an interface of the peer's, or of ours.
    pub fn end(&self, ours: bool, interface: u32, program: Program) -> Part {
        self.chain(ours, interface).add(Place::SELECTION, program).unwrap()
    }
}

/// A program that keeps the first octets of GTP-U packets in memory, counts them and drops them; others go to the kernel.
fn keeping(words: &SharedWords) -> Program {
    let mut asm = Assembler::new();
    let pass = asm.label();
    asm.load(Size::Word, Reg::R2, Reg::R1, 0);
    asm.load(Size::Word, Reg::R3, Reg::R1, 4);
    asm.copy(Reg::R4, Reg::R2);
    asm.add(Reg::R4, FRAME as i32);
    asm.jump_if_greater(Reg::R4, Reg::R3, pass);
    asm.load(Size::Half, Reg::R4, Reg::R2, 36);
    asm.jump_if_ne32(Reg::R4, 2152u16.to_be().into(), pass);
    asm.load_value(Reg::R5, words.as_fd(), 0);
    for at in 0..WORDS as i16 {
        asm.load(Size::Double, Reg::R4, Reg::R2, 8 * at);
        asm.store(Size::Double, Reg::R5, 8 * at, Reg::R4);
    }
    asm.set(Reg::R4, 1);
    asm.atomic_add(Size::Double, Reg::R5, FRAME as i16, Reg::R4);
    asm.set(Reg::R0, XDP_DROP);
    asm.exit();
    asm.place(pass);
    asm.set(Reg::R0, XDP_PASS);
    asm.exit();
    Program::load("test_keep", &asm.finish().unwrap()).unwrap()
}

mod tests {
    use xdp::steer::{Action, Change, Entry, Forward, Inner, Key, Only, Teids, Tunnel};

    use super::*;
    use crate::frames::{Spec, ip, plain};
    use crate::rig;

    const ANCHOR: &str = "10.1.0.1";

    /// The frame that arrives, and how many have.
    fn arrived(words: &SharedWords) -> (Vec<u8>, u64) {
        let words = words.words();
        let frame = words[..WORDS].iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        (frame, words[WORDS].load(Relaxed))
    }

    #[test]
    fn frames_at_the_far_ends_are_as_entries_say() {
        let veth = Veth::new();
        let mut steer = Steer::new(rig::small()).unwrap();
        let (_chain, _steering) = veth.steer(&mut steer);
        let kept = [SharedWords::new(FRAME + 8).unwrap(), SharedWords::new(FRAME + 8).unwrap()];
        let _pass = veth.end(true, veth.near[1], ending(XDP_PASS));
        let _ends = [0, 1].map(|at| veth.end(false, veth.far[at], keeping(&kept[at])));
        steer.add_anchor(ip(ANCHOR), Teids::Own { first: 0, count: 10 }).unwrap();
        let spec = Spec { outer_checksum: false, payload: FRAME - 78, ..plain(ANCHOR, 5) };
        let frame: [u8; FRAME] = spec.build().try_into().unwrap();
        let sequence = SharedWords::new(8).unwrap();
        let generator = Generator::new(frame, &Varied { sequence: &sequence, first: 5, mask: 0 }).unwrap();
        let key = Key::Tunnel(Tunnel { destination: ip(ANCHOR), teid: 5 });
        // Back through the same interface, or to the other one; with and without an inner address.
        for (round, (at, inner)) in
            [(1, None), (0, None), (1, Some("10.46.0.1")), (0, Some("10.46.0.2"))].into_iter().enumerate()
        {
            let to = Forward {
                interface: veth.near[at],
                eth_destination: Some([2, 0, 0, 0, 7, round as u8]),
                destination: Some(ip("10.2.0.1")),
                teid: Some(77),
                inner: inner.map(|text| Inner::Source(ip(text))),
                ..Forward::default()
            };
            let entry = Entry { only: Only::default(), action: Action::Forward(to) };
            steer.commit(&[Change::Set(key, entry)]).unwrap();
            let before = [arrived(&kept[0]).1, arrived(&kept[1]).1];
            veth.peer.enter(|| generator.send(veth.far[0], 10, 1).unwrap()).unwrap();
            for _ in 0..500 {
                if arrived(&kept[at]).1 >= before[at] + 10 {
                    break;
                }
                veth.runtime.block_on(net::time::sleep(Duration::from_millis(10)));
            }
            let mut expected = spec.clone();
            expected.macs.0 = [2, 0, 0, 0, 7, round as u8];
            expected.outer.1 = ip("10.2.0.1");
            expected.teid = 77;
            if let Some(inner) = inner {
                expected.inner.0 = ip(inner);
            }
            assert_eq!(arrived(&kept[at]), (expected.build(), before[at] + 10));
            assert_eq!(arrived(&kept[1 - at]).1, before[1 - at], "none elsewhere");
        }
        let counted = steer.counters(&key).unwrap();
        assert_eq!((counted.packets, counted.octets), (40, 40 * FRAME as u64));
    }

    /// SW-8: what is not steered comes to a socket of the host, as it would without the program; and packets to a port whose
    /// interface has gone are not lost without being counted.
    #[test]
    fn other_packets_come_to_the_host() {
        let veth = Veth::new();
        let mut steer = Steer::new(rig::small()).unwrap();
        let (_chain, _steering) = veth.steer(&mut steer);
        steer.add_anchor(ip("10.9.0.1"), Teids::Foreign).unwrap();
        let to = Forward { interface: veth.near[1], ..Forward::default() };
        let key = Key::Tunnel(Tunnel { destination: ip("10.9.0.1"), teid: 1 });
        let entry = Entry { only: Only::default(), action: Action::Forward(to) };
        steer.commit(&[Change::Set(key, entry)]).unwrap();
        let host = veth.ours.enter(|| UdpSocket::bind("10.9.0.1:2152").unwrap()).unwrap();
        host.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = veth.peer.enter(|| UdpSocket::bind("10.9.0.2:2152").unwrap()).unwrap();
        let echo = [0x32, 1, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0];
        let stranger = [0x30, 255, 0, 4, 0, 0, 0, 2, 1, 2, 3, 4];
        let malformed = [0x30, 255, 0, 9, 0, 0, 0, 1, 1, 2, 3, 4];
        for message in [echo, stranger, malformed] {
            socket.send_to(&message, "10.9.0.1:2152").unwrap();
            let mut received = [0; 64];
            let length = host.recv(&mut received).unwrap();
            assert_eq!(received[..length], message);
        }
        veth.runtime.block_on(async { Links::in_ns(&veth.ours).unwrap().delete("up1").await.unwrap() });
        let mut gpdu = stranger;
        gpdu[7] = 1;
        let passed = |steer: &Steer| steer.passed()[xdp::steer::Passed::NoPort as usize].1;
        for _ in 0..100 {
            socket.send_to(&gpdu, "10.9.0.1:2152").unwrap();
            if passed(&steer) > 0 {
                break;
            }
            veth.runtime.block_on(net::time::sleep(Duration::from_millis(20)));
        }
        assert!(passed(&steer) > 0);
        assert_eq!(host.recv(&mut [0; 64]).unwrap(), 12, "it came as it was");
    }
}
