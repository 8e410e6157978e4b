//! Moves in order: a user between two real anchors on the edge's own switches, with numbered packets both ways. The way by the first
//! anchor is the slower one, so that packets of the other way overtake unless they wait.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use lab::edge::{self, Session};
use lab::{Lab, SimulatorOptions};
use net::link::Links;
use net::netns::NetNs;
use net::time::{self, Duration};
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::frame::NO_PEER;
use pktio::{Port as _, Vector};
use serde_json::{Value, json};

use crate::flow::{Flow, Found, bind, until};

/// How much longer the way by the first anchor takes.
const SLOWER: Duration = Duration::from_millis(10);
/// Moves there and back.
const MOVES: usize = 24;
const PATIENCE: Duration = Duration::from_secs(60);
const UE_PORT: u16 = 5000;
const DN_PORT: u16 = 6000;

/// A link that keeps frames for a while, both ways.
struct Relay {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Relay {
    /// Puts itself behind the switch's interface of this name.
    async fn start(namespace: &NetNs, name: &str) -> Relay {
        let links = Links::in_ns(namespace).unwrap();
        links.down(name).await.unwrap();
        links.rename(name, "slow-far").await.unwrap();
        links.add_veth(name, "slow-near", namespace).await.unwrap();
        for name in [name, "slow-far", "slow-near"] {
            links.up(name).await.unwrap();
        }
        let ends = Arc::<AtomicBool>::default();
        let (own, space) = (Arc::clone(&ends), namespace.clone());
        let run = move || space.enter(move || relay(&own)).unwrap();
        Relay { ends, thread: Some(std::thread::spawn(run)) }
    }
}

fn relay(ends: &AtomicBool) {
    let open = |name: &str| Interface::open(name, None, &[Select::Everything]).unwrap();
    let interfaces = ["slow-near", "slow-far"].map(open);
    let devices = interfaces.each_ref().map(|interface| interface.device());
    let mut memory = Memory::with_more(2, 512, devices).unwrap();
    let mut ports = interfaces
        .each_ref()
        .map(|interface| AfXdpPort::open(interface, [0], &mut memory, Options::default()).unwrap());
    let pool = ports[0].pool().unwrap();
    let (mut vector, mut out) = (Vector::of(&pool), Vector::of(&pool));
    // By the port to which they go.
    let mut kept: [VecDeque<(u64, Vec<u8>)>; 2] = Default::default();
    while !ends.load(Relaxed) {
        for at in [0, 1] {
            ports[at].receive(&mut vector).unwrap();
            let due_ns = time::now_ns() + SLOWER.as_nanos() as u64;
            kept[1 - at].extend(vector.frames().iter().map(|frame| (due_ns, frame.packet().to_vec())));
            vector.clear();
        }
        let now_ns = time::now_ns();
        for at in [0, 1] {
            out.clear();
            while out.len() < 32 && kept[at].front().is_some_and(|(due_ns, _)| *due_ns <= now_ns) {
                let (_, frame) = kept[at].pop_front().unwrap();
                assert!(out.push(&frame, NO_PEER));
            }
            let all: Vec<u16> = (0..out.len() as u16).collect();
            assert_eq!(ports[at].transmit(&mut out, &all).packets, all.len());
        }
        time::sleep_thread(Duration::from_micros(100));
    }
}

/// Moves the user there and back; the answers.
async fn moves(lab: &Lab, session: &Session, how: &str, count: usize) -> Vec<Value> {
    let there = json!({
        "ue": session.ue, "tunnels": [{"uplink": session.uplink_teid, "downlink": session.downlink_teid}],
        "from": edge::CENTRAL, "to": edge::SITES[0].anchor, "base_station": edge::GNB, "confirmed_by": "the test's copy",
    });
    let id = format!("{}~{}", edge::CENTRAL, session.ue);
    let mut answers = Vec::new();
    for number in 0..count {
        let answer = match number % 2 {
            0 => lab.controller("POST", &format!("/v1/diversions{how}"), Some(&there)).await,
            _ => lab.controller("DELETE", &format!("/v1/diversions/{id}{how}"), None).await,
        };
        answers.push(answer.unwrap());
        time::sleep(Duration::from_millis(120)).await;
    }
    answers
}

/// Asks the controller what is too long for an argument of curl.
async fn ask(space: &NetNs, path: &'static str, body: Value) -> Value {
    let space = space.clone();
    let call = move || {
        let runtime = space.runtime(1).unwrap();
        let rest = edge::REST.parse().unwrap();
        space
            .enter(|| runtime.block_on(nf::rest::call(PATIENCE, rest, "POST", path, Some(&body))))
            .unwrap()
            .unwrap()
    };
    let answer = tokio::task::spawn_blocking(call).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// EV-9: nothing is lost, doubled or overtaken while a user moves there and back under load, both ways; without `order=keep` packets
/// are overtaken.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_moves_in_order() {
    let mut options = lab::Options::new(1).unwrap();
    options.edges = 1;
    let mut lab = Lab::start(options).await.unwrap();
    let space = lab.namespace_of("controller").clone();
    let _relay = Relay::start(&space, edge::N6_PORTS[1]).await;
    let mut clones = lab.start_edge().await.unwrap();
    until("the controller has its switches and anchors", async || {
        let anchors = lab.controller("GET", "/v1/anchors", None).await.ok()?;
        let switches = lab.controller("GET", "/v1/switches", None).await.ok()?;
        let all = |list: &Value, member: &str| {
            list.as_array().is_some_and(|list| list.len() == 2 && list.iter().all(|one| one[member] == true))
        };
        (all(&anchors["anchors"], "alive") && all(&switches["switches"], "connected")).then_some(())
    })
    .await;
    let simulated =
        SimulatorOptions { ues: 1, session_type: "IPV4".to_owned(), ..SimulatorOptions::default() };
    let mut simulator = lab.simulate(&simulated).unwrap();
    let mut namespaces: BTreeMap<Ipv4Addr, NetNs> = BTreeMap::new();
    while namespaces.is_empty() {
        let event = time::timeout(PATIENCE, simulator.next()).await.unwrap().unwrap();
        assert_ne!(event.kind(), "failed", "{:?}", event.text("detail"));
        if event.kind() == "session" {
            namespaces.insert(event.text("ipv4").unwrap().parse().unwrap(), event.namespace().unwrap());
        }
    }
    let sessions = lab.oam("smf", "GET", "/sessions").await.unwrap();
    let session = Session::of(&sessions[0]).unwrap();
    clones.copy(&session).await.unwrap();

    let user = bind(&namespaces[&session.ue], session.ue, UE_PORT);
    let server = bind(lab.dn(), lab::DN, DN_PORT);
    let up = Flow::start(&user, &server, (lab::DN, DN_PORT).into());
    let down = Flow::start(&server, &user, (session.ue, UE_PORT).into());
    // Neighbours and translations are known.
    moves(&lab, &session, "", 2).await;

    let first = [up.next(), down.next()];
    moves(&lab, &session, "", 4).await;
    let found = [up.since(first[0]).await, down.since(first[1]).await];
    eprintln!("without order: up {:?}, down {:?}", found[0], found[1]);
    assert!(found.iter().all(|found| found.reordered > 0), "the test must be able to fail");

    let first = [up.next(), down.next()];
    let answers = moves(&lab, &session, "?order=keep", MOVES).await;
    let found = [up.since(first[0]).await, down.since(first[1]).await];
    let sum =
        |member: &str| answers.iter().map(|answer| answer["order"][member].as_u64().unwrap()).sum::<u64>();
    eprintln!(
        "in order: up {:?}, down {:?}; {} packets held, {} us control and {} us waiting for a move",
        found[0],
        found[1],
        sum("held"),
        sum("control_us") / MOVES as u64,
        sum("waited_us") / MOVES as u64,
    );
    let switches = [lab.switch_status("n3").await.unwrap(), lab.switch_status("n6").await.unwrap()];
    for status in &switches {
        eprintln!("{} {} {}", status["hold"], status["drops"], status["events"]);
    }
    for answer in &answers {
        assert_eq!(
            (&answer["order"]["kept"], &answer["order"]["moves"]),
            (&json!(true), &json!(1)),
            "{answer}"
        );
    }
    for found in &found {
        assert_eq!(*found, Found { sent: found.sent, ..Found::default() });
    }
    assert!(sum("held") > 0, "packets of the faster way have waited");
    drop((up, down));

    // A thousand users whom the anchors do not know: nobody's token comes, and nobody waits longer than the time for it.
    let many = |number: u32| {
        let [.., third, fourth] = number.to_be_bytes();
        let teid = 0x7000_0000 + number;
        json!({
            "ue": Ipv4Addr::new(10, 46, third, fourth), "tunnels": [{"uplink": teid, "downlink": teid}],
            "from": edge::CENTRAL, "to": edge::SITES[0].anchor, "base_station": edge::GNB, "confirmed_by": "nobody",
        })
    };
    let all = json!((1..=1000).map(many).collect::<Vec<_>>());
    for _ in 0..3 {
        let done = ask(&space, "/v1/diversions?order=keep", all.clone()).await;
        let order = &done["order"];
        assert_eq!(
            (&order["kept"], &order["moves"], &order["timed_out"]),
            (&json!(false), &json!(1000), &json!(1000))
        );
        eprintln!("1,000 users: {order}");
        let ues: Vec<_> = all.as_array().unwrap().iter().map(|one| one["ue"].clone()).collect();
        let back = json!({"ues": ues, "order": "keep"});
        let done = ask(&space, "/v1/diversions/remove", back).await;
        eprintln!("and back: {}", done["order"]);
    }
    simulator.stop().await.unwrap();
    lab.stop().await.unwrap();
}
