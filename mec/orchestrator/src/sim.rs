//! The edge, simulated for tests: a controller that behaves as its API says, with failures on demand, and drivers without processes.
//!
//! Each call is a point at which the orchestrator may be killed. [`Sim`] keeps, for every call, what the journal had and what the edge was
//! like before and after it; so a test can begin a new life at each of them ([`Sim::points`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use net::time::{self, Duration};
use nf::rest::{Request, Response, RestServer};
use serde_json::{Value, json};

use crate::config::{Config, Host};
use crate::core::lock;
use crate::driver::{Doing, Driver, Drivers};
use crate::{ORIGIN, Orchestrator};

pub(crate) const GW1: &str = "gw1";
/// Another original, with one user, whom no agent serves as long as it serves users of `gw1`.
pub(crate) const GW9: &str = "gw9";
pub(crate) const GW9_USER: u32 = 900;

/// What the edge is like.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Edge {
    /// Users of `gw1`: address and base station, by number.
    pub(crate) users: BTreeMap<u32, User>,
    /// Diversions by identifier: all that was posted.
    pub(crate) diversions: BTreeMap<String, Value>,
    /// Replicas: anchor and user.
    pub(crate) replicas: BTreeSet<(String, u32)>,
    /// Anchors that answer.
    pub(crate) alive: BTreeSet<String>,
    /// Hosts whose anchor was started by the driver.
    pub(crate) running: BTreeSet<String>,
    /// Users that a clone refuses.
    pub(crate) clone_refuses: BTreeSet<u32>,
    /// Users that the controller does not divert.
    pub(crate) divert_refuses: BTreeSet<u32>,
    /// Copies are made by an agent that nobody names.
    pub(crate) other_agent: bool,
    /// How often all users were listed.
    pub(crate) lists: usize,
    /// Whether the last diversions were to keep packets in order.
    pub(crate) in_order: bool,
    /// How often users have attached again.
    pub(crate) attaches: u32,
    /// The last request that was prepared, and whether the last one that was made is it.
    pub(crate) prepared: Value,
    pub(crate) was_prepared: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct User {
    pub(crate) base_station: Option<IpAddr>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// 503, and nothing is done.
    Refused503,
    /// 409, and nothing is done.
    Refused409,
    /// 422, and nothing is done.
    Refused422,
    /// 400, and nothing is done.
    Refused400,
    /// No answer, and nothing is done.
    Lost,
    /// It is done, but the answer is lost.
    AnswerLost,
    /// It is done when nobody waits for it any more.
    Late,
    /// The controller restarts before it, and has forgotten replicas.
    ForgetsReplicas,
    /// The controller restarts before it, and has forgotten diversions.
    ForgetsDiversions,
    /// The target dies before it.
    TargetDies,
    /// The target dies after it.
    TargetDiesAfter,
}

pub(crate) const FAILURES: [Failure; 11] = [
    Failure::Refused503,
    Failure::Refused409,
    Failure::Refused422,
    Failure::Refused400,
    Failure::Lost,
    Failure::AnswerLost,
    Failure::Late,
    Failure::ForgetsReplicas,
    Failure::ForgetsDiversions,
    Failure::TargetDies,
    Failure::TargetDiesAfter,
];

/// A moment: what the journal has, and what the edge is like.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    pub(crate) journal: Vec<u8>,
    pub(crate) edge: Edge,
    pub(crate) call: String,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) edge: Edge,
    /// Before and after each changing call.
    pub(crate) moments: Vec<Moment>,
    /// Changing calls so far.
    calls: usize,
    /// What happens to which call, and to how many of them from there.
    pub(crate) failure: Option<(usize, usize, Failure)>,
}

/// The simulated edge.
#[derive(Debug, Clone)]
pub(crate) struct Sim {
    pub(crate) inner: Arc<Mutex<Inner>>,
    folder: Arc<tempfile::TempDir>,
    server: Arc<RestServer>,
    times: Value,
}

fn address(user: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a2d_0000 + user))
}

