//! The user-space stack against itself: with virtual time on a simulated wire that loses, reorders,
//! duplicates and corrupts packets by a seed; and over real raw and UDP sockets between namespaces.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dcsctp::api::{DcSctpSocket, Options, Socket, SocketEvent};
use tokio::sync::mpsc;

use super::endpoint::Endpoint;
use super::wire::{Arrival, Wire};
use super::*;
use crate::netns::NetNs;
use crate::time::{self, Duration, timeout};

type Frame = (SocketAddr, Vec<u8>);

/// A network in memory: every address has a queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Network(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    hosts: HashMap<IpAddr, mpsc::UnboundedSender<Frame>>,
    /// State of a xorshift generator; faults are off while it is zero.
    seed: u64,
    loss_percent: u64,
    /// A frame that is delivered after the next one.
    held: Option<(IpAddr, Frame)>,
    sent: Vec<Frame>,
    cut: bool,
}

/// One host's end of the [`Network`].
#[derive(Debug)]
pub(super) struct MemoryWire {
    network: Network,
    address: IpAddr,
    queue: tokio::sync::Mutex<mpsc::UnboundedReceiver<Frame>>,
}

impl Network {
    fn host(&self, address: &str) -> Wire {
        let address = address.parse().unwrap();
        let (sender, queue) = mpsc::unbounded_channel();
        self.0.lock().unwrap().hosts.insert(address, sender);
        Wire::Memory(MemoryWire { network: self.clone(), address, queue: tokio::sync::Mutex::new(queue) })
    }

    fn faults(&self, seed: u64, loss_percent: u64) {
        let mut inner = self.0.lock().unwrap();
        (inner.seed, inner.loss_percent) = (seed, loss_percent);
    }

    fn cut(&self, cut: bool) {
        self.0.lock().unwrap().cut = cut;
    }

    /// Delivers bytes as if `from` had sent them.
    fn inject(&self, from: SocketAddr, to: &str, bytes: Vec<u8>) {
        self.0.lock().unwrap().hosts[&to.parse().unwrap()].send((from, bytes)).unwrap();
    }

    /// What was sent since the last call.
    fn sent(&self) -> Vec<Frame> {
        std::mem::take(&mut self.0.lock().unwrap().sent)
    }
}

impl Inner {
    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    fn deliver(&mut self, to: IpAddr, frame: Frame) {
        if let Some(host) = self.hosts.get(&to) {
            let _ = host.send(frame);
        }
    }
}

impl MemoryWire {
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> io::Result<Arrival> {
        let (from, bytes) =
            self.queue.lock().await.recv().await.ok_or(io::Error::from(io::ErrorKind::NotConnected))?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(Arrival { from, local: self.address, start: 0, end: bytes.len() })
    }

    pub(super) fn send(&self, local: IpAddr, to: SocketAddr, packet: &[u8]) -> io::Result<()> {
        let mut inner = self.network.0.lock().unwrap();
        let mut frame = (SocketAddr::new(local, 0), packet.to_vec());
        inner.sent.push((to, packet.to_vec()));
        if inner.cut {
            return Ok(());
        }
        if inner.seed != 0 {
            if inner.random(100) < inner.loss_percent {
                return Ok(());
            }
            match inner.random(20) {
                0 => {
                    let bit = inner.random(8 * frame.1.len() as u64) as usize;
                    frame.1[bit / 8] ^= 1 << (bit % 8);
                }
                1 => inner.deliver(to.ip(), frame.clone()),
                2 if inner.held.is_none() => {
                    inner.held = Some((to.ip(), frame));
                    return Ok(());
                }
                _ => {}
            }
        }
        inner.deliver(to.ip(), frame);
        if let Some((to, frame)) = inner.held.take() {
            inner.deliver(to, frame);
        }
        Ok(())
    }
}

const SERVER: &str = "10.0.0.1";
const CLIENT: &str = "10.0.0.2";
const LONG: Duration = Duration::from_secs(600);

