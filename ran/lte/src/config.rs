//! What to simulate: an MME, eNBs, UEs, and what the UEs do.
//!
//! The defaults fit the gateway of the example configuration; the command line overrides every value. Nothing here is specific to
//! one core.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use gtpv2c::endpoint::PORT;
use gtpv2c::{Ambr, PdnType};
use simulator::Hold;
use types::{Imsi, Plmn};

use crate::mme::MmeConfig;

/// What one run of the simulator does.
#[derive(Debug, Clone)]
pub struct Config {
    /// The MME.
    pub mme: MmeConfig,
    /// Addresses of S1-U, one for each eNB; UEs are spread over the eNBs in turn.
    pub enbs: Vec<IpAddr>,
    /// S-GWs of the eNBs, in turn; UEs have that of their eNB, and change it when they move. Empty: all have `ue.gateway`.
    pub gateways: Vec<SocketAddr>,
    /// Identity (20 bits) of the first eNB; the others count up.
    pub first_enb_id: u32,
    /// The UEs.
    pub ue: UeConfig,
    /// Number of UEs.
    pub count: u32,
    /// New attaches per second at most; `None`: as fast as `concurrency` allows.
    pub rate: Option<f64>,
    /// UEs that attach or detach at once.
    pub concurrency: usize,
    /// Give each PDN connection a TUN device in a namespace of its UE.
    pub tun: bool,
    /// How often each UE attaches. It detaches between two attaches.
    pub cycles: u32,
    /// How long a UE must have been silent before its eNB releases it. An idle UE comes back when it is paged, or when its programs
    /// send. `None`: UEs stay connected.
    pub inactivity: Option<Duration>,
    /// After how long an idle UE comes back without a reason; `None`: it does not.
    pub idle: Option<Duration>,
    /// How often a connected UE moves to the next eNB; `None`: never.
    pub handover: Option<Duration>,
    /// How long the UEs stay attached after everything is set up.
    pub hold: Hold,
    /// Detach at the end; otherwise the UEs end without a message to the gateway.
    pub detach: bool,
}

/// The configuration that all UEs share. The n-th UE has the n-th IMSI.
#[derive(Debug, Clone)]
pub struct UeConfig {
    /// Where the S-GW listens for GTPv2-C through which a UE attaches first.
    pub gateway: SocketAddr,
    /// The P-GW that the MME names to the S-GW. `None`: the S-GW is it, too.
    pub pgw: Option<IpAddr>,
    /// Identity of the first UE.
    pub first_imsi: Imsi,
    /// Serving network.
    pub plmn: Plmn,
    /// Tracking area of all cells.
    pub tac: u16,
    /// APN.
    pub apn: String,
    /// What the PDN connection is to carry: IPv4, IPv6 or both.
    pub pdn_type: PdnType,
    /// Static IPv4 address of the first UE, which the MME knows from the subscription; the others count up. `None`: the gateway
    /// chooses.
    pub static_ipv4: Option<Ipv4Addr>,
    /// Static IPv6 prefix, 64 bits, of the first UE; the others count up. `None`: the gateway chooses.
    pub static_ipv6: Option<Ipv6Addr>,
    /// Rates of all bearers without guaranteed bit rate together.
    pub ambr: Ambr,
    /// MTU of a TUN device when the gateway names none.
    pub mtu: u16,
    /// UEs answer when they are paged; otherwise an idle UE behaves as if out of coverage.
    pub answers_paging: bool,
    /// For how long the MME pages a UE that does not answer (T3413 of TS 24.301, with its repetitions) before it tells the gateway.
    pub paging_time: Duration,
    /// How long a UE's former eNB waits for the End Marker of each tunnel after a handover.
    pub end_marker_wait: Duration,
}

impl Config {
    /// The S-GW of the eNB with this index.
    pub fn gateway_of(&self, enb: usize) -> SocketAddr {
        let at = enb.checked_rem(self.gateways.len());
        at.and_then(|at| self.gateways.get(at)).copied().unwrap_or(self.ue.gateway)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mme: MmeConfig::default(),
            enbs: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            gateways: Vec::new(),
            first_enb_id: 1,
            ue: UeConfig::default(),
            count: 1,
            rate: None,
            concurrency: 64,
            tun: false,
            cycles: 1,
            inactivity: None,
            idle: None,
            handover: None,
            hold: Hold::UntilShutdown,
            detach: true,
        }
    }
}

impl Default for UeConfig {
    fn default() -> Self {
        Self {
            gateway: SocketAddr::from((Ipv4Addr::new(127, 0, 0, 6), PORT)),
            pgw: None,
            first_imsi: "999700000000001".parse().expect("fifteen digits are an IMSI"),
            plmn: Plmn::new("999", "70").expect("three and two digits are a PLMN"),
            tac: 1,
            apn: "internet".into(),
            pdn_type: PdnType::Ipv4,
            static_ipv4: None,
            static_ipv6: None,
            ambr: Ambr { uplink_kbps: 1_000_000, downlink_kbps: 1_000_000 },
            mtu: 1400,
            answers_paging: true,
            paging_time: Duration::ZERO,
            end_marker_wait: Duration::from_secs(1),
        }
    }
}
