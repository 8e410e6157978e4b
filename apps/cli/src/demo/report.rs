//! The result of a demo: a JSON file and a table.

use std::collections::BTreeMap;

use net::time::Duration;
use serde::Serialize;
use serde_json::Value;

use super::applications::Pings;
use super::idle_mode::IdleMode;
use output::{self, Table};

/// Failures that a check names; the others are only counted.
const FAILURES_SHOWN: usize = 3;

/// The result as JSON for other programs.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// UEs requested.
    pub ues: u32,
    /// UEs registered; in 4G attached.
    pub registered: u64,
    /// PDU sessions set up; in 4G PDN connections.
    pub sessions: u64,
    /// Duration of registrations, measured at the UE; in 4G of attaches, measured at the MME.
    pub registration_ms: Percentiles,
    /// Duration of PDU session establishments, measured at the UE. In 4G the attach sets up the PDN connection, so both are the same.
    pub session_ms: Percentiles,
    /// Idle mode, in 4G.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_mode: Option<IdleMode>,
    /// Echo requests from all UEs.
    pub ping: Ping,
    /// The HTTP download.
    pub download: Download,
    /// Packets the UPF dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// The checks and their results.
    pub checks: Vec<Check>,
    /// Processing time of the core per procedure, microseconds; for the table.
    #[serde(skip)]
    core_us: BTreeMap<String, Percentiles>,
    /// How the table names things.
    #[serde(skip)]
    words: Words,
}

/// What 5G and 4G call things.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// What UEs do to enter and have done then.
    pub enter: &'static str,
    /// UEs that have.
    pub entered: &'static str,
    /// What they have then.
    pub sessions: &'static str,
    /// What UEs do in the end.
    pub leave: &'static str,
    /// Procedures whose times the UEs' side measures.
    times: &'static [Time],
}

