//! Operations of UDM (TS 29.503).

use types::{Dnn, PduSessionId, Plmn, SNssai, Supi};

use super::{callback, operation, service};
use crate::{
    model::{common::Nssai, udm::*},
    operation::{Created, Stored},
};

service! {
    /// Nudm_UEAuthentication.
    NUDM_UEAU = "nudm-ueau" "v1" "1.2.0" Udm => [Ausf];
    /// Nudm_SubscriberDataManagement.
    NUDM_SDM = "nudm-sdm" "v2" "2.2.0" Udm => [Amf, Smf, Ausf, Smsf, Nef, Gmlc];
    /// Nudm_UEContextManagement.
    NUDM_UECM = "nudm-uecm" "v1" "1.2.0" Udm => [Amf, Smf, Smsf, Nef, Gmlc, Nwdaf];
    /// Callbacks of UDM, served by AMF and SMF.
    UDM_CALLBACK = "nudm-callback" "v1" "1.0.0" => [Udm];
}

operation! {
    /// Asks for an authentication vector; SUCI is de-concealed, a resynchronisation carried out.
    GenerateAuthData(GenerateAuthDataRequest) "Nudm_UEAuthentication_Get":
    NUDM_UEAU Post "/{supiOrSuci}/security-information/generate-auth-data"
    { supi_or_suci: String = "supiOrSuci" } body AuthenticationInfoRequest => AuthenticationInfoResult;

    /// Reports how an authentication ended.
    ConfirmAuth(ConfirmAuthRequest) "Nudm_UEAuthentication_ResultConfirmation":
    NUDM_UEAU Post "/{supi}/auth-events" { supi: Supi = "supi" } body AuthEvent => Created<AuthEvent>;

    /// Access and mobility subscription.
    GetAmData(GetAmDataRequest) "Nudm_SDM_Get(am-data)":
    NUDM_SDM Get "/{supi}/am-data" { supi: Supi = "supi" } ? { ; plmn_id: Plmn = "plmn-id" }
    body () => AccessAndMobilitySubscriptionData;

    /// Which DNNs on which slices.
    GetSmfSelectData(GetSmfSelectDataRequest) "Nudm_SDM_Get(smf-select-data)":
    NUDM_SDM Get "/{supi}/smf-select-data" { supi: Supi = "supi" } ? { ; plmn_id: Plmn = "plmn-id" }
    body () => SmfSelectionSubscriptionData;

    /// Session subscription.
    GetSmData(GetSmDataRequest) "Nudm_SDM_Get(sm-data)":
    NUDM_SDM Get "/{supi}/sm-data" { supi: Supi = "supi" }
    ? { ; single_nssai: SNssai = "single-nssai", dnn: Dnn = "dnn", plmn_id: Plmn = "plmn-id" }
    body () => SmSubsData;

    /// Subscribed slices.
    GetNssai(GetNssaiRequest) "Nudm_SDM_Get(nssai)":
    NUDM_SDM Get "/{supi}/nssai" { supi: Supi = "supi" } ? { ; plmn_id: Plmn = "plmn-id" }
    body () => Nssai;

    /// Asks for notifications of changes.
    SdmSubscribe(SdmSubscribeRequest) "Nudm_SDM_Subscribe":
    NUDM_SDM Post "/{ueId}/sdm-subscriptions" { ue_id: Supi = "ueId" } body SdmSubscription => Created<SdmSubscription>;

    /// Ends them.
    SdmUnsubscribe(SdmUnsubscribeRequest) "Nudm_SDM_Unsubscribe":
    NUDM_SDM Delete "/{ueId}/sdm-subscriptions/{subscriptionId}"
    { ue_id: Supi = "ueId", subscription_id: String = "subscriptionId" } body () => ();

    /// Registers the serving AMF.
    RegisterAmf(RegisterAmfRequest) "Nudm_UECM_Registration(amf-3gpp-access)":
    NUDM_UECM Put "/{ueId}/registrations/amf-3gpp-access" { ue_id: Supi = "ueId" }
    body Amf3GppAccessRegistration => Stored<Amf3GppAccessRegistration>;

    /// Changes or, with `purgeFlag`, ends the AMF registration.
    UpdateAmf(UpdateAmfRequest) "Nudm_UECM_Update(amf-3gpp-access)":
    NUDM_UECM Patch "/{ueId}/registrations/amf-3gpp-access" { ue_id: Supi = "ueId" }
    body Amf3GppAccessRegistrationModification => ();

    /// Who serves the UE.
    GetAmf(GetAmfRequest) "Nudm_UECM_Get(amf-3gpp-access)":
    NUDM_UECM Get "/{ueId}/registrations/amf-3gpp-access" { ue_id: Supi = "ueId" }
    body () => Amf3GppAccessRegistration;

    /// Registers the SMF of a session.
    RegisterSmf(RegisterSmfRequest) "Nudm_UECM_Registration(smf-registrations)":
    NUDM_UECM Put "/{ueId}/registrations/smf-registrations/{pduSessionId}"
    { ue_id: Supi = "ueId", pdu_session_id: PduSessionId = "pduSessionId" }
    body SmfRegistration => Stored<SmfRegistration>;

    /// Ends it.
    DeregisterSmf(DeregisterSmfRequest) "Nudm_UECM_Deregistration(smf-registrations)":
    NUDM_UECM Delete "/{ueId}/registrations/smf-registrations/{pduSessionId}"
    { ue_id: Supi = "ueId", pdu_session_id: PduSessionId = "pduSessionId" } body () => ();
}

callback! {
    /// UDM tells the old AMF (or SMF) that the UE is no longer its own (`deregCallbackUri`).
    DeregistrationNotify(DeregistrationData) "Nudm_UECM_DeregistrationNotification":
    UDM_CALLBACK "/deregistration/{id}";

    /// UDM tells who subscribed that subscription data have changed (`callbackReference`).
    SdmNotify(ModificationNotification) "Nudm_SDM_Notification":
    UDM_CALLBACK "/sdm-notification/{id}";
}
