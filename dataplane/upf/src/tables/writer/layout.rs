//! Layouts: new sessions are copied from an earlier session with the same rules.
//!
//! Nearly all sessions of a data network have the same rules, except for the UE's addresses, TEIDs and peers. A
//! [`Layout`] keeps the blocks of one such session, with the positions of the session's own values.
//! [`Writer::establish_like`] copies these blocks for the next session and fills in its values; the result
//! equals the blocks that [`Writer::establish`] would make of its plan. The caller must make sure that the
//! rules are the same: `n4::templates`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::{Groups, Owners, Prepared, Writer};
use crate::plan::{Action, Destination, Forward, OuterHeader, Pdr, Place, Plan, PlanError};
use crate::session::{self, CellUse, Endpoint, Peers, Session, State, TableKey, kind};

/// Most lines of a block in a layout.
const MAX_LINES: usize = 16;

/// The addresses of a UE that has at most one of each IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ue {
    /// IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 prefix, of 64 bits.
    pub v6: Option<Ipv6Addr>,
}

impl Ue {
    /// The addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + Clone + use<> {
        [self.v4.map(IpAddr::V4), self.v6.map(IpAddr::V6)].into_iter().flatten()
    }
}

/// The values in which a session differs from others of its layout. PDRs are named by their identifiers.
pub trait Particulars {
    /// The UE's addresses.
    fn ue(&self) -> Ue;
    /// The local TEID at which a PDR's packets arrive.
    fn teid(&self, pdr: u16) -> Option<u32>;
    /// The tunnel into which a PDR's FAR sends.
    fn tunnel(&self, pdr: u16) -> Option<OuterHeader>;
}

/// The common part of sessions; see the module.
#[derive(Debug)]
pub struct Layout {
    ue: Ue,
    /// As the plan says, which need not be asked again.
    shares_downlink_rates: bool,
    plan: Plan,
    uses: Arc<Vec<CellUse>>,
    places: Vec<LaidOut>,
}

/// A place of the session from which the layout was made.
#[derive(Debug)]
struct LaidOut {
    /// A PDR whose TEID is that of the place; `None` for packets without tunnel.
    pdr: Option<u16>,
    groups: Groups,
    /// The block of the first session, without the tunnels of its entries.
    block: Vec<Endpoint>,
    /// Positions of entries with tunnels, and their PDRs.
    tunnels: Vec<(usize, u16)>,
}

impl Writer {
    /// Makes the layout of a session that was established with this plan and has not changed since. `None` if
    /// its blocks contain other values of its own than TEIDs, tunnels and the UE's addresses. Must be returned
    /// with [`Writer::unlearn`].
    pub fn learn(&mut self, session: &Session, plan: Plan, own: &impl Particulars) -> Option<Layout> {
        let mut places = Vec::with_capacity(plan.arrivals.len());
        for arrival in &plan.arrivals {
            // Entries are in the order in which rules first name their PDRs.
            let mut pdrs: Vec<&Pdr> = Vec::new();
            for pdr in arrival.rules.iter().map(|rule| plan.pdrs.get(rule.value as usize)) {
                if !pdrs.iter().any(|known| pdr.is_some_and(|pdr| pdr.id == known.id)) {
                    pdrs.push(pdr?);
                }
            }
            let (key, pdr) = match arrival.place {
                Place::Tunnel(teid) => (TableKey::Teid(teid), Some(pdrs.first()?.id)),
                Place::Native => {
                    (session.keys.iter().find(|key| matches!(key, TableKey::Ue(..)))?.clone(), None)
                }
            };
            let mut block = self.tables.block(&self.reader.enter(), &key)?.to_vec();
            let policy = block.first()?.policy();
            if block.len() > MAX_LINES || !policy.is_none_or(|policy| self.references.is_shared(policy)) {
                return None;
            }
            let further = session::count_further(&block, pdrs.len());
            let mut tunnels = Vec::new();
            for (number, pdr) in pdrs.into_iter().enumerate().filter(|(_, pdr)| leads_to_tunnel(pdr)) {
                let position = session::entry_position(number, further);
                let entry = session::entry_mut(&mut block, position)?;
                let ours = own.tunnel(pdr.id).is_some_and(|header| header.teid == entry.teid);
                if entry.pdr != pdr.id || entry.kind() != kind::TUNNEL || !ours {
                    return None;
                }
                entry.lead_to(0, session::NO_PEER);
                tunnels.push((position, pdr.id));
            }
            let groups = Groups::at(&plan, arrival.place);
            places.push(LaidOut { pdr, groups, block, tunnels });
        }
        places.iter().for_each(|place| self.references.refer(&place.block));
        let (ue, uses) = (own.ue(), Arc::clone(&session.state.uses));
        Some(Layout { ue, shares_downlink_rates: plan.shares_downlink_rates(), plan, uses, places })
    }

