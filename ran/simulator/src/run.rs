//! Simulates many UEs at once, as a [`Config`] says.
//!
//! One task per UE registers, sets up a session, stays for the configured time and deregisters. A
//! semaphore bounds how many UEs are in their initial procedures; an interval bounds how many start per
//! second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nas::{PsiSet, ServiceType};
use net::time::Instant;
use ngap::cause::RadioNetwork;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::config::{Config, Hold};
use crate::event::{By, Event, Totals, elapsed_ms, millis, print};
use crate::gnb::{GnbConfig, GnbError};
use crate::network::Network;
use crate::ue::{Failure, NetworkEvent, Ue, WakeReason};

/// How long an idle UE waits after a failed request before it tries again.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// Why a simulation could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A value of the configuration cannot be used.
    #[error(transparent)]
    Config(#[from] types::Invalid),
    /// GTP-U could not be bound.
    #[error("N3 on {address}: {source}; is the address of this host, and UDP port 2152 free?")]
    UserPlane {
        /// The N3 address.
        address: std::net::IpAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// A gNB could not be set up.
    #[error("gNB {id:#x}: {source}")]
    Gnb {
        /// Its identity.
        id: u32,
        /// Why.
        source: GnbError,
    },
    /// The UEs' end of the radio could not be set up.
    #[error(transparent)]
    Cells(ue::StartError),
}

impl Config {
    /// The `index`-th gNB.
    pub fn gnb(&self, index: u16) -> GnbConfig {
        GnbConfig {
            id: self.first_gnb_id.wrapping_add(index.into()),
            name: None,
            plmn: self.plmn,
            tac: self.tac,
            slices: self.slices.clone(),
            amf: vec![self.amf],
            n2: self.n2,
            sctp: net::sctp::SctpConfig { mode: self.sctp, ..Default::default() },
        }
    }
}

/// Runs a simulation until it is over or `shutdown` completes, printing events to standard output.
///
/// # Errors
/// The simulation could not start. UEs that fail are events, not errors.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<Totals, RunError> {
    run_with(config, print, shutdown).await
}

/// As [`run`], giving each event to `sink`.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    config: Config,
    sink: impl Fn(&Event) + Send + Sync + 'static,
    shutdown: impl Future<Output = ()>,
) -> Result<Totals, RunError> {
    let network = Network::start(&config, &sink).await?;
    let mut ues = Vec::new();
    let ue_config = Arc::new(config.ue.clone());
    for (index, access) in (0..config.count).zip(network.accesses().into_iter().cycle()) {
        ues.push(Ue::new(Arc::clone(&ue_config), index.into(), access)?);
    }
    let (stop, stopping) = watch::channel(false);
    let simulation = Arc::new(Simulation {
        permits: Semaphore::new(config.concurrency.max(1)),
        counts: Counts::default(),
        started: net::time::now(),
        sink: Box::new(sink),
        network,
        stopping,
        config,
    });
    let totals = simulation.clone().simulate(ues, stop, shutdown).await;
    simulation.network.shutdown().await;
    Ok(totals)
}

/// Runs the lives of UEs, each as one task, of which `rate` per second start at most. When `shutdown` completes, `stop` becomes
/// `true`. Returns when all have ended.
pub async fn run_all(
    lives: impl Iterator<Item = impl Future<Output = ()> + Send + 'static>,
    rate: Option<f64>,
    stop: &watch::Sender<bool>,
    shutdown: impl Future<Output = ()>,
) {
    let mut tasks = JoinSet::new();
    let all = async {
        let interval = |rate: f64| Duration::from_secs_f64((1.0 / rate).clamp(1e-6, 3600.0));
        let mut pace = rate.filter(|rate| *rate > 0.0).map(|rate| net::time::interval(interval(rate)));
        for life in lives {
            if let Some(pace) = &mut pace {
                pace.tick().await;
            }
            tasks.spawn(life);
        }
        while tasks.join_next().await.is_some() {}
    };
    let mut all = std::pin::pin!(all);
    tokio::select! {
        () = &mut all => {}
        () = shutdown => {
            // Nobody may be listening any more.
            let _ = stop.send(true);
            all.await;
        }
    }
}

/// What the UE tasks share.
struct Simulation {
    config: Config,
    permits: Semaphore,
    counts: Counts,
    started: Instant,
    sink: Box<dyn Fn(&Event) + Send + Sync>,
    network: Network,
    /// Becomes `true` when the simulation is to end.
    stopping: watch::Receiver<bool>,
}

#[derive(Default)]
struct Counts {
    registered: AtomicU64,
    sessions: AtomicU64,
    failed: AtomicU64,
    deregistered: AtomicU64,
    services: AtomicU64,
    /// UEs that have been through their initial procedures.
    settled: AtomicU64,
}

fn increment(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed) + 1
}

