//! Replaces `dpdk` in a program that was built without DPDK.

use std::sync::Arc;

use super::own::Own;
use super::{Interface, OpenError, Setup};

/// Nothing to start.
pub fn start(_: &Setup<'_>, _: &[Arc<Interface>]) -> Result<(), OpenError> {
    Ok(())
}

/// Always an error.
pub fn open(_: &Setup<'_>, interfaces: &[Arc<Interface>]) -> Result<Vec<Own>, OpenError> {
    let place = interfaces.first().map(|interface| interface.place.clone()).unwrap_or_default();
    Err(OpenError::NotBuilt { place })
}
