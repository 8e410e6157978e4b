//! The rules that the UPF gets for a PDN connection (TS 23.214, TS 29.244 §5.2).
//!
//! | PDR | from | matches | FAR |
//! |---|---|---|---|
//! | 16 + 2·slot | S1-U | the bearer's F-TEID, UE address as source; of a dedicated bearer its uplink filters | 1: to the data network |
//! | 17 | SGi | UE address as destination; of the default bearer only | the bearer's |
//! | 64 + 16·slot + filter | SGi | UE address as destination, a downlink filter of a dedicated bearer | the bearer's |
//! | 1 router solicitation (IPv6) | S1-U | F-TEID of the default bearer, ICMPv6 to all routers | 2: to the gateway over N4-u |
//! | 2 router advertisement (IPv6) | gateway | F-TEID on N4-u | the default bearer's |
//!
//! An S-GW alone passes packets between the bearer's two tunnels:
//!
//! | PDR | from | matches | FAR |
//! |---|---|---|---|
//! | 16 + 2·slot | S1-U | the bearer's F-TEID | 64 + slot: to the P-GW's tunnel, or drop |
//! | 17 + 2·slot | S5/S8-U | the bearer's F-TEID | the bearer's |
//!
//! A P-GW alone has the rules of the first table, with S5/S8-U instead of S1-U and the S-GW's tunnel instead of the eNB's.
//!
//! A bearer has a slot in its PDN connection, as its EBI is not known before the MME has answered; the default bearer has slot 0.
//! Its FAR is 16 + slot: to the eNB, or buffer. So is the QER of a bearer with guaranteed rates. QER 1 polices the APN-AMBR, which all
//! other bearers of the PDN connection share (TS 23.401 §4.7.3).

use std::net::{IpAddr, SocketAddr};

use ipam::Addresses;
use n4::rules::{AddressFamily, Destination, NetworkInstance, buffer, forward, rates, remove_gtpu};
use n4::rules::{router_solicitations, ue_ip_address, update_far, update_rates};
use pfcp::message::*;
use pfcp::*;
use types::{Ambr, Dnn, PduSessionType, Teid};

use crate::bearer::{Bearer, Slot, Tunnel};
use crate::context::Role;
use crate::filters::Filter;

const SOLICITATION: PdrId = PdrId(1);
const ADVERTISEMENT: PdrId = PdrId(2);
const TO_NETWORK: FarId = FarId(1);
const TO_GATEWAY: FarId = FarId(2);
const AMBR: QerId = QerId(1);
/// The gateway's own traffic matches first, the default bearer last, dedicated bearers in the order of their filters.
const PRECEDENCE_CONTROL: Precedence = Precedence(1);
const PRECEDENCE_FILTERS: u32 = 256;
const PRECEDENCE_DEFAULT: Precedence = Precedence(65_535);
/// CHOOSE ID of the tunnel on N4-u; those of bearers are 16 + slot, and 32 + slot on an S-GW's S5/S8-U.
const CHOOSE_N4U: u8 = 1;

/// The values from which the rules of a PDN connection are built.
#[derive(Debug, Clone)]
pub(crate) struct PdnRules<'a> {
    /// Our SEID.
    pub seid: u64,
    /// Our PFCP address.
    pub n4: IpAddr,
    pub role: Role,
    /// Family of the UPF's addresses on S1-U.
    pub s1u: AddressFamily,
    /// Family of the UPF's addresses on S5/S8-U.
    pub s5u: AddressFamily,
    /// Our GTP-U address for N4-u.
    pub n4u: SocketAddr,
    /// TEID of the PDN connection on N4-u at our end.
    pub n4u_teid: Teid,
    pub apn: &'a Dnn,
    pub network_instance: NetworkInstance,
    pub pdn_type: PduSessionType,
    pub addresses: Addresses,
    /// Interface identifier of the UE's link-local address, for IPv6.
    pub interface_id: [u8; 8],
    pub ambr: Ambr,
    /// The default bearer first.
    pub bearers: &'a [Bearer],
}

