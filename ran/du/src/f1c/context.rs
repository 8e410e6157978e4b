//! UE Context Setup, Modification and Release (TS 38.473 §8.3.1, §8.3.3, §8.3.4).

use f1ap::cause::{Cause, RadioNetwork};
use f1ap::ie::{
    CRnti, CriticalityDiagnostics, DrbId, DrbSetup, DuToCuRrcInformation, GnbDuUeF1apId, SrbFailed,
    SrbToBeSetup,
};
use f1ap::message::{
    UeContextModificationFailure, UeContextModificationRequest, UeContextModificationResponse,
    UeContextReleaseCommand, UeContextReleaseComplete, UeContextSetupFailure, UeContextSetupRequest,
    UeContextSetupResponse,
};

use super::cell::CellGroup;
use super::counters::{REJECTED, RELEASED};
use super::drb;
use super::rrc_transfer::{SRB1, SRB2};
use super::ue::{State, release};
use super::{Commands, Machine};

impl Machine {
    pub(super) fn context_setup(
        &mut self,
        request: UeContextSetupRequest,
        criticality_diagnostics: Option<CriticalityDiagnostics>,
        now_ns: u64,
        commands: &mut dyn Commands,
    ) {
        let (cu, du) = (request.gnb_cu_ue_f1ap_id, request.gnb_du_ue_f1ap_id);
        let c_rnti = match self.ue_to_set_up(&request, now_ns) {
            Ok(c_rnti) => c_rnti,
            Err(cause) => {
                let failure = UeContextSetupFailure {
                    gnb_cu_ue_f1ap_id: cu,
                    gnb_du_ue_f1ap_id: du,
                    cause,
                    criticality_diagnostics,
                };
                return self.send(du.map(|du| du.0), failure);
            }
        };
        let id = self.ues.get(&c_rnti).map_or(0, |ue| ue.id);
        let mut group = CellGroup::default();
        let srbs_failed = self.set_up_srbs(c_rnti, &request.srbs, &mut group);
        let drbs = self.set_up_drbs(c_rnti, &request.drbs, commands);
        add_drbs(&mut group, &drbs.done);
        let response = UeContextSetupResponse {
            gnb_cu_ue_f1ap_id: cu,
            gnb_du_ue_f1ap_id: GnbDuUeF1apId(id),
            du_to_cu_rrc_information: rrc_information(&group),
            c_rnti: Some(CRnti(c_rnti)),
            full_configuration: None,
            drbs: drbs.done,
            srbs_failed,
            drbs_failed: drbs.failed,
            criticality_diagnostics,
        };
        self.send(Some(id), response);
        if let Some(message) = request.rrc_container {
            self.send_down(c_rnti, SRB1, message, now_ns, commands);
        }
    }

    /// The UE of a set-up request, unless it cannot be served.
    fn ue_to_set_up(&mut self, request: &UeContextSetupRequest, now_ns: u64) -> Result<u16, Cause> {
        if request.sp_cell_id != self.cell.ncgi() {
            return Err(Cause::RadioNetwork(RadioNetwork::CellNotAvailable));
        }
        // A UE that is to come by handover would need a random access of its own kind.
        let no_handover = Cause::RadioNetwork(RadioNetwork::NoRadioResourcesAvailable);
        let du = request.gnb_du_ue_f1ap_id.ok_or(no_handover)?;
        let c_rnti = self.find(request.gnb_cu_ue_f1ap_id, du, now_ns)?;
        self.refuse_leaving(c_rnti)?;
        Ok(c_rnti)
    }

    /// A UE whose release the DU has asked for gets nothing new.
    fn refuse_leaving(&self, c_rnti: u16) -> Result<(), Cause> {
        match self.ues.get(&c_rnti).map(|ue| &ue.state) {
            Some(State::Connected { .. }) => Ok(()),
            _ => {
                REJECTED.inc("state");
                Err(Cause::RadioNetwork(RadioNetwork::InteractionWithOtherProcedure))
            }
        }
    }

