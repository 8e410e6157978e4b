//! Error Indications of GTP-U peers (TS 29.281 §7.3.1), which are confirmed before a CP function is told.
//!
//! Anyone can send an Error Indication, and the session that it names then loses its user plane. So the
//! pipeline accepts them only from the address to which the tunnel leads, and this module confirms them with an
//! Echo Request to the peer, whose sequence number cannot be guessed. Without an answer the Error Indication is
//! ignored.
//!
//! This keeps out Error Indications in the name of peers that do not exist or do not answer. The Echo Response
//! says nothing about the tunnel: an Error Indication with the forged address of a healthy peer is accepted if it
//! names the TEID of a tunnel to that peer. The TEID has 32 bits and is chosen by the peer; a sender who does not
//! see N3 must guess it. Only IPsec on N3 (TS 33.501 §9.3) keeps out a sender who sees it.

use foldhash::HashMap;

use super::path::Timing;
use crate::plan::Peer;
use crate::random::Draw;

/// Most peers that are asked at once. Error Indications of further peers are lost; these peers repeat them when
/// they get the next packet.
const MAX_PEERS: usize = 1024;
/// Most tunnels of one peer that wait for its answer: a gNB that has restarted knows none of its tunnels.
const MAX_TUNNELS: usize = 16_384;

/// Tunnels that a peer does not know; kept until it has answered.
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
    peers: HashMap<Peer, Waiting>,
}

impl Indications {
    /// No Error Indications. `secret` makes sequence numbers unpredictable.
    pub fn new(timing: Timing, secret: u64) -> Indications {
        Indications { timing, draw: Draw::new(secret), peers: HashMap::default() }
    }

    /// Handles an Error Indication. Returns the sequence number of the Echo Request to send, unless the peer
    /// has been asked already.
    pub fn received(&mut self, peer: Peer, teid: u32, now_ms: u64) -> Option<u16> {
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

    /// Handles an Echo Response: returns the tunnels that the peer does not know.
    pub fn answered(&mut self, peer: Peer, sequence: u16) -> Vec<u32> {
        if self.peers.get(&peer).is_none_or(|waiting| waiting.sequence != sequence) {
            return Vec::new();
        }
        self.peers.remove(&peer).map_or_else(Vec::new, |waiting| waiting.teids)
    }

    /// When to call [`Indications::poll`].
    pub fn next_ms(&self) -> Option<u64> {
        self.peers.values().map(|waiting| waiting.due_ms).min()
    }

    /// Repeats Echo Requests; forgets the Error Indications of peers that do not answer.
    pub fn poll(&mut self, now_ms: u64) -> Vec<(Peer, u16)> {
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

    fn at(address: [u8; 4]) -> Peer {
        Peer { interface: 0, address: address.into() }
    }

    const TIMING: Timing = Timing { interval_ms: 60_000, t3_ms: 100, n3: 2 };

    #[test]
    fn a_peer_is_asked_once_and_only_its_answer_counts() {
        let mut indications = Indications::new(TIMING, 1);
        let (gnb, other) = (at([10, 0, 0, 1]), at([10, 0, 0, 2]));
        let sequence = indications.received(gnb, 7, 0).unwrap();
        assert_eq!((indications.received(gnb, 8, 1), indications.received(gnb, 7, 1)), (None, None));
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
        let gnb = at([10, 0, 0, 1]);
        let sequence = indications.received(gnb, 7, 0).unwrap();
        assert_eq!((indications.poll(100).len(), indications.poll(200).len()), (1, 0));
        assert!(indications.answered(gnb, sequence).is_empty());
        for n in 0..3000u32 {
            indications.received(at(n.to_be_bytes()), 1, 300);
        }
        assert_eq!(indications.poll(400).len(), MAX_PEERS);
    }
}
