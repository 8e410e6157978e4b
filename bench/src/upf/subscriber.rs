//! The subscribers of the experiment: their addresses, tunnels and rules, the same for every contender.
//!
//! Each has one session with four PDRs: a service and a default rule, in both directions. The service depends
//! on the policy; there are as many policies as operators assign. One QER has a rate that is never exceeded
//! here, and one URR counts volume.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use classifier::{Filter, PortRange, Prefix, Rule, Side};
use packet::gtpu;
use pfcp::message::SessionEstablishmentRequest;
use pfcp::{
    ApplyAction, BitRates, CreateFar, CreatePdr, CreateQer, CreateUrr, DestinationInterface, FSeid, FTeid,
    FarId, ForwardingParameters, MeasurementInformation, MeasurementMethod, NodeId, OuterHeaderCreation,
    OuterHeaderRemoval, Pdi, PdrId, Precedence, QerId, Qfi, SdfFilter, SourceInterface, UeIpAddress, UrrId,
};

/// The UPF's GTP-U and PFCP address.
pub(crate) const UPF: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
/// The CP function.
pub(crate) const CP: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);
/// UE addresses: room for four million.
pub(crate) const UE_POOL: &str = "10.64.0.0/10";
/// A server in the data network.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 2);
/// QoS flow of all packets.
pub(crate) const QFI: u8 = 9;
/// Rule sets that operators assign.
const POLICIES: u32 = 64;
/// gNBs over which sessions are spread.
pub(crate) const GNBS: u32 = 16;
/// kbit/s of every session: the meter is used, but never refuses a packet.
pub(crate) const RATE_KBPS: u64 = 400_000_000;
/// The server's port that belongs to no service.
pub(crate) const OTHER_PORT: u16 = 53;

/// A subscriber, identified by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Subscriber(pub(crate) u32);

impl Subscriber {
    /// Its UE's address. The first address of the pool is the gateway's.
    pub(crate) fn ue(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(Ipv4Addr::new(10, 64, 0, 2).to_bits().wrapping_add(self.0))
    }

    /// TEID at its gNB.
    pub(crate) fn gnb_teid(self) -> u32 {
        0x0100_0000_u32.wrapping_add(self.0)
    }

    /// Its gNB.
    pub(crate) fn gnb(self) -> SocketAddr {
        let address = CP.to_bits() + self.0 % GNBS;
        SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(address)), gtpu::PORT)
    }

    /// The server's port of its service.
    pub(crate) fn service_port(self) -> u16 {
        8000 + (self.0 % POLICIES) as u16
    }

    /// Its rules where uplink packets go on to another UPF.
    pub(crate) fn relayed(self, access: SocketAddr, core: IpAddr) -> SessionEstablishmentRequest {
        let mut request = self.request(access);
        let header = OuterHeaderCreation::gtpu(self.gnb_teid(), core);
        request.create_fars[0] = far(1, DestinationInterface::Core, Some(header));
        request
    }

    /// Its rules for N4; downlink packets go to `access`.
    pub(crate) fn request(self, access: SocketAddr) -> SessionEstablishmentRequest {
        let description = format!("permit out 17 from {SERVER} {} to assigned", self.service_port());
        let service =
            SdfFilter { flow_description: Some(description.as_bytes().into()), ..Default::default() };
        let pdr = |id: u16, up: bool, service: Option<&SdfFilter>| CreatePdr {
            pdr_id: PdrId(id),
            precedence: Precedence(if service.is_some() { 100 } else { 255 }),
            pdi: Pdi {
                source_interface: if up { SourceInterface::Access } else { SourceInterface::Core },
                f_teid: up.then_some(FTeid::Choose { ipv4: true, ipv6: false, id: Some(1) }),
                ue_ip_address: Some(UeIpAddress {
                    ipv4: Some(self.ue()),
                    destination: !up,
                    ..Default::default()
                }),
                sdf_filters: service.cloned().into_iter().collect(),
                ..Default::default()
            },
            outer_header_removal: up.then(OuterHeaderRemoval::default),
            far_id: Some(FarId(if up { 1 } else { 2 })),
            qer_ids: vec![QerId(1)],
            urr_ids: vec![UrrId(1)],
            ..Default::default()
        };
        SessionEstablishmentRequest {
            node_id: NodeId::Ipv4(CP),
            cp_f_seid: FSeid::new(u64::from(self.0) + 1, CP.into()),
            create_pdrs: vec![
                pdr(1, true, Some(&service)),
                pdr(2, true, None),
                pdr(3, false, Some(&service)),
                pdr(4, false, None),
            ],
            create_fars: vec![
                far(1, DestinationInterface::Core, None),
                far(
                    2,
                    DestinationInterface::Access,
                    Some(OuterHeaderCreation::gtpu(self.gnb_teid(), access.ip())),
                ),
            ],
            create_qers: vec![CreateQer {
                qer_id: QerId(1),
                mbr: Some(BitRates { uplink_kbps: RATE_KBPS, downlink_kbps: RATE_KBPS }),
                qfi: Some(Qfi(QFI)),
                ..Default::default()
            }],
            create_urrs: vec![CreateUrr {
                urr_id: UrrId(1),
                measurement_method: MeasurementMethod::VOLUM,
                measurement_information: Some(MeasurementInformation::MNOP),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// The PDRs of one direction for a classifier; the value is 0 for the service and 1 for the default rule.
    pub(crate) fn rules(self, up: bool) -> [Rule; 2] {
        let side = if up { Side::Source } else { Side::Destination };
        let all = Filter { ue: Some((side, Prefix::host(self.ue().into()))), ..Filter::default() };
        let (server, port) =
            (Some(Prefix::host(SERVER.into())), Some(PortRange::single(self.service_port())));
        let service = match up {
            true => Filter { destination: server, destination_ports: port, protocol: Some(17), ..all },
            false => Filter { source: server, source_ports: port, protocol: Some(17), ..all },
        };
        let rule = |id, precedence, filter| Rule { id, precedence, value: id, filter };
        [rule(0, 100, service), rule(1, 255, all)]
    }
}

fn far(id: u32, to: DestinationInterface, tunnel: Option<OuterHeaderCreation>) -> CreateFar {
    CreateFar {
        far_id: FarId(id),
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(Box::new(ForwardingParameters {
            destination_interface: to,
            outer_header_creation: tunnel,
            ..Default::default()
        })),
        ..Default::default()
    }
}
