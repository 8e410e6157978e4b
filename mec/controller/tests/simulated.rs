//! The controller with simulated switches, which lose and invent rules, refuse, and lose their connection, all from a seed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use controller::frame::Station;
use controller::rule::{APP_MASK, App, Kind, RuleKey};
use controller::{Config, Controller, frame};
use net::tcp;
use net::time::{self, Duration};
use openflow::multipart::{Reply, Request};
use openflow::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Longer than a move in order waits for its tokens, so that its answer says which were lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a switch has, over its connections.
#[derive(Default)]
struct Tables {
    flows: Vec<FlowStats>,
    /// Where each flow is; out of date if it has another length.
    places: HashMap<RuleKey, usize>,
    /// Flow-mods so far.
    changes: usize,
    /// Refuses flow-mods of a table from this number of flows on.
    full_at: Option<(u8, usize)>,
    /// Packets that the controller has sent by port 2 in the name of port 1.
    sent_on: usize,
    no_bundles: bool,
    /// Refuses every flow-mod.
    refuses: bool,
    /// Anchors that do not answer.
    mute: Vec<IpAddr>,
    /// Has ports that hold packets.
    holds: bool,
    /// Packets of bundles, in their order.
    sent: Vec<PacketOut>,
    /// What has happened to rules and packets of moves in order.
    history: Vec<String>,
    /// Bundles of the present connection that wait for their commit.
    bundles: BTreeMap<u32, Bundle>,
    /// Messages for bundles so far.
    bundled: usize,
}

/// Flow-mods with their transactions, and packets.
#[derive(Default)]
struct Bundle {
    changes: Vec<(u32, FlowMod)>,
    packets: Vec<PacketOut>,
}

impl Tables {
    fn apply(&mut self, change: &FlowMod) -> Result<(), Code> {
        self.changes += 1;
        if self.refuses {
            return Err(Code::OFPFMFC_EPERM);
        }
        let (table, priority) = (change.table_id, change.priority);
        let key = RuleKey { table, priority, matching: change.matching.clone() };
        let at = self.find(&key);
        let kind = Kind::of_cookie(at.map_or(change.cookie, |at| self.flows[at].cookie));
        if let Some(kind @ (Kind::Hold | Kind::Token | Kind::T1High | Kind::SgiDown)) = kind {
            self.history.push(format!("{:?} {}", change.command, kind.name()));
        }
        match change.command {
            FlowModCommand::Add => {
                let is_full = |(table, most)| change.table_id == TableId(table) && self.count(table) >= most;
                if self.full_at.is_some_and(is_full) {
                    return Err(Code::OFPFMFC_TABLE_FULL);
                }
                let flow = FlowStats {
                    table_id: change.table_id,
                    duration: openflow::Duration::default(),
                    priority: change.priority,
                    idle_timeout_s: change.idle_timeout_s,
                    hard_timeout_s: change.hard_timeout_s,
                    flags: change.flags,
                    cookie: change.cookie,
                    packet_count: 0,
                    byte_count: 0,
                    matching: change.matching.clone(),
                    instructions: change.instructions.clone(),
                };
                match at {
                    Some(at) => self.flows[at] = flow,
                    None => {
                        self.places.insert(key, self.flows.len());
                        self.flows.push(flow);
                    }
                }
            }
            FlowModCommand::DeleteStrict => {
                let is_meant =
                    |at: &usize| (self.flows[*at].cookie ^ change.cookie) & change.cookie_mask == 0;
                if let Some(at) = at.filter(is_meant) {
                    self.flows.swap_remove(at);
                    self.places.remove(&key);
                    if let Some(moved) = self.flows.get(at) {
                        self.places.insert(key_of(moved), at);
                    }
                }
            }
            other => panic!("the controller does not send {other:?}"),
        }
        Ok(())
    }

    fn find(&mut self, key: &RuleKey) -> Option<usize> {
        if self.places.len() != self.flows.len() {
            self.places = self.flows.iter().map(key_of).zip(0..).collect();
        }
        self.places.get(key).copied()
    }

    fn count(&self, table: u8) -> usize {
        self.flows.iter().filter(|flow| flow.table_id == TableId(table)).count()
    }

    fn of(&self, app: App, kind: Kind) -> usize {
        self.flows.iter().filter(|flow| flow.cookie == app.cookie() | kind as u64).count()
    }

    /// Everything of an application, in a form that can be compared.
    fn shape(&self, app: App) -> BTreeSet<String> {
        let own = self.flows.iter().filter(|flow| flow.cookie & APP_MASK == app.cookie());
        own.map(|flow| format!("{:?}", (flow.table_id, flow.priority, &flow.matching, &flow.instructions)))
            .collect()
    }
}

fn key_of(flow: &FlowStats) -> RuleKey {
    RuleKey { table: flow.table_id, priority: flow.priority, matching: flow.matching.clone() }
}

/// One connection of a switch, until the controller or the test ends it.
struct Connection {
    datapath_id: u64,
    tables: Arc<Mutex<Tables>>,
    stream: tcp::TcpStream,
    /// What the test has it tell the controller.
    told: mpsc::UnboundedReceiver<Message>,
}

fn ports(holds: bool) -> Vec<Port> {
    let port = |number: PortNo, name: &str| Port {
        port_no: number,
        hw_addr: MacAddr([2, 0, 0, 0, 9, number.0 as u8]),
        name: Text::new(name),
        config: PortConfig::default(),
        state: PortState::LIVE,
        current: 0,
        advertised: 0,
        supported: 0,
        peer: 0,
        current_speed_kbps: 0,
        max_speed_kbps: 0,
    };
    let mut all = vec![
        port(PortNo(1), "ran"),
        port(PortNo(2), "core"),
        port(PortNo(100), "gtp"),
        port(PortNo::LOCAL, "local"),
    ];
    if holds {
        all.extend([port(PortNo(101), "hold"), port(PortNo(102), "release")]);
    }
    all
}

impl Connection {
    async fn run(mut self) {
        self.send(0, Hello::OURS.into()).await;
        let mut framer = Framer::default();
        let mut chunk = vec![0; 65_536];
        loop {
            let length = tokio::select! {
                Some(message) = self.told.recv() => {
                    self.send(0, message).await;
                    continue;
                }
                read = self.stream.read(&mut chunk) => read.unwrap_or(0),
            };
            if length == 0 {
                return;
            }
            framer.push(&chunk[..length]);
            while let Some(octets) = framer.next_message().unwrap() {
                let octets = octets.to_vec();
                let (xid, message) = Message::decode(&octets).unwrap();
                self.message(xid, message, &octets).await;
            }
        }
    }

    async fn send(&mut self, xid: u32, message: Message) {
        // The controller may have gone.
        let _ = self.stream.write_all(&message.encode(xid).unwrap()).await;
    }

    async fn error(&mut self, xid: u32, code: Code, octets: &[u8]) {
        self.send(xid, code.about(octets).into()).await;
    }

    async fn message(&mut self, xid: u32, message: Message, octets: &[u8]) {
        let no_bundles = self.tables.lock().unwrap().no_bundles;
        match message {
            Message::EchoRequest(data) => self.send(xid, Message::EchoReply(data)).await,
            Message::FeaturesRequest(()) => {
                let features = Features {
                    datapath_id: self.datapath_id,
                    n_buffers: 0,
                    n_tables: 8,
                    auxiliary_id: 0,
                    capabilities: Capabilities::FLOW_STATS,
                };
                self.send(xid, Message::FeaturesReply(features)).await;
            }
            Message::MultipartRequest(Multipart { body, .. }) => {
                let reply = match body {
                    Request::Desc(()) => Reply::Desc(Box::new(Desc {
                        manufacturer: Text::new("test"),
                        hardware: Text::new("simulated"),
                        software: Text::new("1"),
                        serial_number: Text::new("1"),
                        datapath: Text::new("test"),
                    })),
                    Request::PortDesc(()) => Reply::PortDesc(ports(self.tables.lock().unwrap().holds)),
                    Request::Flow(asked) => {
                        let is_asked =
                            |flow: &&FlowStats| (flow.cookie ^ asked.cookie) & asked.cookie_mask == 0;
                        Reply::Flow(
                            self.tables.lock().unwrap().flows.iter().filter(is_asked).cloned().collect(),
                        )
                    }
                    other => panic!("{other:?}"),
                };
                for part in reply.into_parts() {
                    self.send(xid, part.into()).await;
                }
            }
            Message::BundleControl(_) | Message::BundleAdd(_) if no_bundles => {
                self.error(xid, Code::OFPBRC_BAD_EXPERIMENTER, octets).await;
            }
            Message::BundleAdd(BundleAdd { bundle_id, change, .. }) => {
                let mut tables = self.tables.lock().unwrap();
                tables.bundled += 1;
                let bundle = tables.bundles.get_mut(&bundle_id).unwrap();
                match change {
                    Change::FlowMod(change) => bundle.changes.push((xid, change)),
                    Change::PacketOut(packet) => bundle.packets.push(packet),
                    Change::GroupMod(_) => panic!("the controller has no groups"),
                }
            }
            Message::BundleControl(control) => self.bundle(xid, control, octets).await,
            Message::FlowMod(change) => {
                let result = self.tables.lock().unwrap().apply(&change);
                if let Err(code) = result {
                    self.error(xid, code, octets).await;
                }
            }
            Message::BarrierRequest(()) => self.send(xid, Message::BarrierReply(())).await,
            Message::PacketOut(packet) => {
                let to_2 = packet.actions == [Action::output(PortNo(2))] && packet.in_port == PortNo(1);
                self.tables.lock().unwrap().sent_on += usize::from(to_2);
                self.answer_echo(&packet.data).await;
            }
            _ => {}
        }
    }

