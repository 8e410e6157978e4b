//! Downlink packets of FARs that say buffer (TS 29.244 §5.2.4): held here until the path is there.
//!
//! What a UE is sent while its session is being set up (the router advertisement that answers its first
//! solicitation, for one) arrives before the gNB's tunnel is known. Bounded per session and in all. A packet
//! that comes from the packet path while buffered ones are being sent may overtake them.

use std::collections::{HashMap, VecDeque};

use pktio::udp::UdpPort;
use pktio::{Batch, Port};
use telemetry::DropReason;

use crate::pipeline::PACKET;
use crate::pipeline::forward::encapsulate;
use crate::plan::{Action, Destination, Forward};
use crate::session::Compiled;
use crate::stats::WorkerStats;

/// Packets held per session.
const PER_SESSION: usize = 32;
/// Octets held in all.
const TOTAL: usize = 16 << 20;

/// The PDR that matched, and the packet.
type Held = VecDeque<(u16, Box<[u8]>)>;

/// The buffers of all sessions.
#[derive(Debug)]
pub struct Buffers {
    held: HashMap<u64, Held>,
    octets: usize,
    batch: Batch,
    /// The number under which sent packets are counted: that of a worker of its own.
    worker: usize,
}

impl Buffers {
    /// Empty buffers; `worker` is the counters' copy that they own.
    pub fn new(worker: usize) -> Buffers {
        Buffers { held: HashMap::new(), octets: 0, batch: Batch::new(1, PACKET), worker }
    }

    /// Takes a packet that matched PDR `pdr` of `session`: holds it, or sends it if it need not wait any more.
    pub fn take(
        &mut self,
        session: &Compiled,
        pdr: u16,
        packet: Box<[u8]>,
        port: &mut UdpPort,
        stats: &WorkerStats,
    ) {
        let Some(rule) = session.pdrs.iter().find(|rule| rule.id == pdr) else {
            return stats.drops.count(DropReason::NoPdr);
        };
        match &rule.action {
            Action::Buffer => {
                let queue = self.held.entry(session.seid).or_default();
                if queue.len() >= PER_SESSION || self.octets + packet.len() > TOTAL {
                    return stats.drops.count(DropReason::BufferOverflow);
                }
                self.octets += packet.len();
                queue.push_back((pdr, packet));
            }
            Action::Forward(Forward { to: Destination::Tunnel(header), .. }) => {
                self.batch.clear();
                // The peer is set with the header.
                if !self.batch.push(&packet, header.peer)
                    || !encapsulate(&mut self.batch.buffers_mut()[0], header, rule, None)
                {
                    return stats.drops.count(DropReason::TooBig);
                }
                let sent = port.transmit(&mut self.batch, &[0]);
                stats.n3.downlink.count_n(sent.packets, sent.bytes);
                if sent.packets == 0 {
                    return stats.drops.count(DropReason::TxError);
                }
                for usage in [&session.usage].into_iter().chain(&rule.urrs) {
                    usage.of(self.worker).downlink.count(packet.len());
                }
            }
            _ => stats.drops.count(DropReason::FarDrop),
        }
    }

    /// Looks again at what is held for `session` after its rules have changed.
    pub fn release(&mut self, session: &Compiled, port: &mut UdpPort, stats: &WorkerStats) {
        for (pdr, packet) in self.remove(session.seid) {
            self.take(session, pdr, packet, port, stats);
        }
    }

    /// Drops what is held for a session: it is gone, or the CP function says so (DROBU).
    pub fn discard(&mut self, seid: u64, stats: &WorkerStats) {
        let dropped = self.remove(seid).len();
        stats.drops.count_n(DropReason::FarDrop, dropped);
    }

    /// Drops what is held for sessions that `exists` denies.
    pub fn discard_unless(&mut self, exists: impl Fn(u64) -> bool, stats: &WorkerStats) {
        let gone: Vec<u64> = self.held.keys().copied().filter(|seid| !exists(*seid)).collect();
        for seid in gone {
            self.discard(seid, stats);
        }
    }

    fn remove(&mut self, seid: u64) -> Held {
        let queue = self.held.remove(&seid).unwrap_or_default();
        self.octets -= queue.iter().map(|(_, packet)| packet.len()).sum::<usize>();
        queue
    }
}
