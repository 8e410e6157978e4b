//! The transmitting side (§5.2.3.1, §5.3.2, §5.3.3).
//!
//! An SDU gets its sequence number when its first octets are sent. Sequence numbers are counted on in 64 bits here; on the
//! wire they are the lower bits of these.

use std::collections::{BTreeSet, VecDeque};

use super::super::{PduError, SduError, SegmentInfo, admit};
use super::pdu::{END_OF_SDU, Header, Nack, SnLength, Status, set_poll};
use super::{Config, Failure};

/// Octets that an SDU takes besides its data, about.
const OVERHEAD: usize = 96;

/// An SDU that has a sequence number.
#[derive(Debug)]
struct Sent<T> {
    /// Empty once it was acknowledged.
    sdu: Vec<u8>,
    mark: Option<T>,
    /// Octets that have been sent: less than all only for the last SDU.
    octets: usize,
    /// What is to be sent again: ranges in order.
    pending: Vec<(usize, usize)>,
    retx_count: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Tx<T> {
    config: Config,
    /// First SDU that was not acknowledged: the begin of the window.
    tx_next_ack: u64,
    /// Highest SDU when the last poll was sent.
    poll_sn: u64,
    pdu_without_poll: u32,
    byte_without_poll: usize,
    /// SDUs from `tx_next_ack` to TX_Next.
    sent: VecDeque<Sent<T>>,
    /// SDUs of which something is to be sent again.
    retransmit: BTreeSet<u64>,
    waiting: VecDeque<(Vec<u8>, T)>,
    /// Octets of memory of all SDUs.
    memory: usize,
    t_poll_retransmit_until_ns: Option<u64>,
    /// The next PDU asks for a status.
    poll_due: bool,
    failure: Option<Failure>,
}

impl<T> Tx<T> {
    pub(super) fn new(config: Config) -> Tx<T> {
        Tx {
            config,
            tx_next_ack: 0,
            poll_sn: 0,
            pdu_without_poll: 0,
            byte_without_poll: 0,
            sent: VecDeque::new(),
            retransmit: BTreeSet::new(),
            waiting: VecDeque::new(),
            memory: 0,
            t_poll_retransmit_until_ns: None,
            poll_due: false,
            failure: None,
        }
    }

    pub(super) fn push(&mut self, sdu: Vec<u8>, mark: T) -> Result<(), SduError> {
        admit(sdu.len(), self.memory + OVERHEAD, self.config.tx_limit)?;
        self.memory += sdu.len() + OVERHEAD;
        self.waiting.push_back((sdu, mark));
        Ok(())
    }

    fn tx_next(&self) -> u64 {
        self.tx_next_ack + self.sent.len() as u64
    }

    fn wire(&self, sn: u64) -> u32 {
        (sn & u64::from(self.config.sn.modulo().mask)) as u32
    }

    /// Whether the window lets another SDU get a sequence number.
    fn is_stalled(&self) -> bool {
        self.sent.len() as u64 >= u64::from(self.config.sn.modulo().window())
    }

    /// Whether an SDU has been sent in part.
    fn has_begun(&self) -> bool {
        self.sent.back().is_some_and(|sent| sent.octets < sent.sdu.len())
    }

    /// Whether there is something to send, or to send again.
    pub(super) fn has_data(&self) -> bool {
        self.failure.is_none()
            && (!self.retransmit.is_empty()
                || self.has_begun()
                || (!self.waiting.is_empty() && !self.is_stalled()))
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure
    }

    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Writes the next data PDU; `None` if there is none, or no room for it.
    pub(super) fn pull(&mut self, grant: usize, now_ns: u64, out: &mut Vec<u8>) -> Option<usize> {
        if self.failure.is_some() {
            return None;
        }
        let before = out.len();
        if let Some(sn) = self.retransmit.first().copied() {
            self.again(sn, grant, out)?;
        } else {
            let new = self.next_part(grant, out)?;
            self.pdu_without_poll += 1;
            self.byte_without_poll += new;
        }
        let enough = self.config.poll_pdu.is_some_and(|most| self.pdu_without_poll >= most)
            || self.config.poll_byte.is_some_and(|most| self.byte_without_poll >= most);
        if enough || self.poll_due || !self.has_data() {
            set_poll(&mut out[before..]);
            (self.pdu_without_poll, self.byte_without_poll, self.poll_due) = (0, 0, false);
            self.poll_sn = self.tx_next() - 1;
            self.t_poll_retransmit_until_ns = Some(now_ns.saturating_add(self.config.t_poll_retransmit_ns));
        }
        Some(out.len() - before)
    }

