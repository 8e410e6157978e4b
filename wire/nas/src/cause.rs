//! 5GMM and 5GSM causes with the numbers and names of TS 24.501.
//!
//! A number a receiver does not know is read as #111, as both tables ask.

use std::fmt;

/// One cause enum: number, name and text of each row, and how unknown numbers are read.
macro_rules! causes {
    ($(#[$meta:meta])* $name:ident { $($number:literal $variant:ident $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = concat!("#", $number, ": ", $text, ".")] $variant = $number,)*
        }

        impl $name {
            /// Every cause of the table, by number.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// Reads a received number. One that is not in the table means #111.
            pub const fn received(number: u8) -> Self {
                match number {
                    $($number => Self::$variant,)*
                    _ => Self::ProtocolErrorUnspecified,
                }
            }

            /// The words of the standard.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "#{} {}", self.number(), self.text())
            }
        }
    };
}

causes! {
    /// 5GMM cause (TS 24.501 §9.11.3.2, annex A).
    GmmCause {
        3 IllegalUe "illegal UE",
        5 PeiNotAccepted "PEI not accepted",
        6 IllegalMe "illegal ME",
        7 FiveGsServicesNotAllowed "5GS services not allowed",
        9 UeIdentityCannotBeDerived "UE identity cannot be derived by the network",
        10 ImplicitlyDeregistered "implicitly de-registered",
        11 PlmnNotAllowed "PLMN not allowed",
        12 TrackingAreaNotAllowed "tracking area not allowed",
        13 RoamingNotAllowedInTrackingArea "roaming not allowed in this tracking area",
        15 NoSuitableCellsInTrackingArea "no suitable cells in tracking area",
        20 MacFailure "MAC failure",
        21 SynchFailure "synch failure",
        22 Congestion "congestion",
        23 UeSecurityCapabilitiesMismatch "UE security capabilities mismatch",
        24 SecurityModeRejected "security mode rejected, unspecified",
        26 Non5gAuthenticationUnacceptable "non-5G authentication unacceptable",
        27 N1ModeNotAllowed "N1 mode not allowed",
        28 RestrictedServiceArea "restricted service area",
        31 RedirectionToEpcRequired "redirection to EPC required",
        36 IabNodeNotAuthorized "IAB-node operation not authorized",
        43 LadnNotAvailable "LADN not available",
        62 NoNetworkSlicesAvailable "no network slices available",
        65 MaximumPduSessionsReached "maximum number of PDU sessions reached",
        67 InsufficientResourcesForSliceAndDnn "insufficient resources for specific slice and DNN",
        69 InsufficientResourcesForSlice "insufficient resources for specific slice",
        71 NgKsiAlreadyInUse "ngKSI already in use",
        72 Non3gppAccessNotAllowed "non-3GPP access to 5GCN not allowed",
        73 ServingNetworkNotAuthorized "serving network not authorized",
        74 TemporarilyNotAuthorizedForSnpn "temporarily not authorized for this SNPN",
        75 PermanentlyNotAuthorizedForSnpn "permanently not authorized for this SNPN",
        76 NotAuthorizedForCag "not authorized for this CAG or authorized for CAG cells only",
        77 WirelineAccessAreaNotAllowed "wireline access area not allowed",
        78 PlmnNotAllowedAtLocation "PLMN not allowed to operate at the present UE location",
        79 UasServicesNotAllowed "UAS services not allowed",
        90 PayloadNotForwarded "payload was not forwarded",
        91 DnnNotSupportedInSlice "DNN not supported or not subscribed in the slice",
        92 InsufficientUserPlaneResources "insufficient user-plane resources for the PDU session",
        95 SemanticallyIncorrectMessage "semantically incorrect message",
        96 InvalidMandatoryInformation "invalid mandatory information",
        97 MessageTypeNotImplemented "message type non-existent or not implemented",
        98 MessageTypeNotCompatible "message type not compatible with the protocol state",
        99 InformationElementNotImplemented "information element non-existent or not implemented",
        100 ConditionalIeError "conditional IE error",
        101 MessageNotCompatible "message not compatible with the protocol state",
        111 ProtocolErrorUnspecified "protocol error, unspecified",
    }
}

