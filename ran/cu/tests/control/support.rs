//! An AMF and DUs without logic of their own, and UEs with the RRC of crate `ue`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use cu::{Config, Cu, N2};
use f1ap::Pdu as F1;
use f1ap::cause::{Cause, RadioNetwork};
use f1ap::ie::*;
use f1ap::message::*;
use net::sctp::{Association, Event, Listener, Message, SctpConfig, SctpMode};
use net::time::timeout;
use ngap::transfer::*;
use ngap::{AmfUeNgapId, Pdu as Ngap, RanUeNgapId};
use pktio::interface::LinkConfig;
use rrc::cell_group::CellGroupId;
use rrc::message::*;
use rrc::{CellGroupConfig, DlCcch, UlCcch};
use types::*;
use ue::rrc::{Action, Machine};

pub const LIMIT: Duration = Duration::from_secs(8);
pub const AMF_ID: AmfUeNgapId = AmfUeNgapId(77);
pub const GNB: u32 = 0x12_3456;
pub const K_GNB: [u8; 32] = [0x5A; 32];

pub fn address(host: u8, last: u8) -> IpAddr {
    IpAddr::from([127, 19, host, last])
}

fn sctp() -> SctpConfig {
    SctpConfig { mode: SctpMode::Udp { port: 9899 }, ..SctpConfig::default() }
}

pub fn plmn() -> Plmn {
    Plmn::new("999", "70").unwrap()
}

pub fn cell(number: u64) -> Ncgi {
    Ncgi { plmn: plmn(), nr_cell_id: NrCellId::new(u64::from(GNB) << 12 | number).unwrap() }
}

pub fn link(address: IpAddr) -> LinkConfig {
    serde_json::from_value(serde_json::json!({"gtpu": format!("{address}:2152")})).unwrap()
}

/// A CU with an AMF. `host`: the test's own third octet.
pub struct World {
    pub cu: Cu,
    pub amf: Amf,
    pub listener: Listener,
    host: u8,
}

pub struct Amf(Association);

impl World {
    pub async fn start(host: u8, change: impl FnOnce(&mut Config)) -> World {
        let amf = SocketAddr::new(address(host, 1), ngap::PORT);
        let mut listener = Listener::bind(amf, sctp()).await.unwrap();
        let mut config = Config::new(vec![link(address(host, 3))], Some(link(address(host, 4))));
        config.gnb_id = GNB;
        config.f1c = Some(SocketAddr::new(address(host, 5), f1ap::PORT));
        config.n2 = Some(N2 { address: address(host, 2), amf: vec![amf] });
        config.sctp = SctpMode::Udp { port: 9899 };
        change(&mut config);
        let cu = Cu::start(&config, None).await.unwrap();
        let amf = Amf::accept(&mut listener).await;
        while cu.status().amf.is_none() {
            net::time::sleep(Duration::from_millis(2)).await;
        }
        World { cu, amf, listener, host }
    }

    /// An association with the CU from a DU's address.
    pub async fn associate(&self, last: u8) -> Du {
        let local = SocketAddr::new(address(self.host, last), 0);
        Du(Association::connect(local, self.cu.f1c(), sctp()).await.unwrap())
    }

    /// A DU with one cell.
    pub async fn du(&self, number: u8) -> Du {
        let mut du = self.associate(20 + number).await;
        du.send(setup_request(number.into(), cell(number.into()))).await;
        let F1::F1SetupResponse(response) = du.receive().await else { panic!() };
        assert_eq!(response.cells_to_be_activated[0].nr_cgi, cell(number.into()));
        du
    }

    /// A UE with a connection: its first NAS message has reached the AMF, which has answered.
    pub async fn connected(&mut self, du: &mut Du, du_ue: u32) -> Ue {
        let mut ue = du.connect(du_ue, cell(1), |request| request).await.unwrap();
        ue.machine.complete_setup(ue.setup, None, Bytes::from_static(b"hello"));
        du.serve(&mut ue).await;
        let Ngap::InitialUeMessage(initial) = self.amf.receive().await else { panic!() };
        assert_eq!(initial.nas_pdu, &b"hello"[..]);
        ue.ran = initial.ran_ue_ngap_id;
        self.amf.send(nas(&ue, b"answer")).await;
        assert_eq!(du.nas_of(&mut ue).await, &b"answer"[..]);
        ue
    }

