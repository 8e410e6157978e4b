//! Datagram sockets of the kernel.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::socket::{setsockopt, sockopt};

use crate::udp::UdpPort;
use crate::{Port, Sent, Vector};

/// `SO_MEMINFO` of Linux, the number of its values, and the position of `SK_MEMINFO_DROPS` among them.
const SO_MEMINFO: libc::c_int = 55;
const MEMINFO: usize = 9;
const DROPS: usize = 8;

/// A UDP socket, and the ports through which vectors pass.
#[derive(Debug)]
pub struct KernelSocket {
    socket: Arc<UdpSocket>,
    receiving: Mutex<UdpPort>,
    sending: Mutex<UdpPort>,
}

impl KernelSocket {
    pub fn bind(local: SocketAddr) -> io::Result<KernelSocket> {
        // A port that receives several datagrams at once would keep some of them, of which the descriptor knows nothing.
        let port = UdpPort::bind_plain(local, false)?;
        let socket = Arc::clone(port.socket());
        Ok(KernelSocket { socket, sending: Mutex::new(port.share()), receiving: Mutex::new(port) })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.recv_from(buffer)
    }

    pub fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.socket.send_to(datagram, to)
    }

    pub fn recv_vector(&self, vector: &mut Vector) -> io::Result<usize> {
        match self.receiving.lock().unwrap_or_else(PoisonError::into_inner).receive(vector)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            received => Ok(received),
        }
    }

    pub fn send_vector(&self, vector: &mut Vector, selected: &[u16]) -> Sent {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner).transmit(vector, selected)
    }

    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        let class = i32::from(class);
        match self.local_addr()? {
            SocketAddr::V4(_) => setsockopt(&self.socket, sockopt::Ipv4Tos, &class)?,
            SocketAddr::V6(_) => setsockopt(&self.socket, sockopt::Ipv6TClass, &class)?,
        }
        Ok(())
    }

    pub fn overflow(&self) -> io::Result<u64> {
        let mut values = [0u32; MEMINFO];
        let mut length = size_of_val(&values) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` octets, which are those of `values`.
        let status = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_MEMINFO,
                values.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(values[DROPS].into()) }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
