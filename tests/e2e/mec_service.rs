//! A stateful application beside the anchors moves with its user: the TCP connection is kept, and no answer is wrong.

use std::net::SocketAddr;

use lab::edge::{self, SERVICE};
use lab::moves::{Moves, ORIGIN};
use lab::service::{Client, Service};
use net::time::{self, Duration};
use serde_json::json;

const PORT: u16 = 7000;
/// Answers after which a user is known to be served.
const ENOUGH: u64 = 50;

/// The user gets further answers, all of them right; the longest wait for one.
async fn is_served(client: &Client) -> Duration {
    let (before, mut longest) = client.answers().unwrap();
    let deadline = time::now() + Duration::from_secs(20);
    loop {
        let (answers, waited) = client.answers().unwrap();
        longest = longest.max(waited);
        if answers >= before + ENOUGH {
            return longest;
        }
        assert!(time::now() < deadline, "{answers} answers, {before} before");
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// From the data network to an edge host, to another one, and back; the instance that serves the user is always the one at its anchor.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_keeps_its_connections_when_it_moves_with_its_user() {
    let options = lab::Options { epc: true, keeps_addresses: true, ..lab::Options::new(1).unwrap() };
    let moves = Moves::start(options, edge::SITES.len()).await.unwrap();
    let (ue, space) = moves.ues.first_key_value().unwrap();
    let at = SocketAddr::from((SERVICE, PORT));
    let [first, second] = &edge::SITES;
    let places = [moves.lab.dn(), moves.lab.application_host(first), moves.lab.application_host(second)];
    let services = places.map(|space| Service::start(space, at).unwrap());
    let client = Client::start(space, at).await.unwrap();
    is_served(&client).await;

    // One that cannot be taken elsewhere stays.
    let state = services[0].give(client.address).await.unwrap();
    assert!(services[1].take(&state[..state.len() / 2]).await.is_err());
    services[0].resume(client.address).await.unwrap();
    assert!(services[1].give(client.address).await.is_err(), "it is not served there");
    is_served(&client).await;

    for (from, to, host) in [(0, 1, first.host), (1, 2, second.host), (2, 1, first.host), (1, 0, ORIGIN)] {
        if host != ORIGIN {
            // Only the way changes then, and the user waits for less.
            moves.carry(&[*ue], host, &json!({"warm": true})).await.unwrap();
        }
        let state = services[from].give(client.address).await.unwrap();
        services[to].take(&state).await.unwrap();
        moves.carry(&[*ue], host, &json!({"order": "keep"})).await.unwrap();
        let before = services.each_ref().map(Service::answers);
        let waited = is_served(&client).await;
        eprintln!("{from} to {to}: longest wait for an answer {waited:?}");
        let after = services.each_ref().map(Service::answers);
        for place in 0..services.len() {
            assert_eq!(after[place] > before[place], place == to, "{before:?} {after:?}");
        }
        services[from].forget(client.address);
    }
    moves.stop().await.unwrap();
}
