//! Questions on SGi or N6 for the link-layer addresses of diverted users (DIV-6).

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use openflow::{Action, PortNo};

use super::Application;
use super::journal::Diversions;
use super::model::Diversion;
use crate::config::Anchor;
use crate::frame;
use crate::switch::Step;

/// Ids of diversions by their users' second addresses: a question may be for either.
#[derive(Debug, Default)]
pub(super) struct Seconds(HashMap<IpAddr, BTreeSet<String>>);

impl Seconds {
    pub(super) fn of(diversions: &Diversions) -> Seconds {
        let mut seconds = Seconds::default();
        seconds.change(&[], diversions.values());
        seconds
    }

    /// Some diversions are gone, as they were, and some are set.
    pub(super) fn change<'a>(&mut self, gone: &[Diversion], set: impl IntoIterator<Item = &'a Diversion>) {
        for diversion in gone {
            let Some(second) = diversion.second else { continue };
            if let Some(ids) = self.0.get_mut(&second.ue) {
                ids.remove(&diversion.id());
                if ids.is_empty() {
                    self.0.remove(&second.ue);
                }
            }
        }
        for diversion in set {
            if let Some(second) = diversion.second {
                self.0.entry(second.ue).or_default().insert(diversion.id());
            }
        }
    }

    pub(super) fn find(&self, address: IpAddr) -> Option<&String> {
        self.0.get(&address)?.first()
    }
}

impl Application {
    /// Answers a question for a diverted user's link-layer address with that of its anchor on SGi (DIV-6), and has the switch answer
    /// this asker from now on.
    pub(super) async fn answer(&mut self, datapath_id: u64, frame: &[u8], in_port: Option<PortNo>) -> bool {
        let Some(frame::Neighbour::Asked { by, target }) = frame::neighbour(frame) else {
            return false;
        };
        let of_anchor = |anchor: &Anchor| self.diversions.get(&Diversion::id_of_user(&anchor.name, target));
        let by_second = || self.diversions.get(self.seconds.find(target)?);
        let found = self.config.anchors.iter().find_map(of_anchor).or_else(by_second);
        let Some(diversion) = found else { return false };
        let sgi = self.config.anchor(&diversion.to).and_then(|anchor| anchor.sgi.as_ref());
        let (Some(sgi), Some(in_port)) = (sgi, in_port) else { return false };
        let station = frame::Station { mac: sgi.mac, ip: target };
        let reply = frame::tell(station, Some(by));
        let out = vec![Action::output(PortNo::IN_PORT)];
        // A lost answer is asked for again.
        let _ = self.handle.packet_out(datapath_id, in_port, out, reply);
        if by.ip != target {
            let set = self.askers.learn(datapath_id, by);
            if !set.is_empty() {
                // A refusal is in the log; the controller goes on answering.
                let _ = self.handle.commit(&[Step { set, ..Step::of(datapath_id) }]).await;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn diversion(from: &str, ue: &str, second: Option<&str>) -> Diversion {
        let second = second.map(|ue| json!({"ue": ue}));
        let all = json!({"ue": ue, "second": second, "from": from, "to": "gw3", "base_station": "enb1", "confirmed_by": "test"});
        serde_json::from_value(all).unwrap()
    }

    /// Second addresses come, change, and go with their diversions; two of one address are told apart.
    #[test]
    fn second_addresses_follow_their_diversions() {
        let of = |seconds: &Seconds, address: &str| seconds.find(address.parse().unwrap()).cloned();
        let first = diversion("gw1", "10.45.0.2", Some("2001:db8:0:2::"));
        let other = diversion("gw2", "10.46.0.2", Some("2001:db8:0:2::"));
        let all: Diversions = [&first].map(|of| (of.id(), of.clone())).into();
        let mut seconds = Seconds::of(&all);
        assert_eq!(of(&seconds, "2001:db8:0:2::"), Some(first.id()));
        seconds.change(&[], [&other]);
        seconds.change(std::slice::from_ref(&first), []);
        assert_eq!(of(&seconds, "2001:db8:0:2::"), Some(other.id()));
        let moved = diversion("gw2", "10.46.0.2", Some("2001:db8:0:3::"));
        seconds.change(&[other], [&moved]);
        assert_eq!(of(&seconds, "2001:db8:0:2::"), None);
        seconds.change(&[moved], [&diversion("gw2", "10.46.0.2", None)]);
        assert!(seconds.0.is_empty());
    }
}
