//! Frames (§1.1, §3): octets to values and back, without state.
//!
//! A frame is an ID, a length and that many octets. In version 2 an ID with the top bit set says that type and flags
//! follow ([`Frame`]); all others are whole messages. [`Frame::decode`] takes the octets after the length.

use bytes::{Buf, Bytes};

use crate::error::{Code, Violation};

/// Length of a frame's header: its ID and its length field.
pub const HEADER: usize = 6;
/// The ID of a HELLO.
pub const HELLO_ID: u32 = u32::MAX;
/// Bit of the ID that marks a frame with type and flags (version 2).
pub const EXTENDED: u32 = 1 << 31;
/// In version 2 the IDs of calls are below this value.
pub const CALLS: u32 = 1 << 30;
/// Longest body of one frame. A longer body is cut into fragments of this length (§4.1).
pub const FRAGMENT: usize = 4096;
/// Longest text in ERROR and GO_AWAY, in octets.
pub const TEXT: usize = 1024;
/// Longest tracing context, in octets.
pub const TRACE: usize = 128;
/// The priority of a call that names none.
pub const PRIORITY: u8 = 3;
/// The least urgent priority.
pub const LEAST_URGENT: u8 = 7;

/// Flag of REQUEST, RESPONSE and DATA: further DATA frames of the message follow.
pub const MORE: u8 = 1;
/// Flag of REQUEST: the client expects no answer.
pub const ONE_WAY: u8 = 2;
/// Flag of ERROR: the server has not begun to work on the call.
pub const NOT_PROCESSED: u8 = 1;
/// Flag of CREDIT: the credit is for the connection, not for one call.
pub const CONNECTION: u8 = 1;

/// The numbers of the frame types.
pub mod kind {
    /// Begins a request.
    pub const REQUEST: u8 = 1;
    /// Begins a response.
    pub const RESPONSE: u8 = 2;
    /// Carries the next fragment of a request or response.
    pub const DATA: u8 = 3;
    /// Ends a call with an error code.
    pub const ERROR: u8 = 4;
    /// The client cancels a call.
    pub const CANCEL: u8 = 5;
    /// Allows the peer to send more DATA.
    pub const CREDIT: u8 = 6;
    /// Asks the peer to show that it is alive.
    pub const PING: u8 = 7;
    /// Answers a PING.
    pub const PONG: u8 = 8;
    /// The sender takes no new calls.
    pub const GO_AWAY: u8 = 9;
}

/// The side of a connection that sent a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that opened the connection.
    Client,
    /// The side that accepted the connection.
    Server,
}

/// The options of a REQUEST.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Milliseconds until the call's deadline.
    pub deadline_ms: Option<u32>,
    /// Priority, from 0 (most urgent) to 7 (least urgent).
    pub priority: u8,
    /// Tracing context, at most [`TRACE`] octets.
    pub trace: Option<Bytes>,
    /// Length of the whole body, when the client knows it.
    pub size: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { deadline_ms: None, priority: PRIORITY, trace: None, size: None }
    }
}

impl Options {
    /// Appends the options, preceded by their total length: at most 149 octets.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(0);
        if let Some(ms) = self.deadline_ms {
            out.extend_from_slice(&[1, 4]);
            out.extend_from_slice(&ms.to_be_bytes());
        }
        if self.priority != PRIORITY {
            out.extend_from_slice(&[2, 1, self.priority.min(LEAST_URGENT)]);
        }
        if let Some(trace) = &self.trace {
            let trace = &trace[..trace.len().min(TRACE)];
            out.extend_from_slice(&[3, trace.len() as u8]);
            out.extend_from_slice(trace);
        }
        if let Some(size) = self.size {
            out.extend_from_slice(&[4, 8]);
            out.extend_from_slice(&size.to_be_bytes());
        }
        out[start] = (out.len() - start - 1) as u8;
    }

    fn decode(mut octets: Bytes) -> Result<Self, Violation> {
        let mut options = Self::default();
        while let Some((&[kind, length], rest)) = octets.split_first_chunk() {
            let fits = Violation::Option(kind);
            let value = rest.get(..usize::from(length)).ok_or(fits)?;
            match kind {
                1 => options.deadline_ms = Some(u32::from_be_bytes(value.try_into().map_err(|_| fits)?)),
                2 => match *value {
                    [priority @ 0..=LEAST_URGENT] => options.priority = priority,
                    _ => return Err(fits),
                },
                3 if value.len() > TRACE => return Err(fits),
                3 => options.trace = Some(octets.slice_ref(value)),
                4 => options.size = Some(u64::from_be_bytes(value.try_into().map_err(|_| fits)?)),
                _ => {}
            }
            octets.advance(2 + usize::from(length));
        }
        if octets.is_empty() { Ok(options) } else { Err(Violation::Option(octets[0])) }
    }
}

