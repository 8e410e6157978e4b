//! `replication`: what it costs to have a second S/P-GW serve UEs that a first one has set up, by schemes from the literature: the paper's
//! (sdn-mec-continuity) Figures 6 to 8 and Table II.
//!
//! | contender | how the second anchor gets the state |
//! |---|---|
//! | `ram` ([`ram`]) | the anchor is in a virtual machine, whose memory is dumped, transferred and restored |
//! | `stateless` ([`stateless`]) | both anchors have the contexts of UEs in one database |
//! | `custom` ([`custom`]) | the first anchor sends contexts by a protocol of its own |
//! | `naive` ([`messages`]) | all control messages of the first anchor are replayed, one after another |
//! | `selective` ([`messages`]) | the requests that make the moved UEs' sessions are replayed, many at once |
//! | `n4` ([`messages`]) | the same over N4, of a UPF's sessions |
//!
//! Each contender registers UEs at the first anchor, has some or all of them available at the second one, and tells what that took as a
//! [`Moved`]. Another scheme is a variant of [`Contender`]. All anchors are `godwit run` with the functions `upf` and `spgw`; the MME is that
//! of `bench epc`. A prober asks the first anchor, and for `ram` the second, every 5 ms by GTP-C Echo: the longest time without an answer is the
//! downtime. Beside them, UEs are moved by the controller, and attach while it captures ([`edge`]). Table II is made of what was seen. `docs/bench-replication.md` explains the figures.

mod custom;
mod edge;
mod memory;
mod messages;
mod mme;
mod pair;
mod prober;
mod ram;
mod smf;
mod stateless;
mod table;

use serde_json::Value;

use replication::replicator::{Protocol, Scheme};

use self::custom::Custom;
use self::edge::{Capture, Edge};
use self::messages::Messages;
use self::pair::Anchor;
use self::ram::Ram;
use self::stateless::Stateless;
use crate::Options;
use crate::plot::Panel;
use crate::progress::Progress;
use crate::ran::panels::of;
use crate::result::Experiment;
use crate::samples::{Axes, Results};
use crate::stats::median;

const MS: Axes = Axes { x: "UEs", y: "time", unit: "ms" };
const OCTETS: Axes = Axes { x: "UEs", y: "octets", unit: "octets" };
const US: Axes = Axes { x: "", y: "attach, median of a round", unit: "us" };

/// What it took to have UEs available at the second anchor.
struct Moved {
    /// Octets that are kept outside the anchors for the registered UEs.
    stored_octets: u64,
    /// Octets that went to the second anchor's site.
    wire_octets: u64,
    /// Parts of the time until the second anchor serves, ms, in their order.
    parts: Vec<(&'static str, f64)>,
    /// The longest time without an answer, ms.
    downtime_ms: f64,
    /// UEs that the second anchor knows.
    known: usize,
    /// Those of the UEs to be moved that it has served when it was asked.
    served: usize,
    /// Messages that were replayed to it; 0: the scheme replays none.
    messages: u64,
}

/// A scheme with its anchors.
enum Contender {
    Ram(Box<Ram>),
    Stateless(Box<Stateless>),
    Custom(Box<Custom>),
    Messages(Box<Messages>),
}

impl Contender {
    fn name(&self) -> &'static str {
        match self {
            Contender::Ram(_) => "ram",
            Contender::Stateless(_) => "stateless",
            Contender::Custom(_) => "custom",
            Contender::Messages(messages) => messages.name(),
        }
    }

    /// Registers UEs at the first anchor until there are so many.
    async fn register(&mut self, ues: usize) -> anyhow::Result<()> {
        match self {
            Contender::Ram(ram) => ram.register(ues),
            Contender::Stateless(stateless) => stateless.pair.register(ues),
            Contender::Custom(custom) => custom.pair.register(ues),
            Contender::Messages(messages) => messages.register(ues),
        }
    }

    /// Has the first `moved` of the registered UEs available at the second anchor, which has forgotten them when this returns.
    async fn replicate(&mut self, moved: usize) -> anyhow::Result<Moved> {
        match self {
            Contender::Ram(ram) => ram.replicate(moved).await,
            Contender::Stateless(stateless) => stateless.replicate(moved).await,
            Contender::Custom(custom) => custom.replicate(moved).await,
            Contender::Messages(messages) => messages.replicate(moved).await,
        }
    }

