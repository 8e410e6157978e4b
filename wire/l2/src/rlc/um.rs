//! Unacknowledged mode (§5.2.2, §6.2.2.3).
//!
//! ```text
//!  SI=0 R                      an SDU in one piece: no sequence number
//!  SI SN(6)          [SO]      a segment; 6 bits: the offset SO (16 bits) is there unless it is the first
//!  SI R  SN(4) SN(8) [SO]      a segment; 12 bits
//! ```
//! SDUs in one piece need no entity: [`HEADER_OF_WHOLE`] goes in front of them, and [`is_whole`] says that what is behind
//! the first octet of a PDU is an SDU. [`Tx`] queues SDUs and cuts them to the size of grants; [`Rx`] puts
//! segments together.

use std::collections::{BTreeMap, VecDeque};

use super::segments::Segments;
use super::{Modulo, PduError, SduError, SegmentInfo, admit};

/// Octets of the longest header: 12-bit sequence number and offset.
pub const LONGEST_HEADER: usize = 4;
/// The header of an SDU in one piece.
pub const HEADER_OF_WHOLE: u8 = 0;
/// Octets that an entity keeps of SDUs under reassembly, unless told otherwise.
pub const REASSEMBLY_LIMIT: usize = 256 * 1024;

/// Octets that an SDU in a queue takes besides its data, about.
pub const OVERHEAD: usize = 64;

/// Whether the octets behind the first one are an SDU. Reserved bits are ignored.
#[inline(always)]
pub fn is_whole(pdu: &[u8]) -> bool {
    pdu.len() > 1 && pdu[0] & 0xC0 == 0
}

/// Length of the sequence number (sn-FieldLength of TS 38.331).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SnLength {
    /// 6 bits.
    Bits6,
    /// 12 bits.
    Bits12,
}

impl SnLength {
    fn modulo(self) -> Modulo {
        match self {
            SnLength::Bits6 => Modulo::of_bits(6),
            SnLength::Bits12 => Modulo::of_bits(12),
        }
    }

    /// Octets of the header of a segment.
    fn header_len(self, has_offset: bool) -> usize {
        let sn = match self {
            SnLength::Bits6 => 1,
            SnLength::Bits12 => 2,
        };
        sn + if has_offset { 2 } else { 0 }
    }
}

/// The header of a UMD PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// Of an SDU in one piece.
    Whole,
    /// Of a segment.
    Segment {
        /// Which segment: not the whole.
        si: SegmentInfo,
        /// Sequence number of its SDU.
        sn: u16,
        /// Its offset in the SDU: 0 for the first segment only.
        so: u16,
    },
}

impl Header {
    /// Reads a PDU's header; returns it and the data, which has at least one octet.
    ///
    /// # Errors
    /// The PDU is truncated, or a segment that is not the first has offset 0.
    pub fn parse(pdu: &[u8], length: SnLength) -> Result<(Header, &[u8]), PduError> {
        let first = *pdu.first().ok_or(PduError::Truncated)?;
        let si = SegmentInfo::of_upper_bits(first);
        if si == SegmentInfo::Whole {
            return if pdu.len() > 1 { Ok((Header::Whole, &pdu[1..])) } else { Err(PduError::Truncated) };
        }
        let (sn, rest) = match (length, pdu) {
            (SnLength::Bits6, [_, rest @ ..]) => (u16::from(first & 0x3F), rest),
            (SnLength::Bits12, [_, low, rest @ ..]) => (u16::from_be_bytes([first & 0x0F, *low]), rest),
            _ => return Err(PduError::Truncated),
        };
        let (so, data) = match rest {
            _ if !si.has_offset() => (0, rest),
            [high, low, data @ ..] => (u16::from_be_bytes([*high, *low]), data),
            _ => return Err(PduError::Truncated),
        };
        if data.is_empty() {
            return Err(PduError::Truncated);
        }
        if si.has_offset() && so == 0 {
            return Err(PduError::Inconsistent);
        }
        Ok((Header::Segment { si, sn, so }, data))
    }

    /// Writes the header behind what `out` holds.
    pub fn write(&self, length: SnLength, out: &mut Vec<u8>) {
        match *self {
            Header::Whole => out.push(HEADER_OF_WHOLE),
            Header::Segment { si, sn, so } => {
                let [high, low] = sn.to_be_bytes();
                match length {
                    SnLength::Bits6 => out.push(si.bits() << 6 | low & 0x3F),
                    SnLength::Bits12 => out.extend([si.bits() << 6 | high & 0x0F, low]),
                }
                if si.has_offset() {
                    out.extend(so.to_be_bytes());
                }
            }
        }
    }
}

