//! `godwit run`: starts network functions in this process and keeps them until a signal ends it.
//!
//! This module does not know what an NF does. Order of starting: the NRF first, because the others
//! register there; the UPF before the SMF, which associates with it. Each NF keeps trying until its
//! peers are there, so the NFs of a core may also be started separately on several machines.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use net::capability::Capability;
use net::sctp::SctpMode;
use nf::metrics::MetricsServer;
use nf::oam;
use pktio::capture::Point;
use pktio::interface::{Backend, LinkConfig};
use pktio::memif::Role;
use store::Store;
use tokio::signal::unix::{SignalKind, signal};

use crate::ConfigArg;
use crate::config::{self, Config, EPC_SECTIONS, SECTIONS, de};
use crate::{gnb, metrics};

/// Options of `godwit run`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Network functions of this process, for example amf,smf. All of the core when not given; the units of a gNB, cu and
    /// du, run by their names only.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = nf_name)]
    nf: Vec<&'static str>,
    /// Write pcapng captures into this folder, of those of N2, N3, N4, N6, SBI, S11, F1-C, F1-U and uu that the functions have.
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,
    /// Log filter, instead of `log` in the configuration.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
}

/// Reads the name of an NF.
fn nf_name(text: &str) -> Result<&'static str, String> {
    let text = text.trim().to_lowercase();
    if let Some(name) = config::runnable().find(|name| *name == text) {
        return Ok(name);
    }
    match de::did_you_mean(&text, config::runnable()) {
        Some(candidate) => Err(format!("no such network function; did you mean `{candidate}`?")),
        None => {
            let all = config::runnable().collect::<Vec<_>>().join(", ");
            Err(format!("no such network function; there are {all}"))
        }
    }
}

/// Runs until SIGINT or SIGTERM.
///
/// # Errors
/// The configuration is wrong, or an NF could not start; then the others are stopped.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = config::load(&args.config.config)?;
    telemetry::log::init(args.log.as_deref().unwrap_or(&config.log))?;
    let names: Vec<&str> = if args.nf.is_empty() { SECTIONS.to_vec() } else { args.nf.clone() };
    optional_sections(&config, &names)
        .map_err(|problems| config::Problems { file: args.config.config.clone(), problems })?;
    // The limit and the capabilities apply to threads that start later, so both are set before the
    // first thread.
    open_files()?;
    let mut capabilities = needed_capabilities(&config, &names, args.pcap.is_some());
    let trust = Some(&config.sbi.trust).filter(|_| config.sbi.uses_trust());
    let own = [&config.run_dir, &config.store, &config.store_key].map(Some);
    let folders = own.into_iter().chain([trust, args.pcap.as_ref()]);
    let folder = folders.flatten().find_map(|path| folder_of_another(path));
    if let Some(folder) = folder.or_else(|| socket_of_another(links(&config, &names))) {
        let capability = Capability::DacOverride;
        if capability.held() {
            let (name, folder) = (capability.name(), folder.display());
            tracing::warn!(
                "{name} is kept, because {folder} belongs to another user: chown it to be rid of it"
            );
            capabilities.push(capability);
        }
    }
    net::privileges::keep_only(&capabilities)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let capture = args.pcap.as_ref().map(|folder| capture(folder, &config, &names)).transpose()?;
        let mut core = Core::new(&config, &names)?;
        core.taps = capture.as_ref().map(pktio::capture::Capture::taps);
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
        // A signal ends the process at any time, also while an NF starts or waits for the NRF.
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

/// Files and sockets that a core needs at least: a few hundred of its own, and one for each gNB and SBI connection.
pub(crate) const OPEN_FILES_MIN: u64 = 1024;