    /// Sends a part of an SDU again.
    fn again(&mut self, sn: u64, grant: usize, out: &mut Vec<u8>) -> Option<()> {
        let (length, wire) = (self.config.sn, self.wire(sn));
        let sent = self.sent.get_mut((sn - self.tx_next_ack) as usize)?;
        let (from, to) = *sent.pending.first()?;
        let octets = write_part(&sent.sdu, from, to, wire, length, grant, out)?;
        if from + octets == to {
            sent.pending.remove(0);
        } else {
            sent.pending[0].0 = from + octets;
        }
        if sent.pending.is_empty() {
            self.retransmit.remove(&sn);
        }
        Some(())
    }

    /// Sends the next octets of the SDU that was begun, or of the next one; returns how many.
    fn next_part(&mut self, grant: usize, out: &mut Vec<u8>) -> Option<usize> {
        let length = self.config.sn;
        if self.has_begun() {
            let wire = self.wire(self.tx_next() - 1);
            let sent = self.sent.back_mut()?;
            let octets = write_part(&sent.sdu, sent.octets, sent.sdu.len(), wire, length, grant, out)?;
            sent.octets += octets;
            return Some(octets);
        }
        if self.is_stalled() {
            return None;
        }
        let (sdu, _) = self.waiting.front()?;
        let octets = write_part(sdu, 0, sdu.len(), self.wire(self.tx_next()), length, grant, out)?;
        let (sdu, mark) = self.waiting.pop_front()?;
        self.sent.push_back(Sent { sdu, mark: Some(mark), octets, pending: Vec::new(), retx_count: None });
        Some(octets)
    }

    /// Handles a status; returns the marks of the SDUs that have arrived.
    pub(super) fn acknowledge(&mut self, status: &Status) -> Result<Vec<T>, PduError> {
        let ack = self.check(status)?;
        if self.tx_next_ack <= self.poll_sn && self.poll_sn < ack {
            self.t_poll_retransmit_until_ns = None;
        }
        let mut counted = None;
        let mut arrived = Vec::new();
        let mut next = self.tx_next_ack;
        for nack in &status.nacks {
            let first = self.unwrap(nack.sn);
            for sn in next..first {
                self.arrived(sn, &mut arrived);
            }
            for at in 0..u64::from(nack.range) {
                let sn = first + at;
                self.missing(sn, missing_part(nack, at), counted != Some(sn));
                counted = Some(sn);
            }
            next = next.max(first + u64::from(nack.range));
        }
        for sn in next..ack {
            self.arrived(sn, &mut arrived);
        }
        while self.sent.front().is_some_and(|sent| sent.mark.is_none()) {
            self.sent.pop_front();
            self.tx_next_ack += 1;
            self.memory -= OVERHEAD;
        }
        Ok(arrived)
    }

    /// The number of which a number on the wire is the lower bits, from the window's begin on.
    fn unwrap(&self, sn: u32) -> u64 {
        self.tx_next_ack + u64::from(self.config.sn.modulo().distance(self.wire(self.tx_next_ack), sn))
    }