/// A version 2 frame with type and flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Begins a request.
    Request {
        /// DATA frames with the rest of the body follow.
        more: bool,
        /// The client expects no answer.
        one_way: bool,
        /// Deadline, priority, tracing context and size.
        options: Options,
        /// The first fragment of the body.
        body: Bytes,
    },
    /// Begins a response.
    Response {
        /// DATA frames with the rest of the body follow.
        more: bool,
        /// The first fragment of the body.
        body: Bytes,
    },
    /// Carries the next fragment of a message.
    Data {
        /// Further DATA frames follow.
        more: bool,
        /// The fragment.
        body: Bytes,
    },
    /// Ends a call with an error.
    Error {
        /// Reason.
        code: Code,
        /// The server has not begun to work on the call, so the client may repeat it elsewhere.
        not_processed: bool,
        /// Explanation for people.
        text: Box<str>,
    },
    /// The client cancels a call.
    Cancel {
        /// Reason.
        code: Code,
    },
    /// Allows the peer to send more DATA.
    Credit {
        /// Whether the credit is for all messages of the connection together; otherwise it is for this call's
        /// message.
        connection: bool,
        /// Additional octets that the peer may send.
        octets: u32,
    },
    /// Asks the peer to show that it is alive.
    Ping([u8; 8]),
    /// Answers a PING with the octets of that PING.
    Pong([u8; 8]),
    /// The sender takes no new calls.
    GoAway {
        /// `NONE`, or the reason why the sender closes the connection at once.
        code: Code,
        /// Explanation for people.
        text: Box<str>,
    },
}

impl Frame {
    /// Decodes what follows the header of a frame whose ID has the top bit set. Returns the frame and the ID
    /// of its call.
    ///
    /// # Errors
    /// The rule that the frame breaks. The connection must be closed then.
    pub fn decode(id: u32, mut rest: Bytes, from: Side) -> Result<(u32, Self), Violation> {
        let call = id & !EXTENDED;
        let (&[kind, flags], _) = rest.split_first_chunk().ok_or(Violation::Short)?;
        rest.advance(2);
        let more = flags & MORE != 0;
        let from_client = from == Side::Client;
        let frame = match kind {
            kind::REQUEST if from_client => {
                let options = Options::decode(take_options(&mut rest)?)?;
                Self::Request { more, one_way: flags & ONE_WAY != 0, options, body: rest }
            }
            kind::RESPONSE if !from_client => {
                take_options(&mut rest)?;
                Self::Response { more, body: rest }
            }
            kind::DATA => Self::Data { more, body: rest },
            kind::ERROR if !from_client => {
                let code = take_code(&mut rest)?;
                Self::Error { code, not_processed: flags & NOT_PROCESSED != 0, text: text(&rest) }
            }
            kind::CANCEL if from_client => Self::Cancel { code: take_code(&mut rest)? },
            kind::CREDIT => {
                let octets = rest.first_chunk().ok_or(Violation::Short)?;
                Self::Credit { connection: flags & CONNECTION != 0, octets: u32::from_be_bytes(*octets) }
            }
            kind::PING => Self::Ping(*rest.first_chunk().ok_or(Violation::Short)?),
            kind::PONG => Self::Pong(*rest.first_chunk().ok_or(Violation::Short)?),
            kind::GO_AWAY => Self::GoAway { code: take_code(&mut rest)?, text: text(&rest) },
            kind::REQUEST | kind::RESPONSE | kind::ERROR | kind::CANCEL => {
                return Err(Violation::WrongSide(kind));
            }
            _ => return Err(Violation::UnknownType(kind)),
        };
        if call >= CALLS || (frame.of_connection() && call != 0) {
            return Err(Violation::Reserved(id));
        }
        Ok((call, frame))
    }

