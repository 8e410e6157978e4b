//! A DU, a CU's end of F1-C and F1-U, and UEs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use du::{Config, Du, F1cConfig};
use f1ap::Pdu;
use f1ap::ie::*;
use f1ap::message::*;
use l2::rlc::am::{Entity, Received};
use l2::uu::{self, Header, Kind};
use net::sctp::{Association, Event, Listener, Message, SctpConfig, SctpMode};
use net::time::{now_ns, timeout};
use pktio::interface::LinkConfig;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use types::{Ncgi, NrCellId, Plmn, Qfi, SNssai, Tac, Teid};

pub const LIMIT: Duration = Duration::from_secs(10);
/// In which nothing is to happen.
pub const QUIET: Duration = Duration::from_millis(200);
pub const CELL: u64 = 0x1_2345_6001;
pub const CU_ID: GnbCuUeF1apId = GnbCuUeF1apId(70_000);

pub fn ncgi() -> Ncgi {
    Ncgi { plmn: Plmn::new("999", "70").unwrap(), nr_cell_id: NrCellId::new(CELL).unwrap() }
}

fn sctp() -> SctpConfig {
    let heartbeat_interval = Duration::from_millis(500);
    SctpConfig {
        mode: SctpMode::Udp { port: 9899 },
        heartbeat_interval,
        max_retransmissions: 2,
        ..SctpConfig::default()
    }
}

/// Each test has addresses of its own.
#[derive(Clone, Copy)]
pub struct Net(pub u8);

impl Net {
    pub fn cu(self) -> IpAddr {
        IpAddr::from([127, 38, self.0, 1])
    }

    pub fn du(self) -> IpAddr {
        IpAddr::from([127, 38, self.0, 2])
    }

    pub fn uu(self) -> SocketAddr {
        SocketAddr::new(self.du(), uu::PORT)
    }

    pub fn config(self) -> Config {
        let link =
            |port| LinkConfig { gtpu: Some(SocketAddr::new(self.du(), port)), ..LinkConfig::default() };
        let f1c = F1cConfig {
            local: self.du(),
            cu: SocketAddr::new(self.cu(), f1ap::PORT),
            sctp: SctpMode::Udp { port: 9899 },
        };
        Config {
            f1c: Some(f1c),
            id: Some(0xD0),
            name: Some("north-1".to_owned()),
            plmn: ncgi().plmn,
            tac: Tac::new(7).unwrap(),
            slices: vec![SNssai::new(1, None).unwrap(), SNssai::new(2, Some(0xFF)).unwrap()],
            ..Config::new(CELL, link(packet::gtpu::PORT), link(uu::PORT))
        }
    }

    pub async fn listen(self) -> Listener {
        Listener::bind(SocketAddr::new(self.cu(), f1ap::PORT), sctp()).await.unwrap()
    }
}

/// A CU's end of an association.
pub struct Cu {
    pub association: Association,
}

impl Cu {
    pub async fn accept(listener: &mut Listener) -> Cu {
        let association = timeout(LIMIT, listener.accept()).await.expect("a DU in time").unwrap();
        Cu { association }
    }

    pub async fn next(&mut self) -> Pdu {
        match timeout(LIMIT, self.association.recv()).await.expect("a message in time") {
            Some(Event::Message(message)) => {
                assert_eq!(message.ppid, f1ap::PPID);
                Pdu::decode(&message.payload).unwrap().pdu
            }
            other => panic!("{other:?}"),
        }
    }

    /// Whether the DU sends nothing for a while.
    pub async fn is_quiet(&mut self) -> bool {
        timeout(QUIET, self.association.recv()).await.is_err()
    }

    pub async fn send(&self, pdu: impl Into<Pdu>) {
        self.send_octets(pdu.into().encode().unwrap()).await;
    }

    pub async fn send_octets(&self, octets: Vec<u8>) {
        let message = Message { stream: 0, ppid: f1ap::PPID, payload: octets.into() };
        self.association.send(message).await.unwrap();
    }

    pub async fn ask(&mut self, pdu: impl Into<Pdu>) -> Pdu {
        self.send(pdu).await;
        self.next().await
    }

