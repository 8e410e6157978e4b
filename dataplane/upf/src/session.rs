//! Compiled sessions: what workers execute.
//!
//! A session has an *endpoint* for every place at which its packets arrive. An endpoint is a block of plain
//! data to which the tables' slots refer:
//! ```text
//!  slot ──► Endpoint  SEID, TEID, position of the state, policy, the UE's address; two entries
//!           Endpoint  … further entries, where there are more than two PDRs
//!  policy ► rows      the entry of a packet, for all sessions whose rules differ only in the UE's address
//!  state ─► cells     meters and counters (`crate::state`)
//! ```
//! So a packet of a session that is in no cache waits for two cache lines after the slot: one of the endpoint
//! and one of the state. Endpoints are immutable and replaced as a whole; the state outlives modifications.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use classifier::session::{OwnAddresses, Rows};
use classifier::{Classifier, Key, Prefix, Rule, Side};
use foldhash::HashMap;
use telemetry::worker::Totals;

use crate::pipeline::url_redirect::UrlRedirect;
use crate::plan::{
    Action, Container, Destination, Direction, Enforcement, Forward, Kind, Mark, MarkKind, Measure,
    OuterHeader, Pdr, Place, Plan, PlanError,
};
use crate::state::{self, Cells, MAX_CELLS, NO_CELL, PER_LINE, Writers};
use crate::tables::Owners;
use crate::tables::Tables;
use rcu::{Region, Ticket};

/// Entries in a line.
const INLINE: usize = 2;
/// Number that stands for no peer.
pub(crate) const NO_PEER: u16 = 0;
/// Set in a tag that is the position of the only entry.
const ONLY: u32 = 1 << 31;
/// Set beside the number of the first line of a state whose cells several workers write.
const MANY_WRITERS: u32 = 1 << 31;
const _: () = assert!(Region::COUNT <= (MANY_WRITERS / Region::LINES) as usize);
/// The tag of an endpoint without rules.
const NO_RULES: u32 = u32::MAX;
/// The packet has no QFI.
pub const NO_QFI: u8 = 0xFF;

/// One place of a session, or a further line with entries; see the module.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Endpoint {
    seid: u64,
    /// First line of the state, and [`MANY_WRITERS`].
    state: u32,
    /// TEID, or 0 without tunnel.
    teid: u32,
    /// The encoded [`Route`].
    tag: u32,
    own: OwnAddresses,
    entries: [Entry; INLINE],
}

const _: () = assert!(size_of::<Endpoint>() == 64);

/// How a look-up continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// It ends at this entry.
    Only(u32),
    /// In the rules of this policy.
    Policy(u32),
    /// There are no rules.
    None,
}

impl Endpoint {
    /// This UPF's SEID.
    #[inline]
    pub fn seid(&self) -> u64 {
        self.seid
    }

    /// TEID at which packets arrive; 0 without tunnel.
    #[inline]
    pub fn teid(&self) -> u32 {
        self.teid
    }

    /// First line of the state.
    #[inline]
    pub fn state(&self) -> u32 {
        self.state & !MANY_WRITERS
    }

    /// Who writes the cells of packets that arrive here.
    #[inline(always)]
    pub fn writers(&self) -> Writers {
        if self.state & MANY_WRITERS == 0 { Writers::One } else { Writers::Many }
    }

    /// The UE's addresses, which a look-up needs first.
    #[inline]
    pub fn own_addresses(&self) -> &OwnAddresses {
        &self.own
    }

    /// How a look-up continues.
    #[inline]
    pub fn route(&self) -> Route {
        match self.tag {
            NO_RULES => Route::None,
            tag if tag & ONLY != 0 => Route::Only(tag & !ONLY),
            tag => Route::Policy(tag),
        }
    }

    /// Makes this the endpoint of another session.
    pub(crate) fn give_to(
        &mut self,
        seid: u64,
        (line, writers): (u32, Writers),
        teid: u32,
        own: OwnAddresses,
    ) {
        (self.seid, self.state, self.teid, self.own) = (seid, state_word(line, writers), teid, own);
    }

    /// The policy in which look-ups continue, if any.
    pub(crate) fn policy(&self) -> Option<u32> {
        match self.route() {
            Route::Policy(number) => Some(number),
            Route::Only(_) | Route::None => None,
        }
    }
}

