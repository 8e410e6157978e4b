//! Conversions between our values and those of the ASN.1 bindings.
//!
//! Encoding cannot fail here (the bindings check ranges when they write); decoding fails for a value
//! that the ASN.1 allows and the standard's text, or our identity types, do not.

mod transfer;

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use oxirush_ngap::ngap as asn;
use oxirush_ngap::{BitString, Bits, Octets};
use types::{
    Ambr, AmfId, BitRate, FiveQi, Guami, Invalid, Key, Ncgi, NrCellId, PduSessionId, PduSessionType, Plmn,
    Qfi, SNssai, STmsi, Tac, Tai, Teid, Tmsi,
};

use crate::cause::Cause;
use crate::ie::*;
use crate::transfer::*;

/// A value of ours that has the form `W` on the wire, which may borrow octets for `'a`.
pub(crate) trait Wire<'a, W>: Sized {
    /// The form to encode.
    fn to_wire(&'a self) -> W;
    /// The value, if it is one of ours.
    fn from_wire(wire: W) -> Result<Self, Invalid>;
}

/// An error for a value that a later release defines, or that is for another kind of node.
fn unknown<T>(what: &'static str) -> Result<T, Invalid> {
    Err(Invalid::new(what, "of an alternative or value not known here", "one of TS 38.413"))
}

/// Newtypes of the bindings around one number.
macro_rules! number {
    ($($own:ty = $asn:ident, $to:expr, $from:expr;)*) => {
        $(impl<'a> Wire<'a, asn::$asn> for $own {
            fn to_wire(&'a self) -> asn::$asn {
                let to: fn(&$own) -> _ = $to;
                asn::$asn(to(self))
            }
            fn from_wire(wire: asn::$asn) -> Result<Self, Invalid> {
                let from: fn(_) -> Result<$own, Invalid> = $from;
                from(wire.0)
            }
        })*
    };
}

number! {
    AmfUeNgapId = AMFUENGAPID, |id| id.0, |id| Ok(AmfUeNgapId(id));
    RanUeNgapId = RANUENGAPID, |id| id.0, |id| Ok(RanUeNgapId(id));
    u8 = RelativeAMFCapacity, |n| *n, Ok;
    PduSessionId = PDUSessionID, |id| id.value(), PduSessionId::new;
    Tac = TAC, |tac| tac.to_octets(), |octets| Ok(Tac::from_octets(octets));
    Teid = GTPTEID, |teid| teid.0.to_be_bytes(), |octets| Ok(Teid(u32::from_be_bytes(octets)));
    AmfSetId = AMFSetID, |id| Bits::low(id.value().into(), 10),
        |bits: Bits| AmfSetId::new(bits.value() as u16)
            .ok_or_else(|| Invalid::new("AMF Set ID", bits.value(), "10 bits"));
    Qfi = QosFlowIdentifier, |qfi| qfi.value().into(),
        |qfi| u8::try_from(qfi).ok().and_then(|qfi| Qfi::new(qfi).ok())
            .ok_or_else(|| Invalid::new("QFI", qfi, "0 to 63"));
    FiveQi = FiveQI, |qi| qi.0.into(),
        |qi| u8::try_from(qi).map(FiveQi).map_err(|_| Invalid::new("5QI", qi, "0 to 255"));
    u8 = NetworkInstance, |n| (*n).into(),
        |n| u8::try_from(n).map_err(|_| Invalid::new("network instance", n, "1 to 256"));
}

/// Octets and strings that pass through.
macro_rules! octets {
    ($($asn:ident),*) => {
        $(impl<'a> Wire<'a, asn::$asn<'a>> for Bytes {
            fn to_wire(&'a self) -> asn::$asn<'a> {
                asn::$asn(Octets::borrowed(self))
            }
            fn from_wire(wire: asn::$asn<'a>) -> Result<Self, Invalid> {
                Ok(Bytes::copy_from_slice(&wire.0))
            }
        })*
    };
}
octets!(NASPDU, UERadioCapability);

impl<'a> Wire<'a, Octets<'a>> for Bytes {
    fn to_wire(&'a self) -> Octets<'a> {
        Octets::borrowed(self)
    }
    fn from_wire(wire: Octets<'a>) -> Result<Self, Invalid> {
        Ok(Bytes::copy_from_slice(&wire))
    }
}

macro_rules! strings {
    ($($asn:ident),*) => {
        $(impl<'a> Wire<'a, asn::$asn<'a>> for String {
            fn to_wire(&'a self) -> asn::$asn<'a> {
                asn::$asn(self.as_str().into())
            }
            fn from_wire(wire: asn::$asn<'a>) -> Result<Self, Invalid> {
                Ok(wire.0.into_owned())
            }
        })*
    };
}
strings!(RANNodeName, AMFName);

/// Enumerations, value by value.
macro_rules! enumerated {
    ($($own:ident = $asn:ident { $($variant:ident = $twin:ident),* };)*) => {
        $(impl<'a> Wire<'a, asn::$asn> for $own {
            fn to_wire(&'a self) -> asn::$asn {
                match self { $(Self::$variant => asn::$asn::$twin,)* }
            }
            #[allow(unreachable_patterns, reason = "not every enumeration of the ASN.1 is extensible")]
            fn from_wire(wire: asn::$asn) -> Result<Self, Invalid> {
                match wire { $(asn::$asn::$twin => Ok(Self::$variant),)* _ => unknown(stringify!($own)) }
            }
        })*
    };
}

