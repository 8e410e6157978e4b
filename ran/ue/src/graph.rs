//! The user plane as a graph of the engine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::sync::Arc;

use l2::pdcp::{Discard, SealError, Verdict};
use l2::rlc::um::{self, Received};
use l2::sdap::{self, DownlinkHeader, Uplink};
use l2::uu::{self, Header, Kind};
use path::{Graph, Outputs, Ports};
use pktio::frame::NO_PEER;
use pktio::poll::Waker;
use pktio::{FrameMut, Pool, Slab, VECTOR, Vector};
use telemetry::DropReason;
use types::{NrCellId, Qfi};

use crate::access::{Accesses, Answered};
use crate::camps::Camps;
use crate::control::{
    self, BearerId, BearerSetup, Control, Ends, Event, Events, Refused, Reply, SessionId, UeId,
};
use crate::sink::Sink;
use crate::state::{Bearer, State};
use crate::stats::{SessionStats, Stats};
use crate::tuns::{peer_of, session_of};

/// Number of the interface towards DUs.
pub const UU: usize = 0;
/// Number of the interface with the TUN devices.
pub const TUN: usize = 1;
/// Longest packet of an interface without memory of its own.
const PACKET_LEN: usize = 9_216;
/// What is in front of a PDCP PDU that is not cut: the headers of `uu` and RLC.
const PREFIX: usize = uu::HEADER_LEN + 1;

/// The user plane of UEs; see the crate.
pub struct UserPlane {
    home: Arc<dyn Pool>,
    pub(crate) state: State,
    accesses: Accesses,
    outputs: Outputs,
    /// Packets that leave besides those of the vector.
    pub(crate) extra: Vector,
    pub(crate) extra_outputs: Outputs,
    /// When to look after bearers.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// When to look after the signalling bearers of UEs.
    pub(crate) srbs_due: BinaryHeap<Reverse<(u64, u32)>>,
    camps: Camps,
    pub(crate) ends: Ends,
    pub(crate) stats: Arc<Stats>,
}

impl UserPlane {
    /// A user plane without UEs, its control and its events.
    pub fn new() -> (UserPlane, Control, Events) {
        let stats = Arc::<Stats>::default();
        let (control, events, ends) = control::channels(&stats);
        let user_plane = UserPlane {
            home: Slab::new(4 * VECTOR, PACKET_LEN),
            state: State::new(),
            accesses: Accesses::default(),
            outputs: Outputs::new(2),
            extra: Vector::new(VECTOR, PACKET_LEN),
            extra_outputs: Outputs::new(2),
            due: BinaryHeap::new(),
            srbs_due: BinaryHeap::new(),
            camps: Camps::default(),
            ends,
            stats,
        };
        (user_plane, control, events)
    }

    /// What it counts.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Begins random access; see [`Control::access`].
    pub(crate) fn begin_access(
        &mut self,
        cell: NrCellId,
        du: SocketAddr,
        identity: uu::ContentionIdentity,
        now_ns: u64,
        reply: Reply<UeId>,
    ) {
        self.accesses.begin(cell.value(), du, identity, now_ns, reply);
    }

