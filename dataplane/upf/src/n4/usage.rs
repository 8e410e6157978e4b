//! Reports that the UPF sends to the CP function on its own: usage, downlink data, inactivity (TS 29.244
//! §5.2.2, §5.2.3.1, §7.5.8).
//!
//! Events of the packet path only say *check this session*. [`Sessions`] then reads the counters and finds out
//! what has happened. So an event that is late or repeated does no harm.

use std::cmp::Reverse;
use std::net::IpAddr;

use foldhash::HashSet;
use pfcp::message::{SessionReportRequest, SessionReportResponse};
use pfcp::{
    DownlinkDataReport, DownlinkDataServiceInformation, ErrorIndicationReport, FTeid, PdrId, Qfi, ReportType,
    UsageReport, UsageReportTrigger,
};
use telemetry::worker::Totals;

use super::compile::compile;
use super::rules::UrrRule;
use super::rules::urr::Now;
use super::session::{N4Session, Sessions};
use crate::plan::Mark;
use crate::plan::Peer;
use crate::tables::Held;

/// Most rounds of one check. A further round is needed only when traffic has passed the marks of the previous
/// round meanwhile.
const MAX_ROUNDS: usize = 3;
/// Most PDRs named in one downlink data report.
const MAX_REPORTED_PDRS: usize = 16;

/// A report for a CP function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The CP function.
    pub cp: IpAddr,
    /// This UPF's SEID.
    pub seid: u64,
    /// The CP function's SEID.
    pub cp_seid: u64,
    /// The request.
    pub request: SessionReportRequest,
}

/// The user plane inactivity timer (§5.11.3).
#[derive(Debug, Clone, Copy)]
pub(super) struct Activity {
    timeout_ms: u64,
    seen: (Totals, Totals),
    last_ms: u64,
    told: bool,
}

impl Activity {
    pub(super) fn new(seconds: u32, seen: (Totals, Totals), now: Now) -> Option<Activity> {
        let timeout_ms = u64::from(seconds) * 1000;
        (seconds > 0).then_some(Activity { timeout_ms, seen, last_ms: now.ms, told: false })
    }

    /// Whether the time without traffic has just become as long as the timer.
    fn expired(&mut self, usage: (Totals, Totals), now: Now) -> bool {
        if usage != self.seen {
            self.seen = usage;
            self.last_ms = now.ms;
            self.told = false;
        }
        now.ms.saturating_sub(self.last_ms) >= self.timeout_ms && !std::mem::replace(&mut self.told, true)
    }

    fn next_ms(&self, now: Now) -> u64 {
        // Reads the counters several times, to know when traffic ended.
        (now.ms + self.timeout_ms / 8).min(self.last_ms + self.timeout_ms).max(now.ms + 1)
    }
}

/// Downlink data of which the CP function must be told.
#[derive(Debug, Default)]
pub(super) struct Notification {
    /// Whether the CP function has been told since the rules last changed.
    told: bool,
    due_ms: Option<u64>,
    pdrs: Vec<PdrId>,
    service: Vec<DownlinkDataServiceInformation>,
}

impl Notification {
    /// The rules have changed: the next packet that is buffered is reported again.
    pub(super) fn reset(&mut self) {
        *self = Notification::default();
    }

    fn take(&mut self, now: Now) -> Option<DownlinkDataReport> {
        self.due_ms.filter(|due| *due <= now.ms)?;
        self.due_ms = None;
        self.told = true;
        Some(DownlinkDataReport {
            pdr_ids: std::mem::take(&mut self.pdrs),
            service_information: std::mem::take(&mut self.service),
        })
    }
}

/// The part of a rule that the packet path needs.
fn visible(urr: &UrrRule) -> (bool, Vec<Mark>) {
    (urr.exhausted, urr.marks())
}

