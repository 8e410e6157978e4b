//! Quality of service: bit rates, 5QI, ARP, QFI (TS 23.501 §5.7, TS 29.571).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Invalid, serde_as_string};

/// A bit rate in bit/s. Written with a unit, as in `1 Gbps` or `1.5 Mbps` (TS 29.571 `BitRate`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BitRate(u64);

/// Units of TS 29.571, smallest first.
const UNITS: [(&str, u64); 5] =
    [("bps", 1), ("Kbps", 1_000), ("Mbps", 1_000_000), ("Gbps", 1_000_000_000), ("Tbps", 1_000_000_000_000)];

impl BitRate {
    /// A rate in bit/s.
    pub const fn from_bps(bps: u64) -> Self {
        Self(bps)
    }

    /// A rate in kbit/s, as NAS, NGAP and PFCP count (1 kbit = 1000 bit); saturates.
    pub const fn from_kbps(kbps: u64) -> Self {
        Self(kbps.saturating_mul(1_000))
    }

    /// bit/s.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// kbit/s, rounded up: a rate above 0 never becomes 0.
    pub const fn kbps(self) -> u64 {
        self.0.div_ceil(1_000)
    }
}

impl fmt::Display for BitRate {
    /// Writes the rate in the largest unit that shows it exactly.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(_, unit): &&(&str, u64)| self.0.is_multiple_of(*unit) && self.0 >= *unit;
        let (name, unit) = UNITS.iter().rev().find(exact).unwrap_or(&UNITS[0]);
        write!(f, "{} {name}", self.0 / unit)
    }
}

impl FromStr for BitRate {
    type Err = Invalid;

    /// Reads a decimal number with up to three decimals and a unit; the space may be missing.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("bit rate", text, "a number and bps, Kbps, Mbps, Gbps or Tbps");
        let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(invalid)?;
        let (number, unit) = text.split_at(split);
        let (_, factor) =
            UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(invalid)?;
        let number = number.trim();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 3 {
            return Err(invalid());
        }
        let thousandths: u64 = format!("{fraction:0<3}").parse().map_err(|_| invalid())?;
        let whole: u64 = whole.parse().map_err(|_| invalid())?;
        let bps = whole.checked_mul(*factor).ok_or_else(invalid)?;
        bps.checked_add(thousandths * (factor / 1_000)).map(Self).ok_or_else(invalid)
    }
}

serde_as_string!(BitRate);

/// Aggregate maximum bit rate, of a UE or a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ambr {
    /// From the UE.
    pub uplink: BitRate,
    /// To the UE.
    pub downlink: BitRate,
}

/// 5G QoS identifier (TS 23.501 table 5.7.4-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FiveQi(pub u8);

/// QoS flow identifier, 0…63 (TS 38.415).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Qfi(u8);

impl Qfi {
    /// Builds a QFI.
    ///
    /// # Errors
    /// When it needs more than six bits.
    pub fn new(value: u8) -> Result<Self, Invalid> {
        if value > 63 {
            return Err(Invalid::new("QFI", value, "a number below 64"));
        }
        Ok(Self(value))
    }

    /// The number, 0…63.
    pub const fn value(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for Qfi {
    type Error = Invalid;

    fn try_from(value: u8) -> Result<Self, Invalid> {
        Self::new(value)
    }
}

impl From<Qfi> for u8 {
    fn from(qfi: Qfi) -> Self {
        qfi.0
    }
}

/// Allocation and retention priority (TS 23.501 §5.7.2.2, TS 29.571 `Arp`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arp {
    /// 1 (highest) … 15.
    pub priority: u8,
    /// May take resources from flows of lower priority.
    pub may_preempt: bool,
    /// May lose its resources to flows of higher priority.
    pub preemptable: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArpJson {
    priority_level: u8,
    preempt_cap: PreemptCap,
    preempt_vuln: PreemptVuln,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum PreemptCap {
    NotPreempt,
    MayPreempt,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum PreemptVuln {
    NotPreemptable,
    Preemptable,
}

impl Serialize for Arp {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        ArpJson {
            priority_level: self.priority,
            preempt_cap: if self.may_preempt { PreemptCap::MayPreempt } else { PreemptCap::NotPreempt },
            preempt_vuln: if self.preemptable {
                PreemptVuln::Preemptable
            } else {
                PreemptVuln::NotPreemptable
            },
        }
        .serialize(s)
    }
}

impl<'de> Deserialize<'de> for Arp {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let arp = ArpJson::deserialize(d)?;
        if !(1..=15).contains(&arp.priority_level) {
            return Err(serde::de::Error::custom("ARP priority level must be within 1…15"));
        }
        Ok(Self {
            priority: arp.priority_level,
            may_preempt: matches!(arp.preempt_cap, PreemptCap::MayPreempt),
            preemptable: matches!(arp.preempt_vuln, PreemptVuln::Preemptable),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_rates_read_and_print_exactly() {
        for (text, bps) in [
            ("1 Gbps", 1_000_000_000),
            ("1.5 Mbps", 1_500_000),
            ("20Mbps", 20_000_000),
            ("64 kbps", 64_000),
            ("0 bps", 0),
        ] {
            let rate: BitRate = text.parse().unwrap();
            assert_eq!(rate.bps(), bps, "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        assert_eq!(BitRate::from_bps(1_500_000).to_string(), "1500 Kbps");
        assert_eq!(BitRate::from_bps(1).kbps(), 1);
        for bad in ["", "Gbps", "1", "-1 Mbps", "1.2345 Gbps", "99999999999 Tbps", "1 Mbit"] {
            assert!(bad.parse::<BitRate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn arp_json_is_that_of_ts_29_571() {
        let json = r#"{"priorityLevel":8,"preemptCap":"NOT_PREEMPT","preemptVuln":"PREEMPTABLE"}"#;
        let arp: Arp = serde_json::from_str(json).unwrap();
        assert_eq!(arp, Arp { priority: 8, may_preempt: false, preemptable: true });
        assert_eq!(serde_json::to_string(&arp).unwrap(), json);
        assert!(serde_json::from_str::<Arp>(&json.replace('8', "16")).is_err());
    }
}
