//! Writer of pcapng capture files (draft-ietf-opsawg-pcapng), as Wireshark and tshark read them.
//!
//! A file is a section header block, one interface description block per captured interface, and one
//! enhanced packet block per packet with a time stamp in nanoseconds. The writer is sans-IO about
//! time: the caller passes the stamp. Blocks are written whole, so a file cut short by a kill ends at
//! most within its last block.

use std::io::{self, Write};

/// Kinds of frames, with the numbers of the link-type registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum LinkType {
    /// Ethernet frames, including those of a loopback device.
    Ethernet = 1,
    /// Bare IPv4 or IPv6 packets, as on a TUN device.
    Raw = 101,
}

/// An interface that was declared in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct InterfaceId(u32);

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
const OPT_END: u16 = 0;
const OPT_IF_NAME: u16 = 2;
const OPT_IF_TSRESOL: u16 = 9;
const OPT_SHB_USERAPPL: u16 = 4;
/// Largest packet that is written in full; longer ones are cut and keep their original length.
pub const MAX_PACKET: usize = 262_144;

/// Writes one capture file.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    interfaces: u32,
    /// Blocks are assembled here, so that each reaches `out` in one write.
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Starts a file: writes the section header. `application` names the program in the file's properties.
    pub fn new(out: W, application: &str) -> io::Result<Writer<W>> {
        let mut writer = Writer { out, interfaces: 0, block: Vec::with_capacity(4096) };
        writer.begin(SECTION_HEADER);
        writer.block.extend_from_slice(&BYTE_ORDER_MAGIC.to_ne_bytes());
        writer.block.extend_from_slice(&1u16.to_ne_bytes());
        writer.block.extend_from_slice(&0u16.to_ne_bytes());
        // Section length: not known in advance.
        writer.block.extend_from_slice(&(-1i64).to_ne_bytes());
        writer.option(OPT_SHB_USERAPPL, application.as_bytes());
        writer.option(OPT_END, &[]);
        writer.end()?;
        Ok(writer)
    }

    /// Declares an interface whose packets follow.
    pub fn interface(&mut self, name: &str, link: LinkType) -> io::Result<InterfaceId> {
        self.begin(INTERFACE_DESCRIPTION);
        self.block.extend_from_slice(&(link as u16).to_ne_bytes());
        self.block.extend_from_slice(&0u16.to_ne_bytes());
        self.block.extend_from_slice(&(MAX_PACKET as u32).to_ne_bytes());
        self.option(OPT_IF_NAME, name.as_bytes());
        // 10^-9: nanoseconds.
        self.option(OPT_IF_TSRESOL, &[9]);
        self.option(OPT_END, &[]);
        self.end()?;
        self.interfaces += 1;
        Ok(InterfaceId(self.interfaces - 1))
    }

    /// Writes one packet. `timestamp_ns` counts from the Unix epoch; `original_len` is the length on
    /// the wire, which exceeds `data` when the capture cut the packet.
    pub fn packet(
        &mut self,
        interface: InterfaceId,
        timestamp_ns: u64,
        data: &[u8],
        original_len: usize,
    ) -> io::Result<()> {
        let data = &data[..data.len().min(MAX_PACKET)];
        self.begin(ENHANCED_PACKET);
        self.block.extend_from_slice(&interface.0.to_ne_bytes());
        self.block.extend_from_slice(&((timestamp_ns >> 32) as u32).to_ne_bytes());
        self.block.extend_from_slice(&(timestamp_ns as u32).to_ne_bytes());
        self.block.extend_from_slice(&(data.len() as u32).to_ne_bytes());
        let original = u32::try_from(original_len.max(data.len())).unwrap_or(u32::MAX);
        self.block.extend_from_slice(&original.to_ne_bytes());
        self.block.extend_from_slice(data);
        self.pad();
        self.end()
    }

    /// Hands everything written so far to the operating system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Flushes and returns what was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.block.extend_from_slice(&kind.to_ne_bytes());
        // Total length, filled in by `end`.
        self.block.extend_from_slice(&[0; 4]);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let value = &value[..value.len().min(usize::from(u16::MAX))];
        self.block.extend_from_slice(&code.to_ne_bytes());
        self.block.extend_from_slice(&(value.len() as u16).to_ne_bytes());
        self.block.extend_from_slice(value);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.block.len().is_multiple_of(4) {
            self.block.push(0);
        }
    }

    fn end(&mut self) -> io::Result<()> {
        let total = (self.block.len() as u32 + 4).to_ne_bytes();
        self.block.extend_from_slice(&total);
        self.block[4..8].copy_from_slice(&total);
        self.out.write_all(&self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// Walks the blocks as a reader would: both lengths agree and lead exactly to the end.
    fn blocks(bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut at = 0;
        let mut found = Vec::new();
        while at < bytes.len() {
            let total = u32_at(bytes, at + 4) as usize;
            assert!(total.is_multiple_of(4) && total >= 12);
            assert_eq!(u32_at(bytes, at + total - 4) as usize, total);
            found.push((u32_at(bytes, at), bytes[at + 8..at + total - 4].to_vec()));
            at += total;
        }
        assert_eq!(at, bytes.len());
        found
    }

    #[test]
    fn blocks_have_exact_lengths_and_nanosecond_stamps() {
        let mut writer = Writer::new(Vec::new(), "godwit").unwrap();
        let lo = writer.interface("lo", LinkType::Ethernet).unwrap();
        let tun = writer.interface("gw0", LinkType::Raw).unwrap();
        let stamp = 1_795_266_000_123_456_789u64;
        writer.packet(lo, stamp, &[1, 2, 3, 4, 5], 5).unwrap();
        writer.packet(tun, stamp + 1, &[6; 8], 1500).unwrap();
        let bytes = writer.finish().unwrap();
        let blocks = blocks(&bytes);
        assert_eq!(
            blocks.iter().map(|b| b.0).collect::<Vec<_>>(),
            [SECTION_HEADER, INTERFACE_DESCRIPTION, INTERFACE_DESCRIPTION, ENHANCED_PACKET, ENHANCED_PACKET]
        );
        assert_eq!(u32_at(&blocks[0].1, 0), BYTE_ORDER_MAGIC);
        assert_eq!(blocks[2].1[..2], 101u16.to_ne_bytes());
        let packet = &blocks[3].1;
        assert_eq!(u32_at(packet, 0), 0);
        assert_eq!((u64::from(u32_at(packet, 4)) << 32) | u64::from(u32_at(packet, 8)), stamp);
        assert_eq!((u32_at(packet, 12), u32_at(packet, 16)), (5, 5));
        assert_eq!(packet[20..25], [1, 2, 3, 4, 5]);
        assert_eq!(packet.len(), 28);
        assert_eq!((u32_at(&blocks[4].1, 12), u32_at(&blocks[4].1, 16)), (8, 1500));
    }
}
