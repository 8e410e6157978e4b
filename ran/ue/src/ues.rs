//! The UEs' end of the radio, running: the link to DUs, the worker, the cells, and who hears what.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::rrc::message::{EstablishmentCause, PagingUeIdentity};
use ::rrc::system::CellBarred;
use ::rrc::{BcchBch, BcchDlSch, Pcch};
use l2::uu;
use net::task::Boxed;
use path::Worker;
use pktio::capture::Taps;
use pktio::interface::{self, Content, DpdkConfig, LinkConfig, OpenError, Setup, Traffic, WorkersConfig};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, watch};
use types::{NrCellId, STmsi, Tai};

use crate::connection::{ConnectError, Connection, INPUTS};
use crate::control::{Control, Event, Events, UeId};
use crate::counters;
use crate::tuns::{Devices, Tuns};
use crate::{TUN, UserPlane};

/// How long a cell may take for its system information.
const SYSTEM_INFORMATION: Duration = Duration::from_secs(15);
/// How long the thread that reads events sleeps at most before it looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

/// The cells of gNBs in parts, and the link to them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cells in which UEs camp.
    pub cells: Vec<CellConfig>,
    /// The link to DUs, which stands for the radio: `gtpu` is the UEs' address and port of `uu` (docs/uu.md); port 0 is any.
    pub uu: LinkConfig,
    /// The thread that forwards packets.
    #[serde(default)]
    pub workers: WorkersConfig,
    /// Start options of DPDK.
    #[serde(default)]
    pub dpdk: DpdkConfig,
}

/// A cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CellConfig {
    /// NR Cell Identity: 36 bits.
    pub id: u64,
    /// Where its DU serves UEs: address and port of `uu`.
    pub du: SocketAddr,
}

impl Config {
    /// Checks the section. The error is text for a person.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check(&self) -> Result<(), String> {
        if self.cells.is_empty() {
            return Err("cells: give at least one, with `id` and `du`".to_owned());
        }
        for (at, cell) in self.cells.iter().enumerate() {
            NrCellId::new(cell.id).map_err(|error| format!("cells[{at}].id: {error}"))?;
            if cell.du.port() == 0 || cell.du.ip().is_unspecified() {
                return Err(format!(
                    "cells[{at}].du: {} is no DU's address; its port is usually {}",
                    cell.du,
                    uu::PORT
                ));
            }
            if self.cells.iter().take(at).any(|other| other.id == cell.id) {
                return Err(format!("cells[{at}].id: {:#x} is named before", cell.id));
            }
        }
        if self.workers.count.is_some_and(|count| count > 1) {
            return Err("workers: UEs have one worker; leave count out".to_owned());
        }
        self.workers.check().map_err(|error| format!("workers: {error}"))?;
        self.uu.check("the link", Content::Tunnels).map_err(|error| format!("uu: {error}"))
    }
}

/// Why the UEs' end of the radio did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error("ue.{0}")]
    Config(String),
    /// The interface could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A thread or descriptor could not be made.
    #[error("cannot start the UEs' worker: {0}")]
    Worker(#[from] std::io::Error),
    /// A cell is silent.
    #[error(
        "cell {cell:#x} at {du} broadcasts no system information; does its DU run there, and is it connected to its CU?"
    )]
    Silent {
        /// The cell.
        cell: u64,
        /// Its DU.
        du: SocketAddr,
    },
}

/// What a connection gets from the worker.
#[derive(Debug)]
pub(crate) enum Input {
    /// An RRC message, and its logical channel.
    Rrc(u8, Vec<u8>),
    /// The DU has released the C-RNTI.
    Released,
    /// The radio link has failed.
    Failed,
}

/// The inboxes of connections.
#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<HashMap<UeId, mpsc::Sender<Input>>>);

impl Routes {
    fn lock(&self) -> MutexGuard<'_, HashMap<UeId, mpsc::Sender<Input>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, ue: UeId) -> mpsc::Receiver<Input> {
        let (sender, inbox) = mpsc::channel(INPUTS);
        self.lock().insert(ue, sender);
        inbox
    }

    /// Gives an input to a connection. One that does not read loses the connection: it would miss what has happened.
    fn give(&self, ue: UeId, input: Input) {
        let mut routes = self.lock();
        if routes.get(&ue).is_some_and(|inbox| inbox.try_send(input).is_err()) {
            routes.remove(&ue);
        }
    }
}

/// What a cell broadcasts.
#[derive(Debug, Default, Clone, Copy)]
struct System {
    barred: Option<bool>,
    tai: Option<Tai>,
}

#[derive(Debug)]
struct CellState {
    id: NrCellId,
    du: SocketAddr,
    system: watch::Sender<System>,
    camping: Mutex<HashMap<STmsi, Arc<Notify>>>,
}

