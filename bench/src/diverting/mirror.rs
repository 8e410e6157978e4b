//! Anchors in the kernel: XDP programs that count the GTP-U packets of an interface, and send them back or drop them. So the far
//! end needs no thread, whose waking would be in every round trip.

use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering::Relaxed;

use net::netns::NetNs;
use packet::gtpu;
use pktio::bpf::asm::{Assembler, Label, Reg, Size};
use pktio::bpf::{Program, SharedWords, XDP_DROP, XDP_PASS, XDP_TX};
use pktio::xdp::{Chain, Part, Place};

/// Offsets in a frame without tags, with outer IPv4 without options.
const ETHERTYPE: i16 = 12;
const PROTOCOL: i16 = 23;
const SOURCE: i16 = 26;
const DESTINATION: i16 = 30;
const UDP_DESTINATION: i16 = 36;
/// Where the GTP-U header ends.
const HEADERS: i32 = 50;

/// What becomes of a packet that was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// It goes back to where it came from, with addresses exchanged.
    Return,
    Drop,
}

/// An anchor; its program is removed when this is dropped.
pub(super) struct Mirror {
    words: SharedWords,
    _part: Part,
}

/// Packets that came to an anchor.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Arrived {
    /// To its address.
    pub(super) own: u64,
    /// To another one: the switch has sent them to the wrong port, or has not changed the address.
    pub(super) other: u64,
}

impl Mirror {
    /// Begins on an interface of a namespace, for this address.
    ///
    /// # Errors
    /// The interface has another XDP program, or there is no privilege.
    pub(super) fn start(space: &NetNs, interface: u32, own: Ipv4Addr, then: Then) -> anyhow::Result<Mirror> {
        let words = SharedWords::new(2 * size_of::<u64>())?;
        let program = program(&words, own, then)?;
        let chain = space.enter(|| Chain::attach(interface))??;
        Ok(Mirror { _part: chain.add(Place::SELECTION, program)?, words })
    }

    /// What has come so far.
    pub(super) fn arrived(&self) -> Arrived {
        let word = |at: usize| self.words.words()[at].load(Relaxed);
        Arrived { own: word(0), other: word(1) }
    }
}

fn program(words: &SharedWords, own: Ipv4Addr, then: Then) -> anyhow::Result<Program> {
    let mut asm = Assembler::new();
    let (pass, other, counted) = (asm.label(), asm.label(), asm.label());
    asm.load(Size::Word, Reg::R2, Reg::R1, 0);
    asm.load(Size::Word, Reg::R3, Reg::R1, 4);
    asm.copy(Reg::R4, Reg::R2);
    asm.add(Reg::R4, HEADERS);
    asm.jump_if_greater(Reg::R4, Reg::R3, pass);
    let mut must_be = |size, at, value: u32, else_to: Label| {
        asm.load(size, Reg::R4, Reg::R2, at);
        asm.jump_if_ne32(Reg::R4, value, else_to);
    };
    must_be(Size::Half, ETHERTYPE, packet::ethernet::IPV4.to_be().into(), pass);
    must_be(Size::Byte, PROTOCOL, packet::protocol::UDP.into(), pass);
    must_be(Size::Half, UDP_DESTINATION, gtpu::PORT.to_be().into(), pass);
    must_be(Size::Word, DESTINATION, u32::from_ne_bytes(own.octets()), other);
    for (at, label) in [(0, None), (8, Some(other))] {
        if let Some(label) = label {
            asm.place(label);
        }
        asm.load_value(Reg::R5, words.as_fd(), at);
        asm.set(Reg::R4, 1);
        asm.atomic_add(Size::Double, Reg::R5, 0, Reg::R4);
        if label.is_none() {
            asm.jump(counted);
        }
    }
    asm.place(counted);
    match then {
        Then::Return => {
            exchange(&mut asm, Size::Word, [0, 6]);
            exchange(&mut asm, Size::Half, [4, 10]);
            exchange(&mut asm, Size::Word, [SOURCE, DESTINATION]);
            asm.set(Reg::R0, XDP_TX);
        }
        Then::Drop => asm.set(Reg::R0, XDP_DROP),
    }
    asm.exit();
    asm.place(pass);
    asm.set(Reg::R0, XDP_PASS);
    asm.exit();
    Ok(Program::load("bench_anchor", &asm.finish()?)?)
}

/// Exchanges two fields of the packet at R2.
fn exchange(asm: &mut Assembler, size: Size, [one, other]: [i16; 2]) {
    asm.load(size, Reg::R4, Reg::R2, one);
    asm.load(size, Reg::R5, Reg::R2, other);
    asm.store(size, Reg::R2, one, Reg::R5);
    asm.store(size, Reg::R2, other, Reg::R4);
}
