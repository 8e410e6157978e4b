//! The northbound API: HTTP/1.1 with JSON under `/v1` (`docs/edge.md` lists it). Refusals are problem documents that say what to do.
//!
//! [`read`] makes a [`Call`] of a request without touching anything, so that it can be fuzzed; [`Api::answer`] does it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nf::rest::{Request, Response};
use replication::replicator::Listed;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use telemetry::counters::Family;

use crate::application::Applications;
use crate::capture::Store;
use crate::config::Config;
use crate::diverting::explain::{self, Question, Way};
use crate::diverting::model::{Diversion, Refusal, Tunnel};
use crate::diverting::{Diverting, Done, Order};
use crate::replicas::{Replication, Unwanted, Wanted};
use crate::rule::App;
use crate::switch::{CommitError, Fabric, SwitchView};

static REFUSED: Family = Family::new("controller_rest_refused", "status");

/// Most octets of a request: 10,000 diversions fit.
pub const MAX_BODY: usize = 8 << 20;
/// Most diversions of a request.
const MAX_AT_ONCE: usize = 20_000;
/// Most users that are looked up at once, and octets of the request.
const MAX_NAMES: usize = 10_000;
const MAX_NAMES_BODY: usize = 1 << 20;
/// Most captured messages of an answer.
const MAX_MESSAGES: usize = 1000;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// `GET /v1/status`
    Status,
    /// `GET /v1/switches`
    Switches,
    /// `GET /v1/anchors`
    Anchors,
    /// `GET /v1/diversions`
    Diversions,
    /// `POST /v1/diversions?order=keep`: one, or an array that is done as a whole.
    Divert(Arc<[Diversion]>, Order),
    /// `POST /v1/diversions/prepare`: the same content.
    Prepare(Arc<[Diversion]>),
    /// `DELETE /v1/diversions/{id}` and `POST /v1/diversions/remove`
    Undivert(Removal),
    /// `GET /v1/ues`
    Users,
    /// `GET /v1/ues/{address}`
    Explain(Asked),
    /// `GET /v1/applications`
    Applications,
    /// `POST /v1/applications/{name}/start` and `…/stop`
    Application {
        /// Which one.
        app: App,
        /// Whether it is to run.
        run: bool,
    },
    /// `GET /v1/replication`
    Replication,
    /// `GET /v1/replication/{anchor}/ues`
    Sessions {
        /// The anchor's name.
        anchor: String,
        /// Those with a higher number.
        behind: Option<u32>,
        /// At most so many.
        most: usize,
    },
    /// `POST /v1/replication/{anchor}/ues/find`
    Find {
        /// The anchor's name.
        anchor: String,
        /// Users, by address or id.
        ues: Vec<String>,
    },
    /// `GET /v1/replicas`
    Replicas,
    /// `POST /v1/replicas`
    Replicate(Wanted),
    /// `POST /v1/replicas/remove`
    Unreplicate(Unwanted),
    /// `GET /v1/captures`
    Captures,
    /// `GET /v1/captures/{anchor}?behind=0&most=100`
    Messages {
        /// Address of the anchor.
        anchor: IpAddr,
        /// Only messages with a higher number.
        behind: u64,
        /// At most so many.
        most: usize,
    },
    /// `GET /v1/events?from=1`
    Events {
        /// The first number.
        from: u64,
    },
}

/// What is undiverted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Removal {
    /// By id.
    pub ids: Vec<String>,
    /// Everything of these users.
    pub ues: Vec<IpAddr>,
    /// Whether the order of packets is kept.
    pub order: Order,
}

/// A user whose way is asked for; where it is, if it is not diverted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The user's address.
    pub ue: IpAddr,
    /// Its base station.
    pub base_station: Option<String>,
    /// Its anchor.
    pub from: Option<String>,
    /// Its TEID towards the anchor.
    pub teid: Option<u32>,
}

