//! Conversions of what only transfers carry (TS 38.413 §9.3.4).

use super::{Wire, unknown};
use crate::cause::Cause;
use crate::ie::{CriticalityDiagnostics, GtpTunnel};
use crate::transfer::*;
use oxirush_ngap::ngap as asn;
use types::{Ambr, Arp, BitRate, FiveQi, Invalid, Qfi};

impl<'a> Wire<'a, asn::AllocationAndRetentionPriority> for Arp {
    fn to_wire(&'a self) -> asn::AllocationAndRetentionPriority {
        let capability = if self.may_preempt {
            asn::PreEmptionCapability::may_trigger_pre_emption
        } else {
            asn::PreEmptionCapability::shall_not_trigger_pre_emption
        };
        let vulnerability = if self.preemptable {
            asn::PreEmptionVulnerability::pre_emptable
        } else {
            asn::PreEmptionVulnerability::not_pre_emptable
        };
        let priority = asn::PriorityLevelARP(self.priority);
        asn::AllocationAndRetentionPriority::new(priority, capability, vulnerability, None)
    }
    fn from_wire(wire: asn::AllocationAndRetentionPriority) -> Result<Self, Invalid> {
        Ok(Arp {
            priority: wire.priority_level_arp.0,
            may_preempt: wire.pre_emption_capability == asn::PreEmptionCapability::may_trigger_pre_emption,
            preemptable: wire.pre_emption_vulnerability == asn::PreEmptionVulnerability::pre_emptable,
        })
    }
}

/// A number that the ASN.1 leaves open-ended for later releases.
fn bounded<T: TryFrom<u64>>(what: &'static str, value: u64) -> Result<T, Invalid> {
    T::try_from(value).map_err(|_| Invalid::new(what, value, "a value of this release"))
}

impl<'a> Wire<'a, asn::QosCharacteristics> for QosCharacteristics {
    fn to_wire(&'a self) -> asn::QosCharacteristics {
        match self {
            Self::NonDynamic { five_qi, priority } => {
                let priority = priority.map(|level| asn::PriorityLevelQos(level.into()));
                asn::QosCharacteristics::nonDynamic5QI(asn::NonDynamic5QIDescriptor::new(
                    five_qi.to_wire(),
                    priority,
                    None,
                    None,
                    None,
                ))
            }
            Self::Dynamic { priority, delay_budget, error_rate, five_qi } => {
                let (scalar, exponent) = *error_rate;
                asn::QosCharacteristics::dynamic5QI(asn::Dynamic5QIDescriptor::new(
                    asn::PriorityLevelQos((*priority).into()),
                    asn::PacketDelayBudget((*delay_budget).into()),
                    asn::PacketErrorRate::new(scalar.into(), exponent.into(), None),
                    five_qi.as_ref().map(Wire::to_wire),
                    None,
                    None,
                    None,
                    None,
                ))
            }
        }
    }
    fn from_wire(wire: asn::QosCharacteristics) -> Result<Self, Invalid> {
        let level = |level: asn::PriorityLevelQos| bounded("priority level", level.0);
        match wire {
            asn::QosCharacteristics::nonDynamic5QI(flow) => Ok(Self::NonDynamic {
                five_qi: FiveQi::from_wire(flow.five_qi)?,
                priority: flow.priority_level_qos.map(level).transpose()?,
            }),
            asn::QosCharacteristics::dynamic5QI(flow) => Ok(Self::Dynamic {
                priority: level(flow.priority_level_qos)?,
                delay_budget: bounded("packet delay budget", flow.packet_delay_budget.0)?,
                error_rate: (
                    bounded("packet error rate", flow.packet_error_rate.per_scalar)?,
                    bounded("packet error rate", flow.packet_error_rate.per_exponent)?,
                ),
                five_qi: flow.five_qi.map(FiveQi::from_wire).transpose()?,
            }),
            asn::QosCharacteristics::choice_Extensions(_) => unknown("QoS characteristics"),
        }
    }
}

