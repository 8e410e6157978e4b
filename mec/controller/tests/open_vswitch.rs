//! The controller with Debian's Open vSwitch as the switch, in namespaces of the test, with real GTP-U between endpoints.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering::Relaxed;

use common::{Edge, Endpoint, g_pdu, g_pdu_5g, run, until};
use net::time::{self, Duration};
use serde_json::{Value, json};

fn ue(number: u32) -> String {
    format!("10.45.{}.{}", number >> 8, number & 255)
}

fn diversion(number: u32, station: &str) -> Value {
    json!({"ue": ue(number), "from": "gw1", "to": "gw2", "base_station": station, "confirmed_by": "test"})
}

/// Sends a packet of a user to gw1; returns at which anchor it arrives, after checking that nothing in it has changed.
async fn arrives(edge: &Edge, from: &Endpoint, octets: &[u8]) -> &'static str {
    from.send(&edge.gw1, octets).await;
    tokio::select! {
        (received, source) = edge.gw1.receive() => {
            assert_eq!((&received[..], source.ip()), (octets, from.address), "SW-3");
            "gw1"
        }
        (received, source) = edge.gw2.receive() => {
            assert_eq!((&received[..], source.ip()), (octets, from.address), "SW-2");
            "gw2"
        }
        // Open vSwitch may lose a packet while its rules change.
        () = time::sleep(Duration::from_secs(1)) => "nowhere",
    }
}

/// Sends until a packet arrives at this anchor: with Open vSwitch a move is confirmed by data.
async fn arrives_at(edge: &Edge, from: &Endpoint, octets: &[u8], anchor: &str) {
    for _ in 0..10 {
        if arrives(edge, from, octets).await == anchor {
            return;
        }
        time::sleep(Duration::from_millis(50)).await;
    }
    for switch in &edge.switches {
        eprintln!("{}", switch.flows());
    }
    panic!("packets do not get to {anchor}: {}", edge.get("/v1/events").await);
}

/// FWD-1…4: what is flooded at first takes a rule afterwards, and the controller sees no more of it.
#[test]
fn fwd_known_destinations_have_rules_and_packets_no_longer_reach_the_controller() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        edge.control().await;
        let packet = g_pdu(1, &ue(1), "8.8.8.8", 53, b"hello");
        assert_eq!(arrives(&edge, &edge.enb1, &packet).await, "gw1");
        edge.gw1.send(&edge.enb1, &packet).await;
        assert_eq!(edge.enb1.receive().await.0, packet);
        let missed = async || {
            let flows = edge.switches[0].flows();
            let line = flows
                .lines()
                .find(|line| line.contains("table=2") && line.contains("priority=1 "))
                .unwrap()
                .to_owned();
            let count = line.split("n_packets=").nth(1).unwrap().split(',').next().unwrap();
            count.parse::<u64>().unwrap()
        };
        let before = missed().await;
        for _ in 0..50 {
            assert_eq!(arrives(&edge, &edge.enb1, &packet).await, "gw1");
        }
        let after = missed().await;
        assert!(after - before < 10, "FWD-4: {before}, {after}");
        // FWD-5: the ways between all anchors and base stations are there soon, also those without a packet on them.
        edge.discovered().await;
    });
}