    /// Accepts a DU that asks.
    pub async fn set_up(&mut self) -> F1SetupRequest {
        let Pdu::F1SetupRequest(request) = self.next().await else { panic!() };
        self.send(accepted(request.transaction_id)).await;
        request
    }

    pub async fn initial(&mut self) -> InitialUlRrcMessageTransfer {
        let Pdu::InitialUlRrcMessageTransfer(initial) = self.next().await else { panic!() };
        initial
    }

    pub async fn ul(&mut self) -> (u8, Vec<u8>) {
        match self.next().await {
            Pdu::UlRrcMessageTransfer(transfer) => (transfer.srb_id.0, transfer.rrc_container),
            other => panic!("{other:?}"),
        }
    }
}

pub fn accepted(transaction_id: TransactionId) -> F1SetupResponse {
    F1SetupResponse {
        transaction_id,
        gnb_cu_name: Some(NodeName("cu".to_owned())),
        cells_to_be_activated: vec![CellToBeActivated { nr_cgi: ncgi(), nr_pci: None }],
        rrc_version: RrcVersion { latest: RrcVersionBits(0), latest_enhanced: Some([17, 4, 0]) },
    }
}

/// A DU that has been set up, and its CU.
pub struct World {
    pub net: Net,
    pub du: Du,
    pub listener: Listener,
    pub cu: Cu,
}

impl World {
    pub async fn new(number: u8) -> World {
        let net = Net(number);
        World::with(net, &net.config()).await
    }

    pub async fn with(net: Net, config: &Config) -> World {
        let mut listener = net.listen().await;
        let du = Du::start(config, None, 7).await.unwrap();
        let mut cu = Cu::accept(&mut listener).await;
        cu.set_up().await;
        assert!(timeout(LIMIT, du.up()).await.unwrap());
        World { net, du, listener, cu }
    }

    /// A UE that has done random access and has sent its first message, which the CU has got.
    pub async fn access(&mut self) -> (Ue, InitialUlRrcMessageTransfer) {
        let mut ue = Ue::new(self.net.uu()).await;
        ue.access().await;
        ue.send(0, b"RRCSetupRequest").await;
        let initial = self.cu.initial().await;
        assert_eq!(initial.c_rnti.0, ue.c_rnti);
        (ue, initial)
    }

    /// A UE with SRB1 and SRB2.
    pub async fn connect(&mut self, cu_id: GnbCuUeF1apId) -> (Ue, GnbDuUeF1apId) {
        let (mut ue, initial) = self.access().await;
        let id = initial.gnb_du_ue_f1ap_id;
        self.cu.send(dl(cu_id, id, 0, b"RRCSetup")).await;
        assert_eq!(ue.rrc().await, (0, b"RRCSetup".to_vec()));
        ue.send(1, b"RRCSetupComplete").await;
        assert_eq!(self.cu.ul().await, (1, b"RRCSetupComplete".to_vec()));
        let Pdu::UeContextSetupResponse(response) = self.cu.ask(setup(cu_id, id, Vec::new())).await else {
            panic!()
        };
        assert!(response.srbs_failed.is_empty());
        (ue, id)
    }
}

pub fn dl(cu: GnbCuUeF1apId, du: GnbDuUeF1apId, srb: u8, message: &[u8]) -> DlRrcMessageTransfer {
    DlRrcMessageTransfer {
        gnb_cu_ue_f1ap_id: cu,
        gnb_du_ue_f1ap_id: du,
        old_gnb_du_ue_f1ap_id: None,
        srb_id: SrbId(srb),
        rrc_container: message.to_vec(),
        rrc_delivery_status_request: None,
    }
}

pub fn setup(cu: GnbCuUeF1apId, du: GnbDuUeF1apId, drbs: Vec<DrbToBeSetup>) -> UeContextSetupRequest {
    UeContextSetupRequest {
        gnb_cu_ue_f1ap_id: cu,
        gnb_du_ue_f1ap_id: Some(du),
        sp_cell_id: ncgi(),
        serv_cell_index: ServCellIndex(0),
        sp_cell_ul_configured: None,
        cu_to_du_rrc_information: CuToDuRrcInformation {
            cg_config_info: None,
            ue_capability_rat_container_list: None,
            meas_config: None,
            handover_preparation_information: None,
            cell_group_config: None,
        },
        srbs: vec![SrbToBeSetup { srb_id: SrbId(2), duplication_indication: None }],
        drbs,
        rrc_container: None,
        ue_ambr_ul: Some(types::BitRate::from_bps(1_000_000_000)),
        rrc_delivery_status_request: None,
    }
}

