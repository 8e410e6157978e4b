//! The system's own programs, run inside UEs' namespaces: `ping`, `curl` and `ffmpeg`.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::process::Command;
use net::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::report::Download;

/// Echo requests per UE.
const PINGS: u32 = 3;
/// Seconds between echo requests.
const PING_INTERVAL: &str = "0.2";
/// Seconds that ping waits for the last reply. With a deadline for all it would send further requests in the place of lost ones.
const PING_WAIT: &str = "8";
/// UEs that ping at once.
const PINGS_AT_ONCE: usize = 32;
/// Time limit for a process that does not end by itself.
const PROCESS_LIMIT: Duration = Duration::from_secs(15);
/// Time limit for the download.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(120);

/// Result of the pings.
#[derive(Debug, Default, PartialEq)]
pub struct Pings {
    /// Echo requests.
    pub sent: u64,
    /// Echo replies.
    pub received: u64,
    /// Round-trip times in milliseconds, of every reply.
    pub rtt_ms: Vec<f64>,
    /// The first problem other than lost packets.
    pub problem: Option<String>,
}

impl Pings {
    /// The problem, ready to be appended to a sentence.
    pub fn problem_text(&self) -> String {
        self.problem.as_ref().map(|problem| format!("; {problem}")).unwrap_or_default()
    }
}

/// Pings `host` from every namespace, and calls `done` when each ping ends.
pub async fn ping_all(namespaces: Vec<NetNs>, host: &str, done: impl Fn()) -> Pings {
    let turns = Arc::new(Semaphore::new(PINGS_AT_ONCE));
    let mut running = JoinSet::new();
    for namespace in namespaces {
        let (turns, host) = (Arc::clone(&turns), host.to_owned());
        running.spawn(async move {
            let _turn = turns.acquire_owned().await?;
            ping(&namespace, &host, PINGS, PING_INTERVAL).await
        });
    }
    let mut all = Pings::default();
    while let Some(result) = running.join_next().await {
        match result.map_err(anyhow::Error::from).and_then(|pings| pings) {
            Ok(pings) => {
                all.sent += pings.sent;
                all.received += pings.received;
                all.rtt_ms.extend(pings.rtt_ms);
            }
            Err(error) => all.problem = all.problem.or(Some(output::with_causes(&error))),
        }
        done();
    }
    all
}

/// Sends so many echo requests to `host`, one in each interval of seconds.
///
/// # Errors
/// `ping` does not run.
pub async fn ping(namespace: &NetNs, host: &str, requests: u32, interval: &str) -> anyhow::Result<Pings> {
    let output = Command::new("ping")
        .args(["-n", "-c", &requests.to_string(), "-i", interval, "-W", PING_WAIT, host])
        .env("LC_ALL", "C")
        .namespace(namespace)
        .output(PROCESS_LIMIT)
        .await
        .context("run ping (Debian/Ubuntu: apt install iputils-ping)")?;
    parse_ping(&String::from_utf8_lossy(&output.stdout)).with_context(|| {
        let text = String::from_utf8_lossy(&output.stderr);
        format!("ping: {}", text.lines().next().unwrap_or("no output"))
    })
}

/// Reads the output of iputils' ping: `… time=0.412 ms` per reply, `3 packets transmitted, 3 received, …` at the end.
fn parse_ping(text: &str) -> anyhow::Result<Pings> {
    let summary = text.lines().find(|line| line.contains("packets transmitted")).context("no summary")?;
    let number = |word: &str| {
        let before = summary.split(',').find(|part| part.contains(word))?;
        before.split_whitespace().next()?.parse::<u64>().ok()
    };
    let rtt_ms = text
        .lines()
        .filter(|line| !line.contains("DUP!"))
        .filter_map(|line| line.split_once("time=")?.1.split_whitespace().next()?.parse().ok())
        .collect();
    let (sent, received) = (number("transmitted"), number("received"));
    Ok(Pings {
        sent: sent.context("no count of requests")?,
        received: received.context("no count of replies")?,
        rtt_ms,
        problem: None,
    })
}

/// Downloads `url` with curl in `namespace` and discards the content.
pub async fn download(namespace: &NetNs, url: &str) -> anyhow::Result<Download> {
    let output = Command::new("curl")
        .args(["-sS", "--noproxy", "*", "-o", "/dev/null"])
        .args(["-w", "%{http_code} %{size_download} %{time_total}", url])
        .namespace(namespace)
        .output(DOWNLOAD_LIMIT)
        .await
        .context("run curl (Debian/Ubuntu: apt install curl)")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    parse_curl(&String::from_utf8_lossy(&output.stdout))
}

/// Reads `200 200000000 1.234567`: status, bytes, seconds.
fn parse_curl(text: &str) -> anyhow::Result<Download> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let &[status, bytes, seconds] = fields.as_slice() else { bail!("curl wrote `{text}`") };
    if status != "200" {
        bail!("the server answered {status}");
    }
    let (bytes, seconds): (u64, f64) = (bytes.parse()?, seconds.parse()?);
    let mbps = if seconds > 0.0 { bytes as f64 * 8.0 / seconds / 1e6 } else { 0.0 };
    Ok(Download { bytes, mbps })
}

