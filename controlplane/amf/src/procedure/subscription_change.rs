//! Changes of the subscription while the UE is registered (TS 23.502 §4.5.1).
//!
//! - Aggregate bit rate: sent at once to the gNB of a connected UE, otherwise with the next connection
//!   (`bit_rate.rs`).
//! - New slices beside the allowed ones: sent to the UE by a configuration update.
//! - A removed slice that is allowed now: the UE is deregistered and told to register again. Then it
//!   gets the slices that it may use now, and the sessions on the others are released (§4.2.4.2).
//! - DNNs: apply to the next session. Existing sessions stay as they are.

use super::{bit_rate, deregistration};
use crate::event::{Deregister, DeregistrationReason, Interrupt};
use crate::ue::Ue;

const NAME: &str = "subscription_change";

/// Fetches the subscription and applies the changes.
pub(crate) async fn subscription_change(ue: &mut Ue) -> Result<(), Interrupt> {
    let Some(supi) = ue.ctx.supi.filter(|_| ue.ctx.registered) else { return Ok(()) };
    let amf = ue.amf.clone();
    let Ok(subscription) = amf.peers.subscription(supi, amf.config.plmn).await else {
        // The call counts the failure. The present values stay in force until the next registration.
        ue.record(NAME, "failed");
        return Ok(());
    };
    let (old_slices, old_ambr) = (ue.configured_slices(), ue.ctx.ambr());
    ue.ctx.subscription = Some(subscription);
    let slices = ue.configured_slices();
    ue.record(NAME, "ok");
    if !ue.ctx.allowed_nssai.iter().all(|allowed| slices.contains(allowed)) {
        let order = Deregister { why: DeregistrationReason::SliceRemoved, paged: false, done: None };
        return deregistration::by_network(ue, order).await;
    }
    ue.ctx.slices_due |= slices != old_slices;
    bit_rate::changed(ue, old_ambr).await
}
