//! NAS security (TS 24.501 §4.4, TS 33.501 §6.4): contexts, protected messages, algorithm choice, AS keys.
//!
//! A [`SecurityContext`] belongs to one side of one UE. It is made when keys are fresh ([`SecurityContext::new`],
//! both COUNTs at zero), or from what was stored ([`SecurityContext::restore`]). The network then sends SECURITY
//! MODE COMMAND under [`Header::NewContext`]; the UE reads the command with [`Envelope::read`] before it has a
//! context, makes one, and verifies the same octets with it.
//!
//! Invariants: each COUNT protects one message and is accepted once (TS 33.501 §6.4.3), so a replay fails like a
//! forged message does; COUNTs only grow, and a used-up one refuses further work; keys are not printed. With NIA0
//! nothing is verified (TS 33.501 annex D.1); it is chosen only when the operator lists it.

use oxirush_nas::{
    NasError,
    nas_5gs::{
        self as lib, Direction, Nas5gsMessage, Nas5gsSecurityHeaderType, NasConnection, NasCount,
        NasSecurityContext,
    },
};
use oxirush_security::nas_5gs as kdf;
use types::Key;

use crate::{
    CipheringAlgorithm, DecodeError, Decoded, EncodeError, GmmCause, IntegrityAlgorithm, KeySetId, Message,
    MobileIdentity, UeSecurityCapability, codec,
};

/// Which side of the link a context is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// AMF.
    Network,
    /// UE.
    Ue,
}

impl Side {
    fn sends(self) -> Direction {
        match self {
            Self::Network => Direction::Downlink,
            Self::Ue => Direction::Uplink,
        }
    }

    fn receives(self) -> Direction {
        match self {
            Self::Network => Direction::Uplink,
            Self::Ue => Direction::Downlink,
        }
    }
}

/// Security header type of a protected message (TS 24.501 §9.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// 1: integrity protected.
    Integrity,
    /// 2: integrity protected and ciphered.
    Ciphered,
    /// 3: integrity protected with a new context; SECURITY MODE COMMAND alone.
    NewContext,
    /// 4: integrity protected and ciphered with a new context; SECURITY MODE COMPLETE alone.
    NewContextCiphered,
}

impl Header {
    /// The header a message goes out under once a context is in use.
    pub fn of(message: &Message) -> Self {
        match message {
            Message::SecurityModeCommand(_) => Self::NewContext,
            Message::SecurityModeComplete(_) => Self::NewContextCiphered,
            _ => Self::Ciphered,
        }
    }

    fn number(self) -> Nas5gsSecurityHeaderType {
        use Nas5gsSecurityHeaderType as Type;
        match self {
            Self::Integrity => Type::IntegrityProtected,
            Self::Ciphered => Type::IntegrityProtectedAndCiphered,
            Self::NewContext => Type::IntegrityProtectedWithNewFiveGNasSecurityContext,
            Self::NewContextCiphered => Type::IntegrityProtectedAndCipheredWithNewFiveGNasSecurityContext,
        }
    }
}

/// Octets of N1, told apart without any key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Envelope<'a> {
    /// A plain message.
    Plain(&'a [u8]),
    /// A protected message.
    Protected {
        /// How it is protected.
        header: Header,
        /// Low octet of its COUNT.
        sequence_number: u8,
        /// What is inside; readable as a message unless ciphered.
        inner: &'a [u8],
    },
}

impl<'a> Envelope<'a> {
    /// Tells plain from protected.
    ///
    /// # Errors
    /// When the octets are neither: to be ignored.
    pub fn read(octets: &'a [u8]) -> Result<Self, DecodeError> {
        match *octets {
            [codec::EPD_GMM, head, ..] if head & 0x0f == 0 => Ok(Self::Plain(octets)),
            [codec::EPD_GMM, head, _, _, _, _, sequence_number, ref inner @ ..] if !inner.is_empty() => {
                let header = match head & 0x0f {
                    1 => Header::Integrity,
                    2 => Header::Ciphered,
                    3 => Header::NewContext,
                    4 => Header::NewContextCiphered,
                    other => return Err(DecodeError::Protected(other)),
                };
                Ok(Self::Protected { header, sequence_number, inner })
            }
            [codec::EPD_GMM, ..] | [] => Err(DecodeError::TooShort),
            [other, ..] => Err(DecodeError::UnknownProtocol(other)),
        }
    }

