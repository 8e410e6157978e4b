//! N4-u (TS 29.244 §5.12): the gateway as router of IPv6 PDN connections (TS 23.401 §5.3.1.2.2).
//!
//! A UE solicits as soon as it has its bearer, which may be before the UPF knows the eNB's tunnel. The answer then waits for
//! [`reachable`]. Sent at once it would be lost, and the UE would have no address for seconds (RFC 4861 §6.3.7).
//!
//! A procedure may hold the UE's lock for seconds, while another gateway is asked. The solicitation then waits on a task of its own
//! ([`Waiting`]), so that other UEs get their answers.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use packet::gtpu::{self, Signalling};
use packet::ndp::{ALL_NODES, RouterAdvertisement, RouterSolicitation};
use telemetry::counters::{Counter, Family};
use tokio::task::JoinSet;

use crate::context::{Gateway, Pdn, UeState};

static ADVERTISED: Counter = Counter::new("epc_router_advertisements");
static DROPPED: Family = Family::new("epc_n4u_dropped", "reason");

/// The router's link-local address on the link of every PDN connection.
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Most solicitations that wait for the locks of their UEs; more are dropped, and the UEs repeat them.
const MAX_WAITING: usize = 1024;

/// Solicitations that wait for the locks of their UEs, one for each PDN connection at most.
#[derive(Default)]
struct Waiting {
    /// Each ends with its TEID.
    tasks: JoinSet<u32>,
    teids: HashSet<u32>,
}

/// A solicitation of a UE.
#[derive(Clone, Copy)]
struct Solicited {
    /// The number of its PDN connection.
    pdn: u64,
    /// The UE's address.
    host: Ipv6Addr,
    /// Who has forwarded it.
    from: IpAddr,
}

/// Answers packets on N4-u until the gateway stops.
pub(crate) async fn run(gateway: Arc<Gateway>) {
    let mut buffer = vec![0u8; 2048];
    let mut waiting = Waiting::default();
    loop {
        tokio::select! {
            received = gateway.gtpu.recv_from(&mut buffer) => match received {
                Ok((length, from)) => {
                    let datagram = buffer.get(..length).unwrap_or_default();
                    count(handle(&gateway, &mut waiting, from, datagram));
                }
                Err(error) => tracing::debug!(%error, "N4-u socket"),
            },
            Some(ended) = waiting.tasks.join_next() => match ended {
                Ok(teid) => drop(waiting.teids.remove(&teid)),
                // It has not said whose it was. The others may wait twice.
                Err(_) => waiting.teids.clear(),
            },
        }
    }
}

fn count(result: Result<(), &'static str>) {
    if let Err(reason) = result {
        DROPPED.inc(reason);
    }
}

fn handle(
    gateway: &Arc<Gateway>,
    waiting: &mut Waiting,
    from: SocketAddr,
    datagram: &[u8],
) -> Result<(), &'static str> {
    let message = gtpu::Packet::new(datagram).map_err(|_| "malformed")?;
    if message.message_type() == gtpu::message_type::ECHO_REQUEST {
        let sequence = message.sequence().unwrap_or(0);
        let _ = gateway.gtpu.try_send_to(&Signalling::EchoResponse { sequence }.build(), from);
        return Ok(());
    }
    if message.message_type() != gtpu::message_type::G_PDU {
        return Err("not_a_g_pdu");
    }
    let teid = message.teid();
    let (ue, pdn) = gateway.ues.by_number(teid).ok_or("unknown_teid")?;
    let solicitation =
        RouterSolicitation::parse(message.payload()).map_err(|_| "not_a_router_solicitation")?;
    let solicited = Solicited { pdn, host: solicitation.source, from: from.ip() };
    if let Ok(mut state) = ue.state.try_lock() {
        return answer(gateway, &mut state, solicited);
    }
    if waiting.tasks.len() >= MAX_WAITING || !waiting.teids.insert(teid) {
        return Err("busy");
    }
    let gateway = gateway.clone();
    waiting.tasks.spawn(async move {
        count(answer(&gateway, &mut *ue.state.lock().await, solicited));
        teid
    });
    Ok(())
}

/// Answers a solicitation, now or as soon as packets reach an eNB.
fn answer(gateway: &Gateway, state: &mut UeState, solicited: Solicited) -> Result<(), &'static str> {
    let pdn = state.numbered(solicited.pdn).ok_or("unknown_teid")?;
    // Only the PDN connection's UPF has its solicitations. It may send from the address that it has on N4.
    let upf = [pdn.upf.n4u.map(|n4u| n4u.address), Some(pdn.upf.address.ip())];
    if !upf.contains(&Some(solicited.from)) {
        return Err("not_its_upf");
    }
    if pdn.default_bearer().is_none_or(|bearer| bearer.access.is_none()) {
        pdn.solicited = Some(solicited.host);
        return Ok(());
    }
    advertise(gateway, pdn, solicited.host)
}

/// Packets reach an eNB now: answers a solicitation that waits.
pub(crate) fn reachable(gateway: &Gateway, pdn: &mut Pdn) {
    if let Some(host) = pdn.solicited.take() {
        count(advertise(gateway, pdn, host));
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
