//! The steps of a trace, done with a frame's octets.
//!
//! Every change is made where the field lies, and checksums are mended by the difference that it makes (RFC 1624): what no
//! entry changes stays as it was, octet for octet, wrong checksums among it (SW-3, SW-9, SW-10). A change inside a tunnel
//! also changes what the outer UDP checksum covers. A UDP checksum of zero says that there is none, and stays.

use openflow::Field;
use packet::checksum::Difference;
use packet::{ethernet, ipv6, protocol};

use super::parse::{Ip, Layout};
use super::trace::{Layer, Step, ToController};

/// Where a frame goes.
#[derive(Debug, Clone, Copy)]
pub enum Exit<'t> {
    /// To the interface with this number.
    Port(u32),
    /// To this queue of the hold port.
    Hold(u32),
    /// To nobody: it opens this queue of the hold port.
    Release(u32),
    /// To the controllers.
    Controller(&'t ToController),
}

/// What takes the frames that are sent.
pub trait Sink {
    /// Sends a frame as it is now; `is_last`: nothing is done with it afterwards.
    fn send(&mut self, exit: Exit<'_>, frame: &mut [u8], is_last: bool);
}

/// Does the steps with a frame. `layout` is that of [`super::parse::Headers`].
pub fn execute(steps: &[Step], frame: &mut [u8], layout: &Layout, sink: &mut impl Sink) {
    run(steps, frame, layout, sink, true);
}

fn run(steps: &[Step], frame: &mut [u8], layout: &Layout, sink: &mut impl Sink, is_original: bool) {
    let mut at = 0;
    while let Some(step) = steps.get(at) {
        at += 1;
        match step {
            Step::Set { layer, field, value } => set(frame, layout, *layer, *field, *value),
            Step::DecTtl(layer) => dec_ttl(frame, layout, *layer),
            Step::Output(port) => sink.send(Exit::Port(*port), frame, is_original && at == steps.len()),
            Step::Hold(queue) => sink.send(Exit::Hold(*queue), frame, is_original && at == steps.len()),
            Step::Release(queue) => sink.send(Exit::Release(*queue), frame, is_original && at == steps.len()),
            Step::Controller(to) => sink.send(Exit::Controller(to), frame, is_original && at == steps.len()),
            Step::Branch(count) => {
                let mut copy = frame.to_vec();
                run(&steps[at..at + count], &mut copy, layout, sink, false);
                at += count;
            }
        }
    }
}

/// The octets that a controller gets: the frame, or the packet in its tunnel.
pub fn for_controller<'f>(frame: &'f [u8], layout: &Layout, to: &ToController) -> &'f [u8] {
    match to.layer {
        Layer::Inner if layout.inner.version != 0 => &frame[usize::from(layout.inner.at)..],
        _ => frame,
    }
}

/// A change under way: writes octets, and keeps the differences for the checksums that cover them.
struct Change<'f> {
    frame: &'f mut [u8],
    /// For the checksums of the header's own packet.
    own: Difference,
    /// For the UDP checksum around the tunnel.
    around: Difference,
    changed: bool,
}

impl Change<'_> {
    /// Writes octets at an even distance from where the checksums begin; their number is even, too.
    fn write(&mut self, at: usize, new: &[u8]) {
        let Some(old) = self.frame.get_mut(at..at + new.len()) else { return };
        if old == new {
            return;
        }
        self.own = self.own.replaced(old, new);
        self.around = self.around.replaced(old, new);
        old.copy_from_slice(new);
        self.changed = true;
    }

    /// Writes two octets, of which only those in `mask` change.
    fn write_bits(&mut self, at: usize, value: u16, mask: u16) {
        let Some([high, low]) = self.frame.get(at..at + 2) else { return };
        let old = u16::from_be_bytes([*high, *low]);
        self.write(at, &(old & !mask | value & mask).to_be_bytes());
    }

    /// Mends a checksum inside the packet, which the checksum around covers, too.
    fn mend(&mut self, at: usize, is_udp: bool) {
        let Some([high, low]) = self.frame.get(at..at + 2) else { return };
        let old = [*high, *low];
        if is_udp && old == [0, 0] {
            return;
        }
        let new = match self.own.apply(u16::from_be_bytes(old)) {
            0 if is_udp => 0xffff,
            new => new,
        };
        let new = new.to_be_bytes();
        self.around = self.around.replaced(&old, &new);
        self.frame[at..at + 2].copy_from_slice(&new);
    }
}

/// Where the checksum of a transport header lies, whether it is one of UDP, and whether it covers the addresses.
fn checksum_of(ip: &Ip) -> Option<(usize, bool, bool)> {
    if ip.transport == 0 {
        return None;
    }
    let at = usize::from(ip.transport);
    match (ip.protocol, ip.version) {
        (protocol::TCP, _) => Some((at + 16, false, true)),
        (protocol::UDP, _) => Some((at + 6, true, true)),
        (protocol::ICMP, 4) => Some((at + 2, false, false)),
        (protocol::ICMPV6, 6) => Some((at + 2, false, true)),
        _ => None,
    }
}

/// What of a packet a field belongs to, hence which checksums cover it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The IP header without the addresses.
    Header,
    Addresses,
    Transport,
}

