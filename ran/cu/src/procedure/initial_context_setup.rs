//! Initial Context Setup (TS 38.413 §8.3.1, TS 38.401 §8.1 steps 9 to 18): AS security, SRB2, and the sessions that the AMF names.

use f1ap::Pdu as F1;
use f1ap::ie::{CuToDuRrcInformation, DrbToBeSetup, ServCellIndex, SrbId, SrbToBeSetup};
use f1ap::message::{UeContextSetupRequest, UeContextSetupResponse};
use l2::keys::AsKeys;
use l2::security::{CipheringAlgorithm, IntegrityAlgorithm};
use ngap::cause::{Protocol, RadioNetwork};
use ngap::{Cause, UeSecurityCapabilities};
use rrc::bearer::{self, SecurityAlgorithmConfig};
use rrc::message::{SecurityConfigSmc, SecurityModeCommand};
use rrc::{RrcTransactionIdentifier, UlDcch};

use crate::counters;
use crate::ue::{F1_LIMIT, Interrupt, RRC_LIMIT, Step, Ue, unsendable};

/// What the DU and the UE answer to the first set-up.
enum Answer {
    Du(Box<F1>),
    Complete,
    Failure,
}

impl Ue {
    pub(crate) async fn initial_context_setup(
        &mut self,
        request: ngap::InitialContextSetupRequest,
    ) -> Result<(), Interrupt> {
        if self.keys.is_some() {
            let cause = Protocol::MessageNotCompatibleWithReceiverState;
            return self.context_failure(&request, cause.into()).await;
        }
        let capabilities = &request.ue_security_capabilities;
        let Some((ciphering, integrity)) = algorithms(&self.shared.config.ciphering(), capabilities) else {
            let cause = RadioNetwork::EncryptionAndOrIntegrityProtectionAlgorithmsNotSupported;
            return self.context_failure(&request, cause.into()).await;
        };
        let keys = self.keys.insert(AsKeys::derive(&request.security_key, ciphering, integrity)).clone();
        self.ue_ambr = request.ue_ambr;

        let (transaction, container) = self.security_mode_command(&keys, ciphering, integrity)?;
        let mut requested = self.open_sessions(request.pdu_sessions.clone(), &keys);
        let drbs = self.f1_drbs(&requested);
        self.set_up_at_du(drbs, container).await?;

        let mut response = None;
        let mut complete = false;
        while response.is_none() || !complete {
            let (what, limit) = match response {
                None => ("UE Context Setup Response", F1_LIMIT),
                Some(_) => ("SecurityModeComplete", RRC_LIMIT),
            };
            let answer = self.wait_for(what, limit, |step| match step {
                Step::F1(pdu)
                    if matches!(*pdu, F1::UeContextSetupResponse(_) | F1::UeContextSetupFailure(_)) =>
                {
                    Ok(Answer::Du(pdu))
                }
                Step::Rrc(UlDcch::SecurityModeComplete(m)) if m.rrc_transaction_identifier == transaction => {
                    Ok(Answer::Complete)
                }
                Step::Rrc(UlDcch::SecurityModeFailure(m)) if m.rrc_transaction_identifier == transaction => {
                    Ok(Answer::Failure)
                }
                other => Err(other),
            });
            match answer.await? {
                Answer::Complete => {
                    complete = true;
                    self.rrc.cipher(&keys);
                }
                Answer::Failure => {
                    counters::PROCEDURES.inc("initial_context_setup:security_mode_failure");
                    let cause = RadioNetwork::FailureInRadioInterfaceProcedure;
                    return self.give_up_context(&request, true, cause.into()).await;
                }
                Answer::Du(pdu) => match *pdu {
                    F1::UeContextSetupResponse(of_du) => response = Some(of_du),
                    _ => {
                        counters::PROCEDURES.inc("initial_context_setup:du_failure");
                        // The DU passes the command on in a set-up that succeeds.
                        let cause = RadioNetwork::RadioResourcesNotAvailable;
                        return self.give_up_context(&request, complete, cause.into()).await;
                    }
                },
            }
        }
        let Some(UeContextSetupResponse { drbs, srbs_failed, drbs_failed, du_to_cu_rrc_information, .. }) =
            response
        else {
            return Err(Interrupt::Failed("no response"));
        };
        if !srbs_failed.is_empty() {
            let cause = RadioNetwork::RadioResourcesNotAvailable;
            return self.give_up_context(&request, true, cause.into()).await;
        }
        let left_over = self.connect_drbs(&mut requested, &drbs, &drbs_failed);
        self.release_at_du(left_over).await?;

        let radio_bearers = bearer::RadioBearerConfig {
            srb_to_add_mod_list: vec![crate::procedure::reconfiguration::srb2()],
            drb_to_add_mod_list: self.rrc_drbs(&requested),
            ..Default::default()
        };
        let nas = Self::nas_of(&requested).into_iter().chain(request.nas_pdu.clone()).collect();
        let cell_group = du_to_cu_rrc_information.cell_group_config;
        // The UE's first message on SRB2 may overtake its RRCReconfigurationComplete on SRB1.
        self.rrc.add_srb2(&keys);
        self.reconfigure(radio_bearers, Some(cell_group.into()), nas).await?;

        let (pdu_sessions, failed) = self.session_items(&requested);
        counters::PROCEDURES.inc("initial_context_setup:ok");
        self.send_n2(ngap::InitialContextSetupResponse {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            pdu_sessions,
            failed,
            criticality_diagnostics: None,
        })
        .await
    }

