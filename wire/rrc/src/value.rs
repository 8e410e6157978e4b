//! Values that several messages have, among them those of `types`.

use bytes::Bytes;
use per::{Range, Reader, Size, Writer};
use types::{AmfId, NrCellId, Plmn, Qfi, SNssai, STmsi, Tac, Tmsi};

use crate::codec::{Member, Uper, integer, sequence};
use crate::{DecodeError, EncodeError};

integer! {
    /// RRC-TransactionIdentifier: pairs an answer with its question.
    pub struct RrcTransactionIdentifier(u8) in 0..=3
}

integer! {
    /// SRB-Identity: SRB1, SRB2, SRB3.
    pub struct SrbIdentity(u8) in 1..=3
}

integer! {
    /// DRB-Identity.
    pub struct DrbIdentity(u8) in 1..=32
}

integer! {
    /// RejectWaitTime, in seconds.
    pub struct RejectWaitTime(u8) in 1..=16
}

integer! {
    /// PhysCellId.
    pub struct PhysCellId(u16) in 0..=1007
}

integer! {
    /// PDU-SessionID, as wide as TS 38.331 has it. Identities of sessions are 1 to 15 (TS 24.007).
    pub struct PduSessionId(u8) in 0..=255
}

impl From<types::PduSessionId> for PduSessionId {
    fn from(id: types::PduSessionId) -> Self {
        Self(id.value())
    }
}

impl TryFrom<PduSessionId> for types::PduSessionId {
    type Error = types::Invalid;

    fn try_from(id: PduSessionId) -> Result<Self, Self::Error> {
        Self::new(id.value())
    }
}

/// NULL.
impl Uper for () {
    fn put(&self, _w: &mut Writer) -> Result<(), EncodeError> {
        Ok(())
    }
    fn get(_r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

/// BOOLEAN.
impl Uper for bool {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.bit(*self);
        Ok(())
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(r.bit()?)
    }
}

/// OCTET STRING, whatever is in it.
impl Uper for Bytes {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        Ok(w.octet_string(self, Size::ANY)?)
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(r.octet_string(Size::ANY)?.into())
    }
}

/// BIT STRING (SIZE (16)) and INTEGER (0..65535) are the same bits.
impl Uper for u16 {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        Ok(w.fixed_bits((*self).into(), 16)?)
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(r.fixed_bits(16)? as u16)
    }
}

/// INTEGER (0..255).
impl Uper for u8 {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        Ok(w.fixed_bits((*self).into(), 8)?)
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(r.fixed_bits(8)? as u8)
    }
}

impl Uper for Qfi {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        Ok(w.integer(self.value().into(), Range::new(0, 63))?)
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Qfi::new(r.integer(Range::new(0, 63))? as u8).map_err(|_| DecodeError::Value("QFI"))
    }
}

impl Uper for Tac {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        Ok(w.fixed_bits(self.value().into(), 24)?)
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Tac::new(r.fixed_bits(24)? as u32).map_err(|_| DecodeError::Value("TrackingAreaCode"))
    }
}

impl Uper for NrCellId {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        Ok(w.fixed_bits(self.value(), 36)?)
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        NrCellId::new(r.fixed_bits(36)?).map_err(|_| DecodeError::Value("CellIdentity"))
    }
}

impl Uper for AmfId {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        let [a, b, c] = self.to_octets();
        Ok(w.fixed_bits(u32::from_be_bytes([0, a, b, c]).into(), 24)?)
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [_, octets @ ..] = (r.fixed_bits(24)? as u32).to_be_bytes();
        Ok(Self::from_octets(octets))
    }
}

/// The 48 bits of an NG-5G-S-TMSI.
pub(crate) fn s_tmsi_bits(id: STmsi) -> u64 {
    u64::from(id.set()) << 38 | u64::from(id.pointer()) << 32 | u64::from(id.tmsi().0)
}

/// The identity of 48 bits.
pub(crate) fn s_tmsi_of_bits(bits: u64) -> Result<STmsi, DecodeError> {
    STmsi::new((bits >> 38 & 0x3ff) as u16, (bits >> 32 & 0x3f) as u8, Tmsi(bits as u32))
        .map_err(|_| DecodeError::Value("NG-5G-S-TMSI"))
}

