//! Limits and timeouts of client and server, with defaults for a core on one machine.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{
    access::Credentials,
    model::nrf::NfType,
    target::ApiRoot,
    tls::{Tls, TlsMode},
};

/// Limits of a server. They apply to the whole server unless stated otherwise.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Connections at once. To make place for another, the oldest connection without an accepted
    /// request is closed.
    pub max_connections: usize,
    /// The same for one peer: an IPv4 address, or an IPv6 network of 64 bits.
    pub max_connections_per_address: usize,
    /// Requests in progress; more are answered with 503 NF_CONGESTION.
    pub max_requests: usize,
    /// Requests at once per connection; the client queues further ones (RFC 9113 §5.1.2).
    pub max_concurrent_streams: u32,
    /// Octets of one request's content.
    pub max_body_bytes: usize,
    /// Octets of one request's headers.
    pub max_header_bytes: u32,
    /// Time for a handshake, and for a request's content to arrive.
    pub read_timeout: Duration,
    /// How long a connection without an accepted request may be idle.
    pub stranger_timeout: Duration,
    /// How long another connection may be idle.
    pub idle_timeout: Duration,
    /// Time for requests in progress after the server was told to stop.
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
    /// The NRF for discovery.
    pub nrf: Option<ApiRoot>,
    /// Instances to use without asking the NRF.
    pub peers: HashMap<NfType, ApiRoot>,
    /// The client's NF type, for the NRF.
    pub requester: NfType,
    /// With which the client gets access tokens from the NRF. `None` calls without tokens.
    pub credentials: Option<Arc<Credentials>>,
    /// For peers whose URI begins with `https`. `None` calls none of them.
    pub tls: Option<Tls>,
    /// Where calls in clear are refused. Off by default, as access tokens are.
    pub tls_mode: TlsMode,
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
            tls: None,
            tls_mode: TlsMode::Off,
        }
    }
}
