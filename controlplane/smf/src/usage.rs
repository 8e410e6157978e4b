//! What a UE has used, as its UPF reports it (TS 29.244 §5.2.2): octets of user packets of one PDU session.
//!
//! A UPF reports in each period, and at the end of a session. It numbers its reports (UR-SEQN): one that comes again is not
//! counted again, and the listing says how many are missing. Reports are counted before a session's lock is taken: one
//! that crosses with the deletion of its session counts, too.

use std::net::SocketAddr;

use pfcp::{UrrId, UsageReport};
use serde::Serialize;
use telemetry::counters::Counter;

static UPLINK: Counter = Counter::new("smf_usage_uplink_octets");
static DOWNLINK: Counter = Counter::new("smf_usage_downlink_octets");
static REPEATED: Counter = Counter::new("smf_usage_report_repeated");
static FOREIGN: Counter = Counter::new("smf_usage_report_unexpected");

/// The rule that measures a session.
pub(crate) const URR: UrrId = UrrId(1);
/// How many of the last numbers are remembered: a UPF has fewer reports under way at once.
const REMEMBERED: u32 = u64::BITS;

/// Which reports have come since the UPF has the session.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    first: u32,
    last: u32,
    /// Bit n: `last - n` has come.
    come: u64,
    count: u32,
}

impl Numbers {
    /// Notes a number; whether it is new.
    fn note(&mut self, number: u32) -> bool {
        let ahead = number.wrapping_sub(self.last);
        let is_new = if ahead.cast_signed() > 0 {
            self.last = number;
            self.come = self.come.checked_shl(ahead).unwrap_or(0) | 1;
            true
        } else {
            let bit = 1_u64.checked_shl(ahead.wrapping_neg()).unwrap_or(0);
            let is_new = ahead.wrapping_neg() < REMEMBERED && self.come & bit == 0;
            self.come |= bit;
            if is_new && number.wrapping_sub(self.first).cast_signed() < 0 {
                self.first = number;
            }
            is_new
        };
        self.count += u32::from(is_new);
        is_new
    }

    fn missing(&self) -> u32 {
        self.last.wrapping_sub(self.first).wrapping_add(1).saturating_sub(self.count)
    }
}

/// Usage of a session.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// The UPF that measures, and its reports.
    upf: Option<SocketAddr>,
    numbers: Option<Numbers>,
    total: Total,
}

/// Usage in `GET /sessions`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Total {
    pub uplink_octets: u64,
    pub downlink_octets: u64,
    pub reports: u32,
    /// Reports of whose numbers no one has come, between the first one and the last one.
    pub missing_reports: u32,
}

impl Usage {
    /// A UPF begins to measure: the session is new there.
    pub fn begins_at(&mut self, upf: SocketAddr) {
        self.total.missing_reports = self.missing();
        (self.upf, self.numbers) = (Some(upf), None);
    }

    /// Counts what a UPF has measured.
    pub fn count(&mut self, upf: SocketAddr, reports: &[UsageReport]) {
        for report in reports {
            if self.upf != Some(upf) || report.urr_id != URR {
                FOREIGN.inc();
                continue;
            }
            let number = report.sequence.0;
            let is_new = match &mut self.numbers {
                Some(numbers) => numbers.note(number),
                None => {
                    self.numbers = Some(Numbers { first: number, last: number, come: 1, count: 1 });
                    true
                }
            };
            if !is_new {
                REPEATED.inc();
                continue;
            }
            let volume = report.volume.unwrap_or_default();
            let (uplink, downlink) = (volume.uplink.unwrap_or(0), volume.downlink.unwrap_or(0));
            UPLINK.add(uplink);
            DOWNLINK.add(downlink);
            self.total.uplink_octets = self.total.uplink_octets.saturating_add(uplink);
            self.total.downlink_octets = self.total.downlink_octets.saturating_add(downlink);
            self.total.reports = self.total.reports.saturating_add(1);
        }
    }

    fn missing(&self) -> u32 {
        let missing = self.numbers.map_or(0, |numbers| numbers.missing());
        self.total.missing_reports.saturating_add(missing)
    }

    /// All so far; `None`: no UPF has reported.
    pub fn total(&self) -> Option<Total> {
        let total = Total { missing_reports: self.missing(), ..self.total };
        (total != Total::default()).then_some(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfcp::{UrSeqn, VolumeMeasurement};

    fn report(number: u32, uplink: u64, downlink: u64) -> UsageReport {
        let volume = VolumeMeasurement {
            total: Some(uplink + downlink),
            uplink: Some(uplink),
            downlink: Some(downlink),
            ..Default::default()
        };
        UsageReport { urr_id: URR, sequence: UrSeqn(number), volume: Some(volume), ..Default::default() }
    }

    #[test]
    fn a_repetition_is_not_counted_and_what_is_missing_is_told() {
        let upf: SocketAddr = "127.0.0.7:8805".parse().unwrap();
        let mut usage = Usage::default();
        usage.begins_at(upf);
        assert_eq!(usage.total(), None);
        usage.count(upf, &[report(0, 10, 1), report(0, 10, 1), report(3, 20, 2), report(1, 5, 0)]);
        usage.count(upf, &[report(3, 20, 2), UsageReport { urr_id: UrrId(2), ..report(4, 1, 1) }]);
        usage.count("127.0.0.8:8805".parse().unwrap(), &[report(4, 1, 1)]);
        let total = Total { uplink_octets: 35, downlink_octets: 3, reports: 3, missing_reports: 1 };
        assert_eq!(usage.total(), Some(total));
        // The UPF has restarted, and counts its reports from 0.
        usage.begins_at(upf);
        usage.count(upf, &[report(0, 1, 1)]);
        let total = Total { uplink_octets: 36, downlink_octets: 4, reports: 4, missing_reports: 1 };
        assert_eq!(usage.total(), Some(total));
    }

    #[test]
    fn numbers_wrap_and_old_ones_are_not_believed() {
        let mut numbers = Numbers { first: u32::MAX, last: u32::MAX, come: 1, count: 1 };
        assert!(numbers.note(0) && !numbers.note(u32::MAX) && numbers.note(100) && !numbers.note(0));
        assert!(numbers.note(90) && !numbers.note(90));
        assert_eq!(numbers.missing(), 98);
    }
}
