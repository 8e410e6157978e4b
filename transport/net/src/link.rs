//! Interfaces, addresses and routes, over rtnetlink.
//!
//! [`Links`] works on one namespace, in which it resolves names. All calls are asynchronous and may run
//! at the same time.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::str::FromStr;

use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use crate::netns::NetNs;

/// An address with the length of its network's prefix: `10.200.0.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

/// The text is not `address/prefix`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address with a prefix length, such as 10.45.0.0/16 or fd00:45::/48")]
pub struct BadCidr(String);

impl Cidr {
    /// `None` when the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Cidr> {
        (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some(Cidr { address, prefix })
    }

    /// One host: /32 or /128.
    pub fn host(address: IpAddr) -> Cidr {
        Cidr { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// The address, host bits included.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Length of the prefix in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The network: the address with host bits zero.
    pub fn network(&self) -> Cidr {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Cidr { address, prefix: self.prefix }
    }
}

impl Cidr {
    /// Whether the address belongs to the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        Cidr::new(address, self.prefix).is_some_and(|other| {
            address.is_ipv4() == self.address.is_ipv4() && other.network() == self.network()
        })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Cidr, BadCidr> {
        text.split_once('/')
            .and_then(|(address, prefix)| Cidr::new(address.parse().ok()?, prefix.parse().ok()?))
            .ok_or_else(|| BadCidr(text.to_owned()))
    }
}

/// A change of interfaces, addresses or routes that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}: {source}")]
pub struct LinkError {
    /// What was attempted, for users: `add address 10.0.0.1/24 to eth0`.
    pub operation: String,
    /// The kernel's error.
    pub source: io::Error,
}

/// The interfaces of one namespace.
#[derive(Debug)]
pub struct Links {
    handle: Handle,
    /// A socket of the namespace, for the ioctl that resolves names.
    control: OwnedFd,
    connection: tokio::task::JoinHandle<()>,
}

impl Drop for Links {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Links {
    /// Works on the calling thread's namespace. Needs a tokio runtime.
    ///
    /// # Errors
    /// No netlink socket could be opened.
    pub fn here() -> Result<Links, LinkError> {
        open().map_err(|source| LinkError { operation: "open a netlink socket".to_owned(), source })
    }

    /// Works on `namespace`. Needs a tokio runtime.
    ///
    /// # Errors
    /// The namespace cannot be entered, or no netlink socket could be opened.
    pub fn in_ns(namespace: &NetNs) -> Result<Links, LinkError> {
        let operation = || "open a netlink socket in the namespace".to_owned();
        namespace
            .enter(open)
            .and_then(|links| links)
            .map_err(|source| LinkError { operation: operation(), source })
    }

    /// Creates a veth pair: `name` here, `peer` in `peer_namespace`. Both are down.
    ///
    /// # Errors
    /// [`LinkError`]: a name is taken, no permission.
    pub async fn add_veth(&self, name: &str, peer: &str, peer_namespace: &NetNs) -> Result<(), LinkError> {
        use rtnetlink::packet_route::link::{InfoData, InfoVeth};
        let far = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer.to_owned())
            .setns_by_fd(peer_namespace.as_raw_fd())
            .build();
        let pair = LinkVeth::new(name, peer).set_info_data(InfoData::Veth(InfoVeth::Peer(far))).build();
        self.handle.link().add(pair).execute().await.map_err(failed(|| format!("create veth {name}–{peer}")))
    }

    /// The interface's index.
    ///
    /// # Errors
    /// [`LinkError`]: no such interface.
    pub fn index(&self, name: &str) -> Result<u32, LinkError> {
        index(&self.control, name)
            .map_err(|source| LinkError { operation: format!("find interface {name}"), source })
    }

