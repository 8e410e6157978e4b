//! A capture file of one TCP connection, made from what was sent: as tcpdump would have written it.

use std::time::Duration;

use cotcp::frame::Side;

/// The port of the server in every capture; nothing else in Wireshark claims it.
pub const PORT: u16 = 17_077;
const CLIENT_PORT: u16 = 40_000;
/// Bare IP packets.
const LINK_RAW: u32 = 101;

/// Packets of one connection, in the order in which they are added.
pub struct Capture {
    octets: Vec<u8>,
    /// The next sequence numbers: client's, server's.
    sequence: [u32; 2],
    time: Duration,
}

impl Capture {
    /// Begins with the three packets that open the connection.
    pub fn new() -> Self {
        let mut octets = Vec::new();
        // Time stamps in nanoseconds, version 2.4, no offset, no accuracy, longest packet.
        for word in [0xA1B2_3C4D_u32, 4 << 16 | 2, 0, 0, 262_144, LINK_RAW] {
            octets.extend_from_slice(&word.to_le_bytes());
        }
        let mut capture = Self { octets, sequence: [1000, 2000], time: Duration::from_secs(1_000_000) };
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        capture.packet(Side::Client, SYN, &[]);
        capture.packet(Side::Server, SYN | ACK, &[]);
        capture.packet(Side::Client, ACK, &[]);
        capture
    }

    /// One segment, a millisecond after the one before.
    pub fn segment(&mut self, from: Side, data: &[u8]) {
        const PUSH_ACK: u8 = 24;
        self.time += Duration::from_millis(1);
        self.packet(from, PUSH_ACK, data);
    }

    /// A segment from the client.
    pub fn client(&mut self, data: &[u8]) {
        self.segment(Side::Client, data);
    }

    /// A segment from the server.
    pub fn server(&mut self, data: &[u8]) {
        self.segment(Side::Server, data);
    }

    /// The same in segments of `cut` octets.
    pub fn segments(&mut self, from: Side, data: &[u8], cut: usize) {
        for part in data.chunks(cut) {
            self.segment(from, part);
        }
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        self.octets
    }

    fn packet(&mut self, from: Side, flags: u8, data: &[u8]) {
        let (mine, other, ports) = match from {
            Side::Client => (0, 1, [CLIENT_PORT, PORT]),
            Side::Server => (1, 0, [PORT, CLIENT_PORT]),
        };
        let total = 40 + data.len();
        let mut packet = Vec::with_capacity(total);
        // IPv4 with TCP, from loopback to loopback; checksums of 0 are not looked at.
        packet.extend_from_slice(&[0x45, 0]);
        packet.extend_from_slice(&u16::try_from(total).unwrap().to_be_bytes());
        packet.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
        ports.iter().for_each(|port| packet.extend_from_slice(&port.to_be_bytes()));
        packet.extend_from_slice(&self.sequence[mine].to_be_bytes());
        packet.extend_from_slice(&self.sequence[other].to_be_bytes());
        packet.extend_from_slice(&[0x50, flags, 0xFF, 0xFF, 0, 0, 0, 0]);
        packet.extend_from_slice(data);
        let syn = u32::from(flags >> 1 & 1);
        self.sequence[mine] = self.sequence[mine].wrapping_add(u32::try_from(data.len()).unwrap() + syn);
        let length = u32::try_from(total).unwrap();
        for word in [u32::try_from(self.time.as_secs()).unwrap(), self.time.subsec_nanos(), length, length] {
            self.octets.extend_from_slice(&word.to_le_bytes());
        }
        self.octets.extend_from_slice(&packet);
    }
}
