//! Compiled sessions: what workers execute.
//!
//! A session is an *endpoint* per place that packets come in at, a block of plain data which the tables' slots refer to:
//!
//! ```text
//!  slot ──► Endpoint  SEID, TEID, where the state is, the policy, the UE's address; two entries
//!           Endpoint  … further entries, where there are more than two PDRs
//!  policy ► rows      which entry a packet gets, for all sessions whose rules differ in the UE's address only
//!  state ─► cells     meters and counters (`crate::state`)
//! ```
//! So a packet of a session that no cache holds waits for two lines behind the slot, one of the endpoint and one of state.
//! Endpoints are immutable and replaced as a whole; state outlives modifications.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use classifier::session::{OwnAddresses, Rows};
use classifier::{Classifier, Key, Prefix, Rule, Side};
use foldhash::HashMap;
use telemetry::worker::Totals;

use crate::pipeline::redirect::UrlRedirect;
use crate::plan::{
    Action, Container, Destination, Direction, Enforcement, Forward, Kind, Mark, MarkKind, Measure, Pdr,
    Place, Plan, PlanError,
};
use crate::state::{self, Cells, MAX_CELLS, NO_CELL, PER_LINE};
use crate::tables::Tables;
use rcu::Ticket;

/// Entries of a line.
const INLINE: usize = 2;
/// No peer.
pub(crate) const NO_PEER: u16 = 0;
/// Marks a tag that is the position of the only entry.
const ONLY: u32 = 1 << 31;
/// The tag of an endpoint without rules.
const NO_RULES: u32 = u32::MAX;
/// From any data network.
const ANYWHERE: u32 = 0;
/// No QFI.
pub const NO_QFI: u8 = 0xFF;

/// One place of one session, or a further line of one. See the module.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Endpoint {
    seid: u64,
    /// First line of the state.
    state: u32,
    /// TEID; without tunnel the number of the data network that packets come from and one, or 0 for any.
    teid: u32,
    /// A [`Route`].
    tag: u32,
    own: OwnAddresses,
    entries: [Entry; INLINE],
}

const _: () = assert!(size_of::<Endpoint>() == 64);

/// The data network that a packet without tunnel comes from, as endpoints have it.
#[inline]
pub fn came_from(network: Option<usize>) -> u32 {
    network.map_or(ANYWHERE, |network| network as u32 + 1)
}

/// How a look-up goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// To this entry.
    Only(u32),
    /// In the rules of this policy.
    Policy(u32),
    /// Nowhere.
    None,
}

impl Endpoint {
    /// Our SEID.
    #[inline]
    pub fn seid(&self) -> u64 {
        self.seid
    }

    /// TEID that packets arrive on; for packets without tunnel, where they come from as [`came_from`] writes it.
    #[inline]
    pub fn teid(&self) -> u32 {
        self.teid
    }

    /// Whether packets without tunnel may come from there: what [`came_from`] gives.
    #[inline(always)]
    pub fn admits(&self, from: u32) -> bool {
        self.teid == from || self.teid == ANYWHERE || from == ANYWHERE
    }

    /// First line of the state.
    #[inline]
    pub fn state(&self) -> u32 {
        self.state
    }

    /// What a look-up begins with.
    #[inline]
    pub fn own_addresses(&self) -> &OwnAddresses {
        &self.own
    }

    /// How a look-up goes on.
    #[inline]
    pub fn route(&self) -> Route {
        match self.tag {
            NO_RULES => Route::None,
            tag if tag & ONLY != 0 => Route::Only(tag & !ONLY),
            tag => Route::Policy(tag),
        }
    }

    /// Makes it that of another session.
    pub(crate) fn give_to(&mut self, seid: u64, state: u32, teid: u32, own: OwnAddresses) {
        (self.seid, self.state, self.teid, self.own) = (seid, state, teid, own);
    }

    /// The policy that it leads to.
    pub(crate) fn policy(&self) -> Option<u32> {
        match self.route() {
            Route::Policy(number) => Some(number),
            Route::Only(_) | Route::None => None,
        }
    }
}

/// The numbers of the peers that a block names, as often as it does.
pub(crate) fn peers(block: &[Endpoint]) -> impl Iterator<Item = u16> + '_ {
    let entries = block.iter().flat_map(|endpoint| &endpoint.entries);
    // An entry to a bridge names a data network there.
    let tunnels = entries.filter(|entry| entry.kind() != kind::BRIDGE && entry.peer != NO_PEER);
    tunnels.map(|entry| entry.peer)
}

