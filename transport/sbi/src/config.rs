//! Limits and times of client and server, with defaults that suit a core on one machine.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{access::Credentials, model::nrf::NfType, target::ApiRoot};

/// Limits of a server. All of them hold per server unless said otherwise.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Connections at once. For one more, the oldest on which no request was let in is closed.
    pub max_connections: usize,
    /// The same for one peer: an IPv4 address, or an IPv6 network of 64 bits.
    pub max_connections_per_address: usize,
    /// Requests being worked on; more are answered 503 NF_CONGESTION.
    pub max_requests: usize,
    /// Requests at once per connection; more wait in the client (RFC 9113 §5.1.2).
    pub max_concurrent_streams: u32,
    /// Octets of one request's content.
    pub max_body_bytes: usize,
    /// Octets of one request's headers.
    pub max_header_bytes: u32,
    /// Time for a handshake, and for a request's content to arrive.
    pub read_timeout: Duration,
    /// A connection on which no request was let in is closed when none has come for so long.
    pub stranger_timeout: Duration,
    /// The same for connections of callers that are known.
    pub idle_timeout: Duration,
    /// Time for requests to finish once the server is told to stop.
    pub drain_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_connections: 512,
            max_connections_per_address: 128,
            max_requests: 16_384,
            max_concurrent_streams: 1_024,
            max_body_bytes: 256 * 1024,
            max_header_bytes: 16 * 1024,
            read_timeout: Duration::from_secs(5),
            stranger_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(900),
            drain_timeout: Duration::from_secs(2),
        }
    }
}

/// Behaviour of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Time for one call, discovery and connection included.
    pub timeout: Duration,
    /// Octets of one answer's content.
    pub max_body_bytes: usize,
    /// Where to discover instances.
    pub nrf: Option<ApiRoot>,
    /// Instances to use without asking NRF.
    pub peers: HashMap<NfType, ApiRoot>,
    /// Who is asking; NRF wants to know.
    pub requester: NfType,
    /// By which access tokens are had from the NRF. `None` calls without tokens.
    pub credentials: Option<Arc<Credentials>>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(3),
            max_body_bytes: 1024 * 1024,
            nrf: None,
            peers: HashMap::new(),
            requester: NfType::Af,
            credentials: None,
        }
    }
}
