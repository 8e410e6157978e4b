//! What reaches an SMF while users are at a clone (CAP-5): replicator and agent as they are, connected over loopback, a UPF that is asked in
//! process, and its clone, which answers over UDP. Both UPFs are written for the test after TS 29.244, and count what they carry.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use net::time::{self, Duration};
use net::udp::UdpSocket;
use pfcp::message::*;
use pfcp::*;
use replication::agent::{self, Agent};
use replication::replicator::{Anchor, Config, Outgoing, Place, Protocol, Replicator, Scheme, Verdict};
use replication::track::Datagram;
use tokio::sync::mpsc;

const GNB: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const UE: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 1);
const CP_SEID: u64 = 0x1111_2222_3333_0001;
const PATIENCE: Duration = Duration::from_secs(5);
/// URRs of the session.
const URRS: [u32; 2] = [1, 2];

fn encode(message: impl Into<Message>, seid: u64, sequence: u32) -> Vec<u8> {
    let mut octets = Vec::new();
    message.into().encode(seid, sequence, &mut octets).unwrap();
    octets
}

/// What a URR has counted since the last report.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    sequence: u32,
    octets: u64,
    since: u32,
}

#[derive(Debug, Default)]
struct Held {
    cp: u64,
    urrs: BTreeMap<u32, Counted>,
}

/// A UPF that carries what the test says.
#[derive(Debug)]
struct Upf {
    own: Ipv4Addr,
    sessions: BTreeMap<u64, Held>,
    /// Seconds.
    clock: u32,
    /// When it has started.
    started: u32,
    sequence: u32,
    /// Sessions so far.
    begun: u64,
    /// Does not answer.
    is_silent: bool,
    /// Requests that do not reach it.
    lost: u32,
}

impl Upf {
    fn new(own: Ipv4Addr) -> Upf {
        let sessions = BTreeMap::new();
        Upf { own, sessions, clock: 1000, started: 1, sequence: 0, begun: 0, is_silent: false, lost: 0 }
    }

    fn carry(&mut self, octets: u64) {
        for urr in self.sessions.values_mut().flat_map(|held| held.urrs.values_mut()) {
            urr.octets += octets;
        }
    }

    fn report(&mut self, seid: u64, urr: u32, trigger: UsageReportTrigger) -> UsageReport {
        let end = self.clock;
        let counted = self.sessions.get_mut(&seid).unwrap().urrs.get_mut(&urr).unwrap();
        let report = UsageReport {
            urr_id: UrrId(urr),
            sequence: UrSeqn(counted.sequence),
            trigger,
            start_time: Some(NtpSeconds(counted.since)),
            end_time: Some(NtpSeconds(end)),
            volume: Some(VolumeMeasurement { total: Some(counted.octets), ..Default::default() }),
            duration: Some(Seconds(end - counted.since)),
            ..Default::default()
        };
        *counted = Counted { sequence: counted.sequence + 1, octets: 0, since: end };
        report
    }

    /// A Session Report Request of its only session.
    fn says(&mut self, report_type: ReportType, urrs: &[u32]) -> Vec<u8> {
        self.sequence += 1;
        let seid = *self.sessions.keys().next().unwrap();
        let usage_reports =
            urrs.iter().map(|urr| self.report(seid, *urr, UsageReportTrigger::VOLTH)).collect();
        let request = SessionReportRequest { report_type, usage_reports, ..Default::default() };
        encode(request, self.sessions[&seid].cp, self.sequence)
    }

    fn answer(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        if let Some(left) = self.lost.checked_sub(1) {
            self.lost = left;
            return None;
        }
        let (header, message) = Message::decode(request).unwrap();
        let seid = header.seid.unwrap_or(0);
        let cp = self.sessions.get(&seid).map_or(0, |held| held.cp);
        let cause = if cp == 0 { Cause::SESSION_NOT_FOUND } else { Cause::ACCEPTED };
        let node_id = NodeId::Ipv4(self.own);
        let answer = match message {
            Message::AssociationSetupRequest(_) => {
                let cause = Cause::ACCEPTED;
                let recovery_time_stamp = NtpSeconds(self.started);
                let answer =
                    AssociationSetupResponse { node_id, cause, recovery_time_stamp, ..Default::default() };
                encode(answer, 0, header.sequence)
            }
            Message::SessionEstablishmentRequest(request) => {
                self.begun += 1;
                let own = u64::from(self.own.to_bits()) << 8 | self.begun;
                let counted = Counted { since: self.clock, ..Counted::default() };
                let urrs = request.create_urrs.iter().map(|urr| (urr.urr_id.0, counted)).collect();
                self.sessions.insert(own, Held { cp: request.cp_f_seid.seid, urrs });
                let answer = SessionEstablishmentResponse {
                    node_id,
                    cause: Cause::ACCEPTED,
                    up_f_seid: Some(FSeid::new(own, self.own.into())),
                    ..Default::default()
                };
                encode(answer, request.cp_f_seid.seid, header.sequence)
            }
            Message::SessionModificationRequest(request) => {
                let asked = request.query_urrs.iter().map(|query| query.urr_id.0);
                let usage_reports =
                    asked.map(|urr| self.report(seid, urr, UsageReportTrigger::IMMER)).collect();
                let answer = SessionModificationResponse { cause, usage_reports, ..Default::default() };
                encode(answer, cp, header.sequence)
            }
            Message::SessionDeletionRequest(_) => {
                let urrs: Vec<u32> =
                    self.sessions.get(&seid).into_iter().flat_map(|held| held.urrs.keys().copied()).collect();
                let usage_reports =
                    urrs.into_iter().map(|urr| self.report(seid, urr, UsageReportTrigger::TERMR)).collect();
                self.sessions.remove(&seid);
                let answer = SessionDeletionResponse { cause, usage_reports, ..Default::default() };
                encode(answer, cp, header.sequence)
            }
            Message::HeartbeatRequest(_) => {
                let recovery_time_stamp = NtpSeconds(self.started);
                encode(HeartbeatResponse { recovery_time_stamp }, 0, header.sequence)
            }
            Message::SessionReportResponse(_) => return None,
            other => panic!("{other:?}"),
        };
        (!self.is_silent).then_some(answer)
    }
}

