//! The replication application's place in the controller: what [`capture`](crate::capture) has captured goes to the replicator, what clones
//! ask the MME or SMF leaves by the small switch before it, as the original's, and the API asks for copies and lists them.
//!
//! The controller itself knows nothing of sessions; [`replication`] does.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use openflow::{Action, MacAddr, PortNo};
use replication::replicator::{
    Anchor, Copied, Datagrams, Listed, Outgoing, Place, Protocol, Refusal, Replicator, Scheme, Verdict,
};
use replication::track::Datagram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::records::Records;
use telemetry::counters::Counter;
use tokio::sync::watch;

use crate::capture::Captured;
use crate::config::{self, Config};
use crate::diverting::Told;
use crate::diverting::model::{Address, Diversion, Flow, Tunnel};
use crate::frame::{self, Station, Tags};
use crate::switch::{Fabric, Handle};

static UNSENT: Counter = Counter::new("controller_clone_requests_unsent");

/// See [`has_another_prefix`].
const ANOTHER_PREFIX: &str = "the clone gave it another IPv6 prefix, which no switch can translate";
/// Ways that are remembered.
const MAX_WAYS: usize = 1024;

/// How an MME or SMF and an anchor reach each other: as the last frame between them did.
#[derive(Debug, Clone, Copy)]
struct Way {
    datapath_id: u64,
    /// Towards the control plane; not known before it has sent something.
    to_control: Option<PortNo>,
    /// Towards the anchor, likewise.
    to_anchor: Option<PortNo>,
    anchor: MacAddr,
    control: MacAddr,
    /// Their VLAN, if they are in one.
    tags: Tags,
}

/// Ways by anchor and control plane.
type Ways = Arc<Mutex<HashMap<(IpAddr, IpAddr), Way>>>;

/// `POST /v1/replicas`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// The anchor that has the sessions.
    pub from: String,
    /// The anchor that is to have them as well.
    pub to: String,
    /// The agent beside it.
    pub agent: SocketAddr,
    /// Users by address or id; without it all.
    #[serde(default)]
    pub ues: Option<Vec<String>>,
    /// How.
    #[serde(default)]
    pub scheme: Scheme,
}

/// `POST /v1/replicas/remove`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unwanted {
    /// The anchor that has the sessions.
    pub from: String,
    /// The anchor that is to have them no longer.
    pub to: String,
    /// Users by address or id; without it all.
    #[serde(default)]
    pub ues: Option<Vec<String>>,
}

/// What has become of [`Wanted`].
#[derive(Debug, Serialize)]
pub(crate) struct Made {
    done: Vec<There>,
    refused: Vec<Refused>,
    /// Who was to be copied naïvely, and was copied by its record.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    by_record: Vec<String>,
    took_ms: f64,
    /// To the agent and back.
    octets: u64,
}

/// A user whose copy is there.
#[derive(Debug, Serialize)]
struct There {
    id: String,
    ue: Option<IpAddr>,
    diversion: Option<Diversion>,
}

/// A user whose copy is not, and why.
#[derive(Debug, Serialize)]
struct Refused {
    ue: String,
    why: String,
}

/// Replication as the controller has it. Clones share it.
#[derive(Debug, Clone)]
pub struct Replication {
    config: Arc<Config>,
    replicator: Replicator,
    ways: Ways,
}

