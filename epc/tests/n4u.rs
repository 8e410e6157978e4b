//! The gateway as router of IPv6 PDN connections, on N4-u.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests: a panic is how they fail")]

mod common;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use common::*;
use gtpv2c::message::*;
use gtpv2c::value::*;
use net::time;
use net::udp::UdpSocket;
use packet::gtpu;
use packet::ndp::{RouterAdvertisement, RouterSolicitation};
use serde_json::json;

/// A UE with an IPv6 PDN connection.
struct Ue {
    /// The gateway's TEID on S11.
    s11: u32,
    /// The gateway's TEID on N4-u, and the UPF's.
    teid: u32,
    upf_teid: u32,
}

async fn attach(core: &Core, mme: &mut Mme, imsi: &str) -> Ue {
    core.upf.asked();
    let request =
        CreateSessionRequest { pdn_type: Some(PdnType::Ipv6), paa: None, ..mme.create_request(imsi, 9) };
    let created = mme.create(request).await;
    assert_eq!(created.cause.value, CauseValue::ACCEPTED, "{created:?}");
    let s11 = created.sender_f_teid.unwrap().teid;
    let asked = core.upf.asked();
    let [Asked::Establish(seid, _)] = asked[..] else { panic!("{asked:?}") };
    mme.connect(s11, 5, 1).await;
    Ue { s11, teid: seid as u32, upf_teid: core.upf.last_session() as u32 * 256 + 1 }
}

/// The user plane of a UPF.
struct N4u {
    socket: UdpSocket,
    gateway: SocketAddr,
}

impl N4u {
    async fn at(core: &Core, ip: IpAddr) -> Self {
        let socket = net::udp::bind(SocketAddr::new(ip, gtpu::PORT)).await.unwrap();
        Self { socket, gateway: core.config.gtpu }
    }

    async fn solicit(&self, ue: &Ue) {
        let solicitation = RouterSolicitation { source: "fe80::7".parse().unwrap() };
        let packet = gtpu::build_gpdu(ue.teid, None, &solicitation.build()).unwrap();
        self.socket.send_to(&packet, self.gateway).await.unwrap();
    }

    /// The TEID to which the next advertisement is sent.
    async fn advertised(&self, patience: Duration) -> Option<u32> {
        let mut buffer = [0; 2048];
        let (length, _) = time::timeout(patience, self.socket.recv_from(&mut buffer)).await.ok()?.unwrap();
        let packet = gtpu::Packet::new(&buffer[..length]).unwrap();
        RouterAdvertisement::parse(packet.payload()).unwrap();
        Some(packet.teid())
    }
}

/// A procedure holds the first UE's lock, because the UPF does not answer.
#[tokio::test]
async fn a_ue_whose_procedure_takes_long_delays_no_other() {
    let mut core = Core::with(|config| config["timers"]["pfcp_t1_ms"] = json!(700)).await;
    let mut mme = core.mme(6).await;
    let n4u = N4u::at(&core, core.upf.ip).await;
    let slow = attach(&core, &mut mme, IMSI).await;
    let other = attach(&core, &mut mme, "999700000000002").await;
    core.upf.stop().await;
    let enb = FTeid::new(InterfaceType::S1U_ENB, 2, core.network.ip(9));
    mme.send(slow.s11, modify_request(5, enb));
    time::sleep(Duration::from_millis(200)).await;
    for ue in [&slow, &slow, &slow, &other] {
        n4u.solicit(ue).await;
    }
    assert_eq!(n4u.advertised(Duration::from_millis(700)).await, Some(other.upf_teid));
    core.upf.resume();
    assert_eq!(n4u.advertised(PATIENCE).await, Some(slow.upf_teid));
    assert_eq!(n4u.advertised(Duration::from_millis(200)).await, None, "one waits for a PDN connection");
    n4u.solicit(&slow).await;
    assert_eq!(n4u.advertised(PATIENCE).await, Some(slow.upf_teid));
}

#[tokio::test]
async fn only_a_ues_upf_forwards_its_solicitations() {
    let core = Core::start().await;
    let mut mme = core.mme(6).await;
    let n4u = N4u::at(&core, core.upf.ip).await;
    let stranger = N4u::at(&core, core.network.ip(8)).await;
    let ue = attach(&core, &mut mme, IMSI).await;
    stranger.solicit(&ue).await;
    assert_eq!(n4u.advertised(Duration::from_millis(200)).await, None);
    n4u.solicit(&ue).await;
    assert_eq!(n4u.advertised(PATIENCE).await, Some(ue.upf_teid));
}
