//! N3 of the simulated gNBs, and S1-U of simulated eNBs: GTP-U on one thread, whatever the number of tunnels.
//!
//! ```text
//! TUN of a UE ──read──► classify ──► encapsulate (TEID of the UPF, QFI) ──sendmmsg──► UPF
//! TUN of a UE ◄─write── look up our TEID ◄──recvmmsg── UPF
//! ```
//! A tunnel of S1-U has no QFI, and its packets no PDU Session Container. Where a UE has several tunnels, one of them has the TUN
//! device and [`Tunnel::classify`] says which packets go through the others.
//!
//! The thread sleeps in epoll over the N3 socket and every TUN device. A tunnel without TUN device
//! gives its packets to a queue ([`Tunnel::received`]), which tests and router discovery read. Commands
//! reach the thread through a channel and a wake-up. The thread takes no lock, and allocates for a
//! packet only if the packet goes to a queue.
//!
//! A TEID's low 20 bits are the tunnel's position in the table and its high 12 bits a generation. So
//! packets of a closed tunnel do not reach the next tunnel at its position.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use bytes::Bytes;
use ngap::GtpTunnel;
use packet::gtpu::{self, PduSession, Signalling};
use pktio::poll::{Poller, Waker};
use pktio::tun::TunPort;
use pktio::udp::UdpPort;
use pktio::{Port, Vector};
use tokio::sync::Notify;
use types::{Qfi, Teid};

/// Packets per batch.
const BATCH: usize = 64;
/// Largest packet: a jumbo frame's worth.
const PACKET_LEN: usize = 9_216;
/// Batches read from one port before the other ports are read.
const ROUNDS: usize = 4;
/// Packets waiting in a tunnel's queue.
const QUEUE: usize = 64;
/// Bits of a TEID that are the position in the table.
const POSITION_BITS: u32 = 20;
/// Most tunnels at once.
const MAX_TUNNELS: u32 = (1 << POSITION_BITS) - 1;
/// Stack of a thread that only closes a descriptor.
const REMOVER_STACK: usize = 64 * 1024;
/// Poller token of the N3 socket; tunnels use their position.
const N3: u64 = u64::MAX - 1;

/// Packet counts since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent to a UPF.
    pub uplink: u64,
    /// Packets received for a tunnel.
    pub downlink: u64,
    /// Packets that were malformed, or that found no tunnel or no room in a queue or socket.
    pub dropped: u64,
    /// Echo Requests answered.
    pub echoes: u64,
    /// Error Indications received.
    pub error_indications: u64,
    /// End Markers received.
    pub end_markers: u64,
}

#[derive(Debug, Default)]
struct AtomicCounters {
    uplink: AtomicU64,
    downlink: AtomicU64,
    dropped: AtomicU64,
    echoes: AtomicU64,
    error_indications: AtomicU64,
    end_markers: AtomicU64,
}

/// A handle on the user plane of one N3 address; clones refer to the same user plane. The thread ends
/// with the last clone and the last tunnel.
#[derive(Debug, Clone)]
pub struct UserPlane {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    address: IpAddr,
    commands: mpsc::Sender<Command>,
    waker: Waker,
    positions: Mutex<Positions>,
    counters: Arc<AtomicCounters>,
    thread: Option<JoinHandle<()>>,
}

/// Free positions of the table, and the generation that each will have next.
#[derive(Debug, Default)]
struct Positions {
    generations: Vec<u16>,
    free: Vec<u32>,
}

/// All positions are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all {MAX_TUNNELS} tunnels are in use")]
pub struct NoTunnel;

enum Command {
    Open { position: u32, tunnel: State },
    Attach { position: u32, tun: TunPort, downlink_only: bool },
    Send { position: u32, packet: Vec<u8> },
    Classify { position: u32, classify: Classify },
    StopUplink { position: u32 },
    Redirect { position: u32, upf: SocketAddr, upf_teid: u32 },
    Close { position: u32 },
    Stop,
}

