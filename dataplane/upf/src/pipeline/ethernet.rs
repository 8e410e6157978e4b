//! Frames of Ethernet sessions: the fields by which rules select them (TS 29.244 table 7.5.2.2-3).
//!
//! A G-PDU of an Ethernet session holds a frame that starts at the destination address, without preamble and
//! check sequence (TS 29.561 §8.2, TS 23.501 §5.6.10.2). [`crate::bridge`] decides to which session a frame
//! goes.

use classifier::{Ethernet, Key};
use packet::ethernet::{IPV4, IPV6};
use packet::flow::Flow;
use telemetry::DropReason;

/// Octets of a header without tags.
pub const HEADER_LEN: usize = 14;
const TAG_LEN: usize = 4;
/// EtherTypes of customer and service tags.
const C_TAG: u16 = 0x8100;
const S_TAG: u16 = 0x88A8;
/// Bits of the VLAN identifier in a tag.
const VLAN: u16 = 0x0FFF;

/// The fields of a frame that rules match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Addresses, tags, type of the payload.
    pub header: Ethernet,
    /// The IP packet inside, if there is a valid one.
    pub flow: Option<Flow>,
    /// Where the payload begins.
    pub payload: usize,
}

impl View {
    /// Reads a frame. A malformed IP packet inside is not a reason to drop it: a bridge does not check it, and
    /// no SDF filter matches it.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<View, DropReason> {
        let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let mut at = HEADER_LEN;
        let mut ethertype = word(at - 2).ok_or(DropReason::EthernetMalformed)?;
        let mut tag = |kind: u16| {
            if ethertype != kind {
                return Ok(None);
            }
            let value = word(at).ok_or(DropReason::EthernetMalformed)?;
            at += TAG_LEN;
            ethertype = word(at - 2).ok_or(DropReason::EthernetMalformed)?;
            Ok(Some(value))
        };
        let s_tag = tag(S_TAG)?;
        let c_tag = tag(C_TAG)?;
        let address = |at: usize| std::array::from_fn(|i| frame[at + i]);
        let header = Ethernet { destination: address(0), source: address(6), ethertype, c_tag, s_tag };
        // The source must be a single station, and the all-zero address is none (IEEE 802.3 §3.2.3).
        if header.source[0] & 1 != 0 || header.source == [0; 6] {
            return Err(DropReason::EthernetSource);
        }
        let flow = match ethertype {
            IPV4 | IPV6 => Flow::parse(&frame[at..]).ok(),
            _ => None,
        };
        Ok(View { header, flow, payload: at })
    }

    /// The IP packet inside a frame, behind any number of tags: a system that receives the frame removes all.
    pub fn packet<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let (mut kind, mut payload) = (self.header.ethertype, frame.get(self.payload..)?);
        while matches!(kind, C_TAG | S_TAG) {
            let (tag, behind) = payload.split_first_chunk::<TAG_LEN>()?;
            (kind, payload) = (u16::from_be_bytes([tag[2], tag[3]]), behind);
        }
        matches!(kind, IPV4 | IPV6).then_some(payload)
    }

    /// The key that a classifier looks up. `qfi` is that of the tunnel from which the frame came.
    #[inline]
    pub fn key(&self, qfi: Option<u8>) -> Key {
        let mut key = match &self.flow {
            None => Key::unknown(),
            Some(flow) => {
                let mut key = Key::new(flow.source, flow.destination, flow.protocol)
                    .with_tos(flow.tos)
                    .with_flow_label(flow.flow_label);
                if let Some((source, destination)) = flow.ports {
                    key = key.with_ports(source, destination);
                }
                if let Some(spi) = flow.spi {
                    key = key.with_spi(spi);
                }
                key
            }
        };
        if let Some(qfi) = qfi {
            key = key.with_qfi(qfi);
        }
        key.with_ethernet(self.header)
    }

    /// The VLAN of the frame: that of the outer tag, or 0 without a tag.
    #[inline]
    pub fn vlan(&self) -> u16 {
        self.header.s_tag.or(self.header.c_tag).unwrap_or(0) & VLAN
    }

    /// Whether the frame is for more than one station.
    #[inline]
    pub fn is_group(&self) -> bool {
        self.header.destination[0] & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use packet::ethernet::{ARP, build};
    use packet::{ipv4, protocol};

    use super::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 0xA];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 0xB];

    fn ip() -> Vec<u8> {
        let udp = [0x0F, 0xA0, 0, 53, 0, 8, 0, 0];
        ipv4::Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP).build(&udp).unwrap()
    }

    #[test]
    fn frames_are_read_with_and_without_tags() {
        let view = View::parse(&build(B, A, None, IPV4, &ip())).unwrap();
        assert_eq!((view.header.source, view.header.destination, view.payload), (A, B, 14));
        assert_eq!((view.header.ethertype, view.vlan(), view.is_group()), (IPV4, 0, false));
        assert_eq!(view.flow.unwrap().ports, Some((4000, 53)));

        let tagged = build(B, A, Some(7), IPV4, &ip());
        let view = View::parse(&tagged).unwrap();
        assert_eq!((view.header.c_tag, view.header.s_tag, view.vlan(), view.payload), (Some(7), None, 7, 18));
        assert!(view.flow.is_some());

        let mut double = tagged.clone();
        double.splice(12..12, [0x88, 0xA8, 0xE0, 9]);
        let view = View::parse(&double).unwrap();
        assert_eq!((view.header.c_tag, view.header.s_tag), (Some(7), Some(0xE009)));
        assert_eq!((view.vlan(), view.payload, view.header.ethertype), (9, 22, IPV4));
    }

    #[test]
    fn frames_that_end_early_and_false_sources_are_refused() {
        let mut double = build(B, A, Some(7), ARP, &[]);
        double.splice(12..12, [0x88, 0xA8, 0, 9]);
        for length in 0..double.len() {
            assert_eq!(View::parse(&double[..length]), Err(DropReason::EthernetMalformed), "{length}");
        }
        assert!(View::parse(&double).is_ok());
        for source in [[0; 6], [0xFF; 6], [1, 0, 0x5E, 0, 0, 1]] {
            let frame = build(B, source, None, ARP, &[0; 46]);
            assert_eq!(View::parse(&frame), Err(DropReason::EthernetSource));
        }
        assert!(View::parse(&build([0xFF; 6], A, None, ARP, &[0; 46])).unwrap().is_group());
    }

    #[test]
    fn broken_packets_inside_are_frames_all_the_same() {
        for length in 0..ip().len() {
            let view = View::parse(&build(B, A, None, IPV4, &ip()[..length])).unwrap();
            assert_eq!(view.flow, None);
        }
        let view = View::parse(&build(B, A, None, ARP, &ip())).unwrap();
        assert_eq!(view.flow, None);
    }

    #[test]
    fn keys_hold_the_header_and_the_packet() {
        let with = View::parse(&build(B, A, Some(7), IPV4, &ip())).unwrap();
        let expected = Key::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), protocol::UDP)
            .with_ports(4000, 53)
            .with_qfi(5)
            .with_ethernet(with.header);
        assert_eq!(with.key(Some(5)), expected);
        let without = View::parse(&build(B, A, None, ARP, &[])).unwrap();
        assert_eq!(without.key(None), Key::unknown().with_ethernet(without.header));
    }
}
