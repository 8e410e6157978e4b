//! Reports that this UPF sends to CP functions on its own: sent, kept for another attempt, and bounded (TS
//! 29.244 §7.5.8).
//!
//! A CP function that is silent for a while must not lose usage reports, and must not fill the memory either.
//! So the usage reports that are sent but not answered, and those that are kept, are counted one by one,
//! however many a message contains.
//!
//! Silence may last any time. A report that was answered, but with a wrong SEID or with a malformed message, is
//! lost after [`MAX_WRONG_ANSWERS`] such answers. Only a right answer makes this UPF send further kept reports:
//! a CP function whose answers are all wrong would otherwise get a report for each of them, without end.

use std::collections::VecDeque;
use std::net::IpAddr;

use foldhash::HashMap;
use pfcp::endpoint::{Failure, Handle};
use pfcp::message::{NodeReportRequest, SessionReportRequest};
use pfcp::{
    AdditionalUsageReports, Cause, Message, NodeReportType, RemoteGtpuPeer, ReportType, UsageReport,
    UserPlanePathReport,
};
use telemetry::counters::{Counter, Family};

use super::usage::Outgoing;
use super::{DELETED, Server, now};

/// Usage reports in one message: as many as fit in a datagram even if each has all its fields.
const MAX_IN_MESSAGE: usize = 200;
/// GTP-U peers in one message: as many as fit in a datagram.
const MAX_PEERS: usize = 1024;
/// Most usage reports in all that CP functions have not answered yet; further ones are kept.
const MAX_UNDER_WAY: usize = 65_536;
/// Most usage reports in all that are kept for CP functions that do not answer.
const MAX_KEPT: usize = 16_384;
/// Kept reports that are sent at once when a CP function answers again; its socket must be able to hold them.
pub(super) const RESENT_AT_ONCE: usize = 32;
/// Kept reports that are sent after each of its later answers, until none is left.
const RESENT_WITH_ANSWER: usize = 1;
/// Wrong answers to a report after which it is lost.
const MAX_WRONG_ANSWERS: u8 = 3;

static REPORTS: Family = Family::new("upf_n4_reports", "kind");
static WRONG_SEIDS: Counter = Counter::new("upf_n4_wrong_seids");
static REPORTS_LOST: Counter = Counter::new("upf_n4_reports_lost");

/// Content of a request of this UPF.
#[derive(Debug)]
enum Asked {
    /// A session report, which is kept for another attempt.
    Session(Box<Report>),
    /// A node report of a path failure or recovery.
    Node,
}

/// A session report with its history.
#[derive(Debug)]
struct Report {
    outgoing: Outgoing,
    /// Answers to it that named another session or were malformed.
    wrong_answers: u8,
}

/// Reports that CP functions have not answered.
#[derive(Debug, Default)]
pub(super) struct Reports {
    asked: HashMap<Handle, Asked>,
    /// Number of usage reports among them.
    pub(super) under_way: usize,
    /// Sessions that have an Error Indication Report among them.
    erring: HashMap<u64, ()>,
    /// Reports that a CP function did not answer, oldest first, to be sent when it answers again.
    kept: HashMap<IpAddr, VecDeque<Report>>,
    /// Number of usage reports among these.
    pub(super) kept_usage: usize,
}

fn usage(report: &Report) -> usize {
    report.outgoing.request.usage_reports.len()
}

impl Reports {
    fn sent(&mut self, handle: Handle, report: Report) {
        self.under_way += usage(&report);
        if report.outgoing.request.error_indication_report.is_some() {
            self.erring.insert(report.outgoing.seid, ());
        }
        self.asked.insert(handle, Asked::Session(Box::new(report)));
    }

    /// Removes and returns the session report of a request that was answered or has failed.
    fn over(&mut self, handle: Handle) -> Option<Report> {
        let Some(Asked::Session(report)) = self.asked.remove(&handle) else { return None };
        self.under_way -= usage(&report);
        if report.outgoing.request.error_indication_report.is_some() {
            self.erring.remove(&report.outgoing.seid);
        }
        Some(*report)
    }

    /// Keeps the usage of a report that was not answered. The rest of the report will be outdated by the time
    /// the CP function answers again.
    fn keep(&mut self, report: Report) {
        let count = usage(&report);
        if self.kept_usage + count > MAX_KEPT {
            REPORTS_LOST.add(count as u64);
        } else if count > 0 {
            self.kept_usage += count;
            self.kept.entry(report.outgoing.cp).or_default().push_back(report);
        }
    }

    /// Keeps the usage of a report that was answered wrongly, unless this has happened too often.
    fn keep_after_wrong_answer(&mut self, mut report: Report) {
        report.wrong_answers += 1;
        if report.wrong_answers < MAX_WRONG_ANSWERS {
            self.keep(report);
        } else {
            REPORTS_LOST.add(usage(&report) as u64);
        }
    }

    /// Removes and returns the oldest report that is kept for a CP function.
    fn take_kept(&mut self, peer: IpAddr) -> Option<Report> {
        let list = self.kept.get_mut(&peer)?;
        let report = list.pop_front();
        if list.is_empty() {
            self.kept.remove(&peer);
        }
        self.kept_usage -= report.as_ref().map_or(0, usage);
        report
    }

    /// Drops the reports for a CP function that is gone with its sessions.
    pub(super) fn forget(&mut self, peer: IpAddr) {
        let gone = self.kept.remove(&peer).unwrap_or_default();
        self.kept_usage -= gone.iter().map(usage).sum::<usize>();
    }
}

