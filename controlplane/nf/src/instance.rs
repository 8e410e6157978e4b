//! One NF instance, from binding its address to its regular end.

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use net::time;
use sbi::{
    ApiRoot, Bound, Client, Router, Scheme, Server, Service,
    model::{
        common::{DateTime, NfInstanceId},
        nrf::{IpEndPoint, NfProfile, NfService, NfServiceVersion, NfStatus, NfType, UriScheme},
    },
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    certificate::Certificate,
    env::Env,
    oam::{self, Oam},
    registration::{self, Registration},
    shutdown::Shutdown,
    trust::TrustError,
    watch::Watch,
};

/// Pause between attempts to reach a peer that has not started yet.
const PREPARE_PAUSE: Duration = Duration::from_millis(20);
/// How long the attempts continue. Later the peer is found when it is first called.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);

/// Why an NF could not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The SBI address cannot be used.
    #[error("{nf} cannot listen on {address}: {source}")]
    Sbi {
        /// NF type.
        nf: NfType,
        /// Configured address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The OAM socket cannot be created.
    #[error("cannot make the socket {}: {source}", path.display())]
    Oam {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The NF has no usable key or secret.
    #[error("{nf} cannot use its keys: {source}")]
    Trust {
        /// NF type.
        nf: NfType,
        /// The file, and what is wrong with it.
        source: TrustError,
    },
}

/// An NF that has bound its address and does not serve yet.
#[derive(Debug)]
pub struct Instance {
    env: Env,
    nf_type: NfType,
    bound: Bound,
    client: Client,
    stop: Shutdown,
    profile: NfProfile,
    tasks: JoinSet<()>,
}

impl Instance {
    /// Binds the SBI address for an NF of this type.
    ///
    /// # Errors
    /// The address is in use or not of this host, or the NF's secret cannot be used.
    pub async fn bind(nf_type: NfType, address: SocketAddr, env: &Env) -> Result<Self, BindError> {
        let trust = |source| BindError::Trust { nf: nf_type.clone(), source };
        let serves_tls = env.serves_tls(address);
        let certificate = env.certificate(&nf_type, serves_tls.then_some(address)).map_err(trust)?;
        let bound = Bound::bind(address, env.server.clone()).await.map_err(|source| BindError::Sbi {
            nf: nf_type.clone(),
            address,
            source,
        })?;
        let address = bound.address();
        let id = certificate.as_ref().map_or_else(|| instance_id(&nf_type, address), Certificate::instance);
        let tls = certificate.as_ref().map(Certificate::tls);
        let bound = match &tls {
            Some(tls) if serves_tls => bound.secured(tls.clone()),
            _ => bound,
        };
        // The NRF uses itself as NRF.
        let nrf = if nf_type == NfType::Nrf { Some(bound.api_root()) } else { env.nrf.clone() };
        let client = env.client_of(nf_type.clone(), id, nrf, tls).map_err(trust)?;
        let bound = match env.guard(&nf_type, id) {
            Some(guard) => bound.guarded(guard),
            None => bound,
        };
        let profile = base_profile(id, nf_type.clone(), address);
        let stop = Shutdown::default();
        let tasks = JoinSet::new();
        let mut instance = Self { env: env.clone(), nf_type, bound, client, stop, profile, tasks };
        if let Some(certificate) = certificate {
            let stop = instance.stopping();
            instance.spawn(async move {
                tokio::select! {
                    () = stop.wait() => {}
                    () = certificate.follow() => {}
                }
            });
        }
        Ok(instance)
    }

    /// Instance identifier in the NRF: the one in the certificate, else the same whenever an NF of this type starts on
    /// this address.
    pub fn id(&self) -> NfInstanceId {
        self.profile.nf_instance_id
    }

    /// Our API root: the beginning of every URI that this NF gives out.
    pub fn api_root(&self) -> ApiRoot {
        self.bound.api_root()
    }

    /// Client for calls to other NFs.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Triggered when this NF is to stop, before its server stops. For the NF's own tasks.
    pub fn stopping(&self) -> Shutdown {
        self.stop.clone()
    }

    /// The profile for the NRF; services are added from the router at the start.
    pub fn profile(&mut self) -> &mut NfProfile {
        &mut self.profile
    }

    /// Discovers an NF that offers `O` and connects to it, in the background, so that the first call of
    /// a core that has just started takes no longer than later ones. Repeated until it succeeds or
    /// [`PREPARE_LIMIT`] has passed.
    pub fn prepare<O: sbi::Operation>(&mut self) {
        let (client, stop) = (self.client.clone(), self.stop.clone());
        self.spawn(async move {
            let tries = async {
                while client.prepare::<O>().await.is_err() {
                    time::sleep(PREPARE_PAUSE).await;
                }
            };
            tokio::select! {
                () = stop.wait() => {}
                _ = time::timeout(PREPARE_LIMIT, tries) => {}
            }
        });
    }

    /// Notices that NFs of these types start and restart: their profiles come from the receiver. The router has to
    /// serve `NfStatusNotify` with [`Watch::notified`].
    pub fn watch(&mut self, nf_types: &[NfType]) -> (Arc<Watch>, mpsc::Receiver<NfProfile>) {
        let (watch, started) = Watch::new(nf_types);
        if let Some(nrf) = self.env.nrf.clone() {
            let (stop, run) = (self.stop.clone(), watch.clone().run(self.client(), nrf, self.api_root()));
            self.spawn(async move {
                tokio::select! {
                    () = stop.wait() => {}
                    () = run => {}
                }
            });
        }
        (watch, started)
    }

    /// Runs a task beside the server. When the NF stops, [`Self::stopping`] is triggered; the task has
    /// `drain_timeout` to end and is then dropped.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Serves `router` and `oam`, and stays registered at the NRF as long as it runs.
    ///
    /// # Errors
    /// The OAM socket cannot be created, for instance because the same NF already runs with this
    /// `run_dir`.
    pub fn start<S: Send + Sync + 'static>(self, router: Router<S>, oam: Oam) -> Result<Running, BindError> {
        self.run(router.services(), Box::new(|bound| bound.serve(router)), oam)
    }

    /// Does not depend on the NF's state, so that it is compiled once, here, and not in each NF's crate.
    fn run(
        mut self,
        services: Vec<Service>,
        serve: Box<dyn FnOnce(Bound) -> Server>,
        oam: Oam,
    ) -> Result<Running, BindError> {
        let address = self.bound.address();
        let guarded = self.env.trust.is_some();
        let scheme = match self.bound.api_root().scheme() {
            Scheme::Http => UriScheme::Http,
            Scheme::Https => UriScheme::Https,
        };
        let entry = |service| service_entry(service, address, scheme.clone(), guarded);
        self.profile.nf_services = services.iter().map(entry).collect();
        let registration = Arc::new(Registration::default());
        let status = status(&self.nf_type, self.profile.nf_instance_id, address, registration.clone());
        let path = oam::socket_path(&self.env.run_dir, self.nf_type.as_str());
        let oam_server = oam
            .with_status(status)
            .serve(&path)
            .map_err(|source| BindError::Oam { path: path.clone(), source })?;
        let server = serve(self.bound);
        let done = Shutdown::default();
        // The NRF does not register.
        let nrf = self.env.nrf.clone().filter(|_| self.nf_type != NfType::Nrf);
        let running = Running {
            nf_type: self.nf_type.clone(),
            id: self.profile.nf_instance_id,
            sbi: address,
            oam: path,
            client: self.client.clone(),
            registration: registration.clone(),
            stop: self.stop.clone(),
            done: done.clone(),
        };
        tracing::info!(nf = %self.nf_type, id = %running.id, sbi = %address, "started");
        tokio::spawn(async move {
            let keep = nrf.map(|nrf| {
                let (client, stop) = (self.client.clone(), self.stop.clone());
                tokio::spawn(registration::keep(client, nrf, self.profile, registration, stop))
            });
            tokio::select! {
                () = self.stop.wait() => {}
                () = self.env.shutdown.wait() => self.stop.trigger(),
            }
            end(keep, self.tasks, server, self.env.drain_timeout).await;
            drop(oam_server);
            tracing::info!(nf = %self.nf_type, "stopped");
            done.trigger();
        });
        Ok(running)
    }
}

