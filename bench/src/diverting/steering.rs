//! The entries of the switches: forwarding alone, and with users diverted as the controller diverts them (Table I).

use std::net::{IpAddr, Ipv4Addr};

use controller::Config;
use controller::diverting::model::{Diversion, Tunnel};
use controller::diverting::rules::{self, Macs};
use controller::switch::{Dialect, SwitchView};
use openflow::{Action, FlowMod, Instructions, MacAddr, Match, Oxm, Port, PortNo, TableId};
use packet::ethernet::Mac;
use serde_json::json;

use super::frames::{FIRST_TEID, GW1, GW2, STATION};

/// The switch's port behind which are the insides of tunnels.
pub(super) const GTP: u32 = 100;
/// Addresses of Open vSwitch that stand for an end.
pub(super) const LOCAL: [(&str, Ipv4Addr); 3] = [
    ("gw1", Ipv4Addr::new(10, 0, 0, 101)),
    ("gw2", Ipv4Addr::new(10, 0, 0, 102)),
    ("enb", Ipv4Addr::new(10, 0, 0, 111)),
];
const DATAPATH: u64 = 1;

/// What is known of the ends and of the switch.
pub(super) struct Ground {
    pub(super) dialect: Dialect,
    /// As the switch describes them.
    pub(super) ports: Vec<Port>,
    /// Base station, first and second anchor: link-layer address, and the switch's port.
    pub(super) ends: [(Mac, u32); 3],
}

impl Macs for Ground {
    fn mac(&self, _: u64, address: IpAddr) -> Option<MacAddr> {
        let at = [STATION, GW1, GW2].into_iter().position(|end| IpAddr::V4(end) == address)?;
        Some(MacAddr(self.ends[at].0))
    }
}

impl Ground {
    /// Everything that is in the switch with so many users diverted; none: with forwarding alone. Begins with an empty switch.
    ///
    /// # Errors
    /// Something that the rules need is missing.
    pub(super) fn entries(&self, users: u32) -> anyhow::Result<Vec<FlowMod>> {
        let mut all = vec![FlowMod::delete(TableId::ALL, Match::default())];
        all.push(FlowMod::add(TableId(0), 0, Match::default(), Instructions::goto(TableId(2))));
        let [station, first, second] = self.ends;
        for (from, to) in [(station, first), (station, second), (first, station), (second, station)] {
            let pair = Match::new([Oxm::eth_src(MacAddr(from.0)), Oxm::eth_dst(MacAddr(to.0))])?;
            let output = Instructions::apply([Action::output(PortNo(to.1))]);
            all.push(FlowMod::add(TableId(2), 100, pair, output));
        }
        all.extend(self.diverted(users)?);
        Ok(all)
    }

    /// The controller's rules for these users.
    fn diverted(&self, users: u32) -> anyhow::Result<Vec<FlowMod>> {
        let local: serde_json::Map<_, _> =
            LOCAL.iter().map(|(name, address)| ((*name).to_owned(), json!(address))).collect();
        let local = if self.dialect == Dialect::OpenVswitch { local } else { serde_json::Map::new() };
        let config: Config = serde_json::from_value(json!({
            "switches": [{"name": "edge", "datapath_id": DATAPATH, "place": "access", "local": local}],
            "anchors": [{"name": "gw1", "address": GW1}, {"name": "gw2", "address": GW2}],
            "base_stations": [{"name": "enb", "address": STATION, "switch": "edge", "access": "4g"}],
        }))?;
        let views = [SwitchView {
            datapath_id: DATAPATH,
            name: "edge".to_owned(),
            connected: true,
            dialect: self.dialect,
            software: String::new(),
            ports: self.ports.clone(),
        }];
        let mut placed = Vec::new();
        for user in 0..users {
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 45, 0, 2).to_bits() + user);
            let uplink = FIRST_TEID + user;
            let diversion = Diversion {
                ue: Some(address.into()),
                tunnels: vec![Tunnel {
                    uplink,
                    downlink: Some(uplink),
                    target_uplink: None,
                    target_downlink: None,
                    filter: None,
                    qfi: None,
                }],
                application: None,
                peer: None,
                from: "gw1".to_owned(),
                to: "gw2".to_owned(),
                base_station: "enb".to_owned(),
                target_address: None,
                second: None,
                confirmed_by: "bench".to_owned(),
            };
            placed.extend(rules::of_diversion(&diversion, &config, &views, self)?);
        }
        placed.sort_by_key(|placed| placed.stage);
        let add = |rule: controller::rule::Rule| {
            FlowMod::add(rule.key.table, rule.key.priority, rule.key.matching, rule.instructions)
        };
        let mut seen = std::collections::HashSet::new();
        // Many rules are those of all users of these anchors.
        let rules = placed.into_iter().map(|placed| placed.rule);
        Ok(rules.filter(|rule| seen.insert(rule.key.clone())).map(add).collect())
    }
}
