//! N4-u (TS 29.244 §5.12, TS 23.501 §5.8.2.2.3): the SMF as router of IPv6 sessions.
//!
//! The UPF forwards router solicitations here by GTP-U; the TEID is the session's number. The advertisement goes
//! back through the UPF's own tunnel, which forwards it to the gNB.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError};

use packet::gtpu::{self, Signalling};
use packet::ndp::{ALL_NODES, RouterAdvertisement, RouterSolicitation};
use telemetry::counters::{Counter, Family};

use crate::context::{Advertisement, Smf};

static ADVERTISED: Counter = Counter::new("smf_router_advertisements");
static DROPPED: Family = Family::new("smf_n4u_dropped", "reason");

/// The router's link-local address on every session's link.
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Answers what comes over N4-u, until the SMF stops.
pub(crate) async fn run(smf: Arc<Smf>) {
    let mut buffer = vec![0u8; 2048];
    loop {
        match smf.gtpu.recv_from(&mut buffer).await {
            Ok((length, from)) => match answer(&smf, from, buffer.get(..length).unwrap_or_default()) {
                // A full socket buffer loses the answer; hosts solicit again (RFC 4861 §6.3.7).
                Ok((to, octets)) => _ = smf.gtpu.try_send_to(&octets, to),
                Err(reason) => DROPPED.inc(reason),
            },
            Err(error) => tracing::debug!(%error, "N4-u socket"),
        }
    }
}

fn answer(smf: &Smf, from: SocketAddr, datagram: &[u8]) -> Result<(SocketAddr, Vec<u8>), &'static str> {
    let message = gtpu::Packet::new(datagram).map_err(|_| "malformed")?;
    if message.message_type() == gtpu::message_type::ECHO_REQUEST {
        let sequence = message.sequence().unwrap_or(0);
        return Ok((from, Signalling::EchoResponse { sequence }.build()));
    }
    if message.message_type() != gtpu::message_type::G_PDU {
        return Err("not_a_g_pdu");
    }
    let session = smf.sessions.get(message.teid()).ok_or("unknown_teid")?;
    let solicitation =
        RouterSolicitation::parse(message.payload()).map_err(|_| "not_a_router_solicitation")?;
    let advertisement = session.advertisement.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let advertisement = advertisement.ok_or("session_without_prefix")?;
    let (to, octets) = advertise(&advertisement, solicitation.source).ok_or("not_encoded")?;
    ADVERTISED.inc();
    Ok((to, octets))
}

/// The advertisement in its tunnel.
fn advertise(advertisement: &Advertisement, host: Ipv6Addr) -> Option<(SocketAddr, Vec<u8>)> {
    let to = if host.is_unspecified() { ALL_NODES } else { host };
    let mtu = Some(u32::from(advertisement.mtu));
    let mut packet = RouterAdvertisement::for_ue(ROUTER, to, advertisement.prefix, mtu);
    packet.dns.clone_from(&advertisement.dns);
    let octets = gtpu::build_gpdu(advertisement.upf.teid.0, None, &packet.build()).ok()?;
    Some((SocketAddr::new(advertisement.upf.address.preferred(), gtpu::PORT), octets))
}
