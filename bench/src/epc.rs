//! `epc`: how long the S/P-GW of 4G takes for an attach and for idle and active UEs, how many sessions it sets up per second, and what
//! a session takes of memory.
//!
//! Gateway and UPF are processes in a namespace of a lab; the MME is a loop of this process in another one, on a thread that polls. So
//! all figures are seen from the MME, with the kernel's way over a veth link there and back, and with the UPF behind the gateway. An
//! attach is a Create Session and a Modify Bearer Request, idle a Release Access Bearers Request, active a Modify Bearer Request. For the
//! rate [`WINDOW`] UEs attach at once. All UEs of a round detach at its end. A sample of times is the median or the 99th percentile of a round. Goals are in SPECIFICATION.md.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context as _, bail, ensure};
use gtpv2c::endpoint::{Config, Endpoint, Event, Handle, PORT};
use gtpv2c::message::*;
use gtpv2c::value::*;
use gtpv2c::{BearerToBeCreated, BearerToBeModified};
use lab::Lab;
use net::time::{self, Duration, Instant};

use crate::Options;
use crate::result::Experiment;
use crate::samples::{Axes, Results};
use crate::stats::{median, quantile, short};

/// UEs that attach at once, for the rate.
const WINDOW: usize = 64;
const EBI: Ebi = Ebi(5);
const FIRST_IMSI: u64 = 999_700_000_000_001;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
const ATTACH_GOAL_MS: f64 = 0.3;
const RATE_GOAL: f64 = 5_000.0;
const MEMORY_GOAL_KB: f64 = 8.0;

const MS: Axes = Axes { x: "", y: "time seen by the MME", unit: "ms" };
const RATE: Axes = Axes { x: "UEs", y: "attaches per second", unit: "1/s" };
const KB: Axes = Axes { x: "UEs", y: "memory per session", unit: "kB" };

/// Times of a round, ms, by what took them.
type Times = BTreeMap<&'static str, Vec<f64>>;

/// Runs the experiment.
///
/// # Errors
/// The network could not be built, or a UE was refused.
pub async fn run(options: &Options) -> anyhow::Result<Experiment> {
    let (rounds, serial, crowd) = if options.quick { (3, 300, 5_000) } else { (10, 1_000, 20_000) };
    let mut experiment = Experiment::new("epc", options.quick);
    experiment.param("rounds", rounds);
    experiment.param("ues_one_at_a_time", serial);
    experiment.param("ues_for_rate", crowd);
    experiment.param("ues_at_once", WINDOW as u64);
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    let mut options = lab::Options::new(1)?;
    options.epc = true;
    options.processes = true;
    options.log = "warn".to_owned();
    let mut lab = Lab::start(options).await?;
    let gateway = lab.processes().find(|(name, _)| *name == "spgw").context("no process of the gateway")?.1;
    let mut results = Results::default();
    let mut mme = lab.ran().enter(Mme::new)??;
    // Caches fill, and pages are touched for the first time.
    let ues = mme.attach_all(1_000)?;
    mme.detach_all(&ues)?;
    let before_kb = resident_kb(gateway)?;
    for round in 0..rounds {
        let mut times = Times::default();
        for _ in 0..serial {
            let ue = mme.one(&mut times)?;
            mme.detach_all(&[ue])?;
        }
        for (name, samples) in times {
            results.add(name.to_owned(), MS, 0, median(&samples));
            results.add(format!("{name}, p99"), MS, 0, quantile(&samples, 0.99));
        }
        let start = time::now();
        let ues = mme.attach_all(crowd)?;
        let rate = ues.len() as f64 / (time::now() - start).as_secs_f64();
        results.add("attaches per second".to_owned(), RATE, crowd, rate);
        if round == 0 {
            let kb = (resident_kb(gateway)? - before_kb) / ues.len() as f64;
            results.add("memory per session".to_owned(), KB, crowd, kb);
        }
        let sessions = lab.oam("upf", "GET", "/status").await?;
        let held = sessions["sessions"].as_u64().unwrap_or_default();
        experiment.check(
            &format!("sessions on the UPF, round {round}"),
            held == crowd as u64,
            held.to_string(),
        );
        mme.detach_all(&ues)?;
        lab.check()?;
    }
    let status = lab.oam("spgw", "GET", "/status").await?;
    let left = status["detail"]["sessions"].as_u64().unwrap_or(u64::MAX);
    experiment.check("all UEs have left", left == 0, left.to_string());
    lab.stop().await?;

    for (name, series, x, goal) in [
        ("create_session_ms_p50", "create session", 0, None),
        ("modify_bearer_ms_p50", "modify bearer", 0, None),
        ("attach_ms_p50", "attach", 0, Some((ATTACH_GOAL_MS, false))),
        ("attach_ms_p99", "attach, p99", 0, None),
        ("idle_ms_p50", "idle", 0, None),
        ("active_ms_p50", "active", 0, None),
        ("spgw_sessions_per_s", "attaches per second", crowd, Some((RATE_GOAL, true))),
        ("kb_per_session", "memory per session", crowd, Some((MEMORY_GOAL_KB, false))),
    ] {
        let value = results.median(series, x).context("a series without samples")?;
        experiment.ratios.insert(name.to_owned(), value);
        if let Some((goal, at_least)) = goal {
            let is_met = if at_least { value >= goal } else { value <= goal };
            experiment.check(&format!("{name} goal"), is_met, format!("{}, goal {goal}", short(value)));
        }
    }
    experiment.series = results.into_series();
    Ok(experiment)
}

