//! Nudr_DataRepository over the store: each function answers one operation.
//!
//! Provisioned data is derived from the operator's [`store::Subscriber`] on every read. Those who read
//! it before are notified of changes made with `godwit subscriber`. Context data (the serving AMF and
//! SMFs, subscriptions to notifications) are JSON documents in the store, under the SUPI.

use std::{collections::BTreeMap, sync::Arc};

use sbi::{
    model::{common::*, udm::*, udr::*},
    op::udr::*,
    operation::{Created, Stored},
    problem::ProblemDetails,
};
use serde::{Serialize, de::DeserializeOwned};
use store::{OperatorCode, SliceSubscription, Store, StoreError, Subscriber};
use types::{Key, SNssai, SscMode, Supi};

/// Kinds of context document.
const AUTH_STATUS: &str = "authentication-status";
const AMF_CONTEXT: &str = store::SERVING_AMF;
const SMF_CONTEXT: &str = "smf-registrations";
const SDM_SUBSCRIPTION: &str = "sdm-subscriptions";
/// Subscriptions of UDMs, by their notification URI.
pub(crate) const SUBS_TO_NOTIFY: &str = "subs-to-notify";

/// JSON pointer to the sequence number in an authentication subscription: the only member that the UDM
/// may change.
const SQN_POINTER: &str = "/sequenceNumber";

/// Longest notification URI, octets.
const MAX_CALLBACK: usize = 512;
/// Most UDMs that may subscribe to changes: more than any network has.
const MAX_SUBS_TO_NOTIFY: usize = 64;

/// The operations of the repository. One per process; several processes may share the store.
pub struct Repository {
    store: Arc<dyn Store>,
}

/// Logs a failure of the store; the peer gets `SYSTEM_FAILURE`.
fn store_failed(error: StoreError) -> ProblemDetails {
    tracing::error!(%error, "the store failed");
    ProblemDetails::system_failure()
}

fn data_not_found() -> ProblemDetails {
    ProblemDetails::new(404, "DATA_NOT_FOUND")
}

/// The name TS 29.503 gives a slice as a map key: `sst` or `sst-sd`.
fn slice_key(snssai: SNssai) -> String {
    snssai.to_string()
}