    /// All UEs leave the first anchor.
    async fn clear(&mut self) -> anyhow::Result<()> {
        match self {
            Contender::Ram(ram) => ram.clear(),
            Contender::Stateless(stateless) => stateless.pair.clear(),
            Contender::Custom(custom) => custom.pair.clear(),
            Contender::Messages(messages) => messages.clear(),
        }
    }

    /// The first anchor for measurements of its control plane. `None`: nothing of the scheme runs between moves.
    fn first(&mut self) -> Option<&mut Anchor> {
        match self {
            Contender::Ram(_) | Contender::Messages(_) => None,
            Contender::Stateless(stateless) => Some(&mut stateless.pair.first),
            Contender::Custom(custom) => Some(&mut custom.pair.first),
        }
    }

    /// The anchors' configuration of the gateway.
    fn configurations(&self) -> anyhow::Result<Vec<Value>> {
        match self {
            Contender::Ram(ram) => Ok(vec![ram.configuration()]),
            Contender::Stateless(stateless) => stateless.pair.configurations(),
            Contender::Custom(custom) => custom.pair.configurations(),
            Contender::Messages(messages) => messages.configurations(),
        }
    }

    async fn stop(self) -> anyhow::Result<()> {
        match self {
            Contender::Ram(ram) => ram.stop().await,
            Contender::Stateless(stateless) => stateless.pair.stop().await,
            Contender::Custom(custom) => custom.pair.stop().await,
            Contender::Messages(messages) => messages.stop().await,
        }
    }
}

/// How much is measured.
struct Extent {
    rounds: usize,
    /// Rounds of `ram`, which take seconds.
    ram_rounds: usize,
    /// UEs that are registered, and moved.
    counts: &'static [usize],
    /// Attaches of a round, one after the other.
    attaches: usize,
    memory_mb: u32,
    /// Moves by the controller, each way.
    moves: usize,
    /// Moves of [`MANY`] UEs.
    moves_of_many: usize,
}

const QUICK: Extent = Extent {
    rounds: 3,
    ram_rounds: 1,
    counts: &[1, 1_000],
    attaches: 100,
    memory_mb: 512,
    moves: 3,
    moves_of_many: 0,
};
const FULL: Extent = Extent {
    rounds: 10,
    ram_rounds: 5,
    counts: &[1, 10, 100, 1_000],
    attaches: 200,
    memory_mb: 2048,
    moves: 30,
    moves_of_many: 3,
};
/// UEs that the controller moves at once, and in as many requests as it takes.
const THOUSAND: usize = 1_000;
const MANY: usize = 100_000;

/// A part of the experiment.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Attaches while the controller captures control messages.
    Capture,
    /// 1,000 UEs moved by the controller, prepared and not.
    Moves,
    /// 100,000 UEs moved by the controller; not in a quick run.
    Many,
    /// The schemes, each with its anchors.
    Schemes,
}

/// Runs the experiment, or only the named parts.
///
/// # Errors
/// An anchor does not start, or does not serve a UE that it should.
pub async fn run(options: &Options, only: &[Part]) -> anyhow::Result<Experiment> {
    let is_asked = |part| only.is_empty() || only.contains(&part);
    let extent = if options.quick { QUICK } else { FULL };
    let mut experiment = Experiment::new("replication", options.quick);
    if !only.is_empty() {
        experiment.param("parts", format!("{only:?}"));
    }
    experiment.param("rounds", extent.rounds);
    experiment.param("rounds_ram", extent.ram_rounds);
    experiment.param("attaches_one_at_a_time", extent.attaches);
    experiment.param("guest_memory_mb", extent.memory_mb);
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    let mut progress = Progress::new("replication");
    let mut results = Results::default();
    if [Part::Capture, Part::Moves, Part::Many].into_iter().any(is_asked) {
        by_controller(&mut results, &mut progress, &extent, is_asked).await?;
    }
    if is_asked(Part::Schemes) {
        by_schemes(&mut experiment, &mut results, &mut progress, &extent).await?;
    }
    figures(&mut experiment, &results, &extent);
    experiment.ratios.insert("stored_mb_per_million".to_owned(), memory::of_a_million()?);
    experiment.series = results.into_series();
    Ok(experiment)
}

