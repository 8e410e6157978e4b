//! 5GMM messages (TS 24.501 §8.2) to the library's framed messages and back.

use oxirush_nas::nas_5gs as lib;
use oxirush_nas::nas_5gs::{Nas5gmmMessage as Framed, Nas5gsMessage};
use types::{Key, PduSessionId};

use super::{Soft, bits, mandatory, opt, values::*, within};
use crate::{
    AccessType, CipheringAlgorithm, DecodeError, EncodeError, GmmCause, IdentityType, IntegrityAlgorithm,
    KeySetId, Message, MobileIdentity, PayloadType, RegistrationType, RequestType, ServiceType, Timer,
    UeSecurityCapability, error::ValueError, gmm::*,
};

/// Reads a framed 5GMM message.
pub(super) fn read(framed: &Nas5gsMessage, soft: &mut Soft) -> Result<Message, DecodeError> {
    let Nas5gsMessage::Gmm(header, body) = framed else {
        return Err(DecodeError::Protocol("not a plain 5GMM message".into()));
    };
    Ok(match body {
        Framed::RegistrationRequest(m) => Message::RegistrationRequest(registration_request(m, soft)?),
        Framed::RegistrationAccept(m) => Message::RegistrationAccept(registration_accept(m, soft)?),
        Framed::RegistrationComplete(_) => Message::RegistrationComplete,
        Framed::RegistrationReject(m) => Message::RegistrationReject(RegistrationReject {
            cause: GmmCause::received(m.fgmm_cause.value),
            t3346: opt!(soft, m.t3346_value, timer_2),
            t3502: opt!(soft, m.t3502_value, timer_2),
            rejected_nssai: opt!(soft, m.rejected_nssai, read_rejected_nssai).unwrap_or_default(),
        }),
        Framed::DeregistrationRequestUeOriginating(m) => {
            Message::DeregistrationRequestUe(DeregistrationRequestUe {
                switch_off: m.de_registration_type.value & 0x08 != 0,
                access: access(m.de_registration_type.value),
                ngksi: KeySetId::from_bits(m.ngksi.value),
                identity: identity("5gs-mobile-identity", &m.fgs_mobile_identity)?,
                nas_message_container: opt!(soft, m.nas_message_container, read_octets),
            })
        }
        Framed::DeregistrationRequestUeTerminated(m) => {
            Message::DeregistrationRequestNetwork(DeregistrationRequestNetwork {
                reregistration_required: m.de_registration_type.value & 0x04 != 0,
                access: access(m.de_registration_type.value),
                cause: bits!(m.fgmm_cause).map(GmmCause::received),
                t3346: opt!(soft, m.t3346_value, timer_2),
                rejected_nssai: opt!(soft, m.rejected_nssai, read_rejected_nssai).unwrap_or_default(),
            })
        }
        Framed::DeregistrationAcceptUeOriginating(_) => Message::DeregistrationAcceptUe,
        Framed::DeregistrationAcceptUeTerminated(_) => Message::DeregistrationAcceptNetwork,
        Framed::ServiceRequest(m) => Message::ServiceRequest(service_request(m, soft)?),
        Framed::ServiceAccept(m) => Message::ServiceAccept(ServiceAccept {
            pdu_session_status: opt!(soft, m.pdu_session_status, read_psi_set),
            reactivation_result: opt!(soft, m.pdu_session_reactivation_result, read_psi_set),
            reactivation_errors: opt!(
                soft,
                m.pdu_session_reactivation_result_error_cause,
                read_reactivation_errors
            )
            .unwrap_or_default(),
        }),
        Framed::ServiceReject(m) => Message::ServiceReject(ServiceReject {
            cause: GmmCause::received(m.fgmm_cause.value),
            pdu_session_status: opt!(soft, m.pdu_session_status, read_psi_set),
            t3346: opt!(soft, m.t3346_value, timer_2),
        }),
        Framed::ConfigurationUpdateCommand(m) => {
            Message::ConfigurationUpdateCommand(configuration_update_command(m, soft))
        }
        Framed::ConfigurationUpdateComplete(_) => Message::ConfigurationUpdateComplete,
        Framed::IdentityRequest(m) => {
            Message::IdentityRequest(IdentityRequest { identity_type: identity_type(m.identity_type.value) })
        }
        Framed::IdentityResponse(m) => Message::IdentityResponse(IdentityResponse {
            identity: mandatory("mobile-identity", &m.mobile_identity.value, MobileIdentity::read)?,
        }),
        Framed::FiveGmmStatus(m) => Message::Status(Status { cause: GmmCause::received(m.fgmm_cause.value) }),
        Framed::Notification(m) => {
            Message::Notification(Notification { access: access(m.access_type.value) })
        }
        Framed::NotificationResponse(m) => Message::NotificationResponse(NotificationResponse {
            pdu_session_status: opt!(soft, m.pdu_session_status, read_psi_set),
        }),
        Framed::UlNasTransport(m) => Message::UlNasTransport(ul_nas_transport(m, soft)),
        Framed::DlNasTransport(m) => Message::DlNasTransport(DlNasTransport {
            payload_type: payload_type(m.payload_container_type.value),
            payload: m.payload_container.value.to_vec(),
            pdu_session_id: session(soft, "pdu-session-id", bits!(m.pdu_session_id)),
            additional_information: opt!(soft, m.additional_information, read_octets),
            cause: bits!(m.fgmm_cause).map(GmmCause::received),
            back_off: opt!(soft, m.back_off_timer_value, timer_3),
        }),
        _ => match security(body, soft)? {
            Some(message) => message,
            None => return Err(DecodeError::UnknownMessageType(header.message_type.as_u8())),
        },
    })
}

