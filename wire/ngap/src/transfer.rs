//! Transfers (TS 38.413 §9.3.4): messages between SMF and gNB, which the AMF carries without reading them.
//!
//! Each has `encode` and `decode` of its octets, the `transfer` of a PDU session item in a message.

use bytes::Bytes;
use oxirush_ngap::aper;
use oxirush_ngap::ngap::{self as asn, ProtocolIEContainer};
use oxirush_ngap::{Deviation, ie as asn_ie};
use types::{Ambr, Arp, BitRate, FiveQi, PduSessionType, Qfi};

use crate::cause::Cause;
use crate::codec::{IeReader, IeWriter};
use crate::error::{EncodeError, TransferError};
use crate::ie::{CriticalityDiagnostics, GtpTunnel};
use crate::wire::Wire;

/// QoS Flow Level QoS Parameters (§9.3.1.12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QosParameters {
    /// What the flow needs from the network.
    pub characteristics: QosCharacteristics,
    /// Who may push whom aside.
    pub arp: Arp,
    /// Rates of a GBR flow; absent for non-GBR.
    pub gbr: Option<GbrQos>,
    /// Whether the UE may derive uplink rules from downlink packets.
    pub reflective: bool,
}

impl QosParameters {
    /// A flow of a standardised 5QI without guaranteed rate.
    pub fn non_gbr(five_qi: FiveQi, arp: Arp) -> Self {
        let characteristics = QosCharacteristics::NonDynamic { five_qi, priority: None };
        Self { characteristics, arp, gbr: None, reflective: false }
    }
}

/// QoS Characteristics (§9.3.1.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QosCharacteristics {
    /// A standardised or pre-configured 5QI (§9.3.1.28).
    NonDynamic {
        /// The 5QI.
        five_qi: FiveQi,
        /// Priority level 1–127 in place of the 5QI's own.
        priority: Option<u8>,
    },
    /// Characteristics signalled in full (§9.3.1.18).
    Dynamic {
        /// Priority level 1–127.
        priority: u8,
        /// Packet delay budget in units of 0.5 ms.
        delay_budget: u16,
        /// Packet error rate: scalar and exponent of `scalar · 10^-exponent`.
        error_rate: (u8, u8),
        /// The 5QI it was derived from, if any.
        five_qi: Option<FiveQi>,
    },
}

/// GBR QoS Flow Information (§9.3.1.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GbrQos {
    /// Maximum flow bit rates.
    pub maximum: Ambr,
    /// Guaranteed flow bit rates.
    pub guaranteed: Ambr,
    /// Whether the gNB reports when it can no longer guarantee them.
    pub notification: bool,
}

/// A QoS flow to set up or change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QosFlow {
    /// The flow.
    pub qfi: Qfi,
    /// Its parameters.
    pub parameters: QosParameters,
}

/// A QoS flow to change (§9.3.4.3): parameters only if they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QosFlowChange {
    /// The flow.
    pub qfi: Qfi,
    /// New parameters; mandatory for a new flow.
    pub parameters: Option<QosParameters>,
}

/// A QoS flow with the cause of its failure or release (QoS Flow List with Cause).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QosFlowCause {
    /// The flow.
    pub qfi: Qfi,
    /// Why.
    pub cause: Cause,
}

/// Whether a protection of the user plane is required, preferred or not needed (Security Indication, §9.3.1.27).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Without it the session is refused.
    Required,
    /// If possible.
    Preferred,
    /// Not at all.
    NotNeeded,
}

/// Security Indication (§9.3.1.27).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecurityIndication {
    /// Integrity protection.
    pub integrity: Protection,
    /// Ciphering.
    pub confidentiality: Protection,
    /// With integrity: whether the UE can do it at full rate (`true`) or at 64 kbit/s only.
    pub full_rate_integrity_uplink: Option<bool>,
}

/// Security Result (§9.3.1.59): what was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecurityResult {
    /// Integrity protection performed.
    pub integrity: bool,
    /// Ciphering performed.
    pub confidentiality: bool,
}

