//! The little of rtnetlink that the frame stack needs: reading neighbours, routes and an interface's address, hearing of
//! changes, and asking the kernel to confirm a neighbour.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use packet::ethernet::Mac;

use crate::vlan::Protocol;

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
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
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

/// A VLAN device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct VlanDevice {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// Number of the device below.
    pub(crate) below: u32,
    pub(crate) protocol: Protocol,
    pub(crate) id: u16,
}

/// A socket to the kernel's routing.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// A socket for questions.
    pub(crate) fn open() -> io::Result<Netlink> {
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

    /// The VLAN devices of the namespace.
    pub(crate) fn vlans(&mut self) -> io::Result<Vec<VlanDevice>> {
        let mut found = Vec::new();
        self.dump(libc::RTM_GETLINK, libc::RTM_NEWLINK, |body| found.extend(vlan(body)))?;
        Ok(found)
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

/// A VLAN device on another one of the same namespace; `None` for other devices.
fn vlan(body: &[u8]) -> Option<VlanDevice> {
    let index = number(body.get(4..8)?)?;
    let (mut name, mut below, mut info) = (None, None, &[][..]);
    for (kind, value) in attributes(body, LINK_BODY) {
        match kind {
            IFLA_IFNAME => name = text(value),
            IFLA_LINK => below = number(value),
            IFLA_LINK_NETNSID => return None,
            IFLA_LINKINFO => info = value,
            _ => {}
        }
    }
    let of_info = |wanted| attributes(info, 0).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    if text(of_info(IFLA_INFO_KIND)?)? != "vlan" {
        return None;
    }
    let data = of_info(IFLA_INFO_DATA)?;
    let of_data = |wanted| {
        let value = attributes(data, 0).find(|(kind, _)| *kind == wanted);
        value.and_then(|(_, value)| <[u8; 2]>::try_from(value).ok())
    };
    let protocol = Protocol::of(u16::from_be_bytes(of_data(IFLA_VLAN_PROTOCOL)?))?;
    let id = u16::from_ne_bytes(of_data(IFLA_VLAN_ID)?);
    Some(VlanDevice { name: name?, index, below: below?, protocol, id })
}

/// A text that ends with a zero.
fn text(value: &[u8]) -> Option<String> {
    let end = value.iter().position(|octet| *octet == 0).unwrap_or(value.len());
    String::from_utf8(value[..end].to_vec()).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = (4 + value.len() as u16).to_ne_bytes().to_vec();
        out.extend(kind.to_ne_bytes());
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    /// The body of an RTM_NEWLINK as the kernel sends it for a VLAN device, with other attributes in between.
    fn device(kind: &str, below: &[Vec<u8>], protocol: [u8; 2], id: u16) -> Vec<u8> {
        let mut out = vec![0; LINK_BODY];
        out[4..8].copy_from_slice(&7u32.to_ne_bytes());
        let flags = attribute(2, &[1, 0, 0, 0, 255, 255, 255, 255]);
        let data =
            [attribute(IFLA_VLAN_PROTOCOL, &protocol), attribute(IFLA_VLAN_ID, &id.to_ne_bytes()), flags]
                .concat();
        let info =
            [attribute(IFLA_INFO_KIND, &[kind.as_bytes(), &[0]].concat()), attribute(IFLA_INFO_DATA, &data)]
                .concat();
        out.extend(attribute(IFLA_IFNAME, b"eth0.100\0"));
        out.extend(attribute(13, &1000u32.to_ne_bytes()));
        out.extend(below.concat());
        out.extend(attribute(IFLA_LINKINFO, &info));
        out.extend(attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]));
        out
    }

    #[test]
    fn vlan_devices_are_told_by_protocol_and_identifier() {
        let on = attribute(IFLA_LINK, &3u32.to_ne_bytes());
        let expected =
            |protocol, id| VlanDevice { name: "eth0.100".into(), index: 7, below: 3, protocol, id };
        let body = device("vlan", std::slice::from_ref(&on), [0x81, 0], 100);
        assert_eq!(vlan(&body), Some(expected(Protocol::Customer, 100)));
        let service = device("vlan", std::slice::from_ref(&on), [0x88, 0xA8], 4094);
        assert_eq!(vlan(&service), Some(expected(Protocol::Service, 4094)));
        let elsewhere = attribute(IFLA_LINK_NETNSID, &[0; 4]);
        for other in [
            device("veth", std::slice::from_ref(&on), [0x81, 0], 100),
            device("vlan", &[], [0x81, 0], 100),
            device("vlan", &[on.clone(), elsewhere], [0x81, 0], 100),
            device("vlan", &[on], [8, 0], 100),
        ] {
            assert_eq!(vlan(&other), None);
        }
        for length in 0..body.len() {
            vlan(&body[..length]);
        }
    }

    /// The kernel answers the question, whether it knows VLAN devices or not.
    #[test]
    fn the_kernel_lists_its_devices() {
        let all = Netlink::open().unwrap().vlans().unwrap();
        assert!(all.iter().all(|device| !device.name.is_empty() && device.index > 0), "{all:?}");
    }
}
