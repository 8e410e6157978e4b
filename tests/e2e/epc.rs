//! 4G, end to end: an MME drives the S/P-GW, and packets go through the real UPF between eNB and data network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use gtpv2c::endpoint::PORT;
use gtpv2c::message::*;
use gtpv2c::value::*;
use net::time::{self, Duration, timeout};
use net::udp::UdpSocket;
use packet::gtpu::{self, Signalling};
use packet::{icmp, ipv4, protocol, transport};
use serde_json::json;
use testkit::world::{LIMIT, World, network};

use crate::epc_sites::Site;
use crate::mme::{Mme, default_bearer};

const IMSI: &str = "999700000000001";
/// The UE's UDP port for packets of the data network.
pub(crate) const UE_PORT: u16 = 4_242;

fn with_gateway(test: impl AsyncFnOnce(&mut World) + Send) {
    network(|options| options.epc = true, test);
}

async fn mme(restart_counter: u8) -> Mme {
    let gateway = SocketAddr::from((lab::CORE_N2, PORT));
    Mme::start(lab::RAN_N2.into(), gateway, lab::RAN_N2.into(), restart_counter).await
}

/// The eNBs' end of S1-U.
pub(crate) struct Enb {
    socket: UdpSocket,
}

impl Enb {
    pub(crate) async fn new() -> Self {
        Self { socket: net::udp::bind(SocketAddr::from((lab::RAN_N2, gtpu::PORT))).await.unwrap() }
    }

    /// One in another namespace than this thread's.
    pub(crate) async fn at(space: &net::netns::NetNs) -> Self {
        let address = SocketAddr::from((lab::RAN_N2, gtpu::PORT));
        let bound = space.enter(|| net::udp::bind_std(address, net::udp::Options::default()));
        let socket = UdpSocket::from_std(bound.unwrap().unwrap()).unwrap();
        socket.writable().await.unwrap();
        Self { socket }
    }

    pub(crate) fn send(&self, upf: Tunnel, packet: &[u8]) {
        let gpdu = gtpu::build_gpdu(upf.1, None, packet).unwrap();
        self.socket.try_send_to(&gpdu, SocketAddr::new(upf.0, gtpu::PORT)).unwrap();
    }

    /// The next message of the UPF: TEID, and the packet inside; `None` inside of an End Marker. Echo Requests are answered.
    pub(crate) async fn receive(&self) -> (u32, Option<Vec<u8>>) {
        let mut buffer = [0; 2048];
        loop {
            let (length, from) =
                timeout(LIMIT, self.socket.recv_from(&mut buffer)).await.expect("a packet").unwrap();
            let message = gtpu::Packet::new(&buffer[..length]).unwrap();
            assert_eq!(message.pdu_session(), None, "4G has no PDU Session Container");
            match message.message_type() {
                gtpu::message_type::G_PDU => return (message.teid(), Some(message.payload().to_vec())),
                gtpu::message_type::ECHO_REQUEST => {
                    let sequence = message.sequence().unwrap_or(0);
                    let _ = self.socket.try_send_to(&Signalling::EchoResponse { sequence }.build(), from);
                }
                gtpu::message_type::END_MARKER => return (message.teid(), None),
                other => panic!("message {other}"),
            }
        }
    }

    /// An echo of the UE to the data network, through one tunnel and back through another.
    pub(crate) async fn ping(&self, ue: Ipv4Addr, upf: Tunnel, enb: u32, sequence: u16) {
        let echo = icmp::build_echo(ue.into(), lab::DN.into(), 8, 7, sequence, b"godwit");
        self.send(upf, &ipv4::Header::new(ue, lab::DN, protocol::ICMP).build(&echo).unwrap());
        let (teid, packet) = self.receive().await;
        let packet = packet.expect("a packet");
        let packet = ipv4::Packet::new(&packet).unwrap();
        let reply = icmp::Message::new(packet.payload()).unwrap();
        assert_eq!((teid, packet.source(), packet.destination()), (enb, lab::DN, ue));
        assert_eq!((reply.kind(), reply.sequence()), (0, sequence));
    }

