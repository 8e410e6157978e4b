//! An interface for frames in memory, for tests of what stands on frames.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use packet::ethernet::Mac;
use pktio::memory::MemoryPort;
use pktio::{FramePort, Port, Sent, Vector};

/// The interface's own address.
pub const OURS: Mac = [2, 0, 0, 0, 0, 1];
pub const MTU: usize = 1500;

/// Frames to and from a test.
pub struct Frames(pub MemoryPort);

impl Port for Frames {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        self.0.receive(batch)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.0.transmit(batch, selected)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl FramePort for Frames {
    fn mac(&self) -> Mac {
        OURS
    }

    fn mtu(&self) -> usize {
        MTU
    }
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// In place of the peer of a frame.
pub fn nobody() -> SocketAddr {
    "0.0.0.0:0".parse().unwrap()
}
