//! The little of rtnetlink that the frame stack needs: reading neighbours, routes and an interface's address, hearing of
//! changes, and asking the kernel to confirm a neighbour.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use packet::ethernet::Mac;

// linux/rtnetlink.h and linux/neighbour.h.
const RTMGRP_LINK: u32 = 0x1;
const RTMGRP_NEIGH: u32 = 0x4;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
const RTMGRP_IPV6_ROUTE: u32 = 0x400;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CREATE: u16 = 0x400;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NTF_USE: u8 = 1;
const NUD_STALE: u16 = 0x04;
/// Reachable, stale, being confirmed, without need of it, or permanent.
const NUD_USABLE: u16 = 0x02 | NUD_STALE | 0x08 | 0x10 | 0x40 | 0x80;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_VIA: u16 = 18;
const RTA_ENCAP: u16 = 22;
const TABLE_MAIN: u8 = 254;
const TABLE_LOCAL: u8 = 255;
const UNICAST: u8 = 1;
const IFLA_ADDRESS: u16 = 1;
/// Lengths of the headers before the attributes.
const HEADER: usize = 16;
const BODY: usize = 12;
/// As [`BODY`], of interfaces.
const LINK_BODY: usize = 16;
/// Octets per read; the kernel sends dumps in pieces of up to 32 kB.
const BUFFER: usize = 64 << 10;
/// Longest time that the kernel may take for an answer.
static TIME_OUT: libc::timeval = libc::timeval { tv_sec: 2, tv_usec: 0 };

/// An entry of the kernel's neighbour table that can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Neighbour {
    pub(super) address: IpAddr,
    pub(super) mac: Mac,
    /// It has not been confirmed lately.
    pub(super) stale: bool,
}

/// A route of the main table, or of the table of the machine's own addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub(super) network: IpAddr,
    pub(super) prefix: u8,
    pub(super) metric: u32,
    /// It is of the table of the machine's own addresses, which the kernel asks first.
    pub(super) local: bool,
    /// `None` where packets are not simply sent: to addresses of the machine's own, on one of several paths, with a
    /// header around them, or not at all. What happens to them is the kernel's business.
    pub(super) interface: Option<u32>,
    /// The router, whose address may be of the other family.
    pub(super) gateway: Option<IpAddr>,
}

