//! Calls that are answered: alone, many at once, over several connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cotcp::{Client, ClientConfig, Config, Failure, Request};

use super::support::{PATIENCE, echo, serve, soon};

/// Calls of many tasks each get their own answer, on one thread and on several (CO-2, CO-3).
async fn many(client: Client) {
    let answered = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..200u32)
        .map(|task| {
            let (client, answered) = (client.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                for call in 0..50u32 {
                    let body = format!("{task} {call}");
                    assert_eq!(client.call(body.clone()).await.unwrap(), body);
                    answered.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(answered.load(Relaxed), 200 * 50);
}

#[tokio::test]
async fn many_tasks_share_one_connection() {
    many(Client::connect(echo().await, Config::default()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_on_many_threads_share_connections() {
    let config = ClientConfig { connections: 3, ..ClientConfig::default() };
    many(Client::connect(echo().await, config).await.unwrap()).await;
}

/// With room for two calls at once the others wait for their turn (CO-8).
#[tokio::test]
async fn callers_wait_for_room() {
    let config = Config { max_calls: 2, ..Config::default() };
    many(Client::connect(echo().await, config).await.unwrap()).await;
}

/// A server that stops in the middle of what it read, as many answers wait, goes on when these are written (CO-8).
#[tokio::test]
async fn a_server_goes_on_after_its_outbox_was_full() {
    let config = Config { max_output: 1000, call_timeout: Some(PATIENCE / 4), ..Config::default() };
    let (address, _server) =
        serve(config.clone(), |request: Request| async move { Ok::<_, Failure>(request.body) }).await;
    let client = Client::connect(address, Config { max_output: 1 << 20, ..config }).await.unwrap();
    let calls: Vec<_> = (0..300u32)
        .map(|call| {
            let client = client.clone();
            tokio::spawn(async move { client.call(vec![call as u8; 200]).await.unwrap() })
        })
        .collect();
    for call in calls {
        assert_eq!(soon(call).await.unwrap().len(), 200);
    }
}

/// One-way calls have no answers that would wake anybody: each is over when it is written, long ones too, and callers
/// that wait for room go on then (CO-7, CO-8).
#[tokio::test]
async fn one_way_calls_need_no_answers_to_go_on() {
    let address = echo().await;
    for size in [10, 5000] {
        let config = Config {
            max_output: 10_000,
            max_queued: 20_000,
            call_timeout: Some(PATIENCE / 4),
            ..Config::default()
        };
        let client = Client::connect(address, config).await.unwrap();
        client.call("version").await.unwrap();
        let calls: Vec<_> = (0..300)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.request(vec![7; size]).send_one_way().await.unwrap() })
            })
            .collect();
        for call in calls {
            soon(call).await.unwrap();
        }
    }
}
