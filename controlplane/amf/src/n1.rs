//! N1: NAS messages in and out, with their security (TS 24.501 §4.4).
//!
//! A received message is used if it passes the check with the UE's security context, or if §4.4.4.3
//! lists it among the messages without protection and secure exchange is not established on the
//! connection. All others (tampered, replayed, unprotected, malformed) are discarded and counted; the
//! UE's state and counts do not change.
//!
//! The first message of a connection may name a UE whose context does not verify it: the sender has
//! lost its keys, or is not that UE. Such a message does not affect that UE. It goes to a task of its
//! own, which authenticates the sender.

use bytes::Bytes;
use nas::security::{Envelope, Side, UnprotectError, allowed_unprotected};
use nas::{DecodeError, Decoded, GmmCause, Message, MobileIdentity, gmm};
use types::Tmsi;

use crate::config::Config;
use crate::context::Amf;
use crate::counters;
use crate::event::{Initial, Interrupt};
use crate::first_message;
use crate::ue::Ue;

/// The sender of a first message, as the message states it. Nothing has been verified.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// The 5G-TMSI in the message, if this AMF assigned it.
    pub tmsi: Option<Tmsi>,
    /// The name under which it waits for its turn, if it has to be authenticated.
    pub name: Option<String>,
}

/// Reads the sender of a first message.
pub(crate) fn sender(amf: &Amf, pdu: &[u8]) -> Sender {
    let Ok(decoded) = Envelope::read(pdu).and_then(|envelope| envelope.peek()) else {
        return Sender::default();
    };
    let tmsi = |identity: &MobileIdentity| match identity {
        MobileIdentity::Guti(guti) => (guti.guami == amf.guami).then_some(guti.tmsi),
        _ => None,
    };
    match decoded.message {
        Message::RegistrationRequest(gmm::RegistrationRequest { identity, .. })
        | Message::DeregistrationRequestUe(gmm::DeregistrationRequestUe { identity, .. }) => {
            Sender { tmsi: tmsi(&identity), name: Some(name(&identity)) }
        }
        Message::ServiceRequest(request) => {
            let ours = amf.guami.amf_id;
            let (set, pointer) = (request.s_tmsi.set(), request.s_tmsi.pointer());
            let tmsi = (set == ours.set() && pointer == ours.pointer()).then_some(request.s_tmsi.tmsi());
            Sender { tmsi, name: None }
        }
        _ => Sender::default(),
    }
}

/// The name of an identity in [`crate::admission`]: the same text for the same identity. It is not shown anywhere.
pub(crate) fn name(identity: &MobileIdentity) -> String {
    match identity {
        MobileIdentity::Suci(suci) => suci.to_string(),
        other => format!("{other:?}"),
    }
}

/// T3346 for a UE that is refused because of congestion: at random between a quarter of
/// `timers.t3346_s` and all of it, so that UEs refused together do not come back together (TS 24.501
/// §5.3.9).
pub(crate) fn back_off(config: &Config) -> Option<nas::Timer> {
    let longest = config.timers.t3346_s;
    let shortest = longest.div_ceil(4);
    let seconds = shortest + u64::from(nf::random::u32()) % (longest - shortest + 1);
    Some(nas::Timer::For(std::time::Duration::from_secs(seconds)))
}

/// The answer to a first message when no more UEs can be served: 5GMM cause #22.
pub(crate) fn congestion_reject(config: &Config, pdu: &[u8]) -> Option<Bytes> {
    let back_off = back_off(config);
    let answer = match Envelope::read(pdu).ok()?.peek().ok()?.message {
        Message::RegistrationRequest(_) => {
            let mut reject = gmm::RegistrationReject::new(GmmCause::Congestion);
            reject.t3346 = back_off;
            Message::RegistrationReject(reject)
        }
        Message::ServiceRequest(_) => {
            let mut reject = gmm::ServiceReject::new(GmmCause::Congestion);
            reject.t3346 = back_off;
            Message::ServiceReject(reject)
        }
        _ => return None,
    };
    answer.encode().ok().map(Bytes::from)
}

/// The result of checking a first message.
#[allow(clippy::large_enum_variant, reason = "lives for one match")]
pub(crate) enum InitialCheck {
    /// It is from this task's UE, or this task has no UE yet.
    Ours(Box<Initial>, Message),
    /// It was moved to another task.
    Elsewhere,
    /// It cannot be used; answered with this 5GMM cause.
    Unusable(Box<Initial>, Option<GmmCause>),
}

impl Ue {
    /// Whether the UE's identity is proven: secure exchange is established on its connection.
    pub fn is_secure(&self) -> bool {
        self.ctx.security.is_some() && self.connection.as_ref().is_some_and(|connection| connection.secure)
    }

