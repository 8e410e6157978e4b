//! 5GS mobile identity (TS 24.501 §9.11.3.4): SUCI, 5G-GUTI, PEI, 5G-S-TMSI.

use std::{fmt, str::FromStr};

use types::{AmfId, Guami, Guti, Invalid, Pei, Plmn, STmsi, Tmsi};

use crate::{
    codec::values::{Read, Reader, imsi, read_plmn},
    error::ValueError,
};

/// Which identity the network asks for (TS 24.501 §9.11.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityType {
    /// SUCI.
    Suci,
    /// 5G-GUTI.
    Guti,
    /// IMEI.
    Imei,
    /// 5G-S-TMSI.
    STmsi,
    /// IMEISV.
    Imeisv,
    /// MAC address of a UE without IMEI.
    MacAddress,
    /// EUI-64 of a UE without IMEI.
    Eui64,
}

/// An identity that a UE sends or is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MobileIdentity {
    /// The UE has none (TS 24.501 §9.11.3.4, "No identity").
    None,
    /// Concealed subscription identity with SUPI format IMSI.
    Suci(Suci),
    /// SUCI in NAI form (SUPI format 1, 2 or 3), which Godwit has no subscribers for; the text as received.
    SuciNai {
        /// SUPI format: 1 network specific identifier, 2 GCI, 3 GLI.
        format: u8,
        /// The NAI.
        nai: String,
    },
    /// 5G-GUTI.
    Guti(Guti),
    /// IMEI or IMEISV.
    Pei(Pei),
    /// 5G-S-TMSI.
    STmsi(STmsi),
    /// MAC address; the flag is "usable as identity" turned round (MAURI).
    MacAddress([u8; 6]),
    /// EUI-64.
    Eui64([u8; 8]),
}

/// How a SUCI hides the MSIN (TS 33.501 annex C).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProtectionScheme {
    /// Not at all.
    Null,
    /// ECIES on Curve25519.
    ProfileA,
    /// ECIES on secp256r1.
    ProfileB,
    /// Reserved, or the operator's own (12…15).
    Other(u8),
}

impl ProtectionScheme {
    /// The identifier on the wire, 0…15.
    pub fn number(self) -> u8 {
        match self {
            Self::Null => 0,
            Self::ProfileA => 1,
            Self::ProfileB => 2,
            Self::Other(number) => number & 0x0f,
        }
    }

    /// From the identifier on the wire.
    pub fn from_number(number: u8) -> Self {
        match number & 0x0f {
            0 => Self::Null,
            1 => Self::ProfileA,
            2 => Self::ProfileB,
            other => Self::Other(other),
        }
    }
}

/// Subscription concealed identifier of an IMSI (TS 23.003 §2.2B).
///
/// `Display` and `FromStr` use the form of TS 29.503: `suci-0-999-70-0000-0-0-0000000001`.
/// [`crate::suci`] conceals and deconceals.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Suci {
    /// Home network.
    pub plmn: Plmn,
    /// Routing indicator, one to four digits.
    pub routing_indicator: String,
    /// Protection scheme.
    pub scheme: ProtectionScheme,
    /// Home network public key identifier; 0 with the null scheme.
    pub key_id: u8,
    /// Scheme output: for the null scheme the MSIN in swapped BCD, else ephemeral key, cipher text, MAC.
    pub output: Vec<u8>,
}

impl Suci {
    /// The MSIN digits of a null-scheme SUCI; `None` for another scheme or for wrong digits.
    pub fn msin(&self) -> Option<String> {
        (self.scheme == ProtectionScheme::Null).then(|| digits_from_bcd(&self.output)).flatten()
    }
}

/// Digits of swapped BCD with an optional 0xF filler at the end.
pub(crate) fn digits_from_bcd(octets: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(octets.len() * 2);
    for (i, octet) in octets.iter().enumerate() {
        for nibble in [octet & 0x0f, octet >> 4] {
            let last = i + 1 == octets.len() && nibble == octet >> 4;
            match nibble {
                0..=9 => text.push(char::from(b'0' + nibble)),
                0x0f if last && octet >> 4 == 0x0f => {}
                _ => return None,
            }
        }
    }
    Some(text)
}

