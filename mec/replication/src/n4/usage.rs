//! Usage of one session that several UPFs have measured, charged once (CAP-5; TS 29.244 §5.2.2, §7.5.8.3).
//!
//! Each UPF counts its reports for itself, by the same rules (URRs). The SMF knows one UPF: it gets all reports as the original's, numbered in
//! one order. Volumes are what each UPF has carried, so they are passed on as they are. A UPF that measures time without
//! traffic goes on while another one serves the user, so no more seconds are charged than have passed.
//!
//! A [`Ledger`] has the numbers of one session. A report of the original gets its own number and as many as clones' reports came
//! before it. A report of a clone gets the next number, or is added to one of the original's, which takes no number. Until the
//! next number is known a clone's report waits for one of the original's, unless the SMF has to grant something for it.

use pfcp::codec::Value as _;
use pfcp::message::{Header, Message, MessageType, SessionReportRequest};
use pfcp::{ReportType, UsageReportTrigger, VolumeMeasurement, ie};

use telemetry::counters::Counter;

use super::tree;
use crate::template::Misfit;

/// Reports of clones that nobody can be told.
pub(crate) static UNCHARGED: Counter = Counter::new("replication_usage_reports_lost");

/// Most URRs of a session that are counted, and most reports that wait: a UPF that has more is not believed.
const MOST: usize = 256;

/// The type of reports in a message; `None`: it has none.
fn kind_in(message: &[u8]) -> Option<u16> {
    match MessageType::from_code(*message.get(1)?)? {
        MessageType::SessionReportRequest => Some(ie::USAGE_REPORT_SRR),
        MessageType::SessionModificationResponse => Some(ie::USAGE_REPORT_SMR),
        MessageType::SessionDeletionResponse => Some(ie::USAGE_REPORT_SDR),
        _ => None,
    }
}

/// The reports in a message, without their types and lengths.
pub fn reports(message: &[u8]) -> Vec<Vec<u8>> {
    let Some(wanted) = kind_in(message) else { return Vec::new() };
    let ies = message.get(tree::HEADER..).unwrap_or_default();
    tree::all(ies).filter(|(kind, _)| *kind == wanted).map(|(_, value)| value.to_vec()).collect()
}

/// Whether a request is answered with usage: it ends the session, or asks for usage, or removes what measures.
pub fn is_asked_for(request: &[u8]) -> bool {
    match request.get(1).and_then(|code| MessageType::from_code(*code)) {
        Some(MessageType::SessionDeletionRequest) => true,
        Some(MessageType::SessionModificationRequest) => {
            tree::all(request.get(tree::HEADER..).unwrap_or_default()).any(|(kind, value)| match kind {
                ie::QUERY_URR | ie::REMOVE_URR => true,
                ie::PFCPSMREQ_FLAGS => value.first().is_some_and(|flags| flags & QUERY_ALL != 0),
                _ => false,
            })
        }
        _ => false,
    }
}

/// QAURR of PFCPSMReq-Flags (§8.2.29).
const QUERY_ALL: u8 = 0x04;

/// Whether all octets of a message are IEs, so that it can be written again.
pub fn is_whole(message: &[u8]) -> bool {
    let Some(ies) = message.get(tree::HEADER..) else { return false };
    let mut at = 0;
    while tree::next(ies, &mut at).is_some() {}
    at == ies.len() && Header::decode(message).is_ok_and(|(header, ..)| !header.follow_on)
}

fn number(report: &[u8], kind: u16) -> Option<u32> {
    tree::find(report, kind).and_then(|value| value.first_chunk()).map(|octets| u32::from_be_bytes(*octets))
}

fn volume(report: &[u8]) -> Option<VolumeMeasurement> {
    tree::find(report, ie::VOLUME_MEASUREMENT).and_then(|value| VolumeMeasurement::decode(value).ok())
}

