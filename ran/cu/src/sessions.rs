//! The PDU sessions of a UE in the CU: their tunnels, data radio bearers and QoS flows.
//!
//! A session has a default bearer, which carries all flows without guaranteed bit rate, and one bearer for each flow with.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use f1ap::ie::{self as f1ie, GtpTunnel, TransportLayerAddress};
use l2::keys::AsKeys;
use l2::pdcp::{Config, Rx, RxConfig, SnLength, Tx};
use l2::sdap::DrbId;
use l2::security::{CipheringAlgorithm, Direction, IntegrityAlgorithm};
use ngap::cause::{RadioNetwork, Transport};
use ngap::transfer::{Protection, QosCharacteristics, QosFlow, SecurityIndication, SecurityResult};
use rrc::bearer::*;
use rrc::value::DrbIdentity;
use types::{PduSessionId, Qfi, SNssai, Teid};

use crate::shared::{FarEnd, Shared};
use crate::user_plane::{self, BearerConfig, BearerId, BearerStats, Tunnel};

/// Most data bearers of a UE (TS 38.331 maxDRB).
const MOST_DRBS: u8 = 29;
/// t-Reordering of data bearers, milliseconds: longer than a radio link repeats a block.
const T_REORDERING_MS: u32 = 100;

/// A data radio bearer.
pub(crate) struct Drb {
    pub(crate) id: DrbId,
    pub(crate) bearer: BearerId,
    pub(crate) flows: Vec<QosFlow>,
    pub(crate) default: bool,
    pub(crate) stats: Arc<BearerStats>,
    /// The DU's end of its tunnel.
    pub(crate) du: Option<FarEnd>,
}

/// A PDU session.
pub(crate) struct Session {
    pub(crate) id: PduSessionId,
    pub(crate) s_nssai: SNssai,
    pub(crate) user_plane: user_plane::SessionId,
    /// The UE: its number at the CU.
    ue: u32,
    /// The UPF's end of its tunnel.
    upf: FarEnd,
    pub(crate) drbs: Vec<Drb>,
    pub(crate) protection: SecurityResult,
    /// What the SMF wants to know of the protection.
    pub(crate) security_result: Option<SecurityResult>,
}

/// What protects a session's packets on the radio (TS 38.413 §9.3.1.27, TS 33.501 §6.6.1).
pub(crate) fn protection(
    indication: Option<SecurityIndication>,
    keys: &AsKeys,
) -> Result<(SecurityResult, Option<SecurityResult>), RadioNetwork> {
    let Some(indication) = indication else {
        // As the SMF does not care: ciphered, which costs no octets.
        return Ok((SecurityResult { integrity: false, confidentiality: true }, None));
    };
    let (ciphering, integrity) = keys.algorithms();
    if indication.confidentiality == Protection::Required && ciphering == CipheringAlgorithm::Nea0 {
        return Err(RadioNetwork::UpConfidentialityProtectionNotPossible);
    }
    if indication.integrity == Protection::Required && integrity == IntegrityAlgorithm::Nia0 {
        return Err(RadioNetwork::UpIntegrityProtectionNotPossible);
    }
    let result = SecurityResult {
        integrity: indication.integrity != Protection::NotNeeded,
        confidentiality: indication.confidentiality != Protection::NotNeeded
            && ciphering != CipheringAlgorithm::Nea0,
    };
    let preferred = [indication.integrity, indication.confidentiality].contains(&Protection::Preferred);
    Ok((result, preferred.then_some(result)))
}

/// Gives out the identities of a UE's data bearers, each once for a connection. A second bearer with the same identity and keys would
/// begin at the COUNT of the first one, and cipher other packets with the same keystream (TS 38.331 §5.3.1.2).
#[derive(Debug, Default)]
pub(crate) struct DrbIds {
    given: u8,
    /// One was asked for when all were given.
    missed: bool,
}

impl DrbIds {
    /// The next identity.
    pub(crate) fn take(&mut self) -> Option<DrbId> {
        self.missed |= self.given == MOST_DRBS;
        self.given = MOST_DRBS.min(self.given + 1);
        DrbId::new(self.given).filter(|_| !self.missed)
    }

    /// Whether only a new connection, with new keys, gets the UE another bearer: not if it has all that a UE can have.
    pub(crate) fn are_used_up(&self, sessions: &[Session]) -> bool {
        let in_use = sessions.iter().map(|session| session.drbs.len()).sum::<usize>();
        self.missed && in_use < usize::from(MOST_DRBS)
    }
}