fn uplink_id(slot: Slot) -> PdrId {
    PdrId(16 + 2 * u16::from(slot.0))
}

const DEFAULT_DOWNLINK: PdrId = PdrId(17);

/// An S-GW's, from the P-GW.
fn s5_downlink_id(slot: Slot) -> PdrId {
    PdrId(17 + 2 * u16::from(slot.0))
}

/// Filters of a bearer are numbered from 0 to 15.
fn downlink_id(slot: Slot, filter: u8) -> PdrId {
    PdrId(64 + 16 * u16::from(slot.0) + u16::from(filter & 0x0F))
}

fn far_id(slot: Slot) -> FarId {
    FarId(16 + u32::from(slot.0))
}

/// An S-GW's, to the P-GW.
fn s5_far_id(slot: Slot) -> FarId {
    FarId(64 + u32::from(slot.0))
}

fn gbr_id(slot: Slot) -> QerId {
    QerId(16 + u32::from(slot.0))
}

fn choose_id(slot: Slot) -> u8 {
    16 + slot.0
}

/// The tunnel of an F-TEID.
pub(crate) fn tunnel(f_teid: FTeid) -> Option<Tunnel> {
    let FTeid::Assigned { teid, ipv4, ipv6 } = f_teid else { return None };
    let address = ipv4.map(IpAddr::V4).or(ipv6.map(IpAddr::V6))?;
    Some(Tunnel { address, teid: Teid(teid) })
}

fn f_teid(tunnel: Tunnel) -> FTeid {
    let (ipv4, ipv6) = match tunnel.address {
        IpAddr::V4(v4) => (Some(v4), None),
        IpAddr::V6(v6) => (None, Some(v6)),
    };
    FTeid::Assigned { teid: tunnel.teid.0, ipv4, ipv6 }
}

/// The UPF's end of a bearer's tunnel, of an answer to [`PdnRules::establishment`] or [`PdnRules::add_bearer`].
pub(crate) fn chosen(created: &[CreatedPdr], slot: Slot) -> Option<Tunnel> {
    tunnel(created.iter().find(|pdr| pdr.pdr_id == uplink_id(slot))?.f_teid?)
}

/// The UPF's end of a bearer's tunnel to the P-GW, of the same answers.
pub(crate) fn chosen_s5(created: &[CreatedPdr], slot: Slot) -> Option<Tunnel> {
    tunnel(created.iter().find(|pdr| pdr.pdr_id == s5_downlink_id(slot))?.f_teid?)
}

/// The bearer to which a PDR belongs, as its packets tell.
pub(crate) fn slot_of(pdr: PdrId) -> Option<Slot> {
    let slot = match pdr.0 {
        number @ 16..=47 => (number - 16) / 2,
        number @ 64.. => (number - 64) / 16,
        _ => return None,
    };
    u8::try_from(slot).ok().map(Slot)
}

/// The UPF's end of N4-u.
pub(crate) fn chosen_n4u(created: &[CreatedPdr]) -> Option<Tunnel> {
    tunnel(created.iter().find(|pdr| pdr.pdr_id == ADVERTISEMENT)?.f_teid?)
}