/// PDU Session Resource Setup Request Transfer (§9.3.4.1), SMF → gNB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PduSessionResourceSetupRequestTransfer {
    /// Session AMBR; present when a non-GBR flow is.
    pub session_ambr: Option<Ambr>,
    /// Where the gNB sends uplink packets: the UPF's end of N3.
    pub ul_tunnel: GtpTunnel,
    /// Data forwarding at handover is impossible.
    pub data_forwarding_not_possible: bool,
    /// The session's type.
    pub pdu_session_type: PduSessionType,
    /// Protection of the user plane on the radio.
    pub security_indication: Option<SecurityIndication>,
    /// Network instance, where the gNB has several.
    pub network_instance: Option<u8>,
    /// The flows.
    pub qos_flows: Vec<QosFlow>,
}

/// PDU Session Resource Setup Response Transfer (§9.3.4.2), gNB → SMF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PduSessionResourceSetupResponseTransfer {
    /// Where the UPF sends downlink packets: the gNB's end of N3.
    pub dl_tunnel: GtpTunnel,
    /// Flows set up on that tunnel.
    pub qos_flows: Vec<Qfi>,
    /// What of the Security Indication was applied, where it asked for something preferred.
    pub security_result: Option<SecurityResult>,
    /// Flows that were not set up.
    pub failed_qos_flows: Vec<QosFlowCause>,
}

/// PDU Session Resource Setup Unsuccessful Transfer (§9.3.4.16), gNB → SMF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PduSessionResourceSetupUnsuccessfulTransfer {
    /// Why.
    pub cause: Cause,
    /// What was at fault in the request.
    pub criticality_diagnostics: Option<CriticalityDiagnostics>,
}

/// PDU Session Resource Release Command Transfer (§9.3.4.12), SMF → gNB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PduSessionResourceReleaseCommandTransfer {
    /// Why.
    pub cause: Cause,
}

/// PDU Session Resource Release Response Transfer (§9.3.4.21), gNB → SMF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PduSessionResourceReleaseResponseTransfer;

/// PDU Session Resource Modify Request Transfer (§9.3.4.3), SMF → gNB; absent parts do not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PduSessionResourceModifyRequestTransfer {
    /// New session AMBR.
    pub session_ambr: Option<Ambr>,
    /// Tunnels to move: the UPF's new end, and the gNB's end it belongs to.
    pub ul_tunnels: Vec<(GtpTunnel, GtpTunnel)>,
    /// New network instance.
    pub network_instance: Option<u8>,
    /// Flows to add or change.
    pub qos_flows: Vec<QosFlowChange>,
    /// Flows to release.
    pub released_qos_flows: Vec<QosFlowCause>,
}

/// PDU Session Resource Modify Response Transfer (§9.3.4.4), gNB → SMF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PduSessionResourceModifyResponseTransfer {
    /// The gNB's new end of N3, if it moved.
    pub dl_tunnel: Option<GtpTunnel>,
    /// The UPF's end it belongs to.
    pub ul_tunnel: Option<GtpTunnel>,
    /// Flows added or changed.
    pub qos_flows: Vec<Qfi>,
    /// Flows that were not.
    pub failed_qos_flows: Vec<QosFlowCause>,
}

/// PDU Session Resource Modify Unsuccessful Transfer (§9.3.4.17), gNB → SMF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PduSessionResourceModifyUnsuccessfulTransfer {
    /// Why.
    pub cause: Cause,
    /// What was at fault in the request.
    pub criticality_diagnostics: Option<CriticalityDiagnostics>,
}

/// PDU Session Resource Notify Transfer (§9.3.4.5), gNB → SMF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PduSessionResourceNotifyTransfer {
    /// Flows, and whether their guaranteed rate is fulfilled again.
    pub qos_flows: Vec<(Qfi, bool)>,
    /// Flows the gNB released.
    pub released_qos_flows: Vec<QosFlowCause>,
}

/// PDU Session Resource Notify Released Transfer (§9.3.4.13), gNB → SMF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PduSessionResourceNotifyReleasedTransfer {
    /// Why.
    pub cause: Cause,
}

