//! Debian's Open vSwitch with its data path in user space (`datapath_type=netdev`), in a namespace of its own.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::{Child, Command};
use net::time::{self, Duration};
use packet::ethernet::Mac;

const PATIENCE: Duration = Duration::from_secs(20);
/// Where Debian has its programs, which may not be on the user's path.
const FOLDERS: &str = ":/usr/sbin:/usr/bin:/sbin:/bin";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Database and daemon. They end when it is dropped.
pub struct OpenVswitch {
    folder: tempfile::TempDir,
    space: NetNs,
    daemons: Vec<Child>,
}

/// Whether its programs are there.
pub fn is_installed() -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + FOLDERS;
    let found = |program: &str| path.split(':').any(|folder| Path::new(folder).join(program).exists());
    ["ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"].into_iter().all(found)
}

/// A port: its number, and its interface in the namespace.
pub type Port<'a> = (u32, &'a str);

/// A bridge.
pub struct Bridge<'a> {
    /// Its name, which is also that of its own interface.
    pub name: &'a str,
    /// Its number in OpenFlow.
    pub datapath_id: u64,
    /// Its ports.
    pub ports: &'a [Port<'a>],
    /// The number of its GTP-U port. One bridge can have one.
    pub gtp_port: Option<u32>,
    /// A controller to which it connects.
    pub controller: Option<SocketAddr>,
    /// Where it lets others connect.
    pub listen: SocketAddr,
}

impl OpenVswitch {
    /// Starts it without a bridge.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub async fn start(space: &NetNs) -> anyhow::Result<OpenVswitch> {
        let folder = tempfile::tempdir()?;
        let mut ovs = OpenVswitch { folder, space: space.clone(), daemons: Vec::new() };
        ovs.run("ovsdb-tool", &["create", &ovs.path("conf.db"), SCHEMA]).await?;
        let remote = format!("--remote=punix:{}", ovs.path("db"));
        let control = ovs.path("db.ctl");
        ovs.spawn("ovsdb-server", &[&ovs.path("conf.db"), &remote, "--unixctl", &control])?;
        ovs.wait_for("db").await?;
        ovs.vsctl(&["--no-wait", "init"]).await?;
        let database = format!("unix:{}", ovs.path("db"));
        ovs.spawn("ovs-vswitchd", &[&database, "--unixctl", &ovs.path("switch.ctl")])?;
        ovs.wait_for("switch.ctl").await?;
        Ok(ovs)
    }

    /// Adds a bridge, and brings up its own interface.
    ///
    /// # Errors
    /// It refuses.
    pub async fn add(&self, bridge: &Bridge<'_>) -> anyhow::Result<()> {
        let name = bridge.name;
        let id = format!("other-config:datapath-id={:016x}", bridge.datapath_id);
        let settings = ["datapath_type=netdev", "protocols=OpenFlow13", "fail_mode=secure", &id];
        self.vsctl(&[&["add-br", name, "--", "set", "bridge", name][..], &settings].concat()).await?;
        for (number, port) in bridge.ports {
            let request = format!("ofport_request={number}");
            self.vsctl(&["add-port", name, port, "--", "set", "interface", port, &request]).await?;
        }
        if let Some(number) = bridge.gtp_port {
            let request = format!("ofport_request={number}");
            let port = ["add-port", name, "gtp", "--", "set", "interface", "gtp", "type=gtpu", &request];
            let options = [
                "options:remote_ip=flow",
                "options:local_ip=flow",
                "options:key=flow",
                "options:packet_type=ptap",
            ];
            self.vsctl(&[&port[..], &options].concat()).await?;
        }
        let connect = bridge.controller.map(|to| format!("tcp:{to}"));
        let listen = format!("ptcp:{}:{}", bridge.listen.port(), bridge.listen.ip());
        for (target, id) in connect.into_iter().chain([listen]).zip(["@first", "@second"]) {
            let (create, target) = (format!("--id={id}"), format!("target=\"{target}\""));
            let controller = [&create, "create", "controller", &target];
            // A measurement does not answer its questions while others have their turns.
            let probe = if target.contains("ptcp") { "inactivity_probe=0" } else { "inactivity_probe=5000" };
            let settings = ["connection_mode=out-of-band", "max_backoff=1000", probe];
            let add = ["--", "add", "bridge", name, "controller", id];
            self.vsctl(&[&controller[..], &settings, &add].concat()).await?;
        }
        Links::in_ns(&self.space)?.up(name).await?;
        Ok(())
    }

    /// Gives a bridge addresses that stand for ends, and neighbours, which it does not ask for in time.
    ///
    /// # Errors
    /// It refuses.
    pub async fn know(
        &self,
        bridge: &str,
        local: &[IpAddr],
        neighbours: &[(IpAddr, Mac)],
    ) -> anyhow::Result<()> {
        let links = Links::in_ns(&self.space)?;
        for address in local {
            links.add_address(bridge, Cidr::new(*address, 24).context("24 bits fit")?).await?;
        }
        for (address, mac) in neighbours {
            let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
            self.control(&["tnl/neigh/set", bridge, &address.to_string(), &mac]).await?;
        }
        Ok(())
    }

    /// The link-layer address of a bridge's own port.
    ///
    /// # Errors
    /// There is none.
    pub fn mac(&self, bridge: &str) -> anyhow::Result<Mac> {
        Ok(self.space.enter(|| pktio::af_xdp::device::Device::find(bridge))??.mac)
    }

    /// Processes: the daemon that forwards.
    pub fn process(&self) -> Option<u32> {
        self.daemons.last().map(Child::id)
    }

    /// Packets of the entries of a bridge's table that match a tunnel, as `ovs-ofctl` prints them. Brought up to date about every half second.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn tunnel_packets(&self, bridge: &str, table: u8) -> anyhow::Result<u64> {
        let bridge = format!("unix:{}", self.path(&format!("{bridge}.mgmt")));
        let table = format!("table={table}");
        let printed = self.run("ovs-ofctl", &["-O", "OpenFlow13", "dump-flows", &bridge, &table]).await?;
        let of_line = |line: &str| -> Option<u64> {
            line.split(", ").find_map(|field| field.strip_prefix("n_packets="))?.parse().ok()
        };
        Ok(printed.lines().filter(|line| line.contains("tun_id=")).filter_map(of_line).sum())
    }

    async fn control(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let control = self.path("switch.ctl");
        self.run("ovs-appctl", &[&["-t", &control], arguments].concat()).await
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default() + FOLDERS;
        let mut command = Command::new(program).namespace(&self.space).env("PATH", path);
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command = command.env(variable, self.folder.path());
        }
        command
    }

    async fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command(program).args(arguments).output(PATIENCE).await;
        let output = output.with_context(|| format!("{program} (`scripts/setup.sh bench` installs it)"))?;
        if !output.status.success() {
            bail!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    async fn vsctl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let database = format!("--db=unix:{}", self.path("db"));
        self.run("ovs-vsctl", &[&[&database[..], "--timeout=20"], arguments].concat()).await.map(drop)
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let null = std::process::Stdio::null;
        let child = self.command(program).args(arguments).stdout(null()).stderr(null()).spawn();
        self.daemons
            .push(child.with_context(|| format!("{program} (`scripts/setup.sh bench` installs it)"))?);
        Ok(())
    }

    async fn wait_for(&self, name: &str) -> anyhow::Result<()> {
        let (path, start) = (self.path(name), time::now_std());
        while !Path::new(&path).exists() {
            ensure!(start.elapsed() < PATIENCE, "Open vSwitch does not start: no {name}");
            time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}
