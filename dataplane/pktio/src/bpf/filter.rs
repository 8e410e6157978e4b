//! The XDP program that picks what the user plane takes from an interface it shares with the kernel.
//!
//! Everything that is not selected, and everything that the fast path could not handle (IPv4 options, fragments of
//! tunnelled packets, other link-layer addresses and VLANs), goes to the kernel as if the program were not there.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use net::link::Cidr;
use packet::ethernet::{self, Mac};
use packet::protocol;

use super::XDP_PASS;
use super::asm::{AsmError, Assembler, Label, Reg, Size};
use crate::vlan::{self, Tags};

/// `bpf_redirect_map`.
const HELPER_REDIRECT_MAP: i32 = 51;
// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE: i16 = 16;

/// Packets that are redirected to a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Select {
    /// Whole UDP datagrams to an address and port.
    Udp(IpAddr, u16),
    /// IP packets to the addresses of a prefix.
    Prefix(Cidr),
    /// Every frame, whatever it is and whomever it is for.
    Everything,
}

/// Assembles the program for a device with address `mac`: selected frames go to the socket in `map` under the queue they
/// came from, or to the kernel where there is none. `wanted` says what is selected of the frames with these tags.
pub fn program(map: BorrowedFd<'_>, mac: Mac, wanted: &[(Tags, Vec<Select>)]) -> Result<Vec<u64>, AsmError> {
    assemble(map, mac, wanted, XDP_PASS)
}

/// As [`program`]; `unserved` is the verdict where the map has no socket for the queue.
fn assemble(
    map: BorrowedFd<'_>,
    mac: Mac,
    wanted: &[(Tags, Vec<Select>)],
    unserved: i32,
) -> Result<Vec<u64>, AsmError> {
    let mut asm = Assembler::new();
    let (pass, redirect) = (asm.label(), asm.label());
    asm.copy(Reg::R6, Reg::R1);
    // The kernel refuses programs with parts that are never reached.
    let everything = wanted.iter().any(|(_, selects)| selects.contains(&Select::Everything));
    let mut groups: Vec<_> = wanted.iter().filter(|(_, selects)| !selects.is_empty()).collect();
    // What begins with the same tags and has more comes first.
    groups.sort_by_key(|(tags, _)| std::cmp::Reverse(tags.header_len()));
    if !everything && !groups.is_empty() {
        link_layer(&mut asm, mac, pass);
        for (at, (tags, selects)) in groups.iter().enumerate() {
            let next = if at + 1 < groups.len() { asm.label() } else { pass };
            let link = virtual_lan(&mut asm, *tags, next);
            let ipv6 = asm.label();
            asm.load(Size::Half, Reg::R3, Reg::R7, link - 2);
            asm.jump_if_eq32(Reg::R3, be16(ethernet::IPV6), ipv6);
            asm.jump_if_ne32(Reg::R3, be16(ethernet::IPV4), pass);
            network_layer(&mut asm, link, false, selects, (redirect, pass));
            asm.place(ipv6);
            network_layer(&mut asm, link, true, selects, (redirect, pass));
            if at + 1 < groups.len() {
                asm.place(next);
            }
        }
    }
    if !groups.is_empty() {
        asm.place(redirect);
        asm.load_map(Reg::R1, map);
        asm.load(Size::Word, Reg::R2, Reg::R6, MD_RX_QUEUE);
        asm.set(Reg::R3, unserved);
        asm.call(HELPER_REDIRECT_MAP);
        asm.exit();
    }
    if !everything {
        asm.place(pass);
        asm.set(Reg::R0, XDP_PASS);
        asm.exit();
    }
    asm.finish()
}

/// Two octets in network order, as a load on this machine sees them.
fn be16(value: u16) -> u32 {
    value.to_be().into()
}

/// Jumps to `short` unless the frame has `length` octets. The verifier wants this before any load.
fn need(asm: &mut Assembler, length: i16, short: Label) {
    asm.copy(Reg::R2, Reg::R7);
    asm.add(Reg::R2, length.into());
    asm.jump_if_greater(Reg::R2, Reg::R8, short);
}

