//! Usage reporting rules (TS 29.244 §5.2.2): what is measured, and when it is reported.
//!
//! Workers count octets and compare them with absolute marks ([`UrrRule::marks`]). Everything else is done
//! here, from readings of their counters. [`UrrRule::observe`] takes a reading and returns the triggers that it
//! caused, [`UrrRule::report`] makes the report and begins the next measurement, and [`UrrRule::next_ms`] says
//! when the next reading is needed.
//!
//! Time is measured while there is traffic: from the first packet (with ISTM from the beginning) until the
//! inactivity detection time has passed without a packet. An *event* is the start of traffic after such a
//! pause. Pauses are detected by reading the counters, and therefore with a delay of at most an eighth of their
//! length.

use foldhash::HashSet;
use pfcp::{
    CreateUrr, Events, FailedRuleId, MeasurementInformation, MeasurementMethod, NtpSeconds,
    QueryUrrReference, ReportingTriggers, Seconds, UpdateUrr, UrSeqn, UrrId, UsageInformation, UsageReport,
    UsageReportTrigger, Volume, VolumeMeasurement, ie,
};
use telemetry::worker::Totals;

use super::{MAX_RULES, Rejection, Rules, check_new, incorrect};
use crate::plan::{Mark, MarkKind, Measure};

/// Most event times in one report.
const MAX_EVENT_TIMES: usize = 16;
/// Most monitoring times of a rule.
const MAX_MONITORING: usize = 16;
/// Interval of readings that find a volume that was reached, in case the packet path's event was lost.
const LOST_EVENT_MS: u64 = 30_000;
/// Number of counter readings in one inactivity time.
const CHECKS: u64 = 8;

/// The instant of a request or reading: milliseconds of a monotonic clock, and the time of day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since some fixed instant.
    pub ms: u64,
    /// Time of day.
    pub wall: NtpSeconds,
}

impl From<NtpSeconds> for Now {
    /// Both clocks from the time of day, for callers that have only that.
    fn from(wall: NtpSeconds) -> Now {
        Now { ms: u64::from(wall.0) * 1000, wall }
    }
}

/// A reading of a rule's counters: uplink and downlink since the rule was created.
pub type Reading = (Totals, Totals);

/// Thresholds and quotas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Volume after which usage is reported.
    pub volume_threshold: Option<Volume>,
    /// Volume after which traffic stops.
    pub volume_quota: Option<Volume>,
    /// Seconds after which usage is reported.
    pub time_threshold: Option<u32>,
    /// Seconds after which traffic stops.
    pub time_quota: Option<u32>,
    /// Number of events after which usage is reported.
    pub event_threshold: Option<u32>,
    /// Number of events after which traffic stops.
    pub event_quota: Option<u32>,
}

impl Limits {
    /// A threshold and a quota of each kind.
    fn new(
        [volume_threshold, volume_quota]: [Option<Volume>; 2],
        time: [Option<Seconds>; 2],
        events: [Option<Events>; 2],
    ) -> Limits {
        let [time_threshold, time_quota] = time.map(|time| time.map(|time| time.0));
        let [event_threshold, event_quota] = events.map(count);
        Limits { volume_threshold, volume_quota, time_threshold, time_quota, event_threshold, event_quota }
    }
}

/// A measurement: the counters at its beginning, and the time with traffic.
#[derive(Debug, Clone, Default)]
struct Measured {
    /// Counters at the beginning.
    base: Reading,
    /// Milliseconds with traffic, without the present run.
    active_ms: u64,
    events: u32,
}

