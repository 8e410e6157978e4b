//! What happens to a matched packet: gates, rates, marking, redirect, buffering.

use crate::codec::{Cursor, Fault, ShortBytes, Value};
use crate::value::{Gate, HeaderType};

/// Gates of both directions (§8.2.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GateStatus {
    /// Uplink gate.
    pub uplink: Gate,
    /// Downlink gate.
    pub downlink: Gate,
}

impl Value for GateStatus {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let octet = *bytes.first().ok_or(Fault::Length)?;
        Ok(Self { uplink: Gate::decode(&[octet >> 2])?, downlink: Gate::decode(&[octet])? })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push((self.uplink as u8) << 2 | self.downlink as u8);
    }
}

/// Bit rates of both directions in kbit/s, 40 bits each (MBR §8.2.8, GBR §8.2.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BitRates {
    /// Uplink, kbit/s.
    pub uplink_kbps: u64,
    /// Downlink, kbit/s.
    pub downlink_kbps: u64,
}

impl Value for BitRates {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let mut rate =
            || cursor.array().map(|[a, b, c, d, e]: [u8; 5]| u64::from_be_bytes([0, 0, 0, a, b, c, d, e]));
        Ok(Self { uplink_kbps: rate()?, downlink_kbps: rate()? })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        for rate in [self.uplink_kbps, self.downlink_kbps] {
            // What 40 bits cannot say is as good as unlimited.
            out.extend_from_slice(&rate.min((1 << 40) - 1).to_be_bytes()[3..]);
        }
    }
}

/// QoS flow identifier, 6 bits (§8.2.89).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qfi(pub u8);

impl Value for Qfi {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        bytes.first().map(|octet| Self(octet & 0x3f)).ok_or(Fault::Length)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0 & 0x3f);
    }
}

/// ToS or traffic class to write, with the mask of the bits that are written (§8.2.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TransportLevelMarking {
    /// ToS (IPv4) or traffic class (IPv6).
    pub tos: u8,
    /// Bits of `tos` that count.
    pub mask: u8,
}

impl Value for TransportLevelMarking {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let [tos, mask] = Cursor(bytes).array()?;
        Ok(Self { tos, mask })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.tos, self.mask]);
    }
}

/// Downlink flow level marking (§8.2.66).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DlFlowLevelMarking {
    /// ToS or traffic class with mask.
    pub tos_traffic_class: Option<(u8, u8)>,
    /// Service class indicator.
    pub service_class: Option<[u8; 2]>,
}

impl Value for DlFlowLevelMarking {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        Ok(Self {
            tos_traffic_class: if flags & 1 != 0 { Some((cursor.u8()?, cursor.u8()?)) } else { None },
            service_class: if flags & 2 != 0 { Some(cursor.array()?) } else { None },
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.tos_traffic_class.is_some()) | u8::from(self.service_class.is_some()) << 1);
        if let Some((tos, mask)) = self.tos_traffic_class {
            out.extend_from_slice(&[tos, mask]);
        }
        out.extend(self.service_class.iter().flatten());
    }
}

/// Where to redirect uplink traffic (§8.2.20).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RedirectInformation {
    /// 0 IPv4, 1 IPv6, 2 URL, 3 SIP URI, 4 IPv4 and IPv6.
    pub address_type: u8,
    /// The address as text (IPv6 in the second for type 4).
    pub server: ShortBytes,
    /// The second address, for type 4.
    pub other_server: Option<ShortBytes>,
}

impl Value for RedirectInformation {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let address_type = cursor.u8()? & 0x0f;
        if address_type > 4 {
            return Err(Fault::Incorrect);
        }
        let length = cursor.u16()?;
        let server = cursor.take(length.into())?.into();
        let mut other_server = None;
        if address_type == 4 {
            let length = cursor.u16()?;
            other_server = Some(cursor.take(length.into())?.into());
        }
        Ok(Self { address_type, server, other_server })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.address_type & 0x0f);
        for server in [Some(&self.server), self.other_server.as_ref()].into_iter().flatten() {
            out.extend_from_slice(&(server.as_bytes().len() as u16).to_be_bytes());
            out.extend_from_slice(server.as_bytes());
        }
    }
}

/// Name of a forwarding policy configured in the UP function (§8.2.23).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ForwardingPolicy(pub ShortBytes);

impl Value for ForwardingPolicy {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let length = cursor.u8()?;
        Ok(Self(cursor.take(length.into())?.into()))
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let name = self.0.as_bytes();
        let length = name.len().min(255);
        out.push(length as u8);
        out.extend_from_slice(&name[..length]);
    }
}

/// A header field to add to uplink requests (§8.2.67).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HeaderEnrichment {
    /// Kind of header.
    pub header_type: HeaderType,
    /// Field name.
    pub name: ShortBytes,
    /// Field value.
    pub value: ShortBytes,
}

impl Value for HeaderEnrichment {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let header_type = HeaderType::decode(&[cursor.u8()?])?;
        let length = cursor.u8()?;
        let name = cursor.take(length.into())?.into();
        let length = cursor.u8()?;
        Ok(Self { header_type, name, value: cursor.take(length.into())?.into() })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.header_type as u8);
        for field in [&self.name, &self.value] {
            let bytes = field.as_bytes();
            let length = bytes.len().min(255);
            out.push(length as u8);
            out.extend_from_slice(&bytes[..length]);
        }
    }
}

/// Length of time as unit and count (§8.2.27, §8.2.78): 2 s, 1 min, 10 min, 1 h, 10 h, infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CoarseTimer(pub u8);

impl CoarseTimer {
    /// Without end.
    pub const INFINITE: Self = Self(0xe0);

    /// Seconds, `None` when infinite.
    pub fn seconds(self) -> Option<u32> {
        let unit = match self.0 >> 5 {
            0 => 2,
            2 => 600,
            3 => 3600,
            4 => 36_000,
            7 => return None,
            // Unknown units count as minutes (§8.2.27).
            _ => 60,
        };
        Some(u32::from(self.0 & 0x1f) * unit)
    }
}

impl Value for CoarseTimer {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        bytes.first().map(|octet| Self(*octet)).ok_or(Fault::Length)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.0);
    }
}

/// Number of packets, in one octet or two (§8.2.32).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SuggestedPacketCount(pub u16);

impl Value for SuggestedPacketCount {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        match *bytes {
            [] => Err(Fault::Length),
            [count] => Ok(Self(count.into())),
            [high, low, ..] => Ok(Self(u16::from_be_bytes([high, low]))),
        }
    }
    fn encode(&self, out: &mut Vec<u8>) {
        match u8::try_from(self.0) {
            Ok(count) => out.push(count),
            Err(_) => out.extend_from_slice(&self.0.to_be_bytes()),
        }
    }
}

/// Paging policy and QoS flow of a downlink packet that waits (§8.2.31).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DownlinkDataServiceInformation {
    /// Paging policy indication: the packet's DSCP, 6 bits.
    pub paging_policy: Option<u8>,
    /// QoS flow.
    pub qfi: Option<Qfi>,
}

impl Value for DownlinkDataServiceInformation {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        Ok(Self {
            paging_policy: if flags & 1 != 0 { Some(cursor.u8()? & 0x3f) } else { None },
            qfi: if flags & 2 != 0 { Some(Qfi(cursor.u8()? & 0x3f)) } else { None },
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.paging_policy.is_some()) | u8::from(self.qfi.is_some()) << 1);
        out.extend(self.paging_policy);
        out.extend(self.qfi.map(|qfi| qfi.0));
    }
}
