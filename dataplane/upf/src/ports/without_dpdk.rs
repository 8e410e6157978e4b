//! Replaces `dpdk` in a program that was built without DPDK.

use pktio::capture::Tap;

use super::PortError;
use super::own::Own;
use crate::config::Config;
use crate::interfaces::{Interface, Interfaces};

/// Nothing to start.
pub fn start(_: &Config, _: &Interfaces) -> Result<(), PortError> {
    Ok(())
}

/// Always an error.
pub fn open(interface: &Interface, _: Option<Tap>, _: u32) -> Result<Own, PortError> {
    Err(PortError::NotBuilt { place: interface.place.clone() })
}
