//! Small values: key set identifiers, capabilities, algorithms, lists and flags of TS 24.501 §9.11.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};

use types::{PduSessionId, PduSessionType, SNssai};

/// NAS key set identifier for 5G, ngKSI (TS 24.501 §9.11.3.32).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeySetId {
    /// A native security context, 0…6.
    Native(u8),
    /// A context mapped from EPS, 0…6.
    Mapped(u8),
    /// The UE has no key.
    NoKey,
}

impl KeySetId {
    /// From the half octet on the wire.
    pub fn from_bits(bits: u8) -> Self {
        match (bits & 0x08 != 0, bits & 0x07) {
            (_, 7) => Self::NoKey,
            (false, ksi) => Self::Native(ksi),
            (true, ksi) => Self::Mapped(ksi),
        }
    }

    /// The half octet on the wire.
    pub fn to_bits(self) -> u8 {
        match self {
            Self::Native(ksi) => ksi & 0x07,
            Self::Mapped(ksi) => 0x08 | ksi & 0x07,
            Self::NoKey => 0x07,
        }
    }

    /// The native identifier after this one, never "no key" (for a new authentication).
    pub fn next_native(self) -> Self {
        match self {
            Self::Native(ksi) | Self::Mapped(ksi) => Self::Native((ksi + 1) % 7),
            Self::NoKey => Self::Native(0),
        }
    }
}

/// Why a UE registers (TS 24.501 §9.11.3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegistrationType {
    /// Initial registration; also what reserved values mean.
    Initial,
    /// Mobility registration updating.
    MobilityUpdating,
    /// Periodic registration updating.
    PeriodicUpdating,
    /// Emergency registration.
    Emergency,
    /// SNPN onboarding registration.
    SnpnOnboarding,
    /// Disaster roaming, mobility registration updating.
    DisasterRoamingMobility,
    /// Disaster roaming, initial registration.
    DisasterRoamingInitial,
}

/// Why a UE asks for service (TS 24.501 §9.11.3.50).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Signalling; also what unused low values mean.
    Signalling,
    /// Data; also what unused high values mean.
    Data,
    /// Answer to paging.
    MobileTerminated,
    /// Emergency services.
    EmergencyServices,
    /// Emergency services fallback.
    EmergencyServicesFallback,
    /// High priority access.
    HighPriorityAccess,
    /// Elevated signalling.
    ElevatedSignalling,
}

/// Access a message is about (TS 24.501 §9.11.3.11, §9.11.3.20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessType {
    /// 3GPP access.
    ThreeGpp,
    /// Non-3GPP access.
    Non3gpp,
    /// Both.
    Both,
}

/// What a payload container holds (TS 24.501 §9.11.3.40).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PayloadType {
    /// A 5GSM message.
    N1Sm,
    /// SMS.
    Sms,
    /// LTE positioning protocol.
    Lpp,
    /// Steering of roaming.
    Sor,
    /// UE policy container.
    UePolicy,
    /// UE parameters update.
    UeParametersUpdate,
    /// Several payloads.
    Multiple,
    /// Another, with its number.
    Other(u8),
}

/// What a UE wants of the PDU session in an uplink transport (TS 24.501 §9.11.3.47).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestType {
    /// A new session; also what unused values mean.
    Initial,
    /// An existing session, moved from the other access or system.
    Existing,
    /// A new emergency session.
    InitialEmergency,
    /// An existing emergency session.
    ExistingEmergency,
    /// Modification.
    Modification,
    /// Multi-access session.
    MaPduRequest,
}

/// NAS integrity algorithm (TS 33.501 §5.11.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum IntegrityAlgorithm {
    /// None; only for unauthenticated emergency sessions.
    Nia0 = 0,
    /// SNOW 3G.
    Nia1 = 1,
    /// AES.
    Nia2 = 2,
    /// ZUC.
    Nia3 = 3,
}

