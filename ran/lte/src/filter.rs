//! Which bearer a UE's packet goes through: the uplink filters of the bearers' traffic flow templates (TS 23.060 §15.3, TS 24.008
//! §10.5.6.12). The user plane's thread asks for each packet of a UE that has such filters.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gtpv2c::tft::{Component, Direction, PacketFilter};
use packet::flow::Flow;
use types::Teid;

/// The uplink filters of all bearers of a PDN connection, the ones to be evaluated first in front.
#[derive(Debug, Clone, Default)]
pub struct UplinkFilters {
    filters: Vec<Filter>,
}

#[derive(Debug, Clone)]
struct Filter {
    precedence: u8,
    components: Vec<Component>,
    /// The eNB's end of the bearer's tunnel.
    tunnel: Teid,
}

impl UplinkFilters {
    /// Adds the filters of a bearer whose tunnel has this TEID at the eNB. Those for downlink only do not count.
    pub fn add(&mut self, filters: &[PacketFilter], tunnel: Teid) {
        for filter in filters.iter().filter(|filter| filter.direction != Direction::Downlink) {
            let (precedence, components) = (filter.precedence, filter.components.clone());
            self.filters.push(Filter { precedence, components, tunnel });
        }
        self.filters.sort_by_key(|filter| filter.precedence);
    }

    /// The tunnel of a packet: that of the first filter with which it agrees. `None`: the default bearer's.
    pub fn tunnel(&self, packet: &[u8]) -> Option<Teid> {
        let flow = Flow::parse(packet).ok()?;
        let matching = |filter: &&Filter| filter.components.iter().all(|component| agrees(*component, &flow));
        self.filters.iter().find(matching).map(|filter| filter.tunnel)
    }
}

/// Whether an uplink packet has what a component asks for. Its source is the local side.
fn agrees(component: Component, flow: &Flow) -> bool {
    let local = |low, high| flow.ports.is_some_and(|(local, _)| (low..=high).contains(&local));
    let remote = |low, high| flow.ports.is_some_and(|(_, remote)| (low..=high).contains(&remote));
    match component {
        Component::Ipv4Remote { address, mask } => v4_agrees(flow.destination, address, mask),
        Component::Ipv4Local { address, mask } => v4_agrees(flow.source, address, mask),
        Component::Ipv6RemoteMask { address, mask } => v6_agrees(flow.destination, address, mask),
        Component::Ipv6Remote { address, prefix_length } => {
            v6_agrees(flow.destination, address, mask_of(prefix_length))
        }
        Component::Ipv6Local { address, prefix_length } => {
            v6_agrees(flow.source, address, mask_of(prefix_length))
        }
        Component::Protocol(protocol) => flow.protocol == protocol,
        Component::LocalPort(wanted) => local(wanted, wanted),
        Component::LocalPorts(low, high) => local(low, high),
        Component::RemotePort(wanted) => remote(wanted, wanted),
        Component::RemotePorts(low, high) => remote(low, high),
        Component::SecurityParameterIndex(index) => flow.spi == Some(index),
        Component::TypeOfService { value, mask } => flow.tos & mask == value & mask,
        Component::FlowLabel(label) => flow.source.is_ipv6() && flow.flow_label == label,
    }
}

fn v4_agrees(found: IpAddr, wanted: Ipv4Addr, mask: Ipv4Addr) -> bool {
    matches!(found, IpAddr::V4(found) if (found.to_bits() ^ wanted.to_bits()) & mask.to_bits() == 0)
}

fn v6_agrees(found: IpAddr, wanted: Ipv6Addr, mask: Ipv6Addr) -> bool {
    matches!(found, IpAddr::V6(found) if (found.to_bits() ^ wanted.to_bits()) & mask.to_bits() == 0)
}

/// The mask of a prefix; its length is 128 at most.
fn mask_of(prefix_length: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(u128::MAX.checked_shl(128 - u32::from(prefix_length.min(128))).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::{ipv4, ipv6, protocol, transport};

    fn filter(precedence: u8, direction: Direction, components: Vec<Component>) -> PacketFilter {
        PacketFilter { id: 1, direction, precedence, components }
    }

    fn udp4(to: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
        let (source, to): (Ipv4Addr, Ipv4Addr) = ([10, 0, 0, 1].into(), to.into());
        let datagram = transport::build_udp((source.into(), ports.0), (to.into(), ports.1), b"x").unwrap();
        ipv4::Header::new(source, to, protocol::UDP).build(&datagram).unwrap()
    }

    #[test]
    fn the_lowest_precedence_wins_and_downlink_filters_do_not_count() {
        let remote = |last: u8| Component::Ipv4Remote {
            address: [9, 9, 9, last].into(),
            mask: if last == 0 { [255, 255, 255, 0].into() } else { Ipv4Addr::BROADCAST },
        };
        let mut filters = UplinkFilters::default();
        filters.add(&[filter(20, Direction::Bidirectional, vec![remote(0)])], Teid(1));
        filters.add(&[filter(10, Direction::Uplink, vec![remote(7), Component::RemotePort(53)])], Teid(2));
        filters.add(&[filter(1, Direction::Downlink, vec![])], Teid(3));
        assert_eq!(filters.tunnel(&udp4([9, 9, 9, 7], (1, 53))), Some(Teid(2)));
        assert_eq!(filters.tunnel(&udp4([9, 9, 9, 7], (1, 54))), Some(Teid(1)));
        assert_eq!(filters.tunnel(&udp4([9, 9, 8, 7], (1, 53))), None);
        assert_eq!(filters.tunnel(b"no packet"), None);
    }

    #[test]
    fn ports_and_prefixes() {
        let local = |low, high| Component::LocalPorts(low, high);
        let mut filters = UplinkFilters::default();
        let components = vec![Component::Protocol(protocol::UDP), local(100, 200)];
        filters.add(&[filter(1, Direction::PreRelease7, components)], Teid(1));
        let prefix = Component::Ipv6Remote { address: "2001:db8::".parse().unwrap(), prefix_length: 32 };
        filters.add(&[filter(2, Direction::Uplink, vec![prefix])], Teid(2));
        assert_eq!(filters.tunnel(&udp4([1, 1, 1, 1], (100, 9))), Some(Teid(1)));
        assert_eq!(filters.tunnel(&udp4([1, 1, 1, 1], (201, 9))), None);
        let to = |to: &str| {
            let header = ipv6::Header::new("fe80::1".parse().unwrap(), to.parse().unwrap(), 59);
            header.build(&[]).unwrap()
        };
        assert_eq!(filters.tunnel(&to("2001:db8:ffff::1")), Some(Teid(2)));
        assert_eq!(filters.tunnel(&to("2001:db9::1")), None);
        assert_eq!((mask_of(0).to_bits(), mask_of(128).to_bits()), (0, u128::MAX));
    }
}
