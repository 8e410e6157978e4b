//! Interfaces whose addresses the kernel does not know: all by DPDK or memif, and those by AF_XDP that have `addresses`.
//!
//! Addresses, routers, VLAN and MTU are those of the configuration; this program itself does ARP and neighbour
//! discovery and answers pings ([`Resolver`]). Each worker has a queue of its own, and all share the neighbours. Messages of
//! other threads to GTP-U peers leave through a worker ([`outbox`]), behind the packets that it has sent.

use std::io;
use std::sync::Arc;

use net::link::Cidr;

use super::{Content, Interface, OpenError, Setup, Traffic, tap};
use crate::capture::Tapped;
use crate::outbox::{self, Outbox};
use crate::stack::Neighbours;
use crate::stack::datagram::DatagramStack;
use crate::stack::ip::IpStack;
use crate::stack::resolver::Resolver;
use crate::stack::udp::UdpStack;
use crate::trunk::{Share, Trunk};
use crate::{FramePort, Port};

/// An interface on a device that the kernel does not know.
pub struct Own {
    /// The port of each worker, until it has got it.
    pub ports: Vec<Option<Box<dyn Port>>>,
    /// Through which others send into tunnels: one for each worker.
    pub outboxes: Vec<Outbox>,
}

/// MTU of a device with these interfaces.
pub fn mtu(interfaces: &[Arc<Interface>]) -> u16 {
    interfaces.iter().map(|interface| interface.link.link_mtu()).max().unwrap_or_default()
}

/// The interfaces of a device with these queues, one for each worker.
pub fn interfaces<F: FramePort + 'static>(
    queues: Vec<F>,
    setup: &Setup<'_>,
    interfaces: &[Arc<Interface>],
) -> Result<Vec<Own>, OpenError> {
    if let [interface] = interfaces {
        return Ok(vec![Own::new(queues, setup, interface)?]);
    }
    let shares = interfaces.iter().map(|interface| Share {
        tags: interface.link.tags(),
        addresses: interface.link.addresses.iter().map(Cidr::address).collect(),
        others: interface.content() == Content::Packets,
    });
    let shares: Vec<Share> = shares.collect();
    let trunks: Vec<_> = queues.into_iter().map(|frames| Trunk::new(frames, &shares)).collect();
    let own = interfaces.iter().enumerate().map(|(number, interface)| {
        let branches: io::Result<Vec<_>> = trunks.iter().map(|trunk| trunk.branch(number)).collect();
        Own::new(branches.map_err(|error| routing(interface, error))?, setup, interface)
    });
    own.collect()
}

fn routing(interface: &Interface, error: io::Error) -> OpenError {
    OpenError::Routing { place: interface.place.clone(), error }
}

impl Own {
    /// The interface whose frames pass `queues`, one for each worker.
    fn new<F: FramePort + 'static>(
        queues: Vec<F>,
        setup: &Setup<'_>,
        interface: &Interface,
    ) -> Result<Own, OpenError> {
        let link = &interface.link;
        let tap = tap(interface, setup.taps);
        let resolver = Resolver::new(&link.addresses, &link.gateways);
        let mut own = Own { ports: Vec::new(), outboxes: Vec::new() };
        for frames in queues {
            let neighbours = Neighbours::Own(Box::new(resolver.share()));
            let frames = Tapped::new(frames, tap.clone());
            let port = stack(frames, interface, neighbours, link.link_mtu().into());
            let port = port.map_err(|error| routing(interface, error))?;
            own.ports.push(Some(with_outbox(port, interface, &mut own.outboxes)));
        }
        Ok(own)
    }
}

/// The stack of an interface on its frames, for packets of up to `mtu` octets.
pub fn stack<F: FramePort + 'static>(
    frames: F,
    interface: &Interface,
    neighbours: Neighbours,
    mtu: usize,
) -> io::Result<Box<dyn Port>> {
    let tags = interface.link.tags();
    Ok(match &interface.traffic {
        Traffic::Tunnels => {
            Box::new(UdpStack::new(frames, interface.local(), tags, neighbours)?.with_mtu(mtu))
        }
        Traffic::Datagrams(endpoints) => {
            Box::new(DatagramStack::new(frames, endpoints, tags, neighbours, mtu)?)
        }
        Traffic::Packets(_) | Traffic::Device(_) => {
            Box::new(IpStack::new(frames, tags, neighbours)?.with_mtu(mtu))
        }
    })
}

/// Lets others send through a worker's port, if it is of an interface with tunnels.
pub fn with_outbox(port: Box<dyn Port>, interface: &Interface, outboxes: &mut Vec<Outbox>) -> Box<dyn Port> {
    if !interface.has_tunnels() {
        return port;
    }
    let (shared, outbox) = outbox::share(port);
    outboxes.push(outbox);
    Box::new(shared)
}
