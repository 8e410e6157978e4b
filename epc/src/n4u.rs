//! N4-u (TS 29.244 §5.12): the gateway as router of IPv6 PDN connections (TS 23.401 §5.3.1.2.2).
//!
//! A UE solicits as soon as it has its bearer, which may be before the UPF knows the eNB's tunnel. The answer then waits for
//! [`reachable`]. Sent at once it would be lost, and the UE would have no address for seconds (RFC 4861 §6.3.7).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use packet::gtpu::{self, Signalling};
use packet::ndp::{ALL_NODES, RouterAdvertisement, RouterSolicitation};
use telemetry::counters::{Counter, Family};

use crate::context::{Gateway, Pdn};

static ADVERTISED: Counter = Counter::new("epc_router_advertisements");
static DROPPED: Family = Family::new("epc_n4u_dropped", "reason");

/// The router's link-local address on the link of every PDN connection.
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Answers packets on N4-u until the gateway stops.
pub(crate) async fn run(gateway: Arc<Gateway>) {
    let mut buffer = vec![0u8; 2048];
    loop {
        match gateway.gtpu.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Err(reason) = handle(&gateway, from, buffer.get(..length).unwrap_or_default()).await {
                    DROPPED.inc(reason);
                }
            }
            Err(error) => tracing::debug!(%error, "N4-u socket"),
        }
    }
}

async fn handle(gateway: &Gateway, from: SocketAddr, datagram: &[u8]) -> Result<(), &'static str> {
    let message = gtpu::Packet::new(datagram).map_err(|_| "malformed")?;
    if message.message_type() == gtpu::message_type::ECHO_REQUEST {
        let sequence = message.sequence().unwrap_or(0);
        let _ = gateway.gtpu.try_send_to(&Signalling::EchoResponse { sequence }.build(), from);
        return Ok(());
    }
    if message.message_type() != gtpu::message_type::G_PDU {
        return Err("not_a_g_pdu");
    }
    let (ue, number) = gateway.ues.by_number(message.teid()).ok_or("unknown_teid")?;
    let solicitation =
        RouterSolicitation::parse(message.payload()).map_err(|_| "not_a_router_solicitation")?;
    let mut state = ue.state.lock().await;
    let pdn = state.pdns.iter_mut().find(|pdn| pdn.number == number).ok_or("unknown_teid")?;
    if pdn.default_bearer().is_none_or(|bearer| bearer.access.is_none()) {
        pdn.solicited = Some(solicitation.source);
        return Ok(());
    }
    advertise(gateway, pdn, solicitation.source)
}

/// Packets reach an eNB now: answers a solicitation that waits.
pub(crate) fn reachable(gateway: &Gateway, pdn: &mut Pdn) {
    if let Some(host) = pdn.solicited.take()
        && let Err(reason) = advertise(gateway, pdn, host)
    {
        DROPPED.inc(reason);
    }
}

/// Sends an advertisement through its tunnel.
fn advertise(gateway: &Gateway, pdn: &Pdn, host: Ipv6Addr) -> Result<(), &'static str> {
    let (tunnel, prefix) = pdn.upf.n4u.zip(pdn.addresses.ipv6).ok_or("no_prefix")?;
    let network = &gateway.networks.get(&pdn.apn).ok_or("no_apn")?.config;
    let to = if host.is_unspecified() { ALL_NODES } else { host };
    let mut packet = RouterAdvertisement::for_ue(ROUTER, to, prefix, Some(network.mtu.into()));
    packet.dns = network
        .dns
        .iter()
        .filter_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        })
        .collect();
    let octets = gtpu::build_gpdu(tunnel.teid.0, None, &packet.build()).map_err(|_| "not_encoded")?;
    gateway.gtpu.try_send_to(&octets, SocketAddr::new(tunnel.address, gtpu::PORT)).map_err(|_| "not_sent")?;
    ADVERTISED.inc();
    Ok(())
}
