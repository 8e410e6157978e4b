//! `godwit mec agent run`: the program beside a clone that it takes for its MME or SMF.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use net::capability::Capability;

use crate::ConfigArg;

/// Options of `godwit mec agent`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Run the agent of the section `mec: agent:` until SIGINT or SIGTERM.
    Run {
        #[command(flatten)]
        config: ConfigArg,
        /// Log filter, instead of `log` in the configuration.
        #[arg(long, value_name = "FILTER")]
        log: Option<String>,
    },
}

/// `godwit mec agent …`
///
/// # Errors
/// The configuration is wrong, or the agent cannot start.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Verb::Run { config: arg, log } = &args.verb;
    let file = super::load(&arg.config)?;
    let config = super::section(arg, file.mec.agent, "agent", "docs/replication.md")?;
    telemetry::log::init(log.as_deref().unwrap_or(&file.log))?;
    // For larger socket buffers.
    net::privileges::keep_only(&[Capability::NetAdmin])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    super::serve(&runtime, async {
        let listen = config.listen;
        let agent = replication::agent::Agent::bind(config)
            .await
            .with_context(|| format!("cannot serve {listen} (key `mec.agent.listen`)"))?;
        Ok(tokio::spawn(agent.serve()))
    })
}
