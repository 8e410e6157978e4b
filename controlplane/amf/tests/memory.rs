//! What a UE costs that has not proven who it is, against what the AMF counts for it. A process of its own, since the
//! whole process is measured.

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

/// UEs that are challenged and say nothing.
async fn silent(gnb: &mut Gnb, ues: std::ops::Range<u32>) {
    for n in ues {
        let mut ue = Ue::new(n % 800);
        ue.ran_id = ngap::RanUeNgapId(n);
        let request = Message::RegistrationRequest(ue.registration_request(RegistrationType::Initial));
        ue.open(gnb, &request).await;
        assert!(matches!(ue.recv(gnb).await, Message::AuthenticationRequest(_)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ue_that_says_nothing_costs_no_more_than_is_counted() {
    const UES: u32 = 2000;
    let network = Network::with(serde_json::json!({
        "limits": {"unproven_mb": 256},
        "timers": {"t3560_ms": 600_000},
    }))
    .await;
    let mut gnb = Gnb::up(network.n2, 1).await;
    // Buffers and pools grow with the first UEs.
    silent(&mut gnb, 0..300).await;
    let (before, counted_before) = (resident(), counted(&network).await);
    silent(&mut gnb, 300..300 + UES).await;
    let (after, counted_after) = (resident(), counted(&network).await);
    let each = (after - before) / u64::from(UES);
    let counted_each = (counted_after - counted_before) / u64::from(UES);
    // The scripted core and gNB live in this process too: the AMF's part is less than what is measured.
    assert!(each <= counted_each, "{each} octets each, {counted_each} counted");
    assert!(each > 1000, "{each} octets each: what is measured here?");
    gnb.association.abort();
    for _ in 0..500 {
        if counted(&network).await == 0 {
            return;
        }
        net::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} octets are not given back", counted(&network).await);
}
