//! Stage 4: gates and maximum bit rates of the PDR's QERs (TS 29.244 §5.4).
//!
//! Rates count IP packets. A packet that one QER refuses is not charged to those behind it.

use telemetry::DropReason;

use super::{Pipeline, State};

impl Pipeline {
    /// Drops what a closed gate or an exhausted rate stops.
    pub(super) fn enforce_qos(&mut self, now_ns: u64) {
        for meta in &mut self.metas {
            let (State::Live, Some(flow)) = (meta.state, &meta.flow) else { continue };
            let session = &self.sessions[usize::from(meta.session)];
            for qer in &session.pdrs[meta.pdr as usize].qers {
                if !qer.open {
                    meta.state = State::Dropped(DropReason::GateClosed);
                    break;
                }
                if let Some(limit) = &qer.mbr
                    && !limit.conforms(now_ns, flow.length)
                {
                    meta.state = State::Dropped(DropReason::RateLimit);
                    break;
                }
            }
        }
    }
}
