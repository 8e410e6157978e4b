//! Masks keys in captures of service-based interfaces, so that a capture can be passed on.
//!
//! The value of each JSON member or form field that holds a key (K, OPc, KAUSF, KSEAF, RES*, access tokens …: [`SECRETS`])
//! is overwritten with `x` of the same length: frames, their lengths and the JSON stay as they were. TCP checksums are not
//! corrected. Members are found across HTTP/2 frames and TCP segments: this follows each direction of each connection
//! octet by octet. HTTP/1.1 is searched in the same way; TLS shows no keys.
//!
//! Whatever cannot be followed is not written: after a gap (the capture began later, or lost packets) the payload is
//! cut off until a segment holds whole HTTP/2 frames again, and content whose beginning was missed is masked whole.
//!
//! Of header fields, the value of `authorization` is masked (`mask/header.rs`).

mod header;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;

use packet::{ethernet, ipv4, ipv6};
use telemetry::pcapng::LinkType;

use self::header::HeaderBlock;

/// JSON members and form fields with keys, tokens and proofs (TS 29.503, 29.505, 29.509, 29.510, 29.518).
const SECRETS: &[&str] = &[
    "encPermanentKey",
    "encOpcKey",
    "encTopcKey",
    "xres",
    "xresStar",
    "hxresStar",
    "resStar",
    "ck",
    "ik",
    "ckPrime",
    "ikPrime",
    "kausf",
    "kseaf",
    "kamf",
    "kAkma",
    "keyVal",
    "nh",
    "msk",
    "access_token",
    "client_secret",
    "client_assertion",
];

/// Octets looked back for a member's name: longer than any of them with quotes, colon and spaces.
const LOOK_BACK: usize = 64;
/// Directions of connections followed at once; beyond that the one idle for longest is forgotten, and cut off.
const DIRECTIONS_MAX: usize = 4096;
/// Streams with open content per direction; beyond that the oldest is forgotten, and masked whole.
const STREAMS_MAX: usize = 1024;
/// Longest frame in a segment that is taken for whole frames (RFC 9113 §4.2: the least every peer takes).
const FRAME_MAX: usize = 16_384;

/// The first octets a client sends (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
/// Highest type of frame of RFC 9113.
const FRAME_TYPE_MAX: u8 = CONTINUATION;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
/// First octet of a TLS connection: a handshake record.
const TLS_HANDSHAKE: u8 = 22;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// What one direction of a connection is known by: addresses and ports.
type Ends = (IpAddr, IpAddr, u16, u16);

/// The connections of one reference point.
#[derive(Debug, Default)]
pub(super) struct Masks {
    directions: HashMap<Ends, Direction>,
    /// Counts packets: when each direction was last seen.
    now: u64,
}

#[derive(Debug)]
struct Direction {
    /// Sequence number of the next octet.
    next: u32,
    stream: ByteStream,
    seen: u64,
}

impl Masks {
    /// Masks the keys in a packet of this link type; returns how much of it may be written.
    pub fn mask(&mut self, link: LinkType, bytes: &mut [u8]) -> usize {
        let Some(segment) = Segment::find(link, bytes) else {
            // Not readable as TCP: nobody can say what it shows.
            return 0;
        };
        self.now += 1;
        if segment.flags & SYN != 0 {
            self.make_room();
            let direction = Direction {
                next: segment.sequence.wrapping_add(1),
                stream: ByteStream::default(),
                seen: self.now,
            };
            self.directions.insert(segment.ends, direction);
            // A SYN with data (TCP Fast Open) is nothing that our peers do.
            return segment.start;
        }
        let payload = &mut bytes[segment.start..segment.end];
        let readable = payload.is_empty() || self.follow(&segment, payload);
        if segment.flags & (FIN | RST) != 0 {
            self.directions.remove(&segment.ends);
        }
        if readable { bytes.len() } else { segment.start }
    }

