//! Who asks for link-layer addresses of diverted users on SGi or N6: routers, and servers beside them.
//!
//! An asker is learned from its first question, which the controller answers. From then on rules answer it (`rules/sgi.rs`), also while
//! the controller is away. Like what forwarding learns, askers are in no file: they are taken over from the switch.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use openflow::{FlowStats, MacAddr, Match};

use super::rules::sgi;
use crate::frame::Station;
use crate::rule::{Kind, Rule};

/// Most askers of a switch; the controller answers others as long as it is there. Anybody can write any sender into a question.
const MAX_ASKERS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Askers {
    /// By switch and address.
    known: HashMap<u64, BTreeMap<IpAddr, MacAddr>>,
}

impl Askers {
    /// A question has come; the rules that it makes necessary.
    pub(super) fn learn(&mut self, datapath_id: u64, by: Station) -> Vec<Rule> {
        let known = self.known.entry(datapath_id).or_default();
        let is_odd = !by.ip.is_ipv4() || by.ip.is_unspecified() || by.mac.0[0] & 1 == 1;
        // Another link-layer address than the known one may be an invented one: its rule would be the first one's.
        if is_odd || known.contains_key(&by.ip) || known.len() >= MAX_ASKERS {
            return Vec::new();
        }
        known.insert(by.ip, by.mac);
        sgi::of_askers([&by]).unwrap_or_default()
    }

    /// Takes over what a switch has from an earlier life.
    pub(super) fn adopt(&mut self, datapath_id: u64, installed: &[FlowStats]) {
        let of_asker = |flow: &&FlowStats| Kind::of_cookie(flow.cookie) == Some(Kind::SgiAsker);
        let known = self.known.entry(datapath_id).or_default();
        for by in installed.iter().filter(of_asker).filter_map(|flow| sgi::asker(&flow.matching)) {
            if known.len() < MAX_ASKERS {
                known.entry(by.ip).or_insert(by.mac);
            }
        }
    }

    /// A rule is gone because its asker asks no more.
    pub(super) fn forget(&mut self, datapath_id: u64, matching: &Match) {
        if let (Some(known), Some(by)) = (self.known.get_mut(&datapath_id), sgi::asker(matching)) {
            known.remove(&by.ip);
        }
    }

    /// All rules for those who ask at a switch.
    pub(super) fn rules(&self, datapath_id: u64) -> Vec<Rule> {
        let known = self.known.get(&datapath_id).into_iter().flatten();
        let stations: Vec<Station> = known.map(|(ip, mac)| Station { mac: *mac, ip: *ip }).collect();
        sgi::of_askers(&stations).unwrap_or_default()
    }
}
