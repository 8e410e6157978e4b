//! Interfaces with the backend `dpdk`: devices that only the UPF uses, without the kernel ([`Own`]).

use pktio::capture::Taps;
use pktio::dpdk::eal::{self, HugePages};
use pktio::dpdk::{DpdkPort, Settings};

use super::PortError;
use super::own::{self, Own};
use crate::config::Config;
use crate::interface::{Backend, DpdkConfig, InterfaceConfig};
use crate::interfaces::{Interface, Interfaces};

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
    eal::start_with(&options).map_err(|error| PortError::Device {
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

/// Opens the interfaces of a device, with a pair of queues for each of `workers` workers.
pub fn open(interfaces: &[&Interface], taps: Option<&Taps>, workers: u32) -> Result<Vec<Own>, PortError> {
    let Some(Interface { place, config, .. }) = interfaces.first() else { return Ok(Vec::new()) };
    let device = config.device();
    let buffers = if device.contains("zero-copy=yes") { BUFFERS_TO_LOSE } else { 0 };
    let queues = u16::try_from(workers).unwrap_or(u16::MAX);
    let settings = Settings { queues, mtu: own::mtu(interfaces), buffers, ..Settings::default() };
    let hint = match physical(device) {
        _ if workers > 1 => {
            "upf.workers.count is the number of queues that each device needs: lower it, or give the device more \
             (`qpairs=` of net_af_packet, `combined` of a card's virtual function)"
        }
        Some(_) => "bind the card to vfio-pci: dpdk-devbind.py --bind vfio-pci ADDRESS",
        None => {
            "a device of software is named by its driver and a number, such as net_memif0 or net_af_packet0"
        }
    };
    let error = |error: String| PortError::Device { place: place.clone(), error, hint };
    let ports = DpdkPort::open(device, &settings).map_err(|reason| error(reason.to_string()))?;
    own::interfaces(ports, interfaces, taps)
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