/// Authentication and security mode messages.
fn security(body: &Framed, soft: &mut Soft) -> Result<Option<Message>, DecodeError> {
    Ok(Some(match body {
        Framed::AuthenticationRequest(m) => Message::AuthenticationRequest(AuthenticationRequest {
            ngksi: KeySetId::from_bits(m.ngksi.value),
            abba: m.abba.value.to_vec(),
            rand: opt!(soft, m.authentication_parameter_rand, read_array),
            autn: opt!(soft, m.authentication_parameter_autn, read_array),
            eap: opt!(soft, m.eap_message, read_octets),
        }),
        Framed::AuthenticationResponse(m) => Message::AuthenticationResponse(AuthenticationResponse {
            res_star: opt!(soft, m.authentication_response_parameter, read_array).map(Key::new),
            eap: opt!(soft, m.eap_message, read_octets),
        }),
        Framed::AuthenticationReject(m) => Message::AuthenticationReject(AuthenticationReject {
            eap: opt!(soft, m.eap_message, read_octets),
        }),
        Framed::AuthenticationFailure(m) => Message::AuthenticationFailure(AuthenticationFailure {
            cause: GmmCause::received(m.fgmm_cause.value),
            auts: opt!(soft, m.authentication_failure_parameter, read_array),
        }),
        Framed::AuthenticationResult(m) => Message::AuthenticationResult(AuthenticationResult {
            ngksi: KeySetId::from_bits(m.ngksi.value),
            eap: m.eap_message.value.to_vec(),
            abba: opt!(soft, m.abba, read_octets),
        }),
        Framed::SecurityModeCommand(m) => Message::SecurityModeCommand(security_mode_command(m, soft)?),
        Framed::SecurityModeComplete(m) => Message::SecurityModeComplete(SecurityModeComplete {
            imeisv: opt!(soft, m.imeisv, imeisv),
            nas_message_container: opt!(soft, m.nas_message_container, read_octets),
        }),
        Framed::SecurityModeReject(m) => {
            Message::SecurityModeReject(SecurityModeReject { cause: GmmCause::received(m.fgmm_cause.value) })
        }
        _ => return Ok(None),
    }))
}

fn registration_request(
    m: &lib::NasRegistrationRequest,
    soft: &mut Soft,
) -> Result<RegistrationRequest, DecodeError> {
    let kind = m.fgs_registration_type.value;
    Ok(RegistrationRequest {
        registration_type: match kind & 0x07 {
            2 => RegistrationType::MobilityUpdating,
            3 => RegistrationType::PeriodicUpdating,
            4 => RegistrationType::Emergency,
            5 => RegistrationType::SnpnOnboarding,
            6 => RegistrationType::DisasterRoamingMobility,
            7 => RegistrationType::DisasterRoamingInitial,
            _ => RegistrationType::Initial,
        },
        follow_on: kind & 0x08 != 0,
        ngksi: KeySetId::from_bits(m.ngksi.value),
        identity: identity("5gs-mobile-identity", &m.fgs_mobile_identity)?,
        non_current_ngksi: bits!(m.non_current_native_nas_key_set_identifier).map(KeySetId::from_bits),
        gmm_capability: opt!(soft, m.fgmm_capability, read_octets),
        ue_security_capability: opt!(soft, m.ue_security_capability, capability),
        requested_nssai: opt!(soft, m.requested_nssai, read_nssai).unwrap_or_default(),
        last_visited_tai: opt!(soft, m.last_visited_registered_tai, read_tai),
        s1_ue_network_capability: opt!(soft, m.s1_ue_network_capability, read_octets),
        uplink_data_status: opt!(soft, m.uplink_data_status, read_psi_set),
        pdu_session_status: opt!(soft, m.pdu_session_status, read_psi_set),
        allowed_pdu_session_status: opt!(soft, m.allowed_pdu_session_status, read_psi_set),
        mico: m.mico_indication.is_some(),
        additional_guti: opt!(soft, m.additional_guti, read_guti),
        data_centric: opt!(soft, m.ue_usage_setting, read_first).map(|octet| octet & 0x01 != 0),
        drx: opt!(soft, m.requested_drx_parameters, read_first),
        update_type: opt!(soft, m.fgs_update_type, read_first),
        nas_message_container: opt!(soft, m.nas_message_container, read_octets),
    })
}