/// DIV-1…3, SW-2, SW-3, SW-8: one user, others unchanged, path messages, back; repeated calls; SW-1's counters.
#[test]
fn div_one_user_is_diverted_and_nothing_else() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        edge.control().await;
        let moved = g_pdu(0x11, &ue(1), "8.8.8.8", 53, b"moved");
        let other = g_pdu(0x12, &ue(2), "8.8.8.8", 53, b"other");
        assert_eq!(arrives(&edge, &edge.enb1, &moved).await, "gw1");
        let done = edge.divert(diversion(1, "enb1")).await;
        assert_eq!(done["changed"], json!(["gw1~10.45.0.1"]));
        arrives_at(&edge, &edge.enb1, &moved, "gw2").await;
        assert_eq!(arrives(&edge, &edge.enb1, &other).await, "gw1", "SW-3");
        let container = g_pdu_5g(0x13, &ue(3), "8.8.8.8", 53, b"5G");
        assert_eq!(arrives(&edge, &edge.enb1, &container).await, "gw1", "SW-9");
        // SW-8: path messages and unknown ones reach the anchor that they are for.
        let end_marker = [0x30, 254, 0, 0, 0, 0, 0, 0x11];
        let echo = [0x32, 1, 0, 4, 0, 0, 0, 0, 0, 7, 0, 0];
        for message in [&end_marker[..], &echo[..]] {
            assert_eq!(arrives(&edge, &edge.enb1, message).await, "gw1", "SW-8");
        }
        // Downlink is forwarded (SW-4).
        edge.gw2.send(&edge.enb1, &moved).await;
        assert_eq!(edge.enb1.receive().await.1.ip(), edge.gw2.address);

        // DIV-1: repeated calls change nothing.
        let again = edge.divert(diversion(1, "enb1")).await;
        assert_eq!((&again["changed"], &again["unchanged"]), (&json!([]), &json!(["gw1~10.45.0.1"])));

        // DIV-2: a further user is one more rule.
        let rules = edge.switches[0].flows().lines().count();
        edge.divert(diversion(4, "enb1")).await;
        assert_eq!(edge.switches[0].flows().lines().count(), rules + 1, "DIV-2");

        // Where its packets go, and by which rules. SW-1: each counts a packet once.
        let counted = async || {
            let explained = edge.get("/v1/ues/10.45.0.1").await;
            let up = &explained["explained"][0]["ways"][0];
            assert_eq!((&up["destination"], &up["teid"]), (&json!("10.0.0.12"), &json!(null)), "{up}");
            let rules = up["rules"].as_array().unwrap().clone();
            let names: Vec<&str> = rules.iter().filter_map(|rule| rule["rule"].as_str()).collect();
            assert_eq!(names, ["SW-T0-M1", "SW-T0-H", "SW-T1-H", "SW-T0-M2", "SW-T2-M"]);
            rules[2]["packets"].as_u64().unwrap()
        };
        let before = counted().await;
        for _ in 0..10 {
            assert_eq!(arrives(&edge, &edge.enb1, &moved).await, "gw2");
        }
        until("SW-1", async || (counted().await == before + 10).then_some(())).await;

        // Undiverted it is as before: only the probe's and the forwarding rules are left.
        let (status, done) =
            edge.call("POST", "/v1/diversions/remove", Some(json!({"ues": [ue(1), ue(4)]}))).await;
        assert_eq!((status, done["changed"].as_array().unwrap().len()), (200, 2));
        arrives_at(&edge, &edge.enb1, &moved, "gw1").await;
        let (status, done) = edge.call("DELETE", "/v1/diversions/gw1~10.45.0.1", None).await;
        assert_eq!((status, &done["changed"]), (200, &json!([])), "idempotent");
        until("no rule is left", async || {
            let flows = edge.switches[0].flows();
            (!flows.contains("table=1") && !flows.contains("LOCAL")).then_some(())
        })
        .await;
    });
}

/// DIV-5: many users at once, effective together; a request with a mistake changes nothing.
#[test]
fn div_many_users_move_at_once_or_not_at_all() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        edge.control().await;
        edge.divert(diversion(1, "enb1")).await;
        let many =
            |count: u32| Value::from((1..=count).map(|number| diversion(number, "enb1")).collect::<Vec<_>>());
        let begin = time::now();
        let done = edge.divert(many(1000)).await;
        eprintln!("1,000 users diverted in {:?}", time::now() - begin);
        assert_eq!((done["changed"].as_array().unwrap().len(), done["rules_set"].as_u64()), (999, Some(999)));
        for number in [1, 500, 1000] {
            let packet = g_pdu(number, &ue(number), "8.8.8.8", 53, b"many");
            arrives_at(&edge, &edge.enb1, &packet, "gw2").await;
        }
        let mut bad = many(1001);
        bad[1000]["to"] = json!("nowhere");
        assert_eq!(edge.call("POST", "/v1/diversions", Some(bad)).await.0, 404);
        let packet = g_pdu(1001, &ue(1001), "8.8.8.8", 53, b"many");
        assert_eq!(arrives(&edge, &edge.enb1, &packet).await, "gw1");
        let ues: Vec<String> = (1..=1000).map(ue).collect();
        let (status, _) = edge.call("POST", "/v1/diversions/remove", Some(json!({"ues": ues}))).await;
        assert_eq!(status, 200);
        let packet = g_pdu(500, &ue(500), "8.8.8.8", 53, b"many");
        arrives_at(&edge, &edge.enb1, &packet, "gw1").await;
    });
}

