//! What goes wrong, by whose fault: [`Code`] on the wire (§7), [`ConnectionError`] and [`CallError`] here.

use std::fmt;

/// An error code of the wire (§7). From 256 on the application's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u16);

impl Code {
    /// No error: only in GO_AWAY.
    pub const NONE: Self = Self(0);
    /// A frame that the specification does not allow.
    pub const PROTOCOL: Self = Self(1);
    /// The server failed.
    pub const INTERNAL: Self = Self(2);
    /// The side is going away.
    pub const REFUSED: Self = Self(3);
    /// A limit is reached; later it may work.
    pub const OVERLOADED: Self = Self(4);
    /// The call's time is over.
    pub const DEADLINE: Self = Self(5);
    /// Nobody waits any more.
    pub const CANCELLED: Self = Self(6);
    /// The message is longer than the receiver takes.
    pub const TOO_LARGE: Self = Self(7);
    /// More was sent than there was credit for.
    pub const FLOW_CONTROL: Self = Self(8);
    /// Too many frames that do nothing.
    pub const ABUSE: Self = Self(9);
    /// A frame or message was begun and not finished, or nothing was read.
    pub const TIMEOUT: Self = Self(10);
    /// The application's first code.
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

/// What about a frame was not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Shorter than its type needs.
    #[error("a frame is shorter than its type needs")]
    Short,
    /// The reserved bit, or a call number where there must be none.
    #[error("a reserved bit is set in the ID {0:#010x}")]
    Reserved(u32),
    /// A frame type that does not exist.
    #[error("frame type {0} does not exist")]
    UnknownType(u8),
    /// A type that only the other side may send.
    #[error("a frame of type {0} came from the wrong side")]
    WrongSide(u8),
    /// An option that does not fit.
    #[error("option {0} does not fit")]
    Option(u8),
    /// A request with the ID of one that is open.
    #[error("the ID {0} is of a call that is open")]
    Duplicate(u32),
    /// A message of a call began twice, or went on after its end.
    #[error("a message of call {0} began twice or went on after its end")]
    Sequence(u32),
}

/// Why a connection is over. By blame: the peer's frames, the peer's silence, the stream, or nobody's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The peer sent what the specification does not allow.
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] Violation),
    /// The peer sent more than it had credit for, or gave more credit than there can be.
    #[error("the peer broke flow control")]
    FlowControl,
    /// The peer sent too many frames that do nothing.
    #[error("the peer sent too many frames that do nothing")]
    Abuse,
    /// A frame was begun and not finished in time.
    #[error("a frame was not finished in time")]
    FrameTimeout,
    /// The peer read nothing for too long.
    #[error("the peer reads nothing")]
    WriteTimeout,
    /// Nothing came for too long, not even the answer to a PING.
    #[error("the peer is silent")]
    Silent,
    /// The peer ended the connection with this code.
    #[error("the peer closed the connection: {code} {text}")]
    Peer {
        /// From the peer's GO_AWAY.
        code: Code,
        /// For people.
        text: Box<str>,
    },
    /// The stream ended between frames.
    #[error("the connection was closed")]
    Closed,
    /// The stream ended in the middle of a frame.
    #[error("the connection was closed in the middle of a frame")]
    Truncated,
    /// The stream failed; the driver says so.
    #[error("the connection failed: {0}")]
    Io(std::io::ErrorKind),
    /// TLS failed; the driver says so.
    #[error("TLS failed: {0}")]
    Tls(Box<str>),
    /// We closed it.
    #[error("closed on our side")]
    Local,
}

impl ConnectionError {
    /// What GO_AWAY tells the peer about it; nothing when the stream is gone anyway.
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

    /// Whether the peer's frames are to blame.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Protocol(_) | Self::FlowControl | Self::Abuse)
    }
}

/// Why a call was not taken, or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// As many calls are open, or octets queued, as there may be; later it works.
    #[error("too many calls or octets wait; later it works")]
    Busy,
    /// The message is longer than the peer takes, or its answer than we do.
    #[error("the message is too long")]
    TooLarge,
    /// The peer speaks version 1, which cannot carry this call.
    #[error("the call needs version 2 and the peer speaks version 1")]
    NeedsVersion2,
    /// One side is going away; another connection may take the call.
    #[error("the connection takes no new calls")]
    GoingAway,
    /// The call's deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// Nothing came for too long, or the peer gave no credit for too long.
    #[error("the call made no progress for too long")]
    Timeout,
    /// More of unfinished messages than we hold at once.
    #[error("too much of unfinished messages is held")]
    Overloaded,
    /// There is no such call, or no longer.
    #[error("there is no such call")]
    Unknown,
    /// The server answered with an error.
    #[error("the server answered {code}: {text}")]
    Remote {
        /// Of §7, or the application's.
        code: Code,
        /// The server has not begun with it.
        not_processed: bool,
        /// For people.
        text: Box<str>,
    },
    /// The connection ended before the answer.
    #[error("{error}")]
    Connection {
        /// Why it ended.
        error: ConnectionError,
        /// Whether anything of the call may have left; if not, it may be repeated.
        sent: bool,
    },
}

impl CallError {
    /// Whether the server has surely not begun with the call, so that it may be repeated elsewhere.
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
