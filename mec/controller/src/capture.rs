//! The capture of control messages: GTP-C and PFCP between MME or SMF and anchors, at the small switch before the MME or SMF (CAP).
//!
//! By default one rule forwards a message and copies it to the controller, so it is not delayed (CAP-3). Via the controller a message
//! is stored before it is sent on (CAP-2): while the controller is away, control messages wait for retransmission. When the application
//! is stopped in this mode, it first goes back to copying, so that a stopped application stops nothing.
//!
//! While users of an anchor are served by another one, its messages to the MME or SMF go via the controller, which asks replication what becomes
//! of each ([`Verdict`]): most go on octet for octet. Those rules end by themselves soon after a controller that no longer renews them, so
//! that heartbeats do not wait for one that is gone.
//!
//! Messages are filed under their anchor: the destination of what the MME or SMF sends, the source of what it receives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use net::time::{self, Duration};
use openflow::{Action, Instructions, Match, Oxm, PacketIn, PortNo, TableId};
use replication::replicator::Verdict;
use serde::Serialize;
use telemetry::counters::Counter;

use crate::application::Context;
use crate::config::{CaptureMode, Config, Place};
use crate::frame;
use crate::replicas::Replication;
use crate::rule::{Kind, Rule};
use crate::switch::{Event, Handle, Step, SwitchView};

static CAPTURED: Counter = Counter::new("controller_captured_messages");
static DISCARDED: Counter = Counter::new("controller_captured_discarded");
static ODD: Counter = Counter::new("controller_captured_unreadable");

/// GTP-C (TS 29.274 §4.1) and PFCP (TS 29.244 §4.2).
const PORTS: [(u16, &str); 2] = [(2123, "gtp-c"), (8805, "pfcp")];
/// How long packets are sent on after the switches were told to forward themselves.
const AFTER_STOP: Duration = Duration::from_millis(500);
/// Seconds until a rule that intercepts ends, and how often it is renewed: less than an SMF waits for a heartbeat's answer.
const INTERCEPT_S: u16 = 3;
const RENEW: Duration = Duration::from_secs(1);
/// Above [`HIGH`].
const INTERCEPT: u16 = 310;
const HIGH: u16 = 300;
const PASS: u16 = 10;
/// The table of the forwarding application.
const FORWARDING: TableId = TableId(2);

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Counts all messages, from 1.
    pub number: u64,
    /// Microseconds since 1970.
    pub time_us: u64,
    /// Who sent it.
    pub from: (IpAddr, u16),
    /// To whom.
    pub to: (IpAddr, u16),
    /// Whether the MME or SMF sent it.
    pub by_control: bool,
    /// `gtp-c` or `pfcp`.
    pub protocol: &'static str,
    /// The datagram's content.
    pub octets: Vec<u8>,
}

/// Messages of one anchor.
#[derive(Debug, Default)]
struct File {
    messages: VecDeque<Captured>,
    octets: usize,
    total: u64,
    discarded: u64,
}

impl File {
    /// Octets of memory: a message without content takes some too.
    fn cost(&self) -> usize {
        self.octets + self.messages.len() * size_of::<Captured>()
    }
}

/// How many messages an anchor has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The anchor's address.
    pub anchor: IpAddr,
    /// Its name, if it is in the configuration.
    pub name: Option<String>,
    /// Messages that are kept.
    pub kept: usize,
    /// Their octets.
    pub bytes: usize,
    /// All messages so far.
    pub total: u64,
    /// Those that had to go for newer ones.
    pub discarded: u64,
}

/// The messages of all anchors, bounded.
#[derive(Debug)]
pub struct Store {
    config: Arc<Config>,
    files: Mutex<(BTreeMap<IpAddr, File>, u64)>,
}

impl Store {
    pub(crate) fn new(config: Arc<Config>) -> Store {
        Store { config, files: Mutex::default() }
    }

