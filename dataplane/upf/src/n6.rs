//! N6: a TUN device per data network; the UPF itself sets up its addresses, routes, forwarding and NAT. An
//! Ethernet data network has a TAP device, which the UPF only brings up: the operator connects it, mostly to a
//! bridge.
//!
//! The kernel removes a device with its addresses and routes when the device's descriptor is closed; NAT rules
//! are removed when they are dropped. If somebody deletes a device, takes it down or removes its addresses
//! while the UPF runs, the UPF sets it up again ([`Devices`]).

use std::sync::Arc;

use net::link::{Cidr, LinkError, Links};
use net::nat::{Masquerade, NatError};
use pktio::tun::{TunError, TunPort};

use crate::config::DnnConfig;
use crate::interfaces::Interfaces;
use crate::plan::Kind;

/// Packets that the device queues for the UPF. A segmented 64 kB burst of one TCP connection takes 45.
const QUEUE: u32 = 2000;

/// Why a data network could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum N6Error {
    /// The device could not be opened.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// Its addresses or routes could not be set.
    #[error("data network {dnn}: {error}")]
    Link {
        /// Data network.
        dnn: String,
        /// What failed.
        error: LinkError,
    },
    /// Forwarding between N6 and the other interfaces could not be enabled.
    #[error("cannot enable forwarding: {0}; enable net.ipv4.ip_forward and net.ipv6.conf.all.forwarding")]
    Forwarding(std::io::Error),
    /// NAT could not be set up.
    #[error("data network {dnn}: {error}")]
    Nat {
        /// Data network.
        dnn: String,
        /// What failed.
        error: NatError,
    },
}

/// A data network that is set up.
#[derive(Debug)]
pub struct N6 {
    /// The device.
    pub tun: TunPort,
    /// Dropping it removes the NAT rules.
    _nat: Option<Masquerade>,
}

/// Sets up the device `name` of a data network in the calling thread's network namespace, with a queue for each of
/// `workers`. A TAP device has one queue.
pub async fn set_up(dnn: &DnnConfig, name: &str, workers: u32) -> Result<N6, N6Error> {
    if dnn.kind == Kind::Ethernet {
        let tun = TunPort::create_tap(name)?;
        configure(dnn, name).await?;
        return Ok(N6 { tun, _nat: None });
    }
    let tun = TunPort::create_queues(name, workers)?;
    configure(dnn, name).await?;
    net::sysctl::enable_forwarding().map_err(N6Error::Forwarding)?;
    let nat = match dnn.nat {
        false => None,
        true => {
            let sources: Vec<_> = [dnn.ue_pool.ipv4, dnn.ue_pool.ipv6].into_iter().flatten().collect();
            let nat = Masquerade::start(name, &sources, name)
                .map_err(|error| N6Error::Nat { dnn: dnn.name.to_string(), error })?;
            Some(nat)
        }
    };
    Ok(N6 { tun, _nat: nat })
}

/// Configures a new device.
async fn configure(dnn: &DnnConfig, name: &str) -> Result<(), N6Error> {
    let link_error = |error| N6Error::Link { dnn: dnn.name.to_string(), error };
    if dnn.kind == Kind::Ethernet {
        keep_silent(name);
        return device(name, dnn.mtu).await.map(drop).map_err(link_error);
    }
    keep_silent(name);
    // The device's address is the source of ICMP answers to packets that are too long for a tunnel; no UE may
    // send from it.
    let _ = net::sysctl::set(&format!("net.ipv4.conf.{}.accept_local", name.replace('.', "/")), "1");
    link(dnn, name).await.map_err(link_error)
}

/// The devices of data networks. A device that somebody else has changed is repaired, and sessions go on with
/// it.
pub struct Devices {
    interfaces: Arc<Interfaces>,
    /// Each device, and whether it was in order at the last check.
    devices: Vec<(TunPort, bool)>,
}

impl Devices {
    /// Watches the devices of these networks.
    pub fn new(interfaces: Arc<Interfaces>, networks: &[N6]) -> Devices {
        Devices { interfaces, devices: networks.iter().map(|network| (network.tun.share(), true)).collect() }
    }

    /// Creates deleted devices again, brings up those that are down, and restores MTU and addresses. What an
    /// operator had added, such as membership of a bridge, must be added again after a deletion.
    pub async fn repair(&mut self) {
        for (tun, good) in &mut self.devices {
            let mut networks =
                self.interfaces.iter().filter(|interface| interface.config.link.device() == tun.name());
            let Some(dnn) = networks.find_map(|interface| interface.dnn.as_deref()) else { continue };
            let Some(fault) = fault(tun, dnn) else {
                *good = true;
                continue;
            };
            let device = tun.name();
            let repaired = repair(tun, dnn).await;
            match &repaired {
                Ok(()) => tracing::warn!(device, "the device {fault}; it has been set up again"),
                Err(error) if *good => {
                    tracing::error!(device, %error, "the device {fault}, and cannot be set up again yet");
                }
                Err(_) => {}
            }
            *good = repaired.is_ok();
        }
    }
}

/// The fault of a device; `None` if it is in order.
fn fault(tun: &TunPort, dnn: &DnnConfig) -> Option<String> {
    if !tun.is_attached() {
        return Some("was gone".to_owned());
    }
    let device = tun.name();
    if !net::link::is_up(device).unwrap_or(false) {
        return Some("was down".to_owned());
    }
    match net::link::mtu_of(device) {
        Ok(mtu) if mtu != dnn.mtu => return Some(format!("had the MTU {mtu}")),
        Ok(_) | Err(_) => {}
    }
    let present = net::link::local_addresses().ok()?;
    let lacks = |wanted: &Cidr| !present.iter().any(|own| own.interface == device && own.address == *wanted);
    addresses(dnn).find(lacks).map(|address| format!("had lost its address {address}"))
}

async fn repair(tun: &TunPort, dnn: &DnnConfig) -> Result<(), N6Error> {
    if !tun.is_attached() {
        tun.attach()?;
    }
    configure(dnn, tun.name()).await
}

/// Stops the kernel from forming a link-local address and sending on its own. If it cannot be stopped, its
/// packets are dropped as link-local.
fn keep_silent(device: &str) {
    let name = device.replace('.', "/");
    let _ = net::sysctl::set(&format!("net.ipv6.conf.{name}.addr_gen_mode"), "1");
}

async fn device(name: &str, mtu: u32) -> Result<Links, LinkError> {
    let links = Links::here()?;
    links.set_mtu(name, mtu).await?;
    links.set_txqueuelen(name, QUEUE).await?;
    links.up(name).await?;
    Ok(links)
}

async fn link(dnn: &DnnConfig, name: &str) -> Result<(), LinkError> {
    let links = device(name, dnn.mtu).await?;
    if dnn.gateway_v6().is_some() {
        // As in IPv4, where the route comes back when the device is brought up again.
        let path = name.replace('.', "/");
        let _ = net::sysctl::set(&format!("net.ipv6.conf.{path}.keep_addr_on_down"), "1");
    }
    for address in addresses(dnn) {
        links.add_address(name, address).await?;
    }
    Ok(())
}

/// The addresses of a network's device. Their prefixes are those of the pools, so the kernel adds the routes to
/// the UEs.
fn addresses(dnn: &DnnConfig) -> impl Iterator<Item = Cidr> {
    let v6 = dnn.gateway_v6().zip(dnn.ue_pool.ipv6);
    let v6 = v6.map(|(own, pool)| Cidr::new(own.address(), pool.prefix()).unwrap_or(own));
    dnn.gateway_v4().into_iter().chain(v6)
}