    async fn bundle(&mut self, xid: u32, control: BundleControl, octets: &[u8]) {
        let reply = |kind| Message::from(BundleControl { kind, ..control });
        match control.kind {
            BundleControlType::OpenRequest => {
                self.tables.lock().unwrap().bundles.insert(control.bundle_id, Bundle::default());
                self.send(xid, reply(BundleControlType::OpenReply)).await;
            }
            BundleControlType::CommitRequest => {
                let bundle = self.tables.lock().unwrap().bundles.remove(&control.bundle_id);
                let Some(Bundle { changes, packets }) = bundle else {
                    self.error(xid, Code::OFPBFC_BAD_ID, octets).await;
                    return;
                };
                let failed = {
                    let mut tables = self.tables.lock().unwrap();
                    let before = tables.flows.clone();
                    let failed = changes
                        .iter()
                        .find_map(|(xid, change)| tables.apply(change).err().map(|code| (*xid, code)));
                    if failed.is_some() {
                        tables.flows = before;
                        tables.places.clear();
                    } else {
                        for packet in packets {
                            let opens = packet.actions.contains(&Action::output(PortNo(102)));
                            tables.history.push(if opens { "opened" } else { "token sent" }.to_owned());
                            tables.sent.push(packet);
                        }
                    }
                    failed
                };
                match failed {
                    Some((of_change, code)) => {
                        self.error(of_change, code, octets).await;
                        self.error(xid, Code::OFPBFC_MSG_FAILED, octets).await;
                    }
                    None => self.send(xid, reply(BundleControlType::CommitReply)).await,
                }
            }
            BundleControlType::CloseRequest => self.send(xid, reply(BundleControlType::CloseReply)).await,
            BundleControlType::DiscardRequest => {
                self.tables.lock().unwrap().bundles.remove(&control.bundle_id);
                self.send(xid, reply(BundleControlType::DiscardReply)).await;
            }
            other => panic!("{other:?}"),
        }
    }

    /// Both anchors are there: an Echo Request comes back as the response.
    async fn answer_echo(&mut self, data: &[u8]) {
        let Some((from, to, udp)) = frame::datagram(data) else { return };
        if self.tables.lock().unwrap().mute.contains(&to) {
            return;
        }
        let Ok(Some(packet::gtpu::Signalling::EchoRequest { sequence })) =
            packet::gtpu::decode(udp.payload())
        else {
            return;
        };
        let message = packet::gtpu::Signalling::EchoResponse { sequence }.build();
        let datagram = packet::transport::build_udp((to, 2152), (from, 2152), &message).unwrap();
        let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { return };
        let packet = packet::ipv4::Header::new(to, from, 17).build(&datagram).unwrap();
        let data = packet::ethernet::build([2; 6], [4; 6], None, 0x0800, &packet);
        let packet = PacketIn {
            buffer_id: BufferId::NO_BUFFER,
            total_len: data.len() as u16,
            reason: PacketInReason::Action,
            table_id: TableId(0),
            cookie: App::Diverting.cookie() | Kind::Probe as u64,
            matching: Match::new([Oxm::in_port(PortNo(2))]).unwrap(),
            data,
        };
        self.send(0, packet.into()).await;
    }
}

/// A switch that can be connected and disconnected.
struct Switch {
    datapath_id: u64,
    tables: Arc<Mutex<Tables>>,
    task: Option<tokio::task::JoinHandle<()>>,
    tell: Option<mpsc::UnboundedSender<Message>>,
}

impl Switch {
    fn new() -> Switch {
        Switch::with_id(1)
    }

    fn with_id(datapath_id: u64) -> Switch {
        Switch { datapath_id, tables: Arc::default(), task: None, tell: None }
    }

    async fn connect(&mut self, controller: SocketAddr) {
        self.disconnect();
        let stream = tcp::connect(controller, PATIENCE).await.unwrap();
        let (datapath_id, tables) = (self.datapath_id, self.tables.clone());
        let (tell, told) = mpsc::unbounded_channel();
        tables.lock().unwrap().bundles.clear();
        let connection = Connection { datapath_id, tables, stream, told };
        self.tell = Some(tell);
        self.task = Some(tokio::spawn(connection.run()));
    }

    /// A packet that found no rule in table 2.
    fn packet(&self, in_port: u32, from: MacAddr, to: MacAddr) {
        self.no_rule(in_port, packet::ethernet::build(to.0, from.0, None, 0x88b5, b"anything"));
    }

    fn no_rule(&self, in_port: u32, data: Vec<u8>) {
        let packet = PacketIn {
            buffer_id: BufferId::NO_BUFFER,
            total_len: data.len() as u16,
            reason: PacketInReason::Action,
            table_id: TableId(2),
            cookie: App::Forwarding.cookie() | Kind::T2Low as u64,
            matching: Match::new([Oxm::in_port(PortNo(in_port))]).unwrap(),
            data,
        };
        self.tell.as_ref().unwrap().send(packet.into()).unwrap();
    }

