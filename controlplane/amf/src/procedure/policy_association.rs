//! AM policy association while the UE is registered (TS 23.502 §4.16.2, §4.16.3; TS 29.507): the PCF changes it, ends
//! it, or has lost it.
//!
//! What the AMF takes from it is the UE-AMBR, which goes before the subscription's ([`bit_rate`]). Registration creates
//! the association, deregistration ends it.

use sbi::{ApiRoot, Target};
use types::Ambr;

use super::bit_rate;
use crate::event::Interrupt;
use crate::ue::Ue;

const NAME: &str = "policy_association";

/// Npcf_AMPolicyControl_UpdateNotify: what is left out stays.
pub(crate) async fn updated(ue: &mut Ue, ue_ambr: Option<Ambr>) -> Result<(), Interrupt> {
    let before = ue.ctx.ambr();
    if let Some(policy) = &mut ue.ctx.policy {
        policy.ue_ambr = ue_ambr.or(policy.ue_ambr);
    }
    bit_rate::changed(ue, before).await
}

/// The same, termination (TS 29.507 §4.2.4.3): the subscription alone holds.
pub(crate) async fn terminated(ue: &mut Ue) -> Result<(), Interrupt> {
    let before = ue.ctx.ambr();
    if let Some(policy) = ue.ctx.policy.take() {
        ue.amf.clone().peers.delete_am_policy(policy).await;
    }
    bit_rate::changed(ue, before).await
}

/// A PCF has started. Without association the UE asks for one: there was no PCF when it registered. One that this PCF
/// does not have any more is made again. A PCF that does not answer has changed nothing.
pub(crate) async fn pcf_started(ue: &mut Ue, pcf: &ApiRoot) -> Result<(), Interrupt> {
    let Some(supi) = ue.ctx.supi.filter(|_| ue.ctx.registered) else { return Ok(()) };
    let (amf, before) = (ue.amf.clone(), ue.ctx.ambr());
    let target = match &ue.ctx.policy {
        None => Target::Discover,
        Some(policy) if policy.resource.api_root != *pcf => return Ok(()),
        Some(policy) => match amf.peers.am_policy(policy).await {
            Err(error) if error.is_not_found() => Target::from(pcf),
            Ok(_) | Err(_) => return Ok(()),
        },
    };
    let (location, pei) = (ue.ctx.location, ue.ctx.pei);
    ue.ctx.policy = amf.peers.create_am_policy(target, supi, &amf, location, pei).await;
    ue.record(NAME, if ue.ctx.policy.is_some() { "ok" } else { "failed" });
    bit_rate::changed(ue, before).await
}