/// Chooses the tunnel of a packet by our TEID; `None`: the tunnel that has the classifier.
type Classify = Box<dyn Fn(&[u8]) -> Option<Teid> + Send>;

/// What both ends of a tunnel's handle count.
#[derive(Debug, Default)]
struct TunnelCounters {
    /// Packets in both directions.
    packets: AtomicU64,
    end_markers: AtomicU64,
    end_marker: Notify,
}

/// The thread's state of a tunnel.
struct State {
    teid: u32,
    upf: SocketAddr,
    upf_teid: u32,
    /// QoS flow of the UE's packets. Without one they have no PDU Session Container.
    qfi: Option<u8>,
    tun: Option<TunPort>,
    /// Packets are not read from `tun`, only written.
    downlink_only: bool,
    classify: Option<Classify>,
    queue: tokio::sync::mpsc::Sender<Bytes>,
    counters: Arc<TunnelCounters>,
}

/// One end of a GTP-U tunnel; dropping it closes the tunnel.
#[derive(Debug)]
pub struct Tunnel {
    user_plane: UserPlane,
    teid: Teid,
    upf: GtpTunnel,
    queue: tokio::sync::mpsc::Receiver<Bytes>,
    counters: Arc<TunnelCounters>,
}

impl UserPlane {
    /// Binds GTP-U on `address` in the calling thread's namespace and starts the thread.
    pub fn start(address: IpAddr) -> io::Result<Self> {
        let mut n3 = UdpPort::bind(SocketAddr::new(address, gtpu::PORT), false)?;
        // A UPF on this machine may have several workers.
        n3.keep_tunnels_apart();
        let poller = Poller::new()?;
        if let Some(fd) = n3.fd() {
            poller.add(fd, N3)?;
        }
        let waker = poller.waker();
        let (commands, receiver) = mpsc::channel();
        let counters = Arc::new(AtomicCounters::default());
        let worker = Worker {
            n3,
            poller,
            commands: receiver,
            tunnels: Vec::new(),
            batch: Vector::new(BATCH, PACKET_LEN),
            selected: Vec::with_capacity(BATCH),
            counters: Arc::clone(&counters),
        };
        let thread = std::thread::Builder::new().name("ran-n3".into()).spawn(move || worker.run())?;
        let inner =
            Inner { address, commands, waker, positions: Mutex::default(), counters, thread: Some(thread) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The N3 address.
    pub fn address(&self) -> IpAddr {
        self.inner.address
    }

    /// Opens a tunnel to the end of a UPF or S-GW. Packets of the UE carry `qfi` in a PDU Session Container, or have none
    /// without it.
    pub fn open(&self, upf: IpAddr, upf_teid: Teid, qfi: Option<Qfi>) -> Result<Tunnel, NoTunnel> {
        let (position, teid) = self.inner.positions().take().ok_or(NoTunnel)?;
        let (sender, queue) = tokio::sync::mpsc::channel(QUEUE);
        let upf_address = SocketAddr::new(upf, gtpu::PORT);
        let counters = Arc::new(TunnelCounters::default());
        let state = State {
            teid,
            upf: upf_address,
            upf_teid: upf_teid.0,
            qfi: qfi.map(Qfi::value),
            tun: None,
            downlink_only: false,
            classify: None,
            queue: sender,
            counters: Arc::clone(&counters),
        };
        self.inner.command(Command::Open { position, tunnel: state });
        let upf = GtpTunnel { address: upf.into(), teid: upf_teid };
        Ok(Tunnel { user_plane: self.clone(), teid: Teid(teid), upf, queue, counters })
    }

    /// Packet counts so far.
    pub fn counters(&self) -> Counters {
        let counters = &self.inner.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            uplink: read(&counters.uplink),
            downlink: read(&counters.downlink),
            dropped: read(&counters.dropped),
            echoes: read(&counters.echoes),
            error_indications: read(&counters.error_indications),
            end_markers: read(&counters.end_markers),
        }
    }
}

impl Inner {
    fn positions(&self) -> std::sync::MutexGuard<'_, Positions> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, command: Command) {
        // The receiver lives as long as the thread, and only the command of `drop` ends the thread.
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the worker has been reported by its thread.
            let _ = thread.join();
        }
    }
}

