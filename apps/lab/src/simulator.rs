//! gNBs and UEs: the `godwit ran` process and its events.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::process::{Child, Command};
use net::time::{self, Duration};
use serde_json::Value;
use tokio::io::{BufReader, Lines};
use tokio::sync::mpsc;

use crate::{STOP_LIMIT, log_file, tail};

/// What to simulate.
#[derive(Debug, Clone)]
pub struct SimulatorOptions {
    /// Number of UEs, from the first default subscriber on.
    pub ues: u32,
    /// Number of gNBs.
    pub gnbs: u16,
    /// Give each UE a namespace with a TUN device.
    pub tun: bool,
    /// Session type: IPV4, IPV6 or IPV4V6.
    pub session_type: String,
    /// 4G: S-GWs, each with the address of its eNB, instead of the lab's gateway and an eNB.
    pub sgws: Vec<(SocketAddr, IpAddr)>,
    /// 4G: the MME's address, instead of the eNB's.
    pub mme: Option<IpAddr>,
    /// Further arguments of `godwit ran`.
    pub arguments: Vec<String>,
}

/// How UEs reach the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// gNBs in one piece, as many as the options say, and the AMF's address.
    Gnbs(IpAddr),
    /// The gNB in parts that the configuration describes.
    Parts,
    /// An eNB with its MME, and the gateway's address.
    Lte(Ipv4Addr),
}

impl Default for SimulatorOptions {
    fn default() -> SimulatorOptions {
        SimulatorOptions {
            ues: 1,
            gnbs: 1,
            tun: true,
            session_type: "IPV4V6".to_owned(),
            sgws: Vec::new(),
            mme: None,
            arguments: Vec::new(),
        }
    }
}

/// One line of the simulator's output (see `simulator::event`).
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatorEvent(pub Value);

impl SimulatorEvent {
    /// The kind of event: `registered`, `session`, `failed`, `ready` …
    pub fn kind(&self) -> &str {
        self.text("event").unwrap_or("?")
    }

    /// The value of a text member.
    pub fn text(&self, member: &str) -> Option<&str> {
        self.0.get(member)?.as_str()
    }

    /// The value of a number member.
    pub fn number(&self, member: &str) -> Option<f64> {
        self.0.get(member)?.as_f64()
    }

    /// The UE's namespace, from a `session` event with TUN.
    ///
    /// # Errors
    /// The event names no namespace, or it no longer exists.
    pub fn namespace(&self) -> anyhow::Result<NetNs> {
        let path = self.text("netns").context("the event names no namespace")?;
        NetNs::from_path(path).with_context(|| format!("open the UE's namespace {path}"))
    }
}

/// A running simulator; killed when dropped.
pub struct Simulator {
    child: Child,
    events: mpsc::UnboundedReceiver<SimulatorEvent>,
    /// Events that [`Simulator::expect`] skipped.
    passed: VecDeque<SimulatorEvent>,
    log: std::path::PathBuf,
    /// How long the process may take to end.
    stop_limit: Duration,
}

/// Time to deregister one more UE and remove its device; the kernel takes up to 30 ms for the removal.
const STOP_LIMIT_PER_UE: Duration = Duration::from_millis(50);

