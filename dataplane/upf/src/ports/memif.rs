//! Interfaces with the backend `memif`: shared memory with another process ([`Own`]).
//!
//! The peer may come, go and come back at any time: packets sent meanwhile are counted as `tx_queue_full` or `peer_gone`.

use std::io;

use pktio::capture::Tap;
use pktio::memif::{MemifPort, OpenError};

use super::PortError;
use super::own::Own;
use crate::interfaces::Interface;

/// Opens an interface. A server listens when the call returns.
pub fn open(interface: &Interface, tap: Option<Tap>) -> Result<Own, PortError> {
    let (place, config) = (&interface.place, &interface.config);
    let error = |error: OpenError| {
        let hint = hint(&error);
        PortError::Device { place: place.clone(), error: error.to_string(), hint }
    };
    let ports = MemifPort::open(config.device(), 1, config.link_mtu()).map_err(error)?;
    Own::new(ports, interface, tap.as_ref())
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
