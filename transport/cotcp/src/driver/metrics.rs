//! Counters of clients and servers, as values and as text for Prometheus.

use std::fmt::Write as _;

use crate::Stats;

/// What happened to the connections of a client or a server. All but `open` grow only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    /// Connections that are up.
    pub open: u64,
    /// Made or accepted so far, hand-shakes included.
    pub made: u64,
    /// Attempts that failed: nobody there, time-out, TLS.
    pub failed: u64,
    /// Over again, for whatever reason.
    pub lost: u64,
    /// Server: closed at once, as there were too many.
    pub refused: u64,
    /// Client: made again without a HELLO, as the peer closed on one.
    pub fell_back: u64,
    /// Client: calls that were repeated, as no server had begun with them.
    pub repeated: u64,
}

/// The counters of a client or a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Of the connections as such.
    pub connections: Connections,
    /// Of all connections together, those that are over included.
    pub stats: Stats,
}

impl Metrics {
    /// In the text format of Prometheus; `labels` goes between the braces of each line, such as `side="server"`.
    #[must_use]
    pub fn to_prometheus(&self, labels: &str) -> String {
        let (connections, stats) = (&self.connections, &self.stats);
        let counters = [
            ("connections_made", connections.made),
            ("connections_failed", connections.failed),
            ("connections_lost", connections.lost),
            ("connections_refused", connections.refused),
            ("connections_fell_back", connections.fell_back),
            ("calls_repeated", connections.repeated),
            ("frames_in", stats.frames_in),
            ("octets_in", stats.octets_in),
            ("frames_out", stats.frames_out),
            ("calls", stats.calls),
            ("calls_answered", stats.answered),
            ("calls_failed", stats.failed),
            ("calls_cancelled", stats.cancelled),
            ("calls_timed_out", stats.timed_out),
            ("calls_refused", stats.refused),
            ("frames_late", stats.late),
            ("calls_unanswered", stats.unanswered),
            ("pings", stats.pings),
            ("violations", stats.violations),
        ];
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# TYPE cotcp_connections gauge");
        let _ = writeln!(text, "cotcp_connections{{{labels}}} {}", connections.open);
        for (name, value) in counters {
            let _ = writeln!(text, "# TYPE cotcp_{name}_total counter");
            let _ = writeln!(text, "cotcp_{name}_total{{{labels}}} {value}");
        }
        text
    }
}
