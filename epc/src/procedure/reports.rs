//! Session reports of the UPF (TS 29.244 §5.2.2.3): downlink data for an idle UE, and eNBs that do not know a tunnel.

use std::net::IpAddr;
use std::sync::Arc;

use gtpv2c::value::{CauseValue, Ebi};
use pfcp::endpoint::RequestId;
use pfcp::message::{SessionReportRequest, SessionReportResponse};
use pfcp::{Cause, FTeid, ReportType, ie};
use telemetry::counters::{Counter, Family};

use super::{paging, release_access_bearers};
use crate::bearer::Tunnel;
use crate::context::Gateway;

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
        (pdn.upf.seid, pdn.default_bearer().map_or(Ebi(0), |bearer| bearer.ebi))
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
        let mut state = ue.state.lock().await;
        let Some(pdn) = state.pdns.iter().find(|pdn| pdn.number == seid) else { return };
        let tunnels = report.error_indication_report.iter().flat_map(|report| &report.remote_f_teids);
        let mut tunnels = tunnels.filter_map(|f_teid| tunnel(*f_teid));
        // One about a former or foreign tunnel says nothing about the present one. If there should be none, the UPF has missed that.
        let is_lost = tunnels.any(|lost| {
            pdn.bearers.iter().any(|bearer| bearer.enb == Some(lost))
                || pdn.bearers.iter().all(|bearer| bearer.enb.is_none())
        });
        if !is_lost {
            return;
        }
        if let Err(error) = release_access_bearers::buffer(&gateway, &mut state).await {
            tracing::debug!(imsi = %ue.imsi, %error, "tunnels of an eNB that has lost them");
        }
        drop(state);
        // The eNB has lost the UE (TS 23.007 §22).
        let cause = Some(CauseValue::ERROR_INDICATION_RECEIVED);
        tokio::spawn(paging::notify(gateway.clone(), ue, ebi, cause));
    }
}

fn tunnel(f_teid: FTeid) -> Option<Tunnel> {
    let FTeid::Assigned { teid, ipv4, ipv6 } = f_teid else { return None };
    let address = ipv4.map(IpAddr::V4).or(ipv6.map(IpAddr::V6))?;
    Some(Tunnel { address, teid: types::Teid(teid) })
}
