//! The DUs that are connected: identity, cells, and how to send to them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use f1ap::Pdu;
use f1ap::ie::GnbDuId;
use net::sctp;
use tokio::sync::watch;
use types::{Ncgi, Tai};

use crate::counters;

/// Most DUs of a CU.
pub(crate) const MOST_DUS: usize = 16;
/// How long a message may wait for a DU that does not read. Then the DU counts as lost.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// A cell of a DU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Its identity.
    pub nr_cgi: Ncgi,
    /// Its tracking area.
    pub tai: Tai,
}

/// A connected DU, after F1 Setup.
#[derive(Debug)]
pub struct Du {
    /// Its identity.
    pub id: GnbDuId,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Where its F1-C comes from.
    pub address: IpAddr,
    /// Its cells.
    pub cells: Vec<Cell>,
    /// Number of the interface to it on F1-U.
    pub(crate) f1u: u8,
    /// Tells apart the associations of a DU.
    pub(crate) key: u64,
    sender: sctp::Sender,
    streams: u16,
    /// Becomes `true` when the association is to end.
    end: watch::Sender<bool>,
}

impl Du {
    #[allow(clippy::too_many_arguments, reason = "all of them are fields")]
    pub(crate) fn new(
        id: GnbDuId,
        name: Option<String>,
        address: IpAddr,
        cells: Vec<Cell>,
        f1u: u8,
        key: u64,
        (sender, streams): (sctp::Sender, u16),
    ) -> Du {
        Du { id, name, address, cells, f1u, key, sender, streams, end: watch::Sender::new(false) }
    }

    /// Sends a message about a UE on the UE's stream, any other on stream 0 (TS 38.472 §7).
    pub(crate) async fn send(&self, ue: Option<u32>, pdu: &Pdu) -> Result<(), sctp::SendError> {
        let stream = match (ue, self.streams) {
            (Some(ue), streams @ 2..) => (ue % u32::from(streams - 1)) as u16 + 1,
            _ => 0,
        };
        let message = message(stream, pdu).ok_or(sctp::SendError::Size(0))?;
        match net::time::timeout(SEND_LIMIT, self.sender.send(message)).await {
            Ok(sent) => sent,
            Err(_) => {
                self.end();
                Err(sctp::SendError::Closed)
            }
        }
    }

    /// Sends a message about no UE if that is possible at once; says whether it was.
    pub(crate) fn try_send(&self, pdu: &Pdu) -> bool {
        message(0, pdu).is_some_and(|message| self.sender.try_send(message).is_ok())
    }

    /// Ends the association.
    pub(crate) fn end(&self) {
        self.end.send_replace(true);
    }

    /// Waits until somebody wants the association to end.
    pub(crate) async fn ended(&self) {
        // The sender lives as long as this.
        let _ = self.end.subscribe().wait_for(|end| *end).await;
    }

    /// Whether a cell is one of its cells.
    pub(crate) fn has(&self, cell: Ncgi) -> bool {
        self.cells.iter().any(|known| known.nr_cgi == cell)
    }
}

/// The SCTP message of a PDU; `None` (counted) for a value that F1AP cannot carry.
pub(crate) fn message(stream: u16, pdu: &Pdu) -> Option<sctp::Message> {
    match pdu.encode() {
        Ok(payload) => Some(sctp::Message { stream, ppid: f1ap::PPID, payload: payload.into() }),
        Err(error) => {
            counters::F1C_REJECTED.inc("not_encodable");
            tracing::error!(message = pdu.name(), %error, "F1AP message not sent");
            None
        }
    }
}

/// The DUs by identity.
#[derive(Debug, Default)]
pub(crate) struct Dus(Mutex<HashMap<u64, Arc<Du>>>);

/// Why a DU is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAccepted {
    /// Another DU has the identity.
    Identity,
    /// Another DU has one of the cells.
    Cell,
    /// There are as many DUs as there can be.
    Full,
}

impl Dus {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Du>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a DU. One with the same identity and address has restarted: its former association is returned, for its UEs to end.
    pub(crate) fn add(&self, du: Arc<Du>) -> Result<Option<Arc<Du>>, NotAccepted> {
        let mut dus = self.lock();
        if dus.get(&du.id.0).is_some_and(|known| known.address != du.address) {
            return Err(NotAccepted::Identity);
        }
        let others = || dus.values().filter(|known| known.id != du.id);
        if others().count() >= MOST_DUS {
            return Err(NotAccepted::Full);
        }
        if others().any(|known| du.cells.iter().any(|cell| known.has(cell.nr_cgi))) {
            return Err(NotAccepted::Cell);
        }
        Ok(dus.insert(du.id.0, du))
    }

    /// Removes a DU, unless another association has taken its place.
    pub(crate) fn remove(&self, du: &Du) {
        let mut dus = self.lock();
        if dus.get(&du.id.0).is_some_and(|known| known.key == du.key) {
            dus.remove(&du.id.0);
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Du>> {
        let mut dus: Vec<Arc<Du>> = self.lock().values().cloned().collect();
        dus.sort_by_key(|du| du.id.0);
        dus
    }
}