/// Raises the limit of open files as far as possible, and checks whether it is enough.
fn open_files() -> anyhow::Result<()> {
    let limit =
        net::limits::raise_open_files().context("cannot raise the limit of open files (`ulimit -n`)")?;
    if limit < OPEN_FILES_MIN {
        bail!(
            "`ulimit -n` is {limit}, but the core needs at least {OPEN_FILES_MIN} open files: raise the hard limit \
             (`ulimit -Hn`, LimitNOFILE= of systemd, nofile in /etc/security/limits.conf)"
        );
    }
    Ok(())
}

/// Capabilities that these network functions need while they run; all others are given up at the start.
/// The kept ones are needed again when an interface was deleted and has to be created again.
fn needed_capabilities(config: &Config, names: &[&str], capture: bool) -> Vec<Capability> {
    let runs = |name: &str| names.contains(&name);
    let uses = |backend| links(config, names).any(|link| link.backend == backend);
    let is_raw = |mode| matches!(mode, SctpMode::Auto | SctpMode::Raw);
    let raw_sctp = (runs("amf") && is_raw(config.amf.sctp)) || gnb::sctp(config, names).any(is_raw);
    let units = config::GNB_SECTIONS.iter().any(|unit| runs(unit));
    // SMF and gateways receive bursts of PFCP responses, and a unit of a gNB bursts of packets: the buffers of their sockets may
    // have to exceed the system's limit.
    let netlink = runs("upf") || runs("smf") || EPC_SECTIONS.iter().any(|name| runs(name)) || units;
    let packets = uses(Backend::AfXdp) || uses(Backend::Dpdk);
    let low_port = sbi_ports(config).iter().any(|(name, port)| runs(name) && *port < 1024)
        || config.metrics.is_some_and(|metrics| metrics.port() < 1024);
    let units_workers =
        gnb::units(config).into_iter().filter(|unit| runs(unit.name)).map(|unit| unit.workers);
    let upf_workers = runs("upf").then_some(&config.upf.workers);
    let realtime = units_workers.chain(upf_workers).any(|workers| workers.realtime);
    let needed = [
        (Capability::NetAdmin, netlink),
        (Capability::NetRaw, runs("upf") || raw_sctp || capture || packets),
        (Capability::NetBindService, low_port),
        (Capability::Bpf, uses(Backend::AfXdp)),
        (Capability::IpcLock, uses(Backend::AfXdp) || uses(Backend::Dpdk)),
        (Capability::SysNice, realtime),
        // To drive a device itself: physical addresses, registers, and files of huge pages.
        (Capability::SysAdmin, uses(Backend::Dpdk)),
        (Capability::SysRawio, uses(Backend::Dpdk)),
        (Capability::DacOverride, uses(Backend::Dpdk)),
    ];
    needed.into_iter().filter(|(_, needed)| *needed).map(|(capability, _)| capability).collect()
}

/// The links of the user planes of this process.
fn links<'a>(config: &'a Config, names: &[&str]) -> impl Iterator<Item = &'a LinkConfig> {
    let upf = names.contains(&"upf").then_some(&config.upf);
    let upf = upf.into_iter().flat_map(|upf| upf.interfaces.iter().map(|interface| &interface.link));
    upf.chain(gnb::links(config, names).into_iter().map(|(_, link)| link))
}

/// The socket of a memif, or its folder, to which only another user may write. A server makes its socket; a client
/// connects to that of another program.
fn socket_of_another<'a>(links: impl Iterator<Item = &'a LinkConfig>) -> Option<PathBuf> {
    let memifs = links.filter(|link| link.backend == Backend::Memif);
    let mut memifs = memifs.filter_map(|link| link.memif(1).ok());
    memifs.find_map(|memif| match memif.role {
        Role::Server => folder_of_another(&memif.socket),
        Role::Client => memif.socket.metadata().is_ok_and(|found| of_another(&found)).then_some(memif.socket),
    })
}

/// Whether a file or folder belongs to another user and not everybody may write to it.
pub(crate) fn of_another(found: &std::fs::Metadata) -> bool {
    let user = std::fs::metadata("/proc/self").map(|own| own.uid());
    user.is_ok_and(|user| found.uid() != user) && found.mode() & 0o002 == 0
}

