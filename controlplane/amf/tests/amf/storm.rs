//! Storms: many registrations at once, and floods in one subscriber's name.

use std::collections::BTreeMap;
use std::time::Duration;

use nas::{GmmCause, Message, RegistrationType};
use ngap::*;
use serde_json::json;

use crate::support::*;

/// UEs that register at the same time, through one gNB.
struct Crowd {
    ues: BTreeMap<RanUeNgapId, (Ue, Message)>,
    registered: u32,
    refused: u32,
}

impl Crowd {
    /// Sends every UE's REGISTRATION REQUEST.
    async fn open(gnb: &Gnb, numbers: std::ops::Range<u32>) -> Crowd {
        let mut ues = BTreeMap::new();
        for n in numbers {
            let mut ue = Ue::new(n);
            let request = Message::RegistrationRequest(ue.registration_request(RegistrationType::Initial));
            ue.open(gnb, &request).await;
            ues.insert(ue.ran_id, (ue, request));
        }
        Crowd { ues, registered: 0, refused: 0 }
    }

    /// Answers the next message of the AMF in the name of its UE.
    async fn answer(&mut self, gnb: &mut Gnb) {
        let pdu = gnb.recv().await;
        self.take(gnb, pdu).await;
    }

    /// Answers a message of the AMF in the name of its UE.
    async fn take(&mut self, gnb: &Gnb, pdu: Pdu) {
        let (ran_id, amf_id, nas) = match &pdu {
            Pdu::DownlinkNasTransport(m) => (m.ran_ue_ngap_id, m.amf_ue_ngap_id, Some(m.nas_pdu.clone())),
            Pdu::InitialContextSetupRequest(m) => (m.ran_ue_ngap_id, m.amf_ue_ngap_id, m.nas_pdu.clone()),
            Pdu::UeContextReleaseCommand(_) => return,
            other => panic!("{other:?}"),
        };
        let (ue, request) = self.ues.get_mut(&ran_id).unwrap();
        ue.amf_id = Some(amf_id);
        match ue.read(&nas.unwrap()) {
            Message::AuthenticationRequest(challenge) => {
                let answer = ue.answer(&challenge).encode().unwrap();
                ue.send_octets(gnb, answer).await;
            }
            Message::SecurityModeCommand(_) => {
                let complete = Message::SecurityModeComplete(nas::gmm::SecurityModeComplete {
                    imeisv: None,
                    nas_message_container: Some(request.encode().unwrap()),
                });
                ue.send(gnb, &complete).await;
            }
            Message::RegistrationAccept(_) => {
                gnb.send(InitialContextSetupResponse {
                    amf_ue_ngap_id: amf_id,
                    ran_ue_ngap_id: ran_id,
                    pdu_sessions: vec![],
                    failed: vec![],
                    criticality_diagnostics: None,
                })
                .await;
                ue.send(gnb, &Message::RegistrationComplete).await;
                self.registered += 1;
            }
            Message::RegistrationReject(reject) => {
                assert_eq!(reject.cause, GmmCause::Congestion);
                assert!(reject.t3346.is_some());
                self.refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn load(network: &Network) -> serde_json::Value {
    network.oam("GET", "/status").await["detail"]["admission"].clone()
}

/// Waits until the AMF has freed all memory and places of registering UEs.
async fn nothing_is_held(network: &Network) {
    for _ in 0..500 {
        let held = load(network).await;
        let members = ["registrations", "registration_calls", "registrations_waiting", "unproven_octets"];
        if members.iter().all(|member| held[member] == 0) {
            return;
        }
        net::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{}", load(network).await);
}

#[tokio::test]
async fn a_crowd_larger_than_the_memory_for_its_contexts_is_served_in_turn() {
    // There is memory for about 40 contexts; the other UEs used to be refused at once.
    const UES: u32 = 140;
    let network = Network::with(json!({"limits": {"unproven_mb": 2, "registrations": 8}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut crowd = Crowd::open(&gnb, 100..100 + UES).await;
    while crowd.registered + crowd.refused < UES {
        assert!(load(&network).await["registrations"].as_u64().unwrap() <= 8);
        for _ in 0..10 {
            if crowd.registered + crowd.refused < UES {
                crowd.answer(&mut gnb).await;
            }
        }
    }
    assert_eq!((crowd.registered, crowd.refused), (UES, 0));
    nothing_is_held(&network).await;
}

#[tokio::test]
async fn who_waits_too_long_is_told_to_come_back_and_who_is_silent_holds_no_place() {
    let network = Network::with(json!({
        "limits": {"registrations": 2}, "timers": {"admission_ms": 2500, "t3560_ms": 60_000}
    }))
    .await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    for n in 0..20 {
        let mut ue = Ue::new(n);
        let request = Message::RegistrationRequest(ue.registration_request(RegistrationType::Initial));
        ue.open(&gnb, &request).await;
    }
    let (mut challenged, mut refused, mut released) = (0, 0, 0);
    while challenged + refused < 20 || released < refused {
        match gnb.recv().await {
            Pdu::DownlinkNasTransport(transport) => match Ue::new(0).read(&transport.nas_pdu) {
                Message::AuthenticationRequest(_) => challenged += 1,
                Message::RegistrationReject(reject) => {
                    assert_eq!(reject.cause, GmmCause::Congestion);
                    assert!(reject.t3346.is_some());
                    refused += 1;
                }
                other => panic!("{other:?}"),
            },
            Pdu::UeContextReleaseCommand(_) => released += 1,
            other => panic!("{other:?}"),
        }
    }
    // Two at once, two more after a second of silence, two more after two seconds.
    assert!((4..=6).contains(&challenged), "{challenged} challenged");
    let counters = network.oam("GET", "/counters").await;
    assert!(counters["amf_not_admitted"]["values"]["unknown"].as_u64().unwrap() >= 14);
    // Silent UEs keep their contexts: one that answers late continues.
    assert_eq!(load(&network).await["registrations_waiting"], 0);
}

#[tokio::test]
async fn a_gnb_that_resets_leaves_nobody_waiting() {
    let network =
        Network::with(json!({"limits": {"registrations": 1}, "timers": {"t3560_ms": 60_000}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    Crowd::open(&gnb, 0..50).await;
    assert!(matches!(gnb.recv().await, Pdu::DownlinkNasTransport(_)));
    while load(&network).await["registrations_waiting"] != 49 {
        net::time::sleep(Duration::from_millis(10)).await;
    }
    let reset_type = ResetType::NgInterface;
    gnb.send(NgReset { cause: cause::Misc::Unspecified.into(), reset_type }).await;
    assert!(matches!(gnb.recv().await, Pdu::NgResetAcknowledge(_)));
    nothing_is_held(&network).await;
    Ue::new(60).register(&mut gnb).await;
}

#[tokio::test]
async fn a_ue_is_served_before_the_flood_that_goes_on_under_its_name() {
    let network =
        Network::with(json!({"limits": {"registrations": 1}, "timers": {"t3560_ms": 60_000}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    // The flood, all with the SUCI of UE 1, then the UE itself, and another UE.
    for n in 0..60 {
        let mut flood = Ue::new(1);
        flood.ran_id = RanUeNgapId(1000 + n);
        let request = Message::RegistrationRequest(flood.registration_request(RegistrationType::Initial));
        flood.open(&gnb, &request).await;
    }
    let mut crowd = Crowd::open(&gnb, 1..3).await;
    let (mut challenged, mut dropped) = (0, 0);
    while crowd.registered < 2 {
        match gnb.recv().await {
            Pdu::DownlinkNasTransport(transport) if transport.ran_ue_ngap_id.0 >= 1000 => challenged += 1,
            Pdu::UeContextReleaseCommand(command) => {
                let UeNgapIds::Pair(_, ran) = command.ue_ngap_ids else { panic!() };
                assert!(ran.0 >= 1000);
                // No 5GMM cause #22: the UE itself would then wait for a quarter of an hour.
                assert_eq!(command.cause, cause::Misc::ControlProcessingOverload.into());
                dropped += 1;
            }
            pdu => crowd.take(&gnb, pdu).await,
        }
    }
    assert_eq!(crowd.refused, 0);
    assert!(challenged <= 2, "{challenged} of the flood came first");
    assert!(dropped >= 50, "{dropped} of the flood dropped");
    let counters = network.oam("GET", "/counters").await;
    assert!(counters["amf_not_admitted"]["values"]["newer_of_same_name"].as_u64().unwrap() >= 50);
}

#[tokio::test]
async fn a_storm_does_not_delay_ues_that_are_registered() {
    let network = Network::with(json!({
        "limits": {"registrations": 4, "registration_calls": 4, "unproven_mb": 2},
        "timers": {"n2_guard_ms": 2000}
    }))
    .await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let (mut idle, mut moving) = (Ue::new(1), Ue::new(2));
    for ue in [&mut idle, &mut moving] {
        ue.register(&mut gnb).await;
        ue.idle(&mut gnb).await;
    }
    *network.core.delay.lock().unwrap() = Duration::from_millis(200);
    // More UEs than there is memory for, and far more than are served meanwhile.
    let mut crowd = Crowd::open(&gnb, 100..800).await;
    let began = net::time::now();
    idle.answer_page(&gnb).await;
    let request =
        Message::RegistrationRequest(moving.registration_request(RegistrationType::MobilityUpdating));
    moving.open(&gnb, &request).await;
    let (mut served, mut updated) = (None, None);
    while served.is_none() || updated.is_none() {
        let pdu = gnb.recv().await;
        let took = net::time::now().saturating_duration_since(began);
        match &pdu {
            Pdu::DownlinkNasTransport(m) if m.ran_ue_ngap_id == idle.ran_id => served = Some(took),
            Pdu::InitialContextSetupRequest(m) if m.ran_ue_ngap_id == idle.ran_id => served = Some(took),
            Pdu::InitialContextSetupRequest(m) if m.ran_ue_ngap_id == moving.ran_id => updated = Some(took),
            _ => crowd.take(&gnb, pdu).await,
        }
    }
    let most = Duration::from_secs(1);
    assert!(served.unwrap() < most && updated.unwrap() < most, "{served:?} {updated:?}");
    assert!(crowd.registered < 40, "the storm was over: {}", crowd.registered);
}

/// Reads what a flood is answered until the AMF is silent; how many of its connections are released.
async fn drain(gnb: &mut Gnb) -> u32 {
    let mut released = 0;
    // Longer than a silent UE holds its place.
    while let Some(pdu) = gnb.recv_within(Duration::from_millis(1200)).await {
        match pdu {
            Pdu::UeContextReleaseCommand(_) => released += 1,
            Pdu::DownlinkNasTransport(transport) => {
                let message = Ue::new(1).read(&transport.nas_pdu);
                assert!(matches!(message, Message::AuthenticationRequest(_)), "{message:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    released
}

#[tokio::test]
async fn a_flood_under_one_name_leaves_memory_for_other_ues() {
    // Half of it is room for some 600 UEs: before, the flood took all of it.
    let network = Network::with(json!({"limits": {"unproven_mb": 24}, "timers": {"t3560_ms": 60_000}})).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut released = 0;
    for burst in 0..4 {
        for n in 0..300 {
            let mut flood = Ue::new(1);
            flood.ran_id = RanUeNgapId(1000 * (burst + 1) + n);
            let request = Message::RegistrationRequest(flood.registration_request(RegistrationType::Initial));
            flood.open(&gnb, &request).await;
        }
        released += drain(&mut gnb).await;
    }
    // 256 of the 1,200 are left.
    assert_eq!(released, 944);
    // Other UEs, and the one whose name the flood has.
    let mut crowd = Crowd::open(&gnb, 1..40).await;
    while crowd.registered < 39 {
        let pdu = gnb.recv().await;
        let flood = match &pdu {
            Pdu::DownlinkNasTransport(m) => m.ran_ue_ngap_id.0 >= 1000,
            _ => false,
        };
        if !flood {
            crowd.take(&gnb, pdu).await;
        }
        assert_eq!(crowd.refused, 0);
    }
}
