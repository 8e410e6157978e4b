//! A UE's TUN device: packets of the kernel in the UE's namespace go through GTP-U and back.

use crate::support::*;
use packet::gtpu;
use types::{Qfi, Teid};

#[tokio::test]
async fn programs_in_the_namespace_of_a_ue_reach_its_upf() {
    if let Err(error) = net::netns::NetNs::new() {
        // Where CI runs as root this must not be skipped.
        assert!(!net::capability::Capability::NetAdmin.held(), "{error}");
        eprintln!("skipped: no permission to create network namespaces");
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

    // A socket of the UE, as a program in its namespace opens one, and an echo at the far end.
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

    // The answer, with addresses and ports turned round: the checksums stay right.
    let mut down = up.bytes().to_vec();
    down[12..20].rotate_left(4);
    down[20..24].rotate_left(2);
    network.upf_send(tunnel, &down).await;
    let mut buffer = [0; 64];
    let (length, from) = net::time::timeout(LIMIT, socket.recv_from(&mut buffer)).await.unwrap().unwrap();
    assert_eq!((&buffer[..length], from), (&b"across"[..], "198.51.100.7:4000".parse().unwrap()));
    counted(gnb.user_plane().unwrap(), 1).await;

    // A second tunnel of the same table; the packets of neither reach the other.
    let user_plane = gnb.user_plane().unwrap();
    let upf = network.upf.local_addr().unwrap().ip();
    let mut other = user_plane.open(upf, Teid(0x99), Qfi::new(1).unwrap()).unwrap();
    assert_ne!(other.local().teid, tunnel.teid);
    network.upf_send(other.local(), b"\x45other").await;
    assert_eq!(other.received().await.unwrap(), b"\x45other".as_slice());
    counted(user_plane, 2).await;
}

/// Waits until so many packets are counted towards UEs: the count follows the delivery.
async fn counted(user_plane: &ran::UserPlane, downlink: u64) {
    let counted = async {
        while user_plane.counters().downlink != downlink {
            net::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    net::time::timeout(LIMIT, counted).await.unwrap();
    assert!(user_plane.counters().uplink >= 1);
}
