//! What waits for an application: events of switches, between the connections that bring them and the application's task.
//!
//! The state of a switch does not grow with the number of its changes. So of each switch there wait: the end of a connection, a new
//! connection, and the last states of its ports. However slow an application is, it misses none of them. Packets wait in a queue;
//! those that find it full are lost and counted. Rules that are gone wait in a queue per switch; in the place of more of them the
//! application gets an [`Event::Audit`].
//!
//! Invariant: memory is bounded by constants and the number of switches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openflow::{FlowRemoved, PacketIn, Port, PortNo, PortReason, PortState};
use telemetry::counters::Counter;
use tokio::sync::Notify;

use super::fabric::{Fabric, MAX_PORTS, SwitchView};

static PACKETS_LOST: Counter = Counter::new("controller_packets_lost");

/// Most packets that wait for an application.
pub(crate) const MAX_PACKETS: usize = 4096;
/// Most rules that are gone, of one switch, that wait for an application.
const MAX_REMOVED: usize = 1024;

/// What an application hears of.
#[derive(Debug)]
pub enum Event {
    /// A switch has connected, or the application has started; its rules are to be synchronised.
    SwitchUp(SwitchView),
    /// The connection has ended. The switch goes on by its rules.
    SwitchDown(u64),
    /// A port is new, gone, or changed.
    Port {
        /// The switch.
        datapath_id: u64,
        /// What has happened.
        reason: PortReason,
        /// The port.
        port: Box<Port>,
    },
    /// A packet that one of the application's rules has sent.
    Packet {
        /// The switch.
        datapath_id: u64,
        /// The packet.
        packet: Box<PacketIn>,
    },
    /// A rule of the application is gone, by a time-out or by someone else; it is no longer wanted after a time-out.
    Removed {
        /// The switch.
        datapath_id: u64,
        /// The rule.
        removed: Box<FlowRemoved>,
    },
    /// The rules of a switch are to be compared with what is wanted.
    Audit(u64),
}

/// What has happened to a port since the application last looked: whether it lost its link, and whether it has it now.
#[derive(Debug, Default)]
struct PortChange {
    lost: Option<(PortReason, Box<Port>)>,
    has: Option<(PortReason, Box<Port>)>,
}

/// What waits of one switch, in the order in which the application hears of it.
#[derive(Debug, Default)]
struct OfSwitch {
    down: bool,
    up: bool,
    ports: BTreeMap<PortNo, PortChange>,
    removed: VecDeque<Box<FlowRemoved>>,
    audit: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    switches: BTreeMap<u64, OfSwitch>,
    /// Switches of which something waits: each has its turn, one event at a time.
    turns: VecDeque<u64>,
    packets: VecDeque<(u64, Box<PacketIn>)>,
}

/// Where events of an application wait.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    waiting: Mutex<Waiting>,
    filled: Notify,
}

impl Mailbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, datapath_id: u64, change: impl FnOnce(&mut OfSwitch)) {
        let mut waiting = self.waiting();
        change(waiting.switches.entry(datapath_id).or_default());
        if !waiting.turns.contains(&datapath_id) {
            waiting.turns.push_back(datapath_id);
        }
        drop(waiting);
        self.filled.notify_one();
    }

    /// A connection has begun.
    pub(crate) fn up(&self, datapath_id: u64) {
        self.change(datapath_id, |of_switch| of_switch.up = true);
    }

    /// A connection has ended, and what came by it no longer matters.
    pub(crate) fn down(&self, datapath_id: u64) {
        self.change(datapath_id, |of_switch| *of_switch = OfSwitch { down: true, ..OfSwitch::default() });
    }

    pub(crate) fn port(&self, datapath_id: u64, reason: PortReason, port: Box<Port>) {
        self.change(datapath_id, |of_switch| {
            let number = port.port_no;
            if of_switch.ports.len() >= MAX_PORTS && !of_switch.ports.contains_key(&number) {
                // The application begins anew with the switch, and so sees all ports.
                *of_switch = OfSwitch { down: true, up: true, ..OfSwitch::default() };
                return;
            }
            let has_link = reason != PortReason::Delete && !port.state.contains(PortState::LINK_DOWN);
            let change = of_switch.ports.entry(number).or_default();
            if has_link {
                change.has = Some((reason, port));
            } else {
                *change = PortChange { lost: Some((reason, port)), has: None };
            }
        });
    }

    pub(crate) fn removed(&self, datapath_id: u64, removed: FlowRemoved) {
        self.change(datapath_id, |of_switch| {
            if of_switch.removed.len() < MAX_REMOVED {
                of_switch.removed.push_back(Box::new(removed));
            } else {
                of_switch.audit = true;
            }
        });
    }

    pub(crate) fn audit(&self, datapath_id: u64) {
        self.change(datapath_id, |of_switch| of_switch.audit = true);
    }

    pub(crate) fn packet(&self, datapath_id: u64, packet: PacketIn) {
        let mut waiting = self.waiting();
        if waiting.packets.len() >= MAX_PACKETS {
            PACKETS_LOST.inc();
            return;
        }
        waiting.packets.push_back((datapath_id, Box::new(packet)));
        drop(waiting);
        self.filled.notify_one();
    }

    /// Whether nothing waits; then [`Events::next`] has to wait, too.
    fn is_empty(&self) -> bool {
        let waiting = self.waiting();
        waiting.turns.is_empty() && waiting.packets.is_empty()
    }
}

