//! UEs in a cell whose DU and CU are in the test: over `uu` on loopback, with the network's codecs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use l2::rlc::am::{Config, Entity, Received};
use l2::uu::{self, Header, Kind};
use pktio::interface::LinkConfig;
use rrc::bearer::{RadioBearerConfig, SrbToAddMod};
use rrc::cell_group::{CellGroupConfig, CellGroupId};
use rrc::message::*;
use rrc::system::*;
use rrc::value::{RejectWaitTime, SrbIdentity};
use rrc::{BcchBch, BcchDlSch, DlCcch, DlDcch, Pcch, RrcTransactionIdentifier, UlCcch, UlDcch};
use types::{NrCellId, Plmn, STmsi, Tac, Tmsi};
use ue::{CellConfig, ConnectError, Downlink, StartError, Ues};

const CELL: u64 = 0x1_0001;
const C_RNTI: u16 = 0x4601;

/// What the network does with requests for a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    Setup,
    /// The first request is lost.
    SecondTime,
    /// The first is rejected for a second.
    RejectFirst,
    Nothing,
}

/// DU and CU: they answer until the UE's first NAS message, which they send back.
struct Network {
    socket: UdpSocket,
    ues: Option<SocketAddr>,
    rlc: Entity<()>,
    tx: l2::pdcp::Tx,
    rx: l2::pdcp::Rx,
    requests: Arc<AtomicU32>,
    releases: Arc<AtomicU32>,
    /// Every other PDU of the UE on SRB1 is lost, and all of the network come twice.
    faulty: bool,
    heard: u32,
}

fn transaction() -> RrcTransactionIdentifier {
    RrcTransactionIdentifier::new(1).unwrap()
}

impl Network {
    fn run(mut self, answers: Answers, stop: &AtomicBool) {
        let mut datagram = [0; 2_000];
        let now_ns = net::time::now_ns;
        while !stop.load(Ordering::SeqCst) {
            if let Ok((octets, from)) = self.socket.recv_from(&mut datagram) {
                let (header, pdu) = Header::parse(&datagram[..octets]).unwrap();
                let pdu = pdu.to_vec();
                self.handle(&header, &pdu, from, answers);
                self.ues = Some(from);
            }
            self.rlc.expire(now_ns());
            self.flush();
        }
    }

