//! DRBs: from the CU's request to a bearer of the user plane.

use std::net::SocketAddr;

use f1ap::cause::{Cause, Misc, RadioNetwork, Transport};
use f1ap::ie::{
    DrbFailed, DrbId, DrbSetup, DrbToBeModified, DrbToBeSetup, GtpTunnel, Lcid, PdcpSnLength, RlcMode,
    TransportLayerAddress, UpTnlItem,
};
use packet::gtpu;
use types::Teid;

use super::counters::DRBS;
use super::{Commands, F1u, Machine};
use crate::control::{BearerSetup, PdcpSn, Refused, Tunnel};

/// Logical channel of DRB n is this and n.
const FIRST_LCID: u8 = 3;
/// Highest DRB that has a logical channel.
const MOST_DRB: u8 = l2::uu::MAX_LCID - FIRST_LCID;

/// A DRB.
#[derive(Debug)]
pub(super) struct Drb {
    /// Our end of its tunnel.
    teid: u32,
    /// The CU's end.
    cu: Tunnel,
    pdcp: PdcpSn,
}

impl Drb {
    /// Whether its uplink goes to this CU.
    pub(super) fn leads_to(&self, interface: u8, address: SocketAddr) -> bool {
        (self.cu.interface, self.cu.address) == (interface, address)
    }
}

/// The logical channel of a DRB.
pub(super) fn lcid(drb: DrbId) -> u8 {
    FIRST_LCID.saturating_add(drb.0)
}

/// What became of the DRBs of a request.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) done: Vec<DrbSetup>,
    pub(super) failed: Vec<DrbFailed>,
}

impl Outcome {
    fn note(&mut self, drb: DrbId, result: Result<DrbSetup, Cause>) {
        match result {
            Ok(setup) => {
                DRBS.inc("set_up");
                self.done.push(setup);
            }
            Err(cause) => {
                DRBS.inc("failed");
                self.failed.push(DrbFailed { drb_id: drb, cause: Some(cause) });
            }
        }
    }
}

fn pdcp_sn(length: PdcpSnLength) -> PdcpSn {
    match length {
        PdcpSnLength::TwelveBits => PdcpSn::Bits12,
        PdcpSnLength::EighteenBits => PdcpSn::Bits18,
    }
}

/// The cause for what the user plane refuses.
fn cause_of(refused: Refused) -> Cause {
    match refused {
        Refused::UnknownUe | Refused::UnknownBearer => Cause::RadioNetwork(RadioNetwork::UnknownDrbId),
        Refused::InUse => Cause::RadioNetwork(RadioNetwork::MultipleDrbIdInstances),
        Refused::Value => Cause::Transport(Transport::TransportResourceUnavailable),
        Refused::Full => Cause::RadioNetwork(RadioNetwork::NoRadioResourcesAvailable),
        Refused::NotRunning => Cause::Misc(Misc::NotEnoughUserPlaneProcessingResources),
    }
}

impl F1u {
    /// The CU's end of a tunnel. There is one for each DRB, as PDCP does not duplicate, of the family of our end.
    fn tunnel(&self, ends: &[UpTnlItem]) -> Result<Tunnel, Cause> {
        const NONE: Cause = Cause::Transport(Transport::TransportResourceUnavailable);
        let [end] = ends else { return Err(NONE) };
        let address = match (end.tunnel.address, self.address.is_ipv4()) {
            (TransportLayerAddress::V4(v4) | TransportLayerAddress::Both(v4, _), true) => v4.into(),
            (TransportLayerAddress::V6(v6) | TransportLayerAddress::Both(_, v6), false) => v6.into(),
            _ => return Err(NONE),
        };
        let address = SocketAddr::new(address, gtpu::PORT);
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            return Err(NONE);
        }
        Ok(Tunnel { interface: self.interface, address, teid: end.tunnel.teid.0 })
    }

    fn end(&self, teid: u32) -> UpTnlItem {
        let address = match self.address {
            std::net::IpAddr::V4(v4) => TransportLayerAddress::V4(v4),
            std::net::IpAddr::V6(v6) => TransportLayerAddress::V6(v6),
        };
        UpTnlItem { tunnel: GtpTunnel { address, teid: Teid(teid) } }
    }
}

impl Machine {
    /// Sets DRBs up. One that is named twice is not (§8.3.1.4).
    pub(super) fn set_up_drbs(
        &mut self,
        c_rnti: u16,
        drbs: &[DrbToBeSetup],
        commands: &mut dyn Commands,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        for drb in drbs {
            let id = drb.drb_id;
            let result = if drbs.iter().filter(|other| other.drb_id == id).count() > 1 {
                Err(Cause::RadioNetwork(RadioNetwork::MultipleDrbIdInstances))
            } else {
                self.set_up_drb(c_rnti, drb, commands)
            };
            outcome.note(id, result);
        }
        outcome
    }