impl CellState {
    fn camping(&self) -> MutexGuard<'_, HashMap<STmsi, Arc<Notify>>> {
        self.camping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the cell broadcasts.
    fn hear(&self, channel: u16, message: &[u8]) {
        match channel {
            uu::BCH => {
                let Ok(BcchBch::Mib(mib)) = BcchBch::decode(message) else {
                    return counters::BROADCASTS_REJECTED.inc("mib");
                };
                let barred = Some(mib.cell_barred == CellBarred::Barred);
                self.system.send_modify(|system| system.barred = barred);
            }
            uu::SI_RNTI => {
                let Ok(BcchDlSch::Sib1(sib1)) = BcchDlSch::decode(message) else {
                    return counters::BROADCASTS_REJECTED.inc("sib1");
                };
                let access = &sib1.cell_access_related_info.plmn_identity_info_list;
                // UEs select the first network (selectedPLMN-Identity 1).
                let own = access.first().filter(|info| info.cell_identity == self.id);
                let tai = own.and_then(|info| {
                    let plmn = *info.plmn_identity_list.first()?;
                    Some(Tai { plmn, tac: info.tracking_area_code? })
                });
                if tai.is_none() {
                    counters::BROADCASTS_REJECTED.inc("foreign_cell");
                }
                self.system.send_modify(|system| system.tai = tai.or(system.tai));
            }
            _ => {
                let Ok(Pcch::Paging(paging)) = Pcch::decode(message) else {
                    return counters::BROADCASTS_REJECTED.inc("paging");
                };
                let camping = self.camping();
                for record in &paging.paging_record_list {
                    if let PagingUeIdentity::Ng5gSTmsi(s_tmsi) = record.ue_identity
                        && let Some(paged) = camping.get(&s_tmsi)
                    {
                        paged.notify_one();
                        counters::PAGES.inc("ok");
                    } else {
                        // UEs of other processes camp in the cell as well.
                        counters::PAGES.inc("nobody");
                    }
                }
            }
        }
    }
}

/// What connections and cells share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) control: Control,
    pub(crate) devices: Devices,
    pub(crate) routes: Routes,
    cells: Vec<CellState>,
    stop: AtomicBool,
}

impl Shared {
    /// A cell's identity and DU.
    pub(crate) fn place(&self, cell: usize) -> (NrCellId, SocketAddr) {
        (self.cells[cell].id, self.cells[cell].du)
    }

    /// Whether a cell serves no UEs (TS 38.304 §5.3.1).
    pub(crate) fn is_barred(&self, cell: usize) -> bool {
        self.cells[cell].system.borrow().barred == Some(true)
    }

    /// A UE gives its C-RNTI back.
    pub(crate) fn leave(&self, ue: UeId) {
        self.routes.lock().remove(&ue);
        self.control.post(move |ues, _, ports| {
            // It may have been removed already.
            let _ = ues.leave(ue, ports);
        });
    }

    fn dispatch(&self, event: Event) {
        match event {
            Event::Rrc { ue, lcid, message } => self.routes.give(ue, Input::Rrc(lcid, message)),
            Event::ReleasedByDu { ue } => self.routes.give(ue, Input::Released),
            Event::RadioLinkFailure { ue } => self.routes.give(ue, Input::Failed),
            Event::Broadcast { cell, du, channel, message } => {
                if let Some(cell) = self.cells.iter().find(|known| known.id == cell && known.du == du) {
                    cell.hear(channel, &message);
                }
            }
        }
    }
}

/// The UEs' end of the radio. It ends when this and all that came from it is dropped, or by [`Ues::shutdown`].
#[derive(Debug)]
pub struct Ues {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
    _workers: Vec<Worker>,
}

/// Counters of all UEs.
#[derive(Debug, Clone, Copy)]
pub struct Totals {
    /// Packets from UEs.
    pub uplink: u64,
    /// Packets to UEs.
    pub downlink: u64,
    /// Packets that were not forwarded.
    pub dropped: u64,
}

