//! GTP-U (TS 29.281) with the PDU Session Container (TS 38.415).
//!
//! ```text
//!  0                1        2       3
//!  ver PT 0 E S PN  type     length (octets after the first eight)
//!  TEID
//!  sequence number           N-PDU   next extension type      present if E, S or PN
//!  [length in words, content…, next extension type]*          while the type is not 0
//! ```
//! [`Packet::new`] walks the extension chain once; the packet path then only asks for the payload and
//! the PDU Session Container. [`encapsulate`] writes a header in front of a payload in place.

use std::net::IpAddr;

use crate::{ParseError, be16, be32, nr_u};

/// The UDP port of GTP-U.
pub const PORT: u16 = 2152;
/// Length of the mandatory header.
pub const HEADER_LEN: usize = 8;
/// Most extension headers that are walked. TS 29.281 defines fewer kinds, each at most once.
pub const MAX_EXTENSIONS: usize = 8;
/// Octets that [`encapsulate`] writes with a PDU Session Container, hence headroom that buffers need.
pub const MAX_ENCAPSULATION: usize = 16;

/// Message types of TS 29.281 §6.1.
pub mod message_type {
    /// Echo Request.
    pub const ECHO_REQUEST: u8 = 1;
    /// Echo Response.
    pub const ECHO_RESPONSE: u8 = 2;
    /// Error Indication.
    pub const ERROR_INDICATION: u8 = 26;
    /// Supported Extension Headers Notification.
    pub const SUPPORTED_EXTENSION_HEADERS: u8 = 31;
    /// Tunnel Status.
    pub const TUNNEL_STATUS: u8 = 253;
    /// End Marker.
    pub const END_MARKER: u8 = 254;
    /// G-PDU: a user packet.
    pub const G_PDU: u8 = 255;
}

/// Extension header types of TS 29.281 §5.2.1.
pub mod extension_type {
    /// No more extension headers.
    pub const NONE: u8 = 0x00;
    /// Service Class Indicator.
    pub const SERVICE_CLASS: u8 = 0x20;
    /// UDP Port, in Error Indications.
    pub const UDP_PORT: u8 = 0x40;
    /// RAN Container.
    pub const RAN_CONTAINER: u8 = 0x81;
    /// Long PDCP PDU Number.
    pub const LONG_PDCP_PDU_NUMBER: u8 = 0x82;
    /// Xw RAN Container.
    pub const XW_RAN_CONTAINER: u8 = 0x83;
    /// NR RAN Container.
    pub const NR_RAN_CONTAINER: u8 = 0x84;
    /// PDU Session Container (TS 38.415).
    pub const PDU_SESSION_CONTAINER: u8 = 0x85;
    /// PDCP PDU Number.
    pub const PDCP_PDU_NUMBER: u8 = 0xC0;
}

/// Information elements of TS 29.281 §8.
mod ie {
    pub const RECOVERY: u8 = 14;
    pub const TEID_DATA: u8 = 16;
    pub const PEER_ADDRESS: u8 = 133;
    pub const EXTENSION_TYPE_LIST: u8 = 141;
}

const FLAG_PN: u8 = 0x01;
const FLAG_S: u8 = 0x02;
const FLAG_E: u8 = 0x04;
const VERSION_1_GTP: u8 = 0x30;

/// The PDU Session Container (TS 38.415 §5.5.2): which QoS flow a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PduSession {
    /// PDU type 0: from the UPF to the gNB.
    Downlink {
        /// QoS flow identifier, 6 bits.
        qfi: u8,
        /// Reflective QoS: the UE derives an uplink rule from this packet.
        rqi: bool,
        /// Paging policy indicator, 3 bits.
        ppi: Option<u8>,
    },
    /// PDU type 1: from the gNB to the UPF.
    Uplink {
        /// QoS flow identifier, 6 bits.
        qfi: u8,
    },
}

impl PduSession {
    /// The QoS flow identifier of either direction.
    pub fn qfi(&self) -> u8 {
        match self {
            PduSession::Downlink { qfi, .. } | PduSession::Uplink { qfi } => *qfi,
        }
    }

