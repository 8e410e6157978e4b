//! A UE: identity, NAS security, sessions, and the procedures it performs.
//!
//! One owner drives a [`Ue`] through its methods. Each procedure is a sequence of sending and waiting,
//! in its own file in `procedure/`. Between procedures [`Ue::serve`] answers what the network starts;
//! [`Ue::idle`] says when a UE without connection needs one. Nothing runs in the background, so a test
//! sees every step.
//!
//! # Driving one UE by hand
//! - [`Ue::send`] protects and sends a message as a UE would. [`Ue::send_plain`] does not protect it.
//!   [`Ue::send_bytes`] sends any octets, for instance those of [`Ue::protect`], changed or sent twice.
//! - [`Ue::receive`] returns the next thing that reaches the UE, verified and decoded, without
//!   answering it. [`Ue::respond`] answers messages of common procedures (identity, authentication,
//!   security mode, configuration update).
//! - [`Ue::record`] keeps every NAS message in both directions for [`Ue::recorded`].
//! - [`Ue::connection`] is the gNB's side: raw NGAP through [`Gnb::send`](n2::Gnb::send) and [`Gnb::send_bytes`](n2::Gnb::send_bytes),
//!   received PDUs through [`Connection::next_pdu`](crate::gnb::Connection::next_pdu).
//! - To test a wrong key, sequence number or algorithm list, change [`UeConfig`].

mod idle;
mod n1;
mod procedure;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;

use nas::aka::{Milenage, Usim};
use nas::security::SecurityContext;
use nas::suci::{PublicKey, conceal};
use nas::{GmmCause, GsmCause, KeySetId, MobileIdentity, PsiSet, UeSecurityCapability};
use net::time::{Duration, Instant};
use types::{Guti, Imsi, Invalid, Key, PduSessionId, Supi, Tai};

use crate::access::{Access, Bearer, Camping, Connection, ReleaseCause};
use crate::config::{SuciScheme, UeConfig};
use crate::gnb;
use crate::interface::InterfaceError;

pub use crate::interface::Interface;
pub use idle::WakeReason;
pub use n1::{Received, Recorded};
pub use procedure::deregistration::Deregistered;
pub use procedure::network_initiated::NetworkEvent;
pub use procedure::pdu_session_establishment::SessionRequest;
pub use procedure::registration::Registered;
pub use procedure::service_request::Served;
pub use session::Session;

/// Why a procedure did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// REGISTRATION REJECT, SERVICE REJECT, or a 5GSM message returned by the AMF.
    #[error("rejected: {0}")]
    Rejected(GmmCause),
    /// PDU SESSION … REJECT.
    #[error("rejected: {0}")]
    SessionRejected(GsmCause),
    /// AUTHENTICATION REJECT: the network refused the UE's response.
    #[error("the network rejected the authentication")]
    AuthenticationRejected,
    /// The network did not answer in time.
    #[error("no {0} in time")]
    Timeout(&'static str),
    /// The cell gives the UE no connection.
    #[error("no connection: {0}")]
    NoConnection(String),
    /// The gNB lost its association or was reset, or the radio connection failed.
    #[error("the connection to the network is lost")]
    ConnectionLost,
    /// The AMF released the connection instead of answering.
    #[error("released: {0}")]
    Released(ReleaseCause),
    /// The AMF answered a message of ours with an Error Indication.
    #[error("error indication: {0}")]
    ErrorIndication(ngap::Cause),
    /// The network deregistered the UE meanwhile.
    #[error("deregistered by the network: {0:?}")]
    Deregistered(Option<GmmCause>),
    /// 5GMM STATUS in answer to our message.
    #[error("5GMM status: {0}")]
    Status(GmmCause),
    /// A message of ours could not be built.
    #[error("cannot build the message: {0}")]
    Build(String),
    /// The UE lacks a connection, security context or identity that the procedure needs.
    #[error("the UE has no {0}")]
    Missing(&'static str),
    /// The UE's interface could not be set up.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
}

impl Failure {
    /// A short name for statistics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Rejected(_) => "rejected",
            Self::SessionRejected(_) => "session_rejected",
            Self::AuthenticationRejected => "authentication_rejected",
            Self::Timeout(_) => "timeout",
            Self::NoConnection(_) => "no_connection",
            Self::ConnectionLost => "connection_lost",
            Self::Released(_) => "released",
            Self::ErrorIndication(_) => "error_indication",
            Self::Deregistered(_) => "deregistered",
            Self::Status(_) => "status",
            Self::Build(_) => "build",
            Self::Missing(_) => "missing",
            Self::Interface(_) => "interface",
        }
    }

    /// The cause's number, when the network named one of 5GMM or 5GSM.
    pub fn cause(&self) -> Option<u8> {
        match self {
            Self::Rejected(cause) | Self::Status(cause) | Self::Deregistered(Some(cause)) => {
                Some(cause.number())
            }
            Self::SessionRejected(cause) => Some(cause.number()),
            _ => None,
        }
    }
}

