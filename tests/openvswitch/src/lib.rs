//! Debian's Open vSwitch for tests of other crates: a database and a switch, with their files in a folder of their own, in a network
//! namespace. Both end with the value. Calls block until the programs have done what they are asked.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "helpers of tests are tests")]
#![allow(clippy::missing_panics_doc, reason = "every helper panics when the test has failed")]
#![allow(clippy::disallowed_methods, reason = "waits for another program")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub use net::netns::NetNs;

/// Tries, a twentieth of a second apart, after which a file of a daemon should be there.
const TRIES: usize = 400;

/// Whether Open vSwitch and network namespaces are there; with `CI` set they must be.
pub fn is_possible() -> bool {
    let programs = ["ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-appctl", "ovs-ofctl"];
    let exists = |program: &&str| path().split(':').any(|folder| Path::new(folder).join(program).exists());
    let why = match programs.into_iter().find(|program| !exists(program)) {
        Some(program) => format!("{program} is missing: scripts/setup.sh test"),
        None if NetNs::new().is_err() => "no network namespaces".to_owned(),
        None => return true,
    };
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("skipped: {why}");
    false
}

/// Daemons are where not every user looks.
fn path() -> String {
    std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/usr/bin:/sbin:/bin"
}

/// A database and a switch.
#[derive(Debug)]
pub struct OpenVswitch {
    folder: tempfile::TempDir,
    namespace: NetNs,
    /// Options of the switch's daemon.
    options: Vec<String>,
    database: Child,
    daemon: Option<Child>,
}

impl Drop for OpenVswitch {
    fn drop(&mut self) {
        self.kill_daemon();
        let _ = self.database.kill();
        let _ = self.database.wait();
    }
}

impl OpenVswitch {
    /// Starts them, with further options of `ovs-vswitchd`.
    pub fn start(namespace: &NetNs, options: &[&str]) -> OpenVswitch {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        run(namespace, command(&folder, "ovsdb-tool").args(["create", &file("conf.db"), schema]));
        let mut database = command(&folder, "ovsdb-server");
        database.args([
            &file("conf.db"),
            &format!("--remote=punix:{}", file("db")),
            "--unixctl",
            &file("db.ctl"),
        ]);
        let database = spawn(namespace, &mut database);
        wait_for(&file("db"));
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut own = OpenVswitch { namespace: namespace.clone(), options, database, daemon: None, folder };
        own.vsctl(&["--no-wait", "init"]);
        own.start_daemon();
        own
    }

    /// Starts the switch's daemon after [`OpenVswitch::kill_daemon`]; it has its bridges and ports again, and no flows.
    pub fn start_daemon(&mut self) {
        let mut command = command(&self.folder, "ovs-vswitchd");
        command.args([&format!("unix:{}", self.path("db")), "--unixctl", &self.path("switch.ctl")]);
        self.daemon = Some(spawn(&self.namespace, command.args(&self.options)));
        wait_for(&self.path("switch.ctl"));
    }

    /// Kills the switch's daemon.
    pub fn kill_daemon(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        let _ = daemon.kill();
        let _ = daemon.wait();
        // A killed process leaves its sockets.
        for entry in std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            if name == "switch.ctl" || name.ends_with(".mgmt") {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// The path of one of its files. `NAME.mgmt` is where a bridge takes controllers.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Waits until one of its files is there.
    pub fn wait_for(&self, name: &str) {
        wait_for(&self.path(name));
    }

    /// Adds the bridge `br0`, with settings such as `datapath_type=netdev`.
    pub fn add_bridge(&self, settings: &[&str]) {
        let bridge = ["add-br", "br0", "--", "set", "bridge", "br0", "protocols=OpenFlow13"];
        self.vsctl(&[&bridge[..], settings].concat());
        self.wait_for("br0.mgmt");
    }

    /// Adds a port to `br0`, with settings of its interface such as `type=gtpu`.
    pub fn add_port(&self, name: &str, settings: &[&str]) {
        let port = ["add-port", "br0", name, "--", "set", "interface", name];
        self.vsctl(&if settings.is_empty() { port[..3].to_vec() } else { [&port[..], settings].concat() });
    }

    /// `ovs-vsctl`.
    pub fn vsctl(&self, arguments: &[&str]) {
        let database = format!("--db=unix:{}", self.path("db"));
        self.run("ovs-vsctl", &[&[&database[..], "--timeout=20"], arguments].concat());
    }

    /// `ovs-appctl` of the switch; what it says.
    pub fn appctl(&self, arguments: &[&str]) -> String {
        let control = self.path("switch.ctl");
        self.run("ovs-appctl", &[&["-t", &control], arguments].concat())
    }

    /// `ovs-ofctl VERB BRIDGE ARGUMENTS` of `br0`; what it says.
    pub fn ofctl(&self, verb: &str, arguments: &[&str]) -> String {
        let bridge = format!("unix:{}", self.path("br0.mgmt"));
        self.run("ovs-ofctl", &[&["-O", "OpenFlow13", verb, &bridge], arguments].concat())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        run(&self.namespace, command(&self.folder, program).args(arguments))
    }
}

fn command(folder: &tempfile::TempDir, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", path()).stdin(Stdio::null());
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, folder.path());
    }
    command
}

fn run(namespace: &NetNs, command: &mut Command) -> String {
    let output = namespace.enter(|| command.output().unwrap()).unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn spawn(namespace: &NetNs, command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    namespace.enter(|| command.spawn().unwrap()).unwrap()
}

fn wait_for(path: &str) {
    for _ in 0..TRIES {
        if Path::new(path).exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{path} does not come");
}
