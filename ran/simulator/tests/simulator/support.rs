//! A network for tests: a listening AMF that a test scripts message by message, and a UPF's socket.
//!
//! It shares only the codecs with the simulator, and has no logic of its own: it sends what the test
//! says.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nas::aka::{self, Milenage, Vector};
use nas::gmm::*;
use nas::gsm::*;
use nas::security::{Header, SecurityContext, Side};
use nas::{
    AccessType, CipheringAlgorithm, IntegrityAlgorithm, KeySetId, Message, MobileIdentity, Pco, PcoItem,
    PduAddress, QosFlowDescription, QosRule, SmBody, SmMessage,
};
use net::sctp::{Association, Event, Listener, Message as SctpMessage, SctpConfig, SctpMode};
use net::udp::UdpSocket;
use ngap::transfer::*;
use ngap::{AmfUeNgapId, Pdu, RanUeNgapId};
use packet::gtpu;
use simulator::{Config, Gnb, Ue, UserPlane};
use types::*;

pub const LIMIT: Duration = Duration::from_secs(5);
pub const AMF_ID: AmfUeNgapId = AmfUeNgapId(77);

pub fn guti(tmsi: u32) -> Guti {
    Guti { guami: guami(), tmsi: Tmsi(tmsi) }
}

pub fn guami() -> Guami {
    Guami { plmn: Plmn::new("999", "70").unwrap(), amf_id: AmfId::new(2, 1, 0).unwrap() }
}

/// One AMF with one gNB, and a UPF socket. Every test uses its own addresses in 127.0.0.0/8, so that
/// tests run side by side without privileges.
pub struct Network {
    association: Association,
    pub upf: UdpSocket,
    pub context: Option<SecurityContext>,
    pub ran_id: Option<RanUeNgapId>,
    pub milenage: Milenage,
    pub sqn: u64,
    /// Kept because the association uses its socket.
    pub listener: Option<Listener>,
}

pub struct World {
    pub network: Network,
    pub gnb: Gnb,
    pub ue: Ue,
}

/// An address of the test with third octet `host`.
fn address(host: u8, last: u8) -> IpAddr {
    IpAddr::from([127, 9, host, last])
}

/// An AMF's listener and a configuration that connects to it; `host` is the test's own third octet.
pub async fn listen(host: u8, change: impl FnOnce(&mut Config)) -> (Config, Listener) {
    let sctp = SctpMode::Udp { port: 9899 };
    let mut config = Config {
        amf: SocketAddr::new(address(host, 1), ngap::PORT),
        sctp,
        n2: address(host, 2),
        ..Config::default()
    };
    config.ue.answer_timeout = Duration::from_secs(2);
    change(&mut config);
    let mode = SctpConfig { mode: sctp, ..SctpConfig::default() };
    let listener = Listener::bind(config.amf, mode).await.unwrap();
    (config, listener)
}

/// NG Setup of the next gNB.
pub async fn accept_gnb(listener: &mut Listener, host: u8) -> Network {
    let mut association = listener.accept().await.unwrap();
    let Pdu::NgSetupRequest(request) = receive(&mut association).await else { panic!() };
    let response = ngap::NgSetupResponse {
        amf_name: "test".into(),
        served_guamis: vec![guami().into()],
        relative_amf_capacity: 255,
        plmn_support: request.supported_tas[0].broadcast_plmns.clone(),
        criticality_diagnostics: None,
    };
    send(&association, response).await;
    let upf = net::udp::bind(SocketAddr::new(address(host, 3), gtpu::PORT)).await.unwrap();
    let milenage = Milenage::new(&Config::default().ue.k, &Config::default().ue.opc);
    Network { association, upf, context: None, ran_id: None, milenage, sqn: 32, listener: None }
}

/// Sets everything up for one UE.
pub async fn world(host: u8, change: impl FnOnce(&mut Config)) -> World {
    let (config, mut listener) = listen(host, change).await;
    let user_plane = UserPlane::start(config.n2).unwrap();
    let connect = Gnb::connect(config.gnb(0), Some(user_plane));
    let (gnb, mut network) = tokio::join!(connect, accept_gnb(&mut listener, host));
    network.listener = Some(listener);
    let gnb = gnb.unwrap();
    let ue = Ue::new(Arc::new(config.ue.clone()), 0, gnb.clone()).unwrap();
    World { network, gnb, ue }
}

pub async fn receive(association: &mut Association) -> Pdu {
    match net::time::timeout(LIMIT, association.recv()).await.expect("a message in time") {
        Some(Event::Message(message)) => {
            assert_eq!(message.ppid, ngap::PPID);
            let decoded = Pdu::decode(&message.payload).unwrap();
            assert_eq!(message.stream == 0, decoded.pdu.ue_ids() == (None, None), "{}", decoded.pdu.name());
            decoded.pdu
        }
        other => panic!("{other:?}"),
    }
}

