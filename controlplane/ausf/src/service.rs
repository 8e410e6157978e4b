//! Nausf_UEAuthentication (TS 29.509 §5.2): 5G-AKA between the serving network and the UDM.

use std::{collections::BTreeMap, sync::Arc};

use nas::aka;
use sbi::{
    Created, ProblemDetails, Target,
    model::{
        ausf::*,
        common::{AuthType, DateTime, Link},
        udm::{AuthEvent, AuthenticationInfoRequest},
    },
    op::{ausf::*, udm},
};
use types::Supi;

use crate::{Ausf, context::Authentication, counters};

impl Ausf {
    /// Nausf_UEAuthentication_Authenticate: gets a home vector from the UDM and keeps the parts that
    /// the serving network must not see.
    pub(crate) async fn authenticate(
        self: Arc<Self>,
        request: AuthenticateRequest,
    ) -> Result<Created<UeAuthenticationCtx>, ProblemDetails> {
        let info = request.body;
        if info.serving_network_name != self.plmn.serving_network_name() {
            counters::SERVING_NETWORKS_REJECTED.inc();
            return Err(ProblemDetails::forbidden("SERVING_NETWORK_NOT_AUTHORIZED"));
        }
        let get = udm::GenerateAuthDataRequest {
            supi_or_suci: info.supi_or_suci,
            body: AuthenticationInfoRequest {
                serving_network_name: info.serving_network_name.clone(),
                resynchronization_info: info.resynchronization_info,
                ausf_instance_id: self.instance_id,
                supported_features: None,
            },
        };
        let result = self.client.call::<udm::GenerateAuthData>(Target::Discover, get).await?;
        let (Some(vector), Some(supi)) = (result.authentication_vector, result.supi) else {
            return Err(ProblemDetails::new(502, "AV_GENERATION_PROBLEM"));
        };

        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|_| ProblemDetails::system_failure())?;
        let id = u128::from_ne_bytes(id);
        self.contexts.insert(
            id,
            Authentication {
                supi,
                xres_star: vector.xres_star.clone(),
                kausf: vector.kausf,
                serving_network_name: info.serving_network_name,
            },
        );
        counters::AUTHENTICATIONS.inc();
        let location = format!("/ue-authentications/{id:032x}");
        let href = format!("{}/nausf-auth/v1{location}/5g-aka-confirmation", self.api_root);
        let body = UeAuthenticationCtx {
            auth_type: AuthType::FiveGAka,
            five_g_auth_data: Av5gAka {
                hxres_star: aka::hxres_star(&vector.rand, &vector.xres_star),
                rand: vector.rand,
                autn: vector.autn,
            },
            links: BTreeMap::from([("5g-aka".to_owned(), Link { href })]),
            serving_network_name: None,
        };
        Ok(Created { location, body })
    }

    /// Nausf_UEAuthentication_Authenticate, second step: checks RES* and answers with KSEAF if it is
    /// right.
    pub(crate) async fn confirm(
        self: Arc<Self>,
        request: Confirm5gAkaRequest,
    ) -> Result<ConfirmationDataResponse, ProblemDetails> {
        let id = u128::from_str_radix(&request.auth_ctx_id, 16)
            .map_err(|_| ProblemDetails::context_not_found())?;
        let context = self.contexts.take(id).ok_or_else(ProblemDetails::context_not_found)?;
        let proven =
            request.body.res_star.is_some_and(|res_star| aka::same_res_star(&context.xres_star, &res_star));
        self.report(context.supi, &context.serving_network_name, proven);
        if !proven {
            counters::CONFIRMATIONS_FAILED.inc();
            return Ok(ConfirmationDataResponse {
                auth_result: AuthResult::Failure,
                supi: None,
                kseaf: None,
                supported_features: None,
            });
        }
        let kseaf = aka::kseaf(&context.kausf, &context.serving_network_name)
            .map_err(|_| ProblemDetails::system_failure())?;
        Ok(ConfirmationDataResponse {
            auth_result: AuthResult::Success,
            supi: Some(context.supi),
            kseaf: Some(kseaf),
            supported_features: None,
        })
    }

    /// Reports the result to the UDM (TS 33.501 §6.1.4.1a). The UE does not wait for this.
    fn report(self: &Arc<Self>, supi: Supi, serving_network_name: &str, success: bool) {
        let request = udm::ConfirmAuthRequest {
            supi,
            body: AuthEvent {
                nf_instance_id: self.instance_id,
                success,
                time_stamp: DateTime::from(net::time::wall_clock()),
                auth_type: AuthType::FiveGAka,
                serving_network_name: serving_network_name.to_owned(),
                auth_removal_ind: None,
            },
        };
        let client = self.client.clone();
        tokio::spawn(async move {
            if let Err(error) = client.call::<udm::ConfirmAuth>(Target::Discover, request).await {
                counters::REPORTS_FAILED.inc();
                tracing::warn!(%error, %supi, "the result of the authentication could not be reported to the UDM");
            }
        });
    }
}
