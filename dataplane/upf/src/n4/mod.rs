//! N4: the PFCP server (TS 29.244).
//!
//! One task owns the PFCP endpoint, the associations and all sessions; requests are handled one by one, so
//! there is nothing to lock. [`rules`] holds what the CP function said, [`compile`] turns it into what workers
//! execute, [`session`] does both atomically; this file moves messages.

pub mod buffer;
pub mod compile;
pub mod remarks;
pub mod rules;
pub mod session;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use net::udp::UdpSocket;
use packet::gtpu::{self, Signalling};
use pfcp::endpoint::{Config as EndpointConfig, Counters, Endpoint, Event, Handle, RequestId, Transmit};
use pfcp::message::{
    AssociationReleaseResponse, AssociationSetupResponse, AssociationUpdateResponse, SessionReportRequest,
    SessionSetDeletionResponse,
};
use pfcp::{
    AsRspFlags, Cause, ErrorIndicationReport, FTeid, Message, NodeId, NtpSeconds, OuterHeaderCreation,
    ReportType, SmReqFlags, UpFunctionFeatures,
};
use pktio::udp::UdpPort;
use pktio::{Batch, Port};
use serde_json::{Value, json};
use telemetry::counters::{Counter, Family};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::Config;
use crate::pipeline::Event as PacketEvent;
use crate::stats::WorkerStats;
use crate::tables::Tables;
use buffer::Buffers;
use session::{Established, N4Session, Sessions};

/// The port of PFCP (TS 29.244 §4.4.2).
pub const PFCP_PORT: u16 = 8805;
/// Largest datagram that is received: what UDP can carry.
const DATAGRAM: usize = 65_535;
/// Most CP functions with an association.
const MAX_ASSOCIATIONS: usize = 256;

static ESTABLISHED: Counter = Counter::new("upf_n4_sessions_established");
static DELETED: Counter = Counter::new("upf_n4_sessions_deleted");
static REJECTED: Family = Family::new("upf_n4_rejected", "cause");
static PEER_RESTARTS: Counter = Counter::new("upf_n4_peer_restarts");
static PEER_FAILURES: Counter = Counter::new("upf_n4_peer_failures");

/// Questions to the N4 task.
#[derive(Debug)]
pub enum Query {
    /// All sessions, as JSON.
    Sessions(oneshot::Sender<Value>),
    /// Associations, PFCP counters and number of sessions, as JSON.
    Status(oneshot::Sender<Value>),
}

/// What the task is connected to.
pub struct Wiring {
    /// N4 socket.
    pub socket: UdpSocket,
    /// Port for End Markers.
    pub gtpu: UdpPort,
    /// Tables of the workers.
    pub tables: Arc<Tables>,
    /// Counters of the workers, and last the task's own.
    pub stats: Arc<[WorkerStats]>,
    /// What packets report.
    pub events: mpsc::Receiver<PacketEvent>,
    /// Questions.
    pub queries: mpsc::Receiver<Query>,
    /// Becomes true when the task shall end.
    pub stop: watch::Receiver<bool>,
}

/// A CP function that has set up an association.
#[derive(Debug)]
struct Association {
    node_id: NodeId,
    /// Where its requests come from, and ours go.
    address: SocketAddr,
    recovery_time_stamp: NtpSeconds,
}

/// The N4 task's state.
struct Server {
    config: Arc<Config>,
    endpoint: Endpoint,
    sessions: Sessions,
    associations: HashMap<IpAddr, Association>,
    node_id: NodeId,
    recovery_time_stamp: NtpSeconds,
    gtpu: UdpPort,
    end_marker: Batch,
    buffers: Buffers,
    stats: Arc<[WorkerStats]>,
    /// Error Indication reports under way, by session: one at a time is enough.
    reports: HashMap<Handle, u64>,
}

/// Seconds since 1900 of the wall clock.
fn ntp_now() -> NtpSeconds {
    let since = net::time::wall_clock().duration_since(std::time::UNIX_EPOCH);
    NtpSeconds::from_unix(since.map_or(0, |since| since.as_secs()))
}

