//! A program of another make in a namespace: a gateway, an MME. It takes commands and tells events as JSON objects, one a line, and ends with its
//! standard input. An answer has the command's `id` as `answer`.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::time::{self, Duration};
use serde_json::Value;
use tokio::sync::mpsc;

/// How long an answer may take: longer than a program repeats a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The running program; killed when dropped.
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
    /// Starts it in a namespace, that of this thread without one, and waits until it is ready.
    ///
    /// # Errors
    /// It does not start, or is not ready in time.
    pub async fn start(
        program: &Path,
        namespace: Option<&NetNs>,
        arguments: &[&str],
    ) -> anyhow::Result<Peer> {
        let spawn =
            || Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        // A child is in the namespace of the thread that starts it.
        let mut child = match namespace {
            Some(namespace) => namespace.enter(spawn)?,
            None => spawn(),
        }
        .with_context(|| format!("start {}", program.display()))?;
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
        own.event("ready").await.with_context(|| format!("{} {}", program.display(), arguments.join(" ")))?;
        Ok(own)
    }

    /// Starts S-GW and P-GW in one: S11 and S1-U at this address, a TUN device to the packet data network, and addresses of UEs out of
    /// this pool.
    ///
    /// # Errors
    /// As [`Peer::start`].
    pub async fn gateway(
        program: &Path,
        namespace: &NetNs,
        address: Ipv4Addr,
        pool: &str,
    ) -> anyhow::Result<Peer> {
        let (gtpc, gtpu) = (format!("{address}:2123"), format!("{address}:2152"));
        let arguments = ["spgw", "-gtpc", &gtpc, "-gtpu", &gtpu, "-pool", pool, "-tun", "gw0"];
        Peer::start(program, Some(namespace), &arguments).await
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
        writeln!(self.commands, "{command}").context("the program has ended")?;
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
                Ok(None) => bail!("the program has ended"),
                Err(_) => return Ok(None),
            }
        }
    }
}
