//! DRBs: set up, modified, released, and the packets on them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use f1ap::Pdu;
use f1ap::cause::{Cause, RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;
use net::time::timeout;
use packet::gtpu;
use rrc::CellGroupConfig;
use tokio::net::UdpSocket;

use crate::support::*;

/// The CU's end of F1-U.
struct F1u {
    socket: UdpSocket,
    du: SocketAddr,
}

impl F1u {
    async fn new(net: Net) -> F1u {
        let socket = UdpSocket::bind((net.cu(), gtpu::PORT)).await.unwrap();
        F1u { socket, du: SocketAddr::new(net.du(), gtpu::PORT) }
    }

    async fn send(&self, teid: u32, pdu: &[u8]) {
        self.socket.send_to(&gtpu::build_gpdu(teid, None, pdu).unwrap(), self.du).await.unwrap();
    }

    /// The next PDU of a UE, and its TEID.
    async fn next(&self) -> (u32, Vec<u8>) {
        let mut octets = [0; 2_000];
        loop {
            let (n, _) = timeout(LIMIT, self.socket.recv_from(&mut octets)).await.unwrap().unwrap();
            let packet = gtpu::Packet::new(&octets[..n]).unwrap();
            let is_data = packet.message_type() == gtpu::message_type::G_PDU;
            if is_data && !packet.payload().is_empty() {
                return (packet.teid(), packet.payload().to_vec());
            }
        }
    }

    /// Packets pass in both directions.
    async fn pass(&self, ue: &mut Ue, lcid: u8, ours: u32, theirs: u32) {
        self.send(theirs, &[0x80, 0, 1, 9]).await;
        assert_eq!(ue.rrc().await, (lcid, vec![0, 0x80, 0, 1, 9]));
        ue.send(lcid, &[0, 0x80, 0, 2, 8]).await;
        assert_eq!(self.next().await, (ours, vec![0x80, 0, 2, 8]));
    }
}

fn ids(drbs: &[DrbSetup]) -> Vec<(u8, Option<u8>)> {
    drbs.iter().map(|drb| (drb.drb_id.0, drb.lcid.as_ref().map(|lcid| lcid.0))).collect()
}

fn failed(drbs: &[DrbFailed]) -> Vec<(u8, Cause)> {
    drbs.iter().map(|drb| (drb.drb_id.0, drb.cause.unwrap())).collect()
}

/// Logical channels that a configuration adds and releases.
fn channels(config: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let config = CellGroupConfig::decode(config).unwrap();
    let added = config.rlc_bearer_to_add_mod_list.iter();
    (
        added.map(|bearer| bearer.logical_channel_identity.value()).collect(),
        config.rlc_bearer_to_release_list.iter().map(|lcid| lcid.value()).collect(),
    )
}

fn multiple() -> Cause {
    Cause::RadioNetwork(RadioNetwork::MultipleDrbIdInstances)
}

#[tokio::test]
async fn drbs_are_set_up_as_far_as_they_can_be() {
    let mut world = World::new(30).await;
    let net = world.net;
    let f1u = F1u::new(net).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    let tunnel = |teid| end(net.cu(), teid);
    let drbs = vec![
        drb(1, tunnel(11)),
        DrbToBeSetup { dl_pdcp_sn_length: Some(PdcpSnLength::TwelveBits), ..drb(29, tunnel(29)) },
        drb(2, tunnel(21)),
        drb(2, tunnel(22)),
        drb(30, tunnel(30)),
        DrbToBeSetup { rlc_mode: RlcMode::Am, ..drb(3, tunnel(31)) },
        DrbToBeSetup { ul_up_tnl: vec![tunnel(41), tunnel(42)], ..drb(4, tunnel(41)) },
        drb(5, end(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), 51)),
        drb(6, end(IpAddr::from([0, 0, 0, 0]), 61)),
    ];
    let request = UeContextSetupRequest {
        srbs: vec![1, 2, 3, 0]
            .into_iter()
            .map(|srb| SrbToBeSetup { srb_id: SrbId(srb), duplication_indication: None })
            .collect(),
        ..setup(CU_ID, id, drbs)
    };
    let Pdu::UeContextSetupResponse(response) = world.cu.ask(request).await else { panic!() };
    assert_eq!(ids(&response.drbs), [(1, Some(4)), (29, Some(32))]);
    assert_eq!(response.srbs_failed.iter().map(|srb| srb.srb_id.0).collect::<Vec<_>>(), [3, 0]);
    let (added, released) = channels(&response.du_to_cu_rrc_information.cell_group_config);
    assert_eq!((added, released), (vec![4, 32], vec![]), "SRB2 was there");
    let failures = failed(&response.drbs_failed);
    assert_eq!(failures.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 2, 30, 3, 4, 5, 6]);
    assert_eq!((failures[0].1, failures[1].1), (multiple(), multiple()));
    let ends: Vec<_> = response.drbs.iter().map(|drb| drb.dl_up_tnl[0].tunnel).collect();
    let IpAddr::V4(du) = net.du() else { panic!() };
    assert!(ends.iter().all(|end| end.address == TransportLayerAddress::V4(du)));
    f1u.pass(&mut ue, 4, 11, ends[0].teid.0).await;
    f1u.pass(&mut ue, 32, 29, ends[1].teid.0).await;
}

