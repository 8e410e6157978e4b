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

/// Builds the program beside this one.
fn build() -> Result<PathBuf, String> {
    let run = |arguments: &[&str]| {
        let output = go().args(arguments).output().map_err(|error| format!("Go is missing: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("go {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
    };
    run(&["mod", "download"])?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let file = own.with_file_name("gogtp-peer");
    // Another test may run the program meanwhile: it keeps the file that it has started.
    let new = own.with_file_name(format!("gogtp-peer.{}", std::process::id()));
    run(&["build", "-o", &new.to_string_lossy(), "."])?;
    std::fs::rename(&new, &file).map_err(|error| error.to_string())?;
    Ok(file)
}

/// The program, built once.
///
/// # Errors
/// Why it cannot be built here: `scripts/setup.sh` installs no Go of this version.
pub fn program() -> Result<&'static Path, &'static str> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(build).as_deref().map_err(String::as_str)
}

/// Whether the program is there; otherwise a test prints why it is left out.
///
/// # Panics
/// It is not there, and `CI` is set: nothing is left out silently then.
#[allow(clippy::print_stderr, reason = "for tests")]
pub fn is_possible() -> bool {
    match program() {
        Ok(_) => true,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none(), "{why}; install Go 1.22 or newer");
            eprintln!("skipped: {why}");
            false
        }
    }
}

/// Starts a part (`mme`, `sgw`, `spgw`, `pgw`) with its arguments in a namespace, that of this thread without one, and waits until it is ready.
///
/// # Errors
/// The program cannot be built, or does not start.
pub async fn start(namespace: Option<&NetNs>, arguments: &[&str]) -> anyhow::Result<Peer> {
    Peer::start(program().map_err(anyhow::Error::msg)?, namespace, arguments).await
}
