//! Operations of PCF (TS 29.507, TS 29.512).

use super::{operation, service};
use crate::{model::pcf::*, operation::Created};

service! {
    /// Npcf_AMPolicyControl.
    NPCF_AM = "npcf-am-policy-control" "v1" "1.2.0" Pcf;
    /// Npcf_SMPolicyControl.
    NPCF_SM = "npcf-smpolicycontrol" "v1" "1.2.0" Pcf;
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
