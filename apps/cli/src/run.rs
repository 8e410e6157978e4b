//! `godwit run`: starts network functions in this process and keeps them until a signal ends it.
//!
//! Nothing here knows what an NF does. Order of starting: the NRF first, since the others register there, the UPF
//! before the SMF, which associates with it; each keeps trying until its peers are there, so a core may as well be
//! started in pieces on several machines.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use net::sctp::SctpMode;
use nf::metrics::MetricsServer;
use nf::oam;
use store::Store;
use tokio::signal::unix::{SignalKind, signal};

use crate::ConfigArg;
use crate::config::{self, Config, SECTIONS, de};
use crate::metrics;

/// Options of `godwit run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Network functions of this process, for example amf,smf. All when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = nf_name)]
    nf: Vec<&'static str>,
    /// Write pcapng captures of N2, N3, N4, N6 and SBI into this folder.
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// Log filter, in place of `log` of the configuration.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

/// Reads the name of an NF.
fn nf_name(text: &str) -> Result<&'static str, String> {
    let text = text.trim().to_lowercase();
    if let Some(name) = SECTIONS.iter().find(|name| **name == text) {
        return Ok(name);
    }
    match de::did_you_mean(&text, SECTIONS.iter().copied()) {
        Some(candidate) => Err(format!("no such network function; did you mean `{candidate}`?")),
        None => Err(format!("no such network function; there are {}", SECTIONS.join(", "))),
    }
}

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// The configuration is wrong, or an NF could not start; the others are stopped then.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = config::load(&args.config.config)?;
    telemetry::log::init(args.log.as_deref().unwrap_or(&config.log))?;
    let names: Vec<&str> = if args.nf.is_empty() { SECTIONS.to_vec() } else { args.nf.clone() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let capture = args.pcap.as_ref().map(|folder| capture(folder, &config)).transpose()?;
        let mut core = Core::new(&config)?;
        let run = async {
            core.start_all(&config, &names).await?;
            core.registered().await;
            if let Some(address) = config.metrics {
                let names = names.iter().map(|name| (*name).to_owned()).collect();
                core.metrics = metrics::start(address, config.run_dir.clone(), names).await;
            }
            tracing::info!(nfs = names.join(","), "ready");
            Err(core.failed().await)
        };
        // A signal ends it at any point, also while an NF starts or waits for the NRF.
        let ended = tokio::select! {
            failed = run => failed,
            _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
            _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        };
        core.stop().await;
        if let Some(capture) = capture {
            let summary = capture.stop();
            tracing::info!(?summary, "captures written");
        }
        ended
    })
}

fn capture(folder: &std::path::Path, config: &Config) -> anyhow::Result<pktio::capture::Capture> {
    use pktio::capture::{Capture, Point};
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let tuns = config.upf.dnn.iter().map(|dnn| dnn.tun.as_str());
    let ports =
        [config.nrf.sbi, config.amf.sbi, config.smf.sbi, config.ausf.sbi, config.udm.sbi, config.udr.sbi];
    let mut ports: Vec<u16> =
        ports.iter().map(std::net::SocketAddr::port).chain([config.pcf.sbi.port()]).collect();
    ports.sort_unstable();
    ports.dedup();
    let udp_port = match config.amf.sctp {
        SctpMode::Udp { port } => Some(port),
        _ => None,
    };
    let points = vec![Point::n2(udp_port), Point::n3(), Point::n4(), Point::n6(tuns), Point::sbi(ports)];
    Ok(Capture::start(folder, points)?)
}

/// The NFs of this process.
struct Core {
    env: nf::Env,
    running: Vec<nf::Running>,
    /// The user plane with its administration socket, which the UPF, being no SBI function, does not serve itself.
    upf: Option<(upf::Upf, oam::OamServer)>,
    store: Option<Arc<dyn Store>>,
    metrics: Option<MetricsServer>,
}