/// A listener and a caller on a simulated wire.
struct World {
    network: Network,
    listener: Listener,
    endpoint: Arc<Endpoint>,
}

impl World {
    fn new(config: SctpConfig) -> World {
        let network = Network::default();
        let local = SocketAddr::new(SERVER.parse().unwrap(), NGAP_PORT);
        let (endpoint, accepted) = Endpoint::open(network.host(SERVER), NGAP_PORT, config, true).unwrap();
        let user = user::Listener { endpoint: endpoint.clone(), accepted, local, mode: SctpMode::Raw };
        World { network, listener: Listener { carrier: ListenerCarrier::User(user) }, endpoint }
    }

    /// Sets up an association from port `port` of the client's host.
    async fn call(&self, port: u16) -> Result<Association, CloseReason> {
        let wire = self.network.host(CLIENT);
        let config = SctpConfig { streams: 4, ..SctpConfig::default() };
        let (endpoint, _) = Endpoint::open(wire, port, config, false).unwrap();
        let peer = SocketAddr::new(SERVER.parse().unwrap(), NGAP_PORT);
        let shared = endpoint.add(cookie::Path { local: CLIENT.parse().unwrap(), peer }, 0);
        shared.connect();
        shared.established().await?;
        Ok(Association { carrier: Carrier::User(shared), ended: false })
    }

    async fn pair(&mut self) -> (Association, Association) {
        let client = self.call(5000).await.unwrap();
        (client, self.listener.accept().await.unwrap())
    }
}

fn message(stream: u16, length: usize, fill: u8) -> Message {
    Message { stream, ppid: PPID_NGAP, payload: Bytes::from(vec![fill; length]) }
}

async fn next_message(association: &mut Association) -> Message {
    match timeout(LONG, association.recv()).await.expect("a message in time") {
        Some(Event::Message(message)) => message,
        other => panic!("expected a message, got {other:?}"),
    }
}

/// Messages in both directions, on several streams, up to the largest, and an orderly shutdown. For any
/// implementation.
pub(super) async fn converse(mut listener: Listener, config: SctpConfig) {
    let remote = listener.local();
    let local = SocketAddr::new(remote.ip(), 0);
    let mode = listener.mode();
    let client = Association::connect(local, remote, SctpConfig { mode, ..config.clone() });
    let (client, server) = tokio::join!(client, listener.accept());
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    assert_eq!((client.peer(), server.peer()), (server.local(), client.local()));
    assert!(client.outgoing_streams() >= 2 && server.outgoing_streams() >= 2);

    let sizes = [1, 100, 1500, 20_000, 65_536, 100_000];
    for (index, size) in sizes.into_iter().enumerate() {
        client.send(message(index as u16 % 2, size, index as u8)).await.unwrap();
        assert_eq!(next_message(&mut server).await, message(index as u16 % 2, size, index as u8));
        server.send(message(1, size, 7)).await.unwrap();
        assert_eq!(next_message(&mut client).await, message(1, size, 7));
    }
    assert_eq!(client.send(message(0, 0, 0)).await, Err(SendError::Size(0)));
    assert_eq!(
        client.send(message(0, config.max_message_size + 1, 0)).await,
        Err(SendError::Size(config.max_message_size + 1))
    );
    assert_eq!(client.send(message(config.streams, 1, 0)).await, Err(SendError::Stream(config.streams)));

    // Messages sent before an orderly shutdown still arrive.
    assert!(client.sender().heartbeat(Duration::from_secs(5)).await);
    assert!(server.sender().heartbeat(Duration::from_secs(5)).await);
    client.send(message(0, 30_000, 9)).await.unwrap();
    let sender = client.sender();
    let end = tokio::spawn(client.shutdown());
    assert_eq!(next_message(&mut server).await.payload.len(), 30_000);
    let closed = timeout(LONG, server.recv()).await.unwrap();
    assert_eq!(closed, Some(Event::Closed { reason: CloseReason::Shutdown }));
    assert_eq!(server.recv().await, None);
    assert_eq!(end.await.unwrap(), CloseReason::Shutdown);
    assert_eq!(sender.send(message(0, 1, 0)).await, Err(SendError::Closed));
}

