//! Bodies in parts, both ways, and what becomes of them when one side stops (CO-6, CO-8).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use cotcp::{CallError, Client, Config, Failure, Reply, Request};

use super::support::{serve, soon};

const PART: usize = 10_000;
const PARTS: usize = 500;

fn parts() -> Config {
    Config { parts: true, ..Config::default() }
}

/// Answers each part with the same part.
async fn echo_parts(mut request: Request) -> Result<Reply, Failure> {
    let (mut sender, reply) = Reply::parts();
    tokio::spawn(async move {
        sender.send(request.body.clone()).await?;
        if let Some(mut rest) = request.rest() {
            while let Some(part) = rest.next().await {
                sender.send(part?).await?;
            }
        }
        sender.finish();
        Ok::<_, CallError>(())
    });
    Ok(reply)
}

#[tokio::test]
async fn a_stream_goes_both_ways_at_once() {
    let (address, _handle) = serve(parts(), echo_parts).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    let (mut sender, receiver) = client.request(vec![0; PART]).stream().await.unwrap();
    let sending = tokio::spawn(async move {
        for number in 1..PARTS {
            sender.send(vec![number as u8; PART]).await.unwrap();
        }
        sender.finish();
    });
    let whole = soon(receiver.collect(PART * PARTS)).await.unwrap();
    sending.await.unwrap();
    assert_eq!(whole.len(), PART * PARTS);
    assert!(whole.chunks(PART).enumerate().all(|(number, part)| part.iter().all(|o| *o == number as u8)));
    // The connection is as good as new.
    assert_eq!(soon(client.call("ab")).await.unwrap(), "ab");
}

/// Whole messages beyond 64 KiB, to a server that takes them whole.
#[tokio::test]
async fn large_messages_are_put_together() {
    let echo = |request: Request| async move { Ok::<_, Failure>(request.body) };
    let (address, _handle) = serve(Config::default(), echo).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    for size in [65_535, 65_536, 1 << 20, 16 << 20] {
        let body = Bytes::from(vec![7; size]);
        assert_eq!(soon(client.call(body.clone())).await.unwrap(), body, "{size} octets");
    }
    let error = soon(client.call(vec![7; (16 << 20) + 1])).await.unwrap_err();
    assert_eq!(error, CallError::TooLarge);
}

/// A receiver that does not read stops the sender, whose memory stays bounded (CO-8).
#[tokio::test]
async fn a_slow_receiver_holds_the_sender_back() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let handler = move |_: Request| {
        let sent = Arc::clone(&counter);
        async move {
            let (mut sender, reply) = Reply::parts();
            tokio::spawn(async move {
                for _ in 0..PARTS {
                    sender.send(vec![1; PART]).await?;
                    sent.fetch_add(PART, Relaxed);
                }
                sender.finish();
                Ok::<_, CallError>(())
            });
            Ok::<_, Failure>(reply)
        }
    };
    let (address, _handle) = serve(parts(), handler).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    // Until the version is known, nothing can come in parts.
    soon(client.call("warm")).await.unwrap();
    sent.store(0, Relaxed);
    let receiver = soon(client.request("go").receive()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let held = sent.load(Relaxed);
    assert!(held < PART * PARTS / 4, "{held} octets left though nobody reads");
    // Small calls go on beside it.
    let whole = soon(receiver.collect(PART * PARTS)).await.unwrap();
    assert_eq!(whole.len(), PART * PARTS);
}

/// Who drops the receiver gives the call up: the server's sender is told.
#[tokio::test]
async fn a_dropped_receiver_stops_the_sender() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Request| {
        let tell = tell.clone();
        async move {
            let (mut sender, reply) = Reply::parts();
            tokio::spawn(async move {
                let error = loop {
                    if let Err(error) = sender.send(vec![1; PART]).await {
                        break error;
                    }
                };
                let _ = tell.send(error);
            });
            Ok::<_, Failure>(reply)
        }
    };
    let (address, _handle) = serve(parts(), handler).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    let mut receiver = soon(client.request("go").receive()).await.unwrap();
    let _ = soon(receiver.next()).await;
    drop(receiver);
    assert_eq!(soon(told.recv()).await, Some(CallError::Unknown));
}

/// A sender that is dropped before its end breaks the message off, on both sides.
#[tokio::test]
async fn a_message_that_breaks_off_is_an_error() {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |mut request: Request| {
        let tell = tell.clone();
        async move {
            let rest = request.rest().expect("there is more");
            tell.send(rest.collect(1 << 20).await).unwrap();
            Ok::<_, Failure>("never")
        }
    };
    let (address, _handle) = serve(parts(), handler).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    let (mut sender, receiver) = soon(client.request("begin").stream()).await.unwrap();
    sender.send("more").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(sender);
    assert!(soon(receiver.collect(100)).await.is_err());
    // The handler is dropped or hears of it; either way nothing hangs.
    drop(client);
    if let Ok(Some(result)) = tokio::time::timeout(Duration::from_secs(1), told.recv()).await {
        assert!(result.is_err());
    }
}
