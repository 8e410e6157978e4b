//! Open vSwitch as oracle: the same rules and packets go to it and to ours, and leave by the same ports. It runs with a dummy
//! datapath, which sends nothing, and says what it would do (`ofproto/trace`). Tunnels are left out, in which it is wrong.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]
#![allow(clippy::disallowed_methods, reason = "the test waits for another program")]

mod common;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::*;
use openflow::*;
use packet::ethernet;
use switch::pipeline::{Limits, Pipeline, Ports};

/// A database and a switch that end with the test.
struct Oracle {
    folder: tempfile::TempDir,
    processes: Vec<Child>,
}

impl Drop for Oracle {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Whether the program is there; with `CI` set it must be.
fn is_there() -> bool {
    let version =
        Command::new("ovs-vswitchd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if version.is_ok() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "ovs-vswitchd is missing: scripts/setup.sh test");
    eprintln!("skipped: ovs-vswitchd is missing; scripts/setup.sh test installs it");
    false
}

impl Oracle {
    fn start() -> Oracle {
        let mut oracle = Oracle { folder: tempfile::tempdir().unwrap(), processes: Vec::new() };
        let (database, file) = (oracle.path("db"), oracle.path("conf.db"));
        oracle.run("ovsdb-tool", &["create", &file, "/usr/share/openvswitch/vswitch.ovsschema"]);
        oracle.spawn(
            "ovsdb-server",
            &[&file, &format!("--remote=punix:{database}"), "--unixctl", &oracle.path("db.ctl")],
        );
        oracle.wait_for("db");
        oracle.vsctl("--no-wait init");
        let control = oracle.path("switch.ctl");
        oracle.spawn(
            "ovs-vswitchd",
            &[
                "--enable-dummy=override",
                "--disable-system",
                "--unixctl",
                &control,
                &format!("unix:{database}"),
            ],
        );
        oracle
            .vsctl("add-br br0 -- set bridge br0 datapath_type=dummy protocols=OpenFlow13 fail-mode=secure");
        for port in 1..=3 {
            oracle.vsctl(&format!(
                "add-port br0 p{port} -- set interface p{port} type=dummy ofport_request={port}"
            ));
        }
        oracle.wait_for("br0.mgmt");
        oracle
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.folder.path());
        }
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        assert!(self.command(program).args(arguments).status().unwrap().success(), "{program} {arguments:?}");
    }

    fn vsctl(&self, arguments: &str) {
        let database = format!("--db=unix:{}", self.path("db"));
        let all: Vec<&str> = [&database, "--timeout=20"].into_iter().chain(arguments.split(' ')).collect();
        self.run("ovs-vsctl", &all);
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) {
        let process = self.command(program).args(arguments).spawn().unwrap();
        self.processes.push(process);
    }

    fn wait_for(&self, name: &str) {
        for _ in 0..200 {
            if Path::new(&self.path(name)).exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{name} does not come");
    }

    /// Replaces all rules.
    fn install(&self, rules: &[FlowMod]) {
        let mut stream = UnixStream::connect(self.path("br0.mgmt")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut octets = Message::from(Hello::OURS).encode(1).unwrap();
        let clear = FlowMod::delete(TableId::ALL, Match::default());
        for rule in std::iter::once(&clear).chain(rules) {
            Message::from(rule.clone()).encode_into(2, &mut octets).unwrap();
        }
        Message::BarrierRequest(()).encode_into(3, &mut octets).unwrap();
        stream.write_all(&octets).unwrap();
        let (mut framer, mut buffer) = (Framer::default(), [0; 4096]);
        loop {
            while let Some(message) = framer.next_message().unwrap() {
                match Message::decode(message).unwrap() {
                    (3, Message::BarrierReply(())) => return,
                    (_, Message::Error(error)) => panic!("{:?}", error.code),
                    _ => {}
                }
            }
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0);
            framer.push(&buffer[..length]);
        }
    }

    /// The ports by which it would send the frame, in their order.
    fn ports(&self, in_port: u32, frame: &[u8]) -> (Vec<u32>, String) {
        let hex: String = frame.iter().map(|octet| format!("{octet:02x}")).collect();
        let mut command = self.command("ovs-appctl");
        command.args([
            "-t",
            &self.path("switch.ctl"),
            "ofproto/trace",
            "br0",
            &format!("in_port={in_port}"),
            &hex,
        ]);
        let output = command.stdout(Stdio::piped()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let actions = text.lines().find_map(|line| line.strip_prefix("Datapath actions: ")).expect(&text);
        // Outputs are bare numbers between the changes, which have brackets and may contain numbers.
        let (mut depth, mut ports, mut word) = (0, Vec::new(), String::new());
        for character in actions.chars().chain([',']) {
            match character {
                '(' => depth += 1,
                ')' => depth -= 1,
                ',' if depth == 0 => ports.extend(std::mem::take(&mut word).parse::<u32>()),
                _ if depth == 0 => word.push(character),
                _ => {}
            }
            if character == ')' && depth == 0 {
                word.clear();
            }
        }
        (ports, text)
    }
}

/// Numbers that look random and are the same each time.
struct Numbers(u32);

impl Numbers {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) % limit
    }

