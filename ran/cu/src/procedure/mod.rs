//! The procedures of a UE's task, each as its standard tells it.

mod context_modification;
mod initial_context_setup;
mod reconfiguration;
mod release;
mod rrc_connection_establishment;
mod session_modify;
mod session_release;
mod session_setup;
