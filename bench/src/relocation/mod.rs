//! `relocation`: what UEs notice of a move to an edge host and back, by how it is made (EV-9, EV-10; `docs/bench-relocation.md`).
//!
//! | scheme | the move |
//! |---|---|
//! | `plain` | the state is copied, the packets are diverted; nothing waits |
//! | `ordered` | as `plain`; packets of the new way wait until those of the old one have arrived |
//! | `warm` | as `ordered`, of a UE whose state is at the host already |
//! | `n4_plain`, `n4_ordered`, `n4_warm` | the same in 5G, of a UPF's session over N4 |
//!
//! A lab ([`Moves`]) of 4G, then one of 5G, has all parts as processes of their own. A UE is moved to and fro while numbered packets and a TCP connection run each way; those of
//! another UE, which stays, are sent in the same instants by the same thread. So what a move adds is the difference of two flows at one time, not
//! of two times of a shared machine. Each move has a *window* from some time before it until some time after it.

mod summary;

use std::net::Ipv4Addr;

use anyhow::Context as _;
use lab::edge;
use lab::moves::{Moves, ORIGIN};
use lab::stream::{Stream, Tcp};
use lab::traffic::{self, Ends, Found, Traffic};
use net::time::{self, Duration};
use serde_json::{Value, json};

use crate::Options;
use crate::plot::Panel;
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};

const MS: Axes = Axes { x: "", y: "of a move", unit: "ms" };
const PACKETS: Axes = Axes { x: "", y: "of a move", unit: "packets" };
const SEGMENTS: Axes = Axes { x: "", y: "of a move", unit: "segments" };

/// Packets of a flow: their pause and size.
const INTERVAL: Duration = Duration::from_micros(500);
const OCTETS: usize = 200;
const PORTS: [u16; 2] = [5000, 6000];
/// Octets per second of a TCP connection, and where each one goes: up, down.
const RATE: u64 = 2_000_000;
const TCP_PORTS: [u16; 2] = [6100, 5100];
/// A window begins so long before the request, and ends so long after the answer: longer than rules of old ways stay.
const BEFORE: Duration = Duration::from_millis(100);
const AFTER: Duration = Duration::from_millis(300);

/// How a move is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Manner {
    Plain,
    Ordered,
    Warm,
}

const MANNERS: [Manner; 3] = [Manner::Plain, Manner::Ordered, Manner::Warm];

/// A kind of network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Network {
    /// 4G: copies are made over S11.
    Epc,
    /// 5G: over N4.
    FiveG,
}

impl Network {
    const ALL: [Network; 2] = [Network::Epc, Network::FiveG];

    fn name(self) -> &'static str {
        match self {
            Network::Epc => "4G",
            Network::FiveG => "5G",
        }
    }

    /// What names of its series and figures begin with.
    fn prefix(self) -> &'static str {
        match self {
            Network::Epc => "",
            Network::FiveG => N4,
        }
    }

    fn schemes(self) -> [Scheme; 3] {
        MANNERS.map(|manner| Scheme { network: self, manner })
    }
}

/// What names of 5G's series and figures begin with.
const N4: &str = "n4_";

/// Moves that are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Scheme {
    network: Network,
    manner: Manner,
}

impl Scheme {
    fn name(self) -> String {
        let manner = match self.manner {
            Manner::Plain => "plain",
            Manner::Ordered => "ordered",
            Manner::Warm => "warm",
        };
        format!("{}{manner}", self.network.prefix())
    }

    /// Whether packets keep their order.
    fn is_ordered(self) -> bool {
        self.manner != Manner::Plain
    }

    /// Further members of the request.
    fn request(self) -> Value {
        json!({"order": if self.is_ordered() { "keep" } else { "none" }})
    }
}

const DIRECTIONS: [&str; 2] = ["there", "back"];
const WAYS: [&str; 2] = ["up", "down"];

/// What runs while UEs are moved.
struct Rig {
    moves: Moves,
    ue: Ipv4Addr,
    /// Up and down: of the UE that is moved, and of the one that stays.
    packets: Traffic,
    tcp: [Stream; 2],
}

