//! Everything at once: calls of all sizes from many tasks, given up at any moment, over connections that are cut at any
//! octet. Each call ends, with its own answer or with the reason why not (CO-10).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use cotcp::{CallError, Client, ClientConfig, Config, Failure, Request};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::support::{eventually, serve, soon};

const CALLS: u32 = 150;
const TASKS: u32 = 40;

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Hands octets on to `server`, and cuts each connection after some.
async fn cutter(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut numbers = Numbers(7);
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(server).await.unwrap();
            let (up, down) = (numbers.below(3_000_000), numbers.below(3_000_000));
            tokio::spawn(async move {
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::select! {
                    () = copy(from_client, to_server, up) => {}
                    () = copy(from_server, to_client, down) => {}
                }
            });
        }
    });
    address
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut left: u64) {
    let mut octets = vec![0; 32 * 1024];
    while left > 0 {
        let Ok(count @ 1..) = from.read(&mut octets).await else { break };
        let count = count.min(left as usize);
        if to.write_all(&octets[..count]).await.is_err() {
            break;
        }
        left -= count as u64;
    }
}

async fn work(client: Client, seed: u32, answered: Arc<AtomicUsize>) {
    let mut numbers = Numbers(u64::from(seed));
    for call in 0..CALLS {
        let size = if numbers.below(10) == 0 { numbers.below(60_000) } else { numbers.below(200) };
        let mut body = (u64::from(seed) << 32 | u64::from(call)).to_be_bytes().to_vec();
        body.resize(body.len() + size as usize, call as u8);
        let body = Bytes::from(body);
        let request = client.request(body.clone()).priority(numbers.below(8) as u8);
        let give_up = match numbers.below(5) {
            0 => Duration::from_micros(numbers.below(3000)),
            _ => Duration::from_secs(20),
        };
        match tokio::time::timeout(give_up, request.send()).await {
            Err(_) => assert!(give_up < Duration::from_secs(20), "a call hangs"),
            Ok(Ok(answer)) => {
                assert!(answer == body, "somebody else's answer");
                answered.fetch_add(1, Relaxed);
            }
            Ok(Err(CallError::Connection { .. } | CallError::GoingAway)) => {}
            Ok(Err(error)) => panic!("{error:?}"),
        }
    }
}

async fn storm() {
    // Some answers come at once, some later.
    let handler = |request: Request| async move {
        match request.body.last() {
            Some(last) if last % 3 == 0 => tokio::time::sleep(Duration::from_millis(1)).await,
            Some(last) if last % 3 == 1 => tokio::task::yield_now().await,
            _ => {}
        }
        Ok::<_, Failure>(request.body)
    };
    let (server, handle) = serve(Config::default(), handler).await;
    let config = ClientConfig {
        connection: Config { max_calls: 20, ..Config::default() },
        connections: 3,
        backoff_max: Duration::from_millis(50),
        ..ClientConfig::default()
    };
    let client = Client::connect(cutter(server).await, config).await.unwrap();
    let answered = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> =
        (0..TASKS).map(|seed| tokio::spawn(work(client.clone(), seed, Arc::clone(&answered)))).collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("a task hangs").unwrap();
    }
    let lost = client.metrics().connections.lost;
    assert!(lost > 3, "only {lost} connections were cut");
    let answered = answered.load(Relaxed) as u32;
    assert!(answered > CALLS * TASKS / 3, "only {answered} calls were answered");
    soon(client.close()).await;
    eventually(|| handle.connections() == 0).await;
}

#[tokio::test]
async fn a_storm_on_one_thread() {
    storm().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_on_four_threads() {
    storm().await;
}
