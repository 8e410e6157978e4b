//! Redirection of web traffic to a URL (TS 29.244 §8.2.20), by answers that need no connection state.
//!
//! A UE whose traffic is redirected (an account without credit, a portal to log in to) gets another page than
//! it asked for. The UPF ends the UE's TCP connections to web servers itself: it answers the SYN, and answers
//! the request with a redirection and the end of the connection. All the state that it needs is in the numbers
//! that the UE sends back, so a flood of SYNs costs no memory. The initial sequence number is a keyed hash of
//! the connection's addresses and ports, so that data is answered only if it comes from a peer that received
//! this number.
//!
//! ```text
//!  UE                                  UPF, in the server's name
//!  SYN seq=c                        →
//!                                   ←  SYN ACK seq=h(addresses, ports) ack=c+1
//!  ACK, then the request ack=h+1    →
//!                                   ←  FIN PSH ACK seq=h+1: 302 Found, Location: <url>
//!  FIN ACK                          →
//!                                   ←  ACK
//! ```
//! Connections to other ports are reset, so that programs do not wait; other protocols than TCP get no answer.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use packet::checksum::Sum;
use packet::flow::Flow;
use packet::transport::Tcp;
use packet::{ipv4, ipv6, protocol};

/// Longest URL: the answer with it still fits into one packet that every link accepts.
pub const URL_MAX: usize = 1024;
/// Octets of the longest answer, headers included.
pub const ANSWER_MAX: usize = 1280;
/// Ports of plain HTTP. A request under TLS cannot be answered without the server's key.
const HTTP_PORTS: [u16; 2] = [80, 8080];
/// Segment size in the answer to SYNs: a request comes in few segments, and the first one is enough.
const MSS: u16 = 1220;
const WINDOW: u16 = 0xFFFF;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

/// Why a URL is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Empty, or longer than [`URL_MAX`].
    #[error("the URL has no octets, or more than {URL_MAX}")]
    Length,
    /// A character that RFC 3986 does not allow, such as one that would end the header line.
    #[error("the URL has a character that URLs may not have")]
    Character,
}

/// Answers in the name of web servers.
#[derive(Debug, Clone)]
pub struct UrlRedirect {
    response: Box<[u8]>,
}

/// A segment to answer, with the fields that the answer needs.
struct Segment<'a> {
    flow: Flow,
    tcp: Tcp<'a>,
    ports: (u16, u16),
    /// Octets of sequence space that it uses: data and flags.
    length: u32,
}

/// The fields of an answer except the ports.
struct Answer<'a> {
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    data: &'a [u8],
}

impl UrlRedirect {
    /// A redirection to `url`.
    pub fn new(url: &str) -> Result<UrlRedirect, UrlError> {
        if url.is_empty() || url.len() > URL_MAX {
            return Err(UrlError::Length);
        }
        let allowed = |octet: u8| octet.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&octet);
        if !url.bytes().all(allowed) {
            return Err(UrlError::Character);
        }
        // Not to be cached: with credit again the UE must get the page that it asks for (RFC 9110 §15.4.3).
        let response = format!(
            "HTTP/1.1 302 Found\r\nLocation: {url}\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\
             Connection: close\r\n\r\n"
        );
        Ok(UrlRedirect { response: response.into_bytes().into() })
    }

    /// Writes the answer to a UE's packet into `out` and returns its length. `None` if the packet gets no
    /// answer, or `out` is too short ([`ANSWER_MAX`] is always enough). `secret` makes initial sequence numbers
    /// unpredictable; all workers must use the same one.
    pub fn answer(&self, packet: &[u8], secret: u64, out: &mut [u8]) -> Option<usize> {
        let segment = Segment::parse(packet)?;
        let answer = self.reply(&segment, secret)?;
        segment.write(&answer, out)
    }

    fn reply(&self, segment: &Segment<'_>, secret: u64) -> Option<Answer<'_>> {
        let flags = segment.tcp.flags();
        if flags & RST != 0 {
            return None;
        }
        let web = HTTP_PORTS.contains(&segment.ports.1);
        let next = segment.tcp.sequence().wrapping_add(segment.length);
        let ours = segment.initial(secret);
        let acknowledged = segment.tcp.acknowledgement();
        let answer = |sequence, flags, data| Answer { sequence, acknowledged: next, flags, data };
        if flags & SYN != 0 {
            return match (web, flags & ACK != 0) {
                (true, false) => Some(answer(ours, SYN | ACK, &[])),
                (false, false) => Some(answer(0, RST | ACK, &[])),
                // Connections to the UE are refused.
                (_, true) => Some(answer(acknowledged, RST, &[])),
            };
        }
        if flags & ACK == 0 {
            return None;
        }
        let first = ours.wrapping_add(1);
        let last = first.wrapping_add(self.response.len() as u32 + 1);
        match acknowledged {
            // The request or its first part; or the UE ends the connection without a request.
            at if web && at == first && !segment.tcp.payload().is_empty() => {
                Some(answer(first, FIN | PSH | ACK, &self.response))
            }
            at if web && at == first && flags & FIN != 0 => Some(answer(first, FIN | ACK, &[])),
            at if web && (at == last || at == first.wrapping_add(1)) && segment.length > 0 => {
                Some(answer(at, ACK, &[]))
            }
            // An acknowledgement of what the UPF has sent; gets no answer.
            at if web && at.wrapping_sub(first) <= self.response.len() as u32 + 1 => None,
            // A connection from before the redirection began (RFC 9293 §3.5.2).
            at => Some(answer(at, RST, &[])),
        }
    }
}

