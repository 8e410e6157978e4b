//! A UE's TUN device: packets of the kernel in the UE's namespace go through the bearer whose filters they match, and back.

use crate::support::*;
use gtpv2c::message::*;
use gtpv2c::tft::{Component, Direction, Operation, PacketFilter, Tft};
use gtpv2c::*;
use lte::ue::{DEFAULT_BEARER, Wake};
use net::udp::UdpSocket;

/// Whether network namespaces can be created. In CI they have to be.
fn permitted() -> bool {
    let namespace = net::netns::NetNs::new();
    let excused = !net::capability::Capability::NetAdmin.held() && std::env::var_os("CI").is_none();
    assert!(namespace.is_ok() || excused, "{namespace:?}");
    if namespace.is_err() {
        eprintln!("skipped: no permission to create network namespaces");
    }
    namespace.is_ok()
}

/// Whether a packet is one of the test's, and not one of the kernel itself.
fn ours(packet: &[u8]) -> bool {
    packet[0] == 0x45 && packet[16] == 198
}

#[tokio::test]
async fn programs_use_the_bearer_of_their_flow_across_idle_mode_and_handover() {
    if !permitted() {
        return;
    }
    let (mut world, attachment) = attached(70, |_| {}).await;
    let World { gateway, ue, enbs, .. } = &mut world;
    let mme = attachment.mme;
    let namespace = ue.open_interface().await.unwrap().namespace().clone();
    let bind = || net::udp::bind_std((UE_IPV4, 4000).into(), net::udp::Options::default());
    let socket = UdpSocket::from_std(namespace.enter(bind).unwrap().unwrap()).unwrap();

    let components = vec![Component::RemotePort(5060)];
    let filter = PacketFilter { id: 1, direction: Direction::Bidirectional, precedence: 1, components };
    let tft = Tft { operation: Operation::Create(vec![filter]), parameters: Vec::new() }.encode().unwrap();
    let bearer =
        BearerInCreateRequest { tft, s1u_sgw_f_teid: Some(gateway.s1u_f_teid(0x3300)), ..Default::default() };
    let request =
        CreateBearerRequest { linked_ebi: DEFAULT_BEARER, bearers: vec![bearer], ..Default::default() };
    let script = async {
        let request = gateway.send(mme, request);
        gateway.answer(request).await
    };
    let (event, answer) = tokio::join!(ue.serve(), script);
    event.unwrap();
    let Message::CreateBearerResponse(answer) = answer else { panic!() };
    let dedicated = answer.bearers[0].s1u_enb_f_teid.unwrap();

    let mut buffer = [0; 64];
    for (port, teid, enb) in [(5060, 0x3300, dedicated), (80, UPLINK, attachment.enb)] {
        socket.send_to(b"up", ("198.51.100.7", port)).await.unwrap();
        let (found, packet) = gateway.uplink_where(ours).await;
        assert_eq!((found, &packet[28..]), (teid, &b"up"[..]), "port {port}");
        gateway.downlink(enb, &udp(([198, 51, 100, 7].into(), port), (UE_IPV4, 4000), b"down"));
        let (length, from) = net::time::timeout(LIMIT, socket.recv_from(&mut buffer)).await.unwrap().unwrap();
        assert_eq!((&buffer[..length], from.port()), (&b"down"[..], port));
    }

    // After a handover the packets that still come to the former eNB arrive, and programs send through the new one.
    let switch = async {
        gateway.accept_modify(mme).await;
        gateway.downlink(attachment.enb, &udp(([198, 51, 100, 7].into(), 80), (UE_IPV4, 4000), b"late"));
        for enb in [attachment.enb, dedicated] {
            gateway.end_marker(enb);
        }
    };
    let (moved, ()) = tokio::join!(ue.handover(enbs[1].clone()), switch);
    assert_eq!(moved.unwrap().end_markers, 2);
    let (length, _) = net::time::timeout(LIMIT, socket.recv_from(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..length], b"late");
    let before = enbs[0].user_plane().counters().uplink;
    socket.send_to(b"new", "198.51.100.7:5060").await.unwrap();
    assert_eq!(gateway.uplink_where(|packet| ours(packet) && &packet[28..] == b"new").await.0, 0x3300);
    assert_eq!(enbs[0].user_plane().counters().uplink, before);

    // What programs send while the UE is idle waits, and makes it come back.
    let (idle, ()) = tokio::join!(ue.go_idle(), gateway.accept_release(mme));
    idle.unwrap();
    socket.send_to(b"wake", "198.51.100.7:5060").await.unwrap();
    assert_eq!(net::time::timeout(LIMIT, ue.wait()).await.unwrap(), Wake::UplinkData);
    // What the gateway has buffered comes before its answer.
    let buffered = async |gateway: &Gateway, ends: &[(Ebi, FTeid)]| {
        gateway.downlink(ends[0].1, &udp(([198, 51, 100, 7].into(), 80), (UE_IPV4, 4000), b"kept"));
        net::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let (served, _) = tokio::join!(ue.service_request(), gateway.accept_modify_after(mme, buffered));
    served.unwrap();
    let (length, _) = net::time::timeout(LIMIT, socket.recv_from(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer[..length], b"kept");
    assert_eq!(gateway.uplink_where(|packet| ours(packet) && &packet[28..] == b"wake").await.0, 0x3300);
}