/// A usage reporting rule.
#[derive(Debug, Clone)]
pub struct UrrRule {
    method: MeasurementMethod,
    triggers: ReportingTriggers,
    information: MeasurementInformation,
    limits: Limits,
    /// Limits that apply from later times of day on, the next first.
    monitoring: Vec<(NtpSeconds, Limits)>,
    period_ms: Option<u64>,
    holding_ms: Option<u64>,
    validity_ms: Option<u64>,
    inactivity_ms: Option<u64>,
    /// Silence after which an address behind the UE counts as removed.
    address_ms: Option<u64>,
    reports_left: Option<u16>,
    /// Linked rules: when one of these reports, this rule reports too.
    pub linked: Vec<u32>,
    /// FAR for packets once a quota is exhausted; without one they are dropped.
    pub quota_far: Option<u32>,
    /// Whether a quota is exhausted, so that packets of PDRs with this rule are not forwarded.
    pub exhausted: bool,
    /// Measurement since the last report.
    since_report: Measured,
    /// Measurement since the quotas were granted.
    since_grant: Measured,
    /// The measurement before a monitoring time, for the next report.
    before: Option<(Measured, NtpSeconds)>,
    /// The last reading.
    seen: Reading,
    /// Whether traffic has begun and not paused since.
    in_traffic: bool,
    /// When the present run began: time that is not yet added to the measurements.
    running_since_ms: Option<u64>,
    last_active_ms: u64,
    granted_ms: u64,
    period_due_ms: Option<u64>,
    sequence: u32,
    start: NtpSeconds,
    first_packet: Option<NtpSeconds>,
    last_packet: Option<NtpSeconds>,
    event_times: Vec<NtpSeconds>,
}

fn octets(totals: Totals) -> u64 {
    totals.bytes
}

fn total(reading: Reading) -> u64 {
    octets(reading.0) + octets(reading.1)
}

fn difference(reading: Reading, base: Reading) -> Reading {
    (reading.0 - base.0, reading.1 - base.1)
}

/// Whether a volume has been reached in any of its measures. Without limits it never is.
fn reached(volume: Option<Volume>, counted: Reading) -> bool {
    let Some(volume) = volume else { return false };
    let measures = [
        (volume.total, total(counted)),
        (volume.uplink, octets(counted.0)),
        (volume.downlink, octets(counted.1)),
    ];
    measures.into_iter().any(|(limit, counted)| limit.is_some_and(|limit| counted >= limit))
}

/// Checks that the triggers are supported.
fn check_triggers(triggers: ReportingTriggers) -> Result<(), Rejection> {
    use ReportingTriggers as T;
    let known = T::PERIO | T::VOLTH | T::TIMTH | T::QUHTI | T::START | T::STOPT | T::LIUSA | T::VOLQU;
    let known = known | T::TIMQU | T::EVETH | T::EVEQU | T::QUVTI | T::REEMR | T::MACAR;
    if triggers.0 & !known.0 != 0 { Err(Rejection::unsupported(ie::REPORTING_TRIGGERS)) } else { Ok(()) }
}

fn check_information(information: MeasurementInformation) -> Result<(), Rejection> {
    // Measuring before QoS enforcement and by application is not supported.
    use MeasurementInformation as I;
    let known = I::INAM | I::ISTM | I::MNOP | I::RADI;
    if information.0 & !known.0 != 0 {
        Err(Rejection::unsupported(ie::MEASUREMENT_INFORMATION))
    } else {
        Ok(())
    }
}

fn seconds(time: Option<Seconds>) -> Option<u64> {
    time.filter(|time| time.0 > 0).map(|time| u64::from(time.0) * 1000)
}

fn count(events: Option<Events>) -> Option<u32> {
    events.map(|events| events.0)
}