pub(crate) fn id(user: u32) -> String {
    format!("imsi-00101{user:010}")
}

pub(crate) fn base_station(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

fn number(name: &str) -> Option<u32> {
    if let Ok(IpAddr::V4(address)) = name.parse() {
        return Some(u32::from(address) - 0x0a2d_0000);
    }
    name.strip_prefix("imsi-00101")?.parse().ok()
}

impl Edge {
    /// Users 2 and so on at `gw1`, with the base station 1; each tenth has two addresses.
    pub(crate) fn with_users(count: u32) -> Edge {
        let of = |user: u32| {
            let mut addresses = vec![address(user)];
            if user.is_multiple_of(10) {
                addresses.push(address(user + 0x8000));
            }
            (user, User { base_station: Some(base_station(1)), addresses })
        };
        Edge {
            users: (2..2 + count).map(of).collect(),
            alive: [GW1.to_owned(), "gw3".to_owned()].into(),
            ..Edge::default()
        }
    }

    /// The anchor of a user; none: two anchors have a part of it.
    pub(crate) fn anchor(&self, user: u32) -> Option<String> {
        let of = |address: &IpAddr| {
            let diverted = self.diversions.get(&format!("{GW1}~{address}"));
            diverted.map_or(GW1.to_owned(), |one| one["to"].as_str().unwrap_or_default().to_owned())
        };
        let all: BTreeSet<String> = self.users[&user].addresses.iter().map(of).collect();
        (all.len() == 1).then(|| all.into_iter().next().unwrap_or_default())
    }

    fn diversion(user: u32, address: IpAddr, station: IpAddr, to: &str) -> Value {
        json!({"ue": address, "from": GW1, "to": to, "base_station": station, "confirmed_by": "replication",
               "tunnels": [{"uplink": user, "downlink": user + 1000}]})
    }

    /// A user attaches again: its tunnels and its address are others, and copies of it are ended.
    pub(crate) fn attaches_again(&mut self, user: u32) {
        self.attaches += 1;
        let address = address(user + 0x100 * self.attaches);
        if let Some(user) = self.users.get_mut(&user) {
            user.addresses = vec![address];
        }
        self.replicas.retain(|(_, number)| *number != user);
    }

    fn dies(&mut self, anchor: &str) {
        self.alive.remove(anchor);
        self.running.retain(|host| anchor_of(host) != anchor);
        self.replicas.retain(|(at, _)| at != anchor);
    }

    /// A user in a list.
    fn listed((number, user): (&u32, &User)) -> Value {
        json!({"number": number, "id": id(*number), "addresses": user.addresses, "base_station": user.base_station,
               "state": if user.base_station.is_some() { "active" } else { "idle" },
               "tunnels": if user.base_station.is_some() { json!([{"uplink": number, "downlink": number + 1000}]) } else { json!([]) }})
    }

    /// A page of the users.
    fn list(&self, query: &str) -> Response {
        let value = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.parse::<u32>().ok());
        let (behind, most) = (value("behind=").unwrap_or(0), value("most=").unwrap_or(100) as usize);
        let users: Vec<Value> = self.users.range(behind + 1..).take(most).map(Self::listed).collect();
        Response::ok(json!({"ues": users, "total": self.users.len()}))
    }

    /// Users by their names.
    fn find(users: &BTreeMap<u32, User>, body: &Value) -> Response {
        let names: BTreeSet<&str> =
            body["ues"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert!((1..=10_000).contains(&names.len()), "{} names", names.len());
        let is_meant = |(number, user): &(&u32, &User)| {
            names.contains(&id(**number).as_str())
                || user.addresses.iter().any(|address| names.contains(&address.to_string().as_str()))
        };
        Response::ok(json!({"ues": users.iter().filter(is_meant).map(Self::listed).collect::<Vec<_>>()}))
    }

    /// The users of the other original.
    fn others() -> BTreeMap<u32, User> {
        let user = User { base_station: Some(base_station(1)), addresses: vec![address(GW9_USER)] };
        [(GW9_USER, user)].into()
    }

    /// Copies of users at a clone.
    fn replicate(&mut self, body: &Value) -> Response {
        let problem = |status, title: &str| Response::problem(status, title, title);
        let to = body["to"].as_str().unwrap_or_default().to_owned();
        if !self.alive.contains(&to) {
            return problem(409, "the agent does not answer");
        }
        if body["from"] == GW9 {
            return problem(422, "the agent serves gw1");
        }
        if self.other_agent {
            return problem(422, "copies at gw2 are made by another agent");
        }
        if body["scheme"] == "naive" {
            self.replicas.extend(self.users.keys().map(|number| (to.clone(), *number)));
        }
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        for name in body["ues"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let user = number(name).and_then(|number| Some((number, self.users.get(&number)?)));
            match user {
                Some((number, user)) if !self.clone_refuses.contains(&number) => {
                    self.replicas.insert((to.clone(), number));
                    for address in &user.addresses {
                        let diversion =
                            user.base_station.map(|station| Self::diversion(number, *address, station, &to));
                        done.push(json!({"id": name, "ue": address, "diversion": diversion}));
                    }
                }
                _ => refused.push(json!({"ue": name, "why": "the clone refuses"})),
            }
        }
        Response::ok(json!({"done": done, "refused": refused, "took_ms": 1.0, "octets": 58}))
    }

    fn serve(&mut self, request: &Request) -> Response {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        let problem = |status, title: &str| Response::problem(status, title, title);
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/v1/diversions") => {
                let with_id = |(id, one): (&String, &Value)| {
                    let mut one = one.clone();
                    one["id"] = json!(id);
                    one
                };
                let all: Vec<Value> = self.diversions.iter().map(with_id).collect();
                Response::ok(json!({"diversions": all}))
            }
            ("GET", "/v1/anchors") => {
                let of = |name: &&str| json!({"name": name, "alive": self.alive.contains(*name)});
                let anchors: Vec<Value> = [GW1, "gw2", "gw3"].iter().map(of).collect();
                Response::ok(json!({"anchors": anchors}))
            }
            ("GET", "/v1/replication") => Response::ok(
                json!({"anchors": [{"name": GW1, "ues": self.users.len()}, {"name": GW9, "ues": 1}]}),
            ),
            ("GET", "/v1/replication/gw1/ues") => {
                self.lists += 1;
                self.list(&request.query)
            }
            ("POST", "/v1/replication/gw1/ues/find") => Self::find(&self.users, &body),
            ("POST", "/v1/replication/gw9/ues/find") => Self::find(&Self::others(), &body),
            ("GET", "/v1/replicas") => {
                let of = |to: &&str| {
                    let count = self.replicas.iter().filter(|(at, _)| at == *to).count();
                    json!({"from": GW1, "to": to, "agent": "127.0.0.1:1", "ues": count, "connected": true})
                };
                let replicas: Vec<Value> = ["gw2", "gw3"].iter().map(of).collect();
                Response::ok(json!({"replicas": replicas}))
            }
            ("POST", "/v1/replicas") => self.replicate(&body),
            ("POST", "/v1/replicas/remove") => {
                let to = text("to");
                if body.get("ues").is_none() {
                    self.replicas.retain(|(at, _)| *at != to);
                }
                for name in body["ues"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if let Some(number) = number(name) {
                        self.replicas.remove(&(to.clone(), number));
                    }
                }
                Response::ok(json!({}))
            }
            ("POST", "/v1/diversions/prepare") => {
                self.prepared = body;
                Response::ok(json!({"prepared": 1}))
            }
            ("POST", "/v1/diversions") => {
                self.was_prepared = body == self.prepared;
                self.in_order = request.query == "order=keep";
                let all = body.as_array().cloned().unwrap_or_default();
                for one in &all {
                    let user = one["tunnels"][0]["uplink"].as_u64().unwrap_or_default() as u32;
                    if self.divert_refuses.contains(&user) {
                        return problem(422, "impossible for this switch");
                    }
                    if !self.alive.contains(one["to"].as_str().unwrap_or_default()) {
                        return problem(409, "not yet");
                    }
                }
                for one in all {
                    let id = format!("{GW1}~{}", one["ue"].as_str().unwrap_or_default());
                    self.diversions.insert(id, one);
                }
                Response::ok(json!({"changed": []}))
            }
            ("POST", "/v1/diversions/remove") => {
                for id in body["ids"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    self.diversions.remove(id);
                }
                Response::ok(json!({"changed": []}))
            }
            _ => problem(404, "no such resource"),
        }
    }
}