enumerated! {
    PagingDrx = PagingDRX { V32 = v32, V64 = v64, V128 = v128, V256 = v256 };
    TimeToWait = TimeToWait { V1s = v1s, V2s = v2s, V5s = v5s, V10s = v10s, V20s = v20s, V60s = v60s };
    RrcEstablishmentCause = RRCEstablishmentCause {
        Emergency = emergency, HighPriorityAccess = highPriorityAccess, MtAccess = mt_Access,
        MoSignalling = mo_Signalling, MoData = mo_Data, MoVoiceCall = mo_VoiceCall,
        MoVideoCall = mo_VideoCall, MoSms = mo_SMS, MpsPriorityAccess = mps_PriorityAccess,
        McsPriorityAccess = mcs_PriorityAccess, NotAvailable = notAvailable,
        MoExceptionData = mo_ExceptionData
    };
    PduSessionType = PDUSessionType {
        Ipv4 = ipv4, Ipv6 = ipv6, Ipv4v6 = ipv4v6, Ethernet = ethernet, Unstructured = unstructured
    };
    Protection = IntegrityProtectionIndication {
        Required = required, Preferred = preferred, NotNeeded = not_needed
    };
    Protection = ConfidentialityProtectionIndication {
        Required = required, Preferred = preferred, NotNeeded = not_needed
    };
    TypeOfError = TypeOfError { NotUnderstood = not_understood, Missing = missing };
    TriggeringMessage = TriggeringMessage {
        InitiatingMessage = initiating_message, SuccessfulOutcome = successful_outcome,
        UnsuccessfulOutcome = unsuccessful_outcome
    };
    Criticality = Criticality { Reject = reject, Ignore = ignore, Notify = notify };
}

impl From<asn::Criticality> for Criticality {
    fn from(wire: asn::Criticality) -> Self {
        match wire {
            asn::Criticality::reject => Self::Reject,
            asn::Criticality::ignore => Self::Ignore,
            asn::Criticality::notify => Self::Notify,
        }
    }
}

impl TriggeringMessage {
    /// From the name the bindings give a direction.
    pub(crate) fn of(direction: &str) -> Self {
        match direction {
            "InitiatingMessage" => Self::InitiatingMessage,
            "SuccessfulOutcome" => Self::SuccessfulOutcome,
            _ => Self::UnsuccessfulOutcome,
        }
    }
}

/// One-valued enumerations that are flags of ours.
macro_rules! flags {
    ($($asn:ident = $twin:ident),*) => {
        $(impl<'a> Wire<'a, asn::$asn> for bool {
            fn to_wire(&'a self) -> asn::$asn {
                asn::$asn::$twin
            }
            fn from_wire(_: asn::$asn) -> Result<Self, Invalid> {
                Ok(true)
            }
        })*
    };
}
flags!(UEContextRequest = requested, DataForwardingNotPossible = data_forwarding_not_possible);

/// Lists whose items have their own form.
macro_rules! lists {
    ($($own:ty = $asn:ty, $make:path;)*) => {
        $(impl<'a> Wire<'a, $asn> for Vec<$own> {
            fn to_wire(&'a self) -> $asn {
                $make(self.iter().map(Wire::to_wire).collect())
            }
            fn from_wire(wire: $asn) -> Result<Self, Invalid> {
                wire.0.into_iter().map(<$own>::from_wire).collect()
            }
        })*
    };
}

