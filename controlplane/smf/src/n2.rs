//! N2: information that SMF and gNB exchange through the AMF (TS 38.413 §9.3.4).

use bytes::Bytes;
use ngap::transfer::{
    PduSessionResourceModifyRequestTransfer, PduSessionResourceReleaseCommandTransfer,
    PduSessionResourceSetupRequestTransfer, PduSessionResourceSetupResponseTransfer,
    PduSessionResourceSetupUnsuccessfulTransfer, Protection, QosFlow, QosFlowChange, QosParameters,
    SecurityIndication,
};
use ngap::{GtpTunnel, TransferError};
use telemetry::counters::Counter;

use crate::config::{Need, UserPlaneSecurity};
use crate::context::{Session, SessionState};

/// The UE protects the integrity of packets at any rate (TS 24.501 §9.11.4.7).
const FULL_RATE: u8 = 0xff;

static MALFORMED: Counter = Counter::new("smf_n2_malformed");
static ENCODE_FAILED: Counter = Counter::new("smf_n2_encode_failed");

/// What the gNB is asked for, when the configuration of the data network says how packets are protected on the radio. `rate` is what
/// the UE can do.
pub(crate) fn security_indication(
    security: UserPlaneSecurity,
    rate: nas::IntegrityDataRate,
) -> SecurityIndication {
    let protection = |need| match need {
        Need::Required => Protection::Required,
        Need::Preferred => Protection::Preferred,
        Need::NotNeeded => Protection::NotNeeded,
    };
    let integrity = protection(security.integrity);
    SecurityIndication {
        integrity,
        confidentiality: protection(security.confidentiality),
        // Present when integrity is wanted (TS 38.413 §9.3.1.27).
        full_rate_integrity_uplink: (integrity != Protection::NotNeeded).then_some(rate.uplink == FULL_RATE),
    }
}

/// PDU Session Resource Setup Request Transfer: the default QoS flow over the UPF's tunnel `n3`.
pub(crate) fn setup_request(session: &Session, state: &SessionState, n3: GtpTunnel) -> Option<Bytes> {
    let transfer = PduSessionResourceSetupRequestTransfer {
        session_ambr: Some(state.qos.ambr),
        ul_tunnel: n3,
        data_forwarding_not_possible: false,
        pdu_session_type: state.session_type,
        security_indication: state.security_indication,
        network_instance: None,
        qos_flows: vec![QosFlow {
            qfi: session.qfi(),
            parameters: QosParameters::non_gbr(state.qos.five_qi, state.qos.arp),
        }],
    };
    encoded(transfer.encode())
}

/// PDU Session Resource Modify Request Transfer: the session AMBR and default QoS flow that the PCF
/// changed.
pub(crate) fn modify_request(
    session: &Session,
    state: &SessionState,
    ambr_changed: bool,
    flow_changed: bool,
) -> Option<Bytes> {
    let flow = QosFlowChange {
        qfi: session.qfi(),
        parameters: Some(QosParameters::non_gbr(state.qos.five_qi, state.qos.arp)),
    };
    let transfer = PduSessionResourceModifyRequestTransfer {
        session_ambr: ambr_changed.then_some(state.qos.ambr),
        ul_tunnels: Vec::new(),
        network_instance: None,
        qos_flows: if flow_changed { vec![flow] } else { Vec::new() },
        released_qos_flows: Vec::new(),
    };
    encoded(transfer.encode())
}

/// PDU Session Resource Release Command Transfer.
pub(crate) fn release_command(cause: ngap::Cause) -> Option<Bytes> {
    encoded(PduSessionResourceReleaseCommandTransfer { cause }.encode())
}

/// Our own values always fit; if one does not, the procedure fails and it is counted.
fn encoded(octets: Result<Bytes, ngap::EncodeError>) -> Option<Bytes> {
    octets
        .inspect_err(|error| {
            ENCODE_FAILED.inc();
            tracing::error!(%error, "N2 information not encoded");
        })
        .ok()
}

/// The gNB's end of N3 from its response to a set-up; `None` if the gNB did not set up the default QoS
/// flow.
pub(crate) fn setup_response(session: &Session, octets: &[u8]) -> Result<Option<GtpTunnel>, TransferError> {
    let transfer = PduSessionResourceSetupResponseTransfer::decode(octets).inspect_err(count)?;
    Ok(transfer.qos_flows.contains(&session.qfi()).then_some(transfer.dl_tunnel))
}

/// The gNB's cause for not setting up the session.
pub(crate) fn setup_unsuccessful(octets: &[u8]) -> Result<ngap::Cause, TransferError> {
    PduSessionResourceSetupUnsuccessfulTransfer::decode(octets)
        .inspect_err(count)
        .map(|transfer| transfer.cause)
}

fn count(error: &TransferError) {
    MALFORMED.inc();
    tracing::debug!(%error, "N2 information refused");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gnb_is_told_how_packets_are_protected_and_how_fast_the_ue_can() {
        let security = |text| serde_json::from_str::<UserPlaneSecurity>(text).unwrap();
        let both = security(r#"{"integrity": "preferred", "confidentiality": "required"}"#);
        let told = security_indication(both, nas::IntegrityDataRate::FULL);
        assert_eq!(
            (told.integrity, told.confidentiality, told.full_rate_integrity_uplink),
            (Protection::Preferred, Protection::Required, Some(true))
        );
        let slow = nas::IntegrityDataRate { uplink: 0, downlink: 0xff };
        assert_eq!(security_indication(both, slow).full_rate_integrity_uplink, Some(false));
        let none = security(r#"{"integrity": "not_needed", "confidentiality": "not_needed"}"#);
        let told = security_indication(none, nas::IntegrityDataRate::FULL);
        assert_eq!((told.integrity, told.full_rate_integrity_uplink), (Protection::NotNeeded, None));
    }
}
