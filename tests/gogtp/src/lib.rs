//! Neighbours of the gateway of 4G that are not ours: an MME, an S-GW, a P-GW, and both gateways in one with a user plane, made of
//! [go-gtp](https://github.com/wmnsk/go-gtp). The program is in `peer/`; its `main.go` says what each part does, `lines.go` the commands.
//!
//! [`program`] builds it, which needs Go and, the first time, the network; [`Peer`] is one running part. It takes commands and tells
//! events as JSON objects, one a line, and ends with the value.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::time::{self, Duration};
use serde_json::Value;
use tokio::sync::mpsc;

/// How long an answer may take: longer than the program repeats a request.
const PATIENCE: Duration = Duration::from_secs(10);

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
#[allow(clippy::print_stderr, reason = "for tests")]
pub fn is_possible() -> bool {
    match program() {
        Ok(_) => true,
        Err(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

/// A running part of the program.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    commands: ChildStdin,
    lines: mpsc::UnboundedReceiver<Value>,
    /// Lines that nobody has waited for yet.
    passed: VecDeque<Value>,
    asked: u64,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    /// Starts a part (`mme`, `sgw`, `spgw`, `pgw`) with its arguments in a namespace, that of this thread without one, and waits
    /// until it is ready.
    ///
    /// # Errors
    /// The program cannot be built, or does not start.
    pub async fn start(namespace: Option<&NetNs>, arguments: &[&str]) -> anyhow::Result<Peer> {
        let program = program().map_err(anyhow::Error::msg)?;
        let spawn =
            || Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        // A child is in the namespace of the thread that starts it.
        let mut child = match namespace {
            Some(namespace) => namespace.enter(spawn)?,
            None => spawn(),
        }
        .context("start the program of go-gtp")?;
        let commands = child.stdin.take().context("its standard input")?;
        let output = child.stdout.take().context("its standard output")?;
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut own = Peer { child, commands, lines, passed: VecDeque::new(), asked: 0 };
        own.event("ready").await?;
        Ok(own)
    }

    /// The process identifier.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command; [`Peer::answer`] has its answer. Commands run at the same time, those for one UE one after the other.
    ///
    /// # Errors
    /// The program has ended.
    pub fn begin(&mut self, mut command: Value) -> anyhow::Result<u64> {
        self.asked += 1;
        command["id"] = self.asked.into();
        writeln!(self.commands, "{command}").context("the program of go-gtp has ended")?;
        Ok(self.asked)
    }

    /// The answer to a command.
    ///
    /// # Errors
    /// It could not be carried out: the reason; or no answer comes.
    pub async fn answer(&mut self, command: u64) -> anyhow::Result<Value> {
        let is_answer = |line: &Value| line["answer"] == command;
        let answer = self.find(PATIENCE, is_answer).await?.context("no answer")?;
        match answer["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(answer),
        }
    }

    /// A command and its answer.
    ///
    /// # Errors
    /// As [`Peer::answer`].
    pub async fn ask(&mut self, command: Value) -> anyhow::Result<Value> {
        let command = self.begin(command)?;
        self.answer(command).await
    }

    /// The next event with this name.
    ///
    /// # Errors
    /// None comes.
    pub async fn event(&mut self, name: &str) -> anyhow::Result<Value> {
        self.event_within(name, PATIENCE).await?.with_context(|| format!("no event {name}"))
    }

    /// As [`Peer::event`]; `None` if none comes in this time.
    ///
    /// # Errors
    /// The program has ended.
    pub async fn event_within(&mut self, name: &str, limit: Duration) -> anyhow::Result<Option<Value>> {
        self.find(limit, |line| line["event"] == name).await
    }

    /// The next line that is wanted; others wait.
    async fn find(
        &mut self,
        limit: Duration,
        is_wanted: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Option<Value>> {
        if let Some(at) = self.passed.iter().position(&is_wanted) {
            return Ok(self.passed.remove(at));
        }
        let deadline = time::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(time::now());
            match time::timeout(left, self.lines.recv()).await {
                Ok(Some(line)) if is_wanted(&line) => return Ok(Some(line)),
                Ok(Some(line)) => self.passed.push_back(line),
                Ok(None) => bail!("the program of go-gtp has ended"),
                Err(_) => return Ok(None),
            }
        }
    }
}