/// The numbers of the peers in a block, once for every entry that uses them.
pub(crate) fn peers(block: &[Endpoint]) -> impl Iterator<Item = u16> + '_ {
    let entries = block.iter().flat_map(|endpoint| &endpoint.entries);
    // Otherwise `peer` is the number of a data network's interface. Only entries of PDRs have an account; in further
    // entries kinds have another meaning.
    let leads = |entry: &&Entry| match entry.kind() {
        kind::TUNNEL => entry.account != NO_CELL,
        kind::COPY_TUNNEL => entry.account == NO_CELL,
        _ => false,
    };
    entries.filter(leads).map(|entry| entry.peer).filter(|peer| *peer != NO_PEER)
}

/// The numbers of the redirection policies in a block, once for every entry that uses them.
pub(crate) fn targets(block: &[Endpoint]) -> impl Iterator<Item = u32> + '_ {
    let entries = block.iter().flat_map(|endpoint| &endpoint.entries);
    // Only entries of PDRs have an account; in further entries kinds have another meaning.
    let target = |entry: &&Entry| match entry.kind() {
        kind::REDIRECT => entry.account != NO_CELL,
        kind::ADDRESS => entry.account == NO_CELL,
        _ => false,
    };
    entries.filter(target).map(|entry| entry.teid)
}

/// The entry at this position of a block.
#[inline(always)]
pub fn entry(block: &[Endpoint], position: usize) -> Option<&Entry> {
    block.get(position / INLINE).map(|endpoint| &endpoint.entries[position % INLINE])
}

/// The same, mutable; for blocks that no worker sees.
pub(crate) fn entry_mut(block: &mut [Endpoint], position: usize) -> Option<&mut Entry> {
    block.get_mut(position / INLINE).map(|endpoint| &mut endpoint.entries[position % INLINE])
}

/// The entry of a PDR, its FAR and QERs; or a further entry with more data of a PDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C, align(16))]
pub struct Entry {
    /// Remote TEID, number of the data network's interface, most packets to buffer, or the URR of a gauge.
    pub teid: u32,
    /// Number of the peer, or 0; for [`kind::BRIDGE`] and [`kind::REDIRECT`] that of the data network's interface.
    pub peer: u16,
    /// Identifier of the PDR.
    pub pdr: u16,
    /// Cell of the account that counts its packets; in a further entry, the cell of its meter or gauge.
    pub account: u8,
    /// Cells of meters; with [`flag::MORE`], the position of the first further entry.
    pub meters: [u8; 2],
    /// QFI with which packets are marked.
    pub qfi: u8,
    /// Reflective QoS indication (0x80), and paging policy indicator (0x40 and its value).
    pub marking: u8,
    /// With [`flag::TOS`], type of service of the packets that are sent.
    pub tos: u8,
    /// [`kind`] and [`flag`]s.
    pub flags: u16,
}

const _: () = assert!(size_of::<Entry>() == 16);

/// In the lower bits of [`Entry::flags`]: what happens to a packet, or the kind of a further entry.
pub mod kind {
    /// Mask of these bits.
    pub const MASK: u16 = 7;
    /// Drop.
    pub const DROP: u16 = 0;
    /// Buffer.
    pub const BUFFER: u16 = 1;
    /// Send into a tunnel.
    pub const TUNNEL: u16 = 2;
    /// Send to the data network of the interface [`super::Entry::teid`].
    pub const NETWORK: u16 = 3;
    /// Answer with the redirection whose policy number is [`super::Entry::teid`].
    pub const REDIRECT: u16 = 4;
    /// Send to the bridge of the data network [`super::Entry::peer`], where the session is the station
    /// [`super::Entry::teid`].
    pub const BRIDGE: u16 = 5;
    /// Further entry: a meter that drops packets.
    pub const METER: u16 = 0;
    /// Further entry: a guarantee; later meters do not refuse packets that conform to it.
    pub const GUARANTEE: u16 = 1;
    /// Further entry: a gauge.
    pub const GAUGE: u16 = 2;
    /// Further entry: a copy into a tunnel.
    pub const COPY_TUNNEL: u16 = 3;
    /// Further entry: a copy to a data network.
    pub const COPY_NETWORK: u16 = 4;
    /// Further entry: number of the address to which packets are sent instead of their destination.
    pub const ADDRESS: u16 = 5;
    /// Further entry: counts the packets that were dropped since the rules changed, so that the CP function is
    /// told of the first one.
    pub const NOTICE: u16 = 6;
    /// End of the further entries.
    pub const END: u16 = 7;
}