/// A switch's event as it waits: a view is made when the application takes it, so it is never an old one.
enum Next {
    Up(u64),
    Event(Event),
}

impl Waiting {
    fn take(&mut self) -> Option<Next> {
        while let Some(datapath_id) = self.turns.pop_front() {
            let Some(of_switch) = self.switches.get_mut(&datapath_id) else { continue };
            let next = of_switch.take(datapath_id);
            if of_switch.is_empty() {
                self.switches.remove(&datapath_id);
            } else {
                self.turns.push_back(datapath_id);
            }
            if next.is_some() {
                return next;
            }
        }
        let (datapath_id, packet) = self.packets.pop_front()?;
        Some(Next::Event(Event::Packet { datapath_id, packet }))
    }
}

impl OfSwitch {
    fn is_empty(&self) -> bool {
        !self.down && !self.up && !self.audit && self.ports.is_empty() && self.removed.is_empty()
    }

    fn take(&mut self, datapath_id: u64) -> Option<Next> {
        if std::mem::take(&mut self.down) {
            return Some(Next::Event(Event::SwitchDown(datapath_id)));
        }
        if std::mem::take(&mut self.up) {
            return Some(Next::Up(datapath_id));
        }
        if let Some(mut first) = self.ports.first_entry() {
            let change = first.get_mut();
            let of_port = change.lost.take().or_else(|| change.has.take());
            if change.has.is_none() {
                first.remove();
            }
            let (reason, port) = of_port?;
            return Some(Next::Event(Event::Port { datapath_id, reason, port }));
        }
        if let Some(removed) = self.removed.pop_front() {
            return Some(Next::Event(Event::Removed { datapath_id, removed }));
        }
        std::mem::take(&mut self.audit).then_some(Next::Event(Event::Audit(datapath_id)))
    }
}

