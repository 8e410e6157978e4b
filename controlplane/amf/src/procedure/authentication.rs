//! Primary authentication by 5G-AKA (TS 33.501 §6.1.3.2, TS 24.501 §5.4.1.3).
//!
//! Flow: AUSF gives a challenge (RAND, AUTN, HXRES*) → AUTHENTICATION REQUEST → RES* → compared here with HXRES*
//! (the serving network's check) → AUSF compares with XRES* (the home network's) and hands over KSEAF and SUPI.
//! The UE may refuse the challenge: MAC failure (it is asked for its SUCI and challenged once more,
//! because a wrong identity is the likely reason), synch failure (the home network resynchronises with
//! AUTS, once), ngKSI in use (another one is chosen).

use std::ops::ControlFlow;

pub(crate) use nas::aka::ABBA;
use nas::{GmmCause, IdentityType, KeySetId, Message, MobileIdentity, gmm};
use types::{Key, Supi};

use super::identification::identification;
use crate::admission::{Class, Place};
use crate::event::Arrival;
use crate::peers::{Challenge, PeerError, Resynchronization};
use crate::ue::{NoAnswer, Timer, Ue};

/// The proven identity of a UE.
#[derive(Debug)]
pub(crate) struct Authenticated {
    pub supi: Supi,
    pub kseaf: Key<32>,
    pub ngksi: KeySetId,
}

/// Why authentication failed.
#[derive(Debug)]
pub(crate) enum AuthenticationError {
    /// Refused for good: wrong RES* or MAC failure twice. AUTHENTICATION REJECT has been, or must be,
    /// sent.
    Rejected,
    /// An NF refused or did not answer: the 5GMM cause for the UE.
    Peer(GmmCause),
    /// The UE gave no usable identity.
    NoIdentity,
    /// The UE does not answer, or another procedure took precedence.
    NoAnswer(NoAnswer),
}

impl From<NoAnswer> for AuthenticationError {
    fn from(no_answer: NoAnswer) -> AuthenticationError {
        AuthenticationError::NoAnswer(no_answer)
    }
}

impl From<PeerError> for AuthenticationError {
    fn from(error: PeerError) -> AuthenticationError {
        AuthenticationError::Peer(error.gmm_cause())
    }
}

/// The UE's answer to a challenge.
enum Answer {
    Response(Option<Key<16>>),
    Failure(gmm::AuthenticationFailure),
}

/// Authenticates the UE known as `identity`: a SUCI or a SUPI in the text form of TS 29.571.
pub(crate) async fn authentication(
    ue: &mut Ue,
    identity: String,
) -> Result<Authenticated, AuthenticationError> {
    let mut identity = identity;
    let mut ngksi = ue.ctx.last_ngksi.next_native();
    let mut resynchronization: Option<Resynchronization> = None;
    let (mut resynchronized, mut identified) = (false, false);
    let network = ue.amf.config.plmn.serving_network_name();
    let mut challenge: Option<Challenge> = None;
    let mut class = if identity.starts_with("suci-") { Class::Unknown } else { Class::Claimed };
    loop {
        let current = match challenge.take() {
            Some(challenge) => challenge,
            None => {
                let amf = ue.amf.clone();
                let _place = place(ue, class, &identity).await?;
                class = Class::Begun;
                amf.peers.authenticate(&identity, &network, resynchronization.take()).await?
            }
        };
        match challenge_ue(ue, &current, ngksi).await? {
            Answer::Response(Some(res_star)) => {
                let _place = place(ue, class, &identity).await?;
                return confirm(ue, current, ngksi, res_star).await;
            }
            Answer::Response(None) => return Err(AuthenticationError::Rejected),
            Answer::Failure(failure) => match (failure.cause, failure.auts) {
                (GmmCause::SynchFailure, Some(auts)) if !resynchronized => {
                    resynchronized = true;
                    resynchronization = Some(Resynchronization { rand: current.rand, auts: Key::new(auts) });
                }
                (GmmCause::NgKsiAlreadyInUse, _) if !identified => {
                    // Counts as the one retry, so that a UE that finds every identifier in use is not
                    // asked for ever.
                    identified = true;
                    ngksi = ngksi.next_native();
                    challenge = Some(current);
                }
                (GmmCause::MacFailure, _) if !identified => {
                    // The identity may have led to the key of another subscriber (TS 24.501 §5.4.1.3.7
                    // c).
                    identified = true;
                    match identification(ue, IdentityType::Suci).await? {
                        MobileIdentity::Suci(suci) => identity = suci.to_string(),
                        _ => return Err(AuthenticationError::NoIdentity),
                    }
                }
                _ => return Err(AuthenticationError::Rejected),
            },
        }
    }
}

/// Waits for the UE's turn to call the AUSF. If the turn does not come in time, the network is
/// congested.
async fn place(ue: &mut Ue, class: Class, identity: &str) -> Result<Place, AuthenticationError> {
    let place =
        ue.place(|admission| &admission.calls, class, identity).await.map_err(NoAnswer::Interrupted)?;
    place.ok_or(AuthenticationError::Peer(GmmCause::Congestion))
}

/// AUTHENTICATION REQUEST under T3560.
async fn challenge_ue(
    ue: &mut Ue,
    challenge: &Challenge,
    ngksi: KeySetId,
) -> Result<Answer, AuthenticationError> {
    let timer = Timer::ms("T3560", ue.amf.config.timers.t3560_ms);
    let request = Message::AuthenticationRequest(gmm::AuthenticationRequest {
        ngksi,
        abba: ABBA.to_vec(),
        rand: Some(*challenge.rand.expose()),
        autn: Some(*challenge.autn.expose()),
        eap: None,
    });
    let answer = ue
        .exchange(timer, &request, |arrival| match arrival {
            Arrival::Nas(Message::AuthenticationResponse(response)) => {
                ControlFlow::Break(Answer::Response(response.res_star))
            }
            Arrival::Nas(Message::AuthenticationFailure(failure)) => {
                ControlFlow::Break(Answer::Failure(failure))
            }
            other => ControlFlow::Continue(other),
        })
        .await?;
    Ok(answer)
}

/// Checks RES* against HXRES*, and lets the AUSF check it against XRES*.
async fn confirm(
    ue: &mut Ue,
    challenge: Challenge,
    ngksi: KeySetId,
    res_star: Key<16>,
) -> Result<Authenticated, AuthenticationError> {
    let ours = nas::aka::accepts_res_star(&challenge.rand, &challenge.hxres_star, &res_star);
    let amf = ue.amf.clone();
    // The home network is told of a failure, too (TS 33.501 §6.1.3.2.2 step 12).
    let confirmed = amf.peers.confirm(&challenge.confirmation, ours.then_some(res_star)).await?;
    ue.ctx.last_ngksi = ngksi;
    match confirmed {
        Some((supi, kseaf)) if ours => Ok(Authenticated { supi, kseaf, ngksi }),
        _ => Err(AuthenticationError::Rejected),
    }
}