impl UrrRule {
    fn new(create: &CreateUrr, now: Now) -> Result<UrrRule, Rejection> {
        check_triggers(create.reporting_triggers)?;
        let information = create.measurement_information.unwrap_or_default();
        check_information(information)?;
        if create.measurement_method.is_empty() {
            return Err(incorrect(ie::MEASUREMENT_METHOD));
        }
        let mut rule = UrrRule {
            method: create.measurement_method,
            triggers: create.reporting_triggers,
            information,
            limits: Limits::new(
                [create.volume_threshold, create.volume_quota],
                [create.time_threshold, create.time_quota],
                [create.event_threshold, create.event_quota],
            ),
            monitoring: Vec::new(),
            period_ms: seconds(create.measurement_period),
            holding_ms: seconds(create.quota_holding_time),
            validity_ms: seconds(create.quota_validity_time),
            inactivity_ms: seconds(create.inactivity_detection_time),
            address_ms: seconds(create.ethernet_inactivity_timer),
            reports_left: create.number_of_reports.map(|count| count.0),
            linked: create.linked_urr_ids.iter().map(|id| id.0).collect(),
            quota_far: create.quota_far_id.map(|id| id.0),
            exhausted: false,
            since_report: Measured::default(),
            since_grant: Measured::default(),
            before: None,
            seen: Reading::default(),
            in_traffic: false,
            running_since_ms: None,
            last_active_ms: now.ms,
            granted_ms: now.ms,
            period_due_ms: None,
            sequence: 0,
            start: now.wall,
            first_packet: None,
            last_packet: None,
            event_times: Vec::new(),
        };
        if let Some(at) = create.monitoring_time {
            let limits = Limits::new(
                [create.subsequent_volume_threshold, create.subsequent_volume_quota],
                [create.subsequent_time_threshold, create.subsequent_time_quota],
                [create.subsequent_event_threshold, create.subsequent_event_quota],
            );
            rule.monitoring.push((at, limits));
        }
        rule.add_monitoring(&create.additional_monitoring_times)?;
        rule.period_due_ms = rule.period_ms.map(|period| now.ms + period);
        if information.contains(MeasurementInformation::ISTM) {
            rule.running_since_ms = Some(now.ms);
        }
        // A quota of zero is exhausted from the beginning, and needs no report.
        rule.exhausted = rule.out_of_quota(Reading::default(), now);
        Ok(rule)
    }

    fn add_monitoring(&mut self, times: &[pfcp::AdditionalMonitoringTime]) -> Result<(), Rejection> {
        self.monitoring.extend(times.iter().map(|time| {
            let limits = Limits::new(
                [time.volume_threshold, time.volume_quota],
                [time.time_threshold, time.time_quota],
                [time.event_threshold, time.event_quota],
            );
            (time.monitoring_time, limits)
        }));
        if self.monitoring.len() > MAX_MONITORING {
            return Err(Rejection::ie(pfcp::Cause::NO_RESOURCES, ie::ADDITIONAL_MONITORING_TIME));
        }
        self.monitoring.sort_by_key(|(at, _)| at.0);
        Ok(())
    }

    /// Changes the rule. New quotas replace the old ones and count from now on (§5.2.2.2.1).
    fn update(&mut self, update: &UpdateUrr, reading: Reading, now: Now) -> Result<(), Rejection> {
        if let Some(method) = update.measurement_method {
            self.method = method;
        }
        if let Some(triggers) = update.reporting_triggers {
            check_triggers(triggers)?;
            self.triggers = triggers;
        }
        if let Some(information) = update.measurement_information {
            check_information(information)?;
            self.information = information;
        }
        let limits = &mut self.limits;
        limits.volume_threshold = update.volume_threshold.or(limits.volume_threshold);
        limits.time_threshold = update.time_threshold.map(|time| time.0).or(limits.time_threshold);
        limits.event_threshold = count(update.event_threshold).or(limits.event_threshold);
        let granted =
            update.volume_quota.is_some() || update.time_quota.is_some() || update.event_quota.is_some();
        if granted {
            limits.volume_quota = update.volume_quota.or(limits.volume_quota);
            limits.time_quota = update.time_quota.map(|time| time.0).or(limits.time_quota);
            limits.event_quota = count(update.event_quota).or(limits.event_quota);
            self.begin_grant(reading, now);
        }
        if let Some(period) = update.measurement_period {
            self.period_ms = seconds(Some(period));
            self.period_due_ms = self.period_ms.map(|period| now.ms + period);
        }
        self.holding_ms = seconds(update.quota_holding_time).or(self.holding_ms);
        if update.quota_validity_time.is_some() {
            self.validity_ms = seconds(update.quota_validity_time);
            self.granted_ms = now.ms;
        }
        self.inactivity_ms = seconds(update.inactivity_detection_time).or(self.inactivity_ms);
        self.address_ms = seconds(update.ethernet_inactivity_timer).or(self.address_ms);
        self.reports_left = update.number_of_reports.map(|count| count.0).or(self.reports_left);
        if let Some(at) = update.monitoring_time {
            let limits = Limits::new(
                [update.subsequent_volume_threshold, update.subsequent_volume_quota],
                [update.subsequent_time_threshold, update.subsequent_time_quota],
                [update.subsequent_event_threshold, update.subsequent_event_quota],
            );
            self.monitoring.clear();
            self.monitoring.push((at, limits));
        }
        self.add_monitoring(&update.additional_monitoring_times)?;
        if !update.linked_urr_ids.is_empty() {
            self.linked = update.linked_urr_ids.iter().map(|id| id.0).collect();
        }
        self.quota_far = update.quota_far_id.map(|id| id.0).or(self.quota_far);
        Ok(())
    }

