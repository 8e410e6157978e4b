//! Octets of element values (TS 24.501 §9.11): `read_*` checks and never panics, `write_*` is its inverse.

use types::{Ambr, BitRate, Dnn, Guti, Imsi, PduSessionId, Plmn, SNssai, Tac, Tai};

use crate::{
    GmmCause, NetworkFeatures, PduAddress, PsiSet, RejectedSNssai, SliceRejectCause, SmCapability,
    error::ValueError,
};

/// What reading a value gives.
pub(crate) type Read<T> = Result<T, ValueError>;

const SHORT: ValueError = ValueError("ends inside its value");

/// Takes values off the front of octets.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(SHORT)?;
        self.0 = rest;
        Ok(front)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    pub(crate) fn u8(&mut self) -> Read<u8> {
        self.array().map(|[octet]| octet)
    }

    pub(crate) fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_be_bytes)
    }
}

pub(crate) fn read_octets(octets: &[u8]) -> Read<Vec<u8>> {
    Ok(octets.to_vec())
}

pub(crate) fn read_array<const N: usize>(octets: &[u8]) -> Read<[u8; N]> {
    octets.try_into().map_err(|_| ValueError("has a wrong length"))
}

pub(crate) fn read_first(octets: &[u8]) -> Read<u8> {
    octets.first().copied().ok_or(SHORT)
}

pub(crate) fn read_plmn(octets: [u8; 3]) -> Read<Plmn> {
    Plmn::from_bcd(octets).map_err(|_| ValueError("has a PLMN that is not made of digits"))
}

/// §9.11.2.8: SST, optionally SD, optionally the mapped values, which are dropped.
pub(crate) fn read_s_nssai(octets: &[u8]) -> Read<SNssai> {
    match *octets {
        [sst] | [sst, _] => Ok(SNssai::from_octets(sst, None)),
        [sst, a, b, c] | [sst, a, b, c, _] | [sst, a, b, c, _, _, _, _] => {
            Ok(SNssai::from_octets(sst, Some([a, b, c])))
        }
        _ => Err(ValueError("has an S-NSSAI of a wrong length")),
    }
}

pub(crate) fn write_s_nssai(s_nssai: &SNssai) -> Vec<u8> {
    let mut out = vec![s_nssai.sst];
    out.extend(s_nssai.sd_octets().into_iter().flatten());
    out
}

/// §9.11.3.37.
pub(crate) fn read_nssai(octets: &[u8]) -> Read<Vec<SNssai>> {
    let mut reader = Reader(octets);
    let mut slices = Vec::new();
    while !reader.is_empty() {
        let len = reader.u8()?;
        slices.push(read_s_nssai(reader.take(len.into())?)?);
    }
    Ok(slices)
}

pub(crate) fn write_nssai(slices: &[SNssai]) -> Vec<u8> {
    let mut out = Vec::new();
    for slice in slices {
        let value = write_s_nssai(slice);
        out.push(value.len() as u8);
        out.extend(value);
    }
    out
}

/// §9.11.3.46.
pub(crate) fn read_rejected_nssai(octets: &[u8]) -> Read<Vec<RejectedSNssai>> {
    let mut reader = Reader(octets);
    let mut slices = Vec::new();
    while !reader.is_empty() {
        let head = reader.u8()?;
        let value = reader.take(usize::from(head >> 4))?;
        let cause = match head & 0x0f {
            0 => SliceRejectCause::NotAvailableInPlmn,
            1 => SliceRejectCause::NotAvailableInRegistrationArea,
            2 => SliceRejectCause::AuthenticationFailed,
            // Reserved: the receiver cannot act on it.
            _ => continue,
        };
        slices.push(RejectedSNssai { s_nssai: read_s_nssai(value)?, cause });
    }
    Ok(slices)
}

pub(crate) fn write_rejected_nssai(slices: &[RejectedSNssai]) -> Vec<u8> {
    let mut out = Vec::new();
    for RejectedSNssai { s_nssai, cause } in slices {
        let value = write_s_nssai(s_nssai);
        let cause = match cause {
            SliceRejectCause::NotAvailableInPlmn => 0,
            SliceRejectCause::NotAvailableInRegistrationArea => 1,
            SliceRejectCause::AuthenticationFailed => 2,
        };
        out.push((value.len() as u8) << 4 | cause);
        out.extend(value);
    }
    out
}

