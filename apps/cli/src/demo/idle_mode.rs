//! Idle mode in the demo of 4G: all UEs become idle, a packet of the data network has one of them paged, and one comes back because its
//! program sends.
//!
//! The simulator's events are read in their order, so what is known of a UE is what its last event says.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use lab::{Lab, Simulator};
use net::time::{self, Duration};
use serde::Serialize;

use super::progress::Progress;
use super::report::{Percentiles, Report};
use super::{Ue, applications};

/// Seconds without a packet after which an eNB releases a UE: longer than between two pings.
pub(super) const INACTIVITY_S: &str = "1.5";
/// Time for the first UE to become idle, or to come back.
const LIMIT: Duration = Duration::from_secs(15);
/// Time for each further one.
const UE_LIMIT: Duration = Duration::from_millis(20);

/// What was measured.
#[derive(Debug, Default, Serialize)]
pub struct IdleMode {
    /// From the request to release a UE's tunnels to the answer, seen by the MME.
    pub release_ms: Percentiles,
    /// From the request for tunnels to the answer, seen by the MME.
    pub service_ms: Percentiles,
    /// The first ping to an idle UE: it is buffered, the UE is paged, comes back and answers.
    pub paging_ping_ms: f64,
    /// The first ping of an idle UE.
    pub service_ping_ms: f64,
}

/// What the simulator has said about UEs so far.
#[derive(Default)]
struct Seen {
    idle: BTreeSet<String>,
    release_ms: Vec<f64>,
    service_ms: Vec<f64>,
}

impl Seen {
    /// Reads events until one says so; `limit` for all of them.
    async fn until(
        &mut self,
        simulator: &mut Simulator,
        limit: Duration,
        over: impl Fn(&Seen, &lab::SimulatorEvent) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = time::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(time::now());
            let Ok(event) = time::timeout(left, simulator.next()).await else {
                bail!("not within {} s; {} UEs are idle", limit.as_secs(), self.idle.len());
            };
            let event = event.with_context(|| format!("the simulator ended: {}", simulator.log_tail()))?;
            let imsi = event.text("imsi").unwrap_or_default();
            match event.kind() {
                "idle" => {
                    self.idle.insert(imsi.to_owned());
                    self.release_ms.extend(event.number("release_ms"));
                }
                "service" => {
                    self.idle.remove(imsi);
                    self.service_ms.extend(event.number("service_ms"));
                }
                "failed" => bail!("{}", event.text("detail").unwrap_or("a procedure failed")),
                _ => {}
            }
            if over(self, &event) {
                return Ok(());
            }
        }
    }

    async fn all_idle(&mut self, simulator: &mut Simulator, ues: usize) -> anyhow::Result<()> {
        let limit = LIMIT + UE_LIMIT * u32::try_from(ues).unwrap_or(u32::MAX);
        self.until(simulator, limit, |seen, _| seen.idle.len() == ues).await
    }

    /// Waits until a UE has come back for this reason.
    async fn back(&mut self, simulator: &mut Simulator, ue: &Ue, reason: &str) -> anyhow::Result<()> {
        self.until(simulator, LIMIT, |_, event| {
            event.kind() == "service"
                && event.text("imsi") == Some(&ue.name)
                && event.text("reason") == Some(reason)
        })
        .await
    }
}

/// Shows idle mode with all UEs, paging and a service request with the first one.
pub(super) async fn show(
    lab: &Lab,
    simulator: &mut Simulator,
    ues: &[Ue],
    progress: &Progress,
    report: &mut Report,
) {
    let Some((ue, address)) = ues.first().and_then(|ue| Some((ue, ue.ipv4?))) else { return };
    let (mut seen, mut measured) = (Seen::default(), IdleMode::default());
    let step = progress.step("idle mode");
    let idle = seen.all_idle(simulator, ues.len()).await;
    step.end(&idle.as_ref().map(|()| format!("{} UEs without tunnels", ues.len())));
    let is_idle = idle.is_ok();
    report.check("idle", is_idle, outcome(idle, || format!("{} UEs released", ues.len())));
    if !is_idle {
        return;
    }

    let step = progress.step("paging");
    let ping = first_ping(lab.dn(), &address.to_string()).await;
    let paged = match ping {
        Ok(first_ms) => {
            measured.paging_ping_ms = first_ms;
            seen.back(simulator, ue, "paging").await
        }
        Err(error) => Err(error),
    };
    let ms = format!("{:.1} ms to the first answer", measured.paging_ping_ms);
    step.end(&paged.as_ref().map(|()| ms.clone()));
    report.check("paging", paged.is_ok(), outcome(paged, || format!("the data network pinged: {ms}")));

    let step = progress.step("service request");
    let served = match seen.all_idle(simulator, ues.len()).await {
        Ok(()) => match first_ping(&ue.namespace, &lab::DN.to_string()).await {
            Ok(first_ms) => {
                measured.service_ping_ms = first_ms;
                seen.back(simulator, ue, "uplink_data").await
            }
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    let ms = format!("{:.1} ms to the first answer", measured.service_ping_ms);
    step.end(&served.as_ref().map(|()| ms.clone()));
    report.check("service request", served.is_ok(), outcome(served, || format!("the UE pinged: {ms}")));

    measured.release_ms = Percentiles::of(&seen.release_ms);
    measured.service_ms = Percentiles::of(&seen.service_ms);
    report.idle_mode = Some(measured);
}

/// Milliseconds until the first of some pings was answered, if all were.
async fn first_ping(from: &net::netns::NetNs, to: &str) -> anyhow::Result<f64> {
    let ping = applications::ping_all(vec![from.clone()], to, || {}).await;
    if ping.sent == 0 || ping.received < ping.sent {
        bail!("{} of {} pings answered{}", ping.received, ping.sent, ping.problem_text());
    }
    ping.rtt_ms.first().copied().context("ping measured nothing")
}

fn outcome(result: anyhow::Result<()>, done: impl FnOnce() -> String) -> String {
    match result {
        Ok(()) => done(),
        Err(error) => output::with_causes(&error),
    }
}
