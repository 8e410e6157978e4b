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
        keys: &AsKeys,
    ) -> Result<Vec<Action>, Failure> {
        let mut next = self.clone();
        let mut actions = Vec::new();
        let before: BTreeSet<PduSessionId> = next.known.values().map(|known| known.session).collect();
        for released in &config.drb_to_release_list {
            // One that the UE does not have is released already.
            if let Some(known) = next.known.remove(&released.value()) {
                actions.push(Action::RemoveBearer(known.lcid));
            }
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
        for drb in &config.drb_to_add_mod_list {
            let (session, setup) = next.add(drb, keys)?;
            if !before.contains(&session) {
                up.insert(session);
            }
            actions.push(Action::AddBearer(session, Box::new(setup)));
        }
        if !up.is_empty() {
            actions.push(Action::SessionsUp(up.into_iter().collect()));
        }
        *self = next;
        Ok(actions)
    }

    fn add(&mut self, drb: &DrbToAddMod, keys: &AsKeys) -> Result<(PduSessionId, BearerSetup), Failure> {
        let identity = drb.drb_identity.value();
        if self.known.contains_key(&identity) {
            return cannot("change of a data bearer");
        }
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
        let sn = |size: Option<PdcpSnSize>| match size {
            Some(PdcpSnSize::Len12Bits) => Ok(SnLength::Twelve),
            Some(PdcpSnSize::Len18Bits) => Ok(SnLength::Eighteen),
            None => cannot("PDCP sequence numbers"),
        };
        let uplink_header = sdap.sdap_header_ul == SdapHeader::Present;
        let downlink_header = sdap.sdap_header_dl == SdapHeader::Present;
        let security = keys.data(!pdcp.ciphering_disabled, of_drb.integrity_protection);
        let tx = Config::drb(id, Direction::Uplink, sn(of_drb.pdcp_sn_size_ul)?, uplink_header);
        let rx = Config::drb(id, Direction::Downlink, sn(of_drb.pdcp_sn_size_dl)?, downlink_header);
        let t_reordering = pdcp.t_reordering.and_then(|timer| timer.value());
        let reordering = RxConfig {
            t_reordering: t_reordering.map(|ms| Duration::from_millis(ms.into())),
            out_of_order_delivery: of_drb.out_of_order_delivery,
            ..REORDERING
        };
        let setup = BearerSetup {
            lcid: rlc.lcid,
            drb: Drb { id, uplink_header, downlink_header },
            default: sdap.default_drb,
            flows: sdap.mapped_qos_flows_to_add.clone(),
            rlc: rlc.sn,
            t_reassembly: rlc.t_reassembly,
            tx: Tx::new(tx, security.clone()),
            rx: Rx::new(rx, security, reordering),
        };
        self.known.insert(identity, Known { lcid: rlc.lcid, session });
        Ok((session, setup))
    }
}

fn session_of(drb: &DrbToAddMod) -> Option<PduSessionId> {
    match &drb.cn_association {
        Some(CnAssociation::SdapConfig(sdap)) => PduSessionId::try_from(sdap.pdu_session).ok(),
        None => None,
    }
}
