//! Security mode control (TS 24.501 §5.4.2): takes a new NAS security context into use.
//!
//! The first algorithm of the configured order that the UE supports is used. The command is integrity
//! protected with the new context and repeats the UE's capabilities, so that a UE refuses if somebody
//! changed them. The UE answers, ciphered, with its IMEISV and, if the first message was incomplete,
//! the complete registration request.

use std::ops::ControlFlow;

use nas::security::{SecurityContext, Side, choose_algorithms};
use nas::{
    CipheringAlgorithm, GmmCause, IntegrityAlgorithm, Message, MobileIdentity, UeSecurityCapability, gmm,
};

use super::authentication::{ABBA, Authenticated};
use crate::event::Arrival;
use crate::ue::{NoAnswer, Timer, Ue};

/// Why secure exchange could not be established.
#[derive(Debug)]
pub(crate) enum SecurityModeError {
    /// No algorithm in common.
    NoCommonAlgorithm,
    /// The UE refused with this cause.
    Refused(GmmCause),
    /// The UE does not answer, or another procedure took precedence.
    NoAnswer(NoAnswer),
}

impl From<NoAnswer> for SecurityModeError {
    fn from(no_answer: NoAnswer) -> SecurityModeError {
        SecurityModeError::NoAnswer(no_answer)
    }
}

/// Takes the context of `authenticated` into use. Returns the complete initial message, if the UE sent
/// it again.
pub(crate) async fn security_mode(
    ue: &mut Ue,
    authenticated: &Authenticated,
    capability: UeSecurityCapability,
    retransmit_initial: bool,
) -> Result<Option<Vec<u8>>, SecurityModeError> {
    let config = &ue.amf.config;
    let (integrity, ciphering) = choose_algorithms(&capability, &config.integrity, &config.ciphering)
        .ok_or(SecurityModeError::NoCommonAlgorithm)?;
    let Authenticated { supi, kseaf, ngksi } = authenticated;
    let kamf = nas::aka::kamf(kseaf, *supi, ABBA);
    let security = SecurityContext::new(Side::Network, &kamf, *ngksi, integrity, ciphering)
        .map_err(|_| SecurityModeError::NoCommonAlgorithm)?;
    let old = ue.ctx.security.replace(security);
    match command(ue, *ngksi, integrity, ciphering, capability, retransmit_initial).await {
        Ok(complete) => {
            if let Some(MobileIdentity::Pei(pei)) = complete.imeisv {
                ue.ctx.pei = Some(pei);
            }
            // KgNB is derived with the NAS COUNT of this message (TS 33.501 §6.8.1.1.2.2).
            if let Some(connection) = &mut ue.connection {
                connection.kgnb_count = connection.last_count;
            }
            Ok(complete.nas_message_container)
        }
        Err(error) => {
            // Both sides continue with the previous context (TS 24.501 §5.4.2.5, §5.4.2.7).
            ue.ctx.security = old;
            Err(error)
        }
    }
}

/// SECURITY MODE COMMAND under T3560.
async fn command(
    ue: &mut Ue,
    ngksi: nas::KeySetId,
    integrity: IntegrityAlgorithm,
    ciphering: CipheringAlgorithm,
    capability: UeSecurityCapability,
    retransmit_initial: bool,
) -> Result<gmm::SecurityModeComplete, SecurityModeError> {
    let mut command = gmm::SecurityModeCommand::new(integrity, ciphering, ngksi, capability);
    command.imeisv_requested = true;
    command.retransmit_initial = retransmit_initial;
    let timer = Timer::ms("T3560", ue.amf.config.timers.t3560_ms);
    let answer = ue
        .exchange(timer, &Message::SecurityModeCommand(command), |arrival| match arrival {
            Arrival::Nas(Message::SecurityModeComplete(complete)) => ControlFlow::Break(Ok(complete)),
            Arrival::Nas(Message::SecurityModeReject(reject)) => ControlFlow::Break(Err(reject.cause)),
            other => ControlFlow::Continue(other),
        })
        .await?;
    answer.map_err(SecurityModeError::Refused)
}