pub fn modification(cu: GnbCuUeF1apId, du: GnbDuUeF1apId) -> UeContextModificationRequest {
    UeContextModificationRequest {
        gnb_cu_ue_f1ap_id: cu,
        gnb_du_ue_f1ap_id: du,
        cu_to_du_rrc_information: None,
        rrc_reconfiguration_complete: None,
        rrc_container: None,
        srbs: Vec::new(),
        drbs: Vec::new(),
        drbs_to_be_modified: Vec::new(),
        drbs_to_be_released: Vec::new(),
        ue_ambr_ul: None,
    }
}

pub fn command(cu: GnbCuUeF1apId, du: GnbDuUeF1apId, last: Option<&[u8]>) -> UeContextReleaseCommand {
    UeContextReleaseCommand {
        gnb_cu_ue_f1ap_id: cu,
        gnb_du_ue_f1ap_id: du,
        cause: f1ap::cause::Cause::RadioNetwork(f1ap::cause::RadioNetwork::NormalRelease),
        rrc_container: last.map(<[u8]>::to_vec),
        srb_id: last.map(|_| SrbId(1)),
    }
}

pub fn end(address: IpAddr, teid: u32) -> UpTnlItem {
    let address = match address {
        IpAddr::V4(v4) => TransportLayerAddress::V4(v4),
        IpAddr::V6(v6) => TransportLayerAddress::V6(v6),
    };
    UpTnlItem { tunnel: GtpTunnel { address, teid: Teid(teid) } }
}

pub fn qos() -> DrbQos {
    let qos = QosFlowLevelQosParameters {
        characteristics: QosCharacteristics::NonDynamic(NonDynamic5Qi {
            five_qi: FiveQi(9),
            priority_level: None,
            averaging_window: None,
            max_data_burst_volume: None,
        }),
        arp: NgranArp {
            priority_level: PriorityLevel(8),
            pre_emption_capability: PreEmptionCapability::ShallNotTriggerPreEmption,
            pre_emption_vulnerability: PreEmptionVulnerability::NotPreEmptable,
        },
        gbr: None,
        reflective_qos: None,
    };
    DrbQos(DrbInformation {
        qos: qos.clone(),
        s_nssai: SNssai::new(1, None).unwrap(),
        notification_control: None,
        flows: vec![FlowMappedToDrb { qfi: Qfi::new(9).unwrap(), qos }],
    })
}

pub fn drb(id: u8, tunnel: UpTnlItem) -> DrbToBeSetup {
    DrbToBeSetup {
        drb_id: DrbId(id),
        qos: qos(),
        ul_up_tnl: vec![tunnel],
        rlc_mode: RlcMode::UmBidirectional,
        ul_configuration: None,
        duplication_activation: None,
        dl_pdcp_sn_length: Some(PdcpSnLength::EighteenBits),
        ul_pdcp_sn_length: None,
    }
}

/// What a UE hears.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// An SDU of a signalling bearer, or a PDU of a data bearer.
    Sdu(u8, Vec<u8>),
    /// Another datagram.
    Other(Header, Vec<u8>),
}

