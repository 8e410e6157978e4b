//! The XDP program that picks what the user plane takes from an interface it shares with the kernel.
//!
//! Everything that is not selected, and everything that the fast path could not handle (IPv4 options, fragments of
//! tunnelled packets, other link-layer addresses and VLANs), goes to the kernel as if the program were not there. Addresses that the
//! kernel does not have are selected with all that goes to them, and with what asks for their link-layer address.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use net::link::Cidr;
use packet::ethernet::{self, Mac};
use packet::protocol;

use super::XDP_PASS;
use super::asm::{AsmError, Assembler, Label, Reg, Size};
use crate::vlan::{self, Protocol, Tags};

/// `bpf_redirect_map`.
const HELPER_REDIRECT_MAP: i32 = 51;
// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE: i16 = 16;
/// Where EtherType and payload of a frame are, once R7 is behind its tags: see [`virtual_lan`].
const TYPE: i16 = 12;
const LINK: i16 = 14;
/// Holds the key of a frame's tags.
const TAGS: Reg = Reg::R9;
/// Holds whether a frame is to a group of stations: 0 or 1.
const GROUP: Reg = Reg::R1;

/// Packets that are redirected to a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Select {
    /// Whole UDP datagrams to an address and port.
    Udp(IpAddr, u16),
    /// IP packets to the addresses of a prefix.
    Prefix(Cidr),
    /// IP packets to an address that the kernel does not have, and what asks for its link-layer address or answers it: ARP,
    /// neighbour discovery.
    Own(IpAddr),
    /// With [`Select::Own`]: what neighbours tell all others about their link-layer address.
    Announcements,
    /// Every frame, whatever it is and whomever it is for.
    Everything,
}

