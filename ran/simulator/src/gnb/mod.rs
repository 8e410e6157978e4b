//! A gNB's end of N2: one SCTP association, NG Setup, and the UEs of this gNB.
//!
//! [`Gnb::connect`] sets everything up and starts a task that reads the association. A message about a
//! UE goes to that UE's [`Connection`]. PAGING goes to the UE that camps on this gNB under the paged
//! identity ([`Gnb::camp`]). Every other message is handled here and can also be read with
//! [`Gnb::interface_message`]. A gNB ends when the last [`Gnb`] is dropped, or by [`Gnb::shutdown`].
//!
//! Invariants: queues are bounded; a slow reader loses its own messages (counted in
//! [`Gnb::lost_messages`]) and nobody else's. A PDU that does not decode is answered as TS 38.413 §10
//! says and reaches no UE.

mod connection;
mod paging;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use net::sctp::{self, SctpConfig};
use ngap::{AmfUeNgapId, GnbId, Pdu, RanUeNgapId, ResetType, RrcEstablishmentCause};
use tokio::sync::{mpsc, watch};
use types::{Guami, Ncgi, NrCellId, Plmn, SNssai, Tac, Tai};

pub use connection::{Bearer, Connection, Downlink};
pub use paging::Camping;

use crate::user_plane::UserPlane;

/// Messages waiting for one UE: more than any procedure has under way.
const UE_QUEUE: usize = 64;
/// Messages about no UE that [`Gnb::interface_message`] has not returned yet.
const INTERFACE_QUEUE: usize = 256;
/// How long NG Setup may take.
const SETUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Bits of our gNB identities.
const GNB_ID_BITS: u8 = 24;

/// One gNB.
#[derive(Debug, Clone)]
pub struct GnbConfig {
    /// Identity, 24 bits.
    pub id: u32,
    /// PLMN it belongs to and broadcasts.
    pub plmn: Plmn,
    /// Tracking area of its cell.
    pub tac: Tac,
    /// Slices it supports.
    pub slices: Vec<SNssai>,
    /// Where the AMF listens.
    pub amf: SocketAddr,
    /// Local address of N2.
    pub n2: IpAddr,
    /// SCTP parameters.
    pub sctp: SctpConfig,
}

/// Why a gNB did not come up.
#[derive(Debug, thiserror::Error)]
pub enum GnbError {
    /// The association could not be set up.
    #[error(transparent)]
    Connect(#[from] sctp::ConnectError),
    /// The identity does not fit in 24 bits.
    #[error("gNB identity {0:#x} does not fit in {GNB_ID_BITS} bits")]
    Identity(u32),
    /// The AMF refused NG Setup.
    #[error("the AMF refused NG Setup: {0}")]
    Refused(ngap::Cause),
    /// The AMF answered NG Setup with another message, or not at all.
    #[error("NG Setup failed: {0}")]
    Setup(String),
}

/// A handle on a gNB; clones refer to the same gNB.
#[derive(Clone)]
pub struct Gnb {
    shared: Arc<Shared>,
}

struct Shared {
    config: GnbConfig,
    sender: sctp::Sender,
    streams: u16,
    amf_name: String,
    guami: Guami,
    setup_ms: f64,
    user_plane: Option<UserPlane>,
    ues: Mutex<HashMap<RanUeNgapId, Entry>>,
    camping: paging::CampingUes,
    next_ran_id: AtomicU32,
    interface: tokio::sync::Mutex<mpsc::Receiver<Pdu>>,
    lost: AtomicU64,
    undecodable: AtomicU64,
    /// Set to `true` to end the association.
    stop: watch::Sender<bool>,
    /// Becomes `true` when the association has ended.
    closed: watch::Receiver<bool>,
}

/// What the reading task knows of a UE.
struct Entry {
    queue: mpsc::Sender<Pdu>,
    amf_ue_ngap_id: Option<AmfUeNgapId>,
}

impl std::fmt::Debug for Gnb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gnb").field("id", &self.shared.config.id).finish_non_exhaustive()
    }
}