/// Serves a call, with the failure that is due.
async fn answer(inner: Arc<Mutex<Inner>>, journal: PathBuf, request: Request) -> Response {
    let changes = request.method == "POST" && !request.path.ends_with("/find");
    let moment = |inner: &mut Inner, when: &str| {
        let journal = std::fs::read(&journal).unwrap_or_default();
        let call = format!("{when} {} {}", request.path, inner.calls);
        inner.moments.push(Moment { journal, edge: inner.edge.clone(), call });
    };
    let (failure, response) = {
        let mut inner = lock(&inner);
        let mut failure = None;
        if changes {
            moment(&mut inner, "before");
            let number = inner.calls;
            inner.calls += 1;
            failure = inner
                .failure
                .and_then(|(from, count, failure)| (from..from + count).contains(&number).then_some(failure));
        }
        match failure {
            Some(Failure::ForgetsReplicas) => inner.edge.replicas.clear(),
            Some(Failure::ForgetsDiversions) => inner.edge.diversions.clear(),
            Some(Failure::TargetDies) => inner.edge.dies("gw2"),
            _ => {}
        }
        let response = match failure {
            Some(Failure::Refused503) => Response::problem(503, "application stopped", "stopped"),
            Some(Failure::Refused409) => Response::problem(409, "not yet", "not yet"),
            Some(Failure::Refused422) => Response::problem(422, "impossible", "never"),
            Some(Failure::Refused400) => Response::problem(400, "contradiction", "no"),
            Some(Failure::Lost | Failure::Late) => Response::ok(Value::Null),
            _ => inner.edge.serve(&request),
        };
        if failure == Some(Failure::TargetDiesAfter) {
            inner.edge.dies("gw2");
        }
        if changes {
            moment(&mut inner, "after");
        }
        (failure, response)
    };
    match failure {
        Some(Failure::Lost | Failure::AnswerLost) => time::sleep(Duration::from_secs(5)).await,
        Some(Failure::Late) => {
            let request = request.clone();
            tokio::spawn(async move {
                time::sleep(Duration::from_millis(u64::from(CALL_MS) + 20)).await;
                lock(&inner).edge.serve(&request);
            });
            time::sleep(Duration::from_secs(5)).await;
        }
        _ => {}
    }
    response
}

