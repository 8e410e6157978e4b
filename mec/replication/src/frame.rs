//! What a replicator and its agent beside a clone say to each other, over one TCP connection.
//!
//! A frame is its length (a variable number), its type (one octet) and its content. Numbers are variable: seven bits in an octet, the
//! lowest first. Users are named by the difference to the user of the frame before, as they mostly come one after another. A user of 4G
//! with one bearer takes some 58 octets, to the agent and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::clone::{Made, Why};
use crate::record::{Bearer, MOST};

/// The form of frames.
pub const VERSION: u64 = 2;
/// Longest frame: a message in a datagram, and some octets more.
pub const MAX_FRAME: usize = 65_536 + 64;

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// To the agent, first: the form of frames, and the protocol.
    Hello {
        /// [`VERSION`].
        version: u64,
        /// N4, else S11.
        n4: bool,
        /// When the control plane says it has started; the same as long as sessions are to be kept.
        started: u32,
        /// Users follow whose sessions are there.
        resume: bool,
        /// The original's address on S11 or N4.
        original: IpAddr,
    },
    /// To the agent: a template that later frames name.
    Template {
        /// Its number.
        number: u16,
        /// Its octets.
        octets: Vec<u8>,
    },
    /// To the agent: make a user's session.
    Make {
        /// The user.
        handle: u32,
        /// Its subject.
        subject: u64,
        /// By what the anchor addresses the control plane.
        control: u64,
        /// Its address, if messages have it or ask for it.
        address: Option<Ipv4Addr>,
        /// Templates of its messages.
        templates: Vec<u16>,
        /// What the messages have stored, one after another.
        stored: Vec<u8>,
    },
    /// To the agent: a user's session is there, as it was made by another agent.
    Adopt {
        /// The user.
        handle: u32,
        /// By what the anchor addresses the control plane.
        control: u64,
        /// What the clone gave.
        made: Made,
    },
    /// To the agent: send this message as it is, behind those before it.
    Replay {
        /// The user.
        handle: u32,
        /// By what the anchor addresses the control plane.
        control: u64,
        /// The message.
        octets: Vec<u8>,
    },
    /// To the agent: have the clone do this as well.
    Later {
        /// The user.
        handle: u32,
        /// The request.
        octets: Vec<u8>,
    },
    /// To the agent: a user's packets go to the clone from now on, or no longer. Said where a P-GW is apart.
    Serve {
        /// The user.
        handle: u32,
        /// They go there.
        serves: bool,
    },
    /// To the agent: end a user's session.
    End(u32),
    /// To the agent: the control plane's answer to a request of the clone.
    Answer {
        /// The user.
        handle: u32,
        /// The clone's transaction.
        sequence: u32,
        /// The answer.
        octets: Vec<u8>,
    },
    /// From the agent: it is ready.
    Ready,
    /// From the agent: a user's session is there.
    Made(u32, Made),
    /// From the agent: it is not.
    Refused(u32, Why),
    /// From the agent: it is there no longer.
    Ended(u32),
    /// From the agent: the clone has told what it has carried of a user, as it was asked to, or with the end of the session.
    Usage {
        /// The user.
        handle: u32,
        /// The session has ended.
        is_end: bool,
        /// The reports, as IEs.
        octets: Vec<u8>,
    },
    /// From the agent: the clone asks the control plane.
    Request {
        /// The user.
        handle: u32,
        /// The clone's transaction.
        sequence: u32,
        /// The request.
        octets: Vec<u8>,
    },
}

/// A frame that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame between replicator and agent cannot be read")]
pub struct BadFrame;

/// Writes frames of one direction of a connection.
#[derive(Debug, Default)]
pub struct Writer {
    handle: u32,
    content: Vec<u8>,
}

/// Reads frames of one direction of a connection.
#[derive(Debug, Default)]
pub struct Reader {
    handle: u32,
    octets: Vec<u8>,
    at: usize,
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(rest: &mut &[u8]) -> Result<u64, BadFrame> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let octet = *rest.split_off_first().ok_or(BadFrame)?;
        value |= u64::from(octet & 0x7f) << shift;
        if octet & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(BadFrame)
}