/// A socket to the kernel's routing.
#[derive(Debug)]
pub(super) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// A socket for questions.
    pub(super) fn open() -> io::Result<Netlink> {
        let socket = Netlink::bind(0)?;
        // SAFETY: the pointer and length describe the constant.
        let status = unsafe {
            libc::setsockopt(
                socket.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const TIME_OUT).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
    }

    /// A socket that becomes readable when interfaces, neighbours or routes change. An interface that goes down or away
    /// takes its IPv4 routes along, and the kernel does not announce that.
    pub(super) fn events() -> io::Result<Netlink> {
        Netlink::bind(RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE)
    }

    fn bind(groups: u32) -> io::Result<Netlink> {
        // SAFETY: socket(2) takes numbers only; the kernel has just opened the descriptor for us.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: a plain C struct for which all zeroes is a valid value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        // SAFETY: the pointer and length describe `address`.
        let status = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
        };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(Netlink { fd, sequence: 0 }) }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Discards all announcements that are waiting. The tables are read again instead.
    pub(super) fn drain(&self) {
        let mut buffer = [0u8; 4096];
        while self.read(&mut buffer, libc::MSG_DONTWAIT | libc::MSG_TRUNC).is_ok_and(|n| n > 0) {}
    }

    fn read(&self, buffer: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
        // SAFETY: the kernel writes at most the buffer's length into it.
        let length =
            unsafe { libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
        if length < 0 { Err(io::Error::last_os_error()) } else { Ok((length as usize).min(buffer.len())) }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&[0; 4]);
        message.extend_from_slice(body);
        // SAFETY: the pointer and length describe the message.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Asks for a whole table and calls `each` with the body of every entry of type `kind`.
    fn dump(&mut self, question: u16, kind: u16, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(question, NLM_F_DUMP, &[0; BODY])?;
        self.answer(|found, body| {
            if found == kind {
                each(body);
            }
            false
        })
    }

    /// Calls `each` with the types and bodies of the messages that answer the last question, until it says that it has all,
    /// or the answer ends.
    fn answer(&self, mut each: impl FnMut(u16, &[u8]) -> bool) -> io::Result<()> {
        let mut buffer = vec![0u8; BUFFER];
        loop {
            let length = self.read(&mut buffer, 0)?;
            let mut rest = &buffer[..length];
            while let Some((header, message, next)) = split(rest) {
                rest = next;
                if u32::from_ne_bytes([header[8], header[9], header[10], header[11]]) != self.sequence {
                    // The end of an answer that was given up.
                    continue;
                }
                let kind = u16::from_ne_bytes([header[4], header[5]]);
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        let code =
                            message.get(..4).map_or(0, |c| i32::from_ne_bytes([c[0], c[1], c[2], c[3]]));
                        return Err(io::Error::from_raw_os_error(-code));
                    }
                    _ if each(kind, message) => return Ok(()),
                    _ => {}
                }
            }
        }
    }

    /// The usable neighbours on an interface.
    pub(super) fn neighbours(&mut self, interface: u32) -> io::Result<Vec<Neighbour>> {
        let mut found = Vec::new();
        self.dump(libc::RTM_GETNEIGH, libc::RTM_NEWNEIGH, |body| {
            found.extend(neighbour(body, interface));
        })?;
        Ok(found)
    }

    /// The address of an interface; `None` if there is no such interface, or it is not Ethernet.
    pub(super) fn mac(&mut self, interface: u32) -> io::Result<Option<Mac>> {
        let mut body = [0; LINK_BODY];
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        self.send(libc::RTM_GETLINK, 0, &body)?;
        let mut found = None;
        let answer = self.answer(|kind, body| {
            let address = attributes(body, LINK_BODY).find(|(kind, _)| *kind == IFLA_ADDRESS);
            found = address.and_then(|(_, value)| Mac::try_from(value).ok());
            kind == libc::RTM_NEWLINK
        });
        match answer {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            answer => answer.map(|()| found),
        }
    }

    /// The routes of the main table and of the machine's own addresses.
    pub(super) fn routes(&mut self) -> io::Result<Vec<Route>> {
        let mut found = Vec::new();
        self.dump(libc::RTM_GETROUTE, libc::RTM_NEWROUTE, |body| found.extend(route(body)))?;
        Ok(found)
    }

    /// Has the kernel confirm a neighbour, as if it had sent it a packet.
    pub(super) fn confirm(&mut self, interface: u32, address: IpAddr) -> io::Result<()> {
        let (family, octets): (_, &[u8]) = match &address {
            IpAddr::V4(address) => (libc::AF_INET, &address.octets()),
            IpAddr::V6(address) => (libc::AF_INET6, &address.octets()),
        };
        let mut body = vec![family as u8, 0, 0, 0];
        body.extend_from_slice(&interface.to_ne_bytes());
        // State none; the flag says what is meant.
        body.extend_from_slice(&[0, 0, NTF_USE, 0]);
        body.extend_from_slice(&(4 + octets.len() as u16).to_ne_bytes());
        body.extend_from_slice(&NDA_DST.to_ne_bytes());
        body.extend_from_slice(octets);
        self.send(libc::RTM_NEWNEIGH, NLM_F_CREATE, &body)
    }
}

/// Splits the first message off: header, body, rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let header = bytes.get(..HEADER)?;
    let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let body = bytes.get(HEADER..length)?;
    Some((header, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The attributes behind a body's fixed part of `fixed` octets.
fn attributes(body: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(fixed..).unwrap_or_default();
    std::iter::from_fn(move || {
        let header = rest.get(..4)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = rest.get(4..length)?;
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

fn neighbour(body: &[u8], interface: u32) -> Option<Neighbour> {
    let state = u16::from_ne_bytes([*body.get(8)?, *body.get(9)?]);
    if number(body.get(4..8)?)? != interface || state & NUD_USABLE == 0 {
        return None;
    }
    let (mut to, mut mac) = (None, None);
    for (kind, value) in attributes(body, BODY) {
        match kind {
            NDA_DST => to = address(value),
            NDA_LLADDR => mac = Mac::try_from(value).ok(),
            _ => {}
        }
    }
    Some(Neighbour { address: to?, mac: mac?, stale: state & NUD_STALE != 0 })
}

fn route(body: &[u8]) -> Option<Route> {
    let fixed = body.get(..BODY)?;
    if !matches!(fixed[4], TABLE_MAIN | TABLE_LOCAL) {
        return None;
    }
    let any = match i32::from(fixed[0]) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let local = fixed[4] == TABLE_LOCAL;
    let mut route =
        Route { network: any, prefix: fixed[1], metric: 0, local, interface: None, gateway: None };
    let mut simple = fixed[7] == UNICAST;
    for (kind, value) in attributes(body, BODY) {
        match kind {
            RTA_DST => route.network = address(value)?,
            RTA_OIF => route.interface = number(value),
            RTA_GATEWAY => route.gateway = address(value),
            // Two octets say which family.
            RTA_VIA => route.gateway = value.get(2..).and_then(address),
            RTA_PRIORITY => route.metric = number(value).unwrap_or(0),
            RTA_ENCAP => simple = false,
            _ => {}
        }
    }
    route.interface = route.interface.filter(|_| simple);
    Some(route)
}
