//! Causes (TS 38.413 §9.3.1.2): why a node rejects, releases or reports.
//!
//! The variants carry the names of the standard; their order is that of the ASN.1, so the number of
//! a value is what TS 29.571 calls `NgApCause.value` (see [`Cause::group`] and [`Cause::value`]).

use std::fmt;

use oxirush_ngap::ngap as asn;

/// One cause group: our variants, their ASN.1 twins and the printed names.
macro_rules! cause_group {
    ($(#[$doc:meta])* $name:ident = $asn:ident { $($variant:ident = $twin:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the variants are the standard's own names")]
        pub enum $name { $($variant,)* }

        impl $name {
            /// Every value, in the order of the ASN.1.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name as TS 38.413 writes it in its ASN.1.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            pub(crate) fn to_asn(self) -> asn::$asn {
                match self { $(Self::$variant => asn::$asn::$twin,)* }
            }

            /// `None` for a value of a release later than this code.
            pub(crate) fn from_asn(wire: asn::$asn) -> Option<Self> {
                match wire { $(asn::$asn::$twin => Some(Self::$variant),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl From<$name> for Cause {
            fn from(cause: $name) -> Self {
                Self::$name(cause)
            }
        }
    };
}

/// Why, by group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The radio network layer.
    RadioNetwork(RadioNetwork),
    /// The transport layer.
    Transport(Transport),
    /// The non-access stratum.
    Nas(Nas),
    /// The protocol itself; what §10 answers errors with.
    Protocol(Protocol),
    /// Everything else.
    Misc(Misc),
}

impl Cause {
    /// The group's number: 0 radio network, 1 transport, 2 NAS, 3 protocol, 4 miscellaneous.
    pub const fn group(self) -> u8 {
        match self {
            Self::RadioNetwork(_) => 0,
            Self::Transport(_) => 1,
            Self::Nas(_) => 2,
            Self::Protocol(_) => 3,
            Self::Misc(_) => 4,
        }
    }

    /// The value's number within its group (`NgApCause.value` of TS 29.571).
    pub const fn value(self) -> u8 {
        match self {
            Self::RadioNetwork(cause) => cause as u8,
            Self::Transport(cause) => cause as u8,
            Self::Nas(cause) => cause as u8,
            Self::Protocol(cause) => cause as u8,
            Self::Misc(cause) => cause as u8,
        }
    }

    /// The cause of a group and value; `None` for one this release does not have.
    pub fn from_numbers(group: u8, value: u8) -> Option<Self> {
        let at = usize::from(value);
        match group {
            0 => RadioNetwork::ALL.get(at).map(|cause| Self::RadioNetwork(*cause)),
            1 => Transport::ALL.get(at).map(|cause| Self::Transport(*cause)),
            2 => Nas::ALL.get(at).map(|cause| Self::Nas(*cause)),
            3 => Protocol::ALL.get(at).map(|cause| Self::Protocol(*cause)),
            4 => Misc::ALL.get(at).map(|cause| Self::Misc(*cause)),
            _ => None,
        }
    }
}

/// What a receiver assumes when the peer's Cause is missing or unknown (its criticality is `ignore`).
impl Default for Cause {
    fn default() -> Self {
        Self::Misc(Misc::Unspecified)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RadioNetwork(cause) => write!(f, "radioNetwork: {cause}"),
            Self::Transport(cause) => write!(f, "transport: {cause}"),
            Self::Nas(cause) => write!(f, "nas: {cause}"),
            Self::Protocol(cause) => write!(f, "protocol: {cause}"),
            Self::Misc(cause) => write!(f, "misc: {cause}"),
        }
    }
}

cause_group! {
    /// Radio network layer causes.
    RadioNetwork = CauseRadioNetwork {
        Unspecified = unspecified "unspecified",
        TxnrelocoverallExpiry = txnrelocoverall_expiry "txnrelocoverall-expiry",
        SuccessfulHandover = successful_handover "successful-handover",
        ReleaseDueToNgranGeneratedReason = release_due_to_ngran_generated_reason "release-due-to-ngran-generated-reason",
        ReleaseDueTo5gcGeneratedReason = release_due_to_5gc_generated_reason "release-due-to-5gc-generated-reason",
        HandoverCancelled = handover_cancelled "handover-cancelled",
        PartialHandover = partial_handover "partial-handover",
        HoFailureInTarget5gcNgranNodeOrTargetSystem = ho_failure_in_target_5GC_ngran_node_or_target_system "ho-failure-in-target-5GC-ngran-node-or-target-system",
        HoTargetNotAllowed = ho_target_not_allowed "ho-target-not-allowed",
        TngrelocoverallExpiry = tngrelocoverall_expiry "tngrelocoverall-expiry",
        TngrelocprepExpiry = tngrelocprep_expiry "tngrelocprep-expiry",
        CellNotAvailable = cell_not_available "cell-not-available",
        UnknownTargetId = unknown_targetID "unknown-targetID",
        NoRadioResourcesAvailableInTargetCell = no_radio_resources_available_in_target_cell "no-radio-resources-available-in-target-cell",
        UnknownLocalUeNgapId = unknown_local_UE_NGAP_ID "unknown-local-UE-NGAP-ID",
        InconsistentRemoteUeNgapId = inconsistent_remote_UE_NGAP_ID "inconsistent-remote-UE-NGAP-ID",
        HandoverDesirableForRadioReason = handover_desirable_for_radio_reason "handover-desirable-for-radio-reason",
        TimeCriticalHandover = time_critical_handover "time-critical-handover",
        ResourceOptimisationHandover = resource_optimisation_handover "resource-optimisation-handover",
        ReduceLoadInServingCell = reduce_load_in_serving_cell "reduce-load-in-serving-cell",
        UserInactivity = user_inactivity "user-inactivity",
        RadioConnectionWithUeLost = radio_connection_with_ue_lost "radio-connection-with-ue-lost",
        RadioResourcesNotAvailable = radio_resources_not_available "radio-resources-not-available",
        InvalidQosCombination = invalid_qos_combination "invalid-qos-combination",
        FailureInRadioInterfaceProcedure = failure_in_radio_interface_procedure "failure-in-radio-interface-procedure",
        InteractionWithOtherProcedure = interaction_with_other_procedure "interaction-with-other-procedure",
        UnknownPduSessionId = unknown_PDU_session_ID "unknown-PDU-session-ID",
        UnkownQosFlowId = unkown_qos_flow_ID "unkown-qos-flow-ID",
        MultiplePduSessionIdInstances = multiple_PDU_session_ID_instances "multiple-PDU-session-ID-instances",
        MultipleQosFlowIdInstances = multiple_qos_flow_ID_instances "multiple-qos-flow-ID-instances",
        EncryptionAndOrIntegrityProtectionAlgorithmsNotSupported = encryption_and_or_integrity_protection_algorithms_not_supported "encryption-and-or-integrity-protection-algorithms-not-supported",
        NgIntraSystemHandoverTriggered = ng_intra_system_handover_triggered "ng-intra-system-handover-triggered",
        NgInterSystemHandoverTriggered = ng_inter_system_handover_triggered "ng-inter-system-handover-triggered",
        XnHandoverTriggered = xn_handover_triggered "xn-handover-triggered",
        NotSupported5qiValue = not_supported_5QI_value "not-supported-5QI-value",
        UeContextTransfer = ue_context_transfer "ue-context-transfer",
        ImsVoiceEpsFallbackOrRatFallbackTriggered = ims_voice_eps_fallback_or_rat_fallback_triggered "ims-voice-eps-fallback-or-rat-fallback-triggered",
        UpIntegrityProtectionNotPossible = up_integrity_protection_not_possible "up-integrity-protection-not-possible",
        UpConfidentialityProtectionNotPossible = up_confidentiality_protection_not_possible "up-confidentiality-protection-not-possible",
        SliceNotSupported = slice_not_supported "slice-not-supported",
        UeInRrcInactiveStateNotReachable = ue_in_rrc_inactive_state_not_reachable "ue-in-rrc-inactive-state-not-reachable",
        Redirection = redirection "redirection",
        ResourcesNotAvailableForTheSlice = resources_not_available_for_the_slice "resources-not-available-for-the-slice",
        UeMaxIntegrityProtectedDataRateReason = ue_max_integrity_protected_data_rate_reason "ue-max-integrity-protected-data-rate-reason",
        ReleaseDueToCnDetectedMobility = release_due_to_cn_detected_mobility "release-due-to-cn-detected-mobility",
        N26InterfaceNotAvailable = n26_interface_not_available "n26-interface-not-available",
        ReleaseDueToPreEmption = release_due_to_pre_emption "release-due-to-pre-emption",
        MultipleLocationReportingReferenceIdInstances = multiple_location_reporting_reference_ID_instances "multiple-location-reporting-reference-ID-instances",
        RsnNotAvailableForTheUp = rsn_not_available_for_the_up "rsn-not-available-for-the-up",
        NpnAccessDenied = npn_access_denied "npn-access-denied",
        CagOnlyAccessDenied = cag_only_access_denied "cag-only-access-denied",
        InsufficientUeCapabilities = insufficient_ue_capabilities "insufficient-ue-capabilities",
        RedcapUeNotSupported = redcap_ue_not_supported "redcap-ue-not-supported",
        UnknownMbsSessionId = unknown_MBS_Session_ID "unknown-MBS-Session-ID",
        IndicatedMbsSessionAreaInformationNotServedByTheGNB = indicated_MBS_session_area_information_not_served_by_the_gNB "indicated-MBS-session-area-information-not-served-by-the-gNB",
        InconsistentSliceInfoForTheSession = inconsistent_slice_info_for_the_session "inconsistent-slice-info-for-the-session",
        MisalignedAssociationForMulticastUnicast = misaligned_association_for_multicast_unicast "misaligned-association-for-multicast-unicast",
        EredcapUeNotSupported = eredcap_ue_not_supported "eredcap-ue-not-supported",
        TwoRxXrUeNotSupported = two_rx_xr_ue_not_supported "two-rx-xr-ue-not-supported",
        AerialUeFlightInformationReportingInitiationFailure = aerial_ue_flight_information_reporting_initiation_failure "aerial-ue-flight-information-reporting-initiation-failure",
        UnknownRanAIoTDeviceNgapId = unknown_RAN_AIoT_Device_NGAP_ID "unknown-RAN-AIoT-Device-NGAP-ID",
        RequestedAIoTServiceAreaInformationNotServedByTheGNB = requested_AIoT_service_area_information_not_served_by_the_gNB "requested-AIoT-service-area-information-not-served-by-the-gNB",
        UnknownAIoTSession = unknown_AIoT_session "unknown-AIoT-session",
        AiotDeviceNotReachable = aiot_device_not_reachable "aiot-device-not-reachable",
        MultipleAIoTSessionIdInstances = multiple_AIoT_session_ID_instances "multiple-AIoT-session-ID-instances",
    }
}

cause_group! {
    /// Transport layer causes.
    Transport = CauseTransport {
        TransportResourceUnavailable = transport_resource_unavailable "transport-resource-unavailable",
        Unspecified = unspecified "unspecified",
    }
}

cause_group! {
    /// NAS causes.
    Nas = CauseNas {
        NormalRelease = normal_release "normal-release",
        AuthenticationFailure = authentication_failure "authentication-failure",
        Deregister = deregister "deregister",
        Unspecified = unspecified "unspecified",
        UeNotInPlmnServingArea = uE_not_in_PLMN_serving_area "uE-not-in-PLMN-serving-area",
        MobileIabNotAuthorized = mobile_IAB_not_authorized "mobile-IAB-not-authorized",
        IabNotAuthorized = iAB_not_authorized "iAB-not-authorized",
        NoAiotNasResponse = no_aiot_NAS_response "no-aiot-NAS-response",
    }
}

cause_group! {
    /// Protocol causes (§10).
    Protocol = CauseProtocol {
        TransferSyntaxError = transfer_syntax_error "transfer-syntax-error",
        AbstractSyntaxErrorReject = abstract_syntax_error_reject "abstract-syntax-error-reject",
        AbstractSyntaxErrorIgnoreAndNotify = abstract_syntax_error_ignore_and_notify "abstract-syntax-error-ignore-and-notify",
        MessageNotCompatibleWithReceiverState = message_not_compatible_with_receiver_state "message-not-compatible-with-receiver-state",
        SemanticError = semantic_error "semantic-error",
        AbstractSyntaxErrorFalselyConstructedMessage = abstract_syntax_error_falsely_constructed_message "abstract-syntax-error-falsely-constructed-message",
        Unspecified = unspecified "unspecified",
    }
}

cause_group! {
    /// Miscellaneous causes.
    Misc = CauseMisc {
        ControlProcessingOverload = control_processing_overload "control-processing-overload",
        NotEnoughUserPlaneProcessingResources = not_enough_user_plane_processing_resources "not-enough-user-plane-processing-resources",
        HardwareFailure = hardware_failure "hardware-failure",
        OmIntervention = om_intervention "om-intervention",
        UnknownPlmnOrSnpn = unknown_PLMN_or_SNPN "unknown-PLMN-or-SNPN",
        Unspecified = unspecified "unspecified",
    }
}
