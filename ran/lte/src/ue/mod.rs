//! A UE with what its eNB and MME do for it, and the procedures that it performs.
//!
//! One owner drives a [`Ue`] through its methods. Each procedure is a sequence of requests and answers: `attach.rs` (attach, detach),
//! `mobility.rs` (idle, service request, handover), `relocation.rs` (another S-GW), `network.rs` (what the gateway begins),
//! `command.rs` (what the MME asks the gateway to begin). Between procedures
//! [`Ue::serve`] answers the gateway. Nothing runs in the background, so a test sees every step.
//!
//! States: a UE has no [`PdnConnection`] (detached); one without [`Radio`] (idle); or one with it (connected).

mod attach;
mod command;
mod mobility;
mod network;
mod relocation;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use gtpv2c::tft::PacketFilter;
use gtpv2c::{Ambr, BearerQos, CauseValue, Ebi, FTeid};
use simulator::interface::{Interface, InterfaceError, Link};
use simulator::router_discovery::{self, DiscoveryError};
use simulator::user_plane::{NoTunnel, Tunnel};
use types::{Imsi, Invalid};

use crate::config::UeConfig;
use crate::enb::Enb;
use crate::filter::UplinkFilters;
use crate::mme::{Mme, S11, S11Error};

pub use attach::Attached;
pub use mobility::{HandedOver, Served};
pub use network::{NetworkEvent, Wake};
pub use relocation::Relocated;

/// The default bearer: the first of the identities that there are.
pub const DEFAULT_BEARER: Ebi = Ebi(5);

/// Why a procedure did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The gateway refuses, or does not answer.
    #[error(transparent)]
    S11(#[from] S11Error),
    /// The gateway refused the default bearer.
    #[error("default bearer refused: {0}")]
    BearerRefused(CauseValue),
    /// The gateway's answer lacks something it must have.
    #[error("the gateway's answer has no {0}")]
    Lacks(&'static str),
    /// The UE is not attached.
    #[error("the UE is not attached")]
    NotAttached,
    /// The UE is attached already.
    #[error("the UE is attached already")]
    Attached,
    /// The UE is idle, and the procedure is for connected UEs.
    #[error("the UE is idle")]
    Idle,
    /// The UE is connected, and the procedure is for idle UEs.
    #[error("the UE is not idle")]
    Connected,
    /// The eNB has no room.
    #[error("eNB: {0}")]
    NoTunnel(#[from] NoTunnel),
    /// The UE got no IPv6 prefix.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The UE's interface could not be set up.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
}

impl Failure {
    /// A short name for statistics.
    pub fn reason(&self) -> &'static str {
        use gtpv2c::endpoint::Failure as Transport;
        match self {
            Self::S11(S11Error::Refused(_)) | Self::BearerRefused(_) => "refused",
            Self::S11(S11Error::Failed(Transport::TimedOut)) => "timeout",
            Self::S11(S11Error::Failed(_) | S11Error::Lacks(_)) | Self::Lacks(_) => "malformed_answer",
            Self::S11(S11Error::Send(_) | S11Error::Ended) => "not_sent",
            Self::NotAttached | Self::Attached | Self::Idle | Self::Connected => "wrong_state",
            Self::NoTunnel(_) => "no_tunnel",
            Self::Discovery(_) => "router_discovery",
            Self::Interface(_) => "interface",
        }
    }

    /// The cause, when the gateway named one.
    pub fn cause(&self) -> Option<CauseValue> {
        match self {
            Self::S11(S11Error::Refused(cause)) => Some(cause.value),
            Self::BearerRefused(cause) => Some(*cause),
            _ => None,
        }
    }
}

/// A simulated UE.
#[derive(Debug)]
pub struct Ue {
    config: Arc<UeConfig>,
    index: u32,
    imsi: Imsi,
    mme: Mme,
    /// Where the UE is.
    enb: Enb,
    /// Its S-GW, or that of its next attach.
    gateway: SocketAddr,
    pdn: Option<PdnConnection>,
    /// Identity of the UE's last procedure of session management.
    last_pti: u8,
}

/// A PDN connection. A UE has one at most.
#[derive(Debug)]
pub struct PdnConnection {
    s11: S11,
    /// The P-GW's end of S5 or S8, for another S-GW.
    pgw: Option<FTeid>,
    /// The UE's IPv4 address.
    ipv4: Option<Ipv4Addr>,
    /// Link-local IPv6 address, with the interface identifier that the gateway gave.
    link_local: Option<Ipv6Addr>,
    /// IPv6 address, once a router advertisement has given the prefix.
    ipv6: Option<Ipv6Addr>,
    /// DNS servers.
    dns: Vec<IpAddr>,
    /// MTU of the link, octets.
    mtu: u16,
    /// Rates that the gateway allows.
    ambr: Option<Ambr>,
    bearers: BTreeMap<Ebi, Bearer>,
    /// Tunnels; `None` while the UE is idle.
    radio: Option<Radio>,
    /// TUN device, if one was set up.
    interface: Option<Interface>,
    /// Packets that went through tunnels that are no more.
    former_packets: u64,
    /// Packets that came to the UE's former eNB before the End Marker.
    forwarded: VecDeque<(Ebi, Bytes)>,
}

/// A bearer, whether or not it has a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// QoS.
    pub qos: BearerQos,
    /// Packet filters. The default bearer has none: it carries what no filter names.
    pub filters: Vec<PacketFilter>,
    /// The S-GW's end of S1-U.
    pub sgw: FTeid,
    /// The P-GW's end of S5 or S8, where the S-GW has told it.
    pub pgw: Option<FTeid>,
}

