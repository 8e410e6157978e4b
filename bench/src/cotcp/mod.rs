//! `cotcp`: CoTCP against sequential TCP, HTTP/2, gRPC and yamux, in the paper's three benchmarks.
//!
//! Server ([`serve`]) and client ([`load`]) are processes, each with one thread on its own core. They can be
//! started by hand with the paper's parameters (`godwit bench cotcp serve`, `… load`); the experiment starts
//! them itself ([`pair`]). 500 workers send bodies of 10 octets over 1, 10, 100 and 500 connections; the server
//! answers at once, after 10 ms or after 100 ms. Another part measures small requests with and without messages
//! of 1 MB on the same connection, over a link of 1 Gb/s ([`link`]).
//!
//! Contenders take turns within a round, and a ratio is the median over rounds of the ratio within a round.
//! Every answer is compared with its request; a wrong answer or a failed call fails the run.
//!
//! Series are named `<protocol>.<delay>ms.<what>`, over the number of connections; and
//! `<protocol>.large.<what>`, where x is 1 with large messages and 0 without.

use std::collections::BTreeMap;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

use crate::Options;
use crate::progress::Progress;
use crate::result::Experiment;
use crate::samples::{Axes, Results};
use crate::stats::{median, short};
use load::Report;
use params::Protocol;
use plan::{Cell, Plan};

mod bodies;
mod driver;
mod grpc;
mod http2;
mod inline;
mod link;
pub mod load;
pub mod meter;
mod pair;
pub mod panels;
pub mod params;
mod plan;
pub mod serve;
mod summary;
mod tcp;
mod yamux;

const TPS: Axes = Axes { x: "connections", y: "transactions", unit: "1/s" };
const LATENCY: Axes = Axes { x: "connections", y: "latency", unit: "µs" };
const CPU: Axes = Axes { x: "connections", y: "processor time per transaction", unit: "µs" };
const SMALL: Axes = Axes { x: "large messages", y: "latency of small requests", unit: "µs" };
const LARGE: Axes = Axes { x: "large messages", y: "large messages, each way", unit: "MB/s" };

/// Results while measuring.
struct Session {
    progress: Progress,
    results: Results,
    /// For each protocol: number of transactions compared, and errors.
    answers: BTreeMap<Protocol, (u64, Vec<String>)>,
    /// For each measurement, the relative deviation of rate times latency from the number of workers.
    disagreement: Vec<f64>,
}

/// Runs the experiment.
///
/// # Errors
/// A process does not start, or a client finds no server.
pub async fn run(options: &Options) -> anyhow::Result<Experiment> {
    let plan = Plan::new(options.quick);
    let places = pair::Places::new();
    let mut experiment = Experiment::new("cotcp", options.quick);
    let [server, client] = places.cores();
    experiment.param("build", if cfg!(debug_assertions) { "debug" } else { "release" });
    experiment.param("rounds", plan.rounds);
    experiment.param("workers", plan::WORKERS);
    experiment.param("body", plan::BODY);
    experiment.param("server_cores", server);
    experiment.param("client_cores", client);
    let mut session = Session {
        progress: Progress::new("cotcp"),
        results: Results::default(),
        answers: BTreeMap::new(),
        disagreement: Vec::new(),
    };
    let awake = crate::machine::Awake::new();
    experiment.param(
        "idle_cores",
        match &awake {
            Ok(_) => "kept awake".to_owned(),
            Err(error) => format!("fall asleep: {error}"),
        },
    );
    // Without rights or tools the loopback interface is used, and the result says so.
    let link = link::Link::new().await;
    experiment.param(
        "large_link",
        match &link {
            Ok(_) => format!(
                "veth, token bucket of {} Mb/s at both ends, small receive buffers",
                link::RATE / 1_000_000
            ),
            Err(error) => format!("loopback, as no limited link could be made: {error:#}"),
        },
    );
    for round in 0..plan.rounds {
        for (cell, protocols) in plan.cells() {
            for protocol in protocols.into_iter().filter(|_| plan.includes(cell, round)) {
                session
                    .say(round, &format!("{protocol}, {} connections, {} ms", cell.connections, cell.delay));
                let (serve, load) = plan.pair(cell, protocol);
                let report = places.measure(serve, load, None).await;
                session.add(cell, protocol, &report.with_context(|| format!("{protocol}, {cell:?}"))?);
            }
        }
        for protocol in [Protocol::Http2, Protocol::CotcpV1, Protocol::Cotcp] {
            for large in [false, true] {
                session.say(round, &format!("{protocol} with large messages"));
                let (mut serve, load) = plan.beside_large(protocol, large);
                if link.is_ok() {
                    serve.listen = std::net::SocketAddr::new(link::SERVER.parse()?, 0);
                }
                let namespaces = link.as_ref().ok().map(link::Link::namespaces);
                let report = places.measure(serve, load, namespaces).await;
                session.add_large(protocol, large, &report.with_context(|| format!("{protocol}, large"))?);
            }
        }
    }
    session.finish(experiment)
}

