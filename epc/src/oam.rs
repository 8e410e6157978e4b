//! Administration: `godwit session list`, dedicated bearers, state.

use std::sync::Arc;

use gtpv2c::value::tft::{Component, Direction, Operation, PacketFilter, Tft};
use gtpv2c::value::{Arp, BearerQos, Ebi, FlowQos};
use nf::oam::{Error, Oam, Request};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use types::{Dnn, Imsi, PduSessionType};

use crate::bearer::Tunnel;
use crate::context::{Gateway, Paging, Pdn, Peer, Role, Ue, UeState};
use crate::contexts::transfer;
use crate::procedure::bearers::{self, Wanted};

/// A PDN connection in `godwit session list`.
#[derive(Debug, Serialize)]
struct PdnListing {
    imsi: Imsi,
    apn: Dnn,
    #[serde(rename = "type")]
    pdn_type: PduSessionType,
    ipv4: Option<std::net::Ipv4Addr>,
    ipv6: Option<String>,
    ambr_uplink: String,
    ambr_downlink: String,
    /// `connected`, `idle`, `paging` or `unreachable`.
    state: &'static str,
    mme: Option<String>,
    /// The other gateway, if S-GW and P-GW are apart.
    sgw: Option<String>,
    pgw: Option<String>,
    upf: String,
    bearers: Vec<BearerListing>,
}

#[derive(Debug, Serialize)]
struct BearerListing {
    ebi: u8,
    qci: u8,
    arp: u8,
    filters: Vec<String>,
    upf: Option<String>,
    upf_teid: Option<String>,
    /// Of a P-GW alone the S-GW.
    enb: Option<String>,
    enb_teid: Option<String>,
    /// On an S-GW alone.
    pgw: Option<String>,
    pgw_teid: Option<String>,
}

fn show(ue: &Ue, state: &UeState, pdn: &Pdn) -> PdnListing {
    let address = |tunnel: Option<Tunnel>| tunnel.map(|tunnel| tunnel.address.to_string());
    let teid = |tunnel: Option<Tunnel>| tunnel.map(|tunnel| tunnel.teid.to_string());
    let at = |peer: Peer| peer.f_teid.address().map(|address| address.to_string());
    let bearers = pdn.bearers.iter().map(|bearer| {
        let texts = bearer.filters.iter().filter_map(|filter| filter.sdf.flow_description.as_ref()?.as_str());
        BearerListing {
            ebi: bearer.ebi.0,
            qci: bearer.qos.flow.qci,
            arp: bearer.qos.arp.pl,
            filters: texts.map(str::to_owned).collect(),
            upf: address(bearer.own),
            upf_teid: teid(bearer.own),
            enb: address(bearer.access),
            enb_teid: teid(bearer.access),
            pgw: address(bearer.s5.pgw),
            pgw_teid: teid(bearer.s5.pgw),
        }
    });
    PdnListing {
        imsi: ue.imsi,
        apn: pdn.apn.clone(),
        pdn_type: pdn.pdn_type,
        ipv4: pdn.addresses.ipv4,
        ipv6: pdn.addresses.ipv6.map(|prefix| format!("{prefix}/64")),
        ambr_uplink: pdn.ambr.uplink.to_string(),
        ambr_downlink: pdn.ambr.downlink.to_string(),
        state: match (pdn.role, state.is_connected(), state.paging) {
            // Only its S-GW knows more.
            (Role::Pgw { .. }, ..) | (_, true, _) => "connected",
            (_, false, Paging::No) => "idle",
            (_, false, Paging::Asked) => "paging",
            (_, false, Paging::Unreachable) => "unreachable",
        },
        mme: state.mme.filter(|_| pdn.role.is_sgw()).and_then(at),
        sgw: Some(pdn.role).filter(|role| !role.is_sgw()).and_then(Role::s5_peer).and_then(at),
        pgw: Some(pdn.role).filter(|role| !role.is_pgw()).and_then(Role::s5_peer).and_then(at),
        upf: pdn.upf.address.to_string(),
        bearers: bearers.collect(),
    }
}

/// A dedicated bearer to set up.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBearer {
    /// EBI of the default bearer.
    linked_ebi: u8,
    qci: u8,
    #[serde(default = "default_priority")]
    arp: u8,
    #[serde(default)]
    mbr_kbps: Rates,
    #[serde(default)]
    gbr_kbps: Rates,
    /// IP protocol.
    #[serde(default)]
    protocol: Option<u8>,
    /// The far end.
    #[serde(default)]
    remote: Option<std::net::IpAddr>,
    #[serde(default)]
    remote_port: Option<u16>,
    #[serde(default)]
    local_port: Option<u16>,
    /// Of the filter; the lowest of all bearers is looked at first.
    #[serde(default = "default_precedence")]
    precedence: u8,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rates {
    uplink: u64,
    downlink: u64,
}

fn default_priority() -> u8 {
    8
}

fn default_precedence() -> u8 {
    100
}

