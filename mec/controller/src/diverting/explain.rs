//! Where a user's packets go, by the rules that a switch has: its flows are asked for, and a packet is followed through them.
//!
//! The flows are those of all applications and of others, so the answer is what the switch does, not what is wanted of it. A packet is
//! a set of fields; GTP ports take a tunnel off and put it on as the switch's dialect does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use openflow::{Action, Field, FlowStats, MacAddr, Match, Oxm, PacketType, Port, PortNo, TableId};
use serde::Serialize;

use super::model::Diversion;
use crate::config::{Config, Place};
use crate::rule::{App, Kind};
use crate::switch::{Dialect, SwitchView};

/// Rules that a packet may pass; more are a loop.
const MAX_RULES: usize = 32;
/// Neighbours of an anchor on SGi or N6 whose packets are followed.
const MAX_NEIGHBOURS: usize = 8;

/// One rule on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// What it is for, if it is ours.
    pub rule: Option<&'static str>,
    /// Whose it is, if it is ours.
    pub application: Option<&'static str>,
    /// What it matches.
    pub matching: String,
    /// Packets that took it.
    pub packets: u64,
    /// Octets that took it.
    pub bytes: u64,
}

/// A packet's way through a switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Way {
    /// The switch.
    pub switch: String,
    /// `uplink` or `downlink`.
    pub direction: &'static str,
    /// The rules, in order.
    pub rules: Vec<Passed>,
    /// Where the packet leaves, in words.
    pub result: String,
    /// The outer destination with which it leaves, or the only one.
    pub destination: Option<IpAddr>,
    /// The link-layer addresses with which it leaves, as far as they are known.
    pub source_mac: Option<String>,
    /// As `source_mac`.
    pub destination_mac: Option<String>,
    /// The TEID with which it leaves.
    pub teid: Option<u32>,
}

/// A packet as rules see it.
type Packet = BTreeMap<Field, u128>;

fn put(packet: &mut Packet, fields: impl IntoIterator<Item = Oxm>) {
    packet.extend(fields.into_iter().map(|oxm| (oxm.field(), oxm.value())));
}

fn address(packet: &Packet, fields: (Field, Field)) -> Option<IpAddr> {
    let v4 = packet.get(&fields.0).map(|bits| std::net::Ipv4Addr::from_bits(*bits as u32).into());
    v4.or_else(|| packet.get(&fields.1).map(|bits| std::net::Ipv6Addr::from_bits(*bits).into()))
}

fn matches(matching: &Match, packet: &Packet) -> bool {
    matching.unknown().is_empty()
        && matching.iter().all(|oxm| {
            // What the packet lacks, it does not match.
            packet.get(&oxm.field()).is_some_and(|value| (value ^ oxm.value()) & oxm.mask() == 0)
        })
}

fn source(ip: IpAddr) -> Oxm {
    match ip {
        IpAddr::V4(ip) => Oxm::ipv4_src(ip),
        IpAddr::V6(ip) => Oxm::ipv6_src(ip),
    }
}

fn destination(ip: IpAddr) -> Oxm {
    match ip {
        IpAddr::V4(ip) => Oxm::ipv4_dst(ip),
        IpAddr::V6(ip) => Oxm::ipv6_dst(ip),
    }
}

const OUTER_SOURCE: (Field, Field) = (Field::Ipv4Src, Field::Ipv6Src);
const OUTER_DESTINATION: (Field, Field) = (Field::Ipv4Dst, Field::Ipv6Dst);
const TUNNEL_SOURCE: (Field, Field) = (Field::TunIpv4Src, Field::TunIpv6Src);
const TUNNEL_DESTINATION: (Field, Field) = (Field::TunIpv4Dst, Field::TunIpv6Dst);

/// A packet on its way through a switch.
struct Walk<'a> {
    view: &'a SwitchView,
    macs: &'a HashMap<IpAddr, MacAddr>,
    gtp: PortNo,
    flows: &'a [FlowStats],
    /// The frame, or its outer header.
    outer: Packet,
    /// The user's packet in it, if it is tunnelled.
    inner: Option<Packet>,
    teid: Option<u32>,
    first_octet: u8,
    rules: Vec<Passed>,
}

