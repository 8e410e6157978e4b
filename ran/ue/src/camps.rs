//! Cells whose broadcasts this process wants (`docs/uu.md`): their DUs are told again and again.

use std::net::SocketAddr;

use l2::uu::{CAMP_INTERVAL_S, Header};

/// Time between two camps until the cell has broadcast something: its DU may not be there yet.
const IMPATIENT_NS: u64 = 500_000_000;
const INTERVAL_NS: u64 = CAMP_INTERVAL_S * 1_000_000_000;

struct Camp {
    cell: u64,
    du: SocketAddr,
    next_ns: u64,
    heard: bool,
}

/// The cells.
#[derive(Default)]
pub(crate) struct Camps(Vec<Camp>);

impl Camps {
    /// Wants the broadcasts of a cell from now on.
    pub(crate) fn add(&mut self, cell: u64, du: SocketAddr) {
        if !self.0.iter().any(|camp| camp.cell == cell && camp.du == du) {
            self.0.push(Camp { cell, du, next_ns: 0, heard: false });
        }
    }

    /// Whether a broadcast is one of those that are wanted.
    pub(crate) fn hear(&mut self, cell: u64, du: SocketAddr) -> bool {
        let camp = self.0.iter_mut().find(|camp| camp.cell == cell && camp.du == du);
        camp.map(|camp| camp.heard = true).is_some()
    }

    /// When something is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.0.iter().map(|camp| camp.next_ns).min()
    }

    /// The datagrams that are due.
    pub(crate) fn due(&mut self, now_ns: u64) -> Vec<(Vec<u8>, SocketAddr)> {
        let due = self.0.iter_mut().filter(|camp| camp.next_ns <= now_ns);
        due.map(|camp| {
            camp.next_ns = now_ns + if camp.heard { INTERVAL_NS } else { IMPATIENT_NS };
            (Header::camp(camp.cell).datagram(&[]), camp.du)
        })
        .collect()
    }
}