    /// Checks the first message of a new connection against the context that it names.
    pub fn verify_initial(&mut self, mut initial: Box<Initial>) -> InitialCheck {
        if let Some(security) = &mut self.ctx.security
            && let Ok(verified) = security.unprotect(&initial.pdu)
            // If the container cannot be decoded, the sender is authenticated again and sends the
            // complete message in SECURITY MODE COMPLETE (TS 24.501 §4.4.6, §5.4.2.2).
            && !verified.incomplete
        {
            initial.verified = Some(verified.count);
            count_soft_errors(&verified.message);
            return InitialCheck::Ours(initial, verified.message.message);
        }
        if self.ctx.security.is_some() || self.connection.is_some() {
            counters::NAS_REJECTED.inc("initial_not_verified");
            return self.pass_on(initial);
        }
        let peeked = Envelope::read(&initial.pdu).and_then(|envelope| envelope.peek());
        match peeked {
            // The service request procedure rejects it with cause #9.
            Ok(Decoded { message: message @ Message::ServiceRequest(_), .. }) => {
                InitialCheck::Ours(initial, message)
            }
            Ok(decoded) if allowed_unprotected(Side::Network, &decoded.message) => {
                count_soft_errors(&decoded);
                InitialCheck::Ours(initial, decoded.message)
            }
            Ok(_) => {
                counters::NAS_REJECTED.inc("plain_not_allowed");
                InitialCheck::Unusable(initial, Some(GmmCause::MessageTypeNotCompatible))
            }
            Err(error) => {
                counters::NAS_REJECTED.inc("malformed");
                InitialCheck::Unusable(initial, error.gmm_cause())
            }
        }
    }

    /// Moves a connection that may not be this UE's to a new task, which authenticates the sender.
    pub(crate) fn pass_on(&self, mut initial: Box<Initial>) -> InitialCheck {
        initial.claimed = self.ctx.supi;
        let name = sender(&self.amf, &initial.pdu).name;
        first_message::admit(&self.amf, initial, name);
        InitialCheck::Elsewhere
    }

    /// Checks a NAS message on the current connection. `None` if it is discarded.
    pub async fn receive_nas(&mut self, pdu: &Bytes) -> Result<Option<Message>, Interrupt> {
        let secure = self.is_secure();
        let envelope = match Envelope::read(pdu) {
            Ok(envelope) => envelope,
            Err(error) => return self.refuse_nas(&error).await,
        };
        if let (Envelope::Protected { .. }, Some(security)) = (envelope, &mut self.ctx.security) {
            match security.unprotect(pdu) {
                Ok(verified) => {
                    if let Some(connection) = &mut self.connection {
                        connection.secure = true;
                        connection.last_count = verified.count;
                    }
                    count_soft_errors(&verified.message);
                    return Ok(Some(verified.message.message));
                }
                Err(UnprotectError::Refused(error)) => return self.refuse_nas(&error).await,
                Err(UnprotectError::CountExhausted) => {
                    counters::NAS_REJECTED.inc("count_exhausted");
                    return Ok(None);
                }
                Err(UnprotectError::Integrity | UnprotectError::NotProtected) => {
                    // Tampered, replayed, or protected with other keys.
                    counters::NAS_REJECTED.inc("integrity");
                }
            }
        }
        if secure {
            if matches!(envelope, Envelope::Plain(_)) {
                counters::NAS_REJECTED.inc("plain_when_secure");
            }
            return Ok(None);
        }
        match envelope.peek() {
            Ok(decoded) if allowed_unprotected(Side::Network, &decoded.message) => {
                count_soft_errors(&decoded);
                Ok(Some(decoded.message))
            }
            Ok(_) => {
                counters::NAS_REJECTED.inc("plain_not_allowed");
                Ok(None)
            }
            Err(error) => self.refuse_nas(&error).await,
        }
    }

    /// Handles a message that does not decode: it is ignored, or answered with the cause of TS 24.501
    /// §7.
    async fn refuse_nas(&mut self, error: &DecodeError) -> Result<Option<Message>, Interrupt> {
        counters::NAS_REJECTED.inc("malformed");
        tracing::debug!(supi = ?self.ctx.supi, %error, "malformed NAS");
        if let Some(cause) = error.gmm_cause() {
            self.send_status(cause).await?;
        }
        Ok(None)
    }

    /// Encodes a message, protected if the connection is. `None` (counted) if that fails: only a value
    /// of ours that NAS cannot carry or an exhausted NAS COUNT can cause this.
    pub fn protect(&mut self, message: &Message) -> Option<Bytes> {
        let secure = self.is_secure() || matches!(message, Message::SecurityModeCommand(_));
        let octets = match &mut self.ctx.security {
            Some(security) if secure => security.protect(message).map_err(|error| error.to_string()),
            _ => message.encode().map_err(|error| error.to_string()),
        };
        match octets {
            Ok(octets) => Some(octets.into()),
            Err(error) => {
                counters::NAS_REJECTED.inc("not_encodable");
                tracing::error!(supi = ?self.ctx.supi, message = message.name(), error, "NAS message not sent");
                None
            }
        }
    }
}

/// Optional elements with errors are treated as absent (TS 24.501 §7.6) and counted.
fn count_soft_errors(decoded: &Decoded<Message>) {
    for error in &decoded.soft_errors {
        counters::NAS_REJECTED.inc("optional_element");
        tracing::debug!(%error, "NAS element ignored");
    }
}