/// A UE. A task of its own answers what RLC asks.
pub struct Ue {
    pub c_rnti: u16,
    pub socket: std::sync::Arc<UdpSocket>,
    to_send: mpsc::Sender<(u8, Vec<u8>)>,
    heard: mpsc::Receiver<Heard>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Ue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ue {
    pub async fn new(du: SocketAddr) -> Ue {
        let socket = std::sync::Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        socket.connect(du).await.unwrap();
        let (to_send, wanted) = mpsc::channel(64);
        let (sender, heard) = mpsc::channel(1_024);
        let task = tokio::spawn(rlc(std::sync::Arc::clone(&socket), wanted, sender));
        Ue { c_rnti: 0, socket, to_send, heard, task }
    }

    pub async fn next(&mut self) -> Heard {
        timeout(LIMIT, self.heard.recv()).await.expect("something in time").unwrap()
    }

    pub async fn rrc(&mut self) -> (u8, Vec<u8>) {
        match self.next().await {
            Heard::Sdu(lcid, sdu) => (lcid, sdu),
            other => panic!("{other:?}"),
        }
    }

    pub async fn is_quiet(&mut self) -> bool {
        timeout(QUIET, self.heard.recv()).await.is_err()
    }

    /// Waits for a release of the C-RNTI.
    pub async fn released(&mut self) {
        let header = Header { kind: Kind::Release, c_rnti: self.c_rnti, lcid: 0, cell: CELL };
        assert_eq!(self.next().await, Heard::Other(header, Vec::new()));
    }

    pub async fn send_datagram(&self, header: Header, payload: &[u8]) {
        self.socket.send(&header.datagram(payload)).await.unwrap();
    }

    pub async fn preamble(&self) {
        let header = Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: CELL };
        self.send_datagram(header, b"abcdef").await;
    }

    pub async fn access(&mut self) {
        self.preamble().await;
        let Heard::Other(header, identity) = self.next().await else { panic!() };
        assert_eq!((header.kind, &identity[..]), (Kind::RandomAccessResponse, &b"abcdef"[..]));
        self.c_rnti = header.c_rnti;
    }

    pub async fn camp(&self) {
        self.send_datagram(Header::camp(CELL), b"").await;
    }

    /// Sends an SDU of a signalling bearer, or a PDU of a data bearer.
    pub async fn send(&self, lcid: u8, sdu: &[u8]) {
        let header = Header::uplink(CELL, self.c_rnti, lcid);
        match lcid {
            1 | 2 => self.to_send.send((lcid, sdu.to_vec())).await.unwrap(),
            _ => self.send_datagram(header, sdu).await,
        }
    }

    pub async fn release(&self) {
        let header = Header { kind: Kind::Release, c_rnti: self.c_rnti, lcid: 0, cell: CELL };
        self.send_datagram(header, b"").await;
    }

    /// Stops answering.
    pub fn fall_silent(&self) {
        self.task.abort();
    }
}

/// RLC of a UE's SRB1 and SRB2.
async fn rlc(
    socket: std::sync::Arc<UdpSocket>,
    mut wanted: mpsc::Receiver<(u8, Vec<u8>)>,
    sender: mpsc::Sender<Heard>,
) {
    let config = l2::rlc::am::Config { max_retx_threshold: 1_000, ..l2::rlc::am::Config::SIGNALLING };
    let mut srbs = [Entity::<()>::new(config), Entity::new(config)];
    let (mut c_rnti, mut octets) = (0, vec![0; 10_000]);
    loop {
        tokio::select! {
            received = socket.recv(&mut octets) => {
                // The DU may not be there for a while.
                let Ok(n) = received else { continue };
                let (header, payload) = Header::parse(&octets[..n]).unwrap();
                if header.kind == Kind::RandomAccessResponse {
                    c_rnti = header.c_rnti;
                }
                let heard = match (header.kind, header.lcid) {
                    (Kind::Downlink, lcid @ (1 | 2)) => {
                        match srbs[usize::from(lcid) - 1].receive(payload, now_ns()) {
                            Ok(Received::Sdu(sdu)) => Some(Heard::Sdu(lcid, sdu)),
                            _ => None,
                        }
                    }
                    (Kind::Downlink, lcid) => Some(Heard::Sdu(lcid, payload.to_vec())),
                    _ => Some(Heard::Other(header, payload.to_vec())),
                };
                if let Some(heard) = heard {
                    sender.send(heard).await.unwrap();
                }
            }
            message = wanted.recv() => {
                let Some((lcid, sdu)) = message else { return };
                srbs[usize::from(lcid) - 1].push(sdu, ()).unwrap();
            }
            () = net::time::sleep(Duration::from_millis(10)) => {}
        }
        for (lcid, srb) in (1..).zip(&mut srbs) {
            srb.expire(now_ns());
            let mut pdu = Vec::new();
            while srb.pull(1_000, now_ns(), &mut pdu).is_some() {
                let _ = socket.send(&Header::uplink(CELL, c_rnti, lcid).datagram(&pdu)).await;
                pdu.clear();
            }
        }
    }
}
