//! The links of the pipeline: how long packets may be, and the router addresses with which it answers longer
//! ones.
//!
//! The MTU of an interface with tunnels is that of the device with the UPF's address at the start, or the configured one
//! of a link whose addresses the kernel does not know. The headers of a tunnel reduce it: outer IP, UDP, and GTP-U with a
//! PDU Session Container.

use std::net::IpAddr;

use pktio::af_xdp::device::Device;

use super::mtu::Router;
use crate::interface::{Backend, Role};
use crate::interfaces::{Interface, Interfaces, MAX_INTERFACES};

/// Octets of UDP and GTP-U with extension header and a container of one word.
const TUNNEL: usize = 8 + 16;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// MTU of links whose MTU is unknown.
const DEFAULT_MTU: usize = 1500;

/// The links of a pipeline, by number of the interface. There is one for every number, so that finding one takes no
/// check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Links([Link; MAX_INTERFACES]);

/// The link of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Longest user's packet that it takes. Unlimited if a kernel device takes all lengths, because the kernel then
    /// answers or fragments packets that are too long for the next link.
    pub mtu: u32,
    /// MTU to which the MSS of TCP is lowered: in both directions of a data network, and for packets that go from one
    /// tunnel into another.
    pub clamp: u32,
    /// Source of answers to packets from and to a data network.
    pub router: Router,
}

impl Link {
    const UNLIMITED: Link =
        Link { mtu: u32::MAX, clamp: u32::MAX, router: Router { ipv4: None, ipv6: None } };

    /// An interface with tunnels, an MTU of `mtu` octets and the address `local`, whose IP version is that of the
    /// outer headers.
    pub fn of_tunnels(mtu: usize, local: IpAddr) -> Link {
        let outer = TUNNEL + if local.is_ipv4() { IPV4 } else { IPV6 };
        let inner = u32::try_from(mtu.saturating_sub(outer)).unwrap_or(u32::MAX);
        Link { mtu: inner, clamp: inner, ..Link::UNLIMITED }
    }
}

impl Links {
    /// Links without limits.
    pub fn unlimited() -> Links {
        Links([Link::UNLIMITED; MAX_INTERFACES])
    }

    /// These links, by number of the interface.
    pub fn new(links: impl IntoIterator<Item = (Role, Link)>) -> Links {
        let mut all = Links::unlimited();
        let mut tunnels = u32::MAX;
        let links: Vec<(Role, Link)> = links.into_iter().collect();
        for (_, link) in links.iter().filter(|(role, _)| role.has_tunnels()) {
            tunnels = tunnels.min(link.mtu);
        }
        for (known, (_, link)) in all.0.iter_mut().zip(links) {
            // Packets of a TCP connection may use any of the tunnels.
            *known = Link { clamp: link.clamp.min(link.mtu).min(tunnels), ..link };
        }
        all
    }

    /// The links of a configuration, in the calling thread's network namespace. The interfaces must exist
    /// already.
    pub fn find(interfaces: &Interfaces) -> Links {
        let links = Links::new(interfaces.iter().map(|interface| (interface.role(), find(interface))));
        let tunnels = interfaces.iter().zip(&links.0).filter(|(interface, _)| interface.role().has_tunnels());
        for (tunnel, link) in tunnels {
            for dnn in interfaces.iter().filter_map(|interface| interface.dnn.as_ref()) {
                if dnn.mtu > link.mtu {
                    tracing::warn!(
                        dnn = %dnn.name, mtu = dnn.mtu, interface = tunnel.name(), most = link.mtu,
                        "longer packets than tunnels of the interface take are fragmented, or their senders are told"
                    );
                }
            }
        }
        links
    }

    /// The link of an interface.
    #[inline(always)]
    pub fn of(&self, interface: u8) -> &Link {
        &self.0[usize::from(interface)]
    }
}

/// The link of an interface.
fn find(interface: &Interface) -> Link {
    let config = &interface.config;
    let Some(dnn) = &interface.dnn else {
        let address = interface.local().ip();
        let mtu = match config.link.backend {
            Backend::Dpdk | Backend::Memif => config.link.link_mtu().into(),
            Backend::AfXdp => of_af_xdp(interface),
            Backend::Kernel => known(net::link::mtu_at(address), interface.name()),
        };
        return Link::of_tunnels(mtu, address);
    };
    let mtu = match config.link.backend {
        Backend::Kernel => u32::MAX,
        Backend::AfXdp => of_af_xdp(interface) as u32,
        Backend::Dpdk | Backend::Memif => config.link.link_mtu().into(),
    };
    let (v4, v6) = (dnn.gateway_v4().map(|own| own.address()), dnn.gateway_v6().map(|own| own.address()));
    let router = Router {
        ipv4: v4.and_then(|address| if let IpAddr::V4(address) = address { Some(address) } else { None }),
        ipv6: v6.and_then(|address| if let IpAddr::V6(address) = address { Some(address) } else { None }),
    };
    Link { mtu, clamp: dnn.mtu, router }
}

fn of_af_xdp(interface: &Interface) -> usize {
    let config = &interface.config;
    let mtu = Device::find(config.link.device()).and_then(|device| config.link.mtu_on(&device));
    known(mtu.map(|mtu| u32::try_from(mtu).ok()), interface.name())
}

fn known(mtu: std::io::Result<Option<u32>>, link: &str) -> usize {
    match mtu {
        Ok(Some(mtu)) => mtu as usize,
        Ok(None) => DEFAULT_MTU,
        Err(error) => {
            tracing::warn!(%error, "the MTU of interface {link} cannot be read; it is taken for {DEFAULT_MTU}");
            DEFAULT_MTU
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_takes_its_headers_and_tcp_gets_the_narrowest() {
        let network = Link { mtu: 1500, clamp: 1400, ..Link::UNLIMITED };
        let wide = Link { clamp: 9000, ..Link::UNLIMITED };
        let tunnels = Link::of_tunnels(1500, "192.0.2.1".parse().unwrap());
        let jumbo = Link::of_tunnels(9000, "2001:db8::1".parse().unwrap());
        let links =
            Links::new([(Role::N3, tunnels), (Role::N6, network), (Role::N6, wide), (Role::N9, jumbo)]);
        assert_eq!([0, 1, 2, 3].map(|number| links.of(number).mtu), [1456, 1500, u32::MAX, 8936]);
        assert_eq!([0, 1, 2, 3].map(|number| links.of(number).clamp), [1456, 1400, 1456, 1456]);
        assert_eq!(*links.of(4), Link::UNLIMITED);
    }

    #[test]
    fn the_interface_with_our_address_says_the_mtu() {
        let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.1:2152", "dnn": [
            {"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}}]}"#;
        let links = Links::find(&Interfaces::of(&serde_json::from_str(text).unwrap()));
        // That of the loopback device, unless it was changed.
        assert_eq!(links.of(0).mtu, net::link::mtu_of("lo").unwrap() - 44);
        let network = links.of(1);
        assert_eq!((network.mtu, network.clamp), (u32::MAX, 1400));
        assert_eq!(network.router.ipv4, Some([10, 45, 0, 1].into()));
        assert_eq!(network.router.ipv6, Some("fd00:45::1".parse().unwrap()));
    }
}
