//! Calls to AMF, UDM and PCF, and the handling of their answers.

use bytes::Bytes;
use nas::GsmCause;
use net::time;
use sbi::model::amf::*;
use sbi::model::common::{DateTime, SubscribedDefaultQos};
use sbi::model::pcf::{SmPolicyContextData, SmPolicyDecision, SmPolicyDeleteData, SmPolicyUpdateContextData};
use sbi::model::smf::{Cause, N2SmInfoType, ResourceStatus, SmContextStatusNotification, StatusInfo};
use sbi::model::udm::{DnnConfiguration, SdmSubscription, SmfRegistration};
use sbi::op::amf::{N1N2MessageTransfer, N1N2MessageTransferRequest, N1N2TransferFailureNotify};
use sbi::op::pcf::{
    CreateSmPolicy, CreateSmPolicyRequest, DeleteSmPolicy, DeleteSmPolicyRequest, GetSmPolicy,
    GetSmPolicyRequest, NPCF_SM, UpdateSmPolicy, UpdateSmPolicyRequest, sm_notification_uri,
};
use sbi::op::smf::SmContextStatusNotify;
use sbi::op::udm::*;
use sbi::{CallError, Created, Initiated, ResourceUri, Target, callback_uri};
use telemetry::counters::{Counter, Family};
use types::{Dnn, Plmn, SNssai, Supi};

use crate::context::{Session, SessionQos, SessionState, Smf};

static POLICY_WITHOUT_PCF: Counter = Counter::new("smf_policy_without_pcf");
static TRANSFERS: Family = Family::new("smf_n1n2_transfer", "outcome");
static NOTIFY_FAILED: Counter = Counter::new("smf_status_notify_failed");

/// What the AMF is asked to forward to the UE and its gNB.
#[derive(Debug, Default)]
pub(crate) struct Transfer {
    /// 5GSM message.
    pub n1: Option<Bytes>,
    /// N2 information.
    pub n2: Option<(N2SmInfoType, Bytes)>,
    /// The AMF does not page an idle UE for this.
    pub skip_if_idle: bool,
    /// The SMF wants a notification if paging fails.
    pub failure_notification: bool,
}

impl Smf {
    /// Namf_Communication_N1N2MessageTransfer to the AMF that serves the session.
    pub async fn transfer(
        &self,
        session: &Session,
        amf: &sbi::ApiRoot,
        what: Transfer,
    ) -> Result<N1N2MessageTransferCause, CallError<N1N2MessageTransferError>> {
        let uri = || callback_uri::<N1N2TransferFailureNotify>(self.api_root.as_str(), &session.reference());
        let n2_info = |(kind, data): (N2SmInfoType, Bytes)| N2InfoContainer {
            n2_information_class: N2InformationClass::Sm,
            sm_info: Some(N2SmInformation {
                pdu_session_id: session.id,
                n2_info_content: Some(N2InfoContent {
                    ngap_message_type: None,
                    ngap_ie_type: Some(kind),
                    ngap_data: data.into(),
                }),
                s_nssai: Some(session.s_nssai),
                subject_to_ho: None,
            }),
        };
        let body = N1N2MessageTransferReqData {
            n1_message_container: what.n1.map(|n1| N1MessageContainer {
                n1_message_class: N1MessageClass::Sm,
                n1_message_content: n1.into(),
                nf_id: Some(self.id),
            }),
            n2_info_container: what.n2.map(n2_info),
            skip_ind: what.skip_if_idle.then_some(true),
            pdu_session_id: Some(session.id),
            n1n2_failure_txf_notif_uri: what.failure_notification.then(uri),
            ..Default::default()
        };
        let request = N1N2MessageTransferRequest { ue_context_id: session.supi.to_string(), body };
        let result = self.client.call::<N1N2MessageTransfer>(Target::from(amf), request).await;
        let result = result.map(|answer| match answer {
            Initiated::Done(body) | Initiated::Pending { body, .. } => body.cause,
        });
        match &result {
            Ok(cause) => TRANSFERS.inc(cause.as_str()),
            Err(error) => {
                TRANSFERS.inc("failed");
                tracing::debug!(supi = %session.supi, %error, "transfer to the AMF");
            }
        }
        result
    }

