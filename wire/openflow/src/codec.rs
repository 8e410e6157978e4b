//! How the tables of the other modules become octets: the cursor, the trait, and the macros that declare messages.
//!
//! Everything in OpenFlow is big-endian, and most of it has a fixed layout with padding. [`layout!`](layout) makes a structure of a
//! table `field: type, pad n;`, in the order of the octets. A list takes the rest of what encloses it.

use crate::error::Code;

/// Octets that are read, and what their end means.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    octets: &'a [u8],
    /// The error of this place for octets that are missing or left over.
    bad_len: Code,
    /// Whether a switch has sent the message. It may know more than we do, so what is unknown is kept, not refused.
    pub lenient: bool,
}

impl<'a> Reader<'a> {
    pub fn new(octets: &'a [u8], lenient: bool) -> Self {
        Self { octets, bad_len: Code::OFPBRC_BAD_LEN, lenient }
    }

    pub fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    pub fn len(&self) -> usize {
        self.octets.len()
    }

    /// The error of this place for a wrong length.
    pub fn bad_len<T>(&self) -> Result<T, Code> {
        Err(self.bad_len)
    }

    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Code> {
        let (head, rest) = self.octets.split_at_checked(n).ok_or(self.bad_len)?;
        self.octets = rest;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Code> {
        let (head, rest) = self.octets.split_first_chunk().ok_or(self.bad_len)?;
        self.octets = rest;
        Ok(*head)
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.octets)
    }

    pub fn skip(&mut self, n: usize) -> Result<(), Code> {
        self.take(n).map(drop)
    }

    /// The next `n` octets as a place of its own. That they are missing is still an error of this place.
    pub fn part(&mut self, n: usize, bad_len: Code) -> Result<Reader<'a>, Code> {
        Ok(Reader { octets: self.take(n)?, bad_len, lenient: self.lenient })
    }

    /// A record that begins with its length, which counts itself.
    pub fn sized(&mut self) -> Result<Reader<'a>, Code> {
        let length = usize::from(u16::read(self)?);
        self.part(length.checked_sub(2).ok_or(self.bad_len)?, self.bad_len)
    }

    /// A record of the form type, length, value, whose length counts all of it; the type and the value.
    pub fn typed(&mut self, bad_len: Code) -> Result<(u16, Reader<'a>), Code> {
        self.bad_len = bad_len;
        let kind = u16::read(self)?;
        let length = usize::from(u16::read(self)?);
        Ok((kind, self.part(length.checked_sub(4).ok_or(bad_len)?, bad_len)?))
    }

    /// Everything must have been read.
    pub fn end(&self) -> Result<(), Code> {
        if self.is_empty() { Ok(()) } else { self.bad_len() }
    }
}

/// A value with a form on the wire.
pub(crate) trait Wire: Sized {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code>;
    fn write(&self, out: &mut Vec<u8>);

    /// Values up to the end of what encloses them.
    fn read_all(r: &mut Reader<'_>) -> Result<Vec<Self>, Code> {
        let mut list = Vec::new();
        while !r.is_empty() {
            list.push(Self::read(r)?);
        }
        Ok(list)
    }

    fn write_all(list: &[Self], out: &mut Vec<u8>) {
        list.iter().for_each(|item| item.write(out));
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        T::read_all(r)
    }

    fn write(&self, out: &mut Vec<u8>) {
        T::write_all(self, out);
    }
}

impl<T: Wire> Wire for Box<T> {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        T::read(r).map(Box::new)
    }

    fn write(&self, out: &mut Vec<u8>) {
        T::write(self, out);
    }
}

impl Wire for () {
    fn read(_: &mut Reader<'_>) -> Result<Self, Code> {
        Ok(())
    }

    fn write(&self, _: &mut Vec<u8>) {}
}

impl Wire for u8 {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        r.array().map(|[octet]| octet)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn read_all(r: &mut Reader<'_>) -> Result<Vec<Self>, Code> {
        Ok(r.rest().to_vec())
    }

    fn write_all(list: &[Self], out: &mut Vec<u8>) {
        out.extend_from_slice(list);
    }
}

macro_rules! integers {
    ($($int:ty)*) => {$(
        impl Wire for $int {
            fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
                r.array().map(<$int>::from_be_bytes)
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integers! { u16 u32 u64 }

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let mut values = [T::default(); N];
        for value in &mut values {
            *value = T::read(r)?;
        }
        Ok(values)
    }

    fn write(&self, out: &mut Vec<u8>) {
        T::write_all(self, out);
    }
}

/// A text in a field of `N` octets, padded with zeroes. It ends before the last octet, and has no control characters, as
/// names of a peer are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// As much of the text as fits.
    pub fn new(text: &str) -> Self {
        let mut octets = [0; N];
        let mut length = 0;
        for character in text.chars().filter(|character| !character.is_control()) {
            let end = length + character.len_utf8();
            if end >= N {
                break;
            }
            character.encode_utf8(&mut octets[length..end]);
            length = end;
        }
        Self(octets)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|octet| *octet == 0).unwrap_or(N);
        std::str::from_utf8(&self.0[..length]).unwrap_or_default()
    }
}

