//! DPDK over memif: gNB and data network in this process, user plane and bare forwarder in others, with a memif
//! on each side. First they are the memifs' servers, then their clients.
//!
//! The processes live through the whole experiment. A process whose turn it is not is stopped by a signal.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
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
use super::meter::{Meter, Metered};
use super::network::N6;
use super::source::Deck;
use super::subscriber::UPF;
use super::turns::{Contender, Control, Extent, Reading};
use super::users::Traffic;
use super::world::World;
use super::{DEFAULT_SESSIONS, Run, Serve};
use crate::machine;

/// How long a worker polls before it sleeps, as for a worker with its own core.
const POLL: Duration = Duration::from_secs(1);
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
    pub(super) fn forwarder(self, traffic: Traffic) -> Forwarder {
        match self {
            Kind::Upf => Forwarder::UserPlane { gnbs: traffic.gnbs() },
            Kind::Bare => Forwarder::Bare,
        }
    }

    /// Makes the sessions.
    ///
    /// # Errors
    /// One is refused.
    pub(super) fn work(self, sessions: usize, traffic: Traffic) -> anyhow::Result<Work> {
        Ok(match self {
            Kind::Upf => Work::Upf(Box::new(World::with(sessions, traffic)?)),
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
            let ports: Ports = vec![
                Box::new(UdpStack::new(n3, local, None, own(UPF)?)?),
                Box::new(IpStack::new(n6, None, own(N6)?)?),
            ];
            // The worker's thread stays on this thread's core.
            let _serving = world.serve(ports, POLL)?;
            while !stop() {
                time::sleep_thread(GLANCE);
            }
            Ok(())
        }
    }
}

/// The role of the side under test on its memifs; the generator has the other one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// It copies each packet out of the client's memory and into it.
    Server,
    /// It sends and receives in its own memory, without copying.
    Client,
}

impl Role {
    fn other(self) -> Role {
        match self {
            Role::Server => Role::Client,
            Role::Client => Role::Server,
        }
    }

    /// Name in series.
    fn backend(self) -> &'static str {
        match self {
            Role::Server => "dpdk_memif",
            Role::Client => "dpdk_memif_client",
        }
    }

    /// Arguments of a device.
    fn arguments(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Client => "client,zero-copy=yes,rsize=9",
        }
    }
}

/// A forwarder, and its role.
type Contestant = (Kind, Role);

/// Opens both ports of a side, which has the role `own`.
fn open(folder: &Path, (kind, role): Contestant, own: Role, core: usize) -> anyhow::Result<[DpdkPort; 2]> {
    start(core)?;
    let port = |interface: usize| {
        let socket = folder.join(format!("{}.{}.{interface}.sock", kind.name(), role.backend()));
        let number = 4 * role as usize + 2 * kind as usize + interface;
        let role = own.arguments();
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

/// The other process: prints its addresses, and its meter's reading for each line of its standard input; serves until that ends.
///
/// # Errors
/// DPDK does not start, or sessions cannot be made.
pub(super) fn serve(part: &Serve) -> anyhow::Result<()> {
    machine::pin(&[part.core]);
    let kind = if part.bare { Kind::Bare } else { Kind::Upf };
    // Done first, so that everything is ready when the addresses are read.
    let work = kind.work(part.sessions, Traffic::Plain)?;
    let role = if part.client { Role::Client } else { Role::Server };
    let [n3, n6] = open(&part.folder, (kind, role), role, part.core)?;
    write_line(&[n3.mac(), n6.mac()])?;
    let (stop, meter) = (AtomicBool::new(false), Meter::new());
    let ports = (Metered::new(n3, &meter), Metered::new(n6, &meter));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Not on the forwarder's core.
            machine::pin(&[part.elsewhere]);
            for _ in std::io::stdin().lines().map_while(Result::ok) {
                if write_line(&meter.read()).is_err() {
                    break;
                }
            }
            // The input has ended or failed: the parent is gone.
            stop.store(true, Relaxed);
        });
        serve_ports(work, ports, &|| stop.load(Relaxed))
    })
}

/// Writes a value to standard output, as a line of JSON.
fn write_line(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(value)?)?;
    Ok(out.flush()?)
}

/// The other process while it runs.
struct Other {
    child: Child,
    pipes: RefCell<Pipes>,
    macs: [Mac; 2],
}

/// Standard input and output of the other process.
struct Pipes {
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Pipes {
    /// The next line that is such a value. DPDK itself may write to standard output too.
    fn read<T: serde::de::DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            if let Ok(value) = serde_json::from_str(&line) {
                return Ok(value);
            }
            line.clear();
        }
        bail!("the process with the user plane has ended")
    }
}

