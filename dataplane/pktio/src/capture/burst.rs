//! Datagrams that were handed to the kernel as one message to be cut (`UDP_SEGMENT`).
//!
//! A packet socket sees such a burst as one long datagram, without the length at which it will be cut: on the wire there
//! are several. All datagrams of a burst are equally long, but for the last, which may be shorter. GTP-U and PFCP messages
//! say how long they are, so the first message shows where the cuts are. A datagram is taken for a burst only when every
//! part between two cuts is a message that says to be exactly as long.

use packet::checksum::{self, Sum};
use packet::transport::Udp;
use packet::{gtpu, ipv4, ipv6, protocol};

/// Octets of a UDP header.
const UDP_HEADER: usize = 8;
/// The UDP port of PFCP (TS 29.244 §6.2.2).
const PFCP: u16 = 8805;

/// A burst in the form in which it was captured.
pub(super) struct Burst<'a> {
    /// All headers: link layer, IP, UDP.
    headers: &'a [u8],
    /// Where those of IP and UDP begin.
    ip: usize,
    udp: usize,
    payload: &'a [u8],
    /// Octets of a datagram's payload, except perhaps the last's.
    segment: usize,
}

/// Octets of a message, according to its header.
type Length = fn(&[u8]) -> Option<usize>;

/// TS 29.281 §5.1: the length counts what follows the first eight octets.
fn gtpu_length(message: &[u8]) -> Option<usize> {
    let [flags, _, high, low, ..] = message else { return None };
    (flags >> 4 == 3).then(|| 8 + usize::from(u16::from_be_bytes([*high, *low])))
}

/// TS 29.244 §7.2.2: the length counts what follows the first four octets. With FO another message of the same datagram
/// follows.
fn pfcp_length(message: &[u8]) -> Option<usize> {
    const FO: u8 = 0x04;
    let [flags, _, high, low, ..] = message else { return None };
    (flags >> 5 == 1 && flags & FO == 0).then(|| 4 + usize::from(u16::from_be_bytes([*high, *low])))
}

