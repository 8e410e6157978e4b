//! What the stages and nodes of a worker share: what they read, the pass of a batch, and where a pass belongs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use pktio::{Frame, Pool, Sent, Vector};
use rcu::Guard as Inside;
use telemetry::DropReason;

use super::graph::Way;
use super::guard::Closed;
use super::links::Links;
use super::packets::Packets;
use crate::interfaces::Interfaces;
use crate::stats::WorkerStats;
use crate::tables::Tables;
use path::Outputs;

/// What stages and nodes read, and where they count.
pub(super) struct Context {
    worker: usize,
    all_stats: Arc<[WorkerStats]>,
    pub tables: Arc<Tables>,
    pub interfaces: Arc<Interfaces>,
    /// The UPF's GTP-U addresses.
    pub locals: Box<[IpAddr]>,
    pub links: Links,
    /// The closed destinations as of this batch.
    pub closed: Arc<Closed>,
    /// Until this time, packets of unknown tunnels get no Error Indication.
    pub quiet_until_ns: u64,
    /// Memory of all packets that do not lie in a backend's memory.
    pub home: Arc<dyn Pool>,
}

impl Context {
    pub fn new(
        worker: usize,
        all_stats: Arc<[WorkerStats]>,
        tables: Arc<Tables>,
        closed: Arc<Closed>,
        home: Arc<dyn Pool>,
    ) -> Context {
        Context {
            worker,
            all_stats,
            interfaces: Arc::clone(tables.interfaces()),
            locals: tables.interfaces().gtpu_addresses().map(|own| own.ip()).collect(),
            tables,
            links: Links::unlimited(),
            closed,
            quiet_until_ns: 0,
            home,
        }
    }

    /// The worker's counters.
    #[inline(always)]
    pub fn stats(&self) -> &WorkerStats {
        &self.all_stats[self.worker]
    }

    /// Counts packets of a node.
    #[inline]
    pub fn count_way(&self, way: Way, packets: usize) {
        self.stats().nodes[way as usize].count(packets);
    }

    /// Counts a dropped packet that is not one of the batch.
    pub fn count_drop(&self, reason: DropReason) {
        self.stats().drops.count(reason);
    }

    /// Counts packets that an interface has received.
    #[inline]
    pub fn count_received(&self, interface: usize, batch: &Vector) {
        let octets = batch.frames().iter().map(Frame::len).sum();
        self.stats().interfaces[interface].uplink.count_n(batch.len(), octets);
        self.count_way(Way::Receive, batch.len());
    }

    /// Counts what the port of an interface has done with packets.
    pub fn count_sent(&self, interface: usize, sent: Sent) {
        if let Some(counters) = self.stats().interfaces.get(interface) {
            counters.downlink.count_n(sent.packets, sent.bytes);
        }
        if sent.copied > 0
            && let Some(copied) = self.stats().copied.get(interface)
        {
            copied.add(sent.copied as u64);
        }
        for (reason, count) in [
            (DropReason::TxQueueFull, sent.full),
            (DropReason::TooBig, sent.too_big),
            (DropReason::NeighbourUnresolved, sent.unresolved),
            (DropReason::TxError, sent.errors),
        ] {
            if count > 0 {
                self.stats().drops.count_n(reason, count);
            }
        }
    }
}

/// The tables as long as a pass reads them, and the time of the pass. The read guard is held until the packets are
/// sent, so that after a grace period they have left.
#[derive(Clone, Copy)]
pub(super) struct Snapshot<'g> {
    pub tables: &'g Tables,
    pub inside: &'g Inside<'g>,
    pub now_ns: u64,
}

/// A batch on its way through the stages.
pub(super) struct Pass {
    /// Where its packets came from.
    pub input: Input,
    pub source: Source,
    /// What the stages know of its packets.
    pub packets: Packets,
    /// Its fragments: the edge from parsing to [`fragments`](super::rare::fragments).
    pub fragments: Vec<u16>,
    /// Its packets that may be frames of Ethernet sessions: the edge from the look-up to [`bridge`](super::rare::bridge).
    pub frames: Vec<u16>,
    /// Whether the keys of fragments in frames are set already, because they have waited.
    pub keys_are_known: bool,
    /// Its packets that leave, by interface: the edge to the ports.
    pub outputs: Outputs,
}

impl Pass {
    pub fn new(interfaces: usize) -> Pass {
        Pass {
            input: Input::NONE,
            source: Source::Port,
            packets: Packets::new(),
            fragments: Vec::new(),
            frames: Vec::new(),
            keys_are_known: false,
            outputs: Outputs::new(interfaces),
        }
    }

    /// Begins with `packets` packets of which nothing is known.
    #[inline]
    pub fn begin(&mut self, packets: usize) {
        self.packets.begin(packets);
        self.keys_are_known = false;
        self.outputs.clear();
    }

    /// Drops the packet at a position.
    #[inline(always)]
    pub fn drop(&mut self, at: usize, reason: DropReason) {
        self.packets.metas[at].drop(reason);
    }
}

/// What stages need to know of the interface from which a batch came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input {
    /// Its number.
    pub interface: u8,
    /// Whether its packets are in tunnels.
    pub has_tunnels: bool,
    /// Number of its network instance, in whose tables packets are looked up.
    pub instance: u8,
    /// Its GTP-U address, for Error Indications; the unspecified address if it has no tunnels.
    pub local: SocketAddr,
    /// MTU to which TCP's MSS is lowered when a packet enters a tunnel.
    pub clamp: usize,
}

impl Input {
    /// Before the first batch.
    const NONE: Input = Input {
        interface: 0,
        has_tunnels: false,
        instance: 0,
        local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        clamp: usize::MAX,
    };
}

/// Source of the packets of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A port.
    Port,
    /// The buffer of a session.
    Buffer,
    /// This pipeline, which made or changed them.
    Injected,
    /// This pipeline, as a router that answers a sender.
    Router,
}

impl Source {
    /// Whether the packets were made or changed here. They never cause further ones.
    pub fn is_own(self) -> bool {
        matches!(self, Source::Injected | Source::Router)
    }
}
