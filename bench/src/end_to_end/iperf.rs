//! iperf3 through TUN devices, from a UE to the data network and back: the paper's Table 5. The devices cost more than all nodes.

use anyhow::{Context as _, bail};
use net::process::Command;
use net::time::{self, Duration};

use super::{POLL, Run, THREE};
use crate::ran::lab::Lab;
use crate::samples::Axes;
use crate::upf::subscriber::SERVER;

const MBIT: Axes = Axes { x: "streams", y: "throughput", unit: "Mbit/s" };
/// Time for iperf3 beside its measurement.
const MARGIN: Duration = Duration::from_secs(10);

/// Measures TCP in both directions, in all models.
///
/// # Errors
/// iperf3 is not there or fails; the process lacks rights.
pub(super) fn run(run: &mut Run) -> anyhow::Result<()> {
    for round in 0..run.plan.link.rounds {
        for model in THREE {
            run.progress.say(&format!("iperf3: {}, round {round}", model.name));
            let lab = Lab::start([model.f1u, model.n3], POLL)?;
            for (up, direction) in [(true, "up"), (false, "down")] {
                let rate = iperf(&lab, up, run.plan.iperf_s)
                    .with_context(|| format!("{}, {direction}", model.name))?;
                run.results.add(format!("iperf.{}.{direction}", model.name), MBIT, 1, rate / 1e6);
            }
        }
    }
    Ok(())
}

/// Bits per second of one stream.
fn iperf(lab: &Lab, up: bool, seconds: u32) -> anyhow::Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (server, limit) = (SERVER.to_string(), Duration::from_secs(seconds.into()) + MARGIN);
    runtime.block_on(async {
        let serve = Command::new("iperf3").args(["-s", "-1", "-B", &server]).namespace(&lab.network);
        let mut serving = serve
            .stdout(std::process::Stdio::null())
            .spawn()
            .context("start iperf3 (`scripts/setup.sh bench` installs it)")?;
        let start = time::now_std();
        let answer = loop {
            let time = seconds.to_string();
            let mut ask = Command::new("iperf3").args(["-c", &server, "-J", "-t", &time]);
            if !up {
                ask = ask.arg("-R");
            }
            let output = ask.namespace(&lab.phones[0]).output(limit).await?;
            let answer: serde_json::Value =
                serde_json::from_slice(&output.stdout).context("iperf3's answer")?;
            if answer["error"].is_null() {
                break answer;
            }
            // The server does not listen yet.
            if start.elapsed() > limit || serving.try_wait().is_some() {
                bail!("iperf3: {}", answer["error"]);
            }
            time::sleep(Duration::from_millis(20)).await;
        };
        let _ = time::timeout(MARGIN, serving.wait()).await;
        answer["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 gives no rate")
    })
}
