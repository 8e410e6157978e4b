//! What happened, as one JSON object per line.
//!
//! | event | meaning |
//! |---|---|
//! | `gnb` | a gNB finished NG Setup |
//! | `cell` | UEs camp in this cell of a gNB in parts; there is no `gnb` then |
//! | `registered` | a UE is registered; times are measured at the UE |
//! | `session` | a PDU session is up, with addresses and, with TUN, where its interface is |
//! | `released` | a PDU session was released |
//! | `idle` | a UE's connection was released; it stays registered |
//! | `service` | an idle UE has a connection again; why, and how long it took |
//! | `deregistered` | a UE is no longer registered |
//! | `failed` | a procedure of a UE failed, with the cause |
//! | `ready` | every UE has been through its initial procedures |
//! | `summary` | the simulation has ended; counts of the whole run |

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::Serialize;
use types::{PduSessionId, PduSessionType, Supi};

/// One line of output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A gNB finished NG Setup.
    Gnb {
        /// Its identity, 24 bits in hexadecimal.
        gnb: String,
        /// The name of the AMF.
        amf: String,
        /// From the start of NG Setup to its response, milliseconds.
        setup_ms: f64,
    },
    /// UEs camp in a cell of a gNB in parts.
    Cell {
        /// Its NR Cell Identity, nine hexadecimal digits.
        cell: String,
        /// Where its distributed unit serves UEs.
        du: SocketAddr,
    },
    /// A UE is registered.
    Registered {
        /// The UE.
        supi: Supi,
        /// Its new temporary identity.
        guti: Option<String>,
        /// From its Registration Request to the Registration Accept, milliseconds.
        registration_ms: f64,
        /// Whether the network authenticated the UE on the way.
        authenticated: bool,
    },
    /// A PDU session is up.
    Session {
        /// The UE.
        supi: Supi,
        /// The session.
        id: PduSessionId,
        /// What it carries.
        session_type: PduSessionType,
        /// The UE's IPv4 address.
        ipv4: Option<Ipv4Addr>,
        /// The UE's IPv6 address, of the prefix it was given.
        ipv6: Option<Ipv6Addr>,
        /// Its DNS servers.
        dns: Vec<IpAddr>,
        /// The UE's namespace, as a path that `setns` and `nsenter` take; with TUN.
        netns: Option<String>,
        /// The interface within it; with TUN.
        interface: Option<String>,
        /// From the request to the Establishment Accept with the radio bearer, milliseconds.
        session_ms: f64,
        /// From the Router Solicitation to the Advertisement, milliseconds; with IPv6.
        router_advertisement_ms: Option<f64>,
    },
    /// A PDU session is gone.
    Released {
        /// The UE.
        supi: Supi,
        /// The session.
        id: PduSessionId,
        /// Who asked for it.
        by: By,
        /// From the request to the Release Command, milliseconds; when the UE asked.
        release_ms: Option<f64>,
    },
    /// A UE's connection was released; it stays registered.
    Idle {
        /// The UE.
        supi: Supi,
        /// Why, as the network says.
        cause: String,
    },
    /// An idle UE has a connection again, or a UE has updated its registration.
    Service {
        /// The UE.
        supi: Supi,
        /// `paging`, `uplink_data`, `connection_lost`, `periodic_update`, `mobility_update` or `registration_requested`.
        reason: &'static str,
        /// From the UE's request until the network has accepted it and the requested radio resources
        /// are set up, milliseconds.
        service_ms: f64,
    },
    /// A UE is no longer registered.
    Deregistered {
        /// The UE.
        supi: Supi,
        /// Who asked for it.
        by: By,
        /// From the request to the accept, milliseconds; when the UE asked.
        deregistration_ms: Option<f64>,
    },
    /// A procedure failed.
    Failed {
        /// The UE.
        supi: Supi,
        /// The procedure, in words of TS 23.502.
        procedure: &'static str,
        /// What went wrong.
        reason: &'static str,
        /// The cause's number, when the network named one.
        cause: Option<u8>,
        /// All of it in words.
        detail: String,
    },
    /// Every UE has been through its initial procedures.
    Ready(Totals),
    /// The simulation has ended; counts of the whole run.
    Summary(Totals),
}

/// Who started something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The UE.
    Ue,
    /// The network.
    Network,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Totals {
    /// Successful registrations.
    pub registered: u64,
    /// Sessions set up.
    pub sessions: u64,
    /// Procedures that failed.
    pub failed: u64,
    /// Deregistrations.
    pub deregistered: u64,
    /// Times that an idle UE came back.
    pub services: u64,
    /// Since the first registration, milliseconds.
    pub elapsed_ms: f64,
    /// User-plane packets from UEs.
    pub uplink_packets: u64,
    /// User-plane packets to UEs.
    pub downlink_packets: u64,
    /// User-plane packets that had to be dropped.
    pub dropped_packets: u64,
}

/// Prints one event as one line. A closed standard output is no error: nobody reads the events then.
pub fn print(event: &impl Serialize) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// Milliseconds with three decimal places.
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Milliseconds since `start`.
pub fn elapsed_ms(start: net::time::Instant) -> f64 {
    millis(net::time::now().saturating_duration_since(start))
}
