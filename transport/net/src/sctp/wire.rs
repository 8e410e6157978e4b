//! The sockets of user-space SCTP: raw IP protocol 132, or UDP.
//!
//! A raw socket receives every SCTP packet for its address, so a packet filter in the kernel passes
//! only those for our port. The kernel does not prevent two raw sockets from using the same SCTP port;
//! [`PortClaim`] does, among our processes.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType,
    SockaddrStorage, bind, getsockname, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use tokio::io::unix::AsyncFd;

/// Room for the largest IP packet.
pub(super) const MAX_PACKET: usize = 65_536;

/// Addresses of a received packet, and its place in the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The sender's address, and its UDP port (0 on raw IP).
    pub from: SocketAddr,
    /// The address to which it was sent.
    pub local: IpAddr,
    /// Start and end of the SCTP packet in the buffer.
    pub start: usize,
    pub end: usize,
}

/// One open socket.
#[derive(Debug)]
pub(super) enum Wire {
    Socket(SocketWire),
    #[cfg(test)]
    Memory(super::tests::MemoryWire),
}

/// A raw or UDP socket.
#[derive(Debug)]
pub(super) struct SocketWire {
    fd: AsyncFd<OwnedFd>,
    local: IpAddr,
    raw: bool,
    /// Kept only for its effect.
    _claim: Option<PortClaim>,
}

impl Wire {
    /// A raw socket at `local` that passes only packets for SCTP port `port`.
    pub fn raw(local: IpAddr, port: u16) -> io::Result<Wire> {
        let claim = PortClaim::new(local, port)?;
        let fd = socket(family(local), SockType::Raw, flags(), Some(SockProtocol::Sctp))?;
        attach_port_filter(&fd, local.is_ipv6(), port)?;
        Wire::finish(fd, SocketAddr::new(local, 0), Some(claim))
    }

    /// A UDP socket for encapsulated SCTP; port 0 takes any.
    pub fn udp(local: SocketAddr) -> io::Result<Wire> {
        let fd = socket(family(local.ip()), SockType::Datagram, flags(), None)?;
        Wire::finish(fd, local, None)
    }

    fn finish(fd: OwnedFd, local: SocketAddr, claim: Option<PortClaim>) -> io::Result<Wire> {
        let raw = claim.is_some();
        // Packets that are too long are fragmented, not lost: SCTP packets have the size of Ethernet
        // frames, but tunnels may be narrower.
        let pmtu = libc::IP_PMTUDISC_DONT;
        if local.is_ipv4() {
            setsockopt(&fd, sockopt::Ipv4PacketInfo, &true)?;
            set_int(&fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, pmtu)?;
        } else {
            if !raw {
                // Raw IPv6 sockets never receive IPv4, and refuse this option.
                setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
            }
            setsockopt(&fd, sockopt::Ipv6RecvPacketInfo, &true)?;
            set_int(&fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, pmtu)?;
        }
        // Best effort: net.core.rmem_max limits it.
        let _ = setsockopt(&fd, sockopt::RcvBuf, &(4 << 20));
        bind(fd.as_raw_fd(), &SockaddrStorage::from(local))?;
        // SAFETY: an `OwnedFd` stays the same open descriptor for as long as the registration holds it.
        let fd = unsafe { AsyncFd::register(fd) }?;
        Ok(Wire::Socket(SocketWire { fd, local: local.ip(), raw, _claim: claim }))
    }

    /// Waits for the next packet. Cancel-safe.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<Arrival> {
        match self {
            Wire::Socket(socket) => {
                socket.fd.async_io(tokio::io::Interest::READABLE, |_| socket.receive(buffer)).await
            }
            #[cfg(test)]
            Wire::Memory(memory) => memory.receive(buffer).await,
        }
    }

    /// Sends one packet. If the socket buffer is full the packet is lost, as in any full queue: SCTP
    /// retransmits.
    pub fn send(&self, local: IpAddr, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        match self {
            Wire::Socket(socket) => socket.send(local, to, packet),
            #[cfg(test)]
            Wire::Memory(memory) => memory.send(local, to, packet),
        }
    }

    /// The UDP port, which peers can be told to use.
    pub fn udp_port(&self) -> Option<u16> {
        match self {
            Wire::Socket(socket) if !socket.raw => {
                let name = getsockname::<SockaddrStorage>(socket.fd.as_raw_fd()).ok()?;
                name.as_sockaddr_in()
                    .map(|v4| v4.port())
                    .or_else(|| name.as_sockaddr_in6().map(|v6| v6.port()))
            }
            _ => None,
        }
    }

    /// Largest SCTP packet that fits an Ethernet frame here, in bytes.
    pub fn mtu(&self) -> usize {
        match self {
            Wire::Socket(socket) => {
                let ip = if socket.local.is_ipv4() { 20 } else { 40 };
                1500 - ip - if socket.raw { 0 } else { 8 }
            }
            #[cfg(test)]
            Wire::Memory(_) => 1400,
        }
    }
}

