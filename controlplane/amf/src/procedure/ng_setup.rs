//! NG Setup and RAN Configuration Update (TS 38.413 §8.7.1, §8.7.2).
//!
//! A gNB is accepted if it broadcasts our PLMN and serves one of our tracking areas
//! with one of our slices. A gNB that repeats NG Setup, on this association or another, starts anew:
//! its UEs become CM-IDLE. If an identity is in use on an association from another address, the new
//! association gets it only when the old one no longer answers an SCTP heartbeat: knowing a gNB's
//! identity is not enough to replace it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ngap::cause::{Misc, RadioNetwork};
use ngap::{
    Cause, GlobalRanNodeId, NgSetupFailure, NgSetupRequest, NgSetupResponse, Pdu, PlmnSlices,
    RanConfigurationUpdate, RanConfigurationUpdateAcknowledge, RanConfigurationUpdateFailure, SupportedTa,
    TimeToWait,
};

use crate::context::Amf;
use crate::counters;
use crate::gnb::{End, Gnb, GnbInfo, LinkDown};

/// How long a refused gNB waits before it tries again: long enough not to load us, short enough that a
/// corrected configuration takes effect while the operator watches.
const RETRY: TimeToWait = TimeToWait::V10s;
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// How long an association may take to answer the heartbeat before another association gets its
/// identity.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(3);

/// NG Setup.
pub(crate) async fn ng_setup(amf: &Arc<Amf>, gnb: &Arc<Gnb>, request: NgSetupRequest) {
    if let Err(cause) = check(amf, &request.supported_tas) {
        counters::NG_SETUP_FAILURES.inc(&cause.to_string());
        // Wrong tracking areas or PLMNs are the most frequent mistake with a new gNB, and NGAP has no
        // cause for it, so the log has the details.
        let theirs: Vec<String> = request.supported_tas.iter().map(broadcast).collect();
        tracing::warn!(
            gnb = %request.global_ran_node_id, peer = %gnb.peer, %cause,
            theirs = theirs.join(", "), plmn = %amf.config.plmn, tac = ?amf.config.tac,
            "NG Setup refused: the gNB serves nothing that amf.tac, plmn and slices name"
        );
        return refuse(amf, gnb, cause).await;
    }
    let id = request.global_ran_node_id;
    let number = match id {
        GlobalRanNodeId::Gnb { id, .. } => Some(id.value()),
        _ => None,
    };
    if !amf.config.allows_gnb(gnb.peer.ip(), number) {
        counters::NG_SETUP_FAILURES.inc("gnb_not_allowed");
        tracing::warn!(gnb = %id, peer = %gnb.peer, "NG Setup refused: amf.allowed_gnbs has no such gNB");
        return refuse(amf, gnb, Misc::Unspecified.into()).await;
    }
    // NG Setup erases the UE contexts of both sides (TS 38.413 §8.7.1.1) …
    gnb.lose_all(LinkDown::Reset);
    // … also those of an association that the gNB has lost and we still believe in.
    while let Some(old) = amf.gnb_with_id(&id, gnb.key) {
        if old.peer.ip() != gnb.peer.ip() && old.is_alive(HEARTBEAT_LIMIT).await {
            counters::NG_SETUP_FAILURES.inc("identity_in_use");
            tracing::warn!(gnb = %id, peer = %gnb.peer, used_by = %old.peer, "NG Setup refused: the identity is in use");
            return refuse(amf, gnb, Misc::Unspecified.into()).await;
        }
        tracing::info!(gnb = %id, "gNB is back on a new association");
        old.end(End::Replaced);
        old.lose_all(LinkDown::AssociationLost);
    }
    tracing::info!(gnb = %id, name = request.ran_node_name, "NG Setup");
    gnb.set_info(Some(GnbInfo {
        id,
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

/// NG Setup Failure. The gNB may try again on this association after the time in the message.
async fn refuse(amf: &Amf, gnb: &Gnb, cause: Cause) {
    let timer = Duration::from_millis(amf.config.timers.ng_setup_ms);
    gnb.set_setup_by(net::time::now() + RETRY_AFTER + timer);
    let failure = NgSetupFailure { cause, time_to_wait: Some(RETRY), criticality_diagnostics: None };
    send(gnb, failure.into()).await;
}

/// RAN Configuration Update: the new values are checked like those of NG Setup.
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

/// Whether a gNB with these tracking areas can be served; the error is the cause of TS 38.413 §8.7.1.3.
fn check(amf: &Amf, tas: &[SupportedTa]) -> Result<(), Cause> {
    let ours = |broadcast: &&PlmnSlices| broadcast.plmn == amf.config.plmn;
    if !tas.iter().any(|ta| ta.broadcast_plmns.iter().any(|plmn| ours(&plmn))) {
        return Err(Misc::UnknownPlmnOrSnpn.into());
    }
    let mut areas = tas.iter().filter(|ta| amf.config.tac.contains(&ta.tac)).peekable();
    if areas.peek().is_none() {
        // The standard has no cause for a foreign tracking area; other implementations use this one.
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

/// A tracking area for the log: `TAC 000001 (999-70)`.
fn broadcast(ta: &SupportedTa) -> String {
    let plmns: Vec<String> = ta.broadcast_plmns.iter().map(|broadcast| broadcast.plmn.to_string()).collect();
    format!("TAC {} ({})", ta.tac, plmns.join(" "))
}

async fn send(gnb: &Gnb, pdu: Pdu) {
    match pdu.encode() {
        // If sending fails, the association is ending, which its task notices by itself.
        Ok(octets) => _ = gnb.send_common(octets).await,
        Err(error) => tracing::error!(message = pdu.name(), %error, "N2 message not sent"),
    }
}