    /// Whether the frame is about the connection and not about one call.
    fn of_connection(&self) -> bool {
        let credit = matches!(self, Self::Credit { connection: true, .. });
        credit || matches!(self, Self::Ping(_) | Self::Pong(_) | Self::GoAway { .. })
    }

    /// Encodes the whole frame with its header. A body longer than [`FRAGMENT`] is cut off: the caller splits
    /// bodies before.
    pub fn encode(&self, call: u32, out: &mut Vec<u8>) {
        let (kind, flags) = self.kind_and_flags();
        let start = out.len();
        out.extend_from_slice(&(call | EXTENDED).to_be_bytes());
        out.extend_from_slice(&[0, 0, kind, flags]);
        match self {
            Self::Request { options, body, .. } => {
                options.encode(out);
                out.extend_from_slice(body);
            }
            Self::Response { body, .. } => {
                out.push(0);
                out.extend_from_slice(body);
            }
            Self::Data { body, .. } => out.extend_from_slice(body),
            Self::Error { code, text, .. } | Self::GoAway { code, text } => {
                out.extend_from_slice(&code.0.to_be_bytes());
                out.extend_from_slice(cut(text).as_bytes());
            }
            Self::Cancel { code } => out.extend_from_slice(&code.0.to_be_bytes()),
            Self::Credit { octets, .. } => out.extend_from_slice(&octets.to_be_bytes()),
            Self::Ping(octets) | Self::Pong(octets) => out.extend_from_slice(octets),
        }
        out.truncate(start + HEADER + usize::from(u16::MAX));
        let length = (out.len() - start - HEADER) as u16;
        out[start + 4..start + HEADER].copy_from_slice(&length.to_be_bytes());
    }

    fn kind_and_flags(&self) -> (u8, u8) {
        let flag = |set: &bool, flag: u8| if *set { flag } else { 0 };
        match self {
            Self::Request { more, one_way, .. } => (kind::REQUEST, flag(more, MORE) | flag(one_way, ONE_WAY)),
            Self::Response { more, .. } => (kind::RESPONSE, flag(more, MORE)),
            Self::Data { more, .. } => (kind::DATA, flag(more, MORE)),
            Self::Error { not_processed, .. } => (kind::ERROR, flag(not_processed, NOT_PROCESSED)),
            Self::Cancel { .. } => (kind::CANCEL, 0),
            Self::Credit { connection, .. } => (kind::CREDIT, flag(connection, CONNECTION)),
            Self::Ping(_) => (kind::PING, 0),
            Self::Pong(_) => (kind::PONG, 0),
            Self::GoAway { .. } => (kind::GO_AWAY, 0),
        }
    }
}

/// The header of a frame.
#[must_use]
pub fn header(id: u32, length: u16) -> [u8; HEADER] {
    let ([a, b, c, d], [e, f]) = (id.to_be_bytes(), length.to_be_bytes());
    [a, b, c, d, e, f]
}

/// ID and length of the frame that `octets` start with, if the header is complete.
#[must_use]
pub fn read_header(octets: &[u8]) -> Option<(u32, usize)> {
    let &[a, b, c, d, e, f] = octets.first_chunk()?;
    Some((u32::from_be_bytes([a, b, c, d]), usize::from(u16::from_be_bytes([e, f]))))
}

fn take_options(rest: &mut Bytes) -> Result<Bytes, Violation> {
    let length = usize::from(*rest.first().ok_or(Violation::Short)?);
    rest.advance(1);
    if length > rest.len() { Err(Violation::Short) } else { Ok(rest.split_to(length)) }
}

fn take_code(rest: &mut Bytes) -> Result<Code, Violation> {
    let code = u16::from_be_bytes(*rest.first_chunk().ok_or(Violation::Short)?);
    rest.advance(2);
    Ok(Code(code))
}

/// Decodes a text for people: invalid UTF-8 is replaced, and what exceeds [`TEXT`] octets is cut off.
fn text(octets: &[u8]) -> Box<str> {
    cut(&String::from_utf8_lossy(&octets[..octets.len().min(TEXT)])).into()
}

/// The longest prefix of `text` with at most [`TEXT`] octets.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT)]
}
