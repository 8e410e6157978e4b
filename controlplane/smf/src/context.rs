//! State of the SMF: who has which session.
//!
//! | type | how many | owner | lives |
//! |---|---|---|---|
//! | [`Smf`] | one | `start` | as long as the NF |
//! | [`Session`] | one per PDU session | [`Sessions`], and procedures at work on it | SM context creation to release |
//! | [`SessionState`] | one per [`Session`], behind its own lock | the procedure that holds the lock | the same |
//!
//! A procedure holds the session's lock over its N4 exchanges, so that two never mix; it gives it up while it waits
//! for UE, gNB or AMF.
//!
//! A session has one random number: as text it is the SM context reference, as it is the SEID, and its lower half is the
//! TEID on N4-u. Nobody can guess it, and what AMF and UPF still name of an SMF that restarted is no session of another
//! UE.

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nas::Pco;
use net::udp::UdpSocket;
use ngap::GtpTunnel;
use sbi::model::common::NfInstanceId;
use sbi::{ApiRoot, Client, ResourceUri};
use serde::Serialize;
use tokio::sync::Notify;
use types::{Ambr, Arp, Dnn, FiveQi, PduSessionId, PduSessionType, Plmn, Pti, Qfi, SNssai, Supi, Teid};

use crate::config::{Config, DnnConfig};
use crate::n4::N4;
use crate::n4::rules::{SessionRules, Tunnels};
use crate::pool::{Addresses, Pool};
use crate::samples::Samples;

/// The default QoS flow of every session.
pub(crate) const DEFAULT_QFI: u8 = 1;

/// The SMF.
pub(crate) struct Smf {
    /// As validated at the start.
    pub config: Config,
    /// Our identity in NRF and towards UDM.
    pub id: NfInstanceId,
    /// How peers reach us: the beginning of the callback URIs we give out.
    pub api_root: ApiRoot,
    /// For calls to AMF, UDM and PCF.
    pub client: Client,
    /// UPFs and the associations with them.
    pub n4: N4,
    /// N4-u.
    pub gtpu: UdpSocket,
    /// Data networks by name; fixed after the start.
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
        Self { pool: Mutex::new(Pool::new(config.ue_pool)), config }
    }

    pub fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One PDU session.
pub(crate) struct Session {
    /// SM context reference, SEID and, in its lower half, TEID on N4-u; neither half is 0.
    pub number: u64,
    /// Whose it is.
    pub supi: Supi,
    /// The identity the UE chose.
    pub id: PduSessionId,
    /// Data network.
    pub dnn: Dnn,
    /// Slice.
    pub s_nssai: SNssai,
    /// The router of an IPv6 session, apart from the state: an advertisement must not wait for a procedure.
    router: Mutex<Router>,
    /// Told when the phase changes.
    pub changed: Notify,
    /// Locked by the procedure at work, over its N4 exchanges but not over waits for UE, gNB or AMF.
    pub state: tokio::sync::Mutex<SessionState>,
}

/// The SMF as router on the session's link (`n4u`).
#[derive(Debug, Default)]
pub(crate) struct Router {
    pub advertisement: Option<Advertisement>,
    /// Downlink packets reach the gNB.
    pub reachable: bool,
    /// A host solicited before that: it is answered as soon as they do.
    pub solicited: Option<Ipv6Addr>,
}

/// What a router advertisement says and where it goes.
#[derive(Debug, Clone)]
pub(crate) struct Advertisement {
    /// The UPF's end of N4-u.
    pub upf: GtpTunnel,
    /// The session's /64.
    pub prefix: Ipv6Addr,
    /// Link MTU, octets.
    pub mtu: u16,
    /// DNS servers, told by RFC 8106.
    pub dns: Vec<Ipv6Addr>,
}

/// Where a session is in its life (TS 24.501 §6.1.3.3 seen from the network).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The UE was not yet told, or the gNB has not answered yet.
    Establishing,
    /// In use.
    Active,
    /// Being released: what is still waited for.
    Releasing { n1: bool, n2: bool },
    /// Gone; whoever still holds it must not use it.
    Released,
}

impl Phase {
    /// The word of `GET /sessions`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Establishing => "establishing",
            Self::Active => "active",
            Self::Releasing { .. } => "releasing",
            Self::Released => "released",
        }
    }
}

/// User plane between gNB and UPF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UpState {
    Deactivated,
    /// The gNB was asked.
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
    /// `N4::epoch` of the UPF when it accepted the session.
    pub epoch: u64,
    /// What the UPF chose; kept when the session is restored.
    pub tunnels: Tunnels,
}

