//! End Markers after a path switch (TS 23.501 §5.8.2.9). They follow the last packet of the old path.
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
use pktio::owner;

use super::Server;
use super::rules::Rules;
use crate::plan::OuterHeader;

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

impl Server {
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
