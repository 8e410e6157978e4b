//! The controller's REST API (`docs/edge.md`), as far as the orchestrator calls it.
//!
//! Each call can be repeated: the controller does again nothing that is done. After an error it is not known whether it was done,
//! unless the error says so.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};

use net::time::Duration;
use nf::rest;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::config::Host;
use crate::model::{Key, Order, Place, Scheme};

/// Most users of one page of the controller's list.
const PAGE: usize = 1000;
/// Most names that the controller looks up at once.
const MAX_NAMES: usize = 10_000;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallFailed {
    /// The controller has refused; the same call will be refused again.
    #[error("{0}")]
    Refused(String),
    /// The controller, or what it controls, can never do this.
    #[error("{0}")]
    Impossible(String),
    /// The controller cannot do it now, and has done nothing.
    #[error("{0}")]
    NotNow(String),
    /// No answer: it may be done or not.
    #[error("{0}")]
    Unanswered(String),
}

/// A diversion as the controller lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Diverted {
    /// Its identifier.
    pub id: String,
    /// The anchor that serves the user.
    pub to: String,
    /// Who has confirmed the state there.
    #[serde(default)]
    pub confirmed_by: String,
}

/// A user as the controller knows it from control messages.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Listed {
    /// For the next page.
    pub number: u64,
    /// Its identity.
    pub id: String,
    /// Its addresses.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Its base station's address; none if it is idle.
    #[serde(default)]
    pub base_station: Option<IpAddr>,
    /// Its tunnels.
    #[serde(default)]
    pub tunnels: Vec<Tunnel>,
}

/// A tunnel's TEIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Tunnel {
    /// Towards the anchor.
    #[serde(default)]
    pub uplink: u32,
    /// Towards the base station.
    #[serde(default)]
    pub downlink: Option<u32>,
}

impl Listed {
    /// Where it is.
    pub fn place(&self) -> Place {
        let of = |tunnel: &Tunnel| (tunnel.uplink, tunnel.downlink.unwrap_or_default());
        Place { base_station: self.base_station, tunnels: self.tunnels.iter().map(of).collect() }
    }
}

/// How a user's replica fares.
#[derive(Debug, Clone, PartialEq)]
pub enum Replica {
    /// It is there; the diversions that take the user's packets to it, which is none while the user is idle.
    There(Vec<Value>),
    /// The target does not have the user, and why.
    Refused(String),
}

/// Replicas from one anchor at another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ReplicaCount {
    /// The original anchor.
    pub from: String,
    /// The anchor with the replicas.
    pub to: String,
    /// How many users.
    #[serde(default)]
    pub ues: usize,
}

#[derive(Deserialize)]
struct Replicated {
    #[serde(default)]
    done: Vec<DoneOne>,
    #[serde(default)]
    refused: Vec<RefusedOne>,
}

#[derive(Deserialize)]
struct DoneOne {
    id: String,
    #[serde(default)]
    diversion: Option<Value>,
}

#[derive(Deserialize)]
struct RefusedOne {
    ue: String,
    #[serde(default)]
    why: String,
}