impl Positions {
    /// A free position and its TEID. Position 0 is never used, so that no TEID is 0.
    fn take(&mut self) -> Option<(u32, u32)> {
        if self.generations.is_empty() {
            self.generations.push(0);
        }
        let position = match self.free.pop() {
            Some(position) => position,
            None => {
                let position = u32::try_from(self.generations.len()).ok().filter(|p| *p <= MAX_TUNNELS)?;
                self.generations.push(0);
                position
            }
        };
        let generation = self.generations.get_mut(position as usize)?;
        *generation = generation.wrapping_add(1);
        Some((position, u32::from(*generation) << POSITION_BITS | position))
    }
}

impl Tunnel {
    /// Our end, to which the UPF sends.
    pub fn local(&self) -> GtpTunnel {
        GtpTunnel { address: self.user_plane.address().into(), teid: self.teid }
    }

    /// The UPF's end.
    pub fn upf(&self) -> GtpTunnel {
        self.upf
    }

    /// Packets that went through the tunnel, in both directions.
    pub fn packets(&self) -> u64 {
        self.counters.packets.load(Ordering::Relaxed)
    }

    /// End Markers received on the tunnel.
    pub fn end_markers(&self) -> u64 {
        self.counters.end_markers.load(Ordering::Relaxed)
    }

    /// Waits until an End Marker has been received on the tunnel. Cancel-safe.
    pub async fn end_marker(&self) {
        while self.end_markers() == 0 {
            self.counters.end_marker.notified().await;
        }
    }

    /// Connects the tunnel to `tun`.
    pub fn attach(&self, tun: TunPort) {
        let position = self.position();
        self.user_plane.inner.command(Command::Attach { position, tun, downlink_only: false });
    }

    /// Gives the tunnel's packets for the UE to `tun`, and reads none from it: another tunnel of the UE does.
    pub fn attach_downlink(&self, tun: TunPort) {
        let position = self.position();
        self.user_plane.inner.command(Command::Attach { position, tun, downlink_only: true });
    }

    /// Sends packets of this tunnel's UE through the tunnel whose TEID at our end `classify` returns. Packets for which there is
    /// none, or no such tunnel any more, go through this one. `classify` runs in the user plane's thread.
    pub fn classify(&self, classify: impl Fn(&[u8]) -> Option<Teid> + Send + 'static) {
        let (position, classify) = (self.position(), Box::new(classify));
        self.user_plane.inner.command(Command::Classify { position, classify });
    }

    /// Reads no more packets from the TUN device, which the UE's next tunnel then does. Packets that still come through this
    /// one go to the device as before.
    pub fn stop_uplink(&self) {
        self.user_plane.inner.command(Command::StopUplink { position: self.position() });
    }

    /// Sends to another end from now on, for example that of another S-GW.
    pub fn redirect(&mut self, upf: IpAddr, upf_teid: Teid) {
        self.upf = GtpTunnel { address: upf.into(), teid: upf_teid };
        let (position, upf) = (self.position(), SocketAddr::new(upf, gtpu::PORT));
        self.user_plane.inner.command(Command::Redirect { position, upf, upf_teid: upf_teid.0 });
    }

    /// Sends an IP packet of the UE, with or without TUN device.
    pub fn send(&self, packet: impl Into<Vec<u8>>) {
        self.user_plane.inner.command(Command::Send { position: self.position(), packet: packet.into() });
    }

    /// The next IP packet for the UE. With a TUN device, only router advertisements arrive here.
    /// Cancel-safe.
    pub async fn received(&mut self) -> Option<Bytes> {
        self.queue.recv().await
    }