impl NewBearer {
    fn wanted(&self) -> Result<Wanted, Error> {
        let mut components = Vec::new();
        match self.remote {
            Some(std::net::IpAddr::V4(address)) => {
                let mask = std::net::Ipv4Addr::BROADCAST;
                components.push(Component::Ipv4Remote { address, mask });
            }
            Some(std::net::IpAddr::V6(address)) => {
                components.push(Component::Ipv6Remote { address, prefix_length: 128 });
            }
            None => {}
        }
        components.extend(self.protocol.map(Component::Protocol));
        components.extend(self.local_port.map(Component::LocalPort));
        components.extend(self.remote_port.map(Component::RemotePort));
        if components.is_empty() {
            return Err(Error::bad_request("give at least one of remote, protocol, remote_port, local_port"));
        }
        let (direction, precedence) = (Direction::Bidirectional, self.precedence);
        let filter = PacketFilter { id: 0, direction, precedence, components };
        let tft = Tft { operation: Operation::Create(vec![filter]), ..Default::default() };
        let flow = FlowQos {
            qci: self.qci,
            mbr_uplink_kbps: self.mbr_kbps.uplink,
            mbr_downlink_kbps: self.mbr_kbps.downlink,
            gbr_uplink_kbps: self.gbr_kbps.uplink,
            gbr_downlink_kbps: self.gbr_kbps.downlink,
        };
        Ok(Wanted {
            linked: Ebi(self.linked_ebi),
            qos: BearerQos { arp: Arp { pci: true, pl: self.arp, pvi: false }, flow },
            tft: tft.encode().map_err(Error::bad_request)?,
            pti: None,
            command: None,
        })
    }
}

/// UEs to hand over to another gateway.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Transfer {
    /// The other gateway's `transfer`.
    to: std::net::SocketAddr,
    /// All without.
    #[serde(default)]
    ues: Option<Vec<Imsi>>,
}

async fn send_contexts(gateway: Arc<Gateway>, request: Request) -> Result<transfer::Sent, Error> {
    let Transfer { to, ues } = serde_json::from_value(request.body().clone()).map_err(Error::bad_request)?;
    transfer::send(&gateway, to, ues).await.map_err(|error| Error::conflict(format!("{to}: {error}")))
}

/// The routes.
pub(crate) fn routes(gateway: Arc<Gateway>) -> Oam {
    let (list, create, delete) = (gateway.clone(), gateway.clone(), gateway.clone());
    let (send, status) = (gateway.clone(), gateway);
    Oam::new()
        .get("/sessions", move |_| {
            let gateway = list.clone();
            async move {
                let mut shown = Vec::new();
                for ue in gateway.ues.all() {
                    let state = ue.state.lock().await;
                    shown.extend(state.pdns.iter().map(|pdn| show(&ue, &state, pdn)));
                }
                shown.sort_by_key(|pdn| (pdn.imsi, pdn.bearers.first().map(|bearer| bearer.ebi)));
                Ok(shown)
            }
        })
        .post("/ues/{imsi}/bearers", move |request| create_bearer(create.clone(), request))
        .post("/ues/{imsi}/bearers/{ebi}/delete", move |request| delete_bearer(delete.clone(), request))
        .post("/contexts/send", move |request| send_contexts(send.clone(), request))
        .get("/status", move |_| {
            let gateway = status.clone();
            async move { Ok(show_status(&gateway)) }
        })
}

fn ue_of(gateway: &Gateway, request: &Request) -> Result<Arc<Ue>, Error> {
    gateway.ues.by_imsi(request.param("imsi")?).ok_or_else(|| Error::not_found("no such UE"))
}

async fn create_bearer(gateway: Arc<Gateway>, request: Request) -> Result<Value, Error> {
    let ue = ue_of(&gateway, &request)?;
    let bearer: NewBearer = serde_json::from_value(request.body().clone()).map_err(Error::bad_request)?;
    match bearers::create(&gateway, &ue, bearer.wanted()?).await {
        Ok(ebi) => Ok(json!({ "ebi": ebi.0 })),
        Err(cause) => Err(Error::conflict(format!("refused with cause {}", cause.value.0))),
    }
}

async fn delete_bearer(gateway: Arc<Gateway>, request: Request) -> Result<Value, Error> {
    let ue = ue_of(&gateway, &request)?;
    let ebi = Ebi(request.param("ebi")?);
    match bearers::delete(&gateway, &ue, vec![ebi], None, None).await {
        Ok(()) => Ok(json!({ "deleted": true })),
        Err(_) => Err(Error::not_found("no such bearer")),
    }
}

/// What `/status` answers.
pub(crate) fn show_status(gateway: &Gateway) -> Value {
    let pools = gateway.networks.values().map(|network| {
        let (ipv4, ipv6) = network.pool().free();
        json!({ "apn": network.config.name, "free_ipv4": ipv4, "free_ipv6_prefixes": ipv6 })
    });
    let (ues, sessions) = gateway.ues.len();
    let restart_counter = gateway.gtpc.restart_counter().0;
    json!({
        "pid": std::process::id(),
        "address": gateway.gtpc.local(),
        "uptime_s": (net::time::now() - gateway.started).as_secs(),
        "detail": {
            "ues": ues,
            "sessions": sessions,
            "restart_counter": restart_counter,
            "upfs": gateway.n4.status(),
            "pools": pools.collect::<Vec<_>>(),
        },
    })
}
