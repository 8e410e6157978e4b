//! The AMF's data, and who owns it.
//!
//! | type | how many | owner | lifetime |
//! |---|---|---|---|
//! | [`Amf`] | one | shared by every task | the process |
//! | [`Gnb`] | one per SCTP association | shared by its task and its UEs | until the association and
//! the last UE's link have ended |
//! | [`UeContext`] | one per UE | the UE's task alone | from its first message to its deregistration |
//! | [`UeHandle`] | one per UE | shared: the queue and view of a UE's task | as the task |
//! | [`PduSession`] | up to 15 per UE | its [`UeContext`] | from SM context creation to release |
//!
//! Only the UE's task changes its state. All other tasks send an event to its bounded queue, or read
//! the [`UeView`] that the task publishes when a procedure has changed the state. [`UeIndex`] has the
//! indexes (SUPI → UE, 5G-TMSI → UE).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nas::security::SecurityContext;
use nas::{KeySetId, UeSecurityCapability};
use ngap::{AmfUeNgapId, GlobalRanNodeId, UserLocation};
use serde::Serialize;
use tokio::sync::{Notify, Semaphore, mpsc};
use types::{Ambr, Dnn, Guami, Guti, PduSessionId, Pei, SNssai, Supi, Tai, Tmsi};

use crate::admission::{Admission, Room};
use crate::config::Config;
use crate::event::UeEvent;
use crate::gnb::Gnb;
use crate::peers::{Peers, PolicyAssociation, SmContextRef};
use crate::samples::Samples;
use crate::state::{Cm, CmEvent, Mm, MmEvent, Rm};

/// One AMF.
#[derive(Debug)]
pub(crate) struct Amf {
    pub config: Config,
    pub guami: Guami,
    pub peers: Peers,
    /// Notices SMFs and PCFs that start.
    pub restarts: Arc<nf::Watch>,
    pub gnbs: Mutex<HashMap<u64, Arc<Gnb>>>,
    pub ues: UeIndex,
    pub samples: Samples,
    /// Limits what registering UEs can use.
    pub admission: Arc<Admission>,
    /// Limits the UEs with proven identity (`limits.ues`): each holds a permit.
    pub ue_permits: Arc<Semaphore>,
    next_association: AtomicU64,
    next_ue_ngap_id: AtomicU64,
    next_session_serial: AtomicU64,
}

/// Memory for a UE that has not proven its identity, without its first message: its task with the
/// largest procedure, its queue, its connection's entries in the tables. `tests/memory.rs` measures it:
/// 16.5 kB, rounded up.
const UNPROVEN_UE_OCTETS: usize = 20 * 1024;

/// Memory for a first message that waits for its turn, without the NAS message: a small task and its
/// connection's entries in the tables. `tests/memory.rs` measures it: 2.9 kB, rounded up.
pub(crate) const WAITING_OCTETS: usize = 3584;

/// AMF UE NGAP IDs have 40 bits (TS 38.413 §9.3.3.1).
const MAX_AMF_UE_NGAP_ID: u64 = (1 << 40) - 1;

impl Amf {
    pub fn new(config: Config, peers: Peers, restarts: Arc<nf::Watch>) -> Amf {
        let guami = Guami { plmn: config.plmn, amf_id: config.amf_id };
        Amf {
            guami,
            peers,
            restarts,
            gnbs: Mutex::default(),
            ues: UeIndex::default(),
            samples: Samples::new(config.limits.procedure_samples),
            admission: Admission::new(
                config.limits.registrations,
                config.limits.registration_calls,
                config.limits.unproven_mb.saturating_mul(1 << 20),
            ),
            ue_permits: Arc::new(Semaphore::new(config.limits.ues.min(Semaphore::MAX_PERMITS))),
            next_association: AtomicU64::new(1),
            // Starts at a random number: messages that gNBs and SMFs still send for contexts of before
            // a restart must not match new ones.
            next_ue_ngap_id: AtomicU64::new(nf::random::u64()),
            next_session_serial: AtomicU64::new(nf::random::u32().into()),
            config,
        }
    }

    /// Every association, also those that are ending.
    pub fn gnbs(&self) -> MutexGuard<'_, HashMap<u64, Arc<Gnb>>> {
        self.gnbs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The associations that no other has replaced.
    pub fn current_gnbs(&self) -> Vec<Arc<Gnb>> {
        self.gnbs().values().filter(|gnb| !gnb.is_replaced()).cloned().collect()
    }

    /// The number of a new association.
    pub fn association_key(&self) -> u64 {
        self.next_association.fetch_add(1, Relaxed)
    }

