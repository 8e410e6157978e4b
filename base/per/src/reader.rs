//! The decoder.

use crate::{BitString, DecodeError, ErrorKind, FRAGMENT, Range, Size, Variant, bits_for, octets_for};

/// Decodes values one after the other.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    variant: Variant,
    octets: &'a [u8],
    /// The first bit. An open type's reader starts and ends within the octets.
    start: usize,
    /// The next bit.
    position: usize,
    /// The bit behind the last.
    end: usize,
}

/// The start of a SEQUENCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// Whether additions follow the members before the extension marker.
    pub extended: bool,
    optional: u64,
    count: u32,
}

impl Preamble {
    /// Whether the optional member of this index is there, counted from 0 over the optional members only.
    pub fn present(&self, index: u32) -> bool {
        index < self.count && self.optional >> (self.count - 1 - index) & 1 == 1
    }
}

impl<'a> Reader<'a> {
    /// At the first bit of `octets`.
    pub fn new(variant: Variant, octets: &'a [u8]) -> Self {
        Self { variant, octets, start: 0, position: 0, end: octets.len() * 8 }
    }

    /// The next bit's number in the octets.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The number of bits left.
    pub fn remaining(&self) -> usize {
        self.end - self.position
    }

    /// An error at the present position.
    pub fn error(&self, kind: ErrorKind) -> DecodeError {
        DecodeError { kind, bit: self.position }
    }

    /// Checks that the value is the whole of the octets: what is left is less than one octet, of zeros; or it was
    /// empty, and one octet of zeros stands for it (§11.1).
    pub fn finish(mut self) -> Result<(), DecodeError> {
        let padding = if self.position == self.start { 8 } else { 7 };
        let left = self.remaining();
        if left > padding || self.bits(left as u32)? != 0 {
            return Err(self.error(ErrorKind::Trailing));
        }
        Ok(())
    }

    fn need(&self, bits: usize) -> Result<(), DecodeError> {
        if bits <= self.remaining() { Ok(()) } else { Err(self.error(ErrorKind::Truncated)) }
    }

    /// BOOLEAN, and any single bit.
    pub fn bit(&mut self) -> Result<bool, DecodeError> {
        Ok(self.bits(1)? == 1)
    }

    /// `count` (at most 64) bits, without padding.
    pub fn bits(&mut self, count: u32) -> Result<u64, DecodeError> {
        if count > 64 {
            return Err(self.error(ErrorKind::Range));
        }
        self.need(count as usize)?;
        let mut value = 0;
        let mut left = count;
        while left > 0 {
            let offset = (self.position % 8) as u32;
            let take = left.min(8 - offset);
            let octet = self.octets.get(self.position / 8).copied().unwrap_or_default();
            let chunk = u64::from(octet << offset >> (8 - take));
            value = value << take | chunk;
            self.position += take as usize;
            left -= take;
        }
        Ok(value)
    }

    /// Skips to an octet boundary in the aligned variant.
    fn align(&mut self) -> Result<(), DecodeError> {
        if self.variant == Variant::Aligned {
            let next = self.position.next_multiple_of(8);
            self.need(next - self.position)?;
            self.position = next;
        }
        Ok(())
    }

    /// Appends `count` octets to `out`.
    fn raw(&mut self, count: usize, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        self.need(count.saturating_mul(8))?;
        out.reserve_exact(count);
        let start = self.position / 8;
        if self.position.is_multiple_of(8) {
            out.extend_from_slice(self.octets.get(start..start + count).unwrap_or_default());
            self.position += count * 8;
        } else {
            for _ in 0..count {
                out.push(self.bits(8)? as u8);
            }
        }
        Ok(())
    }

    /// A constrained whole number (§11.5) of 0..=`span`.
    fn constrained(&mut self, span: u64) -> Result<u64, DecodeError> {
        let value = match (self.variant, span) {
            (Variant::Unaligned, _) | (_, 0..=254) => self.bits(bits_for(span))?,
            (_, 255) => {
                self.align()?;
                self.bits(8)?
            }
            (_, ..=65_535) => {
                self.align()?;
                self.bits(16)?
            }
            _ => {
                let octets = self.constrained(u64::from(octets_for(span) - 1))? as u32 + 1;
                self.align()?;
                self.bits(octets * 8)?
            }
        };
        if value <= span { Ok(value) } else { Err(self.error(ErrorKind::Range)) }
    }