#[derive(Deserialize)]
struct AnchorAt {
    name: String,
    #[serde(default)]
    alive: bool,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

fn without_answer(error: rest::CallError) -> CallFailed {
    match error {
        rest::CallError::Unreachable { .. } => CallFailed::NotNow(format!("the controller: {error}")),
        rest::CallError::Broken { .. } => CallFailed::Unanswered(format!("the controller: {error}")),
    }
}

/// What an answer that is not good says.
fn refusal(status: u16, body: &Value) -> CallFailed {
    let detail = body["detail"].as_str().unwrap_or("refused without a reason").to_owned();
    let title = body["title"].as_str().unwrap_or_default();
    match status {
        // Another diversion is in the way: that does not change by waiting.
        409 if title == "in the way" => CallFailed::Refused(detail),
        // An anchor does not answer, a switch is away, an application is stopped.
        409 | 503 => CallFailed::NotNow(detail),
        422 => CallFailed::Impossible(detail),
        400..500 => CallFailed::Refused(detail),
        507 => CallFailed::Refused(detail),
        _ => CallFailed::Unanswered(detail),
    }
}

/// The list of this name in an object, whose other members are nothing to us.
struct ListNamed<'a, T>(&'a str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListNamed<'_, T> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an object with the list `{}`", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut list = None;
        while let Some(name) = members.next_key::<String>()? {
            if name == self.0 {
                list = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(list)
    }
}

/// A name as a segment of a path (RFC 3986 §2.1).
fn segment(name: &str) -> String {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"-._~".contains(&octet);
    let of =
        |octet: u8| if is_plain(octet) { char::from(octet).to_string() } else { format!("%{octet:02X}") };
    name.bytes().map(of).collect()
}

/// A client of the controller.
#[derive(Debug, Clone, Copy)]
pub struct Controller {
    address: SocketAddr,
    limit: Duration,
}

impl Controller {
    /// A client; each answer is waited for up to `limit`.
    pub fn new(address: SocketAddr, limit: Duration) -> Controller {
        Controller { address, limit }
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, CallFailed> {
        let answer =
            rest::call(self.limit, self.address, method, path, body).await.map_err(without_answer)?;
        if answer.status < 300 { Ok(answer.body) } else { Err(refusal(answer.status, &answer.body)) }
    }

    /// The list of this name in the answer. It may be long: what nobody here needs of it is not kept.
    async fn list<T: DeserializeOwned>(&self, path: &str, name: &str) -> Result<Vec<T>, CallFailed> {
        self.listed("GET", path, None, name).await
    }

    async fn listed<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        name: &str,
    ) -> Result<Vec<T>, CallFailed> {
        let answer = rest::ask(self.limit, self.address, method, path, body).await.map_err(without_answer)?;
        let wrong = |error: &dyn std::fmt::Display| {
            CallFailed::Unanswered(format!("{method} {path} of the controller: {error}"))
        };
        if answer.status >= 300 {
            let body = serde_json::from_slice(&answer.content).map_err(|error| wrong(&error))?;
            return Err(refusal(answer.status, &body));
        }
        let list = serde_json::Deserializer::from_slice(&answer.content)
            .deserialize_map(ListNamed(name, PhantomData))
            .map_err(|error| wrong(&error))?;
        list.ok_or_else(|| wrong(&format!("there is no `{name}`")))
    }

    /// Who is diverted, by the diversions' identifiers.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn diversions(&self) -> Result<BTreeMap<String, Diverted>, CallFailed> {
        let all: Vec<Diverted> = self.list("/v1/diversions", "diversions").await?;
        Ok(all.into_iter().map(|one| (one.id.clone(), one)).collect())
    }