impl SocketWire {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Arrival> {
        let mut control = nix::cmsg_space!(libc::in6_pktinfo);
        let mut parts = [io::IoSliceMut::new(buffer)];
        let message = recvmsg::<SockaddrStorage>(
            self.fd.as_raw_fd(),
            &mut parts,
            Some(&mut control),
            MsgFlags::empty(),
        )?;
        let end = message.bytes;
        let from = message.address.as_ref().and_then(to_std).unwrap_or(SocketAddr::new(self.local, 0));
        let mut local = self.local;
        for item in message.cmsgs().into_iter().flatten() {
            match item {
                ControlMessageOwned::Ipv4PacketInfo(info) => {
                    local = IpAddr::V4(u32::from_be(info.ipi_addr.s_addr).into());
                }
                ControlMessageOwned::Ipv6PacketInfo(info) => {
                    local = IpAddr::V6(info.ipi6_addr.s6_addr.into());
                }
                _ => {}
            }
        }
        // Raw IPv4 sockets also deliver the IP header; raw IPv6 and UDP sockets do not.
        let start = match buffer.first() {
            Some(first) if self.raw && self.local.is_ipv4() => usize::from(first & 15) * 4,
            _ => 0,
        };
        let from = if self.raw { SocketAddr::new(from.ip(), 0) } else { from };
        Ok(Arrival { from, local, start: start.min(end), end })
    }

    fn send(&self, local: IpAddr, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        let parts = [io::IoSlice::new(packet)];
        let to = SockaddrStorage::from(to);
        let (v4, v6);
        let control = match local {
            // Only a socket bound to every address has to be told the source address.
            _ if !self.local.is_unspecified() || local.is_unspecified() => None,
            IpAddr::V4(address) => {
                v4 = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: libc::in_addr { s_addr: address.to_bits().to_be() },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                Some(ControlMessage::Ipv4PacketInfo(&v4))
            }
            IpAddr::V6(address) => {
                v6 = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: address.octets() },
                    ipi6_ifindex: 0,
                };
                Some(ControlMessage::Ipv6PacketInfo(&v6))
            }
        };
        sendmsg(self.fd.as_raw_fd(), &parts, control.as_slice(), MsgFlags::empty(), Some(&to))?;
        Ok(())
    }
}

/// Claims a raw SCTP port in this network namespace with an abstract Unix socket: the kernel allows one
/// per name and namespace, and removes it with the process.
#[derive(Debug)]
struct PortClaim(#[allow(dead_code, reason = "held for its lifetime")] std::os::unix::net::UnixDatagram);

impl PortClaim {
    fn new(local: IpAddr, port: u16) -> io::Result<PortClaim> {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("godwit-sctp/{local}/{port}");
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        Ok(PortClaim(std::os::unix::net::UnixDatagram::bind_addr(&address)?))
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn flags() -> SockFlag {
    SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC
}

/// Converts a socket address to the standard library's type.
pub(super) fn to_std(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    address.as_sockaddr_in6().map(|v6| SocketAddr::new(v6.ip().into(), v6.port()))
}

pub(super) fn set_int(
    fd: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the option value is one `c_int`, alive during the call, with its true size.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attaches a classic BPF program that passes packets for SCTP port `port`. The filter receives the IP
/// header of IPv4 packets (so it reads its length first), but not that of IPv6 packets.
fn attach_port_filter(fd: &OwnedFd, v6: bool, port: u16) -> io::Result<()> {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = if v6 {
        // The first instruction has no effect, but gives both programs the same length: A = 2-byte
        // destination port at offset 2.
        [op(libc::BPF_LDX | libc::BPF_IMM, 0, 0, 0), op(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 2)]
    } else {
        [
            op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
            op(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 2),
        ]
    };
    let mut program = [
        load[0],
        load[1],
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::from(port)),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: `filter` and the program it points to live until the call returns; the kernel copies the program.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