fn registration_accept(
    m: &lib::NasRegistrationAccept,
    soft: &mut Soft,
) -> Result<RegistrationAccept, DecodeError> {
    let result = mandatory("5gs-registration-result", &m.fgs_registration_result.value, read_first)?;
    Ok(RegistrationAccept {
        access: access(result),
        sms_allowed: result & 0x08 != 0,
        emergency: result & 0x20 != 0,
        guti: opt!(soft, m.fg_guti, read_guti),
        equivalent_plmns: opt!(soft, m.equivalent_plmns, read_plmn_list).unwrap_or_default(),
        tai_list: opt!(soft, m.tai_list, read_tai_list).unwrap_or_default(),
        allowed_nssai: opt!(soft, m.allowed_nssai, read_nssai).unwrap_or_default(),
        rejected_nssai: opt!(soft, m.rejected_nssai, read_rejected_nssai).unwrap_or_default(),
        configured_nssai: opt!(soft, m.configured_nssai, read_nssai).unwrap_or_default(),
        network_features: opt!(soft, m.fgs_network_feature_support, read_network_features),
        pdu_session_status: opt!(soft, m.pdu_session_status, read_psi_set),
        reactivation_result: opt!(soft, m.pdu_session_reactivation_result, read_psi_set),
        reactivation_errors: opt!(
            soft,
            m.pdu_session_reactivation_result_error_cause,
            read_reactivation_errors
        )
        .unwrap_or_default(),
        mico: m.mico_indication.is_some(),
        t3512: opt!(soft, m.t3512_value, timer_3),
        t3502: opt!(soft, m.t3502_value, timer_2),
        t3324: opt!(soft, m.t3324_value, timer_3),
        drx: opt!(soft, m.negotiated_drx_parameters, read_first),
    })
}

fn service_request(m: &lib::NasServiceRequest, soft: &mut Soft) -> Result<ServiceRequest, DecodeError> {
    let s_tmsi = mandatory("5g-s-tmsi", &m.fg_s_tmsi.value, |octets| match MobileIdentity::read(octets)? {
        MobileIdentity::STmsi(s_tmsi) => Ok(s_tmsi),
        _ => Err(ValueError("is not a 5G-S-TMSI")),
    })?;
    Ok(ServiceRequest {
        ngksi: KeySetId::from_bits(m.ngksi.value),
        service_type: match m.service_type.value & 0x0f {
            1 | 9..=11 => ServiceType::Data,
            2 => ServiceType::MobileTerminated,
            3 => ServiceType::EmergencyServices,
            4 => ServiceType::EmergencyServicesFallback,
            5 => ServiceType::HighPriorityAccess,
            6 => ServiceType::ElevatedSignalling,
            _ => ServiceType::Signalling,
        },
        s_tmsi,
        uplink_data_status: opt!(soft, m.uplink_data_status, read_psi_set),
        pdu_session_status: opt!(soft, m.pdu_session_status, read_psi_set),
        allowed_pdu_session_status: opt!(soft, m.allowed_pdu_session_status, read_psi_set),
        nas_message_container: opt!(soft, m.nas_message_container, read_octets),
    })
}

fn configuration_update_command(
    m: &lib::NasConfigurationUpdateCommand,
    soft: &mut Soft,
) -> ConfigurationUpdateCommand {
    let indication = bits!(m.configuration_update_indication).unwrap_or(0);
    ConfigurationUpdateCommand {
        acknowledge: indication & 0x01 != 0,
        registration_requested: indication & 0x02 != 0,
        guti: opt!(soft, m.fg_guti, read_guti),
        tai_list: opt!(soft, m.tai_list, read_tai_list).unwrap_or_default(),
        allowed_nssai: opt!(soft, m.allowed_nssai, read_nssai).unwrap_or_default(),
        configured_nssai: opt!(soft, m.configured_nssai, read_nssai).unwrap_or_default(),
        rejected_nssai: opt!(soft, m.rejected_nssai, read_rejected_nssai).unwrap_or_default(),
        full_name: opt!(soft, m.full_name_for_network, read_network_name),
        short_name: opt!(soft, m.short_name_for_network, read_network_name),
    }
}

