//! The data bearers that RRC has configured: which exist, and what a reconfiguration changes (TS 38.331 §5.3.5.5, §5.3.5.6).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::rrc::CellGroupConfig;
use ::rrc::bearer::*;
use ::rrc::cell_group::*;
use l2::keys::AsKeys;
use l2::pdcp::{Config, Rx, RxConfig, SnLength, Tx};
use l2::rlc::um;
use l2::sdap::{Drb, DrbId};
use l2::security::Direction;
use types::PduSessionId;

use super::{Action, Failure};
use crate::control::BearerSetup;

/// Most PDUs and octets that a bearer holds for reordering, as the user plane has them.
const REORDERING: RxConfig =
    RxConfig { t_reordering: None, out_of_order_delivery: false, max_held: 4096, max_held_octets: 4 << 20 };

/// Logical channels above are those of data bearers.
const HIGHEST_LCID_OF_SRBS: u8 = 3;

/// RLC of a data bearer.
#[derive(Debug, Clone, Copy)]
struct Rlc {
    lcid: u8,
    sn: um::SnLength,
    t_reassembly: Duration,
}

/// A data bearer that the UE has.
#[derive(Debug, Clone, Copy)]
struct Known {
    lcid: u8,
    session: PduSessionId,
    drb: Drb,
    default: bool,
    /// Lengths of PDCP's sequence numbers, uplink and downlink.
    sn: (SnLength, SnLength),
}

/// The data bearers of a UE.
#[derive(Debug, Default, Clone)]
pub(super) struct Bearers {
    /// By identity.
    rlc: BTreeMap<u8, Rlc>,
    known: BTreeMap<u8, Known>,
}

fn cannot<T>(what: &'static str) -> Result<T, Failure> {
    Err(Failure::Reconfiguration(what))
}

impl Bearers {
    /// Takes the RLC bearers of a CellGroupConfig.
    pub(super) fn take_cell_group(&mut self, octets: &[u8]) -> Result<(), Failure> {
        let Ok(config) = CellGroupConfig::decode(octets) else { return cannot("CellGroupConfig") };
        for lcid in &config.rlc_bearer_to_release_list {
            self.rlc.retain(|_, rlc| rlc.lcid != lcid.value());
        }
        for bearer in &config.rlc_bearer_to_add_mod_list {
            let lcid = bearer.logical_channel_identity.value();
            let Some(ServedRadioBearer::Drb(drb)) = bearer.served_radio_bearer else {
                // Signalling bearers have the default configuration, on the channels of their numbers (§9.2.1).
                continue;
            };
            let Some(RlcConfig::UmBiDirectional(um)) = &bearer.rlc_config else {
                return cannot("RLC mode of a data bearer");
            };
            let sn = match (um.ul_um_rlc.sn_field_length, um.dl_um_rlc.sn_field_length) {
                (Some(SnFieldLengthUm::Size6), Some(SnFieldLengthUm::Size6)) => um::SnLength::Bits6,
                (Some(SnFieldLengthUm::Size12), Some(SnFieldLengthUm::Size12)) => um::SnLength::Bits12,
                _ => return cannot("RLC sequence numbers"),
            };
            let t_reassembly = um.dl_um_rlc.t_reassembly.value().unwrap_or(0);
            if lcid <= HIGHEST_LCID_OF_SRBS {
                return cannot("a data bearer on a logical channel of signalling");
            }
            let taken = self.rlc.iter().any(|(id, rlc)| rlc.lcid == lcid && *id != drb.value());
            if taken {
                return cannot("a logical channel of two bearers");
            }
            self.rlc.insert(
                drb.value(),
                Rlc { lcid, sn, t_reassembly: Duration::from_millis(t_reassembly.into()) },
            );
        }
        Ok(())
    }

    /// What a reconfiguration changes in the user plane. After an error nothing has changed.
    pub(super) fn change(
        &mut self,
        cell_group: Option<&bytes::Bytes>,
        config: &RadioBearerConfig,
        full: bool,
        keys: &AsKeys,
    ) -> Result<Vec<Action>, Failure> {
        let mut next = self.clone();
        let mut actions = Vec::new();
        let before: BTreeSet<PduSessionId> = next.known.values().map(|known| known.session).collect();
        let released: BTreeSet<u8> = config.drb_to_release_list.iter().map(|id| id.value()).collect();
        // One that the UE does not have is released already. A full configuration begins with nothing (§5.3.5.11).
        next.known.retain(|id, known| {
            let stays = !full && !released.contains(id);
            if !stays {
                actions.push(Action::RemoveBearer(known.lcid));
            }
            stays
        });
        if full {
            next.rlc.clear();
        }
        if let Some(octets) = cell_group {
            next.take_cell_group(octets)?;
        }
        let alive: BTreeSet<PduSessionId> = next.known.values().map(|known| known.session).collect();
        let adds = |session: &PduSessionId| {
            config.drb_to_add_mod_list.iter().any(|drb| session_of(drb) == Some(*session))
        };
        for gone in before.difference(&alive) {
            if !adds(gone) {
                actions.push(Action::RemoveSession(*gone));
            }
        }
        let mut up = BTreeSet::new();
        let mut seen = BTreeSet::new();
        for drb in &config.drb_to_add_mod_list {
            if !seen.insert(drb.drb_identity.value()) {
                return cannot("a data bearer that is named twice");
            }
            if let Some(known) = next.known.get(&drb.drb_identity.value()) {
                known.stays(drb)?;
                continue;
            }
            let (session, setup) = next.add(drb, keys)?;
            if !before.contains(&session) {
                up.insert(session);
            }
            actions.push(Action::AddBearer(session, Box::new(setup)));
        }
        if !up.is_empty() {
            actions.push(Action::SessionsUp(up.into_iter().collect()));
        }
        next.check()?;
        *self = next;
        Ok(actions)
    }