    /// Sets SRBs up; returns those that are not. SRB1 is there since the UE's first message.
    fn set_up_srbs(&mut self, c_rnti: u16, srbs: &[SrbToBeSetup], group: &mut CellGroup) -> Vec<SrbFailed> {
        let mut failed = Vec::new();
        let Some(ue) = self.ues.get_mut(&c_rnti) else { return failed };
        for srb in srbs {
            match srb.srb_id.0 {
                SRB1 => {}
                SRB2 if ue.srb2 => {}
                SRB2 => {
                    ue.srb2 = true;
                    group.add_srb(SRB2);
                }
                // SRB0 is not set up; SRB3 is of a second cell group.
                _ => {
                    let cause = Some(Cause::RadioNetwork(RadioNetwork::NoRadioResourcesAvailable));
                    failed.push(SrbFailed { srb_id: srb.srb_id, cause });
                }
            }
        }
        failed
    }

    pub(super) fn context_modification(
        &mut self,
        request: UeContextModificationRequest,
        criticality_diagnostics: Option<CriticalityDiagnostics>,
        now_ns: u64,
        commands: &mut dyn Commands,
    ) {
        let (cu, du) = (request.gnb_cu_ue_f1ap_id, request.gnb_du_ue_f1ap_id);
        let found = self.find(cu, du, now_ns);
        let c_rnti = match found.and_then(|c_rnti| self.refuse_leaving(c_rnti).map(|()| c_rnti)) {
            Ok(c_rnti) => c_rnti,
            Err(cause) => {
                let failure = UeContextModificationFailure {
                    gnb_cu_ue_f1ap_id: cu,
                    gnb_du_ue_f1ap_id: du,
                    cause,
                    criticality_diagnostics,
                };
                return self.send(Some(du.0), failure);
            }
        };
        let mut group = CellGroup::default();
        let released: Vec<DrbId> = request.drbs_to_be_released.iter().map(|drb| drb.drb_id).collect();
        // First what goes, so that its number can be used anew.
        for gone in self.release_drbs(c_rnti, &released, commands) {
            group.release(drb::lcid(gone));
        }
        let modified = self.modify_drbs(c_rnti, &request.drbs_to_be_modified, &released, commands);
        let srbs_failed = self.set_up_srbs(c_rnti, &request.srbs, &mut group);
        let drbs = self.set_up_drbs(c_rnti, &request.drbs, commands);
        add_drbs(&mut group, &drbs.done);
        let response = UeContextModificationResponse {
            gnb_cu_ue_f1ap_id: cu,
            gnb_du_ue_f1ap_id: du,
            du_to_cu_rrc_information: (!group.is_empty()).then(|| rrc_information(&group)),
            drbs: drbs.done,
            drbs_modified: modified.done,
            srbs_failed,
            drbs_failed: drbs.failed,
            drbs_failed_to_be_modified: modified.failed,
            criticality_diagnostics,
        };
        self.send(Some(du.0), response);
        if let Some(message) = request.rrc_container {
            self.send_down(c_rnti, SRB1, message, now_ns, commands);
        }
    }

    pub(super) fn context_release(
        &mut self,
        command: UeContextReleaseCommand,
        criticality_diagnostics: Option<CriticalityDiagnostics>,
        now_ns: u64,
        commands: &mut dyn Commands,
    ) {
        let (cu, du) = (command.gnb_cu_ue_f1ap_id, command.gnb_du_ue_f1ap_id);
        let c_rnti = match self.find(cu, du, now_ns) {
            Ok(c_rnti) => c_rnti,
            Err(cause) => return self.indicate_error(cause, Some(cu), Some(du), None),
        };
        let reachable = self.forget(c_rnti).is_some_and(|ue| match ue.state {
            State::Leaving { reachable, .. } => reachable,
            _ => true,
        });
        RELEASED.inc("by_cu");
        let srb = command.srb_id.map_or(SRB1, |srb| srb.0);
        let last = command.rrc_container.filter(|_| reachable).map(|message| (srb, message));
        release(commands, c_rnti, last);
        let complete = UeContextReleaseComplete {
            gnb_cu_ue_f1ap_id: cu,
            gnb_du_ue_f1ap_id: du,
            criticality_diagnostics,
        };
        self.send(Some(du.0), complete);
    }
}

fn add_drbs(group: &mut CellGroup, drbs: &[DrbSetup]) {
    for drb in drbs {
        group.add_drb(drb.drb_id.0, drb::lcid(drb.drb_id));
    }
}

fn rrc_information(group: &CellGroup) -> DuToCuRrcInformation {
    DuToCuRrcInformation {
        cell_group_config: group.encode().unwrap_or_default(),
        meas_gap_config: None,
        requested_p_max_fr1: None,
    }
}
