//! What a diversion becomes in switches: the rules of Table I, in both dialects.
//!
//! **Native.** The GTP port takes nothing off, it shows what is inside. So a rule sees the original outer destination as `tun_dst`,
//! and changes it: base station → SW-T0-M1 → LOCAL → GTP port → SW-T0-H → table 1 → GTP port → LOCAL → SW-T0-M2 → table 2.
//!
//! **Open vSwitch** takes the tunnel off and puts a new one on. Its host must be the destination, so each anchor has a LOCAL address of
//! its own that stands for it, and each base station one that is the source of the new tunnel, which SW-T0-M2 replaces. Further:
//! - every rule of table 1 matches the flags, because the new header copies them from the packet that made the cached flow. Of a value
//!   of `tun_gtpu_flags` it takes only the bits that are set, whatever the mask: so rules with more bits come first, and a rule for all
//!   bits comes before all others, which makes a cached flow depend on each bit. (No packet has all three in practice.)
//! - path messages come back as whole frames (`packet_type=ptap`), and are sent on as they were;
//! - packets without Ethernet header need a match of their type.
//!
//! Stages say in which order rules become effective when several switches change: installed in this order, removed in the other.

use std::net::IpAddr;

use openflow::{Action, Code, Instructions, MacAddr, Match, Oxm, PacketType, PortNo, TableId};

use super::model::{Diversion, Flow, Tunnel};
use crate::config::{Access, Config};
use crate::rule::{Kind, Rule};
use crate::switch::{Dialect, SwitchView};

/// Priorities of table 0, from the highest.
mod classify {
    pub const PROBE: u16 = 400;
    pub const HIGH: u16 = 300;
    pub const TARGET: u16 = 220;
    pub const ENCAPSULATED: u16 = 210;
    pub const MEDIUM: u16 = 200;
}

/// Priorities of table 1, from the highest: the narrower one first.
mod steer {
    pub const ALL_FLAGS: u16 = 300;
    pub const PATH: u16 = 260;
    pub const APPLICATION: u16 = 250;
    pub const PAIR: u16 = 240;
    pub const TUNNEL: u16 = 200;
    pub const ADDRESS: u16 = 190;
    pub const ANCHOR: u16 = 150;
    pub const LOW: u16 = 100;
}

const CLASSIFICATION: u8 = 0;
const ENCAPSULATION: TableId = TableId(1);
const FORWARDING: TableId = TableId(2);
const GTPU_PORT: u16 = 2152;
const UDP: u8 = 17;
const G_PDU: u8 = 255;
/// Version 1, GTP; with extension headers, sequence number and N-PDU number (TS 29.281 §5.1).
const ALL_FLAGS: u8 = 0x37;

/// When a rule becomes effective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Tables behind the one that leads to them, and downlink.
    Ground,
    /// Where packets enter them.
    Entry,
    /// The return path.
    Return,
    /// The user itself.
    User,
}

/// A rule of a switch, with its stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The switch.
    pub datapath_id: u64,
    /// When it becomes effective.
    pub stage: Stage,
    /// The rule.
    pub rule: Rule,
}

/// Why a rule cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRule {
    /// A name or port is missing.
    #[error("{0}")]
    Missing(String),
    /// A match or action that contradicts itself.
    #[error("{0}")]
    Form(#[from] Code),
}

/// An anchor or base station as rules need it.
#[derive(Debug, Clone, Copy)]
struct End {
    ip: IpAddr,
    /// Not needed for every rule.
    mac: Option<MacAddr>,
    /// Open vSwitch: the address that stands for it.
    local: IpAddr,
}

/// What is known of link-layer addresses.
pub trait Macs {
    /// The link-layer address of a network address at a switch.
    fn mac(&self, datapath_id: u64, address: IpAddr) -> Option<MacAddr>;
}

/// All that the rules of one diversion are made of.
struct Maker<'a> {
    diversion: &'a Diversion,
    datapath_id: u64,
    gtp: PortNo,
    host: MacAddr,
    access: Access,
    station: End,
    from: End,
    to: End,
    rules: Vec<Placed>,
    rewrites_downlink: bool,
}

