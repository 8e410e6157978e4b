//! S5/S8 with go-gtp on one side, end to end with packets: our S-GW with a UPF of its own before go-gtp's P-GW, and go-gtp's S-GW at
//! our P-GW. Left out where Go is missing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use gogtp::Peer;
use gtpv2c::Ebi;
use gtpv2c::endpoint::PORT;
use lte::ue::{DEFAULT_BEARER, NetworkEvent, Wake};
use lte::{Mme, Ue};
use net::time::{Duration, timeout};
use net::udp::UdpSocket;
use packet::{ipv4, protocol, transport};
use serde_json::{Value, json};
use testkit::world::{LIMIT, World, network};

use crate::epc::{Enb, UE_PORT, data_network, number_of, send};
use crate::epc_go_gtp::{ping, status};
use crate::epc_sites::Site;

const IMSI: &str = "999700000000001";
const DEDICATED: Ebi = Ebi(6);
/// The remote port of the dedicated bearer's packets.
const DEDICATED_PORT: u16 = 5_060;
/// Causes of TS 29.274 table 8.4-1.
const ACCEPTED: u8 = 16;
const CONTEXT_NOT_FOUND: u8 = 64;

/// A network whose core is of another make, or started by the test.
fn without_core(test: impl AsyncFnOnce(&mut World) + Send) {
    if !gogtp::is_possible() {
        return;
    }
    let options = |options: &mut lab::Options| {
        options.epc = true;
        options.foreign_gateway = true;
    };
    network(options, test);
}

/// go-gtp's P-GW in the core's namespace.
pub(crate) async fn go_pgw(world: &World, restart_counter: u8) -> Peer {
    let (gtpc, gtpu) = (format!("{}:{PORT}", lab::CORE_N2), format!("{}:2152", lab::CORE_N2));
    let counter = restart_counter.to_string();
    let arguments = [
        "pgw",
        "-gtpc",
        &gtpc,
        "-gtpu",
        &gtpu,
        "-pool",
        lab::Lab::UE_POOL,
        "-tun",
        "gw0",
        "-restart-counter",
        &counter,
    ];
    gogtp::start(Some(world.lab.core()), &arguments).await.unwrap()
}

/// go-gtp's S-GW or MME in the radio network's namespace; eNB or S-GW's user plane have the same address.
async fn go_client(world: &World, part: &str, peer: SocketAddr, more: &[&str]) -> Peer {
    let (gtpc, gtpu) = (format!("{}:{PORT}", lab::RAN_N2), format!("{}:2152", lab::RAN_N2));
    let peer = peer.to_string();
    let arguments = [&[part, "-gtpc", &gtpc, "-gtpu", &gtpu, "-peer", &peer], more].concat();
    gogtp::start(Some(world.lab.ran()), &arguments).await.unwrap()
}

/// Waits until a gateway of go-gtp has nothing.
async fn is_empty(gateway: &mut Peer) {
    let status = status(gateway).await;
    assert_eq!((&status["sessions"], &status["tunnels"]), (&0.into(), &0.into()), "{status}");
}

async fn cause(client: &mut Peer, command: Value) -> Value {
    client.ask(command).await.unwrap()["cause"].take()
}

/// Packets that have passed a bearer at go-gtp's P-GW, up and down.
async fn passed(gateway: &mut Peer, ebi: Ebi) -> (u64, u64) {
    let bearers = gateway.ask(json!({"do": "bearers", "imsi": IMSI})).await.unwrap();
    let bearer = &bearers["bearers"][ebi.0.to_string()];
    (bearer["uplink"].as_u64().unwrap(), bearer["downlink"].as_u64().unwrap())
}

/// A UDP packet of the UE to a port of the data network.
fn datagram(ue: Ipv4Addr, port: u16) -> Vec<u8> {
    let udp = transport::build_udp((ue.into(), UE_PORT), (lab::DN.into(), port), b"1234").unwrap();
    ipv4::Header::new(ue, lab::DN, protocol::UDP).build(&udp).unwrap()
}

