//! NG Setup and RAN Configuration Update (TS 38.413 §8.7.1, §8.7.2).
//!
//! A gNB is accepted when it belongs to no other PLMN alone, serves a tracking area of ours and a slice of ours
//! there. A gNB that sets up again, on this association or another, starts anew: its UEs go CM-IDLE.

use std::collections::BTreeSet;
use std::sync::Arc;

use ngap::cause::{Misc, RadioNetwork};
use ngap::{
    Cause, NgSetupFailure, NgSetupRequest, NgSetupResponse, Pdu, PlmnSlices, RanConfigurationUpdate,
    RanConfigurationUpdateAcknowledge, RanConfigurationUpdateFailure, SupportedTa, TimeToWait,
};

use crate::context::Amf;
use crate::counters;
use crate::gnb::{Gnb, GnbInfo, LinkDown};

/// What a refused gNB waits before it tries again: long enough not to load us, short enough that a corrected
/// configuration takes effect while the operator watches.
const RETRY: TimeToWait = TimeToWait::V10s;

/// NG Setup.
pub(crate) async fn ng_setup(amf: &Arc<Amf>, gnb: &Arc<Gnb>, request: NgSetupRequest) {
    if let Err(cause) = check(amf, &request.supported_tas) {
        counters::NG_SETUP_FAILURES.inc(&cause.to_string());
        // Wrong areas or networks are what goes wrong most often with a new gNB, and NGAP has no cause for it.
        let theirs: Vec<String> = request.supported_tas.iter().map(broadcast).collect();
        tracing::warn!(
            gnb = %request.global_ran_node_id, peer = %gnb.peer, %cause,
            theirs = theirs.join(", "), plmn = %amf.config.plmn, tac = ?amf.config.tac,
            "NG Setup refused: the gNB serves nothing that amf.tac, plmn and slices name"
        );
        let failure = NgSetupFailure { cause, time_to_wait: Some(RETRY), criticality_diagnostics: None };
        return send(gnb, failure.into()).await;
    }
    // NG Setup erases what the two sides had (TS 38.413 §8.7.1.1) …
    gnb.lose_all(LinkDown::Reset);
    // … also on an association the gNB has lost and we have not noticed yet.
    if let Some(old) = amf.gnb_with_id(&request.global_ran_node_id, gnb.key) {
        tracing::info!(gnb = %request.global_ran_node_id, "gNB is back on a new association");
        amf.gnbs().remove(&old.key);
        old.lose_all(LinkDown::AssociationLost);
        old.end.notify_one();
    }
    tracing::info!(gnb = %request.global_ran_node_id, name = request.ran_node_name, "NG Setup");
    gnb.set_info(Some(GnbInfo {
        id: request.global_ran_node_id,
        name: request.ran_node_name,
        tas: request.supported_tas,
        drx: request.default_paging_drx,
    }));
    let response = NgSetupResponse {
        amf_name: amf.config.name.clone(),
        served_guamis: vec![amf.guami.into()],
        relative_amf_capacity: amf.config.relative_capacity,
        plmn_support: vec![PlmnSlices { plmn: amf.config.plmn, slices: amf.config.slices.clone() }],
        criticality_diagnostics: None,
    };
    send(gnb, response.into()).await;
}

/// RAN Configuration Update: the same checks for what is new.
pub(crate) async fn ran_configuration_update(amf: &Arc<Amf>, gnb: &Arc<Gnb>, update: RanConfigurationUpdate) {
    let Some(mut info) = gnb.info() else { return };
    if let Some(tas) = update.supported_tas {
        if let Err(cause) = check(amf, &tas) {
            counters::NG_SETUP_FAILURES.inc(&cause.to_string());
            let failure = RanConfigurationUpdateFailure {
                cause,
                time_to_wait: Some(RETRY),
                criticality_diagnostics: None,
            };
            return send(gnb, failure.into()).await;
        }
        info.tas = tas;
    }
    info.name = update.ran_node_name.or(info.name);
    info.drx = update.default_paging_drx.unwrap_or(info.drx);
    gnb.set_info(Some(info));
    send(gnb, RanConfigurationUpdateAcknowledge { criticality_diagnostics: None }.into()).await;
}

/// Whether a gNB with these tracking areas can be served; else the cause of TS 38.413 §8.7.1.3.
fn check(amf: &Amf, tas: &[SupportedTa]) -> Result<(), Cause> {
    let ours = |broadcast: &&PlmnSlices| broadcast.plmn == amf.config.plmn;
    if !tas.iter().any(|ta| ta.broadcast_plmns.iter().any(|plmn| ours(&plmn))) {
        return Err(Misc::UnknownPlmnOrSnpn.into());
    }
    let mut areas = tas.iter().filter(|ta| amf.config.tac.contains(&ta.tac)).peekable();
    if areas.peek().is_none() {
        // The standard has no cause for a foreign tracking area; this is what implementations answer.
        return Err(Misc::Unspecified.into());
    }
    let offered: BTreeSet<_> = areas
        .flat_map(|ta| ta.broadcast_plmns.iter().filter(ours))
        .flat_map(|plmn| plmn.slices.iter().copied())
        .collect();
    if !amf.config.slices.iter().any(|slice| offered.contains(slice)) {
        return Err(RadioNetwork::SliceNotSupported.into());
    }
    Ok(())
}

/// A tracking area as the log shows it: `TAC 000001 (999-70)`.
fn broadcast(ta: &SupportedTa) -> String {
    let plmns: Vec<String> = ta.broadcast_plmns.iter().map(|broadcast| broadcast.plmn.to_string()).collect();
    format!("TAC {} ({})", ta.tac, plmns.join(" "))
}

async fn send(gnb: &Gnb, pdu: Pdu) {
    match pdu.encode() {
        // A failure to send means that the association is ending: its task finds out by itself.
        Ok(octets) => _ = gnb.send_common(octets).await,
        Err(error) => tracing::error!(message = pdu.name(), %error, "N2 message not sent"),
    }
}
