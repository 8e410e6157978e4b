//! Who and where: IMSI, MEI, MSISDN, APN, serving network, user location.

use types::{Imsi, Plmn};

use crate::codec::{Cursor, Fault, Value};

/// Decimal digits, such as an MSISDN (§8.11) or MEI (§8.10). On the wire two digits an octet, the first one in the low half, and a
/// half of 1111 at the end of an odd number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Digits(pub String);

impl Value for Digits {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut digits = String::with_capacity(bytes.len() * 2);
        let halves = bytes.iter().flat_map(|octet| [octet & 0x0f, octet >> 4]);
        for (at, half) in halves.enumerate() {
            match half {
                0..=9 => digits.push(char::from(b'0' + half)),
                0x0f if at + 1 == bytes.len() * 2 => {}
                _ => return Err(Fault::Incorrect),
            }
        }
        Ok(Self(digits))
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let digits: Vec<u8> = self.0.bytes().filter(u8::is_ascii_digit).map(|digit| digit - b'0').collect();
        out.extend(digits.chunks(2).map(|pair| pair.get(1).unwrap_or(&0x0f) << 4 | pair[0]));
    }
}

/// IMSI (§8.3).
impl Value for Imsi {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.is_empty() {
            return Err(Fault::Length);
        }
        Digits::decode(bytes)?.0.parse().map_err(|_| Fault::Incorrect)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        Digits(self.to_string()).encode(out);
    }
}

/// APN (§8.6), held as dotted text. On the wire length-prefixed labels (TS 23.003 §9.1).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Apn(pub String);

impl From<&str> for Apn {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl Value for Apn {
    fn decode(mut bytes: &[u8]) -> Result<Self, Fault> {
        let mut name = String::with_capacity(bytes.len());
        while let Some((&length, rest)) = bytes.split_first() {
            if length == 0 && rest.is_empty() {
                break; // some senders end the name like DNS does
            }
            let (label, rest) = rest.split_at_checked(length.into()).ok_or(Fault::Incorrect)?;
            let label = std::str::from_utf8(label).map_err(|_| Fault::Incorrect)?;
            // A dot inside a label would read back as two labels.
            if length == 0 || length > 63 || label.contains('.') {
                return Err(Fault::Incorrect);
            }
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(label);
            bytes = rest;
        }
        Ok(Self(name))
    }
    fn encode(&self, out: &mut Vec<u8>) {
        for label in self.0.split('.').filter(|label| !label.is_empty()) {
            let label = &label.as_bytes()[..label.len().min(63)];
            out.push(label.len() as u8);
            out.extend_from_slice(label);
        }
    }
}

/// A PLMN in three octets; used for the serving network (§8.18).
impl Value for Plmn {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        Plmn::from_bcd(Cursor(bytes).array()?).map_err(|_| Fault::Incorrect)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bcd());
    }
}

/// Tracking area of EPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tai {
    /// Network.
    pub plmn: Plmn,
    /// Tracking area code.
    pub tac: u16,
}

/// Cell of E-UTRAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ecgi {
    /// Network.
    pub plmn: Plmn,
    /// E-UTRAN cell identifier, 28 bits: eNodeB and cell.
    pub eci: u32,
}

/// User location information (§8.21). Locations that an S-GW and P-GW do not look into are kept as their octets.
///
/// ```text
/// octet 5: ExtMacroeNB · MacroeNB · LAI · ECGI · TAI · RAI · SAI · CGI, then the present ones from CGI on
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Uli {
    /// GERAN cell.
    pub cgi: Option<[u8; 7]>,
    /// UTRAN service area.
    pub sai: Option<[u8; 7]>,
    /// Routing area.
    pub rai: Option<[u8; 7]>,
    /// Tracking area.
    pub tai: Option<Tai>,
    /// E-UTRAN cell.
    pub ecgi: Option<Ecgi>,
    /// Location area.
    pub lai: Option<[u8; 5]>,
    /// Macro eNodeB.
    pub macro_enb: Option<[u8; 6]>,
    /// Macro eNodeB with a longer identifier.
    pub extended_macro_enb: Option<[u8; 6]>,
}

impl Value for Uli {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let has = |bit: u8| flags & 1 << bit != 0;
        Ok(Self {
            cgi: cursor.optional(has(0))?,
            sai: cursor.optional(has(1))?,
            rai: cursor.optional(has(2))?,
            tai: cursor.optional(has(3))?.map(tai).transpose()?,
            ecgi: cursor.optional(has(4))?.map(ecgi).transpose()?,
            lai: cursor.optional(has(5))?,
            macro_enb: cursor.optional(has(6))?,
            extended_macro_enb: cursor.optional(has(7))?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let present = [
            self.cgi.is_some(),
            self.sai.is_some(),
            self.rai.is_some(),
            self.tai.is_some(),
            self.ecgi.is_some(),
            self.lai.is_some(),
            self.macro_enb.is_some(),
            self.extended_macro_enb.is_some(),
        ];
        out.push((0..).zip(present).fold(0, |flags, (bit, present)| flags | u8::from(present) << bit));
        for area in [self.cgi, self.sai, self.rai] {
            out.extend(area.iter().flatten());
        }
        if let Some(Tai { plmn, tac }) = self.tai {
            out.extend_from_slice(&plmn.to_bcd());
            out.extend_from_slice(&tac.to_be_bytes());
        }
        if let Some(Ecgi { plmn, eci }) = self.ecgi {
            out.extend_from_slice(&plmn.to_bcd());
            out.extend_from_slice(&(eci & 0x0fff_ffff).to_be_bytes());
        }
        out.extend(self.lai.iter().flatten());
        for enb in [self.macro_enb, self.extended_macro_enb] {
            out.extend(enb.iter().flatten());
        }
    }
}

fn tai([a, b, c, tac @ ..]: [u8; 5]) -> Result<Tai, Fault> {
    Ok(Tai { plmn: Plmn::decode(&[a, b, c])?, tac: u16::from_be_bytes(tac) })
}

fn ecgi([a, b, c, eci @ ..]: [u8; 7]) -> Result<Ecgi, Fault> {
    Ok(Ecgi { plmn: Plmn::decode(&[a, b, c])?, eci: u32::from_be_bytes(eci) & 0x0fff_ffff })
}
