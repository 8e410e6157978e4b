//! UE configuration update (TS 23.502 §4.2.4.2, TS 24.501 §5.4.4), and the 5G-GUTIs of a UE.
//!
//! A UE that answered a page was named on the radio by its 5G-GUTI, so it gets a new one (TS 33.501
//! §6.12.3). The new one is sent after the messages that the UE was paged for, or on the next
//! connection if this one ends before.
//!
//! Changed slices (`subscription_change.rs`) are sent in the same way. A UE that believes in sessions
//! that were lost (`session_loss.rs`) is asked to register: the accept has the PDU session status and
//! everything else.
//!
//! A UE has the 5G-GUTI that it confirmed last. Until it confirms another one, it may have accepted any
//! newer one: all of them lead to the UE's context, and it is paged with all of them.

use std::ops::ControlFlow;

use nas::{Message, gmm};
use types::Guti;

use super::an_release;
use crate::event::{Arrival, Interrupt};
use crate::state::Mm;
use crate::ue::{NoAnswer, Timer, Ue};

const NAME: &str = "configuration_update";

/// Whether a connected UE needs a new 5G-GUTI or other slices, or has to register.
pub(crate) fn is_due(ue: &Ue) -> bool {
    let due = ue.ctx.guti_due || ue.ctx.slices_due || ue.has_untold_losses();
    due && ue.ctx.mm == Mm::Registered && ue.is_secure()
}

/// Sends the UE its new 5G-GUTI or slices: CONFIGURATION UPDATE COMMAND under T3555. A UE that has to
/// register gets these in the registration accept; it waits for the end of the connection before it
/// registers (TS 24.501 §5.4.4.3).
pub(crate) async fn configuration_update(ue: &mut Ue) -> Result<(), Interrupt> {
    let registration = ue.has_untold_losses();
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
        // A UE that does not confirm gets the command again on its next connection.
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
            // Both 5G-GUTIs stay valid (§5.4.4.6 a). After five ignored commands a sixth would be
            // useless.
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

/// Allocates a new 5G-GUTI for the UE.
pub(crate) fn new_guti(ue: &mut Ue) -> Guti {
    // The UE may hold the one that it confirmed last or the latest one. Unconfirmed ones in between are
    // freed, or a UE that never completes would collect them.
    while ue.ctx.tmsis.len() > 2 {
        let unconfirmed = ue.ctx.tmsis.remove(1);
        ue.amf.ues.free_tmsi(unconfirmed);
    }
    let tmsi = ue.amf.ues.allocate_tmsi(&ue.handle, nf::random::u32);
    ue.ctx.tmsis.push(tmsi);
    ue.amf.guti(tmsi)
}

/// The UE has confirmed its latest 5G-GUTI: the others are freed.
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