impl Session {
    /// Opens a session in the user plane, without bearers.
    pub(crate) fn open(
        shared: &Shared,
        ue: u32,
        id: PduSessionId,
        s_nssai: SNssai,
        upf: ngap::GtpTunnel,
        (protection, security_result): (SecurityResult, Option<SecurityResult>),
    ) -> Result<Session, Transport> {
        let n3 = shared.config.n3_number();
        let upf = Tunnel { address: upf.address.preferred(), teid: upf.teid.0 };
        let user_plane = shared.user_plane.open(n3, upf).map_err(|error| {
            tracing::warn!(%error, upf = %upf.address, "no tunnel on N3");
            Transport::TransportResourceUnavailable
        })?;
        let upf = (n3, upf.address, upf.teid);
        shared.add_tunnel(upf, ue);
        Ok(Session { id, s_nssai, user_plane, ue, upf, drbs: Vec::new(), protection, security_result })
    }

    /// Our end of N3.
    pub(crate) fn n3_tunnel(&self, shared: &Shared) -> ngap::GtpTunnel {
        let tunnel = shared.user_plane.n3_tunnel(self.user_plane);
        ngap::GtpTunnel { address: tunnel.address.into(), teid: Teid(tunnel.teid) }
    }

    /// Packets of the UE go to another end of the UPF from now on.
    pub(crate) fn move_to(&mut self, shared: &Shared, upf: ngap::GtpTunnel) -> Result<(), Transport> {
        let upf = Tunnel { address: upf.address.preferred(), teid: upf.teid.0 };
        shared.user_plane.move_to(self.user_plane, upf).map_err(|error| {
            tracing::warn!(%error, upf = %upf.address, "no tunnel on N3");
            Transport::TransportResourceUnavailable
        })?;
        shared.remove_tunnel(self.upf, self.ue);
        self.upf = (self.upf.0, upf.address, upf.teid);
        shared.add_tunnel(self.upf, self.ue);
        Ok(())
    }

    /// Adds a bearer for these flows to the user plane. Its packets wait until the DU's end is known.
    pub(crate) fn add_drb(
        &mut self,
        shared: &Shared,
        f1u: u8,
        id: DrbId,
        flows: Vec<QosFlow>,
        keys: &AsKeys,
    ) -> Result<(), Transport> {
        let default = self.drbs.is_empty();
        let sn = shared.config.pdcp_sn();
        let security = keys.data(self.protection.confidentiality, self.protection.integrity);
        let tx = Tx::new(Config::drb(id, Direction::Downlink, sn, true), security.clone());
        let timer = RxConfig {
            t_reordering: Some(std::time::Duration::from_millis(T_REORDERING_MS.into())),
            ..RxConfig::default()
        };
        let rx = Rx::new(Config::drb(id, Direction::Uplink, sn, true), security, timer);
        let qfis = flows.iter().map(|flow| flow.qfi).collect();
        let config = BearerConfig { default, ..BearerConfig::new(tx, rx, true, qfis) };
        let full = |error| {
            tracing::warn!(%error, "no bearer in the user plane");
            Transport::TransportResourceUnavailable
        };
        let bearer = shared.user_plane.add(self.user_plane, f1u, config).map_err(full)?;
        let stats = shared.user_plane.bearer_stats(self.user_plane, bearer);
        let stats = stats.ok_or(Transport::TransportResourceUnavailable)?;
        self.drbs.push(Drb { id, bearer, flows, default, stats, du: None });
        Ok(())
    }

    /// The DU takes the packets of a bearer there.
    pub(crate) fn connect(&mut self, shared: &Shared, f1u: u8, id: DrbId, du: &GtpTunnel) -> bool {
        let Some(drb) = self.drbs.iter_mut().find(|drb| drb.id == id) else { return false };
        let own = shared.user_plane.f1u_tunnel(drb.bearer).address;
        let Some(address) = address_of(&du.address, own) else { return false };
        let tunnel = Tunnel { address, teid: du.teid.0 };
        if shared.user_plane.connect(self.user_plane, drb.bearer, tunnel).is_err() {
            return false;
        }
        let far_end = (f1u, address, du.teid.0);
        drb.du = Some(far_end);
        shared.add_tunnel(far_end, self.ue);
        true
    }

    /// Removes a bearer.
    pub(crate) fn remove_drb(&mut self, shared: &Shared, id: DrbId) -> Option<Drb> {
        let at = self.drbs.iter().position(|drb| drb.id == id)?;
        let drb = self.drbs.remove(at);
        shared.user_plane.remove(self.user_plane, drb.bearer);
        self.unwatch_drb(shared, &drb);
        Some(drb)
    }

    /// A peer that does not know the tunnel of a bearer any more, since the bearer goes, ends nothing.
    pub(crate) fn unwatch_drb(&self, shared: &Shared, drb: &Drb) {
        if let Some(du) = drb.du {
            shared.remove_tunnel(du, self.ue);
        }
    }