    /// The message as far as it can be read without a key: a plain one, or the unverified inside of one that is not
    /// ciphered. Trust nothing in it (TS 24.501 §4.4.4.3) but what names the UE.
    ///
    /// # Errors
    /// As [`Message::decode`]; [`DecodeError::Protected`] when it is ciphered.
    pub fn peek(&self) -> Result<Decoded<Message>, DecodeError> {
        match *self {
            Self::Plain(octets) => Message::decode(octets),
            Self::Protected { header: Header::Integrity | Header::NewContext, inner, .. } => {
                Message::decode(inner)
            }
            Self::Protected { header: Header::Ciphered, .. } => Err(DecodeError::Protected(2)),
            Self::Protected { header: Header::NewContextCiphered, .. } => Err(DecodeError::Protected(4)),
        }
    }
}

/// A message that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The message to act on; of an initial message with a ciphered container, the complete message in it.
    pub message: Decoded<Message>,
    /// Plain octets of that message, for HASH_AMF and for keeping.
    pub octets: Vec<u8>,
    /// How it was protected.
    pub header: Header,
    /// Its COUNT; KgNB is derived from the one of the message that starts AS security.
    pub count: u32,
    /// The NAS message container of an initial message could not be used: ask for the message again in
    /// SECURITY MODE COMMAND ([`crate::gmm::SecurityModeCommand::retransmit_initial`], TS 24.501 §5.4.2.2).
    pub incomplete: bool,
}

/// Why a protected message was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnprotectError {
    /// Not a protected message, or one that ends too early: to be ignored.
    #[error("not a security protected message")]
    NotProtected,
    /// The message authentication code is wrong: forged, replayed or of other keys (TS 24.501 §4.4.4).
    #[error("integrity check failed")]
    Integrity,
    /// Every COUNT of the direction was used: a new authentication is needed (TS 33.501 §6.4.3.1).
    #[error("the NAS COUNT is used up")]
    CountExhausted,
    /// Genuine, its COUNT used, but no message to act on; answer with the error's cause.
    #[error("authentic message refused: {0}")]
    Refused(DecodeError),
}

impl UnprotectError {
    /// The 5GMM cause to answer with; `None`: ignore the message.
    pub fn gmm_cause(&self) -> Option<GmmCause> {
        match self {
            Self::Refused(error) => error.gmm_cause(),
            _ => None,
        }
    }
}

/// Why a message was not protected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtectError {
    /// It does not encode.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// Every COUNT of the direction was used.
    #[error("the NAS COUNT is used up")]
    CountExhausted,
    /// The message may not go that way, or not under that header.
    #[error("{0}")]
    Refused(String),
}

/// Why a context cannot be made: a reserved pair of algorithms, or a COUNT above 24 bits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ContextError(String);

/// What makes a context anew after a restart (CP-7). Holds KAMF: keep it as you keep keys.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StoredContext {
    /// Key of the AMF.
    pub kamf: Key<32>,
    /// ngKSI, as on the wire.
    pub ngksi: u8,
    /// Integrity algorithm.
    pub integrity: IntegrityAlgorithm,
    /// Ciphering algorithm.
    pub ciphering: CipheringAlgorithm,
    /// Next uplink COUNT; `None` when used up.
    pub uplink: Option<u32>,
    /// Next downlink COUNT; `None` when used up.
    pub downlink: Option<u32>,
}

/// 5G NAS security context of one UE over 3GPP access, full native (TS 33.501 §3.1).
pub struct SecurityContext {
    side: Side,
    kamf: Key<32>,
    ngksi: KeySetId,
    integrity: IntegrityAlgorithm,
    ciphering: CipheringAlgorithm,
    inner: NasSecurityContext,
    last_received: Option<u32>,
}

impl std::fmt::Debug for SecurityContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecurityContext")
            .field("side", &self.side)
            .field("ngksi", &self.ngksi)
            .field("integrity", &self.integrity)
            .field("ciphering", &self.ciphering)
            .finish_non_exhaustive()
    }
}

