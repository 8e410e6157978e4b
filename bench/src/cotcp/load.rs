//! The client's process: connects, runs the workers, and reports what they did.
//!
//! All protocols that carry several requests at once use the same [`worker`], and provide [`Call`]. Sequential
//! TCP and CoTCP without tasks have their own loops.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use net::precise::PreciseTimer;
use net::time::{self, Duration};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::bodies::{Requests, is_answer};
use super::meter::{Latency, Meter, Tally, Timed};
use super::params::{Load, Protocol};
use super::{driver, grpc, http2, inline, runtime, tcp, yamux};

/// Time limit for connecting.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for the last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(3);

/// The client's report.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Report {
    /// Name of the protocol, as on the command line.
    pub protocol: String,
    /// Connections.
    pub connections: u32,
    /// Workers.
    pub workers: u32,
    /// Length of the measurement in seconds.
    pub seconds: f64,
    /// Transactions during the measurement.
    pub transactions: u64,
    /// Transactions per second, computed from the workers' own times.
    pub tps: f64,
    /// Latency for a worker, including the wait for its turn on the connection; `None` when no worker had two
    /// turns.
    pub latency_us: Option<Latency>,
    /// Processor time of the client, microseconds per transaction.
    pub client_cpu_us: f64,
    /// Processor time of the server, if its process is known.
    pub server_cpu_us: Option<f64>,
    /// Large requests, if there were any.
    pub large: Option<Large>,
    /// Number of answers that did not match their requests.
    pub wrong: u64,
    /// Calls that failed.
    pub failed: u64,
    /// The first failure.
    pub trouble: Option<String>,
}

/// Measurements of large requests.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Large {
    /// Large requests exchanged per second, in each direction.
    pub per_second: f64,
    /// The same in megabytes per second.
    pub megabytes_per_second: f64,
    /// Their times.
    pub latency_us: Option<Latency>,
}

/// Sends a request and waits for its answer; clones share the connection.
pub trait Call: Clone + Send + 'static {
    /// One transaction.
    fn call(&mut self, request: Bytes) -> impl Future<Output = anyhow::Result<Bytes>> + Send;
}

/// The connections and workers of the client.
pub(super) struct Crew {
    pub load: Load,
    pub timer: PreciseTimer,
    pub small: Arc<Meter>,
    pub large: Arc<Meter>,
    pub tallies: JoinSet<(Kind, Tally)>,
}

/// Size class of the requests that a tally counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Small,
    Large,
}

/// Runs the client on its own runtime.
///
/// # Errors
/// There is no connection, or workers do not end.
pub fn run(load: &Load) -> anyhow::Result<Report> {
    runtime(load.cpus, &load.pin)?.block_on(drive(load.clone()))
}

/// Runs the client on the caller's runtime.
///
/// # Errors
/// As [`run`].
pub async fn drive(load: Load) -> anyhow::Result<Report> {
    ensure!(load.seconds > 0.0 && load.seconds < 1e5 && load.warm_up < 1e5, "no such time to measure");
    let mut crew = Crew {
        timer: PreciseTimer::new()?,
        small: Arc::new(Meter::new(load.time_every, load.response)),
        large: Arc::new(Meter::new(1, load.response)),
        tallies: JoinSet::new(),
        load,
    };
    let protocol = crew.load.protocol;
    match protocol {
        Protocol::Tcp => tcp::start(&mut crew).await?,
        Protocol::Http2 => crew.start(http2::connect).await?,
        Protocol::Grpc => crew.start(grpc::connect).await?,
        Protocol::Yamux => crew.start(yamux::connect).await?,
        Protocol::CotcpInline => inline::start(&mut crew).await?,
        Protocol::Cotcp | Protocol::CotcpPool | Protocol::CotcpV1 => driver::start(&mut crew).await?,
    }
    crew.measure().await.with_context(|| format!("measuring {protocol}"))
}