/// What changes in a session.
pub(crate) struct SessionState {
    pub phase: Phase,
    pub up: UpState,
    /// How often the user plane was activated: tells an activation from those before and after it.
    pub activations: u32,
    /// What the UE was given, which may be less than it asked for.
    pub session_type: PduSessionType,
    /// From the pool of the data network; given back when the session ends.
    pub addresses: Addresses,
    /// Session AMBR: subscribed, then as the PCF authorised it.
    pub ambr: Ambr,
    /// 5QI of the default flow.
    pub five_qi: FiveQi,
    /// Allocation and retention priority of the default flow.
    pub arp: Arp,
    /// Serving network.
    pub plmn: Plmn,
    /// AMF that serves the UE.
    pub amf: ApiRoot,
    /// Where the AMF wants to hear of the end.
    pub status_uri: String,
    /// `None` before the UPF accepted the session and after it was deleted there.
    pub upf: Option<UpfSession>,
    /// The gNB's end of N3, while the user plane is active.
    pub gnb: Option<GtpTunnel>,
    /// Policy association with the PCF.
    pub policy: Option<ResourceUri>,
    /// Registration in UDM as serving SMF, which runs beside the establishment.
    pub registration: Option<tokio::task::JoinHandle<bool>>,
    /// Transaction of the running 5GSM procedure.
    pub pti: Pti,
    /// The release command in flight, for T3592.
    pub release_command: Option<bytes::Bytes>,
    /// The modification command in flight, for T3591.
    pub modification_command: Option<bytes::Bytes>,
    /// What the UE asked for at establishment.
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
        let (router, changed) = Default::default();
        Self { number, supi, id, dnn, s_nssai, router, changed, state: state.into() }
    }

    /// Locked for moments only, never over an await.
    pub fn router(&self) -> MutexGuard<'_, Router> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The SM context reference.
    pub fn reference(&self) -> String {
        format!("{:016x}", self.number)
    }

    /// TEID on N4-u at our end.
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

    /// Its SEID.
    pub fn seid(&self) -> u64 {
        self.number
    }

    /// By which the UE names it.
    pub fn key(&self) -> (Supi, PduSessionId) {
        (self.supi, self.id)
    }

    /// Interface identifier of the UE's link-local address: unique on its link, where only the UE and the SMF's
    /// router (`::1`) live.
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
            n4u: smf.config.gtpu,
            n4u_teid: self.n4u_teid(),
            dnn: self.dnn.clone(),
            network_instance: smf.config.network_instance,
            s_nssai: self.s_nssai,
            session_type: state.session_type,
            addresses: state.addresses,
            interface_id: self.interface_id(),
            ambr: state.ambr,
            qfi: self.qfi(),
        }
    }

    /// Tells the router advertisement its contents, once the UPF has chosen its tunnel.
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
}

fn teid_of(number: u64) -> Teid {
    Teid(number as u32)
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a new session under a random number; the one it takes the place of comes back.
    pub fn insert(&self, make: impl FnOnce(u64) -> Session) -> (Arc<Session>, Option<Arc<Session>>) {
        let mut tables = self.lock();
        // `limits.sessions` keeps the table far from full: a free number is found after a draw or two.
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

    /// Forgets a session; another that took its place for the UE stays.
    pub fn remove(&self, session: &Session) {
        let mut tables = self.lock();
        tables.by_teid.remove(&session.n4u_teid());
        if tables.by_ue.get(&session.key()) == Some(&session.n4u_teid()) {
            tables.by_ue.remove(&session.key());
        }
    }

    /// By TEID on N4-u.
    pub fn by_teid(&self, teid: Teid) -> Option<Arc<Session>> {
        self.lock().by_teid.get(&teid).cloned()
    }

    /// By SEID.
    pub fn by_seid(&self, seid: u64) -> Option<Arc<Session>> {
        self.by_teid(teid_of(seid)).filter(|session| session.number == seid)
    }

    /// By SM context reference, as a peer gives it: anything may be in it.
    pub fn by_reference(&self, reference: &str) -> Option<Arc<Session>> {
        self.by_seid(u64::from_str_radix(reference, 16).ok()?)
    }

    /// The session a UE has under an identity.
    pub fn of_ue(&self, supi: Supi, id: PduSessionId) -> Option<Arc<Session>> {
        let tables = self.lock();
        tables.by_teid.get(tables.by_ue.get(&(supi, id))?).cloned()
    }

    /// A copy of the list: procedures may change it meanwhile.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().by_teid.values().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().by_teid.len()
    }
}