/// The numbers of the policies that a block's entries redirect to, as often as they do.
pub(crate) fn targets(block: &[Endpoint]) -> impl Iterator<Item = u32> + '_ {
    let entries = block.iter().flat_map(|endpoint| &endpoint.entries);
    // Only a PDR's own entry has an account, and kinds mean something else for further ones.
    let target = |entry: &&Entry| match entry.kind() {
        kind::REDIRECT => entry.account != NO_CELL,
        kind::ADDRESS => entry.account == NO_CELL,
        _ => false,
    };
    entries.filter(target).map(|entry| entry.teid)
}

/// The entry at a position of a block.
#[inline(always)]
pub fn entry(block: &[Endpoint], position: usize) -> Option<&Entry> {
    block.get(position / INLINE).map(|endpoint| &endpoint.entries[position % INLINE])
}

/// The same, to be changed where no worker looks.
pub(crate) fn entry_mut(block: &mut [Endpoint], position: usize) -> Option<&mut Entry> {
    block.get_mut(position / INLINE).map(|endpoint| &mut endpoint.entries[position % INLINE])
}

/// A PDR with its FAR and QERs, or something more about one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(16))]
pub struct Entry {
    /// Remote TEID; number of the data network; most packets to buffer; URR of a gauge.
    pub teid: u32,
    /// Number of the peer, or 0.
    pub peer: u16,
    /// Identifier of the PDR.
    pub pdr: u16,
    /// Cell that counts; of a further entry: its cell.
    pub account: u8,
    /// Cells of meters; with [`flag::MORE`] the position of the first further entry.
    pub meters: [u8; 2],
    /// QFI to mark with.
    pub qfi: u8,
    /// Reflective QoS, 0x80; paging policy indicator, 0x40 and its value.
    pub marking: u8,
    /// Type of service of what is sent, with [`flag::TOS`].
    pub tos: u8,
    /// [`kind`] and [`flag`]s.
    pub flags: u16,
}

const _: () = assert!(size_of::<Entry>() == 16);

/// What is done with a packet, in the lower bits of [`Entry::flags`]; or what a further entry is.
pub mod kind {
    /// Mask.
    pub const MASK: u16 = 7;
    /// Drop.
    pub const DROP: u16 = 0;
    /// Buffer.
    pub const BUFFER: u16 = 1;
    /// Into a tunnel.
    pub const TUNNEL: u16 = 2;
    /// To a data network.
    pub const NETWORK: u16 = 3;
    /// Answered with a redirection, which [`super::Entry::teid`] is the number of.
    pub const REDIRECT: u16 = 4;
    /// To the bridge of the data network [`super::Entry::peer`]; [`super::Entry::teid`] is the session's station there.
    pub const BRIDGE: u16 = 5;
    /// Further entry: a meter that drops.
    pub const METER: u16 = 0;
    /// Further entry: a meter that protects from the meters behind it.
    pub const GUARANTEE: u16 = 1;
    /// Further entry: a gauge.
    pub const GAUGE: u16 = 2;
    /// Further entry: a copy into a tunnel.
    pub const COPY_TUNNEL: u16 = 3;
    /// Further entry: a copy to a data network.
    pub const COPY_NETWORK: u16 = 4;
    /// Further entry: the number of the address that packets go to instead of their own.
    pub const ADDRESS: u16 = 5;
    /// Further entry: the gauge of packets that were dropped since the rules changed, of whose first one the CP function is told.
    pub const NOTICE: u16 = 6;
    /// No further entry.
    pub const END: u16 = 7;
}

/// Flags of an entry.
pub mod flag {
    /// From the UE.
    pub const UPLINK: u16 = 1 << 3;
    /// A gate is closed.
    pub const CLOSED: u16 = 1 << 4;
    /// The container is that of the downlink.
    pub const CONTAINER_DOWNLINK: u16 = 1 << 5;
    /// The container is that of the uplink.
    pub const CONTAINER_UPLINK: u16 = 1 << 6;
    /// The CP function is told of the first packet.
    pub const NOTIFY: u16 = 1 << 7;
    /// There are further entries.
    pub const MORE: u16 = 1 << 8;
    /// To the CP function.
    pub const CONTROL: u16 = 1 << 9;
    /// Transport marking.
    pub const TOS: u16 = 1 << 10;
    /// Of a gauge: packets beyond the mark are dropped.
    pub const QUOTA: u16 = 1 << 11;
    /// Destinations are replaced on the way out, sources on the way back.
    pub const TRANSLATE: u16 = 1 << 12;
    /// Only answers to redirected packets pass.
    pub const ANSWERS: u16 = 1 << 13;
    /// Another worker may count and meter in the same cells, even where each input has one worker.
    pub const SHARED: u16 = 1 << 14;
    /// Packets are Ethernet frames.
    pub const FRAME: u16 = 1 << 15;
}

