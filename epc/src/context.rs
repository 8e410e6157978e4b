//! State of the gateway and of its UEs.
//!
//! | type | how many | owner | lifetime |
//! |---|---|---|---|
//! | [`Gateway`] | one | `start` | as long as the gateway |
//! | [`Ue`] | one per UE | [`Ues`], and procedures of it | from its first PDN connection to the end of its last |
//! | [`Pdn`] | one per PDN connection | its UE, behind the UE's lock | from Create Session to Delete Session |
//!
//! A procedure holds the UE's lock during its N4 exchanges, so that two procedures of a UE do not mix. It releases the lock while it
//! waits for the MME.
//!
//! A UE has one random TEID on S11, a PDN connection one random number: it is the SEID, and its lower half the TEID on N4-u and on
//! S5/S8, of which no TEID on S11 is the same. Nobody can guess them, and after a restart of the gateway one that a peer still holds
//! names nobody else.
//!
//! A PDN connection has an S-GW and a P-GW. This gateway is both, or one of them ([`Role`]), for each PDN connection by itself.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use gtpc::Gtpc;
use gtpv2c::value::{Ebi, FTeid, InterfaceType};
use ipam::{Addresses, Pool};
use n4::N4;
use net::udp::UdpSocket;
use store::records::Records;
use types::{Ambr, Dnn, Imsi, PduSessionType, Teid};

use crate::bearer::{Bearer, Slot, Tunnel};
use crate::config::{ApnConfig, Config, Node};
use crate::rules::PdnRules;

/// The gateway.
pub(crate) struct Gateway {
    pub node: Node,
    /// The validated configuration.
    pub config: Config,
    pub gtpc: Gtpc,
    /// UPFs and the associations with them.
    pub n4: N4,
    /// Socket of N4-u.
    pub gtpu: UdpSocket,
    /// Access point names; unchanged after the start.
    pub networks: HashMap<Dnn, Network>,
    pub ues: Ues,
    /// Where contexts of UEs are kept outside this gateway, if they are.
    pub contexts: Option<Records>,
    pub started: net::time::Instant,
}

/// An access point name.
pub(crate) struct Network {
    pub config: ApnConfig,
    pool: Mutex<Pool>,
}

impl Network {
    pub fn new(config: ApnConfig) -> Self {
        Self {
            pool: Mutex::new(Pool::new(
                config.ue_pool,
                config.quarantine_s,
                net::time::now().into_std(),
                nf::random::u64(),
            )),
            config,
        }
    }

    pub fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A UE.
pub(crate) struct Ue {
    pub imsi: Imsi,
    /// Our end of S11, for all of its PDN connections.
    pub teid: u32,
    /// A running procedure holds the lock during N4 exchanges, and not while it waits for the MME.
    pub state: tokio::sync::Mutex<UeState>,
}

/// The changing parts of a UE.
pub(crate) struct UeState {
    /// `None`: this gateway is not the UE's S-GW.
    pub mme: Option<Peer>,
    pub pdns: Vec<Pdn>,
    pub paging: Paging,
    /// Changes with each change of [`Self::paging`], so that a timer knows whether it is still meant.
    pub paging_count: u32,
    /// The UE is no longer in the tables; procedures that waited for the lock must not use it.
    pub gone: bool,
}

/// A neighbour in GTPv2-C, and its end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub f_teid: FTeid,
    /// Where it sends from, which may be another of its addresses.
    pub source: IpAddr,
    /// Since when it serves the UE or PDN connection.
    pub since: Instant,
}

impl Peer {
    /// One that serves from now on, and has sent from `source`.
    pub fn now(f_teid: FTeid, source: IpAddr) -> Self {
        Self { f_teid, source, since: net::time::now().into_std() }
    }

    /// Whether this is one of its addresses.
    pub fn is_at(&self, address: IpAddr) -> bool {
        self.source == address || has_address(self.f_teid, address)
    }
}

/// Whether two F-TEIDs are the same tunnel's; one may name an address of either family, the other both.
pub(crate) fn is_same(one: FTeid, other: FTeid) -> bool {
    let addresses = [other.ipv4.map(IpAddr::V4), other.ipv6.map(IpAddr::V6)];
    one.teid == other.teid && addresses.into_iter().flatten().any(|address| has_address(one, address))
}