    /// An answer to a question for an address, to the one who forwards.
    fn answer(&self, in_port: u32, station: Station) {
        let IpAddr::V4(ip) = station.ip else { panic!("IPv4") };
        let own = [&station.mac.0[..], &ip.octets()].concat();
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &own, &[2, 1, 0, 0, 0, 2, 0, 0, 0, 0]].concat();
        let data = packet::ethernet::build([2, 1, 0, 0, 0, 2], station.mac.0, None, 0x0806, &arp);
        self.no_rule(in_port, data);
    }

    fn disconnect(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

fn config(folder: &tempfile::TempDir) -> Config {
    serde_json::from_value(json!({
        "openflow": "127.0.0.1:0", "rest": "127.0.0.1:0", "state": folder.path().join("state"), "audit_s": 0,
        "switches": [{"name": "edge1", "datapath_id": 1, "place": "access", "probe": "10.0.0.250"}],
        "anchors": [
            {"name": "gw1", "address": "10.0.0.11", "mac": "02:00:00:00:00:11"},
            {"name": "gw2", "address": "10.0.0.12", "mac": "02:00:00:00:00:12"},
        ],
        "base_stations": [{"name": "enb1", "address": "10.0.0.1", "mac": "02:00:00:00:00:01", "switch": "edge1", "access": "4g"}],
        "diverting": {"echo_ms": 20, "restore": false},
    }))
    .unwrap()
}

/// With a switch on N6, and three anchors.
fn with_n6(mut config: Config) -> Config {
    let n6 = json!({"name": "n6", "datapath_id": 2, "place": "sgi"});
    config.switches.push(serde_json::from_value(n6).unwrap());
    let gw3 = json!({"name": "gw3", "address": "10.0.0.13", "mac": "02:00:00:00:00:13"});
    config.anchors.push(serde_json::from_value(gw3).unwrap());
    for (number, anchor) in (1..).zip(&mut config.anchors) {
        let sgi = json!({"switch": "n6", "mac": format!("02:00:00:00:01:1{number}")});
        anchor.sgi = Some(serde_json::from_value(sgi).unwrap());
    }
    config
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = time::now() + PATIENCE;
    while !is_so().await {
        assert!(time::now() < deadline, "{what} does not become so");
        time::sleep(Duration::from_millis(5)).await;
    }
}

async fn call(controller: &Controller, method: &str, path: &str, body: Value) -> (u16, Value) {
    let answer = nf::rest::call(PATIENCE, controller.rest(), method, path, Some(&body)).await.unwrap();
    (answer.status, answer.body)
}

async fn alive(controller: &Controller) {
    until("alive", async || {
        let anchors = controller.diverting().anchors().await.unwrap();
        anchors.len() >= 2 && anchors.iter().all(|anchor| anchor.alive)
    })
    .await;
}

fn user(number: u32) -> Value {
    json!({"ue": format!("10.45.0.{number}"), "tunnels": [{"uplink": number}], "from": "gw1", "to": "gw2",
        "base_station": "enb1", "confirmed_by": "test"})
}

/// Waits until no change has come for a while.
async fn quiet(switch: &Switch) {
    let mut seen = usize::MAX;
    loop {
        let now = switch.tables.lock().unwrap().changes;
        if now == seen {
            return;
        }
        seen = now;
        time::sleep(Duration::from_millis(150)).await;
    }
}

/// The rules of Table I as our switch gets them.
#[tokio::test]
async fn the_rules_are_those_of_table_i() {
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(config(&folder)).await.unwrap();
    let mut switch = Switch::new();
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    let mut one = user(5);
    one.as_object_mut().unwrap().remove("tunnels");
    assert_eq!(call(&controller, "POST", "/v1/diversions", one).await.0, 200);
    let tables = switch.tables.lock().unwrap();
    let find = |kind: Kind| {
        let found: Vec<_> =
            tables.flows.iter().filter(|flow| Kind::of_cookie(flow.cookie) == Some(kind)).collect();
        found.into_iter().max_by_key(|flow| flow.priority).unwrap()
    };
    let high = find(Kind::T0High);
    assert_eq!(
        (high.table_id, high.matching.in_port(), high.instructions.goto_table),
        (TableId(0), Some(PortNo(100)), Some(TableId(1))),
        "SW-T0-H"
    );
    // For every base station of the switch and every anchor, both ways: a user may hand over at any time.
    let to_tunnels = tables.flows.iter().filter(|flow| {
        Kind::of_cookie(flow.cookie) == Some(Kind::T0Decapsulate) && flow.matching.udp_dst() == Some(2152)
    });
    let ends = to_tunnels.clone().map(|flow| (flow.matching.ipv4_src(), flow.matching.ipv4_dst()));
    let ends: BTreeSet<_> = ends.map(|(from, to)| (from.unwrap(), to.unwrap())).collect();
    let known = config(&folder);
    let stations = known.base_stations.iter().filter(|station| station.switch == known.switches[0].name);
    let pairs =
        stations.flat_map(|station| known.anchors.iter().map(|anchor| (station.address, anchor.address)));
    let both = pairs.flat_map(|(a, b)| [(a, b), (b, a)]);
    let both = both.filter_map(|ends| match ends {
        (IpAddr::V4(from), IpAddr::V4(to)) => Some((from, to)),
        _ => None,
    });
    assert_eq!(ends, both.collect(), "SW-T0-M1");
    let m1 = to_tunnels.into_iter().next().unwrap();
    assert_eq!(
        m1.instructions.apply_actions.as_deref(),
        Some(&[Action::output(PortNo::LOCAL)][..]),
        "SW-T0-M1"
    );
    let m2 = find(Kind::T0Encapsulated);
    let to_target = Action::set(Oxm::eth_dst(MacAddr([2, 0, 0, 0, 0, 0x12]))).unwrap();
    assert_eq!(
        (m2.instructions.apply_actions.as_deref(), m2.instructions.goto_table),
        (Some(&[to_target][..]), Some(TableId(2))),
        "SW-T0-M2"
    );
    let user = find(Kind::T1High);
    let steer =
        [Action::set(Oxm::tun_ipv4_dst([10, 0, 0, 12].into())).unwrap(), Action::output(PortNo::IN_PORT)];
    assert_eq!(
        (user.matching.ipv4_src(), user.instructions.apply_actions.as_deref()),
        (Some([10, 45, 0, 5].into()), Some(&steer[..])),
        "SW-T1-H"
    );
    assert!(find(Kind::T1Low).priority < user.priority, "SW-T1-L");
    assert_eq!(
        (find(Kind::T0Low).instructions.goto_table, find(Kind::T2Low).table_id),
        (Some(TableId(2)), TableId(2)),
        "SW-T0-L, SW-T2-L"
    );
    // SW-6: table 2 is forwarding's, table 1 is diverting's.
    let owner = |flow: &FlowStats| App::of_cookie(flow.cookie);
    assert!(
        tables.flows.iter().all(|flow| flow.table_id != TableId(2) || owner(flow) == Some(App::Forwarding)),
        "SW-6"
    );
    assert!(
        tables.flows.iter().all(|flow| flow.table_id != TableId(1) || owner(flow) == Some(App::Diverting)),
        "SW-6"
    );
}

/// A switch that comes back as it was gets no flow-mod; with and without bundles.
#[tokio::test]
async fn nothing_is_sent_when_nothing_differs() {
    for no_bundles in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut switch = Switch::new();
        switch.tables.lock().unwrap().no_bundles = no_bundles;
        let controller = Controller::start(config(&folder)).await.unwrap();
        switch.connect(controller.openflow()).await;
        alive(&controller).await;
        let all: Value = (1..=50).map(user).collect();
        assert_eq!(call(&controller, "POST", "/v1/diversions", all).await.0, 200);
        assert_eq!(switch.tables.lock().unwrap().of(App::Diverting, Kind::T1High), 50);
        quiet(&switch).await;
        let (changes, shape) = {
            let tables = switch.tables.lock().unwrap();
            (tables.changes, tables.shape(App::Diverting))
        };
        switch.connect(controller.openflow()).await;
        time::sleep(Duration::from_millis(300)).await;
        assert_eq!(switch.tables.lock().unwrap().changes, changes, "reconnection");
        // Another controller that reads the same state.
        drop(controller);
        let controller = Controller::start(config(&folder)).await.unwrap();
        switch.connect(controller.openflow()).await;
        alive(&controller).await;
        time::sleep(Duration::from_millis(300)).await;
        assert_eq!(controller.diverting().list().await.unwrap().len(), 50);
        let tables = switch.tables.lock().unwrap();
        assert_eq!((tables.changes, tables.shape(App::Diverting)), (changes, shape), "restart");
    }
}

/// After a restart the switch on N6 may come first: it keeps the rules of diverted users until it is known what they need.
#[tokio::test]
async fn a_restart_keeps_the_return_path() {
    let folder = tempfile::tempdir().unwrap();
    let config = || with_n6(config(&folder));
    let (mut access, mut n6) = (Switch::new(), Switch::with_id(2));
    let controller = Controller::start(config()).await.unwrap();
    access.connect(controller.openflow()).await;
    n6.connect(controller.openflow()).await;
    alive(&controller).await;
    assert_eq!(call(&controller, "POST", "/v1/diversions", user(1)).await.0, 200);
    until("the return path", async || n6.tables.lock().unwrap().of(App::Diverting, Kind::SgiDown) == 1).await;
    let shape = n6.tables.lock().unwrap().shape(App::Diverting);
    drop(controller);
    let controller = Controller::start(config()).await.unwrap();
    n6.connect(controller.openflow()).await;
    time::sleep(Duration::from_millis(500)).await;
    assert_eq!(n6.tables.lock().unwrap().shape(App::Diverting), shape, "before the access switch");
    access.connect(controller.openflow()).await;
    alive(&controller).await;
    quiet(&n6).await;
    assert_eq!(n6.tables.lock().unwrap().shape(App::Diverting), shape, "after it");
    assert_eq!(call(&controller, "DELETE", "/v1/diversions/gw1%7E10.45.0.1", Value::Null).await.0, 200);
    assert_eq!(n6.tables.lock().unwrap().of(App::Diverting, Kind::SgiDown), 0);
}

/// A switch that is away goes on steering packets: whoever removes state behind it must know.
#[tokio::test]
async fn a_switch_that_is_away_is_named_until_it_has_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    let mut switch = Switch::new();
    let controller = Controller::start(config(&folder)).await.unwrap();
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    assert_eq!(call(&controller, "POST", "/v1/diversions", user(1)).await.0, 200);
    let steered = |switch: &Switch| switch.tables.lock().unwrap().of(App::Diverting, Kind::T1High);
    assert_eq!(steered(&switch), 1);
    drop(controller);
    let controller = Controller::start(config(&folder)).await.unwrap();
    let undivert = async || call(&controller, "DELETE", "/v1/diversions/gw1%7E10.45.0.1", Value::Null).await;
    for _ in 0..2 {
        let (status, done) = undivert().await;
        assert_eq!((status, &done["pending"]), (200, &json!(["edge1"])), "{done}");
    }
    switch.connect(controller.openflow()).await;
    until("it has the rules", async || undivert().await.1["pending"] == json!([])).await;
    assert_eq!(steered(&switch), 0);
}

