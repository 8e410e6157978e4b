//! Injected packets, which do not come from a port: answers in the name of servers and routers, and downlink
//! packets whose source was translated back to the address to which their UE sent.
//!
//! They go through the stages like packets from a data network, after the batch that caused them. So the
//! session's rules say how they reach the UE: tunnel, QoS flow, meters, counters, buffering. An injected packet
//! never causes another one.
//!
//! Answers in the name of the router are not users' traffic. They are limited where they are made, and neither
//! metered nor counted: the worker of N3 sends them, while only the worker of the data network writes the meters
//! and accounts of the packets that it receives.

use pktio::Vector;
use telemetry::DropReason;

use super::{Pipeline, Ports, Source, State, Verdicts, Way};
use crate::session::{flag, kind};
use crate::tables::Tables;

/// Injected packets of one kind to UEs of one network instance.
pub(super) struct Injected {
    source: Source,
    /// The interface from which they seem to come.
    interface: u8,
    batch: Vector,
}

impl Pipeline {
    /// Queues a packet to a UE, as if it came from the data network of `interface`; `false` when there is no room.
    #[cold]
    pub(super) fn inject(&mut self, packet: &[u8], interface: u8) -> bool {
        self.queue(Source::Injected, packet, interface)
    }

    /// Queues an answer to a UE in the name of its router; without effect when there is no room.
    pub(super) fn answer(&mut self, packet: &[u8], interface: u8) {
        self.queue(Source::Router, packet, interface);
    }

    fn queue(&mut self, source: Source, packet: &[u8], interface: u8) -> bool {
        let peer = self.input.local;
        let alike = |known: &&mut Injected| known.source == source && known.interface == interface;
        if let Some(known) = self.injected.iter_mut().find(alike) {
            return known.batch.push(packet, peer);
        }
        let mut batch = Vector::of(&self.home);
        let queued = batch.push(packet, peer);
        self.injected.push(Injected { source, interface, batch });
        queued
    }

    /// Runs the stages for injected packets.
    #[inline(always)]
    pub(super) fn run_injected(&mut self, now_ns: u64, ports: &mut Ports) {
        if self.injected.iter().any(|injected| !injected.batch.is_empty()) {
            self.run_own(now_ns, ports);
        }
    }

    #[cold]
    fn run_own(&mut self, now_ns: u64, ports: &mut Ports) {
        let (mut all, before) = (std::mem::take(&mut self.injected), (self.input, self.source));
        // Answers of servers come first.
        all.sort_by_key(|injected| injected.source == Source::Router);
        for Injected { source, interface, batch } in all.iter_mut().filter(|all| !all.batch.is_empty()) {
            self.enter(*interface);
            self.source = *source;
            self.count_way(Way::Inject, batch.len());
            self.begin(batch.len());
            self.parse_native(batch, now_ns);
            self.run(batch, now_ns, ports);
        }
        // Dropping the vectors returns their memory: there may be one for each interface.
        (self.input, self.source) = before;
    }

    /// Stage 3 for answers of the router: as its FAR says, but one whose session buffers is dropped, because
    /// released packets are counted.
    #[cold]
    pub(super) fn execute_answers(
        &mut self,
        tables: &Tables,
        batch: &mut Vector,
        verdicts: &Verdicts<'_>,
        now_ns: u64,
    ) {
        for (at, verdict) in verdicts.iter().enumerate().take(self.packets.len()) {
            let (State::Live, Some(entry), Some(endpoint)) =
                (self.packets.metas[at].state, verdict.entry, verdict.block.first())
            else {
                continue;
            };
            if entry.is(flag::CLOSED) {
                self.packets.metas[at].drop(DropReason::GateClosed);
            } else if self.held.holds(endpoint.seid()) {
                self.packets.metas[at].drop(DropReason::FarDrop);
            } else {
                match entry.kind() {
                    kind::TUNNEL if entry.is(flag::CONTROL) && !self.admits_control(now_ns) => {
                        self.packets.metas[at].drop(DropReason::ControlOverflow);
                    }
                    kind::TUNNEL => drop(self.send_into_tunnel(tables, batch, at, entry, now_ns)),
                    kind::NETWORK => drop(self.send_to_network(tables, batch, at, entry, now_ns)),
                    _ => self.packets.metas[at].drop(DropReason::FarDrop),
                }
            }
        }
    }
}
