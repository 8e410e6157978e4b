//! 5GSM messages (TS 24.501 §8.3) to the library's framed messages and back.

use oxirush_nas::nas_5gs as lib;
use oxirush_nas::nas_5gs::{Nas5gsMessage, Nas5gsmMessage as Framed};
use types::{PduSessionId, PduSessionType, Pti, SscMode};

use super::{Soft, bits, mandatory, opt, values::*};
use crate::{
    DecodeError, EncodeError, GsmCause, IntegrityDataRate, Pco, SmBody, SmMessage, Timer,
    gsm::*,
    ie::{read_flows, read_rules, write_flows, write_rules},
};

/// `pco!(soft, message)`: the extended protocol configuration options of any message.
macro_rules! pco {
    ($soft:ident, $m:ident) => {
        opt!($soft, $m.extended_protocol_configuration_options, Pco::read)
    };
}

/// Reads a framed 5GSM message.
pub(super) fn read(framed: &Nas5gsMessage, soft: &mut Soft) -> Result<SmMessage, DecodeError> {
    let Nas5gsMessage::Gsm(header, body) = framed else {
        return Err(DecodeError::Protocol("not a 5GSM message".into()));
    };
    let cause = GsmCause::received;
    let body = match body {
        Framed::PduSessionEstablishmentRequest(m) => {
            SmBody::EstablishmentRequest(establishment_request(m, soft))
        }
        Framed::PduSessionEstablishmentAccept(m) => {
            SmBody::EstablishmentAccept(establishment_accept(m, soft)?)
        }
        Framed::PduSessionEstablishmentReject(m) => SmBody::EstablishmentReject(EstablishmentReject {
            cause: cause(m.fgsm_cause.value),
            back_off: opt!(soft, m.back_off_timer_value, timer_3),
            allowed_ssc_modes: bits!(m.allowed_ssc_mode).map(allowed_ssc_modes).unwrap_or_default(),
            pco: pco!(soft, m),
        }),
        Framed::PduSessionModificationRequest(m) => SmBody::ModificationRequest(ModificationRequest {
            capability: opt!(soft, m.fgsm_capability, read_sm_capability),
            cause: bits!(m.fgsm_cause).map(cause),
            max_packet_filters: opt!(
                soft,
                m.maximum_number_of_supported_packet_filters,
                read_max_packet_filters
            ),
            always_on: bits!(m.always_on_pdu_session_requested).is_some_and(|value| value & 1 != 0),
            integrity_rate: bits!(m.integrity_protection_maximum_data_rate).map(integrity_rate),
            qos_rules: opt!(soft, m.requested_qos_rules, read_rules).unwrap_or_default(),
            qos_flows: opt!(soft, m.requested_qos_flow_descriptions, read_flows).unwrap_or_default(),
            pco: pco!(soft, m),
        }),
        Framed::PduSessionModificationReject(m) => SmBody::ModificationReject(ModificationReject {
            cause: cause(m.fgsm_cause.value),
            back_off: opt!(soft, m.back_off_timer_value, timer_3),
            pco: pco!(soft, m),
        }),
        Framed::PduSessionModificationCommand(m) => SmBody::ModificationCommand(ModificationCommand {
            cause: bits!(m.fgsm_cause).map(cause),
            session_ambr: opt!(soft, m.session_ambr, read_session_ambr),
            rq_timer: bits!(m.rq_timer_value).map(Timer::from_timer_2),
            always_on: bits!(m.always_on_pdu_session_indication).map(|value| value & 1 != 0),
            qos_rules: opt!(soft, m.authorized_qos_rules, read_rules).unwrap_or_default(),
            qos_flows: opt!(soft, m.authorized_qos_flow_descriptions, read_flows).unwrap_or_default(),
            pco: pco!(soft, m),
        }),
        Framed::PduSessionModificationComplete(m) => SmBody::ModificationComplete(ModificationComplete {
            cause: bits!(m.fgsm_cause).map(cause),
            pco: pco!(soft, m),
        }),
        Framed::PduSessionModificationCommandReject(m) => {
            SmBody::ModificationCommandReject(ModificationCommandReject {
                cause: cause(m.fgsm_cause.value),
                pco: pco!(soft, m),
            })
        }
        Framed::PduSessionReleaseRequest(m) => SmBody::ReleaseRequest(ReleaseRequest {
            cause: bits!(m.fgsm_cause).map(cause),
            pco: pco!(soft, m),
        }),
        Framed::PduSessionReleaseReject(m) => {
            SmBody::ReleaseReject(ReleaseReject { cause: cause(m.fgsm_cause.value), pco: pco!(soft, m) })
        }
        Framed::PduSessionReleaseCommand(m) => SmBody::ReleaseCommand(ReleaseCommand {
            cause: cause(m.fgsm_cause.value),
            back_off: opt!(soft, m.back_off_timer_value, timer_3),
            pco: pco!(soft, m),
        }),
        Framed::PduSessionReleaseComplete(m) => SmBody::ReleaseComplete(ReleaseComplete {
            cause: bits!(m.fgsm_cause).map(cause),
            pco: pco!(soft, m),
        }),
        Framed::FiveGsmStatus(m) => SmBody::Status(SmStatus { cause: cause(m.fgsm_cause.value) }),
        _ => return Err(DecodeError::UnknownMessageType(header.message_type.as_u8())),
    };
    let pdu_session_id = PduSessionId::new(header.pdu_session_identity).ok();
    Ok(SmMessage { pdu_session_id, pti: Pti(header.procedure_transaction_identity), body })
}

