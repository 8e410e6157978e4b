//! `godwit mec orchestrator run` is killed with SIGKILL at many instants of a move, against a controller that is simulated here. Its own
//! tests begin at every point of a move (`mec/orchestrator/src/tests.rs`); this one has the real process and the real file.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use net::process::{Child, Command};
use nf::rest::{Request, Response, RestServer, call};
use serde_json::{Value, json};

const USERS: u32 = 5;

#[derive(Default)]
struct Edge {
    diversions: BTreeMap<String, Value>,
    replicas: BTreeMap<String, ()>,
}

fn answer(edge: &Mutex<Edge>, request: &Request) -> Response {
    let mut edge = edge.lock().unwrap();
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let texts = |key: &str| -> Vec<String> { serde_json::from_value(body[key].clone()).unwrap_or_default() };
    Response::ok(match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/v1/anchors") => json!({"anchors": [{"name": "gw2", "alive": true}]}),
        ("GET", "/v1/diversions") => json!({"diversions": edge.diversions.values().collect::<Vec<_>>()}),
        ("GET", "/v1/replication") => json!({"anchors": [{"name": "gw1"}]}),
        ("POST", "/v1/replication/gw1/ues/find") => {
            let of = |number: u32| json!({"number": number, "id": format!("imsi-{number}"), "addresses": [format!("10.45.0.{number}")]});
            let is_meant = |number: &u32| texts("ues").contains(&format!("imsi-{number}"));
            json!({"ues": (1..=USERS).filter(is_meant).map(of).collect::<Vec<_>>()})
        }
        ("GET", "/v1/replicas") => {
            json!({"replicas": [{"from": "gw1", "to": "gw2", "ues": edge.replicas.len()}]})
        }
        ("POST", "/v1/replicas") => {
            let of = |id: String| {
                edge.replicas.insert(id.clone(), ());
                let address = id.replace("imsi-", "10.45.0.");
                let diversion = json!({"id": format!("gw1~{address}"), "ue": address, "to": "gw2", "confirmed_by": "replication"});
                json!({"id": id, "ue": address, "diversion": diversion})
            };
            json!({"done": texts("ues").into_iter().map(of).collect::<Vec<_>>(), "refused": []})
        }
        ("POST", "/v1/replicas/remove") => {
            texts("ues").iter().for_each(|id| _ = edge.replicas.remove(id));
            json!({})
        }
        ("POST", "/v1/diversions") => {
            for one in body.as_array().into_iter().flatten() {
                edge.diversions.insert(one["id"].as_str().unwrap().to_owned(), one.clone());
            }
            json!({})
        }
        ("POST", "/v1/diversions/remove") => {
            texts("ids").iter().for_each(|id| _ = edge.diversions.remove(id));
            json!({})
        }
        _ => return Response::problem(404, "no such resource", &request.path),
    })
}

async fn start(config: &std::path::Path, rest: SocketAddr) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(config.with_extension("log")).unwrap();
    let child =
        Command::new(env!("CARGO_BIN_EXE_godwit")).args(["mec", "orchestrator", "run", "-c"]).arg(config);
    let child = child.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    for _ in 0..1000 {
        if call(Duration::from_secs(5), rest, "GET", "/v1/status", None).await.is_ok() {
            return child;
        }
        net::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{}", std::fs::read_to_string(config.with_extension("log")).unwrap_or_default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_orchestrator_leaves_users_wholly_on_one_anchor() {
    let folder = tempfile::tempdir().unwrap();
    let edge = Arc::new(Mutex::new(Edge::default()));
    let shared = edge.clone();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let controller = RestServer::start(any, 1 << 20, move |request| {
        let shared = shared.clone();
        async move {
            // As long as a controller with switches takes.
            net::time::sleep(Duration::from_millis(3)).await;
            answer(&shared, &request)
        }
    });
    let controller = controller.await.unwrap();
    let rest = std::net::TcpListener::bind(any).unwrap().local_addr().unwrap();
    let config = folder.path().join("edge.yaml");
    let text = format!(
        "run_dir: {0}\nmec:\n  orchestrator:\n    rest: {rest}\n    controller: http://{1}\n    state: {0}/moves\n    \
         hosts: [{{name: edge1, anchor: gw2, agent: \"127.0.0.1:1\", driver: external}}]\n    times: {{look_ms: 50, retry_ms: 20}}\n",
        folder.path().display(),
        controller.address()
    );
    std::fs::write(&config, text).unwrap();
    let mut running = start(&config, rest).await;
    for round in 0..24u64 {
        let to = if round % 2 == 0 { "edge1" } else { "origin" };
        let users: Vec<String> = (1..=USERS).map(|user| format!("imsi-{user}")).collect();
        let body = json!({"ues": users, "to": to});
        let asking = tokio::spawn(async move {
            call(Duration::from_secs(5), rest, "POST", "/v1/moves", Some(&body)).await
        });
        net::time::sleep(Duration::from_millis(round * 2)).await;
        running.signal(net::process::Signal::SIGKILL);
        running.wait().await.unwrap();
        let _ = asking.await;
        running = start(&config, rest).await;
        let mut moves = Value::Null;
        for _ in 0..500 {
            moves = call(Duration::from_secs(5), rest, "GET", "/v1/moves", None).await.unwrap().body;
            if moves["moves"].as_array().unwrap().iter().all(|one| one["ended"] == true) {
                break;
            }
            net::time::sleep(Duration::from_millis(10)).await;
        }
        let said = call(Duration::from_secs(5), rest, "GET", "/v1/ues", None).await.unwrap().body;
        let there = said["ues"].as_array().unwrap().iter().filter(|user| user["on"] == "edge1").count();
        let edge = edge.lock().unwrap();
        let found = (edge.diversions.len(), edge.replicas.len());
        assert!(
            found == (there, there) && [0, USERS as usize].contains(&there),
            "round {round}: {found:?}, {said}, {moves}"
        );
    }
}
