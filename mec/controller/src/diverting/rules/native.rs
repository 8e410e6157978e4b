//! The rules of a switch like ours.
//!
//! Its GTP port takes nothing off, it shows what is inside. So a rule sees the original outer destination as `tun_dst`, and changes it:
//! base station → SW-T0-M1 → LOCAL → GTP port → SW-T0-H → table 1 → GTP port → LOCAL → SW-T0-M2 → table 2.

use openflow::{Oxm, PortNo};

use super::fields::{tun_dst, tun_src, tunnelled};
use super::{ENCAPSULATION, FORWARDING, Maker, NoRule, Stage, Then, classify, not_known, steer};
use crate::rule::Kind;

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
        let m2 = by_local(tunnelled(Some(station.ip), Some(to.ip)));
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

        let downlink = self.downlink();
        if downlink.is_empty() {
            return Ok(());
        }
        self.native_way(
            tunnelled(Some(to.ip), Some(station.ip)),
            tunnelled(None, Some(station.ip)),
            station.ip,
        )?;
        for steered in downlink {
            // Another anchor may use the same TEID of the base station.
            let fields = [vec![tun_src(to.ip), tun_dst(station.ip)], steered.fields].concat();
            let set = [vec![tun_src(from.ip)], steered.set].concat();
            self.steer(Stage::Ground, Kind::T1High, steered.priority, fields, set)?;
        }
        Ok(())
    }

    /// Packets to `destination` through the GTP port and on, unchanged (SW-T0-M1, SW-T0-M2, SW-T1-L).
    fn native_way(
        &mut self,
        m1: Vec<Oxm>,
        m2: Vec<Oxm>,
        destination: std::net::IpAddr,
    ) -> Result<(), NoRule> {
        let (entry, kind) = (Stage::Entry, Kind::T0Decapsulate);
        self.classify(entry, kind, classify::MEDIUM, m1, vec![], Then::Output(PortNo::LOCAL))?;
        let (ground, kind, m2) = (Stage::Ground, Kind::T0Encapsulated, by_local(m2));
        self.classify(ground, kind, classify::ENCAPSULATED, m2, vec![], Then::Goto(FORWARDING))?;
        let same = vec![tun_dst(destination)];
        self.steer(ground, Kind::T1Low, steer::LOW, same.clone(), same)
    }
}

fn by_local(mut fields: Vec<Oxm>) -> Vec<Oxm> {
    fields.push(Oxm::in_port(PortNo::LOCAL));
    fields
}
