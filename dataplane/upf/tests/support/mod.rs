//! Common to the test binaries: a configuration, the rules of an ordinary session, packets.
#![allow(dead_code)] // each binary uses its part

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::transport::build_udp;
use packet::{ipv4, ipv6, protocol};
use pfcp::message::{SessionEstablishmentRequest, SessionModificationRequest};
use pfcp::*;
use pktio::interface::LinkConfig;
use upf::Config;
use upf::interface::{Backend, InterfaceConfig, Role};
use upf::plan::Peer;

pub const GTPU: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
pub const GNB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 20);
pub const SMF: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
pub const GNB_TEID: u32 = 0xA0B0_C0D0;
pub const UE_V4: Ipv4Addr = Ipv4Addr::new(10, 45, 0, 2);
pub const UE_PREFIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x45, 0, 7, 0, 0, 0, 0);
pub const UE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x45, 0, 7, 1, 2, 3, 4);
pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 2);
pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x201, 0, 0, 0, 0, 0, 2);
pub const QFI: u8 = 9;
/// Numbers of the interfaces of [`config`]: N3, and N6 of the first data network. Further ones follow.
pub const N3: usize = 0;
pub const N6: usize = 1;
/// The peer of tunnels to the gNB.
pub const GNB_PEER: Peer = Peer { interface: N3 as u8, address: IpAddr::V4(GNB) };

pub fn config(tun: &str) -> Config {
    let text = format!(
        r#"{{"pfcp": "127.0.0.7:8805", "smf": ["127.0.0.0/8"], "gtpu": "127.0.0.7:2152", "restoration_s": 0,
            "dnn": [{{"name": "internet", "tun": "{tun}",
                "ue_pool": {{"ipv4": "10.45.0.0/16", "ipv6": "fd00:45::/48"}}}}]}}"#
    );
    serde_json::from_str(&text).expect("the configuration is valid")
}

/// Replaces the short form of N3 and N6: both are interfaces `n3` and `n6` of a backend, on these devices.
pub fn bypass(config: &mut Config, backend: Backend, devices: [&str; 2]) {
    let [n3, n6] = devices.map(|device| Some(device.to_owned()));
    let gtpu = config.gtpu.take();
    config.interfaces = vec![
        InterfaceConfig {
            link: LinkConfig { gtpu, backend, device: n3, ..LinkConfig::default() },
            ..InterfaceConfig::kernel("n3", Role::N3)
        },
        InterfaceConfig {
            link: LinkConfig { backend, device: n6, ..LinkConfig::default() },
            ..InterfaceConfig::kernel("n6", Role::N6)
        },
    ];
    config.dnn[0].tun = String::new();
    config.dnn[0].interfaces = vec!["n6".to_owned()];
}

