//! All records of an anchor, in at most 96 octets each with their indices (STO-7).
//!
//! A record lies in a slot of 64 octets; one that is longer (dedicated bearers, several PDN connections) has its octets beside. Records
//! are found by subject, by what either end is addressed by, and by each of their addresses.
//!
//! Changes are noted for whoever keeps them ([`Table::take_changes`]): a record's number is its key there.

use std::hash::BuildHasher as _;
use std::net::{IpAddr, Ipv6Addr};

use foldhash::{HashMap, HashSet};

use crate::index::Index;
use crate::record::{MOST, Record, View, prefix};
use crate::template::{Misfit, Template, Templates};

/// Octets of a record in its slot; one more says how many they are.
pub const SLOT: usize = 64;
/// Slots that are made together.
const CHUNK: usize = 4096;
/// The slot is free.
const FREE: u8 = 0xff;
/// The octets lie beside.
const BESIDE: u8 = 0xfe;
/// Most numbers of records: with the place of an address in its record one fits into an [`Index`].
const NUMBERS: u32 = 1 << 26;
/// More than a record has addresses.
const PLACES: u32 = 2 * MOST as u32 + 1;

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

/// Why what was kept is no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It contradicts itself.
    #[error("what is kept contradicts itself")]
    Misfit(#[from] Misfit),
    /// Its number says that there were more sessions than there may be.
    #[error("the record {0} is one of more sessions than there may be")]
    BeyondMost(u32),
}

