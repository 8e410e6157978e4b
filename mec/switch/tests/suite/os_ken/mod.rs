//! os-ken as controller, an independent one with its application interface: it takes our switch over TCP, and steers a user with
//! the paper's Table I.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::*;
use openflow::PortNo;
use serde_json::{Value, json};
use switch::agent::driver::Agent;
use switch::core::{Identity, PortCounts, Switch, SwitchPort};

/// Waits end after this.
const PATIENCE: Duration = Duration::from_secs(20);

/// The controller; it ends with the test.
struct Controller {
    process: Child,
    input: ChildStdin,
    told: Receiver<Value>,
    /// What came before what was waited for.
    earlier: Vec<Value>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Controller {
    /// `None`: os-ken is not installed.
    fn start(port: u16) -> Option<Controller> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = root.join("../../target/python/bin/python");
        let installed = Command::new(&python).args(["-c", "import os_ken"]).stderr(Stdio::null()).status();
        if !installed.is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("CI").is_none(), "os-ken is missing: scripts/setup.sh test");
            eprintln!("skipped: os-ken is missing; scripts/setup.sh test installs it");
            return None;
        }
        let mut process = Command::new(python)
            .arg(root.join("tests/suite/os_ken/controller.py"))
            .arg(port.to_string())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = tell.send(serde_json::from_str(&line).unwrap());
            }
        });
        Some(Controller { process, input, told, earlier: Vec::new() })
    }

    /// The next thing of this kind that it tells; what comes before is kept for later.
    fn tells(&mut self, kind: &str) -> Value {
        if let Some(at) = self.earlier.iter().position(|told| told["is"] == kind) {
            return self.earlier.remove(at);
        }
        loop {
            match self.told.recv_timeout(PATIENCE) {
                Ok(told) if told["is"] == kind => return told,
                Ok(told) => self.earlier.push(told),
                Err(_) => panic!("no {kind}; it has told {:?}", self.earlier),
            }
        }
    }

    fn ask(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    /// Table, priority and packets of each flow.
    fn counts(&mut self) -> Vec<(u64, u64, u64)> {
        self.ask("flows");
        let told = self.tells("flows");
        let number = |flow: &Value, name: &str| flow[name].as_u64().unwrap();
        let flows = told["flows"].as_array().unwrap().iter();
        let mut counts: Vec<_> = flows
            .map(|flow| (number(flow, "table"), number(flow, "priority"), number(flow, "packets")))
            .collect();
        counts.sort_unstable();
        counts
    }
}

#[test]
fn os_ken_steers_a_user() {
    // A number that nobody listens on.
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let Some(mut controller) = Controller::start(free) else { return };
    let port = |number, name: &str| SwitchPort {
        number,
        name: name.to_owned(),
        mac: [2, 0, 0, 0, 1, number as u8],
        counts: PortCounts::default(),
    };
    let ports = vec![port(1, "ran"), port(2, "anchor1"), port(3, "anchor2"), port(PortNo::LOCAL.0, "edge")];
    let identity = Identity { datapath_id: 0x1234, description: "cell site 7".to_owned() };
    let switch: Arc<Switch> = Switch::new(identity, pipeline(), ports, 1000);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free));
    let _agent = runtime.block_on(async { Agent::start(&switch, &[address], None) });

    // What the switch is, in os-ken's words.
    let features = controller.tells("features");
    assert_eq!((&features["datapath_id"], &features["tables"]), (&json!(0x1234), &json!(8)));
    assert_eq!(controller.tells("description")["hardware"], "Godwit");
    let ports = controller.tells("ports");
    let named = |number: u32, name: &str| json!([number, name]);
    for port in [named(1, "ran"), named(2, "anchor1"), named(GTP, "gtp"), named(PortNo::LOCAL.0, "edge")] {
        assert!(ports["ports"].as_array().unwrap().contains(&port), "{port}: {ports}");
    }
    assert_eq!(controller.tells("tables")["tables"].as_array().unwrap().len(), 8);
    controller.tells("barrier");

    // SW-1: one packet of the diverted user takes each rule on its path once; SW-3: another user's is as it was.
    let counts = controller.counts();
    assert_eq!(counts.len(), 11, "{counts:?}");
    assert!(counts.iter().all(|(_, _, packets)| *packets == 0), "{counts:?}");
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    assert_eq!(pass(&switch.pipeline(), 1, &frame), (3, readdressed(&frame, GW2_MAC, GW2)));
    let taken: Vec<_> = controller.counts().into_iter().filter(|(_, _, packets)| *packets > 0).collect();
    assert_eq!(taken, [(0, 200, 1), (0, 260, 1), (0, 300, 1), (1, 100, 1), (2, 100, 1)]);
    let other = uplink(GW1, &gpdu_5g(8, &user_packet()));
    assert_eq!(pass(&switch.pipeline(), 1, &other), (2, other));

    // A packet of the controller that no rule of table 2 knows comes back to it.
    controller.ask("out");
    let packet = controller.tells("packet");
    assert_eq!((&packet["table"], &packet["in_port"]), (&json!(2), &json!(1)));
    assert!(packet["data"].as_str().unwrap().starts_with("02000000000e02000000000d0800"), "{packet}");

    // What must be refused: a meter, a table that there is not, a field that is not known, a meter-mod.
    let version = switch.version();
    controller.ask("wrong");
    for (kind, code) in [(3, 1), (5, 2), (4, 6), (1, 1)] {
        let error = controller.tells("error");
        assert_eq!((&error["type"], &error["code"]), (&json!(kind), &json!(code)));
    }
    assert_eq!(switch.version(), version, "nothing has changed");

    // Back in a bundle: opened, committed, and the flow that is gone says so.
    controller.ask("bundle");
    assert_eq!(controller.tells("bundle")["type"], 1);
    assert_eq!(controller.tells("bundle")["type"], 5);
    let removed = controller.tells("removed");
    assert_eq!(
        (&removed["table"], &removed["reason"], &removed["packets"]),
        (&json!(1), &json!(2), &json!(1))
    );
    assert_eq!(pass(&switch.pipeline(), 1, &frame), (2, frame));
}
