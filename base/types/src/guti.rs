//! Temporary identities: AMF ID, GUAMI, 5G-TMSI, 5G-GUTI, 5G-S-TMSI (TS 23.003 §2.10).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Invalid, Plmn, parse_hex, serde_as_string};

/// AMF identifier: region (8 bits), set (10 bits), pointer (6 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AmfId {
    region: u8,
    set: u16,
    pointer: u8,
}

impl AmfId {
    /// Builds an AMF identifier.
    ///
    /// # Errors
    /// When the set needs more than 10 bits or the pointer more than 6.
    pub fn new(region: u8, set: u16, pointer: u8) -> Result<Self, Invalid> {
        if set > 0x3ff {
            return Err(Invalid::new("AMF set", set, "a number below 1024"));
        }
        if pointer > 0x3f {
            return Err(Invalid::new("AMF pointer", pointer, "a number below 64"));
        }
        Ok(Self { region, set, pointer })
    }

    /// Reads the 24-bit form.
    pub fn from_octets([region, a, b]: [u8; 3]) -> Self {
        Self { region, set: u16::from(a) << 2 | u16::from(b) >> 6, pointer: b & 0x3f }
    }

    /// The 24-bit form, region first.
    pub fn to_octets(self) -> [u8; 3] {
        [self.region, (self.set >> 2) as u8, (self.set as u8) << 6 | self.pointer]
    }

    /// AMF region, 8 bits.
    pub fn region(self) -> u8 {
        self.region
    }

    /// AMF set, 10 bits.
    pub fn set(self) -> u16 {
        self.set
    }

    /// AMF pointer, 6 bits.
    pub fn pointer(self) -> u8 {
        self.pointer
    }
}

impl fmt::Display for AmfId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.to_octets();
        write!(f, "{a:02x}{b:02x}{c:02x}")
    }
}

impl FromStr for AmfId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let value = parse_hex("AMF ID", text, 6, "six hexadecimal digits")? as u32;
        let [_, a, b, c] = value.to_be_bytes();
        Ok(Self::from_octets([a, b, c]))
    }
}

serde_as_string!(AmfId);

/// Globally unique AMF identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Guami {
    /// Network of the AMF.
    #[serde(rename = "plmnId")]
    pub plmn: Plmn,
    /// AMF within it.
    pub amf_id: AmfId,
}

impl fmt::Display for Guami {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.plmn, self.amf_id)
    }
}

/// 5G-TMSI, unique within one AMF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tmsi(pub u32);

impl fmt::Display for Tmsi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// 5G globally unique temporary identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guti {
    /// The AMF that gave it out.
    pub guami: Guami,
    /// The UE within that AMF.
    pub tmsi: Tmsi,
}

impl Guti {
    /// The short form sent in paging and service request.
    pub fn s_tmsi(self) -> STmsi {
        STmsi { set: self.guami.amf_id.set, pointer: self.guami.amf_id.pointer, tmsi: self.tmsi }
    }
}

impl fmt::Display for Guti {
    /// `5g-guti-<mcc><mnc><amf id><tmsi>` (TS 29.571 `Guti`… TS 29.518 ueContextId).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plmn = self.guami.plmn;
        write!(f, "5g-guti-{}{}{}{}", plmn.mcc(), plmn.mnc(), self.guami.amf_id, self.tmsi)
    }
}

/// 5G-S-TMSI: AMF set, AMF pointer, 5G-TMSI (48 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct STmsi {
    set: u16,
    pointer: u8,
    tmsi: Tmsi,
}

impl STmsi {
    /// Builds a 5G-S-TMSI.
    ///
    /// # Errors
    /// When the set needs more than 10 bits or the pointer more than 6.
    pub fn new(set: u16, pointer: u8, tmsi: Tmsi) -> Result<Self, Invalid> {
        let amf_id = AmfId::new(0, set, pointer)?;
        Ok(Self { set: amf_id.set, pointer: amf_id.pointer, tmsi })
    }

    /// AMF set, 10 bits.
    pub fn set(self) -> u16 {
        self.set
    }

    /// AMF pointer, 6 bits.
    pub fn pointer(self) -> u8 {
        self.pointer
    }

    /// 5G-TMSI.
    pub fn tmsi(self) -> Tmsi {
        self.tmsi
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amf_id_packs_8_10_6_bits() {
        let id = AmfId::new(0x02, 0x155, 0x2a).unwrap();
        assert_eq!(id.to_octets(), [0x02, 0x55, 0x6a]);
        assert_eq!(AmfId::from_octets(id.to_octets()), id);
        assert_eq!("02556a".parse(), Ok(id));
        assert!(AmfId::new(0, 1024, 0).is_err());
        assert!(AmfId::new(0, 0, 64).is_err());
    }

    #[test]
    fn guti_is_written_as_ts_29_518_has_it() {
        let guami = Guami { plmn: Plmn::new("999", "70").unwrap(), amf_id: AmfId::new(2, 1, 0).unwrap() };
        let guti = Guti { guami, tmsi: Tmsi(0xc000_0001) };
        assert_eq!(guti.to_string(), "5g-guti-99970020040c0000001");
        assert_eq!(guti.s_tmsi().set(), 1);
    }
}
