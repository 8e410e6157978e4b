//! A UE's TUN device: packets of the kernel in the UE's namespace go through GTP-U and back.

use crate::support::*;
use packet::gtpu;
use types::{Qfi, Teid};

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

#[tokio::test]
async fn programs_in_the_namespace_of_a_ue_reach_its_upf() {
    if !permitted() {
        return;
    }
    let World { mut network, mut ue, gnb } = world(20, |_| {}).await;
    let supi = ue.supi();
    let (registered, _) = tokio::join!(ue.register(), network.register(supi));
    registered.unwrap();
    let wish = ue.default_session().unwrap();
    let id = wish.id;
    let (session, tunnel) = tokio::join!(ue.establish_session(wish), async {
        let (_, message) = network.sm().await;
        network.accept_session(id, message.pti).await
    });
    session.unwrap();
    let interface = ue.open_interface(id).await.unwrap();
    assert!(interface.netns().starts_with("/proc"));

    // A socket in the UE's namespace, as a program there opens one, and an echo at the far end.
    let namespace = interface.namespace().clone();
    let socket = namespace
        .enter(|| net::udp::bind_std("10.45.0.2:0".parse().unwrap(), net::udp::Options::default()))
        .unwrap()
        .unwrap();
    let socket = net::udp::UdpSocket::from_std(socket).unwrap();
    socket.send_to(b"across", "198.51.100.7:4000").await.unwrap();
    let ipv4 = |packet: &[u8]| packet::ipv4::Packet::new(packet).is_ok();
    let datagram = network.upf_receive_where(ipv4).await;
    let packet = gtpu::Packet::new(&datagram).unwrap();
    assert_eq!((packet.teid(), packet.pdu_session().unwrap().qfi()), (0x77, 9));
    let up = packet::ipv4::Packet::new(packet.payload()).unwrap();
    assert_eq!((up.source(), up.destination()), ([10, 45, 0, 2].into(), [198, 51, 100, 7].into()));

    // The answer, with addresses and ports exchanged: the checksums stay valid.
    let mut down = up.bytes().to_vec();
    down[12..20].rotate_left(4);
    down[20..24].rotate_left(2);
    network.upf_send(tunnel, &down).await;
    let mut buffer = [0; 64];
    let (length, from) = net::time::timeout(LIMIT, socket.recv_from(&mut buffer)).await.unwrap().unwrap();
    assert_eq!((&buffer[..length], from), (&b"across"[..], "198.51.100.7:4000".parse().unwrap()));
    counted(gnb.user_plane().unwrap(), 1).await;

    // A second tunnel of the same table: neither tunnel receives packets of the other.
    let user_plane = gnb.user_plane().unwrap();
    let upf = network.upf.local_addr().unwrap().ip();
    let mut other = user_plane.open(upf, Teid(0x99), Some(Qfi::new(1).unwrap())).unwrap();
    assert_ne!(other.local().teid, tunnel.teid);
    network.upf_send(other.local(), b"\x45other").await;
    assert_eq!(other.received().await.unwrap(), b"\x45other".as_slice());
    counted(user_plane, 2).await;
}

#[tokio::test]
async fn what_programs_send_while_the_ue_is_idle_wakes_it_up_and_arrives() {
    if !permitted() {
        return;
    }
    let World { mut network, mut ue, .. } = world(21, |_| {}).await;
    let supi = ue.supi();
    let (registered, _) = tokio::join!(ue.register(), network.register(supi));
    registered.unwrap();
    let wish = ue.default_session().unwrap();
    let id = wish.id;
    let (session, _) = tokio::join!(ue.establish_session(wish), async {
        let (_, message) = network.sm().await;
        network.accept_session(id, message.pti).await
    });
    session.unwrap();
    let namespace = ue.open_interface(id).await.unwrap().namespace().clone();
    let bind = || net::udp::bind_std("10.45.0.2:0".parse().unwrap(), net::udp::Options::default());
    let socket = net::udp::UdpSocket::from_std(namespace.enter(bind).unwrap().unwrap()).unwrap();
    let inactivity = ngap::cause::RadioNetwork::UserInactivity;
    let (occurred, ()) = tokio::join!(ue.serve(), network.release(inactivity));
    occurred.unwrap();
    // Packets of the kernel itself either have been sent before or wake the UE as well; then they come
    // first.
    for number in 0..10u8 {
        socket.send_to(&[number; 9], "198.51.100.7:4000").await.unwrap();
    }
    let why = net::time::timeout(LIMIT, ue.idle()).await.unwrap();
    let sessions: nas::PsiSet = [id].into_iter().collect();
    assert_eq!(why, simulator::ue::WakeReason::UplinkData(sessions));
    let script = async {
        let (_, request) = network.service_request().await;
        assert_eq!(request.uplink_data_status, Some(sessions));
        let accept = nas::gmm::ServiceAccept { pdu_session_status: Some(sessions), ..Default::default() };
        let items = vec![network.setup_item(id, None)];
        network.set_up_context(nas::Message::ServiceAccept(accept), items).await
    };
    let (outcome, _) = tokio::join!(ue.wake_up(why), script);
    outcome.unwrap();
    let ours = |packet: &[u8]| packet.len() == 37 && packet[0] == 0x45;
    for number in 0..10u8 {
        let datagram = network.upf_receive_where(ours).await;
        let packet = gtpu::Packet::new(&datagram).unwrap();
        assert_eq!(packet.payload()[28..], [number; 9], "in the order in which they were sent");
    }
}

/// Waits until the counter of packets towards UEs reaches `downlink`: counting follows delivery.
async fn counted(user_plane: &simulator::UserPlane, downlink: u64) {
    let counted = async {
        while user_plane.counters().downlink != downlink {
            net::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    net::time::timeout(LIMIT, counted).await.unwrap();
    assert!(user_plane.counters().uplink >= 1);
}