    pub(crate) async fn is_silent(&self) -> bool {
        timeout(Duration::from_millis(300), self.receive()).await.is_err()
    }
}

/// A UDP packet for the UE.
pub(crate) fn number_of(packet: &[u8]) -> u32 {
    let packet = ipv4::Packet::new(packet).unwrap();
    let datagram = transport::Udp::new(packet.payload()).unwrap();
    u32::from_be_bytes(datagram.payload().try_into().unwrap())
}

/// A socket of the data network.
pub(crate) fn data_network(world: &World, port: u16) -> UdpSocket {
    let bind = || net::udp::bind_std(SocketAddr::from((lab::DN, port)), net::udp::Options::default());
    UdpSocket::from_std(world.lab.dn().enter(bind).unwrap().unwrap()).unwrap()
}

pub(crate) async fn send(socket: &UdpSocket, ue: Ipv4Addr, number: u32) {
    socket.send_to(&number.to_be_bytes(), SocketAddr::from((ue, UE_PORT))).await.unwrap();
}

struct Attached {
    /// The gateway's end of S11.
    gateway: u32,
    ue: Ipv4Addr,
    /// The UPF's end of S1-U.
    upf: Tunnel,
}

/// Address and TEID.
type Tunnel = (IpAddr, u32);

fn tunnel(f_teid: Option<FTeid>) -> Tunnel {
    let f_teid = f_teid.expect("a tunnel");
    (f_teid.address().unwrap(), f_teid.teid)
}

async fn attach(mme: &mut Mme, enb: u32) -> Attached {
    let (gateway, created) = mme.attach(IMSI, enb).await;
    let upf = tunnel(created.bearers_created[0].s1u_sgw_f_teid);
    assert_eq!(upf.0, IpAddr::from(lab::CORE_N2));
    Attached { gateway, ue: created.paa.and_then(Paa::ipv4).unwrap(), upf }
}

#[test]
fn a_ue_pings_is_paged_moves_and_leaves() {
    with_gateway(async |world| {
        let (mut mme, enb) = (mme(1).await, Enb::new().await);
        let Attached { gateway, ue, upf } = attach(&mut mme, 0x11).await;
        assert!(ue.octets().starts_with(&[10, 45]) && ue.octets()[2] >= 128, "{ue}");
        enb.ping(ue, upf, 0x11, 1).await;

        // Packets for an idle UE wait, have it paged once, and come in order.
        assert_eq!(mme.release(gateway).await, CauseValue::ACCEPTED);
        let server = data_network(world, 0);
        for number in 0..20 {
            send(&server, ue, number).await;
        }
        let (id, _, message) = mme.request().await;
        let Message::DownlinkDataNotification(notification) = message else { panic!("{message:?}") };
        assert_eq!(notification.ebis, [Ebi(5)]);
        let cause = CauseValue::ACCEPTED.into();
        mme.respond(id, gateway, DownlinkDataNotificationAcknowledge { cause, ..Default::default() });
        assert!(enb.is_silent().await);
        assert!(mme.connect(gateway, 5, 0x22).await.cause.is_accepted());
        for number in 0..20 {
            let (teid, packet) = enb.receive().await;
            assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x22, Some(number)));
        }
        assert!(mme.request_within(Duration::from_millis(200)).await.is_none(), "paged once");

        // A handover: the End Marker is the last message in the former tunnel.
        assert!(mme.connect(gateway, 5, 0x33).await.cause.is_accepted());
        assert_eq!(enb.receive().await, (0x22, None));
        enb.ping(ue, upf, 0x33, 2).await;

        assert_eq!(mme.delete(gateway, 5).await, CauseValue::ACCEPTED);
        send(&server, ue, 20).await;
        assert!(enb.is_silent().await, "nothing comes for a UE that has left");
        let sessions = world.lab.oam("upf", "GET", "/sessions").await.unwrap();
        assert_eq!(sessions.as_array().map(Vec::len), Some(0));
    });
}

