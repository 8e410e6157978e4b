//! A worker between kernel sockets, with commands from another thread.

use std::net::UdpSocket;
use std::time::Duration;

use du::{BearerSetup, Place, Refused, Tunnel, UserPlane};
use l2::uu::Header;
use packet::gtpu;
use path::Worker;
use pktio::udp::UdpPort;

use crate::support::*;

const LIMIT: Duration = Duration::from_secs(5);

fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

#[test]
fn packets_pass_between_sockets_while_bearers_come_and_go() {
    let mut settings = settings();
    settings.interfaces[0].local = "127.38.1.2:2152".parse().unwrap();
    settings.interfaces[1].local = "127.38.1.2:38321".parse().unwrap();
    let [f1u, uu] = [0, 1].map(|at| settings.interfaces[at].local);
    let cu_socket = socket("127.38.1.1:2152");
    let ue_socket = socket("127.38.1.3:0");
    let (user_plane, control, _events) = UserPlane::new(settings).unwrap();
    let ports = [f1u, uu].map(|local| Box::new(UdpPort::bind(local, false).unwrap()) as Box<dyn pktio::Port>);
    let mut worker =
        Worker::start("du", user_plane, ports.into(), vec![0, 1], Duration::from_micros(50)).unwrap();
    let place = Place { interface: UU, address: ue_socket.local_addr().unwrap() };
    let tunnel = Tunnel { interface: F1U, address: cu_socket.local_addr().unwrap(), teid: CU_TEID };
    let mut octets = [0; 10_000];
    for round in 0..20u32 {
        control.add_ue(C_RNTI, place).unwrap();
        let added = control.add_bearer(C_RNTI, BearerSetup::new(LCID, tunnel)).unwrap();
        for (sequence, size) in [1, 64, 100, 1_400, 1_500, 8_000].into_iter().enumerate() {
            let pdu = pdcp(sequence as u32 + round, size);
            cu_socket.send_to(&user_data(added.teid, sequence as u32, false, &pdu), f1u).unwrap();
            let n = ue_socket.recv(&mut octets).unwrap();
            let (header, got) = Header::parse(&octets[..n]).unwrap();
            assert_eq!((header, got[0]), (Header::downlink(CELL, C_RNTI, LCID), 0));
            assert_eq!(got[1..], pdu);
            let up = Header::uplink(CELL, C_RNTI, LCID).datagram(&[&[0][..], &pdu].concat());
            ue_socket.send_to(&up, uu).unwrap();
            loop {
                let n = cu_socket.recv(&mut octets).unwrap();
                let packet = gtpu::Packet::new(&octets[..n]).unwrap();
                assert_eq!(packet.teid(), CU_TEID);
                // Delivery status comes in between.
                if !packet.payload().is_empty() {
                    assert_eq!(packet.payload(), pdu);
                    break;
                }
            }
        }
        assert_eq!((added.stats.downlink.get().packets, added.stats.uplink.get().packets), (6, 6));
        control.remove_bearer(C_RNTI, LCID).unwrap();
        assert_eq!(control.remove_bearer(C_RNTI, LCID), Err(Refused::UnknownBearer));
        control.remove_ue(C_RNTI).unwrap();
    }
    assert_eq!(control.stats().downlink.get().packets, 120);
    worker.stop();
    drop(worker);
    assert_eq!(control.add_ue(C_RNTI, place), Err(Refused::NotRunning));
}
