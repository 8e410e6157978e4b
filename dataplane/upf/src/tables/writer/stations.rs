//! Ethernet sessions as stations of the bridges of their data networks.

use super::Writer;
use crate::plan::{Plan, PlanError};
use crate::session::{Session, TableKey};

impl Writer {
    /// The station number of an Ethernet session: the one that it has, or a new one.
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

    /// Adds a published session to the bridge. A session that receives no frames is not added, so flooded
    /// frames do not go to it.
    pub(super) fn join(&mut self, session: &mut Session, plan: &Plan, station: Option<u32>) {
        let Some(station) = station else { return };
        let receives = session.keys.contains(&TableKey::Station(station));
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