const CALL_MS: u32 = 100;

/// The driver: what runs is part of the edge, and answers at once.
struct SimDriver(Arc<Mutex<Inner>>);

impl Driver for SimDriver {
    fn start<'a>(&'a self, host: &'a Host) -> Doing<'a, ()> {
        Box::pin(async {
            let mut inner = lock(&self.0);
            inner.edge.running.insert(host.name.clone());
            inner.edge.alive.insert(host.anchor.clone());
            Ok(())
        })
    }

    fn is_running<'a>(&'a self, host: &'a Host) -> Doing<'a, Option<bool>> {
        Box::pin(async { Ok(Some(lock(&self.0).edge.running.contains(&host.name))) })
    }

    fn stop<'a>(&'a self, host: &'a Host) -> Doing<'a, ()> {
        Box::pin(async {
            let mut inner = lock(&self.0);
            inner.edge.running.remove(&host.name);
            inner.edge.alive.remove(&host.anchor);
            Ok(())
        })
    }
}

impl Sim {
    /// An edge with a controller; the journal is in a folder of its own.
    pub(crate) async fn new(edge: Edge) -> Sim {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let inner = Arc::new(Mutex::new(Inner { edge, ..Inner::default() }));
        let (shared, journal) = (inner.clone(), folder.path().join("moves"));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let server =
            RestServer::start(any, 8 << 20, move |request| answer(shared.clone(), journal.clone(), request));
        // Longer than anything takes on a machine with much to do.
        let times = json!({"call_ms": 5000, "start_ms": 10_000, "replicate_ms": 10_000, "divert_ms": 10_000, "tidy_ms": 10_000,
                           "look_ms": 15, "retry_ms": 20});
        Sim { inner, folder, server: Arc::new(server.await.unwrap()), times }
    }

