//! The PDUs of a UE that wait for grants. Signalling has a queue of its own, which comes first: data that waits neither delays it nor
//! takes its room.

use std::collections::VecDeque;

/// Octets of memory of data that may wait.
const DATA: usize = 1 << 20;
/// The same of signalling.
const SIGNALLING: usize = 1 << 16;
/// Octets that an entry takes besides its data, about.
const OVERHEAD: usize = 64;

/// A PDU, and where it belongs.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) lcid: u8,
    /// TEID of its data bearer; `None` for signalling.
    pub(crate) teid: Option<u32>,
    pub(crate) pdu: Vec<u8>,
}

impl Waiting {
    fn memory(&self) -> usize {
        self.pdu.len() + OVERHEAD
    }
}

#[derive(Debug)]
struct Fifo {
    waiting: VecDeque<Waiting>,
    memory: usize,
    limit: usize,
}

impl Fifo {
    fn new(limit: usize) -> Fifo {
        Fifo { waiting: VecDeque::new(), memory: 0, limit }
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.memory -= waiting.memory();
        Some(waiting)
    }
}

/// The PDUs of a UE; see the module.
#[derive(Debug)]
pub(crate) struct UplinkQueue {
    signalling: Fifo,
    data: Fifo,
}

impl Default for UplinkQueue {
    fn default() -> UplinkQueue {
        UplinkQueue { signalling: Fifo::new(SIGNALLING), data: Fifo::new(DATA) }
    }
}

impl UplinkQueue {
    /// Adds a PDU; `false` if there is no room.
    pub(crate) fn push(&mut self, waiting: Waiting) -> bool {
        let fifo = if waiting.teid.is_none() { &mut self.signalling } else { &mut self.data };
        if fifo.memory + waiting.memory() > fifo.limit {
            return false;
        }
        fifo.memory += waiting.memory();
        fifo.waiting.push_back(waiting);
        true
    }

    /// Takes the PDU that is next.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        self.signalling.pop().or_else(|| self.data.pop())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.signalling.waiting.len() + self.data.waiting.len()
    }

    /// Discards the PDUs of a bearer; returns how many.
    pub(crate) fn discard(&mut self, teid: u32) -> usize {
        let before = self.data.waiting.len();
        let memory = &mut self.data.memory;
        self.data.waiting.retain(|waiting| {
            let keep = waiting.teid != Some(teid);
            *memory -= if keep { 0 } else { waiting.memory() };
            keep
        });
        before - self.data.waiting.len()
    }
}