impl N4Session {
    /// Reads the counters. Returns the reports that are due, and whether the rules of the packet path have to
    /// be updated.
    fn observe(&mut self, now: Now) -> (Vec<UsageReport>, bool) {
        let mut due: Vec<(u32, UsageReportTrigger)> = Vec::new();
        let mut changed = false;
        for (id, urr) in self.rules.urrs.iter_mut() {
            let before = visible(urr);
            let came = urr.observe(self.compiled.urr(id), now);
            changed |= visible(urr) != before;
            if came.0 != 0 {
                due.push((id, came));
            }
        }
        if due.is_empty() {
            return (Vec::new(), changed);
        }
        let reported: HashSet<u32> = due.iter().map(|(id, _)| *id).collect();
        for (id, urr) in self.rules.urrs.iter() {
            if !reported.contains(&id) && urr.follows(&reported) {
                due.push((id, UsageReportTrigger::LIUSA));
            }
        }
        let mut reports = Vec::with_capacity(due.len());
        for (id, trigger) in due {
            let reading = self.compiled.urr(id);
            if let Some(urr) = self.rules.urrs.get_mut(id) {
                reports.extend(urr.report(id, trigger, reading, now, None));
            }
        }
        (reports, true)
    }

    /// When to check again without an event.
    fn next_ms(&self, now: Now) -> Option<u64> {
        let urrs = self.rules.urrs.values().filter_map(|urr| urr.next_ms(now));
        let activity = self.activity.filter(|activity| !activity.told).map(|activity| activity.next_ms(now));
        urrs.chain(activity).chain(self.notification.due_ms).chain(self.addresses_next_ms(now)).min()
    }
}

impl Sessions {
    /// Checks a session after an event or a timer; returns the report to its CP function, if any.
    pub fn check(&mut self, seid: u64, now: impl Into<Now>) -> Option<Outgoing> {
        let now = now.into();
        let mut request = SessionReportRequest::default();
        for _ in 0..MAX_ROUNDS {
            let session = self.sessions.get_mut(&seid)?;
            let (reports, changed) = session.observe(now);
            request.usage_reports.extend(reports);
            if !changed {
                break;
            }
            self.republish(seid);
        }
        request.usage_reports.extend(self.addresses_gone(seid, now));
        let session = self.sessions.get_mut(&seid)?;
        if !request.usage_reports.is_empty() {
            request.report_type |= ReportType::USAR;
        }
        let usage = session.compiled.usage();
        if session.activity.as_mut().is_some_and(|activity| activity.expired(usage, now)) {
            request.report_type |= ReportType::UPIR;
        }
        if let Some(report) = session.notification.take(now) {
            request.report_type |= ReportType::DLDR;
            request.downlink_data_report = Some(report);
        }
        self.schedule(seid, now);
        let session = self.sessions.get(&seid)?;
        (request.report_type.0 != 0).then(|| session.outgoing(seid, request))
    }

    /// Publishes the present marks and exhausted quotas to the packet path.
    fn republish(&mut self, seid: u64) {
        let Some(session) = self.sessions.get_mut(&seid) else { return };
        let compiled = compile(seid, &session.rules, &self.interfaces);
        let published = compiled
            .and_then(|(plan, _)| Ok(self.writer.modify(&mut session.compiled, &plan, Held::Sent)?));
        if let Err(rejection) = published {
            // The same rules were accepted before, with all FARs that a quota may bring into force. So only the
            // tables can be full. Counters go on, and limits are enforced late.
            tracing::error!(seid, ?rejection, "limits of a session could not be renewed");
        }
    }