/// The name of a time, and where it is in the report.
type Time = (&'static str, fn(&Report) -> Percentiles);

/// Words of 5G.
pub const FIVE_G: Words = Words {
    enter: "registration",
    entered: "registered",
    sessions: "PDU sessions",
    leave: "deregistration",
    times: &[
        ("registration, seen by the UE", |report| report.registration_ms),
        ("PDU session establishment, seen by the UE", |report| report.session_ms),
    ],
};

/// Words of 4G.
pub const FOUR_G: Words = Words {
    enter: "attach",
    entered: "attached",
    sessions: "PDN connections",
    leave: "detach",
    times: &[
        ("attach, seen by the MME", |report| report.registration_ms),
        ("S1 release, seen by the MME", |report| report.idle(|idle| idle.release_ms)),
        ("service request, seen by the MME", |report| report.idle(|idle| idle.service_ms)),
    ],
};

impl Default for Words {
    fn default() -> Words {
        FIVE_G
    }
}

/// Median and 99th percentile; 0 without samples.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Echo requests and replies.
#[derive(Debug, Default, Serialize)]
pub struct Ping {
    /// Requests.
    pub sent: u64,
    /// Replies.
    pub received: u64,
    /// Median round-trip time.
    pub rtt_ms: f64,
}

/// A download.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Download {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Megabits per second.
    pub mbps: f64,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub struct Check {
    /// A short name.
    pub name: &'static str,
    /// Whether the check passed.
    pub ok: bool,
    /// What was measured.
    pub detail: String,
}

impl Report {
    /// An empty report.
    pub fn new(ues: u32, words: Words) -> Report {
        Report { ues, words, ..Report::default() }
    }

    fn idle(&self, of: fn(&IdleMode) -> Percentiles) -> Percentiles {
        self.idle_mode.as_ref().map(of).unwrap_or_default()
    }

    /// How this report names things.
    pub fn words(&self) -> Words {
        self.words
    }

    /// Adds the result of a check.
    pub fn check(&mut self, name: &'static str, ok: bool, detail: String) {
        self.checks.push(Check { name, ok, detail });
    }

    /// Whether every check passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }

    /// Adds what the UEs reported: durations and failures.
    pub fn attached(&mut self, registration_ms: &[f64], session_ms: &[f64], failures: &[String]) {
        self.registered = registration_ms.len() as u64;
        self.sessions = session_ms.len() as u64;
        self.registration_ms = Percentiles::of(registration_ms);
        self.session_ms = Percentiles::of(session_ms);
        let mut why = String::new();
        for failure in failures.iter().take(FAILURES_SHOWN) {
            why += &format!("; {failure}");
        }
        if failures.len() > FAILURES_SHOWN {
            why += &format!("; and {} more", failures.len() - FAILURES_SHOWN);
        }
        let (ues, registered, sessions) = (u64::from(self.ues), self.registered, self.sessions);
        self.check(self.words.enter, registered == ues, format!("{registered} of {ues} UEs{why}"));
        self.check("sessions", sessions == ues, format!("{sessions} of {ues} sessions{why}"));
    }

    /// Adds the results of the pings.
    pub fn pinged(&mut self, pings: Pings) {
        let all = pings.sent > 0 && pings.received == pings.sent && pings.problem.is_none();
        let detail = format!("{} of {} answered{}", pings.received, pings.sent, pings.problem_text());
        self.check("ping", all, detail);
        let rtt_ms = Percentiles::of(&pings.rtt_ms).p50;
        self.ping = Ping { sent: pings.sent, received: pings.received, rtt_ms };
    }

    /// Adds the UPF's counters.
    pub fn counted(&mut self, stats: &Value) {
        let drops = stats.get("drops").and_then(Value::as_object);
        self.drops = drops
            .into_iter()
            .flatten()
            .filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let interfaces = || stats["interfaces"].as_object().into_iter().flatten();
        let networks = || interfaces().filter(|(_, interface)| interface["role"] == "n6");
        let carried = |side: &str| -> u64 {
            networks().filter_map(|(_, network)| network[side]["bytes"].as_u64()).sum()
        };
        // The download must have gone through the UPF and by no other way.
        let through = carried("sent").max(carried("received"));
        let detail = format!("{} MB went through N6", through / 1_000_000);
        self.check("UPF", through >= self.download.bytes, detail);
    }

    /// Adds the AMF's processing times: a list of `{"procedure", "core_us", …}`.
    pub fn core_times(&mut self, procedures: &Value) {
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for sample in procedures.as_array().into_iter().flatten() {
            if let (Some(name), Some(core_us)) = (sample["procedure"].as_str(), sample["core_us"].as_f64()) {
                samples.entry(name.to_owned()).or_default().push(core_us);
            }
        }
        self.core_us = samples.into_iter().map(|(name, samples)| (name, Percentiles::of(&samples))).collect();
    }

    /// Prints the summary.
    pub fn print(&self, elapsed: Duration) -> std::io::Result<()> {
        output::text(&self.render(elapsed))
    }

    fn render(&self, elapsed: Duration) -> String {
        let mut times = Table::new(&["procedure", "p50", "p99"]);
        let ms = |value: f64| format!("{value:.2} ms");
        for (name, of) in self.words.times {
            let times_ms = of(self);
            times.row([(*name).to_owned(), ms(times_ms.p50), ms(times_ms.p99)]);
        }
        for (name, core_us) in &self.core_us {
            times.row([format!("{name}, time in the core"), ms(core_us.p50 / 1e3), ms(core_us.p99 / 1e3)]);
        }
        let mut checks = Table::new(&["check", "", "found"]);
        for check in &self.checks {
            let mark = if check.ok { "ok" } else { "FAILED" };
            checks.row([check.name.to_owned(), mark.to_owned(), check.detail.clone()]);
        }
        let drops = if self.drops.is_empty() {
            "none".to_owned()
        } else {
            let list: Vec<String> =
                self.drops.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
            list.join(", ")
        };
        let Words { entered, sessions, .. } = self.words;
        format!(
            "\n{} UEs, {} {entered}, {} {sessions}\n\n{}\nlatency     {:.3} ms (median of {} pings, {} lost)\n\
             throughput  {:.0} Mbit/s ({} MB by HTTP)\ndrops       {drops}\n\n{}\n{} in {:.1} s\n",
            self.ues,
            self.registered,
            self.sessions,
            times.render(),
            self.ping.rtt_ms,
            self.ping.sent,
            self.ping.sent.saturating_sub(self.ping.received),
            self.download.mbps,
            self.download.bytes / 1_000_000,
            checks.render(),
            if self.passed() { "all well" } else { "SOMETHING FAILED" },
            elapsed.as_secs_f64(),
        )
    }
}

impl Percentiles {
    /// Percentiles by nearest rank.
    pub fn of(samples: &[f64]) -> Percentiles {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
            sorted.get(index).copied().unwrap_or(0.0)
        };
        Percentiles { p50: rank(50), p99: rank(99) }
    }
}

