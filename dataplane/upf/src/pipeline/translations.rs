//! Redirection to an address (TS 29.244 §8.2.20): replaces destinations of uplink packets, and sources of
//! downlink packets.
//!
//! A UE's packets go to another server than the UE believes, and that server's answers must seem to come from
//! the address to which the UE sent. Different workers handle uplink and downlink, so they share a table of a
//! fixed number of entries, one per flow, which all read and write without a lock. An entry is three words. The
//! first is the flow's hash XORed with the two others, so that a reader ignores an entry that is half written
//! or belongs to another flow.
//!
//! A flow is identified by network instance, the UE's address and port, server and protocol. If a UE sends from one port to two
//! destinations that are redirected to the same server, the answers cannot be told apart: the later destination
//! wins. If two flows share one entry, the later flow wins as well; answers to the other keep the server's
//! address until its UE sends again.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use packet::checksum::Difference;
use packet::flow::Flow;
use packet::{ipv6, protocol};
use telemetry::DropReason;

/// Number of entries of a table: 1.5 MB, enough for the flows of some thousand UEs.
pub const ENTRIES: usize = 1 << 16;

#[derive(Debug, Default)]
struct Entry {
    /// The flow's hash XORed with the two other words.
    check: AtomicU64,
    high: AtomicU64,
    low: AtomicU64,
}

/// The address of a packet that is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AddressField {
    Source,
    Destination,
}

/// Flows that are redirected to an address.
#[derive(Debug)]
pub struct Translations {
    /// Allocated with the first flow.
    entries: OnceLock<Box<[Entry]>>,
    size: usize,
    /// Prevents UEs from choosing which flows share an entry.
    secret: u64,
}

impl Translations {
    /// A table for `entries` flows, rounded up to a power of two.
    pub fn new(entries: usize) -> Translations {
        let secret = RandomState::new().hash_one(entries);
        Translations { entries: OnceLock::new(), size: entries.next_power_of_two(), secret }
    }

    /// Whether no flow has ever been redirected.
    pub fn is_empty(&self) -> bool {
        self.entries.get().is_none()
    }

    /// A secret number of this process.
    pub fn secret(&self) -> u64 {
        self.secret
    }

    /// Sends an uplink packet to `server` instead of its destination. The destination is remembered for the answer, if
    /// that comes from a network, in whose instance its UE is looked up. Checksums stay valid. Later fragments, which have
    /// no ports, and packets of another IP version than the server's are refused.
    pub fn outbound(
        &self,
        packet: &mut [u8],
        server: IpAddr,
        instance: Option<u8>,
    ) -> Result<(), DropReason> {
        let flow = Flow::parse(packet).map_err(|_| DropReason::IpMalformed)?;
        if flow.destination.is_ipv4() != server.is_ipv4() {
            return Err(DropReason::FarDrop);
        }
        let port = ue_port(packet, &flow, AddressField::Source).ok_or(DropReason::NoTranslation)?;
        if let Some(instance) = instance {
            self.remember(self.hash((flow.source, instance), port, server, flow.protocol), flow.destination);
        }
        replace(packet, &flow, AddressField::Destination, server);
        Ok(())
    }

    /// Gives a downlink packet of a redirected flow the source to which its UE sent; returns whether it did so.
    /// Later fragments keep the server's address.
    pub fn inbound(&self, packet: &mut [u8], instance: u8) -> bool {
        let Some(flow) = Flow::parse(packet).ok().filter(|_| !self.is_empty()) else { return false };
        let Some(port) = ue_port(packet, &flow, AddressField::Destination) else { return false };
        let hash = self.hash((flow.destination, instance), port, flow.source, flow.protocol);
        let Some(original) = self.recall(hash, flow.source.is_ipv4()) else { return false };
        replace(packet, &flow, AddressField::Source, original);
        true
    }

    fn hash(&self, ue: (IpAddr, u8), port: u16, server: IpAddr, protocol: u8) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.secret, ue, port, server, protocol).hash(&mut hasher);
        // Never zero, because zero marks an entry that was never written.
        hasher.finish() | 1 << 63
    }

    fn entry(&self, hash: u64) -> &Entry {
        let make = || (0..self.size).map(|_| Entry::default()).collect();
        &self.entries.get_or_init(make)[hash as usize & (self.size - 1)]
    }

    fn remember(&self, hash: u64, original: IpAddr) {
        let bits = match original {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits(),
        };
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        let (entry, check) = (self.entry(hash), hash ^ high ^ low);
        // Mostly the flow is in its entry already; not writing lets workers share the cache line.
        if entry.check.load(Relaxed) == check && entry.high.load(Relaxed) == high {
            return;
        }
        entry.high.store(high, Relaxed);
        entry.low.store(low, Relaxed);
        entry.check.store(check, Relaxed);
    }

    fn recall(&self, hash: u64, v4: bool) -> Option<IpAddr> {
        let entry = self.entry(hash);
        let (high, low) = (entry.high.load(Relaxed), entry.low.load(Relaxed));
        if entry.check.load(Relaxed) ^ high ^ low != hash {
            return None;
        }
        let address = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        // The IP version must match: the new address must have the length of the old one.
        match address.to_ipv4_mapped() {
            Some(address) if v4 => Some(IpAddr::V4(address)),
            None if !v4 => Some(IpAddr::V6(address)),
            _ => None,
        }
    }
}

