//! Packets that wait for a token: in the pipeline, and in workers on ports of the test.
#![allow(clippy::disallowed_methods, reason = "a test waits for the time-out")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use openflow::*;
use pktio::frame::NO_PEER;
use pktio::interface::WorkersConfig;
use pktio::memory::{self, Wire};
use serde_json::Value;
use switch::core::{Identity, PortCounts, Switch, SwitchPort};
use switch::host::{self, Host, PortSet};
use switch::pipeline::parse::Headers;
use switch::pipeline::trace::{Dropped, Step};
use switch::pipeline::{HoldPorts, Limits, Pipeline, Ports, exact};

const HOLD: u32 = 101;
const RELEASE: u32 = 102;
const QUEUE: u32 = 7;
/// The token's port inside.
const TOKEN: u16 = 40_007;

fn with_hold(timeout_ms: u64) -> Pipeline {
    let mut limits = Limits::default();
    limits.hold.timeout_ns = timeout_ms * 1_000_000;
    let live = PORTS.iter().map(|port| (*port, true)).chain([(PortNo::LOCAL.0, true)]).collect();
    let hold = Some(HoldPorts { hold: HOLD, release: RELEASE });
    Pipeline::new(limits, Ports { live, gtp: Some(GTP), hold })
}

/// To the user: what the second anchor sends waits until the token has come by the first one.
fn rules() -> Vec<FlowMod> {
    let mut rules = table_one();
    for anchor in [GW1, GW2] {
        rules.push(add(0, 200, tunnel(anchor, ENB), Instructions::apply([Action::output(PortNo::LOCAL)])));
    }
    rules
}

fn waiting() -> FlowMod {
    let fields = [Oxm::metadata(0), Oxm::tun_ipv4_src(GW2), Oxm::tun_ipv4_dst(ENB), Oxm::tunnel_id(33)];
    add(1, 280, fields, Instructions::apply([Action::SetQueue(QUEUE), output(HOLD)]))
}

fn token_rule() -> FlowMod {
    let inside = [Oxm::packet_type(PacketType::IPV4), Oxm::ip_proto(17), Oxm::udp_dst(TOKEN)];
    let fields = [Oxm::tun_ipv4_src(GW1), Oxm::tun_ipv4_dst(ENB), Oxm::tunnel_id(33)];
    let fields = fields.into_iter().chain(inside);
    add(1, 290, fields, Instructions::apply([Action::SetQueue(QUEUE), output(RELEASE)]))
}

fn downlink(from: std::net::Ipv4Addr, mac: [u8; 6], port: u16, number: u16) -> Vec<u8> {
    let inner = udp((SERVER.into(), 53), (UE1.into(), port), &number.to_be_bytes());
    let packet = udp((from.into(), 2152), (ENB.into(), 2152), &gpdu_5g(33, &inner));
    packet::ethernet::build(ENB_MAC, mac, None, packet::ethernet::IPV4, &packet)
}

fn by_gw1(number: u16) -> Vec<u8> {
    downlink(GW1, GW1_MAC, 4000, number)
}

fn by_gw2(number: u16) -> Vec<u8> {
    downlink(GW2, GW2_MAC, 4000, number)
}

fn token() -> Vec<u8> {
    downlink(GW1, GW1_MAC, TOKEN, 0)
}