impl Entry {
    const NONE: Entry = Entry {
        teid: 0,
        peer: NO_PEER,
        pdr: 0,
        account: NO_CELL,
        meters: [NO_CELL; 2],
        qfi: NO_QFI,
        marking: 0,
        tos: 0,
        flags: kind::DROP,
    };

    /// What is done.
    #[inline(always)]
    pub fn kind(&self) -> u16 {
        self.flags & kind::MASK
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Has packets leave in a tunnel of this peer.
    pub(crate) fn lead_to(&mut self, teid: u32, peer: u16) {
        (self.teid, self.peer) = (teid, peer);
    }

    /// Position of the first further entry.
    #[inline]
    pub fn more(&self) -> usize {
        usize::from(u16::from_le_bytes(self.meters))
    }
}

/// Rules of one or many sessions, for look-ups that cannot use the endpoint alone.
pub enum Policy {
    /// Rows that sessions with the same policy share.
    Rows(Rows),
    /// Many rules, or the classifier that the configuration names.
    Classifier(Box<dyn Classifier>),
    /// Rules of an Ethernet session. A packet that was read as an IP packet finds none of them.
    Frames(Box<dyn Classifier>),
    /// No rules: what a redirection answers with.
    Redirect(UrlRedirect),
    /// No rules: the address that packets are redirected to.
    Address(IpAddr),
}

/// What a cell of a session's state is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Use {
    /// Packets of an input and a direction that are counted by these URRs.
    Account { native: bool, direction: Direction, urrs: Vec<u32> },
    /// MBR.
    Meter { qer: u32, direction: Direction },
    /// GBR.
    Guarantee { qer: u32, direction: Direction },
    /// A mark of a URR.
    Gauge { urr: u32, measure: Measure, kind: MarkKind },
    /// Packets that a PDR's FAR drops and tells of.
    Notice { pdr: u16 },
}

/// Lines of state and what their cells are for.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub first: u32,
    pub lines: u32,
    /// The same list for all sessions of a policy.
    pub uses: Arc<Vec<Use>>,
}

impl State {
    /// The cell for a use, new if need be.
    fn cell(&mut self, wanted: Use) -> Result<u8, PlanError> {
        let at = match self.uses.iter().position(|known| *known == wanted) {
            Some(at) => at,
            None => {
                Arc::make_mut(&mut self.uses).push(wanted);
                self.uses.len() - 1
            }
        };
        if at < MAX_CELLS { Ok(at as u8) } else { Err(PlanError::TooMany("meters and counters")) }
    }

    /// Lines that the cells need.
    pub fn needed(&self) -> u32 {
        self.uses.len().div_ceil(PER_LINE).max(1) as u32
    }

    fn accounts<'a>(
        &'a self,
        tables: &'a Tables,
    ) -> impl Iterator<Item = (&'a [u32], Direction, Totals)> + 'a {
        let cells = Cells::new(&tables.lines, self.first);
        self.uses.iter().enumerate().filter_map(move |(at, used)| match used {
            Use::Account { direction, urrs, .. } => Some((&urrs[..], *direction, cells.totals(at as u8))),
            _ => None,
        })
    }
}

/// What is published of a session at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key64 {
    Teid(u32),
    Ue(IpAddr),
    /// A framed route.
    Route(IpAddr, u8),
    /// A station of a bridge.
    Station(u32),
}

/// What the N4 task holds of a session that is published.
pub struct Session {
    pub(crate) seid: u64,
    pub(crate) tables: Arc<Tables>,
    pub(crate) keys: Box<[Key64]>,
    pub(crate) state: State,
    /// What few sessions have.
    past: Option<Box<Past>>,
    /// Of an Ethernet session: data network, and the station that it is there.
    pub(crate) station: Option<(u16, u32)>,
    /// Its rules have said to buffer.
    pub(crate) buffered: bool,
}

/// What a session that needed more state than it had at first counted before.
#[derive(Default)]
struct Past {
    /// State that was outgrown, and when nobody counts there any more.
    outgrown: VecDeque<(Ticket, State)>,
    /// What outgrown state had counted.
    folded: Vec<(Vec<u32>, Direction, Totals)>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("seid", &self.seid).field("keys", &self.keys).finish()
    }
}

