//! Configuration of a pool: networks in the form `address/length`.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Address pools of a data network.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UePool {
    /// IPv4 pool; its first host address belongs to the UPF.
    #[serde(default)]
    pub ipv4: Option<Prefix<Ipv4Addr>>,
    /// IPv6 pool of /64 prefixes, one per session; the first belongs to the UPF.
    #[serde(default)]
    pub ipv6: Option<Prefix<Ipv6Addr>>,
}

impl UePool {
    /// Checks rules that serde cannot check.
    ///
    /// # Errors
    /// The key with an invalid value, and what to do.
    pub fn validate(&self) -> Result<(), (&'static str, &'static str)> {
        if self.ipv4.is_none() && self.ipv6.is_none() {
            return Err(("ue_pool", "give ipv4, ipv6 or both"));
        }
        if self.ipv4.is_some_and(|pool| !(8..=29).contains(&pool.length)) {
            return Err(("ue_pool.ipv4", "give a network between /8 and /29"));
        }
        if self.ipv6.is_some_and(|pool| !(32..=63).contains(&pool.length)) {
            return Err(("ue_pool.ipv6", "give a network between /32 and /63: each session takes a /64"));
        }
        Ok(())
    }
}

/// `address/length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix<A> {
    /// Network address; host bits are zero.
    pub address: A,
    /// Length in bits.
    pub length: u8,
}

macro_rules! prefix {
    ($address:ty, $bits:ty, $width:literal) => {
        impl std::str::FromStr for Prefix<$address> {
            type Err = types::Invalid;

            fn from_str(text: &str) -> Result<Self, types::Invalid> {
                let invalid =
                    || types::Invalid::new("pool", text, "a network such as 10.45.0.0/16 or fd00:45::/48");
                let (address, length) = text.split_once('/').ok_or_else(invalid)?;
                let address: $address = address.parse().map_err(|_| invalid())?;
                let length: u8 =
                    length.parse().ok().filter(|length| *length <= $width).ok_or_else(invalid)?;
                let host_bits = <$bits>::MAX.checked_shr(length.into()).unwrap_or(0);
                if <$bits>::from(address) & host_bits != 0 {
                    return Err(types::Invalid::new(
                        "pool",
                        text,
                        "a network address: its host bits must be zero",
                    ));
                }
                Ok(Self { address, length })
            }
        }

        impl std::fmt::Display for Prefix<$address> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}/{}", self.address, self.length)
            }
        }

        impl Serialize for Prefix<$address> {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for Prefix<$address> {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
prefix!(Ipv4Addr, u32, 32);
prefix!(Ipv6Addr, u128, 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_must_be_zero_and_lengths_fit() {
        assert!("10.45.0.1/16".parse::<Prefix<Ipv4Addr>>().is_err());
        assert!("10.45.0.0/33".parse::<Prefix<Ipv4Addr>>().is_err());
        assert!("fd00:45::/48".parse::<Prefix<Ipv6Addr>>().is_ok());
        assert!("0.0.0.0/0".parse::<Prefix<Ipv4Addr>>().is_ok());
    }

    #[test]
    fn a_pool_is_read_and_written_as_text() {
        let text = r#"{"ipv4":"10.45.0.0/16","ipv6":"fd00:45::/48"}"#;
        let pool: UePool = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&pool).unwrap(), text);
        assert!(serde_json::from_str::<UePool>(r#"{"ipv5": null}"#).is_err(), "an unknown key");
    }
}