impl<const N: usize> std::fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl<const N: usize> Wire for Text<N> {
    fn read(r: &mut Reader<'_>) -> Result<Self, Code> {
        let octets = r.take(N)?;
        let text = octets.split(|octet| *octet == 0).next().unwrap_or_default();
        Ok(Self::new(&String::from_utf8_lossy(text)))
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

/// Appends `n` octets of padding.
pub(crate) fn pad(out: &mut Vec<u8>, n: usize) {
    out.resize(out.len() + n, 0);
}

/// Appends padding until what began at `start` ends on a border of eight octets.
pub(crate) fn align(out: &mut Vec<u8>, start: usize) {
    pad(out, (out.len() - start).next_multiple_of(8) - (out.len() - start));
}

/// Writes into the two octets at `at` how long everything since `start` is. Lengths that do not fit belong to messages
/// that are too long, which [`crate::Message::encode`] refuses.
pub(crate) fn set_length(out: &mut [u8], at: usize, start: usize) {
    let length = (out.len() - start) as u16;
    out[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

/// Writes a record of the form type, length, value.
pub(crate) fn put_typed(out: &mut Vec<u8>, kind: u16, value: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    kind.write(out);
    pad(out, 2);
    value(out);
    set_length(out, start + 2, start);
}

/// Structures with a fixed layout: `field: type, pad n;` in the order of the octets. `[sized]` marks records that begin with
/// their length, `[sized pad n]` those with padding behind it.
macro_rules! layout {
    ($($(#[$doc:meta])* $name:ident $([$sized:ident $(pad $lead:literal)?])? {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty $(, pad $pad:literal)?;)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

        impl crate::codec::Wire for $name {
            fn read(r: &mut crate::codec::Reader<'_>) -> Result<Self, crate::Code> {
                $(let mut record = r.$sized()?;
                $(record.skip($lead)?;)?
                let r = &mut record;)?
                $(let $field = <$ty as crate::codec::Wire>::read(r)?;
                $(r.skip($pad)?;)?)*
                $(crate::codec::layout!(@end $sized r);)?
                Ok(Self { $($field,)* })
            }

            fn write(&self, out: &mut Vec<u8>) {
                $(let start = crate::codec::layout!(@start $sized out);
                $(crate::codec::pad(out, $lead);)?)?
                $(crate::codec::Wire::write(&self.$field, out);
                $(crate::codec::pad(out, $pad);)?)*
                $(crate::codec::layout!(@length $sized out start);)?
            }
        }
    )*};
    (@end sized $r:ident) => { $r.end()? };
    (@start sized $out:ident) => {{
        crate::codec::pad($out, 2);
        $out.len() - 2
    }};
    (@length sized $out:ident $start:ident) => { crate::codec::set_length($out, $start, $start) };
}
pub(crate) use layout;

/// Enumerations, and the error for a value outside the list.
macro_rules! enumerated {
    ($($(#[$doc:meta])* $name:ident($int:ty) else $code:ident { $($(#[$item_doc:meta])* $item:ident = $value:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$item_doc])* $item = $value,)* }

        impl crate::codec::Wire for $name {
            fn read(r: &mut crate::codec::Reader<'_>) -> Result<Self, crate::Code> {
                match <$int as crate::codec::Wire>::read(r)? {
                    $($value => Ok(Self::$item),)*
                    _ => Err(crate::Code::$code),
                }
            }

            fn write(&self, out: &mut Vec<u8>) {
                crate::codec::Wire::write(&(*self as $int), out);
            }
        }
    )*};
}
pub(crate) use enumerated;

/// Integers with a meaning, some of whose values have names.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($int:ty) { $($(#[$item_doc:meta])* $item:ident = $value:literal;)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$item_doc])* pub const $item: Self = Self($value);)*
        }

        impl crate::codec::Wire for $name {
            fn read(r: &mut crate::codec::Reader<'_>) -> Result<Self, crate::Code> {
                <$int as crate::codec::Wire>::read(r).map(Self)
            }

            fn write(&self, out: &mut Vec<u8>) {
                crate::codec::Wire::write(&self.0, out);
            }
        }
    )*};
}
pub(crate) use numbers;

/// Sets of flags. Unknown ones are refused with the error behind `else`, else kept.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident($int:ty) $(else $code:ident)? { $($(#[$item_doc:meta])* $item:ident = $value:literal;)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$item_doc])* pub const $item: Self = Self($value);)*
            /// All that have a name.
            pub const NAMED: Self = Self(0 $(| $value)*);

            /// Whether all of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl crate::codec::Wire for $name {
            fn read(r: &mut crate::codec::Reader<'_>) -> Result<Self, crate::Code> {
                let value = <$int as crate::codec::Wire>::read(r)?;
                $(if !r.lenient && value & !Self::NAMED.0 != 0 {
                    return Err(crate::Code::$code);
                })?
                Ok(Self(value))
            }

            fn write(&self, out: &mut Vec<u8>) {
                crate::codec::Wire::write(&self.0, out);
            }
        }
    )*};
}
pub(crate) use flags;
