//! Attach (TS 23.401 §5.3.2.1) and detach (§5.3.8.2.1), as far as the gateway sees them.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use gtpv2c::message::*;
use gtpv2c::{
    ApnRestriction, Arp, BearerQos, BearerToBeCreated, CauseValue, FTeid, FlowQos, Indication, InterfaceType,
    Ipv6Prefix, Octets, Paa, PdnType, RatType, SelectionMode,
};
use nas::{Pco, PcoItem};

use super::{Bearer, DEFAULT_BEARER, Failure, PdnConnection, Ue};
use crate::mme::{S11, S11Error};

/// QoS of a default bearer: class 9, priority 8.
const DEFAULT_QCI: u8 = 9;
const DEFAULT_PRIORITY: u8 = 8;
/// Prefixes of UEs have 64 bits.
const PREFIX_LENGTH: u8 = 64;

/// A UE that has attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// The UE's IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// Its link-local IPv6 address. [`Ue::solicit_router`] makes a global one.
    pub link_local: Option<Ipv6Addr>,
    /// Both requests together.
    pub took: Duration,
}

impl Ue {
    /// Attaches: creates a PDN connection with its default bearer, and gives it a tunnel.
    ///
    /// # Errors
    /// Why not. The UE is then detached.
    pub async fn attach(&mut self) -> Result<Attached, Failure> {
        if self.pdn.is_some() {
            return Err(Failure::Attached);
        }
        let started = net::time::now();
        let s11 = self.mme.open(self.gateway);
        let answer = s11.request(self.create_session_request(&s11)).await?;
        let Message::CreateSessionResponse(created) = answer else {
            return Err(Failure::Lacks("Create Session Response"));
        };
        s11.set_gateway(created.sender_f_teid.ok_or(Failure::Lacks("F-TEID"))?);
        let pdn = match self.pdn_connection(s11, &created) {
            Ok(pdn) => pdn,
            Err((s11, failure)) => {
                // The gateway has something that the UE cannot use.
                let _ = s11.request(self.delete_session_request()).await;
                return Err(failure);
            }
        };
        let attached = |ue: &PdnConnection| Attached {
            ipv4: ue.ipv4,
            link_local: ue.link_local,
            took: net::time::now().saturating_duration_since(started),
        };
        self.pdn = Some(pdn);
        if let Err(failure) = self.connect().await {
            if let Some(pdn) = self.pdn.take() {
                let _ = pdn.s11.request(self.delete_session_request()).await;
            }
            return Err(failure);
        }
        self.pdn.as_ref().map(attached).ok_or(Failure::NotAttached)
    }