impl PdnRules<'_> {
    /// Session Establishment Request. Tunnels that bearers have already are kept, so that nothing changes for the eNB when a
    /// PDN connection is set up again after the UPF lost it; the UPF chooses the others. `n4u` is likewise its end of N4-u.
    pub fn establishment(&self, n4u: Option<Tunnel>) -> SessionEstablishmentRequest {
        let mut request = SessionEstablishmentRequest {
            node_id: self.n4.into(),
            cp_f_seid: FSeid::new(self.seid, self.n4),
            pdn_type: Some(match self.pdn_type {
                PduSessionType::Ipv4 => PdnType::Ipv4,
                PduSessionType::Ipv6 => PdnType::Ipv6,
                PduSessionType::Ipv4v6 => PdnType::Ipv4v6,
                PduSessionType::Ethernet => PdnType::Ethernet,
                PduSessionType::Unstructured => PdnType::NonIp,
            }),
            dnn: Some(ApnDnn(self.apn.to_string())),
            flags: self.bearers.iter().any(|bearer| bearer.own.is_some()).then_some(SeReqFlags::RESTI),
            ..Default::default()
        };
        if self.role.is_pgw() {
            request.create_fars.push(self.to_network());
            let mbr = Some(rates(self.ambr));
            request.create_qers.push(CreateQer { qer_id: AMBR, mbr, ..Default::default() });
        }
        for bearer in self.bearers {
            let change = self.add_bearer(bearer);
            request.create_pdrs.extend(change.create_pdrs);
            request.create_fars.extend(change.create_fars);
            request.create_qers.extend(change.create_qers);
        }
        let has_router = self.role.is_pgw() && self.pdn_type.has_ipv6();
        if let (true, Some(default)) = (has_router, self.bearers.first()) {
            let n4u = n4u.map_or_else(|| AddressFamily::of(self.n4u.ip()).choose(CHOOSE_N4U), f_teid);
            request.create_pdrs.extend([self.solicitation(default), advertisement(n4u, default.slot)]);
            request.create_fars.push(self.to_gateway());
        }
        request
    }

    /// Adds a dedicated bearer.
    pub fn add_bearer(&self, bearer: &Bearer) -> SessionModificationRequest {
        if !self.role.is_pgw() {
            return self.between_tunnels(bearer);
        }
        let qer_ids = vec![if bearer.is_gbr() { gbr_id(bearer.slot) } else { AMBR }];
        let mut create_pdrs = vec![self.uplink(bearer, &qer_ids)];
        if bearer.slot == Slot::DEFAULT {
            create_pdrs.push(self.downlink(DEFAULT_DOWNLINK, PRECEDENCE_DEFAULT, None, bearer, &qer_ids));
        }
        for filter in bearer.filters.iter().filter(|filter| filter.downlink) {
            let precedence = Precedence(PRECEDENCE_FILTERS + u32::from(filter.precedence));
            let id = downlink_id(bearer.slot, filter.id);
            create_pdrs.push(self.downlink(id, precedence, Some(filter.sdf.clone()), bearer, &qer_ids));
        }
        SessionModificationRequest {
            create_pdrs,
            create_fars: vec![self.to_access(bearer)],
            create_qers: bearer.is_gbr().then(|| gbr(bearer)).into_iter().collect(),
            ..Default::default()
        }
    }

    /// Changes the filters and rates of a dedicated bearer of a P-GW.
    pub fn update_bearer(&self, former: &Bearer, now: &Bearer) -> SessionModificationRequest {
        let rules = self.add_bearer(now);
        let downlink = |bearer: &Bearer, filter: &Filter| {
            filter.downlink.then(|| (downlink_id(bearer.slot, filter.id), filter.clone()))
        };
        let of = |bearer: &Bearer| -> Vec<(PdrId, Filter)> {
            bearer.filters.iter().filter_map(|filter| downlink(bearer, filter)).collect()
        };
        let (before, after) = (of(former), of(now));
        let has = |rules: &[(PdrId, Filter)], id| rules.iter().any(|(known, _)| *known == id);
        let removed = before.iter().filter(|(id, _)| !has(&after, *id));
        let (created, kept): (Vec<_>, Vec<_>) = rules
            .create_pdrs
            .into_iter()
            .partition(|pdr| pdr.pdr_id != uplink_id(now.slot) && !has(&before, pdr.pdr_id));
        // What is the same as before is not sent.
        let changed = kept.into_iter().filter(|pdr| {
            let same =
                |(id, filter): &(PdrId, Filter)| *id == pdr.pdr_id && after.contains(&(*id, filter.clone()));
            !before.iter().any(same)
        });
        let update = |pdr: CreatePdr| UpdatePdr {
            pdr_id: pdr.pdr_id,
            precedence: Some(pdr.precedence),
            pdi: Some(pdr.pdi),
            ..Default::default()
        };
        let rates = (now.is_gbr() && former.qos.flow != now.qos.flow).then(|| gbr(now));
        let rates = rates.map(|qer| UpdateQer {
            qer_id: qer.qer_id,
            mbr: qer.mbr,
            gbr: qer.gbr,
            ..Default::default()
        });
        SessionModificationRequest {
            remove_pdrs: removed.map(|(pdr_id, _)| RemovePdr { pdr_id: *pdr_id }).collect(),
            create_pdrs: created,
            update_pdrs: changed.map(update).collect(),
            update_qers: rates.into_iter().collect(),
            ..Default::default()
        }
    }

    /// The rules of an S-GW alone for a bearer.
    fn between_tunnels(&self, bearer: &Bearer) -> SessionModificationRequest {
        let pdr = |pdr_id, source_interface, source_interface_type, f_teid, far_id| CreatePdr {
            pdr_id,
            precedence: PRECEDENCE_DEFAULT,
            pdi: Pdi {
                source_interface,
                source_interface_type: Some(source_interface_type),
                f_teid: Some(f_teid),
                ..Default::default()
            },
            outer_header_removal: Some(remove_gtpu()),
            far_id: Some(far_id),
            ..Default::default()
        };
        let Bearer { slot, own, s5, .. } = *bearer;
        let s1u = own.map_or_else(|| self.s1u.choose(choose_id(slot)), f_teid);
        let s5u = s5.own.map_or_else(|| self.s5u.choose(16 + choose_id(slot)), f_teid);
        let s5_type = InterfaceType::S5S8_U;
        let to_pgw = match s5.pgw {
            Some(pgw) => forward(s5_far_id(slot), to_pgw(pgw)),
            None => {
                let (far_id, apply_action) = (s5_far_id(slot), ApplyAction::DROP);
                CreateFar { far_id, apply_action, ..Default::default() }
            }
        };
        SessionModificationRequest {
            create_pdrs: vec![
                pdr(uplink_id(slot), SourceInterface::Access, InterfaceType::S1_U, s1u, s5_far_id(slot)),
                pdr(s5_downlink_id(slot), SourceInterface::Core, s5_type, s5u, far_id(slot)),
            ],
            create_fars: vec![self.to_access(bearer), to_pgw],
            ..Default::default()
        }
    }

    fn to_access(&self, bearer: &Bearer) -> CreateFar {
        match bearer.access {
            Some(access) => forward(far_id(bearer.slot), to_tunnel(access, self.role)),
            None => buffer(far_id(bearer.slot)),
        }
    }

    /// Family of the UPF's addresses towards the eNB or S-GW.
    fn access_family(&self) -> AddressFamily {
        if self.role.is_sgw() { self.s1u } else { self.s5u }
    }

    fn uplink(&self, bearer: &Bearer, qer_ids: &[QerId]) -> CreatePdr {
        let choose = || self.access_family().choose(choose_id(bearer.slot));
        let filters = bearer.filters.iter().filter(|filter| filter.uplink);
        let first = filters.clone().map(|filter| filter.precedence).min().unwrap_or(0);
        CreatePdr {
            pdr_id: uplink_id(bearer.slot),
            precedence: match bearer.slot == Slot::DEFAULT {
                true => PRECEDENCE_DEFAULT,
                false => Precedence(PRECEDENCE_FILTERS + u32::from(first)),
            },
            pdi: Pdi {
                source_interface: SourceInterface::Access,
                source_interface_type: Some(access_type(self.role)),
                f_teid: Some(bearer.own.map_or_else(choose, f_teid)),
                network_instance: self.instance(),
                // The source address is checked: packets with another one are dropped.
                ue_ip_address: self.ue_ip_address(false),
                sdf_filters: filters.map(|filter| filter.sdf.clone()).collect(),
                ..Default::default()
            },
            outer_header_removal: Some(remove_gtpu()),
            far_id: Some(TO_NETWORK),
            qer_ids: qer_ids.into(),
            ..Default::default()
        }
    }

    fn downlink(
        &self,
        pdr_id: PdrId,
        precedence: Precedence,
        filter: Option<SdfFilter>,
        bearer: &Bearer,
        qer_ids: &[QerId],
    ) -> CreatePdr {
        CreatePdr {
            pdr_id,
            precedence,
            pdi: Pdi {
                source_interface: SourceInterface::Core,
                source_interface_type: Some(InterfaceType::SGI),
                network_instance: self.instance(),
                ue_ip_address: self.ue_ip_address(true),
                sdf_filters: filter.into_iter().collect(),
                ..Default::default()
            },
            far_id: Some(far_id(bearer.slot)),
            qer_ids: qer_ids.into(),
            ..Default::default()
        }
    }

    fn instance(&self) -> Option<ShortBytes> {
        Some(self.network_instance.encode(self.apn))
    }

    fn ue_ip_address(&self, destination: bool) -> Option<UeIpAddress> {
        let Addresses { ipv4, ipv6 } = self.addresses;
        Some(ue_ip_address(ipv4, ipv6, self.interface_id, destination))
    }

    fn to_network(&self) -> CreateFar {
        let to = Destination {
            interface: DestinationInterface::Core,
            interface_type: Some(InterfaceType::SGI),
            network_instance: self.instance(),
            outer_header: None,
        };
        forward(TO_NETWORK, to)
    }

    fn to_gateway(&self) -> CreateFar {
        let to = Destination {
            interface: DestinationInterface::CpFunction,
            outer_header: Some(OuterHeaderCreation::gtpu(self.n4u_teid.0, self.n4u.ip())),
            ..Default::default()
        };
        forward(TO_GATEWAY, to)
    }

    fn solicitation(&self, default: &Bearer) -> CreatePdr {
        let choose = || self.access_family().choose(choose_id(default.slot));
        CreatePdr {
            pdr_id: SOLICITATION,
            precedence: PRECEDENCE_CONTROL,
            pdi: Pdi {
                source_interface: SourceInterface::Access,
                source_interface_type: Some(access_type(self.role)),
                f_teid: Some(default.own.map_or_else(choose, f_teid)),
                network_instance: self.instance(),
                sdf_filters: vec![router_solicitations()],
                ..Default::default()
            },
            outer_header_removal: Some(remove_gtpu()),
            far_id: Some(TO_GATEWAY),
            ..Default::default()
        }
    }
}

