//! The forwarding application: learns behind which port a station is, and installs rules for known destinations (FWD).
//!
//! Of the switch it uses table 2 and the rule of table 0 that leads there; it knows no tunnels. Packets to unknown destinations are
//! flooded, and install nothing. Loops of switches are not detected.
//!
//! Stations and rules are bounded: beyond the bounds packets still arrive, through the controller. A rule that a switch refuses is
//! forgotten, so that it does not stand in the way of others; a later packet, or answer of an anchor, tries it again.
//!
//! Anchors and base stations of the configuration are asked for by ARP or neighbour discovery until they are known, and rules between
//! them are installed at once and without a time-out: so a move finds its way already there (FWD-5). On SGi or N6 a station that exchanges
//! packets with one anchor will do so with the others, when users move to them: rules between it and these are installed at once, too. Those
//! that idle out return as long as one of the others is used.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use net::time::{self, Duration};
use openflow::{
    Action, FlowStats, Instructions, MacAddr, Match, Oxm, PacketIn, Port, PortNo, PortReason, PortState,
    TableId,
};
use telemetry::counters::Counter;

use crate::application::Context;
use crate::config::{Config, Place, Sgi};
use crate::frame::{self, Station};
use crate::rule::{App, Kind, Rule, RuleKey};
use crate::switch::{CommitError, Event, Handle, Step, SwitchError, SwitchView};

static LEARNED: Counter = Counter::new("controller_forwarding_learned");
static MOVED: Counter = Counter::new("controller_forwarding_moved");
static FLOODED: Counter = Counter::new("controller_forwarding_flooded");
static UNCOVERED: Counter = Counter::new("controller_forwarding_uncovered");
static FULL: Counter = Counter::new("controller_forwarding_table_full");
static NO_RULE: Counter = Counter::new("controller_forwarding_without_rule");

/// Questions come after 1, 2, 4, … of these, up to the configured time: the first ones may find a switch that has no rules yet.
const TICK: Duration = Duration::from_millis(50);
const TICKS_PER_S: u64 = 20;
/// Ticks for which nothing that was learned is sent to a switch that has refused a rule.
const RETRY: u64 = 20;
/// Ticks between looks for stations that may be forgotten, if there are too many.
const AGEING: u64 = 20;
const PRIORITY: u16 = 100;
const LOW: u16 = 1;
/// The table of this application.
const FORWARDING: u8 = 2;

/// A pair of stations: rules match both (SW-T2-M).
type Pair = (MacAddr, MacAddr);

/// Where a station is, and when the controller last had a packet of it.
#[derive(Debug, Clone, Copy)]
struct Learned {
    port: PortNo,
    seen: u64,
}

#[derive(Debug, Default)]
struct Switch {
    gtp: Option<PortNo>,
    /// Link-layer address of the switch's own host.
    local: Option<MacAddr>,
    ports: HashMap<PortNo, Port>,
    stations: HashMap<MacAddr, Learned>,
    /// Addresses of the configuration that have answered.
    known: HashMap<IpAddr, MacAddr>,
    rules: HashMap<Pair, Rule>,
    /// How long it has been connected.
    ticks: u64,
    /// When it may be sent learned rules again.
    retry_at: u64,
}

struct Forwarding {
    config: Arc<Config>,
    handle: Handle,
    switches: HashMap<u64, Switch>,
    /// Switches to compare rules with, once no more events wait.
    dirty: BTreeSet<u64>,
    /// Pairs whose rules have idled out, to be looked at then, too.
    idle: BTreeMap<u64, Vec<Pair>>,
}

/// Runs the application until it is told to stop.
pub(crate) async fn run(config: Arc<Config>, context: Context) {
    let Context { handle, mut events, mut stop } = context;
    let mut ticks = time::interval(TICK);
    let (switches, dirty, idle) = Default::default();
    let mut own = Forwarding { config, handle, switches, dirty, idle };
    loop {
        tokio::select! {
            _ = &mut stop => return,
            event = events.next() => own.event(event).await,
            _ = ticks.tick() => own.tick(),
        }
        // Many rules may be gone at once.
        while events.is_empty()
            && let Some(datapath_id) = own.dirty.pop_first()
        {
            own.sync(datapath_id).await;
        }
        while events.is_empty()
            && let Some((datapath_id, pairs)) = own.idle.pop_first()
        {
            own.stand_by(datapath_id, pairs).await;
        }
    }
}