/// Checks the destination; R7 is then the frame, R8 its end.
fn link_layer(asm: &mut Assembler, mac: Mac, pass: Label) {
    asm.load(Size::Word, Reg::R7, Reg::R6, MD_DATA);
    asm.load(Size::Word, Reg::R8, Reg::R6, MD_DATA_END);
    need(asm, 14, pass);
    asm.load(Size::Word, Reg::R3, Reg::R7, 0);
    asm.jump_if_ne32(Reg::R3, u32::from_ne_bytes([mac[0], mac[1], mac[2], mac[3]]), pass);
    asm.load(Size::Half, Reg::R3, Reg::R7, 4);
    asm.jump_if_ne32(Reg::R3, u16::from_ne_bytes([mac[4], mac[5]]).into(), pass);
}

/// Jumps to `other` unless the frame begins with these tags. Returns the length of the header.
fn virtual_lan(asm: &mut Assembler, tags: Tags, other: Label) -> i16 {
    let length = tags.header_len() as i16;
    if !tags.is_empty() {
        need(asm, length, other);
    }
    for (at, id) in (12..).step_by(4).zip(tags.ids()) {
        asm.load(Size::Half, Reg::R3, Reg::R7, at);
        if at + 6 < length {
            let outer = asm.label();
            asm.jump_if_eq32(Reg::R3, be16(vlan::SERVICE), outer);
            asm.jump_if_ne32(Reg::R3, be16(vlan::CUSTOMER), other);
            asm.place(outer);
        } else {
            asm.jump_if_ne32(Reg::R3, be16(vlan::CUSTOMER), other);
        }
        asm.load(Size::Half, Reg::R3, Reg::R7, at + 2);
        asm.and32(Reg::R3, be16(0x0FFF));
        asm.jump_if_ne32(Reg::R3, be16(*id), other);
    }
    length
}

/// Where the fields of an IP header are, from its start.
struct Layout {
    header: i16,
    protocol: i16,
    destination: i16,
    /// Octets of an address.
    address: i16,
}

const V4: Layout = Layout { header: 20, protocol: 9, destination: 16, address: 4 };
const V6: Layout = Layout { header: 40, protocol: 6, destination: 24, address: 16 };

/// One IP version's part: jumps to `redirect` if any selection matches, else to `pass`.
fn network_layer(
    asm: &mut Assembler,
    link: i16,
    ipv6: bool,
    selects: &[Select],
    (redirect, pass): (Label, Label),
) {
    let layout = if ipv6 { V6 } else { V4 };
    need(asm, link + layout.header, pass);
    for select in selects {
        let next = asm.label();
        match select {
            // Every address: further selections would never be reached.
            Select::Prefix(prefix) if prefix.address().is_ipv6() == ipv6 && prefix.prefix() == 0 => {
                return asm.jump(redirect);
            }
            Select::Prefix(prefix) if prefix.address().is_ipv6() == ipv6 => {
                let network = octets(prefix.network().address());
                address(asm, link, &layout, &network, prefix.prefix(), next);
                asm.jump(redirect);
            }
            Select::Udp(to, port) if to.is_ipv6() == ipv6 => {
                if !ipv6 {
                    // Five words of header, and neither "more fragments" nor an offset.
                    asm.load(Size::Byte, Reg::R3, Reg::R7, link);
                    asm.jump_if_ne32(Reg::R3, 0x45, next);
                    asm.load(Size::Half, Reg::R3, Reg::R7, link + 6);
                    asm.and32(Reg::R3, be16(0x3FFF));
                    asm.jump_if_ne32(Reg::R3, 0, next);
                }
                asm.load(Size::Byte, Reg::R3, Reg::R7, link + layout.protocol);
                asm.jump_if_ne32(Reg::R3, protocol::UDP.into(), next);
                address(asm, link, &layout, &octets(*to), layout.address as u8 * 8, next);
                need(asm, link + layout.header + 8, next);
                asm.load(Size::Half, Reg::R3, Reg::R7, link + layout.header + 2);
                asm.jump_if_eq32(Reg::R3, be16(*port), redirect);
            }
            _ => {}
        }
        asm.place(next);
    }
    asm.jump(pass);
}