/// Flags of an entry.
pub mod flag {
    /// For packets from the UE.
    pub const UPLINK: u16 = 1 << 3;
    /// A gate is closed.
    pub const CLOSED: u16 = 1 << 4;
    /// Packets get the downlink form of the PDU Session Container.
    pub const CONTAINER_DOWNLINK: u16 = 1 << 5;
    /// Packets get the uplink form of the PDU Session Container.
    pub const CONTAINER_UPLINK: u16 = 1 << 6;
    /// The CP function is told of the first packet that is buffered or dropped.
    pub const NOTIFY: u16 = 1 << 7;
    /// There are further entries.
    pub const MORE: u16 = 1 << 8;
    /// Packets go to the CP function.
    pub const CONTROL: u16 = 1 << 9;
    /// Transport level marking is set.
    pub const TOS: u16 = 1 << 10;
    /// For a gauge: packets beyond the mark are dropped.
    pub const QUOTA: u16 = 1 << 11;
    /// Destinations are replaced in uplink packets, and sources in downlink packets.
    pub const TRANSLATE: u16 = 1 << 12;
    /// Only answers to redirected packets pass.
    pub const ANSWERS: u16 = 1 << 13;
    /// Packets are Ethernet frames.
    pub const FRAME: u16 = 1 << 14;
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

    /// What happens to a packet, or the kind of a further entry.
    #[inline(always)]
    pub fn kind(&self) -> u16 {
        self.flags & kind::MASK
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Makes packets leave in a tunnel to this peer.
    pub(crate) fn lead_to(&mut self, teid: u32, peer: u16) {
        (self.teid, self.peer) = (teid, peer);
    }

    /// Position of the first further entry.
    #[inline]
    pub fn more(&self) -> usize {
        usize::from(u16::from_le_bytes(self.meters))
    }
}

/// The rules of one or many sessions, for look-ups that the endpoint alone cannot decide.
pub enum Policy {
    /// Rows that sessions with the same policy share.
    Rows(Rows),
    /// Many rules, or the classifier that the configuration names.
    Classifier(Box<dyn Classifier>),
    /// Rules of an Ethernet session. A packet that was read as an IP packet finds none of them.
    Frames(Box<dyn Classifier>),
    /// No rules: the answer of a redirection to a URL.
    Redirect(UrlRedirect),
    /// No rules: the address to which packets are redirected.
    Address(IpAddr),
}

/// The purpose of a cell in a session's state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum CellUse {
    /// Counts packets of an input and a direction, for these URRs.
    Account { native: bool, direction: Direction, urrs: Vec<u32> },
    /// Meter of a maximum bit rate.
    Meter { qer: u32, direction: Direction },
    /// Meter of a guaranteed bit rate.
    Guarantee { qer: u32, direction: Direction },
    /// A mark of a URR.
    Gauge { urr: u32, measure: Measure, kind: MarkKind },
    /// Counts packets that a PDR's FAR drops and reports.
    Notice { pdr: u16 },
}

/// The cache lines of a session's state, and the purposes of its cells.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub first: u32,
    pub lines: u32,
    pub owners: Owners,
    /// Sessions of a policy share this list.
    pub uses: Arc<Vec<CellUse>>,
}

impl State {
    /// The cell with a purpose; adds one if needed.
    fn cell(&mut self, wanted: CellUse) -> Result<u8, PlanError> {
        self.cell_with(|known| *known == wanted, || wanted.clone())
    }

    /// The cell of an account of these URRs, whose identifiers are in order; adds one if needed.
    fn account(&mut self, native: bool, direction: Direction, urrs: &[u32]) -> Result<u8, PlanError> {
        let is = |known: &CellUse| {
            matches!(known, CellUse::Account { native: of_native, direction: counted, urrs: own }
                if *of_native == native && *counted == direction && own[..] == *urrs)
        };
        self.cell_with(is, || CellUse::Account { native, direction, urrs: urrs.to_vec() })
    }

