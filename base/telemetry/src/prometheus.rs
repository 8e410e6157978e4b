//! Metrics as Prometheus reads them: the text exposition format 0.0.4.
//!
//! Flow: the server of `/metrics` makes an [`Exposition`] and adds its metrics; [`Exposition::counters`] adds the
//! process's event counters. Names that operators' dashboards know from other cores begin with `fivegs_` and follow the
//! measurements of TS 28.552; all others begin with `godwit_`.

use std::fmt::Write as _;

use serde_json::Value;

/// Content type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counters with a name in TS 28.552: ours, the metric's, its help.
const STANDARD: [(&str, &str, &str); 8] = [
    (
        "smf_session_requested",
        "fivegs_smffunction_sm_pdusessioncreationreq",
        "PDU session creations requested (SM.PduSessionCreationReq).",
    ),
    (
        "smf_session_accepted",
        "fivegs_smffunction_sm_pdusessioncreationsucc",
        "PDU sessions created (SM.PduSessionCreationSucc).",
    ),
    (
        "smf_session_rejected",
        "fivegs_smffunction_sm_pdusessioncreationfail",
        "PDU session creations rejected, by cause (SM.PduSessionCreationFail).",
    ),
    (
        "smf_session_released",
        "fivegs_smffunction_sm_pdusessionrelsucc",
        "PDU sessions released (SM.PduSessionRelSucc).",
    ),
    (
        "amf_registration_rejects",
        "fivegs_amffunction_rm_regfail",
        "Registrations rejected, by 5GMM cause (RM.RegFail).",
    ),
    ("ausf_authentications", "fivegs_ausffunction_auth_req", "Authentications asked of the AUSF."),
    (
        "upf_n4_sessions_established",
        "fivegs_upffunction_sm_n4sessionestabsucc",
        "N4 sessions established (SM.N4SessionEstabSucc).",
    ),
    (
        "upf_n4_sessions_deleted",
        "fivegs_upffunction_sm_n4sessionrelsucc",
        "N4 sessions released (SM.N4SessionRelSucc).",
    ),
];

/// How a metric's value changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows, until the process starts again.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Metrics on their way into text.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Nothing yet.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Begins a metric; its samples follow.
    pub fn metric(&mut self, name: &str, kind: Kind, help: &str) -> Metric<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Metric { text: &mut self.text, name: name.to_owned() }
    }

    /// Adds every named counter of the process, in the form [`crate::counters::snapshot`] gives.
    pub fn counters(&mut self, snapshot: &serde_json::Map<String, Value>) {
        for (name, value) in snapshot {
            let standard = STANDARD.iter().find(|(ours, ..)| ours == name);
            let (metric, help) = match standard {
                Some((_, metric, help)) => ((*metric).to_owned(), (*help).to_owned()),
                None => {
                    (format!("godwit_{name}_total"), format!("Events counted as {}.", name.replace('_', " ")))
                }
            };
            let mut metric = self.metric(&metric, Kind::Counter, &help);
            match (value.as_u64(), value["label"].as_str(), value["values"].as_object()) {
                (Some(count), ..) => metric.sample(&[], count as f64),
                (None, Some(label), Some(values)) => {
                    for (of, count) in values {
                        metric.sample(&[(label, of)], count.as_f64().unwrap_or(0.0));
                    }
                }
                _ => {}
            }
        }
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// A metric whose samples are being written.
#[derive(Debug)]
pub struct Metric<'a> {
    text: &'a mut String,
    name: String,
}

impl Metric<'_> {
    /// Writes a sample with its labels.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(&self.name);
        for (at, (label, of)) in labels.iter().enumerate() {
            let of = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{of}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn samples_have_help_type_and_escaped_labels() {
        let mut out = Exposition::new();
        let mut metric = out.metric("fivegs_x", Kind::Gauge, "Two\nlines.");
        metric.sample(&[], 3.0);
        metric.sample(&[("dnn", "a\"b\\c\n"), ("qfi", "9")], 0.5);
        assert_eq!(
            out.into_text(),
            "# HELP fivegs_x Two\\nlines.\n# TYPE fivegs_x gauge\nfivegs_x 3\n\
             fivegs_x{dnn=\"a\\\"b\\\\c\\n\",qfi=\"9\"} 0.5\n"
        );
    }

    #[test]
    fn counters_go_by_their_standard_name_or_ours() {
        let snapshot = json!({
            "smf_session_requested": 7,
            "smf_session_rejected": {"label": "cause", "values": {"26": 2, "27": 1}},
            "nf_heartbeats": u64::from(u32::MAX) + 1,
        });
        let mut out = Exposition::new();
        out.counters(snapshot.as_object().unwrap());
        let text = out.into_text();
        for line in [
            "fivegs_smffunction_sm_pdusessioncreationreq 7",
            "fivegs_smffunction_sm_pdusessioncreationfail{cause=\"26\"} 2",
            "# TYPE godwit_nf_heartbeats_total counter",
            "godwit_nf_heartbeats_total 4294967296",
        ] {
            assert!(text.lines().any(|of| of == line), "{line}\n{text}");
        }
    }
}