fn security_mode_command(
    m: &lib::NasSecurityModeCommand,
    soft: &mut Soft,
) -> Result<SecurityModeCommand, DecodeError> {
    let algorithms = m.selected_nas_security_algorithms.value;
    let reserved = || DecodeError::InvalidMandatory {
        ie: "selected-nas-security-algorithms".into(),
        reason: "has a reserved algorithm".into(),
    };
    let additional = opt!(soft, m.additional_5g_security_information, read_first).unwrap_or(0);
    Ok(SecurityModeCommand {
        integrity: IntegrityAlgorithm::from_number(algorithms & 0x0f).ok_or_else(reserved)?,
        ciphering: CipheringAlgorithm::from_number(algorithms >> 4).ok_or_else(reserved)?,
        ngksi: KeySetId::from_bits(m.ngksi.value),
        replayed_capability: mandatory(
            "replayed-ue-security-capabilities",
            &m.replayed_ue_security_capabilities.value,
            capability,
        )?,
        imeisv_requested: bits!(m.imeisv_request).is_some_and(|value| value & 0x07 == 1),
        eps_algorithms: bits!(m.selected_eps_nas_security_algorithms),
        horizontal_derivation: additional & 0x01 != 0,
        retransmit_initial: additional & 0x02 != 0,
        abba: opt!(soft, m.abba, read_octets),
        eap: opt!(soft, m.eap_message, read_octets),
        replayed_s1_capability: opt!(soft, m.replayed_s1_ue_security_capabilities, read_octets),
    })
}

fn ul_nas_transport(m: &lib::NasUlNasTransport, soft: &mut Soft) -> UlNasTransport {
    UlNasTransport {
        payload_type: payload_type(m.payload_container_type.value),
        payload: m.payload_container.value.to_vec(),
        pdu_session_id: session(soft, "pdu-session-id", bits!(m.pdu_session_id)),
        old_pdu_session_id: session(soft, "old-pdu-session-id", bits!(m.old_pdu_session_id)),
        request_type: bits!(m.request_type).map(|value| match value & 0x07 {
            2 => RequestType::Existing,
            3 => RequestType::InitialEmergency,
            4 => RequestType::ExistingEmergency,
            5 => RequestType::Modification,
            6 => RequestType::MaPduRequest,
            _ => RequestType::Initial,
        }),
        s_nssai: opt!(soft, m.s_nssai, read_s_nssai),
        dnn: opt!(soft, m.dnn, read_dnn),
        additional_information: opt!(soft, m.additional_information, read_octets),
    }
}

/// An identity that must say who it is: "no identity" is for IDENTITY RESPONSE alone.
fn identity(ie: &str, value: &lib::NasFGsMobileIdentity) -> Result<MobileIdentity, DecodeError> {
    mandatory(ie, &value.value, |octets| match MobileIdentity::read(octets)? {
        MobileIdentity::None => Err(ValueError("names no identity")),
        identity => Ok(identity),
    })
}

/// §8.2.26.2: nothing but an IMEISV.
fn imeisv(octets: &[u8]) -> Read<MobileIdentity> {
    match MobileIdentity::read(octets)? {
        identity @ MobileIdentity::Pei(types::Pei::Imeisv(_)) => Ok(identity),
        _ => Err(ValueError("is not an IMEISV")),
    }
}

fn capability(octets: &[u8]) -> Read<UeSecurityCapability> {
    UeSecurityCapability::from_octets(octets).ok_or(ValueError("has not two to eight octets"))
}

fn timer_2(octets: &[u8]) -> Read<Timer> {
    read_first(octets).map(Timer::from_timer_2)
}

fn timer_3(octets: &[u8]) -> Read<Timer> {
    read_first(octets).map(Timer::from_timer_3)
}

fn session(soft: &mut Soft, ie: &str, value: Option<u8>) -> Option<PduSessionId> {
    let read = |octets: &[u8]| {
        read_first(octets).and_then(|n| PduSessionId::new(n).map_err(|_| ValueError("is not within 1…15")))
    };
    value.and_then(|value| soft.get(ie, Some(&[value]), read))
}

/// Two bits; 0 does not exist and is read as 3GPP access.
fn access(value: u8) -> AccessType {
    match value & 0x03 {
        2 => AccessType::Non3gpp,
        3 => AccessType::Both,
        _ => AccessType::ThreeGpp,
    }
}

fn access_bits(access: AccessType) -> u8 {
    match access {
        AccessType::ThreeGpp => 1,
        AccessType::Non3gpp => 2,
        AccessType::Both => 3,
    }
}

/// §9.11.3.3: unused values mean SUCI.
fn identity_type(value: u8) -> IdentityType {
    match value & 0x07 {
        2 => IdentityType::Guti,
        3 => IdentityType::Imei,
        4 => IdentityType::STmsi,
        5 => IdentityType::Imeisv,
        6 => IdentityType::MacAddress,
        7 => IdentityType::Eui64,
        _ => IdentityType::Suci,
    }
}

fn payload_type(value: u8) -> PayloadType {
    match value & 0x0f {
        1 => PayloadType::N1Sm,
        2 => PayloadType::Sms,
        3 => PayloadType::Lpp,
        4 => PayloadType::Sor,
        5 => PayloadType::UePolicy,
        6 => PayloadType::UeParametersUpdate,
        15 => PayloadType::Multiple,
        other => PayloadType::Other(other),
    }
}

fn payload_type_bits(kind: PayloadType) -> u8 {
    match kind {
        PayloadType::N1Sm => 1,
        PayloadType::Sms => 2,
        PayloadType::Lpp => 3,
        PayloadType::Sor => 4,
        PayloadType::UePolicy => 5,
        PayloadType::UeParametersUpdate => 6,
        PayloadType::Multiple => 15,
        PayloadType::Other(other) => other & 0x0f,
    }
}