impl SecurityContext {
    /// A context of a KAMF that no message was protected with yet.
    ///
    /// # Errors
    /// When NIA0 is paired with a cipher.
    pub fn new(
        side: Side,
        kamf: &Key<32>,
        ngksi: KeySetId,
        integrity: IntegrityAlgorithm,
        ciphering: CipheringAlgorithm,
    ) -> Result<Self, ContextError> {
        let inner = NasSecurityContext::from_fresh_kamf(
            &lib::KAmf::new(kamf.expose()),
            integrity_of(integrity),
            ciphering_of(ciphering),
        );
        let inner = inner.map_err(|error| ContextError(error.to_string()))?;
        Ok(Self { side, kamf: kamf.clone(), ngksi, integrity, ciphering, inner, last_received: None })
    }

    /// A context as it was stored; its COUNTs must not be older than the last message sent.
    ///
    /// # Errors
    /// When NIA0 is paired with a cipher, or a COUNT has more than 24 bits.
    pub fn restore(side: Side, stored: &StoredContext) -> Result<Self, ContextError> {
        let count = |count: Option<u32>| count.map(NasCount::new).transpose();
        let counts = count(stored.uplink).and_then(|up| Ok((up, count(stored.downlink)?)));
        let counts = counts.map_err(|error| ContextError(error.to_string()))?;
        let inner = NasSecurityContext::restore_from_kamf(
            &lib::KAmf::new(stored.kamf.expose()),
            integrity_of(stored.integrity),
            ciphering_of(stored.ciphering),
            counts,
            (Some(NasCount::ZERO), Some(NasCount::ZERO)),
        );
        let received = if side == Side::Network { stored.uplink } else { stored.downlink };
        Ok(Self {
            side,
            kamf: stored.kamf.clone(),
            ngksi: KeySetId::from_bits(stored.ngksi),
            integrity: stored.integrity,
            ciphering: stored.ciphering,
            inner: inner.map_err(|error| ContextError(error.to_string()))?,
            last_received: received.and_then(|next| next.checked_sub(1)),
        })
    }

    /// What [`Self::restore`] needs.
    pub fn stored(&self) -> StoredContext {
        let next = |direction| self.inner.nas_count(direction, NasConnection::ThreeGpp).map(NasCount::get);
        StoredContext {
            kamf: self.kamf.clone(),
            ngksi: self.ngksi.to_bits(),
            integrity: self.integrity,
            ciphering: self.ciphering,
            uplink: next(Direction::Uplink),
            downlink: next(Direction::Downlink),
        }
    }

    /// Key set identifier.
    pub fn ngksi(&self) -> KeySetId {
        self.ngksi
    }

    /// Integrity algorithm in use.
    pub fn integrity(&self) -> IntegrityAlgorithm {
        self.integrity
    }

    /// Ciphering algorithm in use.
    pub fn ciphering(&self) -> CipheringAlgorithm {
        self.ciphering
    }

    /// Key of the AMF.
    pub fn kamf(&self) -> &Key<32> {
        &self.kamf
    }

    /// Takes other algorithms into use under the same KAMF; the COUNTs go on (TS 33.501 §6.7.1).
    ///
    /// # Errors
    /// When NIA0 is paired with a cipher; the context stays as it was.
    pub fn reselect(
        &mut self,
        integrity: IntegrityAlgorithm,
        ciphering: CipheringAlgorithm,
    ) -> Result<(), ContextError> {
        let kamf = lib::KAmf::new(self.kamf.expose());
        let changed = self.inner.reselect_algorithms(&kamf, integrity_of(integrity), ciphering_of(ciphering));
        changed.map_err(|error| ContextError(error.to_string()))?;
        (self.integrity, self.ciphering) = (integrity, ciphering);
        Ok(())
    }

    /// Encodes and protects a message under the header it normally takes ([`Header::of`]).
    ///
    /// # Errors
    /// [`ProtectError`]; nothing was sent and no COUNT used when it does not encode.
    pub fn protect(&mut self, message: &Message) -> Result<Vec<u8>, ProtectError> {
        self.protect_as(Header::of(message), message)
    }

    /// Encodes and protects a message under a header of choice.
    ///
    /// # Errors
    /// [`ProtectError`], as [`Self::protect`].
    pub fn protect_as(&mut self, header: Header, message: &Message) -> Result<Vec<u8>, ProtectError> {
        let plain = message.encode()?;
        let protected = self.inner.protect_bytes(plain, header.number(), self.side.sends());
        protected.map_err(protect_error)
    }

