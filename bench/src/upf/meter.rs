//! The time that a forwarder needs for its packets, without the time in which it waits for them.
//!
//! A forwarder between memifs is often faster than the generator at their other ends. Then the rate at which packets arrive is the
//! generator's. So ports in front of the forwarder's own ([`Metered`]) read the clock when it asks for packets: it was busy from
//! the call that gave packets until the next call. Work per packet is this time divided by the packets.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use net::time;
use packet::ethernet::Mac;
use pktio::{FramePort, Pool, Port, Sent, Vector};
use telemetry::DropReason;

use super::turns::Reading;

/// The state of a forwarder's ports. Only the forwarder's thread writes.
#[derive(Debug)]
pub(super) struct Meter {
    epoch: Instant,
    packets: AtomicU64,
    busy_ns: AtomicU64,
    /// When the call began that gave the packets on which the forwarder works; 0 while it has none.
    began_ns: AtomicU64,
}

impl Meter {
    pub(super) fn new() -> Arc<Meter> {
        let [packets, busy_ns, began_ns] = [(); 3].map(|()| AtomicU64::new(0));
        Arc::new(Meter { epoch: time::now_std(), packets, busy_ns, began_ns })
    }

    /// What has been done so far. Work on the packets that were received last is not in it.
    pub(super) fn read(&self) -> Reading {
        Reading { packets: self.packets.load(Relaxed), busy_ns: self.busy_ns.load(Relaxed) }
    }

    /// Notes a call that receives: `received` packets, and when the call began.
    #[inline]
    fn note(&self, called_ns: u64, received: usize) {
        let began_ns = self.began_ns.load(Relaxed);
        if began_ns > 0 {
            self.busy_ns.store(self.busy_ns.load(Relaxed) + called_ns.saturating_sub(began_ns), Relaxed);
        }
        self.packets.store(self.packets.load(Relaxed) + received as u64, Relaxed);
        self.began_ns.store(if received > 0 { called_ns } else { 0 }, Relaxed);
    }
}

/// A port whose calls are noted in a meter.
pub(super) struct Metered<F> {
    frames: F,
    meter: Arc<Meter>,
}

impl<F> Metered<F> {
    pub(super) fn new(frames: F, meter: &Arc<Meter>) -> Metered<F> {
        Metered { frames, meter: Arc::clone(meter) }
    }
}

impl<F: FramePort> Port for Metered<F> {
    #[inline]
    fn receive(&mut self, batch: &mut Vector) -> std::io::Result<usize> {
        let called_ns = self.meter.epoch.elapsed().as_nanos() as u64;
        let received = self.frames.receive(batch);
        self.meter.note(called_ns, *received.as_ref().unwrap_or(&0));
        received
    }

    #[inline]
    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        self.frames.transmit(batch, selected)
    }

    fn losses(&mut self, count: &mut dyn FnMut(DropReason, usize)) {
        self.frames.losses(count);
    }

    fn unsent(&self) -> bool {
        self.frames.unsent()
    }

    fn before_sleep(&mut self) -> std::io::Result<()> {
        self.frames.before_sleep()
    }

    fn pool(&self) -> Option<Arc<dyn Pool>> {
        self.frames.pool()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.frames.fd()
    }
}

impl<F: FramePort> FramePort for Metered<F> {
    fn mac(&self) -> Mac {
        self.frames.mac()
    }

    fn mtu(&self) -> usize {
        self.frames.mtu()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_work() {
        let meter = Meter::new();
        // Nothing for 100 ns; 10 packets with 40 ns of work; 20 packets with 60 ns of work; nothing for long.
        for (called_ns, received) in [(10, 0), (110, 10), (150, 20), (210, 0), (90_000, 0), (90_100, 5)] {
            meter.note(called_ns, received);
        }
        let before = meter.read();
        assert_eq!(before, Reading { packets: 35, busy_ns: 100 });
        meter.note(90_200, 0);
        assert_eq!(meter.read().ns_since(Reading { packets: 30, busy_ns: 100 }), Some(20.0));
        assert_eq!(before.ns_since(before), None);
    }
}
