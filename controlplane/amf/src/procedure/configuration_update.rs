//! UE configuration update (TS 23.502 §4.2.4.2, TS 24.501 §5.4.4), and the 5G-GUTIs of a UE.
//!
//! A UE that answered a page has been named on the air by its 5G-GUTI, so it gets a new one (TS 33.501 §6.12.3). That
//! waits until what the UE was paged for has been delivered, and for the next connection when this one ends first.
//!
//! Slices that have changed (`subscription_change.rs`) are told the same way. A UE that believes in sessions that are
//! gone (`session_loss.rs`) is asked to register: the accept has the PDU session status, and all the rest.
//!
//! A UE has the 5G-GUTI that it last confirmed, and until it confirms another may have taken a newer one: all of them
//! lead to it, and it is paged by all of them.

use std::ops::ControlFlow;

use nas::{Message, gmm};
use types::Guti;

use super::an_release;
use crate::event::{Arrival, Interrupt};
use crate::state::Mm;
use crate::ue::{NoAnswer, Timer, Ue};

const NAME: &str = "configuration_update";

/// Whether a connected UE has to be told something.
pub(crate) fn is_due(ue: &Ue) -> bool {
    let due = ue.ctx.guti_due || ue.ctx.slices_due || !ue.ctx.lost_sessions.is_empty();
    due && ue.ctx.mm == Mm::Registered && ue.is_secure()
}

/// Tells the UE what it is due, a new 5G-GUTI or other slices: CONFIGURATION UPDATE COMMAND under T3555. A UE that has to
/// register gets these in the registration accept; for that it waits for the end of the connection (TS 24.501 §5.4.4.3).
pub(crate) async fn configuration_update(ue: &mut Ue) -> Result<(), Interrupt> {
    let registration = !ue.ctx.lost_sessions.is_empty();
    let (guti, slices) = (ue.ctx.guti_due && !registration, ue.ctx.slices_due && !registration);
    let mut command = gmm::ConfigurationUpdateCommand {
        acknowledge: true,
        registration_requested: registration,
        ..gmm::ConfigurationUpdateCommand::default()
    };
    if guti {
        command.guti = Some(new_guti(ue));
        command.tai_list = ue.amf.registration_area();
    }
    if slices {
        command.configured_nssai = ue.configured_slices();
        command.allowed_nssai = ue.ctx.allowed_nssai.clone();
    }
    let command = Message::ConfigurationUpdateCommand(command);
    let timer = Timer::ms("T3555", ue.amf.config.timers.t3555_ms);
    let answer = ue.exchange(timer, &command, |arrival| match arrival {
        Arrival::Nas(Message::ConfigurationUpdateComplete) => ControlFlow::Break(()),
        other => ControlFlow::Continue(other),
    });
    match answer.await {
        // A UE that does not confirm is told when it comes back.
        Ok(()) | Err(NoAnswer::Timeout(_)) if registration => {
            ue.record(NAME, "registration_requested");
            an_release::release(ue, ngap::cause::Nas::NormalRelease.into()).await
        }
        Ok(()) => {
            if guti {
                guti_confirmed(ue);
            }
            ue.ctx.slices_due &= !slices;
            ue.record(NAME, "ok");
            Ok(())
        }
        Err(NoAnswer::Timeout(timer)) => {
            // Both 5G-GUTIs stay valid (§5.4.4.6 a). A UE that has ignored five commands will ignore the sixth.
            (ue.ctx.guti_due, ue.ctx.slices_due) = (false, false);
            ue.record(NAME, format!("timeout {timer}"));
            Ok(())
        }
        Err(NoAnswer::Interrupted(interrupt)) => {
            ue.record(NAME, "interrupted");
            Err(interrupt)
        }
    }
}

/// A new 5G-GUTI for the UE.
pub(crate) fn new_guti(ue: &mut Ue) -> Guti {
    // The UE may hold the one it last confirmed or the latest. Those given in between and never confirmed go, or a UE
    // that never completes would collect them.
    while ue.ctx.tmsis.len() > 2 {
        let unconfirmed = ue.ctx.tmsis.remove(1);
        ue.amf.ues.free_tmsi(unconfirmed);
    }
    let tmsi = ue.amf.ues.allocate_tmsi(&ue.handle, nf::random::u32);
    ue.ctx.tmsis.push(tmsi);
    ue.amf.guti(tmsi)
}

/// The UE has confirmed its latest 5G-GUTI: the others are free again.
pub(crate) fn guti_confirmed(ue: &mut Ue) {
    ue.ctx.guti_due = false;
    let current = ue.ctx.tmsi();
    for tmsi in std::mem::take(&mut ue.ctx.tmsis) {
        if Some(tmsi) == current {
            ue.ctx.tmsis.push(tmsi);
        } else {
            ue.amf.ues.free_tmsi(tmsi);
        }
    }
}