/// All contenders, round by round.
async fn by_schemes(
    experiment: &mut Experiment,
    results: &mut Results,
    progress: &mut Progress,
    extent: &Extent,
) -> anyhow::Result<()> {
    progress.say("starting anchors");
    let mut plain = Anchor::start(|_| ()).await?;
    let mut contenders = Vec::new();
    let mut start = |name: &str, started: anyhow::Result<Contender>| match started {
        Ok(contender) => {
            experiment.check(&format!("{name} takes part"), true, "");
            contenders.push(contender);
        }
        Err(why) => experiment.check(&format!("{name} takes part"), false, format!("{why:#}")),
    };
    // A machine that boots for `ram` leaves the others most of the time.
    let (selective, naive, n4, custom, stateless, ram) = tokio::join!(
        Messages::s11("selective", Scheme::Selective),
        Messages::s11("naive", Scheme::Naive),
        Messages::n4("n4"),
        Custom::start(),
        Stateless::start(),
        Ram::start(extent.memory_mb),
    );
    start("selective", selective.map(|messages| Contender::Messages(Box::new(messages))));
    start("naive", naive.map(|messages| Contender::Messages(Box::new(messages))));
    start("n4", n4.map(|messages| Contender::Messages(Box::new(messages))));
    start("custom", custom.map(|custom| Contender::Custom(Box::new(custom))));
    start("stateless", stateless.map(|stateless| Contender::Stateless(Box::new(stateless))));
    start("ram", ram.map(|ram| Contender::Ram(Box::new(ram))));

    // Caches fill, and pages are touched for the first time.
    for anchor in std::iter::once(&mut plain).chain(contenders.iter_mut().filter_map(Contender::first)) {
        anchor.attach_time_us(50)?;
    }
    for round in 0..extent.rounds {
        progress.say(&format!("control latency, round {} of {}", round + 1, extent.rounds));
        results.add("attach.plain".to_owned(), US, 0, plain.attach_time_us(extent.attaches)?);
        for contender in &mut contenders {
            let name = contender.name();
            if let Some(anchor) = contender.first() {
                results.add(format!("attach.{name}"), US, 0, anchor.attach_time_us(extent.attaches)?);
            }
        }
    }
    let mut is_selective = Vec::new();
    for round in 0..extent.rounds {
        let count = contenders.len();
        for turn in 0..count {
            // Who begins changes every round.
            let contender = &mut contenders[(round + turn) % count];
            if matches!(contender, Contender::Ram(_)) && round >= extent.ram_rounds {
                continue;
            }
            progress.say(&format!("{}, round {} of {}", contender.name(), round + 1, extent.rounds));
            let (seen, wrong) = measure(results, contender, extent).await?;
            let check =
                format!("{}: the second anchor serves the UEs, round {}", contender.name(), round + 1);
            experiment.check(&check, wrong.is_empty(), wrong.join("; "));
            is_selective.push((contender.name(), seen));
        }
    }
    for contender in &contenders {
        table::row(experiment, results, contender, &is_selective, extent.counts)?;
    }
    for contender in contenders {
        contender.stop().await?;
    }
    plain.stop().await
}

/// Attaches while a controller captures messages in either way, and UEs that it moves.
async fn by_controller(
    results: &mut Results,
    progress: &mut Progress,
    extent: &Extent,
    is_asked: impl Fn(Part) -> bool,
) -> anyhow::Result<()> {
    progress.say("starting networks with a controller");
    let mut edge = match is_asked(Part::Capture) {
        true => capture(results, progress, extent).await?,
        false => Edge::start(Protocol::S11, Capture::Copy).await?,
    };
    if is_asked(Part::Moves) || is_asked(Part::Many) {
        begin_moves(&mut edge).await?;
    }
    if is_asked(Part::Moves) {
        moves(results, progress, extent, (&edge, "")).await?;
    }
    if is_asked(Part::Many) && extent.moves_of_many > 0 {
        moves_of_many(results, progress, extent, &mut edge).await?;
    }
    edge.stop().await?;
    if is_asked(Part::Moves) {
        let mut edge = Edge::start(Protocol::N4, Capture::Copy).await?;
        begin_moves(&mut edge).await?;
        moves(results, progress, extent, (&edge, "n4_")).await?;
        edge.stop().await?;
    }
    Ok(())
}

