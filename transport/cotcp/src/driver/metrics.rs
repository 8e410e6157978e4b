//! Counters of clients and servers, as values and as text for Prometheus.

use std::fmt::Write as _;

use crate::Stats;

/// Counters of a client's or server's connections. All but `open` only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    /// Connections that are established.
    pub open: u64,
    /// Connections opened or accepted so far, including those whose hand-shake failed.
    pub made: u64,
    /// Attempts that failed: no listener, time-out, or TLS.
    pub failed: u64,
    /// Connections that ended, for any reason.
    pub lost: u64,
    /// Server: connections closed at once, because the limit was reached.
    pub refused: u64,
    /// Client: connections opened again without a HELLO, because the peer closed the connection after one.
    pub fell_back: u64,
    /// Client: calls that were repeated, because no server had begun to work on them.
    pub repeated: u64,
}

/// The counters of a client or a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Counters of connections.
    pub connections: Connections,
    /// Counters of calls and frames, over all connections, ended ones included.
    pub stats: Stats,
}

impl Metrics {
    /// The counters in the text format of Prometheus. `labels` stands between the braces of each line, for
    /// example `side="server"`.
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