impl Forwarding {
    async fn event(&mut self, event: Event) {
        match event {
            Event::SwitchUp(view) => self.up(view).await,
            Event::SwitchDown(id) => {
                self.switches.remove(&id);
                self.idle.remove(&id);
            }
            Event::Port { datapath_id, reason, port } => self.port(datapath_id, reason, *port).await,
            Event::Packet { datapath_id, packet } => self.packet(datapath_id, *packet).await,
            Event::Removed { datapath_id, removed } => {
                let pair = pair(&removed.matching);
                let Some(switch) = self.switches.get_mut(&datapath_id) else { return };
                match (pair.filter(|_| removed.table_id == TableId(FORWARDING)), removed.reason) {
                    (Some(pair), openflow::FlowRemovedReason::IdleTimeout) => {
                        switch.rules.remove(&pair);
                        self.idle.entry(datapath_id).or_default().push(pair);
                    }
                    _ => _ = self.dirty.insert(datapath_id),
                }
            }
            Event::Audit(id) => _ = self.dirty.insert(id),
        }
    }

    /// Takes over what the switch has from an earlier life, and makes its rules complete.
    async fn up(&mut self, view: SwitchView) {
        let id = view.datapath_id;
        let Some(settings) = self.config.switch_of(id) else { return };
        if settings.place == Place::Control {
            return;
        }
        let installed = match self.handle.installed(id).await {
            Ok(installed) => installed,
            // It is gone again.
            Err(_) => return,
        };
        let mut switch = Switch {
            gtp: view.port(&settings.gtp_port).map(|port| port.port_no),
            local: view.local().map(|port| port.hw_addr),
            ports: view.leading_ports().map(|port| (port.port_no, port.clone())).collect(),
            ..Switch::default()
        };
        for flow in &installed {
            switch.adopt(flow);
        }
        self.switches.insert(id, switch);
        self.sync(id).await;
    }

    async fn sync(&mut self, id: u64) {
        let Some(switch) = self.switches.get_mut(&id) else { return };
        let refused =
            matches!(self.handle.sync(id, switch.all_rules()).await, Err(SwitchError::Refused { .. }));
        if refused && !switch.rules.is_empty() {
            // Without what was learned it may take the rest. Packets and answers bring it again.
            switch.known.clear();
            switch.retry_at = switch.ticks + RETRY;
            self.remove(id, |_| true).await;
            let Some(switch) = self.switches.get(&id) else { return };
            // Another refusal is in the log; the next audit tries again.
            let _ = self.handle.sync(id, switch.all_rules()).await;
        }
    }

    async fn port(&mut self, id: u64, reason: PortReason, port: Port) {
        let Some(switch) = self.switches.get_mut(&id) else { return };
        let number = port.port_no;
        let is_up = reason != PortReason::Delete && !port.state.contains(PortState::LINK_DOWN);
        match reason {
            PortReason::Delete => _ = switch.ports.remove(&number),
            _ => _ = switch.ports.insert(number, port),
        }
        if is_up {
            return;
        }
        let gone: HashSet<MacAddr> =
            switch.stations.iter().filter(|(_, at)| at.port == number).map(|(mac, _)| *mac).collect();
        self.flush(id, &gone).await;
    }

    /// Forgets stations, and removes the rules towards them.
    async fn flush(&mut self, id: u64, gone: &HashSet<MacAddr>) {
        let Some(switch) = self.switches.get_mut(&id) else { return };
        switch.stations.retain(|mac, _| !gone.contains(mac));
        switch.known.retain(|_, mac| !gone.contains(mac));
        self.remove(id, |(_, to)| gone.contains(to)).await;
    }

