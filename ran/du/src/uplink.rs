//! Datagrams from UEs: RLC PDUs, whose SDUs go to the CU, and random access.

use l2::rlc::um::{self, Received};
use l2::uu::{self, Header, Kind, contention_identity};
use packet::gtpu;
use path::Ports;
use pktio::FrameMut;
use telemetry::DropReason;

use crate::control::{Event, Place};
use crate::graph::{UserPlane, Verdict};
use crate::tables::PREFIX;
use crate::timers::Task;

/// Time in which a UE sends a message after random access.
const FIRST_MESSAGE_NS: u64 = 2_000_000_000;

impl UserPlane {
    /// Handles a datagram of an interface towards UEs.
    #[inline]
    pub(crate) fn uplink(
        &mut self,
        input: usize,
        frame: &mut FrameMut<'_>,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Verdict {
        let Ok((header, pdu)) = Header::parse(frame.packet()) else {
            return Verdict::Drop(DropReason::UuMalformed);
        };
        if header.cell != self.cell {
            return Verdict::Drop(DropReason::UuMalformed);
        }
        let place = Place { interface: input as u8, address: *frame.peer };
        if header.kind != Kind::Uplink {
            return self.uu_control(&header, pdu, place, now_ns, ports);
        }
        let Some(ue) = self.tables.ue(header.c_rnti) else {
            self.release(header.c_rnti, place, now_ns, ports);
            return Verdict::Drop(DropReason::UnknownBearer);
        };
        if ue.place != place {
            return Verdict::Drop(DropReason::UuMalformed);
        }
        if !ue.straight_up {
            return self.queue_uplink(header.c_rnti, header.lcid, pdu, now_ns);
        }
        if !um::is_whole(pdu) {
            return self.deliver_uplink(&header, pdu, now_ns, ports);
        }
        let Some(bearer) = self.tables.bearer_of(header.c_rnti, header.lcid) else {
            return self.signalling_bearer(&header, pdu, now_ns);
        };
        frame.trim_front(PREFIX);
        let octets = frame.len();
        let Some(head) = gtpu::encapsulate(frame.headroom(), bearer.cu.teid, octets, None) else {
            return Verdict::Drop(DropReason::TooBig);
        };
        frame.grow_front(head);
        frame.send_to(bearer.cu_peer);
        bearer.stats.uplink.count(octets);
        self.stats.uplink.count(octets);
        Verdict::Send(bearer.cu.interface)
    }

    /// Handles a PDU that is a segment, or that does not lie in a frame.
    #[cold]
    pub(crate) fn deliver_uplink(
        &mut self,
        header: &Header,
        pdu: &[u8],
        now_ns: u64,
        ports: &mut Ports,
    ) -> Verdict {
        let Some(bearer) = self.tables.bearer_of(header.c_rnti, header.lcid) else {
            return self.signalling_bearer(header, pdu, now_ns);
        };
        let received = bearer.rx.receive(pdu, now_ns);
        if !bearer.reassembly_timed
            && let Some(due_ns) = bearer.rx.deadline_ns()
        {
            bearer.reassembly_timed = true;
            self.timers.set(due_ns, Task::Reassembly(bearer.teid));
        }
        let sdu = match &received {
            Ok(Received::Whole) => &pdu[1..],
            Ok(Received::Sdu(sdu)) => sdu,
            Ok(Received::Kept) => return Verdict::Taken,
            Err(_) => {
                bearer.stats.dropped.add(1);
                return Verdict::Drop(DropReason::RlcDiscarded);
            }
        };
        let cu = bearer.cu;
        let Ok(packet) = gtpu::build_gpdu(cu.teid, None, sdu) else {
            return Verdict::Drop(DropReason::TooBig);
        };
        if !self.exits.push(cu.interface, &packet, cu.address, &self.stats, ports) {
            return Verdict::Drop(DropReason::TooBig);
        }
        bearer.stats.uplink.count(sdu.len());
        self.stats.uplink.count(sdu.len());
        Verdict::Taken
    }

