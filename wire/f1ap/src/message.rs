//! The messages of TS 38.473 §9.2, one struct each, declared as tables (see `codec.rs`).

use types::{BitRate, Ncgi};

use crate::cause::Cause;
use crate::codec::{IeReader, IeWriter, messages};
use crate::ie::*;

/// What the codec needs of a message.
pub(crate) trait Message: Sized {
    /// The name TS 38.473 gives the message.
    const NAME: &'static str;
    /// Which message of the procedure it is.
    const DIRECTION: TriggeringMessage;
    /// Procedure code.
    const PROCEDURE_CODE: u8;
    /// Criticality of the procedure.
    const CRITICALITY: Criticality;

    /// Writes the IEs in the standard's order.
    fn write(&self, ies: &mut IeWriter) -> Result<(), per::EncodeError>;
    /// Reads the IEs; `None` when one that it cannot do without is missing, which `ies` has then noted.
    fn read(ies: &mut IeReader, r: &mut per::Reader<'_>) -> Result<Option<Self>, per::DecodeError>;
}

messages! {
    /// F1 SETUP REQUEST (§9.2.1.4).
    F1SetupRequest = "F1SetupRequest" InitiatingMessage 1 Reject {
        /// Pairs request and answer.
        req => transaction_id: TransactionId = 78 Reject,
        /// The DU.
        req => gnb_du_id: GnbDuId = 42 Reject,
        /// Its name.
        opt => gnb_du_name: Option<NodeName> = 45 Ignore,
        /// Its cells.
        items(43, 512) => served_cells: Vec<ServedCell> = 44 Reject,
        /// Its version of RRC.
        req => rrc_version: RrcVersion = 171 Reject,
    }
    /// F1 SETUP RESPONSE (§9.2.1.5).
    F1SetupResponse = "F1SetupResponse" SuccessfulOutcome 1 Reject {
        /// Pairs request and answer.
        req => transaction_id: TransactionId = 78 Reject,
        /// The CU's name.
        opt => gnb_cu_name: Option<NodeName> = 82 Ignore,
        /// Cells that the DU shall bring into service.
        items(4, 512) => cells_to_be_activated: Vec<CellToBeActivated> = 3 Reject,
        /// The CU's version of RRC.
        req => rrc_version: RrcVersion = 170 Reject,
    }
    /// F1 SETUP FAILURE (§9.2.1.6).
    F1SetupFailure = "F1SetupFailure" UnsuccessfulOutcome 1 Reject {
        /// Pairs request and answer.
        req => transaction_id: TransactionId = 78 Reject,
        /// Why.
        def => cause: Cause = 0 Ignore,
        /// When the DU may try again.
        opt => time_to_wait: Option<TimeToWait> = 77 Ignore,
        /// What was wrong with the message that this answers.
        opt => criticality_diagnostics: Option<CriticalityDiagnostics> = 7 Ignore,
    }
    /// RESET (§9.2.1.1), in either direction.
    Reset = "Reset" InitiatingMessage 0 Reject {
        /// Pairs request and answer.
        req => transaction_id: TransactionId = 78 Reject,
        /// Why.
        def => cause: Cause = 0 Ignore,
        /// What.
        req => reset_type: ResetType = 48 Reject,
    }
    /// RESET ACKNOWLEDGE (§9.2.1.2).
    ResetAcknowledge = "ResetAcknowledge" SuccessfulOutcome 0 Reject {
        /// Pairs request and answer.
        req => transaction_id: TransactionId = 78 Reject,
        /// The UEs of a partial reset.
        items(80, 65_536) => ue_associations: Vec<UeAssociation> = 81 Ignore,
        /// What was wrong with the message that this answers.
        opt => criticality_diagnostics: Option<CriticalityDiagnostics> = 7 Ignore,
    }
    /// ERROR INDICATION (§9.2.1.3), in either direction.
    ErrorIndication = "ErrorIndication" InitiatingMessage 2 Ignore {
        /// Pairs request and answer.
        req => transaction_id: TransactionId = 78 Reject,
        /// The CU's number of the UE concerned.
        opt => gnb_cu_ue_f1ap_id: Option<GnbCuUeF1apId> = 40 Ignore,
        /// The DU's number of the UE concerned.
        opt => gnb_du_ue_f1ap_id: Option<GnbDuUeF1apId> = 41 Ignore,
        /// Why.
        opt => cause: Option<Cause> = 0 Ignore,
        /// What was wrong with the message that this answers.
        opt => criticality_diagnostics: Option<CriticalityDiagnostics> = 7 Ignore,
    }
    /// INITIAL UL RRC MESSAGE TRANSFER (§9.2.3.1): the first message of a UE, on SRB0.
    InitialUlRrcMessageTransfer = "InitialULRRCMessageTransfer" InitiatingMessage 11 Ignore {
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// The cell.
        req => nr_cgi: Ncgi = 111 Reject,
        /// What the UE is called there.
        req => c_rnti: CRnti = 95 Reject,
        /// UL-CCCH-Message.
        req => rrc_container: Vec<u8> = 50 Reject,
        /// CellGroupConfig of TS 38.331; without it, the DU cannot serve the UE.
        opt => du_to_cu_rrc_container: Option<Vec<u8>> = 128 Reject,
        /// 0 if the DU does not send it.
        def => transaction_id: TransactionId = 78 Ignore,
        /// UL-DCCH-Message with RRCSetupComplete.
        opt => rrc_setup_complete: Option<Vec<u8>> = 241 Ignore,
    }
    /// DL RRC MESSAGE TRANSFER (§9.2.3.2).
    DlRrcMessageTransfer = "DLRRCMessageTransfer" InitiatingMessage 12 Ignore {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// The number of the same UE at the DU from before re-establishment.
        opt => old_gnb_du_ue_f1ap_id: Option<GnbDuUeF1apId> = 47 Reject,
        /// The SRB.
        req => srb_id: SrbId = 64 Reject,
        /// DL-CCCH-Message on SRB0, otherwise a PDCP PDU.
        req => rrc_container: Vec<u8> = 50 Reject,
        /// The DU reports delivery.
        opt => rrc_delivery_status_request: Option<RrcDeliveryStatusRequest> = 184 Ignore,
    }
    /// UL RRC MESSAGE TRANSFER (§9.2.3.3).
    UlRrcMessageTransfer = "ULRRCMessageTransfer" InitiatingMessage 13 Ignore {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// The SRB.
        req => srb_id: SrbId = 64 Reject,
        /// A PDCP PDU.
        req => rrc_container: Vec<u8> = 50 Reject,
    }
    /// UE CONTEXT SETUP REQUEST (§9.2.2.1).
    UeContextSetupRequest = "UEContextSetupRequest" InitiatingMessage 5 Reject {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE, if it has one.
        opt => gnb_du_ue_f1ap_id: Option<GnbDuUeF1apId> = 41 Ignore,
        /// The primary cell.
        req => sp_cell_id: Ncgi = 63 Reject,
        /// Its index.
        req => serv_cell_index: ServCellIndex = 107 Reject,
        /// Its uplink carriers.
        opt => sp_cell_ul_configured: Option<CellUlConfigured> = 96 Ignore,
        /// What the UE can do and shall measure.
        req => cu_to_du_rrc_information: CuToDuRrcInformation = 9 Reject,
        /// SRBs to set up.
        items(73, 8) => srbs: Vec<SrbToBeSetup> = 74 Reject,
        /// DRBs to set up.
        items(34, 64) => drbs: Vec<DrbToBeSetup> = 35 Reject,
        /// PDCP PDU with an RRC message for the UE on SRB1.
        opt => rrc_container: Option<Vec<u8>> = 50 Ignore,
        /// The UE's aggregate uplink bit rate of non-GBR flows; present when a DRB is.
        opt => ue_ambr_ul: Option<BitRate> = 158 Ignore,
        /// The DU reports delivery.
        opt => rrc_delivery_status_request: Option<RrcDeliveryStatusRequest> = 184 Ignore,
    }
    /// UE CONTEXT SETUP RESPONSE (§9.2.2.2).
    UeContextSetupResponse = "UEContextSetupResponse" SuccessfulOutcome 5 Reject {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// CellGroupConfig for the UE.
        req => du_to_cu_rrc_information: DuToCuRrcInformation = 39 Reject,
        /// What the UE is called.
        opt => c_rnti: Option<CRnti> = 95 Ignore,
        /// The CellGroupConfig is complete.
        opt => full_configuration: Option<FullConfiguration> = 94 Reject,
        /// DRBs that were set up.
        items(26, 64) => drbs: Vec<DrbSetup> = 27 Ignore,
        /// SRBs that were not.
        items(65, 8) => srbs_failed: Vec<SrbFailed> = 66 Ignore,
        /// DRBs that were not.
        items(14, 64) => drbs_failed: Vec<DrbFailed> = 15 Ignore,
        /// What was wrong with the message that this answers.
        opt => criticality_diagnostics: Option<CriticalityDiagnostics> = 7 Ignore,
    }
    /// UE CONTEXT SETUP FAILURE (§9.2.2.3).
    UeContextSetupFailure = "UEContextSetupFailure" UnsuccessfulOutcome 5 Reject {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE, if it has one.
        opt => gnb_du_ue_f1ap_id: Option<GnbDuUeF1apId> = 41 Ignore,
        /// Why.
        def => cause: Cause = 0 Ignore,
        /// What was wrong with the message that this answers.
        opt => criticality_diagnostics: Option<CriticalityDiagnostics> = 7 Ignore,
    }
    /// UE CONTEXT RELEASE REQUEST (§9.2.2.4): the DU asks.
    UeContextReleaseRequest = "UEContextReleaseRequest" InitiatingMessage 10 Ignore {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// Why.
        def => cause: Cause = 0 Ignore,
    }
    /// UE CONTEXT RELEASE COMMAND (§9.2.2.5).
    UeContextReleaseCommand = "UEContextReleaseCommand" InitiatingMessage 6 Reject {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// Why.
        def => cause: Cause = 0 Ignore,
        /// The last RRC message for the UE.
        opt => rrc_container: Option<Vec<u8>> = 50 Ignore,
        /// Its SRB; present when it is.
        opt => srb_id: Option<SrbId> = 64 Ignore,
    }
    /// UE CONTEXT RELEASE COMPLETE (§9.2.2.6).
    UeContextReleaseComplete = "UEContextReleaseComplete" SuccessfulOutcome 6 Reject {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// What was wrong with the message that this answers.
        opt => criticality_diagnostics: Option<CriticalityDiagnostics> = 7 Ignore,
    }
    /// UE CONTEXT MODIFICATION REQUEST (§9.2.2.7).
    UeContextModificationRequest = "UEContextModificationRequest" InitiatingMessage 7 Reject {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// What the UE can do and shall measure.
        opt => cu_to_du_rrc_information: Option<CuToDuRrcInformation> = 9 Reject,
        /// Whether the UE completed its reconfiguration.
        opt => rrc_reconfiguration_complete: Option<RrcReconfigurationCompleteIndicator> = 87 Ignore,
        /// PDCP PDU with an RRC message for the UE on SRB1.
        opt => rrc_container: Option<Vec<u8>> = 50 Reject,
        /// SRBs to set up.
        items(75, 8) => srbs: Vec<SrbToBeSetup> = 76 Reject,
        /// DRBs to set up.
        items(36, 64) => drbs: Vec<DrbToBeSetup> = 37 Reject,
        /// DRBs to modify.
        items(30, 64) => drbs_to_be_modified: Vec<DrbToBeModified> = 31 Reject,
        /// DRBs to release.
        items(32, 64) => drbs_to_be_released: Vec<DrbToBeReleased> = 33 Reject,
        /// The UE's aggregate uplink bit rate of non-GBR flows.
        opt => ue_ambr_ul: Option<BitRate> = 158 Ignore,
    }
    /// UE CONTEXT MODIFICATION RESPONSE (§9.2.2.8).
    UeContextModificationResponse = "UEContextModificationResponse" SuccessfulOutcome 7 Reject {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// CellGroupConfig for the UE, if it changes.
        opt => du_to_cu_rrc_information: Option<DuToCuRrcInformation> = 39 Reject,
        /// DRBs that were set up.
        items(28, 64) => drbs: Vec<DrbSetup> = 29 Ignore,
        /// DRBs that were modified.
        items(20, 64) => drbs_modified: Vec<DrbSetup> = 21 Ignore,
        /// SRBs that were not set up.
        items(67, 8) => srbs_failed: Vec<SrbFailed> = 68 Ignore,
        /// DRBs that were not set up.
        items(16, 64) => drbs_failed: Vec<DrbFailed> = 17 Ignore,
        /// DRBs that were not modified.
        items(12, 64) => drbs_failed_to_be_modified: Vec<DrbFailed> = 13 Ignore,
        /// What was wrong with the message that this answers.
        opt => criticality_diagnostics: Option<CriticalityDiagnostics> = 7 Ignore,
    }
    /// UE CONTEXT MODIFICATION FAILURE (§9.2.2.9).
    UeContextModificationFailure = "UEContextModificationFailure" UnsuccessfulOutcome 7 Reject {
        /// The CU's number of the UE.
        req => gnb_cu_ue_f1ap_id: GnbCuUeF1apId = 40 Reject,
        /// The DU's number of the UE.
        req => gnb_du_ue_f1ap_id: GnbDuUeF1apId = 41 Reject,
        /// Why.
        def => cause: Cause = 0 Ignore,
        /// What was wrong with the message that this answers.
        opt => criticality_diagnostics: Option<CriticalityDiagnostics> = 7 Ignore,
    }
    /// PAGING (§9.2.6).
    Paging = "Paging" InitiatingMessage 18 Ignore {
        /// When the UE listens.
        req => ue_identity_index: UeIdentityIndexValue = 117 Reject,
        /// The UE.
        req => paging_identity: PagingIdentity = 127 Reject,
        /// The UE's cycle.
        opt => paging_drx: Option<PagingDrx> = 114 Ignore,
        /// Where.
        items(112, 512) => cells: Vec<PagingCell> = 113 Ignore,
    }
}
