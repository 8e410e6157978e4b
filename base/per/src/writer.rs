//! The encoder.

use crate::{BitString, EncodeError, FRAGMENT, Range, Size, Variant, bits_for, octets_for};

/// Encodes values one after the other.
#[derive(Debug, Clone)]
pub struct Writer {
    variant: Variant,
    octets: Vec<u8>,
    /// Bits written; the rest of the last octet is zero.
    bits: usize,
}

impl Writer {
    /// Nothing written yet.
    pub fn new(variant: Variant) -> Self {
        Self { variant, octets: Vec::new(), bits: 0 }
    }

    /// The complete encoding: padded to octets, at least one (§11.1).
    pub fn finish(mut self) -> Vec<u8> {
        if self.octets.is_empty() {
            self.octets.push(0);
        }
        self.octets
    }

    /// The number of bits written.
    pub fn position(&self) -> usize {
        self.bits
    }

    /// BOOLEAN, and any single bit.
    pub fn bit(&mut self, bit: bool) {
        if self.bits.is_multiple_of(8) {
            self.octets.push(0);
        }
        if let Some(last) = self.octets.last_mut() {
            *last |= u8::from(bit) << (7 - self.bits % 8);
        }
        self.bits += 1;
    }

    /// The low `count` (at most 64) bits of `value`, without padding.
    pub fn bits(&mut self, value: u64, count: u32) {
        let mut left = count.min(64);
        while left > 0 {
            let free = 8 - (self.bits % 8) as u32;
            if free == 8 {
                self.octets.push(0);
            }
            let take = left.min(free);
            let chunk = (value >> (left - take)) as u8 & (0xff_u16 >> (8 - take)) as u8;
            if let Some(last) = self.octets.last_mut() {
                *last |= chunk << (free - take);
            }
            self.bits += take as usize;
            left -= take;
        }
    }

    /// Pads to an octet boundary in the aligned variant.
    fn align(&mut self) {
        if self.variant == Variant::Aligned {
            self.bits = self.octets.len() * 8;
        }
    }

    /// Octets as they are, without padding.
    fn raw(&mut self, octets: &[u8]) {
        if self.bits.is_multiple_of(8) {
            self.octets.extend_from_slice(octets);
            self.bits += octets.len() * 8;
        } else {
            octets.iter().for_each(|&octet| self.bits(octet.into(), 8));
        }
    }

    /// A constrained whole number (§11.5): `value` of 0..=`span`.
    fn constrained(&mut self, value: u64, span: u64) {
        match (self.variant, span) {
            (Variant::Unaligned, _) | (_, 0..=254) => self.bits(value, bits_for(span)),
            (_, 255) => {
                self.align();
                self.bits(value, 8);
            }
            (_, ..=65_535) => {
                self.align();
                self.bits(value, 16);
            }
            _ => {
                let octets = octets_for(value);
                self.constrained(u64::from(octets - 1), u64::from(octets_for(span) - 1));
                self.align();
                self.bits(value, octets * 8);
            }
        }
    }

    /// Octets of an integer behind their number (§11.7, §11.8).
    fn counted(&mut self, value: u64, octets: u32) {
        self.align();
        self.bits(octets.into(), 8);
        self.bits(value, octets * 8);
    }

    /// INTEGER.
    pub fn integer(&mut self, value: i64, range: Range) -> Result<(), EncodeError> {
        let root = range.contains(value);
        if range.extensible {
            self.bit(!root);
        } else if !root {
            return Err(EncodeError::Range(value));
        }
        match (range.lower, range.upper) {
            (Some(lower), Some(upper)) if root => {
                self.constrained(value.wrapping_sub(lower) as u64, upper.wrapping_sub(lower) as u64);
            }
            (Some(lower), None) if root => {
                let offset = value.wrapping_sub(lower) as u64;
                self.counted(offset, octets_for(offset));
            }
            _ => {
                let magnitude = if value < 0 { !value } else { value } as u64;
                // One more bit for the sign.
                self.counted(value as u64, (bits_for(magnitude) + 1).div_ceil(8));
            }
        }
        Ok(())
    }

    /// A normally small non-negative whole number (§11.6).
    fn normally_small(&mut self, value: usize) {
        self.bit(value >= 64);
        if value < 64 {
            self.bits(value as u64, 6);
        } else {
            self.counted(value as u64, octets_for(value as u64));
        }
    }

    /// ENUMERATED: the index of a value. `root` counts the values before the extension marker.
    pub fn enumerated(&mut self, index: usize, root: usize, extensible: bool) -> Result<(), EncodeError> {
        if extensible {
            self.bit(index >= root);
        }
        if index < root {
            self.constrained(index as u64, root as u64 - 1);
        } else if extensible {
            self.normally_small(index - root);
        } else {
            return Err(EncodeError::Range(i64::try_from(index).unwrap_or(i64::MAX)));
        }
        Ok(())
    }

    /// The index of a CHOICE. The value follows; that of an addition (`index >= root`) in [`Self::open`].
    pub fn choice(&mut self, index: usize, root: usize, extensible: bool) -> Result<(), EncodeError> {
        self.enumerated(index, root, extensible)
    }

    /// The extension bit of a SEQUENCE, if it has an extension marker, and which optional members are there.
    pub fn preamble(&mut self, extended: Option<bool>, present: &[bool]) {
        extended.iter().chain(present).for_each(|&bit| self.bit(bit));
    }

