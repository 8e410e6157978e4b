//! Networks, tracking areas and cells: PLMN, TAC, TAI, NCGI (TS 23.003 §2.2, §19.4.2).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Invalid, parse_hex, serde_as_string};

/// Public land mobile network: MCC of three digits, MNC of two or three (TS 23.003 §2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Plmn {
    mcc: [u8; 3],
    mnc: [u8; 3],
    mnc_len: u8,
}

impl Plmn {
    /// Builds a PLMN from its digits as text.
    ///
    /// # Errors
    /// When the MCC has not three digits or the MNC not two or three.
    pub fn new(mcc: &str, mnc: &str) -> Result<Self, Invalid> {
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if mcc.len() != 3 || !digits(mcc) {
            return Err(Invalid::new("MCC", mcc, "three digits"));
        }
        if !(2..=3).contains(&mnc.len()) || !digits(mnc) {
            return Err(Invalid::new("MNC", mnc, "two or three digits"));
        }
        let digit = |text: &str, i: usize| text.as_bytes().get(i).map_or(0, |b| b - b'0');
        Ok(Self {
            mcc: [digit(mcc, 0), digit(mcc, 1), digit(mcc, 2)],
            mnc: [digit(mnc, 0), digit(mnc, 1), digit(mnc, 2)],
            mnc_len: mnc.len() as u8,
        })
    }

    /// Reads the three octets that NAS, NGAP and PFCP share: digits nibble-swapped, 0xF for a
    /// missing third MNC digit (TS 24.501 §9.11.3.4).
    ///
    /// # Errors
    /// When a nibble is not a digit.
    pub fn from_bcd(octets: [u8; 3]) -> Result<Self, Invalid> {
        let (lo, hi) = (|b: u8| b & 0x0f, |b: u8| b >> 4);
        let mcc = [lo(octets[0]), hi(octets[0]), lo(octets[1])];
        let third = hi(octets[1]);
        let (third, mnc_len) = if third == 0x0f { (0, 2) } else { (third, 3) };
        let mnc = [lo(octets[2]), hi(octets[2]), third];
        if mcc.iter().chain(&mnc).any(|d| *d > 9) {
            let hex = format!("{:02x}{:02x}{:02x}", octets[0], octets[1], octets[2]);
            return Err(Invalid::new("PLMN", hex, "BCD digits"));
        }
        Ok(Self { mcc, mnc, mnc_len })
    }

    /// The three octets of TS 24.501 §9.11.3.4.
    pub fn to_bcd(self) -> [u8; 3] {
        let third = if self.mnc_len == 3 { self.mnc[2] } else { 0x0f };
        [self.mcc[1] << 4 | self.mcc[0], third << 4 | self.mcc[2], self.mnc[1] << 4 | self.mnc[0]]
    }

    /// Mobile country code, three digits.
    pub fn mcc(&self) -> String {
        self.mcc.iter().map(|d| char::from(b'0' + d)).collect()
    }

    /// Mobile network code, two or three digits.
    pub fn mnc(&self) -> String {
        self.mnc.iter().take(self.mnc_len.into()).map(|d| char::from(b'0' + d)).collect()
    }

    /// Digits in the MNC: two or three.
    pub fn mnc_len(&self) -> usize {
        self.mnc_len.into()
    }

    /// Serving network name, the SN-Id of 5G-AKA (TS 24.501 §9.12.1): `5G:mnc070.mcc999.3gppnetwork.org`.
    pub fn serving_network_name(&self) -> String {
        format!("5G:mnc{:0>3}.mcc{}.3gppnetwork.org", self.mnc(), self.mcc())
    }
}

impl fmt::Display for Plmn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.mcc(), self.mnc())
    }
}

impl fmt::Debug for Plmn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plmn({self})")
    }
}

impl FromStr for Plmn {
    type Err = Invalid;

    /// Reads `999-70`, `999/70` or `99970`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let expected = "MCC and MNC, as in 999-70";
        if let Some((mcc, mnc)) = text.split_once(['-', '/']) {
            return Self::new(mcc, mnc);
        }
        let (mcc, mnc) = text.split_at_checked(3).ok_or_else(|| Invalid::new("PLMN", text, expected))?;
        Self::new(mcc, mnc)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlmnId {
    mcc: String,
    mnc: String,
}

impl Serialize for Plmn {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        PlmnId { mcc: self.mcc(), mnc: self.mnc() }.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Plmn {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let PlmnId { mcc, mnc } = PlmnId::deserialize(d)?;
        Self::new(&mcc, &mnc).map_err(serde::de::Error::custom)
    }
}

/// Tracking area code of 5GS, 24 bits (TS 23.003 §19.4.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tac(u32);

impl Tac {
    /// Builds a TAC.
    ///
    /// # Errors
    /// When the value needs more than 24 bits.
    pub fn new(value: u32) -> Result<Self, Invalid> {
        if value > 0x00ff_ffff {
            return Err(Invalid::new("TAC", value, "a number below 16777216"));
        }
        Ok(Self(value))
    }

