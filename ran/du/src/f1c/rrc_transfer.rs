//! RRC between UE and CU: Initial UL, UL and DL RRC Message Transfer (TS 38.473 §8.4).

use f1ap::cause::{Cause, Protocol, RadioNetwork};
use f1ap::ie::{CRnti, GnbCuUeF1apId, GnbDuUeF1apId, SrbId};
use f1ap::message::{DlRrcMessageTransfer, InitialUlRrcMessageTransfer, UlRrcMessageTransfer};

use super::cell::CellGroup;
use super::counters::{RELEASED, RRC_DROPPED};
use super::ue::{State, release};
use super::{Commands, Machine};
use crate::control::Refused;

/// Signalling bearers, and their logical channels.
pub(super) const SRB0: u8 = 0;
pub(super) const SRB1: u8 = 1;
pub(super) const SRB2: u8 = 2;

impl Machine {
    /// A message of a UE.
    pub(super) fn ul_rrc(
        &mut self,
        c_rnti: u16,
        lcid: u8,
        sdu: Vec<u8>,
        now_ns: u64,
        commands: &mut dyn Commands,
    ) {
        if !self.ues.contains_key(&c_rnti) {
            RRC_DROPPED.inc("unknown_ue");
            return release(commands, c_rnti, None);
        }
        if lcid == SRB0 {
            return self.srb0(c_rnti, sdu, now_ns, commands);
        }
        let Some(ue) = self.ues.get_mut(&c_rnti) else { return };
        let has_bearer = lcid == SRB1 || lcid == SRB2 && ue.srb2;
        let (Some(cu), true) = (ue.cu(), has_bearer) else { return RRC_DROPPED.inc("no_bearer") };
        if let State::Connected { srb0, .. } = &mut ue.state {
            // The UE has got what was sent on SRB0.
            *srb0 = None;
        }
        let id = ue.id;
        let transfer = UlRrcMessageTransfer {
            gnb_cu_ue_f1ap_id: GnbCuUeF1apId(cu),
            gnb_du_ue_f1ap_id: GnbDuUeF1apId(id),
            srb_id: SrbId(lcid),
            rrc_container: sdu,
        };
        self.send(Some(id), transfer);
    }

    /// A message of a UE on SRB0. The first one goes to the CU; the same one once more means that the answer is missing.
    fn srb0(&mut self, c_rnti: u16, sdu: Vec<u8>, now_ns: u64, commands: &mut dyn Commands) {
        let Some(ue) = self.ues.get(&c_rnti) else { return };
        match &ue.state {
            State::Accessed => self.initial_ul_rrc(c_rnti, ue.id, sdu, now_ns),
            State::Waiting { first } if *first == sdu => RRC_DROPPED.inc("repeated"),
            State::Connected { srb0: Some(srb0), .. } if srb0.first == sdu => {
                RRC_DROPPED.inc("repeated");
                if let Some(answer) = srb0.answer.clone() {
                    // If this fails, the UE repeats its message once more.
                    let _ = commands.send_rrc(c_rnti, SRB0, answer);
                }
            }
            _ => RRC_DROPPED.inc("state"),
        }
    }

    fn initial_ul_rrc(&mut self, c_rnti: u16, id: u32, sdu: Vec<u8>, now_ns: u64) {
        let mut group = CellGroup::default();
        group.add_srb(SRB1);
        let transfer = InitialUlRrcMessageTransfer {
            gnb_du_ue_f1ap_id: GnbDuUeF1apId(id),
            nr_cgi: self.cell.ncgi(),
            c_rnti: CRnti(c_rnti),
            rrc_container: sdu.clone(),
            // Without it the CU rejects the UE.
            du_to_cu_rrc_container: group.encode(),
            transaction_id: self.transaction(),
            rrc_setup_complete: None,
        };
        self.send(Some(id), transfer);
        self.set_state(c_rnti, State::Waiting { first: sdu }, now_ns);
    }

    /// A message of the CU for a UE.
    pub(super) fn dl_rrc(
        &mut self,
        transfer: DlRrcMessageTransfer,
        now_ns: u64,
        commands: &mut dyn Commands,
    ) {
        let (cu, du) = (transfer.gnb_cu_ue_f1ap_id, transfer.gnb_du_ue_f1ap_id);
        let c_rnti = match self.find(cu, du, now_ns) {
            Ok(c_rnti) => c_rnti,
            Err(cause) => return self.indicate_error(cause, Some(cu), Some(du), None),
        };
        if let Some(old) = transfer.old_gnb_du_ue_f1ap_id {
            self.release_old(old, c_rnti, commands);
        }
        let srb = transfer.srb_id.0;
        let has_bearer = srb <= SRB1 || srb == SRB2 && self.ues.get(&c_rnti).is_some_and(|ue| ue.srb2);
        if !has_bearer {
            RRC_DROPPED.inc("no_bearer");
            let cause = Cause::Protocol(Protocol::SemanticError);
            return self.indicate_error(cause, Some(cu), Some(du), None);
        }
        if srb == SRB0
            && let Some(ue) = self.ues.get_mut(&c_rnti)
            && let State::Connected { srb0: Some(srb0), .. } = &mut ue.state
        {
            srb0.answer = Some(transfer.rrc_container.clone());
        }
        self.send_down(c_rnti, srb, transfer.rrc_container, now_ns, commands);
    }

    /// Sends an RRC message to a UE.
    pub(super) fn send_down(
        &mut self,
        c_rnti: u16,
        srb: u8,
        message: Vec<u8>,
        now_ns: u64,
        commands: &mut dyn Commands,
    ) {
        let Err(error) = commands.send_rrc(c_rnti, srb, message) else { return };
        tracing::debug!(c_rnti, srb, %error, "an RRC message is not sent");
        let cause = match error {
            Refused::UnknownUe => RadioNetwork::RlFailureOthers,
            // What waits on the bearer does not reach the UE.
            Refused::Full => RadioNetwork::RlFailureRlc,
            _ => return RRC_DROPPED.inc("refused"),
        };
        RRC_DROPPED.inc("unreachable");
        self.request_release(c_rnti, Cause::RadioNetwork(cause), false, now_ns, commands);
    }

    /// A UE that has come back by re-establishment has no use for its former context (§8.4.2.2).
    fn release_old(&mut self, old: GnbDuUeF1apId, c_rnti: u16, commands: &mut dyn Commands) {
        let Some(old) = self.by_du_id.get(&old.0).copied().filter(|old| *old != c_rnti) else { return };
        RELEASED.inc("came_back");
        self.forget(old);
        release(commands, old, None);
    }
}