    fn begin_grant(&mut self, reading: Reading, now: Now) {
        self.since_grant = Measured { base: reading, ..Measured::default() };
        self.granted_ms = now.ms;
        self.last_active_ms = now.ms;
        self.exhausted = false;
        self.exhausted = self.out_of_quota(reading, now);
    }

    /// Whether addresses behind the UE are to be reported (§5.13.5).
    pub fn reports_addresses(&self) -> bool {
        self.triggers.contains(ReportingTriggers::MACAR)
    }

    /// Silence after which an address is reported as removed.
    pub fn address_timeout_ms(&self) -> Option<u64> {
        self.address_ms.filter(|_| self.reports_addresses())
    }

    /// Whether the rule's counters count at all (inactive measurement, INAM).
    pub fn is_active(&self) -> bool {
        !self.information.contains(MeasurementInformation::INAM)
    }

    /// Milliseconds with traffic in a measurement, until now.
    fn active_ms(&self, measured: &Measured, now: Now) -> u64 {
        let run = self.running_since_ms.map_or(0, |since| now.ms.saturating_sub(since));
        measured.active_ms + run
    }

    fn out_of_quota(&self, reading: Reading, now: Now) -> bool {
        self.exhausted_by(reading, now).0 != 0
    }

    fn exhausted_by(&self, reading: Reading, now: Now) -> UsageReportTrigger {
        let mut by = UsageReportTrigger::default();
        if reached(self.limits.volume_quota, difference(reading, self.since_grant.base)) {
            by |= UsageReportTrigger::VOLQU;
        }
        let active = self.active_ms(&self.since_grant, now);
        if self.limits.time_quota.is_some_and(|quota| active >= u64::from(quota) * 1000) {
            by |= UsageReportTrigger::TIMQU;
        }
        if self.limits.event_quota.is_some_and(|quota| self.since_grant.events >= quota) {
            by |= UsageReportTrigger::EVEQU;
        }
        by
    }

    /// Ends a run of traffic: adds its time to both measurements.
    fn end_run(&mut self, until_ms: u64) {
        if let Some(since) = self.running_since_ms.take() {
            let run = until_ms.saturating_sub(since);
            self.since_report.active_ms += run;
            self.since_grant.active_ms += run;
        }
    }

    /// Detects the start and pauses of traffic. Returns START and STOPT.
    fn follow_traffic(&mut self, reading: Reading, now: Now) -> UsageReportTrigger {
        let mut came = UsageReportTrigger::default();
        if reading != self.seen {
            self.seen = reading;
            self.last_active_ms = now.ms;
            self.first_packet = self.first_packet.or(Some(now.wall));
            self.last_packet = Some(now.wall);
            if !self.in_traffic {
                self.in_traffic = true;
                self.running_since_ms.get_or_insert(now.ms);
                came |= self.begin_traffic(now);
            }
        }
        let quiet = now.ms.saturating_sub(self.last_active_ms);
        if self.inactivity_ms.is_some_and(|time| quiet >= time) {
            // This includes the time that ISTM counts before the first packet.
            self.end_run(self.last_active_ms);
            if std::mem::take(&mut self.in_traffic) {
                came |= UsageReportTrigger::STOPT;
            }
        }
        came
    }