    /// Reads the three octets of NAS and NGAP, most significant first.
    pub fn from_octets(octets: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, octets[0], octets[1], octets[2]]))
    }

    /// Three octets, most significant first.
    pub fn to_octets(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// The number.
    pub fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Tac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

impl FromStr for Tac {
    type Err = Invalid;

    /// Reads four or six hexadecimal digits (TS 29.571 `Tac`).
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let digits = if text.len() == 4 { 4 } else { 6 };
        Ok(Self(parse_hex("TAC", text, digits, "four or six hexadecimal digits")? as u32))
    }
}

impl Serialize for Tac {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Tac {
    /// Hexadecimal text as TS 29.571 has it, or a plain number as operators write it in YAML.
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct TacVisitor;
        impl serde::de::Visitor<'_> for TacVisitor {
            type Value = Tac;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tracking area code: a number below 16777216 or six hexadecimal digits")
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Tac, E> {
                u32::try_from(value)
                    .map_err(|_| Invalid::new("TAC", value, "a number below 16777216"))
                    .and_then(Tac::new)
                    .map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Tac, E> {
                let unsigned = u64::try_from(value).map_err(|_| E::custom("TAC must not be negative"))?;
                self.visit_u64(unsigned)
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Tac, E> {
                text.parse().map_err(E::custom)
            }
        }
        d.deserialize_any(TacVisitor)
    }
}

/// Tracking area identity (TS 23.003 §19.4.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Tai {
    /// Network of the area.
    #[serde(rename = "plmnId")]
    pub plmn: Plmn,
    /// Area within it.
    pub tac: Tac,
}

impl fmt::Display for Tai {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.plmn, self.tac)
    }
}

/// NR cell identity, 36 bits: gNB identity (22–32 bits) then cell (TS 38.413 §9.3.1.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NrCellId(u64);

impl NrCellId {
    /// Builds a cell identity.
    ///
    /// # Errors
    /// When the value needs more than 36 bits.
    pub fn new(value: u64) -> Result<Self, Invalid> {
        if value >> 36 != 0 {
            return Err(Invalid::new("NR cell identity", value, "a number of at most 36 bits"));
        }
        Ok(Self(value))
    }

    /// The number.
    pub fn value(self) -> u64 {
        self.0
    }
}

impl fmt::Display for NrCellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:09x}", self.0)
    }
}

impl FromStr for NrCellId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        parse_hex("NR cell identity", text, 9, "nine hexadecimal digits").and_then(Self::new)
    }
}

serde_as_string!(NrCellId);

/// NR cell global identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ncgi {
    /// Network of the cell.
    #[serde(rename = "plmnId")]
    pub plmn: Plmn,
    /// Cell within it.
    pub nr_cell_id: NrCellId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plmn_octets_follow_the_standard_for_both_mnc_lengths() {
        let two = Plmn::new("999", "70").unwrap();
        assert_eq!(two.to_bcd(), [0x99, 0xf9, 0x07]);
        let three = Plmn::new("310", "410").unwrap();
        assert_eq!(three.to_bcd(), [0x13, 0x00, 0x14]);
        for plmn in [two, three] {
            assert_eq!(Plmn::from_bcd(plmn.to_bcd()), Ok(plmn));
            assert_eq!(plmn.to_string().parse(), Ok(plmn));
        }
        assert!(Plmn::from_bcd([0xaf, 0, 0]).is_err());
        assert!(Plmn::new("99", "70").is_err());
        assert!(Plmn::new("999", "7x").is_err());
        assert!("99é70".parse::<Plmn>().is_err());
    }

    #[test]
    fn mnc_01_and_001_are_different_networks() {
        assert_ne!(Plmn::new("001", "01"), Plmn::new("001", "010"));
        let name = Plmn::new("001", "01").unwrap().serving_network_name();
        assert_eq!(name, "5G:mnc001.mcc001.3gppnetwork.org");
    }

    #[test]
    fn json_forms_are_those_of_ts_29_571() {
        let tai = Tai { plmn: Plmn::new("999", "70").unwrap(), tac: Tac::new(1).unwrap() };
        let json = serde_json::to_string(&tai).unwrap();
        assert_eq!(json, r#"{"plmnId":{"mcc":"999","mnc":"70"},"tac":"000001"}"#);
        assert_eq!(serde_json::from_str::<Tai>(&json).unwrap(), tai);
        assert_eq!(serde_json::from_str::<Tac>("7").unwrap().value(), 7);
        assert!(serde_json::from_str::<Tac>("16777216").is_err());
        let cell: NrCellId = serde_json::from_str("\"000000010\"").unwrap();
        assert_eq!(cell.value(), 16);
    }
}
