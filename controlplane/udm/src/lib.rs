//! Unified data management (TS 29.503): identifies subscribers, makes their authentication vectors, and
//! gives access to their subscriptions and to the records of their serving AMFs and SMFs. All data is
//! in the UDR.
//!
//! Read [`authentication`] for 5G-AKA, [`notification`] for changes of subscriptions, [`delivery`] for calls in the
//! background, [`service`] for the rest.
//!
//! Invariants: the UDM keeps no state except SUCI keys, requests under way ([`sequence`]) and notifications that wait ([`delivery`]); a
//! sequence number is durable before the vector made with it is sent; the long-term key is never sent.
#![forbid(unsafe_code)]

mod authentication;
mod config;
mod counters;
mod delivery;
mod notification;
mod sequence;
mod service;

use std::{collections::HashMap, sync::Arc};

pub use config::{Config, Profile, SuciKey, SuciKeyError};
use nas::suci::PrivateKey;
use net::task::Boxed;
use sbi::{Client, Router, model::nrf::NfType, op::udm as op};
use types::Plmn;

/// Why the UDM could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A configured value is wrong.
    #[error(transparent)]
    Config(#[from] types::Invalid),
    /// A home network private key cannot be used.
    #[error(transparent)]
    SuciKey(#[from] SuciKeyError),
    /// The address or the OAM socket cannot be used.
    #[error(transparent)]
    Bind(#[from] nf::BindError),
}

/// The UDM; at most one per process.
#[derive(Debug)]
struct Udm {
    client: Client,
    plmn: Plmn,
    /// Keys by home network public key identifier.
    suci_keys: HashMap<u8, Arc<PrivateKey>>,
    vector_requests: sequence::Requests,
    deliveries: delivery::Deliveries,
}

/// Starts the UDM of `plmn`.
///
/// # Errors
/// The configuration is wrong, or the address or OAM socket cannot be used.
pub fn start(config: Config, plmn: Plmn, env: nf::Env) -> Boxed<'static, Result<nf::Running, StartError>> {
    Box::pin(async move {
        config.validate()?;
        let mut instance = nf::Instance::bind(NfType::Udm, config.sbi, &env).await?;
        let keys = config.suci_keys.iter().map(|key| Ok((key.id, Arc::new(key.load()?))));
        let suci_keys = keys.collect::<Result<_, SuciKeyError>>()?;
        let udm = Arc::new(Udm {
            client: instance.client(),
            plmn,
            suci_keys,
            vector_requests: sequence::Requests::default(),
            deliveries: delivery::Deliveries::default(),
        });
        instance.profile().plmn_list = vec![plmn];
        instance.prepare::<sbi::op::udr::QueryAmData>();
        let (client, root, stopping) =
            (instance.client(), instance.api_root().to_string(), instance.stopping());
        instance.spawn(notification::subscribe_to_changes(client, root, stopping));
        instance.spawn(delivery::run(udm.clone(), instance.stopping()));
        let router = Router::new(udm)
            .on::<op::GenerateAuthData>(Udm::generate_auth_data)
            .on::<op::ConfirmAuth>(Udm::confirm_auth)
            .on::<op::GetAmData>(Udm::am_data)
            .on::<op::GetNssai>(Udm::nssai)
            .on::<op::GetSmfSelectData>(Udm::smf_select_data)
            .on::<op::GetSmData>(Udm::sm_data)
            .on::<op::SdmSubscribe>(Udm::subscribe)
            .on::<op::SdmUnsubscribe>(Udm::unsubscribe)
            .on::<sbi::op::udr::DataChange>(Udm::data_changed)
            .on::<op::RegisterAmf>(Udm::register_amf)
            .on::<op::UpdateAmf>(Udm::update_amf)
            .on::<op::GetAmf>(Udm::amf)
            .on::<op::RegisterSmf>(Udm::register_smf)
            .on::<op::DeregisterSmf>(Udm::deregister_smf);
        Ok(instance.start(router, nf::Oam::new())?)
    })
}
