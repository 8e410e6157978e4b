//! Interfaces with the backend `dpdk`: devices that only the UPF uses, without the kernel.
//!
//! Addresses, routers, VLAN and MTU are those of the configuration; the UPF itself does ARP and neighbour
//! discovery and answers pings ([`Resolver`]). A device is served through one queue, and so by one worker,
//! because only the queue that receives the answers of neighbours knows these. Packets that the N4 task sends
//! into tunnels leave through that worker ([`outbox`]).

use std::net::SocketAddr;

use pktio::Port;
use pktio::capture::{Tap, Tapped};
use pktio::dpdk::eal::{self, HugePages};
use pktio::dpdk::{DpdkPort, Settings};
use pktio::outbox::{self, Outbox};
use pktio::stack::Neighbours;
use pktio::stack::ip::IpStack;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;

use super::PortError;
use crate::config::Config;
use crate::interface::{Backend, DpdkConfig, InterfaceConfig};
use crate::interfaces::Interfaces;

/// MTU of a link without configured MTU.
const MTU: u16 = 1500;
/// Buffers of a zero-copy memif, which loses up to 2,048 of them each time that its peer goes away (see
/// `pktio::dpdk::port`): enough for six times.
const BUFFERS_TO_LOSE: u32 = 16_383;

/// Starts DPDK if an interface needs it.
pub fn start(config: &Config, interfaces: &Interfaces) -> Result<(), PortError> {
    let devices = || {
        let configs = interfaces.iter().map(|interface| &interface.config);
        configs.filter(|interface| interface.backend == Backend::Dpdk).map(InterfaceConfig::device)
    };
    if devices().next().is_none() {
        return Ok(());
    }
    let options = options(&config.dpdk, devices());
    eal::start_with(&options).map_err(|error| PortError::Dpdk {
        place: "upf.dpdk".to_owned(),
        error: error.to_string(),
        hint: "`upf.dpdk: {huge_pages: false}` needs no preparation of the machine; `godwit doctor` tells \
               what there is",
    })
}

fn options<'a>(config: &DpdkConfig, devices: impl Iterator<Item = &'a str>) -> eal::Options {
    let default = eal::Options::default();
    eal::Options {
        core: config.core,
        huge_pages: match config.huge_pages {
            None => HugePages::Automatic,
            Some(true) => HugePages::Yes,
            Some(false) => HugePages::No,
        },
        megabytes: config.memory_mb.unwrap_or(default.megabytes),
        physical: devices.filter_map(physical).map(str::to_owned).collect(),
        arguments: config.arguments.clone(),
    }
}

/// The address of a physical device, "0000:01:00.0" with or without arguments. Those of software begin with a driver's
/// name.
fn physical(device: &str) -> Option<&str> {
    let address = device.split(',').next()?;
    address.contains(':').then_some(address)
}

fn open_device(
    place: &str,
    config: &InterfaceConfig,
    tap: Option<Tap>,
) -> Result<(Tapped<DpdkPort>, Neighbours), PortError> {
    let device = config.device();
    let buffers = if device.contains("zero-copy=yes") { BUFFERS_TO_LOSE } else { 0 };
    let settings = Settings { mtu: config.mtu.unwrap_or(MTU), buffers, ..Settings::default() };
    let hint = match physical(device) {
        Some(_) => "bind the card to vfio-pci: dpdk-devbind.py --bind vfio-pci ADDRESS",
        None => {
            "a device of software is named by its driver and a number, such as net_memif0 or net_af_packet0"
        }
    };
    let error = |error: String| PortError::Dpdk { place: place.to_owned(), error, hint };
    let mut ports = DpdkPort::open(device, &settings).map_err(|reason| error(reason.to_string()))?;
    let port = ports.pop().ok_or_else(|| error("the device has no queue".to_owned()))?;
    let resolver = Resolver::new(&config.addresses, &config.gateways);
    Ok((Tapped::new(port, tap), Neighbours::Own(Box::new(resolver))))
}

/// Opens an interface with tunnels; also returns the outbox through which others send.
pub fn tunnels(
    place: &str,
    config: &InterfaceConfig,
    local: SocketAddr,
    tap: Option<Tap>,
) -> Result<(Box<dyn Port>, Outbox), PortError> {
    let (port, neighbours) = open_device(place, config, tap)?;
    let stack = UdpStack::new(port, local, config.vlan, neighbours)
        .map_err(|error| PortError::Routing { place: place.to_owned(), error })?;
    let (shared, outbox) = outbox::share(stack);
    Ok((Box::new(shared), outbox))
}

/// Opens an interface of a data network.
pub fn network(place: &str, config: &InterfaceConfig, tap: Option<Tap>) -> Result<Box<dyn Port>, PortError> {
    let (port, neighbours) = open_device(place, config, tap)?;
    let stack = IpStack::new(port, config.vlan, neighbours)
        .map_err(|error| PortError::Routing { place: place.to_owned(), error })?;
    Ok(Box::new(stack))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_devices_are_named_at_the_start_and_others_are_not() {
        let config = DpdkConfig { memory_mb: Some(64), huge_pages: Some(false), ..DpdkConfig::default() };
        let devices = ["0000:01:00.0,arg=1", "net_memif0,role=client", "0000:01:00.1"];
        let options = options(&config, devices.into_iter());
        assert_eq!(options.physical, ["0000:01:00.0", "0000:01:00.1"]);
        assert_eq!((options.megabytes, options.huge_pages), (64, HugePages::No));
        assert_eq!(physical("net_memif0,mac=02:00:00:00:00:01"), None);
    }
}