    /// A packet that has been received and not been taken.
    pub fn try_received(&mut self) -> Option<Bytes> {
        self.queue.try_recv().ok()
    }

    fn position(&self) -> u32 {
        self.teid.0 & MAX_TUNNELS
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let position = self.position();
        let inner = &self.user_plane.inner;
        inner.command(Command::Close { position });
        // Commands are executed in order, so a tunnel that reuses the position is opened after this one
        // is closed.
        inner.positions().free.push(position);
    }
}

/// The thread's own data.
struct Worker {
    n3: UdpPort,
    poller: Poller,
    commands: mpsc::Receiver<Command>,
    tunnels: Vec<Option<State>>,
    batch: Vector,
    selected: Vec<u16>,
    counters: Arc<AtomicCounters>,
}

fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Worker {
    fn run(mut self) {
        let (mut ready, mut unfinished) = (Vec::new(), Vec::new());
        loop {
            // A port that has had its rounds is read again, whether or not its descriptor says so: it may keep packets.
            std::mem::swap(&mut ready, &mut unfinished);
            let timeout = if ready.is_empty() { None } else { Some(0) };
            let woken = match self.poller.wait(timeout, |token| {
                if !ready.contains(&token) {
                    ready.push(token);
                }
            }) {
                Ok(found) => found.woken,
                Err(error) => {
                    tracing::error!(%error, "the user plane's poller failed");
                    return;
                }
            };
            if woken && !self.execute_commands() {
                return;
            }
            for token in ready.drain(..) {
                let finished = match token {
                    N3 => self.downlink(),
                    position => self.uplink(position as usize),
                };
                if !finished {
                    unfinished.push(token);
                }
            }
        }
    }

    /// Executes the waiting commands; `false` if one of them was to stop.
    fn execute_commands(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Open { position, tunnel } => {
                    let position = position as usize;
                    if self.tunnels.len() <= position {
                        self.tunnels.resize_with(position + 1, || None);
                    }
                    self.tunnels[position] = Some(tunnel);
                }
                Command::Attach { position, tun, downlink_only } => {
                    if let Some(Some(tunnel)) = self.tunnels.get_mut(position as usize) {
                        let reads = if downlink_only { None } else { tun.fd() };
                        if let Some(Err(error)) = reads.map(|fd| self.poller.add(fd, position.into())) {
                            tracing::error!(%error, "cannot wait for a TUN device");
                        }
                        (tunnel.tun, tunnel.downlink_only) = (Some(tun), downlink_only);
                    }
                }
                Command::Classify { position, classify } => {
                    if let Some(Some(tunnel)) = self.tunnels.get_mut(position as usize) {
                        tunnel.classify = Some(classify);
                    }
                }
                Command::StopUplink { position } => self.stop_uplink(position as usize),
                Command::Redirect { position, upf, upf_teid } => {
                    if let Some(Some(tunnel)) = self.tunnels.get_mut(position as usize) {
                        (tunnel.upf, tunnel.upf_teid) = (upf, upf_teid);
                    }
                }
                Command::Send { position, packet } => {
                    self.batch.clear();
                    if let Some(Some(tunnel)) = self.tunnels.get(position as usize) {
                        self.batch.push(&packet, tunnel.upf);
                        self.encapsulate(position as usize);
                    }
                }
                Command::Close { position } => {
                    if let Some(tunnel) = self.tunnels.get_mut(position as usize).and_then(Option::take) {
                        self.close(tunnel);
                    }
                }
                Command::Stop => {
                    for tunnel in std::mem::take(&mut self.tunnels).into_iter().flatten() {
                        self.close(tunnel);
                    }
                    return false;
                }
            }
        }
        true
    }

    fn stop_uplink(&mut self, position: usize) {
        let Some(Some(tunnel)) = self.tunnels.get_mut(position) else { return };
        if !std::mem::replace(&mut tunnel.downlink_only, true)
            && let Some(fd) = tunnel.tun.as_ref().and_then(|tun| tun.fd())
        {
            // As in `close`.
            let _ = self.poller.remove(fd);
        }
    }

    /// Closes a tunnel. Its TUN device stays if a session of an idle UE still holds it.
    fn close(&self, tunnel: State) {
        let Some(tun) = tunnel.tun else { return };
        if let Some(fd) = tun.fd().filter(|_| !tunnel.downlink_only) {
            // Removing fails only if adding failed, which was reported.
            let _ = self.poller.remove(fd);
        }
        close_tun(tun);
    }

    /// Reads packets of a UE's TUN device; `false` when there may be more.
    fn uplink(&mut self, position: usize) -> bool {
        for _ in 0..ROUNDS {
            let Some(Some(State { tun: Some(tun), downlink_only: false, .. })) =
                self.tunnels.get_mut(position)
            else {
                return true;
            };
            match tun.receive(&mut self.batch) {
                Ok(received) => {
                    tun.losses(&mut |_, lost| count(&self.counters.dropped, lost));
                    if received == 0 {
                        return true;
                    }
                    self.encapsulate(position);
                }
                Err(error) => {
                    tracing::debug!(%error, "TUN device failed");
                    return true;
                }
            }
        }
        false
    }

    /// Encapsulates the batch, which a tunnel's UE has sent, and sends it.
    fn encapsulate(&mut self, position: usize) {
        let Some(Some(owner)) = self.tunnels.get(position) else { return };
        self.selected.clear();
        for (at, mut buffer) in self.batch.frames_mut().enumerate() {
            let tunnel = carrier(&self.tunnels, owner, buffer.packet());
            let container = tunnel.qfi.map(|qfi| PduSession::Uplink { qfi });
            let length = buffer.len();
            let header = gtpu::encapsulate(buffer.headroom(), tunnel.upf_teid, length, container);
            if let Some(header) = header
                && buffer.grow_front(header)
            {
                *buffer.peer = tunnel.upf;
                count(&tunnel.counters.packets, 1);
                self.selected.push(at as u16);
            }
        }
        let sent = self.n3.transmit(&mut self.batch, &self.selected);
        count(&self.counters.uplink, sent.packets);
        count(&self.counters.dropped, self.batch.len() - sent.packets);
    }

    /// Reads packets on N3; `false` when there may be more.
    fn downlink(&mut self) -> bool {
        for _ in 0..ROUNDS {
            match self.n3.receive(&mut self.batch) {
                Ok(0) => return true,
                Ok(received) => self.downlink_packets(received),
                Err(error) => {
                    // For example an ICMP error of an earlier packet; the socket itself still works.
                    tracing::debug!(%error, "N3 socket");
                    return true;
                }
            }
        }
        false
    }

    /// Delivers a batch. Packets for one TUN device that follow each other are given to it together, so that those of one
    /// flow enter the kernel as one.
    fn downlink_packets(&mut self, received: usize) {
        let mut device = None;
        self.selected.clear();
        for at in 0..received {
            let to = self.downlink_packet(at);
            if to != device {
                self.deliver(device);
                device = to;
            }
            if to.is_some() {
                self.selected.push(at as u16);
            }
        }
        self.deliver(device);
    }

    /// Sends the selected packets through the TUN device of the tunnel at a position.
    fn deliver(&mut self, device: Option<usize>) {
        let Some(Some(Some(State { tun: Some(tun), .. }))) = device.map(|at| self.tunnels.get_mut(at)) else {
            return;
        };
        let sent = tun.transmit(&mut self.batch, &self.selected);
        count(&self.counters.downlink, sent.packets);
        count(&self.counters.dropped, self.selected.len() - sent.packets);
        self.selected.clear();
    }

    /// Removes the header of a packet for a TUN device and returns the position of its tunnel. Every other packet is
    /// handled here.
    fn downlink_packet(&mut self, at: usize) -> Option<usize> {
        let mut buffer = self.batch.frame_mut(at);
        let Ok(packet) = gtpu::Packet::new(buffer.packet()) else {
            count(&self.counters.dropped, 1);
            return None;
        };
        if packet.message_type() != gtpu::message_type::G_PDU {
            let signalling = Signalling::parse(&packet);
            let peer = *buffer.peer;
            self.signalling(signalling.ok(), peer);
            return None;
        }
        let (teid, header, total) = (packet.teid(), packet.header_len(), packet.bytes().len());
        let position = (teid & MAX_TUNNELS) as usize;
        let Some(tunnel) = tunnel_of(&self.tunnels, teid) else {
            count(&self.counters.dropped, 1);
            return None;
        };
        count(&tunnel.counters.packets, 1);
        buffer.truncate(total);
        buffer.trim_front(header);
        if tunnel.tun.is_some() && !is_router_advertisement(buffer.packet()) {
            return Some(position);
        }
        let delivered = tunnel.queue.try_send(Bytes::copy_from_slice(buffer.packet())).is_ok();
        count(if delivered { &self.counters.downlink } else { &self.counters.dropped }, 1);
        None
    }

    fn signalling(&mut self, message: Option<Signalling>, peer: SocketAddr) {
        match message {
            Some(Signalling::EchoRequest { sequence }) => {
                let response = Signalling::EchoResponse { sequence }.build();
                self.send_one(&response, peer);
                count(&self.counters.echoes, 1);
            }
            Some(Signalling::ErrorIndication { teid, .. }) => {
                tracing::debug!(teid, %peer, "GTP-U Error Indication");
                count(&self.counters.error_indications, 1);
            }
            Some(Signalling::EndMarker { teid, .. }) => {
                count(&self.counters.end_markers, 1);
                if let Some(tunnel) = tunnel_of(&self.tunnels, teid) {
                    count(&tunnel.counters.end_markers, 1);
                    tunnel.counters.end_marker.notify_one();
                }
            }
            Some(_) => {}
            None => count(&self.counters.dropped, 1),
        }
    }

    /// Sends one packet at once, outside the current batch.
    fn send_one(&mut self, packet: &[u8], peer: SocketAddr) {
        let mut batch = Vector::new(1, packet.len());
        batch.push(packet, peer);
        self.n3.transmit(&mut batch, &[0]);
    }
}