    fn matching(&mut self, table: u8) -> Match {
        let mut fields = Vec::new();
        if self.below(3) == 0 {
            fields.push(Oxm::in_port(PortNo(1 + self.below(2))));
        }
        if self.below(3) == 0 {
            let mac = [ENB_MAC, GW1_MAC, GW2_MAC][self.below(3) as usize];
            fields.push(Oxm::eth_dst(MacAddr(mac)));
        }
        if table > 0 && self.below(3) == 0 {
            fields.extend(Oxm::metadata(self.below(4).into()).masked(3u64));
        }
        match self.below(4) {
            0 => {}
            1 => fields.push(Oxm::eth_type(0x0806)),
            2 => fields.extend([Oxm::eth_type(0x86dd), Oxm::ip_proto(17)]),
            _ => {
                fields.push(Oxm::eth_type(0x0800));
                if self.below(2) == 0 {
                    let address = Oxm::ipv4_dst([GW1, GW2, SERVER][self.below(3) as usize]);
                    fields.extend(address.prefix(32 - 8 * self.below(4)));
                }
                if self.below(2) == 0 {
                    fields.push(Oxm::ip_proto(17));
                    fields.push(Oxm::udp_dst([53, 7000][self.below(2) as usize]));
                }
                if self.below(4) == 0 {
                    fields.push(Oxm::ip_dscp(Bits::new([46, 0][self.below(2) as usize]).unwrap()));
                }
            }
        }
        matching(fields)
    }

    fn rule(&mut self, table: u8, priority: u16) -> FlowMod {
        let matching = self.matching(table);
        let mut actions = Vec::new();
        for _ in 0..self.below(3) {
            let action = match self.below(6) {
                0 => Action::output(PortNo::IN_PORT),
                1 => Action::output(PortNo::FLOOD),
                2 => set(Oxm::eth_dst(MacAddr([ENB_MAC, GW1_MAC, GW2_MAC][self.below(3) as usize]))),
                3 if matching.allows(Field::Ipv4Dst) => {
                    set(Oxm::ipv4_dst([GW1, GW2][self.below(2) as usize]))
                }
                _ => output(1 + self.below(3)),
            };
            actions.push(action);
        }
        let mut instructions = Instructions::apply(actions);
        if self.below(3) == 0 {
            instructions.write_actions = Some(vec![output(1 + self.below(3))]);
        }
        instructions.clear_actions = self.below(6) == 0;
        if table < 3 && self.below(3) > 0 {
            let value = self.below(4).into();
            instructions.write_metadata = (self.below(2) == 0).then_some(Metadata { value, mask: 3 });
            instructions.goto_table = Some(TableId(table + 1));
        }
        FlowMod::add(TableId(table), priority, matching, instructions)
    }
}

fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for mac in [ENB_MAC, GW1_MAC, GW2_MAC] {
        for (address, port) in [(GW1, 53), (GW2, 7000), (SERVER, 9)] {
            let packet = udp((UE1.into(), 1000), (address.into(), port), b"data");
            packets.push(ethernet::build(mac, ENB_MAC, None, ethernet::IPV4, &packet));
        }
        let packet = udp((v6(1).into(), 1000), (v6(2).into(), 53), b"data");
        packets.push(ethernet::build(mac, ENB_MAC, None, ethernet::IPV6, &packet));
        packets.push(ethernet::build(
            mac,
            ENB_MAC,
            None,
            ethernet::ARP,
            &[0, 1, 8, 0, 6, 4, 0, 1].repeat(4)[..28],
        ));
    }
    packets
}

#[test]
fn open_vswitch_sends_packets_by_the_same_ports() {
    if !is_there() {
        return;
    }
    let oracle = Oracle::start();
    let mut sent = 0;
    for seed in 0..12 {
        let mut numbers = Numbers(seed * 7919 + 1);
        // Each priority once in a table: which of two equal ones wins is nobody's business.
        let rules: Vec<_> =
            (0..4u8).flat_map(|table| (1..12).map(move |priority| (table, priority))).collect();
        let mut rules: Vec<_> =
            rules.into_iter().map(|(table, priority)| numbers.rule(table, priority)).collect();
        // A packet that no entry matches is dropped, whatever its action set says (§5.4). Open vSwitch executes the set.
        rules.extend((0..4).map(|table| add(table, 0, [], Instructions::default())));
        oracle.install(&rules);
        let live = PORTS.iter().map(|port| (*port, true)).collect();
        let mut pipeline = Pipeline::new(Limits::default(), Ports { live, gtp: None });
        install(&mut pipeline, rules.clone());
        for frame in packets() {
            for in_port in [1, 2] {
                let (left, trace) = send(&pipeline, in_port, &frame);
                let mut ours: Vec<u32> = left.iter().filter_map(|(port, _)| *port).collect();
                let (theirs, said) = oracle.ports(in_port, &frame);
                // Its host's port is one that ours does not have here.
                let mut theirs: Vec<u32> = theirs.into_iter().filter(|port| PORTS.contains(port)).collect();
                // It floods in an order of its own.
                ours.sort_unstable();
                theirs.sort_unstable();
                sent += ours.len();
                assert_eq!(ours, theirs, "seed {seed}, port {in_port}: {trace:#?}\n{said}");
            }
        }
    }
    assert!(sent > 200, "{sent} frames were sent: the rules say too little");
}
