//! Messages out of a stream of octets.

use crate::{HEADER_LEN, MAX_MESSAGE, header};

/// Cuts a connection's octets into messages.
///
/// [`push`](Self::push) what was received, then take messages with [`next_message`](Self::next_message) until there is none. It keeps
/// what is not a whole message yet, which is less than the longest that is allowed.
#[derive(Debug)]
pub struct Framer {
    octets: Vec<u8>,
    /// Octets in front that have been taken.
    taken: usize,
    max_message: usize,
}

/// A length that cannot be. Where the next message begins is not known, so the connection has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("message of {length} octets; from {HEADER_LEN} to {most} are possible")]
pub struct FrameError {
    /// The length in the header.
    pub length: usize,
    /// The longest message that is allowed.
    pub most: usize,
}

impl Default for Framer {
    fn default() -> Self {
        Self::new(MAX_MESSAGE)
    }
}

impl Framer {
    /// For messages of at most `max_message` octets.
    pub fn new(max_message: usize) -> Self {
        Self { octets: Vec::new(), taken: 0, max_message }
    }

    /// Appends received octets.
    pub fn push(&mut self, received: &[u8]) {
        // What is left is less than a message, if messages were taken.
        self.octets.drain(..self.taken);
        self.taken = 0;
        self.octets.extend_from_slice(received);
    }

    /// The next message; `None` until more has been received.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.octets[self.taken..];
        let Ok(header) = header(rest) else { return Ok(None) };
        let length = usize::from(header.length);
        if !(HEADER_LEN..=self.max_message).contains(&length) {
            return Err(FrameError { length, most: self.max_message });
        }
        if rest.len() < length {
            return Ok(None);
        }
        let start = self.taken;
        self.taken += length;
        Ok(Some(&self.octets[start..self.taken]))
    }

    /// Octets that wait for the rest of their message.
    pub fn pending(&self) -> usize {
        self.octets.len() - self.taken
    }
}
