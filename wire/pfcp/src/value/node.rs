//! Node ID, user ID, slice and data network name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::codec::{Cursor, Fault, ShortBytes, Value};

/// Name of a CP or UP function (§8.2.38).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NodeId {
    /// IPv4 address.
    Ipv4(Ipv4Addr),
    /// IPv6 address.
    Ipv6(Ipv6Addr),
    /// Fully qualified domain name.
    Fqdn(String),
}

impl Default for NodeId {
    fn default() -> Self {
        Self::Ipv4(Ipv4Addr::UNSPECIFIED)
    }
}

impl From<IpAddr> for NodeId {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::Ipv4(v4),
            IpAddr::V6(v6) => Self::Ipv6(v6),
        }
    }
}

impl Value for NodeId {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        match cursor.u8()? & 0x0f {
            0 => cursor.array::<4>().map(|octets| Self::Ipv4(octets.into())),
            1 => cursor.array::<16>().map(|octets| Self::Ipv6(octets.into())),
            // The root of DNS names nobody.
            2 => match decode_labels(cursor.0)? {
                name if name.is_empty() => Err(Fault::Incorrect),
                name => Ok(Self::Fqdn(name)),
            },
            _ => Err(Fault::Incorrect),
        }
    }
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ipv4(address) => {
                out.push(0);
                out.extend_from_slice(&address.octets());
            }
            Self::Ipv6(address) => {
                out.push(1);
                out.extend_from_slice(&address.octets());
            }
            Self::Fqdn(name) => {
                out.push(2);
                encode_labels(name, out);
            }
        }
    }
}

/// A name as length-prefixed labels without the final zero (TS 23.003 §9.1).
fn encode_labels(name: &str, out: &mut Vec<u8>) {
    for label in name.split('.').filter(|label| !label.is_empty()) {
        let label = &label.as_bytes()[..label.len().min(63)];
        out.push(label.len() as u8);
        out.extend_from_slice(label);
    }
}

fn decode_labels(mut bytes: &[u8]) -> Result<String, Fault> {
    let mut name = String::with_capacity(bytes.len());
    while let Some((&length, rest)) = bytes.split_first() {
        if length == 0 && rest.is_empty() {
            break; // some senders end the name like DNS does
        }
        let (label, rest) = rest.split_at_checked(length.into()).ok_or(Fault::Incorrect)?;
        let label = std::str::from_utf8(label).map_err(|_| Fault::Incorrect)?;
        // A dot inside a label would read back as two labels.
        if length == 0 || length > 63 || label.contains('.') {
            return Err(Fault::Incorrect);
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(label);
        bytes = rest;
    }
    Ok(name)
}

/// APN or DNN (§8.2.112), held as dotted text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ApnDnn(pub String);

impl Value for ApnDnn {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        decode_labels(bytes).map(Self)
    }
    fn encode(&self, out: &mut Vec<u8>) {
        encode_labels(&self.0, out);
    }
}

/// A network instance as an APN is written, in length-prefixed labels (§8.2.4, TS 23.003 §9.1).
pub fn network_instance_as_labels(name: &str) -> ShortBytes {
    let mut octets = Vec::with_capacity(name.len() + 1);
    encode_labels(name, &mut octets);
    octets.as_slice().into()
}

/// The name of a network instance, which peers write as labels or as plain text: §8.2.4 allows both. No printable text
/// reads as labels, because its first octet would be a label longer than the text. `None` when it is neither.
pub fn network_instance_name(octets: &ShortBytes) -> Option<String> {
    let labels = decode_labels(octets.as_bytes()).ok();
    labels.or_else(|| octets.as_str().map(str::to_owned)).filter(|name| !name.is_empty())
}

/// Slice (§8.2.176). An SD of `ff ff ff` on the wire means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SNssai {
    /// Slice/service type.
    pub sst: u8,
    /// Slice differentiator.
    pub sd: Option<[u8; 3]>,
}

impl Value for SNssai {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let [sst, sd @ ..]: [u8; 4] = Cursor(bytes).array()?;
        Ok(Self { sst, sd: (sd != [0xff; 3]).then_some(sd) })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.sst);
        out.extend_from_slice(&self.sd.unwrap_or([0xff; 3]));
    }
}