lists! {
    SupportedTa = asn::SupportedTAList, asn::SupportedTAList;
    PlmnSlices = asn::BroadcastPLMNList, asn::BroadcastPLMNList;
    PlmnSlices = asn::PLMNSupportList, asn::PLMNSupportList;
    ServedGuami = asn::ServedGUAMIList<'a>, asn::ServedGUAMIList;
    SNssai = asn::SliceSupportList, asn::SliceSupportList;
    SNssai = asn::AllowedNSSAI, asn::AllowedNSSAI;
    Tai = asn::TAIListForPaging, asn::TAIListForPaging;
    UeConnection = asn::UEAssociatedLogicalNGConnectionList, asn::UEAssociatedLogicalNGConnectionList;
    PduSessionId = asn::PDUSessionResourceListCxtRelReq, asn::PDUSessionResourceListCxtRelReq;
    PduSessionId = asn::PDUSessionResourceListCxtRelCpl, asn::PDUSessionResourceListCxtRelCpl;
    PduSessionSetupItem = asn::PDUSessionResourceSetupListCxtReq<'a>, asn::PDUSessionResourceSetupListCxtReq;
    PduSessionSetupItem = asn::PDUSessionResourceSetupListSUReq<'a>, asn::PDUSessionResourceSetupListSUReq;
    PduSessionModifyItem = asn::PDUSessionResourceModifyListModReq<'a>, asn::PDUSessionResourceModifyListModReq;
    PduSessionItem = asn::PDUSessionResourceSetupListCxtRes<'a>, asn::PDUSessionResourceSetupListCxtRes;
    PduSessionItem = asn::PDUSessionResourceFailedToSetupListCxtRes<'a>,
        asn::PDUSessionResourceFailedToSetupListCxtRes;
    PduSessionItem = asn::PDUSessionResourceFailedToSetupListCxtFail<'a>,
        asn::PDUSessionResourceFailedToSetupListCxtFail;
    PduSessionItem = asn::PDUSessionResourceSetupListSURes<'a>, asn::PDUSessionResourceSetupListSURes;
    PduSessionItem = asn::PDUSessionResourceFailedToSetupListSURes<'a>,
        asn::PDUSessionResourceFailedToSetupListSURes;
    PduSessionItem = asn::PDUSessionResourceToReleaseListRelCmd<'a>, asn::PDUSessionResourceToReleaseListRelCmd;
    PduSessionItem = asn::PDUSessionResourceReleasedListRelRes<'a>, asn::PDUSessionResourceReleasedListRelRes;
    PduSessionItem = asn::PDUSessionResourceModifyListModRes<'a>, asn::PDUSessionResourceModifyListModRes;
    PduSessionItem = asn::PDUSessionResourceFailedToModifyListModRes<'a>,
        asn::PDUSessionResourceFailedToModifyListModRes;
    PduSessionItem = asn::PDUSessionResourceNotifyList<'a>, asn::PDUSessionResourceNotifyList;
    PduSessionItem = asn::PDUSessionResourceReleasedListNot<'a>, asn::PDUSessionResourceReleasedListNot;
    QosFlow = asn::QosFlowSetupRequestList, asn::QosFlowSetupRequestList;
    QosFlowChange = asn::QosFlowAddOrModifyRequestList, asn::QosFlowAddOrModifyRequestList;
    QosFlowCause = asn::QosFlowListWithCause, asn::QosFlowListWithCause;
    Qfi = asn::AssociatedQosFlowList, asn::AssociatedQosFlowList;
    Qfi = asn::QosFlowAddOrModifyResponseList, asn::QosFlowAddOrModifyResponseList;
    (Qfi, bool) = asn::QosFlowNotifyList, asn::QosFlowNotifyList;
    (GtpTunnel, GtpTunnel) = asn::ULNGUUPTNLModifyList<'a>, asn::ULNGUUPTNLModifyList;
}

/// PDU session items: an identity and one transfer.
macro_rules! session_items {
    ($($asn:ident . $transfer:ident;)*) => {
        $(impl<'a> Wire<'a, asn::$asn<'a>> for PduSessionItem {
            fn to_wire(&'a self) -> asn::$asn<'a> {
                asn::$asn::new(self.id.to_wire(), self.transfer.to_wire(), None)
            }
            fn from_wire(wire: asn::$asn<'a>) -> Result<Self, Invalid> {
                let id = PduSessionId::from_wire(wire.pdu_session_id)?;
                Ok(Self { id, transfer: Bytes::from_wire(wire.$transfer)? })
            }
        })*
    };
}

session_items! {
    PDUSessionResourceSetupItemCxtRes.pdu_session_resource_setup_response_transfer;
    PDUSessionResourceFailedToSetupItemCxtRes.pdu_session_resource_setup_unsuccessful_transfer;
    PDUSessionResourceFailedToSetupItemCxtFail.pdu_session_resource_setup_unsuccessful_transfer;
    PDUSessionResourceSetupItemSURes.pdu_session_resource_setup_response_transfer;
    PDUSessionResourceFailedToSetupItemSURes.pdu_session_resource_setup_unsuccessful_transfer;
    PDUSessionResourceToReleaseItemRelCmd.pdu_session_resource_release_command_transfer;
    PDUSessionResourceReleasedItemRelRes.pdu_session_resource_release_response_transfer;
    PDUSessionResourceModifyItemModRes.pdu_session_resource_modify_response_transfer;
    PDUSessionResourceFailedToModifyItemModRes.pdu_session_resource_modify_unsuccessful_transfer;
    PDUSessionResourceNotifyItem.pdu_session_resource_notify_transfer;
    PDUSessionResourceReleasedItemNot.pdu_session_resource_notify_released_transfer;
}

/// Items that only wrap one value.
macro_rules! wrapped {
    ($($own:ty = $asn:ident . $field:ident;)*) => {
        $(impl<'a> Wire<'a, asn::$asn> for $own {
            fn to_wire(&'a self) -> asn::$asn {
                asn::$asn::new(self.to_wire(), None)
            }
            fn from_wire(wire: asn::$asn) -> Result<Self, Invalid> {
                <$own>::from_wire(wire.$field)
            }
        })*
    };
}

wrapped! {
    SNssai = SliceSupportItem.s_nssai;
    SNssai = AllowedNSSAIItem.s_nssai;
    Tai = TAIListForPagingItem.tai;
    PduSessionId = PDUSessionResourceItemCxtRelReq.pdu_session_id;
    PduSessionId = PDUSessionResourceItemCxtRelCpl.pdu_session_id;
    Qfi = QosFlowAddOrModifyResponseItem.qos_flow_identifier;
}