/// Lets UEs attach. Link-layer addresses become known, pages are touched for the first time, and the clone gets its copies.
async fn begin_moves(edge: &mut Edge) -> anyhow::Result<()> {
    edge.start_clone().await?;
    edge.register(THOUSAND).await?;
    edge.carry(THOUSAND, true).await.map(drop)
}

/// Attaches in networks whose controllers capture messages or not; the network whose controller gets copies goes on.
async fn capture(results: &mut Results, progress: &mut Progress, extent: &Extent) -> anyhow::Result<Edge> {
    let (off, copy, via) = tokio::try_join!(
        Edge::start(Protocol::S11, Capture::Off),
        Edge::start(Protocol::S11, Capture::Copy),
        Edge::start(Protocol::S11, Capture::ViaController)
    )?;
    let mut edges =
        [("attach.not_captured", off), ("attach.selective", copy), ("attach.via_controller", via)];
    for (_, edge) in &mut edges {
        edge.attach_time_us(50)?;
    }
    for round in 0..extent.rounds {
        progress.say(&format!("capture, round {} of {}", round + 1, extent.rounds));
        // Who begins changes every round.
        for turn in 0..edges.len() {
            let (name, edge) = &mut edges[(round + turn) % 3];
            results.add((*name).to_owned(), US, 0, edge.attach_time_us(extent.attaches)?);
        }
    }
    let [off, (_, edge), via] = edges;
    tokio::try_join!(off.1.stop(), via.1.stop())?;
    Ok(edge)
}

/// [`THOUSAND`] UEs there and back, whose copies are there, or not; and one of them. `network` begins the names of their series.
async fn moves(
    results: &mut Results,
    progress: &mut Progress,
    extent: &Extent,
    (edge, network): (&Edge, &str),
) -> anyhow::Result<()> {
    for round in 0..extent.moves {
        progress.say(&format!("{network}moves by the controller, round {} of {}", round + 1, extent.moves));
        for prepare in if round % 2 == 0 { [true, false] } else { [false, true] } {
            let took = edge.carry(THOUSAND, prepare).await?;
            let name = if prepare { "warm" } else { "warm_unprepared" };
            results.add(format!("{network}{name}.there"), MS, THOUSAND, took.there);
            results.add(format!("{network}{name}.back"), MS, THOUSAND, took.back);
            if prepare {
                results.add(format!("{network}warm.prepare"), MS, THOUSAND, took.prepared);
            }
        }
        for ues in [1, THOUSAND] {
            edge.remove_copies().await?;
            let took = edge.carry(ues, false).await?;
            results.add(format!("{network}cold.copy"), MS, ues, took.copied);
            results.add(format!("{network}cold.there"), MS, ues, took.there);
            results.add(format!("{network}cold.ms"), MS, ues, took.copied + took.there);
        }
    }
    Ok(())
}

/// [`MANY`] UEs there and back.
async fn moves_of_many(
    results: &mut Results,
    progress: &mut Progress,
    extent: &Extent,
    edge: &mut Edge,
) -> anyhow::Result<()> {
    progress.say("very many UEs attach");
    edge.register(MANY).await?;
    for round in 0..extent.moves_of_many {
        progress.say(&format!("moves of very many UEs, round {} of {}", round + 1, extent.moves_of_many));
        edge.remove_copies().await?;
        let took = edge.carry(MANY, false).await?;
        let (copied, there) = (took.copied, took.there);
        progress.say(&format!("{MANY} UEs: copied in {copied:.0} ms, diverted in {there:.0} ms"));
        results.add("many.copy".to_owned(), MS, MANY, took.copied);
        results.add("many.there".to_owned(), MS, MANY, took.there);
        results.add("many.back".to_owned(), MS, MANY, took.back);
        results.add("many.ms".to_owned(), MS, MANY, took.copied + took.there);
    }
    Ok(())
}

