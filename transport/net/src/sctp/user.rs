//! Opens user-space listeners and associations: addresses, ports, and the transport to use.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::association::Shared;
use super::cookie::Path;
use super::endpoint::Endpoint;
use super::wire::Wire;
use super::{BindError, ConnectError, SctpConfig, SctpMode};

/// Local ports for callers that give none: the ephemeral range of RFC 6335.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49152..=65535;
/// Most ports that are tried.
const PORT_ATTEMPTS: usize = 32;

/// A user-space listener.
#[derive(Debug)]
pub(super) struct Listener {
    pub endpoint: Arc<Endpoint>,
    pub accepted: mpsc::Receiver<Arc<Shared>>,
    pub local: SocketAddr,
    pub mode: SctpMode,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.endpoint.close();
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("rejected", &self.rejected()).finish_non_exhaustive()
    }
}

/// Listens at `address` in `mode`, which is raw or UDP.
pub(super) fn bind(address: SocketAddr, mode: SctpMode, config: SctpConfig) -> Result<Listener, BindError> {
    let (wire, port) = open(address, mode, true)?;
    let (endpoint, accepted) =
        Endpoint::open(wire, port, config, true).map_err(|source| failed(address, mode, source))?;
    let mode = match endpoint.udp_port() {
        Some(port) => SctpMode::Udp { port },
        None => mode,
    };
    Ok(Listener { endpoint, accepted, local: SocketAddr::new(address.ip(), port), mode })
}

/// Connects to `remote` from `local` in `mode`, which is raw or UDP, and waits for the hand-shake.
pub(super) async fn connect(
    local: SocketAddr,
    remote: SocketAddr,
    mode: SctpMode,
    config: SctpConfig,
) -> Result<Arc<Shared>, ConnectError> {
    // We may have several addresses: use that of the route to the peer.
    let address = if local.ip().is_unspecified() {
        source_for(remote).map_err(|source| BindError::Address { address: local, source })?
    } else {
        local.ip()
    };
    let (wire, port) = open(SocketAddr::new(address, local.port()), mode, false)?;
    let (endpoint, _) =
        Endpoint::open(wire, port, config, false).map_err(|source| failed(local, mode, source))?;
    let udp_port = match mode {
        SctpMode::Udp { port } => port,
        _ => 0,
    };
    let path = Path { local: address, peer: remote };
    let association = Calling(Some(endpoint.add(path, udp_port)));
    association.shared().connect();
    match association.shared().established().await {
        Ok(()) => Ok(association.keep()),
        Err(super::CloseReason::PeerAborted(cause)) => Err(ConnectError::Refused { remote, cause }),
        Err(_) => Err(ConnectError::Unreachable { remote }),
    }
}

/// An association being set up; aborted if the caller stops waiting.
struct Calling(Option<Arc<Shared>>);

impl Calling {
    fn shared(&self) -> &Arc<Shared> {
        self.0.as_ref().expect("present until `keep` consumes it")
    }

    fn keep(mut self) -> Arc<Shared> {
        self.0.take().expect("present until now")
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.abort();
        }
    }
}

/// Opens the socket and determines the SCTP port.
fn open(address: SocketAddr, mode: SctpMode, listen: bool) -> Result<(Wire, u16), BindError> {
    let attempt = |port: u16| match mode {
        // A caller needs no particular UDP port: the peer answers to the port that it sees.
        SctpMode::Udp { port: udp } => Wire::udp(SocketAddr::new(address.ip(), if listen { udp } else { 0 })),
        _ => Wire::raw(address.ip(), port),
    };
    if address.port() != 0 {
        let wire = attempt(address.port()).map_err(|source| failed(address, mode, source))?;
        return Ok((wire, address.port()));
    }
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..PORT_ATTEMPTS {
        let port = random_port().map_err(|source| failed(address, mode, source))?;
        match attempt(port) {
            Ok(wire) => return Ok((wire, port)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(error) => return Err(failed(address, mode, error)),
        }
    }
    Err(failed(address, mode, last))
}

/// Unpredictable, as source ports should be.
fn random_port() -> io::Result<u16> {
    let mut bytes = [0; 2];
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    let span = EPHEMERAL.end() - EPHEMERAL.start();
    Ok(EPHEMERAL.start() + u16::from_ne_bytes(bytes) % span)
}

fn failed(address: SocketAddr, mode: SctpMode, source: io::Error) -> BindError {
    match source.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable | io::ErrorKind::InvalidInput => {
            BindError::Address { address, source }
        }
        _ => BindError::Unavailable {
            mode,
            source,
            hint: "raw IP needs root or CAP_NET_RAW; `sctp: udp` needs nothing, but the peer must use it too",
        },
    }
}

/// The source address of packets to `remote`.
fn source_for(remote: SocketAddr) -> io::Result<IpAddr> {
    let any =
        if remote.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let probe = std::net::UdpSocket::bind((any, 0))?;
    // Connecting a UDP socket sends nothing; it only looks up the route.
    probe.connect(SocketAddr::new(remote.ip(), remote.port().max(1)))?;
    Ok(probe.local_addr()?.ip())
}