impl Session {
    pub(crate) fn new(seid: u64, tables: Arc<Tables>) -> Session {
        Session {
            seid,
            tables,
            keys: Box::default(),
            state: State::default(),
            past: None,
            station: None,
            buffered: false,
        }
    }

    /// Our SEID.
    pub fn seid(&self) -> u64 {
        self.seid
    }

    /// Traffic forwarded for the session in total: uplink, downlink.
    pub fn usage(&self) -> (Totals, Totals) {
        self.sum(|_| true)
    }

    /// What a URR has counted since it was created: uplink, downlink. Zero for one that does not exist.
    pub fn urr(&self, id: u32) -> (Totals, Totals) {
        self.sum(|urrs| urrs.contains(&id))
    }

    fn sum(&self, counts: impl Fn(&[u32]) -> bool) -> (Totals, Totals) {
        let past = || self.past.iter();
        let outgrown = past().flat_map(|past| &past.outgrown);
        let outgrown = outgrown.flat_map(|(_, state)| state.accounts(&self.tables));
        let folded = past().flat_map(|past| &past.folded);
        let folded = folded.map(|(urrs, direction, totals)| (&urrs[..], *direction, *totals));
        let mut sums = (Totals::default(), Totals::default());
        for (urrs, direction, totals) in self.state.accounts(&self.tables).chain(outgrown).chain(folded) {
            let sum = match direction {
                Direction::Uplink => &mut sums.0,
                Direction::Downlink => &mut sums.1,
            };
            if counts(urrs) {
                *sum = *sum + totals;
            }
        }
        sums
    }

    /// Keeps state that was outgrown until nobody counts there any more.
    pub(crate) fn outgrow(&mut self, ticket: Ticket, state: State) {
        self.past.get_or_insert_default().outgrown.push_back((ticket, state));
    }

    /// Takes outgrown state that nobody counts in any more, and adds what it has counted to the rest.
    pub(crate) fn fold(&mut self) -> Option<State> {
        let past = self.past.as_mut()?;
        let (_, state) = past.outgrown.pop_front_if(|(ticket, _)| self.tables.domain().passed(*ticket))?;
        for (urrs, direction, totals) in state.accounts(&self.tables) {
            past.folded.push((urrs.to_vec(), direction, totals));
        }
        Some(state)
    }

    /// Takes all state, the outgrown included.
    pub(crate) fn into_states(self) -> impl Iterator<Item = State> {
        let past = self.past.map(|past| past.outgrown).unwrap_or_default();
        past.into_iter().map(|(_, state)| state).chain([self.state])
    }

    /// Forgets URRs that are gone.
    pub(crate) fn forget_urrs(&mut self, exists: impl Fn(u32) -> bool) {
        self.state.forget_urrs(&exists);
        let Some(past) = &mut self.past else { return };
        past.outgrown.iter_mut().for_each(|(_, state)| state.forget_urrs(&exists));
        for (urrs, ..) in &mut past.folded {
            urrs.retain(|id| exists(*id));
        }
    }

    /// Whether both have packets looked up in the same rows of memory; for tests.
    #[doc(hidden)]
    pub fn shares_rules(&self, other: &Session) -> bool {
        let theirs = other.tables.policies_of(&other.keys);
        self.tables.policies_of(&self.keys).iter().any(|policy| theirs.contains(policy))
    }

    /// Counts a packet in the first account of a direction that has URRs, as a worker would; for tests of reports.
    #[doc(hidden)]
    pub fn count(&self, direction: Direction, bytes: usize) {
        let cells = Cells::new(&self.tables.lines, self.state.first);
        let counts = |used: &Use| matches!(used, Use::Account { direction: counted, urrs, .. } if *counted == direction && !urrs.is_empty());
        if let Some(at) = self.state.uses.iter().position(counts) {
            cells.count(at as u8, 1, bytes as u64, state::Writers::Many);
        }
    }

    /// Octets that the packet path holds for the session, without endpoints and shared rules.
    pub fn state_bytes(&self) -> usize {
        self.state.lines as usize * 64
    }
}

/// Lists of further entries of a place. They stand behind the entries of the first line, where 16 bits name their positions
/// however many PDRs there are; PDRs with equal lists share one.
#[derive(Default)]
struct Lists {
    /// Position of the first list.
    first: usize,
    entries: Vec<Entry>,
    known: HashMap<Vec<Entry>, u16>,
}

