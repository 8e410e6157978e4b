//! The northbound API: HTTP/1.1 with JSON under `/v1` (`docs/mec.md`, and `openapi.json`, which it serves). Refusals are problem
//! documents that say what to do.
//!
//! [`read`] makes a [`Call`] of a request without touching anything, so that it can be fuzzed; [`Api::answer`] does it.

use std::sync::Arc;

use net::time::Duration;
use nf::rest::{Request, Response};
use serde_json::{Value, json};
use telemetry::counters::Family;
use tokio::sync::Semaphore;

use crate::config::Host;
use crate::core::{self, Core, lock};
use crate::model::{Fate, Move, User};
use crate::request::{self, MoveRequest, Refused};

static REFUSED: Family = Family::new("orchestrator_rest_refused", "status");

/// Most octets of a request: the users of a move fit.
pub const MAX_BODY: usize = 1 << 20;
/// Longest time for which an answer waits. Connections end after 300 seconds.
const MAX_WAIT_S: u64 = 240;
/// Most answers that wait at once. The other half of the connections is for requests that are answered at once.
const MAX_WAITING: usize = 32;
/// Description of the API.
pub const OPENAPI: &str = include_str!("../openapi.json");

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// `GET /v1/status`
    Status,
    /// `GET /v1/moves`
    Moves,
    /// `POST /v1/moves?wait=SECONDS`
    Begin {
        /// What is asked for.
        request: MoveRequest,
        /// For how many seconds the answer waits for the end.
        wait_s: u64,
    },
    /// `GET /v1/moves/{id}?wait=SECONDS`
    Move {
        /// Its number.
        id: u64,
        /// For how many seconds the answer waits for the end.
        wait_s: u64,
    },
    /// `DELETE /v1/moves/{id}`
    Abort(u64),
    /// `GET /v1/hosts`
    Hosts,
    /// `POST /v1/hosts/{name}/anchor`
    StartAnchor(String),
    /// `DELETE /v1/hosts/{name}/anchor`
    StopAnchor(String),
    /// `GET /v1/ues`
    Users,
    /// `GET /v1/ues/{ue}`
    User(String),
    /// `GET /v1/openapi.json`
    OpenApi,
}