    /// The orchestrator gives up soon, for runs in which much fails.
    pub(crate) fn hasty(mut self) -> Sim {
        self.times = json!({"call_ms": CALL_MS, "start_ms": 300, "replicate_ms": 300, "divert_ms": 300, "tidy_ms": 200, "look_ms": 15,
                            "retry_ms": 5});
        self
    }

    /// A controller and a journal as they were at a moment.
    pub(crate) async fn at(moment: &Moment) -> Sim {
        let sim = Sim::new(moment.edge.clone()).await.hasty();
        std::fs::write(sim.journal(), &moment.journal).unwrap();
        sim
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.folder.path().join("moves")
    }

    /// Two hosts: `edge1` with `gw2`, which is started, and `edge2` with `gw3`, which others have started.
    pub(crate) fn config(&self) -> Config {
        let config = json!({
            "rest": "127.0.0.1:0", "controller": format!("http://{}", self.server.address()), "state": self.journal(),
            "hosts": [
                {"name": "edge1", "anchor": "gw2", "agent": "127.0.0.1:1", "driver": {"namespace": "x"}, "configuration": "x",
                 "nfs": ["spgw"], "capacity": 50, "base_stations": ["10.0.0.1"]},
                {"name": "edge2", "anchor": "gw3", "agent": "127.0.0.1:2", "base_stations": ["10.0.0.2"]},
            ],
            "times": self.times,
        });
        serde_json::from_value(config).unwrap()
    }

    pub(crate) async fn orchestrator(&self) -> Orchestrator {
        self.orchestrator_with(self.config()).await
    }

    pub(crate) async fn orchestrator_with(&self, config: Config) -> Orchestrator {
        let drivers = Drivers::new(SimDriver(self.inner.clone()));
        Orchestrator::start_with(config, drivers).await.unwrap()
    }

    pub(crate) fn edge(&self) -> Edge {
        lock(&self.inner).edge.clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Edge)) {
        change(&mut lock(&self.inner).edge);
    }

    /// The next changing call, and so many behind it, fail.
    pub(crate) fn fail(&self, after: usize, count: usize, failure: Failure) {
        let mut inner = lock(&self.inner);
        inner.failure = Some((inner.calls + after, count, failure));
    }

    /// Every point at which the orchestrator may be killed: before and after each call, and at each line that the journal got between
    /// two calls, whole and torn.
    pub(crate) fn points(&self) -> Vec<Moment> {
        let moments = lock(&self.inner).moments.clone();
        let last = Moment {
            journal: std::fs::read(self.journal()).unwrap(),
            edge: self.edge(),
            call: "at the end".to_owned(),
        };
        let mut points: Vec<Moment> = Vec::new();
        for (moment, next) in moments.iter().zip(moments.iter().skip(1).chain([&last])) {
            points.push(moment.clone());
            if !next.journal.starts_with(&moment.journal) {
                continue;
            }
            for at in moment.journal.len()..next.journal.len() {
                if next.journal[at] == b'\n' {
                    for length in [at, at + 1] {
                        let journal = next.journal[..length].to_vec();
                        let call = format!("journal of {length} octets, {}", moment.call);
                        points.push(Moment { journal, edge: moment.edge.clone(), call });
                    }
                }
            }
        }
        points.push(last);
        points
    }
}

