//! `ovs-ofctl`, the independent controller: it drives the agent over TCP.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::*;
use openflow::PortNo;
use switch::agent::driver::Agent;
use switch::core::{Identity, PortCounts, Switch, SwitchPort};

/// Whether the program is there; with `CI` set it must be.
fn is_there() -> bool {
    let version =
        Command::new("ovs-ofctl").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if version.is_ok() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "ovs-ofctl is missing: scripts/setup.sh test");
    eprintln!("skipped: ovs-ofctl is missing; scripts/setup.sh test installs it");
    false
}

struct Running {
    target: String,
    switch: Arc<Switch>,
    _agent: Agent,
    _runtime: tokio::runtime::Runtime,
}

fn start() -> Running {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let port = |number, name: &str| SwitchPort {
        number,
        name: name.to_owned(),
        mac: [2, 0, 0, 0, 1, number as u8],
        counts: PortCounts::default(),
    };
    let ports = vec![port(1, "ran"), port(2, "anchor1"), port(3, "anchor2"), port(PortNo::LOCAL.0, "edge")];
    let identity = Identity { datapath_id: 0x1234, description: "cell site 7".to_owned() };
    let switch = Switch::new(identity, pipeline(), ports, 1000);
    let (target, agent) = runtime.block_on(async {
        let listener = net::tcp::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let target = format!("tcp:{}", listener.local_addr().unwrap());
        (target, Agent::start(&switch, &[], Some(listener)))
    });
    Running { target, switch, _agent: agent, _runtime: runtime }
}