    /// Protects an initial message as a UE with a context does (TS 24.501 §4.4.6): elements that may go in clear in
    /// clear, the complete message ciphered in a container. The message is given complete, without container.
    ///
    /// # Errors
    /// [`ProtectError`]; [`ProtectError::Refused`] for a message that is not an initial one.
    pub fn protect_initial(&mut self, message: &Message) -> Result<Vec<u8>, ProtectError> {
        let framed = Nas5gsMessage::decode(&message.encode()?).map_err(protect_error)?;
        self.inner.protect_initial(&framed).map_err(protect_error)
    }

    /// Verifies, deciphers and reads a message of the other side.
    ///
    /// # Errors
    /// [`UnprotectError`]; the context is unchanged unless the message was genuine.
    pub fn unprotect(&mut self, octets: &[u8]) -> Result<Verified, UnprotectError> {
        let Ok(Envelope::Protected { header, sequence_number, .. }) = Envelope::read(octets) else {
            return Err(UnprotectError::NotProtected);
        };
        let before = self.inner.nas_count(self.side.receives(), NasConnection::ThreeGpp);
        let (plain, count, incomplete) = match self.inner.unprotect_raw(octets, self.side.receives()) {
            Ok(verified) => (verified.message, verified.count.get(), false),
            Err(NasError::AuthenticMessageRefused { error, plain }) => {
                let count =
                    before.and_then(|next| next.estimate(sequence_number).ok()).map_or(0, NasCount::get);
                self.last_received = Some(count);
                let plain = self.refused(header, *error, octets, &plain)?;
                (plain, count, true)
            }
            Err(NasError::IntegrityCheckFailed) => return Err(UnprotectError::Integrity),
            Err(NasError::NasCountExhausted) => return Err(UnprotectError::CountExhausted),
            Err(_) => return Err(UnprotectError::NotProtected),
        };
        self.last_received = Some(count);
        let message = Message::decode(&plain).map_err(UnprotectError::Refused)?;
        Ok(Verified { message, octets: plain, header, count, incomplete })
    }

    /// What can still be done with an authentic message that the library refused: an initial message whose
    /// container was unusable goes on with its clear elements; everything else is answered with a cause.
    fn refused(
        &self,
        header: Header,
        error: NasError,
        octets: &[u8],
        plain: &[u8],
    ) -> Result<Vec<u8>, UnprotectError> {
        let outer = octets.get(7..).unwrap_or_default();
        if header == Header::Integrity
            && let Ok(Decoded { message, .. }) = Message::decode(outer)
            && let Message::RegistrationRequest(_)
            | Message::ServiceRequest(_)
            | Message::DeregistrationRequestUe(_) = message
            && message.sent_by_ue() == Some(self.side == Side::Network)
        {
            return Ok(outer.to_vec());
        }
        let wrong_way = Message::decode(plain).is_ok_and(|decoded| {
            decoded.message.sent_by_ue().is_some_and(|by_ue| by_ue != (self.side == Side::Network))
        });
        Err(UnprotectError::Refused(match (wrong_way, plain.get(2)) {
            // A type that is not defined for this direction does not exist (TS 24.501 §7.4).
            (true, Some(kind)) => DecodeError::UnknownMessageType(*kind),
            _ => Message::decode(plain).err().unwrap_or_else(|| codec::decode_error(error)),
        }))
    }

    /// KgNB from the COUNT of the last uplink message received, or sent by a UE (TS 33.501 annex A.9).
    pub fn kgnb(&self) -> Key<32> {
        let sent = self.inner.nas_count(Direction::Uplink, NasConnection::ThreeGpp).map(NasCount::get);
        let count = match self.side {
            Side::Network => self.last_received.unwrap_or(0),
            Side::Ue => sent.and_then(|next| next.checked_sub(1)).unwrap_or(0),
        };
        self.kgnb_of(count)
    }

    /// KgNB from a given uplink COUNT, at most 24 bits.
    pub fn kgnb_of(&self, uplink_count: u32) -> Key<32> {
        let count = NasCount::new(uplink_count).unwrap_or(NasCount::MAX);
        Key::new(*kdf::derive_kgnb(&kdf::KAmf::new(self.kamf.expose()), count).as_octets())
    }

