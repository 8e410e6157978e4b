//! Authentication server function (TS 29.509), between the serving network and the UDM. It keeps XRES*
//! and KAUSF in the home network, and gives out KSEAF only for the right RES*.
//!
//! Flow: on [`Authenticate`](sbi::op::ausf::Authenticate) the UDM makes the vector, and the AUSF
//! answers with HXRES*. On [`Confirm5gAka`](sbi::op::ausf::Confirm5gAka) the AUSF compares RES* in
//! constant time, answers with KSEAF, and reports the result to the UDM. Read `service` first.
//!
//! Invariants: an authentication can be confirmed once; XRES* and KAUSF are never sent; memory is
//! bounded.
#![forbid(unsafe_code)]

mod config;
mod context;
mod counters;
mod service;

use std::sync::Arc;

pub use config::Config;
use net::task::Boxed;
use sbi::{ApiRoot, Client, Router, model::common::NfInstanceId, model::nrf::NfType, op::ausf as op};
use serde::Serialize;
use types::Plmn;

/// The AUSF; at most one per process.
#[derive(Debug)]
struct Ausf {
    client: Client,
    plmn: Plmn,
    instance_id: NfInstanceId,
    api_root: ApiRoot,
    contexts: context::Contexts,
}

/// The answer to `GET /authentications` on the OAM socket.
#[derive(Serialize)]
struct Authentications {
    under_way: usize,
}

/// Starts the AUSF of `plmn`.
///
/// # Errors
/// The address or the OAM socket cannot be used.
pub fn start(config: Config, plmn: Plmn, env: nf::Env) -> Boxed<'static, Result<nf::Running, nf::BindError>> {
    Box::pin(async move {
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
    })
}