/// What [`Tx::pull`] has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pulled<T> {
    /// Octets of the PDU.
    pub octets: usize,
    /// The mark of the SDU whose last octet the PDU carries.
    pub finished: Option<T>,
}

/// A transmitting entity: a queue of SDUs, each with a mark of the caller, that leave in PDUs as long as grants allow.
#[derive(Debug)]
pub struct Tx<T> {
    length: SnLength,
    /// Sequence number of the next SDU that is segmented, or of the one that is being sent in segments.
    tx_next: u32,
    queue: VecDeque<(Vec<u8>, T)>,
    /// Octets of the first SDU that have been sent.
    sent: usize,
    /// Octets of all SDUs in the queue that have not been sent.
    backlog: usize,
    /// Octets of memory of the queue, and how many it may take.
    memory: usize,
    limit: usize,
}

impl<T> Tx<T> {
    /// An entity whose queue takes up to `limit` octets of memory, with [`OVERHEAD`] for each SDU.
    pub fn new(length: SnLength, limit: usize) -> Tx<T> {
        Tx { length, tx_next: 0, queue: VecDeque::new(), sent: 0, backlog: 0, memory: 0, limit }
    }

    /// Queues an SDU.
    ///
    /// # Errors
    /// The SDU's length, or no room. The SDU is lost.
    pub fn push(&mut self, sdu: Vec<u8>, mark: T) -> Result<(), SduError> {
        admit(sdu.len(), self.memory + OVERHEAD, self.limit)?;
        self.backlog += sdu.len();
        self.memory += sdu.len() + OVERHEAD;
        self.queue.push_back((sdu, mark));
        Ok(())
    }

    /// Writes the next PDU, of `grant` octets at most, behind what `out` holds. `None`: nothing is waiting, or the grant has
    /// no room for a header and an octet.
    pub fn pull(&mut self, grant: usize, out: &mut Vec<u8>) -> Option<Pulled<T>> {
        let (sdu, _) = self.queue.front()?;
        let rest = &sdu[self.sent..];
        let (header, octets) = if self.sent == 0 && rest.len() < grant {
            (Header::Whole, rest.len())
        } else {
            let room = grant.checked_sub(self.length.header_len(self.sent > 0)).filter(|room| *room > 0)?;
            let octets = room.min(rest.len());
            let si = SegmentInfo::of_part(self.sent, octets, sdu.len());
            // Both fit: an SDU is shorter than 65,536 octets.
            (Header::Segment { si, sn: self.tx_next as u16, so: self.sent as u16 }, octets)
        };
        let before = out.len();
        header.write(self.length, out);
        out.extend_from_slice(&rest[..octets]);
        let ended = octets == rest.len();
        self.sent += octets;
        self.backlog -= octets;
        let finished = if ended {
            if header != Header::Whole {
                self.tx_next = self.length.modulo().add(self.tx_next, 1);
            }
            self.sent = 0;
            let ended = self.queue.pop_front();
            ended.map(|(sdu, mark)| {
                self.memory -= sdu.len() + OVERHEAD;
                mark
            })
        } else {
            None
        };
        Some(Pulled { octets: out.len() - before, finished })
    }

    /// Discards the SDUs for whose mark `which` says so, and of which nothing has been sent (§5.4). Returns how many.
    pub fn discard(&mut self, mut which: impl FnMut(&T) -> bool) -> usize {
        let before = self.queue.len();
        let (mut position, sent) = (0, self.sent);
        let (backlog, memory) = (&mut self.backlog, &mut self.memory);
        self.queue.retain(|(sdu, mark)| {
            let begun = position == 0 && sent > 0;
            position += 1;
            let discard = !begun && which(mark);
            if discard {
                *backlog -= sdu.len();
                *memory -= sdu.len() + OVERHEAD;
            }
            !discard
        });
        before - self.queue.len()
    }

    /// Octets of SDUs that wait.
    pub fn backlog(&self) -> usize {
        self.backlog
    }

