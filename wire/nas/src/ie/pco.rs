//! Extended protocol configuration options (TS 24.008 §10.5.6.3): what a UE asks for and is told beside its address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::codec::values::{Read, Reader};

/// The options of one message, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pco {
    /// Each container or protocol.
    pub items: Vec<PcoItem>,
}

impl Pco {
    /// Whether `item` is among the options, for the request items.
    pub fn asks_for(&self, item: &PcoItem) -> bool {
        self.items.contains(item)
    }

    /// What a UE that has sent these options gets of DNS servers and MTU: what it has asked for.
    pub fn dns_and_mtu(&self, dns: &[IpAddr], mtu: u16) -> Vec<PcoItem> {
        let servers = dns.iter().filter_map(|address| match address {
            IpAddr::V4(v4) => self.asks_for(&PcoItem::DnsIpv4Request).then_some(PcoItem::DnsIpv4(*v4)),
            IpAddr::V6(v6) => self.asks_for(&PcoItem::DnsIpv6Request).then_some(PcoItem::DnsIpv6(*v6)),
        });
        servers.chain(self.asks_for(&PcoItem::Ipv4MtuRequest).then_some(PcoItem::Ipv4Mtu(mtu))).collect()
    }
}

/// One option. An item is a request when the UE sends it empty, and a value when the network sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PcoItem {
    /// 0x000D empty: the UE asks for DNS servers by IPv4.
    DnsIpv4Request,
    /// 0x000D: a DNS server.
    DnsIpv4(Ipv4Addr),
    /// 0x0003 empty: the UE asks for DNS servers by IPv6.
    DnsIpv6Request,
    /// 0x0003: a DNS server.
    DnsIpv6(Ipv6Addr),
    /// 0x0010 empty: the UE asks for the link MTU.
    Ipv4MtuRequest,
    /// 0x0010: link MTU, octets.
    Ipv4Mtu(u16),
    /// 0x000C empty: the UE asks for P-CSCF addresses by IPv4.
    PcscfIpv4Request,
    /// 0x0001 empty: the UE asks for P-CSCF addresses by IPv6.
    PcscfIpv6Request,
    /// 0x000A empty: address by NAS signalling.
    AddressByNas,
    /// 0x000B empty: IPv4 address by DHCPv4.
    AddressByDhcp,
    /// Anything else, kept as it is.
    Other {
        /// Protocol or container identifier.
        id: u16,
        /// Contents, at most 255 octets when sent.
        contents: Vec<u8>,
    },
}

/// Contents with a length of two octets in extended options (TS 24.008 table 10.5.154, network to UE).
const LONG: [u16; 3] = [0x0023, 0x0024, 0x0030];

impl Pco {
    /// The options that a UE has sent in a PCO IE (TS 24.008 §10.5.6.3), as GTPv2-C has them; `None` if they are malformed.
    pub fn decode(octets: &[u8]) -> Option<Self> {
        Self::read_with(octets, &[]).ok()
    }

    /// As the octets of a PCO IE.
    pub fn encode(&self) -> Vec<u8> {
        self.write()
    }

    pub(crate) fn read(octets: &[u8]) -> Read<Self> {
        Self::read_with(octets, &LONG)
    }

    /// `long` are the identifiers whose length has two octets.
    fn read_with(octets: &[u8], long: &[u16]) -> Read<Self> {
        let mut reader = Reader(octets);
        reader.u8()?;
        let mut items = Vec::new();
        while !reader.is_empty() {
            let id = reader.u16()?;
            let len = if long.contains(&id) { reader.u16()?.into() } else { reader.u8()?.into() };
            items.push(PcoItem::read(id, reader.take(len)?));
        }
        Ok(Self { items })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = vec![0x80];
        for item in &self.items {
            let (id, contents) = item.write();
            out.extend(id.to_be_bytes());
            if LONG.contains(&id) {
                out.extend((contents.len() as u16).to_be_bytes());
                out.extend(contents);
            } else {
                let len = contents.len().min(0xff);
                out.push(len as u8);
                out.extend(contents.into_iter().take(len));
            }
        }
        out
    }
}

impl PcoItem {
    fn read(id: u16, contents: &[u8]) -> Self {
        let v4 = || <[u8; 4]>::try_from(contents).ok().map(Ipv4Addr::from);
        let v6 = || <[u8; 16]>::try_from(contents).ok().map(Ipv6Addr::from);
        let known = match (id, contents) {
            (0x000d, []) => Some(Self::DnsIpv4Request),
            (0x000d, _) => v4().map(Self::DnsIpv4),
            (0x0003, []) => Some(Self::DnsIpv6Request),
            (0x0003, _) => v6().map(Self::DnsIpv6),
            (0x0010, []) => Some(Self::Ipv4MtuRequest),
            (0x0010, &[high, low]) => Some(Self::Ipv4Mtu(u16::from_be_bytes([high, low]))),
            (0x000c, []) => Some(Self::PcscfIpv4Request),
            (0x0001, []) => Some(Self::PcscfIpv6Request),
            (0x000a, []) => Some(Self::AddressByNas),
            (0x000b, []) => Some(Self::AddressByDhcp),
            _ => None,
        };
        known.unwrap_or_else(|| Self::Other { id, contents: contents.to_vec() })
    }

    fn write(&self) -> (u16, Vec<u8>) {
        match self {
            Self::DnsIpv4Request => (0x000d, Vec::new()),
            Self::DnsIpv4(address) => (0x000d, address.octets().to_vec()),
            Self::DnsIpv6Request => (0x0003, Vec::new()),
            Self::DnsIpv6(address) => (0x0003, address.octets().to_vec()),
            Self::Ipv4MtuRequest => (0x0010, Vec::new()),
            Self::Ipv4Mtu(mtu) => (0x0010, mtu.to_be_bytes().to_vec()),
            Self::PcscfIpv4Request => (0x000c, Vec::new()),
            Self::PcscfIpv6Request => (0x0001, Vec::new()),
            Self::AddressByNas => (0x000a, Vec::new()),
            Self::AddressByDhcp => (0x000b, Vec::new()),
            Self::Other { id, contents } => (*id, contents.clone()),
        }
    }
}