impl Walk<'_> {
    fn best(&self, table: TableId, packet: &Packet) -> Option<&FlowStats> {
        // For Open vSwitch a rule without a type is for frames.
        let has_type = |of: &Match| of.get(Field::PacketType).is_some();
        let typed = self.view.dialect == Dialect::OpenVswitch && packet.contains_key(&Field::PacketType);
        let here = |flow: &&FlowStats| {
            flow.table_id == table && matches(&flow.matching, packet) && (!typed || has_type(&flow.matching))
        };
        self.flows.iter().filter(here).max_by_key(|flow| flow.priority)
    }

    /// What rules see of the packet behind the GTP port.
    fn decapsulated(&self) -> Packet {
        let mut packet = self.inner.clone().unwrap_or_default();
        put(&mut packet, [Oxm::in_port(self.gtp), Oxm::tunnel_id(self.teid.unwrap_or_default().into())]);
        put(&mut packet, [Oxm::tun_gtpu_flags(self.first_octet), Oxm::tun_gtpu_msgtype(255)]);
        if let Some(IpAddr::V4(ip)) = address(&self.outer, OUTER_SOURCE) {
            put(&mut packet, [Oxm::tun_ipv4_src(ip)]);
        }
        if let Some(IpAddr::V6(ip)) = address(&self.outer, OUTER_SOURCE) {
            put(&mut packet, [Oxm::tun_ipv6_src(ip)]);
        }
        match address(&self.outer, OUTER_DESTINATION) {
            Some(IpAddr::V4(ip)) => put(&mut packet, [Oxm::tun_ipv4_dst(ip)]),
            Some(IpAddr::V6(ip)) => put(&mut packet, [Oxm::tun_ipv6_dst(ip)]),
            None => {}
        }
        packet
    }

    /// The frame again, with the tunnel's addresses of `packet`.
    fn encapsulate(&mut self, packet: &Packet) {
        let (from, to) = (address(packet, TUNNEL_SOURCE), address(packet, TUNNEL_DESTINATION));
        put(&mut self.outer, from.map(source));
        put(&mut self.outer, to.map(destination));
        put(&mut self.outer, [Oxm::in_port(PortNo::LOCAL)]);
        // Open vSwitch makes a new frame, for the neighbour of the tunnel's destination.
        let neighbour =
            to.and_then(|to| self.macs.get(&to)).filter(|_| self.view.dialect == Dialect::OpenVswitch);
        put(&mut self.outer, neighbour.copied().map(Oxm::eth_dst));
        // Without a TEID in the question there is none in the answer, unless a rule sets it.
        let teid = packet.get(&Field::TunnelId).map(|teid| *teid as u32);
        self.teid = teid.filter(|teid| self.teid.is_some() || *teid != 0);
        let keep = |field: &Field| self.inner.as_ref().is_some_and(|inner| inner.contains_key(field));
        self.inner = Some(
            packet.iter().filter(|(field, _)| keep(field)).map(|(field, bits)| (*field, *bits)).collect(),
        );
    }

    /// Follows the packet; returns where it leaves.
    fn follow(&mut self) -> String {
        let mut packet = self.outer.clone();
        let mut is_inner = false;
        let mut table = TableId(0);
        loop {
            let Some(flow) = self.best(table, &packet).cloned() else {
                return format!("dropped: no rule of table {}", table.0);
            };
            self.rules.push(passed(&flow));
            if self.rules.len() >= MAX_RULES {
                return "a loop of rules".to_owned();
            }
            let mut outputs = Vec::new();
            for action in flow.instructions.apply_actions.as_deref().unwrap_or_default() {
                match action {
                    Action::SetField(set) => put(&mut packet, [set.oxm()]),
                    Action::Output { port, .. } => outputs.push(*port),
                    _ => {}
                }
            }
            if !is_inner {
                self.outer.clone_from(&packet);
            }
            let to_gtp = |port: &PortNo| *port == self.gtp || (*port == PortNo::IN_PORT && is_inner);
            if outputs.iter().any(to_gtp) {
                self.encapsulate(&packet);
                packet.clone_from(&self.outer);
                (is_inner, table) = (false, TableId(0));
            } else if outputs.contains(&PortNo::LOCAL) && self.inner.is_some() && !is_inner {
                packet = self.decapsulated();
                (is_inner, table) = (true, TableId(0));
            } else if !outputs.is_empty() {
                let names: Vec<String> = outputs.iter().map(|port| self.port(*port)).collect();
                return format!("output to {}", names.join(", "));
            } else if let Some(next) = flow.instructions.goto_table {
                table = next;
            } else {
                return "dropped by this rule".to_owned();
            }
        }
    }

    fn port(&self, port: PortNo) -> String {
        match port {
            PortNo::CONTROLLER => "the controller".to_owned(),
            PortNo::LOCAL => "LOCAL".to_owned(),
            port => {
                let named = self.view.ports.iter().find(|of_switch| of_switch.port_no == port);
                named.map_or(port.0.to_string(), |port: &Port| port.name.as_str().to_owned())
            }
        }
    }

    fn way(mut self, direction: &'static str) -> Way {
        let result = self.follow();
        let mac = |field| self.outer.get(&field).map(|bits| show_mac(*bits));
        Way {
            source_mac: mac(Field::EthSrc),
            destination_mac: mac(Field::EthDst),
            switch: self.view.name.clone(),
            direction,
            destination: address(&self.outer, OUTER_DESTINATION),
            teid: self.teid,
            rules: self.rules,
            result,
        }
    }
}

