//! The Internet checksum (RFC 1071) and its pseudo headers.

use std::net::IpAddr;

/// A running ones'-complement sum. Every part but the last must have an even length.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum(u64);

impl Sum {
    /// Adds octets; an odd last octet counts as if followed by zero.
    ///
    /// The words are added in the machine's byte order, which the compiler turns into vector code, and the result is
    /// swapped once (RFC 1071 §2 (B): the sum does not depend on the byte order).
    #[must_use]
    pub fn octets(mut self, bytes: &[u8]) -> Sum {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let mut last = [0u8; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        self.0 += u64::from(u16::from_be(fold(sum)));
        self
    }

    /// Adds the pseudo header of UDP, TCP and ICMPv6 (RFC 768, RFC 8200 §8.1).
    #[must_use]
    pub fn pseudo_header(self, source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Sum {
        let sum = match (source, destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.octets(&s.octets()).octets(&d.octets()),
            (IpAddr::V6(s), IpAddr::V6(d)) => self.octets(&s.octets()).octets(&d.octets()),
            (IpAddr::V4(s), IpAddr::V6(d)) => self.octets(&s.octets()).octets(&d.octets()),
            (IpAddr::V6(s), IpAddr::V4(d)) => self.octets(&s.octets()).octets(&d.octets()),
        };
        sum.octets(&(length as u32).to_be_bytes()).octets(&[0, 0, 0, protocol])
    }

    /// The checksum to put into a header whose checksum field was zero; 0 when the field was right.
    pub fn finish(self) -> u16 {
        !fold(self.0)
    }
}

/// A sum of 16-bit words with the carries added to its lowest octets.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of one run of octets.
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::default().octets(bytes).finish()
}

/// What changing some octets does to a checksum over them (RFC 1624): the rest need not be read.
///
/// Changed octets stand at even positions of what the checksum covers, and their number is even.
#[derive(Clone, Copy, Default, Debug)]
pub struct Difference(u64);

impl Difference {
    /// `old` was replaced by `new`.
    #[must_use]
    pub fn replaced(mut self, old: &[u8], new: &[u8]) -> Difference {
        let word = |pair: &[u8]| u16::from_be_bytes([pair[0], pair[1]]);
        self.0 += old.chunks_exact(2).map(|pair| u64::from(!word(pair))).sum::<u64>();
        self.0 += new.chunks_exact(2).map(|pair| u64::from(word(pair))).sum::<u64>();
        self
    }

    /// The checksum after the change; a wrong one stays wrong.
    pub fn apply(self, checksum: u16) -> u16 {
        Sum(self.0 + u64::from(!checksum)).finish()
    }

    /// Changes the checksum that stands at `at` in `bytes`; out of range nothing happens.
    pub fn apply_at(self, bytes: &mut [u8], at: usize) {
        if let Some([high, low]) = bytes.get_mut(at..at + 2) {
            [*high, *low] = self.apply(u16::from_be_bytes([*high, *low])).to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071 §3.
    #[test]
    fn rfc_example() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    /// Every length and alignment against the sum of 16-bit words in network order.
    #[test]
    fn sums_agree_with_the_definition() {
        let bytes: Vec<u8> = (0..2000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for (from, to) in (0..200).map(|n| (n % 9, n)).chain([(0, 2000), (1, 2000), (3, 1999)]) {
            let part = bytes.get(from..to).unwrap_or_default();
            let words =
                part.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
            let mut sum: u64 = words.sum();
            while sum > 0xFFFF {
                sum = (sum & 0xFFFF) + (sum >> 16);
            }
            assert_eq!(checksum(part), !(sum as u16), "{from}..{to}");
        }
        assert_eq!(checksum(&[0xFF; 64]), 0);
    }

    #[test]
    fn odd_lengths_are_padded() {
        assert_eq!(checksum(&[1, 2, 3]), checksum(&[1, 2, 3, 0]));
        assert_eq!(checksum(&[]), 0xFFFF);
    }

    #[test]
    fn a_difference_is_as_good_as_a_new_sum() {
        let mut bytes = [0x45, 0, 0xFF, 0xFF, 0, 0, 0x12, 0x34, 0xFE, 0xDC, 1, 2];
        for (at, new) in [(0, [0xFF, 0xFF]), (2, [0, 0]), (2, [0xFF, 0xFF]), (6, [0xED, 0xCB]), (10, [0, 0])]
        {
            let before = checksum(&bytes);
            let old = [bytes[at], bytes[at + 1]];
            bytes[at..at + 2].copy_from_slice(&new);
            let mut after = Difference::default().replaced(&old, &new).apply(before).to_be_bytes();
            assert_eq!(u16::from_be_bytes(after), checksum(&bytes), "{at}");
            Difference::default().replaced(&new, &old).apply_at(&mut after, 0);
            assert_eq!(u16::from_be_bytes(after), before);
            Difference::default().replaced(&new, &old).apply_at(&mut after, 1);
            assert_eq!(u16::from_be_bytes(after), before, "out of range");
        }
    }
}
