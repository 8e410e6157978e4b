//! A scripted gNB and UEs: the test sends and expects every message.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use nas::aka::{self, AkaFailure, Usim};
use nas::security::{Envelope, SecurityContext, Side};
use nas::{
    CipheringAlgorithm, GmmCause, IntegrityAlgorithm, KeySetId, Message, MobileIdentity, RegistrationType,
    Suci, UeSecurityCapability, gmm,
};
use net::sctp::{Association, Event, Message as SctpMessage, SctpConfig, SctpMode};
use ngap::*;
use types::{Guti, Imsi, Key, Ncgi, NrCellId, Pei, Plmn, SNssai, Supi, Tac, Tai};

use super::core::milenage;

pub const NETWORK: &str = "5G:mnc070.mcc999.3gppnetwork.org";

pub fn plmn() -> Plmn {
    Plmn::new("999", "70").unwrap()
}

pub fn tai(tac: u32) -> Tai {
    Tai { plmn: plmn(), tac: Tac::new(tac).unwrap() }
}

pub fn location(tac: u32) -> UserLocation {
    let ncgi = Ncgi { plmn: plmn(), nr_cell_id: NrCellId::new(0x10).unwrap() };
    UserLocation::Nr { ncgi, tai: tai(tac), time_stamp: None }
}

/// A gNB's association.
pub struct Gnb {
    pub association: Association,
}

impl Gnb {
    /// Connects without NG Setup.
    pub async fn connect(amf: SocketAddr) -> Gnb {
        Gnb::connect_from(amf.ip(), amf).await
    }

    /// As [`Self::connect`], from another address of this host.
    pub async fn connect_from(address: IpAddr, amf: SocketAddr) -> Gnb {
        let config = SctpConfig { mode: SctpMode::Udp { port: 9899 }, ..SctpConfig::default() };
        let local = SocketAddr::new(address, 0);
        Gnb { association: Association::connect(local, amf, config).await.unwrap() }
    }

    /// Connects and sets up as gNB `id`.
    pub async fn up(amf: SocketAddr, id: u32) -> Gnb {
        Gnb::up_from(amf.ip(), amf, id).await
    }

    /// As [`Self::up`], from another address of this host.
    pub async fn up_from(address: IpAddr, amf: SocketAddr, id: u32) -> Gnb {
        let mut gnb = Gnb::connect_from(address, amf).await;
        gnb.send(setup_request(id, plmn(), 1, "1")).await;
        let response = gnb.recv().await;
        assert!(matches!(response, Pdu::NgSetupResponse(_)), "{response:?}");
        gnb
    }

    pub async fn send(&self, pdu: impl Into<Pdu>) {
        self.send_octets(pdu.into().encode().unwrap()).await;
    }

    pub async fn send_octets(&self, payload: Bytes) {
        self.association.send(SctpMessage { stream: 0, ppid: 60, payload }).await.unwrap();
    }

    /// The next message.
    pub async fn recv(&mut self) -> Pdu {
        self.recv_within(Duration::from_secs(5)).await.expect("a message of the AMF")
    }

    pub async fn recv_within(&mut self, limit: Duration) -> Option<Pdu> {
        match net::time::timeout(limit, self.association.recv()).await.ok()? {
            Some(Event::Message(message)) => Some(Pdu::decode(&message.payload).unwrap().pdu),
            other => panic!("{other:?}"),
        }
    }

    /// Checks that nothing arrives for a while.
    pub async fn silent(&mut self, ms: u64) {
        let got = self.recv_within(Duration::from_millis(ms)).await;
        assert!(got.is_none(), "{got:?}");
    }