pub async fn send(association: &Association, pdu: impl Into<Pdu>) {
    let payload = pdu.into().encode().unwrap();
    association.send(SctpMessage { stream: 0, ppid: ngap::PPID, payload }).await.unwrap();
}

impl Network {
    pub async fn receive(&mut self) -> Pdu {
        receive(&mut self.association).await
    }

    pub async fn send(&self, pdu: impl Into<Pdu>) {
        send(&self.association, pdu).await;
    }

    pub async fn send_bytes(&self, payload: impl Into<bytes::Bytes>) {
        let message = SctpMessage { stream: 0, ppid: ngap::PPID, payload: payload.into() };
        self.association.send(message).await.unwrap();
    }

    /// The octets of the next uplink NAS message, which may be an initial one.
    pub async fn nas_octets(&mut self) -> bytes::Bytes {
        match self.receive().await {
            Pdu::InitialUeMessage(message) => {
                self.ran_id = Some(message.ran_ue_ngap_id);
                message.nas_pdu
            }
            Pdu::UplinkNasTransport(message) => {
                assert_eq!((message.amf_ue_ngap_id, Some(message.ran_ue_ngap_id)), (AMF_ID, self.ran_id));
                message.nas_pdu
            }
            other => panic!("{}", other.name()),
        }
    }

    /// The next uplink NAS message in clear.
    pub async fn plain(&mut self) -> Message {
        let octets = self.nas_octets().await;
        Message::decode(&octets).unwrap().message
    }

    /// The next uplink NAS message, which must be protected.
    pub async fn protected(&mut self) -> Message {
        let octets = self.nas_octets().await;
        self.context.as_mut().unwrap().unprotect(&octets).unwrap().message.message
    }

    pub async fn send_nas(&self, nas_pdu: Vec<u8>) {
        let transport = ngap::DownlinkNasTransport {
            amf_ue_ngap_id: AMF_ID,
            ran_ue_ngap_id: self.ran_id.unwrap(),
            old_amf: None,
            nas_pdu: nas_pdu.into(),
            ue_ambr: None,
            allowed_nssai: None,
        };
        self.send(transport).await;
    }

    pub async fn send_plain(&self, message: Message) {
        self.send_nas(message.encode().unwrap()).await;
    }

    pub async fn send_protected(&mut self, message: Message) {
        let octets = self.context.as_mut().unwrap().protect(&message).unwrap();
        self.send_nas(octets).await;
    }

    pub fn vector(&mut self) -> Vector {
        self.sqn = aka::next_sqn(self.sqn);
        let name = guami().plmn.serving_network_name();
        self.milenage.vector(&Key::new([0x5a; 16]), self.sqn, &Key::new([0x80, 0]), &name).unwrap()
    }

    pub async fn challenge(&mut self) -> Vector {
        let vector = self.vector();
        self.send_plain(Message::AuthenticationRequest(AuthenticationRequest {
            ngksi: KeySetId::Native(1),
            abba: aka::ABBA.to_vec(),
            rand: Some(*vector.rand.expose()),
            autn: Some(*vector.autn.expose()),
            eap: None,
        }))
        .await;
        vector
    }

    /// Authentication and security mode after a registration request that has arrived.
    pub async fn secure(&mut self, supi: Supi, request: &RegistrationRequest) {
        let vector = self.challenge().await;
        let Message::AuthenticationResponse(response) = self.plain().await else { panic!() };
        assert_eq!(response.res_star, Some(vector.xres_star.clone()));
        let kseaf = aka::kseaf(&vector.kausf, &guami().plmn.serving_network_name()).unwrap();
        let kamf = aka::kamf(&kseaf, supi, aka::ABBA);
        let (integrity, ciphering) = (IntegrityAlgorithm::Nia2, CipheringAlgorithm::Nea2);
        let context = SecurityContext::new(Side::Network, &kamf, KeySetId::Native(1), integrity, ciphering);
        self.context = Some(context.unwrap());
        let capability = request.ue_security_capability.unwrap();
        let mut command = SecurityModeCommand::new(integrity, ciphering, KeySetId::Native(1), capability);
        command.imeisv_requested = true;
        self.send_protected(Message::SecurityModeCommand(command)).await;
        let Message::SecurityModeComplete(complete) = self.protected().await else { panic!() };
        assert!(matches!(complete.imeisv, Some(MobileIdentity::Pei(Pei::Imeisv(_)))));
        let container = complete.nas_message_container.unwrap();
        assert!(matches!(Message::decode(&container).unwrap().message, Message::RegistrationRequest(_)));
    }