    async fn set_up_at_du(&self, drbs: Vec<DrbToBeSetup>, container: Vec<u8>) -> Result<(), Interrupt> {
        let (gnb_cu_ue_f1ap_id, gnb_du_ue_f1ap_id) = self.f1_ids();
        self.send_f1(UeContextSetupRequest {
            gnb_cu_ue_f1ap_id,
            gnb_du_ue_f1ap_id: Some(gnb_du_ue_f1ap_id),
            sp_cell_id: self.cell,
            serv_cell_index: ServCellIndex(0),
            sp_cell_ul_configured: None,
            cu_to_du_rrc_information: CuToDuRrcInformation {
                cg_config_info: None,
                ue_capability_rat_container_list: None,
                meas_config: None,
                handover_preparation_information: None,
                cell_group_config: None,
            },
            srbs: vec![SrbToBeSetup { srb_id: SrbId(2), duplication_indication: None }],
            drbs,
            rrc_container: Some(container),
            ue_ambr_ul: self.ue_ambr.map(|ambr| ambr.uplink),
            rrc_delivery_status_request: None,
        })
        .await
    }

    /// The security mode command, signed and not ciphered (TS 33.501 §6.7.4). It goes to the UE in the DU's set-up.
    fn security_mode_command(
        &mut self,
        keys: &AsKeys,
        ciphering: CipheringAlgorithm,
        integrity: IntegrityAlgorithm,
    ) -> Result<(RrcTransactionIdentifier, Vec<u8>), Interrupt> {
        let transaction = self.rrc.next_transaction();
        self.rrc.sign(keys);
        let command = SecurityModeCommand {
            rrc_transaction_identifier: transaction,
            security_config_smc: SecurityConfigSmc {
                security_algorithm_config: SecurityAlgorithmConfig {
                    ciphering_algorithm: rrc_ciphering(ciphering),
                    integrity_prot_algorithm: Some(rrc_integrity(integrity)),
                },
            },
        };
        Ok((transaction, self.rrc.seal(1, command).map_err(unsendable)?))
    }

