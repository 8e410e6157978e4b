//! Messages about the NG interface itself (TS 38.413 §8.7): set-up, configuration, reset, errors.

use crate::cause::Cause;
use crate::ie::*;
use crate::message::messages;
use types::STmsi;

messages! {
    /// NG SETUP REQUEST (§9.2.6.1): a gNB introduces itself.
    NgSetupRequest = NGSetupRequest {
        /// The gNB's identity.
        global_ran_node_id: GlobalRanNodeId = GlobalRANNodeID reject req,
        /// A name for people.
        ran_node_name: Option<String> = RANNodeName ignore opt,
        /// Tracking areas, PLMNs and slices it serves.
        supported_tas: Vec<SupportedTa> = SupportedTAList reject req,
        /// Paging cycle of UEs that have none of their own.
        default_paging_drx: PagingDrx = DefaultPagingDRX ignore def,
    }

    /// NG SETUP RESPONSE (§9.2.6.2).
    NgSetupResponse = NGSetupResponse {
        /// A name for people, unique in the AMF set.
        amf_name: String = AMFName reject req,
        /// The AMF's identities.
        served_guamis: Vec<ServedGuami> = ServedGUAMIList reject req,
        /// Weight among the AMFs of the set, 0–255.
        relative_amf_capacity: u8 = RelativeAMFCapacity ignore def,
        /// PLMNs and slices the AMF serves.
        plmn_support: Vec<PlmnSlices> = PLMNSupportList reject req,
        /// What was at fault in the request.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// NG SETUP FAILURE (§9.2.6.3).
    NgSetupFailure = NGSetupFailure {
        /// Why.
        cause: Cause = Cause ignore def,
        /// When to try again, if at all.
        time_to_wait: Option<TimeToWait> = TimeToWait ignore opt,
        /// What was at fault in the request.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// RAN CONFIGURATION UPDATE (§9.2.6.4): what changed in the gNB; absent fields did not.
    RanConfigurationUpdate = RANConfigurationUpdate {
        /// New name.
        ran_node_name: Option<String> = RANNodeName ignore opt,
        /// New complete list of tracking areas.
        supported_tas: Option<Vec<SupportedTa>> = SupportedTAList reject opt,
        /// New default paging cycle.
        default_paging_drx: Option<PagingDrx> = DefaultPagingDRX ignore opt,
        /// The gNB's identity, when it uses several associations.
        global_ran_node_id: Option<GlobalRanNodeId> = GlobalRANNodeID ignore opt,
    }

    /// RAN CONFIGURATION UPDATE ACKNOWLEDGE (§9.2.6.5).
    RanConfigurationUpdateAcknowledge = RANConfigurationUpdateAcknowledge {
        /// What was at fault in the update.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// RAN CONFIGURATION UPDATE FAILURE (§9.2.6.6).
    RanConfigurationUpdateFailure = RANConfigurationUpdateFailure {
        /// Why.
        cause: Cause = Cause ignore def,
        /// When to try again, if at all.
        time_to_wait: Option<TimeToWait> = TimeToWait ignore opt,
        /// What was at fault in the update.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// AMF CONFIGURATION UPDATE (§9.2.6.7): what changed in the AMF; absent fields did not.
    AmfConfigurationUpdate = AMFConfigurationUpdate {
        /// New name.
        amf_name: Option<String> = AMFName reject opt,
        /// New identities.
        served_guamis: Option<Vec<ServedGuami>> = ServedGUAMIList reject opt,
        /// New weight.
        relative_amf_capacity: Option<u8> = RelativeAMFCapacity ignore opt,
        /// New PLMNs and slices.
        plmn_support: Option<Vec<PlmnSlices>> = PLMNSupportList reject opt,
    }

    /// AMF CONFIGURATION UPDATE ACKNOWLEDGE (§9.2.6.8).
    AmfConfigurationUpdateAcknowledge = AMFConfigurationUpdateAcknowledge {
        /// What was at fault in the update.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// AMF CONFIGURATION UPDATE FAILURE (§9.2.6.9).
    AmfConfigurationUpdateFailure = AMFConfigurationUpdateFailure {
        /// Why.
        cause: Cause = Cause ignore def,
        /// When to try again, if at all.
        time_to_wait: Option<TimeToWait> = TimeToWait ignore opt,
        /// What was at fault in the update.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// NG RESET (§9.2.6.11), either direction: forget all or some UE-associated connections.
    NgReset = NGReset {
        /// Why.
        cause: Cause = Cause ignore def,
        /// Which connections.
        reset_type: ResetType = ResetType reject req,
    }

    /// NG RESET ACKNOWLEDGE (§9.2.6.12).
    NgResetAcknowledge = NGResetAcknowledge {
        /// The connections of a partial reset, in its order; none after a reset of the interface.
        connections: Vec<UeConnection> = UE_associatedLogicalNG_connectionList ignore list,
        /// What was at fault in the reset.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
    }

    /// ERROR INDICATION (§9.2.6.13), either direction. Cause or diagnostics is present.
    ErrorIndication = ErrorIndication {
        /// The AMF's identity of the UE concerned, if any.
        amf_ue_ngap_id: Option<AmfUeNgapId> = AMF_UE_NGAP_ID ignore opt,
        /// The gNB's identity of the UE concerned, if any.
        ran_ue_ngap_id: Option<RanUeNgapId> = RAN_UE_NGAP_ID ignore opt,
        /// Why.
        cause: Option<Cause> = Cause ignore opt,
        /// What was at fault.
        criticality_diagnostics: Option<CriticalityDiagnostics> = CriticalityDiagnostics ignore opt,
        /// The UE concerned, when it could not be served at all.
        s_tmsi: Option<STmsi> = FiveG_S_TMSI ignore opt,
    }
}