/// Frames a message of ours.
pub(super) fn write(message: &Message) -> Result<Framed, EncodeError> {
    Ok(match message {
        Message::RegistrationRequest(m) => write_registration_request(m)?.into(),
        Message::RegistrationAccept(m) => write_registration_accept(m)?.into(),
        Message::RegistrationComplete => lib::NasRegistrationComplete::new().into(),
        Message::RegistrationReject(m) => {
            within("rejected-nssai", &m.rejected_nssai, 8)?;
            let mut out = lib::NasRegistrationReject::new(cause(m.cause));
            out.t3346_value = m.t3346.map(gprs_timer_2);
            out.t3502_value = m.t3502.map(gprs_timer_2);
            out.rejected_nssai =
                some(&m.rejected_nssai, write_rejected_nssai).map(lib::NasRejectedNssai::new);
            out.into()
        }
        Message::DeregistrationRequestUe(m) => write_deregistration_request_ue(m),
        Message::DeregistrationAcceptUe => lib::NasDeregistrationAcceptUeOriginating::new().into(),
        Message::DeregistrationRequestNetwork(m) => write_deregistration_request_network(m)?,
        Message::DeregistrationAcceptNetwork => lib::NasDeregistrationAcceptUeTerminated::new().into(),
        Message::ServiceRequest(m) => write_service_request(m),
        Message::ServiceAccept(m) => {
            let mut out = lib::NasServiceAccept::new();
            out.pdu_session_status =
                m.pdu_session_status.map(|set| lib::NasPduSessionStatus::new(write_psi_set(set)));
            out.pdu_session_reactivation_result = m
                .reactivation_result
                .map(|set| lib::NasPduSessionReactivationResult::new(write_psi_set(set)));
            out.pdu_session_reactivation_result_error_cause =
                some(&m.reactivation_errors, write_reactivation_errors)
                    .map(lib::NasPduSessionReactivationResultErrorCause::new);
            out.into()
        }
        Message::ServiceReject(m) => {
            let mut out = lib::NasServiceReject::new(cause(m.cause));
            out.pdu_session_status =
                m.pdu_session_status.map(|set| lib::NasPduSessionStatus::new(write_psi_set(set)));
            out.t3346_value = m.t3346.map(gprs_timer_2);
            out.into()
        }
        Message::ConfigurationUpdateCommand(m) => write_configuration_update_command(m)?.into(),
        Message::ConfigurationUpdateComplete => lib::NasConfigurationUpdateComplete::new().into(),
        Message::IdentityRequest(m) => {
            let kind = match m.identity_type {
                IdentityType::Suci => 1,
                IdentityType::Guti => 2,
                IdentityType::Imei => 3,
                IdentityType::STmsi => 4,
                IdentityType::Imeisv => 5,
                IdentityType::MacAddress => 6,
                IdentityType::Eui64 => 7,
            };
            lib::NasIdentityRequest::new(lib::NasFGsIdentityType::new(kind)).into()
        }
        Message::IdentityResponse(m) => {
            lib::NasIdentityResponse::new(lib::NasFGsMobileIdentity::new(m.identity.write())).into()
        }
        Message::Status(m) => lib::NasFGmmStatus::new(cause(m.cause)).into(),
        Message::Notification(m) => {
            lib::NasNotification::new(lib::NasAccessType::new(access_bits(m.access))).into()
        }
        Message::NotificationResponse(m) => {
            let mut out = lib::NasNotificationResponse::new();
            out.pdu_session_status =
                m.pdu_session_status.map(|set| lib::NasPduSessionStatus::new(write_psi_set(set)));
            out.into()
        }
        Message::UlNasTransport(m) => write_ul_nas_transport(m),
        Message::DlNasTransport(m) => write_dl_nas_transport(m),
        Message::AuthenticationRequest(_)
        | Message::AuthenticationResponse(_)
        | Message::AuthenticationReject(_)
        | Message::AuthenticationFailure(_)
        | Message::AuthenticationResult(_) => write_authentication(message),
        Message::SecurityModeCommand(m) => write_security_mode_command(m),
        Message::SecurityModeComplete(m) => {
            let mut out = lib::NasSecurityModeComplete::new();
            out.imeisv = m.imeisv.as_ref().map(|identity| lib::NasFGsMobileIdentity::new(identity.write()));
            out.nas_message_container = container(&m.nas_message_container);
            out.into()
        }
        Message::SecurityModeReject(m) => lib::NasSecurityModeReject::new(cause(m.cause)).into(),
    })
}

fn write_deregistration_request_ue(m: &DeregistrationRequestUe) -> Framed {
    let kind = u8::from(m.switch_off) << 3 | access_bits(m.access);
    let kind = lib::NasDeRegistrationType::new(kind);
    let identity = lib::NasFGsMobileIdentity::new(m.identity.write());
    let mut out = lib::NasDeregistrationRequestUeOriginating::new(kind, key_set(m.ngksi), identity);
    out.nas_message_container = container(&m.nas_message_container);
    out.into()
}