/// A simulated UE.
#[derive(Debug)]
pub struct Ue {
    config: Arc<UeConfig>,
    supi: Supi,
    access: Access,
    usim: Usim,
    public_key: Option<PublicKey>,
    capability: UeSecurityCapability,
    /// The NAS security context, current or kept from an earlier registration.
    context: Option<SecurityContext>,
    /// Whether messages of this connection are protected: the context has been taken into use on it.
    secured: bool,
    /// KAMF of an authentication whose SECURITY MODE COMMAND is still to come.
    fresh_kamf: Option<(KeySetId, Key<32>)>,
    /// KgNB of this connection, as the AMF derives it: with the NAS COUNT of the connection's first message, and after a SECURITY
    /// MODE COMPLETE with that message's (TS 33.501 §6.8.1.1.2.2).
    k_gnb: Option<Key<32>>,
    /// Whether a message was sent on this connection.
    spoken: bool,
    guti: Option<Guti>,
    /// The UE's registration for pages in its cell, while it has a 5G-GUTI.
    camping: Option<Camping>,
    registered: bool,
    /// Tracking areas in which the UE need not register again.
    registration_area: Vec<Tai>,
    /// T3512, as the network gave it.
    periodic_update: Option<Duration>,
    /// When the UE lost or released its last connection.
    idle_since: Option<Instant>,
    /// After a radio connection was lost: the sessions that had radio resources, until the network serves the UE again.
    lost: Option<PsiSet>,
    /// The network has asked the UE to register, and the UE has not done it yet (TS 24.501 §5.4.4.3).
    registration_requested: bool,
    /// The network has ended the session of the configuration without the UE, or to have it set up anew.
    session_lost: bool,
    /// NAS messages in both directions.
    nas_messages: u64,
    /// The complete REGISTRATION REQUEST under way, for SECURITY MODE COMPLETE.
    initial_message: Option<Vec<u8>>,
    authenticated: bool,
    connection: Option<Connection>,
    sessions: BTreeMap<PduSessionId, Session>,
    /// Bearers whose Establishment Accept is still to come.
    bearers: BTreeMap<PduSessionId, Bearer>,
    last_pti: u8,
    discarded: u64,
    record: Option<Vec<Recorded>>,
}

impl Ue {
    /// The `index`-th UE (from 0) of a configuration, camping on a gNB or in a cell.
    ///
    /// # Errors
    /// An IMSI of more than 15 digits, or an invalid home network key.
    pub fn new(config: Arc<UeConfig>, index: u64, access: impl Into<Access>) -> Result<Self, Invalid> {
        let imsi: Imsi = config
            .first_imsi
            .checked_add(index)
            .ok_or_else(|| Invalid::new("IMSI", index, "a UE number that keeps the IMSI at 15 digits"))?;
        let public_key = match &config.suci {
            SuciScheme::Null => None,
            SuciScheme::Ecies { scheme, key_id, public_key } => {
                Some(PublicKey::new(*scheme, *key_id, public_key)?)
            }
        };
        let usim = Usim::new(Milenage::new(&config.k, &config.opc), config.sqn);
        Ok(Self {
            supi: Supi::from(imsi),
            access: access.into(),
            usim,
            public_key,
            capability: UeSecurityCapability::new(&config.ciphering, &config.integrity),
            context: None,
            secured: false,
            fresh_kamf: None,
            k_gnb: None,
            spoken: false,
            guti: None,
            camping: None,
            registered: false,
            registration_area: Vec::new(),
            periodic_update: None,
            idle_since: None,
            lost: None,
            registration_requested: false,
            session_lost: false,
            nas_messages: 0,
            initial_message: None,
            authenticated: false,
            connection: None,
            sessions: BTreeMap::new(),
            bearers: BTreeMap::new(),
            last_pti: 0,
            discarded: 0,
            record: None,
            config,
        })
    }

    /// The UE's identity.
    pub fn supi(&self) -> Supi {
        self.supi
    }

    /// The UE's temporary identity, once registered.
    pub fn guti(&self) -> Option<Guti> {
        self.guti
    }

    /// Whether the UE considers itself registered.
    pub fn registered(&self) -> bool {
        self.registered
    }

    /// Whether the UE has a connection to the network.
    pub fn connected(&self) -> bool {
        self.connection.is_some()
    }

    /// The UE's NAS security context.
    pub fn context(&self) -> Option<&SecurityContext> {
        self.context.as_ref()
    }

    /// KgNB of the present connection, as the UE derives it.
    pub fn k_gnb(&self) -> Option<&Key<32>> {
        self.k_gnb.as_ref()
    }

    /// The UE's USIM.
    pub fn usim(&self) -> &Usim {
        &self.usim
    }