/// Swapped BCD of decimal digits, filled with 0xF.
pub(crate) fn bcd_from_digits(digits: &str) -> Option<Vec<u8>> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| {
        let pair = |pair: &[u8]| match pair {
            [low, high] => (high - b'0') << 4 | (low - b'0'),
            [low] => 0xf0 | (low - b'0'),
            _ => 0xff,
        };
        digits.as_bytes().chunks(2).map(pair).collect()
    })
}

impl fmt::Display for Suci {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "suci-0-{}-{}-{}-{:x}-{}-",
            self.plmn.mcc(),
            self.plmn.mnc(),
            self.routing_indicator,
            self.scheme.number(),
            self.key_id
        )?;
        match self.msin() {
            Some(msin) => f.write_str(&msin),
            None => self.output.iter().try_for_each(|octet| write!(f, "{octet:02x}")),
        }
    }
}

impl FromStr for Suci {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("SUCI", text, "suci-0-<mcc>-<mnc>-<routing>-<scheme>-<key>-<output>");
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or_else(invalid);
        if next()? != "suci" || next()? != "0" {
            return Err(invalid());
        }
        let plmn = Plmn::new(next()?, next()?)?;
        let routing_indicator = next()?.to_owned();
        let digits = routing_indicator.bytes().all(|b| b.is_ascii_digit());
        if !(1..=4).contains(&routing_indicator.len()) || !digits {
            return Err(invalid());
        }
        let scheme = u8::from_str_radix(next()?, 16).ok().filter(|s| *s < 16).ok_or_else(invalid)?;
        let scheme = ProtectionScheme::from_number(scheme);
        let key_id = next()?.parse().map_err(|_| invalid())?;
        let output = next()?;
        if parts.next().is_some() || output.is_empty() {
            return Err(invalid());
        }
        let output = match scheme {
            ProtectionScheme::Null => bcd_from_digits(output),
            _ => octets_from_hex(output),
        };
        let output = output.ok_or_else(invalid)?;
        Ok(Self { plmn, routing_indicator, scheme, key_id, output })
    }
}

/// Octets of hexadecimal text.
fn octets_from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let octet = |i: usize| text.get(i..i + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..text.len()).step_by(2).map(octet).collect()
}

impl MobileIdentity {
    /// Reads the value of the element.
    pub(crate) fn read(octets: &[u8]) -> Read<Self> {
        let mut reader = Reader(octets);
        let head = reader.u8()?;
        match head & 0x07 {
            0 => Ok(Self::None),
            1 => Self::read_suci(head >> 4 & 0x07, reader),
            2 => {
                let plmn = read_plmn(reader.array()?)?;
                let amf_id = AmfId::from_octets(reader.array()?);
                let tmsi = Tmsi(u32::from_be_bytes(reader.array()?));
                Ok(Self::Guti(Guti { guami: Guami { plmn, amf_id }, tmsi }))
            }
            3 | 5 => read_pei(octets).map(Self::Pei),
            4 => {
                let [a, b] = reader.array()?;
                let tmsi = Tmsi(u32::from_be_bytes(reader.array()?));
                let amf_id = AmfId::from_octets([0, a, b]);
                let s_tmsi = STmsi::new(amf_id.set(), amf_id.pointer(), tmsi);
                s_tmsi.map(Self::STmsi).map_err(|_| ValueError("is no 5G-S-TMSI"))
            }
            6 => reader.array().map(Self::MacAddress),
            _ => reader.array().map(Self::Eui64),
        }
    }