fn narrow<T: TryFrom<u64>>(number: u64) -> Result<T, BadFrame> {
    T::try_from(number).map_err(|_| BadFrame)
}

/// TEIDs and SEIDs are random: a variable number would make them longer.
fn put_name(out: &mut Vec<u8>, name: u64) {
    match u32::try_from(name) {
        Ok(name) => {
            out.push(4);
            out.extend_from_slice(&name.to_be_bytes());
        }
        Err(_) => {
            out.push(8);
            out.extend_from_slice(&name.to_be_bytes());
        }
    }
}

fn name(rest: &mut &[u8]) -> Result<u64, BadFrame> {
    match rest.split_off_first().ok_or(BadFrame)? {
        4 => Ok(u32::from_be_bytes(array(rest)?).into()),
        8 => Ok(u64::from_be_bytes(array(rest)?)),
        _ => Err(BadFrame),
    }
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], BadFrame> {
    rest.split_off(..N).and_then(|octets| octets.first_chunk().copied()).ok_or(BadFrame)
}

fn put_made(out: &mut Vec<u8>, made: &Made) {
    put_name(out, made.anchor);
    for bearer in made.bearers.iter().take(MOST) {
        let flags = u8::from(bearer.ipv4.is_some()) | u8::from(bearer.ipv6.is_some()) << 1;
        out.push(bearer.id << 4 | flags);
        out.extend_from_slice(&bearer.uplink.to_be_bytes());
        out.extend(bearer.ipv4.iter().flat_map(Ipv4Addr::octets));
        out.extend(bearer.ipv6.iter().flat_map(|address| address.octets().into_iter().take(8)));
    }
}

fn made(rest: &mut &[u8]) -> Result<Made, BadFrame> {
    let anchor = name(rest)?;
    let mut bearers = Vec::new();
    while let Some(first) = rest.split_off_first() {
        if bearers.len() == MOST {
            return Err(BadFrame);
        }
        let uplink = u32::from_be_bytes(array(rest)?);
        let ipv4 = if first & 1 != 0 { Some(Ipv4Addr::from_octets(array(rest)?)) } else { None };
        let ipv6 = if first & 2 != 0 { Some(u64::from_be_bytes(array(rest)?)) } else { None };
        let ipv6 = ipv6.map(|upper| Ipv6Addr::from_bits(u128::from(upper) << 64));
        bearers.push(Bearer { id: first >> 4, uplink, ipv4, ipv6 });
    }
    Ok(Made { anchor, bearers })
}

/// What a clone gave, as octets.
pub fn write_made(made: &Made) -> Vec<u8> {
    let mut out = Vec::new();
    put_made(&mut out, made);
    out
}

/// Reads [`write_made`]'s octets.
///
/// # Errors
/// They are others.
pub fn read_made(mut octets: &[u8]) -> Result<Made, BadFrame> {
    made(&mut octets)
}

impl Writer {
    fn put_handle(&mut self, handle: u32) {
        // Zigzag, so that a step back is short, too.
        let step = i64::from(handle) - i64::from(std::mem::replace(&mut self.handle, handle));
        put_number(&mut self.content, ((step << 1) ^ (step >> 63)) as u64);
    }

