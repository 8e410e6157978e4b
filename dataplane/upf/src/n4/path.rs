//! Path management (TS 29.281 §7.2.1, TS 23.527 §5.2), for each interface with tunnels. GTP-U peers get Echo Requests at intervals. A peer that
//! does not answer is reported to the CP functions, and again when it does (TS 29.244 §7.4.5.1).

use foldhash::HashMap;

use crate::plan::Peer;
use crate::random::Draw;

/// Timers of path management.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Interval of Echo Requests to a peer; TS 29.281 §7.2.1 requires at least 60 s.
    pub interval_ms: u64,
    /// T3-RESPONSE: time until an unanswered request is repeated.
    pub t3_ms: u64,
    /// N3-REQUESTS: how often a request is sent at most.
    pub n3: u8,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { interval_ms: 60_000, t3_ms: 3_000, n3: 3 }
    }
}

/// Most peers that are watched; packets to further peers are sent without path management.
const MAX_PEERS: usize = 65_536;

#[derive(Debug)]
struct Path {
    /// Number of tunnels that lead to the peer.
    users: u32,
    due_ms: u64,
    sent: u8,
    failed: bool,
    sequence: u16,
}

/// The work that [`Paths::poll`] returns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Echo Requests to send, with their sequence numbers.
    pub echoes: Vec<(Peer, u16)>,
    /// Peers that have just failed.
    pub failed: Vec<Peer>,
}

/// The GTP-U peers to which tunnels lead.
#[derive(Debug)]
pub struct Paths {
    timing: Timing,
    draw: Draw,
    peers: HashMap<Peer, Path>,
    /// When the first peer is due; may be too early, but not too late.
    next_ms: Option<u64>,
}

impl Paths {
    /// No peers. `secret` makes sequence numbers unpredictable.
    pub fn new(timing: Timing, secret: u64) -> Paths {
        Paths { timing, draw: Draw::new(secret), peers: HashMap::default(), next_ms: None }
    }

    /// Counts a new tunnel to `peer`.
    pub fn join(&mut self, peer: Peer, now_ms: u64) {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&peer) {
            return;
        }
        let due_ms = now_ms + self.timing.interval_ms;
        let new = Path { users: 0, due_ms, sent: 0, failed: false, sequence: 0 };
        self.peers.entry(peer).or_insert(new).users += 1;
        self.next_ms = Some(self.next_ms.map_or(due_ms, |next| next.min(due_ms)));
    }

    /// Counts the end of a tunnel to `peer`.
    pub fn leave(&mut self, peer: Peer) {
        if let Some(known) = self.peers.get_mut(&peer) {
            known.users = known.users.saturating_sub(1);
            if known.users == 0 {
                self.peers.remove(&peer);
            }
        }
    }

    /// When to call [`Paths::poll`].
    pub fn next_ms(&self) -> Option<u64> {
        self.next_ms
    }

    /// Whether a peer has failed.
    pub fn failed(&self, peer: Peer) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.failed)
    }

    /// Sends and repeats Echo Requests; detects failed peers.
    pub fn poll(&mut self, now_ms: u64) -> Due {
        let mut due = Due::default();
        if self.next_ms.is_none_or(|next| next > now_ms) {
            return due;
        }
        let Timing { interval_ms, t3_ms, n3 } = self.timing;
        for (address, peer) in &mut self.peers {
            if peer.due_ms > now_ms {
                continue;
            }
            if peer.sent < n3 {
                if peer.sent == 0 {
                    peer.sequence = self.draw.number() as u16;
                }
                peer.sent += 1;
                peer.due_ms = now_ms + t3_ms;
                due.echoes.push((*address, peer.sequence));
            } else {
                peer.sent = 0;
                peer.due_ms = now_ms + interval_ms;
                if !std::mem::replace(&mut peer.failed, true) {
                    due.failed.push(*address);
                }
            }
        }
        self.next_ms = self.peers.values().map(|peer| peer.due_ms).min();
        due
    }

    /// Handles an Echo Response. Returns whether the peer had failed. A response without a matching request is
    /// ignored.
    pub fn answered(&mut self, address: Peer, sequence: u16, now_ms: u64) -> bool {
        let peer = self.peers.get_mut(&address);
        let Some(peer) = peer.filter(|peer| peer.sent > 0 && peer.sequence == sequence) else {
            return false;
        };
        peer.sent = 0;
        peer.due_ms = now_ms + self.timing.interval_ms;
        std::mem::take(&mut peer.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Peer =
        Peer { interface: 0, address: std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)) };

    fn echoes(paths: &mut Paths, at: u64) -> usize {
        paths.poll(at).echoes.len()
    }

    #[test]
    fn a_silent_peer_fails_once_and_recovers() {
        let mut paths = Paths::new(Timing { interval_ms: 1000, t3_ms: 100, n3: 2 }, 1);
        paths.join(A, 0);
        paths.join(A, 500);
        assert_eq!((paths.next_ms(), echoes(&mut paths, 999), echoes(&mut paths, 1000)), (Some(1000), 0, 1));
        assert_eq!(echoes(&mut paths, 1100), 1, "repeated after T3");
        assert_eq!(paths.poll(1200), Due { echoes: vec![], failed: vec![A] });
        // The peer still gets Echo Requests, but is not reported again.
        assert_eq!((echoes(&mut paths, 2200), echoes(&mut paths, 2300)), (1, 1));
        assert_eq!(paths.poll(2400), Due::default());
        let asked = paths.poll(3400).echoes[0].1;
        assert!(!paths.answered(A, asked.wrapping_add(1), 3450), "not our question");
        assert!(paths.failed(A) && paths.answered(A, asked, 3450) && !paths.failed(A));
        assert!(!paths.answered(A, asked, 3450), "recovers once");
        assert_eq!((echoes(&mut paths, 4400), echoes(&mut paths, 4450)), (0, 1));
        paths.leave(A);
        paths.leave(A);
        assert_eq!((echoes(&mut paths, 99_999), paths.next_ms()), (0, None), "nobody uses it any more");
    }
}
