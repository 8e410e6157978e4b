//! What a diversion becomes in switches: the rules of Table I, in both dialects.
//!
//! The base station's switch is native (`native.rs`) or Open vSwitch (`open_vswitch.rs`); the one on SGi or N6 has the same rules in
//! both dialects (`sgi.rs`). `order.rs` has what a move in order needs beside them, `fields.rs` what matches are made of.
//!
//! Stages say in which order rules become effective when several switches change: installed in this order, removed in the other.

use std::net::IpAddr;

use openflow::{Action, Code, Instructions, MacAddr, Match, Oxm, PortNo, TableId};

mod fields;
pub(super) mod native;
mod open_vswitch;
pub(super) mod order;
pub(super) mod sgi;

use self::fields::{from_user, inner_flow, ip_dst, ip_src, packet_type, to_ip, to_user};
use super::model::{Address, Diversion, Tunnel};
use crate::config::{Access, Config};
use crate::rule::{Kind, Rule};
use crate::switch::{Dialect, SwitchView};

/// Priorities of table 0, from the highest.
mod classify {
    /// Above all others: what is in tunnels is compared with no other rule, so that a user's packets are treated alike for caches
    /// and fast paths, whatever is in them.
    pub const HIGH: u16 = 500;
    pub const PROBE: u16 = 400;
    pub const TOKEN: u16 = 310;
    pub const HOLD: u16 = 300;
    pub const ASKER: u16 = 230;
    pub const TARGET: u16 = 220;
    pub const ENCAPSULATED: u16 = 210;
    pub const MEDIUM: u16 = 200;
}

/// Priorities of table 1, from the highest: the narrower one first.
mod steer {
    pub const ALL_FLAGS: u16 = 300;
    pub const TOKEN: u16 = 290;
    pub const HOLD: u16 = 280;
    pub const APPLICATION: u16 = 250;
    pub const PAIR: u16 = 240;
    pub const TUNNEL: u16 = 200;
    pub const ADDRESS: u16 = 190;
    pub const ANCHOR: u16 = 150;
    pub const LOW: u16 = 100;
    pub const PATH: u16 = 90;
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
    /// Whether a base station at the switch, to which the user may hand over, drops what other anchors send.
    checks_peer: bool,
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
    let mut here = config.base_stations.iter().filter(|other| other.switch == station.switch);
    let checks_peer = here.any(|other| other.checks_peer);
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
        rewrites_downlink: diversion.is_selective() || checks_peer,
        checks_peer,
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

/// What a rule of table 1 is for.
#[derive(Clone)]
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
            let pair = |a, b| only(steer::PAIR, vec![packet_type(a), from_user(a), to_user(b)]);
            return vec![pair(ue, peer), pair(peer, ue)];
        }
        if self.diversion.tunnels.is_empty() {
            let of_address = |Address { ue, .. }| only(steer::ADDRESS, vec![packet_type(ue), from_user(ue)]);
            return self.diversion.addresses().map(of_address).collect();
        }
        self.diversion.tunnels.iter().flat_map(|tunnel| self.uplink_of(tunnel)).collect()
    }

    /// What a tunnel has uplink: one rule, or one for each address of the user if one is replaced.
    fn uplink_of(&self, tunnel: &Tunnel) -> Vec<Steered> {
        let of_tunnel = |more: Vec<Oxm>, source: Option<Oxm>| {
            let fields = [vec![Oxm::tunnel_id(tunnel.uplink.into())], more].concat();
            let teid = tunnel.target_uplink.map(|teid| Oxm::tunnel_id(teid.into()));
            Steered { priority: steer::TUNNEL, fields, set: teid.into_iter().chain(source).collect() }
        };
        if !self.diversion.is_translated() {
            return vec![of_tunnel(Vec::new(), None)];
        }
        let of_address = |Address { ue, target_address }| match target_address {
            Some(address) => of_tunnel(vec![packet_type(ue), ip_src(ue)], Some(ip_src(address))),
            None => of_tunnel(vec![packet_type(ue)], None),
        };
        self.diversion.addresses().map(of_address).collect()
    }

    /// What it rewrites downlink by the tunnels that the request names.
    fn downlink_by_tunnel(&self) -> Vec<Steered> {
        if self.diversion.ue.is_none() || !self.rewrites_downlink {
            return Vec::new();
        }
        let mut all = Vec::new();
        for tunnel in &self.diversion.tunnels {
            let Some(at_station) = tunnel.downlink else { continue };
            let at_target = tunnel.target_downlink.unwrap_or(at_station);
            let fields = vec![Oxm::tunnel_id(at_target.into())];
            let teid = (at_target != at_station).then(|| Oxm::tunnel_id(at_station.into()));
            let set: Vec<Oxm> = teid.into_iter().collect();
            let priority = steer::TUNNEL;
            if !self.diversion.is_translated() {
                all.push(Steered { priority, fields, set });
            } else if teid.is_some() {
                all.extend(self.diversion.addresses().map(|address| {
                    let (at_target, at_user) = downlink_of(address);
                    let fields = [&fields[..], &at_target].concat();
                    Steered { priority, fields, set: [&set[..], &at_user].concat() }
                }));
            }
        }
        all
    }

    /// What it rewrites downlink by the user's addresses, whichever base station and bearer a packet is for: the new anchor sends to
    /// another one as soon as it is told of a handover, and the controller hears of that too late to change rules.
    fn downlink_by_address(&self) -> Vec<Steered> {
        if !(self.diversion.is_translated() || self.checks_peer) {
            return Vec::new();
        }
        let of_address = |address| {
            let (fields, set) = downlink_of(address);
            Steered { priority: steer::ADDRESS, fields, set }
        };
        self.diversion.addresses().map(of_address).collect()
    }
}