/// Serves N4 until told to stop.
pub async fn serve(config: Arc<Config>, wiring: Wiring) {
    let Wiring { socket, gtpu, tables, stats, mut events, mut queries, mut stop } = wiring;
    let recovery_time_stamp = ntp_now();
    let node_id = NodeId::from(config.pfcp.ip());
    let endpoint_config = EndpointConfig::new(node_id.clone(), recovery_time_stamp, recovery_time_stamp.0);
    let mut server = Server {
        endpoint: Endpoint::new(endpoint_config),
        sessions: Sessions::new(Arc::clone(&config), tables, stats.len(), recovery_time_stamp.0),
        associations: HashMap::new(),
        node_id,
        recovery_time_stamp,
        gtpu,
        end_marker: Batch::new(1, 64),
        buffers: Buffers::new(stats.len().saturating_sub(1)),
        stats,
        reports: HashMap::new(),
        config,
    };
    let mut datagram = vec![0; DATAGRAM];
    loop {
        server.handle_events();
        while let Some(Transmit { to, payload }) = server.endpoint.poll_transmit() {
            if let Err(error) = socket.send_to(&payload, to).await {
                // Like a lost datagram: the sender of the request, we or the peer, repeats it.
                tracing::debug!(%error, %to, "PFCP message not sent");
            }
        }
        let deadline = server.endpoint.poll_timeout().map(net::time::Instant::from_std);
        let timer = async {
            match deadline {
                Some(deadline) => net::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            received = socket.recv_from(&mut datagram) => match received {
                Ok((length, from)) => server.endpoint.handle_datagram(now(), from, &datagram[..length]),
                // An ICMP error of an earlier datagram; the endpoint's timers deal with silent peers.
                Err(error) => tracing::debug!(%error, "PFCP receive"),
            },
            () = timer => server.endpoint.handle_timeout(now()),
            Some(event) = events.recv() => server.packet_event(event),
            Some(query) = queries.recv() => server.answer(query),
            // An error means that whoever could stop us is gone.
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

fn now() -> Instant {
    net::time::now().into_std()
}

impl Server {
    fn handle_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Request { id, seid, message } => self.request(id, seid.unwrap_or(0), message),
                Event::MalformedRequest { id, seid, error } => {
                    let cause = error.cause().unwrap_or(Cause::REJECTED);
                    let cp_seid = seid
                        .and_then(|seid| self.sessions.get(seid))
                        .filter(|session| session.cp == id.peer.ip())
                        .map_or(0, |session| session.cp_seid);
                    self.reject(id, cp_seid, cause, error.offending_ie());
                }
                Event::Response { handle, .. } | Event::Failed { handle, .. } => {
                    self.reports.remove(&handle);
                }
                Event::PeerRestarted { peer, .. } => {
                    PEER_RESTARTS.inc();
                    let sessions = self.forget(peer);
                    tracing::info!(%peer, sessions, "CP function restarted: its sessions are removed");
                }
                Event::PeerFailed { peer } => {
                    PEER_FAILURES.inc();
                    tracing::warn!(%peer, "CP function does not answer heartbeats; its sessions stay");
                }
                Event::PeerRecovered { peer } => tracing::info!(%peer, "CP function answers again"),
            }
        }
    }

    /// Removes a CP function's sessions and association.
    fn forget(&mut self, peer: IpAddr) -> usize {
        self.associations.remove(&peer);
        self.remove_sessions(peer)
    }

    fn remove_sessions(&mut self, peer: IpAddr) -> usize {
        let removed = self.sessions.remove_all_of(peer);
        DELETED.add(removed as u64);
        if let Some(stats) = self.stats.last() {
            self.buffers.discard_unless(|seid| self.sessions.get(seid).is_some(), stats);
        }
        removed
    }

    fn discard(&mut self, seid: u64) {
        if let Some(stats) = self.stats.last() {
            self.buffers.discard(seid, stats);
        }
    }

    fn request(&mut self, id: RequestId, seid: u64, message: Message) {
        let peer = id.peer.ip();
        let node_id = self.node_id.clone();
        match message {
            Message::AssociationSetupRequest(request) => {
                self.associate(id, request.node_id, request.recovery_time_stamp);
            }
            Message::AssociationUpdateRequest(_) => {
                let cause = self.association_cause(peer);
                self.respond(id, 0, AssociationUpdateResponse { node_id, cause, ..Default::default() });
            }
            Message::AssociationReleaseRequest(_) => {
                let cause = self.association_cause(peer);
                let sessions = self.forget(peer);
                self.endpoint.remove_peer(peer);
                tracing::info!(%peer, sessions, "association released");
                self.respond(id, 0, AssociationReleaseResponse { node_id, cause });
            }
            Message::SessionSetDeletionRequest(_) => {
                let cause = self.association_cause(peer);
                self.remove_sessions(peer);
                self.respond(id, 0, SessionSetDeletionResponse { node_id, cause, offending_ie: None });
            }
            Message::SessionEstablishmentRequest(request) => {
                let cp_seid = request.cp_f_seid.seid;
                if !self.associations.contains_key(&peer) {
                    return self.reject(id, cp_seid, Cause::NO_ASSOCIATION, None);
                }
                let Established { response, replaced } =
                    self.sessions.establish(node_id, peer, &request, ntp_now());
                for old in replaced {
                    DELETED.inc();
                    self.discard(old);
                    tracing::info!(%peer, seid = old, "session removed: its UE address went to a new one");
                }
                self.count(response.cause);
                if response.cause.is_accepted() {
                    ESTABLISHED.inc();
                }
                self.respond(id, cp_seid, response);
            }
            Message::SessionModificationRequest(request) => {
                let Some(modified) = self.sessions.modify(seid, peer, &request, ntp_now()) else {
                    return self.reject(id, 0, Cause::SESSION_NOT_FOUND, None);
                };
                self.count(modified.response.cause);
                if request.flags.is_some_and(|flags| flags.contains(SmReqFlags::DROBU)) {
                    self.discard(seid);
                }
                if let (Some(session), Some(stats)) = (self.sessions.get(seid), self.stats.last()) {
                    self.buffers.release(&session.compiled.compiled, &mut self.gtpu, stats);
                }
                for header in &modified.end_markers {
                    self.send_end_marker(header);
                }
                self.respond(id, modified.cp_seid, modified.response);
            }
            Message::SessionDeletionRequest(_) => match self.sessions.delete(seid, peer, ntp_now()) {
                Some((cp_seid, response)) => {
                    DELETED.inc();
                    self.discard(seid);
                    self.respond(id, cp_seid, response);
                }
                None => self.reject(id, 0, Cause::SESSION_NOT_FOUND, None),
            },
            // Requests that only a UP function sends.
            _ => self.reject(id, 0, Cause::SERVICE_NOT_SUPPORTED, None),
        }
    }

    fn association_cause(&self, peer: IpAddr) -> Cause {
        if self.associations.contains_key(&peer) { Cause::ACCEPTED } else { Cause::NO_ASSOCIATION }
    }

    /// Association set-up (§6.2.6). A CP function that asks again without having restarted keeps its sessions.
    fn associate(&mut self, id: RequestId, node_id: NodeId, recovery_time_stamp: NtpSeconds) {
        let peer = id.peer.ip();
        let known = self.associations.get(&peer);
        if known.is_none() && self.associations.len() >= MAX_ASSOCIATIONS {
            return self.reject(id, 0, Cause::NO_RESOURCES, None);
        }
        let retained = known.is_some_and(|known| known.recovery_time_stamp == recovery_time_stamp);
        if !retained {
            self.forget(peer);
            tracing::info!(%peer, node = ?node_id, "association with a CP function");
        }
        let association = Association { node_id, address: id.peer, recovery_time_stamp };
        self.associations.insert(peer, association);
        self.endpoint.add_peer(now(), id.peer);
        let features = UpFunctionFeatures::FTUP | UpFunctionFeatures::EMPU | UpFunctionFeatures::MNOP;
        let response = AssociationSetupResponse {
            node_id: self.node_id.clone(),
            cause: Cause::ACCEPTED,
            recovery_time_stamp: self.recovery_time_stamp,
            up_function_features: Some(features),
            flags: retained.then_some(AsRspFlags::PSREI),
            ..Default::default()
        };
        self.respond(id, 0, response);
    }

    fn count(&self, cause: Cause) {
        if !cause.is_accepted() {
            REJECTED.inc(&cause.0.to_string());
        }
    }

    fn respond(&mut self, id: RequestId, seid: u64, message: impl Into<Message>) {
        if let Err(error) = self.endpoint.respond(now(), id, seid, message) {
            tracing::warn!(%error, peer = %id.peer, "PFCP response not sent");
        }
    }

    fn reject(&mut self, id: RequestId, seid: u64, cause: Cause, offending_ie: Option<u16>) {
        self.count(cause);
        if let Err(error) = self.endpoint.reject(now(), id, seid, cause, offending_ie) {
            tracing::debug!(%error, peer = %id.peer, "PFCP request not answered");
        }
    }

    /// Sends an End Marker on the tunnel that the path has been switched away from (TS 23.501 §5.8.2.9). The
    /// new session is published already, so that it follows the last packet on that tunnel, except for
    /// packets of a batch that a worker holds at this moment.
    fn send_end_marker(&mut self, header: &OuterHeaderCreation) {
        let Some((teid, peer)) = header.gtpu_endpoint() else { return };
        let message = Signalling::EndMarker { teid, pdu_session: None }.build();
        self.end_marker.clear();
        if self.end_marker.push(&message, SocketAddr::new(peer, gtpu::PORT)) {
            let sent = self.gtpu.transmit(&mut self.end_marker, &[0]);
            if sent.packets == 0 {
                tracing::debug!(%peer, "End Marker not sent");
            }
        }
    }

    fn packet_event(&mut self, event: PacketEvent) {
        let (peer, teid) = match event {
            PacketEvent::ErrorIndication { peer, teid } => (peer, teid),
            PacketEvent::Buffered { seid, pdr, packet } => {
                let Some(stats) = self.stats.last() else { return };
                match self.sessions.get(seid) {
                    Some(session) => {
                        self.buffers.take(&session.compiled.compiled, pdr, packet, &mut self.gtpu, stats);
                    }
                    None => stats.drops.count(telemetry::DropReason::UnknownUe),
                }
                return;
            }
        };
        let Some(session) = self.sessions.by_remote(peer, teid) else { return };
        let seid = session.compiled.seid();
        let Some(association) = self.associations.get(&session.cp) else { return };
        if self.reports.values().any(|reported| *reported == seid) {
            return;
        }
        let (ipv4, ipv6) = match peer {
            IpAddr::V4(address) => (Some(address), None),
            IpAddr::V6(address) => (None, Some(address)),
        };
        let remote_f_teids = vec![FTeid::Assigned { teid, ipv4, ipv6 }];
        let report = SessionReportRequest {
            report_type: ReportType::ERIR,
            error_indication_report: Some(ErrorIndicationReport { remote_f_teids }),
            ..Default::default()
        };
        match self.endpoint.send_request(now(), association.address, session.cp_seid, report) {
            Ok(handle) => {
                self.reports.insert(handle, seid);
            }
            Err(error) => tracing::debug!(%error, "Error Indication not reported"),
        }
    }

    fn answer(&self, query: Query) {
        // A receiver that has gone away needs no answer.
        let _ = match query {
            Query::Sessions(reply) => {
                let list: Vec<Value> = self
                    .sessions
                    .iter()
                    .map(|(seid, session)| session_json(*seid, session, &self.config))
                    .collect();
                reply.send(Value::Array(list))
            }
            Query::Status(reply) => reply.send(self.status()),
        };
    }

    fn status(&self) -> Value {
        let associations: Vec<Value> = self
            .associations
            .iter()
            .map(|(peer, association)| {
                json!({"peer": peer.to_string(), "node_id": node_id_text(&association.node_id)})
            })
            .collect();
        let Counters {
            received,
            sent,
            malformed,
            version,
            duplicates,
            unmatched_responses,
            retransmissions,
            timeouts,
        } = self.endpoint.counters();
        json!({
            "associations": associations,
            "sessions": self.sessions.count(),
            "pfcp": {
                "received": received, "sent": sent, "malformed": malformed, "version": version,
                "duplicates": duplicates, "unmatched_responses": unmatched_responses,
                "retransmissions": retransmissions, "timeouts": timeouts,
            },
        })
    }
}

fn node_id_text(node_id: &NodeId) -> String {
    match node_id {
        NodeId::Ipv4(address) => address.to_string(),
        NodeId::Ipv6(address) => address.to_string(),
        NodeId::Fqdn(name) => name.clone(),
    }
}

fn session_json(seid: u64, session: &N4Session, config: &Config) -> Value {
    let rules = &session.rules;
    let (uplink, downlink) = session.compiled.usage();
    let remote: Vec<Value> = rules
        .pdrs
        .iter()
        .filter_map(|(id, pdr)| {
            let far = rules.fars.get(&pdr.far_id)?;
            let (teid, peer) = far.outer_header?.gtpu_endpoint()?;
            let forwards = far.action.contains(pfcp::ApplyAction::FORW);
            forwards.then(|| json!({"pdr": id, "teid": teid, "peer": peer.to_string()}))
        })
        .collect();
    let (mut ipv4, mut ipv6) = (BTreeSet::new(), BTreeSet::new());
    for pdr in rules.pdrs.values() {
        ipv4.extend(pdr.ue_v4);
        ipv6.extend(pdr.ue_v6);
    }
    let ipv6: Vec<String> = ipv6.iter().map(|(prefix, len)| format!("{prefix}/{len}")).collect();
    json!({
        "seid": seid,
        "cp_seid": session.cp_seid,
        "cp": session.cp.to_string(),
        "dnn": compile::network_of(rules, config),
        "ipv4": ipv4.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ipv6": ipv6,
        "teids": rules.teids(),
        "remote": remote,
        "pdrs": rules.pdrs.len(),
        "uplink": {"packets": uplink.packets, "bytes": uplink.bytes},
        "downlink": {"packets": downlink.packets, "bytes": downlink.bytes},
    })
}
