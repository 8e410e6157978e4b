//! The meaning of a filter, written a second time: field by field, from the typed filter and the documented
//! layout of keys. Nothing here uses [`classifier::Matcher`], because the tests are to find its mistakes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use classifier::{
    Ethernet, EthernetFilter, Family, Filter, Key, Masked, PortRange, Prefix, Rule, Side, Verdict,
};

/// The fields of a packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Packet {
    /// Source and destination, both of one IP version.
    pub addresses: Option<(IpAddr, IpAddr)>,
    pub protocol: u8,
    pub ports: Option<(u16, u16)>,
    pub tos: u8,
    pub qfi: Option<u8>,
    pub spi: Option<u32>,
    pub flow_label: u32,
    pub source_interface: Option<u8>,
    pub teid: Option<u32>,
    pub local_address: Option<u8>,
    pub network_instance: Option<u16>,
    pub traffic_endpoint: Option<u8>,
    pub application: Option<u32>,
    pub ethernet: Option<Ethernet>,
}

impl Packet {
    /// The key as the user plane builds it.
    pub fn key(&self) -> Key {
        let mut key = match self.addresses {
            Some((source, destination)) => Key::new(source, destination, self.protocol),
            // Addresses of two IP versions: the key of a packet without addresses.
            None => Key::new(Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), self.protocol),
        };
        key = key.with_tos(self.tos).with_flow_label(self.flow_label);
        if let Some((source, destination)) = self.ports {
            key = key.with_ports(source, destination);
        }
        if let Some(qfi) = self.qfi {
            key = key.with_qfi(qfi);
        }
        if let Some(spi) = self.spi {
            key = key.with_spi(spi);
        }
        if let Some(interface) = self.source_interface {
            key = key.with_source_interface(interface);
        }
        if let Some(teid) = self.teid {
            key = key.with_teid(teid);
        }
        if let Some(number) = self.local_address {
            key = key.with_local_address(number);
        }
        if let Some(number) = self.network_instance {
            key = key.with_network_instance(number);
        }
        if let Some(id) = self.traffic_endpoint {
            key = key.with_traffic_endpoint(id);
        }
        if let Some(number) = self.application {
            key = key.with_application(number);
        }
        if let Some(header) = self.ethernet {
            key = key.with_ethernet(header);
        }
        key
    }

    /// The packet of a key, by the table in the documentation of `classifier::key`.
    pub fn read(key: &Key) -> Packet {
        let words = key.words();
        let bit = |number: u32| words[3] >> number & 1 == 1;
        let wide = |first: usize, rest: usize| {
            let parts = [words[first], words[rest], words[rest + 1], words[rest + 2]];
            IpAddr::V6(parts.iter().fold(0u128, |bits, word| bits << 32 | u128::from(*word)).into())
        };
        let narrow = |word: usize| IpAddr::V4(words[word].into());
        let addresses = match (bit(25), bit(26)) {
            (true, false) => Some((narrow(0), narrow(1))),
            (false, true) => Some((wide(0, 9), wide(1, 12))),
            _ => None,
        };
        // Zero means "not known"; other numbers are stored plus one.
        let numbered = |value: u32| value.checked_sub(1);
        Packet {
            addresses,
            protocol: words[3] as u8,
            ports: bit(29).then_some(((words[2] >> 16) as u16, words[2] as u16)),
            tos: (words[3] >> 8) as u8,
            qfi: bit(22).then_some((words[3] >> 16) as u8 & 0x3F),
            spi: bit(24).then_some(words[4]),
            flow_label: words[5] & 0xF_FFFF,
            source_interface: numbered(words[5] >> 24).map(|number| number as u8),
            teid: bit(30).then_some(words[6]),
            local_address: numbered(words[7] >> 25).map(|number| number as u8),
            network_instance: Some(words[7] as u16).filter(|number| *number != 0),
            // The ninth bit: a stored value above 256 is no endpoint.
            traffic_endpoint: numbered(words[7] >> 16 & 0x1FF).and_then(|number| number.try_into().ok()),
            application: bit(31).then_some(words[8]),
            ethernet: bit(27).then(|| ethernet(words, bit(28), bit(23))),
        }
    }
}