/// NG-5G-S-TMSI.
impl Uper for STmsi {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        Ok(w.fixed_bits(s_tmsi_bits(*self), 48)?)
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        s_tmsi_of_bits(r.fixed_bits(48)?)
    }
}

/// S-NSSAI ::= CHOICE { sst, sst-SD }.
impl Uper for SNssai {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        w.choice(self.sd().is_some().into(), 2, false)?;
        w.fixed_bits(self.sst.into(), 8)?;
        match self.sd() {
            Some(sd) => Ok(w.fixed_bits(sd.into(), 24)?),
            None => Ok(()),
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let has_sd = r.choice(2, false)? == 1;
        let sst = r.fixed_bits(8)? as u8;
        let sd = if has_sd { Some(r.fixed_bits(24)? as u32) } else { None };
        SNssai::new(sst, sd).map_err(|_| DecodeError::Value("S-NSSAI"))
    }
}

const DIGIT: Range = Range::new(0, 9);

/// Reads a PLMN-Identity. Without MCC it has that of the one before it in its list (TS 38.331 §6.3.2).
fn plmn(r: &mut Reader<'_>, before: Option<Plmn>) -> Result<Plmn, DecodeError> {
    let preamble = r.preamble(false, 1)?;
    let mcc = if preamble.present(0) {
        let digits = [r.integer(DIGIT)? as u8, r.integer(DIGIT)? as u8, r.integer(DIGIT)? as u8];
        [digits[1] << 4 | digits[0], digits[2]]
    } else {
        let [a, b, _] = before.ok_or(DecodeError::Value("PLMN-Identity without MCC"))?.to_bcd();
        [a, b & 0x0f]
    };
    let mnc = r.list::<_, DecodeError>(Size::new(2, 3), |r| Ok(r.integer(DIGIT)? as u8))?;
    let digit = |index: usize| mnc.get(index).copied().unwrap_or(0x0f);
    Plmn::from_bcd([mcc[0], digit(2) << 4 | mcc[1], digit(1) << 4 | digit(0)])
        .map_err(|_| DecodeError::Value("PLMN-Identity"))
}

/// PLMN-Identity, with its MCC.
impl Uper for Plmn {
    fn put(&self, w: &mut Writer) -> Result<(), EncodeError> {
        let [a, b, c] = self.to_bcd();
        w.preamble(None, &[true]);
        for digit in [a & 0x0f, a >> 4, b & 0x0f] {
            w.integer(digit.into(), DIGIT)?;
        }
        let mnc = [c & 0x0f, c >> 4, b >> 4];
        w.list::<_, EncodeError>(mnc.get(..self.mnc_len()).unwrap_or(&mnc), Size::new(2, 3), |w, digit| {
            Ok(w.integer((*digit).into(), DIGIT)?)
        })
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        plmn(r, None)
    }
}

/// SEQUENCE (SIZE (1..12)) OF PLMN-Identity.
pub(crate) struct PlmnList;

impl Member<Vec<Plmn>> for PlmnList {
    const OPTIONAL: bool = false;
    fn put(value: &Vec<Plmn>, w: &mut Writer) -> Result<(), EncodeError> {
        w.list(value, Size::new(1, 12), |w, item| item.put(w))
    }
    fn get(_present: bool, r: &mut Reader<'_>) -> Result<Vec<Plmn>, DecodeError> {
        let mut before = None;
        r.list(Size::new(1, 12), |r| {
            let read = plmn(r, before)?;
            before = Some(read);
            Ok(read)
        })
    }
}

sequence! {
    /// RegisteredAMF: the AMF with which the UE is registered.
    pub struct RegisteredAmf extensible false {
        /// plmn-Identity: its network, if that is not the selected one.
        pub plmn_identity: Option<Plmn> as crate::codec::Optional,
        /// amf-Identifier.
        pub amf_identifier: AmfId as crate::codec::Value,
    }
}