    /// Masks the payload of a segment; `false` when it cannot be told what it is.
    fn follow(&mut self, segment: &Segment, payload: &mut [u8]) -> bool {
        let next = segment.sequence.wrapping_add(payload.len() as u32);
        if let Some(direction) = self.directions.get_mut(&segment.ends) {
            direction.seen = self.now;
            if direction.next == segment.sequence {
                direction.next = next;
                direction.stream.mask(payload);
                return true;
            }
            let behind = direction.next.wrapping_sub(segment.sequence);
            if behind < u32::MAX / 2 {
                // Sent again: it is in the file already.
                return false;
            }
        }
        if !holds_whole_frames(payload) {
            self.directions.remove(&segment.ends);
            return false;
        }
        self.make_room();
        let mut stream = ByteStream { state: State::frame(), ..ByteStream::default() };
        stream.mask(payload);
        self.directions.insert(segment.ends, Direction { next, stream, seen: self.now });
        true
    }

    fn make_room(&mut self) {
        if self.directions.len() >= DIRECTIONS_MAX
            && let Some(oldest) = self.directions.iter().min_by_key(|(_, direction)| direction.seen)
        {
            let oldest = *oldest.0;
            self.directions.remove(&oldest);
        }
    }
}

/// Whether octets are HTTP/2 frames from the first to the last, and do not begin inside a header block.
fn holds_whole_frames(mut octets: &[u8]) -> bool {
    if octets.get(3) == Some(&CONTINUATION) {
        return false;
    }
    while let Some((header, rest)) = octets.split_first_chunk::<FRAME_HEADER>() {
        let length = frame_length(header);
        if length > FRAME_MAX || header[3] > FRAME_TYPE_MAX || header[5] & 0x80 != 0 || length > rest.len() {
            return false;
        }
        octets = &rest[length..];
    }
    octets.is_empty()
}

fn frame_length(header: &[u8; FRAME_HEADER]) -> usize {
    usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2])
}

/// A TCP segment within a captured packet.
#[derive(Debug)]
struct Segment {
    ends: Ends,
    sequence: u32,
    flags: u8,
    /// Where its payload is.
    start: usize,
    end: usize,
}

impl Segment {
    fn find(link: LinkType, bytes: &[u8]) -> Option<Segment> {
        let ip = match link {
            LinkType::Raw => bytes,
            LinkType::Ethernet => ethernet::Frame::new(bytes).ok()?.payload(),
        };
        let before_ip = bytes.len() - ip.len();
        let (source, destination, header, end): (IpAddr, IpAddr, usize, usize) = match ip.first()? >> 4 {
            4 => {
                let packet = ipv4::Packet::new(ip).ok()?;
                let ends = (packet.source().into(), packet.destination().into());
                (ends.0, ends.1, packet.header_len(), packet.bytes().len())
            }
            _ => {
                let packet = ipv6::Packet::new(ip).ok()?;
                let ends = (packet.source().into(), packet.destination().into());
                (ends.0, ends.1, packet.upper().ok()?.offset, packet.bytes().len())
            }
        };
        let tcp = ip.get(header..end)?;
        let fixed: &[u8; 20] = tcp.first_chunk()?;
        let length = usize::from(fixed[12] >> 4) * 4;
        if length < fixed.len() || length > tcp.len() {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        Some(Segment {
            ends: (source, destination, port(0), port(2)),
            sequence: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            flags: fixed[13],
            start: before_ip + header + length,
            end: before_ip + end,
        })
    }
}

/// The octets of one direction, in order.
#[derive(Debug, Default)]
struct ByteStream {
    state: State,
    /// The content of each HTTP/2 stream whose header was seen and whose end was not.
    contents: BTreeMap<u32, Content>,
    /// The header block that HEADERS began and CONTINUATION goes on with; there is one at a time.
    header: HeaderBlock,
}

#[derive(Debug)]
enum State {
    /// So many octets of the client's preface have come.
    Preface(usize),
    /// The header of a frame, as far as it has come.
    Header { octets: [u8; FRAME_HEADER], filled: usize },
    /// So many octets of a frame are to come.
    Payload { left: usize, kind: u8, flags: u8, stream: u32 },
    /// TLS.
    Encrypted,
    /// Something else, such as HTTP/1.1: one long content.
    Text(Content),
}

impl Default for State {
    fn default() -> Self {
        State::Preface(0)
    }
}

impl State {
    /// Before a frame.
    fn frame() -> State {
        State::Header { octets: [0; FRAME_HEADER], filled: 0 }
    }
}

impl ByteStream {
    /// Masks the next octets.
    fn mask(&mut self, mut octets: &mut [u8]) {
        while !octets.is_empty() {
            let taken = self.step(octets);
            octets = &mut octets[taken..];
        }
    }

