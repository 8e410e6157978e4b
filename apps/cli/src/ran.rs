//! `godwit ran`: simulated gNBs and UEs, against this core or another one. With `--4g` an MME, eNBs and UEs (`four_g.rs`).
//!
//! Events go to standard output as JSON lines (see [`simulator::event`]), the log to standard error.

mod four_g;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nas::{CipheringAlgorithm, IntegrityAlgorithm, ProtectionScheme};
use net::sctp::SctpMode;
use simulator::{Config, Hold, SuciScheme, UeConfig};
use tokio::signal::unix::{SignalKind, signal};
use types::{Dnn, Imsi, Key, PduSessionType, Plmn, SNssai, Tac};

use crate::EXIT_FAILED;
use crate::config::{self, Problem, Problems};

/// Options of `godwit ran`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// UEs of gNBs in parts: they use the cells of the section `ran` of the configuration, and no gNB is simulated.
    #[arg(long, conflicts_with_all = ["amf", "sctp", "n2", "n3", "gnbs", "gnb_id", "tac", "slices", "inactivity"])]
    split: bool,
    /// With --split: the configuration file.
    #[arg(short, long, value_name = "FILE", default_value = "godwit.yaml", requires = "split")]
    config: PathBuf,
    /// 4G: an MME with its eNBs and UEs, which attach through the S-GW and P-GW at --gateway. Options of 5G alone cannot be given.
    #[arg(id = "four_g", long = "4g", conflicts_with_all = four_g::OF_5G)]
    is_4g: bool,
    /// The AMF's NGAP address.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.5:38412")]
    amf: SocketAddr,
    /// SCTP carrier: auto, kernel, raw, udp or udp:PORT.
    #[arg(long, default_value = "auto")]
    sctp: SctpMode,
    /// Local address towards the AMF.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    n2: IpAddr,
    /// Local address of GTP-U, if another than that of N2.
    #[arg(long, value_name = "ADDR")]
    n3: Option<IpAddr>,
    /// Number of gNBs; UEs are spread over them.
    #[arg(long, default_value_t = 1)]
    gnbs: u16,
    /// Identity of the first gNB.
    #[arg(long, default_value_t = 1)]
    gnb_id: u32,
    /// Serving network, as 999-70.
    #[arg(long, default_value = "999-70")]
    plmn: Plmn,
    /// Home network of the UEs, if another than the serving network.
    #[arg(long, value_name = "PLMN")]
    home_plmn: Option<Plmn>,
    /// Tracking area.
    #[arg(long, default_value = "000001")]
    tac: Tac,
    /// Slices of the gNBs, as 1 or 1-010203.
    #[arg(long, value_name = "SST[-SD]", value_delimiter = ',', default_value = "1")]
    slices: Vec<SNssai>,
    #[command(flatten)]
    ue: UeArgs,
    /// New registrations per second, at most.
    #[arg(long)]
    rate: Option<f64>,
    /// UEs in their initial procedures at once.
    #[arg(long, default_value_t = 64)]
    concurrency: usize,
    /// Give each session a TUN device in a namespace of its UE.
    #[arg(long)]
    tun: bool,
    /// How often each UE registers.
    #[arg(long, default_value_t = 1)]
    cycles: u32,
    /// Seconds without traffic after which gNB or eNB ask for the release of a UE's connection. The UE
    /// comes back when paged or when its programs send. When not given, UEs stay connected.
    #[arg(long, value_name = "SECONDS")]
    inactivity: Option<f64>,
    /// Seconds to stay registered after set-up; until interrupted when not given.
    #[arg(long, value_name = "SECONDS")]
    hold: Option<f64>,
    /// End without deregistering the UEs.
    #[arg(long)]
    vanish: bool,
    /// Release sessions before deregistering.
    #[arg(long)]
    release: bool,
    /// Log filter.
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,
    #[command(flatten)]
    four_g_options: four_g::LteArgs,
}

#[derive(clap::Args, Debug)]
struct UeArgs {
    /// Number of UEs, with consecutive IMSIs.
    #[arg(long, visible_alias = "count", default_value_t = 1)]
    ues: u32,
    /// IMSI of the first UE.
    #[arg(long, default_value = "999700000000001")]
    imsi: Imsi,
    /// Permanent key K.
    #[arg(long, value_name = "HEX", default_value = "465B5CE8B199B49FAA5F0A2EE238A6BC")]
    k: Key<16>,
    /// Operator code OPc.
    #[arg(long, value_name = "HEX", default_value = "E8ED289DEBA952E4283B54E88E6183CA")]
    opc: Key<16>,
    /// Highest sequence number the USIMs have seen.
    #[arg(long, default_value_t = 0)]
    sqn: u64,
    /// Concealment of identities: null, A or B.
    #[arg(long, value_name = "PROFILE", default_value = "null")]
    suci: String,
    /// Identifier of the home network's public key, for profiles A and B.
    #[arg(long, value_name = "ID", default_value_t = 1)]
    suci_key_id: u8,
    /// The home network's public key, for profiles A and B.
    #[arg(long, value_name = "HEX")]
    suci_key: Option<String>,
    /// Integrity algorithms the UEs have.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "NIA1,NIA2")]
    integrity: Vec<IntegrityAlgorithm>,
    /// Ciphering algorithms the UEs have.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "NEA0,NEA1,NEA2")]
    ciphering: Vec<CipheringAlgorithm>,
    /// Slice to ask for; when not given, the network chooses.
    #[arg(long, value_name = "SST[-SD]")]
    slice: Option<SNssai>,
    /// Data network to ask for.
    #[arg(long, visible_alias = "apn", value_name = "NAME", default_value = "internet")]
    dnn: Dnn,
    /// Session to set up: ipv4, ipv6, ipv4v6, or none. With --4g the PDN connection, which there always is.
    #[arg(long, value_name = "TYPE", default_value = "ipv4")]
    session: String,
    /// Do not answer pages, as if idle UEs were out of coverage.
    #[arg(long)]
    ignore_paging: bool,
    /// Seconds a UE waits for each answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 15.0)]
    answer_timeout: f64,
}