impl Repository {
    /// A repository over `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    async fn subscriber(&self, supi: Supi) -> Result<Subscriber, ProblemDetails> {
        self.store.subscriber(supi).await.map_err(store_failed)?.ok_or_else(ProblemDetails::user_not_found)
    }

    /// Credentials, with the last used sequence number.
    pub async fn query_auth_subscription(
        self: Arc<Self>,
        request: QueryAuthSubscriptionRequest,
    ) -> Result<AuthenticationSubscription, ProblemDetails> {
        let authentication = self.subscriber(request.ue_id).await?.authentication;
        let (opc, op) = match authentication.operator_code {
            OperatorCode::Opc(key) => (Some(key), None),
            OperatorCode::Op(key) => (None, Some(key)),
        };
        Ok(AuthenticationSubscription {
            authentication_method: AuthType::FiveGAka,
            enc_permanent_key: Some(authentication.k),
            protection_parameter_id: None,
            sequence_number: Some(sequence_number(authentication.sqn)),
            authentication_management_field: Some(authentication.amf),
            algorithm_id: Some("milenage".to_owned()),
            enc_opc_key: opc,
            enc_topc_key: op,
            supi: Some(request.ue_id),
        })
    }

    /// Advances the sequence number. A `test` step before the `replace` makes the change conditional:
    /// so two UDMs cannot use the same number, and the second one gets 409 and reads again.
    pub async fn modify_auth_subscription(
        self: Arc<Self>,
        request: ModifyAuthSubscriptionRequest,
    ) -> Result<(), ProblemDetails> {
        let number = |item: &PatchItem| -> Result<u64, ProblemDetails> {
            let incorrect = |reason: &str| ProblemDetails::mandatory_ie_incorrect(&item.path, reason);
            if item.path != SQN_POINTER {
                return Err(incorrect("only the sequence number may be changed"));
            }
            let value = item.value.clone().ok_or_else(|| incorrect("must have a value"))?;
            let number: SequenceNumber =
                serde_json::from_value(value).map_err(|e| incorrect(&e.to_string()))?;
            number.sqn.map(|sqn| sqn_value(&sqn)).ok_or_else(|| incorrect("must hold sqn"))
        };
        let done = match request.body.0.as_slice() {
            [test, replace] if test.op == PatchOperation::Test && replace.op == PatchOperation::Replace => {
                let (expected, new) = (number(test)?, number(replace)?);
                self.store.advance_sqn(request.ue_id, expected, new).await.map_err(store_failed)?
            }
            [replace] if replace.op == PatchOperation::Replace => {
                self.store.set_sqn(request.ue_id, number(replace)?).await.map_err(store_failed)?
            }
            _ => {
                let reason = "expected `replace`, or `test` and `replace`, of the sequence number";
                return Err(ProblemDetails::mandatory_ie_incorrect("patchItem", reason));
            }
        };
        if done {
            return Ok(());
        }
        self.subscriber(request.ue_id).await?;
        Err(ProblemDetails::new(409, "MODIFICATION_NOT_ALLOWED")
            .detail("the sequence number has changed since"))
    }

    /// Stores the result of the last authentication.
    pub async fn create_auth_status(
        self: Arc<Self>,
        request: CreateAuthStatusRequest,
    ) -> Result<(), ProblemDetails> {
        self.write(AUTH_STATUS, request.ue_id, request.ue_id.to_string(), &request.body).await.map(drop)
    }

    /// Access and mobility subscription.
    pub async fn query_am_data(
        self: Arc<Self>,
        request: QueryAmDataRequest,
    ) -> Result<AccessAndMobilitySubscriptionData, ProblemDetails> {
        let subscriber = self.subscriber(request.ue_id).await?;
        let of_default = |default: bool| {
            let slices = subscriber.slices.iter().filter(move |s| s.default == default);
            slices.map(|s| s.snssai).collect()
        };
        Ok(AccessAndMobilitySubscriptionData {
            gpsis: subscriber.msisdn.iter().map(|n| format!("msisdn-{n}")).collect(),
            subscribed_ue_ambr: Some(subscriber.ue_ambr),
            nssai: Some(Nssai {
                supported_features: None,
                default_single_nssais: of_default(true),
                single_nssais: of_default(false),
            }),
            ..AccessAndMobilitySubscriptionData::default()
        })
    }

    /// DNNs by slice; the first of each slice is its default.
    pub async fn query_smf_select_data(
        self: Arc<Self>,
        request: QuerySmfSelectDataRequest,
    ) -> Result<SmfSelectionSubscriptionData, ProblemDetails> {
        let subscriber = self.subscriber(request.ue_id).await?;
        let info = |slice: &SliceSubscription| {
            let dnn_infos = (0..).zip(&slice.dnns).map(|(i, subscribed)| DnnInfo {
                dnn: subscribed.dnn.clone(),
                default_dnn_indicator: Some(i == 0),
                lbo_roaming_allowed: None,
            });
            (slice_key(slice.snssai), SnssaiInfo { dnn_infos: dnn_infos.collect() })
        };
        Ok(SmfSelectionSubscriptionData {
            supported_features: None,
            subscribed_snssai_infos: subscriber.slices.iter().map(info).collect(),
        })
    }

    /// Session subscription data, limited to the requested slice and DNN.
    pub async fn query_sm_data(
        self: Arc<Self>,
        request: QuerySmDataRequest,
    ) -> Result<SmSubsData, ProblemDetails> {
        let subscriber = self.subscriber(request.ue_id).await?;
        let wanted = |slice: &&SliceSubscription| request.single_nssai.is_none_or(|n| n == slice.snssai);
        let entries = subscriber.slices.iter().filter(wanted).map(|slice| {
            let dnns = slice.dnns.iter().filter(|d| request.dnn.as_ref().is_none_or(|dnn| *dnn == d.dnn));
            SessionManagementSubscriptionData {
                single_nssai: slice.snssai,
                dnn_configurations: dnns.map(|d| (d.dnn.clone(), dnn_configuration(d))).collect(),
            }
        });
        let entries: Vec<_> = entries.filter(|entry| !entry.dnn_configurations.is_empty()).collect();
        if entries.is_empty() {
            return Err(data_not_found());
        }
        Ok(SmSubsData(entries))
    }

    /// Stores the serving AMF.
    pub async fn create_amf_context(
        self: Arc<Self>,
        request: CreateAmfContextRequest,
    ) -> Result<Stored<Amf3GppAccessRegistration>, ProblemDetails> {
        let path = format!("/subscription-data/{}/context-data/amf-3gpp-access", request.ue_id);
        let new = self.write(AMF_CONTEXT, request.ue_id, request.ue_id.to_string(), &request.body).await?;
        Ok(stored(new, path, request.body))
    }

    /// Changes the record of the serving AMF.
    pub async fn update_amf_context(
        self: Arc<Self>,
        request: UpdateAmfContextRequest,
    ) -> Result<(), ProblemDetails> {
        let key = request.ue_id.to_string();
        let registration: Amf3GppAccessRegistration = self.read(AMF_CONTEXT, &key).await?;
        let mut document =
            serde_json::to_value(&registration).map_err(|_| ProblemDetails::system_failure())?;
        let refused = |reason: String| ProblemDetails::new(403, "MODIFICATION_NOT_ALLOWED").detail(reason);
        request.body.apply(&mut document).map_err(refused)?;
        // The result must still be a registration, or later reads would fail.
        let changed: Amf3GppAccessRegistration =
            serde_json::from_value(document).map_err(|e| refused(e.to_string()))?;
        self.write(AMF_CONTEXT, request.ue_id, key, &changed).await.map(drop)
    }

    /// The serving AMF.
    pub async fn query_amf_context(
        self: Arc<Self>,
        request: QueryAmfContextRequest,
    ) -> Result<Amf3GppAccessRegistration, ProblemDetails> {
        self.read(AMF_CONTEXT, &request.ue_id.to_string()).await
    }

    /// Stores the SMF of a session.
    pub async fn create_smf_context(
        self: Arc<Self>,
        request: CreateSmfContextRequest,
    ) -> Result<Stored<SmfRegistration>, ProblemDetails> {
        if request.body.pdu_session_id != request.pdu_session_id {
            return Err(ProblemDetails::mandatory_ie_incorrect(
                "pduSessionId",
                "differs from the one in the path",
            ));
        }
        let key = session_key(request.ue_id, request.pdu_session_id);
        let path = format!(
            "/subscription-data/{}/context-data/smf-registrations/{}",
            request.ue_id, request.pdu_session_id
        );
        let new = self.write(SMF_CONTEXT, request.ue_id, key, &request.body).await?;
        Ok(stored(new, path, request.body))
    }

    /// Deletes the record of a session's SMF.
    pub async fn delete_smf_context(
        self: Arc<Self>,
        request: DeleteSmfContextRequest,
    ) -> Result<(), ProblemDetails> {
        let key = session_key(request.ue_id, request.pdu_session_id);
        let removed = self.store.remove_context(SMF_CONTEXT, &key).await.map_err(store_failed)?;
        removed.then_some(()).ok_or_else(data_not_found)
    }

    /// The SMF of a session.
    pub async fn query_smf_context(
        self: Arc<Self>,
        request: QuerySmfContextRequest,
    ) -> Result<SmfRegistration, ProblemDetails> {
        self.read(SMF_CONTEXT, &session_key(request.ue_id, request.pdu_session_id)).await
    }

    /// Stores a network function's subscription to changes of a subscriber.
    pub async fn put_sdm_subscription(
        self: Arc<Self>,
        request: PutSdmSubscriptionRequest,
    ) -> Result<Stored<SdmSubscription>, ProblemDetails> {
        let PutSdmSubscriptionRequest { ue_id, subs_id, body } = request;
        let path = format!("/subscription-data/{ue_id}/context-data/sdm-subscriptions/{subs_id}");
        let new = self.write(SDM_SUBSCRIPTION, ue_id, format!("{ue_id}/{subs_id}"), &body).await?;
        Ok(stored(new, path, body))
    }

    /// Deletes such a subscription.
    pub async fn delete_sdm_subscription(
        self: Arc<Self>,
        request: DeleteSdmSubscriptionRequest,
    ) -> Result<(), ProblemDetails> {
        let key = format!("{}/{}", request.ue_id, request.subs_id);
        let removed = self.store.remove_context(SDM_SUBSCRIPTION, &key).await.map_err(store_failed)?;
        removed.then_some(()).ok_or_else(data_not_found)
    }

    /// All subscriptions to changes of a subscriber.
    pub async fn query_sdm_subscriptions(
        self: Arc<Self>,
        request: QuerySdmSubscriptionsRequest,
    ) -> Result<SdmSubscriptions, ProblemDetails> {
        let prefix = format!("{}/", request.ue_id);
        let documents = self.store.contexts(SDM_SUBSCRIPTION, &prefix).await.map_err(store_failed)?;
        let read = |(key, document): (String, String)| {
            serde_json::from_str(&document).map_err(|error| {
                tracing::error!(%error, kind = SDM_SUBSCRIPTION, key, "a context document is unreadable");
                ProblemDetails::system_failure()
            })
        };
        documents.into_iter().map(read).collect::<Result<_, _>>().map(SdmSubscriptions)
    }

    /// Stores a UDM's subscription to changes. A second one with the same URI replaces the first.
    pub async fn subscribe_to_data(
        self: Arc<Self>,
        request: SubscribeToDataRequest,
    ) -> Result<Created<SubscriptionDataSubscriptions>, ProblemDetails> {
        let body = request.body;
        if !body.callback_reference.starts_with("http") || body.callback_reference.len() > MAX_CALLBACK {
            let reason = "must be a URI to notify";
            return Err(ProblemDetails::mandatory_ie_incorrect("callbackReference", reason));
        }
        let others = self.store.contexts(SUBS_TO_NOTIFY, "").await.map_err(store_failed)?;
        let known = others.iter().any(|(key, _)| *key == body.callback_reference);
        if !known && others.len() >= MAX_SUBS_TO_NOTIFY {
            return Err(ProblemDetails::new(503, "INSUFFICIENT_RESOURCES"));
        }
        let document = serde_json::to_string(&body).map_err(|_| ProblemDetails::system_failure())?;
        let key = body.callback_reference.clone();
        self.store.put_context(SUBS_TO_NOTIFY, key, document).await.map_err(store_failed)?;
        Ok(Created { location: "/subscription-data/subs-to-notify/1".to_owned(), body })
    }

    /// Session policy data: which slices and DNNs have a policy. The rates are in the session subscription.
    pub async fn query_sm_policy_data(
        self: Arc<Self>,
        request: QuerySmPolicyDataRequest,
    ) -> Result<SmPolicyData, ProblemDetails> {
        let subscriber = self.subscriber(request.ue_id).await?;
        let slices = subscriber.slices.iter().filter(|s| request.snssai.is_none_or(|n| n == s.snssai));
        let by_slice = slices.map(|slice| {
            let dnns = slice.dnns.iter().filter(|d| request.dnn.as_ref().is_none_or(|dnn| *dnn == d.dnn));
            let data = |dnn: &types::Dnn| SmPolicyDnnData {
                dnn: dnn.clone(),
                allowed_services: Vec::new(),
                subsc_cats: Vec::new(),
                gbr_ul: None,
                gbr_dl: None,
            };
            let by_dnn: BTreeMap<_, _> = dnns.map(|d| (d.dnn.clone(), data(&d.dnn))).collect();
            (slice_key(slice.snssai), SmPolicySnssaiData { snssai: slice.snssai, sm_policy_dnn_data: by_dnn })
        });
        Ok(SmPolicyData { sm_policy_snssai_data: by_slice.collect() })
    }

    /// Access and mobility policy data: no categories are stored, so the answer is the same for every
    /// subscriber.
    pub async fn query_am_policy_data(
        self: Arc<Self>,
        request: QueryAmPolicyDataRequest,
    ) -> Result<AmPolicyData, ProblemDetails> {
        self.subscriber(request.ue_id).await.map(|_| AmPolicyData::default())
    }

    /// Writes a context document of an existing subscriber. Returns `true` if the document is new.
    async fn write<T: Serialize>(
        &self,
        kind: &'static str,
        supi: Supi,
        key: String,
        value: &T,
    ) -> Result<bool, ProblemDetails> {
        self.subscriber(supi).await?;
        let document = serde_json::to_string(value).map_err(|_| ProblemDetails::system_failure())?;
        let new = self.store.context(kind, &key).await.map_err(store_failed)?.is_none();
        self.store.put_context(kind, key, document).await.map_err(store_failed)?;
        Ok(new)
    }

    async fn read<T: DeserializeOwned>(&self, kind: &'static str, key: &str) -> Result<T, ProblemDetails> {
        let document =
            self.store.context(kind, key).await.map_err(store_failed)?.ok_or_else(data_not_found)?;
        serde_json::from_str(&document).map_err(|error| {
            tracing::error!(%error, kind, key, "a context document is unreadable");
            ProblemDetails::system_failure()
        })
    }
}