#[test]
fn entries_put_packets_into_queues_and_take_them_when_they_come_back() {
    let mut pipeline = with_hold(200);
    install(&mut pipeline, rules().into_iter().chain([waiting(), token_rule()]));
    let trace = |frame: &[u8]| {
        let headers = Headers::parse(frame, 3);
        let trace = pipeline.trace(&headers.outer, &headers.inner);
        assert!(
            trace.steps == [Step::Output(1)]
                || exact::exact(&pipeline, &headers.outer, &headers.inner, &trace).is_none(),
            "XDP would not hold"
        );
        trace
    };
    assert_eq!(trace(&by_gw2(1)).steps, [Step::Hold(QUEUE)]);
    assert_eq!(trace(&token()).steps, [Step::Release(QUEUE)]);
    assert_eq!(trace(&by_gw1(1)).steps, [Step::Output(1)]);
    // It comes back, and goes on as if it had not waited; and it is not for XDP.
    let back = Headers::parse_held(&by_gw2(1), HOLD, QUEUE);
    let on = pipeline.trace(&back.outer, &back.inner);
    assert_eq!((&on.steps[..], on.dropped), (&[Step::Output(1)][..], None));
    assert!(exact::exact(&pipeline, &back.outer, &back.inner, &on).is_none());
    // The two differ in what they have consulted, so that no cache takes one for the other.
    let came = Headers::parse(&by_gw2(1), 3);
    let differs = (0..came.outer.len()).any(|word| {
        (came.outer[word] ^ back.outer[word]) & on.consulted.outer[word] != 0
            || (came.inner[word] ^ back.inner[word]) & on.consulted.inner[word] != 0
    });
    assert!(differs);

    // Nothing waits twice, or without a queue.
    let anyhow = |actions: Vec<Action>| {
        let mut pipeline = with_hold(200);
        install(&mut pipeline, [add(0, 1, [], Instructions::apply(actions))]);
        pipeline
    };
    let always = anyhow(vec![Action::SetQueue(QUEUE), Action::output(PortNo::IN_PORT), output(HOLD)]);
    let trace = always.trace(&back.outer, &back.inner);
    assert_eq!((&trace.steps[..], trace.dropped), (&[][..], Some(Dropped::TooLong)));
    let none = anyhow(vec![output(HOLD)]);
    assert_eq!(none.trace(&came.outer, &came.inner).dropped, Some(Dropped::TooLong));
}

#[test]
fn queues_are_refused_where_there_are_none() {
    let mut pipeline = pipeline();
    let queue = add(0, 1, [], Instructions::apply([Action::SetQueue(1), output(2)]));
    assert_eq!(pipeline.commit(&[Change::FlowMod(queue)], 0).unwrap_err().code, Code::OFPBAC_BAD_QUEUE);
    let hold = add(0, 1, [], Instructions::apply([output(HOLD)]));
    assert_eq!(pipeline.commit(&[Change::FlowMod(hold)], 0).unwrap_err().code, Code::OFPBAC_BAD_OUT_PORT);
}

/// A switch of one worker, and the far ends of its ports.
struct Running {
    switch: Arc<Switch>,
    wires: Vec<Wire>,
    _host: Host,
}

fn start(timeout_ms: u64) -> Running {
    let port = |number: u32| SwitchPort {
        number,
        name: format!("port{number}"),
        mac: [0; 6],
        counts: PortCounts::default(),
    };
    let identity = Identity { datapath_id: 7, description: String::new() };
    let switch = Switch::new(identity, with_hold(timeout_ms), PORTS.map(port).into(), 1000);
    let (ports, wires): (Vec<_>, Vec<_>) = PORTS.iter().map(|_| memory::pair(usize::MAX)).unzip();
    let ports: path::Ports = ports.into_iter().map(|port| Box::new(port) as _).collect();
    let sets = vec![PortSet { ports, inputs: vec![0, 1, 2] }];
    let host = host::start(&switch, sets, &WorkersConfig::default()).unwrap();
    let changes: Vec<_> = rules().into_iter().chain([waiting(), token_rule()]).map(Change::FlowMod).collect();
    switch.commit(&changes).unwrap();
    Running { switch, wires, _host: host }
}

impl Running {
    fn put(&self, at: usize, frame: &[u8]) {
        self.wires[at].inject(frame, NO_PEER);
    }

    fn take(&self, at: usize) -> Vec<Vec<u8>> {
        self.wires[at].take().into_iter().map(|(frame, _)| frame).collect()
    }

    fn hold(&self, member: &str) -> Value {
        self.switch.hold().status()[member].clone()
    }

