//! N4-u (TS 29.244 §5.12, TS 23.501 §5.8.2.2.3): the SMF as router of IPv6 sessions.
//!
//! A UE solicits as soon as it knows its session, which is before the UPF knows the gNB's tunnel. The
//! answer then waits for [`reachable`]. Sent at once it would be lost, and the UE would have no address
//! for seconds (RFC 4861 §6.3.7).
//!
//! The UPF forwards router solicitations to the SMF by GTP-U with the session's TEID on N4-u. The
//! advertisement goes back through the UPF's own tunnel, and the UPF forwards it to the gNB.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use packet::gtpu::{self, Signalling};
use packet::ndp::{ALL_NODES, RouterAdvertisement, RouterSolicitation};
use telemetry::counters::{Counter, Family};
use types::Teid;

use crate::context::{Advertisement, Session, Smf};

static ADVERTISED: Counter = Counter::new("smf_router_advertisements");
static DROPPED: Family = Family::new("smf_n4u_dropped", "reason");

/// The router's link-local address on every session's link.
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Answers packets on N4-u until the SMF stops.
pub(crate) async fn run(smf: Arc<Smf>) {
    let mut buffer = vec![0u8; 2048];
    loop {
        match smf.gtpu.recv_from(&mut buffer).await {
            Ok((length, from)) => {
                if let Err(reason) = handle(&smf, from, buffer.get(..length).unwrap_or_default()) {
                    DROPPED.inc(reason);
                }
            }
            Err(error) => tracing::debug!(%error, "N4-u socket"),
        }
    }
}

fn handle(smf: &Smf, from: SocketAddr, datagram: &[u8]) -> Result<(), &'static str> {
    let message = gtpu::Packet::new(datagram).map_err(|_| "malformed")?;
    if message.message_type() == gtpu::message_type::ECHO_REQUEST {
        let sequence = message.sequence().unwrap_or(0);
        let _ = smf.gtpu.try_send_to(&Signalling::EchoResponse { sequence }.build(), from);
        return Ok(());
    }
    if message.message_type() != gtpu::message_type::G_PDU {
        return Err("not_a_g_pdu");
    }
    let session = smf.sessions.by_teid(Teid(message.teid())).ok_or("unknown_teid")?;
    let solicitation =
        RouterSolicitation::parse(message.payload()).map_err(|_| "not_a_router_solicitation")?;
    let mut router = session.router();
    let advertisement = router.advertisement.clone().ok_or("session_without_prefix")?;
    if !router.reachable {
        router.solicited = Some(solicitation.source);
        return Ok(());
    }
    drop(router);
    advertise(smf, &advertisement, solicitation.source)
}

/// Records whether downlink packets reach the gNB. If they do, answers a waiting solicitation.
pub(crate) fn reachable(smf: &Smf, session: &Session, reachable: bool) {
    let mut router = session.router();
    router.reachable = reachable;
    let waiting = if reachable { router.solicited.take() } else { None };
    if let Some((host, advertisement)) = waiting.zip(router.advertisement.clone())
        && let Err(reason) = advertise(smf, &advertisement, host)
    {
        DROPPED.inc(reason);
    }
}

/// Sends the advertisement through its tunnel.
fn advertise(smf: &Smf, advertisement: &Advertisement, host: Ipv6Addr) -> Result<(), &'static str> {
    let to = if host.is_unspecified() { ALL_NODES } else { host };
    let mtu = Some(u32::from(advertisement.mtu));
    let mut packet = RouterAdvertisement::for_ue(ROUTER, to, advertisement.prefix, mtu);
    packet.dns.clone_from(&advertisement.dns);
    let octets =
        gtpu::build_gpdu(advertisement.upf.teid.0, None, &packet.build()).map_err(|_| "not_encoded")?;
    let upf = SocketAddr::new(advertisement.upf.address.preferred(), gtpu::PORT);
    smf.gtpu.try_send_to(&octets, upf).map_err(|_| "not_sent")?;
    ADVERTISED.inc();
    Ok(())
}
