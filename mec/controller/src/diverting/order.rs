//! A move in order: no packet of the users is lost, doubled or overtaken, uplink and downlink.
//!
//! 1. [`Plan::new`]: who moves, and for whom order cannot be kept;
//! 2. [`Plan::hold`]: what comes by the new anchors waits, at the switches behind them;
//! 3. the rules change as without order ([`super`]), and a token follows the last packet of each old way ([`Plan::tokens`]);
//! 4. [`Plan::finish`]: when the tokens have come, or their time is over, nothing waits any more.
//!
//! A switch opens a queue by itself when the token comes, or after its own time. So users are served if the controller fails between
//! any two of these steps; then the rules of 2 end in the switch by themselves, and the comparison with what is wanted removes them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use net::time::{self, Duration, Instant};
use openflow::{Code, MacAddr, PacketOut};
use serde::Serialize;

use super::journal::Diversions;
use super::model::{Address, Diversion, Tunnel};
use super::neighbours::Neighbours;
use super::rules::Macs as _;
use super::rules::order::{self, Downlink, HoldPorts, Token};
use crate::config::{self, Anchor, BaseStation, Config, Sgi};
use crate::rule::{Kind, Rule, RuleKey};
use crate::switch::{CommitError, Handle, Step, SwitchView};

/// Pauses between two looks at the tokens: short at first, then fewer questions.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// What has become of a move in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Whether the order of all users was kept.
    pub kept: bool,
    /// Users who have moved.
    pub moves: usize,
    /// Those of them whose tokens did not come in time.
    pub timed_out: usize,
    /// Packets that came by new ways before the switches had forgotten of the move; most of them have waited.
    pub held: u64,
    /// Users without downlink tunnels: idle ones, or the request does not say.
    pub without_downlink: usize,
    /// Users who have moved without order, and why.
    pub not_kept: Vec<NotKept>,
    /// Microseconds until packets of all new ways wait.
    pub prepared_us: u64,
    /// Microseconds from then on until all packets took the new ways, and the request was on the disk.
    pub control_us: u64,
    /// Microseconds from then on until the last token had come.
    pub waited_us: u64,
}

/// A user who moves without order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotKept {
    /// The diversion.
    pub id: String,
    /// Why.
    pub why: String,
}

/// An anchor, as the users on it see it.
struct Side<'a> {
    anchor: &'a Anchor,
    sgi: &'a Sgi,
    /// The user's addresses there.
    addresses: Vec<IpAddr>,
    /// TEIDs there, by the TEID at the anchor that users are diverted from.
    tunnels: BTreeMap<u32, (u32, Option<u32>, Tunnel)>,
}

/// A user who moves.
struct Move<'a> {
    station: &'a BaseStation,
    station_mac: MacAddr,
    old_mac: MacAddr,
    /// The addresses that the user is diverted by.
    ues: Vec<IpAddr>,
    old: Side<'a>,
    new: Side<'a>,
    access: (u64, HoldPorts),
    sgi: (u64, HoldPorts),
}

/// A token that is waited for.
struct Awaited {
    datapath_id: u64,
    rule: RuleKey,
    mover: usize,
    has_come: bool,
}

/// A queue, and when it is opened: by its token, or by the controller when all have come.
struct Queue {
    datapath_id: u64,
    ports: HoldPorts,
    number: u32,
    tokens: Vec<usize>,
    is_open: bool,
}

/// All that a move in order needs.
#[derive(Default)]
pub(super) struct Plan {
    rules: BTreeMap<u64, Vec<Rule>>,
    tokens: Vec<(u64, PacketOut)>,
    awaited: Vec<Awaited>,
    queues: Vec<Queue>,
    timeout: Duration,
    began: Option<Instant>,
    prepared: Option<Instant>,
    changed: Option<Instant>,
    kept: Kept,
}

/// What is known of the edge.
pub(super) struct Known<'a> {
    pub(super) config: &'a Config,
    pub(super) neighbours: &'a Neighbours,
    pub(super) switches: &'a [SwitchView],
    /// What is diverted so far.
    pub(super) diversions: &'a Diversions,
}

impl Plan {
    /// Who moves if these diversions are set and those are removed. `number` numbers queues.
    pub(super) fn new(known: &Known<'_>, set: &[Diversion], removed: &[String], number: &mut u32) -> Plan {
        let mut plan = Plan {
            timeout: Duration::from_millis(known.config.diverting.order.timeout_ms),
            began: Some(time::now()),
            ..Plan::default()
        };
        for new in set {
            let old = known.diversions.get(&new.id());
            let old = old.map_or((&new.from, new), |old| (&old.to, old));
            plan.add(known, (old.0, old.1), (&new.to, new), number);
        }
        for old in removed.iter().filter_map(|id| known.diversions.get(id)) {
            plan.add(known, (&old.to, old), (&old.from, old), number);
        }
        plan
    }

