//! A running DU: its user plane, and a thread with its end of F1-C.
//!
//! The thread waits for the association, for events of the user plane and for time, and gives them to the [`Machine`]. Commands to the
//! user plane wait for the worker's answer, microseconds usually; so this thread is not one of a runtime that others use.
//! A second thread hands events over, as waiting for them blocks.

use std::net::SocketAddr;
use std::time::Duration;

use net::sctp::{self, Association, SctpConfig};
use net::task::Boxed;
use net::time::{now_ns, sleep, timeout};
use pktio::capture::Taps;
use tokio::sync::{mpsc, watch};
use types::NrCellId;

use crate::config::F1cConfig;
use crate::control::{Added, BearerSetup, Control, Event, Events, Refused, Tunnel};
use crate::f1c::{Commands, F1u, Machine, Output};
use crate::node::{Node, StartError};
use crate::{Config, Stats};

/// Time before the first attempt to connect again; then twice as long each time.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Most time between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long an association may take to come up, or a message to be taken.
const PATIENCE: Duration = Duration::from_secs(10);
/// Events on their way from one thread to the other. More wait in the user plane.
const EVENTS: usize = 64;
/// Number of the interface towards CUs: its position in [`Config::links`].
const F1U: u8 = 0;

/// A running DU. It ends when this is dropped, or by [`Du::shutdown`].
pub struct Du {
    control: Control,
    stop: watch::Sender<Wish>,
    state: watch::Receiver<State>,
    // Last, as the others use the user plane.
    _workers: Vec<path::Worker>,
}

/// What the owner is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    is_up: bool,
    ues: usize,
}

/// What the owner wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Run {
        /// Resets asked for so far.
        resets: u32,
    },
    Stop,
}

impl Du {
    /// Starts a DU in the calling thread's network namespace. It connects to its CU in the background, again whenever the association is
    /// lost; see [`Du::up`]. For `taps` and `seed` see [`Node::start`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start<'a>(
        config: &'a Config,
        taps: Option<&'a Taps>,
        seed: u64,
    ) -> Boxed<'a, Result<Du, StartError>> {
        Box::pin(async move {
            let Some(f1c) = config.f1c.clone() else {
                return Err(StartError::Config("f1c: the addresses of DU and CU are needed".to_owned()));
            };
            config.check().map_err(StartError::Config)?;
            let cell = NrCellId::new(config.cell).map_err(|error| StartError::Config(error.to_string()))?;
            let described = config.described(cell)?;
            let Some(gtpu) = config.f1u.gtpu else {
                return Err(StartError::Config(
                    "f1u.gtpu: the address that the CU sends to is needed".to_owned(),
                ));
            };
            let Node { control, events, workers } = Node::start(config, taps, seed)?;
            let machine = Machine::new(described, F1u { interface: F1U, address: gtpu.ip() });
            let (stop, wishes) = watch::channel(Wish::Run { resets: 0 });
            let (told, state) = watch::channel(State::default());
            let (sender, receiver) = mpsc::channel(EVENTS);
            let driver = Driver {
                f1c,
                machine,
                commands: Blocking(control.clone()),
                events: receiver,
                wishes,
                resets: 0,
                told,
            };
            let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
            thread("du-events").spawn(move || hand_over(&events, &sender)).map_err(StartError::Control)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(StartError::Control)?;
            thread("du-f1c").spawn(move || runtime.block_on(driver.run())).map_err(StartError::Control)?;
            Ok(Du { control, stop, state, _workers: workers })
        })
    }

    /// The user plane, for instance to change radio links.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// What the user plane counts.
    pub fn stats(&self) -> &Stats {
        self.control.stats()
    }

    /// Whether the CU has accepted the DU, and the cell is in service.
    pub fn is_up(&self) -> bool {
        self.state.borrow().is_up
    }

    /// UEs that have a connection, or are getting one.
    pub fn ues(&self) -> usize {
        self.state.borrow().ues
    }

    /// Waits until the cell is in service; `false` if the DU has ended.
    pub async fn up(&self) -> bool {
        self.wait_for(true).await
    }

    /// Waits until the cell is out of service; `false` if the DU has ended.
    pub async fn down(&self) -> bool {
        self.wait_for(false).await
    }

    async fn wait_for(&self, up: bool) -> bool {
        self.state.clone().wait_for(|state| state.is_up == up).await.is_ok()
    }

    /// Resets F1: the DU releases all UEs, and the CU forgets them. Without association nothing is to be reset.
    pub fn reset(&self) {
        self.stop.send_modify(|wish| {
            if let Wish::Run { resets } = wish {
                *resets = resets.wrapping_add(1);
            }
        });
    }

    /// Ends the association in order, releases UEs, and ends.
    pub async fn shutdown(self) {
        let _ = self.stop.send(Wish::Stop);
        let mut state = self.state.clone();
        // The driver's end of this closes when it has done.
        let _ = timeout(PATIENCE, async { while state.changed().await.is_ok() {} }).await;
    }
}

