//! How connections end and come back, and what the calls on them hear (CO-10).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use cotcp::{CallError, Client, ClientConfig, Code, Config, ConnectionError, Failure, Request, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::support::{echo, eventually, now, serve, soon};

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn v1() -> Config {
    Config { negotiate: false, ..Config::default() }
}

/// Reads a frame of version 1.
async fn read(stream: &mut TcpStream) -> (u32, Vec<u8>) {
    let id = stream.read_u32().await.unwrap();
    let mut body = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut body).await.unwrap();
    (id, body)
}

async fn write(stream: &mut TcpStream, id: u32, body: &[u8]) {
    let mut frame = id.to_be_bytes().to_vec();
    frame.extend_from_slice(&(body.len() as u16).to_be_bytes());
    frame.extend_from_slice(body);
    stream.write_all(&frame).await.unwrap();
}

/// A connection that dies with calls in flight: what was answered is answered, the rest fails at once with the reason,
/// and nothing is answered twice.
#[tokio::test]
async fn calls_in_flight_fail_at_once_with_the_reason() {
    let (listener, address) = listen().await;
    let client = Client::connect(address, v1()).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    let ended = Arc::new(AtomicUsize::new(0));
    let calls: Vec<_> = (0..10u8)
        .map(|number| {
            let (client, ended) = (client.clone(), Arc::clone(&ended));
            tokio::spawn(async move {
                let result = client.call(vec![number]).await;
                ended.fetch_add(1, Relaxed);
                result
            })
        })
        .collect();
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.push(read(&mut peer).await);
    }
    // Two answers, one of them twice, then the connection is reset in the middle of a frame.
    for (id, body) in [&ids[3], &ids[7], &ids[3]] {
        write(&mut peer, *id, body).await;
    }
    peer.write_all(&[0, 0, 0]).await.unwrap();
    eventually(|| ended.load(Relaxed) == 2).await;
    let reset = now();
    drop(peer);
    let mut answered = Vec::new();
    for call in calls {
        match soon(call).await.unwrap() {
            Ok(body) => answered.push(body[0]),
            Err(CallError::Connection { error, sent: true }) => {
                assert!(matches!(error, ConnectionError::Truncated | ConnectionError::Io(_)), "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(reset.elapsed() < Duration::from_secs(1));
    assert_eq!(answered, [ids[3].1[0], ids[7].1[0]]);
    assert_eq!(client.metrics().stats.late, 1);
}

/// After the server is back, so are the calls; meanwhile they wait, and then say why they cannot go on.
#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let (listener, address) = listen().await;
    let config = ClientConfig { wait_for_connection: Duration::from_millis(100), ..v1().into() };
    let client = Client::connect(address, config).await.unwrap();
    drop(listener.accept().await.unwrap());
    drop(listener);
    eventually(|| client.metrics().connections.failed > 0).await;
    let error = soon(client.call("nobody there")).await.unwrap_err();
    let refused = ConnectionError::Io(std::io::ErrorKind::ConnectionRefused);
    assert_eq!(error, CallError::Connection { error: refused, sent: false });
    assert!(error.not_processed());
    let listener = TcpListener::bind(address).await.unwrap();
    let (mut peer, _) = soon(listener.accept()).await.unwrap();
    let call = client.call("again");
    let answer = async {
        let (id, body) = read(&mut peer).await;
        write(&mut peer, id, &body).await;
    };
    assert_eq!(soon(async { tokio::join!(call, answer).0 }).await.unwrap(), "again");
}

/// A version 1 server that closes on a HELLO is spoken to without one (SPEC §2).
#[tokio::test]
async fn a_server_that_closes_on_a_hello_is_a_version_1_server() {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        loop {
            let (mut peer, _) = listener.accept().await.unwrap();
            loop {
                let (id, body) = read(&mut peer).await;
                if id == u32::MAX {
                    break;
                }
                write(&mut peer, id, &body).await;
            }
        }
    });
    let client = Client::connect(address, Config::default()).await.unwrap();
    eventually(|| client.metrics().connections.fell_back == 1 && client.connected() == 1).await;
    assert_eq!(soon(client.call("ab")).await.unwrap(), "ab");
    let error = soon(client.request("c").send_one_way()).await.unwrap_err();
    assert_eq!(error, CallError::NeedsVersion2);
}

/// Calls beside one another on several connections; one of them dying takes only its own calls along.
#[tokio::test]
async fn a_pool_spreads_calls_and_survives_a_connection() {
    let (listener, address) = listen().await;
    let config = ClientConfig { connections: 3, burst: 1, ..v1().into() };
    let client = Client::connect(address, config).await.unwrap();
    let mut peers = Vec::new();
    for _ in 0..3 {
        peers.push(soon(listener.accept()).await.unwrap().0);
    }
    eventually(|| client.connected() == 3).await;
    let calls: Vec<_> = (0..6u8)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { client.call(vec![number]).await })
        })
        .collect();
    // Two on each: the least busy one takes the next.
    let mut frames = Vec::new();
    for peer in &mut peers {
        frames.push([soon(read(peer)).await, soon(read(peer)).await]);
    }
    drop(peers.remove(0));
    let lost: Vec<u8> = frames.remove(0).iter().map(|(_, body)| body[0]).collect();
    for (peer, frames) in peers.iter_mut().zip(&frames) {
        for (id, body) in frames {
            write(peer, *id, body).await;
        }
    }
    for (number, call) in calls.into_iter().enumerate() {
        let result = soon(call).await.unwrap();
        assert_eq!(result.is_err(), lost.contains(&(number as u8)), "call {number}: {result:?}");
    }
}

