//! The server: concurrency, cancellation, deadlines, limits, draining (CO-4, CO-9, CO-10).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use cotcp::{CallError, Client, ClientConfig, Code, Config, Failure, Request, ServerConfig};

use super::support::{eventually, now, serve, soon};

/// Counts how often it is dropped.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Waits as long as the body says, in milliseconds; counts the handlers that are over.
fn sleeper(over: &Arc<AtomicUsize>) -> impl cotcp::Handler {
    let over = Arc::clone(over);
    move |request: Request| {
        let guard = Guard(Arc::clone(&over));
        async move {
            let ms = std::str::from_utf8(&request.body).unwrap().parse().unwrap();
            tokio::time::sleep(Duration::from_millis(ms)).await;
            drop(guard);
            Ok::<_, Failure>(request.body)
        }
    }
}

async fn warm(client: &Client) {
    soon(client.call("0")).await.unwrap();
}

/// Slow requests do not hold up those behind them (CO-4).
#[tokio::test]
async fn requests_are_handled_at_once() {
    let (address, _handle) = serve(Config::default(), sleeper(&Arc::default())).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    let start = now();
    let slow: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.call("100").await })
        })
        .collect();
    warm(&client).await;
    assert!(start.elapsed() < Duration::from_millis(90));
    for call in slow {
        soon(call).await.unwrap().unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(2));
}

/// A call that is dropped ends its handler (CO-9).
#[tokio::test]
async fn a_dropped_call_is_cancelled() {
    let over = Arc::new(AtomicUsize::new(0));
    let (address, handle) = serve(Config::default(), sleeper(&over)).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    warm(&client).await;
    let cancelled = tokio::time::timeout(Duration::from_millis(50), client.call("60000")).await;
    assert!(cancelled.is_err());
    eventually(|| over.load(Relaxed) == 2).await;
    eventually(|| handle.metrics().stats.cancelled == 1).await;
    warm(&client).await;
}

/// The caller hears of its deadline, and the server stops working (CO-9).
#[tokio::test]
async fn a_deadline_ends_call_and_handler() {
    let over = Arc::new(AtomicUsize::new(0));
    let (address, _handle) = serve(Config::default(), sleeper(&over)).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    warm(&client).await;
    let start = now();
    let call = client.request("60000").deadline(Duration::from_millis(50)).send();
    let error = soon(call).await.unwrap_err();
    let remote = matches!(&error, CallError::Remote { code, .. } if *code == Code::DEADLINE);
    assert!(error == CallError::Deadline || remote, "{error}");
    assert!(start.elapsed() < Duration::from_secs(1));
    eventually(|| over.load(Relaxed) == 2).await;
    // In time is in time.
    let call = client.request("1").deadline(Duration::from_secs(5)).priority(0).trace("00-ab-cd-01").send();
    assert_eq!(soon(call).await.unwrap(), "1");
}

/// Deadline, priority and tracing context reach the handler (CO-9, CO-11); a one-way call is not answered (CO-7).
#[tokio::test]
async fn what_comes_with_a_request_reaches_the_handler() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |request: Request| {
        let left = request.deadline().map(|deadline| deadline.duration_since(now()));
        let _ = tell.send((request.priority(), request.trace().cloned(), left, request.is_one_way()));
        async { Ok::<_, Failure>("") }
    };
    let (address, _handle) = serve(Config::default(), handler).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    // What goes before the server's HELLO is a plain frame.
    soon(client.call("first")).await.unwrap();
    soon(told.recv()).await.unwrap();
    let call = client.request("a").priority(6).trace("context").deadline(Duration::from_secs(9)).send();
    soon(call).await.unwrap();
    let (priority, trace, left, one_way) = soon(told.recv()).await.unwrap();
    assert_eq!((priority, trace.as_deref(), one_way), (6, Some(&b"context"[..]), false));
    assert!(left.is_some_and(|left| left > Duration::from_secs(7) && left <= Duration::from_secs(9)));
    soon(client.request("b").send_one_way()).await.unwrap();
    let (priority, trace, _, one_way) = soon(told.recv()).await.unwrap();
    assert_eq!((priority, trace, one_way), (3, None, true));
}

/// A handler that panics fails its own request only.
#[tokio::test]
async fn a_panic_fails_one_request() {
    let handler = |request: Request| async move {
        if request.body == "panic" {
            tokio::task::yield_now().await;
            panic!("as asked");
        }
        Ok::<_, Failure>(request.body)
    };
    let (address, _handle) = serve(Config::default(), handler).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    let both = async { tokio::join!(client.call("panic"), client.call("calm")) };
    let (panicked, calm) = soon(both).await;
    assert!(matches!(panicked, Err(CallError::Remote { code: Code::INTERNAL, .. })), "{panicked:?}");
    assert_eq!(calm.unwrap(), "calm");
}

