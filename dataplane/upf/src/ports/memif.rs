//! Interfaces with the backend `memif`: shared memory with another process ([`Own`]).
//!
//! The peer may come, go and come back at any time: packets sent meanwhile are counted as `tx_queue_full` or `peer_gone`.

use std::io;

use pktio::capture::Taps;
use pktio::memif::{MemifPort, OpenError};

use super::PortError;
use super::own::{self, Own};
use crate::interfaces::Interface;

/// Opens the interfaces of a device. A server listens when the call returns.
pub fn open(interfaces: &[&Interface], taps: Option<&Taps>) -> Result<Vec<Own>, PortError> {
    let Some(Interface { place, config, .. }) = interfaces.first() else { return Ok(Vec::new()) };
    let error = |error: OpenError| {
        let hint = hint(&error);
        PortError::Device { place: place.clone(), error: error.to_string(), hint }
    };
    let ports = MemifPort::open(config.device(), 1, own::mtu(interfaces)).map_err(error)?;
    own::interfaces(ports, interfaces, taps)
}

fn hint(error: &OpenError) -> &'static str {
    match error {
        OpenError::Settings(_) => "docs/memif.md lists the arguments of a device",
        OpenError::Socket { error, .. } => match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another program listens there: end it, or choose another socket or `role=client`"
            }
            io::ErrorKind::NotFound => "make the folder of the socket first",
            io::ErrorKind::PermissionDenied => {
                "the user of the UPF needs the right to write to the socket's folder"
            }
            _ => "the socket is a file in a folder to which the UPF may write, such as /run/godwit/n3.sock",
        },
    }
}