/// The tunnel with this TEID at our end.
fn tunnel_of(tunnels: &[Option<State>], teid: u32) -> Option<&State> {
    let tunnel = tunnels.get((teid & MAX_TUNNELS) as usize)?.as_ref();
    tunnel.filter(|tunnel| tunnel.teid == teid)
}

/// The tunnel through which a packet of `owner`'s UE goes.
fn carrier<'a>(tunnels: &'a [Option<State>], owner: &'a State, packet: &[u8]) -> &'a State {
    let chosen = owner.classify.as_ref().and_then(|classify| classify(packet));
    chosen.and_then(|teid| tunnel_of(tunnels, teid.0)).unwrap_or(owner)
}

/// Closes a TUN device on a thread of its own. The kernel takes some 30 ms to remove a device. The
/// caller could move no packets meanwhile, and the times add up when hundreds of UEs leave.
pub(crate) fn close_tun(tun: TunPort) {
    let remover = std::thread::Builder::new().name("ran-tun".into()).stack_size(REMOVER_STACK);
    // If the thread cannot start, the closure is dropped here and closes the device.
    let _ = remover.spawn(move || drop(tun));
}

/// Whether an IP packet is a router advertisement, which the simulated UE reads itself.
fn is_router_advertisement(packet: &[u8]) -> bool {
    packet.len() > packet::ipv6::HEADER_LEN
        && packet[0] >> 4 == 6
        && packet[6] == packet::protocol::ICMPV6
        && packet[packet::ipv6::HEADER_LEN] == packet::ndp::ROUTER_ADVERTISEMENT
}