/// Removes the usage reports that do not fit in a message; returns them, and the IE that announces them.
pub(super) fn overflow(reports: &mut Vec<UsageReport>) -> (Vec<UsageReport>, Option<AdditionalUsageReports>) {
    let rest = reports.split_off(reports.len().min(MAX_IN_MESSAGE));
    let count = rest.len() as u16;
    let additional = (count > 0).then_some(AdditionalUsageReports { more: false, count });
    (rest, additional)
}

impl Server {
    /// Reports GTP-U peers that have failed or recovered to all CP functions (§6.2.9).
    pub(super) fn report_paths(&mut self, recovered: bool, peers: &[RemoteGtpuPeer]) {
        for peers in peers.chunks(MAX_PEERS) {
            let report = Some(UserPlanePathReport { peers: peers.to_vec() });
            let (report_type, path_failure, path_recovery) = match recovered {
                false => (NodeReportType::UPFR, report, None),
                true => (NodeReportType::UPRR, None, report),
            };
            let node_id = self.node_id.clone();
            self.report_path(&NodeReportRequest { node_id, report_type, path_failure, path_recovery });
        }
    }

    fn report_path(&mut self, request: &NodeReportRequest) {
        for (_, association) in self.associations.iter() {
            match self.endpoint.send_request(now(), association.address, 0, request.clone()) {
                Ok(handle) => {
                    REPORTS.inc("path");
                    self.reports.asked.insert(handle, Asked::Node);
                }
                Err(error) => tracing::debug!(%error, "path not reported"),
            }
        }
    }

    /// Reports usage for which a response had no room (§5.2.2.3.1).
    pub(super) fn report_rest(
        &mut self,
        (cp, seid, cp_seid): (IpAddr, u64, u64),
        usage_reports: Vec<UsageReport>,
    ) {
        if !usage_reports.is_empty() {
            let request =
                SessionReportRequest { report_type: ReportType::USAR, usage_reports, ..Default::default() };
            self.report(Outgoing { cp, seid, cp_seid, request });
        }
    }

    /// Sends a session report, in as many messages as needed, or keeps it for later.
    pub(super) fn report(&mut self, mut report: Outgoing) {
        let (rest, additional) = overflow(&mut report.request.usage_reports);
        report.request.additional_usage_reports = additional;
        let whose = (report.cp, report.seid, report.cp_seid);
        self.send_report(Report { outgoing: report, wrong_answers: 0 });
        // The recursion ends because each round has fewer usage reports.
        self.report_rest(whose, rest);
    }

    fn send_report(&mut self, report: Report) {
        let Outgoing { cp, cp_seid, ref request, .. } = report.outgoing;
        let Some(association) = self.associations.get(cp) else {
            return REPORTS_LOST.inc();
        };
        if usage(&report) > 0 && self.reports.under_way >= MAX_UNDER_WAY {
            return self.reports.keep(report);
        }
        let request = request.clone();
        for (flag, kind) in [
            (ReportType::USAR, "usage"),
            (ReportType::DLDR, "downlink-data"),
            (ReportType::ERIR, "error-indication"),
            (ReportType::UPIR, "inactivity"),
        ] {
            if request.report_type.contains(flag) {
                REPORTS.inc(kind);
            }
        }
        match self.endpoint.send_request(now(), association.address, cp_seid, request) {
            Ok(handle) => self.reports.sent(handle, report),
            Err(error) => {
                tracing::debug!(%error, "session not reported");
                self.reports.keep(report);
            }
        }
    }

    /// Reports that a peer does not know a tunnel, unless such a report of the session is still unanswered. The
    /// peer repeats its Error Indication when it gets the next packet.
    pub(super) fn report_error(&mut self, report: Outgoing) {
        if !self.reports.erring.contains_key(&report.seid) {
            self.report(report);
        }
    }

    /// Handles an answer of a CP function to a report.
    pub(super) fn answered(&mut self, handle: Handle, peer: IpAddr, seid: Option<u64>, message: &Message) {
        let Some(report) = self.reports.over(handle) else {
            return self.resend(peer, RESENT_WITH_ANSWER);
        };
        let Message::SessionReportResponse(response) = message else { return };
        // A CP function that has forgotten the session may have forgotten this UPF's SEID too (§7.2.2.4.2).
        let unknown = response.cause == Cause::SESSION_NOT_FOUND && seid == Some(0);
        if seid != Some(report.outgoing.seid) && !unknown {
            WRONG_SEIDS.inc();
            return self.reports.keep_after_wrong_answer(report);
        }
        self.resend(peer, RESENT_WITH_ANSWER);
        let report = report.outgoing;
        if response.cause == Cause::SESSION_NOT_FOUND {
            // The CP function does not know the session and will never delete it (§6.3.5.3).
            if self.sessions.get(report.seid).is_some() {
                tracing::info!(seid = report.seid, "session removed: the CP function does not know it");
                self.sessions.remove(report.seid);
                DELETED.inc();
            }
        } else if self.sessions.report_answered(report.seid, response) {
            self.sessions.drop_buffered(report.seid, report.cp);
        }
    }

    /// Handles a report that a CP function did not answer, or answered with a malformed message.
    pub(super) fn failed(&mut self, handle: Handle, failure: Failure) {
        let Some(report) = self.reports.over(handle) else { return };
        if failure == Failure::TimedOut {
            self.reports.keep(report);
        } else {
            self.reports.keep_after_wrong_answer(report);
        }
    }

    /// Sends up to `most` kept reports to a CP function that answers again.
    pub(super) fn resend(&mut self, peer: IpAddr, most: usize) {
        for _ in 0..most {
            let Some(report) = self.reports.take_kept(peer) else { return };
            self.send_report(report);
        }
    }
}