    /// A UE with AS security and SRB2, and with the sessions of `sessions`.
    pub async fn with_context(
        &mut self,
        du: &mut Du,
        du_ue: u32,
        sessions: Vec<ngap::PduSessionSetupItem>,
    ) -> Ue {
        let mut ue = self.connected(du, du_ue).await;
        self.amf.send(context_request(&ue, sessions)).await;
        let F1::UeContextSetupRequest(request) = du.receive().await else { panic!() };
        du.answer_setup(&mut ue, &request).await;
        du.serve(&mut ue).await;
        // SecurityModeComplete has been sent; the reconfiguration follows.
        du.deliver(&mut ue).await;
        du.serve(&mut ue).await;
        let Ngap::InitialContextSetupResponse(response) = self.amf.receive().await else { panic!() };
        assert!(response.failed.is_empty(), "{response:?}");
        ue
    }
}

pub fn nas(ue: &Ue, octets: &'static [u8]) -> ngap::DownlinkNasTransport {
    ngap::DownlinkNasTransport {
        amf_ue_ngap_id: AMF_ID,
        ran_ue_ngap_id: ue.ran,
        old_amf: None,
        nas_pdu: Bytes::from_static(octets),
        ue_ambr: None,
        allowed_nssai: None,
    }
}

pub fn context_request(
    ue: &Ue,
    pdu_sessions: Vec<ngap::PduSessionSetupItem>,
) -> ngap::InitialContextSetupRequest {
    let rate = BitRate::from_bps(1_000_000_000);
    ngap::InitialContextSetupRequest {
        amf_ue_ngap_id: AMF_ID,
        ran_ue_ngap_id: ue.ran,
        ue_ambr: Some(Ambr { uplink: rate, downlink: rate }),
        guami: Guami { plmn: plmn(), amf_id: AmfId::new(2, 1, 0).unwrap() },
        pdu_sessions,
        allowed_nssai: vec![SNssai::new(1, None).unwrap()],
        ue_security_capabilities: ngap::UeSecurityCapabilities::from_nas(0b1010_0000, 0b1010_0000, 0, 0),
        security_key: Key::new(K_GNB),
        ue_radio_capability: None,
        nas_pdu: Some(Bytes::from_static(b"accept")),
    }
}

/// A session whose UPF is at `upf`, with one flow without guaranteed rate and as many with one as `gbr` says.
pub fn session(
    id: u8,
    upf: IpAddr,
    gbr: u8,
    security: Option<SecurityIndication>,
) -> ngap::PduSessionSetupItem {
    let arp = Arp { priority: 8, may_preempt: false, preemptable: true };
    let rate = BitRate::from_bps(1_000_000);
    let rates = Ambr { uplink: rate, downlink: rate };
    let flow = |qfi: u8, gbr: bool| {
        let mut parameters = QosParameters::non_gbr(types::FiveQi(if gbr { 1 } else { 9 }), arp);
        parameters.gbr = gbr.then_some(GbrQos { maximum: rates, guaranteed: rates, notification: false });
        QosFlow { qfi: Qfi::new(qfi).unwrap(), parameters }
    };
    let transfer = PduSessionResourceSetupRequestTransfer {
        session_ambr: Some(rates),
        ul_tunnel: ngap::GtpTunnel { address: upf.into(), teid: Teid(0x100 + u32::from(id)) },
        data_forwarding_not_possible: false,
        pdu_session_type: PduSessionType::Ipv4,
        security_indication: security,
        network_instance: None,
        qos_flows: std::iter::once(flow(9, false)).chain((0..gbr).map(|n| flow(10 + n, true))).collect(),
    };
    ngap::PduSessionSetupItem {
        id: PduSessionId::new(id).unwrap(),
        nas_pdu: Some(Bytes::from_static(b"session")),
        s_nssai: SNssai::new(1, None).unwrap(),
        transfer: transfer.encode().unwrap(),
    }
}

impl Amf {
    pub async fn accept(listener: &mut Listener) -> Amf {
        let association = timeout(LIMIT, listener.accept()).await.expect("an association in time").unwrap();
        let mut amf = Amf(association);
        let Ngap::NgSetupRequest(request) = amf.receive().await else { panic!() };
        let guami = Guami { plmn: plmn(), amf_id: AmfId::new(2, 1, 0).unwrap() };
        amf.send(ngap::NgSetupResponse {
            amf_name: "test".into(),
            served_guamis: vec![guami.into()],
            relative_amf_capacity: 255,
            plmn_support: request.supported_tas[0].broadcast_plmns.clone(),
            criticality_diagnostics: None,
        })
        .await;
        amf
    }

    pub async fn receive(&mut self) -> Ngap {
        match timeout(LIMIT, self.0.recv()).await.expect("a message for the AMF in time") {
            Some(Event::Message(message)) => Ngap::decode(&message.payload).unwrap().pdu,
            other => panic!("{other:?}"),
        }
    }

