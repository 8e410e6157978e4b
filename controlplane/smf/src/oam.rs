//! OAM of the SMF: `GET /sessions`, `POST /sessions/{supi}/{id}/release`, `GET /procedures`, `GET /status`.

use std::sync::Arc;

use nas::GsmCause;
use nf::Oam;
use nf::oam::{Error, Request};
use serde::Serialize;
use serde_json::{Value, json};
use types::{Dnn, PduSessionId, PduSessionType, SNssai, Supi};

use crate::context::{Session, Smf};
use crate::procedure::release;
use crate::usage::Total;

/// A session in `godwit session list`.
#[derive(Debug, Serialize)]
struct SessionListing {
    supi: Supi,
    id: PduSessionId,
    sm_context_ref: String,
    dnn: Dnn,
    snssai: SNssai,
    #[serde(rename = "type")]
    session_type: PduSessionType,
    ipv4: Option<std::net::Ipv4Addr>,
    ipv6: Option<String>,
    ambr_uplink: String,
    ambr_downlink: String,
    five_qi: u8,
    state: &'static str,
    /// `activated`, `activating`, `deactivated`, or `upf_lost` if the UPF does not answer.
    user_plane: Value,
    upf: Option<String>,
    upf_teid: Option<String>,
    gnb: Option<String>,
    gnb_teid: Option<String>,
    /// What UPFs have reported so far.
    usage: Option<Total>,
}

async fn show(smf: &Smf, session: &Session) -> SessionListing {
    let state = session.state.lock().await;
    let upf_lost = state.upf.is_some_and(|upf| !smf.n4.is_up(upf.address));
    let n3 = state.upf.map(|upf| upf.tunnels.n3);
    SessionListing {
        supi: session.supi,
        id: session.id,
        sm_context_ref: session.reference(),
        dnn: session.dnn.clone(),
        snssai: session.s_nssai,
        session_type: state.session_type,
        ipv4: state.addresses.ipv4,
        ipv6: state.addresses.ipv6.map(|prefix| format!("{prefix}/64")),
        ambr_uplink: state.qos.ambr.uplink.to_string(),
        ambr_downlink: state.qos.ambr.downlink.to_string(),
        five_qi: state.qos.five_qi.0,
        state: state.phase.name(),
        user_plane: if upf_lost { json!("upf_lost") } else { json!(state.up) },
        upf: n3.map(|tunnel| tunnel.address.preferred().to_string()),
        upf_teid: n3.map(|tunnel| tunnel.teid.to_string()),
        gnb: state.gnb.map(|tunnel| tunnel.address.preferred().to_string()),
        gnb_teid: state.gnb.map(|tunnel| tunnel.teid.to_string()),
        usage: session.usage().total(),
    }
}

/// The routes.
pub(crate) fn routes(smf: Arc<Smf>) -> Oam {
    let (list, end, times, status) = (smf.clone(), smf.clone(), smf.clone(), smf);
    Oam::new()
        .get("/sessions", move |_| {
            let smf = list.clone();
            async move {
                let mut shown = Vec::new();
                for session in smf.sessions.all() {
                    shown.push(show(&smf, &session).await);
                }
                shown.sort_by_key(|session| (session.supi.to_string(), session.id));
                Ok(shown)
            }
        })
        .post("/sessions/{supi}/{id}/release", move |request| release_session(end.clone(), request))
        .get("/procedures", move |_| {
            let smf = times.clone();
            async move { Ok(smf.samples.snapshot()) }
        })
        .get("/status", move |_| {
            let smf = status.clone();
            async move { Ok(show_status(&smf)) }
        })
}

async fn release_session(smf: Arc<Smf>, request: Request) -> Result<Value, Error> {
    let supi: Supi = request.param("supi")?;
    let id: u8 = request.param("id")?;
    let id = PduSessionId::new(id).map_err(Error::bad_request)?;
    let session = smf.sessions.of_ue(supi, id).ok_or_else(|| Error::not_found("no such session"))?;
    release::by_network(&smf, &session, GsmCause::RegularDeactivation).await;
    Ok(json!({ "released": true }))
}

fn show_status(smf: &Smf) -> Value {
    let pools = smf.networks.values().map(|network| {
        let (ipv4, ipv6) = network.pool().free();
        json!({ "dnn": network.config.name, "free_ipv4": ipv4, "free_ipv6_prefixes": ipv6 })
    });
    json!({ "sessions": smf.sessions.len(), "upfs": smf.n4.status(), "pools": pools.collect::<Vec<_>>() })
}
