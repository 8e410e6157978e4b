//! The task that reads the association, and gives each message to the one it is for.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use net::sctp;
use ngap::{Pdu, ResetType};
use tokio::sync::{mpsc, watch};

use crate::{Gnb, Shared};

/// What the task owns.
pub(crate) struct Reader {
    pub(crate) shared: Weak<Shared>,
    pub(crate) interface: mpsc::Sender<Pdu>,
    pub(crate) closing: watch::Sender<bool>,
}

/// Completes when the gNB is to end: [`Gnb::shutdown`] was called or the last handle was dropped.
async fn stop_requested(stopping: &mut watch::Receiver<bool>) {
    // The result holds a lock, so it must not be kept across an await.
    let _ = stopping.wait_for(|stop| *stop).await;
}

impl Reader {
    pub(crate) async fn run(self, mut association: sctp::Association, mut stopping: watch::Receiver<bool>) {
        loop {
            let event = tokio::select! {
                event = association.recv() => event,
                // Completes also when the last handle is dropped.
                () = stop_requested(&mut stopping) => {
                    association.shutdown().await;
                    break;
                }
            };
            let Some(shared) = self.shared.upgrade() else { break };
            match event {
                Some(sctp::Event::Message(message)) => self.message(&shared, &message.payload).await,
                // The AMF lost its state, and with it NG Setup and every UE: only a new association begins anew.
                Some(sctp::Event::Restarted) => {
                    association.abort();
                    break;
                }
                Some(sctp::Event::Closed { reason }) => {
                    tracing::debug!(%reason, gnb = shared.config.id, "N2 association ended");
                    break;
                }
                None => break,
            }
        }
        // First the flag, so that no UE is added after all have been removed.
        let _ = self.closing.send(true);
        if let Some(shared) = self.shared.upgrade() {
            // Dropping its queue tells each UE that its connection is lost.
            shared.ues().clear();
        }
    }

    async fn message(&self, shared: &Arc<Shared>, payload: &[u8]) {
        let pdu = match Pdu::decode(payload) {
            Ok(decoded) => decoded.pdu,
            Err(error) => {
                shared.undecodable.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(%error, "PDU from the AMF rejected");
                if let Some(reply) = error.reply() {
                    let _ = Gnb { shared: Arc::clone(shared) }.send(reply).await;
                }
                return;
            }
        };
        if let Some(queue) = shared.queue_of(&pdu) {
            if queue.try_send(pdu).is_err() {
                shared.lost.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        if let Pdu::NgReset(reset) = &pdu {
            self.reset(shared, &reset.reset_type).await;
        }
        if self.interface.try_send(pdu).is_err() {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// NG Reset by the AMF (TS 38.413 §8.7.4.2.1): forget the UEs, acknowledge.
    async fn reset(&self, shared: &Arc<Shared>, reset_type: &ResetType) {
        let connections = match reset_type {
            ResetType::NgInterface => {
                shared.ues().clear();
                Vec::new()
            }
            ResetType::PartOfNgInterface(connections) => {
                let mut ues = shared.ues();
                for connection in connections {
                    match (connection.ran_ue_ngap_id, connection.amf_ue_ngap_id) {
                        (Some(ran), _) => drop(ues.remove(&ran)),
                        (None, Some(amf)) => ues.retain(|_, entry| entry.amf_ue_ngap_id != Some(amf)),
                        (None, None) => {}
                    }
                }
                connections.clone()
            }
        };
        let acknowledge = ngap::NgResetAcknowledge { connections, criticality_diagnostics: None };
        let _ = Gnb { shared: Arc::clone(shared) }.send(acknowledge).await;
    }
}