    /// Detaches: deletes the PDN connection. The UE is detached, whatever the gateway answers.
    ///
    /// # Errors
    /// The gateway refuses or does not answer.
    pub async fn detach(&mut self) -> Result<Duration, Failure> {
        let pdn = self.pdn.take().ok_or(Failure::NotAttached)?;
        let started = net::time::now();
        match pdn.s11.request(self.delete_session_request()).await {
            Ok(_) => Ok(net::time::now().saturating_duration_since(started)),
            // The gateway has ended it already, and its request may be on the way.
            Err(S11Error::Refused(cause)) if cause.value == CauseValue::CONTEXT_NOT_FOUND => {
                Ok(net::time::now().saturating_duration_since(started))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Create Session Request of an attach (TS 29.274 §7.2.1).
    fn create_session_request(&self, s11: &S11) -> CreateSessionRequest {
        let config = &self.config;
        let asks_ipv4 = matches!(config.pdn_type, PdnType::Ipv4 | PdnType::Ipv4v6);
        let asks_ipv6 = matches!(config.pdn_type, PdnType::Ipv6 | PdnType::Ipv4v6);
        let mut items = Vec::new();
        if asks_ipv4 {
            items.extend([PcoItem::AddressByNas, PcoItem::DnsIpv4Request, PcoItem::Ipv4MtuRequest]);
        }
        if asks_ipv6 {
            items.push(PcoItem::DnsIpv6Request);
        }
        // DAF: the UE's eNB and MME can handle a bearer with both addresses.
        let dual = config.pdn_type == PdnType::Ipv4v6;
        CreateSessionRequest {
            imsi: Some(self.imsi),
            uli: Some(self.enb.location(config.plmn, config.tac)),
            serving_network: Some(config.plmn),
            rat_type: RatType::EUTRAN,
            indication: dual.then_some(Indication::DAF),
            sender_f_teid: s11.f_teid(),
            pgw_f_teid: Some(FTeid::new(
                InterfaceType::S5S8_PGW_GTPC,
                0,
                config.pgw.unwrap_or(self.gateway.ip()),
            )),
            apn: config.apn.as_str().into(),
            selection_mode: Some(SelectionMode::Verified),
            pdn_type: Some(config.pdn_type),
            paa: Some(self.requested_address()),
            max_apn_restriction: Some(ApnRestriction(0)),
            apn_ambr: Some(config.ambr),
            pco: Some(Octets(Pco { items }.encode())),
            bearers_to_be_created: vec![BearerToBeCreated {
                ebi: DEFAULT_BEARER,
                qos: default_qos(),
                ..Default::default()
            }],
            recovery: Some(s11.restart_counter()),
            ..Default::default()
        }
    }

    /// The UE's static address, or zeros where the gateway is to choose.
    fn requested_address(&self) -> Paa {
        let config = &self.config;
        let ipv4 = config.static_ipv4.map_or(Ipv4Addr::UNSPECIFIED, |first| {
            Ipv4Addr::from_bits(first.to_bits().wrapping_add(self.index))
        });
        let prefix = config.static_ipv6.map_or(Ipv6Addr::UNSPECIFIED, |first| {
            let index = u128::from(self.index) << (128 - PREFIX_LENGTH);
            Ipv6Addr::from_bits(first.to_bits().wrapping_add(index))
        });
        let ipv6 = Ipv6Prefix { address: prefix, length: PREFIX_LENGTH };
        match config.pdn_type {
            PdnType::Ipv4 => Paa::Ipv4(ipv4),
            PdnType::Ipv6 => Paa::Ipv6(ipv6),
            PdnType::Ipv4v6 => Paa::Ipv4v6(ipv4, ipv6),
            PdnType::NonIp => Paa::NonIp,
            PdnType::Ethernet => Paa::Ethernet,
        }
    }

    fn delete_session_request(&self) -> DeleteSessionRequest {
        DeleteSessionRequest {
            linked_ebi: Some(DEFAULT_BEARER),
            uli: Some(self.enb.location(self.config.plmn, self.config.tac)),
            // OI: the P-GW is to end it, too.
            indication: Some(Indication::OI),
            ..Default::default()
        }
    }

    /// What the gateway has created. Without tunnel, so the UE is idle until the gateway knows the eNB's end.
    fn pdn_connection(
        &self,
        s11: S11,
        created: &CreateSessionResponse,
    ) -> Result<PdnConnection, (S11, Failure)> {
        let bearer = match default_bearer(created) {
            Ok(bearer) => bearer,
            Err(failure) => return Err((s11, failure)),
        };
        let Some(paa) = created.paa else { return Err((s11, Failure::Lacks("address of the UE"))) };
        let items = created.pco.as_ref().and_then(|pco| Pco::decode(&pco.0)).unwrap_or_default().items;
        let (mut dns, mut mtu) = (Vec::new(), self.config.mtu);
        for item in items {
            match item {
                PcoItem::DnsIpv4(server) => dns.push(IpAddr::V4(server)),
                PcoItem::DnsIpv6(server) => dns.push(IpAddr::V6(server)),
                PcoItem::Ipv4Mtu(octets) => mtu = octets,
                _ => {}
            }
        }
        Ok(PdnConnection {
            s11,
            pgw: created.pgw_f_teid,
            ipv4: paa.ipv4(),
            link_local: paa.ipv6().map(|prefix| link_local(prefix.address)),
            ipv6: None,
            dns,
            mtu,
            ambr: created.apn_ambr,
            bearers: BTreeMap::from([(DEFAULT_BEARER, bearer)]),
            radio: None,
            interface: None,
            former_packets: 0,
            forwarded: VecDeque::new(),
        })
    }
}

/// The default bearer of an answer that accepts the session.
fn default_bearer(created: &CreateSessionResponse) -> Result<Bearer, Failure> {
    let bearer = created.bearers_created.iter().find(|bearer| bearer.ebi == DEFAULT_BEARER);
    let bearer = bearer.ok_or(Failure::Lacks("default bearer"))?;
    if !bearer.cause.is_accepted() {
        return Err(Failure::BearerRefused(bearer.cause.value));
    }
    let sgw = bearer.s1u_sgw_f_teid.ok_or(Failure::Lacks("F-TEID of S1-U"))?;
    // The answer names only what the gateway has changed.
    let qos = bearer.qos.unwrap_or_else(default_qos);
    Ok(Bearer { qos, filters: Vec::new(), sgw, pgw: bearer.s5s8u_pgw_f_teid })
}

/// The subscribed QoS of the default bearer.
fn default_qos() -> BearerQos {
    let flow = FlowQos { qci: DEFAULT_QCI, ..FlowQos::default() };
    BearerQos { arp: Arp { pl: DEFAULT_PRIORITY, ..Arp::default() }, flow }
}

/// The link-local address with the interface identifier of an address.
fn link_local(address: Ipv6Addr) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfe80 << 112 | address.to_bits() & u128::from(u64::MAX))
}
