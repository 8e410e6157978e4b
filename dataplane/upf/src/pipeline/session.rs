//! Stage 2: which session a packet belongs to.

use std::net::IpAddr;
use std::sync::Arc;

use packet::flow::Flow;
use pktio::Batch;
use telemetry::DropReason;

use super::{NATIVE, Pipeline, State};

impl Pipeline {
    /// By TEID. Unknown ones are answered with an Error Indication.
    pub(super) fn find_sessions_by_teid(&mut self, batch: &Batch, now_ns: u64) {
        // Packets of one tunnel tend to come together: the last answer is tried first.
        let mut last: Option<(u32, u16, u16)> = None;
        for (i, buffer) in batch.buffers().iter().enumerate() {
            let meta = &mut self.metas[i];
            // A packet whose content is bad is only dropped for that if the tunnel exists.
            let teid = match meta.state {
                State::Live => meta.teid,
                State::Dropped(DropReason::IpMalformed | DropReason::NotIp) => meta.teid,
                _ => continue,
            };
            if let Some((last_teid, session, tunnel)) = last
                && last_teid == teid
            {
                (meta.session, meta.tunnel) = (session, tunnel);
                continue;
            }
            match self.tables.by_teid(teid) {
                Some((session, tunnel)) => {
                    (meta.session, meta.tunnel) = (self.sessions.len() as u16, tunnel as u16);
                    last = Some((teid, meta.session, meta.tunnel));
                    self.sessions.push(session);
                }
                None => {
                    meta.drop(DropReason::UnknownTeid);
                    self.unknown_teid(now_ns, teid, buffer.peer);
                }
            }
        }
    }

    /// By destination address.
    pub(super) fn find_sessions_by_ue(&mut self) {
        let mut last: Option<(IpAddr, u16)> = None;
        for meta in &mut self.metas {
            let (State::Live, Some(flow)) = (meta.state, meta.flow) else { continue };
            meta.tunnel = NATIVE;
            if let Some((address, session)) = last
                && address == flow.destination
            {
                meta.session = session;
                continue;
            }
            match self.tables.by_ue(flow.destination) {
                Some(session) => {
                    meta.session = self.sessions.len() as u16;
                    last = Some((flow.destination, meta.session));
                    self.sessions.push(Arc::clone(&session));
                }
                None if is_link_local(&flow) => meta.drop(DropReason::LinkLocal),
                None => meta.drop(DropReason::UnknownUe),
            }
        }
    }
}

/// Whether a packet concerns its link only: multicast, or link-local or unspecified addresses.
pub(super) fn is_link_local(flow: &Flow) -> bool {
    let local = |address: IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
    };
    flow.destination.is_multicast() || local(flow.source) || local(flow.destination)
}
