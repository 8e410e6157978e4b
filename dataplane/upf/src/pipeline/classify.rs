//! Stage 3: which PDR applies, and whether the source address is the UE's (UP-4) and the
//! destination none of the core's own sockets.
//!
//! Look-ups begin for the whole batch before the first one ends, so that the memory of different sessions is fetched
//! at the same time; neighbours of one session and tunnel are looked up together.

use classifier::session::Begun;
use classifier::{Key, Verdict};
use packet::flow::Flow;
use telemetry::DropReason;

use super::session::is_link_local;
use super::{BATCH, Meta, NATIVE, Pipeline, State};
use crate::plan::{Action, Destination, Forward};
use crate::session::{Compiled, RuleSet};

/// Look-ups of a batch, kept for their memory. The vectors go together.
pub(super) struct Lookups {
    /// Positions of the packets.
    packets: Vec<u16>,
    keys: Vec<Key>,
    begun: Vec<Begun>,
    verdicts: Vec<Verdict>,
}

impl Lookups {
    pub(super) fn new() -> Lookups {
        Lookups {
            packets: Vec::with_capacity(BATCH),
            keys: Vec::with_capacity(BATCH),
            begun: Vec::with_capacity(BATCH),
            verdicts: Vec::with_capacity(BATCH),
        }
    }
}

impl Pipeline {
    /// Finds each packet's PDR by precedence.
    pub(super) fn classify(&mut self) {
        self.begin();
        self.finish();
        for at in 0..self.lookups.packets.len() {
            self.apply(usize::from(self.lookups.packets[at]), self.lookups.verdicts[at]);
        }
    }

    /// Begins all look-ups that there are to do; where one PDR takes every packet, there is none.
    fn begin(&mut self) {
        let Lookups { packets, keys, begun, verdicts } = &mut self.lookups;
        packets.clear();
        keys.clear();
        begun.clear();
        verdicts.clear();
        for (at, meta) in self.metas.iter().enumerate() {
            let (State::Live, Some(flow)) = (meta.state, &meta.flow) else { continue };
            let rules = rules(&self.sessions[usize::from(meta.session)], meta);
            let key = match rules.only() {
                Some(_) => Key::unknown(),
                None => key(flow, meta.qfi),
            };
            packets.push(at as u16);
            begun.push(rules.begin(&key));
            keys.push(key);
        }
        verdicts.resize(packets.len(), None);
    }

    /// Finds the verdicts, one run of packets with the same rules after the other.
    fn finish(&mut self) {
        let Lookups { packets, keys, begun, verdicts } = &mut self.lookups;
        let place = |packet: &u16| {
            let meta = &self.metas[usize::from(*packet)];
            (meta.session, meta.tunnel)
        };
        let mut from = 0;
        for run in packets.chunk_by(|one, next| place(one) == place(next)) {
            let meta = &self.metas[usize::from(run[0])];
            let rules = rules(&self.sessions[usize::from(meta.session)], meta);
            let to = from + run.len();
            rules.finish(&keys[from..to], &begun[from..to], &mut verdicts[from..to]);
            from = to;
        }
    }

    /// Takes the PDR, if the packet may go where that leads.
    fn apply(&mut self, packet: usize, verdict: Verdict) {
        let meta = &mut self.metas[packet];
        let Some(flow) = &meta.flow else { return };
        let session = &self.sessions[usize::from(meta.session)];
        match verdict {
            Some(pdr) => {
                meta.pdr = pdr;
                let pdr = &session.pdrs[pdr as usize];
                let foreign = pdr.check_source && !session.ue.is_empty() && !session.ue.contain(flow.source);
                if foreign {
                    let reason = source_reason(flow);
                    meta.drop(reason);
                } else if matches!(
                    pdr.action,
                    Action::Forward(Forward { to: Destination::DataNetwork(_), .. })
                ) && self.guard.stops(flow)
                {
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

/// The rules that a packet is looked up in.
#[inline]
fn rules<'a>(session: &'a Compiled, meta: &Meta) -> &'a RuleSet {
    match meta.tunnel {
        NATIVE => &session.native,
        tunnel => &session.tunnels[usize::from(tunnel)].rules,
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
