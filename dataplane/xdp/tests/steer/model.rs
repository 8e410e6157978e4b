//! What the steering program should do, written again: frames as slices, entries in a map, checksums word by word.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use xdp::steer::{Action, Change, Counters, Entry, Forward, Inner, Inside, Key, Passed, Tunnel};

/// What becomes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Sent to an interface.
    Sent(u32),
    Dropped,
    Passed(Passed),
}

#[derive(Default)]
pub struct Model {
    pub anchors: Vec<IpAddr>,
    pub entries: HashMap<Key, Entry>,
    pub counters: HashMap<Key, Counters>,
}

/// Where things are in a frame.
struct Outer {
    ip: usize,
    udp: usize,
    gtp: usize,
    /// Behind the GTP-U message.
    end: usize,
    source: IpAddr,
    destination: IpAddr,
}

struct InnerPacket {
    at: usize,
    ipv6: bool,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    upper: usize,
    end: usize,
    fragment: bool,
    later: bool,
    hidden: bool,
}

fn u16_at(frame: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]))
}

fn ipv4_at(frame: &[u8], at: usize) -> IpAddr {
    Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap()).into()
}

fn ipv6_at(frame: &[u8], at: usize) -> IpAddr {
    Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap()).into()
}

fn outer(frame: &[u8]) -> Result<Outer, Passed> {
    if frame.len() < 14 + 20 + 16 {
        return Err(Passed::Other);
    }
    let (udp, udp_length, source, destination);
    match u16_at(frame, 12) {
        0x0800 => {
            if frame[14] != 0x45 || frame[23] != 17 {
                return Err(Passed::Other);
            }
            if u16_at(frame, 20) & 0x3FFF != 0 {
                return Err(Passed::Fragment);
            }
            udp = 34;
            if u16_at(frame, udp + 2) != 2152 {
                return Err(Passed::Other);
            }
            let total = u16_at(frame, 16);
            if total < 20 || 14 + total > frame.len() {
                return Err(Passed::Malformed);
            }
            udp_length = total - 20;
            (source, destination) = (ipv4_at(frame, 26), ipv4_at(frame, 30));
        }
        0x86DD => {
            if frame[14] >> 4 != 6 || frame[20] != 17 || frame.len() < 14 + 40 + 16 {
                return Err(Passed::Other);
            }
            udp = 54;
            if u16_at(frame, udp + 2) != 2152 {
                return Err(Passed::Other);
            }
            udp_length = u16_at(frame, 18);
            if 54 + udp_length > frame.len() {
                return Err(Passed::Malformed);
            }
            (source, destination) = (ipv6_at(frame, 22), ipv6_at(frame, 38));
        }
        _ => return Err(Passed::Other),
    }
    let gtp = udp + 8;
    if udp_length < 16 || u16_at(frame, udp + 4) != udp_length {
        return Err(Passed::Malformed);
    }
    let length = u16_at(frame, gtp + 2);
    if frame[gtp] >> 4 != 3 || length + 16 != udp_length || (frame[gtp] & 7 != 0 && length < 4) {
        return Err(Passed::Malformed);
    }
    Ok(Outer { ip: 14, udp, gtp, end: gtp + 8 + length, source, destination })
}

fn inner(frame: &[u8], outer: &Outer) -> Option<InnerPacket> {
    let mut at = outer.gtp + 8;
    if frame[outer.gtp] & 7 != 0 {
        at += 4;
        let mut next = if frame[outer.gtp] & 4 != 0 { frame[at - 1] } else { 0 };
        let mut count = 0;
        while next != 0 {
            count += 1;
            let length = 4 * usize::from(*frame.get(at)?);
            if count > 8 || length == 0 || at + length > outer.end {
                return None;
            }
            at += length;
            next = frame[at - 1];
        }
    }
    let packet = frame.get(at..outer.end)?;
    let ipv6 = packet.first()? >> 4 == 6;
    let (header, total, protocol, fragment, later);
    let (source, destination);
    if ipv6 {
        if packet.len() < 40 {
            return None;
        }
        total = 40 + u16_at(packet, 4);
        if packet[6] == 44 {
            let more = frame.get(at + 40..at + 48)?;
            (header, protocol) = (48, more[0]);
            (fragment, later) = (true, u16_at(more, 2) & 0xFFF8 != 0);
        } else {
            (header, protocol) = (40, packet[6]);
            (fragment, later) = (false, false);
        }
        (source, destination) = (ipv6_at(packet, 8), ipv6_at(packet, 24));
    } else {
        if packet[0] >> 4 != 4 || packet.len() < 20 || packet[0] & 15 < 5 {
            return None;
        }
        header = usize::from(packet[0] & 15) * 4;
        total = u16_at(packet, 2);
        protocol = packet[9];
        (fragment, later) = (u16_at(packet, 6) & 0x3FFF != 0, u16_at(packet, 6) & 0x1FFF != 0);
        (source, destination) = (ipv4_at(packet, 12), ipv4_at(packet, 16));
    }
    let hidden = ipv6 && ![6, 17, 58, 132, 50, 59].contains(&protocol);
    if total < header || total > packet.len() {
        return None;
    }
    Some(InnerPacket {
        at,
        ipv6,
        source,
        destination,
        protocol,
        upper: at + header,
        end: at + total,
        fragment,
        later,
        hidden,
    })
}