    pub async fn send(&self, pdu: impl Into<Ngap>) {
        let payload = pdu.into().encode().unwrap();
        self.0.send(Message { stream: 0, ppid: ngap::PPID, payload }).await.unwrap();
    }

    pub async fn set_up(&self, ue: &Ue, pdu_sessions: Vec<ngap::PduSessionSetupItem>) {
        self.send(ngap::PduSessionResourceSetupRequest {
            amf_ue_ngap_id: AMF_ID,
            ran_ue_ngap_id: ue.ran,
            nas_pdu: None,
            pdu_sessions,
            ue_ambr: None,
        })
        .await;
    }

    pub async fn release_session(&self, ue: &Ue, id: u8) {
        let cause = ngap::cause::Nas::NormalRelease.into();
        let transfer = PduSessionResourceReleaseCommandTransfer { cause }.encode().unwrap();
        self.send(ngap::PduSessionResourceReleaseCommand {
            amf_ue_ngap_id: AMF_ID,
            ran_ue_ngap_id: ue.ran,
            nas_pdu: Some(Bytes::from_static(b"gone")),
            pdu_sessions: vec![ngap::PduSessionItem { id: PduSessionId::new(id).unwrap(), transfer }],
        })
        .await;
    }

    pub async fn release(&self, ue: &Ue) {
        self.send(ngap::UeContextReleaseCommand {
            ue_ngap_ids: ngap::UeNgapIds::Pair(AMF_ID, ue.ran),
            cause: ngap::cause::Nas::NormalRelease.into(),
        })
        .await;
    }
}

pub struct Du(Association);

/// A UE, and what DU and AMF know of it.
pub struct Ue {
    pub machine: Machine,
    pub setup: rrc::RrcTransactionIdentifier,
    pub cu_ue: GnbCuUeF1apId,
    pub du_ue: GnbDuUeF1apId,
    pub ran: RanUeNgapId,
    /// What the machine has asked for, other than to send.
    pub seen: Vec<Action>,
}

pub fn cell_group() -> Vec<u8> {
    let config = CellGroupConfig {
        cell_group_id: CellGroupId::new(0).unwrap(),
        rlc_bearer_to_add_mod_list: Vec::new(),
        rlc_bearer_to_release_list: Vec::new(),
    };
    config.encode().unwrap().to_vec()
}

/// A CellGroupConfig with RLC UM for these bearers.
pub fn cell_group_of(drbs: &[DrbToBeSetup]) -> Vec<u8> {
    use rrc::cell_group::*;
    let bearer = |drb: &DrbToBeSetup| RlcBearerConfig {
        logical_channel_identity: LogicalChannelIdentity::new(3 + drb.drb_id.0).unwrap(),
        served_radio_bearer: Some(ServedRadioBearer::Drb(
            rrc::value::DrbIdentity::new(drb.drb_id.0).unwrap(),
        )),
        reestablish_rlc: false,
        rlc_config: Some(RlcConfig::UmBiDirectional(UmRlc {
            ul_um_rlc: UlUmRlc { sn_field_length: Some(SnFieldLengthUm::Size12) },
            dl_um_rlc: DlUmRlc {
                sn_field_length: Some(SnFieldLengthUm::Size12),
                t_reassembly: TReassembly::new(50).unwrap(),
            },
        })),
        mac_logical_channel_config: None,
    };
    let config = CellGroupConfig {
        cell_group_id: CellGroupId::new(0).unwrap(),
        rlc_bearer_to_add_mod_list: drbs.iter().map(bearer).collect(),
        rlc_bearer_to_release_list: Vec::new(),
    };
    config.encode().unwrap().to_vec()
}

pub fn setup_request(id: u64, nr_cgi: Ncgi) -> F1SetupRequest {
    let freq = NrFreqInfo {
        arfcn: NrArfcn(650_000),
        sul: None,
        bands: vec![FreqBandNrItem { band: FreqBandIndicatorNr(78), supported_sul_bands: Vec::new() }],
    };
    F1SetupRequest {
        transaction_id: TransactionId(3),
        gnb_du_id: GnbDuId(id),
        gnb_du_name: Some(NodeName(format!("du-{id}"))),
        served_cells: vec![ServedCell {
            information: ServedCellInformation {
                nr_cgi,
                nr_pci: NrPci(1),
                tac: Some(Tac::new(1).unwrap()),
                configured_eps_tac: None,
                served_plmns: vec![ServedPlmn { plmn: nr_cgi.plmn, slices: None }],
                nr_mode: NrModeInfo::Tdd(TddInfo {
                    freq,
                    bandwidth: TransmissionBandwidth { scs: NrScs::Scs30, nrb: NrNrb(273) },
                }),
                measurement_timing_configuration: vec![0],
            },
            system_information: None,
        }],
        rrc_version: RrcVersion { latest: RrcVersionBits(0), latest_enhanced: None },
    }
}

