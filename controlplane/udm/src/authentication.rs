//! Nudm_UEAuthentication (TS 29.503 §5.4): identifies the subscriber and makes a challenge that only
//! the subscriber's USIM can answer.

use std::sync::Arc;

use nas::{aka, suci};
use sbi::{
    CallError, Created, ProblemDetails, Target,
    model::{
        common::{AuthType, Patch, PatchItem, PatchOperation, ResynchronizationInfo},
        udm::*,
        udr::{AuthenticationSubscription, SequenceNumber},
    },
    op::{udm::*, udr},
};
use tokio::sync::oneshot;
use types::{Key, Supi};

use crate::sequence::VectorRequest;
use crate::{Udm, counters};

/// Attempts to advance a sequence number while another UDM advances it, too.
const SQN_ATTEMPTS: usize = 8;
/// JSON pointer to the sequence number in an authentication subscription.
const SQN_POINTER: &str = "/sequenceNumber";

impl Udm {
    /// Nudm_UEAuthentication_Get: de-conceals the SUCI, carries out a resynchronisation, and makes the
    /// vector. The sequence number is durable in the UDR before the vector is sent.
    pub(crate) async fn generate_auth_data(
        self: Arc<Self>,
        request: GenerateAuthDataRequest,
    ) -> Result<AuthenticationInfoResult, ProblemDetails> {
        let supi = self.identify(&request.supi_or_suci).await?;
        let resynchronization = request.body.resynchronization_info;
        let vector = self.vector(supi, request.body.serving_network_name, resynchronization).await?;
        Ok(AuthenticationInfoResult {
            auth_type: AuthType::FiveGAka,
            authentication_vector: Some(Av5GHeAka {
                av_type: AvType::FiveGHeAka,
                rand: vector.rand,
                xres_star: vector.xres_star,
                autn: vector.autn,
                kausf: vector.kausf,
            }),
            supi: Some(supi),
            supported_features: None,
        })
    }

    /// Nudm_UEAuthentication_ResultConfirmation.
    pub(crate) async fn confirm_auth(
        self: Arc<Self>,
        request: ConfirmAuthRequest,
    ) -> Result<Created<AuthEvent>, ProblemDetails> {
        let (ue_id, body) = (request.supi, request.body.clone());
        let stored = udr::CreateAuthStatusRequest { ue_id, body };
        self.client.call::<udr::CreateAuthStatus>(Target::Discover, stored).await?;
        // Only one event per subscriber is kept, so its name is fixed.
        Ok(Created { location: format!("/{}/auth-events/1", request.supi), body: request.body })
    }

    /// The SUPI of a path parameter that contains a SUPI or a SUCI (TS 29.571 `SupiOrSuci`).
    async fn identify(&self, supi_or_suci: &str) -> Result<Supi, ProblemDetails> {
        if !supi_or_suci.starts_with("suci-") {
            return supi_or_suci.parse().map_err(|e: types::Invalid| {
                ProblemDetails::mandatory_ie_incorrect("supiOrSuci", e.to_string())
            });
        }
        let suci: nas::Suci = supi_or_suci.parse().map_err(|e: types::Invalid| {
            ProblemDetails::mandatory_ie_incorrect("supiOrSuci", e.to_string())
        })?;
        let result = if suci.scheme == nas::ProtectionScheme::Null {
            suci::deconceal(&suci, None)
        } else {
            // Curve arithmetic takes 50 to 300 µs. It runs on another thread, so that other UEs'
            // signalling does not wait.
            let key = self.suci_keys.get(&suci.key_id).cloned();
            let deconcealed = tokio::task::spawn_blocking(move || suci::deconceal(&suci, key.as_deref()));
            deconcealed.await.map_err(|_| ProblemDetails::system_failure())?
        };
        result.map_err(|error| {
            counters::SUCI_REJECTED.inc();
            ProblemDetails::forbidden(match error {
                suci::SuciError::UnsupportedScheme => "UNSUPPORTED_PROTECTION_SCHEME",
                suci::SuciError::InvalidKeyIdentifier => "INVALID_HN_PUBLIC_KEY_IDENTIFIER",
                suci::SuciError::InvalidSchemeOutput => "INVALID_SCHEME_OUTPUT",
            })
        })
    }

    /// A vector with its own sequence number.
    async fn vector(
        self: &Arc<Self>,
        supi: Supi,
        serving_network_name: String,
        resynchronization: Option<ResynchronizationInfo>,
    ) -> Result<aka::Vector, ProblemDetails> {
        let (reply, answer) = oneshot::channel();
        let request = VectorRequest { serving_network_name, resynchronization, reply };
        if self.vector_requests.push(supi, request) {
            // A task of its own: the caller may stop waiting while others still wait.
            tokio::spawn(Arc::clone(self).serve_vectors(supi));
        }
        answer.await.unwrap_or_else(|_| Err(ProblemDetails::system_failure()))
    }

    /// Answers the requests for one subscriber's vectors in batches, until none is left.
    async fn serve_vectors(self: Arc<Self>, supi: Supi) {
        while let Some(batch) = self.vector_requests.take(supi) {
            self.serve_batch(supi, batch).await;
        }
    }