    fn cell_with(
        &mut self,
        is: impl Fn(&CellUse) -> bool,
        new: impl FnOnce() -> CellUse,
    ) -> Result<u8, PlanError> {
        let at = match self.uses.iter().position(is) {
            Some(at) => at,
            None => {
                Arc::make_mut(&mut self.uses).push(new());
                self.uses.len() - 1
            }
        };
        if at < MAX_CELLS { Ok(at as u8) } else { Err(PlanError::TooMany("meters and counters")) }
    }

    /// Number of lines that the cells need.
    pub fn needed(&self) -> u32 {
        self.uses.len().div_ceil(PER_LINE).max(1) as u32
    }

    fn accounts<'a>(
        &'a self,
        tables: &'a Tables,
    ) -> impl Iterator<Item = (&'a [u32], Direction, Totals)> + 'a {
        let cells = Cells::new(&tables.lines, self.first);
        self.uses.iter().enumerate().filter_map(move |(at, used)| match used {
            CellUse::Account { direction, urrs, .. } => Some((&urrs[..], *direction, cells.totals(at as u8))),
            _ => None,
        })
    }
}

/// The key under which the tables hold an endpoint of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TableKey {
    Teid(u32),
    /// An address in the network instance with this number.
    Ue(u8, IpAddr),
    /// A framed route in a network instance.
    Route(u8, IpAddr, u8),
    /// A station of a bridge.
    Station(u32),
}

/// The N4 task's data of a published session.
pub struct Session {
    pub(crate) seid: u64,
    pub(crate) tables: Arc<Tables>,
    pub(crate) keys: Box<[TableKey]>,
    pub(crate) state: State,
    /// Counts in outgrown state; few sessions have any.
    past: Option<Box<OutgrownCounts>>,
    /// For an Ethernet session: its data network, and its station number there.
    pub(crate) station: Option<(u16, u32)>,
    /// Whether its rules have ever asked to buffer.
    pub(crate) buffered: bool,
}

/// Counts of a session that has needed more lines of state than it had at first.
#[derive(Default)]
struct OutgrownCounts {
    /// Outgrown state, and the ticket after which no worker counts there any more.
    outgrown: VecDeque<(Ticket, State)>,
    /// Counts of outgrown state that has been freed.
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

    /// This UPF's SEID.
    pub fn seid(&self) -> u64 {
        self.seid
    }

    /// Traffic forwarded for the session in total: uplink and downlink.
    pub fn usage(&self) -> (Totals, Totals) {
        self.sum(|_| true)
    }

    /// Counts of a URR since it was created: uplink and downlink. Zero for an unknown URR.
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

    /// Keeps outgrown state until no worker counts there any more.
    pub(crate) fn outgrow(&mut self, ticket: Ticket, state: State) {
        self.past.get_or_insert_default().outgrown.push_back((ticket, state));
    }

    /// Returns outgrown state in which no worker counts any more, after saving its counts.
    pub(crate) fn fold(&mut self) -> Option<State> {
        let past = self.past.as_mut()?;
        let (_, state) = past.outgrown.pop_front_if(|(ticket, _)| self.tables.domain().passed(*ticket))?;
        for (urrs, direction, totals) in state.accounts(&self.tables) {
            let known = past.folded.iter_mut().find(|(of, towards, _)| of == urrs && *towards == direction);
            match known {
                Some((_, _, sum)) => *sum = *sum + totals,
                None => past.folded.push((urrs.to_vec(), direction, totals)),
            }
        }
        Some(state)
    }

    /// Returns all state, outgrown state included.
    pub(crate) fn into_states(self) -> impl Iterator<Item = State> {
        let past = self.past.map(|past| past.outgrown).unwrap_or_default();
        past.into_iter().map(|(_, state)| state).chain([self.state])
    }

