//! Simulates many UEs at once, as a [`Config`] says.
//!
//! One task per UE attaches, stays for the configured time and detaches. A semaphore bounds how many UEs attach or detach at once; an
//! interval bounds how many start per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gtpv2c::CauseValue;
use net::time::Instant;
use simulator::Hold;
use simulator::event::{By, elapsed_ms, millis, print};
use simulator::run_all;
use tokio::sync::{Semaphore, watch};

use crate::config::Config;
use crate::enb::Enb;
use crate::event::{Event, Totals};
use crate::mme::{FromGateway, Mme};
use crate::ue::{Failure, NetworkEvent, Ue, Wake};

/// How long a UE waits after a failed procedure before it tries again.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// Why a simulation could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A value of the configuration cannot be used.
    #[error(transparent)]
    Config(#[from] types::Invalid),
    /// There is no eNB.
    #[error("no address for an eNB")]
    NoEnb,
    /// S11 could not be bound.
    #[error("S11 on {address}: {source}; is the address of this host, and the port free?")]
    S11 {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// GTP-U could not be bound.
    #[error("S1-U on {address}: {source}; is the address of this host, and UDP port 2152 free?")]
    S1u {
        /// The address.
        address: std::net::IpAddr,
        /// What the system said.
        source: std::io::Error,
    },
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
    let s11 = config.mme.s11;
    let mme = Mme::start(&config.mme).await.map_err(|source| RunError::S11 { address: s11, source })?;
    let (restart_counter, gateway) = (mme.restart_counter().0, config.gateway_of(0));
    sink(&Event::Mme { s11: mme.local(), restart_counter, gateway });
    let mut enbs = Vec::new();
    for (id, &address) in (config.first_enb_id..).zip(&config.enbs) {
        let enb = Enb::start(id, address).map_err(|source| RunError::S1u { address, source })?;
        sink(&Event::Enb { enb: id, s1u: address });
        enbs.push(enb);
    }
    let ue_config = Arc::new(config.ue.clone());
    let mut ues = Vec::new();
    for (index, at) in (0..config.count).zip((0..enbs.len()).cycle()) {
        let mut ue = Ue::new(Arc::clone(&ue_config), index, mme.clone(), enbs[at].clone())?;
        ue.attach_through(config.gateway_of(at));
        ues.push((ue, at));
    }
    if enbs.is_empty() {
        return Err(RunError::NoEnb);
    }
    let (stop, stopping) = watch::channel(false);
    let simulation = Arc::new(Simulation {
        permits: Semaphore::new(config.concurrency.max(1)),
        counts: Counts::default(),
        started: net::time::now(),
        sink: Box::new(sink),
        mme,
        enbs,
        stopping,
        config,
    });
    let lives = ues.into_iter().map(|(ue, at)| Life { run: Arc::clone(&simulation), ue, at }.live());
    run_all(lives, simulation.config.rate, &stop, shutdown).await;
    let totals = simulation.totals();
    simulation.report(&Event::Summary(totals));
    Ok(totals)
}

/// What the UE tasks share.
struct Simulation {
    config: Config,
    permits: Semaphore,
    counts: Counts,
    started: Instant,
    sink: Box<dyn Fn(&Event) + Send + Sync>,
    mme: Mme,
    enbs: Vec<Enb>,
    /// Becomes `true` when the simulation is to end.
    stopping: watch::Receiver<bool>,
}

#[derive(Default)]
struct Counts {
    attached: AtomicU64,
    failed: AtomicU64,
    detached: AtomicU64,
    services: AtomicU64,
    pages_ignored: AtomicU64,
    handovers: AtomicU64,
    bearers: AtomicU64,
    /// UEs that have attached or failed to.
    settled: AtomicU64,
}

fn increment(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed) + 1
}

