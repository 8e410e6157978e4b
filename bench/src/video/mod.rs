//! `video`: a stream from the data network to a UE through all nodes, in the three models, beside other traffic: the paper's Table 3 and
//! Figure 12.
//!
//! ffmpeg encodes the stream once: MPEG-4 with 320 × 240 pixels and 15 frames a second, AAC in ADTS with 48 kHz and 128 kbit/s. For
//! each sample one ffmpeg sends it over UDP at its own pace, another in the UE's namespace receives it. Frames are compared by
//! their checksums: one that did not arrive as it was sent is lost. The content bit rate is that of what arrived. The other traffic
//! are datagrams of iperf3 to another UE.

pub mod panels;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail};
use net::process::{Child, Command};
use net::time::{self, Duration};

use crate::Options;
use crate::end_to_end::{POLL, THREE};
use crate::ran;
use crate::ran::lab::Lab;
use crate::result::Experiment;
use crate::samples::{Axes, Results};
use crate::upf::subscriber::{SERVER, Subscriber};

const KBIT: Axes = Axes { x: "other traffic, Mbit/s", y: "content bit rate", unit: "kbit/s" };
const FRAMES: Axes = Axes { x: "other traffic, Mbit/s", y: "frames lost", unit: "1" };
const MBIT: Axes = Axes { x: "other traffic, Mbit/s", y: "other traffic that arrived", unit: "Mbit/s" };
/// Frames a second.
const RATE: u32 = 15;
const PORT: u16 = 5004;
/// The receiver ends when nothing has come for so long.
const END: Duration = Duration::from_millis(700);
/// Time for programs to start and to end.
const MARGIN: Duration = Duration::from_secs(15);
/// Octets of a UDP socket's buffer, and of ffmpeg's own queue in packets of 188 octets.
const BUFFERS: &str = "buffer_size=4194304&fifo_size=50000";

/// Extent of the measurement.
struct Plan {
    rounds: usize,
    /// Seconds of the stream.
    seconds: u32,
    /// Mbit/s of other traffic.
    loads: Vec<usize>,
}

impl Plan {
    fn new(quick: bool) -> Plan {
        match quick {
            true => Plan { rounds: 3, seconds: 2, loads: vec![100] },
            false => Plan { rounds: 10, seconds: 5, loads: vec![0, 50, 100, 200] },
        }
    }
}

type Run = ran::Run<Plan>;

/// Runs the experiment.
///
/// # Errors
/// The machine gives this process no core.
pub fn run(options: &Options) -> anyhow::Result<Experiment> {
    let plan = Plan::new(options.quick);
    let mut run = Run::begin("video", options.quick, plan.rounds, plan)?;
    // ffmpeg and iperf3 need cores, too.
    let cores = run.cores.clone();
    crate::machine::pin(&cores);
    run.part("video", stream);
    Ok(run.end(summarise))
}

/// The promised figures: those of the bypass model beside the most traffic.
fn summarise(results: &Results, experiment: &mut Experiment) {
    for model in THREE {
        let series = format!("video.{}.kbit_s", model.name);
        let Some(load) = results.places(&series).last().copied() else { continue };
        let lost: f64 = results
            .places(&series)
            .into_iter()
            .flat_map(|load| results.samples(&format!("video.{}.lost", model.name), load).to_vec())
            .sum();
        let name = if model.name == "bypass" { String::new() } else { format!("_{}", model.name) };
        experiment.ratios.insert(format!("video_frames_lost{name}"), lost);
        if let Some(rate) = results.mean(&series, load) {
            experiment.ratios.insert(format!("video_kbit_s{name}"), rate);
        }
    }
}

fn stream(run: &mut Run) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    run.progress.say("encoding");
    let film = runtime.block_on(Film::encode(folder.path(), run.plan.seconds))?;
    run.param("stream_seconds", run.plan.seconds);
    run.param("stream_kbit_s", film.kbit_s(film.octets));
    for round in 0..run.plan.rounds {
        for model in THREE {
            let lab = Lab::start([model.f1u, model.n3], POLL)?;
            for load in run.plan.loads.clone() {
                run.progress.say(&format!("{}, {load} Mbit/s beside it, round {round}", model.name));
                let shown = runtime.block_on(show(&lab, &film, load))?;
                let series = |what: &str| format!("video.{}.{what}", model.name);
                run.results.add(series("kbit_s"), KBIT, load, film.kbit_s(shown.octets));
                run.results.add(series("lost"), FRAMES, load, shown.lost as f64);
                run.results.add(series("beside"), MBIT, load, shown.beside);
            }
        }
    }
    Ok(())
}