    /// The octets of an integer behind their number (§11.7, §11.8), and how many: 1..=8.
    fn counted(&mut self) -> Result<(u64, u32), DecodeError> {
        let octets = self.length()?;
        if !(1..=8).contains(&octets) {
            return Err(self.error(ErrorKind::Range));
        }
        Ok((self.bits(octets as u32 * 8)?, octets as u32))
    }

    /// INTEGER.
    pub fn integer(&mut self, range: Range) -> Result<i64, DecodeError> {
        let root = !(range.extensible && self.bit()?);
        match (range.lower, range.upper) {
            (Some(lower), Some(upper)) if root => {
                let offset = self.constrained(upper.wrapping_sub(lower) as u64)?;
                Ok(lower.wrapping_add(offset as i64))
            }
            (Some(lower), None) if root => {
                let (offset, _) = self.counted()?;
                lower.checked_add_unsigned(offset).ok_or_else(|| self.error(ErrorKind::Range))
            }
            _ => {
                let (value, octets) = self.counted()?;
                let unused = 64 - octets * 8;
                Ok((value << unused) as i64 >> unused)
            }
        }
    }

    /// A normally small non-negative whole number (§11.6).
    fn normally_small(&mut self) -> Result<usize, DecodeError> {
        let value = if self.bit()? { self.counted()?.0 } else { self.bits(6)? };
        usize::try_from(value).map_err(|_| self.error(ErrorKind::Range))
    }

    /// ENUMERATED: the index of a value; `root` and above are additions.
    pub fn enumerated(&mut self, root: usize, extensible: bool) -> Result<usize, DecodeError> {
        if extensible && self.bit()? {
            let addition = self.normally_small()?;
            return root.checked_add(addition).ok_or_else(|| self.error(ErrorKind::Range));
        }
        Ok(self.constrained((root as u64).saturating_sub(1))? as usize)
    }

    /// The index of a CHOICE. The value follows; that of an addition (`root` and above) in [`Self::open`], which
    /// [`Self::skip_open`] skips.
    pub fn choice(&mut self, root: usize, extensible: bool) -> Result<usize, DecodeError> {
        self.enumerated(root, extensible)
    }

    /// The start of a SEQUENCE with `optional` (at most 64) optional members.
    pub fn preamble(&mut self, extensible: bool, optional: u32) -> Result<Preamble, DecodeError> {
        let extended = extensible && self.bit()?;
        Ok(Preamble { extended, optional: self.bits(optional)?, count: optional })
    }

    /// The additions of an extended SEQUENCE: `read` gets each one that is there, with its index and a reader of its
    /// open type. Does nothing if the SEQUENCE is not extended.
    pub fn additions<E: From<DecodeError>>(
        &mut self,
        preamble: &Preamble,
        mut read: impl FnMut(usize, &mut Reader<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !preamble.extended {
            return Ok(());
        }
        let count = if self.bit()? { self.length()? } else { self.bits(6)? as usize + 1 };
        self.need(count)?;
        let mut bitmap = self.clone();
        self.position += count;
        for index in 0..count {
            if bitmap.bit()? {
                self.open(|inner| read(index, inner))?;
            }
        }
        Ok(())
    }

    /// Skips the additions of a SEQUENCE.
    pub fn skip_additions(&mut self, preamble: &Preamble) -> Result<(), DecodeError> {
        self.additions(preamble, |_, _| Ok(()))
    }

    /// The octet at the start of a length without bound.
    fn length_octet(&mut self) -> Result<u8, DecodeError> {
        self.align()?;
        Ok(self.bits(8)? as u8)
    }

    /// A length without bound, which is not fragmented (§11.9.3.5–7).
    fn length(&mut self) -> Result<usize, DecodeError> {
        match self.length_octet()? {
            0xc0.. => Err(self.error(ErrorKind::FragmentedList)),
            first => self.short_length(first),
        }
    }

    fn short_length(&mut self, first: u8) -> Result<usize, DecodeError> {
        if first < 0x80 {
            Ok(first.into())
        } else {
            Ok(usize::from(first & 0x3f) << 8 | self.bits(8)? as usize)
        }
    }

    /// What comes before a string or list: the constrained length; `None` if a length without bound follows.
    /// And whether the size constraint holds for it.
    fn size(&mut self, size: Size) -> Result<(Option<usize>, bool), DecodeError> {
        let root = !(size.extensible && self.bit()?);
        match size.bound() {
            Some(upper) if root => {
                let span = upper.saturating_sub(size.lower) as u64;
                Ok((Some(size.lower + self.constrained(span)? as usize), true))
            }
            _ => Ok((None, root)),
        }
    }

    /// A string: `read` appends the given number of units to what it has. Returns how many there were.
    fn string(
        &mut self,
        size: Size,
        aligned: bool,
        mut read: impl FnMut(&mut Self, usize) -> Result<(), DecodeError>,
    ) -> Result<usize, DecodeError> {
        let (len, root) = self.size(size)?;
        if let Some(len) = len {
            if aligned && len > 0 {
                self.align()?;
            }
            read(self, len)?;
            return Ok(len);
        }
        let mut total = 0;
        loop {
            let first = self.length_octet()?;
            let (count, last) = match first {
                0xc1..=0xc4 => (usize::from(first & 0x3f) * FRAGMENT, false),
                0xc0.. => return Err(self.error(ErrorKind::Size)),
                _ => (self.short_length(first)?, true),
            };
            read(self, count)?;
            total += count;
            if last {
                break;
            }
        }
        if root && !size.contains(total) { Err(self.error(ErrorKind::Size)) } else { Ok(total) }
    }

    /// OCTET STRING.
    pub fn octet_string(&mut self, size: Size) -> Result<Vec<u8>, DecodeError> {
        let mut octets = Vec::new();
        self.string(size, !size.short_fixed(8), |reader, count| reader.raw(count, &mut octets))?;
        Ok(octets)
    }

    /// OCTET STRING (SIZE (N)).
    pub fn octets<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let octets = self.octet_string(Size::fixed(N))?;
        octets.try_into().map_err(|_| self.error(ErrorKind::Size))
    }