    /// As [`Session::unwatch_drb`], for all tunnels of the session.
    pub(crate) fn unwatch(&self, shared: &Shared) {
        self.drbs.iter().for_each(|drb| self.unwatch_drb(shared, drb));
        shared.remove_tunnel(self.upf, self.ue);
    }

    /// Whether one of its tunnels leads there.
    pub(crate) fn leads_to(&self, far_end: FarEnd) -> bool {
        self.upf == far_end || self.drbs.iter().any(|drb| drb.du == Some(far_end))
    }

    /// Closes the session with its bearers.
    pub(crate) fn close(self, shared: &Shared) {
        self.unwatch(shared);
        shared.user_plane.close(self.user_plane);
    }

    /// What the DU is asked to set up for a bearer (TS 38.473 §9.2.2.1).
    pub(crate) fn f1_drb(&self, shared: &Shared, drb: &Drb) -> f1ie::DrbToBeSetup {
        let sn = match shared.config.pdcp_sn() {
            SnLength::Twelve => f1ie::PdcpSnLength::TwelveBits,
            SnLength::Eighteen => f1ie::PdcpSnLength::EighteenBits,
        };
        f1ie::DrbToBeSetup {
            drb_id: f1ie::DrbId(drb.id.number()),
            qos: self.f1_drb_qos(drb),
            ul_up_tnl: f1_tunnel(shared, drb),
            rlc_mode: f1ie::RlcMode::UmBidirectional,
            ul_configuration: None,
            duplication_activation: None,
            dl_pdcp_sn_length: Some(sn),
            ul_pdcp_sn_length: Some(sn),
        }
    }

    /// What the DU is told of a bearer whose QoS has changed: its tunnel stays.
    pub(crate) fn f1_drb_modified(&self, shared: &Shared, drb: &Drb) -> f1ie::DrbToBeModified {
        f1ie::DrbToBeModified {
            drb_id: f1ie::DrbId(drb.id.number()),
            qos: Some(self.f1_drb_qos(drb)),
            ul_up_tnl: f1_tunnel(shared, drb),
            ul_configuration: None,
            dl_pdcp_sn_length: None,
            ul_pdcp_sn_length: None,
            rlc_mode: None,
        }
    }

    fn f1_drb_qos(&self, drb: &Drb) -> f1ie::DrbQos {
        let mapped = |flow: &QosFlow| f1ie::FlowMappedToDrb { qfi: flow.qfi, qos: f1_qos(flow) };
        f1ie::DrbQos(f1ie::DrbInformation {
            // The bearer's is that of its first flow.
            qos: f1_qos(&drb.flows[0]),
            s_nssai: self.s_nssai,
            notification_control: None,
            flows: drb.flows.iter().map(mapped).collect(),
        })
    }

    /// A flow and its bearer.
    pub(crate) fn flow(&self, qfi: Qfi) -> Option<(&Drb, &QosFlow)> {
        self.drbs.iter().find_map(|drb| Some((drb, drb.flows.iter().find(|flow| flow.qfi == qfi)?)))
    }

    /// Puts a flow on a bearer, in the place that it has there, or takes it away.
    pub(crate) fn set_flow(&mut self, drb: DrbId, qfi: Qfi, flow: Option<QosFlow>) {
        let Some(drb) = self.drbs.iter_mut().find(|known| known.id == drb) else { return };
        match (drb.flows.iter().position(|known| known.qfi == qfi), flow) {
            (Some(at), Some(flow)) => drb.flows[at] = flow,
            (Some(at), None) => drop(drb.flows.remove(at)),
            (None, flow) => drb.flows.extend(flow),
        }
    }

    /// What the UE is told of a bearer (TS 38.331 §5.3.5.6.5).
    pub(crate) fn rrc_drb(&self, shared: &Shared, drb: &Drb) -> DrbToAddMod {
        let size = match shared.config.pdcp_sn() {
            SnLength::Twelve => PdcpSnSize::Len12Bits,
            SnLength::Eighteen => PdcpSnSize::Len18Bits,
        };
        let sdap = SdapConfig {
            pdu_session: self.id.into(),
            sdap_header_dl: SdapHeader::Present,
            sdap_header_ul: SdapHeader::Present,
            default_drb: drb.default,
            mapped_qos_flows_to_add: drb.flows.iter().map(|flow| flow.qfi).collect(),
            mapped_qos_flows_to_release: Vec::new(),
        };
        DrbToAddMod {
            cn_association: Some(CnAssociation::SdapConfig(sdap)),
            drb_identity: drb_identity(drb.id),
            reestablish_pdcp: false,
            recover_pdcp: false,
            pdcp_config: Some(PdcpConfig {
                drb: Some(PdcpDrb {
                    discard_timer: Some(DiscardTimer::INFINITY),
                    pdcp_sn_size_ul: Some(size),
                    pdcp_sn_size_dl: Some(size),
                    integrity_protection: self.protection.integrity,
                    status_report_required: false,
                    out_of_order_delivery: false,
                }),
                t_reordering: TReordering::new(T_REORDERING_MS),
                ciphering_disabled: !self.protection.confidentiality,
            }),
        }
    }

