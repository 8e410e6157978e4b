//! A whole network on one machine: namespaces, links and processes.
//!
//! ```text
//!   UE namespaces          ran                      core                       dn
//!   (each with a TUN) ──  gNBs  ── 10.200.0.0/24 ── all NFs + UPF ── 10.201.0.0/24 ── HTTP server
//!                         .2 n2    N2 and N3     .1 n2           .1 n6            .2 n6
//! ```
//! With a gNB in parts ([`Options::split`]) CU and DU are further processes, each in a namespace of its own (`split.rs`). With
//! edge sites ([`Options::edges`]) switches are between all, and further anchors are behind them (`edge.rs`).
//!
//! Used by `godwit demo`, the experiments and the end-to-end tests. The NFs and the simulator are real `godwit`
//! processes, configured by a generated `godwit.yaml`; they do not know that they run in a lab.
//!
//! A lab leaves nothing behind. Namespaces are anonymous, and links live in them. Child processes die
//! with this process even if it is killed. Dropping [`Lab`] removes the private folder (configuration,
//! store, sockets, logs). Only after `kill -9` that folder stays, as `godwit-lab-…` in the folder for
//! temporary files.
//!
//! Read first: [`Lab::start`]; then `network.rs` (topology), `settings.rs` (the generated configuration),
//! `simulator.rs` (gNBs and UEs), `server.rs` (the data network's HTTP server),
//! `open_vswitch.rs`, `peer.rs` (a program of another make, as a gateway), `moves.rs` (UEs that are moved to edge sites), `service.rs` (an application
//! that moves with them), `traffic.rs` and `stream.rs` (numbered packets, and TCP).
#![forbid(unsafe_code)]

pub mod edge;
pub mod moves;
mod network;
pub mod open_vswitch;
pub mod peer;
mod server;
pub mod service;
mod settings;
mod simulator;
mod split;
pub mod stream;
pub mod traffic;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::process::{Child, Command};
use net::task::Boxed;
use net::time::{self, Duration};
use serde_json::Value;

use network::Shape;
pub use network::{CORE_N2, CORE_N6, CORE_N6_IPV6, DN, DN_IPV6, HTTP_PORT, RAN_N2};
use peer::Peer;
pub use settings::{UPF_PFCP, default_subscriber};
pub use simulator::{Simulator, SimulatorEvent, SimulatorOptions};
pub use split::Model;

/// Every NF, in the order in which they start.
pub const NFS: [&str; 8] = ["nrf", "udr", "udm", "ausf", "pcf", "upf", "smf", "amf"];

/// The same of a core of 4G, and of one whose S-GW is apart.
const EPC: [&str; 2] = ["upf", "spgw"];
const PGW: [&str; 2] = ["upf", "pgw"];

/// How long the core may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Interval between checks whether the core is ready.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a process may take to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Last lines of a log that are shown when its process fails.
const LOG_TAIL: usize = 15;

/// How to build the lab.
pub struct Options {
    /// The `godwit` program; see [`find_godwit`].
    pub godwit: PathBuf,
    /// Subscribers to provision; see [`default_subscriber`].
    pub subscribers: Vec<store::Subscriber>,
    /// Run each NF in a process of its own instead of one process for all.
    pub processes: bool,
    /// A gNB in parts instead of gNBs in one piece: CU and DU in processes and namespaces of their own.
    pub split: Option<Model>,
    /// Edge sites, instead of a gNB in parts; see [`edge::SITES`].
    pub edges: usize,
    /// With edge sites of 5G: all NFs but the UPF run beside the gNBs, as the MME does in 4G, so that N4 passes the switch on N3. Each
    /// NF needs a process of its own.
    pub n4_at_switch: bool,
    /// With edge sites: UEs that move keep their addresses. In 4G these are else translated at the switches.
    pub keeps_addresses: bool,
    /// With edge sites of 4G: Open vSwitch in the place of both switches, which translates no addresses.
    pub open_vswitch: bool,
    /// The workers of UPFs and switches run before all that has no real-time priority.
    pub realtime: bool,
    /// A core of 4G: UPF and S/P-GW, and nothing else.
    pub epc: bool,
    /// With edge sites of 4G: S-GW and P-GW are apart. The S-GW is the first anchor, at [`edge::SGW`] with a UPF of its own; the P-GW
    /// is in the core's namespace. Edge sites have S-GWs only, and UEs their addresses.
    pub sgw: bool,
    /// With [`Options::epc`]: no core. The caller starts a gateway of another make in the core's namespace, with the addresses of
    /// ours and [`Lab::UE_POOL`]; with edge sites also one at each, as [`Lab::start_gateways`] does.
    pub foreign_gateway: bool,
    /// Makes certificates with `godwit certs` before the core starts.
    pub certificates: bool,
    /// Folder for the core's captures of its reference points.
    pub pcap: Option<PathBuf>,
    /// Log filter of the core's processes.
    pub log: String,
    /// Changes the generated configuration as the last step.
    pub edit: Box<dyn FnOnce(&mut Value) + Send>,
}

