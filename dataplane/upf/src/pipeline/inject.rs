//! Packets that do not come from a port: answers in the name of servers and routers, and downlink packets that have got
//! back the source that their UE sent to.
//!
//! They go through the stages as if they came from a data network, behind the batch that made them, so that the
//! session's rules say how they reach the UE: tunnel, QoS flow, meters, counters, buffering. None makes another one.

use pktio::Batch;

use super::{BATCH, PACKET, Pass, Pipeline, Ports};

impl Pipeline {
    /// Lets a packet to a UE go through the stages; `false` when there is no room.
    #[cold]
    pub(super) fn inject(&mut self, packet: &[u8]) -> bool {
        let batch = self.injected.get_or_insert_with(|| Batch::new(BATCH, PACKET));
        batch.push(packet, self.local)
    }

    /// Takes what was injected through the stages.
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
        let before = std::mem::replace(&mut self.pass, Pass::Own);
        self.parse_n6(&mut batch, now_ns);
        self.run(&mut batch, now_ns, ports);
        self.pass = before;
        batch.clear();
        self.injected = Some(batch);
    }
}
