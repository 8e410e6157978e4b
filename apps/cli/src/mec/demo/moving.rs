//! `godwit mec demo --move`: a UE is moved to an edge host, back, and from one edge host to another, while it downloads, pings and plays.
//!
//! The network is one of 4G, with `--5g` one of 5G. Gateway or core, the anchors that the orchestrator starts on two edge hosts, the agents beside
//! them, the controller, and the switches on N3 (S1-U) and N6 (SGi) are processes of their own. The simulator is base station and UEs, in 4G the
//! MME as well; they know of no move. With `--gateway` another program is the gateway in the center and at both edge hosts, where it runs all the
//! time; with `--mme` another one is the MME, and the base station is in this process ([`Cell`]).
//!
//! What arrived is counted at the far ends. A UE that stays where it is shows what the machine itself does to gaps.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Context as _;
use lab::moves::{Moves, ORIGIN, took_ms};
use lab::peer::Peer;
use lab::stream::{Stream, Tcp};
use lab::traffic::{self, Counts, Ends, Found, Traffic};
use lab::{Lab, edge};
use net::netns::NetNs;
use net::time::{self, Duration};
use output::Table;
use serde_json::{Value, json};

use crate::demo::applications::{self, Pings};
use crate::demo::progress::Progress;
use crate::mec::demo::cell::Cell;

/// What switches on N3 and N6.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Switch {
    /// `godwit mec switch`.
    Godwit,
    /// Open vSwitch, which cannot keep packets in order.
    Ovs,
}

/// What the network is made of.
#[derive(Clone, Copy)]
pub(super) struct Network<'a> {
    /// UPF and SMF instead of gateways and MME.
    pub is_5g: bool,
    /// Both switches.
    pub switch: Switch,
    /// A program of another make that is the gateway in the center and at both edge hosts.
    pub gateway: Option<&'a Path>,
    /// One that is the MME.
    pub mme: Option<&'a Path>,
}

/// What may happen to packets without a fault of the move: that depends on what they pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Excused {
    /// Nothing.
    Nothing,
    /// A gateway of another make may let uplink packets overtake one another at any time: go-gtp handles each of them on its own.
    OvertakenUplink,
    /// Open vSwitch holds no packets, so a few may be overtaken, or lost while its rules change.
    Few,
}

/// One of how many packets may be lost or overtaken with Open vSwitch.
const FEW: u64 = 50;
/// UEs: one that is moved, and one that stays.
const UES: u32 = 2;
/// The game: small packets both ways.
const GAME_INTERVAL: Duration = Duration::from_millis(2);
const GAME_OCTETS: usize = 120;
const GAME_PORTS: [u16; 2] = [5000, 6000];
/// The download: octets per second, and the UE's port.
const DOWNLOAD_RATE: u64 = 5_000_000;
/// With Open vSwitch: a socket of it has room for some 100 packets, which last a tenth of a second at this rate.
const DOWNLOAD_RATE_OVS: u64 = 1_000_000;
const DOWNLOAD_PORT: u16 = 5001;
/// Echo requests in a step, and their interval in seconds.
const PINGS: u32 = 100;
const PING_INTERVAL: &str = "0.01";
/// Time before a move in its step, and behind it.
const AROUND: Duration = Duration::from_millis(300);
/// How long counters of anchors are watched to see which one carries the UE's packets.
const WATCHED: Duration = Duration::from_millis(200);

/// A move, or the step without one, and what became of the traffic in it.
struct Step {
    name: &'static str,
    /// Where the UE is afterwards, as the counters of the anchors say.
    carried_by: Vec<&'static str>,
    expected: &'static str,
    took_ms: Option<f64>,
    /// Of the UE that is moved, and of the other one: up and down.
    moved: [Found; 2],
    stays: [Found; 2],
    pings: Pings,
    tcp: Tcp,
    delivered: u64,
}