impl Gnb {
    /// Connects to the AMF and completes NG Setup (TS 23.501, TS 38.413 §8.7.1). Sessions of its UEs
    /// get tunnels on `user_plane`; without one they are refused.
    pub async fn connect(config: GnbConfig, user_plane: Option<UserPlane>) -> Result<Self, GnbError> {
        let mut association = Self::associate(&config).await?;
        let started = net::time::now();
        let request = setup_request(&config)?;
        let payload = request.encode().map_err(|error| GnbError::Setup(error.to_string()))?;
        let message = sctp::Message { stream: 0, ppid: ngap::PPID, payload };
        association.send(message).await.map_err(|error| GnbError::Setup(error.to_string()))?;
        let answer = net::time::timeout(SETUP_TIMEOUT, setup_answer(&mut association));
        let response = match answer.await {
            Ok(answer) => answer?,
            Err(_) => return Err(GnbError::Setup("no answer".into())),
        };
        let guami = response.served_guamis.first().map(|served| served.guami);
        let guami = guami.ok_or_else(|| GnbError::Setup("the AMF serves no GUAMI".into()))?;

        let (interface_in, interface) = mpsc::channel(INTERFACE_QUEUE);
        let (stop, stopping) = watch::channel(false);
        let (closing, closed) = watch::channel(false);
        let shared = Arc::new(Shared {
            sender: association.sender(),
            streams: association.outgoing_streams(),
            config,
            amf_name: response.amf_name,
            guami,
            setup_ms: crate::event::elapsed_ms(started),
            user_plane,
            ues: Mutex::default(),
            camping: paging::CampingUes::default(),
            next_ran_id: AtomicU32::new(1),
            interface: tokio::sync::Mutex::new(interface),
            lost: AtomicU64::new(0),
            undecodable: AtomicU64::new(0),
            stop,
            closed,
        });
        // The task holds no strong reference, so that dropping the last handle ends it.
        let reader = Reader { shared: Arc::downgrade(&shared), interface: interface_in, closing };
        tokio::spawn(reader.run(association, stopping));
        Ok(Self { shared })
    }

    /// Opens the association alone, for tests that speak NGAP themselves.
    pub async fn associate(config: &GnbConfig) -> Result<sctp::Association, sctp::ConnectError> {
        sctp::Association::connect(SocketAddr::new(config.n2, 0), config.amf, config.sctp.clone()).await
    }

    /// The gNB's configuration.
    pub fn config(&self) -> &GnbConfig {
        &self.shared.config
    }

    /// The name the AMF gave itself.
    pub fn amf_name(&self) -> &str {
        &self.shared.amf_name
    }

    /// The first GUAMI the AMF serves.
    pub fn guami(&self) -> Guami {
        self.shared.guami
    }

    /// How long NG Setup took, milliseconds.
    pub fn setup_ms(&self) -> f64 {
        self.shared.setup_ms
    }

    /// The user plane that its UEs use.
    pub fn user_plane(&self) -> Option<&UserPlane> {
        self.shared.user_plane.as_ref()
    }

    /// Where its UEs are: in cell 1 of the gNB.
    pub fn location(&self) -> ngap::UserLocation {
        let Shared { config, .. } = &*self.shared;
        let cell = u64::from(config.id) << (36 - GNB_ID_BITS) | 1;
        let nr_cell_id = NrCellId::new(cell).expect("24 bits and 12 are the 36 of a cell");
        ngap::UserLocation::Nr {
            ncgi: Ncgi { plmn: config.plmn, nr_cell_id },
            tai: Tai { plmn: config.plmn, tac: config.tac },
            time_stamp: None,
        }
    }

    /// Opens an RRC connection for a UE that camps on this gNB. The AMF learns of it, with `cause`, by
    /// the UE's first message.
    pub fn open(&self, cause: RrcEstablishmentCause) -> Connection {
        let id = RanUeNgapId(self.shared.next_ran_id.fetch_add(1, Ordering::Relaxed));
        let (queue, inbox) = mpsc::channel(UE_QUEUE);
        self.shared.ues().insert(id, Entry { queue, amf_ue_ngap_id: None });
        Connection::new(self.clone(), id, inbox, cause)
    }

