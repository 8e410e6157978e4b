//! `selective`, `naive` and `n4`: the control messages of the first anchor are captured, and replayed to the second one by an agent beside
//! it (`mec/replication`). Both anchors are as they are without it.
//!
//! The replicator and the agent are threads of this process in the second anchor's namespace, with a TCP connection between them whose octets
//! count as those to the other site. The MME or SMF is in the first anchor's, with a tap in the place of the switch that captures. The time is
//! that from the request to the replicator until all copies are there, or refused.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, ensure};
use gtpv2c::endpoint::PORT;
use lab::Lab;
use net::time;
use replication::agent;
use replication::replicator::{Anchor, Config, Protocol, Replicator, Scheme};
use replication::track::Datagram;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::Moved;
use super::mme::{Mme, Tap};
use super::prober::Prober;
use super::smf::{self, Smf};

/// Names of the anchors.
const FIRST: &str = "first";
const SECOND: &str = "second";
/// Where the agent listens, in the second anchor's namespace.
const AGENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8806);
/// Nothing is sent to it: the second anchor is known by its agent.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Who makes the sessions, and what the anchor calls them.
pub(super) enum Control {
    Mme(Mme, Vec<u32>),
    Smf(Smf, Vec<u64>),
}

impl Control {
    /// Makes sessions until there are so many.
    pub(super) fn register(&mut self, ues: usize) -> anyhow::Result<()> {
        match self {
            Control::Mme(mme, known) => known.extend(mme.attach(ues.saturating_sub(known.len()) as u32)?),
            Control::Smf(smf, known) => known.extend(smf.establish(ues.saturating_sub(known.len()) as u32)?),
        }
        Ok(())
    }

    /// Ends all sessions.
    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        match self {
            Control::Mme(mme, known) => mme.detach(&std::mem::take(known)),
            Control::Smf(smf, known) => smf.delete(&std::mem::take(known)),
        }
    }
}

/// Two anchors, and what replicates between them.
pub(super) struct Messages {
    name: &'static str,
    scheme: Scheme,
    control: Control,
    replicator: Replicator,
    /// Of the replicator, and of the agent.
    runtimes: [Runtime; 2],
    first: Lab,
    second: Lab,
}

impl Messages {
    /// Over S11.
    pub(super) async fn s11(name: &'static str, scheme: Scheme) -> anyhow::Result<Messages> {
        Self::start(name, scheme, Protocol::S11).await
    }

    /// Over N4.
    pub(super) async fn n4(name: &'static str) -> anyhow::Result<Messages> {
        Self::start(name, Scheme::Selective, Protocol::N4).await
    }

    async fn start(name: &'static str, scheme: Scheme, protocol: Protocol) -> anyhow::Result<Messages> {
        let (first, second) = (Lab::start(options()?).await?, Lab::start(options()?).await?);
        let upf: SocketAddr = lab::UPF_PFCP.parse()?;
        let (anchor, control, space) = match protocol {
            Protocol::S11 => (IpAddr::from(lab::CORE_N2), IpAddr::from(lab::RAN_N2), second.ran()),
            Protocol::N4 => (upf.ip(), IpAddr::from(smf::OWN), second.core()),
        };
        let anchors = [(FIRST, anchor), (SECOND, ELSEWHERE)];
        let anchors =
            anchors.map(|(name, control)| Anchor { name: name.to_owned(), control, keeps_addresses: false });
        let replicator = Replicator::new(Config::default(), anchors.to_vec(), 1, Box::new(|_| {}));
        let of = replicator.clone();
        let tap: Tap = Box::new(move |by_control, octets| {
            of.observe(protocol, anchor, Datagram { control, by_control, octets });
        });
        let made = match protocol {
            Protocol::S11 => {
                let mme = first.ran().enter(|| Mme::new(lab::RAN_N2, lab::RAN_N2, lab::CORE_N2, tap))??;
                Control::Mme(mme, Vec::new())
            }
            Protocol::N4 => Control::Smf(first.core().enter(|| Smf::new(smf::OWN, upf, tap))??, Vec::new()),
        };
        let gtpu = Some(lab::CORE_N2.into());
        let config = agent::Config { listen: AGENT, control, clone: anchor, gtpu, window: 64 };
        let runtimes = [space.runtime(1)?, space.runtime(1)?];
        let agent = runtimes[1].spawn(async move { agent::Agent::bind(config).await }).await??;
        runtimes[1].spawn(agent.serve());
        Ok(Messages { name, scheme, control: made, replicator, runtimes, first, second })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn register(&mut self, ues: usize) -> anyhow::Result<()> {
        self.control.register(ues)?;
        let registered = self.replicator.anchors().first().map_or(0, |anchor| anchor.2);
        ensure!(registered >= ues, "{registered} of {ues} sessions are known by their messages");
        Ok(())
    }

    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        self.control.clear()?;
        let left = self.replicator.anchors().first().map_or(0, |anchor| anchor.2);
        ensure!(left == 0, "{left} sessions are kept of UEs that have left");
        Ok(())
    }

