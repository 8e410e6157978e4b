//! The Internet checksum (RFC 1071) and its pseudo headers.

use std::net::IpAddr;

/// A running ones'-complement sum. Every part but the last must have an even length.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum(u64);

impl Sum {
    /// Adds octets; an odd last octet counts as if followed by zero.
    #[must_use]
    pub fn octets(mut self, bytes: &[u8]) -> Sum {
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            self.0 += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        }
        let mut last = [0u8; 4];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        self.0 += u64::from(u32::from_be_bytes(last));
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
        let mut sum = self.0;
        while sum > 0xFFFF {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        !(sum as u16)
    }
}

/// The checksum of one run of octets.
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::default().octets(bytes).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071 §3.
    #[test]
    fn rfc_example() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn odd_lengths_are_padded() {
        assert_eq!(checksum(&[1, 2, 3]), checksum(&[1, 2, 3, 0]));
        assert_eq!(checksum(&[]), 0xFFFF);
    }
}
