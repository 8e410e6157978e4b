//! The receiving side (§5.2.3.2).
//!
//! Sequence numbers are counted on in 64 bits here; on the wire they are the lower bits of these.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::segments::Segments;
use super::super::{LONGEST_SDU, PduError};
use super::pdu::{END_OF_SDU, Header, Nack, STATUS_LEN, SnLength, Status};

/// Octets that the mark of a delivered SDU takes, about.
const DELIVERED: usize = 32;

#[derive(Debug)]
enum Sdu {
    Segments(Segments),
    Delivered,
}

impl Sdu {
    fn memory(&self) -> usize {
        match self {
            Sdu::Segments(segments) => segments.memory(),
            Sdu::Delivered => DELIVERED,
        }
    }
}

#[derive(Debug)]
pub(super) struct Rx {
    length: SnLength,
    t_reassembly_ns: u64,
    /// First SDU that has not arrived in whole: the begin of the window.
    rx_next: u64,
    /// Behind the SDU that started t-Reassembly.
    rx_next_status_trigger: u64,
    /// First SDU that a status does not report as missing.
    rx_highest_status: u64,
    /// Behind the highest SDU of which something has come.
    rx_next_highest: u64,
    t_reassembly_until_ns: Option<u64>,
    /// SDUs from `rx_next` on of which something has come.
    sdus: BTreeMap<u64, Sdu>,
    memory: usize,
    limit: usize,
    /// A status is to be sent.
    pub(super) status_triggered: bool,
    /// A status is to be sent once statuses cover this SDU, which came with a poll.
    polled: Option<u64>,
}

impl Rx {
    pub(super) fn new(length: SnLength, t_reassembly_ns: u64, limit: usize) -> Rx {
        Rx {
            length,
            t_reassembly_ns,
            rx_next: 0,
            rx_next_status_trigger: 0,
            rx_highest_status: 0,
            rx_next_highest: 0,
            t_reassembly_until_ns: None,
            sdus: BTreeMap::new(),
            memory: 0,
            limit,
            status_triggered: false,
            polled: None,
        }
    }

    fn window_end(&self) -> u64 {
        self.rx_next + u64::from(self.length.modulo().window())
    }

    /// Handles a data PDU; returns the SDU that it completes.
    pub(super) fn receive(
        &mut self,
        header: &Header,
        data: &[u8],
        now_ns: u64,
    ) -> Result<Option<Vec<u8>>, PduError> {
        let modulo = self.length.modulo();
        let ahead = modulo.distance((self.rx_next & u64::from(modulo.mask)) as u32, header.sn);
        let x = self.rx_next + u64::from(ahead);
        let placed =
            if x < self.window_end() { self.place(x, header, data) } else { Err(PduError::OutsideWindow) };
        if header.poll {
            // §5.3.4
            if placed.is_err() || x < self.rx_highest_status {
                self.status_triggered = true;
            } else {
                self.polled = self.polled.max(Some(x));
            }
        }
        let sdu = if placed? { self.take(x) } else { None };
        self.run_timer(now_ns);
        self.look_at_poll();
        Ok(sdu)
    }

    /// Adds a part of an SDU; returns whether that is whole now.
    fn place(&mut self, x: u64, header: &Header, data: &[u8]) -> Result<bool, PduError> {
        let known = match self.sdus.get(&x) {
            Some(Sdu::Delivered) => return Err(PduError::OutsideWindow),
            Some(Sdu::Segments(segments)) => Some(segments),
            None => None,
        };
        let none = Segments::default();
        let before = known.map_or(0, Segments::memory);
        let more = known.unwrap_or(&none).check(header.so, data, header.si.is_end())?;
        let new = if before == 0 { none.memory() } else { 0 };
        // There is always room for the SDU for which all others wait.
        let limit = if x == self.rx_next { usize::MAX } else { self.limit };
        if self.memory + new + more > limit {
            return Err(PduError::NoRoom);
        }
        let entry = self.sdus.entry(x).or_insert_with(|| Sdu::Segments(none));
        let Sdu::Segments(segments) = entry else { return Err(PduError::OutsideWindow) };
        segments.insert(header.so, data, header.si.is_end());
        self.memory = self.memory - before + segments.memory();
        let whole = segments.is_whole();
        self.rx_next_highest = self.rx_next_highest.max(x + 1);
        Ok(whole)
    }

    fn take(&mut self, x: u64) -> Option<Vec<u8>> {
        let Some(Sdu::Segments(segments)) = self.sdus.insert(x, Sdu::Delivered) else { return None };
        self.memory = self.memory + DELIVERED - segments.memory();
        if x == self.rx_highest_status {
            self.rx_highest_status = self.first_missing(x);
        }
        if x == self.rx_next {
            self.rx_next = self.first_missing(x);
            while let Some(entry) = self.sdus.first_entry().filter(|entry| *entry.key() < self.rx_next) {
                self.memory -= entry.remove().memory();
            }
        }
        Some(segments.into_sdu())
    }

