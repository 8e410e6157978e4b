//! From F1-U to N3: PDCP, SDAP, QoS flow.

use l2::pdcp::{Discard, Verdict};
use l2::sdap;
use packet::gtpu::{self, PduSession};
use path::Ports;
use pktio::frame::NO_PEER;
use pktio::{FrameMut, Vector};
use telemetry::DropReason;

use super::bearer::{Bearer, End, Up};
use super::stats::{BearerStats, Stats, Way};
use super::{Relay, send_all};

impl Up {
    /// Makes the frame, an SDAP PDU, an IP packet on its way to the UPF; `false` if it was a control PDU.
    #[inline(always)]
    fn forward(&self, frame: &mut FrameMut<'_>, counts: (&Stats, &BearerStats)) -> Result<bool, DropReason> {
        let mut qfi = self.qfi;
        if self.header {
            let Some(first) = frame.packet().first().copied() else { return Err(DropReason::PdcpMalformed) };
            match sdap::Uplink::decode(first) {
                sdap::Uplink::Data(flow) => qfi = flow.value(),
                sdap::Uplink::EndMarker(_) => {
                    // The flow has moved to another bearer (TS 37.324 §5.2.2): order between bearers is not kept here.
                    counts.0.sdap_control.add(1);
                    return Ok(false);
                }
            }
            frame.trim_front(sdap::HEADER_LEN);
            if self.flows >> qfi & 1 == 0 {
                return Err(DropReason::NoBearer);
            }
        }
        let octets = frame.len();
        let container = Some(PduSession::Uplink { qfi });
        let written = gtpu::encapsulate(frame.headroom(), self.upf.teid, octets, container);
        if !written.is_some_and(|written| frame.grow_front(written)) {
            return Err(DropReason::TooBig);
        }
        frame.send_to(self.upf.peer);
        counts.1.traffic.uplink.count(octets);
        Ok(true)
    }
}

/// Why a PDU does not go on.
fn reason(discard: Discard) -> DropReason {
    match discard {
        Discard::Malformed => DropReason::PdcpMalformed,
        Discard::IntegrityFailure => DropReason::PdcpIntegrity,
        Discard::Duplicate | Discard::Stale => DropReason::PdcpStale,
        Discard::NoRoom => DropReason::PdcpOverflow,
    }
}

impl Relay {
    /// Forwards the PDU at a position, which came on the bearer with our TEID `teid`.
    #[inline(always)]
    pub(super) fn uplink(
        &mut self,
        teid: u32,
        vector: &mut Vector,
        at: usize,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Result<(), DropReason> {
        let Some(End::Bearer(bearer)) = self.ends.get_mut(teid) else { return Err(DropReason::NoBearer) };
        let Bearer { rx, up, stats, .. } = &mut **bearer;
        let mut frame = vector.frame_mut(at);
        match rx.open(frame.packet_mut(), now_ns) {
            Verdict::Deliver { sdu, .. } => {
                frame.truncate(sdu.end);
                frame.trim_front(sdu.start);
                stats.active(now_ns);
                let waits = rx.held().0 > 0;
                let forwarded = up.forward(&mut frame, (&self.stats, stats));
                if forwarded == Ok(true) {
                    self.outputs.push(up.upf.interface, at);
                }
                if waits {
                    // Later packets of this vector must not overtake those that have waited.
                    self.send_outputs(vector, ports);
                    self.release_reordered(teid, ports);
                    self.plan(teid);
                }
                forwarded.map(drop)
            }
            Verdict::Held => {
                stats.active(now_ns);
                self.stats.nodes[Way::Reorder as usize].count(1);
                self.plan(teid);
                Ok(())
            }
            Verdict::Control(_) => {
                self.stats.pdcp_control.add(1);
                Ok(())
            }
            Verdict::Discarded(discard) => Err(reason(discard)),
        }
    }

    /// Sends PDUs that have waited for older ones, as far as these have come or are waited for no longer.
    #[cold]
    pub(super) fn release_reordered(&mut self, teid: u32, ports: &mut Ports) {
        let Relay { ends, extra, extra_outputs, stats, interfaces, peers, .. } = self;
        let Some(End::Bearer(bearer)) = ends.get_mut(teid) else { return };
        let Bearer { rx, up, stats: of_bearer, .. } = &mut **bearer;
        extra.set_peers(peers);
        rx.release(|sdu, _| {
            if extra.len() == extra.capacity() {
                send_all(extra, extra_outputs, ports, (stats, interfaces));
            }
            let added = extra.push(sdu, NO_PEER);
            let forwarded = match extra.last_mut().filter(|_| added) {
                Some(mut frame) => up.forward(&mut frame, (stats, of_bearer)),
                None => Err(DropReason::TooBig),
            };
            match forwarded {
                Ok(true) => extra_outputs.push(up.upf.interface, extra.len() - 1),
                Ok(false) => {}
                Err(reason) => stats.drops.count(reason),
            }
        });
        send_all(extra, extra_outputs, ports, (stats, interfaces));
    }
}
