//! Random access (`docs/uu.md`): how a UE gets its C-RNTI.
//!
//! A preamble is repeated with the same identity until the DU answers. A DU that answers with backoff is asked again later.

use std::net::SocketAddr;

use l2::uu::{self, ContentionIdentity, Header, Kind};

use crate::control::{Refused, Reply, UeId};

/// Time to the next preamble when nothing comes.
const REPEAT_NS: u64 = 100_000_000;
/// Time to the next preamble after a backoff.
const BACKOFF_NS: u64 = 1_000_000_000;
/// Preambles of one random access (preambleTransMax of TS 38.321 is 3 to 200).
const PREAMBLES: u32 = 10;
/// Most time that a random access may take, however often the DU asks to wait: then nobody waits for it any more.
const LONGEST_NS: u64 = 15_000_000_000;
/// Most random accesses at once.
const MOST: usize = 1_024;

/// A random access that waits for its answer.
struct Access {
    cell: u64,
    du: SocketAddr,
    identity: ContentionIdentity,
    /// When its next preamble is due.
    next_ns: u64,
    /// When it is given up.
    until_ns: u64,
    /// Preambles sent.
    sent: u32,
    reply: Reply<UeId>,
}

/// The random accesses under way.
#[derive(Default)]
pub(crate) struct Accesses(Vec<Access>);

/// What an answer of a DU ends.
pub(crate) struct Answered {
    pub(crate) cell: u64,
    pub(crate) du: SocketAddr,
    pub(crate) c_rnti: u16,
    pub(crate) reply: Reply<UeId>,
}

impl Accesses {
    /// Begins a random access, whose first preamble is due at once.
    pub(crate) fn begin(
        &mut self,
        cell: u64,
        du: SocketAddr,
        identity: ContentionIdentity,
        now_ns: u64,
        reply: Reply<UeId>,
    ) {
        let same = |known: &Access| known.cell == cell && known.du == du && known.identity == identity;
        let until_ns = now_ns + LONGEST_NS;
        let refused = if du.port() == 0 {
            Refused::Value
        } else if self.0.iter().any(same) {
            Refused::InUse
        } else if self.0.len() == MOST {
            Refused::Full
        } else {
            self.0.push(Access { cell, du, identity, next_ns: now_ns, until_ns, sent: 0, reply });
            return;
        };
        let _ = reply.give(Err(refused));
    }

    /// When something is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.0.iter().map(|access| access.next_ns).min()
    }

    /// Calls `send` with the preambles that are due, and ends accesses that got no answer.
    pub(crate) fn turn(&mut self, now_ns: u64, mut send: impl FnMut(&[u8], SocketAddr)) {
        let (given_up, kept): (Vec<Access>, Vec<Access>) =
            std::mem::take(&mut self.0).into_iter().partition(|access| {
                access.next_ns <= now_ns && (access.sent == PREAMBLES || access.until_ns <= now_ns)
            });
        self.0 = kept;
        for access in given_up {
            let _ = access.reply.give(Err(Refused::NoAnswer));
        }
        for access in self.0.iter_mut().filter(|access| access.next_ns <= now_ns) {
            let header = Header { kind: Kind::Preamble, c_rnti: 0, lcid: 0, cell: access.cell };
            send(&header.datagram(&access.identity), access.du);
            access.sent += 1;
            access.next_ns = now_ns + REPEAT_NS;
        }
    }

    /// Handles an answer; `None` when it is not to one of ours, or asks to wait.
    pub(crate) fn answer(
        &mut self,
        header: &Header,
        payload: &[u8],
        du: SocketAddr,
        now_ns: u64,
    ) -> Option<Answered> {
        let identity = uu::contention_identity(payload)?;
        let is_asked =
            |known: &Access| known.cell == header.cell && known.du == du && known.identity == identity;
        let at = self.0.iter().position(is_asked)?;
        if header.kind == Kind::Backoff {
            self.0[at].next_ns = (now_ns + BACKOFF_NS).min(self.0[at].until_ns);
            return None;
        }
        let Access { cell, du, reply, .. } = self.0.swap_remove(at);
        Some(Answered { cell, du, c_rnti: header.c_rnti, reply })
    }
}