    /// The first SDU from `x` on that has not been delivered.
    fn first_missing(&self, x: u64) -> u64 {
        let mut next = x;
        for (sn, sdu) in self.sdus.range(x..) {
            if *sn != next || !matches!(sdu, Sdu::Delivered) {
                break;
            }
            next += 1;
        }
        next
    }

    /// Whether an SDU is missing in whole or in part between `from` and what has come last.
    fn has_gap(&self, from: u64) -> bool {
        match self.rx_next_highest.saturating_sub(from) {
            0 => false,
            1 => matches!(self.sdus.get(&from), Some(Sdu::Segments(segments)) if segments.has_gap()),
            _ => true,
        }
    }

    /// Stops and starts t-Reassembly after a PDU was placed (§5.2.3.2.3).
    fn run_timer(&mut self, now_ns: u64) {
        let trigger = self.rx_next_status_trigger;
        let begun =
            matches!(self.sdus.get(&self.rx_next), Some(Sdu::Segments(segments)) if segments.has_gap());
        let passed = trigger <= self.rx_next || (trigger == self.rx_next + 1 && !begun);
        if passed {
            self.t_reassembly_until_ns = None;
        }
        if self.t_reassembly_until_ns.is_none() {
            self.start_timer(self.rx_next, now_ns);
        }
    }

    fn start_timer(&mut self, from: u64, now_ns: u64) {
        if self.has_gap(from) {
            self.t_reassembly_until_ns = Some(now_ns.saturating_add(self.t_reassembly_ns));
            self.rx_next_status_trigger = self.rx_next_highest;
        }
    }

    /// Triggers the status that a poll has asked for, once it covers that PDU.
    fn look_at_poll(&mut self) {
        if self.polled.is_some_and(|x| x < self.rx_highest_status || x >= self.window_end()) {
            self.polled = None;
            self.status_triggered = true;
        }
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.t_reassembly_until_ns
    }

    /// t-Reassembly may have expired (§5.2.3.2.4).
    pub(super) fn expire(&mut self, now_ns: u64) {
        if self.t_reassembly_until_ns.is_none_or(|until_ns| now_ns < until_ns) {
            return;
        }
        self.t_reassembly_until_ns = None;
        self.rx_highest_status = self.first_missing(self.rx_next_status_trigger.max(self.rx_next));
        self.start_timer(self.rx_highest_status, now_ns);
        self.status_triggered = true;
        self.look_at_poll();
    }

    /// Writes a status of `grant` octets at most; `false` if there is no room for one.
    pub(super) fn write_status(&mut self, grant: usize, out: &mut Vec<u8>) -> bool {
        if grant < STATUS_LEN {
            return false;
        }
        let mut report = Report { length: self.length, room: grant - STATUS_LEN, nacks: Vec::new() };
        let until = self.missing_to(&mut report);
        let ack_sn = (until & u64::from(self.length.modulo().mask)) as u32;
        Status { ack_sn, nacks: report.nacks }.write(self.length, out);
        self.status_triggered = false;
        true
    }

    /// Adds what is missing to a report; returns behind what it is complete.
    fn missing_to(&self, report: &mut Report) -> u64 {
        let mut next = self.rx_next;
        for (sn, sdu) in self.sdus.range(self.rx_next..self.rx_highest_status) {
            if let Err(stopped) = report.whole(next..*sn) {
                return stopped;
            }
            next = sn + 1;
            let Sdu::Segments(segments) = sdu else { continue };
            for (at, (start, end)) in segments.gaps().enumerate() {
                if !report.add(*sn, 1, Some((start, end.unwrap_or(END_OF_SDU)))) {
                    return if at == 0 { *sn } else { *sn + 1 };
                }
            }
        }
        report.whole(next..self.rx_highest_status).err().unwrap_or(self.rx_highest_status)
    }

    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Octets that the entity may keep at most.
    pub(super) fn most_memory(&self) -> usize {
        // An SDU in pieces, each with a gap behind it, has a long list of them.
        self.limit + 6 * LONGEST_SDU
    }
}

/// NACKs as long as there is room.
struct Report {
    length: SnLength,
    room: usize,
    nacks: Vec<Nack>,
}

impl Report {
    fn add(&mut self, sn: u64, range: u8, part: Option<(u16, u16)>) -> bool {
        let nack = Nack { sn: (sn & u64::from(self.length.modulo().mask)) as u32, range, part };
        let octets = Status::nack_len(&nack, self.length);
        let fits = octets <= self.room;
        if fits {
            self.room -= octets;
            self.nacks.push(nack);
        }
        fits
    }

    /// SDUs of which nothing has come. An error names the first one that is not in the report.
    fn whole(&mut self, mut sns: Range<u64>) -> Result<(), u64> {
        while !sns.is_empty() {
            let range = (sns.end - sns.start).min(255);
            if !self.add(sns.start, range as u8, None) {
                return Err(sns.start);
            }
            sns.start += range;
        }
        Ok(())
    }
}