causes! {
    /// 5GSM cause (TS 24.501 §9.11.4.2, annex B).
    GsmCause {
        8 OperatorDeterminedBarring "operator determined barring",
        26 InsufficientResources "insufficient resources",
        27 MissingOrUnknownDnn "missing or unknown DNN",
        28 UnknownPduSessionType "unknown PDU session type",
        29 UserAuthenticationFailed "user authentication or authorization failed",
        31 RequestRejected "request rejected, unspecified",
        32 ServiceOptionNotSupported "service option not supported",
        33 ServiceOptionNotSubscribed "requested service option not subscribed",
        35 PtiAlreadyInUse "PTI already in use",
        36 RegularDeactivation "regular deactivation",
        37 QosNotAccepted "5GS QoS not accepted",
        38 NetworkFailure "network failure",
        39 ReactivationRequested "reactivation requested",
        41 SemanticErrorInTft "semantic error in the TFT operation",
        42 SyntacticalErrorInTft "syntactical error in the TFT operation",
        43 InvalidPduSessionIdentity "invalid PDU session identity",
        44 SemanticErrorsInPacketFilters "semantic errors in packet filter(s)",
        45 SyntacticalErrorsInPacketFilters "syntactical error in packet filter(s)",
        46 OutOfLadnServiceArea "out of LADN service area",
        47 PtiMismatch "PTI mismatch",
        50 OnlyIpv4Allowed "PDU session type IPv4 only allowed",
        51 OnlyIpv6Allowed "PDU session type IPv6 only allowed",
        54 PduSessionDoesNotExist "PDU session does not exist",
        57 OnlyIpv4v6Allowed "PDU session type IPv4v6 only allowed",
        58 OnlyUnstructuredAllowed "PDU session type Unstructured only allowed",
        59 Unsupported5qi "unsupported 5QI value",
        61 OnlyEthernetAllowed "PDU session type Ethernet only allowed",
        67 InsufficientResourcesForSliceAndDnn "insufficient resources for specific slice and DNN",
        68 NotSupportedSscMode "not supported SSC mode",
        69 InsufficientResourcesForSlice "insufficient resources for specific slice",
        70 MissingOrUnknownDnnInSlice "missing or unknown DNN in a slice",
        81 InvalidPti "invalid PTI value",
        82 IntegrityDataRateTooLow "maximum data rate per UE for user-plane integrity protection is too low",
        83 SemanticErrorInQos "semantic error in the QoS operation",
        84 SyntacticalErrorInQos "syntactical error in the QoS operation",
        85 InvalidMappedEpsBearer "invalid mapped EPS bearer identity",
        86 UasServicesNotAllowed "UAS services not allowed",
        95 SemanticallyIncorrectMessage "semantically incorrect message",
        96 InvalidMandatoryInformation "invalid mandatory information",
        97 MessageTypeNotImplemented "message type non-existent or not implemented",
        98 MessageTypeNotCompatible "message type not compatible with the protocol state",
        99 InformationElementNotImplemented "information element non-existent or not implemented",
        100 ConditionalIeError "conditional IE error",
        101 MessageNotCompatible "message not compatible with the protocol state",
        111 ProtocolErrorUnspecified "protocol error, unspecified",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_belong_together_and_unknown_ones_mean_111() {
        for cause in GmmCause::ALL {
            assert_eq!(GmmCause::received(cause.number()), *cause);
        }
        for cause in GsmCause::ALL {
            assert_eq!(GsmCause::received(cause.number()), *cause);
        }
        assert_eq!(GmmCause::received(4), GmmCause::ProtocolErrorUnspecified);
        assert_eq!(GsmCause::received(0), GsmCause::ProtocolErrorUnspecified);
        assert_eq!(GmmCause::IllegalUe.to_string(), "#3 illegal UE");
    }
}