    /// Brings an interface up.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn up(&self, name: &str) -> Result<(), LinkError> {
        self.change(name, "bring up", |link| link.up()).await
    }

    /// Takes an interface down.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn down(&self, name: &str) -> Result<(), LinkError> {
        self.change(name, "take down", |link| link.down()).await
    }

    /// Sets the MTU in bytes.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn set_mtu(&self, name: &str, mtu: u32) -> Result<(), LinkError> {
        self.change(name, "set the MTU of", |link| link.mtu(mtu)).await
    }

    /// Sets the transmit queue length in packets.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn set_txqueuelen(&self, name: &str, packets: u32) -> Result<(), LinkError> {
        self.change(name, "set the queue length of", |link| link.txqueuelen(packets)).await
    }

    /// Gives an interface, which must be down, a new name.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn rename(&self, name: &str, to: &str) -> Result<(), LinkError> {
        self.change(name, "rename", |link| link.name(to)).await
    }

    /// Moves an interface to another namespace; its addresses and routes are lost.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn move_to(&self, name: &str, namespace: &NetNs) -> Result<(), LinkError> {
        self.change(name, "move", |link| link.setns_by_fd(namespace.as_raw_fd())).await
    }

    /// Removes an interface (and its veth peer).
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn delete(&self, name: &str) -> Result<(), LinkError> {
        let index = self.index(name)?;
        self.handle.link().del(index).execute().await.map_err(failed(|| format!("remove {name}")))
    }

    /// Adds an address; an existing one is no error. IPv6 addresses are usable at once, without
    /// duplicate address detection, because the links are point to point.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn add_address(&self, name: &str, address: Cidr) -> Result<(), LinkError> {
        let index = self.index(name)?;
        let mut request = self.handle.address().add(index, address.address(), address.prefix()).replace();
        if address.address().is_ipv6() {
            let message = request.message_mut();
            message.header.flags |= AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        request.execute().await.map_err(failed(|| format!("add address {address} to {name}")))
    }

    /// Adds or replaces a route to `destination`, through a gateway, out of an interface, or both.
    /// The default route is `0.0.0.0/0` or `::/0`.
    ///
    /// # Errors
    /// [`LinkError`]: gateway unreachable, interface down or missing.
    pub async fn add_route(
        &self,
        destination: Cidr,
        via: Option<IpAddr>,
        interface: Option<&str>,
    ) -> Result<(), LinkError> {
        let operation = || format!("add route to {destination}");
        let network = destination.network();
        let mut route = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(network.address(), network.prefix())
            .map_err(|error| invalid(operation(), &error))?;
        if let Some(gateway) = via {
            route = route.gateway(gateway).map_err(|error| invalid(operation(), &error))?;
        }
        if let Some(name) = interface {
            route = route.output_interface(self.index(name)?);
        }
        self.handle.route().add(route.build()).replace().execute().await.map_err(failed(operation))
    }

    async fn change(
        &self,
        name: &str,
        verb: &str,
        edit: impl FnOnce(LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec>,
    ) -> Result<(), LinkError> {
        let message = edit(LinkUnspec::new_with_index(self.index(name)?)).build();
        self.handle.link().set(message).execute().await.map_err(failed(|| format!("{verb} {name}")))
    }
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub interface: String,
    /// Whether the interface is up.
    pub up: bool,
    /// The address with the length of its network's prefix.
    pub address: Cidr,
}

/// The addresses of all interfaces in the calling thread's namespace, of both families.
///
/// # Errors
/// The kernel did not list them.
pub fn local_addresses() -> io::Result<Vec<InterfaceAddress>> {
    let own = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = address_of(interface.address.as_ref()?)?;
        let mask = interface.netmask.as_ref().and_then(address_of);
        let prefix = match mask {
            Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones() as u8,
            Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones() as u8,
            None => Cidr::host(address).prefix(),
        };
        let address = Cidr::new(address, prefix).unwrap_or(Cidr::host(address));
        let up = interface.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP);
        Some(InterfaceAddress { interface: interface.interface_name, up, address })
    };
    Ok(nix::ifaddrs::getifaddrs()?.filter_map(own).collect())
}

fn address_of(socket: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    // Interfaces are also listed with their link-layer addresses, which are of neither family.
    let v4 = socket.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| socket.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

/// Opens the sockets in the calling thread's namespace.
fn open() -> io::Result<Links> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    Ok(Links { handle, control, connection: tokio::spawn(connection) })
}

/// The MTU of the interface with this address, in the calling thread's namespace; `None` if no
/// interface has it.
///
/// # Errors
/// The kernel did not list the addresses or the MTU.
pub fn mtu_at(address: IpAddr) -> io::Result<Option<u32>> {
    let mut interfaces = nix::ifaddrs::getifaddrs()?;
    let own = |interface: &nix::ifaddrs::InterfaceAddress| {
        interface.address.as_ref().and_then(address_of) == Some(address)
    };
    interfaces.find(own).map(|interface| mtu_of(&interface.interface_name)).transpose()
}

/// The MTU of the interface with this name, in the calling thread's namespace.
///
/// # Errors
/// There is no such interface.
pub fn mtu_of(name: &str) -> io::Result<u32> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let answer = ask(&control, name, libc::SIOCGIFMTU)?;
    // SAFETY: on success the kernel filled in this member of the union.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::Error::other("the kernel returned a negative MTU"))
}

/// Whether the interface with this name, in the calling thread's namespace, is up.
///
/// # Errors
/// There is no such interface.
pub fn is_up(name: &str) -> io::Result<bool> {
    Ok(flags_of(name)? & libc::IFF_UP != 0)
}

