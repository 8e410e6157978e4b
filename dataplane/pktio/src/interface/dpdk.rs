//! Interfaces with the backend `dpdk`: devices that no other program uses, without the kernel ([`Own`]).

use std::sync::Arc;

use super::own::{self, Own};
use super::{Backend, DpdkConfig, Interface, LinkConfig, OpenError, Setup};
use crate::dpdk::eal::{self, HugePages};
use crate::dpdk::{DpdkPort, Settings};

/// Buffers of a zero-copy memif, which loses up to 2,048 of them each time that its peer goes away (see
/// `crate::dpdk::port`): enough for six times.
const BUFFERS_TO_LOSE: u32 = 16_383;

/// Starts DPDK if an interface needs it.
pub fn start(setup: &Setup<'_>, interfaces: &[Arc<Interface>]) -> Result<(), OpenError> {
    let devices = || {
        let links = interfaces.iter().map(|interface| &interface.link);
        links.filter(|link| link.backend == Backend::Dpdk).map(LinkConfig::device)
    };
    if devices().next().is_none() {
        return Ok(());
    }
    let place = format!("{}.dpdk", setup.section);
    eal::start_with(&options(setup.dpdk, devices())).map_err(|error| OpenError::Device {
        error: error.to_string(),
        hint: format!(
            "`{place}: {{huge_pages: false}}` needs no preparation of the machine; `godwit doctor` tells what there is"
        ),
        place,
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

/// Opens the interfaces of a device, with a pair of queues for each worker.
pub fn open(setup: &Setup<'_>, interfaces: &[Arc<Interface>]) -> Result<Vec<Own>, OpenError> {
    let Some(first) = interfaces.first() else { return Ok(Vec::new()) };
    let (device, workers) = (first.link.device(), setup.workers.unwrap_or(1));
    let buffers = if device.contains("zero-copy=yes") { BUFFERS_TO_LOSE } else { 0 };
    let queues = u16::try_from(workers).unwrap_or(u16::MAX);
    let settings = Settings { queues, mtu: own::mtu(interfaces), buffers, ..Settings::default() };
    let hint = || match physical(device) {
        _ if workers > 1 => format!(
            "{}.workers.count is the number of queues that each device needs: lower it, or give the device more \
             (`qpairs=` of net_af_packet, `combined` of a card's virtual function)",
            setup.section
        ),
        Some(_) => "bind the card to vfio-pci: dpdk-devbind.py --bind vfio-pci ADDRESS".to_owned(),
        None => {
            "a device of software is named by its driver and a number, such as net_memif0 or net_af_packet0"
                .to_owned()
        }
    };
    let error = |error: String| OpenError::Device { place: first.place.clone(), error, hint: hint() };
    let ports = DpdkPort::open(device, &settings).map_err(|reason| error(reason.to_string()))?;
    own::interfaces(ports, setup, interfaces)
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