/// Whether an F-TEID names this address, perhaps beside one of the other family.
pub(crate) fn has_address(f_teid: FTeid, address: IpAddr) -> bool {
    [f_teid.ipv4.map(IpAddr::V4), f_teid.ipv6.map(IpAddr::V6)].contains(&Some(address))
}

/// What this gateway is for a PDN connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// S-GW and P-GW.
    Both,
    /// S-GW alone. `is_known`: the P-GW sends to this S-GW; it does not before a UE's move here is done.
    Sgw { pgw: Peer, is_known: bool },
    /// P-GW alone. `awaits_ue`: the MME has prepared a handover to the S-GW in this gateway; the other S-GW serves the UE until that is
    /// done.
    Pgw { sgw: Peer, awaits_ue: bool },
}

impl Role {
    /// Whether the MME and eNBs are neighbours.
    pub fn is_sgw(self) -> bool {
        !matches!(self, Self::Pgw { .. })
    }

    /// Whether the data network is a neighbour.
    pub fn is_pgw(self) -> bool {
        !matches!(self, Self::Sgw { .. })
    }

    /// The other gateway.
    pub fn s5_peer(self) -> Option<Peer> {
        match self {
            Self::Both => None,
            Self::Sgw { pgw, .. } => Some(pgw),
            Self::Pgw { sgw, .. } => Some(sgw),
        }
    }
}

/// Whether the MME has been asked to page the UE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paging {
    No,
    /// Downlink Data Notification was sent.
    Asked,
    /// The UE did not answer: its downlink packets are dropped for some time.
    Unreachable,
}

/// A PDN connection.
pub(crate) struct Pdn {
    /// SEID and, in its lower half, TEID on N4-u and S5/S8. Neither half is 0.
    pub number: u64,
    pub role: Role,
    pub apn: Dnn,
    pub pdn_type: PduSessionType,
    pub addresses: Addresses,
    pub ambr: Ambr,
    /// The default bearer first.
    pub bearers: Vec<Bearer>,
    /// Places of bearers that the UPF has not confirmed as removed: it may have rules with their numbers.
    pub unconfirmed: Vec<Slot>,
    /// The session on its UPF.
    pub upf: UpfSession,
    /// Since when the MME has named no eNB for it; `None`: it has, or the UE came idle.
    pub unclaimed: Option<Instant>,
    /// When the UE last came back to the S-GW in this gateway, which is its P-GW.
    pub arrived: Option<Instant>,
    /// A router solicitation came while no eNB was known; it is answered as soon as one is.
    pub solicited: Option<Ipv6Addr>,
}

/// A PDN connection on its UPF.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpfSession {
    /// PFCP address of the UPF.
    pub address: SocketAddr,
    /// The UPF's SEID.
    pub seid: u64,
    /// The UPF's `N4::epoch` when it accepted the session.
    pub epoch: u64,
    /// The UPF's end of N4-u, for IPv6.
    pub n4u: Option<Tunnel>,
}

impl Ue {
    /// Our end of S11.
    pub fn f_teid(&self, gateway: &Gateway) -> FTeid {
        FTeid::new(InterfaceType::S11_S4_SGW, self.teid, gateway.gtpc.local().ip())
    }
}

impl UeState {
    /// The PDN connection with this default bearer.
    pub fn pdn(&mut self, linked: Ebi) -> Option<&mut Pdn> {
        self.pdns.iter_mut().find(|pdn| pdn.default_bearer().is_some_and(|bearer| bearer.ebi == linked))
    }

    /// The PDN connection with this number.
    pub fn numbered(&mut self, number: u64) -> Option<&mut Pdn> {
        self.pdns.iter_mut().find(|pdn| pdn.number == number)
    }

    /// Adds a PDN connection. Most UEs have one, with one bearer: room for more would be most of what a UE takes.
    pub fn add(&mut self, mut pdn: Pdn) {
        pdn.bearers.shrink_to_fit();
        self.pdns.reserve_exact(1);
        self.pdns.push(pdn);
    }

    /// The PDN connections whose S-GW this is.
    pub fn served(&mut self) -> impl Iterator<Item = &mut Pdn> {
        self.pdns.iter_mut().filter(|pdn| pdn.role.is_sgw())
    }