/// NGAP's order of the PLMN digits (§9.3.3.5) is not that of NAS for three-digit MNCs.
impl<'a> Wire<'a, asn::PLMNIdentity> for Plmn {
    fn to_wire(&'a self) -> asn::PLMNIdentity {
        let digit = |text: &str, at: usize| text.as_bytes().get(at).map_or(0xf, |byte| byte - b'0');
        let (mcc, mnc) = (self.mcc(), self.mnc());
        let (first, rest) = if mnc.len() == 3 { (digit(&mnc, 0), 1) } else { (0xf, 0) };
        asn::PLMNIdentity([
            digit(&mcc, 1) << 4 | digit(&mcc, 0),
            first << 4 | digit(&mcc, 2),
            digit(&mnc, rest + 1) << 4 | digit(&mnc, rest),
        ])
    }
    fn from_wire(wire: asn::PLMNIdentity) -> Result<Self, Invalid> {
        let (mcc, mnc) = oxirush_ngap::helpers::plmn_from(&wire)
            .ok_or_else(|| Invalid::new("PLMN identity", format!("{:02x?}", wire.0), "decimal digits"))?;
        Plmn::new(&mcc, &mnc)
    }
}

impl<'a> Wire<'a, asn::SNSSAI> for SNssai {
    fn to_wire(&'a self) -> asn::SNSSAI {
        asn::SNSSAI::new(asn::SST([self.sst]), self.sd_octets().map(asn::SD), None)
    }
    fn from_wire(wire: asn::SNSSAI) -> Result<Self, Invalid> {
        Ok(SNssai::from_octets(wire.sst.0[0], wire.sd.map(|sd| sd.0)))
    }
}

impl<'a> Wire<'a, asn::TAI> for Tai {
    fn to_wire(&'a self) -> asn::TAI {
        asn::TAI::new(self.plmn.to_wire(), self.tac.to_wire(), None)
    }
    fn from_wire(wire: asn::TAI) -> Result<Self, Invalid> {
        Ok(Tai { plmn: Plmn::from_wire(wire.plmn_identity)?, tac: Tac::from_wire(wire.tac)? })
    }
}

impl<'a> Wire<'a, asn::NRCGI> for Ncgi {
    fn to_wire(&'a self) -> asn::NRCGI {
        let cell = asn::NRCellIdentity(Bits::low(self.nr_cell_id.value(), 36));
        asn::NRCGI::new(self.plmn.to_wire(), cell, None)
    }
    fn from_wire(wire: asn::NRCGI) -> Result<Self, Invalid> {
        let nr_cell_id = NrCellId::new(wire.nr_cell_identity.0.value())?;
        Ok(Ncgi { plmn: Plmn::from_wire(wire.plmn_identity)?, nr_cell_id })
    }
}

impl<'a> Wire<'a, asn::GUAMI> for Guami {
    fn to_wire(&'a self) -> asn::GUAMI {
        asn::GUAMI::new(
            self.plmn.to_wire(),
            asn::AMFRegionID(Bits::from(self.amf_id.region())),
            asn::AMFSetID(Bits::low(self.amf_id.set().into(), 10)),
            asn::AMFPointer(Bits::low(self.amf_id.pointer().into(), 6)),
            None,
        )
    }
    fn from_wire(wire: asn::GUAMI) -> Result<Self, Invalid> {
        let amf_id = AmfId::new(
            wire.amf_region_id.0.value() as u8,
            wire.amf_set_id.0.value() as u16,
            wire.amf_pointer.0.value() as u8,
        )?;
        Ok(Guami { plmn: Plmn::from_wire(wire.plmn_identity)?, amf_id })
    }
}

impl<'a> Wire<'a, asn::FiveGSTMSI> for STmsi {
    fn to_wire(&'a self) -> asn::FiveGSTMSI {
        asn::FiveGSTMSI::new(
            asn::AMFSetID(Bits::low(self.set().into(), 10)),
            asn::AMFPointer(Bits::low(self.pointer().into(), 6)),
            asn::FiveGTMSI(self.tmsi().0.to_be_bytes()),
            None,
        )
    }
    fn from_wire(wire: asn::FiveGSTMSI) -> Result<Self, Invalid> {
        let tmsi = Tmsi(u32::from_be_bytes(wire.five_g_tmsi.0));
        STmsi::new(wire.amf_set_id.0.value() as u16, wire.amf_pointer.0.value() as u8, tmsi)
    }
}

impl<'a> Wire<'a, asn::UEPagingIdentity> for STmsi {
    fn to_wire(&'a self) -> asn::UEPagingIdentity {
        asn::UEPagingIdentity::fiveG_S_TMSI(self.to_wire())
    }
    fn from_wire(wire: asn::UEPagingIdentity) -> Result<Self, Invalid> {
        match wire {
            asn::UEPagingIdentity::fiveG_S_TMSI(tmsi) => Self::from_wire(tmsi),
            asn::UEPagingIdentity::choice_Extensions(_) => unknown("UE paging identity"),
        }
    }
}

