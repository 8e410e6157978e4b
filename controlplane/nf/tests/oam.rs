//! The OAM socket: routes, refusals, and malformed requests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::PathBuf;

use nf::oam::{CallError, Error, Oam, Request, call};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn socket(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("godwit-oam-{test}-{}.sock", std::process::id()))
}

fn routes() -> Oam {
    Oam::new().get("/ues", async |request: Request| Ok(json!({ "limit": request.query("limit") }))).post(
        "/ues/{supi}/deregister",
        async |request: Request| {
            let supi: types::Supi = request.param("supi")?;
            if supi.to_string().ends_with('9') {
                return Err(Error::not_found(format!("{supi} is not registered")));
            }
            Ok(json!({ "supi": supi, "body": request.body() }))
        },
    )
}

#[tokio::test]
async fn routes_answer_and_refuse() {
    let path = socket("routes");
    let server = routes().serve(&path).unwrap();
    assert_eq!(call(&path, "GET", "/ues?limit=3", None).await.unwrap(), json!({ "limit": "3" }));
    let body = json!({ "cause": 7 });
    let route = "/ues/imsi-999700000000001/deregister";
    let answer = call(&path, "POST", route, Some(&body)).await.unwrap();
    assert_eq!(answer, json!({ "supi": "imsi-999700000000001", "body": body }));
    let refused = async |method: &str, route: &str| match call(&path, method, route, None).await {
        Err(CallError::Refused(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused("POST", "/ues/imsi-999700000000009/deregister").await.status, 404);
    assert_eq!(refused("POST", "/ues/bob/deregister").await.status, 400);
    assert_eq!(refused("GET", route).await.status, 405);
    let unknown = refused("GET", "/nothing").await;
    assert!(unknown.status == 404 && unknown.message.contains("POST /ues/{supi}/deregister"), "{unknown}");
    drop(server);
    while path.exists() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(call(&path, "GET", "/ues", None).await, Err(CallError::NotRunning { .. })));
}

#[tokio::test]
async fn nonsense_is_survived() {
    let path = socket("nonsense");
    let _server = routes().serve(&path).unwrap();
    let huge = format!(
        "POST /ues/1/deregister HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n{}",
        "x".repeat(70_000)
    );
    let broken =
        "POST /ues/imsi-999700000000001/deregister HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n{";
    for (text, status) in [("\0\0\0\r\n\r\n", "400"), (huge.as_str(), "400"), (broken, "400")] {
        let mut stream = net::uds::connect(&path).await.unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(text.as_bytes()).await;
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).await.unwrap_or(0);
        let line = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(line.starts_with(&format!("HTTP/1.1 {status}")), "{line}");
    }
    assert_eq!(call(&path, "GET", "/ues", None).await.unwrap(), json!({ "limit": Value::Null }));
}