fn session_key(supi: Supi, id: types::PduSessionId) -> String {
    format!("{supi}/{id}")
}

fn stored<T>(new: bool, location: String, body: T) -> Stored<T> {
    if new { Stored::Created(Created { location, body }) } else { Stored::Replaced(Some(body)) }
}

fn sequence_number(sqn: u64) -> SequenceNumber {
    let [_, _, octets @ ..] = sqn.to_be_bytes();
    SequenceNumber {
        sqn_scheme: Some(SqnScheme::NonTimeBased),
        sqn: Some(Key::new(octets)),
        last_indexes: BTreeMap::new(),
        ind_length: None,
    }
}

fn sqn_value(sqn: &Key<6>) -> u64 {
    sqn.expose().iter().fold(0, |value, octet| value << 8 | u64::from(*octet))
}

fn dnn_configuration(subscribed: &store::DnnSubscription) -> DnnConfiguration {
    DnnConfiguration {
        pdu_session_types: PduSessionTypes {
            default_session_type: subscribed.session_types.first().copied(),
            allowed_session_types: subscribed.session_types.clone(),
        },
        ssc_modes: SscModes { default_ssc_mode: SscMode::Mode1, allowed_ssc_modes: Vec::new() },
        five_g_qos_profile: Some(SubscribedDefaultQos {
            five_qi: subscribed.five_qi,
            arp: subscribed.arp,
            priority_level: None,
        }),
        session_ambr: Some(subscribed.ambr),
        static_ip_address: subscribed
            .static_ipv4
            .map(|address| IpAddress { ipv4_addr: Some(address), ..IpAddress::default() })
            .into_iter()
            .collect(),
    }
}

#[cfg(test)]
mod tests;