/// Reads a request.
///
/// # Errors
/// The answer that says what is wrong.
pub fn read(request: &Request) -> Result<Call, Box<Response>> {
    let refuse =
        |status, title: &str, detail: String| Err(Box::new(Response::problem(status, title, detail)));
    let query = query(request);
    let Some(parts) = request.segments() else {
        return refuse(400, "bad path", "its percent-encoding is broken".to_owned());
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let call = match (request.method.as_str(), &parts[..]) {
        ("GET", ["v1", "status"]) => Call::Status,
        ("GET", ["v1", "switches"]) => Call::Switches,
        ("GET", ["v1", "anchors"]) => Call::Anchors,
        ("GET", ["v1", "diversions"]) => Call::Diversions,
        ("POST", ["v1", "diversions"]) => Call::Divert(read_diversions(&request.body)?, order(&query)?),
        ("POST", ["v1", "diversions", "prepare"]) => Call::Prepare(read_diversions(&request.body)?),
        ("POST", ["v1", "diversions", "remove"]) => {
            let removal: Removal = json_of(&request.body)?;
            if removal.ids.len() + removal.ues.len() > MAX_AT_ONCE {
                return refuse(413, "too many", format!("at most {MAX_AT_ONCE} at once"));
            }
            Call::Undivert(removal)
        }
        ("DELETE", ["v1", "diversions", id]) => {
            let (ids, order) = (vec![(*id).to_owned()], order(&query)?);
            Call::Undivert(Removal { ids, order, ..Removal::default() })
        }
        ("GET", ["v1", "ues"]) => Call::Users,
        ("GET", ["v1", "ues", ue]) => Call::Explain(Asked {
            ue: value(ue, "a user's address")?,
            base_station: query.get("base_station").map(|name| (*name).to_owned()),
            from: query.get("from").map(|name| (*name).to_owned()),
            teid: query.get("teid").map(|teid| value(teid, "a TEID in decimal digits")).transpose()?,
        }),
        ("GET", ["v1", "applications"]) => Call::Applications,
        ("POST", ["v1", "applications", name, verb @ ("start" | "stop")]) => match App::named(name) {
            Some(app) => Call::Application { app, run: *verb == "start" },
            None => {
                let known = App::ALL.map(App::name).join(", ");
                return refuse(404, "no such application", format!("there are {known}"));
            }
        },
        ("GET", ["v1", "captures"]) => Call::Captures,
        ("GET", ["v1", "captures", anchor]) => Call::Messages {
            anchor: value(anchor, "an anchor's address")?,
            behind: query.get("behind").map_or(Ok(0), |number| value(number, "a number"))?,
            most: query.get("most").map_or(Ok(100), |number| value(number, "a number"))?.min(MAX_MESSAGES),
        },
        ("GET", ["v1", "replication"]) => Call::Replication,
        ("GET", ["v1", "replication", anchor, "ues"]) => Call::Sessions {
            anchor: (*anchor).to_owned(),
            behind: query.get("behind").map(|number| value(number, "a number")).transpose()?,
            most: query.get("most").map_or(Ok(1000), |number| value(number, "a number"))?.min(MAX_AT_ONCE),
        },
        ("POST", ["v1", "replication", anchor, "ues", "find"]) => {
            Call::Find { anchor: (*anchor).to_owned(), ues: read_names(&request.body)? }
        }
        ("GET", ["v1", "replicas"]) => Call::Replicas,
        ("POST", ["v1", "replicas"]) => {
            let wanted: Wanted = json_of(&request.body)?;
            at_most(wanted.ues.as_ref().map_or(0, Vec::len))?;
            Call::Replicate(wanted)
        }
        ("POST", ["v1", "replicas", "remove"]) => {
            let unwanted: Unwanted = json_of(&request.body)?;
            at_most(unwanted.ues.as_ref().map_or(0, Vec::len))?;
            Call::Unreplicate(unwanted)
        }
        ("GET", ["v1", "events"]) => {
            Call::Events { from: query.get("from").map_or(Ok(0), |number| value(number, "a number"))? }
        }
        ("GET" | "POST" | "DELETE", _) => {
            let detail = "there are /v1/status, switches, anchors, diversions, ues, applications, captures, replication, replicas and events (docs/edge.md)";
            return refuse(404, "no such resource", detail.to_owned());
        }
        _ => return refuse(405, "no such method", "GET, POST and DELETE are served".to_owned()),
    };
    Ok(call)
}

fn query(request: &Request) -> BTreeMap<&str, &str> {
    request.query.split('&').filter_map(|pair| pair.split_once('=')).collect()
}

fn value<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Box<Response>> {
    let shown: String = text.chars().take(64).collect();
    text.parse()
        .map_err(|_| Box::new(Response::problem(400, "bad value", format!("`{shown}` is not {what}"))))
}

fn order(query: &BTreeMap<&str, &str>) -> Result<Order, Box<Response>> {
    match query.get("order") {
        None => Ok(Order::Any),
        Some(&"keep") => Ok(Order::Keep),
        Some(_) => Err(Box::new(Response::problem(400, "bad value", "`order` can be `keep`"))),
    }
}

fn at_most(count: usize) -> Result<(), Box<Response>> {
    match count > MAX_AT_ONCE {
        true => Err(Box::new(Response::problem(413, "too many", format!("at most {MAX_AT_ONCE} at once")))),
        false => Ok(()),
    }
}

fn json_of<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| Box::new(Response::problem(400, "bad content", error)))
}

