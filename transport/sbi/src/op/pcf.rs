//! Operations of PCF (TS 29.507, TS 29.512).

use super::{callback, operation, service};
use crate::{
    model::pcf::*,
    operation::{Created, callback_uri},
};

service! {
    /// Npcf_AMPolicyControl.
    NPCF_AM = "npcf-am-policy-control" "v1" "1.2.0" Pcf => [Amf];
    /// Npcf_SMPolicyControl.
    NPCF_SM = "npcf-smpolicycontrol" "v1" "1.2.0" Pcf => [Smf];
    /// Callbacks of PCF, served by AMF and SMF.
    PCF_CALLBACK = "npcf-callback" "v1" "1.0.0" => [Pcf];
}

operation! {
    /// Creates an access and mobility policy association.
    CreateAmPolicy(CreateAmPolicyRequest) "Npcf_AMPolicyControl_Create":
    NPCF_AM Post "/policies" {} body PolicyAssociationRequest => Created<PolicyAssociation>;

    /// Shows one.
    GetAmPolicy(GetAmPolicyRequest) "Npcf_AMPolicyControl_Get":
    NPCF_AM Get "/policies/{polAssoId}" { pol_asso_id: String = "polAssoId" } body () => PolicyAssociation;

    /// Ends one.
    DeleteAmPolicy(DeleteAmPolicyRequest) "Npcf_AMPolicyControl_Delete":
    NPCF_AM Delete "/policies/{polAssoId}" { pol_asso_id: String = "polAssoId" } body () => ();

    /// Creates a session policy association.
    CreateSmPolicy(CreateSmPolicyRequest) "Npcf_SMPolicyControl_Create":
    NPCF_SM Post "/sm-policies" {} body SmPolicyContextData => Created<SmPolicyDecision>;

    /// Shows one.
    GetSmPolicy(GetSmPolicyRequest) "Npcf_SMPolicyControl_Get":
    NPCF_SM Get "/sm-policies/{smPolicyId}" { sm_policy_id: String = "smPolicyId" } body () => SmPolicyControl;

    /// Reports a change.
    UpdateSmPolicy(UpdateSmPolicyRequest) "Npcf_SMPolicyControl_Update":
    NPCF_SM Post "/sm-policies/{smPolicyId}/update" { sm_policy_id: String = "smPolicyId" }
    body SmPolicyUpdateContextData => SmPolicyDecision;

    /// Ends one.
    DeleteSmPolicy(DeleteSmPolicyRequest) "Npcf_SMPolicyControl_Delete":
    NPCF_SM Post "/sm-policies/{smPolicyId}/delete" { sm_policy_id: String = "smPolicyId" }
    body SmPolicyDeleteData => ();
}

callback! {
    /// PCF changes the access and mobility policy of a UE: `{notificationUri}/update`.
    AmPolicyUpdateNotify(PolicyUpdate) "Npcf_AMPolicyControl_UpdateNotify":
    PCF_CALLBACK "/am-policies/{id}/update";

    /// PCF ends it: `{notificationUri}/terminate`.
    AmPolicyTerminateNotify(TerminationNotification) "Npcf_AMPolicyControl_UpdateNotify (termination)":
    PCF_CALLBACK "/am-policies/{id}/terminate";

    /// PCF changes the policy of a session: `{notificationUri}/update`.
    SmPolicyUpdateNotify(SmPolicyNotification) "Npcf_SMPolicyControl_UpdateNotify":
    PCF_CALLBACK "/sm-policies/{id}/update";

    /// PCF ends it: `{notificationUri}/terminate`.
    SmPolicyTerminateNotify(TerminationNotification) "Npcf_SMPolicyControl_UpdateNotify (termination)":
    PCF_CALLBACK "/sm-policies/{id}/terminate";
}

/// What PCF appends to a `notificationUri` for an update.
const UPDATE: &str = "/update";

/// The `notificationUri` by which AMF tells of `id` (TS 29.507 §4.2.4): PCF appends `/update` or `/terminate`.
pub fn am_notification_uri(api_root: &str, id: &str) -> String {
    callback_uri::<AmPolicyUpdateNotify>(api_root, id).trim_end_matches(UPDATE).to_owned()
}

/// The same of SMF (TS 29.512 §4.2.3).
pub fn sm_notification_uri(api_root: &str, id: &str) -> String {
    callback_uri::<SmPolicyUpdateNotify>(api_root, id).trim_end_matches(UPDATE).to_owned()
}
