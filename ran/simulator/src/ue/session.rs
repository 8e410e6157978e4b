//! A PDU session as the UE sees it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nas::gsm::EstablishmentAccept;
use nas::{PcoItem, PduAddress};
use types::{PduSessionId, PduSessionType};

use crate::access::Bearer;
use crate::interface::{Interface, Link};
use crate::router_discovery;

/// A PDU session. A UE owns at most 15; release and deregistration remove them.
#[derive(Debug)]
pub struct Session {
    /// Its identity.
    pub id: PduSessionId,
    /// What it carries.
    pub session_type: PduSessionType,
    /// The UE's IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Interface identifier for IPv6, 64 bits.
    pub interface_id: Option<[u8; 8]>,
    /// IPv6 address, once a router advertisement has given the prefix.
    pub ipv6: Option<Ipv6Addr>,
    /// DNS servers.
    pub dns: Vec<IpAddr>,
    /// MTU of the link, octets.
    pub mtu: u16,
    /// The Establishment Accept itself.
    pub accept: EstablishmentAccept,
    /// Radio resources; `None` while the UE is idle.
    pub bearer: Option<Bearer>,
    /// TUN device, if one was set up.
    pub interface: Option<Interface>,
}

impl Session {
    pub(super) fn new(
        id: PduSessionId,
        accept: EstablishmentAccept,
        bearer: Bearer,
        default_mtu: u16,
    ) -> Self {
        let items = accept.pco.iter().flat_map(|pco| &pco.items);
        let (mut dns, mut mtu) = (Vec::new(), default_mtu);
        for item in items {
            match item {
                PcoItem::DnsIpv4(server) => dns.push(IpAddr::V4(*server)),
                PcoItem::DnsIpv6(server) => dns.push(IpAddr::V6(*server)),
                PcoItem::Ipv4Mtu(octets) => mtu = *octets,
                _ => {}
            }
        }
        let interface_id = match accept.address {
            Some(PduAddress::Ipv6(id) | PduAddress::Ipv4v6(_, id)) => Some(id),
            _ => None,
        };
        Self {
            id,
            session_type: accept.session_type,
            ipv4: accept.address.and_then(PduAddress::ipv4),
            interface_id,
            ipv6: None,
            dns,
            mtu,
            accept,
            bearer: Some(bearer),
            interface: None,
        }
    }

    /// Takes radio resources into use. Packets that waited in the TUN device go first.
    pub(super) fn activate(&mut self, bearer: Bearer) {
        self.bearer = Some(bearer);
        self.connect();
    }

    /// Connects the TUN device to the radio resources, where both are there.
    fn connect(&self) {
        if let (Some(bearer), Some(tun)) = (&self.bearer, self.interface.as_ref().and_then(Interface::tun)) {
            bearer.attach(tun);
        }
    }

    /// Takes a TUN device into use.
    pub(super) fn use_interface(&mut self, interface: Interface) -> &Interface {
        self.interface = Some(interface);
        self.connect();
        self.interface.as_ref().expect("it was set above")
    }

    /// What the session gives a TUN device.
    pub(super) fn link(&self) -> Link {
        Link { ipv4: self.ipv4, ipv6: self.ipv6, mtu: self.mtu }
    }

    /// Waits until a program of the UE has sent a packet that needs radio resources. Never completes
    /// without TUN device or while there are radio resources. Cancel-safe.
    pub(super) async fn uplink_waiting(&self) {
        match &self.interface {
            Some(interface) if self.bearer.is_none() => interface.readable().await,
            _ => std::future::pending().await,
        }
    }

    /// The link-local address with the session's interface identifier.
    pub fn link_local(&self) -> Option<Ipv6Addr> {
        self.accept.address.and_then(PduAddress::link_local)
    }

    /// Sends an IP packet through the session; `false` without radio resources.
    pub fn send(&self, packet: impl Into<Vec<u8>>) -> bool {
        self.bearer.as_ref().map(|bearer| bearer.send(packet.into())).is_some()
    }

    /// The next IP packet received. With a TUN device, only router advertisements arrive here. Cancel-safe.
    pub async fn received(&mut self) -> Option<bytes::Bytes> {
        self.bearer.as_mut()?.received().await
    }
}

impl router_discovery::Packets for Session {
    fn send(&self, packet: Vec<u8>) -> bool {
        Session::send(self, packet)
    }

    async fn received(&mut self) -> Option<bytes::Bytes> {
        Session::received(self).await
    }
}