/// SEL-4, SEL-5: packets that the anchor sent before its user went elsewhere still get the user's tunnel and address. Their rules go later;
/// those that bring packets to the anchor go at once. A user who comes back in between keeps them.
#[tokio::test]
async fn rules_of_an_old_way_outlast_its_last_packets() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = with_n6(config(&folder));
    config.diverting.old_ways_ms = 200;
    let longest = Duration::from_millis(config.diverting.old_ways_ms);
    let (mut access, mut n6) = (Switch::new(), Switch::with_id(2));
    let controller = Controller::start(config).await.unwrap();
    access.connect(controller.openflow()).await;
    n6.connect(controller.openflow()).await;
    alive(&controller).await;
    // To the anchor, and from it: user's rules uplink, and everything else.
    let count = |n6: &Switch, access: &Switch| {
        let of = |switch: &Switch, kind| switch.tables.lock().unwrap().of(App::Diverting, kind);
        [of(n6, Kind::SgiDown), of(n6, Kind::SgiUp), of(access, Kind::T1High)]
    };
    let before = count(&n6, &access);
    let mut diversion = user(1);
    diversion["tunnels"] = json!([{"uplink": 1, "downlink": 2, "target_uplink": 3, "target_downlink": 4}]);
    diversion["target_address"] = json!("10.46.0.9");
    assert_eq!(call(&controller, "POST", "/v1/diversions", diversion.clone()).await.0, 200);
    let there = count(&n6, &access);
    assert_eq!(there, [before[0] + 1, before[1] + 1, before[2] + 3]);
    let path = "/v1/diversions/gw1%7E10.45.0.1";
    for _ in 0..2 {
        let left = time::now();
        assert_eq!(call(&controller, "DELETE", path, Value::Null).await.0, 200);
        let on_their_way = count(&n6, &access);
        if time::now() - left < longest {
            assert_eq!(on_their_way, [before[0], before[1] + 1, before[2] + 2]);
        }
        // Back before the time is over: nothing is removed then.
        assert_eq!(call(&controller, "POST", "/v1/diversions", diversion.clone()).await.0, 200);
        time::sleep(2 * longest).await;
        assert_eq!(count(&n6, &access), there);
    }
    assert_eq!(call(&controller, "DELETE", path, Value::Null).await.0, 200);
    until("the rules are gone", async || count(&n6, &access) == before).await;
    // To another anchor: the rules for what comes from the second one go later as well.
    assert_eq!(call(&controller, "POST", "/v1/diversions", diversion.clone()).await.0, 200);
    diversion["to"] = json!("gw3");
    let left = time::now();
    assert_eq!(call(&controller, "POST", "/v1/diversions", diversion).await.0, 200);
    if time::now() - left < longest {
        assert_eq!(count(&n6, &access), [there[0], there[1] + 1, there[2] + 2]);
    }
    until("only those of the third are left", async || count(&n6, &access) == there).await;
}

/// A switch that refuses: the error goes to whoever asked, and everything is as it was.
#[tokio::test]
async fn a_refusal_is_reported_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut switch = Switch::new();
    let controller = Controller::start(config(&folder)).await.unwrap();
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    assert_eq!(call(&controller, "POST", "/v1/diversions", user(1)).await.0, 200);
    let shape = {
        let mut tables = switch.tables.lock().unwrap();
        tables.full_at = Some((1, tables.count(1) + 3));
        tables.shape(App::Diverting)
    };
    let all: Value = (1..=10).map(user).collect();
    let (status, problem) = call(&controller, "POST", "/v1/diversions", all).await;
    assert!(
        status == 502 && problem["detail"].as_str().unwrap().contains("OFPFMFC_TABLE_FULL"),
        "{status} {problem}"
    );
    assert_eq!(switch.tables.lock().unwrap().shape(App::Diverting), shape, "nothing half applied");
    assert_eq!(controller.diverting().list().await.unwrap().len(), 1);
    drop(controller);
    let controller = Controller::start(config(&folder)).await.unwrap();
    assert_eq!(controller.diverting().list().await.unwrap().len(), 1, "nor in the file");
    // The same TEID for two users would be one rule for both.
    switch.tables.lock().unwrap().full_at = None;
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    let mut other = user(2);
    other["tunnels"][0]["uplink"] = json!(1);
    let (status, problem) = call(&controller, "POST", "/v1/diversions", other).await;
    assert!(status == 409 && problem["detail"].as_str().unwrap().contains("TEID 0x1"), "{status} {problem}");
}

/// Random requests, lost and invented rules and lost connections end with the right rules, and foreign ones untouched.
#[tokio::test]
async fn after_random_faults_the_rules_are_right() {
    for seed in 1..=5_u64 {
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let folder = tempfile::tempdir().unwrap();
        let mut switch = Switch::new();
        let controller = Controller::start(config(&folder)).await.unwrap();
        switch.connect(controller.openflow()).await;
        alive(&controller).await;
        let foreign = FlowMod {
            cookie: 0x77,
            ..FlowMod::add(TableId(1), 9, Match::default(), Instructions::default())
        };
        switch.tables.lock().unwrap().apply(&foreign).unwrap();
        let mut diverted = BTreeSet::new();
        for _ in 0..60 {
            let number = random(20) as u32 + 1;
            match random(6) {
                0..=2 => {
                    if call(&controller, "POST", "/v1/diversions", user(number)).await.0 == 200 {
                        diverted.insert(number);
                    }
                }
                3 => {
                    let body = json!({"ues": [format!("10.45.0.{number}")]});
                    assert_eq!(
                        call(&controller, "POST", "/v1/diversions/remove", body).await.0,
                        200,
                        "seed {seed}"
                    );
                    diverted.remove(&number);
                }
                4 => {
                    let mut tables = switch.tables.lock().unwrap();
                    let at = random(tables.flows.len() as u64) as usize;
                    if tables.flows[at].cookie != 0x77 {
                        tables.flows.remove(at);
                    }
                    let invented = Match::new([Oxm::tunnel_id(random(1000))]).unwrap();
                    let cookie = App::Diverting.cookie() | Kind::T1High as u64;
                    let rule = FlowMod::add(TableId(1), 7, invented, Instructions::default());
                    tables.apply(&FlowMod { cookie, ..rule }).unwrap();
                }
                _ => switch.connect(controller.openflow()).await,
            }
        }
        switch.connect(controller.openflow()).await;
        until("complete", async || {
            let tables = switch.tables.lock().unwrap();
            tables.of(App::Diverting, Kind::T1High) == diverted.len()
        })
        .await;
        quiet(&switch).await;
        let tables = switch.tables.lock().unwrap();
        let teids: BTreeSet<u32> = tables
            .flows
            .iter()
            .filter(|flow| Kind::of_cookie(flow.cookie) == Some(Kind::T1High) && flow.cookie != 0x77)
            .map(|flow| flow.matching.tunnel_id().unwrap() as u32)
            .collect();
        assert_eq!(teids, diverted, "seed {seed}");
        assert!(tables.flows.iter().any(|flow| flow.cookie == 0x77), "seed {seed}: foreign rules stay");
    }
}

/// Peers that are no switches, or not ours, do not disturb.
#[tokio::test]
async fn malformed_peers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(config(&folder)).await.unwrap();
    let mut switch = Switch::new();
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    for octets in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[4, 0, 0, 3, 0, 0, 0, 0], &[1, 0, 0, 8, 0, 0, 0, 0]] {
        let mut stream = tcp::connect(controller.openflow(), PATIENCE).await.unwrap();
        stream.write_all(octets).await.unwrap();
        let mut rest = Vec::new();
        let ended = time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "the controller ends it");
    }
    assert_eq!(call(&controller, "POST", "/v1/diversions", user(1)).await.0, 200);
}

fn station(group: u8, number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 9, group, number])
}

/// FWD-5 on N6: who talks with one anchor has rules to and from the others before a user moves there. An anchor that has never sent anything is
/// asked for.
#[tokio::test]
async fn stations_on_n6_have_rules_with_all_anchors() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = with_n6(config(&folder));
    let address: IpAddr = "10.1.0.12".parse().unwrap();
    config.anchors[1].sgi.as_mut().unwrap().address = Some(address);
    let anchors: Vec<MacAddr> =
        config.anchors.iter().map(|anchor| anchor.sgi.as_ref().unwrap().mac).collect();
    let controller = Controller::start(config).await.unwrap();
    let mut n6 = Switch::with_id(2);
    n6.connect(controller.openflow()).await;
    quiet(&n6).await;
    let has = |from: MacAddr, to: MacAddr| {
        let tables = n6.tables.lock().unwrap();
        tables.flows.iter().any(|flow| {
            (flow.matching.eth_src(), flow.matching.eth_dst()) == (Some(from), Some(to))
                && flow.table_id == TableId(2)
        })
    };
    let router = station(1, 1);
    n6.packet(1, router, MacAddr([0xff; 6]));
    n6.packet(2, anchors[0], router);
    until("uplink", async || anchors.iter().all(|anchor| has(*anchor, router))).await;
    n6.packet(1, router, anchors[0]);
    until("downlink", async || has(router, anchors[0])).await;
    assert!(!has(router, anchors[1]), "nobody knows where it is");
    n6.answer(2, Station { mac: anchors[1], ip: address });
    until("downlink to the second anchor", async || has(router, anchors[1])).await;
    assert!(!has(router, anchors[2]) && !has(anchors[0], anchors[1]));
    // Another station has rules with both that are known at once.
    n6.packet(1, station(1, 2), anchors[0]);
    until("another station", async || has(station(1, 2), anchors[1])).await;
    // One that only says that it is the anchor is not.
    n6.answer(1, Station { mac: station(1, 3), ip: address });
    n6.packet(1, station(1, 4), anchors[1]);
    until("a further one", async || has(station(1, 4), anchors[0])).await;
    assert!(!has(router, station(1, 3)));
}

