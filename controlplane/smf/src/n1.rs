//! N1: 5GSM messages (TS 24.501 §6, §8.3) and the negotiation of session type, SSC mode and options.

use bytes::Bytes;
use nas::gsm::{EstablishmentAccept, EstablishmentReject, EstablishmentRequest, ReleaseCommand, SmStatus};
use nas::{GsmCause, Pco, PduAddress, QosFlowDescription, QosRule, SmBody, SmMessage};
use sbi::model::udm::{PduSessionTypes, SscModes};
use telemetry::counters::{Counter, Family};
use types::{PduSessionId, PduSessionType, Pti, SscMode};

use crate::config::DnnConfig;
use crate::context::{Session, SessionState};

static SOFT_ERRORS: Counter = Counter::new("smf_n1_optional_element_ignored");
static MALFORMED: Family = Family::new("smf_n1_rejected", "cause");
static ENCODE_FAILED: Counter = Counter::new("smf_n1_encode_failed");

/// Precedence of the default QoS rule: the last (TS 24.501 §9.11.4.13).
const DEFAULT_PRECEDENCE: u8 = 255;

/// Decodes a message from the UE. The error is the cause to answer with; with `None` the message is
/// ignored.
pub(crate) fn decode(octets: &[u8]) -> Result<SmMessage, Option<GsmCause>> {
    match SmMessage::decode(octets) {
        Ok(decoded) => {
            SOFT_ERRORS.add(decoded.soft_errors.len() as u64);
            Ok(decoded.message)
        }
        Err(error) => {
            let cause = error.gsm_cause();
            MALFORMED.inc(&cause.map_or("ignored".to_owned(), |cause| cause.number().to_string()));
            tracing::debug!(%error, "5GSM message refused");
            Err(cause)
        }
    }
}

/// Encodes a message to the UE. Our own values always fit; if one does not, nothing is sent and it is
/// counted.
pub(crate) fn encode(id: PduSessionId, pti: Pti, body: SmBody) -> Bytes {
    match SmMessage::new(id, pti, body).encode() {
        Ok(octets) => octets.into(),
        Err(error) => {
            ENCODE_FAILED.inc();
            tracing::error!(%error, "5GSM message not encoded");
            Bytes::new()
        }
    }
}

/// PDU SESSION ESTABLISHMENT REJECT.
pub(crate) fn establishment_reject(id: PduSessionId, pti: Pti, cause: GsmCause) -> Bytes {
    let mut reject = EstablishmentReject::new(cause);
    if cause == GsmCause::NotSupportedSscMode {
        reject.allowed_ssc_modes = vec![SscMode::Mode1];
    }
    encode(id, pti, SmBody::EstablishmentReject(reject))
}

/// 5GSM STATUS.
pub(crate) fn status(id: PduSessionId, pti: Pti, cause: GsmCause) -> Bytes {
    encode(id, pti, SmBody::Status(SmStatus { cause }))
}

/// PDU SESSION RELEASE COMMAND.
pub(crate) fn release_command(id: PduSessionId, pti: Pti, cause: GsmCause) -> Bytes {
    encode(id, pti, SmBody::ReleaseCommand(ReleaseCommand::new(cause)))
}

/// PDU SESSION ESTABLISHMENT ACCEPT of a session with its default QoS flow. `cause` says why the type
/// differs from the requested one.
pub(crate) fn establishment_accept(
    session: &Session,
    state: &SessionState,
    network: &DnnConfig,
    cause: Option<GsmCause>,
    always_on: bool,
) -> Bytes {
    let address = match (state.addresses.ipv4, state.addresses.ipv6) {
        (Some(ipv4), Some(_)) => Some(PduAddress::Ipv4v6(ipv4, session.interface_id())),
        (Some(ipv4), None) => Some(PduAddress::Ipv4(ipv4)),
        (None, Some(_)) => Some(PduAddress::Ipv6(session.interface_id())),
        (None, None) => None,
    };
    let accept = EstablishmentAccept {
        session_type: state.session_type,
        ssc_mode: SscMode::Mode1,
        qos_rules: vec![QosRule::match_all(1, DEFAULT_PRECEDENCE, session.qfi())],
        session_ambr: state.qos.ambr,
        cause,
        address,
        rq_timer: None,
        s_nssai: Some(session.s_nssai),
        // Included only if the UE asked for it; always-on sessions are not offered.
        always_on: always_on.then_some(false),
        qos_flows: vec![QosFlowDescription::non_gbr(session.qfi(), state.qos.five_qi)],
        pco: state.pco.as_ref().and_then(|asked| answer_pco(asked, network)),
        dnn: Some(session.dnn.clone()),
    };
    encode(session.id, state.pti, SmBody::EstablishmentAccept(accept))
}

/// DNS servers and MTU, if the UE asked for them.
fn answer_pco(asked: &Pco, network: &DnnConfig) -> Option<Pco> {
    let items = asked.dns_and_mtu(&network.dns, network.mtu);
    (!items.is_empty()).then_some(Pco { items })
}

