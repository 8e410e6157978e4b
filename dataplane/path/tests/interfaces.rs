//! Workers whose ports were opened from a configuration: a node with kernel sockets on one side and a memif for each peer on the
//! other, which sleeps while nothing comes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]
#![allow(clippy::disallowed_methods, reason = "a test's own thread may sleep")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use net::time::now_std;
use path::{Graph, Ports};
use pktio::interface::{self, DpdkConfig, Interface, LinkConfig, OpenError, Setup, Traffic, WorkersConfig};
use pktio::{Pool, Port, Slab, VECTOR, Vector};

const PATIENCE: Duration = Duration::from_secs(20);
/// The longest packet of the links.
const LONGEST: usize = 9000;

/// Sends every datagram back, with its interface's number in front.
struct Echo(Arc<dyn Pool>);

impl Graph for Echo {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.0
    }

    fn process(&mut self, input: usize, vector: &mut Vector, _: u64, ports: &mut Ports) {
        for mut frame in vector.frames_mut() {
            assert!(frame.grow_front(1));
            frame.packet_mut()[0] = input as u8;
        }
        let all: Vec<u16> = (0..vector.len() as u16).collect();
        ports[input].transmit(vector, &all);
    }

    fn recover(&mut self, lost: usize) {
        panic!("{lost} packets lost");
    }

    fn interface_name(&self, _: usize) -> &str {
        "interface"
    }
}

fn tunnels(place: &str, link: &str) -> Interface {
    let link: LinkConfig = serde_json::from_str(link).unwrap();
    link.check(place, interface::Content::Tunnels).unwrap();
    Interface { place: place.to_owned(), point: "f1u", link, traffic: Traffic::Tunnels }
}

fn setup<'a>(section: &'a str, workers: Option<u32>, dpdk: &'a DpdkConfig) -> Setup<'a> {
    Setup { section, workers, dpdk, taps: None }
}

/// A memif's link with the address 10.0.`link`.`host` and an MTU of its own.
fn memif(folder: &std::path::Path, link: usize, host: u8) -> String {
    let (role, mtu) = (["server", "client"][usize::from(host - 1)], [1600, LONGEST][link % 2]);
    let socket = folder.join(format!("{link}.sock"));
    format!(
        r#"{{"backend": "memif", "device": "memif{link},role={role},socket={}", "mtu": {mtu},
            "addresses": ["10.0.{link}.{host}/24"], "gtpu": "10.0.{link}.{host}:2152"}}"#,
        socket.display()
    )
}

/// Sends a datagram and waits for the answer; repeats the first one, which may come before the other side is there.
fn ask(port: &mut dyn Port, to: SocketAddr, payload: &[u8], again: bool) -> (Vec<u8>, Duration) {
    let (mut out, mut into) = (Vector::new(1, LONGEST), Vector::new(VECTOR, LONGEST + 22));
    let start = now_std();
    let mut sent_at = None::<Duration>;
    loop {
        let elapsed = start.elapsed();
        assert!(elapsed < PATIENCE, "no answer from {to}");
        if sent_at.is_none_or(|sent| again && elapsed - sent > Duration::from_millis(100)) {
            out.clear();
            assert!(out.push(payload, to));
            let sent = port.transmit(&mut out, &[0]);
            assert!(again || sent.packets == 1, "{sent:?}");
            sent_at = Some(elapsed);
        }
        if port.receive(&mut into).unwrap() > 0 {
            assert_eq!(into.peer(0), to);
            return (into.frames()[0].packet().to_vec(), start.elapsed());
        }
    }
}