/// The rules of a diversion in all switches.
///
/// # Errors
/// Something is not known yet, such as a link-layer address.
pub fn of_diversion(
    diversion: &Diversion,
    config: &Config,
    switches: &[SwitchView],
    macs: &impl Macs,
) -> Result<Vec<Placed>, NoRule> {
    let missing = |text: String| NoRule::Missing(text);
    let station = config
        .base_station(&diversion.base_station)
        .ok_or_else(|| missing(format!("there is no base station `{}`", diversion.base_station)))?;
    let settings = config
        .switch(&station.switch)
        .ok_or_else(|| missing(format!("there is no switch `{}`", station.switch)))?;
    let view = switches
        .iter()
        .find(|view| view.datapath_id == settings.datapath_id && !view.ports.is_empty())
        .ok_or_else(|| missing(format!("the switch `{}` has not connected yet", settings.name)))?;
    let end = |name: &str, ip: IpAddr, mac: Option<MacAddr>| End {
        ip,
        mac: mac.or_else(|| macs.mac(settings.datapath_id, ip)),
        local: settings.local.get(name).copied().unwrap_or(ip),
    };
    let anchor = |name: &str| {
        let anchor = config.anchor(name).ok_or_else(|| missing(format!("there is no anchor `{name}`")))?;
        Ok::<_, NoRule>(end(name, anchor.address, anchor.mac))
    };
    let gtp = view.port(&settings.gtp_port).ok_or_else(|| {
        missing(format!(
            "the switch `{}` has no port `{}` (key `gtp_port`)",
            settings.name, settings.gtp_port
        ))
    })?;
    let local =
        view.local().ok_or_else(|| missing(format!("the switch `{}` has no LOCAL port", settings.name)))?;
    let mut maker = Maker {
        diversion,
        datapath_id: settings.datapath_id,
        gtp: gtp.port_no,
        host: local.hw_addr,
        access: station.access,
        station: end(&station.name, station.address, station.mac),
        from: anchor(&diversion.from)?,
        to: anchor(&diversion.to)?,
        rules: Vec::new(),
        rewrites_downlink: diversion.is_selective() || station.checks_peer,
    };
    match view.dialect {
        Dialect::Native => maker.native()?,
        Dialect::OpenVswitch => maker.open_vswitch()?,
    }
    maker.return_path(config)?;
    Ok(maker.rules)
}

/// The rules by which a switch gives the controller the answers to its probes.
///
/// # Errors
/// Never for an address that can be matched.
pub fn of_probe(address: IpAddr) -> Result<Vec<Rule>, NoRule> {
    let to_controller = || Instructions::apply([Action::output(PortNo::CONTROLLER)]);
    let rule = |fields: Vec<Oxm>| {
        let matching = Match::new(fields)?;
        Ok(Rule::new(Kind::Probe, CLASSIFICATION, classify::PROBE, matching, to_controller()))
    };
    let mut echo = to_ip(address);
    echo.extend([Oxm::ip_proto(UDP), Oxm::udp_src(GTPU_PORT)]);
    let rules = match address {
        IpAddr::V4(address) => vec![rule(vec![Oxm::eth_type(0x0806), Oxm::arp_tpa(address)])],
        IpAddr::V6(address) => {
            let icmp = |kind| vec![Oxm::eth_type(0x86dd), Oxm::ip_proto(58), Oxm::icmpv6_type(kind)];
            let mut asked = icmp(135);
            asked.push(Oxm::ipv6_nd_target(address));
            let mut told = icmp(136);
            told.push(Oxm::ipv6_dst(address));
            vec![rule(asked), rule(told)]
        }
    };
    rules.into_iter().chain([rule(echo)]).collect()
}

fn ethertype(address: IpAddr) -> Oxm {
    Oxm::eth_type(if address.is_ipv4() { 0x0800 } else { 0x86dd })
}