impl<'a> Wire<'a, asn::GlobalRANNodeID> for GlobalRanNodeId {
    fn to_wire(&'a self) -> asn::GlobalRANNodeID {
        match self {
            Self::Gnb { plmn, id } => {
                let id = asn::GNBID::gNB_ID(Bits::low(id.value().into(), id.bits().into()));
                asn::GlobalRANNodeID::globalGNB_ID(asn::GlobalGNBID::new(plmn.to_wire(), id, None))
            }
            Self::NgEnb { plmn, id, bits } => {
                let value = Bits::low((*id).into(), usize::from(*bits));
                let id = match bits {
                    18 => asn::NgENBID::shortMacroNgENB_ID(value),
                    21 => asn::NgENBID::longMacroNgENB_ID(value),
                    _ => asn::NgENBID::macroNgENB_ID(value),
                };
                asn::GlobalRANNodeID::globalNgENB_ID(asn::GlobalNgENBID::new(plmn.to_wire(), id, None))
            }
            Self::N3iwf { plmn, id } => {
                let id = asn::N3IWFID::n3IWF_ID(Bits::low((*id).into(), 16));
                asn::GlobalRANNodeID::globalN3IWF_ID(asn::GlobalN3IWFID::new(plmn.to_wire(), id, None))
            }
        }
    }
    fn from_wire(wire: asn::GlobalRANNodeID) -> Result<Self, Invalid> {
        match wire {
            asn::GlobalRANNodeID::globalGNB_ID(gnb) => {
                let asn::GNBID::gNB_ID(bits) = gnb.gnb_id else { return unknown("gNB ID") };
                let id = GnbId::new(bits.value() as u32, bits.len() as u8)
                    .ok_or_else(|| Invalid::new("gNB ID", bits.value(), "22 to 32 bits"))?;
                Ok(Self::Gnb { plmn: Plmn::from_wire(gnb.plmn_identity)?, id })
            }
            asn::GlobalRANNodeID::globalNgENB_ID(enb) => {
                let plmn = Plmn::from_wire(enb.plmn_identity)?;
                let bits = match enb.ng_enb_id {
                    asn::NgENBID::macroNgENB_ID(bits)
                    | asn::NgENBID::shortMacroNgENB_ID(bits)
                    | asn::NgENBID::longMacroNgENB_ID(bits) => bits,
                    asn::NgENBID::choice_Extensions(_) => return unknown("ng-eNB ID"),
                };
                Ok(Self::NgEnb { plmn, id: bits.value() as u32, bits: bits.len() as u8 })
            }
            asn::GlobalRANNodeID::globalN3IWF_ID(n3iwf) => {
                let asn::N3IWFID::n3IWF_ID(bits) = n3iwf.n3iwf_id else { return unknown("N3IWF ID") };
                Ok(Self::N3iwf { plmn: Plmn::from_wire(n3iwf.plmn_identity)?, id: bits.value() as u16 })
            }
            asn::GlobalRANNodeID::choice_Extensions(_) => unknown("RAN node ID"),
        }
    }
}

impl<'a> Wire<'a, asn::SupportedTAItem> for SupportedTa {
    fn to_wire(&'a self) -> asn::SupportedTAItem {
        asn::SupportedTAItem::new(self.tac.to_wire(), self.broadcast_plmns.to_wire(), None)
    }
    fn from_wire(wire: asn::SupportedTAItem) -> Result<Self, Invalid> {
        let broadcast_plmns = Vec::from_wire(wire.broadcast_plmn_list)?;
        Ok(Self { tac: Tac::from_wire(wire.tac)?, broadcast_plmns })
    }
}

impl<'a> Wire<'a, asn::BroadcastPLMNItem> for PlmnSlices {
    fn to_wire(&'a self) -> asn::BroadcastPLMNItem {
        asn::BroadcastPLMNItem::new(self.plmn.to_wire(), self.slices.to_wire(), None)
    }
    fn from_wire(wire: asn::BroadcastPLMNItem) -> Result<Self, Invalid> {
        let slices = Vec::from_wire(wire.tai_slice_support_list)?;
        Ok(Self { plmn: Plmn::from_wire(wire.plmn_identity)?, slices })
    }
}

impl<'a> Wire<'a, asn::PLMNSupportItem> for PlmnSlices {
    fn to_wire(&'a self) -> asn::PLMNSupportItem {
        asn::PLMNSupportItem::new(self.plmn.to_wire(), self.slices.to_wire(), None)
    }
    fn from_wire(wire: asn::PLMNSupportItem) -> Result<Self, Invalid> {
        let slices = Vec::from_wire(wire.slice_support_list)?;
        Ok(Self { plmn: Plmn::from_wire(wire.plmn_identity)?, slices })
    }
}

impl<'a> Wire<'a, asn::ServedGUAMIItem<'a>> for ServedGuami {
    fn to_wire(&'a self) -> asn::ServedGUAMIItem<'a> {
        asn::ServedGUAMIItem::new(
            self.guami.to_wire(),
            self.backup_amf_name.as_ref().map(Wire::to_wire),
            None,
        )
    }
    fn from_wire(wire: asn::ServedGUAMIItem<'a>) -> Result<Self, Invalid> {
        let backup_amf_name = wire.backup_amf_name.map(String::from_wire).transpose()?;
        Ok(Self { guami: Guami::from_wire(wire.guami)?, backup_amf_name })
    }
}

impl<'a> Wire<'a, asn::TransportLayerAddress<'a>> for TransportAddress {
    fn to_wire(&'a self) -> asn::TransportLayerAddress<'a> {
        let octets = match self {
            Self::V4(address) => address.octets().to_vec(),
            Self::V6(address) => address.octets().to_vec(),
            Self::V4V6(v4, v6) => [&v4.octets()[..], &v6.octets()].concat(),
        };
        asn::TransportLayerAddress(BitString::from_octets(octets))
    }
    fn from_wire(wire: asn::TransportLayerAddress<'a>) -> Result<Self, Invalid> {
        let invalid =
            || Invalid::new("transport layer address", wire.0.len(), "32, 128 or 160 bits (TS 38.414)");
        let octets = wire.0.as_octets();
        let v4 = |octets: &[u8]| <[u8; 4]>::try_from(octets).map(Ipv4Addr::from).map_err(|_| invalid());
        let v6 = |octets: &[u8]| <[u8; 16]>::try_from(octets).map(Ipv6Addr::from).map_err(|_| invalid());
        match (wire.0.len(), octets.split_at_checked(4)) {
            (32, _) => v4(octets).map(Self::V4),
            (128, _) => v6(octets).map(Self::V6),
            (160, Some((first, second))) => Ok(Self::V4V6(v4(first)?, v6(second)?)),
            _ => Err(invalid()),
        }
    }
}