impl Core {
    fn new(config: &Config) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&config.run_dir)
            .with_context(|| format!("cannot create run_dir {}", config.run_dir.display()))?;
        let env = nf::Env::new(&config.run_dir, Some(config.nrf.sbi.into()));
        Ok(Core { env, running: Vec::new(), upf: None, store: None, metrics: None })
    }

    async fn start_all(&mut self, config: &Config, names: &[&str]) -> anyhow::Result<()> {
        // SECTIONS is in the order of starting.
        for name in SECTIONS.iter().filter(|name| names.contains(name)) {
            self.start(config, name).await.with_context(|| format!("{name} could not start"))?;
        }
        Ok(())
    }

    async fn start(&mut self, config: &Config, name: &str) -> anyhow::Result<()> {
        let env = self.env.clone();
        let running = match name {
            "nrf" => nrf::start(config.nrf.clone(), env).await?,
            "udr" => {
                let store = self.store(config)?;
                udr::start(config.udr.clone(), store, env).await?
            }
            "udm" => udm::start(config.udm.clone(), config.plmn, env).await?,
            "ausf" => ausf::start(config.ausf.clone(), config.plmn, env).await?,
            "pcf" => pcf::start(config.pcf.clone(), env).await?,
            "upf" => {
                let upf = upf::start(config.upf.clone()).await?;
                let path = oam::socket_path(&config.run_dir, "upf");
                let served = upf_oam(upf.handle()).serve(&path);
                let server = served.with_context(|| format!("cannot serve {}", path.display()))?;
                self.upf = Some((upf, server));
                return Ok(());
            }
            "smf" => smf::start(config.smf.clone(), env).await?,
            "amf" => amf::start(config.amf.clone(), env).await?,
            other => bail!("no such network function: {other}"),
        };
        self.running.push(running);
        Ok(())
    }

    fn store(&mut self, config: &Config) -> anyhow::Result<Arc<dyn Store>> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let store: Arc<dyn Store> = Arc::new(store::Sqlite::open(&config.store)?);
        self.store = Some(store.clone());
        Ok(store)
    }

    /// Waits until every NF is known to the NRF.
    async fn registered(&self) {
        for running in &self.running {
            if *running.nf_type() != sbi::model::nrf::NfType::Nrf {
                running.registered().await;
            }
        }
    }

    /// Waits until an NF has failed that cannot go on: whoever supervises this process starts it again, and its peers see
    /// a restart, which they know how to deal with.
    async fn failed(&mut self) -> anyhow::Error {
        match &mut self.upf {
            Some((upf, _)) => upf.failed().await,
            None => std::future::pending().await,
        }
        anyhow::anyhow!("the user plane has failed")
    }

    /// Stops in the reverse order of starting, so that each NF still finds its peers while it says goodbye.
    async fn stop(mut self) {
        self.metrics = None;
        while let Some(running) = self.running.pop() {
            running.stop().await;
        }
        if let Some((upf, server)) = self.upf.take() {
            drop(server);
            upf.stop().await;
        }
        self.env.shutdown.trigger();
    }
}

/// What `godwit upf …` asks.
fn upf_oam(upf: upf::Handle) -> nf::Oam {
    let (stats, sessions, status) = (upf.clone(), upf.clone(), upf);
    nf::Oam::new()
        .get("/stats", move |_| {
            let stats = stats.stats();
            async move { Ok(stats) }
        })
        .get("/sessions", move |_| {
            let upf = sessions.clone();
            async move { Ok(upf.sessions().await) }
        })
        .get("/status", move |_| {
            let upf = status.clone();
            async move { Ok(upf.status().await) }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nfs_are_read_with_a_suggestion() {
        assert_eq!(nf_name("AMF"), Ok("amf"));
        assert!(nf_name("amff").unwrap_err().contains("did you mean `amf`?"));
        assert!(nf_name("x").unwrap_err().contains("there are"));
    }
}