    /// Forgets the counts of URRs that are gone.
    pub(crate) fn forget_urrs(&mut self, exists: impl Fn(u32) -> bool) {
        self.state.forget_urrs(&exists);
        let Some(past) = &mut self.past else { return };
        past.outgrown.iter_mut().for_each(|(_, state)| state.forget_urrs(&exists));
        for (urrs, ..) in &mut past.folded {
            urrs.retain(|id| exists(*id));
        }
    }

    /// Whether packets of both sessions are looked up in the same rows; for tests.
    #[doc(hidden)]
    pub fn shares_rules(&self, other: &Session) -> bool {
        let theirs = other.tables.policies_of(&other.keys);
        self.tables.policies_of(&self.keys).iter().any(|policy| theirs.contains(policy))
    }

    /// Counts a packet, as a worker would, in the first account of this direction that has URRs; for tests of
    /// reports.
    #[doc(hidden)]
    pub fn count(&self, direction: Direction, bytes: usize) {
        let cells = Cells::new(&self.tables.lines, self.state.first);
        let counts = |used: &CellUse| matches!(used, CellUse::Account { direction: counted, urrs, .. } if *counted == direction && !urrs.is_empty());
        if let Some(at) = self.state.uses.iter().position(counts) {
            cells.count(at as u8, 1, bytes as u64, Writers::Many);
        }
    }

    /// Octets of state, without endpoints and shared rules.
    pub fn state_bytes(&self) -> usize {
        self.state.lines as usize * 64
    }
}

/// Lists of further entries of a place. They come after the entries in the first line, so that 16 bits can hold
/// their positions however many PDRs there are. PDRs with equal lists share one.
#[derive(Default)]
struct Lists {
    /// Position of the first list.
    first: usize,
    entries: Vec<Entry>,
    known: HashMap<Vec<Entry>, u16>,
}

impl Lists {
    /// The position of a list; adds it if needed.
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

/// The position of entry `number` of a place, if `further` further entries come after those in the first line.
pub(crate) fn entry_position(number: usize, further: usize) -> usize {
    if number < INLINE { number } else { number + further }
}

/// Number of further entries in a block whose PDRs have `count` entries. If these are more than the first line
/// holds, they are the last ones of the block, except for an unused entry without account that may fill up the
/// last line.
pub(crate) fn count_further(block: &[Endpoint], count: usize) -> usize {
    let Some(last) = block.last() else { return 0 };
    let filled = usize::from(last.entries[INLINE - 1].account == NO_CELL);
    (block.len() * INLINE - filled).saturating_sub(count)
}

/// Assigns numbers to peers.
pub(crate) trait Peers {
    /// The number of the peer to which a tunnel leads.
    fn number(&mut self, header: &OuterHeader) -> Result<u16, PlanError>;
}

/// Writes the entries of a plan for the rules of one place.
pub(crate) struct Assembly<'a> {
    pub plan: &'a Plan,
    pub state: &'a mut State,
    pub peers: &'a mut dyn Peers,
    /// Redirection targets: each PDR's identifier with the number of its policy.
    pub targets: &'a [(u16, u32)],
    /// For an Ethernet session: its station number.
    pub station: Option<u32>,
    /// The interface of the first data network.
    pub first_network: u16,
    /// The meters of the PDR at hand; kept for its memory, as is the list of its URRs.
    pub meters: Vec<PassedMeter>,
    pub urrs: Vec<u32>,
}

/// A meter that a PDR's packets pass.
pub(crate) struct PassedMeter {
    turn: Turn,
    /// [`kind::METER`] or [`kind::GUARANTEE`].
    kind: u16,
    cell: u8,
}

/// When a meter's turn comes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// The maximum rate of a flow that also has a guarantee.
    Own,
    Guarantee,
    /// A rate that flows share.
    Shared,
}

