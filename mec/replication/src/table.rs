//! All records of an anchor, in at most 96 octets each with their indices (STO-7).
//!
//! A record lies in a slot of 64 octets; one that is longer (dedicated bearers, several PDN connections) has its octets beside. Records
//! are found by subject, by what either end is addressed by, and by address.
//!
//! Changes are noted for whoever keeps them ([`Table::take_changes`]): a record's number is its key there.

use std::hash::BuildHasher as _;
use std::net::{IpAddr, Ipv6Addr};

use foldhash::{HashMap, HashSet};

use crate::index::Index;
use crate::record::{Record, View, prefix};
use crate::template::{Misfit, Template, Templates};

/// Octets of a record in its slot; one more says how many they are.
pub const SLOT: usize = 64;
/// Slots that are made together.
const CHUNK: usize = 4096;
/// The slot is free.
const FREE: u8 = 0xff;
/// The octets lie beside.
const BESIDE: u8 = 0xfe;

/// A length, and octets.
type Slot = [u8; SLOT];

/// A change to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A record is so now.
    Record(u32, Vec<u8>),
    /// It is gone.
    NoRecord(u32),
    /// A template is there.
    Template(u16, Vec<u8>),
    /// It is gone.
    NoTemplate(u16),
}

/// The records of an anchor.
#[derive(Debug, Default)]
pub struct Table {
    chunks: Vec<Box<[Slot]>>,
    beside: HashMap<u32, Box<[u8]>>,
    free: Vec<u32>,
    len: usize,
    templates: Templates,
    by_subject: Index,
    by_control: Index,
    by_anchor: Index,
    by_address: Index,
    hasher: foldhash::fast::RandomState,
    /// Nobody takes changes, so none is noted.
    is_unkept: bool,
    changed: HashSet<u32>,
    changed_templates: HashSet<u16>,
}

/// An address as records have it: of IPv6 the prefix.
fn key_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => prefix(address).into(),
        address => address,
    }
}

impl Table {
    /// From now on nobody takes changes.
    pub fn forget_changes(&mut self) {
        self.is_unkept = true;
        (self.changed, self.changed_templates) = Default::default();
    }

    fn note(&mut self, number: u32) {
        if !self.is_unkept {
            self.changed.insert(number);
        }
    }

    fn note_template(&mut self, number: u16) {
        if !self.is_unkept {
            self.changed_templates.insert(number);
        }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The templates.
    pub fn templates(&self) -> &Templates {
        &self.templates
    }

    /// Octets of all records, and of the templates, without room and indices.
    pub fn stored_octets(&self) -> usize {
        let records: usize = self.numbers().filter_map(|number| self.octets(number)).map(<[u8]>::len).sum();
        records + self.templates.octets()
    }

    /// Octets of memory, with room and indices.
    pub fn memory_octets(&self) -> usize {
        let beside: usize = self.beside.values().map(|octets| octets.len() + 24).sum();
        let indices = [&self.by_subject, &self.by_control, &self.by_anchor, &self.by_address];
        self.chunks.len() * CHUNK * SLOT
            + beside
            + self.free.capacity() * size_of::<u32>()
            + self.templates.octets()
            + indices.map(Index::octets).iter().sum::<usize>()
    }

    /// The numbers of all records, from the lowest.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<'_> {
        (0..(self.chunks.len() * CHUNK) as u32)
            .filter(|number| self.slot(*number).is_some_and(|slot| slot[0] != FREE))
    }

    fn slot(&self, number: u32) -> Option<&Slot> {
        self.chunks.get(number as usize / CHUNK)?.get(number as usize % CHUNK)
    }

    /// A record's octets.
    pub fn octets(&self, number: u32) -> Option<&[u8]> {
        let slot = self.slot(number)?;
        match slot[0] {
            FREE => None,
            BESIDE => self.beside.get(&number).map(|octets| &**octets),
            length => slot.get(1..1 + usize::from(length)),
        }
    }