    /// A new AMF UE NGAP ID. Each logical connection gets its own, and 2^40 follow before one repeats.
    /// So a late message of an old connection cannot match a new one.
    pub fn ue_ngap_id(&self) -> AmfUeNgapId {
        AmfUeNgapId(self.next_ue_ngap_id.fetch_add(1, Relaxed) & MAX_AMF_UE_NGAP_ID)
    }

    /// A new [`PduSession::serial`].
    pub fn session_serial(&self) -> u64 {
        self.next_session_serial.fetch_add(1, Relaxed)
    }

    /// A handle and queue for a new UE task, whose first message of `octets` came from `gnb`. `None` if
    /// `limits.ues` is reached or there is no memory for UEs without proven identity.
    pub fn new_ue(&self, gnb: &Gnb, octets: usize) -> Option<(Arc<UeHandle>, mpsc::Receiver<UeEvent>, Room)> {
        if self.ue_permits.available_permits() == 0 {
            return None;
        }
        let room = self.admission.room(gnb.host(), UNPROVEN_UE_OCTETS + octets)?;
        let (queue, receiver) = mpsc::channel(self.config.limits.ue_queue);
        let handle = UeHandle {
            queue,
            connected: AtomicBool::new(false),
            superseded: Notify::new(),
            view: Mutex::default(),
        };
        Some((Arc::new(handle), receiver, room))
    }

    /// The association on which this gNB has completed NG Setup, other than `but`.
    pub fn gnb_with_id(&self, id: &GlobalRanNodeId, but: u64) -> Option<Arc<Gnb>> {
        let mut others = self.current_gnbs().into_iter().filter(|gnb| gnb.key != but);
        others.find(|gnb| gnb.info().is_some_and(|info| info.id == *id))
    }

    /// Whether this AMF serves the tracking area.
    pub fn serves(&self, tai: Tai) -> bool {
        tai.plmn == self.config.plmn && self.config.tac.contains(&tai.tac)
    }

    /// The registration area for UEs: every tracking area served.
    pub fn registration_area(&self) -> Vec<Tai> {
        self.config.tac.iter().map(|tac| Tai { plmn: self.config.plmn, tac: *tac }).collect()
    }

    /// A 5G-GUTI of this AMF.
    pub fn guti(&self, tmsi: Tmsi) -> Guti {
        Guti { guami: self.guami, tmsi }
    }
}

/// The other tasks' access to a UE's task.
#[derive(Debug)]
pub(crate) struct UeHandle {
    queue: mpsc::Sender<UeEvent>,
    connected: AtomicBool,
    /// Another task has authenticated the same subscriber: this task ends and releases everything.
    pub superseded: Notify,
    view: Mutex<Option<UeView>>,
}

impl UeHandle {
    /// Queues an event. If the queue is full, the event is dropped: the sender counts it, the UE or
    /// peer NF repeats it by its own timer, and no other UE is affected.
    pub fn send(&self, event: UeEvent) -> Result<(), UeEvent> {
        self.queue.try_send(event).map_err(|error| match error {
            mpsc::error::TrySendError::Full(event) | mpsc::error::TrySendError::Closed(event) => event,
        })
    }

    /// Whether the UE is CM-CONNECTED.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Relaxed)
    }

    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Relaxed);
    }

    /// The view that the task published last.
    pub fn view(&self) -> Option<UeView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn publish(&self, view: UeView) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Some(view);
    }
}

/// The state of a UE in `GET /ues`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UeView {
    pub supi: Option<Supi>,
    pub pei: Option<Pei>,
    pub guti: Option<String>,
    pub mm_state: Mm,
    pub rm_state: Rm,
    pub cm_state: Cm,
    pub gnb: Option<String>,
    pub amf_ue_ngap_id: Option<u64>,
    pub ran_ue_ngap_id: Option<u32>,
    pub tai: Option<Tai>,
    pub cell: Option<String>,
    pub allowed_nssai: Vec<SNssai>,
    pub integrity: Option<String>,
    pub ciphering: Option<String>,
    pub sessions: Vec<SessionView>,
}

/// A session in `GET /ues`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SessionView {
    pub id: PduSessionId,
    pub dnn: Dnn,
    pub s_nssai: SNssai,
    /// Whether the user plane is active.
    pub active: bool,
}

/// Indexes of all UEs.
#[derive(Debug, Default)]
pub(crate) struct UeIndex {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    by_supi: HashMap<Supi, Arc<UeHandle>>,
    by_tmsi: HashMap<Tmsi, Arc<UeHandle>>,
}