    /// Nsmf_PDUSession_SMContextStatusNotify: the session was released.
    pub async fn notify_released(&self, status_uri: &str, cause: Option<Cause>) {
        let status_info = StatusInfo { resource_status: ResourceStatus::Released, cause, an_type: None };
        let body = SmContextStatusNotification { status_info };
        if let Err(error) = self.client.notify::<SmContextStatusNotify>(status_uri, body).await {
            NOTIFY_FAILED.inc();
            tracing::warn!(%error, "the AMF could not be notified of a session's end");
        }
    }

    /// The subscription for a DNN on a slice, or the cause of the reject if there is none.
    pub async fn subscription(
        &self,
        supi: Supi,
        plmn: Plmn,
        s_nssai: SNssai,
        dnn: &Dnn,
    ) -> Result<DnnConfiguration, GsmCause> {
        let request = GetSmDataRequest {
            supi,
            single_nssai: Some(s_nssai),
            dnn: Some(dnn.clone()),
            plmn_id: Some(plmn),
            body: (),
        };
        let data = match self.client.call::<GetSmData>(Target::Discover, request).await {
            Ok(data) => data,
            Err(error @ CallError::Problem { .. }) => {
                tracing::debug!(%supi, %error, "no session subscription");
                return Err(match (error.status(), error.is("USER_NOT_FOUND")) {
                    (Some(404), true) => GsmCause::UserAuthenticationFailed,
                    (Some(404), false) => GsmCause::MissingOrUnknownDnnInSlice,
                    (Some(403), _) => GsmCause::ServiceOptionNotSubscribed,
                    _ => GsmCause::NetworkFailure,
                });
            }
            Err(error) => {
                tracing::warn!(%supi, %error, "UDM");
                return Err(GsmCause::NetworkFailure);
            }
        };
        let of_slice = data.0.into_iter().find(|entry| entry.single_nssai == s_nssai);
        let mut networks = of_slice.ok_or(GsmCause::MissingOrUnknownDnnInSlice)?.dnn_configurations;
        // `*` means any DNN (TS 29.503).
        let wildcard = || Dnn::new("*").ok();
        let found = networks.remove(dnn).or_else(|| networks.remove(&wildcard()?));
        found.ok_or(GsmCause::MissingOrUnknownDnnInSlice)
    }

    /// Registers this SMF at the UDM as serving the session.
    pub async fn register(&self, session: &Session, plmn: Plmn) -> bool {
        let body = SmfRegistration {
            smf_instance_id: self.id,
            pdu_session_id: session.id,
            single_nssai: session.s_nssai,
            dnn: Some(session.dnn.clone()),
            plmn_id: plmn,
            emergency_services: None,
            registration_time: Some(DateTime::from(time::wall_clock())),
            supported_features: None,
        };
        let request = RegisterSmfRequest { ue_id: session.supi, pdu_session_id: session.id, body };
        // The session works without this; only the UDM does not know its SMF. The client counts the
        // failure.
        self.client
            .call::<RegisterSmf>(Target::Discover, request)
            .await
            .inspect_err(|error| tracing::warn!(supi = %session.supi, %error, "not registered in UDM"))
            .is_ok()
    }

    /// Nudm_SDM_Subscribe: the UDM tells of changes of the UE's session subscription. The UDM drops the subscription when a
    /// notification is answered 404.
    pub async fn subscribe_to_changes(&self, supi: Supi, plmn: Plmn) -> bool {
        let body = SdmSubscription {
            nf_instance_id: self.id,
            callback_reference: callback_uri::<SdmNotify>(self.api_root.as_str(), &supi.to_string()),
            monitored_resource_uris: vec![format!("{supi}/sm-data")],
            implicit_unsubscribe: Some(true),
            expires: None,
            single_nssai: None,
            dnn: None,
            plmn_id: Some(plmn),
            subscription_id: None,
            supported_features: None,
        };
        let request = SdmSubscribeRequest { ue_id: supi, body };
        // Sessions work without; a change then holds for the next session. Counted by the client.
        self.client
            .call::<SdmSubscribe>(Target::Discover, request)
            .await
            .inspect_err(|error| tracing::warn!(%supi, %error, "not subscribed to changes at the UDM"))
            .is_ok()
    }

    /// Deregisters this SMF at the UDM.
    pub async fn deregister(&self, session: &Session) {
        let request = DeregisterSmfRequest { ue_id: session.supi, pdu_session_id: session.id, body: () };
        if let Err(error) = self.client.call::<DeregisterSmf>(Target::Discover, request).await {
            tracing::debug!(supi = %session.supi, %error, "not deregistered from UDM");
        }
    }

