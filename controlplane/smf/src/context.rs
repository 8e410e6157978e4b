//! State of the SMF and of its sessions.
//!
//! | type | how many | owner | lifetime |
//! |---|---|---|---|
//! | [`Smf`] | one | `start` | as long as the NF |
//! | [`Session`] | one per PDU session | [`Sessions`], and procedures of it | from creation to release
//! of the SM context |
//! | [`SessionState`] | one per [`Session`], behind its own lock | the procedure that holds the lock | the same |
//!
//! A procedure holds the session's lock during its N4 exchanges, so that two procedures do not mix. It
//! releases the lock while it waits for UE, gNB or AMF.
//!
//! A session has one random number: as text it is the SM context reference, as an integer the SEID, and
//! its lower half is the TEID on N4-u. Nobody can guess the number. After a restart of the SMF, a
//! number that AMF or UPF still hold does not name a session of another UE.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ipam::{Addresses, Pool};
use n4::N4;
use nas::Pco;
use net::time;
use net::udp::UdpSocket;
use ngap::GtpTunnel;
use ngap::transfer::SecurityIndication;
use sbi::model::common::NfInstanceId;
use sbi::{ApiRoot, Client, ResourceUri};
use serde::Serialize;
use tokio::sync::Notify;
use types::{Ambr, Arp, Dnn, FiveQi, PduSessionId, PduSessionType, Plmn, Pti, Qfi, SNssai, Supi, Teid};

use crate::config::{Config, DnnConfig};
use crate::rules::{SessionRules, Tunnels};
use crate::samples::Samples;
use crate::usage::Usage;

/// The default QoS flow of every session.
pub(crate) const DEFAULT_QFI: u8 = 1;

/// The SMF.
pub(crate) struct Smf {
    /// The validated configuration.
    pub config: Config,
    /// Our identity in the NRF and towards the UDM.
    pub id: NfInstanceId,
    /// Our API root: the beginning of the callback URIs that we give out.
    pub api_root: ApiRoot,
    /// For calls to AMF, UDM and PCF.
    pub client: Client,
    /// Notices AMFs and PCFs that start.
    pub restarts: Arc<nf::Watch>,
    /// UPFs and the associations with them.
    pub n4: N4,
    /// Socket of N4-u.
    pub gtpu: UdpSocket,
    /// Data networks by name; unchanged after the start.
    pub networks: HashMap<Dnn, Network>,
    /// Every SM context.
    pub sessions: Sessions,
    /// Times of the last procedures.
    pub samples: Samples,
}

/// A data network.
pub(crate) struct Network {
    pub config: DnnConfig,
    pool: Mutex<Pool>,
}

impl Network {
    pub fn new(config: DnnConfig) -> Self {
        let now = time::now().into_std();
        let pool = Pool::new(config.ue_pool, config.quarantine_s, now, nf::random::u64());
        Self { config, pool: pool.into() }
    }

    /// The lock is held for a moment only, never over an await.
    pub fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One PDU session.
pub(crate) struct Session {
    /// SM context reference, SEID and, in its lower half, TEID on N4-u. Neither half is 0.
    pub number: u64,
    /// The subscriber.
    pub supi: Supi,
    /// The session identity that the UE chose.
    pub id: PduSessionId,
    /// Data network.
    pub dnn: Dnn,
    /// Slice.
    pub s_nssai: SNssai,
    /// The router of an IPv6 session. It has its own lock, so that an advertisement does not wait for a
    /// procedure.
    router: Mutex<Router>,
    /// What the UE has used. It has its own lock, so that a report does not wait for a procedure.
    usage: Mutex<Usage>,
    /// Notified when the phase changes.
    pub changed: Notify,
    /// A running procedure holds the lock during N4 exchanges, and not while it waits for UE, gNB or
    /// AMF.
    pub state: tokio::sync::Mutex<SessionState>,
}

/// The SMF as router on the session's link (`n4u`).
#[derive(Debug, Default)]
pub(crate) struct Router {
    pub advertisement: Option<Advertisement>,
    /// Whether downlink packets reach the gNB.
    pub reachable: bool,
    /// The host that solicited while they did not; it is answered as soon as they do.
    pub solicited: Option<Ipv6Addr>,
}

/// Contents and tunnel of a router advertisement.
#[derive(Debug, Clone)]
pub(crate) struct Advertisement {
    /// The UPF's end of N4-u.
    pub upf: GtpTunnel,
    /// The session's /64.
    pub prefix: Ipv6Addr,
    /// Link MTU, octets.
    pub mtu: u16,
    /// DNS servers (RFC 8106).
    pub dns: Vec<Ipv6Addr>,
}

/// Phase of a session's life (TS 24.501 §6.1.3.3 seen from the network).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The UE has not been told yet, or the gNB has not answered yet.
    Establishing,
    /// Established.
    Active,
    /// Being released; says which answers are still missing, the UE's (`n1`) and the gNB's (`n2`).
    Releasing { n1: bool, n2: bool },
    /// Released; procedures that still refer to the session must not use it.
    Released,
}