    /// Next hop: `sync` is KgNB for the first, the NH before for the next (TS 33.501 annex A.10).
    pub fn nh(&self, sync: &Key<32>) -> Key<32> {
        let kamf = kdf::KAmf::new(self.kamf.expose());
        Key::new(*kdf::derive_nh(&kamf, &kdf::Nh::new(sync.expose())).as_octets())
    }
}

fn integrity_of(algorithm: IntegrityAlgorithm) -> lib::IntegrityAlgorithm {
    match algorithm {
        IntegrityAlgorithm::Nia0 => lib::IntegrityAlgorithm::NIA0,
        IntegrityAlgorithm::Nia1 => lib::IntegrityAlgorithm::NIA1,
        IntegrityAlgorithm::Nia2 => lib::IntegrityAlgorithm::NIA2,
        IntegrityAlgorithm::Nia3 => lib::IntegrityAlgorithm::NIA3,
    }
}

fn ciphering_of(algorithm: CipheringAlgorithm) -> lib::CipheringAlgorithm {
    match algorithm {
        CipheringAlgorithm::Nea0 => lib::CipheringAlgorithm::NEA0,
        CipheringAlgorithm::Nea1 => lib::CipheringAlgorithm::NEA1,
        CipheringAlgorithm::Nea2 => lib::CipheringAlgorithm::NEA2,
        CipheringAlgorithm::Nea3 => lib::CipheringAlgorithm::NEA3,
    }
}

fn protect_error(error: NasError) -> ProtectError {
    match error {
        NasError::NasCountExhausted => ProtectError::CountExhausted,
        other => ProtectError::Refused(other.to_string()),
    }
}

/// The first pair in the operator's order that the UE has; `None`: refuse the UE with
/// [`GmmCause::UeSecurityCapabilitiesMismatch`]. NIA0 only goes with NEA0 (TS 33.501 §5.5.2).
pub fn choose_algorithms(
    capability: &UeSecurityCapability,
    integrity: &[IntegrityAlgorithm],
    ciphering: &[CipheringAlgorithm],
) -> Option<(IntegrityAlgorithm, CipheringAlgorithm)> {
    let integrity = *integrity.iter().find(|algorithm| capability.has_integrity(**algorithm))?;
    if integrity == IntegrityAlgorithm::Nia0 {
        return Some((integrity, CipheringAlgorithm::Nea0));
    }
    let ciphering = *ciphering.iter().find(|algorithm| capability.has_ciphering(**algorithm))?;
    Some((integrity, ciphering))
}

/// Whether `message` may be acted on although nothing proves who sent it (TS 24.501 §4.4.4.2, §4.4.4.3). What it
/// may then cause is the procedure's to limit: a plain SERVICE REQUEST, for one, is not on the list but gets
/// SERVICE REJECT #9.
pub fn allowed_unprotected(receiver: Side, message: &Message) -> bool {
    match (receiver, message) {
        (Side::Network, Message::IdentityResponse(response)) => {
            matches!(response.identity, MobileIdentity::Suci(_) | MobileIdentity::SuciNai { .. })
        }
        (Side::Network, message) => matches!(
            message,
            Message::RegistrationRequest(_)
                | Message::AuthenticationResponse(_)
                | Message::AuthenticationFailure(_)
                | Message::SecurityModeReject(_)
                | Message::DeregistrationRequestUe(_)
                | Message::DeregistrationAcceptNetwork
        ),
        (Side::Ue, Message::IdentityRequest(request)) => request.identity_type == crate::IdentityType::Suci,
        (Side::Ue, Message::RegistrationReject(reject)) => trusted_unprotected(reject.cause),
        (Side::Ue, Message::ServiceReject(reject)) => trusted_unprotected(reject.cause),
        (Side::Ue, message) => matches!(
            message,
            Message::AuthenticationRequest(_)
                | Message::AuthenticationResult(_)
                | Message::AuthenticationReject(_)
                | Message::DeregistrationAcceptUe
        ),
    }
}

/// Causes of a reject that a UE does not believe without integrity protection (TS 24.501 §4.4.4.2).
fn trusted_unprotected(cause: GmmCause) -> bool {
    !matches!(cause, GmmCause::NotAuthorizedForCag | GmmCause::PlmnNotAllowedAtLocation)
}