#[tokio::test]
async fn drbs_are_modified_and_released() {
    let mut world = World::new(31).await;
    let net = world.net;
    let f1u = F1u::new(net).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    let tunnel = |teid| end(net.cu(), teid);
    let drbs = (1..=4).map(|n| drb(n, tunnel(n.into()))).collect();
    let Pdu::UeContextModificationResponse(response) =
        world.cu.ask(UeContextModificationRequest { drbs, ..modification(CU_ID, id) }).await
    else {
        panic!()
    };
    let teids: Vec<u32> = response.drbs.iter().map(|drb| drb.dl_up_tnl[0].tunnel.teid.0).collect();
    assert_eq!(channels(&response.du_to_cu_rrc_information.unwrap().cell_group_config).0, [4, 5, 6, 7]);

    let modified = |id: u8, teid| DrbToBeModified {
        drb_id: DrbId(id),
        qos: Some(qos()),
        ul_up_tnl: vec![tunnel(teid)],
        ul_configuration: None,
        dl_pdcp_sn_length: None,
        ul_pdcp_sn_length: None,
        rlc_mode: None,
    };
    let request = UeContextModificationRequest {
        // The first can be; the second is to go as well; of the third there are two; another SN needs a new bearer; the last is
        // unknown.
        drbs_to_be_modified: vec![
            modified(1, 101),
            modified(2, 102),
            modified(3, 103),
            modified(3, 104),
            DrbToBeModified { dl_pdcp_sn_length: Some(PdcpSnLength::TwelveBits), ..modified(4, 105) },
            modified(9, 109),
        ],
        drbs_to_be_released: [2, 8, 2].map(|id| DrbToBeReleased { drb_id: DrbId(id) }).to_vec(),
        // One that is there, and one that takes the place of what goes.
        drbs: vec![drb(1, tunnel(201)), drb(2, tunnel(202))],
        rrc_container: Some(b"RRCReconfiguration".to_vec()),
        rrc_reconfiguration_complete: Some(RrcReconfigurationCompleteIndicator::True),
        ..modification(CU_ID, id)
    };
    let Pdu::UeContextModificationResponse(response) = world.cu.ask(request).await else { panic!() };
    assert_eq!(ids(&response.drbs_modified), [(1, Some(4))]);
    assert_eq!(response.drbs_modified[0].dl_up_tnl[0].tunnel.teid.0, teids[0], "our end stays");
    assert_eq!(failed(&response.drbs_failed_to_be_modified).len(), 5);
    assert_eq!(ids(&response.drbs), [(2, Some(5))]);
    assert_eq!(failed(&response.drbs_failed), [(1, multiple())]);
    let config = response.du_to_cu_rrc_information.unwrap().cell_group_config;
    assert_eq!(channels(&config), (vec![5], vec![5]));
    assert_eq!(ue.rrc().await, (1, b"RRCReconfiguration".to_vec()));
    f1u.pass(&mut ue, 4, 101, teids[0]).await;
    f1u.pass(&mut ue, 5, 202, response.drbs[0].dl_up_tnl[0].tunnel.teid.0).await;
    // The tunnel of the bearer that went leads nowhere.
    f1u.send(teids[1], &[0x80, 0, 3, 7]).await;
    assert!(ue.is_quiet().await);

    // A request that changes nothing has no configuration for the UE.
    let Pdu::UeContextModificationResponse(response) = world.cu.ask(modification(CU_ID, id)).await else {
        panic!()
    };
    assert_eq!(response.du_to_cu_rrc_information, None);
}

#[tokio::test]
async fn a_tunnel_that_the_cu_does_not_know_ends_the_ue() {
    let mut world = World::new(32).await;
    let f1u = F1u::new(world.net).await;
    let (mut ue, id) = world.connect(CU_ID).await;
    let request = setup(CU_ID, id, vec![drb(1, end(world.net.cu(), 11))]);
    let Pdu::UeContextSetupResponse(_) = world.cu.ask(request).await else { panic!() };
    let error = gtpu::Signalling::ErrorIndication { teid: 11, peer: world.net.cu(), udp_port: None };
    f1u.socket.send_to(&error.build(), f1u.du).await.unwrap();
    assert!(world.cu.is_quiet().await, "the bearer may be about to be released");
    net::time::sleep(Duration::from_secs(1)).await;
    f1u.socket.send_to(&error.build(), f1u.du).await.unwrap();
    let Pdu::UeContextReleaseRequest(request) = world.cu.next().await else { panic!() };
    assert!(matches!(request.cause, Cause::Transport(_)));
    // Nothing new for a UE that is to go.
    let request = setup(CU_ID, id, vec![drb(2, end(world.net.cu(), 12))]);
    assert!(matches!(world.cu.ask(request).await, Pdu::UeContextSetupFailure(_)));
    assert!(matches!(world.cu.ask(modification(CU_ID, id)).await, Pdu::UeContextModificationFailure(_)));
    let Pdu::UeContextReleaseComplete(_) = world.cu.ask(command(CU_ID, id, Some(b"RRCRelease"))).await else {
        panic!()
    };
    assert_eq!(ue.rrc().await, (1, b"RRCRelease".to_vec()), "the UE can be reached");
}