/// FWD-5: a rule towards an anchor that nobody uses idles out; it returns as long as the station's users are at another anchor.
#[tokio::test]
async fn rules_with_an_anchor_return_while_another_one_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let config = with_n6(config(&folder));
    let anchors: Vec<MacAddr> =
        config.anchors.iter().map(|anchor| anchor.sgi.as_ref().unwrap().mac).collect();
    let controller = Controller::start(config).await.unwrap();
    let mut n6 = Switch::with_id(2);
    n6.connect(controller.openflow()).await;
    quiet(&n6).await;
    let router = station(1, 1);
    let at = |to: MacAddr| {
        let pair = (Some(router), Some(to));
        move |flow: &FlowStats| (flow.matching.eth_src(), flow.matching.eth_dst()) == pair
    };
    let has = |to: MacAddr| n6.tables.lock().unwrap().flows.iter().any(at(to));
    n6.packet(2, anchors[1], MacAddr([0xff; 6]));
    n6.packet(2, anchors[0], MacAddr([0xff; 6]));
    n6.packet(1, router, anchors[0]);
    until("rules with both", async || has(anchors[0]) && has(anchors[1])).await;
    let is_used = |to: MacAddr| {
        let mut tables = n6.tables.lock().unwrap();
        tables.flows.iter_mut().find(|flow| at(to)(flow)).unwrap().packet_count = 7;
    };
    let idles_out = |to: MacAddr| {
        let mut tables = n6.tables.lock().unwrap();
        let place = tables.flows.iter().position(at(to)).unwrap();
        let flow = tables.flows.remove(place);
        tables.places.clear();
        let removed = FlowRemoved {
            cookie: flow.cookie,
            priority: flow.priority,
            reason: FlowRemovedReason::IdleTimeout,
            table_id: flow.table_id,
            duration: flow.duration,
            idle_timeout_s: flow.idle_timeout_s,
            hard_timeout_s: flow.hard_timeout_s,
            packet_count: flow.packet_count,
            byte_count: flow.byte_count,
            matching: flow.matching,
        };
        n6.tell.as_ref().unwrap().send(removed.into()).unwrap();
    };
    for _ in 0..2 {
        is_used(anchors[0]);
        idles_out(anchors[1]);
        until("it returns", async || has(anchors[1])).await;
    }
    // The users are at the second one now.
    is_used(anchors[1]);
    idles_out(anchors[0]);
    until("that of the first one returns", async || has(anchors[0])).await;
    // Nobody talks any more: both go, one after the other.
    idles_out(anchors[1]);
    idles_out(anchors[0]);
    quiet(&n6).await;
    assert!(!has(anchors[0]) && !has(anchors[1]));
}

/// However many stations talk, rules are bounded, and the packets of all arrive.
#[tokio::test]
async fn learned_rules_are_bounded_and_packets_without_one_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder);
    config.forwarding.max_rules = 10;
    let controller = Controller::start(config).await.unwrap();
    let mut switch = Switch::new();
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    let learned = |switch: &Switch| switch.tables.lock().unwrap().of(App::Forwarding, Kind::T2Medium);
    for number in 0..5 {
        switch.packet(2, station(2, number), MacAddr([0xff; 6]));
    }
    for (a, b) in (0..5).flat_map(|a| (0..5).map(move |b| (a, b))) {
        switch.packet(1, station(1, a), station(2, b));
    }
    until("all sent on", async || switch.tables.lock().unwrap().sent_on == 25).await;
    assert_eq!(learned(&switch), 10);
    assert_eq!(controller.fabric().wanted(1)["forwarding"], 12);
}

/// A controller that is killed between the rules of the two directions leaves a station that has a rule for all that it sends, so that
/// the next life never hears of it: packets to it must not be flooded for ever.
#[tokio::test]
async fn a_station_that_a_rule_hides_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (station(1, 1), station(2, 2));
    let mut switch = Switch::new();
    let controller = Controller::start(config(&folder)).await.unwrap();
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    let has = |switch: &Switch, from: MacAddr, to: MacAddr| {
        let pair = Match::new([Oxm::eth_src(from), Oxm::eth_dst(to)]).unwrap();
        switch.tables.lock().unwrap().flows.iter().any(|flow| flow.matching == pair)
    };
    switch.packet(1, here, there);
    switch.packet(2, there, here);
    until("the rule back", async || has(&switch, there, here)).await;
    drop(controller);
    let controller = Controller::start(config(&folder)).await.unwrap();
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    assert!(has(&switch, there, here) && !has(&switch, here, there));
    switch.packet(1, here, there);
    until("the station is no longer hidden", async || !has(&switch, there, here)).await;
    switch.packet(2, there, here);
    switch.packet(1, here, there);
    until("both rules", async || has(&switch, there, here) && has(&switch, here, there)).await;
}

/// A rule that a switch refuses is not wanted, so it does not stand in the way of others. It is tried again.
#[tokio::test]
async fn refused_rules_are_forgotten_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(config(&folder)).await.unwrap();
    let mut switch = Switch::new();
    switch.connect(controller.openflow()).await;
    alive(&controller).await;
    quiet(&switch).await;
    {
        let mut tables = switch.tables.lock().unwrap();
        tables.full_at = Some((2, tables.count(2)));
    }
    let learned = |switch: &Switch| switch.tables.lock().unwrap().of(App::Forwarding, Kind::T2Medium);
    switch.packet(2, station(2, 0), MacAddr([0xff; 6]));
    for number in 0..50 {
        switch.packet(1, station(1, number), station(2, 0));
    }
    until("all sent on", async || switch.tables.lock().unwrap().sent_on == 50).await;
    assert_eq!(learned(&switch), 0);
    assert_eq!(controller.fabric().wanted(1)["forwarding"], 2);
    let refusals = || {
        let log = controller.fabric().log(0);
        log.iter().filter(|entry| entry.what.contains("OFPFMFC_TABLE_FULL")).count()
    };
    assert_eq!(refusals(), 1, "it is not asked for every packet");
    switch.tables.lock().unwrap().full_at = None;
    until("tried again", async || {
        switch.packet(1, station(1, 0), station(2, 0));
        learned(&switch) == 1
    })
    .await;
    // A switch that comes back smaller than its rules gets those that everything needs.
    switch.disconnect();
    {
        let mut tables = switch.tables.lock().unwrap();
        tables.flows.retain(|flow| Kind::of_cookie(flow.cookie) == Some(Kind::T2Medium));
        tables.full_at = Some((2, 1));
    }
    switch.connect(controller.openflow()).await;
    until("the rule for unknown destinations", async || {
        let mut tables = switch.tables.lock().unwrap();
        let there = tables.of(App::Forwarding, Kind::T0Low) == 1;
        if there {
            tables.full_at = None;
        }
        there
    })
    .await;
}

/// Everything of an anchor at one base station leaves the users of others alone on N6, until all of them are diverted to one anchor.
#[tokio::test]
async fn an_anchors_side_of_n6_moves_with_its_last_base_station() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = with_n6(config(&folder));
    let enb2 = json!({"name": "enb2", "address": "10.0.0.2", "mac": "02:00:00:00:00:02", "switch": "edge1", "access": "4g"});
    config.base_stations.push(serde_json::from_value(enb2).unwrap());
    let controller = Controller::start(config.clone()).await.unwrap();
    let (mut access, mut n6) = (Switch::new(), Switch::with_id(2));
    access.connect(controller.openflow()).await;
    n6.connect(controller.openflow()).await;
    alive(&controller).await;
    let all = |station: &str, to: &str| json!({"from": "gw1", "to": to, "base_station": station, "confirmed_by": "test"});
    let down = |n6: &Switch| {
        let tables = n6.tables.lock().unwrap();
        let down = tables.flows.iter().filter(|flow| Kind::of_cookie(flow.cookie) == Some(Kind::SgiDown));
        let to = down.map(|flow| flow.instructions.apply_actions.as_deref().unwrap().to_vec());
        to.collect::<Vec<_>>()
    };
    let to = |last| vec![vec![Action::set(Oxm::eth_dst(MacAddr([2, 0, 0, 0, 1, last]))).unwrap()]];
    assert_eq!(call(&controller, "POST", "/v1/diversions", all("enb1", "gw2")).await.0, 200);
    assert_eq!(down(&n6), Vec::<Vec<Action>>::new(), "one base station of two");
    assert_eq!(call(&controller, "POST", "/v1/diversions", all("enb2", "gw2")).await.0, 200);
    assert_eq!(down(&n6), to(0x12), "all of them");
    // One goes elsewhere: the side does not follow it, and does not stay.
    assert_eq!(call(&controller, "POST", "/v1/diversions", all("enb1", "gw3")).await.0, 200);
    assert_eq!(down(&n6), Vec::<Vec<Action>>::new(), "two targets");
    let both = json!([all("enb1", "gw3"), all("enb2", "gw3")]);
    assert_eq!(call(&controller, "POST", "/v1/diversions", both).await.0, 200);
    assert_eq!(down(&n6), to(0x13), "in one request");
    // A controller that comes back wants the same.
    drop(controller);
    let controller = Controller::start(config).await.unwrap();
    access.connect(controller.openflow()).await;
    n6.connect(controller.openflow()).await;
    alive(&controller).await;
    quiet(&n6).await;
    assert_eq!(down(&n6), to(0x13), "after a restart");
    assert_eq!(call(&controller, "DELETE", "/v1/diversions/gw1%7Eall%7Eenb2", Value::Null).await.0, 200);
    assert_eq!(down(&n6), Vec::<Vec<Action>>::new());
}