impl Crew {
    /// Opens the connections and distributes them among the workers.
    pub(super) async fn start<C: Call>(
        &mut self,
        connect: impl AsyncFn(std::net::SocketAddr) -> anyhow::Result<C>,
    ) -> anyhow::Result<()> {
        let mut callers = Vec::new();
        for _ in 0..self.load.connections {
            let connected = time::timeout(PATIENCE, connect(self.load.server)).await;
            callers.push(connected.context("the server does not answer")??);
        }
        let all = (0..self.load.workers).map(|at| (at, Kind::Small));
        let all = all.chain((0..self.load.large_workers).map(|at| (at, Kind::Large)));
        for (at, kind) in all {
            let caller = callers[at as usize % callers.len()].clone();
            let (meter, size) = match kind {
                Kind::Small => (&self.small, self.load.request),
                Kind::Large => (&self.large, self.load.large),
            };
            // Large requests follow one another without a pause, to be in the way of others.
            let pause = (kind == Kind::Small && !self.load.pause.is_zero())
                .then(|| (self.timer.clone(), self.load.pause));
            let work = worker(caller, Requests::new(at, size), Arc::clone(meter), pause);
            self.tallies.spawn(async move { (kind, work.await) });
        }
        Ok(())
    }

    /// Lets the workers run for the measurement and collects their counts.
    async fn measure(mut self) -> anyhow::Result<Report> {
        let server = self.load.server_pid;
        let cpu = || -> std::io::Result<(Duration, Option<Duration>)> {
            Ok((time::processor_time(None)?, server.map(|pid| time::processor_time(Some(pid))).transpose()?))
        };
        time::sleep(Duration::from_secs_f64(self.load.warm_up)).await;
        let (start, before) = (time::now_std(), cpu()?);
        self.small.measure();
        self.large.measure();
        time::sleep(Duration::from_secs_f64(self.load.seconds)).await;
        self.small.stop();
        self.large.stop();
        let (window, after) = (time::now_std() - start, cpu()?);

        let mut small = Sum::default();
        let mut large = Sum::default();
        let collect = async {
            while let Some(tally) = self.tallies.join_next().await {
                let (kind, tally) = tally.context("a worker broke down")?;
                let sum = if kind == Kind::Small { &mut small } else { &mut large };
                sum.add(&tally, window);
            }
            anyhow::Ok(())
        };
        time::timeout(LAST_ANSWERS, collect).await.context("answers that never came")??;

        let per_transaction = |cpu: Duration| cpu.as_secs_f64() / window.as_secs_f64() / small.rate * 1e6;
        let megabytes = self.load.large as f64 / 1e6;
        Ok(Report {
            protocol: self.load.protocol.to_string(),
            connections: self.load.connections,
            workers: self.load.workers,
            seconds: window.as_secs_f64(),
            transactions: small.done,
            tps: small.rate,
            latency_us: self.small.latency(),
            client_cpu_us: per_transaction(after.0 - before.0),
            server_cpu_us: after.1.zip(before.1).map(|(after, before)| per_transaction(after - before)),
            large: (self.load.large_workers > 0).then(|| Large {
                per_second: large.rate,
                megabytes_per_second: large.rate * megabytes,
                latency_us: self.large.latency(),
            }),
            wrong: small.wrong + large.wrong,
            failed: small.failed + large.failed,
            trouble: self.small.trouble().or(self.large.trouble()),
        })
    }
}

/// Sum of the tallies of one kind.
#[derive(Default)]
struct Sum {
    rate: f64,
    done: u64,
    wrong: u64,
    failed: u64,
}

impl Sum {
    fn add(&mut self, tally: &Tally, window: Duration) {
        self.rate += tally.rate(window);
        self.done += tally.done;
        self.wrong += tally.wrong;
        self.failed += tally.failed;
    }
}

/// Sends, waits and compares, until told to stop. The first failure ends it, since the run is then invalid.
async fn worker(
    mut caller: impl Call,
    mut requests: Requests,
    meter: Arc<Meter>,
    pause: Option<(PreciseTimer, Duration)>,
) -> Tally {
    let mut tally = Tally::default();
    while !meter.stopped() {
        let request = requests.turn();
        let start = tally.times_next(&meter).then(time::now_std);
        match caller.call(request.clone()).await {
            Ok(answer) => {
                let timed = start.map(|start| {
                    let end = time::now_std();
                    Timed { time: Some(end - start), end }
                });
                tally.add(&meter, is_answer(request, &answer, meter.size()), timed);
            }
            Err(error) => {
                meter.note(&format!("{error:#}"));
                tally.failed += 1;
                break;
            }
        }
        if let Some((timer, pause)) = &pause {
            timer.sleep(*pause).await;
        }
    }
    tally
}
