//! A network on loopback: the gateway under test, an MME whose part each test plays, and a UPF that accepts everything and keeps what it
//! was asked.
#![allow(dead_code, reason = "each test file uses a part")]

#[path = "mme.rs"]
mod mme;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use epc::{Config, Node, Spgw};
use net::time;
use pfcp::Message as PfcpMessage;
use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use serde_json::json;

pub use mme::*;

pub const IMSI: &str = "999700000000001";

/// A loopback network of a test: addresses that no other test uses.
#[derive(Clone, Copy)]
pub struct Network(u32);

impl Network {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub fn ip(&self, host: u8) -> IpAddr {
        format!("127.{}.{}.{host}", 20 + std::process::id() % 200, self.0).parse().unwrap()
    }

    /// The address of S11 and S5/S8 of a gateway.
    pub fn gateway(&self, host: u8) -> SocketAddr {
        SocketAddr::new(self.ip(host), 2123)
    }
}

/// A gateway with its UPF.
pub struct Core {
    pub network: Network,
    node: Node,
    host: u8,
    pub upf: Upf,
    pub spgw: Option<Spgw>,
    pub config: Config,
    folder: tempfile::TempDir,
}

impl Core {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// With a changed configuration.
    pub async fn with(edit: impl FnOnce(&mut serde_json::Value)) -> Self {
        Self::site(Network::new(), Node::Spgw, 5, edit).await
    }

    /// One of several gateways in a network. Its UPF is two hosts further.
    pub async fn site(
        network: Network,
        node: Node,
        host: u8,
        edit: impl FnOnce(&mut serde_json::Value),
    ) -> Self {
        let upf = Upf::start(network.ip(host + 2)).await;
        let own = network.ip(host);
        let mut config = json!({
            "gtpc": format!("{own}:2123"), "pfcp": format!("{own}:8805"), "gtpu": format!("{own}:2152"),
            "upf": [format!("{}:8805", upf.ip)],
            "timers": {"gtpc_t3_ms": 300, "paging_guard_ms": 300, "unreachable_ms": 300, "pfcp_heartbeat_ms": 200, "pfcp_t1_ms": 200},
        });
        if node.is_pgw() {
            let pool = json!({"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"});
            config["apn"] = json!([{"name": "internet", "ue_pool": pool, "dns": ["1.1.1.1"]}]);
        }
        edit(&mut config);
        let config: Config = serde_json::from_value(config).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut core = Self { network, node, host, upf, spgw: None, config, folder };
        core.start_gateway().await;
        core
    }

    pub fn restarts(&self) -> PathBuf {
        self.folder.path().join("restarts")
    }

    /// Ends the gateway and starts it again.
    pub async fn restart_gateway(&mut self) {
        self.spgw = None;
        // Its tasks end at their next step.
        time::sleep(Duration::from_millis(100)).await;
        self.start_gateway().await;
    }

    pub async fn start_gateway(&mut self) {
        let spgw = Spgw::start(self.node, self.config.clone(), &self.restarts()).await.unwrap();
        let deadline = time::now() + PATIENCE;
        while !spgw.has_upf() {
            assert!(time::now() < deadline, "no UPF");
            time::sleep(Duration::from_millis(5)).await;
        }
        self.spgw = Some(spgw);
    }

    pub fn gateway(&self) -> SocketAddr {
        self.network.gateway(self.host)
    }

    pub async fn mme(&self, host: u8) -> Mme {
        Mme::start(self.network.ip(host), self.gateway(), self.network.ip(9), 1).await
    }

