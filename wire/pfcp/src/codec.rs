//! The walk over TLVs, errors, the [`ShortBytes`] string, and the macros with which all other modules declare
//! their tables.
//!
//! An IE is `type (2) · length (2) · value`; types from 32768 carry an enterprise number and are skipped.

use crate::value::Cause;

/// Largest PFCP message that is sent: what fits in one UDP datagram over IPv4.
pub const MAX_MESSAGE: usize = 65_507;

/// Why a message was refused. §7.6 defines the cause and offending IE of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than its header, or than the length its header claims: dropped without an answer (§7.6.1).
    #[error("message is truncated")]
    Truncated,
    /// A version other than 1: answered with Version Not Supported Response (§7.6.3).
    #[error("PFCP version {0} is not supported")]
    Version(u8),
    /// An unknown message type: dropped (§7.6.4).
    #[error("message type {0} is unknown")]
    UnknownMessage(u8),
    /// A session message without SEID, or a node message with one.
    #[error("S flag does not fit message type {0}")]
    SeidFlag(u8),
    /// A mandatory IE is missing: cause 66.
    #[error("mandatory IE {0} is missing")]
    MandatoryMissing(u16),
    /// A conditional IE is missing: cause 67.
    #[error("conditional IE {0} is missing")]
    ConditionalMissing(u16),
    /// The length of an IE is invalid: cause 68.
    #[error("IE {0} has an invalid length")]
    InvalidLength(u16),
    /// The value of an IE is incorrect: cause 69.
    #[error("IE {0} is incorrect")]
    Incorrect(u16),
}

impl DecodeError {
    /// The cause for the response, or `None` when the message is dropped without one.
    pub fn cause(self) -> Option<Cause> {
        match self {
            Self::MandatoryMissing(_) => Some(Cause::MANDATORY_IE_MISSING),
            Self::ConditionalMissing(_) => Some(Cause::CONDITIONAL_IE_MISSING),
            Self::InvalidLength(_) => Some(Cause::INVALID_LENGTH),
            Self::Incorrect(_) => Some(Cause::MANDATORY_IE_INCORRECT),
            Self::Truncated | Self::Version(_) | Self::UnknownMessage(_) | Self::SeidFlag(_) => None,
        }
    }

    /// Type of the offending IE, for the response.
    pub fn offending_ie(self) -> Option<u16> {
        match self {
            Self::MandatoryMissing(ie)
            | Self::ConditionalMissing(ie)
            | Self::InvalidLength(ie)
            | Self::Incorrect(ie) => Some(ie),
            _ => None,
        }
    }
}

/// Why a message could not be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The message does not fit in one datagram of [`MAX_MESSAGE`] octets.
    #[error("message of {0} octets does not fit in a datagram")]
    TooLong(usize),
}

/// A fault that a value's decoder finds. The TLV walk adds the IE type and makes a [`DecodeError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Too short for its fixed part.
    Length,
    /// Long enough, but with an impossible value.
    Incorrect,
    /// The fault lies in an IE inside this grouped IE.
    Inner(DecodeError),
}

impl Fault {
    /// The error for a fault found in an IE of type `ie`.
    pub fn at(self, ie: u16) -> DecodeError {
        match self {
            Self::Length => DecodeError::InvalidLength(ie),
            Self::Incorrect => DecodeError::Incorrect(ie),
            Self::Inner(error) => error,
        }
    }
}

/// The value part of an IE.
///
/// Octets after the known part are ignored: later releases extend IEs at the end (§7.6.6).
pub trait Value: Sized {
    /// Reads the value part.
    fn decode(bytes: &[u8]) -> Result<Self, Fault>;
    /// Appends the value part.
    fn encode(&self, out: &mut Vec<u8>);
}

impl<T: Value> Value for Box<T> {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        T::decode(bytes).map(Box::new)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        T::encode(self, out);
    }
}

/// Appends one IE. A value longer than 65,535 octets makes the message too long for a datagram, which
/// [`crate::Message::encode`] reports; so the length is only truncated in a message that is never sent.
#[inline]
pub fn put<T: Value>(out: &mut Vec<u8>, ie: u16, value: &T) {
    let [t0, t1] = ie.to_be_bytes();
    out.extend_from_slice(&[t0, t1, 0, 0]);
    let start = out.len();
    value.encode(out);
    let length = (out.len() - start) as u16;
    if let Some(field) = out.get_mut(start - 2..start) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

/// Most elements of a list for which memory is reserved before they have been decoded.
const ROOM: usize = 64;

/// Walks the IEs of a message or grouped IE.
pub struct Ies<'a> {
    rest: &'a [u8],
}

