//! Hops: what is written into packets that go the same way, and where they go. Entries with the same hop share its row.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Release;

use packet::ethernet::Mac;
use pktio::bpf::{BpfError, SharedWords};

use super::entry::Only;
use super::lines::NoLine;
use super::records::{self, HOP_WORDS};
use super::rows::{Grace, Rows};

/// A hop. Interface 0: packets go nowhere.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Hop {
    pub interface: u32,
    /// The interface's number in the map of ports.
    pub port: u32,
    pub eth_destination: Option<Mac>,
    pub eth_source: Option<Mac>,
    pub destination: Option<IpAddr>,
    pub source: Option<IpAddr>,
    pub only: Only,
}

impl Hop {
    /// The octets of `struct hop`.
    fn words(&self) -> [u64; HOP_WORDS] {
        let mut octets = [0u8; HOP_WORDS * 8];
        let mut flags = 0;
        let only = &self.only;
        let macs = [
            (0, self.eth_destination, records::HOP_ETH_DESTINATION),
            (6, self.eth_source, records::HOP_ETH_SOURCE),
            (64, only.eth_destination, records::ONLY_ETH_DESTINATION),
            (70, only.eth_source, records::ONLY_ETH_SOURCE),
        ];
        for (at, mac, flag) in macs {
            if let Some(mac) = mac {
                octets[at..at + 6].copy_from_slice(&mac);
                flags |= flag;
            }
        }
        let addresses = [
            (24, self.destination, records::HOP_DESTINATION),
            (40, self.source, records::HOP_SOURCE),
            (80, only.source, records::ONLY_SOURCE),
        ];
        for (at, address, flag) in addresses {
            if let Some(address) = address {
                octets[at..at + 16].copy_from_slice(&records::octets(address));
                flags |= flag;
            }
        }
        if let Some(address) = self.destination.or(self.source) {
            flags |= if address.is_ipv6() { records::HOP_IPV6 } else { records::HOP_IPV4 };
        }
        if only.interface.is_some() {
            flags |= records::ONLY_INTERFACE;
        }
        let numbers =
            [(12, self.interface), (16, self.port), (20, flags), (76, only.interface.unwrap_or_default())];
        for (at, number) in numbers {
            octets[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        std::array::from_fn(|at| {
            u64::from_le_bytes(octets[at * 8..at * 8 + 8].try_into().expect("eight octets"))
        })
    }
}

/// The rows of all hops. Row 0 is the hop of packets that go nowhere.
#[derive(Debug)]
pub struct Hops {
    words: SharedWords,
    rows: Rows,
    count: u32,
    known: HashMap<Hop, u32>,
    /// Of each row: the hop, and the number of entries that have it.
    used: Vec<(Hop, u32)>,
}

impl Hops {
    /// Room for `limit` hops.
    pub fn new(limit: u32) -> Result<Hops, BpfError> {
        let count = limit + 1;
        Ok(Hops {
            words: SharedWords::new(count as usize * HOP_WORDS * 8)?,
            rows: Rows::new(1, count),
            count,
            known: HashMap::from([(Hop::default(), 0)]),
            used: vec![(Hop::default(), 0); count as usize],
        })
    }

    /// The table, and the number of its rows.
    pub fn memory(&self) -> (&SharedWords, u32) {
        (&self.words, self.count)
    }

    /// The row of a hop, for one entry more.
    pub fn take(&mut self, hop: &Hop, grace: Grace) -> Result<u32, NoLine> {
        let row = match self.known.get(hop) {
            Some(row) => *row,
            None => {
                let later = if self.rows.will_have() { NoLine::Later } else { NoLine::Full };
                let row = self.rows.take(grace).ok_or(later)?;
                let words = &self.words.words()[row as usize * HOP_WORDS..];
                for (word, value) in words.iter().zip(hop.words()) {
                    word.store(value, Release);
                }
                self.known.insert(*hop, row);
                self.used[row as usize] = (*hop, 0);
                row
            }
        };
        self.used[row as usize].1 += 1;
        Ok(row)
    }

    /// One entry less has the hop.
    pub fn give_back(&mut self, row: u32, grace: Grace) {
        let (hop, entries) = &mut self.used[row as usize];
        *entries -= 1;
        if *entries == 0 && row != 0 {
            self.known.remove(hop);
            self.rows.give_back(row, grace);
        }
    }

    /// Hops in use.
    pub fn live(&self) -> usize {
        self.known.len() - 1
    }
}