impl Drop for Du {
    fn drop(&mut self) {
        let _ = self.stop.send(Wish::Stop);
    }
}

/// Hands events over until either end has gone.
fn hand_over(events: &Events, sender: &mpsc::Sender<Event>) {
    while let Some(event) = events.wait() {
        if sender.blocking_send(event).is_err() {
            return;
        }
    }
}

/// Commands to a worker, whose answers are waited for.
struct Blocking(Control);

impl Commands for Blocking {
    fn set_system_information(&mut self, mib: Vec<u8>, sib1: Vec<u8>) -> Result<(), Refused> {
        self.0.set_system_information(mib, sib1)
    }
    fn take_out_of_service(&mut self) -> Result<(), Refused> {
        self.0.take_out_of_service()
    }
    fn page(&mut self, pcch: Vec<u8>) -> Result<(), Refused> {
        self.0.page(pcch)
    }
    fn send_rrc(&mut self, c_rnti: u16, lcid: u8, sdu: Vec<u8>) -> Result<(), Refused> {
        self.0.send_rrc(c_rnti, lcid, sdu)
    }
    fn release_ue(&mut self, c_rnti: u16, last: Option<(u8, Vec<u8>)>) -> Result<(), Refused> {
        self.0.release_ue(c_rnti, last)
    }
    fn remove_ue(&mut self, c_rnti: u16) -> Result<(), Refused> {
        self.0.remove_ue(c_rnti)
    }
    fn add_bearer(&mut self, c_rnti: u16, setup: BearerSetup) -> Result<Added, Refused> {
        self.0.add_bearer(c_rnti, setup)
    }
    fn redirect_bearer(&mut self, c_rnti: u16, lcid: u8, cu: Tunnel) -> Result<(), Refused> {
        self.0.redirect_bearer(c_rnti, lcid, cu)
    }
    fn remove_bearer(&mut self, c_rnti: u16, lcid: u8) -> Result<(), Refused> {
        self.0.remove_bearer(c_rnti, lcid)
    }
}

/// Why an association is not served any more.
#[derive(PartialEq, Eq)]
enum End {
    /// It is lost, or useless.
    Lost,
    /// The DU ends.
    Stopped,
}

struct Driver {
    f1c: F1cConfig,
    machine: Machine,
    commands: Blocking,
    events: mpsc::Receiver<Event>,
    wishes: watch::Receiver<Wish>,
    /// Resets done so far.
    resets: u32,
    told: watch::Sender<State>,
}

impl Driver {
    async fn run(mut self) {
        self.machine.disconnected(&mut self.commands);
        let mut wait = Duration::ZERO;
        while let Some(association) = self.connect(wait).await {
            self.machine.connected(now_ns());
            let end = self.serve(association).await;
            let was_up = self.told.borrow().is_up;
            self.machine.disconnected(&mut self.commands);
            self.tell();
            if end == End::Stopped {
                return;
            }
            wait = if was_up { FIRST_WAIT } else { next_wait(wait) };
        }
    }

