//! Stage 3: which PDR applies, and whether the source address is the UE's (UP-4) and the
//! destination none of the core's own sockets.

use classifier::Key;
use packet::flow::Flow;
use telemetry::DropReason;

use super::session::is_link_local;
use super::{NATIVE, Pipeline, State};
use crate::session::Action;

impl Pipeline {
    /// Finds each packet's PDR by precedence.
    pub(super) fn classify(&mut self) {
        for meta in &mut self.metas {
            let (State::Live, Some(flow)) = (meta.state, &meta.flow) else { continue };
            let session = &self.sessions[usize::from(meta.session)];
            let rules = match meta.tunnel {
                NATIVE => &session.native,
                tunnel => &session.tunnels[usize::from(tunnel)].rules,
            };
            match rules.classify(|| key(flow, meta.qfi)) {
                Some(pdr) => {
                    meta.pdr = pdr;
                    let pdr = &session.pdrs[pdr as usize];
                    let foreign =
                        pdr.check_source && !session.ue.is_empty() && !session.ue.contain(flow.source);
                    if foreign {
                        let reason = source_reason(flow);
                        meta.drop(reason);
                    } else if matches!(pdr.action, Action::DataNetwork(_)) && self.guard.stops(flow) {
                        meta.drop(DropReason::CoreInterface);
                    }
                }
                // PDIs name the UE's address, so a foreign source matches none of them: say which it was.
                None if meta.tunnel != NATIVE
                    && !session.ue.contain(flow.source)
                    && !session.ue.contain(flow.destination) =>
                {
                    let reason = source_reason(flow);
                    meta.drop(reason);
                }
                None => meta.drop(DropReason::NoPdr),
            }
        }
    }
}

fn source_reason(flow: &Flow) -> DropReason {
    if is_link_local(flow) { DropReason::LinkLocal } else { DropReason::SourceAddress }
}

fn key(flow: &Flow, qfi: Option<u8>) -> Key {
    let mut key = Key::new(flow.source, flow.destination, flow.protocol)
        .with_tos(flow.tos)
        .with_flow_label(flow.flow_label);
    if let Some((source, destination)) = flow.ports {
        key = key.with_ports(source, destination);
    }
    if let Some(spi) = flow.spi {
        key = key.with_spi(spi);
    }
    if let Some(qfi) = qfi {
        key = key.with_qfi(qfi);
    }
    key
}