/// Whether a report says that nothing was carried.
pub fn is_of_nothing(report: &[u8]) -> bool {
    let events =
        [ie::EVENT_TIME_STAMP, ie::APPLICATION_DETECTION_INFORMATION, ie::ETHERNET_TRAFFIC_INFORMATION];
    let has_events = tree::all(report).any(|(kind, _)| events.contains(&kind));
    let is_empty = |measured: VolumeMeasurement| {
        let VolumeMeasurement { total, uplink, downlink, total_packets, uplink_packets, downlink_packets } =
            measured;
        let all = [total, uplink, downlink, total_packets, uplink_packets, downlink_packets];
        all.into_iter().flatten().all(|octets| octets == 0)
    };
    match volume(report) {
        Some(measured) => is_empty(measured) && !has_events,
        None => number(report, ie::DURATION_MEASUREMENT).is_none_or(|seconds| seconds == 0) && !has_events,
    }
}

/// Whether a report asks for a new threshold or quota, which the SMF grants in answer: without it traffic stops.
fn is_urgent(report: &[u8]) -> bool {
    const QUOTAS: [UsageReportTrigger; 10] = [
        UsageReportTrigger::VOLTH,
        UsageReportTrigger::TIMTH,
        UsageReportTrigger::QUHTI,
        UsageReportTrigger::DROTH,
        UsageReportTrigger::VOLQU,
        UsageReportTrigger::TIMQU,
        UsageReportTrigger::EVETH,
        UsageReportTrigger::EVEQU,
        UsageReportTrigger::QUVTI,
        UsageReportTrigger::LIUSA,
    ];
    let trigger =
        tree::find(report, ie::USAGE_REPORT_TRIGGER).and_then(|value| UsageReportTrigger::decode(value).ok());
    trigger.is_some_and(|trigger| QUOTAS.into_iter().any(|quota| trigger.contains(quota)))
}

fn with(report: &[u8], wanted: u16, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(report.len());
    tree::rewrite(report, &mut Vec::new(), &mut out, &mut |path, _| {
        if *path == [wanted] { Some(value.to_vec()) } else { None }
    });
    out
}

/// Appends an IE to a message.
pub(super) fn append(message: &mut Vec<u8>, kind: u16, value: &[u8]) -> Result<(), Misfit> {
    let length = u16::try_from(value.len()).map_err(|_| Misfit)?;
    let whole = u16::try_from(message.len() + value.len()).map_err(|_| Misfit)?;
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(value);
    message[2..4].copy_from_slice(&whole.to_be_bytes());
    Ok(())
}

/// Whether one of two NTP times is the earlier one, also where they wrap.
fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other)).cast_signed() < 0
}

/// What two reports of a rule are about, beyond what can be added.
fn subject_of(report: &[u8]) -> Vec<(u16, &[u8])> {
    const ADDED: [u16; 9] = [
        ie::UR_SEQN,
        ie::USAGE_REPORT_TRIGGER,
        ie::START_TIME,
        ie::END_TIME,
        ie::VOLUME_MEASUREMENT,
        ie::DURATION_MEASUREMENT,
        ie::TIME_OF_FIRST_PACKET,
        ie::TIME_OF_LAST_PACKET,
        ie::QUERY_URR_REFERENCE,
    ];
    tree::all(report).filter(|(kind, _)| !ADDED.contains(kind)).collect()
}

/// Whether two reports are about the same, so that one can say what both say.
fn can_be_added(one: &[u8], other: &[u8]) -> bool {
    let is_readable = |report| {
        tree::find(report, ie::VOLUME_MEASUREMENT).is_none() == volume(report).is_none()
            && [
                ie::DURATION_MEASUREMENT,
                ie::START_TIME,
                ie::END_TIME,
                ie::TIME_OF_FIRST_PACKET,
                ie::TIME_OF_LAST_PACKET,
            ]
            .into_iter()
            .all(|kind| tree::find(report, kind).is_none() == number(report, kind).is_none())
    };
    subject_of(one) == subject_of(other) && is_readable(one) && is_readable(other)
}

