//! Limits for gNBs and UEs: associations, identities, memory, places.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nas::{GmmCause, Message, RegistrationType};
use net::sctp::{Association, ConnectError, Event, SctpConfig, SctpMode};
use ngap::*;
use serde_json::json;

use crate::support::*;

/// Checks that the AMF refuses an association, or ends it at once.
async fn refused(n2: SocketAddr) {
    let config = SctpConfig { mode: SctpMode::Udp { port: 9899 }, ..SctpConfig::default() };
    match Association::connect(SocketAddr::new(n2.ip(), 0), n2, config).await {
        Ok(association) => ended(&mut Gnb { association }).await,
        Err(ConnectError::Refused { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Waits until the AMF has ended the association.
async fn ended(gnb: &mut Gnb) {
    let limit = Duration::from_secs(5);
    match net::time::timeout(limit, gnb.association.recv()).await {
        Ok(Some(Event::Closed { .. }) | None) => {}
        other => panic!("{other:?}"),
    }
}

/// Another address of this host, used only by this test.
fn elsewhere(n2: SocketAddr) -> IpAddr {
    let IpAddr::V4(address) = n2.ip() else { panic!() };
    let [a, b, c, d] = address.octets();
    IpAddr::from([a, b + 64, c, d])
}

async fn rejected(network: &Network, reason: &str) -> u64 {
    let counters = network.oam("GET", "/counters").await;
    counters["amf_n2_rejected"]["values"][reason].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn idle_associations_of_one_address_do_not_shut_out_another() {
    let limits = json!({"limits": {"gnbs": 24, "gnbs_per_address": 16}, "timers": {"ng_setup_ms": 60_000}});
    let network = Network::with(limits).await;
    let mut idle = Vec::new();
    for _ in 0..16 {
        idle.push(Gnb::connect(network.n2).await);
    }
    for _ in 0..8 {
        refused(network.n2).await;
    }
    let mut gnb = Gnb::up_from(elsewhere(network.n2), network.n2, 1).await;
    Ue::new(1).register(&mut gnb).await;
    assert_eq!(network.oam("GET", "/gnbs").await.as_array().unwrap().len(), 17);
    assert!(rejected(&network, "too_many_gnbs_of_address").await >= 8);
    // A place that becomes free is used again.
    idle.pop().unwrap().association.shutdown().await;
    for _ in 0..100 {
        if network.oam("GET", "/gnbs").await.as_array().unwrap().len() == 16 {
            break;
        }
        net::time::sleep(Duration::from_millis(10)).await;
    }
    Gnb::up(network.n2, 2).await;
}

impl Gnb {
    /// Repeats NG Setup and reads no answer, until the AMF cannot send another one: the association cannot be shut
    /// down then.
    async fn jam(&self) {
        let limit = Duration::from_millis(300);
        while net::time::timeout(limit, self.send(setup_request(1, plmn(), 1, "1"))).await.is_ok() {}
    }
}

/// Each of these associations takes the identity from the one before, which then can neither send nor be shut down.
#[tokio::test]
async fn associations_whose_identity_was_taken_end_at_once() {
    let network = Network::with(json!({"limits": {"gnbs": 4, "gnbs_per_address": 3}})).await;
    let mut replaced = Vec::new();
    for _ in 0..4 {
        let gnb = Gnb::up(network.n2, 1).await;
        gnb.jam().await;
        replaced.push(gnb);
    }
    Gnb::up_from(elsewhere(network.n2), network.n2, 2).await;
    // The identity belongs to the latest association only.
    let gnbs = network.oam("GET", "/gnbs").await;
    assert_eq!(gnbs.as_array().unwrap().iter().filter(|gnb| gnb["name"] == "gnb-1").count(), 1, "{gnbs}");
    drop(replaced);
}

#[tokio::test]
async fn an_association_without_ng_setup_ends() {
    let network = Network::with(json!({"timers": {"ng_setup_ms": 200}})).await;
    let mut late = Gnb::connect(network.n2).await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    ended(&mut late).await;
    // An association that has completed NG Setup stays, even without traffic.
    net::time::sleep(Duration::from_millis(400)).await;
    Ue::new(1).register(&mut gnb).await;
    // One that was refused may wait as long as the refusal says.
    let mut refused = Gnb::connect(network.n2).await;
    refused.send(setup_request(2, plmn(), 9, "1")).await;
    assert!(matches!(refused.recv().await, Pdu::NgSetupFailure(_)));
    net::time::sleep(Duration::from_millis(400)).await;
    refused.send(setup_request(2, plmn(), 1, "1")).await;
    assert!(matches!(refused.recv().await, Pdu::NgSetupResponse(_)));
    assert!(rejected(&network, "no_ng_setup").await >= 1);
}

#[tokio::test]
async fn the_identity_of_a_live_gnb_cannot_be_taken_from_another_address() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    let mut thief = Gnb::connect_from(elsewhere(network.n2), network.n2).await;
    thief.send(setup_request(1, plmn(), 1, "1")).await;
    let Pdu::NgSetupFailure(failure) = thief.recv().await else { panic!() };
    assert!(failure.time_to_wait.is_some());
    // The real gNB is not affected.
    let view = network.ue(ue.supi(), |view| view["cm_state"] == "CM-CONNECTED").await;
    assert_eq!(view["gnb"], "gnb-1");
    ue.idle(&mut gnb).await;
    let failures = network.oam("GET", "/counters").await["amf_ng_setup_failures"]["values"].clone();
    assert!(failures["identity_in_use"].as_u64().unwrap() >= 1, "{failures}");
    // The gNB uses another address after its association from the first has ended.
    gnb.association.abort();
    thief.send(setup_request(1, plmn(), 1, "1")).await;
    assert!(matches!(thief.recv().await, Pdu::NgSetupResponse(_)));
}

#[tokio::test]
async fn only_listed_gnbs_connect() {
    let from = |n2: SocketAddr| elsewhere(n2).to_string();
    let network = Network::with_address(
        |n2| json!({"allowed_gnbs": [{"address": format!("{}/32", from(n2)), "id": 7}]}),
    )
    .await;
    refused(network.n2).await;
    let mut gnb = Gnb::connect_from(elsewhere(network.n2), network.n2).await;
    gnb.send(setup_request(8, plmn(), 1, "1")).await;
    assert!(matches!(gnb.recv().await, Pdu::NgSetupFailure(_)));
    gnb.send(setup_request(7, plmn(), 1, "1")).await;
    assert!(matches!(gnb.recv().await, Pdu::NgSetupResponse(_)));
    assert!(rejected(&network, "gnb_not_allowed").await >= 1);
}

async fn load(network: &Network) -> serde_json::Value {
    network.oam("GET", "/status").await["detail"]["admission"].clone()
}

#[tokio::test]
async fn one_gnb_cannot_take_the_memory_for_every_ue() {
    let network = Network::with(json!({
        "limits": {"unproven_mb": 1}, "timers": {"t3560_ms": 60_000, "t3346_s": 60}
    }))
    .await;
    let mut flooding = Gnb::up(network.n2, 1).await;
    let mut back_offs = std::collections::BTreeSet::new();
    let (mut challenged, mut refused) = (0, 0);
    for n in 0..200 {
        let mut ue = Ue::new(n);
        let request = Message::RegistrationRequest(ue.registration_request(RegistrationType::Initial));
        ue.open(&flooding, &request).await;
        match ue.recv(&mut flooding).await {
            Message::AuthenticationRequest(_) => challenged += 1,
            Message::RegistrationReject(reject) => {
                assert_eq!(reject.cause, GmmCause::Congestion);
                back_offs.insert(reject.t3346.unwrap().duration().unwrap());
                refused += 1;
                flooding.released(&mut ue).await;
            }
            other => panic!("{other:?}"),
        }
        if refused == 60 {
            break;
        }
    }
    assert!(challenged > 5, "{challenged}");
    assert_eq!(refused, 60);
    assert!(back_offs.len() > 8, "T3346 is spread: {back_offs:?}");
    assert!(back_offs.first().unwrap().as_secs() >= 15 && back_offs.last().unwrap().as_secs() <= 60);
    let held = load(&network).await;
    let (octets, limit) =
        (held["unproven_octets"].as_u64().unwrap(), held["unproven_octets_limit"].as_u64().unwrap());
    assert!(octets <= limit / 2, "one gNB takes no more than is left: {held}");
    // UEs of a gNB at another address are served as before, and their memory is freed when they have proven their
    // identity.
    let mut gnb = Gnb::up_from(elsewhere(network.n2), network.n2, 2).await;
    for n in 300..305 {
        Ue::new(n).register(&mut gnb).await;
    }
    assert!(load(&network).await["unproven_octets"].as_u64().unwrap() <= octets);
    // When the flooding gNB's connections have ended, all memory is freed.
    let reset_type = ResetType::NgInterface;
    flooding.send(NgReset { cause: cause::Misc::Unspecified.into(), reset_type }).await;
    for _ in 0..500 {
        if load(&network).await["unproven_octets"] == 0 {
            return;
        }
        net::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{}", load(&network).await);
}

/// Challenges and refusals that have arrived at a gNB.
async fn drain(gnb: &mut Gnb) -> (u32, u32) {
    let (mut challenged, mut refused) = (0, 0);
    while let Some(pdu) = gnb.recv_within(Duration::from_millis(100)).await {
        let Pdu::DownlinkNasTransport(transport) = pdu else { continue };
        match Ue::new(0).read(&transport.nas_pdu) {
            Message::AuthenticationRequest(_) => challenged += 1,
            Message::RegistrationReject(_) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    (challenged, refused)
}

#[tokio::test]
async fn many_associations_of_one_host_take_no_more_than_one() {
    let network = Network::with(json!({"limits": {"unproven_mb": 1}, "timers": {"t3560_ms": 60_000}})).await;
    let mut flooding = Vec::new();
    let (mut challenged, mut refused) = (0, 0);
    for id in 1..=13 {
        let mut gnb = Gnb::up(network.n2, id).await;
        for n in 0..40 {
            let mut ue = Ue::new(40 * id + n);
            let request = Message::RegistrationRequest(ue.registration_request(RegistrationType::Initial));
            ue.open(&gnb, &request).await;
        }
        let answers = drain(&mut gnb).await;
        challenged += answers.0;
        refused += answers.1;
        flooding.push(gnb);
    }
    assert!(challenged > 5 && refused > 400, "{challenged} challenged, {refused} refused");
    let held = load(&network).await;
    let (octets, limit) =
        (held["unproven_octets"].as_u64().unwrap(), held["unproven_octets_limit"].as_u64().unwrap());
    assert!(octets <= limit / 2, "{held}");
    let mut gnb = Gnb::up_from(elsewhere(network.n2), network.n2, 20).await;
    for n in 700..705 {
        Ue::new(n).register(&mut gnb).await;
    }
}

#[tokio::test]
async fn a_crowd_waits_for_its_turn_and_others_are_told_to_come_back() {
    // One registration at a time calls the AUSF, which takes long.
    let network = Network::with(json!({
        "limits": {"registration_calls": 1}, "timers": {"admission_ms": 1000, "n2_guard_ms": 2000}
    }))
    .await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.register(&mut gnb).await;
    ue.idle(&mut gnb).await;
    *network.core.delay.lock().unwrap() = Duration::from_millis(150);
    for n in 100..120 {
        let mut one = Ue::new(n);
        let request = Message::RegistrationRequest(one.registration_request(RegistrationType::Initial));
        one.open(&gnb, &request).await;
    }
    net::time::sleep(Duration::from_millis(30)).await;
    let held = load(&network).await;
    assert_eq!(held["registration_calls"], 1, "{held}");
    assert!(held["registrations_waiting"].as_u64().unwrap() > 15, "{held}");
    // A registered UE goes before the many others, most of which will wait in vain.
    let mut other = Gnb::up(network.n2, 2).await;
    let request = Message::RegistrationRequest(ue.registration_request(RegistrationType::Initial));
    ue.open(&other, &request).await;
    ue.complete(&mut other).await;
    // Of the many, some are challenged and the others refused in time.
    let (mut challenged, mut refused) = (0, 0);
    while challenged + refused < 20 {
        let Pdu::DownlinkNasTransport(transport) = gnb.recv().await else { continue };
        let mut reader = Ue::new(0);
        match reader.read(&transport.nas_pdu) {
            Message::AuthenticationRequest(_) => challenged += 1,
            Message::RegistrationReject(reject) => {
                assert_eq!(reject.cause, GmmCause::Congestion);
                assert!(reject.t3346.is_some());
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(challenged >= 2 && refused >= 8, "{challenged} challenged, {refused} refused");
    let counters = network.oam("GET", "/counters").await;
    assert!(counters["amf_not_admitted"]["values"]["unknown"].as_u64().unwrap() >= 8);
}

#[tokio::test]
async fn a_flood_in_the_name_of_one_subscriber_delays_no_other_ue() {
    let network = Network::with(json!({
        "limits": {"registration_calls": 1}, "timers": {"admission_ms": 4000, "n2_guard_ms": 2000}
    }))
    .await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    *network.core.delay.lock().unwrap() = Duration::from_millis(40);
    // The same SUCI again and again, from one gNB.
    for n in 0..60 {
        let mut flood = Ue::new(1);
        flood.ran_id = RanUeNgapId(1000 + n);
        let request = Message::RegistrationRequest(flood.registration_request(RegistrationType::Initial));
        flood.open(&gnb, &request).await;
    }
    // Another UE of the same gNB gets its turn after one of them.
    let mut ue = Ue::new(2);
    let request = Message::RegistrationRequest(ue.registration_request(RegistrationType::Initial));
    ue.open(&gnb, &request).await;
    let mut before = 0;
    loop {
        let Pdu::DownlinkNasTransport(transport) = gnb.recv().await else { panic!() };
        if transport.ran_ue_ngap_id == ue.ran_id {
            break;
        }
        before += 1;
    }
    assert!(before <= 5, "{before} of the flood came first");
}

#[tokio::test]
async fn nas_messages_that_no_ue_can_send_are_not_kept() {
    let network = Network::start().await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    let mut ue = Ue::new(1);
    ue.open_with(&gnb, vec![0x7e; 9001]).await;
    assert!(matches!(gnb.recv().await, Pdu::ErrorIndication(_)));
    ue.register(&mut gnb).await;
    ue.send_octets(&gnb, vec![0x7e; 9001]).await;
    ue.idle(&mut gnb).await;
    assert!(rejected(&network, "nas_too_long").await >= 2);
}
