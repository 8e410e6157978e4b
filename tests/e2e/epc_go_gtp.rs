//! 4G with go-gtp on the other side of S11, end to end: its MME at our gateway and UPF, and our MME, eNB and UEs at its gateway.
//! Left out where Go is missing.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use gogtp::Peer;
use gtpv2c::endpoint::PORT;
use lte::ue::{DEFAULT_BEARER, NetworkEvent, Wake};
use lte::{Mme, MmeConfig, Ue, UeConfig};
use net::time::{Duration, timeout};
use packet::{icmp, ipv4, protocol};
use serde_json::{Value, json};
use testkit::world::{LIMIT, World, network};

use crate::epc::{Enb, data_network, number_of, send};

const IMSI: &str = "999700000000001";
/// Cause "Request accepted".
const ACCEPTED: u8 = 16;

/// Our gateway and UPF, and go-gtp's MME.
#[test]
fn go_gtps_mme_brings_a_ue_to_the_data_network() {
    if !gogtp::is_possible() {
        return;
    }
    network(
        |options| options.epc = true,
        async |world| {
            let (own, enbs) = (format!("{}:{PORT}", lab::RAN_N2), lab::RAN_N2.to_string() + ":2152");
            let gateway = format!("{}:{PORT}", lab::CORE_N2);
            let arguments = ["mme", "-gtpc", &own, "-gtpu", &enbs, "-peer", &gateway];
            let mut mme = gogtp::start(Some(world.lab.ran()), &arguments).await.unwrap();
            let enb = Enb::new().await;
            let attached = mme.ask(json!({"do": "attach", "imsi": IMSI, "teid": 0x11})).await.unwrap();
            assert_eq!(attached["cause"], ACCEPTED);
            let ue: Ipv4Addr = attached["ipv4"].as_str().unwrap().parse().unwrap();
            let upf = attached["user"]["teid"].as_u64().unwrap() as u32;
            assert_eq!(attached["user"]["address"], lab::CORE_N2.to_string());
            enb.ping(ue, (lab::CORE_N2.into(), upf), 0x11, 1).await;

            assert_eq!(mme.ask(json!({"do": "release", "imsi": IMSI})).await.unwrap()["cause"], ACCEPTED);
            let server = data_network(world, 0);
            for number in 0..20 {
                send(&server, ue, number).await;
            }
            let page = mme.event("downlink_data_notification").await.unwrap();
            assert_eq!((&page["imsi"], &page["ebi"]), (&IMSI.into(), &5.into()));
            assert!(enb.is_silent().await, "what comes for an idle UE waits");
            let connect = json!({"do": "connect", "imsi": IMSI, "teid": 0x22});
            assert_eq!(mme.ask(connect).await.unwrap()["cause"], ACCEPTED);
            for number in 0..20 {
                let (teid, packet) = enb.receive().await;
                assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x22, Some(number)));
            }
            let limit = Duration::from_millis(200);
            assert_eq!(mme.event_within("downlink_data_notification", limit).await.unwrap(), None);
            enb.ping(ue, (lab::CORE_N2.into(), upf), 0x22, 2).await;

            assert_eq!(mme.ask(json!({"do": "detach", "imsi": IMSI})).await.unwrap()["cause"], ACCEPTED);
            send(&server, ue, 20).await;
            assert!(enb.is_silent().await, "nothing comes for a UE that has left");
        },
    );
}