    /// SDUs of which octets wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Discards all SDUs and begins with sequence number 0 (re-establishment, §5.1.2). Returns how many SDUs were lost.
    pub fn reset(&mut self) -> usize {
        let lost = self.queue.len();
        self.queue.clear();
        (self.sent, self.backlog, self.memory, self.tx_next) = (0, 0, 0, 0);
        lost
    }
}

/// What [`Rx::receive`] has made of a PDU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// The octets behind the PDU's first one are an SDU.
    Whole,
    /// The PDU completes this SDU.
    Sdu(Vec<u8>),
    /// The segment waits for others of its SDU.
    Kept,
}

/// A receiving entity: puts segments together and gives up SDUs that do not become whole in time.
#[derive(Debug)]
pub struct Rx {
    modulo: Modulo,
    length: SnLength,
    t_reassembly_ns: u64,
    /// Earliest SDU that is still waited for.
    rx_next_reassembly: u32,
    /// Behind the highest sequence number that has come: the end of the window.
    rx_next_highest: u32,
    /// Behind the sequence number that started t-Reassembly.
    rx_timer_trigger: u32,
    /// When t-Reassembly expires, while it runs.
    t_reassembly_until_ns: Option<u64>,
    /// SDUs from `rx_next_reassembly` on of which something has come.
    sdus: BTreeMap<u32, Sdu>,
    /// Octets of memory that `sdus` takes, and may take.
    memory: usize,
    limit: usize,
    /// SDUs of which segments had come and that were given up.
    given_up: u64,
}

#[derive(Debug)]
enum Sdu {
    Segments(Segments),
    Delivered,
}

impl Sdu {
    fn memory(&self) -> usize {
        match self {
            Sdu::Segments(segments) => segments.memory(),
            // There are no more of these than the window has numbers.
            Sdu::Delivered => 0,
        }
    }
}

impl Rx {
    /// SDUs of which some segments have come, and not all.
    pub fn incomplete(&self) -> usize {
        self.sdus.values().filter(|sdu| matches!(sdu, Sdu::Segments(_))).count()
    }

    /// An entity whose t-Reassembly takes `t_reassembly_ns`, and which keeps `limit` octets at most.
    pub fn new(length: SnLength, t_reassembly_ns: u64, limit: usize) -> Rx {
        Rx {
            modulo: length.modulo(),
            length,
            t_reassembly_ns,
            rx_next_reassembly: 0,
            rx_next_highest: 0,
            rx_timer_trigger: 0,
            t_reassembly_until_ns: None,
            sdus: BTreeMap::new(),
            memory: 0,
            limit,
            given_up: 0,
        }
    }

    /// Handles a PDU (§5.2.2.2).
    ///
    /// # Errors
    /// The PDU is discarded, and nothing else has changed.
    #[inline]
    pub fn receive(&mut self, pdu: &[u8], now_ns: u64) -> Result<Received, PduError> {
        if is_whole(pdu) { Ok(Received::Whole) } else { self.segment(pdu, now_ns) }
    }

    fn segment(&mut self, pdu: &[u8], now_ns: u64) -> Result<Received, PduError> {
        let (Header::Segment { si, sn, so }, data) = Header::parse(pdu, self.length)? else {
            return Err(PduError::Truncated);
        };
        let sn = u32::from(sn);
        if self.ahead(sn) < self.ahead(self.rx_next_reassembly) {
            return Err(PduError::OutsideWindow);
        }
        let whole = self.keep(sn, so, data, si.is_end())?;
        let sdu = if whole {
            self.deliver(sn)
        } else {
            if self.is_outside(sn) {
                self.extend_window(sn);
            }
            None
        };
        self.run_timer(now_ns);
        Ok(sdu.map_or(Received::Kept, Received::Sdu))
    }

    /// Position of a sequence number from the window's begin on: below the window's size if it is within.
    fn ahead(&self, sn: u32) -> u32 {
        self.modulo.distance(self.window_begin(), sn)
    }

    fn window_begin(&self) -> u32 {
        self.modulo.distance(self.modulo.window(), self.rx_next_highest)
    }

    fn is_outside(&self, sn: u32) -> bool {
        self.ahead(sn) >= self.modulo.window()
    }