    /// Expects a release of this UE and completes it.
    pub async fn released(&mut self, ue: &mut Ue) -> Cause {
        let Pdu::UeContextReleaseCommand(command) = self.recv().await else { panic!("no release") };
        let UeNgapIds::Pair(amf, ran) = command.ue_ngap_ids else { panic!() };
        assert_eq!(ran, ue.ran_id);
        self.send(UeContextReleaseComplete {
            amf_ue_ngap_id: amf,
            ran_ue_ngap_id: ran,
            user_location: None,
            pdu_sessions: vec![],
            criticality_diagnostics: None,
        })
        .await;
        ue.amf_id = None;
        command.cause
    }
}

pub fn setup_request(id: u32, plmn: Plmn, tac: u32, slice: &str) -> NgSetupRequest {
    NgSetupRequest {
        global_ran_node_id: GlobalRanNodeId::Gnb { plmn, id: GnbId::new(id, 24).unwrap() },
        ran_node_name: Some(format!("gnb-{id}")),
        supported_tas: vec![SupportedTa {
            tac: Tac::new(tac).unwrap(),
            broadcast_plmns: vec![PlmnSlices { plmn, slices: vec![slice.parse().unwrap()] }],
        }],
        default_paging_drx: PagingDrx::V128,
    }
}

/// One UE.
pub struct Ue {
    pub imsi: Imsi,
    pub usim: Usim,
    pub security: Option<SecurityContext>,
    pub guti: Option<Guti>,
    pub ran_id: RanUeNgapId,
    pub amf_id: Option<AmfUeNgapId>,
    pub tac: u32,
    pub capability: UeSecurityCapability,
    pub requested_nssai: Vec<SNssai>,
    pub kseaf: Option<(Key<32>, KeySetId)>,
    /// KgNB from the AMF's latest message to the gNB.
    pub kgnb: Option<Key<32>>,
}

impl Ue {
    pub fn new(n: u32) -> Ue {
        use {CipheringAlgorithm::*, IntegrityAlgorithm::*};
        Ue {
            imsi: format!("999700000000{n:03}").parse().unwrap(),
            usim: Usim::new(milenage(), 0),
            security: None,
            guti: None,
            ran_id: RanUeNgapId(n),
            amf_id: None,
            tac: 1,
            capability: UeSecurityCapability::new(&[Nea0, Nea1, Nea2], &[Nia0, Nia1, Nia2]),
            requested_nssai: vec!["1".parse().unwrap()],
            kseaf: None,
            kgnb: None,
        }
    }

    pub fn supi(&self) -> Supi {
        self.imsi.into()
    }

    pub fn suci(&self) -> Suci {
        let digits = self.imsi.to_string();
        format!("suci-0-999-70-0000-0-0-{}", &digits[5..]).parse().unwrap()
    }

    /// A registration request with the 5G-GUTI if there is one.
    pub fn registration_request(&self, kind: RegistrationType) -> gmm::RegistrationRequest {
        let identity = match self.guti {
            Some(guti) => MobileIdentity::Guti(guti),
            None => MobileIdentity::Suci(self.suci()),
        };
        let ngksi = self.security.as_ref().map_or(KeySetId::NoKey, SecurityContext::ngksi);
        let mut request = gmm::RegistrationRequest::new(kind, ngksi, identity);
        request.ue_security_capability = Some(self.capability);
        request.requested_nssai = self.requested_nssai.clone();
        request.follow_on = true;
        request
    }

    /// Opens a connection with `message`, protected if there is a context.
    pub async fn open(&mut self, gnb: &Gnb, message: &Message) {
        let pdu = match &mut self.security {
            Some(security) => security.protect_initial(message).unwrap(),
            None => message.encode().unwrap(),
        };
        self.open_with(gnb, pdu).await;
    }

    pub async fn open_with(&mut self, gnb: &Gnb, pdu: Vec<u8>) {
        self.amf_id = None;
        gnb.send(InitialUeMessage {
            ran_ue_ngap_id: self.ran_id,
            nas_pdu: pdu.into(),
            user_location: location(self.tac),
            rrc_establishment_cause: RrcEstablishmentCause::MoSignalling,
            s_tmsi: None,
            amf_set_id: None,
            ue_context_request: true,
            allowed_nssai: None,
        })
        .await;
    }

