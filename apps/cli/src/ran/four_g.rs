//! `godwit ran --4g`: an MME with its eNBs and UEs, against an S-GW and P-GW.
//!
//! Events go to standard output as JSON lines (see [`lte::event`]). The options that 4G shares with 5G are those of [`super::Args`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gtpv2c::endpoint::PORT;
use gtpv2c::{Ambr, PdnType};
use lte::{Config, MmeConfig, UeConfig};

use super::Args;

/// Options of 5G, or of gNBs in parts, which mean nothing in 4G.
pub(super) const OF_5G: [&str; 20] = [
    "split",
    "amf",
    "sctp",
    "n2",
    "n3",
    "gnbs",
    "gnb_id",
    "home_plmn",
    "slices",
    "release",
    "k",
    "opc",
    "sqn",
    "suci",
    "suci_key_id",
    "suci_key",
    "integrity",
    "ciphering",
    "slice",
    "answer_timeout",
];

/// Options that only 4G has.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Options of 4G")]
pub(super) struct LteArgs {
    /// Local address of the MME's S11. The gateway sends its requests to port 2123 there.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1", requires = "four_g")]
    mme: IpAddr,
    /// GTP-C addresses of S-GWs: one, or with --pgw several, which belong to the eNBs in turn.
    #[arg(
        long,
        value_name = "ADDR:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.6:2123",
        requires = "four_g"
    )]
    gateway: Vec<SocketAddr>,
    /// The P-GW that the MME names to the S-GW. When not given, the S-GW is also the P-GW.
    #[arg(long, value_name = "ADDR", requires = "four_g")]
    pgw: Option<IpAddr>,
    /// Local addresses of S1-U, one for each eNB; UEs are spread over the eNBs.
    #[arg(
        long,
        value_name = "ADDR",
        value_delimiter = ',',
        default_value = "127.0.0.1",
        requires = "four_g"
    )]
    enb: Vec<IpAddr>,
    /// Identity of the first eNB.
    #[arg(long, default_value_t = 1, requires = "four_g")]
    enb_id: u32,
    /// Static IPv4 address of the first UE; the others count up. When not given, the gateway chooses.
    #[arg(long, value_name = "ADDR", requires = "four_g")]
    static_ipv4: Option<Ipv4Addr>,
    /// Static IPv6 prefix (64 bits) of the first UE; the others count up. When not given, the gateway chooses.
    #[arg(long, value_name = "PREFIX", requires = "four_g")]
    static_ipv6: Option<Ipv6Addr>,
    /// APN-AMBR that the MME asks for, from the subscription, Mbit/s in each direction.
    #[arg(long, value_name = "MBIT/S", default_value_t = 1000, requires = "four_g",
          value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    ambr: u32,
    /// Seconds after which an idle UE comes back on its own. When not given, only pages and programs bring it back.
    #[arg(long, value_name = "SECONDS", requires = "four_g")]
    idle: Option<f64>,
    /// Seconds for which the MME pages a UE that does not answer, with --ignore-paging, before it tells the gateway.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, requires = "four_g")]
    paging_time: f64,
    /// Seconds between handovers of each connected UE to the next eNB. When not given, UEs stay where they are.
    #[arg(long, value_name = "SECONDS", requires = "four_g")]
    handover: Option<f64>,
    /// The MME's restart counter; taken from the clock when not given. A counter that has grown tells the gateway that all UEs of
    /// this MME are gone.
    #[arg(long, value_name = "COUNTER", requires = "four_g")]
    restart_counter: Option<u8>,
    /// Seconds between Echo Requests to each gateway, by which the MME learns of its restart.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, requires = "four_g")]
    echo: f64,
}

/// A duration of an option in seconds.
fn seconds(option: &'static str, value: Option<f64>) -> anyhow::Result<Option<Duration>> {
    value.map(|seconds| Duration::try_from_secs_f64(seconds).context(option)).transpose()
}

/// The simulation that the options ask for.
pub(super) fn config(args: &Args) -> anyhow::Result<Config> {
    let options = &args.four_g_options;
    let [0, high, low] = args.tac.to_octets() else {
        bail!("--tac: a tracking area code of 4G has 16 bits, that is 0000 to 00ffff")
    };
    let Some(&gateway) = options.gateway.first() else { bail!("--gateway: name an S-GW") };
    if options.gateway.len() > 1 && options.pgw.is_none() {
        bail!("--gateway: UEs that move to another S-GW need a P-GW that stays, --pgw");
    }
    let pdn_type = match args.ue.session.as_str() {
        "none" => bail!("--session: a UE of 4G attaches with a PDN connection"),
        text => match text.parse::<types::PduSessionType>()? {
            types::PduSessionType::Ipv4 => PdnType::Ipv4,
            types::PduSessionType::Ipv6 => PdnType::Ipv6,
            types::PduSessionType::Ipv4v6 => PdnType::Ipv4v6,
            _ => bail!("--session: ipv4, ipv6 or ipv4v6"),
        },
    };
    Ok(Config {
        mme: MmeConfig {
            s11: SocketAddr::new(options.mme, PORT),
            restart_counter: options.restart_counter,
            echo_interval: Duration::try_from_secs_f64(options.echo).context("--echo")?,
            ..MmeConfig::default()
        },
        enbs: options.enb.clone(),
        gateways: options.gateway.clone(),
        first_enb_id: options.enb_id,
        ue: UeConfig {
            gateway,
            pgw: options.pgw,
            first_imsi: args.ue.imsi,
            plmn: args.plmn,
            tac: u16::from_be_bytes([high, low]),
            apn: args.ue.dnn.to_string(),
            pdn_type,
            static_ipv4: options.static_ipv4,
            static_ipv6: options.static_ipv6,
            ambr: Ambr { uplink_kbps: options.ambr * 1000, downlink_kbps: options.ambr * 1000 },
            paging_time: Duration::try_from_secs_f64(options.paging_time).context("--paging-time")?,
            answers_paging: !args.ue.ignore_paging,
            ..UeConfig::default()
        },
        count: args.ue.ues,
        rate: args.rate,
        concurrency: args.concurrency,
        tun: args.tun,
        cycles: args.cycles,
        inactivity: seconds("--inactivity", args.inactivity)?,
        idle: seconds("--idle", options.idle)?,
        handover: seconds("--handover", options.handover)?,
        hold: args.hold()?,
        detach: !args.vanish,
    })
}
