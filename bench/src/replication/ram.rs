//! `ram`: the first anchor runs in a virtual machine. Its memory is dumped into a file, the file goes to another site by TCP, and another machine
//! goes on from there: the anchor knows nothing of it, and all its UEs move.
//!
//! There is no hardware help: QEMU translates instructions (TCG), as it must inside of other virtual machines, where the paper's ran as well. The guest has Debian's kernel and nothing but
//! the anchor ([`guest`]), which is `godwit run` with gateway and UPF in one process. MME and prober reach it by ports that QEMU's user network forwards.
//!
//! | part | from | until |
//! |---|---|---|
//! | dump | the machine is told to stop | QEMU has written the file |
//! | transfer | the first octet | the other end has written the last one |
//! | restore | the other QEMU is started with the file | its anchor answers |

mod guest;
mod qemu;

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use net::netns::NetNs;
use net::tcp;
use net::time::{self, Duration};
use serde_json::Value;

use self::guest::Guest;
use self::qemu::Machine;
use super::Moved;
use super::prober::Prober;
use crate::epc::mme::{Mme, Ue};

/// Ports of the host that lead to the gateways of the first and of the restored machine.
const PORTS: [u16; 2] = [21_230, 21_231];
/// How guests know the host.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// How long a machine may take to serve.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) struct Ram {
    guest: Guest,
    memory_mb: u32,
    /// MME, prober and machines are in it: its ports are nobody else's.
    namespace: NetNs,
    machine: Machine,
    mme: Mme,
    ues: Vec<Ue>,
    folder: tempfile::TempDir,
}

impl Ram {
    /// Boots the first machine.
    pub(super) async fn start(memory_mb: u32) -> anyhow::Result<Ram> {
        let guest = Guest::make().await?;
        let namespace = NetNs::new()?;
        namespace.enter(net::netns::loopback_up)??;
        let folder = tempfile::Builder::new().prefix("godwit-ram").tempdir()?;
        let machine = Machine::start(&guest, &namespace, memory_mb, PORTS[0], folder.path(), None).await?;
        let mme = namespace.enter(|| Mme::at(Ipv4Addr::LOCALHOST.into(), HOST.into(), at(PORTS[0])))??;
        let own = Ram { guest, memory_mb, namespace, machine, mme, ues: Vec::new(), folder };
        own.wait_for(PORTS[0]).await.with_context(|| format!("the guest says: {}", own.machine.console()))?;
        Ok(own)
    }

    pub(super) fn configuration(&self) -> Value {
        self.guest.configuration()
    }

    pub(super) fn register(&mut self, ues: usize) -> anyhow::Result<()> {
        let missing = ues.saturating_sub(self.ues.len());
        self.ues.extend(self.mme.attach_all(missing)?);
        Ok(())
    }

    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        self.mme.detach_all(&self.ues)?;
        self.ues.clear();
        Ok(())
    }

    /// All UEs move, however few are wanted. Afterwards the first machine goes on, and the other one is gone.
    pub(super) async fn replicate(&mut self, moved: usize) -> anyhow::Result<Moved> {
        let (dump, arrived) = (self.folder.path().join("dump"), self.folder.path().join("arrived"));
        let prober = Prober::start(&self.namespace, PORTS.map(at).to_vec())?;
        let ms = |since: std::time::Instant| (time::now_std() - since).as_secs_f64() * 1e3;
        let start = time::now_std();
        self.machine.dump(&dump).await?;
        let dump_ms = ms(start);

        let start = time::now_std();
        let wire_octets = transfer(&dump, &arrived).await?;
        let transfer_ms = ms(start);

        let start = time::now_std();
        let (guest, namespace) = (&self.guest, &self.namespace);
        let other =
            Machine::start(guest, namespace, self.memory_mb, PORTS[1], self.folder.path(), Some(&arrived));
        let mut other = other.await?;
        other.go_on().await?;
        self.wait_for(PORTS[1]).await?;
        let restore_ms = ms(start);
        let downtime_ms = prober.stop()?;

        self.mme.turn_to(at(PORTS[1]));
        let known = self.mme.modify_all(&self.ues)?;
        self.mme.turn_to(at(PORTS[0]));
        other.stop().await?;
        self.machine.go_on().await?;
        Ok(Moved {
            stored_octets: 0,
            wire_octets,
            parts: vec![("dump", dump_ms), ("transfer", transfer_ms), ("restore", restore_ms)],
            downtime_ms,
            known,
            served: known.min(moved),
            messages: 0,
        })
    }

    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.machine.stop().await
    }

    /// Waits until the gateway behind a port answers.
    async fn wait_for(&self, port: u16) -> anyhow::Result<()> {
        let start = time::now_std();
        let namespace = self.namespace.clone();
        let answers = move || super::prober::answers(&namespace, at(port));
        while !tokio::task::spawn_blocking(answers.clone()).await?? {
            ensure!(time::now_std() - start < PATIENCE, "the anchor does not answer");
        }
        Ok(())
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Sends a file by TCP to the other site, which here is a thread with another file. Returns its octets.
async fn transfer(from: &Path, to: &Path) -> anyhow::Result<u64> {
    let listener = tcp::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    let sender = tcp::connect(listener.local_addr()?, PATIENCE).await?;
    let (receiver, _) = listener.accept().await?;
    let blocking = |stream: tcp::TcpStream| {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        anyhow::Ok(stream)
    };
    let (mut sender, mut receiver) = (blocking(sender)?, blocking(receiver)?);
    let (from, to): (PathBuf, PathBuf) = (from.to_owned(), to.to_owned());
    let sent = tokio::task::spawn_blocking(move || {
        // `sender` ends with this thread, and so does the stream.
        std::io::copy(&mut std::fs::File::open(from)?, &mut sender)
    });
    let arrived = tokio::task::spawn_blocking(move || {
        let mut file = std::fs::File::create(to)?;
        let octets = std::io::copy(&mut receiver, &mut file)?;
        file.flush()?;
        std::io::Result::Ok(octets)
    });
    let (sent, arrived) = (sent.await??, arrived.await??);
    ensure!(sent == arrived, "{sent} octets were sent, {arrived} have arrived");
    Ok(arrived)
}