impl Step {
    /// Whether nothing was lost, doubled or overtaken but for what is excused, and one anchor carries the UE's packets. A segment that TCP
    /// sends again, though it has arrived, was late but not lost: a busy machine does that without moves.
    fn is_well(&self, excused: Excused) -> bool {
        let fits = |count: u64, of: u64| match excused {
            Excused::Nothing | Excused::OvertakenUplink => count == 0,
            Excused::Few => count * FEW <= of,
        };
        let is_whole =
            |Counts { sent, lost, doubled, .. }: Counts| sent > 0 && doubled == 0 && fits(lost as u64, sent);
        let is_in_order = |Counts { sent, reordered, .. }: Counts| fits(reordered as u64, sent);
        let are_well = |[up, down]: &[Found; 2]| {
            is_whole(up.counts)
                && is_whole(down.counts)
                && (excused == Excused::OvertakenUplink || is_in_order(up.counts))
                && is_in_order(down.counts)
        };
        // That one was needless may not be said yet. It is said uplink, and not heard if it is overtaken there. Behind a lost one others come early.
        let are_needless =
            self.tcp.retransmitted <= self.tcp.needless + 1 || excused == Excused::OvertakenUplink;
        let is_smooth = self.tcp.early == 0 && are_needless;
        are_well(&self.moved)
            && are_well(&self.stays)
            && self.pings.problem.is_none()
            && self.pings.sent == u64::from(PINGS)
            && fits(self.pings.sent - self.pings.received, self.pings.sent)
            && (is_smooth || excused == Excused::Few)
            && self.delivered > 0
            && self.carried_by == [self.expected]
    }

    fn row(&self) -> [String; 9] {
        let counts = |[up, down]: &[Found; 2]| {
            let of =
                |Counts { lost, doubled, reordered, .. }: Counts| format!("{lost}/{doubled}/{reordered}");
            format!("{} {}", of(up.counts), of(down.counts))
        };
        let gap = |[up, down]: &[Found; 2]| {
            format!("{:.1} {:.1}", milliseconds(up.longest_gap), milliseconds(down.longest_gap))
        };
        [
            self.name.to_owned(),
            self.took_ms.map(|took| format!("{took:.1}")).unwrap_or_default(),
            counts(&self.moved),
            gap(&self.moved),
            gap(&self.stays),
            format!("{} of {}", self.pings.sent - self.pings.received, self.pings.sent),
            format!("{}/{}/{}", self.tcp.retransmitted, self.tcp.needless, self.tcp.early),
            format!("{:.1}", self.delivered as f64 / 1e6),
            self.carried_by.join(", "),
        ]
    }

