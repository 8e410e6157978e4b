//! Debian's Open vSwitch with its data path in user space (`datapath_type=netdev`), in a namespace of its own.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::process::{Child, Command};
use net::time::{self, Duration};
use openflow::{FlowMod, Framer, Hello, Message};
use packet::ethernet::Mac;

const PATIENCE: Duration = Duration::from_secs(20);
/// Where Debian has its programs, which may not be on the user's path.
const FOLDERS: &str = ":/usr/sbin:/usr/bin:/sbin:/bin";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const BRIDGE: &str = "br0";
/// Longest OpenFlow message.
const LONGEST: usize = 65_535;

/// Database and daemon, which end with it.
pub(super) struct OpenVswitch {
    folder: tempfile::TempDir,
    space: NetNs,
    daemons: Vec<Child>,
    flows: Option<Flows>,
}

/// Whether its programs are there.
#[cfg(test)]
pub(super) fn is_installed() -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + FOLDERS;
    let found = |program: &str| path.split(':').any(|folder| Path::new(folder).join(program).exists());
    ["ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"].into_iter().all(found)
}

/// A port: its number, and its interface in the namespace.
pub(super) type Port<'a> = (u32, &'a str);

impl OpenVswitch {
    /// Starts it with these ports and a GTP-U port.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub(super) async fn start(space: &NetNs, ports: &[Port<'_>], gtp: u32) -> anyhow::Result<OpenVswitch> {
        let folder = tempfile::tempdir()?;
        let mut ovs = OpenVswitch { folder, space: space.clone(), daemons: Vec::new(), flows: None };
        ovs.run("ovsdb-tool", &["create", &ovs.path("conf.db"), SCHEMA]).await?;
        let remote = format!("--remote=punix:{}", ovs.path("db"));
        let control = ovs.path("db.ctl");
        ovs.spawn("ovsdb-server", &[&ovs.path("conf.db"), &remote, "--unixctl", &control]).await?;
        ovs.wait_for("db").await?;
        ovs.vsctl(&["--no-wait", "init"]).await?;
        let database = format!("unix:{}", ovs.path("db"));
        ovs.spawn("ovs-vswitchd", &[&database, "--unixctl", &ovs.path("switch.ctl")]).await?;
        ovs.wait_for("switch.ctl").await?;
        let bridge = ["datapath_type=netdev", "protocols=OpenFlow13", "fail_mode=secure"];
        ovs.vsctl(&[&["add-br", BRIDGE, "--", "set", "bridge", BRIDGE][..], &bridge].concat()).await?;
        for (number, name) in ports {
            let request = format!("ofport_request={number}");
            ovs.vsctl(&["add-port", BRIDGE, name, "--", "set", "interface", name, &request]).await?;
        }
        let request = format!("ofport_request={gtp}");
        let port = ["add-port", BRIDGE, "gtp", "--", "set", "interface", "gtp", "type=gtpu", &request];
        let options = [
            "options:remote_ip=flow",
            "options:local_ip=flow",
            "options:key=flow",
            "options:packet_type=ptap",
        ];
        ovs.vsctl(&[&port[..], &options].concat()).await?;
        ovs.wait_for("br0.mgmt").await?;
        ovs.flows = Some(Flows::connect(Path::new(&ovs.path("br0.mgmt")))?);
        Ok(ovs)
    }

    /// Gives it addresses that stand for ends, and neighbours, which it does not ask for in time.
    ///
    /// # Errors
    /// It refuses.
    pub(super) async fn know(&self, local: &[IpAddr], neighbours: &[(IpAddr, Mac)]) -> anyhow::Result<()> {
        let links = Links::in_ns(&self.space)?;
        links.up(BRIDGE).await?;
        for address in local {
            links.add_address(BRIDGE, Cidr::new(*address, 24).context("24 bits fit")?).await?;
        }
        for (address, mac) in neighbours {
            let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
            self.control(&["tnl/neigh/set", BRIDGE, &address.to_string(), &mac]).await?;
        }
        Ok(())
    }

    /// The link-layer address of its own port.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn mac(&self) -> anyhow::Result<Mac> {
        Ok(self.space.enter(|| pktio::af_xdp::device::Device::find(BRIDGE))??.mac)
    }

    /// Processes: the daemon that forwards.
    pub(super) fn process(&self) -> Option<u32> {
        self.daemons.last().map(Child::id)
    }

    /// Makes changes, and waits until it has them. Data paths may follow later.
    ///
    /// # Errors
    /// It refuses one.
    pub(super) fn commit(&mut self, changes: &[FlowMod]) -> anyhow::Result<()> {
        self.flows.as_mut().context("the connection has failed")?.commit(changes)
    }

    /// Packets of the entries of a table that match a tunnel, as `ovs-ofctl` prints them. Brought up to date about every half second.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) async fn tunnel_packets(&self, table: u8) -> anyhow::Result<u64> {
        let (bridge, table) = (format!("unix:{}", self.path("br0.mgmt")), format!("table={table}"));
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
        let output = output.with_context(|| format!("{program} (`scripts/setup.sh test` installs it)"))?;
        if !output.status.success() {
            bail!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    async fn vsctl(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let database = format!("--db=unix:{}", self.path("db"));
        self.run("ovs-vsctl", &[&[&database[..], "--timeout=20"], arguments].concat()).await.map(drop)
    }

    async fn spawn(&mut self, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let null = std::process::Stdio::null;
        let child = self.command(program).args(arguments).stdout(null()).stderr(null()).spawn();
        self.daemons.push(child.with_context(|| format!("{program} (`scripts/setup.sh test` installs it)"))?);
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

/// An OpenFlow connection that changes entries.
struct Flows {
    stream: UnixStream,
    framer: Framer,
    given: u32,
}

impl Flows {
    fn connect(path: &Path) -> anyhow::Result<Flows> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut flows = Flows { stream, framer: Framer::new(LONGEST), given: 0 };
        flows.stream.write_all(&Message::from(Hello::OURS).encode(0)?)?;
        flows.commit(&[])?;
        Ok(flows)
    }

    /// Sends changes with a barrier behind them, and waits for its answer.
    fn commit(&mut self, changes: &[FlowMod]) -> anyhow::Result<()> {
        let mut octets = Vec::new();
        for change in changes {
            self.given += 1;
            Message::from(change.clone()).encode_into(self.given, &mut octets)?;
        }
        self.given += 1;
        Message::BarrierRequest(()).encode_into(self.given, &mut octets)?;
        self.stream.write_all(&octets)?;
        let mut received = vec![0; LONGEST];
        loop {
            while let Some(message) = self.framer.next_message()? {
                match Message::decode(message) {
                    Ok((xid, Message::BarrierReply(()))) if xid == self.given => return Ok(()),
                    Ok((_, Message::Error(error))) => bail!("Open vSwitch refuses an entry: {error:?}"),
                    // Echo requests come later than any answer here.
                    Ok(_) => {}
                    Err(error) => bail!("Open vSwitch: {error:?}"),
                }
            }
            let count = self.stream.read(&mut received)?;
            ensure!(count > 0, "Open vSwitch has closed the connection");
            self.framer.push(&received[..count]);
        }
    }
}