    /// A record, to look at.
    pub fn view(&self, number: u32) -> Option<View<'_>> {
        self.octets(number).map(View)
    }

    /// A record, decoded.
    pub fn get(&self, number: u32) -> Option<Record> {
        Record::decode(self.octets(number)?, &self.templates).ok()
    }

    fn view_of(&self, number: u32) -> View<'_> {
        self.view(number).unwrap_or(View(&[]))
    }

    fn hash(&self, key: (u64, u64)) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The record of a subject.
    pub fn by_subject(&self, peer: u8, subject: u64) -> Option<u32> {
        let fits = |number| {
            self.view_of(number).subject() == Some(subject) && self.view_of(number).peer() == Some(peer)
        };
        self.by_subject.find(self.hash((0, subject)), fits)
    }

    /// The record of a subject, whoever controls it.
    pub fn of_subject(&self, subject: u64) -> Option<u32> {
        self.by_subject
            .find(self.hash((0, subject)), |number| self.view_of(number).subject() == Some(subject))
    }

    /// The record by what the anchor addresses the control plane.
    pub fn by_control(&self, peer: u8, control: u64) -> Option<u32> {
        let fits = |number| {
            self.view_of(number).control() == Some(control) && self.view_of(number).peer() == Some(peer)
        };
        self.by_control.find(self.hash((u64::from(peer), control)), fits)
    }

    /// The record by what the control plane addresses the anchor.
    pub fn by_anchor(&self, anchor: u64) -> Option<u32> {
        self.by_anchor.find(self.hash((0, anchor)), |number| self.view_of(number).anchor() == Some(anchor))
    }

    /// The record of an address, or of the prefix that it is in. One that is no record's first address is searched for among all.
    pub fn by_address(&self, address: IpAddr) -> Option<u32> {
        let own = key_of(address);
        let fits = |number: &u32| self.view_of(*number).addresses().any(|address| address == own);
        self.by_first_address(address).or_else(|| self.numbers().find(fits))
    }

    /// The same by a record's first address alone, which is its key: that of its second IP version or PDN connection is not found.
    pub fn by_first_address(&self, address: IpAddr) -> Option<u32> {
        let address = key_of(address);
        let fits = |number: u32| self.view_of(number).addresses().any(|own| own == address);
        self.by_address.find(self.hash_of_address(address), fits)
    }

    fn hash_of_address(&self, address: IpAddr) -> u64 {
        self.hash(match address {
            IpAddr::V4(address) => (4, address.to_bits().into()),
            IpAddr::V6(address) => (6, (Ipv6Addr::to_bits(address) >> 64) as u64),
        })
    }

    /// Enters a message: its template's number. A message that varies too much is kept whole.
    ///
    /// # Errors
    /// No number is free even for that.
    pub fn enter_template(&mut self, template: Template) -> Result<u16, Misfit> {
        let (number, is_new) = self.templates.enter(template).ok_or(Misfit)?;
        if is_new {
            self.note_template(number);
        }
        Ok(number)
    }

    /// A message is not kept after all, or no longer.
    pub fn leave_template(&mut self, number: u16) {
        if self.templates.leave(number) {
            self.note_template(number);
        }
    }

    /// Adds a record whose templates are entered; its number.
    ///
    /// # Errors
    /// It has more bearers or messages than there is room for.
    pub fn insert(&mut self, record: &Record) -> Result<u32, Misfit> {
        let mut octets = Vec::with_capacity(SLOT);
        record.encode(&mut octets)?;
        let number = self.free.pop().unwrap_or_else(|| {
            let first = (self.chunks.len() * CHUNK) as u32;
            self.chunks.push(vec![[FREE; SLOT]; CHUNK].into());
            self.free.extend((first + 1..first + CHUNK as u32).rev());
            first
        });
        self.put(number, octets);
        self.len += 1;
        Ok(number)
    }

    fn put(&mut self, number: u32, octets: Vec<u8>) {
        let chunk = &mut self.chunks[number as usize / CHUNK];
        let slot = &mut chunk[number as usize % CHUNK];
        if octets.len() < SLOT {
            slot[0] = octets.len() as u8;
            slot[1..=octets.len()].copy_from_slice(&octets);
        } else {
            slot[0] = BESIDE;
            self.beside.insert(number, octets.into());
        }
        self.index(number, true);
        self.note(number);
    }

    fn clear(&mut self, number: u32) {
        self.index(number, false);
        self.chunks[number as usize / CHUNK][number as usize % CHUNK][0] = FREE;
        self.beside.remove(&number);
        self.note(number);
    }

    /// Replaces a record whose new templates are entered, and whose old ones are left by the caller.
    ///
    /// # Errors
    /// As [`Table::insert`]; then nothing is changed.
    pub fn replace(&mut self, number: u32, record: &Record) -> Result<(), Misfit> {
        let mut octets = Vec::with_capacity(SLOT);
        record.encode(&mut octets)?;
        if self.octets(number).is_none() {
            return Err(Misfit);
        }
        self.clear(number);
        self.put(number, octets);
        Ok(())
    }

    /// Removes a record and leaves its templates; whether it was there.
    pub fn remove(&mut self, number: u32) -> bool {
        if self.octets(number).is_none() {
            return false;
        }
        let record = self.get(number);
        self.clear(number);
        for message in record.into_iter().flat_map(|record| record.messages) {
            self.leave_template(message.template);
        }
        self.free.push(number);
        self.len -= 1;
        true
    }

    fn index(&mut self, number: u32, add: bool) {
        let view = self.view_of(number);
        let (peer, subject) = (view.peer().unwrap_or_default(), view.subject().unwrap_or_default());
        let (control, anchor) = (view.control().unwrap_or_default(), view.anchor().unwrap_or_default());
        let addresses: Vec<IpAddr> = view.addresses().collect();
        let mut indices = [
            std::mem::take(&mut self.by_subject),
            std::mem::take(&mut self.by_control),
            std::mem::take(&mut self.by_anchor),
            std::mem::take(&mut self.by_address),
        ];
        let key = |of: usize, other: u32| {
            let view = self.view_of(other);
            let number = |number: Option<u64>| number.unwrap_or_default();
            self.hash(match of {
                0 => (0, number(view.subject())),
                1 => (view.peer().unwrap_or_default().into(), number(view.control())),
                _ => (0, number(view.anchor())),
            })
        };
        let hashes = [self.hash((0, subject)), self.hash((peer.into(), control)), self.hash((0, anchor))];
        for (of, hash) in hashes.into_iter().enumerate() {
            match add {
                true => indices[of].insert(number, hash, |other| key(of, other)),
                false => indices[of].remove(number, hash, |other| key(of, other)),
            }
        }
        let first = |other: u32| {
            let address = self.view_of(other).addresses().next();
            address.map_or(0, |address| self.hash_of_address(address))
        };
        if let Some(address) = addresses.first() {
            let hash = self.hash_of_address(*address);
            match add {
                true => indices[3].insert(number, hash, first),
                false => indices[3].remove(number, hash, first),
            }
        }
        [self.by_subject, self.by_control, self.by_anchor, self.by_address] = indices;
    }

    /// What has changed since the last time, templates before the records that use them.
    pub fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(self.changed.len() + self.changed_templates.len());
        let mut gone = Vec::new();
        for number in std::mem::take(&mut self.changed_templates) {
            match self.templates.get(number) {
                Some(template) => {
                    let mut octets = Vec::new();
                    template.encode(&mut octets);
                    changes.push(Change::Template(number, octets));
                }
                None => gone.push(Change::NoTemplate(number)),
            }
        }
        for number in std::mem::take(&mut self.changed) {
            changes.push(match self.octets(number) {
                Some(octets) => Change::Record(number, octets.to_vec()),
                None => Change::NoRecord(number),
            });
        }
        changes.extend(gone);
        changes
    }

    /// Whether something has changed since [`Table::take_changes`].
    pub fn is_changed(&self) -> bool {
        !self.changed.is_empty() || !self.changed_templates.is_empty()
    }

    /// Puts back what was kept: all templates, then records at their numbers.
    ///
    /// # Errors
    /// What was kept contradicts itself.
    pub fn restore(&mut self, change: &Change) -> Result<(), Misfit> {
        match change {
            Change::Template(number, octets) => self.templates.restore(*number, Template::decode(octets)?),
            Change::Record(number, octets) => {
                // A number beyond any that a table gives would take all memory.
                if *number >= 1 << 26 || self.octets(*number).is_some() {
                    return Err(Misfit);
                }
                let record = Record::decode(octets, &self.templates)?;
                while self.chunks.len() * CHUNK <= *number as usize {
                    let first = (self.chunks.len() * CHUNK) as u32;
                    self.chunks.push(vec![[FREE; SLOT]; CHUNK].into());
                    self.free.extend((first..first + CHUNK as u32).rev());
                }
                record.messages.iter().for_each(|message| self.templates.hold(message.template));
                self.put(*number, octets.clone());
                self.changed.remove(number);
                self.len += 1;
                Ok(())
            }
            Change::NoRecord(_) | Change::NoTemplate(_) => Err(Misfit),
        }
    }

    /// After all was put back: numbers of records are no longer free.
    pub fn restored(&mut self) {
        let mut free = std::mem::take(&mut self.free);
        free.retain(|number| self.octets(*number).is_none());
        self.free = free;
    }
}