impl Phase {
    /// The name in `GET /sessions`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Establishing => "establishing",
            Self::Active => "active",
            Self::Releasing { .. } => "releasing",
            Self::Released => "released",
        }
    }
}

/// State of the user plane between gNB and UPF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UpState {
    Deactivated,
    /// The gNB has been asked to set up resources.
    Activating,
    Activated,
}

/// The session on its UPF.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpfSession {
    /// PFCP address of the UPF.
    pub address: SocketAddr,
    /// The UPF's SEID.
    pub seid: u64,
    /// The UPF's `N4::epoch` when it accepted the session.
    pub epoch: u64,
    /// The tunnels that the UPF chose; a restored session keeps them.
    pub tunnels: Tunnels,
}

/// What a session may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionQos {
    /// Session AMBR.
    pub ambr: Ambr,
    /// 5QI of the default flow.
    pub five_qi: FiveQi,
    /// Allocation and retention priority of the default flow.
    pub arp: Arp,
}

/// The changing parts of a session.
pub(crate) struct SessionState {
    pub phase: Phase,
    pub up: UpState,
    /// Number of activations of the user plane. It distinguishes an activation from earlier and later
    /// ones.
    pub activations: u32,
    /// The UE has not answered a page and has not been heard of since: its downlink packets are dropped.
    pub unreachable: bool,
    /// The type that was granted, which may be less than the UE asked for.
    pub session_type: PduSessionType,
    /// How packets are to be protected on the radio, if the configuration says so.
    pub security_indication: Option<SecurityIndication>,
    /// Addresses from the pool of the data network, returned when the session ends.
    pub addresses: Addresses,
    /// What the subscription says.
    pub subscribed: SessionQos,
    /// What is in force: what the PCF authorised, or what is subscribed.
    pub qos: SessionQos,
    /// Serving network.
    pub plmn: Plmn,
    /// The AMF that serves the UE.
    pub amf: ApiRoot,
    /// Since when it does: when it created the session, or the UE moved to it.
    pub amf_since: SystemTime,
    /// The AMF's callback URI for status notifications.
    pub status_uri: String,
    /// `None` before the UPF has accepted the session and after it was deleted there.
    pub upf: Option<UpfSession>,
    /// The gNB's end of N3, while the user plane is active.
    pub gnb: Option<GtpTunnel>,
    /// Policy association with the PCF.
    pub policy: Option<ResourceUri>,
    /// Registration at the UDM as serving SMF, which runs in parallel to the establishment.
    pub registration: Option<tokio::task::JoinHandle<bool>>,
    /// Transaction identity of the running 5GSM procedure.
    pub pti: Pti,
    /// The unanswered release command, for T3592.
    pub release_command: Option<bytes::Bytes>,
    /// The unanswered modification command, for T3591.
    pub modification_command: Option<bytes::Bytes>,
    /// The options that the UE asked for at establishment.
    pub pco: Option<Pco>,
}

impl Session {
    pub fn new(
        number: u64,
        (supi, id): (Supi, PduSessionId),
        dnn: Dnn,
        s_nssai: SNssai,
        state: SessionState,
    ) -> Self {
        let (router, usage, changed) = Default::default();
        Self { number, supi, id, dnn, s_nssai, router, usage, changed, state: state.into() }
    }

    /// The lock is held for a moment only, never over an await.
    pub fn router(&self) -> MutexGuard<'_, Router> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock is held for a moment only, never over an await.
    pub fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The SM context reference.
    pub fn reference(&self) -> String {
        format!("{:016x}", self.number)
    }

    /// Our TEID on N4-u.
    pub fn n4u_teid(&self) -> Teid {
        teid_of(self.number)
    }

    /// Returns once the session is in a phase that `wanted` accepts.
    pub async fn wait_for_phase(&self, wanted: impl Fn(Phase) -> bool) {
        loop {
            let changed = self.changed.notified();
            if wanted(self.state.lock().await.phase) {
                return;
            }
            changed.await;
        }
    }

    /// Our SEID.
    pub fn seid(&self) -> u64 {
        self.number
    }

    /// The UE's names for the session.
    pub fn key(&self) -> (Supi, PduSessionId) {
        (self.supi, self.id)
    }

    /// Interface identifier of the UE's link-local address. It is unique on its link, which connects
    /// only the UE and the SMF's router (`::1`).
    pub fn interface_id(&self) -> [u8; 8] {
        (u64::from(self.n4u_teid().0) | 1 << 32).to_be_bytes()
    }

    /// The default QoS flow.
    pub fn qfi(&self) -> Qfi {
        Qfi::new(DEFAULT_QFI).expect("1 is a QFI")
    }