/// A rule that several diversions share goes where it went until the last of them is gone.
#[tokio::test]
async fn a_shared_rule_is_not_retargeted() {
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(with_n6(config(&folder))).await.unwrap();
    let (mut access, mut n6) = (Switch::new(), Switch::with_id(2));
    access.connect(controller.openflow()).await;
    n6.connect(controller.openflow()).await;
    alive(&controller).await;
    // Two tunnels of a user, with addresses of one prefix: on N6 they are one rule.
    let tunnel = |number: u32, to: &str| {
        json!({"ue": format!("2001:db8:0:7::{number}"), "tunnels": [{"uplink": number}], "from": "gw1", "to": to,
            "base_station": "enb1", "confirmed_by": "test"})
    };
    assert_eq!(call(&controller, "POST", "/v1/diversions", tunnel(1, "gw2")).await.0, 200);
    // Prepared while it was the only one: the second one leaves the rule as it is, and needs it from then on.
    let (status, ready) = call(&controller, "POST", "/v1/diversions/prepare", tunnel(1, "gw3")).await;
    assert_eq!((status, &ready["prepared"]), (200, &json!(1)), "{ready}");
    assert_eq!(call(&controller, "POST", "/v1/diversions", tunnel(2, "gw2")).await.0, 200);
    let shape = n6.tables.lock().unwrap().shape(App::Diverting);
    let (status, problem) = call(&controller, "POST", "/v1/diversions", tunnel(1, "gw3")).await;
    assert!(
        status == 409 && problem["detail"].as_str().unwrap().contains("another diversion"),
        "{status} {problem}"
    );
    assert_eq!(n6.tables.lock().unwrap().shape(App::Diverting), shape);
    let both = json!([tunnel(1, "gw3"), tunnel(2, "gw3")]);
    assert_eq!(call(&controller, "POST", "/v1/diversions", both).await.0, 200, "together they may move");
    assert_eq!(n6.tables.lock().unwrap().of(App::Diverting, Kind::SgiDown), 1);
}

/// Users of a dead anchor go back as soon as the switch takes it and the old anchor answers, not only when it is found dead.
#[tokio::test]
async fn users_of_a_dead_anchor_go_back_when_it_becomes_possible() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder);
    config.diverting.restore = true;
    let controller = Controller::start(config).await.unwrap();
    let mut switch = Switch::new();
    switch.connect(controller.openflow()).await;
    let (gw1, gw2) = ("10.0.0.11".parse().unwrap(), "10.0.0.12".parse().unwrap());
    let says = |what: &str| controller.fabric().log(0).iter().any(|entry| entry.what.contains(what));
    let left = async || controller.diverting().list().await.unwrap().len();
    for old_anchor_is_there in [true, false] {
        alive(&controller).await;
        assert_eq!(call(&controller, "POST", "/v1/diversions", user(1)).await.0, 200);
        {
            let mut tables = switch.tables.lock().unwrap();
            tables.refuses = old_anchor_is_there;
            tables.mute = if old_anchor_is_there { vec![gw2] } else { vec![gw1, gw2] };
        }
        if old_anchor_is_there {
            until("refused", async || says("could not be taken back yet")).await;
            switch.tables.lock().unwrap().refuses = false;
        } else {
            until("both dead", async || {
                let anchors = controller.diverting().anchors().await.unwrap();
                anchors.iter().all(|anchor| !anchor.alive)
            })
            .await;
            time::sleep(Duration::from_millis(200)).await;
            assert_eq!(left().await, 1, "there is nobody to give it to");
            switch.tables.lock().unwrap().mute = vec![gw2];
        }
        until("taken back", async || left().await == 0).await;
        assert_eq!(switch.tables.lock().unwrap().of(App::Diverting, Kind::T1High), 0);
        switch.tables.lock().unwrap().mute.clear();
    }
}

/// 10,000 users in one request, and back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_users_in_one_request() {
    const USERS: u32 = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let controller = Controller::start(with_n6(config(&folder))).await.unwrap();
    let (mut access, mut n6) = (Switch::new(), Switch::with_id(2));
    access.connect(controller.openflow()).await;
    n6.connect(controller.openflow()).await;
    alive(&controller).await;
    let of = |number: u32| format!("10.45.{}.{}", number >> 8, number & 255);
    let users = |count: u32| -> Value {
        (1..=count)
            .map(|number| {
                let mut user = user(number);
                user["ue"] = json!(of(number));
                user
            })
            .collect()
    };
    for count in [1, 1000, USERS] {
        assert_eq!(call(&controller, "POST", "/v1/diversions", users(count)).await.0, 200);
        assert_eq!(access.tables.lock().unwrap().of(App::Diverting, Kind::T1High), count as usize);
        let ues: Vec<String> = (1..=count).map(of).collect();
        assert_eq!(call(&controller, "POST", "/v1/diversions/remove", json!({"ues": ues})).await.0, 200);
        assert_eq!(n6.tables.lock().unwrap().of(App::Diverting, Kind::SgiDown), 0);
    }
}

/// An access switch and one on N6 that can hold packets, and the anchors between them, which pass tokens on.
struct Ordered {
    controller: Controller,
    access: Switch,
    n6: Switch,
    _folder: tempfile::TempDir,
    anchors: tokio::task::JoinHandle<()>,
}

impl Drop for Ordered {
    fn drop(&mut self) {
        self.anchors.abort();
    }
}

/// The ports of a token, wherever it is.
fn token_ports(frame: &[u8]) -> Option<(u16, u16)> {
    let (_, _, udp) = frame::datagram(frame)?;
    if udp.destination_port() != 2152 {
        return Some((udp.source_port(), udp.destination_port()));
    }
    let message = packet::gtpu::Packet::new(udp.payload()).ok()?;
    let frame = packet::ethernet::build([2; 6], [4; 6], None, 0x0800, message.payload());
    token_ports(&frame)
}

impl Ordered {
    async fn start(pass: bool, change: impl FnOnce(&mut Config)) -> Ordered {
        let folder = tempfile::tempdir().unwrap();
        let mut config = with_n6(config(&folder));
        change(&mut config);
        let controller = Controller::start(config).await.unwrap();
        let (mut access, mut n6) = (Switch::new(), Switch::with_id(2));
        for switch in [&mut access, &mut n6] {
            switch.tables.lock().unwrap().holds = true;
            switch.connect(controller.openflow()).await;
        }
        alive(&controller).await;
        until("connected", async || {
            controller.fabric().switches().iter().all(|view| view.connected && !view.ports.is_empty())
        })
        .await;
        let tables = [access.tables.clone(), n6.tables.clone()];
        let anchors = tokio::spawn(async move {
            let mut seen = [0; 2];
            loop {
                time::sleep(Duration::from_millis(1)).await;
                for at in [0, 1].into_iter().filter(|_| pass) {
                    let new: Vec<PacketOut> = tables[at].lock().unwrap().sent[seen[at]..].to_vec();
                    seen[at] += new.len();
                    let ports: BTreeSet<_> =
                        new.iter().filter_map(|packet| token_ports(&packet.data)).collect();
                    let of_token = |flow: &&mut FlowStats| {
                        let (from, to) = (flow.matching.udp_src(), flow.matching.udp_dst());
                        Kind::of_cookie(flow.cookie) == Some(Kind::Token)
                            && from.zip(to).is_some_and(|pair| ports.contains(&pair))
                    };
                    let mut other = tables[1 - at].lock().unwrap();
                    other.flows.iter_mut().filter(of_token).for_each(|flow| flow.packet_count += 1);
                }
            }
        });
        Ordered { controller, access, n6, _folder: folder, anchors }
    }

    fn history(&self, switch: &Switch) -> Vec<String> {
        std::mem::take(&mut switch.tables.lock().unwrap().history)
    }

    /// Rules of moves that are left.
    fn left(&self) -> usize {
        let of = |switch: &Switch| {
            let tables = switch.tables.lock().unwrap();
            [Kind::Hold, Kind::Token].map(|kind| tables.of(App::Diverting, kind)).iter().sum::<usize>()
        };
        of(&self.access) + of(&self.n6)
    }

    async fn divert(&self, body: Value) -> Value {
        let (status, body) = call(&self.controller, "POST", "/v1/diversions?order=keep", body).await;
        assert_eq!(status, 200, "{body}");
        body
    }
}

/// A user with as many tunnels.
fn user_with(number: u32, tunnels: u32) -> Value {
    let tunnels: Vec<_> = (0..tunnels)
        .map(|at| json!({"uplink": 10 * number + at, "downlink": 10 * number + at + 5}))
        .collect();
    json!({"ue": format!("10.45.{}.{}", number / 200, number % 200 + 1), "tunnels": tunnels, "from": "gw1", "to": "gw2",
        "base_station": "enb1", "confirmed_by": "test"})
}

