//! Cause (TS 38.473 §9.3.1.2): why a node rejects, releases or reports. The values carry the standard's names.

use std::fmt;

use per::{DecodeError, EncodeError, ErrorKind, Reader, Writer};

use crate::codec::{Per, enumerations};

enumerations! {
    /// The radio network layer.
    RadioNetwork true {
        Unspecified "unspecified",
        RlFailureRlc "rl-failure-rlc",
        UnknownOrAlreadyAllocatedGnbCuUeF1apId "unknown-or-already-allocated-gnb-cu-ue-f1ap-id",
        UnknownOrAlreadyAllocatedGnbDuUeF1apId "unknown-or-already-allocated-gnb-du-ue-f1ap-id",
        UnknownOrInconsistentPairOfUeF1apId "unknown-or-inconsistent-pair-of-ue-f1ap-id",
        InteractionWithOtherProcedure "interaction-with-other-procedure",
        NotSupportedQciValue "not-supported-qci-Value",
        ActionDesirableForRadioReasons "action-desirable-for-radio-reasons",
        NoRadioResourcesAvailable "no-radio-resources-available",
        ProcedureCancelled "procedure-cancelled",
        NormalRelease "normal-release",
    } + {
        CellNotAvailable "cell-not-available",
        RlFailureOthers "rl-failure-others",
        UeRejection "ue-rejection",
        ResourcesNotAvailableForTheSlice "resources-not-available-for-the-slice",
        AmfInitiatedAbnormalRelease "amf-initiated-abnormal-release",
        ReleaseDueToPreEmption "release-due-to-pre-emption",
        PlmnNotServedByTheGnbCu "plmn-not-served-by-the-gNB-CU",
        MultipleDrbIdInstances "multiple-drb-id-instances",
        UnknownDrbId "unknown-drb-id",
        MultipleBhRlcChIdInstances "multiple-bh-rlc-ch-id-instances",
        UnknownBhRlcChId "unknown-bh-rlc-ch-id",
        ChoCpcResourcesTobechanged "cho-cpc-resources-tobechanged",
        NpnNotSupported "nPN-not-supported",
        NpnAccessDenied "nPN-access-denied",
        GnbCuCellCapacityExceeded "gNB-CU-Cell-Capacity-Exceeded",
        ReportCharacteristicsEmpty "report-characteristics-empty",
        ExistingMeasurementId "existing-measurement-ID",
        MeasurementTemporarilyNotAvailable "measurement-temporarily-not-available",
        MeasurementNotSupportedForTheObject "measurement-not-supported-for-the-object",
        UnknownBhAddress "unknown-bh-address",
        UnknownBapRoutingId "unknown-bap-routing-id",
        InsufficientUeCapabilities "insufficient-ue-capabilities",
        ScgActivationDeactivationFailure "scg-activation-deactivation-failure",
        ScgDeactivationFailureDueToDataTransmission "scg-deactivation-failure-due-to-data-transmission",
        RequestedItemNotSupportedOnTime "requested-item-not-supported-on-time",
        UnknownOrAlreadyAllocatedGnbCuMbsF1apId "unknown-or-already-allocated-gNB-CU-MBS-F1AP-ID",
        UnknownOrAlreadyAllocatedGnbDuMbsF1apId "unknown-or-already-allocated-gNB-DU-MBS-F1AP-ID",
        UnknownOrInconsistentPairOfMbsF1apId "unknown-or-inconsistent-pair-of-MBS-F1AP-ID",
        UnknownOrInconsistentMrbId "unknown-or-inconsistent-MRB-ID",
        TatSdtExpiry "tat-sdt-expiry",
    }
    /// The transport layer.
    Transport true {
        Unspecified "unspecified",
        TransportResourceUnavailable "transport-resource-unavailable",
    } + {
        UnknownTnlAddressForIab "unknown-TNL-address-for-IAB",
        UnknownUpTnlInformationForIab "unknown-UP-TNL-information-for-IAB",
    }
    /// The protocol itself: what §10 answers errors with.
    Protocol true {
        TransferSyntaxError "transfer-syntax-error",
        AbstractSyntaxErrorReject "abstract-syntax-error-reject",
        AbstractSyntaxErrorIgnoreAndNotify "abstract-syntax-error-ignore-and-notify",
        MessageNotCompatibleWithReceiverState "message-not-compatible-with-receiver-state",
        SemanticError "semantic-error",
        AbstractSyntaxErrorFalselyConstructedMessage "abstract-syntax-error-falsely-constructed-message",
        Unspecified "unspecified",
    }
    /// Everything else.
    Misc true {
        ControlProcessingOverload "control-processing-overload",
        NotEnoughUserPlaneProcessingResources "not-enough-user-plane-processing-resources",
        HardwareFailure "hardware-failure",
        OmIntervention "om-intervention",
        Unspecified "unspecified",
    }
}

/// Why, by group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The radio network layer.
    RadioNetwork(RadioNetwork),
    /// The transport layer.
    Transport(Transport),
    /// The protocol itself.
    Protocol(Protocol),
    /// Everything else.
    Misc(Misc),
}

/// What stands for a mandatory cause that is absent or of a later release (its criticality is ignore).
impl Default for Cause {
    fn default() -> Self {
        Self::Misc(Misc::Unspecified)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RadioNetwork(cause) => write!(f, "radio network: {cause}"),
            Self::Transport(cause) => write!(f, "transport: {cause}"),
            Self::Protocol(cause) => write!(f, "protocol: {cause}"),
            Self::Misc(cause) => write!(f, "misc: {cause}"),
        }
    }
}

/// The four groups, and an extension that nothing uses.
const GROUPS: usize = 5;

impl Per for Cause {
    fn write(&self, w: &mut Writer) -> Result<(), EncodeError> {
        match self {
            Self::RadioNetwork(cause) => w.choice(0, GROUPS, false).and_then(|()| cause.write(w)),
            Self::Transport(cause) => w.choice(1, GROUPS, false).and_then(|()| cause.write(w)),
            Self::Protocol(cause) => w.choice(2, GROUPS, false).and_then(|()| cause.write(w)),
            Self::Misc(cause) => w.choice(3, GROUPS, false).and_then(|()| cause.write(w)),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match r.choice(GROUPS, false)? {
            0 => RadioNetwork::read(r).map(Self::RadioNetwork),
            1 => Transport::read(r).map(Self::Transport),
            2 => Protocol::read(r).map(Self::Protocol),
            3 => Misc::read(r).map(Self::Misc),
            _ => Err(r.error(ErrorKind::Value("unknown group of causes"))),
        }
    }
}