/// An address downlink: what of packets from the new anchor matches, and what is written.
fn downlink_of(Address { ue, target_address }: Address) -> (Vec<Oxm>, Vec<Oxm>) {
    match target_address {
        Some(address) => (vec![packet_type(ue), ip_dst(address)], vec![ip_dst(ue)]),
        None => (vec![packet_type(ue), to_user(ue)], Vec::new()),
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
        for (more, native, open_vswitch, down) in [
            (json!({}), 1, 1, 1),
            // By tunnel, whatever Open vSwitch takes the packets for.
            (json!({"tunnels": tunnel}), 1, 3, 1),
            (json!({"application": flow}), 1, 1, 1),
            (json!({"peer": "10.45.0.3"}), 2, 2, 2),
            (json!({"ue": null}), 1, 24, 0),
            (json!({"tunnels": selective}), 2, 6, 1),
        ] {
            for (dialect, expected) in [(Dialect::Native, native), (Dialect::OpenVswitch, open_vswitch)] {
                let placed = made(&config, dialect, more.clone());
                assert_eq!(of(&placed, Kind::T1High).len(), expected, "{dialect:?} {more}");
                assert!(placed.iter().all(|placed| placed.rule.key.table < FORWARDING), "SW-6");
                assert_eq!(of(&placed, Kind::SgiDown).len(), down, "DIV-6 {more}");
                let flags = |rule: &&Rule| rule.key.matching.tun_gtpu_flags().is_some();
                let table_1 =
                    placed.iter().map(|placed| &placed.rule).filter(|rule| rule.key.table == ENCAPSULATION);
                let tunnels = table_1.filter(|rule| ![Kind::T1Path, Kind::SgiAnswer].contains(&rule.kind));
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
    /// A user chooses 64 bits of its IPv6 addresses, at the access and on N6; only an address that is rewritten is a single one.
    #[test]
    fn an_ipv6_user_is_its_prefix() {
        let prefix = "2001:db8:0:7::".parse().unwrap();
        let masked = |oxm: Oxm| Some(oxm.prefix(64).unwrap());
        let (ue, flow) = ("2001:db8:0:7::99", json!({"protocol": 17, "server": "2001:db8::53", "port": 53}));
        for more in [json!({}), json!({"application": flow}), json!({"peer": "2001:db8:0:8::1"})] {
            let mut more = more;
            more["ue"] = json!(ue);
            let placed = made(&example(), Dialect::Native, more.clone());
            let up = &of(&placed, Kind::T1High)[0].key.matching;
            assert_eq!(up.get(openflow::Field::Ipv6Src), masked(Oxm::ipv6_src(prefix)), "{more}");
            let down = &of(&placed, Kind::SgiDown)[0].key.matching;
            assert_eq!(down.get(openflow::Field::Ipv6Dst), masked(Oxm::ipv6_dst(prefix)), "{more}");
        }
        let tunnels = json!([{"uplink": 7, "downlink": 8}]);
        let more = json!({"ue": ue, "tunnels": tunnels, "target_address": "2001:db8:1::1"});
        let placed = made(&example(), Dialect::Native, more);
        assert_eq!(of(&placed, Kind::SgiDown)[0].key.matching.ipv6_dst(), Some(ue.parse().unwrap()));
    }

    /// What the new anchor sends to another base station or in another bearer has the user's address back too.
    #[test]
    fn downlink_needs_no_base_station_where_the_address_is_another_one() {
        use openflow::Field::{TunIpv4Dst, TunIpv4Src, TunnelId};
        let tunnels = json!([{"uplink": 7, "downlink": 8}, {"uplink": 9, "downlink": 10}]);
        let more = json!({"tunnels": tunnels, "target_address": "10.46.0.2"});
        let placed = made(&example(), Dialect::Native, more);
        let users = of(&placed, Kind::T1High);
        let down: Vec<_> = users.iter().filter(|rule| rule.key.matching.get(TunIpv4Src).is_some()).collect();
        assert_eq!((users.len(), down.len()), (3, 1), "uplink by tunnel, downlink by address");
        let matching = &down[0].key.matching;
        assert_eq!(matching.ipv4_dst(), Some([10, 46, 0, 2].into()));
        assert_eq!((matching.get(TunIpv4Dst), matching.get(TunnelId)), (None, None));
        // The same for who checks its peer, wherever the user is.
        let mut config = example();
        let mut other = config.base_stations[0].clone();
        (other.name, other.address, other.checks_peer) = ("enb9".into(), [10, 0, 0, 9].into(), true);
        config.base_stations.push(other);
        let placed = made(&config, Dialect::Native, json!({}));
        let down = of(&placed, Kind::T1High)[1];
        assert_eq!(down.key.matching.ipv4_dst(), Some([10, 45, 0, 2].into()));
    }

    /// Both addresses are steered both ways, and only the one that is another one at the new anchor is written.
    #[test]
    fn a_user_with_both_ip_versions_has_rules_for_each() {
        let second = json!({"ue": "2001:db8:0:7::"});
        let tunnels = json!([{"uplink": 7, "downlink": 8}]);
        let plain = json!({"tunnels": tunnels, "second": second});
        let placed = made(&example(), Dialect::Native, plain.clone());
        assert_eq!(of(&placed, Kind::T1High).len(), 1, "a tunnel is steered whatever is in it");
        assert_eq!([Kind::SgiDown, Kind::SgiNeighbour].map(|kind| of(&placed, kind).len()), [2, 2]);
        assert_eq!(of(&made(&example(), Dialect::OpenVswitch, plain), Kind::T1High).len(), 3);

        let more = json!({"tunnels": tunnels, "second": second, "target_address": "10.46.0.2"});
        let placed = made(&example(), Dialect::Native, more);
        let inside = |rule: &&Rule| {
            let sets = rule.instructions.apply_actions.as_deref().unwrap().iter();
            let writes_inside = sets.clone().any(|action| match action {
                Action::SetField(set) => {
                    [openflow::Field::Ipv4Src, openflow::Field::Ipv4Dst].contains(&set.oxm().field())
                }
                _ => false,
            });
            (rule.key.matching.get(openflow::Field::PacketType).unwrap().value() as u16, writes_inside)
        };
        let mut users: Vec<_> = of(&placed, Kind::T1High).iter().map(inside).collect();
        users.sort_unstable();
        assert_eq!(users, [(0x0800, true), (0x0800, true), (0x86dd, false), (0x86dd, false)]);
        let kinds = [Kind::SgiDown, Kind::SgiUp, Kind::SgiNeighbour];
        assert_eq!(kinds.map(|kind| of(&placed, kind).len()), [2, 1, 2]);
        // Without tunnels: by each address.
        assert_eq!(of(&made(&example(), Dialect::Native, json!({"second": second})), Kind::T1High).len(), 2);
    }

    /// Both ways between a pair go to the new anchor, but not what another anchor has of the peer.
    #[test]
    fn a_pair_has_both_ways_on_sgi() {
        let placed = made(&example(), Dialect::Native, json!({"peer": "10.45.0.3"}));
        let ways: Vec<_> = of(&placed, Kind::SgiDown)
            .iter()
            .map(|rule| {
                let matching = &rule.key.matching;
                (matching.ipv4_src().unwrap(), matching.ipv4_dst().unwrap(), matching.eth_dst())
            })
            .collect();
        let (user, peer) = ([10, 45, 0, 2].into(), [10, 45, 0, 3].into());
        let old = Some(MacAddr([2, 0, 0, 0, 1, 0x11]));
        assert_eq!(ways, [(peer, user, None), (user, peer, old)]);
    }

    /// What is of the asker is in the action set, what is of the user is applied: together they turn the question round.
    #[test]
    fn questions_are_answered_by_two_rules() {
        let asker = crate::frame::Station { mac: MacAddr([2, 0, 0, 0, 9, 9]), ip: [10, 45, 0, 254].into() };
        let rules = sgi::of_askers([&asker]).unwrap();
        let [of_asker, pass] = &rules[..] else { panic!() };
        assert_eq!(sgi::asker(&of_asker.key.matching), Some(asker));
        let placed = made(&example(), Dialect::Native, json!({}));
        let answer = of(&placed, Kind::SgiAnswer)[0].instructions.apply_actions.clone().unwrap();
        let all: Vec<_> = answer
            .iter()
            .chain(of_asker.instructions.write_actions.as_deref().unwrap())
            .filter_map(|action| match action {
                Action::SetField(set) => Some(set.oxm().field()),
                _ => None,
            })
            .collect();
        use openflow::Field::*;
        assert_eq!(all, [EthSrc, ArpOp, ArpSha, ArpSpa, EthDst, ArpTha, ArpTpa], "every field of an answer");
        assert!(pass.instructions.clear_actions && pass.instructions.goto_table == Some(FORWARDING));
    }
}