    /// Reads the content of the extension header. The optional fields (delay measurement, sequence
    /// numbers) are checked for presence and skipped.
    pub fn parse(content: &[u8]) -> Result<PduSession, ParseError> {
        let [first, second, rest @ ..] = content else { return Err(ParseError::Truncated) };
        let bit = |octet: u8, mask: u8, octets: usize| if octet & mask != 0 { octets } else { 0 };
        let qfi = second & 0x3F;
        match first >> 4 {
            0 => {
                let with_ppi = second & 0x80 != 0;
                // QMP: sending time stamp; SNP and MSNP: sequence numbers.
                let needed =
                    usize::from(with_ppi) + bit(*first, 8, 8) + bit(*first, 4, 3) + bit(*first, 2, 4);
                if rest.len() < needed {
                    return Err(ParseError::Truncated);
                }
                let ppi = with_ppi.then(|| rest[0] >> 5);
                Ok(PduSession::Downlink { qfi, rqi: second & 0x40 != 0, ppi })
            }
            1 => {
                // QMP: three time stamps; delay results of 4 octets; sequence number; N3/N9 delay.
                let needed = bit(*first, 8, 24)
                    + bit(*first, 4, 4)
                    + bit(*first, 2, 4)
                    + bit(*first, 1, 3)
                    + bit(*second, 0x80, 4);
                if rest.len() < needed { Err(ParseError::Truncated) } else { Ok(PduSession::Uplink { qfi }) }
            }
            _ => Err(ParseError::Value),
        }
    }

    /// The extension header: its length in words, the first two octets of its content, and the third one, with the paging
    /// policy indicator, where there is one.
    #[inline(always)]
    fn content(&self) -> (u8, [u8; 2], Option<u8>) {
        match *self {
            PduSession::Uplink { qfi } => (1, [0x10, qfi & 0x3F], None),
            PduSession::Downlink { qfi, rqi, ppi: None } => (1, [0, u8::from(rqi) << 6 | qfi & 0x3F], None),
            PduSession::Downlink { qfi, rqi, ppi: Some(ppi) } => {
                (2, [0, 0x80 | u8::from(rqi) << 6 | qfi & 0x3F], Some((ppi & 7) << 5))
            }
        }
    }
}

/// A GTP-U message whose header and extension chain have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    header_len: usize,
    pdu_session: Option<PduSession>,
    udp_port: Option<u16>,
    unknown_required: Option<u8>,
}