/// The records of an anchor.
#[derive(Debug, Default)]
pub struct Table {
    /// Most records, if it is not [`NUMBERS`].
    most: Option<usize>,
    chunks: Vec<Box<[Slot]>>,
    beside: HashMap<u32, Box<[u8]>>,
    free: Vec<u32>,
    len: usize,
    /// Octets of all records.
    stored: usize,
    templates: Templates,
    by_subject: Index,
    by_control: Index,
    by_anchor: Index,
    /// Numbers times [`PLACES`], and the address's place in the record.
    by_address: Index,
    /// How many records each control plane has, by its number.
    of_peer: Vec<u32>,
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
    /// One that takes back ([`Table::restore`]) at most so many records.
    pub fn bounded(most: usize) -> Table {
        Table { most: Some(most), ..Table::default() }
    }

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
        self.stored + self.templates.octets()
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
        self.numbers_from(0)
    }

    /// Those that are not below `first`.
    pub fn numbers_from(&self, first: u32) -> impl Iterator<Item = u32> + use<'_> {
        (first..(self.chunks.len() * CHUNK) as u32)
            .filter(|number| self.slot(*number).is_some_and(|slot| slot[0] != FREE))
    }

    /// Whether a control plane, by its number, has records.
    pub fn has_records_of(&self, peer: u8) -> bool {
        self.of_peer.get(usize::from(peer)).is_some_and(|count| *count > 0)
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
        self.all_of_subject(subject).next()
    }

    /// All records of a subject: two control planes may name theirs alike.
    pub fn all_of_subject(&self, subject: u64) -> impl Iterator<Item = u32> + use<'_> {
        let all = self.by_subject.all(self.hash((0, subject)));
        all.filter(move |number| self.view_of(*number).subject() == Some(subject))
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

    /// The record of an address, or of the prefix that it is in.
    pub fn by_address(&self, address: IpAddr) -> Option<u32> {
        self.all_by_address(address).next()
    }

    /// All records of an address: networks of several names may give the same one.
    pub fn all_by_address(&self, address: IpAddr) -> impl Iterator<Item = u32> + use<'_> {
        let address = key_of(address);
        let all = self.by_address.all(self.hash_of_address(address));
        all.filter(move |place| self.address_at(*place) == Some(address)).map(|place| place / PLACES)
    }

    /// What an entry of [`Table::by_address`] is about.
    fn address_at(&self, place: u32) -> Option<IpAddr> {
        self.view_of(place / PLACES).addresses().nth((place % PLACES) as usize)
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
        if self.free.is_empty() {
            self.add_chunk()?;
        }
        let number = self.free.pop().ok_or(Misfit)?;
        self.put(number, octets);
        self.len += 1;
        Ok(number)
    }

    fn add_chunk(&mut self) -> Result<(), Misfit> {
        let first = (self.chunks.len() * CHUNK) as u32;
        if first >= NUMBERS {
            return Err(Misfit);
        }
        self.chunks.push(vec![[FREE; SLOT]; CHUNK].into());
        self.free.extend((first..first + CHUNK as u32).rev());
        Ok(())
    }

    fn put(&mut self, number: u32, octets: Vec<u8>) {
        self.stored += octets.len();
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
        self.stored -= self.octets(number).map_or(0, <[u8]>::len);
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
            // Sessions that their anchor has lost have none until it has them again.
            if of == 2 && anchor == 0 {
                continue;
            }
            match add {
                true => indices[of].insert(number, hash, |other| key(of, other)),
                false => indices[of].remove(number, hash, |other| key(of, other)),
            }
        }
        let key = |place: u32| self.address_at(place).map_or(0, |address| self.hash_of_address(address));
        // Users who get their addresses later have all the same one until then.
        let known = (0..).zip(&addresses).filter(|(_, address)| !address.is_unspecified());
        for (at, address) in known {
            let (place, hash) = (number * PLACES + at, self.hash_of_address(*address));
            match add {
                true => indices[3].insert(place, hash, key),
                false => indices[3].remove(place, hash, key),
            }
        }
        [self.by_subject, self.by_control, self.by_anchor, self.by_address] = indices;
        let at = usize::from(peer);
        if self.of_peer.len() <= at {
            self.of_peer.resize(at + 1, 0);
        }
        self.of_peer[at] = if add { self.of_peer[at] + 1 } else { self.of_peer[at] - 1 };
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

    /// Puts back what was kept: all templates, then records at their numbers.
    ///
    /// # Errors
    /// What was kept contradicts itself, or is too much.
    pub fn restore(&mut self, change: &Change) -> Result<(), RestoreError> {
        match change {
            Change::Template(number, octets) => {
                Ok(self.templates.restore(*number, Template::decode(octets)?)?)
            }
            Change::Record(number, octets) => {
                // A table gives the lowest numbers, a chunk at a time. One beyond would take all memory.
                let most = self.most.unwrap_or(NUMBERS as usize).min(NUMBERS as usize);
                if *number as usize >= most.next_multiple_of(CHUNK) {
                    return Err(RestoreError::BeyondMost(*number));
                }
                if self.octets(*number).is_some() {
                    return Err(Misfit.into());
                }
                let record = Record::decode(octets, &self.templates)?;
                while self.chunks.len() * CHUNK <= *number as usize {
                    self.add_chunk()?;
                }
                record.messages.iter().for_each(|message| self.templates.hold(message.template));
                self.put(*number, octets.clone());
                self.changed.remove(number);
                self.len += 1;
                Ok(())
            }
            Change::NoRecord(_) | Change::NoTemplate(_) => Err(Misfit.into()),
        }
    }

    /// After all was put back: numbers of records are no longer free.
    pub fn restored(&mut self) {
        let mut free = std::mem::take(&mut self.free);
        free.retain(|number| self.octets(*number).is_none());
        self.free = free;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Bearer, Kept};
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn record(subject: u64, ipv4: Option<u32>, ipv6: Option<u64>) -> Record {
        let bearer = Bearer {
            id: 5,
            uplink: subject as u32,
            ipv4: ipv4.map(Ipv4Addr::from_bits),
            ipv6: ipv6.map(|upper| Ipv6Addr::from_bits(u128::from(upper) << 64)),
        };
        let (control, anchor) = (subject, subject + 1);
        Record { subject, control, anchor, bearers: vec![bearer], ..Record::default() }
    }

    /// The promise of 96 octets is also for users with both IP versions, at any number of users; and ten thousand of them are found by their
    /// second address without looking at all.
    #[test]
    fn both_addresses_are_indexed_in_96_octets() {
        const UES: u64 = 100_000;
        let mut table = Table::default();
        let template = table.enter_template(Template::whole(20)).unwrap();
        for ue in 0..UES {
            let messages = vec![Kept { template, stored: [7; 20].into() }];
            let record = Record { messages, ..record(ue << 16, Some(ue as u32 + 1), Some(ue + 1)) };
            table.insert(&record).unwrap();
            let room = CHUNK * SLOT;
            let octets = table.memory_octets() - room.min(table.memory_octets());
            assert!(ue < 10_000 || octets as u64 <= 96 * (ue + 1), "{octets} octets of {ue}");
        }
        let start = net::time::now_std();
        for ue in (0..UES).step_by(10) {
            let address = IpAddr::V6(Ipv6Addr::from_bits(u128::from(ue + 1) << 64 | 9));
            assert_eq!(table.by_address(address), Some(ue as u32));
        }
        assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    }

    #[test]
    fn users_without_address_yet_are_not_found_by_it() {
        let mut table = Table::default();
        let number = table.insert(&record(1, Some(0), Some(7))).unwrap();
        assert_eq!(table.by_address(Ipv4Addr::UNSPECIFIED.into()), None);
        assert_eq!(table.by_address(IpAddr::V6(Ipv6Addr::from_bits(7 << 64))), Some(number));
        assert!(table.remove(number) && table.by_address.all(0).next().is_none());
    }

    proptest! {
        /// What is found by address, subject and control plane is what looking at all records finds.
        #[test]
        fn it_finds_what_a_search_finds(
            changes in proptest::collection::vec(
                (0u64..12, proptest::option::of(0u32..4), proptest::option::of(0u64..4), 0u8..3, any::<bool>()), 1..120)
        ) {
            let mut table = Table::default();
            for (subject, ipv4, ipv6, peer, stays) in changes {
                let new = Record { peer, ..record(subject, ipv4, ipv6) };
                match (table.of_subject(subject), stays) {
                    (Some(number), true) => table.replace(number, &new).unwrap(),
                    (Some(number), false) => prop_assert!(table.remove(number)),
                    (None, _) => _ = table.insert(&new).unwrap(),
                }
                let all: Vec<(u32, Record)> =
                    table.numbers().map(|number| (number, table.get(number).unwrap())).collect();
                let v4 = (0..4).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
                let v6 = (0..4u64).map(|upper| IpAddr::V6(Ipv6Addr::from_bits(u128::from(upper) << 64)));
                for address in v4.chain(v6) {
                    let mut found: Vec<u32> = table.all_by_address(address).collect();
                    found.sort_unstable();
                    let has = |record: &Record| record.bearers.iter().flat_map(crate::record::addresses_of).any(|own| own == address);
                    let expected = all.iter().filter(|(_, record)| has(record) && !address.is_unspecified());
                    prop_assert_eq!(found, expected.map(|(number, _)| *number).collect::<Vec<_>>());
                }
                for peer in 0..3 {
                    prop_assert_eq!(table.has_records_of(peer), all.iter().any(|(_, record)| record.peer == peer));
                }
                let octets: usize = all.iter().map(|(number, _)| table.octets(*number).unwrap().len()).sum();
                prop_assert_eq!(table.stored_octets() - table.templates.octets(), octets);
                for first in 0..14 {
                    prop_assert!(table.numbers_from(first).eq(table.numbers().filter(|number| *number >= first)));
                }
            }
        }
    }
}