    /// Takes some of the octets, at least one unless the state changes; returns how many.
    fn step(&mut self, octets: &mut [u8]) -> usize {
        match &mut self.state {
            State::Preface(matched) => {
                let (first, at_start) = (octets[0], *matched == 0);
                if first == PREFACE[*matched] {
                    *matched += 1;
                    if *matched == PREFACE.len() {
                        self.state = State::frame();
                    }
                    return 1;
                }
                self.state = match first {
                    TLS_HANDSHAKE if at_start => State::Encrypted,
                    // A server begins with a frame of settings, which is short.
                    0 if at_start => State::frame(),
                    _ => State::Text(Content::default()),
                };
                0
            }
            State::Header { octets: header, filled } => {
                let taken = octets.len().min(FRAME_HEADER - *filled);
                header[*filled..*filled + taken].copy_from_slice(&octets[..taken]);
                *filled += taken;
                if *filled == FRAME_HEADER {
                    let header = *header;
                    self.begin_frame(&header);
                }
                taken
            }
            State::Payload { left, kind, flags, stream } => {
                let taken = octets.len().min(*left);
                *left -= taken;
                let (ended, kind, flags, stream) = (*left == 0, *kind, *flags, *stream);
                if matches!(kind, HEADERS | CONTINUATION) {
                    self.header.mask(&mut octets[..taken]);
                } else if kind == DATA {
                    match self.contents.get_mut(&stream) {
                        Some(content) => content.mask(&mut octets[..taken]),
                        None => octets[..taken].fill(b'x'),
                    }
                }
                if ended {
                    self.end_frame(kind, flags, stream);
                }
                taken
            }
            State::Encrypted => octets.len(),
            State::Text(content) => {
                content.mask(octets);
                octets.len()
            }
        }
    }

    fn begin_frame(&mut self, header: &[u8; FRAME_HEADER]) {
        let (length, kind, flags) = (frame_length(header), header[3], header[4]);
        let stream = u32::from_be_bytes([header[5] & 0x7F, header[6], header[7], header[8]]);
        if kind == HEADERS {
            self.header = HeaderBlock::new(length, flags & PADDED != 0, flags & PRIORITY != 0);
            if self.contents.len() >= STREAMS_MAX {
                self.contents.pop_first();
            }
            self.contents.entry(stream).or_default();
        }
        if kind == CONTINUATION {
            self.header.go_on(length);
        }
        self.state = State::Payload { left: length, kind, flags, stream };
        if length == 0 {
            self.end_frame(kind, flags, stream);
        }
    }

    fn end_frame(&mut self, kind: u8, flags: u8, stream: u32) {
        let ends = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        if ends || kind == RST_STREAM {
            self.contents.remove(&stream);
        }
        self.state = State::frame();
    }
}

/// The content of a message: JSON, or parts of it in another form.
#[derive(Debug, Default)]
struct Content {
    /// What came last, [`LOOK_BACK`] octets at most.
    tail: VecDeque<u8>,
    /// Inside a value that is masked: the octet that ends it.
    masked_until: Option<u8>,
    /// The octet before was a backslash.
    escaped: bool,
}

impl Content {
    fn mask(&mut self, octets: &mut [u8]) {
        for octet in octets {
            if let Some(end) = self.masked_until {
                if *octet != end || self.escaped {
                    self.escaped = end == b'"' && *octet == b'\\' && !self.escaped;
                    *octet = b'x';
                    continue;
                }
                self.masked_until = None;
            } else if *octet == b'"' && self.names_a_member() {
                (self.masked_until, self.escaped) = (Some(b'"'), false);
            } else if *octet == b'=' && self.names_a_field() {
                (self.masked_until, self.escaped) = (Some(b'&'), false);
            }
            if self.tail.len() == LOOK_BACK {
                self.tail.pop_front();
            }
            self.tail.push_back(*octet);
        }
    }