#[test]
fn a_dedicated_bearer_carries_what_its_filter_says() {
    let edit = |configuration: &mut serde_json::Value| {
        configuration["spgw"]["apn"][0]["ue_gbr_kbps"] = json!(1_000);
    };
    let options = |options: &mut lab::Options| {
        options.epc = true;
        options.edit = Box::new(edit);
    };
    network(options, async |world| {
        let (mut mme, enb) = (mme(1).await, Enb::new().await);
        let Attached { gateway, ue, upf } = attach(&mut mme, 0x11).await;
        // The UE asks for it.
        let filter = tft::PacketFilter {
            id: 1,
            direction: tft::Direction::Bidirectional,
            precedence: 10,
            components: vec![tft::Component::Protocol(17), tft::Component::RemotePort(5_060)],
        };
        let tad = tft::Tft { operation: tft::Operation::Create(vec![filter]), ..Default::default() };
        let flow = FlowQos {
            qci: 1,
            mbr_uplink_kbps: 1_000,
            mbr_downlink_kbps: 1_000,
            gbr_uplink_kbps: 1_000,
            gbr_downlink_kbps: 1_000,
        };
        let command = BearerResourceCommand {
            linked_ebi: Ebi(5),
            pti: Pti(9),
            flow_qos: Some(flow),
            tad: Some(tad.encode().unwrap()),
            ..Default::default()
        };
        // More than the APN allows a UE is refused.
        let greedy = FlowQos { mbr_downlink_kbps: 1_001, ..flow };
        let refused =
            mme.ask(gateway, BearerResourceCommand { flow_qos: Some(greedy), ..command.clone() }).await;
        let (_, Message::BearerResourceFailureIndication(refused)) = refused.unwrap() else {
            panic!("accepted")
        };
        assert_eq!((refused.cause.value, refused.pti), (CauseValue::SERVICE_DENIED, Pti(9)));
        mme.send(gateway, command);
        let (id, _, message) = mme.request().await;
        let Message::CreateBearerRequest(request) = message else { panic!("{message:?}") };
        assert_eq!(
            (request.linked_ebi, request.pti, request.bearers[0].qos.flow),
            (Ebi(5), Some(Pti(9)), flow)
        );
        let own = request.bearers[0].s1u_sgw_f_teid.unwrap();
        let bearer = gtpv2c::BearerInCreateResponse {
            ebi: Ebi(6),
            cause: CauseValue::ACCEPTED.into(),
            s1u_enb_f_teid: Some(FTeid::new(InterfaceType::S1U_ENB, 0x66, lab::RAN_N2.into())),
            s1u_sgw_f_teid: Some(own),
            ..Default::default()
        };
        let cause = CauseValue::ACCEPTED.into();
        mme.respond(id, gateway, CreateBearerResponse { cause, bearers: vec![bearer], ..Default::default() });
        world.until("spgw", "/sessions", |all| all[0]["bearers"][1]["enb_teid"].is_string()).await;

        let (inside, outside) = (data_network(world, 5_060), data_network(world, 5_061));
        send(&inside, ue, 1).await;
        let (teid, packet) = enb.receive().await;
        assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x66, Some(1)));
        send(&outside, ue, 2).await;
        let (teid, packet) = enb.receive().await;
        assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x11, Some(2)));
        // Uplink: each bearer takes what is its own.
        let uplink = |teid, port| {
            let udp = transport::build_udp((ue.into(), UE_PORT), (lab::DN.into(), port), b"1234").unwrap();
            enb.send(teid, &ipv4::Header::new(ue, lab::DN, protocol::UDP).build(&udp).unwrap());
        };
        let arrives = async |socket: &UdpSocket| {
            let mut buffer = [0; 64];
            timeout(Duration::from_millis(500), socket.recv_from(&mut buffer)).await.is_ok()
        };
        uplink(tunnel(Some(own)), 5_061);
        uplink(tunnel(Some(own)), 5_060);
        assert!(arrives(&inside).await, "the filter's packets");
        assert!(!arrives(&outside).await, "others do not pass in this tunnel");
        enb.ping(ue, upf, 0x11, 1).await;

        // The UE adds a filter, and takes the first one back.
        let filter = tft::PacketFilter {
            id: 0,
            direction: tft::Direction::Bidirectional,
            precedence: 11,
            components: vec![tft::Component::Protocol(17), tft::Component::RemotePort(5_061)],
        };
        for operation in [tft::Operation::Add(vec![filter]), tft::Operation::DeleteFilters(vec![0])] {
            let tad = tft::Tft { operation, ..Default::default() };
            let command = BearerResourceCommand {
                linked_ebi: Ebi(5),
                ebi: Some(Ebi(6)),
                pti: Pti(10),
                tad: Some(tad.encode().unwrap()),
                ..Default::default()
            };
            mme.send(gateway, command);
            let (id, _, message) = mme.request().await;
            let Message::UpdateBearerRequest(request) = message else { panic!("{message:?}") };
            let bearer = gtpv2c::BearerResultWithOptions { ebi: Ebi(6), cause, ..Default::default() };
            assert_eq!((request.pti, request.bearers[0].ebi), (Some(Pti(10)), Ebi(6)));
            mme.respond(
                id,
                gateway,
                UpdateBearerResponse { cause, bearers: vec![bearer], ..Default::default() },
            );
            let port = |all: &serde_json::Value| {
                let filters = all[0]["bearers"][1]["filters"].as_array().unwrap();
                filters.last().unwrap().as_str().unwrap().contains("5061")
            };
            world.until("spgw", "/sessions", port).await;
            // Before the second change both ports are the bearer's.
            send(&outside, ue, 3).await;
            let (teid, packet) = enb.receive().await;
            assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x66, Some(3)));
            uplink(tunnel(Some(own)), 5_061);
            assert!(arrives(&outside).await, "the added filter's packets");
        }
        world
            .until("spgw", "/sessions", |all| all[0]["bearers"][1]["filters"].as_array().unwrap().len() == 1)
            .await;
        send(&inside, ue, 4).await;
        let (teid, packet) = enb.receive().await;
        assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x11, Some(4)), "the filter is gone");
        uplink(tunnel(Some(own)), 5_060);
        assert!(!arrives(&inside).await, "uplink as well");

        // The radio network gives it up.
        let bearers = vec![gtpv2c::BearerInDeleteCommand { ebi: Ebi(6), ..Default::default() }];
        mme.send(gateway, DeleteBearerCommand { bearers, ..Default::default() });
        let (id, _, message) = mme.request().await;
        assert!(
            matches!(&message, Message::DeleteBearerRequest(request) if request.ebis == [Ebi(6)]),
            "{message:?}"
        );
        mme.respond(id, gateway, DeleteBearerResponse { cause, ..Default::default() });
        world.until("spgw", "/sessions", |all| all[0]["bearers"].as_array().unwrap().len() == 1).await;
        enb.ping(ue, upf, 0x11, 2).await;
    });
}

