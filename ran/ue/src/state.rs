//! UEs, sessions and bearers: tables of the worker.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use l2::pdcp;
use l2::rlc::um::{self, REASSEMBLY_LIMIT};
use l2::sdap::{DrbId, Entity, Uplink};
use l2::srb::Srbs;
use l2::uu;
use pktio::Peers;
use types::Qfi;

use crate::control::{BearerSetup, Refused};
use crate::sink::Sink;
use crate::stats::SessionStats;

/// Bits of a number that are the position in its table; the others count who had the place before.
const POSITION_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << (32 - POSITION_BITS);
/// Most entries of a table. Position 0 is not used, so that no number is 0.
const MOST: usize = (1 << POSITION_BITS) - 1;
/// Most cells: DUs number them, and each has a table of its C-RNTIs.
const MOST_CELLS: usize = 64;
/// Lowest logical channel of a data bearer; signalling has those below.
const LOWEST_LCID: u8 = 4;

/// Entries by number. Numbers of entries that were removed find nothing, and neither do, almost always, those of another table.
pub(crate) struct Slots<T> {
    /// Each with how many had its place; that begins at random.
    entries: Vec<(u32, Option<T>)>,
    first_generation: u32,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    fn new() -> Self {
        let first_generation = RandomState::new().build_hasher().finish() as u32 % GENERATIONS;
        Slots { entries: vec![(first_generation, None)], first_generation, free: Vec::new() }
    }

    fn add(&mut self, entry: T) -> Result<u32, Refused> {
        let position = match self.free.pop() {
            Some(position) => position,
            None if self.entries.len() <= MOST => {
                self.entries.push((self.first_generation, None));
                self.entries.len() as u32 - 1
            }
            None => return Err(Refused::Full),
        };
        let slot = &mut self.entries[position as usize];
        slot.0 = (slot.0 + 1) % GENERATIONS;
        slot.1 = Some(entry);
        Ok(slot.0 << POSITION_BITS | position)
    }

    fn position(number: u32) -> usize {
        (number & ((1 << POSITION_BITS) - 1)) as usize
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (generation, entry) = self.entries.get(Self::position(number))?;
        entry.as_ref().filter(|_| *generation == number >> POSITION_BITS)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (generation, entry) = self.entries.get_mut(Self::position(number))?;
        entry.as_mut().filter(|_| *generation == number >> POSITION_BITS)
    }

    fn remove(&mut self, number: u32) -> Option<T> {
        self.get(number)?;
        self.free.push(Self::position(number) as u32);
        self.entries[Self::position(number)].1.take()
    }
}

/// A cell with UEs.
struct Cell {
    identity: u64,
    du: SocketAddr,
    /// Numbers of UEs by C-RNTI; 0 for none.
    ues: Vec<u32>,
}

/// A UE.
pub(crate) struct Ue {
    pub(crate) cell: u64,
    pub(crate) c_rnti: u16,
    pub(crate) du: SocketAddr,
    /// Number of the DU among the peers of the interface.
    pub(crate) peer: u16,
    /// Numbers of bearers by logical channel; 0 for none.
    pub(crate) bearers: [u32; uu::MAX_LCID as usize + 1],
    sessions: Vec<u32>,
    /// SRB1 and SRB2.
    pub(crate) srbs: Srbs,
}

/// A PDU session.
pub(crate) struct Session {
    ue: u32,
    flow: Qfi,
    entity: Entity,
    /// Number of the bearer of its uplink packets; 0 for none.
    pub(crate) uplink: u32,
    sink: Option<Sink>,
    pub(crate) stats: Arc<SessionStats>,
}

/// A data bearer.
pub(crate) struct Bearer {
    pub(crate) ue: u32,
    pub(crate) session: u32,
    lcid: u8,
    drb: DrbId,
    /// The SDAP header of uplink packets, if the bearer has it.
    pub(crate) uplink_header: bool,
    pub(crate) downlink_header: bool,
    pub(crate) header: uu::Header,
    pub(crate) peer: u16,
    /// The flow of its session's packets.
    pub(crate) flow: Qfi,
    pub(crate) tx: pdcp::Tx,
    pub(crate) rx: pdcp::Rx,
    pub(crate) rlc: um::Rx,
    /// When it is looked after, if it is planned.
    pub(crate) due_ns: Option<u64>,
    /// Where packets go that no TUN device takes, if control wants them.
    pub(crate) sink: Option<Sink>,
    pub(crate) stats: Arc<SessionStats>,
}

