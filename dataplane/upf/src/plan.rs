//! What a session does with packets, in full and readable: between N4's rules and what workers execute.
//!
//! `n4::compile` resolves what the rules of a PFCP session refer to and writes a [`Plan`]; `tables::Writer` turns that
//! into the compact form of [`crate::session`] and publishes it. A plan has no counters and no meters: these are
//! found again by the identifiers of URRs and QERs, so that they outlive modifications.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use classifier::Rule;
use serde::{Deserialize, Serialize};

/// What becomes of the packets of one PFCP session.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Our SEID.
    pub seid: u64,
    /// What its packets are.
    pub kind: Kind,
    /// Of an Ethernet session: the number of the data network that it is a station of, if its frames go to one.
    pub network: Option<u16>,
    /// Of a session of packets: the number of the data network that those without tunnel come from; any if it is not known.
    pub origin: Option<u16>,
    /// The CP function is told of addresses behind the UE.
    pub reports_addresses: bool,
    /// UE addresses: what uplink sources are checked against. Without any there is no check.
    pub ue: UeAddresses,
    /// Addresses by which packets without tunnel find the session; empty without [`Place::Native`].
    pub native: UeAddresses,
    /// Where packets come in, each with the rules for what arrives there.
    pub arrivals: Vec<Arrival>,
    /// Packet detection rules; the values of rules are positions here.
    pub pdrs: Vec<Pdr>,
    /// QoS enforcement rules that PDRs refer to by position.
    pub qers: Vec<Qer>,
    /// Usage reporting rules that PDRs refer to by position.
    pub urrs: Vec<Urr>,
    /// Most packets to buffer (BAR: suggested buffering packets count); without one, the UPF's own bound.
    pub buffer_packets: Option<u16>,
}

impl Plan {
    /// Whether any packets are to be buffered.
    pub fn buffers(&self) -> bool {
        self.pdrs.iter().any(|pdr| pdr.action == Action::Buffer)
    }

    /// Whether workers of different inputs write the same meters and counters of downlink packets: those of N3 and N6 where
    /// a rate is for tunnelled packets and for others, and wherever a packet to the UE is made from one that came from N3
    /// (redirections to a URL, frames that the bridge turns round). Uplink packets always come from N3.
    pub fn shares_downlink(&self) -> bool {
        if self.kind == Kind::Ethernet
            || self.pdrs.iter().any(|pdr| matches!(pdr.action, Action::RedirectUrl(_)))
        {
            return true;
        }
        let metered = |qer: &u16| self.qers.get(usize::from(*qer)).is_some_and(|qer| qer.downlink.has_rate());
        let qers = |native: bool| {
            let places =
                self.arrivals.iter().filter(move |arrival| (arrival.place == Place::Native) == native);
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
}

/// What a session, or a data network, carries.
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
    /// IPv6 prefixes, of 64 bits unless said otherwise, with their lengths.
    pub ipv6: Vec<(Ipv6Addr, u8)>,
    /// Framed routes of either family: address and length of the prefix (TS 29.244 §8.2.109).
    pub framed: Vec<(IpAddr, u8)>,
}

impl UeAddresses {
    /// Whether `address` is the UE's.
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

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.ipv4.is_empty() && self.ipv6.is_empty() && self.framed.is_empty()
    }
}

fn within_v6(address: Ipv6Addr, prefix: Ipv6Addr, length: u8) -> bool {
    let differ = prefix.to_bits() ^ address.to_bits();
    differ.checked_shr(128 - u32::from(length.min(128))).unwrap_or(0) == 0
}

/// Where packets come in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// From a data network, without tunnel; found by UE address.
    Native,
    /// In the tunnel with this local TEID.
    Tunnel(u32),
}

/// A place with the rules for what comes in there.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// The place.
    pub place: Place,
    /// Rules with ids of their own in the session; values are positions in [`Plan::pdrs`].
    pub rules: Vec<Rule>,
}

/// Which way a packet goes, seen from the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the UE.
    Uplink,
    /// To the UE.
    Downlink,
}