fn write_deregistration_request_network(m: &DeregistrationRequestNetwork) -> Result<Framed, EncodeError> {
    within("rejected-nssai", &m.rejected_nssai, 8)?;
    let kind = u8::from(m.reregistration_required) << 2 | access_bits(m.access);
    let kind = lib::NasDeRegistrationType::new(kind);
    let mut out = lib::NasDeregistrationRequestUeTerminated::new(kind);
    out.fgmm_cause = m.cause.map(cause);
    out.t3346_value = m.t3346.map(gprs_timer_2);
    out.rejected_nssai = some(&m.rejected_nssai, write_rejected_nssai).map(lib::NasRejectedNssai::new);
    Ok(out.into())
}

fn write_dl_nas_transport(m: &DlNasTransport) -> Framed {
    let kind = lib::NasPayloadContainerType::new(payload_type_bits(m.payload_type));
    let mut out = lib::NasDlNasTransport::new(kind, lib::NasPayloadContainer::new(&m.payload));
    out.pdu_session_id = m.pdu_session_id.map(|id| lib::NasPduSessionIdentity2::new(id.value()));
    out.additional_information = m.additional_information.as_ref().map(lib::NasAdditionalInformation::new);
    out.fgmm_cause = m.cause.map(cause);
    out.back_off_timer_value = m.back_off.map(|timer| lib::NasGprsTimer3::new([timer.to_timer_3()]));
    out.into()
}

fn write_authentication(message: &Message) -> Framed {
    let eap = |eap: &Option<Vec<u8>>| eap.as_ref().map(lib::NasEapMessage::new);
    match message {
        Message::AuthenticationRequest(m) => {
            let mut out = lib::NasAuthenticationRequest::new(key_set(m.ngksi), lib::NasAbba::new(&m.abba));
            out.authentication_parameter_rand = m.rand.map(lib::NasAuthenticationParameterRand::new);
            out.authentication_parameter_autn = m.autn.map(lib::NasAuthenticationParameterAutn::new);
            out.eap_message = eap(&m.eap);
            out.into()
        }
        Message::AuthenticationResponse(m) => {
            let mut out = lib::NasAuthenticationResponse::new();
            let res_star = m.res_star.as_ref().map(Key::expose);
            out.authentication_response_parameter =
                res_star.map(lib::NasAuthenticationResponseParameter::new);
            out.eap_message = eap(&m.eap);
            out.into()
        }
        Message::AuthenticationFailure(m) => {
            let mut out = lib::NasAuthenticationFailure::new(cause(m.cause));
            out.authentication_failure_parameter = m.auts.map(lib::NasAuthenticationFailureParameter::new);
            out.into()
        }
        Message::AuthenticationResult(m) => {
            let message = lib::NasEapMessage::new(&m.eap);
            let mut out = lib::NasAuthenticationResult::new(key_set(m.ngksi), message);
            out.abba = m.abba.as_ref().map(lib::NasAbba::new);
            out.into()
        }
        Message::AuthenticationReject(m) => {
            let mut out = lib::NasAuthenticationReject::new();
            out.eap_message = eap(&m.eap);
            out.into()
        }
        _ => lib::NasAuthenticationReject::new().into(),
    }
}

fn write_registration_request(m: &RegistrationRequest) -> Result<lib::NasRegistrationRequest, EncodeError> {
    within("requested-nssai", &m.requested_nssai, 8)?;
    let kind = match m.registration_type {
        RegistrationType::Initial => 1,
        RegistrationType::MobilityUpdating => 2,
        RegistrationType::PeriodicUpdating => 3,
        RegistrationType::Emergency => 4,
        RegistrationType::SnpnOnboarding => 5,
        RegistrationType::DisasterRoamingMobility => 6,
        RegistrationType::DisasterRoamingInitial => 7,
    };
    let kind = lib::NasFGsRegistrationType::new(u8::from(m.follow_on) << 3 | kind);
    let identity = lib::NasFGsMobileIdentity::new(m.identity.write());
    let mut out = lib::NasRegistrationRequest::new(kind, key_set(m.ngksi), identity);
    out.non_current_native_nas_key_set_identifier = m.non_current_ngksi.map(key_set);
    out.fgmm_capability = m.gmm_capability.as_ref().map(lib::NasFGmmCapability::new);
    out.ue_security_capability =
        m.ue_security_capability.map(|c| lib::NasUeSecurityCapability::new(c.octets()));
    out.requested_nssai = some(&m.requested_nssai, write_nssai).map(lib::NasNssai::new);
    out.last_visited_registered_tai =
        m.last_visited_tai.map(|tai| lib::NasFGsTrackingAreaIdentity::new(write_tai(&tai)));
    out.s1_ue_network_capability =
        m.s1_ue_network_capability.as_ref().map(lib::NasS1UeNetworkCapability::new);
    out.uplink_data_status = m.uplink_data_status.map(|s| lib::NasUplinkDataStatus::new(write_psi_set(s)));
    out.pdu_session_status = m.pdu_session_status.map(|s| lib::NasPduSessionStatus::new(write_psi_set(s)));
    out.allowed_pdu_session_status =
        m.allowed_pdu_session_status.map(|s| lib::NasAllowedPduSessionStatus::new(write_psi_set(s)));
    out.mico_indication = m.mico.then(|| lib::NasMicoIndication::new(0));
    out.additional_guti =
        m.additional_guti.map(|guti| lib::NasFGsMobileIdentity::new(MobileIdentity::Guti(guti).write()));
    out.ue_usage_setting = m.data_centric.map(|yes| lib::NasUeUsageSetting::new([u8::from(yes)]));
    out.requested_drx_parameters = m.drx.map(|drx| lib::NasFGsDrxParameters::new([drx]));
    out.fgs_update_type = m.update_type.map(|kind| lib::NasFGsUpdateType::new([kind]));
    out.nas_message_container = container(&m.nas_message_container);
    Ok(out)
}