#[test]
fn a_pdn_connection_survives_its_upf_and_a_gateway_starts_anew() {
    network(
        |options| {
            options.epc = true;
            options.processes = true;
            options.edit = Box::new(|configuration| {
                // A restart of the UPF shows in its next answer.
                configuration["spgw"]["timers"] = json!({"pfcp_heartbeat_ms": 500});
            });
        },
        async |world| {
            let (mut mme, enb) = (mme(1).await, Enb::new().await);
            let Attached { ue, upf, .. } = attach(&mut mme, 0x11).await;
            enb.ping(ue, upf, 0x11, 1).await;
            // Recovery time stamps are in seconds: a UPF that is back in the second of its start has not restarted for others.
            time::sleep(Duration::from_millis(1_100)).await;
            world.lab.kill("upf").await.unwrap();
            world.lab.restart("upf").await.unwrap();
            world.until("upf", "/sessions", |all| all.as_array().unwrap().len() == 1).await;
            enb.ping(ue, upf, 0x11, 2).await;

            let before = world.lab.oam("spgw", "GET", "/status").await.unwrap();
            world.lab.kill("spgw").await.unwrap();
            world.lab.restart("spgw").await.unwrap();
            let after = world.lab.oam("spgw", "GET", "/status").await.unwrap();
            let counter = |status: &serde_json::Value| status["detail"]["restart_counter"].as_u64().unwrap();
            assert_eq!(counter(&after), counter(&before) + 1);
            let Attached { ue, upf, .. } = attach(&mut mme, 0x22).await;
            enb.ping(ue, upf, 0x22, 3).await;
        },
    );
}

