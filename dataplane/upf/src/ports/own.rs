//! Interfaces that the kernel does not know, by DPDK or memif.
//!
//! Addresses, routers, VLAN and MTU are those of the configuration; the UPF itself does ARP and neighbour
//! discovery and answers pings ([`Resolver`]). Each worker has a queue of its own, and all share the neighbours. Packets that
//! the N4 task sends into tunnels leave through the first worker ([`outbox`]).

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
    /// The port of each worker, until it has got it.
    pub ports: Vec<Option<Box<dyn Port>>>,
    /// Through which others send into tunnels.
    pub outbox: Option<Outbox>,
}

impl Own {
    /// The interface whose frames pass `queues`, one for each worker.
    pub fn new<F: FramePort + 'static>(
        queues: Vec<F>,
        interface: &Interface,
        tap: Option<&Tap>,
    ) -> Result<Own, PortError> {
        let config = &interface.config;
        let resolver = Resolver::new(&config.addresses, &config.gateways);
        let routing = |error| PortError::Routing { place: interface.place.clone(), error };
        let mut own = Own { ports: Vec::new(), outbox: None };
        for frames in queues {
            let frames = Tapped::new(frames, tap.cloned());
            let neighbours = Neighbours::Own(Box::new(resolver.share()));
            let port: Box<dyn Port> = if !interface.role().has_tunnels() {
                Box::new(IpStack::new(frames, config.vlan, neighbours).map_err(routing)?)
            } else {
                let stack =
                    UdpStack::new(frames, interface.local(), config.vlan, neighbours).map_err(routing)?;
                if own.outbox.is_none() {
                    let (shared, outbox) = outbox::share(stack);
                    own.outbox = Some(outbox);
                    Box::new(shared)
                } else {
                    Box::new(stack)
                }
            };
            own.ports.push(Some(port));
        }
        Ok(own)
    }
}
