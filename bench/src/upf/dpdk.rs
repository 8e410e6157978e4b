//! DPDK over memif: gNB and data network in this process, user plane and bare forwarder in others, with a memif
//! on each side.
//!
//! The processes live through the whole experiment. A process whose turn it is not is stopped by a signal.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, bail};
use net::link::Cidr;
use net::time::{self, Duration};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use packet::ethernet::Mac;
use packet::gtpu;
use pktio::FramePort;
use pktio::dpdk::{DpdkPort, Settings, eal};
use pktio::stack::ip::IpStack;
use pktio::stack::udp::UdpStack;
use pktio::stack::{Neighbours, resolver::Resolver};
use upf::pipeline::Ports;

use super::frames::{self, Forwarder, Generator};
use super::network::N6;
use super::source::Deck;
use super::subscriber::{GNBS, UPF};
use super::world::World;
use super::{Run, Serve};
use crate::machine;

/// Time limit for the other side to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a waiting thread checks whether to stop.
const GLANCE: Duration = Duration::from_millis(2);

/// Memory of each process in MB. Whenever a zero-copy memif ends, its buffers are lost (see
/// `pktio::dpdk::port`) with the memory in which they are: some ten megabytes each time.
const MEMORY_MB: u32 = 512;

/// The forwarder between the ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A worker of the user plane.
    Upf,
    /// The bare forwarder, which only swaps addresses.
    Bare,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Bare, Kind::Upf];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Upf => "upf",
            Kind::Bare => "bare",
        }
    }
}

/// A forwarder with its sessions, ready to start.
pub(super) enum Work {
    Upf(Box<World>),
    Bare,
}

impl Kind {
    /// Its effect on frames.
    pub(super) fn forwarder(self) -> Forwarder {
        match self {
            Kind::Upf => Forwarder::UserPlane { gnbs: GNBS },
            Kind::Bare => Forwarder::Bare,
        }
    }

    /// Makes the sessions.
    ///
    /// # Errors
    /// One is refused.
    pub(super) fn work(self, sessions: usize) -> anyhow::Result<Work> {
        Ok(match self {
            Kind::Upf => Work::Upf(Box::new(World::new(sessions)?)),
            Kind::Bare => Work::Bare,
        })
    }
}

/// Serves both ports until `stop` is set: with a worker of the user plane, or with the bare forwarder.
///
/// # Errors
/// Stacks cannot be made, or a port fails.
pub(super) fn serve_ports<F: FramePort + 'static>(
    work: Work,
    (n3, n6): (F, F),
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    match work {
        Work::Bare => frames::forward_all((n3, n6), stop),
        Work::Upf(world) => {
            let own = |address: Ipv4Addr| {
                let cidr = Cidr::new(IpAddr::V4(address), 24).context("address")?;
                anyhow::Ok(Neighbours::Own(Box::new(Resolver::new(&[cidr], &[]))))
            };
            let local = SocketAddr::new(UPF.into(), gtpu::PORT);
            let ports = Ports {
                n3: Box::new(UdpStack::new(n3, local, None, own(UPF)?)?),
                n6: vec![Box::new(IpStack::new(n6, None, own(N6)?)?)],
            };
            // The worker's thread stays on this thread's core.
            let _serving = world.serve(ports)?;
            while !stop() {
                time::sleep_thread(GLANCE);
            }
            Ok(())
        }
    }
}

/// Opens both ports of a side. The generator is the memif client, which need not copy, as it would otherwise be
/// too slow.
fn open(folder: &Path, kind: Kind, server: bool, core: usize) -> anyhow::Result<[DpdkPort; 2]> {
    start(core)?;
    let role = if server { "server" } else { "client,zero-copy=yes,rsize=9" };
    let port = |interface: usize| {
        let socket = folder.join(format!("{}.{interface}.sock", kind.name()));
        let number = 2 * kind as usize + interface;
        let device =
            format!("net_memif{number},role={role},id=0,socket-abstract=no,socket={}", socket.display());
        DpdkPort::open(&device, &Settings::default())?.pop().context("no queue")
    };
    Ok([port(0)?, port(1)?])
}

/// Starts DPDK in this process, if it has not been started.
pub(super) fn start(core: usize) -> anyhow::Result<()> {
    let options = eal::Options { core: Some(core), megabytes: MEMORY_MB, ..eal::Options::default() };
    Ok(eal::start_with(&options)?)
}

/// Reserves huge pages for all processes if allowed; released at the end.
pub(super) struct HugePages {
    before: Option<String>,
}

