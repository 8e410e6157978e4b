//! Commands of an MME to our S/P-GW: bearers that the UE asks for and gives back, that the radio network loses, and another subscription.

use std::net::SocketAddr;
use std::sync::Arc;

use gtpv2c::endpoint::PORT;
use gtpv2c::tft::{Component, Direction, PacketFilter};
use gtpv2c::{Ambr, BearerQos, CauseValue, Ebi, FlowQos};
use lte::ue::{DEFAULT_BEARER, NetworkEvent};
use lte::{Enb, Mme, Ue};
use packet::{icmp, ipv4, protocol};
use serde_json::json;
use testkit::world::{LIMIT, World, network};

/// A UE with our simulator's MME and eNB, attached.
async fn attached() -> Ue {
    let mut config = lte::Config::default();
    config.mme.s11 = SocketAddr::from((lab::RAN_N2, PORT));
    config.ue.gateway = SocketAddr::from((lab::CORE_N2, PORT));
    let mme = Mme::start(&config.mme).await.unwrap();
    let enb = Enb::start(1, lab::RAN_N2.into()).unwrap();
    let mut ue = Ue::new(Arc::new(config.ue), 0, mme, enb).unwrap();
    ue.attach().await.unwrap();
    ue
}

/// An echo to the data network, answered through the bearer.
async fn ping(ue: &mut Ue, bearer: Ebi, sequence: u16) {
    let address = ue.pdn().unwrap().ipv4().unwrap();
    let echo = icmp::build_echo(address.into(), lab::DN.into(), 8, 7, sequence, b"godwit");
    assert!(ue.send(ipv4::Header::new(address, lab::DN, protocol::ICMP).build(&echo).unwrap()));
    let reply = net::time::timeout(LIMIT, ue.received(bearer)).await.expect("a reply").unwrap();
    let reply = ipv4::Packet::new(&reply).unwrap();
    let reply = icmp::Message::new(reply.payload()).unwrap();
    assert_eq!((reply.kind(), reply.sequence()), (0, sequence));
}

fn echoes() -> Vec<PacketFilter> {
    let components = vec![Component::Protocol(protocol::ICMP)];
    vec![PacketFilter { id: 1, direction: Direction::Bidirectional, precedence: 1, components }]
}

async fn bearers(world: &World, count: usize) {
    world.until("spgw", "/sessions", |all| all[0]["bearers"].as_array().unwrap().len() == count).await;
}

#[test]
fn a_ue_asks_for_bearers_and_loses_them() {
    let options = |options: &mut lab::Options| {
        options.epc = true;
        options.edit =
            Box::new(|configuration| configuration["spgw"]["apn"][0]["ue_gbr_kbps"] = json!(1_000));
    };
    network(options, async |world| {
        let mut ue = attached().await;
        ping(&mut ue, DEFAULT_BEARER, 1).await;
        let flow = FlowQos {
            qci: 1,
            mbr_uplink_kbps: 1_000,
            mbr_downlink_kbps: 1_000,
            gbr_uplink_kbps: 100,
            gbr_downlink_kbps: 100,
        };
        let created = ue.request_bearer(echoes(), flow).await.unwrap();
        assert_eq!(created, NetworkEvent::BearersCreated(vec![Ebi(6)]));
        bearers(world, 2).await;
        ping(&mut ue, Ebi(6), 2).await;

        // It is kept in idle mode.
        ue.go_idle().await.unwrap();
        ue.service_request().await.unwrap();
        ping(&mut ue, Ebi(6), 3).await;
        assert_eq!(ue.give_back(Ebi(6)).await.unwrap(), NetworkEvent::BearersDeleted(vec![Ebi(6)]));
        bearers(world, 1).await;
        ping(&mut ue, DEFAULT_BEARER, 4).await;

        // The next one is lost by the radio network.
        ue.request_bearer(echoes(), flow).await.unwrap();
        bearers(world, 2).await;
        assert_eq!(ue.lose_bearers(&[Ebi(6)]).await.unwrap(), NetworkEvent::BearersDeleted(vec![Ebi(6)]));
        bearers(world, 1).await;
        ping(&mut ue, DEFAULT_BEARER, 5).await;

        // More than the APN allows is refused, and nothing is there.
        let greedy = FlowQos { gbr_uplink_kbps: 1_001, mbr_uplink_kbps: 1_001, ..flow };
        let refused = ue.request_bearer(echoes(), greedy).await.unwrap_err();
        assert_eq!(refused.cause(), Some(CauseValue::SERVICE_DENIED));
        assert!(ue.lose_bearers(&[Ebi(9)]).await.unwrap_err().cause().is_some());

        let apn_ambr = Ambr { uplink_kbps: 2_000, downlink_kbps: 3_000 };
        let qos = BearerQos {
            flow: FlowQos { qci: 8, ..Default::default() },
            ..ue.pdn().unwrap().bearers()[&DEFAULT_BEARER].qos
        };
        assert_eq!(
            ue.change_subscription(apn_ambr, qos).await.unwrap(),
            NetworkEvent::BearersUpdated(vec![DEFAULT_BEARER])
        );
        let pdn = ue.pdn().unwrap();
        assert_eq!((pdn.ambr(), pdn.bearers()[&DEFAULT_BEARER].qos.flow.qci), (Some(apn_ambr), 8));
        ping(&mut ue, DEFAULT_BEARER, 6).await;
        ue.detach().await.unwrap();
        world.until("upf", "/sessions", |all| all == &json!([])).await;
    });
}