    async fn remove(&mut self, id: u64, is_gone: impl Fn(&Pair) -> bool) {
        let Some(switch) = self.switches.get_mut(&id) else { return };
        let gone = switch.rules.extract_if(|pair, _| is_gone(pair));
        let remove: Vec<RuleKey> = gone.map(|(_, rule)| rule.key).collect();
        if !remove.is_empty() {
            // A switch removes what it is told to, or is out of step: then the next audit puts it right.
            let _ = self.handle.commit(&[Step { remove, ..Step::of(id) }]).await;
        }
    }

    /// Installs rules; whether the switch has taken them, or will when it connects. Those that it refuses are forgotten.
    async fn install(&mut self, id: u64, rules: Vec<(Pair, Rule)>) -> bool {
        let Some(switch) = self.switches.get_mut(&id) else { return false };
        let set = rules.iter().map(|(_, rule)| rule.clone()).collect();
        let pairs: Vec<Pair> = rules.iter().map(|(pair, _)| *pair).collect();
        switch.rules.extend(rules);
        let committed = self.handle.commit(&[Step { set, ..Step::of(id) }]).await;
        if let Err(CommitError::Refused { .. } | CommitError::NotOurs { .. }) = &committed {
            for pair in pairs {
                switch.rules.remove(&pair);
            }
            switch.retry_at = switch.ticks + RETRY;
        }
        committed.is_ok()
    }

    async fn packet(&mut self, id: u64, packet: PacketIn) {
        let Some(switch) = self.switches.get_mut(&id) else { return };
        let Some(in_port) = packet.matching.in_port() else { return };
        let Some((to, from)) = addresses(&packet.data) else { return };
        let before = switch.stations.get(&from).map(|before| before.port);
        let learns = switch.learn(from, in_port, self.config.forwarding.max_addresses);
        if learns && before.is_some_and(|before| before != in_port) {
            MOVED.inc();
            // Rules towards it are for the old port. It is known again at the new one at once.
            self.flush(id, &HashSet::from([from])).await;
            if let Some(switch) = self.switches.get_mut(&id) {
                switch.stations.insert(from, Learned { port: in_port, seen: switch.ticks });
            }
        }
        if let Some(frame::Neighbour::Told(station)) = frame::neighbour(&packet.data) {
            self.found(id, station).await;
        }
        if to == probe_mac(id) {
            return;
        }
        self.send_on(id, in_port, from, to, packet.data).await;
    }

    /// Installs the rule if the destination is known, and sends the packet where it goes.
    async fn send_on(&mut self, id: u64, in_port: PortNo, from: MacAddr, to: MacAddr, data: Vec<u8>) {
        let Some(switch) = self.switches.get_mut(&id) else { return };
        match switch.stations.get(&to).map(|to| to.port) {
            Some(port) if port != in_port => {
                let pair = (from, to);
                // Packets that were under way when the rule was made need no other one.
                if !switch.rules.contains_key(&pair) {
                    if switch.rules.len() < self.config.forwarding.max_rules
                        && switch.ticks >= switch.retry_at
                    {
                        let rules = self.rules_for(id, pair);
                        self.install(id, rules).await;
                    } else {
                        NO_RULE.inc();
                    }
                }
                let _ = self.handle.packet_out(id, in_port, vec![Action::output(port)], data);
            }
            // It has heard the packet itself.
            Some(_) => {}
            None => {
                FLOODED.inc();
                self.uncover(id, to).await;
                let Some(switch) = self.switches.get(&id) else { return };
                let actions = switch.flood(in_port);
                let _ = self.handle.packet_out(id, in_port, actions, data);
            }
        }
    }

    /// Rules for what an unknown station sends would hide it for as long as it sends: an earlier life has made them, or the station has
    /// another port. Without them its next packet says where it is.
    async fn uncover(&mut self, id: u64, station: MacAddr) {
        let Some(switch) = self.switches.get_mut(&id) else { return };
        if switch.rules.keys().any(|(from, _)| *from == station) {
            UNCOVERED.inc();
            switch.known.retain(|_, mac| *mac != station);
            self.remove(id, |(from, _)| *from == station).await;
        }
    }

    /// The anchors of a switch on SGi or N6, by their link-layer addresses there.
    fn sgi_anchors(&self, id: u64) -> impl Iterator<Item = &Sgi> {
        let name = self.config.switch_of(id).map(|settings| settings.name.as_str());
        let all = self.config.anchors.iter().filter_map(|anchor| anchor.sgi.as_ref());
        all.filter(move |sgi| Some(sgi.switch.as_str()) == name)
    }