    /// The PDN connection and the bearer with this identity.
    pub fn bearer(&mut self, ebi: Ebi) -> Option<(usize, &mut Bearer)> {
        // One that the MME has not answered for has none yet.
        if ebi == Ebi(0) {
            return None;
        }
        let mut all = self.pdns.iter_mut().enumerate();
        all.find_map(|(at, pdn)| Some((at, pdn.bearers.iter_mut().find(|bearer| bearer.ebi == ebi)?)))
    }

    /// Whether an eNB is known.
    pub fn is_connected(&self) -> bool {
        let served = self.pdns.iter().filter(|pdn| pdn.role.is_sgw());
        served.flat_map(|pdn| &pdn.bearers).any(|bearer| bearer.access.is_some())
    }

    /// Notes a change of paging. Returns its number.
    pub fn set_paging(&mut self, paging: Paging) -> u32 {
        self.paging = paging;
        self.paging_count = self.paging_count.wrapping_add(1);
        self.paging_count
    }
}

impl Pdn {
    pub fn default_bearer(&self) -> Option<&Bearer> {
        self.bearers.first()
    }

    /// A place for one more bearer.
    pub fn free_slot(&self) -> Option<Slot> {
        let is_free = |slot: &Slot| self.bearers.iter().all(|bearer| bearer.slot != *slot);
        (1..Slot::COUNT).map(Slot).filter(is_free).find(|slot| !self.unconfirmed.contains(slot))
    }

    /// Our end of S5/S8 for control, as the one or the other.
    pub fn s5_f_teid(&self, gateway: &Gateway, as_whom: InterfaceType) -> FTeid {
        FTeid::new(as_whom, self.number as u32, gateway.gtpc.local().ip())
    }

    /// The neighbour on the UE's side, who hears of changes that the network makes: the S-GW, or the UE's MME.
    pub fn towards_ue(&self, mme: Option<Peer>) -> Option<FTeid> {
        match self.role {
            Role::Pgw { sgw, .. } => Some(sgw.f_teid),
            _ => mme.map(|mme| mme.f_teid),
        }
    }

    /// The P-GW, if it is another gateway.
    pub fn remote_pgw(&self) -> Option<FTeid> {
        match self.role {
            Role::Sgw { pgw, .. } => Some(pgw.f_teid),
            _ => None,
        }
    }

    /// The SEIDs of both ends.
    pub fn seids(&self) -> n4::Seids {
        n4::Seids { own: self.number, upf: self.upf.seid }
    }

    /// The rules for the UPF.
    pub fn rules<'a>(&'a self, gateway: &'a Gateway) -> PdnRules<'a> {
        let n4u_teid = Teid(self.number as u32);
        PdnRules {
            seid: self.number,
            n4: gateway.n4.local().ip(),
            role: self.role,
            s1u: gateway.config.s1u,
            s5u: gateway.config.s5u,
            n4u: gateway.config.gtpu,
            n4u_teid,
            apn: &self.apn,
            network_instance: gateway.config.network_instance,
            pdn_type: self.pdn_type,
            addresses: self.addresses,
            interface_id: self.interface_id(),
            ambr: self.ambr,
            bearers: &self.bearers,
        }
    }

    /// Interface identifier of the UE's link-local address. It is unique on its link, which connects only the UE and the gateway's
    /// router (`::1`).
    pub fn interface_id(&self) -> [u8; 8] {
        (self.number & 0xFFFF_FFFF | 1 << 32).to_be_bytes()
    }
}

/// All UEs, by TEID on S11, by IMSI, and by the number of a PDN connection.
#[derive(Default)]
pub(crate) struct Ues(Mutex<Tables>);

#[derive(Default)]
struct Tables {
    by_teid: HashMap<u32, Arc<Ue>>,
    by_imsi: HashMap<Imsi, u32>,
    /// UEs by the lower half of their PDN connections' numbers, with the whole numbers.
    by_number: HashMap<u32, (u64, u32)>,
    /// The last charging ID that was given.
    charging: u32,
}

impl Ues {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The UE with this IMSI; it is made if there is none.
    pub fn of_imsi(&self, imsi: Imsi) -> Arc<Ue> {
        let mut tables = self.lock();
        let known = tables.by_imsi.get(&imsi).and_then(|teid| tables.by_teid.get(teid));
        if let Some(ue) = known {
            return ue.clone();
        }
        // The limit of sessions keeps the table far from full, so one or two draws find a free number.
        let mut teid = nf::random::u32();
        while teid == 0 || tables.by_teid.contains_key(&teid) || tables.by_number.contains_key(&teid) {
            teid = nf::random::u32();
        }
        let state = UeState { mme: None, pdns: Vec::new(), paging: Paging::No, paging_count: 0, gone: false };
        let ue = Arc::new(Ue { imsi, teid, state: state.into() });
        tables.by_imsi.insert(imsi, teid);
        tables.by_teid.insert(teid, ue.clone());
        ue
    }