/// Number of entries of a listing: a bare array, or an object that contains an array.
pub fn entries(listing: &Value) -> usize {
    let array = |value: &Value| value.as_array().map(Vec::len);
    array(listing).or_else(|| listing.as_object()?.values().find_map(array)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn percentiles_by_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Percentiles::of(&hundred), Percentiles { p50: 50.0, p99: 99.0 });
        assert_eq!(Percentiles::of(&[7.0]), Percentiles { p50: 7.0, p99: 7.0 });
        assert_eq!(Percentiles::of(&[]), Percentiles::default());
    }

    #[test]
    fn the_json_has_the_published_form_and_one_failed_check_fails_all() {
        let mut report = Report::new(2, FIVE_G);
        report.attached(&[1.0, 3.0], &[2.0, 4.0], &[]);
        report.pinged(Pings { sent: 6, received: 6, rtt_ms: vec![0.5; 6], problem: None });
        report.download = Download { bytes: 1000, mbps: 8.0 };
        report.counted(&json!({"interfaces": {"internet": {"role": "n6", "received": {"bytes": 2000}}}, "drops": {"no_pdr": 2, "not_ip": 0}}));
        assert!(report.passed());
        let mut value = serde_json::to_value(&report).unwrap();
        let checks = value.as_object_mut().unwrap().remove("checks").unwrap();
        assert_eq!(
            value,
            json!({
                "ues": 2, "registered": 2, "sessions": 2,
                "registration_ms": {"p50": 1.0, "p99": 3.0},
                "session_ms": {"p50": 2.0, "p99": 4.0},
                "ping": {"sent": 6, "received": 6, "rtt_ms": 0.5},
                "download": {"bytes": 1000, "mbps": 8.0},
                "drops": {"no_pdr": 2},
            })
        );
        assert!(checks.as_array().unwrap().iter().all(|check| check["ok"] == true));
        report.pinged(Pings { sent: 6, received: 5, rtt_ms: vec![0.5; 5], problem: None });
        assert!(!report.passed());
        assert!(report.render(Duration::from_secs(1)).contains("SOMETHING FAILED"));
    }

    #[test]
    fn bytes_that_went_elsewhere_are_noticed() {
        let mut report = Report::new(1, FIVE_G);
        report.download = Download { bytes: 1000, mbps: 8.0 };
        report.counted(&json!({"interfaces": {"internet": {"role": "n6", "received": {"bytes": 10}, "sent": {"bytes": 10}}}}));
        assert!(!report.passed());
    }

    #[test]
    fn listings_are_counted_in_either_form() {
        assert_eq!(entries(&json!([1, 2])), 2);
        assert_eq!(entries(&json!({"ues": [1]})), 1);
        assert_eq!(entries(&json!({})), 0);
    }
}