#[test]
fn modes_have_names() {
    for (text, mode) in [
        ("auto", SctpMode::Auto),
        ("kernel", SctpMode::Kernel),
        ("raw", SctpMode::Raw),
        ("udp", SctpMode::Udp { port: 9899 }),
        ("udp:4000", SctpMode::Udp { port: 4000 }),
    ] {
        assert_eq!(text.parse(), Ok(mode));
        assert_eq!(mode.to_string(), text);
        let json = serde_json::to_string(&mode).unwrap();
        assert_eq!(serde_json::from_str::<SctpMode>(&json).unwrap(), mode);
    }
    for bad in ["", "tcp", "udp:", "udp:0", "udp:70000"] {
        assert!(bad.parse::<SctpMode>().is_err(), "{bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn streams_and_ppid_pass_and_the_smaller_stream_count_holds() {
    let mut world = World::new(SctpConfig::default());
    let (client, mut server) = world.pair().await;
    assert_eq!((client.outgoing_streams(), server.outgoing_streams()), (4, 4));
    for stream in 0..4 {
        let sent = Message { ppid: 18 + u32::from(stream), ..message(stream, 10, stream as u8) };
        client.send(sent.clone()).await.unwrap();
        assert_eq!(next_message(&mut server).await, sent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_on_demand_tells_a_live_peer_from_a_dead_one() {
    let mut world = World::new(SctpConfig::default());
    let (client, server) = world.pair().await;
    let limit = Duration::from_secs(1);
    let before = time::now();
    assert!(server.sender().heartbeat(limit).await);
    assert!(client.sender().heartbeat(limit).await);
    assert!(time::now() - before < limit, "an answer is not waited for longer than it takes");
    // Only the peer's answer counts: here the number is invented, and the verification tag is not the
    // peer's.
    world.network.cut(true);
    let asking = tokio::spawn({
        let sender = server.sender();
        async move { sender.heartbeat(limit).await }
    });
    time::sleep(Duration::from_millis(1)).await;
    let asked = world.network.sent().pop().unwrap().1;
    let mut forged = asked.clone();
    forged[..4].copy_from_slice(&[asked[2], asked[3], asked[0], asked[1]]);
    forged[packet::HEADER] = 5;
    forged[4] ^= 1;
    let checksum = crc32c::packet_checksum(&forged);
    forged[8..12].copy_from_slice(&checksum.to_le_bytes());
    world.network.inject(SocketAddr::new(CLIENT.parse().unwrap(), 0), SERVER, forged);
    assert!(!asking.await.unwrap());
    world.network.cut(false);
    assert!(server.sender().heartbeat(limit).await, "one that is cut off for a moment is alive");
    client.abort();
    time::sleep(Duration::from_millis(10)).await;
    assert!(!server.sender().heartbeat(limit).await);
}

#[tokio::test(start_paused = true)]
async fn every_message_arrives_in_order_over_a_bad_wire() {
    for seed in 1..=5 {
        let mut world = World::new(SctpConfig { max_retransmissions: 20, ..SctpConfig::default() });
        world.network.faults(seed * 0x9e37_79b9, 10);
        let mut client = None;
        for _ in 0..10 {
            client = world.call(5000 + seed as u16).await.ok();
            if client.is_some() {
                break;
            }
        }
        let client = client.expect("one of ten calls gets through");
        let mut server = world.listener.accept().await.unwrap();
        let sender = client.sender();
        let sending = tokio::spawn(async move {
            for number in 0..200u16 {
                sender.send(message(number % 4, 1 + usize::from(number) * 40, number as u8)).await.unwrap();
            }
        });
        let mut next = [0u16, 1, 2, 3];
        for _ in 0..200 {
            let got = next_message(&mut server).await;
            let expected = &mut next[usize::from(got.stream)];
            assert_eq!(
                got,
                message(*expected % 4, 1 + usize::from(*expected) * 40, *expected as u8),
                "seed {seed}"
            );
            *expected += 4;
        }
        sending.await.unwrap();
        assert!(world.listener.rejected().checksum > 0, "the wire did corrupt packets");
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_truncation_and_bit_flips_leave_the_association_alone() {
    let mut world = World::new(SctpConfig::default());
    let (client, mut server) = world.pair().await;
    client.send(message(0, 50, 1)).await.unwrap();
    next_message(&mut server).await;
    let to_server: Vec<Frame> =
        world.network.sent().into_iter().filter(|(to, _)| to.ip() == server.local().ip()).collect();
    let from = SocketAddr::new(CLIENT.parse().unwrap(), 0);
    for (_, packet) in &to_server {
        for length in 0..packet.len() {
            world.network.inject(from, SERVER, packet[..length].to_vec());
        }
        for bit in 0..packet.len() * 8 {
            let mut bad = packet.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            world.network.inject(from, SERVER, bad);
        }
        // A replay: duplicates must not be delivered twice, and an old COOKIE ECHO must not restart the
        // association.
        world.network.inject(from, SERVER, packet.clone());
    }
    client.send(message(3, 60, 2)).await.unwrap();
    assert_eq!(next_message(&mut server).await, message(3, 60, 2));
    let rejected = world.listener.rejected();
    assert!(rejected.checksum > 1000 && rejected.malformed > 10, "{rejected:?}");
    assert_eq!(world.endpoint.associations(), 1);
}

/// As above with a corrected checksum, so that the changes are read. Anything may happen to the
/// association, but the endpoint stays, stores no more than it should, and serves others.
#[tokio::test(start_paused = true)]
async fn changed_packets_with_a_right_checksum_cost_one_association_at_most() {
    let mut world = World::new(SctpConfig::default());
    let (client, mut server) = world.pair().await;
    for stream in 0..4 {
        client.send(message(stream, 700, 1)).await.unwrap();
        next_message(&mut server).await;
    }
    client.shutdown().await;
    let recorded: Vec<Vec<u8>> = world
        .network
        .sent()
        .into_iter()
        .filter(|(to, _)| to.ip() == SERVER.parse::<IpAddr>().unwrap())
        .map(|(_, packet)| packet)
        .collect();
    let mut random = Inner { seed: 0x2545_f491_4f6c_dd1d, ..Inner::default() };
    for round in 0..300u16 {
        let Ok(client) = world.call(5001 + round).await else { panic!("round {round}: no association") };
        let mut server = timeout(LONG, world.listener.accept()).await.unwrap().unwrap();
        client.send(message(0, 100, 2)).await.unwrap();
        let live = world.network.sent();
        let from = SocketAddr::new(CLIENT.parse().unwrap(), 0);
        for packet in recorded.iter().chain(live.iter().map(|(_, packet)| packet)) {
            let mut changed = packet.clone();
            for _ in 0..=random.random(3) {
                let bit = random.random(8 * changed.len() as u64) as usize;
                changed[bit / 8] ^= 1 << (bit % 8);
            }
            changed.truncate((changed.len() - random.random(8) as usize).max(packet::HEADER));
            // To the existing association: its ports, and often its tag.
            changed[..4].copy_from_slice(&[(5001 + round).to_be_bytes(), NGAP_PORT.to_be_bytes()].concat());
            if random.random(2) == 0
                && let Some((_, last)) = live.iter().rev().find(|(to, _)| to.ip() == server.local().ip())
            {
                changed[4..8].copy_from_slice(&last[4..8]);
            }
            world.network.inject(from, SERVER, resealed(changed));
        }
        settle().await;
        drop(client);
        // Reading what is left of it ends.
        while timeout(LONG, server.recv()).await.expect("an end").is_some() {}
    }
    settle().await;
    let (client, mut server) = world.pair().await;
    client.send(message(1, 10, 3)).await.unwrap();
    assert_eq!(next_message(&mut server).await, message(1, 10, 3));
    // Old COOKIE ECHOs may have been accepted, but none more than once.
    assert!(world.endpoint.associations() <= 2, "{} associations", world.endpoint.associations());
}

/// INITs of strangers without COOKIE ECHO cost nothing, and the real peer can still connect.
#[tokio::test(start_paused = true)]
async fn a_flood_of_inits_leaves_no_trace() {
    let mut world = World::new(SctpConfig::default());
    for number in 0..10_000u32 {
        let from = SocketAddr::new(IpAddr::V4((0x0a10_0000 + number).into()), 0);
        world.network.inject(from, SERVER, init(1000 + number as u16 % 5000));
    }
    let (client, mut server) = world.pair().await;
    client.send(message(0, 5, 5)).await.unwrap();
    next_message(&mut server).await;
    assert_eq!(world.endpoint.associations(), 1);
}

/// An INIT packet from SCTP port `port`.
fn init(port: u16) -> Vec<u8> {
    let options = Options { local_port: port, remote_port: NGAP_PORT, ..Options::default() };
    let mut machine = Socket::new("", &options);
    machine.connect();
    loop {
        if let Some(SocketEvent::SendPacket(packet)) = machine.poll_event() {
            return packet;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cookies_of_others_are_refused() {
    let world = World::new(SctpConfig::default());
    let from = SocketAddr::new("10.0.0.9".parse().unwrap(), 0);
    // The protocol machine's own, unsealed cookie, which anyone can compute.
    let options = |local, remote| Options { local_port: local, remote_port: remote, ..Options::default() };
    let mut caller = Socket::new("", &options(7000, NGAP_PORT));
    let mut listener = Socket::new("", &options(NGAP_PORT, 7000));
    caller.connect();
    let pass = |from: &mut Socket, to: &mut Socket| {
        let mut last = Vec::new();
        while let Some(event) = from.poll_event() {
            if let SocketEvent::SendPacket(packet) = event {
                to.handle_input(&packet);
                last = packet;
            }
        }
        last
    };
    pass(&mut caller, &mut listener);
    pass(&mut listener, &mut caller);
    let echo = pass(&mut caller, &mut listener);
    assert_eq!(echo[12], packet::COOKIE_ECHO);
    world.network.inject(from, SERVER, echo);
    settle().await;
    assert_eq!(world.listener.rejected().forged_cookie, 1);
    assert_eq!(world.endpoint.associations(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_table_is_bounded() {
    let mut world = World::new(SctpConfig { max_associations: 3, ..SctpConfig::default() });
    let mut kept = Vec::new();
    for port in 5000..5003 {
        let wire = world.network.host(&format!("10.0.1.{}", port - 5000));
        kept.push((call_on(wire, port).await.unwrap(), world.listener.accept().await.unwrap()));
    }
    let refused = call_on(world.network.host("10.0.1.77"), 5003).await.unwrap_err();
    assert!(matches!(refused, CloseReason::PeerAborted(_)), "{refused}");
    assert_eq!(world.listener.rejected().table_full, 1);
    // After one has ended, another is accepted.
    let (client, server) = kept.pop().unwrap();
    drop(server);
    assert_eq!(client.shutdown().await, CloseReason::Shutdown);
    settle().await;
    call_on(world.network.host("10.0.1.77"), 5003).await.unwrap();
}

async fn call_on(wire: Wire, port: u16) -> Result<Association, CloseReason> {
    let Wire::Memory(MemoryWire { address: local, .. }) = wire else { unreachable!() };
    let (endpoint, _) = Endpoint::open(wire, port, SctpConfig::default(), false).unwrap();
    let peer = SocketAddr::new(SERVER.parse().unwrap(), NGAP_PORT);
    let shared = endpoint.add(cookie::Path { local, peer }, 0);
    shared.connect();
    shared.established().await?;
    Ok(Association { carrier: Carrier::User(shared), ended: false })
}

async fn settle() {
    time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_peer_is_noticed_and_a_port_without_listener_refuses() {
    let mut world = World::new(SctpConfig::default());
    let (client, mut server) = world.pair().await;
    world.network.cut(true);
    let start = time::now();
    let closed = timeout(LONG, server.recv()).await.unwrap();
    assert_eq!(closed, Some(Event::Closed { reason: CloseReason::Lost }));
    assert!(time::now() - start < Duration::from_secs(25), "took {:?}", time::now() - start);
    settle().await;
    assert_eq!(world.endpoint.associations(), 0);
    drop(client);

    world.network.cut(false);
    drop(world.listener);
    settle().await;
    // The endpoint's task has ended: there is no answer at all.
    let network = Network::default();
    let (deaf, _) = Endpoint::open(network.host(SERVER), NGAP_PORT, SctpConfig::default(), false).unwrap();
    let refused = call_on(network.host(CLIENT), 5000).await.unwrap_err();
    assert!(matches!(refused, CloseReason::PeerAborted(_)), "{refused}");
    assert_eq!(deaf.rejected().out_of_the_blue, 1);
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_unreachable() {
    let network = Network::default();
    let lost = call_on(network.host(CLIENT), 5000).await.unwrap_err();
    assert_eq!(lost, CloseReason::Lost);
}

/// A gNB that was killed and starts again from the same port before its end was noticed.
#[tokio::test(start_paused = true)]
async fn a_restarted_peer_keeps_its_association() {
    let mut world = World::new(SctpConfig::default());
    let (old, mut server) = world.pair().await;
    old.send(message(0, 10, 1)).await.unwrap();
    next_message(&mut server).await;
    // The new process takes the address; the old one receives nothing any more.
    let new = world.call(5000).await.unwrap();
    assert_eq!(timeout(LONG, server.recv()).await.unwrap(), Some(Event::Restarted));
    new.send(message(1, 20, 2)).await.unwrap();
    assert_eq!(next_message(&mut server).await, message(1, 20, 2));
    server.send(message(2, 20, 3)).await.unwrap();
    let mut new = new;
    assert_eq!(next_message(&mut new).await, message(2, 20, 3));
    assert_eq!(world.endpoint.associations(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_abort_reaches_the_peer_and_a_dropped_association_ends_in_order() {
    let mut world = World::new(SctpConfig::default());
    let (client, mut server) = world.pair().await;
    client.abort();
    let closed = timeout(LONG, server.recv()).await.unwrap();
    assert!(matches!(closed, Some(Event::Closed { reason: CloseReason::PeerAborted(_) })), "{closed:?}");

    let (client, mut server) = world.pair().await;
    client.send(message(0, 50_000, 4)).await.unwrap();
    drop(client);
    assert_eq!(next_message(&mut server).await.payload.len(), 50_000);
    let closed = timeout(LONG, server.recv()).await.unwrap();
    assert_eq!(closed, Some(Event::Closed { reason: CloseReason::Shutdown }));
}

/// A reader that pauses stops the sender, with bounded memory; no message is lost.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_holds_the_sender_back() {
    let mut world = World::new(SctpConfig { send_buffer: 200_000, ..SctpConfig::default() });
    let (client, mut server) = world.pair().await;
    let sender = client.sender();
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = sent.clone();
    let sending = tokio::spawn(async move {
        for number in 0..400u16 {
            sender.send(message(0, 10_000, number as u8)).await.unwrap();
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    time::sleep(Duration::from_secs(2)).await;
    let stuck = sent.load(std::sync::atomic::Ordering::Relaxed);
    assert!(stuck < 300, "{stuck} messages taken though nobody reads");
    for number in 0..400u16 {
        assert_eq!(next_message(&mut server).await, message(0, 10_000, number as u8));
    }
    sending.await.unwrap();
}

/// Packets of no association (RFC 9260 §8.4).
#[tokio::test(start_paused = true)]
async fn out_of_the_blue_packets_get_the_answer_the_standard_names() {
    let world = World::new(SctpConfig::default());
    let from = SocketAddr::new("10.0.0.9".parse().unwrap(), 0);
    let answer = async |packet: Vec<u8>| {
        world.network.sent();
        world.network.inject(from, SERVER, packet);
        settle().await;
        world.network.sent().pop().map(|(_, bytes)| bytes)
    };
    // DATA: an ABORT with the tag reflected.
    let mut data = packet::abort(1, NGAP_PORT, 77, false, None);
    data[12] = 0;
    let data = resealed(data);
    let reply = answer(data).await.unwrap();
    let reply = packet::Packet::parse(&reply).unwrap();
    assert_eq!((reply.verification_tag(), reply.destination_port()), (77, 1));
    assert!(reply.first().is_some_and(|chunk| chunk.kind == packet::ABORT && chunk.reflected()));
    // SHUTDOWN ACK: SHUTDOWN COMPLETE.
    let mut shutdown_ack = packet::abort(1, NGAP_PORT, 78, false, None);
    shutdown_ack[12] = packet::SHUTDOWN_ACK;
    let reply = answer(resealed(shutdown_ack)).await.unwrap();
    assert_eq!(reply[12], packet::SHUTDOWN_COMPLETE);
    // Silence for ABORT, SHUTDOWN COMPLETE, COOKIE ACK, stale-cookie ERROR; and for another port.
    assert_eq!(answer(packet::abort(1, NGAP_PORT, 79, false, None)).await, None);
    assert_eq!(answer(packet::shutdown_complete(1, NGAP_PORT, 79)).await, None);
    assert_eq!(answer(packet::stale_cookie(1, NGAP_PORT, 79, 5)).await, None);
    assert_eq!(answer(packet::stale_cookie(1, 999, 79, 5)).await, None);
    assert_eq!(world.listener.rejected().out_of_the_blue, 5);
}

/// `packet` with a corrected checksum.
fn resealed(mut packet: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::packet_checksum(&packet);
    packet[8..12].copy_from_slice(&checksum.to_le_bytes());
    packet
}

#[tokio::test]
async fn raw_and_udp_sockets_between_namespaces() {
    let Some(namespace) = NetNs::for_test() else { return };
    for mode in [SctpMode::Raw, SctpMode::Udp { port: 9899 }] {
        for address in ["127.0.0.1:38412", "[::1]:38412"] {
            let config = SctpConfig { mode, ..SctpConfig::default() };
            let inside = namespace.clone();
            // A runtime in the namespace, because sockets belong to the namespace of the thread that
            // opens them.
            std::thread::spawn(move || {
                inside.join().unwrap();
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let listener = Listener::bind(address.parse().unwrap(), config.clone()).await.unwrap();
                    let twice = Listener::bind(address.parse().unwrap(), config.clone()).await;
                    assert!(matches!(twice, Err(BindError::Address { .. })), "{mode}: a port is taken once");
                    converse(listener, config).await;
                });
            })
            .join()
            .unwrap();
        }
    }
}

#[tokio::test]
async fn a_listener_on_every_address_answers_from_the_one_called() {
    let Some(namespace) = NetNs::for_test() else { return };
    for (mode, any, called) in [
        (SctpMode::Raw, "0.0.0.0:38412", "127.0.0.9:38412"),
        (SctpMode::Udp { port: 9899 }, "0.0.0.0:38412", "127.0.0.9:38412"),
        (SctpMode::Raw, "[::]:38412", "[::1]:38412"),
    ] {
        let config = SctpConfig { mode, ..SctpConfig::default() };
        let inside = namespace.clone();
        std::thread::spawn(move || {
            inside.join().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut listener = Listener::bind(any.parse().unwrap(), config.clone()).await.unwrap();
                let caller = if any.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
                let client = Association::connect(caller.parse().unwrap(), called.parse().unwrap(), config);
                let (client, server) = tokio::join!(client, listener.accept());
                let (client, mut server) = (client.unwrap(), server.unwrap());
                assert_eq!(server.local(), called.parse().unwrap());
                client.send(message(1, 3000, 1)).await.unwrap();
                assert_eq!(next_message(&mut server).await, message(1, 3000, 1));
            });
        })
        .join()
        .unwrap();
    }
}
