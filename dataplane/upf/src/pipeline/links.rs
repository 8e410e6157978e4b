//! The links of the pipeline: how long packets may be, and the router addresses with which it answers longer
//! ones.
//!
//! The MTU of N3 is that of the interface with the UPF's address at the start, or the configured one with DPDK.
//! The headers of a tunnel reduce it: outer IP, UDP, and GTP-U with a PDU Session Container.

use std::net::IpAddr;

use super::mtu::Router;
use crate::config::{Config, DnnConfig};
use crate::interface::{Backend, InterfaceConfig};

/// Octets of UDP and GTP-U with extension header and a container of one word.
const TUNNEL: usize = 8 + 16;
const IPV4: usize = 20;
const IPV6: usize = 40;
/// MTU of links whose MTU is unknown.
const DEFAULT_MTU: usize = 1500;

/// The links of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Links {
    /// Longest packet that fits into a tunnel.
    pub tunnel: usize,
    /// Links to data networks, by number.
    pub networks: Vec<NetworkLink>,
    /// MTU to which the MSS of TCP is lowered where the data network is not known.
    pub(super) clamp: usize,
}

/// The link to a data network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkLink {
    /// Longest packet to the data network. Unlimited if a kernel device takes all lengths, because the kernel
    /// then answers or fragments packets that are too long for the next link.
    pub mtu: usize,
    /// MTU to which the MSS of TCP is lowered, in both directions.
    pub clamp: usize,
    /// Source of answers to packets from and to it.
    pub router: Router,
}

impl NetworkLink {
    const UNLIMITED: NetworkLink =
        NetworkLink { mtu: usize::MAX, clamp: usize::MAX, router: Router { ipv4: None, ipv6: None } };
}

impl Links {
    /// Links without limits.
    pub fn unlimited(networks: usize) -> Links {
        Links { tunnel: usize::MAX, networks: vec![NetworkLink::UNLIMITED; networks], clamp: usize::MAX }
    }

    /// Links to `networks`; tunnels have outer headers of `local`'s IP version, and N3 has an MTU of `n3_mtu`
    /// octets.
    pub fn new(n3_mtu: usize, local: IpAddr, mut networks: Vec<NetworkLink>) -> Links {
        let outer = TUNNEL + if local.is_ipv4() { IPV4 } else { IPV6 };
        let tunnel = n3_mtu.saturating_sub(outer);
        for network in &mut networks {
            network.clamp = network.clamp.min(network.mtu).min(tunnel);
        }
        let clamp = networks.iter().map(|network| network.clamp).min().unwrap_or(tunnel);
        Links { tunnel, networks, clamp }
    }

    /// The links of a configuration, in the calling thread's network namespace. The interfaces must exist
    /// already.
    pub fn find(config: &Config) -> Links {
        let address = config.gtpu.ip();
        let n3_mtu = match config.n3.backend {
            Backend::Dpdk => configured(&config.n3),
            Backend::Kernel | Backend::AfXdp => known(net::link::mtu_at(address), "N3"),
        };
        let links = Links::new(n3_mtu, address, config.dnn.iter().map(network).collect());
        for dnn in config.dnn.iter().filter(|dnn| dnn.mtu as usize > links.tunnel) {
            tracing::warn!(
                dnn = %dnn.name, mtu = dnn.mtu, most = links.tunnel,
                "longer packets than tunnels on N3 take are fragmented, or their senders are told"
            );
        }
        links
    }
}

fn network(dnn: &DnnConfig) -> NetworkLink {
    let mtu = match dnn.n6.backend {
        Backend::Kernel => usize::MAX,
        Backend::AfXdp => known(net::link::mtu_of(dnn.n6.device()).map(Some), "N6"),
        Backend::Dpdk => configured(&dnn.n6),
    };
    let (v4, v6) = (dnn.gateway_v4().map(|own| own.address()), dnn.gateway_v6().map(|own| own.address()));
    let router = Router {
        ipv4: v4.and_then(|address| if let IpAddr::V4(address) = address { Some(address) } else { None }),
        ipv6: v6.and_then(|address| if let IpAddr::V6(address) = address { Some(address) } else { None }),
    };
    NetworkLink { mtu, clamp: dnn.mtu as usize, router }
}

fn configured(interface: &InterfaceConfig) -> usize {
    interface.mtu.map_or(DEFAULT_MTU, usize::from)
}

fn known(mtu: std::io::Result<Option<u32>>, link: &str) -> usize {
    match mtu {
        Ok(Some(mtu)) => mtu as usize,
        Ok(None) => DEFAULT_MTU,
        Err(error) => {
            tracing::warn!(%error, "the MTU of {link} cannot be read; it is taken for {DEFAULT_MTU}");
            DEFAULT_MTU
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_takes_its_headers_and_tcp_gets_the_narrowest() {
        let network = NetworkLink { mtu: 1500, clamp: 1400, ..NetworkLink::UNLIMITED };
        let wide = NetworkLink { clamp: 9000, ..NetworkLink::UNLIMITED };
        let links = Links::new(1500, "192.0.2.1".parse().unwrap(), vec![network, wide]);
        assert_eq!((links.tunnel, links.clamp), (1456, 1400));
        assert_eq!([links.networks[0].clamp, links.networks[1].clamp], [1400, 1456]);
        assert_eq!(Links::new(1500, "2001:db8::1".parse().unwrap(), Vec::new()).tunnel, 1436);
    }

    #[test]
    fn the_interface_with_our_address_says_the_mtu() {
        let text = r#"{"pfcp": "127.0.0.7:8805", "gtpu": "127.0.0.1:2152", "dnn": [
            {"name": "internet", "tun": "gw0", "ue_pool": {"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}}]}"#;
        let config: Config = serde_json::from_str(text).unwrap();
        let links = Links::find(&config);
        // That of the loopback device, unless it was changed.
        assert_eq!(links.tunnel, net::link::mtu_of("lo").unwrap() as usize - 44);
        let network = links.networks[0];
        assert_eq!((network.mtu, network.clamp), (usize::MAX, 1400));
        assert_eq!(network.router.ipv4, Some([10, 45, 0, 1].into()));
        assert_eq!(network.router.ipv6, Some("fd00:45::1".parse().unwrap()));
    }
}