    /// Takes back what the set-up has begun, and tells the AMF. A UE that has not completed the security mode command goes on without
    /// protection, so that NAS passes until the AMF releases the UE or sets its context up anew.
    async fn give_up_context(
        &mut self,
        request: &ngap::InitialContextSetupRequest,
        command_reached_ue: bool,
        cause: Cause,
    ) -> Result<(), Interrupt> {
        if self.rrc.awaits_ciphering() {
            self.rrc.unprotect(command_reached_ue);
            self.keys = None;
        }
        for session in self.sessions.drain(..) {
            session.close(&self.shared);
        }
        self.context_failure(request, cause).await
    }

    /// INITIAL CONTEXT SETUP FAILURE (§8.3.1.3). The AMF releases the UE.
    async fn context_failure(
        &mut self,
        request: &ngap::InitialContextSetupRequest,
        cause: Cause,
    ) -> Result<(), Interrupt> {
        counters::PROCEDURES.inc("initial_context_setup:failed");
        let failed =
            request.pdu_sessions.iter().filter_map(|item| Self::failed_item(item.id, cause)).collect();
        self.send_n2(ngap::InitialContextSetupFailure {
            amf_ue_ngap_id: request.amf_ue_ngap_id,
            ran_ue_ngap_id: request.ran_ue_ngap_id,
            failed,
            cause,
            criticality_diagnostics: None,
        })
        .await
    }
}

/// The algorithms that both have: of ciphering the first that the configuration prefers; integrity protection is mandatory
/// (TS 33.501 §5.3.3).
fn algorithms(
    preferred: &[CipheringAlgorithm],
    capabilities: &UeSecurityCapabilities,
) -> Option<(CipheringAlgorithm, IntegrityAlgorithm)> {
    // The highest bit is algorithm 1 (TS 38.413 §9.3.1.86); algorithm 0 is always there.
    let has = |bits: u16, identity: u8| identity == 0 || bits >> (16 - identity) & 1 == 1;
    let integrity = IntegrityAlgorithm::Nia2;
    let ciphering = preferred.iter().copied().find(|nea| has(capabilities.nr_encryption, nea.identity()))?;
    has(capabilities.nr_integrity, integrity.identity()).then_some((ciphering, integrity))
}

fn rrc_ciphering(algorithm: CipheringAlgorithm) -> bearer::CipheringAlgorithm {
    match algorithm {
        CipheringAlgorithm::Nea0 => bearer::CipheringAlgorithm::Nea0,
        CipheringAlgorithm::Nea2 => bearer::CipheringAlgorithm::Nea2,
    }
}

fn rrc_integrity(algorithm: IntegrityAlgorithm) -> bearer::IntegrityProtAlgorithm {
    match algorithm {
        IntegrityAlgorithm::Nia0 => bearer::IntegrityProtAlgorithm::Nia0,
        IntegrityAlgorithm::Nia2 => bearer::IntegrityProtAlgorithm::Nia2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_algorithm_that_both_have_is_used() {
        let (nea0, nea2) = (CipheringAlgorithm::Nea0, CipheringAlgorithm::Nea2);
        // NEA1 and NEA2, NIA2.
        let able = UeSecurityCapabilities::from_nas(0b1110_0000, 0b1010_0000, 0, 0);
        let nia2 = IntegrityAlgorithm::Nia2;
        assert_eq!(algorithms(&[nea2, nea0], &able), Some((nea2, nia2)));
        assert_eq!(algorithms(&[nea0], &able), Some((nea0, nia2)));
        let without_aes = UeSecurityCapabilities::from_nas(0b1100_0000, 0b1010_0000, 0, 0);
        assert_eq!(algorithms(&[nea2, nea0], &without_aes), Some((nea0, nia2)));
        assert_eq!(algorithms(&[nea2], &without_aes), None);
        let without_integrity = UeSecurityCapabilities::from_nas(0b1010_0000, 0b1100_0000, 0, 0);
        assert_eq!(algorithms(&[nea2, nea0], &without_integrity), None);
    }
}
