//! Counters of one connection: plain numbers that a driver may read at any time.

/// Counters since the connection was opened. They only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames received.
    pub frames_in: u64,
    /// Octets received, of whole frames.
    pub octets_in: u64,
    /// Frames written to the outbox.
    pub frames_out: u64,
    /// Calls opened (client) or requests handed on (server).
    pub calls: u64,
    /// Calls answered by the server.
    pub answered: u64,
    /// Calls that failed for any reason.
    pub failed: u64,
    /// Calls that the client cancelled: CANCEL frames sent or received.
    pub cancelled: u64,
    /// Calls whose deadline or time-out expired.
    pub timed_out: u64,
    /// Requests that the server refused with an error at once, because a limit was reached or it was
    /// draining.
    pub refused: u64,
    /// Frames for calls that had ended: late answers and unknown IDs.
    pub late: u64,
    /// Version 1 requests that failed and got no answer.
    pub unanswered: u64,
    /// PINGs sent.
    pub pings: u64,
    /// Connections that the peer ended by breaking a rule: 0 or 1 here, a count when connections are added
    /// up.
    pub violations: u64,
}

impl Stats {
    /// Adds the counters of another connection.
    pub fn add(&mut self, other: &Self) {
        self.frames_in += other.frames_in;
        self.octets_in += other.octets_in;
        self.frames_out += other.frames_out;
        self.calls += other.calls;
        self.answered += other.answered;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.timed_out += other.timed_out;
        self.refused += other.refused;
        self.late += other.late;
        self.unanswered += other.unanswered;
        self.pings += other.pings;
        self.violations += other.violations;
    }
}