    fn read_suci(format: u8, mut reader: Reader<'_>) -> Read<Self> {
        if format != 0 {
            let nai =
                String::from_utf8(reader.0.to_vec()).map_err(|_| ValueError("has a NAI that is no text"))?;
            return Ok(Self::SuciNai { format, nai });
        }
        let plmn = read_plmn(reader.array()?)?;
        let routing = reader.array::<2>()?;
        let digits = routing.iter().flat_map(|octet| [octet & 0x0f, octet >> 4]).take_while(|d| *d != 0x0f);
        let digits: Vec<u8> = digits.collect();
        if digits.iter().any(|d| *d > 9) {
            return Err(ValueError("has a routing indicator that is not made of digits"));
        }
        let mut routing_indicator: String = digits.iter().map(|d| char::from(b'0' + d)).collect();
        if routing_indicator.is_empty() {
            routing_indicator.push('0');
        }
        let scheme = ProtectionScheme::from_number(reader.u8()?);
        let key_id = reader.u8()?;
        let output = reader.0.to_vec();
        if output.is_empty() {
            return Err(ValueError("has no scheme output"));
        }
        let suci = Suci { plmn, routing_indicator, scheme, key_id, output };
        if scheme == ProtectionScheme::Null {
            let msin = suci.msin().ok_or(ValueError("has an MSIN that is not made of digits"))?;
            imsi(plmn, &msin)?;
        }
        Ok(Self::Suci(suci))
    }

    /// Writes the value of the element.
    pub(crate) fn write(&self) -> Vec<u8> {
        match self {
            Self::None => vec![0],
            Self::Suci(suci) => {
                let mut out = vec![0x01];
                out.extend(suci.plmn.to_bcd());
                let mut routing = bcd_from_digits(&suci.routing_indicator).unwrap_or_default();
                routing.resize(2, 0xff);
                out.extend(routing);
                out.extend([suci.scheme.number(), suci.key_id]);
                out.extend(&suci.output);
                out
            }
            Self::SuciNai { format, nai } => {
                let mut out = vec![(format & 0x07) << 4 | 0x01];
                out.extend(nai.as_bytes());
                out
            }
            Self::Guti(guti) => {
                let mut out = vec![0xf2];
                out.extend(guti.guami.plmn.to_bcd());
                out.extend(guti.guami.amf_id.to_octets());
                out.extend(guti.tmsi.0.to_be_bytes());
                out
            }
            Self::Pei(pei) => write_pei(pei),
            Self::STmsi(s_tmsi) => {
                let mut out = vec![0xf4];
                let set_and_pointer = s_tmsi.set() << 6 | u16::from(s_tmsi.pointer());
                out.extend(set_and_pointer.to_be_bytes());
                out.extend(s_tmsi.tmsi().0.to_be_bytes());
                out
            }
            Self::MacAddress(address) => [&[0x06], address.as_slice()].concat(),
            Self::Eui64(address) => [&[0x07], address.as_slice()].concat(),
        }
    }
}

/// IMEI (type 3, 15 digits) or IMEISV (type 5, 16 digits): the first digit shares the octet of the type.
fn read_pei(octets: &[u8]) -> Read<Pei> {
    let wrong = ValueError("is an IMEI or IMEISV that is not made of 15 or 16 digits");
    let (head, rest) = octets.split_first().ok_or(wrong.clone())?;
    let rest = digits_from_bcd(rest).ok_or(wrong.clone())?;
    if head >> 4 > 9 {
        return Err(wrong);
    }
    let text = format!("{}{rest}", head >> 4);
    let number = text.parse().map_err(|_| wrong.clone())?;
    match (head & 0x07, text.len()) {
        (3, 15) => Ok(Pei::Imei(number)),
        (5, 16) => Ok(Pei::Imeisv(number)),
        _ => Err(wrong),
    }
}

fn write_pei(pei: &Pei) -> Vec<u8> {
    let (digits, kind) = match pei {
        Pei::Imei(number) => (format!("{number:015}"), 3),
        Pei::Imeisv(number) => (format!("{number:016}"), 5),
    };
    let (first, rest) = digits.split_at(1);
    let first = first.parse::<u8>().unwrap_or(0);
    let odd = (digits.len() % 2) as u8;
    let mut out = vec![first << 4 | odd << 3 | kind];
    out.extend(bcd_from_digits(rest).unwrap_or_default());
    out
}