/// What distinguishes the flows of a UE: its port, or the identifier of an echo. `None` for later fragments.
fn ue_port(packet: &[u8], flow: &Flow, ue: AddressField) -> Option<u16> {
    match flow.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => {
            let (source, destination) = flow.ports?;
            Some(if ue == AddressField::Source { source } else { destination })
        }
        protocol::ICMP | protocol::ICMPV6 => {
            let echo = packet.get(upper(packet, flow)? + 4..)?;
            Some(u16::from_be_bytes([*echo.first()?, *echo.get(1)?]))
        }
        // Other protocols: one flow per UE, server and protocol.
        _ => upper(packet, flow).map(|_| 0),
    }
}

/// Offset of the transport header; `None` in later fragments.
fn upper(packet: &[u8], flow: &Flow) -> Option<usize> {
    match flow.source {
        IpAddr::V4(_) => {
            let later = packet[6] & 0x1F != 0 || packet[7] != 0;
            (!later).then_some(usize::from(packet[0] & 0x0F) * 4)
        }
        IpAddr::V6(_) => {
            let upper = ipv6::Packet::new(packet).ok()?.upper().ok()?;
            (upper.fragment.unwrap_or(0) == 0).then_some(upper.offset)
        }
    }
}

/// Replaces an address of the packet by one of the same IP version, and corrects the checksums that cover it.
fn replace(packet: &mut [u8], flow: &Flow, which: AddressField, with: IpAddr) {
    let upper = upper(packet, flow);
    let mut old = [0; 16];
    let difference = match with {
        IpAddr::V4(address) => {
            let at = if which == AddressField::Source { 12 } else { 16 };
            let difference = exchange(&mut packet[at..at + 4], &mut old[..4], &Ipv4Addr::octets(&address));
            difference.apply_at(packet, 10);
            difference
        }
        IpAddr::V6(address) => {
            let at = if which == AddressField::Source { 8 } else { 24 };
            exchange(&mut packet[at..at + 16], &mut old, &address.octets())
        }
    };
    let Some(upper) = upper else { return };
    match flow.protocol {
        protocol::TCP => difference.apply_at(&mut packet[..flow.length], upper + 16),
        protocol::ICMPV6 => difference.apply_at(&mut packet[..flow.length], upper + 2),
        protocol::UDP => {
            let Some(field) = packet[..flow.length].get_mut(upper + 6..upper + 8) else { return };
            // A UDP checksum of zero means that there is none (RFC 768), so a sum of zero is written as 0xFFFF.
            if *field != [0, 0] {
                difference.apply_at(field, 0);
                if *field == [0, 0] {
                    field.fill(0xFF);
                }
            }
        }
        // The checksums of SCTP and ICMP do not cover addresses.
        _ => {}
    }
}