    /// BIT STRING.
    pub fn bit_string(&mut self, size: Size) -> Result<BitString, DecodeError> {
        let mut octets = Vec::new();
        let bits = self.string(size, !size.short_fixed(1), |reader, count| {
            // Fragments are whole octets, but for the last.
            reader.need(count)?;
            reader.raw(count / 8, &mut octets)?;
            let used = count % 8;
            if used > 0 {
                octets.push((reader.bits(used as u32)? << (8 - used)) as u8);
            }
            Ok(())
        })?;
        BitString::new(octets, bits).ok_or_else(|| self.error(ErrorKind::Size))
    }

    /// BIT STRING (SIZE (count)) of at most 64 bits, as the low bits of the value.
    pub fn fixed_bits(&mut self, count: u32) -> Result<u64, DecodeError> {
        if count > 16 {
            self.align()?;
        }
        self.bits(count)
    }

    /// PrintableString, VisibleString, IA5String. `allowed` is the type's alphabet.
    pub fn visible_string(
        &mut self,
        size: Size,
        allowed: impl Fn(u8) -> bool,
    ) -> Result<String, DecodeError> {
        let bits = if self.variant == Variant::Aligned { 8 } else { 7 };
        let short = size.short_fixed(8) || size.upper.is_some_and(|upper| upper < 2);
        let mut string = String::new();
        self.string(size, !short, |reader, count| {
            reader.need(count.saturating_mul(bits as usize))?;
            for _ in 0..count {
                let character = reader.bits(bits)? as u8;
                if !character.is_ascii() || !allowed(character) {
                    return Err(reader.error(ErrorKind::Character));
                }
                string.push(character.into());
            }
            Ok(())
        })?;
        Ok(string)
    }

    /// An open type, or an OCTET STRING (CONTAINING T) without size. `read` gets a reader that ends where the open
    /// type does; what it leaves unread is skipped, unless it calls [`Reader::finish`] on a clone.
    pub fn open<T, E: From<DecodeError>>(
        &mut self,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut start = self.clone();
        let first = start.length_octet()?;
        if first >= 0xc0 {
            let whole = self.octet_string(Size::ANY)?;
            return read(&mut Reader::new(self.variant, &whole));
        }
        let bits = start.short_length(first)? * 8;
        start.need(bits)?;
        // In the aligned variant the content starts at an octet boundary, so that padding within it agrees.
        let mut inner = Reader { start: start.position, end: start.position + bits, ..start };
        self.position = inner.end;
        read(&mut inner)
    }

    /// Skips an open type.
    pub fn skip_open(&mut self) -> Result<(), DecodeError> {
        self.open(|_| Ok(()))
    }

    /// SEQUENCE OF.
    pub fn list<T, E: From<DecodeError>>(
        &mut self,
        size: Size,
        mut read: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let (len, root) = self.size(size)?;
        let len = match len {
            Some(len) => len,
            None => self.length()?,
        };
        if root && !size.contains(len) {
            return Err(self.error(ErrorKind::Size).into());
        }
        // No capacity in advance: an element has many times the octets in memory that it has on the wire.
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(read(self)?);
        }
        Ok(items)
    }
}