impl<'a> Ies<'a> {
    /// Walks over the octets after the header of a message, or over the value of a grouped IE.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Capacity for a list whose first IE, of this type, has been read: counts the following IEs of this type,
    /// so that memory is allocated once, but at most [`ROOM`], because they are not decoded yet.
    pub fn room(&self, ie: u16) -> usize {
        let (mut ies, mut count) = (Ies::new(self.rest), 1);
        while count < ROOM
            && let Ok(Some((next, _))) = ies.next_ie()
        {
            count += usize::from(next == ie);
        }
        count
    }

    /// The next IE, `None` at the end, [`Fault::Length`] when an IE reaches beyond its container.
    #[inline]
    pub fn next_ie(&mut self) -> Result<Option<(u16, &'a [u8])>, Fault> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let Some((&[t0, t1, l0, l1], after)) = self.rest.split_first_chunk::<4>() else {
            return Err(Fault::Length);
        };
        let ie = u16::from_be_bytes([t0, t1]);
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        if length > after.len() {
            return Err(Fault::Inner(DecodeError::InvalidLength(ie)));
        }
        let (value, rest) = after.split_at(length);
        self.rest = rest;
        Ok(Some((ie, value)))
    }
}

/// Cursor over a value; every read checks the length.
pub(crate) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Fault> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Fault::Length)?;
        self.0 = rest;
        Ok(head)
    }
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Fault::Length)?;
        self.0 = rest;
        Ok(*head)
    }
    pub fn u8(&mut self) -> Result<u8, Fault> {
        self.array::<1>().map(|[b]| b)
    }
    pub fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_be_bytes)
    }
    pub fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_be_bytes)
    }
    pub fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_be_bytes)
    }
}

/// A short octet string (network instance, identifier, flow description) held inline up to 38 octets, so that
/// the usual message decodes without an allocation for it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ShortBytes(Repr);

const INLINE: usize = 38;

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

impl ShortBytes {
    /// The octets.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }

    /// The text, when the octets are UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()).ok()
    }
}

impl Default for ShortBytes {
    fn default() -> Self {
        Self(Repr::Inline { len: 0, bytes: [0; INLINE] })
    }
}

impl From<&[u8]> for ShortBytes {
    fn from(value: &[u8]) -> Self {
        if value.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..value.len()].copy_from_slice(value);
            Self(Repr::Inline { len: value.len() as u8, bytes })
        } else {
            Self(Repr::Heap(value.into()))
        }
    }
}

impl From<&str> for ShortBytes {
    fn from(value: &str) -> Self {
        value.as_bytes().into()
    }
}

impl std::fmt::Debug for ShortBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.as_str() {
            Some(text) => write!(f, "{text:?}"),
            None => write!(f, "{:02x?}", self.as_bytes()),
        }
    }
}

impl Value for ShortBytes {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        Ok(bytes.into())
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
}

/// An unsigned integer IE, optionally as a newtype: `integers! { /// docs  PdrId(u16); }`.
macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident($int:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl crate::codec::Value for $name {
            #[inline]
            fn decode(bytes: &[u8]) -> Result<Self, crate::codec::Fault> {
                bytes
                    .first_chunk()
                    .map(|bytes| Self(<$int>::from_be_bytes(*bytes)))
                    .ok_or(crate::codec::Fault::Length)
            }
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.0.to_be_bytes());
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }
    )*};
}
pub(crate) use integers;

/// A flags IE. Bit 1 of octet 5 is the lowest bit, octet 6 the next eight, and so on; at least `min` octets are
/// sent, more when their bits are set. Unknown bits are kept.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident(min $min:literal) { $($(#[$bit_doc:meta])* $flag:ident = $bit:expr;)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            $($(#[$bit_doc])* #[doc = concat!("Flag ", stringify!($flag), ".")] pub const $flag: Self = Self($bit);)*

            /// Whether every flag of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
            /// Whether no flag is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "("))?;
                let mut rest = self.0;
                $(if rest & $bit != 0 {
                    write!(f, concat!(" ", stringify!($flag)))?;
                    rest &= !$bit;
                })*
                if rest != 0 {
                    write!(f, " {rest:#x}")?;
                }
                write!(f, " )")
            }
        }

        impl crate::codec::Value for $name {
            fn decode(bytes: &[u8]) -> Result<Self, crate::codec::Fault> {
                if bytes.is_empty() {
                    return Err(crate::codec::Fault::Length);
                }
                let mut value = [0u8; 8];
                let known = bytes.len().min(8);
                value[..known].copy_from_slice(&bytes[..known]);
                Ok(Self(u64::from_le_bytes(value)))
            }
            fn encode(&self, out: &mut Vec<u8>) {
                let octets = (8 - self.0.leading_zeros() as usize / 8).max($min);
                out.extend_from_slice(&self.0.to_le_bytes()[..octets]);
            }
        }
    )*};
}
pub(crate) use flags;

