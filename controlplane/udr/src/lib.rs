//! Unified data repository (TS 29.504, TS 29.505, TS 29.519): gives access to the store over its 3GPP
//! interface.
//!
//! Read [`service`] first: each operation is one function over the store; `notification.rs` tells UDMs
//! of changes. The UDR checks the form of the data and does not interpret it; UDM and PCF do.
#![forbid(unsafe_code)]

mod config;
mod notification;
pub mod service;

use std::sync::Arc;

pub use config::Config;
use net::task::Boxed;
use sbi::{Router, model::nrf::NfType, op::udr as op};
use serde_json::json;
use service::Repository;
use store::Store;

/// Starts the UDR over `store`.
///
/// # Errors
/// The address or the OAM socket cannot be used.
pub fn start(
    config: Config,
    store: Arc<dyn Store>,
    env: nf::Env,
) -> Boxed<'static, Result<nf::Running, nf::BindError>> {
    Box::pin(async move {
        let mut instance = nf::Instance::bind(NfType::Udr, config.sbi, &env).await?;
        let (client, stopping) = (instance.client(), instance.stopping());
        instance.spawn(notification::run(store.clone(), client, stopping));
        let router = Router::new(Arc::new(Repository::new(store.clone())))
            .on::<op::QueryAuthSubscription>(Repository::query_auth_subscription)
            .on::<op::ModifyAuthSubscription>(Repository::modify_auth_subscription)
            .on::<op::CreateAuthStatus>(Repository::create_auth_status)
            .on::<op::QueryAmData>(Repository::query_am_data)
            .on::<op::QuerySmfSelectData>(Repository::query_smf_select_data)
            .on::<op::QuerySmData>(Repository::query_sm_data)
            .on::<op::CreateAmfContext>(Repository::create_amf_context)
            .on::<op::UpdateAmfContext>(Repository::update_amf_context)
            .on::<op::QueryAmfContext>(Repository::query_amf_context)
            .on::<op::CreateSmfContext>(Repository::create_smf_context)
            .on::<op::DeleteSmfContext>(Repository::delete_smf_context)
            .on::<op::QuerySmfContext>(Repository::query_smf_context)
            .on::<op::PutSdmSubscription>(Repository::put_sdm_subscription)
            .on::<op::DeleteSdmSubscription>(Repository::delete_sdm_subscription)
            .on::<op::QuerySdmSubscriptions>(Repository::query_sdm_subscriptions)
            .on::<op::SubscribeToData>(Repository::subscribe_to_data)
            .on::<op::QuerySmPolicyData>(Repository::query_sm_policy_data)
            .on::<op::QueryAmPolicyData>(Repository::query_am_policy_data);
        let oam = nf::Oam::new().get("/subscribers/count", move |_| {
            let store = store.clone();
            async move {
                let count = store.subscriber_count().await.map_err(nf::oam::Error::internal)?;
                Ok(json!({ "subscribers": count }))
            }
        });
        instance.start(router, oam)
    })
}