/// A move under load.
struct Window {
    scheme: Scheme,
    direction: usize,
    /// Numbers of the packets.
    packets: std::ops::Range<u64>,
    tcp: [Tcp; 2],
    took_ms: f64,
}

/// Runs the experiment.
///
/// # Errors
/// A part does not start, or a move does not end well.
pub async fn run(options: &Options) -> anyhow::Result<Experiment> {
    let rounds = if options.quick { 6 } else { 100 };
    let mut experiment = Experiment::new("relocation", options.quick);
    experiment.param("rounds", rounds);
    experiment.param("packets_per_s", 1e6 / INTERVAL.as_micros() as f64);
    experiment.param("packet_octets", OCTETS);
    experiment.param("tcp_octets_per_s", RATE);
    experiment.param("realtime_workers", true);
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    let mut progress = Progress::new("relocation");
    let mut results = Results::default();
    for network in Network::ALL {
        let made = moves_of(network, rounds, &mut progress, &mut results, &mut experiment).await;
        // What the other network has shown is kept.
        let detail = made.as_ref().map_or_else(|error| format!("{error:#}"), |()| format!("{rounds} rounds"));
        experiment.check(&format!("{}: all moves were made", network.name()), made.is_ok(), detail);
    }
    summary::summarise(&mut experiment, &results);
    experiment.series = results.into_series();
    Ok(experiment)
}

/// All moves in one network.
async fn moves_of(
    network: Network,
    rounds: usize,
    progress: &mut Progress,
    results: &mut Results,
    experiment: &mut Experiment,
) -> anyhow::Result<()> {
    let (name, schemes) = (network.name(), network.schemes());
    progress.say(&format!("starting the network of {name}"));
    let rig = Rig::start(network).await?;
    // Caches fill, and link-layer addresses become known.
    for scheme in schemes {
        rig.there_and_back(scheme).await?;
    }
    for round in 0..rounds {
        progress.say(&format!("{name}: round {} of {rounds}", round + 1));
        let mut windows = Vec::new();
        for turn in 0..schemes.len() {
            // Who begins changes every round.
            windows.extend(rig.there_and_back(schemes[(round + turn) % schemes.len()]).await?);
        }
        rig.packets.settle().await;
        for window in &windows {
            rig.enter(results, window);
        }
    }
    for (way, stream) in WAYS.iter().zip(&rig.tcp) {
        let outcome = stream.delivered();
        let detail =
            outcome.as_ref().map_or_else(|error| format!("{error:#}"), |octets| format!("{octets} octets"));
        let check =
            format!("{name}: a TCP connection {way} has lived through all moves, and every octet is right");
        experiment.check(&check, outcome.is_ok(), detail);
    }
    rig.stop().await
}

impl Rig {
    async fn start(network: Network) -> anyhow::Result<Rig> {
        let options = lab::Options { epc: network == Network::Epc, realtime: true, ..lab::Options::new(2)? };
        let moves = Moves::start(options, 1).await?;
        let mut flows = Vec::new();
        for (ue, space) in &moves.ues {
            let user = traffic::bind(space, *ue, PORTS[0])?;
            let port = PORTS[1] + u16::from(!flows.is_empty());
            let server = traffic::bind(moves.lab.dn(), lab::DN, port)?;
            flows.push(Ends {
                from: user.try_clone()?,
                to: server.try_clone()?,
                address: (lab::DN, port).into(),
            });
            flows.push(Ends { from: server, to: user, address: (*ue, PORTS[0]).into() });
        }
        let (ue, space) = moves.ues.iter().next().context("no UE")?;
        let (ue, dn) = (*ue, moves.lab.dn());
        let tcp = [
            Stream::start(space, dn, (lab::DN, TCP_PORTS[0]), RATE).await?,
            Stream::start(dn, space, (ue, TCP_PORTS[1]), RATE).await?,
        ];
        Ok(Rig { ue, packets: Traffic::start(flows, INTERVAL, OCTETS), tcp, moves })
    }

    async fn stop(self) -> anyhow::Result<()> {
        drop((self.packets, self.tcp));
        self.moves.stop().await
    }