/// SW-5: an application of a user, a pair of users, everything of an anchor; and 5G users by TEID.
#[test]
fn sw_5_applications_pairs_anchors_and_5g_users() {
    run(|home| async move {
        let mut edge = Edge::start_with(&home, false, |config| {
            config["base_stations"][1]["access"] = json!("5g");
        })
        .await;
        edge.control().await;
        let mut flow = diversion(1, "enb1");
        flow["application"] = json!({"protocol": 17, "server": "9.9.9.9", "port": 53});
        edge.divert(flow).await;
        arrives_at(&edge, &edge.enb1, &g_pdu(1, &ue(1), "9.9.9.9", 53, b"dns"), "gw2").await;
        for (server, port) in [("9.9.9.9", 54), ("8.8.8.8", 53)] {
            let packet = g_pdu(1, &ue(1), server, port, b"else");
            assert_eq!(arrives(&edge, &edge.enb1, &packet).await, "gw1");
        }
        let mut pair = diversion(2, "enb1");
        pair["peer"] = json!(ue(3));
        edge.divert(pair).await;
        arrives_at(&edge, &edge.enb1, &g_pdu(2, &ue(2), &ue(3), 99, b"to 3"), "gw2").await;
        arrives_at(&edge, &edge.enb1, &g_pdu(3, &ue(3), &ue(2), 99, b"to 2"), "gw2").await;
        assert_eq!(arrives(&edge, &edge.enb1, &g_pdu(2, &ue(2), "8.8.8.8", 99, b"else")).await, "gw1");

        // 5G: by TEID; what Open vSwitch cannot do is refused with its reason.
        let mut user = diversion(5, "enb2");
        let (status, problem) = edge.call("POST", "/v1/diversions", Some(user.clone())).await;
        assert!(status == 422 && problem["detail"].as_str().unwrap().contains("by TEID only"), "{problem}");
        user["tunnels"] = json!([{"uplink": 0x55}]);
        edge.divert(user).await;
        arrives_at(&edge, &edge.enb2, &g_pdu_5g(0x55, &ue(5), "8.8.8.8", 53, b"5G"), "gw2").await;
        assert_eq!(arrives(&edge, &edge.enb2, &g_pdu_5g(0x56, &ue(6), "8.8.8.8", 53, b"5G")).await, "gw1");

        let mut all = diversion(0, "enb1");
        all.as_object_mut().unwrap().remove("ue");
        edge.divert(all).await;
        arrives_at(&edge, &edge.enb1, &g_pdu(9, &ue(9), "8.8.8.8", 1, b"any"), "gw2").await;
        let echo = [0x32, 1, 0, 4, 0, 0, 0, 0, 0, 7, 0, 0];
        assert_eq!(arrives(&edge, &edge.enb1, &echo).await, "gw1", "SW-8");
    });
}

