//! Leaf IEs: identifiers, flags and enumerations here, structured values in the submodules.

mod cause;
mod identity;
mod qos;
pub mod tft;
mod timer;
mod tunnel;

pub use crate::codec::Octets;
pub use cause::*;
pub use identity::*;
pub use qos::*;
pub use timer::*;
pub use tunnel::*;

use crate::codec::{Fault, Value, enumerated, flags, integers};

integers! {
    /// Restart counter of a node (§8.5). It grows by one with each restart, modulo 256.
    Recovery(u8);
    /// Procedure transaction ID: relates a bearer procedure to the UE's request (§8.35).
    Pti(u8);
    /// Restriction of combining this APN with others, 0 is none (§8.57).
    ApnRestriction(u8);
    /// Charging ID, unique in its P-GW (§8.29).
    ChargingId(u32);
    /// Charging characteristics of TS 32.298 (§8.30).
    ChargingCharacteristics(u16);
    /// Delay of downlink data notifications in units of 50 ms (§8.27).
    DelayValue(u8);
    /// Which changes of location the MME reports: 0 none, 6 TAI and ECGI (§8.61).
    ChangeReportingAction(u8);
    /// Radio access (§8.17).
    RatType(u8);
}

impl Recovery {
    /// Whether this counter is the later one: the smaller difference modulo 256 counts (TS 23.007 §18).
    pub fn is_newer(self, than: Self) -> bool {
        self.0.wrapping_sub(than.0) as i8 > 0
    }
}

impl RatType {
    /// UTRAN.
    pub const UTRAN: Self = Self(1);
    /// GERAN.
    pub const GERAN: Self = Self(2);
    /// WLAN.
    pub const WLAN: Self = Self(3);
    /// LTE, WB-E-UTRAN.
    pub const EUTRAN: Self = Self(6);
    /// NB-IoT.
    pub const NB_IOT: Self = Self(8);
    /// LTE-M.
    pub const LTE_M: Self = Self(9);
    /// NR.
    pub const NR: Self = Self(10);
}

/// EPS bearer ID, 4 bits: 5 to 15, or 0 for one that the MME is to choose (§8.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ebi(pub u8);

impl Value for Ebi {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        bytes.first().map(|octet| Self(octet & 0x0f)).ok_or(Fault::Length)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0 & 0x0f);
    }
}

/// A number in as many octets as it needs, with leading zeros if the sender likes (§8.99).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct IntegerNumber(pub u64);

impl Value for IntegerNumber {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.is_empty() {
            return Err(Fault::Length);
        }
        if bytes.iter().rev().skip(8).any(|octet| *octet != 0) {
            return Err(Fault::Incorrect);
        }
        Ok(Self(bytes.iter().fold(0, |number, octet| number << 8 | u64::from(*octet))))
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let unused = self.0.leading_zeros() as usize / 8;
        out.extend_from_slice(&self.0.to_be_bytes()[unused.min(7)..]);
    }
}

/// What a vendor says beyond the standard (§8.67).
///
/// ```text
/// octets 5-6: IANA's number of the vendor   7-: what it says
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct PrivateExtension {
    /// IANA's number of the vendor.
    pub enterprise: u16,
    /// What it says.
    pub value: Octets,
}

impl PrivateExtension {
    /// Godwit has no number of its own; this one is for examples (RFC 5612).
    const ENTERPRISE: u16 = 32_473;

    fn of_godwit(value: &[u8]) -> Self {
        Self { enterprise: Self::ENTERPRISE, value: value.into() }
    }

    /// In a Create Session Request: asks whether the gateway sends to the eNB's tunnels in the bearer contexts from the start, also if
    /// the UE has not come from another S-GW.
    pub fn asks_for_enb_tunnels() -> Self {
        Self::of_godwit(b"eNB tunnels?")
    }

    /// In the answer to that: it does, for all bearers. Nobody says it by sending the question back.
    pub fn has_enb_tunnels() -> Self {
        Self::of_godwit(b"eNB tunnels")
    }
}

