//! Slices and data networks: S-NSSAI and DNN (TS 23.003 §28.4.2, §9A).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Invalid, parse_hex, serde_as_string};

/// Single network slice selection assistance information: slice type and optional differentiator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SNssai {
    /// Slice/service type: 1 eMBB, 2 URLLC, 3 MIoT; 128…255 operator's own.
    pub sst: u8,
    /// Slice differentiator, 24 bits; `None` is "no value" (0xFFFFFF on some wires).
    sd: Option<u32>,
}

impl SNssai {
    /// Builds an S-NSSAI; 0xFFFFFF means no differentiator (TS 23.003 §28.4.2).
    ///
    /// # Errors
    /// When the differentiator needs more than 24 bits.
    pub fn new(sst: u8, sd: Option<u32>) -> Result<Self, Invalid> {
        match sd {
            Some(sd) if sd > 0x00ff_ffff => Err(Invalid::new("SD", format!("{sd:x}"), "24 bits")),
            Some(0x00ff_ffff) => Ok(Self { sst, sd: None }),
            sd => Ok(Self { sst, sd }),
        }
    }

    /// Slice differentiator, 24 bits.
    pub fn sd(&self) -> Option<u32> {
        self.sd
    }

    /// Differentiator as the three octets of the wire.
    pub fn sd_octets(&self) -> Option<[u8; 3]> {
        self.sd.map(|sd| {
            let [_, a, b, c] = sd.to_be_bytes();
            [a, b, c]
        })
    }

    /// Builds from the octets of the wire.
    pub fn from_octets(sst: u8, sd: Option<[u8; 3]>) -> Self {
        let sd = sd.map(|[a, b, c]| u32::from_be_bytes([0, a, b, c])).filter(|sd| *sd != 0x00ff_ffff);
        Self { sst, sd }
    }
}

impl fmt::Display for SNssai {
    /// `1` or `1-000001`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sd {
            None => write!(f, "{}", self.sst),
            Some(sd) => write!(f, "{}-{sd:06x}", self.sst),
        }
    }
}

impl fmt::Debug for SNssai {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SNssai({self})")
    }
}

impl FromStr for SNssai {
    type Err = Invalid;

    /// Reads `1` or `1-000001`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let expected = "SST, or SST-SD as in 1-000001";
        let (sst, sd) = match text.split_once('-') {
            None => (text, None),
            Some((sst, sd)) => (sst, Some(parse_hex("SD", sd, 6, "six hexadecimal digits")? as u32)),
        };
        let sst = sst.parse().map_err(|_| Invalid::new("S-NSSAI", text, expected))?;
        Self::new(sst, sd)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Snssai {
    sst: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sd: Option<String>,
}

impl Serialize for SNssai {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Snssai { sst: self.sst, sd: self.sd.map(|sd| format!("{sd:06x}")) }.serialize(s)
    }
}

impl<'de> Deserialize<'de> for SNssai {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Snssai { sst, sd } = Snssai::deserialize(d)?;
        let sd = sd
            .map(|sd| parse_hex("SD", &sd, 6, "six hexadecimal digits"))
            .transpose()
            .map_err(serde::de::Error::custom)?;
        Self::new(sst, sd.map(|sd| sd as u32)).map_err(serde::de::Error::custom)
    }
}

/// Data network name: the network identifier, labels of letters, digits and hyphens, compared
/// without regard to case (TS 23.003 §9.1); kept in lower case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dnn(String);

impl Dnn {
    /// Builds a DNN.
    ///
    /// # Errors
    /// When it is empty, longer than 100 octets on the wire, or a label is not 1–63 letters, digits or hyphens.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        let label = |l: &str| {
            (1..=63).contains(&l.len())
                && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        if text.len() > 99 || !text.split('.').all(label) {
            return Err(Invalid::new("DNN", text, "labels of letters, digits and hyphens"));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }

    /// The text, labels joined by dots.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Length-prefixed labels, as NAS and PFCP carry a DNN (TS 23.003 §9.1).
    pub fn to_labels(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len() + 1);
        for label in self.0.split('.') {
            out.push(label.len() as u8);
            out.extend_from_slice(label.as_bytes());
        }
        out
    }

    /// Reads length-prefixed labels.
    ///
    /// # Errors
    /// When a label runs past the end or holds what a DNN must not.
    pub fn from_labels(mut octets: &[u8]) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("DNN", "(octets)", "length-prefixed labels");
        let mut text = String::new();
        while let Some((len, rest)) = octets.split_first() {
            let (label, rest) = rest.split_at_checked((*len).into()).ok_or_else(invalid)?;
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(std::str::from_utf8(label).map_err(|_| invalid())?);
            octets = rest;
        }
        Self::new(&text)
    }
}

impl fmt::Display for Dnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Dnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dnn({self})")
    }
}

impl FromStr for Dnn {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::new(text)
    }
}

serde_as_string!(Dnn);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snssai_reads_and_writes_both_forms() {
        let with: SNssai = "1-00ab01".parse().unwrap();
        assert_eq!(serde_json::to_string(&with).unwrap(), r#"{"sst":1,"sd":"00ab01"}"#);
        assert_eq!(with.sd_octets(), Some([0, 0xab, 1]));
        let without: SNssai = serde_json::from_str(r#"{"sst":1}"#).unwrap();
        assert_eq!(without, "1".parse().unwrap());
        assert_eq!(SNssai::new(1, Some(0xff_ffff)), Ok(without));
        assert!(serde_json::from_str::<SNssai>(r#"{"sst":1,"sd":"xyz"}"#).is_err());
        assert!("256".parse::<SNssai>().is_err());
    }

    #[test]
    fn dnn_labels_round_trip_and_reject_lies() {
        let dnn = Dnn::new("Internet.example").unwrap();
        assert_eq!(dnn.to_labels(), b"\x08internet\x07example");
        assert_eq!(Dnn::from_labels(&dnn.to_labels()), Ok(dnn));
        for bad in [&b""[..], b"\x09internet", b"\x00", b"\x01\xff"] {
            assert!(Dnn::from_labels(bad).is_err(), "{bad:?}");
        }
        assert!(Dnn::new("a..b").is_err());
    }
}