    /// Which additions of an extended SEQUENCE are there (§19.7–§19.8); each of these follows in [`Self::open`].
    /// `present` has at least one entry, and one for each addition up to the last that is there.
    pub fn additions(&mut self, present: &[bool]) -> Result<(), EncodeError> {
        let count = present.len();
        if count == 0 || count >= FRAGMENT {
            return Err(EncodeError::Size(count));
        }
        self.bit(count > 64);
        if count <= 64 {
            self.bits(count as u64 - 1, 6);
        } else {
            self.length(count);
        }
        present.iter().for_each(|&bit| self.bit(bit));
        Ok(())
    }

    /// A length without upper bound (§11.9.3.5–7): below 16,384.
    fn length(&mut self, len: usize) {
        self.align();
        if len < 128 {
            self.bits(len as u64, 8);
        } else {
            self.bits(0x8000 | len as u64, 16);
        }
    }

    /// What comes before a string or list: the extension bit and the constrained length. `Ok(true)` if a length
    /// without bound is still to be written, with the content.
    fn size(&mut self, len: usize, size: Size) -> Result<bool, EncodeError> {
        let root = size.contains(len);
        if size.extensible {
            self.bit(!root);
        } else if !root {
            return Err(EncodeError::Size(len));
        }
        match size.bound() {
            Some(upper) if root => {
                self.constrained((len - size.lower) as u64, (upper - size.lower) as u64);
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    /// Lengths without bound and the units they count, in fragments if need be. `write` has the range of units.
    fn fragments(&mut self, len: usize, mut write: impl FnMut(&mut Self, std::ops::Range<usize>)) {
        let mut start = 0;
        while len - start >= FRAGMENT {
            let blocks = ((len - start) / FRAGMENT).min(4);
            self.align();
            self.bits(0xc0 | blocks as u64, 8);
            let end = start + blocks * FRAGMENT;
            write(self, start..end);
            start = end;
        }
        self.length(len - start);
        write(self, start..len);
    }

    /// A string of `len` units: its size, and its units by `write`, padded before them where `aligned`.
    fn string(
        &mut self,
        len: usize,
        size: Size,
        aligned: bool,
        mut write: impl FnMut(&mut Self, std::ops::Range<usize>),
    ) -> Result<(), EncodeError> {
        if self.size(len, size)? {
            self.fragments(len, write);
        } else if len > 0 {
            if aligned {
                self.align();
            }
            write(self, 0..len);
        }
        Ok(())
    }

    /// OCTET STRING.
    pub fn octet_string(&mut self, octets: &[u8], size: Size) -> Result<(), EncodeError> {
        self.string(octets.len(), size, !size.short_fixed(8), |writer, units| {
            writer.raw(octets.get(units).unwrap_or_default());
        })
    }

    /// BIT STRING.
    pub fn bit_string(&mut self, string: &BitString, size: Size) -> Result<(), EncodeError> {
        self.string(string.bits(), size, !size.short_fixed(1), |writer, units| {
            // Fragments are whole octets, but for the last.
            let octets = string.octets().get(units.start / 8..units.end.div_ceil(8)).unwrap_or_default();
            match (octets.split_last(), units.end % 8) {
                (Some((last, whole)), used @ 1..) => {
                    writer.raw(whole);
                    writer.bits(u64::from(last >> (8 - used)), used as u32);
                }
                _ => writer.raw(octets),
            }
        })
    }

    /// BIT STRING (SIZE (count)) of at most 64 bits, the low ones of `value`.
    pub fn fixed_bits(&mut self, value: u64, count: u32) -> Result<(), EncodeError> {
        if count > 64 || bits_for(value) > count {
            return Err(EncodeError::Size(bits_for(value) as usize));
        }
        if count > 16 {
            self.align();
        }
        self.bits(value, count);
        Ok(())
    }

    /// PrintableString, VisibleString, IA5String. `allowed` is the type's alphabet.
    pub fn visible_string(
        &mut self,
        string: &str,
        size: Size,
        allowed: impl Fn(u8) -> bool,
    ) -> Result<(), EncodeError> {
        if let Some(character) = string.chars().find(|&c| !c.is_ascii() || !allowed(c as u8)) {
            return Err(EncodeError::Character(character));
        }
        let bits = if self.variant == Variant::Aligned { 8 } else { 7 };
        // §30.5.6: strings that never have 16 bits stand where they are.
        let short = size.short_fixed(8) || size.upper.is_some_and(|upper| upper < 2);
        self.string(string.len(), size, !short, |writer, units| {
            for &character in string.as_bytes().get(units).unwrap_or_default() {
                writer.bits(character.into(), bits);
            }
        })
    }

    /// An open type, or an OCTET STRING (CONTAINING T) without size: what `write` writes is a complete encoding of
    /// its own behind its length.
    pub fn open<E: From<EncodeError>>(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut inner = Self::new(self.variant);
        write(&mut inner)?;
        self.octet_string(&inner.finish(), Size::ANY)?;
        Ok(())
    }

    /// SEQUENCE OF.
    pub fn list<T, E: From<EncodeError>>(
        &mut self,
        items: &[T],
        size: Size,
        mut write: impl FnMut(&mut Self, &T) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.size(items.len(), size)? {
            if items.len() >= FRAGMENT {
                return Err(EncodeError::Size(items.len()).into());
            }
            self.length(items.len());
        }
        items.iter().try_for_each(|item| write(self, item))
    }
}