/// The folder in which `path` is or will be, if it belongs to another user and not everybody may write
/// to it. Root then needs a capability to write there.
pub(crate) fn folder_of_another(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let (folder, found) = path.ancestors().find_map(|folder| {
        let found = folder.metadata().ok().filter(std::fs::Metadata::is_dir)?;
        Some((folder.to_owned(), found))
    })?;
    of_another(&found).then_some(folder)
}

/// Ports of the service-based interfaces, with the names of their network functions.
fn sbi_ports(config: &Config) -> [(&'static str, u16); 7] {
    [
        ("nrf", config.nrf.sbi.port()),
        ("amf", config.amf.sbi.port()),
        ("smf", config.smf.sbi.port()),
        ("ausf", config.ausf.sbi.port()),
        ("udm", config.udm.sbi.port()),
        ("udr", config.udr.sbi.port()),
        ("pcf", config.pcf.sbi.port()),
    ]
}

fn capture(folder: &Path, config: &Config, names: &[&str]) -> anyhow::Result<pktio::capture::Capture> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(pktio::capture::Capture::start(folder, capture_points(config, names))?)
}

/// The reference points of the functions `names`. Functions of the core see all those of the core, as these share a machine as a rule.
fn capture_points(config: &Config, names: &[&str]) -> Vec<Point> {
    let mut points = gnb::capture_points(config, names);
    if EPC_SECTIONS.iter().any(|name| names.contains(name)) {
        points.extend(config.pgw.as_ref().map(|pgw| Point::s5([pgw.gtpc])));
        points.push(Point::s11());
        if !names.iter().any(|name| SECTIONS.contains(name)) {
            // Without the UPF it sees the control of the UPF, and router solicitations.
            points.extend([Point::n3(), Point::n4()]);
        }
    }
    if !names.iter().any(|name| SECTIONS.contains(name)) {
        return points;
    }
    let interfaces = upf::interfaces::Interfaces::of(&config.upf);
    let networks = interfaces.iter().filter(|interface| interface.dnn.is_some());
    let devices: Vec<&str> = networks.map(|network| network.config.link.device()).collect();
    let mut ports: Vec<u16> = sbi_ports(config).iter().map(|(_, port)| *port).collect();
    ports.sort_unstable();
    ports.dedup();
    // Those that a CU in this process has as well.
    points.retain(|point| !["n2", "n3"].contains(&point.name.as_str()));
    let n2 = Point::n2(gnb::udp_port(config.amf.sctp));
    points.extend([n2, Point::n3(), Point::n4(), Point::n6(devices), Point::sbi(ports)]);
    points
}

/// The NFs of this process, and what they share.
struct Core {
    env: nf::Env,
    running: Vec<nf::Running>,
    /// The user plane with its administration socket. The UPF does not serve the socket itself, as it
    /// has no SBI.
    upf: Option<(upf::Upf, oam::OamServer)>,
    /// For the user plane's ports that a capture does not see otherwise.
    taps: Option<pktio::capture::Taps>,
    /// Gateways of 4G with their administration sockets, as they have no SBI either.
    gateways: Vec<(epc::Spgw, oam::OamServer)>,
    /// Units of a gNB.
    units: Vec<gnb::Unit>,
    store: Option<Arc<dyn Store>>,
    metrics: Option<MetricsServer>,
}