/// The content of a request that looks users up.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    ues: Vec<String>,
}

fn read_names(body: &[u8]) -> Result<Vec<String>, Box<Response>> {
    let too_many = |what| Err(Box::new(Response::problem(413, "too many", what)));
    if body.len() > MAX_NAMES_BODY {
        return too_many(format!("at most {MAX_NAMES_BODY} octets"));
    }
    let Names { ues } = json_of(body)?;
    if ues.len() > MAX_NAMES { too_many(format!("at most {MAX_NAMES} users at once")) } else { Ok(ues) }
}

fn read_diversions(body: &[u8]) -> Result<Arc<[Diversion]>, Box<Response>> {
    let is_array = body.iter().find(|octet| !octet.is_ascii_whitespace()) == Some(&b'[');
    let diversions: Vec<Diversion> = if is_array { json_of(body)? } else { vec![json_of(body)?] };
    if diversions.len() > MAX_AT_ONCE {
        return Err(Box::new(Response::problem(413, "too many", format!("at most {MAX_AT_ONCE} at once"))));
    }
    Ok(diversions.into())
}

/// Where a request is prepared.
const PREPARE: &str = "/v1/diversions/prepare";

/// The content of a request that is prepared, and what was read of it as long as it is.
type Content = (Vec<u8>, Weak<[Diversion]>);

/// Contents of requests that are prepared. Those whose preparation has ended are forgotten.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<VecDeque<Content>>);

impl Known {
    fn add(&self, content: &[u8], diversions: &Arc<[Diversion]>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(known, read)| read.strong_count() > 0 && known != content);
        all.push_back((content.to_vec(), Arc::downgrade(diversions)));
    }

    /// What was read of the same content, if it is prepared: it need not be read again.
    fn find(&self, request: &Request) -> Option<Arc<[Diversion]>> {
        if request.method != "POST" || !["/v1/diversions", PREPARE].contains(&request.path.as_str()) {
            return None;
        }
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().find(|(content, _)| *content == request.body)?.1.upgrade()
    }
}

/// What answers requests.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) config: Arc<Config>,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) applications: Arc<Applications>,
    pub(crate) diverting: Diverting,
    pub(crate) known: Known,
    pub(crate) captures: Arc<Store>,
    pub(crate) replication: Replication,
}

impl Api {
    /// Answers a request.
    pub(crate) async fn answer(&self, request: Request) -> Response {
        let read = match self.known.find(&request) {
            Some(diversions) if request.path == PREPARE => Ok(Call::Prepare(diversions)),
            Some(diversions) => order(&query(&request)).map(|order| Call::Divert(diversions, order)),
            None => read(&request),
        };
        let response = match read {
            Ok(call) => {
                if let Call::Prepare(diversions) = &call {
                    self.known.add(&request.body, diversions);
                }
                self.call(call).await.unwrap_or_else(|refusal| problem(&refusal))
            }
            Err(response) => *response,
        };
        if response.status >= 400 {
            REFUSED.inc(&response.status.to_string());
        }
        response
    }

