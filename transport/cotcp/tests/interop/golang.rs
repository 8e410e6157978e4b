//! The independent client and server of version 1 (CO-5), `interop/go`: built here, tested alone and against ours.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use cotcp::driver::client::Client;
use cotcp::{CallError, Config};

use crate::ours::{Server as Ours, runtime};
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

/// A server of version 1 does one of these with a HELLO, which it cannot know: whatever it is, small calls work, and the
/// others are refused with their reason.
#[test]
fn our_client_with_the_go_server() {
    let Some(program) = program() else { return };
    let runtime = runtime();
    for (unknown, negotiate) in
        [("echo", false), ("echo", true), ("error", true), ("silent", true), ("close", true)]
    {
        let server = Server::start(program, &["-jitter", "3ms", "-unknown", unknown]);
        let config = Config { negotiate, hello_timeout: Duration::from_millis(300), ..Config::default() };
        runtime.block_on(async {
            let client = Client::connect(server.address, config).await.unwrap();
            if unknown == "close" {
                // What left right behind the HELLO may be lost with that connection; it fails, and says so.
                let early = client.call(Bytes::from_static(b"early")).await;
                assert!(matches!(early, Ok(_) | Err(CallError::Connection { .. })), "{early:?}");
            }
            calls(&client, 50, 40).await;
            // Large messages need version 2. Which this is not, at the latest after the time that HELLO has.
            let large = client.call(vec![1; 65_536]).await;
            assert_eq!(large, Err(CallError::NeedsVersion2), "{unknown}");
            let one_way = client.request(Bytes::from_static(b"?")).send_one_way().await;
            assert_eq!(one_way, Err(CallError::NeedsVersion2), "{unknown}");
            calls(&client, 5, 5).await;
            client.close().await;
        });
    }
}

/// Answers that come last first, and far apart in time.
#[test]
fn our_client_gets_answers_in_any_order() {
    let Some(program) = program() else { return };
    let server = Server::start(program, &["-hold", "20"]);
    runtime().block_on(async {
        let client =
            Client::connect(server.address, Config { negotiate: false, ..Config::default() }).await.unwrap();
        calls(&client, 20, 10).await;
    });
}

/// Each task calls one after the other and expects its own body back; all tasks call at once.
async fn calls(client: &Client, tasks: usize, each: usize) {
    let work = (0..tasks).map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            for number in 0..each {
                // All lengths up to the longest, the first octet never 0.
                let length = (task * each + number) * 7919 % 65_536;
                let body: Bytes = (0..length).map(|at| (task + number + at) as u8 | 1).collect();
                let answer = client.call(body.clone()).await;
                assert!(
                    answer.as_ref() == Ok(&body),
                    "task {task}, call {number}: {:?}",
                    answer.map(|a| a.len())
                );
            }
        })
    });
    for task in work.collect::<Vec<_>>() {
        tokio::time::timeout(Duration::from_secs(60), task).await.unwrap().unwrap();
    }
}

#[test]
fn our_server_with_the_go_client() {
    let Some(program) = program() else { return };
    let server = Ours::start(Config::default());
    // IDs of all 32 bits, over the largest, in several connections; more in flight than our server works on at once.
    for first in ["0", "2147483000", "4294967000"] {
        let report = call(
            program,
            server.address,
            &[
                "-connections",
                "3",
                "-workers",
                "2000",
                "-requests",
                "3",
                "-largest",
                "9000",
                "-first-id",
                first,
            ],
        );
        let [answered, wrong, failed, given_up] =
            ["answered", "wrong", "failed", "given_up"].map(|name| report.number(name));
        assert_eq!((answered, wrong, failed, given_up), (6000, 0, 0, 0), "{report:?}");
    }
    let report = call(program, server.address, &["-workers", "10", "-requests", "10", "-largest", "65535"]);
    assert_eq!((report.number("answered"), report.number("wrong")), (100, 0), "{report:?}");
    // The same ID twice, an end in the middle of a message: closed, and others are served.
    for misdeed in ["duplicate", "cut", "half-close"] {
        let report = call(program, server.address, &["-workers", "0", "-misdeed", misdeed]);
        assert_eq!(report.text("misdeed"), "answered 0, closed", "{misdeed}: {report:?}");
    }
    assert_eq!(call(program, server.address, &[]).number("answered"), 1);
}
