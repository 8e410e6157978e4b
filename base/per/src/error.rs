//! What can be wrong with a value to encode and with received octets.

/// A value that its ASN.1 type does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// An integer outside its bounds, or an index at or above the count of values.
    #[error("the value {0} is out of range")]
    Range(i64),
    /// A string or list of a size that is not allowed, or a list too long for one fragment.
    #[error("a size of {0} is not allowed")]
    Size(usize),
    /// A character that the string type does not have.
    #[error("the character {0:?} is not allowed")]
    Character(char),
}

/// Octets that are no encoding of the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at bit {bit}")]
pub struct DecodeError {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Where, counted from the start of the octets. Within a fragmented open type: from its start.
    pub bit: usize,
}

/// What is wrong with received octets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// They end too early.
    #[error("truncated")]
    Truncated,
    /// An integer or index outside its bounds, or an integer of more than 64 bits.
    #[error("value out of range")]
    Range,
    /// A string or list of a size that is not allowed.
    #[error("size not allowed")]
    Size,
    /// A list of 16,384 elements or more.
    #[error("fragmented list")]
    FragmentedList,
    /// A character that the string type does not have.
    #[error("character not allowed")]
    Character,
    /// Data behind the end of the value.
    #[error("trailing data")]
    Trailing,
    /// A value that the reader of the type does not support or expect; for the callers' own checks.
    #[error("{0}")]
    Value(&'static str),
}
