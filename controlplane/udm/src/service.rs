//! Nudm_SubscriberDataManagement and Nudm_UEContextManagement (TS 29.503 §5.2, §5.3).
//!
//! The UDM keeps nothing itself: subscriptions and the records of serving AMFs and SMFs are in the UDR.
//! So any UDM can answer, and a restart loses nothing (CP-7).

use std::sync::Arc;

use sbi::{
    CallError, ProblemDetails, Stored, Target,
    model::{
        common::{Nssai, Patch, PatchItem, PatchOperation, VarPlmnId},
        udm::*,
    },
    op::{udm::*, udr},
};
use types::{Plmn, Supi};

use crate::Udm;

impl Udm {
    pub(crate) fn serving_plmn(&self, asked: Option<Plmn>) -> VarPlmnId {
        VarPlmnId(asked.unwrap_or(self.plmn))
    }

    /// Nudm_SDM_Get(am-data).
    pub(crate) async fn am_data(
        self: Arc<Self>,
        request: GetAmDataRequest,
    ) -> Result<AccessAndMobilitySubscriptionData, ProblemDetails> {
        let serving_plmn_id = self.serving_plmn(request.plmn_id);
        let query = udr::QueryAmDataRequest { ue_id: request.supi, serving_plmn_id, body: () };
        Ok(self.client.call::<udr::QueryAmData>(Target::Discover, query).await?)
    }

    /// Nudm_SDM_Get(nssai).
    pub(crate) async fn nssai(self: Arc<Self>, request: GetNssaiRequest) -> Result<Nssai, ProblemDetails> {
        let GetNssaiRequest { supi, plmn_id, body } = request;
        let data = self.am_data(GetAmDataRequest { supi, plmn_id, body }).await?;
        data.nssai.ok_or_else(|| ProblemDetails::new(404, "DATA_NOT_FOUND"))
    }

    /// Nudm_SDM_Get(smf-select-data).
    pub(crate) async fn smf_select_data(
        self: Arc<Self>,
        request: GetSmfSelectDataRequest,
    ) -> Result<SmfSelectionSubscriptionData, ProblemDetails> {
        let serving_plmn_id = self.serving_plmn(request.plmn_id);
        let query = udr::QuerySmfSelectDataRequest { ue_id: request.supi, serving_plmn_id, body: () };
        Ok(self.client.call::<udr::QuerySmfSelectData>(Target::Discover, query).await?)
    }

    /// Nudm_SDM_Get(sm-data).
    pub(crate) async fn sm_data(
        self: Arc<Self>,
        request: GetSmDataRequest,
    ) -> Result<SmSubsData, ProblemDetails> {
        let serving_plmn_id = self.serving_plmn(request.plmn_id);
        let GetSmDataRequest { supi, single_nssai, dnn, .. } = request;
        let query = udr::QuerySmDataRequest { ue_id: supi, serving_plmn_id, single_nssai, dnn, body: () };
        Ok(self.client.call::<udr::QuerySmData>(Target::Discover, query).await?)
    }

    /// Nudm_UECM_Registration of an AMF. The AMF that served the UE before is notified that it no
    /// longer does.
    pub(crate) async fn register_amf(
        self: Arc<Self>,
        request: RegisterAmfRequest,
    ) -> Result<Stored<Amf3GppAccessRegistration>, ProblemDetails> {
        let (ue_id, body) = (request.ue_id, request.body);
        let before = self.amf_registration(ue_id).await?;
        let create = udr::CreateAmfContextRequest { ue_id, body: body.clone() };
        let stored = self.client.call::<udr::CreateAmfContext>(Target::Discover, create).await?;
        let moved = before.filter(|old| {
            old.purge_flag != Some(true)
                && old.amf_instance_id != body.amf_instance_id
                && old.guami != body.guami
        });
        if let Some(old) = moved {
            // The new AMF does not wait for this notification (TS 23.502 §4.2.2.2.2 step 14c).
            self.notify_deregistration(ue_id, old, DeregistrationReason::UeInitialRegistration);
        }
        let location = format!("/{ue_id}/registrations/amf-3gpp-access");
        Ok(match stored {
            Stored::Created(_) => Stored::Created(sbi::Created { location, body }),
            Stored::Replaced(_) => Stored::Replaced(Some(body)),
        })
    }