impl Assembly<'_> {
    /// The entries for the rules of a place, and the rules with positions of these entries as values.
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

    /// Where sources must be checked and a filter does not contain the UE's address, replaces the filter by
    /// filters that do.
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
                // The answers seem to come from there.
                entry.peer = self.plan.origin.unwrap_or(self.first_network);
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
        if pdr.direction == Direction::Uplink {
            entry.flags |= flag::UPLINK;
        }
        if pdr.notify || entry.kind() == kind::BRIDGE && self.plan.reports_addresses {
            entry.flags |= flag::NOTIFY;
        }
        if self.plan.kind == Kind::Ethernet {
            entry.flags |= flag::FRAME;
        }
        self.urrs.clear();
        for at in &pdr.urrs {
            let urr =
                self.plan.urrs.get(usize::from(*at)).ok_or(PlanError::Invalid("a PDR without its URR"))?;
            self.urrs.push(urr.id);
        }
        self.urrs.sort_unstable();
        self.urrs.dedup();
        self.find_meters(pdr, &mut entry)?;
        entry.account = self.state.account(place == Place::Native, pdr.direction, &self.urrs)?;
        let more = self.further(pdr)?;
        if more.is_empty() {
            for (slot, meter) in entry.meters.iter_mut().zip(&self.meters) {
                *slot = meter.cell;
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
        // Nearly always there are no targets, and the PDRs need not be searched.
        let mut pdrs = self.plan.pdrs.iter().filter(|_| !self.targets.is_empty());
        pdrs.any(|pdr| matches!(pdr.action, Action::RedirectAddress(..)))
    }

    fn forward(&mut self, entry: &mut Entry, forward: &Forward, kinds: [u16; 2]) -> Result<(), PlanError> {
        match forward.to {
            Destination::Tunnel(header) => {
                entry.teid = header.teid;
                entry.peer = self.peers.number(&header)?;
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

    /// Finds the meters that a PDR's packets pass, in this order: the flow's own maximum rate, guarantees, shared rates.
    fn find_meters(&mut self, pdr: &Pdr, entry: &mut Entry) -> Result<(), PlanError> {
        self.meters.clear();
        for at in &pdr.qers {
            let qer =
                self.plan.qers.get(usize::from(*at)).ok_or(PlanError::Invalid("a PDR without its QER"))?;
            let direction = pdr.direction;
            let enforcement = enforcement(qer, direction);
            if !enforcement.open {
                entry.flags |= flag::CLOSED;
            }
            let guaranteed = enforcement.gbr_kbps.is_some();
            if enforcement.mbr_kbps.is_some() {
                let cell = self.state.cell(CellUse::Meter { qer: qer.id, direction })?;
                let turn = if guaranteed { Turn::Own } else { Turn::Shared };
                self.meters.push(PassedMeter { turn, kind: kind::METER, cell });
            }
            if guaranteed {
                let cell = self.state.cell(CellUse::Guarantee { qer: qer.id, direction })?;
                self.meters.push(PassedMeter { turn: Turn::Guarantee, kind: kind::GUARANTEE, cell });
            }
        }
        self.meters.sort_by_key(|meter| meter.turn);
        Ok(())
    }

    /// The further entries of a PDR, which hold what its entry has no room for.
    fn further(&mut self, pdr: &Pdr) -> Result<Vec<Entry>, PlanError> {
        let mut out = Vec::new();
        for at in &pdr.urrs {
            let Some(urr) = self.plan.urrs.get(usize::from(*at)) else { continue };
            for mark in urr.marks.iter().filter(|mark| counts(mark.measure, pdr.direction)) {
                let Mark { measure, kind, .. } = *mark;
                let cell = self.state.cell(CellUse::Gauge { urr: urr.id, measure, kind })?;
                let quota = if kind == MarkKind::Quota { flag::QUOTA } else { 0 };
                out.push(Entry { teid: urr.id, account: cell, flags: kind::GAUGE | quota, ..Entry::NONE });
            }
        }
        // Quotas are checked before anything is charged.
        out.sort_by_key(|entry| !entry.is(flag::QUOTA));
        if matches!(pdr.action, Action::RedirectAddress(..)) {
            out.push(Entry { teid: self.target(pdr)?, flags: kind::ADDRESS, ..Entry::NONE });
        }
        if pdr.action == Action::Drop && pdr.notify && pdr.direction == Direction::Downlink {
            let account = self.state.cell(CellUse::Notice { pdr: pdr.id })?;
            out.push(Entry { account, flags: kind::NOTICE, ..Entry::NONE });
        }
        let meters = &self.meters;
        let plain = meters.len() <= 2 && meters.iter().all(|meter| meter.kind == kind::METER);
        if plain && out.is_empty() && pdr.duplicates.is_empty() {
            return Ok(out);
        }
        let entry = |meter: &PassedMeter| Entry { account: meter.cell, flags: meter.kind, ..Entry::NONE };
        out.extend(meters.iter().map(entry));
        for duplicate in &pdr.duplicates {
            let mut entry = Entry { flags: 0, ..Entry::NONE };
            self.forward(&mut entry, duplicate, [kind::COPY_TUNNEL, kind::COPY_NETWORK])?;
            out.push(entry);
        }
        Ok(out)
    }
}

/// Whether a measure counts packets of this direction.
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
    /// Sets rates and marks as the plan says. The first `known` cells were in use before; their meters keep
    /// running.
    pub fn apply(&self, plan: &Plan, session: &Session, known: usize) {
        let cells = Cells::new(&session.tables.lines, self.first);
        for (at, used) in self.uses.iter().enumerate() {
            let cell = at as u8;
            match used {
                CellUse::Account { .. } => {}
                // The rules change, so the CP function is told of the next packet again.
                CellUse::Notice { .. } => cells.set(cell, [0, 1]),
                CellUse::Meter { qer, direction } | CellUse::Guarantee { qer, direction } => {
                    let Some(qer) = plan.qers.iter().find(|known| known.id == *qer) else { continue };
                    let enforcement = enforcement(qer, *direction);
                    let kbps = match used {
                        CellUse::Meter { .. } => enforcement.mbr_kbps,
                        _ => enforcement.gbr_kbps,
                    };
                    cells.set_second(cell, kbps.map_or(u64::MAX, state::rate));
                }
                CellUse::Gauge { urr, measure, kind } => {
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

    /// Copies into this state, which has more lines, those values of the old state that are still of use.
    pub fn carry_over(&self, old: &State, tables: &Tables) {
        let (from, to) = (Cells::new(&tables.lines, old.first), Cells::new(&tables.lines, self.first));
        for (at, used) in self.uses.iter().enumerate() {
            let before = old.uses.iter().position(|known| known == used);
            if let (CellUse::Meter { .. } | CellUse::Guarantee { .. }, Some(before)) = (used, before) {
                to.set(at as u8, from.get(before as u8));
            }
        }
    }

    /// Forgets URRs that are gone: a later URR with the same identifier starts at zero.
    pub fn forget_urrs(&mut self, exists: impl Fn(u32) -> bool) {
        let gone = |used: &CellUse| matches!(used, CellUse::Account { urrs, .. } if !urrs.iter().all(|id| exists(*id)));
        if !self.uses.iter().any(gone) {
            return;
        }
        for used in Arc::make_mut(&mut self.uses) {
            if let CellUse::Account { urrs, .. } = used {
                urrs.retain(|id| exists(*id));
            }
        }
    }

    /// How many cells are in use.
    pub fn cells(&self) -> usize {
        self.uses.len()
    }
}

/// The first line of a state, with who writes its cells.
fn state_word(line: u32, writers: Writers) -> u32 {
    line | if writers == Writers::Many { MANY_WRITERS } else { 0 }
}

/// Makes `block` that of an endpoint, whose state begins at `line`.
pub(crate) fn assemble(
    block: &mut Vec<Endpoint>,
    (seid, teid): (u64, u32),
    (line, writers): (u32, Writers),
    own: OwnAddresses,
    route: Route,
    entries: &[Entry],
) {
    let tag = match route {
        Route::Only(position) => ONLY | position,
        Route::Policy(policy) => policy,
        Route::None => NO_RULES,
    };
    let state = state_word(line, writers);
    let endpoint = Endpoint { seid, state, teid, tag, own, entries: [Entry::NONE; INLINE] };
    block.clear();
    block.resize(entries.len().div_ceil(INLINE).max(1), endpoint);
    for (at, entry) in entries.iter().enumerate() {
        block[at / INLINE].entries[at % INLINE] = *entry;
    }
}

/// The value of the first rule, if that rule matches every packet.
pub(crate) fn only(rules: &[Rule]) -> Option<u32> {
    let first = rules.iter().min_by_key(|rule| rule.rank());
    first.filter(|rule| rule.filter.selects_all()).map(|rule| rule.value)
}

impl Policy {
    /// Looks up one packet, without beginning and finishing in separate steps.
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