    /// Appends a frame to `out`.
    pub fn write(&mut self, frame: &Frame, out: &mut Vec<u8>) {
        self.content.clear();
        let kind = match frame {
            Frame::Hello { .. } => 0,
            Frame::Template { .. } => 1,
            Frame::Make { .. } => 2,
            Frame::Adopt { .. } => 3,
            Frame::Replay { .. } => 4,
            Frame::Later { .. } => 5,
            Frame::End(_) => 6,
            Frame::Answer { .. } => 7,
            Frame::Ready => 8,
            Frame::Made(..) => 9,
            Frame::Refused(..) => 10,
            Frame::Ended(_) => 11,
            Frame::Request { .. } => 12,
            Frame::Usage { .. } => 13,
            Frame::Serve { .. } => 14,
        };
        self.content.push(kind);
        match frame {
            Frame::Hello { version, n4, started, resume, original } => {
                put_number(&mut self.content, *version);
                self.content.push(u8::from(*n4) | u8::from(*resume) << 1);
                put_number(&mut self.content, (*started).into());
                self.content.extend_from_slice(original.to_string().as_bytes());
            }
            Frame::Template { number, octets } => {
                put_number(&mut self.content, (*number).into());
                self.content.extend_from_slice(octets);
            }
            Frame::Make { handle, subject, control, address, templates, stored } => {
                self.put_handle(*handle);
                let is_one = subject == control;
                let count = templates.len().min(MOST) as u8;
                self.content.push(count | u8::from(is_one) << 4 | u8::from(address.is_some()) << 5);
                self.content.extend_from_slice(&subject.to_be_bytes());
                if !is_one {
                    put_name(&mut self.content, *control);
                }
                self.content.extend(address.iter().flat_map(Ipv4Addr::octets));
                for template in templates.iter().take(MOST) {
                    put_number(&mut self.content, (*template).into());
                }
                self.content.extend_from_slice(stored);
            }
            Frame::Adopt { handle, control, made } => {
                self.put_handle(*handle);
                put_name(&mut self.content, *control);
                put_made(&mut self.content, made);
            }
            Frame::Replay { handle, control, octets } => {
                self.put_handle(*handle);
                put_name(&mut self.content, *control);
                self.content.extend_from_slice(octets);
            }
            Frame::Later { handle, octets } => {
                self.put_handle(*handle);
                self.content.extend_from_slice(octets);
            }
            Frame::End(handle) | Frame::Ended(handle) => self.put_handle(*handle),
            Frame::Answer { handle, sequence, octets } | Frame::Request { handle, sequence, octets } => {
                self.put_handle(*handle);
                put_number(&mut self.content, (*sequence).into());
                self.content.extend_from_slice(octets);
            }
            Frame::Usage { handle, is_end, octets } => {
                self.put_handle(*handle);
                self.content.push(u8::from(*is_end));
                self.content.extend_from_slice(octets);
            }
            Frame::Serve { handle, serves } => {
                self.put_handle(*handle);
                self.content.push(u8::from(*serves));
            }
            Frame::Ready => {}
            Frame::Made(handle, made) => {
                self.put_handle(*handle);
                put_made(&mut self.content, made);
            }
            Frame::Refused(handle, why) => {
                self.put_handle(*handle);
                let (code, cause) = match why {
                    Why::Cause(cause) => (0, *cause),
                    Why::Silent => (1, 0),
                    Why::NoBearer => (2, 0),
                    Why::Unreadable => (3, 0),
                    Why::Taken => (4, 0),
                    Why::Apart => (5, 0),
                    Why::Restarted => (6, 0),
                };
                self.content.extend_from_slice(&[code, cause]);
            }
        }
        put_number(out, self.content.len() as u64);
        out.extend_from_slice(&self.content);
    }
}

impl Reader {
    /// Takes octets of the connection.
    pub fn push(&mut self, octets: &[u8]) {
        if self.at == self.octets.len() {
            self.octets.clear();
            self.at = 0;
        } else if self.at > MAX_FRAME {
            self.octets.drain(..self.at);
            self.at = 0;
        }
        self.octets.extend_from_slice(octets);
    }

    /// The next frame, if it is there.
    ///
    /// # Errors
    /// The connection is of no use any more.
    pub fn read(&mut self) -> Result<Option<Frame>, BadFrame> {
        let mut rest = &self.octets[self.at..];
        let length = match number(&mut rest) {
            Ok(length) => length,
            // A length takes three octets at most.
            Err(BadFrame) if rest.is_empty() && self.octets.len() - self.at < 3 => return Ok(None),
            Err(bad) => return Err(bad),
        };
        if length == 0 || length > MAX_FRAME as u64 {
            return Err(BadFrame);
        }
        let Some(content) = rest.get(..length as usize) else { return Ok(None) };
        let frame = Self::frame(&mut self.handle, content)?;
        self.at = self.octets.len() - rest.len() + content.len();
        Ok(Some(frame))
    }