/// The events of an application, for its task.
#[derive(Debug)]
pub struct Events {
    pub(super) fabric: Arc<Fabric>,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Events {
    /// The next event: first what concerns switches, then packets. A call that is given up loses nothing.
    pub async fn next(&mut self) -> Event {
        loop {
            let taken = self.mailbox.waiting().take();
            match taken {
                Some(Next::Event(event)) => return event,
                Some(Next::Up(datapath_id)) => {
                    // One that is gone again has left an event behind that says so.
                    let view = self.fabric.switch(datapath_id).filter(|view| view.connected);
                    if let Some(view) = view {
                        return Event::SwitchUp(view);
                    }
                }
                None => self.mailbox.filled.notified().await,
            }
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.mailbox.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::App;
    use crate::switch::connection::{Connection, Dialect};
    use crate::switch::fabric::Joining;
    use openflow::{Match, PacketInReason, PortConfig, PortStatus, TableId, Text};

    fn port(number: u32, has_link: bool) -> Port {
        Port {
            port_no: PortNo(number),
            hw_addr: openflow::MacAddr([2, 0, 0, 0, 0, 1]),
            name: Text::new("port"),
            config: PortConfig::default(),
            state: if has_link { PortState::LIVE } else { PortState::LINK_DOWN },
            current: 0,
            advertised: 0,
            supported: 0,
            peer: 0,
            current_speed_kbps: 0,
            max_speed_kbps: 0,
        }
    }

    fn packet() -> PacketIn {
        PacketIn {
            buffer_id: openflow::BufferId::NO_BUFFER,
            total_len: 0,
            reason: PacketInReason::Action,
            table_id: TableId(2),
            cookie: App::Forwarding.cookie(),
            matching: Match::default(),
            data: Vec::new(),
        }
    }

    fn removed(table: u8) -> FlowRemoved {
        FlowRemoved {
            cookie: App::Forwarding.cookie(),
            priority: 1,
            reason: openflow::FlowRemovedReason::Delete,
            table_id: TableId(table),
            duration: openflow::Duration::default(),
            idle_timeout_s: 0,
            hard_timeout_s: 0,
            packet_count: 0,
            byte_count: 0,
            matching: Match::default(),
        }
    }

    struct Bench {
        fabric: Arc<Fabric>,
        events: Events,
    }

    impl Bench {
        fn new() -> Bench {
            let fabric = Fabric::new([(1, "one".to_owned()), (2, "two".to_owned())]);
            let events = fabric.attach(App::Forwarding);
            Bench { fabric, events }
        }

        fn connect(&self, datapath_id: u64) -> Arc<Connection> {
            let connection = Arc::new(Connection::new(tokio::sync::mpsc::channel(8).0));
            let joining = Joining {
                dialect: Dialect::Native,
                software: String::new(),
                ports: vec![port(1, true), port(2, true)],
            };
            assert!(self.fabric.join(datapath_id, &connection, joining));
            connection
        }

        /// What has happened so far, in short.
        async fn all(&mut self) -> Vec<String> {
            let mut all = Vec::new();
            while !self.events.is_empty() {
                all.push(match self.events.next().await {
                    Event::SwitchUp(view) => format!("up {}", view.datapath_id),
                    Event::SwitchDown(id) => format!("down {id}"),
                    Event::Port { datapath_id, port, .. } => {
                        let link = !port.state.contains(PortState::LINK_DOWN);
                        format!("port {datapath_id}.{} {link}", port.port_no.0)
                    }
                    Event::Packet { datapath_id, .. } => format!("packet {datapath_id}"),
                    Event::Removed { datapath_id, .. } => format!("removed {datapath_id}"),
                    Event::Audit(id) => format!("audit {id}"),
                });
            }
            all
        }
    }

    /// Whatever comes before it, an application hears of a connection.
    #[tokio::test]
    async fn no_connection_is_missed_however_many_packets_wait() {
        let mut bench = Bench::new();
        let first = bench.connect(1);
        for _ in 0..2 * MAX_PACKETS {
            bench.fabric.packet_in(1, packet());
        }
        for _ in 0..2 * MAX_PACKETS {
            bench.fabric.port_status(1, PortStatus { reason: PortReason::Modify, port: port(1, true) });
        }
        bench.connect(2);
        bench.fabric.leave(1, &first, "test");
        bench.connect(1);
        let all = bench.all().await;
        assert_eq!(all[..3], ["down 1", "up 2", "up 1"]);
        assert_eq!(all.len(), 3 + MAX_PACKETS);
    }

    /// A link that comes back before the application has looked was lost nevertheless: what is behind it may be another station.
    #[tokio::test]
    async fn a_lost_link_is_heard_of_once_and_in_order() {
        let mut bench = Bench::new();
        bench.connect(1);
        assert_eq!(bench.all().await, ["up 1"]);
        for _ in 0..5 {
            for has_link in [false, true] {
                bench
                    .fabric
                    .port_status(1, PortStatus { reason: PortReason::Modify, port: port(2, has_link) });
            }
        }
        assert_eq!(bench.all().await, ["port 1.2 false", "port 1.2 true"]);
    }

    /// A switch that invents ports and removals takes bounded memory, and the application looks at everything again.
    #[tokio::test]
    async fn what_a_switch_makes_up_is_bounded() {
        let mut bench = Bench::new();
        bench.connect(1);
        assert_eq!(bench.all().await, ["up 1"]);
        for number in 10..10 + 2 * MAX_PORTS as u32 {
            for reason in [PortReason::Add, PortReason::Delete] {
                bench.fabric.port_status(1, PortStatus { reason, port: port(number, true) });
            }
        }
        let waiting = bench.events.mailbox.waiting().switches[&1].ports.len();
        assert!(waiting <= MAX_PORTS, "{waiting}");
        assert_eq!(bench.all().await[..2], ["down 1", "up 1"]);
        for _ in 0..2 * MAX_REMOVED {
            bench.events.mailbox.removed(1, removed(2));
        }
        let all = bench.all().await;
        assert_eq!((all.len(), all.last().unwrap().as_str()), (MAX_REMOVED + 1, "audit 1"));
    }
}
