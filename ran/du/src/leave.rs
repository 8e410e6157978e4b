//! How a UE goes that control has released.
//!
//! The last RRC message for a UE tells it to release the connection (TS 38.331 §5.3.8). Its RLC entities live until the UE has acknowledged
//! the message, or has said itself that it has gone, or time is over.

use l2::uu::{Header, Kind};
use path::Ports;

use crate::control::{Place, Refused};
use crate::graph::UserPlane;
use crate::timers::Task;

/// How long a UE may take to acknowledge its last message: RLC sends it again several times meanwhile.
const PATIENCE_NS: u64 = 1_000_000_000;

impl UserPlane {
    /// Releases a UE; see [`crate::Control::release_ue`].
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn release_ue(
        &mut self,
        c_rnti: u16,
        last: Option<(u8, Vec<u8>)>,
        now_ns: u64,
        ports: &mut Ports,
    ) -> Result<(), Refused> {
        let ue = self.tables.ue(c_rnti).ok_or(Refused::UnknownUe)?;
        if ue.leaves_by_ns.is_some() {
            // Control has heard late from a UE that it has released: it still gets its last message.
            return Ok(());
        }
        let (place, serial, lcids) = (ue.place, ue.serial, ue.lcids());
        for lcid in lcids {
            self.remove_bearer(c_rnti, lcid, ports)?;
        }
        let sent = last.is_some_and(|(lcid, sdu)| self.send_rrc(c_rnti, lcid, sdu, now_ns).is_ok());
        if !sent {
            self.remove_ue(c_rnti, ports)?;
            self.send_release(c_rnti, place, ports);
            return Ok(());
        }
        let by_ns = now_ns + PATIENCE_NS;
        if let Some(ue) = self.tables.ue_mut(c_rnti) {
            ue.leaves_by_ns = Some(by_ns);
        }
        self.timers.set(by_ns, Task::Leave(c_rnti, serial));
        Ok(())
    }

    /// A UE that was released may go.
    pub(crate) fn leave_is_due(&mut self, c_rnti: u16, serial: u64, now_ns: u64, ports: &mut Ports) {
        let Some(ue) = self.tables.ue(c_rnti).filter(|ue| ue.serial == serial) else { return };
        let Some(by_ns) = ue.leaves_by_ns else { return };
        // On SRB0 nothing is acknowledged.
        let has_got_it = ue.srbs.are_all_acknowledged();
        let place = ue.place;
        if !has_got_it && now_ns < by_ns {
            return;
        }
        if self.remove_ue(c_rnti, ports).is_ok() && !has_got_it {
            self.send_release(c_rnti, place, ports);
        }
    }

    /// Tells a UE that its C-RNTI is released.
    pub(crate) fn send_release(&mut self, c_rnti: u16, place: Place, ports: &mut Ports) {
        let release = Header { kind: Kind::Release, c_rnti, lcid: 0, cell: self.cell }.octets();
        self.exits.push(place.interface, &release, place.address, &self.stats, ports);
    }
}
