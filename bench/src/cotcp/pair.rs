//! Starts server and client as processes, which are this program again, each on its own core.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use net::netns::NetNs;
use net::process::{Child, Command};
use net::time::{self, Duration};

use super::load::Report;
use super::params::{Load, Serve};
use super::serve::Ready;

/// Time limit for the start of a process, and for its end after the measurement.
const PATIENCE: Duration = Duration::from_secs(20);

/// The cores of the two processes.
pub(super) struct Places {
    program: PathBuf,
    server_core: Vec<usize>,
    client_core: Vec<usize>,
}

impl Places {
    /// One core for each if there are two; otherwise the system places both.
    pub(super) fn new() -> Places {
        let (server_core, client_core) = match crate::machine::cores()[..] {
            [first, second, ..] => (vec![first], vec![second]),
            _ => (Vec::new(), Vec::new()),
        };
        Places { program: "/proc/self/exe".into(), server_core, client_core }
    }

    /// The cores of server and client.
    pub(super) fn cores(&self) -> [&[usize]; 2] {
        [&self.server_core, &self.client_core]
    }

    /// Starts a server, lets a client load it, and stops both.
    pub(super) async fn measure(
        &self,
        mut serve: Serve,
        mut load: Load,
        namespaces: Option<[&NetNs; 2]>,
    ) -> anyhow::Result<Report> {
        serve.pin.clone_from(&self.server_core);
        load.pin.clone_from(&self.client_core);
        let [server, client] = match namespaces {
            Some([server, client]) => [Some(server), Some(client)],
            None => [None, None],
        };
        let mut server = self.command("serve", serve.arguments(), server).pipe_stdout().spawn()?;
        let ready =
            time::timeout(PATIENCE, ready(&mut server)).await.context("the server does not start")??;
        (load.server, load.server_pid) = (ready.address, Some(ready.pid));
        let limit = PATIENCE + Duration::from_secs_f64(load.warm_up + load.seconds);
        let output = self.command("load", load.arguments(), client).output(limit).await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the client failed: {}", errors.trim());
        serde_json::from_slice(&output.stdout).context("what the client printed")
    }

    fn command(&self, part: &str, arguments: Vec<String>, namespace: Option<&NetNs>) -> Command {
        let command = Command::new(&self.program).args(["cotcp", part]).args(arguments);
        match namespace {
            Some(namespace) => command.namespace(namespace),
            None => command,
        }
    }
}

async fn ready(server: &mut Child) -> anyhow::Result<Ready> {
    let mut lines = server.take_stdout().context("the server's output is not read")?;
    let line = lines.next_line().await?.context("the server ended at once")?;
    serde_json::from_str(&line).context("what the server printed")
}