/// A packet detection rule with what its FAR says.
#[derive(Debug, Clone, PartialEq)]
pub struct Pdr {
    /// Its identifier in the session.
    pub id: u16,
    /// Uplink for packets from access, downlink for all others.
    pub direction: Direction,
    /// Whether sources are checked: uplink towards a data network.
    pub check_source: bool,
    /// What the FAR says.
    pub action: Action,
    /// Whether the CP function is told of the first packet that is buffered, or dropped (NOCP).
    pub notify: bool,
    /// Copies (DUPL): where to.
    pub duplicates: Vec<Forward>,
    /// Positions in [`Plan::qers`]; all of them apply.
    pub qers: Vec<u16>,
    /// Positions in [`Plan::urrs`].
    pub urrs: Vec<u16>,
    /// QFI that a QER marks packets with.
    pub qfi: Option<u8>,
    /// Reflective QoS indication to set.
    pub rqi: bool,
    /// Paging policy indicator to set.
    pub ppi: Option<u8>,
}

/// What a forwarding action rule does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Drop.
    Drop,
    /// Buffer.
    Buffer,
    /// Send on.
    Forward(Forward),
    /// Of uplink packets: answer web requests with another place to go; all else is dropped.
    RedirectUrl(String),
    /// Of uplink packets: send on to another address instead of the packet's own.
    RedirectAddress(IpAddr, Forward),
    /// Of downlink packets: send on what answers redirected traffic; all else is dropped.
    Answers(Forward),
}

/// A way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// Where to.
    pub to: Destination,
    /// Transport level marking: type of service or traffic class of the outer header, or, without one, of the packet.
    pub tos: Option<u8>,
}

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Into a GTP-U tunnel.
    Tunnel(OuterHeader),
    /// To the data network with this number.
    DataNetwork(u16),
}

/// A remote tunnel endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OuterHeader {
    /// TEID there.
    pub teid: u32,
    /// Address and port.
    pub peer: SocketAddr,
    /// Which PDU Session Container the packets carry.
    pub container: Container,
}

/// PDU Session Container of a forwarded packet (TS 38.415): by the interface it leaves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// To access: downlink form.
    Downlink,
    /// To another UPF: uplink form.
    Uplink,
    /// To the CP function: none.
    None,
}

/// A QoS enforcement rule. Its meters are found again by `id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qer {
    /// Its identifier in the session.
    pub id: u32,
    /// What it does to uplink packets.
    pub uplink: Enforcement,
    /// And to downlink packets.
    pub downlink: Enforcement,
}

/// One direction of a QoS enforcement rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcement {
    /// The gate: packets pass.
    pub open: bool,
    /// Maximum bit rate.
    pub mbr_kbps: Option<u64>,
    /// Guaranteed bit rate: what conforms to it is not refused by other QERs, such as the session's AMBR.
    pub gbr_kbps: Option<u64>,
}

impl Enforcement {
    /// Lets everything pass.
    pub const OPEN: Enforcement = Enforcement { open: true, mbr_kbps: None, gbr_kbps: None };

    /// Whether there is a rate to meter.
    fn has_rate(&self) -> bool {
        self.mbr_kbps.is_some() || self.gbr_kbps.is_some()
    }
}

/// A usage reporting rule, as far as the packet path must know it. Its counters are found again by `id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Urr {
    /// Its identifier in the session.
    pub id: u32,
    /// Volumes at which something happens.
    pub marks: Vec<Mark>,
}

/// A volume at which something happens, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// What is compared.
    pub measure: Measure,
    /// What happens.
    pub kind: MarkKind,
    /// Octets that the URR has counted since it was created, reports notwithstanding (as `Session::urr` gives them).
    /// What lies behind already has happened. The packet that reaches this volume triggers the event and still passes.
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
    /// `Event::Usage`: a threshold; with `at` one beyond what has been counted, the start of traffic.
    Threshold,
    /// `Event::Usage`, and packets beyond are dropped.
    Quota,
}

/// Why a plan cannot be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More rules, meters or counters than a session can have.
    #[error("the session has more {0} than the packet path can execute")]
    TooMany(&'static str),
    /// A position or a rule that does not fit the rest: a defect of whoever made the plan.
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