    /// Sends a message, on stream 0 when it is about the interface and on the UE's otherwise
    /// (TS 38.412 §7).
    pub async fn send(&self, pdu: impl Into<Pdu>) -> Result<(), sctp::SendError> {
        let pdu = pdu.into();
        let stream = pdu.ue_ids().1.map_or(0, |id| self.stream_of(id));
        match pdu.encode() {
            Ok(payload) => self.send_bytes(stream, payload).await,
            Err(error) => {
                tracing::error!(%error, "a message of ours does not encode");
                Err(sctp::SendError::Size(0))
            }
        }
    }

    /// Sends octets unchanged; they need not be NGAP.
    pub async fn send_bytes(&self, stream: u16, payload: impl Into<Bytes>) -> Result<(), sctp::SendError> {
        let message = sctp::Message { stream, ppid: ngap::PPID, payload: payload.into() };
        self.shared.sender.send(message).await
    }

    /// The SCTP stream for a UE: any but 0.
    pub fn stream_of(&self, id: RanUeNgapId) -> u16 {
        match self.shared.streams {
            0 | 1 => 0,
            streams => (id.0 % u32::from(streams - 1)) as u16 + 1,
        }
    }

    /// The next message from the AMF that is about no UE of this gNB: paging of UEs that camp
    /// elsewhere, resets, error indications, and the answers to those. `None` when the association has
    /// ended.
    pub async fn interface_message(&self) -> Option<Pdu> {
        self.shared.interface.lock().await.recv().await
    }

    /// Resets the whole interface: AMF and gNB forget every UE of this gNB, and the UEs are not told
    /// (TS 38.413 §8.7.4.2).
    pub async fn reset(&self, cause: ngap::Cause) -> Result<(), sctp::SendError> {
        self.shared.ues().clear();
        self.send(ngap::NgReset { cause, reset_type: ResetType::NgInterface }).await
    }

