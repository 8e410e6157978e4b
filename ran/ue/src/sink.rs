//! Packets for control: those of a session without TUN device, and router advertisements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

/// Packets that wait to be read.
const QUEUE: usize = 64;
/// Where IPv6 says what follows, and ICMPv6.
const NEXT_HEADER: usize = 6;
const ICMPV6: u8 = 58;
/// Where ICMPv6 says what it is, without extension headers; a router advertisement (RFC 4861 §4.2) has none.
const ICMPV6_TYPE: usize = 40;
const ROUTER_ADVERTISEMENT: u8 = 134;

/// Takes packets of a session on its worker.
#[derive(Debug, Clone)]
pub struct Sink {
    packets: mpsc::Sender<Vec<u8>>,
    /// A TUN device takes the packets.
    attached: Arc<AtomicBool>,
}

/// The other end.
#[derive(Debug)]
pub struct Packets {
    packets: mpsc::Receiver<Vec<u8>>,
    attached: Arc<AtomicBool>,
}

/// Both ends.
pub(crate) fn channel() -> (Sink, Packets) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let attached = Arc::<AtomicBool>::default();
    (Sink { packets: sender, attached: Arc::clone(&attached) }, Packets { packets: receiver, attached })
}

impl Sink {
    /// Whether control takes the packet. One for which there is no room is lost.
    #[inline]
    pub(crate) fn takes(&self, packet: &[u8]) -> bool {
        if !self.attached.load(Ordering::Relaxed) || is_router_advertisement(packet) {
            let _ = self.packets.try_send(packet.to_vec());
            return true;
        }
        false
    }
}

impl Packets {
    /// From now on a TUN device takes all but router advertisements.
    pub(crate) fn attach(&self) {
        self.attached.store(true, Ordering::Relaxed);
    }

    /// The next packet. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        self.packets.recv().await
    }
}

#[inline]
fn is_router_advertisement(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first >> 4 == 6)
        && packet.get(NEXT_HEADER) == Some(&ICMPV6)
        && packet.get(ICMPV6_TYPE) == Some(&ROUTER_ADVERTISEMENT)
}
