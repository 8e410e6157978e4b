//! Super-packets: whatever a header of virtio says, and whatever packets follow each other, nothing panics, no frame is
//! longer than it may be, and cutting what was joined gives the same packets.
//!
//! An input of `offload-cut` is a header and a packet. One of `offload-join` is packets, each behind its length in two
//! octets; the bit above the length says that the checksums of the packet are to be mended, as the mutator cannot.

use packet::flow::Flow;
use packet::{ipv4, protocol, transport};
use pktio::offload::cut::{Cut, complete_checksum};
use pktio::offload::join::{HEADER, Run};
use pktio::offload::{GSO_TCPV4, GSO_UDP_L4, NEEDS_CSUM, VNET_HEADER, VnetHeader};

/// Most frames of an input that are looked at; with a segment of one octet there are as many as octets.
const FRAMES: usize = 256;
/// The bit of a packet's length that says to mend its checksums.
const MEND: u16 = 0x8000;

/// Cuts a packet as its header says.
pub fn cut(data: &[u8]) {
    let Some((vnet, packet)) = data.split_first_chunk::<VNET_HEADER>() else { return };
    let vnet = VnetHeader::from_bytes(*vnet);
    let mut completed = packet.to_vec();
    let _ = complete_checksum(&vnet, &mut completed);
    let Ok(cut) = Cut::new(&vnet, packet) else { return };
    let mut frame = vec![0; cut.longest()];
    let mut payload = 0;
    for number in 0..cut.frames().min(FRAMES) {
        let length = cut.write(packet, number, &mut frame).expect("there is such a frame");
        assert!(length <= cut.longest());
        match Flow::parse(&frame[..length]) {
            Ok(flow) => assert_eq!(flow.length, length),
            // There may be more extension headers than a flow is looked for behind.
            Err(_) => assert!(packet[0] >> 4 == 6 && vnet.csum_start > 40, "what is cut is a packet"),
        }
        payload += length;
    }
    assert!(cut.frames() > FRAMES || payload >= packet.len(), "no octet is lost");
    assert_eq!(cut.write(packet, cut.frames(), &mut frame), None);
}

/// Joins packets as a port does, and cuts what was joined.
pub fn join(data: &[u8]) {
    let (mut rest, mut packets) = (data, Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = u16::from_be_bytes(*length);
        let (packet, behind) = behind.split_at(behind.len().min(usize::from(length & !MEND)));
        let mut packet = packet.to_vec();
        if length & MEND != 0 {
            mend(&mut packet);
        }
        packets.push(packet);
        rest = behind;
    }
    let mut at = 0;
    while let Some(first) = packets.get(at) {
        let mut run = Run::begin(first);
        if let Some(run) = &mut run {
            while packets.get(at + run.packets()).is_some_and(|next| run.takes(first, next)) {}
        }
        let count = run.map_or(1, |run| run.packets());
        if let Some(run) = run.filter(|run| run.packets() > 1) {
            check(&run, &packets[at..at + count]);
        }
        at += count;
    }
}

/// Whether cutting the packets of a run, joined, gives them again.
fn check(run: &Run, packets: &[Vec<u8>]) {
    let mut header = [0; HEADER];
    let vnet = run.write_header(&packets[0], &mut header);
    let mut joined = header[..run.header_len()].to_vec();
    packets.iter().for_each(|packet| joined.extend(&packet[run.header_len()..]));
    let cut = Cut::new(&vnet, &joined).expect("what is joined is a super-packet");
    assert_eq!(cut.frames(), packets.len());
    for (number, packet) in packets.iter().enumerate() {
        let mut frame = vec![0; packet.len()];
        assert_eq!(cut.write(&joined, number, &mut frame), Some(packet.len()));
        let (mut frame, mut packet) = (frame, packet.clone());
        // Two forms of the same checksum, and the identification of a packet that must not be fragmented.
        for octets in [&mut frame, &mut packet] {
            if octets[0] >> 4 == 4 {
                octets[4..6].fill(0);
            }
            mend(octets);
        }
        assert_eq!(frame, packet);
    }
}