fn advertisement(n4u: FTeid, default: Slot) -> CreatePdr {
    CreatePdr {
        pdr_id: ADVERTISEMENT,
        precedence: PRECEDENCE_CONTROL,
        pdi: Pdi { source_interface: SourceInterface::CpFunction, f_teid: Some(n4u), ..Default::default() },
        outer_header_removal: Some(remove_gtpu()),
        far_id: Some(far_id(default)),
        ..Default::default()
    }
}

/// Rates of the bearer on N4 and in GTPv2-C are both in kbit/s.
fn gbr(bearer: &Bearer) -> CreateQer {
    let rates = |uplink_kbps, downlink_kbps| Some(BitRates { uplink_kbps, downlink_kbps });
    let qos = &bearer.qos.flow;
    CreateQer {
        qer_id: gbr_id(bearer.slot),
        mbr: rates(qos.mbr_uplink_kbps, qos.mbr_downlink_kbps),
        gbr: rates(qos.gbr_uplink_kbps, qos.gbr_downlink_kbps),
        ..Default::default()
    }
}

/// Interface type towards the eNB or S-GW.
fn access_type(role: Role) -> InterfaceType {
    if role.is_sgw() { InterfaceType::S1_U } else { InterfaceType::S5S8_U }
}

fn to_tunnel(access: Tunnel, role: Role) -> Destination {
    Destination {
        interface: DestinationInterface::Access,
        interface_type: Some(access_type(role)),
        outer_header: Some(OuterHeaderCreation::gtpu(access.teid.0, access.address)),
        ..Default::default()
    }
}

