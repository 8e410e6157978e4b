//! Which of several workers owns a packet: by its tunnel, or by the address of the UE.
//!
//! A packet in a tunnel belongs to a worker by its TEID, a packet of a data network by its destination, of which an IPv6
//! address counts by its /64. Ports do not count, as only the first fragment of a packet has any. So the packets of a
//! tunnel, and those to an address, are processed by one worker, in order.
//!
//! The rule exists twice: as functions, and as programs that the kernel runs to choose the socket
//! ([`UdpPort::bind_group`](crate::udp::UdpPort::bind_group)) or the queue
//! ([`TunPort::create_queues`](crate::tun::TunPort::create_queues)). Tests compare them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bpf::asm::{AsmError, Assembler, Reg, Size};
use crate::bpf::{BpfError, Program};

/// Spreads numbers that follow each other evenly: 2^32 divided by the golden ratio.
const SPREAD: u32 = 0x9E37_79B1;
/// Joins the two words of an IPv6 prefix.
const JOIN: u32 = 0x85EB_CA6B;

/// Version 1, protocol type GTP, and the flags that do not matter here (TS 29.281 §5.1).
const GTPU_FLAGS: u8 = 0xF0;
const GTPU: u8 = 0x30;
/// Message types of End Markers and G-PDUs (TS 29.281 §6.1). An End Marker follows the last G-PDU of a tunnel, so both have one
/// owner.
const END_MARKER: u8 = 254;
const G_PDU: u8 = 255;
/// The bits that both types have in common.
const IN_TUNNEL: u8 = END_MARKER & G_PDU;

/// The worker for a key, of `workers`.
#[inline]
fn of_key(key: u32, workers: u32) -> u32 {
    let hash = (key ^ (key >> 16)).wrapping_mul(SPREAD);
    ((u64::from(hash) * u64::from(workers)) >> 32) as u32
}

/// The worker, of `workers`, for the packets of a tunnel.
#[inline]
pub fn of_tunnel(teid: u32, workers: u32) -> u32 {
    of_key(teid, workers)
}

/// The worker, of `workers`, for packets to an address.
#[inline]
pub fn of_address(address: IpAddr, workers: u32) -> u32 {
    let key = match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            ((bits >> 96) as u32).wrapping_mul(JOIN) ^ (bits >> 64) as u32
        }
    };
    of_key(key, workers)
}

/// The worker for a GTP-U message. All messages but G-PDUs and End Markers belong to the first.
pub fn of_message(message: &[u8], workers: u32) -> u32 {
    match message {
        [flags, END_MARKER | G_PDU, _, _, a, b, c, d, ..] if flags & GTPU_FLAGS == GTPU => {
            of_tunnel(u32::from_be_bytes([*a, *b, *c, *d]), workers)
        }
        _ => 0,
    }
}

/// The worker for an IP packet of a data network. What is no IP packet belongs to the first.
pub fn of_packet(packet: &[u8], workers: u32) -> u32 {
    let address = match packet.first().map(|first| first >> 4) {
        Some(4) => packet
            .get(16..20)
            .and_then(|octets| <[u8; 4]>::try_from(octets).ok())
            .map(Ipv4Addr::from)
            .map(IpAddr::V4),
        Some(6) => packet
            .get(24..32)
            .and_then(|octets| <[u8; 8]>::try_from(octets).ok())
            .map(|prefix| IpAddr::V6(Ipv6Addr::from_bits(u128::from(u64::from_be_bytes(prefix)) << 64))),
        _ => None,
    };
    address.map_or(0, |address| of_address(address, workers))
}

/// Ends a program with the worker for the key in R0.
fn end_with_owner(asm: &mut Assembler, workers: u32) {
    asm.copy(Reg::R7, Reg::R0);
    asm.shift_right32(Reg::R7, 16);
    asm.xor32(Reg::R0, Reg::R7);
    asm.multiply32(Reg::R0, SPREAD);
    asm.multiply(Reg::R0, workers as i32);
    asm.shift_right(Reg::R0, 32);
    asm.exit();
}

/// A program that does what [`of_message`] does, for a socket whose packets begin behind the UDP header.
pub(crate) fn message_program(workers: u32) -> Result<Program, BpfError> {
    let assemble = || -> Result<Vec<u64>, AsmError> {
        let mut asm = Assembler::new();
        let first = asm.label();
        asm.copy(Reg::R6, Reg::R1);
        asm.load_packet(Size::Half, 0);
        asm.and32(Reg::R0, u32::from(GTPU_FLAGS) << 8 | u32::from(IN_TUNNEL));
        asm.jump_if_ne32(Reg::R0, u32::from(GTPU) << 8 | u32::from(IN_TUNNEL), first);
        asm.load_packet(Size::Word, 4);
        end_with_owner(&mut asm, workers);
        asm.place(first);
        asm.set(Reg::R0, 0);
        asm.exit();
        asm.finish()
    };
    Program::load_filter("godwit_tunnels", &assemble()?)
}