/// Stops in the order that loses least: deregister, then end our own tasks, then finish requests in
/// progress.
async fn end(
    registration: Option<tokio::task::JoinHandle<()>>,
    mut tasks: JoinSet<()>,
    server: Server,
    drain_timeout: Duration,
) {
    if let Some(registration) = registration {
        let _ = registration.await;
    }
    let drained = async { while tasks.join_next().await.is_some() {} };
    if time::timeout(drain_timeout, drained).await.is_err() {
        tracing::debug!("tasks were still running when the NF stopped");
    }
    tasks.abort_all();
    server.stop().await;
}

/// A running NF. Dropping it changes nothing: it runs until [`Self::stop`] or the environment's shutdown.
#[derive(Debug, Clone)]
pub struct Running {
    nf_type: NfType,
    id: NfInstanceId,
    sbi: SocketAddr,
    oam: PathBuf,
    client: Client,
    registration: Arc<Registration>,
    stop: Shutdown,
    done: Shutdown,
}

impl Running {
    /// NF type.
    pub fn nf_type(&self) -> &NfType {
        &self.nf_type
    }

    /// Instance identifier in the NRF.
    pub fn id(&self) -> NfInstanceId {
        self.id
    }

    /// The address of the SBI.
    pub fn sbi(&self) -> SocketAddr {
        self.sbi
    }