    /// A request for diversions while the application does not run is not to wait for it.
    fn running(&self) -> Result<&Diverting, Refusal> {
        let runs = self.applications.list().get(&App::Diverting) == Some(&true);
        if runs { Ok(&self.diverting) } else { Err(Refusal::Stopped) }
    }

    async fn call(&self, call: Call) -> Result<Response, Refusal> {
        let answer = match call {
            Call::Status => json!({
                "switches": self.fabric.switches().iter().filter(|view| view.connected).count(),
                "counters": telemetry::counters::snapshot(),
            }),
            Call::Switches => self.switches(),
            Call::Anchors => json!({"anchors": self.running()?.anchors().await?}),
            Call::Diversions => return self.diversions().await,
            Call::Divert(diversions, order) => done(&self.running()?.divert(diversions, order).await?),
            Call::Prepare(diversions) => json!(self.running()?.prepare(diversions).await?),
            Call::Undivert(removal) => {
                let mut ids = removal.ids;
                let ues: HashSet<_> = removal.ues.into_iter().collect();
                let all = if ues.is_empty() { Vec::new() } else { self.running()?.list().await? };
                for diversion in all {
                    if diversion.addresses().any(|address| ues.contains(&address.ue)) {
                        ids.push(diversion.id());
                    }
                }
                ids.sort_unstable();
                ids.dedup();
                done(&self.running()?.undivert(ids, removal.order).await?)
            }
            Call::Users => self.users().await?,
            Call::Explain(asked) => return self.explain(asked).await,
            Call::Applications => {
                let all = self.applications.list();
                let of = |(app, runs): (App, bool)| json!({"name": app.name(), "running": runs});
                json!({"applications": all.into_iter().map(of).collect::<Vec<_>>()})
            }
            Call::Application { app, run } => {
                let changed =
                    if run { self.applications.start(app).await } else { self.applications.stop(app).await };
                json!({"name": app.name(), "running": run, "changed": changed})
            }
            Call::Captures => json!({"captures": self.captures.summary()}),
            Call::Messages { anchor, behind, most } => {
                let messages = self.captures.messages(anchor, behind, most);
                let hex =
                    |octets: &[u8]| octets.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
                let of = |message: crate::capture::Captured| {
                    json!({
                        "number": message.number, "time_us": message.time_us, "protocol": message.protocol,
                        "from": format!("{}:{}", message.from.0, message.from.1),
                        "to": format!("{}:{}", message.to.0, message.to.1),
                        "by_control": message.by_control, "octets": hex(&message.octets),
                    })
                };
                json!({"messages": messages.into_iter().map(of).collect::<Vec<_>>()})
            }
            Call::Replication => self.replication.anchors(),
            Call::Sessions { anchor, behind, most } => {
                return Ok(listed(self.replication.sessions(&anchor, behind, most)));
            }
            Call::Find { anchor, ues } => return Ok(listed(self.replication.find(&anchor, &ues))),
            Call::Replicas => self.replication.replicas(),
            Call::Replicate(wanted) => {
                let done = self.replication.replicate(wanted).await;
                return Ok(done.map_or_else(|refusal| not_replicated(&refusal), |done| Response::long(&done)));
            }
            Call::Unreplicate(unwanted) => match self.replication.remove(unwanted).await {
                Ok(done) => done,
                Err(refusal) => return Ok(not_replicated(&refusal)),
            },
            Call::Events { from } => json!({"events": self.fabric.log(from)}),
        };
        Ok(Response::ok(answer))
    }

    fn switches(&self) -> Value {
        let of = |view: SwitchView| {
            let settings = self.config.switch_of(view.datapath_id);
            let ports: Vec<Value> = view
                .ports
                .iter()
                .map(|port| {
                    let down = port.state.contains(openflow::PortState::LINK_DOWN);
                    json!({"number": port.port_no.0, "name": port.name.as_str(), "link": !down})
                })
                .collect();
            json!({
                "name": view.name, "datapath_id": view.datapath_id, "connected": view.connected,
                "place": settings.map(|settings| settings.place), "dialect": view.dialect,
                "software": view.software, "ports": ports, "rules": self.fabric.wanted(view.datapath_id),
            })
        };
        json!({"switches": self.fabric.switches().into_iter().map(of).collect::<Vec<_>>()})
    }