/// The tunnels of a connected UE, one for each bearer.
#[derive(Debug)]
struct Radio {
    enb: Enb,
    tunnels: BTreeMap<Ebi, Tunnel>,
}

impl Ue {
    /// The UE with this index, at an eNB.
    ///
    /// # Errors
    /// There is no such IMSI.
    pub fn new(config: Arc<UeConfig>, index: u32, mme: Mme, enb: Enb) -> Result<Self, Invalid> {
        let imsi = config.first_imsi.checked_add(index.into()).ok_or_else(|| {
            Invalid::new("IMSI", index, "a UE number that keeps the IMSI at its number of digits")
        })?;
        let gateway = config.gateway;
        Ok(Self { config, index, imsi, mme, enb, gateway, pdn: None, last_pti: 0 })
    }

    /// Its identity.
    pub fn imsi(&self) -> Imsi {
        self.imsi
    }

    /// Where it is.
    pub fn enb(&self) -> &Enb {
        &self.enb
    }

    /// Its S-GW, or that of its next attach.
    pub fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// Chooses the S-GW of the next attach. [`Ue::relocate`] changes that of an attached UE.
    pub fn attach_through(&mut self, gateway: SocketAddr) {
        if self.pdn.is_none() {
            self.gateway = gateway;
        }
    }

    /// Whether it has a PDN connection.
    pub fn is_attached(&self) -> bool {
        self.pdn.is_some()
    }

    /// Whether it is attached and has tunnels.
    pub fn is_connected(&self) -> bool {
        self.pdn.as_ref().is_some_and(|pdn| pdn.radio.is_some())
    }

    /// The PDN connection.
    pub fn pdn(&self) -> Option<&PdnConnection> {
        self.pdn.as_ref()
    }

    /// Sends an IP packet of the UE through the bearer whose filters it matches; `false` unless the UE is connected.
    pub fn send(&self, packet: impl Into<Vec<u8>>) -> bool {
        self.pdn.as_ref().is_some_and(|pdn| pdn.send(packet.into()))
    }

    /// The next IP packet that comes through a bearer; `None` when there is no tunnel for it. With a TUN device, only router
    /// advertisements arrive here. Cancel-safe.
    pub async fn received(&mut self, bearer: Ebi) -> Option<Bytes> {
        self.pdn.as_mut()?.received(bearer).await
    }

    /// Router discovery on a PDN connection with IPv6: asks for an advertisement and forms the UE's address from its prefix and
    /// the interface identifier that the gateway gave.
    ///
    /// # Errors
    /// No advertisement, or no PDN connection with IPv6.
    pub async fn solicit_router(&mut self) -> Result<Ipv6Addr, Failure> {
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        let source = pdn.link_local.ok_or(Failure::Lacks("interface identifier"))?;
        let address = router_discovery::discover(pdn, source).await?;
        pdn.ipv6 = Some(address);
        Ok(address)
    }

    /// Gives the PDN connection a TUN device in a new namespace.
    ///
    /// # Errors
    /// No permission, or the UE is not attached.
    pub async fn open_interface(&mut self) -> Result<&Interface, Failure> {
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        let link = Link { ipv4: pdn.ipv4, ipv6: pdn.ipv6, mtu: pdn.mtu };
        pdn.interface = Some(Interface::set_up(link).await?);
        for tunnel in pdn.radio.iter().flat_map(|radio| radio.tunnels.values()) {
            pdn.deliver_to_interface(tunnel);
        }
        pdn.read_from_interface();
        pdn.interface.as_ref().ok_or(Failure::NotAttached)
    }