    pub(super) async fn replicate(&mut self, moved: usize) -> anyhow::Result<Moved> {
        let (name, scheme) = (FIRST.to_owned(), self.scheme);
        let anchors = self.replicator.anchors();
        let (_, _, _, stored, raw) = anchors.first().context("no anchor is known")?.clone();
        let listed = self.replicator.sessions(&name, None, moved)?;
        let users: Vec<String> = listed.into_iter().map(|listed| listed.id).collect();
        let users = if scheme == Scheme::Naive { None } else { Some(users) };
        // The connection to the agent is there in advance, as its clone is.
        let replicator = self.replicator.clone();
        let prepare =
            async move { replicator.replicate(FIRST, SECOND, AGENT, Some(&[]), Scheme::Selective).await };
        self.runtimes[0].spawn(prepare).await??;
        let prober = Prober::start(self.first.ran(), vec![SocketAddr::from((lab::CORE_N2, PORT))])?;
        let replicator = self.replicator.clone();
        let before = asked();
        let start = time::now();
        let work = async move { replicator.replicate(FIRST, SECOND, AGENT, users.as_deref(), scheme).await };
        let done = self.runtimes[0].spawn(work).await??;
        let took_ms = (time::now() - start).as_secs_f64() * 1e3;
        let messages = asked() - before;
        let downtime_ms = prober.stop()?;
        ensure!(done.refused.is_empty(), "refused: {:?}", &done.refused[..done.refused.len().min(3)]);
        // What the second anchor and its user plane say themselves.
        let known = self.sessions_of_second().await?;
        let replicator = self.replicator.clone();
        let remove = async move { replicator.remove(FIRST, SECOND, None).await };
        self.runtimes[0].spawn(remove).await??;
        let left = self.sessions_of_second().await?;
        ensure!(left == 0, "{left} sessions are left at the second anchor");
        Ok(Moved {
            stored_octets: if scheme == Scheme::Naive { raw } else { stored } as u64,
            wire_octets: done.octets,
            parts: vec![("replay", took_ms)],
            downtime_ms,
            known,
            served: done.done.len().min(known).min(moved),
            messages,
        })
    }

    /// Sessions of the second anchor's user plane, each with one of the gateway over S11.
    async fn sessions_of_second(&self) -> anyhow::Result<usize> {
        let upf = self.second.oam("upf", "GET", "/status").await?;
        let upf = upf["sessions"].as_u64().context("no sessions in the UPF's status")? as usize;
        if matches!(self.control, Control::Mme(..)) {
            let gateway = self.second.oam("spgw", "GET", "/status").await?;
            let gateway =
                gateway["detail"]["sessions"].as_u64().context("no sessions in the gateway's status")?;
            ensure!(gateway as usize == upf, "{gateway} sessions of the gateway, {upf} of its UPF");
        }
        Ok(upf)
    }

    pub(super) fn configurations(&self) -> anyhow::Result<Vec<Value>> {
        let read = |lab: &Lab| {
            let text = std::fs::read_to_string(lab.configuration())?;
            Ok(serde_json::from_str::<Value>(&text)?["spgw"].take())
        };
        [&self.first, &self.second].into_iter().map(read).collect()
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.runtimes.into_iter().for_each(Runtime::shutdown_background);
        self.first.stop().await?;
        self.second.stop().await
    }
}

/// Messages that agents have replayed: they are threads of this process.
fn asked() -> u64 {
    telemetry::counters::snapshot().get("agent_requests").and_then(Value::as_u64).unwrap_or_default()
}

fn options() -> anyhow::Result<lab::Options> {
    Ok(lab::Options { epc: true, processes: true, log: "warn".to_owned(), ..lab::Options::new(1)? })
}