    async fn diversions(&self) -> Result<Response, Refusal> {
        let all = self.running()?.list().await?;
        let all: Vec<WithId> = all.iter().map(WithId::of).collect();
        Ok(Response::long(&BTreeMap::from([("diversions", all)])))
    }

    async fn users(&self) -> Result<Value, Refusal> {
        let all = self.running()?.list().await?;
        // A user with two addresses is there by the one that names its diversion, also where another diversion is by the second one.
        let seconds = all.iter().filter_map(|diversion| Some((diversion.second?.ue, diversion.ue?)));
        let firsts: HashMap<IpAddr, IpAddr> = seconds.collect();
        let mut users: BTreeMap<IpAddr, Vec<Value>> = BTreeMap::new();
        for diversion in &all {
            let Some(ue) = diversion.ue else { continue };
            users.entry(*firsts.get(&ue).unwrap_or(&ue)).or_default().push(json!(WithId::of(diversion)));
        }
        let of = |(ue, diversions): (IpAddr, Vec<Value>)| json!({"ue": ue, "diversions": diversions});
        Ok(json!({"ues": users.into_iter().map(of).collect::<Vec<_>>()}))
    }

    /// Follows a user's packets through the rules of the switches.
    async fn explain(&self, asked: Asked) -> Result<Response, Refusal> {
        let diverting = self.running()?;
        let all = diverting.list().await?;
        let of_address =
            |diversion: &Diversion| Some((Some(diversion.id()), diversion.of_address(asked.ue)?));
        let mut of_user: Vec<(Option<String>, Diversion)> = all.iter().filter_map(of_address).collect();
        let diverted = !of_user.is_empty();
        if !diverted {
            let (Some(base_station), Some(from)) = (asked.base_station, asked.from) else {
                let detail = format!(
                    "{} is not diverted, so the controller does not know where it is: add ?base_station=NAME&from=ANCHOR&teid=NUMBER",
                    asked.ue
                );
                return Ok(Response::problem(404, "unknown user", detail));
            };
            let tunnels = asked.teid.map(|uplink| Tunnel {
                uplink,
                downlink: None,
                target_uplink: None,
                target_downlink: None,
                filter: None,
                qfi: None,
            });
            let as_if = Diversion {
                ue: Some(asked.ue),
                tunnels: tunnels.into_iter().collect(),
                application: None,
                peer: None,
                to: from.clone(),
                from,
                base_station,
                target_address: None,
                second: None,
                confirmed_by: String::new(),
            };
            of_user.push((None, as_if));
        }
        let macs = diverting.macs().await?;
        let mut ways = Vec::new();
        for (id, diversion) in of_user {
            ways.push(json!({
                "id": id,
                "from": diversion.from, "to": diversion.to, "base_station": diversion.base_station,
                "ways": self.ways(diversion, &macs).await?,
            }));
        }
        Ok(Response::ok(json!({"ue": asked.ue, "diverted": diverted, "explained": ways})))
    }

    async fn ways(
        &self,
        diversion: Diversion,
        macs: &HashMap<(u64, IpAddr), openflow::MacAddr>,
    ) -> Result<Vec<Way>, Refusal> {
        crate::diverting::model::anchor(&self.config, &diversion.from)?;
        let station = crate::diverting::model::base_station(&self.config, &diversion.base_station)?;
        let access = self.config.switch(&station.switch).map(|switch| switch.datapath_id);
        let sgi = self.config.anchor(&diversion.to).and_then(|anchor| anchor.sgi.as_ref());
        let sgi = sgi.and_then(|sgi| self.config.switch(&sgi.switch)).map(|switch| switch.datapath_id);
        let here = macs.iter().filter(|((id, _), _)| Some(*id) == access).map(|((_, ip), mac)| (*ip, *mac));
        let question = Question { macs: here.collect(), diversion };
        let mut ways = Vec::new();
        for (id, is_access) in access.map(|id| (id, true)).into_iter().chain(sgi.map(|id| (id, false))) {
            let Some(view) = self.fabric.switch(id) else { continue };
            let flows = self.fabric.flows(id).await.map_err(|error| {
                Refusal::Switch(CommitError::Refused { switch: view.name.clone(), error })
            })?;
            ways.extend(if is_access {
                explain::at_access(&question, &self.config, &view, &flows)
            } else {
                explain::at_sgi(&question, &self.config, &view, &flows)
            });
        }
        Ok(ways)
    }
}

