//! HTTP/2 + JSON against other implementations: what is refused, with which cause, and which failures
//! do no harm.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Response};
use sbi::{
    CallError, Client, ClientConfig, ProblemDetails, Router, Server, ServerConfig, Target,
    model::{
        nrf::{AccessTokenErr, NfType},
        smf::SmContextUpdatedData,
    },
    op::{nrf::RequestToken, smf::*, udm::*},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const TOKEN_REQUEST: &str = "grant_type=client_credentials&scope=nnrf-disc\
    &nfInstanceId=4947a69a-f61b-4bc1-b9da-47c9c5d14b64";

/// A server with a few operations; its state counts the handlers that are reached.
async fn server(config: ServerConfig) -> (Server, Arc<AtomicUsize>) {
    let reached = Arc::new(AtomicUsize::new(0));
    let router = Router::new(reached.clone())
        .on::<GetNssai>(async |reached: Arc<AtomicUsize>, _| {
            reached.fetch_add(1, SeqCst);
            Err(ProblemDetails::user_not_found())
        })
        .on::<RequestToken>(async |_, _| Err(AccessTokenErr::new("invalid_client", "a stranger")))
        .on::<GetSmData>(async |_, _| Err(ProblemDetails::default()))
        .on::<ConfirmAuth>(async |reached: Arc<AtomicUsize>, request: ConfirmAuthRequest| {
            reached.fetch_add(1, SeqCst);
            Ok(sbi::Created { location: "/imsi-1/auth-events/1".into(), body: request.body })
        })
        .on::<UpdateAmf>(async |reached: Arc<AtomicUsize>, _| {
            reached.fetch_add(1, SeqCst);
            Ok(())
        })
        .on::<UpdateSmContext>(async |reached: Arc<AtomicUsize>, request: UpdateSmContextRequest| {
            reached.fetch_add(1, SeqCst);
            Ok(Some(SmContextUpdatedData { n1_sm_msg: request.body.n1_sm_msg, ..Default::default() }))
        });
    (sbi::serve(router, "127.0.0.1:0".parse().unwrap(), config).await.unwrap(), reached)
}

async fn connect(at: SocketAddr) -> SendRequest<Bytes> {
    let stream = net::tcp::connect(at, Duration::from_secs(5)).await.unwrap();
    let (handle, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    handle.ready().await.unwrap()
}

/// Sends a request like any HTTP/2 client.
async fn send(
    at: SocketAddr,
    method: &str,
    path: &str,
    content_type: Option<&str>,
    body: impl Into<Bytes>,
) -> (u16, HeaderMap, Value) {
    let mut request = Request::builder().method(method).uri(format!("http://{at}{path}"));
    if let Some(content_type) = content_type {
        request = request.header("content-type", content_type);
    }
    let body: Bytes = body.into();
    let (response, mut stream) =
        connect(at).await.send_request(request.body(()).unwrap(), body.is_empty()).unwrap();
    if !body.is_empty() {
        stream.send_data(body, true).unwrap();
    }
    let (head, mut content) = response.await.unwrap().into_parts();
    let mut octets = Vec::new();
    while let Some(chunk) = content.data().await {
        octets.extend_from_slice(&chunk.unwrap());
    }
    (head.status.as_u16(), head.headers, serde_json::from_slice(&octets).unwrap_or(Value::Null))
}

const EVENTS: &str = "/nudm-ueau/v1/imsi-999700000000001/auth-events";

fn event() -> Value {
    json!({
        "nfInstanceId": "4947a69a-f61b-4bc1-b9da-47c9c5d14b64", "success": true, "timeStamp": "2026-01-01T00:00:00Z",
        "authType": "5G_AKA", "servingNetworkName": "5G:mnc070.mcc999.3gppnetwork.org",
        "attributeOfALaterRelease": {"x": [1, 2, 3]},
    })
}

#[tokio::test]
async fn mistakes_get_the_status_and_cause_of_ts_29_500() {
    let (server, reached) = server(ServerConfig::default()).await;
    let at = server.address();
    let without = |name: &str| {
        let mut event = event();
        event.as_object_mut().unwrap().remove(name);
        event.to_string()
    };
    let wrong = json!({ "success": "yes" }).to_string();
    let big = vec![b' '; ServerConfig::default().max_body_bytes + 1];
    type Case = (&'static str, &'static str, Option<&'static str>, Vec<u8>, u16, &'static str);
    let cases: Vec<Case> = vec![
        ("POST", EVENTS, Some(JSON), b"{".to_vec(), 400, "INVALID_MSG_FORMAT"),
        ("POST", EVENTS, Some(JSON), b"\xff\xfe".to_vec(), 400, "INVALID_MSG_FORMAT"),
        (
            "POST",
            EVENTS,
            Some(JSON),
            [br#"{"x":"#.to_vec(), vec![b'['; 100_000]].concat(),
            400,
            "INVALID_MSG_FORMAT",
        ),
        ("POST", EVENTS, Some(JSON), wrong.into_bytes(), 400, "MANDATORY_IE_INCORRECT"),
        ("POST", EVENTS, Some(JSON), without("authType").into_bytes(), 400, "MANDATORY_IE_MISSING"),
        ("POST", EVENTS, Some(JSON), vec![], 400, "MANDATORY_IE_MISSING"),
        ("POST", EVENTS, None, event().to_string().into_bytes(), 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("POST", EVENTS, Some("text/xml"), b"<a/>".to_vec(), 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("POST", EVENTS, Some("application/merge-patch+json"), b"{}".to_vec(), 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("POST", EVENTS, Some(JSON), big, 413, "REQUEST_TOO_LARGE"),
        ("GET", EVENTS, None, vec![], 405, "METHOD_NOT_ALLOWED"),
        ("GET", EVENTS, Some(JSON), vec![b' '; 100_000], 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/nothing", Some(JSON), vec![b' '; 100_000], 404, "RESOURCE_URI_STRUCTURE_NOT_FOUND"),
        ("TRACE", EVENTS, None, vec![], 405, "METHOD_NOT_ALLOWED"),
        (
            "POST",
            "/nudm-ueau/v1/suci-x/auth-events",
            Some(JSON),
            event().to_string().into_bytes(),
            400,
            "MANDATORY_IE_INCORRECT",
        ),
        (
            "POST",
            "/nudm-ueau/v1/%zz/auth-events",
            Some(JSON),
            event().to_string().into_bytes(),
            400,
            "MANDATORY_IE_INCORRECT",
        ),
        (
            "GET",
            "/nudm-sdm/v2/imsi-999700000000001/sm-data?single-nssai=1-00",
            None,
            vec![],
            400,
            "INVALID_QUERY_PARAM",
        ),
        (
            "GET",
            "/nudm-sdm/v2/imsi-999700000000001/nothing",
            None,
            vec![],
            404,
            "RESOURCE_URI_STRUCTURE_NOT_FOUND",
        ),
        ("GET", "/nudm-sdm/v9/imsi-999700000000001/nssai", None, vec![], 400, "INVALID_API"),
        ("GET", "/", None, vec![], 404, "RESOURCE_URI_STRUCTURE_NOT_FOUND"),
        ("GET", "/favicon.ico", None, vec![], 404, "RESOURCE_URI_STRUCTURE_NOT_FOUND"),
    ];
    for (method, path, content_type, body, status, cause) in cases {
        let shown = String::from_utf8_lossy(&body).chars().take(60).collect::<String>();
        let (got, headers, problem) = send(at, method, path, content_type, body).await;
        assert_eq!(
            (got, problem["cause"].as_str()),
            (status, Some(cause)),
            "{method} {path} {content_type:?} {shown}"
        );
        assert_eq!(problem["status"], status);
        assert_eq!(headers["content-type"], "application/problem+json");
        if status == 405 {
            assert_eq!(headers["allow"], "POST");
        }
        if cause.starts_with("MANDATORY_IE_INCORRECT") || cause.starts_with("INVALID_QUERY") {
            assert!(problem["invalidParams"][0]["param"].is_string(), "{problem}");
        }
    }
    assert_eq!(reached.load(SeqCst), 0, "no handler saw any of it");
    // A handler that forgets to set a status still fails.
    let (status, ..) = send(at, "GET", "/nudm-sdm/v2/imsi-999700000000001/sm-data", None, "").await;
    assert_eq!(status, 500);
    let (status, headers, body) =
        send(at, "POST", EVENTS, Some("application/json; charset=utf-8"), event().to_string()).await;
    assert_eq!((status, &body["success"]), (201, &Value::Bool(true)), "unknown attributes are ignored");
    assert_eq!(headers["location"], format!("http://{at}/nudm-ueau/v1/imsi-1/auth-events/1"));
    let patch =
        json!({ "guami": {"plmnId": {"mcc": "999", "mnc": "70"}, "amfId": "020040"}, "purgeFlag": true });
    let path = "/nudm-uecm/v1/imsi-999700000000001/registrations/amf-3gpp-access";
    let (status, _, body) =
        send(at, "PATCH", path, Some("application/merge-patch+json"), patch.to_string()).await;
    assert_eq!((status, body), (204, Value::Null));
}

#[tokio::test]
async fn multipart_from_others_is_read_and_broken_multipart_refused() {
    let (server, _) = server(ServerConfig::default()).await;
    let at = server.address();
    let path = "/nsmf-pdusession/v1/sm-contexts/1/modify";
    let related = Some("multipart/related; boundary=b1; type=\"application/json\"");
    let root = "Content-Type: application/json\r\n\r\n{\"n1SmMsg\":{\"contentId\":\"n1\"}}\r\n";
    let nas = "Content-Type: application/vnd.3gpp.5gnas\r\nContent-ID: <n1>\r\n\r\nNAS\r\n";
    // Forms that other implementations write: quoted or bare, with preamble, angle brackets, headers in
    // any case and order.
    let good = [
        format!("--b1\r\n{root}--b1\r\n{nas}--b1--"),
        format!("preamble\r\n--b1\r\n{root}--b1\r\n{nas}--b1--\r\nepilogue"),
        format!(
            "--b1  \r\n{root}--b1\r\ncontent-id:n1\r\nX: y\r\ncontent-type:application/vnd.3gpp.5gnas\r\n\r\nNAS\r\n--b1--\r\n"
        ),
    ];
    for body in good {
        let (status, headers, _) = send(at, "POST", path, related, body.clone()).await;
        assert_eq!(status, 200, "{body}");
        assert!(headers["content-type"].to_str().unwrap().starts_with("multipart/related; boundary="));
    }
    let bad = [
        String::new(),
        "--b1".into(),
        "--b1--".into(),
        "--b1\r\n--b1--".into(),
        format!("--b2\r\n{root}--b2--"),
        format!("--b1\r\n{root}"),
        format!("--b1\r\n{root}--b1\r\n{nas}"),
        format!("--b1\r\n{nas}--b1\r\n{root}--b1--"),
        format!("--b1\r\n{root}--b1--"),
        format!("--b1\r\n{root}--b1\r\n\r\nNAS\r\n--b1--"),
        format!("--b1\r\n{root}{}--b1--", format!("--b1\r\n{nas}").repeat(100)),
    ];
    for body in bad {
        let (status, _, problem) = send(at, "POST", path, related, body.clone()).await;
        assert_eq!(status, 400, "{body}: {problem}");
    }
    let whole = format!("--b1\r\n{root}--b1\r\n{nas}--b1--");
    for cut in 0..whole.len() {
        let (status, ..) = send(at, "POST", path, related, whole[..cut].to_owned()).await;
        assert_eq!(status, 400, "cut at {cut}");
    }
    for content_type in
        ["multipart/related", "multipart/related; boundary=", "multipart/related; boundary=\"\""]
    {
        let (status, ..) = send(at, "POST", path, Some(content_type), whole.clone()).await;
        assert_eq!(status, 400, "{content_type}");
    }
}

#[tokio::test]
async fn garbage_slow_and_greedy_peers_do_not_stop_the_server() {
    let config = ServerConfig {
        max_connections: 4,
        max_requests: 2,
        read_timeout: Duration::from_millis(200),
        ..ServerConfig::default()
    };
    let (server, reached) = server(config).await;
    let at = server.address();
    let probe = "/nudm-sdm/v2/imsi-999700000000001/nssai";
    for garbage in [
        &b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..],
        b"\0\0\0\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut stream = net::tcp::connect(at, Duration::from_secs(5)).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert_eq!(send(at, "GET", probe, None, "").await.0, 404);
    }
    // Requests whose content never arrives are ended, and their places freed.
    let mut handle = connect(at).await;
    let (first, _stream_1) = handle.send_request(unfinished(at), false).unwrap();
    let (second, _stream_2) = handle.send_request(unfinished(at), false).unwrap();
    let statuses = (first.await.unwrap().status().as_u16(), second.await.unwrap().status().as_u16());
    assert_eq!(statuses, (408, 408));
    assert_eq!(send(at, "GET", probe, None, "").await.0, 404);
    // More connections than allowed: the surplus is closed, the others stay.
    let before = reached.load(SeqCst);
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(net::tcp::connect(at, Duration::from_secs(5)).await.unwrap());
    }
    net::time::sleep(Duration::from_millis(300)).await;
    drop(idle);
    net::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(send(at, "GET", probe, None, "").await.0, 404);
    assert_eq!(reached.load(SeqCst), before + 1);
}

#[tokio::test]
async fn idle_connections_of_strangers_shut_nobody_out() {
    let config = ServerConfig {
        max_connections: 8,
        max_connections_per_address: 4,
        stranger_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_millis(900),
        ..ServerConfig::default()
    };
    let (server, _) = server(config).await;
    let at = server.address();
    let probe = "/nudm-sdm/v2/imsi-999700000000001/nssai";
    // A connection of an admitted caller stays, whatever comes.
    let mut known = connect(at).await;
    let mut ask = async || {
        let request = Request::get(format!("http://{at}{probe}")).body(()).unwrap();
        Some(known.send_request(request, true).ok()?.0.await.ok()?.status().as_u16())
    };
    assert_eq!(ask().await, Some(404));
    let mut idle = Vec::new();
    for _ in 0..50 {
        idle.push(net::tcp::connect(at, Duration::from_secs(5)).await.unwrap());
        assert_eq!(send(at, "GET", probe, None, "").await.0, 404, "with {} idle", idle.len());
    }
    assert_eq!(ask().await, Some(404));
    // A stranger without a request is disconnected, also one whose request's head never ends; an
    // admitted caller only after a long silence.
    let mut slow = net::tcp::connect(at, Duration::from_secs(5)).await.unwrap();
    slow.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\0\0\0\0\x01\x82")
        .await
        .unwrap();
    net::time::sleep(Duration::from_millis(600)).await;
    let mut rest = Vec::new();
    let ended = net::time::timeout(Duration::from_secs(5), slow.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection stays");
    assert_eq!(ask().await, Some(404));
    net::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(ask().await, None, "silent for too long");
    // Our client opens another connection by itself.
    let client = Client::new(ClientConfig::default());
    let get = || GetNssaiRequest { supi: "imsi-999700000000001".parse().unwrap(), plmn_id: None, body: () };
    for _ in 0..2 {
        assert!(client.call::<GetNssai>(at, get()).await.unwrap_err().is("USER_NOT_FOUND"));
        net::time::sleep(Duration::from_millis(1500)).await;
    }
}

/// The head of a request whose content comes later, or never.
fn unfinished(at: SocketAddr) -> Request<()> {
    Request::post(format!("http://{at}{EVENTS}")).header("content-type", JSON).body(()).unwrap()
}

#[tokio::test]
async fn more_requests_than_allowed_are_refused_at_once() {
    // Long enough for the slowest machine: the first two must be waiting when the third comes.
    let read_timeout = Duration::from_secs(60);
    let (server, reached) =
        server(ServerConfig { max_requests: 2, read_timeout, ..ServerConfig::default() }).await;
    let at = server.address();
    let mut handle = connect(at).await;
    let (_first, _stream_1) = handle.send_request(unfinished(at), false).unwrap();
    let (_second, mut stream_2) = handle.send_request(unfinished(at), false).unwrap();
    let probe = format!("http://{at}/nudm-sdm/v2/imsi-999700000000001/nssai");
    let request = || Request::get(&probe).body(()).unwrap();
    let (third, _) = handle.send_request(request(), true).unwrap();
    assert_eq!(third.await.unwrap().status(), 503, "no room for a third");
    assert_eq!(reached.load(SeqCst), 0);
    // A request that its client cancels frees its place.
    stream_2.send_reset(h2::Reason::CANCEL);
    for _ in 0..500 {
        let (again, _) = handle.send_request(request(), true).unwrap();
        if again.await.unwrap().status() == 404 {
            return;
        }
        net::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a cancelled request keeps its place");
}

/// Requests without proof have places of their own, and each connection has few: strangers who never end theirs keep
/// neither those out who have a token nor those who ask for one, and content that nobody will read is not waited for.
#[tokio::test]
async fn unfinished_requests_of_strangers_take_no_place_of_others() {
    let read_timeout = Duration::from_secs(60);
    let (server, _) = server(ServerConfig { max_requests: 2, read_timeout, ..ServerConfig::default() }).await;
    let at = server.address();
    let unfinished =
        |path| Request::post(format!("http://{at}{path}")).header("content-type", FORM).body(()).unwrap();
    let mut held = Vec::new();
    for _ in 0..60 {
        let mut stranger = connect(at).await;
        for _ in 0..8 {
            held.push(stranger.send_request(unfinished("/oauth2/token"), false).unwrap());
        }
        // No such resource: the answer does not wait for content, since the places for that are taken.
        let (answer, content) = stranger.send_request(unfinished("/nowhere"), false).unwrap();
        let answer = net::time::timeout(Duration::from_secs(20), answer).await.expect("an answer at once");
        assert_eq!(answer.unwrap().status(), 404);
        held.push((stranger.send_request(unfinished("/nowhere"), false).unwrap().0, content));
    }
    let probe = "/nudm-sdm/v2/imsi-999700000000001/nssai";
    assert_eq!(send(at, "GET", probe, None, "").await.0, 404, "reaches the handler");
    let (status, _, refusal) = send(at, "POST", "/oauth2/token", Some(FORM), TOKEN_REQUEST).await;
    assert_eq!((status, &refusal["error"]), (400, &json!("invalid_client")));
    // A form of a quarter of a megabyte is no request for a token.
    assert_eq!(send(at, "POST", "/oauth2/token", Some(FORM), vec![b'x'; 40_000]).await.0, 413);
}

/// A peer that answers every request with one fixed response.
async fn fixed_peer(status: u16, content_type: &'static str, body: &'static [u8]) -> SocketAddr {
    let listener = net::tcp::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            tokio::spawn(async move {
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    let mut response = Response::builder().status(status);
                    if !content_type.is_empty() {
                        response = response.header("content-type", content_type);
                    }
                    let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
                    stream.send_data(Bytes::from_static(body), true).unwrap();
                }
            });
        }
    });
    at
}

#[tokio::test]
async fn the_client_tells_nonsense_from_refusal() {
    let client = Client::new(ClientConfig { max_body_bytes: 1000, ..ClientConfig::default() });
    let call = async |status, content_type, body| {
        let at = fixed_peer(status, content_type, body).await;
        let request =
            GetNssaiRequest { supi: "imsi-999700000000001".parse().unwrap(), plmn_id: None, body: () };
        client.call::<GetNssai>(at, request).await.map(|_| ()).unwrap_err()
    };
    static BIG: [u8; 2000] = [b' '; 2000];
    for (status, content_type, body) in [
        (200, JSON, &b"{"[..]),
        (200, JSON, b"{}"),
        (200, JSON, b""),
        (200, "text/html", b"<html>"),
        (200, JSON, &BIG),
        (302, "", b""),
    ] {
        let error = call(status, content_type, body).await;
        assert!(matches!(error, CallError::Malformed { .. }), "{status} {content_type}: {error}");
    }
    for (status, content_type, body, cause) in [
        (
            404,
            "application/problem+json",
            &br#"{"cause":"USER_NOT_FOUND","status":999}"#[..],
            "USER_NOT_FOUND",
        ),
        (503, "text/html", b"<html>", ""),
        (500, "", b"", ""),
        (403, "application/problem+json", b"not json", ""),
    ] {
        let error = call(status, content_type, body).await;
        assert_eq!((error.status(), error.is(cause)), (Some(status), true), "{error}");
    }
}

#[tokio::test]
async fn a_refused_request_is_tried_once_more_and_a_lost_one_never() {
    let listener = net::tcp::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let at = listener.local_addr().unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    tokio::spawn(async move {
        // First request refused, second answered; then every connection is cut in the middle of a request.
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let count = count.clone();
            tokio::spawn(async move {
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    match count.fetch_add(1, SeqCst) {
                        0 => respond.send_reset(h2::Reason::REFUSED_STREAM),
                        1 => {
                            _ = respond
                                .send_response(Response::builder().status(404).body(()).unwrap(), true)
                                .unwrap()
                        }
                        _ => return,
                    }
                }
            });
        }
    });
    let client = Client::new(ClientConfig::default());
    let request =
        || GetNssaiRequest { supi: "imsi-999700000000001".parse().unwrap(), plmn_id: None, body: () };
    assert_eq!(client.call::<GetNssai>(at, request()).await.unwrap_err().status(), Some(404));
    assert_eq!(seen.load(SeqCst), 2);
    let error = client.call::<GetNssai>(at, request()).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
    assert_eq!(seen.load(SeqCst), 3, "nobody knows whether it was processed: not repeated");
}

#[tokio::test]
async fn configured_peers_need_no_nrf() {
    let (server, reached) = server(ServerConfig::default()).await;
    let peers = [(NfType::Udm, server.address().into())].into();
    let client = Client::new(ClientConfig { peers, ..ClientConfig::default() });
    let request = GetNssaiRequest { supi: "imsi-999700000000001".parse().unwrap(), plmn_id: None, body: () };
    assert!(client.call::<GetNssai>(Target::Discover, request).await.unwrap_err().is("USER_NOT_FOUND"));
    assert_eq!(reached.load(SeqCst), 1);
}

#[tokio::test]
async fn a_panicking_handler_loses_its_own_request_only() {
    let router = Router::new(Arc::new(()))
        // Without the panic hook: printing a backtrace with symbols takes seconds on a slow machine,
        // and the client would time out.
        .on::<GetSmData>(async |_, _| std::panic::resume_unwind(Box::new("on purpose")))
        .on::<GetAmData>(async |_, _| {
            net::time::sleep(Duration::from_millis(100)).await;
            Err(ProblemDetails::user_not_found())
        });
    let server = sbi::serve(router, "127.0.0.1:0".parse().unwrap(), ServerConfig::default()).await.unwrap();
    let at = server.address();
    let supi: types::Supi = "imsi-999700000000001".parse().unwrap();
    let client = Client::new(ClientConfig::default());
    let slow = {
        let client = client.clone();
        let request = GetAmDataRequest { supi, plmn_id: None, body: () };
        tokio::spawn(async move { client.call::<GetAmData>(at, request).await })
    };
    net::time::sleep(Duration::from_millis(20)).await;
    let request = GetSmDataRequest { supi, single_nssai: None, dnn: None, plmn_id: None, body: () };
    let error = client.call::<GetSmData>(at, request).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
    assert!(slow.await.unwrap().unwrap_err().is("USER_NOT_FOUND"), "the request beside it is answered");
}

#[tokio::test]
async fn thousands_of_calls_that_time_out_at_once_cost_nobody_else() {
    let router = Router::new(Arc::new(()))
        .on::<GetAmData>(async |_, _| {
            net::time::sleep(Duration::from_secs(2)).await;
            Err(ProblemDetails::user_not_found())
        })
        .on::<GetNssai>(async |_, _| Err(ProblemDetails::user_not_found()));
    let server = sbi::serve(router, "127.0.0.1:0".parse().unwrap(), ServerConfig::default()).await.unwrap();
    let at = server.address();
    let client = Client::new(ClientConfig { timeout: Duration::from_millis(500), ..ClientConfig::default() });
    let supi: types::Supi = "imsi-999700000000001".parse().unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..3000 {
        let client = client.clone();
        let request = GetAmDataRequest { supi, plmn_id: None, body: () };
        calls.spawn(async move { client.call::<GetAmData>(at, request).await.unwrap_err() });
    }
    let errors = calls.join_all().await;
    let timeouts = errors.iter().filter(|error| matches!(error, CallError::Timeout { .. })).count();
    assert_eq!(timeouts, 3000, "{:?}", errors.iter().find(|e| !matches!(e, CallError::Timeout { .. })));
    // The client's connection still works, after the server has handled three thousand cancelled
    // requests.
    let mut last = None;
    for _ in 0..20 {
        let request = GetNssaiRequest { supi, plmn_id: None, body: () };
        last = Some(client.call::<GetNssai>(at, request).await.unwrap_err());
        if !matches!(last, Some(CallError::Timeout { .. })) {
            break;
        }
    }
    assert!(last.as_ref().is_some_and(|error| error.is("USER_NOT_FOUND")), "{last:?}");
    let counters = telemetry::counters::snapshot();
    let broken = counters
        .get("sbi_server_connection_errors")
        .map(|c| c["values"]["protocol"].clone())
        .unwrap_or_default();
    // Another test opens one connection that sends garbage after a valid preface.
    assert!(broken.as_u64().unwrap_or(0) <= 2, "{counters:?}");
}

#[tokio::test]
async fn a_client_prepares_for_peers_that_are_there() {
    let (server, reached) = server(ServerConfig::default()).await;
    let client = |root: sbi::ApiRoot| {
        let peers = [(NfType::Udm, root)].into();
        Client::new(ClientConfig { peers, ..ClientConfig::default() })
    };
    client(server.address().into()).prepare::<GetNssai>().await.unwrap();
    assert_eq!(reached.load(SeqCst), 0, "no request is sent");
    assert!(client("http://127.0.0.1:1".parse().unwrap()).prepare::<GetNssai>().await.is_err());
    assert!(Client::new(ClientConfig::default()).prepare::<GetNssai>().await.is_err());
}
