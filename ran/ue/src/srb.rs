//! Signalling bearers: RRC messages between control and DUs. SRB0 is transparent; SRB1 and SRB2 use RLC AM (TS 38.322).

use std::cmp::Reverse;
use std::net::SocketAddr;

use l2::rlc::LONGEST_SDU;
use l2::uu::Header;
use path::Ports;
use telemetry::DropReason;

use crate::control::{Event, Refused, UeId};
use crate::graph::{UU, UserPlane};

impl UserPlane {
    /// Sends an RRC message on a logical channel: 0, 1 or 2.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn send_rrc(
        &mut self,
        ue: UeId,
        lcid: u8,
        sdu: Vec<u8>,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Result<(), Refused> {
        let known = self.state.ues.get_mut(ue.0).ok_or(Refused::Unknown)?;
        if sdu.is_empty() || sdu.len() > LONGEST_SDU {
            return Err(Refused::Value);
        }
        if lcid == 0 {
            let (datagram, du) = (Header::uplink(known.cell, known.c_rnti, 0).datagram(&sdu), known.du);
            if !self.send_datagram(&datagram, du, ports) {
                return Err(Refused::Value);
            }
        } else {
            let pushed = known.srbs.push(lcid, sdu).map_err(|_| Refused::Value)?;
            pushed.map_err(|_| Refused::Full)?;
            self.serve_srb(ue.0, lcid, now_ns, ports);
        }
        self.stats.rrc.add(1);
        Ok(())
    }

    /// Handles a PDU of the DU on SRB1 or SRB2.
    pub(crate) fn receive_rrc(
        &mut self,
        number: u32,
        lcid: u8,
        pdu: &[u8],
        now_ns: u64,
        ports: &mut Ports,
    ) -> Result<(), DropReason> {
        let known = self.state.ues.get_mut(number).ok_or(DropReason::UnknownBearer)?;
        if !self.ends.events.has_room() {
            // RLC has not seen it, so that the DU sends it again.
            return Err(DropReason::ControlOverflow);
        }
        let received = known.srbs.receive(lcid, pdu, now_ns).map_err(|_| DropReason::UnknownBearer)?;
        // Also a PDU that is discarded may have asked for a status.
        self.serve_srb(number, lcid, now_ns, ports);
        match received {
            Ok(Some(message)) => {
                self.stats.rrc.add(1);
                self.tell_control(Event::Rrc { ue: UeId(number), lcid, message })
            }
            Ok(None) => Ok(()),
            Err(_) => Err(DropReason::RlcDiscarded),
        }
    }

    /// Sends what an entity has to send, and plans the next look at it.
    fn serve_srb(&mut self, number: u32, lcid: u8, now_ns: u64, ports: &mut Ports) {
        loop {
            let Some(ue) = self.state.ues.get_mut(number) else { return };
            let (header, du) = (Header::uplink(ue.cell, ue.c_rnti, lcid), ue.du);
            let Some(pdu) = ue.srbs.pull(lcid, now_ns) else { break };
            self.send_datagram(&header.datagram(&pdu), du, ports);
        }
        let Some(ue) = self.state.ues.get_mut(number) else { return };
        let settled = ue.srbs.settle(lcid);
        if let Some(due_ns) = settled.due_ns {
            self.srbs_due.push(Reverse((due_ns, number)));
        }
        if settled.fails
            && let Err(reason) = self.tell_control(Event::RadioLinkFailure { ue: UeId(number) })
        {
            self.stats.drops.count(reason);
        }
    }

    /// Looks after the signalling bearers whose timers have expired.
    pub(crate) fn look_after_srbs(&mut self, now_ns: u64, ports: &mut Ports) {
        while let Some(Reverse((due_ns, number))) =
            self.srbs_due.peek().copied().filter(|due| due.0.0 <= now_ns)
        {
            self.srbs_due.pop();
            let Some(ue) = self.state.ues.get_mut(number) else { continue };
            for lcid in ue.srbs.expire(due_ns, now_ns) {
                self.serve_srb(number, lcid, now_ns, ports);
            }
        }
    }

    /// Sends a datagram to a DU at once; `false` if it is too long.
    pub(crate) fn send_datagram(&mut self, datagram: &[u8], du: SocketAddr, ports: &mut Ports) -> bool {
        if !self.push_extra(datagram, du, ports) {
            return false;
        }
        self.extra_outputs.push(UU as u8, self.extra.len() - 1);
        self.send_extra(ports);
        true
    }
}