/// `encode` and `decode` through the type's `Wire` form.
macro_rules! transfers {
    ($($name:ident = $asn:ty;)*) => {
        $(impl $name {
            /// The octets, for the `transfer` of a PDU session item.
            pub fn encode(&self) -> Result<Bytes, EncodeError> {
                aper::encode(&Wire::<$asn>::to_wire(self))
                    .map(Bytes::from)
                    .map_err(|error| EncodeError { what: stringify!($name), reason: error.to_string() })
            }

            /// From the `transfer` of a PDU session item.
            pub fn decode(octets: &[u8]) -> Result<Self, TransferError> {
                let error = |reason: String| TransferError { transfer: stringify!($name), reason };
                let value = aper::decode::<$asn>(octets).map_err(|why| error(why.to_string()))?;
                Self::from_wire(value).map_err(|why| error(why.to_string()))
            }
        })*
    };
}

transfers! {
    PduSessionResourceSetupResponseTransfer = asn::PDUSessionResourceSetupResponseTransfer<'_>;
    PduSessionResourceSetupUnsuccessfulTransfer = asn::PDUSessionResourceSetupUnsuccessfulTransfer;
    PduSessionResourceReleaseCommandTransfer = asn::PDUSessionResourceReleaseCommandTransfer;
    PduSessionResourceReleaseResponseTransfer = asn::PDUSessionResourceReleaseResponseTransfer;
    PduSessionResourceModifyResponseTransfer = asn::PDUSessionResourceModifyResponseTransfer<'_>;
    PduSessionResourceModifyUnsuccessfulTransfer = asn::PDUSessionResourceModifyUnsuccessfulTransfer;
    PduSessionResourceNotifyTransfer = asn::PDUSessionResourceNotifyTransfer;
    PduSessionResourceNotifyReleasedTransfer = asn::PDUSessionResourceNotifyReleasedTransfer;
}

/// Reads a transfer that is a container of IEs, under the same rules as a message.
fn read_container<T>(
    transfer: &'static str,
    container: Result<ProtocolIEContainer<'_>, oxirush_ngap::Error>,
    deviations: Result<Vec<Deviation>, oxirush_ngap::Error>,
    read: impl FnOnce(&mut IeReader<'_>) -> Option<T>,
) -> Result<T, TransferError> {
    let error = |reason: String| TransferError { transfer, reason };
    let deviations = deviations.map_err(|why| error(why.to_string()))?;
    let mut ies = IeReader::new(container.map_err(|why| error(why.to_string()))?.0, &deviations);
    let value = read(&mut ies);
    match (ies.verdict(), value) {
        (Ok(_), Some(value)) => Ok(value),
        (Err((kind, _)), _) => Err(error(kind.to_string())),
        (Ok(_), None) => Err(error("unreadable".into())),
    }
}

const REJECT: asn::Criticality = asn::Criticality::reject;

impl PduSessionResourceSetupRequestTransfer {
    /// The octets, for the `transfer` of a [`PduSessionSetupItem`](crate::ie::PduSessionSetupItem).
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        let mut ies = IeWriter::new("PDUSessionResourceSetupRequestTransfer");
        ies.opt::<asn_ie::PDUSessionAggregateMaximumBitRate, _>(REJECT, &self.session_ambr.map(SessionAmbr))?;
        ies.req::<asn_ie::UL_NGU_UP_TNLInformation, _>(REJECT, &self.ul_tunnel)?;
        ies.flag::<asn_ie::DataForwardingNotPossible, _>(REJECT, &self.data_forwarding_not_possible)?;
        ies.req::<asn_ie::PDUSessionType, _>(REJECT, &self.pdu_session_type)?;
        ies.opt::<asn_ie::SecurityIndication, _>(REJECT, &self.security_indication)?;
        ies.opt::<asn_ie::NetworkInstance, _>(REJECT, &self.network_instance)?;
        ies.req::<asn_ie::QosFlowSetupRequestList, _>(REJECT, &self.qos_flows)?;
        ies.container().map(Bytes::from)
    }

    /// From the `transfer` of a [`PduSessionSetupItem`](crate::ie::PduSessionSetupItem).
    pub fn decode(octets: &[u8]) -> Result<Self, TransferError> {
        type Asn<'a> = asn::PDUSessionResourceSetupRequestTransfer<'a>;
        let container = aper::decode::<Asn<'_>>(octets).map(|transfer| transfer.protocol_ies);
        read_container(
            "PDUSessionResourceSetupRequestTransfer",
            container,
            Asn::check_structure(octets),
            |ies| {
                let session_ambr =
                    ies.opt::<asn_ie::PDUSessionAggregateMaximumBitRate, SessionAmbr>(REJECT)?;
                let ul_tunnel = ies.req::<asn_ie::UL_NGU_UP_TNLInformation, _>(REJECT);
                let data_forwarding_not_possible =
                    ies.flag::<asn_ie::DataForwardingNotPossible, _>(REJECT)?;
                let pdu_session_type = ies.req::<asn_ie::PDUSessionType, _>(REJECT);
                let security_indication = ies.opt::<asn_ie::SecurityIndication, _>(REJECT)?;
                let network_instance = ies.opt::<asn_ie::NetworkInstance, _>(REJECT)?;
                let qos_flows = ies.req::<asn_ie::QosFlowSetupRequestList, _>(REJECT);
                Some(Self {
                    session_ambr: session_ambr.map(|ambr| ambr.0),
                    ul_tunnel: ul_tunnel?,
                    data_forwarding_not_possible,
                    pdu_session_type: pdu_session_type?,
                    security_indication,
                    network_instance,
                    qos_flows: qos_flows?,
                })
            },
        )
    }
}