/// A call that no server has begun with is made again, and only such a call.
#[tokio::test]
async fn what_was_not_processed_is_repeated() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let handler = move |request: Request| {
        let number = counter.fetch_add(1, Relaxed);
        async move {
            match (&request.body[..], number) {
                (b"busy", 0) => Err(Failure::overloaded()),
                (b"fails", _) => Err(Failure::new(Code::APPLICATION, "no")),
                _ => Ok(request.body),
            }
        }
    };
    let (address, _handle) = serve(Config::default(), handler).await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    assert_eq!(soon(client.request("busy").priority(1).send()).await.unwrap(), "busy");
    assert_eq!(asked.load(Relaxed), 2);
    let error = soon(client.request("fails").send()).await.unwrap_err();
    let text = "no".into();
    assert_eq!(error, CallError::Remote { code: Code::APPLICATION, not_processed: false, text });
    assert_eq!(asked.load(Relaxed), 3);
    assert_eq!(client.metrics().connections.repeated, 1);
}

/// With the last handle gone the connections close; a closed client takes no calls.
#[tokio::test]
async fn a_client_closes() {
    let (address, handle) =
        serve(Config::default(), |request: Request| async move { Ok::<_, Failure>(request.body) }).await;
    let client =
        Client::connect(address, ClientConfig { connections: 4, ..Default::default() }).await.unwrap();
    eventually(|| handle.connections() == 4).await;
    let other = client.clone();
    soon(client.close()).await;
    eventually(|| handle.connections() == 0).await;
    assert_eq!(soon(other.call("late")).await, Err(CallError::GoingAway));
    let client = Client::connect(address, Config::default()).await.unwrap();
    assert_eq!(soon(client.call("ab")).await.unwrap(), "ab");
    drop(client);
    eventually(|| handle.connections() == 0).await;
}

/// Over Unix sockets, and over a stream that somebody else made.
#[tokio::test]
async fn any_stream_will_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let server = cotcp::Server::bind_unix(&path, Config::default()).unwrap();
    let handle = server.handle();
    let serving =
        tokio::spawn(server.serve(|request: Request| async move { Ok::<_, Failure>(request.body) }));
    let client = Client::connect(path.as_path(), Config::default()).await.unwrap();
    assert_eq!(soon(client.call(vec![1; 100_000])).await.unwrap(), vec![1; 100_000]);
    let stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let over = Client::over(Stream::other(stream), Config::default());
    assert_eq!(soon(over.call("ab")).await.unwrap(), "ab");
    handle.drain();
    soon(serving).await.unwrap();
    assert!(!path.exists());
    assert!(soon(over.call("c")).await.is_err());
}

/// Nobody answers: the caller is told, not left waiting.
#[tokio::test]
async fn an_address_without_a_server_is_an_error() {
    let (listener, address) = listen().await;
    drop(listener);
    assert!(Client::connect(address, Config::default()).await.is_err());
    assert!(Client::connect("unix:/nowhere/at/all", Config::default()).await.is_err());
    assert!(Client::connect(echo().await.to_string(), Config::default()).await.is_ok());
}

/// A peer that is there no more, though its connection is: found by a PING, and the calls are told (CO-10).
#[tokio::test]
async fn a_silent_peer_is_given_up() {
    let (listener, address) = listen().await;
    let config = Config {
        ping_after: Some(Duration::from_millis(50)),
        ping_timeout: Duration::from_millis(50),
        ..Config::default()
    };
    let client = Client::connect(address, config).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    // The server's HELLO, and nothing more.
    write(&mut peer, u32::MAX, b"\0CoTCP\x02\x02").await;
    let error = soon(client.call("anybody there?")).await.unwrap_err();
    assert_eq!(error, CallError::Connection { error: ConnectionError::Silent, sent: true });
}

/// What a peer sends against the protocol ends the connection with the reason, and the client tries again (CO-13).
#[tokio::test]
async fn a_peer_that_breaks_the_protocol_is_left() {
    let (listener, address) = listen().await;
    let client = Client::connect(address, Config::default()).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    write(&mut peer, u32::MAX, b"\0CoTCP\x02\x02").await;
    let call = {
        let client = client.clone();
        tokio::spawn(async move { client.call("x").await })
    };
    eventually(|| client.metrics().stats.calls == 1).await;
    // A frame of a type that does not exist.
    write(&mut peer, 1 << 31 | 1, &[77, 0]).await;
    let error = soon(call).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::Connection { error: ConnectionError::Protocol(_), .. }), "{error}");
    assert_eq!(client.metrics().stats.violations, 1);
    soon(listener.accept()).await.unwrap();
}

/// A stream that came from elsewhere cannot be made again: calls fail at once after its end.
#[tokio::test]
async fn a_stream_that_was_given_ends_for_good() {
    let (ours, theirs) = tokio::io::duplex(1000);
    let client = Client::over(Stream::other(ours), v1());
    drop(theirs);
    eventually(|| client.connected() == 0).await;
    let start = now();
    assert!(soon(client.call("x")).await.is_err());
    assert!(now() - start < Duration::from_secs(1));
}

/// Both sides over a pipe in memory, which takes only a few octets at a time.
#[tokio::test]
async fn a_narrow_pipe_will_do() {
    let (ours, theirs) = tokio::io::duplex(37);
    let echo = |request: Request| async move { Ok::<_, Failure>(request.body) };
    let serving = tokio::spawn(cotcp::serve_stream(Stream::other(theirs), Config::default(), echo));
    let client = Client::over(Stream::other(ours), Config::default());
    for size in [0, 1, 36, 37, 38, 5000, 100_000] {
        assert_eq!(soon(client.call(vec![5; size])).await.unwrap(), vec![5; size], "{size} octets");
    }
    soon(client.close()).await;
    let reason = soon(serving).await.unwrap();
    assert!(matches!(reason, ConnectionError::Closed | ConnectionError::Local), "{reason}");
}