impl<'a> Wire<'a, asn::GBRQosInformation> for GbrQos {
    fn to_wire(&'a self) -> asn::GBRQosInformation {
        asn::GBRQosInformation::new(
            bit_rate(self.maximum.downlink),
            bit_rate(self.maximum.uplink),
            bit_rate(self.guaranteed.downlink),
            bit_rate(self.guaranteed.uplink),
            self.notification.then_some(asn::NotificationControl::notification_requested),
            None,
            None,
            None,
        )
    }
    fn from_wire(wire: asn::GBRQosInformation) -> Result<Self, Invalid> {
        let rates = |uplink: asn::BitRate, downlink: asn::BitRate| Ambr {
            uplink: BitRate::from_bps(uplink.0),
            downlink: BitRate::from_bps(downlink.0),
        };
        Ok(Self {
            maximum: rates(wire.maximum_flow_bit_rate_ul, wire.maximum_flow_bit_rate_dl),
            guaranteed: rates(wire.guaranteed_flow_bit_rate_ul, wire.guaranteed_flow_bit_rate_dl),
            notification: wire.notification_control.is_some(),
        })
    }
}

impl<'a> Wire<'a, asn::QosFlowLevelQosParameters> for QosParameters {
    fn to_wire(&'a self) -> asn::QosFlowLevelQosParameters {
        asn::QosFlowLevelQosParameters::new(
            self.characteristics.to_wire(),
            self.arp.to_wire(),
            self.gbr.as_ref().map(Wire::to_wire),
            self.reflective.then_some(asn::ReflectiveQosAttribute::subject_to),
            None,
            None,
        )
    }
    fn from_wire(wire: asn::QosFlowLevelQosParameters) -> Result<Self, Invalid> {
        Ok(Self {
            characteristics: QosCharacteristics::from_wire(wire.qos_characteristics)?,
            arp: Arp::from_wire(wire.allocation_and_retention_priority)?,
            gbr: wire.gbr_qos_information.map(GbrQos::from_wire).transpose()?,
            reflective: wire.reflective_qos_attribute.is_some(),
        })
    }
}

impl<'a> Wire<'a, asn::QosFlowSetupRequestItem> for QosFlow {
    fn to_wire(&'a self) -> asn::QosFlowSetupRequestItem {
        asn::QosFlowSetupRequestItem::new(self.qfi.to_wire(), self.parameters.to_wire(), None, None)
    }
    fn from_wire(wire: asn::QosFlowSetupRequestItem) -> Result<Self, Invalid> {
        let parameters = QosParameters::from_wire(wire.qos_flow_level_qos_parameters)?;
        Ok(Self { qfi: Qfi::from_wire(wire.qos_flow_identifier)?, parameters })
    }
}

impl<'a> Wire<'a, asn::QosFlowAddOrModifyRequestItem> for QosFlowChange {
    fn to_wire(&'a self) -> asn::QosFlowAddOrModifyRequestItem {
        let parameters = self.parameters.as_ref().map(Wire::to_wire);
        asn::QosFlowAddOrModifyRequestItem::new(self.qfi.to_wire(), parameters, None, None)
    }
    fn from_wire(wire: asn::QosFlowAddOrModifyRequestItem) -> Result<Self, Invalid> {
        let parameters = wire.qos_flow_level_qos_parameters.map(QosParameters::from_wire).transpose()?;
        Ok(Self { qfi: Qfi::from_wire(wire.qos_flow_identifier)?, parameters })
    }
}

impl<'a> Wire<'a, asn::QosFlowWithCauseItem> for QosFlowCause {
    fn to_wire(&'a self) -> asn::QosFlowWithCauseItem {
        asn::QosFlowWithCauseItem::new(self.qfi.to_wire(), self.cause.to_wire(), None)
    }
    fn from_wire(wire: asn::QosFlowWithCauseItem) -> Result<Self, Invalid> {
        Ok(Self { qfi: Qfi::from_wire(wire.qos_flow_identifier)?, cause: Cause::from_wire(wire.cause)? })
    }
}

impl<'a> Wire<'a, asn::QosFlowNotifyItem> for (Qfi, bool) {
    fn to_wire(&'a self) -> asn::QosFlowNotifyItem {
        let cause =
            if self.1 { asn::NotificationCause::fulfilled } else { asn::NotificationCause::not_fulfilled };
        asn::QosFlowNotifyItem::new(self.0.to_wire(), cause, None)
    }
    fn from_wire(wire: asn::QosFlowNotifyItem) -> Result<Self, Invalid> {
        let fulfilled = wire.notification_cause == asn::NotificationCause::fulfilled;
        Ok((Qfi::from_wire(wire.qos_flow_identifier)?, fulfilled))
    }
}