/// Memory of a process that is in use, kB.
fn resident_kb(process: u32) -> anyhow::Result<f64> {
    let status =
        std::fs::read_to_string(format!("/proc/{process}/status")).context("the gateway's status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// A UE that is attached.
struct Ue {
    /// The gateway's end of S11.
    gateway: u32,
}

/// An MME that polls.
struct Mme {
    socket: UdpSocket,
    endpoint: Endpoint,
    gateway: SocketAddr,
    own: IpAddr,
    /// UEs so far: each has another IMSI, and another TEID.
    count: u32,
    buffer: Vec<u8>,
}

impl Mme {
    fn new() -> anyhow::Result<Mme> {
        let own = IpAddr::from(lab::RAN_N2);
        let socket = net::udp::bind_std(SocketAddr::new(own, PORT), net::udp::Options::default())?;
        socket.set_nonblocking(true)?;
        let mut config = Config::new(Recovery(1), nf::random::u64());
        config.t3_response = Duration::from_secs(2);
        let gateway = SocketAddr::from((lab::CORE_N2, PORT));
        Ok(Mme { socket, endpoint: Endpoint::new(config), gateway, own, count: 0, buffer: vec![0; 65_536] })
    }

    fn create_request(&mut self) -> CreateSessionRequest {
        self.count += 1;
        let imsi = (FIRST_IMSI + u64::from(self.count)).to_string();
        let arp = Arp { pci: true, pl: 8, pvi: false };
        let qos = BearerQos { arp, flow: FlowQos { qci: 9, ..Default::default() } };
        CreateSessionRequest {
            imsi: imsi.parse().ok(),
            rat_type: RatType::EUTRAN,
            sender_f_teid: FTeid::new(InterfaceType::S11_MME, self.count, self.own),
            apn: "internet".into(),
            pdn_type: Some(PdnType::Ipv4),
            paa: Some(Paa::Ipv4([0; 4].into())),
            apn_ambr: Some(Ambr { uplink_kbps: 50_000, downlink_kbps: 100_000 }),
            bearers_to_be_created: vec![BearerToBeCreated { ebi: EBI, qos, ..Default::default() }],
            ..Default::default()
        }
    }

    fn modify_request(&self, enb: u32) -> ModifyBearerRequest {
        let enb = FTeid::new(InterfaceType::S1U_ENB, enb, self.own);
        let bearer = BearerToBeModified { ebi: EBI, s1u_enb_f_teid: Some(enb), ..Default::default() };
        ModifyBearerRequest { bearers_to_be_modified: vec![bearer], ..Default::default() }
    }

    fn send(&mut self, teid: u32, message: impl Into<Message>) -> anyhow::Result<Handle> {
        let handle = self.endpoint.send_request(time::now_std(), self.gateway, teid, message)?;
        self.flush();
        Ok(handle)
    }

    fn flush(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit() {
            // A full buffer loses the datagram, which is then repeated.
            let _ = self.socket.send_to(&transmit.payload, transmit.to);
        }
    }

    /// The next answer, waited for by polling.
    fn answer(&mut self) -> anyhow::Result<(Handle, Message)> {
        let start = time::now_std();
        loop {
            while let Some(event) = self.endpoint.poll_event() {
                match event {
                    Event::Response { handle, message, .. } => return Ok((handle, message)),
                    Event::Failed { failure, message_type, .. } => bail!("{message_type:?}: {failure}"),
                    _ => {}
                }
            }
            let now = time::now_std();
            ensure!(now - start < PATIENCE, "the gateway does not answer");
            match self.socket.recv_from(&mut self.buffer) {
                Ok((length, from)) => self.endpoint.handle_datagram(now, from, &self.buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if self.endpoint.poll_timeout().is_some_and(|due| due <= now) {
                        self.endpoint.handle_timeout(now);
                    }
                    std::hint::spin_loop();
                }
                Err(error) => return Err(error.into()),
            }
            self.flush();
        }
    }

    /// One UE: attach, idle, active.
    fn one(&mut self, times: &mut Times) -> anyhow::Result<Ue> {
        let ms = |since: Instant| (time::now() - since).as_secs_f64() * 1e3;
        let request = self.create_request();
        let enb = self.count;
        let start = time::now();
        self.send(0, request)?;
        let (_, answer) = self.answer()?;
        let created = ms(start);
        let gateway = gateway_of(&answer)?;
        let modify = self.modify_request(enb);
        self.send(gateway, modify.clone())?;
        self.answer()?;
        let attached = ms(start);
        let mut add = |name, ms| times.entry(name).or_default().push(ms);
        add("create session", created);
        add("modify bearer", attached - created);
        add("attach", attached);
        let start = time::now();
        self.send(gateway, ReleaseAccessBearersRequest::default())?;
        self.answer()?;
        add("idle", ms(start));
        let start = time::now();
        self.send(gateway, modify)?;
        self.answer()?;
        add("active", ms(start));
        Ok(Ue { gateway })
    }

    /// So many UEs, [`WINDOW`] at once.
    fn attach_all(&mut self, count: usize) -> anyhow::Result<Vec<Ue>> {
        // With the eNB's TEID until the session is there, with the gateway's until the bearer is.
        let (mut creating, mut modifying) = (HashMap::new(), HashMap::new());
        let (mut begun, mut attached) = (0, Vec::with_capacity(count));
        while attached.len() < count {
            while begun < count && creating.len() + modifying.len() < WINDOW {
                let request = self.create_request();
                let enb = self.count;
                creating.insert(self.send(0, request)?, enb);
                begun += 1;
            }
            let (handle, answer) = self.answer()?;
            if let Some(enb) = creating.remove(&handle) {
                let gateway = gateway_of(&answer)?;
                let modify = self.modify_request(enb);
                modifying.insert(self.send(gateway, modify)?, gateway);
            } else if let Some(gateway) = modifying.remove(&handle) {
                let is_modified =
                    matches!(&answer, Message::ModifyBearerResponse(answer) if answer.cause.is_accepted());
                ensure!(is_modified, "{answer:?}");
                attached.push(Ue { gateway });
            }
        }
        Ok(attached)
    }

    fn detach_all(&mut self, ues: &[Ue]) -> anyhow::Result<()> {
        let mut left = ues.iter();
        let mut under_way = 0;
        loop {
            while under_way < WINDOW
                && let Some(ue) = left.next()
            {
                self.send(ue.gateway, DeleteSessionRequest { linked_ebi: Some(EBI), ..Default::default() })?;
                under_way += 1;
            }
            if under_way == 0 {
                return Ok(());
            }
            let (_, answer) = self.answer()?;
            let is_deleted =
                matches!(&answer, Message::DeleteSessionResponse(answer) if answer.cause.is_accepted());
            ensure!(is_deleted, "{answer:?}");
            under_way -= 1;
        }
    }
}

/// The gateway's end of S11, if it has accepted the UE.
fn gateway_of(answer: &Message) -> anyhow::Result<u32> {
    match answer {
        Message::CreateSessionResponse(answer) if answer.cause.is_accepted() => {
            Ok(answer.sender_f_teid.context("no F-TEID of the gateway")?.teid)
        }
        other => bail!("refused: {other:?}"),
    }
}