/// A round of one contender: UEs registered, and of these moved. Returns whether the second anchor knew just one UE when one of many was
/// moved, and what was wrong.
async fn measure(
    results: &mut Results,
    contender: &mut Contender,
    extent: &Extent,
) -> anyhow::Result<(bool, Vec<String>)> {
    let name = contender.name();
    let (mut wrong, mut is_selective) = (Vec::new(), false);
    let most = extent.counts.last().copied().unwrap_or(1);
    for registered in extent.counts.iter().copied() {
        for moved in extent.counts.iter().copied().filter(|moved| *moved <= registered) {
            let is_one_of_many = moved == 1 && registered == most;
            // A dump has all of them, whoever is meant, and takes seconds.
            if matches!(contender, Contender::Ram(_)) && moved < registered && !is_one_of_many {
                continue;
            }
            contender.register(registered).await?;
            let found = contender.replicate(moved).await?;
            contender.clear().await?;
            if found.served != moved || moved == registered && found.known != moved {
                wrong.push(format!("{} of {moved} served, {} known", found.served, found.known));
            }
            if is_one_of_many {
                is_selective = found.known == 1;
            }
            add(results, name, (registered, moved), &found);
        }
    }
    Ok((is_selective, wrong))
}

/// Series are named by the figure where all registered UEs are moved; else it is behind `of_<registered>_`.
fn add(results: &mut Results, name: &str, (registered, moved): (usize, usize), found: &Moved) {
    let of = if moved == registered { String::new() } else { format!("of_{registered}_") };
    let series = |figure: &str| format!("{name}.{of}{figure}");
    let ms: f64 = found.parts.iter().map(|(_, ms)| ms).sum();
    results.add(series("stored"), OCTETS, moved, found.stored_octets as f64);
    results.add(series("wire"), OCTETS, moved, found.wire_octets as f64);
    results.add(series("ms"), MS, moved, ms);
    results.add(series("downtime"), MS, moved, found.downtime_ms);
    if found.messages > 0 {
        results.add(series("message"), US, moved, 1e3 * ms / found.messages as f64);
    }
    // One part alone is the whole.
    for (part, ms) in found.parts.iter().filter(|_| found.parts.len() > 1) {
        results.add(series(&format!("ms.{part}")), MS, moved, *ms);
    }
}