    fn begin_traffic(&mut self, now: Now) -> UsageReportTrigger {
        self.since_report.events = self.since_report.events.saturating_add(1);
        self.since_grant.events = self.since_grant.events.saturating_add(1);
        if self.event_times.len() < MAX_EVENT_TIMES {
            self.event_times.push(now.wall);
        }
        UsageReportTrigger::START
    }

    /// Takes a reading and returns those of its triggers that the CP function asks for. An exhausted quota
    /// takes effect in any case.
    pub fn observe(&mut self, reading: Reading, now: Now) -> UsageReportTrigger {
        use UsageReportTrigger as T;
        let mut came = self.follow_traffic(reading, now);
        self.pass_monitoring_time(reading, now);
        let counted = difference(reading, self.since_report.base);
        if reached(self.limits.volume_threshold, counted) {
            came |= T::VOLTH;
        }
        let active = self.active_ms(&self.since_report, now);
        if self.limits.time_threshold.is_some_and(|time| time > 0 && active >= u64::from(time) * 1000) {
            came |= T::TIMTH;
        }
        if self.limits.event_threshold.is_some_and(|events| events > 0 && self.since_report.events >= events)
        {
            came |= T::EVETH;
        }
        if self.period_due_ms.is_some_and(|due| due <= now.ms) {
            came |= T::PERIO;
            self.period_due_ms = self.period_ms.map(|period| now.ms + period);
        }
        if !self.exhausted {
            let mut by = self.exhausted_by(reading, now);
            if self.holding_ms.is_some_and(|time| now.ms.saturating_sub(self.last_active_ms) >= time) {
                by |= T::QUHTI;
            }
            if self.validity_ms.is_some_and(|time| now.ms.saturating_sub(self.granted_ms) >= time) {
                by |= T::QUVTI;
            }
            self.exhausted = by.0 != 0;
            came |= by;
        }
        self.asked_for(came)
    }

    /// The triggers for which the CP function wants reports.
    fn asked_for(&self, came: UsageReportTrigger) -> UsageReportTrigger {
        use ReportingTriggers as R;
        use UsageReportTrigger as U;
        let pairs = [
            (R::PERIO, U::PERIO),
            (R::VOLTH, U::VOLTH),
            (R::TIMTH, U::TIMTH),
            (R::QUHTI, U::QUHTI),
            (R::START, U::START),
            (R::STOPT, U::STOPT),
            (R::VOLQU, U::VOLQU),
            (R::TIMQU, U::TIMQU),
            (R::EVETH, U::EVETH),
            (R::EVEQU, U::EVEQU),
            (R::QUVTI, U::QUVTI),
        ];
        let mut asked = U::default();
        for (wanted, flag) in pairs {
            if came.contains(flag) && self.triggers.contains(wanted) {
                asked |= flag;
            }
        }
        asked
    }

    /// Whether a report of one of the rules `reported` makes this rule report too.
    pub fn follows(&self, reported: &HashSet<u32>) -> bool {
        self.triggers.contains(ReportingTriggers::LIUSA) && self.linked.iter().any(|id| reported.contains(id))
    }