    fn files(&self) -> std::sync::MutexGuard<'_, (BTreeMap<IpAddr, File>, u64)> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, mut message: Captured) {
        let anchor = if message.by_control { message.to.0 } else { message.from.0 };
        let limits = &self.config.capture;
        let mut all = self.files();
        // Anybody can write any source on a packet: only anchors of the configuration are sure of a file.
        let is_configured =
            |address: &IpAddr| self.config.anchors.iter().any(|anchor| anchor.address == *address);
        if !all.0.contains_key(&anchor)
            && !is_configured(&anchor)
            && all.0.keys().filter(|address| !is_configured(address)).count() >= limits.max_anchors
        {
            DISCARDED.inc();
            return;
        }
        all.1 += 1;
        message.number = all.1;
        let file = all.0.entry(anchor).or_default();
        file.octets += message.octets.len();
        file.total += 1;
        file.messages.push_back(message);
        CAPTURED.inc();
        while file.cost() > limits.max_bytes {
            let Some(oldest) = file.messages.pop_front() else { break };
            file.octets -= oldest.octets.len();
            file.discarded += 1;
            DISCARDED.inc();
        }
    }

    /// How many messages there are.
    pub fn summary(&self) -> Vec<Summary> {
        let name = |address| {
            let anchor = self.config.anchors.iter().find(|anchor| anchor.address == address);
            anchor.map(|anchor| anchor.name.clone())
        };
        let of_file = |(anchor, file): (&IpAddr, &File)| Summary {
            anchor: *anchor,
            name: name(*anchor),
            kept: file.messages.len(),
            bytes: file.octets,
            total: file.total,
            discarded: file.discarded,
        };
        self.files().0.iter().map(of_file).collect()
    }

    /// The messages of an anchor behind a number, at most `most`.
    pub fn messages(&self, anchor: IpAddr, behind: u64, most: usize) -> Vec<Captured> {
        let all = self.files();
        let of_anchor = all.0.get(&anchor).into_iter().flat_map(|file| &file.messages);
        of_anchor.filter(|message| message.number > behind).take(most).cloned().collect()
    }
}

struct Application {
    config: Arc<Config>,
    store: Arc<Store>,
    replication: Replication,
    handle: Handle,
    /// Control addresses of anchors whose messages are intercepted.
    intercepted: BTreeSet<IpAddr>,
}

/// Runs the application until it is told to stop.
pub(crate) async fn run(config: Arc<Config>, store: Arc<Store>, replication: Replication, context: Context) {
    let Context { handle, mut events, mut stop } = context;
    let mode = config.capture.mode;
    let mut watch = replication.watch_intercepted();
    let mut renew = time::interval(RENEW);
    let intercepted = watch.borrow_and_update().clone();
    let mut own = Application { config, store, replication, handle, intercepted };
    loop {
        tokio::select! {
            _ = &mut stop => break,
            _ = watch.changed() => {
                own.intercepted = watch.borrow_and_update().clone();
                own.sync_all(mode).await;
            }
            _ = renew.tick() => own.renew().await,
            event = events.next() => match event {
                Event::SwitchUp(view) => own.sync(&view, mode).await,
                Event::Audit(id) | Event::Removed { datapath_id: id, .. } | Event::Port { datapath_id: id, .. } => {
                    if let Some(view) = own.handle.fabric().switch(id) {
                        own.sync(&view, mode).await;
                    }
                }
                Event::Packet { datapath_id, packet } => own.packet(datapath_id, *packet, mode),
                Event::SwitchDown(_) => {}
            },
        }
    }
    // Whoever intercepts stops with this one.
    own.intercepted.clear();
    let is_needed = mode == CaptureMode::ViaController || !watch.borrow().is_empty();
    if is_needed {
        own.sync_all(CaptureMode::Copy).await;
        // A switch may answer before cached flows are gone: what still comes is sent on.
        let rest = async {
            loop {
                let Event::Packet { datapath_id, packet } = events.next().await else { continue };
                let view = own.handle.fabric().switch(datapath_id);
                if let (Some(view), Some(in_port)) = (view, packet.matching.in_port())
                    && own.waits(&packet, mode)
                {
                    own.send_on(&view, in_port, packet.data);
                }
            }
        };
        let _ = time::timeout(AFTER_STOP, rest).await;
    }
}

impl Application {
    /// Whether a packet waits for being sent on.
    fn waits(&self, packet: &PacketIn, mode: CaptureMode) -> bool {
        mode == CaptureMode::ViaController || Kind::of_cookie(packet.cookie) == Some(Kind::Intercept)
    }

    fn packet(&self, datapath_id: u64, packet: PacketIn, mode: CaptureMode) {
        let Some(view) = self.handle.fabric().switch(datapath_id) else { return };
        let Some(in_port) = packet.matching.in_port() else { return };
        let waits = self.waits(&packet, mode);
        let message = read(&self.config, &view, in_port, &packet.data);
        let mut data = Some(packet.data);
        if let (Some(message), Some(frame)) = (message, &data) {
            if waits && !message.by_control {
                match self.replication.intercept(&message, datapath_id, in_port, frame) {
                    Verdict::Pass => {}
                    Verdict::Instead(octets) => data = frame::with_content(frame, &octets),
                    Verdict::Withhold => data = None,
                }
            } else {
                self.replication.captured(&message, datapath_id, in_port, frame);
            }
            self.store.file(message);
        }
        if let Some(data) = data.filter(|_| waits) {
            self.send_on(&view, in_port, data);
        }
    }

