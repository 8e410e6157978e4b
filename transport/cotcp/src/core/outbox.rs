//! Octets that wait to be written. Small frames stand one after the other in one buffer; long bodies are kept
//! beside it without a copy.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::frame::{self, HEADER};

/// A body of at least this length is not copied: an entry of its own in the vectored write costs less.
const BY_REFERENCE: usize = 2048;
/// Written octets are removed from the front of the buffer when they are at least this many.
const COMPACT: usize = 64 * 1024;
/// An empty buffer with a larger capacity frees its memory.
const KEEP: usize = 256 * 1024;

/// A body whose place is before `buffer[at]`.
#[derive(Debug)]
struct Insert {
    at: usize,
    body: Bytes,
}

/// Octets for the stream. The driver writes them through [`Buf`]: `chunks_vectored`, write, `advance`.
#[derive(Debug, Default)]
pub struct Outbox {
    buffer: Vec<u8>,
    /// Octets of `buffer` before this position were written.
    start: usize,
    inserts: VecDeque<Insert>,
    /// Octets in `inserts`.
    inserted: usize,
    /// Octets written by the driver since the beginning.
    written: u64,
}

impl Outbox {
    /// Octets that wait.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start + self.inserted
    }

    /// Whether no octets wait.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Octets written since the beginning.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Appends a version 1 frame. The callers ensure that the body has at most 65,535 octets.
    #[inline]
    pub(crate) fn plain(&mut self, id: u32, body: Bytes) {
        debug_assert!(body.len() <= usize::from(u16::MAX));
        self.buffer.reserve(HEADER + body.len().min(BY_REFERENCE));
        self.buffer.extend_from_slice(&frame::header(id, body.len() as u16));
        self.body(body);
    }

    /// Appends the start of a frame with a type; `head` stands between the flags and the body. A call of
    /// [`Self::body`] with `length` octets must follow.
    pub(crate) fn head(&mut self, call: u32, kind_and_flags: [u8; 2], head: &[u8], length: usize) {
        let length = 2 + head.len() + length;
        debug_assert!(length <= usize::from(u16::MAX));
        self.buffer.extend_from_slice(&frame::header(call | frame::EXTENDED, length as u16));
        self.buffer.extend_from_slice(&kind_and_flags);
        self.buffer.extend_from_slice(head);
    }

    /// Appends the body that belongs to the last head.
    #[inline]
    pub(crate) fn body(&mut self, body: Bytes) {
        if body.len() < BY_REFERENCE {
            self.buffer.extend_from_slice(&body);
        } else {
            self.inserted += body.len();
            self.inserts.push_back(Insert { at: self.buffer.len(), body });
        }
    }

    /// Appends a frame with a short body, or none.
    pub(crate) fn frame(&mut self, call: u32, frame: &frame::Frame) {
        frame.encode(call, &mut self.buffer);
    }

    /// Drops all waiting octets, because the stream has ended.
    pub(crate) fn clear(&mut self) {
        *self = Self { written: self.written, ..Self::default() };
    }

    /// Position in the buffer before which the next insert belongs.
    fn end(&self) -> usize {
        self.inserts.front().map_or(self.buffer.len(), |insert| insert.at)
    }

    /// Resets the buffer when everything was written; otherwise removes written octets when there are many.
    fn tidy(&mut self) {
        if self.start == self.buffer.len() && self.inserts.is_empty() {
            self.buffer.clear();
            self.start = 0;
            if self.buffer.capacity() > KEEP {
                self.buffer = Vec::new();
            }
        } else if self.start >= COMPACT && self.start * 2 >= self.buffer.len() {
            self.buffer.drain(..self.start);
            self.inserts.iter_mut().for_each(|insert| insert.at -= self.start);
            self.start = 0;
        }
    }
}

impl Buf for Outbox {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        match self.inserts.front() {
            Some(insert) if insert.at == self.start => &insert.body,
            _ => &self.buffer[self.start..self.end()],
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let (mut count, room) = (0, slices.len());
        let mut add = |octets: &'a [u8]| {
            if !octets.is_empty() && count < room {
                slices[count] = IoSlice::new(octets);
                count += 1;
            }
        };
        let mut start = self.start;
        for insert in self.inserts.iter().take(room) {
            add(&self.buffer[start..insert.at]);
            add(&insert.body);
            start = insert.at;
        }
        // When there are more inserts than slices, this has no room and adds nothing.
        if self.inserts.len() <= room {
            add(&self.buffer[start..]);
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len(), "the driver wrote more than there was");
        self.written += count as u64;
        while count > 0 {
            let plain = (self.end() - self.start).min(count);
            self.start += plain;
            count -= plain;
            if count == 0 {
                break;
            }
            if let Some(insert) = self.inserts.front_mut() {
                let part = insert.body.len().min(count);
                insert.body.advance(part);
                self.inserted -= part;
                count -= part;
                if insert.body.is_empty() {
                    self.inserts.pop_front();
                }
            }
        }
        self.tidy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small and long frames mixed, taken out in pieces of any size, are the octets that went in.
    #[test]
    fn what_goes_in_comes_out_in_any_pieces() {
        for step in [1, 7, 1000, 5000, 200_000] {
            let (mut outbox, mut expected) = (Outbox::default(), Vec::new());
            let mut taken = Vec::new();
            for id in 0..200u32 {
                let body = vec![id as u8; if id % 3 == 0 { 3000 } else { id as usize }];
                expected.extend_from_slice(&frame::header(id, body.len() as u16));
                expected.extend_from_slice(&body);
                outbox.plain(id, body.into());
                let mut slices = [IoSlice::new(&[]); 5];
                let count = outbox.chunks_vectored(&mut slices);
                let octets: Vec<u8> =
                    slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
                assert_eq!(octets[..octets.len().min(9)], expected[taken.len()..][..octets.len().min(9)]);
                let step = step.min(octets.len());
                taken.extend_from_slice(&octets[..step]);
                outbox.advance(step);
                assert_eq!(outbox.len(), expected.len() - taken.len());
            }
            while outbox.has_remaining() {
                let step = step.min(outbox.chunk().len());
                taken.extend_from_slice(&outbox.chunk()[..step]);
                outbox.advance(step);
            }
            assert_eq!(taken, expected);
            assert_eq!(outbox.written(), expected.len() as u64);
        }
    }
}
