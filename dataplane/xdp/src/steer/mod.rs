//! Steering of GTP-U packets in XDP: the tables, and how they are changed while programs use them.
//!
//! ```text
//!  outer destination ─► anchor ─► line (by TEID) ─► slot (by epoch) ─► hop ─► out
//!                                   │  └─► inner fields ─► another line
//!                                   └─ none ─► link-layer addresses ─► line ─► …
//! ```
//! A [`Steer`] owns the tables; [`Steer::attach`] adds the program that reads them (`bpf/steer.h`) to the chain of an interface. All
//! interfaces share them. Packets that no entry is for go on to the next part of the chain as they came.
//!
//! **Changes are atomic.** [`Steer::commit`] writes what will hold into the slot of each line that is not in use, with the number of
//! the next epoch; then it stores that number where all programs read it. A packet is handled by the entries of one epoch, and one
//! that comes behind another never by those of an earlier one. Either all changes hold or, after an error, none.
//!
//! [`Steer::pause`] takes the number away: programs pass all packets on until it is there again.
//!
//! **Nothing is used again too early.** Rows and lines that were given back may be read or counted in by a program that still runs.
//! They are used again a grace period later ([`rows`]). When nothing else is free, a commit waits for one (10 to 30 ms);
//! [`Steer::settle`] does that ahead of time.
//!
//! One owner changes the tables (`&mut`); counters are read at any time. When the process ends, the kernel frees everything with
//! its descriptors.
//!
//! Read first: [`Key`] and [`Entry`], then [`lines`].

mod anchors;
mod commit;
mod entry;
mod hops;
mod lines;
mod records;
mod rows;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use pktio::bpf::{
    BpfError, DeviceMap, HashTable, Program, ProgramArray, SHARED_OCTETS_MAX, SharedWords, wait_for_programs,
};
use pktio::xdp::{Chain, ChainError, Part, Place};

use crate::object::{Object, ObjectError, Value};
use crate::programs;
use anchors::Anchors;
use hops::Hops;
use lines::{Hashed, Lines, NoLine, State};
use records::{
    ADDRESS_WORDS, INSIDE_KEY, INSIDE_SETS, PASSED_COUNT, PASSED_PROCESSORS, PASSED_ROW, SCRATCH_OCTETS,
};
use rows::{Grace, Rows};

pub use anchors::Teids;
pub use entry::{Action, Change, Counters, Entry, Forward, Inner, Inside, Key, Only, Tunnel};

/// Interfaces to which packets can be sent.
const PORTS: u32 = 256;
/// Most lines: what a program can address.
const LINES_MAX: u64 = (SHARED_OCTETS_MAX / (records::MORE_WORDS * 8)) as u64;
/// Most anchors and hops: their numbers have 16 bits.
const NUMBERS_MAX: u32 = 0xFFFE;
/// Regions of [`Lines`] that are searched by hash.
const TUNNELS: usize = 0;
const FRAMES: usize = 1;

/// How much there is room for. Memory is taken at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    /// TEIDs of our own anchors, of all of them together ([`Teids::Own`]).
    pub own: u32,
    /// Tunnels of foreign anchors. Their table has room for two to four times as many.
    pub foreign: u32,
    /// Entries for inner fields.
    pub inside: u32,
    /// Entries for link-layer addresses. Their table has room for two to four times as many.
    pub frames: u32,
    /// Anchors: outer destinations.
    pub anchors: u32,
    /// Hops: different ways to send packets on.
    pub hops: u32,
    /// Entries that replace inner IPv6 addresses.
    pub ipv6_addresses: u32,
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity {
            own: 1 << 16,
            foreign: 1 << 16,
            inside: 1 << 14,
            frames: 1 << 10,
            anchors: 1 << 10,
            hops: 1 << 12,
            ipv6_addresses: 1 << 14,
        }
    }
}