    /// Adds a segment to its SDU; returns whether that is whole now.
    fn keep(&mut self, sn: u32, so: u16, data: &[u8], is_end: bool) -> Result<bool, PduError> {
        let known = match self.sdus.get(&sn) {
            Some(Sdu::Delivered) => return Err(PduError::OutsideWindow),
            Some(Sdu::Segments(segments)) => Some(segments),
            None => None,
        };
        let none = Segments::default();
        let before = known.map_or(0, Segments::memory);
        let more = known.unwrap_or(&none).check(so, data, is_end)?;
        let new = if before == 0 { none.memory() } else { 0 };
        if self.memory + new + more > self.limit {
            return Err(PduError::NoRoom);
        }
        let entry = self.sdus.entry(sn).or_insert_with(|| Sdu::Segments(none));
        let Sdu::Segments(segments) = entry else { return Err(PduError::OutsideWindow) };
        segments.insert(so, data, is_end);
        self.memory = self.memory - before + segments.memory();
        Ok(segments.is_whole())
    }

    /// Takes an SDU that is whole.
    fn deliver(&mut self, sn: u32) -> Option<Vec<u8>> {
        let Some(Sdu::Segments(segments)) = self.sdus.insert(sn, Sdu::Delivered) else { return None };
        self.memory -= segments.memory();
        if sn == self.rx_next_reassembly {
            self.wait_from(sn);
        }
        Some(segments.into_sdu())
    }

    /// Sets RX_Next_Reassembly to the first SDU from `sn` on that has not been delivered. Incomplete SDUs
    /// before it are given up.
    fn wait_from(&mut self, sn: u32) {
        let mut next = sn;
        while matches!(self.sdus.get(&next), Some(Sdu::Delivered)) {
            next = self.modulo.add(next, 1);
        }
        self.rx_next_reassembly = next;
        let (modulo, begin, memory) = (self.modulo, self.window_begin(), &mut self.memory);
        let given_up = &mut self.given_up;
        self.sdus.retain(|sn, sdu| {
            let position = modulo.distance(begin, *sn);
            let keep = position >= modulo.distance(begin, next) && position < modulo.window();
            if !keep {
                *memory -= sdu.memory();
                *given_up += u64::from(matches!(sdu, Sdu::Segments(_)));
            }
            keep
        });
    }

    /// Moves the window's end behind `sn`.
    fn extend_window(&mut self, sn: u32) {
        self.rx_next_highest = self.modulo.add(sn, 1);
        let from = match self.is_outside(self.rx_next_reassembly) {
            true => self.window_begin(),
            false => self.rx_next_reassembly,
        };
        self.wait_from(from);
    }

    /// Whether an SDU is missing in whole or in part before something that has come.
    fn has_gap(&self) -> bool {
        match self.modulo.distance(self.rx_next_reassembly, self.rx_next_highest) {
            0 => false,
            1 => match self.sdus.get(&self.rx_next_reassembly) {
                Some(Sdu::Segments(segments)) => segments.has_gap(),
                _ => false,
            },
            _ => true,
        }
    }

    /// Stops and starts t-Reassembly after a segment was kept (§5.2.2.2.3).
    fn run_timer(&mut self, now_ns: u64) {
        let trigger = self.rx_timer_trigger;
        let passed = self.ahead(trigger) <= self.ahead(self.rx_next_reassembly)
            || (self.is_outside(trigger) && trigger != self.rx_next_highest);
        if self.t_reassembly_until_ns.is_some() && (passed || !self.has_gap()) {
            self.t_reassembly_until_ns = None;
        }
        if self.t_reassembly_until_ns.is_none() {
            self.start_timer(now_ns);
        }
    }

    fn start_timer(&mut self, now_ns: u64) {
        if self.has_gap() {
            self.t_reassembly_until_ns = Some(now_ns.saturating_add(self.t_reassembly_ns));
            self.rx_timer_trigger = self.rx_next_highest;
        }
    }

    /// When [`Rx::expire`] is due.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.t_reassembly_until_ns
    }

    /// Gives up SDUs if t-Reassembly has expired (§5.2.2.2.4).
    pub fn expire(&mut self, now_ns: u64) {
        if self.t_reassembly_until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
            self.t_reassembly_until_ns = None;
            self.wait_from(self.rx_timer_trigger);
            self.start_timer(now_ns);
        }
    }

    /// How many SDUs of which segments had come were given up so far.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Octets of memory that incomplete SDUs take.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Discards all segments and begins anew (re-establishment, §5.1.2).
    pub fn reset(&mut self) {
        let given_up = self.given_up;
        *self = Rx { given_up, ..Rx::new(self.length, self.t_reassembly_ns, self.limit) };
    }
}