impl<'a> Wire<'a, asn::UPTransportLayerInformation<'a>> for GtpTunnel {
    fn to_wire(&'a self) -> asn::UPTransportLayerInformation<'a> {
        let tunnel = asn::GTPTunnel::new(self.address.to_wire(), self.teid.to_wire(), None);
        asn::UPTransportLayerInformation::gTPTunnel(tunnel)
    }
    fn from_wire(wire: asn::UPTransportLayerInformation<'a>) -> Result<Self, Invalid> {
        let asn::UPTransportLayerInformation::gTPTunnel(tunnel) = wire else {
            return unknown("UP transport layer information");
        };
        let address = TransportAddress::from_wire(tunnel.transport_layer_address)?;
        Ok(Self { address, teid: Teid::from_wire(tunnel.gtp_teid)? })
    }
}

impl<'a> Wire<'a, asn::ULNGUUPTNLModifyItem<'a>> for (GtpTunnel, GtpTunnel) {
    fn to_wire(&'a self) -> asn::ULNGUUPTNLModifyItem<'a> {
        asn::ULNGUUPTNLModifyItem::new(self.0.to_wire(), self.1.to_wire(), None)
    }
    fn from_wire(wire: asn::ULNGUUPTNLModifyItem<'a>) -> Result<Self, Invalid> {
        Ok((
            GtpTunnel::from_wire(wire.ul_ngu_up_tnl_information)?,
            GtpTunnel::from_wire(wire.dl_ngu_up_tnl_information)?,
        ))
    }
}

impl<'a> Wire<'a, asn::UserLocationInformation<'a>> for UserLocation {
    fn to_wire(&'a self) -> asn::UserLocationInformation<'a> {
        type Asn<'a> = asn::UserLocationInformation<'a>;
        match self {
            Self::Nr { ncgi, tai, time_stamp } => {
                let stamp = time_stamp.map(|stamp| asn::TimeStamp(stamp.to_be_bytes()));
                Asn::userLocationInformationNR(asn::UserLocationInformationNR::new(
                    ncgi.to_wire(),
                    tai.to_wire(),
                    stamp,
                    None,
                ))
            }
            Self::Eutra { plmn, cell_id, tai } => {
                let cell = asn::EUTRACellIdentity(Bits::low((*cell_id).into(), 28));
                let cgi = asn::EUTRACGI::new(plmn.to_wire(), cell, None);
                Asn::userLocationInformationEUTRA(asn::UserLocationInformationEUTRA::new(
                    cgi,
                    tai.to_wire(),
                    None,
                    None,
                ))
            }
            Self::N3iwf { address, port } => Asn::userLocationInformationN3IWF_with_PortNumber(
                asn::UserLocationInformationN3IWFWithPortNumber::new(
                    address.to_wire(),
                    asn::PortNumber(port.to_be_bytes()),
                    None,
                ),
            ),
        }
    }
    fn from_wire(wire: asn::UserLocationInformation<'a>) -> Result<Self, Invalid> {
        type Asn<'a> = asn::UserLocationInformation<'a>;
        match wire {
            Asn::userLocationInformationNR(nr) => Ok(Self::Nr {
                ncgi: Ncgi::from_wire(nr.nr_cgi)?,
                tai: Tai::from_wire(nr.tai)?,
                time_stamp: nr.time_stamp.map(|stamp| u32::from_be_bytes(stamp.0)),
            }),
            Asn::userLocationInformationEUTRA(eutra) => Ok(Self::Eutra {
                plmn: Plmn::from_wire(eutra.eutra_cgi.plmn_identity)?,
                cell_id: eutra.eutra_cgi.eutra_cell_identity.0.value() as u32,
                tai: Tai::from_wire(eutra.tai)?,
            }),
            Asn::userLocationInformationN3IWF_with_PortNumber(n3iwf) => Ok(Self::N3iwf {
                address: TransportAddress::from_wire(n3iwf.ip_address)?,
                port: u16::from_be_bytes(n3iwf.port_number.0),
            }),
            Asn::choice_Extensions(_) => unknown("user location information"),
        }
    }
}

/// Algorithm bitmaps; bits after the first 16 belong to later releases.
fn algorithms(bits: &BitString<'_>) -> u16 {
    let octets = bits.as_octets();
    let octet = |at: usize| octets.get(at).copied().unwrap_or(0);
    u16::from_be_bytes([octet(0), octet(1)])
}