fn passed(flow: &FlowStats) -> Passed {
    let app = App::of_cookie(flow.cookie);
    Passed {
        table: flow.table_id.0,
        priority: flow.priority,
        rule: app.and_then(|_| Kind::of_cookie(flow.cookie)).map(Kind::name),
        application: app.map(App::name),
        matching: show_all(&flow.matching),
        packets: flow.packet_count,
        bytes: flow.byte_count,
    }
}

/// A match as people write it.
pub(crate) fn show_all(matching: &Match) -> String {
    let fields: Vec<String> = matching.iter().map(|oxm| show(&oxm)).collect();
    if fields.is_empty() { "any".to_owned() } else { fields.join(",") }
}

fn show_mac(bits: u128) -> String {
    let [.., a, b, c, d, e, f] = bits.to_be_bytes();
    [a, b, c, d, e, f].map(|octet| format!("{octet:02x}")).join(":")
}

/// A field as people write it.
fn show(oxm: &Oxm) -> String {
    let value = oxm.value();
    let text = match oxm.field() {
        Field::Ipv4Src
        | Field::Ipv4Dst
        | Field::TunIpv4Src
        | Field::TunIpv4Dst
        | Field::ArpSpa
        | Field::ArpTpa => std::net::Ipv4Addr::from_bits(value as u32).to_string(),
        Field::Ipv6Src | Field::Ipv6Dst | Field::TunIpv6Src | Field::TunIpv6Dst | Field::Ipv6NdTarget => {
            std::net::Ipv6Addr::from_bits(value).to_string()
        }
        Field::EthSrc | Field::EthDst | Field::ArpSha | Field::ArpTha => show_mac(value),
        Field::TunnelId | Field::EthType | Field::TunGtpuFlags | Field::PacketType => format!("{value:#x}"),
        Field::InPort if value == u128::from(PortNo::LOCAL.0) => "LOCAL".to_owned(),
        _ => value.to_string(),
    };
    let mask = if oxm.is_exact() { String::new() } else { format!("/{:#x}", oxm.mask()) };
    format!("{}={text}{mask}", oxm.field().name())
}

/// What is asked about a user.
#[derive(Debug, Clone)]
pub struct Question {
    /// The user, where it is, and where it would go without diversion.
    pub diversion: Diversion,
    /// What is known of link-layer addresses at the base station's switch.
    pub macs: HashMap<IpAddr, MacAddr>,
}

/// A user's packets at the base station's switch; with the flows that it has.
pub fn at_access(question: &Question, config: &Config, view: &SwitchView, flows: &[FlowStats]) -> Vec<Way> {
    let diversion = &question.diversion;
    let (Some(ue), Some(station), Some(from), Some(to), Some(settings)) = (
        diversion.ue,
        config.base_station(&diversion.base_station),
        config.anchor(&diversion.from),
        config.anchor(&diversion.to),
        config.switch_of(view.datapath_id),
    ) else {
        return Vec::new();
    };
    let gtp = view.port(&settings.gtp_port).map_or(PortNo::ANY, |port| port.port_no);
    let first_octet = match station.access {
        crate::config::Access::FourG => 0x30,
        crate::config::Access::FiveG => 0x34,
    };
    let user_packet = |own: Oxm, other: Option<Oxm>| {
        let mut inner = Packet::new();
        let kind = if ue.is_ipv4() { PacketType::IPV4 } else { PacketType::IPV6 };
        put(&mut inner, [Oxm::packet_type(kind), own]);
        put(&mut inner, other);
        if let Some(flow) = diversion.application {
            put(&mut inner, [Oxm::ip_proto(flow.protocol)]);
        }
        inner
    };
    let walk = |from: IpAddr,
                to: IpAddr,
                macs: (Option<MacAddr>, Option<MacAddr>),
                inner: Packet,
                teid: Option<u32>| {
        let mut outer = Packet::new();
        let ethertype = if from.is_ipv4() { 0x0800 } else { 0x86dd };
        put(&mut outer, [Oxm::eth_type(ethertype), source(from), destination(to), Oxm::ip_proto(17)]);
        put(&mut outer, [Oxm::udp_src(2152), Oxm::udp_dst(2152)]);
        put(&mut outer, macs.0.map(Oxm::eth_src));
        put(&mut outer, macs.1.map(Oxm::eth_dst));
        Walk {
            view,
            macs: &question.macs,
            gtp,
            flows,
            outer,
            inner: Some(inner),
            teid,
            first_octet,
            rules: Vec::new(),
        }
    };
    let other = diversion.application.map(|flow| flow.server).or(diversion.peer);
    let mut uplink = user_packet(source(ue), other.map(destination));
    if let Some(flow) = diversion.application {
        put(
            &mut uplink,
            flow.port.map(|port| if flow.protocol == 6 { Oxm::tcp_dst(port) } else { Oxm::udp_dst(port) }),
        );
    }
    let tunnel = diversion.tunnels.first();
    let macs = &question.macs;
    let mac = |ip| macs.get(&ip).copied();
    let (anchor_mac, station_mac) = (from.mac.or(mac(from.address)), station.mac.or(mac(station.address)));
    let up = walk(
        station.address,
        from.address,
        (station_mac, anchor_mac),
        uplink,
        tunnel.map(|tunnel| tunnel.uplink),
    );
    let at_target = diversion.target_address.unwrap_or(ue);
    let teid = tunnel.and_then(|tunnel| tunnel.target_downlink.or(tunnel.downlink));
    let down = walk(
        to.address,
        station.address,
        (to.mac.or(mac(to.address)), station_mac),
        user_packet(destination(at_target), None),
        teid,
    );
    vec![up.way("uplink"), down.way("downlink")]
}

