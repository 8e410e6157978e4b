//! Opens the ports of all workers: the devices of data networks are set up here ([`n6`]), and [`pktio::interface`] opens
//! the interfaces.

use pktio::capture::Taps;
use pktio::interface::{self, OpenError, Opened, Setup, Traffic};

use crate::config::{Config, DnnConfig};
use crate::interface::Backend;
use crate::interfaces::{Interface, Interfaces};
use crate::n6::{self, N6, N6Error};

/// Why the ports could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A TUN or TAP device could not be set up.
    #[error(transparent)]
    N6(#[from] N6Error),
    /// An interface could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Opens all ports in the calling thread's network namespace. `taps` copy the frames of devices that bypass the kernel.
/// Also returns the TUN and TAP devices, which exist as long as the list.
pub async fn open(
    config: &Config,
    interfaces: &Interfaces,
    taps: Option<&Taps>,
) -> Result<(Opened, Vec<N6>), PortError> {
    let workers = config.workers.count;
    let (mut networks, mut opening) = (Vec::new(), Vec::new());
    // Devices of the kernel come first: their addresses may be those of GTP-U.
    for Interface { config, place, dnn, .. } in interfaces.iter() {
        let traffic = match dnn {
            None => Traffic::Tunnels,
            Some(dnn) if config.link.backend == Backend::Kernel => {
                let network = n6::set_up(dnn, config.link.device(), workers.unwrap_or(1)).await?;
                let device = network.tun.share();
                networks.push(network);
                Traffic::Device(device)
            }
            Some(dnn) => Traffic::Packets(pools(dnn)),
        };
        let point = if config.role.has_tunnels() { "n3" } else { "n6" };
        let (place, link) = (place.clone(), config.link.clone());
        opening.push(interface::Interface { place, point, link, traffic });
    }
    let setup = Setup { section: "upf", workers, dpdk: &config.dpdk, taps };
    Ok((interface::open(&setup, opening)?, networks))
}

/// The addresses of a data network's UEs.
fn pools(dnn: &DnnConfig) -> Vec<net::link::Cidr> {
    [dnn.ue_pool.ipv4, dnn.ue_pool.ipv6].into_iter().flatten().collect()
}
