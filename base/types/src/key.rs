//! Secret keys that cannot reach a log.

use std::{fmt, str::FromStr};

use crate::Invalid;

/// A secret of `N` octets (K, OPc, KAMF, KgNB …). `Debug` shows only the length; the octets are
/// wiped when dropped as far as safe Rust can promise it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key<const N: usize>([u8; N]);

impl<const N: usize> Key<N> {
    /// Wraps the octets.
    pub const fn new(octets: [u8; N]) -> Self {
        Self(octets)
    }

    /// The octets, for the algorithm that needs them.
    pub const fn expose(&self) -> &[u8; N] {
        &self.0
    }

    /// Hexadecimal text, for the store and the wire; never for logs.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl<const N: usize> Drop for Key<N> {
    fn drop(&mut self) {
        self.0 = [0; N];
        std::hint::black_box(&self.0);
    }
}

impl<const N: usize> fmt::Debug for Key<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key<{N}>(…)")
    }
}

impl<const N: usize> FromStr for Key<N> {
    type Err = Invalid;

    /// Reads `2 * N` hexadecimal digits. The error never repeats the text.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("key", "(not shown)", "hexadecimal digits, two an octet");
        let digits = text.as_bytes();
        if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(invalid());
        }
        let mut octets = [0; N];
        for (octet, pair) in octets.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| invalid())?;
            *octet = u8::from_str_radix(pair, 16).map_err(|_| invalid())?;
        }
        Ok(Self(octets))
    }
}

impl<const N: usize> serde::Serialize for Key<N> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_hex())
    }
}

impl<'de, const N: usize> serde::Deserialize<'de> for Key<N> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_hex_and_never_show_themselves() {
        let key: Key<16> = "465B5CE8B199B49FAA5F0A2EE238A6BC".parse().unwrap();
        assert_eq!(key.expose()[0], 0x46);
        assert_eq!(key.to_hex(), "465b5ce8b199b49faa5f0a2ee238a6bc");
        assert_eq!(format!("{key:?}"), "Key<16>(…)");
        let error = "465B5CE8B199B49FAA5F0A2EE238A6B".parse::<Key<16>>().unwrap_err();
        assert!(!error.to_string().contains("465B"));
        assert!("zz".parse::<Key<1>>().is_err());
    }
}