/// §9.11.3.8.
pub(crate) fn read_tai(octets: &[u8]) -> Read<Tai> {
    let mut reader = Reader(octets);
    Ok(Tai { plmn: read_plmn(reader.array()?)?, tac: Tac::from_octets(reader.array()?) })
}

pub(crate) fn write_tai(tai: &Tai) -> Vec<u8> {
    let mut out = tai.plmn.to_bcd().to_vec();
    out.extend(tai.tac.to_octets());
    out
}

/// §9.11.3.9: partial lists of three kinds.
pub(crate) fn read_tai_list(octets: &[u8]) -> Read<Vec<Tai>> {
    let mut reader = Reader(octets);
    let mut list = Vec::new();
    while !reader.is_empty() {
        let head = reader.u8()?;
        let count = u32::from(head & 0x1f) + 1;
        match head >> 5 & 0x03 {
            0 => {
                let plmn = read_plmn(reader.array()?)?;
                for _ in 0..count {
                    list.push(Tai { plmn, tac: Tac::from_octets(reader.array()?) });
                }
            }
            1 => {
                let plmn = read_plmn(reader.array()?)?;
                let first = Tac::from_octets(reader.array()?).value();
                let tacs = (first..first.saturating_add(count)).map_while(|tac| Tac::new(tac).ok());
                list.extend(tacs.map(|tac| Tai { plmn, tac }));
            }
            2 => {
                for _ in 0..count {
                    list.push(read_tai(reader.take(6)?)?);
                }
            }
            _ => return Err(ValueError("has a TAI list of a reserved type")),
        }
    }
    Ok(list)
}

pub(crate) fn write_tai_list(list: &[Tai]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in list.chunk_by(|a, b| a.plmn == b.plmn) {
        for part in run.chunks(16) {
            out.push(part.len() as u8 - 1);
            out.extend(part.iter().take(1).flat_map(|tai| tai.plmn.to_bcd()));
            out.extend(part.iter().flat_map(|tai| tai.tac.to_octets()));
        }
    }
    out
}

/// §9.11.3.45.
pub(crate) fn read_plmn_list(octets: &[u8]) -> Read<Vec<Plmn>> {
    octets.chunks(3).map(|chunk| read_array(chunk).and_then(read_plmn)).collect()
}

pub(crate) fn write_plmn_list(list: &[Plmn]) -> Vec<u8> {
    list.iter().flat_map(|plmn| plmn.to_bcd()).collect()
}

/// §9.11.3.44 and its like: the octets after the second are spare. Session 0 does not exist.
pub(crate) fn read_psi_set(octets: &[u8]) -> Read<PsiSet> {
    let mut reader = Reader(octets);
    Ok(PsiSet(u16::from_le_bytes(reader.array()?) & !1))
}

pub(crate) fn write_psi_set(set: PsiSet) -> Vec<u8> {
    (set.0 & !1).to_le_bytes().to_vec()
}

/// §9.11.3.43.
pub(crate) fn read_reactivation_errors(octets: &[u8]) -> Read<Vec<(PduSessionId, GmmCause)>> {
    let mut reader = Reader(octets);
    let mut errors = Vec::new();
    while !reader.is_empty() {
        let id =
            PduSessionId::new(reader.u8()?).map_err(|_| ValueError("names PDU session 0 or above 15"))?;
        errors.push((id, GmmCause::received(reader.u8()?)));
    }
    Ok(errors)
}

pub(crate) fn write_reactivation_errors(errors: &[(PduSessionId, GmmCause)]) -> Vec<u8> {
    errors.iter().flat_map(|(id, cause)| [id.value(), cause.number()]).collect()
}

/// §9.11.3.5, first octet.
pub(crate) fn read_network_features(octets: &[u8]) -> Read<NetworkFeatures> {
    let bits = read_first(octets)?;
    Ok(NetworkFeatures {
        ims_voice: bits & 0x01 != 0,
        emergency: bits & 0x04 != 0,
        interworking_without_n26: bits & 0x40 != 0,
    })
}

pub(crate) fn write_network_features(features: &NetworkFeatures) -> Vec<u8> {
    let NetworkFeatures { ims_voice, emergency, interworking_without_n26 } = *features;
    let bits = u8::from(ims_voice) | u8::from(emergency) << 2 | u8::from(interworking_without_n26) << 6;
    vec![bits, 0]
}