    fn json(&self, excused: Excused) -> Value {
        let flow = |found: &Found| {
            let Counts { sent, lost, doubled, reordered } = found.counts;
            json!({
                "sent": sent, "lost": lost, "doubled": doubled, "reordered": reordered,
                "longest_gap_ms": milliseconds(found.longest_gap),
            })
        };
        let ways = |[up, down]: &[Found; 2]| json!({"up": flow(up), "down": flow(down)});
        json!({
            "step": self.name, "ok": self.is_well(excused), "took_ms": self.took_ms, "moved": ways(&self.moved),
            "stays": ways(&self.stays), "carried_by": self.carried_by,
            "pings": {"sent": self.pings.sent, "lost": self.pings.sent - self.pings.received},
            "tcp": {"octets": self.delivered, "retransmitted": self.tcp.retransmitted, "needless": self.tcp.needless, "early": self.tcp.early},
        })
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Runs the demo; whether all is well.
///
/// # Errors
/// A part does not start, or a move does not end well.
pub(super) async fn show(as_json: bool, network: Network<'_>) -> anyhow::Result<bool> {
    let Network { is_5g, switch, gateway, mme } = network;
    let excused = match (switch, gateway) {
        (Switch::Ovs, _) => Excused::Few,
        (Switch::Godwit, Some(_)) => Excused::OvertakenUplink,
        (Switch::Godwit, None) => Excused::Nothing,
    };
    let progress = Progress::new();
    let step = progress.step("core, controller, two switches, orchestrator, two edge hosts, UEs");
    let is_ovs = switch == Switch::Ovs;
    let options = lab::Options {
        epc: !is_5g,
        open_vswitch: is_ovs,
        keeps_addresses: is_ovs,
        ..lab::Options::new(UES)?
    };
    let started = Moves::without_ues(options, edge::SITES.len(), gateway).await;
    let (lab, mut gateways) = started.with_context(|| match gateway {
        Some(_) => "docs/mec.md says what a program for --gateway must do, and how to build one",
        None => "the network does not start",
    })?;
    let (moves, cell) = match mme {
        Some(program) => attached_by(lab, program)
            .await
            .context("docs/mec.md says what a program for --mme must do, and how to build one")?,
        None => (Moves::attach(lab, UES).await?, None),
    };
    step.done("attached");
    let rate = if is_ovs { DOWNLOAD_RATE_OVS } else { DOWNLOAD_RATE };
    let steps = steps(&moves, &mut gateways, &progress, excused, rate).await.with_context(|| moves.logs());
    let left = match cell {
        Some(cell) => cell.leave().await,
        None => Ok(()),
    };
    let stopped = moves.stop().await;
    let steps = steps?;
    let is_well = steps.iter().all(|step| step.is_well(excused));
    print(&steps, excused, as_json)?;
    left?;
    stopped?;
    Ok(is_well)
}

/// UEs of another MME.
async fn attached_by(lab: Lab, mme: &Path) -> anyhow::Result<(Moves, Option<Cell>)> {
    let cell = Cell::start(&lab, mme, UES).await?;
    Ok((Moves::of(lab, cell.ues()).await?, Some(cell)))
}

/// Shows what became of the traffic.
fn print(steps: &[Step], excused: Excused, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        output::json(&steps.iter().map(|step| step.json(excused)).collect::<Vec<_>>())?;
        return Ok(());
    }
    let mut table = Table::new(&[
        "step",
        "ms",
        "game: lost/doubled/overtaken, up down",
        "longest gap, ms",
        "of a UE that stays",
        "pings lost",
        "TCP: again/needlessly/early",
        "MB",
        "served by",
    ]);
    for step in steps {
        table.row(step.row());
    }
    let verdict = match (steps.iter().all(|step| step.is_well(excused)), excused) {
        (true, Excused::Nothing) => "nothing was lost, doubled or overtaken",
        (true, Excused::OvertakenUplink) => {
            "nothing was lost or doubled, nor overtaken downlink; uplink the gateways themselves may let packets overtake others"
        }
        (true, Excused::Few) => {
            "served by one anchor at a time; Open vSwitch holds no packets, so a few may be lost or overtaken"
        }
        (false, _) => "NOT ALL IS WELL: the steps above say where, the table says what",
    };
    output::text(&format!("\n{}\n{verdict}\n", table.render()))?;
    Ok(())
}

/// Gateways of another make: in the center and at each edge host.
struct Gateways<'a> {
    all: &'a mut [Peer],
    /// By which they know the UE that is moved.
    imsi: String,
}

/// What runs all the time.
struct Running<'a> {
    moves: &'a Moves,
    ue: Ipv4Addr,
    gateways: Option<Gateways<'a>>,
    space: NetNs,
    game: Traffic,
    download: Stream,
}

