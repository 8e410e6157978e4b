//! What callers say: keys, entries and changes.

use std::net::IpAddr;

use packet::ethernet::Mac;

use super::records::{self, INSIDE_KEY};

/// Which packets an entry is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// G-PDUs of a tunnel. The destination is that of the packet as it comes, and has to be an anchor
    /// ([`Steer::add_anchor`](super::Steer::add_anchor)).
    Tunnel(Tunnel),
    /// Those of its packets with these inner fields. The tunnel needs an entry of its own, which is for its other packets.
    Inside(Tunnel, Inside),
    /// G-PDUs without an entry for their tunnel, by link-layer addresses. An entry for both precedes one for any source.
    Frame {
        /// The frame's source; `None` for any.
        source: Option<Mac>,
        /// The frame's destination.
        destination: Mac,
    },
}

/// A tunnel: a TEID is unique for an address only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tunnel {
    /// The outer destination.
    pub destination: IpAddr,
    /// The TEID in the header.
    pub teid: u32,
}

/// Inner fields. Where entries with different sets of fields match, the set that is named first here decides. Ports are those of
/// TCP, UDP and SCTP; for other protocols they are 0. Where a tunnel has entries with ports, its fragments go to the host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Inside {
    /// A flow: protocol, addresses and ports.
    Flow(u8, (IpAddr, u16), (IpAddr, u16)),
    /// What goes to a service: protocol, destination and its port.
    Service(u8, IpAddr, u16),
    /// What comes from a service or client: protocol, source and its port.
    Client(u8, IpAddr, u16),
    /// What goes to an address.
    Destination(IpAddr),
    /// What comes from an address.
    Source(IpAddr),
    /// All packets of IPv6 (`true`) or IPv4.
    Family(bool),
}

impl Inside {
    /// The number of the set of fields.
    pub(super) fn set(&self) -> usize {
        match self {
            Inside::Flow(..) => 0,
            Inside::Service(..) => 1,
            Inside::Client(..) => 2,
            Inside::Destination(_) => 3,
            Inside::Source(_) => 4,
            Inside::Family(_) => 5,
        }
    }

    /// The octets of `struct inside_key`; `None` when its addresses are of different families.
    pub(super) fn key(&self, line: u32) -> Option<[u8; INSIDE_KEY]> {
        let (protocol, source, destination) = match *self {
            Inside::Flow(protocol, source, destination) => (protocol, Some(source), Some(destination)),
            Inside::Service(protocol, address, port) => (protocol, None, Some((address, port))),
            Inside::Client(protocol, address, port) => (protocol, Some((address, port)), None),
            Inside::Destination(address) => (0, None, Some((address, 0))),
            Inside::Source(address) => (0, Some((address, 0)), None),
            Inside::Family(_) => (0, None, None),
        };
        let ipv6 = match (source, destination, self) {
            (Some((a, _)), Some((b, _)), _) if a.is_ipv6() != b.is_ipv6() => return None,
            (Some((address, _)), ..) | (_, Some((address, _)), _) => address.is_ipv6(),
            (.., Inside::Family(ipv6)) => *ipv6,
            _ => false,
        };
        let mut key = [0; INSIDE_KEY];
        key[..4].copy_from_slice(&line.to_ne_bytes());
        (key[4], key[5], key[6]) = (self.set() as u8, if ipv6 { 6 } else { 4 }, protocol);
        if let Some((address, port)) = source {
            key[8..10].copy_from_slice(&port.to_be_bytes());
            key[12..28].copy_from_slice(&records::octets(address));
        }
        if let Some((address, port)) = destination {
            key[10..12].copy_from_slice(&port.to_be_bytes());
            key[28..44].copy_from_slice(&records::octets(address));
        }
        Some(key)
    }
}

/// What becomes of the packets of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// Which of them the entry is for. The host decides on the others.
    pub only: Only,
    /// What is done with them.
    pub action: Action,
}

/// Fields outside the key that packets must have; `None`: any value.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Only {
    /// Index of the interface that they come from.
    pub interface: Option<u32>,
    /// Their outer source.
    pub source: Option<IpAddr>,
    /// Their source on the link.
    pub eth_source: Option<Mac>,
    /// Their destination on the link.
    pub eth_destination: Option<Mac>,
}

/// What is done with packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Changed as it says, and sent.
    Forward(Forward),
    /// On to the next part of the chain, as they came; not counted here.
    Host,
    /// Dropped, and counted.
    Drop,
}

/// How packets are changed, and where they go; what is `None` stays as it is. TTL, DSCP, ECN, flags, sequence numbers and
/// extension headers always stay; checksums are mended, and an outer UDP checksum of 0 stays 0.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct Forward {
    /// Index of the interface; it has to be a port ([`Steer::add_port`](super::Steer::add_port)).
    pub interface: u32,
    /// Destination on the link.
    pub eth_destination: Option<Mac>,
    /// Source on the link.
    pub eth_source: Option<Mac>,
    /// Outer destination.
    pub destination: Option<IpAddr>,
    /// Outer source.
    pub source: Option<IpAddr>,
    /// TEID.
    pub teid: Option<u32>,
    /// An inner address. Packets of the other IP version go to the host.
    pub inner: Option<Inner>,
    /// Whether it holds for the tunnel's End Markers too; else they go to the host.
    pub end_markers: bool,
}

/// An inner address that is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Inner {
    /// The source.
    Source(IpAddr),
    /// The destination.
    Destination(IpAddr),
}

/// A change of the entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds the entry, or replaces what it says.
    Set(Key, Entry),
    /// Removes the entry, if there is one.
    Remove(Key),
}

/// What an entry has counted since it was added.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Octets of their frames.
    pub octets: u64,
}
