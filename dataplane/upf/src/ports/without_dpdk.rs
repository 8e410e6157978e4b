//! Replaces `dpdk` in a program that was built without DPDK.

use std::net::SocketAddr;

use pktio::Port;
use pktio::capture::Tap;
use pktio::outbox::Outbox;

use super::PortError;
use crate::config::Config;
use crate::interface::InterfaceConfig;
use crate::interfaces::Interfaces;

/// Nothing to start.
pub fn start(_: &Config, _: &Interfaces) -> Result<(), PortError> {
    Ok(())
}

/// Always an error.
pub fn tunnels(
    place: &str,
    _: &InterfaceConfig,
    _: SocketAddr,
    _: Option<Tap>,
) -> Result<(Box<dyn Port>, Outbox), PortError> {
    Err(PortError::NotBuilt { place: place.to_owned() })
}

/// Always an error.
pub fn network(place: &str, _: &InterfaceConfig, _: Option<Tap>) -> Result<Box<dyn Port>, PortError> {
    Err(PortError::NotBuilt { place: place.to_owned() })
}