fn exchange(place: &mut [u8], old: &mut [u8], new: &[u8]) -> Difference {
    old.copy_from_slice(place);
    place.copy_from_slice(new);
    Difference::default().replaced(old, new)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use packet::checksum::Sum;
    use packet::transport::{Tcp, Udp, build_udp};
    use packet::{icmp, ipv4};

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn ip(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ipv4::Header::new(from, to, protocol).build(payload).unwrap()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ipv6::Header::new(from, to, protocol).build(payload).unwrap()
            }
            _ => unreachable!(),
        }
    }

    fn payload(from: IpAddr, to: IpAddr, protocol: u8, ports: (u16, u16)) -> Vec<u8> {
        match protocol {
            protocol::UDP => build_udp((from, ports.0), (to, ports.1), b"question").unwrap(),
            protocol::TCP => {
                let mut tcp = vec![0; 23];
                tcp[0..2].copy_from_slice(&ports.0.to_be_bytes());
                tcp[2..4].copy_from_slice(&ports.1.to_be_bytes());
                tcp[12] = 0x50;
                let sum = Sum::default().pseudo_header(from, to, 6, tcp.len()).octets(&tcp).finish();
                tcp[16..18].copy_from_slice(&sum.to_be_bytes());
                tcp
            }
            _ => {
                let kind = if from.is_ipv4() { 8 } else { 128 };
                icmp::build_echo(from, to, kind, 77, 1, b"ping")
            }
        }
    }

    fn checksums_ok(packet: &[u8]) -> bool {
        let flow = Flow::parse(packet).unwrap();
        let header = if flow.source.is_ipv4() { 20 } else { 40 };
        let ip = flow.source.is_ipv6() || ipv4::Packet::new(packet).unwrap().checksum_ok();
        let (from, to, rest) = (flow.source, flow.destination, &packet[header..]);
        ip && match flow.protocol {
            protocol::UDP => Udp::new(rest).unwrap().checksum_ok(from, to),
            protocol::TCP => Tcp::new(rest).unwrap().checksum_ok(from, to),
            _ => icmp::Message::new(rest).unwrap().checksum_ok(from, to),
        }
    }

    #[test]
    fn answers_seem_to_come_from_where_the_ue_sent_to() {
        let table = Translations::new(64);
        for (ue, wanted, server) in
            [("10.45.0.2", "192.0.2.1", "198.51.100.7"), ("fd00:45::2", "2001:db8::1", "2001:db8:ffff::7")]
        {
            let (ue, wanted, server) = (address(ue), address(wanted), address(server));
            for protocol in [protocol::UDP, protocol::TCP, if ue.is_ipv4() { 1 } else { 58 }] {
                let mut up = ip(ue, wanted, protocol, &payload(ue, wanted, protocol, (4000, 53)));
                assert_eq!(table.outbound(&mut up, server, Some(0)), Ok(()));
                assert_eq!(
                    up,
                    ip(ue, server, protocol, &payload(ue, server, protocol, (4000, 53))),
                    "{protocol}"
                );
                assert!(checksums_ok(&up));
                let mut down = ip(server, ue, protocol, &payload(server, ue, protocol, (53, 4000)));
                assert!(table.inbound(&mut down, 0));
                assert_eq!(Flow::parse(&down).unwrap().source, wanted);
                assert!(checksums_ok(&down));
                // Another UE's traffic with the same server is not affected.
                let other = address(if ue.is_ipv4() { "10.45.0.3" } else { "fd00:45::3" });
                let mut foreign = ip(server, other, protocol, &payload(server, other, protocol, (53, 4000)));
                let before = foreign.clone();
                assert!(!table.inbound(&mut foreign, 0));
                assert_eq!(foreign, before);
            }
        }
    }

    #[test]
    fn udp_without_checksum_stays_without() {
        let table = Translations::new(1);
        let (ue, wanted) = (address("10.45.0.2"), address("192.0.2.1"));
        let mut datagram = payload(ue, wanted, protocol::UDP, (1, 2));
        datagram[6..8].fill(0);
        let mut packet = ip(ue, wanted, protocol::UDP, &datagram);
        assert_eq!(table.outbound(&mut packet, address("198.51.100.7"), Some(0)), Ok(()));
        assert_eq!(packet[26..28], [0, 0]);
    }

    #[test]
    fn what_names_no_flow_is_refused() {
        let table = Translations::new(64);
        let (ue, wanted, server) = (address("10.45.0.2"), address("192.0.2.1"), address("198.51.100.7"));
        let mut later = ip(ue, wanted, protocol::UDP, &[0; 40]);
        later[7] = 5;
        for protocol in [protocol::UDP, protocol::ICMP, 99] {
            later[9] = protocol;
            let before = later.clone();
            assert_eq!(table.outbound(&mut later, server, Some(0)), Err(DropReason::NoTranslation));
            assert!(!table.inbound(&mut later, 0) && later == before);
        }
        let mut packet = ip(ue, wanted, protocol::UDP, &payload(ue, wanted, protocol::UDP, (1, 2)));
        assert_eq!(table.outbound(&mut packet, address("::1"), Some(0)), Err(DropReason::FarDrop));
        for length in 0..packet.len() {
            assert_eq!(table.outbound(&mut packet[..length], server, Some(0)), Err(DropReason::IpMalformed));
        }
        // Any other protocol is one flow; a short ICMP message has no identifier.
        let mut other = ip(ue, wanted, 99, &[]);
        assert_eq!(table.outbound(&mut other, server, Some(0)), Ok(()));
        let mut short = ip(ue, wanted, protocol::ICMP, &[8, 0, 0, 0]);
        assert_eq!(table.outbound(&mut short, server, Some(0)), Err(DropReason::NoTranslation));
    }

    /// Two flows compete for the only entry: a reader sees one, the other or none, never a mixture.
    #[test]
    fn half_written_entries_are_taken_for_absent() {
        let table = Arc::new(Translations::new(1));
        let stop = Arc::new(AtomicBool::new(false));
        let destinations = [address("2001:db8:1:1:1:1:1:1"), address("fd00:2:2:2:2:2:2:2")];
        let hashes = [1 << 63 | 0x1111, 1 << 63 | 0x2222];
        let writer = {
            let (table, stop) = (Arc::clone(&table), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    for (hash, destination) in hashes.iter().zip(destinations) {
                        table.remember(*hash, destination);
                    }
                }
            })
        };
        for n in 0..200_000 {
            let found = table.recall(hashes[n & 1], false);
            assert!(found.is_none_or(|found| found == destinations[n & 1]), "{found:?}");
        }
        stop.store(true, Relaxed);
        writer.join().unwrap();
    }
}