    /// Accepts a registration in an Initial Context Setup.
    pub async fn accept(&mut self, tmsi: u32) {
        self.accept_with(tmsi, |_| ()).await;
    }

    /// As [`Self::accept`], with a changed accept.
    pub async fn accept_with(&mut self, tmsi: u32, edit: impl FnOnce(&mut RegistrationAccept)) {
        let mut accept = RegistrationAccept {
            access: AccessType::ThreeGpp,
            guti: Some(guti(tmsi)),
            ..RegistrationAccept::new()
        };
        edit(&mut accept);
        self.set_up_context(Message::RegistrationAccept(accept), Vec::new()).await;
        assert!(matches!(self.protected().await, Message::RegistrationComplete));
    }

    /// Initial Context Setup with a NAS message. Returns the gNB's ends of the tunnels of `sessions`.
    pub async fn set_up_context(
        &mut self,
        message: Message,
        pdu_sessions: Vec<ngap::PduSessionSetupItem>,
    ) -> Vec<ngap::GtpTunnel> {
        let nas = self.context.as_mut().unwrap().protect(&message).unwrap();
        let kgnb = self.context.as_ref().unwrap().kgnb();
        self.send(ngap::InitialContextSetupRequest {
            amf_ue_ngap_id: AMF_ID,
            ran_ue_ngap_id: self.ran_id.unwrap(),
            ue_ambr: None,
            guami: guami(),
            pdu_sessions,
            allowed_nssai: vec![SNssai::from_octets(1, None)],
            ue_security_capabilities: ngap::UeSecurityCapabilities::from_nas(0xe0, 0x60, 0, 0),
            security_key: kgnb,
            ue_radio_capability: None,
            nas_pdu: Some(nas.into()),
        })
        .await;
        let Pdu::InitialContextSetupResponse(response) = self.receive().await else { panic!() };
        assert!(response.failed.is_empty());
        response.pdu_sessions.iter().map(dl_tunnel).collect()
    }

    /// Pages a UE in a tracking area.
    pub async fn page(&self, s_tmsi: STmsi, tac: u8) {
        let tais = vec![Tai { plmn: guami().plmn, tac: Tac::from_octets([0, 0, tac]) }];
        self.send(ngap::Paging { s_tmsi, paging_drx: None, tais }).await;
    }

    /// The SERVICE REQUEST of an idle UE: the message on N2, and the request decoded with the UE's
    /// keys.
    pub async fn service_request(&mut self) -> (ngap::InitialUeMessage, ServiceRequest) {
        let Pdu::InitialUeMessage(initial) = self.receive().await else { panic!() };
        self.ran_id = Some(initial.ran_ue_ngap_id);
        assert_eq!(header(&initial.nas_pdu), Some(Header::Integrity));
        let verified = self.context.as_mut().unwrap().unprotect(&initial.nas_pdu).unwrap();
        let Message::ServiceRequest(request) = verified.message.message else { panic!() };
        (initial, request)
    }

    /// A whole first registration.
    pub async fn register(&mut self, supi: Supi) -> RegistrationRequest {
        let Message::RegistrationRequest(request) = self.plain().await else { panic!() };
        self.secure(supi, &request).await;
        self.accept(0x1001).await;
        request
    }

    pub async fn release(&mut self, cause: impl Into<ngap::Cause>) {
        let ids = ngap::UeNgapIds::Pair(AMF_ID, self.ran_id.unwrap());
        self.send(ngap::UeContextReleaseCommand { ue_ngap_ids: ids, cause: cause.into() }).await;
        assert!(matches!(self.receive().await, Pdu::UeContextReleaseComplete(_)));
    }

    /// The 5GSM message of the next uplink NAS message.
    pub async fn sm(&mut self) -> (UlNasTransport, SmMessage) {
        let Message::UlNasTransport(transport) = self.protected().await else { panic!() };
        let message = SmMessage::decode(&transport.payload).unwrap().message;
        (transport, message)
    }

    pub async fn send_sm(&mut self, id: PduSessionId, pti: Pti, body: SmBody) {
        let payload = SmMessage::new(id, pti, body).encode().unwrap();
        self.send_protected(Message::DlNasTransport(DlNasTransport::n1_sm(id, payload))).await;
    }

