//! The gateway of 4G between two MMEs, another gateway and a UPF that send anything, over UDP on loopback and in virtual time.
//!
//! ```text
//! input: steps, at most 24    step: what 1, who 1, two numbers, and for octets and changes a length 1, octets
//! ```
//! A step sends a message of a procedure, with TEIDs that the gateway has given; the last message with changed octets; or octets of
//! the input. Or the UPF reports something, refuses, is silent or restarts; a neighbour restarts; time passes. After it all
//! neighbours restart, and the gateway must have forgotten all UEs: no session here or on the UPF, no address is left.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};

use ::epc::{Config, Node, Spgw};
use gtpv2c::message::*;
use gtpv2c::value::tft::{Component, Direction, Operation, PacketFilter, Tft};
use gtpv2c::*;
use net::time::{self, Duration};
use pfcp::message::SessionReportRequest;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::epc_peers::{Manner, Neighbour, Upf};

/// Steps of an input at most.
const MOST_STEPS: usize = 24;
/// The index of the other gateway among the neighbours.
const GATEWAY: usize = 2;
/// Turns without a message after which nobody has anything to do.
const QUIET: usize = 3;
/// Turns after which the gateway and its neighbours should have nothing to say any more.
const MOST_TURNS: usize = 2_000;
/// Virtual seconds in which the gateway must forget what its neighbours have lost. All its timers are much shorter.
const FORGETS_WITHIN_S: usize = 120;

struct World {
    runtime: Runtime,
    network: Network,
    /// Free addresses when there is no UE.
    pools: Value,
    /// Requests that the UPF has not answered, in all inputs so far.
    unanswered: u64,
}

struct Network {
    spgw: Spgw,
    neighbours: [Neighbour; 3],
    upf: Upf,
    /// The gateway's TEIDs that neighbours were told.
    teids: VecDeque<u32>,
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([127, 24, (std::process::id() % 250) as u8 + 1, last])
}

fn config() -> Config {
    let own = address(5);
    let pool = json!({"ipv4": "10.45.0.0/26", "ipv6": "fd00:45::/58"});
    let config = json!({
        "gtpc": format!("{own}:2123"), "pfcp": format!("{own}:8805"), "gtpu": format!("{own}:2152"),
        "upf": [format!("{}:8805", address(7))],
        "apn": [{"name": "internet", "ue_pool": pool, "dns": ["1.1.1.1"]}],
        "timers": {"gtpc_t3_ms": 300, "paging_guard_ms": 300, "unreachable_ms": 300, "pfcp_heartbeat_ms": 2000, "pfcp_t1_ms": 200},
        "limits": {"sessions": 16},
    });
    serde_json::from_value(config).expect("a configuration")
}

impl World {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        let (network, pools) = runtime.block_on(async {
            let gateway = SocketAddr::new(address(5), 2123);
            let neighbours = [
                Neighbour::start(address(1), gateway).await,
                Neighbour::start(address(2), gateway).await,
                Neighbour::start(address(3), gateway).await,
            ];
            let upf = Upf::start(address(7)).await;
            let folder = tempfile::tempdir().expect("a folder");
            let restarts = folder.path().join("restarts");
            let spgw = Spgw::start(Node::Spgw, config(), &restarts).await.expect("a gateway");
            let mut network = Network { spgw, neighbours, upf, teids: VecDeque::new() };
            network.until_associated().await;
            let pools = network.status()["pools"].take();
            (network, pools)
        });
        Self { runtime, network, pools, unanswered: unanswered() }
    }
}

