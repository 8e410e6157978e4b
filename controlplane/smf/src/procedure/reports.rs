//! Session reports of the UPF (TS 29.244 §5.2.2.3, TS 23.502 §4.2.3.3): downlink data for an idle UE, error
//! indications, usage.

use std::net::IpAddr;
use std::sync::Arc;

use ngap::GtpTunnel;
use pfcp::endpoint::RequestId;
use pfcp::message::{SessionReportRequest, SessionReportResponse};
use pfcp::{Cause, FTeid, ReportType, ie};
use telemetry::counters::{Counter, Family};

use crate::context::Smf;
use crate::procedure::service_request;

static REPORTS: Family = Family::new("smf_session_report", "type");
static UNKNOWN_SESSION: Counter = Counter::new("smf_report_for_unknown_session");
static INCOMPLETE: Counter = Counter::new("smf_report_incomplete");
static FOREIGN_TUNNELS: Counter = Counter::new("smf_report_of_foreign_tunnel");

/// Answers a report and acts on it.
pub(crate) async fn handle(smf: Arc<Smf>, id: RequestId, seid: u64, report: SessionReportRequest) {
    let session = smf.sessions.by_seid(seid);
    let Some(session) = session else {
        UNKNOWN_SESSION.inc();
        return smf.n4.reject(id, 0, Cause::SESSION_NOT_FOUND, None);
    };
    // Not after other procedures: the session may end meanwhile.
    session.usage().count(id.peer, &report.usage_reports);
    let (upf, gnb) = {
        let state = session.state.lock().await;
        (state.upf.filter(|upf| upf.address == id.peer), state.gnb)
    };
    // The report comes from another UPF than the session's.
    let Some(up_seid) = upf.map(|upf| upf.seid) else {
        UNKNOWN_SESSION.inc();
        return smf.n4.reject(id, 0, Cause::SESSION_NOT_FOUND, None);
    };
    if let Some((cause, ie)) = incomplete(&report) {
        INCOMPLETE.inc();
        return smf.n4.reject(id, up_seid, cause, Some(ie));
    }
    smf.n4.respond(id, up_seid, SessionReportResponse { cause: Cause::ACCEPTED, ..Default::default() });
    let has = |kind| report.report_type.contains(kind);
    if has(ReportType::DLDR) {
        REPORTS.inc("downlink_data");
        service_request::activate_user_plane(&smf, &session).await;
    }
    if has(ReportType::ERIR) {
        REPORTS.inc("error_indication");
        // The gNB does not know the tunnel (TS 23.527 §5.3.3.2). An indication about a former or
        // foreign tunnel says nothing about the present one.
        if gnb.is_some_and(|gnb| names(&report, gnb)) {
            service_request::release_at_gnb(&smf, &session).await;
        } else {
            FOREIGN_TUNNELS.inc();
        }
    }
    if has(ReportType::USAR) {
        REPORTS.inc("usage");
    }
}

/// The IE that a report announces and does not contain, with the cause for its refusal (table
/// 7.5.8.1-1).
fn incomplete(report: &SessionReportRequest) -> Option<(Cause, u16)> {
    let lacks = |kind, is_there: bool| report.report_type.contains(kind) && !is_there;
    let tunnels = report.error_indication_report.as_ref().map(|report| report.remote_f_teids.len());
    if lacks(ReportType::DLDR, report.downlink_data_report.is_some()) {
        Some((Cause::CONDITIONAL_IE_MISSING, ie::DOWNLINK_DATA_REPORT))
    } else if lacks(ReportType::USAR, !report.usage_reports.is_empty()) {
        Some((Cause::CONDITIONAL_IE_MISSING, ie::USAGE_REPORT_SRR))
    } else if lacks(ReportType::ERIR, tunnels.is_some()) {
        Some((Cause::CONDITIONAL_IE_MISSING, ie::ERROR_INDICATION_REPORT))
    } else if tunnels == Some(0) {
        Some((Cause::MANDATORY_IE_MISSING, ie::F_TEID))
    } else {
        None
    }
}

/// Whether an Error Indication Report is about this tunnel.
fn names(report: &SessionReportRequest, gnb: GtpTunnel) -> bool {
    let tunnels = report.error_indication_report.iter().flat_map(|report| &report.remote_f_teids);
    tunnels.into_iter().any(|f_teid| match *f_teid {
        FTeid::Assigned { teid, ipv4, ipv6 } => {
            let addresses = [ipv4.map(IpAddr::V4), ipv6.map(IpAddr::V6)];
            teid == gnb.teid.0 && addresses.contains(&Some(gnb.address.preferred()))
        }
        FTeid::Choose { .. } => false,
    })
}