    /// Waits until something is so.
    pub async fn until(&self, mut holds: impl AsyncFnMut() -> bool) {
        let deadline = time::now() + PATIENCE;
        while !holds().await {
            assert!(time::now() < deadline, "it did not come to pass");
            time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The PDN connections, as `godwit session list` has them.
    pub async fn sessions(&self) -> Vec<serde_json::Value> {
        let path = self.folder.path().join(format!("oam-{}", nf_socket()));
        let server = self.spgw.as_ref().unwrap().oam().serve(&path).unwrap();
        let answer = nf::oam::call(&path, "GET", "/sessions", None).await.unwrap();
        drop(server);
        answer.as_array().unwrap().clone()
    }

    /// Something at the administration socket.
    pub async fn oam(
        &self,
        method: &str,
        route: &str,
        body: Option<serde_json::Value>,
    ) -> Result<serde_json::Value, String> {
        let path = self.folder.path().join(format!("oam-{}", nf_socket()));
        let _server = self.spgw.as_ref().unwrap().oam().serve(&path).unwrap();
        nf::oam::call(&path, method, route, body.as_ref()).await.map_err(|error| error.to_string())
    }
}

fn nf_socket() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What a UPF was asked.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a few of them in a test")]
pub enum Asked {
    Establish(u64, SessionEstablishmentRequest),
    Modify(u64, SessionModificationRequest),
    Delete(u64),
}

/// A UPF that accepts everything.
pub struct Upf {
    pub ip: IpAddr,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    asked: Mutex<Vec<Asked>>,
    /// Sessions by our SEID: the gateway's SEID.
    sessions: Mutex<std::collections::HashMap<u64, (u64, SocketAddr)>>,
    /// Establishments are refused with this cause if it is not 0.
    refuse: AtomicU32,
    next: AtomicU64,
    reports: Mutex<Vec<(u64, pfcp::message::SessionReportRequest)>>,
    wake: tokio::sync::Notify,
    stamp: AtomicU32,
}

impl Drop for Upf {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Upf {
    pub async fn start(ip: IpAddr) -> Self {
        let shared = Arc::<Shared>::default();
        shared.next.store(1, Ordering::Relaxed);
        shared.stamp.store(1000, Ordering::Relaxed);
        let task = tokio::spawn(serve(ip, shared.clone()));
        Self { ip, shared, task }
    }

    /// What it was asked since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.asked.lock().unwrap())
    }

    pub fn sessions(&self) -> usize {
        self.shared.sessions.lock().unwrap().len()
    }

    /// The UPF's SEID of its only session.
    pub fn only_session(&self) -> u64 {
        *self.shared.sessions.lock().unwrap().keys().next().unwrap()
    }

    /// The UPF's SEID of the session that it was given last.
    pub fn last_session(&self) -> u64 {
        self.shared.next.load(Ordering::Relaxed) - 1
    }

    pub fn refuse(&self, cause: u8) {
        self.shared.refuse.store(cause.into(), Ordering::Relaxed);
    }

    /// Loses all sessions, as after a `kill -9`.
    pub async fn restart(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.shared.sessions.lock().unwrap().clear();
        self.shared.stamp.fetch_add(1, Ordering::Relaxed);
        self.task = tokio::spawn(serve(self.ip, self.shared.clone()));
    }

    /// Stops answering.
    pub async fn stop(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Answers again, with the sessions that it had.
    pub fn resume(&mut self) {
        self.task = tokio::spawn(serve(self.ip, self.shared.clone()));
    }

    /// Reports something about its only session.
    pub fn report(&self, report: pfcp::message::SessionReportRequest) {
        let seid = *self.shared.sessions.lock().unwrap().keys().next().unwrap();
        self.shared.reports.lock().unwrap().push((seid, report));
        self.shared.wake.notify_one();
    }

    pub fn report_data(&self) {
        self.report(pfcp::message::SessionReportRequest {
            report_type: pfcp::ReportType::DLDR,
            downlink_data_report: Some(pfcp::DownlinkDataReport {
                pdr_ids: vec![pfcp::PdrId(17)],
                ..Default::default()
            }),
            ..Default::default()
        });
    }
}

async fn serve(ip: IpAddr, shared: Arc<Shared>) {
    use pfcp::message::*;
    let socket = net::udp::bind(SocketAddr::new(ip, 8805)).await.unwrap();
    let stamp = pfcp::NtpSeconds(shared.stamp.load(Ordering::Relaxed));
    let node = pfcp::NodeId::from(ip);
    let mut endpoint =
        pfcp::endpoint::Endpoint::new(pfcp::endpoint::Config::new(node.clone(), stamp, nf::random::u64()));
    let mut buffer = vec![0u8; 65_536];
    loop {
        let due = endpoint.poll_timeout().map_or_else(|| time::now() + PATIENCE, time::Instant::from_std);
        tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                let Ok((length, from)) = received else { continue };
                endpoint.handle_datagram(time::now().into_std(), from, &buffer[..length]);
            }
            () = time::sleep_until(due) => endpoint.handle_timeout(time::now().into_std()),
            () = shared.wake.notified() => {}
        }
        let now = time::now().into_std();
        for (seid, report) in std::mem::take(&mut *shared.reports.lock().unwrap()) {
            let (cp_seid, to) = shared.sessions.lock().unwrap()[&seid];
            let _ = endpoint.send_request(now, to, cp_seid, report);
        }
        while let Some(event) = endpoint.poll_event() {
            let pfcp::endpoint::Event::Request { id, seid, message, .. } = event else { continue };
            let (cause, seid) = (pfcp::Cause::ACCEPTED, seid.unwrap_or_default());
            let known = |seid: u64| shared.sessions.lock().unwrap().get(&seid).copied();
            match message {
                PfcpMessage::AssociationSetupRequest(_) => {
                    let answer = AssociationSetupResponse {
                        node_id: node.clone(),
                        cause,
                        recovery_time_stamp: stamp,
                        up_function_features: Some(pfcp::UpFunctionFeatures::FTUP),
                        ..Default::default()
                    };
                    let _ = endpoint.respond(now, id, 0, answer);
                }
                PfcpMessage::SessionEstablishmentRequest(request) => {
                    let cp_seid = request.cp_f_seid.seid;
                    let refuse = shared.refuse.load(Ordering::Relaxed) as u8;
                    shared.asked.lock().unwrap().push(Asked::Establish(cp_seid, request.clone()));
                    if refuse != 0 {
                        let answer = SessionEstablishmentResponse {
                            node_id: node.clone(),
                            cause: pfcp::Cause(refuse),
                            ..Default::default()
                        };
                        let _ = endpoint.respond(now, id, cp_seid, answer);
                        continue;
                    }
                    let own = shared.next.fetch_add(1, Ordering::Relaxed);
                    shared.sessions.lock().unwrap().insert(own, (cp_seid, id.peer));
                    let answer = SessionEstablishmentResponse {
                        node_id: node.clone(),
                        cause,
                        up_f_seid: Some(pfcp::FSeid::new(own, ip)),
                        created_pdrs: created(ip, own, &request.create_pdrs),
                        ..Default::default()
                    };
                    let _ = endpoint.respond(now, id, cp_seid, answer);
                }
                PfcpMessage::SessionModificationRequest(request) => {
                    shared.asked.lock().unwrap().push(Asked::Modify(seid, request.clone()));
                    let (cp_seid, cause) = match known(seid) {
                        Some((cp_seid, _)) => (cp_seid, cause),
                        None => (0, pfcp::Cause::SESSION_NOT_FOUND),
                    };
                    let created_pdrs = created(ip, seid, &request.create_pdrs);
                    let answer = SessionModificationResponse { cause, created_pdrs, ..Default::default() };
                    let _ = endpoint.respond(now, id, cp_seid, answer);
                }
                PfcpMessage::SessionDeletionRequest(_) => {
                    shared.asked.lock().unwrap().push(Asked::Delete(seid));
                    let gone = shared.sessions.lock().unwrap().remove(&seid);
                    let (cp_seid, cause) = match gone {
                        Some((cp_seid, _)) => (cp_seid, cause),
                        None => (0, pfcp::Cause::SESSION_NOT_FOUND),
                    };
                    let answer = SessionDeletionResponse { cause, ..Default::default() };
                    let _ = endpoint.respond(now, id, cp_seid, answer);
                }
                _ => {}
            }
        }
        while let Some(transmit) = endpoint.poll_transmit() {
            let _ = socket.try_send_to(&transmit.payload, transmit.to);
        }
    }
}

/// The tunnels that the UPF chooses: TEIDs by session and CHOOSE ID.
fn created(ip: IpAddr, session: u64, pdrs: &[pfcp::CreatePdr]) -> Vec<pfcp::CreatedPdr> {
    let IpAddr::V4(v4) = ip else { panic!("an IPv4 loopback address") };
    let tunnel = |pdr: &pfcp::CreatePdr| match pdr.pdi.f_teid? {
        pfcp::FTeid::Choose { id, .. } => {
            let teid = session as u32 * 256 + u32::from(id.unwrap_or(0));
            let f_teid = pfcp::FTeid::Assigned { teid, ipv4: Some(v4), ipv6: None };
            Some(pfcp::CreatedPdr { pdr_id: pdr.pdr_id, f_teid: Some(f_teid), ..Default::default() })
        }
        pfcp::FTeid::Assigned { .. } => None,
    };
    pdrs.iter().filter_map(tunnel).collect()
}