    /// The flows that have a bearer.
    pub(crate) fn flows(&self) -> Vec<Qfi> {
        self.drbs.iter().flat_map(|drb| drb.flows.iter().map(|flow| flow.qfi)).collect()
    }
}

/// RRC's identity of a bearer.
pub(crate) fn drb_identity(id: DrbId) -> DrbIdentity {
    DrbIdentity::new(id.number()).expect("DRB identities are the same in SDAP and RRC")
}

/// F1AP's form of an address.
fn transport_address(address: IpAddr) -> TransportLayerAddress {
    match address {
        IpAddr::V4(address) => TransportLayerAddress::V4(address),
        IpAddr::V6(address) => TransportLayerAddress::V6(address),
    }
}

/// The peer's address of the IP version that we have on the interface.
fn address_of(peer: &TransportLayerAddress, own: IpAddr) -> Option<IpAddr> {
    match (*peer, own) {
        (TransportLayerAddress::V4(v4) | TransportLayerAddress::Both(v4, _), IpAddr::V4(_)) => {
            Some(v4.into()).filter(|_| v4 != Ipv4Addr::UNSPECIFIED)
        }
        (TransportLayerAddress::V6(v6) | TransportLayerAddress::Both(_, v6), IpAddr::V6(_)) => {
            Some(v6.into())
        }
        _ => None,
    }
}

/// Our end of a bearer's tunnel, as F1AP has it.
fn f1_tunnel(shared: &Shared, drb: &Drb) -> Vec<f1ie::UpTnlItem> {
    let own = shared.user_plane.f1u_tunnel(drb.bearer);
    let tunnel = GtpTunnel { address: transport_address(own.address), teid: Teid(own.teid) };
    vec![f1ie::UpTnlItem { tunnel }]
}

/// NGAP's QoS parameters of a flow as F1AP writes them.
fn f1_qos(flow: &QosFlow) -> f1ie::QosFlowLevelQosParameters {
    let parameters = &flow.parameters;
    let characteristics = match parameters.characteristics {
        QosCharacteristics::NonDynamic { five_qi, priority } => {
            f1ie::QosCharacteristics::NonDynamic(f1ie::NonDynamic5Qi {
                five_qi: f1ie::FiveQi(five_qi.0),
                priority_level: priority.map(f1ie::QosPriorityLevel),
                averaging_window: None,
                max_data_burst_volume: None,
            })
        }
        QosCharacteristics::Dynamic { priority, delay_budget, error_rate, five_qi } => {
            f1ie::QosCharacteristics::Dynamic(f1ie::Dynamic5Qi {
                priority_level: f1ie::QosPriorityLevel(priority),
                packet_delay_budget: f1ie::PacketDelayBudget(delay_budget),
                packet_error_rate: f1ie::PacketErrorRate {
                    scalar: f1ie::ErrorRateDigit(error_rate.0),
                    exponent: f1ie::ErrorRateDigit(error_rate.1),
                },
                five_qi: five_qi.map(|five_qi| f1ie::FiveQi(five_qi.0)),
                delay_critical: None,
                averaging_window: None,
                max_data_burst_volume: None,
            })
        }
    };
    let arp = parameters.arp;
    f1ie::QosFlowLevelQosParameters {
        characteristics,
        arp: f1ie::NgranArp {
            priority_level: f1ie::PriorityLevel(arp.priority),
            pre_emption_capability: if arp.may_preempt {
                f1ie::PreEmptionCapability::MayTriggerPreEmption
            } else {
                f1ie::PreEmptionCapability::ShallNotTriggerPreEmption
            },
            pre_emption_vulnerability: if arp.preemptable {
                f1ie::PreEmptionVulnerability::PreEmptable
            } else {
                f1ie::PreEmptionVulnerability::NotPreEmptable
            },
        },
        gbr: parameters.gbr.map(|gbr| f1ie::GbrQosFlowInformation {
            max_dl: gbr.maximum.downlink,
            max_ul: gbr.maximum.uplink,
            guaranteed_dl: gbr.guaranteed.downlink,
            guaranteed_ul: gbr.guaranteed.uplink,
            max_packet_loss_rate_dl: None,
            max_packet_loss_rate_ul: None,
        }),
        reflective_qos: parameters.reflective.then_some(f1ie::ReflectiveQosAttribute::SubjectTo),
    }
}