    /// A move to the edge host, and one back. Nothing is left there.
    async fn there_and_back(&self, scheme: Scheme) -> anyhow::Result<[Window; 2]> {
        let host = edge::SITES[0].host;
        if scheme.manner == Manner::Warm {
            self.moves.carry(&[self.ue], host, &json!({"warm": true})).await?;
        }
        let there = self.window(scheme, 0, host).await?;
        let back = self.window(scheme, 1, ORIGIN).await?;
        Ok([there, back])
    }

    async fn window(&self, scheme: Scheme, direction: usize, to: &str) -> anyhow::Result<Window> {
        let before = self.counters()?;
        let first = self.packets.next();
        time::sleep(BEFORE).await;
        let made = self.moves.carry(&[self.ue], to, &scheme.request()).await?;
        time::sleep(AFTER).await;
        let after = self.counters()?;
        let tcp = [0, 1].map(|way| after[way].since(before[way]));
        let took_ms = lab::moves::took_ms(&made).context("a move has a history")?;
        Ok(Window { scheme, direction, packets: first..self.packets.next(), tcp, took_ms })
    }

    fn counters(&self) -> anyhow::Result<[Tcp; 2]> {
        Ok([self.tcp[0].counters()?, self.tcp[1].counters()?])
    }

    /// Enters what has become of the packets of a window.
    fn enter(&self, results: &mut Results, window: &Window) {
        let series = format!("{}.{}", window.scheme.name(), DIRECTIONS[window.direction]);
        results.add(format!("{series}.took"), MS, 0, window.took_ms);
        for (way, name) in WAYS.iter().enumerate() {
            let [moved, stays] = [way, 2 + way].map(|flow| self.packets.of(flow, window.packets.clone()));
            let series = format!("{series}.{name}");
            let mut add =
                |figure: &str, axes, sample| results.add(format!("{series}.{figure}"), axes, 0, sample);
            for (of, found) in [("", &moved), ("stays_", &stays)] {
                let counts = found.counts;
                add(&format!("{of}lost"), PACKETS, counts.lost as f64);
                add(&format!("{of}duplicated"), PACKETS, counts.doubled as f64);
                add(&format!("{of}reordered"), PACKETS, counts.reordered as f64);
                add(&format!("{of}gap"), MS, milliseconds(found.longest_gap));
                add(&format!("{of}delay"), MS, longest_delay_ms(found));
            }
            add("gap_excess", MS, milliseconds(moved.longest_gap) - milliseconds(stays.longest_gap));
            add("delay_added", MS, longest_delay_ms(&moved) - longest_delay_ms(&stays));
            let tcp = window.tcp[way];
            add("retransmitted", SEGMENTS, tcp.retransmitted as f64);
            add("retransmitted_needlessly", SEGMENTS, tcp.needless as f64);
            add("tcp_early", SEGMENTS, tcp.early as f64);
        }
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn longest_delay_ms(found: &Found) -> f64 {
    found.delays.iter().copied().max().map_or(0.0, milliseconds)
}

/// What is drawn.
pub fn panels(experiment: &Experiment) -> Vec<Panel> {
    let all = [
        ("longest gap beyond that of a UE that stays", ".gap_excess"),
        ("longest delay beyond that of a UE that stays", ".delay_added"),
        ("time of a move, from the request on", ".took"),
        ("packets overtaken", ".reordered"),
        ("segments that TCP has sent again", ".retransmitted"),
    ];
    let of = |network: Network, title: &str, suffix: &str| {
        let line = |series: &str| {
            let name = match network {
                Network::Epc => Some(series).filter(|series| !series.starts_with(N4)),
                Network::FiveG => series.strip_prefix(N4),
            };
            Some(name?.strip_suffix(suffix)?.to_owned())
        };
        Panel::of(experiment, &format!("{}: {title}", network.name()), line)
    };
    let both = |network| all.map(|(title, suffix)| of(network, title, suffix));
    Network::ALL.into_iter().flat_map(both).filter(|panel| !panel.is_empty()).collect()
}