impl Simulation {
    fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        let mut totals = Totals {
            attached: read(&counts.attached),
            failed: read(&counts.failed),
            detached: read(&counts.detached),
            services: read(&counts.services),
            pages_ignored: read(&counts.pages_ignored),
            handovers: read(&counts.handovers),
            bearers: read(&counts.bearers),
            retransmissions: self.mme.counters().retransmissions,
            elapsed_ms: elapsed_ms(self.started),
            ..Totals::default()
        };
        for packets in self.enbs.iter().map(|enb| enb.user_plane().counters()) {
            totals.end_markers += packets.end_markers;
            totals.uplink_packets += packets.uplink;
            totals.downlink_packets += packets.downlink;
            totals.dropped_packets += packets.dropped;
        }
        totals
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
}

/// One UE with its place among the eNBs.
struct Life {
    run: Arc<Simulation>,
    ue: Ue,
    /// Index of its eNB.
    at: usize,
}

/// What a UE does on its own.
#[derive(Clone, Copy)]
enum Step {
    /// A connected UE that had no packet since the last look is released.
    LookForPackets,
    /// An idle UE comes back.
    ComeBack,
    /// A connected UE moves.
    Move,
}

/// When an attached UE does something on its own. Times are those of its present state; they are set when the state changes.
struct Timers {
    connected: bool,
    look: Option<Instant>,
    come_back: Option<Instant>,
    moves: Option<Instant>,
    /// Packets at the last look.
    packets: u64,
}

/// After a configured time.
fn after(wait: Option<Duration>) -> Option<Instant> {
    wait.map(|wait| net::time::now() + wait)
}

impl Timers {
    fn new(config: &Config, ue: &Ue) -> Self {
        let connected = ue.is_connected();
        Self {
            connected,
            look: after(config.inactivity.filter(|_| connected)),
            come_back: after(config.idle.filter(|_| ue.is_attached() && !connected)),
            moves: after(config.handover.filter(|_| connected)),
            packets: ue.pdn().map_or(0, |pdn| pdn.packets()),
        }
    }

    /// What the UE does next, and when.
    fn next(&self) -> Option<(Instant, Step)> {
        let steps =
            [(self.look, Step::LookForPackets), (self.come_back, Step::ComeBack), (self.moves, Step::Move)];
        let set = steps.into_iter().filter_map(|(at, step)| Some((at?, step)));
        set.min_by_key(|(at, _)| *at)
    }
}

impl Life {
    /// The life of the UE.
    async fn live(mut self) {
        let mut settled = false;
        let cycles = self.run.config.cycles.max(1);
        for cycle in 1..=cycles {
            if self.run.stopped() {
                break;
            }
            let attached = self.attach().await;
            if !std::mem::replace(&mut settled, true) {
                self.settle();
            }
            if attached && cycle == cycles {
                self.stay().await;
            }
            if self.ue.is_attached() && (cycle < cycles || self.run.config.detach) {
                self.detach().await;
            }
        }
        if !settled {
            self.settle();
        }
    }

    /// Counts the UE as settled, and reports `ready` after the last one.
    fn settle(&self) {
        if increment(&self.run.counts.settled) == u64::from(self.run.config.count) {
            self.run.report(&Event::Ready(self.run.totals()));
        }
    }

    fn report_failure(&self, procedure: &'static str, failure: &Failure) {
        increment(&self.run.counts.failed);
        self.run.report(&Event::Failed {
            imsi: self.ue.imsi(),
            procedure,
            reason: failure.reason(),
            cause: failure.cause().map(|cause| cause.0),
            detail: failure.to_string(),
        });
    }