/// Whether the interface with this name, in the calling thread's namespace, is up and has a peer to send to.
///
/// # Errors
/// There is no such interface.
pub fn is_running(name: &str) -> io::Result<bool> {
    let both = libc::IFF_UP | libc::IFF_RUNNING;
    Ok(flags_of(name)? & both == both)
}

fn flags_of(name: &str) -> io::Result<i32> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let control = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let answer = ask(&control, name, libc::SIOCGIFFLAGS)?;
    // SAFETY: on success the kernel filled in this member of the union.
    let flags = unsafe { answer.ifr_ifru.ifru_flags };
    Ok(i32::from(flags))
}

/// Notices changes of interfaces or addresses in a namespace.
#[derive(Debug)]
pub struct Watch(tokio::io::unix::AsyncFd<OwnedFd>);

impl Watch {
    /// Watches the calling thread's namespace. Needs a tokio runtime.
    ///
    /// # Errors
    /// No netlink socket could be opened.
    pub fn here() -> io::Result<Watch> {
        use nix::sys::socket::{AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket};
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkRoute;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups as u32))?;
        // SAFETY: the descriptor stays open for as long as the watch owns it.
        Ok(Watch(unsafe { tokio::io::unix::AsyncFd::register(socket) }?))
    }

    /// Waits until something has changed since the last call, or since the watch was created.
    /// Cancel-safe.
    pub async fn changed(&mut self) {
        loop {
            let Ok(mut ready) = self.0.readable_mut().await else {
                // The runtime is ending.
                return std::future::pending().await;
            };
            let mut changed = false;
            // The caller finds out what changed. An overflow of the socket also means a change.
            loop {
                let socket = ready.get_inner().as_raw_fd();
                match nix::sys::socket::recv(socket, &mut [0; 256], nix::sys::socket::MsgFlags::MSG_TRUNC) {
                    Ok(0) | Err(nix::errno::Errno::EAGAIN) => break,
                    Ok(_) | Err(_) => changed = true,
                }
            }
            ready.clear_ready();
            if changed {
                return;
            }
        }
    }
}

/// Resolves a name in the namespace of `control`.
fn index(control: &OwnedFd, name: &str) -> io::Result<u32> {
    let answer = ask(control, name, libc::SIOCGIFINDEX)?;
    // SAFETY: on success the kernel filled in this member of the union.
    let index = unsafe { answer.ifr_ifru.ifru_ifindex };
    u32::try_from(index).map_err(|_| io::Error::other("the kernel returned a negative interface index"))
}

/// Queries an interface in the namespace of `control`; `request` is an ioctl that reads and writes one
/// `ifreq`.
fn ask(control: &OwnedFd, name: &str, request: libc::Ioctl) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut answer: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= answer.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an interface name has at most 15 bytes"));
    }
    for (to, from) in answer.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the descriptor is open; the request reads and writes one `ifreq`, which outlives the call.
    if unsafe { libc::ioctl(control.as_raw_fd(), request, &raw mut answer) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}

/// A request that cannot be expressed, such as an IPv4 route through an IPv6 gateway.
fn invalid(operation: String, error: &dyn fmt::Display) -> LinkError {
    LinkError { operation, source: io::Error::new(io::ErrorKind::InvalidInput, error.to_string()) }
}