/// One report of what two say; number and trigger are the first one's. `None`: they cannot be read.
fn sum(one: &[u8], other: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(one.len() + 16);
    let mut put = |kind: u16, value: &[u8]| {
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
        out.extend_from_slice(value);
    };
    for (kind, value) in tree::all(one) {
        let theirs = tree::find(other, kind);
        match (kind, theirs) {
            (ie::VOLUME_MEASUREMENT, Some(theirs)) => {
                let (ours, theirs) =
                    (VolumeMeasurement::decode(value).ok()?, VolumeMeasurement::decode(theirs).ok()?);
                let mut octets = Vec::new();
                added(ours, theirs).encode(&mut octets);
                put(kind, &octets);
            }
            (ie::DURATION_MEASUREMENT, Some(_)) => {
                let seconds = number(one, kind)?.saturating_add(number(other, kind)?);
                put(kind, &seconds.to_be_bytes());
            }
            (ie::START_TIME | ie::TIME_OF_FIRST_PACKET, Some(_)) => {
                let (ours, theirs) = (number(one, kind)?, number(other, kind)?);
                put(kind, &if is_before(theirs, ours) { theirs } else { ours }.to_be_bytes());
            }
            (ie::END_TIME | ie::TIME_OF_LAST_PACKET, Some(_)) => {
                let (ours, theirs) = (number(one, kind)?, number(other, kind)?);
                put(kind, &if is_before(ours, theirs) { theirs } else { ours }.to_be_bytes());
            }
            _ => put(kind, value),
        }
    }
    for (kind, value) in tree::all(other).filter(|(kind, _)| *kind != ie::QUERY_URR_REFERENCE) {
        if tree::find(one, kind).is_none() {
            put(kind, value);
        }
    }
    Some(out)
}

fn added(one: VolumeMeasurement, other: VolumeMeasurement) -> VolumeMeasurement {
    let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    };
    VolumeMeasurement {
        total: sum(one.total, other.total),
        uplink: sum(one.uplink, other.uplink),
        downlink: sum(one.downlink, other.downlink),
        total_packets: sum(one.total_packets, other.total_packets),
        uplink_packets: sum(one.uplink_packets, other.uplink_packets),
        downlink_packets: sum(one.downlink_packets, other.downlink_packets),
    }
}

/// What of a rule is kept.
const HAS_SPAN: u32 = 1;
const HAS_OWN: u32 = 2;

/// What is counted of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Rule {
    urr: u32,
    /// The next number for the SMF.
    next: u32,
    /// By how much the SMF's numbers are above the original's.
    ahead: u32,
    /// When the first report begins, and the last one ends.
    span: Option<(u32, u32)>,
    /// Seconds that were charged.
    seconds: u32,
    /// The original's own last number, if it has reported.
    own: Option<u32>,
}

impl Rule {
    /// Takes seconds away from a report that were charged already, and notes the others.
    fn charge(&mut self, report: Vec<u8>) -> Vec<u8> {
        let (start, end) = (number(&report, ie::START_TIME), number(&report, ie::END_TIME));
        let (Some(start), Some(end)) = (start, end) else { return report };
        let (first, last) = self.span.unwrap_or((start, end));
        let first = if is_before(start, first) { start } else { first };
        let last = if is_before(last, end) { end } else { last };
        self.span = Some((first, last));
        let Some(seconds) = number(&report, ie::DURATION_MEASUREMENT) else { return report };
        let left = last.wrapping_sub(first).saturating_sub(self.seconds);
        let charged = seconds.min(left);
        self.seconds = self.seconds.saturating_add(charged);
        if charged == seconds {
            return report;
        }
        with(&report, ie::DURATION_MEASUREMENT, &charged.to_be_bytes())
    }
}

/// The reports of one session. See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The session was not followed from its beginning: the next number of a rule that has not reported is not known.
    is_unsure: bool,
    rules: Vec<Rule>,
    /// Reports of clones that wait.
    waiting: Vec<Vec<u8>>,
}