/// A table of [`Capacity`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// TEIDs of own anchors.
    Own,
    /// Tunnels of foreign anchors.
    Foreign,
    /// Entries for inner fields.
    Inside,
    /// Entries for link-layer addresses.
    Frames,
    /// Anchors.
    Anchors,
    /// Hops.
    Hops,
    /// Inner IPv6 addresses.
    Ipv6Addresses,
    /// Ports.
    Ports,
}

/// Why something cannot be loaded or changed. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// This build has no programs, or the kernel refuses one.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// What the kernel did not do.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The chain takes no part here.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// Programs need loads in order, which this processor does not promise.
    #[error("XDP steering is for x86-64 only")]
    Processor,
    /// More than programs can address.
    #[error("{0:?}: XDP programs cannot address so much")]
    TooLarge(Table),
    /// There is no room left.
    #[error("the table {0:?} of XDP steering is full")]
    Full(Table),
    /// The outer destination is no anchor.
    #[error("{0} is no anchor")]
    NoAnchor(IpAddr),
    /// The address is an anchor already.
    #[error("{0} is an anchor already")]
    IsAnchor(IpAddr),
    /// The anchor has entries.
    #[error("{0} still has {1} entries")]
    InUse(IpAddr, u32),
    /// The interface is no port.
    #[error("interface {0} is no port")]
    NoPort(u32),
    /// An entry for inner fields needs one for its tunnel, which stays as long as there are some.
    #[error("the tunnel {} with TEID {:#x} has no entry, or has entries for inner fields", .0.destination, .0.teid)]
    NeedsTunnel(Tunnel),
    /// The entry contradicts itself.
    #[error("an entry that cannot be: {0}")]
    Contradiction(&'static str),
}

/// Why packets went on to the next part of the chain. The order is that of `bpf/records.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    /// Nothing for us: other protocols and ports, VLAN tags, options and extension headers of the outer packet.
    Other,
    /// Fragments of outer packets.
    Fragment,
    /// Lengths or versions that contradict each other.
    Malformed,
    /// Messages of the path, and End Markers whose entry does not want them.
    Signalling,
    /// There is no entry.
    NoEntry,
    /// The entry says so.
    Host,
    /// The entry is for other packets ([`Only`]), or another outer IP version.
    Guard,
    /// The inner packet cannot be read or rewritten here.
    Inner,
    /// The port's interface has gone.
    NoPort,
    /// The entry changed each time it was read; or a commit came between the tunnel's entry and another one that was read.
    Changing,
    /// The entries do not hold at present ([`Steer::pause`]).
    Paused,
}

impl Passed {
    /// All reasons.
    pub const ALL: [Passed; PASSED_COUNT] = [
        Passed::Other,
        Passed::Fragment,
        Passed::Malformed,
        Passed::Signalling,
        Passed::NoEntry,
        Passed::Host,
        Passed::Guard,
        Passed::Inner,
        Passed::NoPort,
        Passed::Changing,
        Passed::Paused,
    ];

    /// A name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Passed::Other => "other",
            Passed::Fragment => "outer_fragment",
            Passed::Malformed => "malformed",
            Passed::Signalling => "signalling",
            Passed::NoEntry => "no_entry",
            Passed::Host => "host",
            Passed::Guard => "guard",
            Passed::Inner => "inner",
            Passed::NoPort => "no_port",
            Passed::Changing => "changing",
            Passed::Paused => "paused",
        }
    }
}

/// What is in the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Entries of all kinds.
    pub entries: u32,
    /// Hops.
    pub hops: usize,
    /// Octets of all tables, of which programs share the most.
    pub octets: usize,
}

/// Which TEIDs a program for measuring makes, one behind the other in a random order.
#[derive(Clone, Copy, Debug)]
pub struct Varied<'a> {
    /// The state of the sequence: one word. A second word is the outer IPv4 destination, as on the wire, that each packet gets as
    /// well; 0: it stays what the packet before was given, so that no packet begins before that one's entry is read.
    pub sequence: &'a SharedWords,
    /// The lowest TEID.
    pub first: u32,
    /// The highest TEID, less the lowest: one less than a power of two.
    pub mask: u32,
}