    /// The rules for the UPF.
    pub fn rules(&self, smf: &Smf, state: &SessionState) -> SessionRules {
        SessionRules {
            seid: self.seid(),
            n4: smf.n4.local().ip(),
            n3: smf.config.n3,
            n4u: smf.config.gtpu,
            n4u_teid: self.n4u_teid(),
            dnn: self.dnn.clone(),
            network_instance: smf.config.network_instance,
            s_nssai: self.s_nssai,
            session_type: state.session_type,
            addresses: state.addresses,
            interface_id: self.interface_id(),
            ambr: state.qos.ambr,
            qfi: self.qfi(),
            usage_period_s: smf.networks.get(&self.dnn).map_or(0, |network| network.config.usage_period_s),
        }
    }

    /// Sets the contents of the router advertisement once the UPF has chosen its tunnel.
    pub fn publish_advertisement(&self, network: &Network, state: &SessionState) {
        let upf = state.upf.and_then(|upf| upf.tunnels.n4u);
        let dns = network.config.dns.iter().filter_map(|address| match address {
            std::net::IpAddr::V6(v6) => Some(*v6),
            std::net::IpAddr::V4(_) => None,
        });
        let advertisement = upf.zip(state.addresses.ipv6).map(|(upf, prefix)| Advertisement {
            upf,
            prefix,
            mtu: network.config.mtu,
            dns: dns.collect(),
        });
        self.router().advertisement = advertisement;
    }
}

/// All sessions, by TEID on N4-u and by UE.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    by_teid: HashMap<Teid, Arc<Session>>,
    by_ue: HashMap<(Supi, PduSessionId), Teid>,
    /// UEs with sessions of whose changed subscriptions the UDM tells.
    watched: HashSet<Supi>,
}

impl Tables {
    fn of_supi(&self, supi: Supi) -> impl Iterator<Item = &Arc<Session>> {
        let ids = (1..=15).filter_map(|id| PduSessionId::new(id).ok());
        ids.filter_map(move |id| self.by_teid.get(self.by_ue.get(&(supi, id))?))
    }
}

fn teid_of(number: u64) -> Teid {
    Teid(number as u32)
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a new session under a random number. Returns it, and the session of the UE that it
    /// replaced.
    pub fn insert(&self, make: impl FnOnce(u64) -> Session) -> (Arc<Session>, Option<Arc<Session>>) {
        let mut tables = self.lock();
        // `limits.sessions` keeps the table far from full, so one or two draws find a free number.
        let mut number = nf::random::u64();
        while number >> 32 == 0 || number as u32 == 0 || tables.by_teid.contains_key(&teid_of(number)) {
            number = nf::random::u64();
        }
        let session = Arc::new(make(number));
        let replaced = tables.by_ue.insert(session.key(), session.n4u_teid());
        tables.by_teid.insert(session.n4u_teid(), session.clone());
        let replaced = replaced.and_then(|teid| tables.by_teid.get(&teid).cloned());
        (session, replaced)
    }

    /// Removes a session. A session that replaced it stays.
    pub fn remove(&self, session: &Session) {
        let mut tables = self.lock();
        tables.by_teid.remove(&session.n4u_teid());
        if tables.by_ue.get(&session.key()) == Some(&session.n4u_teid()) {
            tables.by_ue.remove(&session.key());
        }
        if tables.of_supi(session.supi).next().is_none() {
            tables.watched.remove(&session.supi);
        }
    }

    /// The sessions of a UE.
    pub fn of_supi(&self, supi: Supi) -> Vec<Arc<Session>> {
        self.lock().of_supi(supi).cloned().collect()
    }

    /// Whether the UDM tells of changes of the UE's subscription.
    pub fn is_watched(&self, supi: Supi) -> bool {
        self.lock().watched.contains(&supi)
    }

    /// The UDM does from now on, for as long as the UE has sessions.
    pub fn watch(&self, supi: Supi) {
        let mut tables = self.lock();
        if tables.of_supi(supi).next().is_some() {
            tables.watched.insert(supi);
        }
    }

    /// The session with this TEID on N4-u.
    pub fn by_teid(&self, teid: Teid) -> Option<Arc<Session>> {
        self.lock().by_teid.get(&teid).cloned()
    }

    /// The session with this SEID.
    pub fn by_seid(&self, seid: u64) -> Option<Arc<Session>> {
        self.by_teid(teid_of(seid)).filter(|session| session.number == seid)
    }

    /// The session with this SM context reference, which comes from a peer and may be any text.
    pub fn by_reference(&self, reference: &str) -> Option<Arc<Session>> {
        self.by_seid(u64::from_str_radix(reference, 16).ok()?)
    }

    /// The session with this identity of a UE.
    pub fn of_ue(&self, supi: Supi, id: PduSessionId) -> Option<Arc<Session>> {
        let tables = self.lock();
        tables.by_teid.get(tables.by_ue.get(&(supi, id))?).cloned()
    }

    /// A copy of the list, because procedures may change it meanwhile.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().by_teid.values().cloned().collect()
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.lock().by_teid.len()
    }
}