    /// Reads the credentials, advances the sequence number by one for each request, and makes the
    /// vectors.
    async fn serve_batch(&self, supi: Supi, mut batch: Vec<VectorRequest>) {
        match self.advance(supi, &mut batch).await {
            Ok((milenage, amf, highest)) => {
                let mut sqn = highest;
                for request in batch {
                    sqn = aka::next_sqn(sqn);
                    let vector = make_vector(&milenage, sqn, &amf, &request.serving_network_name);
                    // If the requester has stopped waiting, its number is not used. USIMs accept such
                    // gaps.
                    _ = request.reply.send(vector);
                }
            }
            Err(problem) => {
                for request in batch {
                    _ = request.reply.send(Err(problem.clone()));
                }
            }
        }
    }

    /// Advances the number in the UDR by one for each request. Requests with a wrong AUTS are answered
    /// and removed from the batch. Returns the key material and the number before the first one of the
    /// batch.
    async fn advance(
        &self,
        supi: Supi,
        batch: &mut Vec<VectorRequest>,
    ) -> Result<(aka::Milenage, Key<2>, u64), ProblemDetails> {
        for _ in 0..SQN_ATTEMPTS {
            let query = udr::QueryAuthSubscriptionRequest { ue_id: supi, body: () };
            let subscription =
                self.client.call::<udr::QueryAuthSubscription>(Target::Discover, query).await?;
            let (milenage, amf, last) = credentials(&subscription)?;
            // The USIM's number is always taken: ours was outside the USIM's range, below or above (TS
            // 33.102 §6.3.5).
            let highest = resynchronised(&milenage, batch).unwrap_or(last);
            if batch.is_empty() {
                return Ok((milenage, amf, highest));
            }
            let sqn = batch.iter().fold(highest, |sqn, _| aka::next_sqn(sqn));
            let patch = Patch(vec![
                patch_item(PatchOperation::Test, subscription.sequence_number.as_ref(), last),
                patch_item(PatchOperation::Replace, subscription.sequence_number.as_ref(), sqn),
            ]);
            let advance = udr::ModifyAuthSubscriptionRequest { ue_id: supi, body: patch };
            match self.client.call::<udr::ModifyAuthSubscription>(Target::Discover, advance).await {
                Ok(()) => return Ok((milenage, amf, highest)),
                // Another UDM has advanced the number meanwhile: read it again.
                Err(CallError::Problem { error, .. }) if error.status == 409 => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(ProblemDetails::nf_congestion().detail("the sequence number keeps changing"))
    }
}

/// The highest number that USIMs reported in the batch. Requests with a wrong AUTS are refused and
/// removed.
fn resynchronised(milenage: &aka::Milenage, batch: &mut Vec<VectorRequest>) -> Option<u64> {
    let mut highest = None;
    for request in std::mem::take(batch) {
        if let Some(info) = &request.resynchronization {
            let Ok(sqn_ms) = milenage.resynchronise(&info.rand, &info.auts) else {
                counters::AUTS_REJECTED.inc();
                let problem = ProblemDetails::forbidden("AUTHENTICATION_REJECTED");
                _ = request.reply.send(Err(problem.detail("AUTS was not made with this key")));
                continue;
            };
            counters::RESYNCHRONISATIONS.inc();
            highest = highest.max(Some(sqn_ms));
        }
        batch.push(request);
    }
    highest
}

fn make_vector(
    milenage: &aka::Milenage,
    sqn: u64,
    amf: &Key<2>,
    serving_network_name: &str,
) -> Result<aka::Vector, ProblemDetails> {
    let mut rand = [0; 16];
    getrandom::fill(&mut rand).map_err(|_| ProblemDetails::system_failure())?;
    milenage
        .vector(&Key::new(rand), sqn, amf, serving_network_name)
        .map_err(|error| ProblemDetails::mandatory_ie_incorrect("servingNetworkName", error.to_string()))
}

/// Key material and last used sequence number of a subscription.
fn credentials(
    subscription: &AuthenticationSubscription,
) -> Result<(aka::Milenage, Key<2>, u64), ProblemDetails> {
    let unusable = |what: &str| {
        tracing::error!(what, "an authentication subscription cannot be used");
        ProblemDetails::new(501, "UNSUPPORTED_PROTECTION_SCHEME").detail(what)
    };
    if subscription.authentication_method != AuthType::FiveGAka {
        return Err(unusable("only 5G_AKA is supported"));
    }
    let k = subscription.enc_permanent_key.as_ref().ok_or_else(|| unusable("no permanent key"))?;
    let milenage = match (&subscription.enc_opc_key, &subscription.enc_topc_key) {
        (Some(opc), _) => aka::Milenage::new(k, opc),
        (None, Some(op)) => aka::Milenage::from_op(k, op),
        (None, None) => return Err(unusable("neither OPc nor OP")),
    };
    let amf = subscription.authentication_management_field.clone().unwrap_or(Key::new([0x80, 0]));
    let sqn = subscription.sequence_number.as_ref().and_then(|number| number.sqn.as_ref());
    let sqn = sqn.map_or(0, |sqn| sqn.expose().iter().fold(0, |value, octet| value << 8 | u64::from(*octet)));
    Ok((milenage, amf, sqn))
}

/// A patch of the sequence number; the other members of its object stay as they are.
fn patch_item(op: PatchOperation, template: Option<&SequenceNumber>, sqn: u64) -> PatchItem {
    let [_, _, octets @ ..] = sqn.to_be_bytes();
    let number = SequenceNumber {
        sqn: Some(Key::new(octets)),
        ..template.cloned().unwrap_or(SequenceNumber {
            sqn_scheme: None,
            sqn: None,
            last_indexes: std::collections::BTreeMap::new(),
            ind_length: None,
        })
    };
    let value = serde_json::to_value(number).ok();
    PatchItem { op, path: SQN_POINTER.to_owned(), from: None, value }
}