/// The program, loaded for a place of a chain.
#[derive(Debug)]
pub struct Loaded {
    /// The program.
    pub program: Program,
    /// It goes on with the programs in this array, which the kernel empties when the last descriptor is closed.
    inner: ProgramArray,
    inner_programs: [Program; 2],
}

impl Loaded {
    /// Instructions that the verifier looked at, in the program and those for inner packets. The kernel's limit is a million.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn verified_instructions(&self) -> Result<[u32; 3], BpfError> {
        let [inside, rewrite] = &self.inner_programs;
        Ok([
            self.program.verified_instructions()?,
            inside.verified_instructions()?,
            rewrite.verified_instructions()?,
        ])
    }
}

/// The program in a chain; dropping it removes the program.
#[derive(Debug)]
pub struct Attached {
    // First, so that no packet comes to a program whose array is empty.
    part: Part,
    _inner: ProgramArray,
}

impl Attached {
    /// The part of the chain.
    pub fn part(&self) -> &Part {
        &self.part
    }
}

/// A grace period that has begun.
#[derive(Debug)]
#[must_use]
pub struct Began(u32);

/// A grace period that is over.
#[derive(Debug)]
pub struct Waited(u32);

impl Began {
    /// Waits until all programs that ran when it began have ended, for 10 to 30 ms.
    ///
    /// # Errors
    /// The kernel cannot say when.
    pub fn wait(self) -> Result<Waited, SteerError> {
        wait_for_programs()?;
        Ok(Waited(self.0))
    }
}

/// The tables of steering.
#[derive(Debug)]
pub struct Steer {
    control: SharedWords,
    passed: SharedWords,
    /// What programs for inner packets leave each other, by processor.
    scratches: SharedWords,
    anchors: Anchors,
    lines: Lines,
    /// Lines of entries for inner fields, their numbers by key, and how many entries of each set a tunnel's line has.
    inside_rows: Rows,
    inside: HashTable<INSIDE_KEY>,
    inside_lines: HashMap<[u8; INSIDE_KEY], u32>,
    inside_sets: HashMap<u32, [u32; INSIDE_SETS]>,
    hops: Hops,
    addresses: SharedWords,
    address_rows: Rows,
    ports: DeviceMap,
    /// Interfaces by the numbers of ports.
    interfaces: Vec<u32>,
    capacity: Capacity,
    epoch: u64,
    /// Programs see no epoch, and pass everything on.
    paused: bool,
    /// Whether changes wait for a grace period when they need one.
    waits: bool,
    grace: Grace,
    /// Lines whose entry was removed, with the generation; the oldest first.
    removed: VecDeque<(u32, u32)>,
}

impl Steer {
    /// Empty tables.
    ///
    /// # Errors
    /// This build has no programs, a table is too large, or the kernel has no memory or grants no privilege.
    pub fn new(capacity: Capacity) -> Result<Steer, SteerError> {
        if !programs::BUILT {
            return Err(ObjectError::NotBuilt.into());
        }
        if !cfg!(target_arch = "x86_64") {
            return Err(SteerError::Processor);
        }
        let lines = regions(&capacity)?;
        let steer = Steer {
            control: SharedWords::new(64)?,
            passed: SharedWords::new(PASSED_PROCESSORS * PASSED_ROW * 8)?,
            scratches: SharedWords::new(PASSED_PROCESSORS * SCRATCH_OCTETS)?,
            anchors: Anchors::new(capacity.anchors, lines.own, capacity.own)?,
            lines: Lines::new(lines.end, [lines.tunnels, lines.frames])?,
            inside_rows: Rows::new(lines.inside, lines.end),
            inside: HashTable::new(capacity.inside)?,
            inside_lines: HashMap::new(),
            inside_sets: HashMap::new(),
            hops: Hops::new(capacity.hops)?,
            addresses: SharedWords::new(capacity.ipv6_addresses as usize * ADDRESS_WORDS * 8)?,
            address_rows: Rows::new(0, capacity.ipv6_addresses),
            ports: DeviceMap::new(PORTS)?,
            interfaces: Vec::new(),
            capacity,
            epoch: 1,
            paused: false,
            waits: true,
            grace: Grace::default(),
            removed: VecDeque::new(),
        };
        steer.control.words()[0].store(steer.epoch, Relaxed);
        Ok(steer)
    }

