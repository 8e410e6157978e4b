//! The rules that the UPF gets for a PDU session (TS 23.501 §5.8.2, TS 29.244 §5.2).
//!
//! | PDR | from | matches | FAR |
//! |---|---|---|---|
//! | 1 uplink | N3 | F-TEID, UE address as source | 1: to the data network |
//! | 2 downlink | N6 | UE address as destination | 2: to the gNB, or buffer |
//! | 3 router solicitation (IPv6) | N3 | F-TEID of PDR 1, ICMPv6 to all routers | 3: to the SMF over N4-u |
//! | 4 router advertisement (IPv6) | SMF | F-TEID on N4-u | 2 |
//!
//! QER 1 marks the default QoS flow, QER 2 polices the session AMBR. The order matters to UPFs that
//! look for the QoS flow only in the first QER of a PDR. URR 1, if the data network has usage measured, is of PDRs 1 and 2.
//!
//! Every PDI and FAR of N3 and N6 has the interface type and the network instance: from them Open5GS
//! takes the data network of an uplink PDR and the check of the UE's source address.

use std::net::{IpAddr, SocketAddr};

use ipam::Addresses;
use n4::rules::{
    AddressFamily, Destination, NetworkInstance, buffer, created_f_teid, forward, rates, remove_gtpu,
    router_solicitations, ue_ip_address, update_far, update_rates,
};
use ngap::GtpTunnel;
use pfcp::message::*;
use pfcp::*;
use types::{Ambr, Dnn, PduSessionType, Teid};

use crate::usage::URR;

const UPLINK: PdrId = PdrId(1);
const DOWNLINK: PdrId = PdrId(2);
const SOLICITATION: PdrId = PdrId(3);
const ADVERTISEMENT: PdrId = PdrId(4);
const TO_NETWORK: FarId = FarId(1);
const TO_GNB: FarId = FarId(2);
const TO_SMF: FarId = FarId(3);
const FLOW: QerId = QerId(1);
const AMBR: QerId = QerId(2);
/// The QERs that apply to packets between UE and data network.
const QERS: [QerId; 2] = [FLOW, AMBR];
/// The session's default rules match last; those of the SMF's own traffic match first.
const PRECEDENCE_DEFAULT: Precedence = Precedence(255);
const PRECEDENCE_CONTROL: Precedence = Precedence(1);
/// CHOOSE IDs: PDRs 1 and 3 share the tunnel of N3, PDR 4 has its own.
const CHOOSE_N3: u8 = 1;
const CHOOSE_N4U: u8 = 2;

/// The values from which the rules are built.
#[derive(Debug, Clone)]
pub struct SessionRules {
    /// Our SEID.
    pub seid: u64,
    /// Our PFCP address.
    pub n4: IpAddr,
    /// Family of the UPF's addresses on N3.
    pub n3: AddressFamily,
    /// Our GTP-U address for N4-u.
    pub n4u: SocketAddr,
    /// TEID of the session on N4-u at our end.
    pub n4u_teid: Teid,
    /// Data network, also the network instance of N6.
    pub dnn: Dnn,
    /// How the network instance is encoded.
    pub network_instance: NetworkInstance,
    /// Slice.
    pub s_nssai: types::SNssai,
    /// Type.
    pub session_type: PduSessionType,
    /// UE addresses.
    pub addresses: Addresses,
    /// Interface identifier of the UE's link-local address, for IPv6.
    pub interface_id: [u8; 8],
    /// Session AMBR.
    pub ambr: Ambr,
    /// Default QoS flow.
    pub qfi: types::Qfi,
    /// Seconds between two reports about usage; 0: nothing is measured.
    pub usage_period_s: u32,
}

/// The tunnels that the UPF chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnels {
    /// N3: where the gNB sends uplink packets.
    pub n3: GtpTunnel,
    /// N4-u: where we send router advertisements, for IPv6.
    pub n4u: Option<GtpTunnel>,
}

fn tunnel(f_teid: FTeid) -> Option<GtpTunnel> {
    let FTeid::Assigned { teid, ipv4, ipv6 } = f_teid else { return None };
    let address = match (ipv4, ipv6) {
        (Some(v4), Some(v6)) => ngap::TransportAddress::V4V6(v4, v6),
        (Some(v4), None) => ngap::TransportAddress::V4(v4),
        (None, Some(v6)) => ngap::TransportAddress::V6(v6),
        (None, None) => return None,
    };
    Some(GtpTunnel { address, teid: Teid(teid) })
}

