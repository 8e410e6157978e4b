//! What a PDI matches: SDF filter, MAC addresses, VLAN tags.

use crate::codec::{Cursor, Fault, ShortBytes, Value};

/// Service data flow filter (§8.2.5).
///
/// ```text
/// octet 5: 000 BID FL SPI TTC FD · spare · [length (2) · flow description] · [ToS (1) · mask (1)] · [SPI (4)]
///          · [flow label (3)] · [filter id (4)]
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SdfFilter {
    /// IPFilterRule in the form of TS 29.212 §5.4.2: `permit out 6 from 10.0.0.0/8 80-90 to assigned`.
    /// It is written for the downlink; uplink PDRs swap source and destination.
    pub flow_description: Option<ShortBytes>,
    /// ToS or traffic class and its mask.
    pub tos_traffic_class: Option<(u8, u8)>,
    /// IPsec security parameter index.
    pub security_parameter_index: Option<u32>,
    /// IPv6 flow label, 20 bits.
    pub flow_label: Option<u32>,
    /// Identifier of a bidirectional filter, to be referred to without repeating it.
    pub filter_id: Option<u32>,
}

impl Value for SdfFilter {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        cursor.u8()?;
        let mut value = Self::default();
        if flags & 1 != 0 {
            let length = cursor.u16()?;
            let text = cursor.take(length.into())?;
            if !text.is_ascii() {
                return Err(Fault::Incorrect);
            }
            value.flow_description = Some(text.into());
        }
        if flags & 2 != 0 {
            value.tos_traffic_class = Some((cursor.u8()?, cursor.u8()?));
        }
        if flags & 4 != 0 {
            value.security_parameter_index = Some(cursor.u32()?);
        }
        if flags & 8 != 0 {
            let [a, b, c] = cursor.array()?;
            value.flow_label = Some(u32::from_be_bytes([0, a & 0x0f, b, c]));
        }
        if flags & 0x10 != 0 {
            value.filter_id = Some(cursor.u32()?);
        }
        Ok(value)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(
            u8::from(self.flow_description.is_some())
                | u8::from(self.tos_traffic_class.is_some()) << 1
                | u8::from(self.security_parameter_index.is_some()) << 2
                | u8::from(self.flow_label.is_some()) << 3
                | u8::from(self.filter_id.is_some()) << 4,
        );
        out.push(0);
        if let Some(text) = &self.flow_description {
            out.extend_from_slice(&(text.as_bytes().len() as u16).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        if let Some((tos, mask)) = self.tos_traffic_class {
            out.extend_from_slice(&[tos, mask]);
        }
        if let Some(spi) = self.security_parameter_index {
            out.extend_from_slice(&spi.to_be_bytes());
        }
        if let Some(label) = self.flow_label {
            out.extend_from_slice(&label.to_be_bytes()[1..]);
        }
        if let Some(id) = self.filter_id {
            out.extend_from_slice(&id.to_be_bytes());
        }
    }
}

/// MAC addresses of an Ethernet filter, with upper ends when they are ranges (§8.2.93).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MacAddresses {
    /// Source address.
    pub source: Option<[u8; 6]>,
    /// Destination address.
    pub destination: Option<[u8; 6]>,
    /// Upper end of the source range.
    pub upper_source: Option<[u8; 6]>,
    /// Upper end of the destination range.
    pub upper_destination: Option<[u8; 6]>,
}

impl Value for MacAddresses {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let mut mac = |bit: u8| (flags & bit != 0).then(|| cursor.array::<6>()).transpose();
        Ok(Self { source: mac(1)?, destination: mac(2)?, upper_source: mac(4)?, upper_destination: mac(8)? })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(
            u8::from(self.source.is_some())
                | u8::from(self.destination.is_some()) << 1
                | u8::from(self.upper_source.is_some()) << 2
                | u8::from(self.upper_destination.is_some()) << 3,
        );
        for mac in
            [self.source, self.destination, self.upper_source, self.upper_destination].into_iter().flatten()
        {
            out.extend_from_slice(&mac);
        }
    }
}

/// C-TAG or S-TAG (§8.2.94): which of PCP, DEI and VID count, and their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VlanTag {
    /// Priority code point, 3 bits.
    pub pcp: Option<u8>,
    /// Drop eligible indicator.
    pub dei: Option<bool>,
    /// VLAN identifier, 12 bits.
    pub vid: Option<u16>,
}

impl Value for VlanTag {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let [flags, high, low] = Cursor(bytes).array()?;
        Ok(Self {
            pcp: (flags & 1 != 0).then_some(high & 7),
            dei: (flags & 2 != 0).then_some(high & 8 != 0),
            vid: (flags & 4 != 0).then_some(u16::from(high >> 4) << 8 | u16::from(low)),
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let vid = self.vid.unwrap_or(0);
        out.push(
            u8::from(self.pcp.is_some())
                | u8::from(self.dei.is_some()) << 1
                | u8::from(self.vid.is_some()) << 2,
        );
        out.push(((vid >> 8) as u8) << 4 | u8::from(self.dei == Some(true)) << 3 | self.pcp.unwrap_or(0) & 7);
        out.push(vid as u8);
    }
}

/// Ethernet addresses with the tags they were seen under (§8.2.103, §8.2.104).
///
/// ```text
/// number of addresses (1) · addresses (6 each) · length of C-TAG (1) · [C-TAG] · length of S-TAG (1) · [S-TAG]
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct MacAddressList {
    /// Addresses, 255 at most.
    pub addresses: Vec<[u8; 6]>,
    /// Customer VLAN tag.
    pub c_tag: Option<VlanTag>,
    /// Service VLAN tag.
    pub s_tag: Option<VlanTag>,
}

impl Value for MacAddressList {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let count = cursor.u8()?;
        let addresses = (0..count).map(|_| cursor.array()).collect::<Result<_, _>>()?;
        let mut tag = || match cursor.0.is_empty() {
            // Senders of Release 15 leave the lengths out when there are no tags.
            true => Ok(None),
            false => {
                let length = cursor.u8()?;
                let tag = cursor.take(length.into())?;
                if length == 0 { Ok(None) } else { VlanTag::decode(tag).map(Some) }
            }
        };
        Ok(Self { addresses, c_tag: tag()?, s_tag: tag()? })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let addresses = &self.addresses[..self.addresses.len().min(255)];
        out.push(addresses.len() as u8);
        out.extend(addresses.iter().flatten());
        for tag in [self.c_tag, self.s_tag] {
            match tag {
                None => out.push(0),
                Some(tag) => {
                    out.push(3);
                    tag.encode(out);
                }
            }
        }
    }
}
