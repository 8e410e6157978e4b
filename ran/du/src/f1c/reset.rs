//! Reset in both directions and Error Indication (TS 38.473 §8.2.1, §8.2.2).

use f1ap::cause::{Cause, Misc, RadioNetwork};
use f1ap::ie::{CriticalityDiagnostics, ResetType, TransactionId, UeAssociation};
use f1ap::message::{ErrorIndication, Reset, ResetAcknowledge};

use super::counters::{REJECTED, RELEASED};
use super::ue::release;
use super::{Commands, Machine, Output};

/// How long the CU may take to acknowledge.
const ACKNOWLEDGE_NS: u64 = 5_000_000_000;
/// How often a Reset is sent before the association counts as broken.
const ATTEMPTS: u32 = 3;
/// UEs that one Reset names; more go into the next one. The standard allows 65,536.
const MOST_UES: usize = 4_096;

/// The DU's own Resets.
#[derive(Debug, Default)]
pub(super) struct Resetting {
    /// The one that is under way.
    current: Option<Current>,
    /// All of the interface is to be reset next.
    all: bool,
    /// UEs of the next one.
    ues: Vec<UeAssociation>,
}

#[derive(Debug)]
struct Current {
    transaction: TransactionId,
    cause: Cause,
    reset_type: ResetType,
    by_ns: u64,
    attempts: u32,
}

impl Resetting {
    /// A UE that the next Reset names.
    pub(super) fn add(&mut self, ue: UeAssociation) {
        self.ues.push(ue);
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.by_ns)
    }

    /// What is to be reset next.
    fn next(&mut self) -> Option<(Cause, ResetType)> {
        if std::mem::take(&mut self.all) {
            self.ues.clear();
            return Some((Cause::Misc(Misc::OmIntervention), ResetType::F1Interface));
        }
        let count = self.ues.len().min(MOST_UES);
        let ues: Vec<UeAssociation> = self.ues.drain(..count).collect();
        let cause = Cause::RadioNetwork(RadioNetwork::UnknownOrInconsistentPairOfUeF1apId);
        (!ues.is_empty()).then_some((cause, ResetType::PartOfF1Interface(ues)))
    }
}

impl Machine {
    /// Resets the interface: UEs are released, and the CU forgets them.
    pub fn reset(&mut self, now_ns: u64, commands: &mut dyn Commands) {
        self.release_all("reset", commands);
        self.resetting.all = true;
        self.reset_is_due(now_ns);
    }

    /// Sends the next Reset, or the same one once more when it is not acknowledged.
    pub(super) fn reset_is_due(&mut self, now_ns: u64) {
        if !self.is_set_up() {
            // With the association the CU has lost all UEs.
            self.resetting = Resetting::default();
            return;
        }
        let mut current = match self.resetting.current.take() {
            Some(current) if current.by_ns > now_ns => {
                self.resetting.current = Some(current);
                return;
            }
            Some(current) if current.attempts >= ATTEMPTS => {
                tracing::warn!("the CU does not acknowledge a Reset");
                return self.outputs.push_back(Output::Disconnect);
            }
            Some(current) => current,
            None => {
                let Some((cause, reset_type)) = self.resetting.next() else { return };
                let transaction = self.transaction();
                Current { transaction, cause, reset_type, by_ns: 0, attempts: 0 }
            }
        };
        let reset = Reset {
            transaction_id: current.transaction,
            cause: current.cause,
            reset_type: current.reset_type.clone(),
        };
        current.by_ns = now_ns + ACKNOWLEDGE_NS;
        current.attempts += 1;
        self.resetting.current = Some(current);
        self.send(None, reset);
    }

    pub(super) fn reset_acknowledged(&mut self, acknowledge: &ResetAcknowledge, now_ns: u64) {
        let transaction = acknowledge.transaction_id;
        if self.resetting.current.as_ref().is_none_or(|current| current.transaction != transaction) {
            return REJECTED.inc("state");
        }
        self.resetting.current = None;
        self.reset_is_due(now_ns);
    }

    /// The CU has lost UEs: they are released on `uu`. The acknowledgement names those that the Reset named, known or not.
    pub(super) fn reset_by_cu(
        &mut self,
        reset: Reset,
        criticality_diagnostics: Option<CriticalityDiagnostics>,
        commands: &mut dyn Commands,
    ) {
        let ue_associations = match reset.reset_type {
            ResetType::F1Interface => {
                self.release_all("reset", commands);
                // The CU may give their numbers to others.
                self.resetting.ues.clear();
                Vec::new()
            }
            ResetType::PartOfF1Interface(ues) => {
                for ue in &ues {
                    self.release_named(ue, commands);
                }
                ues
            }
        };
        self.send(
            None,
            ResetAcknowledge {
                transaction_id: reset.transaction_id,
                ue_associations,
                criticality_diagnostics,
            },
        );
    }

    /// Releases the UE that has these numbers, all that are given.
    fn release_named(&mut self, named: &UeAssociation, commands: &mut dyn Commands) {
        let c_rnti = match (named.gnb_du_ue_f1ap_id, named.gnb_cu_ue_f1ap_id) {
            (Some(du), None) => self.by_du_id.get(&du.0),
            (None, Some(cu)) => self.by_cu_id.get(&cu.0),
            // The CU may have a number for the UE that we have not heard of yet.
            (Some(du), Some(cu)) => self.by_du_id.get(&du.0).filter(|c_rnti| {
                self.ues.get(*c_rnti).and_then(|ue| ue.cu()).is_none_or(|known| known == cu.0)
            }),
            (None, None) => None,
        };
        let Some(c_rnti) = c_rnti.copied() else { return REJECTED.inc("unknown_ue") };
        RELEASED.inc("reset");
        self.forget(c_rnti);
        release(commands, c_rnti, None);
    }

    /// The CU could not use a message of ours. If it does not know a UE, the UE is released here (§10.6).
    pub(super) fn error_indication(&mut self, indication: &ErrorIndication, commands: &mut dyn Commands) {
        let cause = indication.cause.unwrap_or_default();
        tracing::warn!(%cause, diagnostics = ?indication.criticality_diagnostics, "the CU indicates an error");
        let unknown = matches!(
            cause,
            Cause::RadioNetwork(
                RadioNetwork::UnknownOrAlreadyAllocatedGnbCuUeF1apId
                    | RadioNetwork::UnknownOrAlreadyAllocatedGnbDuUeF1apId
                    | RadioNetwork::UnknownOrInconsistentPairOfUeF1apId
            )
        );
        if unknown {
            let named = UeAssociation {
                gnb_cu_ue_f1ap_id: indication.gnb_cu_ue_f1ap_id,
                gnb_du_ue_f1ap_id: indication.gnb_du_ue_f1ap_id,
            };
            self.release_named(&named, commands);
        }
    }
}