impl<'a> Wire<'a, asn::AssociatedQosFlowItem> for Qfi {
    fn to_wire(&'a self) -> asn::AssociatedQosFlowItem {
        asn::AssociatedQosFlowItem::new(self.to_wire(), None, None)
    }
    fn from_wire(wire: asn::AssociatedQosFlowItem) -> Result<Self, Invalid> {
        Qfi::from_wire(wire.qos_flow_identifier)
    }
}

impl<'a> Wire<'a, asn::SecurityIndication> for SecurityIndication {
    fn to_wire(&'a self) -> asn::SecurityIndication {
        let rate = self.full_rate_integrity_uplink.map(|full| match full {
            true => asn::MaximumIntegrityProtectedDataRate::maximum_UE_rate,
            false => asn::MaximumIntegrityProtectedDataRate::bitrate64kbs,
        });
        asn::SecurityIndication::new(self.integrity.to_wire(), self.confidentiality.to_wire(), rate, None)
    }
    fn from_wire(wire: asn::SecurityIndication) -> Result<Self, Invalid> {
        let full = |rate| rate == asn::MaximumIntegrityProtectedDataRate::maximum_UE_rate;
        Ok(Self {
            integrity: Protection::from_wire(wire.integrity_protection_indication)?,
            confidentiality: Protection::from_wire(wire.confidentiality_protection_indication)?,
            full_rate_integrity_uplink: wire.maximum_integrity_protected_data_rate_ul.map(full),
        })
    }
}

impl<'a> Wire<'a, asn::SecurityResult> for SecurityResult {
    fn to_wire(&'a self) -> asn::SecurityResult {
        use asn::{ConfidentialityProtectionResult as C, IntegrityProtectionResult as I};
        asn::SecurityResult::new(
            if self.integrity { I::performed } else { I::not_performed },
            if self.confidentiality { C::performed } else { C::not_performed },
            None,
        )
    }
    fn from_wire(wire: asn::SecurityResult) -> Result<Self, Invalid> {
        use asn::{ConfidentialityProtectionResult as C, IntegrityProtectionResult as I};
        Ok(Self {
            integrity: wire.integrity_protection_result == I::performed,
            confidentiality: wire.confidentiality_protection_result == C::performed,
        })
    }
}

