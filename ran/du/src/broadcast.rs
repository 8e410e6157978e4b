//! What the cell broadcasts (docs/uu.md): MIB and SIB1 for who camps, and paging.
//!
//! Who camps is an address on an interface towards UEs. It is forgotten when it has not camped again in time. The table is bounded,
//! and whoever is in it stays: forged camps of many addresses keep others from entering while they last, but remove nobody.

use std::collections::HashMap;
use std::net::SocketAddr;

use l2::uu::{self, Header};
use path::Ports;
use telemetry::DropReason;

use crate::control::{Place, Refused};
use crate::graph::{UserPlane, Verdict};
use crate::limit::Limit;

/// Addresses per interface that may camp. Each is a process of UEs.
const MOST: usize = 1_024;
/// Longest RRC message: with all headers it fits the link's MTU.
const LONGEST: usize = 1_400;
/// How long a camp lasts.
const EXPIRY_NS: u64 = uu::CAMP_EXPIRY_S * 1_000_000_000;

/// The addresses of an interface that camp.
#[derive(Debug, Default)]
struct Campers {
    /// When each is forgotten.
    until_ns: HashMap<SocketAddr, u64>,
    /// Before this time none is forgotten.
    quiet_until_ns: u64,
}

impl Campers {
    /// Notes a camp; `false` if there is no room.
    fn note(&mut self, address: SocketAddr, now_ns: u64) -> bool {
        let until_ns = now_ns + EXPIRY_NS;
        if let Some(known) = self.until_ns.get_mut(&address) {
            // It is still there although its time was over: nobody has looked since.
            *known = until_ns;
            return true;
        }
        if self.until_ns.len() >= MOST {
            self.forget(now_ns);
        }
        let room = self.until_ns.len() < MOST;
        if room {
            self.until_ns.insert(address, until_ns);
            self.quiet_until_ns = self.quiet_until_ns.min(until_ns);
        }
        room
    }

    /// Forgets whose time is over. Most calls find that there is nothing to do, so that a flood costs little.
    fn forget(&mut self, now_ns: u64) {
        if now_ns < self.quiet_until_ns {
            return;
        }
        self.until_ns.retain(|_, until_ns| *until_ns > now_ns);
        self.quiet_until_ns = self.until_ns.values().copied().min().unwrap_or(u64::MAX);
    }
}

/// Whether the cell serves.
#[derive(Debug, PartialEq, Eq)]
enum Service {
    /// Nobody has said: there is nothing to broadcast, and UEs may come.
    Unknown,
    /// It broadcasts datagrams with MIB and SIB1.
    In([Vec<u8>; 2]),
    /// It does not.
    Out,
}

/// What a cell broadcasts, and to whom.
#[derive(Debug)]
pub(crate) struct Cell {
    service: Service,
    /// By number of the interface.
    campers: Vec<Campers>,
    answers: Limit,
}

impl Cell {
    pub(crate) fn new(interfaces: usize) -> Cell {
        Cell {
            service: Service::Unknown,
            campers: (0..interfaces).map(|_| Campers::default()).collect(),
            answers: Limit::new(1_000, 200),
        }
    }

    pub(crate) fn is_out_of_service(&self) -> bool {
        self.service == Service::Out
    }
}

impl UserPlane {
    /// Notes who camps, and answers with MIB and SIB1.
    pub(crate) fn camp(&mut self, place: Place, now_ns: u64, ports: &mut Ports) -> Verdict {
        let campers = self.broadcast.campers.get_mut(usize::from(place.interface));
        if !campers.is_some_and(|campers| campers.note(place.address, now_ns)) {
            return Verdict::Drop(DropReason::ControlOverflow);
        }
        self.stats.camps.add(1);
        if let Service::In(messages) = &self.broadcast.service
            && self.broadcast.answers.allows(now_ns)
        {
            for message in messages {
                self.exits.push(place.interface, message, place.address, &self.stats, ports);
            }
            self.stats.broadcasts.add(messages.len() as u64);
        }
        Verdict::Taken
    }

    /// Broadcasts MIB and SIB1 from now on; see [`crate::Control::set_system_information`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn set_system_information(
        &mut self,
        mib: Vec<u8>,
        sib1: Vec<u8>,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Result<(), Refused> {
        let messages =
            [self.broadcast_datagram(uu::BCH, &mib)?, self.broadcast_datagram(uu::SI_RNTI, &sib1)?];
        for message in &messages {
            self.send_to_campers(message, now_ns, ports);
        }
        self.broadcast.service = Service::In(messages);
        Ok(())
    }

    /// Takes the cell out of service; see [`crate::Control::take_out_of_service`].
    pub fn take_out_of_service(&mut self) {
        self.broadcast.service = Service::Out;
    }

    /// Sends a PCCH message to all that camp; see [`crate::Control::page`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn page(&mut self, pcch: &[u8], now_ns: u64, ports: &mut Ports) -> Result<(), Refused> {
        let message = self.broadcast_datagram(uu::P_RNTI, pcch)?;
        self.send_to_campers(&message, now_ns, ports);
        Ok(())
    }

    fn broadcast_datagram(&self, channel: u16, message: &[u8]) -> Result<Vec<u8>, Refused> {
        if message.is_empty() || message.len() > LONGEST {
            return Err(Refused::Value);
        }
        Ok(Header::broadcast(self.cell, channel).datagram(message))
    }

    fn send_to_campers(&mut self, datagram: &[u8], now_ns: u64, ports: &mut Ports) {
        for (interface, campers) in (0..).zip(&mut self.broadcast.campers) {
            campers.forget(now_ns);
            for address in campers.until_ns.keys() {
                self.exits.push(interface, datagram, *address, &self.stats, ports);
            }
            self.stats.broadcasts.add(campers.until_ns.len() as u64);
        }
    }
}