async fn steps(
    moves: &Moves,
    gateways: &mut [Peer],
    progress: &Progress,
    excused: Excused,
    rate: u64,
) -> anyhow::Result<Vec<Step>> {
    let [first, second] = &edge::SITES;
    let mut flows = Vec::new();
    for (ue, space) in &moves.ues {
        let user = traffic::bind(space, *ue, GAME_PORTS[0])?;
        let port = GAME_PORTS[1] + u16::from(!flows.is_empty());
        let server = traffic::bind(moves.lab.dn(), lab::DN, port)?;
        flows.push(Ends {
            from: user.try_clone()?,
            to: server.try_clone()?,
            address: (lab::DN, port).into(),
        });
        flows.push(Ends { from: server, to: user, address: (*ue, GAME_PORTS[0]).into() });
    }
    let (ue, space) = moves.ues.iter().next().context("no UE")?;
    let download = Stream::start(moves.lab.dn(), space, (*ue, DOWNLOAD_PORT), rate).await?;
    let game = Traffic::start(flows, GAME_INTERVAL, GAME_OCTETS);
    let gateways = match gateways {
        [] => None,
        all => Some(Gateways { all, imsi: imsi_of(moves, *ue).await? }),
    };
    let mut running = Running { moves, ue: *ue, gateways, space: space.clone(), game, download };
    let all = [
        ("nothing is moved", None, edge::CENTRAL),
        ("to the edge", Some(first.host), first.anchor),
        ("back", Some(ORIGIN), edge::CENTRAL),
        ("to the edge again", Some(first.host), first.anchor),
        ("to another edge", Some(second.host), second.anchor),
        ("back from there", Some(ORIGIN), edge::CENTRAL),
    ];
    let mut steps = Vec::new();
    for (name, to, expected) in all {
        let shown = progress.step(name);
        let step = running.step(name, to, expected).await.with_context(|| name)?;
        let verdict = if step.is_well(excused) { "well" } else { "NOT WELL" };
        let took = step.took_ms.map(|took| format!(", {took:.1} ms")).unwrap_or_default();
        shown.done(&format!("{verdict}{took}"));
        steps.push(step);
    }
    Ok(steps)
}

/// The identity of a UE, as the controller knows it by the messages that made its session.
async fn imsi_of(moves: &Moves, ue: Ipv4Addr) -> anyhow::Result<String> {
    let path = format!("/v1/replication/{}/ues/find", edge::CENTRAL);
    let found = moves.lab.controller("POST", &path, Some(&json!({"ues": [ue]}))).await?;
    let id = found["ues"][0]["id"].as_str().and_then(|id| id.strip_prefix("imsi-"));
    Ok(id.with_context(|| format!("no identity of UE {ue}: {found}"))?.to_owned())
}

/// Packets of the UE, up and down, by the anchor that has counted them.
type Counted = BTreeMap<&'static str, u64>;

impl Running<'_> {
    async fn step(
        &mut self,
        name: &'static str,
        to: Option<&str>,
        expected: &'static str,
    ) -> anyhow::Result<Step> {
        let (before, began) = (self.download.counters()?, self.download.delivered()?);
        let number = self.game.next();
        let (space, host) = (self.space.clone(), lab::DN.to_string());
        let pings =
            tokio::spawn(async move { applications::ping(&space, &host, PINGS, PING_INTERVAL).await });
        time::sleep(AROUND).await;
        let made = match to {
            Some(to) => Some(self.moves.carry(&[self.ue], to, &json!({"order": "keep"})).await?),
            None => None,
        };
        time::sleep(AROUND).await;
        let pings = pings
            .await?
            .unwrap_or_else(|error| Pings { problem: Some(output::with_causes(&error)), ..Pings::default() });
        let mut found = self.game.since(number).await.into_iter();
        let mut next = || found.next().context("a flow of the game");
        let (moved, stays) = ([next()?, next()?], [next()?, next()?]);
        let carried_by = self.carried_by().await?;
        Ok(Step {
            name,
            carried_by,
            expected,
            took_ms: made.as_ref().and_then(took_ms),
            moved,
            stays,
            pings,
            tcp: self.download.counters()?.since(before),
            delivered: self.download.delivered()? - began,
        })
    }

    /// The anchors that count packets of the UE.
    async fn carried_by(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let before = self.counted().await?;
        time::sleep(WATCHED).await;
        let after = self.counted().await?;
        let rose = |(name, count): (&'static str, u64)| {
            (count > before.get(name).copied().unwrap_or_default()).then_some(name)
        };
        Ok(after.into_iter().filter_map(rose).collect())
    }

    async fn counted(&mut self) -> anyhow::Result<Counted> {
        match &mut self.gateways {
            Some(gateways) => Ok(gateways.counted().await),
            None => self.counted_by_upfs().await,
        }
    }

    async fn counted_by_upfs(&self) -> anyhow::Result<Counted> {
        let at_center = self.moves.lab.oam("upf", "GET", "/sessions").await?;
        let own = self.ue.to_string();
        let mut all = Counted::from([(edge::CENTRAL, packets(&at_center, |address| address == own))]);
        for site in &edge::SITES {
            // Before the first move there is no anchor.
            let sessions = self.moves.lab.edge_oam(site, "upf", "/sessions").await.unwrap_or_default();
            // There it is the only UE, and may have another address, which the switches translate.
            all.insert(site.anchor, packets(&sessions, |_| true));
        }
        Ok(all)
    }
}