/// Runs a program.
pub fn run(data: &[u8]) {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    let world = WORLD.get_or_init(|| Mutex::new(World::start()));
    let world = &mut *world.lock().unwrap_or_else(PoisonError::into_inner);
    let World { runtime, network, pools, unanswered: before } = world;
    runtime.block_on(async {
        let mut rest = data;
        for _ in 0..MOST_STEPS {
            let Some((&[what, who, a, b], after)) = rest.split_first_chunk::<4>() else { break };
            rest = after;
            let octets = if matches!(what % 20, 12 | 13) {
                let length = rest.first().map_or(0, |length| usize::from(*length) + 1).min(rest.len());
                let (octets, after) = rest.split_at(length);
                rest = after;
                octets.get(1..).unwrap_or_default()
            } else {
                &[]
            };
            network.step(what % 20, usize::from(who) % 3, a, b, octets);
            let wait = if what % 20 == 19 { u64::from(a) * 20 } else { 0 };
            network.pass(Duration::from_millis(wait)).await;
        }
        network.forget(pools).await;
        // What the UPF does not hear of it cannot forget.
        let now = unanswered();
        if now == *before {
            assert!(network.upf.sessions.is_empty(), "sessions stay on the UPF");
        } else {
            network.upf.restart();
        }
        *before = now;
        network.until_associated().await;
    });
}

/// Requests on N4 without an answer.
fn unanswered() -> u64 {
    let counters = telemetry::counters::snapshot();
    counters.get("n4_failure").and_then(|failures| failures["values"]["timeout"].as_u64()).unwrap_or(0)
}

impl Network {
    /// Lets everybody do what there is to do. A step of the clock wakes who waits for a message, and so does this one.
    async fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..MOST_TURNS {
            time::sleep(Duration::from_millis(1)).await;
            let mut any = self.upf.drain();
            for neighbour in &mut self.neighbours {
                any |= neighbour.drain(&mut self.teids);
            }
            quiet = if any { 0 } else { quiet + 1 };
            if quiet >= QUIET {
                return;
            }
        }
        unreachable!("the gateway does not come to rest");
    }

    /// Lets time pass.
    async fn pass(&mut self, time: Duration) {
        let end = time::now() + time;
        self.settle().await;
        while time::now() < end {
            time::sleep(Duration::from_millis(50)).await;
            self.settle().await;
        }
    }

    async fn until_associated(&mut self) {
        let start = time::now();
        while !self.spgw.has_upf() {
            self.pass(Duration::from_millis(200)).await;
            assert!(time::now() - start < Duration::from_secs(600), "the UPF is not associated");
        }
    }

    /// Numbers of UEs and PDN connections, free addresses.
    fn status(&self) -> Value {
        self.spgw.status()["detail"].take()
    }

    /// All neighbours restart until the gateway has forgotten its UEs.
    async fn forget(&mut self, pools: &Value) {
        self.upf.silent = false;
        self.upf.refuse = 0;
        for _ in 0..FORGETS_WITHIN_S {
            for neighbour in &mut self.neighbours {
                neighbour.manner = Manner::Accept;
                neighbour.restart();
            }
            self.pass(Duration::from_millis(1000)).await;
            let status = self.status();
            if status["ues"] == 0 && status["sessions"] == 0 {
                assert_eq!(&status["pools"], pools, "addresses of nobody are taken");
                self.teids.clear();
                return;
            }
        }
        unreachable!("UEs of neighbours that have restarted are still there: {}", self.status());
    }

    /// A TEID of the gateway; 0 if it has given none.
    fn teid(&self, which: u8) -> u32 {
        self.teids.get(usize::from(which) % self.teids.len().max(1)).copied().unwrap_or(0)
    }

    fn step(&mut self, what: u8, who: usize, a: u8, b: u8, octets: &[u8]) {
        let teid = self.teid(a);
        let own = &mut self.neighbours[who];
        match what {
            0 | 1 => {
                let (teid, message) = create(own, who, teid, a, b);
                own.send(teid, message.into());
            }
            2 => own.send(teid, modify(own, who, b).into()),
            3 => {
                let linked_ebi = (b & 1 == 0).then_some(Ebi(5 + (b >> 4)));
                let indication = (b & 2 == 0).then_some(Indication::OI);
                own.send(teid, DeleteSessionRequest { linked_ebi, indication, ..Default::default() }.into());
            }
            4 => own.send(teid, ReleaseAccessBearersRequest::default().into()),
            5 => own.send(teid, resource_command(b).into()),
            6 => {
                let bearer = BearerInDeleteCommand { ebi: Ebi(5 + b % 11), ..Default::default() };
                own.send(teid, DeleteBearerCommand { bearers: vec![bearer], ..Default::default() }.into());
            }
            7 => {
                let bearer = BearerInModifyCommand { ebi: Ebi(5 + b % 2), qos: Some(qos(b)) };
                let apn_ambr = Ambr { uplink_kbps: b.into(), downlink_kbps: 1_000 };
                own.send(teid, ModifyBearerCommand { apn_ambr, bearer, ..Default::default() }.into());
            }
            8 => {
                let bearer = BearerInCreateRequest {
                    tft: tft(b),
                    qos: qos(b),
                    s5s8u_pgw_f_teid: Some(own.f_teid(InterfaceType::S5S8_PGW_GTPU, 1 + u32::from(b))),
                    charging_id: Some(ChargingId(1)),
                    ..Default::default()
                };
                let (linked_ebi, bearers) = (Ebi(5), vec![bearer]);
                own.send(teid, CreateBearerRequest { linked_ebi, bearers, ..Default::default() }.into());
            }
            9 => {
                let bearer = BearerInUpdateRequest {
                    ebi: Ebi(5 + b % 4),
                    tft: (b & 16 == 0).then(|| tft(b)),
                    qos: (b & 32 == 0).then(|| qos(b)),
                    ..Default::default()
                };
                let apn_ambr = Ambr { uplink_kbps: b.into(), downlink_kbps: 1_000 };
                let request = UpdateBearerRequest { bearers: vec![bearer], apn_ambr, ..Default::default() };
                own.send(teid, request.into());
            }
            10 => {
                let ebi = Ebi(5 + b % 11);
                let (linked_ebi, ebis) = if b & 16 == 0 { (Some(ebi), vec![]) } else { (None, vec![ebi]) };
                own.send(teid, DeleteBearerRequest { linked_ebi, ebis, ..Default::default() }.into());
            }
            11 => {
                let cause = CauseValue::UE_NOT_RESPONDING.into();
                let failed = DownlinkDataNotificationFailureIndication { cause, ..Default::default() };
                own.send(teid, failed.into());
            }
            12 => {
                let mut octets = octets.to_vec();
                if b & 1 == 0
                    && let Some(place) = octets.get_mut(4..8)
                {
                    place.copy_from_slice(&teid.to_be_bytes());
                }
                own.send_octets(octets);
            }
            13 => own.send_changed(octets),
            14 => {
                own.manner =
                    [Manner::Accept, Manner::Refuse, Manner::Silent, Manner::Keep][usize::from(a % 4)]
            }
            15 => own.answer_kept(a & 1 == 0),
            16 => own.restart(),
            17 => self.upf.report(a, report(b)),
            18 => match a % 4 {
                0 => self.upf.refuse = b,
                1 => self.upf.silent = true,
                2 => self.upf.silent = false,
                _ => self.upf.restart(),
            },
            // Time passes.
            _ => {}
        }
    }
}