impl<'a> Packet<'a> {
    /// Checks version, length and the extension chain. Octets beyond the length field are left out.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        if bytes.len() < HEADER_LEN {
            return Err(ParseError::Truncated);
        }
        let flags = bytes[0];
        // Version 1 and protocol type GTP (not GTP').
        if flags & 0xF0 != VERSION_1_GTP {
            return Err(ParseError::Version);
        }
        let total = HEADER_LEN + usize::from(be16(bytes, 2));
        if bytes.len() < total {
            return Err(ParseError::Truncated);
        }
        let mut packet = Packet {
            bytes: &bytes[..total],
            header_len: HEADER_LEN,
            pdu_session: None,
            udp_port: None,
            unknown_required: None,
        };
        if flags & (FLAG_E | FLAG_S | FLAG_PN) != 0 {
            packet.header_len += 4;
            if total < packet.header_len {
                return Err(ParseError::Length);
            }
            if flags & FLAG_E != 0 {
                packet.walk_extensions()?;
            }
        }
        Ok(packet)
    }

    fn walk_extensions(&mut self) -> Result<(), ParseError> {
        let mut kind = self.bytes[HEADER_LEN + 3];
        for _ in 0..MAX_EXTENSIONS {
            if kind == extension_type::NONE {
                return Ok(());
            }
            let words = *self.bytes.get(self.header_len).ok_or(ParseError::Length)?;
            let length = usize::from(words) * 4;
            if length == 0 {
                return Err(ParseError::Length);
            }
            let extension =
                self.bytes.get(self.header_len..self.header_len + length).ok_or(ParseError::Length)?;
            let content = &extension[1..length - 1];
            match kind {
                extension_type::PDU_SESSION_CONTAINER => {
                    self.pdu_session = Some(PduSession::parse(content)?);
                }
                extension_type::UDP_PORT => self.udp_port = Some(be16(content, 0)),
                extension_type::SERVICE_CLASS
                | extension_type::RAN_CONTAINER
                | extension_type::LONG_PDCP_PDU_NUMBER
                | extension_type::XW_RAN_CONTAINER
                | extension_type::NR_RAN_CONTAINER
                | extension_type::PDCP_PDU_NUMBER => {}
                // The top bit says that the endpoint must understand the header (§5.2.1).
                unknown if unknown & 0x80 != 0 => self.unknown_required = Some(unknown),
                _ => {}
            }
            kind = extension[length - 1];
            self.header_len += length;
        }
        if kind == extension_type::NONE { Ok(()) } else { Err(ParseError::TooManyExtensions) }
    }

    /// Message type, see [`message_type`].
    pub fn message_type(&self) -> u8 {
        self.bytes[1]
    }

    /// Tunnel endpoint identifier.
    pub fn teid(&self) -> u32 {
        be32(self.bytes, 4)
    }

    /// Sequence number, when the S flag is set.
    pub fn sequence(&self) -> Option<u16> {
        (self.bytes[0] & FLAG_S != 0).then(|| be16(self.bytes, HEADER_LEN))
    }

    /// The PDU Session Container, if present.
    pub fn pdu_session(&self) -> Option<PduSession> {
        self.pdu_session
    }

    /// The UDP Port extension header, if present.
    pub fn udp_port(&self) -> Option<u16> {
        self.udp_port
    }

    /// An extension header that the receiver must understand and that we do not know: the packet is
    /// dropped and answered with a Supported Extension Headers Notification (§5.2.1).
    pub fn unknown_required_extension(&self) -> Option<u8> {
        self.unknown_required
    }

    /// The content of the first extension header of a type. Walks the chain again.
    pub fn extension(&self, kind: u8) -> Option<&'a [u8]> {
        if self.bytes[0] & FLAG_E == 0 {
            return None;
        }
        let (mut next, mut at) = (self.bytes[HEADER_LEN + 3], HEADER_LEN + 4);
        // `new` has checked the chain.
        while next != extension_type::NONE && at < self.header_len {
            let end = at + usize::from(self.bytes[at]) * 4;
            let extension = self.bytes.get(at..end)?;
            let [_, content @ .., following] = extension else { return None };
            if next == kind {
                return Some(content);
            }
            (next, at) = (*following, end);
        }
        None
    }

    /// Length of header and extension headers.
    pub fn header_len(&self) -> usize {
        self.header_len
    }

    /// The user packet of a G-PDU, or the information elements of another message.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len..]
    }

    /// The whole message without trailing octets.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// How many octets [`encapsulate`] writes.
#[inline]
pub const fn encapsulation_len(pdu_session: Option<PduSession>) -> usize {
    match pdu_session {
        None => HEADER_LEN,
        Some(PduSession::Downlink { ppi: Some(_), .. }) => HEADER_LEN + 4 + 8,
        Some(_) => HEADER_LEN + 4 + 4,
    }
}

/// Writes the header of a G-PDU into the end of `headroom`, right in front of a payload of
/// `payload_len` octets, and returns how many octets it took. `None`: not enough room, or a payload
/// that the length field cannot express.
#[inline(always)]
pub fn encapsulate(
    headroom: &mut [u8],
    teid: u32,
    payload_len: usize,
    pdu_session: Option<PduSession>,
) -> Option<usize> {
    let length = encapsulation_len(pdu_session);
    let announced = u16::try_from(payload_len + length - HEADER_LEN).ok()?;
    let [l0, l1] = announced.to_be_bytes();
    let [t0, t1, t2, t3] = teid.to_be_bytes();
    let plain = [VERSION_1_GTP, message_type::G_PDU, l0, l1, t0, t1, t2, t3];
    let Some(container) = pdu_session else {
        *headroom.last_chunk_mut()? = plain;
        return Some(length);
    };
    let (words, [c0, c1], indicator) = container.content();
    let next = indicator.unwrap_or(extension_type::NONE);
    // One value, so that the compiler makes one store of it.
    let head: [u8; 16] = [
        VERSION_1_GTP | FLAG_E,
        message_type::G_PDU,
        l0,
        l1,
        t0,
        t1,
        t2,
        t3,
        0,
        0,
        0,
        extension_type::PDU_SESSION_CONTAINER,
        words,
        c0,
        c1,
        next,
    ];
    if indicator.is_none() {
        *headroom.last_chunk_mut()? = head;
    } else {
        let out: &mut [u8; 20] = headroom.last_chunk_mut()?;
        out[..16].copy_from_slice(&head);
        out[16..].copy_from_slice(&[0, 0, 0, extension_type::NONE]);
    }
    Some(length)
}

