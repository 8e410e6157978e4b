//! Frames of the experiment: G-PDUs from the base station to an anchor.

use std::net::Ipv4Addr;

use packet::ethernet::{self, Mac};
use packet::{gtpu, ipv4, protocol, transport};

/// The base station.
pub(super) const STATION: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The first anchor, and the one to which users are diverted.
pub(super) const GW1: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
pub(super) const GW2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);
/// The TEID of the first user; those of others follow.
pub(super) const FIRST_TEID: u32 = 0x1000;
pub(super) const STATION_MAC: Mac = [2, 0, 0, 0, 0, 0x0a];

/// Ethernet destination and source, and the tunnel's ends.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) macs: [Mac; 2],
    pub(super) source: Ipv4Addr,
    pub(super) destination: Ipv4Addr,
}

/// A frame with a G-PDU whose inner packet has `size` octets; the outer UDP checksum is there or 0.
pub(super) fn uplink(ends: Ends, teid: u32, size: usize, checksum: bool) -> anyhow::Result<Vec<u8>> {
    let payload = vec![0; size.saturating_sub(ipv4::HEADER_LEN + transport::UDP_HEADER_LEN)];
    let (user, server) = (Ipv4Addr::new(10, 45, 0, 2), Ipv4Addr::new(192, 0, 2, 80));
    let datagram = transport::build_udp((user.into(), 4000), (server.into(), 9), &payload)?;
    let packet = ipv4::Header::new(user, server, protocol::UDP).build(&datagram)?;
    let message = gtpu::build_gpdu(teid, None, &packet)?;
    let (from, to) = (ends.source.into(), ends.destination.into());
    let mut datagram = transport::build_udp((from, gtpu::PORT), (to, gtpu::PORT), &message)?;
    if !checksum {
        datagram[6..8].fill(0);
    }
    let packet = ipv4::Header::new(ends.source, ends.destination, protocol::UDP).build(&datagram)?;
    let [to, from] = ends.macs;
    Ok(ethernet::build(to, from, None, ethernet::IPV4, &packet))
}

/// Octets in front of a user's packet: Ethernet, IPv4, UDP, GTP-U.
pub(super) const HEADERS: usize = 50;
const IP: usize = 14;
const UDP: usize = IP + ipv4::HEADER_LEN;
const GTPU: usize = UDP + transport::UDP_HEADER_LEN;

/// The headers of the first user's packets, without lengths and with an outer UDP checksum of 0.
pub(super) fn headers(ends: Ends) -> [u8; HEADERS] {
    let mut headers = [0; HEADERS];
    headers[..6].copy_from_slice(&ends.macs[0]);
    headers[6..12].copy_from_slice(&ends.macs[1]);
    headers[12..IP].copy_from_slice(&ethernet::IPV4.to_be_bytes());
    // Not to be fragmented, 64 hops.
    headers[IP..UDP - 8].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol::UDP, 0, 0]);
    headers[UDP - 8..UDP - 4].copy_from_slice(&ends.source.octets());
    headers[UDP - 4..UDP].copy_from_slice(&ends.destination.octets());
    headers[UDP..UDP + 2].copy_from_slice(&gtpu::PORT.to_be_bytes());
    headers[UDP + 2..UDP + 4].copy_from_slice(&gtpu::PORT.to_be_bytes());
    headers[GTPU..GTPU + 2].copy_from_slice(&[0x30, gtpu::message_type::G_PDU]);
    headers[GTPU + 4..].copy_from_slice(&FIRST_TEID.to_be_bytes());
    headers
}

/// Makes headers those of a packet of so many octets.
pub(super) fn set_lengths(headers: &mut [u8], octets: usize) {
    let mut put = |at: usize, length: usize| {
        headers[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
    };
    put(IP + 2, HEADERS - IP + octets);
    put(UDP + 4, HEADERS - UDP + octets);
    put(GTPU + 2, octets);
    headers[IP + 10..IP + 12].fill(0);
    let checksum = packet::checksum::checksum(&headers[IP..UDP]);
    headers[IP + 10..IP + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// The length of the user's packet in a frame; an error if it came to another address, or by another tunnel. `None`: no GTP-U.
pub(super) fn user_packet(frame: &[u8], own: [u8; 4], teid: u32) -> Option<Result<usize, ()>> {
    let is_gtpu = frame.len() > HEADERS
        && frame[12..IP] == ethernet::IPV4.to_be_bytes()
        && frame[IP] == 0x45
        && frame[IP + 9] == protocol::UDP
        && frame[UDP + 2..UDP + 4] == gtpu::PORT.to_be_bytes();
    if !is_gtpu {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([frame[GTPU + 2], frame[GTPU + 3]]));
    let is_right = frame[UDP - 4..UDP] == own
        && frame[GTPU..GTPU + 2] == [0x30, gtpu::message_type::G_PDU]
        && frame[GTPU + 4..HEADERS] == teid.to_be_bytes()
        && HEADERS + length <= frame.len();
    Some(if is_right { Ok(length) } else { Err(()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_a_built_packet() {
        let ends = Ends { macs: [[2; 6], [4; 6]], source: STATION, destination: GW1 };
        let built = uplink(ends, FIRST_TEID, 64, false).unwrap();
        let mut headers = headers(ends);
        set_lengths(&mut headers, 64);
        let of_ip = ipv4::Packet::new(&headers[IP..]).map(|packet| (packet.source(), packet.destination()));
        assert!(of_ip.is_err(), "cut off behind the headers");
        let whole = [&headers[..], &built[HEADERS..]].concat();
        let packet = ipv4::Packet::new(&whole[IP..]).unwrap();
        assert_eq!((packet.source(), packet.destination()), (STATION, GW1));
        // The ways to build them may differ in the flag against fragments only.
        let differ = (0..HEADERS).filter(|at| headers[*at] != built[*at]);
        assert!(differ.into_iter().all(|at| [20, 24, 25].contains(&at)), "{headers:x?} {built:x?}");
        assert_eq!(packet::checksum::checksum(&headers[IP..UDP]), 0);
    }

    #[test]
    fn only_packets_of_the_tunnel_are_taken_off() {
        let ends = Ends { macs: [[2; 6], [4; 6]], source: STATION, destination: GW1 };
        let built = uplink(ends, FIRST_TEID, 64, true).unwrap();
        assert_eq!(user_packet(&built, GW1.octets(), FIRST_TEID), Some(Ok(64)));
        assert_eq!(user_packet(&built, GW2.octets(), FIRST_TEID), Some(Err(())));
        assert_eq!(user_packet(&built, GW1.octets(), FIRST_TEID + 1), Some(Err(())));
        assert_eq!(user_packet(&built[..built.len() - 1], GW1.octets(), FIRST_TEID), Some(Err(())));
        assert_eq!(user_packet(&[0; 64], GW1.octets(), FIRST_TEID), None);
    }
}