    fn frame(last: &mut u32, content: &[u8]) -> Result<Frame, BadFrame> {
        let mut rest = content;
        let kind = *rest.split_off_first().ok_or(BadFrame)?;
        let mut handle = |rest: &mut &[u8]| {
            let step = number(rest)?;
            let step = (step >> 1) as i64 ^ -((step & 1) as i64);
            *last = i64::from(*last)
                .checked_add(step)
                .and_then(|next| u32::try_from(next).ok())
                .ok_or(BadFrame)?;
            Ok::<_, BadFrame>(*last)
        };
        let frame = match kind {
            0 => {
                let version = number(&mut rest)?;
                let flags = *rest.split_off_first().ok_or(BadFrame)?;
                let started = narrow(number(&mut rest)?)?;
                let original = std::str::from_utf8(std::mem::take(&mut rest)).map_err(|_| BadFrame)?;
                let original = original.parse().map_err(|_| BadFrame)?;
                Frame::Hello { version, n4: flags & 1 != 0, started, resume: flags & 2 != 0, original }
            }
            1 => Frame::Template {
                number: narrow(number(&mut rest)?)?,
                octets: std::mem::take(&mut rest).to_vec(),
            },
            2 => {
                let handle = handle(&mut rest)?;
                let flags = *rest.split_off_first().ok_or(BadFrame)?;
                let subject = u64::from_be_bytes(array(&mut rest)?);
                let control = if flags & 0x10 != 0 { subject } else { name(&mut rest)? };
                let address =
                    if flags & 0x20 != 0 { Some(Ipv4Addr::from_octets(array(&mut rest)?)) } else { None };
                let templates =
                    (0..flags & 0xf).map(|_| narrow(number(&mut rest)?)).collect::<Result<_, BadFrame>>()?;
                let stored = std::mem::take(&mut rest).to_vec();
                Frame::Make { handle, subject, control, address, templates, stored }
            }
            3 => {
                Frame::Adopt { handle: handle(&mut rest)?, control: name(&mut rest)?, made: made(&mut rest)? }
            }
            4 => {
                let (handle, control) = (handle(&mut rest)?, name(&mut rest)?);
                Frame::Replay { handle, control, octets: std::mem::take(&mut rest).to_vec() }
            }
            5 => Frame::Later { handle: handle(&mut rest)?, octets: std::mem::take(&mut rest).to_vec() },
            6 => Frame::End(handle(&mut rest)?),
            7 => {
                let (handle, sequence) = (handle(&mut rest)?, narrow(number(&mut rest)?)?);
                Frame::Answer { handle, sequence, octets: std::mem::take(&mut rest).to_vec() }
            }
            8 => Frame::Ready,
            9 => Frame::Made(handle(&mut rest)?, made(&mut rest)?),
            10 => {
                let handle = handle(&mut rest)?;
                let why = match array(&mut rest)? {
                    [0, cause] => Why::Cause(cause),
                    [1, _] => Why::Silent,
                    [2, _] => Why::NoBearer,
                    [3, _] => Why::Unreadable,
                    [4, _] => Why::Taken,
                    [5, _] => Why::Apart,
                    [6, _] => Why::Restarted,
                    _ => return Err(BadFrame),
                };
                Frame::Refused(handle, why)
            }
            11 => Frame::Ended(handle(&mut rest)?),
            12 => {
                let (handle, sequence) = (handle(&mut rest)?, narrow(number(&mut rest)?)?);
                Frame::Request { handle, sequence, octets: std::mem::take(&mut rest).to_vec() }
            }
            13 => {
                let (handle, [is_end]) = (handle(&mut rest)?, array(&mut rest)?);
                Frame::Usage { handle, is_end: is_end != 0, octets: std::mem::take(&mut rest).to_vec() }
            }
            14 => {
                let (handle, [serves]) = (handle(&mut rest)?, array(&mut rest)?);
                Frame::Serve { handle, serves: serves != 0 }
            }
            _ => return Err(BadFrame),
        };
        if rest.is_empty() { Ok(frame) } else { Err(BadFrame) }
    }
}