    /// The UE's sessions.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// Whether the network has ended the session of the configuration in such a way that the UE is to ask for it again: it does not
    /// have the session any more (TS 24.501 §5.5.1.3.4, §5.6.1.4.1), or wants it to be set up anew (§6.3.3.3).
    pub fn has_lost_default_session(&self) -> bool {
        self.session_lost
    }

    /// Notes that the network has ended a session, as [`Ue::has_lost_default_session`] says.
    fn note_lost_session(&mut self, id: PduSessionId) {
        self.session_lost |= self.default_session().is_some_and(|request| request.id == id);
    }

    /// A session, to send and receive packets through it.
    pub fn session_mut(&mut self, id: PduSessionId) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    /// The gNB's side of the UE's connection, on a gNB in one piece.
    pub fn connection(&mut self) -> Option<&mut gnb::Connection> {
        match self.connection.as_mut()? {
            Connection::Gnb(connection) => Some(connection),
            Connection::Cell(_) => None,
        }
    }

    /// Where the UE camps.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Camps elsewhere. The connection is lost; neither gNB nor AMF is told. Outside the
    /// registration area a registered UE then has to register ([`WakeReason::Moved`]).
    pub fn camp(&mut self, access: impl Into<Access>) {
        self.lose_connection();
        self.access = access.into();
        self.set_guti(self.guti);
    }

    /// Takes a new temporary identity into use. From now on the UE is paged with it.
    fn set_guti(&mut self, guti: Option<Guti>) {
        let unchanged = self.guti == guti && self.camping.as_ref().is_some_and(|at| at.is_on(&self.access));
        if unchanged {
            return;
        }
        self.guti = guti;
        self.camping =
            guti.filter(|_| self.config.answers_paging).map(|guti| self.access.camp(guti.s_tmsi()));
    }

    /// Deletes 5G-GUTI, keys and registration.
    fn forget_keys(&mut self) {
        self.set_guti(None);
        (self.context, self.registered) = (None, false);
        (self.registration_requested, self.session_lost) = (false, false);
    }

    /// Messages from the network that failed verification or did not decode.
    pub fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Deletes identity and keys, so that the UE is as new.
    pub fn forget(&mut self) {
        self.lose_connection();
        self.forget_keys();
        (self.fresh_kamf, self.lost) = (None, None);
        self.sessions.clear();
    }

    /// Drops the radio connection, and with it the sessions' radio resources, without telling the
    /// network.
    pub fn lose_connection(&mut self) {
        if self.connection.take().is_some() {
            self.idle_since = Some(net::time::now());
        }
        (self.secured, self.k_gnb) = (false, None);
        self.bearers.clear();
        self.sessions.values_mut().for_each(|session| session.bearer = None);
    }

    /// The radio connection was lost: neither side has released it. The UE asks for service again (TS 24.501 §5.3.1.2).
    fn radio_failure(&mut self) {
        if matches!(self.connection, Some(Connection::Cell(_))) {
            let up = self.sessions.iter().filter(|(_, session)| session.bearer.is_some());
            self.lost = Some(up.map(|(id, _)| *id).collect());
        }
        self.lose_connection();
    }

    /// Removes the sessions that the network does not have (TS 24.501 §5.5.1.3.4, §5.6.1.4.1).
    fn keep_sessions(&mut self, of_network: Option<PsiSet>) {
        if let Some(of_network) = of_network {
            let lost: Vec<_> = self.session_status().iter().filter(|id| !of_network.contains(*id)).collect();
            lost.into_iter().for_each(|id| self.note_lost_session(id));
            self.sessions.retain(|id, _| of_network.contains(*id));
            self.bearers.retain(|id, _| of_network.contains(*id));
        }
    }

    /// The identities of the UE's sessions.
    fn session_status(&self) -> PsiSet {
        self.sessions.keys().copied().collect()
    }

    /// NAS messages and packets of the UE's sessions on the present connection, in both directions. The
    /// number does not change while the UE is inactive.
    pub fn activity(&self) -> u64 {
        let bearers = self.sessions.values().filter_map(|session| session.bearer.as_ref());
        self.nas_messages + bearers.map(Bearer::packets).sum::<u64>()
    }

    /// A new SUCI. With a public key each one is different.
    pub fn suci(&self) -> Result<MobileIdentity, Failure> {
        let mnc_len = self.config.home_plmn.mnc_len();
        let suci =
            conceal(self.supi.imsi(), mnc_len, &self.config.routing_indicator, self.public_key.as_ref());
        suci.map(MobileIdentity::Suci).map_err(|error| Failure::Build(error.to_string()))
    }

    /// 5G-GUTI if the UE has one, else SUCI.
    pub fn identity(&self) -> Result<MobileIdentity, Failure> {
        self.guti.map_or_else(|| self.suci(), |guti| Ok(MobileIdentity::Guti(guti)))
    }

    /// Key set identifier of the context the UE has.
    pub fn ngksi(&self) -> KeySetId {
        self.context.as_ref().map_or(KeySetId::NoKey, SecurityContext::ngksi)
    }
}