/// Packets wait before the change, the token goes with it, and nothing is left of it.
#[tokio::test]
async fn a_move_in_order_holds_changes_and_cleans_up() {
    let ordered = Ordered::start(true, |_| ()).await;
    let done = ordered.divert(user_with(1, 1)).await;
    let order = &done["order"];
    assert_eq!(
        (&order["kept"], &order["moves"], &order["timed_out"]),
        (&json!(true), &json!(1), &json!(0)),
        "{order}"
    );
    let expected = |what: &[&str]| what.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let sorted = |mut history: Vec<String>, from: usize, to: usize| {
        history[from..to].sort_unstable();
        history
    };
    // The two rules of the first and of the last bundle come in any order.
    assert_eq!(
        sorted(sorted(ordered.history(&ordered.access), 0, 2), 4, 6),
        expected(&[
            "Add hold",
            "Add token",
            "Add SW-T1-H",
            "token sent",
            "DeleteStrict hold",
            "DeleteStrict token"
        ])
    );
    assert_eq!(
        sorted(sorted(ordered.history(&ordered.n6), 0, 2), 4, 6),
        expected(&[
            "Add hold",
            "Add token",
            "Add SGi down",
            "token sent",
            "DeleteStrict hold",
            "DeleteStrict token"
        ])
    );
    assert_eq!(ordered.left(), 0);

    // Two tunnels: both tokens have to come before the controller lets the user's uplink packets go.
    let done = ordered.divert(user_with(2, 2)).await;
    assert_eq!(done["order"]["kept"], true, "{done}");
    let history = ordered.history(&ordered.n6);
    assert_eq!(history.iter().filter(|what| *what == "token sent").count(), 2);
    assert_eq!(history.iter().filter(|what| *what == "opened").count(), 1);

    // Back, and on to a third anchor.
    let id = json!({"ids": ["gw1~10.45.0.3"], "order": "keep"});
    let (status, done) = call(&ordered.controller, "POST", "/v1/diversions/remove", id).await;
    assert_eq!(
        (status, &done["order"]["kept"], &done["order"]["moves"]),
        (200, &json!(true), &json!(1)),
        "{done}"
    );
    let mut on = user_with(2, 2);
    on["to"] = json!("gw3");
    let done = ordered.divert(on).await;
    assert_eq!((&done["order"]["kept"], &done["order"]["moves"]), (&json!(true), &json!(1)), "{done}");
    assert_eq!(ordered.left(), 0);
}

/// Tokens do not come: after its time the move is over, and the controller lets packets go before it removes the rules.
#[tokio::test]
async fn lost_tokens_cost_time_but_nothing_else() {
    let ordered = Ordered::start(false, |config| config.diverting.order.timeout_ms = 30).await;
    let done = ordered.divert(user_with(1, 1)).await;
    let order = &done["order"];
    assert_eq!((&order["kept"], &order["timed_out"]), (&json!(false), &json!(1)), "{order}");
    for switch in [&ordered.access, &ordered.n6] {
        let history = ordered.history(switch);
        let of = |text: &str| history.iter().position(|what| what == text).unwrap();
        assert!(of("token sent") < of("opened") && of("opened") < of("DeleteStrict hold"), "{history:?}");
    }
    assert_eq!(ordered.left(), 0);
}

/// Where order cannot be kept the user moves all the same, and the answer says why.
#[tokio::test]
async fn a_move_without_order_says_why() {
    let mut ordered = Ordered::start(true, |_| ()).await;
    let why = |done: Value| {
        assert_eq!((&done["order"]["kept"], &done["order"]["moves"]), (&json!(false), &json!(0)), "{done}");
        done["order"]["not_kept"][0]["why"].as_str().unwrap().to_owned()
    };
    let mut one = user_with(1, 1);
    one["application"] = json!({"protocol": 17, "server": "9.9.9.9"});
    assert!(why(ordered.divert(one).await).contains("whole users"));
    let mut one = user_with(2, 0);
    one["ue"] = json!("10.45.9.9");
    assert!(why(ordered.divert(one).await).contains("`tunnels`"));
    // The old anchor is dead.
    for switch in [&ordered.access, &ordered.n6] {
        switch.tables.lock().unwrap().mute.push("10.0.0.11".parse().unwrap());
    }
    until("dead", async || {
        let anchors = ordered.controller.diverting().anchors().await.unwrap();
        anchors.iter().any(|anchor| !anchor.alive)
    })
    .await;
    assert!(why(ordered.divert(user_with(3, 1)).await).contains("does not answer"));
    // A switch without such ports.
    ordered.access.tables.lock().unwrap().mute.clear();
    alive(&ordered.controller).await;
    ordered.n6.tables.lock().unwrap().holds = false;
    ordered.n6.connect(ordered.controller.openflow()).await;
    until("connected again", async || {
        let view = ordered.controller.fabric().switch(2).unwrap();
        view.connected && view.port("hold").is_none()
    })
    .await;
    assert!(why(ordered.divert(user_with(4, 1)).await).contains("no port that holds"));
    assert_eq!(ordered.left(), 0);
}

/// A thousand users in one request.
#[tokio::test]
async fn a_thousand_users_move_in_order_at_once() {
    let ordered = Ordered::start(true, |config| config.diverting.order.timeout_ms = 10_000).await;
    let users: Vec<Value> = (1..=1000).map(|number| user_with(number, 1)).collect();
    let done = ordered.divert(json!(users)).await;
    let order = &done["order"];
    assert_eq!((&order["kept"], &order["moves"]), (&json!(true), &json!(1000)), "{order}");
    eprintln!("1,000 users in order: {order}");
    let tokens =
        |switch: &Switch| ordered.history(switch).iter().filter(|what| *what == "token sent").count();
    assert_eq!((tokens(&ordered.access), tokens(&ordered.n6), ordered.left()), (1000, 1000, 0));
}

/// An edge with a switch on N6, for requests that are prepared.
struct Prepared {
    _folder: tempfile::TempDir,
    config: Config,
    controller: Controller,
    switches: [Switch; 2],
}

impl Prepared {
    async fn start() -> Prepared {
        let folder = tempfile::tempdir().unwrap();
        let config = with_n6(config(&folder));
        let controller = Controller::start(config.clone()).await.unwrap();
        let mut switches = [Switch::new(), Switch::with_id(2)];
        for switch in &mut switches {
            switch.connect(controller.openflow()).await;
        }
        alive(&controller).await;
        Prepared { _folder: folder, config, controller, switches }
    }

    async fn prepare(&self, users: &Value) -> Value {
        let (status, ready) = call(&self.controller, "POST", "/v1/diversions/prepare", users.clone()).await;
        assert_eq!(status, 200, "{ready}");
        ready
    }

    async fn divert(&self, users: &Value) -> Value {
        let (status, done) = call(&self.controller, "POST", "/v1/diversions", users.clone()).await;
        assert_eq!(status, 200, "{done}");
        done
    }

    /// Bundles that wait, messages that were put into some, and what the switches have of diversions.
    fn seen(&self) -> (usize, usize, Vec<BTreeSet<String>>) {
        let all = self.switches.iter().map(|switch| switch.tables.lock().unwrap());
        let all: Vec<_> = all.collect();
        let shapes = all.iter().map(|tables| tables.shape(App::Diverting)).collect();
        let sum = |of: fn(&Tables) -> usize| all.iter().map(|tables| of(tables)).sum();
        (sum(|tables| tables.bundles.len()), sum(|tables| tables.bundled), shapes)
    }

    /// Until so many bundles wait: the end of one is told to the switch, and not waited for.
    async fn waiting(&self, bundles: usize) {
        until("so many bundles wait", async || self.seen().0 == bundles).await;
    }
}

fn users(numbers: std::ops::Range<u32>) -> Value {
    numbers.map(user).collect()
}

/// What switches get of a request in advance changes nothing, and all that they get when it is made is that they are to commit.
#[tokio::test]
async fn a_prepared_request_takes_effect_by_commits_alone() {
    let edge = Prepared::start().await;
    // What the same users need in the ordinary way.
    let before = edge.seen().2;
    edge.divert(&users(1..4)).await;
    let wanted = edge.seen().2;
    let ids = json!({"ids": ["gw1~10.45.0.1", "gw1~10.45.0.2", "gw1~10.45.0.3"]});
    call(&edge.controller, "POST", "/v1/diversions/remove", ids).await;
    until("old ways have ended", async || edge.seen().2 == before).await;

    let ready = edge.prepare(&users(1..4)).await;
    assert_eq!((&ready["prepared"], &ready["switches"]), (&json!(3), &json!(2)), "{ready}");
    let (waiting, bundled, shape) = edge.seen();
    assert!(waiting > 0 && shape == before);
    assert!(call(&edge.controller, "GET", "/v1/diversions", Value::Null).await.1["diversions"] == json!([]));
    let state = std::fs::read(&edge.config.state).unwrap();
    let done = edge.divert(&users(1..4)).await;
    assert_eq!(
        (done["changed"].as_array().unwrap().len(), &done["rules_set"]),
        (3, &ready["rules"]),
        "{done}"
    );
    assert_eq!(edge.seen(), (0, bundled, wanted), "by commits alone");
    assert!(std::fs::read(&edge.config.state).unwrap().len() > state.len());
    // It is once; what is there already needs nothing, and is no error.
    let again = edge.divert(&users(1..4)).await;
    assert_eq!((&again["changed"], again["unchanged"].as_array().unwrap().len()), (&json!([]), 3));
    assert_eq!(edge.prepare(&users(1..4)).await["prepared"], 0);
}