/// The controller is killed and comes back: traffic goes on, the diversions are known, and nothing is sent as nothing differs.
/// Then the switch is killed: it gets everything again.
#[test]
fn controller_and_switch_are_killed_and_come_back() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        edge.control().await;
        edge.discovered().await;
        let moved = g_pdu(0x11, &ue(1), "8.8.8.8", 53, b"moved");
        edge.divert(diversion(1, "enb1")).await;
        arrives_at(&edge, &edge.enb1, &moved, "gw2").await;
        let shape = |flows: String| {
            let mut lines: Vec<String> = flows
                .lines()
                .filter(|line| line.contains("cookie="))
                .map(|line| {
                    line.split(", ")
                        .filter(|part| {
                            !part.contains("n_") && !part.contains("duration") && !part.contains("idle_age")
                        })
                        .collect::<Vec<_>>()
                        .join(", ")
                })
                .collect();
            lines.sort();
            lines
        };
        let before = shape(edge.switches[0].flows());
        drop(edge.controller.take());
        for _ in 0..20 {
            assert_eq!(arrives(&edge, &edge.enb1, &moved).await, "gw2", "without a controller");
        }
        edge.control().await;
        until("diversions known", async || {
            let explained = edge.get("/v1/diversions").await;
            (explained["diversions"].as_array()?.len() == 1).then_some(())
        })
        .await;
        // Probes are wanted before diversions can be; they are right already, too.
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(shape(edge.switches[0].flows()), before);
        // What was compared and sent would be in the log.
        let events = edge.get("/v1/events").await.to_string();
        assert!(!events.contains("rules of"), "{events}");
        assert_eq!(arrives(&edge, &edge.enb1, &moved).await, "gw2");

        // Someone else removes the user's rule: it is noticed, and comes back.
        edge.switches[0].programs.ofctl("del-flows", &["table=1"]);
        arrives_at(&edge, &edge.enb1, &moved, "gw2").await;
        // Open vSwitch may forward by what it remembers for a moment, before the controller hears of the removal.
        until("the removal is noticed", async || {
            let events = edge.get("/v1/events").await.to_string();
            events.contains("someone else has removed a rule of diverting").then_some(())
        })
        .await;
        arrives_at(&edge, &edge.enb1, &moved, "gw2").await;

        // A foreign rule stays, whatever is synchronised.
        edge.switches[0].programs.ofctl("add-flow", &["cookie=0x77,table=9,priority=9,actions=drop"]);

        edge.switches[0].programs.kill_daemon();
        edge.switches[0].programs.start_daemon();
        let neighbours = edge.neighbours.clone();
        edge.switches[0].local(&[], &neighbours).await;
        arrives_at(&edge, &edge.enb1, &moved, "gw2").await;
        let other = g_pdu(0x12, &ue(2), "8.8.8.8", 53, b"other");
        assert_eq!(arrives(&edge, &edge.enb1, &other).await, "gw1");
    });
}

/// TOP-3: applications are stopped and started alone; their rules stay.
#[test]
fn top_3_applications_are_stopped_alone_and_their_rules_stay() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        edge.control().await;
        edge.discovered().await;
        let moved = g_pdu(0x11, &ue(1), "8.8.8.8", 53, b"moved");
        edge.divert(diversion(1, "enb1")).await;
        arrives_at(&edge, &edge.enb1, &moved, "gw2").await;
        for app in ["diverting", "forwarding", "capture"] {
            let (status, done) = edge.call("POST", &format!("/v1/applications/{app}/stop"), None).await;
            assert_eq!((status, &done["changed"]), (200, &json!(true)));
            arrives_at(&edge, &edge.enb1, &moved, "gw2").await;
        }
        let (status, problem) = edge.call("POST", "/v1/diversions", Some(diversion(2, "enb1"))).await;
        assert!(status == 503 && problem["detail"].as_str().unwrap().contains("start"), "{problem}");
        for app in ["diverting", "forwarding", "capture"] {
            assert_eq!(edge.call("POST", &format!("/v1/applications/{app}/start"), None).await.0, 200);
            let (_, again) = edge.call("POST", &format!("/v1/applications/{app}/start"), None).await;
            assert_eq!(again["changed"], json!(false));
        }
        until("alive again", async || {
            let anchors = edge.get("/v1/anchors").await;
            anchors["anchors"]
                .as_array()?
                .iter()
                .any(|a| a["name"] == "gw2" && a["alive"] == true)
                .then_some(())
        })
        .await;
        edge.divert(diversion(2, "enb1")).await;
        assert_eq!(arrives(&edge, &edge.enb1, &moved).await, "gw2");
        arrives_at(&edge, &edge.enb1, &g_pdu(2, &ue(2), "8.8.8.8", 53, b"second"), "gw2").await;
    });
}