impl<'a> Wire<'a, asn::UESecurityCapabilities<'a>> for UeSecurityCapabilities {
    fn to_wire(&'a self) -> asn::UESecurityCapabilities<'a> {
        let bits = |value: u16| BitString::from(value.to_be_bytes());
        asn::UESecurityCapabilities::new(
            asn::NRencryptionAlgorithms(bits(self.nr_encryption)),
            asn::NRintegrityProtectionAlgorithms(bits(self.nr_integrity)),
            asn::EUTRAencryptionAlgorithms(bits(self.eutra_encryption)),
            asn::EUTRAintegrityProtectionAlgorithms(bits(self.eutra_integrity)),
            None,
        )
    }
    fn from_wire(wire: asn::UESecurityCapabilities<'a>) -> Result<Self, Invalid> {
        Ok(Self {
            nr_encryption: algorithms(&wire.nr_encryption_algorithms.0),
            nr_integrity: algorithms(&wire.nr_integrity_protection_algorithms.0),
            eutra_encryption: algorithms(&wire.eutra_encryption_algorithms.0),
            eutra_integrity: algorithms(&wire.eutra_integrity_protection_algorithms.0),
        })
    }
}

impl<'a> Wire<'a, asn::SecurityKey<'a>> for Key<32> {
    fn to_wire(&'a self) -> asn::SecurityKey<'a> {
        asn::SecurityKey(BitString::from_octets(&self.expose()[..]))
    }
    fn from_wire(wire: asn::SecurityKey<'a>) -> Result<Self, Invalid> {
        let octets = <[u8; 32]>::try_from(wire.0.as_octets());
        octets.map(Key::new).map_err(|_| Invalid::new("security key", "(not shown)", "256 bits"))
    }
}

impl<'a> Wire<'a, asn::UEAggregateMaximumBitRate> for Ambr {
    fn to_wire(&'a self) -> asn::UEAggregateMaximumBitRate {
        asn::UEAggregateMaximumBitRate::new(bit_rate(self.downlink), bit_rate(self.uplink), None)
    }
    fn from_wire(wire: asn::UEAggregateMaximumBitRate) -> Result<Self, Invalid> {
        Ok(Self {
            uplink: BitRate::from_bps(wire.ue_aggregate_maximum_bit_rate_ul.0),
            downlink: BitRate::from_bps(wire.ue_aggregate_maximum_bit_rate_dl.0),
        })
    }
}

impl<'a> Wire<'a, asn::PDUSessionAggregateMaximumBitRate> for SessionAmbr {
    fn to_wire(&'a self) -> asn::PDUSessionAggregateMaximumBitRate {
        let ambr = self.0;
        asn::PDUSessionAggregateMaximumBitRate::new(bit_rate(ambr.downlink), bit_rate(ambr.uplink), None)
    }
    fn from_wire(wire: asn::PDUSessionAggregateMaximumBitRate) -> Result<Self, Invalid> {
        Ok(Self(Ambr {
            uplink: BitRate::from_bps(wire.pdu_session_aggregate_maximum_bit_rate_ul.0),
            downlink: BitRate::from_bps(wire.pdu_session_aggregate_maximum_bit_rate_dl.0),
        }))
    }
}

impl<'a> Wire<'a, asn::UENGAPIDs> for UeNgapIds {
    fn to_wire(&'a self) -> asn::UENGAPIDs {
        match self {
            Self::Pair(amf, ran) => {
                asn::UENGAPIDs::uE_NGAP_ID_pair(asn::UENGAPIDPair::new(amf.to_wire(), ran.to_wire(), None))
            }
            Self::Amf(amf) => asn::UENGAPIDs::aMF_UE_NGAP_ID(amf.to_wire()),
        }
    }
    fn from_wire(wire: asn::UENGAPIDs) -> Result<Self, Invalid> {
        match wire {
            asn::UENGAPIDs::uE_NGAP_ID_pair(pair) => Ok(Self::Pair(
                AmfUeNgapId::from_wire(pair.amf_ue_ngap_id)?,
                RanUeNgapId::from_wire(pair.ran_ue_ngap_id)?,
            )),
            asn::UENGAPIDs::aMF_UE_NGAP_ID(amf) => Ok(Self::Amf(AmfUeNgapId::from_wire(amf)?)),
            asn::UENGAPIDs::choice_Extensions(_) => unknown("UE NGAP IDs"),
        }
    }
}

impl<'a> Wire<'a, asn::ResetType> for ResetType {
    fn to_wire(&'a self) -> asn::ResetType {
        match self {
            Self::NgInterface => asn::ResetType::nG_Interface(asn::ResetAll::reset_all),
            Self::PartOfNgInterface(list) => asn::ResetType::partOfNG_Interface(list.to_wire()),
        }
    }
    fn from_wire(wire: asn::ResetType) -> Result<Self, Invalid> {
        match wire {
            asn::ResetType::nG_Interface(_) => Ok(Self::NgInterface),
            asn::ResetType::partOfNG_Interface(list) => Vec::from_wire(list).map(Self::PartOfNgInterface),
            asn::ResetType::choice_Extensions(_) => unknown("reset type"),
        }
    }
}

impl<'a> Wire<'a, asn::UEAssociatedLogicalNGConnectionItem> for UeConnection {
    fn to_wire(&'a self) -> asn::UEAssociatedLogicalNGConnectionItem {
        asn::UEAssociatedLogicalNGConnectionItem::new(
            self.amf_ue_ngap_id.as_ref().map(Wire::to_wire),
            self.ran_ue_ngap_id.as_ref().map(Wire::to_wire),
            None,
        )
    }
    fn from_wire(wire: asn::UEAssociatedLogicalNGConnectionItem) -> Result<Self, Invalid> {
        Ok(Self {
            amf_ue_ngap_id: wire.amf_ue_ngap_id.map(AmfUeNgapId::from_wire).transpose()?,
            ran_ue_ngap_id: wire.ran_ue_ngap_id.map(RanUeNgapId::from_wire).transpose()?,
        })
    }
}

