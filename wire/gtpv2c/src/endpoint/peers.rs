//! Peers that are watched: when the next Echo Request is due, and their restart counters (TS 23.007 §18).
//!
//! Anybody can forge messages of peers that do not exist, so the list must not fill up with them. A peer that has failed gives
//! its place to a new one: first those that have never answered an Echo Request, as they are probably forged, then those that
//! failed first. A peer that has never answered is forgotten after [`SILENT_INTERVALS`] as well: it has no restart counter, so
//! nothing is lost with it. One that has answered keeps its place as long as there is room, because its sessions are over if
//! it comes back with another counter.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::Config;
use crate::value::Recovery;

/// A peer that has never answered an Echo Request is forgotten when nothing came from it for so many times the time between
/// two of them.
const SILENT_INTERVALS: u32 = 10;

/// A watched peer.
pub struct Peer {
    address: SocketAddr,
    /// The counter that it has confirmed.
    pub restart_counter: Option<Recovery>,
    next_echo: Instant,
    /// Number of Echo Requests that it has not answered yet.
    pub asked: u32,
    /// It is not asked out of turn before this instant: forged messages must not make this side flood the peer.
    next_ask: Instant,
    /// When a message first showed a newer counter, which is not confirmed yet.
    doubted: Option<Instant>,
    /// Since when it does not answer Echo Requests.
    failed: Option<Instant>,
    /// It has answered an Echo Request, so it is no invention.
    proven: bool,
    /// When the last message came from its address, or when its owner last wanted it watched.
    heard: Instant,
}

/// The watched peers.
pub struct Peers {
    most: usize,
    interval: Duration,
    /// Shortest time between two questions out of turn.
    pause: Duration,
    peers: HashMap<IpAddr, Peer>,
    /// `next_echo` of each peer, in order.
    schedule: BTreeSet<(Instant, IpAddr)>,
    /// `proven` and `failed` of each peer that has failed: who gives up its place first.
    failed: BTreeSet<(bool, Instant, IpAddr)>,
}

/// Whether a peer is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// Yes.
    Watched,
    /// Yes; this peer, which has failed, is no longer.
    InsteadOf(IpAddr),
    /// No, there are too many.
    Refused,
}

impl Peers {
    /// No peers.
    pub fn new(config: &Config) -> Self {
        Self {
            most: config.max_peers,
            interval: config.echo_interval,
            pause: config.t3_response,
            peers: HashMap::default(),
            schedule: BTreeSet::new(),
            failed: BTreeSet::new(),
        }
    }

    /// The peer with this address.
    pub fn get(&self, peer: IpAddr) -> Option<&Peer> {
        self.peers.get(&peer)
    }

    /// The peer with this address.
    pub fn get_mut(&mut self, peer: IpAddr) -> Option<&mut Peer> {
        self.peers.get_mut(&peer)
    }

    /// Adds a peer, whose first Echo Request is due at once.
    pub fn add(&mut self, now: Instant, address: SocketAddr) -> Added {
        let ip = address.ip();
        if let Some(peer) = self.peers.get_mut(&ip) {
            peer.heard = now;
            if peer.address != address {
                // It no longer answers at its old port.
                peer.address = address;
                peer.asked = 0;
            }
            return Added::Watched;
        }
        let mut added = Added::Watched;
        if self.peers.len() >= self.most {
            let Some(&(_, _, failed)) = self.failed.first() else { return Added::Refused };
            self.remove(failed);
            added = Added::InsteadOf(failed);
        }
        let peer = Peer {
            address,
            restart_counter: None,
            next_echo: now,
            asked: 0,
            next_ask: now,
            doubted: None,
            failed: None,
            proven: false,
            heard: now,
        };
        self.peers.insert(ip, peer);
        self.schedule.insert((now, ip));
        added
    }

    /// Forgets a peer.
    pub fn remove(&mut self, ip: IpAddr) {
        if let Some(peer) = self.peers.remove(&ip) {
            self.schedule.remove(&(peer.next_echo, ip));
            if let Some(since) = peer.failed {
                self.failed.remove(&(peer.proven, since, ip));
            }
        }
    }

