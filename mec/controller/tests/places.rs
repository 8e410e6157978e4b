//! Switches at other places than the access: before the MME or SMF, and on SGi or N6; Debian's Open vSwitch, in namespaces of the test.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod common;

use common::{Edge, further, g_pdu, host, run, socket, until};
use controller::config::{CaptureMode, Place, Sgi, Switch, parse_mac};
use net::time::{self, Duration};
use serde_json::json;

fn switch(name: &str, datapath_id: u64, place: Place, external: Option<&str>) -> Switch {
    Switch {
        name: name.to_owned(),
        datapath_id,
        place,
        probe: None,
        gtp_port: "gtp".to_owned(),
        local: Default::default(),
        external: external.map(str::to_owned),
        capture: false,
    }
}

/// TOP-2, CAP-1…4: what the MME sends passes and is copied, answers too, everything else only passes; by copy, and via the controller.
#[test]
fn cap_control_messages_are_copied_and_filed_under_their_anchor() {
    for mode in [CaptureMode::Copy, CaptureMode::ViaController] {
        run(|home| async move {
            let mut edge = Edge::start(&home, false).await;
            let (space, mme) = further(&home, 4).await;
            let (gateway, _) = host(&space, &mme, "s11", &["10.1.0.11/24"]).await;
            mme.local(&["10.1.0.1"], &[]).await;
            edge.config.switches.push(switch("mme", 4, Place::Control, Some("s11")));
            edge.config.capture.mode = mode;
            edge.control().await;
            let client = socket(&space, "10.1.0.1:2123");
            let server = socket(&gateway, "10.1.0.11:2123");
            let mut buffer = [0; 64];
            until("passes", async || {
                client.send_to(b"create session", "10.1.0.11:2123").await.unwrap();
                let passed = time::timeout(Duration::from_millis(500), server.recv(&mut buffer)).await;
                passed.is_ok().then_some(())
            })
            .await;
            server.send_to(b"created", "10.1.0.1:2123").await.unwrap();
            let (length, _) = client.recv_from(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], b"created");
            // What is no control message is not copied.
            let (other, far) = (socket(&space, "10.1.0.1:9000"), socket(&gateway, "10.1.0.11:9000"));
            other.send_to(b"other", "10.1.0.11:9000").await.unwrap();
            time::timeout(common::PATIENCE, far.recv(&mut buffer)).await.unwrap().unwrap();
            let messages = until("captured", async || {
                let captured = edge.get("/v1/captures/10.1.0.11").await;
                let messages = captured["messages"].as_array()?.clone();
                messages.iter().any(|message| message["by_control"] == false).then_some(messages)
            })
            .await;
            let hex = |text: &[u8]| text.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
            assert_eq!(
                (&messages[0]["protocol"], &messages[0]["by_control"]),
                (&json!("gtp-c"), &json!(true))
            );
            assert_eq!(messages[0]["octets"], json!(hex(b"create session")), "CAP-4");
            assert_eq!(messages.last().unwrap()["octets"], json!(hex(b"created")));
            let all = edge.get("/v1/captures").await.to_string();
            assert!(!all.contains(&hex(b"other")), "only control messages");
            // Stopped it copies nothing, and stops nothing.
            edge.call("POST", "/v1/applications/capture/stop", None).await;
            client.send_to(b"modify bearer", "10.1.0.11:2123").await.unwrap();
            let (length, _) =
                time::timeout(common::PATIENCE, server.recv_from(&mut buffer)).await.unwrap().unwrap();
            assert_eq!(&buffer[..length], b"modify bearer");
            let after = edge.get("/v1/captures/10.1.0.11").await;
            assert!(!after.to_string().contains(&hex(b"modify bearer")));
        });
    }
}

