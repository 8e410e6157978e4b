//! The plan of a session: everything that it does with packets, in readable form. It stands between N4's rules
//! and the form that workers execute.
//!
//! `n4::compile` resolves the references between the rules of a PFCP session and writes a [`Plan`];
//! `tables::Writer` turns the plan into the compact form of [`crate::session`] and publishes it. A plan has no
//! counters and no meters: the writer finds these by the identifiers of URRs and QERs, so that they outlive
//! modifications.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use classifier::Rule;
use serde::{Deserialize, Serialize};

/// What happens to the packets of one PFCP session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// This UPF's SEID.
    pub seid: u64,
    /// The kind of its packets.
    pub kind: Kind,
    /// For an Ethernet session: interface of the data network in which it is a station, if its frames go to one.
    pub network: Option<u16>,
    /// For an IP session: interface of the data network from whose network instance packets without tunnel come; by
    /// default the first one.
    pub origin: Option<u16>,
    /// Whether the CP function is told of addresses behind the UE.
    pub reports_addresses: bool,
    /// UE addresses, against which uplink sources are checked. If empty, sources are not checked.
    pub ue: UeAddresses,
    /// Addresses by which packets without tunnel find the session; empty without [`Place::Native`].
    pub native: UeAddresses,
    /// The places at which packets arrive, each with its rules.
    pub arrivals: Vec<Arrival>,
    /// Packet detection rules. The values of rules are positions in this list.
    pub pdrs: Vec<Pdr>,
    /// QoS enforcement rules that PDRs refer to by position.
    pub qers: Vec<Qer>,
    /// Usage reporting rules that PDRs refer to by position.
    pub urrs: Vec<Urr>,
    /// Most packets to buffer (BAR: suggested buffering packets count); `None` means the UPF's own limit.
    pub buffer_packets: Option<u16>,
}

impl Plan {
    /// Whether any packets are to be buffered.
    pub fn buffers(&self) -> bool {
        self.pdrs.iter().any(|pdr| pdr.action == Action::Buffer)
    }

    /// Whether one rate is for packets to the UE that come in tunnels and for others.
    pub fn shares_downlink_rates(&self) -> bool {
        let is_downlink = |rule: &Rule| {
            self.pdrs.get(rule.value as usize).is_some_and(|pdr| pdr.direction == Direction::Downlink)
        };
        // Mostly packets to the UE come without tunnel.
        let mut tunnels = self.arrivals.iter().filter(|arrival| arrival.place != Place::Native);
        if !tunnels.any(|arrival| arrival.rules.iter().any(is_downlink)) {
            return false;
        }
        let metered = |qer: &u16| self.qers.get(usize::from(*qer)).is_some_and(|qer| qer.downlink.has_rate());
        let qers = |native: bool| {
            let is_native = |arrival: &Arrival| arrival.place == Place::Native;
            let places = self.arrivals.iter().filter(move |arrival| is_native(arrival) == native);
            let rules = places.flat_map(|arrival| &arrival.rules);
            let pdrs = rules.filter_map(|rule| self.pdrs.get(rule.value as usize));
            pdrs.filter(|pdr| pdr.direction == Direction::Downlink).flat_map(|pdr| &pdr.qers)
        };
        let mut native = vec![false; self.qers.len()];
        for qer in qers(true).filter(|qer| metered(qer)) {
            native[usize::from(*qer)] = true;
        }
        qers(false).any(|qer| native.get(usize::from(*qer)) == Some(&true))
    }

    /// Whether packets to the UE may be made from packets that belong to others: answers of a redirection to a URL,
    /// frames that the bridge sends to another session. Answers in the name of the router are not counted.
    pub fn gets_packets_of_others(&self) -> bool {
        let redirects = |pdr: &Pdr| matches!(pdr.action, Action::RedirectUrl(_));
        self.kind == Kind::Ethernet || self.pdrs.iter().any(redirects)
    }
}

/// The packets that a session or a data network carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// IPv4, IPv6 or both.
    #[default]
    Ip,
    /// Ethernet frames.
    Ethernet,
}

