//! The independent client and server of version 1 (CO-5), `interop/go`: built here, tested alone and against ours.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::process::{self, Running};

/// Building takes a while on a machine that has not compiled Go's library yet.
const BUILD: Duration = Duration::from_secs(300);

fn go() -> Command {
    let mut command = Command::new("go");
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/go"));
    // This toolchain, this folder, no C compiler, no version control: nothing is fetched.
    for (name, value) in
        [("GOTOOLCHAIN", "local"), ("GOWORK", "off"), ("CGO_ENABLED", "0"), ("GOFLAGS", "-buildvcs=false")]
    {
        command.env(name, value);
    }
    command
}

/// The program, built once for all tests, in the folder that cargo has for such files; `None` without Go, outside of CI.
pub fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = PROGRAM.get_or_init(|| {
        if !process::present("go") {
            return None;
        }
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cotcpv1");
        process::output(go().args(["build", "-o"]).arg(&file).arg("."), BUILD);
        Some(file)
    });
    built.as_deref()
}

/// A running server in Go, ended with this value.
pub struct Server {
    _process: Running,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts one and waits until it listens.
    pub fn start(program: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.arg("serve").args(options).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = Running(command.spawn().unwrap());
        let mut line = String::new();
        // The line comes at once, or the program ends and the pipe with it.
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}"));
        Self { address: address.parse().unwrap(), _process: process }
    }
}

/// Runs the client in Go against `server`; its report as `name: value`, in the order of its fields.
pub fn call(program: &Path, server: SocketAddr, options: &[&str]) -> Report {
    let mut command = Command::new(program);
    command.arg("call").args(["-connect", &server.to_string()]).args(options);
    Report(process::output(&mut command, Duration::from_secs(60)))
}

/// What the client printed: JSON with numbers and short texts.
#[derive(Debug)]
pub struct Report(String);

impl Report {
    /// A number of it.
    pub fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap_or_else(|_| panic!("{name} in {}", self.0))
    }

    /// A text of it.
    pub fn text(&self, name: &str) -> &str {
        self.field(name)
    }

    fn field(&self, name: &str) -> &str {
        let name = format!("\"{name}\":");
        let rest = self.0.split(&name).nth(1).unwrap_or_else(|| panic!("no {name} in {}", self.0));
        match rest.strip_prefix('"') {
            // No text of the program has quotes in it.
            Some(text) => text.split('"').next().unwrap(),
            None => rest.split([',', '}']).next().unwrap(),
        }
    }
}

#[test]
fn the_go_side_holds_alone() {
    let Some(program) = program() else { return };
    process::output(go().args(["vet", "."]), BUILD);
    process::output(go().args(["test", "."]), BUILD);
    // And as programs, the way the other tests use them.
    let server = Server::start(program, &["-jitter", "3ms"]);
    let report = call(program, server.address, &["-connections", "2", "-workers", "20", "-requests", "10"]);
    assert_eq!((report.number("answered"), report.number("wrong"), report.number("failed")), (200, 0, 0));
    assert!(report.number("overtaken") > 0, "{report:?}");
    let report = call(program, server.address, &["-workers", "0", "-misdeed", "half-close"]);
    assert_eq!(report.text("misdeed"), "answered 3, closed");
}