/// A whole G-PDU; for tests and control messages.
pub fn build_gpdu(teid: u32, pdu_session: Option<PduSession>, payload: &[u8]) -> Result<Vec<u8>, ParseError> {
    let length = encapsulation_len(pdu_session);
    let mut out = vec![0; length];
    encapsulate(&mut out, teid, payload.len(), pdu_session).ok_or(ParseError::Length)?;
    out.extend_from_slice(payload);
    Ok(out)
}

/// A message other than a G-PDU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Signalling {
    /// Echo Request: is the path alive (§7.2.1).
    EchoRequest {
        /// Repeated by the response.
        sequence: u16,
    },
    /// Echo Response (§7.2.2). The restart counter is sent as 0 and ignored.
    EchoResponse {
        /// That of the request.
        sequence: u16,
    },
    /// A G-PDU came for a tunnel that does not exist (§7.3.1).
    ErrorIndication {
        /// TEID of that G-PDU.
        teid: u32,
        /// Address it was sent to.
        peer: IpAddr,
        /// Source port of that G-PDU.
        udp_port: Option<u16>,
    },
    /// No more packets on this tunnel: the path has been switched (§7.3.2).
    EndMarker {
        /// The tunnel.
        teid: u32,
        /// QoS flow container, when the sender adds one.
        pdu_session: Option<PduSession>,
    },
    /// The extension headers that the sender supports (§7.2.3).
    SupportedExtensionHeaders {
        /// Their types.
        types: Vec<u8>,
    },
}

impl Signalling {
    /// Reads a signalling message; G-PDUs and unknown types are [`ParseError::Value`].
    pub fn parse(packet: &Packet<'_>) -> Result<Signalling, ParseError> {
        match packet.message_type() {
            message_type::ECHO_REQUEST => {
                Ok(Signalling::EchoRequest { sequence: packet.sequence().ok_or(ParseError::Value)? })
            }
            message_type::ECHO_RESPONSE => {
                Ok(Signalling::EchoResponse { sequence: packet.sequence().ok_or(ParseError::Value)? })
            }
            message_type::ERROR_INDICATION => {
                let (mut teid, mut peer) = (None, None);
                for element in Elements(packet.payload()) {
                    let (kind, value) = element?;
                    match (kind, value.len()) {
                        (ie::TEID_DATA, 4) => teid = Some(be32(value, 0)),
                        (ie::PEER_ADDRESS, 4) => {
                            peer = Some(IpAddr::from([value[0], value[1], value[2], value[3]]));
                        }
                        (ie::PEER_ADDRESS, 16) => peer = Some(IpAddr::from(crate::octets16(value, 0))),
                        (ie::PEER_ADDRESS, _) => return Err(ParseError::Length),
                        _ => {}
                    }
                }
                Ok(Signalling::ErrorIndication {
                    teid: teid.ok_or(ParseError::Value)?,
                    peer: peer.ok_or(ParseError::Value)?,
                    udp_port: packet.udp_port(),
                })
            }
            message_type::END_MARKER => {
                Ok(Signalling::EndMarker { teid: packet.teid(), pdu_session: packet.pdu_session() })
            }
            message_type::SUPPORTED_EXTENSION_HEADERS => {
                for element in Elements(packet.payload()) {
                    if let (ie::EXTENSION_TYPE_LIST, types) = element? {
                        return Ok(Signalling::SupportedExtensionHeaders { types: types.to_vec() });
                    }
                }
                Err(ParseError::Value)
            }
            _ => Err(ParseError::Value),
        }
    }

