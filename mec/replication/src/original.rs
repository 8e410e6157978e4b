//! An anchor as the replicator knows it: its sessions by either protocol, how they are listed, and its messages as they were.

use std::net::IpAddr;
use std::time::Instant;

use foldhash::{HashMap, HashSet};
use serde::Serialize;

use crate::history::History;
use crate::n4::usage::Ledger;
use crate::replicator::Protocol;
use crate::session::Session;
use crate::table::Table;
use crate::track::Peers;
use crate::{n4, s11};

/// A session at its original, for people and the orchestrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Counts from 1, in the order of the list.
    pub number: u32,
    /// `imsi-…`, or `seid-…` with the SMF's address and the SEID that it has given.
    pub id: String,
    /// The user's addresses; of IPv6 the prefix.
    pub addresses: Vec<IpAddr>,
    /// The base station that serves it.
    pub base_station: Option<IpAddr>,
    /// `active` or `idle`.
    pub state: &'static str,
    /// Tunnels: TEID at the anchor, and at the base station.
    pub tunnels: Vec<Tunnel>,
    /// Whether it can be made again.
    pub complete: bool,
}

/// A tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Tunnel {
    /// The bearer, or the tunnel's place in the session.
    #[serde(skip)]
    pub id: u8,
    /// TEID at the anchor.
    pub uplink: u32,
    /// TEID at the base station.
    pub downlink: Option<u32>,
    /// Of a dedicated bearer: which datagrams it carries.
    #[serde(skip)]
    pub carries: Option<Datagrams>,
}

/// Datagrams of UDP, both ways, of which a dedicated bearer carries all: with which server, and with which of its ports. Nothing is any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Datagrams {
    /// The server.
    pub server: Option<IpAddr>,
    /// Its port.
    pub port: Option<u16>,
}

/// Follows an anchor's messages, of either protocol.
#[derive(Debug)]
pub(crate) enum Tracker {
    S11(s11::Tracker),
    N4(n4::Tracker),
}

/// Calls a method of either tracker.
macro_rules! of_tracker {
    ($tracker:expr, $name:ident => $do:expr) => {
        match $tracker {
            Tracker::S11($name) => $do,
            Tracker::N4($name) => $do,
        }
    };
}
pub(crate) use of_tracker;

impl Tracker {
    pub(crate) fn new(protocol: Protocol, anchor: IpAddr, most: usize) -> Tracker {
        match protocol {
            Protocol::S11 => Tracker::S11(s11::Tracker::new(anchor, most)),
            Protocol::N4 => Tracker::N4(n4::Tracker::new(anchor, most)),
        }
    }

    pub(crate) fn table(&self) -> &Table {
        of_tracker!(self, tracker => tracker.table())
    }

    pub(crate) fn peers(&self) -> &Peers {
        of_tracker!(self, tracker => tracker.peers())
    }

    pub(crate) fn session(&self, number: u32) -> Option<Session> {
        of_tracker!(self, tracker => tracker.session(number))
    }

    pub(crate) fn protocol(&self) -> Protocol {
        if matches!(self, Tracker::S11(_)) { Protocol::S11 } else { Protocol::N4 }
    }

    /// Until when sessions that the anchor has lost are waited for, if there may be some.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        match self {
            Tracker::S11(_) => None,
            Tracker::N4(tracker) => tracker.waits_until(),
        }
    }

    /// Whether P-GWs of sessions may be apart.
    pub(crate) fn may_be_apart(&self) -> bool {
        matches!(self, Tracker::S11(tracker) if tracker.may_be_apart())
    }

    /// The SMF of a session on N4, as that names itself (CP F-SEID). Another one of its set may go on with the session.
    fn smf(&self, session: &Session) -> Option<IpAddr> {
        n4::smf(&session.requests).or_else(|| self.peers().address(session.peer))
    }

    /// Ends of a session's tunnels at base stations.
    fn stations(&self, session: &Session) -> Vec<(u8, u32, IpAddr)> {
        match self {
            Tracker::S11(_) => s11::stations(&session.requests),
            Tracker::N4(_) => n4::stations(&session.requests),
        }
    }

    /// The base station that serves a user, or has done so before the user was idle.
    pub(crate) fn last_station(&self, number: u32) -> Option<IpAddr> {
        self.stations(&self.session(number)?).first().map(|(.., address)| *address)
    }

    pub(crate) fn listed(&self, number: u32) -> Option<Listed> {
        let session = self.session(number)?;
        let has_way_back = match self {
            Tracker::S11(tracker) => tracker.ways_back(&session).is_none_or(|ways| ways.is_some()),
            Tracker::N4(_) => true,
        };
        let id = match self {
            Tracker::S11(_) => {
                let imsi = s11::imsi(session.subject);
                imsi.map_or_else(
                    || format!("subject-{:016x}", session.subject),
                    |imsi| format!("imsi-{imsi}"),
                )
            }
            // Each SMF counts its SEIDs for itself.
            Tracker::N4(_) => match self.smf(&session) {
                Some(smf) => format!("seid-{smf}-{:x}", session.subject),
                None => format!("seid-{:x}", session.subject),
            },
        };
        let stations = self.stations(&session);
        let downlink = |id: u8| {
            let end = stations.iter().find(|(known, ..)| *known == id).filter(|_| !session.idle);
            end.map(|(_, teid, _)| *teid)
        };
        let dedicated = match self {
            Tracker::S11(_) => s11::dedicated(&session.requests),
            Tracker::N4(_) => Vec::new(),
        };
        let tunnel = |bearer: &crate::record::Bearer| Tunnel {
            id: bearer.id,
            uplink: bearer.uplink,
            downlink: downlink(bearer.id),
            carries: dedicated.iter().find(|(id, _)| *id == bearer.id).map(|(_, datagrams)| *datagrams),
        };
        Some(Listed {
            number: number + 1,
            id,
            addresses: session.bearers.iter().flat_map(crate::record::addresses_of).collect(),
            base_station: stations.first().map(|(.., address)| *address).filter(|_| !session.idle),
            state: if session.idle { "idle" } else { "active" },
            tunnels: session.bearers.iter().map(tunnel).collect(),
            complete: !session.incomplete && has_way_back,
        })
    }
}