impl Select {
    fn own(&self) -> Option<IpAddr> {
        match self {
            Select::Own(address) => Some(*address),
            Select::Udp(..) | Select::Prefix(_) | Select::Announcements | Select::Everything => None,
        }
    }
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
    let groups: Vec<_> = wanted.iter().filter(|(_, selects)| !selects.is_empty()).collect();
    if !everything && !groups.is_empty() {
        let own = groups.iter().flat_map(|(_, selects)| selects).any(|select| select.own().is_some());
        link_layer(&mut asm, mac, own, pass);
        let most = groups.iter().map(|(tags, _)| tags.ids().len()).max().unwrap_or(0);
        virtual_lan(&mut asm, most);
        for (at, (tags, selects)) in groups.iter().enumerate() {
            let next = if at + 1 < groups.len() { asm.label() } else { pass };
            let [outer, inner] = [tags.key() >> 16, tags.key() & 0xFFFF].map(|half| be16(half as u16));
            asm.jump_if_ne32(TAGS, outer << 16 | inner, next);
            of_vlan(&mut asm, selects, own, (redirect, pass));
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

/// Checks the destination; R7 is then the frame, R8 its end. With `groups`, frames to groups of stations pass too, and
/// [`GROUP`] says which they are.
fn link_layer(asm: &mut Assembler, mac: Mac, groups: bool, pass: Label) {
    let (other, ours) = (asm.label(), asm.label());
    asm.load(Size::Word, Reg::R7, Reg::R6, MD_DATA);
    asm.load(Size::Word, Reg::R8, Reg::R6, MD_DATA_END);
    need(asm, LINK, pass);
    if groups {
        asm.set(GROUP, 0);
    }
    let not_ours = if groups { other } else { pass };
    asm.load(Size::Word, Reg::R3, Reg::R7, 0);
    asm.jump_if_ne32(Reg::R3, u32::from_ne_bytes([mac[0], mac[1], mac[2], mac[3]]), not_ours);
    asm.load(Size::Half, Reg::R3, Reg::R7, 4);
    let rest = u16::from_ne_bytes([mac[4], mac[5]]).into();
    if groups {
        asm.jump_if_eq32(Reg::R3, rest, ours);
        asm.place(other);
        asm.load(Size::Byte, Reg::R3, Reg::R7, 0);
        asm.and32(Reg::R3, 1);
        asm.jump_if_eq32(Reg::R3, 0, pass);
        asm.set(GROUP, 1);
        asm.place(ours);
    } else {
        asm.jump_if_ne32(Reg::R3, rest, pass);
    }
}

/// Reads the tags as [`Tags::read`] does, where at most `most` name a VLAN: [`TAGS`] is then their key, its halves in network
/// order, and R7 so far behind the start of the frame that EtherType and payload are where they are without tags.
fn virtual_lan(asm: &mut Assembler, most: usize) {
    // Tags that name a VLAN, and the protocol of the present one.
    const COUNT: Reg = Reg::R5;
    const CODE: Reg = Reg::R4;
    let done = asm.label();
    asm.set(TAGS, 0);
    asm.set(COUNT, 0);
    // One tag may have priority bits only. Those behind are no EtherType of ours.
    for _ in 0..=most {
        let [read, second, skip] = [asm.label(), asm.label(), asm.label()];
        need(asm, LINK + 4, done);
        asm.load(Size::Half, Reg::R3, Reg::R7, TYPE);
        for protocol in Protocol::ALL {
            asm.set(CODE, be16(protocol.code()) as i32);
            asm.jump_if_eq32(Reg::R3, be16(protocol.ethertype()), read);
        }
        asm.jump(done);
        asm.place(read);
        asm.load(Size::Half, Reg::R3, Reg::R7, TYPE + 2);
        asm.and32(Reg::R3, be16(vlan::ID));
        asm.jump_if_eq32(Reg::R3, 0, skip);
        asm.jump_if_ne32(COUNT, 0, second);
        asm.xor32(Reg::R3, CODE);
        asm.copy(TAGS, Reg::R3);
        asm.multiply32(TAGS, 1 << 16);
        asm.set(COUNT, 1);
        asm.jump(skip);
        asm.place(second);
        asm.jump_if_ne32(COUNT, 1, done);
        asm.jump_if_ne32(CODE, be16(Protocol::Customer.code()), done);
        asm.xor32(TAGS, Reg::R3);
        asm.set(COUNT, 2);
        asm.place(skip);
        asm.add(Reg::R7, 4);
    }
    asm.place(done);
}

/// What is selected of the frames of one VLAN: jumps to `redirect` or `pass`. `groups`: some are to groups of stations.
fn of_vlan(asm: &mut Assembler, selects: &[Select], groups: bool, (redirect, pass): (Label, Label)) {
    let [arp, ipv6, discovery] = [asm.label(), asm.label(), asm.label()];
    let own = |ipv6: bool| {
        let own = selects.iter().filter_map(Select::own).filter(move |own| own.is_ipv6() == ipv6);
        own.collect::<Vec<_>>()
    };
    let (own_v4, own_v6) = (own(false), own(true));
    let announcements = selects.contains(&Select::Announcements);
    asm.load(Size::Half, Reg::R3, Reg::R7, TYPE);
    if !own_v4.is_empty() {
        asm.jump_if_eq32(Reg::R3, be16(ethernet::ARP), arp);
    }
    if groups && own_v6.is_empty() {
        asm.jump_if_ne32(GROUP, 0, pass);
    }
    asm.jump_if_eq32(Reg::R3, be16(ethernet::IPV6), ipv6);
    if groups && !own_v6.is_empty() {
        asm.jump_if_ne32(GROUP, 0, pass);
    }
    asm.jump_if_ne32(Reg::R3, be16(ethernet::IPV4), pass);
    network_layer(asm, false, selects, (redirect, pass));
    asm.place(ipv6);
    if groups && !own_v6.is_empty() {
        asm.jump_if_ne32(GROUP, 0, discovery);
    }
    network_layer(asm, true, selects, (redirect, pass));
    if !own_v4.is_empty() {
        asm.place(arp);
        need(asm, LINK + ARP.length, pass);
        for own in own_v4 {
            address(asm, ARP.target, &octets(own), 32, redirect);
        }
        if announcements {
            // Its sender and target are the same.
            asm.load(Size::Word, Reg::R3, Reg::R7, LINK + ARP.target);
            asm.load(Size::Word, Reg::R4, Reg::R7, LINK + ARP.sender);
            asm.xor32(Reg::R3, Reg::R4);
            asm.jump_if_eq32(Reg::R3, 0, redirect);
        }
        asm.jump(pass);
    }
    if !own_v6.is_empty() {
        asm.place(discovery);
        let (message, target) = (LINK + V6.header, V6.header + 8);
        need(asm, message + 24, pass);
        asm.load(Size::Byte, Reg::R3, Reg::R7, LINK + V6.protocol);
        asm.jump_if_ne32(Reg::R3, protocol::ICMPV6.into(), pass);
        asm.load(Size::Byte, Reg::R3, Reg::R7, message);
        if announcements {
            asm.jump_if_eq32(Reg::R3, ADVERTISEMENT, redirect);
        }
        asm.jump_if_ne32(Reg::R3, SOLICITATION, pass);
        for own in own_v6 {
            address(asm, target, &octets(own), 128, redirect);
        }
        asm.jump(pass);
    }
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

/// Where the fields of an ARP message are, from its start (RFC 826).
struct Arp {
    length: i16,
    sender: i16,
    target: i16,
}

const ARP: Arp = Arp { length: 28, sender: 14, target: 24 };
/// Messages of neighbour discovery (RFC 4861 §4.3, §4.4).
const SOLICITATION: u32 = 135;
const ADVERTISEMENT: u32 = 136;

/// One IP version's part: jumps to `redirect` if any selection matches, else to `pass`.
fn network_layer(asm: &mut Assembler, ipv6: bool, selects: &[Select], (redirect, pass): (Label, Label)) {
    let layout = if ipv6 { V6 } else { V4 };
    need(asm, LINK + layout.header, pass);
    for select in selects {
        match select {
            // Every address: further selections would never be reached.
            Select::Prefix(prefix) if prefix.address().is_ipv6() == ipv6 && prefix.prefix() == 0 => {
                return asm.jump(redirect);
            }
            Select::Prefix(prefix) if prefix.address().is_ipv6() == ipv6 => {
                let network = octets(prefix.network().address());
                address(asm, layout.destination, &network, prefix.prefix(), redirect);
            }
            Select::Own(own) if own.is_ipv6() == ipv6 => {
                let bits = layout.address as u8 * 8;
                address(asm, layout.destination, &octets(*own), bits, redirect);
            }
            Select::Udp(to, port) if to.is_ipv6() == ipv6 => {
                datagram(asm, &layout, *to, *port, redirect);
            }
            _ => {}
        }
    }
    asm.jump(pass);
}

/// Jumps to `redirect` if a packet of this layout is a whole UDP datagram to an address and port.
fn datagram(asm: &mut Assembler, layout: &Layout, to: IpAddr, port: u16, redirect: Label) {
    let (matches, next) = (asm.label(), asm.label());
    if to.is_ipv4() {
        // Five words of header, and neither "more fragments" nor an offset.
        asm.load(Size::Byte, Reg::R3, Reg::R7, LINK);
        asm.jump_if_ne32(Reg::R3, 0x45, next);
        asm.load(Size::Half, Reg::R3, Reg::R7, LINK + 6);
        asm.and32(Reg::R3, be16(0x3FFF));
        asm.jump_if_ne32(Reg::R3, 0, next);
    }
    asm.load(Size::Byte, Reg::R3, Reg::R7, LINK + layout.protocol);
    asm.jump_if_ne32(Reg::R3, protocol::UDP.into(), next);
    address(asm, layout.destination, &octets(to), layout.address as u8 * 8, matches);
    asm.jump(next);
    asm.place(matches);
    need(asm, LINK + layout.header + 8, next);
    asm.load(Size::Half, Reg::R3, Reg::R7, LINK + layout.header + 2);
    asm.jump_if_eq32(Reg::R3, be16(port), redirect);
    asm.place(next);
}

/// Jumps to `same` if the first `bits` bits of the address at `at` in the payload are those of `network`.
fn address(asm: &mut Assembler, at: i16, network: &[u8], bits: u8, same: Label) {
    let other = asm.label();
    for (i, word) in network.chunks_exact(4).enumerate() {
        let bits = u32::from(bits).saturating_sub(32 * i as u32).min(32);
        if bits == 0 {
            break;
        }
        let mask = (u32::MAX << (32 - bits)).to_be();
        asm.load(Size::Word, Reg::R3, Reg::R7, LINK + at + 4 * i as i16);
        if bits < 32 {
            asm.and32(Reg::R3, mask);
        }
        asm.jump_if_ne32(Reg::R3, u32::from_ne_bytes([word[0], word[1], word[2], word[3]]) & mask, other);
    }
    asm.jump(same);
    asm.place(other);
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;
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

    /// Tags, each as EtherType and identifier.
    type Octets = [(u16, u16)];

    /// A frame with these tags.
    fn tagged(tags: &Octets, packet: &[u8]) -> Vec<u8> {
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
            (tags(&[100, 200]).with_protocol(Protocol::Customer), vec![n3]),
            (tags(&[100]).with_protocol(Protocol::Old), vec![n3]),
            (tags(&[100, 202]).with_protocol(Protocol::Old), vec![pool]),
        ];
        let (c, s, old) = (0x8100, 0x88A8, 0x9100);
        // Tags, and which packets are selected: to N3, to UEs.
        let all: [(&Octets, bool, bool); 24] = [
            (&[], false, true),
            (&[(c, 100)], true, false),
            (&[(c, 0xE000 | 100)], true, false),
            (&[(s, 100)], false, false),
            (&[(old, 100)], true, false),
            (&[(s, 100), (c, 200)], false, true),
            (&[(c, 100), (c, 200)], true, false),
            (&[(old, 100), (c, 200)], false, false),
            (&[(old, 100), (c, 202)], false, true),
            (&[(s, 100), (c, 202)], false, false),
            (&[(s, 100), (c, 201)], true, true),
            (&[(s, 200), (c, 100)], false, false),
            (&[(s, 100), (s, 200)], false, false),
            (&[(c, 7)], false, false),
            (&[(c, 8)], false, false),
            (&[(c, 100), (c, 200), (c, 5)], false, false),
            // One more tag that has priority bits only.
            (&[(c, 0xE000)], false, true),
            (&[(s, 0)], false, true),
            (&[(c, 0x2000), (c, 100)], true, false),
            (&[(c, 100), (c, 0x2000)], true, false),
            (&[(c, 0), (s, 100), (c, 201)], true, true),
            (&[(s, 100), (c, 0), (c, 201)], true, true),
            (&[(s, 100), (c, 201), (c, 0)], true, true),
            (&[(c, 0), (c, 0), (s, 100), (c, 201)], false, false),
        ];
        let of = |packet: &[u8]| {
            let frames: Vec<_> = all.iter().map(|(tags, ..)| tagged(tags, packet)).collect();
            selected_of(&wanted, &frames)
        };
        assert_eq!(of(&to_n3), all.map(|(_, n3, _)| n3));
        assert_eq!(of(&to_ue), all.map(|(.., pool)| pool));
        // The stack reads tags in the same way.
        for (octets, to_n3, to_ue) in all {
            let key = Tags::read(&tagged(octets, &udp("10.45.0.9", 9))).0;
            let known = wanted.iter().find(|(tags, _)| tags.key() == key);
            let selects = known.map(|(_, selects)| (selects.contains(&n3), selects.contains(&pool)));
            if octets.len() < 3 || to_n3 {
                assert_eq!(selects.unwrap_or_default(), (to_n3, to_ue), "{octets:?}");
            }
        }
        // Frames that end within their tags or packets go to the kernel.
        let long = tagged(&[(s, 100), (c, 201)], &to_n3);
        let cut: Vec<_> = (14..22 + 28).map(|length| long[..length].to_vec()).collect();
        assert!(!selected_of(&wanted, &cut).contains(&true));
    }

    /// An ARP message about who has `target`.
    fn arp(kind: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut message = vec![0, 1, 8, 0, 6, 4, 0, kind];
        message.extend(PEER);
        message.extend(sender);
        message.extend([0; 6]);
        message.extend(target);
        message
    }

    /// A message of neighbour discovery about `target`.
    fn discovery(kind: u32, to: &str, target: &str) -> Vec<u8> {
        let mut message = vec![kind as u8, 0, 0, 0, 0, 0, 0, 0];
        message.extend(target.parse::<Ipv6Addr>().unwrap().octets());
        message.extend([1, 1]);
        message.extend(PEER);
        let header = ipv6::Header::new("2001:db8::9".parse().unwrap(), to.parse().unwrap(), protocol::ICMPV6);
        header.build(&message).unwrap()
    }

    /// Questions and answers about addresses of our own are selected, and whatever else is for these addresses; those about the
    /// kernel's addresses in the same VLAN are not.
    #[test]
    fn what_is_for_addresses_of_our_own_is_selected() {
        const ALL: Mac = [0xFF; 6];
        const GROUP: Mac = [0x33, 0x33, 0xFF, 0, 0, 1];
        let own = [Select::Own("192.0.2.1".parse().unwrap()), Select::Own("2001:db8::1".parse().unwrap())];
        let with = |more: &[Select]| [&own[..], more].concat();
        let built = |to, kind, packet: &[u8]| ethernet::build(to, PEER, None, kind, packet);
        let arp_to = |to, message: Vec<u8>| built(to, ethernet::ARP, &message);
        let ipv6_to = |to, packet: Vec<u8>| built(to, ethernet::IPV6, &packet);
        let solicited = "ff02::1:ff00:1";
        let cases = [
            (arp_to(ALL, arp(1, [192, 0, 2, 9], [192, 0, 2, 1])), true),
            (arp_to(MAC, arp(1, [192, 0, 2, 9], [192, 0, 2, 1])), true),
            (arp_to(MAC, arp(2, [192, 0, 2, 9], [192, 0, 2, 1])), true),
            (arp_to(MAC, arp(2, [192, 0, 2, 9], [192, 0, 2, 2])), false),
            (arp_to(ALL, arp(1, [192, 0, 2, 9], [192, 0, 2, 2])), false),
            (arp_to([2, 0, 0, 0, 0, 7], arp(1, [192, 0, 2, 9], [192, 0, 2, 1])), false),
            (arp_to(ALL, arp(1, [192, 0, 2, 9], [192, 0, 2, 1])[..27].to_vec()), false),
            (ipv6_to(GROUP, discovery(SOLICITATION, solicited, "2001:db8::1")), true),
            (ipv6_to(GROUP, discovery(SOLICITATION, solicited, "2001:db8:0:1::1")), false),
            (ipv6_to(MAC, discovery(SOLICITATION, "2001:db8::1", "2001:db8::1")), true),
            (ipv6_to(MAC, discovery(ADVERTISEMENT, "2001:db8::1", "2001:db8::9")), true),
            (ipv6_to(MAC, discovery(ADVERTISEMENT, "2001:db8::2", "2001:db8::9")), false),
            (ipv6_to(GROUP, discovery(133, "ff02::2", "2001:db8::1")), false),
            (ipv6_to(GROUP, discovery(SOLICITATION, solicited, "2001:db8::1")[..63].to_vec()), false),
            (frame(MAC, None, &udp("192.0.2.1", 1)), true),
            (frame(MAC, None, &udp("2001:db8::1", 1)), true),
            (frame(MAC, None, &udp("192.0.2.2", 1)), false),
            // A group has no such packets.
            (frame(ALL, None, &udp("192.0.2.1", 1)), false),
            (frame(GROUP, None, &udp("2001:db8::1", 1)), false),
        ];
        let (frames, expected): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
        assert_eq!(selected(None, &own, &frames), expected);
        assert_eq!(selected(None, &with(&[Select::Announcements]), &frames), expected);
        // With addresses of one family, the other is the kernel's.
        for (select, kind) in own.iter().zip([ethernet::IPV6, ethernet::IPV4]) {
            let is_other = |frame: &Vec<u8>| {
                let own = u16::from_be_bytes([frame[12], frame[13]]);
                own == kind || (kind == ethernet::IPV4 && own == ethernet::ARP)
            };
            let one: Vec<_> =
                frames.iter().zip(&expected).map(|(frame, all)| *all && !is_other(frame)).collect();
            assert_eq!(selected(None, &[*select], &frames), one);
            assert_eq!(selected(None, &[*select, Select::Announcements], &frames), one);
        }
        // What neighbours announce is for the kernel, unless it is asked for.
        let announced = [
            arp_to(ALL, arp(1, [192, 0, 2, 9], [192, 0, 2, 9])),
            arp_to(ALL, arp(2, [192, 0, 2, 9], [192, 0, 2, 9])),
            ipv6_to([0x33, 0x33, 0, 0, 0, 1], discovery(ADVERTISEMENT, "ff02::1", "2001:db8::9")),
        ];
        assert_eq!(selected(None, &own, &announced), [false; 3]);
        assert_eq!(selected(None, &with(&[Select::Announcements]), &announced), [true; 3]);
        // In the VLAN that has the addresses, and in no other one.
        let in_vlan = [
            (Tags::from(Some(7)), own.to_vec()),
            (Tags::default(), vec![Select::Udp("192.0.2.1".parse().unwrap(), 1)]),
        ];
        let tagged: Vec<_> = frames
            .iter()
            .map(|frame| {
                let mut out = frame.clone();
                out.splice(12..12, [0x81, 0, 0, 7]);
                out
            })
            .collect();
        assert_eq!(selected_of(&in_vlan, &tagged), expected);
        let of_socket: Vec<bool> = frames.iter().map(|frame| *frame == frames[14]).collect();
        assert_eq!(selected_of(&in_vlan, &frames), of_socket);
        // Frames of every length.
        for whole in frames.iter().chain(&tagged) {
            let cut: Vec<_> = (14..whole.len()).map(|length| whole[..length].to_vec()).collect();
            selected_of(&in_vlan, &cut);
        }
    }

    /// The verifier takes a program for as many interfaces as a device may have.
    #[test]
    fn a_device_may_have_many_vlans() {
        let wanted: Vec<_> = (0..255u8)
            .map(|number| {
                let protocol = Protocol::ALL[usize::from(number) % 3];
                let tags = Tags::new(&[100 + u16::from(number), 7]).unwrap().with_protocol(protocol);
                let v4 = IpAddr::from([10, 0, number, 1]);
                let v6 = IpAddr::from([0xfd00, 0, 0, number.into(), 0, 0, 0, 1]);
                let pool = Select::Prefix("10.45.0.0/16".parse().unwrap());
                (tags, vec![Select::Own(v4), Select::Own(v6), pool, Select::Announcements])
            })
            .collect();
        let of = |number: u8, to: &str| {
            let protocol = Protocol::ALL[usize::from(number) % 3];
            let tags = [(protocol.ethertype(), 100 + u16::from(number)), (0x8100, 7)];
            tagged(&tags, &udp(to, 2152))
        };
        let frames: Vec<_> = (0..255).map(|number| of(number, &format!("10.0.{number}.1"))).collect();
        assert_eq!(selected_of(&wanted, &frames), [true; 255]);
        let frames: Vec<_> = (0..255).map(|number| of(number, "10.0.255.1")).collect();
        assert_eq!(selected_of(&wanted, &frames), [false; 255]);
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