/// NAS ciphering algorithm (TS 33.501 §5.11.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CipheringAlgorithm {
    /// None.
    Nea0 = 0,
    /// SNOW 3G.
    Nea1 = 1,
    /// AES.
    Nea2 = 2,
    /// ZUC.
    Nea3 = 3,
}

/// Display, `FromStr` (`NIA2`), serde as that text, and the number.
macro_rules! algorithm {
    ($name:ident, $expected:literal, $($text:literal $variant:ident $number:literal),*) => {
        impl $name {
            /// The identifier on the wire, 0…3.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// From the identifier on the wire; 4…7 are reserved.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),* })
            }
        }

        impl std::str::FromStr for $name {
            type Err = types::Invalid;

            fn from_str(text: &str) -> Result<Self, types::Invalid> {
                match text.to_ascii_uppercase().as_str() {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(types::Invalid::new("NAS algorithm", text, $expected)),
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

algorithm!(
    IntegrityAlgorithm, "NIA0, NIA1, NIA2 or NIA3",
    "NIA0" Nia0 0, "NIA1" Nia1 1, "NIA2" Nia2 2, "NIA3" Nia3 3
);
algorithm!(
    CipheringAlgorithm, "NEA0, NEA1, NEA2 or NEA3",
    "NEA0" Nea0 0, "NEA1" Nea1 1, "NEA2" Nea2 2, "NEA3" Nea3 3
);

/// UE security capability (TS 24.501 §9.11.3.54), kept octet for octet because the network replays it.
///
/// | octet | bits 8…1 |
/// |---|---|
/// | 0 | 5G-EA0 … 5G-EA7 |
/// | 1 | 5G-IA0 … 5G-IA7 |
/// | 2 | EEA0 … EEA7 (optional) |
/// | 3 | EIA0 … EIA7 (optional) |
/// | 4–7 | spare (optional) |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UeSecurityCapability {
    octets: [u8; 8],
    len: u8,
}

impl UeSecurityCapability {
    /// The capability of a UE with these 5GS algorithms, and the same ones in EPS.
    pub fn new(ciphering: &[CipheringAlgorithm], integrity: &[IntegrityAlgorithm]) -> Self {
        let ea = ciphering.iter().fold(0, |bits, a| bits | 0x80 >> a.number());
        let ia = integrity.iter().fold(0, |bits, a| bits | 0x80 >> a.number());
        Self { octets: [ea, ia, ea, ia, 0, 0, 0, 0], len: 4 }
    }

    /// From the octets of the element: two to eight.
    pub fn from_octets(octets: &[u8]) -> Option<Self> {
        let mut copy = [0; 8];
        if octets.len() < 2 {
            return None;
        }
        copy.get_mut(..octets.len())?.copy_from_slice(octets);
        Some(Self { octets: copy, len: octets.len() as u8 })
    }

    /// The octets of the element.
    pub fn octets(&self) -> &[u8] {
        self.octets.get(..self.len.into()).unwrap_or_default()
    }

    /// 5GS ciphering algorithms, EA0 in the highest bit.
    pub fn ea(&self) -> u8 {
        self.octets[0]
    }

    /// 5GS integrity algorithms, IA0 in the highest bit.
    pub fn ia(&self) -> u8 {
        self.octets[1]
    }

    /// EPS ciphering algorithms, EEA0 in the highest bit; 0 when not given.
    pub fn eea(&self) -> u8 {
        self.octets[2]
    }

    /// EPS integrity algorithms, EIA0 in the highest bit; 0 when not given.
    pub fn eia(&self) -> u8 {
        self.octets[3]
    }

    /// Whether the UE has the algorithm.
    pub fn has_ciphering(&self, algorithm: CipheringAlgorithm) -> bool {
        self.ea() & 0x80 >> algorithm.number() != 0
    }

    /// Whether the UE has the algorithm.
    pub fn has_integrity(&self, algorithm: IntegrityAlgorithm) -> bool {
        self.ia() & 0x80 >> algorithm.number() != 0
    }
}

/// A set of PDU sessions: uplink data status, PDU session status, reactivation result and the like
/// (TS 24.501 §9.11.3.57, §9.11.3.44). Bit n is PDU session n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct PsiSet(pub u16);

impl PsiSet {
    /// Whether the session is in the set.
    pub fn contains(self, id: PduSessionId) -> bool {
        self.0 & 1 << id.value() != 0
    }

    /// Puts the session into the set.
    pub fn insert(&mut self, id: PduSessionId) {
        self.0 |= 1 << id.value();
    }

    /// The sessions in the set.
    pub fn iter(self) -> impl Iterator<Item = PduSessionId> {
        (1..=15).filter_map(|n| PduSessionId::new(n).ok()).filter(move |id| self.contains(*id))
    }
}

impl FromIterator<PduSessionId> for PsiSet {
    fn from_iter<I: IntoIterator<Item = PduSessionId>>(ids: I) -> Self {
        let mut set = Self::default();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

/// Why a slice is rejected (TS 24.501 §9.11.3.46).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceRejectCause {
    /// Not available in the current PLMN or SNPN.
    NotAvailableInPlmn,
    /// Not available in the current registration area.
    NotAvailableInRegistrationArea,
    /// Not available because slice-specific authentication failed or was revoked.
    AuthenticationFailed,
}

/// A rejected slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RejectedSNssai {
    /// The slice.
    pub s_nssai: SNssai,
    /// Why.
    pub cause: SliceRejectCause,
}

/// 5GS network feature support, octet 3 and 4 (TS 24.501 §9.11.3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetworkFeatures {
    /// IMS voice over PS session over 3GPP access.
    pub ims_voice: bool,
    /// Emergency services over NR (EMC bit 1).
    pub emergency: bool,
    /// Interworking without N26.
    pub interworking_without_n26: bool,
}

/// Integrity protection maximum data rate (TS 24.501 §9.11.4.7): 0x00 is 64 kbit/s, 0xff full rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegrityDataRate {
    /// From the UE.
    pub uplink: u8,
    /// To the UE.
    pub downlink: u8,
}

impl IntegrityDataRate {
    /// Full data rate both ways.
    pub const FULL: Self = Self { uplink: 0xff, downlink: 0xff };
}

/// 5GSM capability, first octet (TS 24.501 §9.11.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SmCapability {
    /// Reflective QoS.
    pub reflective_qos: bool,
    /// Multi-homed IPv6 sessions.
    pub multi_homed_ipv6: bool,
}

/// PDU address the network gives (TS 24.501 §9.11.4.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PduAddress {
    /// IPv4 address.
    Ipv4(Ipv4Addr),
    /// Interface identifier for the link-local address; the prefix comes by router advertisement.
    Ipv6([u8; 8]),
    /// Both.
    Ipv4v6(Ipv4Addr, [u8; 8]),
}

impl PduAddress {
    /// The IPv4 address, if there is one.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        match self {
            Self::Ipv4(address) | Self::Ipv4v6(address, _) => Some(address),
            Self::Ipv6(_) => None,
        }
    }

    /// The link-local address made of the interface identifier, if there is one.
    pub fn link_local(self) -> Option<Ipv6Addr> {
        match self {
            Self::Ipv6(id) | Self::Ipv4v6(_, id) => {
                Some(Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(u64::from_be_bytes(id))))
            }
            Self::Ipv4(_) => None,
        }
    }

    /// The session type the address belongs to.
    pub fn session_type(self) -> PduSessionType {
        match self {
            Self::Ipv4(_) => PduSessionType::Ipv4,
            Self::Ipv6(_) => PduSessionType::Ipv6,
            Self::Ipv4v6(..) => PduSessionType::Ipv4v6,
        }
    }
}