impl Ues {
    /// Opens the link to DUs in the calling thread's network namespace, starts the worker, and waits for the system information of all
    /// cells. `taps` copy the frames of devices that bypass the kernel.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start<'a>(config: &'a Config, taps: Option<&'a Taps>) -> Boxed<'a, Result<Ues, StartError>> {
        Box::pin(async move {
            config.check().map_err(StartError::Config)?;
            let link = interface::Interface {
                place: "ue.uu".to_owned(),
                point: "uu",
                link: config.uu.clone(),
                traffic: Traffic::Tunnels,
            };
            let setup = Setup { section: "ue", workers: Some(1), dpdk: &config.dpdk, taps };
            let mut opened = interface::open(&setup, vec![link])?;
            let (tuns, devices) = Tuns::new()?;
            for worker in &mut opened.workers {
                worker.inputs.push(TUN);
            }
            if let Some(worker) = opened.workers.first_mut() {
                worker.ports.push(Box::new(tuns));
            }
            let (graph, control, events) = UserPlane::new();
            let workers = path::start_all(opened.workers, &config.workers, [graph])?;
            let cell = |cell: &CellConfig| CellState {
                // It was checked above.
                id: NrCellId::new(cell.id).expect("a cell's identity was checked"),
                du: cell.du,
                system: watch::Sender::new(System::default()),
                camping: Mutex::default(),
            };
            let shared = Arc::new(Shared {
                control,
                devices,
                routes: Routes::default(),
                cells: config.cells.iter().map(cell).collect(),
                stop: AtomicBool::new(false),
            });
            let of_reader = Arc::clone(&shared);
            let reader = std::thread::Builder::new()
                .name("ue-events".into())
                .spawn(move || read(&of_reader, &events))?;
            let ues = Ues { shared, reader: Some(reader), _workers: workers };
            for cell in &ues.shared.cells {
                let (id, du) = (cell.id, cell.du);
                ues.shared.control.post(move |graph, _, _| graph.camp(id, du));
            }
            for cell in &ues.shared.cells {
                let mut system = cell.system.subscribe();
                let known = system.wait_for(|system| system.barred.is_some() && system.tai.is_some());
                if net::time::timeout(SYSTEM_INFORMATION, known).await.is_err() {
                    return Err(StartError::Silent { cell: cell.id.value(), du: cell.du });
                }
            }
            Ok(ues)
        })
    }

    /// The cells.
    pub fn cells(&self) -> impl Iterator<Item = Cell> + '_ {
        (0..self.shared.cells.len()).map(|number| Cell { shared: Arc::clone(&self.shared), number })
    }

    /// Counters.
    pub fn totals(&self) -> Totals {
        let stats = self.shared.control.stats();
        Totals {
            uplink: stats.uplink.get().packets,
            downlink: stats.downlink.get().packets,
            dropped: telemetry::DropReason::ALL.iter().map(|reason| stats.drops.get(*reason)).sum(),
        }
    }

    /// Ends it.
    pub fn shutdown(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has ended as well.
            let _ = reader.join();
        }
    }
}

impl Drop for Ues {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Gives the worker's events to those that they are for.
fn read(shared: &Shared, events: &Events) {
    while !shared.stop.load(Ordering::Relaxed) {
        if let Some(event) = events.next(LOOK) {
            shared.dispatch(event);
        }
    }
}

/// A cell of a gNB in parts.
#[derive(Debug, Clone)]
pub struct Cell {
    shared: Arc<Shared>,
    number: usize,
}

impl Cell {
    fn state(&self) -> &CellState {
        &self.shared.cells[self.number]
    }

    /// Its identity.
    pub fn id(&self) -> NrCellId {
        self.state().id
    }

    /// Where its DU serves UEs.
    pub fn du(&self) -> SocketAddr {
        self.state().du
    }

    /// The tracking area that it broadcasts.
    pub fn tai(&self) -> Tai {
        let known = self.state().system.borrow().tai;
        known.expect("a cell is given out when its system information is known")
    }

    /// Lets a UE receive pages of `s_tmsi`.
    pub fn camp(&self, s_tmsi: STmsi) -> Camping {
        let paged = Arc::new(Notify::new());
        self.state().camping().insert(s_tmsi, Arc::clone(&paged));
        Camping { cell: self.clone(), s_tmsi, paged }
    }

    /// Sets up a connection.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(
        &self,
        cause: EstablishmentCause,
        s_tmsi: Option<STmsi>,
    ) -> Result<Connection, ConnectError> {
        Connection::establish(Arc::clone(&self.shared), self.number, cause, s_tmsi).await
    }
}

/// A UE's registration for pages in a cell, which ends when this is dropped.
#[derive(Debug)]
pub struct Camping {
    cell: Cell,
    s_tmsi: STmsi,
    paged: Arc<Notify>,
}

impl Camping {
    /// Waits for a page. A page that came since the last call completes the call at once. Cancel-safe.
    pub async fn paged(&self) {
        self.paged.notified().await;
    }

    /// Whether the UE camps in `cell`.
    pub fn is_on(&self, cell: &Cell) -> bool {
        Arc::ptr_eq(&self.cell.shared, &cell.shared) && self.cell.number == cell.number
    }

    /// Forgets a page that has been answered.
    pub fn clear(&mut self) {
        let mut camping = self.cell.state().camping();
        // Another UE may have been given the identity since.
        if let Some(current) = camping.get_mut(&self.s_tmsi).filter(|of| Arc::ptr_eq(of, &self.paged)) {
            self.paged = Arc::new(Notify::new());
            *current = Arc::clone(&self.paged);
        }
    }
}

impl Drop for Camping {
    fn drop(&mut self) {
        let mut camping = self.cell.state().camping();
        if camping.get(&self.s_tmsi).is_some_and(|current| Arc::ptr_eq(current, &self.paged)) {
            camping.remove(&self.s_tmsi);
        }
    }
}
