//! Messages in every order that a UE and its gNB may send them in.
//!
//! A UE's NAS messages keep their order among themselves (they share an SCTP stream), and so do the
//! gNB's answers to one NGAP procedure. There is no order between the two: a gNB forwards NAS at once,
//! and answers when its radio side has finished.

use bytes::Bytes;
use nas::{GmmCause, Message, gmm};
use ngap::*;
use sbi::model::smf::N2SmInfoType;
use types::PduSessionId;

use crate::sessions::{id, request};
use crate::support::*;

/// A message that a gNB still has to send for one UE.
enum Step {
    /// From the UE.
    Nas(Box<Message>),
    /// A message of the gNB itself.
    N2(Box<Pdu>),
}

impl Step {
    async fn take(self, gnb: &Gnb, ue: &mut Ue) {
        match self {
            Step::Nas(message) => ue.send(gnb, &message).await,
            Step::N2(pdu) => gnb.send(*pdu).await,
        }
    }
}

/// Reproducible choices (a linear congruential generator).
struct Choices(u64);

impl Choices {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }

    /// The steps of both lists, each list in its order, mixed at random.
    fn merge(&mut self, a: Vec<Step>, b: Vec<Step>) -> Vec<Step> {
        let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
        let mut merged = Vec::new();
        loop {
            let first = match (a.peek().is_some(), b.peek().is_some()) {
                (true, true) => self.next(2) == 0,
                (one, _) => one,
            };
            match if first { a.next() } else { b.next() } {
                Some(step) => merged.push(step),
                None => return merged,
            }
        }
    }
}

/// Runs a registration up to INITIAL CONTEXT SETUP REQUEST, which is not answered yet.
async fn accepted(gnb: &mut Gnb, ue: &mut Ue) -> Pdu {
    let request = Message::RegistrationRequest(ue.registration_request(nas::RegistrationType::Initial));
    ue.open(gnb, &request).await;
    ue.authenticate(gnb).await;
    ue.secure(gnb, &request).await;
    let Pdu::InitialContextSetupRequest(setup) = gnb.recv().await else { panic!() };
    let accept = ue.read(&setup.nas_pdu.unwrap());
    let Message::RegistrationAccept(accept) = accept else { panic!("{accept:?}") };
    ue.guti = accept.guti;
    context_set_up(setup.amf_ue_ngap_id, ue.ran_id, vec![])
}

fn context_set_up(amf: AmfUeNgapId, ran: RanUeNgapId, pdu_sessions: Vec<PduSessionItem>) -> Pdu {
    let response = InitialContextSetupResponse {
        amf_ue_ngap_id: amf,
        ran_ue_ngap_id: ran,
        pdu_sessions,
        failed: vec![],
        criticality_diagnostics: None,
    };
    response.into()
}

fn resources_set_up(amf: AmfUeNgapId, ran: RanUeNgapId, id: PduSessionId) -> Pdu {
    let response = PduSessionResourceSetupResponse {
        amf_ue_ngap_id: amf,
        ran_ue_ngap_id: ran,
        pdu_sessions: vec![PduSessionItem { id, transfer: Bytes::from_static(b"response") }],
        failed: vec![],
        criticality_diagnostics: None,
        user_location: None,
    };
    response.into()
}

fn nas(message: Message) -> Step {
    Step::Nas(Box::new(message))
}

fn n2(pdu: impl Into<Pdu>) -> Step {
    Step::N2(Box::new(pdu.into()))
}

fn session_request(n: u8) -> Step {
    nas(Message::UlNasTransport(request(n)))
}

#[tokio::test]
async fn a_session_request_overtakes_the_initial_context_setup_response() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let response = accepted(&mut gnb, &mut ue).await;
    ue.send(&gnb, &Message::RegistrationComplete).await;
    // The UE is registered when its REGISTRATION COMPLETE arrives, whatever its gNB still has to do.
    network.ue(ue.supi(), |view| view["mm_state"] == "5GMM-REGISTERED").await;
    session_request(1).take(&gnb, &mut ue).await;
    gnb.silent(100).await;
    gnb.send(response).await;
    assert_eq!(ue.set_up(&mut gnb, 1).await, ACCEPT_N1);
    network.core.wait_called("setup_done", 1).await;
}

