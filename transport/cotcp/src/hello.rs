//! The body of a HELLO (§2): protocol version and limits of the side that sends it.

use crate::config::Config;

/// The first octets of a HELLO. No JSON or Protobuf message starts with the zero octet.
pub const MAGIC: [u8; 6] = [0, b'C', b'o', b'T', b'C', b'P'];
/// The protocol version that §3 and later sections of the specification describe.
pub const VERSION: u8 = 2;

/// Smallest window that this implementation offers.
const LEAST_WINDOW: u32 = 4 * crate::frame::FRAGMENT as u32;

const CLIENT: u8 = 1;
const SERVER: u8 = 2;

/// Limits that a side announces in the options of its HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Calls that the sender works on at the same time.
    pub max_calls: u32,
    /// Credit that each message starts with.
    pub call_window: u32,
    /// Credit that the connection starts with.
    pub connection_window: u32,
    /// Longest body that the sender accepts.
    pub max_message: u32,
}

impl Default for Limits {
    /// The limits that hold for options a HELLO leaves out.
    fn default() -> Self {
        Self { max_calls: 1024, call_window: 65_536, connection_window: 1_048_576, max_message: 16_777_216 }
    }
}

impl Limits {
    /// The limits that a side with this configuration announces.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        // More credit than 2³¹ − 1 cannot be given; with less than a few fragments each would wait for the last.
        let window = |octets: u32| octets.clamp(LEAST_WINDOW, i32::MAX as u32);
        Self {
            max_calls: config.calls(),
            call_window: window(config.call_window),
            connection_window: window(config.connection_window),
            max_message: config.max_message,
        }
    }

    fn fields(&mut self) -> [&mut u32; 4] {
        [&mut self.max_calls, &mut self.call_window, &mut self.connection_window, &mut self.max_message]
    }
}

/// Encodes the body of a HELLO. A server passes the version that both sides use from then on.
#[must_use]
pub fn encode(from_client: bool, mut limits: Limits) -> Vec<u8> {
    let mut body = Vec::with_capacity(32);
    body.extend_from_slice(&MAGIC);
    body.extend_from_slice(&[if from_client { CLIENT } else { SERVER }, VERSION]);
    let absent = Limits::default().fields().map(|value| *value);
    for ((kind, value), absent) in (1u8..).zip(limits.fields()).zip(absent) {
        if *value != absent {
            body.extend_from_slice(&[kind, 4]);
            body.extend_from_slice(&value.to_be_bytes());
        }
    }
    body
}

/// Decodes the peer's HELLO; `None` when the body is not a valid HELLO.
#[must_use]
pub fn decode(body: &[u8], from_client: bool) -> Option<Limits> {
    let (&[role, version], mut options) = body.strip_prefix(&MAGIC)?.split_first_chunk()?;
    let right =
        if from_client { role == CLIENT && version >= VERSION } else { role == SERVER && version == VERSION };
    if !right {
        return None;
    }
    let mut limits = Limits::default();
    let mut seen = [false; 4];
    while let Some((&[kind, length], rest)) = options.split_first_chunk() {
        let (value, rest) = rest.split_at_checked(usize::from(length))?;
        options = rest;
        let Some(index @ 0..4) = usize::from(kind).checked_sub(1) else { continue };
        if std::mem::replace(&mut seen[index], true) {
            return None;
        }
        *limits.fields()[index] = u32::from_be_bytes(value.try_into().ok()?);
    }
    let most = i32::MAX as u32;
    let windows = [limits.call_window, limits.connection_window];
    let valid = limits.max_calls > 0 && windows.iter().all(|window| (1..=most).contains(window));
    (options.is_empty() && valid).then_some(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        let limits = Limits { max_calls: 64, ..Limits::default() };
        let client = encode(true, limits);
        assert_eq!(client, b"\x00CoTCP\x01\x02\x01\x04\x00\x00\x00\x40");
        assert_eq!(decode(&client, true), Some(limits));
        let server = encode(false, Limits::default());
        assert_eq!(server, b"\x00CoTCP\x02\x02");
        assert_eq!(decode(&server, false), Some(Limits::default()));
    }

    #[test]
    fn all_options_survive() {
        let limits = Limits { max_calls: 1, call_window: 2, connection_window: 3, max_message: 0 };
        for from_client in [true, false] {
            assert_eq!(decode(&encode(from_client, limits), from_client), Some(limits));
        }
    }

    #[test]
    fn what_is_not_valid_is_none() {
        let bad: [&[u8]; 11] = [
            b"",
            b"\x00CoTCP",
            b"\x00CoTCP\x01",
            b"\x00CoTCP\x02\x02",                                     // a server's, echoed
            b"\x00CoTCP\x01\x01",                                     // version 1
            b"\x00CoTCP\x01\x02\x01",                                 // an option without its length
            b"\x00CoTCP\x01\x02\x01\x04\x00\x00\x00",                 // cut off
            b"\x00CoTCP\x01\x02\x01\x02\x00\x40",                     // another length
            b"\x00CoTCP\x01\x02\x01\x04\0\0\0\x40\x01\x04\0\0\0\x40", // twice
            b"\x00CoTCP\x01\x02\x01\x04\0\0\0\0",                     // no calls
            b"\x00CoTCP\x01\x02\x02\x04\x80\0\0\0",                   // more credit than there can be
        ];
        for body in bad {
            assert_eq!(decode(body, true), None, "{body:?}");
        }
        // A later version is spoken with by ours; options of other types are ignored.
        assert_eq!(decode(b"\x00CoTCP\x01\x09\x63\x01\xff", true), Some(Limits::default()));
        assert_eq!(decode(b"\x00CoTCP\x02\x03", false), None);
    }
}