fn write_registration_accept(m: &RegistrationAccept) -> Result<lib::NasRegistrationAccept, EncodeError> {
    within("equivalent-plmns", &m.equivalent_plmns, 15)?;
    within("tai-list", &m.tai_list, 16)?;
    within("allowed-nssai", &m.allowed_nssai, 8)?;
    within("rejected-nssai", &m.rejected_nssai, 8)?;
    within("configured-nssai", &m.configured_nssai, 16)?;
    let result = access_bits(m.access) | u8::from(m.sms_allowed) << 3 | u8::from(m.emergency) << 5;
    let mut out = lib::NasRegistrationAccept::new(lib::NasFGsRegistrationResult::new([result]));
    out.fg_guti = m.guti.map(|guti| lib::NasFGsMobileIdentity::new(MobileIdentity::Guti(guti).write()));
    out.equivalent_plmns = some(&m.equivalent_plmns, write_plmn_list).map(lib::NasPlmnList::new);
    out.tai_list = some(&m.tai_list, write_tai_list).map(lib::NasFGsTrackingAreaIdentityList::new);
    out.allowed_nssai = some(&m.allowed_nssai, write_nssai).map(lib::NasNssai::new);
    out.rejected_nssai = some(&m.rejected_nssai, write_rejected_nssai).map(lib::NasRejectedNssai::new);
    out.configured_nssai = some(&m.configured_nssai, write_nssai).map(lib::NasNssai::new);
    out.fgs_network_feature_support = m
        .network_features
        .map(|features| lib::NasFGsNetworkFeatureSupport::new(write_network_features(&features)));
    out.pdu_session_status = m.pdu_session_status.map(|s| lib::NasPduSessionStatus::new(write_psi_set(s)));
    out.pdu_session_reactivation_result =
        m.reactivation_result.map(|s| lib::NasPduSessionReactivationResult::new(write_psi_set(s)));
    out.pdu_session_reactivation_result_error_cause = some(&m.reactivation_errors, write_reactivation_errors)
        .map(lib::NasPduSessionReactivationResultErrorCause::new);
    out.mico_indication = m.mico.then(|| lib::NasMicoIndication::new(0));
    out.t3512_value = m.t3512.map(|timer| lib::NasT3512Value::new([timer.to_timer_3()]));
    out.t3502_value = m.t3502.map(gprs_timer_2);
    out.t3324_value = m.t3324.map(|timer| lib::NasGprsTimer3::new([timer.to_timer_3()]));
    out.negotiated_drx_parameters = m.drx.map(|drx| lib::NasFGsDrxParameters::new([drx]));
    Ok(out)
}

fn write_service_request(m: &ServiceRequest) -> Framed {
    let kind = match m.service_type {
        ServiceType::Signalling => 0,
        ServiceType::Data => 1,
        ServiceType::MobileTerminated => 2,
        ServiceType::EmergencyServices => 3,
        ServiceType::EmergencyServicesFallback => 4,
        ServiceType::HighPriorityAccess => 5,
        ServiceType::ElevatedSignalling => 6,
    };
    let identity = lib::NasFGsMobileIdentity::new(MobileIdentity::STmsi(m.s_tmsi).write());
    let mut out = lib::NasServiceRequest::new(key_set(m.ngksi), lib::NasServiceType::new(kind), identity);
    out.uplink_data_status = m.uplink_data_status.map(|s| lib::NasUplinkDataStatus::new(write_psi_set(s)));
    out.pdu_session_status = m.pdu_session_status.map(|s| lib::NasPduSessionStatus::new(write_psi_set(s)));
    out.allowed_pdu_session_status =
        m.allowed_pdu_session_status.map(|s| lib::NasAllowedPduSessionStatus::new(write_psi_set(s)));
    out.nas_message_container = container(&m.nas_message_container);
    out.into()
}

