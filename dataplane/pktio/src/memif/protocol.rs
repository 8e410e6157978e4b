//! The messages of memif's control channel, version 2.0.
//!
//! A message is one packet of 128 octets on a Unix socket of type SEQPACKET: a type, and fields without padding in the byte
//! order of the machine. Some messages bring a file descriptor, which this module does not see.
//!
//! | direction | message | descriptor |
//! |---|---|---|
//! | server → client | HELLO: versions, limits | |
//! | client → server | INIT: interface, mode, secret | |
//! | client → server | ADD_REGION: memory | the memory |
//! | client → server | ADD_RING: a ring in it | eventfd that its sender rings |
//! | client → server | CONNECT, answered by CONNECTED | |
//! | both | DISCONNECT: reason | |
//!
//! The server acknowledges INIT, ADD_REGION and ADD_RING by ACK. The memif documents call the server master and the client
//! slave, so that M2S is a ring from server to client.

use std::fmt;

/// Octets of a message.
pub const MESSAGE: usize = 128;
/// Version 2.0, the only one.
pub const VERSION: u16 = 0x0200;

const NAME: usize = 32;
const SECRET: usize = 24;
const REASON: usize = 96;
/// Flag of ADD_RING: the ring leads from the client to the server.
const CLIENT_TO_SERVER: u16 = 1;

/// Zero-terminated text of up to `N` octets, of the peer's choice: it is printed with escapes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// Cut at `N` octets and at the first zero.
    pub fn new(text: &[u8]) -> Text<N> {
        let mut octets = [0; N];
        for (to, &from) in octets.iter_mut().zip(text).take_while(|(_, from)| **from != 0) {
            *to = from;
        }
        Text(octets)
    }

    /// Without the terminating zeros.
    pub fn octets(&self) -> &[u8] {
        let end = self.0.iter().position(|&octet| octet == 0).unwrap_or(N);
        &self.0[..end]
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.octets().escape_ascii())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A secret that client and server share. It is never printed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret([u8; SECRET]);

impl Secret {
    /// A secret of 1 to 24 octets, none of them zero.
    pub fn new(secret: &[u8]) -> Option<Secret> {
        let valid = (1..=SECRET).contains(&secret.len()) && !secret.contains(&0);
        valid.then(|| Secret(Text::new(secret).0))
    }

    /// Whether both are equal. It takes the same time wherever they differ.
    pub fn matches(&self, other: &Secret) -> bool {
        self.0.iter().zip(other.0).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The limits of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The program.
    pub name: Text<NAME>,
    /// Lowest version.
    pub min_version: u16,
    /// Highest version.
    pub max_version: u16,
    /// Highest index of a region.
    pub max_region: u16,
    /// Highest index of a ring to the client.
    pub max_to_client: u16,
    /// Highest index of a ring to the server.
    pub max_to_server: u16,
    /// Base-2 logarithm of the largest ring.
    pub max_log2_size: u8,
}

/// What a client wants to connect to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// The version that the client has chosen.
    pub version: u16,
    /// The interface on this socket.
    pub id: u32,
    /// What a packet is.
    pub mode: Mode,
    /// All zeros if there is none.
    pub secret: Secret,
    /// The program.
    pub name: Text<NAME>,
}

/// What a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// An Ethernet frame without checksum.
    Ethernet = 0,
    /// An IP packet.
    Ip = 1,
    /// VPP's own.
    PuntInject = 2,
}

/// Memory of the client. Its descriptor comes with the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddRegion {
    /// Its index: 0 is the first.
    pub index: u16,
    /// Octets.
    pub size: u64,
}

/// A ring in a region. Its eventfd comes with the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddRing {
    /// Whether packets go from client to server.
    pub to_server: bool,
    /// Its index in this direction.
    pub index: u16,
    /// The region it lies in.
    pub region: u16,
    /// Where in the region it begins.
    pub offset: u32,
    /// Base-2 logarithm of the number of descriptors.
    pub log2_size: u8,
    /// Octets in front of each packet that only the two programs understand.
    pub private_header: u16,
}

/// A message of the control channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// The last message was right.
    Ack,
    /// A server's first message.
    Hello(Hello),
    /// A client's first message.
    Init(Init),
    /// See [`AddRegion`].
    AddRegion(AddRegion),
    /// See [`AddRing`].
    AddRing(AddRing),
    /// All regions and rings are known. With the name of the client's interface.
    Connect(Text<NAME>),
    /// Packets may flow. With the name of the server's interface.
    Connected(Text<NAME>),
    /// The end, with a reason for people and one for programs.
    Disconnect(u32, Text<REASON>),
}