    /// Forgets the PDN connection without a message to the gateway.
    pub fn abandon(&mut self) {
        self.pdn = None;
    }

    /// The PDN connection is gone when the gateway says that it knows none.
    fn forget_if_unknown<T>(&mut self, outcome: Result<T, S11Error>) -> Result<T, Failure> {
        if let Err(S11Error::Refused(cause)) = &outcome
            && cause.value == CauseValue::CONTEXT_NOT_FOUND
        {
            self.pdn = None;
        }
        outcome.map_err(Failure::S11)
    }
}

impl PdnConnection {
    /// The UE's IPv4 address.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.ipv4
    }

    /// The UE's IPv6 address, after router discovery.
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        self.ipv6
    }

    /// The UE's link-local IPv6 address.
    pub fn link_local(&self) -> Option<Ipv6Addr> {
        self.link_local
    }

    /// DNS servers.
    pub fn dns(&self) -> &[IpAddr] {
        &self.dns
    }

    /// MTU of the link, octets.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Rates that the gateway allows for all bearers without guaranteed bit rate together.
    pub fn ambr(&self) -> Option<Ambr> {
        self.ambr
    }

    /// The bearers by their identity.
    pub fn bearers(&self) -> &BTreeMap<Ebi, Bearer> {
        &self.bearers
    }

    /// The tunnel of a bearer at the eNB.
    pub fn tunnel(&self, bearer: Ebi) -> Option<&Tunnel> {
        self.radio.as_ref()?.tunnels.get(&bearer)
    }

    /// The TUN device.
    pub fn interface(&self) -> Option<&Interface> {
        self.interface.as_ref()
    }

    /// Packets that have gone through tunnels, in both directions.
    pub fn packets(&self) -> u64 {
        let tunnels = self.radio.iter().flat_map(|radio| radio.tunnels.values());
        self.former_packets + tunnels.map(Tunnel::packets).sum::<u64>()
    }

    /// Takes the tunnels out of use.
    fn take_radio(&mut self) -> Option<Radio> {
        self.former_packets = self.packets();
        self.radio.take()
    }

    fn default_tunnel(&self) -> Option<&Tunnel> {
        self.tunnel(DEFAULT_BEARER)
    }

    fn send(&self, packet: Vec<u8>) -> bool {
        self.default_tunnel().map(|tunnel| tunnel.send(packet)).is_some()
    }

    async fn received(&mut self, bearer: Ebi) -> Option<Bytes> {
        if let Some(at) = self.forwarded.iter().position(|(of, _)| *of == bearer) {
            return self.forwarded.remove(at).map(|(_, packet)| packet);
        }
        self.radio.as_mut()?.tunnels.get_mut(&bearer)?.received().await
    }

    /// Lets a tunnel give its packets to the TUN device, if there is one.
    fn deliver_to_interface(&self, tunnel: &Tunnel) {
        if let Some(tun) = self.interface.as_ref().and_then(Interface::tun) {
            tunnel.attach_downlink(tun);
        }
    }

    /// Lets the default bearer's tunnel read from the TUN device, where both are there.
    fn read_from_interface(&self) {
        if let (Some(tunnel), Some(tun)) =
            (self.default_tunnel(), self.interface.as_ref().and_then(Interface::tun))
        {
            tunnel.attach(tun);
        }
    }

    /// Tells the user plane which packets go through dedicated bearers.
    fn install_filters(&self) {
        let Some(radio) = &self.radio else { return };
        let mut filters = UplinkFilters::default();
        for (ebi, tunnel) in radio.tunnels.iter().filter(|(ebi, _)| **ebi != DEFAULT_BEARER) {
            let bearer = self.bearers.get(ebi);
            filters.add(bearer.map_or(&[], |bearer| &bearer.filters[..]), tunnel.local().teid);
        }
        if let Some(tunnel) = self.default_tunnel() {
            tunnel.classify(move |packet| filters.tunnel(packet));
        }
    }
}

impl router_discovery::Packets for PdnConnection {
    fn send(&self, packet: Vec<u8>) -> bool {
        PdnConnection::send(self, packet)
    }

    async fn received(&mut self) -> Option<Bytes> {
        PdnConnection::received(self, DEFAULT_BEARER).await
    }
}