impl Session {
    fn say(&mut self, round: usize, what: &str) {
        self.progress.say(&format!("round {}: {what}", round + 1));
    }

    fn add(&mut self, cell: Cell, protocol: Protocol, report: &Report) {
        self.compared(protocol, report);
        let x = cell.connections as usize;
        let mut add = |what: &str, axes: Axes, value: f64| {
            self.results.add(format!("{protocol}.{}ms.{what}", cell.delay), axes, x, value);
        };
        add("tps", TPS, report.tps);
        // Every worker always has a request under way, so by Little's law this is the mean latency. It is valid
        // even if workers have their turn too seldom to measure it.
        let mean = f64::from(report.workers) / report.tps * 1e6;
        add("latency", LATENCY, mean);
        if let Some(latency) = report.latency_us {
            add("p50", LATENCY, latency.p50);
            add("p99", LATENCY, latency.p99);
            add("p999", LATENCY, latency.p999);
            if protocol != Protocol::Tcp {
                self.disagreement.push((latency.mean / mean - 1.0).abs());
            }
        }
        let mut add = |what: &str, value: f64| {
            self.results.add(format!("{protocol}.{}ms.{what}", cell.delay), CPU, x, value);
        };
        add("cpu_client", report.client_cpu_us);
        if let Some(server) = report.server_cpu_us {
            add("cpu_server", server);
            add("cpu", report.client_cpu_us + server);
        }
    }

    fn add_large(&mut self, protocol: Protocol, large: bool, report: &Report) {
        self.compared(protocol, report);
        let mut add = |what: &str, axes: Axes, value: f64| {
            self.results.add(format!("{protocol}.large.{what}"), axes, usize::from(large), value);
        };
        if let Some(latency) = report.latency_us {
            add("p50", SMALL, latency.p50);
            add("p99", SMALL, latency.p99);
            add("p999", SMALL, latency.p999);
        }
        if let Some(large) = &report.large {
            add("mb_per_s", LARGE, large.megabytes_per_second);
        }
    }

    fn compared(&mut self, protocol: Protocol, report: &Report) {
        let (compared, troubles) = self.answers.entry(protocol).or_default();
        *compared += report.transactions;
        if report.wrong + report.failed > 0 {
            let trouble = report.trouble.as_deref().unwrap_or("answers of other requests");
            troubles.push(format!("{} wrong, {} failed: {trouble}", report.wrong, report.failed));
        }
    }