impl Du {
    pub async fn receive(&mut self) -> F1 {
        match timeout(LIMIT, self.0.recv()).await.expect("a message for the DU in time") {
            Some(Event::Message(message)) => {
                assert_eq!(message.ppid, f1ap::PPID);
                F1::decode(&message.payload).unwrap().pdu
            }
            other => panic!("{other:?}"),
        }
    }

    /// Whether nothing comes for a while.
    pub async fn is_silent(&mut self) -> bool {
        timeout(Duration::from_millis(150), self.0.recv()).await.is_err()
    }

    /// Waits for the end of the association.
    pub async fn closed(&mut self) {
        while let Some(event) = timeout(LIMIT, self.0.recv()).await.expect("an end in time") {
            if matches!(event, Event::Closed { .. }) {
                return;
            }
        }
    }

    pub async fn send(&self, pdu: impl Into<F1>) {
        self.send_bytes(pdu.into().encode().unwrap()).await;
    }

    pub async fn send_bytes(&self, payload: Vec<u8>) {
        let message = Message { stream: 0, ppid: f1ap::PPID, payload: payload.into() };
        self.0.send(message).await.unwrap();
    }

    pub fn abort(self) {
        self.0.abort();
    }

    /// A UE's first message, changed by `change`; its RRCSetup, or the RRCReject that comes with its release.
    pub async fn connect(
        &mut self,
        du_ue: u32,
        cell: Ncgi,
        change: impl FnOnce(InitialUlRrcMessageTransfer) -> InitialUlRrcMessageTransfer,
    ) -> Result<Ue, RrcReject> {
        let request = RrcSetupRequest {
            ue_identity: InitialUeIdentity::RandomValue(Bits39::new(7).unwrap()),
            establishment_cause: EstablishmentCause::MoSignalling,
        };
        let initial = InitialUlRrcMessageTransfer {
            gnb_du_ue_f1ap_id: GnbDuUeF1apId(du_ue),
            nr_cgi: cell,
            c_rnti: CRnti(0x4601),
            rrc_container: UlCcch::from(request).encode().unwrap().to_vec(),
            du_to_cu_rrc_container: Some(cell_group()),
            transaction_id: TransactionId(0),
            rrc_setup_complete: None,
        };
        self.send(change(initial)).await;
        match self.receive().await {
            F1::DlRrcMessageTransfer(transfer) => {
                assert_eq!((transfer.gnb_du_ue_f1ap_id.0, transfer.srb_id), (du_ue, SrbId(0)));
                let DlCcch::RrcSetup(setup) = DlCcch::decode(&transfer.rrc_container).unwrap() else {
                    panic!()
                };
                Ok(Ue {
                    machine: Machine::new(&setup).unwrap(),
                    setup: setup.rrc_transaction_identifier,
                    cu_ue: transfer.gnb_cu_ue_f1ap_id,
                    du_ue: transfer.gnb_du_ue_f1ap_id,
                    ran: RanUeNgapId(0),
                    seen: Vec::new(),
                })
            }
            F1::UeContextReleaseCommand(command) => {
                assert_eq!((command.gnb_du_ue_f1ap_id.0, command.srb_id), (du_ue, Some(SrbId(0))));
                assert_eq!(command.cause, Cause::RadioNetwork(RadioNetwork::UeRejection));
                self.send(UeContextReleaseComplete {
                    gnb_cu_ue_f1ap_id: command.gnb_cu_ue_f1ap_id,
                    gnb_du_ue_f1ap_id: command.gnb_du_ue_f1ap_id,
                    criticality_diagnostics: None,
                })
                .await;
                match DlCcch::decode(&command.rrc_container.unwrap()).unwrap() {
                    DlCcch::RrcReject(reject) => Err(reject),
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Passes on what the UE wants to send.
    pub async fn serve(&self, ue: &mut Ue) {
        while let Some(action) = ue.machine.next_action() {
            match action {
                Action::Send(srb, pdu) => self.send(ue.uplink(srb, pdu)).await,
                Action::SecurityMode => {
                    ue.machine.activate_security(&Key::new(K_GNB));
                    ue.seen.push(Action::SecurityMode);
                }
                action => ue.seen.push(action),
            }
        }
    }

    /// Gives the UE the next RRC message of the CU.
    pub async fn deliver(&mut self, ue: &mut Ue) {
        match self.receive().await {
            F1::DlRrcMessageTransfer(transfer) => {
                ue.machine.receive(transfer.srb_id.0, transfer.rrc_container);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Changes bearers as the CU wants, at the UE as well.
    pub async fn modify(&mut self, ue: &mut Ue) -> UeContextModificationRequest {
        let F1::UeContextModificationRequest(request) = self.receive().await else { panic!() };
        self.answer_modification(ue, &request).await;
        self.deliver(ue).await;
        self.serve(ue).await;
        request
    }

    /// NAS that the next message brings to the UE.
    pub async fn nas_of(&mut self, ue: &mut Ue) -> Bytes {
        self.deliver(ue).await;
        match ue.machine.next_action() {
            Some(Action::Nas(nas)) => nas,
            other => panic!("{other:?}"),
        }
    }

    /// Sets up all that the CU asks for, and gives the UE the RRC message in the request.
    pub async fn answer_setup(&self, ue: &mut Ue, request: &UeContextSetupRequest) {
        let drbs = request.drbs.iter().map(drb_done).collect();
        self.send(UeContextSetupResponse {
            gnb_cu_ue_f1ap_id: ue.cu_ue,
            gnb_du_ue_f1ap_id: ue.du_ue,
            du_to_cu_rrc_information: DuToCuRrcInformation {
                cell_group_config: cell_group_of(&request.drbs),
                meas_gap_config: None,
                requested_p_max_fr1: None,
            },
            c_rnti: None,
            full_configuration: None,
            drbs,
            srbs_failed: Vec::new(),
            drbs_failed: Vec::new(),
            criticality_diagnostics: None,
        })
        .await;
        ue.machine.receive(1, request.rrc_container.clone().unwrap());
    }

    /// Answers a modification: all is done.
    pub async fn answer_modification(&self, ue: &Ue, request: &UeContextModificationRequest) {
        self.send(UeContextModificationResponse {
            gnb_cu_ue_f1ap_id: ue.cu_ue,
            gnb_du_ue_f1ap_id: ue.du_ue,
            du_to_cu_rrc_information: Some(DuToCuRrcInformation {
                cell_group_config: cell_group_of(&request.drbs),
                meas_gap_config: None,
                requested_p_max_fr1: None,
            }),
            drbs: request.drbs.iter().map(drb_done).collect(),
            drbs_modified: request.drbs_to_be_modified.iter().map(drb_modified).collect(),
            srbs_failed: Vec::new(),
            drbs_failed: Vec::new(),
            drbs_failed_to_be_modified: Vec::new(),
            criticality_diagnostics: None,
        })
        .await;
    }

    /// The CU's command to release a UE, which the DU executes. The UE takes RRCRelease, if there is one.
    pub async fn released(&mut self, ue: &mut Ue) -> UeContextReleaseCommand {
        let F1::UeContextReleaseCommand(command) = self.receive().await else { panic!() };
        if let Some(container) = command.rrc_container.clone() {
            ue.machine.receive(command.srb_id.unwrap().0, container);
        }
        self.send(UeContextReleaseComplete {
            gnb_cu_ue_f1ap_id: ue.cu_ue,
            gnb_du_ue_f1ap_id: ue.du_ue,
            criticality_diagnostics: None,
        })
        .await;
        command
    }
}

impl Ue {
    pub fn uplink(&self, srb: u8, rrc_container: Vec<u8>) -> UlRrcMessageTransfer {
        UlRrcMessageTransfer {
            gnb_cu_ue_f1ap_id: self.cu_ue,
            gnb_du_ue_f1ap_id: self.du_ue,
            srb_id: SrbId(srb),
            rrc_container,
        }
    }
}

/// A bearer that was set up, with a tunnel at an address of the test network.
fn drb_modified(drb: &DrbToBeModified) -> DrbSetup {
    DrbSetup { drb_id: drb.drb_id, lcid: None, dl_up_tnl: drb.ul_up_tnl.clone() }
}

fn drb_done(drb: &DrbToBeSetup) -> DrbSetup {
    let TransportLayerAddress::V4(cu) = drb.ul_up_tnl[0].tunnel.address else { panic!() };
    let [a, b, c, _] = cu.octets();
    let address = TransportLayerAddress::V4([a, b, c, 30].into());
    let tunnel = GtpTunnel { address, teid: Teid(0x500 + u32::from(drb.drb_id.0)) };
    DrbSetup { drb_id: drb.drb_id, lcid: None, dl_up_tnl: vec![UpTnlItem { tunnel }] }
}
