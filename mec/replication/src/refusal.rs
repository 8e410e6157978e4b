//! Why a replicator does not do what it is asked for.

use std::net::SocketAddr;

/// Why a request cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The database does not write.
    #[error("what has changed is not in the database yet, as it does not answer: ask again")]
    NotWritten,
    /// No messages of this anchor were captured.
    #[error("no session of the anchor `{0}` is known: is its control plane behind a switch that captures?")]
    NoSessions(String),
    /// No such anchor.
    #[error("there is no anchor `{0}`")]
    Unknown(String),
    /// It has another agent.
    #[error("copies at `{to}` are made by the agent at {agent}; end them first (POST /v1/replicas/remove)")]
    OtherAgent {
        /// The target.
        to: String,
        /// Its agent.
        agent: SocketAddr,
    },
    /// The agent makes copies of another anchor's sessions.
    #[error(
        "the agent at {agent} makes copies from {replica}, and an agent serves one pair of anchors: name another one that runs beside the clone, or end all those copies first (POST /v1/replicas/remove without `ues`)"
    )]
    AgentInUse {
        /// The agent.
        agent: SocketAddr,
        /// What it serves.
        replica: String,
    },
    /// The agent is not reached.
    #[error("the agent at {agent} cannot be reached: {why}")]
    NoAgent {
        /// The agent.
        agent: SocketAddr,
        /// Why.
        why: String,
    },
    /// Messages are not kept as they were.
    #[error(
        "no messages of this anchor are there as they were, which the scheme `naive` needs: `keep_raw` is off, or all its sessions began before the controller did. The scheme `selective` needs none"
    )]
    NoRaw,
}