/// A draining server finishes what is open and takes nothing new, while new calls go to the server that comes after it
/// (CO-10).
#[tokio::test]
async fn draining_finishes_open_calls() {
    let over = Arc::new(AtomicUsize::new(0));
    let (address, handle) = serve(Config::default(), sleeper(&over)).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    warm(&client).await;
    let open = {
        let client = client.clone();
        tokio::spawn(async move { client.call("1000").await })
    };
    eventually(|| handle.metrics().stats.calls == 2).await;
    handle.drain();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.call("1").await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let server = cotcp::Server::bind(address, Config::default()).await.unwrap();
    tokio::spawn(server.serve(sleeper(&over)));
    assert_eq!(soon(waiting).await.unwrap().unwrap(), "1");
    assert!(!open.is_finished(), "the new server was there only after the old one");
    assert_eq!(soon(open).await.unwrap().unwrap(), "1000");
    eventually(|| handle.connections() == 0).await;
}

/// Servers that follow one another take all calls between them: none is lost or waits for long (CO-10).
#[tokio::test]
async fn calls_go_on_through_restarts() {
    let over = Arc::new(AtomicUsize::new(0));
    let (address, mut handle) = serve(Config::default(), sleeper(&over)).await;
    let config = ClientConfig { connections: 2, ..ClientConfig::default() };
    let client = Client::connect(address, config).await.unwrap();
    let workers: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                let end = now() + Duration::from_millis(800);
                while now() < end {
                    // What was under way when a connection closed has an unknown fate; nothing here cuts one.
                    client.call("20").await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        handle.drain();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let server = cotcp::Server::bind(address, Config::default()).await.unwrap();
        handle = server.handle();
        tokio::spawn(server.serve(sleeper(&over)));
    }
    for worker in workers {
        soon(worker).await.unwrap();
    }
}

/// What does not end in time is ended.
#[tokio::test]
async fn draining_ends_in_time() {
    let config = ServerConfig { drain_timeout: Duration::from_millis(100), ..ServerConfig::default() };
    let over = Arc::new(AtomicUsize::new(0));
    let (address, handle) = serve(config, sleeper(&over)).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    warm(&client).await;
    let open = {
        let client = client.clone();
        tokio::spawn(async move { client.call("60000").await })
    };
    eventually(|| handle.metrics().stats.calls == 2).await;
    handle.drain();
    let error = soon(open).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Connection { sent: true, .. }), "{error}");
    eventually(|| handle.connections() == 0 && over.load(Relaxed) == 2).await;
}

/// Connections beyond the limit are closed, and counted.
#[tokio::test]
async fn connections_are_limited() {
    let config = ServerConfig { max_connections: 2, ..ServerConfig::default() };
    let (address, handle) = serve(config, sleeper(&Arc::default())).await;
    let first = Client::connect(address, Config::default()).await.unwrap();
    let second = Client::connect(address, Config::default()).await.unwrap();
    warm(&first).await;
    warm(&second).await;
    let config = ClientConfig { wait_for_connection: Duration::from_millis(200), ..Default::default() };
    let third = Client::connect(address, config).await.unwrap();
    assert!(soon(third.call("0")).await.is_err());
    assert!(handle.metrics().connections.refused >= 1);
    warm(&first).await;
    // A place that is free again is taken.
    drop(second);
    eventually(|| third.connected() == 1).await;
    soon(async { while third.call("0").await.is_err() {} }).await;
}

/// Small calls beside large ones: none waits for more than a few fragments (CO-6, CE-5).
#[tokio::test]
async fn small_calls_overtake_large_ones() {
    let echo = |request: Request| async move { Ok::<_, Failure>(request.body) };
    let (address, _handle) = serve(Config::default(), echo).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    soon(client.call("warm")).await.unwrap();
    let large = {
        let client = client.clone();
        tokio::spawn(async move {
            client.call(vec![0; 16 << 20]).await.unwrap();
            now()
        })
    };
    tokio::task::yield_now().await;
    for _ in 0..20 {
        soon(client.call("small")).await.unwrap();
    }
    let done = now();
    assert!(soon(large).await.unwrap() > done, "twenty small calls took longer than 16 MiB");
}

/// The counters of both sides agree, and come as text.
#[tokio::test]
async fn metrics_say_what_happened() {
    let (address, handle) = serve(Config::default(), sleeper(&Arc::default())).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    for _ in 0..7 {
        warm(&client).await;
    }
    let (ours, theirs) = (client.metrics(), handle.metrics());
    assert_eq!((ours.stats.calls, ours.stats.answered), (7, 7));
    eventually(|| handle.metrics().stats.answered == 7).await;
    assert_eq!((theirs.connections.open, theirs.connections.made), (1, 1));
    let text = handle.metrics().to_prometheus("side=\"server\"");
    assert!(text.contains("cotcp_calls_total{side=\"server\"} 7\n"), "{text}");
    assert!(text.contains("# TYPE cotcp_connections gauge\n"), "{text}");
}

/// A server that is dropped takes its connections along.
#[tokio::test]
async fn a_dropped_server_ends_its_connections() {
    let server = cotcp::Server::bind("127.0.0.1:0", Config::default()).await.unwrap();
    let (address, handle) = (server.local_addr().unwrap(), server.handle());
    let serving = tokio::spawn(server.serve(sleeper(&Arc::default())));
    let client = Client::connect(address, Config::default()).await.unwrap();
    warm(&client).await;
    let open = {
        let client = client.clone();
        tokio::spawn(async move { client.call("60000").await })
    };
    eventually(|| handle.metrics().stats.calls == 2).await;
    serving.abort();
    assert!(soon(open).await.unwrap().is_err());
    eventually(|| handle.connections() == 0).await;
}