    /// Checks a status against what was sent, before anything changes; returns its ACK_SN. NACKs are in order, before
    /// ACK_SN, and name octets that their SDUs have.
    fn check(&self, status: &Status) -> Result<u64, PduError> {
        let ack = self.unwrap(status.ack_sn);
        if ack > self.tx_next() {
            return Err(PduError::Status);
        }
        // The SDU of the last NACK, and the octet behind it.
        let mut behind = (self.tx_next_ack, 0);
        let mut nacked = None;
        for nack in &status.nacks {
            let first = self.unwrap(nack.sn);
            let last = first + u64::from(nack.range) - 1;
            let (start, end) = nack.part.unwrap_or((0, END_OF_SDU));
            let start = (first, u32::from(start));
            if start < behind || last >= ack {
                return Err(PduError::Status);
            }
            let len = |sn: u64| self.sent.get((sn - self.tx_next_ack) as usize).map(|sent| &sent.sdu);
            // An SDU that was acknowledged before has no octets any more.
            let reaches =
                |sn, so: u32| len(sn).is_some_and(|sdu| sdu.is_empty() || (so as usize) < sdu.len());
            if !reaches(first, start.1) || (end != END_OF_SDU && !reaches(last, end.into())) {
                return Err(PduError::Status);
            }
            behind = if end == END_OF_SDU { (last + 1, 0) } else { (last, u32::from(end) + 1) };
            nacked = Some(last);
        }
        // The far end cannot have all of an SDU of which only a part was sent.
        let is_partial = self.has_begun() && ack == self.tx_next();
        if is_partial && nacked != Some(ack - 1) { Err(PduError::Status) } else { Ok(ack) }
    }

    fn arrived(&mut self, sn: u64, arrived: &mut Vec<T>) {
        let Some(sent) = self.sent.get_mut((sn - self.tx_next_ack) as usize) else { return };
        if let Some(mark) = sent.mark.take() {
            self.memory -= sent.sdu.len();
            (sent.sdu, sent.pending, sent.octets) = (Vec::new(), Vec::new(), 0);
            self.retransmit.remove(&sn);
            arrived.push(mark);
        }
    }

    /// Considers a part of an SDU for retransmission (§5.3.2): the octets up to `part.1`. `counts` is not set for further parts of an
    /// SDU in one status.
    fn missing(&mut self, sn: u64, part: (usize, usize), counts: bool) {
        let Some(sent) = self.sent.get_mut((sn - self.tx_next_ack) as usize) else { return };
        let (from, to) = (part.0, part.1.min(sent.octets));
        // It was acknowledged, or has not been sent as far as that.
        if sent.mark.is_none() || from >= to {
            return;
        }
        if counts && sent.pending.is_empty() {
            let count = sent.retx_count.map_or(0, |count| count + 1);
            sent.retx_count = Some(count);
            if count >= self.config.max_retx_threshold {
                self.failure = Some(Failure::MaxRetransmissions);
            }
        }
        let at = sent.pending.partition_point(|(begin, _)| *begin < from);
        sent.pending.insert(at, (from, to));
        // Ranges that overlap become one.
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(sent.pending.len());
        for (from, to) in sent.pending.drain(..) {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        sent.pending = merged;
        self.retransmit.insert(sn);
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.t_poll_retransmit_until_ns.filter(|_| self.failure.is_none())
    }

    /// t-PollRetransmit may have expired (§5.3.3.4).
    pub(super) fn expire(&mut self, now_ns: u64) {
        if self.t_poll_retransmit_until_ns.is_none_or(|until_ns| now_ns < until_ns) {
            return;
        }
        self.t_poll_retransmit_until_ns = None;
        self.poll_due = true;
        if !self.has_data()
            && let Some(at) = self.sent.iter().rposition(|sent| sent.mark.is_some())
        {
            self.missing(self.tx_next_ack + at as u64, (0, usize::MAX), true);
        }
    }
}

/// The octets of the SDU at a position of a NACK's range that have not arrived.
fn missing_part(nack: &Nack, at: u64) -> (usize, usize) {
    let (start, end) = nack.part.unwrap_or((0, END_OF_SDU));
    let from = if at == 0 { usize::from(start) } else { 0 };
    let is_last = at + 1 == u64::from(nack.range);
    let to = if is_last && end != END_OF_SDU { usize::from(end) + 1 } else { usize::MAX };
    (from, to)
}

/// Writes a PDU with octets of an SDU from `from` on, up to `to`; returns how many. `None`: the grant has no room for any.
fn write_part(
    sdu: &[u8],
    from: usize,
    to: usize,
    sn: u32,
    length: SnLength,
    grant: usize,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let room = grant.checked_sub(length.header_len(from > 0)).filter(|room| *room > 0)?;
    let octets = room.min(to - from);
    let si = SegmentInfo::of_part(from, octets, sdu.len());
    Header { poll: false, si, sn, so: from as u16 }.write(length, out);
    out.extend_from_slice(&sdu[from..from + octets]);
    Some(octets)
}