    /// At a monitoring time, sets the measurement so far aside and applies the later limits (§5.2.2.2.2).
    fn pass_monitoring_time(&mut self, reading: Reading, now: Now) {
        while let Some((at, limits)) = self.monitoring.first().copied() {
            if (at.0.wrapping_sub(now.wall.0) as i32) > 0 {
                return;
            }
            self.monitoring.remove(0);
            if self.running_since_ms.is_some() {
                self.end_run(now.ms);
                self.running_since_ms = Some(now.ms);
            }
            let next = Measured { base: reading, ..Measured::default() };
            let passed = std::mem::replace(&mut self.since_report, next);
            // In a finished measurement, `base` holds what it counted.
            let mut finished = Measured { base: difference(reading, passed.base), ..passed };
            if let Some((earlier, _)) = self.before.take() {
                finished.base = (finished.base.0 + earlier.base.0, finished.base.1 + earlier.base.1);
                finished.active_ms += earlier.active_ms;
                finished.events = finished.events.saturating_add(earlier.events);
            }
            self.before = Some((finished, at));
            let old = self.limits;
            self.limits = Limits {
                volume_threshold: limits.volume_threshold.or(old.volume_threshold),
                volume_quota: limits.volume_quota.or(old.volume_quota),
                time_threshold: limits.time_threshold.or(old.time_threshold),
                time_quota: limits.time_quota.or(old.time_quota),
                event_threshold: limits.event_threshold.or(old.event_threshold),
                event_quota: limits.event_quota.or(old.event_quota),
            };
            let granted =
                limits.volume_quota.is_some() || limits.time_quota.is_some() || limits.event_quota.is_some();
            if granted {
                self.begin_grant(reading, now);
            }
        }
    }