impl Lists {
    /// The position of a list, new if need be.
    fn add(&mut self, list: Vec<Entry>) -> Result<u16, PlanError> {
        if let Some(position) = self.known.get(&list) {
            return Ok(*position);
        }
        let position = self.first + self.entries.len();
        let position = u16::try_from(position).map_err(|_| PlanError::TooMany("different rules"))?;
        self.entries.extend(&list);
        self.entries.push(Entry { flags: kind::END, ..Entry::NONE });
        self.known.insert(list, position);
        Ok(position)
    }
}

/// The position of a place's entry with this number, where `further` entries stand behind those of the first line.
pub(crate) fn entry_position(number: usize, further: usize) -> usize {
    if number < INLINE { number } else { number + further }
}

/// How many further entries a block has whose PDRs have `count` entries. With more of these than the first line holds they
/// are the last ones, but for one entry that may fill up the line and has no account.
pub(crate) fn count_further(block: &[Endpoint], count: usize) -> usize {
    let Some(last) = block.last() else { return 0 };
    let filled = usize::from(last.entries[INLINE - 1].account == NO_CELL);
    (block.len() * INLINE - filled).saturating_sub(count)
}

/// Numbers of peers, on the way.
pub(crate) trait Peers {
    /// The number of a peer.
    fn number(&mut self, peer: std::net::SocketAddr) -> Result<u16, PlanError>;
}

/// Writes the entries of a plan, for the rules of one place.
pub(crate) struct Assembly<'a> {
    pub plan: &'a Plan,
    pub state: &'a mut State,
    pub peers: &'a mut dyn Peers,
    /// Numbers of what PDRs redirect to, by identifier of the PDR.
    pub targets: &'a [(u16, u32)],
    /// Of an Ethernet session: the station that it is.
    pub station: Option<u32>,
    /// Several workers may write the cells of downlink packets ([`Plan::shares_downlink`]).
    pub shared_downlink: bool,
}

