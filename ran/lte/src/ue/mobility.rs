//! Idle mode, service request and handover: which tunnels the UE's bearers have.

use std::collections::BTreeMap;
use std::time::Duration;

use gtpv2c::message::*;
use gtpv2c::{BearerToBeModified, Ebi, RatType};
use net::time::Instant;
use simulator::user_plane::Tunnel;

use super::{DEFAULT_BEARER, Failure, PdnConnection, Radio, Ue};
use crate::enb::Enb;
use crate::mme::S11Error;

/// A UE that is connected again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// From the request to the answer.
    pub took: Duration,
}

/// A UE that has moved to another eNB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandedOver {
    /// From the request to the answer.
    pub took: Duration,
    /// Tunnels at the former eNB that have got their End Marker.
    pub end_markers: usize,
    /// Tunnels at the former eNB.
    pub tunnels: usize,
    /// From the request until all of them had it; `None` if one did not get it in time.
    pub end_markers_took: Option<Duration>,
}

impl Ue {
    /// S1 release (TS 23.401 §5.3.5): the gateway forgets the eNB's end of all tunnels, and buffers what comes for the UE.
    ///
    /// # Errors
    /// The gateway refuses or does not answer; then the UE stays connected, or is detached if the gateway does not know it.
    pub async fn go_idle(&mut self) -> Result<Duration, Failure> {
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        if pdn.radio.is_none() {
            return Err(Failure::Idle);
        }
        let started = net::time::now();
        let outcome = pdn.s11.request(ReleaseAccessBearersRequest::default()).await;
        self.forget_if_unknown(outcome)?;
        if let Some(pdn) = &mut self.pdn {
            pdn.take_radio();
        }
        Ok(net::time::now().saturating_duration_since(started))
    }

    /// Service request (TS 23.401 §5.3.4): all bearers get tunnels again.
    ///
    /// # Errors
    /// Why not. The UE stays idle, or is detached if the gateway does not know it.
    pub async fn service_request(&mut self) -> Result<Served, Failure> {
        if self.is_connected() {
            return Err(Failure::Connected);
        }
        let started = net::time::now();
        self.connect().await?;
        Ok(Served { took: net::time::now().saturating_duration_since(started) })
    }

    /// An idle UE moves to another eNB, which no one notices: all cells are in one tracking area.
    ///
    /// # Errors
    /// The UE is connected; see [`Ue::handover`].
    pub fn camp_on(&mut self, enb: Enb) -> Result<(), Failure> {
        if self.is_connected() {
            return Err(Failure::Connected);
        }
        self.enb = enb;
        Ok(())
    }

    /// Handover over X2 without change of the S-GW (TS 23.401 §5.5.1.1.2): the tunnels go to another eNB. Waits for the End Marker
    /// of each tunnel at the former eNB; packets that come there before are the UE's, too.
    ///
    /// # Errors
    /// The gateway refuses or does not answer: then the UE stays where it is, or is detached if the gateway does not know it.
    pub async fn handover(&mut self, to: Enb) -> Result<HandedOver, Failure> {
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        if pdn.radio.is_none() {
            return Err(Failure::Idle);
        }
        let started = net::time::now();
        let outcome = self.modify(&to).await?;
        let Some(pdn) = &mut self.pdn else { return Err(Failure::NotAttached) };
        let former = pdn.take_radio();
        if let Some(tunnel) = former.as_ref().and_then(|radio| radio.tunnels.get(&DEFAULT_BEARER)) {
            tunnel.stop_uplink();
        }
        pdn.take_into_use(outcome);
        self.enb = to;
        let former = former.map(|radio| radio.tunnels).unwrap_or_default();
        Ok(pdn.leave(former, started, self.config.end_marker_wait).await)
    }

    /// Gives all bearers of an idle UE tunnels at its eNB.
    pub(super) async fn connect(&mut self) -> Result<(), Failure> {
        let enb = self.enb.clone();
        let radio = self.modify(&enb).await?;
        if let Some(pdn) = &mut self.pdn {
            pdn.take_into_use(radio);
        }
        Ok(())
    }

    /// Opens tunnels at an eNB and tells the gateway of them (TS 29.274 §7.2.7). Dedicated bearers that the gateway does not know are
    /// no more.
    async fn modify(&mut self, enb: &Enb) -> Result<Radio, Failure> {
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        let mut tunnels = pdn.open_tunnels(enb)?;
        let bearers = tunnels.iter().map(|(ebi, tunnel)| BearerToBeModified {
            ebi: *ebi,
            s1u_enb_f_teid: Some(enb.f_teid(tunnel)),
            ..Default::default()
        });
        let request = ModifyBearerRequest {
            uli: Some(enb.location(self.config.plmn, self.config.tac)),
            serving_network: Some(self.config.plmn),
            rat_type: Some(RatType::EUTRAN),
            bearers_to_be_modified: bearers.collect(),
            ..Default::default()
        };
        let outcome = pdn.s11.request(request).await;
        let Message::ModifyBearerResponse(modified) = self.forget_if_unknown(outcome)? else {
            return Err(S11Error::Lacks("Modify Bearer Response").into());
        };
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        for bearer in modified.bearers_modified.iter().filter(|bearer| !bearer.cause.is_accepted()) {
            if bearer.ebi == DEFAULT_BEARER {
                return Err(Failure::BearerRefused(bearer.cause.value));
            }
            tunnels.remove(&bearer.ebi);
            pdn.bearers.remove(&bearer.ebi);
        }
        Ok(Radio { enb: enb.clone(), tunnels })
    }
}

impl PdnConnection {
    /// Waits for the End Markers of the former eNB's tunnels and takes what has come through them.
    pub(super) async fn leave(
        &mut self,
        mut former: BTreeMap<Ebi, Tunnel>,
        started: Instant,
        limit: Duration,
    ) -> HandedOver {
        let took = net::time::now().saturating_duration_since(started);
        let mut end_markers = 0;
        for tunnel in former.values() {
            let ended = net::time::timeout(limit, tunnel.end_marker()).await;
            end_markers += usize::from(ended.is_ok());
        }
        let tunnels = former.len();
        let all_took = net::time::now().saturating_duration_since(started);
        for (ebi, tunnel) in &mut former {
            while let Some(packet) = tunnel.try_received() {
                self.forwarded.push_back((*ebi, packet));
            }
        }
        let end_markers_took = (end_markers == tunnels).then_some(all_took);
        HandedOver { took, end_markers, tunnels, end_markers_took }
    }

    /// A tunnel at an eNB for each bearer. They deliver to the TUN device at once: the gateway may send what it has buffered before
    /// its answer.
    pub(super) fn open_tunnels(&self, enb: &Enb) -> Result<BTreeMap<Ebi, Tunnel>, Failure> {
        let mut tunnels = BTreeMap::new();
        for (ebi, bearer) in &self.bearers {
            let tunnel = enb.open(bearer.sgw)?;
            self.deliver_to_interface(&tunnel);
            tunnels.insert(*ebi, tunnel);
        }
        Ok(tunnels)
    }

    /// Sends and receives through these tunnels from now on. Packets that waited in the TUN device go first.
    pub(super) fn take_into_use(&mut self, radio: Radio) {
        self.radio = Some(radio);
        // The filters first, so that no packet goes through the wrong bearer.
        self.install_filters();
        self.read_from_interface();
    }
}