/// Why replication does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database of `replication.records`.
    #[error("{0}")]
    Store(#[from] store::StoreError),
    /// What is in it.
    #[error("{0}")]
    Kept(#[from] replication::keep::KeepError),
}

impl Replication {
    /// Takes up what was kept, and keeps what changes.
    ///
    /// # Errors
    /// The database cannot be opened or read.
    pub(crate) async fn start(config: Arc<Config>, fabric: Arc<Fabric>) -> Result<Replication, StartError> {
        let ways = Ways::default();
        let anchors = config
            .anchors
            .iter()
            .map(|anchor| Anchor {
                name: anchor.name.clone(),
                control: anchor.control.unwrap_or(anchor.address),
                keeps_addresses: anchor.keeps_addresses,
            })
            .collect();
        let (of_ways, handle) = (ways.clone(), Handle::of_controller(fabric));
        let send = Box::new(move |message| send(&of_ways, &handle, &message));
        let started =
            net::time::wall_clock().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        // Seconds since 1900 (RFC 5905), which a restart of the controller must not change for clones that go on.
        let mut started = (started + 2_208_988_800) as u32;
        let records = match &config.replication.records {
            Some(url) => Some(Records::open(url).await?),
            None => None,
        };
        if let Some(records) = &records {
            started = kept_start(records, started).await?;
        }
        let config::Replication { max_sessions, keep_raw, max_raw_bytes, .. } = config.replication;
        let limits = replication::replicator::Config { max_sessions, keep_raw, max_raw_bytes };
        let replicator = Replicator::new(limits, anchors, started, send);
        if let Some(records) = records {
            replicator.restore(&records).await?;
            tokio::spawn(replication::keep::keep(replicator.clone(), records));
        }
        Ok(Replication { config, replicator, ways })
    }

    /// Takes a captured message, which goes on by itself, its frame, and the port by which it came.
    pub(crate) fn captured(&self, message: &Captured, datapath_id: u64, port: PortNo, frame: &[u8]) {
        let (anchor, control) = self.learn(message, datapath_id, port, frame);
        let datagram = Datagram { control, by_control: message.by_control, octets: &message.octets };
        self.replicator.observe(protocol(message), anchor, datagram);
    }

    /// Takes a captured message that has not been sent on; what is to become of it.
    pub(crate) fn intercept(
        &self,
        message: &Captured,
        datapath_id: u64,
        port: PortNo,
        frame: &[u8],
    ) -> Verdict {
        self.learn(message, datapath_id, port, frame);
        let (from, to) = (SocketAddr::from(message.from), SocketAddr::from(message.to));
        self.replicator.intercept(protocol(message), from, to, &message.octets)
    }

    /// Control addresses of anchors whose messages are to be intercepted.
    pub(crate) fn watch_intercepted(&self) -> watch::Receiver<BTreeSet<IpAddr>> {
        self.replicator.watch_intercepted()
    }

    /// Where an anchor's messages leave a switch for the control plane, as far as that is known.
    pub(crate) fn port_to_control(
        &self,
        datapath_id: u64,
        anchor: IpAddr,
        control: IpAddr,
    ) -> Option<PortNo> {
        let ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        ways.get(&(anchor, control)).filter(|way| way.datapath_id == datapath_id)?.to_control
    }

    /// Takes what the diverting application tells: who serves a user decides what of its anchors' messages is heard.
    pub(crate) fn told(&self, told: &Told) {
        let place = |diversion: &Diversion| {
            let is_of_user = diversion.ue.is_some();
            let is_whole = is_of_user && diversion.application.is_none() && diversion.peer.is_none();
            let station = self.config.base_station(&diversion.base_station);
            let base_station = station.filter(|_| !is_of_user).map(|station| station.address);
            Place { user: diversion.ue, base_station, to: diversion.to.clone(), is_whole }
        };
        match told {
            Told::Anew(diversions) => {
                let all = diversions.iter();
                let all = all.map(|(id, diversion)| (id.clone(), (diversion.from.clone(), place(diversion))));
                self.replicator.place_all(all.collect());
            }
            Told::Changed { set, gone } => {
                let gone = gone.iter().map(|diversion| (&*diversion.from, diversion.id(), None));
                let set = set.iter();
                let set = set.map(|diversion| (&*diversion.from, diversion.id(), Some(place(diversion))));
                self.replicator.place_some(gone.chain(set));
            }
        }
    }

    /// Notes how the ends of a message reach each other; the anchor, and the control plane.
    fn learn(&self, message: &Captured, datapath_id: u64, port: PortNo, frame: &[u8]) -> (IpAddr, IpAddr) {
        let (anchor, control) =
            if message.by_control { (message.to.0, message.from.0) } else { (message.from.0, message.to.0) };
        if let Ok(ends) = packet::ethernet::Frame::new(frame) {
            let (from, to) = (MacAddr(ends.source()), MacAddr(ends.destination()));
            let (at_anchor, at_control) = if message.by_control { (to, from) } else { (from, to) };
            let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
            let before = ways.get(&(anchor, control));
            let (to_control, to_anchor) = match message.by_control {
                true => (Some(port), before.and_then(|way| way.to_anchor)),
                false => (before.and_then(|way| way.to_control), Some(port)),
            };
            let tags = Tags::of(frame);
            let way =
                Way { datapath_id, to_control, to_anchor, anchor: at_anchor, control: at_control, tags };
            // Anybody can write any source on a packet.
            if ways.len() < MAX_WAYS || ways.contains_key(&(anchor, control)) {
                ways.insert((anchor, control), way);
            }
        }
        (anchor, control)
    }

    /// `GET /v1/replication`.
    pub(crate) fn anchors(&self) -> Value {
        let of = |(name, protocol, ues, stored, raw): (String, Protocol, usize, usize, usize)| json!({"name": name, "protocol": protocol, "ues": ues, "stored_octets": stored, "raw_octets": raw});
        json!({"anchors": self.replicator.anchors().into_iter().map(of).collect::<Vec<_>>()})
    }

    /// `GET /v1/replication/{anchor}/ues`.
    pub(crate) fn sessions(
        &self,
        anchor: &str,
        behind: Option<u32>,
        most: usize,
    ) -> Result<Vec<Listed>, Refusal> {
        self.replicator.sessions(anchor, behind, most)
    }

    /// `POST /v1/replication/{anchor}/ues/find`.
    pub(crate) fn find(&self, anchor: &str, names: &[String]) -> Result<Vec<Listed>, Refusal> {
        self.replicator.find(anchor, names)
    }

    /// `GET /v1/replicas`.
    pub(crate) fn replicas(&self) -> Value {
        let of = |(from, to, agent, ues, connected): (String, String, SocketAddr, usize, bool)| json!({"from": from, "to": to, "agent": agent, "ues": ues, "connected": connected});
        json!({"replicas": self.replicator.replicas().into_iter().map(of).collect::<Vec<_>>()})
    }

    /// `POST /v1/replicas`.
    pub(crate) async fn replicate(&self, wanted: Wanted) -> Result<Made, Refusal> {
        let start = net::time::now();
        let Wanted { from, to, agent, ues, scheme } = &wanted;
        let done = self.replicator.replicate(from, to, *agent, ues.as_deref(), *scheme).await?;
        let (mut there, mut useless) = (Vec::with_capacity(done.done.len()), Vec::new());
        for copied in &done.done {
            let at_clone: Vec<IpAddr> =
                copied.made.bearers.iter().flat_map(replication::record::addresses_of).collect();
            if has_another_prefix(&copied.listed.addresses, &at_clone) {
                useless.push(copied.listed.id.clone());
                continue;
            }
            let Listed { id, addresses, .. } = &copied.listed;
            let (id, ue) = (id.clone(), addresses.first().copied());
            there.push(There { id, ue, diversion: self.diversion(from, to, copied) });
        }
        let refused = done.refused.iter().map(|(ue, why)| Refused { ue: ue.clone(), why: why.clone() });
        let useless_one = |ue: &String| Refused { ue: ue.clone(), why: ANOTHER_PREFIX.to_owned() };
        let refused: Vec<Refused> = refused.chain(useless.iter().map(useless_one)).collect();
        if !useless.is_empty() {
            self.replicator.remove(from, to, Some(&useless)).await?;
        }
        let took_ms = (net::time::now() - start).as_secs_f64() * 1e3;
        let by_record = done.by_record.into_iter().filter(|ue| !useless.contains(ue)).collect();
        Ok(Made { done: there, refused, by_record, took_ms, octets: done.octets })
    }

    /// `POST /v1/replicas/remove`.
    pub(crate) async fn remove(&self, unwanted: Unwanted) -> Result<Value, Refusal> {
        let removed = self.replicator.remove(&unwanted.from, &unwanted.to, unwanted.ues.as_deref()).await?;
        Ok(json!({"removed": removed}))
    }

    /// The diversion that steers a user to its copy; `None` where it is idle, or its base station is not in the configuration.
    fn diversion(&self, from: &str, to: &str, copied: &Copied) -> Option<Diversion> {
        let Copied { listed, made } = copied;
        let station = listed.base_station?;
        let base_station = self.config.base_stations.iter().find(|known| known.address == station)?;
        let other = |one: u32, two: Option<u32>| two.filter(|two| *two != one);
        // A clone creates bearers in an order of its own; tunnels of PFCP have no other name than their place.
        let at_clone = |id: u8, at: usize| {
            let named = made.bearers.iter().find(|bearer| bearer.id == id);
            named.or(made.bearers.get(at)).map(|bearer| bearer.uplink)
        };
        if listed.tunnels.iter().enumerate().any(|(at, tunnel)| at_clone(tunnel.id, at).is_none()) {
            return None;
        }
        let made: Vec<IpAddr> = made.bearers.iter().flat_map(replication::record::addresses_of).collect();
        let at_target = |ue: IpAddr| {
            let given = made.iter().find(|address| address.is_ipv4() == ue.is_ipv4()).copied();
            Address { ue, target_address: given.filter(|address| *address != ue) }
        };
        let first = *listed.addresses.first()?;
        // A user with several PDN connections has further addresses of the same version, which stay.
        let second = listed.addresses.iter().find(|address| address.is_ipv4() != first.is_ipv4());
        let Address { ue, target_address } = at_target(first);
        let order = &self.config.diverting.order;
        let anybody: IpAddr = if ue.is_ipv4() { order.token.into() } else { order.token_ipv6.into() };
        let tunnels = listed.tunnels.iter().enumerate().map(|(at, tunnel)| Tunnel {
            uplink: tunnel.uplink,
            downlink: tunnel.downlink,
            target_uplink: other(tunnel.uplink, at_clone(tunnel.id, at)),
            filter: tunnel.carries.and_then(|Datagrams { server, port }| {
                let server = server.unwrap_or(anybody);
                let flow = Flow { protocol: packet::protocol::UDP, server, port };
                let is_of_user = second.is_some() || server.is_ipv4() == ue.is_ipv4();
                is_of_user.then_some(flow)
            }),
            ..Tunnel::default()
        });
        Some(Diversion {
            ue: Some(ue),
            tunnels: tunnels.collect(),
            application: None,
            peer: None,
            from: from.to_owned(),
            to: to.to_owned(),
            base_station: base_station.name.clone(),
            target_address,
            second: second.copied().map(at_target),
            confirmed_by: "replication".to_owned(),
        })
    }
}

/// Whether the clone gave a user another prefix of IPv6, or none. A switch writes one address in the place of another, but no prefix. On N4
/// clones give no addresses: they get them.
fn has_another_prefix(own: &[IpAddr], at_clone: &[IpAddr]) -> bool {
    let is_lost = |address: &IpAddr| address.is_ipv6() && !at_clone.contains(address);
    !at_clone.is_empty() && own.iter().any(is_lost)
}

/// When the first controller of this database started: clones are to believe that it still runs.
async fn kept_start(records: &Records, now: u32) -> Result<u32, store::StoreError> {
    const SPACE: &str = "started";
    let kept = records.get(SPACE, 0).await?;
    if let Some(kept) = kept.and_then(|octets| octets.first_chunk().map(|octets| u32::from_be_bytes(*octets)))
    {
        return Ok(kept);
    }
    let octets = now.to_be_bytes().to_vec();
    records.write(SPACE, vec![store::records::Change::Put { key: 0, octets }]).await?;
    Ok(now)
}

fn protocol(message: &Captured) -> Protocol {
    if message.protocol == "pfcp" { Protocol::N4 } else { Protocol::S11 }
}

/// Sends a message in the name of an original, or of its MME or SMF, in a frame as theirs.
fn send(ways: &Ways, handle: &Handle, message: &Outgoing) {
    let way = |one: SocketAddr, other: SocketAddr| {
        let ways = ways.lock().unwrap_or_else(PoisonError::into_inner);
        ways.get(&(one.ip(), other.ip())).copied()
    };
    let of_original = way(message.from, message.to).map(|way| (way, way.anchor, way.control, way.to_control));
    let of_control =
        || way(message.to, message.from).map(|way| (way, way.control, way.anchor, way.to_anchor));
    let sent = of_original.or_else(of_control).and_then(|(way, source, destination, port)| {
        let from = Station { mac: source, ip: message.from.ip() };
        let to = Station { mac: destination, ip: message.to.ip() };
        let frame =
            frame::build_datagram((from, message.from.port()), (to, message.to.port()), &message.octets)?;
        let out = vec![Action::output(port?)];
        handle.packet_out(way.datapath_id, PortNo::CONTROLLER, out, way.tags.put(frame)).ok()
    });
    if sent.is_none() {
        // Who waits for it asks again.
        UNSENT.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_prefix_is_noticed() {
        let of =
            |text: &str| text.split_whitespace().map(|one| one.parse().unwrap()).collect::<Vec<IpAddr>>();
        for (own, at_clone, expected) in [
            ("10.45.0.1", "10.46.0.1", false),
            ("fd00:45:0:1::", "fd00:45:0:1::", false),
            ("fd00:45:0:1::", "fd00:46:0:1::", true),
            ("10.45.0.1 fd00:45:0:1::", "10.46.0.1", true),
            // N4: the clone has been told the user's addresses.
            ("10.45.0.1 fd00:45:0:1::", "", false),
        ] {
            assert_eq!(has_another_prefix(&of(own), &of(at_clone)), expected, "{own}: {at_clone}");
        }
    }
}