/// A program that does what [`of_packet`] does, for a device whose packets begin with the IP header.
pub(crate) fn packet_program(workers: u32) -> Result<Program, BpfError> {
    let assemble = || -> Result<Vec<u64>, AsmError> {
        let mut asm = Assembler::new();
        let (v4, v6) = (asm.label(), asm.label());
        asm.copy(Reg::R6, Reg::R1);
        asm.load_packet(Size::Byte, 0);
        asm.shift_right32(Reg::R0, 4);
        asm.jump_if_eq32(Reg::R0, 4, v4);
        asm.jump_if_eq32(Reg::R0, 6, v6);
        asm.set(Reg::R0, 0);
        asm.exit();
        asm.place(v4);
        asm.load_packet(Size::Word, 16);
        end_with_owner(&mut asm, workers);
        asm.place(v6);
        asm.load_packet(Size::Word, 24);
        asm.copy(Reg::R8, Reg::R0);
        asm.multiply32(Reg::R8, JOIN);
        asm.load_packet(Size::Word, 28);
        asm.xor32(Reg::R0, Reg::R8);
        end_with_owner(&mut asm, workers);
        asm.finish()
    };
    Program::load_filter("godwit_networks", &assemble()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program says of a packet, which the kernel wants behind an Ethernet header.
    fn verdict(program: &Program, packet: &[u8]) -> u32 {
        let frame = [&[0; 14][..], packet].concat();
        program.run(&frame).unwrap() as u32
    }

    fn message(flags: u8, kind: u8, teid: u32) -> Vec<u8> {
        [&[flags, kind, 0, 4][..], &teid.to_be_bytes(), &[1, 2, 3, 4]].concat()
    }

    /// Numbers that look random, the same in every run.
    fn numbers() -> impl Iterator<Item = u32> {
        (0u64..)
            .map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n << 17).wrapping_mul(0xBF58_476D_1CE4_E5B9))
            .map(|n| (n >> 32) as u32)
    }

    #[test]
    fn the_kernel_chooses_the_owner_of_a_message() {
        for workers in [1, 2, 3, 7, 64, 256] {
            let program = message_program(workers).unwrap();
            for teid in (0..200).chain(numbers().take(200)).chain([u32::MAX, 1 << 31]) {
                for (flags, kind) in [
                    (0x30, 255),
                    (0x34, 255),
                    (0x36, 255),
                    (0x32, 1),
                    (0x32, 26),
                    (0x30, 254),
                    (0x34, 254),
                    (0x34, 253),
                    (0x48, 255),
                    (0x20, 255),
                ] {
                    let message = message(flags, kind, teid);
                    let owner = of_message(&message, workers);
                    assert_eq!(verdict(&program, &message), owner, "{message:?}");
                    let by_teid = if flags >> 4 == 3 && kind >= 254 { of_tunnel(teid, workers) } else { 0 };
                    assert_eq!(owner, by_teid);
                    assert!(owner < workers);
                }
            }
            let whole = message(0x30, 255, 77);
            for length in 0..whole.len() {
                assert_eq!(
                    verdict(&program, &whole[..length]),
                    of_message(&whole[..length], workers),
                    "{length}"
                );
            }
        }
    }

    #[test]
    fn the_kernel_chooses_the_owner_of_a_packet() {
        for workers in [1, 2, 3, 7, 64, 256] {
            let program = packet_program(workers).unwrap();
            for (n, bits) in (0..200).chain(numbers().take(200)).enumerate() {
                let v4 = Ipv4Addr::from_bits(bits);
                let prefix = u128::from(bits) << 90 | u128::from(bits) << 64;
                let v6 = Ipv6Addr::from_bits(prefix | n as u128);
                let mut packets = [vec![0x45; 40], vec![0x60; 60]];
                packets[0][16..20].copy_from_slice(&v4.octets());
                packets[1][24..40].copy_from_slice(&v6.octets());
                for (packet, address) in packets.iter().zip([IpAddr::V4(v4), IpAddr::V6(v6)]) {
                    let owner = of_packet(packet, workers);
                    assert_eq!(verdict(&program, packet), owner, "{address}");
                    assert_eq!(owner, of_address(address, workers));
                    assert!(owner < workers);
                }
            }
            // The kernel's test takes no packet below the shortest header of its kind.
            for other in [vec![0x15; 60], vec![0xF0; 60], vec![0x45; 20], vec![0x60; 40]] {
                assert_eq!(verdict(&program, &other), of_packet(&other, workers));
            }
            for cut in 0..32 {
                assert!(of_packet(&[vec![0x60; 32], vec![0x45; 32]][cut % 2][..cut], workers) < workers);
            }
        }
    }

    /// Hosts of one /64 are one UE, and TEIDs and addresses as they are handed out reach all workers evenly.
    #[test]
    fn workers_get_even_shares() {
        let host = |n: u128| IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8_0045_0007 << 64 | n));
        assert!((1..100).all(|n| of_address(host(n << 13), 13) == of_address(host(0), 13)));
        for workers in [2, 3, 5, 8, 16] {
            let shares = |owner: &dyn Fn(u32) -> u32| {
                let mut shares = vec![0u32; workers as usize];
                (0..16_000).for_each(|n| shares[owner(n) as usize] += 1);
                shares
            };
            let v6 = |n: u32| IpAddr::V6(Ipv6Addr::from_bits(0xfd00_0045 << 96 | u128::from(n) << 64));
            let kinds: [&dyn Fn(u32) -> u32; 5] = [
                &|n| of_tunnel(n + 1, workers),
                &|n| of_tunnel(n << 8, workers),
                &|n| of_tunnel(n << 16 | n >> 4, workers),
                &|n| of_address(Ipv4Addr::from_bits(0x0A2D_0000 + n).into(), workers),
                &|n| of_address(v6(n), workers),
            ];
            for (kind, owner) in kinds.iter().enumerate() {
                let fair = 16_000 / workers;
                let shares = shares(owner);
                assert!(shares.iter().all(|share| share.abs_diff(fair) < fair / 10), "{kind}: {shares:?}");
            }
        }
    }
}
