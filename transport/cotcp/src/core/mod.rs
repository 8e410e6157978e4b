//! The protocol without sockets and clocks: [`Client`] and [`Server`], one of each per connection.
//!
//! # Polling contract
//!
//! Both are driven alike; every `now` comes from the caller and never goes back.
//!
//! 1. **In.** While `wants_input()` is true, read from the stream into `input()` (reserve at least 16 KiB before), then
//!    call `poll(now)` until it gives `Ok(None)`. Each call decodes as far as the next event; nothing is queued, so a
//!    server can answer a request before it polls again, and then no table is touched. While `wants_input()` is false
//!    do not read, and poll again after output was written or calls were answered: there may be whole frames left.
//!    Bodies are slices of what was read: keep one for long and it keeps the buffer; copy it instead.
//! 2. **Out.** `fill(now)` moves fragments of long messages into the outbox while little waits there. Then write
//!    `output()` (it is a [`bytes::Buf`] with vectored chunks), `advance` it by what the stream took, and go on until it
//!    is empty after a `fill` or the stream takes no more. Call `fill` before each write; it also watches for a peer
//!    that reads nothing. Calls, answers and `poll` put small frames straight into the outbox: write after them. `fill` may
//!    end calls and make room for parts: poll again when `wants_poll()` says so. A client's `capacity()` may have grown.
//! 3. **Time.** `deadline()` says when to call `time_out(now)`, if nothing else is called before; ask again after each
//!    round of the above. It may be early, never late. Poll after `time_out`.
//! 4. **The end.** `end_of_stream()` when the stream ended, `lose(error)` when it failed or is to be closed. `poll` then
//!    gives an event for each open call, and after that the error, now and for ever. The same happens when the peer
//!    breaks the protocol. After the error: try once to write `output()`, which may hold a GO_AWAY, and close.
//!    `is_drained()` says that one side has gone away and all calls are done: close.
//!
//! # What is bounded by what
//!
//! Calls by `max_calls`, messages that are assembled by `assembly_budget`, parts not consumed by the windows, the outbox
//! by `max_output` (a client then opens no calls, a server takes no requests), long messages that wait to be sent by
//! `max_queued`, and answers to PINGs by the abuse limit and the write time-out.
//!
//! Flow through the files: `link` is what both sides share (splitting frames, version, credit of the connection,
//! keep-alive, abuse, time-outs); `message` is one message being sent or received; `queue` says whose fragment is
//! next; [`client`] and [`server`] are the state machines; `slab` and `table` find calls.

pub mod client;
mod link;
mod message;
pub mod outbox;
mod queue;
pub mod server;
mod slab;
mod table;

use std::fmt;

pub use client::{CallOptions, Client, ClientEvent};
pub use outbox::Outbox;
pub use server::{Request, RequestId, Server, ServerEvent};

/// The version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// No HELLO has arrived yet. Only version 1 frames are sent.
    Undecided,
    /// The peer speaks version 1.
    V1,
    /// Both speak version 2.
    V2,
}

/// Identifies a call of a [`Client`]: the call's ID on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u32);

impl CallId {
    const PLACE_BITS: u32 = 16;
    const GENERATIONS: u16 = (1 << 14) - 1;

    fn new(place: u32, generation: u16) -> Self {
        Self(u32::from(generation) << Self::PLACE_BITS | place)
    }

    /// A small number that no other open call has. The driver uses it as an index.
    #[must_use]
    #[inline]
    pub fn place(self) -> usize {
        (self.0 & ((1 << Self::PLACE_BITS) - 1)) as usize
    }

    fn generation(self) -> u16 {
        (self.0 >> Self::PLACE_BITS) as u16
    }

    /// The ID on the wire.
    #[must_use]
    pub fn wire(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.place(), self.generation())
    }
}