    /// Sends a message, protected if there is a context.
    pub async fn send(&mut self, gnb: &Gnb, message: &Message) {
        let pdu = match &mut self.security {
            Some(security) => security.protect(message).unwrap(),
            None => message.encode().unwrap(),
        };
        self.send_octets(gnb, pdu).await;
    }

    pub async fn send_octets(&self, gnb: &Gnb, pdu: Vec<u8>) {
        gnb.send(UplinkNasTransport {
            amf_ue_ngap_id: self.amf_id.expect("connected"),
            ran_ue_ngap_id: self.ran_id,
            nas_pdu: pdu.into(),
            user_location: Some(location(self.tac)),
        })
        .await;
    }

    /// The next NAS message: from a DOWNLINK NAS TRANSPORT or an INITIAL CONTEXT SETUP REQUEST, which
    /// is answered.
    pub async fn recv(&mut self, gnb: &mut Gnb) -> Message {
        let octets = match gnb.recv().await {
            Pdu::DownlinkNasTransport(transport) => {
                assert_eq!(transport.ran_ue_ngap_id, self.ran_id);
                self.amf_id = Some(transport.amf_ue_ngap_id);
                transport.nas_pdu
            }
            Pdu::InitialContextSetupRequest(request) => {
                self.amf_id = Some(request.amf_ue_ngap_id);
                self.kgnb = Some(request.security_key.clone());
                let done = request
                    .pdu_sessions
                    .iter()
                    .map(|item| PduSessionItem { id: item.id, transfer: Bytes::from_static(b"response") })
                    .collect();
                gnb.send(InitialContextSetupResponse {
                    amf_ue_ngap_id: request.amf_ue_ngap_id,
                    ran_ue_ngap_id: self.ran_id,
                    pdu_sessions: done,
                    failed: vec![],
                    criticality_diagnostics: None,
                })
                .await;
                request.nas_pdu.expect("a NAS message with the context")
            }
            other => panic!("{other:?}"),
        };
        self.read(&octets)
    }

    pub fn read(&mut self, octets: &[u8]) -> Message {
        match Envelope::read(octets).unwrap() {
            Envelope::Plain(octets) => Message::decode(octets).unwrap().message,
            envelope @ Envelope::Protected { .. } => {
                if let Ok(decoded) = envelope.peek()
                    && let Message::SecurityModeCommand(command) = decoded.message
                {
                    self.take_command(&command);
                }
                let security = self.security.as_mut().expect("a context");
                security.unprotect(octets).unwrap().message.message
            }
        }
    }

    /// Creates the context that a SECURITY MODE COMMAND takes into use.
    fn take_command(&mut self, command: &gmm::SecurityModeCommand) {
        assert_eq!(command.replayed_capability, self.capability);
        let Some((kseaf, ngksi)) = &self.kseaf else { return };
        assert_eq!(command.ngksi, *ngksi);
        let kamf = aka::kamf(kseaf, self.supi(), aka::ABBA);
        let context =
            SecurityContext::new(Side::Ue, &kamf, *ngksi, command.integrity, command.ciphering).unwrap();
        self.security = Some(context);
        self.kseaf = None;
    }

    /// Answers a challenge like the USIM.
    pub fn answer(&mut self, request: &gmm::AuthenticationRequest) -> Message {
        let (rand, autn) = (Key::new(request.rand.unwrap()), Key::new(request.autn.unwrap()));
        match self.usim.answer(&rand, &autn, NETWORK) {
            Ok(answer) => {
                self.kseaf = Some((aka::kseaf(&answer.kausf, NETWORK).unwrap(), request.ngksi));
                let res_star = Some(answer.res_star);
                Message::AuthenticationResponse(gmm::AuthenticationResponse { res_star, eap: None })
            }
            Err(failure) => {
                let (cause, auts) = match failure {
                    AkaFailure::Mac => (GmmCause::MacFailure, None),
                    AkaFailure::Non5g => (GmmCause::Non5gAuthenticationUnacceptable, None),
                    AkaFailure::Synchronisation { auts } => (GmmCause::SynchFailure, Some(*auts.expose())),
                };
                Message::AuthenticationFailure(gmm::AuthenticationFailure { cause, auts })
            }
        }
    }