fn create(own: &Neighbour, who: usize, teid: u32, a: u8, b: u8) -> (u32, CreateSessionRequest) {
    let is_s5 = who == GATEWAY && b & 1 == 0;
    let pgw = |address: IpAddr, teid| Some(FTeid::new(InterfaceType::S5S8_PGW_GTPC, teid, address));
    let ebi = Ebi(5 + (b >> 7));
    let (pdn_type, paa) = match b >> 1 & 3 {
        0 => (PdnType::Ipv4, Some(Paa::Ipv4([0; 4].into()))),
        1 => (PdnType::Ipv6, None),
        2 => (PdnType::Ipv4v6, None),
        _ => (PdnType::Ipv4, Some(Paa::Ipv4([10, 45, 0, 7].into()))),
    };
    let bearer = |ebi: Ebi| BearerToBeCreated {
        ebi,
        qos: qos(0),
        s1u_enb_f_teid: (b & 8 != 0).then(|| own.f_teid(InterfaceType::S1U_ENB, 7)),
        s5s8u_sgw_f_teid: is_s5.then(|| own.f_teid(InterfaceType::S5S8_SGW_GTPU, 7)),
        s5s8u_pgw_f_teid: (a & 64 != 0).then(|| own.f_teid(InterfaceType::S5S8_PGW_GTPU, 8)),
        ..Default::default()
    };
    let mut bearers_to_be_created = vec![bearer(ebi)];
    if b & 16 != 0 {
        bearers_to_be_created.push(bearer(Ebi(ebi.0 + 1)));
    }
    let interface = if is_s5 { InterfaceType::S5S8_SGW_GTPC } else { InterfaceType::S11_MME };
    let request = CreateSessionRequest {
        imsi: format!("99970000000000{}", a & 3).parse().ok(),
        rat_type: RatType::EUTRAN,
        sender_f_teid: own.f_teid(interface, 1 + u32::from(a & 3) + 16 * u32::from(b >> 7)),
        pgw_f_teid: match a >> 2 & 3 {
            0 => None,
            1 => pgw(address(5), 0),
            2 => pgw(address(3), if a & 64 != 0 { 9 } else { 0 }),
            _ => pgw(address(5), teid),
        },
        apn: "internet.mnc070.mcc999.gprs".into(),
        indication: (b & 4 != 0)
            .then_some(Indication::DAF | if a & 128 != 0 { Indication::OI } else { Indication::DAF }),
        pdn_type: Some(pdn_type),
        paa,
        apn_ambr: Some(Ambr { uplink_kbps: 50_000, downlink_kbps: 100_000 }),
        linked_ebi: (b & 16 != 0).then_some(ebi),
        bearers_to_be_created,
        ..Default::default()
    };
    (if b & 32 != 0 { teid } else { 0 }, request)
}

