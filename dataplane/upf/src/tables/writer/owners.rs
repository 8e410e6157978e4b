//! Which worker writes the cells of a session, if it is only one.
//!
//! Packets in tunnels belong to a worker by TEID, packets of data networks by the UE's address ([`pktio::owner`]). So
//! mostly one worker writes the cells of a direction, and needs no atomic additions for them ([`Writers`]). When the
//! worker changes, or others join, the session gets new cells: workers that still read the former rules count in the
//! former cells, and their counts are added later.

use pktio::owner;

use crate::plan::{Direction, Place, Plan};
use crate::session::TableKey;
use crate::state::Writers;

/// Who writes the cells of a direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Owner {
    /// Nobody.
    #[default]
    Nobody,
    /// The worker with this number.
    Worker(u8),
    /// Several workers.
    Several,
}

/// Cells that the same packets use. Packets to the UE that come in tunnels and others have different accounts.
#[derive(Clone, Copy)]
enum Group {
    Uplink,
    DownlinkInTunnels,
    Downlink,
}

/// The groups whose cells the packets of a place use.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Groups([bool; 3]);

/// Who writes a session's cells, by [`Group`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Owners([Owner; 3]);

impl Owner {
    /// Who receives packets with a key, of `workers` workers. If these do not share interfaces (`workers` is 1), one may
    /// receive what comes in tunnels and another one what comes without.
    fn of(key: &TableKey, workers: u32) -> Owner {
        match key {
            TableKey::Teid(_) if workers == 1 => Owner::Worker(0),
            _ if workers == 1 => Owner::Worker(1),
            TableKey::Teid(teid) => Owner::Worker(owner::of_tunnel(*teid, workers) as u8),
            TableKey::Ue(_, address) => Owner::Worker(owner::of_address(*address, workers) as u8),
            TableKey::Route(..) | TableKey::Station(_) => Owner::Several,
        }
    }

    fn and(self, other: Owner) -> Owner {
        match (self, other) {
            (Owner::Nobody, owner) | (owner, Owner::Nobody) => owner,
            (one, other) if one == other => one,
            _ => Owner::Several,
        }
    }
}

impl Groups {
    /// The groups of a plan's packets that arrive at a place.
    pub fn at(plan: &Plan, place: Place) -> Groups {
        let mut groups = Groups::default();
        let rules =
            plan.arrivals.iter().filter(|arrival| arrival.place == place).flat_map(|arrival| &arrival.rules);
        for pdr in rules.filter_map(|rule| plan.pdrs.get(rule.value as usize)) {
            let group = match (pdr.direction, place) {
                (Direction::Uplink, _) => Group::Uplink,
                (Direction::Downlink, Place::Tunnel(_)) => Group::DownlinkInTunnels,
                (Direction::Downlink, Place::Native) => Group::Downlink,
            };
            groups.0[group as usize] = true;
        }
        groups
    }
}

impl Owners {
    /// Nobody yet; but any worker may make packets for the UE.
    pub fn of_no_packets(plan: &Plan) -> Owners {
        let downlink = if plan.gets_packets_of_others() { Owner::Several } else { Owner::Nobody };
        Owners([Owner::Nobody, downlink, downlink])
    }

    /// Adds the owner of packets with a key, of `workers` workers.
    pub fn add(&mut self, key: &TableKey, groups: Groups, workers: u32) {
        let owner = Owner::of(key, workers);
        for (known, _) in self.0.iter_mut().zip(groups.0).filter(|(_, used)| *used) {
            *known = known.and(owner);
        }
    }

    /// All owners, when those of all keys have been added and the cells had `former` ones. Groups that have no packets now
    /// may have some again.
    pub fn complete(mut self, shares_downlink_rates: bool, former: Owners) -> Owners {
        if shares_downlink_rates {
            let [_, in_tunnels, downlink] = self.0;
            self.0[Group::DownlinkInTunnels as usize] = in_tunnels.and(downlink);
            self.0[Group::Downlink as usize] = in_tunnels.and(downlink);
        }
        for (now, former) in self.0.iter_mut().zip(former.0).filter(|(now, _)| **now == Owner::Nobody) {
            *now = former;
        }
        self
    }

    /// Who writes the cells of packets of a place.
    pub fn writers(self, groups: Groups) -> Writers {
        let several = self.0.iter().zip(groups.0).any(|(owner, used)| used && *owner == Owner::Several);
        if several { Writers::Many } else { Writers::One }
    }

    /// Whether the cells of these owners can be those of the former ones.
    pub fn can_use_cells_of(self, former: Owners) -> bool {
        let same = |(now, former): (Owner, Owner)| former == now || former == Owner::Nobody;
        self.0.into_iter().zip(former.0).all(same)
    }
}