    fn add(&mut self, known: &Known<'_>, old: (&str, &Diversion), new: (&str, &Diversion), number: &mut u32) {
        if old.0 == new.0 && old.1.base_station == new.1.base_station {
            return;
        }
        let id = new.1.id();
        let planned = one(known, old, new).and_then(|moved| {
            let mut alone = Plan::default();
            alone
                .put(known, &moved, self.kept.moves, self.awaited.len(), number)
                .map_err(|code| code.to_string())?;
            Ok(alone)
        });
        match planned {
            Ok(alone) => {
                self.kept.moves += 1;
                self.kept.without_downlink += alone.kept.without_downlink;
                self.tokens.extend(alone.tokens);
                self.awaited.extend(alone.awaited);
                self.queues.extend(alone.queues);
                for (datapath_id, rules) in alone.rules {
                    self.rules.entry(datapath_id).or_default().extend(rules);
                }
            }
            Err(why) => self.kept.not_kept.push(NotKept { id, why }),
        }
    }

    /// The rules and tokens of one user. `first`: tokens of others before.
    fn put(
        &mut self,
        known: &Known<'_>,
        moved: &Move<'_>,
        mover: usize,
        first: usize,
        number: &mut u32,
    ) -> Result<(), Code> {
        let mut queue = || {
            *number = number.wrapping_add(1).max(1);
            *number
        };
        let order = &known.config.diverting.order;
        let ((sgi, sgi_ports), (access, access_ports)) = (moved.sgi, moved.access);
        let mut rules: Vec<(u64, Rule)> = Vec::new();
        let mut expect = |plan: &mut Plan, datapath_id, rule: Rule| {
            let key = rule.key.canonical();
            rules.push((datapath_id, rule));
            plan.awaited.push(Awaited { datapath_id, rule: key, mover, has_come: false });
            first + plan.awaited.len() - 1
        };
        let mut holds: Vec<(u64, Rule)> = Vec::new();
        let addresses = moved.ues.iter().zip(moved.old.addresses.iter().zip(&moved.new.addresses));
        for (ue, (old_address, new_address)) in addresses {
            let uplink = queue();
            let carries = |tunnel: &Tunnel| server_in(tunnel, *old_address, order);
            let all = moved.old.tunnels.iter();
            let all: Vec<_> = all.filter_map(|(key, of)| Some((key, of, carries(&of.2)?))).collect();
            let mut of_uplink = Vec::new();
            for (key, (teid, downlink, tunnel), server) in &all {
                let user = (*old_address, None);
                let station = (moved.station.address, moved.station_mac);
                let token = Token::new(user, *server);
                let qfi = order::qfi(moved.station.access, tunnel.qfi);
                let anchor = (moved.old.anchor.address, moved.old_mac);
                let Some(packet) = token.in_tunnel(station, anchor, *teid, qfi) else { continue };
                let rule = order::token_uplink(sgi_ports, &token, (all.len() == 1).then_some(uplink))?;
                of_uplink.push(expect(self, sgi, rule));
                self.tokens.push((access, packet));

                let new_downlink = moved.new.tunnels.get(key).and_then(|(_, downlink, _)| *downlink);
                let (Some(old_teid), Some(new_teid)) = (*downlink, new_downlink) else {
                    self.kept.without_downlink = 1;
                    continue;
                };
                let of = |side: &Side<'_>, teid| Downlink {
                    anchor: side.anchor.address,
                    station: moved.station.address,
                    teid,
                };
                let token = Token::new(*server, user);
                let Some(packet) = token.on_sgi(moved.new.sgi.mac, moved.old.sgi.mac) else { continue };
                let queue = queue();
                let only_of = (moved.ues.len() > 1).then_some(*ue);
                let hold = order::hold_downlink(access_ports, queue, of(&moved.new, new_teid), only_of)?;
                let rule = order::token_downlink(access_ports, queue, of(&moved.old, old_teid), &token)?;
                let at = expect(self, access, rule);
                holds.push((access, hold));
                self.tokens.push((sgi, packet));
                self.queues.push(Queue {
                    datapath_id: access,
                    ports: access_ports,
                    number: queue,
                    tokens: vec![at],
                    is_open: false,
                });
            }
            // A prefix, unless the address is a translated one.
            let is_prefix = new_address == ue;
            let mac = moved.new.sgi.mac;
            holds.push((sgi, order::hold_uplink(sgi_ports, uplink, mac, *new_address, is_prefix)?));
            self.queues.push(Queue {
                datapath_id: sgi,
                ports: sgi_ports,
                number: uplink,
                tokens: of_uplink,
                is_open: false,
            });
        }
        for (datapath_id, rule) in rules.into_iter().chain(holds) {
            self.rules.entry(datapath_id).or_default().push(rule);
        }
        Ok(())
    }

    /// Lets packets of the new ways wait. If a switch refuses, nobody's order is kept.
    pub(super) async fn hold(&mut self, handle: &Handle) {
        let step =
            |(datapath_id, rules): (&u64, &Vec<Rule>)| Step { set: rules.clone(), ..Step::of(*datapath_id) };
        let steps: Vec<Step> = self.rules.iter().map(step).collect();
        let held = handle.commit(&steps).await;
        self.prepared = Some(time::now());
        let pending = held.as_ref().is_ok_and(|outcome| !outcome.pending.is_empty());
        let why = match held {
            Ok(_) if !pending => return,
            Ok(_) => "a switch has disconnected".to_owned(),
            Err(error @ CommitError::Refused { .. }) => format!("a switch does not hold packets: {error}"),
            Err(error) => error.to_string(),
        };
        self.remove(handle).await;
        let id = format!("{} users", self.kept.moves);
        self.kept.not_kept.push(NotKept { id, why });
        self.kept.moves = 0;
        (self.tokens, self.awaited, self.queues) = Default::default();
    }

    /// What follows the last packet of each old way, by switch.
    pub(super) fn tokens(&self) -> &[(u64, PacketOut)] {
        &self.tokens
    }

    /// All packets take the new ways from here on.
    pub(super) fn changed(&mut self) {
        self.changed = Some(time::now());
    }

    /// Waits for the tokens, and ends all waiting.
    pub(super) async fn finish(mut self, handle: &Handle) -> Kept {
        let changed = self.changed.unwrap_or_else(time::now);
        self.await_tokens(handle, changed + self.timeout).await;
        self.kept.waited_us = micros(time::now() - changed);
        let prepared = self.prepared.unwrap_or(changed);
        self.kept.control_us = micros(changed - prepared);
        self.kept.prepared_us = self.began.map_or(0, |began| micros(prepared - began));
        let late: HashSet<usize> =
            self.awaited.iter().filter(|token| !token.has_come).map(|token| token.mover).collect();
        self.kept.timed_out = late.len();
        // Behind these come packets for which there is no rule any more.
        self.open(handle, |_| true).await;
        for datapath_id in self.rules.keys() {
            let held = handle.packets(*datapath_id, Kind::Hold).await.unwrap_or_default();
            let rules = self.rules[datapath_id].iter();
            let own = rules.filter_map(|rule| held.get(&rule.key.canonical()));
            self.kept.held += own.sum::<u64>();
        }
        self.remove(handle).await;
        self.kept.kept = self.kept.timed_out == 0 && self.kept.not_kept.is_empty();
        self.kept
    }

    async fn await_tokens(&mut self, handle: &Handle, deadline: Instant) {
        let mut pause = FIRST_PAUSE;
        loop {
            let is_missing = |token: &&Awaited| !token.has_come;
            let missing: HashSet<u64> =
                self.awaited.iter().filter(is_missing).map(|token| token.datapath_id).collect();
            if missing.is_empty() || time::now() >= deadline {
                return;
            }
            time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let mut come: HashMap<u64, HashMap<RuleKey, u64>> = HashMap::new();
            for datapath_id in missing {
                // A switch that does not answer is asked again.
                let counts = handle.packets(datapath_id, Kind::Token).await.unwrap_or_default();
                come.insert(datapath_id, counts);
            }
            for token in &mut self.awaited {
                let count = come.get(&token.datapath_id).and_then(|counts| counts.get(&token.rule));
                token.has_come |= count.is_some_and(|count| *count > 0);
            }
            // Of users with several tunnels; those with one are open already.
            self.open(handle, |is_complete| is_complete).await;
        }
    }

    /// Opens queues that are not known to be open: those of which all tokens have come, or all of them.
    async fn open(&mut self, handle: &Handle, opens: impl Fn(bool) -> bool) {
        let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
        for queue in self.queues.iter_mut().filter(|queue| !queue.is_open) {
            let is_complete = queue.tokens.iter().all(|at| self.awaited[*at].has_come);
            if !opens(is_complete) {
                continue;
            }
            queue.is_open = true;
            if is_complete && queue.tokens.len() == 1 {
                // Its token has.
                continue;
            }
            let step = steps.entry(queue.datapath_id).or_insert_with(|| Step::of(queue.datapath_id));
            step.packets.push(queue.ports.open(queue.number));
        }
        // Otherwise the switch does it, when its time is over.
        let steps: Vec<Step> = steps.into_values().collect();
        let _ = handle.commit(&steps).await;
    }

    /// Removes the rules of the move.
    pub(super) async fn remove(&mut self, handle: &Handle) {
        let of = |(datapath_id, rules): (&u64, &Vec<Rule>)| {
            let remove = rules.iter().map(|rule| rule.key.clone()).collect();
            Step { remove, ..Step::of(*datapath_id) }
        };
        let steps: Vec<Step> = self.rules.iter().map(of).collect();
        // What stays ends in the switch by itself.
        let _ = handle.commit(&steps).await;
    }
}

