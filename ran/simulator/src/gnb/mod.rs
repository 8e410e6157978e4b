//! A gNB in one piece: its end of N2 ([`n2::Gnb`]), the tunnels of its UEs, and the UEs that camp on it.
//!
//! [`Gnb::connect`] sets everything up. A message about a UE goes to that UE's [`Connection`]. PAGING goes to the UE that camps on
//! this gNB under the paged identity ([`Gnb::camp`]). Every other message can be read with [`Gnb::interface_message`]. A gNB ends
//! when the last [`Gnb`] is dropped, or by [`Gnb::shutdown`](n2::Gnb::shutdown).
//!
//! Invariants: queues are bounded; a slow reader loses its own messages (counted in [`Gnb::lost_messages`]) and nobody else's.

mod connection;
mod paging;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ngap::{Pdu, RrcEstablishmentCause};
use tokio::sync::{Mutex, mpsc};

pub use connection::{Bearer, Connection, Downlink};
pub use n2::{GnbConfig, GnbError};
pub use paging::Camping;

use crate::user_plane::UserPlane;

/// Messages about no UE that [`Gnb::interface_message`] has not returned yet.
const INTERFACE_QUEUE: usize = 256;
/// Number of the one cell of a gNB.
const CELL: u16 = 1;

/// A handle on a gNB; clones refer to the same gNB. What N2 offers, [`n2::Gnb`], it offers as well.
#[derive(Clone)]
pub struct Gnb {
    n2: n2::Gnb,
    radio: Arc<Radio>,
}

/// What a gNB has besides N2.
struct Radio {
    user_plane: Option<UserPlane>,
    camping: Arc<paging::CampingUes>,
    interface: Mutex<mpsc::Receiver<Pdu>>,
    /// Messages for which `interface` had no room.
    lost: Arc<AtomicU64>,
}

impl std::fmt::Debug for Gnb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.n2.fmt(f)
    }
}

impl Deref for Gnb {
    type Target = n2::Gnb;

    fn deref(&self) -> &n2::Gnb {
        &self.n2
    }
}

impl Gnb {
    /// Connects to the AMF and completes NG Setup (TS 38.413 §8.7.1). Sessions of its UEs get tunnels on `user_plane`; without one
    /// they are refused.
    ///
    /// # Errors
    /// See [`GnbError`].
    pub async fn connect(config: GnbConfig, user_plane: Option<UserPlane>) -> Result<Self, GnbError> {
        let n2 = n2::Gnb::connect(config).await?;
        let camping = Arc::new(paging::CampingUes::of(n2.config()));
        let (queue, interface) = mpsc::channel(INTERFACE_QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        // The task ends with the association, and holds no handle that would keep it alive.
        tokio::spawn(read_interface(n2.interface(), Arc::clone(&camping), queue, Arc::clone(&lost)));
        let radio = Radio { user_plane, camping, interface: Mutex::new(interface), lost };
        Ok(Self { n2, radio: Arc::new(radio) })
    }

    /// The user plane that its UEs use.
    pub fn user_plane(&self) -> Option<&UserPlane> {
        self.radio.user_plane.as_ref()
    }

    /// Where its UEs are: in cell 1 of the gNB.
    pub fn location(&self) -> ngap::UserLocation {
        self.n2.location(CELL)
    }

    /// Opens an RRC connection for a UE that camps on this gNB. The AMF learns of it, with `cause`, by
    /// the UE's first message.
    pub fn open(&self, cause: RrcEstablishmentCause) -> Connection {
        Connection::new(self.clone(), self.n2.open(), cause)
    }

    /// The next message from the AMF that is about no UE of this gNB: paging of UEs that camp
    /// elsewhere, resets, error indications, and the answers to those. `None` when the association has
    /// ended.
    pub async fn interface_message(&self) -> Option<Pdu> {
        self.radio.interface.lock().await.recv().await
    }

    /// Messages lost because their reader was too slow.
    pub fn lost_messages(&self) -> u64 {
        self.n2.lost_messages() + self.radio.lost.load(Ordering::Relaxed)
    }
}

/// Pages UEs that camp here, and keeps all other messages for [`Gnb::interface_message`].
async fn read_interface(
    messages: n2::Interface,
    camping: Arc<paging::CampingUes>,
    queue: mpsc::Sender<Pdu>,
    lost: Arc<AtomicU64>,
) {
    while let Some(pdu) = messages.next().await {
        if matches!(&pdu, Pdu::Paging(paging) if camping.page(paging)) {
            continue;
        }
        if queue.try_send(pdu).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
