//! Router discovery of a UE (TS 23.501 §5.8.2.2.3, TS 23.401 §5.3.1.2.2; RFC 4861, RFC 4862): the network gives the UE an interface
//! identifier by signalling, and the prefix in a router advertisement.

use std::net::Ipv6Addr;
use std::time::Duration;

use bytes::Bytes;
use packet::ndp::{RouterAdvertisement, RouterSolicitation};

use crate::ue::Failure;

/// How long the UE waits for the first router advertisement; the time doubles with each try. Much
/// shorter than in RFC 4861 §10, which is for shared links: the first solicitation may overtake the
/// set-up of the downlink.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const TRIES: u32 = 9;

/// The UE's packets of a session.
pub trait Packets {
    /// Sends an IP packet; `false` without radio resources.
    fn send(&self, packet: Vec<u8>) -> bool;
    /// The next IP packet received; `None` without radio resources. Cancel-safe.
    fn received(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// Why the UE has no prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// There are no radio resources.
    #[error("the UE has no radio bearer")]
    NoBearer,
    /// The radio resources went meanwhile.
    #[error("the connection to the network is lost")]
    ConnectionLost,
    /// No router answers.
    #[error("no Router Advertisement in time")]
    Timeout,
}

impl From<DiscoveryError> for Failure {
    fn from(error: DiscoveryError) -> Self {
        match error {
            DiscoveryError::NoBearer => Self::Missing("radio bearer"),
            DiscoveryError::ConnectionLost => Self::ConnectionLost,
            DiscoveryError::Timeout => Self::Timeout("Router Advertisement"),
        }
    }
}

/// Asks for an advertisement from `source`, the link-local address with the UE's interface identifier. Returns the address
/// that prefix and identifier make.
///
/// # Errors
/// No advertisement comes.
pub async fn discover(packets: &mut impl Packets, source: Ipv6Addr) -> Result<Ipv6Addr, DiscoveryError> {
    let solicitation = RouterSolicitation { source }.build();
    for attempt in 0..TRIES {
        if !packets.send(solicitation.clone()) {
            return Err(DiscoveryError::NoBearer);
        }
        let wait = FIRST_WAIT * 2u32.pow(attempt);
        if let Ok(prefix) = net::time::timeout(wait, advertised_prefix(packets)).await {
            let prefix = prefix.ok_or(DiscoveryError::ConnectionLost)?;
            let identifier = source.to_bits() & u128::from(u64::MAX);
            return Ok(Ipv6Addr::from_bits(prefix.to_bits() | identifier));
        }
    }
    Err(DiscoveryError::Timeout)
}

/// The prefix of the next advertisement; `None` when the tunnel has closed.
async fn advertised_prefix(packets: &mut impl Packets) -> Option<Ipv6Addr> {
    loop {
        let packet = packets.received().await?;
        let Ok(advertisement) = RouterAdvertisement::parse(&packet) else { continue };
        match advertisement.prefix {
            Some(prefix) if prefix.autonomous && prefix.length == 64 => return Some(prefix.prefix),
            _ => {}
        }
    }
}