impl Bearer {
    /// When something of it has waited too long.
    pub(crate) fn next_expiry_ns(&self) -> Option<u64> {
        self.rx.next_expiry().into_iter().chain(self.rlc.deadline_ns()).min()
    }
}

/// All state but that of the ports.
pub(crate) struct State {
    pub(crate) ues: Slots<Ue>,
    pub(crate) sessions: Slots<Session>,
    pub(crate) bearers: Slots<Bearer>,
    cells: Vec<Cell>,
    pub(crate) peers: Arc<Peers>,
}

impl State {
    pub(crate) fn new() -> State {
        State {
            ues: Slots::new(),
            sessions: Slots::new(),
            bearers: Slots::new(),
            cells: Vec::new(),
            peers: Arc::default(),
        }
    }

    /// The number of the UE to which a datagram from `du` is addressed.
    #[inline]
    pub(crate) fn ue_of(&self, header: &uu::Header, du: SocketAddr) -> Option<u32> {
        let cell = self.cells.iter().find(|cell| cell.identity == header.cell && cell.du == du)?;
        cell.ues.get(usize::from(header.c_rnti)).copied().filter(|number| *number != 0)
    }

    /// The number of the UE that has a C-RNTI.
    pub(crate) fn holder(&self, identity: u64, du: SocketAddr, c_rnti: u16) -> Option<u32> {
        self.ue_of(&uu::Header::downlink(identity, c_rnti, 0), du)
    }

    pub(crate) fn add_ue(&mut self, identity: u64, du: SocketAddr, c_rnti: u16) -> Result<u32, Refused> {
        if c_rnti == 0 || c_rnti > uu::MAX_C_RNTI || du.port() == 0 {
            return Err(Refused::Value);
        }
        let at = self.cell(identity, du)?;
        let place = usize::from(c_rnti);
        if self.cells[at].ues[place] != 0 {
            return Err(Refused::InUse);
        }
        let peer = at as u16 + 1;
        let bearers = [0; uu::MAX_LCID as usize + 1];
        let ue =
            Ue { cell: identity, c_rnti, du, peer, bearers, sessions: Vec::new(), srbs: Srbs::default() };
        let number = self.ues.add(ue)?;
        self.cells[at].ues[place] = number;
        Ok(number)
    }

    /// The position of a cell, which is added if need be. Cells stay: there are few.
    fn cell(&mut self, identity: u64, du: SocketAddr) -> Result<usize, Refused> {
        if let Some(at) = self.cells.iter().position(|cell| cell.identity == identity && cell.du == du) {
            return Ok(at);
        }
        let at = self.cells.len();
        if at == MOST_CELLS || !self.peers.set(at as u16 + 1, du) {
            return Err(Refused::Full);
        }
        self.cells.push(Cell { identity, du, ues: vec![0; usize::from(uu::MAX_C_RNTI) + 1] });
        Ok(at)
    }

    pub(crate) fn remove_ue(&mut self, number: u32) -> Result<(), Refused> {
        let sessions = self.ues.get(number).ok_or(Refused::Unknown)?.sessions.clone();
        for session in sessions {
            self.remove_session(session)?;
        }
        let ue = self.ues.remove(number).ok_or(Refused::Unknown)?;
        if let Some(cell) = self.cells.get_mut(usize::from(ue.peer) - 1) {
            cell.ues[usize::from(ue.c_rnti)] = 0;
        }
        Ok(())
    }

    pub(crate) fn add_session(&mut self, ue: u32, flow: Qfi) -> Result<(u32, Arc<SessionStats>), Refused> {
        let stats = Arc::<SessionStats>::default();
        let owner = self.ues.get_mut(ue).ok_or(Refused::Unknown)?;
        let session =
            Session { ue, flow, entity: Entity::new(), uplink: 0, sink: None, stats: Arc::clone(&stats) };
        let number = self.sessions.add(session)?;
        owner.sessions.push(number);
        Ok((number, stats))
    }

    pub(crate) fn remove_session(&mut self, number: u32) -> Result<(), Refused> {
        let ue = self.sessions.get(number).ok_or(Refused::Unknown)?.ue;
        let bearers = self.ues.get(ue).map_or([0; _], |ue| ue.bearers);
        for bearer in bearers {
            if self.bearers.get(bearer).is_some_and(|bearer| bearer.session == number) {
                self.remove_bearer(bearer)?;
            }
        }
        if let Some(ue) = self.ues.get_mut(ue) {
            ue.sessions.retain(|session| *session != number);
        }
        self.sessions.remove(number).map(drop).ok_or(Refused::Unknown)
    }