#[tokio::test]
async fn registration_and_sessions_in_random_orders() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    for seed in 0..24 {
        let mut choices = Choices(seed);
        let mut ue = Ue::new(1 + seed as u32);
        let response = accepted(&mut gnb, &mut ue).await;
        let capability = UeRadioCapabilityInfoIndication {
            amf_ue_ngap_id: ue_id(&response),
            ran_ue_ngap_id: ue.ran_id,
            ue_radio_capability: Some(Bytes::from_static(b"capability")),
        };
        let from_ue = vec![nas(Message::RegistrationComplete), session_request(1), session_request(2)];
        let from_gnb = match choices.next(2) {
            0 => vec![n2(response), n2(capability)],
            _ => vec![n2(capability), n2(response)],
        };
        for step in choices.merge(from_ue, from_gnb) {
            step.take(&gnb, &mut ue).await;
        }
        for n in [1, 2] {
            assert_eq!(ue.set_up(&mut gnb, n).await, ACCEPT_N1, "seed {seed}, session {n}");
        }
        let both_active = |view: &serde_json::Value| {
            view["sessions"][0]["active"] == true && view["sessions"][1]["active"] == true
        };
        network.ue(ue.supi(), both_active).await;
    }
}

fn ue_id(pdu: &Pdu) -> AmfUeNgapId {
    let Pdu::InitialContextSetupResponse(response) = pdu else { panic!("{pdu:?}") };
    response.amf_ue_ngap_id
}

#[tokio::test]
async fn a_request_before_registration_complete_is_kept() {
    // A REGISTRATION COMPLETE that was lost on the radio is repeated only after T3550.
    let network = Network::with(serde_json::json!({"timers": {"t3550_ms": 150}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let response = accepted(&mut gnb, &mut ue).await;
    gnb.send(response).await;
    session_request(1).take(&gnb, &mut ue).await;
    assert!(matches!(ue.recv(&mut gnb).await, Message::RegistrationAccept(_)));
    ue.send(&gnb, &Message::RegistrationComplete).await;
    assert_eq!(ue.set_up(&mut gnb, 1).await, ACCEPT_N1);
}

#[tokio::test]
async fn a_ue_that_leaves_before_its_gnb_has_answered_is_deregistered() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    let response = accepted(&mut gnb, &mut ue).await;
    ue.send(&gnb, &Message::RegistrationComplete).await;
    let request = gmm::DeregistrationRequestUe {
        switch_off: false,
        access: nas::AccessType::ThreeGpp,
        ngksi: nas::KeySetId::Native(0),
        identity: nas::MobileIdentity::Guti(ue.guti.unwrap()),
        nas_message_container: None,
    };
    ue.send(&gnb, &Message::DeregistrationRequestUe(request)).await;
    gnb.send(response).await;
    assert_eq!(ue.recv(&mut gnb).await, Message::DeregistrationAcceptUe);
    gnb.released(&mut ue).await;
    network.gone(ue.supi()).await;
}

#[tokio::test]
async fn session_messages_pass_the_answer_to_a_service_request() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    ue.establish(&mut gnb, 1).await;
    network.core.wait_called("setup_done", 1).await;
    for seed in 0..8 {
        ue.idle(&mut gnb).await;
        ue.service_request(&gnb, &[1]).await;
        let Pdu::InitialContextSetupRequest(setup) = gnb.recv().await else { panic!() };
        ue.amf_id = Some(setup.amf_ue_ngap_id);
        assert!(matches!(ue.read(&setup.nas_pdu.unwrap()), Message::ServiceAccept(_)));
        let done = vec![PduSessionItem { id: id(1), transfer: Bytes::from_static(b"response") }];
        let response = context_set_up(setup.amf_ue_ngap_id, ue.ran_id, done);
        let n = 2 + seed as u8;
        let steps = Choices(seed).merge(vec![session_request(n)], vec![n2(response)]);
        for step in steps {
            step.take(&gnb, &mut ue).await;
        }
        assert_eq!(ue.set_up(&mut gnb, n).await, ACCEPT_N1, "seed {seed}");
    }
}

#[tokio::test]
async fn a_release_complete_before_the_gnbs_release_response() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    for n in [1, 2] {
        ue.establish(&mut gnb, n).await;
        network.core.wait_called("setup_done", n.into()).await;
    }
    let n2 = Some((RELEASE_N2, N2SmInfoType::PduResRelCmd));
    network.core.transfer(ue.supi(), id(1), Some(RELEASE_N1), n2).await.unwrap();
    let Pdu::PduSessionResourceReleaseCommand(command) = gnb.recv().await else { panic!() };
    ue.read(&command.nas_pdu.unwrap());
    let complete = gmm::UlNasTransport::n1_sm(id(1), vec![0x2e, 1, 0, 0xd4]);
    ue.send(&gnb, &Message::UlNasTransport(complete)).await;
    // The gNB first reports on its own that it released the other session's flow, and only then
    // answers.
    gnb.send(PduSessionResourceNotify {
        amf_ue_ngap_id: command.amf_ue_ngap_id,
        ran_ue_ngap_id: ue.ran_id,
        pdu_sessions: vec![],
        released: vec![PduSessionItem { id: id(2), transfer: Bytes::from_static(b"notify") }],
        user_location: None,
    })
    .await;
    gnb.send(PduSessionResourceReleaseResponse {
        amf_ue_ngap_id: command.amf_ue_ngap_id,
        ran_ue_ngap_id: ue.ran_id,
        pdu_sessions: vec![PduSessionItem { id: id(1), transfer: Bytes::from_static(b"released") }],
        user_location: None,
        criticality_diagnostics: None,
    })
    .await;
    network.core.wait_called("PDU_RES_REL_RSP", 1).await;
    network.core.wait_called("n1", 1).await;
    network.core.wait_called("PDU_RES_NTY_REL", 1).await;
    network.ue(ue.supi(), |view| view["sessions"][1]["active"] == false).await;
}