fn establishment_request(
    m: &lib::NasPduSessionEstablishmentRequest,
    soft: &mut Soft,
) -> EstablishmentRequest {
    EstablishmentRequest {
        integrity_rate: integrity_rate(m.integrity_protection_maximum_data_rate.value),
        session_type: bits!(m.pdu_session_type).map(session_type),
        ssc_mode: bits!(m.ssc_mode).map(ssc_mode),
        capability: opt!(soft, m.fgsm_capability, read_sm_capability),
        max_packet_filters: opt!(soft, m.maximum_number_of_supported_packet_filters, read_max_packet_filters),
        always_on: bits!(m.always_on_pdu_session_requested).is_some_and(|value| value & 1 != 0),
        dn_request: opt!(soft, m.sm_pdu_dn_request_container, read_octets),
        pco: pco!(soft, m),
    }
}

fn establishment_accept(
    m: &lib::NasPduSessionEstablishmentAccept,
    soft: &mut Soft,
) -> Result<EstablishmentAccept, DecodeError> {
    Ok(EstablishmentAccept {
        session_type: session_type(m.selected_pdu_session_type.value),
        ssc_mode: ssc_mode(m.selected_ssc_mode.value),
        qos_rules: mandatory("authorized-qos-rules", &m.authorized_qos_rules.value, read_rules)?,
        session_ambr: mandatory("session-ambr", &m.session_ambr.value, read_session_ambr)?,
        cause: bits!(m.fgsm_cause).map(GsmCause::received),
        address: opt!(soft, m.pdu_address, read_pdu_address),
        rq_timer: bits!(m.rq_timer_value).map(Timer::from_timer_2),
        s_nssai: opt!(soft, m.s_nssai, read_s_nssai),
        always_on: bits!(m.always_on_pdu_session_indication).map(|value| value & 1 != 0),
        qos_flows: opt!(soft, m.authorized_qos_flow_descriptions, read_flows).unwrap_or_default(),
        pco: pco!(soft, m),
        dnn: opt!(soft, m.dnn, read_dnn),
    })
}

fn timer_3(octets: &[u8]) -> Read<Timer> {
    read_first(octets).map(Timer::from_timer_3)
}

fn integrity_rate(value: u16) -> IntegrityDataRate {
    let [uplink, downlink] = value.to_be_bytes();
    IntegrityDataRate { uplink, downlink }
}

fn integrity_rate_bits(rate: IntegrityDataRate) -> u16 {
    u16::from_be_bytes([rate.uplink, rate.downlink])
}

/// §9.11.4.11: values a receiver does not know mean IPv4v6.
fn session_type(value: u8) -> PduSessionType {
    match value & 0x07 {
        1 => PduSessionType::Ipv4,
        2 => PduSessionType::Ipv6,
        4 => PduSessionType::Unstructured,
        5 => PduSessionType::Ethernet,
        _ => PduSessionType::Ipv4v6,
    }
}