/// §9.11.2.1B.
pub(crate) fn read_dnn(octets: &[u8]) -> Read<Dnn> {
    Dnn::from_labels(octets).map_err(|_| ValueError("is not made of labels"))
}

/// §9.11.3.35 (TS 24.008 §10.5.3.5a): UCS-2, or the letters of the GSM default alphabet that are ASCII too.
pub(crate) fn read_network_name(octets: &[u8]) -> Read<String> {
    let (head, text) = octets.split_first().ok_or(SHORT)?;
    match head >> 4 & 0x07 {
        0 => Ok(read_gsm7(text, head & 0x07)),
        1 => {
            let units = text.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            Ok(char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
        }
        _ => Err(ValueError("has a reserved coding scheme")),
    }
}

/// Unpacks 7-bit characters, lowest bits first.
fn read_gsm7(octets: &[u8], spare_bits: u8) -> String {
    let bits = (octets.len() * 8).saturating_sub(spare_bits.into());
    let bit = |i: usize| octets.get(i / 8).is_some_and(|octet| octet >> (i % 8) & 1 != 0);
    let character = |start: usize| (0..7).fold(0u8, |code, i| code | u8::from(bit(start + i)) << i);
    let ascii = |code: u8| match code {
        0x20..=0x23 | 0x25..=0x3f | 0x41..=0x5a | 0x61..=0x7a => char::from(code),
        0x00 => '@',
        0x02 => '$',
        0x11 => '_',
        _ => '?',
    };
    (0..bits / 7).map(|i| ascii(character(i * 7))).collect()
}

pub(crate) fn write_network_name(name: &str) -> Vec<u8> {
    let mut out = vec![0x90];
    out.extend(name.encode_utf16().flat_map(u16::to_be_bytes));
    out
}

/// §9.11.4.1.
pub(crate) fn read_sm_capability(octets: &[u8]) -> Read<SmCapability> {
    let bits = read_first(octets)?;
    Ok(SmCapability { reflective_qos: bits & 0x01 != 0, multi_homed_ipv6: bits & 0x02 != 0 })
}

pub(crate) fn write_sm_capability(capability: SmCapability) -> Vec<u8> {
    vec![u8::from(capability.reflective_qos) | u8::from(capability.multi_homed_ipv6) << 1]
}

/// §9.11.4.9: eleven bits, high first.
pub(crate) fn read_max_packet_filters(octets: &[u8]) -> Read<u16> {
    Reader(octets).u16().map(|value| value >> 5)
}

pub(crate) fn write_max_packet_filters(count: u16) -> Vec<u8> {
    (count.min(0x07ff) << 5).to_be_bytes().to_vec()
}

/// §9.11.4.10.
pub(crate) fn read_pdu_address(octets: &[u8]) -> Read<PduAddress> {
    let mut reader = Reader(octets);
    match reader.u8()? & 0x07 {
        1 => Ok(PduAddress::Ipv4(reader.array::<4>()?.into())),
        2 => Ok(PduAddress::Ipv6(reader.array()?)),
        3 => {
            let id = reader.array()?;
            Ok(PduAddress::Ipv4v6(reader.array::<4>()?.into(), id))
        }
        _ => Err(ValueError("has a reserved PDU session type")),
    }
}

pub(crate) fn write_pdu_address(address: &PduAddress) -> Vec<u8> {
    match address {
        PduAddress::Ipv4(v4) => [&[1], v4.octets().as_slice()].concat(),
        PduAddress::Ipv6(id) => [&[2], id.as_slice()].concat(),
        PduAddress::Ipv4v6(v4, id) => [&[3], id.as_slice(), v4.octets().as_slice()].concat(),
    }
}

/// Unit and value of a bit rate: units grow 1, 4, 16, 64, 256 kbit/s, then the same times 1000, and so on
/// (table 9.11.4.14.1). Unit 0 is "not used" and read as 1 kbit/s.
pub(crate) fn read_rate(unit: u8, value: u16) -> BitRate {
    let step = u32::from(unit.clamp(1, 25) - 1);
    let kbps = 4u64.pow(step % 5).saturating_mul(1000u64.pow(step / 5));
    BitRate::from_kbps(kbps.saturating_mul(value.into()))
}

/// Plain units (1 kbit/s, 1 Mbit/s …) largest first when one is exact, then any exact unit, then the finest that
/// holds the rate, rounded up.
pub(crate) fn write_rate(rate: BitRate) -> [u8; 3] {
    let kbps = rate.kbps();
    let unit = |step: u32| 4u64.pow(step % 5).saturating_mul(1000u64.pow(step / 5));
    let fits = |step: &u32| kbps.div_ceil(unit(*step)) <= u16::MAX.into();
    let exact = |step: &u32| kbps.is_multiple_of(unit(*step)) && fits(step);
    let mut plain = (0..25).rev().step_by(5).map(|step| step - 4);
    let step = match kbps {
        0 => 0,
        _ => plain.find(exact).or_else(|| (0..25).find(exact)).or_else(|| (0..25).find(fits)).unwrap_or(24),
    };
    let [high, low] = (kbps.div_ceil(unit(step)).min(u16::MAX.into()) as u16).to_be_bytes();
    [step as u8 + 1, high, low]
}

/// §9.11.4.14: downlink first.
pub(crate) fn read_session_ambr(octets: &[u8]) -> Read<Ambr> {
    let mut reader = Reader(octets);
    let downlink = read_rate(reader.u8()?, reader.u16()?);
    let uplink = read_rate(reader.u8()?, reader.u16()?);
    Ok(Ambr { uplink, downlink })
}

pub(crate) fn write_session_ambr(ambr: &Ambr) -> Vec<u8> {
    [write_rate(ambr.downlink), write_rate(ambr.uplink)].concat()
}

/// A 5G-GUTI from its mobile identity.
pub(crate) fn read_guti(octets: &[u8]) -> Read<Guti> {
    match crate::MobileIdentity::read(octets)? {
        crate::MobileIdentity::Guti(guti) => Ok(guti),
        _ => Err(ValueError("is not a 5G-GUTI")),
    }
}

/// The IMSI of a PLMN and an MSIN.
pub(crate) fn imsi(plmn: Plmn, msin: &str) -> Read<Imsi> {
    Imsi::from_parts(plmn, msin).map_err(|_| ValueError("has an MSIN that makes no IMSI"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_exact_when_a_unit_is_and_never_too_small() {
        for (text, wire) in [
            ("1 Gbps", [11, 0, 1]),
            ("1.5 Gbps", [6, 0x05, 0xdc]),
            ("100 Mbps", [6, 0x00, 0x64]),
            ("64 kbps", [1, 0x00, 0x40]),
            ("0 bps", [1, 0, 0]),
        ] {
            let rate: BitRate = text.parse().unwrap();
            assert_eq!(write_rate(rate), wire, "{text}");
            assert_eq!(read_rate(wire[0], u16::from_be_bytes([wire[1], wire[2]])), rate);
        }
        let odd = BitRate::from_kbps(70_001);
        let [unit, a, b] = write_rate(odd);
        assert!(read_rate(unit, u16::from_be_bytes([a, b])) >= odd);
    }

    #[test]
    fn network_names_read_in_both_alphabets() {
        assert_eq!(read_network_name(&write_network_name("Godwit – 1")).unwrap(), "Godwit – 1");
        // "Open5GS" packed in seven bits: TS 23.038 §6.1.2.1, one spare bit left over.
        let packed = [0x87, 0x4f, 0x78, 0xd9, 0xad, 0x1e, 0xa7, 0x14];
        assert!(read_network_name(&packed).unwrap().starts_with('O'));
    }

    #[test]
    fn consecutive_and_scattered_tracking_areas_are_read() {
        let consecutive = [0x21, 0x99, 0xf9, 0x07, 0, 0, 9];
        let tacs: Vec<u32> = read_tai_list(&consecutive).unwrap().iter().map(|t| t.tac.value()).collect();
        assert_eq!(tacs, [9, 10]);
        let scattered = [0x41, 0x99, 0xf9, 0x07, 0, 0, 1, 0x00, 0xf1, 0x10, 0, 0, 2];
        let list = read_tai_list(&scattered).unwrap();
        assert_eq!(list[1].plmn.to_string(), "001-01");
        assert_eq!(read_tai_list(&write_tai_list(&list)).unwrap(), list);
        assert!(read_tai_list(&[0x60, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