    /// Gets the policy of the session. Without a PCF the subscription's values apply; a refusal by the
    /// PCF is followed.
    pub async fn create_policy(
        &self,
        pcf: Target,
        session: &Session,
        state: &SessionState,
    ) -> Result<Option<(ResourceUri, SmPolicyDecision)>, GsmCause> {
        let body = SmPolicyContextData {
            supi: session.supi,
            gpsi: None,
            pdu_session_id: session.id,
            pdu_session_type: state.session_type,
            dnn: session.dnn.clone(),
            notification_uri: sm_notification_uri(self.api_root.as_str(), &session.reference()),
            access_type: Some(sbi::model::common::AccessType::ThreeGpp),
            rat_type: Some(sbi::model::common::RatType::Nr),
            serving_network: Some(state.plmn),
            user_location_info: None,
            ue_time_zone: None,
            pei: None,
            ipv4_address: state.addresses.ipv4,
            ipv6_address_prefix: state.addresses.ipv6.map(|prefix| format!("{prefix}/64")),
            subs_sess_ambr: Some(state.subscribed.ambr),
            subs_def_qos: Some(subscribed_flow(state.subscribed)),
            slice_info: session.s_nssai,
            supp_feat: None,
        };
        match self.client.call::<CreateSmPolicy>(pcf, CreateSmPolicyRequest { body }).await {
            Ok(Created { location, body }) => match ResourceUri::parse(&location, &NPCF_SM) {
                Ok(resource) => Ok(Some((resource, body))),
                Err(error) => {
                    tracing::warn!(%error, "PCF");
                    Ok(None)
                }
            },
            Err(error) if error.status().is_some_and(|status| status < 500) => {
                tracing::info!(supi = %session.supi, %error, "PCF refuses the session");
                Err(GsmCause::RequestRejected)
            }
            Err(error) => {
                POLICY_WITHOUT_PCF.inc();
                tracing::warn!(%error, "no PCF: the session uses the subscribed values");
                Ok(None)
            }
        }
    }

    /// Npcf_SMPolicyControl_Update: the subscription has changed. What the PCF decides about it.
    pub async fn update_policy(
        &self,
        policy: &ResourceUri,
        subscribed: SessionQos,
    ) -> Result<SmPolicyDecision, CallError> {
        use sbi::model::pcf::PolicyControlRequestTrigger::{DefaultQosChange, SessionAmbrChange};
        let body = SmPolicyUpdateContextData {
            rep_policy_ctrl_req_triggers: vec![SessionAmbrChange, DefaultQosChange],
            subs_sess_ambr: Some(subscribed.ambr),
            subs_def_qos: Some(subscribed_flow(subscribed)),
            ..Default::default()
        };
        let request = UpdateSmPolicyRequest { sm_policy_id: policy.id.clone(), body };
        self.client.call::<UpdateSmPolicy>(Target::from(policy), request).await
    }

    /// Whether the PCF has the policy association.
    pub async fn policy_is_lost(&self, policy: &ResourceUri) -> bool {
        let request = GetSmPolicyRequest { sm_policy_id: policy.id.clone(), body: () };
        let answer = self.client.call::<GetSmPolicy>(Target::from(policy), request).await;
        answer.is_err_and(|error| error.status() == Some(404))
    }

    /// Ends the policy association.
    pub async fn delete_policy(&self, policy: ResourceUri) {
        let body = SmPolicyDeleteData::default();
        let request = DeleteSmPolicyRequest { sm_policy_id: policy.id.clone(), body };
        if let Err(error) = self.client.call::<DeleteSmPolicy>(Target::from(&policy), request).await {
            tracing::debug!(%error, "policy association not deleted");
        }
    }
}

/// What the PCF authorised; what it says nothing about is as subscribed.
pub(crate) fn authorised(decision: &SmPolicyDecision, subscribed: SessionQos) -> SessionQos {
    let Some(rule) = decision.sess_rules.values().next() else { return subscribed };
    let flow = rule.auth_def_qos.as_ref();
    SessionQos {
        ambr: rule.auth_sess_ambr.unwrap_or(subscribed.ambr),
        five_qi: flow.map_or(subscribed.five_qi, |flow| flow.five_qi),
        arp: flow.map_or(subscribed.arp, |flow| flow.arp),
    }
}

fn subscribed_flow(subscribed: SessionQos) -> SubscribedDefaultQos {
    SubscribedDefaultQos { five_qi: subscribed.five_qi, arp: subscribed.arp, priority_level: None }
}
