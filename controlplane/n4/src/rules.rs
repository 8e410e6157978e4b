//! Parts of rules that do not depend on the kind of session. Which rules a session has, and between which
//! interfaces, is its owner's matter.
//!
//! | part | made by |
//! |---|---|
//! | PDI | [`AddressFamily::choose`], [`NetworkInstance::encode`], [`ue_ip_address`], [`router_solicitations`] |
//! | PDR | [`remove_gtpu`] |
//! | FAR | [`forward`] and [`buffer`]; changed by [`update_far`] |
//! | QER | [`rates`]; changed by [`update_rates`] |
//! | answer of the UPF | [`created_f_teid`] |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pfcp::message::{SessionEstablishmentResponse, SessionModificationRequest};
use pfcp::*;
use serde::{Deserialize, Serialize};
use types::{Ambr, Dnn};

/// Written for the downlink direction, as always (TS 29.212 §5.4.2): a solicitation goes from the UE to
/// `ff02::2`.
const SOLICITATION_FILTER: &str = "permit out 58 from ff02::2/128 to any";

/// How a data network is encoded in Network Instance (TS 29.244 §8.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkInstance {
    /// As an APN: labels that begin with their length (TS 23.003 §9.1).
    #[default]
    Labels,
    /// As plain text.
    Text,
}

impl NetworkInstance {
    /// The network instance of a data network.
    pub fn encode(self, dnn: &Dnn) -> ShortBytes {
        match self {
            Self::Labels => network_instance_as_labels(dnn.as_str()),
            Self::Text => dnn.as_str().into(),
        }
    }
}

/// Family of the addresses of tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AddressFamily {
    /// IPv4.
    #[default]
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl AddressFamily {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    /// An F-TEID that the UPF chooses. PDRs of one request with the same `id` get the same.
    pub fn choose(self, id: u8) -> FTeid {
        let ipv4 = self == Self::Ipv4;
        FTeid::Choose { ipv4, ipv6: !ipv4, id: Some(id) }
    }
}

/// The UE's addresses as source or `destination` of packets. `prefix` is a /64, which the interface
/// identifier follows: with it, UPFs that check the source of uplink packets let the UE's router
/// solicitation pass (§8.2.62).
pub fn ue_ip_address(
    ipv4: Option<Ipv4Addr>,
    prefix: Option<Ipv6Addr>,
    interface_id: [u8; 8],
    destination: bool,
) -> UeIpAddress {
    let interface_id = u128::from(u64::from_be_bytes(interface_id));
    let ipv6 = prefix.map(|prefix| (u128::from(prefix) | interface_id).into());
    UeIpAddress { ipv4, ipv6, destination, ..Default::default() }
}

/// Matches the UE's router solicitations, and other ICMPv6 packets to all routers.
pub fn router_solicitations() -> SdfFilter {
    SdfFilter { flow_description: Some(SOLICITATION_FILTER.into()), ..Default::default() }
}

/// Removes GTP-U, UDP and IP.
pub fn remove_gtpu() -> OuterHeaderRemoval {
    OuterHeaderRemoval { description: OuterHeaderRemoval::GTPU_UDP_IPV4, extension_header_deletion: None }
}

/// Where a FAR forwards packets.
#[derive(Debug, Clone, Default)]
pub struct Destination {
    /// Destination interface.
    pub interface: DestinationInterface,
    /// Its 3GPP interface type.
    pub interface_type: Option<InterfaceType>,
    /// Its network instance.
    pub network_instance: Option<ShortBytes>,
    /// The tunnel, if packets go into one.
    pub outer_header: Option<OuterHeaderCreation>,
}

impl Destination {
    fn parameters(self) -> ForwardingParameters {
        ForwardingParameters {
            destination_interface: self.interface,
            destination_interface_type: self.interface_type,
            network_instance: self.network_instance,
            outer_header_creation: self.outer_header,
            ..Default::default()
        }
    }

    fn update(self) -> UpdateForwardingParameters {
        UpdateForwardingParameters {
            destination_interface: Some(self.interface),
            destination_interface_type: self.interface_type,
            network_instance: self.network_instance,
            outer_header_creation: self.outer_header,
            ..Default::default()
        }
    }
}

/// A FAR that forwards packets.
pub fn forward(far_id: FarId, to: Destination) -> CreateFar {
    CreateFar {
        far_id,
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(Box::new(to.parameters())),
        ..Default::default()
    }
}

/// A FAR that buffers packets and does not report them.
pub fn buffer(far_id: FarId) -> CreateFar {
    CreateFar { far_id, apply_action: ApplyAction::BUFF, ..Default::default() }
}

/// Changes what a FAR does, and where it forwards packets unless `to` is `None`.
pub fn update_far(far_id: FarId, action: ApplyAction, to: Option<Destination>) -> SessionModificationRequest {
    let far = UpdateFar {
        far_id,
        apply_action: Some(action),
        update_forwarding_parameters: to.map(|to| Box::new(to.update())),
        ..Default::default()
    };
    SessionModificationRequest { update_fars: vec![far], ..Default::default() }
}

/// Bit rates on N4 are whole kbit/s. They are rounded up, so that a small rate does not become 0.
pub fn rates(ambr: Ambr) -> BitRates {
    BitRates {
        uplink_kbps: ambr.uplink.bps().div_ceil(1000),
        downlink_kbps: ambr.downlink.bps().div_ceil(1000),
    }
}

/// Changes the rates that a QER polices.
pub fn update_rates(qer_id: QerId, ambr: Ambr) -> SessionModificationRequest {
    let qer = UpdateQer { qer_id, mbr: Some(rates(ambr)), ..Default::default() };
    SessionModificationRequest { update_qers: vec![qer], ..Default::default() }
}

/// The F-TEID that the UPF chose for a PDR.
pub fn created_f_teid(response: &SessionEstablishmentResponse, pdr_id: PdrId) -> Option<FTeid> {
    response.created_pdrs.iter().find(|pdr| pdr.pdr_id == pdr_id)?.f_teid
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::BitRate;

    #[test]
    fn small_rates_do_not_become_zero() {
        let ambr = Ambr { uplink: BitRate::from_bps(1), downlink: BitRate::from_kbps(7) };
        assert_eq!(rates(ambr), BitRates { uplink_kbps: 1, downlink_kbps: 7 });
    }

    #[test]
    fn a_ue_has_its_interface_identifier_in_its_prefix() {
        let prefix = Some("fd00:45:0:7::".parse().unwrap());
        let address = ue_ip_address(None, prefix, [0, 0, 0, 1, 0, 0, 0, 9], true);
        assert_eq!(address.ipv6, "fd00:45:0:7:0:1:0:9".parse().ok());
        assert!(address.destination && address.ipv4.is_none());
    }

    #[test]
    fn network_instances_are_labels_or_text() {
        let dnn = Dnn::new("a.bc").unwrap();
        assert_eq!(NetworkInstance::Labels.encode(&dnn).as_bytes(), b"\x01a\x02bc");
        assert_eq!(NetworkInstance::Text.encode(&dnn).as_bytes(), b"a.bc");
    }
}
