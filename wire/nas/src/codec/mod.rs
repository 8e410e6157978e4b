//! Messages to octets and back, over the codec library; only this module and its children know its message types.
//!
//! The library frames the message (headers, element identifiers, lengths, the rules of TS 24.007 §11.2 and
//! TS 24.501 §7.5–7.7); [`values`] reads and writes what is inside each element.

mod gmm;
mod gsm;
pub(crate) mod values;

use oxirush_nas::{
    DecodeOptions, NasError,
    nas_5gs::{Nas5gsMessage, Validate},
};

use self::values::Read;
use crate::{DecodeError, Decoded, EncodeError, Message, SmMessage, SoftError};

/// Extended protocol discriminator of 5GMM (TS 24.007 §11.2.3.1.1A).
pub(crate) const EPD_GMM: u8 = 0x7e;
/// Extended protocol discriminator of 5GSM.
pub(crate) const EPD_GSM: u8 = 0x2e;

impl Message {
    /// Reads a plain 5GMM message.
    ///
    /// # Errors
    /// [`DecodeError`] says what to answer; [`DecodeError::Protected`] for a message under a security header.
    pub fn decode(octets: &[u8]) -> Result<Decoded<Self>, DecodeError> {
        match *octets {
            [] | [EPD_GMM] | [EPD_GMM, _] => return Err(DecodeError::TooShort),
            [EPD_GMM, header, ..] if header & 0x0f != 0 => return Err(DecodeError::Protected(header & 0x0f)),
            [EPD_GMM, ..] => {}
            [other, ..] => return Err(DecodeError::UnknownProtocol(other)),
        }
        let (framed, mut soft) = frame(octets)?;
        let message = gmm::read(&framed, &mut soft)?;
        Ok(Decoded { message, soft_errors: soft.0 })
    }

    /// Writes a plain 5GMM message.
    ///
    /// # Errors
    /// When a value does not fit its element.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let framed = Nas5gsMessage::new_5gmm(gmm::write(self)?);
        framed.encode().map_err(|error| EncodeError { ie: self.name(), reason: error.to_string() })
    }
}

impl SmMessage {
    /// Reads a 5GSM message.
    ///
    /// # Errors
    /// [`DecodeError`] says what to answer; [`crate::gsm::SmHeader::read`] gives whom to address.
    pub fn decode(octets: &[u8]) -> Result<Decoded<Self>, DecodeError> {
        match *octets {
            [EPD_GSM, _, 0xff, _, ..] => return Err(DecodeError::ReservedPti),
            [EPD_GSM, _, _, _, ..] => {}
            [other, ..] if other != EPD_GSM => return Err(DecodeError::UnknownProtocol(other)),
            _ => return Err(DecodeError::TooShort),
        }
        let (framed, mut soft) = frame(octets)?;
        let message = gsm::read(&framed, &mut soft)?;
        Ok(Decoded { message, soft_errors: soft.0 })
    }

    /// Writes a 5GSM message.
    ///
    /// # Errors
    /// When a value does not fit its element.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        let id = self.pdu_session_id.map_or(0, |id| id.value());
        let framed = Nas5gsMessage::new_5gsm(gsm::write(&self.body)?, id, self.pti.0);
        framed.encode().map_err(|error| EncodeError { ie: self.body.name(), reason: error.to_string() })
    }
}

/// Frames a message, and notes what the library left out of it.
fn frame(octets: &[u8]) -> Result<(Nas5gsMessage, Soft), DecodeError> {
    // Other implementations send optional elements out of sequence; reading them harms nobody.
    let options = DecodeOptions::STRICT.with_out_of_sequence();
    let framed = Nas5gsMessage::decode_with(octets, options).map_err(decode_error)?;
    let mut soft = Soft::default();
    if !framed.unknown_ies().is_empty() {
        if let Some(ie) = framed.unknown_ies().iter().find(|ie| ie.is_comprehension_required()) {
            return Err(DecodeError::ComprehensionRequired(ie.iei));
        }
        let ignored = framed.validate().into_iter().filter(|finding| finding.message.contains("ignored"));
        soft.0.extend(ignored.map(|f| SoftError { ie: f.field.replace('_', "-"), reason: f.message }));
    }
    Ok((framed, soft))
}

/// The library's refusal in our words.
pub(crate) fn decode_error(error: NasError) -> DecodeError {
    match error {
        NasError::MessageTooShort | NasError::BufferTooShort => DecodeError::TooShort,
        NasError::UnknownProtocolDiscriminator(epd) => DecodeError::UnknownProtocol(epd),
        NasError::ReservedSecurityHeaderType(header) => DecodeError::Protected(header),
        NasError::UnknownMessageType(kind) => DecodeError::UnknownMessageType(kind),
        NasError::UnknownSessionMessageType { message_type, .. } => {
            DecodeError::UnknownMessageType(message_type)
        }
        NasError::ReservedPduSessionIdentity { identity, .. } => DecodeError::ReservedPduSessionId(identity),
        NasError::InvalidMandatoryIe { ie, fault, .. } => {
            DecodeError::InvalidMandatory { ie: ie.to_string(), reason: fault.to_string() }
        }
        NasError::UnknownIeCutShort { iei, .. } => DecodeError::ComprehensionRequired(iei),
        other => DecodeError::Protocol(other.to_string()),
    }
}

/// Collects what was wrong with optional elements.
#[derive(Default)]
pub(crate) struct Soft(Vec<SoftError>);

impl Soft {
    /// Reads an optional element; a value that cannot be read is recorded and left out.
    fn get<T>(&mut self, ie: &str, raw: Option<&[u8]>, read: impl FnOnce(&[u8]) -> Read<T>) -> Option<T> {
        match read(raw?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.push(SoftError { ie: ie.replace('_', "-"), reason: error.to_string() });
                None
            }
        }
    }
}

/// Reads a mandatory element.
fn mandatory<T>(ie: &str, raw: &[u8], read: impl FnOnce(&[u8]) -> Read<T>) -> Result<T, DecodeError> {
    let invalid = |e: crate::error::ValueError| DecodeError::InvalidMandatory {
        ie: ie.replace('_', "-"),
        reason: e.to_string(),
    };
    read(raw).map_err(invalid)
}

/// At most `limit` entries fit the element `ie`.
fn within<T>(ie: &'static str, list: &[T], limit: usize) -> Result<(), EncodeError> {
    if list.len() > limit {
        return Err(EncodeError { ie, reason: format!("{} entries, at most {limit} fit", list.len()) });
    }
    Ok(())
}

/// `opt!(soft, message.field, read)`: the octets of an optional element, read.
macro_rules! opt {
    ($soft:ident, $message:ident . $field:ident, $read:expr) => {
        $soft.get(stringify!($field), $message.$field.as_ref().map(|ie| &ie.value[..]), $read)
    };
}

/// `bits!(message.field)`: the octet of an optional element of one octet or less.
macro_rules! bits {
    ($message:ident . $field:ident) => {
        $message.$field.as_ref().map(|ie| ie.value)
    };
}
use {bits, opt};
