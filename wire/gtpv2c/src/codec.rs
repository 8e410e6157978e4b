//! The walk over TLIVs, errors, and the macros with which all other modules declare their tables.
//!
//! An IE is `type (1) · length (2) · spare (4 bits) instance (4 bits) · value`. Type and instance together say what an IE means in
//! a message: the F-TEID with instance 0 is the sender's, the one with instance 1 the P-GW's.

use crate::value::{Cause, CauseValue};

/// Largest datagram that is sent: what fits in UDP over IPv4.
pub const MAX_MESSAGE: usize = 65_507;

/// Type and instance of the IE that made a message fail; also part of the Cause IE (§8.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OffendingIe {
    /// Type, see [`crate::ie`].
    pub ie_type: u8,
    /// Instance, 4 bits.
    pub instance: u8,
}

impl OffendingIe {
    /// The IE with this type and instance.
    pub const fn new(ie_type: u8, instance: u8) -> Self {
        Self { ie_type, instance }
    }
}

impl std::fmt::Display for OffendingIe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} instance {}", self.ie_type, self.instance)
    }
}

/// Why a message was refused. §7.7 defines the cause and offending IE of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than its header, or than the length its header claims: dropped without an answer (§7.7.3).
    #[error("message is truncated")]
    Truncated,
    /// A version other than 2: answered with Version Not Supported Indication (§7.7.2).
    #[error("GTP version {0} is not supported")]
    Version(u8),
    /// An unknown message type: dropped (§7.7.4).
    #[error("message type {0} is unknown")]
    UnknownMessage(u8),
    /// A session message without TEID.
    #[error("message type {0} lacks a TEID")]
    TeidFlag(u8),
    /// A mandatory IE is missing: cause 70.
    #[error("mandatory IE {0} is missing")]
    MandatoryMissing(OffendingIe),
    /// The length of an IE is invalid: cause 67.
    #[error("IE {0} has an invalid length")]
    InvalidLength(OffendingIe),
    /// The value of an IE is incorrect: cause 69.
    #[error("IE {0} is incorrect")]
    Incorrect(OffendingIe),
}

impl DecodeError {
    /// The cause for the response, with the offending IE; `None` when the message is dropped without a response.
    pub fn cause(self) -> Option<Cause> {
        let (value, offending_ie) = match self {
            Self::MandatoryMissing(ie) => (CauseValue::MANDATORY_IE_MISSING, ie),
            Self::InvalidLength(ie) => (CauseValue::INVALID_LENGTH, ie),
            Self::Incorrect(ie) => (CauseValue::MANDATORY_IE_INCORRECT, ie),
            Self::Truncated | Self::Version(_) | Self::UnknownMessage(_) | Self::TeidFlag(_) => return None,
        };
        Some(Cause { offending_ie: Some(offending_ie), ..value.into() })
    }

    /// Type and instance of the offending IE.
    pub fn offending_ie(self) -> Option<OffendingIe> {
        self.cause()?.offending_ie
    }
}

/// Why a message could not be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The message does not fit in one datagram of [`MAX_MESSAGE`] octets.
    #[error("message of {0} octets does not fit in a datagram")]
    TooLong(usize),
}

/// A fault that a value's decoder finds. The TLIV walk adds type and instance and makes a [`DecodeError`].
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
    /// The error for a fault found in this IE.
    pub fn at(self, ie: OffendingIe) -> DecodeError {
        match self {
            Self::Length => DecodeError::InvalidLength(ie),
            Self::Incorrect => DecodeError::Incorrect(ie),
            Self::Inner(error) => error,
        }
    }
}

/// The value part of an IE.
///
/// Octets after the known part are ignored: later releases extend IEs at the end (§7.7.7).
pub trait Value: Sized {
    /// Reads the value part.
    fn decode(bytes: &[u8]) -> Result<Self, Fault>;
    /// Appends the value part.
    fn encode(&self, out: &mut Vec<u8>);
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self::Inner(error)
    }
}

