//! `godwit mec demo`: users moved to an anchor at the edge and back, by what is in their tunnels. With `--move`: with their sessions,
//! while they talk ([`moving`]).
//!
//! Flow ([`show`]): build the lab with its edge site; start the core, the controller, the switches on N3 and N6 and the second
//! anchor; let UEs register through the switch; copy their sessions to the second anchor; then divert one UE, an application of
//! another, and a pair, and undivert all. After each step `ping` and `curl` run in the UEs, and both anchors' counters must say
//! that each packet went where it should. Captures on both sides of the switch say whether it changed others' packets.

mod captures;
mod cell;
mod moving;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use lab::edge::{self, Session};
use lab::{Lab, Simulator, SimulatorOptions};
use net::capability::{self, Capability};
use net::netns::NetNs;
use net::time::{self, Duration};
use output::Table;
use serde_json::{Value, json};

use crate::EXIT_FAILED;
use crate::demo::applications;
use crate::demo::progress::Progress;
use captures::Captures;

/// UEs: one that is diverted, two of which the second has a diverted application, and both a diverted pair; and one that stays.
const UES: u32 = 4;
/// How long the UEs may take to get their sessions.
const ATTACH_LIMIT: Duration = Duration::from_secs(60);
/// How long the controller may take to have both switches and both anchors.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Size of a download.
const DOWNLOAD: u64 = 5_000_000;
/// Requests of one ping of [`applications::ping_all`].
const PINGS: u64 = 3;

/// Options of `godwit mec demo`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Move a UE with its sessions, by replicated control messages, to an edge host, back, and from one host to another, while it
    /// downloads, pings and plays; nothing may be lost.
    #[arg(long = "move")]
    moves: bool,
    /// With --move: what switches on N3 and N6.
    #[arg(long, value_enum, default_value_t = moving::Switch::Godwit, requires = "moves")]
    switch: moving::Switch,
    /// With --move: a network of 5G, whose UPF's sessions are moved, instead of one of 4G.
    #[arg(long = "5g", requires = "moves", conflicts_with_all = ["switch", "gateway", "mme"])]
    is_5g: bool,
    /// With --move: the gateways in the center and at the edge hosts are this program, started as `PROGRAM spgw -gtpc ADDR:2123 -gtpu ADDR:2152
    /// -pool POOL -tun gw0`. docs/mec.md says how to build one of go-gtp. UEs get addresses out of the pool of each, which Open vSwitch could
    /// not translate.
    #[arg(long, value_name = "PROGRAM", requires = "moves", conflicts_with = "switch")]
    gateway: Option<PathBuf>,
    /// With --move: the MME is this program, started as `PROGRAM mme -gtpc ADDR:2123 -gtpu ADDR:2152 -peer ADDR:2123`; the eNB and its UEs are
    /// godwit's. go-gtp's (see --gateway) is one.
    #[arg(long, value_name = "PROGRAM", requires = "moves")]
    mme: Option<PathBuf>,
    /// Keep pcapng captures of N3 at the gNB and at both anchors in this folder.
    #[arg(long, value_name = "DIR", conflicts_with = "moves")]
    pcap: Option<PathBuf>,
    /// Write the checks as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the demo.
///
/// # Errors
/// The demo could not run at all. A failed check is an exit code, not an error.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pcap = args.pcap.as_ref().map(std::path::absolute).transpose()?;
    anyhow::ensure!(
        Capability::SysAdmin.held() && Capability::NetAdmin.held(),
        "the demo needs root: its switches load XDP programs, which user namespaces may not. Run it with sudo"
    );
    for program in ["ping", "curl"] {
        capability::program(program).with_context(|| format!("the demo runs {program}, which is missing"))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if args.moves {
        let network = moving::Network {
            is_5g: args.is_5g,
            switch: args.switch,
            gateway: args.gateway.as_deref(),
            mme: args.mme.as_deref(),
        };
        let is_well = runtime.block_on(moving::show(args.json, network))?;
        return Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) });
    }
    let checks = runtime.block_on(show(pcap))?;
    let passed = checks.iter().all(|check| check.ok);
    if args.json {
        let list =
            checks.iter().map(|check| json!({"name": check.name, "ok": check.ok, "found": check.found}));
        output::json(&list.collect::<Vec<_>>())?;
    } else {
        let mut table = Table::new(&["check", "", "found"]);
        for check in &checks {
            let mark = if check.ok { "ok" } else { "FAILED" };
            table.row([check.name.clone(), mark.to_owned(), check.found.clone()]);
        }
        let verdict = if passed { "all well" } else { "SOMETHING FAILED" };
        output::text(&format!("\n{}\n{verdict}\n", table.render()))?;
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

struct Check {
    name: String,
    ok: bool,
    found: String,
}

/// A UE of the demo.
struct Ue {
    namespace: NetNs,
    session: Session,
}

/// The running demo.
struct Demo {
    lab: Lab,
    ues: Vec<Ue>,
    checks: Vec<Check>,
    progress: Progress,
}

/// Uplink and downlink packets of each UE at an anchor.
type Counts = BTreeMap<Ipv4Addr, [u64; 2]>;

/// What the counters of both anchors have risen by, of one UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Risen {
    central: [u64; 2],
    edge: [u64; 2],
}