/// An enumerated IE in the low `mask` bits of one octet; a value outside the list is incorrect.
macro_rules! enumerated {
    ($($(#[$doc:meta])* $name:ident(mask $mask:literal) { $($(#[$item_doc:meta])* $item:ident = $code:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum $name { $($(#[$item_doc])* $item = $code),* }

        impl crate::codec::Value for $name {
            fn decode(bytes: &[u8]) -> Result<Self, crate::codec::Fault> {
                match bytes.first().ok_or(crate::codec::Fault::Length)? & $mask {
                    $($code => Ok(Self::$item),)*
                    _ => Err(crate::codec::Fault::Incorrect),
                }
            }
            fn encode(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
        }
    )*};
}
pub(crate) use enumerated;

/// The table of a grouped IE or message: `type => field: one|opt|many Type`.
///
/// `one` is mandatory (its absence is cause 66). `cond` is mandatory under a condition that every sender of
/// this table meets (cause 67). `opt` may be absent. `many` is a list. If an IE is repeated although no list is
/// specified, only the first one counts (§7.6.11).
macro_rules! grouped {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $ie:ident => $field:ident: $presence:ident $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: crate::codec::field_type!($presence $ty),)*
        }

        impl crate::codec::Value for $name {
            #[allow(unused_mut, unused_variables)]
            fn decode(bytes: &[u8]) -> Result<Self, crate::codec::Fault> {
                $(let mut $field = crate::codec::field_slot!($presence $ty);)*
                let mut ies = crate::codec::Ies::new(bytes);
                while let Some((ie, value)) = ies.next_ie()? {
                    match ie {
                        $(crate::ie::$ie => crate::codec::field_read!($presence $ty, $field, ies, ie, value),)*
                        _ => {}
                    }
                }
                Ok(Self { $($field: crate::codec::field_done!($presence $field, crate::ie::$ie),)* })
            }

            #[allow(unused_variables)]
            fn encode(&self, out: &mut Vec<u8>) {
                $(crate::codec::field_write!($presence self.$field, crate::ie::$ie, out);)*
            }
        }
    )*};
}
pub(crate) use grouped;

macro_rules! field_type {
    (one $ty:ty) => { $ty };
    (cond $ty:ty) => { $ty };
    (opt $ty:ty) => { Option<$ty> };
    (many $ty:ty) => { Vec<$ty> };
}
pub(crate) use field_type;

macro_rules! field_slot {
    (many $ty:ty) => {
        Vec::<$ty>::new()
    };
    ($presence:ident $ty:ty) => {
        Option::<$ty>::None
    };
}
pub(crate) use field_slot;

macro_rules! field_read {
    (many $ty:ty, $field:ident, $ies:ident, $ie:ident, $value:ident) => {{
        let value = <$ty as crate::codec::Value>::decode($value)
            .map_err(|f| crate::codec::Fault::Inner(f.at($ie)))?;
        if $field.is_empty() {
            $field.reserve_exact($ies.room($ie));
        }
        $field.push(value)
    }};
    ($presence:ident $ty:ty, $field:ident, $ies:ident, $ie:ident, $value:ident) => {
        if $field.is_none() {
            $field = Some(
                <$ty as crate::codec::Value>::decode($value)
                    .map_err(|f| crate::codec::Fault::Inner(f.at($ie)))?,
            );
        }
    };
}
pub(crate) use field_read;

macro_rules! field_done {
    (one $field:ident, $ie:path) => {
        $field.ok_or(crate::codec::Fault::Inner(crate::codec::DecodeError::MandatoryMissing($ie)))?
    };
    (cond $field:ident, $ie:path) => {
        $field.ok_or(crate::codec::Fault::Inner(crate::codec::DecodeError::ConditionalMissing($ie)))?
    };
    ($presence:ident $field:ident, $ie:path) => {
        $field
    };
}
pub(crate) use field_done;

macro_rules! field_write {
    (opt $field:expr, $ie:path, $out:ident) => {
        if let Some(value) = &$field {
            crate::codec::put($out, $ie, value);
        }
    };
    (many $field:expr, $ie:path, $out:ident) => {
        for value in &$field {
            crate::codec::put($out, $ie, value);
        }
    };
    ($presence:ident $field:expr, $ie:path, $out:ident) => {
        crate::codec::put($out, $ie, &$field)
    };
}
pub(crate) use field_write;