impl Assembly<'_> {
    /// The entries that the rules of a place lead to, and the rules with the positions of these as values.
    pub fn entries(&mut self, place: Place, rules: &[Rule]) -> Result<(Vec<Entry>, Vec<Rule>), PlanError> {
        // The position of each PDR's entry.
        let mut positions = vec![u32::MAX; self.plan.pdrs.len()];
        let mut used: Vec<u32> = Vec::with_capacity(self.plan.pdrs.len());
        let mut mapped = Vec::with_capacity(rules.len());
        for rule in rules {
            let position = positions.get_mut(rule.value as usize);
            let position = position.ok_or(PlanError::Invalid("a rule without PDR"))?;
            if *position == u32::MAX {
                *position = used.len() as u32;
                used.push(rule.value);
            }
            mapped.push(Rule { value: *position, ..*rule });
        }
        let mut lists = Lists { first: used.len().min(INLINE), ..Lists::default() };
        let mut entries = Vec::with_capacity(used.len());
        for value in &used {
            let pdr = self.plan.pdrs.get(*value as usize).ok_or(PlanError::Invalid("a rule without PDR"))?;
            entries.push(self.entry(place, pdr, &mut lists)?);
        }
        self.check_sources(&used, &mut mapped);
        for rule in &mut mapped {
            rule.value = entry_position(rule.value as usize, lists.entries.len()) as u32;
        }
        let behind = entries.split_off(lists.first);
        entries.extend(lists.entries.into_iter().chain(behind));
        Ok((entries, mapped))
    }

    /// Where sources are to be checked and a filter does not name the UE's address, one that does takes its place.
    fn check_sources(&self, used: &[u32], rules: &mut Vec<Rule>) {
        let checked = |rule: &Rule| {
            let pdr = used.get(rule.value as usize).and_then(|value| self.plan.pdrs.get(*value as usize));
            pdr.is_some_and(|pdr| pdr.check_source) && rule.filter.ue.is_none()
        };
        let ue = &self.plan.ue;
        if ue.is_empty() || !rules.iter().any(checked) {
            return;
        }
        let v4 = ue.ipv4.iter().map(|address| Prefix::host((*address).into()));
        let v6 = ue.ipv6.iter().filter_map(|(prefix, length)| Prefix::new((*prefix).into(), *length).ok());
        let framed = ue.framed.iter().filter_map(|(prefix, length)| Prefix::new(*prefix, *length).ok());
        let prefixes: Vec<Prefix> = v4.chain(v6).chain(framed).collect();
        let mut next = rules.iter().map(|rule| rule.id).max().unwrap_or(0);
        let mut out = Vec::with_capacity(rules.len() + prefixes.len());
        for rule in rules.iter() {
            if !checked(rule) {
                out.push(*rule);
                continue;
            }
            for prefix in &prefixes {
                next += 1;
                let mut rule = Rule { id: next, ..*rule };
                rule.filter.ue = Some((Side::Source, *prefix));
                out.push(rule);
            }
        }
        *rules = out;
    }

    fn entry(&mut self, place: Place, pdr: &Pdr, lists: &mut Lists) -> Result<Entry, PlanError> {
        let mut entry = Entry {
            pdr: pdr.id,
            qfi: pdr.qfi.map_or(NO_QFI, |qfi| qfi & 0x3F),
            marking: u8::from(pdr.rqi) << 7 | pdr.ppi.map_or(0, |ppi| 0x40 | ppi & 7),
            ..Entry::NONE
        };
        match &pdr.action {
            Action::Drop => {}
            Action::Buffer => {
                entry.flags = kind::BUFFER;
                entry.teid = self.plan.buffer_packets.map_or(0, u32::from);
            }
            Action::Forward(forward) => {
                self.forward(&mut entry, forward, [kind::TUNNEL, kind::NETWORK])?;
            }
            Action::RedirectUrl(_) => {
                entry.flags = kind::REDIRECT;
                entry.teid = self.target(pdr)?;
            }
            Action::RedirectAddress(_, forward) => {
                self.forward(&mut entry, forward, [kind::TUNNEL, kind::NETWORK])?;
                entry.flags |= flag::TRANSLATE;
            }
            Action::Answers(forward) => {
                self.forward(&mut entry, forward, [kind::TUNNEL, kind::NETWORK])?;
                entry.flags |= flag::ANSWERS;
            }
        }
        if pdr.direction == Direction::Downlink && place == Place::Native && self.translates() {
            entry.flags |= flag::TRANSLATE;
        }
        match pdr.direction {
            Direction::Uplink => entry.flags |= flag::UPLINK,
            Direction::Downlink if self.shared_downlink => entry.flags |= flag::SHARED,
            Direction::Downlink => {}
        }
        if pdr.notify || entry.kind() == kind::BRIDGE && self.plan.reports_addresses {
            entry.flags |= flag::NOTIFY;
        }
        if self.plan.kind == Kind::Ethernet {
            entry.flags |= flag::FRAME;
        }
        let mut urrs = Vec::new();
        for at in &pdr.urrs {
            let urr =
                self.plan.urrs.get(usize::from(*at)).ok_or(PlanError::Invalid("a PDR without its URR"))?;
            urrs.push(urr.id);
        }
        urrs.sort_unstable();
        urrs.dedup();
        let meters = self.meters(pdr, &mut entry)?;
        entry.account = self.state.cell(Use::Account {
            native: place == Place::Native,
            direction: pdr.direction,
            urrs,
        })?;
        let more = self.further(pdr, &meters)?;
        if more.is_empty() {
            for (slot, (_, cell)) in entry.meters.iter_mut().zip(&meters) {
                *slot = *cell;
            }
        } else {
            entry.flags |= flag::MORE;
            entry.meters = lists.add(more)?.to_le_bytes();
        }
        Ok(entry)
    }

    fn target(&self, pdr: &Pdr) -> Result<u32, PlanError> {
        let found = self.targets.iter().find(|(id, _)| *id == pdr.id);
        found.map(|(_, number)| *number).ok_or(PlanError::Invalid("a redirection without its target"))
    }

    /// Whether packets of the session are redirected to an address.
    fn translates(&self) -> bool {
        // Without any target, which is nearly always, there is nothing to look through.
        let mut pdrs = self.plan.pdrs.iter().filter(|_| !self.targets.is_empty());
        pdrs.any(|pdr| matches!(pdr.action, Action::RedirectAddress(..)))
    }

    fn forward(&mut self, entry: &mut Entry, forward: &Forward, kinds: [u16; 2]) -> Result<(), PlanError> {
        match forward.to {
            Destination::Tunnel(header) => {
                entry.teid = header.teid;
                entry.peer = self.peers.number(header.peer)?;
                entry.flags |= kinds[0]
                    | match header.container {
                        Container::Downlink => flag::CONTAINER_DOWNLINK,
                        Container::Uplink => flag::CONTAINER_UPLINK,
                        Container::None => flag::CONTROL,
                    };
            }
            Destination::DataNetwork(network) if self.station.is_some() && kinds[1] == kind::NETWORK => {
                (entry.teid, entry.peer) = (self.station.unwrap_or_default(), network);
                entry.flags |= kind::BRIDGE;
            }
            Destination::DataNetwork(network) => {
                entry.teid = network.into();
                entry.flags |= kinds[1];
            }
        }
        if let Some(tos) = forward.tos {
            (entry.tos, entry.flags) = (tos, entry.flags | flag::TOS);
        }
        Ok(())
    }

    /// Cells of the meters that a PDR's packets pass, guarantees first.
    fn meters(&mut self, pdr: &Pdr, entry: &mut Entry) -> Result<Vec<(u16, u8)>, PlanError> {
        let (mut guarantees, mut limits) = (Vec::new(), Vec::new());
        for at in &pdr.qers {
            let qer =
                self.plan.qers.get(usize::from(*at)).ok_or(PlanError::Invalid("a PDR without its QER"))?;
            let direction = pdr.direction;
            let enforcement = enforcement(qer, direction);
            if !enforcement.open {
                entry.flags |= flag::CLOSED;
            }
            if enforcement.mbr_kbps.is_some() {
                let cell = self.state.cell(Use::Meter { qer: qer.id, direction })?;
                // The flow's own maximum comes before what it shares.
                let own = enforcement.gbr_kbps.is_some();
                limits.push((!own, (kind::METER, cell)));
            }
            if enforcement.gbr_kbps.is_some() {
                guarantees
                    .push((kind::GUARANTEE, self.state.cell(Use::Guarantee { qer: qer.id, direction })?));
            }
        }
        limits.sort_by_key(|(shared, _)| *shared);
        let own = limits.iter().filter(|(shared, _)| !shared).map(|(_, meter)| *meter);
        let shared = limits.iter().filter(|(shared, _)| *shared).map(|(_, meter)| *meter);
        Ok(own.chain(guarantees).chain(shared).collect())
    }

    /// What does not fit the entry.
    fn further(&mut self, pdr: &Pdr, meters: &[(u16, u8)]) -> Result<Vec<Entry>, PlanError> {
        let mut out = Vec::new();
        for at in &pdr.urrs {
            let Some(urr) = self.plan.urrs.get(usize::from(*at)) else { continue };
            for mark in urr.marks.iter().filter(|mark| counts(mark.measure, pdr.direction)) {
                let Mark { measure, kind, .. } = *mark;
                let cell = self.state.cell(Use::Gauge { urr: urr.id, measure, kind })?;
                let quota = if kind == MarkKind::Quota { flag::QUOTA } else { 0 };
                out.push(Entry { teid: urr.id, account: cell, flags: kind::GAUGE | quota, ..Entry::NONE });
            }
        }
        // Quotas are looked at before anything is charged.
        out.sort_by_key(|entry| !entry.is(flag::QUOTA));
        if matches!(pdr.action, Action::RedirectAddress(..)) {
            out.push(Entry { teid: self.target(pdr)?, flags: kind::ADDRESS, ..Entry::NONE });
        }
        if pdr.action == Action::Drop && pdr.notify && pdr.direction == Direction::Downlink {
            let account = self.state.cell(Use::Notice { pdr: pdr.id })?;
            out.push(Entry { account, flags: kind::NOTICE, ..Entry::NONE });
        }
        let plain = meters.len() <= 2 && meters.iter().all(|(kind, _)| *kind == kind::METER);
        if plain && out.is_empty() && pdr.duplicates.is_empty() {
            return Ok(out);
        }
        out.extend(meters.iter().map(|(kind, cell)| Entry { account: *cell, flags: *kind, ..Entry::NONE }));
        for duplicate in &pdr.duplicates {
            let mut entry = Entry { flags: 0, ..Entry::NONE };
            self.forward(&mut entry, duplicate, [kind::COPY_TUNNEL, kind::COPY_NETWORK])?;
            out.push(entry);
        }
        Ok(out)
    }
}