/// The server of tokens for a user's address in a tunnel, and its port. `None`: the tunnel is of a dedicated bearer for the other IP version.
fn server_in(tunnel: &Tunnel, user: IpAddr, order: &config::Order) -> Option<(IpAddr, Option<u16>)> {
    let anybody: [IpAddr; 2] = [order.token.into(), order.token_ipv6.into()];
    let far = anybody[usize::from(user.is_ipv6())];
    match tunnel.filter {
        None => Some((far, None)),
        Some(filter) if filter.server.is_ipv4() == user.is_ipv4() => Some((filter.server, filter.port)),
        // A bearer for a port of any server.
        Some(filter) => anybody.contains(&filter.server).then_some((far, filter.port)),
    }
}

fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

/// One user's move, or why order cannot be kept.
fn one<'a>(
    known: &Known<'a>,
    (old_name, old): (&str, &Diversion),
    (new_name, new): (&str, &Diversion),
) -> Result<Move<'a>, String> {
    let Known { config, neighbours, switches, .. } = known;
    let (Some(_), None, None) = (new.ue, new.application, new.peer) else {
        return Err("order is kept for whole users only".to_owned());
    };
    let addresses: Vec<Address> = new.addresses().collect();
    if old.addresses().map(|address| address.ue).ne(addresses.iter().map(|address| address.ue)) {
        return Err("the user's second address changes".to_owned());
    }
    if old.base_station != new.base_station {
        return Err("the base station changes: the order of a handover is the base stations'".to_owned());
    }
    let station = config.base_station(&new.base_station).ok_or("the base station is not known")?;
    let (old, new) = (side(config, old_name, old)?, side(config, new_name, new)?);
    if old.tunnels.is_empty() {
        return Err("`tunnels` are needed: a token goes through each of them".to_owned());
    }
    let ports = |name: &str| {
        let switch = config.switch(name).ok_or_else(|| format!("there is no switch `{name}`"))?;
        let view = switches.iter().find(|view| view.datapath_id == switch.datapath_id);
        let ports = view.and_then(HoldPorts::of);
        let ports = ports
            .ok_or_else(|| format!("`{name}` has no port that holds packets (key `hold` of the switch)"))?;
        Ok::<_, String>((switch.datapath_id, ports))
    };
    if old.sgi.switch != new.sgi.switch {
        return Err("the anchors' sides of SGi or N6 are at different switches".to_owned());
    }
    let (access, sgi) = (ports(&station.switch)?, ports(&new.sgi.switch)?);
    if !neighbours.is_alive(access.0, old_name) {
        return Err(format!("`{old_name}` does not answer: no token would pass it"));
    }
    let mac = |given: Option<MacAddr>, address: IpAddr| {
        given.or_else(|| neighbours.mac(access.0, address)).ok_or("a link-layer address is not known yet")
    };
    Ok(Move {
        station,
        station_mac: mac(station.mac, station.address)?,
        old_mac: mac(old.anchor.mac, old.anchor.address)?,
        ues: addresses.iter().map(|address| address.ue).collect(),
        old,
        new,
        access,
        sgi,
    })
}

/// A user at an anchor: the one that it is diverted from, or the one that it is diverted to.
fn side<'a>(config: &'a Config, name: &str, diversion: &Diversion) -> Result<Side<'a>, String> {
    let anchor = config.anchor(name).ok_or_else(|| format!("there is no anchor `{name}`"))?;
    let sgi = anchor
        .sgi
        .as_ref()
        .ok_or_else(|| format!("the side of `{name}` on SGi or N6 is not known (key `sgi`)"))?;
    let is_target = name == diversion.to;
    let of_tunnel = |tunnel: &Tunnel| {
        let (uplink, downlink) = match is_target {
            true => {
                (tunnel.target_uplink.unwrap_or(tunnel.uplink), tunnel.target_downlink.or(tunnel.downlink))
            }
            false => (tunnel.uplink, tunnel.downlink),
        };
        (tunnel.uplink, (uplink, downlink, *tunnel))
    };
    let there = |Address { ue, target_address }| target_address.filter(|_| is_target).unwrap_or(ue);
    let addresses = diversion.addresses().map(there).collect();
    Ok(Side { anchor, sgi, addresses, tunnels: diversion.tunnels.iter().map(of_tunnel).collect() })
}