    /// Accepts a session: UPF end 0x77 at the test's UPF. Returns the gNB's end.
    pub async fn accept_session(&mut self, id: PduSessionId, pti: Pti) -> ngap::GtpTunnel {
        let accept = EstablishmentAccept {
            session_type: PduSessionType::Ipv4v6,
            ssc_mode: SscMode::Mode1,
            qos_rules: vec![QosRule::match_all(1, 255, Qfi::new(9).unwrap())],
            session_ambr: Ambr { uplink: "1 Gbps".parse().unwrap(), downlink: "1 Gbps".parse().unwrap() },
            cause: None,
            address: Some(PduAddress::Ipv4v6([10, 45, 0, 2].into(), [0, 0, 0, 0, 0, 0, 0, 0x42])),
            rq_timer: None,
            s_nssai: None,
            always_on: None,
            qos_flows: vec![QosFlowDescription::non_gbr(Qfi::new(9).unwrap(), FiveQi(9))],
            pco: Some(Pco { items: vec![PcoItem::DnsIpv4([9, 9, 9, 9].into()), PcoItem::Ipv4Mtu(1380)] }),
            dnn: None,
        };
        let payload = SmMessage::new(id, pti, SmBody::EstablishmentAccept(accept)).encode().unwrap();
        let nas = Message::DlNasTransport(DlNasTransport::n1_sm(id, payload));
        let nas = self.context.as_mut().unwrap().protect(&nas).unwrap();
        self.send(ngap::PduSessionResourceSetupRequest {
            amf_ue_ngap_id: AMF_ID,
            ran_ue_ngap_id: self.ran_id.unwrap(),
            nas_pdu: None,
            pdu_sessions: vec![self.setup_item(id, Some(nas.into()))],
            ue_ambr: None,
        })
        .await;
        let Pdu::PduSessionResourceSetupResponse(response) = self.receive().await else { panic!() };
        assert_eq!((response.pdu_sessions.len(), response.failed.len()), (1, 0));
        dl_tunnel(&response.pdu_sessions[0])
    }

    /// The session resource that a gNB is to set up, whose UPF end is 0x77 at the test's UPF.
    pub fn setup_item(&self, id: PduSessionId, nas_pdu: Option<bytes::Bytes>) -> ngap::PduSessionSetupItem {
        let upf = self.upf.local_addr().unwrap().ip();
        let arp = Arp { priority: 8, may_preempt: false, preemptable: true };
        let transfer = PduSessionResourceSetupRequestTransfer {
            session_ambr: None,
            ul_tunnel: ngap::GtpTunnel { address: upf.into(), teid: Teid(0x77) },
            data_forwarding_not_possible: false,
            pdu_session_type: PduSessionType::Ipv4v6,
            security_indication: None,
            network_instance: None,
            qos_flows: vec![QosFlow {
                qfi: Qfi::new(9).unwrap(),
                parameters: QosParameters::non_gbr(FiveQi(9), arp),
            }],
        };
        ngap::PduSessionSetupItem {
            id,
            nas_pdu,
            s_nssai: SNssai::from_octets(1, None),
            transfer: transfer.encode().unwrap(),
        }
    }

    /// The next datagram at the UPF.
    pub async fn upf_receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 2048];
        let received = net::time::timeout(LIMIT, self.upf.recv(&mut buffer)).await;
        let length = received.expect("a datagram in time").unwrap();
        buffer.truncate(length);
        buffer
    }

    /// The next datagram at the UPF whose packet is `wanted`. Others are skipped: a UE repeats its
    /// router solicitation after some milliseconds, and the UE's kernel sends packets of its own.
    pub async fn upf_receive_where(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        loop {
            let datagram = self.upf_receive().await;
            if gtpu::Packet::new(&datagram).is_ok_and(|packet| wanted(packet.payload())) {
                return datagram;
            }
        }
    }

    pub async fn upf_send(&self, tunnel: ngap::GtpTunnel, packet: &[u8]) {
        let container = Some(gtpu::PduSession::Downlink { qfi: 9, rqi: false, ppi: None });
        let datagram = gtpu::build_gpdu(tunnel.teid.0, container, packet).unwrap();
        let to = SocketAddr::new(tunnel.address.preferred(), gtpu::PORT);
        self.upf.send_to(&datagram, to).await.unwrap();
    }
}

/// The gNB's end of a session it has set up.
fn dl_tunnel(item: &ngap::PduSessionItem) -> ngap::GtpTunnel {
    PduSessionResourceSetupResponseTransfer::decode(&item.transfer).unwrap().dl_tunnel
}

/// The header an uplink message was protected with.
pub fn header(octets: &[u8]) -> Option<Header> {
    match nas::security::Envelope::read(octets).unwrap() {
        nas::security::Envelope::Plain(_) => None,
        nas::security::Envelope::Protected { header, .. } => Some(header),
    }
}