    /// Rules for a pair of which the destination is known, and for the same station with the other anchors of a switch on SGi or N6.
    fn rules_for(&self, id: u64, (from, to): Pair) -> Vec<(Pair, Rule)> {
        let Some(switch) = self.switches.get(&id) else { return Vec::new() };
        let anchors: Vec<MacAddr> = self.sgi_anchors(id).map(|sgi| sgi.mac).collect();
        let mut pairs = vec![(from, to)];
        match (anchors.contains(&from), anchors.contains(&to)) {
            (true, false) => pairs.extend(anchors.iter().map(|anchor| (*anchor, to))),
            (false, true) => pairs.extend(anchors.iter().map(|anchor| (from, *anchor))),
            // Anchors among themselves, or none of them.
            _ => {}
        }
        let idle_timeout_s = self.config.forwarding.idle_timeout_s;
        let mut rules: Vec<(Pair, Rule)> = Vec::new();
        for (from, to) in pairs {
            let port_of = |mac| switch.stations.get(mac).map(|station| station.port);
            let is_there =
                switch.rules.contains_key(&(from, to)) || rules.iter().any(|(pair, _)| *pair == (from, to));
            match port_of(&to) {
                Some(port) if port_of(&from) != Some(port) && !is_there => {
                    rules.push(((from, to), medium(from, to, port, idle_timeout_s)));
                }
                _ => {}
            }
        }
        rules
    }

    /// An anchor on SGi or N6 has answered: rules between it and the stations that exchange packets with other anchors.
    async fn found_on_sgi(&mut self, id: u64, anchor: MacAddr) {
        let Some(switch) = self.switches.get(&id) else { return };
        let others: HashSet<MacAddr> = self.sgi_anchors(id).map(|sgi| sgi.mac).collect();
        let is_with_one = |(from, to): &&Pair| others.contains(from) != others.contains(to);
        let pairs: Vec<Pair> = switch.rules.keys().filter(is_with_one).copied().collect();
        let mut all: HashMap<Pair, Rule> = HashMap::new();
        for (from, to) in pairs {
            let pair = if others.contains(&from) { (anchor, to) } else { (from, anchor) };
            all.extend(self.rules_for(id, pair));
        }
        let left = self.config.forwarding.max_rules.saturating_sub(switch.rules.len());
        let rules: Vec<(Pair, Rule)> =
            all.into_iter().filter(|(pair, _)| !switch.rules.contains_key(pair)).take(left).collect();
        if !rules.is_empty()
            && !self.install(id, rules).await
            && let Some(switch) = self.switches.get_mut(&id)
        {
            // It is asked for again, and its answer tries again.
            switch.known.retain(|_, mac| *mac != anchor);
        }
    }

    /// Rules with an anchor on SGi or N6 have idled out: those return whose station exchanges packets with another anchor, as its users may
    /// move to this one at any time. A rule that was used has counted packets, as it has lasted no longer than its time-out without any.
    async fn stand_by(&mut self, id: u64, idle: Vec<Pair>) {
        let anchors: HashSet<MacAddr> = self.sgi_anchors(id).map(|sgi| sgi.mac).collect();
        let is_with_one = |(from, to): &Pair| anchors.contains(from) != anchors.contains(to);
        let idle: Vec<Pair> = idle.into_iter().filter(is_with_one).collect();
        let Some(switch) = self.switches.get(&id).filter(|_| !idle.is_empty()) else { return };
        // A switch that is away is compared when it is back; what it lacks then is made when packets come.
        let Ok(counts) = self.handle.packets(id, Kind::T2Medium).await else { return };
        let is_used = |pair: &Pair| {
            let key = switch.rules.get(pair).map(|rule| rule.key.canonical());
            key.and_then(|key| counts.get(&key)).is_some_and(|packets| *packets > 0)
        };
        let mut all: HashMap<Pair, Rule> = HashMap::new();
        for (from, to) in idle {
            let with =
                |anchor: &MacAddr| if anchors.contains(&from) { (*anchor, to) } else { (from, *anchor) };
            if let Some(used) = anchors.iter().map(with).find(is_used) {
                all.extend(self.rules_for(id, used));
            }
        }
        let left = self.config.forwarding.max_rules.saturating_sub(switch.rules.len());
        let rules: Vec<(Pair, Rule)> = all.into_iter().take(left).collect();
        if !rules.is_empty() {
            self.install(id, rules).await;
        }
    }

