//! How a client and a server behave, beyond what one connection does ([`Config`]).

use std::time::Duration;

use crate::Config;

/// How a [`super::client::Client`] behaves.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Each connection.
    pub connection: Config,
    /// Connections that are held open.
    pub connections: usize,
    /// Calls of one turn of the executor that go to the same connection before the next is chosen: together they cost
    /// one write.
    pub burst: u32,
    /// From the beginning of an attempt to connect to its end, TLS included.
    pub connect_timeout: Duration,
    /// How long a call waits for a connection while there is none.
    pub wait_for_connection: Duration,
    /// Pause after the first failed attempt to connect. It doubles with each; half of it is random.
    pub backoff_min: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
    /// How often a call that no server has begun with is repeated.
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
    /// Each connection.
    pub connection: Config,
    /// Connections beyond are closed at once, and counted.
    pub max_connections: usize,
    /// How long a TLS hand-shake may take.
    pub handshake_timeout: Duration,
    /// How long open calls may go on once the server drains.
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
