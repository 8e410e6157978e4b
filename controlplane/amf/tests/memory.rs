//! The memory of a UE without proven identity, compared with the memory that the AMF counts for it. The
//! test is a process of its own, because the whole process is measured.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops where it fails")]

#[path = "amf/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "shared with tests that use more of it")]
mod support;

use nas::{Message, RegistrationType};
use support::*;

/// Resident octets of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

async fn counted(network: &Network) -> u64 {
    network.oam("GET", "/status").await["detail"]["admission"]["unproven_octets"].as_u64().unwrap()
}

fn open(n: u32) -> (Ue, Message) {
    let mut ue = Ue::new(n % 800);
    ue.ran_id = ngap::RanUeNgapId(n);
    // Every UE has its own identity, and the scripted core refuses none of them.
    ue.imsi = format!("99970{:010}", 10 * n + 1).parse().unwrap();
    let request = Message::RegistrationRequest(ue.registration_request(RegistrationType::Initial));
    (ue, request)
}

/// UEs that are challenged and do not answer.
async fn silent(gnb: &mut Gnb, ues: std::ops::Range<u32>) {
    for n in ues {
        let (mut ue, request) = open(n);
        ue.open(gnb, &request).await;
        let challenge = ue.recv(gnb).await;
        assert!(matches!(challenge, Message::AuthenticationRequest(_)), "{challenge:?}");
    }
}

/// UEs that wait for their turn.
async fn waiting(network: &Network, gnb: &Gnb, ues: std::ops::Range<u32>) {
    let end = u64::from(ues.end);
    for n in ues {
        let (mut ue, request) = open(n);
        ue.open(gnb, &request).await;
    }
    let waiting = async || {
        network.oam("GET", "/status").await["detail"]["admission"]["registrations_waiting"].as_u64().unwrap()
    };
    // The first one is challenged.
    while waiting().await + 1 < end {
        net::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// Compares the growth of the process with the memory that the AMF has counted, per UE.
#[allow(clippy::print_stderr, reason = "the constants in `context.rs` are these figures, rounded up")]
fn compare(what: &str, ues: u32, grown: u64, counted: u64) {
    let (each, counted) = (grown / u64::from(ues), counted / u64::from(ues));
    eprintln!("{what}: {each} octets each, {counted} counted");
    // The scripted core and gNB are in this process, too: the AMF's part is less than the measured memory.
    assert!(each <= counted, "{what}: {each} octets each, {counted} counted");
    assert!(each > 500, "{what}: {each} octets each: what is measured here?");
}

async fn given_back(network: &Network) {
    for _ in 0..500 {
        if counted(network).await == 0 {
            return;
        }
        net::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} octets are not given back", counted(network).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ue_that_says_nothing_and_one_that_waits_cost_no_more_than_is_counted() {
    const UES: u32 = 2000;
    // First the waiting UEs: they must not get memory that others have freed.
    let network = Network::with(serde_json::json!({
        "limits": {"registrations": 1},
        "timers": {"t3560_ms": 600_000, "admission_ms": 600_000},
    }))
    .await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    silent(&mut gnb, 0..1).await;
    waiting(&network, &gnb, 1..300).await;
    let (before, counted_before) = (resident(), counted(&network).await);
    waiting(&network, &gnb, 300..300 + UES).await;
    let (after, counted_after) = (resident(), counted(&network).await);
    compare("waiting", UES, after - before, counted_after - counted_before);
    gnb.association.abort();
    given_back(&network).await;

    let network = Network::with(serde_json::json!({
        "limits": {"unproven_mb": 256, "registrations": 10_000},
        "timers": {"t3560_ms": 600_000},
    }))
    .await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    // Buffers and pools grow with the first UEs.
    silent(&mut gnb, 0..300).await;
    let (before, counted_before) = (resident(), counted(&network).await);
    silent(&mut gnb, 300..300 + UES).await;
    let (after, counted_after) = (resident(), counted(&network).await);
    compare("silent", UES, after - before, counted_after - counted_before);
    gnb.association.abort();
    given_back(&network).await;
}