/// The UE's addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UeAddresses {
    /// IPv4 addresses; one in practice.
    pub ipv4: Vec<Ipv4Addr>,
    /// IPv6 prefixes with their lengths, usually 64.
    pub ipv6: Vec<(Ipv6Addr, u8)>,
    /// Framed routes of both IP versions: address and length of the prefix (TS 29.244 §8.2.109).
    pub framed: Vec<(IpAddr, u8)>,
}

impl UeAddresses {
    /// Whether `address` is one of the UE's.
    #[inline]
    pub fn contain(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) if self.ipv4.contains(&v4) => true,
            IpAddr::V6(v6) if self.ipv6.iter().any(|(prefix, length)| within_v6(v6, *prefix, *length)) => {
                true
            }
            _ => self.framed.iter().any(|(prefix, length)| match (address, prefix) {
                (IpAddr::V4(address), IpAddr::V4(prefix)) => {
                    let differ = address.to_bits() ^ prefix.to_bits();
                    differ.checked_shr(32 - u32::from((*length).min(32))).unwrap_or(0) == 0
                }
                (IpAddr::V6(address), IpAddr::V6(prefix)) => within_v6(address, *prefix, *length),
                _ => false,
            }),
        }
    }

    /// Whether no address is known.
    pub fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty() && self.framed.is_empty()
    }
}

fn within_v6(address: Ipv6Addr, prefix: Ipv6Addr, length: u8) -> bool {
    let differ = prefix.to_bits() ^ address.to_bits();
    differ.checked_shr(128 - u32::from(length.min(128))).unwrap_or(0) == 0
}

/// Where packets arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// From a data network, without tunnel. The UE's address selects the session.
    Native,
    /// In the tunnel with this local TEID.
    Tunnel(u32),
}

/// A place, with the rules for packets that arrive there.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// The place.
    pub place: Place,
    /// Rules. Their ids are unique in the session; their values are positions in [`Plan::pdrs`].
    pub rules: Vec<Rule>,
}

/// Direction of a packet, as seen from the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the UE.
    Uplink,
    /// To the UE.
    Downlink,
}

/// A packet detection rule, with the action of its FAR.
#[derive(Debug, Clone, PartialEq)]
pub struct Pdr {
    /// Identifier in the session.
    pub id: u16,
    /// Uplink for packets from access, downlink for all others.
    pub direction: Direction,
    /// Whether sources are checked: for uplink packets to a data network.
    pub check_source: bool,
    /// Action of the FAR.
    pub action: Action,
    /// Whether the CP function is told of the first packet that is buffered or dropped (NOCP).
    pub notify: bool,
    /// Destinations of copies (DUPL).
    pub duplicates: Vec<Forward>,
    /// Positions in [`Plan::qers`]; all of these QERs apply.
    pub qers: Vec<u16>,
    /// Positions in [`Plan::urrs`].
    pub urrs: Vec<u16>,
    /// QFI with which a QER marks packets.
    pub qfi: Option<u8>,
    /// Whether to set the reflective QoS indication.
    pub rqi: bool,
    /// Paging policy indicator to set, if any.
    pub ppi: Option<u8>,
}

/// Action of a forwarding action rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Drop.
    Drop,
    /// Buffer.
    Buffer,
    /// Send to this destination.
    Forward(Forward),
    /// For uplink packets: answer web requests with a redirection to this URL; drop all others.
    RedirectUrl(String),
    /// For uplink packets: send to this address instead of the packet's destination.
    RedirectAddress(IpAddr, Forward),
    /// For downlink packets: send answers to redirected packets; drop all others.
    Answers(Forward),
}

/// Destination and marking of forwarded packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// The destination.
    pub to: Destination,
    /// Transport level marking: type of service or traffic class of the outer header, or of the packet if there
    /// is no outer header.
    pub tos: Option<u8>,
}

/// Destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Into a GTP-U tunnel.
    Tunnel(OuterHeader),
    /// To a data network, through the interface with this number.
    DataNetwork(u16),
}

/// Remote endpoint of a GTP-U tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterHeader {
    /// TEID at the remote endpoint.
    pub teid: u32,
    /// Address and port.
    pub peer: SocketAddr,
    /// Number of the interface through which packets leave.
    pub interface: u8,
    /// Kind of PDU Session Container.
    pub container: Container,
}

