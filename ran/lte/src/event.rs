//! What happened, as one JSON object per line.
//!
//! | event | meaning |
//! |---|---|
//! | `mme` | the MME listens, with which restart counter |
//! | `enb` | an eNB has bound its S1-U |
//! | `attached` | a UE has a PDN connection and its default bearer, with addresses and, with TUN, where its interface is |
//! | `idle` | the tunnels of a UE are released |
//! | `service` | an idle UE has tunnels again; why, and how long it took |
//! | `handover` | a UE has moved to another eNB |
//! | `bearers` | the gateway created, updated or deleted dedicated bearers |
//! | `gateway_restarted` | a UE's PDN connection is lost; the UE attaches again |
//! | `detached` | a UE has no PDN connection any more |
//! | `failed` | a procedure of a UE failed, with the cause |
//! | `ready` | every UE has attached, or failed to |
//! | `summary` | the simulation has ended; counts of the whole run |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Serialize;
use simulator::event::By;
use types::Imsi;

/// One line of output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The MME listens.
    Mme {
        /// Its address of S11.
        s11: SocketAddr,
        /// Its restart counter.
        restart_counter: u8,
        /// The S-GW, or the first one.
        gateway: SocketAddr,
    },
    /// An eNB has bound its S1-U.
    Enb {
        /// Its identity.
        enb: u32,
        /// Its address of S1-U.
        s1u: IpAddr,
    },
    /// A UE has attached.
    Attached {
        /// The UE.
        imsi: Imsi,
        /// Its eNB.
        enb: u32,
        /// The UE's IPv4 address.
        ipv4: Option<Ipv4Addr>,
        /// The UE's IPv6 address, of the prefix it was given.
        ipv6: Option<Ipv6Addr>,
        /// Its DNS servers.
        dns: Vec<IpAddr>,
        /// MTU of its link, octets.
        mtu: u16,
        /// The UE's namespace, as a path that `setns` and `nsenter` take; with TUN.
        netns: Option<String>,
        /// The interface within it; with TUN.
        interface: Option<String>,
        /// From the Create Session Request to the Modify Bearer Response, milliseconds.
        attach_ms: f64,
        /// From the Router Solicitation to the Advertisement, milliseconds; with IPv6.
        router_advertisement_ms: Option<f64>,
    },
    /// The tunnels of a UE are released.
    Idle {
        /// The UE.
        imsi: Imsi,
        /// From the request to the answer, milliseconds.
        release_ms: f64,
    },
    /// An idle UE has tunnels again.
    Service {
        /// The UE.
        imsi: Imsi,
        /// `paging`, `uplink_data` or `timer`.
        reason: &'static str,
        /// From the request to the answer, milliseconds.
        service_ms: f64,
    },
    /// A UE has moved to another eNB.
    Handover {
        /// The UE.
        imsi: Imsi,
        /// Its new eNB.
        enb: u32,
        /// Its S-GW, which may be another one.
        gateway: SocketAddr,
        /// From the request to the answer, milliseconds.
        handover_ms: f64,
        /// Tunnels of the former eNB that got an End Marker.
        end_markers: usize,
        /// From the request to the last End Marker, milliseconds; none if one did not come.
        end_markers_ms: Option<f64>,
    },
    /// The gateway created, updated or deleted dedicated bearers.
    Bearers {
        /// The UE.
        imsi: Imsi,
        /// `created`, `updated` or `deleted`.
        action: &'static str,
        /// Their identities.
        bearers: Vec<u8>,
    },
    /// A UE's PDN connection is lost.
    GatewayRestarted {
        /// The UE.
        imsi: Imsi,
    },
    /// A UE has no PDN connection any more.
    Detached {
        /// The UE.
        imsi: Imsi,
        /// Who asked for it.
        by: By,
        /// From the request to the answer, milliseconds; when the UE asked.
        detach_ms: Option<f64>,
    },
    /// A procedure failed.
    Failed {
        /// The UE.
        imsi: Imsi,
        /// The procedure, in words of TS 23.401.
        procedure: &'static str,
        /// What went wrong.
        reason: &'static str,
        /// The cause's number, when the gateway named one.
        cause: Option<u8>,
        /// All of it in words.
        detail: String,
    },
    /// Every UE has attached, or failed to.
    Ready(Totals),
    /// The simulation has ended; counts of the whole run.
    Summary(Totals),
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Totals {
    /// Successful attaches.
    pub attached: u64,
    /// Procedures that failed.
    pub failed: u64,
    /// Detaches, by UE or gateway.
    pub detached: u64,
    /// Times that an idle UE came back.
    pub services: u64,
    /// Pages that were not answered, as configured.
    pub pages_ignored: u64,
    /// Handovers.
    pub handovers: u64,
    /// Dedicated bearers that were created.
    pub bearers: u64,
    /// End Markers that came to eNBs.
    pub end_markers: u64,
    /// S11 requests that were sent again.
    pub retransmissions: u64,
    /// Since the start, milliseconds.
    pub elapsed_ms: f64,
    /// User-plane packets from UEs.
    pub uplink_packets: u64,
    /// User-plane packets to UEs.
    pub downlink_packets: u64,
    /// User-plane packets that had to be dropped.
    pub dropped_packets: u64,
}