#[tokio::test]
async fn a_late_answer_for_one_session_does_not_end_another() {
    let network = Network::with(serde_json::json!({"timers": {"n2_guard_ms": 150}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    session_request(1).take(&gnb, &mut ue).await;
    let Pdu::PduSessionResourceSetupRequest(first) = gnb.recv().await else { panic!() };
    ue.read(first.pdu_sessions[0].nas_pdu.as_ref().unwrap());
    // The gNB takes too long: the set-up is given up.
    let Message::DlNasTransport(back) = ue.recv(&mut gnb).await else { panic!() };
    assert_eq!(back.cause, Some(GmmCause::PayloadNotForwarded));
    session_request(2).take(&gnb, &mut ue).await;
    let Pdu::PduSessionResourceSetupRequest(second) = gnb.recv().await else { panic!() };
    ue.read(second.pdu_sessions[0].nas_pdu.as_ref().unwrap());
    for n in [1, 2] {
        gnb.send(resources_set_up(second.amf_ue_ngap_id, ue.ran_id, id(n))).await;
    }
    let view = network.ue(ue.supi(), |view| view["sessions"][0]["active"] == true).await;
    assert_eq!(view["sessions"][0]["id"], 2);
}

#[tokio::test]
async fn what_a_ue_said_on_a_lost_connection_starts_nothing() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    accepted(&mut gnb, &mut ue).await;
    ue.send(&gnb, &Message::RegistrationComplete).await;
    session_request(1).take(&gnb, &mut ue).await;
    network.ue(ue.supi(), |view| view["mm_state"] == "5GMM-REGISTERED").await;
    gnb.association.abort();
    network.ue(ue.supi(), |view| view["cm_state"] == "CM-IDLE").await;
    net::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(network.core.called("create_context"), 0);
}
