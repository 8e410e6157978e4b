//! Authentication server function (TS 29.509): stands between the serving network and the UDM, keeps XRES* and
//! KAUSF at home, and hands out KSEAF only for the right RES*.
//!
//! Flow: [`Authenticate`](sbi::op::ausf::Authenticate) → UDM makes the vector → HXRES* goes out;
//! [`Confirm5gAka`](sbi::op::ausf::Confirm5gAka) → RES* is compared in constant time → KSEAF goes out, the UDM
//! is told. Read `service` first.
//!
//! Invariants: an authentication can be confirmed once; XRES* and KAUSF never leave; memory is bounded.
#![forbid(unsafe_code)]

mod config;
mod context;
mod counters;
mod service;

use std::sync::Arc;

pub use config::Config;
use sbi::{ApiRoot, Client, Router, model::common::NfInstanceId, model::nrf::NfType, op::ausf as op};
use serde::Serialize;
use types::Plmn;

/// The AUSF: one per process that runs it.
#[derive(Debug)]
struct Ausf {
    client: Client,
    plmn: Plmn,
    instance_id: NfInstanceId,
    api_root: ApiRoot,
    contexts: context::Contexts,
}

/// What `GET /authentications` of the OAM socket says.
#[derive(Serialize)]
struct Authentications {
    under_way: usize,
}

/// Starts the AUSF of `plmn`.
///
/// # Errors
/// Its address or its OAM socket cannot be had.
pub async fn start(config: Config, plmn: Plmn, env: nf::Env) -> Result<nf::Running, nf::BindError> {
    let mut instance = nf::Instance::bind(NfType::Ausf, config.sbi, &env).await?;
    let ausf = Arc::new(Ausf {
        client: instance.client(),
        plmn,
        instance_id: instance.id(),
        api_root: instance.api_root(),
        contexts: context::Contexts::default(),
    });
    instance.profile().plmn_list = vec![plmn];
    instance.prepare::<sbi::op::udm::GenerateAuthData>();
    let router = Router::new(ausf.clone())
        .on::<op::Authenticate>(Ausf::authenticate)
        .on::<op::Confirm5gAka>(Ausf::confirm);
    let oam = nf::Oam::new().get("/authentications", move |_| {
        let under_way = ausf.contexts.len();
        async move { Ok(Authentications { under_way }) }
    });
    instance.start(router, oam)
}