/// DIV-6: the return path follows: who asks for the user's address is told the new anchor's, and packets go there. (Open vSwitch at the access
/// translates no addresses; `tests/e2e` has moves with translation.)
#[test]
fn div_6_the_return_path_follows() {
    run(|home| async move {
        let mut edge = Edge::start(&home, false).await;
        let (space, sgi) = further(&home, 3).await;
        let (router, router_mac) = host(&space, &sgi, "router", &["10.45.0.254/24"]).await;
        let (_old, old_mac) = host(&space, &sgi, "old", &["10.45.0.1/24"]).await;
        let (new, new_mac) = host(&space, &sgi, "new", &["10.45.0.1/32"]).await;
        // It has the user's address, as it forwards for it, but answers nobody who asks for it.
        net::sysctl::set_in(&new, "net.ipv4.conf.all.arp_ignore", "8").unwrap();
        let links = net::link::Links::in_ns(&new).unwrap();
        links.add_route("10.45.0.0/24".parse().unwrap(), None, Some("n3")).await.unwrap();
        edge.config.switches.push(switch("sgi", 3, Place::Sgi, None));
        let side =
            |mac: &str| Some(Sgi { switch: "sgi".to_owned(), mac: parse_mac(mac).unwrap(), address: None });
        edge.config.anchors[0].sgi = side(&old_mac);
        edge.config.anchors[1].sgi = side(&new_mac);
        edge.control().await;
        let mut user = json!({"ue": "10.45.0.1", "from": "gw1", "to": "gw2", "base_station": "enb1", "confirmed_by": "test"});
        user["tunnels"] = json!([{"uplink": 0x11, "downlink": 0x21, "target_uplink": 0x99}]);
        let done = edge.divert(user).await;
        // What leads to a table is there before what enters it, and the user's rule comes last.
        assert_eq!(done["done"], json!(["edge1", "sgi", "edge1"]), "DIV-3");
        let (server, client) = (socket(&router, "10.45.0.254:7000"), socket(&new, "10.45.0.1:7000"));
        let mut buffer = [0; 64];
        let (length, from) = until("down", async || {
            server.send_to(b"down", "10.45.0.1:7000").await.unwrap();
            time::timeout(Duration::from_millis(500), client.recv_from(&mut buffer)).await.ok()?.ok()
        })
        .await;
        assert_eq!((&buffer[..length], from), (&b"down"[..], "10.45.0.254:7000".parse().unwrap()));
        let (length, from) = until("up", async || {
            client.send_to(b"up", "10.45.0.254:7000").await.unwrap();
            time::timeout(Duration::from_millis(500), server.recv_from(&mut buffer)).await.ok()?.ok()
        })
        .await;
        assert_eq!((&buffer[..length], from), (&b"up"[..], "10.45.0.1:7000".parse().unwrap()));
        // Explained to the port, with the link-layer addresses on the way.
        let ways = until("explained", async || {
            let explained = edge.get("/v1/ues/10.45.0.1").await;
            let ways = explained["explained"][0]["ways"].as_array()?.clone();
            let at_sgi: Vec<_> = ways.into_iter().filter(|way| way["switch"] == "sgi").collect();
            at_sgi.iter().all(|way| way["destination_mac"].is_string()).then_some(at_sgi)
        })
        .await;
        let of = |direction: &str| ways.iter().find(|way| way["direction"] == direction).unwrap();
        let (up, down) = (of("uplink"), of("downlink"));
        assert_eq!(
            (&up["result"], &down["result"]),
            (&json!("output to router"), &json!("output to new")),
            "{ways:?}"
        );
        assert_eq!((&up["source_mac"], &up["destination_mac"]), (&json!(new_mac), &json!(router_mac)));
        assert_eq!((&down["source_mac"], &down["destination_mac"]), (&json!(router_mac), &json!(new_mac)));
        assert_eq!(down["rules"][0]["rule"], "SGi down");

        // Without the controller the switch answers who asks for the user's link-layer address.
        let neighbour = async |arguments: &[&str]| {
            let all = [&["neigh"], arguments].concat();
            let ip = net::process::Command::new("ip").namespace(&router).args(&all);
            String::from_utf8(ip.output(common::PATIENCE).await.unwrap().stdout).unwrap()
        };
        until("the router is known", async || {
            neighbour(&["flush", "dev", "n3"]).await;
            server.send_to(b"known", "10.45.0.1:7000").await.unwrap();
            sgi.flows().contains("arp_spa=10.45.0.254").then_some(())
        })
        .await;
        drop(edge.controller.take());
        neighbour(&["flush", "dev", "n3"]).await;
        assert!(!neighbour(&["show"]).await.contains(&new_mac));
        until("answered by the switch", async || {
            server.send_to(b"alone", "10.45.0.1:7000").await.unwrap();
            neighbour(&["show", "10.45.0.1"]).await.contains(&new_mac).then_some(())
        })
        .await;
        // A controller that comes back wants them still.
        edge.control().await;
        until("askers taken over", async || {
            let log = edge.get("/v1/events").await.to_string();
            log.contains("connected").then_some(())
        })
        .await;
        time::sleep(Duration::from_secs(1)).await;
        assert!(sgi.flows().contains("arp_spa=10.45.0.254"));

        let (status, _) = edge.call("DELETE", "/v1/diversions/gw1~10.45.0.1", None).await;
        assert_eq!(status, 200);
        until("undivert restores", async || {
            let flows = sgi.flows();
            let is_left = edge.switches[0].flows().contains("table=1");
            (!is_left && !flows.contains("10.45.0.1") && !flows.contains("10.46.0.9")).then_some(())
        })
        .await;
        let packet = g_pdu(0x11, "10.45.0.1", "8.8.8.8", 53, b"back");
        edge.enb1.send(&edge.gw1, &packet).await;
        assert_eq!(edge.gw1.receive().await.0, packet);
    });
}