impl Gateways<'_> {
    async fn counted(&mut self) -> Counted {
        let names = std::iter::once(edge::CENTRAL).chain(edge::SITES.iter().map(|site| site.anchor));
        let mut all = Counted::new();
        for (name, gateway) in names.zip(self.all.iter_mut()) {
            // A gateway that does not have the UE refuses.
            let answer = gateway.ask(json!({"do": "bearers", "imsi": self.imsi})).await.unwrap_or_default();
            let bearers = answer["bearers"].as_object().into_iter().flatten();
            all.insert(name, bearers.map(|(_, bearer)| both_ways(|way| bearer[way].as_u64())).sum());
        }
        all
    }
}

/// Packets of the sessions with such an address, up and down.
fn packets(sessions: &Value, is_own: impl Fn(&str) -> bool) -> u64 {
    let own = |session: &&Value| session["ipv4"][0].as_str().is_some_and(&is_own);
    let count = |session: &Value| both_ways(|way| session[way]["packets"].as_u64());
    sessions.as_array().into_iter().flatten().filter(own).map(count).sum()
}

/// The sum of what is known uplink and downlink.
fn both_ways(packets: impl Fn(&str) -> Option<u64>) -> u64 {
    ["uplink", "downlink"].into_iter().filter_map(packets).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Found {
        Found { counts: Counts { sent: 9, ..Counts::default() }, ..Found::default() }
    }

    fn step() -> Step {
        Step {
            name: "to the edge",
            carried_by: vec!["edge"],
            expected: "edge",
            took_ms: Some(3.0),
            moved: [found(), found()],
            stays: [found(), found()],
            pings: Pings { sent: 100, received: 100, ..Pings::default() },
            tcp: Tcp::default(),
            delivered: 1,
        }
    }

    type Change = fn(&mut Step);

    #[test]
    fn a_step_is_well_only_if_all_of_it_is() {
        assert!(step().is_well(Excused::Nothing));
        let worse: [Change; 8] = [
            |step| step.moved[0].counts.lost = 1,
            |step| step.moved[1].counts.doubled = 1,
            |step| step.stays[1].counts.reordered = 1,
            |step| step.stays[0].counts.sent = 0,
            |step| step.pings.received = 99,
            |step| step.tcp.early = 1,
            |step| step.delivered = 0,
            |step| step.carried_by = vec!["central", "edge"],
        ];
        for make_worse in worse {
            let mut step = step();
            make_worse(&mut step);
            assert!(!step.is_well(Excused::Nothing) && !step.is_well(Excused::OvertakenUplink));
        }
        let overtaken: [(Change, bool); 3] = [
            (|step| step.moved[0].counts.reordered = 9, true),
            (|step| step.stays[0].counts.reordered = 1, true),
            (|step| step.moved[1].counts.reordered = 1, false),
        ];
        for (overtake, is_well) in overtaken {
            let mut step = step();
            overtake(&mut step);
            assert_eq!(
                (step.is_well(Excused::Nothing), step.is_well(Excused::OvertakenUplink)),
                (false, is_well)
            );
        }
        for (retransmitted, is_well) in [(4, true), (5, false)] {
            let mut step = step();
            step.tcp = Tcp { retransmitted, needless: 3, ..Tcp::default() };
            assert_eq!(step.is_well(Excused::Nothing), is_well);
        }
        for (lost, is_well) in [(2, true), (3, false)] {
            let mut step = step();
            step.moved[0].counts = Counts { sent: 100, lost, reordered: 2, ..Counts::default() };
            assert_eq!(step.is_well(Excused::Few), is_well);
        }
    }
}
