//! Operations of UDR (TS 29.504, resources of TS 29.505 and TS 29.519).

use types::{Dnn, PduSessionId, SNssai, Supi};

use super::{callback, operation, service};
use crate::{
    model::{common::*, udm::*, udr::*},
    operation::{Created, Stored},
};

service! {
    /// Nudr_DataRepository.
    NUDR_DR = "nudr-dr" "v2" "2.2.0" Udr => [Udm, Pcf, Nef];
    /// Callbacks of UDR, served by UDM.
    UDR_CALLBACK = "nudr-callback" "v1" "1.0.0" => [Udr];
}

/// Scope for what a subscriber may and who serves it (TS 29.504, OpenAPI file).
pub const SUBSCRIPTION_DATA: &str = "nudr-dr:subscription-data";
/// Scope for policies of a subscriber.
pub const POLICY_DATA: &str = "nudr-dr:policy-data";
/// Scope to read long-term keys and sequence numbers (TS 29.505, OpenAPI file).
pub const READ_CREDENTIALS: &str = "nudr-dr:subscription-data:authentication-subscription:read";
/// Scope to change sequence numbers.
pub const MODIFY_CREDENTIALS: &str = "nudr-dr:subscription-data:authentication-subscription:modify";

operation! {
    /// Credentials.
    QueryAuthSubscription(QueryAuthSubscriptionRequest) "Nudr_DR_Query(authentication-subscription)":
    NUDR_DR Get "/subscription-data/{ueId}/authentication-data/authentication-subscription"
    { ue_id: Supi = "ueId" } body () => AuthenticationSubscription
    where Scope(READ_CREDENTIALS);

    /// Advances the sequence number.
    ModifyAuthSubscription(ModifyAuthSubscriptionRequest) "Nudr_DR_Update(authentication-subscription)":
    NUDR_DR Patch "/subscription-data/{ueId}/authentication-data/authentication-subscription"
    { ue_id: Supi = "ueId" } body Patch => ()
    where Scope(MODIFY_CREDENTIALS);

    /// Stores how the last authentication ended.
    CreateAuthStatus(CreateAuthStatusRequest) "Nudr_DR_Create(authentication-status)":
    NUDR_DR Put "/subscription-data/{ueId}/authentication-data/authentication-status"
    { ue_id: Supi = "ueId" } body AuthEvent => ()
    where Scope(SUBSCRIPTION_DATA);

    /// Access and mobility subscription.
    QueryAmData(QueryAmDataRequest) "Nudr_DR_Query(am-data)":
    NUDR_DR Get "/subscription-data/{ueId}/{servingPlmnId}/provisioned-data/am-data"
    { ue_id: Supi = "ueId", serving_plmn_id: VarPlmnId = "servingPlmnId" } body () => AccessAndMobilitySubscriptionData
    where Scope(SUBSCRIPTION_DATA);

    /// DNNs and slices.
    QuerySmfSelectData(QuerySmfSelectDataRequest) "Nudr_DR_Query(smf-selection-subscription-data)":
    NUDR_DR Get "/subscription-data/{ueId}/{servingPlmnId}/provisioned-data/smf-selection-subscription-data"
    { ue_id: Supi = "ueId", serving_plmn_id: VarPlmnId = "servingPlmnId" } body () => SmfSelectionSubscriptionData
    where Scope(SUBSCRIPTION_DATA);

    /// Session subscription.
    QuerySmData(QuerySmDataRequest) "Nudr_DR_Query(sm-data)":
    NUDR_DR Get "/subscription-data/{ueId}/{servingPlmnId}/provisioned-data/sm-data"
    { ue_id: Supi = "ueId", serving_plmn_id: VarPlmnId = "servingPlmnId" }
    ? { ; single_nssai: SNssai = "single-nssai", dnn: Dnn = "dnn" } body () => SmSubsData
    where Scope(SUBSCRIPTION_DATA);

    /// Stores the serving AMF.
    CreateAmfContext(CreateAmfContextRequest) "Nudr_DR_Create(amf-3gpp-access)":
    NUDR_DR Put "/subscription-data/{ueId}/context-data/amf-3gpp-access"
    { ue_id: Supi = "ueId" } body Amf3GppAccessRegistration => Stored<Amf3GppAccessRegistration>
    where Scope(SUBSCRIPTION_DATA);

    /// Changes it.
    UpdateAmfContext(UpdateAmfContextRequest) "Nudr_DR_Update(amf-3gpp-access)":
    NUDR_DR Patch "/subscription-data/{ueId}/context-data/amf-3gpp-access"
    { ue_id: Supi = "ueId" } body Patch => ()
    where Scope(SUBSCRIPTION_DATA);

    /// The serving AMF.
    QueryAmfContext(QueryAmfContextRequest) "Nudr_DR_Query(amf-3gpp-access)":
    NUDR_DR Get "/subscription-data/{ueId}/context-data/amf-3gpp-access"
    { ue_id: Supi = "ueId" } body () => Amf3GppAccessRegistration
    where Scope(SUBSCRIPTION_DATA);

    /// Stores the SMF of a session.
    CreateSmfContext(CreateSmfContextRequest) "Nudr_DR_Create(smf-registrations)":
    NUDR_DR Put "/subscription-data/{ueId}/context-data/smf-registrations/{pduSessionId}"
    { ue_id: Supi = "ueId", pdu_session_id: PduSessionId = "pduSessionId" } body SmfRegistration => Stored<SmfRegistration>
    where Scope(SUBSCRIPTION_DATA);

    /// Forgets it.
    DeleteSmfContext(DeleteSmfContextRequest) "Nudr_DR_Delete(smf-registrations)":
    NUDR_DR Delete "/subscription-data/{ueId}/context-data/smf-registrations/{pduSessionId}"
    { ue_id: Supi = "ueId", pdu_session_id: PduSessionId = "pduSessionId" } body () => ()
    where Scope(SUBSCRIPTION_DATA);

    /// The SMF of a session.
    QuerySmfContext(QuerySmfContextRequest) "Nudr_DR_Query(smf-registrations)":
    NUDR_DR Get "/subscription-data/{ueId}/context-data/smf-registrations/{pduSessionId}"
    { ue_id: Supi = "ueId", pdu_session_id: PduSessionId = "pduSessionId" } body () => SmfRegistration
    where Scope(SUBSCRIPTION_DATA);

    /// Stores who wants to hear of changes of a subscription.
    PutSdmSubscription(PutSdmSubscriptionRequest) "Nudr_DR_Update(sdm-subscriptions)":
    NUDR_DR Put "/subscription-data/{ueId}/context-data/sdm-subscriptions/{subsId}"
    { ue_id: Supi = "ueId", subs_id: String = "subsId" } body SdmSubscription => Stored<SdmSubscription>
    where Scope(SUBSCRIPTION_DATA);

    /// Forgets it.
    DeleteSdmSubscription(DeleteSdmSubscriptionRequest) "Nudr_DR_Delete(sdm-subscriptions)":
    NUDR_DR Delete "/subscription-data/{ueId}/context-data/sdm-subscriptions/{subsId}"
    { ue_id: Supi = "ueId", subs_id: String = "subsId" } body () => ()
    where Scope(SUBSCRIPTION_DATA);

    /// Everybody who wants to hear of changes of a subscription.
    QuerySdmSubscriptions(QuerySdmSubscriptionsRequest) "Nudr_DR_Query(sdm-subscriptions)":
    NUDR_DR Get "/subscription-data/{ueId}/context-data/sdm-subscriptions"
    { ue_id: Supi = "ueId" } body () => SdmSubscriptions
    where Scope(SUBSCRIPTION_DATA);

    /// Asks for notifications when subscription data change.
    SubscribeToData(SubscribeToDataRequest) "Nudr_DR_Subscribe":
    NUDR_DR Post "/subscription-data/subs-to-notify" {}
    body SubscriptionDataSubscriptions => Created<SubscriptionDataSubscriptions>
    where Scope(SUBSCRIPTION_DATA);

    /// Session policy data (TS 29.519).
    QuerySmPolicyData(QuerySmPolicyDataRequest) "Nudr_DR_Query(sm-policy-data)":
    NUDR_DR Get "/policy-data/ues/{ueId}/sm-data" { ue_id: Supi = "ueId" }
    ? { ; snssai: SNssai = "snssai", dnn: Dnn = "dnn" } body () => SmPolicyData
    where Scope(POLICY_DATA);

    /// Access and mobility policy data (TS 29.519).
    QueryAmPolicyData(QueryAmPolicyDataRequest) "Nudr_DR_Query(am-policy-data)":
    NUDR_DR Get "/policy-data/ues/{ueId}/am-data" { ue_id: Supi = "ueId" } body () => AmPolicyData
    where Scope(POLICY_DATA);
}

callback! {
    /// UDR tells UDM that subscription data have changed (`callbackReference`).
    DataChange(DataChangeNotify) "Nudr_DR_Notify":
    UDR_CALLBACK "/data-change/{id}";
}