impl Core {
    fn new(config: &Config, names: &[&str]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&config.run_dir)
            .with_context(|| format!("cannot create run_dir {}", config.run_dir.display()))?;
        // A loopback address is one of this machine, whichever process the NRF runs in.
        let nrf_is_local = names.contains(&"nrf") || config.nrf.sbi.ip().is_loopback();
        let env = nf::Env::new(&config.run_dir, Some(config.sbi.tls.api_root(config.nrf.sbi)));
        // Units of a gNB and the gateway know neither the NRF nor keys of the service-based interface.
        let env = match names.iter().all(|name| config::is_optional(name)) {
            true => env,
            false => env.secured(&config.sbi, nrf_is_local).context("sbi.trust")?,
        };
        let (running, units) = (Vec::new(), Vec::new());
        Ok(Core {
            env,
            running,
            upf: None,
            gateways: Vec::new(),
            taps: None,
            units,
            store: None,
            metrics: None,
        })
    }

    async fn start_all(&mut self, config: &Config, names: &[&str]) -> anyhow::Result<()> {
        for name in config::runnable().filter(|name| names.contains(name)) {
            self.start(config, name).await.with_context(|| format!("{name} could not start"))?;
        }
        Ok(())
    }

    async fn start(&mut self, config: &Config, name: &str) -> anyhow::Result<()> {
        if let Some(node) = epc::Node::named(name) {
            return self.start_gateway(config, node).await;
        }
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
                let upf = upf::start_captured(config.upf.clone(), self.taps.clone()).await?;
                let path = oam::socket_path(&config.run_dir, "upf");
                let served = upf_oam(upf.handle()).serve(&path);
                let server = served.with_context(|| format!("cannot serve {}", path.display()))?;
                self.upf = Some((upf, server));
                return Ok(());
            }
            unit @ ("cu" | "du") => {
                self.units.push(gnb::Unit::start(unit, config, self.taps.as_ref()).await?);
                return Ok(());
            }
            "smf" => smf::start(config.smf.clone(), env).await?,
            "amf" => amf::start(config.amf.clone(), env).await?,
            other => bail!("no such network function: {other}"),
        };
        self.running.push(running);
        Ok(())
    }

    async fn start_gateway(&mut self, config: &Config, node: epc::Node) -> anyhow::Result<()> {
        let name = node.name();
        let section = config.gateway(node).cloned();
        let section = section.with_context(|| format!("the configuration has no section `{name}`"))?;
        let restarts = config.run_dir.join(format!("{name}.restarts"));
        let gateway = epc::Spgw::start(node, section, &restarts).await?;
        let path = oam::socket_path(&config.run_dir, name);
        let served = gateway.oam().serve(&path);
        let server = served.with_context(|| format!("cannot serve {}", path.display()))?;
        self.gateways.push((gateway, server));
        Ok(())
    }

    fn store(&mut self, config: &Config) -> anyhow::Result<Arc<dyn Store>> {
        if let Some(store) = &self.store {
            return Ok(store.clone());
        }
        let store = store::Sqlite::open(&config.store, &store::KeySource::find(&config.store_key))?;
        store.check()?;
        let store: Arc<dyn Store> = Arc::new(store);
        self.store = Some(store.clone());
        Ok(store)
    }

    /// Waits until every NF is registered at the NRF.
    async fn registered(&self) {
        for running in &self.running {
            if *running.nf_type() != sbi::model::nrf::NfType::Nrf {
                running.registered().await;
            }
        }
    }

    /// Waits until an NF has failed that cannot go on. The service manager then starts the process
    /// again, and its peers handle that as a restart.
    async fn failed(&mut self) -> anyhow::Error {
        match &mut self.upf {
            Some((upf, _)) => upf.failed().await,
            None => std::future::pending().await,
        }
        anyhow::anyhow!("the user plane has failed")
    }

    /// Stops the NFs in the reverse order of starting, so that each can still deregister at its peers.
    async fn stop(mut self) {
        self.metrics = None;
        // A CU releases its UEs at the AMF.
        while let Some(unit) = self.units.pop() {
            unit.stop().await;
        }
        while let Some(running) = self.running.pop() {
            running.stop().await;
        }
        self.gateways.clear();
        if let Some((upf, server)) = self.upf.take() {
            drop(server);
            upf.stop().await;
        }
        self.env.shutdown.trigger();
    }
}