/// A diversion with its id.
#[derive(Serialize)]
struct WithId<'a> {
    id: String,
    #[serde(flatten)]
    diversion: &'a Diversion,
}

impl WithId<'_> {
    fn of(diversion: &Diversion) -> WithId<'_> {
        WithId { id: diversion.id(), diversion }
    }
}

fn done(done: &Done) -> Value {
    serde_json::to_value(done).unwrap_or_default()
}

/// Sessions, of whom there may be many.
fn listed(found: Result<Vec<Listed>, replication::replicator::Refusal>) -> Response {
    found.map_or_else(
        |refusal| not_replicated(&refusal),
        |ues| Response::long(&BTreeMap::from([("ues", ues)])),
    )
}

fn not_replicated(refusal: &replication::replicator::Refusal) -> Response {
    use replication::replicator::Refusal;
    let (status, title) = match refusal {
        Refusal::Unknown(_) => (404, "unknown name"),
        Refusal::NoSessions(_) => (409, "not yet"),
        Refusal::OtherAgent { .. } => (422, "another agent"),
        Refusal::AgentInUse { .. } => (422, "agent in use"),
        Refusal::NoRaw => (422, "no messages as they were"),
        Refusal::NoAgent { .. } => (502, "no agent"),
        Refusal::NotWritten => (503, "not written"),
    };
    Response::problem(status, title, refusal)
}

fn problem(refusal: &Refusal) -> Response {
    let (status, title) = match refusal {
        Refusal::Unknown { .. } => (404, "unknown name"),
        Refusal::Contradiction(_) => (400, "contradiction"),
        Refusal::Impossible { .. } => (422, "impossible for this switch"),
        Refusal::NotYet(_) => (409, "not yet"),
        Refusal::InTheWay(_) => (409, "in the way"),
        Refusal::Full(_) => (507, "full"),
        Refusal::TooLarge(_) => (413, "too many"),
        Refusal::Switch(_) => (502, "refused by the switch"),
        Refusal::State(_) => (500, "state not written"),
        Refusal::Stopped => (503, "application stopped"),
    };
    Response::problem(status, title, refusal)
}

