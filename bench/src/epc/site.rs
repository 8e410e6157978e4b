//! A gateway with its network: ours with its UPF, go-gtp's with the same, and go-gtp's with a user plane of its own. Each has a lab of its own, so that all can take turns.

use std::path::Path;

use anyhow::Context as _;
use gogtp::Peer;
use gtpv2c::endpoint::PORT;
use lab::Lab;
use serde_json::json;

use super::mme::Mme;

/// What is added to the names of series of go-gtp's gateway: with its own user plane, and with our UPF.
pub(super) const ALONE: &str = ", go-gtp";
pub(super) const ON_UPF: &str = ", go-gtp on our UPF";

/// A gateway, and the MME at its other end of S11.
pub(super) struct Site {
    /// What is added to the names of its series.
    pub(super) suffix: &'static str,
    pub(super) mme: Mme,
    gateway: Gateway,
    /// The gateway's process.
    process: u32,
    lab: Lab,
}

enum Gateway {
    Godwit,
    GoGtp(Peer),
    /// With our UPF.
    GoGtpOnUpf(Peer),
}

impl Site {
    /// Our gateway and UPF, a process each.
    pub(super) async fn godwit() -> anyhow::Result<Site> {
        let lab = Lab::start(options()?).await?;
        let process =
            lab.processes().find(|(name, _)| *name == "spgw").context("no process of the gateway")?.1;
        let mme = lab.ran().enter(Mme::new)??;
        Ok(Site { suffix: "", mme, gateway: Gateway::Godwit, process, lab })
    }

    /// go-gtp's gateway, whose user plane is in the same process.
    pub(super) async fn go_gtp() -> anyhow::Result<Site> {
        let lab = Lab::start(lab::Options { foreign_gateway: true, ..options()? }).await?;
        let (gtpc, gtpu) = (format!("{}:{PORT}", lab::CORE_N2), format!("{}:2152", lab::CORE_N2));
        let arguments = ["spgw", "-gtpc", &gtpc, "-gtpu", &gtpu, "-pool", Lab::UE_POOL, "-tun", "gw0"];
        let gateway = gogtp::start(Some(lab.core()), &arguments).await?;
        let process = gateway.id();
        let mme = lab.ran().enter(Mme::new)??;
        Ok(Site { suffix: ALONE, mme, gateway: Gateway::GoGtp(gateway), process, lab })
    }

    /// go-gtp's gateway on our UPF, which does for a session what ours does.
    pub(super) async fn go_gtp_on_upf() -> anyhow::Result<Site> {
        let mut lab = Lab::start(options()?).await?;
        lab.kill("spgw").await?;
        let gtpc = format!("{}:{PORT}", lab::CORE_N2);
        let arguments = ["spgw", "-gtpc", &gtpc, "-upf", lab::UPF_PFCP, "-pool", Lab::UE_POOL];
        let gateway = gogtp::start(Some(lab.core()), &arguments).await?;
        let process = gateway.id();
        let mme = lab.ran().enter(Mme::new)??;
        Ok(Site { suffix: ON_UPF, mme, gateway: Gateway::GoGtpOnUpf(gateway), process, lab })
    }

    /// Sessions of the user plane: on the UPF, or tunnels of go-gtp's.
    pub(super) async fn user_plane_sessions(&mut self) -> anyhow::Result<u64> {
        match &mut self.gateway {
            Gateway::Godwit | Gateway::GoGtpOnUpf(_) => {
                let status = self.lab.oam("upf", "GET", "/status").await?;
                status["sessions"].as_u64().context("no sessions in the UPF's status")
            }
            Gateway::GoGtp(peer) => {
                let status = peer.ask(json!({"do": "status"})).await?;
                status["tunnels"].as_u64().context("no tunnels in the status of go-gtp's gateway")
            }
        }
    }

    /// Sessions of the gateway.
    pub(super) async fn sessions(&mut self) -> anyhow::Result<u64> {
        let status = match &mut self.gateway {
            Gateway::Godwit => self.lab.oam("spgw", "GET", "/status").await?["detail"].take(),
            Gateway::GoGtp(peer) | Gateway::GoGtpOnUpf(peer) => peer.ask(json!({"do": "status"})).await?,
        };
        status["sessions"].as_u64().context("no sessions in the gateway's status")
    }

    /// Memory of the gateway's process that is in use, kB.
    pub(super) fn resident_kb(&self) -> anyhow::Result<f64> {
        let file = Path::new("/proc").join(self.process.to_string()).join("status");
        let status = std::fs::read_to_string(file).context("the gateway's status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse()?)
    }

    /// Checks that every process of the core still runs.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.lab.check()
    }

    /// Ends the gateway and its network.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        drop(self.gateway);
        self.lab.stop().await
    }
}

fn options() -> anyhow::Result<lab::Options> {
    Ok(lab::Options { epc: true, processes: true, log: "warn".to_owned(), ..lab::Options::new(1)? })
}