impl Options {
    /// Options with `ues` default subscribers; all else has its default.
    ///
    /// # Errors
    /// No `godwit` program was found.
    pub fn new(ues: u32) -> anyhow::Result<Options> {
        Ok(Options {
            godwit: find_godwit()?,
            subscribers: (0..ues).map(default_subscriber).collect(),
            processes: false,
            split: None,
            edges: 0,
            n4_at_switch: false,
            keeps_addresses: false,
            open_vswitch: false,
            realtime: false,
            epc: false,
            sgw: false,
            foreign_gateway: false,
            certificates: false,
            pcap: None,
            log: "info".to_owned(),
            edit: Box::new(|_| {}),
        })
    }
}

/// A running network. Dropping it removes everything.
pub struct Lab {
    godwit: PathBuf,
    core: NetNs,
    ran: NetNs,
    dn: NetNs,
    /// Those of CU and DU, with a gNB in parts.
    units: Option<[NetNs; 2]>,
    /// Those of edge sites.
    edge: Option<edge::Namespaces>,
    kind: edge::Kind,
    open_vswitch: Option<open_vswitch::OpenVswitch>,
    /// Fields are dropped in this order: processes first, then what they use.
    nfs: Vec<NfProcess>,
    server: server::Server,
    /// Without that core.
    foreign_gateway: bool,
    /// Of the core's processes.
    log_filter: String,
    folder: tempfile::TempDir,
}

/// One process of the core.
struct NfProcess {
    name: &'static str,
    child: Child,
}

impl Lab {
    /// Addresses that the data network routes to the core.
    pub const UE_POOL: &str = network::UE_POOL;