async fn arrives(socket: &UdpSocket) -> bool {
    let mut buffer = [0; 64];
    timeout(LIMIT, socket.recv_from(&mut buffer)).await.is_ok()
}

/// MME and eNB of ours, whose UEs attach by an S-GW to the core's P-GW.
struct Radio {
    config: Arc<lte::UeConfig>,
    mme: Mme,
    enb: lte::Enb,
}

impl Radio {
    async fn start(gateway: SocketAddr) -> Self {
        let mut config = lte::Config::default();
        config.mme.s11 = SocketAddr::from((lab::RAN_N2, PORT));
        config.ue.gateway = gateway;
        config.ue.pgw = Some(lab::CORE_N2.into());
        let mme = Mme::start(&config.mme).await.unwrap();
        let enb = lte::Enb::start(1, lab::RAN_N2.into()).unwrap();
        Self { config: Arc::new(config.ue), mme, enb }
    }

    fn ue(&self, index: u32) -> Ue {
        Ue::new(Arc::clone(&self.config), index, self.mme.clone(), self.enb.clone()).unwrap()
    }
}

/// The numbers of the packets that come next through a bearer.
async fn expect_numbers(ue: &mut Ue, bearer: Ebi, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let packet = timeout(LIMIT, ue.received(bearer)).await.expect("a packet").unwrap();
        assert_eq!(number_of(&packet), number, "bearer {}", bearer.0);
    }
}

/// The idle UE is paged once, and connects.
async fn answer_page(ue: &mut Ue) {
    let Wake::Gateway(page) = timeout(LIMIT, ue.wait()).await.expect("a page") else { panic!("no page") };
    let answered = ue.answer(page).await;
    assert!(matches!(answered, Ok(NetworkEvent::Paged(_))), "{answered:?}");
}

async fn served(ue: &mut Ue) -> NetworkEvent {
    timeout(LIMIT, ue.serve()).await.expect("a request of the gateway").unwrap()
}

#[test]
fn packets_pass_our_sgw_and_go_gtps_pgw() {
    without_core(async |world| {
        let mut pgw = go_pgw(world, 1).await;
        let sgw = Site::sgw(world).await;
        let radio = Radio::start(sgw.gateway()).await;
        let mut ue = radio.ue(0);
        let address = ue.attach().await.unwrap().ipv4.unwrap();
        for sequence in 0..5 {
            ping(&mut ue, address, sequence).await;
        }
        assert_eq!(passed(&mut pgw, DEFAULT_BEARER).await, (5, 5));
        let server = data_network(world, 0);
        send(&server, address, 0).await;
        expect_numbers(&mut ue, DEFAULT_BEARER, 0..1).await;

        // The P-GW forwards, our S-GW's UPF buffers.
        ue.go_idle().await.unwrap();
        for number in 0..20 {
            send(&server, address, number).await;
        }
        answer_page(&mut ue).await;
        expect_numbers(&mut ue, DEFAULT_BEARER, 0..20).await;
        assert_eq!(status(&mut pgw).await["waited"], 0);
        // The UE comes back by itself.
        ue.go_idle().await.unwrap();
        ue.service_request().await.unwrap();
        ping(&mut ue, address, 6).await;

        dedicated_bearer(world, &sgw, &mut pgw, &mut ue).await;
        // Another tunnel of the eNB is the S-GW's matter.
        let moved = ue.handover(radio.enb.clone()).await.unwrap();
        assert_eq!((moved.end_markers, moved.tunnels), (1, 1));
        ping(&mut ue, address, 7).await;

        ue.detach().await.unwrap();
        is_empty(&mut pgw).await;
        sgw.is_empty().await;
        // The P-GW ends it.
        ue.attach().await.unwrap();
        let ended = pgw.begin(json!({"do": "delete_bearer", "imsi": IMSI, "ebi": 5})).unwrap();
        assert!(matches!(served(&mut ue).await, NetworkEvent::Detached(_)));
        assert_eq!(pgw.answer(ended).await.unwrap()["cause"], ACCEPTED);
        is_empty(&mut pgw).await;
        sgw.is_empty().await;
        assert_eq!(status(&mut pgw).await["repeats"], 0);
        assert_eq!(radio.mme.counters().retransmissions, 0);
        sgw.stop().await;
    });
}