fn packet_type(address: IpAddr) -> Oxm {
    Oxm::packet_type(if address.is_ipv4() { PacketType::IPV4 } else { PacketType::IPV6 })
}

fn ip_src(address: IpAddr) -> Oxm {
    match address {
        IpAddr::V4(address) => Oxm::ipv4_src(address),
        IpAddr::V6(address) => Oxm::ipv6_src(address),
    }
}

fn ip_dst(address: IpAddr) -> Oxm {
    match address {
        IpAddr::V4(address) => Oxm::ipv4_dst(address),
        IpAddr::V6(address) => Oxm::ipv6_dst(address),
    }
}

fn to_ip(address: IpAddr) -> Vec<Oxm> {
    vec![ethertype(address), ip_dst(address)]
}

fn tun_src(address: IpAddr) -> Oxm {
    match address {
        IpAddr::V4(address) => Oxm::tun_ipv4_src(address),
        IpAddr::V6(address) => Oxm::tun_ipv6_src(address),
    }
}

fn tun_dst(address: IpAddr) -> Oxm {
    match address {
        IpAddr::V4(address) => Oxm::tun_ipv4_dst(address),
        IpAddr::V6(address) => Oxm::tun_ipv6_dst(address),
    }
}

/// The outer header of tunnelled packets.
fn tunnelled(source: Option<IpAddr>, destination: Option<IpAddr>) -> Vec<Oxm> {
    let any = source.or(destination);
    let mut fields: Vec<Oxm> = any.map(ethertype).into_iter().collect();
    fields.extend(source.map(ip_src));
    fields.extend(destination.map(ip_dst));
    fields.extend([Oxm::ip_proto(UDP), Oxm::udp_dst(GTPU_PORT)]);
    fields
}

/// The inner header of an application's or a pair's packets, as the user sends them.
fn inner_flow(ue: IpAddr, flow: Flow) -> Vec<Oxm> {
    let mut fields = vec![packet_type(ue), ip_src(ue), ip_dst(flow.server), Oxm::ip_proto(flow.protocol)];
    fields.extend(
        flow.port.map(|port| if flow.protocol == 6 { Oxm::tcp_dst(port) } else { Oxm::udp_dst(port) }),
    );
    fields
}

/// What a rule of table 1 is for.
struct Steered {
    priority: u16,
    /// Match beside tunnel addresses and flags.
    fields: Vec<Oxm>,
    /// Rewriting beside the tunnel's addresses.
    set: Vec<Oxm>,
}

