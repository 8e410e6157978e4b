//! The administration interface: routes of the OAM socket `<run_dir>/amf.sock`.
//!
//! | route | answer |
//! |---|---|
//! | `GET /ues` | every UE context |
//! | `GET /ues/{supi}` | one |
//! | `POST /ues/{supi}/deregister` | network-initiated deregistration; answers when it is done |
//! | `GET /gnbs` | every association |
//! | `GET /procedures` | raw times of the latest procedures |
//! | `GET /counters` | every counter |
//! | `GET /status` | summary, with the members that every NF has |

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use nf::oam::{Error, Oam, Request};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use types::Supi;

use crate::context::Amf;
use crate::event::{Deregister, DeregistrationReason, UeEvent};

/// All routes.
pub(crate) fn routes(amf: &Arc<Amf>) -> Oam {
    let (a, b, c, d, e, f) = (amf.clone(), amf.clone(), amf.clone(), amf.clone(), amf.clone(), amf.clone());
    Oam::new()
        .get("/ues", move |_| ues(a.clone()))
        .get("/ues/{supi}", move |request| ue(b.clone(), request))
        .post("/ues/{supi}/deregister", move |request| deregister(c.clone(), request))
        .get("/gnbs", move |_| gnbs(d.clone()))
        .get("/procedures", move |_| {
            let samples = e.samples.snapshot();
            async move { Ok(samples) }
        })
        .get("/counters", |_| async { Ok(telemetry::counters::snapshot()) })
        .get("/status", move |_| status(f.clone()))
}

async fn ues(amf: Arc<Amf>) -> Result<Vec<Value>, Error> {
    let views = amf.ues.all().into_iter().filter_map(|ue| ue.view());
    views.map(|view| serde_json::to_value(view).map_err(Error::internal)).collect()
}

async fn ue(amf: Arc<Amf>, request: Request) -> Result<Value, Error> {
    let supi: Supi = request.param("supi")?;
    let view = amf.ues.by_supi(supi).and_then(|ue| ue.view());
    let view = view.ok_or_else(|| Error::not_found(format!("{supi} is not registered")))?;
    serde_json::to_value(view).map_err(Error::internal)
}

/// `{"reregister": true}` in the content asks the UE to register again at once.
async fn deregister(amf: Arc<Amf>, request: Request) -> Result<Value, Error> {
    let supi: Supi = request.param("supi")?;
    let ue = amf.ues.by_supi(supi).ok_or_else(|| Error::not_found(format!("{supi} is not registered")))?;
    let (done, finished) = oneshot::channel();
    let reregister = request.body()["reregister"].as_bool().unwrap_or(false);
    let why = DeregistrationReason::Operator { reregister };
    let order = Deregister { why, paged: false, done: Some(done) };
    ue.send(UeEvent::Deregister(order)).map_err(|_| Error::conflict("the UE is busy; try again"))?;
    // Bounded by T3513, T3522 and the caller's time limit. A UE that disappears meanwhile counts as
    // deregistered.
    _ = finished.await;
    Ok(json!({"supi": supi, "deregistered": true}))
}

async fn gnbs(amf: Arc<Amf>) -> Result<Vec<Value>, Error> {
    Ok(amf
        .current_gnbs()
        .into_iter()
        .map(|gnb| {
            let info = gnb.info();
            json!({
                "id": info.as_ref().map(|info| info.id.to_string()),
                "name": info.as_ref().and_then(|info| info.name.clone()),
                "address": gnb.peer,
                "tac": info.as_ref().map(|info| info.tas.iter().map(|ta| ta.tac.value()).collect::<Vec<_>>()),
                "ues": gnb.connections(),
                "received": gnb.received.load(Relaxed),
                "sent": gnb.sent.load(Relaxed),
            })
        })
        .collect())
}

async fn status(amf: Arc<Amf>) -> Result<Value, Error> {
    let views: Vec<_> = amf.ues.all().into_iter().filter_map(|ue| ue.view()).collect();
    let connected = views.iter().filter(|view| view.gnb.is_some()).count();
    let sessions: usize = views.iter().map(|view| view.sessions.len()).sum();
    Ok(json!({
        "guami": amf.guami.to_string(),
        "name": amf.config.name,
        "gnbs": amf.current_gnbs().len(),
        "ues": amf.ues.len(),
        "ues_connected": connected,
        "sessions": sessions,
        "admission": amf.admission.load(),
    }))
}