async fn show(pcap: Option<PathBuf>) -> anyhow::Result<Vec<Check>> {
    let progress = Progress::new();
    let step = progress.step("core, controller, two switches, two anchors");
    let mut options = lab::Options::new(UES)?;
    options.edges = 1;
    let mut lab = Lab::start(options).await?;
    let mut clones = lab.start_edge().await?;
    wait_for_the_controller(&mut lab).await?;
    step.done("ready");

    let folder = pcap.unwrap_or_else(|| lab.folder().join("captures"));
    let captures = Captures::start(&folder, [("gnb", lab.ran()), ("central", lab.core())])?;

    let step = progress.step("UEs register through the switch, and get sessions at the central anchor");
    let simulated =
        SimulatorOptions { ues: UES, session_type: "IPV4".to_owned(), ..SimulatorOptions::default() };
    let mut simulator = lab.simulate(&simulated)?;
    let ues = attach(&lab, &mut simulator).await?;
    step.done(&format!("{} sessions", ues.len()));

    let step = progress.step("copies of the sessions at the edge");
    for ue in &ues {
        clones.copy(&ue.session).await?;
    }
    step.done(&format!("{} copies", ues.len()));

    let mut demo = Demo { lab, ues, checks: Vec::new(), progress };
    let outcome = demo.run().await;
    let own = demo.ues.last().map(|ue| ue.session);
    let compared = own.map(|session| captures.stop(&folder, session)).transpose();
    if let Err(error) = outcome {
        demo.check("the demo", false, output::with_causes(&error));
    }
    match compared {
        Ok(Some(compared)) => {
            let found = format!(
                "{} packets of a UE that was never moved, {} otherwise than they were sent",
                compared.same, compared.differing
            );
            demo.check("others' packets", compared.differing == 0 && compared.same > 0, found);
        }
        Ok(None) => {}
        Err(error) => demo.check("others' packets", false, output::with_causes(&error)),
    }
    let Demo { lab, checks, .. } = demo;
    simulator.stop().await?;
    lab.stop().await?;
    Ok(checks)
}

/// Waits until the controller has both switches, and both anchors answer.
async fn wait_for_the_controller(lab: &mut Lab) -> anyhow::Result<()> {
    let deadline = time::now() + READY_LIMIT;
    loop {
        lab.check()?;
        let state = match controller_is_ready(lab).await {
            Ok(None) => return Ok(()),
            Ok(Some(missing)) => missing,
            Err(error) => output::with_causes(&error),
        };
        anyhow::ensure!(
            time::now() < deadline,
            "the controller is not ready after {READY_LIMIT:?}: {state}\n{}",
            lab.log("controller")
        );
        time::sleep(Duration::from_millis(50)).await;
    }
}

/// What is still missing.
async fn controller_is_ready(lab: &Lab) -> anyhow::Result<Option<String>> {
    let switches = lab.controller("GET", "/v1/switches", None).await?;
    let anchors = lab.controller("GET", "/v1/anchors", None).await?;
    let are_all = |answer: &Value, what: &str, member: &str| {
        let list = answer[what].as_array().map(Vec::as_slice).unwrap_or_default();
        list.len() == 2 && list.iter().all(|entry| entry[member] == true)
    };
    let ready = are_all(&switches, "switches", "connected") && are_all(&anchors, "anchors", "alive");
    Ok((!ready).then(|| format!("{switches} {anchors}")))
}

/// Waits for the UEs' sessions.
async fn attach(lab: &Lab, simulator: &mut Simulator) -> anyhow::Result<Vec<Ue>> {
    let deadline = time::now() + ATTACH_LIMIT;
    let mut namespaces: BTreeMap<Ipv4Addr, NetNs> = BTreeMap::new();
    while namespaces.len() < UES as usize {
        let left = deadline.saturating_duration_since(time::now());
        let event = time::timeout(left, simulator.next()).await.context("the UEs got no sessions in time")?;
        let event = event.with_context(|| format!("the simulator ended: {}", simulator.log_tail()))?;
        match event.kind() {
            "session" => {
                let address = event.text("ipv4").context("a session without address")?;
                namespaces.insert(address.parse()?, event.namespace()?);
            }
            "failed" => anyhow::bail!("a UE failed: {}", event.text("detail").unwrap_or("no reason given")),
            _ => {}
        }
    }
    let sessions = lab.oam("smf", "GET", "/sessions").await?;
    let mut ues = Vec::new();
    for listed in sessions.as_array().context("the SMF's list")? {
        let session = Session::of(listed)?;
        let namespace = namespaces.remove(&session.ue).context("a session of no UE")?;
        ues.push(Ue { namespace, session });
    }
    anyhow::ensure!(ues.len() == UES as usize, "the SMF lists {} sessions", ues.len());
    Ok(ues)
}

