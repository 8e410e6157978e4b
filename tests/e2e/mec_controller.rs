//! `godwit mec controller` with `godwit mec switch`: users diverted by commands, with real GTP-U between namespaces.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use net::link::Links;
use net::netns::NetNs;
use packet::gtpu::{self, Signalling};
use serde_json::Value;

/// The controller asks from here.
const PROBE: &str = "10.0.0.250";

/// A child that is killed with the test, or before.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A base station or anchor: its thread answers the controller's echoes and passes everything else on.
struct Endpoint {
    socket: UdpSocket,
    received: mpsc::Receiver<(Vec<u8>, SocketAddr)>,
}

impl Endpoint {
    fn start(namespace: &NetNs, address: &str) -> Endpoint {
        let socket = namespace.enter(|| UdpSocket::bind((address, 2152)).unwrap()).unwrap();
        let (sender, received) = mpsc::channel();
        let own = socket.try_clone().unwrap();
        own.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            loop {
                let Ok((length, from)) = own.recv_from(&mut buffer) else {
                    // The test is over when nobody listens.
                    if sender.send((Vec::new(), SocketAddr::from(([0; 4], 0)))).is_err() {
                        return;
                    }
                    continue;
                };
                match gtpu::decode(&buffer[..length]) {
                    Ok(Some(Signalling::EchoRequest { sequence })) if from.ip().to_string() == PROBE => {
                        let _ = own.send_to(&Signalling::EchoResponse { sequence }.build(), from);
                    }
                    _ => {
                        if sender.send((buffer[..length].to_vec(), from)).is_err() {
                            return;
                        }
                    }
                }
            }
        });
        Endpoint { socket, received }
    }

    fn next(&self) -> Option<(Vec<u8>, SocketAddr)> {
        self.received.try_iter().find(|(octets, _)| !octets.is_empty())
    }
}

struct Edge {
    space: NetNs,
    folder: tempfile::TempDir,
    enb: Endpoint,
    gw1: Endpoint,
    gw2: Endpoint,
    program: std::path::PathBuf,
}