/// Wrong requests change nothing and say what to do. DIV-3: an anchor that does not answer is refused.
#[test]
fn wrong_requests_are_refused_with_what_to_do() {
    run(|home| async move {
        let mut edge =
            Edge::start_with(&home, false, |config| config["diverting"]["restore"] = json!(true)).await;
        edge.control().await;
        let with = |key: &str, value: Value| {
            let mut body = diversion(1, "enb1");
            body[key] = value;
            body
        };
        edge.divert(diversion(7, "enb1")).await;
        // Forwarding may learn meanwhile.
        let diverting = |flows: String| flows.lines().filter(|line| line.contains("cookie=0x2")).count();
        let before = diverting(edge.switches[0].flows());
        assert!(before > 0);
        for (body, status, said) in [
            (with("to", json!("gw9")), 404, "there is no anchor `gw9`"),
            (with("to", json!("gw3")), 409, "does not answer GTP-U Echo"),
            (with("ue", json!("10.45.0.300")), 400, "invalid IP address"),
            (with("base_station", json!("enb9")), 404, "there is no base station"),
            (with("confirmed_by", json!("")), 400, "who has confirmed"),
            (with("what", json!(1)), 400, "unknown field"),
            (json!("x"), 400, ""),
        ] {
            let (is, problem) = edge.call("POST", "/v1/diversions", Some(body)).await;
            assert_eq!(is, status, "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains(said), "{problem}");
        }
        assert_eq!(diverting(edge.switches[0].flows()), before, "nothing has changed");

        // An anchor that stops answering: an event, refused as a target, and its users go back.
        let moved = g_pdu(7, &ue(7), "8.8.8.8", 53, b"back");
        arrives_at(&edge, &edge.enb1, &moved, "gw2").await;
        edge.gw2.answers.store(false, Relaxed);
        until("event", async || {
            let events = edge.get("/v1/events").await.to_string();
            events.contains("anchor gw2 does not answer").then_some(())
        })
        .await;
        arrives_at(&edge, &edge.enb1, &moved, "gw1").await;
        assert_eq!(edge.call("POST", "/v1/diversions", Some(diversion(1, "enb1"))).await.0, 409);
        edge.gw2.answers.store(true, Relaxed);
        edge.divert_when_alive(diversion(1, "enb1")).await;
    });
}

/// DIV-4: a handover to a base station at another switch: its rules are there before the old ones go.
#[test]
fn div_4_a_handover_moves_the_rules_to_the_other_switch() {
    run(|home| async move {
        let mut edge = Edge::start(&home, true).await;
        edge.control().await;
        let moved = g_pdu(0x11, &ue(1), "8.8.8.8", 53, b"moved");
        edge.divert(diversion(1, "enb1")).await;
        arrives_at(&edge, &edge.enb1, &moved, "gw2").await;
        assert_eq!(arrives(&edge, &edge.enb2, &moved).await, "gw1", "not there yet");
        let done = edge.divert(diversion(1, "enb2")).await;
        assert_eq!(done["done"], json!(["edge2", "edge1"]), "the new one first");
        arrives_at(&edge, &edge.enb2, &moved, "gw2").await;
        arrives_at(&edge, &edge.enb1, &moved, "gw1").await;
        until("no rule is left", async || (!edge.switches[0].flows().contains("table=1")).then_some(()))
            .await;
    });
}

/// A G-PDU with a packet of the user in it.
fn in_tunnel(teid: u32, packet: &[u8]) -> Vec<u8> {
    let mut octets = vec![0x30, 255];
    octets.extend((packet.len() as u16).to_be_bytes());
    octets.extend(teid.to_be_bytes());
    octets.extend(packet);
    octets
}

/// Packets that Open vSwitch takes for different things, by the ninth octet: the time to live of IPv4, the source of IPv6.
fn packets(from: &str, to: &str) -> Vec<Vec<u8>> {
    let (from, to): (Ipv4Addr, Ipv4Addr) = (from.parse().unwrap(), to.parse().unwrap());
    let times = [1, 63, 64, 79, 80, 100, 128, 255].map(|ttl| {
        let text = format!("time to live {ttl}");
        let datagram =
            packet::transport::build_udp((from.into(), 4000), (to.into(), 53), text.as_bytes()).unwrap();
        let header =
            packet::ipv4::Header { ttl, ..packet::ipv4::Header::new(from, to, packet::protocol::UDP) };
        header.build(&datagram).unwrap()
    });
    let ipv6 = ["fd00::1", "2001:db8::1", "4000::1"].map(|address| {
        let ends = (address.parse().unwrap(), "2001:db8::2".parse().unwrap());
        packet::ipv6::Header::new(ends.0, ends.1, packet::protocol::UDP)
            .build(&[0, 53, 0, 53, 0, 8, 0, 0])
            .unwrap()
    });
    times.into_iter().chain(ipv6).collect()
}

/// SEL-4, SEL-5, SW-11: where the new anchor gave another TEID, both directions are rewritten, whatever the user's packets are; SW-3: those
/// of other users are left alone.
#[test]
fn sel_teids_are_rewritten_both_ways_and_other_users_are_left_alone() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        edge.control().await;
        let mut user = diversion(1, "enb1");
        user["tunnels"] =
            json!([{"uplink": 0x11, "downlink": 0x21, "target_uplink": 0x99, "target_downlink": 0x77}]);
        edge.divert(user).await;
        // With Open vSwitch a move is confirmed by data.
        let is_at = async |edge: &Edge, packet: &[u8], moved: bool| {
            edge.enb1.send(&edge.gw1, &in_tunnel(0x11, packet)).await;
            tokio::select! {
                _ = edge.gw1.receive() => (!moved).then_some(()),
                _ = edge.gw2.receive() => moved.then_some(()),
                // It may lose a packet while its rules change.
                () = time::sleep(Duration::from_millis(500)) => None,
            }
        };
        let all = packets(&ue(1), "8.8.8.8");
        until("moved", async || is_at(&edge, &all[0], true).await).await;
        for packet in &all {
            edge.enb1.send(&edge.gw1, &in_tunnel(0x11, packet)).await;
            assert_eq!(edge.gw2.receive().await.0, in_tunnel(0x99, packet), "SEL-4");
            edge.enb1.send(&edge.gw1, &in_tunnel(0x12, packet)).await;
            assert_eq!(edge.gw1.receive().await.0, in_tunnel(0x12, packet), "SW-3");
        }
        for packet in packets("8.8.8.8", &ue(1)) {
            edge.gw2.send(&edge.enb1, &in_tunnel(0x77, &packet)).await;
            let (received, from) = edge.enb1.receive().await;
            assert_eq!((received, from.ip()), (in_tunnel(0x21, &packet), edge.gw1.address), "SEL-5, SW-11");
            edge.gw2.send(&edge.enb1, &in_tunnel(0x22, &packet)).await;
            let (received, from) = edge.enb1.receive().await;
            assert_eq!((received, from.ip()), (in_tunnel(0x22, &packet), edge.gw2.address), "SW-3");
        }
        // And back, whatever flows the switch has cached.
        let (status, _) = edge.call("POST", "/v1/diversions/remove", Some(json!({"ues": [ue(1)]}))).await;
        assert_eq!(status, 200);
        for packet in &all {
            until("back", async || is_at(&edge, packet, false).await).await;
        }
    });
}