/// A checksum after words of the sum have changed, one by one (RFC 1624, equation 3).
fn mended(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let mut sum = u32::from(!checksum);
    for (old, new) in old.chunks(2).zip(new.chunks(2)) {
        for word in [!u16::from_be_bytes([old[0], old[1]]), u16::from_be_bytes([new[0], new[1]])] {
            sum += u32::from(word);
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
    }
    !(sum as u16)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Mends the checksum at `at` for what differs between two frames in these ranges.
fn mend(frame: &mut [u8], before: &[u8], at: usize, ranges: &[std::ops::Range<usize>], zero_is_none: bool) {
    let mut checksum = u16::from_be_bytes([frame[at], frame[at + 1]]);
    if checksum == 0 && zero_is_none {
        return;
    }
    for range in ranges.iter().filter(|range| before[(*range).clone()] != frame[(*range).clone()]) {
        checksum = mended(checksum, &before[range.clone()], &frame[range.clone()]);
    }
    if checksum == 0 && zero_is_none {
        checksum = 0xFFFF;
    }
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

impl Model {
    pub fn change(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Set(key, entry) => {
                    if self.entries.insert(*key, *entry).is_none() {
                        self.counters.insert(*key, Counters::default());
                    }
                }
                Change::Remove(key) => {
                    self.entries.remove(key);
                    self.counters.remove(key);
                }
            }
        }
    }

    /// Handles a frame from an interface, in place.
    pub fn turn(&mut self, interface: u32, frame: &mut [u8]) -> Outcome {
        self.steer(interface, frame).unwrap_or_else(Outcome::Passed)
    }

    fn steer(&mut self, interface: u32, frame: &mut [u8]) -> Result<Outcome, Passed> {
        let outer = outer(frame)?;
        let kind = frame[outer.gtp + 1];
        if kind < 254 {
            return Err(Passed::Signalling);
        }
        let teid = u32::from_be_bytes(frame[outer.gtp + 4..outer.gtp + 8].try_into().unwrap());
        let tunnel = Tunnel { destination: outer.destination, teid };
        let mut key = Key::Tunnel(tunnel);
        let known = self.anchors.contains(&outer.destination) && self.entries.contains_key(&key);
        if !known {
            if kind != 255 {
                return Err(Passed::Signalling);
            }
            let (destination, source) = (frame[..6].try_into().unwrap(), frame[6..12].try_into().unwrap());
            key = Key::Frame { source: Some(source), destination };
            if !self.entries.contains_key(&key) {
                key = Key::Frame { source: None, destination };
            }
            let entry = *self.entries.get(&key).ok_or(Passed::NoEntry)?;
            return self.carry_out(interface, frame, &outer, key, entry);
        }
        let insides: Vec<Inside> = self
            .entries
            .keys()
            .filter_map(|key| match key {
                Key::Inside(of, inside) if *of == tunnel => Some(*inside),
                _ => None,
            })
            .collect();
        if kind == 254 {
            let entry = self.entries[&key];
            let wants = matches!(entry.action, Action::Forward(Forward { end_markers: true, .. }));
            if !wants || !insides.is_empty() {
                return Err(Passed::Signalling);
            }
        } else if !insides.is_empty()
            && let Some(inside) = look_inside(frame, &outer, &insides)?
        {
            key = Key::Inside(tunnel, inside);
        }
        let entry = self.entries[&key];
        self.carry_out(interface, frame, &outer, key, entry)
    }

    fn carry_out(
        &mut self,
        interface: u32,
        frame: &mut [u8],
        outer: &Outer,
        key: Key,
        entry: Entry,
    ) -> Result<Outcome, Passed> {
        let forward = match entry.action {
            Action::Forward(forward) => Some(forward),
            _ => None,
        };
        let rewrite = forward.and_then(|forward| forward.inner).filter(|_| frame[outer.gtp + 1] == 255);
        let inner = match rewrite {
            Some(rewrite) => Some((rewrite, can_rewrite(frame, outer, rewrite).ok_or(Passed::Inner)?)),
            None => None,
        };
        let only = entry.only;
        let differs = only.interface.is_some_and(|only| only != interface)
            || only.source.is_some_and(|only| only != outer.source)
            || only.eth_destination.is_some_and(|only| only != frame[..6])
            || only.eth_source.is_some_and(|only| only != frame[6..12]);
        if differs {
            return Err(Passed::Guard);
        }
        if entry.action == Action::Host {
            return Err(Passed::Host);
        }
        let counters = self.counters.get_mut(&key).unwrap();
        let Some(forward) = forward else {
            counters.packets += 1;
            counters.octets += frame.len() as u64;
            return Ok(Outcome::Dropped);
        };
        let addresses = [forward.destination, forward.source];
        if addresses.iter().flatten().any(|new| new.is_ipv6() != outer.destination.is_ipv6()) {
            return Err(Passed::Guard);
        }
        counters.packets += 1;
        counters.octets += frame.len() as u64;
        write(frame, outer, &forward, inner);
        Ok(Outcome::Sent(forward.interface))
    }
}

/// Which of the entries for inner fields is that of the packet.
fn look_inside(frame: &[u8], outer: &Outer, insides: &[Inside]) -> Result<Option<Inside>, Passed> {
    let inner = inner(frame, outer).ok_or(Passed::Inner)?;
    let set = |inside: &Inside| match inside {
        Inside::Flow(..) => 0,
        Inside::Service(..) => 1,
        Inside::Client(..) => 2,
        Inside::Destination(_) => 3,
        Inside::Source(_) => 4,
        Inside::Family(_) => 5,
    };
    for wanted in 0..6 {
        if !insides.iter().any(|inside| set(inside) == wanted) {
            continue;
        }
        let mut ports = (0, 0);
        if wanted < 3 {
            if inner.fragment || inner.hidden {
                return Err(Passed::Inner);
            }
            if [6, 17, 132].contains(&inner.protocol) {
                if inner.end - inner.upper < 4 {
                    return Err(Passed::Inner);
                }
                ports = (u16_at(frame, inner.upper) as u16, u16_at(frame, inner.upper + 2) as u16);
            }
        }
        let (source, destination) = (inner.source, inner.destination);
        let looked = match wanted {
            0 => Inside::Flow(inner.protocol, (source, ports.0), (destination, ports.1)),
            1 => Inside::Service(inner.protocol, destination, ports.1),
            2 => Inside::Client(inner.protocol, source, ports.0),
            3 => Inside::Destination(destination),
            4 => Inside::Source(source),
            _ => Inside::Family(inner.ipv6),
        };
        if insides.contains(&looked) {
            return Ok(Some(looked));
        }
    }
    Ok(None)
}

/// The inner packet, and where its upper checksum is, if it has one, when its address can be replaced.
fn can_rewrite(frame: &[u8], outer: &Outer, rewrite: Inner) -> Option<(InnerPacket, Option<usize>)> {
    let inner = inner(frame, outer)?;
    let (Inner::Source(new) | Inner::Destination(new)) = rewrite;
    if new.is_ipv6() != inner.ipv6 || inner.hidden {
        return None;
    }
    let offset = match inner.protocol {
        6 => Some(16),
        17 => Some(6),
        58 if inner.ipv6 => Some(2),
        1 | 4 | 41 | 47 | 50 | 132 | 59 => None,
        _ => return None,
    };
    let at = offset.filter(|_| !inner.later).map(|offset| inner.upper + offset);
    let least = if inner.protocol == 6 { 20 } else { offset.unwrap_or(0) + 2 };
    if at.is_some() && inner.upper + least > inner.end {
        return None;
    }
    Some((inner, at))
}

fn write(
    frame: &mut [u8],
    outer: &Outer,
    forward: &Forward,
    inner: Option<(Inner, (InnerPacket, Option<usize>))>,
) {
    let before = frame.to_vec();
    let ipv6 = outer.destination.is_ipv6();
    let (source, destination) = if ipv6 { (22..38, 38..54) } else { (26..30, 30..34) };
    if let Some(new) = forward.destination {
        frame[destination.clone()].copy_from_slice(&octets(new));
    }
    if let Some(new) = forward.source {
        frame[source.clone()].copy_from_slice(&octets(new));
    }
    let addresses = [source, destination];
    if !ipv6 {
        mend(frame, &before, outer.ip + 10, &addresses, false);
    }
    if let Some(teid) = forward.teid {
        frame[outer.gtp + 4..outer.gtp + 8].copy_from_slice(&teid.to_be_bytes());
    }
    if let Some((rewrite, (inner, checksum))) = inner {
        let (offset, new) = match (rewrite, inner.ipv6) {
            (Inner::Source(new), false) => (12, new),
            (Inner::Destination(new), false) => (16, new),
            (Inner::Source(new), true) => (8, new),
            (Inner::Destination(new), true) => (24, new),
        };
        let new = octets(new);
        let range = inner.at + offset..inner.at + offset + new.len();
        frame[range.clone()].copy_from_slice(&new);
        if !inner.ipv6 {
            mend(frame, &before, inner.at + 10, std::slice::from_ref(&range), false);
        }
        if let Some(at) = checksum {
            mend(frame, &before, at, &[range], inner.protocol == 17);
        }
    }
    let whole = outer.gtp..outer.end & !1;
    let [source, destination] = addresses;
    mend(frame, &before, outer.udp + 6, &[source, destination, whole], true);
    if let Some(new) = forward.eth_destination {
        frame[..6].copy_from_slice(&new);
    }
    if let Some(new) = forward.eth_source {
        frame[6..12].copy_from_slice(&new);
    }
}
