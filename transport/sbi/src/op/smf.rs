//! Operations of SMF (TS 29.502).

use super::{callback, operation, service};
use crate::{model::smf::*, operation::Created};

service! {
    /// Nsmf_PDUSession.
    NSMF_PDUSESSION = "nsmf-pdusession" "v1" "1.2.0" Smf => [Amf, Smf];
    /// Callbacks of SMF, served by AMF.
    SMF_CALLBACK = "nsmf-callback" "v1" "1.0.0" => [Smf];
}

operation! {
    /// Creates an SM context; `Created::location` names it.
    CreateSmContext(CreateSmContextRequest) "Nsmf_PDUSession_CreateSMContext":
    NSMF_PDUSESSION Post "/sm-contexts" {}
    body SmContextCreateData => Created<SmContextCreatedData> | SmContextCreateError;

    /// Changes one.
    UpdateSmContext(UpdateSmContextRequest) "Nsmf_PDUSession_UpdateSMContext":
    NSMF_PDUSESSION Post "/sm-contexts/{smContextRef}/modify" { sm_context_ref: String = "smContextRef" }
    body SmContextUpdateData => Option<SmContextUpdatedData> | SmContextUpdateError;

    /// Ends one.
    ReleaseSmContext(ReleaseSmContextRequest) "Nsmf_PDUSession_ReleaseSMContext":
    NSMF_PDUSESSION Post "/sm-contexts/{smContextRef}/release" { sm_context_ref: String = "smContextRef" }
    body Option<SmContextReleaseData> => ();
}

callback! {
    /// SMF tells AMF what became of a context (`smContextStatusUri`).
    SmContextStatusNotify(SmContextStatusNotification) "Nsmf_PDUSession_SMContextStatusNotify":
    SMF_CALLBACK "/sm-context-status/{id}";
}