/// A user's second address is prepared with the first one: its rules on N6, and nothing more in the tunnel, wait in the same bundles.
#[tokio::test]
async fn both_addresses_of_a_user_are_prepared() {
    let edge = Prepared::start().await;
    let one = users(1..4);
    let mut both = one.clone();
    for (number, user) in both.as_array_mut().unwrap().iter_mut().enumerate() {
        user["second"] = json!({"ue": format!("2001:db8:0:{number}::")});
    }
    let rules = async |users: &Value| edge.prepare(users).await["rules"].as_u64().unwrap();
    let (of_one, of_both) = (rules(&one).await, rules(&both).await);
    // What is sent to the address, and questions for it, of three users.
    assert_eq!(of_both, of_one + 3 * 2);
    let (waiting, bundled, _) = edge.seen();
    assert!(waiting > 0);
    let done = edge.divert(&both).await;
    assert_eq!(done["rules_set"], json!(of_both), "{done}");
    let (_, after, _) = edge.seen();
    assert_eq!(after, bundled, "by commits alone");
    let listed = call(&edge.controller, "GET", "/v1/ues", Value::Null).await.1;
    let listed = listed["ues"]
        .as_array()
        .unwrap()
        .iter()
        .map(|user| (&user["ue"], user["diversions"].as_array().unwrap().len()));
    let expected = ["10.45.0.1", "10.45.0.2", "10.45.0.3"].map(|ue| (json!(ue), 1));
    assert!(listed.eq(expected.iter().map(|(ue, count)| (ue, *count))), "each user is there once");
    let (status, of_second) = call(&edge.controller, "GET", "/v1/ues/2001:db8:0:1::", Value::Null).await;
    assert_eq!((status, &of_second["diverted"]), (200, &json!(true)), "{of_second}");
    let ues = json!({"ues": ["2001:db8:0:0::", "10.45.0.2", "2001:db8:0:2::"]});
    let removed = call(&edge.controller, "POST", "/v1/diversions/remove", ues).await.1;
    assert_eq!(removed["changed"].as_array().unwrap().len(), 3, "{removed}");
}

/// Whatever has become of it meanwhile, a prepared request is done by what holds then.
#[tokio::test]
async fn a_prepared_request_that_is_out_of_date_is_done_in_the_ordinary_way() {
    let mut edge = Prepared::start().await;
    let down = |edge: &Prepared, number: u32| {
        let tables = edge.switches[1].tables.lock().unwrap();
        let of_user = |flow: &&FlowStats| {
            Kind::of_cookie(flow.cookie) == Some(Kind::SgiDown)
                && flow.matching.ipv4_dst() == Some([10, 45, 0, number as u8].into())
        };
        tables
            .flows
            .iter()
            .find(of_user)
            .map(|flow| flow.instructions.apply_actions.clone().unwrap()[0].clone())
    };
    let to = |last| Some(Action::set(Oxm::eth_dst(MacAddr([2, 0, 0, 0, 1, last]))).unwrap());

    // Another request for one of its users, and one for others, which it does not concern.
    edge.prepare(&users(1..4)).await;
    let waiting = edge.seen().0;
    let mut elsewhere = user(2);
    elsewhere["to"] = json!("gw3");
    edge.divert(&elsewhere).await;
    edge.waiting(0).await;
    edge.divert(&users(1..4)).await;
    assert_eq!([1, 2, 3].map(|number| down(&edge, number)), [to(0x12), to(0x12), to(0x12)]);
    edge.prepare(&users(4..6)).await;
    edge.divert(&user(9)).await;
    assert!(edge.seen().0 > 0 && edge.seen().0 < waiting + 1);
    let bundled = edge.seen().1;
    edge.divert(&users(4..6)).await;
    assert_eq!((edge.seen().1, down(&edge, 5)), (bundled, to(0x12)));

    // A switch that has lost its bundles, one that has connected anew, and one that has neither.
    edge.prepare(&users(10..12)).await;
    edge.switches.iter().for_each(|switch| switch.tables.lock().unwrap().bundles.clear());
    edge.divert(&users(10..12)).await;
    assert_eq!(down(&edge, 11), to(0x12), "lost");
    edge.prepare(&users(12..14)).await;
    edge.switches[1].connect(edge.controller.openflow()).await;
    until("it is there", async || {
        let all = edge.controller.fabric().switches();
        all.iter().all(|view| view.connected)
    })
    .await;
    quiet(&edge.switches[1]).await;
    edge.divert(&users(12..14)).await;
    assert_eq!(down(&edge, 13), to(0x12), "connected anew");

    // A target that has died since.
    edge.prepare(&users(14..16)).await;
    let gw2: IpAddr = [10, 0, 0, 12].into();
    edge.switches[0].tables.lock().unwrap().mute = vec![gw2];
    until("gw2 is dead", async || {
        let all = edge.controller.diverting().anchors().await.unwrap();
        all.iter().any(|anchor| anchor.name == "gw2" && !anchor.alive)
    })
    .await;
    let (status, refusal) = call(&edge.controller, "POST", "/v1/diversions", users(14..16)).await;
    assert_eq!((status, &refusal["title"]), (409, &json!("not yet")));
    edge.waiting(0).await;
    assert_eq!(down(&edge, 15), None);
    edge.switches[0].tables.lock().unwrap().mute.clear();
    alive(&edge.controller).await;

    // A switch that refuses: nothing is changed, and the ordinary way says why.
    edge.prepare(&users(16..18)).await;
    edge.switches[1].tables.lock().unwrap().refuses = true;
    let (status, refusal) = call(&edge.controller, "POST", "/v1/diversions", users(16..18)).await;
    assert_eq!(status, 502);
    assert!(refusal["detail"].as_str().unwrap().contains("refused a rule of table"), "{refusal}");
    edge.switches[1].tables.lock().unwrap().refuses = false;
    let all = call(&edge.controller, "GET", "/v1/diversions", Value::Null).await.1;
    assert!(!all.to_string().contains("10.45.0.16"));

    // A controller that comes back knows of none.
    edge.prepare(&users(18..20)).await;
    drop(edge.controller);
    edge.controller = Controller::start(edge.config.clone()).await.unwrap();
    for switch in &mut edge.switches {
        switch.connect(edge.controller.openflow()).await;
    }
    alive(&edge.controller).await;
    until("diverted", async || {
        call(&edge.controller, "POST", "/v1/diversions", users(18..20)).await.0 == 200
    })
    .await;
    assert_eq!(down(&edge, 19), to(0x12), "after a restart");
}

/// Prepared requests take a bounded part of a switch's memory.
#[tokio::test]
async fn few_requests_are_prepared_at_once() {
    let edge = Prepared::start().await;
    edge.prepare(&users(1..3)).await;
    let each = edge.seen().0;
    for first in (10..200).step_by(10) {
        edge.prepare(&users(first..first + 2)).await;
    }
    edge.waiting(4 * each).await;
    edge.prepare(&users(200..202)).await;
    edge.waiting(4 * each).await;
    let many: Value = (0..12_000)
        .map(|number| {
            let mut one = user(1);
            one["ue"] = json!(std::net::Ipv4Addr::from_bits(0x0a40_0000 + number));
            one["tunnels"][0]["uplink"] = json!(1000 + number);
            one
        })
        .collect();
    let (status, refusal) = call(&edge.controller, "POST", "/v1/diversions/prepare", many).await;
    assert_eq!((status, &refusal["title"]), (413, &json!("too many")), "{refusal}");
    edge.waiting(4 * each).await;
}

/// The tokens of a move in order follow the bundle that takes the old ways.
#[tokio::test]
async fn a_prepared_move_keeps_order_too() {
    let edge = Ordered::start(true, |_| ()).await;
    let body = user_with(1, 1);
    let (status, ready) = call(&edge.controller, "POST", "/v1/diversions/prepare", body.clone()).await;
    assert_eq!((status, &ready["prepared"]), (200, &json!(1)), "{ready}");
    let staged = |switch: &Switch| switch.tables.lock().unwrap().bundles.len();
    assert!(staged(&edge.access) > 0 && staged(&edge.n6) > 0);
    let done = edge.divert(body).await;
    assert_eq!((&done["order"]["kept"], &done["order"]["moves"]), (&json!(true), &json!(1)), "{done}");
    assert_eq!((staged(&edge.access), staged(&edge.n6)), (0, 0), "they were committed");
}
