//! Interfaces with the backend `memif`: shared memory with another process ([`Own`]).
//!
//! The peer may come, go and come back at any time: packets sent meanwhile are counted as `tx_queue_full` or `peer_gone`.

use std::io;
use std::sync::Arc;

use super::own::{self, Own};
use super::{Interface, OpenError, Setup};
use crate::memif::{self, MemifPort};

/// Opens the interfaces of a device. A server listens when the call returns.
pub fn open(setup: &Setup<'_>, interfaces: &[Arc<Interface>]) -> Result<Vec<Own>, OpenError> {
    let Some(first) = interfaces.first() else { return Ok(Vec::new()) };
    let error = |error: memif::OpenError| {
        let hint = hint(&error).to_owned();
        OpenError::Device { place: first.place.clone(), error: error.to_string(), hint }
    };
    let ports = MemifPort::open(first.link.device(), 1, own::mtu(interfaces)).map_err(error)?;
    own::interfaces(ports, setup, interfaces)
}

fn hint(error: &memif::OpenError) -> &'static str {
    match error {
        memif::OpenError::Settings(_) => "docs/memif.md lists the arguments of a device",
        memif::OpenError::Socket { error, .. } => match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another program listens there: end it, or choose another socket or `role=client`"
            }
            io::ErrorKind::NotFound => "make the folder of the socket first",
            io::ErrorKind::PermissionDenied => {
                "the user of this program needs the right to write to the socket's folder"
            }
            _ => {
                "the socket is a file in a folder to which this program may write, such as /run/godwit/n3.sock"
            }
        },
    }
}