fn f_teid(tunnel: GtpTunnel) -> FTeid {
    let (ipv4, ipv6) = match tunnel.address {
        ngap::TransportAddress::V4(v4) => (Some(v4), None),
        ngap::TransportAddress::V6(v6) => (None, Some(v6)),
        ngap::TransportAddress::V4V6(v4, v6) => (Some(v4), Some(v6)),
    };
    FTeid::Assigned { teid: tunnel.teid.0, ipv4, ipv6 }
}

impl SessionRules {
    /// Session Establishment Request. `known` are the tunnels of a session that is set up again after
    /// the UPF lost it, so that nothing changes for the gNB; without `known` the UPF chooses. `gnb` is
    /// the destination of downlink packets, which are buffered while it is unknown.
    pub fn establishment(
        &self,
        known: Option<Tunnels>,
        gnb: Option<GtpTunnel>,
    ) -> SessionEstablishmentRequest {
        let n3 = known.map_or_else(|| self.n3.choose(CHOOSE_N3), |tunnels| f_teid(tunnels.n3));
        let n4u = || AddressFamily::of(self.n4u.ip()).choose(CHOOSE_N4U);
        let n4u = known.and_then(|tunnels| tunnels.n4u).map_or_else(n4u, f_teid);
        let mut create_pdrs = vec![self.uplink_pdr(n3), self.downlink_pdr()];
        let mut create_fars = vec![self.to_network(), to_gnb(gnb)];
        if self.session_type.has_ipv6() {
            create_pdrs.extend([self.solicitation_pdr(n3), self.advertisement_pdr(n4u)]);
            create_fars.push(self.to_smf());
        }
        SessionEstablishmentRequest {
            node_id: self.n4.into(),
            cp_f_seid: FSeid::new(self.seid, self.n4),
            create_pdrs,
            create_fars,
            create_qers: self.qers(),
            create_urrs: self.urrs(),
            pdn_type: Some(match self.session_type {
                PduSessionType::Ipv4 => PdnType::Ipv4,
                PduSessionType::Ipv6 => PdnType::Ipv6,
                PduSessionType::Ipv4v6 => PdnType::Ipv4v6,
                PduSessionType::Ethernet => PdnType::Ethernet,
                PduSessionType::Unstructured => PdnType::NonIp,
            }),
            dnn: Some(ApnDnn(self.dnn.to_string())),
            s_nssai: Some(SNssai { sst: self.s_nssai.sst, sd: self.s_nssai.sd_octets() }),
            flags: known.is_some().then_some(SeReqFlags::RESTI),
            ..Default::default()
        }
    }

    /// The tunnels that the UPF chose; `None` if one is missing.
    pub fn chosen(&self, response: &SessionEstablishmentResponse) -> Option<Tunnels> {
        let created = |id: PdrId| tunnel(created_f_teid(response, id)?);
        let n4u = if self.session_type.has_ipv6() { Some(created(ADVERTISEMENT)?) } else { None };
        Some(Tunnels { n3: created(UPLINK).or_else(|| created(SOLICITATION))?, n4u })
    }

    /// The URR measures user packets in PDRs 1 and 2.
    fn urrs(&self) -> Vec<CreateUrr> {
        let urr = CreateUrr {
            urr_id: URR,
            measurement_method: MeasurementMethod::VOLUM,
            reporting_triggers: ReportingTriggers::PERIO,
            measurement_period: Some(Seconds(self.usage_period_s)),
            ..Default::default()
        };
        if self.usage_period_s == 0 { Vec::new() } else { vec![urr] }
    }

    fn urr_ids(&self) -> Vec<UrrId> {
        self.urrs().into_iter().map(|urr| urr.urr_id).collect()
    }

    fn instance(&self) -> Option<ShortBytes> {
        Some(self.network_instance.encode(&self.dnn))
    }

    fn ue_ip_address(&self, destination: bool) -> Option<UeIpAddress> {
        let Addresses { ipv4, ipv6 } = self.addresses;
        Some(ue_ip_address(ipv4, ipv6, self.interface_id, destination))
    }

    fn uplink_pdr(&self, n3: FTeid) -> CreatePdr {
        CreatePdr {
            pdr_id: UPLINK,
            precedence: PRECEDENCE_DEFAULT,
            pdi: Pdi {
                source_interface: SourceInterface::Access,
                source_interface_type: Some(InterfaceType::N3_3GPP_ACCESS),
                f_teid: Some(n3),
                network_instance: self.instance(),
                // The source address is checked: packets with another one are dropped (UP-4).
                ue_ip_address: self.ue_ip_address(false),
                ..Default::default()
            },
            outer_header_removal: Some(remove_gtpu()),
            far_id: Some(TO_NETWORK),
            qer_ids: QERS.into(),
            urr_ids: self.urr_ids(),
            ..Default::default()
        }
    }