    /// Reports what was measured since the last report: two reports if a monitoring time lies between.
    pub fn report(
        &mut self,
        id: u32,
        trigger: UsageReportTrigger,
        reading: Reading,
        now: Now,
        query_reference: Option<QueryUrrReference>,
    ) -> Vec<UsageReport> {
        if self.running_since_ms.is_some() {
            self.end_run(now.ms);
            self.running_since_ms = Some(now.ms);
        }
        let mut reports = Vec::with_capacity(1);
        let split = self.before.take();
        let mut start = self.start;
        if let Some((measured, at)) = &split {
            let information = Some(UsageInformation::BEF);
            reports.push(self.one(id, trigger, measured.base, measured, (start, *at), information));
            start = *at;
        }
        let measured =
            std::mem::replace(&mut self.since_report, Measured { base: reading, ..Measured::default() });
        let counted = difference(reading, measured.base);
        let information = split.is_some().then_some(UsageInformation::AFT);
        reports.push(self.one(id, trigger, counted, &measured, (start, now.wall), information));
        for report in &mut reports {
            report.query_reference = query_reference;
        }
        if trigger.contains(UsageReportTrigger::PERIO)
            && let Some(left) = &mut self.reports_left
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.period_ms = None;
                self.period_due_ms = None;
            }
        }
        self.start = now.wall;
        self.first_packet = None;
        self.last_packet = None;
        self.event_times.clear();
        reports
    }

    fn one(
        &mut self,
        id: u32,
        trigger: UsageReportTrigger,
        (up, down): Reading,
        measured: &Measured,
        (start, end): (NtpSeconds, NtpSeconds),
        usage_information: Option<UsageInformation>,
    ) -> UsageReport {
        let sequence = UrSeqn(self.sequence);
        self.sequence = self.sequence.wrapping_add(1);
        let counts_packets = self.information.contains(MeasurementInformation::MNOP);
        let packets = |count: u64| counts_packets.then_some(count);
        let volume = VolumeMeasurement {
            total: Some(up.bytes + down.bytes),
            uplink: Some(up.bytes),
            downlink: Some(down.bytes),
            total_packets: packets(up.packets + down.packets),
            uplink_packets: packets(up.packets),
            downlink_packets: packets(down.packets),
        };
        let events = self.method.contains(MeasurementMethod::EVENT);
        UsageReport {
            urr_id: UrrId(id),
            sequence,
            trigger,
            start_time: Some(start),
            end_time: Some(end),
            volume: self.method.contains(MeasurementMethod::VOLUM).then_some(volume),
            duration: self
                .method
                .contains(MeasurementMethod::DURAT)
                .then_some(Seconds((measured.active_ms / 1000).min(u64::from(u32::MAX)) as u32)),
            first_packet: self.first_packet,
            last_packet: self.last_packet,
            usage_information,
            event_times: if events { self.event_times.clone() } else { Vec::new() },
            ..Default::default()
        }
    }

    /// Whether the rule waits for traffic to begin.
    fn awaits_traffic(&self) -> bool {
        let matters = self.method.contains(MeasurementMethod::DURAT)
            || self.method.contains(MeasurementMethod::EVENT)
            || self.triggers.contains(ReportingTriggers::START);
        matters && !self.in_traffic
    }

    /// The volumes that workers must report, in octets since the rule was created.
    pub fn marks(&self) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut add = |kind, base: Reading, volume: Option<Volume>| {
            let Some(volume) = volume else { return };
            let measures = [
                (Measure::Total, volume.total, total(base)),
                (Measure::Uplink, volume.uplink, octets(base.0)),
                (Measure::Downlink, volume.downlink, octets(base.1)),
            ];
            for (measure, limit, base) in measures {
                if let Some(limit) = limit {
                    marks.push(Mark { measure, kind, at: base.saturating_add(limit) });
                }
            }
        };
        if self.triggers.contains(ReportingTriggers::VOLTH) {
            add(MarkKind::Threshold, self.since_report.base, self.limits.volume_threshold);
        }
        if !self.exhausted {
            add(MarkKind::Quota, self.since_grant.base, self.limits.volume_quota);
        }
        if self.awaits_traffic() {
            let next = total(self.seen).saturating_add(1);
            marks.push(Mark { measure: Measure::Total, kind: MarkKind::Threshold, at: next });
        }
        marks
    }

    /// When to take the next reading, if time alone can cause a trigger.
    pub fn next_ms(&self, now: Now) -> Option<u64> {
        let left = |limit: Option<u32>, measured: &Measured| {
            let since = self.running_since_ms?;
            let limit_ms = u64::from(limit.filter(|limit| *limit > 0)?) * 1000;
            Some(since + limit_ms.saturating_sub(measured.active_ms))
        };
        let look = self.inactivity_ms.filter(|_| self.running_since_ms.is_some());
        let monitoring = self.monitoring.first().map(|(at, _)| {
            let seconds = (at.0.wrapping_sub(now.wall.0) as i32).max(0) as u64;
            now.ms + seconds * 1000
        });
        let wanted = |trigger, due: Option<u64>| due.filter(|_| self.triggers.contains(trigger));
        let volumes = self.limits.volume_threshold.is_some() || self.limits.volume_quota.is_some();
        let mut times = [None; 8];
        times[..5].copy_from_slice(&[
            wanted(ReportingTriggers::PERIO, self.period_due_ms),
            wanted(ReportingTriggers::TIMTH, left(self.limits.time_threshold, &self.since_report)),
            look.map(|time| now.ms + (time / CHECKS).max(100)),
            monitoring,
            volumes.then_some(now.ms + LOST_EVENT_MS),
        ]);
        if !self.exhausted {
            times[5..].copy_from_slice(&[
                left(self.limits.time_quota, &self.since_grant),
                // Checks whether there was traffic meanwhile.
                self.holding_ms
                    .map(|time| (self.last_active_ms + time).min(now.ms + time / CHECKS).max(now.ms + 1)),
                self.validity_ms.map(|time| self.granted_ms + time),
            ]);
        }
        times.into_iter().flatten().min()
    }
}

impl Rules {
    /// Adds a URR that measures from now on. `reading` is what the counters of this identifier show already.
    pub fn create_urr(&mut self, create: &CreateUrr, reading: Reading, now: Now) -> Result<(), Rejection> {
        let id = create.urr_id.0;
        check_new(&self.urrs, id, FailedRuleId::Urr(id))?;
        if create.linked_urr_ids.len() > MAX_RULES {
            return Err(Rejection::full(FailedRuleId::Urr(id)));
        }
        let mut rule = UrrRule::new(create, now)?;
        rule.seen = reading;
        rule.since_report.base = reading;
        rule.since_grant.base = reading;
        self.urrs.insert(id, rule);
        Ok(())
    }

    /// Changes a URR.
    pub fn update_urr(&mut self, update: &UpdateUrr, reading: Reading, now: Now) -> Result<(), Rejection> {
        let id = update.urr_id.0;
        let rule = self.urrs.get_mut(id).ok_or(Rejection::rule(FailedRuleId::Urr(id)))?;
        rule.update(update, reading, now)
    }
}
