//! A worker between kernel sockets in namespaces joined by veth pairs, with commands from another thread.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use du::{BearerSetup, Control, Place, Radio, Refused, Tunnel, UserPlane};
use l2::uu::Header;
use net::netns::NetNs;
use packet::gtpu;
use path::Worker;
use pktio::udp::UdpPort;

use crate::support::*;

const LIMIT: Duration = Duration::from_secs(10);

fn ip(namespace: &NetNs, command: &str) {
    let run = || std::process::Command::new("ip").args(command.split(' ')).status();
    assert!(namespace.enter(run).unwrap().unwrap().success(), "ip {command}");
}

/// A DU in a namespace of its own, with a CU's and a UE's sockets in theirs.
struct Lab {
    du: NetNs,
    cu_net: NetNs,
    cu_socket: Option<UdpSocket>,
    ue_socket: UdpSocket,
    f1u: SocketAddr,
    uu: SocketAddr,
    control: Control,
    worker: Worker,
}

impl Lab {
    fn new() -> Lab {
        let new = || NetNs::new().expect("tests run with CAP_SYS_ADMIN");
        let (du, cu_net, ue_net) = (new(), new(), new());
        for (far, name, network) in [(&cu_net, "f1u", "10.38.1"), (&ue_net, "uu", "10.38.2")] {
            ip(
                &du,
                &format!(
                    "link add {name} mtu 1600 type veth peer name far mtu 1600 netns {}",
                    far.path().display()
                ),
            );
            for (namespace, device, host) in [(&du, name, 1), (far, "far", 2)] {
                ip(namespace, &format!("address add {network}.{host}/24 dev {device}"));
                ip(namespace, &format!("link set {device} up"));
            }
        }
        let mut settings = settings();
        let (f1u, uu) = ("10.38.1.1:2152".parse().unwrap(), "10.38.2.1:38321".parse().unwrap());
        (settings.interfaces[0].local, settings.interfaces[1].local) = (f1u, uu);
        let (user_plane, control, _) = UserPlane::new(settings).unwrap();
        let ports = [f1u, uu].map(|local| {
            let port = du.enter(|| UdpPort::bind(local, false).unwrap()).unwrap();
            Box::new(port) as Box<dyn pktio::Port>
        });
        let poll = Duration::from_micros(50);
        let worker = Worker::start("du", user_plane, ports.into(), vec![0, 1], poll).unwrap();
        let cu_socket = Some(socket(&cu_net, "10.38.1.2:2152"));
        let ue_socket = socket(&ue_net, "10.38.2.2:0");
        Lab { du, cu_net, cu_socket, ue_socket, f1u, uu, control, worker }
    }

    fn place(&self) -> Place {
        Place { interface: UU, address: self.ue_socket.local_addr().unwrap() }
    }

    fn tunnel() -> Tunnel {
        Tunnel { interface: F1U, address: "10.38.1.2:2152".parse().unwrap(), teid: CU_TEID }
    }

    fn cu_sends(&self, packet: &[u8]) {
        self.cu_socket.as_ref().unwrap().send_to(packet, self.f1u).unwrap();
    }

    fn ue_sends(&self, sdu: &[u8]) {
        let datagram = Header::uplink(CELL, C_RNTI, LCID).datagram(&[&[0][..], sdu].concat());
        self.ue_socket.send_to(&datagram, self.uu).unwrap();
    }

    /// The next SDU that the UE gets.
    fn ue_gets(&self) -> std::io::Result<Vec<u8>> {
        let mut octets = [0; 2_000];
        let n = self.ue_socket.recv(&mut octets)?;
        let (header, pdu) = Header::parse(&octets[..n]).unwrap();
        assert_eq!((header, pdu[0]), (Header::downlink(CELL, C_RNTI, LCID), 0));
        Ok(pdu[1..].to_vec())
    }

    /// The next SDU that the CU gets, between delivery status.
    fn cu_gets(&self) -> Vec<u8> {
        let mut octets = [0; 2_000];
        loop {
            let n = self.cu_socket.as_ref().unwrap().recv(&mut octets).unwrap();
            let packet = gtpu::Packet::new(&octets[..n]).unwrap();
            assert_eq!(packet.teid(), CU_TEID);
            if !packet.payload().is_empty() {
                return packet.payload().to_vec();
            }
        }
    }

    /// Whether a packet reaches the UE within the time that a broken link needs to work again.
    fn reaches_ue(&self, teid: u32) {
        self.ue_socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let arrives = (0..200u32).any(|n| {
            self.cu_sends(&user_data(teid, n, false, &pdcp(n, 300)));
            self.ue_gets().is_ok()
        });
        assert!(arrives);
        // Others may still come.
        while self.ue_gets().is_ok() {}
        self.ue_socket.set_read_timeout(Some(LIMIT)).unwrap();
    }
}

