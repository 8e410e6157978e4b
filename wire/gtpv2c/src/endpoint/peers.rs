//! Peers that are watched: when the next Echo Request is due, and their restart counters (TS 23.007 §18).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use foldhash::HashMap;

use super::Config;
use crate::value::Recovery;

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
    failed: bool,
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

    /// Adds a peer, whose first Echo Request is due at once. `false` when there are too many.
    pub fn add(&mut self, now: Instant, address: SocketAddr) -> bool {
        let ip = address.ip();
        if let Some(peer) = self.peers.get_mut(&ip) {
            if peer.address != address {
                // It no longer answers at its old port.
                peer.address = address;
                peer.asked = 0;
            }
            return true;
        }
        if self.peers.len() >= self.most {
            return false;
        }
        let peer = Peer {
            address,
            restart_counter: None,
            next_echo: now,
            asked: 0,
            next_ask: now,
            doubted: None,
            failed: false,
        };
        self.peers.insert(ip, peer);
        self.schedule.insert((now, ip));
        true
    }

    /// Forgets a peer.
    pub fn remove(&mut self, peer: IpAddr) {
        if let Some(removed) = self.peers.remove(&peer) {
            self.schedule.remove(&(removed.next_echo, peer));
        }
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
    pub fn unanswered(&mut self, address: SocketAddr) -> bool {
        let Some(peer) = self.at(address) else { return false };
        peer.asked = peer.asked.saturating_sub(1);
        !std::mem::replace(&mut peer.failed, true)
    }

    /// Notes that a peer has answered a request; `true` when it had failed. Any answer proves that the peer is alive, so
    /// the next Echo Request can wait.
    pub fn answered(&mut self, now: Instant, address: SocketAddr, echo: bool) -> bool {
        let next_echo = now + self.interval;
        let Some(peer) = self.at(address) else { return false };
        if echo {
            peer.asked = peer.asked.saturating_sub(1);
        }
        let recovered = std::mem::take(&mut peer.failed);
        self.schedule_echo(address.ip(), next_echo);
        recovered
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