impl Edge {
    fn start() -> Option<Edge> {
        let space = match NetNs::new() {
            Ok(space) => space,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "namespaces: {error}");
                eprintln!("skipped: namespaces: {error}");
                return None;
            }
        };
        space.enter(net::netns::loopback_up).unwrap().unwrap();
        let addresses = ["10.0.0.1", "10.0.0.11", "10.0.0.12"];
        let hosts = [(); 3].map(|()| NetNs::new().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let links = Links::in_ns(&space).unwrap();
            for (number, host) in hosts.iter().enumerate() {
                let name = format!("port{}", number + 1);
                links.add_veth(&name, "eth0", host).await.unwrap();
                links.up(&name).await.unwrap();
                let far = Links::in_ns(host).unwrap();
                far.add_address("eth0", format!("{}/24", addresses[number]).parse().unwrap()).await.unwrap();
                far.up("eth0").await.unwrap();
                host.enter(|| {
                    pktio::af_xdp::device::Device::find("eth0").unwrap().send_whole_frames().unwrap()
                })
                .unwrap();
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let config = format!(
            "run_dir: {path}\nmec:\n  switch:\n    datapath_id: 7\n    controllers: [\"127.0.0.1:6653\"]\n    gtp_port: 100\n    \
             local: edge0\n    ports:\n      - {{number: 1, interface: port1}}\n      - {{number: 2, interface: port2}}\n      \
             - {{number: 3, interface: port3}}\n  controller:\n    state: {path}/state\n    switches:\n      \
             - {{name: edge, datapath_id: 7, place: access, probe: {PROBE}}}\n    anchors:\n      \
             - {{name: gw1, address: 10.0.0.11}}\n      - {{name: gw2, address: 10.0.0.12}}\n    base_stations:\n      \
             - {{name: gnb, address: 10.0.0.1, switch: edge, access: 5g}}\n    diverting: {{echo_ms: 200}}\n    \
             forwarding: {{discovery_s: 1}}\n"
        );
        std::fs::write(folder.path().join("edge.yaml"), config).unwrap();
        let [enb, gw1, gw2] = [0, 1, 2].map(|at: usize| Endpoint::start(&hosts[at], addresses[at]));
        Some(Edge { space, folder, enb, gw1, gw2, program: lab::find_godwit().unwrap() })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("mec").args(arguments).arg("-c").arg(self.folder.path().join("edge.yaml"));
        command
    }

    fn run(&self, part: &str) -> Running {
        let mut command = self.command(&[part, "run"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Running(self.space.enter(|| command.spawn().unwrap()).unwrap())
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        self.space.enter(|| command.output().unwrap()).unwrap()
    }

    /// Asks until the command succeeds; returns what it says.
    fn done(&self, arguments: &[&str]) -> String {
        let mut output = self.ask(arguments);
        for _ in 0..200 {
            if output.status.success() {
                return String::from_utf8(output.stdout).unwrap();
            }
            net::time::sleep_thread(Duration::from_millis(50));
            output = self.ask(arguments);
        }
        panic!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Sends to the first anchor; at which one it arrives, unchanged and from the base station.
    fn arrives(&self, octets: &[u8]) -> &'static str {
        self.enb.socket.send_to(octets, "10.0.0.11:2152").unwrap();
        for _ in 0..500 {
            for (name, anchor) in [("gw1", &self.gw1), ("gw2", &self.gw2)] {
                if let Some((received, from)) = anchor.next() {
                    assert_eq!((&received[..], from.ip()), (octets, IpAddr::from([10, 0, 0, 1])), "SW-3");
                    return name;
                }
            }
            net::time::sleep_thread(Duration::from_millis(2));
        }
        "nowhere"
    }

    fn arrives_at(&self, octets: &[u8], anchor: &str) {
        let is_there = (0..20).any(|_| self.arrives(octets) == anchor);
        assert!(
            is_there,
            "not at {anchor}: {}",
            String::from_utf8_lossy(&self.ask(&["list", "events"]).stdout)
        );
    }
}

/// A G-PDU, with PDU session container and sequence number if it is one of 5G.
fn g_pdu(five_g: bool, teid: u32, ue: &str, port: u16) -> Vec<u8> {
    let mut octets = vec![if five_g { 0x36 } else { 0x30 }, 255, 0, 0];
    octets.extend(teid.to_be_bytes());
    if five_g {
        octets.extend([0x12, 0x34, 0, 0x85, 1, 0x10, 5, 0]);
    }
    let (from, to) = (ue.parse().unwrap(), [9, 9, 9, 9].into());
    let datagram =
        packet::transport::build_udp((IpAddr::V4(from), 4000), (IpAddr::V4(to), port), b"hello").unwrap();
    octets.extend(packet::ipv4::Header::new(from, to, 17).build(&datagram).unwrap());
    let length = (octets.len() - 8) as u16;
    octets[2..4].copy_from_slice(&length.to_be_bytes());
    octets
}

/// DIV-1…3, SW-1, SW-3, SW-5, SW-8, SW-9: a user and an application of a 5G user; everything by commands. Then `kill -9` of the
/// controller and of the switch.
#[test]
fn users_are_diverted_on_our_switch_by_commands() {
    let Some(edge) = Edge::start() else { return };
    let mut switch = edge.run("switch");
    let controller = edge.run("controller");
    let user = g_pdu(true, 0x11, "10.45.0.1", 80);
    let other = g_pdu(true, 0x12, "10.45.0.2", 80);
    edge.arrives_at(&user, "gw1");
    let refused = edge.ask(&["divert", "10.45.0.1", "--from", "gw1", "--to", "gw9", "--base-station", "gnb"]);
    assert!(!refused.status.success());

    let divert =
        ["divert", "10.45.0.1", "--teid", "0x11", "--from", "gw1", "--to", "gw2", "--base-station", "gnb"];
    assert!(edge.done(&divert).contains("gw1~10.45.0.1: diverted"));
    edge.arrives_at(&user, "gw2");
    assert_eq!(edge.arrives(&other), "gw1");
    assert_eq!(edge.arrives(&g_pdu(false, 0x13, "10.45.0.3", 80)), "gw1");
    let echo = [0x32, 1, 0, 4, 0, 0, 0, 0, 0, 7, 0, 0];
    assert_eq!(edge.arrives(&echo), "gw1", "SW-8");
    assert!(edge.done(&divert).contains("nothing to do"), "idempotent");

    // SW-5: an application, behind extension headers.
    let application = [
        "divert",
        "10.45.0.2",
        "--server",
        "9.9.9.9",
        "--port",
        "53",
        "--from",
        "gw1",
        "--to",
        "gw2",
        "--base-station",
        "gnb",
    ];
    edge.done(&application);
    edge.arrives_at(&g_pdu(true, 0x12, "10.45.0.2", 53), "gw2");
    assert_eq!(edge.arrives(&other), "gw1");

    // SW-1: each rule on the way counts a packet once.
    let counts = || {
        let explained: Value = serde_json::from_str(&edge.done(&["explain", "10.45.0.1", "--json"])).unwrap();
        let way = &explained["explained"][0]["ways"][0];
        assert_eq!((&way["destination"], &way["teid"]), (&"10.0.0.12".into(), &0x11.into()), "{way}");
        let rules = way["rules"].as_array().unwrap();
        let names: Vec<&str> = rules.iter().filter_map(|rule| rule["rule"].as_str()).collect();
        assert_eq!(names, ["SW-T0-M1", "SW-T0-H", "SW-T1-H", "SW-T0-M2", "SW-T2-M"]);
        rules.iter().map(|rule| rule["packets"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let before = counts();
    for _ in 0..10 {
        assert_eq!(edge.arrives(&user), "gw2");
    }
    let mut after = counts();
    for _ in 0..50 {
        if after[2] == before[2] + 10 {
            break;
        }
        net::time::sleep_thread(Duration::from_millis(50));
        after = counts();
    }
    let grown: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    assert_eq!((grown[0], grown[1], grown[2]), (10, 10, 10), "SW-1");
    let text = edge.done(&["explain", "10.45.0.1"]);
    assert!(
        text.contains("uplink at edge to 10.0.0.12: output to port3") && text.contains("SW-T1-H"),
        "{text}"
    );

    // The controller is killed: traffic goes on, and it knows everything when it is back.
    drop(controller);
    assert_eq!(edge.ask(&["list"]).status.code(), Some(4), "not reachable");
    assert_eq!(edge.arrives(&user), "gw2");
    let _controller = edge.run("controller");
    let list: Value = serde_json::from_str(&edge.done(&["list", "--json"])).unwrap();
    assert_eq!(list["diversions"].as_array().unwrap().len(), 2);
    assert_eq!(edge.arrives(&user), "gw2");

    // The switch is killed: it gets its rules when it is back.
    drop(switch);
    switch = edge.run("switch");
    edge.arrives_at(&user, "gw2");
    assert_eq!(edge.arrives(&other), "gw1");

    // DIV-5: many at once.
    let many: Vec<String> =
        (0..1000).map(|number| format!("10.46.{}.{}", number >> 8, number & 255)).collect();
    let mut command = vec!["divert", "--from", "gw1", "--to", "gw2", "--base-station", "gnb"];
    command.extend(many.iter().map(String::as_str));
    let begin = net::time::now_std();
    edge.done(&command);
    let answered = begin.elapsed();
    assert_eq!(edge.arrives(&g_pdu(true, 0x99, "10.46.3.231", 80)), "gw2", "the last one, and at once");
    eprintln!("1,000 users: command answered after {answered:?}, first packet after {:?}", begin.elapsed());
    assert_eq!(edge.arrives(&other), "gw1");

    assert!(edge.done(&["undivert", "10.45.0.1", "10.45.0.2"]).contains("no longer diverted"));
    edge.arrives_at(&user, "gw1");
    let mut command = vec!["undivert"];
    command.extend(many.iter().map(String::as_str));
    edge.done(&command);
    assert!(edge.done(&["list"]).contains("nobody is diverted"));
    drop(switch);
}