/// Jumps to `other` unless the first `bits` bits of the destination are those of `network`.
fn address(asm: &mut Assembler, link: i16, layout: &Layout, network: &[u8], bits: u8, other: Label) {
    for (i, word) in network.chunks_exact(4).enumerate() {
        let bits = u32::from(bits).saturating_sub(32 * i as u32).min(32);
        if bits == 0 {
            return;
        }
        let mask = (u32::MAX << (32 - bits)).to_be();
        asm.load(Size::Word, Reg::R3, Reg::R7, link + layout.destination + 4 * i as i16);
        if bits < 32 {
            asm.and32(Reg::R3, mask);
        }
        asm.jump_if_ne32(Reg::R3, u32::from_ne_bytes([word[0], word[1], word[2], word[3]]) & mask, other);
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use packet::transport::build_udp;
    use packet::{ipv4, ipv6};

    use super::super::{Program, XDP_DROP, XskMap};
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const PEER: Mac = [2, 0, 0, 0, 0, 2];

    /// Whether the program selects each frame: without sockets, what is selected is dropped.
    fn selected(vlan: Option<u16>, selects: &[Select], frames: &[Vec<u8>]) -> Vec<bool> {
        selected_of(&[(vlan.into(), selects.to_vec())], frames)
    }

    fn selected_of(wanted: &[(Tags, Vec<Select>)], frames: &[Vec<u8>]) -> Vec<bool> {
        let map = XskMap::new(1).unwrap();
        let code = assemble(map.as_fd(), MAC, wanted, XDP_DROP).unwrap();
        let program = Program::load("test", &code).unwrap();
        let verdict = |frame: &Vec<u8>| match program.run(frame).unwrap() {
            XDP_DROP => true,
            XDP_PASS => false,
            other => panic!("verdict {other}"),
        };
        frames.iter().map(verdict).collect()
    }

    fn udp(to: &str, port: u16) -> Vec<u8> {
        let to: IpAddr = to.parse().unwrap();
        let from: IpAddr = if to.is_ipv4() { "192.0.2.9" } else { "2001:db8::9" }.parse().unwrap();
        let datagram = build_udp((from, 9), (to, port), b"payload").unwrap();
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ipv4::Header::new(from, to, protocol::UDP).build(&datagram).unwrap()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ipv6::Header::new(from, to, protocol::UDP).build(&datagram).unwrap()
            }
            _ => panic!("one family"),
        }
    }

    fn frame(to: Mac, vlan: Option<u16>, packet: &[u8]) -> Vec<u8> {
        let kind = if packet[0] >> 4 == 4 { ethernet::IPV4 } else { ethernet::IPV6 };
        ethernet::build(to, PEER, vlan, kind, packet)
    }

    #[test]
    fn gtpu_to_our_address_is_selected_and_nothing_else() {
        let selects = [
            Select::Udp("192.0.2.1".parse().unwrap(), 2152),
            Select::Udp("2001:db8::1".parse().unwrap(), 2152),
        ];
        let mut fragment = udp("192.0.2.1", 2152);
        fragment[6] = 0x20;
        let mut later = udp("192.0.2.1", 2152);
        later[7] = 1;
        let mut tcp = udp("192.0.2.1", 2152);
        tcp[9] = protocol::TCP;
        let good = udp("192.0.2.1", 2152);
        let frames = [
            frame(MAC, None, &good),
            frame(MAC, None, &udp("2001:db8::1", 2152)),
            frame(PEER, None, &good),
            frame([2, 0, 0, 0, 0, 9], None, &good),
            frame(MAC, None, &udp("192.0.2.1", 2153)),
            frame(MAC, None, &udp("192.0.2.2", 2152)),
            frame(MAC, None, &udp("2001:db8::1:1", 2152)),
            frame(MAC, None, &fragment),
            frame(MAC, None, &later),
            frame(MAC, None, &tcp),
            frame(MAC, Some(7), &good),
            ethernet::build(MAC, PEER, None, ethernet::ARP, &[0; 28]),
            // Ends within the ports.
            frame(MAC, None, &good[..22]),
        ];
        let expected: Vec<bool> = (0..frames.len()).map(|i| i < 2).collect();
        assert_eq!(selected(None, &selects, &frames), expected);
        let tagged = [
            frame(MAC, Some(7), &good),
            frame(MAC, Some(8), &good),
            frame(MAC, None, &good),
            frame(MAC, Some(7), &udp("2001:db8::1", 2152)),
        ];
        assert_eq!(selected(Some(7), &selects, &tagged), [true, false, false, true]);
    }

    /// A frame with these tags, each as EtherType and identifier.
    fn tagged(tags: &[(u16, u16)], packet: &[u8]) -> Vec<u8> {
        let mut out = frame(MAC, None, packet);
        let tags: Vec<u8> =
            tags.iter().flat_map(|(kind, id)| [kind.to_be_bytes(), id.to_be_bytes()]).flatten().collect();
        out.splice(12..12, tags);
        out
    }

    #[test]
    fn each_vlan_of_a_device_has_its_own_selection() {
        let n3 = Select::Udp("192.0.2.1".parse().unwrap(), 2152);
        let pool = Select::Prefix("10.45.0.0/16".parse().unwrap());
        let (to_n3, to_ue) = (udp("192.0.2.1", 2152), udp("10.45.0.9", 9));
        let tags = |ids: &[u16]| Tags::new(ids).unwrap();
        let wanted = [
            (tags(&[]), vec![pool]),
            (tags(&[100]), vec![n3]),
            (tags(&[100, 200]), vec![pool]),
            (tags(&[100, 201]), vec![n3, pool]),
            (tags(&[7]), vec![]),
        ];
        let (c, s) = (0x8100, 0x88A8);
        let all: [&[(u16, u16)]; 11] = [
            &[],
            &[(c, 100)],
            &[(c, 0xE000 | 100)],
            &[(s, 100), (c, 200)],
            &[(c, 100), (c, 200)],
            &[(s, 100), (c, 201)],
            &[(s, 100)],
            &[(s, 200), (c, 100)],
            &[(s, 100), (s, 200)],
            &[(c, 7)],
            &[(c, 100), (c, 200), (c, 5)],
        ];
        let of = |packet: &[u8]| {
            let frames: Vec<_> = all.iter().map(|tags| tagged(tags, packet)).collect();
            selected_of(&wanted, &frames)
        };
        let only = |wanted: &[usize]| (0..all.len()).map(|at| wanted.contains(&at)).collect::<Vec<_>>();
        assert_eq!(of(&to_ue), only(&[0, 3, 4, 5]));
        assert_eq!(of(&to_n3), only(&[1, 2, 5]));
        // Frames that end within their tags or packets go to the kernel.
        let long = tagged(&[(s, 100), (c, 201)], &to_n3);
        let cut: Vec<_> = (14..22 + 28).map(|length| long[..length].to_vec()).collect();
        assert!(!selected_of(&wanted, &cut).contains(&true));
    }

    #[test]
    fn packets_to_a_pool_are_selected_fragments_included() {
        let prefix = |text: &str| Select::Prefix(text.parse().unwrap());
        let selects = [prefix("10.45.0.0/16"), prefix("10.46.16.0/20"), prefix("2001:db8:45::/44")];
        let mut fragment = udp("10.45.255.255", 1);
        fragment[6] = 0x20;
        let frames: Vec<Vec<u8>> = [
            udp("10.45.0.1", 1),
            fragment,
            udp("10.46.31.255", 1),
            udp("2001:db8:4f:ffff::1", 1),
            udp("10.46.32.0", 1),
            udp("10.44.255.255", 1),
            udp("2001:db8:50::1", 1),
        ]
        .iter()
        .map(|packet| frame(MAC, None, packet))
        .collect();
        assert_eq!(selected(None, &selects, &frames), [true, true, true, true, false, false, false]);
        assert_eq!(selected(None, &[], &frames), [false; 7]);
        assert_eq!(selected(None, &[Select::Everything], &frames), [true; 7]);
        let all = frame(PEER, Some(9), &udp("10.45.0.1", 1));
        assert_eq!(selected(None, &[prefix("0.0.0.0/0")], &[frames[0].clone(), all]), [true, false]);
    }

    #[test]
    fn a_refused_program_comes_with_the_verifiers_reason() {
        let mut asm = Assembler::new();
        asm.exit();
        let error = Program::load("bad", &asm.finish().unwrap()).unwrap_err().to_string();
        assert!(error.contains("R0"), "{error}");
    }
}