    /// Adds a bearer. Returns its number, and the bearers on which a flow ends with the marker of SDAP.
    pub(crate) fn add_bearer(
        &mut self,
        session_number: u32,
        setup: BearerSetup,
    ) -> Result<(u32, Vec<(u32, u8)>), Refused> {
        let BearerSetup { lcid, drb, default, flows, rlc, t_reassembly, tx, rx } = setup;
        let session = self.sessions.get_mut(session_number).ok_or(Refused::Unknown)?;
        let ue = self.ues.get_mut(session.ue).ok_or(Refused::Unknown)?;
        let bearers = &self.bearers;
        let of_drb = |ue: &Ue, drb| {
            let carries = |number: &u32| bearers.get(*number).is_some_and(|known| known.drb == drb);
            ue.bearers.iter().copied().find(carries)
        };
        let place = ue.bearers.get(usize::from(lcid)).filter(|_| lcid >= LOWEST_LCID);
        if *place.ok_or(Refused::Value)? != 0 || of_drb(ue, drb.id).is_some() {
            return Err(Refused::InUse);
        }
        // Only what SDAP takes as a whole replaces what it had.
        let mut entity = session.entity.clone();
        entity.add_drb(drb, default)?;
        let mut markers = Vec::new();
        for flow in flows {
            markers.extend(entity.map(flow, drb.id)?);
        }
        let mark = |(drb, marker): (DrbId, Uplink)| Some((of_drb(ue, drb)?, marker.encode()));
        let markers = markers.into_iter().filter_map(mark).collect();
        let carries_session = entity.drb(session.flow) == Some(drb.id);
        let bearer = Bearer {
            ue: session.ue,
            session: session_number,
            lcid,
            drb: drb.id,
            uplink_header: drb.uplink_header,
            downlink_header: drb.downlink_header,
            header: uu::Header::uplink(ue.cell, ue.c_rnti, lcid),
            peer: ue.peer,
            flow: session.flow,
            tx,
            rx,
            rlc: um::Rx::new(rlc, nanoseconds(t_reassembly), REASSEMBLY_LIMIT),
            due_ns: None,
            sink: session.sink.clone(),
            stats: Arc::clone(&session.stats),
        };
        let number = self.bearers.add(bearer)?;
        ue.bearers[usize::from(lcid)] = number;
        session.entity = entity;
        if carries_session {
            session.uplink = number;
        }
        Ok((number, markers))
    }

    /// Gives a session's packets to control, on its bearers of now and those to come.
    pub(crate) fn give_packets_to(&mut self, number: u32, sink: Sink) -> Result<(), Refused> {
        let session = self.sessions.get_mut(number).ok_or(Refused::Unknown)?;
        session.sink = Some(sink.clone());
        for bearer in self.ues.get(session.ue).map_or([0; _], |ue| ue.bearers) {
            if let Some(bearer) = self.bearers.get_mut(bearer).filter(|bearer| bearer.session == number) {
                bearer.sink = Some(sink.clone());
            }
        }
        Ok(())
    }

    pub(crate) fn remove_bearer(&mut self, number: u32) -> Result<(), Refused> {
        let bearer = self.bearers.remove(number).ok_or(Refused::Unknown)?;
        let Some(ue) = self.ues.get_mut(bearer.ue) else { return Ok(()) };
        ue.bearers[usize::from(bearer.lcid)] = 0;
        let Some(session) = self.sessions.get_mut(bearer.session) else { return Ok(()) };
        session.entity.remove_drb(bearer.drb);
        let drb = session.entity.drb(session.flow);
        let left = ue.bearers.iter().copied();
        let carries = |number: &u32| self.bearers.get(*number).is_some_and(|known| Some(known.drb) == drb);
        session.uplink = left.into_iter().find(carries).unwrap_or(0);
        Ok(())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_those_of_another_table() {
        let mut tables: Vec<Slots<()>> = (0..8).map(|_| Slots::new()).collect();
        let numbers: Vec<u32> = tables.iter_mut().map(|table| table.add(()).unwrap()).collect();
        assert!(numbers.iter().any(|number| *number != numbers[0]), "{numbers:x?}");
        for (table, number) in tables.iter_mut().zip(numbers) {
            assert!(table.get(number).is_some() && table.remove(number).is_some());
            assert!(table.get(number).is_none() && table.add(()).unwrap() != number);
        }
    }
}
