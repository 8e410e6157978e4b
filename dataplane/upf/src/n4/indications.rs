//! Error Indications of GTP-U peers (TS 29.281 §7.3.1) before a CP function is told of them.
//!
//! Anyone can send one, and the session that it names loses its user plane. So the pipeline takes them only from the
//! address that the tunnel leads to, and here the peer is asked by an Echo Request, whose sequence number nobody can
//! foresee: a peer that is not there, or not a GTP-U node, has not complained.

use std::net::IpAddr;

use foldhash::HashMap;

use super::path::Timing;
use crate::random::Draw;

/// Peers that are asked at once, at most; what others say is lost, and they say it again with our next packet.
const MAX_PEERS: usize = 1024;
/// Tunnels of one peer that wait for its answer, at most: a gNB that has restarted knows none of its tunnels.
const MAX_TUNNELS: usize = 16_384;

/// Tunnels that a peer does not know, until it has answered.
#[derive(Debug)]
struct Waiting {
    sequence: u16,
    sent: u8,
    due_ms: u64,
    teids: Vec<u32>,
}

/// Error Indications that wait for an Echo Response.
#[derive(Debug)]
pub struct Indications {
    timing: Timing,
    draw: Draw,
    peers: HashMap<IpAddr, Waiting>,
}

impl Indications {
    /// None yet. Sequence numbers are drawn under `secret`.
    pub fn new(timing: Timing, secret: u64) -> Indications {
        Indications { timing, draw: Draw::new(secret), peers: HashMap::default() }
    }

    /// A peer says that it does not know a tunnel. Returns the sequence number of the Echo Request to send, if it has not
    /// been asked yet.
    pub fn came(&mut self, peer: IpAddr, teid: u32, now_ms: u64) -> Option<u16> {
        if let Some(waiting) = self.peers.get_mut(&peer) {
            if waiting.teids.len() < MAX_TUNNELS && !waiting.teids.contains(&teid) {
                waiting.teids.push(teid);
            }
            return None;
        }
        if self.peers.len() >= MAX_PEERS {
            return None;
        }
        let sequence = self.draw.number() as u16;
        let due_ms = now_ms + self.timing.t3_ms;
        self.peers.insert(peer, Waiting { sequence, sent: 1, due_ms, teids: vec![teid] });
        Some(sequence)
    }

    /// A peer has answered an Echo Request: the tunnels that it does not know.
    pub fn answered(&mut self, peer: IpAddr, sequence: u16) -> Vec<u32> {
        if self.peers.get(&peer).is_none_or(|waiting| waiting.sequence != sequence) {
            return Vec::new();
        }
        self.peers.remove(&peer).map_or_else(Vec::new, |waiting| waiting.teids)
    }

    /// When to call [`Indications::poll`].
    pub fn next_ms(&self) -> Option<u64> {
        self.peers.values().map(|waiting| waiting.due_ms).min()
    }

    /// Repeats Echo Requests, and forgets what peers that do not answer have said.
    pub fn poll(&mut self, now_ms: u64) -> Vec<(IpAddr, u16)> {
        let Timing { t3_ms, n3, .. } = self.timing;
        let mut echoes = Vec::new();
        self.peers.retain(|peer, waiting| {
            if waiting.due_ms > now_ms {
                return true;
            }
            if waiting.sent >= n3 {
                return false;
            }
            waiting.sent += 1;
            waiting.due_ms = now_ms + t3_ms;
            echoes.push((*peer, waiting.sequence));
            true
        });
        echoes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing { interval_ms: 60_000, t3_ms: 100, n3: 2 };

    #[test]
    fn a_peer_is_asked_once_and_only_its_answer_counts() {
        let mut indications = Indications::new(TIMING, 1);
        let (gnb, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let sequence = indications.came(gnb, 7, 0).unwrap();
        assert_eq!((indications.came(gnb, 8, 1), indications.came(gnb, 7, 1)), (None, None));
        assert!(indications.answered(gnb, sequence.wrapping_add(1)).is_empty());
        assert!(indications.answered(other, sequence).is_empty());
        assert_eq!(indications.poll(100), [(gnb, sequence)]);
        assert_eq!(indications.answered(gnb, sequence), [7, 8]);
        assert!(indications.answered(gnb, sequence).is_empty(), "once");
        assert_eq!(indications.next_ms(), None);
    }

    #[test]
    fn what_a_silent_peer_is_said_to_have_said_is_forgotten() {
        let mut indications = Indications::new(TIMING, 1);
        let gnb = IpAddr::from([10, 0, 0, 1]);
        let sequence = indications.came(gnb, 7, 0).unwrap();
        assert_eq!((indications.poll(100).len(), indications.poll(200).len()), (1, 0));
        assert!(indications.answered(gnb, sequence).is_empty());
        for n in 0..3000u32 {
            indications.came(IpAddr::from(n.to_be_bytes()), 1, 300);
        }
        assert_eq!(indications.poll(400).len(), MAX_PEERS);
    }
}