    /// Numbers of the packets that have come to the base station, once there are so many.
    fn numbers(&self, count: usize) -> Vec<u16> {
        let mut numbers = Vec::new();
        for _ in 0..2000 {
            numbers.extend(self.take(0).iter().map(|frame| {
                check(frame);
                u16::from_be_bytes(frame[frame.len() - 2..].try_into().unwrap())
            }));
            if numbers.len() >= count {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        numbers
    }

    fn until(&self, member: &str, number: u64) {
        for _ in 0..2000 {
            if self.hold(member) == number {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{member}: {}", self.switch.hold().status());
    }
}

#[test]
fn packets_of_the_new_path_leave_behind_those_of_the_old_one() {
    let running = start(10_000);
    (100..300).for_each(|number| running.put(2, &by_gw2(number)));
    running.until("waiting", 200);
    // The old path is slower. Its last packets and the token come together.
    (0..100).for_each(|number| running.put(1, &by_gw1(number)));
    running.put(1, &token());
    assert_eq!(running.numbers(300), (0..300).collect::<Vec<_>>());
    (300..400).for_each(|number| running.put(2, &by_gw2(number)));
    assert_eq!(running.numbers(100), (300..400).collect::<Vec<_>>());
    let status = running.switch.hold().status();
    assert_eq!(
        (&status["held"], &status["released"], &status["passed"]),
        (&200.into(), &200.into(), &100.into())
    );
    assert_eq!((running.hold("tokens"), running.hold("idle_tokens")), (1.into(), 0.into()));
    // Each packet was counted by the entry once.
    running.switch.settle();
    let flow = |priority: u16| {
        let pipeline = running.switch.pipeline();
        let counts =
            pipeline.tables()[1].flows().find(|flow| flow.priority == priority).unwrap().counters.get();
        counts.0
    };
    assert_eq!((flow(280), flow(290)), (300, 1));
}

#[test]
fn a_time_out_needs_no_further_packets() {
    let running = start(50);
    (0..200).for_each(|number| running.put(2, &by_gw2(number)));
    assert_eq!(running.numbers(200), (0..200).collect::<Vec<_>>());
    assert_eq!((running.hold("timeouts"), running.hold("held")), (1.into(), 200.into()));
    // The token comes too late, and is swallowed.
    running.put(1, &token());
    running.until("idle_tokens", 1);
    assert!(running.numbers(0).is_empty());
}

/// The entry goes while packets wait: they leave, and those behind them are not overtaken.
#[test]
fn packets_do_not_wait_for_an_entry_that_is_gone() {
    let running = start(10_000);
    (0..100).for_each(|number| running.put(2, &by_gw2(number)));
    running.until("waiting", 100);
    // A controller lets them go, then removes the entry.
    let open = PacketOut {
        buffer_id: BufferId::NO_BUFFER,
        in_port: PortNo::CONTROLLER,
        actions: vec![Action::SetQueue(QUEUE), output(RELEASE)],
        data: token(),
    };
    running.switch.commit(&[Change::PacketOut(open)]).unwrap();
    let gone = FlowMod { priority: 280, ..FlowMod::delete(TableId(1), waiting().matching) };
    running.switch.commit(&[Change::FlowMod(gone)]).unwrap();
    (100..200).for_each(|number| running.put(2, &by_gw2(number)));
    assert_eq!(running.numbers(200), (0..200).collect::<Vec<_>>());
    assert_eq!(running.hold("passed"), 0);
}

/// A bundle's packets leave behind all that was treated by the entries from before.
#[test]
fn packets_of_a_bundle_are_sent_behind_its_change() {
    let running = start(200);
    let frame = |number: u16| {
        let inner = udp((UE1.into(), 40_000), (SERVER.into(), 53), &number.to_be_bytes());
        uplink(GW1, &gpdu_5g(7, &inner))
    };
    (0..1000).for_each(|number| running.put(0, &frame(number)));
    let behind = PacketOut {
        buffer_id: BufferId::NO_BUFFER,
        in_port: PortNo::LOCAL,
        actions: vec![Action::output(PortNo::TABLE)],
        data: frame(9999),
    };
    let bad = PacketOut { actions: vec![output(99)], ..behind.clone() };
    let failed = running.switch.commit(&[Change::FlowMod(divert(7)), Change::PacketOut(bad)]).unwrap_err();
    assert_eq!((failed.at, failed.code), (1, Code::OFPBAC_BAD_OUT_PORT));
    running.switch.commit(&[Change::FlowMod(divert(7)), Change::PacketOut(behind)]).unwrap();
    (1000..1100).for_each(|number| running.put(0, &frame(number)));
    running.switch.settle();
    let last = |frames: &[Vec<u8>]| -> Vec<u16> {
        frames.iter().map(|frame| u16::from_be_bytes(frame[frame.len() - 2..].try_into().unwrap())).collect()
    };
    let old = last(&running.take(1));
    assert_eq!(old.last(), Some(&9999));
    let mut new = Vec::new();
    while new.len() + old.len() < 1101 {
        new.extend(last(&running.take(2)));
    }
    assert_eq!([&old[..old.len() - 1], &new[..]].concat(), (0..1100).collect::<Vec<_>>());
}