fn socket(namespace: &NetNs, address: &str) -> UdpSocket {
    let socket = namespace.enter(|| UdpSocket::bind(address).unwrap()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

#[test]
fn packets_pass_between_sockets_while_bearers_come_and_go() {
    let mut lab = Lab::new();
    let control = lab.control.clone();
    let mut numbers = Numbers(9);
    for round in 0..20u32 {
        control.add_ue(C_RNTI, lab.place()).unwrap();
        let added = control.add_bearer(C_RNTI, BearerSetup::new(LCID, Lab::tunnel())).unwrap();
        let mut sequence = 0;
        // Bursts, which the kernel joins and cuts, of packets of all sizes.
        for burst in [1, 40, 7, 64, 1] {
            let sizes: Vec<usize> = match burst {
                7 => vec![1_400; 7],
                _ => (0..burst).map(|_| 1 + numbers.below(1_500) as usize).collect(),
            };
            let mut sdus: Vec<_> = sizes.iter().map(|size| pdcp(numbers.next() as u32, *size)).collect();
            for sdu in &sdus {
                lab.cu_sends(&user_data(added.teid, sequence, false, sdu));
                sequence += 1;
            }
            // The kernel may exchange some on their way when a thread changes its core.
            let mut got: Vec<_> = sdus.iter().map(|_| lab.ue_gets().unwrap()).collect();
            got.sort();
            sdus.sort();
            assert!(got == sdus, "round {round}: down");
            sdus.iter().for_each(|sdu| lab.ue_sends(sdu));
            let mut got: Vec<_> = sdus.iter().map(|_| lab.cu_gets()).collect();
            got.sort();
            assert!(got == sdus, "round {round}: up");
        }
        assert_eq!((added.stats.downlink.get().packets, added.stats.uplink.get().packets), (113, 113));
        control.remove_bearer(C_RNTI, LCID).unwrap();
        assert_eq!(control.remove_bearer(C_RNTI, LCID), Err(Refused::UnknownBearer));
        control.remove_ue(C_RNTI).unwrap();
    }
    assert_eq!(control.stats().downlink.get().packets, 20 * 113);
    lab.worker.stop();
    drop(lab.worker);
    assert_eq!(control.add_ue(C_RNTI, ue_place()), Err(Refused::NotRunning));
}

#[test]
fn packets_take_the_delay_of_the_radio_link() {
    let lab = Lab::new();
    lab.control.add_ue(C_RNTI, lab.place()).unwrap();
    let added = lab.control.add_bearer(C_RNTI, BearerSetup::new(LCID, Lab::tunnel())).unwrap();
    let radio = Radio { delay: Duration::from_millis(30), ..Radio::UNLIMITED };
    lab.control.set_radio(C_RNTI, radio, radio).unwrap();
    for n in 0..20 {
        let (began, sdu) = (net::time::now_std(), pdcp(n, 500));
        lab.cu_sends(&user_data(added.teid, n, false, &sdu));
        assert_eq!(lab.ue_gets().unwrap(), sdu);
        lab.ue_sends(&sdu);
        assert_eq!(lab.cu_gets(), sdu);
        assert!(net::time::now_std() - began >= Duration::from_millis(60));
    }
}

#[test]
fn links_that_go_down_and_peers_that_vanish_come_back() {
    let mut lab = Lab::new();
    lab.control.add_ue(C_RNTI, lab.place()).unwrap();
    let added = lab.control.add_bearer(C_RNTI, BearerSetup::new(LCID, Lab::tunnel())).unwrap();
    lab.reaches_ue(added.teid);
    for _ in 0..2 {
        for device in ["uu", "f1u"] {
            ip(&lab.du, &format!("link set {device} down"));
            for n in 0..500 {
                lab.cu_sends(&user_data(added.teid, n, false, &pdcp(n, 300)));
            }
            ip(&lab.du, &format!("link set {device} up"));
            lab.reaches_ue(added.teid);
        }
        // The CU is away: uplink packets come back as ICMP errors.
        lab.cu_socket = None;
        (0..100).for_each(|n| lab.ue_sends(&pdcp(n, 300)));
        lab.cu_socket = Some(socket(&lab.cu_net, "10.38.1.2:2152"));
        lab.reaches_ue(added.teid);
        lab.ue_sends(b"back");
        while lab.cu_gets() != b"back" {}
    }
}