impl Simulator {
    /// UEs of this access.
    pub(crate) fn start(
        godwit: &Path,
        namespace: &NetNs,
        folder: &Path,
        options: &SimulatorOptions,
        access: Access,
    ) -> anyhow::Result<Simulator> {
        let address = crate::RAN_N2.to_string();
        let mut command = Command::new(godwit).arg("ran");
        command = match access {
            Access::Parts => command.args(["--split", "-c"]).arg(folder.join("godwit.yaml")),
            Access::Gnbs(amf) => {
                let amf = SocketAddr::new(amf, 38412).to_string();
                let gnbs = options.gnbs.to_string();
                command.args(["--amf", &amf, "--n2", &address, "--gnbs", &gnbs])
            }
            Access::Lte(gateway) => {
                let (gateways, enbs) = match &options.sgws[..] {
                    [] => (format!("{gateway}:2123"), address.clone()),
                    sgws => {
                        let (gateways, enbs): (Vec<_>, Vec<_>) =
                            sgws.iter().map(|(sgw, enb)| (sgw.to_string(), enb.to_string())).unzip();
                        (gateways.join(","), enbs.join(","))
                    }
                };
                let mme = options.mme.map_or_else(|| address.clone(), |mme| mme.to_string());
                command.args(["--4g", "--mme", &mme, "--enb", &enbs, "--gateway", &gateways])
            }
        };
        command = command.args(["--ues", &options.ues.to_string(), "--session", &options.session_type]);
        if options.tun {
            command = command.arg("--tun");
        }
        let mut child = command
            .args(&options.arguments)
            .namespace(namespace)
            .pipe_stdout()
            .stderr(log_file(folder, "ran")?)
            .spawn()
            .with_context(|| format!("start {} ran", godwit.display()))?;
        let lines = child.take_stdout().context("read the simulator's events")?;
        // Unbounded: the process would block if nobody read its output. A demo writes some thousand
        // lines.
        let (sender, events) = mpsc::unbounded_channel();
        tokio::spawn(read(lines, sender));
        let stop_limit = STOP_LIMIT + STOP_LIMIT_PER_UE * options.ues;
        Ok(Simulator { child, events, passed: VecDeque::new(), log: folder.join("ran.log"), stop_limit })
    }

    /// The next event; `None` when the simulator has ended.
    pub async fn next(&mut self) -> Option<SimulatorEvent> {
        match self.passed.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    /// Waits for the next event of a kind. [`Simulator::next`] returns the skipped events later.
    ///
    /// # Errors
    /// The event did not come in time, or the simulator ended before.
    pub async fn expect(&mut self, kind: &str, limit: Duration) -> anyhow::Result<SimulatorEvent> {
        if let Some(index) = self.passed.iter().position(|event| event.kind() == kind)
            && let Some(event) = self.passed.remove(index)
        {
            return Ok(event);
        }
        let deadline = time::now() + limit;
        loop {
            match time::timeout(deadline.saturating_duration_since(time::now()), self.events.recv()).await {
                Ok(Some(event)) if event.kind() == kind => return Ok(event),
                Ok(Some(event)) => self.passed.push_back(event),
                Ok(None) => {
                    let status = self.child.wait().await?;
                    bail!("the simulator ended ({status}) before `{kind}`\n{}", self.log_tail());
                }
                Err(_) => {
                    bail!("no `{kind}` event within {limit:?}; seen: {}\n{}", self.seen(), self.log_tail())
                }
            }
        }
    }

    /// The process identifier.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process like `kill -9`: the gNBs disappear without releasing anything.
    ///
    /// # Errors
    /// None are expected.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.child.signal(net::process::Signal::SIGKILL);
        self.child.wait().await?;
        Ok(())
    }

    /// Stops the simulator, which deregisters its UEs, and returns the remaining events.
    ///
    /// # Errors
    /// The process did not end by itself, or ended with an error.
    pub async fn stop(mut self) -> anyhow::Result<Vec<SimulatorEvent>> {
        let status = self.child.stop(self.stop_limit).await?;
        let mut rest: Vec<_> = self.passed.drain(..).collect();
        while let Some(event) = self.events.recv().await {
            rest.push(event);
        }
        if !status.success() {
            let failed: Vec<_> = rest
                .iter()
                .filter(|event| event.kind() == "failed")
                .map(|event| event.0.to_string())
                .collect();
            bail!("the simulator ended with an error: {status}\n{}{}", failed.join("\n"), self.log_tail());
        }
        Ok(rest)
    }

    /// The last lines of the simulator's log.
    pub fn log_tail(&self) -> String {
        tail(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// The last skipped events, for an error message.
    fn seen(&self) -> String {
        let last: Vec<_> = self.passed.iter().rev().take(3).map(|event| event.0.to_string()).collect();
        if last.is_empty() { "nothing".to_owned() } else { last.join(" ") }
    }
}

async fn read(
    mut lines: Lines<BufReader<tokio::net::unix::pipe::Receiver>>,
    events: mpsc::UnboundedSender<SimulatorEvent>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(value) => {
                if events.send(SimulatorEvent(value)).is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!(%error, line, "the simulator wrote a line that is not an event"),
        }
    }
}
