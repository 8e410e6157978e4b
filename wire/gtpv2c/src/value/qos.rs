//! Bit rates and priorities: APN-AMBR, bearer QoS, flow QoS, ARP.

use crate::codec::{Cursor, Fault, Value};

/// Aggregate maximum bit rate (§8.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ambr {
    /// Uplink.
    pub uplink_kbps: u32,
    /// Downlink.
    pub downlink_kbps: u32,
}

impl Value for Ambr {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        Ok(Self { uplink_kbps: cursor.u32()?, downlink_kbps: cursor.u32()? })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.uplink_kbps.to_be_bytes());
        out.extend_from_slice(&self.downlink_kbps.to_be_bytes());
    }
}

/// Allocation and retention priority (§8.86).
///
/// ```text
/// spare · PCI · PL (4) · spare · PVI
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Arp {
    /// PCI: the bearer may *not* take the resources of others.
    pub pci: bool,
    /// PL, priority level: 1 is the highest, 15 the lowest.
    pub pl: u8,
    /// PVI: the bearer's resources may *not* be taken.
    pub pvi: bool,
}

impl Value for Arp {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let octet = bytes.first().ok_or(Fault::Length)?;
        Ok(Self { pci: octet & 0x40 != 0, pl: octet >> 2 & 0x0f, pvi: octet & 1 != 0 })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.pci) << 6 | (self.pl & 0x0f) << 2 | u8::from(self.pvi));
    }
}

/// QoS of a bearer (§8.15): ARP, then the fields of [`FlowQos`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BearerQos {
    /// Allocation and retention priority.
    pub arp: Arp,
    /// Class and bit rates.
    pub flow: FlowQos,
}

impl Value for BearerQos {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let (_, flow) = bytes.split_first().ok_or(Fault::Length)?;
        Ok(Self { arp: Arp::decode(bytes)?, flow: FlowQos::decode(flow)? })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        self.arp.encode(out);
        self.flow.encode(out);
    }
}

/// QoS that a UE asks for, or a bearer has (§8.16): class, then four rates in 40 bits each. Rates of non-GBR bearers are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FlowQos {
    /// QoS class identifier.
    pub qci: u8,
    /// Maximum bit rate, uplink.
    pub mbr_uplink_kbps: u64,
    /// Maximum bit rate, downlink.
    pub mbr_downlink_kbps: u64,
    /// Guaranteed bit rate, uplink.
    pub gbr_uplink_kbps: u64,
    /// Guaranteed bit rate, downlink.
    pub gbr_downlink_kbps: u64,
}

/// Largest rate that 40 bits hold.
const RATE_MAX: u64 = (1 << 40) - 1;

impl Value for FlowQos {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let qci = cursor.u8()?;
        let mut rate = || cursor.array().map(|[a, b, c, d, e]| u64::from_be_bytes([0, 0, 0, a, b, c, d, e]));
        Ok(Self {
            qci,
            mbr_uplink_kbps: rate()?,
            mbr_downlink_kbps: rate()?,
            gbr_uplink_kbps: rate()?,
            gbr_downlink_kbps: rate()?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.qci);
        for rate in
            [self.mbr_uplink_kbps, self.mbr_downlink_kbps, self.gbr_uplink_kbps, self.gbr_downlink_kbps]
        {
            out.extend_from_slice(&rate.min(RATE_MAX).to_be_bytes()[3..]);
        }
    }
}