    /// Adds the program to the chain of an interface. It stays there until the part is dropped.
    ///
    /// # Errors
    /// The place is occupied, or the kernel refuses the program.
    pub fn attach(&self, chain: &Arc<Chain>, place: Place) -> Result<Attached, SteerError> {
        let loaded = self.load(chain, place)?;
        let part = chain.add(place, loaded.program)?;
        Ok(Attached { _inner: loaded.inner, part })
    }

    /// Loads the program for a place of a chain, without adding it.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn load(&self, chain: &Chain, place: Place) -> Result<Loaded, SteerError> {
        let inner = ProgramArray::new(2)?;
        let link = |object| self.link(object, &inner, chain, place, &[]);
        let inner_programs = [link(&programs::steer_inside()?)?, link(&programs::steer_rewrite()?)?];
        for (at, program) in inner_programs.iter().enumerate() {
            inner.set(at as u32, program.as_fd())?;
        }
        let program = self.link(&programs::steer()?, &inner, chain, place, &[])?;
        Ok(Loaded { program, inner, inner_programs })
    }

    /// Loads the program behind one that varies the TEID, to measure it; `baseline` does nothing else. For outer IPv4 packets whose
    /// entries leave them as they are.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn load_varied(
        &self,
        chain: &Chain,
        teids: &Varied<'_>,
        baseline: bool,
    ) -> Result<Program, SteerError> {
        self.load_bench(chain, teids, if baseline { 2 } else { 1 })
    }

    /// Loads a program that varies the TEID, and reads and writes one of as many lines as there are TEIDs: the least that entries at
    /// random cost.
    ///
    /// # Errors
    /// The kernel refuses the program.
    pub fn load_floor(&self, chain: &Chain, teids: &Varied<'_>) -> Result<Program, SteerError> {
        self.load_bench(chain, teids, 3)
    }

    fn load_bench(&self, chain: &Chain, teids: &Varied<'_>, baseline: u64) -> Result<Program, SteerError> {
        let values = [
            ("sequence", memory(teids.sequence)),
            ("first_teid", Value::Number(teids.first.into())),
            ("teid_mask", Value::Number(teids.mask.into())),
            ("baseline", Value::Number(baseline)),
        ];
        self.link(&programs::steer_bench()?, &ProgramArray::new(2)?, chain, Place::SELECTION, &values)
    }

    /// Loads a program that includes `bpf/steer.h`, with the values of more names.
    fn link(
        &self,
        object: &Object,
        inner: &ProgramArray,
        chain: &Chain,
        place: Place,
        more: &[(&str, Value<'_>)],
    ) -> Result<Program, SteerError> {
        let lines = regions(&self.capacity)?;
        let (line_words, more_words) = self.lines.memory();
        let (anchors, anchors_mask) = self.anchors.memory();
        let (hops, hop_count) = self.hops.memory();
        let number = |value: u32| Value::Number(value.into());
        let mut values = vec![
            ("inner_programs", Value::Map(inner.as_fd())),
            ("slots", Value::Map(chain.slots())),
            ("ports", Value::Map(self.ports.as_fd())),
            ("inside", Value::Map(self.inside.as_fd())),
            ("control", memory(&self.control)),
            ("passed", memory(&self.passed)),
            ("scratches", memory(&self.scratches)),
            ("anchors", memory(anchors)),
            ("lines", memory(line_words)),
            ("more", memory(more_words)),
            ("hops", memory(hops)),
            ("addresses", memory(&self.addresses)),
            ("next_slot", number(place.number() + 1)),
            ("anchors_mask", number(anchors_mask)),
            ("line_count", number(self.lines.count())),
            ("hop_count", number(hop_count)),
            ("address_count", number(self.capacity.ipv6_addresses)),
            ("tunnel_first", number(lines.tunnels.first)),
            ("tunnel_mask", number(lines.tunnels.buckets - 1)),
            ("frame_first", number(lines.frames.first)),
            ("frame_mask", number(lines.frames.buckets - 1)),
        ];
        values.extend_from_slice(more);
        Ok(object.load("godwit_steer", &values)?)
    }

    /// Makes an interface a port, in the network namespace of the calling thread. The interface's driver must be able to send for
    /// XDP; the peer of a veth needs an XDP program or GRO for that.
    ///
    /// # Errors
    /// There is no such interface, or there are too many.
    pub fn add_port(&mut self, interface: u32) -> Result<(), SteerError> {
        let port = match self.interfaces.iter().position(|known| *known == interface) {
            Some(port) => port as u32,
            None if self.interfaces.len() as u32 >= PORTS => return Err(SteerError::Full(Table::Ports)),
            None => self.interfaces.len() as u32,
        };
        self.ports.set(port, interface)?;
        if port as usize == self.interfaces.len() {
            self.interfaces.push(interface);
        }
        Ok(())
    }

    /// Adds an anchor: an outer destination for whose tunnels there may be entries.
    ///
    /// # Errors
    /// It is one already, or there is no room.
    pub fn add_anchor(&mut self, address: IpAddr, teids: Teids) -> Result<(), SteerError> {
        if self.anchors.get(address).is_some() {
            return Err(SteerError::IsAnchor(address));
        }
        let table = match teids {
            Teids::Own { count, .. } if !self.anchors.has_range(count) => Table::Own,
            _ => Table::Anchors,
        };
        self.with_grace(table, |steer| steer.anchors.add(address, teids, steer.grace))
    }

    /// Removes an anchor.
    ///
    /// # Errors
    /// It has entries, or there is no such anchor.
    pub fn remove_anchor(&mut self, address: IpAddr) -> Result<(), SteerError> {
        let anchor = self.anchors.get(address).ok_or(SteerError::NoAnchor(address))?;
        if anchor.entries > 0 {
            return Err(SteerError::InUse(address, anchor.entries));
        }
        self.anchors.remove(address, self.grace);
        Ok(())
    }

    /// Waits until what was removed can be used again, for 10 to 30 ms.
    ///
    /// # Errors
    /// The kernel cannot say when.
    pub fn settle(&mut self) -> Result<(), SteerError> {
        let began = self.begin_grace();
        self.end_grace(began.wait()?);
        Ok(())
    }

    /// From now on changes do not wait for grace periods: what would need one fails as if there were no room. The owner waits ahead
    /// of time instead, where nobody waits for it ([`Steer::begin_grace`]).
    pub fn never_wait(&mut self) {
        self.waits = false;
    }

    /// Begins a grace period, which can be waited for without these tables.
    pub fn begin_grace(&mut self) -> Began {
        Began(self.grace.begin())
    }

    /// What was removed before this grace period began can be used again.
    pub fn end_grace(&mut self, Waited(began): Waited) {
        self.grace.passed(began);
        self.clean();
    }

    /// Passes all packets on to the next part, at once, until [`Steer::resume`]. Changes are possible meanwhile, and counters stay.
    pub fn pause(&mut self) {
        self.paused = true;
        self.publish_epoch();
    }

    /// Makes the entries hold again, with all that was changed in the meantime.
    pub fn resume(&mut self) {
        self.paused = false;
        self.publish_epoch();
    }

    /// Whether all packets are passed on.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    fn publish_epoch(&self) {
        self.control.words()[0].store(if self.paused { 0 } else { self.epoch }, Release);
    }

    /// Takes the keys from lines that no program uses any more.
    fn clean(&mut self) {
        while let Some((generation, line)) = self.removed.front().copied() {
            if !self.grace.is_over(generation) {
                break;
            }
            self.removed.pop_front();
            if self.lines.state(line) == State::Removed(generation) {
                self.lines.forget(line);
            }
        }
    }

    /// Does `work`, once more after a grace period when it says so.
    fn with_grace<T>(
        &mut self,
        table: Table,
        work: impl Fn(&mut Steer) -> Result<T, NoLine>,
    ) -> Result<T, SteerError> {
        match work(self) {
            Ok(result) => Ok(result),
            Err(NoLine::Full) => Err(SteerError::Full(table)),
            Err(NoLine::Later) if !self.waits => Err(SteerError::Full(table)),
            Err(NoLine::Later) => {
                self.settle()?;
                work(self).map_err(|_| SteerError::Full(table))
            }
        }
    }

    /// What an entry has counted since it was added; `None` when there is no such entry.
    pub fn counters(&self, key: &Key) -> Option<Counters> {
        let line = self.find(key)?;
        (self.lines.state(line) == State::Live).then(|| self.lines.counters(line))
    }

    /// The line of a key, which may have no entry any more.
    fn find(&self, key: &Key) -> Option<u32> {
        match key {
            Key::Tunnel(tunnel) => {
                let anchor = self.anchors.get(tunnel.destination)?;
                let key = [tunnel.teid, anchor.number.into(), 0];
                match anchor.own_line(tunnel.teid) {
                    Some(line) => (self.lines.key(line) == key).then_some(line),
                    None => self.lines.find(TUNNELS, key),
                }
            }
            Key::Inside(tunnel, inside) => {
                let line = self.find(&Key::Tunnel(*tunnel))?;
                self.inside_lines.get(&inside.key(line)?).copied()
            }
            Key::Frame { source, destination } => {
                self.lines.find(FRAMES, records::frame_key(*destination, *source))
            }
        }
    }

    /// How many packets went on to the next part, and why.
    pub fn passed(&self) -> [(Passed, u64); PASSED_COUNT] {
        let words = self.passed.words();
        Passed::ALL.map(|reason| {
            let counts = words.chunks(PASSED_ROW).map(|row| row[reason as usize].load(Relaxed));
            (reason, counts.sum())
        })
    }

    /// What is in the tables.
    pub fn usage(&self) -> Usage {
        let shared =
            [&self.control, &self.passed, &self.addresses, self.anchors.memory().0, self.hops.memory().0];
        let shared: usize = shared.iter().map(|words| words.words().len() * 8).sum();
        Usage { entries: self.lines.live(), hops: self.hops.live(), octets: shared + self.lines.octets() }
    }
}

