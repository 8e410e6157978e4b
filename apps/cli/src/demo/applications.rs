//! The system's own programs, run inside UEs' namespaces: `ping` and `curl`.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::process::Command;
use net::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::report::Download;

/// Echo requests per UE.
const PINGS: &str = "3";
/// Seconds between echo requests.
const PING_INTERVAL: &str = "0.2";
/// Seconds after which ping ends.
const PING_DEADLINE: &str = "8";
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
            ping(&namespace, &host).await
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

async fn ping(namespace: &NetNs, host: &str) -> anyhow::Result<Pings> {
    let output = Command::new("ping")
        .args(["-n", "-c", PINGS, "-i", PING_INTERVAL, "-w", PING_DEADLINE, host])
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
    fn curl_output() {
        assert_eq!(parse_curl("200 1000000 0.5").unwrap(), Download { bytes: 1_000_000, mbps: 16.0 });
        assert!(parse_curl("404 0 0.1").is_err());
        assert!(parse_curl("").is_err());
    }
}
