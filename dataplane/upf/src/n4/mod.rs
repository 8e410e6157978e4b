//! N4: the PFCP server (TS 29.244).
//!
//! One task owns the PFCP endpoint, the associations and all sessions, and handles requests one by one, so
//! there is nothing to lock. `associations` decides which CP functions are served. [`rules`] holds the rules
//! that they sent. [`compile`] turns rules into the form that workers execute; `templates` spares this for most
//! sessions. [`session`] does both atomically. [`usage`] finds what must be reported, and `reports` repeats
//! reports until they arrive. [`path`] watches GTP-U peers. [`end_markers`] end old paths. `defects` bounds the damage of a panic. This file
//! receives and sends messages.

pub mod addresses;
mod associations;
mod changes;
pub mod compile;
mod defects;
pub mod end_markers;
pub mod indications;
pub mod ineffective;
mod networks;
pub mod path;
mod reports;
pub mod rules;
pub mod session;
mod status;
mod templates;
pub mod usage;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use net::udp::UdpSocket;
use net::udp::burst::{self, Burst};
use packet::gtpu::{self, Signalling};
use pfcp::endpoint::{Config as EndpointConfig, Endpoint, Event, RequestId};
use pfcp::{
    Cause, ControlSequence, LoadControl, Message, Metric, NodeId, NtpSeconds, RemoteGtpuPeer,
    UpFunctionFeatures,
};
use pktio::{Port, Vector};
use serde_json::Value;
use telemetry::counters::{Counter, Family};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::Config;
use crate::interface::Role;
use crate::pipeline::Event as PacketEvent;
use crate::plan::Peer;
use crate::random;
use crate::tables::Tables;
use addresses::Address;
use associations::Associations;
use defects::Defects;
use end_markers::EndMarker;
use indications::Indications;
use path::Timing;
use rcu::Queue;
use reports::{RESENT_AT_ONCE, Reports, overflow};
use rules::urr::Now;
use session::{Established, Sessions};

/// The port of PFCP (TS 29.244 §4.4.2).
pub const PFCP_PORT: u16 = 8805;
/// Largest datagram that is received: what UDP can carry.
const DATAGRAM: usize = 65_535;
/// Sessions whose timers are handled before datagrams get their turn again.
const MAX_TIMERS: usize = 256;

/// Values of the Destination Interface (§8.2.24).
const ACCESS: u8 = 0;
const CORE: u8 = 1;
const CP_FUNCTION: u8 = 3;

/// Optional features of this UPF (§8.2.25).
const FEATURES: [UpFunctionFeatures; 11] = [
    UpFunctionFeatures::FTUP,
    UpFunctionFeatures::TREU,
    UpFunctionFeatures::EMPU,
    UpFunctionFeatures::MNOP,
    UpFunctionFeatures::DDND,
    UpFunctionFeatures::PDIU,
    UpFunctionFeatures::UDBC,
    UpFunctionFeatures::QUOAC,
    UpFunctionFeatures::FRRT,
    UpFunctionFeatures::VTIME,
    UpFunctionFeatures::IP6PL,
];

static ESTABLISHED: Counter = Counter::new("upf_n4_sessions_established");
static DELETED: Counter = Counter::new("upf_n4_sessions_deleted");
static REJECTED: Family = Family::new("upf_n4_rejected", "cause");
static PEER_RESTARTS: Counter = Counter::new("upf_n4_peer_restarts");
static PEER_FAILURES: Counter = Counter::new("upf_n4_peer_failures");
static PATH_FAILURES: Counter = Counter::new("upf_n3_path_failures");

/// A query to the N4 task.
#[derive(Debug)]
pub enum Query {
    /// All sessions, as JSON.
    Sessions(oneshot::Sender<Value>),
    /// Associations, PFCP counters and number of sessions, as JSON.
    Status(oneshot::Sender<Value>),
}