/// Medians by name: `<contender>_<figure>_<UEs>`; the paper's beside them.
fn figures(experiment: &mut Experiment, results: &Results, extent: &Extent) {
    for name in ["ram", "stateless", "custom", "selective", "naive", "n4"] {
        for (figure, series) in [
            ("stored_octets", "stored"),
            ("wire_octets", "wire"),
            ("ms", "ms"),
            ("downtime_ms", "downtime"),
            ("dump_ms", "ms.dump"),
            ("transfer_ms", "ms.transfer"),
            ("restore_ms", "ms.restore"),
            ("us_per_message", "message"),
        ] {
            for ues in extent.counts {
                if let Some(value) = results.median(&format!("{name}.{series}"), *ues) {
                    experiment.ratios.insert(format!("{name}_{figure}_{ues}"), value);
                }
            }
        }
        for (figure, series) in [("ms", "ms"), ("wire_octets", "wire")] {
            for (registered, moved) in pairs_of(extent.counts) {
                if let Some(value) = results.median(&format!("{name}.of_{registered}_{series}"), moved) {
                    experiment.ratios.insert(format!("{name}_{figure}_{moved}_of_{registered}"), value);
                }
            }
        }
        if name == "selective" {
            let added = added_us(results, "via_controller");
            experiment
                .ratios
                .extend(added.map(|added| ("selective_via_controller_added_control_us".to_owned(), added)));
        }
        if let Some(added) = added_us(results, name) {
            experiment.ratios.insert(format!("{name}_added_control_us"), added);
        }
    }
    // What the goals are about: octets kept for a UE among a thousand, and both ways between the sites; the time to move.
    let most = extent.counts.last().copied().unwrap_or(1);
    let figure = |name: &str, series: &str, ues: usize| results.median(&format!("{name}.{series}"), ues);
    for (goal, value) in [
        ("stored_octets_per_ue", figure("selective", "stored", most).map(|octets| octets / most as f64)),
        ("wire_kb_1000", figure("selective", "wire", most).map(|octets| octets / 1000.0)),
        ("move_1_ms", figure("selective", "ms", 1)),
        ("move_1000_ms_s11", figure("selective", "ms", most)),
        ("move_1000_ms_n4", figure("n4", "ms", most)),
        ("move_1_ms_steered", figure("cold", "ms", 1)),
        ("move_1000_ms_s11_steered", figure("cold", "ms", THOUSAND)),
        ("move_1000_ms_s11_steered_copy", figure("cold", "copy", THOUSAND)),
        ("move_1_ms_n4_steered", figure("n4_cold", "ms", 1)),
        ("move_1000_ms_n4_steered", figure("n4_cold", "ms", THOUSAND)),
        ("move_1000_ms_n4_steered_copy", figure("n4_cold", "copy", THOUSAND)),
        ("move_1000_ms_n4_warm", figure("n4_warm", "there", THOUSAND)),
        ("move_1000_ms_warm", figure("warm", "there", THOUSAND)),
        ("move_1000_ms_warm_back", figure("warm", "back", THOUSAND)),
        ("move_1000_ms_warm_prepare", figure("warm", "prepare", THOUSAND)),
        ("move_1000_ms_warm_unprepared", figure("warm_unprepared", "there", THOUSAND)),
        ("move_100000_ms", figure("many", "ms", MANY)),
        ("move_100000_ms_copy", figure("many", "copy", MANY)),
        ("move_100000_ms_divert", figure("many", "there", MANY)),
        ("move_100000_ms_back", figure("many", "back", MANY)),
        (
            "vs_ram_1000",
            figure("ram", "ms", most).zip(figure("selective", "ms", most)).map(|(ram, own)| ram / own),
        ),
    ] {
        if let Some(value) = value {
            experiment.ratios.insert(goal.to_owned(), value);
        }
    }
    for (name, value) in [
        ("ram_ms_1", 26_000.0),
        ("ram_dump_ms_1", 16_500.0),
        ("ram_transfer_ms_1", 1_000.0),
        ("ram_restore_ms_1", 8_500.0),
        ("ram_wire_octets_1", 160e6),
        ("ram_wire_octets_1000", 2e9),
        ("ram_stored_octets_1", 0.0),
        ("stored_octets_per_ue", 189.0),
        ("wire_kb_1000", 189.0),
        ("move_1_ms_steered", 50.0),
        ("move_1000_ms_s11_steered", 11_000.0),
    ] {
        if experiment.ratios.contains_key(name) {
            experiment.published.insert(name.to_owned(), value);
        }
    }
}

/// Numbers of UEs that are registered, with smaller ones that are moved.
fn pairs_of(counts: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    let smaller = |registered: usize| counts.iter().copied().filter(move |moved| *moved < registered);
    counts.iter().flat_map(move |registered| smaller(*registered).map(move |moved| (*registered, moved)))
}

/// Attaches without a scheme: those that are captured pass a switch, which is there without capture as well.
fn baseline(name: &str) -> &'static str {
    if ["selective", "via_controller"].contains(&name) { "attach.not_captured" } else { "attach.plain" }
}

/// How much longer an attach takes than without the scheme, µs: the median of differences, round by round.
fn added_us(results: &Results, name: &str) -> Option<f64> {
    let with_scheme = format!("attach.{name}");
    let pairs = results.pairs(&with_scheme, baseline(name), 0);
    let added: Vec<f64> = pairs.map(|(with, without)| with - without).collect();
    (!added.is_empty()).then(|| median(&added))
}

/// One panel for each figure of the paper.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let panels = [
        of(experiment, "octets kept outside the anchors, by UEs (Fig. 6)", "", ".stored"),
        of(experiment, "octets to the second anchor, by UEs (Fig. 7)", "", ".wire"),
        of(experiment, "time until the second anchor serves, by UEs (Fig. 8)", "", ".ms"),
        of(experiment, "the same of 1,000 that are registered, by UEs moved", "", ".of_1000_ms"),
        of(experiment, "time per replayed message, by UEs", "", ".message"),
        of(experiment, "parts of the time of a dump, by UEs", "ram.ms.", ""),
        of(experiment, "longest time without an answer, by UEs", "", ".downtime"),
        of(experiment, "attach, median of a round", "attach.", ""),
    ];
    panels.into_iter().filter(|panel| !panel.is_empty()).collect()
}