/// An anchor with its sessions.
#[derive(Debug)]
pub(crate) struct Original {
    pub(crate) tracker: Tracker,
    pub(crate) history: History,
    /// Usage of sessions that have reported some.
    ledgers: HashMap<u32, Ledger>,
    changed_ledgers: HashSet<u32>,
    /// Sessions that were followed by an earlier controller, without their ledgers.
    unsure: HashSet<u32>,
    /// Sessions whose reports have other numbers at the SMF than at the original.
    pub(crate) apart: HashSet<u32>,
}

/// Sessions of a name: an address, or as they are listed; `seid-…` without its SMF is that of any.
pub(crate) fn find(source: &Original, name: &str) -> Vec<u32> {
    let table = source.tracker.table();
    if let Ok(address) = name.parse::<IpAddr>() {
        return table.all_by_address(address.to_canonical()).collect();
    }
    let named = || match (source.tracker.protocol(), name.split_once('-')?) {
        (Protocol::S11, ("imsi", digits)) => Some((s11::subject(&digits.parse().ok()?), None)),
        (Protocol::S11, ("subject", subject)) => Some((u64::from_str_radix(subject, 16).ok()?, None)),
        (Protocol::N4, ("seid", rest)) => {
            let (smf, seid) = match rest.rsplit_once('-') {
                Some((smf, seid)) => (Some(smf.parse().ok()?), seid),
                None => (None, rest),
            };
            Some((u64::from_str_radix(seid, 16).ok()?, smf))
        }
        _ => None,
    };
    let Some((subject, smf)) = named() else { return Vec::new() };
    let of_smf = |number: u32| source.tracker.session(number).and_then(|of| source.tracker.smf(&of));
    table.all_of_subject(subject).filter(|number| smf.is_none() || of_smf(*number) == smf).collect()
}

impl Original {
    pub(crate) fn new(tracker: Tracker) -> Original {
        let (history, ledgers, changed_ledgers, unsure, apart) = Default::default();
        Original { tracker, history, ledgers, changed_ledgers, unsure, apart }
    }

    /// Of a session whose P-GW is apart: how that one learns again of its first S-GW, if that is known.
    pub(crate) fn ways_back(&self, number: u32) -> Option<Option<s11::relocation::Told>> {
        match &self.tracker {
            Tracker::S11(tracker) if tracker.may_be_apart() => tracker.ways_back(&tracker.session(number)?),
            _ => None,
        }
    }

    /// Takes up ledgers that were kept, after the tracker.
    pub(crate) fn restore(&mut self, ledgers: Vec<(u32, Ledger)>) {
        if self.tracker.protocol() == Protocol::N4 {
            self.unsure.extend(self.tracker.table().numbers());
        }
        for (number, ledger) in ledgers {
            self.unsure.remove(&number);
            if ledger.is_apart() {
                self.apart.insert(number);
            }
            self.ledgers.insert(number, ledger);
        }
    }

    /// Works on the ledger of a session.
    pub(crate) fn with_ledger<T>(&mut self, number: u32, work: impl FnOnce(&mut Ledger) -> T) -> T {
        let is_unsure = self.unsure.contains(&number);
        let ledger = self.ledgers.entry(number).or_insert_with(|| Ledger::new(is_unsure));
        let done = work(ledger);
        if ledger.is_apart() {
            self.apart.insert(number);
        } else {
            self.apart.remove(&number);
        }
        if ledger.is_empty() {
            self.ledgers.remove(&number);
        }
        self.changed_ledgers.insert(number);
        done
    }

    /// A session is gone, or another one is at its number; its ledger.
    pub(crate) fn session_ended(&mut self, number: u32) -> Ledger {
        let is_unsure = self.unsure.remove(&number);
        self.apart.remove(&number);
        match self.ledgers.remove(&number) {
            Some(ledger) => {
                self.changed_ledgers.insert(number);
                ledger
            }
            None => Ledger::new(is_unsure),
        }
    }

    /// The anchor has a session anew that it had lost; reports of clones that can be told now.
    pub(crate) fn restored(&mut self, number: u32) -> Vec<Vec<u8>> {
        self.unsure.remove(&number);
        self.with_ledger(number, Ledger::begins_anew)
    }

    /// Copies of these sessions have come or gone, which decides whether their ledgers are kept.
    pub(crate) fn copies_changed(&mut self, numbers: &std::collections::HashSet<u32>) {
        let ledgers = &self.ledgers;
        self.changed_ledgers.extend(numbers.iter().filter(|number| ledgers.contains_key(number)));
    }

    /// Ledgers that have changed since the last time; `None`: there is none any more. Those of sessions without copies are not kept, as they
    /// differ from the original's own numbers in nothing.
    pub(crate) fn changed_ledgers(
        &mut self,
        has_copy: impl Fn(&u32) -> bool,
    ) -> impl Iterator<Item = (u32, Option<&Ledger>)> {
        let changed = std::mem::take(&mut self.changed_ledgers);
        let (ledgers, apart) = (&self.ledgers, &self.apart);
        changed.into_iter().map(move |number| {
            (number, ledgers.get(&number).filter(|_| apart.contains(&number) || has_copy(&number)))
        })
    }
}
