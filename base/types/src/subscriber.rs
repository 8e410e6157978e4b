//! Who it is: IMSI, SUPI, PEI (TS 23.003 §2.2, §2.2A, §6).

use std::{fmt, str::FromStr};

use crate::{Invalid, Plmn, serde_as_string};

/// International mobile subscriber identity: five to fifteen digits, MCC first (TS 23.003 §2.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Imsi {
    /// The digits as a number; `len` keeps leading zeros.
    value: u64,
    len: u8,
}

impl Imsi {
    /// Builds the IMSI of `msin` in `plmn`; `msin` keeps its leading zeros.
    ///
    /// # Errors
    /// When the whole has more than fifteen digits or something is not a digit.
    pub fn from_parts(plmn: Plmn, msin: &str) -> Result<Self, Invalid> {
        format!("{}{}{msin}", plmn.mcc(), plmn.mnc()).parse()
    }

    /// The IMSI `offset` places further, for ranges of subscribers; `None` when the digits run out.
    pub fn checked_add(self, offset: u64) -> Option<Self> {
        let value = self.value.checked_add(offset)?;
        (value < 10u64.pow(self.len.into())).then_some(Self { value, len: self.len })
    }

    /// Mobile country code.
    pub fn mcc(&self) -> String {
        self.to_string().chars().take(3).collect()
    }

    /// The PLMN when the MNC has `mnc_len` (2 or 3) digits, and the rest, the MSIN.
    pub fn split(&self, mnc_len: usize) -> Option<(Plmn, String)> {
        let digits = self.to_string();
        let (mcc, rest) = digits.split_at_checked(3)?;
        let (mnc, msin) = rest.split_at_checked(mnc_len)?;
        Some((Plmn::new(mcc, mnc).ok()?, msin.to_owned()))
    }
}

impl fmt::Display for Imsi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$}", self.value, width = usize::from(self.len))
    }
}

impl fmt::Debug for Imsi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Imsi({self})")
    }
}

impl FromStr for Imsi {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let well_formed = (5..=15).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        well_formed
            .then(|| text.parse().ok())
            .flatten()
            .map(|value| Self { value, len: text.len() as u8 })
            .ok_or_else(|| Invalid::new("IMSI", text, "5 to 15 digits"))
    }
}

serde_as_string!(Imsi);

/// Subscription permanent identifier. Godwit serves the IMSI kind, written `imsi-…`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Supi(pub Imsi);

impl Supi {
    /// The IMSI in it.
    pub fn imsi(self) -> Imsi {
        self.0
    }
}

impl From<Imsi> for Supi {
    fn from(imsi: Imsi) -> Self {
        Self(imsi)
    }
}

impl fmt::Display for Supi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imsi-{}", self.0)
    }
}

impl fmt::Debug for Supi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Supi({self})")
    }
}

impl FromStr for Supi {
    type Err = Invalid;

    /// Reads `imsi-999700000000001`, or the bare digits an operator would type.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        text.strip_prefix("imsi-").unwrap_or(text).parse().map(Self)
    }
}

serde_as_string!(Supi);

/// Permanent equipment identifier: IMEI (15 digits) or IMEISV (16 digits) (TS 23.003 §6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pei {
    /// Fifteen digits with check digit.
    Imei(u64),
    /// Sixteen digits, software version in place of the check digit.
    Imeisv(u64),
}

impl fmt::Display for Pei {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Imei(digits) => write!(f, "imei-{digits:015}"),
            Self::Imeisv(digits) => write!(f, "imeisv-{digits:016}"),
        }
    }
}

impl FromStr for Pei {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("PEI", text, "imei- and 15 digits, or imeisv- and 16 digits");
        let (digits, len, build): (_, _, fn(u64) -> Self) = match text.split_once('-') {
            Some(("imei", digits)) => (digits, 15, Self::Imei),
            Some(("imeisv", digits)) => (digits, 16, Self::Imeisv),
            _ => return Err(invalid()),
        };
        if digits.len() != len || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(invalid());
        }
        digits.parse().map(build).map_err(|_| invalid())
    }
}

serde_as_string!(Pei);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imsi_keeps_leading_zeros_and_counts_up() {
        let imsi: Imsi = "001010000000009".parse().unwrap();
        assert_eq!(imsi.to_string(), "001010000000009");
        assert_eq!(imsi.checked_add(1).unwrap().to_string(), "001010000000010");
        assert_eq!("999999999999999".parse::<Imsi>().unwrap().checked_add(1), None);
        let (plmn, msin) = imsi.split(2).unwrap();
        assert_eq!((plmn.to_string().as_str(), msin.as_str()), ("001-01", "0000000009"));
        assert_eq!(Imsi::from_parts(plmn, &msin), Ok(imsi));
        for bad in ["", "1234", "1234567890123456", "12345a", "１２３４５"] {
            assert!(bad.parse::<Imsi>().is_err(), "{bad}");
        }
    }

    #[test]
    fn supi_and_pei_are_read_as_ts_29_571_writes_them() {
        let supi: Supi = serde_json::from_str("\"imsi-999700000000001\"").unwrap();
        assert_eq!(supi, "999700000000001".parse().unwrap());
        assert_eq!(serde_json::to_string(&supi).unwrap(), "\"imsi-999700000000001\"");
        let pei = "imeisv-4370816125816151";
        assert_eq!(pei.parse::<Pei>().unwrap().to_string(), pei);
        assert!("imei-4370816125816151".parse::<Pei>().is_err());
    }
}