    /// The UE with this TEID.
    pub fn by_teid(&self, teid: u32) -> Option<Arc<Ue>> {
        self.lock().by_teid.get(&teid).cloned()
    }

    /// The UE with this IMSI, if there is one.
    pub fn by_imsi(&self, imsi: Imsi) -> Option<Arc<Ue>> {
        let tables = self.lock();
        tables.by_teid.get(tables.by_imsi.get(&imsi)?).cloned()
    }

    /// The UE that has the PDN connection with this SEID.
    pub fn by_seid(&self, seid: u64) -> Option<Arc<Ue>> {
        let tables = self.lock();
        let (number, teid) = tables.by_number.get(&(seid as u32))?;
        tables.by_teid.get(teid).filter(|_| *number == seid).cloned()
    }

    /// The UE, and the number of the PDN connection, with this TEID on N4-u or S5/S8.
    pub fn by_number(&self, teid: u32) -> Option<(Arc<Ue>, u64)> {
        let tables = self.lock();
        let (number, teid) = tables.by_number.get(&teid)?;
        Some((tables.by_teid.get(teid)?.clone(), *number))
    }

    /// A number for a new PDN connection of a UE. `None`: there are `most` already.
    pub fn add_pdn(&self, ue: &Ue, most: usize) -> Option<u64> {
        let mut tables = self.lock();
        if tables.by_number.len() >= most {
            return None;
        }
        let mut number = nf::random::u64();
        let is_taken = |tables: &Tables, teid: u32| {
            teid == 0 || tables.by_number.contains_key(&teid) || tables.by_teid.contains_key(&teid)
        };
        while number >> 32 == 0 || is_taken(&tables, number as u32) {
            number = nf::random::u64();
        }
        tables.by_number.insert(number as u32, (number, ue.teid));
        Some(number)
    }

    /// Adds a UE that another gateway has served, with the numbers of its PDN connections. `false`: it is known, a number is taken, or
    /// there are `most` PDN connections already.
    pub fn adopt(&self, ue: &Arc<Ue>, numbers: &[u64], most: usize) -> bool {
        let mut tables = self.lock();
        let is_taken = |teid| tables.by_number.contains_key(&teid) || tables.by_teid.contains_key(&teid);
        if tables.by_imsi.contains_key(&ue.imsi)
            || is_taken(ue.teid)
            || numbers.iter().any(|number| is_taken(*number as u32))
            || tables.by_number.len() + numbers.len() > most
        {
            return false;
        }
        tables.by_imsi.insert(ue.imsi, ue.teid);
        tables.by_teid.insert(ue.teid, ue.clone());
        tables.by_number.extend(numbers.iter().map(|number| (*number as u32, (*number, ue.teid))));
        true
    }

    /// Forgets the number of a PDN connection.
    pub fn remove_pdn(&self, number: u64) {
        self.lock().by_number.remove(&(number as u32));
    }

    /// Forgets a UE without PDN connections.
    pub fn remove(&self, ue: &Ue) {
        let mut tables = self.lock();
        tables.by_teid.remove(&ue.teid);
        if tables.by_imsi.get(&ue.imsi) == Some(&ue.teid) {
            tables.by_imsi.remove(&ue.imsi);
        }
    }

    /// The next charging ID.
    pub fn charging_id(&self) -> u32 {
        let mut tables = self.lock();
        // After a restart they go on elsewhere.
        tables.charging = match tables.charging {
            0 => nf::random::u32().max(1),
            last => last.wrapping_add(1).max(1),
        };
        tables.charging
    }

    /// A copy of the list, because procedures may change it meanwhile.
    pub fn all(&self) -> Vec<Arc<Ue>> {
        self.lock().by_teid.values().cloned().collect()
    }

    /// Number of UEs, and of PDN connections.
    pub fn len(&self) -> (usize, usize) {
        let tables = self.lock();
        (tables.by_teid.len(), tables.by_number.len())
    }
}