/// The P-GW starts a bearer, its packets go through tunnels of their own, also when the UE was idle, and the P-GW ends it.
async fn dedicated_bearer(world: &World, sgw: &Site, pgw: &mut Peer, ue: &mut Ue) {
    let address = ue.pdn().unwrap().ipv4().unwrap();
    let create = json!({"do": "create_bearer", "imsi": IMSI, "qci": 5, "port": DEDICATED_PORT});
    let asked = pgw.begin(create).unwrap();
    assert_eq!(served(ue).await, NetworkEvent::BearersCreated(vec![DEDICATED]));
    let created = pgw.answer(asked).await.unwrap();
    assert_eq!((&created["cause"], &created["ebi"]), (&ACCEPTED.into(), &DEDICATED.0.into()));
    assert_eq!(created["peer"]["address"], sgw.address.to_string(), "the S-GW's end of S5-U");
    let bearer = &ue.pdn().unwrap().bearers()[&DEDICATED];
    assert_eq!((bearer.sgw.address(), bearer.qos.flow.qci), (Some(IpAddr::from(sgw.address)), 5));

    let (inside, outside) = (data_network(world, DEDICATED_PORT), data_network(world, DEDICATED_PORT + 1));
    send(&inside, address, 0).await;
    expect_numbers(ue, DEDICATED, 0..1).await;
    send(&outside, address, 0).await;
    expect_numbers(ue, DEFAULT_BEARER, 0..1).await;
    for (socket, port) in [(&inside, DEDICATED_PORT), (&outside, DEDICATED_PORT + 1)] {
        assert!(ue.send(datagram(address, port)));
        assert!(arrives(socket).await, "{port}");
    }
    assert_eq!(passed(pgw, DEDICATED).await, (1, 1));

    ue.go_idle().await.unwrap();
    for number in 0..10 {
        send(&inside, address, number).await;
    }
    answer_page(ue).await;
    expect_numbers(ue, DEDICATED, 0..10).await;
    assert_eq!(passed(pgw, DEDICATED).await, (1, 11));

    let delete = json!({"do": "delete_bearer", "imsi": IMSI, "ebi": DEDICATED.0});
    let asked = pgw.begin(delete).unwrap();
    assert_eq!(served(ue).await, NetworkEvent::BearersDeleted(vec![DEDICATED]));
    assert_eq!(pgw.answer(asked).await.unwrap()["cause"], ACCEPTED);
    sgw.until("/sessions", |all| all[0]["bearers"].as_array().unwrap().len() == 1).await;
    send(&inside, address, 9).await;
    expect_numbers(ue, DEFAULT_BEARER, 9..10).await;
}

