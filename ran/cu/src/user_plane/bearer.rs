//! What the worker knows of PDU sessions and their radio bearers.

use std::net::IpAddr;
use std::sync::Arc;

use l2::pdcp;

use super::flow::Flow;
use super::queue::Queue;
use super::stats::BearerStats;

/// Most radio bearers of a PDU session (TS 38.331: a UE has no more).
pub const MOST_BEARERS: usize = 32;
/// QoS flow identifiers have 6 bits.
pub const FLOWS: usize = 64;
/// No bearer.
const NONE: u8 = u8::MAX;

/// The far end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarEnd {
    /// Number of the interface by which it is reached.
    pub interface: u8,
    /// Its address.
    pub address: IpAddr,
    /// Its number as a peer.
    pub peer: u16,
    /// The tunnel there.
    pub teid: u32,
}

/// An end of a tunnel at the CU.
#[derive(Debug)]
pub enum End {
    /// On N3: packets to a UE.
    Session(Box<Session>),
    /// On F1-U: PDUs of a UE.
    Bearer(Box<Bearer>),
}

/// A PDU session: its QoS flows, and their bearers.
#[derive(Debug)]
pub struct Session {
    /// Number of the interface from which its packets come.
    pub interface: u8,
    /// Where its packets go.
    pub upf: FarEnd,
    /// Which bearer carries a QoS flow: a position in `bearers`.
    flows: [u8; FLOWS],
    /// For flows without a bearer, and packets without a flow: a position in `bearers`.
    default: u8,
    /// Our TEIDs on F1-U.
    bearers: [u32; MOST_BEARERS],
}

impl Session {
    /// A session without bearers.
    pub fn new(upf: FarEnd) -> Session {
        Session {
            interface: upf.interface,
            upf,
            flows: [NONE; FLOWS],
            default: NONE,
            bearers: [0; MOST_BEARERS],
        }
    }

    /// The bearer for a flow (TS 37.324 §5.2.1): our TEID on F1-U; 0 if there is none.
    #[inline(always)]
    pub fn bearer_of(&self, qfi: u8) -> u32 {
        let flow = self.flows[usize::from(qfi) % FLOWS];
        let at = if flow == NONE { self.default } else { flow };
        self.bearers.get(usize::from(at)).copied().unwrap_or(0)
    }

    /// Adds a bearer; `false` when there are too many.
    pub fn add(&mut self, teid: u32, flows: u64, default: bool) -> bool {
        let Some(at) = self.bearers.iter().position(|known| *known == 0) else { return false };
        self.bearers[at] = teid;
        for (qfi, bearer) in self.flows.iter_mut().enumerate() {
            if flows >> qfi & 1 != 0 {
                *bearer = at as u8;
            }
        }
        if default {
            self.default = at as u8;
        }
        true
    }

    /// The flows that a bearer carries, a bit each: its own, and on the default bearer those of no other one.
    pub fn flows_of(&self, teid: u32) -> u64 {
        (0..FLOWS as u8).filter(|qfi| self.bearer_of(*qfi) == teid).fold(0, |flows, qfi| flows | 1 << qfi)
    }

    /// Our TEIDs on F1-U.
    pub fn bearers(&self) -> impl Iterator<Item = u32> + use<> {
        self.bearers.into_iter().filter(|teid| *teid != 0)
    }

    /// Removes a bearer with its flows.
    pub fn remove(&mut self, teid: u32) {
        let Some(at) = self.bearers.iter().position(|known| *known == teid) else { return };
        self.bearers[at] = 0;
        let positions = self.flows.iter_mut().chain([&mut self.default]);
        positions.filter(|bearer| **bearer == at as u8).for_each(|bearer| *bearer = NONE);
    }
}

/// A data radio bearer: SDAP and PDCP between two tunnels.
#[derive(Debug)]
pub struct Bearer {
    /// Number of the interface from which its PDUs come.
    pub interface: u8,
    /// Our TEID on N3 of its session.
    pub session: u32,
    /// PDUs to the UE: PDCP.
    pub tx: pdcp::Tx,
    /// The rest of the way to the UE.
    pub down: Down,
    /// PDUs from the UE: PDCP.
    pub rx: pdcp::Rx,
    /// The rest of the way from the UE.
    pub up: Up,
    /// Counters.
    pub stats: Arc<BearerStats>,
    /// When the worker looks after this bearer again, as far as it has planned.
    pub due_ns: Option<u64>,
}

/// A bearer's way to the UE.
#[derive(Debug)]
pub struct Down {
    /// Whether packets have an SDAP header.
    pub header: bool,
    /// Where the DU takes PDUs; `None` until it has said so.
    pub du: Option<FarEnd>,
    /// NR-U sequence number of the next one.
    pub nr_u: u32,
    /// What the DU wants.
    pub flow: Flow,
    /// What it does not want yet.
    pub queue: Queue,
    /// When the DU is asked again what it wants, while packets wait.
    pub probe_ns: Option<u64>,
}

/// A bearer's way from the UE.
#[derive(Debug)]
pub struct Up {
    /// Whether packets have an SDAP header.
    pub header: bool,
    /// The flow of packets without.
    pub qfi: u8,
    /// The flows of the bearer, a bit each: the UE sends no others on it.
    pub flows: u64,
    /// Where the UPF takes packets.
    pub upf: FarEnd,
}

impl Bearer {
    /// When something has waited too long, or the DU is asked again.
    pub fn next_expiry_ns(&self) -> Option<u64> {
        let of_queue = self.down.queue.next_expiry_ns();
        self.rx.next_expiry().into_iter().chain(of_queue).chain(self.down.probe_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_has_its_bearer_or_the_default_one() {
        let upf = FarEnd { interface: 0, address: [192, 0, 2, 1].into(), peer: 1, teid: 1 };
        let mut session = Session::new(upf);
        assert_eq!(session.bearer_of(1), 0);
        assert!(session.add(10, 1 << 1 | 1 << 63, false));
        assert_eq!((session.bearer_of(1), session.bearer_of(63), session.bearer_of(2)), (10, 10, 0));
        assert!(session.add(20, 1 << 5, true));
        assert_eq!((session.bearer_of(5), session.bearer_of(2), session.bearer_of(255)), (20, 20, 10));
        assert_eq!(session.flows_of(10), 1 << 1 | 1 << 63);
        assert_eq!(session.flows_of(20), !(1 << 1 | 1 << 63));
        assert_eq!(session.bearers().collect::<Vec<_>>(), [10, 20]);
        session.remove(10);
        assert_eq!((session.bearer_of(1), session.bearer_of(63)), (20, 20));
        session.remove(20);
        assert_eq!(session.bearer_of(1), 0);
        assert!((1..=MOST_BEARERS as u32).all(|teid| session.add(teid, 0, false)));
        assert!(!session.add(99, 0, true));
    }
}