    /// t-Reassembly of a bearer may have expired.
    pub(crate) fn reassembly_is_due(&mut self, teid: u32, now_ns: u64) {
        let Some(bearer) = self.tables.bearer_mut(teid) else { return };
        let before = bearer.rx.given_up();
        bearer.rx.expire(now_ns);
        let given_up = bearer.rx.given_up() - before;
        bearer.stats.dropped.add(given_up);
        self.stats.drops.count_n(DropReason::RlcDiscarded, given_up as usize);
        bearer.reassembly_timed = bearer.rx.deadline_ns().is_some();
        if let Some(due_ns) = bearer.rx.deadline_ns() {
            self.timers.set(due_ns, Task::Reassembly(teid));
        }
    }

    /// Handles what is not an RLC PDU.
    #[cold]
    fn uu_control(
        &mut self,
        header: &Header,
        payload: &[u8],
        place: Place,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Verdict {
        match header.kind {
            Kind::Preamble => self.preamble(payload, place, now_ns, ports),
            Kind::Camp => self.camp(place, now_ns, ports),
            Kind::Release => {
                let Some(ue) = self.tables.ue_mut(header.c_rnti).filter(|ue| ue.place == place) else {
                    return Verdict::Drop(DropReason::UnknownBearer);
                };
                if ue.leaves_by_ns.is_none() {
                    if !ue.signalling.allows(now_ns) {
                        return Verdict::Drop(DropReason::ControlOverflow);
                    }
                    self.tell(Event::ReleasedByUe { c_rnti: header.c_rnti });
                } else if self.remove_ue(header.c_rnti, ports).is_err() {
                    return Verdict::Drop(DropReason::UnknownBearer);
                }
                Verdict::Taken
            }
            // Only a DU sends these.
            _ => Verdict::Drop(DropReason::UuMalformed),
        }
    }

    /// Gives a UE a C-RNTI. A repeated preamble gets the same one.
    fn preamble(&mut self, payload: &[u8], place: Place, now_ns: u64, ports: &mut Ports) -> Verdict {
        let Some(identity) = contention_identity(payload) else {
            return Verdict::Drop(DropReason::UuMalformed);
        };
        let c_rnti = match self.tables.accessed(place, identity) {
            Some(known) => Some(known),
            None if self.broadcast.is_out_of_service() || !self.ends.events.has_room() => None,
            None if self.accesses.allows(now_ns) => self.access(place, identity, now_ns),
            // A UE repeats its preamble.
            None => return Verdict::Drop(DropReason::ControlOverflow),
        };
        let answer = match c_rnti {
            Some(c_rnti) => Header { kind: Kind::RandomAccessResponse, c_rnti, lcid: 0, cell: self.cell },
            None => Header { kind: Kind::Backoff, c_rnti: 0, lcid: 0, cell: self.cell },
        };
        self.exits.push(place.interface, &answer.datagram(&identity), place.address, &self.stats, ports);
        Verdict::Taken
    }

    fn access(&mut self, place: Place, identity: uu::ContentionIdentity, now_ns: u64) -> Option<u16> {
        let c_rnti = self.tables.free_c_rnti()?;
        let serial = self.tables.add_ue(c_rnti, place, Some(identity)).ok()?.serial;
        self.timers.set(now_ns + FIRST_MESSAGE_NS, Task::FirstMessage(c_rnti, serial));
        self.stats.random_accesses.add(1);
        self.tell(Event::RandomAccess { c_rnti, place });
        Some(c_rnti)
    }

    /// A UE that has sent nothing since its random access, and has no bearer, is forgotten.
    pub(crate) fn first_message_is_due(&mut self, c_rnti: u16, serial: u64, ports: &mut Ports) {
        let silent = self.tables.ue(c_rnti).is_some_and(|ue| {
            ue.serial == serial && !ue.confirmed && ue.bearers.iter().all(|position| *position == 0)
        });
        if silent && self.remove_ue(c_rnti, ports).is_ok() {
            self.tell(Event::AccessTimedOut { c_rnti });
        }
    }

    /// Tells a UE that it has no context.
    #[cold]
    fn release(&mut self, c_rnti: u16, place: Place, now_ns: u64, ports: &mut Ports) {
        if self.releases.allows(now_ns) {
            self.send_release(c_rnti, place, ports);
        }
    }
}