/// Nothing of ours around our S-GW: go-gtp's MME on S11 as well.
#[test]
fn our_sgw_stands_between_go_gtps_mme_and_pgw() {
    without_core(async |world| {
        let mut pgw = go_pgw(world, 1).await;
        let sgw = Site::sgw(world).await;
        let far = lab::CORE_N2.to_string();
        let mut mme = go_client(world, "mme", sgw.gateway(), &["-pgw", &far]).await;
        let enb = Enb::new().await;
        let attached = mme.ask(json!({"do": "attach", "imsi": IMSI, "teid": 0x11})).await.unwrap();
        assert_eq!(attached["cause"], ACCEPTED);
        let ue: Ipv4Addr = attached["ipv4"].as_str().unwrap().parse().unwrap();
        let own = |user: &Value| {
            assert_eq!(user["address"], sgw.address.to_string());
            (IpAddr::from(sgw.address), user["teid"].as_u64().unwrap() as u32)
        };
        let upf = own(&attached["user"]);
        enb.ping(ue, upf, 0x11, 1).await;

        assert_eq!(cause(&mut mme, json!({"do": "release", "imsi": IMSI})).await, ACCEPTED);
        let server = data_network(world, 0);
        for number in 0..20 {
            send(&server, ue, number).await;
        }
        let page = mme.event("downlink_data_notification").await.unwrap();
        assert_eq!((&page["imsi"], &page["ebi"]), (&IMSI.into(), &5.into()));
        assert!(enb.is_silent().await, "what comes for an idle UE waits");
        assert_eq!(cause(&mut mme, json!({"do": "connect", "imsi": IMSI, "teid": 0x22})).await, ACCEPTED);
        for number in 0..20 {
            let (teid, packet) = enb.receive().await;
            assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x22, Some(number)));
        }
        let again = mme.event_within("downlink_data_notification", Duration::from_millis(200)).await.unwrap();
        assert_eq!(again, None, "paged once");

        let bearer = json!({"do": "create_bearer", "imsi": IMSI, "qci": 5, "port": DEDICATED_PORT});
        assert_eq!(pgw.ask(bearer).await.unwrap()["cause"], ACCEPTED);
        let told = mme.event("create_bearer").await.unwrap();
        let bearer = &told["bearers"][0];
        assert_eq!((&told["linked_ebi"], &bearer["has_tft"]), (&5.into(), &true.into()));
        let inside = data_network(world, DEDICATED_PORT);
        send(&inside, ue, 1).await;
        let (teid, packet) = enb.receive().await;
        let wanted = bearer["own"]["teid"].as_u64().unwrap() as u32;
        assert_eq!((teid, packet.map(|packet| number_of(&packet))), (wanted, Some(1)));
        enb.send(own(&bearer["user"]), &datagram(ue, DEDICATED_PORT));
        assert!(arrives(&inside).await);
        assert_eq!(passed(&mut pgw, DEDICATED).await, (1, 1));
        let delete = json!({"do": "delete_bearer", "imsi": IMSI, "ebi": 6});
        assert_eq!(pgw.ask(delete).await.unwrap()["cause"], ACCEPTED);
        assert_eq!(mme.event("delete_bearer").await.unwrap()["ebis"], json!([6]));
        // One that the MME refuses leaves nothing at either gateway.
        mme.ask(json!({"do": "answer_bearers", "cause": 88})).await.unwrap();
        let bearer = json!({"do": "create_bearer", "imsi": IMSI, "qci": 5, "port": DEDICATED_PORT});
        assert_eq!(pgw.ask(bearer).await.unwrap()["cause"], 88);
        assert_eq!(status(&mut pgw).await["tunnels"], 1);
        sgw.until("/sessions", |all| all[0]["bearers"].as_array().unwrap().len() == 1).await;
        enb.ping(ue, upf, 0x22, 2).await;

        assert_eq!(cause(&mut mme, json!({"do": "detach", "imsi": IMSI})).await, ACCEPTED);
        is_empty(&mut pgw).await;
        sgw.is_empty().await;
        sgw.stop().await;
    });
}

/// Another run of go-gtp's P-GW shows its restart counter in its first answer: our S-GW ends what the former run had, and tells the MME.
#[test]
fn our_sgw_notices_that_go_gtps_pgw_has_restarted() {
    without_core(async |world| {
        let former = go_pgw(world, 1).await;
        let sgw = Site::sgw(world).await;
        let radio = Radio::start(sgw.gateway()).await;
        let (mut first, mut second) = (radio.ue(0), radio.ue(1));
        let address = first.attach().await.unwrap().ipv4.unwrap();
        // The S-GW believes a counter from an Echo Response only: the former run has answered one by the time the pings are
        // back.
        for sequence in 0..5 {
            ping(&mut first, address, sequence).await;
        }
        drop(former);
        let mut pgw = go_pgw(world, 2).await;
        second.attach().await.unwrap();
        assert!(matches!(served(&mut first).await, NetworkEvent::Detached(_)));
        sgw.until("/status", |status| status["detail"]["sessions"] == 1).await;
        let address = first.attach().await.unwrap().ipv4.unwrap();
        ping(&mut first, address, 1).await;
        assert_eq!(status(&mut pgw).await["sessions"], 2);
        for ue in [&mut first, &mut second] {
            ue.detach().await.unwrap();
        }
        is_empty(&mut pgw).await;
        sgw.is_empty().await;
        sgw.stop().await;
    });
}

