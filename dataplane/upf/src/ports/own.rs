//! Interfaces that the kernel does not know, by DPDK or memif.
//!
//! Addresses, routers, VLAN and MTU are those of the configuration; the UPF itself does ARP and neighbour
//! discovery and answers pings ([`Resolver`]). Such an interface is served through one queue, and so by one worker,
//! because only the queue that receives the answers of neighbours knows these. Packets that the N4 task sends
//! into tunnels leave through that worker ([`outbox`]).

use pktio::capture::{Tap, Tapped};
use pktio::outbox::{self, Outbox};
use pktio::stack::Neighbours;
use pktio::stack::ip::IpStack;
use pktio::stack::resolver::Resolver;
use pktio::stack::udp::UdpStack;
use pktio::{FramePort, Port};

use super::PortError;
use crate::interfaces::Interface;

/// An interface that the kernel does not know.
pub struct Own {
    /// The port of the one worker, until it has got it.
    pub port: Option<Box<dyn Port>>,
    /// Through which others send into tunnels.
    pub outbox: Option<Outbox>,
}

impl Own {
    /// The interface whose frames pass `frames`.
    pub fn new<F: FramePort + 'static>(
        frames: F,
        interface: &Interface,
        tap: Option<Tap>,
    ) -> Result<Own, PortError> {
        let config = &interface.config;
        let frames = Tapped::new(frames, tap);
        let neighbours = Neighbours::Own(Box::new(Resolver::new(&config.addresses, &config.gateways)));
        let routing = |error| PortError::Routing { place: interface.place.clone(), error };
        if !interface.role().has_tunnels() {
            let stack = IpStack::new(frames, config.vlan, neighbours).map_err(routing)?;
            return Ok(Own { port: Some(Box::new(stack)), outbox: None });
        }
        let stack = UdpStack::new(frames, interface.local(), config.vlan, neighbours).map_err(routing)?;
        let (shared, outbox) = outbox::share(stack);
        Ok(Own { port: Some(Box::new(shared)), outbox: Some(outbox) })
    }
}