/// go-gtp's S-GW and P-GW over S5/S8, with packets: what tests of ours with either of them rest on. The eNB plays the S-GW's user plane.
#[test]
fn go_gtps_pgw_brings_a_ue_to_the_data_network() {
    if !gogtp::is_possible() {
        return;
    }
    let options = |options: &mut lab::Options| {
        options.epc = true;
        options.foreign_gateway = true;
    };
    network(options, async |world| {
        let (pgw, pgw_u) = (format!("{}:{PORT}", lab::CORE_N2), format!("{}:2152", lab::CORE_N2));
        let (sgw, sgw_u) = (format!("{}:{PORT}", lab::RAN_N2), format!("{}:2152", lab::RAN_N2));
        let arguments = ["pgw", "-gtpc", &pgw, "-gtpu", &pgw_u, "-pool", lab::Lab::UE_POOL, "-tun", "gw0"];
        let mut gateway = gogtp::start(Some(world.lab.core()), &arguments).await.unwrap();
        let arguments = ["sgw", "-gtpc", &sgw, "-gtpu", &sgw_u, "-peer", &pgw];
        let mut sgw = gogtp::start(Some(world.lab.ran()), &arguments).await.unwrap();
        let user_plane = Enb::new().await;
        let created = sgw.ask(json!({"do": "create", "imsi": IMSI, "teid": 0x11})).await.unwrap();
        assert_eq!(created["cause"], ACCEPTED);
        let ue: Ipv4Addr = created["ipv4"].as_str().unwrap().parse().unwrap();
        let pgw_teid = created["user"]["teid"].as_u64().unwrap() as u32;
        user_plane.ping(ue, (lab::CORE_N2.into(), pgw_teid), 0x11, 1).await;
        // Another S-GW, or another tunnel of it.
        let moved = json!({"do": "connect", "imsi": IMSI, "teid": 0x22});
        assert_eq!(sgw.ask(moved).await.unwrap()["cause"], ACCEPTED);
        assert_eq!(user_plane.receive().await, (0x11, None), "an End Marker");
        user_plane.ping(ue, (lab::CORE_N2.into(), pgw_teid), 0x22, 2).await;
        let bearer = json!({"do": "create_bearer", "imsi": IMSI, "qci": 1, "port": 5060});
        let bearer = gateway.ask(bearer).await.unwrap();
        assert_eq!((&bearer["cause"], &bearer["ebi"]), (&ACCEPTED.into(), &6.into()));
        assert_eq!(sgw.event("create_bearer").await.unwrap()["linked_ebi"], 5);
        assert_eq!(sgw.ask(json!({"do": "detach", "imsi": IMSI})).await.unwrap()["cause"], ACCEPTED);
        let status = status(&mut gateway).await;
        assert_eq!((&status["sessions"], &status["tunnels"]), (&0.into(), &0.into()), "{status}");
    });
}

/// A network with go-gtp's gateway instead of ours: with a user plane of its own, or on our UPF.
fn with_go_gtp(is_on_upf: bool, test: impl AsyncFnOnce(&mut World, &mut Peer) + Send) {
    if !gogtp::is_possible() {
        return;
    }
    let options = |options: &mut lab::Options| {
        options.epc = true;
        options.processes = true;
        options.foreign_gateway = !is_on_upf;
    };
    network(options, async |world| {
        let (gtpc, gtpu) = (format!("{}:{PORT}", lab::CORE_N2), format!("{}:2152", lab::CORE_N2));
        let mut arguments = vec!["spgw", "-gtpc", &gtpc, "-gtpu", &gtpu, "-pool", lab::Lab::UE_POOL];
        if is_on_upf {
            world.lab.kill("spgw").await.unwrap();
            arguments.extend(["-upf", lab::UPF_PFCP]);
        } else {
            arguments.extend(["-tun", "gw0"]);
        }
        let mut gateway = gogtp::start(Some(world.lab.core()), &arguments).await.unwrap();
        test(world, &mut gateway).await;
    });
}

pub(crate) async fn status(gateway: &mut Peer) -> Value {
    gateway.ask(json!({"do": "status"})).await.unwrap()
}

/// `godwit ran --4g`, with ordinary programs in the UEs' namespaces and in the data network.
#[test]
fn simulated_ues_talk_through_go_gtps_gateway() {
    with_go_gtp(false, async |world, gateway| {
        const UES: u32 = 3;
        let arguments = ["--inactivity", "1"].map(str::to_owned).to_vec();
        let options =
            lab::SimulatorOptions { ues: UES, session_type: "IPV4".into(), arguments, ..Default::default() };
        let mut ran = world.lab.simulate(&options).unwrap();
        let mut ues = Vec::new();
        for _ in 0..UES {
            let attached = ran.expect("attached", LIMIT).await.unwrap();
            let ue = attached.namespace().unwrap();
            let ping = ["-c", "3", "-i", "0.2", "-W", "5", "10.201.0.2"];
            let output = world.lab.command(&ue, "ping").args(ping).output(LIMIT).await.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            let url = world.lab.url(2_000_000);
            let curl = ["-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{size_download}", &url];
            let output = world.lab.command(&ue, "curl").args(curl).output(LIMIT).await.unwrap();
            assert_eq!(output.stdout, b"2000000");
            ues.push((attached.text("imsi").unwrap().to_owned(), attached.text("ipv4").unwrap().to_owned()));
        }
        assert_eq!(status(gateway).await["sessions"], UES);
        // All become idle, and the data network wakes each. The end of a download may come late, and wake a UE before.
        let mut idle = BTreeSet::new();
        let mut paged = BTreeSet::new();
        for (imsi, address) in &ues {
            while !paged.contains(imsi) {
                while !idle.contains(imsi) {
                    follow(&mut ran, &mut idle, &mut paged).await;
                }
                let ping = ["-c", "3", "-i", "0.2", "-W", "5", address];
                let output =
                    world.lab.command(world.lab.dn(), "ping").args(ping).output(LIMIT).await.unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
                while idle.contains(imsi) {
                    follow(&mut ran, &mut idle, &mut paged).await;
                }
            }
            let event = gateway.event("paged").await.unwrap();
            assert_eq!((&event["imsi"], &event["cause"]), (&imsi.as_str().into(), &ACCEPTED.into()));
        }
        ran.stop().await.unwrap();
        let status = status(gateway).await;
        assert_eq!((&status["sessions"], &status["tunnels"]), (&0.into(), &0.into()), "{status}");
    });
}