/// Why a message cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseError {
    /// It does not have 128 octets.
    #[error("a message of {0} octets instead of 128")]
    Length(usize),
    /// An unknown type.
    #[error("a message of unknown type {0}")]
    Type(u16),
    /// An unknown mode.
    #[error("unknown mode {0}")]
    Mode(u8),
    /// Unknown flags of a ring.
    #[error("unknown flags {0:#x} of a ring")]
    RingFlags(u16),
}

/// Reads fields one after the other. A message is longer than its longest body, so that every field lies within it.
struct Reader<'a>(&'a [u8; MESSAGE], usize);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let octets = std::array::from_fn(|i| self.0.get(self.1 + i).copied().unwrap_or(0));
        self.1 += N;
        octets
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn text<const N: usize>(&mut self) -> Text<N> {
        Text::new(&self.take::<N>())
    }
}

/// Writes fields one after the other.
struct Writer([u8; MESSAGE], usize);

impl Writer {
    fn put(&mut self, octets: &[u8]) -> &mut Writer {
        self.0[self.1..self.1 + octets.len()].copy_from_slice(octets);
        self.1 += octets.len();
        self
    }

    fn u16(&mut self, value: u16) -> &mut Writer {
        self.put(&value.to_ne_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Writer {
        self.put(&value.to_ne_bytes())
    }
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// It is not one of version 2.0.
    pub fn parse(octets: &[u8]) -> Result<Message, ParseError> {
        let message: &[u8; MESSAGE] = octets.try_into().map_err(|_| ParseError::Length(octets.len()))?;
        let mut reader = Reader(message, 0);
        let r = &mut reader;
        Ok(match r.u16() {
            1 => Message::Ack,
            2 => Message::Hello(Hello {
                name: r.text(),
                min_version: r.u16(),
                max_version: r.u16(),
                max_region: r.u16(),
                max_to_client: r.u16(),
                max_to_server: r.u16(),
                max_log2_size: r.u8(),
            }),
            3 => {
                let (version, id) = (r.u16(), r.u32());
                let mode = match r.u8() {
                    0 => Mode::Ethernet,
                    1 => Mode::Ip,
                    2 => Mode::PuntInject,
                    other => return Err(ParseError::Mode(other)),
                };
                let secret = Secret(r.text::<SECRET>().0);
                Message::Init(Init { version, id, mode, secret, name: r.text() })
            }
            4 => Message::AddRegion(AddRegion { index: r.u16(), size: r.u64() }),
            5 => {
                let flags = r.u16();
                if flags & !CLIENT_TO_SERVER != 0 {
                    return Err(ParseError::RingFlags(flags));
                }
                Message::AddRing(AddRing {
                    to_server: flags & CLIENT_TO_SERVER != 0,
                    index: r.u16(),
                    region: r.u16(),
                    offset: r.u32(),
                    log2_size: r.u8(),
                    private_header: r.u16(),
                })
            }
            6 => Message::Connect(r.text()),
            7 => Message::Connected(r.text()),
            8 => Message::Disconnect(r.u32(), r.text()),
            other => return Err(ParseError::Type(other)),
        })
    }

    /// The message's octets.
    pub fn build(&self) -> [u8; MESSAGE] {
        let mut writer = Writer([0; MESSAGE], 0);
        let w = &mut writer;
        match self {
            Message::Ack => w.u16(1),
            Message::Hello(hello) => w
                .u16(2)
                .put(&hello.name.0)
                .u16(hello.min_version)
                .u16(hello.max_version)
                .u16(hello.max_region)
                .u16(hello.max_to_client)
                .u16(hello.max_to_server)
                .put(&[hello.max_log2_size]),
            Message::Init(init) => w
                .u16(3)
                .u16(init.version)
                .u32(init.id)
                .put(&[init.mode as u8])
                .put(&init.secret.0)
                .put(&init.name.0),
            Message::AddRegion(region) => w.u16(4).u16(region.index).put(&region.size.to_ne_bytes()),
            Message::AddRing(ring) => w
                .u16(5)
                .u16(if ring.to_server { CLIENT_TO_SERVER } else { 0 })
                .u16(ring.index)
                .u16(ring.region)
                .u32(ring.offset)
                .put(&[ring.log2_size])
                .u16(ring.private_header),
            Message::Connect(name) => w.u16(6).put(&name.0),
            Message::Connected(name) => w.u16(7).put(&name.0),
            Message::Disconnect(code, reason) => w.u16(8).u32(*code).put(&reason.0),
        };
        writer.0
    }

    /// A DISCONNECT with a reason for people.
    pub fn disconnect(reason: &str) -> Message {
        // The last octet stays zero: other implementations read up to it.
        let reason = &reason.as_bytes()[..reason.len().min(REASON - 1)];
        Message::Disconnect(0, Text::new(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let name = Text::new(b"a name");
        vec![
            Message::Ack,
            Message::Hello(Hello {
                name,
                min_version: VERSION,
                max_version: VERSION + 1,
                max_region: 3,
                max_to_client: 4,
                max_to_server: 5,
                max_log2_size: 14,
            }),
            Message::Init(Init {
                version: VERSION,
                id: 0x0102_0304,
                mode: Mode::Ip,
                secret: Secret::new(b"hush").unwrap(),
                name,
            }),
            Message::AddRegion(AddRegion { index: 1, size: 1 << 40 }),
            Message::AddRing(AddRing {
                to_server: true,
                index: 2,
                region: 1,
                offset: 0x1234_5678,
                log2_size: 10,
                private_header: 7,
            }),
            Message::Connect(name),
            Message::Connected(name),
            Message::disconnect(&"long ".repeat(50)),
        ]
    }

    #[test]
    fn messages_survive_building_and_parsing() {
        for message in messages() {
            assert_eq!(Message::parse(&message.build()), Ok(message));
        }
    }

    /// The places of fields, as other implementations have them (a little-endian machine's octets).
    #[test]
    #[cfg(target_endian = "little")]
    fn fields_lie_where_the_protocol_has_them() {
        let [_, hello, init, region, ring, ..] = &messages()[..] else { panic!() };
        let hello = hello.build();
        assert_eq!(
            (&hello[..8], &hello[34..45]),
            (&b"\x02\0a name"[..], &[0, 2, 1, 2, 3, 0, 4, 0, 5, 0, 14][..])
        );
        let init = init.build();
        assert_eq!(
            (&init[..9], &init[9..13], &init[33..39]),
            (&[3, 0, 0, 2, 4, 3, 2, 1, 1][..], &b"hush"[..], &b"a name"[..])
        );
        assert_eq!(region.build()[..12], [4, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(ring.build()[..15], [5, 0, 1, 0, 2, 0, 1, 0, 0x78, 0x56, 0x34, 0x12, 10, 7, 0]);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for message in messages() {
            let octets = message.build();
            for length in 0..MESSAGE {
                assert_eq!(Message::parse(&octets[..length]), Err(ParseError::Length(length)));
            }
        }
        assert_eq!(Message::parse(&[0; 129]), Err(ParseError::Length(129)));
        for number in [0u16, 9, 0xFFFF] {
            let mut octets = [0; MESSAGE];
            octets[..2].copy_from_slice(&number.to_ne_bytes());
            assert_eq!(Message::parse(&octets), Err(ParseError::Type(number)));
        }
        let mut octets = messages()[2].build();
        octets[8] = 3;
        assert_eq!(Message::parse(&octets), Err(ParseError::Mode(3)));
        let mut octets = messages()[4].build();
        octets[2..4].copy_from_slice(&3u16.to_ne_bytes());
        assert_eq!(Message::parse(&octets), Err(ParseError::RingFlags(3)));
    }

    #[test]
    fn text_ends_at_the_first_zero_and_is_escaped() {
        let text = Text::<8>::new(b"a\nb\0rest");
        assert_eq!((text.octets(), text.to_string()), (&b"a\nb"[..], "a\\nb".to_owned()));
        assert_eq!(Text::<2>::new(b"abc").octets(), b"ab");
    }

    #[test]
    fn secrets_are_compared_and_not_printed() {
        let secret = Secret::new(b"hush").unwrap();
        assert!(secret.matches(&Secret::new(b"hush").unwrap()));
        assert!(!secret.matches(&Secret::new(b"hush!").unwrap()) && !secret.matches(&Secret::default()));
        assert_eq!(format!("{secret:?}"), "Secret");
        assert!(
            Secret::new(b"").is_none() && Secret::new(&[1; 25]).is_none() && Secret::new(b"a\0b").is_none()
        );
    }
}