    /// Its OAM socket.
    pub fn oam(&self) -> &std::path::Path {
        &self.oam
    }

    /// The client for calls to other NFs.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until the NRF has accepted the registration. Never returns if no NRF is configured.
    pub async fn registered(&self) {
        self.registration.wait().await;
    }

    /// Stops the NF and waits until it has stopped.
    pub async fn stop(&self) {
        self.stop.trigger();
        self.stopped().await;
    }

    /// Waits until the NF has stopped, for whatever reason.
    pub async fn stopped(&self) {
        self.done.wait().await;
    }
}

/// Identifier of an NF without certificate: the same whenever an NF of this type starts on this address.
pub fn instance_id(nf_type: &NfType, address: SocketAddr) -> NfInstanceId {
    NfInstanceId::from_name(&format!("{nf_type} {address}"))
}

fn base_profile(id: NfInstanceId, nf_type: NfType, address: SocketAddr) -> NfProfile {
    let (ipv4, ipv6) = split_address(address);
    NfProfile {
        nf_instance_id: id,
        nf_type,
        nf_status: NfStatus::Registered,
        heart_beat_timer: None,
        plmn_list: Vec::new(),
        s_nssais: Vec::new(),
        fqdn: None,
        ipv4_addresses: ipv4.into_iter().collect(),
        ipv6_addresses: ipv6.into_iter().collect(),
        priority: None,
        capacity: None,
        load: None,
        allowed_nf_types: Vec::new(),
        amf_info: None,
        smf_info: None,
        nf_services: Vec::new(),
        nf_service_list: std::collections::BTreeMap::new(),
        recovery_time: Some(DateTime::with_milliseconds(time::wall_clock())),
        other: serde_json::Map::new(),
    }
}

fn split_address(address: SocketAddr) -> (Option<std::net::Ipv4Addr>, Option<std::net::Ipv6Addr>) {
    match address {
        SocketAddr::V4(v4) => (Some(*v4.ip()), None),
        SocketAddr::V6(v6) => (None, Some(*v6.ip())),
    }
}

fn service_entry(service: &Service, address: SocketAddr, scheme: UriScheme, guarded: bool) -> NfService {
    let (ipv4_address, ipv6_address) = split_address(address);
    let end_point = IpEndPoint {
        ipv4_address,
        ipv6_address,
        transport: Some("TCP".to_owned()),
        port: Some(address.port()),
    };
    NfService {
        service_instance_id: service.name.to_owned(),
        service_name: service.name.to_owned(),
        versions: vec![NfServiceVersion {
            api_version_in_uri: service.version.to_owned(),
            api_full_version: service.full_version.to_owned(),
        }],
        scheme,
        nf_service_status: NfStatus::Registered,
        fqdn: None,
        ip_end_points: vec![end_point],
        api_prefix: None,
        priority: None,
        capacity: None,
        load: None,
        supported_features: None,
        allowed_nf_types: service.consumers.to_vec(),
        oauth2_required: guarded.then_some(true),
        other: serde_json::Map::new(),
    }
}

/// The answer to `GET /status` of every NF.
fn status(
    nf_type: &NfType,
    id: NfInstanceId,
    sbi: SocketAddr,
    registration: Arc<Registration>,
) -> impl Fn() -> Value + Send + Sync + 'static {
    let (nf, started) = (nf_type.to_string(), time::now());
    move || {
        json!({
            "nf": nf,
            "nf_instance_id": id,
            "sbi": sbi,
            "pid": std::process::id(),
            "registered": registration.is_registered(),
            "uptime_s": (time::now() - started).as_secs(),
            "counters": telemetry::counters::snapshot(),
        })
    }
}