fn to_pgw(pgw: Tunnel) -> Destination {
    Destination {
        interface: DestinationInterface::Core,
        interface_type: Some(InterfaceType::S5S8_U),
        outer_header: Some(OuterHeaderCreation::gtpu(pgw.teid.0, pgw.address)),
        ..Default::default()
    }
}

/// Where downlink packets of bearers go from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Downlink {
    /// To this eNB or S-GW, buffered ones first and in order. With `end_marker` the former one is told that none come any more
    /// (TS 36.300 §10.1.2.2.1).
    To { access: Tunnel, end_marker: bool },
    /// Nowhere yet. The UPF reports the first packet, so that the UE can be paged (TS 23.401 §5.3.4.3).
    Buffered,
}

/// Changes the downlink of bearers.
pub(crate) fn change_downlink(
    role: Role,
    changes: impl IntoIterator<Item = (Slot, Downlink)>,
) -> SessionModificationRequest {
    let mut request = SessionModificationRequest::default();
    for (slot, downlink) in changes {
        let (action, to) = match downlink {
            Downlink::To { access, .. } => (ApplyAction::FORW, Some(to_tunnel(access, role))),
            Downlink::Buffered => (ApplyAction::BUFF | ApplyAction::NOCP, None),
        };
        let mut far = update_far(far_id(slot), action, to).update_fars;
        if let Downlink::To { end_marker: true, .. } = downlink {
            for parameters in far.iter_mut().filter_map(|far| far.update_forwarding_parameters.as_mut()) {
                parameters.sm_req_flags = Some(SmReqFlags::SNDEM);
            }
        }
        request.update_fars.extend(far);
    }
    request
}