impl Simulation {
    fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let packets = self.network.packets();
        Totals {
            registered: read(&self.counts.registered),
            sessions: read(&self.counts.sessions),
            failed: read(&self.counts.failed),
            deregistered: read(&self.counts.deregistered),
            services: read(&self.counts.services),
            elapsed_ms: elapsed_ms(self.started),
            uplink_packets: packets.uplink,
            downlink_packets: packets.downlink,
            dropped_packets: packets.dropped,
        }
    }

    fn report(&self, event: &Event) {
        (self.sink)(event);
    }

    fn stopped(&self) -> bool {
        *self.stopping.borrow()
    }

    async fn stop(&self) {
        // An error means that the sender was dropped, which does not happen before the tasks end.
        let _ = self.stopping.clone().wait_for(|stop| *stop).await;
    }

    async fn simulate(
        self: Arc<Self>,
        ues: Vec<Ue>,
        stop: watch::Sender<bool>,
        shutdown: impl Future<Output = ()>,
    ) -> Totals {
        let ues = ues.into_iter().map(|ue| Arc::clone(&self).run_ue(ue));
        run_all(ues, self.config.rate, &stop, shutdown).await;
        let totals = self.totals();
        self.report(&Event::Summary(totals));
        totals
    }

    /// The life of one UE.
    async fn run_ue(self: Arc<Self>, mut ue: Ue) {
        let mut settled = false;
        for cycle in 1..=self.config.cycles.max(1) {
            if self.stopped() {
                break;
            }
            let arrived = self.register_with_session(&mut ue).await;
            if !std::mem::replace(&mut settled, true) {
                self.settle();
            }
            let last = cycle == self.config.cycles.max(1);
            if arrived && last {
                self.stay(&mut ue).await;
            }
            if ue.registered() && (!last || self.config.deregister) {
                self.deregister(&mut ue).await;
            }
        }
        if !settled {
            self.settle();
        }
    }

    /// Counts a UE as settled, and reports `ready` after the last one.
    fn settle(&self) {
        if increment(&self.counts.settled) == u64::from(self.config.count) {
            self.report(&Event::Ready(self.totals()));
        }
    }

    /// Reports a failure.
    fn report_failure(&self, ue: &Ue, procedure: &'static str, failure: &Failure) {
        increment(&self.counts.failed);
        self.report(&Event::Failed {
            supi: ue.supi(),
            procedure,
            reason: failure.reason(),
            cause: failure.cause(),
            detail: failure.to_string(),
        });
    }

    /// Registers the UE and sets up its session. Returns whether the UE is registered.
    async fn register_with_session(&self, ue: &mut Ue) -> bool {
        // The semaphore is never closed, so this succeeds.
        let _permit = self.permits.acquire().await;
        if self.stopped() {
            return false;
        }
        match ue.register().await {
            Ok(registered) => {
                increment(&self.counts.registered);
                self.report(&Event::Registered {
                    supi: ue.supi(),
                    guti: registered.guti.map(|guti| guti.to_string()),
                    registration_ms: millis(registered.took),
                    authenticated: registered.authenticated,
                });
            }
            Err(failure) => {
                self.report_failure(ue, "registration", &failure);
                return false;
            }
        }
        match self.session(ue).await {
            Ok(()) => true,
            Err(failure) => {
                self.report_failure(ue, "pdu_session_establishment", &failure);
                // The UE stays registered without session, as a real one would.
                true
            }
        }
    }

    async fn session(&self, ue: &mut Ue) -> Result<(), Failure> {
        let Some(request) = ue.default_session() else { return Ok(()) };
        let id = request.id;
        let (session, took) = ue.establish_session(request).await?;
        let has_ipv6 = session.session_type.has_ipv6();
        let advertised = if has_ipv6 { Some(ue.solicit_router(id).await?.1) } else { None };
        let (mut netns, mut interface) = (None, None);
        if self.config.tun {
            let opened = ue.open_interface(id).await?;
            netns = Some(opened.netns().display().to_string());
            interface = Some(opened.name().to_owned());
        }
        increment(&self.counts.sessions);
        let supi = ue.supi();
        if let Some(session) = ue.session_mut(id) {
            self.report(&Event::Session {
                supi,
                id,
                session_type: session.session_type,
                ipv4: session.ipv4,
                ipv6: session.ipv6,
                dns: session.dns.clone(),
                netns,
                interface,
                session_ms: millis(took),
                router_advertisement_ms: advertised.map(millis),
            });
        }
        Ok(())
    }

    /// Stays registered, answering the network, for as long as the configuration says.
    async fn stay(&self, ue: &mut Ue) {
        let over = async {
            match self.config.hold {
                Hold::UntilShutdown => std::future::pending().await,
                Hold::For(duration) => net::time::sleep(duration).await,
            }
        };
        let served = async {
            loop {
                if ue.registered() && ue.has_lost_default_session() {
                    self.session_again(ue).await;
                } else if ue.connected() {
                    self.serve(ue).await;
                } else if ue.registered() {
                    let why = ue.idle().await;
                    self.wake_up(ue, why).await;
                } else {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = served => {}
            () = over => {}
            () = self.stop() => {}
        }
    }

    /// Answers the network until the UE has no connection any more. After `inactivity` without a packet
    /// or NAS message the UE's gNB asks for the release of the connection.
    async fn serve(&self, ue: &mut Ue) {
        let (mut active, mut asked) = (ue.activity(), false);
        while ue.connected() && !ue.has_lost_default_session() {
            let event = match self.config.inactivity {
                None => ue.serve().await.map(Some),
                Some(inactivity) => ue.serve_until(net::time::now() + inactivity).await,
            };
            match event {
                Ok(None) => {
                    let inactive = std::mem::replace(&mut active, ue.activity()) == active;
                    if inactive
                        && !asked
                        && let Some(connection) = ue.connection()
                        && let Err(error) = connection.request_release(RadioNetwork::UserInactivity).await
                    {
                        tracing::debug!(%error, "the gNB could not ask for the release of a connection");
                    }
                    asked = inactive;
                }
                Ok(Some(event)) => self.report_network_event(ue, event),
                Err(failure) => self.report_failure(ue, "connection", &failure),
            }
        }
    }

    /// Sets up the session of the configuration again, which the network has ended: programs of the UE still want it.
    async fn session_again(&self, ue: &mut Ue) {
        let mut outcome = Ok(());
        if !ue.connected() {
            outcome = ue.service_request(ServiceType::Signalling, PsiSet::default()).await.map(drop);
        }
        if outcome.is_ok() {
            outcome = self.session(ue).await;
        }
        if let Err(failure) = outcome {
            self.report_failure(ue, "pdu_session_establishment", &failure);
            net::time::sleep(RETRY_WAIT).await;
        }
    }

    /// Reports what the network did to a UE.
    fn report_network_event(&self, ue: &Ue, event: NetworkEvent) {
        let (supi, by) = (ue.supi(), By::Network);
        match event {
            NetworkEvent::SessionReleased { id, .. } => {
                self.report(&Event::Released { supi, id, by, release_ms: None });
            }
            NetworkEvent::Deregistered { .. } => {
                increment(&self.counts.deregistered);
                self.report(&Event::Deregistered { supi, by, deregistration_ms: None });
            }
            NetworkEvent::Released(cause) if ue.registered() => {
                self.report(&Event::Idle { supi, cause: cause.to_string() });
            }
            NetworkEvent::Released(_) => {}
            NetworkEvent::ErrorIndication(error) => {
                let failure = Failure::ErrorIndication(error.cause.unwrap_or_default());
                self.report_failure(ue, "connection", &failure);
            }
        }
    }

    /// Lets an idle UE ask for service. A UE that the network no longer knows registers again.
    async fn wake_up(&self, ue: &mut Ue, why: WakeReason) {
        let started = net::time::now();
        match ue.wake_up(why).await {
            Ok(()) => {
                increment(&self.counts.services);
                let took = net::time::now().saturating_duration_since(started);
                let (supi, reason) = (ue.supi(), why.reason());
                self.report(&Event::Service { supi, reason, service_ms: millis(took) });
            }
            Err(failure) => {
                self.report_failure(ue, "service_request", &failure);
                if ue.registered() {
                    // As after T3517: the UE gives up this attempt, and does not try again at once.
                    ue.lose_connection();
                    net::time::sleep(RETRY_WAIT).await;
                } else {
                    self.register_with_session(ue).await;
                }
            }
        }
    }

    /// Releases sessions if asked to, and deregisters.
    async fn deregister(&self, ue: &mut Ue) {
        // The semaphore is never closed, so this succeeds.
        let _permit = self.permits.acquire().await;
        let supi = ue.supi();
        if self.config.release_sessions && ue.connected() {
            let ids: Vec<_> = ue.sessions().map(|session| session.id).collect();
            for id in ids {
                match ue.release_session(id).await {
                    Ok(took) => {
                        let (by, release_ms) = (By::Ue, Some(millis(took)));
                        self.report(&Event::Released { supi, id, by, release_ms });
                    }
                    Err(failure) => self.report_failure(ue, "pdu_session_release", &failure),
                }
            }
        }
        match ue.deregister(false).await {
            Ok(deregistered) => {
                increment(&self.counts.deregistered);
                let deregistration_ms = Some(millis(deregistered.took));
                self.report(&Event::Deregistered { supi, by: By::Ue, deregistration_ms });
            }
            Err(failure) => self.report_failure(ue, "deregistration", &failure),
        }
    }
}