/// With a second data network, whose sessions are of Ethernet frames.
pub fn ethernet_config(tun: &str, tap: &str) -> Config {
    let mut config = config(tun);
    let text = format!(r#"{{"name": "factory", "type": "ethernet", "tap": "{tap}"}}"#);
    config.dnn.push(serde_json::from_str(&text).expect("the configuration is valid"));
    config
}

pub fn ue_address(destination: bool) -> Option<UeIpAddress> {
    Some(UeIpAddress { ipv4: Some(UE_V4), ipv6: Some(UE_PREFIX), destination, ..Default::default() })
}

pub fn choose(id: u8) -> Option<FTeid> {
    Some(FTeid::Choose { ipv4: true, ipv6: false, id: Some(id) })
}

pub fn pdr(id: u16, precedence: u32, pdi: Pdi, far: u32, qers: &[u32]) -> CreatePdr {
    CreatePdr {
        pdr_id: PdrId(id),
        precedence: Precedence(precedence),
        outer_header_removal: pdi.f_teid.map(|_| OuterHeaderRemoval::default()),
        pdi,
        far_id: Some(FarId(far)),
        qer_ids: qers.iter().map(|id| QerId(*id)).collect(),
        urr_ids: vec![UrrId(1)],
        ..Default::default()
    }
}

pub fn forward(id: u32, to: DestinationInterface, tunnel: Option<(u32, Ipv4Addr)>) -> CreateFar {
    CreateFar {
        far_id: FarId(id),
        apply_action: ApplyAction::FORW,
        forwarding_parameters: Some(Box::new(ForwardingParameters {
            destination_interface: to,
            outer_header_creation: tunnel.map(|(teid, peer)| OuterHeaderCreation::gtpu(teid, peer.into())),
            ..Default::default()
        })),
        ..Default::default()
    }
}

/// FAR 1 of an ordinary session, as one that redirects: to an IPv4 address (0), an IPv6 address (1), a URL (2).
pub fn redirecting(kind: u8, server: &str) -> CreateFar {
    let mut far = forward(1, DestinationInterface::Core, None);
    if let Some(parameters) = &mut far.forwarding_parameters {
        parameters.redirect_information =
            Some(RedirectInformation { address_type: kind, server: server.into(), other_server: None });
    }
    far
}

/// The session of an ordinary UE: IPv4v6, one QoS flow, router solicitations to the SMF.
pub fn establishment(cp_seid: u64) -> SessionEstablishmentRequest {
    let solicitation = SdfFilter {
        flow_description: Some("permit out 58 from ff02::2/128 to any".into()),
        ..Default::default()
    };
    SessionEstablishmentRequest {
        node_id: NodeId::Ipv4(SMF),
        cp_f_seid: FSeid::new(cp_seid, SMF.into()),
        create_pdrs: vec![
            pdr(
                1,
                255,
                Pdi { f_teid: choose(1), ue_ip_address: ue_address(false), ..Default::default() },
                1,
                &[1, 2],
            ),
            pdr(
                2,
                255,
                Pdi {
                    source_interface: SourceInterface::Core,
                    ue_ip_address: ue_address(true),
                    ..Default::default()
                },
                2,
                &[1, 2],
            ),
            pdr(
                3,
                1,
                Pdi { f_teid: choose(1), sdf_filters: vec![solicitation], ..Default::default() },
                3,
                &[],
            ),
            pdr(
                4,
                1,
                Pdi {
                    source_interface: SourceInterface::CpFunction,
                    f_teid: choose(2),
                    ..Default::default()
                },
                2,
                &[2],
            ),
        ],
        create_fars: vec![
            forward(1, DestinationInterface::Core, None),
            forward(2, DestinationInterface::Access, Some((GNB_TEID, GNB))),
            forward(3, DestinationInterface::CpFunction, Some((77, SMF))),
        ],
        create_qers: vec![
            CreateQer {
                qer_id: QerId(1),
                mbr: Some(BitRates { uplink_kbps: 100_000, downlink_kbps: 1_000_000 }),
                ..Default::default()
            },
            CreateQer { qer_id: QerId(2), qfi: Some(Qfi(QFI)), ..Default::default() },
        ],
        create_urrs: vec![CreateUrr {
            urr_id: UrrId(1),
            measurement_method: MeasurementMethod::VOLUM | MeasurementMethod::DURAT,
            measurement_information: Some(MeasurementInformation::MNOP | MeasurementInformation::ISTM),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// The ordinary session, with these network instances on N3 and N6.
pub fn placed(cp_seid: u64, n3: &str, n6: &str) -> SessionEstablishmentRequest {
    let mut request = establishment(cp_seid);
    request.create_qers[0].mbr = None;
    for pdr in &mut request.create_pdrs {
        pdr.pdi.network_instance = match pdr.pdi.source_interface {
            SourceInterface::Access => Some(n3.into()),
            SourceInterface::Core => Some(n6.into()),
            _ => None,
        };
    }
    for (far, instance) in request.create_fars.iter_mut().zip([n6, n3]) {
        if let Some(parameters) = &mut far.forwarding_parameters {
            parameters.network_instance = Some(instance.into());
        }
    }
    request
}

/// The addresses of UE number `number`.
pub fn ue_addresses(number: u8) -> (Ipv4Addr, Ipv6Addr) {
    (Ipv4Addr::new(10, 45, 0, number), Ipv6Addr::new(0xfd00, 0x45, 0, number.into(), 0, 0, 0, 2))
}

/// The rules of a UE's session in these network instances, behind this gNB.
pub fn session_behind(
    cp_seid: u64,
    number: u8,
    [n3, n6]: [&str; 2],
    gnb: IpAddr,
) -> SessionEstablishmentRequest {
    let mut request = placed(cp_seid, n3, n6);
    let (v4, v6) = ue_addresses(number);
    for address in request.create_pdrs.iter_mut().filter_map(|pdr| pdr.pdi.ue_ip_address.as_mut()) {
        (address.ipv4, address.ipv6) = (Some(v4), Some(v6));
    }
    if let Some(down) = &mut request.create_fars[1].forwarding_parameters {
        down.outer_header_creation = Some(OuterHeaderCreation::gtpu(GNB_TEID, gnb));
    }
    // The CP function has no interface of its own here.
    request.create_pdrs.truncate(2);
    request.create_fars.truncate(2);
    let (ipv4, ipv6) = (gnb.is_ipv4(), gnb.is_ipv6());
    request.create_pdrs[0].pdi.f_teid = Some(FTeid::Choose { ipv4, ipv6, id: Some(1) });
    request
}

/// A session of Ethernet frames that go down in tunnel `gnb_teid`.
pub fn ethernet_establishment(gnb_teid: u32) -> SessionEstablishmentRequest {
    let mut request = establishment(u64::from(gnb_teid));
    request.pdn_type = Some(PdnType::Ethernet);
    request.create_pdrs.truncate(2);
    for pdr in &mut request.create_pdrs {
        pdr.pdi.ue_ip_address = None;
        pdr.pdi.ethernet_pdu_session = Some(EthernetPduSessionInformation::ETHI);
        pdr.qer_ids = vec![QerId(2)];
    }
    request.create_fars[1] = forward(2, DestinationInterface::Access, Some((gnb_teid, GNB)));
    request
}

/// A modification that changes the action of a FAR.
pub fn update_far(id: u32, action: ApplyAction) -> SessionModificationRequest {
    let far = UpdateFar { far_id: FarId(id), apply_action: Some(action), ..Default::default() };
    SessionModificationRequest { update_fars: vec![far], ..Default::default() }
}

/// The downlink of [`establishment`] goes to another gNB, with an End Marker on the old tunnel (TS 23.502 §4.9.1.2).
pub fn path_switch(teid: u32, gnb: IpAddr) -> SessionModificationRequest {
    let parameters = UpdateForwardingParameters {
        outer_header_creation: Some(OuterHeaderCreation::gtpu(teid, gnb)),
        sm_req_flags: Some(SmReqFlags::SNDEM),
        ..Default::default()
    };
    let far = UpdateFar {
        far_id: FarId(2),
        update_forwarding_parameters: Some(Box::new(parameters)),
        ..Default::default()
    };
    SessionModificationRequest { update_fars: vec![far], ..Default::default() }
}

pub fn udp(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let datagram = build_udp((from, 4000), (to, 5000), payload).expect("short");
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ipv4::Header::new(from, to, protocol::UDP).build(&datagram).expect("short")
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ipv6::Header::new(from, to, protocol::UDP).build(&datagram).expect("short")
        }
        _ => unreachable!("tests send packets of one family"),
    }
}