    /// Checks the bearers together.
    fn check(&self) -> Result<(), Failure> {
        let mut defaults = BTreeSet::new();
        for (id, known) in &self.known {
            if self.rlc.get(id).is_none_or(|rlc| rlc.lcid != known.lcid) {
                return cannot("a data bearer that stays without its logical channel");
            }
            if known.default && !defaults.insert(known.session) {
                return cannot("two default bearers of a session");
            }
        }
        Ok(())
    }

    fn add(&mut self, drb: &DrbToAddMod, keys: &AsKeys) -> Result<(PduSessionId, BearerSetup), Failure> {
        let identity = drb.drb_identity.value();
        let (Some(CnAssociation::SdapConfig(sdap)), Some(pdcp)) = (&drb.cn_association, &drb.pdcp_config)
        else {
            return cannot("a data bearer without SDAP-Config or PDCP-Config");
        };
        let (Some(id), Some(rlc), Some(session)) =
            (DrbId::new(identity), self.rlc.get(&identity).copied(), session_of(drb))
        else {
            return cannot("a data bearer without RLC bearer or session");
        };
        let Some(of_drb) = &pdcp.drb else { return cannot("PDCP-Config of a data bearer") };
        let sn = |size: Option<PdcpSnSize>| {
            size.map_or_else(|| cannot("PDCP sequence numbers"), |size| Ok(length_of(size)))
        };
        let of_sdap = headers_of(sdap, id)?;
        let (uplink_header, downlink_header) = (of_sdap.uplink_header, of_sdap.downlink_header);
        let lengths = (sn(of_drb.pdcp_sn_size_ul)?, sn(of_drb.pdcp_sn_size_dl)?);
        let security = keys.data(!pdcp.ciphering_disabled, of_drb.integrity_protection);
        let tx = Config::drb(id, Direction::Uplink, lengths.0, uplink_header);
        let rx = Config::drb(id, Direction::Downlink, lengths.1, downlink_header);
        let t_reordering = pdcp.t_reordering.and_then(|timer| timer.value());
        let reordering = RxConfig {
            t_reordering: t_reordering.map(|ms| Duration::from_millis(ms.into())),
            out_of_order_delivery: of_drb.out_of_order_delivery,
            ..REORDERING
        };
        let setup = BearerSetup {
            lcid: rlc.lcid,
            drb: of_sdap,
            default: sdap.default_drb,
            flows: sdap.mapped_qos_flows_to_add.clone(),
            rlc: rlc.sn,
            t_reassembly: rlc.t_reassembly,
            tx: Tx::new(tx, security.clone()),
            rx: Rx::new(rx, security, reordering),
        };
        let default = sdap.default_drb;
        self.known.insert(identity, Known { lcid: rlc.lcid, session, drb: of_sdap, default, sn: lengths });
        Ok((session, setup))
    }
}

impl Known {
    /// A bearer that is named and that the UE has keeps its session, headers and numbers. Flows may move: the uplink, which is of one
    /// flow, goes on where it is.
    fn stays(&self, drb: &DrbToAddMod) -> Result<(), Failure> {
        if drb.reestablish_pdcp || drb.recover_pdcp {
            return cannot("PDCP of a data bearer anew, which only a change of cell needs");
        }
        if let Some(CnAssociation::SdapConfig(sdap)) = &drb.cn_association {
            let same = session_of(drb) == Some(self.session) && sdap.default_drb == self.default;
            if !same || headers_of(sdap, self.drb.id)? != self.drb {
                return cannot("a data bearer that changes its session or headers");
            }
        }
        let of_drb = drb.pdcp_config.as_ref().and_then(|pdcp| pdcp.drb.as_ref());
        let changes =
            |size: Option<PdcpSnSize>, length: SnLength| size.is_some_and(|size| length_of(size) != length);
        if of_drb.is_some_and(|of_drb| {
            changes(of_drb.pdcp_sn_size_ul, self.sn.0) || changes(of_drb.pdcp_sn_size_dl, self.sn.1)
        }) {
            return cannot("a data bearer whose sequence numbers change their length");
        }
        Ok(())
    }
}

fn length_of(size: PdcpSnSize) -> SnLength {
    match size {
        PdcpSnSize::Len12Bits => SnLength::Twelve,
        PdcpSnSize::Len18Bits => SnLength::Eighteen,
    }
}

fn headers_of(sdap: &SdapConfig, id: DrbId) -> Result<Drb, Failure> {
    let uplink_header = sdap.sdap_header_ul == SdapHeader::Present;
    let downlink_header = sdap.sdap_header_dl == SdapHeader::Present;
    if sdap.default_drb && !uplink_header {
        return cannot("a default bearer without uplink SDAP header");
    }
    Ok(Drb { id, uplink_header, downlink_header })
}

fn session_of(drb: &DrbToAddMod) -> Option<PduSessionId> {
    match &drb.cn_association {
        Some(CnAssociation::SdapConfig(sdap)) => PduSessionId::try_from(sdap.pdu_session).ok(),
        None => None,
    }
}
