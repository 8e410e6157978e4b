//! A gNB's end of N2: one SCTP association, NG Setup, and the UE-associated connections of this gNB.
//!
//! ```text
//!  owner of a UE ── Ue::next_pdu ◄── queue of the UE ──┐
//!  owner of a UE ── Gnb::send ─────────────────────┐   │
//!  owner of the gNB ── Interface::next ◄── queue ──│───┤
//!                                                  ▼   │ routing by RAN UE NGAP ID
//!                                             SCTP association ── AMF
//! ```
//! [`Gnb::connect`] sets everything up and starts a task that reads the association. A message about a UE goes to that UE's [`Ue`].
//! Every other message goes to [`Interface`]: paging, resets (already executed and acknowledged here), error indications, messages
//! about UEs that this gNB does not have. A gNB ends when the last [`Gnb`] and [`Ue`] are dropped, or by [`Gnb::shutdown`]. When the
//! association is lost, every UE of it is lost, and the owner calls [`Gnb::connect`] again.
//!
//! A gNB in one piece (`simulator`) and a central unit (`cu`) use it in the same way.
//!
//! Invariants: queues are bounded; a slow reader loses its own messages (counted in [`Gnb::lost_messages`]) and nobody else's. A PDU
//! that does not decode is answered as TS 38.413 §10 says and reaches no UE.
#![forbid(unsafe_code)]

mod config;
mod reader;
mod setup;
mod ue;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use net::sctp;
use ngap::cause::RadioNetwork;
use ngap::{AmfUeNgapId, Pdu, RanUeNgapId, ResetType, UeConnection};
use tokio::sync::{mpsc, watch};
use types::{Guami, Ncgi, NrCellId, Tai};

pub use config::{GNB_ID_BITS, GnbConfig};
pub use setup::GnbError;
pub use ue::Ue;

/// Messages waiting for one UE: more than any procedure has under way.
const UE_QUEUE: usize = 64;
/// Messages about no UE that [`Interface::next`] has not returned yet.
const INTERFACE_QUEUE: usize = 256;
/// Connections that one NG RESET names; more go into further ones. The standard allows 65,536.
const RESET_CONNECTIONS: usize = 4_096;

/// A handle on a gNB; clones refer to the same gNB.
#[derive(Clone)]
pub struct Gnb {
    shared: Arc<Shared>,
}

struct Shared {
    config: GnbConfig,
    sender: sctp::Sender,
    streams: u16,
    amf: SocketAddr,
    amf_name: String,
    guamis: Vec<Guami>,
    setup_ms: f64,
    ues: Mutex<HashMap<RanUeNgapId, Entry>>,
    next_ran_id: AtomicU32,
    interface: Interface,
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

/// The messages of a gNB's association that are about no UE of the gNB. It does not keep the gNB alive; clones read from the same
/// queue.
#[derive(Clone, Debug)]
pub struct Interface(Arc<tokio::sync::Mutex<mpsc::Receiver<Pdu>>>);

impl Interface {
    /// The next message. `None` when the association has ended. Cancel-safe.
    pub async fn next(&self) -> Option<Pdu> {
        self.0.lock().await.recv().await
    }
}

impl std::fmt::Debug for Gnb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gnb").field("id", &self.shared.config.id).finish_non_exhaustive()
    }
}

impl Gnb {
    /// The gNB's configuration.
    pub fn config(&self) -> &GnbConfig {
        &self.shared.config
    }

    /// The address of the AMF that has answered.
    pub fn amf(&self) -> SocketAddr {
        self.shared.amf
    }

    /// The name the AMF gave itself.
    pub fn amf_name(&self) -> &str {
        &self.shared.amf_name
    }

    /// The first GUAMI the AMF serves.
    pub fn guami(&self) -> Guami {
        self.shared.guamis[0]
    }

    /// All GUAMIs the AMF serves; there is at least one.
    pub fn guamis(&self) -> &[Guami] {
        &self.shared.guamis
    }

    /// How long NG Setup took, milliseconds.
    pub fn setup_ms(&self) -> f64 {
        self.shared.setup_ms
    }