/// Runs the simulation until it ends, or until SIGINT or SIGTERM.
///
/// # Errors
/// The simulation could not start. UEs that fail are events, and make the exit code a failure.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let simulation = args.simulation()?;
    telemetry::log::init(&args.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let failed = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let shutdown = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        anyhow::Ok(match simulation {
            Simulation::FiveG(config) => simulator::run(*config, shutdown).await?.failed,
            Simulation::FourG(config) => lte::run(*config, shutdown).await?.failed,
        })
    })?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

/// What is simulated.
enum Simulation {
    FiveG(Box<Config>),
    FourG(Box<lte::Config>),
}

impl Args {
    fn simulation(&self) -> anyhow::Result<Simulation> {
        Ok(if self.is_4g {
            Simulation::FourG(Box::new(four_g::config(self)?))
        } else {
            Simulation::FiveG(Box::new(self.config()?))
        })
    }

    fn hold(&self) -> anyhow::Result<Hold> {
        Ok(match self.hold {
            Some(seconds) => Hold::For(Duration::try_from_secs_f64(seconds).context("--hold")?),
            None => Hold::UntilShutdown,
        })
    }

    fn config(&self) -> anyhow::Result<Config> {
        Ok(Config {
            split: self.split.then(|| self.cells()).transpose()?,
            amf: self.amf,
            sctp: self.sctp,
            gnbs: self.gnbs,
            first_gnb_id: self.gnb_id,
            n2: self.n2,
            n3: self.n3,
            plmn: self.plmn,
            tac: self.tac,
            slices: self.slices.clone(),
            ue: self.ue.config(self.home_plmn.unwrap_or(self.plmn))?,
            count: self.ue.ues,
            rate: self.rate,
            concurrency: self.concurrency,
            tun: self.tun,
            cycles: self.cycles,
            inactivity: self
                .inactivity
                .map(|seconds| Duration::try_from_secs_f64(seconds).context("--inactivity"))
                .transpose()?,
            hold: self.hold()?,
            deregister: !self.vanish,
            release_sessions: self.release,
        })
    }

    /// The cells of gNBs in parts, from the configuration.
    fn cells(&self) -> anyhow::Result<ue::Config> {
        let missing = || {
            let message = "is missing: the cells for `godwit ran --split`; the godwit.yaml of the sources has an example";
            let problems = vec![Problem::at(1, "ran", message)];
            Problems { file: self.config.clone(), problems }
        };
        Ok(config::load(&self.config)?.ran.ok_or_else(missing)?)
    }
}

impl UeArgs {
    fn config(&self, home_plmn: Plmn) -> anyhow::Result<UeConfig> {
        let session = match self.session.as_str() {
            "none" => None,
            text => Some(text.parse::<PduSessionType>()?),
        };
        Ok(UeConfig {
            first_imsi: self.imsi,
            home_plmn,
            k: self.k.clone(),
            opc: self.opc.clone(),
            sqn: self.sqn,
            suci: self.scheme()?,
            integrity: self.integrity.clone(),
            ciphering: self.ciphering.clone(),
            slice: self.slice,
            dnn: Some(self.dnn.clone()),
            session,
            answers_paging: !self.ignore_paging,
            answer_timeout: Duration::try_from_secs_f64(self.answer_timeout).context("--answer-timeout")?,
            ..UeConfig::default()
        })
    }

    fn scheme(&self) -> anyhow::Result<SuciScheme> {
        let scheme = match self.suci.to_ascii_uppercase().as_str() {
            "NULL" => return Ok(SuciScheme::Null),
            "A" => ProtectionScheme::ProfileA,
            "B" => ProtectionScheme::ProfileB,
            other => bail!("--suci: no profile `{other}`; there are null, A and B"),
        };
        let text = self.suci_key.as_deref().context("--suci A and B need --suci-key")?;
        let public_key = (0..text.len())
            .step_by(2)
            .map(|at| text.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
            .collect::<Option<Vec<u8>>>()
            .context("--suci-key: an even number of hexadecimal digits is needed")?;
        Ok(SuciScheme::Ecies { scheme, key_id: self.suci_key_id, public_key })
    }
}