/// Sets of sessions that a failure takes down together (§8.2.61).
///
/// ```text
/// octet 5: node address type (4) · number of CSIDs (4) · node address (4 or 16) · CSIDs (2 each) · [node type (1)]
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FqCsid {
    /// Address of the node, or its PLMN and a number where it has no fixed address.
    pub node: CsidNode,
    /// Sets of that node, 15 at most.
    pub csids: Vec<u16>,
    /// Kind of node: 1 SGW-C, 2 SMF, 5 SGW-U, 6 UPF.
    pub node_type: Option<u8>,
}

/// Who the numbers of an [`FqCsid`] belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CsidNode {
    /// IPv4 address.
    Ipv4(Ipv4Addr),
    /// IPv6 address.
    Ipv6(Ipv6Addr),
    /// MCC × 1000 + MNC in the upper 20 bits, a number in the others.
    Other(u32),
}

impl Default for CsidNode {
    fn default() -> Self {
        Self::Ipv4(Ipv4Addr::UNSPECIFIED)
    }
}

impl FqCsid {
    /// Whether a set is in both.
    pub fn meets(&self, other: &Self) -> bool {
        self.node == other.node && self.csids.iter().any(|csid| other.csids.contains(csid))
    }
}

impl Value for FqCsid {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let first = cursor.u8()?;
        let node = match first >> 4 {
            0 => CsidNode::Ipv4(cursor.array::<4>()?.into()),
            1 => CsidNode::Ipv6(cursor.array::<16>()?.into()),
            2 => CsidNode::Other(cursor.u32()?),
            _ => return Err(Fault::Incorrect),
        };
        let csids = (0..first & 0x0f).map(|_| cursor.u16()).collect::<Result<_, _>>()?;
        Ok(Self { node, csids, node_type: cursor.0.first().map(|octet| octet & 0x0f) })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let csids = &self.csids[..self.csids.len().min(15)];
        let count = csids.len() as u8;
        match self.node {
            CsidNode::Ipv4(address) => {
                out.push(count);
                out.extend_from_slice(&address.octets());
            }
            CsidNode::Ipv6(address) => {
                out.push(0x10 | count);
                out.extend_from_slice(&address.octets());
            }
            CsidNode::Other(number) => {
                out.push(0x20 | count);
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
        for csid in csids {
            out.extend_from_slice(&csid.to_be_bytes());
        }
        out.extend(self.node_type.map(|kind| kind & 0x0f));
    }
}

/// Who the session belongs to, for the UP function's own use (§8.2.101). Numbers are in their coded form.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct UserId {
    /// IMSI, TBCD digits.
    pub imsi: Option<ShortBytes>,
    /// IMEI, TBCD digits.
    pub imei: Option<ShortBytes>,
    /// MSISDN.
    pub msisdn: Option<ShortBytes>,
    /// Network access identifier.
    pub nai: Option<ShortBytes>,
    /// SUPI as text.
    pub supi: Option<ShortBytes>,
    /// GPSI as text.
    pub gpsi: Option<ShortBytes>,
    /// PEI as text.
    pub pei: Option<ShortBytes>,
}

impl UserId {
    fn fields(&self) -> [&Option<ShortBytes>; 7] {
        [&self.imsi, &self.imei, &self.msisdn, &self.nai, &self.supi, &self.gpsi, &self.pei]
    }
}

impl std::fmt::Debug for UserId {
    /// Says which identities are there, not what they are: messages end up in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = ["imsi", "imei", "msisdn", "nai", "supi", "gpsi", "pei"];
        let present =
            names.iter().zip(self.fields()).filter(|(_, field)| field.is_some()).map(|(name, _)| name);
        f.write_str("UserId")?;
        f.debug_list().entries(present).finish()
    }
}

impl Value for UserId {
    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let flags = cursor.u8()?;
        let mut field = |bit: u8| -> Result<Option<ShortBytes>, Fault> {
            if flags & bit == 0 {
                return Ok(None);
            }
            let length = cursor.u8()?;
            Ok(Some(cursor.take(length.into())?.into()))
        };
        Ok(Self {
            imsi: field(1)?,
            imei: field(2)?,
            msisdn: field(4)?,
            nai: field(8)?,
            supi: field(0x10)?,
            gpsi: field(0x20)?,
            pei: field(0x40)?,
        })
    }
    fn encode(&self, out: &mut Vec<u8>) {
        let flags = self
            .fields()
            .iter()
            .enumerate()
            .fold(0u8, |flags, (bit, field)| flags | u8::from(field.is_some()) << bit);
        out.push(flags);
        for field in self.fields().into_iter().flatten() {
            let bytes = &field.as_bytes()[..field.as_bytes().len().min(255)];
            out.push(bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }
}