impl<'a> Burst<'a> {
    /// The burst in a frame whose IP header begins at `ip`; `None` when it is one packet.
    pub(super) fn find(frame: &'a [u8], ip: usize) -> Option<Burst<'a>> {
        let packet = frame.get(ip..)?;
        let (header, end) = match packet.first()? >> 4 {
            4 => {
                let view = ipv4::Packet::new(packet).ok()?;
                let whole = !view.more_fragments() && view.fragment_offset() == 0;
                (whole && view.protocol() == protocol::UDP)
                    .then(|| (view.header_len(), view.bytes().len()))?
            }
            6 => {
                let view = ipv6::Packet::new(packet).ok()?;
                (view.next_header() == protocol::UDP).then(|| (ipv6::HEADER_LEN, view.bytes().len()))?
            }
            _ => return None,
        };
        let datagram = Udp::new(packet.get(header..end)?).ok()?;
        let length: Length = match (datagram.source_port(), datagram.destination_port()) {
            (gtpu::PORT, _) | (_, gtpu::PORT) => gtpu_length,
            (PFCP, _) | (_, PFCP) => pfcp_length,
            _ => return None,
        };
        let payload = datagram.payload();
        let segment = length(payload)?;
        let several = segment < payload.len();
        if !several || payload.chunks(segment).any(|part| length(part) != Some(part.len())) {
            return None;
        }
        let udp = ip + header;
        Some(Burst { headers: frame.get(..udp + UDP_HEADER)?, ip, udp, payload, segment })
    }

    /// How many datagrams it is on the wire.
    pub(super) fn len(&self) -> usize {
        self.payload.len().div_ceil(self.segment)
    }

    /// Writes the frame of a datagram into `frame`, as the kernel or the adapter makes it. There are [`Burst::len`].
    pub(super) fn cut(&self, number: usize, frame: &mut Vec<u8>) {
        frame.clear();
        frame.extend_from_slice(self.headers);
        frame.extend(self.payload.chunks(self.segment).nth(number).unwrap_or_default());
        let (ip, udp) = (self.ip, self.udp);
        let (datagram, packet) = ((frame.len() - udp) as u16, (frame.len() - ip) as u16);
        let put = |frame: &mut Vec<u8>, at: usize, value: u16| {
            frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        put(frame, udp + 4, datagram);
        let (source, destination) = if frame[ip] >> 4 == 4 {
            put(frame, ip + 2, packet);
            let identification = u16::from_be_bytes([frame[ip + 4], frame[ip + 5]]);
            put(frame, ip + 4, identification.wrapping_add(number as u16));
            put(frame, ip + 10, 0);
            let sum = checksum::checksum(&frame[ip..udp]);
            put(frame, ip + 10, sum);
            let Ok(view) = ipv4::Packet::new(&frame[ip..]) else { return };
            (view.source().into(), view.destination().into())
        } else {
            put(frame, ip + 4, datagram);
            let Ok(view) = ipv6::Packet::new(&frame[ip..]) else { return };
            (view.source().into(), view.destination().into())
        };
        // Without a checksum there is none in any of them (IPv4 only).
        if frame[udp + 6..udp + 8] != [0, 0] {
            put(frame, udp + 6, 0);
            let sum = Sum::default()
                .pseudo_header(source, destination, protocol::UDP, usize::from(datagram))
                .octets(&frame[udp..])
                .finish();
            put(frame, udp + 6, if sum == 0 { u16::MAX } else { sum });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use packet::ethernet;
    use packet::gtpu::build_gpdu;
    use packet::transport::build_udp;

    use super::*;

    /// An Ethernet frame with a datagram.
    fn frame(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let datagram = build_udp((from.ip(), from.port()), (to.ip(), to.port()), payload).unwrap();
        let (kind, packet) = match (from.ip(), to.ip()) {
            (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
                (ethernet::IPV4, ipv4::Header::new(from, to, protocol::UDP).build(&datagram).unwrap())
            }
            (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
                (ethernet::IPV6, ipv6::Header::new(from, to, protocol::UDP).build(&datagram).unwrap())
            }
            _ => panic!("both of one family"),
        };
        ethernet::build([1; 6], [2; 6], None, kind, &packet)
    }

    fn gpdus(lengths: &[usize]) -> Vec<Vec<u8>> {
        lengths.iter().map(|length| build_gpdu(7, None, &vec![9; *length]).unwrap()).collect()
    }

    #[test]
    fn every_datagram_of_a_burst_is_cut_out() {
        for (from, to) in [("192.0.2.1:2152", "192.0.2.2:2152"), ("[2001:db8::1]:2152", "[2001:db8::2]:9")] {
            for lengths in [&[100, 100, 100, 100][..], &[60, 60, 1], &[1, 1]] {
                let messages = gpdus(lengths);
                let whole = frame(from, to, &messages.concat());
                let burst = Burst::find(&whole, 14).unwrap();
                assert_eq!(burst.len(), messages.len());
                let mut cut = Vec::new();
                for (number, message) in messages.iter().enumerate() {
                    burst.cut(number, &mut cut);
                    // As if it had been sent alone, but for the identification, which goes up.
                    let mut alone = frame(from, to, message);
                    if from.starts_with('1') {
                        let first = u16::from_be_bytes([alone[18], alone[19]]);
                        alone[18..20].copy_from_slice(&(first + number as u16).to_be_bytes());
                        alone[24..26].fill(0);
                        let sum = checksum::checksum(&alone[14..34]);
                        alone[24..26].copy_from_slice(&sum.to_be_bytes());
                    }
                    assert_eq!(cut, alone, "{from} {lengths:?} {number}");
                }
            }
        }
    }

    #[test]
    fn pfcp_messages_are_cut_and_bundles_are_not() {
        let heartbeat = [0x20, 1, 0, 12, 0, 0, 1, 0, 0, 96, 0, 4, 1, 2, 3, 4];
        let two = [heartbeat, heartbeat].concat();
        let whole = frame("192.0.2.1:8805", "192.0.2.2:8805", &two);
        assert_eq!(Burst::find(&whole, 14).unwrap().len(), 2);
        let mut bundle = two;
        bundle[0] |= 4;
        assert!(Burst::find(&frame("192.0.2.1:8805", "192.0.2.2:8805", &bundle), 14).is_none());
    }

    #[test]
    fn what_is_one_packet_stays_one() {
        let [one, two, ..] = &gpdus(&[40, 41])[..] else { panic!("there are two") };
        let (from, to) = ("192.0.2.1:2152", "192.0.2.2:2152");
        let longer_at_the_end = [&one[..], two].concat();
        let with_rubbish = [&one[..], &[0x30, 255, 0, 9]].concat();
        for payload in [&one[..], &longer_at_the_end, &with_rubbish, b"", b"0"] {
            assert!(Burst::find(&frame(from, to, payload), 14).is_none(), "{payload:?}");
        }
        let elsewhere = [&one[..], one].concat();
        assert!(Burst::find(&frame("192.0.2.1:53", "192.0.2.2:53", &elsewhere), 14).is_none());
        let whole = frame(from, to, &elsewhere);
        for length in 0..whole.len() {
            assert!(Burst::find(&whole[..length], 14).is_none(), "cut short at {length}");
        }
    }
}