    /// Connects; `None` when the DU is to end. Events go on meanwhile.
    async fn connect(&mut self, mut wait: Duration) -> Option<Association> {
        loop {
            let local = SocketAddr::new(self.f1c.local, 0);
            let (cu, config) = (self.f1c.cu, SctpConfig { mode: self.f1c.sctp, ..SctpConfig::default() });
            let attempt = async move {
                sleep(wait).await;
                timeout(PATIENCE, Association::connect(local, cu, config)).await
            };
            tokio::pin!(attempt);
            let outcome = loop {
                tokio::select! {
                    outcome = &mut attempt => break outcome,
                    event = self.events.recv() => self.machine.event(event?, now_ns(), &mut self.commands),
                    wish = next_wish(&mut self.wishes) => match wish {
                        Wish::Stop => return None,
                        Wish::Run { resets } => self.resets = resets,
                    },
                }
            };
            match outcome {
                Ok(Ok(association)) => return Some(association),
                Ok(Err(error)) => tracing::info!(%error, "no F1 association"),
                Err(_) => tracing::info!(%cu, "the F1 association does not come up"),
            }
            wait = next_wait(wait);
        }
    }

    async fn serve(&mut self, mut association: Association) -> End {
        loop {
            if !self.send_all(&association).await {
                association.abort();
                return End::Lost;
            }
            self.tell();
            let due = self.machine.deadline_ns();
            tokio::select! {
                event = association.recv() => match event {
                    Some(sctp::Event::Message(message)) if message.ppid == f1ap::PPID => {
                        self.machine.receive(&message.payload, now_ns(), &mut self.commands);
                    }
                    Some(sctp::Event::Message(message)) => {
                        tracing::debug!(ppid = message.ppid, "a message that is not F1AP is ignored");
                    }
                    // The CU has lost its state: F1 begins anew.
                    Some(sctp::Event::Restarted) => {
                        self.machine.disconnected(&mut self.commands);
                        self.machine.connected(now_ns());
                    }
                    Some(sctp::Event::Closed { reason }) => {
                        tracing::info!(%reason, "the F1 association has ended");
                        return End::Lost;
                    }
                    None => return End::Lost,
                },
                event = self.events.recv() => match event {
                    Some(event) => self.machine.event(event, now_ns(), &mut self.commands),
                    None => return self.stop(association).await,
                },
                wish = next_wish(&mut self.wishes) => match wish {
                    Wish::Stop => return self.stop(association).await,
                    Wish::Run { resets } => {
                        if std::mem::replace(&mut self.resets, resets) != resets {
                            self.machine.reset(now_ns(), &mut self.commands);
                        }
                    }
                },
                () = until(due) => self.machine.expire(now_ns(), &mut self.commands),
            }
        }
    }

    async fn stop(&self, association: Association) -> End {
        if timeout(PATIENCE, association.shutdown()).await.is_err() {
            tracing::info!("the F1 association does not shut down");
        }
        End::Stopped
    }

    /// Sends what the machine has; `false` if the association is of no use any more.
    async fn send_all(&mut self, association: &Association) -> bool {
        while let Some(output) = self.machine.take_output() {
            let Output::Send { ue, octets } = output else { return false };
            let stream = stream(ue, association.outgoing_streams());
            let message = sctp::Message { stream, ppid: f1ap::PPID, payload: octets.into() };
            match timeout(PATIENCE, association.send(message)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::info!(%error, "an F1AP message is not sent");
                    return false;
                }
                Err(_) => {
                    tracing::warn!("the CU takes no messages");
                    return false;
                }
            }
        }
        true
    }

    fn tell(&self) {
        let state = State { is_up: self.machine.is_set_up(), ues: self.machine.ues() };
        self.told.send_if_modified(|before| std::mem::replace(before, state) != state);
    }
}

fn next_wait(wait: Duration) -> Duration {
    (wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT)
}

/// The stream of a message: 0 is for the interface, the others are for UEs (TS 38.472 §7).
fn stream(ue: Option<u32>, streams: u16) -> u16 {
    match ue {
        Some(id) if streams > 1 => (id % u32::from(streams - 1)) as u16 + 1,
        _ => 0,
    }
}

/// The next change of what the owner wants. An owner that has gone wants the end.
async fn next_wish(wishes: &mut watch::Receiver<Wish>) -> Wish {
    match wishes.changed().await {
        Ok(()) => *wishes.borrow_and_update(),
        Err(_) => Wish::Stop,
    }
}

/// Waits until a time; for ever if there is none.
async fn until(due_ns: Option<u64>) {
    match due_ns {
        Some(due_ns) => sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns()))).await,
        None => std::future::pending().await,
    }
}