    /// Drops a layout.
    pub fn unlearn(&mut self, layout: Layout) {
        // The layout's own blocks are never published.
        layout.places.iter().for_each(|place| self.references.forget(&place.block));
    }

    /// Publishes a new session with this layout. On an error nothing changes.
    pub fn establish_like(
        &mut self,
        seid: u64,
        layout: &Layout,
        own: &impl Particulars,
    ) -> Result<Session, PlanError> {
        self.reclaim();
        let mut session = Session::new(seid, Arc::clone(&self.tables));
        let state = State { uses: Arc::clone(&layout.uses), ..State::default() };
        let mut prepared = Prepared { blocks: Vec::with_capacity(layout.places.len() + 1), state };
        let copied = self.copy(seid, layout, own, &mut prepared);
        self.references.free_unused();
        if let Err(error) = copied {
            self.abandon(prepared, 0);
            return Err(error);
        }
        prepared.state.apply(&layout.plan, &session, 0);
        self.install(&mut session, prepared);
        session.buffered = layout.plan.buffers();
        Ok(session)
    }

    /// Writes the blocks of a session by copying those of the layout.
    fn copy(
        &mut self,
        seid: u64,
        layout: &Layout,
        own: &impl Particulars,
        prepared: &mut Prepared,
    ) -> Result<(), PlanError> {
        const UNLIKE: PlanError = PlanError::Invalid("a session that is not as its layout");
        self.give_state(&mut prepared.state)?;
        let ue = own.ue();
        // The network instance of packets without tunnel is the same for all these sessions.
        let (native, instance) = (&layout.plan.native, self.native_instance(layout.plan.origin));
        let is_native = |address: &IpAddr| match address {
            IpAddr::V4(_) => !native.ipv4.is_empty(),
            IpAddr::V6(_) => !native.ipv6.is_empty(),
        };
        let native_keys = || ue.addresses().filter(is_native).map(|address| TableKey::Ue(instance, address));
        let mut owners = Owners::of_no_packets(&layout.plan);
        for place in &layout.places {
            let mut add = |key| owners.add(&key, place.groups, self.tables.workers());
            match place.pdr {
                Some(pdr) => add(TableKey::Teid(own.teid(pdr).ok_or(UNLIKE)?)),
                None => native_keys().for_each(add),
            }
        }
        let owners = owners.complete(layout.shares_downlink_rates, Owners::default());
        prepared.state.owners = owners;
        for place in &layout.places {
            let teid = place.pdr.map_or(Some(0), |pdr| own.teid(pdr)).ok_or(UNLIKE)?;
            let state = (prepared.state.first, owners.writers(place.groups));
            self.block.clone_from(&place.block);
            for endpoint in &mut self.block {
                let mut own = *endpoint.own_addresses();
                for (before, now) in layout.ue.addresses().zip(ue.addresses()) {
                    own = own.for_other_ue(before, now);
                }
                endpoint.give_to(seid, state, teid, own);
            }
            for (position, pdr) in &place.tunnels {
                let header = own.tunnel(*pdr).ok_or(UNLIKE)?;
                let peer = self.references.number(&header)?;
                session::entry_mut(&mut self.block, *position).ok_or(UNLIKE)?.lead_to(header.teid, peer);
            }
            if place.pdr.is_some() {
                self.prepare_block(TableKey::Teid(teid), prepared)?;
                continue;
            }
            for key in native_keys() {
                self.prepare_block(key, prepared)?;
            }
        }
        self.check_room(prepared)
    }
}

fn leads_to_tunnel(pdr: &Pdr) -> bool {
    matches!(pdr.action, Action::Forward(Forward { to: Destination::Tunnel(_), .. }))
}