    fn set_up_drb(
        &mut self,
        c_rnti: u16,
        drb: &DrbToBeSetup,
        commands: &mut dyn Commands,
    ) -> Result<DrbSetup, Cause> {
        let f1u = self.f1u;
        let id = drb.drb_id;
        let ue = self.ues.get_mut(&c_rnti).ok_or(cause_of(Refused::UnknownUe))?;
        if ue.drbs.contains_key(&id.0) {
            return Err(cause_of(Refused::InUse));
        }
        if !(1..=MOST_DRB).contains(&id.0) {
            return Err(Cause::RadioNetwork(RadioNetwork::NoRadioResourcesAvailable));
        }
        if drb.rlc_mode != RlcMode::UmBidirectional {
            return Err(Cause::RadioNetwork(RadioNetwork::Unspecified));
        }
        let cu = f1u.tunnel(&drb.ul_up_tnl)?;
        // An absent length is one whose criticality let it be ignored; 18 bits are usual.
        let pdcp = drb.dl_pdcp_sn_length.map_or(PdcpSn::Bits18, pdcp_sn);
        let setup = BearerSetup { pdcp, ..BearerSetup::new(lcid(id), cu) };
        let teid = commands.add_bearer(c_rnti, setup).map_err(cause_of)?.teid;
        ue.drbs.insert(id.0, Drb { teid, cu, pdcp });
        Ok(DrbSetup { drb_id: id, lcid: Some(Lcid(lcid(id))), dl_up_tnl: vec![f1u.end(teid)] })
    }

    /// Modifies DRBs: their uplink goes elsewhere. One that is named twice, or is to be released as well, is not.
    pub(super) fn modify_drbs(
        &mut self,
        c_rnti: u16,
        drbs: &[DrbToBeModified],
        released: &[DrbId],
        commands: &mut dyn Commands,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        for drb in drbs {
            let id = drb.drb_id;
            let named = drbs.iter().filter(|other| other.drb_id == id).count();
            let result = if named > 1 || released.contains(&id) {
                Err(Cause::RadioNetwork(RadioNetwork::MultipleDrbIdInstances))
            } else {
                self.modify_drb(c_rnti, drb, commands)
            };
            outcome.note(id, result);
        }
        outcome
    }

    fn modify_drb(
        &mut self,
        c_rnti: u16,
        drb: &DrbToBeModified,
        commands: &mut dyn Commands,
    ) -> Result<DrbSetup, Cause> {
        let f1u = self.f1u;
        let id = drb.drb_id;
        let ue = self.ues.get_mut(&c_rnti).ok_or(cause_of(Refused::UnknownUe))?;
        let known = ue.drbs.get_mut(&id.0).ok_or(cause_of(Refused::UnknownBearer))?;
        // These take a new bearer.
        let other_sn = drb.dl_pdcp_sn_length.is_some_and(|length| pdcp_sn(length) != known.pdcp);
        let other_mode = drb.rlc_mode.is_some_and(|mode| mode != RlcMode::UmBidirectional);
        if other_sn || other_mode {
            return Err(Cause::RadioNetwork(RadioNetwork::Unspecified));
        }
        let cu = f1u.tunnel(&drb.ul_up_tnl)?;
        if cu != known.cu {
            commands.redirect_bearer(c_rnti, lcid(id), cu).map_err(cause_of)?;
            known.cu = cu;
        }
        Ok(DrbSetup { drb_id: id, lcid: Some(Lcid(lcid(id))), dl_up_tnl: vec![f1u.end(known.teid)] })
    }

    /// Releases DRBs; returns those that were there.
    pub(super) fn release_drbs(
        &mut self,
        c_rnti: u16,
        drbs: &[DrbId],
        commands: &mut dyn Commands,
    ) -> Vec<DrbId> {
        let Some(ue) = self.ues.get_mut(&c_rnti) else { return Vec::new() };
        let mut gone = Vec::new();
        for id in drbs {
            if ue.drbs.remove(&id.0).is_none() {
                DRBS.inc("unknown");
                continue;
            }
            if let Err(error) = commands.remove_bearer(c_rnti, lcid(*id)) {
                tracing::debug!(c_rnti, drb = id.0, %error, "a bearer is not removed");
            }
            DRBS.inc("released");
            gone.push(*id);
        }
        gone
    }
}