    /// Whether what came last is the name of a secret field of a form (`application/x-www-form-urlencoded`).
    fn names_a_field(&self) -> bool {
        is_secret(self.tail.iter().rev().copied().take_while(|octet| *octet != b'&'))
    }

    /// Whether what came last is the name of a secret member and its colon.
    fn names_a_member(&self) -> bool {
        let mut back = self.tail.iter().rev().copied().skip_while(u8::is_ascii_whitespace);
        if back.next() != Some(b':') {
            return false;
        }
        let mut back = back.skip_while(u8::is_ascii_whitespace);
        if back.next() != Some(b'"') {
            return false;
        }
        is_secret(back.take_while(|octet| *octet != b'"'))
    }
}

/// Whether a name, read from its end, is that of a secret.
fn is_secret(backwards: impl Iterator<Item = u8> + Clone) -> bool {
    SECRETS.iter().any(|secret| secret.bytes().rev().eq(backwards.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "465B5CE8B199B49FAA5F0A2EE238A6BC";
    const CLIENT: (IpAddr, u16) = (IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 5)), 40_000);
    const SERVER: (IpAddr, u16) = (IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 12)), 7777);

    fn json() -> String {
        format!(
            r#"{{"authenticationMethod":"5G_AKA","encPermanentKey":"{KEY}","algorithmId":"milenage","encOpcKey" : "{KEY}",
               "v":{{"kausf":"{KEY}{KEY}","rand":"00112233445566778899aabbccddeeff","access_token":"a\"{KEY}\\","n":1}}}}"#
        )
    }

    /// What of `json` may be left: the same length, no key.
    fn masked() -> String {
        let x = "x".repeat(KEY.len());
        // The escapes inside a masked value are masked, too.
        json().replace("a\\\"", "xxx").replace(&format!("{KEY}\\\\"), &format!("{KEY}xx")).replace(KEY, &x)
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// A client's connection with one request, whose content is cut into frames of `size`.
    fn connection(content: &[u8], size: usize) -> Vec<u8> {
        let mut octets = PREFACE.to_vec();
        octets.extend(frame(4, 0, 0, &[0; 12]));
        octets.extend(frame(HEADERS, 4, 1, b"\x83\x86\x44"));
        for part in content.chunks(size) {
            octets.extend(frame(DATA, 0, 1, part));
            // Frames of another stream come between.
            octets.extend(frame(8, 0, 0, &[0, 0, 1, 0]));
        }
        octets.extend(frame(DATA, END_STREAM, 1, b""));
        octets
    }

    fn packet(from: (IpAddr, u16), to: (IpAddr, u16), sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.0, to.0) else { panic!("IPv4 here") };
        let mut tcp = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        tcp.extend(sequence.to_be_bytes());
        tcp.extend([0, 0, 0, 0, 0x50, flags, 0xFF, 0xFF, 0, 0, 0, 0]);
        tcp.extend(payload);
        let ip = ipv4::Header::new(source, destination, 6).build(&tcp).unwrap();
        [&[0; 12][..], &[8, 0], &ip].concat()
    }

    const HEADERS_LEN: usize = 14 + 20 + 20;

    /// Sends `octets` in segments of `size` after a SYN; returns what would be written.
    fn capture(masks: &mut Masks, octets: &[u8], size: usize) -> Vec<u8> {
        let mut sequence = u32::MAX - 5;
        masks.mask(LinkType::Ethernet, &mut packet(CLIENT, SERVER, sequence, SYN, b""));
        sequence = sequence.wrapping_add(1);
        let mut written = Vec::new();
        for part in octets.chunks(size) {
            let mut packet = packet(CLIENT, SERVER, sequence, 0x18, part);
            let length = masks.mask(LinkType::Ethernet, &mut packet);
            written.extend(&packet[HEADERS_LEN..length]);
            sequence = sequence.wrapping_add(part.len() as u32);
        }
        written
    }

    #[test]
    fn keys_are_masked_however_frames_and_segments_cut_them() {
        let expected = masked();
        assert!(!expected.contains(KEY) && expected.contains("00112233445566778899aabbccddeeff"));
        assert_eq!(expected.len(), json().len());
        for frame_size in [1, 2, 7, 31, 64, 100, 1_000] {
            let octets = connection(json().as_bytes(), frame_size);
            let wanted = connection(expected.as_bytes(), frame_size);
            for segment_size in [1, 3, 8, 9, 10, 50, 1_460, 60_000] {
                let written = capture(&mut Masks::default(), &octets, segment_size);
                assert!(written == wanted, "frames of {frame_size}, segments of {segment_size}");
            }
        }
    }

    #[test]
    fn forms_are_masked_up_to_the_end_of_their_fields() {
        let form = format!("client_assertion={KEY}&grant_type=client_credentials&client_secret={KEY}");
        let wanted = form.replace(KEY, &"x".repeat(KEY.len()));
        for size in [1, 5, 40, 500] {
            let octets = connection(form.as_bytes(), size);
            let written = capture(&mut Masks::default(), &octets, 13);
            assert!(written == connection(wanted.as_bytes(), size), "frames of {size}");
        }
    }

    /// `authorization: Bearer …` as peers write it: Huffman coded or not, indexed or never indexed, padded, in pieces.
    #[test]
    fn access_tokens_are_masked_in_header_blocks() {
        let token = "7QPzv0dYzF".repeat(20);
        let string = |coded: u8, octets: &[u8]| {
            // 200 octets: 127 in the prefix, 73 after it.
            assert_eq!(octets.len(), 200);
            [&[coded | 127, 73][..], octets].concat()
        };
        // What Huffman coding made of it does not matter here: any 200 octets.
        let coded: Vec<u8> = (0..200).map(|n| n as u8 ^ 0xA5).collect();
        // 8 · 200 bits are 320 zeroes of five bits each, without padding.
        let zeroes = vec![0; 200];
        let blocks = [
            // Static name 23 with incremental indexing, and never indexed (15 + 8).
            (vec![0x40 | 23], string(0, token.as_bytes()), string(0, "x".repeat(200).as_bytes())),
            (vec![0x1F, 8], string(0x80, &coded), string(0x80, &zeroes)),
            // The name in letters, or from the dynamic table: long values are masked.
            ([&[0x00, 13][..], b"authorization"].concat(), string(0x80, &coded), string(0x80, &zeroes)),
            (vec![0x40 | 63, 9], string(0, token.as_bytes()), string(0, "x".repeat(200).as_bytes())),
            // A long path (static name 4) stays.
            (vec![0x04], string(0x80, &coded), string(0x80, &coded)),
        ];
        for (name, value, wanted) in blocks {
            // Around it: indexed fields, a change of the table's size, a short literal.
            let around = |value: &[u8]| {
                [
                    &[0x3F, 0xE1, 0x1F, 0x83, 0x87, 0x41, 3][..],
                    b"a.b",
                    &name,
                    value,
                    &[0xBE, 0x0F, 0x0D, 1, b'7'],
                ]
                .concat()
            };
            let (block, wanted) = (around(&value), around(&wanted));
            for (segment, cut) in [(1, 5), (7, 20), (1_000, 100), (1_000, 0)] {
                let connection = |block: &[u8]| {
                    let (first, second) = block.split_at(cut);
                    let padded = [&[2][..], &[0; 5], first, &[0, 0]].concat();
                    let frames =
                        [frame(HEADERS, PADDED | PRIORITY, 1, &padded), frame(CONTINUATION, 4, 1, second)];
                    [PREFACE, &frames.concat(), &frame(HEADERS, 4, 3, block)].concat()
                };
                let written = capture(&mut Masks::default(), &connection(&block), segment);
                assert!(written == connection(&wanted), "{name:02x?} {segment} {cut}");
            }
        }
    }

    #[test]
    fn other_protocols_and_the_answers_of_servers() {
        let text = format!("POST /nudr HTTP/1.1\r\ncontent-length: 1\r\n\r\n{}", json());
        let written = capture(&mut Masks::default(), text.as_bytes(), 100);
        assert_eq!(String::from_utf8(written).unwrap(), text.replace(&json(), &masked()));
        let answer =
            [frame(4, 0, 0, &[0; 6]), frame(HEADERS, 4, 1, b"\x88"), frame(DATA, 1, 1, json().as_bytes())];
        let wanted =
            [frame(4, 0, 0, &[0; 6]), frame(HEADERS, 4, 1, b"\x88"), frame(DATA, 1, 1, masked().as_bytes())];
        assert_eq!(capture(&mut Masks::default(), &answer.concat(), 33), wanted.concat());
        let tls = [&[TLS_HANDSHAKE, 3, 1, 0, 200][..], json().as_bytes()].concat();
        assert_eq!(capture(&mut Masks::default(), &tls, 50), tls, "no JSON, whatever it looks like");
    }

    #[test]
    fn what_cannot_be_followed_is_cut_off() {
        let mut masks = Masks::default();
        // The capture begins in the middle of a connection, and of a key.
        let middle = format!("{}\"}}", &KEY[7..]);
        let mut first = packet(CLIENT, SERVER, 1_000, 0x18, middle.as_bytes());
        assert_eq!(masks.mask(LinkType::Ethernet, &mut first), HEADERS_LEN);
        // Whole frames: followed from here on, but content that began before is masked whole.
        let whole = [frame(DATA, 0, 7, json().as_bytes()), frame(HEADERS, 4, 9, b"\x83")].concat();
        let mut second = packet(CLIENT, SERVER, 5_000, 0x18, &whole);
        assert_eq!(masks.mask(LinkType::Ethernet, &mut second), second.len());
        assert!(second[HEADERS_LEN + FRAME_HEADER..][..json().len()].iter().all(|octet| *octet == b'x'));
        let content = frame(DATA, 1, 9, json().as_bytes());
        let next = 5_000 + whole.len() as u32;
        let mut third = packet(CLIENT, SERVER, next, 0x18, &content);
        assert_eq!(masks.mask(LinkType::Ethernet, &mut third), third.len());
        assert_eq!(&third[HEADERS_LEN + FRAME_HEADER..], masked().as_bytes());
        // Sent again, in one piece or with more: cut off.
        let mut again = packet(CLIENT, SERVER, next, 0x18, &content);
        assert_eq!(masks.mask(LinkType::Ethernet, &mut again), HEADERS_LEN);
        // A lost packet, then the rest of a content.
        let mut late = packet(CLIENT, SERVER, next + 9_999, 0x18, json().as_bytes());
        assert_eq!(masks.mask(LinkType::Ethernet, &mut late), HEADERS_LEN);
        // Not TCP at all, or cut short.
        let mut odd = [&[0; 12][..], &[8, 0, 0x45], json().as_bytes()].concat();
        assert_eq!(masks.mask(LinkType::Ethernet, &mut odd), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut masks = Masks::default();
        for port in 0..2 * DIRECTIONS_MAX as u16 {
            masks.mask(LinkType::Ethernet, &mut packet((CLIENT.0, port), SERVER, 0, SYN, b""));
        }
        assert_eq!(masks.directions.len(), DIRECTIONS_MAX);
        let opened: Vec<u8> =
            (0..3_000).flat_map(|stream| frame(HEADERS, 4, 2 * stream + 1, b"\x83")).collect();
        capture(&mut masks, &[PREFACE, &opened].concat(), 5_000);
        assert!(masks.directions.values().all(|direction| direction.stream.contents.len() <= STREAMS_MAX));
        assert_eq!(masks.directions.len(), DIRECTIONS_MAX);
        let mut end = packet(CLIENT, SERVER, 0, FIN, b"");
        masks.mask(LinkType::Ethernet, &mut end);
        assert_eq!(masks.directions.len(), DIRECTIONS_MAX - 1, "an ended connection is forgotten");
    }
}