/// A CU in the hybrid model: N3 on a socket of the kernel, F1-U on a memif for each of four DUs. Its worker sleeps in epoll and is
/// woken by either side; each DU gets its answers through its own memif, as long as its MTU allows.
#[test]
fn a_hybrid_node_with_a_memif_for_each_peer_sleeps_and_is_woken_by_all() {
    const PEERS: usize = 4;
    let folder = std::env::temp_dir().join(format!("godwit-path-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let dpdk = DpdkConfig::default();
    let mut interfaces = vec![tunnels("cu.n3", r#"{"gtpu": "127.0.0.1:21520"}"#)];
    interfaces.extend((0..PEERS).map(|link| tunnels(&format!("cu.f1u[{link}]"), &memif(&folder, link, 1))));
    let opened = interface::open(&setup("cu", Some(1), &dpdk), interfaces).unwrap();
    assert_eq!(opened.workers.len(), 1);
    assert_eq!((&opened.workers[0].name[..], opened.workers[0].inputs.len()), ("cu-0", 1 + PEERS));
    assert!(opened.signalling.iter().all(|ports| ports.len() == 1));
    let home: Arc<dyn Pool> = Slab::new(2 * VECTOR, LONGEST + 22);
    let config = WorkersConfig { poll_us: 0, ..WorkersConfig::default() };
    let workers = path::start_all(opened.workers, &config, [Echo(Arc::clone(&home))]).unwrap();

    let mut peers: Vec<_> = (0..PEERS)
        .map(|link| {
            let own = tunnels(&format!("du{link}.f1u"), &memif(&folder, link, 2));
            let opened = interface::open(&setup("du", Some(1), &dpdk), vec![own]).unwrap();
            opened.workers.into_iter().flat_map(|worker| worker.ports).next().unwrap()
        })
        .collect();
    let server = |link: usize| SocketAddr::from(([10, 0, link as u8, 1], 2152));
    for (link, peer) in peers.iter_mut().enumerate() {
        ask(peer, server(link), b"hello", true);
        // Answers to what was sent again.
        std::thread::sleep(Duration::from_millis(50));
        let mut rest = Vector::new(VECTOR, LONGEST + 22);
        while peer.receive(&mut rest).unwrap() > 0 {}
    }
    let kernel = UdpSocket::bind("127.0.0.1:0").unwrap();
    kernel.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut longest = Duration::ZERO;
    for round in 0..20usize {
        // The worker sleeps by then.
        std::thread::sleep(Duration::from_millis(10));
        let link = round % PEERS;
        let most = [1600, LONGEST][link % 2] - 28;
        let length = (most - 1) * (round + 1) / 20;
        let payload: Vec<u8> = (0..length).map(|i| (i * 7 + round) as u8).collect();
        let (answer, took) = ask(&mut peers[link], server(link), &payload, false);
        assert_eq!((answer[0], &answer[1..]), (1 + link as u8, &payload[..]));
        longest = longest.max(took);

        std::thread::sleep(Duration::from_millis(10));
        let mut buffer = [0; LONGEST];
        kernel.send_to(&payload, "127.0.0.1:21520").unwrap();
        let (length, from) = kernel.recv_from(&mut buffer).unwrap();
        assert_eq!((length, from), (payload.len() + 1, "127.0.0.1:21520".parse().unwrap()));
        assert_eq!((buffer[0], &buffer[1..length]), (0, &payload[..]));
    }
    // A worker that is not woken would sleep until something else comes.
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    drop(workers);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Messages name the node's own section and the interface's key.
#[test]
fn what_cannot_be_opened_is_said_with_place_and_advice() {
    let dpdk = DpdkConfig::default();
    let open = |workers, link: &str| {
        interface::open(&setup("du", workers, &dpdk), vec![tunnels("du.f1u", link)]).err().unwrap()
    };
    let absent = open(Some(1), r#"{"gtpu": "192.0.2.77:2152"}"#);
    assert!(matches!(&absent, OpenError::Gtpu { place, .. } if place == "du.f1u"), "{absent}");
    let folder = open(
        Some(1),
        r#"{"backend": "memif", "device": "m0,role=server,socket=/absent/folder/m.sock",
            "addresses": ["10.0.0.1/24"], "gtpu": "10.0.0.1:2152"}"#,
    );
    let folder = folder.to_string();
    assert!(
        folder.starts_with("du.f1u: ") && folder.ends_with("make the folder of the socket first"),
        "{folder}"
    );
    let socket = std::env::temp_dir().join(format!("godwit-queues-{}.sock", std::process::id()));
    let queues = open(
        Some(2),
        &format!(
            r#"{{"backend": "memif", "device": "m0,role=server,socket={}",
                "addresses": ["10.0.0.1/24"], "gtpu": "10.0.0.1:2152"}}"#,
            socket.display()
        ),
    );
    assert!(queues.to_string().starts_with("du.workers: count is 2"), "{queues}");
}
