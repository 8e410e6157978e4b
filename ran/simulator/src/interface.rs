//! A TUN device in the UE's own network namespace, for ordinary programs to use.
//!
//! The namespace has no name: while this process lives, [`Interface::netns`] is its path, for example
//! for `nsenter --net=PATH ping …`. It contains the loopback interface, up, and one TUN device with the
//! session's addresses and default routes through it. The device stays while the UE is idle: packets
//! that programs send then wait in it and make the UE ask for service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use net::link::{Cidr, Links};
use net::netns::NetNs;
use net::sysctl;
use pktio::Port as _;
use pktio::tun::TunPort;

/// Name of the device in each namespace.
const NAME: &str = "tun0";
/// Packets that the device queues for the simulator: enough for a TCP window at some hundred Mbit/s.
const QUEUE_LEN: u32 = 2_000;

/// What a UE's session gives its interface.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address; its prefix has 64 bits.
    pub ipv6: Option<Ipv6Addr>,
    /// MTU, octets.
    pub mtu: u16,
}

/// An interface could not be set up.
#[derive(Debug, Clone, thiserror::Error)]
#[error("UE interface: {0}")]
pub struct InterfaceError(String);

/// The interface of one session.
#[derive(Debug)]
pub struct Interface {
    namespace: NetNs,
    links: Links,
    /// A thread of the user plane shares it while there are radio resources.
    tun: Option<TunPort>,
}

impl Interface {
    /// Creates namespace and device, and gives the device the session's addresses.
    ///
    /// # Errors
    /// No permission, or the kernel refuses.
    pub async fn set_up(link: Link) -> Result<Self, InterfaceError> {
        let failed = |error: &dyn std::fmt::Display| InterfaceError(error.to_string());
        let namespace = NetNs::new().map_err(|error| failed(&error))?;
        let tun = namespace
            .enter(|| {
                // The UE does router discovery itself, with the interface identifier of its accept. A
                // kernel without IPv6 has no such settings.
                for setting in ["accept_ra", "autoconf", "router_solicitations"] {
                    let _ = sysctl::set(&format!("net.ipv6.conf.default.{setting}"), "0");
                }
                let _ = sysctl::set("net.ipv6.conf.default.addr_gen_mode", "1");
                TunPort::create(NAME)
            })
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))?;
        let links = Links::in_ns(&namespace).map_err(|error| failed(&error))?;
        let interface = Self { namespace, links, tun: Some(tun) };
        interface.configure(link).await.map_err(|error| failed(&error))?;
        Ok(interface)
    }

    /// The device, for the user plane.
    pub fn tun(&self) -> Option<TunPort> {
        self.tun.as_ref().map(TunPort::share)
    }

    /// Waits until a program has sent a packet. Cancel-safe.
    pub async fn readable(&self) {
        let Some(device) = self.tun.as_ref().and_then(|tun| tun.fd()) else {
            return std::future::pending().await;
        };
        if let Err(error) = net::readable(device).await {
            tracing::error!(%error, "cannot wait for a TUN device");
            std::future::pending().await
        }
    }

    async fn configure(&self, link: Link) -> Result<(), net::link::LinkError> {
        self.links.set_mtu(NAME, link.mtu.into()).await?;
        self.links.set_txqueuelen(NAME, QUEUE_LEN).await?;
        self.links.up(NAME).await?;
        if let Some(address) = link.ipv4 {
            self.links.add_address(NAME, Cidr::host(IpAddr::V4(address))).await?;
            self.links.add_route(default_route(Ipv4Addr::UNSPECIFIED.into()), None, Some(NAME)).await?;
        }
        if let Some(address) = link.ipv6 {
            self.links.add_address(NAME, prefix_of_64(address.into())).await?;
            self.links.add_route(default_route(Ipv6Addr::UNSPECIFIED.into()), None, Some(NAME)).await?;
        }
        Ok(())
    }

    /// The path by which other processes open the namespace.
    pub fn netns(&self) -> PathBuf {
        self.namespace.path()
    }

    /// The namespace.
    pub fn namespace(&self) -> &NetNs {
        &self.namespace
    }

    /// The device's name in the namespace.
    pub fn name(&self) -> &'static str {
        NAME
    }
}

impl Drop for Interface {
    /// The kernel takes some 30 ms to remove a device, in which a thread of the runtime would serve no UE.
    fn drop(&mut self) {
        if let Some(tun) = self.tun.take() {
            crate::user_plane::close_tun(tun);
        }
    }
}

fn default_route(unspecified: IpAddr) -> Cidr {
    Cidr::new(unspecified, 0).expect("a prefix of no bits suits any address")
}

fn prefix_of_64(address: IpAddr) -> Cidr {
    Cidr::new(address, 64).expect("64 bits are fewer than an IPv6 address has")
}