/// Reads octets as a request: method, path, query and content, each but the last ended by a line feed. The fuzzer starts here.
pub fn fuzz(octets: &[u8]) {
    let mut parts = octets.splitn(4, |octet| *octet == b'\n');
    let mut text = || String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let (method, path, query) = (text(), text(), text());
    let body = parts.next().unwrap_or_default().to_vec().into();
    if let Ok(Call::Divert(diversions, _)) = read(&Request { method, path, query, body }) {
        for diversion in diversions.iter() {
            let json = serde_json::to_vec(&diversion).unwrap_or_default();
            assert_eq!(serde_json::from_slice::<Diversion>(&json).ok(), Some(diversion.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: &str, target: &str, body: &str) -> Result<Call, u16> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let request = Request {
            method: method.into(),
            path: path.into(),
            query: query.into(),
            body: body.to_owned().into(),
        };
        read(&request).map_err(|response| response.status)
    }

    /// 409: the same request may succeed later. 422: it never will, so nobody should ask again.
    #[test]
    fn refusals_say_whether_asking_again_helps() {
        use replication::replicator::Refusal;
        let agent = "10.9.0.3:8806".parse().unwrap();
        let (to, replica) = ("gw2".to_owned(), "gw1 to gw2".to_owned());
        for (refusal, expected) in [
            (Refusal::Unknown(to.clone()), 404),
            (Refusal::NoSessions(to.clone()), 409),
            (Refusal::OtherAgent { to, agent }, 422),
            (Refusal::AgentInUse { agent, replica }, 422),
            (Refusal::NoRaw, 422),
            (Refusal::NoAgent { agent, why: String::new() }, 502),
            (Refusal::NotWritten, 503),
        ] {
            let response = not_replicated(&refusal);
            assert_eq!((response.status, &response.body["status"]), (expected, &json!(expected)));
            assert_eq!(response.body["detail"], json!(refusal.to_string()));
        }
    }

    #[test]
    fn requests_are_read_strictly() {
        let one = r#"{"ue": "10.45.0.2", "from": "gw1", "to": "gw2", "base_station": "enb1", "confirmed_by": "test"}"#;
        let Ok(Call::Divert(single, Order::Any)) = ask("POST", "/v1/diversions", one) else { panic!() };
        let listed = format!(" [{one}]");
        assert_eq!(ask("POST", "/v1/diversions", &listed), Ok(Call::Divert(single.clone(), Order::Any)));
        let keep = "/v1/diversions?order=keep";
        assert_eq!(ask("POST", keep, one), Ok(Call::Divert(single, Order::Keep)));
        assert_eq!(ask("POST", "/v1/diversions?order=any", one), Err(400));
        let removal = Removal { ids: vec!["a".to_owned()], order: Order::Keep, ..Removal::default() };
        let asked = r#"{"ids": ["a"], "order": "keep"}"#;
        assert_eq!(ask("POST", "/v1/diversions/remove", asked), Ok(Call::Undivert(removal.clone())));
        assert_eq!(ask("DELETE", "/v1/diversions/a?order=keep", ""), Ok(Call::Undivert(removal)));
        assert_eq!(ask("POST", "/v1/diversions", "{}"), Err(400));
        assert_eq!(ask("POST", "/v1/diversions", &one.replace("\"to\"", "\"too\"")), Err(400));
        assert_eq!(ask("POST", "/v1/diversions", &one.replace("10.45.0.2", "10.45.0.256")), Err(400));
        assert_eq!(ask("PUT", "/v1/diversions", one), Err(405));
        assert_eq!(ask("GET", "/v2/diversions", ""), Err(404));
        assert_eq!(ask("POST", "/v1/applications/replication/start", ""), Err(404));
        assert_eq!(ask("GET", "/v1/ues/nobody", ""), Err(400));
        let Ok(Call::Explain(asked)) = ask("GET", "/v1/ues/10.45.0.2?base_station=enb1&from=gw1&teid=7", "")
        else {
            panic!()
        };
        assert_eq!((asked.base_station.as_deref(), asked.teid), (Some("enb1"), Some(7)));
        let stop = Call::Application { app: App::Forwarding, run: false };
        assert_eq!(ask("POST", "/v1/applications/forwarding/stop", ""), Ok(stop));
        let find = "/v1/replication/gw1/ues/find";
        let found = Call::Find { anchor: "gw1".to_owned(), ues: vec!["10.45.0.2".to_owned()] };
        assert_eq!(ask("POST", find, r#"{"ues": ["10.45.0.2"]}"#), Ok(found));
        assert_eq!(ask("POST", find, r#"{"ues": ["10.45.0.2"], "all": true}"#), Err(400));
        assert_eq!(ask("POST", find, "{}"), Err(400));
        let names = |count| format!(r#"{{"ues": [{}]}}"#, vec![r#""imsi-999700000000001""#; count].join(","));
        assert!(ask("POST", find, &names(MAX_NAMES)).is_ok());
        assert_eq!(ask("POST", find, &names(MAX_NAMES + 1)), Err(413));
        let long = format!(r#"{{"ues": ["{}"]}}"#, "a".repeat(MAX_NAMES_BODY));
        assert_eq!(ask("POST", find, &long), Err(413));
        let many = format!("[{}]", vec![one; MAX_AT_ONCE + 1].join(","));
        assert_eq!(ask("POST", "/v1/diversions", &many), Err(413));
    }
}