/// A program of ffmpeg that says only what is wrong.
fn ffmpeg() -> Command {
    Command::new("ffmpeg").args(["-hide_banner", "-nostdin", "-loglevel", "error", "-y"])
}

async fn finish(command: Command) -> anyhow::Result<Vec<u8>> {
    let output =
        command.output(MARGIN).await.context("start ffmpeg (`scripts/setup.sh bench` installs it)")?;
    if !output.status.success() {
        bail!("ffmpeg: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

/// The encoded stream.
struct Film {
    file: PathBuf,
    seconds: u32,
    /// Its frames, by checksum, and how often each occurs.
    frames: HashMap<String, usize>,
    /// Octets of video and audio.
    octets: u64,
}

impl Film {
    async fn encode(folder: &Path, seconds: u32) -> anyhow::Result<Film> {
        let file = folder.join("film.ts");
        let (picture, sound) = (
            format!("testsrc2=size=320x240:rate={RATE}:duration={seconds}"),
            format!("sine=frequency=440:sample_rate=48000:duration={seconds}"),
        );
        let command = ffmpeg()
            .args(["-f", "lavfi", "-i", &picture, "-f", "lavfi", "-i", &sound])
            .args(["-c:v", "mpeg4", "-b:v", "600k", "-g", "15", "-c:a", "aac", "-b:a", "128k"])
            .args(["-f", "mpegts"])
            .arg(&file);
        finish(command).await?;
        let (frames, octets) = frames(&file).await?;
        let pictures = (RATE * seconds) as usize;
        let found: usize = frames.values().sum();
        if found != pictures {
            bail!("the stream has {found} pictures instead of {pictures}");
        }
        Ok(Film { file, seconds, frames, octets })
    }

    /// The bit rate of so many octets within the stream's time.
    fn kbit_s(&self, octets: u64) -> f64 {
        octets as f64 * 8.0 / 1000.0 / f64::from(self.seconds)
    }
}

/// The pictures of a stream by the checksum of their decoded octets, and the octets of its encoded video and audio.
async fn frames(file: &Path) -> anyhow::Result<(HashMap<String, usize>, u64)> {
    let list = |codec: [&'static str; 2]| {
        finish(ffmpeg().arg("-i").arg(file).args(["-map", "0"]).args(codec).args(["-f", "framecrc", "-"]))
    };
    let mut frames = HashMap::new();
    let decoded = String::from_utf8(list(["-fps_mode", "passthrough"]).await?)?;
    for columns in rows(&decoded).filter(|columns| columns.first() == Some(&"0")) {
        let checksum = columns.get(5).context("a checksum")?;
        *frames.entry((*checksum).to_owned()).or_default() += 1;
    }
    let encoded = String::from_utf8(list(["-c", "copy"]).await?)?;
    let sizes = rows(&encoded).map(|columns| columns.get(4).and_then(|size| size.parse::<u64>().ok()));
    Ok((frames, sizes.map(|size| size.unwrap_or(0)).sum()))
}

/// The rows of a list of `framecrc`: stream, dts, pts, duration, size, checksum.
fn rows(list: &str) -> impl Iterator<Item = Vec<&str>> {
    list.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(',').map(str::trim).collect())
}

/// What arrived at the UE.
struct Shown {
    octets: u64,
    /// Pictures that did not arrive as they were sent.
    lost: usize,
    /// Mbit/s of other traffic that arrived.
    beside: f64,
}

/// Sends the stream to the first UE, and other traffic to the second one.
async fn show(lab: &Lab, film: &Film, load: usize) -> anyhow::Result<Shown> {
    let file = film.file.with_file_name("arrived.ts");
    let _ = std::fs::remove_file(&file);
    let ue = Subscriber(0).ue();
    let from = format!("udp://{ue}:{PORT}?timeout={}&{BUFFERS}", END.as_micros());
    let receive = ffmpeg().args(["-i", &from, "-map", "0", "-c", "copy", "-f", "mpegts"]).arg(&file);
    // The end of the stream is an error to it.
    let mut receiver = receive.stderr(Stdio::null()).namespace(&lab.phones[0]).spawn()?;
    wait_for_receiver(&receiver)?;
    let beside = if load > 0 { Some(Beside::start(lab, load, film.seconds).await?) } else { None };
    let to = format!("udp://{ue}:{PORT}?pkt_size=1316&{BUFFERS}");
    let send = ffmpeg()
        .args(["-re", "-i"])
        .arg(&film.file)
        .args(["-map", "0", "-c", "copy", "-f", "mpegts", &to])
        .namespace(&lab.network);
    finish(send).await?;
    time::timeout(MARGIN, receiver.wait()).await.context("the receiver does not end")??;
    let beside = match beside {
        Some(beside) => beside.finish().await?,
        None => 0.0,
    };
    let (arrived, octets) = match file.exists() {
        true => frames(&file).await?,
        false => (HashMap::new(), 0),
    };
    let lost = film
        .frames
        .iter()
        .map(|(checksum, sent)| sent.saturating_sub(arrived.get(checksum).copied().unwrap_or(0)));
    Ok(Shown { octets, lost: lost.sum(), beside })
}

/// Waits until a program has bound the stream's port.
fn wait_for_receiver(receiver: &Child) -> anyhow::Result<()> {
    let start = time::now_std();
    let port = format!(":{PORT:04X} ");
    loop {
        let table = std::fs::read_to_string(format!("/proc/{}/net/udp", receiver.id()))?;
        if table.contains(&port) {
            return Ok(());
        }
        if start.elapsed() > MARGIN {
            bail!("the receiver of the stream does not start");
        }
        time::sleep_thread(Duration::from_millis(5));
    }
}

/// Traffic beside the stream.
struct Beside {
    server: Child,
    client: tokio::task::JoinHandle<std::io::Result<std::process::Output>>,
}

impl Beside {
    async fn start(lab: &Lab, mbit: usize, seconds: u32) -> anyhow::Result<Beside> {
        let ue = Subscriber(1).ue().to_string();
        let serve = Command::new("iperf3").args(["-s", "-1", "-B", &ue]).namespace(&lab.phones[1]);
        let server =
            serve.stdout(Stdio::null()).spawn().context("start iperf3 (`scripts/setup.sh bench`)")?;
        let start = time::now_std();
        let listens = |server: &Child| {
            let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", server.id()));
            table.is_ok_and(|table| table.contains(":1451 "))
        };
        while !listens(&server) {
            if start.elapsed() > MARGIN {
                bail!("iperf3 does not start");
            }
            time::sleep(Duration::from_millis(5)).await;
        }
        let (rate, time) = (format!("{mbit}M"), (seconds + 1).to_string());
        let ask = Command::new("iperf3").args([
            "-c",
            &ue,
            "-B",
            &SERVER.to_string(),
            "-u",
            "-b",
            &rate,
            "-l",
            "1400",
            "-t",
            &time,
            "-J",
        ]);
        let client = tokio::task::spawn(ask.namespace(&lab.network).output(MARGIN));
        Ok(Beside { server, client })
    }

    /// Mbit/s that arrived.
    async fn finish(mut self) -> anyhow::Result<f64> {
        let output = self.client.await??;
        let _ = time::timeout(MARGIN, self.server.wait()).await;
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).context("iperf3's answer")?;
        let sum = &answer["end"]["sum"];
        let rate = sum["bits_per_second"].as_f64().context("iperf3 gives no rate")?;
        let lost = sum["lost_percent"].as_f64().unwrap_or(0.0);
        Ok(rate * (100.0 - lost) / 100.0 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_arrives_whole_in_all_models() {
        let _alone = ran::alone();
        let plan = Plan { rounds: 1, seconds: 1, loads: vec![5] };
        let mut run = Run::begin("video", true, 1, plan).unwrap();
        crate::machine::pin(&run.cores.clone());
        stream(&mut run).unwrap();
        let experiment = run.end(summarise);
        for name in ["", "_hybrid", "_kernel"] {
            assert_eq!(experiment.ratios[&format!("video_frames_lost{name}")], 0.0, "{experiment:?}");
            assert!(experiment.ratios[&format!("video_kbit_s{name}")] > 300.0, "{experiment:?}");
        }
    }

    #[test]
    fn lists_of_frames_are_read() {
        let list = "#software: Lavf\n0,          0,          0,        1,   115200, 0x3f2b\n";
        let columns = rows(list).next().unwrap();
        assert_eq!((columns[0], columns[4], columns[5]), ("0", "115200", "0x3f2b"));
    }
}