/// Converts a netlink error.
fn failed(operation: impl FnOnce() -> String) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    move |error| {
        let source = match error {
            rtnetlink::Error::NetlinkError(message) => message.to_io(),
            other => io::Error::other(other.to_string()),
        };
        LinkError { operation: operation(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn cidr_text() {
        assert_eq!(cidr("10.45.3.9/16").network(), cidr("10.45.0.0/16"));
        assert_eq!(cidr("fd00:45:0:7::9/48").network(), cidr("fd00:45::/48"));
        assert_eq!(cidr("1.2.3.4/0").network(), cidr("0.0.0.0/0"));
        assert_eq!(cidr("::1/0").network(), cidr("::/0"));
        assert_eq!(Cidr::host("1.2.3.4".parse().unwrap()).to_string(), "1.2.3.4/32");
        for bad in ["", "10.0.0.1", "10.0.0.1/33", "::1/129", "10.0.0.1/x", "/8"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn addresses_of_both_families_are_listed() {
        let Some(namespace) = NetNs::for_test() else { return };
        let links = Links::in_ns(&namespace).unwrap();
        links.up("lo").await.unwrap();
        let mut expected = vec![cidr("127.0.0.1/8"), cidr("::1/128")];
        for text in ["10.9.8.7/24", "fd00:9::7/64"] {
            links.add_address("lo", cidr(text)).await.unwrap();
            expected.push(cidr(text));
        }
        let listed = namespace.enter(local_addresses).unwrap().unwrap();
        assert!(listed.iter().all(|own| own.interface == "lo" && own.up));
        let mut listed: Vec<Cidr> = listed.into_iter().map(|own| own.address).collect();
        expected.sort();
        listed.sort();
        assert_eq!(listed, expected);
    }

    #[tokio::test]
    async fn a_watch_sees_what_changes_and_rests_otherwise() {
        let Ok(namespace) = NetNs::new() else { return };
        let links = Links::in_ns(&namespace).unwrap();
        let mut watch = namespace.enter(Watch::here).unwrap().unwrap();
        let quiet = std::time::Duration::from_millis(50);
        let patience = std::time::Duration::from_secs(10);
        while crate::time::timeout(quiet, watch.changed()).await.is_ok() {}
        let is_up = || namespace.enter(|| is_up("lo")).unwrap().unwrap();
        links.down("lo").await.unwrap();
        crate::time::timeout(patience, watch.changed()).await.unwrap();
        assert!(!is_up());
        links.up("lo").await.unwrap();
        crate::time::timeout(patience, watch.changed()).await.unwrap();
        assert!(is_up());
        while crate::time::timeout(quiet, watch.changed()).await.is_ok() {}
        links.add_address("lo", cidr("10.9.8.7/32")).await.unwrap();
        crate::time::timeout(patience, watch.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn two_namespaces_reach_each_other_through_a_router() {
        let [Some(a), Some(router), Some(b)] = [(); 3].map(|()| NetNs::for_test()) else { return };
        let (at_a, at_router, at_b) =
            (Links::in_ns(&a).unwrap(), Links::in_ns(&router).unwrap(), Links::in_ns(&b).unwrap());
        at_router.add_veth("ra", "eth0", &a).await.unwrap();
        at_router.add_veth("tmp", "eth0", &b).await.unwrap();
        at_router.rename("tmp", "rb").await.unwrap();
        for (links, name, addresses) in [
            (&at_router, "ra", ["10.1.0.1/24", "fd01::1/64"]),
            (&at_router, "rb", ["10.2.0.1/24", "fd02::1/64"]),
            (&at_a, "eth0", ["10.1.0.2/24", "fd01::2/64"]),
            (&at_b, "eth0", ["10.2.0.2/24", "fd02::2/64"]),
        ] {
            links.set_mtu(name, 1400).await.unwrap();
            links.set_txqueuelen(name, 500).await.unwrap();
            links.up(name).await.unwrap();
            for address in addresses {
                links.add_address(name, cidr(address)).await.unwrap();
                links.add_address(name, cidr(address)).await.unwrap();
            }
        }
        at_a.add_route(cidr("0.0.0.0/0"), Some("10.1.0.1".parse().unwrap()), None).await.unwrap();
        at_b.add_route(cidr("10.1.0.0/24"), Some("10.2.0.1".parse().unwrap()), Some("eth0")).await.unwrap();
        at_a.add_route(cidr("::/0"), Some("fd01::1".parse().unwrap()), None).await.unwrap();
        at_b.add_route(cidr("fd01::/64"), Some("fd02::1".parse().unwrap()), None).await.unwrap();
        router.enter(crate::sysctl::enable_forwarding).unwrap().unwrap();

        for (from, to) in [("10.1.0.2:0", "10.2.0.2:9"), ("[fd01::2]:0", "[fd02::2]:9")] {
            let bind = |text: &str| crate::udp::bind_std(text.parse().unwrap(), Default::default());
            let receiver = b.enter(|| bind(to)).unwrap().unwrap();
            let sender = a.enter(|| bind(from)).unwrap().unwrap();
            let receiver = tokio::net::UdpSocket::from_std(receiver).unwrap();
            let to: std::net::SocketAddr = to.parse().unwrap();
            let mut buffer = [0; 4];
            // Repeated: a packet sent while duplicate address detection or neighbour discovery still
            // runs is lost, and the kernel determines how long they take.
            let resend = async {
                loop {
                    let _ = sender.send_to(b"x", to);
                    crate::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            };
            tokio::select! {
                received = receiver.recv(&mut buffer) => assert_eq!(received.unwrap(), 1),
                _ = crate::time::timeout(std::time::Duration::from_secs(30), resend) => {
                    panic!("no packet from {from} to {to} was routed");
                }
            }
        }

        let error = at_a.up("nope").await.unwrap_err();
        assert!(error.to_string().contains("nope"), "{error}");
        let error = at_router.add_veth("ra", "x", &b).await.unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists, "{error}");
        at_router.delete("rb").await.unwrap();
        assert!(at_b.index("eth0").is_err(), "the peer goes with it");
    }
}