    /// Attaches. Returns whether the UE is attached.
    async fn attach(&mut self) -> bool {
        let run = Arc::clone(&self.run);
        // The semaphore is never closed, so this succeeds.
        let _permit = run.permits.acquire().await;
        if run.stopped() {
            return false;
        }
        let attached = match self.ue.attach().await {
            Ok(attached) => attached,
            Err(failure) => {
                self.report_failure("attach", &failure);
                return false;
            }
        };
        increment(&run.counts.attached);
        let router_advertisement_ms = match attached.link_local {
            Some(_) => self.solicit_router().await,
            None => None,
        };
        let (mut netns, mut interface) = (None, None);
        if run.config.tun {
            match self.ue.open_interface().await {
                Ok(opened) => {
                    netns = Some(opened.netns().display().to_string());
                    interface = Some(opened.name().to_owned());
                }
                Err(failure) => self.report_failure("interface", &failure),
            }
        }
        if let Some(pdn) = self.ue.pdn() {
            run.report(&Event::Attached {
                imsi: self.ue.imsi(),
                enb: self.ue.enb().id(),
                ipv4: pdn.ipv4(),
                ipv6: pdn.ipv6(),
                dns: pdn.dns().to_vec(),
                mtu: pdn.mtu(),
                netns,
                interface,
                attach_ms: millis(attached.took),
                router_advertisement_ms,
            });
        }
        true
    }

    /// Milliseconds until the UE had its IPv6 prefix. A UE without one stays attached, as a real one would.
    async fn solicit_router(&mut self) -> Option<f64> {
        let started = net::time::now();
        match self.ue.solicit_router().await {
            Ok(_) => Some(elapsed_ms(started)),
            Err(failure) => {
                self.report_failure("router_discovery", &failure);
                None
            }
        }
    }

    /// Stays attached, answering the gateway, for as long as the configuration says.
    async fn stay(&mut self) {
        let run = Arc::clone(&self.run);
        let over = async {
            match run.config.hold {
                Hold::UntilShutdown => std::future::pending().await,
                Hold::For(duration) => net::time::sleep(duration).await,
            }
        };
        let mut over = std::pin::pin!(over);
        let mut timers = Timers::new(&run.config, &self.ue);
        loop {
            // Only waiting is cancelled: a procedure goes on to its end, so that UE and gateway agree.
            tokio::select! {
                wake = self.ue.wait() => self.woken(wake).await,
                step = due(timers.next()) => self.step(step, &mut timers).await,
                () = &mut over => return,
                () = run.stop() => return,
            }
            if self.ue.is_connected() != timers.connected {
                timers = Timers::new(&run.config, &self.ue);
            }
        }
    }

    async fn step(&mut self, step: Step, timers: &mut Timers) {
        match step {
            Step::Move => {
                self.hand_over().await;
                timers.moves = after(self.run.config.handover);
            }
            Step::ComeBack => {
                self.service_request("timer").await;
                timers.come_back = after(self.run.config.idle);
            }
            Step::LookForPackets => {
                let packets = self.ue.pdn().map_or(0, |pdn| pdn.packets());
                if packets == std::mem::replace(&mut timers.packets, packets) {
                    self.release().await;
                }
                timers.look = after(self.run.config.inactivity);
            }
        }
    }

    async fn woken(&mut self, wake: Wake) {
        match wake {
            Wake::UplinkData => self.service_request("uplink_data").await,
            Wake::Gateway(begun) => {
                let is_page = matches!(&begun, FromGateway::Request { message, .. }
                    if message.message_type() == gtpv2c::MessageType::DownlinkDataNotification);
                match self.ue.answer(begun).await {
                    Ok(event) => self.network_event(event).await,
                    Err(failure) => {
                        let procedure = if is_page { "service_request" } else { "bearer_activation" };
                        self.failed(procedure, &failure).await;
                    }
                }
            }
        }
    }