/// go-gtp's S-GW at our P-GW: the control part, with the eNB's socket as its user plane.
#[test]
fn go_gtps_sgw_at_our_pgw() {
    a_ue_comes_by_go_gtps_sgw("pgw");
}

/// The same at our gateway that is an S-GW as well.
#[test]
fn go_gtps_sgw_at_our_spgw() {
    a_ue_comes_by_go_gtps_sgw("spgw");
}

fn a_ue_comes_by_go_gtps_sgw(function: &'static str) {
    without_core(async |world| {
        let gateway = Site::core(world, function, None).await;
        let mut sgw = go_client(world, "sgw", gateway.gateway(), &[]).await;
        let user_plane = Enb::new().await;
        let created = sgw.ask(json!({"do": "create", "imsi": IMSI, "teid": 0x11})).await.unwrap();
        assert_eq!((&created["cause"], &created["bearer_cause"]), (&ACCEPTED.into(), &ACCEPTED.into()));
        let ue: Ipv4Addr = created["ipv4"].as_str().unwrap().parse().unwrap();
        let own = |user: &Value| {
            assert_eq!(user["address"], gateway.address.to_string());
            (IpAddr::from(gateway.address), user["teid"].as_u64().unwrap() as u32)
        };
        let upf = own(&created["user"]);
        user_plane.ping(ue, upf, 0x11, 1).await;
        let shown = gateway.oam("GET", "/sessions", None).await.unwrap();
        assert_eq!((&shown[0]["imsi"], &shown[0]["sgw"]), (&IMSI.into(), &lab::RAN_N2.to_string().into()));

        // Another tunnel of the S-GW: the End Marker is the last message in the former one.
        let moved = sgw.ask(json!({"do": "connect", "imsi": IMSI, "teid": 0x22})).await.unwrap();
        assert_eq!((&moved["cause"], &moved["bearer_cause"]), (&ACCEPTED.into(), &ACCEPTED.into()));
        assert_eq!(user_plane.receive().await, (0x11, None));
        user_plane.ping(ue, upf, 0x22, 2).await;
        // The same once more changes nothing.
        assert_eq!(cause(&mut sgw, json!({"do": "connect", "imsi": IMSI, "teid": 0x22})).await, ACCEPTED);
        user_plane.ping(ue, upf, 0x22, 3).await;

        let bearers = format!("/ues/{IMSI}/bearers");
        let flow = json!({"linked_ebi": 5, "qci": 8, "protocol": 17, "remote": lab::DN.to_string(),
            "remote_port": DEDICATED_PORT});
        assert_eq!(gateway.oam("POST", &bearers, Some(&flow)).await, Ok(json!({"ebi": 6})));
        let told = sgw.event("create_bearer").await.unwrap();
        let bearer = &told["bearers"][0];
        assert_eq!((&told["linked_ebi"], &bearer["qci"]), (&5.into(), &8.into()));
        assert_eq!(bearer["has_tft"], true);
        let (inside, outside) =
            (data_network(world, DEDICATED_PORT), data_network(world, DEDICATED_PORT + 1));
        let dedicated = bearer["own"]["teid"].as_u64().unwrap() as u32;
        for (number, socket, wanted) in [(1, &inside, dedicated), (2, &outside, 0x22)] {
            send(socket, ue, number).await;
            let (teid, packet) = user_plane.receive().await;
            assert_eq!((teid, packet.map(|packet| number_of(&packet))), (wanted, Some(number)));
        }
        user_plane.send(own(&bearer["user"]), &datagram(ue, DEDICATED_PORT));
        assert!(arrives(&inside).await);
        let gone = gateway.oam("POST", &format!("{bearers}/6/delete"), None).await;
        assert_eq!(gone, Ok(json!({"deleted": true})));
        assert_eq!(sgw.event("delete_bearer").await.unwrap()["ebis"], json!([6]));
        send(&inside, ue, 3).await;
        let (teid, packet) = user_plane.receive().await;
        assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x22, Some(3)));
        // One that the S-GW refuses.
        sgw.ask(json!({"do": "answer_bearers", "cause": 88})).await.unwrap();
        assert!(gateway.oam("POST", &bearers, Some(&flow)).await.unwrap_err().contains("88"));

        // Nobody has this TEID: refused, and the UE keeps what it has.
        for what in ["connect", "detach"] {
            let wrong = json!({"do": what, "imsi": IMSI, "teid": 9, "header_teid": 1});
            assert_eq!(cause(&mut sgw, wrong).await, CONTEXT_NOT_FOUND, "{what}");
        }
        user_plane.ping(ue, upf, 0x22, 4).await;

        assert_eq!(cause(&mut sgw, json!({"do": "detach", "imsi": IMSI})).await, ACCEPTED);
        gateway.is_empty().await;
        send(&inside, ue, 4).await;
        assert!(user_plane.is_silent().await, "nothing comes for a UE that has left");
        assert_eq!(status(&mut sgw).await["repeats"], 0);
        gateway.stop().await;
    });
}