/// IPv6: the UE solicits before an eNB is known, and is answered as soon as one is.
#[test]
fn a_ue_gets_its_prefix_from_the_gateway() {
    with_gateway(async |world| {
        let (mut mme, enb) = (mme(1).await, Enb::new().await);
        let request = CreateSessionRequest {
            pdn_type: Some(PdnType::Ipv6),
            paa: None,
            bearers_to_be_created: vec![default_bearer(5)],
            ..mme.create_request(IMSI, 9)
        };
        let created = mme.create(request).await;
        let prefix = created.paa.and_then(Paa::ipv6).expect("a prefix");
        let upf = tunnel(created.bearers_created[0].s1u_sgw_f_teid);
        let interface_id = prefix.address.to_bits() as u64;
        let own = std::net::Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(interface_id));
        enb.send(upf, &packet::ndp::RouterSolicitation { source: own }.build());
        time::sleep(Duration::from_millis(100)).await;
        let gateway = created.sender_f_teid.unwrap().teid;
        assert!(mme.connect(gateway, 5, 0x11).await.cause.is_accepted());
        let (teid, packet) = enb.receive().await;
        let advertisement = packet::ndp::RouterAdvertisement::parse(&packet.expect("a packet")).unwrap();
        assert_eq!(teid, 0x11);
        let bits = |address: std::net::Ipv6Addr| address.to_bits() >> 64;
        assert_eq!(advertisement.prefix.map(|prefix| bits(prefix.prefix)), Some(bits(prefix.address)));
        let listed = world.lab.oam("spgw", "GET", "/sessions").await.unwrap();
        assert_eq!(listed[0]["ipv4"], json!(null));
    });
}

/// What a newcomer does: `godwit ran --4g`, and ordinary programs in the UEs' namespaces.
#[test]
fn simulated_ues_ping_and_download() {
    with_gateway(async |world| {
        let options = lab::SimulatorOptions { ues: 3, ..Default::default() };
        let mut ran = world.lab.simulate(&options).unwrap();
        for _ in 0..3 {
            let attached = ran.expect("attached", LIMIT).await.unwrap();
            let ue = attached.namespace().unwrap();
            let ping = |host: String| {
                world.lab.command(&ue, "ping").args(["-c", "3", "-i", "0.2", "-W", "5", &host])
            };
            for host in [lab::DN.to_string(), lab::DN_IPV6.to_string()] {
                let output = ping(host).output(LIMIT).await.unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            }
            let url = world.lab.url(20_000_000);
            let curl = world.lab.command(&ue, "curl").args([
                "-sS",
                "--noproxy",
                "*",
                "-o",
                "/dev/null",
                "-w",
                "%{size_download}",
                &url,
            ]);
            assert_eq!(curl.output(LIMIT).await.unwrap().stdout, b"20000000");
        }
        ran.stop().await.unwrap();
        world.until("spgw", "/status", |status| status["detail"]["sessions"] == 0).await;
    });
}

