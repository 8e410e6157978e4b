//! Extended protocol configuration options (TS 24.008 §10.5.6.3): what a UE asks for and is told beside its address.

use std::net::{Ipv4Addr, Ipv6Addr};

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