    /// The whole message.
    pub fn build(&self) -> Vec<u8> {
        match self {
            Signalling::EchoRequest { sequence } => {
                with_sequence(message_type::ECHO_REQUEST, *sequence, &[], &[])
            }
            Signalling::EchoResponse { sequence } => {
                with_sequence(message_type::ECHO_RESPONSE, *sequence, &[], &[ie::RECOVERY, 0])
            }
            Signalling::ErrorIndication { teid, peer, udp_port } => {
                let mut body = vec![ie::TEID_DATA];
                body.extend_from_slice(&teid.to_be_bytes());
                match peer {
                    IpAddr::V4(address) => {
                        body.extend_from_slice(&[ie::PEER_ADDRESS, 0, 4]);
                        body.extend_from_slice(&address.octets());
                    }
                    IpAddr::V6(address) => {
                        body.extend_from_slice(&[ie::PEER_ADDRESS, 0, 16]);
                        body.extend_from_slice(&address.octets());
                    }
                }
                let extension = udp_port.map(|port| {
                    let [high, low] = port.to_be_bytes();
                    [1, high, low, extension_type::NONE]
                });
                with_sequence(
                    message_type::ERROR_INDICATION,
                    0,
                    extension.as_ref().map_or(&[][..], |octets| octets),
                    &body,
                )
            }
            Signalling::EndMarker { teid, pdu_session } => {
                let mut out = vec![0; encapsulation_len(*pdu_session)];
                // Room and length are right by construction, so this cannot fail.
                let _ = encapsulate(&mut out, *teid, 0, *pdu_session);
                out[1] = message_type::END_MARKER;
                out
            }
            Signalling::SupportedExtensionHeaders { types } => {
                let types = &types[..types.len().min(255)];
                let mut body = vec![ie::EXTENSION_TYPE_LIST, types.len() as u8];
                body.extend_from_slice(types);
                with_sequence(message_type::SUPPORTED_EXTENSION_HEADERS, 0, &[], &body)
            }
        }
    }

    /// Our answer to an extension header that we do not know: the list of those that we do.
    pub fn our_extension_headers() -> Signalling {
        Signalling::SupportedExtensionHeaders {
            types: vec![extension_type::UDP_PORT, extension_type::PDU_SESSION_CONTAINER],
        }
    }
}

/// A message on TEID 0 with a sequence number and at most one extension header (UDP Port).
fn with_sequence(kind: u8, sequence: u16, extension: &[u8], body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + 4 + extension.len() + body.len());
    let (flags, next) = if extension.is_empty() {
        (VERSION_1_GTP | FLAG_S, extension_type::NONE)
    } else {
        (VERSION_1_GTP | FLAG_S | FLAG_E, extension_type::UDP_PORT)
    };
    out.extend_from_slice(&[flags, kind]);
    out.extend_from_slice(&((4 + extension.len() + body.len()) as u16).to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&sequence.to_be_bytes());
    out.extend_from_slice(&[0, next]);
    out.extend_from_slice(extension);
    out.extend_from_slice(body);
    out
}

/// Information elements: type below 128 has a fixed length by type, others carry theirs (§8.1).
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = Result<(u8, &'a [u8]), ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let kind = *self.0.first()?;
        let (start, length) = match kind {
            ie::RECOVERY => (1, 1),
            ie::TEID_DATA => (1, 4),
            // The one element whose length has one octet.
            ie::EXTENSION_TYPE_LIST if self.0.len() >= 2 => (2, usize::from(self.0[1])),
            128.. if self.0.len() >= 3 => (3, usize::from(be16(self.0, 1))),
            128.. => {
                self.0 = &[];
                return Some(Err(ParseError::Truncated));
            }
            // A fixed-length element that is not known cannot be skipped.
            _ => {
                self.0 = &[];
                return Some(Err(ParseError::Value));
            }
        };
        let Some(value) = self.0.get(start..start + length) else {
            self.0 = &[];
            return Some(Err(ParseError::Truncated));
        };
        self.0 = &self.0[start + length..];
        Some(Ok((kind, value)))
    }
}

/// Decodes a datagram received on the GTP-U port with every decoder there is. The fuzzer starts here.
pub fn decode(bytes: &[u8]) -> Result<Option<Signalling>, ParseError> {
    let packet = Packet::new(bytes)?;
    if packet.message_type() == message_type::G_PDU {
        nr_u::Message::of(&packet)?;
        return Ok(None);
    }
    Signalling::parse(&packet).map(Some)
}