/// Pictures per second of the video.
const PICTURES_PER_S: u64 = 25;
/// Length of the video, seconds.
const VIDEO_S: u64 = 4;
/// Pictures between two that need no other one.
const GROUP: u64 = 12;
/// UDP port of the video.
const VIDEO_PORT: u16 = 5004;
/// Time limit for the video.
const VIDEO_LIMIT: Duration = Duration::from_secs(30);

/// Result of a video.
#[derive(Debug, PartialEq, Eq)]
pub struct Video {
    /// Pictures sent.
    pub sent: u64,
    /// Pictures that arrived and were decoded.
    pub shown: u64,
}

impl Video {
    /// Whether all pictures arrived, but for the group that the player may miss at its start and the last one, which no
    /// other follows to end it.
    pub fn is_whole(&self) -> bool {
        self.shown <= self.sent && self.shown + GROUP >= self.sent
    }
}

/// Streams a test picture from `from` to `address`, that of the UE in `to`, as MPEG transport stream over UDP in real time.
pub async fn video(from: &NetNs, to: &NetNs, address: Ipv4Addr) -> anyhow::Result<Video> {
    let (rate, length) = (PICTURES_PER_S.to_string(), VIDEO_S.to_string());
    let source = format!("testsrc=size=640x360:rate={rate}");
    // Packets of 1316 octets, seven of the transport stream, fit the session's MTU.
    let url = format!("udp://{address}:{VIDEO_PORT}?pkt_size=1316");
    let quiet = ["-nostdin", "-hide_banner", "-loglevel", "error"];
    let player = Command::new("ffmpeg")
        .args(quiet)
        .args(["-progress", "pipe:1", "-probesize", "100000", "-analyzeduration", "500000"])
        .args(["-i", &format!("udp://0.0.0.0:{VIDEO_PORT}?timeout=5000000"), "-f", "null", "-"])
        .namespace(to)
        .output(VIDEO_LIMIT);
    let camera = async {
        // The player has to listen first: what nobody listens for is refused.
        net::time::sleep(Duration::from_secs(1)).await;
        Command::new("ffmpeg")
            .args(quiet)
            .args(["-re", "-f", "lavfi", "-i", &source, "-t", &length])
            .args(["-c:v", "mpeg2video", "-g", &GROUP.to_string(), "-b:v", "2M", "-f", "mpegts", &url])
            .namespace(from)
            .output(VIDEO_LIMIT)
            .await
    };
    let (player, camera) = tokio::join!(player, camera);
    let camera = camera.context("send a video with ffmpeg")?;
    if !camera.status.success() {
        bail!("ffmpeg did not send: {}", String::from_utf8_lossy(&camera.stderr).trim());
    }
    // The end of the stream is silence, an error to the player: only its count tells.
    let player = player.context("receive a video with ffmpeg")?;
    let shown = parse_pictures(&String::from_utf8_lossy(&player.stdout)).with_context(|| {
        format!("ffmpeg received nothing: {}", String::from_utf8_lossy(&player.stderr).trim())
    })?;
    Ok(Video { sent: PICTURES_PER_S * VIDEO_S, shown })
}

/// Reads the last `frame=100` of ffmpeg's progress.
fn parse_pictures(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.strip_prefix("frame=")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_output() {
        let text = "PING 10.201.0.2 (10.201.0.2) 56(84) bytes of data.\n\
            64 bytes from 10.201.0.2: icmp_seq=1 ttl=63 time=0.412 ms\n\
            64 bytes from 10.201.0.2: icmp_seq=1 ttl=63 time=0.512 ms (DUP!)\n\
            64 bytes from 10.201.0.2: icmp_seq=3 ttl=63 time=12 ms\n\n\
            --- 10.201.0.2 ping statistics ---\n\
            3 packets transmitted, 2 received, +1 duplicates, 33.3333% packet loss, time 402ms\n\
            rtt min/avg/max/mdev = 0.412/6.206/12.000/5.794 ms\n";
        let pings = parse_ping(text).unwrap();
        assert_eq!((pings.sent, pings.received), (3, 2));
        assert_eq!(pings.rtt_ms, [0.412, 12.0]);
        let none = "5 packets transmitted, 0 received, +5 errors, 100% packet loss, time 4100ms\n";
        assert_eq!(parse_ping(none).unwrap().received, 0);
        assert!(parse_ping("").is_err());
    }

    #[test]
    fn ffmpeg_output() {
        let text = "frame=12\nfps=25.0\nprogress=continue\nframe=99\nfps=25.0\nprogress=end\n";
        assert_eq!(parse_pictures(text), Some(99));
        assert_eq!(parse_pictures("progress=end\n"), None);
        for (shown, whole) in [(100, true), (88, true), (87, false), (101, false), (0, false)] {
            assert_eq!(Video { sent: 100, shown }.is_whole(), whole, "{shown}");
        }
    }

    #[test]
    fn curl_output() {
        assert_eq!(parse_curl("200 1000000 0.5").unwrap(), Download { bytes: 1_000_000, mbps: 16.0 });
        assert!(parse_curl("404 0 0.1").is_err());
        assert!(parse_curl("").is_err());
    }
}
