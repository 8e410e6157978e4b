//! A virtual machine of QEMU, controlled by its monitor (QMP: JSON objects, one a line, over a Unix socket).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use net::netns::NetNs;
use net::process::{Child, Command};
use net::time::{self, Duration};
use net::uds;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::guest::{ADDRESS, Guest};

/// How long QEMU may take for an order.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running machine; it ends with the value.
pub(super) struct Machine {
    monitor: BufReader<uds::UnixStream>,
    child: Child,
    console: PathBuf,
}

impl Machine {
    /// Starts one whose gateway is behind a port of the namespace's loopback: from its beginning, or from a dump of another one.
    pub(super) async fn start(
        guest: &Guest,
        namespace: &NetNs,
        memory_mb: u32,
        port: u16,
        folder: &Path,
        dump: Option<&Path>,
    ) -> anyhow::Result<Machine> {
        let socket = folder.join(format!("monitor-{port}"));
        let console = folder.join(format!("console-{port}"));
        let _ = std::fs::remove_file(&socket);
        let log = std::fs::File::create(folder.join(format!("qemu-{port}")))?;
        let forward = format!("user,id=lan,hostfwd=udp:127.0.0.1:{port}-{ADDRESS}:2123");
        let mut command = Command::new("qemu-system-x86_64")
            .args([
                "-nodefaults",
                "-display",
                "none",
                "-no-reboot",
                "-accel",
                "tcg",
                "-machine",
                "q35",
                "-cpu",
                "max",
            ])
            .args(["-m", &memory_mb.to_string()])
            .arg("-kernel")
            .arg(&guest.kernel)
            .arg("-initrd")
            .arg(&guest.files)
            .args(["-append", "console=ttyS0 quiet panic=-1"])
            .args(["-netdev", &forward, "-device", "virtio-net-pci,netdev=lan,romfile="])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-qmp", &format!("unix:{},server,nowait", socket.display())]);
        if let Some(dump) = dump {
            command = command.args(["-incoming", &format!("exec:cat <'{}'", dump.display())]);
        }
        let mut child = command.stdout(log.try_clone()?).stderr(log).namespace(namespace).spawn()?;
        let start = time::now_std();
        let stream = loop {
            match uds::connect(&socket).await {
                Ok(stream) => break stream,
                Err(_) if time::now_std() - start < PATIENCE && child.try_wait().is_none() => {
                    time::sleep(Duration::from_millis(2)).await;
                }
                Err(error) => {
                    let said = std::fs::read_to_string(folder.join(format!("qemu-{port}")));
                    bail!("QEMU does not start: {error}: {}", said.unwrap_or_default());
                }
            }
        };
        let mut own = Machine { monitor: BufReader::new(stream), child, console };
        own.order("qmp_capabilities", json!({})).await?;
        Ok(own)
    }

    /// Stops the machine and writes its memory and its devices into a file.
    pub(super) async fn dump(&mut self, file: &Path) -> anyhow::Result<()> {
        // Only the disk is to limit it.
        self.order("migrate-set-parameters", json!({"max-bandwidth": 1u64 << 40})).await?;
        self.order("stop", json!({})).await?;
        self.order("migrate", json!({"uri": format!("exec:cat >'{}'", file.display())})).await?;
        let start = time::now_std();
        loop {
            let state = self.order("query-migrate", json!({})).await?;
            match state["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => bail!("{state}"),
                _ => ensure!(time::now_std() - start < PATIENCE, "the dump does not end: {state}"),
            }
            time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Lets the machine go on: from a dump, as soon as it is read, or after it was dumped.
    pub(super) async fn go_on(&mut self) -> anyhow::Result<()> {
        let start = time::now_std();
        loop {
            let state = self.order("query-status", json!({})).await?;
            match state["status"].as_str() {
                Some("running") => return Ok(()),
                Some("inmigrate" | "finish-migrate") => time::sleep(Duration::from_millis(2)).await,
                _ => drop(self.order("cont", json!({})).await?),
            }
            ensure!(time::now_std() - start < PATIENCE, "the machine does not go on: {state}");
        }
    }

    /// What the guest has written last.
    pub(super) fn console(&self) -> String {
        let text = std::fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        // It may close the connection before it answers.
        let _ = self.order("quit", json!({})).await;
        self.child.stop(Duration::from_secs(5)).await?;
        Ok(())
    }

    async fn order(&mut self, what: &str, arguments: Value) -> anyhow::Result<Value> {
        let exchange = async {
            let order = json!({"execute": what, "arguments": arguments}).to_string() + "\n";
            self.monitor.get_mut().write_all(order.as_bytes()).await?;
            loop {
                let mut line = String::new();
                ensure!(self.monitor.read_line(&mut line).await? > 0, "QEMU has ended");
                let mut answer: Value = serde_json::from_str(&line)?;
                // Others are its greeting, and events.
                if answer.get("return").is_some() {
                    return Ok(answer["return"].take());
                }
                ensure!(answer.get("error").is_none(), "{what}: {answer}");
            }
        };
        time::timeout(PATIENCE, exchange).await.with_context(|| format!("QEMU does not answer: {what}"))?
    }
}
