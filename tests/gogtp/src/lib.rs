//! Neighbours of the gateway of 4G that are not ours: an MME, an S-GW, a P-GW, and both gateways in one with a user plane, made of
//! [go-gtp](https://github.com/wmnsk/go-gtp). The program is in `peer/`; its `main.go` says what each part does, `lines.go` the commands.
//!
//! [`program`] builds it, which needs Go and, the first time, the network; [`start`] starts one part, as a [`Peer`].
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub use lab::peer::Peer;
use net::netns::NetNs;

fn go() -> Command {
    let mut command = Command::new("go");
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/peer"));
    // This toolchain, this folder, no C compiler, no version control.
    for (name, value) in
        [("GOTOOLCHAIN", "local"), ("GOWORK", "off"), ("CGO_ENABLED", "0"), ("GOFLAGS", "-buildvcs=false")]
    {
        command.env(name, value);
    }
    command
}

/// Why there is no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Go is missing or too old, or its modules cannot be downloaded.
    #[error("{0}")]
    Tools(String),
    /// It does not compile.
    #[error("go build: {0}")]
    Program(String),
}

/// The oldest Go 1 that builds it.
const OLDEST: u32 = 22;

/// Builds the program beside this one.
fn build() -> Result<PathBuf, Missing> {
    let run = |arguments: &[&str]| {
        let output = go().args(arguments).output().map_err(|error| format!("Go is missing: {error}"))?;
        let of = |octets: &[u8]| String::from_utf8_lossy(octets).trim().to_owned();
        if output.status.success() { Ok(of(&output.stdout)) } else { Err(of(&output.stderr)) }
    };
    let version = run(&["env", "GOVERSION"]).map_err(Missing::Tools)?;
    let minor = version.strip_prefix("go1.").and_then(|text| text.split('.').next()?.parse().ok());
    if minor.is_none_or(|minor: u32| minor < OLDEST) {
        return Err(Missing::Tools(format!("Go 1.{OLDEST} or newer is missing: this is {version}")));
    }
    run(&["mod", "download"]).map_err(|error| Missing::Tools(format!("go mod download: {error}")))?;
    let own = std::env::current_exe().map_err(|error| Missing::Program(error.to_string()))?;
    let file = own.with_file_name("gogtp-peer");
    // Another test may run the program meanwhile: it keeps the file that it has started.
    let new = own.with_file_name(format!("gogtp-peer.{}", std::process::id()));
    run(&["build", "-o", &new.to_string_lossy(), "."]).map_err(Missing::Program)?;
    std::fs::rename(&new, &file).map_err(|error| Missing::Program(error.to_string()))?;
    Ok(file)
}

/// The program, built once.
///
/// # Errors
/// Why it cannot be built here: `scripts/setup.sh` installs no Go of this version.
pub fn program() -> Result<&'static Path, &'static Missing> {
    static PROGRAM: OnceLock<Result<PathBuf, Missing>> = OnceLock::new();
    PROGRAM.get_or_init(build).as_deref()
}

/// Whether the program is there; otherwise a test prints why it is left out.
///
/// # Panics
/// It does not compile.
#[allow(clippy::print_stderr, clippy::panic, reason = "for tests")]
pub fn is_possible() -> bool {
    match program() {
        Ok(_) => true,
        Err(why @ Missing::Tools(_)) => {
            eprintln!("skipped: {why}");
            false
        }
        Err(why @ Missing::Program(_)) => panic!("{why}"),
    }
}

/// Starts a part (`mme`, `sgw`, `spgw`, `pgw`) with its arguments in a namespace, that of this thread without one, and waits until it is ready.
///
/// # Errors
/// The program cannot be built, or does not start.
pub async fn start(namespace: Option<&NetNs>, arguments: &[&str]) -> anyhow::Result<Peer> {
    Peer::start(program()?, namespace, arguments).await
}
