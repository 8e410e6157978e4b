//! The rules of a switch like ours.
//!
//! Its GTP port takes nothing off, it shows what is inside. So a rule sees the original outer destination as `tun_dst`, and changes it:
//! base station → SW-T0-M1 → LOCAL → GTP port → SW-T0-H → table 1 → GTP port → LOCAL → SW-T0-M2 → table 2.

use std::net::IpAddr;

use openflow::{Action, Code, Instructions, Match, Oxm, PortNo};

use super::fields::{tun_dst, tun_src, tunnelled};
use super::{ENCAPSULATION, FORWARDING, Maker, NoRule, Placed, Stage, Then, classify, not_known, steer};
use crate::config::{Config, Place};
use crate::rule::{Kind, Rule};
use crate::switch::{Dialect, SwitchView};

impl Maker<'_> {
    pub(super) fn native(&mut self) -> Result<(), NoRule> {
        let (station, from, to) = (self.station, self.from, self.to);
        let to_mac = to.mac.ok_or_else(|| NoRule::Missing(not_known(to.ip)))?;
        let (kind, at_gtp) = (Kind::T0High, vec![Oxm::in_port(self.gtp)]);
        self.classify(Stage::Ground, kind, classify::HIGH, at_gtp, vec![], Then::Goto(ENCAPSULATION))?;

        self.native_way(
            tunnelled(Some(station.ip), Some(from.ip)),
            tunnelled(Some(station.ip), None),
            from.ip,
        )?;
        // From whichever base station the user sends.
        let m2 = by_local(tunnelled(None, Some(to.ip)));
        let (kind, set) = (Kind::T0Encapsulated, vec![Oxm::eth_dst(to_mac)]);
        self.classify(Stage::Ground, kind, classify::TARGET, m2, set, Then::Goto(FORWARDING))?;
        for steered in self.uplink() {
            let mut fields = vec![tun_dst(from.ip)];
            if steered.priority == steer::ANCHOR {
                fields.push(tun_src(station.ip));
            }
            fields.extend(steered.fields);
            let set = [vec![tun_dst(to.ip)], steered.set].concat();
            self.steer(Stage::User, Kind::T1High, steered.priority, fields, set)?;
        }

        let downlink = [self.downlink_by_tunnel(), self.downlink_by_address()].concat();
        if downlink.is_empty() {
            return Ok(());
        }
        self.native_way(
            tunnelled(Some(to.ip), Some(station.ip)),
            tunnelled(None, Some(station.ip)),
            station.ip,
        )?;
        for steered in downlink {
            // Another anchor may use the same TEID of the base station, or the same address.
            let mut fields = vec![tun_src(to.ip)];
            fields.extend((steered.priority == steer::TUNNEL).then(|| tun_dst(station.ip)));
            fields.extend(steered.fields);
            let set = [vec![tun_src(from.ip)], steered.set].concat();
            self.steer(Stage::Ground, Kind::T1High, steered.priority, fields, set)?;
        }
        Ok(())
    }

    /// Packets to `destination` through the GTP port and on, unchanged (SW-T0-M1, SW-T0-M2, SW-T1-L).
    fn native_way(&mut self, m1: Vec<Oxm>, m2: Vec<Oxm>, destination: IpAddr) -> Result<(), NoRule> {
        let (entry, kind) = (Stage::Entry, Kind::T0Decapsulate);
        self.classify(entry, kind, classify::MEDIUM, m1, vec![], Then::Output(PortNo::LOCAL))?;
        let (ground, kind, m2) = (Stage::Ground, Kind::T0Encapsulated, by_local(m2));
        self.classify(ground, kind, classify::ENCAPSULATED, m2, vec![], Then::Goto(FORWARDING))?;
        let same = vec![tun_dst(destination)];
        self.steer(ground, Kind::T1Low, steer::LOW, same.clone(), same)
    }
}

/// The ways of all tunnels through the GTP port and on, unchanged, whether somebody is diverted or not: who hands over to another base station
/// of the switch is steered there from the first packet on, and a rule for a tunnel concerns that tunnel alone, so that tunnels stay in XDP.
///
/// # Errors
/// Never for the addresses of a configuration.
pub(in crate::diverting) fn ways(config: &Config, switches: &[SwitchView]) -> Result<Vec<Placed>, Code> {
    let mut all = Vec::new();
    for settings in config.switches.iter().filter(|switch| switch.place == Place::Access) {
        let view = switches.iter().find(|view| view.datapath_id == settings.datapath_id);
        let Some(view) = view.filter(|view| view.dialect == Dialect::Native) else { continue };
        let Some(gtp) = view.port(&settings.gtp_port) else { continue };
        let mut put = |stage, kind, table, priority, fields, instructions| {
            let rule = Rule::new(kind, table, priority, Match::new(fields)?, instructions);
            all.push(Placed { datapath_id: view.datapath_id, stage, rule });
            Ok::<_, Code>(())
        };
        let (ground, entry, to_forwarding) = (Stage::Ground, Stage::Entry, Instructions::goto(FORWARDING));
        let to_tunnels = Instructions::goto(ENCAPSULATION);
        put(ground, Kind::T0High, 0, classify::HIGH, vec![Oxm::in_port(gtp.port_no)], to_tunnels)?;
        let stations = config.base_stations.iter().filter(|station| station.switch == settings.name);
        let stations: Vec<IpAddr> = stations.map(|station| station.address).collect();
        let anchors: Vec<IpAddr> = config.anchors.iter().map(|anchor| anchor.address).collect();
        for end in stations.iter().chain(&anchors) {
            let same = [Action::set(tun_dst(*end))?, Action::output(PortNo::IN_PORT)];
            let fields = vec![tun_dst(*end)];
            put(ground, Kind::T1Low, ENCAPSULATION.0, steer::LOW, fields, Instructions::apply(same))?;
        }
        for station in &stations {
            for ends in [(Some(*station), None), (None, Some(*station))] {
                let (kind, m2) = (Kind::T0Encapsulated, by_local(tunnelled(ends.0, ends.1)));
                put(ground, kind, 0, classify::ENCAPSULATED, m2, to_forwarding.clone())?;
            }
            for anchor in anchors.iter().filter(|anchor| anchor.is_ipv4() == station.is_ipv4()) {
                for (from, to) in [(anchor, station), (station, anchor)] {
                    let m1 = tunnelled(Some(*from), Some(*to));
                    let to_local = Instructions::apply([Action::output(PortNo::LOCAL)]);
                    put(entry, Kind::T0Decapsulate, 0, classify::MEDIUM, m1, to_local)?;
                }
            }
        }
    }
    Ok(all)
}

fn by_local(mut fields: Vec<Oxm>) -> Vec<Oxm> {
    fields.push(Oxm::in_port(PortNo::LOCAL));
    fields
}