/// Checks that what is run by its name only has a section.
fn optional_sections(config: &Config, names: &[&str]) -> Result<(), Vec<config::Problem>> {
    let missing = |name: &&&str| match **name {
        name if let Some(node) = epc::Node::named(name) => config.gateway(node).is_none(),
        "cu" => config.cu.is_none(),
        "du" => config.du.is_none(),
        _ => false,
    };
    let problem = |name: &&str| {
        let is_gateway = EPC_SECTIONS.contains(name);
        let explained = match is_gateway {
            true => "docs/epc.md has an example",
            false => "the godwit.yaml of the sources has an example, docs/split-ran.md explains it",
        };
        config::Problem::at(1, name, format!("is missing: {explained}"))
    };
    let problems: Vec<config::Problem> = names.iter().filter(missing).map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The administration routes of `godwit upf …`.
fn upf_oam(upf: upf::Handle) -> nf::Oam {
    let (stats, graph, sessions, status) = (upf.clone(), upf.clone(), upf.clone(), upf);
    nf::Oam::new()
        .get("/stats", move |_| {
            let stats = stats.stats();
            async move { Ok(stats) }
        })
        .get("/graph", move |_| {
            let graph = graph.graph();
            async move { Ok(graph) }
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
    fn captures_are_of_the_points_that_there_are() {
        let shipped = include_str!("../../../godwit.yaml");
        let with = |sections: &str| config::parse(&format!("{shipped}\n{sections}")).unwrap();
        let points = |config: &Config, names: &[&str]| -> Vec<String> {
            capture_points(config, names).into_iter().map(|point| point.name).collect()
        };
        let du = "du:\n  cell: 4097\n  f1c: {local: 127.0.0.22, cu: \"127.0.0.21:38472\", sctp: \"udp:9899\"}\n  \
                  f1u: {gtpu: \"127.0.0.22:2152\"}\n  uu: {gtpu: \"127.0.0.22:38321\"}\n";
        let cu = "cu:\n  gnb_id: 1\n  tac: 1\n  f1c: 127.0.0.21:38472\n  n2: {address: 127.0.0.21, amf: [\"127.0.0.5:38412\"]}\n  \
                  f1u: [{gtpu: \"127.0.0.21:2152\"}]\n";
        let n3 = "  n3: {gtpu: \"127.0.0.23:2152\"}\n";
        let config = with(&format!("{du}{cu}{n3}"));
        assert_eq!(points(&config, &["du"]), ["f1c", "f1u", "uu"]);
        assert_eq!(points(&config, &["cu"]), ["f1c", "f1u", "n2", "n3"]);
        assert_eq!(
            points(&with(&format!("{du}{cu}")), &["cu"]),
            ["f1c", "f1u", "n2"],
            "N3 is on F1-U's address"
        );
        assert_eq!(points(&config, SECTIONS), ["n2", "n3", "n4", "n6", "sbi"]);
        assert_eq!(
            points(&config, &["cu", "du", "upf"]),
            ["f1c", "f1u", "uu", "n2", "n3", "n4", "n6", "sbi"]
        );
        assert_eq!(points(&config, &["spgw"]), ["s11", "n3", "n4"]);
        assert_eq!(points(&config, &["upf", "spgw"]), ["s11", "n2", "n3", "n4", "n6", "sbi"]);
        let f1c = &capture_points(&config, &["du"])[0];
        assert!(f1c.any_of.contains(&pktio::capture::Selector::Udp(9899)), "{f1c:?}");
    }

    #[test]
    fn each_network_function_keeps_only_what_it_needs() {
        let shipped = include_str!("../../../godwit.yaml");
        let config = |from: &str, to: &str| {
            assert!(shipped.contains(from));
            config::parse(&shipped.replacen(from, to, 1)).unwrap()
        };
        let plain = config("log: info", "log: info");
        let kept = |config: &Config, names: &[&str], capture| -> Vec<&str> {
            needed_capabilities(config, names, capture).into_iter().map(Capability::name).collect()
        };
        assert_eq!(kept(&plain, SECTIONS, false), ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
        assert_eq!(kept(&plain, &["udm", "udr", "nrf"], false), Vec::<&str>::new());
        assert_eq!(kept(&plain, &["nrf"], true), ["CAP_NET_RAW"]);
        assert_eq!(kept(&plain, &["amf"], false), ["CAP_NET_RAW"]);
        assert_eq!(kept(&config("sctp: auto", "sctp: udp"), &["amf"], false), Vec::<&str>::new());
        let low = config("sbi: 127.0.0.12:7777", "sbi: 127.0.0.12:443");
        assert_eq!(kept(&low, &["udm"], false), ["CAP_NET_BIND_SERVICE"]);
        assert_eq!(kept(&low, &["udr"], false), Vec::<&str>::new());
        const AF_XDP: &str = "{name: n3, role: n3, gtpu: \"127.0.0.7:2152\", backend: af_xdp, device: eth0}";
        let af_xdp = config("  gtpu: 127.0.0.7:2152", &format!("  interfaces: [{AF_XDP}]"));
        let with_packets = ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_IPC_LOCK"];
        assert_eq!(kept(&af_xdp, &["upf"], false), with_packets);
        assert_eq!(kept(&af_xdp, &["udm"], false), Vec::<&str>::new());
        const MEMIF: &str = "{name: n3, role: n3, gtpu: \"10.20.0.7:2152\", backend: memif, \
                             device: \"m0,role=server,socket=/run/godwit/n3.sock\", addresses: [10.20.0.7/24]}";
        let memif = config("  gtpu: 127.0.0.7:2152", &format!("  interfaces: [{MEMIF}]"));
        assert_eq!(kept(&memif, &["upf"], false), ["CAP_NET_ADMIN", "CAP_NET_RAW"], "memory needs none");
        let cu = |sctp: &str| {
            let section = format!(
                "cu: {{sctp: {sctp}, f1c: \"127.0.0.21:38472\", f1u: [{{gtpu: \"127.0.0.21:2152\"}}], "
            );
            let section = section + "n2: {address: 127.0.0.21, amf: [\"127.0.0.5:38412\"]}}";
            config("ausf:\n", &format!("{section}\nausf:\n"))
        };
        assert_eq!(kept(&cu("auto"), &["cu"], false), ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
        assert_eq!(kept(&cu("udp"), &["cu"], false), ["CAP_NET_ADMIN"]);
        assert!(optional_sections(&cu("auto"), &["cu"]).is_ok());
        let missing = optional_sections(&plain, &["cu"]).unwrap_err();
        assert!(missing[0].path == "cu" && missing[0].message.contains("godwit.yaml"), "{missing:?}");
    }

    #[test]
    fn sockets_of_other_users_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let socket_of_another = |role: &str, path: &Path| {
            let device = format!("m0,role={role},socket={}", path.display());
            let link: LinkConfig = serde_json::from_value(
                serde_json::json!({"gtpu": "10.20.0.7:2152", "backend": "memif", "device": device}),
            )
            .unwrap();
            socket_of_another(std::iter::once(&link))
        };
        let socket = folder.path().join("n3.sock");
        assert_eq!(socket_of_another("server", &socket), None);
        assert_eq!(socket_of_another("client", &socket), None, "not there yet");
        std::fs::write(&socket, "").unwrap();
        // Tests run as root, which may give files away.
        std::os::unix::fs::chown(&socket, Some(65534), None).unwrap();
        assert_eq!(socket_of_another("client", &socket), Some(socket.clone()));
        std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
        assert_eq!(socket_of_another("server", &socket), Some(folder.path().to_owned()));
    }

    #[test]
    fn names_of_nfs_are_read_with_a_suggestion() {
        assert_eq!(nf_name("AMF"), Ok("amf"));
        assert_eq!((nf_name("cu"), nf_name("DU")), (Ok("cu"), Ok("du")));
        assert!(nf_name("amff").unwrap_err().contains("did you mean `amf`?"));
        assert!(nf_name("x").unwrap_err().contains("there are"));
    }
}