    /// Handles a packet that is buffered because of PDR `pdr`: reports it, at once or after the BAR's delay.
    pub fn downlink_data(
        &mut self,
        seid: u64,
        pdr: u16,
        service: DownlinkDataServiceInformation,
        now: impl Into<Now>,
    ) -> Option<Outgoing> {
        let now = now.into();
        let session = self.sessions.get_mut(&seid)?;
        let rules = &session.rules;
        let rule = rules.pdrs.get(pdr)?;
        let far = rules.far_of(rule)?;
        if !far.action.contains(pfcp::ApplyAction::NOCP) || session.notification.told {
            return None;
        }
        let qfi = rule.qer_ids.iter().filter_map(|id| rules.qers.get(*id)).find_map(|qer| qer.qfi);
        let delay = far.bar_id.and_then(|id| rules.bars.get(id)).map_or(0, super::rules::BarRule::delay_ms);
        let waiting = &mut session.notification;
        if waiting.pdrs.len() < MAX_REPORTED_PDRS && !waiting.pdrs.contains(&PdrId(pdr)) {
            waiting.pdrs.push(PdrId(pdr));
            let service = DownlinkDataServiceInformation { qfi: service.qfi.or(qfi.map(Qfi)), ..service };
            // Service information without content is left out (table 7.5.8.2-1).
            if service != DownlinkDataServiceInformation::default() {
                waiting.service.push(service);
            }
        }
        waiting.due_ms.get_or_insert(now.ms + delay);
        if delay > 0 {
            self.schedule(seid, now);
            return None;
        }
        self.check(seid, now)
    }

    /// The reports to CP functions that a peer does not know a tunnel to which their sessions send.
    pub fn error_indications(&self, peer: Peer, teid: u32) -> Vec<Outgoing> {
        let (ipv4, ipv6) = match peer.address {
            IpAddr::V4(address) => (Some(address), None),
            IpAddr::V6(address) => (None, Some(address)),
        };
        let remote_f_teids = vec![FTeid::Assigned { teid, ipv4, ipv6 }];
        let request = SessionReportRequest {
            report_type: ReportType::ERIR,
            error_indication_report: Some(ErrorIndicationReport { remote_f_teids }),
            ..Default::default()
        };
        let sessions = self.by_remote(peer, teid);
        sessions.map(|(seid, session)| session.outgoing(seid, request.clone())).collect()
    }

    /// Does what the response to a report asks. Returns whether buffered packets must be dropped.
    pub fn report_answered(&mut self, seid: u64, response: &SessionReportResponse) -> bool {
        let Some(session) = self.sessions.get_mut(&seid) else { return false };
        if let Some(update) = &response.update_bar {
            session.rules.update_bar_in_response(update);
            self.republish(seid);
        }
        response.flags.is_some_and(|flags| flags.contains(pfcp::SrRspFlags::DROBU))
    }

    /// Schedules the next check of a session.
    pub(super) fn schedule(&mut self, seid: u64, now: Now) {
        let Some(session) = self.sessions.get_mut(&seid) else { return };
        let next = session.next_ms(now);
        if next != session.due_ms {
            session.due_ms = next;
            self.timers.extend(next.map(|at| Reverse((at, seid))));
        }
    }

    /// When [`Sessions::handle_timeout`] must be called, in milliseconds of [`Now`].
    pub fn next_timeout(&mut self) -> Option<u64> {
        while let Some(Reverse((at, seid))) = self.timers.peek().copied() {
            if self.sessions.get(&seid).is_some_and(|session| session.due_ms == Some(at)) {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    /// Checks one session whose time has come; `None` when there is none. The inner `None` means nothing to
    /// report.
    pub fn handle_timeout(&mut self, now: impl Into<Now>) -> Option<Option<Outgoing>> {
        let now = now.into();
        let due = self.next_timeout().is_some_and(|at| at <= now.ms);
        let Reverse((_, seid)) = due.then(|| self.timers.pop()).flatten()?;
        if let Some(session) = self.sessions.get_mut(&seid) {
            session.due_ms = None;
        }
        Some(self.check(seid, now))
    }
}

impl N4Session {
    pub(super) fn outgoing(&self, seid: u64, request: SessionReportRequest) -> Outgoing {
        Outgoing { cp: self.cp, seid, cp_seid: self.cp_seid, request }
    }
}