impl<'a> Wire<'a, asn::Cause> for Cause {
    fn to_wire(&'a self) -> asn::Cause {
        match self {
            Self::RadioNetwork(cause) => asn::Cause::radioNetwork(cause.to_asn()),
            Self::Transport(cause) => asn::Cause::transport(cause.to_asn()),
            Self::Nas(cause) => asn::Cause::nas(cause.to_asn()),
            Self::Protocol(cause) => asn::Cause::protocol(cause.to_asn()),
            Self::Misc(cause) => asn::Cause::misc(cause.to_asn()),
        }
    }
    fn from_wire(wire: asn::Cause) -> Result<Self, Invalid> {
        use crate::cause::{Misc, Nas, Protocol, RadioNetwork, Transport};
        let cause = match wire {
            asn::Cause::radioNetwork(cause) => RadioNetwork::from_asn(cause).map(Self::from),
            asn::Cause::transport(cause) => Transport::from_asn(cause).map(Self::from),
            asn::Cause::nas(cause) => Nas::from_asn(cause).map(Self::from),
            asn::Cause::protocol(cause) => Protocol::from_asn(cause).map(Self::from),
            asn::Cause::misc(cause) => Misc::from_asn(cause).map(Self::from),
            _ => None,
        };
        cause.map_or_else(|| unknown("cause"), Ok)
    }
}

impl<'a> Wire<'a, asn::CriticalityDiagnostics> for CriticalityDiagnostics {
    fn to_wire(&'a self) -> asn::CriticalityDiagnostics {
        let items = self.ies.iter().map(|item| {
            asn::CriticalityDiagnosticsIEItem::new(
                item.criticality.to_wire(),
                asn::ProtocolIEID(item.ie_id),
                item.error.to_wire(),
                None,
            )
        });
        let items: Vec<_> = items.collect();
        asn::CriticalityDiagnostics::new(
            self.procedure_code.map(asn::ProcedureCode),
            self.triggering_message.as_ref().map(Wire::to_wire),
            self.procedure_criticality.as_ref().map(Wire::to_wire),
            (!items.is_empty()).then_some(asn::CriticalityDiagnosticsIEList(items)),
            None,
        )
    }
    fn from_wire(wire: asn::CriticalityDiagnostics) -> Result<Self, Invalid> {
        let items = wire.ies_criticality_diagnostics.map(|list| list.0).unwrap_or_default();
        let ies = items.into_iter().map(|item| {
            Ok(IeDiagnostics {
                ie_id: item.ie_id.0,
                criticality: item.ie_criticality.into(),
                error: TypeOfError::from_wire(item.type_of_error)?,
            })
        });
        Ok(Self {
            procedure_code: wire.procedure_code.map(|code| code.0),
            triggering_message: wire.triggering_message.map(TriggeringMessage::from_wire).transpose()?,
            procedure_criticality: wire.procedure_criticality.map(Criticality::from),
            ies: ies.collect::<Result<_, Invalid>>()?,
        })
    }
}

/// The two setup items differ in the name of one member.
macro_rules! setup_items {
    ($($asn:ident . $nas:ident;)*) => {
        $(impl<'a> Wire<'a, asn::$asn<'a>> for PduSessionSetupItem {
            fn to_wire(&'a self) -> asn::$asn<'a> {
                asn::$asn::new(
                    self.id.to_wire(),
                    self.nas_pdu.as_ref().map(Wire::to_wire),
                    self.s_nssai.to_wire(),
                    self.transfer.to_wire(),
                    None,
                )
            }
            fn from_wire(wire: asn::$asn<'a>) -> Result<Self, Invalid> {
                Ok(Self {
                    id: PduSessionId::from_wire(wire.pdu_session_id)?,
                    nas_pdu: wire.$nas.map(Bytes::from_wire).transpose()?,
                    s_nssai: SNssai::from_wire(wire.s_nssai)?,
                    transfer: Bytes::from_wire(wire.pdu_session_resource_setup_request_transfer)?,
                })
            }
        })*
    };
}
setup_items! {
    PDUSessionResourceSetupItemCxtReq.nas_pdu;
    PDUSessionResourceSetupItemSUReq.pdu_session_nas_pdu;
}

impl<'a> Wire<'a, asn::PDUSessionResourceModifyItemModReq<'a>> for PduSessionModifyItem {
    fn to_wire(&'a self) -> asn::PDUSessionResourceModifyItemModReq<'a> {
        asn::PDUSessionResourceModifyItemModReq::new(
            self.id.to_wire(),
            self.nas_pdu.as_ref().map(Wire::to_wire),
            self.transfer.to_wire(),
            None,
        )
    }
    fn from_wire(wire: asn::PDUSessionResourceModifyItemModReq<'a>) -> Result<Self, Invalid> {
        Ok(Self {
            id: PduSessionId::from_wire(wire.pdu_session_id)?,
            nas_pdu: wire.nas_pdu.map(Bytes::from_wire).transpose()?,
            transfer: Bytes::from_wire(wire.pdu_session_resource_modify_request_transfer)?,
        })
    }
}