/// TMSIs that are not allocated: to people and to some UEs, all zeros and all ones look like "no
/// value".
const RESERVED_TMSI: [u32; 2] = [0, u32::MAX];

impl UeIndex {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `handle` the UE of this subscriber. Returns the previous one, which has to be superseded.
    pub fn claim(&self, supi: Supi, handle: &Arc<UeHandle>) -> Option<Arc<UeHandle>> {
        let old = self.tables().by_supi.insert(supi, handle.clone());
        old.filter(|old| !Arc::ptr_eq(old, handle))
    }

    /// Whether `handle` is still the UE of this subscriber.
    pub fn owns(&self, supi: Supi, handle: &Arc<UeHandle>) -> bool {
        self.tables().by_supi.get(&supi).is_some_and(|owner| Arc::ptr_eq(owner, handle))
    }

    /// The UE of a subscriber.
    pub fn by_supi(&self, supi: Supi) -> Option<Arc<UeHandle>> {
        self.tables().by_supi.get(&supi).cloned()
    }

    /// The UE with this 5G-TMSI.
    pub fn by_tmsi(&self, tmsi: Tmsi) -> Option<Arc<UeHandle>> {
        self.tables().by_tmsi.get(&tmsi).cloned()
    }

    /// Allocates an unpredictable and unused 5G-TMSI for a UE (TS 33.501 §6.12.3); `random` returns
    /// random numbers.
    pub fn allocate_tmsi(&self, handle: &Arc<UeHandle>, mut random: impl FnMut() -> u32) -> Tmsi {
        let mut tables = self.tables();
        // `limits.ues` keeps the table far from full, so one or two draws find a free value.
        loop {
            let tmsi = Tmsi(random());
            if !RESERVED_TMSI.contains(&tmsi.0) && !tables.by_tmsi.contains_key(&tmsi) {
                tables.by_tmsi.insert(tmsi, handle.clone());
                return tmsi;
            }
        }
    }

    /// Frees a 5G-TMSI.
    pub fn free_tmsi(&self, tmsi: Tmsi) {
        self.tables().by_tmsi.remove(&tmsi);
    }

    /// Removes a UE that ends. Entries that belong to another UE by now stay.
    pub fn remove(&self, supi: Option<Supi>, tmsis: &[Tmsi], handle: &Arc<UeHandle>) {
        let mut tables = self.tables();
        if let Some(supi) = supi
            && tables.by_supi.get(&supi).is_some_and(|owner| Arc::ptr_eq(owner, handle))
        {
            tables.by_supi.remove(&supi);
        }
        for tmsi in tmsis {
            if tables.by_tmsi.get(tmsi).is_some_and(|owner| Arc::ptr_eq(owner, handle)) {
                tables.by_tmsi.remove(tmsi);
            }
        }
    }

    /// All UEs.
    pub fn all(&self) -> Vec<Arc<UeHandle>> {
        self.tables().by_supi.values().cloned().collect()
    }

    /// Number of subscribers with a context.
    pub fn len(&self) -> usize {
        self.tables().by_supi.len()
    }
}

/// The AMF's context of a UE. Owned by the UE's task.
#[derive(Debug)]
pub(crate) struct UeContext {
    /// Known after authentication.
    pub supi: Option<Supi>,
    pub pei: Option<Pei>,
    /// The UE's 5G-TMSIs: the one that the UE confirmed last, then those assigned since, the current
    /// one last. At most three.
    pub tmsis: Vec<Tmsi>,
    pub mm: Mm,
    pub cm: Cm,
    /// Whether the UE was registered before the common procedure under way.
    pub registered: bool,
    pub capability: Option<UeSecurityCapability>,
    /// Current NAS security context.
    pub security: Option<SecurityContext>,
    pub last_ngksi: KeySetId,
    pub location: Option<UserLocation>,
    pub allowed_nssai: Vec<SNssai>,
    pub subscription: Option<Subscription>,
    pub policy: Option<PolicyAssociation>,
    /// Whether the AMF is registered at the UDM as serving AMF.
    pub uecm_registered: bool,
    pub sessions: BTreeMap<PduSessionId, PduSession>,
    /// Sessions that the UE may believe to exist although they do not: accepts tell the UE until it has shown that it
    /// knows (`procedure/session_loss.rs`).
    pub lost_sessions: BTreeSet<PduSessionId>,
    /// Sessions whose SMF was told that the UE does not answer a page.
    pub unreached_sessions: BTreeSet<PduSessionId>,
    pub radio_capability: Option<Bytes>,
    /// The UE has answered a page and needs a new 5G-GUTI (TS 33.501 §6.12.3).
    pub guti_due: bool,
    /// The UE's slices have changed, and the UE has not been told yet.
    pub slices_due: bool,
    /// Whether we have a subscription to changes at the UDM.
    pub sdm_subscribed: bool,
}

