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

use std::ops::Range;

use pktio::Vector;
use telemetry::DropReason;

use super::{BATCH, Inside, Pipeline, Ports, Source, State, Verdict};
use crate::session::{flag, kind};
use crate::tables::Tables;

impl Pipeline {
    /// Queues a packet to a UE for the stages; `false` when there is no room.
    #[cold]
    pub(super) fn inject(&mut self, packet: &[u8]) -> bool {
        let batch = self.injected.get_or_insert_with(|| Vector::of(&self.home));
        batch.push(packet, self.local)
    }

    /// Queues an answer to a UE in the name of its router; without effect when there is no room.
    pub(super) fn answer(&mut self, packet: &[u8]) {
        let batch = self.answers.get_or_insert_with(|| Vector::of(&self.home));
        batch.push(packet, self.local);
    }

    /// Runs the stages for injected packets.
    #[inline(always)]
    pub(super) fn run_injected(&mut self, now_ns: u64, ports: &mut Ports) {
        let waits = |batch: &Option<Vector>| batch.as_ref().is_some_and(|batch| !batch.is_empty());
        if waits(&self.injected) || waits(&self.answers) {
            self.run_own(now_ns, ports);
        }
    }

    #[cold]
    fn run_own(&mut self, now_ns: u64, ports: &mut Ports) {
        if let Some(batch) = self.injected.take() {
            self.injected = Some(self.run_from(Source::Injected, batch, now_ns, ports));
        }
        if let Some(batch) = self.answers.take() {
            self.answers = Some(self.run_from(Source::Router, batch, now_ns, ports));
        }
    }

    fn run_from(&mut self, source: Source, mut batch: Vector, now_ns: u64, ports: &mut Ports) -> Vector {
        self.begin(batch.len());
        let before = std::mem::replace(&mut self.source, source);
        self.parse_n6(&mut batch, now_ns);
        self.run(&mut batch, now_ns, ports);
        self.source = before;
        batch.clear();
        batch
    }

    /// Stage 3 for answers of the router: as its FAR says, but one whose session buffers is dropped, because
    /// released packets are counted.
    #[cold]
    pub(super) fn execute_answers(
        &mut self,
        tables: &Tables,
        inside: &Inside<'_>,
        batch: &mut Vector,
        range: Range<usize>,
        verdicts: &[Verdict<'_>; BATCH],
        now_ns: u64,
    ) {
        for (at, verdict) in range.zip(verdicts) {
            let (State::Live, Some(entry), Some(endpoint)) =
                (self.metas[at].state, verdict.entry, verdict.block.first())
            else {
                continue;
            };
            if entry.is(flag::CLOSED) {
                self.metas[at].drop(DropReason::GateClosed);
            } else if !matches!(entry.kind(), kind::TUNNEL | kind::NETWORK)
                || self.held.holds(endpoint.seid())
            {
                self.metas[at].drop(DropReason::FarDrop);
            } else {
                self.forward(tables, inside, batch, at, verdict.block, entry, now_ns);
            }
        }
    }
}