/// Whether a measure counts packets of a direction.
fn counts(measure: Measure, direction: Direction) -> bool {
    match measure {
        Measure::Total => true,
        Measure::Uplink => direction == Direction::Uplink,
        Measure::Downlink => direction == Direction::Downlink,
    }
}

fn enforcement(qer: &crate::plan::Qer, direction: Direction) -> Enforcement {
    match direction {
        Direction::Uplink => qer.uplink,
        Direction::Downlink => qer.downlink,
    }
}

impl State {
    /// Sets rates and marks as a plan says. `known` cells were in use before: their meters run on.
    pub fn apply(&self, plan: &Plan, session: &Session, known: usize) {
        let cells = Cells::new(&session.tables.lines, self.first);
        for (at, used) in self.uses.iter().enumerate() {
            let cell = at as u8;
            match used {
                Use::Account { .. } => {}
                // The rules change: the CP function is told of the next packet again.
                Use::Notice { .. } => cells.set(cell, [0, 1]),
                Use::Meter { qer, direction } | Use::Guarantee { qer, direction } => {
                    let Some(qer) = plan.qers.iter().find(|known| known.id == *qer) else { continue };
                    let enforcement = enforcement(qer, *direction);
                    let kbps = match used {
                        Use::Meter { .. } => enforcement.mbr_kbps,
                        _ => enforcement.gbr_kbps,
                    };
                    cells.set_second(cell, kbps.map_or(u64::MAX, state::rate));
                }
                Use::Gauge { urr, measure, kind } => {
                    let marks = plan.urrs.iter().filter(|known| known.id == *urr).flat_map(|urr| &urr.marks);
                    let mark = marks.into_iter().find(|mark| mark.measure == *measure && mark.kind == *kind);
                    let Some(mark) = mark else { continue };
                    if at < known {
                        cells.set_second(cell, mark.at);
                    } else {
                        let (up, down) = session.urr(*urr);
                        let counted = match measure {
                            Measure::Total => up.bytes + down.bytes,
                            Measure::Uplink => up.bytes,
                            Measure::Downlink => down.bytes,
                        };
                        cells.set(cell, [counted, mark.at]);
                    }
                }
            }
        }
    }

