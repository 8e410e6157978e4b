//! The rules of a switch on SGi or N6 (DIV-6).
//!
//! Packets to a user go to the new anchor, with the address that it gave; what it sends gets the user's address back.
//!
//! Questions for the link-layer address of a user (ARP) are answered by rules, also while the controller is away. OpenFlow 1.3 cannot
//! copy a field, so one rule of a user cannot turn a question round: the asker's addresses would be lost. But there are few who ask.
//! A rule for each *asker* puts what is of the asker into the action set, and a rule for each user does what is of the user:
//! ```text
//! table 0: a question of this asker ──► write the asker's addresses and `output IN_PORT`, table 1
//! table 1: a question for this user ──► set the answer's sender; the action set does the rest
//! table 1: anything else            ──► clear the action set, table 2
//! ```
//! The controller answers those that it does not know yet, and makes them askers (`askers.rs`). Neighbour discovery stays with the
//! controller: an advertisement has another ICMPv6 type and another option than a solicitation, and no action changes either.

use std::net::IpAddr;

use openflow::{Action, Code, Instructions, Match, Oxm, PortNo};

use super::fields::{ethertype, from_user, ip_dst, ip_src, outer_answer, to_user};
use super::{ENCAPSULATION, FORWARDING, Maker, NoRule, Placed, Stage, Then, classify, steer};
use crate::config::{Config, Sgi};
use crate::diverting::model::Address;
use crate::frame::Station;
use crate::rule::{Kind, Rule};

/// Seconds without a question after which an asker is forgotten: ARP entries of routers live up to four hours.
const ASKER_TIMEOUT_S: u16 = 6 * 3600;
const ARP: u16 = 0x0806;

impl Maker<'_> {
    pub(super) fn return_path(&mut self, config: &Config) -> Result<(), NoRule> {
        // Everything of an anchor: see `anchor_side`.
        let Some(ue) = self.diversion.ue else { return Ok(()) };
        let Some((from, to, datapath_id)) = sides(config, &self.diversion.from, &self.diversion.to) else {
            return Ok(());
        };
        self.datapath_id = datapath_id;
        let (medium, on) = (classify::MEDIUM, Then::Goto(FORWARDING));
        let towards = vec![Oxm::eth_dst(to.mac)];
        if let Some(flow) = self.diversion.application {
            return self.sgi(Kind::SgiDown, medium + 2, outer_answer(ue, flow), towards, on);
        }
        if let Some(peer) = self.diversion.peer {
            let to_ue = vec![ethertype(ue), to_user(ue), from_user(peer)];
            self.sgi(Kind::SgiDown, medium + 1, to_ue, towards.clone(), on)?;
            // What is for another anchor than the old one stays.
            let to_peer = vec![Oxm::eth_dst(from.mac), ethertype(ue), to_user(peer), from_user(ue)];
            return self.sgi(Kind::SgiDown, medium + 1, to_peer, towards, on);
        }
        let mut addresses = self.diversion.addresses();
        addresses.try_for_each(|address| self.return_path_of(address, to))
    }

    /// The return path of one of the user's addresses, to the new anchor's side.
    fn return_path_of(&mut self, Address { ue, target_address }: Address, to: &Sgi) -> Result<(), NoRule> {
        let (medium, on) = (classify::MEDIUM, Then::Goto(FORWARDING));
        let towards = vec![Oxm::eth_dst(to.mac)];
        match target_address {
            None => self.sgi(Kind::SgiDown, medium, vec![ethertype(ue), to_user(ue)], towards, on)?,
            // Only one address can be written in the place of another, not a prefix.
            Some(address) => {
                let up = vec![ethertype(address), ip_src(address), Oxm::eth_src(to.mac)];
                self.sgi(Kind::SgiUp, medium, up, vec![ip_src(ue)], on)?;
                let set = [towards, vec![ip_dst(address)]].concat();
                self.sgi(Kind::SgiDown, medium, vec![ethertype(ue), ip_dst(ue)], set, on)?;
            }
        }
        let to_controller = Then::Output(PortNo::CONTROLLER);
        match ue {
            IpAddr::V4(ue) => {
                let question = vec![Oxm::eth_type(ARP), Oxm::arp_op(1), Oxm::arp_tpa(ue)];
                self.sgi(Kind::SgiNeighbour, medium, question.clone(), vec![], to_controller)?;
                let set = [Oxm::eth_src(to.mac), Oxm::arp_op(2), Oxm::arp_sha(to.mac), Oxm::arp_spa(ue)];
                let actions = set.map(Action::set).into_iter().collect::<Result<Vec<_>, _>>()?;
                let (kind, answer) = (Kind::SgiAnswer, Instructions::apply(actions));
                self.put(Stage::Return, kind, ENCAPSULATION.0, steer::ADDRESS, question, answer)
            }
            IpAddr::V6(ue) => {
                let icmp = [Oxm::ip_proto(58), Oxm::icmpv6_type(135), Oxm::ipv6_nd_target(ue)];
                let question = [vec![Oxm::eth_type(0x86dd)], icmp.to_vec()].concat();
                self.sgi(Kind::SgiNeighbour, medium, question, vec![], to_controller)
            }
        }
    }

    fn sgi(
        &mut self,
        kind: Kind,
        priority: u16,
        fields: Vec<Oxm>,
        set: Vec<Oxm>,
        then: Then,
    ) -> Result<(), NoRule> {
        self.classify(Stage::Return, kind, priority, fields, set, then)
    }
}

