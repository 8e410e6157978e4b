//! Replaces `dpdk` in a program that was built without DPDK.

use std::net::SocketAddr;

use pktio::Port;
use pktio::capture::Tap;
use pktio::outbox::Outbox;

use super::PortError;
use crate::config::Config;
use crate::interface::InterfaceConfig;

/// Nothing to start.
pub fn start(_: &Config) -> Result<(), PortError> {
    Ok(())
}

/// Always an error.
pub fn n3(_: &InterfaceConfig, _: SocketAddr, _: Option<Tap>) -> Result<(Box<dyn Port>, Outbox), PortError> {
    Err(PortError::NotBuilt { place: "upf.n3".to_owned() })
}

/// Always an error.
pub fn n6(place: &str, _: &InterfaceConfig, _: Option<Tap>) -> Result<Box<dyn Port>, PortError> {
    Err(PortError::NotBuilt { place: place.to_owned() })
}