    /// The state for a plan that needs more lines than `self` has: what is of use any more, in a new place.
    pub fn carry_over(&self, old: &State, tables: &Tables) {
        let (from, to) = (Cells::new(&tables.lines, old.first), Cells::new(&tables.lines, self.first));
        for (at, used) in self.uses.iter().enumerate() {
            let before = old.uses.iter().position(|known| known == used);
            if let (Use::Meter { .. } | Use::Guarantee { .. }, Some(before)) = (used, before) {
                to.set(at as u8, from.get(before as u8));
            }
        }
    }

    /// Forgets URRs that are gone: what comes under their identifiers later is another's.
    pub fn forget_urrs(&mut self, exists: impl Fn(u32) -> bool) {
        let gone =
            |used: &Use| matches!(used, Use::Account { urrs, .. } if !urrs.iter().all(|id| exists(*id)));
        if !self.uses.iter().any(gone) {
            return;
        }
        for used in Arc::make_mut(&mut self.uses) {
            if let Use::Account { urrs, .. } = used {
                urrs.retain(|id| exists(*id));
            }
        }
    }

    /// How many cells are in use.
    pub fn cells(&self) -> usize {
        self.uses.len()
    }
}

/// The block of an endpoint.
pub(crate) fn assemble(
    seid: u64,
    teid: u32,
    state: u32,
    own: OwnAddresses,
    route: Route,
    entries: &[Entry],
) -> Vec<Endpoint> {
    let tag = match route {
        Route::Only(position) => ONLY | position,
        Route::Policy(policy) => policy,
        Route::None => NO_RULES,
    };
    let line = Endpoint { seid, state, teid, tag, own, entries: [Entry::NONE; INLINE] };
    let mut block = vec![line; entries.len().div_ceil(INLINE).max(1)];
    for (at, entry) in entries.iter().enumerate() {
        block[at / INLINE].entries[at % INLINE] = *entry;
    }
    block
}

/// Whether the first rule takes every packet: then its value.
pub(crate) fn only(rules: &[Rule]) -> Option<u32> {
    let first = rules.iter().min_by_key(|rule| rule.rank());
    first.filter(|rule| rule.filter.selects_all()).map(|rule| rule.value)
}

impl Policy {
    /// The verdict for a packet, at once.
    #[inline]
    pub fn classify_one(&self, own: &OwnAddresses, key: &Key) -> Option<u32> {
        match self {
            Policy::Rows(rows) => rows.finish(key, rows.begin(own, key)),
            Policy::Classifier(classifier) => {
                let mut verdict = [None];
                classifier.classify(std::slice::from_ref(key), &mut verdict);
                verdict[0]
            }
            Policy::Frames(_) | Policy::Redirect(_) | Policy::Address(_) => None,
        }
    }
}
