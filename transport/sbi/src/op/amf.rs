//! Operations of AMF (TS 29.518).

use super::{callback, operation, service};
use crate::{model::amf::*, operation::Initiated};

service! {
    /// Namf_Communication.
    NAMF_COMM = "namf-comm" "v1" "1.2.0" Amf => [Amf, Smf, Pcf, Udm, Smsf, Lmf, Nef];
    /// Callbacks of AMF, served by SMF.
    AMF_CALLBACK = "namf-callback" "v1" "1.0.0" => [Amf];
}

operation! {
    /// Passes an N1 message to the UE and N2 information to its gNB; `ueContextId` is a SUPI.
    N1N2MessageTransfer(N1N2MessageTransferRequest) "Namf_Communication_N1N2MessageTransfer":
    NAMF_COMM Post "/ue-contexts/{ueContextId}/n1-n2-messages" { ue_context_id: String = "ueContextId" }
    body N1N2MessageTransferReqData => Initiated<N1N2MessageTransferRspData> | N1N2MessageTransferError;
}

callback! {
    /// AMF tells SMF that an accepted transfer failed (`n1n2FailureTxfNotifURI`).
    N1N2TransferFailureNotify(N1N2MsgTxfrFailureNotification) "Namf_Communication_N1N2TransferFailureNotification":
    AMF_CALLBACK "/n1-n2-failure/{id}";
}
