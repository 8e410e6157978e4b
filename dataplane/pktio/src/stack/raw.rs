//! Raw sockets through which the kernel routes whole IP packets: N6's slow path.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::ip::destination;
use crate::{Port, Sent, Vector};

const IPV6_HDRINCL: libc::c_int = 36;

/// A port that sends IP packets by the kernel's routing and receives none.
#[derive(Debug)]
pub struct RawPort {
    ipv4: OwnedFd,
    /// Not there where the kernel has no IPv6.
    ipv6: Option<OwnedFd>,
}

fn open(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes numbers only; the kernel has just opened the descriptor for us.
    unsafe {
        let fd = libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

impl RawPort {
    /// Opens the sockets in the calling thread's network namespace. Needs CAP_NET_RAW.
    pub fn open() -> io::Result<RawPort> {
        let ipv6 = open(libc::AF_INET6).ok().filter(|fd| {
            let on: libc::c_int = 1;
            // SAFETY: the pointer and length describe `on`.
            let status = unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::IPPROTO_IPV6,
                    IPV6_HDRINCL,
                    (&raw const on).cast(),
                    size_of_val(&on) as libc::socklen_t,
                )
            };
            status == 0
        });
        Ok(RawPort { ipv4: open(libc::AF_INET)?, ipv6 })
    }

    fn send(&self, packet: &[u8]) -> io::Result<usize> {
        let to = destination(packet).ok_or(io::ErrorKind::InvalidData)?;
        let (fd, name, name_len) = match to {
            IpAddr::V4(address) => {
                // SAFETY: a plain C struct for which all zeroes is a valid value.
                let mut name: libc::sockaddr_in = unsafe { std::mem::zeroed() };
                name.sin_family = libc::AF_INET as libc::sa_family_t;
                name.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
                // SAFETY: the storage is at least as large and as aligned as any socket address.
                let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
                // SAFETY: as above.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(name) };
                (&self.ipv4, storage, size_of_val(&name))
            }
            IpAddr::V6(address) => {
                let fd = self.ipv6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                // SAFETY: a plain C struct for which all zeroes is a valid value.
                let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
                name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                name.sin6_addr.s6_addr = address.octets();
                // SAFETY: a plain C struct for which all zeroes is a valid value.
                let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
                // SAFETY: the storage is at least as large and as aligned as any socket address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(name) };
                (fd, storage, size_of_val(&name))
            }
        };
        // SAFETY: the pointers and lengths describe the packet and the name, which outlive the call.
        let sent = unsafe {
            libc::sendto(
                fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                libc::MSG_DONTWAIT,
                (&raw const name).cast(),
                name_len as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

impl Port for RawPort {
    fn receive(&mut self, batch: &mut Vector) -> io::Result<usize> {
        batch.clear();
        Ok(0)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let mut sent = Sent::default();
        for &position in selected {
            let Some(buffer) = batch.sendable(position) else {
                sent.errors += 1;
                continue;
            };
            match self.send(buffer.packet()) {
                Ok(length) => {
                    sent.packets += 1;
                    sent.bytes += length;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => sent.full += 1,
                    Some(libc::EMSGSIZE) => sent.too_big += 1,
                    Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => sent.unresolved += 1,
                    _ => sent.errors += 1,
                },
            }
        }
        sent
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
