//! Masks `authorization` in HTTP/2 header blocks (HPACK, RFC 7541), octet by octet.
//!
//! Neither table of HPACK is kept: the field is known by its number in the static table, 23. A name in letters or from the
//! dynamic table could be any; there, long values are masked, as tokens are. Later fields that refer to a masked value by
//! index show what a reader of the capture has in its table: the mask.

/// Number of `authorization` in the static table (RFC 7541 appendix A).
const AUTHORIZATION: u32 = 23;
/// Names above this are in the dynamic table.
const STATIC_TABLE: u32 = 61;
/// Values of unknown names are masked from this length on. Tokens are longer; other fields of the SBI are shorter.
const LONG_VALUE: u32 = 128;
/// Octets of the PRIORITY fields of a HEADERS frame.
const PRIORITY_FIELDS: usize = 5;

/// A header block, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct HeaderBlock {
    /// Octets of the frame that are part of the block; padding follows.
    left: usize,
    /// The next octet is the length of the padding.
    padded: bool,
    /// Octets before the block in its first frame.
    skip: usize,
    state: State,
    /// Number of the field's name; 0: it comes in letters.
    name: u32,
    /// The string that comes is the value, not the name.
    value: bool,
}

#[derive(Debug, Default)]
enum State {
    /// Before a field.
    #[default]
    Field,
    /// Inside a number that did not fit its prefix.
    Number { of: Number, value: u32, shift: u32 },
    /// Before the length of a string.
    Length,
    /// Inside a string of `length` octets.
    Text { at: u32, length: u32, huffman: bool },
}

/// What a number says.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// A whole field, or the size of the table: nothing to mask.
    Whole,
    /// The name of a literal field.
    Name,
    /// The length of a string, Huffman coded or not.
    Length { huffman: bool },
}

impl HeaderBlock {
    /// A block that begins with a HEADERS frame of `length` octets.
    pub fn new(length: usize, padded: bool, priority: bool) -> HeaderBlock {
        let skip = if priority { PRIORITY_FIELDS } else { 0 };
        HeaderBlock { left: length, padded, skip, ..HeaderBlock::default() }
    }

    /// A CONTINUATION frame of `length` octets follows.
    pub fn go_on(&mut self, length: usize) {
        (self.left, self.padded, self.skip) = (length, false, 0);
    }

    /// Masks the next octets of the frame.
    pub fn mask(&mut self, octets: &mut [u8]) {
        for octet in octets {
            if self.padded {
                self.padded = false;
                self.left = self.left.saturating_sub(1 + usize::from(*octet));
                continue;
            }
            if self.left == 0 {
                // Padding.
                continue;
            }
            self.left -= 1;
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.step(octet);
        }
    }

    fn step(&mut self, octet: &mut u8) {
        match &mut self.state {
            State::Field => {
                let (number, bits) = match *octet {
                    0x80.. => (Number::Whole, 7),
                    0x40.. => (Number::Name, 6),
                    0x20.. => (Number::Whole, 5),
                    _ => (Number::Name, 4),
                };
                self.begin_number(number, *octet, bits);
            }
            State::Length => {
                let huffman = *octet & 0x80 != 0;
                self.begin_number(Number::Length { huffman }, *octet, 7);
            }
            State::Number { of, value, shift } => {
                let of = *of;
                // A number beyond 32 bits is an error of the peer; whatever follows is masked or not, but bounded.
                *value = value.saturating_add(u32::from(*octet & 0x7F).checked_shl(*shift).unwrap_or(0));
                *shift += 7;
                if *octet & 0x80 == 0 {
                    let value = *value;
                    self.end_number(of, value);
                }
            }
            State::Text { at, length, huffman } => {
                let is_secret = self.value
                    && (self.name == AUTHORIZATION
                        || (self.name == 0 || self.name > STATIC_TABLE) && *length >= LONG_VALUE);
                let last = *at + 1 == *length;
                if is_secret {
                    *octet = match (*huffman, last) {
                        (false, _) => b'x',
                        (true, false) => 0,
                        // Zero bits are the letter 0, five bits each; what is left over is padded with ones (§5.2).
                        (true, true) => (1 << (u64::from(*length) * 8 % 5)) - 1,
                    };
                }
                *at += 1;
                if last {
                    self.end_string();
                }
            }
        }
    }

    fn begin_number(&mut self, of: Number, octet: u8, bits: u32) {
        let mask = (1_u8 << bits) - 1;
        if octet & mask == mask {
            self.state = State::Number { of, value: mask.into(), shift: 0 };
        } else {
            self.end_number(of, (octet & mask).into());
        }
    }

    fn end_number(&mut self, of: Number, value: u32) {
        match of {
            Number::Whole => self.state = State::Field,
            Number::Name => {
                self.name = value;
                self.value = value != 0;
                self.state = State::Length;
            }
            Number::Length { huffman } => {
                self.state = State::Text { at: 0, length: value, huffman };
                if value == 0 {
                    self.end_string();
                }
            }
        }
    }

    /// After a name comes its value, after a value the next field.
    fn end_string(&mut self) {
        self.state = if self.value { State::Field } else { State::Length };
        self.value = true;
    }
}