    /// Anchors that answer at a switch.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn alive(&self) -> Result<BTreeSet<String>, CallFailed> {
        let all: Vec<AnchorAt> = self.list("/v1/anchors", "anchors").await?;
        Ok(all.into_iter().filter(|anchor| anchor.alive).map(|anchor| anchor.name).collect())
    }

    /// Anchors whose control messages the controller knows.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn origins(&self) -> Result<Vec<String>, CallFailed> {
        let all: Vec<Named> = self.list("/v1/replication", "anchors").await?;
        Ok(all.into_iter().map(|anchor| anchor.name).collect())
    }

    /// All users of an anchor.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn users(&self, origin: &str) -> Result<Vec<Listed>, CallFailed> {
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let behind = all.iter().map(|user| user.number).max().unwrap_or_default();
            let path = format!("/v1/replication/{}/ues?behind={behind}&most={PAGE}", segment(origin));
            let page: Vec<Listed> = self.list(&path, "ues").await?;
            // A page that goes back would be read for ever.
            let (count, goes_on) = (page.len(), page.iter().all(|user| user.number > behind));
            all.extend(page);
            if count < PAGE || !goes_on {
                return Ok(all);
            }
        }
    }

    /// Those users of an anchor that have one of these names: identities or addresses.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn find(&self, origin: &str, names: &[String]) -> Result<Vec<Listed>, CallFailed> {
        let path = format!("/v1/replication/{}/ues/find", segment(origin));
        let mut all = Vec::new();
        for some in names.chunks(MAX_NAMES) {
            all.extend(self.listed("POST", &path, Some(&json!({"ues": some})), "ues").await?);
        }
        Ok(all)
    }

    /// How many users have a replica, by original anchor and anchor with the replica.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn replicas(&self) -> Result<BTreeMap<(String, String), usize>, CallFailed> {
        let all: Vec<ReplicaCount> = self.list("/v1/replicas", "replicas").await?;
        Ok(all.into_iter().map(|one| ((one.from, one.to), one.ues)).collect())
    }

    /// Copies users' state to a host. Every user gets an answer, also if the host cannot have any user of this anchor: because its agent
    /// serves another anchor's users, or because messages that the scheme needs were not kept.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn replicate(
        &self,
        origin: &str,
        host: &Host,
        users: &[(String, Vec<IpAddr>)],
        scheme: Scheme,
    ) -> Result<BTreeMap<Key, Replica>, CallFailed> {
        let ids: Vec<&str> = users.iter().map(|(id, _)| id.as_str()).collect();
        let body =
            json!({"from": origin, "to": host.anchor, "agent": host.agent, "ues": ids, "scheme": scheme});
        let answer = match self.call("POST", "/v1/replicas", Some(&body)).await {
            Err(CallFailed::Impossible(why)) => {
                let of = |id: &&str| ((origin.to_owned(), (*id).to_owned()), Replica::Refused(why.clone()));
                return Ok(ids.iter().map(of).collect());
            }
            answer => answer?,
        };
        let answer: Replicated = serde_json::from_value(answer).map_err(|error| {
            CallFailed::Unanswered(format!("POST /v1/replicas of the controller: {error}"))
        })?;
        let mut done: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for one in answer.done {
            done.entry(one.id).or_default().extend(one.diversion.filter(|diversion| !diversion.is_null()));
        }
        let refused: BTreeMap<String, String> =
            answer.refused.into_iter().map(|one| (one.ue, one.why)).collect();
        let mut of = |(id, addresses): &(String, Vec<IpAddr>)| {
            let names = std::iter::once(id.clone()).chain(addresses.iter().map(IpAddr::to_string));
            // A user of whom one address is refused is refused: it is to be wholly on one anchor.
            let why = names.into_iter().find_map(|name| refused.get(&name).cloned());
            let replica = match (why, done.remove(id)) {
                (Some(why), _) => Replica::Refused(why),
                (None, Some(diversions)) => Replica::There(diversions),
                (None, None) => Replica::Refused("the controller does not know this user".to_owned()),
            };
            ((origin.to_owned(), id.clone()), replica)
        };
        Ok(users.iter().map(&mut of).collect())
    }

    /// Removes users' state from an anchor that is not their original one.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn forget(&self, origin: &str, anchor: &str, ids: &[String]) -> Result<(), CallFailed> {
        let body = json!({"from": origin, "to": anchor, "ues": ids});
        self.call("POST", "/v1/replicas/remove", Some(&body)).await.map(drop)
    }

    /// Removes all state of an original anchor's users from another one, also of users of whom nobody here knows.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn forget_all(&self, origin: &str, anchor: &str) -> Result<(), CallFailed> {
        let body = json!({"from": origin, "to": anchor});
        self.call("POST", "/v1/replicas/remove", Some(&body)).await.map(drop)
    }

    /// Has the controller do what it can before [`Controller::divert`] of the same users. It is no promise.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn prepare(&self, diversions: &[Value]) -> Result<(), CallFailed> {
        self.call("POST", "/v1/diversions/prepare", Some(&json!(diversions))).await.map(drop)
    }

    /// Diverts: all, or nobody.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn divert(&self, diversions: &[Value], order: Order) -> Result<Value, CallFailed> {
        let path = match order {
            Order::Keep => "/v1/diversions?order=keep",
            Order::None => "/v1/diversions",
        };
        self.call("POST", path, Some(&json!(diversions))).await
    }

    /// Undiverts: all, or nobody.
    ///
    /// # Errors
    /// See [`CallFailed`].
    pub async fn undivert(&self, ids: &[String], order: Order) -> Result<Value, CallFailed> {
        let mut body = json!({"ids": ids});
        if order == Order::Keep {
            body["order"] = json!("keep");
        }
        let answer = self.call("POST", "/v1/diversions/remove", Some(&body)).await?;
        // They may still steer packets to an anchor whose state is to be removed next.
        match answer["pending"].as_array().filter(|pending| !pending.is_empty()) {
            Some(pending) => Err(CallFailed::NotNow(format!("not connected: {}", json!(pending)))),
            None => Ok(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_may_have_company() {
        let read = |text: &str| {
            serde_json::Deserializer::from_str(text)
                .deserialize_map(ListNamed("anchors", PhantomData))
                .map(|list: Option<Vec<Named>>| list.map(|all| all.len()))
        };
        assert_eq!(
            read(r#"{"next": 7, "anchors": [{"name": "gw1", "x": 1}], "more": {}}"#).unwrap(),
            Some(1)
        );
        assert_eq!(read(r#"{"ues": []}"#).unwrap(), None);
        assert!(read(r#"{"anchors": 7}"#).is_err() && read("[]").is_err());
    }

    #[test]
    fn names_stay_in_their_segment() {
        assert_eq!(segment("gw-1.a_b~"), "gw-1.a_b~");
        assert_eq!(segment("gw1/ues?behind=5&x=ü"), "gw1%2Fues%3Fbehind%3D5%26x%3D%C3%BC");
    }
}
