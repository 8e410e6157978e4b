//! What can be wrong with a message.

/// A value of ours that the standard does not allow, for example a list that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("does not encode: {0}")]
pub struct EncodeError(#[from] per::EncodeError);

/// Why a received message is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The octets are no encoding of the message.
    #[error("transfer syntax error: {0}")]
    Syntax(#[from] per::DecodeError),
    /// The standard has this message, member or value; this network does not use it.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// A value that its type does not allow.
    #[error("invalid {0}")]
    Value(&'static str),
}
