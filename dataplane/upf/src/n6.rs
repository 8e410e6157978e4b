//! N6: a TUN device per data network, with address, route, forwarding and NAT set up by the UPF itself; for frames a
//! TAP device, which only has to be up: what it is connected to is the operator's business, a bridge mostly.
//!
//! The device goes with its descriptor and takes addresses and routes along; NAT rules go when dropped. A device that
//! somebody deletes under a running UPF is made again ([`keep`]).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use net::link::{Cidr, LinkError, Links};
use net::nat::{Masquerade, NatError};
use pktio::tun::{TunError, TunPort};

use tokio::sync::watch;

use crate::config::{Config, DnnConfig};
use crate::plan::Kind;

/// Packets that the device queues towards us. A segmented 64 kB burst of one TCP connection takes 45.
const QUEUE: u32 = 2000;
/// How often it is looked whether devices are there.
const LOOK: Duration = Duration::from_secs(1);

/// Why a data network could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum N6Error {
    /// The device.
    #[error(transparent)]
    Tun(#[from] TunError),
    /// Its addresses and routes.
    #[error("data network {dnn}: {error}")]
    Link {
        /// Data network.
        dnn: String,
        /// What failed.
        error: LinkError,
    },
    /// Forwarding between N6 and the other interfaces.
    #[error("cannot enable forwarding: {0}; enable net.ipv4.ip_forward and net.ipv6.conf.all.forwarding")]
    Forwarding(std::io::Error),
    /// NAT.
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

/// Sets up the device of a data network in the calling thread's network namespace.
pub async fn set_up(dnn: &DnnConfig) -> Result<N6, N6Error> {
    if dnn.kind == Kind::Ethernet {
        let tun = TunPort::create_tap(&dnn.tap)?;
        configure(dnn).await?;
        return Ok(N6 { tun, _nat: None });
    }
    let tun = TunPort::create(&dnn.tun)?;
    configure(dnn).await?;
    net::sysctl::enable_forwarding().map_err(N6Error::Forwarding)?;
    let nat = match dnn.nat {
        false => None,
        true => {
            let sources: Vec<_> = [dnn.ue_pool.ipv4, dnn.ue_pool.ipv6].into_iter().flatten().collect();
            let nat = Masquerade::start(&dnn.tun, &sources, &dnn.tun)
                .map_err(|error| N6Error::Nat { dnn: dnn.name.to_string(), error })?;
            Some(nat)
        }
    };
    Ok(N6 { tun, _nat: nat })
}

/// What a new device needs.
async fn configure(dnn: &DnnConfig) -> Result<(), N6Error> {
    let link_error = |error| N6Error::Link { dnn: dnn.name.to_string(), error };
    if dnn.kind == Kind::Ethernet {
        keep_silent(&dnn.tap);
        return device(&dnn.tap, dnn.mtu).await.map(drop).map_err(link_error);
    }
    keep_silent(&dnn.tun);
    // What is too long for a tunnel is answered in the name of the device's address, from which no UE may send.
    let _ = net::sysctl::set(&format!("net.ipv4.conf.{}.accept_local", dnn.tun.replace('.', "/")), "1");
    link(dnn).await.map_err(link_error)
}

/// Makes devices that somebody has deleted again, until told to stop: sessions go on with them. What an operator had
/// added to them, such as a bridge, has to be added again.
pub fn keep(
    config: Arc<Config>,
    networks: &[N6],
    mut stop: watch::Receiver<bool>,
) -> impl Future<Output = ()> + use<> {
    let mut devices: Vec<_> = networks.iter().map(|network| (network.tun.share(), true)).collect();
    async move {
        while !devices.is_empty() {
            tokio::select! {
                () = net::time::sleep(LOOK) => {}
                // An error means that whoever could stop us is gone.
                _ = stop.wait_for(|stop| *stop) => return,
            }
            for (tun, good) in &mut devices {
                let named = |dnn: &&DnnConfig| dnn.tun == tun.name() || dnn.tap == tun.name();
                let (false, Some(dnn)) = (*good && tun.is_attached(), config.dnn.iter().find(named)) else {
                    continue;
                };
                let made = make_again(tun, dnn).await;
                match &made {
                    Ok(()) => {
                        tracing::warn!(device = tun.name(), "the device was gone; it has been made again")
                    }
                    Err(error) if *good => {
                        tracing::error!(device = tun.name(), %error, "the device is gone, and cannot be made again yet");
                    }
                    Err(_) => {}
                }
                *good = made.is_ok();
            }
        }
    }
}

async fn make_again(tun: &TunPort, dnn: &DnnConfig) -> Result<(), N6Error> {
    if !tun.is_attached() {
        tun.attach()?;
    }
    configure(dnn).await
}

/// The kernel must not form a link-local address and talk to us on its own; where it cannot be told, its packets are
/// dropped as link-local.
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

async fn link(dnn: &DnnConfig) -> Result<(), LinkError> {
    let links = device(&dnn.tun, dnn.mtu).await?;
    if let Some(address) = dnn.gateway_v4() {
        // Its prefix is the pool's, so the route to the UEs comes with it.
        links.add_address(&dnn.tun, address).await?;
    }
    if let (Some(address), Some(pool)) = (dnn.gateway_v6(), dnn.ue_pool.ipv6) {
        // As in IPv4, so that the route comes back with the device when that was down.
        let name = dnn.tun.replace('.', "/");
        let _ = net::sysctl::set(&format!("net.ipv6.conf.{name}.keep_addr_on_down"), "1");
        let address = Cidr::new(address.address(), pool.prefix()).unwrap_or(address);
        links.add_address(&dnn.tun, address).await?;
    }
    Ok(())
}