/// Reads a request.
///
/// # Errors
/// The answer that says what is wrong.
pub fn read(request: &Request) -> Result<Call, Box<Response>> {
    let refuse = |status, title: &str, detail: &str| Err(Box::new(Response::problem(status, title, detail)));
    let Some(parts) = request.segments() else {
        return refuse(400, "bad path", "its percent-encoding is broken");
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let wait_s = || match request.query.split('&').find_map(|pair| pair.strip_prefix("wait=")) {
        Some(text) => number(text, "a number of seconds").map(|wait_s| wait_s.min(MAX_WAIT_S)),
        None => Ok(0),
    };
    let call = match (request.method.as_str(), &parts[..]) {
        ("GET", ["v1", "status"]) => Call::Status,
        ("GET", ["v1", "moves"]) => Call::Moves,
        ("POST", ["v1", "moves"]) => {
            let wait_s = wait_s()?;
            let request = serde_json::from_slice(&request.body)
                .map_err(|error| Box::new(Response::problem(400, "bad content", error)))?;
            Call::Begin { request, wait_s }
        }
        ("GET", ["v1", "moves", id]) => {
            Call::Move { id: number(id, "the number of a move")?, wait_s: wait_s()? }
        }
        ("DELETE", ["v1", "moves", id]) => Call::Abort(number(id, "the number of a move")?),
        ("GET", ["v1", "hosts"]) => Call::Hosts,
        ("POST", ["v1", "hosts", name, "anchor"]) => Call::StartAnchor((*name).to_owned()),
        ("DELETE", ["v1", "hosts", name, "anchor"]) => Call::StopAnchor((*name).to_owned()),
        ("GET", ["v1", "ues"]) => Call::Users,
        ("GET", ["v1", "ues", ue]) => Call::User((*ue).to_owned()),
        ("GET", ["v1", "openapi.json"]) => Call::OpenApi,
        (
            _,
            ["v1", "status" | "moves" | "hosts" | "ues" | "openapi.json"]
            | ["v1", "moves" | "ues", _]
            | ["v1", "hosts", _, "anchor"],
        ) => return refuse(405, "no such method", "/v1/openapi.json says which methods this path has"),
        _ => {
            return refuse(
                404,
                "no such resource",
                "there are /v1/moves, hosts, ues, status and openapi.json (docs/mec.md)",
            );
        }
    };
    Ok(call)
}

fn number(text: &str, what: &str) -> Result<u64, Box<Response>> {
    let shown: String = text.chars().take(64).collect();
    text.parse()
        .map_err(|_| Box::new(Response::problem(400, "bad value", format!("`{shown}` is not {what}"))))
}

/// What answers requests.
pub(crate) struct Api {
    core: Arc<Core>,
    waiting: Semaphore,
}

impl Api {
    pub(crate) fn new(core: Arc<Core>) -> Api {
        Api { core, waiting: Semaphore::new(MAX_WAITING) }
    }

    /// Answers a request.
    pub(crate) async fn answer(&self, request: Request) -> Response {
        let response = match read(&request) {
            Ok(call) => self.call(call).await.unwrap_or_else(|refused| problem(&refused)),
            Err(response) => *response,
        };
        if response.status >= 400 {
            REFUSED.inc(&response.status.to_string());
        }
        response
    }

    async fn call(&self, call: Call) -> Result<Response, Refused> {
        let core = &self.core;
        let answer = match call {
            Call::Status => self.status(),
            Call::Moves => {
                let moves: Vec<Value> = core.state().moves.values().map(short).collect();
                json!({"moves": moves})
            }
            Call::Begin { request, wait_s } => {
                // A client that goes away would leave a move in the journal that nobody carries on.
                let id = core.in_any_case(request::create(core.clone(), request)).await?;
                self.wait(id, wait_s).await;
                let one = self.one(id)?;
                let status = if one.state.is_end() { 201 } else { 202 };
                return Ok(Response::made(status, format!("/v1/moves/{id}"), whole(&one)));
            }
            Call::Move { id, wait_s } => {
                self.wait(id, wait_s).await;
                whole(&self.one(id)?)
            }
            Call::Abort(id) => {
                let shared = core.clone();
                let one = core.in_any_case(async move { request::abort(&shared, id).await }).await?;
                return Ok(Response { status: 202, ..Response::ok(whole(&one)) });
            }
            Call::Hosts => {
                let mut hosts = Vec::new();
                for host in &core.config.hosts {
                    hosts.push(self.host(host).await);
                }
                json!({"hosts": hosts})
            }
            Call::StartAnchor(name) => {
                let _turn = core.turn.lock().await;
                let host = self.named(&name)?;
                core.drivers.of(host).start(host).await?;
                self.host(host).await
            }
            Call::StopAnchor(name) => {
                let _turn = core.turn.lock().await;
                let host = self.named(&name)?;
                let users = core.state().users_at(&host.name).len();
                if users > 0 {
                    let detail = format!(
                        "{users} users are on {name}, have state there, or are on the way: move them back first"
                    );
                    return Err(Refused::InTheWay(detail));
                }
                core.drivers.of(host).stop(host).await?;
                self.host(host).await
            }
            Call::Users => {
                let users: Vec<Value> = core.state().users.values().map(user).collect();
                json!({"ues": users})
            }
            Call::User(name) => {
                let address = name.parse().ok();
                let is_meant = |one: &&User| {
                    one.id == name || address.is_some_and(|address| one.addresses.contains(&address))
                };
                let users: Vec<Value> = core.state().users.values().filter(is_meant).map(user).collect();
                if users.is_empty() {
                    let detail = format!("{name} is on its original anchor, or nobody has this name");
                    return Err(Refused::Unknown(detail));
                }
                json!({"ues": users})
            }
            // It is checked by a test.
            Call::OpenApi => serde_json::from_str(OPENAPI).unwrap_or_default(),
        };
        Ok(Response::ok(answer))
    }

    /// Waits for the end of a move, unless many do so already.
    async fn wait(&self, id: u64, wait_s: u64) {
        if let Ok(_place) = self.waiting.try_acquire() {
            core::ended(&self.core, id, Duration::from_secs(wait_s)).await;
        }
    }

    fn one(&self, id: u64) -> Result<Move, Refused> {
        self.core.move_of(id).ok_or_else(|| Refused::Unknown(format!("there is no move {id}")))
    }

    fn named(&self, name: &str) -> Result<&Host, Refused> {
        self.core
            .host(name)
            .ok_or_else(|| Refused::Unknown(format!("there is no edge host `{name}`: GET /v1/hosts")))
    }

    fn status(&self) -> Value {
        let (unfinished, users) = {
            let state = self.core.state();
            (state.unfinished().count(), state.users.len())
        };
        let problem = lock(&self.core.memory).problem.clone();
        json!({"unfinished_moves": unfinished, "ues": users, "problem": problem, "counters": telemetry::counters::snapshot()})
    }

    async fn host(&self, host: &Host) -> Value {
        let runs = self.core.drivers.of(host).is_running(host).await;
        let (on, with_state) = {
            let state = self.core.state();
            let on = state.users.values().filter(|user| user.on.as_ref() == Some(&host.name)).count();
            (on, state.users_at(&host.name).len())
        };
        let alive = lock(&self.core.memory).alive.as_ref().map(|alive| alive.contains(&host.anchor));
        json!({
            "name": host.name, "anchor": host.anchor, "agent": host.agent, "capacity": host.capacity,
            "driver": if host.driver == crate::config::Driver::External { "external" } else { "namespace" },
            "base_stations": host.base_stations, "running": runs.as_ref().ok(), "problem": runs.as_ref().err().map(ToString::to_string),
            "answers": alive, "ues": on, "ues_with_state": with_state,
        })
    }
}

fn user(user: &User) -> Value {
    json!({
        "id": user.id, "addresses": user.addresses, "origin": user.origin, "on": user.on.as_deref().unwrap_or(crate::ORIGIN),
        "waits_for": user.waits_for, "replicas": user.replicas.keys().collect::<Vec<_>>(), "follow": user.follow,
        "base_station": user.place.base_station,
    })
}

/// A move in a list: without its users and its history.
fn short(one: &Move) -> Value {
    let (first, last) = (one.history.first(), one.history.last());
    json!({
        "id": one.id, "to": one.to.as_deref().unwrap_or(crate::ORIGIN), "state": one.state, "reason": one.reason,
        "scheme": one.scheme, "order": one.order, "warm": one.warm, "all_or_none": one.all_or_none, "follow": one.follow,
        "ended": one.state.is_end(), "detail": last.map(|entry| &entry.detail),
        "began_us": first.map(|entry| entry.time_us), "changed_us": last.map(|entry| entry.time_us),
        "counts": {"pending": one.count(Fate::Pending), "moved": one.count(Fate::Moved), "waiting": one.count(Fate::Waiting),
                   "warm": one.count(Fate::Warm), "stays": one.count(Fate::Stays)},
    })
}

/// A move with its users and its history.
fn whole(one: &Move) -> Value {
    let mut value = short(one);
    let of = |user: &crate::model::Moving| {
        json!({"id": user.id, "addresses": user.addresses, "origin": user.origin,
               "from": user.from.as_deref().unwrap_or(crate::ORIGIN), "state": user.state, "why": user.why})
    };
    value["ues"] = one.users.iter().map(of).collect();
    value["history"] = json!(one.history);
    value
}

fn problem(refused: &Refused) -> Response {
    let (status, title) = match refused {
        Refused::Contradiction(_) => (400, "contradiction"),
        Refused::Unknown(_) => (404, "unknown name"),
        Refused::InTheWay(_) => (409, "in the way"),
        Refused::TooMany(_) => (413, "too many"),
        Refused::Controller(_) => (503, "no controller"),
        Refused::Driver(_) => (500, "driver failed"),
        Refused::State(_) => (500, "state not written"),
    };
    Response::problem(status, title, refused)
}

/// Reads octets as a request: method, path, query and content, each but the last ended by a line feed. The fuzzer starts here.
pub fn fuzz(octets: &[u8]) {
    let mut parts = octets.splitn(4, |octet| *octet == b'\n');
    let mut text = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let (method, path, query) = (text(), text(), text());
    let body = parts.next().unwrap_or_default().to_vec().into();
    if let Ok(Call::Begin { wait_s, .. } | Call::Move { wait_s, .. }) =
        read(&Request { method, path, query, body })
    {
        assert!(wait_s <= MAX_WAIT_S);
    }
}
