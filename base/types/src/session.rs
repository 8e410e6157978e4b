//! Session identities: PDU session, PTI, TEID, SEID (TS 24.007 §11.2.3.1b, TS 29.281, TS 29.244).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// PDU session identity, 1…15, chosen by the UE (TS 24.007 §11.2.3.1b).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct PduSessionId(u8);

impl PduSessionId {
    /// Builds a PDU session identity.
    ///
    /// # Errors
    /// When it is not within 1…15.
    pub fn new(value: u8) -> Result<Self, Invalid> {
        if !(1..=15).contains(&value) {
            return Err(Invalid::new("PDU session ID", value, "a number within 1…15"));
        }
        Ok(Self(value))
    }

    /// The number.
    pub fn value(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for PduSessionId {
    type Error = Invalid;

    fn try_from(value: u8) -> Result<Self, Invalid> {
        Self::new(value)
    }
}

impl From<PduSessionId> for u8 {
    fn from(id: PduSessionId) -> Self {
        id.0
    }
}

impl fmt::Display for PduSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Procedure transaction identity of 5GSM; 0 is "unassigned", 255 reserved (TS 24.007 §11.2.3.1a).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pti(pub u8);

impl Pti {
    /// No procedure transaction: the network started the procedure.
    pub const UNASSIGNED: Self = Self(0);
}

/// Tunnel endpoint identifier of GTP-U; never 0 for a G-PDU (TS 29.281 §5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Teid(pub u32);

impl fmt::Display for Teid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// Session endpoint identifier of PFCP (TS 29.244 §7.2.2.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seid(pub u64);

impl fmt::Display for Seid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// What a PDU session carries (TS 29.571 `PduSessionType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PduSessionType {
    /// IPv4 only.
    Ipv4,
    /// IPv6 only, one /64 per session.
    Ipv6,
    /// Both.
    Ipv4v6,
    /// No addressing known to the network.
    Unstructured,
    /// Ethernet frames.
    Ethernet,
}

impl PduSessionType {
    /// Whether the session has an IPv4 address.
    pub fn has_ipv4(self) -> bool {
        matches!(self, Self::Ipv4 | Self::Ipv4v6)
    }

    /// Whether the session has an IPv6 prefix.
    pub fn has_ipv6(self) -> bool {
        matches!(self, Self::Ipv6 | Self::Ipv4v6)
    }
}

impl fmt::Display for PduSessionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv4v6 => "IPv4v6",
            Self::Unstructured => "Unstructured",
            Self::Ethernet => "Ethernet",
        })
    }
}

impl FromStr for PduSessionType {
    type Err = Invalid;

    /// Reads the names in any case: `ipv4`, `IPv4v6`, `ETHERNET`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "ipv4" => Self::Ipv4,
            "ipv6" => Self::Ipv6,
            "ipv4v6" => Self::Ipv4v6,
            "unstructured" => Self::Unstructured,
            "ethernet" => Self::Ethernet,
            _ => {
                let expected = "ipv4, ipv6, ipv4v6, ethernet or unstructured";
                return Err(Invalid::new("PDU session type", text, expected));
            }
        })
    }
}

/// Session and service continuity mode (TS 23.501 §5.6.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SscMode {
    /// The anchor and the address stay.
    #[serde(rename = "SSC_MODE_1")]
    Mode1,
    /// Break before make.
    #[serde(rename = "SSC_MODE_2")]
    Mode2,
    /// Make before break.
    #[serde(rename = "SSC_MODE_3")]
    Mode3,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_identities_stay_within_their_range() {
        assert!(PduSessionId::new(0).is_err());
        assert!(PduSessionId::new(16).is_err());
        assert_eq!(serde_json::from_str::<PduSessionId>("5").unwrap().value(), 5);
        assert!(serde_json::from_str::<PduSessionId>("16").is_err());
    }

    #[test]
    fn session_types_are_named_as_in_ts_29_571() {
        let names = ["\"IPV4\"", "\"IPV6\"", "\"IPV4V6\"", "\"UNSTRUCTURED\"", "\"ETHERNET\""];
        for name in names {
            let kind: PduSessionType = serde_json::from_str(name).unwrap();
            assert_eq!(serde_json::to_string(&kind).unwrap(), name);
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
    }
}