/// The N4 task's connections to the rest of the UPF.
pub struct Wiring {
    /// N4 socket.
    pub socket: UdpSocket,
    /// Ports for End Markers and path management, by number of the interface: one that sends behind the packets of each
    /// worker, or only one; none without tunnels.
    pub signalling: Vec<Vec<Box<dyn Port>>>,
    /// Tables of the workers.
    pub tables: Arc<Tables>,
    /// Events from packets.
    pub events: mpsc::Receiver<PacketEvent>,
    /// Queries.
    pub queries: mpsc::Receiver<Query>,
    /// Becomes true when the task must end.
    pub stop: watch::Receiver<bool>,
}

/// The N4 task's state.
struct Server {
    config: Arc<Config>,
    endpoint: Endpoint,
    sessions: Sessions,
    associations: Associations,
    node_id: NodeId,
    recovery_time_stamp: NtpSeconds,
    signalling: Vec<Vec<Box<dyn Port>>>,
    /// The GTP-U message that is being sent.
    message: Vector,
    /// End Markers that wait until workers have finished their batches, with the time of the request.
    end_markers: Queue<(u64, Vec<EndMarker>)>,
    reports: Reports,
    indications: Indications,
    /// Datagrams for the next system call.
    outbox: Vec<(SocketAddr, Arc<[u8]>)>,
    /// The load that was reported last, and a sequence number that counts its changes.
    load: (u8, u32),
    defects: Defects,
    /// The instant from which milliseconds are counted: zero of the clock that the workers read too.
    epoch: Instant,
}

/// Seconds since 1900, by the wall clock.
fn ntp_now() -> NtpSeconds {
    let since = net::time::wall_clock().duration_since(std::time::UNIX_EPOCH);
    NtpSeconds::from_unix(since.map_or(0, |since| since.as_secs()))
}