    /// Where UEs in `cell` are. Of the cell's number the low 12 bits count; the others are the gNB's identity.
    pub fn location(&self, cell: u16) -> ngap::UserLocation {
        let Shared { config, .. } = &*self.shared;
        ngap::UserLocation::Nr {
            ncgi: Ncgi { plmn: config.plmn, nr_cell_id: config.cell(cell) },
            tai: Tai { plmn: config.plmn, tac: config.tac },
            time_stamp: None,
        }
    }

    /// Where UEs in a cell are, by the cell's identity.
    pub fn location_of(&self, cell: NrCellId) -> ngap::UserLocation {
        self.location((cell.value() & 0xfff) as u16)
    }

    /// A new UE-associated connection. The AMF learns of it by the INITIAL UE MESSAGE.
    pub fn open(&self) -> Ue {
        let id = RanUeNgapId(self.shared.next_ran_id.fetch_add(1, Ordering::Relaxed));
        let (queue, inbox) = mpsc::channel(UE_QUEUE);
        let mut ues = self.shared.ues();
        // After the end of the association nobody would close the queue.
        if !*self.shared.closed.borrow() {
            ues.insert(id, Entry { queue, amf_ue_ngap_id: None });
        }
        drop(ues);
        Ue::new(self.clone(), id, inbox)
    }

    /// Sends a message, on stream 0 when it is about the interface and on the UE's otherwise (TS 38.412 §7).
    ///
    /// # Errors
    /// The association has ended, or takes no message of this size.
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
    ///
    /// # Errors
    /// As [`Gnb::send`].
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

    /// The messages that are about no UE of this gNB, to be read by one task.
    pub fn interface(&self) -> Interface {
        self.shared.interface.clone()
    }

    /// The next message that is about no UE of this gNB, see [`Interface::next`].
    pub async fn interface_message(&self) -> Option<Pdu> {
        self.shared.interface.next().await
    }

    /// Tells the AMF that a message was about a UE that this gNB does not have (TS 38.413 §10.6). Error indications are not answered.
    ///
    /// # Errors
    /// As [`Gnb::send`].
    pub async fn report_unknown_ue(&self, about: &Pdu) -> Result<(), sctp::SendError> {
        let (amf_ue_ngap_id, ran_ue_ngap_id) = about.ue_ids();
        if matches!(about, Pdu::ErrorIndication(_)) || (amf_ue_ngap_id, ran_ue_ngap_id) == (None, None) {
            return Ok(());
        }
        let indication = ngap::ErrorIndication {
            amf_ue_ngap_id,
            ran_ue_ngap_id,
            cause: Some(RadioNetwork::UnknownLocalUeNgapId.into()),
            criticality_diagnostics: None,
            s_tmsi: None,
        };
        self.send(indication).await
    }

    /// Resets the whole interface: AMF and gNB forget every UE of this gNB, and the UEs are not told (TS 38.413 §8.7.4.2). The
    /// acknowledgement is a message of [`Interface`].
    ///
    /// # Errors
    /// As [`Gnb::send`].
    pub async fn reset(&self, cause: ngap::Cause) -> Result<(), sctp::SendError> {
        self.shared.ues().clear();
        self.send(ngap::NgReset { cause, reset_type: ResetType::NgInterface }).await
    }

    /// Resets the connections of some UEs (TS 38.413 §8.7.4.2), which this gNB forgets. UEs that it does not have are left out.
    ///
    /// # Errors
    /// As [`Gnb::send`].
    pub async fn reset_ues(
        &self,
        cause: ngap::Cause,
        ues: impl IntoIterator<Item = RanUeNgapId>,
    ) -> Result<(), sctp::SendError> {
        let mut connections = Vec::new();
        {
            let mut known = self.shared.ues();
            for id in ues {
                if let Some(entry) = known.remove(&id) {
                    let amf_ue_ngap_id = entry.amf_ue_ngap_id;
                    connections.push(UeConnection { amf_ue_ngap_id, ran_ue_ngap_id: Some(id) });
                }
            }
        }
        for part in connections.chunks(RESET_CONNECTIONS) {
            let reset_type = ResetType::PartOfNgInterface(part.to_vec());
            self.send(ngap::NgReset { cause, reset_type }).await?;
        }
        Ok(())
    }

    /// UE-associated connections that this gNB has.
    pub fn ues(&self) -> usize {
        self.shared.ues().len()
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

    /// Whether two handles are of the same gNB.
    pub fn is(&self, other: &Gnb) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
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
