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

use crate::pipeline::context::{Snapshot, Source};
use crate::pipeline::exits::Injected;
use crate::pipeline::graph::Way;
use crate::pipeline::look_up::PlaceOf;
use crate::pipeline::packets::{State, Verdicts};
use crate::pipeline::{Ports, Stages};
use crate::session::{flag, kind};

impl Stages {
    /// Runs the stages for injected packets.
    #[inline(always)]
    pub(in crate::pipeline) fn run_injected(&mut self, snapshot: Snapshot<'_>, ports: &mut Ports) {
        if !self.exits.injections.is_empty() {
            self.run_own(snapshot, ports);
        }
    }

    #[cold]
    fn run_own(&mut self, snapshot: Snapshot<'_>, ports: &mut Ports) {
        let (mut all, before) = (self.exits.injections.take(), (self.pass.input, self.pass.source));
        // Answers of servers come first.
        all.sort_by_key(|injected| injected.source == Source::Router);
        for Injected { source, interface, batch } in &mut all {
            self.enter(*interface);
            self.pass.source = *source;
            self.context.count_way(Way::Inject, batch.len());
            self.begin(batch.len());
            let mut places = PlaceOf::NONE;
            self.parse_native(snapshot, batch, &mut places);
            self.run(snapshot, batch, &places, ports);
        }
        // Dropping the vectors returns their memory: there may be one for each interface.
        (self.pass.input, self.pass.source) = before;
    }

    /// Stage 3 for answers of the router: as its FAR says, but one whose session buffers is dropped, because
    /// released packets are counted.
    #[cold]
    pub(in crate::pipeline) fn execute_answers(
        &mut self,
        snapshot: Snapshot<'_>,
        batch: &mut Vector,
        verdicts: &Verdicts<'_>,
    ) {
        for (at, verdict) in verdicts.iter().enumerate().take(self.pass.packets.len()) {
            let (State::Live, Some((entry, _)), Some(endpoint)) =
                (self.pass.packets.metas[at].state, verdict.matched, verdict.block.first())
            else {
                continue;
            };
            let refused = match entry.kind() {
                _ if entry.is(flag::CLOSED) => DropReason::GateClosed,
                _ if self.buffer.holds(endpoint.seid()) => DropReason::FarDrop,
                kind::TUNNEL if entry.is(flag::CONTROL) && !self.context.admits_control(snapshot.now_ns) => {
                    DropReason::ControlOverflow
                }
                kind::TUNNEL => {
                    self.send_into_tunnel(snapshot, batch, at, entry);
                    continue;
                }
                kind::NETWORK => {
                    self.send_to_network(snapshot, batch, at, entry);
                    continue;
                }
                _ => DropReason::FarDrop,
            };
            self.pass.drop(at, refused);
        }
    }
}