/// S-GW and P-GW apart, each with a real UPF: packets through both tunnels, an idle UE, and the move to the S-GW in the other gateway,
/// with the End Marker through the old one.
#[test]
fn packets_pass_an_sgw_and_a_pgw_and_the_ue_moves() {
    with_gateway(async |world| {
        let sgw = Site::sgw(world).await;
        let (mut mme, enb) = (mme(1).await, Enb::new().await);
        let spgw = mme.gateway;
        mme.gateway = sgw.gateway();
        let pgw = FTeid::new(InterfaceType::S5S8_PGW_GTPC, 0, lab::CORE_N2.into());
        let request = CreateSessionRequest { pgw_f_teid: Some(pgw), ..mme.create_request(IMSI, 1) };
        let created = mme.create(request).await;
        assert!(created.cause.is_accepted(), "{created:?}");
        let ue = created.paa.and_then(Paa::ipv4).unwrap();
        let upf = tunnel(created.bearers_created[0].s1u_sgw_f_teid);
        assert_eq!(upf.0, IpAddr::from(sgw.address));
        let gateway = created.sender_f_teid.unwrap().teid;
        assert!(mme.connect(gateway, 5, 0x11).await.cause.is_accepted());
        for sequence in 0..20 {
            enb.ping(ue, upf, 0x11, sequence).await;
        }

        // The S-GW's UPF buffers, and has the UE paged.
        assert_eq!(mme.release(gateway).await, CauseValue::ACCEPTED);
        let server = data_network(world, 0);
        for number in 0..20 {
            send(&server, ue, number).await;
        }
        let (id, _, message) = mme.request().await;
        assert!(matches!(message, Message::DownlinkDataNotification(_)), "{message:?}");
        let cause = CauseValue::ACCEPTED.into();
        mme.respond(id, gateway, DownlinkDataNotificationAcknowledge { cause, ..Default::default() });
        assert!(mme.connect(gateway, 5, 0x22).await.cause.is_accepted());
        for number in 0..20 {
            let (teid, packet) = enb.receive().await;
            assert_eq!((teid, packet.map(|packet| number_of(&packet))), (0x22, Some(number)));
        }

        // The UE moves to the S-GW in the gateway that is its P-GW.
        let bearer = gtpv2c::BearerToBeCreated {
            s5s8u_pgw_f_teid: created.bearers_created[0].s5s8u_pgw_f_teid,
            s1u_enb_f_teid: Some(FTeid::new(InterfaceType::S1U_ENB, 0x33, lab::RAN_N2.into())),
            ..default_bearer(5)
        };
        let request = CreateSessionRequest {
            pgw_f_teid: created.pgw_f_teid,
            indication: Some(Indication::OI),
            linked_ebi: Some(Ebi(5)),
            bearers_to_be_created: vec![bearer],
            ..mme.create_request(IMSI, 1)
        };
        mme.gateway = spgw;
        let moved = mme.create(request).await;
        assert!(moved.cause.is_accepted(), "{moved:?}");
        assert_eq!(enb.receive().await, (0x22, None), "the End Marker came through the old S-GW");
        let upf = tunnel(moved.bearers_created[0].s1u_sgw_f_teid);
        assert_eq!(upf.0, IpAddr::from(lab::CORE_N2));
        enb.ping(ue, upf, 0x33, 99).await;
        mme.gateway = sgw.gateway();
        assert_eq!(mme.delete_as(gateway, 5, None).await, CauseValue::ACCEPTED);
        enb.ping(ue, upf, 0x33, 100).await;
        mme.gateway = spgw;
        assert_eq!(mme.delete(moved.sender_f_teid.unwrap().teid, 5).await, CauseValue::ACCEPTED);
        world.until("spgw", "/status", |status| status["detail"]["sessions"] == 0).await;
        sgw.is_empty().await;
        sgw.stop().await;
    });
}