/// What the SMF has been told.
#[derive(Debug, Default)]
struct Charged {
    /// Numbers of reports by URR, in the order in which they came.
    numbers: BTreeMap<u32, Vec<u32>>,
    octets: BTreeMap<u32, u64>,
    seconds: BTreeMap<u32, u32>,
}

impl Charged {
    fn take(&mut self, reports: &[UsageReport]) {
        for report in reports {
            let urr = report.urr_id.0;
            self.numbers.entry(urr).or_default().push(report.sequence.0);
            *self.octets.entry(urr).or_default() += report.volume.unwrap().total.unwrap();
            *self.seconds.entry(urr).or_default() += report.duration.unwrap().0;
        }
    }

    /// One report after another, of each URR.
    fn is_in_order(&self) {
        for (urr, numbers) in &self.numbers {
            let expected: Vec<u32> = (0..numbers.len() as u32).collect();
            assert_eq!(*numbers, expected, "URR {urr}");
        }
    }
}

struct World {
    smf: IpAddr,
    original: Upf,
    clone: Arc<Mutex<Upf>>,
    to_agent: (Arc<UdpSocket>, SocketAddr),
    replicator: Replicator,
    sent: mpsc::UnboundedReceiver<Outgoing>,
    agent: SocketAddr,
    sequence: u32,
    charged: Charged,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    /// What the clone has got as answers.
    answers: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl World {
    /// `net`: loopback addresses of its own, as the protocol's port is one.
    async fn start(net: u8) -> World {
        let own = |host: u8| Ipv4Addr::new(127, 77, net, host);
        let (smf, upf, edge) = (own(1), own(2), own(3));
        let socket =
            net::udp::bind_std(SocketAddr::new(edge.into(), 8805), net::udp::Options::default()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = Arc::new(UdpSocket::from_std(socket).unwrap());
        let clone = Arc::new(Mutex::new(Upf::new(edge)));
        let (answered, answers) = mpsc::unbounded_channel();
        let (of, by) = (socket.clone(), clone.clone());
        let serving = tokio::spawn(async move {
            let mut datagram = [0; 4096];
            loop {
                let (length, from) = of.recv_from(&mut datagram).await.unwrap();
                let answer = by.lock().unwrap().answer(&datagram[..length]);
                match answer {
                    Some(answer) => _ = of.send_to(&answer, from).await.unwrap(),
                    None => _ = answered.send(datagram[..length].to_vec()),
                }
            }
        });
        let config = agent::Config {
            listen: SocketAddr::new(smf.into(), 0),
            control: smf.into(),
            clone: edge.into(),
            gtpu: Some(edge.into()),
            window: 64,
        };
        let listen = net::tcp::listen(SocketAddr::new(own(4).into(), 0)).await.unwrap();
        let address = listen.local_addr().unwrap();
        drop(listen);
        let agent = Agent::bind(agent::Config { listen: address, ..config }).await.unwrap();
        let agent = tokio::spawn(agent.serve());
        let (send, sent) = mpsc::unbounded_channel();
        let anchors = vec![
            Anchor { name: "upf".to_owned(), control: upf.into(), keeps_addresses: false },
            Anchor { name: "edge".to_owned(), control: edge.into(), keeps_addresses: false },
        ];
        let send = Box::new(move |outgoing| _ = send.send(outgoing));
        World {
            smf: smf.into(),
            original: Upf::new(upf),
            clone,
            to_agent: (socket, SocketAddr::new(smf.into(), 8805)),
            replicator: Replicator::new(Config::default(), anchors, 5, send),
            sent,
            agent: address,
            sequence: 0,
            charged: Charged::default(),
            tasks: vec![serving, agent],
            answers,
        }
    }

    /// Another replicator goes on with what was kept, and is connected.
    async fn restart(&mut self, url: &str) {
        let (send, sent) = mpsc::unbounded_channel();
        let anchors = vec![
            Anchor { name: "upf".to_owned(), control: self.original.own.into(), keeps_addresses: false },
            Anchor {
                name: "edge".to_owned(),
                control: self.clone.lock().unwrap().own.into(),
                keeps_addresses: false,
            },
        ];
        let send = Box::new(move |outgoing| _ = send.send(outgoing));
        self.replicator = Replicator::new(Config::default(), anchors, 5, send);
        self.sent = sent;
        let records = store::records::Records::open(url).await.unwrap();
        self.replicator.restore(&records).await.unwrap();
        time::timeout(PATIENCE, async {
            while self.replicator.replicas().iter().all(|replica| !replica.4) {
                time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap();
    }

    fn ends(&self) -> (SocketAddr, SocketAddr) {
        (SocketAddr::new(self.original.own.into(), 8805), SocketAddr::new(self.smf, 8805))
    }

    fn is_intercepted(&self) -> bool {
        self.replicator.watch_intercepted().borrow().contains(&IpAddr::from(self.original.own))
    }

    fn observe(&self, by_control: bool, octets: &[u8]) {
        let datagram = Datagram { control: self.smf, by_control, octets };
        self.replicator.observe(Protocol::N4, self.original.own.into(), datagram);
    }

    /// What of a message of the original the SMF gets at once.
    fn through(&self, octets: &[u8]) -> Option<Vec<u8>> {
        let (from, to) = self.ends();
        if !self.is_intercepted() {
            self.observe(false, octets);
            return Some(octets.to_vec());
        }
        match self.replicator.intercept(Protocol::N4, from, to, octets) {
            Verdict::Pass => Some(octets.to_vec()),
            Verdict::Instead(octets) => Some(octets),
            Verdict::Withhold => None,
        }
    }

    /// The next message in somebody's name.
    async fn sent(&mut self) -> Outgoing {
        time::timeout(PATIENCE, self.sent.recv()).await.expect("a message is sent").unwrap()
    }

    /// Asks the original; the answer as the SMF gets it.
    async fn ask(&mut self, message: impl Into<Message>) -> Message {
        self.sequence += 1;
        let seid = self.original.sessions.keys().next().copied().unwrap_or(0);
        let request = encode(message, seid, self.sequence);
        self.observe(true, &request);
        let answer = self.original.answer(&request).unwrap();
        let octets = match self.through(&answer) {
            Some(octets) => octets,
            None => {
                let outgoing = self.sent().await;
                assert_eq!((outgoing.from, outgoing.to), self.ends());
                // The original repeats it when it is asked again: the same, and nothing is charged twice.
                assert_eq!(self.through(&answer).as_ref(), Some(&outgoing.octets));
                outgoing.octets
            }
        };
        let (header, answer) = Message::decode(&octets).unwrap();
        assert_eq!(header.sequence, self.sequence);
        match &answer {
            Message::SessionModificationResponse(answer) => self.charged.take(&answer.usage_reports),
            Message::SessionDeletionResponse(answer) => self.charged.take(&answer.usage_reports),
            _ => {}
        }
        answer
    }

    async fn attach(&mut self) {
        let pdr = CreatePdr {
            pdr_id: PdrId(1),
            precedence: Precedence(255),
            pdi: Pdi {
                f_teid: Some(FTeid::Assigned { teid: 77, ipv4: Some(self.original.own), ipv6: None }),
                ue_ip_address: Some(UeIpAddress { ipv4: Some(UE), ..Default::default() }),
                ..Default::default()
            },
            far_id: Some(FarId(1)),
            urr_ids: URRS.map(UrrId).to_vec(),
            ..Default::default()
        };
        let header = OuterHeaderCreation::gtpu(0xe000, GNB.into());
        let parameters = ForwardingParameters { outer_header_creation: Some(header), ..Default::default() };
        let far = CreateFar {
            far_id: FarId(1),
            apply_action: ApplyAction::FORW,
            forwarding_parameters: Some(Box::new(parameters)),
            ..Default::default()
        };
        let urr = |id| CreateUrr {
            urr_id: UrrId(id),
            measurement_method: MeasurementMethod::VOLUM | MeasurementMethod::DURAT,
            ..Default::default()
        };
        let request = SessionEstablishmentRequest {
            node_id: NodeId::Ipv4(GNB),
            cp_f_seid: FSeid::new(CP_SEID, self.smf),
            create_pdrs: vec![pdr],
            create_fars: vec![far],
            create_urrs: URRS.map(urr).to_vec(),
            ..Default::default()
        };
        self.ask(request).await;
    }

    async fn copy(&mut self) {
        let done =
            self.replicator.replicate("upf", "edge", self.agent, None, Scheme::Selective).await.unwrap();
        assert_eq!((done.done.len(), &done.refused[..]), (1, &[][..]));
    }

    fn divert(&self, is_there: bool) {
        let place =
            Place { user: Some(UE.into()), base_station: None, to: "edge".to_owned(), is_whole: true };
        self.replicator.place("upf", "upf~ue".to_owned(), is_there.then_some(place));
    }

    fn tick(&mut self, seconds: u32) {
        self.original.clock += seconds;
        self.clone.lock().unwrap().clock += seconds;
    }

    /// The clone says something; what the SMF gets, which accepts it, so that the clone has its answer.
    async fn clone_says(&mut self, report_type: ReportType, urrs: &[u32]) -> Option<SessionReportRequest> {
        let report = self.clone.lock().unwrap().says(report_type, urrs);
        let (socket, agent) = self.to_agent.clone();
        socket.send_to(&report, agent).await.unwrap();
        let octets = tokio::select! {
            sent = self.sent.recv() => sent.unwrap().octets,
            answer = self.answers.recv() => {
                self.is_answer_to(&answer.unwrap(), &report);
                return None;
            }
        };
        let request = self.reported(&octets);
        let answer = time::timeout(PATIENCE, self.answers.recv()).await.unwrap().unwrap();
        self.is_answer_to(&answer, &report);
        Some(request)
    }

    /// The SMF takes a report and accepts it.
    fn reported(&mut self, octets: &[u8]) -> SessionReportRequest {
        let (header, message) = Message::decode(octets).unwrap();
        assert_eq!(header.seid, Some(CP_SEID));
        let Message::SessionReportRequest(request) = message else { panic!("{message:?}") };
        self.charged.take(&request.usage_reports);
        let answer = SessionReportResponse { cause: Cause::ACCEPTED, ..Default::default() };
        let to = *self.original.sessions.keys().next().unwrap();
        self.observe(true, &encode(answer, to, header.sequence));
        request
    }

    fn is_answer_to(&self, answer: &[u8], report: &[u8]) {
        let (header, message) = Message::decode(answer).unwrap();
        let seid = self.clone.lock().unwrap().sessions.keys().next().copied();
        assert_eq!((header.seid, header.sequence), (seid, Message::decode(report).unwrap().0.sequence));
        assert!(matches!(message, Message::SessionReportResponse(answer) if answer.cause.is_accepted()));
    }
}

fn query() -> SessionModificationRequest {
    let query_urrs = URRS.map(|urr| QueryUrr { urr_id: UrrId(urr) }).to_vec();
    SessionModificationRequest { query_urrs, ..Default::default() }
}

/// Who does not serve a user says that it is inactive: the SMF does not hear of it, from neither side, and who says so is answered.
#[tokio::test]
async fn inactivity_is_heard_from_the_anchor_that_serves_the_user() {
    let mut world = World::start(1).await;
    world.attach().await;
    world.copy().await;
    assert!(!world.is_intercepted(), "nobody is moved");
    assert_eq!(world.clone_says(ReportType::UPIR, &[]).await, None, "the user is at the original");
    world.divert(true);
    assert!(world.is_intercepted());
    let says = world.original.says(ReportType::UPIR, &[]);
    for _ in 0..2 {
        assert_eq!(world.through(&says), None);
        let answer = world.sent().await;
        assert_eq!((answer.to, answer.from), world.ends(), "to the original, as the SMF's");
        let (header, message) = Message::decode(&answer.octets).unwrap();
        assert_eq!(header.seid, world.original.sessions.keys().next().copied());
        assert_eq!(header.sequence, Message::decode(&says).unwrap().0.sequence);
        assert!(matches!(message, Message::SessionReportResponse(answer) if answer.cause.is_accepted()));
    }
    let request = world.clone_says(ReportType::UPIR, &[]).await.unwrap();
    assert!(request.report_type.contains(ReportType::UPIR), "the user is inactive indeed");
    // What comes with it is heard; downlink data that waits at the original is, too.
    let says = world.original.says(ReportType::UPIR | ReportType::USAR, &[1]);
    let request = world.through(&says).unwrap();
    assert_eq!(world.reported(&request).report_type, ReportType::USAR);
    let says = world.original.says(ReportType::DLDR, &[]);
    assert_eq!(world.through(&says), Some(says));
    let heartbeat = encode(HeartbeatRequest { recovery_time_stamp: NtpSeconds(1) }, 0, 900);
    assert_eq!(world.through(&heartbeat), Some(heartbeat), "octet for octet");
    // Back again.
    world.divert(false);
    let says = world.original.says(ReportType::UPIR, &[]);
    assert_eq!(world.through(&says), Some(says));
    // A part of the user's packets is diverted: nobody can tell.
    let place = Place { user: Some(UE.into()), base_station: None, to: "edge".to_owned(), is_whole: false };
    world.replicator.place("upf", "part".to_owned(), Some(place));
    let says = world.original.says(ReportType::UPIR, &[]);
    assert_eq!(world.through(&says), None);
    assert_eq!(world.sent().await.to, world.ends().0);
    assert_eq!(world.clone_says(ReportType::UPIR, &[]).await, None);
    // Of all users of a base station: this one's, or another one's.
    world.replicator.place("upf", "part".to_owned(), None);
    for (station, is_heard) in [(GNB, false), (Ipv4Addr::new(10, 1, 0, 2), true)] {
        let base_station = Some(station.into());
        let place = Place { user: None, base_station, to: "edge".to_owned(), is_whole: false };
        world.replicator.place("upf", "station".to_owned(), Some(place));
        assert!(world.is_intercepted());
        let says = world.original.says(ReportType::UPIR, &[]);
        assert_eq!(world.through(&says).is_some(), is_heard, "{station}");
    }
}

/// Usage of both is charged once, in one order: before, while and after the user is at the clone, also when the SMF asks for it.
#[tokio::test]
async fn usage_is_charged_once_and_in_order() {
    let mut world = World::start(2).await;
    world.attach().await;
    world.original.carry(1000);
    world.tick(10);
    let says = world.original.says(ReportType::USAR, &[1]);
    let octets = world.through(&says).unwrap();
    assert_eq!(octets, says, "nobody is moved");
    world.reported(&octets);
    world.copy().await;
    assert_eq!(world.clone_says(ReportType::USAR, &[1]).await, None, "a warm copy has carried nothing");
    world.divert(true);
    world.tick(10);
    world.clone.lock().unwrap().carry(300);
    world.clone_says(ReportType::USAR, &[1]).await.unwrap();
    world.clone_says(ReportType::USAR, &[1, 2]).await.unwrap();
    // The original reports what was left there, also repeatedly.
    let says = world.original.says(ReportType::USAR, &[1, 2]);
    let octets = world.through(&says).unwrap();
    assert_eq!(world.through(&says).as_ref(), Some(&octets));
    world.reported(&octets);
    // Asked for it, both tell.
    world.clone.lock().unwrap().carry(50);
    world.original.carry(7);
    world.tick(10);
    let Message::SessionModificationResponse(answer) = world.ask(query()).await else { panic!() };
    let totals: Vec<_> = answer.usage_reports.iter().map(|report| report.volume.unwrap().total).collect();
    assert_eq!(totals, [Some(57); 2], "one report of each rule says what both have carried");
    // The user moves back: what the clone has left is reported as the original's.
    world.clone.lock().unwrap().carry(20);
    world.tick(10);
    world.divert(false);
    assert_eq!(world.replicator.remove("upf", "edge", None).await.unwrap(), 1);
    let outgoing = world.sent().await;
    assert_eq!((outgoing.from, outgoing.to), world.ends());
    let request = world.reported(&outgoing.octets);
    assert_eq!(request.report_type, ReportType::USAR);
    assert!(request.usage_reports.iter().all(|report| report.trigger == UsageReportTrigger::IMMER));
    assert!(world.is_intercepted(), "the original's numbers are not the SMF's");
    world.original.carry(5);
    world.tick(10);
    let Message::SessionDeletionResponse(answer) = world.ask(SessionDeletionRequest {}).await else {
        panic!()
    };
    assert_eq!(answer.usage_reports.len(), 2);
    world.charged.is_in_order();
    assert_eq!(world.charged.octets, BTreeMap::from([(1, 1382), (2, 1382)]));
    assert_eq!(world.charged.seconds, BTreeMap::from([(1, 50), (2, 50)]), "no second twice");
    // Repetitions may come for a while.
    let mut watch = world.replicator.watch_intercepted();
    time::timeout(Duration::from_secs(15), watch.wait_for(|all| all.is_empty())).await.unwrap().unwrap();
}

/// The original restarts while the user is at the clone, and the SMF sets the session up again: what the clone has carried is charged once,
/// in the order of numbers that begins anew, and no second twice.
#[tokio::test]
async fn usage_is_charged_once_over_a_restart_of_the_original() {
    let heartbeat = || HeartbeatRequest { recovery_time_stamp: NtpSeconds(1) };
    let mut world = World::start(18).await;
    world.ask(heartbeat()).await;
    world.attach().await;
    world.original.carry(1000);
    world.tick(10);
    let says = world.original.says(ReportType::USAR, &[1]);
    let octets = world.through(&says).unwrap();
    world.reported(&octets);
    world.copy().await;
    world.divert(true);
    world.tick(10);
    world.clone.lock().unwrap().carry(300);
    world.clone_says(ReportType::USAR, &[1]).await.unwrap();
    world.charged.is_in_order();
    // What it had not reported goes with it.
    world.original.carry(5);
    world.original.sessions.clear();
    world.original.started += 1;
    world.ask(heartbeat()).await;
    world.tick(10);
    world.clone.lock().unwrap().carry(20);
    let before = std::mem::take(&mut world.charged);
    world.attach().await;
    assert_eq!(world.clone.lock().unwrap().begun, 1, "the copy stays");
    world.tick(10);
    world.clone_says(ReportType::USAR, &[1]).await.unwrap();
    world.original.carry(7);
    let says = world.original.says(ReportType::USAR, &[1]);
    let octets = world.through(&says).unwrap();
    world.reported(&octets);
    let Message::SessionDeletionResponse(answer) = world.ask(SessionDeletionRequest {}).await else {
        panic!()
    };
    assert_eq!(answer.usage_reports.len(), 2);
    world.charged.is_in_order();
    assert_eq!((before.octets[&1], world.charged.octets[&1]), (1300, 27));
    assert_eq!(before.seconds[&1] + world.charged.seconds[&1], 40);
}

/// A session is copied after its last report: what was charged until then is known to the next controller.
#[tokio::test]
async fn a_restart_keeps_what_was_charged_before_the_copy() {
    let mut world = World::start(6).await;
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("records").display());
    let records = store::records::Records::open(&url).await.unwrap();
    world.replicator.restore(&records).await.unwrap();
    let keeping = tokio::spawn(replication::keep::keep(world.replicator.clone(), records));
    world.attach().await;
    world.original.carry(1000);
    world.tick(10);
    let says = world.original.says(ReportType::USAR, &[1]);
    world.observe(false, &says);
    world.reported(&says);
    // What has changed so far is written.
    time::sleep(Duration::from_millis(200)).await;
    world.copy().await;
    time::sleep(Duration::from_millis(200)).await;
    keeping.abort();
    let _ = keeping.await;
    world.restart(&url).await;
    world.divert(true);
    world.tick(10);
    world.clone.lock().unwrap().carry(300);
    world.clone_says(ReportType::USAR, &[1]).await.expect("its number is known");
    world.charged.is_in_order();
    assert_eq!(world.charged.octets, BTreeMap::from([(1, 1300)]));
}

/// A copy whose removal was answered is not there in the next life, however soon that begins.
#[tokio::test]
async fn a_removal_is_kept_when_it_is_answered() {
    let mut world = World::start(17).await;
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("records").display());
    let records = store::records::Records::open(&url).await.unwrap();
    world.replicator.restore(&records).await.unwrap();
    let keeping = tokio::spawn(replication::keep::keep(world.replicator.clone(), records));
    world.attach().await;
    world.copy().await;
    // The copy is written.
    time::sleep(Duration::from_millis(200)).await;
    assert_eq!(world.replicator.remove("upf", "edge", Some(&[UE.to_string()])).await.unwrap(), 1);
    keeping.abort();
    let _ = keeping.await;
    let anchors = ["upf", "edge"]
        .map(str::to_owned)
        .into_iter()
        .zip([world.original.own, world.clone.lock().unwrap().own]);
    let anchors =
        anchors.map(|(name, own)| Anchor { name, control: own.into(), keeps_addresses: false }).collect();
    let next = Replicator::new(Config::default(), anchors, 5, Box::new(|_| ()));
    next.restore(&store::records::Records::open(&url).await.unwrap()).await.unwrap();
    assert!(next.replicas().iter().all(|replica| replica.3 == 0), "{:?}", next.replicas());
}

/// The session ends while the user is at the clone: one answer says what both have carried, however often.
#[tokio::test]
async fn the_end_says_what_both_have_carried() {
    let mut world = World::start(3).await;
    world.attach().await;
    world.original.carry(100);
    world.copy().await;
    world.divert(true);
    world.clone.lock().unwrap().carry(11);
    world.tick(7);
    let Message::SessionDeletionResponse(answer) = world.ask(SessionDeletionRequest {}).await else {
        panic!()
    };
    assert_eq!(answer.usage_reports.len(), 2);
    assert_eq!(world.charged.octets, BTreeMap::from([(1, 111), (2, 111)]));
    assert_eq!(world.charged.seconds, BTreeMap::from([(1, 7), (2, 7)]));
    world.charged.is_in_order();
    assert!(world.clone.lock().unwrap().sessions.is_empty());
}

/// The clone hears of the end late: its usage is charged all the same.
#[tokio::test]
async fn the_end_waits_for_a_request_that_is_repeated() {
    let mut world = World::start(7).await;
    world.attach().await;
    world.original.carry(100);
    world.copy().await;
    world.divert(true);
    {
        let mut clone = world.clone.lock().unwrap();
        clone.carry(11);
        clone.lost = 2;
    }
    world.ask(SessionDeletionRequest {}).await;
    assert_eq!(world.charged.octets, BTreeMap::from([(1, 111), (2, 111)]));
}

/// While an answer is under way it turns out that another session has ended, whose request was not captured: it is of this session all
/// the same.
#[tokio::test]
async fn an_answer_is_not_taken_for_that_of_another_session() {
    let mut world = World::start(8).await;
    world.attach().await;
    world.copy().await;
    let other = SessionEstablishmentRequest {
        node_id: NodeId::Ipv4(GNB),
        cp_f_seid: FSeid::new(CP_SEID + 1, world.smf),
        ..Default::default()
    };
    let request = encode(other, 0, 500);
    world.observe(true, &request);
    let answer = world.original.answer(&request).unwrap();
    world.observe(false, &answer);
    world.divert(true);
    world.clone.lock().unwrap().carry(3);
    world.clone_says(ReportType::USAR, &URRS).await.unwrap();
    let seids: Vec<u64> = world.original.sessions.keys().copied().collect();
    let ended = world.original.answer(&encode(SessionDeletionRequest {}, seids[1], 600)).unwrap();
    let request = encode(query(), seids[0], 601);
    world.observe(true, &request);
    world.original.carry(5);
    let answer = world.original.answer(&request).unwrap();
    assert_eq!(world.through(&ended), Some(ended));
    time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(world.through(&answer), None);
    let outgoing = world.sent().await;
    let Message::SessionModificationResponse(answer) = Message::decode(&outgoing.octets).unwrap().1 else {
        panic!()
    };
    world.charged.take(&answer.usage_reports);
    world.charged.is_in_order();
    assert_eq!(world.charged.octets, BTreeMap::from([(1, 8), (2, 8)]));
}

/// A report of the original is repeated, also behind one of the clone: it is the same again.
#[tokio::test]
async fn a_repeated_report_is_as_it_was() {
    let mut world = World::start(9).await;
    world.attach().await;
    world.copy().await;
    world.divert(true);
    world.tick(10);
    let says = world.original.says(ReportType::USAR, &[1]);
    for _ in 0..2 {
        assert_eq!(world.through(&says).as_ref(), Some(&says));
    }
    world.reported(&says);
    world.clone.lock().unwrap().carry(3);
    world.clone_says(ReportType::USAR, &[1]).await.unwrap();
    assert_eq!(world.through(&says).as_ref(), Some(&says));
    world.charged.is_in_order();
}

/// The agent has forgotten what it has answered, and the clone asks again: it is answered as before, and charged once.
#[tokio::test]
async fn a_repeated_report_of_a_clone_is_charged_once() {
    let mut world = World::start(10).await;
    world.attach().await;
    world.copy().await;
    world.divert(true);
    world.clone.lock().unwrap().carry(3);
    let report = world.clone.lock().unwrap().says(ReportType::USAR, &URRS);
    let (socket, agent) = world.to_agent.clone();
    socket.send_to(&report, agent).await.unwrap();
    let outgoing = world.sent().await;
    world.reported(&outgoing.octets);
    let answer = time::timeout(PATIENCE, world.answers.recv()).await.unwrap().unwrap();
    let former = world.tasks.remove(1);
    former.abort();
    let _ = former.await;
    time::sleep(Duration::from_millis(100)).await;
    let edge = world.clone.lock().unwrap().own.into();
    let config =
        agent::Config { listen: world.agent, control: world.smf, clone: edge, gtpu: Some(edge), window: 64 };
    world.tasks.push(tokio::spawn(Agent::bind(config).await.unwrap().serve()));
    time::timeout(PATIENCE, async {
        while !world.replicator.replicas()[0].4 {
            time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    time::sleep(Duration::from_millis(100)).await;
    socket.send_to(&report, agent).await.unwrap();
    let again = time::timeout(PATIENCE, world.answers.recv()).await.unwrap().unwrap();
    assert_eq!(again, answer);
    assert!(world.sent.try_recv().is_err());
}

/// A copy ends while the agent has no replicator: what it has left is told to the one that comes.
#[tokio::test]
async fn usage_waits_for_the_replicator() {
    use tokio::io::AsyncReadExt as _;
    let mut world = World::start(11).await;
    world.attach().await;
    world.copy().await;
    world.divert(true);
    {
        let mut clone = world.clone.lock().unwrap();
        clone.carry(20);
        clone.lost = 1;
    }
    let replicator = world.replicator.clone();
    let removing = tokio::spawn(async move { replicator.remove("upf", "edge", None).await });
    time::sleep(Duration::from_millis(100)).await;
    // Somebody else is connected, and says nothing.
    let agent = world.agent;
    let other = tokio::spawn(async move {
        loop {
            let mut stream = net::tcp::connect(agent, PATIENCE).await.unwrap();
            let mut octets = Vec::new();
            let _ = stream.read_to_end(&mut octets).await;
        }
    });
    time::timeout(PATIENCE, async {
        while !world.clone.lock().unwrap().sessions.is_empty() {
            time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    time::sleep(Duration::from_millis(50)).await;
    other.abort();
    let outgoing = world.sent().await;
    world.reported(&outgoing.octets);
    assert_eq!(world.charged.octets, BTreeMap::from([(1, 20), (2, 20)]));
    removing.await.unwrap().unwrap();
}

/// A clone that does not answer holds nobody up for long.
#[tokio::test]
async fn a_silent_clone_costs_a_moment() {
    let mut world = World::start(4).await;
    world.attach().await;
    world.original.carry(100);
    world.copy().await;
    world.divert(true);
    world.clone.lock().unwrap().is_silent = true;
    let start = time::now();
    world.ask(query()).await;
    assert!(time::now() - start < Duration::from_secs(2));
    assert_eq!(world.charged.octets, BTreeMap::from([(1, 100), (2, 100)]));
}

/// Hostile: cut off and damaged messages do no harm, and what is not understood passes as it is.
#[tokio::test]
async fn hostile_messages_do_no_harm() {
    let mut world = World::start(5).await;
    world.attach().await;
    world.copy().await;
    world.divert(true);
    let report = world.original.says(ReportType::UPIR | ReportType::USAR, &URRS);
    let seid = *world.original.sessions.keys().next().unwrap();
    let usage_reports = vec![world.original.report(seid, 1, UsageReportTrigger::IMMER)];
    let cause = Cause::ACCEPTED;
    let answer =
        encode(SessionModificationResponse { cause, usage_reports, ..Default::default() }, CP_SEID, 90);
    for octets in [&report, &answer] {
        for at in 0..octets.len() {
            let mut damaged = octets.clone();
            damaged[at] ^= 0xff;
            world.through(&damaged);
            assert_eq!(world.through(&octets[..at]).as_deref(), Some(&octets[..at]), "{at}");
        }
    }
    while world.sent.try_recv().is_ok() {}
    // It goes on.
    world.clone.lock().unwrap().carry(9);
    world.ask(query()).await;
    assert_eq!(world.charged.octets, BTreeMap::from([(1, 9), (2, 9)]));
}

/// S11: a P-GW that sees no packets of a user who is elsewhere wants to end its session. The MME does not hear of it, and the session stays.
#[tokio::test]
async fn an_mme_does_not_hear_of_inactivity_where_the_user_is_not() {
    use gtpv2c::message as s11;
    use gtpv2c::value::{CauseValue, Ebi, FTeid, InterfaceType, Paa};
    let (mme, anchor) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 11]));
    let encode = |message: s11::Message, teid, sequence| {
        let mut octets = Vec::new();
        message.encode(teid, sequence, &mut octets).unwrap();
        octets
    };
    let (send, mut sent) = mpsc::unbounded_channel();
    let anchors = vec![Anchor { name: "gw".to_owned(), control: anchor, keeps_addresses: false }];
    let replicator =
        Replicator::new(Config::default(), anchors, 5, Box::new(move |outgoing| _ = send.send(outgoing)));
    let observe = |by_control, octets: &[u8]| {
        let datagram = Datagram { control: mme, by_control, octets };
        replicator.observe(Protocol::S11, anchor, datagram);
    };
    let bearer = gtpv2c::BearerToBeCreated { ebi: Ebi(5), ..Default::default() };
    let create = s11::CreateSessionRequest {
        imsi: Some("999700000000001".parse().unwrap()),
        sender_f_teid: FTeid::new(InterfaceType::S11_MME, 0xa1, mme),
        bearers_to_be_created: vec![bearer],
        ..Default::default()
    };
    observe(true, &encode(create.into(), 0, 1));
    let created = s11::CreateSessionResponse {
        cause: CauseValue::ACCEPTED.into(),
        sender_f_teid: Some(FTeid::new(InterfaceType::S11_S4_SGW, 0xb2, anchor)),
        paa: Some(Paa::Ipv4(UE)),
        bearers_created: vec![gtpv2c::BearerCreated {
            ebi: Ebi(5),
            cause: CauseValue::ACCEPTED.into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    observe(false, &encode(created.into(), 0xa1, 1));
    let delete = |cause: CauseValue, sequence| {
        let request = s11::DeleteBearerRequest {
            linked_ebi: Some(Ebi(5)),
            cause: Some(cause.into()),
            ..Default::default()
        };
        encode(request.into(), 0xa1, sequence)
    };
    let ends = (SocketAddr::new(anchor, 2123), SocketAddr::new(mme, 2123));
    let intercept = |octets: &[u8]| replicator.intercept(Protocol::S11, ends.0, ends.1, octets);
    let place = Place { user: Some(UE.into()), base_station: None, to: "edge".to_owned(), is_whole: true };
    assert_eq!(intercept(&delete(CauseValue::PDN_INACTIVITY, 7)), Verdict::Pass);
    replicator.place("gw", "gw~ue".to_owned(), Some(place));
    assert_eq!(intercept(&delete(CauseValue::PDN_INACTIVITY, 8)), Verdict::Withhold);
    let answer = sent.recv().await.unwrap();
    assert_eq!((answer.to, answer.from), ends);
    let (header, message) = s11::Message::decode(&answer.octets).unwrap();
    assert_eq!((header.teid, header.sequence), (Some(0xb2), 8));
    let s11::Message::DeleteBearerResponse(answer) = message else { panic!("{message:?}") };
    assert_eq!((answer.cause.value, answer.linked_ebi), (CauseValue::REJECTED, Some(Ebi(5))));
    assert_eq!(
        intercept(&delete(CauseValue::REACTIVATION_REQUESTED, 9)),
        Verdict::Pass,
        "for another reason"
    );
    let notification = s11::DownlinkDataNotification { ebis: vec![Ebi(5)], ..Default::default() };
    assert_eq!(intercept(&encode(notification.into(), 0xa1, 10)), Verdict::Pass);
}