/// Writes right checksums into a packet, if it is one.
fn mend(packet: &mut [u8]) {
    let Ok(flow) = Flow::parse(packet) else { return };
    if flow.length != packet.len() {
        return;
    }
    let start = if flow.source.is_ipv4() {
        let header = usize::from(packet[0] & 0x0F) * 4;
        packet[10..12].fill(0);
        let checksum = packet::checksum::checksum(&packet[..header]);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    } else {
        40
    };
    let at = start + if flow.protocol == protocol::UDP { 6 } else { 16 };
    if !matches!(flow.protocol, protocol::TCP | protocol::UDP) || at + 2 > packet.len() {
        return;
    }
    packet[at..at + 2].fill(0);
    let sum = packet::checksum::Sum::default()
        .pseudo_header(flow.source, flow.destination, flow.protocol, packet.len() - start)
        .octets(&packet[start..])
        .finish();
    packet[at..at + 2].copy_from_slice(&(if sum == 0 { 0xFFFF } else { sum }).to_be_bytes());
}

/// A packet with `payload` octets from place `from` of a flow.
fn packet(is_udp: bool, from: u32, payload: usize) -> Vec<u8> {
    let (source, destination) = ([10, 45, 0, 1].into(), [10, 201, 0, 2].into());
    let payload = vec![7; payload];
    let (transport, content) = if is_udp {
        let datagram = transport::build_udp((source, 80), (destination, 5000), &payload);
        (protocol::UDP, datagram.unwrap_or_default())
    } else {
        let mut segment = vec![0, 80, 0x13, 0x88];
        segment.extend(from.to_be_bytes());
        segment.extend([1, 2, 3, 4, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        segment.extend(&payload);
        (protocol::TCP, segment)
    };
    let header = match (source, destination) {
        (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
            ipv4::Header::new(source, destination, transport)
        }
        _ => return Vec::new(),
    };
    let mut packet = header.build(&content).unwrap_or_default();
    mend(&mut packet);
    packet
}

/// Super-packets with the headers that the kernel gives them.
pub fn cut_seeds() -> Vec<Vec<u8>> {
    [(false, GSO_TCPV4, 16), (true, GSO_UDP_L4, 6)]
        .map(|(is_udp, gso_type, csum_offset)| {
            let (flags, hdr_len, gso_size, csum_start) = (NEEDS_CSUM, 40, 100, 20);
            let vnet = VnetHeader { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset };
            [&vnet.to_bytes()[..], &packet(is_udp, 1, 450)].concat()
        })
        .to_vec()
}

/// Packets of a flow that can be joined.
pub fn join_seeds() -> Vec<Vec<u8>> {
    let seed = |is_udp: bool| {
        let packets = (0..4u32).map(|n| {
            let mut packet = packet(is_udp, n * 50, if n == 3 { 20 } else { 50 });
            // Consecutive identifications.
            if let Some(octet) = packet.get_mut(5) {
                *octet = n as u8;
            }
            mend(&mut packet);
            [&(packet.len() as u16 | MEND).to_be_bytes()[..], &packet].concat()
        });
        packets.flatten().collect()
    };
    vec![seed(false), seed(true)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the targets would show nothing.
    #[test]
    fn the_seeds_are_cut_and_joined() {
        for seed in cut_seeds() {
            let (vnet, packet) = seed.split_first_chunk().unwrap();
            assert_eq!(Cut::new(&VnetHeader::from_bytes(*vnet), packet).unwrap().frames(), 5);
        }
        for is_udp in [false, true] {
            let (first, mut next) = (packet(is_udp, 0, 50), packet(is_udp, 50, 50));
            next[5] = next[5].wrapping_add(1);
            mend(&mut next);
            assert!(Run::begin(&first).unwrap().takes(&first, &next));
        }
    }
}
