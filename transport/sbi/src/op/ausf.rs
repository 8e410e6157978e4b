//! Operations of AUSF (TS 29.509).

use super::{operation, service};
use crate::{model::ausf::*, operation::Created};

service! {
    /// Nausf_UEAuthentication.
    NAUSF_AUTH = "nausf-auth" "v1" "1.2.0" Ausf => [Amf];
}

operation! {
    /// Begins 5G-AKA; `Created::location` names the authentication to confirm.
    Authenticate(AuthenticateRequest) "Nausf_UEAuthentication_Authenticate":
    NAUSF_AUTH Post "/ue-authentications" {} body AuthenticationInfo => Created<UeAuthenticationCtx>;

    /// Hands RES* over and gets KSEAF and SUPI.
    Confirm5gAka(Confirm5gAkaRequest) "Nausf_UEAuthentication_Authenticate(5g-aka-confirmation)":
    NAUSF_AUTH Put "/ue-authentications/{authCtxId}/5g-aka-confirmation" { auth_ctx_id: String = "authCtxId" }
    body ConfirmationData => ConfirmationDataResponse;
}