fn ethernet(words: &[u32], customer: bool, service: bool) -> Ethernet {
    let octets: Vec<u8> = words[15..18].iter().flat_map(|word| word.to_be_bytes()).collect();
    let address = |from: usize| std::array::from_fn(|at| octets[from + at]);
    Ethernet {
        destination: address(0),
        source: address(6),
        ethertype: (words[18] >> 16) as u16,
        c_tag: customer.then_some(words[18] as u16),
        s_tag: service.then_some((words[19] >> 16) as u16),
    }
}

/// Whether a filter selects a packet.
pub fn selects(filter: &Filter, packet: &Packet) -> bool {
    // Without `..`, so that a new field must be defined here too.
    let Filter {
        source,
        destination,
        ue,
        protocol,
        source_ports,
        destination_ports,
        tos,
        spi,
        flow_label,
        qfi,
        source_interface,
        teid,
        local_address,
        network_instance,
        traffic_endpoint,
        application,
        ethernet,
    } = *filter;
    let is_v6 = matches!(packet.addresses, Some((IpAddr::V6(_), _)));
    let ue_fits = ue.is_none_or(|(side, prefix)| contains(&prefix, address(packet, side)));
    source.is_none_or(|prefix| contains(&prefix, address(packet, Side::Source)))
        && destination.is_none_or(|prefix| contains(&prefix, address(packet, Side::Destination)))
        && ue_fits
        && protocol.is_none_or(|protocol| protocol == packet.protocol)
        && source_ports.is_none_or(|range| packet.ports.is_some_and(|(port, _)| within(range, port)))
        && destination_ports.is_none_or(|range| packet.ports.is_some_and(|(_, port)| within(range, port)))
        && tos.is_none_or(|tos: Masked| packet.tos & tos.mask() == tos.value())
        && spi.is_none_or(|spi| packet.spi == Some(spi))
        && flow_label.is_none_or(|label| is_v6 && packet.flow_label == label.get())
        && qfi.is_none_or(|qfi| packet.qfi == Some(qfi.get()))
        && source_interface.is_none_or(|interface| packet.source_interface == Some(interface.get()))
        && teid.is_none_or(|teid| packet.teid == Some(teid))
        && local_address.is_none_or(|number| packet.local_address == Some(number.get()))
        && network_instance.is_none_or(|number| packet.network_instance == Some(number.get()))
        && traffic_endpoint.is_none_or(|id| packet.traffic_endpoint == Some(id))
        && application.is_none_or(|number| packet.application == Some(number))
        && ethernet.is_none_or(|wanted| packet.ethernet.is_some_and(|header| frame_fits(&wanted, &header)))
}

fn address(packet: &Packet, side: Side) -> Option<IpAddr> {
    let (source, destination) = packet.addresses?;
    Some(if side == Side::Source { source } else { destination })
}

/// Compares bit by bit, most significant first.
fn contains(prefix: &Prefix, address: Option<IpAddr>) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (Family::V4, address.octets().to_vec()),
        IpAddr::V6(address) => (Family::V6, address.octets().to_vec()),
    };
    let Some((family, octets)) = address.map(bits) else { return false };
    let (_, wanted) = bits(prefix.address());
    let same = |bit: usize| (octets[bit / 8] ^ wanted[bit / 8]) >> (7 - bit % 8) & 1 == 0;
    family == prefix.family() && (0..usize::from(prefix.length())).all(same)
}

fn within(range: PortRange, port: u16) -> bool {
    let (first, last) = range.bounds();
    first <= port && port <= last
}

fn frame_fits(wanted: &EthernetFilter, header: &Ethernet) -> bool {
    let address_fits = |wanted: Masked<[u8; 6]>, address: [u8; 6]| {
        (0..6).all(|at| address[at] & wanted.mask()[at] == wanted.value()[at])
    };
    let tag_fits = |wanted: Option<Masked<u16>>, tag: Option<u16>| {
        wanted.is_none_or(|wanted| tag.is_some_and(|tag| tag & wanted.mask() == wanted.value()))
    };
    address_fits(wanted.destination, header.destination)
        && address_fits(wanted.source, header.source)
        && wanted.ethertype.is_none_or(|ethertype| ethertype == header.ethertype)
        && tag_fits(wanted.c_tag, header.c_tag)
        && tag_fits(wanted.s_tag, header.s_tag)
}

/// The least of (precedence, id) among all rules that select the packet.
pub fn verdict(rules: &[Rule], packet: &Packet) -> Verdict {
    let matching = rules.iter().filter(|rule| selects(&rule.filter, packet));
    matching.min_by_key(|rule| (rule.precedence, rule.id)).map(|rule| rule.value)
}