impl Other {
    fn start(
        folder: &Path,
        (kind, role): Contestant,
        [here, there]: [usize; 2],
        sessions: usize,
    ) -> anyhow::Result<Other> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["upf", "serve"]).arg("--folder").arg(folder);
        command.args(["--core", &there.to_string(), "--elsewhere", &here.to_string()]);
        command.args(["--sessions", &sessions.to_string()]);
        if kind == Kind::Bare {
            command.arg("--bare");
        }
        if role == Role::Client {
            command.arg("--client");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        let pipes = RefCell::new(Pipes { input: child.stdin.take(), output });
        let mut other = Other { child, pipes, macs: Default::default() };
        let macs = other.pipes.get_mut().read();
        other.macs = macs.context("the process with the user plane did not start")?;
        Ok(other)
    }

    fn end(&mut self) {
        self.wake(true);
        drop(self.pipes.get_mut().input.take());
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

impl Control for Other {
    /// Lets the process continue, or stops it.
    fn wake(&self, awake: bool) {
        let signal = if awake { Signal::SIGCONT } else { Signal::SIGSTOP };
        // A process that has ended needs no signal.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    fn reading(&self) -> anyhow::Result<Option<Reading>> {
        let mut pipes = self.pipes.borrow_mut();
        pipes.input.as_mut().context("the process is ending")?.write_all(b"\n")?;
        pipes.read().map(Some)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.end();
    }
}

/// Measures the user plane with each number of sessions, and the bare forwarder, in turn. As clients they are measured with the
/// default number of sessions and the smallest packets.
///
/// # Errors
/// DPDK does not start.
pub(super) fn run(run: &mut Run, cores: [usize; 2]) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("godwit-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let all = run.plan.network_sessions.clone();
    let result = measure(run, &folder, Role::Server, &all, cores)
        .and_then(|()| measure(run, &folder, Role::Client, &[DEFAULT_SESSIONS], cores));
    // Files of old sockets are harmless.
    let _ = std::fs::remove_dir_all(&folder);
    result
}

fn measure(
    run: &mut Run,
    folder: &Path,
    role: Role,
    sessions: &[usize],
    cores: [usize; 2],
) -> anyhow::Result<()> {
    let backend = role.backend();
    let (bare, mut to_bare) = connect(folder, (Kind::Bare, role), cores, 1)?;
    run.note("dpdk_huge_pages", &format!("{:?}", eal::uses_huge_pages()));
    bare.wake(false);
    for sessions in sessions.iter().copied() {
        run.progress.say(&format!("{backend}: making {sessions} sessions"));
        let (upf, mut to_upf) = connect(folder, (Kind::Upf, role), cores, sessions)?;
        upf.wake(false);
        to_bare.play(Deck::new(&World::teids(sessions)?));
        let mut contenders = [
            Contender { name: Kind::Bare.name(), generator: &mut to_bare, control: &bare },
            Contender { name: Kind::Upf.name(), generator: &mut to_upf, control: &upf },
        ];
        let sizes = match role {
            Role::Server => run.plan.network_sizes(sessions),
            Role::Client => run.plan.network_sizes[..1].to_vec(),
        };
        let rounds = run.plan.frame_rounds(sessions);
        run.frames(&Extent { backend, sessions, sizes: &sizes, rounds }, &mut contenders)?;
    }
    Ok(())
}

/// Starts a process and connects to it. The server is opened first, so that the client connects at once.
fn connect(
    folder: &Path,
    contestant: Contestant,
    cores: [usize; 2],
    sessions: usize,
) -> anyhow::Result<(Other, Generator<DpdkPort>)> {
    let (kind, role) = contestant;
    let start = || Other::start(folder, contestant, cores, sessions);
    let open = || open(folder, contestant, role.other(), cores[0]);
    let (other, ports) = match role {
        Role::Server => {
            let other = start()?;
            (other, open()?)
        }
        Role::Client => {
            let ports = open()?;
            (start()?, ports)
        }
    };
    let deck = Deck::new(&World::teids(sessions)?);
    let mut generator = Generator::new(ports, other.macs, kind.forwarder(Traffic::Plain), &deck);
    let start = time::now_std();
    while !generator.ports().iter().all(DpdkPort::is_up) {
        if start.elapsed() > PATIENCE {
            bail!("the memifs do not come up");
        }
        generator.idle()?;
    }
    Ok((other, generator))
}
