//! Peers that started, or started again (TS 23.527 §6.2): what the AMF's UEs have with them may be lost.
//!
//! Every UE hears of it and asks the peer: an SMF for its sessions (`session_loss.rs`), a PCF for its policy association
//! (`policy_association.rs`).

use std::sync::Arc;
use std::time::Duration;

use sbi::ApiRoot;
use sbi::model::nrf::{NfProfile, NfType};
use sbi::op::pcf::NPCF_AM;
use sbi::op::smf::NSMF_PDUSESSION;
use tokio::sync::mpsc;

use crate::context::Amf;
use crate::counters;
use crate::event::UeEvent;

/// UEs that are told at once, and the pause before the next: neither the peer, which each asks, nor the radio side is
/// to be flooded.
const BATCH: usize = 50;
const PAUSE: Duration = Duration::from_millis(50);

/// Tells every UE of each peer that started, for as long as the AMF runs.
pub(crate) async fn notify_ues(amf: Arc<Amf>, mut started: mpsc::Receiver<NfProfile>) {
    while let Some(profile) = started.recv().await {
        let (service, event): (_, fn(ApiRoot) -> UeEvent) = match profile.nf_type {
            NfType::Smf => (NSMF_PDUSESSION.name, UeEvent::SmfStarted),
            NfType::Pcf => (NPCF_AM.name, UeEvent::PcfStarted),
            _ => continue,
        };
        for peer in sbi::api_roots(&profile, service) {
            for batch in amf.ues.all().chunks(BATCH) {
                for ue in batch {
                    if let Err(event) = ue.send(event(peer.clone())) {
                        counters::UE_QUEUE_FULL.inc(event.name());
                    }
                }
                net::time::sleep(PAUSE).await;
            }
        }
    }
}