impl OuterHeader {
    /// The peer at the far end.
    pub fn far_end(&self) -> Peer {
        Peer { interface: self.interface, address: self.peer.ip() }
    }
}

/// The far end of tunnels: the same address may be another peer on another interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Number of the interface through which it is reached.
    pub interface: u8,
    /// Its address.
    pub address: IpAddr,
}

/// The PDU Session Container of a forwarded packet (TS 38.415), which depends on the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Towards access: downlink form.
    Downlink,
    /// Towards another UPF: uplink form.
    Uplink,
    /// Towards the CP function: no container.
    None,
}

/// A QoS enforcement rule. The writer finds its meters by `id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qer {
    /// Identifier in the session.
    pub id: u32,
    /// Enforcement for uplink packets.
    pub uplink: Enforcement,
    /// Enforcement for downlink packets.
    pub downlink: Enforcement,
}

/// One direction of a QoS enforcement rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement {
    /// Whether the gate is open.
    pub open: bool,
    /// Maximum bit rate.
    pub mbr_kbps: Option<u64>,
    /// Guaranteed bit rate: other QERs, such as the session's AMBR, do not refuse packets that conform to it.
    pub gbr_kbps: Option<u64>,
}

impl Enforcement {
    /// Lets all packets pass.
    pub const OPEN: Enforcement = Enforcement { open: true, mbr_kbps: None, gbr_kbps: None };

    /// Whether there is a rate to meter.
    fn has_rate(&self) -> bool {
        self.mbr_kbps.is_some() || self.gbr_kbps.is_some()
    }
}

/// The part of a usage reporting rule that the packet path needs. The writer finds its counters by `id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Urr {
    /// Identifier in the session.
    pub id: u32,
    /// Volumes that cause an event.
    pub marks: Vec<Mark>,
}

/// A volume that causes an event, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The octets that are compared.
    pub measure: Measure,
    /// Kind of event.
    pub kind: MarkKind,
    /// Octets that the URR has counted since it was created, regardless of reports (as `Session::urr` returns
    /// them). A volume that is already passed has caused its event. The packet that reaches the volume causes
    /// the event and still passes.
    pub at: u64,
}

/// Which octets are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Measure {
    /// Both directions.
    Total,
    /// From the UE.
    Uplink,
    /// To the UE.
    Downlink,
}

/// What happens at a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MarkKind {
    /// Sends `Event::Usage`: a threshold, or, with `at` one beyond the present count, the start of traffic.
    Threshold,
    /// Sends `Event::Usage`, and later packets are dropped.
    Quota,
}

/// Why a plan cannot be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More rules, meters or counters than a session can have.
    #[error("the session has more {0} than the packet path can execute")]
    TooMany(&'static str),
    /// A position or rule that does not fit the rest: a defect of the code that made the plan.
    #[error("the session's plan contradicts itself: {0}")]
    Invalid(&'static str),
    /// No memory, or no room in a table.
    #[error("no room for {0}")]
    Full(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Native => f.write_str("N6"),
            Place::Tunnel(teid) => write!(f, "TEID {teid:#010x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ue_addresses_are_compared_by_prefix() {
        let ue = UeAddresses {
            ipv4: vec![Ipv4Addr::new(10, 45, 0, 2)],
            ipv6: vec![("fd00:45:0:7::".parse().unwrap(), 64)],
            framed: vec![("192.0.2.0".parse().unwrap(), 24), ("fd00:46::".parse().unwrap(), 32)],
        };
        for (address, expected) in [
            ("10.45.0.2", true),
            ("10.45.0.3", false),
            ("192.0.2.77", true),
            ("192.0.3.77", false),
            ("fd00:45:0:7::1", true),
            ("fd00:45:0:7:ffff::1", true),
            ("fd00:45:0:8::1", false),
            ("fd00:46:1::1", true),
            ("fe80::1", false),
        ] {
            assert_eq!(ue.contain(address.parse().unwrap()), expected, "{address}");
        }
    }
}
