//! How clients and servers behave, beyond the behaviour of one connection ([`Config`]).

use std::time::Duration;

use crate::Config;

/// How a [`super::client::Client`] behaves.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Configuration of each connection.
    pub connection: Config,
    /// Number of connections to keep open.
    pub connections: usize,
    /// Calls made in one turn of the executor that use the same connection before the next one is chosen.
    /// Calls on one connection share a write.
    pub burst: u32,
    /// Time for one attempt to connect, TLS included.
    pub connect_timeout: Duration,
    /// How long a call waits while there is no connection.
    pub wait_for_connection: Duration,
    /// Pause after the first failed attempt to connect. It doubles with each failure, and half of it is
    /// random.
    pub backoff_min: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// How often a call is repeated that no server has begun to work on.
    pub repeats: u32,
    /// How long [`super::client::Client::close`] waits for open calls.
    pub drain_timeout: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connection: Config::default(),
            connections: 1,
            burst: 64,
            connect_timeout: Duration::from_secs(5),
            wait_for_connection: Duration::from_secs(3),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(10),
            repeats: 2,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl From<Config> for ClientConfig {
    fn from(connection: Config) -> Self {
        Self { connection, ..Self::default() }
    }
}

/// How a [`super::server::Server`] behaves.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Configuration of each connection.
    pub connection: Config,
    /// Most connections at a time. Further ones are closed at once and counted.
    pub max_connections: usize,
    /// How long a TLS hand-shake may take.
    pub handshake_timeout: Duration,
    /// How long open calls may continue after the server starts to drain.
    pub drain_timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connection: Config::default(),
            max_connections: 65_536,
            handshake_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl From<Config> for ServerConfig {
    fn from(connection: Config) -> Self {
        Self { connection, ..Self::default() }
    }
}