    /// Expects a challenge and answers it.
    pub async fn authenticate(&mut self, gnb: &mut Gnb) {
        let challenge = self.recv(gnb).await;
        let Message::AuthenticationRequest(request) = challenge else { panic!("{challenge:?}") };
        let answer = self.answer(&request);
        let response = answer.encode().unwrap();
        self.send_octets(gnb, response).await;
    }

    /// Expects a security mode command and completes it with the complete request.
    pub async fn secure(&mut self, gnb: &mut Gnb, whole: &Message) {
        let command = self.recv(gnb).await;
        assert!(matches!(command, Message::SecurityModeCommand(_)), "{command:?}");
        let complete = Message::SecurityModeComplete(gmm::SecurityModeComplete {
            imeisv: Some(MobileIdentity::Pei(Pei::Imeisv(4370816125816151))),
            nas_message_container: Some(whole.encode().unwrap()),
        });
        self.send(gnb, &complete).await;
    }

    /// Expects the accept and completes the registration.
    pub async fn complete(&mut self, gnb: &mut Gnb) -> gmm::RegistrationAccept {
        let accept = self.recv(gnb).await;
        let Message::RegistrationAccept(accept) = accept else { panic!("{accept:?}") };
        self.guti = accept.guti;
        self.send(gnb, &Message::RegistrationComplete).await;
        accept
    }

    /// Registers with a SUCI.
    pub async fn register(&mut self, gnb: &mut Gnb) -> gmm::RegistrationAccept {
        self.security = None;
        self.guti = None;
        let request = Message::RegistrationRequest(self.registration_request(RegistrationType::Initial));
        self.open(gnb, &request).await;
        self.authenticate(gnb).await;
        self.secure(gnb, &request).await;
        self.complete(gnb).await
    }

    /// Opens a connection with the SERVICE REQUEST that answers a page.
    pub async fn answer_page(&mut self, gnb: &Gnb) {
        let ngksi = self.security.as_ref().unwrap().ngksi();
        let s_tmsi = self.guti.unwrap().s_tmsi();
        let request = gmm::ServiceRequest::new(ngksi, nas::ServiceType::MobileTerminated, s_tmsi);
        self.open(gnb, &Message::ServiceRequest(request)).await;
    }

    /// Expects CONFIGURATION UPDATE COMMAND with a new 5G-GUTI, and accepts it.
    pub async fn new_guti(&mut self, gnb: &mut Gnb) {
        let command = self.recv(gnb).await;
        let Message::ConfigurationUpdateCommand(command) = command else { panic!("{command:?}") };
        assert!(command.acknowledge);
        assert_ne!(command.guti, self.guti);
        self.guti = Some(command.guti.unwrap());
        self.send(gnb, &Message::ConfigurationUpdateComplete).await;
    }

    /// Asks the gNB to release the connection, and completes the release.
    pub async fn idle(&mut self, gnb: &mut Gnb) {
        gnb.send(UeContextReleaseRequest {
            amf_ue_ngap_id: self.amf_id.unwrap(),
            ran_ue_ngap_id: self.ran_id,
            pdu_sessions: vec![],
            cause: cause::RadioNetwork::UserInactivity.into(),
        })
        .await;
        gnb.released(self).await;
    }

    /// Expects a reject and the release after it.
    pub async fn rejected(&mut self, gnb: &mut Gnb) -> gmm::RegistrationReject {
        let reject = self.recv(gnb).await;
        let Message::RegistrationReject(reject) = reject else { panic!("{reject:?}") };
        gnb.released(self).await;
        reject
    }
}