    /// Adds a UE; see [`Control::add_ue`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_ue(&mut self, cell: NrCellId, du: SocketAddr, c_rnti: u16) -> Result<UeId, Refused> {
        self.state.add_ue(cell.value(), du, c_rnti).map(UeId)
    }

    /// Removes a UE; see [`Control::remove_ue`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_ue(&mut self, ue: UeId) -> Result<(), Refused> {
        self.state.remove_ue(ue.0)
    }

    /// Adds a session; see [`Control::add_session`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_session(&mut self, ue: UeId, flow: Qfi) -> Result<(SessionId, Arc<SessionStats>), Refused> {
        self.state.add_session(ue.0, flow).map(|(number, stats)| (SessionId(number), stats))
    }

    /// Removes a session; see [`Control::remove_session`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_session(&mut self, session: SessionId) -> Result<(), Refused> {
        self.state.remove_session(session.0)
    }

    /// Adds a bearer; see [`Control::add_bearer`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn add_bearer(
        &mut self,
        session: SessionId,
        setup: BearerSetup,
        ports: &mut Ports,
    ) -> Result<BearerId, Refused> {
        let (number, markers) = self.state.add_bearer(session.0, setup)?;
        for (bearer, marker) in markers {
            self.send_end_marker(bearer, marker, ports);
        }
        Ok(BearerId(number))
    }

    /// Removes a bearer; see [`Control::remove_bearer`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn remove_bearer(&mut self, bearer: BearerId) -> Result<(), Refused> {
        self.state.remove_bearer(bearer.0)
    }

    /// Gives a UE's C-RNTI back to its DU, and removes the UE.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn leave(&mut self, ue: UeId, ports: &mut Ports) -> Result<(), Refused> {
        let known = self.state.ues.get(ue.0).ok_or(Refused::Unknown)?;
        let header = Header { kind: Kind::Release, c_rnti: known.c_rnti, lcid: 0, cell: known.cell };
        let du = known.du;
        self.send_datagram(&header.datagram(&[]), du, ports);
        self.remove_ue(ue)
    }

    /// Wants what a cell broadcasts from now on.
    pub fn camp(&mut self, cell: NrCellId, du: SocketAddr) {
        self.camps.add(cell.value(), du);
    }

    /// Gives packets for a session that no TUN device takes to `sink`, and router advertisements always.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn give_packets_to(&mut self, session: SessionId, sink: Sink) -> Result<(), Refused> {
        self.state.give_packets_to(session.0, sink)
    }

    /// Sends a packet of a session as if it came from its TUN device.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn send_packet(
        &mut self,
        session: SessionId,
        packet: &[u8],
        ports: &mut Ports,
    ) -> Result<(), Refused> {
        let known = self.state.sessions.get(session.0).ok_or(Refused::Unknown)?;
        let bearer = known.uplink;
        if !self.push_extra(packet, NO_PEER, ports) {
            return Err(Refused::Value);
        }
        let at = self.extra.len() - 1;
        let bearer = self.state.bearers.get_mut(bearer).ok_or(Refused::Unknown)?;
        match send_on(bearer, &mut self.extra.frame_mut(at), &self.stats) {
            Ok(()) => self.extra_outputs.push(UU as u8, at),
            Err(reason) => self.stats.drops.count(reason),
        }
        self.send_extra(ports);
        Ok(())
    }

    fn send_end_marker(&mut self, bearer: u32, marker: u8, ports: &mut Ports) {
        if !self.push_extra(&[marker], NO_PEER, ports) {
            return;
        }
        let Some(bearer) = self.state.bearers.get_mut(bearer) else { return };
        let at = self.extra.len() - 1;
        match seal(bearer, &mut self.extra.frame_mut(at)) {
            Ok(()) => self.extra_outputs.push(UU as u8, at),
            Err(reason) => self.stats.drops.count(reason),
        }
        self.send_extra(ports);
    }

    /// Puts a packet into the vector of those that leave besides; `false` if it is too long.
    pub(crate) fn push_extra(&mut self, packet: &[u8], to: SocketAddr, ports: &mut Ports) -> bool {
        if self.extra.len() == self.extra.capacity() {
            self.send_extra(ports);
        }
        self.extra.push(packet, to)
    }

    fn send_outputs(&mut self, vector: &mut Vector, ports: &mut Ports) {
        vector.set_peers(&self.state.peers);
        let stats = &self.stats;
        self.outputs.transmit(vector, ports, |_, sent| stats.count_unsent(sent));
        self.outputs.clear();
    }

    pub(crate) fn send_extra(&mut self, ports: &mut Ports) {
        if self.extra.is_empty() {
            return;
        }
        self.extra.set_peers(&self.state.peers);
        let stats = &self.stats;
        self.extra_outputs.transmit(&mut self.extra, ports, |_, sent| stats.count_unsent(sent));
        self.extra_outputs.clear();
        self.extra.clear();
    }

    /// Sends a program's packet on its session's bearer.
    #[inline(always)]
    fn uplink(&mut self, vector: &mut Vector, at: usize) -> Result<(), DropReason> {
        let mut frame = vector.frame_mut(at);
        let session = session_of(*frame.peer).and_then(|number| self.state.sessions.get(number));
        let bearer = session.and_then(|session| self.state.bearers.get_mut(session.uplink));
        let bearer = bearer.ok_or(DropReason::NoBearer)?;
        send_on(bearer, &mut frame, &self.stats)?;
        self.outputs.push(UU as u8, at);
        Ok(())
    }

    /// Handles a datagram of a DU.
    #[inline(always)]
    fn downlink(
        &mut self,
        vector: &mut Vector,
        at: usize,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Result<(), DropReason> {
        let mut frame = vector.frame_mut(at);
        let (header, pdu) = Header::parse(frame.packet()).map_err(|_| DropReason::UuMalformed)?;
        if matches!(header.kind, Kind::RandomAccessResponse | Kind::Backoff) {
            let answered = self.accesses.answer(&header, pdu, *frame.peer, now_ns);
            answered.into_iter().for_each(|answered| self.accessed(answered));
            return Ok(());
        }
        if header.kind == Kind::Broadcast {
            let (header, message, du) = (header, pdu.to_vec(), *frame.peer);
            return self.broadcast(&header, message, du);
        }
        let ue_number = self.state.ue_of(&header, *frame.peer).ok_or(DropReason::UnknownBearer)?;
        let ue = self.state.ues.get(ue_number).ok_or(DropReason::UnknownBearer)?;
        if header.kind != Kind::Downlink || header.lcid == 0 {
            return self.tell(ue_number, &header, pdu);
        }
        if header.lcid <= l2::srb::HIGHEST {
            let (lcid, pdu) = (header.lcid, pdu.to_vec());
            return self.receive_rrc(ue_number, lcid, &pdu, now_ns, ports);
        }
        let number = ue.bearers.get(usize::from(header.lcid)).copied().unwrap_or(0);
        let bearer = self.state.bearers.get_mut(number).ok_or(DropReason::UnknownBearer)?;
        if !um::is_whole(pdu) {
            return self.segment(number, vector, at, now_ns, ports);
        }
        frame.trim_front(PREFIX);
        match bearer.rx.open(frame.packet_mut(), now_ns) {
            Verdict::Deliver { sdu, .. } => {
                frame.truncate(sdu.end);
                frame.trim_front(sdu.start);
                let waits = bearer.rx.held().0 > 0;
                let delivered = deliver(bearer, &mut frame, &self.stats);
                if delivered == Ok(true) {
                    self.outputs.push(TUN as u8, at);
                }
                let delivered = delivered.map(drop);
                if waits {
                    // Later packets of this vector must not overtake those that have waited.
                    self.send_outputs(vector, ports);
                    self.release(number, ports);
                    self.plan(number);
                }
                delivered
            }
            verdict => self.not_delivered(number, &verdict),
        }
    }

    /// Handles the datagram at a position, whose RLC PDU is not a whole SDU.
    #[cold]
    fn segment(
        &mut self,
        number: u32,
        vector: &mut Vector,
        at: usize,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Result<(), DropReason> {
        let Some(bearer) = self.state.bearers.get_mut(number) else { return Err(DropReason::UnknownBearer) };
        let mut frame = vector.frame_mut(at);
        frame.trim_front(uu::HEADER_LEN);
        let received = bearer.rlc.receive(frame.packet(), now_ns);
        let sdu = match received {
            Ok(Received::Sdu(sdu)) => Some(sdu),
            Ok(Received::Kept) => None,
            // A whole SDU has gone another way.
            Ok(Received::Whole) | Err(_) => return Err(DropReason::RlcDiscarded),
        };
        let Some(mut pdu) = sdu else {
            self.plan(number);
            return Ok(());
        };
        match bearer.rx.open(&mut pdu, now_ns) {
            Verdict::Deliver { sdu, .. } => {
                // What came before in this vector leaves first.
                self.send_outputs(vector, ports);
                let delivered = self.deliver_copy(number, &pdu[sdu], ports);
                self.send_extra(ports);
                self.release(number, ports);
                self.plan(number);
                delivered
            }
            verdict => self.not_delivered(number, &verdict),
        }
    }

    /// Counts a PDU that is not delivered now.
    fn not_delivered(&mut self, number: u32, verdict: &Verdict) -> Result<(), DropReason> {
        match verdict {
            Verdict::Held | Verdict::Deliver { .. } => {
                self.plan(number);
                Ok(())
            }
            Verdict::Control(_) => {
                self.stats.pdcp_control.add(1);
                Ok(())
            }
            Verdict::Discarded(discard) => Err(match discard {
                Discard::Malformed => DropReason::PdcpMalformed,
                Discard::IntegrityFailure => DropReason::PdcpIntegrity,
                Discard::Duplicate | Discard::Stale => DropReason::PdcpStale,
                Discard::NoRoom => DropReason::PdcpOverflow,
            }),
        }
    }

    /// Delivers packets that have waited for older ones.
    #[cold]
    fn release(&mut self, number: u32, ports: &mut Ports) {
        let Some(bearer) = self.state.bearers.get_mut(number) else { return };
        let mut released = Vec::new();
        bearer.rx.release(|sdu, _| released.push(sdu.to_vec()));
        for sdu in released {
            if let Err(reason) = self.deliver_copy(number, &sdu, ports) {
                self.stats.drops.count(reason);
            }
        }
        self.send_extra(ports);
    }

    fn deliver_copy(&mut self, number: u32, sdu: &[u8], ports: &mut Ports) -> Result<(), DropReason> {
        if !self.push_extra(sdu, NO_PEER, ports) {
            return Err(DropReason::TooBig);
        }
        let at = self.extra.len() - 1;
        let bearer = self.state.bearers.get_mut(number).ok_or(DropReason::UnknownBearer)?;
        if deliver(bearer, &mut self.extra.frame_mut(at), &self.stats)? {
            self.extra_outputs.push(TUN as u8, at);
        }
        Ok(())
    }

    /// A UE has got its C-RNTI.
    #[cold]
    fn accessed(&mut self, answered: Answered) {
        let Answered { cell, du, c_rnti, reply } = answered;
        // Who does not wait for the answer any more has no use for the UE. The DU forgets it as it hears nothing.
        let mut added = self.state.add_ue(cell, du, c_rnti).map(UeId);
        if added == Err(Refused::InUse)
            && let Some(former) = self.state.holder(cell, du, c_rnti)
        {
            // The DU has taken the C-RNTI from a UE that has not heard of it.
            if self.tell_control(Event::ReleasedByDu { ue: UeId(former) }).is_err() {
                self.stats.drops.count(DropReason::ControlOverflow);
            }
            let _ = self.state.remove_ue(former);
            added = self.state.add_ue(cell, du, c_rnti).map(UeId);
        }
        if let Err(Ok(ue)) = reply.give(added) {
            let _ = self.state.remove_ue(ue.0);
        }
    }

    /// Sends the preambles that are due.
    fn send_preambles(&mut self, now_ns: u64, ports: &mut Ports) {
        let mut due = Vec::new();
        self.accesses.turn(now_ns, |preamble, du| due.push((preamble.to_vec(), du)));
        for (preamble, du) in due {
            if self.push_extra(&preamble, du, ports) {
                self.extra_outputs.push(UU as u8, self.extra.len() - 1);
            }
        }
        self.send_extra(ports);
    }

    /// Tells control about a datagram that is not of a data bearer.
    #[cold]
    fn tell(&mut self, ue: u32, header: &Header, payload: &[u8]) -> Result<(), DropReason> {
        let ue = UeId(ue);
        let event = match header.kind {
            Kind::Downlink => {
                self.stats.rrc.add(1);
                Event::Rrc { ue, lcid: 0, message: payload.to_vec() }
            }
            Kind::Release => Event::ReleasedByDu { ue },
            // Only UEs send these.
            _ => return Err(DropReason::UuMalformed),
        };
        self.tell_control(event)
    }

    pub(crate) fn tell_control(&mut self, event: Event) -> Result<(), DropReason> {
        if self.ends.events.send(event) { Ok(()) } else { Err(DropReason::ControlOverflow) }
    }

    /// Passes on what a cell broadcasts, if it is one in which UEs camp.
    #[cold]
    fn broadcast(&mut self, header: &Header, message: Vec<u8>, du: SocketAddr) -> Result<(), DropReason> {
        if !self.camps.hear(header.cell, du) {
            return Err(DropReason::UnknownBearer);
        }
        let cell = NrCellId::new(header.cell).map_err(|_| DropReason::UuMalformed)?;
        self.tell_control(Event::Broadcast { cell, du, channel: header.c_rnti, message })
    }

    /// Sees to it that a bearer is looked after when something of it has waited too long.
    fn plan(&mut self, number: u32) {
        let Some(bearer) = self.state.bearers.get_mut(number) else { return };
        let Some(expiry_ns) = bearer.next_expiry_ns() else { return };
        if bearer.due_ns.is_none_or(|due_ns| expiry_ns < due_ns) {
            bearer.due_ns = Some(expiry_ns);
            self.due.push(Reverse((expiry_ns, number)));
        }
    }

    /// Looks after the bearers of which something has waited too long.
    fn look_after(&mut self, now_ns: u64, ports: &mut Ports) {
        while let Some(Reverse((due_ns, number))) = self.due.peek().copied().filter(|due| due.0.0 <= now_ns) {
            self.due.pop();
            let Some(bearer) = self.state.bearers.get_mut(number) else { continue };
            if bearer.due_ns != Some(due_ns) {
                // It was planned for an earlier time as well.
                continue;
            }
            bearer.due_ns = None;
            let before = bearer.rlc.given_up();
            bearer.rlc.expire(now_ns);
            let given_up = bearer.rlc.given_up() - before;
            self.stats.drops.count_n(DropReason::RlcDiscarded, given_up as usize);
            bearer.rx.expire(now_ns);
            self.release(number, ports);
            self.plan(number);
        }
    }
}

/// Makes the frame, a packet, a datagram on its way to the DU.
#[inline(always)]
fn send_on(bearer: &mut Bearer, frame: &mut FrameMut<'_>, stats: &Stats) -> Result<(), DropReason> {
    let octets = frame.len();
    if bearer.uplink_header {
        let headroom = frame.headroom().last_mut().ok_or(DropReason::TooBig)?;
        *headroom = Uplink::Data(bearer.flow).encode();
        frame.grow_front(sdap::HEADER_LEN);
    }
    seal(bearer, frame)?;
    bearer.stats.uplink.count(octets);
    stats.uplink.count(octets);
    Ok(())
}

/// Makes the frame, an SDU of PDCP, a datagram on its way to the DU.
#[inline(always)]
fn seal(bearer: &mut Bearer, frame: &mut FrameMut<'_>) -> Result<(), DropReason> {
    let (header, trailer) = (bearer.tx.header_len(), bearer.tx.trailer_len());
    let length = header + frame.len() + trailer;
    frame.extend(trailer);
    if !frame.grow_front(header) || frame.len() != length {
        return Err(DropReason::TooBig);
    }
    bearer.tx.seal(frame.packet_mut()).map_err(|error| match error {
        SealError::Exhausted => DropReason::PdcpExhausted,
        SealError::TooShort | SealError::TooLong => DropReason::TooBig,
    })?;
    if !frame.grow_front(PREFIX) {
        return Err(DropReason::TooBig);
    }
    if let Some((prefix, _)) = frame.packet_mut().split_first_chunk_mut::<PREFIX>() {
        prefix[..uu::HEADER_LEN].copy_from_slice(&bearer.header.octets());
        prefix[uu::HEADER_LEN] = um::HEADER_OF_WHOLE;
    }
    frame.send_to(bearer.peer);
    Ok(())
}

/// Makes the frame, an SDAP PDU, a packet on its way to the session's TUN device. `false`: control takes it.
#[inline(always)]
fn deliver(bearer: &mut Bearer, frame: &mut FrameMut<'_>, stats: &Stats) -> Result<bool, DropReason> {
    if bearer.downlink_header {
        let Some(first) = frame.packet().first().copied() else { return Err(DropReason::PdcpMalformed) };
        let header = DownlinkHeader::decode(first);
        if header.rdi || header.rqi {
            stats.reflective.add(1);
        }
        frame.trim_front(sdap::HEADER_LEN);
    }
    if frame.is_empty() {
        return Err(DropReason::PdcpMalformed);
    }
    // Without number: the port looks at the peer.
    frame.send_to(0);
    *frame.peer = peer_of(bearer.session);
    bearer.stats.downlink.count(frame.len());
    stats.downlink.count(frame.len());
    let control_takes = match &bearer.sink {
        Some(sink) => sink.takes(frame.packet()),
        None => false,
    };
    Ok(!control_takes)
}

impl Graph for UserPlane {
    fn home(&self) -> &Arc<dyn Pool> {
        &self.home
    }

    fn process(&mut self, input: usize, vector: &mut Vector, now_ns: u64, ports: &mut Ports) {
        for at in 0..vector.len() {
            let done = match input {
                TUN => self.uplink(vector, at),
                _ => self.downlink(vector, at, now_ns, ports),
            };
            if let Err(reason) = done {
                self.stats.drops.count(reason);
            }
        }
        self.send_outputs(vector, ports);
    }

    fn turn(&mut self, now_ns: u64, ports: &mut Ports) -> Option<u64> {
        let drops = &self.stats.drops;
        ports.iter_mut().for_each(|port| port.losses(&mut |reason, count| drops.count_n(reason, count)));
        for call in self.ends.calls.take() {
            call(self, now_ns, ports);
        }
        self.look_after(now_ns, ports);
        self.look_after_srbs(now_ns, ports);
        if self.accesses.next_ns().is_some_and(|next_ns| next_ns <= now_ns) {
            self.send_preambles(now_ns, ports);
        }
        if self.camps.next_ns().is_some_and(|next_ns| next_ns <= now_ns) {
            for (camp, du) in self.camps.due(now_ns) {
                self.send_datagram(&camp, du, ports);
            }
        }
        let due = [&self.due, &self.srbs_due].map(|heap| heap.peek().map(|Reverse(due)| due.0));
        due.into_iter().flatten().chain(self.accesses.next_ns()).chain(self.camps.next_ns()).min()
    }

    fn recover(&mut self, lost: usize) {
        self.stats.drops.count_n(DropReason::WorkerFailed, lost);
        self.outputs.clear();
        self.extra_outputs.clear();
        self.extra.clear();
    }

    fn wake_with(&mut self, waker: Waker) {
        self.ends.calls.wake_with(waker);
    }

    fn interface_name(&self, number: usize) -> &str {
        if number == UU { "uu" } else { "tun" }
    }
}