impl PduSessionResourceModifyRequestTransfer {
    /// The octets, for the `transfer` of a [`PduSessionModifyItem`](crate::ie::PduSessionModifyItem).
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        let mut ies = IeWriter::new("PDUSessionResourceModifyRequestTransfer");
        ies.opt::<asn_ie::PDUSessionAggregateMaximumBitRate, _>(REJECT, &self.session_ambr.map(SessionAmbr))?;
        ies.list::<asn_ie::UL_NGU_UP_TNLModifyList, _>(REJECT, &self.ul_tunnels)?;
        ies.opt::<asn_ie::NetworkInstance, _>(REJECT, &self.network_instance)?;
        ies.list::<asn_ie::QosFlowAddOrModifyRequestList, _>(REJECT, &self.qos_flows)?;
        ies.list::<asn_ie::QosFlowToReleaseList, _>(REJECT, &self.released_qos_flows)?;
        ies.container().map(Bytes::from)
    }

    /// From the `transfer` of a [`PduSessionModifyItem`](crate::ie::PduSessionModifyItem).
    pub fn decode(octets: &[u8]) -> Result<Self, TransferError> {
        type Asn<'a> = asn::PDUSessionResourceModifyRequestTransfer<'a>;
        let container = aper::decode::<Asn<'_>>(octets).map(|transfer| transfer.protocol_ies);
        read_container(
            "PDUSessionResourceModifyRequestTransfer",
            container,
            Asn::check_structure(octets),
            |ies| {
                let session_ambr =
                    ies.opt::<asn_ie::PDUSessionAggregateMaximumBitRate, SessionAmbr>(REJECT)?;
                Some(Self {
                    session_ambr: session_ambr.map(|ambr| ambr.0),
                    ul_tunnels: ies.list::<asn_ie::UL_NGU_UP_TNLModifyList, _>(REJECT)?,
                    network_instance: ies.opt::<asn_ie::NetworkInstance, _>(REJECT)?,
                    qos_flows: ies.list::<asn_ie::QosFlowAddOrModifyRequestList, _>(REJECT)?,
                    released_qos_flows: ies.list::<asn_ie::QosFlowToReleaseList, _>(REJECT)?,
                })
            },
        )
    }
}

/// PDU Session Aggregate Maximum Bit Rate (§9.3.1.102), which differs in type from the UE's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionAmbr(pub(crate) Ambr);

/// A rate as the standard bounds it (§9.3.1.4): at most 4 Tbit/s.
pub(crate) fn bit_rate(rate: BitRate) -> asn::BitRate {
    asn::BitRate(rate.bps().min(4_000_000_000_000))
}