impl<'a> Wire<'a, asn::PDUSessionResourceSetupResponseTransfer<'a>>
    for PduSessionResourceSetupResponseTransfer
{
    fn to_wire(&'a self) -> asn::PDUSessionResourceSetupResponseTransfer<'a> {
        let tunnel =
            asn::QosFlowPerTNLInformation::new(self.dl_tunnel.to_wire(), self.qos_flows.to_wire(), None);
        let failed = (!self.failed_qos_flows.is_empty()).then(|| self.failed_qos_flows.to_wire());
        let security = self.security_result.as_ref().map(Wire::to_wire);
        asn::PDUSessionResourceSetupResponseTransfer::new(tunnel, None, security, failed, None)
    }
    fn from_wire(wire: asn::PDUSessionResourceSetupResponseTransfer<'a>) -> Result<Self, Invalid> {
        let tunnel = wire.dl_qos_flow_per_tnl_information;
        Ok(Self {
            dl_tunnel: GtpTunnel::from_wire(tunnel.up_transport_layer_information)?,
            qos_flows: Vec::from_wire(tunnel.associated_qos_flow_list)?,
            security_result: wire.security_result.map(SecurityResult::from_wire).transpose()?,
            failed_qos_flows: flows_with_cause(wire.qos_flow_failed_to_setup_list)?,
        })
    }
}

/// An optional list as one that may be empty.
fn flows_with_cause(list: Option<asn::QosFlowListWithCause>) -> Result<Vec<QosFlowCause>, Invalid> {
    list.map_or(Ok(Vec::new()), Vec::from_wire)
}

/// Transfers of a cause and diagnostics.
macro_rules! unsuccessful {
    ($($own:ident = $asn:ident;)*) => {
        $(impl<'a> Wire<'a, asn::$asn> for $own {
            fn to_wire(&'a self) -> asn::$asn {
                let diagnostics = self.criticality_diagnostics.as_ref().map(Wire::to_wire);
                asn::$asn::new(self.cause.to_wire(), diagnostics, None)
            }
            fn from_wire(wire: asn::$asn) -> Result<Self, Invalid> {
                let diagnostics = wire.criticality_diagnostics;
                Ok(Self {
                    cause: Cause::from_wire(wire.cause)?,
                    criticality_diagnostics: diagnostics.map(CriticalityDiagnostics::from_wire).transpose()?,
                })
            }
        })*
    };
}
unsuccessful! {
    PduSessionResourceSetupUnsuccessfulTransfer = PDUSessionResourceSetupUnsuccessfulTransfer;
    PduSessionResourceModifyUnsuccessfulTransfer = PDUSessionResourceModifyUnsuccessfulTransfer;
}

/// Transfers of a cause alone.
macro_rules! cause_only {
    ($($own:ident = $asn:ident;)*) => {
        $(impl<'a> Wire<'a, asn::$asn> for $own {
            fn to_wire(&'a self) -> asn::$asn {
                asn::$asn::new(self.cause.to_wire(), None)
            }
            fn from_wire(wire: asn::$asn) -> Result<Self, Invalid> {
                Ok(Self { cause: Cause::from_wire(wire.cause)? })
            }
        })*
    };
}
cause_only! {
    PduSessionResourceReleaseCommandTransfer = PDUSessionResourceReleaseCommandTransfer;
    PduSessionResourceNotifyReleasedTransfer = PDUSessionResourceNotifyReleasedTransfer;
}

impl<'a> Wire<'a, asn::PDUSessionResourceReleaseResponseTransfer>
    for PduSessionResourceReleaseResponseTransfer
{
    fn to_wire(&'a self) -> asn::PDUSessionResourceReleaseResponseTransfer {
        asn::PDUSessionResourceReleaseResponseTransfer::new(None)
    }
    fn from_wire(_: asn::PDUSessionResourceReleaseResponseTransfer) -> Result<Self, Invalid> {
        Ok(Self)
    }
}

impl<'a> Wire<'a, asn::PDUSessionResourceModifyResponseTransfer<'a>>
    for PduSessionResourceModifyResponseTransfer
{
    fn to_wire(&'a self) -> asn::PDUSessionResourceModifyResponseTransfer<'a> {
        asn::PDUSessionResourceModifyResponseTransfer::new(
            self.dl_tunnel.as_ref().map(Wire::to_wire),
            self.ul_tunnel.as_ref().map(Wire::to_wire),
            (!self.qos_flows.is_empty()).then(|| self.qos_flows.to_wire()),
            None,
            (!self.failed_qos_flows.is_empty()).then(|| self.failed_qos_flows.to_wire()),
            None,
        )
    }
    fn from_wire(wire: asn::PDUSessionResourceModifyResponseTransfer<'a>) -> Result<Self, Invalid> {
        let flows = wire.qos_flow_add_or_modify_response_list;
        Ok(Self {
            dl_tunnel: wire.dl_ngu_up_tnl_information.map(GtpTunnel::from_wire).transpose()?,
            ul_tunnel: wire.ul_ngu_up_tnl_information.map(GtpTunnel::from_wire).transpose()?,
            qos_flows: flows.map_or(Ok(Vec::new()), Vec::from_wire)?,
            failed_qos_flows: flows_with_cause(wire.qos_flow_failed_to_add_or_modify_list)?,
        })
    }
}

impl<'a> Wire<'a, asn::PDUSessionResourceNotifyTransfer> for PduSessionResourceNotifyTransfer {
    fn to_wire(&'a self) -> asn::PDUSessionResourceNotifyTransfer {
        asn::PDUSessionResourceNotifyTransfer::new(
            (!self.qos_flows.is_empty()).then(|| self.qos_flows.to_wire()),
            (!self.released_qos_flows.is_empty()).then(|| self.released_qos_flows.to_wire()),
            None,
        )
    }
    fn from_wire(wire: asn::PDUSessionResourceNotifyTransfer) -> Result<Self, Invalid> {
        Ok(Self {
            qos_flows: wire.qos_flow_notify_list.map_or(Ok(Vec::new()), Vec::from_wire)?,
            released_qos_flows: flows_with_cause(wire.qos_flow_released_list)?,
        })
    }
}