/// Keeps which UEs are idle, and which have come because they were paged.
async fn follow(ran: &mut lab::Simulator, idle: &mut BTreeSet<String>, paged: &mut BTreeSet<String>) {
    let event = timeout(LIMIT, ran.next()).await.expect("an event").expect("the simulator runs");
    let imsi = event.text("imsi").unwrap_or_default().to_owned();
    match (event.kind(), event.text("reason")) {
        ("idle", _) => {
            idle.insert(imsi);
        }
        ("service", reason) => {
            idle.remove(&imsi);
            if reason == Some("paging") {
                paged.insert(imsi);
            }
        }
        ("failed", _) => panic!("{event:?}"),
        _ => {}
    }
}

/// One UE step by step: what `ran/lte` makes of another gateway's answers.
#[test]
fn a_ue_moves_and_leaves_at_go_gtps_gateway() {
    moves_and_leaves(false);
}

/// The same, where our UPF gets its rules from the messages of go-pfcp.
#[test]
fn a_ue_moves_and_leaves_at_go_gtps_gateway_on_our_upf() {
    moves_and_leaves(true);
}

fn moves_and_leaves(is_on_upf: bool) {
    with_go_gtp(is_on_upf, async |world, gateway| {
        let own = IpAddr::from(lab::RAN_N2);
        let config = UeConfig { gateway: SocketAddr::from((lab::CORE_N2, PORT)), ..UeConfig::default() };
        let mme = MmeConfig { s11: SocketAddr::new(own, PORT), ..MmeConfig::default() };
        let mme = Mme::start(&mme).await.unwrap();
        let enb = lte::Enb::start(1, own).unwrap();
        let mut ue = Ue::new(Arc::new(config), 0, mme.clone(), enb.clone()).unwrap();
        let address = ue.attach().await.unwrap().ipv4.unwrap();
        ping(&mut ue, address, 1).await;

        ue.go_idle().await.unwrap();
        let server = data_network(world, 0);
        for number in 0..5 {
            send(&server, address, number).await;
        }
        let Wake::Gateway(page) = timeout(LIMIT, ue.wait()).await.unwrap() else { panic!("no page") };
        assert!(matches!(ue.answer(page).await, Ok(NetworkEvent::Paged(_))));
        for number in 0..5 {
            let packet = timeout(LIMIT, ue.received(DEFAULT_BEARER)).await.unwrap().unwrap();
            assert_eq!(number_of(&packet), number, "what has waited comes in order");
        }
        // To a tunnel of the same eNB: the End Marker comes in the former one.
        let moved = ue.handover(enb).await.unwrap();
        assert_eq!((moved.end_markers, moved.tunnels), (1, 1));
        ping(&mut ue, address, 2).await;
        ue.detach().await.unwrap();
        assert_eq!(status(gateway).await["sessions"], 0);
        assert_eq!(mme.counters().retransmissions, 0);
        // A further PDN type that this gateway refuses: the UE says so, and nothing is left.
        let config = UeConfig {
            gateway: SocketAddr::from((lab::CORE_N2, PORT)),
            pdn_type: gtpv2c::PdnType::Ipv6,
            ..UeConfig::default()
        };
        let mut ue =
            Ue::new(Arc::new(config), 1, mme, lte::Enb::start(2, [127, 0, 0, 1].into()).unwrap()).unwrap();
        let refused = ue.attach().await.unwrap_err();
        assert_eq!(refused.cause().map(|cause| cause.0), Some(83));
        assert_eq!(status(gateway).await["tunnels"], 0);
    });
}

/// An echo through the PDN connection and back.
pub(crate) async fn ping(ue: &mut Ue, source: Ipv4Addr, sequence: u16) {
    let echo = icmp::build_echo(source.into(), lab::DN.into(), 8, 7, sequence, b"godwit");
    assert!(ue.send(ipv4::Header::new(source, lab::DN, protocol::ICMP).build(&echo).unwrap()));
    let packet = timeout(LIMIT, ue.received(DEFAULT_BEARER)).await.expect("an answer").unwrap();
    let packet = ipv4::Packet::new(&packet).unwrap();
    let reply = icmp::Message::new(packet.payload()).unwrap();
    assert_eq!((packet.source(), packet.destination()), (lab::DN, source));
    assert_eq!((reply.kind(), reply.sequence()), (0, sequence));
}