/// Where the regions of the lines begin.
struct Regions {
    tunnels: Hashed,
    frames: Hashed,
    own: u32,
    inside: u32,
    end: u32,
}

fn regions(capacity: &Capacity) -> Result<Regions, SteerError> {
    let numbers = [(capacity.anchors, Table::Anchors), (capacity.hops, Table::Hops)];
    if let Some((_, table)) = numbers.into_iter().find(|(count, _)| *count > NUMBERS_MAX) {
        return Err(SteerError::TooLarge(table));
    }
    let mut lines = 0u64;
    let tables = [
        (u64::from(capacity.foreign.max(1)).next_power_of_two() * 2, Table::Foreign),
        (u64::from(capacity.frames.max(1)).next_power_of_two() * 2, Table::Frames),
        (capacity.own.into(), Table::Own),
        (capacity.inside.into(), Table::Inside),
    ];
    for (count, table) in tables {
        lines += count;
        if lines > LINES_MAX {
            return Err(SteerError::TooLarge(table));
        }
    }
    let tunnels = Hashed::new(0, capacity.foreign);
    let frames = Hashed::new(tunnels.end(), capacity.frames);
    let own = frames.end();
    let inside = own + capacity.own;
    Ok(Regions { tunnels, frames, own, inside, end: inside + capacity.inside })
}

fn memory(words: &SharedWords) -> Value<'_> {
    Value::Memory(words.as_fd())
}