/// The subscription data from the UDM.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscription {
    pub ambr: Option<Ambr>,
    /// Slices used when the UE asks for none.
    pub default_slices: Vec<SNssai>,
    /// Other slices that the UE may ask for.
    pub slices: Vec<SNssai>,
    /// DNNs per slice.
    pub dnns: Vec<SliceDnns>,
}

/// The DNNs of one slice in a subscription.
#[derive(Clone, Debug)]
pub(crate) struct SliceDnns {
    pub s_nssai: SNssai,
    pub dnns: Vec<Dnn>,
    pub default: Option<Dnn>,
}

impl Subscription {
    /// Whether the subscriber may use the slice.
    pub fn allows(&self, s_nssai: SNssai) -> bool {
        self.default_slices.contains(&s_nssai) || self.slices.contains(&s_nssai)
    }

    /// The Configured NSSAI (TS 23.501 §5.15.3): the subscribed slices that the network `serves`, the
    /// default ones first.
    pub fn configured_slices(&self, serves: &[SNssai]) -> Vec<SNssai> {
        let mut configured: Vec<SNssai> = Vec::new();
        for slice in self.default_slices.iter().chain(&self.slices) {
            if serves.contains(slice) && !configured.contains(slice) {
                configured.push(*slice);
            }
        }
        configured
    }

    /// The DNNs of a slice.
    pub fn dnns_of(&self, s_nssai: SNssai) -> Option<&SliceDnns> {
        self.dnns.iter().find(|entry| entry.s_nssai == s_nssai)
    }
}

/// The AMF's context of a PDU session; the SMF owns the session.
#[derive(Clone, Debug)]
pub(crate) struct PduSession {
    pub dnn: Dnn,
    pub s_nssai: SNssai,
    /// Distinguishes this session from earlier and later ones of the UE with the same identity. It is
    /// part of the URI for the SMF's notifications: a late notification about the old session must not
    /// end the new one.
    pub serial: u64,
    /// The SM context in its SMF.
    pub context: SmContextRef,
    /// Whether the gNB has resources for it.
    pub active: bool,
    /// The UE has sent PDU SESSION RELEASE COMPLETE: it no longer believes in the session.
    pub release_completed: bool,
}

impl UeContext {
    pub fn new() -> UeContext {
        UeContext {
            supi: None,
            pei: None,
            tmsis: Vec::new(),
            mm: Mm::Deregistered,
            cm: Cm::Idle,
            registered: false,
            capability: None,
            security: None,
            last_ngksi: KeySetId::NoKey,
            location: None,
            allowed_nssai: Vec::new(),
            subscription: None,
            policy: None,
            uecm_registered: false,
            sessions: BTreeMap::new(),
            lost_sessions: BTreeSet::new(),
            unreached_sessions: BTreeSet::new(),
            radio_capability: None,
            guti_due: false,
            slices_due: false,
            sdm_subscribed: false,
        }
    }

    /// The UE's aggregate bit rate: that of the PCF, or else that of the subscription.
    pub fn ambr(&self) -> Option<Ambr> {
        let policy = self.policy.as_ref().and_then(|policy| policy.ue_ambr);
        policy.or_else(|| self.subscription.as_ref()?.ambr)
    }

    /// The UE's current 5G-TMSI.
    pub fn tmsi(&self) -> Option<Tmsi> {
        self.tmsis.last().copied()
    }

    /// Makes a transition of the 5GMM state machine. An undefined one is counted and changes nothing.
    pub fn mm_event(&mut self, event: MmEvent) {
        match self.mm.next(event) {
            Some(next) => self.mm = next,
            None => crate::counters::UNEXPECTED_TRANSITIONS.inc(&format!("{:?}:{event:?}", self.mm)),
        }
        match self.mm {
            Mm::Registered => self.registered = true,
            Mm::Deregistered => self.registered = false,
            Mm::CommonProcedureInitiated | Mm::DeregisteredInitiated => {}
        }
    }

    /// Makes a transition of the CM state machine.
    pub fn cm_event(&mut self, event: CmEvent) {
        if let Some(next) = self.cm.next(event) {
            self.cm = next;
        }
    }

    /// The UE's last known tracking area.
    pub fn tai(&self) -> Option<Tai> {
        self.location.and_then(|location| location.tai())
    }
}
