//! What the UPF tells the CP function by itself: usage, downlink data, inactivity (TS 29.244 §5.2.2, §5.2.3.1, §7.5.8).
//!
//! Events of the packet path only say *look at this session*; [`Sessions`] then reads the counters and finds out what
//! has happened. So an event that comes late or twice does no harm.

use std::cmp::Reverse;
use std::net::IpAddr;

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
use crate::tables::Held;

/// How often one look may find something new: each round only happens when traffic has passed the marks of the
/// previous one meanwhile.
const MAX_ROUNDS: usize = 3;
/// PDRs named in one downlink data report.
const MAX_REPORTED_PDRS: usize = 16;

/// A report for a CP function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The CP function.
    pub cp: IpAddr,
    /// Our SEID.
    pub seid: u64,
    /// Its SEID.
    pub cp_seid: u64,
    /// What it is told.
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

    /// Whether the time without traffic has passed just now.
    fn expired(&mut self, usage: (Totals, Totals), now: Now) -> bool {
        if usage != self.seen {
            self.seen = usage;
            self.last_ms = now.ms;
            self.told = false;
        }
        now.ms.saturating_sub(self.last_ms) >= self.timeout_ms && !std::mem::replace(&mut self.told, true)
    }

    fn next_ms(&self, now: Now) -> u64 {
        // Looks in between, to know when traffic ended.
        (now.ms + self.timeout_ms / 8).min(self.last_ms + self.timeout_ms).max(now.ms + 1)
    }
}

/// Downlink data that the CP function is to be told of.
#[derive(Debug, Default)]
pub(super) struct Notification {
    /// It has been told since the rules last changed.
    told: bool,
    due_ms: Option<u64>,
    pdrs: Vec<PdrId>,
    service: Vec<DownlinkDataServiceInformation>,
}

impl Notification {
    /// The rules have changed: the next packet that waits is reported again.
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

/// What of a rule the packet path has to know.
fn visible(urr: &UrrRule) -> (bool, Vec<Mark>) {
    (urr.exhausted, urr.marks())
}

impl N4Session {
    /// Reads the counters: the reports that are due, and whether the packet path has to be told something.
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
        let reported: Vec<u32> = due.iter().map(|(id, _)| *id).collect();
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

    /// When to look again without an event.
    fn next_ms(&self, now: Now) -> Option<u64> {
        let urrs = self.rules.urrs.values().filter_map(|urr| urr.next_ms(now));
        let activity = self.activity.filter(|activity| !activity.told).map(|activity| activity.next_ms(now));
        urrs.chain(activity).chain(self.notification.due_ms).chain(self.addresses_next_ms(now)).min()
    }
}

impl Sessions {
    /// Looks at a session after an event or a timer: what its CP function is to be told.
    pub fn look(&mut self, seid: u64, now: impl Into<Now>) -> Option<Outgoing> {
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

    /// Tells the packet path the marks and exhausted quotas of now.
    fn republish(&mut self, seid: u64) {
        let Some(session) = self.sessions.get_mut(&seid) else { return };
        let compiled = compile(seid, &session.rules, &self.config);
        let published = compiled
            .and_then(|(plan, _)| Ok(self.writer.modify(&mut session.compiled, &plan, Held::Sent)?));
        if let Err(rejection) = published {
            // The same rules were accepted before; counters go on, limits are enforced late.
            tracing::error!(seid, ?rejection, "limits of a session could not be renewed");
        }
    }

    /// A packet waits because of PDR `pdr`: the CP function is told, at once or after the BAR's delay.
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
            // One that says nothing is left out (table 7.5.8.2-1).
            if service != DownlinkDataServiceInformation::default() {
                waiting.service.push(service);
            }
        }
        waiting.due_ms.get_or_insert(now.ms + delay);
        if delay > 0 {
            self.schedule(seid, now);
            return None;
        }
        self.look(seid, now)
    }

    /// A peer does not know a tunnel that sessions send to: the reports about that.
    pub fn error_indications(&self, peer: IpAddr, teid: u32) -> Vec<Outgoing> {
        let (ipv4, ipv6) = match peer {
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

    /// Does what the answer to a report says. Returns whether buffered packets are to be dropped.
    pub fn report_answered(&mut self, seid: u64, response: &SessionReportResponse) -> bool {
        let Some(session) = self.sessions.get_mut(&seid) else { return false };
        if let Some(update) = &response.update_bar {
            session.rules.update_bar_in_response(update);
            self.republish(seid);
        }
        response.flags.is_some_and(|flags| flags.contains(pfcp::SrRspFlags::DROBU))
    }

    /// Remembers when to look at a session again.
    pub(super) fn schedule(&mut self, seid: u64, now: Now) {
        let Some(session) = self.sessions.get_mut(&seid) else { return };
        let next = session.next_ms(now);
        if next != session.due_ms {
            session.due_ms = next;
            self.timers.extend(next.map(|at| Reverse((at, seid))));
        }
    }

    /// When [`Sessions::handle_timeout`] is to be called, in milliseconds of [`Now`].
    pub fn next_timeout(&mut self) -> Option<u64> {
        while let Some(Reverse((at, seid))) = self.timers.peek().copied() {
            if self.sessions.get(&seid).is_some_and(|session| session.due_ms == Some(at)) {
                return Some(at);
            }
            self.timers.pop();
        }
        None
    }

    /// Looks at one session whose time has come; `None` when there is none. It may have nothing to tell.
    pub fn handle_timeout(&mut self, now: impl Into<Now>) -> Option<Option<Outgoing>> {
        let now = now.into();
        let due = self.next_timeout().is_some_and(|at| at <= now.ms);
        let Reverse((_, seid)) = due.then(|| self.timers.pop()).flatten()?;
        if let Some(session) = self.sessions.get_mut(&seid) {
            session.due_ms = None;
        }
        Some(self.look(seid, now))
    }
}

impl N4Session {
    pub(super) fn outgoing(&self, seid: u64, request: SessionReportRequest) -> Outgoing {
        Outgoing { cp: self.cp, seid, cp_seid: self.cp_seid, request }
    }
}