    /// Messages lost because their reader was too slow.
    pub fn lost_messages(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// PDUs from the AMF that did not decode.
    pub fn undecodable_messages(&self) -> u64 {
        self.shared.undecodable.load(Ordering::Relaxed)
    }

    /// Waits until the association has ended, by either side.
    pub async fn closed(&self) {
        let mut closed = self.shared.closed.clone();
        // An error means that the reading task has ended, and the association with it.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Ends the association by SCTP SHUTDOWN.
    pub async fn shutdown(&self) {
        let _ = self.shared.stop.send(true);
        self.closed().await;
    }

    pub(crate) fn learn(&self, ran: RanUeNgapId, amf: AmfUeNgapId) {
        if let Some(entry) = self.shared.ues().get_mut(&ran) {
            entry.amf_ue_ngap_id = Some(amf);
        }
    }

    pub(crate) fn forget(&self, id: RanUeNgapId) {
        self.shared.ues().remove(&id);
    }
}

impl Shared {
    fn ues(&self) -> MutexGuard<'_, HashMap<RanUeNgapId, Entry>> {
        self.ues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of the UE a message is about.
    fn queue_of(&self, pdu: &Pdu) -> Option<mpsc::Sender<Pdu>> {
        let ues = self.ues();
        let entry = match pdu.ue_ids() {
            (_, Some(ran)) => ues.get(&ran),
            // Only a release command may name the AMF's identity alone; it is rare enough to search.
            (Some(amf), None) => ues.values().find(|entry| entry.amf_ue_ngap_id == Some(amf)),
            (None, None) => None,
        };
        entry.map(|entry| entry.queue.clone())
    }
}

/// The NG SETUP REQUEST for a configuration.
fn setup_request(config: &GnbConfig) -> Result<Pdu, GnbError> {
    let id = GnbId::new(config.id, GNB_ID_BITS).ok_or(GnbError::Identity(config.id))?;
    let slices = ngap::PlmnSlices { plmn: config.plmn, slices: config.slices.clone() };
    Ok(Pdu::from(ngap::NgSetupRequest {
        global_ran_node_id: ngap::GlobalRanNodeId::Gnb { plmn: config.plmn, id },
        ran_node_name: Some(format!("gnb-{:x}", config.id)),
        supported_tas: vec![ngap::SupportedTa { tac: config.tac, broadcast_plmns: vec![slices] }],
        default_paging_drx: ngap::PagingDrx::V128,
    }))
}

/// Waits for the answer to NG Setup; nothing else may come before it.
async fn setup_answer(association: &mut sctp::Association) -> Result<ngap::NgSetupResponse, GnbError> {
    loop {
        match association.recv().await {
            Some(sctp::Event::Message(message)) => match Pdu::decode(&message.payload) {
                Ok(decoded) => match decoded.pdu {
                    Pdu::NgSetupResponse(response) => return Ok(response),
                    Pdu::NgSetupFailure(failure) => return Err(GnbError::Refused(failure.cause)),
                    other => return Err(GnbError::Setup(format!("the AMF answered with {}", other.name()))),
                },
                Err(error) => return Err(GnbError::Setup(error.to_string())),
            },
            Some(sctp::Event::Restarted) => {}
            Some(sctp::Event::Closed { reason }) => return Err(GnbError::Setup(reason.to_string())),
            None => return Err(GnbError::Setup("the association is closed".into())),
        }
    }
}

/// Completes when the gNB is to end: [`Gnb::shutdown`] was called or the last handle was dropped.
async fn stop_requested(stopping: &mut watch::Receiver<bool>) {
    // The result holds a lock, so it must not be kept across an await.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// The task that reads the association.
struct Reader {
    shared: std::sync::Weak<Shared>,
    interface: mpsc::Sender<Pdu>,
    closing: watch::Sender<bool>,
}

impl Reader {
    async fn run(self, mut association: sctp::Association, mut stopping: watch::Receiver<bool>) {
        loop {
            let event = tokio::select! {
                event = association.recv() => event,
                // Completes also when the last handle is dropped.
                () = stop_requested(&mut stopping) => {
                    association.shutdown().await;
                    break;
                }
            };
            let Some(shared) = self.shared.upgrade() else { break };
            match event {
                Some(sctp::Event::Message(message)) => self.message(&shared, &message.payload).await,
                // The AMF lost its state, and with it every UE.
                Some(sctp::Event::Restarted) => shared.ues().clear(),
                Some(sctp::Event::Closed { reason }) => {
                    tracing::debug!(%reason, gnb = shared.config.id, "N2 association ended");
                    break;
                }
                None => break,
            }
        }
        if let Some(shared) = self.shared.upgrade() {
            // Dropping its queue tells each UE that its connection is lost.
            shared.ues().clear();
        }
        let _ = self.closing.send(true);
    }

    async fn message(&self, shared: &Arc<Shared>, payload: &[u8]) {
        let pdu = match Pdu::decode(payload) {
            Ok(decoded) => decoded.pdu,
            Err(error) => {
                shared.undecodable.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%error, "PDU from the AMF rejected");
                if let Some(reply) = error.reply() {
                    let _ = Gnb { shared: Arc::clone(shared) }.send(reply).await;
                }
                return;
            }
        };
        if let Some(queue) = shared.queue_of(&pdu) {
            if queue.try_send(pdu).is_err() {
                shared.lost.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        match &pdu {
            Pdu::Paging(paging) if shared.page(paging) => return,
            Pdu::NgReset(reset) => self.reset(shared, &reset.reset_type).await,
            _ => {}
        }
        if self.interface.try_send(pdu).is_err() {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// NG Reset by the AMF (TS 38.413 §8.7.4.2.1): forget the UEs, acknowledge.
    async fn reset(&self, shared: &Arc<Shared>, reset_type: &ResetType) {
        let connections = match reset_type {
            ResetType::NgInterface => {
                shared.ues().clear();
                Vec::new()
            }
            ResetType::PartOfNgInterface(connections) => {
                let mut ues = shared.ues();
                for connection in connections {
                    match (connection.ran_ue_ngap_id, connection.amf_ue_ngap_id) {
                        (Some(ran), _) => drop(ues.remove(&ran)),
                        (None, Some(amf)) => ues.retain(|_, entry| entry.amf_ue_ngap_id != Some(amf)),
                        (None, None) => {}
                    }
                }
                connections.clone()
            }
        };
        let acknowledge = ngap::NgResetAcknowledge { connections, criticality_diagnostics: None };
        let _ = Gnb { shared: Arc::clone(shared) }.send(acknowledge).await;
    }
}