fn write_configuration_update_command(
    m: &ConfigurationUpdateCommand,
) -> Result<lib::NasConfigurationUpdateCommand, EncodeError> {
    within("tai-list", &m.tai_list, 16)?;
    within("allowed-nssai", &m.allowed_nssai, 8)?;
    within("configured-nssai", &m.configured_nssai, 16)?;
    within("rejected-nssai", &m.rejected_nssai, 8)?;
    let mut out = lib::NasConfigurationUpdateCommand::new();
    let indication = u8::from(m.acknowledge) | u8::from(m.registration_requested) << 1;
    out.configuration_update_indication =
        (indication != 0).then(|| lib::NasConfigurationUpdateIndication::new(indication));
    out.fg_guti = m.guti.map(|guti| lib::NasFGsMobileIdentity::new(MobileIdentity::Guti(guti).write()));
    out.tai_list = some(&m.tai_list, write_tai_list).map(lib::NasFGsTrackingAreaIdentityList::new);
    out.allowed_nssai = some(&m.allowed_nssai, write_nssai).map(lib::NasNssai::new);
    out.configured_nssai = some(&m.configured_nssai, write_nssai).map(lib::NasNssai::new);
    out.rejected_nssai = some(&m.rejected_nssai, write_rejected_nssai).map(lib::NasRejectedNssai::new);
    let name = |name: &Option<String>| name.as_ref().map(|n| lib::NasNetworkName::new(write_network_name(n)));
    out.full_name_for_network = name(&m.full_name);
    out.short_name_for_network = name(&m.short_name);
    Ok(out)
}

fn write_security_mode_command(m: &SecurityModeCommand) -> Framed {
    let algorithms = m.ciphering.number() << 4 | m.integrity.number();
    let mut out = lib::NasSecurityModeCommand::new(
        lib::NasSecurityAlgorithms::new(algorithms),
        key_set(m.ngksi),
        lib::NasUeSecurityCapability::new(m.replayed_capability.octets()),
    );
    out.imeisv_request = m.imeisv_requested.then(|| lib::NasImeisvRequest::new(1));
    out.selected_eps_nas_security_algorithms = m.eps_algorithms.map(lib::NasEpsNasSecurityAlgorithms::new);
    let additional = u8::from(m.horizontal_derivation) | u8::from(m.retransmit_initial) << 1;
    out.additional_5g_security_information =
        (additional != 0).then(|| lib::NasAdditional5gSecurityInformation::new([additional]));
    out.eap_message = m.eap.as_ref().map(lib::NasEapMessage::new);
    out.abba = m.abba.as_ref().map(lib::NasAbba::new);
    out.replayed_s1_ue_security_capabilities =
        m.replayed_s1_capability.as_ref().map(lib::NasS1UeSecurityCapability::new);
    out.into()
}

fn write_ul_nas_transport(m: &UlNasTransport) -> Framed {
    let kind = lib::NasPayloadContainerType::new(payload_type_bits(m.payload_type));
    let mut out = lib::NasUlNasTransport::new(kind, lib::NasPayloadContainer::new(&m.payload));
    out.pdu_session_id = m.pdu_session_id.map(|id| lib::NasPduSessionIdentity2::new(id.value()));
    out.old_pdu_session_id = m.old_pdu_session_id.map(|id| lib::NasPduSessionIdentity2::new(id.value()));
    out.request_type = m.request_type.map(|kind| {
        lib::NasRequestType::new(match kind {
            RequestType::Initial => 1,
            RequestType::Existing => 2,
            RequestType::InitialEmergency => 3,
            RequestType::ExistingEmergency => 4,
            RequestType::Modification => 5,
            RequestType::MaPduRequest => 6,
        })
    });
    out.s_nssai = m.s_nssai.map(|s_nssai| lib::NasSNssai::new(write_s_nssai(&s_nssai)));
    out.dnn = m.dnn.as_ref().map(|dnn| lib::NasDnn::new(dnn.to_labels()));
    out.additional_information = m.additional_information.as_ref().map(lib::NasAdditionalInformation::new);
    out.into()
}

/// The octets of a list that is not empty.
fn some<T>(list: &[T], write: impl FnOnce(&[T]) -> Vec<u8>) -> Option<Vec<u8>> {
    (!list.is_empty()).then(|| write(list))
}

fn cause(cause: GmmCause) -> lib::NasFGmmCause {
    lib::NasFGmmCause::new(cause.number())
}

fn key_set(ngksi: KeySetId) -> lib::NasKeySetIdentifier {
    lib::NasKeySetIdentifier::new(ngksi.to_bits())
}

fn gprs_timer_2(timer: Timer) -> lib::NasGprsTimer2 {
    lib::NasGprsTimer2::new([timer.to_timer_2()])
}

fn container(octets: &Option<Vec<u8>>) -> Option<lib::NasMessageContainer> {
    octets.as_ref().map(lib::NasMessageContainer::new)
}
