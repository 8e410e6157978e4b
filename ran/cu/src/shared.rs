//! What the tasks of a CU share: DUs, UEs, the AMF, and which UE a tunnel belongs to.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use f1ap::Pdu;
use tokio::sync::{mpsc, watch};

use crate::Config;
use crate::counters;
use crate::dus::{Du, Dus};
use crate::user_plane::UserPlane;

/// UEs above the configured number for whose refusal there is room.
const ROOM_TO_REFUSE: usize = 256;
/// Events that wait for a UE's task.
const UE_QUEUE: usize = 256;

/// What a UE's task is told.
#[derive(Debug)]
pub(crate) enum UeEvent {
    /// A message of its DU about it.
    F1(Box<Pdu>),
    /// Its DU is gone, or has forgotten it.
    DuLost,
    /// The peer at a tunnel's far end does not answer, or does not know the tunnel.
    TunnelLost(FarEnd),
    /// The CU stops.
    Stopping,
}

/// What is known of a UE outside of its task.
struct Entry {
    /// Key of its DU's association.
    du: u64,
    /// The DU's number of it.
    du_ue: u32,
    /// `None` once an event had no room: the task would miss what happened, so it has to end.
    inbox: Option<mpsc::Sender<UeEvent>>,
}

/// A tunnel's far end: interface, address and TEID there.
pub(crate) type FarEnd = (u8, IpAddr, u32);

#[derive(Default)]
struct Ues {
    /// By the CU's number.
    entries: HashMap<u32, Entry>,
    /// The CU's numbers by association and the DU's number.
    of_du: HashMap<(u64, u32), u32>,
    /// Tunnels with their UEs. A far end may have several: a UE that has come back has the same end at the UPF as its former
    /// connection, and a DU that has restarted gives out the same TEIDs.
    tunnels: BTreeSet<(FarEnd, u32)>,
}

/// Who a message about a UE is for.
pub(crate) enum Owner {
    /// It was given to the UE's task.
    Told,
    /// No UE has the number.
    Unknown,
    /// The UE is another DU's, or the DU has another number for it.
    Inconsistent,
}

/// The state of a CU.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) user_plane: UserPlane,
    pub(crate) dus: Dus,
    pub(crate) amf: watch::Sender<Option<n2::Gnb>>,
    /// Becomes `true` when the CU stops.
    pub(crate) stopping: watch::Sender<bool>,
    ues: Mutex<Ues>,
    next_ue: AtomicU32,
    next_key: AtomicU64,
}

impl Shared {
    pub(crate) fn new(config: Config, user_plane: UserPlane) -> Shared {
        Shared {
            config,
            user_plane,
            dus: Dus::default(),
            amf: watch::Sender::new(None),
            stopping: watch::Sender::new(false),
            ues: Mutex::default(),
            // Begins at random, so that messages about UEs of a CU before this one find none.
            next_ue: AtomicU32::new(random()),
            next_key: AtomicU64::new(0),
        }
    }

    fn ues(&self) -> MutexGuard<'_, Ues> {
        self.ues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The AMF's association, if there is one.
    pub(crate) fn amf(&self) -> Option<n2::Gnb> {
        self.amf.borrow().clone()
    }

    /// A key for a new association.
    pub(crate) fn next_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until the CU stops.
    pub(crate) async fn stopped(&self) {
        // The sender lives as long as this.
        let _ = self.stopping.subscribe().wait_for(|stop| *stop).await;
    }

    /// Adds a UE: its number and its inbox. A UE with the same number at its DU is gone. `None` if there are so many that not even
    /// a refusal has room.
    pub(crate) fn add_ue(&self, du: &Du, du_ue: u32) -> Option<(u32, mpsc::Receiver<UeEvent>)> {
        let mut ues = self.ues();
        if let Some(former) = ues.of_du.remove(&(du.key, du_ue)) {
            tell(&mut ues, former, UeEvent::DuLost);
        }
        if ues.entries.len() >= self.config.max_ues + ROOM_TO_REFUSE {
            return None;
        }
        let id = loop {
            let id = self.next_ue.fetch_add(1, Ordering::Relaxed);
            if !ues.entries.contains_key(&id) {
                break id;
            }
        };
        let (inbox, receiver) = mpsc::channel(UE_QUEUE);
        ues.entries.insert(id, Entry { du: du.key, du_ue, inbox: Some(inbox) });
        ues.of_du.insert((du.key, du_ue), id);
        Some((id, receiver))
    }

