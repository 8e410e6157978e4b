//! `godwit mec switch run` and `show`, with `ovs-ofctl` as the controller.

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use serde_json::Value;

/// A child that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const RULES: &str = "\
table=0,priority=10,arp,actions=FLOOD
table=0,priority=10,udp,tp_dst=7000,actions=goto_table:1
table=1,priority=1,in_port=1,actions=output:2
";

fn has_ovs_ofctl() -> bool {
    let version =
        Command::new("ovs-ofctl").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if version.is_ok() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "ovs-ofctl is missing: scripts/setup.sh test");
    eprintln!("skipped: ovs-ofctl is missing");
    false
}

/// Two hosts on a switch: the program runs in its own namespace, takes its rules by OpenFlow, forwards, shows what it did, and
/// goes on by its rules when its controller has gone.
#[test]
fn a_switch_that_is_driven_by_ovs_ofctl() {
    let switch = match NetNs::new() {
        Ok(switch) if has_ovs_ofctl() => switch,
        Ok(_) => return,
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "namespaces: {error}");
            eprintln!("skipped: namespaces: {error}");
            return;
        }
    };
    let hosts = [(); 2].map(|()| NetNs::new().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let links = Links::in_ns(&switch).unwrap();
        for (number, host) in (1..).zip(&hosts) {
            let name = format!("port{number}");
            links.add_veth(&name, "eth0", host).await.unwrap();
            links.up(&name).await.unwrap();
            let far = Links::in_ns(host).unwrap();
            far.add_address("eth0", format!("10.0.0.{number}/24").parse().unwrap()).await.unwrap();
            far.up("eth0").await.unwrap();
            host.enter(|| pktio::af_xdp::device::Device::find("eth0").unwrap().send_whole_frames().unwrap())
                .unwrap();
        }
    });
    switch.enter(net::netns::loopback_up).unwrap().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("edge.yaml");
    let config = format!(
        "run_dir: {}\nmec:\n  switch:\n    datapath_id: 7\n    listen: 127.0.0.1:6654\n    gtp_port: 100\n    ports:\n      \
         - {{number: 1, interface: port1}}\n      - {{number: 2, interface: port2}}\n",
        folder.path().display()
    );
    std::fs::write(&file, config).unwrap();
    let file = file.to_str().unwrap();
    let program = lab::find_godwit().unwrap();
    let run = || {
        Command::new(&program)
            .args(["mec", "switch", "run", "-c", file])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let _running = Running(switch.enter(run).unwrap());
    let show = || {
        let output =
            Command::new(&program).args(["mec", "switch", "show", "--json", "-c", file]).output().unwrap();
        output.status.success().then(|| serde_json::from_slice::<Value>(&output.stdout).unwrap())
    };
    wait(|| show().is_some());
    let rules = folder.path().join("rules");
    std::fs::write(&rules, RULES).unwrap();
    let install = || {
        let mut command = Command::new("ovs-ofctl");
        command.args(["-O", "OpenFlow13", "--bundle", "add-flows", "tcp:127.0.0.1:6654"]).arg(&rules);
        command.status().unwrap()
    };
    assert!(switch.enter(install).unwrap().success());
    let socket =
        |host: usize, address: &str| hosts[host].enter(|| UdpSocket::bind(address).unwrap()).unwrap();
    let (client, server) = (socket(0, "10.0.0.1:0"), socket(1, "10.0.0.2:7000"));
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut buffer = [0; 64];
    for number in 0..100u8 {
        client.send_to(&[number; 32], "10.0.0.2:7000").unwrap();
        assert_eq!(server.recv(&mut buffer).unwrap(), 32);
        assert_eq!(buffer[..32], [number; 32]);
    }
    let status = show().unwrap();
    let entries = status["entries"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["table"] == 1).unwrap();
    assert_eq!(
        (&entry["packets"], &entry["match"], &entry["actions"]),
        (&100.into(), &"in_port=1".into(), &"output:2".into())
    );
    assert!(status["controllers"].as_array().unwrap().is_empty(), "nobody is connected, and it forwards");
    let output = Command::new(&program).args(["mec", "switch", "show", "-c", file]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["0000000000000007", "port1", "udp_dst=7000", "goto_table:1", "translations="] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

fn wait(until: impl Fn() -> bool) {
    for _ in 0..200 {
        if until() {
            return;
        }
        net::time::sleep_thread(Duration::from_millis(50));
    }
    panic!("it does not come");
}