impl Maker<'_> {
    fn put(
        &mut self,
        stage: Stage,
        kind: Kind,
        table: u8,
        priority: u16,
        fields: Vec<Oxm>,
        instructions: Instructions,
    ) -> Result<(), NoRule> {
        let rule = Rule::new(kind, table, priority, Match::new(fields)?, instructions);
        self.rules.push(Placed { datapath_id: self.datapath_id, stage, rule });
        Ok(())
    }

    fn classify(
        &mut self,
        stage: Stage,
        kind: Kind,
        priority: u16,
        fields: Vec<Oxm>,
        set: Vec<Oxm>,
        then: Then,
    ) -> Result<(), NoRule> {
        let mut actions = set.into_iter().map(Action::set).collect::<Result<Vec<_>, _>>()?;
        let instructions = match then {
            Then::Output(port) => {
                actions.push(Action::output(port));
                Instructions::apply(actions)
            }
            Then::Goto(table) if actions.is_empty() => Instructions::goto(table),
            Then::Goto(table) => Instructions { goto_table: Some(table), ..Instructions::apply(actions) },
        };
        self.put(stage, kind, CLASSIFICATION, priority, fields, instructions)
    }

    fn steer(
        &mut self,
        stage: Stage,
        kind: Kind,
        priority: u16,
        fields: Vec<Oxm>,
        set: Vec<Oxm>,
    ) -> Result<(), NoRule> {
        let mut actions = set.into_iter().map(Action::set).collect::<Result<Vec<_>, _>>()?;
        actions.push(Action::output(PortNo::IN_PORT));
        self.put(stage, kind, ENCAPSULATION.0, priority, fields, Instructions::apply(actions))
    }

    /// What the diversion steers, uplink.
    fn uplink(&self) -> Vec<Steered> {
        let Some(ue) = self.diversion.ue else {
            let fields = vec![Oxm::tun_gtpu_msgtype(G_PDU)];
            return vec![Steered { priority: steer::ANCHOR, fields, set: Vec::new() }];
        };
        let only = |priority, fields| Steered { priority, fields, set: Vec::new() };
        if let Some(flow) = self.diversion.application {
            return vec![only(steer::APPLICATION, inner_flow(ue, flow))];
        }
        if let Some(peer) = self.diversion.peer {
            let pair = |a, b| only(steer::PAIR, vec![packet_type(a), ip_src(a), ip_dst(b)]);
            return vec![pair(ue, peer), pair(peer, ue)];
        }
        if self.diversion.tunnels.is_empty() {
            return vec![only(steer::ADDRESS, vec![packet_type(ue), ip_src(ue)])];
        }
        let of_tunnel = |tunnel: &Tunnel| {
            let mut fields = vec![Oxm::tunnel_id(tunnel.uplink.into())];
            let mut set: Vec<Oxm> =
                tunnel.target_uplink.map(|teid| Oxm::tunnel_id(teid.into())).into_iter().collect();
            if let Some(address) = self.diversion.target_address {
                fields.extend([packet_type(ue), ip_src(ue)]);
                set.push(ip_src(address));
            }
            Steered { priority: steer::TUNNEL, fields, set }
        };
        self.diversion.tunnels.iter().map(of_tunnel).collect()
    }

    /// What it rewrites, downlink.
    fn downlink(&self) -> Vec<Steered> {
        let (Some(ue), true) = (self.diversion.ue, self.rewrites_downlink) else { return Vec::new() };
        let of_tunnel = |tunnel: &Tunnel| {
            let at_station = tunnel.downlink?;
            let mut fields = vec![Oxm::tunnel_id(tunnel.target_downlink.unwrap_or(at_station).into())];
            let mut set = Vec::new();
            if tunnel.target_downlink.is_some_and(|teid| teid != at_station) {
                set.push(Oxm::tunnel_id(at_station.into()));
            }
            if let Some(address) = self.diversion.target_address {
                fields.extend([packet_type(ue), ip_dst(address)]);
                set.push(ip_dst(ue));
            }
            Some(Steered { priority: steer::TUNNEL, fields, set })
        };
        self.diversion.tunnels.iter().filter_map(of_tunnel).collect()
    }

    fn native(&mut self) -> Result<(), NoRule> {
        let (station, from, to, gtp) = (self.station, self.from, self.to, self.gtp);
        let to_mac = to.mac.ok_or_else(|| NoRule::Missing(not_known(to.ip)))?;
        let local = |mut fields: Vec<Oxm>| {
            fields.push(Oxm::in_port(PortNo::LOCAL));
            fields
        };
        let (ground, entry) = (Stage::Ground, Stage::Entry);
        self.classify(
            ground,
            Kind::T0High,
            classify::HIGH,
            vec![Oxm::in_port(gtp)],
            vec![],
            Then::Goto(ENCAPSULATION),
        )?;
        let m1 = tunnelled(Some(station.ip), Some(from.ip));
        self.classify(entry, Kind::T0Decapsulate, classify::MEDIUM, m1, vec![], Then::Output(PortNo::LOCAL))?;
        let m2 = local(tunnelled(Some(station.ip), None));
        self.classify(
            ground,
            Kind::T0Encapsulated,
            classify::ENCAPSULATED,
            m2,
            vec![],
            Then::Goto(FORWARDING),
        )?;
        let m2 = local(tunnelled(Some(station.ip), Some(to.ip)));
        let set = vec![Oxm::eth_dst(to_mac)];
        self.classify(ground, Kind::T0Encapsulated, classify::TARGET, m2, set, Then::Goto(FORWARDING))?;
        self.steer(ground, Kind::T1Low, steer::LOW, vec![tun_dst(from.ip)], vec![tun_dst(from.ip)])?;
        for steered in self.uplink() {
            let mut fields = vec![tun_dst(from.ip)];
            if steered.priority == steer::ANCHOR {
                fields.push(tun_src(station.ip));
            }
            fields.extend(steered.fields);
            let mut set = vec![tun_dst(to.ip)];
            set.extend(steered.set);
            self.steer(Stage::User, Kind::T1High, steered.priority, fields, set)?;
        }
        let downlink = self.downlink();
        if downlink.is_empty() {
            return Ok(());
        }
        let m1 = tunnelled(Some(to.ip), Some(station.ip));
        self.classify(entry, Kind::T0Decapsulate, classify::MEDIUM, m1, vec![], Then::Output(PortNo::LOCAL))?;
        let m2 = local(tunnelled(None, Some(station.ip)));
        self.classify(
            ground,
            Kind::T0Encapsulated,
            classify::ENCAPSULATED,
            m2,
            vec![],
            Then::Goto(FORWARDING),
        )?;
        self.steer(ground, Kind::T1Low, steer::LOW, vec![tun_dst(station.ip)], vec![tun_dst(station.ip)])?;
        for steered in downlink {
            // Another anchor may use the same TEID of the base station.
            let mut fields = vec![tun_src(to.ip), tun_dst(station.ip)];
            fields.extend(steered.fields);
            let mut set = vec![tun_src(from.ip)];
            set.extend(steered.set);
            self.steer(ground, Kind::T1High, steered.priority, fields, set)?;
        }
        Ok(())
    }

    fn open_vswitch(&mut self) -> Result<(), NoRule> {
        let (station, from, to, gtp) = (self.station, self.from, self.to, self.gtp);
        for kind in [PacketType::ETHERNET, PacketType::IPV4, PacketType::IPV6] {
            let mut fields = vec![Oxm::in_port(gtp)];
            // Without a type a rule is for frames.
            fields.extend((kind != PacketType::ETHERNET).then(|| Oxm::packet_type(kind)));
            self.classify(
                Stage::Ground,
                Kind::T0High,
                classify::HIGH,
                fields,
                vec![],
                Then::Goto(ENCAPSULATION),
            )?;
        }
        self.ovs_way(station, from)?;
        self.ovs_source(station)?;
        for steered in self.uplink() {
            let stage = Stage::User;
            self.ovs_steer(stage, steered, (station, from), (station, to))?;
        }
        let downlink = self.downlink();
        if downlink.is_empty() {
            return Ok(());
        }
        self.ovs_way(to, station)?;
        self.ovs_source(to)?;
        self.ovs_source(from)?;
        for steered in downlink {
            self.ovs_steer(Stage::Ground, steered, (to, station), (from, station))?;
        }
        Ok(())
    }

    /// Open vSwitch: packets of a tunnel to its host and back, unchanged as far as it can (SW-T0-M1, SW-T1-L, path messages).
    fn ovs_way(&mut self, source: End, destination: End) -> Result<(), NoRule> {
        let m1 = tunnelled(Some(source.ip), Some(destination.ip));
        let set = vec![ip_dst(destination.local), Oxm::eth_dst(self.host)];
        self.classify(
            Stage::Entry,
            Kind::T0Decapsulate,
            classify::MEDIUM,
            m1,
            set,
            Then::Output(PortNo::LOCAL),
        )?;
        let between = [tun_src(source.ip), tun_dst(destination.local)];
        for first_octet in 0x30..=ALL_FLAGS {
            for kind in [PacketType::IPV4, PacketType::IPV6] {
                let mut fields = vec![Oxm::packet_type(kind), Oxm::tun_gtpu_flags(first_octet)];
                fields.extend(between);
                let set = vec![tun_src(source.local), tun_dst(destination.ip)];
                let more_bits_first = steer::LOW + u16::from(first_octet & 7);
                let priority = if first_octet == ALL_FLAGS { steer::ALL_FLAGS } else { more_bits_first };
                self.steer(Stage::Ground, Kind::T1Low, priority, fields, set)?;
            }
        }
        let mac = destination.mac.ok_or_else(|| NoRule::Missing(not_known(destination.ip)))?;
        let mut fields = tunnelled(None, None);
        fields.push(ethertype(destination.ip));
        fields.extend(between);
        let set = [ip_dst(destination.ip), Oxm::eth_dst(mac)].map(Action::set);
        let actions = set.into_iter().collect::<Result<Vec<_>, _>>()?;
        let instructions = Instructions { goto_table: Some(FORWARDING), ..Instructions::apply(actions) };
        self.put(Stage::Ground, Kind::T1Path, ENCAPSULATION.0, steer::PATH, fields, instructions)
    }

    /// Open vSwitch: what its host has encapsulated gets the source that the address stands for (SW-T0-M2).
    fn ovs_source(&mut self, end: End) -> Result<(), NoRule> {
        let mac = end.mac.ok_or_else(|| NoRule::Missing(not_known(end.ip)))?;
        let m2 = tunnelled(Some(end.local), None);
        let set = vec![ip_src(end.ip), Oxm::eth_src(mac)];
        self.classify(Stage::Ground, Kind::T0Encapsulated, classify::MEDIUM, m2, set, Then::Goto(FORWARDING))
    }

    /// Open vSwitch: rules for packets that came between `old` ends, which leave between `new` ones.
    fn ovs_steer(
        &mut self,
        stage: Stage,
        steered: Steered,
        old: (End, End),
        new: (End, End),
    ) -> Result<(), NoRule> {
        let everything = 0x30..=ALL_FLAGS;
        // Sequence numbers are lost either way, so packets with and without are the same.
        let first_octets: Vec<u8> = match (self.access, self.diversion.ue) {
            (_, None) => everything.collect(),
            (Access::FourG, _) => vec![0x30],
            (Access::FiveG, _) => vec![0x34],
        };
        let kinds: &[PacketType] = match (self.access, self.diversion.ue) {
            (_, None) => &[PacketType::IPV4, PacketType::IPV6],
            (Access::FourG, Some(IpAddr::V6(_))) => &[PacketType::IPV6],
            // What begins with an unused sequence number of 0 is taken for IPv4.
            _ => &[PacketType::IPV4],
        };
        for first_octet in first_octets {
            for kind in kinds {
                let mut fields = steered.fields.clone();
                if !fields.iter().any(|oxm| oxm.field() == openflow::Field::PacketType) {
                    fields.push(Oxm::packet_type(*kind));
                }
                fields.extend([Oxm::tun_gtpu_flags(first_octet), tun_src(old.0.ip), tun_dst(old.1.local)]);
                let mut set = vec![tun_src(new.0.local), tun_dst(new.1.ip)];
                set.extend(&steered.set);
                let priority = steered.priority + u16::from(first_octet & 7);
                self.steer(stage, Kind::T1High, priority, fields, set)?;
            }
        }
        Ok(())
    }

    /// The switch on SGi or N6: the user's packets go to the new anchor, with the address that it gave (DIV-6).
    fn return_path(&mut self, config: &Config) -> Result<(), NoRule> {
        let side = |name: &str| config.anchor(name).and_then(|anchor| anchor.sgi.as_ref());
        let (Some(from), Some(to)) = (side(&self.diversion.from), side(&self.diversion.to)) else {
            return Ok(());
        };
        let Some(switch) = config.switch(&to.switch) else { return Ok(()) };
        self.datapath_id = switch.datapath_id;
        let (stage, medium, on) = (Stage::Return, classify::MEDIUM, Then::Goto(FORWARDING));
        let towards = vec![Oxm::eth_dst(to.mac)];
        let Some(ue) = self.diversion.ue else {
            return self.classify(
                stage,
                Kind::SgiDown,
                medium - 1,
                vec![Oxm::eth_dst(from.mac)],
                towards,
                on,
            );
        };
        let mut down = to_ip(ue);
        match (self.diversion.application, self.diversion.peer) {
            (Some(flow), _) => {
                down.extend([ip_src(flow.server), Oxm::ip_proto(flow.protocol)]);
                down.extend(
                    flow.port
                        .map(|port| if flow.protocol == 6 { Oxm::tcp_src(port) } else { Oxm::udp_src(port) }),
                );
                return self.classify(stage, Kind::SgiDown, medium + 2, down, towards, on);
            }
            (None, Some(peer)) => {
                down.push(ip_src(peer));
                return self.classify(stage, Kind::SgiDown, medium + 1, down, towards, on);
            }
            (None, None) => {}
        }
        let mut set = towards;
        if let Some(address) = self.diversion.target_address {
            set.push(ip_dst(address));
            let mut up = vec![ethertype(address), ip_src(address)];
            up.push(Oxm::eth_src(to.mac));
            self.classify(stage, Kind::SgiUp, medium, up, vec![ip_src(ue)], on)?;
        }
        self.classify(stage, Kind::SgiDown, medium, down, set, on)?;
        let question = match ue {
            IpAddr::V4(ue) => vec![Oxm::eth_type(0x0806), Oxm::arp_op(1), Oxm::arp_tpa(ue)],
            IpAddr::V6(ue) => {
                vec![Oxm::eth_type(0x86dd), Oxm::ip_proto(58), Oxm::icmpv6_type(135), Oxm::ipv6_nd_target(ue)]
            }
        };
        self.classify(stage, Kind::SgiNeighbour, medium, question, vec![], Then::Output(PortNo::CONTROLLER))
    }
}

