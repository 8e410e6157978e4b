//! Replaces `dpdk` in a program that was built without DPDK.

use pktio::capture::Taps;

use super::PortError;
use super::own::Own;
use crate::config::Config;
use crate::interfaces::{Interface, Interfaces};

/// Nothing to start.
pub fn start(_: &Config, _: &Interfaces) -> Result<(), PortError> {
    Ok(())
}

/// Always an error.
pub fn open(interfaces: &[&Interface], _: Option<&Taps>, _: u32) -> Result<Vec<Own>, PortError> {
    let place = interfaces.first().map(|interface| interface.place.clone()).unwrap_or_default();
    Err(PortError::NotBuilt { place })
}
