//! Change of the S-GW: in a handover over X2 (TS 23.401 §5.5.1.1.3), and in the tracking area update of an idle UE (§5.3.3.1).
//!
//! The new S-GW gets the P-GW's ends from the MME, and tells the P-GW of its own. Then the MME ends what the former S-GW has, which
//! must not pass that on to the P-GW.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use gtpv2c::message::*;
use gtpv2c::{BearerToBeCreated, Ebi, FTeid, Indication, RatType};
use types::Teid;

use super::{Bearer, DEFAULT_BEARER, Failure, HandedOver, PdnConnection, Radio, Ue};
use crate::enb::Enb;
use crate::mme::{S11, S11Error};

/// A UE that has another S-GW.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocated {
    /// How the UE moved. An idle UE had no tunnels.
    pub moved: HandedOver,
    /// Whether the former S-GW has ended what it had.
    pub former: Result<(), S11Error>,
}

impl Ue {
    /// Moves the UE to an eNB of another S-GW, whose end of GTP-C is `gateway`. A connected UE is handed over, an idle one updates its
    /// tracking area. Bearers that the new S-GW does not accept are no more.
    ///
    /// # Errors
    /// The new S-GW refuses or does not answer: then the UE stays where it is, with its former S-GW.
    pub async fn relocate(&mut self, gateway: SocketAddr, to: Enb) -> Result<Relocated, Failure> {
        let pdn = self.pdn.as_ref().ok_or(Failure::NotAttached)?;
        let started = net::time::now();
        let radio = match &pdn.radio {
            // They send to the former S-GW until the new one has named its ends, but receive from the new one at once.
            Some(_) => Some(Radio { enb: to.clone(), tunnels: pdn.open_tunnels(&to)? }),
            None => None,
        };
        let target = self.mme.open(gateway);
        let request = self.relocation_request(pdn, &target, &to, radio.as_ref());
        let Message::CreateSessionResponse(created) = target.request(request).await? else {
            return Err(S11Error::Lacks("Create Session Response").into());
        };
        target.set_gateway(created.sender_f_teid.ok_or(Failure::Lacks("F-TEID"))?);
        let bearers = match moved_bearers(&pdn.bearers, &created) {
            Ok(bearers) => bearers,
            Err(failure) => {
                let _ = target.request(local_delete()).await;
                return Err(failure);
            }
        };
        let pdn = self.pdn.as_mut().ok_or(Failure::NotAttached)?;
        let tunnels = pdn.take_radio().map(|radio| radio.tunnels).unwrap_or_default();
        if let Some(tunnel) = tunnels.get(&DEFAULT_BEARER) {
            tunnel.stop_uplink();
        }
        let former = std::mem::replace(&mut pdn.s11, target);
        pdn.bearers = bearers;
        pdn.pgw = created.pgw_f_teid.or(pdn.pgw);
        if let Some(mut radio) = radio {
            radio.tunnels.retain(|ebi, _| pdn.bearers.contains_key(ebi));
            for (ebi, tunnel) in &mut radio.tunnels {
                if let Some((address, sgw)) = pdn.bearers.get(ebi).and_then(|bearer| end_of(bearer.sgw)) {
                    tunnel.redirect(address, sgw);
                }
            }
            pdn.take_into_use(radio);
        }
        (self.enb, self.gateway) = (to, gateway);
        let moved = pdn.leave(tunnels, started, self.config.end_marker_wait).await;
        Ok(Relocated { moved, former: former.request(local_delete()).await.map(drop) })
    }

    /// Create Session Request to the new S-GW (TS 29.274 table 7.2.1-1). OI: it tells the P-GW of its ends at once.
    fn relocation_request(
        &self,
        pdn: &PdnConnection,
        s11: &S11,
        enb: &Enb,
        radio: Option<&Radio>,
    ) -> CreateSessionRequest {
        let config = &self.config;
        let end = |ebi: &Ebi| Some(enb.f_teid(radio?.tunnels.get(ebi)?));
        let bearer = |(ebi, bearer): (&Ebi, &Bearer)| BearerToBeCreated {
            ebi: *ebi,
            s1u_enb_f_teid: end(ebi),
            s5s8u_pgw_f_teid: bearer.pgw,
            qos: bearer.qos,
            ..Default::default()
        };
        CreateSessionRequest {
            imsi: Some(self.imsi),
            uli: Some(enb.location(config.plmn, config.tac)),
            serving_network: Some(config.plmn),
            rat_type: RatType::EUTRAN,
            indication: Some(Indication::OI),
            sender_f_teid: s11.f_teid(),
            pgw_f_teid: pdn.pgw,
            apn: config.apn.as_str().into(),
            apn_ambr: pdn.ambr.or(Some(config.ambr)),
            linked_ebi: Some(DEFAULT_BEARER),
            bearers_to_be_created: pdn.bearers.iter().map(bearer).collect(),
            recovery: Some(s11.restart_counter()),
            ..Default::default()
        }
    }
}

/// Ends all that an S-GW has of the UE, without the P-GW (TS 29.274 §7.2.9.1): SI and not OI, and no default bearer, as all PDN
/// connections are meant.
fn local_delete() -> DeleteSessionRequest {
    DeleteSessionRequest { indication: Some(Indication::SI), ..Default::default() }
}

/// The bearers that the new S-GW has, with its ends.
fn moved_bearers(
    former: &BTreeMap<Ebi, Bearer>,
    created: &CreateSessionResponse,
) -> Result<BTreeMap<Ebi, Bearer>, Failure> {
    let mut moved = BTreeMap::new();
    for (ebi, bearer) in former {
        let Some(answer) = created.bearers_created.iter().find(|answer| answer.ebi == *ebi) else { continue };
        if !answer.cause.is_accepted() {
            if *ebi == DEFAULT_BEARER {
                return Err(Failure::BearerRefused(answer.cause.value));
            }
            continue;
        }
        let sgw = answer.s1u_sgw_f_teid.ok_or(Failure::Lacks("F-TEID of S1-U"))?;
        let pgw = answer.s5s8u_pgw_f_teid.or(bearer.pgw);
        moved.insert(*ebi, Bearer { sgw, pgw, ..bearer.clone() });
    }
    if moved.contains_key(&DEFAULT_BEARER) { Ok(moved) } else { Err(Failure::Lacks("default bearer")) }
}

fn end_of(f_teid: FTeid) -> Option<(std::net::IpAddr, Teid)> {
    Some((f_teid.address()?, Teid(f_teid.teid)))
}