    fn finish(self, mut experiment: Experiment) -> anyhow::Result<Experiment> {
        for (protocol, (compared, troubles)) in &self.answers {
            let detail = match troubles.is_empty() {
                true => format!("{compared} transactions, each with its own answer"),
                false => troubles.join("; "),
            };
            experiment.check(&format!("{protocol} answers"), troubles.is_empty() && *compared > 0, detail);
        }
        let apart = median(&self.disagreement);
        let detail = format!(
            "latency times rate is the number of workers within {}, median of all runs",
            short(apart)
        );
        experiment.check("rate and latency", apart < 0.05, detail);
        experiment.param("seconds", self.progress.elapsed().as_secs());
        summary::write(&self.results, &mut experiment);
        experiment.series = self.results.into_series();
        Ok(experiment)
    }
}

/// The runtime of a process: a single thread need not wake others; several threads share the work.
fn runtime(cpus: u16, pin: &[usize]) -> anyhow::Result<Runtime> {
    anyhow::ensure!(pin.is_empty() || crate::machine::pin(pin), "cannot stay on the cores {pin:?}");
    let mut builder = match cpus {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    Ok(builder.worker_threads(usize::from(cpus)).enable_all().build()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::time::Duration;
    use params::{Load, Protocol};

    /// Client and server of a protocol in one runtime.
    async fn exchange(protocol: Protocol, delay: Duration, sizes: (usize, usize)) -> Report {
        let listening = serve::Listening::bind(protocol, "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let server = listening.address().unwrap();
        let app = serve::App::new(delay, sizes.1).unwrap();
        let serving = tokio::spawn(listening.serve(app));
        let load = Load {
            protocol,
            server,
            connections: 3,
            workers: 20,
            request: sizes.0,
            response: sizes.1,
            seconds: 0.2,
            warm_up: 0.05,
            pause: Duration::ZERO,
            time_every: 1,
            large_workers: u32::from(
                !matches!(protocol, Protocol::Tcp | Protocol::CotcpInline) && sizes.0 == 10,
            ),
            large: 300_000,
            cpus: 1,
            pin: Vec::new(),
            server_pid: Some(std::process::id()),
        };
        let report = load::drive(load).await.unwrap();
        serving.abort();
        report
    }

    async fn answers_every_request(protocol: Protocol) {
        answers_at_once(protocol).await;
        let report = exchange(protocol, Duration::from_millis(5), (10, 10)).await;
        let ideal = if protocol == Protocol::Tcp { 3.0 } else { 20.0 } / 5e-3;
        // The lower limit depends on the machine of the test; the rate can never exceed the ideal.
        assert!((0.01..=1.01).contains(&(report.tps / ideal)), "{report:?}");
        assert_eq!((report.wrong, report.failed), (0, 0), "{report:?}");
    }

    async fn answers_at_once(protocol: Protocol) {
        for sizes in [(10, 10), (10, 25), (2000, 7)] {
            let report = exchange(protocol, Duration::ZERO, sizes).await;
            assert_eq!((report.wrong, report.failed), (0, 0), "{report:?}");
            assert!(report.transactions > 0 && report.server_cpu_us.unwrap() > 0.0, "{report:?}");
            assert!(report.latency_us.is_none_or(|latency| latency.timed <= report.transactions));
            assert!(report.large.is_none_or(|large| large.per_second >= 0.0));
        }
    }

    #[tokio::test]
    async fn sequential_tcp() {
        answers_every_request(Protocol::Tcp).await;
    }

    #[tokio::test]
    async fn http2() {
        answers_every_request(Protocol::Http2).await;
    }

    #[tokio::test]
    async fn grpc() {
        answers_every_request(Protocol::Grpc).await;
    }

    #[tokio::test]
    async fn yamux() {
        answers_every_request(Protocol::Yamux).await;
    }

    #[tokio::test]
    async fn cotcp_by_its_driver() {
        answers_every_request(Protocol::Cotcp).await;
        answers_every_request(Protocol::CotcpPool).await;
    }

    #[tokio::test]
    async fn cotcp_of_version_1() {
        answers_every_request(Protocol::CotcpV1).await;
    }

    #[tokio::test]
    async fn cotcp_without_tasks() {
        answers_at_once(Protocol::CotcpInline).await;
    }
}