    async fn sync_all(&self, mode: CaptureMode) {
        for view in self.handle.fabric().switches().into_iter().filter(|view| view.connected) {
            self.sync(&view, mode).await;
        }
    }

    async fn sync(&self, view: &SwitchView, mode: CaptureMode) {
        let rules = match external(&self.config, view) {
            Some(external) => rules(external, mode),
            None if is_passed(&self.config, view) => passing_rules(),
            None => return,
        };
        let mut rules = rules.unwrap_or_default();
        rules.extend(self.intercepting(view));
        // A refusal is in the log; the next audit tries again.
        let _ = self.handle.sync(view.datapath_id, rules).await;
    }

    /// The rules that intercept at a switch.
    fn intercepting(&self, view: &SwitchView) -> Vec<Rule> {
        let from = match external(&self.config, view) {
            Some(external) => Some(external),
            None if is_passed(&self.config, view) => None,
            None => return Vec::new(),
        };
        self.intercepted
            .iter()
            .filter_map(|anchor| intercepting_rules(from, *anchor).ok())
            .flatten()
            .collect()
    }

    /// Has the rules that intercept go on.
    async fn renew(&self) {
        if self.intercepted.is_empty() {
            return;
        }
        for view in self.handle.fabric().switches().into_iter().filter(|view| view.connected) {
            let set = self.intercepting(&view);
            if !set.is_empty() {
                // A refusal is in the log.
                let _ = self.handle.commit(&[Step { set, ..Step::of(view.datapath_id) }]).await;
            }
        }
    }

    fn send_on(&self, view: &SwitchView, in_port: PortNo, data: Vec<u8>) {
        let to = match external(&self.config, view) {
            Some(external) if in_port == PortNo::LOCAL => external,
            Some(_) => PortNo::LOCAL,
            None => {
                let ends = frame::datagram(&data).map(|(source, destination, _)| (source, destination));
                let port = ends.and_then(|(source, destination)| {
                    self.replication.port_to_control(view.datapath_id, source, destination)
                });
                // As with any destination that is not known yet.
                port.unwrap_or(PortNo::FLOOD)
            }
        };
        // If too many wait for the switch, the sender tries again.
        let _ = self.handle.packet_out(view.datapath_id, in_port, vec![Action::output(to)], data);
    }
}

/// The port that is not LOCAL, if the switch stands before an MME or SMF.
fn external(config: &Config, view: &SwitchView) -> Option<PortNo> {
    let settings = config.switch_of(view.datapath_id).filter(|settings| settings.place == Place::Control)?;
    view.port(settings.external.as_deref()?).map(|port| port.port_no)
}

/// Whether the switch is one at the access by which control messages pass.
fn is_passed(config: &Config, view: &SwitchView) -> bool {
    config.switch_of(view.datapath_id).is_some_and(|settings| settings.capture)
}

/// Both directions: everything passes, control messages are copied.
fn rules(external: PortNo, mode: CaptureMode) -> Result<Vec<Rule>, openflow::Code> {
    let mut rules = Vec::new();
    for (from, to) in [(PortNo::LOCAL, external), (external, PortNo::LOCAL)] {
        let pass = Instructions::apply([Action::output(to)]);
        rules.push(Rule::new(Kind::Pass, 0, PASS, Match::new([Oxm::in_port(from)])?, pass));
        for (port, _) in PORTS {
            for ethertype in [0x0800, 0x86dd] {
                // Requests of either side go to the port, answers come from it (TS 29.274 §4.2).
                for field in [Oxm::udp_dst(port), Oxm::udp_src(port)] {
                    let fields = [Oxm::in_port(from), Oxm::eth_type(ethertype), Oxm::ip_proto(17), field];
                    let mut actions = vec![Action::output(PortNo::CONTROLLER)];
                    if mode == CaptureMode::Copy {
                        actions.insert(0, Action::output(to));
                    }
                    let instructions = Instructions::apply(actions);
                    rules.push(Rule::new(Kind::Copy, 0, HIGH, Match::new(fields)?, instructions));
                }
            }
        }
    }
    Ok(rules)
}

/// At the access: control messages are copied, and go on as all that is in no tunnel.
fn passing_rules() -> Result<Vec<Rule>, openflow::Code> {
    let mut rules = Vec::new();
    for (port, _) in PORTS {
        for ethertype in [0x0800, 0x86dd] {
            for field in [Oxm::udp_dst(port), Oxm::udp_src(port)] {
                let fields = [Oxm::eth_type(ethertype), Oxm::ip_proto(17), field];
                let copy = Instructions::apply([Action::output(PortNo::CONTROLLER)]);
                let instructions = Instructions { goto_table: Some(FORWARDING), ..copy };
                rules.push(Rule::new(Kind::Copy, 0, HIGH, Match::new(fields)?, instructions));
            }
        }
    }
    Ok(rules)
}