/// What follows the rewriting.
#[derive(Clone, Copy)]
enum Then {
    Output(PortNo),
    Goto(TableId),
}

fn not_known(address: IpAddr) -> String {
    format!("the link-layer address of {address} is not known yet: it has not answered (or give `mac`)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::example;
    use openflow::{Port, PortConfig, PortState, Text};
    use serde_json::{Value, json};

    struct Known;

    impl Macs for Known {
        fn mac(&self, _: u64, address: IpAddr) -> Option<MacAddr> {
            let last = match address {
                IpAddr::V4(address) => address.octets()[3],
                IpAddr::V6(address) => address.octets()[15],
            };
            Some(MacAddr([2, 0, 0, 0, 0, last]))
        }
    }

    fn view(datapath_id: u64, dialect: Dialect) -> SwitchView {
        let port = |port_no, name| Port {
            port_no,
            hw_addr: MacAddr([2, 0, 0, 0, 1, 1]),
            name: Text::new(name),
            config: PortConfig::default(),
            state: PortState::LIVE,
            current: 0,
            advertised: 0,
            supported: 0,
            peer: 0,
            current_speed_kbps: 0,
            max_speed_kbps: 0,
        };
        let ports = vec![port(PortNo(9), "gtp"), port(PortNo::LOCAL, "local")];
        let name = format!("switch{datapath_id}");
        SwitchView { datapath_id, name, connected: true, dialect, software: String::new(), ports }
    }

    fn made(config: &Config, dialect: Dialect, more: Value) -> Vec<Placed> {
        let mut all = json!({"ue": "10.45.0.2", "from": "gw1", "to": "gw2", "base_station": "enb1", "confirmed_by": "test"});
        for (key, value) in more.as_object().unwrap() {
            all[key] = value.clone();
        }
        let diversion: Diversion = serde_json::from_value(all).unwrap();
        diversion.check(config).unwrap();
        diversion.check_switch(config, dialect).unwrap();
        of_diversion(&diversion, config, &[view(1, dialect), view(3, Dialect::Native)], &Known).unwrap()
    }

    fn of(placed: &[Placed], kind: Kind) -> Vec<&Rule> {
        placed.iter().map(|placed| &placed.rule).filter(|rule| rule.kind == kind).collect()
    }

    /// DIV-2, SW-5: how many rules each thing is, in both dialects; SW-6: never table 2.
    #[test]
    fn each_diversion_has_its_rules() {
        let config = example();
        let tunnel = json!([{"uplink": 7}]);
        let selective = json!([{"uplink": 7, "downlink": 8, "target_uplink": 9}]);
        let flow = json!({"protocol": 17, "server": "9.9.9.9", "port": 53});
        for (more, native, open_vswitch) in [
            (json!({}), 1, 1),
            (json!({"tunnels": tunnel}), 1, 1),
            (json!({"application": flow}), 1, 1),
            (json!({"peer": "10.45.0.3"}), 2, 2),
            (json!({"ue": null}), 1, 16),
            (json!({"tunnels": selective, "target_address": "10.46.0.2"}), 2, 2),
        ] {
            for (dialect, expected) in [(Dialect::Native, native), (Dialect::OpenVswitch, open_vswitch)] {
                let placed = made(&config, dialect, more.clone());
                assert_eq!(of(&placed, Kind::T1High).len(), expected, "{dialect:?} {more}");
                assert!(placed.iter().all(|placed| placed.rule.key.table < FORWARDING), "SW-6");
                assert!(of(&placed, Kind::SgiDown).len() == 1, "DIV-6");
                let flags = |rule: &&Rule| rule.key.matching.tun_gtpu_flags().is_some();
                let table_1 =
                    placed.iter().map(|placed| &placed.rule).filter(|rule| rule.key.table == ENCAPSULATION);
                let tunnels = table_1.filter(|rule| rule.kind != Kind::T1Path);
                assert!(
                    dialect == Dialect::Native || tunnels.clone().all(|rule| flags(&rule)),
                    "every rule of table 1"
                );
            }
        }
    }

    /// What leads to a table is there before what enters it, and the user comes last.
    #[test]
    fn stages_are_from_the_ground_up() {
        let selective = json!([{"uplink": 7, "downlink": 8}]);
        let placed =
            made(&example(), Dialect::Native, json!({"tunnels": selective, "target_address": "10.46.0.2"}));
        let stage = |kind: Kind| {
            let stages = placed.iter().filter(|placed| placed.rule.kind == kind).map(|placed| placed.stage);
            (stages.clone().min().unwrap(), stages.max().unwrap())
        };
        assert!(stage(Kind::T0High).1 < stage(Kind::T0Decapsulate).0);
        assert!(stage(Kind::T1Low).1 < stage(Kind::T0Decapsulate).0);
        assert!(stage(Kind::T0Decapsulate).1 < stage(Kind::SgiDown).0);
        assert!(stage(Kind::SgiUp).1 < stage(Kind::T1High).1);
        // Downlink is rewritten before anything comes from there.
        assert_eq!(stage(Kind::T1High).0, Stage::Ground);
    }

    /// SW-12: IPv6 outside and inside.
    #[test]
    fn ipv6_is_as_good() {
        let mut config = example();
        for (at, last) in [(0, 0x11_u16), (1, 0x12)] {
            config.anchors[at].address = [0xfd00, 0, 0, 0, 0, 0, 0, last].into();
        }
        config.base_stations[0].address = [0xfd00, 0, 0, 0, 0, 0, 0, 1].into();
        let tunnels = json!([{"uplink": 7, "downlink": 8}]);
        let more = json!({"ue": "fd00:45::2", "tunnels": tunnels, "target_address": "fd00:46::2"});
        let placed = made(&config, Dialect::Native, more);
        let users = of(&placed, Kind::T1High);
        assert_eq!(users[0].key.matching.tun_ipv6_dst(), Some([0xfd00, 0, 0, 0, 0, 0, 0, 0x11].into()));
        assert!(of(&placed, Kind::SgiNeighbour)[0].key.matching.ipv6_nd_target().is_some());
        assert_eq!(of_probe("fd00::250".parse().unwrap()).unwrap().len(), 3);
        assert_eq!(of_probe("10.0.0.250".parse().unwrap()).unwrap().len(), 2);
    }
}