    /// An anchor or base station has answered: rules between it and those that are known already.
    async fn found(&mut self, id: u64, station: Station) {
        let on_sgi = self.sgi_anchors(id).find(|sgi| sgi.address == Some(station.ip)).map(|sgi| sgi.mac);
        if let Some(anchor) = on_sgi {
            // Another address than that of the configuration would not get the users' packets.
            let Some(switch) = self.switches.get_mut(&id).filter(|_| anchor == station.mac) else { return };
            if switch.known.insert(station.ip, anchor) != Some(anchor) {
                self.found_on_sgi(id, anchor).await;
            }
            return;
        }
        let configured = |ip: IpAddr| {
            self.config.anchors.iter().any(|anchor| anchor.address == ip)
                || self.config.base_stations.iter().any(|station| station.address == ip)
        };
        if !configured(station.ip) {
            return;
        }
        let Some(switch) = self.switches.get_mut(&id) else { return };
        let before = switch.known.insert(station.ip, station.mac);
        if before == Some(station.mac) {
            return;
        }
        if let Some(old) = before.filter(|old| !switch.known.values().any(|mac| mac == old)) {
            // Rules between known stations have no time-out.
            self.remove(id, |(from, to)| [from, to].contains(&&old)).await;
        }
        let Some(switch) = self.switches.get(&id) else { return };
        let mut set = Vec::new();
        for other in switch.known.values().copied().filter(|mac| *mac != station.mac) {
            for (from, to) in [(station.mac, other), (other, station.mac)] {
                let port_of = |mac| switch.stations.get(mac).map(|station| station.port);
                let Some(port) = port_of(&to) else { continue };
                // A station may be behind the same port as another: then no rule leads from one to the other.
                if port_of(&from) == Some(port) {
                    continue;
                }
                let rule = medium(from, to, port, 0);
                if switch.rules.get(&(from, to)) != Some(&rule) {
                    set.push(((from, to), rule));
                }
            }
        }
        if !set.is_empty()
            && !self.install(id, set).await
            && let Some(switch) = self.switches.get_mut(&id)
        {
            // It is asked for again, and its answer tries again.
            switch.known.remove(&station.ip);
        }
    }

    /// Asks for the anchors and base stations that are not known yet.
    fn tick(&mut self) {
        let most = self.config.forwarding.discovery_s * TICKS_PER_S;
        let limits = &self.config.forwarding;
        for (id, switch) in &mut self.switches {
            switch.ticks += 1;
            if switch.ticks.is_multiple_of(AGEING) && switch.stations.len() >= limits.max_addresses {
                switch.age(u64::from(limits.idle_timeout_s) * TICKS_PER_S);
            }
            let is_due =
                switch.ticks.is_multiple_of(most) || (switch.ticks < most && switch.ticks.is_power_of_two());
            let Some(settings) = self.config.switch_of(*id).filter(|_| is_due) else { continue };
            let addresses: Vec<IpAddr> = match settings.place {
                Place::Access => {
                    let anchors = self.config.anchors.iter().map(|anchor| anchor.address);
                    anchors.chain(self.config.base_stations.iter().map(|station| station.address)).collect()
                }
                Place::Sgi => {
                    let sides = self.config.anchors.iter().filter_map(|anchor| anchor.sgi.as_ref());
                    let here = sides.filter(|sgi| sgi.switch == settings.name);
                    here.filter_map(|sgi| sgi.address).collect()
                }
                Place::Control => Vec::new(),
            };
            for address in addresses {
                if switch.known.contains_key(&address) {
                    continue;
                }
                let nobody = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
                let question = frame::ask(Station { mac: probe_mac(*id), ip: nobody }, address);
                let actions = switch.flood(PortNo::CONTROLLER);
                let _ = self.handle.packet_out(*id, PortNo::CONTROLLER, actions, question);
            }
        }
    }
}