/// What an anchor sends to the ports of its control planes, and from its own, goes to the controller only.
fn intercepting_rules(from: Option<PortNo>, anchor: IpAddr) -> Result<Vec<Rule>, openflow::Code> {
    let mut rules = Vec::new();
    let (ethertype, source) = match anchor {
        IpAddr::V4(anchor) => (0x0800, Oxm::ipv4_src(anchor)),
        IpAddr::V6(anchor) => (0x86dd, Oxm::ipv6_src(anchor)),
    };
    for (port, _) in PORTS {
        for field in [Oxm::udp_dst(port), Oxm::udp_src(port)] {
            let fields = [Oxm::eth_type(ethertype), source, Oxm::ip_proto(17), field];
            let fields = from.map(Oxm::in_port).into_iter().chain(fields);
            let out = Instructions::apply([Action::output(PortNo::CONTROLLER)]);
            let rule = Rule::new(Kind::Intercept, 0, INTERCEPT, Match::new(fields)?, out);
            rules.push(Rule { hard_timeout_s: INTERCEPT_S, ..rule });
        }
    }
    Ok(rules)
}

/// A frame's message; `None` if there is none.
fn read(config: &Config, view: &SwitchView, in_port: PortNo, data: &[u8]) -> Option<Captured> {
    let Some((source, destination, udp)) = frame::datagram(data) else {
        ODD.inc();
        return None;
    };
    let (from, to) = ((source, udp.source_port()), (destination, udp.destination_port()));
    let of_port = |port: u16| PORTS.iter().find(|(number, _)| *number == port).map(|(_, name)| *name);
    let Some(protocol) = of_port(to.1).or_else(|| of_port(from.1)) else {
        ODD.inc();
        return None;
    };
    let since_1970 = time::wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let by_control = match is_passed(config, view) {
        true => config.anchors.iter().any(|anchor| anchor.control.unwrap_or(anchor.address) == to.0),
        false => in_port == PortNo::LOCAL,
    };
    Some(Captured {
        number: 0,
        time_us: since_1970.as_micros() as u64,
        from,
        to,
        by_control,
        protocol,
        octets: udp.payload().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::example;

    fn message(anchor: IpAddr, octets: usize) -> Captured {
        let end = ("10.0.0.1".parse().unwrap(), 2123);
        let time_us = 0;
        Captured {
            number: 0,
            time_us,
            from: end,
            to: (anchor, 2123),
            by_control: true,
            protocol: "gtp-c",
            octets: vec![0; octets],
        }
    }

    #[test]
    fn the_store_is_bounded() {
        let mut config = example();
        config.capture.max_bytes = 100 + 2 * size_of::<Captured>();
        config.capture.max_anchors = 1;
        let store = Store::new(Arc::new(config));
        let gw1 = "10.0.0.11".parse().unwrap();
        for _ in 0..5 {
            store.file(message(gw1, 40));
        }
        for unknown in ["10.0.0.98", "10.0.0.99"] {
            store.file(message(unknown.parse().unwrap(), 1));
        }
        let [summary, unknown] = &store.summary()[..] else { panic!() };
        assert_eq!(unknown.anchor.to_string(), "10.0.0.98");
        assert_eq!((summary.kept, summary.bytes, summary.total, summary.discarded), (2, 80, 5, 3));
        assert_eq!(summary.name.as_deref(), Some("gw1"));
        assert_eq!(store.messages(gw1, 4, 10).len(), 1);
    }

    #[test]
    fn anchors_of_the_configuration_always_have_a_file_and_messages_without_content_count() {
        let mut config = example();
        config.capture.max_bytes = 3 * size_of::<Captured>();
        config.capture.max_anchors = 1;
        let store = Store::new(Arc::new(config));
        store.file(message("10.0.0.98".parse().unwrap(), 0));
        let gw1 = "10.0.0.11".parse().unwrap();
        for _ in 0..10 {
            store.file(message(gw1, 0));
        }
        assert_eq!(store.messages(gw1, 0, 100).len(), 3);
    }

    /// CAP-3: one rule forwards and copies. CAP-2: only the controller gets it.
    #[test]
    fn one_rule_forwards_and_copies() {
        let copies = |mode| {
            let rules = rules(PortNo(1), mode).unwrap();
            let of_copy = rules.into_iter().filter(|rule| rule.kind == Kind::Copy);
            of_copy.map(|rule| rule.instructions.apply_actions.unwrap().len()).collect::<Vec<_>>()
        };
        assert_eq!(copies(CaptureMode::Copy), [2; 16]);
        assert_eq!(copies(CaptureMode::ViaController), [1; 16]);
    }
}
