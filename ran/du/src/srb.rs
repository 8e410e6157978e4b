//! Signalling bearers: RRC messages between UEs and control.
//!
//! SRB0 is transparent. SRB1 and SRB2 use RLC AM; their entities begin with the first message in either direction, but not before
//! the network has answered the UE. Signalling needs no grant: it is little, and at rate 0 it is lost as everything else is.
//!
//! What control has no room for is dropped before RLC has seen it: then the UE sends it again. A UE has a limit of its own, so that
//! it does not take the room of others.

use l2::rlc::LONGEST_SDU;
use l2::uu::Header;
use telemetry::DropReason;

use crate::control::{Event, Refused};
use crate::graph::{UserPlane, Verdict};
use crate::timers::Task;

/// Logical channel of SRB0.
const SRB0: u8 = 0;

impl UserPlane {
    /// Sends an RRC message; see [`crate::Control::send_rrc`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn send_rrc(&mut self, c_rnti: u16, lcid: u8, sdu: Vec<u8>, now_ns: u64) -> Result<(), Refused> {
        let ue = self.tables.ue_mut(c_rnti).ok_or(Refused::UnknownUe)?;
        if sdu.is_empty() || sdu.len() > LONGEST_SDU {
            return Err(Refused::Value);
        }
        ue.answered = true;
        if lcid == SRB0 {
            self.send_signalling(c_rnti, lcid, sdu, now_ns);
        } else {
            let pushed = ue.srbs.push(lcid, sdu).map_err(|_| Refused::UnknownBearer)?;
            pushed.map_err(|_| Refused::Full)?;
            self.serve_srb(c_rnti, lcid, now_ns);
        }
        self.stats.rrc.add(1);
        Ok(())
    }

    /// Handles a PDU on a channel without data bearer.
    pub(crate) fn signalling_bearer(&mut self, header: &Header, pdu: &[u8], now_ns: u64) -> Verdict {
        let Some(ue) = self.tables.ue_mut(header.c_rnti).filter(|ue| ue.answered || header.lcid == SRB0)
        else {
            return Verdict::Drop(DropReason::UnknownBearer);
        };
        if !ue.signalling.allows(now_ns) || !self.ends.events.has_room() {
            return Verdict::Drop(DropReason::ControlOverflow);
        }
        let sdu = if header.lcid == SRB0 {
            Some(pdu.to_vec())
        } else {
            match ue.srbs.receive(header.lcid, pdu, now_ns) {
                Ok(Ok(sdu)) => sdu,
                Err(_) => return Verdict::Drop(DropReason::UnknownBearer),
                Ok(Err(_)) => {
                    // It may have asked for a status all the same.
                    self.serve_srb(header.c_rnti, header.lcid, now_ns);
                    return Verdict::Drop(DropReason::RlcDiscarded);
                }
            }
        };
        ue.confirmed = true;
        let leaves = ue.leaves_by_ns.is_some();
        let serial = ue.serial;
        if header.lcid != SRB0 {
            self.serve_srb(header.c_rnti, header.lcid, now_ns);
        }
        if leaves {
            // Its status may have acknowledged the last message.
            self.timers.set(now_ns, Task::Leave(header.c_rnti, serial));
        } else if let Some(sdu) = sdu {
            self.stats.rrc.add(1);
            self.tell(Event::Rrc { c_rnti: header.c_rnti, lcid: header.lcid, sdu });
        }
        Verdict::Taken
    }

    /// Sends what an entity has to send, and sets the timer for what it will have.
    fn serve_srb(&mut self, c_rnti: u16, lcid: u8, now_ns: u64) {
        while let Some(pdu) = self.tables.ue_mut(c_rnti).and_then(|ue| ue.srbs.pull(lcid, now_ns)) {
            self.send_signalling(c_rnti, lcid, pdu, now_ns);
        }
        let Some(ue) = self.tables.ue_mut(c_rnti) else { return };
        let (serial, settled) = (ue.serial, ue.srbs.settle(lcid));
        if let Some(due_ns) = settled.due_ns {
            self.timers.set(due_ns, Task::Signalling(c_rnti, serial));
        }
        if settled.fails
            && let Some(by_ns) = &mut ue.leaves_by_ns
        {
            *by_ns = now_ns;
            self.timers.set(now_ns, Task::Leave(c_rnti, serial));
        } else if settled.fails {
            self.tell(Event::RadioLinkFailure { c_rnti, lcid });
        }
    }

    /// A timer of the signalling bearers of a UE may have expired.
    pub(crate) fn signalling_is_due(&mut self, c_rnti: u16, serial: u64, due_ns: u64, now_ns: u64) {
        let Some(ue) = self.tables.ue_mut(c_rnti).filter(|ue| ue.serial == serial) else { return };
        for lcid in ue.srbs.expire(due_ns, now_ns) {
            self.serve_srb(c_rnti, lcid, now_ns);
        }
    }
}