    /// Number of peers.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Notes that a message came from an address. Whether that is a peer's.
    pub fn heard(&mut self, now: Instant, ip: IpAddr) -> bool {
        let Some(peer) = self.peers.get_mut(&ip) else { return false };
        peer.heard = now;
        true
    }

    /// Whether a peer has failed, and nothing has come from its address since.
    pub fn is_silent(&self, ip: IpAddr) -> bool {
        self.peers.get(&ip).is_some_and(|peer| peer.failed.is_some_and(|since| peer.heard < since))
    }

    /// When the next Echo Request is due.
    pub fn next_echo(&self) -> Option<Instant> {
        self.schedule.first().map(|(at, _)| *at)
    }

    /// A peer whose Echo Request is due; the next one is then due an interval later.
    pub fn due(&mut self, now: Instant) -> Option<SocketAddr> {
        let &(at, ip) = self.schedule.first()?;
        if at > now {
            return None;
        }
        self.schedule_echo(ip, now + self.interval);
        Some(self.peers.get(&ip)?.address)
    }

    /// Makes an Echo Request due now, unless one is unanswered, or the last question was just asked.
    pub fn ask(&mut self, now: Instant, ip: IpAddr) {
        let Some(peer) = self.peers.get_mut(&ip).filter(|peer| peer.asked == 0 && peer.next_ask <= now)
        else {
            return;
        };
        peer.next_ask = now + self.pause;
        self.schedule_echo(ip, now);
    }

    /// Notes a counter that nobody has confirmed; `true` when it suggests a restart, so that the peer is to be asked.
    pub fn doubt(&mut self, now: Instant, ip: IpAddr, counter: Recovery) -> bool {
        let Some(peer) = self.peers.get_mut(&ip) else { return false };
        let newer = peer.restart_counter.is_some_and(|known| counter.is_newer(known));
        if newer {
            peer.doubted.get_or_insert(now);
        }
        newer
    }

    /// Notes that an Echo Request was given up; `true` when the peer has thereby failed.
    pub fn unanswered(&mut self, now: Instant, address: SocketAddr) -> bool {
        let longest = self.interval * SILENT_INTERVALS;
        let Some(peer) = self.at(address) else { return false };
        peer.asked = peer.asked.saturating_sub(1);
        let (proven, was_failed) = (peer.proven, peer.failed.is_some());
        if peer.restart_counter.is_none() && now.saturating_duration_since(peer.heard) >= longest {
            self.remove(address.ip());
        } else if !was_failed {
            peer.failed = Some(now);
            self.failed.insert((proven, now, address.ip()));
        }
        !was_failed
    }

    /// Notes that a peer has answered a request; `true` when it had failed. Any answer proves that the peer is alive, so
    /// the next Echo Request can wait.
    pub fn answered(&mut self, now: Instant, address: SocketAddr, echo: bool) -> bool {
        let (ip, next_echo) = (address.ip(), now + self.interval);
        let Some(peer) = self.at(address) else { return false };
        let was_proven = peer.proven;
        if echo {
            peer.asked = peer.asked.saturating_sub(1);
            peer.proven = true;
        }
        let recovered = peer.failed.take();
        if let Some(since) = recovered {
            self.failed.remove(&(was_proven, since, ip));
        }
        self.schedule_echo(ip, next_echo);
        recovered.is_some()
    }

    /// Takes the counter of an Echo Response. When it means a restart: since when that was suspected. An older counter is a
    /// late message and is ignored.
    pub fn confirm(&mut self, now: Instant, address: SocketAddr, counter: Recovery) -> Option<Instant> {
        let peer = self.at(address)?;
        let doubted = peer.doubted.take();
        match peer.restart_counter {
            Some(known) if !counter.is_newer(known) => None,
            known => {
                peer.restart_counter = Some(counter);
                known.map(|_| doubted.unwrap_or(now))
            }
        }
    }

    /// The peer with this address and port.
    fn at(&mut self, address: SocketAddr) -> Option<&mut Peer> {
        self.peers.get_mut(&address.ip()).filter(|peer| peer.address == address)
    }

    fn schedule_echo(&mut self, ip: IpAddr, at: Instant) {
        let Some(peer) = self.peers.get_mut(&ip) else { return };
        self.schedule.remove(&(peer.next_echo, ip));
        peer.next_echo = at;
        self.schedule.insert((at, ip));
    }
}
