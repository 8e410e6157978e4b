//! End Markers after a path switch (TS 23.501 §5.8.2.9). They follow the last packet of the old path.
//!
//! One that another UPF sends goes on towards the UE (TS 23.502 §4.9.1.2): the gNB waits for it. It does so only if nothing else
//! comes to the gNB by the same tunnel: of several branches of an uplink classifier one may end while others go on.
//!
//! An End Marker first waits until no worker holds a packet any more that the old rules send there. The packets have then
//! been given to devices. Where each worker has a queue of its own on the device, which may serve its queues
//! in any order, the End Marker goes through the queue of the worker that owns the packets of the path
//! ([`pktio::owner`]).
//!
//! The packets of one path may have several owners: those to an IPv4 and to an IPv6 address, to routes behind the UE, and
//! frames. The owner of the first PDR then sends the End Marker, and a device may send packets of other owners later.

use std::time::Duration;

use packet::gtpu::Signalling;
use pfcp::{ApplyAction, SourceInterface};
use pktio::owner;

use super::Server;
use super::networks::Networks;
use super::rules::{LocalTunnel, Rules};
use super::session::Sessions;
use crate::plan::{Direction, OuterHeader, Peer};

/// Interval of checks whether all readers of the old rules have finished, while an End Marker waits.
pub(super) const POLL: Duration = Duration::from_millis(1);
/// After this time an End Marker is sent in any case.
const LONGEST_WAIT_MS: u64 = 1000;
/// Most path switches whose End Markers wait.
const MOST: usize = 65_536;

/// An End Marker to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndMarker {
    /// The tunnel of the old path.
    pub tunnel: OuterHeader,
    /// Number of the worker that has sent packets into it.
    pub worker: u32,
}

/// The worker, of `workers`, that sends packets by the FAR with this identifier.
pub(super) fn sender(rules: &Rules, far: u32, workers: u32) -> u32 {
    let Some(pdr) = rules.pdrs.values().find(|pdr| pdr.far_id == Some(far)) else { return 0 };
    match (rules.teid_of(pdr), rules.ue_of(pdr).addresses().next()) {
        (Some(teid), _) => owner::of_tunnel(teid, workers),
        (None, Some(address)) => owner::of_address(address, workers),
        (None, None) => 0,
    }
}

impl Sessions {
    /// The End Marker that follows from one that `peer` has sent into the tunnel with this TEID; `None`: it ends here.
    pub(super) fn onward_end_marker(&self, peer: Peer, teid: u32) -> Option<EndMarker> {
        let rules = &self.get(self.writer.owner_of_teid(teid)?)?.rules;
        let tunnels = Networks::of(rules, &self.interfaces).tunnels_of(rules);
        // Of those who can reach N9 only a UPF of this session can end its packets.
        if !tunnels.iter().flatten().any(|tunnel| tunnel.far_end() == peer) {
            return None;
        }
        let mut ways = rules.pdrs.values().filter_map(|pdr| {
            // What the CP function sends beside the user's packets, such as Router Advertisements, does not count.
            let counts = pdr.direction() == Direction::Downlink && pdr.source != SourceInterface::CpFunction;
            let onward = rules.tunnel_to(pdr, &tunnels).filter(|_| counts)?;
            let forwards = rules.far_of(pdr).is_some_and(|far| far.action.contains(ApplyAction::FORW));
            Some((rules.tunnel_of(pdr), onward, forwards))
        });
        let arrives =
            |tunnel: Option<LocalTunnel>| tunnel == Some(LocalTunnel { teid, interface: peer.interface });
        let (_, tunnel, forwards) = ways.clone().find(|(from, ..)| arrives(*from))?;
        // Its packets must all go there, and no others.
        let alone = forwards && ways.all(|(from, onward, _)| arrives(from) == (onward == tunnel));
        alone.then(|| EndMarker { tunnel, worker: owner::of_tunnel(teid, self.writer.workers()) })
    }
}

impl Server {
    /// Sends an End Marker on, behind the packets that came before it.
    pub(super) fn end_marker(&mut self, peer: Peer, teid: u32) {
        let now_ms = self.moment().ms;
        let onward = self.sessions.onward_end_marker(peer, teid);
        self.send_end_markers(onward.into_iter().collect(), now_ms);
    }

    /// Sends End Markers as soon as they may be sent.
    pub(super) fn send_end_markers(&mut self, markers: Vec<EndMarker>, now_ms: u64) {
        if markers.is_empty() {
            return;
        }
        self.end_markers.push((now_ms, markers));
        self.flush_end_markers(now_ms);
    }

    /// Sends those that may be sent.
    pub(super) fn flush_end_markers(&mut self, now_ms: u64) {
        while let Some((_, markers)) = self.due_end_markers(now_ms) {
            for EndMarker { tunnel, worker } in markers {
                let message = Signalling::EndMarker { teid: tunnel.teid, pdu_session: None };
                self.send_gtpu_behind(worker, tunnel.far_end(), &message);
            }
        }
    }

    /// The next End Markers that may be sent, or have waited for too long: a worker that died in the middle of a
    /// batch must not delay them for ever.
    fn due_end_markers(&mut self, now_ms: u64) -> Option<(u64, Vec<EndMarker>)> {
        let (since_ms, _) = self.end_markers.front()?;
        let waited = now_ms.saturating_sub(*since_ms) >= LONGEST_WAIT_MS;
        if waited || self.end_markers.len() > MOST {
            return self.end_markers.pop();
        }
        self.end_markers.pop_passed()
    }
}