/// Asks an orchestrator.
pub(crate) async fn ask(
    orchestrator: &Orchestrator,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Response {
    let limit = Duration::from_secs(20);
    nf::rest::call(limit, orchestrator.rest(), method, path, body.as_ref()).await.unwrap()
}

/// Begins a move and waits for its end.
pub(crate) async fn do_move(orchestrator: &Orchestrator, body: Value) -> Value {
    loop {
        let answer = ask(orchestrator, "POST", "/v1/moves?wait=20", Some(body.clone())).await;
        // 503: on a machine with much to do the controller may not answer in time; 409: a look may move a user itself.
        if ![409, 503].contains(&answer.status) {
            assert_eq!(answer.status, 201, "{}", answer.body);
            return answer.body;
        }
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until moves have ended and the edge agrees with what the orchestrator says; panics with the difference if that does not come.
pub(crate) async fn settled(sim: &Sim, orchestrator: &Orchestrator, context: &str) {
    let mut difference = String::new();
    // A request that takes effect late may still come.
    let is_late = matches!(lock(&sim.inner).failure, Some((.., Failure::Late)));
    let (mut calm, enough) = (0, if is_late { 10 } else { 2 });
    for _ in 0..1000 {
        time::sleep(Duration::from_millis(15)).await;
        match differs(sim, orchestrator).await {
            None => {
                calm += 1;
                if calm == enough {
                    return;
                }
            }
            Some(found) => (difference, calm) = (found, 0),
        }
    }
    let moves = lock(&sim.inner).moments.len();
    let status = ask(orchestrator, "GET", "/v1/status", None).await.body;
    let last = ask(orchestrator, "GET", "/v1/moves", None).await.body;
    panic!("{context}: {difference}; {moves} moments, problem {}, {}", status["problem"], last["moves"]);
}

/// What the orchestrator says that is not so.
async fn differs(sim: &Sim, orchestrator: &Orchestrator) -> Option<String> {
    let moves = ask(orchestrator, "GET", "/v1/moves", None).await.body;
    let unfinished = moves["moves"].as_array()?.iter().find(|one| one["ended"] == false);
    if let Some(one) = unfinished {
        return Some(format!("{one} has not ended"));
    }
    let users = ask(orchestrator, "GET", "/v1/ues", None).await.body;
    let edge = sim.edge();
    let mut replicas = BTreeSet::new();
    let mut on: BTreeMap<u32, String> = BTreeMap::new();
    for user in users["ues"].as_array()? {
        let number = number(user["id"].as_str()?)?;
        let host = user["on"].as_str()?;
        on.insert(number, if host == ORIGIN { GW1.to_owned() } else { anchor_of(host) });
        for host in user["replicas"].as_array()? {
            replicas.insert((anchor_of(host.as_str()?), number));
        }
    }
    for number in edge.users.keys() {
        let said = on.get(number).map_or(GW1, String::as_str);
        let is = edge.anchor(*number);
        if is.as_deref() != Some(said) {
            return Some(format!("user {number} is on {is:?}, and the orchestrator says {said}"));
        }
        if said != GW1 && !edge.replicas.contains(&(said.to_owned(), *number)) {
            return Some(format!("user {number} is on {said} without state there"));
        }
        if said != GW1 && !edge.alive.contains(said) {
            return Some(format!("user {number} is on {said}, which is dead"));
        }
    }
    let addresses: BTreeSet<String> = edge
        .users
        .values()
        .flat_map(|user| &user.addresses)
        .map(|address| format!("{GW1}~{address}"))
        .collect();
    if let Some(id) = edge.diversions.keys().find(|id| !addresses.contains(*id)) {
        return Some(format!("{id} is nobody's diversion any more"));
    }
    (replicas != edge.replicas)
        .then(|| format!("replicas are {:?}, and the orchestrator says {replicas:?}", edge.replicas))
}

fn anchor_of(host: &str) -> String {
    if host == "edge1" { "gw2".to_owned() } else { "gw3".to_owned() }
}
