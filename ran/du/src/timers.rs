//! What the worker does at a given time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

/// Something to do. Who has it done checks whether it still applies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Task {
    /// Send the delivery status of the bearer with this TEID.
    Status(u32),
    /// RLC's t-Reassembly of the bearer with this TEID.
    Reassembly(u32),
    /// Timers of the signalling bearers of the UE with this C-RNTI and serial number.
    Signalling(u16, u64),
    /// An Echo Request to a CU, by interface and address.
    Echo(u8, SocketAddr),
    /// Grants of a slot.
    Slot,
    /// The UE with this C-RNTI and serial number has had its time to send a first message.
    FirstMessage(u16, u64),
    /// The UE with this C-RNTI and serial number, which control has released, may have got its last message.
    Leave(u16, u64),
}

/// Tasks by time.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(u64, Task)>>);

impl Timers {
    pub(crate) fn set(&mut self, at_ns: u64, task: Task) {
        self.0.push(Reverse((at_ns, task)));
    }

    /// When the next task is due.
    #[inline]
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Takes the next task and its time if it is due.
    #[inline]
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<(u64, Task)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.0.pop().map(|Reverse(task)| task)
    }
}
