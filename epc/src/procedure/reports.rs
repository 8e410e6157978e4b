//! Session reports of the UPF (TS 29.244 §5.2.2.3): downlink data for an idle UE, and neighbours that do not know a tunnel.

use std::sync::Arc;

use gtpv2c::value::{CauseValue, Ebi};
use pfcp::endpoint::RequestId;
use pfcp::message::{SessionReportRequest, SessionReportResponse};
use pfcp::{Cause, ReportType, ie};
use telemetry::counters::{Counter, Family};

use super::{bearers, delete_session, paging, release_access_bearers};
use crate::bearer::{Bearer, Slot, Tunnel};
use crate::context::{Gateway, Pdn, Role, Ue};
use crate::rules;

static REPORTS: Family = Family::new("epc_session_report", "type");
static UNKNOWN_SESSION: Counter = Counter::new("epc_report_for_unknown_session");

/// Answers a report and acts on it.
pub(crate) async fn handle(gateway: Arc<Gateway>, id: RequestId, seid: u64, report: SessionReportRequest) {
    let unknown = || {
        UNKNOWN_SESSION.inc();
        gateway.n4.reject(id, 0, Cause::SESSION_NOT_FOUND, None);
    };
    let Some(ue) = gateway.ues.by_seid(seid) else { return unknown() };
    let (up_seid, ebi) = {
        let state = ue.state.lock().await;
        let pdn = state.pdns.iter().find(|pdn| pdn.number == seid && pdn.upf.address == id.peer);
        let Some(pdn) = pdn else { return unknown() };
        (pdn.upf.seid, bearer_of(pdn, &report))
    };
    let has = |kind| report.report_type.contains(kind);
    if has(ReportType::DLDR) && report.downlink_data_report.is_none() {
        return gateway.n4.reject(id, up_seid, Cause::CONDITIONAL_IE_MISSING, Some(ie::DOWNLINK_DATA_REPORT));
    }
    gateway.n4.respond(id, up_seid, SessionReportResponse { cause: Cause::ACCEPTED, ..Default::default() });
    if has(ReportType::DLDR) {
        REPORTS.inc("downlink_data");
        tokio::spawn(paging::notify(gateway.clone(), ue.clone(), ebi, None));
    }
    if has(ReportType::ERIR) {
        REPORTS.inc("error_indication");
        let tunnels = report.error_indication_report.iter().flat_map(|report| &report.remote_f_teids);
        let tunnels: Vec<Tunnel> = tunnels.filter_map(|f_teid| rules::tunnel(*f_teid)).collect();
        lost_tunnels(gateway, ue, seid, &tunnels, ebi).await;
    }
}

/// The bearer for which there is downlink data; the default one if the UPF does not say.
fn bearer_of(pdn: &Pdn, report: &SessionReportRequest) -> Ebi {
    let pdrs = report.downlink_data_report.iter().flat_map(|report| &report.pdr_ids);
    let mut slots = pdrs.filter_map(|pdr| rules::slot_of(*pdr));
    let of_slot = |slot| pdn.bearers.iter().find(|bearer| bearer.slot == slot && bearer.ebi != Ebi(0));
    slots.find_map(of_slot).or(pdn.default_bearer()).map_or(Ebi(0), |bearer| bearer.ebi)
}

/// A neighbour's user plane does not know tunnels of a PDN connection (TS 23.007 §22). An eNB has lost the UE, which is paged. Of a
/// gateway's a bearer ends, or with the default one the PDN connection.
async fn lost_tunnels(gateway: Arc<Gateway>, ue: Arc<Ue>, seid: u64, tunnels: &[Tunnel], ebi: Ebi) {
    let mut state = ue.state.lock().await;
    let mme = state.mme;
    let Some(at) = state.pdns.iter().position(|pdn| pdn.number == seid) else { return };
    let pdn = &mut state.pdns[at];
    let is_lost = |tunnel: Option<Tunnel>| tunnel.is_some_and(|tunnel| tunnels.contains(&tunnel));
    let at_gateway = |bearer: &&Bearer| match pdn.role {
        Role::Both => false,
        Role::Sgw { .. } => is_lost(bearer.s5.pgw),
        Role::Pgw { .. } => is_lost(bearer.access),
    };
    let lost: Vec<(Slot, Ebi)> =
        pdn.bearers.iter().filter(at_gateway).map(|bearer| (bearer.slot, bearer.ebi)).collect();
    if lost.iter().any(|(slot, _)| *slot == Slot::DEFAULT) {
        let pdn = state.pdns.remove(at);
        match pdn.role.is_sgw() {
            true => delete_session::end_lost(&gateway, mme, pdn).await,
            false => delete_session::end_here(&gateway, pdn).await,
        }
        return delete_session::forget_if_empty(&gateway, &ue, &mut state);
    }
    for (_, ebi) in &lost {
        bearers::remove(&gateway, pdn, *ebi).await;
    }
    if let (false, Some(mme), true) = (lost.is_empty(), mme, pdn.role.is_sgw()) {
        let ebis = lost.iter().map(|(_, ebi)| *ebi).collect();
        let request = gtpv2c::message::DeleteBearerRequest { ebis, ..Default::default() };
        let gateway = gateway.clone();
        tokio::spawn(async move { gateway.gtpc.request(mme.f_teid, request).await });
    }
    // One about a former or foreign tunnel says nothing about the present one. If there should be none, the UPF has missed that.
    let has_lost_ue = pdn.role.is_sgw()
        && lost.is_empty()
        && !tunnels.is_empty()
        && (pdn.bearers.iter().any(|bearer| is_lost(bearer.access))
            || pdn.bearers.iter().all(|bearer| bearer.access.is_none()));
    if !has_lost_ue {
        return;
    }
    if let Err(error) = release_access_bearers::buffer(&gateway, &mut state).await {
        tracing::debug!(imsi = %ue.imsi, %error, "tunnels of an eNB that has lost them");
    }
    drop(state);
    let cause = Some(CauseValue::ERROR_INDICATION_RECEIVED);
    tokio::spawn(paging::notify(gateway.clone(), ue, ebi, cause));
}
