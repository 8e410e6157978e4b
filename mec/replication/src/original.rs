//! An anchor as the replicator knows it: its sessions by either protocol, how they are listed, and its messages as they were.

use std::net::IpAddr;

use foldhash::HashMap;
use serde::Serialize;

use crate::replicator::Protocol;
use crate::session::Session;
use crate::table::Table;
use crate::track::{Effect, Peers};
use crate::{n4, s11};

/// Most messages of a user that are kept as they were. Whoever has more is left out of naïve replication.
const MAX_RAW: usize = 256;

/// A session at its original, for people and the orchestrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Counts from 1, in the order of the list.
    pub number: u32,
    /// `imsi-…` or `seid-…`.
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

    pub(crate) fn listed(&self, number: u32) -> Option<Listed> {
        let session = self.session(number)?;
        let (id, stations) = match self {
            Tracker::S11(_) => {
                let imsi = s11::imsi(session.subject);
                let id = imsi.map_or_else(
                    || format!("subject-{:016x}", session.subject),
                    |imsi| format!("imsi-{imsi}"),
                );
                (id, s11::stations(&session.requests))
            }
            Tracker::N4(_) => (format!("seid-{:016x}", session.subject), n4::stations(&session.requests)),
        };
        let downlink = |id: u8| {
            let end = stations.iter().find(|(known, ..)| *known == id).filter(|_| !session.idle);
            end.map(|(_, teid, _)| *teid)
        };
        let tunnel = |bearer: &crate::record::Bearer| Tunnel {
            id: bearer.id,
            uplink: bearer.uplink,
            downlink: downlink(bearer.id),
        };
        Some(Listed {
            number: number + 1,
            id,
            addresses: session.bearers.iter().flat_map(crate::record::addresses_of).collect(),
            base_station: stations.first().map(|(.., address)| *address).filter(|_| !session.idle),
            state: if session.idle { "idle" } else { "active" },
            tunnels: session.bearers.iter().map(tunnel).collect(),
            complete: !session.incomplete,
        })
    }
}

/// Messages of a user as they were, each with its place among all.
type Raw = Vec<(u64, IpAddr, Vec<u8>)>;

/// An anchor with its sessions.
#[derive(Debug)]
pub(crate) struct Original {
    pub(crate) tracker: Tracker,
    pub(crate) raw: HashMap<u32, Raw>,
    pub(crate) raw_octets: usize,
    order: u64,
    /// Control planes that are kept.
    pub(crate) kept_peers: usize,
}

/// The session of a name: an address, or as it is listed.
pub(crate) fn find(source: &Original, name: &str) -> Option<u32> {
    let table = source.tracker.table();
    if let Ok(address) = name.parse() {
        return table.by_address(address);
    }
    let subject = match (source.tracker.protocol(), name.split_once('-')?) {
        (Protocol::S11, ("imsi", digits)) => s11::subject(&digits.parse().ok()?),
        (Protocol::N4, ("seid", seid)) => u64::from_str_radix(seid, 16).ok()?,
        _ => return None,
    };
    table.of_subject(subject)
}

impl Original {
    pub(crate) fn new(tracker: Tracker) -> Original {
        Original { tracker, raw: HashMap::default(), raw_octets: 0, order: 0, kept_peers: 0 }
    }

    pub(crate) fn keep(&mut self, control: IpAddr, effect: &Effect) {
        let (number, request, begins) = match effect {
            Effect::Began { number, request } => (*number, request, true),
            Effect::Changed { number, request, is_asked: true } => (*number, request, false),
            Effect::Ended(number) => {
                self.raw_octets -= octets_of(self.raw.remove(number));
                return;
            }
            _ => return,
        };
        if begins {
            self.raw_octets -= octets_of(self.raw.remove(&number));
        }
        let of_user = match begins {
            true => self.raw.entry(number).or_default(),
            // Without its beginning a history is of no use.
            false => match self.raw.get_mut(&number) {
                Some(of_user) => of_user,
                None => return,
            },
        };
        self.order += 1;
        self.raw_octets += request.len();
        of_user.push((self.order, control, request.clone()));
        if of_user.len() > MAX_RAW {
            self.raw_octets -= octets_of(self.raw.remove(&number));
        }
    }
}

fn octets_of(raw: Option<Raw>) -> usize {
    raw.into_iter().flatten().map(|(.., octets)| octets.len()).sum()
}
