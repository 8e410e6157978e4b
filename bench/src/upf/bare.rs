//! Bare forwarders on kernel sockets, the upper limit of that backend. They receive and send packets as the
//! user plane does, but only remove or add a constant header.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use anyhow::Context as _;
use net::link::{Cidr, Links};
use packet::gtpu::{self, PduSession};
use pktio::poll::{Poller, Waker};
use pktio::tun::TunPort;
use pktio::udp::UdpPort;
use pktio::{Port, Vector};
use upf::pipeline::{BATCH, PACKET};

use super::ends;
use super::network::{BARE_POOL, Network, TEXTBOOK_POOL};
use super::subscriber::{QFI, UE_POOL, UPF};
use super::textbook::Textbook;
use super::traffic::TUNNEL;
use crate::machine;

/// The TEID of all packets that the bare forwarder puts into a tunnel.
pub(super) const TEID: u32 = 1;
/// Most batches from one input before the others get their turn.
const BUDGET: usize = 16;

/// How packets are changed between receiving and sending.
pub(super) enum Work {
    /// A constant header is removed or added.
    Bare,
    /// The work of a textbook user plane, packet by packet, with system calls for each packet.
    Textbook(Box<Textbook>),
}

/// A forwarder on a thread of its own.
pub(super) struct Forwarder {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    /// Socket for GTP-U towards the data network.
    pub(super) n3: SocketAddr,
    /// Socket for GTP-U towards the other UPF.
    pub(super) relay: SocketAddr,
}

/// Difference between UE addresses of the main pool and those of this pool.
pub(super) fn shift(pool: &str) -> anyhow::Result<u32> {
    let network = |text: &str| -> anyhow::Result<u32> {
        match text.parse::<Cidr>().context("pool")?.address() {
            IpAddr::V4(address) => Ok(address.to_bits()),
            IpAddr::V6(_) => anyhow::bail!("the pools are IPv4"),
        }
    };
    Ok(network(pool)? - network(UE_POOL)?)
}

/// State of the forwarder's thread.
struct Run {
    work: Work,
    up: UdpPort,
    relay: UdpPort,
    tun: TunPort,
}

impl Forwarder {
    /// Starts a forwarder in the UPF's namespace on `core`. Textbook sessions are those of the user plane under
    /// test.
    ///
    /// # Errors
    /// Sockets or the device cannot be opened.
    pub(super) fn start(network: &Network, core: usize, work: Work) -> anyhow::Result<Forwarder> {
        // Ports and devices differ by contender, so that both can exist at the same time.
        let (first, name, pool) = match work {
            Work::Bare => (2153, "gw1", BARE_POOL),
            Work::Textbook(_) => (2155, "gw2", TEXTBOOK_POOL),
        };
        let address = |port| SocketAddr::new(UPF.into(), port);
        let (n3, relay) = (address(first), address(first + 1));
        let open = || -> anyhow::Result<Run> {
            let tun = TunPort::create(name)?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let links = Links::here()?;
                links.set_mtu(name, 9000).await?;
                links.up(name).await?;
                links.add_route(pool.parse()?, None, Some(name)).await?;
                anyhow::Ok(())
            })?;
            Ok(Run { work, up: UdpPort::bind(n3, false)?, relay: UdpPort::bind(relay, false)?, tun })
        };
        let run = network.upf.enter(open)??;
        let mut poller = Poller::new()?;
        for (token, fd) in [run.up.fd(), run.relay.fd(), run.tun.fd()].into_iter().flatten().enumerate() {
            poller.add(fd, token as u64)?;
        }
        let (waker, stop) = (poller.waker(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("bare".to_owned()).spawn(move || {
            // Without pinning, the system places the thread, and the figures are noisier.
            machine::pin(&[core]);
            run.run(&mut poller, &stopped);
        })?;
        Ok(Forwarder { stop, waker, thread: Some(thread), n3, relay })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already; its samples are missing.
            let _ = thread.join();
        }
    }
}

impl Run {
    fn run(mut self, poller: &mut Poller, stop: &AtomicBool) {
        let one_by_one = matches!(self.work, Work::Textbook(_));
        let mut batch = Vector::new(if one_by_one { 1 } else { BATCH }, PACKET);
        let budget = if one_by_one { BUDGET * BATCH } else { BUDGET };
        let epoch = net::time::now_std();
        let mut ready = [false; 3];
        while !stop.load(Relaxed) {
            if poller.wait(Some(100), |token| ready[token as usize % 3] = true).is_err() {
                return;
            }
            for (input, flag) in ready.iter_mut().enumerate() {
                if !std::mem::take(flag) {
                    continue;
                }
                for _ in 0..budget {
                    let now_ns = epoch.elapsed().as_nanos() as u64;
                    // An error counts as nothing received; the next call finds what is there.
                    if !self.serve(input, &mut batch, now_ns).unwrap_or(false) {
                        break;
                    }
                }
            }
        }
    }

    /// Receives a batch from an input and sends it on; `false` when there was none.
    fn serve(&mut self, input: usize, batch: &mut Vector, now_ns: u64) -> std::io::Result<bool> {
        let received = match input {
            0 => self.up.receive(batch)?,
            1 => self.relay.receive(batch)?,
            _ => self.tun.receive(batch)?,
        };
        let mut selected = [0_u16; BATCH];
        let mut count = 0;
        for (at, mut buffer) in batch.frames_mut().enumerate() {
            let passes = match (&self.work, input) {
                (_, 1) => {
                    *buffer.peer = ends::other_upf();
                    true
                }
                (Work::Bare, 0) => {
                    buffer.trim_front(TUNNEL);
                    true
                }
                (Work::Bare, _) => {
                    *buffer.peer = ends::gnb();
                    let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
                    let length = buffer.len();
                    gtpu::encapsulate(buffer.headroom(), TEID, length, container)
                        .is_some_and(|taken| buffer.grow_front(taken))
                }
                (Work::Textbook(textbook), 0) => textbook.uplink(&mut buffer, now_ns),
                (Work::Textbook(textbook), _) => textbook.downlink(&mut buffer, now_ns),
            };
            if passes {
                selected[count] = at as u16;
                count += 1;
            }
        }
        if count > 0 {
            let selected = &selected[..count];
            match input {
                0 => self.tun.transmit(batch, selected),
                1 => self.relay.transmit(batch, selected),
                _ => self.up.transmit(batch, selected),
            };
        }
        Ok(received > 0)
    }
}
