//! Counters of the service-based interface, shown in the `/status` of every NF.

use telemetry::counters::{Counter, Family};

/// Calls made.
pub(crate) static CLIENT_CALLS: Counter = Counter::new("sbi_client_calls");
/// Calls that failed, by kind: `problem`, `timeout`, `unreachable`, `malformed`.
pub(crate) static CLIENT_FAILURES: Family = Family::new("sbi_client_failures", "kind");
/// Calls repeated because the first attempt was certainly not processed.
pub(crate) static CLIENT_RETRIES: Counter = Counter::new("sbi_client_retries");
/// Connections opened.
pub(crate) static CLIENT_CONNECTIONS: Counter = Counter::new("sbi_client_connections");
/// Connections that could not be secured, by reason. What a server says of our certificate arrives later, with the call.
pub(crate) static CLIENT_TLS_FAILURES: Family = Family::new("sbi_client_tls_failures", "reason");
/// Discoveries sent to NRF.
pub(crate) static DISCOVERIES: Counter = Counter::new("sbi_discoveries");
/// Access tokens asked for.
pub(crate) static TOKENS_REQUESTED: Counter = Counter::new("sbi_tokens_requested");
/// Access tokens whose signature was verified, without those found in memory.
pub(crate) static TOKENS_VERIFIED: Counter = Counter::new("sbi_tokens_verified");
/// Requests received.
pub(crate) static SERVER_REQUESTS: Counter = Counter::new("sbi_server_requests");
/// Requests refused before a handler saw them, by reason.
pub(crate) static SERVER_REJECTED: Family = Family::new("sbi_server_rejected", "reason");
/// Requests a handler answered with a problem, by cause.
pub(crate) static SERVER_PROBLEMS: Family = Family::new("sbi_server_problems", "cause");
/// Connections refused or broken by misbehaving peers, by reason.
pub(crate) static SERVER_CONNECTION_ERRORS: Family = Family::new("sbi_server_connection_errors", "reason");