    /// Forgets a UE, whose sessions were closed.
    pub(crate) fn remove_ue(&self, id: u32) {
        let mut ues = self.ues();
        if let Some(entry) = ues.entries.remove(&id) {
            let of_du = (entry.du, entry.du_ue);
            if ues.of_du.get(&of_du) == Some(&id) {
                ues.of_du.remove(&of_du);
            }
        }
    }

    /// UEs with a connection.
    pub(crate) fn ue_count(&self) -> usize {
        self.ues().entries.len()
    }

    /// Gives a message of a DU to the UE it is about. `du_ue`: the DU's number, where the message has it.
    pub(crate) fn give(&self, du: &Du, id: u32, du_ue: Option<u32>, pdu: Pdu) -> Owner {
        let mut ues = self.ues();
        match ues.entries.get(&id) {
            None => Owner::Unknown,
            Some(entry) if entry.du != du.key || du_ue.is_some_and(|du_ue| du_ue != entry.du_ue) => {
                Owner::Inconsistent
            }
            Some(_) => {
                tell(&mut ues, id, UeEvent::F1(Box::new(pdu)));
                Owner::Told
            }
        }
    }

    /// All UEs of a DU are lost to it. Returns how many.
    pub(crate) fn lose_ues(&self, du: &Du) -> usize {
        let mut ues = self.ues();
        let of_du = ues.entries.iter().filter(|(_, entry)| entry.du == du.key);
        let lost: Vec<u32> = of_du.map(|(id, _)| *id).collect();
        lost.iter().for_each(|id| tell(&mut ues, *id, UeEvent::DuLost));
        lost.len()
    }

    /// A UE is lost to its DU, which names it by the CU's number, by its own, or by both.
    pub(crate) fn lose_ue(&self, du: &Du, cu_ue: Option<u32>, du_ue: Option<u32>) {
        let mut ues = self.ues();
        let of_du = du_ue.and_then(|du_ue| ues.of_du.get(&(du.key, du_ue)).copied());
        let Some(id) = cu_ue.or(of_du) else { return };
        let is_meant = |entry: &Entry| entry.du == du.key && du_ue.is_none_or(|du_ue| du_ue == entry.du_ue);
        if ues.entries.get(&id).is_some_and(is_meant) {
            tell(&mut ues, id, UeEvent::DuLost);
        }
    }

    /// The CU stops: every UE is told.
    pub(crate) fn stop_ues(&self) {
        let mut ues = self.ues();
        let all: Vec<u32> = ues.entries.keys().copied().collect();
        all.into_iter().for_each(|id| tell(&mut ues, id, UeEvent::Stopping));
    }

    /// A tunnel of a UE leads there.
    pub(crate) fn add_tunnel(&self, far_end: FarEnd, ue: u32) {
        self.ues().tunnels.insert((far_end, ue));
    }

    /// It does no longer.
    pub(crate) fn remove_tunnel(&self, far_end: FarEnd, ue: u32) {
        self.ues().tunnels.remove(&(far_end, ue));
    }

    /// The peers to which tunnels lead, by interface.
    pub(crate) fn peers(&self) -> Vec<(u8, IpAddr)> {
        let ues = self.ues();
        let peers = ues.tunnels.iter().map(|((interface, address, _), _)| (*interface, *address));
        let mut peers: Vec<_> = peers.collect();
        peers.dedup();
        peers
    }

    /// A peer does not answer any more (`teid` is `None`), or does not know a tunnel. Returns how many tunnels are lost.
    pub(crate) fn lose_tunnels(&self, interface: u8, peer: IpAddr, teid: Option<u32>) -> usize {
        let mut ues = self.ues();
        let first = ((interface, peer, teid.unwrap_or(0)), 0);
        let last = ((interface, peer, teid.unwrap_or(u32::MAX)), u32::MAX);
        let lost: Vec<(FarEnd, u32)> = ues.tunnels.range(first..=last).copied().collect();
        lost.iter().for_each(|(far_end, ue)| tell(&mut ues, *ue, UeEvent::TunnelLost(*far_end)));
        lost.len()
    }
}

/// Gives an event to a UE's task. The inbox of one that has no room is closed.
fn tell(ues: &mut Ues, id: u32, event: UeEvent) {
    let Some(entry) = ues.entries.get_mut(&id) else { return };
    if entry.inbox.as_ref().is_some_and(|inbox| inbox.try_send(event).is_err()) {
        counters::F1C_REJECTED.inc("ue_queue_full");
        entry.inbox = None;
    }
}

fn random() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish() as u32
}