fn modify(own: &Neighbour, who: usize, b: u8) -> ModifyBearerRequest {
    let (interface, number) = (InterfaceType::S1U_ENB, 1 + u32::from(b & 3));
    let bearer = BearerToBeModified {
        ebi: Ebi(5 + (b >> 2 & 1)),
        s1u_enb_f_teid: (who != GATEWAY).then(|| own.f_teid(interface, number)),
        s5s8u_sgw_f_teid: (who == GATEWAY).then(|| own.f_teid(InterfaceType::S5S8_SGW_GTPU, number)),
        ..Default::default()
    };
    let interface = if who == GATEWAY { InterfaceType::S5S8_SGW_GTPC } else { InterfaceType::S11_MME };
    ModifyBearerRequest {
        sender_f_teid: (b & 8 != 0).then(|| own.f_teid(interface, 40 + number)),
        bearers_to_be_modified: if b & 16 == 0 { vec![bearer] } else { vec![] },
        ..Default::default()
    }
}

fn qos(b: u8) -> BearerQos {
    let qci = [9, 8, 1, 5][usize::from(b & 3)];
    let rate = if qci == 1 { 64 } else { 0 };
    let flow = FlowQos {
        qci,
        mbr_uplink_kbps: rate,
        mbr_downlink_kbps: rate,
        gbr_uplink_kbps: rate,
        gbr_downlink_kbps: rate,
    };
    BearerQos { arp: Arp { pci: true, pl: 1 + (b >> 2 & 7), pvi: false }, flow }
}

fn filter(id: u8) -> PacketFilter {
    let components = vec![Component::Protocol(17), Component::RemotePort(1000 + u16::from(id))];
    PacketFilter { id, direction: Direction::Bidirectional, precedence: 10 + id, components }
}

fn tft(b: u8) -> Octets {
    let operation = match b >> 4 & 3 {
        0 => Operation::Create(vec![filter(b & 15)]),
        1 => Operation::Add(vec![filter(b & 15), filter(b >> 4)]),
        2 => Operation::Replace(vec![filter(b & 15)]),
        _ => Operation::DeleteFilters(vec![b & 15]),
    };
    Tft { operation, ..Default::default() }.encode().unwrap_or_default()
}

fn resource_command(b: u8) -> BearerResourceCommand {
    BearerResourceCommand {
        linked_ebi: Ebi(5),
        pti: Pti(1 + (b & 1)),
        ebi: (b >> 4 != 0).then_some(Ebi(6 + b % 10)),
        flow_qos: (b & 128 == 0).then(|| qos(b).flow),
        tad: Some(tft(b)),
        ..Default::default()
    }
}

