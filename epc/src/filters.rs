//! Packet filters of bearers: from the traffic flow template of the UE or operator (TS 24.008 §10.5.6.12) to the SDF filters of
//! the UPF (TS 29.244 §8.2.5).

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gtpv2c::value::tft::{Component, Direction, PacketFilter};
use pfcp::SdfFilter;

/// A packet filter with its SDF filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Number in its template, 0 to 15.
    pub id: u8,
    /// The lowest is looked at first, among all bearers of the PDN connection.
    pub precedence: u8,
    pub uplink: bool,
    pub downlink: bool,
    pub sdf: SdfFilter,
}

/// A filter that no SDF filter can express.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("the mask of an address has gaps")]
    Mask,
    #[error("ports without a protocol that has ports, or a component twice")]
    Contradiction,
}

/// One end of a flow in IPFilterRule.
#[derive(Default)]
struct End {
    network: Option<(IpAddr, u8)>,
    ports: Option<(u16, u16)>,
}

impl End {
    fn write(&self, out: &mut String, otherwise: &str) {
        let _ = match self.network {
            Some((address, length)) => write!(out, "{address}/{length}"),
            None => write!(out, "{otherwise}"),
        };
        let _ = match self.ports {
            Some((low, high)) if low == high => write!(out, " {low}"),
            Some((low, high)) => write!(out, " {low}-{high}"),
            None => Ok(()),
        };
    }
}

impl Filter {
    /// The filter that a template contains.
    ///
    /// # Errors
    /// An SDF filter cannot say the same.
    pub fn new(filter: &PacketFilter) -> Result<Self, FilterError> {
        let (mut local, mut remote) = (End::default(), End::default());
        let (mut protocol, mut sdf) = (None, SdfFilter::default());
        for component in &filter.components {
            match *component {
                Component::Ipv4Remote { address, mask } => {
                    set(&mut remote.network, (address.into(), v4_length(mask)?))?;
                }
                Component::Ipv4Local { address, mask } => {
                    set(&mut local.network, (address.into(), v4_length(mask)?))?;
                }
                Component::Ipv6RemoteMask { address, mask } => {
                    set(&mut remote.network, (address.into(), v6_length(mask)?))?;
                }
                Component::Ipv6Remote { address, prefix_length } => {
                    set(&mut remote.network, (address.into(), prefix_length))?;
                }
                Component::Ipv6Local { address, prefix_length } => {
                    set(&mut local.network, (address.into(), prefix_length))?;
                }
                Component::Protocol(number) => set(&mut protocol, number)?,
                Component::LocalPort(port) => set(&mut local.ports, (port, port))?,
                Component::LocalPorts(low, high) => set(&mut local.ports, (low, high))?,
                Component::RemotePort(port) => set(&mut remote.ports, (port, port))?,
                Component::RemotePorts(low, high) => set(&mut remote.ports, (low, high))?,
                Component::SecurityParameterIndex(index) => set(&mut sdf.security_parameter_index, index)?,
                Component::TypeOfService { value, mask } => set(&mut sdf.tos_traffic_class, (value, mask))?,
                Component::FlowLabel(label) => set(&mut sdf.flow_label, label)?,
            }
        }
        let has_ports = local.ports.is_some() || remote.ports.is_some();
        if has_ports && !protocol.is_some_and(|protocol| HAVE_PORTS.contains(&protocol)) {
            return Err(FilterError::Contradiction);
        }
        // Written for the downlink, as always: from the remote end to the UE (TS 29.212 §5.4.2).
        let mut text = match protocol {
            Some(protocol) => format!("permit out {protocol} from "),
            None => "permit out ip from ".to_owned(),
        };
        remote.write(&mut text, "any");
        text.push_str(" to ");
        local.write(&mut text, "assigned");
        sdf.flow_description = Some(text.as_str().into());
        Ok(Self {
            id: filter.id,
            precedence: filter.precedence,
            uplink: filter.direction != Direction::Downlink,
            downlink: matches!(filter.direction, Direction::Downlink | Direction::Bidirectional),
            sdf,
        })
    }
}

/// TCP, UDP, DCCP, SCTP, UDP-Lite.
const HAVE_PORTS: [u8; 5] = [6, 17, 33, 132, 136];

fn set<T>(place: &mut Option<T>, value: T) -> Result<(), FilterError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(FilterError::Contradiction),
    }
}

fn v4_length(mask: Ipv4Addr) -> Result<u8, FilterError> {
    let bits = mask.to_bits();
    if bits.leading_ones() + bits.trailing_zeros() >= 32 {
        Ok(bits.leading_ones() as u8)
    } else {
        Err(FilterError::Mask)
    }
}

fn v6_length(mask: Ipv6Addr) -> Result<u8, FilterError> {
    let bits = mask.to_bits();
    if bits.leading_ones() + bits.trailing_zeros() >= 128 {
        Ok(bits.leading_ones() as u8)
    } else {
        Err(FilterError::Mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(components: Vec<Component>) -> Result<String, FilterError> {
        let filter = PacketFilter { id: 3, direction: Direction::Bidirectional, precedence: 7, components };
        let filter = Filter::new(&filter)?;
        Ok(filter.sdf.flow_description.and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default())
    }

    #[test]
    fn a_filter_is_written_for_the_downlink() {
        let server = Component::Ipv4Remote { address: [9, 9, 9, 0].into(), mask: [255, 255, 255, 0].into() };
        let components = vec![
            server,
            Component::Protocol(17),
            Component::RemotePort(53),
            Component::LocalPorts(1000, 2000),
        ];
        assert_eq!(text(components).as_deref(), Ok("permit out 17 from 9.9.9.0/24 53 to assigned 1000-2000"));
        assert_eq!(text(Vec::new()).as_deref(), Ok("permit out ip from any to assigned"));
        let prefix = Component::Ipv6Remote { address: "2001:db8::".parse().unwrap(), prefix_length: 32 };
        assert_eq!(text(vec![prefix]).as_deref(), Ok("permit out ip from 2001:db8::/32 to assigned"));
    }

    #[test]
    fn what_no_sdf_filter_says_is_refused() {
        let gap = Component::Ipv4Remote { address: [9, 9, 9, 0].into(), mask: [255, 0, 255, 0].into() };
        assert_eq!(text(vec![gap]), Err(FilterError::Mask));
        assert_eq!(text(vec![Component::RemotePort(53)]), Err(FilterError::Contradiction));
        assert_eq!(
            text(vec![Component::Protocol(6), Component::Protocol(17)]),
            Err(FilterError::Contradiction)
        );
    }

    #[test]
    fn directions_are_kept() {
        for (direction, uplink, downlink) in [
            (Direction::Uplink, true, false),
            (Direction::Downlink, false, true),
            (Direction::Bidirectional, true, true),
            (Direction::PreRelease7, true, false),
        ] {
            let filter = PacketFilter { id: 1, direction, precedence: 1, components: Vec::new() };
            let filter = Filter::new(&filter).unwrap();
            assert_eq!((filter.uplink, filter.downlink), (uplink, downlink), "{direction:?}");
        }
    }
}