    fn handle(&mut self, header: &Header, pdu: &[u8], from: SocketAddr, answers: Answers) {
        let send = |header: Header, payload: &[u8]| {
            self.socket.send_to(&header.datagram(payload), from).unwrap();
        };
        match (header.kind, header.lcid) {
            (Kind::Camp, _) => {
                assert_eq!(header.cell, CELL);
                // First, so that who has the system information has also heard this page.
                send(Header::broadcast(CELL, uu::P_RNTI), &page());
                send(Header::broadcast(CELL, uu::BCH), &BcchBch::from(mib()).encode().unwrap());
                send(Header::broadcast(CELL, uu::SI_RNTI), &BcchDlSch::from(sib1()).encode().unwrap());
            }
            (Kind::Preamble, _) => {
                let header = Header { kind: Kind::RandomAccessResponse, c_rnti: C_RNTI, lcid: 0, cell: CELL };
                send(header, pdu);
            }
            (Kind::Uplink, 0) => {
                let UlCcch::RrcSetupRequest(_) = UlCcch::decode(pdu).unwrap() else { panic!() };
                let before = self.requests.fetch_add(1, Ordering::SeqCst);
                let answer: DlCcch = match answers {
                    Answers::Nothing => return,
                    Answers::SecondTime if before == 0 => return,
                    Answers::RejectFirst if before == 0 => {
                        RrcReject { wait_time: RejectWaitTime::new(1) }.into()
                    }
                    _ => setup().into(),
                };
                send(Header::downlink(CELL, C_RNTI, 0), &answer.encode().unwrap());
            }
            (Kind::Uplink, 1) => {
                self.heard += 1;
                if self.faulty && self.heard % 2 == 1 {
                    return;
                }
                if let Ok(Received::Sdu(pdu)) = self.rlc.receive(pdu, net::time::now_ns()) {
                    self.message(pdu);
                }
            }
            (Kind::Release, _) => {
                self.releases.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
    }

    fn message(&mut self, mut pdu: Vec<u8>) {
        let l2::pdcp::Verdict::Deliver { sdu, .. } = self.rx.open(&mut pdu, 0) else { return };
        match UlDcch::decode(&pdu[sdu]).unwrap() {
            UlDcch::RrcSetupComplete(complete) => self.send(
                DlInformationTransfer {
                    rrc_transaction_identifier: transaction(),
                    dedicated_nas_message: Some(complete.dedicated_nas_message),
                }
                .into(),
            ),
            UlDcch::UlInformationTransfer(_) => self.send(
                RrcRelease {
                    rrc_transaction_identifier: transaction(),
                    deprioritisation_req: None,
                    v1540: None,
                }
                .into(),
            ),
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, message: DlDcch) {
        let message = message.encode().unwrap();
        let mut pdu = vec![0; self.tx.header_len()];
        pdu.extend_from_slice(&message);
        pdu.resize(pdu.len() + self.tx.trailer_len(), 0);
        self.tx.seal(&mut pdu).unwrap();
        self.rlc.push(pdu, ()).unwrap();
    }

    fn flush(&mut self) {
        let Some(ues) = self.ues else { return };
        let mut pdu = Vec::new();
        while self.rlc.pull(1_400, net::time::now_ns(), &mut pdu).is_some() {
            for _ in 0..if self.faulty { 2 } else { 1 } {
                self.socket.send_to(&Header::downlink(CELL, C_RNTI, 1).datagram(&pdu), ues).unwrap();
            }
            pdu.clear();
        }
    }
}

fn s_tmsi() -> STmsi {
    STmsi::new(1, 2, Tmsi(3)).unwrap()
}

fn page() -> Vec<u8> {
    let ue_identity = PagingUeIdentity::Ng5gSTmsi(s_tmsi());
    let record = PagingRecord { ue_identity, non_3gpp_access: false };
    Pcch::from(Paging { paging_record_list: vec![record] }).encode().unwrap().to_vec()
}

fn mib() -> Mib {
    Mib {
        system_frame_number: Bits6::new(0).unwrap(),
        sub_carrier_spacing_common: SubCarrierSpacingCommon::Scs30Or120,
        ssb_subcarrier_offset: Bits4::new(0).unwrap(),
        dmrs_type_a_position: DmrsTypeAPosition::Pos2,
        pdcch_config_sib1: 0,
        cell_barred: CellBarred::NotBarred,
        intra_freq_reselection: IntraFreqReselection::Allowed,
    }
}

fn sib1() -> Sib1 {
    Sib1 {
        cell_selection_info: None,
        cell_access_related_info: CellAccessRelatedInfo {
            plmn_identity_info_list: vec![PlmnIdentityInfo {
                plmn_identity_list: vec![Plmn::new("999", "70").unwrap()],
                tracking_area_code: Some(Tac::new(7).unwrap()),
                ranac: None,
                cell_identity: NrCellId::new(CELL).unwrap(),
                cell_reserved_for_operator_use: CellReservedForOperatorUse::NotReserved,
            }],
            cell_reserved_for_other_use: false,
        },
    }
}

fn setup() -> RrcSetup {
    let srb1 = SrbToAddMod {
        srb_identity: SrbIdentity::new(1).unwrap(),
        reestablish_pdcp: false,
        discard_on_pdcp: false,
        pdcp_config: None,
    };
    let group = CellGroupConfig {
        cell_group_id: CellGroupId::new(0).unwrap(),
        rlc_bearer_to_add_mod_list: Vec::new(),
        rlc_bearer_to_release_list: Vec::new(),
    };
    RrcSetup {
        rrc_transaction_identifier: transaction(),
        radio_bearer_config: RadioBearerConfig { srb_to_add_mod_list: vec![srb1], ..Default::default() },
        master_cell_group: group.encode().unwrap(),
    }
}

struct World {
    ues: Ues,
    du: SocketAddr,
    requests: Arc<AtomicU32>,
    releases: Arc<AtomicU32>,
    network: Option<std::thread::JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl World {
    /// UEs in a cell at an address of the test's own.
    async fn new(host: u8, answers: Answers, faulty: bool) -> World {
        let du: SocketAddr = format!("127.0.44.{host}:38321").parse().unwrap();
        let socket = UdpSocket::bind(du).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let config = |direction| l2::pdcp::Config::srb(l2::pdcp::SrbId::Srb1, direction);
        let rx = l2::pdcp::RxConfig { t_reordering: None, ..Default::default() };
        let none = l2::pdcp::Security::none;
        let (requests, releases) = (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
        let network = Network {
            socket,
            ues: None,
            rlc: Entity::new(Config::SIGNALLING),
            tx: l2::pdcp::Tx::new(config(l2::security::Direction::Downlink), none()),
            rx: l2::pdcp::Rx::new(config(l2::security::Direction::Uplink), none(), rx),
            requests: Arc::clone(&requests),
            releases: Arc::clone(&releases),
            faulty,
            heard: 0,
        };
        let stop = Arc::<AtomicBool>::default();
        let of_network = Arc::clone(&stop);
        let network = Some(std::thread::spawn(move || network.run(answers, &of_network)));
        let ues = Ues::start(&config_of(host, du), None).await.unwrap();
        World { ues, du, requests, releases, network, stop }
    }

    async fn released(&self) {
        for _ in 0..200 {
            if self.releases.load(Ordering::SeqCst) > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the C-RNTI is not given back");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.ues.shutdown();
        self.stop.store(true, Ordering::SeqCst);
        if let Some(Err(panic)) = self.network.take().map(std::thread::JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

fn config_of(host: u8, du: SocketAddr) -> ue::Config {
    let uu: LinkConfig =
        serde_json::from_value(serde_json::json!({ "gtpu": format!("127.0.45.{host}:38321") })).unwrap();
    ue::Config {
        cells: vec![CellConfig { id: CELL, du }],
        uu,
        workers: Default::default(),
        dpdk: Default::default(),
    }
}

async fn next(connection: &mut ue::Connection) -> Option<Downlink> {
    tokio::time::timeout(Duration::from_secs(10), connection.next()).await.unwrap()
}

async fn nas_goes_and_comes(world: &World) {
    let cell = world.ues.cells().next().unwrap();
    assert_eq!((cell.tai().tac.value(), cell.id().value()), (7, CELL));
    let mut connection = cell.connect(EstablishmentCause::MoSignalling, None).await.unwrap();
    connection.send_nas("hello".into()).await.unwrap();
    assert!(matches!(next(&mut connection).await, Some(Downlink::Nas(nas)) if nas == "hello"));
    connection.send_nas("bye".into()).await.unwrap();
    assert!(matches!(next(&mut connection).await, Some(Downlink::Released)));
    assert!(next(&mut connection).await.is_none());
    drop(connection);
    world.released().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_begins_and_ends() {
    let world = World::new(1, Answers::Setup, false).await;
    nas_goes_and_comes(&world).await;
    assert_eq!(world.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_or_comes_twice_does_not_matter() {
    let world = World::new(2, Answers::SecondTime, true).await;
    nas_goes_and_comes(&world).await;
    assert_eq!(world.requests.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_rejected_asks_again_when_the_time_is_over() {
    let world = World::new(3, Answers::RejectFirst, false).await;
    let begin_ns = net::time::now_ns();
    nas_goes_and_comes(&world).await;
    assert!(net::time::now_ns() - begin_ns >= 1_000_000_000);
    assert_eq!(world.requests.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_answer_there_is_no_connection_and_the_c_rnti_goes_back() {
    let world = World::new(4, Answers::Nothing, false).await;
    let cell = world.ues.cells().next().unwrap();
    let refused = cell.connect(EstablishmentCause::MoData, None).await.unwrap_err();
    assert_eq!(refused, ConnectError::NoAnswer);
    assert!(world.requests.load(Ordering::SeqCst) > 3);
    world.released().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_cell_is_an_error_that_says_what_to_check() {
    let du: SocketAddr = "127.0.44.9:38321".parse().unwrap();
    let Err(error) = Ues::start(&config_of(9, du), None).await else { panic!("there is no cell") };
    assert!(matches!(error, StartError::Silent { cell: CELL, .. }));
    assert!(error.to_string().contains("does its DU run there"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_reaches_the_ue_that_camps() {
    let world = World::new(5, Answers::Setup, false).await;
    let cell = world.ues.cells().next().unwrap();
    let (camping, another) = (cell.camp(s_tmsi()), cell.camp(STmsi::new(1, 2, Tmsi(4)).unwrap()));
    // One that has not the DU's port is not the DU.
    let other = UdpSocket::bind(SocketAddr::new(world.du.ip(), 0)).unwrap();
    let ues: SocketAddr = "127.0.45.5:38321".parse().unwrap();
    other.send_to(&Header::broadcast(CELL, uu::P_RNTI).datagram(&page()), ues).unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(300), camping.paged()).await.is_err());
    // The DU pages with its answer to the next camp.
    tokio::time::timeout(Duration::from_secs(8), camping.paged()).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(10), another.paged()).await.is_err());
}