    /// Nudm_UECM_Update of the AMF registration: with `purgeFlag` the AMF reports that it deleted the
    /// UE's context.
    pub(crate) async fn update_amf(self: Arc<Self>, request: UpdateAmfRequest) -> Result<(), ProblemDetails> {
        let registration = self.amf_registration(request.ue_id).await?;
        let registration = registration.ok_or_else(ProblemDetails::context_not_found)?;
        if registration.guami != request.body.guami {
            return Err(ProblemDetails::forbidden("INVALID_GUAMI"));
        }
        let add = |path: &str, value: serde_json::Value| PatchItem {
            op: PatchOperation::Add,
            path: path.to_owned(),
            from: None,
            value: Some(value),
        };
        let purge = request.body.purge_flag.map(|flag| add("/purgeFlag", flag.into()));
        let pei = request.body.pei.map(|pei| add("/pei", pei.to_string().into()));
        let patch = Patch(purge.into_iter().chain(pei).collect());
        let update = udr::UpdateAmfContextRequest { ue_id: request.ue_id, body: patch };
        Ok(self.client.call::<udr::UpdateAmfContext>(Target::Discover, update).await?)
    }

    /// Nudm_UECM_Get of the AMF registration.
    pub(crate) async fn amf(
        self: Arc<Self>,
        request: GetAmfRequest,
    ) -> Result<Amf3GppAccessRegistration, ProblemDetails> {
        let registration = self.amf_registration(request.ue_id).await?;
        registration.filter(|r| r.purge_flag != Some(true)).ok_or_else(ProblemDetails::context_not_found)
    }

    /// Nudm_UECM_Registration of the SMF of a session.
    pub(crate) async fn register_smf(
        self: Arc<Self>,
        request: RegisterSmfRequest,
    ) -> Result<Stored<SmfRegistration>, ProblemDetails> {
        let RegisterSmfRequest { ue_id, pdu_session_id, body } = request;
        let create = udr::CreateSmfContextRequest { ue_id, pdu_session_id, body: body.clone() };
        let location = format!("/{ue_id}/registrations/smf-registrations/{pdu_session_id}");
        Ok(match self.client.call::<udr::CreateSmfContext>(Target::Discover, create).await? {
            Stored::Created(_) => Stored::Created(sbi::Created { location, body }),
            Stored::Replaced(_) => Stored::Replaced(Some(body)),
        })
    }

    /// Nudm_UECM_Deregistration of the SMF of a session.
    pub(crate) async fn deregister_smf(
        self: Arc<Self>,
        request: DeregisterSmfRequest,
    ) -> Result<(), ProblemDetails> {
        let DeregisterSmfRequest { ue_id, pdu_session_id, .. } = request;
        let delete = udr::DeleteSmfContextRequest { ue_id, pdu_session_id, body: () };
        match self.client.call::<udr::DeleteSmfContext>(Target::Discover, delete).await {
            Err(error) if error.status() == Some(404) => Err(ProblemDetails::context_not_found()),
            result => Ok(result?),
        }
    }

    pub(crate) async fn amf_registration(
        &self,
        supi: Supi,
    ) -> Result<Option<Amf3GppAccessRegistration>, ProblemDetails> {
        let query = udr::QueryAmfContextRequest { ue_id: supi, body: () };
        match self.client.call::<udr::QueryAmfContext>(Target::Discover, query).await {
            Ok(registration) => Ok(Some(registration)),
            Err(CallError::Problem { error, .. }) if error.status == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