impl Demo {
    fn check(&mut self, name: impl Into<String>, ok: bool, found: String) {
        self.checks.push(Check { name: name.into(), ok, found });
    }

    async fn run(&mut self) -> anyhow::Result<()> {
        let [first, second, third, fourth] = [0, 1, 2, 3];
        let (on, off) = (true, false);
        for ue in [first, second, third, fourth] {
            self.ping("before anything is moved", ue, off).await?;
        }

        let one = self.diversion(first, json!({}));
        self.divert(&one).await?;
        let counted = self.counted_by_rules(first).await?;
        self.ping("one UE is diverted", first, on).await?;
        self.check_rules("one UE is diverted", first, &counted).await?;
        self.ping("one UE is diverted", fourth, off).await?;
        self.download("one UE is diverted", first, on).await?;
        self.divert(&one).await.context("a repeated request")?;
        self.ping("once more the same request", first, on).await?;

        let server = json!({"application": {"protocol": 6, "server": lab::DN, "port": lab::HTTP_PORT}});
        self.divert(&self.diversion(second, server)).await?;
        self.download("an application is diverted", second, on).await?;
        self.ping("an application is diverted", second, off).await?;
        self.download("an application is diverted", fourth, off).await?;

        let pair = json!({"peer": self.ues[third].session.ue});
        self.divert(&self.diversion(second, pair)).await?;
        self.ping_one_another("a pair is diverted", (second, third)).await?;
        self.ping("a pair is diverted", third, off).await?;

        let all: Vec<Ipv4Addr> = self.ues.iter().map(|ue| ue.session.ue).collect();
        let step = self.progress.step("undivert all");
        self.lab.controller("POST", "/v1/diversions/remove", Some(&json!({"ues": all}))).await?;
        step.done("done");
        for ue in [first, second, third, fourth] {
            self.ping("all are back", ue, off).await?;
        }
        self.download("all are back", first, off).await
    }

    /// The request for a UE, with what else is asked for.
    fn diversion(&self, ue: usize, further: Value) -> Value {
        let Session { ue, uplink_teid, downlink_teid, .. } = self.ues[ue].session;
        let mut request = json!({
            "ue": ue,
            "tunnels": [{"uplink": uplink_teid, "downlink": downlink_teid}],
            "from": edge::CENTRAL,
            "to": edge::SITES[0].anchor,
            "base_station": edge::GNB,
            "confirmed_by": "the demo, which made the copy",
        });
        for (name, value) in further.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        request
    }

    async fn divert(&mut self, request: &Value) -> anyhow::Result<()> {
        let what = match (&request["application"], &request["peer"]) {
            (Value::Null, Value::Null) => String::new(),
            (Value::Null, peer) => format!(", what it exchanges with {peer}"),
            (application, _) => format!(", application {application}"),
        };
        let step = self.progress.step(&format!("divert UE {}{what}", request["ue"]));
        let started = time::now();
        self.lab.controller("POST", "/v1/diversions", Some(request)).await?;
        step.done(&format!("{:.1} ms with curl", (time::now() - started).as_secs_f64() * 1e3));
        Ok(())
    }

    /// What the anchors have counted so far.
    async fn counts(&self) -> anyhow::Result<[Counts; 2]> {
        let read = |list: Value| -> anyhow::Result<Counts> {
            let list = list.as_array().cloned().context("an anchor's list of sessions")?;
            let count = |session: &Value| {
                let address = session["ipv4"][0].as_str().context("a session's address")?.parse()?;
                let packets = |way: &str| session[way]["packets"].as_u64().context("a session's packets");
                Ok((address, [packets("uplink")?, packets("downlink")?]))
            };
            list.iter().map(count).collect()
        };
        Ok([
            read(self.lab.oam("upf", "GET", "/sessions").await?)?,
            read(self.lab.edge_oam(&edge::SITES[0], "upf", "/sessions").await?)?,
        ])
    }

    /// By what an action of a UE has raised its counters.
    async fn risen(&self, ue: usize, before: &[Counts; 2]) -> anyhow::Result<Risen> {
        let after = self.counts().await?;
        let ue = self.ues[ue].session.ue;
        let [central, edge] = [0, 1].map(|at| {
            let of = |counts: &Counts| counts.get(&ue).copied().unwrap_or_default();
            let (before, after) = (of(&before[at]), of(&after[at]));
            [0, 1].map(|way| after[way] - before[way])
        });
        Ok(Risen { central, edge })
    }