/// Number of 2 MB pages.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    pub(super) fn take() -> HugePages {
        let wanted = u64::from(3 * MEMORY_MB) + 64;
        let free = eal::free_huge_megabytes();
        let there = std::fs::read_to_string(HUGE_PAGES).ok();
        let before = there.filter(|text| {
            let more = wanted.saturating_sub(free).div_ceil(2);
            let total = text.trim().parse::<u64>().unwrap_or(0) + more;
            more > 0 && std::fs::write(HUGE_PAGES, total.to_string()).is_ok()
        });
        HugePages { before }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The file was writable before. Pages in use stay until their process ends.
            let _ = std::fs::write(HUGE_PAGES, before.trim());
        }
    }
}

/// The other process: prints its addresses and serves until its standard input ends.
///
/// # Errors
/// DPDK does not start, or sessions cannot be made.
pub(super) fn serve(part: &Serve) -> anyhow::Result<()> {
    machine::pin(&[part.core]);
    let kind = if part.bare { Kind::Bare } else { Kind::Upf };
    // Done first, so that everything is ready when the addresses are read.
    let work = kind.work(part.sessions)?;
    let [n3, n6] = open(&part.folder, kind, true, part.core)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&[n3.mac(), n6.mac()])?)?;
    out.flush()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The input has ended or failed: the parent is gone.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.store(true, Relaxed);
        });
        serve_ports(work, (n3, n6), &|| stop.load(Relaxed))
    })
}

/// The other process while it runs.
struct Other {
    child: Child,
    macs: [Mac; 2],
}

impl Other {
    fn start(folder: &Path, kind: Kind, core: usize, sessions: usize) -> anyhow::Result<Other> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["upf", "serve"]).arg("--folder").arg(folder);
        command.args(["--core", &core.to_string(), "--sessions", &sessions.to_string()]);
        if kind == Kind::Bare {
            command.arg("--bare");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        // DPDK itself may write to standard output too.
        let macs = child.stdout.take().and_then(|out| {
            BufReader::new(out)
                .lines()
                .map_while(Result::ok)
                .find_map(|line| serde_json::from_str(&line).ok())
        });
        let mut other = Other { child, macs: macs.unwrap_or_default() };
        if macs.is_none() {
            other.end();
            bail!("the process with the user plane did not start");
        }
        Ok(other)
    }

    /// Stops the process, or lets it continue.
    fn rest(&self, rest: bool) {
        let signal = if rest { Signal::SIGSTOP } else { Signal::SIGCONT };
        // A process that has ended needs no signal.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    fn end(&mut self) {
        self.rest(false);
        drop(self.child.stdin.take());
        let start = time::now_std();
        while start.elapsed() < Duration::from_secs(2) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            time::sleep_thread(Duration::from_millis(10));
        }
        // It hangs; its measurements are complete.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.end();
    }
}

/// Measures the user plane with each number of sessions, and the bare forwarder, in turn.
///
/// # Errors
/// DPDK does not start.
pub(super) fn run(run: &mut Run, here: usize, there: usize) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("godwit-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = measure(run, &folder, here, there);
    // Files of old sockets are harmless.
    let _ = std::fs::remove_dir_all(&folder);
    result
}

fn measure(run: &mut Run, folder: &Path, here: usize, there: usize) -> anyhow::Result<()> {
    let (bare, mut to_bare) = connect(folder, Kind::Bare, here, there, 1)?;
    run.note("dpdk_huge_pages", &format!("{:?}", eal::uses_huge_pages()));
    bare.rest(true);
    for sessions in run.plan.network_sessions.clone() {
        run.progress.say(&format!("DPDK memif: making {sessions} sessions"));
        let (upf, mut to_upf) = connect(folder, Kind::Upf, here, there, sessions)?;
        upf.rest(true);
        to_bare.play(Deck::new(&World::teids(sessions)?));
        for round in 0..run.plan.frame_rounds(sessions) {
            for (kind, process, generator) in
                [(Kind::Bare, &bare, &mut to_bare), (Kind::Upf, &upf, &mut to_upf)]
            {
                run.progress.say(&format!("DPDK memif: {sessions} sessions, {}, round {round}", kind.name()));
                process.rest(false);
                let measured = run.frames("dpdk_memif", kind.name(), sessions, generator);
                process.rest(true);
                measured?;
            }
        }
    }
    Ok(())
}

/// Starts a process and connects to it.
fn connect(
    folder: &Path,
    kind: Kind,
    here: usize,
    there: usize,
    sessions: usize,
) -> anyhow::Result<(Other, Generator<DpdkPort>)> {
    let other = Other::start(folder, kind, there, sessions)?;
    // After the server, so that it connects at once.
    let ports = open(folder, kind, false, here)?;
    let deck = Deck::new(&World::teids(sessions)?);
    let mut generator = Generator::new(ports, other.macs, kind.forwarder(), &deck);
    let start = time::now_std();
    while !generator.ports().iter().all(DpdkPort::is_up) {
        if start.elapsed() > PATIENCE {
            bail!("the memifs do not come up");
        }
        generator.idle()?;
    }
    Ok((other, generator))
}