/// What the P-GW ends, and restarts of either side as far as go-gtp has a notion of them.
#[test]
fn go_gtps_sgw_and_our_pgw_end_what_the_other_has_lost() {
    without_core(async |world| {
        let mut gateway = Site::core(world, "pgw", None).await;
        let mut sgw = go_client(world, "sgw", gateway.gateway(), &[]).await;
        let create = |teid: u32| {
            let imsi = format!("9997000000000{teid:02}");
            json!({"do": "create", "imsi": imsi, "teid": teid})
        };
        assert_eq!(cause(&mut sgw, create(1)).await, ACCEPTED);
        let all = gateway.oam("POST", &format!("/ues/{IMSI}/bearers/5/delete"), None).await;
        assert_eq!(all, Ok(json!({"deleted": true})));
        assert_eq!(sgw.event("delete_bearer").await.unwrap()["linked_ebi"], 5);
        gateway.is_empty().await;
        // A UE that comes again, of which the P-GW has a PDN connection.
        for _ in 0..2 {
            assert_eq!(cause(&mut sgw, create(1)).await, ACCEPTED);
        }
        gateway.until("/status", |status| status["detail"]["sessions"] == 1).await;
        assert_eq!(cause(&mut sgw, create(2)).await, ACCEPTED);
        // The P-GW has asked for the counter by now.
        sgw.ask(json!({"do": "echo"})).await.unwrap();
        let counter = sgw.event("echo_response").await.unwrap()["restart_counter"].as_u64().unwrap();

        // Another run of the S-GW: what the former had is no more.
        net::time::sleep(Duration::from_millis(200)).await;
        drop(sgw);
        let mut sgw = go_client(world, "sgw", gateway.gateway(), &["-restart-counter", "2"]).await;
        assert_eq!(cause(&mut sgw, create(3)).await, ACCEPTED);
        gateway.until("/status", |status| status["detail"]["sessions"] == 1).await;
        let shown = gateway.oam("GET", "/sessions", None).await.unwrap();
        assert_eq!(shown[0]["imsi"], "999700000000003");

        // Another run of our P-GW: it says so, and knows nothing.
        gateway.restart(world).await;
        sgw.ask(json!({"do": "echo"})).await.unwrap();
        assert_eq!(sgw.event("echo_response").await.unwrap()["restart_counter"], counter + 1);
        let imsi = "999700000000003";
        assert_eq!(
            cause(&mut sgw, json!({"do": "connect", "imsi": imsi, "teid": 3})).await,
            CONTEXT_NOT_FOUND
        );
        assert_eq!(cause(&mut sgw, create(3)).await, ACCEPTED);
        assert_eq!(cause(&mut sgw, json!({"do": "detach", "imsi": imsi})).await, ACCEPTED);
        gateway.is_empty().await;
        gateway.stop().await;
    });
}