/// Reads an IE that must be right if it is there.
pub fn read<T: Value>(ie: OffendingIe, value: &[u8]) -> Result<T, DecodeError> {
    T::decode(value).map_err(|fault| fault.at(ie))
}

/// Reads an optional IE: a broken one is treated as absent (§7.7.9).
pub fn read_optional<T: Value>(value: &[u8]) -> Result<Option<T>, DecodeError> {
    match T::decode(value) {
        Ok(value) => Ok(Some(value)),
        Err(Fault::Inner(error)) => Err(error),
        Err(Fault::Length | Fault::Incorrect) => Ok(None),
    }
}

/// Appends one IE. A value longer than 65,535 octets makes the message too long for a datagram, which
/// [`crate::Message::encode`] reports; so the length is only truncated in a message that is never sent.
pub fn put<T: Value>(out: &mut Vec<u8>, ie: OffendingIe, value: &T) {
    out.extend_from_slice(&[ie.ie_type, 0, 0, ie.instance & 0x0f]);
    let start = out.len();
    value.encode(out);
    let length = (out.len() - start) as u16;
    if let Some(field) = out.get_mut(start - 3..start - 1) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

/// Walks the IEs of a message or grouped IE.
pub struct Ies<'a> {
    rest: &'a [u8],
}

impl<'a> Ies<'a> {
    /// Walks over the octets after the header of a message, or over the value of a grouped IE.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next IE, `None` at the end; an IE that reaches beyond its container has an invalid length.
    pub fn next_ie(&mut self) -> Result<Option<(OffendingIe, &'a [u8])>, DecodeError> {
        let Some((&[ie_type, l0, l1, instance], after)) = self.rest.split_first_chunk::<4>() else {
            // Too few octets for another IE.
            let fragment = self.rest.first().map(|ie_type| OffendingIe::new(*ie_type, 0));
            return fragment.map_or(Ok(None), |ie| Err(DecodeError::InvalidLength(ie)));
        };
        let ie = OffendingIe::new(ie_type, instance & 0x0f);
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let (value, rest) = after.split_at_checked(length).ok_or(DecodeError::InvalidLength(ie))?;
        self.rest = rest;
        Ok(Some((ie, value)))
    }

    /// The value of the first IE with this type and instance, as far as the walk gets.
    pub fn find(mut self, wanted: OffendingIe) -> Option<&'a [u8]> {
        while let Ok(Some((ie, value))) = self.next_ie() {
            if ie == wanted {
                return Some(value);
            }
        }
        None
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
    /// N octets when `present`.
    pub fn optional<const N: usize>(&mut self, present: bool) -> Result<Option<[u8; N]>, Fault> {
        present.then(|| self.array()).transpose()
    }
    pub fn u8(&mut self) -> Result<u8, Fault> {
        self.array::<1>().map(|[octet]| octet)
    }
    pub fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_be_bytes)
    }
    pub fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_be_bytes)
    }
}

/// Octets that are passed on as they are: PCO, traffic flow template, causes of the radio network.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Octets(pub Vec<u8>);

impl Octets {
    /// The octets.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Octets {
    fn from(octets: &[u8]) -> Self {
        Self(octets.to_vec())
    }
}

impl From<Vec<u8>> for Octets {
    fn from(octets: Vec<u8>) -> Self {
        Self(octets)
    }
}

impl std::fmt::Debug for Octets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.0)
    }
}