fn set(frame: &mut [u8], layout: &Layout, layer: Layer, field: Field, value: u128) {
    let ip = match layer {
        Layer::Outer => layout.outer,
        Layer::Inner => layout.inner,
    };
    let octets = value.to_be_bytes();
    match field {
        Field::EthDst | Field::EthSrc if layout.has_ethernet => {
            let at = if field == Field::EthDst { 0 } else { 6 };
            frame[at..at + 6].copy_from_slice(&octets[10..]);
            return;
        }
        Field::ArpOp | Field::ArpSha | Field::ArpSpa | Field::ArpTha | Field::ArpTpa => {
            return set_arp(frame, field, &octets);
        }
        Field::TunnelId => {
            if layout.gtpu != 0 {
                let mut change = change(frame);
                change.write(usize::from(layout.gtpu) + 4, &octets[12..]);
                mend_around(change, layout);
            }
            return;
        }
        _ => {}
    }
    let (at, transport) = (usize::from(ip.at), usize::from(ip.transport));
    let mut change = change(frame);
    let part = match (field, ip.version) {
        (Field::Ipv4Src | Field::Ipv4Dst, 4) => {
            change.write(at + if field == Field::Ipv4Src { 12 } else { 16 }, &octets[12..]);
            Part::Addresses
        }
        (Field::Ipv6Src | Field::Ipv6Dst, 6) => {
            change.write(at + if field == Field::Ipv6Src { 8 } else { 24 }, &octets);
            Part::Addresses
        }
        (Field::IpDscp, 4) => {
            change.write_bits(at, (value as u16) << 2, 0xfc);
            Part::Header
        }
        (Field::IpEcn, 4) => {
            change.write_bits(at, value as u16, 0x03);
            Part::Header
        }
        (Field::IpDscp, 6) => {
            change.write_bits(at, (value as u16) << 6, 0x0fc0);
            Part::Header
        }
        (Field::IpEcn, 6) => {
            change.write_bits(at, (value as u16) << 4, 0x0030);
            Part::Header
        }
        (Field::Ipv6Flabel, 6) => {
            change.write_bits(at, (value >> 16) as u16, 0x000f);
            change.write(at + 2, &octets[14..]);
            Part::Header
        }
        (Field::TcpSrc | Field::UdpSrc, 4 | 6) if transport != 0 => {
            change.write(transport, &octets[14..]);
            Part::Transport
        }
        (Field::TcpDst | Field::UdpDst, 4 | 6) if transport != 0 => {
            change.write(transport + 2, &octets[14..]);
            Part::Transport
        }
        (Field::Icmpv4Type, 4) | (Field::Icmpv6Type, 6) if transport != 0 => {
            change.write_bits(transport, (value as u16) << 8, 0xff00);
            Part::Transport
        }
        (Field::Icmpv4Code, 4) | (Field::Icmpv6Code, 6) if transport != 0 => {
            change.write_bits(transport, value as u16, 0x00ff);
            Part::Transport
        }
        _ => return,
    };
    finish(change, layout, layer, &ip, part);
}

fn change(frame: &mut [u8]) -> Change<'_> {
    Change { frame, own: Difference::default(), around: Difference::default(), changed: false }
}

/// Mends the checksums that cover a change.
fn finish(mut change: Change<'_>, layout: &Layout, layer: Layer, ip: &Ip, part: Part) {
    if !change.changed {
        return;
    }
    if ip.version == 4 && part != Part::Transport {
        change.mend(usize::from(ip.at) + 10, false);
    }
    if let Some((at, is_udp, has_addresses)) = checksum_of(ip)
        && (part == Part::Transport || part == Part::Addresses && has_addresses)
    {
        change.mend(at, is_udp);
    }
    if layer == Layer::Inner {
        mend_around(change, layout);
    }
}

/// Mends the UDP checksum around a tunnel, in which something has changed.
fn mend_around(mut change: Change<'_>, layout: &Layout) {
    if change.changed {
        change.own = change.around;
        change.mend(usize::from(layout.outer.transport) + 6, true);
    }
}

/// Counts TTL or hop limit down, of which the translation has seen that something is left.
fn dec_ttl(frame: &mut [u8], layout: &Layout, layer: Layer) {
    let ip = match layer {
        Layer::Outer => layout.outer,
        Layer::Inner => layout.inner,
    };
    let (at, shift) = match ip.version {
        4 => (usize::from(ip.at) + 8, 8),
        6 => (usize::from(ip.at) + 6, 0),
        _ => return,
    };
    let left = frame[at + usize::from(shift == 0)].saturating_sub(1);
    let mut change = change(frame);
    change.write_bits(at, u16::from(left) << shift, 0xff << shift);
    finish(change, layout, layer, &ip, Part::Header);
}

/// Writes a field of ARP (RFC 826), which has no checksum.
fn set_arp(frame: &mut [u8], field: Field, octets: &[u8; 16]) {
    let tagged = frame.get(12..14).is_some_and(|kind| kind == [0x81, 0] || kind == [0x88, 0xa8]);
    let payload = if tagged { 18 } else { 14 };
    let is_arp = frame.get(payload - 2..payload).is_some_and(|kind| kind == ethernet::ARP.to_be_bytes());
    let (at, length) = match field {
        Field::ArpOp => (6, 2),
        Field::ArpSha => (8, 6),
        Field::ArpSpa => (14, 4),
        Field::ArpTha => (18, 6),
        _ => (24, 4),
    };
    if is_arp && let Some(place) = frame.get_mut(payload + at..payload + at + length) {
        place.copy_from_slice(&octets[16 - length..]);
    }
}

const _: () = assert!(ipv6::HEADER_LEN == 40, "offsets above are those of the fixed header");