/// What a user sends is never taken for a frame of its own: it stays in its tunnel, though it looks like a path message to an anchor.
#[test]
fn a_user_cannot_send_as_a_base_station() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        edge.control().await;
        let mut user = diversion(1, "enb1");
        user["tunnels"] = json!([{"uplink": 0x11, "downlink": 0x21}]);
        edge.divert(user).await;
        // The first octet of IPv4, addresses of frames, their type, and GTP-U in somebody else's tunnel.
        let forged = in_tunnel(0x12, &packets(&ue(2), "9.9.9.9")[0]);
        let datagram =
            packet::transport::build_udp((edge.enb1.address, 2152), (edge.gw1.address, 2152), &forged)
                .unwrap();
        let (IpAddr::V4(from), IpAddr::V4(to)) = (edge.enb1.address, edge.gw1.address) else {
            panic!("IPv4")
        };
        let packet = packet::ipv4::Header::new(from, to, packet::protocol::UDP).build(&datagram).unwrap();
        let frame =
            packet::ethernet::build([0x45, 0, 0, 0, 0, 0], [0, 0, 0x3f, 0, 0, 0], None, 0x0800, &packet);
        for teid in [0x12, 0x13] {
            let sent = in_tunnel(teid, &frame);
            edge.enb1.send(&edge.gw1, &sent).await;
            assert_eq!(edge.gw1.receive().await.0, sent);
        }
        // Of a GTP' message, which no anchor takes, nothing is left.
        let mut other = in_tunnel(0x12, &frame);
        other[0] = 0x20;
        edge.enb1.send(&edge.gw1, &other).await;
        let last = in_tunnel(0x13, &packets(&ue(3), "8.8.8.8")[0]);
        edge.enb1.send(&edge.gw1, &last).await;
        assert_eq!(edge.gw1.receive().await.0, last);
    });
}