/// A user's packets at the switch on SGi or N6, from and to each neighbour with which the anchors there have spoken.
pub fn at_sgi(question: &Question, config: &Config, view: &SwitchView, flows: &[FlowStats]) -> Vec<Way> {
    let diversion = &question.diversion;
    let side = |name: &str| config.anchor(name).and_then(|anchor| anchor.sgi.as_ref());
    let (Some(ue), Some(from), Some(to)) = (diversion.ue, side(&diversion.from), side(&diversion.to)) else {
        return Vec::new();
    };
    if config.switch_of(view.datapath_id).is_none_or(|settings| settings.place != Place::Sgi) {
        return Vec::new();
    }
    let walk = |user: Oxm, other: Option<Oxm>, macs: (Option<MacAddr>, Option<MacAddr>)| {
        let mut outer = Packet::new();
        put(&mut outer, [Oxm::eth_type(if ue.is_ipv4() { 0x0800 } else { 0x86dd }), user]);
        put(&mut outer, other);
        put(&mut outer, macs.0.map(Oxm::eth_src));
        put(&mut outer, macs.1.map(Oxm::eth_dst));
        if let Some(flow) = diversion.application {
            put(&mut outer, [Oxm::ip_proto(flow.protocol)]);
        }
        Walk {
            view,
            macs: &question.macs,
            gtp: PortNo::ANY,
            flows,
            outer,
            inner: None,
            teid: None,
            first_octet: 0,
            rules: Vec::new(),
        }
    };
    let other = diversion.application.map(|flow| flow.server).or(diversion.peer);
    let server_port = |is_destination| {
        let flow = diversion.application?;
        flow.port.map(|port| match (flow.protocol, is_destination) {
            (6, true) => Oxm::tcp_dst(port),
            (6, false) => Oxm::tcp_src(port),
            (_, true) => Oxm::udp_dst(port),
            (_, false) => Oxm::udp_src(port),
        })
    };
    let at_target = source(diversion.target_address.unwrap_or(ue));
    let mut ways = Vec::new();
    for neighbour in beside(config, flows, to.mac) {
        let mut up = walk(at_target, other.map(destination), (Some(to.mac), neighbour));
        put(&mut up.outer, server_port(true));
        ways.push(up.way("uplink"));
        let mut down = walk(destination(ue), other.map(source), (neighbour, Some(from.mac)));
        put(&mut down.outer, server_port(false));
        ways.push(down.way("downlink"));
    }
    ways
}

/// The neighbours of an anchor on SGi or N6, by what forwarding has learned; one that is not known if there is none.
fn beside(config: &Config, flows: &[FlowStats], anchor: MacAddr) -> Vec<Option<MacAddr>> {
    let learned = |flow: &FlowStats| {
        let of_forwarding = App::of_cookie(flow.cookie) == Some(App::Forwarding);
        let (from, to) = (flow.matching.eth_src()?, flow.matching.eth_dst()?);
        let other = if from == anchor { to } else { from };
        (of_forwarding && [from, to].contains(&anchor)).then_some(other.0)
    };
    let is_anchor = |mac: &[u8; 6]| {
        let mut sides = config.anchors.iter().filter_map(|anchor| anchor.sgi.as_ref());
        sides.any(|side| side.mac.0 == *mac)
    };
    let all: BTreeSet<[u8; 6]> = flows.iter().filter_map(learned).filter(|mac| !is_anchor(mac)).collect();
    let mut all: Vec<_> = all.into_iter().take(MAX_NEIGHBOURS).map(|mac| Some(MacAddr(mac))).collect();
    if all.is_empty() {
        all.push(None);
    }
    all
}
