//! What UEs must not reach through a data network: the core's own N2, N3 and N4 sockets.
//!
//! A data network is reached through the machine's routing, which also knows the machine itself. Unguarded, a
//! UE could send G-PDUs into other UEs' tunnels, PFCP to the UPF and SCTP to the AMF. Everything else that the
//! machine offers stays reachable: pinging the gateway, a name server.

use std::collections::HashSet;
use std::net::IpAddr;

use net::sctp::UDP_ENCAPSULATION_PORT;
use packet::flow::Flow;
use packet::{gtpu, protocol};

use crate::config::Config;
use crate::n4::PFCP_PORT;

/// The addresses and ports that are guarded.
#[derive(Debug)]
pub struct Guard {
    addresses: HashSet<IpAddr>,
    ports: Vec<u16>,
    /// A bit for what a port leaves when divided by 64: most ports are none of these at a glance.
    sieve: u64,
}

impl Guard {
    /// Guards `addresses`, the machine's own, and those of `config`. Loopback addresses always are.
    pub fn new(config: &Config, addresses: impl IntoIterator<Item = IpAddr>) -> Guard {
        let ours = [config.gtpu.ip(), config.pfcp.ip()];
        let mut ports =
            vec![gtpu::PORT, PFCP_PORT, UDP_ENCAPSULATION_PORT, config.gtpu.port(), config.pfcp.port()];
        ports.sort_unstable();
        ports.dedup();
        let sieve = ports.iter().fold(0, |sieve, port| sieve | 1 << (port % 64));
        Guard { addresses: addresses.into_iter().chain(ours).collect(), ports, sieve }
    }

    /// Whether a packet of this protocol to this port, 0 if it shows none, has to be looked at by [`Guard::stops`].
    #[inline(always)]
    pub fn suspects(&self, protocol: u8, port: u16) -> bool {
        match protocol {
            protocol::UDP => port == 0 || (self.sieve >> (port % 64) & 1 != 0 && self.ports.contains(&port)),
            protocol::SCTP => true,
            _ => false,
        }
    }

    /// Whether a packet towards a data network would end in one of the core's sockets. A later fragment has no
    /// ports to tell by, so it counts as one: it is of no use without its first fragment either.
    #[inline]
    pub fn stops(&self, flow: &Flow) -> bool {
        let suspect = match flow.protocol {
            protocol::UDP => flow.ports.is_none_or(|(_, to)| self.ports.contains(&to)),
            protocol::SCTP => true,
            _ => false,
        };
        suspect && (flow.destination.is_loopback() || self.addresses.contains(&flow.destination))
    }
}