/// Serves N4 until told to stop.
pub async fn serve(config: Arc<Config>, wiring: Wiring) {
    let Wiring { socket, signalling, tables, mut events, mut queries, mut stop } = wiring;
    let end_markers = Queue::new(tables.domain());
    let recovery_time_stamp = ntp_now();
    let node_id = NodeId::from(config.pfcp.ip());
    let endpoint_config = EndpointConfig::new(node_id.clone(), recovery_time_stamp, random::secret());
    let mut server = Server {
        endpoint: Endpoint::new(endpoint_config),
        sessions: Sessions::new(Arc::clone(&config), tables, random::secret()),
        associations: Associations::default(),
        node_id,
        recovery_time_stamp,
        signalling,
        message: Vector::new(1, 64),
        end_markers,
        reports: Reports::default(),
        indications: Indications::new(Timing::default(), random::secret()),
        outbox: Vec::with_capacity(burst::BURST),
        load: (0, 0),
        defects: Defects::default(),
        epoch: now() - Duration::from_nanos(net::time::now_ns()),
        config,
    };
    let mut burst = Burst::new(DATAGRAM);
    loop {
        server.handle_events();
        server.transmit(&socket).await;
        let timer = async {
            match server.deadline() {
                Some(deadline) => {
                    net::time::sleep_until(net::time::Instant::from_std(deadline)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            received = burst.receive(&socket) => match received {
                // Datagrams that have arrived together are answered together. Each one's requests are handled
                // before the next is decoded, so that they use the same memory.
                Ok(_) => {
                    let now = now();
                    for (from, datagram) in burst.iter() {
                        server.guarded(|server| server.endpoint.handle_datagram(now, from, datagram));
                        server.handle_events();
                    }
                }
                // An ICMP error caused by an earlier datagram; the endpoint's timers handle silent peers.
                Err(error) => tracing::debug!(%error, "PFCP receive"),
            },
            () = timer => server.guarded_timeout(),
            Some(event) = events.recv() => {
                server.guarded(|server| server.packet_event(event));
            }
            Some(query) = queries.recv() => {
                server.guarded(|server| server.answer(query));
            }
            // An error means that the sender is gone, so that nobody could stop this task any more.
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

fn now() -> Instant {
    net::time::now().into_std()
}

impl Server {
    /// Sends the endpoint's datagrams.
    async fn transmit(&mut self, socket: &UdpSocket) {
        loop {
            let due = std::iter::from_fn(|| self.endpoint.poll_transmit());
            self.outbox.extend(due.take(burst::BURST).map(|transmit| (transmit.to, transmit.payload)));
            if self.outbox.is_empty() {
                return;
            }
            burst::send_all(socket, &self.outbox, |to, error| {
                // Like a lost datagram: the sender of the request, this UPF or the peer, repeats it.
                tracing::debug!(%error, %to, "PFCP message not sent");
            })
            .await;
            self.outbox.clear();
        }
    }

    fn moment(&self) -> Now {
        let since = now().saturating_duration_since(self.epoch);
        Now { ms: since.as_millis() as u64, wall: ntp_now() }
    }

    /// When [`Server::handle_timeout`] must be called.
    fn deadline(&mut self) -> Option<Instant> {
        let paths = self.sessions.paths.next_ms();
        let own =
            [self.sessions.next_timeout(), paths, self.indications.next_ms()].into_iter().flatten().min();
        let own = own.map(|ms| self.epoch + Duration::from_millis(ms));
        let marker = (!self.end_markers.is_empty()).then(|| now() + end_markers::POLL);
        let next = own.into_iter().chain(self.endpoint.poll_timeout()).chain(marker).min();
        next.max(self.defects.rest_until.filter(|_| next.is_some()))
    }

    fn handle_timeout(&mut self) {
        self.endpoint.handle_timeout(now());
        let moment = self.moment();
        self.flush_end_markers(moment.ms);
        for _ in 0..MAX_TIMERS {
            let Some(report) = self.sessions.handle_timeout(moment) else { break };
            if let Some(report) = report {
                self.report(report);
            }
        }
        let due = self.sessions.paths.poll(moment.ms);
        let indicated = self.indications.poll(moment.ms);
        for (peer, sequence) in due.echoes.into_iter().chain(indicated) {
            self.send_gtpu(peer, &Signalling::EchoRequest { sequence });
        }
        if !due.failed.is_empty() {
            PATH_FAILURES.add(due.failed.len() as u64);
            tracing::warn!(peers = ?due.failed, "GTP-U peers do not answer");
            let failed: Vec<RemoteGtpuPeer> =
                due.failed.into_iter().map(|peer| self.gtpu_peer(peer)).collect();
            self.report_paths(false, &failed);
        }
    }

    /// Handles an Echo Response of a GTP-U peer.
    fn echo_response(&mut self, peer: Peer, sequence: u16) {
        let now_ms = self.moment().ms;
        if self.sessions.paths.answered(peer, sequence, now_ms) {
            tracing::info!(?peer, "GTP-U peer answers again");
            self.report_paths(true, &[self.gtpu_peer(peer)]);
        }
        for teid in self.indications.answered(peer, sequence) {
            for report in self.sessions.error_indications(peer, teid) {
                self.report_error(report);
            }
        }
    }

    /// Handles an Error Indication: a GTP-U peer does not know a tunnel.
    fn error_indication(&mut self, peer: Peer, teid: u32) {
        if self.sessions.by_remote(peer, teid).next().is_none() {
            return;
        }
        let now_ms = self.moment().ms;
        if let Some(sequence) = self.indications.received(peer, teid, now_ms) {
            self.send_gtpu(peer, &Signalling::EchoRequest { sequence });
        }
    }

    /// The load, if the CP function wants it.
    fn load(&mut self, peer: IpAddr) -> Option<LoadControl> {
        self.associations.get(peer).filter(|association| association.wants_load)?;
        let load = self.sessions.load();
        if load != self.load.0 {
            self.load = (load, self.load.1.wrapping_add(1));
        }
        Some(LoadControl { sequence: ControlSequence(self.load.1), metric: Metric(load) })
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            self.guarded(|server| server.event(event));
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Request { id, seid, message } => self.guarded_request(id, seid.unwrap_or(0), message),
            Event::MalformedRequest { id, seid, error } => {
                let cause = error.cause().unwrap_or(Cause::REJECTED);
                let cp_seid = seid
                    .and_then(|seid| self.sessions.get(seid))
                    .filter(|session| session.cp == id.peer.ip())
                    .map_or(0, |session| session.cp_seid);
                self.reject(id, cp_seid, cause, error.offending_ie());
            }
            Event::Response { handle, peer, seid, message } => {
                if !self.association_answered(handle, &message) {
                    self.answered(handle, peer.ip(), seid, &message);
                }
            }
            Event::Failed { handle, failure, .. } => {
                if !self.association_unanswered(handle, failure) {
                    self.failed(handle, failure);
                }
            }
            Event::PeerRestarted { peer, .. } => {
                PEER_RESTARTS.inc();
                let sessions = self.forget(peer);
                tracing::info!(%peer, sessions, "CP function restarted: its sessions are removed");
            }
            Event::PeerFailed { peer } => {
                PEER_FAILURES.inc();
                tracing::warn!(%peer, "CP function does not answer heartbeats; its sessions stay");
                self.silent(peer);
            }
            Event::PeerRecovered { peer } => {
                tracing::info!(%peer, "CP function answers again");
                self.recovered(peer);
                self.resend(peer, RESENT_AT_ONCE);
            }
        }
    }

    /// Counts sessions that were removed.
    fn removed(&mut self, count: usize) {
        DELETED.add(count as u64);
    }

    fn request(&mut self, id: RequestId, seid: u64, message: Message) {
        let peer = id.peer.ip();
        let node_id = self.node_id.clone();
        // Sessions are changed only from the address of the association.
        let owner = self.associations.get(peer).map(|_| peer);
        match message {
            Message::AssociationSetupRequest(request) => self.associate(id, request),
            Message::AssociationUpdateRequest(request) => {
                self.update_association(id, request.cp_function_features);
            }
            Message::AssociationReleaseRequest(_) => self.release_association(id),
            Message::SessionSetDeletionRequest(request) => self.delete_session_sets(id, &request),
            Message::SessionEstablishmentRequest(request) => {
                let cp_seid = request.cp_f_seid.seid;
                if owner.is_none() {
                    return self.reject(id, cp_seid, Cause::NO_ASSOCIATION, None);
                }
                let moment = self.moment();
                let Established { mut response, replaced } =
                    self.sessions.establish(node_id, peer, request, moment);
                for old in replaced {
                    DELETED.inc();
                    tracing::info!(%peer, seid = old, "session removed: its UE address went to a new one");
                }
                self.count(response.cause);
                if response.cause.is_accepted() {
                    ESTABLISHED.inc();
                }
                response.load_control = self.load(peer);
                self.respond(id, cp_seid, response);
            }
            Message::SessionModificationRequest(request) => {
                let moment = self.moment();
                let modified = owner.and_then(|cp| self.sessions.modify(seid, cp, &request, moment));
                let Some(mut modified) = modified else {
                    return self.reject(id, 0, Cause::SESSION_NOT_FOUND, None);
                };
                self.count(modified.response.cause);
                self.send_end_markers(std::mem::take(&mut modified.end_markers), moment.ms);
                modified.response.load_control = self.load(peer);
                let (rest, additional) = overflow(&mut modified.response.usage_reports);
                modified.response.additional_usage_reports = additional;
                self.respond(id, modified.cp_seid, modified.response);
                self.report_rest((peer, seid, modified.cp_seid), rest);
                if let Some(report) = modified.report {
                    self.report(report);
                }
            }
            Message::SessionDeletionRequest(_) => {
                let moment = self.moment();
                match owner.and_then(|cp| self.sessions.delete(seid, cp, moment)) {
                    Some((cp_seid, mut response)) => {
                        DELETED.inc();
                        response.load_control = self.load(peer);
                        let (rest, additional) = overflow(&mut response.usage_reports);
                        response.additional_usage_reports = additional;
                        self.respond(id, cp_seid, response);
                        self.report_rest((peer, seid, cp_seid), rest);
                    }
                    None => self.reject(id, 0, Cause::SESSION_NOT_FOUND, None),
                }
            }
            // Requests that only UP functions send.
            _ => self.reject(id, 0, Cause::SERVICE_NOT_SUPPORTED, None),
        }
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

    /// Sends a message to a GTP-U peer.
    fn send_gtpu(&mut self, peer: Peer, message: &Signalling) {
        self.send_gtpu_behind(0, peer, message);
    }

    /// The same, behind the packets that the worker with this number has sent.
    fn send_gtpu_behind(&mut self, worker: u32, peer: Peer, message: &Signalling) {
        let Some(ports) = self.signalling.get_mut(usize::from(peer.interface)) else { return };
        let at = if ports.len() > worker as usize { worker as usize } else { 0 };
        let Some(port) = ports.get_mut(at) else { return };
        self.message.clear();
        if self.message.push(&message.build(), SocketAddr::new(peer.address, gtpu::PORT)) {
            let sent = port.transmit(&mut self.message, &[0]);
            if sent.packets == 0 {
                tracing::debug!(?peer, "GTP-U signalling not sent");
            }
        }
    }

    fn packet_event(&mut self, event: PacketEvent) {
        match event {
            PacketEvent::ErrorIndication { peer, teid } => self.error_indication(peer, teid),
            PacketEvent::Address { seid, mac, c_tag, s_tag } => {
                let moment = self.moment();
                if let Some(report) = self.sessions.address(seid, Address { mac, c_tag, s_tag }, moment) {
                    self.report(report);
                }
            }
            PacketEvent::EchoResponse { peer, sequence } => self.echo_response(peer, sequence),
            PacketEvent::EndMarker { peer, teid } => self.end_marker(peer, teid),
            PacketEvent::Usage { seid, .. } => {
                let moment = self.moment();
                if let Some(report) = self.sessions.check(seid, moment) {
                    self.report(report);
                }
            }
            PacketEvent::DownlinkData { seid, pdr } => {
                let moment = self.moment();
                if let Some(report) = self.sessions.downlink_data(seid, pdr, Default::default(), moment) {
                    self.report(report);
                }
            }
        }
    }

    fn answer(&self, query: Query) {
        // If the receiver is gone, no answer is needed.
        let _ = match query {
            Query::Sessions(reply) => {
                let list = self.sessions.iter();
                let list = list
                    .map(|(seid, session)| status::session(*seid, session, &self.sessions.interfaces))
                    .collect();
                reply.send(Value::Array(list))
            }
            Query::Status(reply) => reply.send(self.status()),
        };
    }

    /// A peer in the form of node reports. An interface with a network instance is named, so that the CP function can
    /// tell peers with one address apart.
    fn gtpu_peer(&self, peer: Peer) -> RemoteGtpuPeer {
        let (ipv4, ipv6) = match peer.address {
            IpAddr::V4(address) => (Some(address), None),
            IpAddr::V6(address) => (None, Some(address)),
        };
        let interface = self.sessions.interfaces.number(peer.interface.into());
        let named = interface.filter(|interface| interface.config.network_instance.is_some());
        RemoteGtpuPeer {
            ipv4,
            ipv6,
            destination_interface: named.map(|named| match named.role() {
                Role::N3 => ACCESS,
                Role::N9 | Role::N6 => CORE,
                Role::N4u => CP_FUNCTION,
            }),
            network_instance: named
                .and_then(|named| named.network_instance())
                .map(|name| pfcp::network_instance_as_labels(&name)),
        }
    }
}