impl Value for PrivateExtension {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        // A broken one says nothing, and is no reason to refuse its message (§7.7.9).
        let (enterprise, value) = bytes.split_first_chunk().unwrap_or((&[0; 2], &[]));
        Ok(Self { enterprise: u16::from_be_bytes(*enterprise), value: value.into() })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.enterprise.to_be_bytes());
        out.extend_from_slice(&self.value.0);
    }
}

enumerated! {
    /// PDN type (§8.34).
    PdnType(mask 0x07) { #[default] Ipv4 = 1, Ipv6 = 2, Ipv4v6 = 3, NonIp = 4, Ethernet = 5 }
    /// Who chose the APN, and whether the subscription was verified (§8.58). 3 means the same as 2.
    SelectionMode(mask 0x03) { #[default] Verified = 0, MsProvidedNotVerified = 1, NetworkProvidedNotVerified = 2, Reserved = 3 }
    /// Kind of node (§8.65).
    NodeType(mask 0xff) { #[default] Mme = 0, Sgsn = 1 }
}

flags! {
    /// Indication flags (§8.12). The standard's 5GSIWK and the like are FIVE_GSIWK here.
    Indication(u128, min 2) {
        SGWCI = 0x01; ISRAI = 0x02; ISRSI = 0x04; OI = 0x08; DFI = 0x10; HI = 0x20; DTF = 0x40; DAF = 0x80;
        MSV = 0x100; SI = 0x200; PT = 0x400; PS = 0x800; CRSI = 0x1000; CFSI = 0x2000; UIMSI = 0x4000; SQCI = 0x8000;
        CCRSI = 0x1_0000; ISRAU = 0x2_0000; MBMDT = 0x4_0000; S4AF = 0x8_0000; S6AF = 0x10_0000; SRNI = 0x20_0000;
        PBIC = 0x40_0000; RETLOC = 0x80_0000;
        CPSR = 0x100_0000; CLII = 0x200_0000; CSFBI = 0x400_0000; PPSI = 0x800_0000; PPON = 0x1000_0000;
        PPOF = 0x2000_0000; ARRL = 0x4000_0000; CPRAI = 0x8000_0000;
        AOPI = 1 << 32; AOSI = 1 << 33; PCRI = 1 << 34; PSCI = 1 << 35; BDWI = 1 << 36; DTCI = 1 << 37; UASI = 1 << 38;
        NSI = 1 << 39;
        WPMSI = 1 << 40; UNACCSI = 1 << 41; PNSI = 1 << 42; S11TF = 1 << 43; PMTSMI = 1 << 44; CPOPCI = 1 << 45;
        EPCOSI = 1 << 46; ROAAI = 1 << 47;
        TSPCMI = 1 << 48; ENBCRSI = 1 << 49; LTEMPI = 1 << 50; LTEMUI = 1 << 51; EEVRSI = 1 << 52; FIVE_GSIWK = 1 << 53;
        REPREFI = 1 << 54; FIVE_GSNN26 = 1 << 55;
        ETHPDN = 1 << 56; FIVE_SRHOI = 1 << 57; FIVE_GCNRI = 1 << 58; FIVE_GCNRS = 1 << 59; N5GNMI = 1 << 60;
        MTEDTA = 1 << 61; MTEDTN = 1 << 62; CSRMFI = 1 << 63;
    }
    /// Bearer flags (§8.32).
    BearerFlags(u64, min 1) { PPC = 0x01; VB = 0x02; VIND = 0x04; ASI = 0x08; }
    /// What a node can do (§8.83).
    NodeFeatures(u64, min 1) { PRN = 0x01; MABR = 0x02; NTSR = 0x04; CIOT = 0x08; S1UN = 0x10; ETH = 0x20; }
    /// Signalling priority: LAPI (§8.86).
    SignallingPriority(u64, min 1) { LAPI = 0x01; }
}
