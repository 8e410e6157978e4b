//! N1: NAS messages in and out, protected and verified (TS 24.501 §4.4).

use bytes::Bytes;
use nas::gmm::{AuthenticationRequest, SecurityModeCommand, SecurityModeComplete};
use nas::security::{Envelope, Header, SecurityContext, Side, Verified, allowed_unprotected};
use nas::{GmmCause, IdentityType, Message, MobileIdentity};
use ngap::RrcEstablishmentCause;
use types::{Key, Pei};

use super::{Failure, Ue};
use crate::access::{Downlink, ReleaseCause};

/// Something that reached the UE.
#[derive(Debug)]
pub enum Received {
    /// A NAS message, verified where TS 24.501 requires it.
    Nas(Message),
    /// Radio resources of sessions were set up; the UE keeps them.
    SessionsUp,
    /// Radio resources of a session were released.
    SessionDown(types::PduSessionId),
    /// The connection was released.
    Released(ReleaseCause),
    /// The AMF sent an Error Indication about a message of ours.
    ErrorIndication(ngap::ErrorIndication),
}

/// A NAS message that [`Ue::record`] kept.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Sent by the UE (`true`) or received.
    pub sent: bool,
    /// The octets on N1, protected or not.
    pub octets: Bytes,
    /// The decoded message; `None` if it failed verification or did not decode.
    pub message: Option<Message>,
}

impl Ue {
    /// Keeps every NAS message from now on.
    pub fn record(&mut self) {
        self.record.get_or_insert_default();
    }

    /// The messages kept so far.
    pub fn recorded(&self) -> &[Recorded] {
        self.record.as_deref().unwrap_or_default()
    }

    fn keep(&mut self, sent: bool, octets: &Bytes, message: Option<&Message>) {
        if let Some(record) = &mut self.record {
            record.push(Recorded { sent, octets: octets.clone(), message: message.cloned() });
        }
    }

    /// Opens a connection for signalling if there is none.
    ///
    /// # Errors
    /// The cell gives no connection.
    pub async fn connect(&mut self) -> Result<(), Failure> {
        self.connect_for(RrcEstablishmentCause::MoSignalling).await
    }

    /// Opens a connection if there is none, with the cause that the gNB tells the AMF. A page counts as
    /// answered then.
    ///
    /// # Errors
    /// The cell gives no connection.
    pub async fn connect_for(&mut self, cause: RrcEstablishmentCause) -> Result<(), Failure> {
        if self.connection.is_none() {
            let s_tmsi = self.guti.map(types::Guti::s_tmsi);
            self.connection = Some(self.access.connect(cause, s_tmsi).await?);
            (self.secured, self.spoken, self.k_gnb, self.idle_since) = (false, false, None, None);
        }
        if let Some(camping) = &mut self.camping {
            camping.clear();
        }
        Ok(())
    }

    /// The octets of a message as this UE would send it now: protected if security is active.
    pub fn protect(&mut self, message: &Message) -> Result<Vec<u8>, Failure> {
        let build = |error: &dyn std::fmt::Display| Failure::Build(error.to_string());
        match &mut self.context {
            Some(context) if self.secured => context.protect(message).map_err(|error| build(&error)),
            _ => message.encode().map_err(|error| build(&error)),
        }
    }