/// Reads octets as frames, and writes them again. The fuzzer starts here.
pub fn fuzz(octets: &[u8]) {
    let (mut reader, mut writer) = (Reader::default(), Writer::default());
    reader.push(octets);
    while let Ok(Some(frame)) = reader.read() {
        let mut out = Vec::new();
        writer.write(&frame, &mut out);
        let mut again = Reader { handle: 0, ..Reader::default() };
        again.push(&out);
        // The first handle is a difference to another one.
        let _ = again.read();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let made = Made {
            anchor: 0x1234_5678,
            bearers: vec![
                Bearer { id: 5, uplink: 7, ipv4: Some([10, 46, 0, 2].into()), ipv6: None },
                Bearer { id: 6, uplink: 8, ipv4: None, ipv6: Some("2001:db8::".parse().unwrap()) },
            ],
        };
        let make = Frame::Make {
            handle: 70_000,
            subject: 9,
            control: 0xffff_ffff,
            address: None,
            templates: vec![1, 300],
            stored: vec![1, 2, 3],
        };
        let same = Frame::Make {
            handle: 70_001,
            subject: 1 << 40,
            control: 1 << 40,
            address: Some([10, 0, 0, 1].into()),
            templates: vec![],
            stored: vec![],
        };
        vec![
            Frame::Hello {
                version: VERSION,
                n4: true,
                started: u32::MAX,
                resume: false,
                original: [10, 0, 0, 1].into(),
            },
            Frame::Template { number: 300, octets: vec![1; 400] },
            make,
            same,
            Frame::Adopt { handle: 3, control: 1 << 33, made: made.clone() },
            Frame::Replay { handle: 3, control: 5, octets: vec![9; 200] },
            Frame::Later { handle: 2, octets: vec![] },
            Frame::End(u32::MAX),
            Frame::Answer { handle: 0, sequence: 0xff_ffff, octets: vec![1] },
            Frame::Ready,
            Frame::Made(5, made),
            Frame::Refused(5, Why::Cause(94)),
            Frame::Refused(6, Why::Silent),
            Frame::Ended(5),
            Frame::Request { handle: 5, sequence: 1, octets: vec![2, 3] },
            Frame::Usage { handle: 5, is_end: true, octets: vec![2, 3] },
            Frame::Serve { handle: 5, serves: true },
        ]
    }

    #[test]
    fn frames_come_back_in_any_pieces() {
        let (mut writer, mut out) = (Writer::default(), Vec::new());
        frames().iter().for_each(|frame| writer.write(frame, &mut out));
        for piece in [1, 2, 7, 1000] {
            let (mut reader, mut read) = (Reader::default(), Vec::new());
            for piece in out.chunks(piece) {
                reader.push(piece);
                while let Some(frame) = reader.read().unwrap() {
                    read.push(frame);
                }
            }
            assert_eq!(read, frames());
        }
    }

    #[test]
    fn damaged_frames_are_refused_and_nothing_panics() {
        let (mut writer, mut out) = (Writer::default(), Vec::new());
        frames().iter().for_each(|frame| writer.write(frame, &mut out));
        for at in 0..out.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = out.clone();
                damaged[at] = value;
                fuzz(&damaged);
            }
        }
        for bad in [&[0][..], &[1, 99], &[0xff, 0xff, 0xff, 0xff, 1], &[2, 8, 0]] {
            let mut reader = Reader::default();
            reader.push(bad);
            assert_eq!(reader.read(), Err(BadFrame), "{bad:?}");
        }
    }
}