    /// Pings the data network from a UE: each packet goes through the one anchor, both ways.
    async fn ping(&mut self, when: &str, ue: usize, at_edge: bool) -> anyhow::Result<()> {
        let before = self.counts().await?;
        let namespace = self.ues[ue].namespace.clone();
        let pings = applications::ping_all(vec![namespace], &lab::DN.to_string(), || {}).await;
        let risen = self.risen(ue, &before).await?;
        let all = pings.received == PINGS && pings.problem.is_none();
        let expected = if at_edge {
            Risen { central: [0; 2], edge: [PINGS; 2] }
        } else {
            Risen { central: [PINGS; 2], edge: [0; 2] }
        };
        let name = format!("{when}: ping of UE {}", ue + 1);
        let found = format!("{} of {PINGS} answered{}; {risen}", pings.received, pings.problem_text());
        self.check(name, all && risen == expected, found);
        Ok(())
    }

    /// Packets that each rule of the switch on N3 has counted that names the UE's tunnel to its anchor.
    async fn counted_by_rules(&self, ue: usize) -> anyhow::Result<BTreeMap<String, u64>> {
        let status = self.lab.switch_status("n3").await?;
        let tunnel = format!("tun_id={:#x}", self.ues[ue].session.uplink_teid);
        let entries = status["entries"].as_array().context("the entries of the switch on N3")?;
        let of_tunnel = entries.iter().filter_map(|entry| {
            let matching = entry["match"].as_str()?;
            let is_its = matching.split(',').any(|field| field == tunnel);
            is_its.then(|| (matching.to_owned(), entry["packets"].as_u64().unwrap_or_default()))
        });
        Ok(of_tunnel.collect())
    }

    /// SW-1: one of the rules that name the UE's tunnel counts each packet of a ping exactly once, the others count none.
    async fn check_rules(
        &mut self,
        when: &str,
        ue: usize,
        before: &BTreeMap<String, u64>,
    ) -> anyhow::Result<()> {
        let after = self.counted_by_rules(ue).await?;
        let risen = after.iter().map(|(rule, count)| count - before.get(rule).copied().unwrap_or_default());
        let (sum, most) = risen.fold((0, 0), |(sum, most), count| (sum + count, most.max(count)));
        let found = format!(
            "rules that name its tunnel: {}; they counted {sum} packets, one of them {most}",
            after.len()
        );
        self.check(
            format!("{when}: rules of UE {} in the switch", ue + 1),
            (sum, most) == (PINGS, PINGS),
            found,
        );
        Ok(())
    }

    /// A download by a UE: all of it goes through the one anchor, both ways.
    async fn download(&mut self, when: &str, ue: usize, at_edge: bool) -> anyhow::Result<()> {
        let before = self.counts().await?;
        let step = self.progress.step(&format!("download by UE {}", ue + 1));
        let got = applications::download(&self.ues[ue].namespace, &self.lab.url(DOWNLOAD)).await?;
        step.done(&format!("{:.0} Mbit/s", got.mbps));
        let risen = self.risen(ue, &before).await?;
        let (used, other) = if at_edge { (risen.edge, risen.central) } else { (risen.central, risen.edge) };
        let name = format!("{when}: download by UE {}", ue + 1);
        let found = format!("{} octets at {:.0} Mbit/s; {risen}", got.bytes, got.mbps);
        self.check(
            name,
            got.bytes == DOWNLOAD && used.iter().all(|count| *count > 0) && other == [0; 2],
            found,
        );
        Ok(())
    }

    /// Two UEs ping one another through the edge.
    async fn ping_one_another(&mut self, when: &str, (one, other): (usize, usize)) -> anyhow::Result<()> {
        for (from, to) in [(one, other), (other, one)] {
            let before = self.counts().await?;
            let host = self.ues[to].session.ue.to_string();
            let pings = applications::ping_all(vec![self.ues[from].namespace.clone()], &host, || {}).await;
            let risen = self.risen(from, &before).await?;
            let name = format!("{when}: UE {} pings UE {}", from + 1, to + 1);
            let found = format!("{} of {PINGS} answered{}; {risen}", pings.received, pings.problem_text());
            // The anchor's kernel adds ICMP redirects: the packets leave by the device that they came from.
            let way = risen.central == [0; 2] && risen.edge[0] == PINGS && risen.edge[1] >= PINGS;
            self.check(name, pings.received == PINGS && way, found);
        }
        Ok(())
    }
}

impl std::fmt::Display for Risen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Risen { central: [up, down], edge: [edge_up, edge_down] } = self;
        write!(f, "central anchor {up} up {down} down, edge {edge_up} up {edge_down} down")
    }
}