impl Value for Octets {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        Ok(bytes.into())
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

/// An unsigned integer IE as a newtype: `integers! { /// docs  ChargingId(u32); }`.
macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident($int:ty);)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl crate::codec::Value for $name {
            fn decode(bytes: &[u8]) -> Result<Self, crate::codec::Fault> {
                bytes
                    .first_chunk()
                    .map(|bytes| Self(<$int>::from_be_bytes(*bytes)))
                    .ok_or(crate::codec::Fault::Length)
            }
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
/// sent, more when their bits are set. Unknown bits are kept as far as the integer reaches.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident($int:ty, min $min:literal) { $($flag:ident = $bit:expr;)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            $(#[doc = concat!("Flag ", stringify!($flag), ".")] pub const $flag: Self = Self($bit);)*

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
                const OCTETS: usize = size_of::<$int>();
                let mut value = [0u8; OCTETS];
                let known = bytes.len().min(OCTETS);
                value[..known].copy_from_slice(&bytes[..known]);
                Ok(Self(<$int>::from_le_bytes(value)))
            }
            fn encode(&self, out: &mut Vec<u8>) {
                let octets = (size_of::<$int>() - self.0.leading_zeros() as usize / 8).max($min);
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

/// The table of a grouped IE or message: `type instance => field: one|cond|opt|some|many Type`.
///
/// `one` is mandatory (M). `cond` may be absent, but refuses the message when it is broken (C); `opt` is treated as absent when
/// it is broken (CO and O). `some` is a list of at least one, `many` any list; a broken element refuses the message. If an IE is
/// repeated although no list is specified, only the first one counts (§7.7.10).
macro_rules! grouped {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $ie:ident $instance:literal => $field:ident: $presence:ident $ty:ty,)*
    })*) => {$(
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
                    match (ie.ie_type, ie.instance) {
                        $((crate::ie::$ie, $instance) => crate::codec::field_read!($presence $field, ie, value),)*
                        _ => {}
                    }
                }
                Ok(Self {
                    $($field: crate::codec::field_done!(
                        $presence $field, crate::codec::OffendingIe::new(crate::ie::$ie, $instance)
                    ),)*
                })
            }

            #[allow(unused_variables)]
            fn encode(&self, out: &mut Vec<u8>) {
                $(crate::codec::field_write!(
                    $presence self.$field, crate::codec::OffendingIe::new(crate::ie::$ie, $instance), out
                );)*
            }
        }
    )*};
}
pub(crate) use grouped;

macro_rules! field_type {
    (one $ty:ty) => { $ty };
    (cond $ty:ty) => { Option<$ty> };
    (opt $ty:ty) => { Option<$ty> };
    (some $ty:ty) => { Vec<$ty> };
    (many $ty:ty) => { Vec<$ty> };
}
pub(crate) use field_type;

macro_rules! field_slot {
    (some $ty:ty) => {
        Vec::<$ty>::new()
    };
    (many $ty:ty) => {
        Vec::<$ty>::new()
    };
    ($presence:ident $ty:ty) => {
        Option::<$ty>::None
    };
}
pub(crate) use field_slot;

macro_rules! field_read {
    (some $field:ident, $ie:ident, $value:ident) => {
        $field.push(crate::codec::read($ie, $value)?)
    };
    (many $field:ident, $ie:ident, $value:ident) => {
        $field.push(crate::codec::read($ie, $value)?)
    };
    (opt $field:ident, $ie:ident, $value:ident) => {
        if $field.is_none() {
            $field = crate::codec::read_optional($value)?;
        }
    };
    ($presence:ident $field:ident, $ie:ident, $value:ident) => {
        if $field.is_none() {
            $field = Some(crate::codec::read($ie, $value)?);
        }
    };
}
pub(crate) use field_read;

macro_rules! field_done {
    (one $field:ident, $ie:expr) => {
        $field.ok_or(crate::codec::DecodeError::MandatoryMissing($ie))?
    };
    (some $field:ident, $ie:expr) => {
        if $field.is_empty() {
            return Err(crate::codec::DecodeError::MandatoryMissing($ie).into());
        } else {
            $field
        }
    };
    ($presence:ident $field:ident, $ie:expr) => {
        $field
    };
}
pub(crate) use field_done;

/// An option and a list are both iterated; a mandatory IE is written as it is.
macro_rules! field_write {
    (one $field:expr, $ie:expr, $out:ident) => {
        crate::codec::put($out, $ie, &$field)
    };
    ($presence:ident $field:expr, $ie:expr, $out:ident) => {
        for value in $field.iter() {
            crate::codec::put($out, $ie, value);
        }
    };
}
pub(crate) use field_write;