    fn downlink_pdr(&self) -> CreatePdr {
        CreatePdr {
            pdr_id: DOWNLINK,
            precedence: PRECEDENCE_DEFAULT,
            pdi: Pdi {
                source_interface: SourceInterface::Core,
                source_interface_type: Some(InterfaceType::N6),
                network_instance: self.instance(),
                ue_ip_address: self.ue_ip_address(true),
                ..Default::default()
            },
            far_id: Some(TO_GNB),
            qer_ids: QERS.into(),
            urr_ids: self.urr_ids(),
            ..Default::default()
        }
    }

    fn solicitation_pdr(&self, n3: FTeid) -> CreatePdr {
        CreatePdr {
            pdr_id: SOLICITATION,
            precedence: PRECEDENCE_CONTROL,
            pdi: Pdi {
                source_interface: SourceInterface::Access,
                source_interface_type: Some(InterfaceType::N3_3GPP_ACCESS),
                f_teid: Some(n3),
                network_instance: self.instance(),
                sdf_filters: vec![router_solicitations()],
                ..Default::default()
            },
            outer_header_removal: Some(remove_gtpu()),
            far_id: Some(TO_SMF),
            ..Default::default()
        }
    }

    fn advertisement_pdr(&self, n4u: FTeid) -> CreatePdr {
        CreatePdr {
            pdr_id: ADVERTISEMENT,
            precedence: PRECEDENCE_CONTROL,
            pdi: Pdi {
                source_interface: SourceInterface::CpFunction,
                f_teid: Some(n4u),
                ..Default::default()
            },
            outer_header_removal: Some(remove_gtpu()),
            far_id: Some(TO_GNB),
            qer_ids: vec![FLOW],
            ..Default::default()
        }
    }

    fn to_network(&self) -> CreateFar {
        let network = Destination {
            interface: DestinationInterface::Core,
            interface_type: Some(InterfaceType::N6),
            network_instance: self.instance(),
            outer_header: None,
        };
        forward(TO_NETWORK, network)
    }

    fn to_smf(&self) -> CreateFar {
        let smf = Destination {
            interface: DestinationInterface::CpFunction,
            outer_header: Some(OuterHeaderCreation::gtpu(self.n4u_teid.0, self.n4u.ip())),
            ..Default::default()
        };
        forward(TO_SMF, smf)
    }

    fn qers(&self) -> Vec<CreateQer> {
        let flow = CreateQer { qer_id: FLOW, qfi: Some(Qfi(self.qfi.value())), ..Default::default() };
        vec![flow, CreateQer { qer_id: AMBR, mbr: Some(rates(self.ambr)), ..Default::default() }]
    }
}

fn at_gnb(gnb: GtpTunnel) -> Destination {
    Destination {
        interface: DestinationInterface::Access,
        interface_type: Some(InterfaceType::N3_3GPP_ACCESS),
        network_instance: None,
        outer_header: Some(OuterHeaderCreation::gtpu(gnb.teid.0, gnb.address.preferred())),
    }
}

fn to_gnb(gnb: Option<GtpTunnel>) -> CreateFar {
    gnb.map_or_else(|| buffer(TO_GNB), |gnb| forward(TO_GNB, at_gnb(gnb)))
}

/// Sends downlink packets to this gNB, buffered ones first and in order.
pub fn activate(gnb: GtpTunnel) -> SessionModificationRequest {
    update_far(TO_GNB, ApplyAction::FORW, Some(at_gnb(gnb)))
}

/// Buffers downlink packets. The UPF reports the first one, so that the UE can be paged (TS 23.502
/// §4.2.6).
pub fn deactivate() -> SessionModificationRequest {
    update_far(TO_GNB, ApplyAction::BUFF | ApplyAction::NOCP, None)
}

/// Buffers downlink packets without a report to the SMF, which has just failed to activate the user plane.
pub fn hold() -> SessionModificationRequest {
    update_far(TO_GNB, ApplyAction::BUFF, None)
}

/// Drops downlink packets, buffered ones too: the UE cannot be reached.
pub fn discard() -> SessionModificationRequest {
    let drop = update_far(TO_GNB, ApplyAction::DROP, None);
    SessionModificationRequest { flags: Some(SmReqFlags::DROBU), ..drop }
}

/// Changes the session AMBR.
pub fn change_ambr(ambr: Ambr) -> SessionModificationRequest {
    update_rates(AMBR, ambr)
}