/// A report of a bearer's downlink data, of a tunnel that a peer does not know, or of inactivity.
fn report(b: u8) -> SessionReportRequest {
    let report_type = [pfcp::ReportType::DLDR, pfcp::ReportType::ERIR, pfcp::ReportType::UPIR];
    let mut report =
        SessionReportRequest { report_type: report_type[usize::from(b) % 3], ..Default::default() };
    match b % 3 {
        0 => {
            let pdr_ids = vec![pfcp::PdrId(16 + u16::from(b >> 2 & 7))];
            report.downlink_data_report = Some(pfcp::DownlinkDataReport { pdr_ids, ..Default::default() });
        }
        1 => {
            let who = address(1 + (b >> 6));
            let IpAddr::V4(v4) = who else { return report };
            let teid = 1 + u32::from(b >> 2 & 7);
            let remote = pfcp::FTeid::Assigned { teid, ipv4: Some(v4), ipv6: None };
            report.error_indication_report =
                Some(pfcp::ErrorIndicationReport { remote_f_teids: vec![remote] });
        }
        _ => {}
    }
    report
}

/// Lives of UEs, and the messages of other targets as octets.
pub fn seeds(messages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    // Attach at this gateway, which is S-GW and P-GW; the TEIDs are those of S11 and S5/S8.
    let attach = [[0, 0, 0, 0], [2, 0, 0, 1]];
    let idle = [[4, 0, 0, 0], [17, 0, 0, 4]];
    // The first bearer that an MME accepts is 7.
    let bearer = [[5, 0, 0, 1], [17, 0, 0, 12]];
    let remote_pgw = [[0, 0, 8, 0], [2, 0, 1, 1]];
    let remote_sgw = [[0, 2, 0, 0], [2, 2, 0, 8]];
    let mut seeds = vec![
        [&attach[..], &idle, &attach[1..], &[[3, 0, 0, 0]]].concat().concat(),
        [&attach[..], &bearer, &[[7, 0, 0, 1], [5, 0, 0, 17], [6, 0, 0, 2]]].concat().concat(),
        // Every address family, and dedicated bearers from the start.
        [[0, 0, 0, 2], [0, 1, 1, 4], [0, 0, 2, 6], [2, 1, 2, 9], [0, 1, 0, 16]].concat(),
        [&remote_pgw[..], &[[8, 2, 0, 1], [9, 2, 0, 50], [10, 2, 0, 24], [3, 0, 1, 0]]].concat().concat(),
        [&remote_sgw[..], &[[5, 2, 0, 1], [7, 2, 0, 0], [3, 2, 0, 1]]].concat().concat(),
        // Neighbours that refuse, are silent, or answer late; failures of the UPF.
        [&attach[..], &[[14, 0, 3, 0]], &bearer, &[[19, 0, 10, 0], [15, 0, 0, 0]]].concat().concat(),
        [&[[14, 2, 2, 0]], &remote_pgw[..], &[[19, 0, 90, 0]]].concat().concat(),
        [&attach[..], &[[18, 0, 3, 0], [2, 0, 0, 2], [19, 0, 200, 0], [18, 0, 1, 0], [2, 0, 0, 3]]]
            .concat()
            .concat(),
        [&[[18, 0, 0, 75]], &attach[..], &attach, &[[16, 0, 0, 0], [19, 0, 20, 0]]].concat().concat(),
        // The UE moves to another S-GW and comes back.
        [&attach[..], &[[2, 2, 1, 8], [0, 1, 12, 8], [0, 0, 76, 8], [2, 0, 3, 9]]].concat().concat(),
    ];
    // Changed at some octet.
    let changed =
        seeds.iter().map(|seed| [&seed[..4], &[13, 0, 0, 0, 4, 30, 1, 4, 0]].concat()).collect::<Vec<_>>();
    seeds.extend(changed);
    for octets in messages {
        let Ok(length) = u8::try_from(octets.len()) else { continue };
        let who = length % 3;
        seeds.push([&attach.concat()[..], &[12, who, 0, 0, length], &octets].concat());
    }
    seeds
}
