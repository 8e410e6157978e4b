//! Repository checks, run as `cargo xtask <command>`.
//!
//! `tidy` has the rules that the compiler and clippy cannot check: which crate may depend on which,
//! where sockets and clocks may be used, how long files and functions may be, which licences may be
//! linked. Every message says what is wrong, why the rule exists and what to do instead. Read
//! `tidy/mod.rs` first.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

mod tidy;

const HELP: &str = "\
cargo xtask <command>

  tidy      layering, banned calls, lengths, docs, licences of dependencies (part of `make test`)
  help      this text
";

fn main() -> ExitCode {
    let mut out = std::io::stderr().lock();
    let command = std::env::args().nth(1).unwrap_or_else(|| "help".to_owned());
    // The manifest directory is <root>/xtask, in whichever directory cargo was started.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives one level below the root");
    let result = match command.as_str() {
        "tidy" => tidy::run(root),
        "help" | "--help" | "-h" => {
            // A closed standard error cannot be reported.
            let _ = write!(out, "{HELP}");
            return ExitCode::SUCCESS;
        }
        other => {
            let _ = write!(out, "xtask: no command `{other}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(findings) if findings.is_empty() => {
            let _ = writeln!(out, "tidy: ok");
            ExitCode::SUCCESS
        }
        Ok(findings) => {
            for finding in &findings {
                let _ = writeln!(out, "{finding}\n");
            }
            let _ = writeln!(out, "tidy: {} finding(s). HACKING.md explains the rules.", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            let _ = writeln!(out, "xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}