    /// Sends a message, protected if security is active.
    pub async fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let octets = self.protect(message)?;
        self.send_octets(octets.into(), Some(message)).await
    }

    /// Sends a message without protection.
    pub async fn send_plain(&mut self, message: &Message) -> Result<(), Failure> {
        let octets = message.encode().map_err(|error| Failure::Build(error.to_string()))?;
        self.send_octets(octets.into(), Some(message)).await
    }

    /// Sends any octets as a NAS message.
    pub async fn send_bytes(&mut self, octets: impl Into<Bytes>) -> Result<(), Failure> {
        self.send_octets(octets.into(), None).await
    }

    pub(super) async fn send_octets(
        &mut self,
        octets: Bytes,
        message: Option<&Message>,
    ) -> Result<(), Failure> {
        self.connect().await?;
        if !std::mem::replace(&mut self.spoken, true) {
            // If the message is not protected, an authentication follows, and with it another key.
            self.derive_k_gnb();
        }
        tracing::trace!(supi = %self.supi, message = message.map(Message::name), "uplink NAS");
        self.keep(true, &octets, message);
        self.nas_messages += 1;
        let s_tmsi = self.guti.map(types::Guti::s_tmsi);
        let connection = self.connection.as_mut().ok_or(Failure::ConnectionLost)?;
        connection.send_nas(octets, s_tmsi).await
    }

    /// KgNB of the message that was protected last.
    fn derive_k_gnb(&mut self) {
        self.k_gnb = self.context.as_ref().map(SecurityContext::kgnb);
    }

    /// The next thing that reaches the UE. Messages that fail verification or do not decode are counted
    /// and skipped (TS 24.501 §4.4.4.2, §7). Cancel-safe.
    pub async fn receive(&mut self) -> Result<Received, Failure> {
        loop {
            let connection = self.connection.as_mut().ok_or(Failure::ConnectionLost)?;
            let Some(downlink) = connection.next().await else {
                self.radio_failure();
                return Err(Failure::ConnectionLost);
            };
            match downlink {
                Downlink::Nas(octets) => {
                    self.nas_messages += 1;
                    let message = self.read(&octets);
                    tracing::trace!(supi = %self.supi, message = message.as_ref().map(Message::name), "downlink NAS");
                    self.keep(false, &octets, message.as_ref());
                    match message {
                        Some(message) => return Ok(Received::Nas(message)),
                        None => {
                            self.discarded += 1;
                            tracing::debug!(supi = %self.supi, ?octets, "NAS message not believed or understood");
                        }
                    }
                }
                Downlink::SecurityMode => match &self.k_gnb {
                    Some(k_gnb) => connection.activate_security(k_gnb).await?,
                    None => {
                        self.discarded += 1;
                        tracing::debug!(supi = %self.supi, "radio security without a NAS security context");
                    }
                },
                Downlink::SessionsUp(bearers) => {
                    for bearer in bearers {
                        match self.sessions.get_mut(&bearer.id()) {
                            Some(session) => session.activate(bearer),
                            None => drop(self.bearers.insert(bearer.id(), bearer)),
                        }
                    }
                    if connection.confirm().await.is_none() {
                        self.radio_failure();
                        return Err(Failure::ConnectionLost);
                    }
                    return Ok(Received::SessionsUp);
                }
                Downlink::SessionDown(id) => {
                    self.bearers.remove(&id);
                    if let Some(session) = self.sessions.get_mut(&id) {
                        session.bearer = None;
                    }
                    return Ok(Received::SessionDown(id));
                }
                Downlink::Released(cause) => {
                    self.lose_connection();
                    return Ok(Received::Released(cause));
                }
                Downlink::ErrorIndication(error) => return Ok(Received::ErrorIndication(error)),
            }
        }
    }

    /// Verifies and decodes octets of N1; `None` for messages that a UE ignores.
    fn read(&mut self, octets: &[u8]) -> Option<Message> {
        match Envelope::read(octets).ok()? {
            Envelope::Plain(plain) => {
                let message = Message::decode(plain).ok()?.message;
                allowed_unprotected(Side::Ue, &message).then_some(message)
            }
            Envelope::Protected { header: Header::NewContext | Header::NewContextCiphered, .. } => {
                self.read_security_mode_command(octets)
            }
            Envelope::Protected { .. } => {
                let verified = self.context.as_mut()?.unprotect(octets).ok()?;
                self.secured = true;
                Some(verified.message.message)
            }
        }
    }

    /// SECURITY MODE COMMAND (TS 24.501 §5.4.2.3): makes or changes the context that it announces, if
    /// its integrity check succeeds under that context.
    fn read_security_mode_command(&mut self, octets: &[u8]) -> Option<Message> {
        let peeked = Envelope::read(octets).ok()?.peek().ok()?.message;
        let Message::SecurityModeCommand(command) = &peeked else { return None };
        let kamf = match (&self.fresh_kamf, &self.context) {
            (Some((ngksi, kamf)), _) if *ngksi == command.ngksi => kamf.clone(),
            (_, Some(context)) if context.ngksi() == command.ngksi => return self.reselect(octets, command),
            _ => return None,
        };
        let context =
            SecurityContext::new(Side::Ue, &kamf, command.ngksi, command.integrity, command.ciphering);
        let mut context = context.ok()?;
        let Verified { message, .. } = context.unprotect(octets).ok()?;
        (self.context, self.secured, self.fresh_kamf) = (Some(context), true, None);
        Some(message.message)
    }

    /// A command that changes algorithms of the context in use. The context stays as it was if the
    /// integrity check fails.
    fn reselect(&mut self, octets: &[u8], command: &SecurityModeCommand) -> Option<Message> {
        let context = self.context.as_mut()?;
        let before = (context.integrity(), context.ciphering());
        context.reselect(command.integrity, command.ciphering).ok()?;
        match context.unprotect(octets) {
            Ok(verified) => {
                self.secured = true;
                Some(verified.message.message)
            }
            Err(_) => {
                let _ = context.reselect(before.0, before.1);
                None
            }
        }
    }

    /// Answers messages of common procedures and returns all others.
    ///
    /// # Errors
    /// AUTHENTICATION REJECT, a lost connection.
    pub async fn respond(&mut self, message: Message) -> Result<Option<Message>, Failure> {
        match message {
            Message::IdentityRequest(request) => {
                let identity = match request.identity_type {
                    IdentityType::Suci => self.suci()?,
                    IdentityType::Guti => self.guti.map_or(MobileIdentity::None, MobileIdentity::Guti),
                    IdentityType::Imei => MobileIdentity::Pei(Pei::Imei(IMEI)),
                    IdentityType::Imeisv => MobileIdentity::Pei(Pei::Imeisv(IMEISV)),
                    _ => MobileIdentity::None,
                };
                self.send(&Message::IdentityResponse(nas::gmm::IdentityResponse { identity })).await?;
            }
            Message::AuthenticationRequest(request) => {
                let answer = self.authenticate(&request)?;
                self.send(&answer).await?;
            }
            Message::AuthenticationReject(_) => {
                // The USIM is invalid from now on (TS 24.501 §5.4.1.3.5).
                self.forget_keys();
                return Err(Failure::AuthenticationRejected);
            }
            Message::SecurityModeCommand(command) => {
                let answer = self.security_mode(&command);
                self.send(&answer).await?;
                self.derive_k_gnb();
            }
            Message::ConfigurationUpdateCommand(command) => {
                self.set_guti(command.guti.or(self.guti));
                self.registration_requested |= command.registration_requested;
                if command.acknowledge {
                    self.send(&Message::ConfigurationUpdateComplete).await?;
                }
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    /// 5G-AKA as the UE does it (TS 24.501 §5.4.1.3, TS 33.501 §6.1.3.2).
    fn authenticate(&mut self, request: &AuthenticationRequest) -> Result<Message, Failure> {
        use nas::aka::{AkaFailure, kamf, kseaf};
        use nas::gmm::{AuthenticationFailure, AuthenticationResponse};
        let failure = |cause, auts| Message::AuthenticationFailure(AuthenticationFailure { cause, auts });
        let (Some(rand), Some(autn)) = (request.rand, request.autn) else {
            return Ok(failure(GmmCause::Non5gAuthenticationUnacceptable, None));
        };
        let name = self.access.plmn().serving_network_name();
        let answer = match self.usim.answer(&Key::new(rand), &Key::new(autn), &name) {
            Ok(answer) => answer,
            Err(AkaFailure::Mac) => return Ok(failure(GmmCause::MacFailure, None)),
            Err(AkaFailure::Non5g) => return Ok(failure(GmmCause::Non5gAuthenticationUnacceptable, None)),
            Err(AkaFailure::Synchronisation { auts }) => {
                return Ok(failure(GmmCause::SynchFailure, Some(*auts.expose())));
            }
        };
        let build = |error: &dyn std::fmt::Display| Failure::Build(error.to_string());
        let kseaf = kseaf(&answer.kausf, &name).map_err(|error| build(&error))?;
        let abba = <[u8; 2]>::try_from(request.abba.as_slice()).map_err(|_| build(&"ABBA of odd length"))?;
        self.fresh_kamf = Some((request.ngksi, kamf(&kseaf, self.supi, abba)));
        self.authenticated = true;
        let res_star = Some(answer.res_star);
        Ok(Message::AuthenticationResponse(AuthenticationResponse { res_star, eap: None }))
    }

    /// Answers a verified SECURITY MODE COMMAND (TS 24.501 §5.4.2.3, §5.4.2.5).
    fn security_mode(&mut self, command: &SecurityModeCommand) -> Message {
        // NGAP and NAS leave room for capabilities that the network does not know. What the network
        // replays must equal our own.
        let ours = self.capability.octets();
        let replayed = command.replayed_capability.octets();
        if replayed.get(..2) != ours.get(..2) {
            let cause = GmmCause::UeSecurityCapabilitiesMismatch;
            self.secured = false;
            return Message::SecurityModeReject(nas::gmm::SecurityModeReject { cause });
        }
        Message::SecurityModeComplete(SecurityModeComplete {
            imeisv: command.imeisv_requested.then_some(MobileIdentity::Pei(Pei::Imeisv(IMEISV))),
            nas_message_container: self.initial_message.take(),
        })
    }
}

/// Equipment identity of every simulated UE: a test TAC, then zeros, with its check digit.
const IMEI: u64 = 4_370_816_125_816_151 / 10;
/// The same equipment with a software version.
const IMEISV: u64 = 4_370_816_125_816_151;