    /// Reports what the gateway did, and attaches again where that is what a UE does.
    async fn network_event(&mut self, event: NetworkEvent) {
        let run = Arc::clone(&self.run);
        let imsi = self.ue.imsi();
        let bearers = |action, bearers: Vec<gtpv2c::Ebi>| {
            let bearers = bearers.into_iter().map(|ebi| ebi.0).collect();
            run.report(&Event::Bearers { imsi, action, bearers });
        };
        match event {
            NetworkEvent::Paged(served) => {
                increment(&run.counts.services);
                let service_ms = millis(served.took);
                run.report(&Event::Service { imsi, reason: "paging", service_ms });
            }
            NetworkEvent::PageIgnored => {
                increment(&run.counts.pages_ignored);
            }
            NetworkEvent::NeedlessPage => {}
            NetworkEvent::BearersCreated(created) => {
                run.counts.bearers.fetch_add(created.len() as u64, Ordering::Relaxed);
                bearers("created", created);
            }
            NetworkEvent::BearersUpdated(updated) => bearers("updated", updated),
            NetworkEvent::BearersDeleted(deleted) => bearers("deleted", deleted),
            NetworkEvent::Refused(cause) => {
                tracing::info!(%imsi, %cause, "the UE refused a request of the gateway");
            }
            NetworkEvent::Detached(cause) => {
                increment(&run.counts.detached);
                run.report(&Event::Detached { imsi, by: By::Network, detach_ms: None });
                if cause == Some(CauseValue::REACTIVATION_REQUESTED) {
                    self.attach().await;
                }
            }
            NetworkEvent::GatewayRestarted => {
                run.report(&Event::GatewayRestarted { imsi });
                self.attach().await;
            }
        }
    }

    async fn service_request(&mut self, reason: &'static str) {
        match self.ue.service_request().await {
            Ok(served) => {
                increment(&self.run.counts.services);
                let (imsi, service_ms) = (self.ue.imsi(), millis(served.took));
                self.run.report(&Event::Service { imsi, reason, service_ms });
            }
            Err(failure) => self.failed("service_request", &failure).await,
        }
    }

    /// Makes the UE idle.
    async fn release(&mut self) {
        match self.ue.go_idle().await {
            Ok(took) => {
                let (imsi, release_ms) = (self.ue.imsi(), millis(took));
                self.run.report(&Event::Idle { imsi, release_ms });
            }
            Err(failure) => self.failed("s1_release", &failure).await,
        }
    }

    /// Moves the UE to the next eNB, and to its S-GW if that is another one.
    async fn hand_over(&mut self) {
        let next = (self.at + 1) % self.run.enbs.len();
        let (enb, gateway) = (self.run.enbs[next].clone(), self.run.config.gateway_of(next));
        let moved = match gateway == self.ue.gateway() {
            true => self.ue.handover(enb).await,
            false => self.ue.relocate(gateway, enb).await.map(|relocated| {
                if let Err(error) = relocated.former {
                    self.report_failure("release_of_former_gateway", &error.into());
                }
                relocated.moved
            }),
        };
        match moved {
            Ok(moved) => {
                self.at = next;
                increment(&self.run.counts.handovers);
                self.run.report(&Event::Handover {
                    imsi: self.ue.imsi(),
                    enb: self.ue.enb().id(),
                    gateway: self.ue.gateway(),
                    handover_ms: millis(moved.took),
                    end_markers: moved.end_markers,
                    end_markers_ms: moved.end_markers_took.map(millis),
                });
            }
            Err(failure) => self.failed("handover", &failure).await,
        }
    }

    /// Reports a failure. A UE that the gateway no longer knows attaches again, any other waits before it goes on.
    async fn failed(&mut self, procedure: &'static str, failure: &Failure) {
        self.report_failure(procedure, failure);
        if self.ue.is_attached() {
            net::time::sleep(RETRY_WAIT).await;
        } else {
            self.attach().await;
        }
    }

    async fn detach(&mut self) {
        let run = Arc::clone(&self.run);
        // The semaphore is never closed, so this succeeds.
        let _permit = run.permits.acquire().await;
        match self.ue.detach().await {
            Ok(took) => {
                increment(&run.counts.detached);
                let (imsi, detach_ms) = (self.ue.imsi(), Some(millis(took)));
                run.report(&Event::Detached { imsi, by: By::Ue, detach_ms });
            }
            Err(failure) => self.report_failure("detach", &failure),
        }
    }
}

/// Waits until the next step is due; for ever without one.
async fn due(next: Option<(Instant, Step)>) -> Step {
    match next {
        Some((at, step)) => {
            net::time::sleep_until(at).await;
            step
        }
        None => std::future::pending().await,
    }
}