impl<'a> Segment<'a> {
    /// The TCP segment in an IP packet, if there is a whole one.
    fn parse(packet: &'a [u8]) -> Option<Segment<'a>> {
        let flow = Flow::parse(packet).ok()?;
        if flow.protocol != protocol::TCP {
            return None;
        }
        let bytes = match flow.source {
            IpAddr::V4(_) => {
                let view = ipv4::Packet::new(packet).ok()?;
                (!view.more_fragments()).then(|| view.payload())?
            }
            IpAddr::V6(_) => {
                let view = ipv6::Packet::new(packet).ok()?;
                let upper = view.upper().ok()?;
                upper.fragment.is_none().then(|| &view.bytes()[upper.offset..])?
            }
        };
        // Later fragments have no ports.
        let ports = flow.ports?;
        let tcp = Tcp::new(bytes).ok()?;
        let flags = u32::from(tcp.flags() & SYN != 0) + u32::from(tcp.flags() & FIN != 0);
        let length = tcp.payload().len() as u32 + flags;
        Some(Segment { flow, tcp, ports, length })
    }

    /// The UPF's initial sequence number in the segment's connection.
    fn initial(&self, secret: u64) -> u32 {
        let mut hasher = DefaultHasher::new();
        (secret, self.flow.source, self.flow.destination, self.ports).hash(&mut hasher);
        hasher.finish() as u32
    }

    /// Writes an IP packet to the sender of the segment.
    fn write(&self, answer: &Answer<'_>, out: &mut [u8]) -> Option<usize> {
        let (server, ue) = (self.flow.destination, self.flow.source);
        let option: &[u8] = if answer.flags & SYN == 0 { &[] } else { &[2, 4, (MSS >> 8) as u8, MSS as u8] };
        let header = 20 + option.len();
        let length = header + answer.data.len();
        let ip = match (server, ue) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = ipv4::Header::new(from, to, protocol::TCP).encode(length).ok()?;
                out.get_mut(..header.len())?.copy_from_slice(&header);
                header.len()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let header = ipv6::Header::new(from, to, protocol::TCP).encode(length).ok()?;
                out.get_mut(..header.len())?.copy_from_slice(&header);
                header.len()
            }
            _ => return None,
        };
        let tcp = out.get_mut(ip..ip + length)?;
        tcp[0..2].copy_from_slice(&self.ports.1.to_be_bytes());
        tcp[2..4].copy_from_slice(&self.ports.0.to_be_bytes());
        tcp[4..8].copy_from_slice(&answer.sequence.to_be_bytes());
        // Without ACK the acknowledgement number has no meaning and is zero.
        let acknowledged = if answer.flags & ACK == 0 { 0 } else { answer.acknowledged };
        tcp[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        tcp[12] = ((header / 4) as u8) << 4;
        tcp[13] = answer.flags;
        tcp[14..16].copy_from_slice(&WINDOW.to_be_bytes());
        tcp[16..20].fill(0);
        tcp[20..header].copy_from_slice(option);
        tcp[header..].copy_from_slice(answer.data);
        let sum = Sum::default().pseudo_header(server, ue, protocol::TCP, length).octets(tcp).finish();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        Some(ip + length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: u64 = 99;
    const URL: &str = "http://portal.example/top-up?id=7";

    /// A segment as a UE sends it; `v6` selects the IP version.
    fn segment(v6: bool, port: u16, sequence: u32, acknowledged: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        let (ue, server): (IpAddr, IpAddr) = match v6 {
            false => ([10, 45, 0, 2].into(), [192, 0, 2, 80].into()),
            true => ("fd00:45::2".parse().unwrap(), "2001:db8::80".parse().unwrap()),
        };
        let mut tcp = vec![0; 20];
        tcp[0..2].copy_from_slice(&40_000u16.to_be_bytes());
        tcp[2..4].copy_from_slice(&port.to_be_bytes());
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        tcp[12] = 0x50;
        tcp[13] = flags;
        tcp.extend_from_slice(data);
        match (ue, server) {
            (IpAddr::V4(ue), IpAddr::V4(server)) => ipv4::Header::new(ue, server, 6).build(&tcp).unwrap(),
            (IpAddr::V6(ue), IpAddr::V6(server)) => ipv6::Header::new(ue, server, 6).build(&tcp).unwrap(),
            _ => unreachable!(),
        }
    }

    /// The answer's sequence number, acknowledgement number, flags and data. Checks addresses, ports and
    /// checksums.
    fn ask(redirect: &UrlRedirect, packet: &[u8]) -> Option<(u32, u32, u8, Vec<u8>)> {
        let mut out = [0; ANSWER_MAX];
        let length = redirect.answer(packet, SECRET, &mut out)?;
        let asked = Flow::parse(packet).unwrap();
        let reply = Flow::parse(&out[..length]).unwrap();
        assert_eq!(
            (reply.source, reply.destination, reply.length),
            (asked.destination, asked.source, length)
        );
        assert_eq!(reply.ports, asked.ports.map(|(from, to)| (to, from)));
        let header = if reply.source.is_ipv4() { 20 } else { 40 };
        if header == 20 {
            assert!(ipv4::Packet::new(&out[..length]).unwrap().checksum_ok());
        }
        let tcp = Tcp::new(&out[header..length]).unwrap();
        assert!(tcp.checksum_ok(reply.source, reply.destination));
        Some((tcp.sequence(), tcp.acknowledgement(), tcp.flags(), tcp.payload().to_vec()))
    }

    #[test]
    fn a_browser_is_sent_elsewhere() {
        let redirect = UrlRedirect::new(URL).unwrap();
        for v6 in [false, true] {
            let (ours, next, flags, data) = ask(&redirect, &segment(v6, 80, 1000, 0, SYN, &[])).unwrap();
            assert_eq!((next, flags, data.len()), (1001, SYN | ACK, 0));
            let first = ours.wrapping_add(1);
            assert_eq!(ask(&redirect, &segment(v6, 80, 1001, first, ACK, &[])), None);

            let get = b"GET /news HTTP/1.1\r\nHost: example.com\r\n\r\n";
            let request = segment(v6, 80, 1001, first, ACK | PSH, get);
            let (sequence, next, flags, data) = ask(&redirect, &request).unwrap();
            assert_eq!((sequence, next, flags), (first, 1001 + get.len() as u32, FIN | PSH | ACK));
            let text = String::from_utf8(data.clone()).unwrap();
            assert!(text.starts_with("HTTP/1.1 302 Found\r\n") && text.ends_with("\r\n\r\n"), "{text}");
            assert!(text.contains(&format!("\r\nLocation: {URL}\r\n")), "{text}");
            // The UE repeats the request, as the answer was lost: it gets the same answer.
            assert_eq!(ask(&redirect, &request).unwrap().3, data);

            let end = first.wrapping_add(data.len() as u32 + 1);
            assert_eq!(ask(&redirect, &segment(v6, 80, next, end, ACK, &[])), None);
            let last = ask(&redirect, &segment(v6, 80, next, end, FIN | ACK, &[])).unwrap();
            assert_eq!(last, (end, next + 1, ACK, vec![]));
        }
    }

    #[test]
    fn leaving_without_a_request_is_acknowledged() {
        let redirect = UrlRedirect::new(URL).unwrap();
        let (ours, ..) = ask(&redirect, &segment(false, 8080, 5, 0, SYN, &[])).unwrap();
        let first = ours.wrapping_add(1);
        let fin = ask(&redirect, &segment(false, 8080, 6, first, FIN | ACK, &[])).unwrap();
        assert_eq!(fin, (first, 7, FIN | ACK, vec![]));
        assert_eq!(ask(&redirect, &segment(false, 8080, 7, first.wrapping_add(1), ACK, &[])), None);
    }

    #[test]
    fn other_connections_are_reset_and_resets_are_not_answered() {
        let redirect = UrlRedirect::new(URL).unwrap();
        let syn = ask(&redirect, &segment(false, 443, 7, 0, SYN, b"early")).unwrap();
        assert_eq!(syn, (0, 13, RST | ACK, vec![]));
        // A connection from before the redirection, to either port; and a UE that guesses the sequence number.
        for port in [80, 443] {
            let old =
                ask(&redirect, &segment(false, port, 7, 0x1234, ACK | PSH, b"GET / HTTP/1.1\r\n")).unwrap();
            assert_eq!(old, (0x1234, 0, RST, vec![]));
        }
        assert_eq!(ask(&redirect, &segment(false, 80, 7, 3, SYN | ACK, &[])), Some((3, 0, RST, vec![])));
        for flags in [RST, RST | ACK, RST | SYN, 0, FIN, PSH] {
            assert_eq!(ask(&redirect, &segment(false, 80, 7, 3, flags, &[])), None, "{flags}");
        }
    }

    #[test]
    fn sequence_numbers_depend_on_the_secret_and_the_connection() {
        let redirect = UrlRedirect::new(URL).unwrap();
        let number = |secret, port| {
            let (mut out, syn) = ([0; ANSWER_MAX], segment(false, port, 1, 0, SYN, &[]));
            let length = redirect.answer(&syn, secret, &mut out).unwrap();
            Tcp::new(&out[20..length]).unwrap().sequence()
        };
        assert_eq!(number(1, 80), number(1, 80));
        assert_ne!(number(1, 80), number(2, 80));
        assert_ne!(number(1, 80), number(1, 8080));
    }

    #[test]
    fn damaged_segments_and_small_buffers_are_survived() {
        let redirect = UrlRedirect::new(&"u".repeat(URL_MAX)).unwrap();
        for v6 in [false, true] {
            let (ours, ..) = ask(&redirect, &segment(v6, 80, 1, 0, SYN, &[])).unwrap();
            let request = segment(v6, 80, 2, ours.wrapping_add(1), ACK, b"GET / HTTP/1.0\r\n\r\n");
            let (_, _, _, data) = ask(&redirect, &request).unwrap();
            assert_eq!(data.len(), redirect.response.len(), "the longest URL fits");
            for room in 0..ANSWER_MAX {
                if let Some(length) = redirect.answer(&request, SECRET, &mut vec![0; room]) {
                    assert!(length <= room);
                }
            }
            for length in 0..request.len() {
                assert_eq!(redirect.answer(&request[..length], SECRET, &mut [0; ANSWER_MAX]), None);
            }
            for bit in 0..request.len() * 8 {
                let mut damaged = request.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let _ = redirect.answer(&damaged, SECRET, &mut [0; ANSWER_MAX]);
            }
        }
    }

    #[test]
    fn urls_that_would_add_headers_are_refused() {
        for (url, error) in [
            ("", UrlError::Length),
            (&*"x".repeat(URL_MAX + 1), UrlError::Length),
            ("http://a/\r\nSet-Cookie: x", UrlError::Character),
            ("http://a/ b", UrlError::Character),
            ("http://ä/", UrlError::Character),
            ("http://a/\u{7f}", UrlError::Character),
        ] {
            assert_eq!(UrlRedirect::new(url).unwrap_err(), error, "{url:?}");
        }
    }
}