impl Switch {
    /// Learns of a packet's source; whether it may be learned.
    fn learn(&mut self, from: MacAddr, port: PortNo, most: usize) -> bool {
        // What the GTP port encapsulates comes by LOCAL, but with the base station's address. What has waited comes by a port behind which
        // is nobody.
        let is_odd = from.0[0] & 1 == 1 || from == MacAddr([0; 6]) || !self.ports.contains_key(&port);
        if is_odd || Some(port) == self.gtp || (port == PortNo::LOCAL && self.local != Some(from)) {
            return false;
        }
        if self.stations.len() >= most && !self.stations.contains_key(&from) {
            FULL.inc();
            return false;
        }
        if self.stations.insert(from, Learned { port, seen: self.ticks }).is_none() {
            LEARNED.inc();
        }
        true
    }

    /// Forgets stations towards which there is no rule, and of which there was no packet for so many ticks. Known ones are not asked for again.
    fn age(&mut self, ticks: u64) {
        let towards = self.rules.keys().map(|(_, to)| *to);
        let used: HashSet<MacAddr> = towards.chain(self.known.values().copied()).collect();
        let now = self.ticks;
        self.stations.retain(|mac, station| used.contains(mac) || now < station.seen + ticks);
    }

    /// Takes over a rule of an earlier life: it says where its destination is.
    fn adopt(&mut self, flow: &FlowStats) {
        let Some(pair) = pair(&flow.matching).filter(|_| flow.table_id == TableId(FORWARDING)) else {
            return;
        };
        let Some([Action::Output { port, .. }]) = flow.instructions.apply_actions.as_deref() else { return };
        if self.ports.get(port).is_some_and(|port| !port.state.contains(PortState::LINK_DOWN)) {
            self.stations.insert(pair.1, Learned { port: *port, seen: 0 });
            self.rules.insert(pair, medium(pair.0, pair.1, *port, flow.idle_timeout_s));
        }
    }

    fn all_rules(&self) -> Vec<Rule> {
        let to_table = Instructions::goto(TableId(FORWARDING));
        let to_controller = Instructions::apply([Action::output(PortNo::CONTROLLER)]);
        let mut rules = vec![
            Rule::new(Kind::T0Low, 0, LOW, Match::default(), to_table),
            Rule::new(Kind::T2Low, FORWARDING, LOW, Match::default(), to_controller),
        ];
        rules.extend(self.rules.values().cloned());
        rules
    }

    /// Outputs to all ports with a link but the one of the packet and the one of tunnels.
    fn flood(&self, in_port: PortNo) -> Vec<Action> {
        let goes = |port: &&Port| {
            port.port_no != in_port
                && Some(port.port_no) != self.gtp
                && !port.state.contains(PortState::LINK_DOWN)
        };
        self.ports.values().filter(goes).map(|port| Action::output(port.port_no)).collect()
    }
}

/// The link-layer address of the forwarding application's questions: locally administered, one per switch.
fn probe_mac(datapath_id: u64) -> MacAddr {
    let [.., a, b, c, d] = datapath_id.to_be_bytes();
    MacAddr([0x02, App::Forwarding as u8, a, b, c, d])
}

fn addresses(frame: &[u8]) -> Option<Pair> {
    let frame = packet::ethernet::Frame::new(frame).ok()?;
    Some((MacAddr(frame.destination()), MacAddr(frame.source())))
}

fn pair(matching: &Match) -> Option<Pair> {
    Some((matching.eth_src()?, matching.eth_dst()?))
}

/// SW-T2-M.
fn medium(from: MacAddr, to: MacAddr, port: PortNo, idle_timeout_s: u16) -> Rule {
    let matching =
        Match::new([Oxm::eth_src(from), Oxm::eth_dst(to)]).expect("Ethernet addresses need no other field");
    let key = RuleKey { table: TableId(FORWARDING), priority: PRIORITY, matching };
    let instructions = Instructions::apply([Action::output(port)]);
    Rule { key, instructions, kind: Kind::T2Medium, idle_timeout_s, hard_timeout_s: 0 }
}