/// Names the P-GW's tunnels, which an S-GW learns after its own are there.
pub(crate) fn change_uplink(bearers: &[Bearer]) -> SessionModificationRequest {
    let known = bearers.iter().filter_map(|bearer| Some((bearer.slot, bearer.s5.pgw?)));
    let fars = known.flat_map(|(slot, pgw)| {
        update_far(s5_far_id(slot), ApplyAction::FORW, Some(to_pgw(pgw))).update_fars
    });
    SessionModificationRequest { update_fars: fars.collect(), ..Default::default() }
}

/// Drops the downlink packets of bearers, buffered ones too: the UE cannot be reached.
pub(crate) fn discard(bearers: impl IntoIterator<Item = Slot>) -> SessionModificationRequest {
    let fars =
        bearers.into_iter().flat_map(|slot| update_far(far_id(slot), ApplyAction::DROP, None).update_fars);
    SessionModificationRequest {
        update_fars: fars.collect(),
        flags: Some(SmReqFlags::DROBU),
        ..Default::default()
    }
}

/// Takes a dedicated bearer away.
pub(crate) fn remove_bearer(role: Role, bearer: &Bearer) -> SessionModificationRequest {
    let slot = bearer.slot;
    let filters = bearer.filters.iter().filter(|filter| role.is_pgw() && filter.downlink);
    let s5 = !role.is_pgw();
    let pdrs = filters.map(|filter| downlink_id(slot, filter.id)).chain([uplink_id(slot)]);
    let pdrs = pdrs.chain(s5.then(|| s5_downlink_id(slot)));
    let fars = [far_id(slot)].into_iter().chain(s5.then(|| s5_far_id(slot)));
    let has_qer = role.is_pgw() && bearer.is_gbr();
    SessionModificationRequest {
        remove_pdrs: pdrs.map(|pdr_id| RemovePdr { pdr_id }).collect(),
        remove_fars: fars.map(|far_id| RemoveFar { far_id }).collect(),
        remove_qers: has_qer.then(|| RemoveQer { qer_id: gbr_id(slot) }).into_iter().collect(),
        ..Default::default()
    }
}

/// Changes the APN-AMBR.
pub(crate) fn change_ambr(ambr: Ambr) -> SessionModificationRequest {
    update_rates(AMBR, ambr)
}