/// Type of the session, with the cause for the UE if it is less than requested (TS 24.501 §6.4.1.3), or
/// the cause of the reject if no type is possible (§6.4.1.4). `pool` says whether the data network has
/// IPv4 and IPv6.
pub(crate) fn select_type(
    request: &EstablishmentRequest,
    subscribed: &PduSessionTypes,
    pool: (bool, bool),
) -> Result<(PduSessionType, Option<GsmCause>), GsmCause> {
    use PduSessionType::{Ethernet, Ipv4, Ipv4v6, Ipv6, Unstructured};
    let subscribed_to = |kind: PduSessionType| {
        subscribed.default_session_type == Some(kind) || subscribed.allowed_session_types.contains(&kind)
    };
    // A subscription without types allows those of the data network.
    let any = subscribed.default_session_type.is_none() && subscribed.allowed_session_types.is_empty();
    let allows = |kind: PduSessionType| any || subscribed_to(kind);
    let ipv4 = pool.0 && (allows(Ipv4) || allows(Ipv4v6));
    let ipv6 = pool.1 && (allows(Ipv6) || allows(Ipv4v6));
    let both = pool.0 && pool.1 && allows(Ipv4v6);
    let asked = request.session_type.or(subscribed.default_session_type).unwrap_or(Ipv4);
    match asked {
        Ipv4v6 if both => Ok((Ipv4v6, None)),
        Ipv4v6 if ipv4 => Ok((Ipv4, Some(GsmCause::OnlyIpv4Allowed))),
        Ipv4v6 if ipv6 => Ok((Ipv6, Some(GsmCause::OnlyIpv6Allowed))),
        Ipv4 if ipv4 => Ok((Ipv4, None)),
        Ipv6 if ipv6 => Ok((Ipv6, None)),
        Ipv4 if ipv6 => Err(GsmCause::OnlyIpv6Allowed),
        Ipv6 if ipv4 => Err(GsmCause::OnlyIpv4Allowed),
        Ipv4 | Ipv6 | Ipv4v6 | Ethernet | Unstructured => Err(GsmCause::UnknownPduSessionType),
    }
}

/// Whether the session can have SSC mode 1, the only mode offered.
pub(crate) fn check_ssc_mode(asked: Option<SscMode>, subscribed: &SscModes) -> Result<(), GsmCause> {
    let allowed = subscribed.default_ssc_mode == SscMode::Mode1
        || subscribed.allowed_ssc_modes.contains(&SscMode::Mode1);
    match asked {
        None | Some(SscMode::Mode1) if allowed => Ok(()),
        _ => Err(GsmCause::NotSupportedSscMode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PduSessionType::*;
    use nas::PcoItem;

    fn types(default: PduSessionType, allowed: &[PduSessionType]) -> PduSessionTypes {
        PduSessionTypes { default_session_type: Some(default), allowed_session_types: allowed.to_vec() }
    }

    fn select(
        asked: Option<PduSessionType>,
        subscribed: &PduSessionTypes,
        pool: (bool, bool),
    ) -> Result<(PduSessionType, Option<GsmCause>), GsmCause> {
        let request = EstablishmentRequest { session_type: asked, ..EstablishmentRequest::new(Ipv4) };
        select_type(&request, subscribed, pool)
    }

    #[test]
    fn session_types_are_chosen_as_ts_24_501_says() {
        let all = types(Ipv4, &[Ipv4, Ipv6, Ipv4v6]);
        assert_eq!(select(Some(Ipv4v6), &all, (true, true)), Ok((Ipv4v6, None)));
        assert_eq!(select(Some(Ipv4v6), &all, (true, false)), Ok((Ipv4, Some(GsmCause::OnlyIpv4Allowed))));
        assert_eq!(select(Some(Ipv4v6), &all, (false, true)), Ok((Ipv6, Some(GsmCause::OnlyIpv6Allowed))));
        assert_eq!(select(Some(Ipv6), &all, (true, false)), Err(GsmCause::OnlyIpv4Allowed));
        assert_eq!(select(None, &all, (true, true)), Ok((Ipv4, None)));
        assert_eq!(select(Some(Ethernet), &all, (true, true)), Err(GsmCause::UnknownPduSessionType));
        let only6 = types(Ipv6, &[]);
        assert_eq!(select(Some(Ipv4), &only6, (true, true)), Err(GsmCause::OnlyIpv6Allowed));
        assert_eq!(select(Some(Ipv4v6), &only6, (true, true)), Ok((Ipv6, Some(GsmCause::OnlyIpv6Allowed))));
        assert_eq!(select(None, &only6, (true, true)), Ok((Ipv6, None)));
        assert_eq!(
            select(
                Some(Ipv4v6),
                &PduSessionTypes { default_session_type: None, allowed_session_types: vec![] },
                (true, true)
            ),
            Ok((Ipv4v6, None))
        );
    }

    #[test]
    fn only_ssc_mode_1_is_given() {
        let modes = |default, allowed: &[SscMode]| SscModes {
            default_ssc_mode: default,
            allowed_ssc_modes: allowed.to_vec(),
        };
        assert_eq!(check_ssc_mode(None, &modes(SscMode::Mode1, &[])), Ok(()));
        assert_eq!(check_ssc_mode(Some(SscMode::Mode1), &modes(SscMode::Mode2, &[SscMode::Mode1])), Ok(()));
        let no = Err(GsmCause::NotSupportedSscMode);
        assert_eq!(check_ssc_mode(Some(SscMode::Mode3), &modes(SscMode::Mode1, &[])), no);
        assert_eq!(check_ssc_mode(None, &modes(SscMode::Mode2, &[])), no);
    }

    #[test]
    fn options_are_answered_where_asked() {
        let network: DnnConfig = serde_json::from_value(serde_json::json!({
            "name": "internet", "ue_pool": {}, "dns": ["1.1.1.1", "2606:4700:4700::1111"], "mtu": 1400
        }))
        .unwrap();
        let asked = Pco { items: vec![PcoItem::DnsIpv4Request, PcoItem::Ipv4MtuRequest] };
        let answered = answer_pco(&asked, &network).unwrap();
        assert_eq!(answered.items, [PcoItem::DnsIpv4([1, 1, 1, 1].into()), PcoItem::Ipv4Mtu(1400)]);
        assert_eq!(answer_pco(&Pco { items: vec![PcoItem::PcscfIpv4Request] }, &network), None);
    }
}