/// Both anchors' sides, and the switch of the new one's.
fn sides<'a>(config: &'a Config, from: &str, to: &str) -> Option<(&'a Sgi, &'a Sgi, u64)> {
    let side = |name: &str| config.anchor(name)?.sgi.as_ref();
    let (from, to) = (side(from)?, side(to)?);
    Some((from, to, config.switch(&to.switch)?.datapath_id))
}

/// The rule that moves an anchor's whole side: it has the users of all base stations, whichever they are.
pub(in crate::diverting) fn anchor_side(config: &Config, from: &str, to: &str) -> Option<Placed> {
    let (from, to, datapath_id) = sides(config, from, to)?;
    let matching = Match::new([Oxm::eth_dst(from.mac)]).ok()?;
    let set = Action::set(Oxm::eth_dst(to.mac)).ok()?;
    let instructions = Instructions { goto_table: Some(FORWARDING), ..Instructions::apply([set]) };
    let rule = Rule::new(Kind::SgiDown, 0, classify::MEDIUM - 1, matching, instructions);
    Some(Placed { datapath_id, stage: Stage::Return, rule })
}

/// The rules for those who ask at a switch. None for nobody.
///
/// # Errors
/// Never for IPv4 addresses.
pub(in crate::diverting) fn of_askers<'a>(
    askers: impl IntoIterator<Item = &'a Station>,
) -> Result<Vec<Rule>, Code> {
    let mut rules = Vec::new();
    for asker in askers {
        let IpAddr::V4(ip) = asker.ip else { continue };
        let fields = [Oxm::eth_type(ARP), Oxm::arp_op(1), Oxm::arp_spa(ip), Oxm::arp_sha(asker.mac)];
        let set = [Oxm::eth_dst(asker.mac), Oxm::arp_tha(asker.mac), Oxm::arp_tpa(ip)];
        let mut actions = set.map(Action::set).into_iter().collect::<Result<Vec<_>, _>>()?;
        actions.push(Action::output(PortNo::IN_PORT));
        let instructions = Instructions {
            write_actions: Some(actions.into()),
            goto_table: Some(ENCAPSULATION),
            ..Instructions::default()
        };
        let rule = Rule::new(Kind::SgiAsker, 0, classify::ASKER, Match::new(fields)?, instructions);
        rules.push(Rule { idle_timeout_s: ASKER_TIMEOUT_S, ..rule });
    }
    if !rules.is_empty() {
        let on =
            Instructions { clear_actions: true, goto_table: Some(FORWARDING), ..Instructions::default() };
        rules.push(Rule::new(Kind::SgiPass, ENCAPSULATION.0, steer::LOW, Match::default(), on));
    }
    Ok(rules)
}

/// Whom a rule of [`of_askers`] is for.
pub(in crate::diverting) fn asker(matching: &Match) -> Option<Station> {
    Some(Station { mac: matching.arp_sha()?, ip: matching.arp_spa()?.into() })
}
