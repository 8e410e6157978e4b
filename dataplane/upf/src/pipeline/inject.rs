//! Injected packets, which do not come from a port: answers in the name of servers and routers, and downlink
//! packets whose source was translated back to the address to which their UE sent.
//!
//! They go through the stages like packets from a data network, after the batch that caused them. So the
//! session's rules say how they reach the UE: tunnel, QoS flow, meters, counters, buffering. An injected packet
//! never causes another one.

use pktio::Batch;

use super::{BATCH, PACKET, Pipeline, Ports, Source};

impl Pipeline {
    /// Queues a packet to a UE for the stages; `false` when there is no room.
    #[cold]
    pub(super) fn inject(&mut self, packet: &[u8]) -> bool {
        let batch = self.injected.get_or_insert_with(|| Batch::new(BATCH, PACKET));
        batch.push(packet, self.local)
    }

    /// Runs the stages for injected packets.
    #[inline(always)]
    pub(super) fn run_injected(&mut self, now_ns: u64, ports: &mut Ports) {
        if self.injected.as_ref().is_some_and(|batch| !batch.is_empty()) {
            self.run_own(now_ns, ports);
        }
    }

    #[cold]
    fn run_own(&mut self, now_ns: u64, ports: &mut Ports) {
        let Some(mut batch) = self.injected.take() else { return };
        self.begin(batch.len());
        let before = std::mem::replace(&mut self.source, Source::Injected);
        self.parse_n6(&mut batch, now_ns);
        self.run(&mut batch, now_ns, ports);
        self.source = before;
        batch.clear();
        self.injected = Some(batch);
    }
}
