//! Volumes, dropped traffic, report bookkeeping.

use crate::codec::{Cursor, Fault, Value};

/// Volumes in octets per direction, for thresholds and quotas (§8.2.13, §8.2.50).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Volume {
    /// Both directions.
    pub total: Option<u64>,
    /// Uplink.
    pub uplink: Option<u64>,
    /// Downlink.
    pub downlink: Option<u64>,
}

impl Value for Volume {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let mut volume = |bit: u8| (flags & bit != 0).then(|| cursor.u64()).transpose();
        Ok(Self { total: volume(1)?, uplink: volume(2)?, downlink: volume(4)? })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        put_counters(out, &[self.total, self.uplink, self.downlink]);
    }
}

/// Measured octets and packets (§8.2.44).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VolumeMeasurement {
    /// Octets, both directions.
    pub total: Option<u64>,
    /// Octets, uplink.
    pub uplink: Option<u64>,
    /// Octets, downlink.
    pub downlink: Option<u64>,
    /// Packets, both directions.
    pub total_packets: Option<u64>,
    /// Packets, uplink.
    pub uplink_packets: Option<u64>,
    /// Packets, downlink.
    pub downlink_packets: Option<u64>,
}

impl Value for VolumeMeasurement {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let mut volume = |bit: u8| (flags & bit != 0).then(|| cursor.u64()).transpose();
        Ok(Self {
            total: volume(1)?,
            uplink: volume(2)?,
            downlink: volume(4)?,
            total_packets: volume(8)?,
            uplink_packets: volume(0x10)?,
            downlink_packets: volume(0x20)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let octets = [self.total, self.uplink, self.downlink];
        let packets = [self.total_packets, self.uplink_packets, self.downlink_packets];
        put_counters(out, &[octets, packets].concat());
    }
}

/// Flags octet (lowest bit first) and then the counters that are there.
fn put_counters(out: &mut Vec<u8>, counters: &[Option<u64>]) {
    let flags = counters
        .iter()
        .enumerate()
        .fold(0u8, |flags, (bit, counter)| flags | u8::from(counter.is_some()) << bit);
    out.push(flags);
    for counter in counters.iter().flatten() {
        out.extend_from_slice(&counter.to_be_bytes());
    }
}

/// Dropped downlink traffic after which to report (§8.2.49).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DroppedDlTrafficThreshold {
    /// Packets.
    pub packets: Option<u64>,
    /// Octets.
    pub bytes: Option<u64>,
}

impl Value for DroppedDlTrafficThreshold {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let mut counter = |bit: u8| (flags & bit != 0).then(|| cursor.u64()).transpose();
        Ok(Self { packets: counter(1)?, bytes: counter(2)? })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        put_counters(out, &[self.packets, self.bytes]);
    }
}

/// How many usage reports follow in report requests (§8.2.91).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AdditionalUsageReports {
    /// AURI: reports will follow, their number not being told.
    pub more: bool,
    /// Number of reports that follow, 15 bits.
    pub count: u16,
}

impl Value for AdditionalUsageReports {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let value = Cursor(bytes).u16()?;
        Ok(Self { more: value & 0x8000 != 0, count: value & 0x7fff })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(u16::from(self.more) << 15 | self.count & 0x7fff).to_be_bytes());
    }
}

/// The rule that made a request fail (§8.2.80).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailedRuleId {
    /// A PDR.
    Pdr(u16),
    /// A FAR.
    Far(u32),
    /// A QER.
    Qer(u32),
    /// A URR.
    Urr(u32),
    /// A BAR.
    Bar(u8),
}

impl Value for FailedRuleId {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        match cursor.u8()? & 0x1f {
            0 => cursor.u16().map(Self::Pdr),
            1 => cursor.u32().map(Self::Far),
            2 => cursor.u32().map(Self::Qer),
            3 => cursor.u32().map(Self::Urr),
            4 => cursor.u8().map(Self::Bar),
            _ => Err(Fault::Incorrect),
        }
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, id) = match *self {
            Self::Pdr(id) => {
                out.push(0);
                return out.extend_from_slice(&id.to_be_bytes());
            }
            Self::Bar(id) => return out.extend_from_slice(&[4, id]),
            Self::Far(id) => (1, id),
            Self::Qer(id) => (2, id),
            Self::Urr(id) => (3, id),
        };
        out.push(kind);
        out.extend_from_slice(&id.to_be_bytes());
    }
}
