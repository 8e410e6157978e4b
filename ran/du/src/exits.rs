//! Packets that the DU sends besides those of the vector under way.

use std::net::SocketAddr;

use path::Ports;
use pktio::{Sent, VECTOR, Vector};

use crate::stats::Stats;

/// A vector for each interface. It leaves when it is full, and after each call of the graph.
pub(crate) struct Exits {
    vectors: Vec<Vector>,
    all: [u16; VECTOR],
}

impl Exits {
    /// For `interfaces` interfaces and packets of up to `longest` octets.
    pub(crate) fn new(interfaces: usize, longest: usize) -> Exits {
        Exits {
            vectors: (0..interfaces).map(|_| Vector::new(VECTOR, longest)).collect(),
            all: std::array::from_fn(|at| at as u16),
        }
    }

    /// Sends a packet; `false` if it is too long for any.
    pub(crate) fn push(
        &mut self,
        interface: u8,
        packet: &[u8],
        to: SocketAddr,
        stats: &Stats,
        ports: &mut Ports,
    ) -> bool {
        let number = usize::from(interface);
        let Some(vector) = self.vectors.get_mut(number) else { return false };
        if vector.len() == vector.capacity() {
            self.flush_one(number, stats, ports);
        }
        self.vectors[number].push(packet, to)
    }

    /// Sends all that waits.
    #[inline]
    pub(crate) fn flush(&mut self, stats: &Stats, ports: &mut Ports) {
        for number in 0..self.vectors.len() {
            if !self.vectors[number].is_empty() {
                self.flush_one(number, stats, ports);
            }
        }
    }

    fn flush_one(&mut self, number: usize, stats: &Stats, ports: &mut Ports) {
        let (Some(vector), Some(port)) = (self.vectors.get_mut(number), ports.get_mut(number)) else {
            return;
        };
        let sent: Sent = port.transmit(vector, &self.all[..vector.len()]);
        stats.count_unsent(sent);
        vector.clear();
    }
}
