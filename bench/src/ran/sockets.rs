//! Kernel sockets as contenders: one datagram per system call, and many.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use net::udp::burst::Burst;
use net::udp::{Options, bind_std};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};
use pktio::{Port, Sent, VECTOR, Vector};

/// Octets that wait in a socket: as many as [`pktio::udp::UdpPort`] asks for.
const BUFFER: usize = 8 << 20;
/// Longest datagram.
const LONGEST: usize = 2048;

/// Opens a socket with long queues.
fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let buffer = Some(BUFFER);
    bind_std(address, Options { receive_buffer: buffer, send_buffer: buffer, ..Options::default() })
}

/// A socket that is read and written one datagram per call, as the paper's GTP-U tasks do.
pub(super) struct PerCall {
    socket: UdpSocket,
    octets: Box<[u8]>,
}

impl PerCall {
    pub(super) fn bind(address: SocketAddr) -> io::Result<PerCall> {
        Ok(PerCall { socket: bind(address)?, octets: vec![0; LONGEST].into() })
    }
}

impl Port for PerCall {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        match self.socket.recv_from(&mut self.octets) {
            Ok((length, from)) => {
                vector.push(&self.octets[..length], from);
                Ok(vector.len())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        for at in selected.iter().map(|at| usize::from(*at)) {
            let packet = vector.frames()[at].packet();
            let result = vector.destination(at).map(|to| self.socket.send_to(packet, to));
            match result {
                Some(Ok(octets)) => {
                    sent.packets += 1;
                    sent.bytes += octets;
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => sent.full += 1,
                _ => sent.errors += 1,
            }
        }
        sent
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

/// A socket that is read and written in batches, without help of the kernel's segmentation.
pub(super) struct Batched {
    socket: UdpSocket,
    burst: Burst,
}

thread_local! {
    /// The kernel's descriptions of a batch, kept so that sending allocates less. They cannot move to another thread.
    static HEADERS: RefCell<MultiHeaders<SockaddrStorage>> = RefCell::new(MultiHeaders::preallocate(VECTOR, None));
}

impl Batched {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Batched> {
        Ok(Batched { socket: bind(address)?, burst: Burst::new(LONGEST) })
    }
}

impl Port for Batched {
    fn receive(&mut self, vector: &mut Vector) -> io::Result<usize> {
        vector.clear();
        match self.burst.receive_now(&self.socket) {
            Ok(_) => {
                for (from, datagram) in self.burst.iter() {
                    vector.push(datagram, from);
                }
                Ok(vector.len())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        let frames = vector.frames();
        let packets: Vec<&[u8]> = selected.iter().map(|at| frames[usize::from(*at)].packet()).collect();
        let slices: Vec<[IoSlice<'_>; 1]> = packets.iter().map(|packet| [IoSlice::new(packet)]).collect();
        let destinations: Vec<Option<SockaddrStorage>> = selected
            .iter()
            .map(|at| vector.destination(usize::from(*at)).map(SockaddrStorage::from))
            .collect();
        let fd = self.socket.as_raw_fd();
        let count = HEADERS.with_borrow_mut(|headers| {
            let sent = sendmmsg(fd, headers, &slices, destinations, [], MsgFlags::MSG_DONTWAIT);
            sent.map_or(0, |results| results.count())
        });
        Sent {
            packets: count,
            bytes: packets[..count].iter().map(|packet| packet.len()).sum(),
            full: selected.len() - count,
            ..Sent::default()
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