fn session_type_bits(kind: PduSessionType) -> u8 {
    match kind {
        PduSessionType::Ipv4 => 1,
        PduSessionType::Ipv6 => 2,
        PduSessionType::Ipv4v6 => 3,
        PduSessionType::Unstructured => 4,
        PduSessionType::Ethernet => 5,
    }
}

/// §9.11.4.16: unused values stand for the modes in turn.
fn ssc_mode(value: u8) -> SscMode {
    match value & 0x07 {
        2 | 5 => SscMode::Mode2,
        3 | 6 => SscMode::Mode3,
        _ => SscMode::Mode1,
    }
}

fn ssc_mode_bits(mode: SscMode) -> u8 {
    match mode {
        SscMode::Mode1 => 1,
        SscMode::Mode2 => 2,
        SscMode::Mode3 => 3,
    }
}

/// §9.11.4.5: one bit a mode.
fn allowed_ssc_modes(value: u8) -> Vec<SscMode> {
    let modes = [SscMode::Mode1, SscMode::Mode2, SscMode::Mode3];
    modes.into_iter().filter(|mode| value & 1 << (ssc_mode_bits(*mode) - 1) != 0).collect()
}

/// Frames a message of ours.
pub(super) fn write(body: &SmBody) -> Result<Framed, EncodeError> {
    Ok(match body {
        SmBody::EstablishmentRequest(m) => write_establishment_request(m).into(),
        SmBody::EstablishmentAccept(m) => write_establishment_accept(m)?.into(),
        SmBody::EstablishmentReject(m) => {
            let mut out = lib::NasPduSessionEstablishmentReject::new(cause(m.cause));
            out.back_off_timer_value = m.back_off.map(gprs_timer_3);
            let modes =
                m.allowed_ssc_modes.iter().fold(0, |bits, mode| bits | 1 << (ssc_mode_bits(*mode) - 1));
            out.allowed_ssc_mode = (modes != 0).then(|| lib::NasAllowedSscMode::new(modes));
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ModificationRequest(m) => {
            let mut out = lib::NasPduSessionModificationRequest::new();
            out.fgsm_capability = m.capability.map(|c| lib::NasFGsmCapability::new(write_sm_capability(c)));
            out.fgsm_cause = m.cause.map(cause);
            out.maximum_number_of_supported_packet_filters = m.max_packet_filters.map(packet_filters);
            out.always_on_pdu_session_requested =
                m.always_on.then(|| lib::NasAlwaysOnPduSessionRequested::new(1));
            out.integrity_protection_maximum_data_rate = m
                .integrity_rate
                .map(|rate| lib::NasIntegrityProtectionMaximumDataRate::new(integrity_rate_bits(rate)));
            out.requested_qos_rules = rules(&m.qos_rules);
            out.requested_qos_flow_descriptions = flows(&m.qos_flows);
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ModificationReject(m) => {
            let mut out = lib::NasPduSessionModificationReject::new(cause(m.cause));
            out.back_off_timer_value = m.back_off.map(gprs_timer_3);
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ModificationCommand(m) => {
            let mut out = lib::NasPduSessionModificationCommand::new();
            out.fgsm_cause = m.cause.map(cause);
            out.session_ambr = m.session_ambr.map(|ambr| lib::NasSessionAmbr::new(write_session_ambr(&ambr)));
            out.rq_timer_value = m.rq_timer.map(|timer| lib::NasGprsTimer::new(timer.to_timer_2()));
            out.always_on_pdu_session_indication =
                m.always_on.map(|yes| lib::NasAlwaysOnPduSessionIndication::new(yes.into()));
            out.authorized_qos_rules = rules(&m.qos_rules);
            out.authorized_qos_flow_descriptions = flows(&m.qos_flows);
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ModificationComplete(m) => {
            let mut out = lib::NasPduSessionModificationComplete::new();
            out.fgsm_cause = m.cause.map(cause);
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ModificationCommandReject(m) => {
            let mut out = lib::NasPduSessionModificationCommandReject::new(cause(m.cause));
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ReleaseRequest(m) => {
            let mut out = lib::NasPduSessionReleaseRequest::new();
            out.fgsm_cause = m.cause.map(cause);
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ReleaseReject(m) => {
            let mut out = lib::NasPduSessionReleaseReject::new(cause(m.cause));
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ReleaseCommand(m) => {
            let mut out = lib::NasPduSessionReleaseCommand::new(cause(m.cause));
            out.back_off_timer_value = m.back_off.map(gprs_timer_3);
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::ReleaseComplete(m) => {
            let mut out = lib::NasPduSessionReleaseComplete::new();
            out.fgsm_cause = m.cause.map(cause);
            out.extended_protocol_configuration_options = options(&m.pco);
            out.into()
        }
        SmBody::Status(m) => lib::NasFGsmStatus::new(cause(m.cause)).into(),
    })
}

fn write_establishment_request(m: &EstablishmentRequest) -> lib::NasPduSessionEstablishmentRequest {
    let rate = lib::NasIntegrityProtectionMaximumDataRate::new(integrity_rate_bits(m.integrity_rate));
    let mut out = lib::NasPduSessionEstablishmentRequest::new(rate);
    out.pdu_session_type = m.session_type.map(|kind| lib::NasPduSessionType::new(session_type_bits(kind)));
    out.ssc_mode = m.ssc_mode.map(|mode| lib::NasSscMode::new(ssc_mode_bits(mode)));
    out.fgsm_capability = m.capability.map(|c| lib::NasFGsmCapability::new(write_sm_capability(c)));
    out.maximum_number_of_supported_packet_filters = m.max_packet_filters.map(packet_filters);
    out.always_on_pdu_session_requested = m.always_on.then(|| lib::NasAlwaysOnPduSessionRequested::new(1));
    out.sm_pdu_dn_request_container = m.dn_request.as_ref().map(lib::NasSmPduDnRequestContainer::new);
    out.extended_protocol_configuration_options = options(&m.pco);
    out
}

fn write_establishment_accept(
    m: &EstablishmentAccept,
) -> Result<lib::NasPduSessionEstablishmentAccept, EncodeError> {
    if m.qos_rules.is_empty() {
        return Err(EncodeError { ie: "authorized-qos-rules", reason: "the default rule is missing".into() });
    }
    let mut out = lib::NasPduSessionEstablishmentAccept::new(
        lib::NasPduSessionType::new(session_type_bits(m.session_type)),
        lib::NasSscMode::new(ssc_mode_bits(m.ssc_mode)),
        lib::NasQosRules::new(write_rules(&m.qos_rules)),
        lib::NasSessionAmbr::new(write_session_ambr(&m.session_ambr)),
    );
    out.fgsm_cause = m.cause.map(cause);
    out.pdu_address = m.address.map(|address| lib::NasPduAddress::new(write_pdu_address(&address)));
    out.rq_timer_value = m.rq_timer.map(|timer| lib::NasGprsTimer::new(timer.to_timer_2()));
    out.s_nssai = m.s_nssai.map(|s_nssai| lib::NasSNssai::new(write_s_nssai(&s_nssai)));
    out.always_on_pdu_session_indication =
        m.always_on.map(|yes| lib::NasAlwaysOnPduSessionIndication::new(yes.into()));
    out.authorized_qos_flow_descriptions = flows(&m.qos_flows);
    out.extended_protocol_configuration_options = options(&m.pco);
    out.dnn = m.dnn.as_ref().map(|dnn| lib::NasDnn::new(dnn.to_labels()));
    Ok(out)
}

fn cause(cause: GsmCause) -> lib::NasFGsmCause {
    lib::NasFGsmCause::new(cause.number())
}

fn gprs_timer_3(timer: Timer) -> lib::NasGprsTimer3 {
    lib::NasGprsTimer3::new([timer.to_timer_3()])
}

fn packet_filters(count: u16) -> lib::NasMaximumNumberOfSupportedPacketFilters {
    lib::NasMaximumNumberOfSupportedPacketFilters::new(write_max_packet_filters(count))
}

fn rules(rules: &[crate::QosRule]) -> Option<lib::NasQosRules> {
    (!rules.is_empty()).then(|| lib::NasQosRules::new(write_rules(rules)))
}

fn flows(flows: &[crate::QosFlowDescription]) -> Option<lib::NasQosFlowDescriptions> {
    (!flows.is_empty()).then(|| lib::NasQosFlowDescriptions::new(write_flows(flows)))
}

fn options(pco: &Option<Pco>) -> Option<lib::NasExtendedProtocolConfigurationOptions> {
    pco.as_ref().map(|pco| lib::NasExtendedProtocolConfigurationOptions::new(pco.write()))
}
