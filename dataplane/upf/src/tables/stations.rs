//! Ethernet sessions as stations of the bridges of their data networks.

use std::hash::BuildHasher;

use super::{STATIONS, Tables, Writer};
use crate::bridge::{Bounds, Bridge};
use crate::plan::{Plan, PlanError};
use crate::rcu::Guard;
use crate::session::{Endpoint, Key64, Session};

/// An empty bridge, keyed by chance.
pub(super) fn new_bridge() -> Bridge {
    let secret = std::hash::RandomState::new().hash_one(0);
    Bridge::new(Bounds { stations: STATIONS, ..Bounds::default() }, secret)
}

impl Tables {
    /// The bridge of the data network with this number, if it is one of Ethernet frames.
    #[inline]
    pub fn bridge(&self, network: usize) -> Option<&Bridge> {
        self.bridges.get(network)?.as_ref()
    }

    /// Whether there are Ethernet data networks.
    pub fn has_bridges(&self) -> bool {
        self.bridges.iter().any(Option::is_some)
    }

    /// The endpoint of the Ethernet session that is this station.
    #[inline]
    pub fn station<'g>(&'g self, guard: &'g Guard<'_>, station: u32) -> Option<&'g [Endpoint]> {
        let known = (station as usize) < self.stations.capacity();
        known.then(|| self.stations.load(guard, station as usize)).flatten()
    }
}

impl Writer {
    /// The station of an Ethernet session: the one that it is, or a new one.
    pub(super) fn station(&mut self, session: &Session, plan: &Plan) -> Result<Option<u32>, PlanError> {
        if session.station.is_some() || plan.network.is_none() {
            return Ok(session.station.map(|(_, station)| station));
        }
        if let Some(station) = self.free_stations.pop() {
            return Ok(Some(station));
        }
        if self.next_station as usize >= self.tables.stations.capacity() {
            return Err(PlanError::Full("stations"));
        }
        self.next_station += 1;
        Ok(Some(self.next_station - 1))
    }

    /// Lets the bridge know of a session that has been published; one that takes no frames is not among those that all
    /// frames are for.
    pub(super) fn join(&mut self, session: &mut Session, plan: &Plan, station: Option<u32>) {
        let Some(station) = station else { return };
        let receives = session.keys.contains(&Key64::Station(station));
        let before = session.station.map(|(network, _)| network);
        let Some(network) = plan.network.or(before) else { return };
        session.station = Some((network, station));
        if let Some(old) = before.filter(|old| plan.network != Some(*old) || !receives) {
            self.leave(old, station);
        }
        let joined = plan.network.filter(|_| receives);
        if let Some(bridge) = joined.and_then(|network| self.tables.bridge(network.into())) {
            bridge.join(station);
        }
    }

    pub(super) fn leave(&self, network: u16, station: u32) {
        if let Some(bridge) = self.tables.bridge(network.into()) {
            bridge.leave(station);
        }
    }
}
