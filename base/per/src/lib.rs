//! The packed encoding rules of ASN.1 (ITU-T X.691), in their basic form, aligned and unaligned.
//!
//! [`Writer`] and [`Reader`] have one method per ASN.1 type, with the same arguments on both sides. The protocol
//! crates call them in the order of the type's definition:
//!
//! ```
//! use per::{Range, Reader, Size, Variant, Writer};
//!
//! // Item ::= SEQUENCE { id INTEGER (1..32), mode ENUMERATED { am, um, ... }, name OCTET STRING OPTIONAL, ... }
//! let mut writer = Writer::new(Variant::Unaligned);
//! writer.preamble(Some(false), &[true]);
//! writer.integer(7, Range::new(1, 32))?;
//! writer.enumerated(1, 2, true)?;
//! writer.octet_string(b"x", Size::ANY)?;
//! let octets = writer.finish();
//!
//! let mut reader = Reader::new(Variant::Unaligned, &octets);
//! let preamble = reader.preamble(true, 1)?;
//! assert_eq!(reader.integer(Range::new(1, 32))?, 7);
//! assert_eq!(reader.enumerated(2, true)?, 1);
//! assert!(preamble.present(0));
//! assert_eq!(reader.octet_string(Size::ANY)?, b"x");
//! reader.skip_additions(&preamble)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | ASN.1 | methods |
//! |---|---|
//! | BOOLEAN | `bit` |
//! | INTEGER, with or without bounds or `...` | `integer` with a [`Range`] |
//! | ENUMERATED | `enumerated`; an index at or above the count of root values is an addition |
//! | BIT STRING | `bit_string` with a [`Size`]; `fixed_bits` for at most 64 bits of a fixed size |
//! | OCTET STRING, UTF8String (`Size::ANY`) | `octet_string` |
//! | OCTET STRING (CONTAINING T), open types | `open` |
//! | PrintableString, VisibleString, IA5String | `visible_string` |
//! | NULL | nothing |
//! | SEQUENCE | `preamble`, then the members, then `additions` or `skip_additions` |
//! | SEQUENCE OF | `list` |
//! | CHOICE | `choice`, then the alternative; an addition's value stands in an open type |
//!
//! Invariants: no octets make a reader panic; memory is bounded by the input, as lengths are compared with what is
//! there before anything is allocated; what a type's definition does not allow is an error on both sides.
//! Strings and open types of 16,384 units and more are fragmented as §11.9.3.8 says; lists of that many elements
//! are refused.
#![forbid(unsafe_code)]

mod error;
mod reader;
mod writer;

pub use error::{DecodeError, EncodeError, ErrorKind};
pub use reader::{Preamble, Reader};
pub use writer::Writer;

/// Whether fields are padded to octet boundaries (§7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Aligned: NGAP, F1AP, XnAP.
    Aligned,
    /// Unaligned: RRC.
    Unaligned,
}

/// The values of an INTEGER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub(crate) lower: Option<i64>,
    pub(crate) upper: Option<i64>,
    pub(crate) extensible: bool,
}

impl Range {
    /// INTEGER without bounds.
    pub const ANY: Self = Self { lower: None, upper: None, extensible: false };

    /// INTEGER (lower..upper).
    pub const fn new(lower: i64, upper: i64) -> Self {
        Self { lower: Some(lower), upper: Some(upper), extensible: false }
    }

    /// INTEGER (lower..MAX).
    pub const fn at_least(lower: i64) -> Self {
        Self { lower: Some(lower), upper: None, extensible: false }
    }

    /// The same with an extension marker: INTEGER (lower..upper, ...).
    pub const fn extensible(self) -> Self {
        Self { extensible: true, ..self }
    }

    pub(crate) fn contains(self, value: i64) -> bool {
        self.lower.is_none_or(|lower| lower <= value) && self.upper.is_none_or(|upper| value <= upper)
    }
}

/// How many units (bits, octets, characters, elements) a string or list has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub(crate) lower: usize,
    pub(crate) upper: Option<usize>,
    pub(crate) extensible: bool,
}

impl Size {
    /// No constraint.
    pub const ANY: Self = Self { lower: 0, upper: None, extensible: false };

    /// SIZE (n).
    pub const fn fixed(n: usize) -> Self {
        Self::new(n, n)
    }

    /// SIZE (lower..upper).
    pub const fn new(lower: usize, upper: usize) -> Self {
        Self { lower, upper: Some(upper), extensible: false }
    }

    /// SIZE (lower..MAX).
    pub const fn at_least(lower: usize) -> Self {
        Self { lower, upper: None, extensible: false }
    }

    /// The same with an extension marker: SIZE (lower..upper, ...).
    pub const fn extensible(self) -> Self {
        Self { extensible: true, ..self }
    }

    pub(crate) fn contains(self, len: usize) -> bool {
        self.lower <= len && self.upper.is_none_or(|upper| len <= upper)
    }

    /// The upper bound, if it is one that lengths are encoded by (below 64K, §11.9.4.1).
    pub(crate) fn bound(self) -> Option<usize> {
        self.upper.filter(|&upper| upper < 65_536)
    }

    /// Whether a string whose units have `bits` bits stands where it is, without padding: at most 16 bits of a fixed
    /// size (§16.9, §17.6).
    pub(crate) fn short_fixed(self, bits: usize) -> bool {
        self.upper == Some(self.lower) && self.lower * bits <= 16
    }
}

/// A BIT STRING: its bits from the highest of the first octet on. Unused bits of the last octet are zero.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct BitString {
    octets: Vec<u8>,
    bits: usize,
}

impl BitString {
    /// The first `bits` bits of `octets`; `None` if those are too few. Octets and bits beyond are dropped.
    pub fn new(mut octets: Vec<u8>, bits: usize) -> Option<Self> {
        if octets.len() < bits.div_ceil(8) {
            return None;
        }
        octets.truncate(bits.div_ceil(8));
        if let (Some(last), used @ 1..) = (octets.last_mut(), bits % 8) {
            *last &= 0xff << (8 - used);
        }
        Some(Self { octets, bits })
    }

    /// The octets that hold the bits.
    pub fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// The number of bits.
    pub fn bits(&self) -> usize {
        self.bits
    }
}

/// Units of a fragment (§11.9.3.8).
pub(crate) const FRAGMENT: usize = 16_384;

/// The bits that hold the values 0..=`span`.
pub(crate) fn bits_for(span: u64) -> u32 {
    64 - span.leading_zeros()
}

/// The octets that hold `value` at least: 1..=8.
pub(crate) fn octets_for(value: u64) -> u32 {
    bits_for(value).div_ceil(8).max(1)
}
