//! Errors, grouped by who caused them: [`Code`] on the wire (§7), [`ConnectionError`] and [`CallError`] for
//! the caller.

use std::fmt;

/// An error code on the wire (§7). Codes from 256 on belong to the application.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u16);

impl Code {
    /// No error: only in GO_AWAY.
    pub const NONE: Self = Self(0);
    /// A frame that the specification does not allow.
    pub const PROTOCOL: Self = Self(1);
    /// The server failed while it worked on the call.
    pub const INTERNAL: Self = Self(2);
    /// The side is shutting down and takes no new calls.
    pub const REFUSED: Self = Self(3);
    /// A limit is reached. The same call may succeed later.
    pub const OVERLOADED: Self = Self(4);
    /// The call's deadline has passed.
    pub const DEADLINE: Self = Self(5);
    /// The caller has cancelled the call.
    pub const CANCELLED: Self = Self(6);
    /// The message is longer than the receiver accepts.
    pub const TOO_LARGE: Self = Self(7);
    /// The peer sent more octets than it had credit for.
    pub const FLOW_CONTROL: Self = Self(8);
    /// The peer sent too many frames without effect.
    pub const ABUSE: Self = Self(9);
    /// The peer did not finish a frame or message in time, or read nothing for too long.
    pub const TIMEOUT: Self = Self(10);
    /// The first code that an application may define.
    pub const APPLICATION: Self = Self(256);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::NONE => "NONE",
            Self::PROTOCOL => "PROTOCOL",
            Self::INTERNAL => "INTERNAL",
            Self::REFUSED => "REFUSED",
            Self::OVERLOADED => "OVERLOADED",
            Self::DEADLINE => "DEADLINE",
            Self::CANCELLED => "CANCELLED",
            Self::TOO_LARGE => "TOO_LARGE",
            Self::FLOW_CONTROL => "FLOW_CONTROL",
            Self::ABUSE => "ABUSE",
            Self::TIMEOUT => "TIMEOUT",
            Self(number) => return write!(f, "{number}"),
        };
        f.write_str(name)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The rule that a received frame breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The frame is shorter than its type requires.
    #[error("a frame is shorter than its type needs")]
    Short,
    /// The reserved bit is set, or a frame of the connection has a call number.
    #[error("a reserved bit is set in the ID {0:#010x}")]
    Reserved(u32),
    /// The frame type does not exist.
    #[error("frame type {0} does not exist")]
    UnknownType(u8),
    /// Only the other side may send this frame type.
    #[error("a frame of type {0} came from the wrong side")]
    WrongSide(u8),
    /// An option's value is out of range or has the wrong length.
    #[error("option {0} does not fit")]
    Option(u8),
    /// The request has the ID of a call that is still open.
    #[error("the ID {0} is of a call that is open")]
    Duplicate(u32),
    /// A message of the call started twice, or went on after its last fragment.
    #[error("a message of call {0} began twice or went on after its end")]
    Sequence(u32),
}

/// Why a connection ended. Variants tell who caused it: the peer's frames, the peer's silence, the stream, or
/// this side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The peer broke a rule of the specification.
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] Violation),
    /// The peer sent more than it had credit for, or granted more credit than the specification allows.
    #[error("the peer broke flow control")]
    FlowControl,
    /// The peer sent too many frames without effect.
    #[error("the peer sent too many frames that do nothing")]
    Abuse,
    /// The peer did not finish a frame in time.
    #[error("a frame was not finished in time")]
    FrameTimeout,
    /// The peer read nothing for too long.
    #[error("the peer reads nothing")]
    WriteTimeout,
    /// The peer sent nothing for too long, not even a PONG.
    #[error("the peer is silent")]
    Silent,
    /// The peer ended the connection with this code.
    #[error("the peer closed the connection: {code} {text}")]
    Peer {
        /// Code of the peer's GO_AWAY.
        code: Code,
        /// Explanation for people.
        text: Box<str>,
    },
    /// The stream ended between frames.
    #[error("the connection was closed")]
    Closed,
    /// The stream ended in the middle of a frame.
    #[error("the connection was closed in the middle of a frame")]
    Truncated,
    /// The stream failed. The driver supplies the reason.
    #[error("the connection failed: {0}")]
    Io(std::io::ErrorKind),
    /// TLS failed. The driver supplies the reason.
    #[error("TLS failed: {0}")]
    Tls(Box<str>),
    /// This side closed the connection.
    #[error("closed on our side")]
    Local,
}

impl ConnectionError {
    /// The code that GO_AWAY tells the peer; `None` when the stream is closed already.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Protocol(_) => Some(Code::PROTOCOL),
            Self::FlowControl => Some(Code::FLOW_CONTROL),
            Self::Abuse => Some(Code::ABUSE),
            Self::FrameTimeout | Self::WriteTimeout | Self::Silent => Some(Code::TIMEOUT),
            Self::Local => Some(Code::NONE),
            Self::Peer { .. } | Self::Closed | Self::Truncated | Self::Io(_) | Self::Tls(_) => None,
        }
    }

    /// Whether a frame of the peer caused the end.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Protocol(_) | Self::FlowControl | Self::Abuse)
    }
}

/// Why a call was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The limit of open calls or of queued octets is reached. The same call may succeed later.
    #[error("too many calls or octets wait; later it works")]
    Busy,
    /// The request is longer than the peer accepts, or the answer is longer than this side accepts.
    #[error("the message is too long")]
    TooLarge,
    /// The peer speaks version 1, which cannot carry this call.
    #[error("the call needs version 2 and the peer speaks version 1")]
    NeedsVersion2,
    /// One side is shutting down. The call may succeed on another connection.
    #[error("the connection takes no new calls")]
    GoingAway,
    /// The call's deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The server sent nothing for too long, or granted no credit for too long.
    #[error("the call made no progress for too long")]
    Timeout,
    /// The unfinished messages together exceed what this side holds.
    #[error("too much of unfinished messages is held")]
    Overloaded,
    /// The call does not exist, or has ended.
    #[error("there is no such call")]
    Unknown,
    /// The server answered with an error.
    #[error("the server answered {code}: {text}")]
    Remote {
        /// A code of §7, or one that the application defined.
        code: Code,
        /// The server has not begun to work on the call.
        not_processed: bool,
        /// Explanation for people.
        text: Box<str>,
    },
    /// The connection ended before the answer.
    #[error("{error}")]
    Connection {
        /// Why it ended.
        error: ConnectionError,
        /// Whether octets of the call may have reached the stream. If not, the call may be repeated.
        sent: bool,
    },
}

impl CallError {
    /// Whether the server has certainly not begun to work on the call, so that it may be repeated elsewhere.
    #[must_use]
    pub fn not_processed(&self) -> bool {
        match self {
            Self::Busy | Self::GoingAway | Self::NeedsVersion2 => true,
            Self::Remote { not_processed, .. } => *not_processed,
            Self::Connection { sent, .. } => !sent,
            Self::TooLarge | Self::Deadline | Self::Timeout | Self::Overloaded | Self::Unknown => false,
        }
    }
}