impl Running {
    /// Runs `ovs-ofctl VERB SWITCH ARGUMENTS`, with `input` as file `-`.
    fn try_run(&self, verb: &[&str], arguments: &[&str], input: &str) -> Result<String, String> {
        let mut child = Command::new("ovs-ofctl")
            .args(["-O", "OpenFlow13", "--timeout=20"])
            .args(verb)
            .arg(&self.target)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn run(&self, verb: &[&str], arguments: &[&str], input: &str) -> String {
        self.try_run(verb, arguments, input).unwrap_or_else(|error| panic!("{verb:?}: {error}"))
    }

    fn flows(&self) -> usize {
        self.switch.pipeline().tables().iter().map(|table| table.len()).sum()
    }
}

/// Table I by hand, as `docs/gtp-switch.md` has it.
const TABLE_ONE: &str = "\
table=0,priority=300,in_port=100,actions=goto_table:1
table=0,priority=260,in_port=LOCAL,udp,nw_dst=10.0.0.12,tp_dst=2152,actions=set_field:02:00:00:00:00:0c->eth_dst,goto_table:2
table=0,priority=250,in_port=LOCAL,actions=goto_table:2
table=0,priority=200,udp,nw_src=10.0.0.1,nw_dst=10.0.0.11,tp_dst=2152,actions=LOCAL
table=0,priority=0,actions=goto_table:2
table=1,priority=100,tun_dst=10.0.0.11,tun_id=7,actions=set_field:10.0.0.12->tun_dst,IN_PORT
table=1,priority=0,actions=IN_PORT
table=2,priority=100,dl_dst=02:00:00:00:00:01,actions=output:1
table=2,priority=100,dl_dst=02:00:00:00:00:0b,actions=output:2
table=2,priority=100,dl_dst=02:00:00:00:00:0c,actions=output:3
table=2,priority=0,actions=CONTROLLER
";

#[test]
fn table_one_by_hand() {
    if !is_there() {
        return;
    }
    let switch = start();
    switch.run(&["add-flows"], &["-"], TABLE_ONE);
    assert_eq!(switch.flows(), 11);
    let frame = uplink(GW1, &gpdu_5g(7, &user_packet()));
    let pipeline = switch.switch.pipeline();
    assert_eq!(pass(&pipeline, 1, &frame), (3, readdressed(&frame, GW2_MAC, GW2)));
    let frame = uplink(GW1, &gpdu_5g(8, &user_packet()));
    assert_eq!(pass(&pipeline, 1, &frame), (2, frame));
    drop(pipeline);
    let dump = switch.run(&["dump-flows"], &[], "");
    let line = dump.lines().find(|line| line.contains("tun_id=0x7")).unwrap();
    for part in [
        "table=1",
        "n_packets=1",
        "priority=100",
        "tun_dst=10.0.0.11",
        "set_field:10.0.0.12->tun_dst,IN_PORT",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let some = switch.run(&["dump-flows"], &["table=1"], "");
    assert_eq!(some.lines().filter(|line| line.contains("cookie")).count(), 2, "{some}");
    let sum = switch.run(&["dump-aggregate"], &["table=1"], "");
    assert!(sum.contains("packet_count=2") && sum.contains("flow_count=2"), "{sum}");
    switch.run(&["del-flows"], &["table=2"], "");
    assert_eq!(switch.flows(), 7);
    switch.run(&["--strict", "del-flows"], &["table=1,priority=100,tun_dst=10.0.0.11,tun_id=7"], "");
    assert_eq!(switch.flows(), 6);
    switch.run(&["mod-flows"], &["table=1,actions=drop"], "");
    assert!(switch.run(&["dump-flows"], &["table=1"], "").contains("actions=drop"));
}

#[test]
fn what_the_switch_is() {
    if !is_there() {
        return;
    }
    let switch = start();
    let show = switch.run(&["show"], &[], "");
    for part in [
        "dpid:0000000000001234",
        "n_tables:8",
        "1(ran)",
        "3(anchor2)",
        "LOCAL(edge)",
        "100(gtp)",
        "addr:02:00:00:00:01:02",
    ] {
        assert!(show.contains(part), "{part}: {show}");
    }
    let description = switch.run(&["dump-desc"], &[], "");
    assert!(description.contains("Hardware: Godwit") && description.contains("cell site 7"), "{description}");
    assert!(switch.run(&["dump-ports"], &[], "").contains("4 ports"));
    assert!(switch.run(&["dump-ports"], &["2"], "").contains("rx pkts=0"));
    let tables = switch.run(&["dump-tables"], &[], "");
    assert!(tables.contains("table 0") && tables.contains("active=0"), "{tables}");
    let features = switch.run(&["dump-table-features"], &[], "");
    for part in [
        "gtpu_{flags,msgtype}",
        "packet_type",
        "max_entries=262144",
        "supported on Set-Field: tun_{id,src,dst,",
    ] {
        assert!(features.contains(part), "{part}: {features}");
    }
    let groups = switch.run(&["dump-group-features"], &[], "");
    assert!(groups.contains("all group:") && groups.contains("fast failover group:"), "{groups}");
    assert!(switch.run(&["probe"], &[], "").is_empty());
}

#[test]
fn groups() {
    if !is_there() {
        return;
    }
    let switch = start();
    switch.run(&["add-group"], &["group_id=1,type=all,bucket=output:2,bucket=output:3"], "");
    switch.run(
        &["add-group"],
        &["group_id=2,type=ff,bucket=watch_port:2,output:2,bucket=watch_port:3,output:3"],
        "",
    );
    switch.run(&["add-flow"], &["in_port=1,actions=group:1"], "");
    assert_eq!(send(&switch.switch.pipeline(), 1, &uplink(GW1, &gpdu(7, &user_packet()))).0.len(), 2);
    let groups = switch.run(&["dump-groups"], &[], "");
    assert!(groups.contains("group_id=1,type=all,bucket=") && groups.contains("type=ff"), "{groups}");
    let stats = switch.run(&["dump-group-stats"], &[], "");
    assert!(stats.contains("ref_count=1,packet_count="), "{stats}");
    let error = switch.try_run(&["add-group"], &["group_id=3,type=select,bucket=output:2"], "").unwrap_err();
    assert!(error.contains("OFPGMFC"), "{error}");
    switch.run(&["mod-group"], &["group_id=1,type=all,bucket=output:3"], "");
    switch.run(&["del-groups"], &[], "");
    assert_eq!(switch.flows(), 0, "with the group went the entry that used it");
}

#[test]
fn bundles_change_all_or_nothing() {
    if !is_there() {
        return;
    }
    let switch = start();
    switch.run(&["--bundle", "add-flows"], &["-"], TABLE_ONE);
    assert_eq!(switch.flows(), 11);
    let before = switch.switch.version();
    let lines = format!("{TABLE_ONE}table=3,actions=group:99\n").replace("priority=100", "priority=101");
    let error = switch.try_run(&["--bundle", "add-flows"], &["-"], &lines).unwrap_err();
    assert!(error.contains("OFPBAC_BAD_OUT_GROUP"), "{error}");
    assert_eq!((switch.flows(), switch.switch.version()), (11, before));
    let error = switch.try_run(&["add-flow"], &["table=9,actions=drop"], "").unwrap_err();
    assert!(error.contains("OFPFMFC_BAD_TABLE_ID"), "{error}");
    // 10,000 users at once.
    let users: String = (0..10_000)
        .map(|user| {
            format!("table=1,priority=100,tun_dst=10.0.0.11,tun_id={user},actions=set_field:10.0.0.12->tun_dst,IN_PORT\n")
        })
        .collect();
    let before = switch.switch.version();
    switch.run(&["--bundle", "add-flows"], &["-"], &users);
    assert_eq!((switch.flows(), switch.switch.version()), (10_010, before + 1));
    let dump = switch.run(&["dump-flows"], &["table=1"], "");
    assert_eq!(dump.lines().filter(|line| line.contains("tun_id")).count(), 10_000);
}
