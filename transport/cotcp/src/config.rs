//! Limits and times of a connection, in one structure; what they default to and why.

use std::time::Duration;

use bytes::Bytes;

/// Most calls at once that a [`Config`] can ask for: a call's place is 16 bits of its ID, and half of the places are
/// kept for calls that were given up and not answered yet.
pub const MAX_CALLS: u32 = 32_768;

/// How one connection behaves. The defaults suit a signalling network inside a data centre.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whether to speak version 2. A client sends a HELLO then, a server answers one.
    pub negotiate: bool,
    /// Calls open at once, at most [`MAX_CALLS`]. Server: what it works on; client: what it opens.
    pub max_calls: u32,
    /// Octets of DATA that the peer may send of one message before it hears from us; at least four fragments.
    pub call_window: u32,
    /// The same for all messages together.
    pub connection_window: u32,
    /// Longest message taken in whole. One that is handed on in parts may be longer.
    pub max_message: u32,
    /// Octets of unfinished messages that are held at once while whole messages are assembled.
    pub assembly_budget: usize,
    /// Octets ready for the stream beyond which a client opens no calls and a server reads no requests.
    pub max_output: usize,
    /// Octets of long messages waiting for credit or for their turn beyond which no new calls are taken.
    pub max_queued: usize,
    /// Server: hand on requests in parts as they come instead of whole.
    pub parts: bool,
    /// Server: what a version 1 client gets in place of an error. Without it the call stays unanswered, for version 1
    /// has no way to tell an error from an answer.
    pub v1_error_body: Option<Bytes>,
    /// How long calls that need version 2 wait for the server's HELLO.
    pub hello_timeout: Duration,
    /// Client: how long a call without a deadline of its own waits for the first of its answer. A version 1 server from
    /// which nothing comes for as long again after a call was given up is taken for dead.
    pub call_timeout: Option<Duration>,
    /// From the first octet of a frame to its last.
    pub frame_timeout: Duration,
    /// From one fragment to the next of a message that is assembled, and from one credit to the next of a message that
    /// waits for it.
    pub message_timeout: Duration,
    /// How long the stream may take nothing while there is something to write.
    pub write_timeout: Duration,
    /// Silence after which a PING is sent (version 2).
    pub ping_after: Option<Duration>,
    /// Silence after the PING that means the peer is gone.
    pub ping_timeout: Duration,
    /// Silence without open calls after which a server closes a connection that cannot be pinged (version 1).
    pub idle_timeout: Option<Duration>,
    /// Frames a second that do nothing (§6, abuse).
    pub abuse_per_second: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            negotiate: true,
            max_calls: 1024,
            call_window: 65_536,
            connection_window: 1_048_576,
            max_message: 16_777_216,
            assembly_budget: 64 << 20,
            max_output: 1 << 20,
            max_queued: 64 << 20,
            parts: false,
            v1_error_body: None,
            hello_timeout: Duration::from_secs(3),
            call_timeout: Some(Duration::from_secs(30)),
            frame_timeout: Duration::from_secs(10),
            message_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(10),
            ping_after: Some(Duration::from_secs(15)),
            ping_timeout: Duration::from_secs(10),
            idle_timeout: Some(Duration::from_secs(600)),
            abuse_per_second: 1000,
        }
    }
}

impl Config {
    /// `max_calls` within what IDs have room for.
    pub(crate) fn calls(&self) -> u32 {
        self.max_calls.clamp(1, MAX_CALLS)
    }
}