    /// Builds the topology, provisions the subscribers, starts the core and waits until it is ready.
    ///
    /// # Errors
    /// Something could not be set up. If a process ended, the error has the last lines of its log.
    pub fn start(options: Options) -> Boxed<'static, anyhow::Result<Lab>> {
        Box::pin(async move {
            let folder = tempfile::Builder::new()
                .prefix("godwit-lab-")
                .tempdir()
                .context("make a temporary folder")?;
            let shape = match (options.split, options.edges) {
                (None, 0) => Shape::Plain,
                (Some(_), 0) => Shape::Split,
                (None, sites) => Shape::Edge { sites, sgw: options.sgw },
                (Some(_), _) => bail!("an edge site and a gNB in parts do not go together in a lab"),
            };
            let network::Namespaces { core, units, ran, dn, edge } = network::build(shape).await?;
            let server = server::Server::start(&dn).context("start the data network's HTTP server")?;

            let mut configuration = settings::configuration(folder.path(), &options.log);
            if options.epc {
                settings::add_gateway(&mut configuration, if options.sgw { "pgw" } else { "spgw" });
            }
            if options.n4_at_switch {
                settings::part_core(&mut configuration);
            }
            if let Some(model) = options.split {
                split::add(&mut configuration, model, folder.path());
            }
            configuration["upf"]["workers"] = settings::workers(options.realtime);
            (options.edit)(&mut configuration);
            // JSON is also YAML.
            let text = serde_json::to_string_pretty(&configuration).context("write the configuration")?;
            std::fs::write(folder.path().join("godwit.yaml"), text).context("write the configuration")?;
            settings::provision(folder.path(), options.subscribers).await?;

            let kind = edge::Kind {
                epc: options.epc,
                sgw: options.sgw,
                n4_at_switch: options.n4_at_switch,
                keeps_addresses: options.keeps_addresses,
                open_vswitch: options.open_vswitch,
                realtime: options.realtime,
            };
            for site in edge::SITES.iter().take(options.edges) {
                let text = edge::configuration(&configuration, site, folder.path(), kind).to_string();
                std::fs::write(site.file(folder.path()), text).context("write an edge's configuration")?;
            }
            if options.sgw {
                let file = folder.path().join("sgw.yaml");
                let text = edge::first_sgw(&configuration, folder.path()).to_string();
                std::fs::write(file, text).context("write the S-GW's configuration")?;
            }
            let mut lab = Lab {
                godwit: options.godwit,
                core,
                ran,
                dn,
                units,
                edge,
                kind,
                open_vswitch: None,
                nfs: Vec::new(),
                server,
                foreign_gateway: options.foreign_gateway,
                log_filter: options.log,
                folder,
            };
            if options.certificates {
                let made = lab.godwit(&["certs"]).output(START_LIMIT).await.context("run `godwit certs`")?;
                anyhow::ensure!(
                    made.status.success(),
                    "godwit certs: {}",
                    String::from_utf8_lossy(&made.stderr)
                );
            }
            if options.foreign_gateway {
                // The caller starts it.
            } else if options.processes {
                for (index, name) in lab.functions().iter().copied().enumerate() {
                    // One process captures for all, because they share the namespace.
                    let pcap = options.pcap.as_deref().filter(|_| index == 0);
                    lab.start_nf(name, &["--nf", name], pcap)?;
                    // It makes the key that the others verify tokens with.
                    if name == "nrf" {
                        lab.nf_ready(name).await?;
                    }
                }
            } else {
                lab.start_nf("core", lab.arguments(), options.pcap.as_deref())?;
            }
            if options.sgw {
                let file = lab.folder().join("sgw.yaml");
                let command = Command::new(&lab.godwit).args(["run", "--nf", "upf,sgw", "-c"]).arg(file);
                lab.start_process(edge::SGW_PROCESS, command)?;
                lab.nf_ready(edge::SGW_PROCESS).await?;
            }
            // Before there is a switch, the SMF does not reach the UPF.
            if !options.n4_at_switch {
                lab.ready().await?;
            }
            if lab.units.is_some() {
                for name in ["cu", "du"] {
                    // Captures of different namespaces are different files.
                    let pcap = options.pcap.as_ref().map(|folder| folder.join(name));
                    lab.start_nf(name, &["--nf", name], pcap.as_deref())?;
                    lab.nf_ready(name).await?;
                }
            }
            Ok(lab)
        })
    }

    /// The namespace of the NFs and the UPF.
    pub fn core(&self) -> &NetNs {
        &self.core
    }

    /// The namespace of the gNBs, or of the UEs of a gNB in parts.
    pub fn ran(&self) -> &NetNs {
        &self.ran
    }

    /// The namespace of an edge site.
    ///
    /// # Panics
    /// The lab does not have it.
    pub fn site(&self, site: &edge::Site) -> &NetNs {
        self.spaces(site).0
    }

    /// The edge sites.
    pub fn sites(&self) -> impl Iterator<Item = &'static edge::Site> {
        self.edge.iter().flat_map(edge::Namespaces::sites).map(|(site, _)| site)
    }

    /// The namespace of the host for applications at an edge site.
    ///
    /// # Panics
    /// The lab does not have it.
    pub fn application_host(&self, site: &edge::Site) -> &NetNs {
        self.spaces(site).1
    }

    fn spaces(&self, site: &edge::Site) -> (&NetNs, &NetNs) {
        let sites = self.edge.iter().flat_map(|edge| edge.sites().zip(&edge.hosts));
        let mut of_site = sites.filter(|((other, _), _)| other.host == site.host);
        of_site.next().map(|((_, anchor), host)| (anchor, host)).expect("a site of the lab")
    }

    /// The data network.
    pub fn dn(&self) -> &NetNs {
        &self.dn
    }

    /// The namespace of a process: with a gNB in parts, `cu` and `du` have one of their own.
    pub fn namespace_of(&self, process: &str) -> &NetNs {
        match (&self.units, &self.edge, process) {
            (Some([cu, _]), _, "cu") => cu,
            (Some([_, du]), _, "du") => du,
            (_, Some(_), name) if self.kind.n4_at_switch && name != "upf" && NFS.contains(&name) => &self.ran,
            (_, Some(edge), edge::PROCESS) => &edge.sites[0],
            (_, Some(edge), edge::SGW_PROCESS) => edge.sgw.as_ref().unwrap_or(&self.core),
            (_, Some(edge), name) if edge::SWITCHES.contains(&name) => &edge.switch,
            (_, Some(edge), name) => {
                edge.sites().find(|(site, _)| site.agent == name).map_or(&self.core, |(_, space)| space)
            }
            _ => &self.core,
        }
    }

    /// The private folder: `godwit.yaml`, `godwit.db`, `run/` with the OAM sockets, `<process>.log`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The generated configuration.
    pub fn configuration(&self) -> PathBuf {
        self.folder.path().join("godwit.yaml")
    }

    /// URL of `bytes` octets in the data network.
    pub fn url(&self, bytes: u64) -> String {
        format!("http://{DN}:{HTTP_PORT}/bytes/{bytes}")
    }

    /// As [`Lab::url`], over IPv6.
    pub fn url_ipv6(&self, bytes: u64) -> String {
        format!("http://[{DN_IPV6}]:{HTTP_PORT}/bytes/{bytes}")
    }

    /// Requests the data network's HTTP server has answered.
    pub fn requests_served(&self) -> u64 {
        self.server.served()
    }

    /// The gateway whose users are moved: `spgw`, or `sgw` with [`Options::sgw`].
    pub fn gateway(&self) -> &'static str {
        self.kind.gateway()
    }

    /// The first anchor's address.
    pub fn first_anchor(&self) -> Ipv4Addr {
        if self.kind.sgw { edge::SGW } else { CORE_N2 }
    }

    /// The first anchor's namespace.
    pub fn first_anchor_space(&self) -> &NetNs {
        let sgw = self.edge.as_ref().and_then(|edge| edge.sgw.as_ref());
        sgw.unwrap_or(&self.core)
    }

    /// Whether it is a network of 4G.
    pub fn is_epc(&self) -> bool {
        self.kind.epc
    }

    /// A command that runs a program in a namespace: [`Lab::core`] and the like, or a UE's.
    pub fn command(&self, namespace: &NetNs, program: &str) -> Command {
        Command::new(program).namespace(namespace)
    }

    /// A command that runs `godwit` with these arguments in the core's namespace, with its
    /// configuration appended (`-c`).
    pub fn godwit(&self, arguments: &[&str]) -> Command {
        Command::new(&self.godwit).args(arguments).arg("-c").arg(self.configuration()).namespace(&self.core)
    }

    /// Asks an NF of the anchor at an edge site over its OAM socket, as [`Lab::oam`].
    ///
    /// # Errors
    /// It does not run, or refused the request.
    pub async fn edge_oam(
        &self,
        site: &edge::Site,
        nf: &str,
        route: &str,
    ) -> Result<Value, nf::oam::CallError> {
        let socket = nf::oam::socket_path(&site.run_dir(self.folder.path()), nf);
        nf::oam::call(&socket, "GET", route, None).await
    }

    /// What a switch of the edge site (`n3`, `n6`) says about itself: ports, entries, counters.
    ///
    /// # Errors
    /// It does not run.
    pub async fn switch_status(&self, name: &str) -> Result<Value, nf::oam::CallError> {
        let run_dir = self.folder.path().join(format!("run-switch-{name}"));
        nf::oam::call(&nf::oam::socket_path(&run_dir, "switch"), "GET", "/status", None).await
    }

    /// Asks the controller of the edge site by its API, with curl.
    ///
    /// # Errors
    /// There is no controller, or it refused; with what it said.
    pub async fn controller(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        self.at_switches(edge::REST, method, path, body).await
    }

    /// Asks the orchestrator of the edge site by its API, with curl.
    ///
    /// # Errors
    /// It does not run, or refused the request.
    pub async fn orchestrator(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        self.at_switches(edge::MOVES, method, path, body).await
    }

    async fn at_switches(
        &self,
        server: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let url = format!("http://{server}{path}");
        let mut curl = Command::new("curl").args(["-sS", "--noproxy", "*", "--fail-with-body", "-X", method]);
        if let Some(body) = body {
            curl = curl.args(["-H", "Content-Type: application/json", "-d"]).arg(body.to_string());
        }
        let said = curl.arg(url).namespace(self.namespace_of("controller")).output(START_LIMIT).await?;
        let (answer, errors) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        anyhow::ensure!(said.status.success(), "{method} {path}: {answer}{errors}");
        if answer.trim().is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&answer)?) }
    }

    /// Asks an NF over its OAM socket.
    ///
    /// # Errors
    /// The NF does not run, or refused the request.
    pub async fn oam(&self, nf: &str, method: &str, route: &str) -> Result<Value, nf::oam::CallError> {
        let run_dir =
            self.folder.path().join(if nf == edge::SGW_PROCESS { edge::SGW_RUN_DIR } else { "run" });
        nf::oam::call(&nf::oam::socket_path(&run_dir, nf), method, route, None).await
    }

    /// Starts a program of another make as the gateway in the center and at each edge site, in this order. For [`Options::foreign_gateway`].
    ///
    /// # Errors
    /// It does not start.
    pub(crate) async fn start_gateways(&self, program: &Path) -> anyhow::Result<Vec<Peer>> {
        let mut gateways = vec![Peer::gateway(program, &self.core, CORE_N2, Lab::UE_POOL).await?];
        for site in self.sites() {
            gateways.push(Peer::gateway(program, self.site(site), site.n3, site.pool).await?);
        }
        Ok(gateways)
    }

    fn start_part(
        &mut self,
        name: &'static str,
        arguments: [&'static str; 3],
        configuration: &Value,
    ) -> anyhow::Result<()> {
        let file = self.folder.path().join(format!("{name}.yaml"));
        std::fs::write(&file, configuration.to_string()).context("write a part's configuration")?;
        self.start_process(name, Command::new(&self.godwit).args(arguments).arg("-c").arg(file))
    }

    /// Starts controller, switches and orchestrator of an edge whose UEs can be moved. The orchestrator starts the anchor of a site, when somebody is to
    /// be moved there. With [`Options::foreign_gateway`] the caller has started these anchors, and only agents are started. Before the
    /// switches run, base stations do not reach the core.
    ///
    /// # Errors
    /// There is no edge site, or a part does not start.
    pub async fn start_moves(&mut self) -> anyhow::Result<()> {
        self.start_moves_with(|_| ()).await
    }

    /// The same, with changes to the controller's configuration.
    ///
    /// # Errors
    /// As [`Lab::start_moves`].
    pub async fn start_moves_with(&mut self, edit: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
        let edge = self.edge.as_ref().context("the lab has no edge site")?;
        let (folder, log) = (self.folder.path(), &self.log_filter);
        let mut parts = edge::parts(&self.core, edge, folder, log, self.kind)?;
        edit(&mut parts[0].configuration["mec"]["controller"]);
        let is_foreign = self.foreign_gateway;
        let orchestrator = edge::orchestrator(edge, folder, log, self.kind, is_foreign);
        let agents: Vec<&edge::Site> = edge.sites().map(|(site, _)| site).filter(|_| is_foreign).collect();
        if self.kind.open_vswitch {
            self.open_vswitch = Some(edge::open_vswitch(edge, &self.core, &self.ran).await?);
        }
        for edge::Part { name, arguments, configuration } in parts.into_iter().chain([orchestrator]) {
            self.start_part(name, arguments, &configuration)?;
        }
        for site in agents {
            let command = Command::new(&self.godwit).args(["mec", "agent", "run", "-c"]);
            self.start_process(site.agent, command.arg(site.file(self.folder.path())))?;
        }
        self.ready().await
    }

    /// Starts a part of the edge again that has ended.
    ///
    /// # Errors
    /// The process could not be started.
    pub fn restart_part(&mut self, name: &'static str) -> anyhow::Result<()> {
        let kind = name.split('-').next().unwrap_or(name);
        let file = self.folder.path().join(format!("{name}.yaml"));
        self.start_process(name, Command::new(&self.godwit).args(["mec", kind, "run", "-c"]).arg(file))
    }

    /// Starts controller, switches and the anchor at the edge, and returns the CP function that copies sessions to it. Before that
    /// the gNBs do not reach the core.
    ///
    /// # Errors
    /// There is no edge site, or a part does not start.
    pub fn start_edge(&mut self) -> Boxed<'_, anyhow::Result<edge::Clones>> {
        Box::pin(async move {
            let edge = self.edge.as_ref().context("the lab has no edge site")?;
            let namespace = edge.sites[0].clone();
            for edge::Part { name, arguments, configuration } in
                edge::parts(&self.core, edge, self.folder.path(), &self.log_filter, self.kind)?
            {
                self.start_part(name, arguments, &configuration)?;
            }
            let site = &edge::SITES[0];
            let configuration = site.file(self.folder.path());
            let command = Command::new(&self.godwit).args(["run", "--nf", "upf", "-c"]).arg(configuration);
            self.start_process(edge::PROCESS, command)?;
            let deadline = time::now() + START_LIMIT;
            while let Err(error) = self.edge_oam(site, "upf", "/status").await {
                self.check()?;
                if time::now() > deadline {
                    bail!("the edge anchor is not ready: {error}\n{}", self.log_tail(edge::PROCESS));
                }
                time::sleep(LOOK_INTERVAL).await;
            }
            edge::Clones::associate(&namespace).await
        })
    }

    /// Starts gNBs and UEs.
    ///
    /// # Errors
    /// The process could not be started.
    pub fn simulate(&self, options: &SimulatorOptions) -> anyhow::Result<Simulator> {
        let access = match (self.kind.epc, self.units.is_some()) {
            (true, _) => simulator::Access::Lte(self.first_anchor()),
            (false, true) => simulator::Access::Parts,
            (false, false) => {
                let amf = if self.kind.n4_at_switch { edge::CONTROL } else { CORE_N2 };
                simulator::Access::Gnbs(amf.into())
            }
        };
        Simulator::start(&self.godwit, &self.ran, self.folder.path(), options, access)
    }

    /// Process identifiers of the core, by name (`core`, or each NF's).
    pub fn processes(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.nfs.iter().map(|nf| (nf.name, nf.child.id()))
    }

    /// Kills a process of the core like `kill -9`, and waits until it has ended.
    ///
    /// # Errors
    /// No process has that name.
    pub async fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let index =
            self.nfs.iter().position(|nf| nf.name == name).with_context(|| format!("no process {name}"))?;
        let mut nf = self.nfs.remove(index);
        nf.child.signal(net::process::Signal::SIGKILL);
        nf.child.wait().await?;
        Ok(())
    }

    /// Starts an NF or a unit again after [`Lab::kill`].
    ///
    /// # Errors
    /// As [`Lab::start`].
    pub async fn restart(&mut self, name: &'static str) -> anyhow::Result<()> {
        let arguments = if name == "core" { self.arguments() } else { &["--nf", name] };
        self.start_nf(name, arguments, None)?;
        if name != "core" {
            self.nf_ready(name).await?;
        }
        self.ready().await
    }

    /// The log of a process of the core or of the simulator (`ran`).
    pub fn log(&self, process: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("{process}.log"))).unwrap_or_default()
    }

    /// Checks that every process of the core still runs.
    ///
    /// # Errors
    /// A process has ended; with the last lines of its log.
    pub fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.nfs.iter_mut().find_map(|nf| nf.child.try_wait().map(|status| (nf.name, status)));
        match ended {
            Some((name, status)) => bail!("`godwit run` ({name}) ended: {status}\n{}", self.log_tail(name)),
            None => Ok(()),
        }
    }

    /// Stops the core regularly and removes everything.
    ///
    /// # Errors
    /// A process did not end by itself, or ended with an error. Everything is removed all the same.
    pub fn stop(mut self) -> Boxed<'static, anyhow::Result<()>> {
        Box::pin(async move {
            let mut failure = Ok(());
            // In the reverse order of starting, so that each NF can still deregister at its peers.
            while let Some(mut nf) = self.nfs.pop() {
                let status = nf.child.stop(STOP_LIMIT).await.context("wait for the core")?;
                if !status.success() && failure.is_ok() {
                    failure = Err(anyhow::anyhow!(
                        "{} ended with an error: {status}\n{}",
                        nf.name,
                        self.log_tail(nf.name)
                    ));
                }
            }
            failure
        })
    }

    fn start_nf(
        &mut self,
        name: &'static str,
        arguments: &[&str],
        pcap: Option<&Path>,
    ) -> anyhow::Result<()> {
        let mut command =
            Command::new(&self.godwit).arg("run").arg("-c").arg(self.configuration()).args(arguments);
        if let Some(folder) = pcap {
            command = command.arg("--pcap").arg(folder);
        }
        self.start_process(name, command)
    }

    fn start_process(&mut self, name: &'static str, command: Command) -> anyhow::Result<()> {
        let child = command
            .namespace(self.namespace_of(name))
            .stdout(log_file(self.folder.path(), name)?)
            .stderr(log_file(self.folder.path(), name)?)
            .spawn()
            .with_context(|| format!("start {name} with {}", self.godwit.display()))?;
        self.nfs.push(NfProcess { name, child });
        Ok(())
    }

    /// Waits until every NF answers and is registered.
    async fn ready(&mut self) -> anyhow::Result<()> {
        for nf in self.functions() {
            self.nf_ready(nf).await?;
        }
        Ok(())
    }

    /// What the core consists of.
    fn functions(&self) -> &'static [&'static str] {
        match (self.kind.epc, self.foreign_gateway) {
            (_, true) => &[],
            (true, false) if self.kind.sgw => &PGW,
            (true, false) => &EPC,
            (false, false) => &NFS,
        }
    }

    /// Arguments of a core in one process.
    fn arguments(&self) -> &'static [&'static str] {
        match (self.kind.epc, self.kind.sgw) {
            (true, true) => &["--nf", "upf,pgw"],
            (true, false) => &["--nf", "upf,spgw"],
            (false, _) => &[],
        }
    }

    async fn nf_ready(&mut self, nf: &str) -> anyhow::Result<()> {
        let deadline = time::now() + START_LIMIT;
        loop {
            self.check()?;
            let state = match self.oam(nf, "GET", "/status").await {
                Ok(status) if settings::is_ready(nf, &status) => return Ok(()),
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            if time::now() > deadline {
                let name = if self.nfs.iter().any(|process| process.name == nf) { nf } else { "core" };
                bail!("{nf} is not ready after {START_LIMIT:?}: {state}\n{}", self.log_tail(name));
            }
            time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn log_tail(&self, process: &str) -> String {
        tail(&self.log(process))
    }
}

/// Finds the program: `$GODWIT`, this program if it is `godwit`, or the one built beside a test or
/// experiment.
///
/// # Errors
/// The program was not found.
pub fn find_godwit() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("GODWIT") {
        return Ok(named.into());
    }
    let own = std::env::current_exe().context("find this program")?;
    // For target/debug/deps/<test> the program is target/debug/godwit, one folder higher.
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("godwit"));
    std::iter::once(own.clone())
        .filter(|own| own.file_name().is_some_and(|name| name == "godwit"))
        .chain(beside)
        .find(|program| program.is_file())
        .context("no godwit program: build it (cargo build -p cli) or name it in $GODWIT")
}

/// Opens `<folder>/<process>.log` for appending.
fn log_file(folder: &Path, process: &str) -> anyhow::Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join(format!("{process}.log")))
        .context("open a log file")
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n")
}