impl Ledger {
    /// Of a session of which no report is known. `is_unsure`: there may have been some.
    pub fn new(is_unsure: bool) -> Ledger {
        Ledger { is_unsure, ..Ledger::default() }
    }

    fn rule(&mut self, urr: u32) -> Option<&mut Rule> {
        let at = self.rules.iter().position(|rule| rule.urr == urr)?;
        self.rules.get_mut(at)
    }

    /// Whether the original has used a number already: its report is a repetition, and its seconds are charged.
    fn is_repeated(&self, urr: u32, own: u32) -> bool {
        let last = self.rules.iter().find(|rule| rule.urr == urr).and_then(|rule| rule.own);
        last.is_some_and(|last| !is_before(last, own))
    }

    /// Whether the SMF is to get other reports than those of the original, and other numbers.
    pub fn is_apart(&self) -> bool {
        !self.waiting.is_empty() || self.rules.iter().any(|rule| rule.ahead != 0)
    }

    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.waiting.is_empty()
    }

    /// Notes reports that have reached the SMF as they were; whether it has got wrong numbers by that.
    pub fn passed(&mut self, message: &[u8]) -> bool {
        let is_apart = self.is_apart();
        let reports = reports(message);
        for report in &reports {
            let (Some(urr), Some(own)) = (number(report, ie::URR_ID), number(report, ie::UR_SEQN)) else {
                continue;
            };
            let is_repeated = self.is_repeated(urr, own);
            self.numbered(urr, own);
            if let Some(rule) = self.rule(urr).filter(|_| !is_repeated) {
                // Only noted: it cannot be changed any more.
                let _ = rule.charge(report.clone());
            }
        }
        is_apart && !reports.is_empty()
    }

    /// The SMF's number for the original's.
    fn numbered(&mut self, urr: u32, own: u32) -> u32 {
        if self.rule(urr).is_none() && self.rules.len() < MOST {
            self.rules.push(Rule { urr, next: own, ..Rule::default() });
        }
        let Some(rule) = self.rule(urr) else { return own };
        rule.own = Some(rule.own.filter(|last| is_before(own, *last)).unwrap_or(own));
        let number = own.wrapping_add(rule.ahead);
        if !is_before(number, rule.next) {
            rule.next = number.wrapping_add(1);
        }
        number
    }

    /// A message of the original with the SMF's numbers, and with what waits for it.
    pub fn of_original(&mut self, message: &[u8]) -> Vec<u8> {
        let Some(wanted) = kind_in(message) else { return message.to_vec() };
        tree::rewritten(message, &mut |path, report| {
            if *path != [wanted] {
                return None;
            }
            let (urr, own) = (number(report, ie::URR_ID)?, number(report, ie::UR_SEQN)?);
            let is_repeated = self.is_repeated(urr, own);
            let own = self.numbered(urr, own);
            let mut report = with(report, ie::UR_SEQN, &own.to_be_bytes());
            if is_repeated {
                // The SMF takes it for a repetition, and nothing that is added.
                return Some(report);
            }
            let mut waiting = std::mem::take(&mut self.waiting);
            if let Some(rule) = self.rule(urr) {
                report = rule.charge(report);
                waiting.retain(|waits| {
                    if !can_be_added(&report, waits) {
                        return true;
                    }
                    let both = sum(&report, &rule.charge(waits.clone()));
                    let is_added = both.is_some();
                    report = both.unwrap_or_else(|| std::mem::take(&mut report));
                    !is_added
                });
            }
            self.waiting = waiting;
            Some(report)
        })
    }

    /// Reports that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The session ends by this answer of the original: what still waits is told with it. How many reports are lost.
    pub fn append_waiting(&mut self, message: &mut Vec<u8>) -> usize {
        let waiting = std::mem::take(&mut self.waiting);
        let Some(wanted) = kind_in(message) else { return waiting.len() };
        let mut lost = 0;
        for report in waiting {
            let is_known = number(&report, ie::URR_ID).is_some_and(|urr| self.rule(urr).is_some());
            // The original has none of this rule: a number that may be used already is better than nothing.
            let report = if is_known { self.of_clone(&report) } else { Some(report) };
            lost += usize::from(report.is_none_or(|report| append(message, wanted, &report).is_err()));
        }
        lost
    }

    /// A clone's report as the next one of its rule. `None`: it waits, as that is not known. One for which the SMF has to grant something does
    /// not: it has the clone's own number then, which may be used already.
    pub fn of_clone(&mut self, report: &[u8]) -> Option<Vec<u8>> {
        let (Some(urr), Some(own)) = (number(report, ie::URR_ID), number(report, ie::UR_SEQN)) else {
            // Nothing can be charged for it.
            return None;
        };
        if self.rule(urr).is_none() && !self.is_unsure && self.rules.len() < MOST {
            // The first number is the UPF's own choice; that of a clone is as good as any.
            self.rules.push(Rule { urr, next: own, ..Rule::default() });
        }
        let Some(rule) = self.rule(urr) else {
            if is_urgent(report) {
                return Some(report.to_vec());
            }
            if self.waiting.len() < MOST {
                self.waiting.push(report.to_vec());
            } else {
                UNCHARGED.inc();
            }
            return None;
        };
        let report = with(report, ie::UR_SEQN, &rule.next.to_be_bytes());
        (rule.next, rule.ahead) = (rule.next.wrapping_add(1), rule.ahead.wrapping_add(1));
        Some(rule.charge(report))
    }

    /// Adds a clone's reports to a message of the original, which has the SMF's numbers already.
    pub fn add(&mut self, message: &mut Vec<u8>, reports: &[Vec<u8>]) -> Result<(), Misfit> {
        let Some(wanted) = kind_in(message) else { return Ok(()) };
        for report in reports {
            let ies = message.get(tree::HEADER..).unwrap_or_default();
            let has_one = tree::all(ies).any(|(kind, value)| kind == wanted && can_be_added(value, report));
            if has_one {
                let mut charged = match number(report, ie::URR_ID).and_then(|urr| self.rule(urr)) {
                    Some(rule) => Some(rule.charge(report.clone())),
                    None => Some(report.clone()),
                };
                *message = tree::rewritten(message, &mut |path, of_original| {
                    if *path != [wanted] || !can_be_added(of_original, report) {
                        return None;
                    }
                    sum(of_original, &charged.take()?)
                });
                continue;
            }
            // The original has no report of this rule here.
            let before = self.clone();
            if let Some(numbered) = self.of_clone(report)
                && let Err(misfit) = append(message, wanted, &numbered)
            {
                *self = before;
                return Err(misfit);
            }
        }
        Ok(())
    }

    /// The session is at its UPF anew, which counts its reports from zero; reports that waited for the next number can be told. The time for
    /// which was charged stays charged.
    pub fn begins_anew(&mut self) -> Vec<Vec<u8>> {
        self.is_unsure = false;
        for rule in &mut self.rules {
            (rule.next, rule.ahead, rule.own) = (0, 0, None);
        }
        std::mem::take(&mut self.waiting)
    }

    /// A modification was done that may remove rules: one that is created later counts anew.
    pub fn modified(&mut self, request: &[u8]) {
        for (kind, value) in tree::all(request.get(tree::HEADER..).unwrap_or_default()) {
            if kind == ie::REMOVE_URR {
                let gone = number(value, ie::URR_ID);
                self.rules.retain(|rule| Some(rule.urr) != gone);
            }
        }
    }

    /// Octets to keep.
    pub fn write(&self) -> Vec<u8> {
        let mut out = vec![u8::from(self.is_unsure)];
        out.extend_from_slice(&(self.rules.len() as u16).to_be_bytes());
        for rule in &self.rules {
            let (first, last) = rule.span.unwrap_or_default();
            let has = rule.span.map_or(0, |_| HAS_SPAN) | rule.own.map_or(0, |_| HAS_OWN);
            let numbers = [rule.urr, rule.next, rule.ahead, has, first, last, rule.seconds];
            for number in numbers.into_iter().chain(rule.own) {
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
        for report in &self.waiting {
            out.extend_from_slice(&(report.len() as u16).to_be_bytes());
            out.extend_from_slice(report);
        }
        out
    }

    /// Reads [`Ledger::write`]'s octets.
    ///
    /// # Errors
    /// They are others.
    pub fn read(mut octets: &[u8]) -> Result<Ledger, Misfit> {
        let mut take = |length: usize| octets.split_off(..length).ok_or(Misfit);
        let head = take(3)?;
        let mut ledger = Ledger { is_unsure: head[0] != 0, ..Ledger::default() };
        for _ in 0..u16::from_be_bytes([head[1], head[2]]) {
            let mut number =
                || -> Result<u32, Misfit> { Ok(u32::from_be_bytes(*take(4)?.first_chunk().ok_or(Misfit)?)) };
            let [urr, next, ahead, has, first, last, seconds] =
                [number()?, number()?, number()?, number()?, number()?, number()?, number()?];
            let span = (has & HAS_SPAN != 0).then_some((first, last));
            let own = if has & HAS_OWN == 0 { None } else { Some(number()?) };
            ledger.rules.push(Rule { urr, next, ahead, span, seconds, own });
        }
        while !octets.is_empty() {
            let mut take = |length: usize| octets.split_off(..length).ok_or(Misfit);
            let length = take(2)?;
            let report = take(usize::from(u16::from_be_bytes([length[0], length[1]])))?;
            ledger.waiting.push(report.to_vec());
        }
        if ledger.rules.len() > MOST || ledger.waiting.len() > MOST { Err(Misfit) } else { Ok(ledger) }
    }
}

/// A Session Report Request without reports, for those that a clone has left; its header is still to be written.
pub fn request() -> Vec<u8> {
    let request = SessionReportRequest { report_type: ReportType::USAR, ..Default::default() };
    let mut octets = Vec::new();
    // It fits.
    let _ = Message::from(request).encode(0, 0, &mut octets);
    octets
}

/// Appends a report to a [`request`]. What says that a session has ended is as if it had been asked for: the SMF's session goes on.
///
/// # Errors
/// The datagram is full.
pub fn append_last(request: &mut Vec<u8>, report: &[u8]) -> Result<(), Misfit> {
    let mut trigger = Vec::new();
    UsageReportTrigger::IMMER.encode(&mut trigger);
    append(request, ie::USAGE_REPORT_SRR, &with(report, ie::USAGE_REPORT_TRIGGER, &trigger))
}

/// Appends a report to a Session Report Request, which says that it has one.
///
/// # Errors
/// The datagram is full.
pub fn append_report(request: &mut Vec<u8>, report: &[u8]) -> Result<(), Misfit> {
    append(request, ie::USAGE_REPORT_SRR, report)?;
    *request = tree::rewritten(request, &mut |path, value| {
        let flags = value.first().filter(|_| *path == [ie::REPORT_TYPE])?;
        Some([&[flags | ReportType::USAR.0 as u8], value.get(1..)?].concat())
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfcp::message::{SessionDeletionResponse, SessionModificationResponse};
    use pfcp::{Cause, NtpSeconds, Seconds, UrSeqn, UrrId, UsageReport};
    use proptest::prelude::*;

    fn encode(message: impl Into<Message>) -> Vec<u8> {
        let mut octets = Vec::new();
        message.into().encode(1, 2, &mut octets).unwrap();
        octets
    }

    fn report(sequence: u32, total: u64, (start, end): (u32, u32)) -> UsageReport {
        UsageReport {
            urr_id: UrrId(9),
            sequence: UrSeqn(sequence),
            trigger: UsageReportTrigger::PERIO,
            start_time: Some(NtpSeconds(start)),
            end_time: Some(NtpSeconds(end)),
            volume: Some(VolumeMeasurement { total: Some(total), ..Default::default() }),
            duration: Some(Seconds(end.wrapping_sub(start))),
            ..Default::default()
        }
    }

    fn message(reports: Vec<UsageReport>) -> Vec<u8> {
        let report_type = ReportType::USAR;
        encode(SessionReportRequest { report_type, usage_reports: reports, ..Default::default() })
    }

    fn bare(report: UsageReport) -> Vec<u8> {
        reports(&message(vec![report])).remove(0)
    }

    fn told(octets: &[u8]) -> Vec<UsageReport> {
        match Message::decode(octets).unwrap().1 {
            Message::SessionReportRequest(of) => of.usage_reports,
            Message::SessionDeletionResponse(of) => of.usage_reports,
            Message::SessionModificationResponse(of) => of.usage_reports,
            other => panic!("{other:?}"),
        }
    }

    /// After a restart it is not known which numbers the SMF has: what a clone says waits for the original, and is not lost.
    #[test]
    fn a_report_without_known_number_waits() {
        let mut ledger = Ledger::new(true);
        let urgent = UsageReport { trigger: UsageReportTrigger::VOLQU, ..report(0, 30, (0, 5)) };
        assert_eq!(
            ledger.of_clone(&bare(urgent.clone())),
            Some(bare(urgent)),
            "traffic stops without an answer"
        );
        assert!(!ledger.is_apart());
        assert_eq!(ledger.of_clone(&bare(report(0, 30, (5, 9)))), None);
        assert!(ledger.is_apart());
        let mut ledger = Ledger::read(&ledger.write()).unwrap();
        let charged = told(&ledger.of_original(&message(vec![report(17, 100, (0, 10))])));
        let [charged] = &charged[..] else { panic!() };
        assert_eq!((charged.sequence.0, charged.volume.unwrap().total), (17, Some(130)));
        assert_eq!(charged.duration, Some(Seconds(10)), "the time is the same");
        assert!(!ledger.is_apart());
        // Now it is known.
        let next = ledger.of_clone(&bare(report(1, 5, (10, 11)))).unwrap();
        assert_eq!(number(&next, ie::UR_SEQN), Some(18));
    }

    /// The session ends before the original has reported by a rule: what waits is told with the end.
    #[test]
    fn what_waits_is_told_at_the_end() {
        let mut ledger = Ledger::new(true);
        assert_eq!(ledger.of_clone(&bare(report(2, 30, (5, 9)))), None);
        let other = UsageReport { urr_id: UrrId(8), ..report(0, 7, (0, 9)) };
        let answer = SessionDeletionResponse {
            cause: Cause::ACCEPTED,
            usage_reports: vec![other.clone()],
            ..Default::default()
        };
        let mut octets = ledger.of_original(&encode(answer));
        assert_eq!(ledger.append_waiting(&mut octets), 0);
        assert_eq!(told(&octets), [other, report(2, 30, (5, 9))]);
        assert_eq!((ledger.waiting(), ledger.append_waiting(&mut octets)), (0, 0));
    }

    /// What comes once more is charged as it was, and takes nothing along that waits.
    #[test]
    fn a_repetition_is_not_charged_again() {
        let mut ledger = Ledger::new(false);
        let first = message(vec![report(3, 10, (0, 5))]);
        assert_eq!(ledger.of_original(&first), first);
        ledger = Ledger::read(&ledger.write()).unwrap();
        assert_eq!(ledger.of_original(&first), first);
        ledger.passed(&first);
        let next = ledger.of_original(&message(vec![report(4, 10, (5, 9))]));
        assert_eq!(told(&next)[0].duration, Some(Seconds(4)));
    }

    /// A rule that is created again counts anew, at the UPF and here.
    #[test]
    fn a_rule_that_was_removed_counts_anew() {
        let mut ledger = Ledger::new(false);
        ledger.of_original(&message(vec![report(0, 1, (0, 1))]));
        ledger.of_clone(&bare(report(0, 1, (1, 2)))).unwrap();
        let remove = pfcp::RemoveUrr { urr_id: UrrId(9) };
        let request =
            pfcp::message::SessionModificationRequest { remove_urrs: vec![remove], ..Default::default() };
        ledger.modified(&encode(request));
        assert!(!ledger.is_apart());
        let again = message(vec![report(0, 1, (3, 4))]);
        assert_eq!(ledger.of_original(&again), again);
    }

    /// Reports about different things stay apart, each with its number.
    #[test]
    fn reports_about_other_things_are_not_added() {
        let mut ledger = Ledger::new(false);
        let answer = SessionModificationResponse {
            cause: Cause::ACCEPTED,
            usage_reports: vec![report(4, 10, (0, 5))],
            ..Default::default()
        };
        let mut octets = ledger.of_original(&encode(answer));
        let before = pfcp::UsageInformation::BEF;
        let other = UsageReport { usage_information: Some(before), ..report(0, 3, (0, 5)) };
        ledger.add(&mut octets, &[bare(other), bare(report(1, 4, (0, 5)))]).unwrap();
        let all: Vec<_> = told(&octets).iter().map(|it| (it.sequence.0, it.volume.unwrap().total)).collect();
        assert_eq!(all, [(4, Some(14)), (5, Some(3))]);
    }

    #[test]
    fn damaged_ledgers_and_messages_do_no_harm() {
        let mut ledger = Ledger::new(true);
        ledger.of_original(&message(vec![report(3, 1, (0, 1))]));
        ledger.of_clone(&bare(UsageReport { urr_id: UrrId(8), ..report(0, 1, (1, 2)) }));
        let octets = ledger.write();
        assert_eq!(Ledger::read(&octets), Ok(ledger.clone()));
        for end in 0..octets.len() {
            let read = Ledger::read(&octets[..end]);
            assert!(read.is_err() || read.is_ok_and(|read| read != ledger), "{end}");
        }
        let whole = message(vec![report(4, 1, (0, 1)), report(5, 1, (1, 2))]);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let mut ledger = ledger.clone();
            ledger.of_original(&damaged);
            ledger.passed(&damaged);
            let mut answer = encode(SessionDeletionResponse { cause: Cause::ACCEPTED, ..Default::default() });
            ledger.add(&mut answer, &reports(&damaged)).unwrap();
            assert!(is_whole(&answer));
        }
    }

    proptest! {
        /// Whoever reports when, what is charged is what was carried, the numbers are one after another, and no second counts twice.
        #[test]
        fn all_is_charged_once(steps in proptest::collection::vec((any::<bool>(), 0u64..1000, 0u32..20, any::<bool>()), 1..40)) {
            let mut ledger = Ledger::new(false);
            let (mut now, mut since, mut own) = (100, [100; 2], [0; 2]);
            let (mut charged, mut carried) = (Vec::new(), 0);
            for (is_clone, octets, seconds, is_added) in steps {
                now += seconds;
                let of = usize::from(is_clone);
                let next = report(own[of], octets, (since[of], now));
                (own[of], since[of]) = (own[of] + 1, now);
                carried += octets;
                if !is_clone {
                    let mut octets = ledger.of_original(&message(vec![next]));
                    if is_added {
                        let clones = report(own[1], 7, (since[1], now));
                        (own[1], since[1], carried) = (own[1] + 1, now, carried + 7);
                        ledger.add(&mut octets, &[bare(clones)]).unwrap();
                    }
                    charged.extend(told(&octets));
                } else {
                    let mut octets = request();
                    append_last(&mut octets, &ledger.of_clone(&bare(next)).unwrap()).unwrap();
                    charged.extend(told(&octets));
                }
                ledger = Ledger::read(&ledger.write()).unwrap();
            }
            let numbers: Vec<u32> = charged.iter().map(|report| report.sequence.0).collect();
            prop_assert_eq!(numbers, (0..charged.len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(charged.iter().map(|report| report.volume.unwrap().total.unwrap()).sum::<u64>(), carried);
            let seconds: u32 = charged.iter().map(|report| report.duration.unwrap().0).sum();
            prop_assert_eq!(seconds, now - 100);
        }
    }
}
