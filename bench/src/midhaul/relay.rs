//! The CU's relay between ports in memory: what a packet costs from N3 to F1-U and back, by ciphering and integrity protection.
//!
//! The packets of a window are made untimed, uplink ones by the UE's own PDCP, and fit the second-level cache, in which a network
//! card would put them. Before every sample, packets of its kind go through the relay and are opened again at the far end,
//! octet by octet.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use cu::user_plane::{BearerConfig, Interface, Relay, Role, Tunnel, UserPlane};
use l2::pdcp::{self, Rx, RxConfig, Security, SnLength, Tx, Verdict};
use l2::sdap::DrbId;
use l2::security::{Cipher, CipheringAlgorithm, Direction, Integrity, IntegrityAlgorithm};
use net::time::{self, Duration};
use packet::gtpu::{self, PduSession};
use packet::nr_u::{DeliveryStatus, MAX_STATUS};
use path::{Graph as _, Ports};
use pktio::memory::{self, Sink};
use pktio::{Pool, VECTOR, Vector};
use types::{Key, Qfi};

use super::{MPPS, NS, Run};

/// Vectors between two readings of the clock.
const WINDOW: usize = 8;
/// Vectors whose packets are compared before each sample.
const COMPARED: usize = 4;
/// Numbers of the interfaces.
const F1U: u8 = 0;
const N3: u8 = 1;
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const QFI: u8 = 1;

/// How user data is protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protection {
    /// Not at all.
    Nea0,
    /// Ciphered.
    Nea2,
    /// Ciphered and integrity-protected.
    Nea2Nia2,
}

impl Protection {
    pub(super) const ALL: [Protection; 3] = [Protection::Nea0, Protection::Nea2, Protection::Nea2Nia2];

    pub(super) fn name(self) -> &'static str {
        match self {
            Protection::Nea0 => "nea0",
            Protection::Nea2 => "nea2",
            Protection::Nea2Nia2 => "nea2_nia2",
        }
    }

    /// Algorithms and keys of the bearer with this number.
    fn security(self, number: u32) -> Security {
        let key = |octet: u8| {
            let mut octets = [octet; 16];
            octets[..4].copy_from_slice(&number.to_be_bytes());
            Key::new(octets)
        };
        let ciphering =
            if self == Protection::Nea0 { CipheringAlgorithm::Nea0 } else { CipheringAlgorithm::Nea2 };
        let integrity =
            (self == Protection::Nea2Nia2).then(|| Integrity::new(IntegrityAlgorithm::Nia2, &key(2)));
        Security::new(Cipher::new(ciphering, &key(1)), integrity)
    }
}

/// PDCP with 18 bits and SDAP headers, as of a broadband bearer.
fn config(direction: Direction) -> anyhow::Result<pdcp::Config> {
    Ok(pdcp::Config::drb(DrbId::new(1).context("1 is a DRB")?, direction, SnLength::Eighteen, true))
}

/// A bearer, seen from its ends.
struct Bearer {
    /// The CU's tunnels on N3 and F1-U.
    n3: u32,
    f1u: u32,
    tx: Tx,
    /// Packets that have been sent to the UE.
    down: u32,
}

/// A relay with bearers.
struct World {
    protection: Protection,
    relay: Relay,
    _user_plane: UserPlane,
    ports: Ports,
    bearers: Vec<Bearer>,
    state: u32,
}

impl World {
    fn new(protection: Protection, count: u32) -> anyhow::Result<World> {
        let interfaces =
            vec![Interface::new("f1u", Role::F1u, ADDRESS), Interface::new("n3", Role::N3, ADDRESS)];
        let (user_plane, mut relay, _events) = UserPlane::new(interfaces)?;
        let mut ports: Ports = vec![Box::new(Sink::default()), Box::new(Sink::default())];
        let mut bearers = Vec::new();
        for number in 0..count {
            let tunnel = Tunnel { address: PEER, teid: number };
            let session = user_plane.open(N3, tunnel)?;
            let security = || protection.security(number);
            let tx = Tx::new(config(Direction::Downlink)?, security());
            let rx = Rx::new(config(Direction::Uplink)?, security(), RxConfig::default());
            let bearer =
                user_plane.add(session, F1U, BearerConfig::new(tx, rx, true, vec![Qfi::new(QFI)?]))?;
            user_plane.connect(session, bearer, tunnel)?;
            bearers.push(Bearer {
                n3: user_plane.n3_tunnel(session).teid,
                f1u: user_plane.f1u_tunnel(bearer).teid,
                tx: Tx::new(config(Direction::Uplink)?, security()),
                down: 0,
            });
        }
        // DUs without limits.
        let mut vector = Vector::of(relay.home());
        let mut message = [0; MAX_STATUS];
        let status = DeliveryStatus { desired_buffer_size: u32::MAX, ..DeliveryStatus::default() };
        for bearer in &bearers {
            let length = status.write(bearer.f1u, &mut message).context("a status fits")?;
            vector.clear();
            vector.push(&message[..length], peer());
            relay.process(F1U.into(), &mut vector, time::now_ns(), &mut ports);
        }
        drop(vector);
        Ok(World { protection, relay, _user_plane: user_plane, ports, bearers, state: 1 })
    }

    /// A bearer at random.
    fn draw(&mut self) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        self.state as usize % self.bearers.len()
    }

    /// Writes the next packet of `size` octets of a random bearer, up or down, into `message`; returns the bearer.
    fn write(&mut self, up: bool, size: usize, message: &mut Vec<u8>) -> anyhow::Result<usize> {
        let at = self.draw();
        let bearer = &mut self.bearers[at];
        message.clear();
        if up {
            message.extend([0; gtpu::HEADER_LEN]);
            message.extend(vec![0; bearer.tx.header_len()]);
            message.push(0x80 | QFI);
            message.extend((0..size).map(|octet| octet as u8));
            message.resize(message.len() + bearer.tx.trailer_len(), 0);
            bearer.tx.seal(&mut message[gtpu::HEADER_LEN..])?;
            let length = message.len() - gtpu::HEADER_LEN;
            gtpu::encapsulate(&mut message[..gtpu::HEADER_LEN], bearer.f1u, length, None);
        } else {
            bearer.down += 1;
            let container = Some(PduSession::Downlink { qfi: QFI, rqi: false, ppi: None });
            message.extend(vec![0; gtpu::encapsulation_len(container)]);
            let header = message.len();
            gtpu::encapsulate(&mut message[..header], bearer.n3, size, container);
            message.extend((0..size).map(|octet| octet as u8));
        }
        Ok(at)
    }
}

fn peer() -> SocketAddr {
    SocketAddr::new(PEER, gtpu::PORT)
}

/// Measures all kinds of protection with `bearers` bearers.
///
/// # Errors
/// A packet does not come out as it must.
pub(super) fn run(run: &mut Run, bearers: usize) -> anyhow::Result<()> {
    let mut worlds = Vec::new();
    for protection in Protection::ALL {
        worlds.push((protection, World::new(protection, bearers as u32)?));
    }
    for round in 0..run.plan.rounds {
        for size in run.plan.relay_sizes.clone() {
            run.progress.say(&format!("relay in memory: {bearers} bearers, {size} octets, round {round}"));
            for (protection, world) in &mut worlds {
                compare(world, size)?;
                for up in [true, false] {
                    let ns = sample(world, up, size, run.plan.sample)?;
                    let direction = if up { "uplink" } else { "downlink" };
                    let series = format!("memory.{}.{direction}.{size}", protection.name());
                    run.results.add(format!("{series}.ns"), NS, bearers, ns);
                    run.results.add(format!("{series}.mpps"), MPPS, bearers, 1e3 / ns);
                }
            }
        }
    }
    run.check(
        &format!("relay in memory, {bearers} bearers: packets arrive octet by octet"),
        true,
        String::new(),
    );
    Ok(())
}

/// Nanoseconds per packet.
fn sample(world: &mut World, up: bool, size: usize, at_least: Duration) -> anyhow::Result<f64> {
    let home: Arc<dyn Pool> = pktio::Slab::new(WINDOW * VECTOR, size + 256);
    let mut vectors: Vec<Vector> = (0..WINDOW).map(|_| Vector::of(&home)).collect();
    let (mut message, mut spent, mut packets, mut warm) = (Vec::new(), Duration::ZERO, 0_usize, true);
    let input = usize::from(if up { F1U } else { N3 });
    while spent < at_least {
        for vector in &mut vectors {
            vector.clear();
            for _ in 0..VECTOR {
                world.write(up, size, &mut message)?;
                vector.push(&message, peer());
            }
        }
        let start = time::now_std();
        for vector in &mut vectors {
            world.relay.process(input, vector, time::now_ns(), &mut world.ports);
        }
        let took = time::now_std() - start;
        // The first window is not counted: it refills the caches after the other contender's turn.
        if !std::mem::take(&mut warm) {
            spent += took;
            packets += WINDOW * VECTOR;
        }
    }
    Ok(spent.as_nanos() as f64 / packets as f64)
}

/// Sends packets through the relay and compares what comes out.
fn compare(world: &mut World, size: usize) -> anyhow::Result<()> {
    let (ports, wires): (Vec<_>, Vec<_>) = (0..2).map(|_| memory::pair(COMPARED * VECTOR)).unzip();
    let mut ports: Ports = ports.into_iter().map(|port| Box::new(port) as _).collect();
    let home = Arc::clone(world.relay.home());
    let (mut vector, mut message) = (Vector::of(&home), Vec::new());
    let expected: Vec<u8> = (0..size).map(|octet| octet as u8).collect();
    // The UEs' receivers, at the packets that come next.
    let mut receivers = Vec::new();
    for (number, bearer) in (0..).zip(&world.bearers) {
        let security = world.protection.security(number);
        receivers.push(Rx::starting_at(
            config(Direction::Downlink)?,
            security,
            RxConfig::default(),
            bearer.down,
        ));
    }
    for up in [true, false] {
        let mut sent = Vec::new();
        for _ in 0..COMPARED {
            vector.clear();
            for _ in 0..VECTOR {
                sent.push(world.write(up, size, &mut message)?);
                vector.push(&message, peer());
            }
            let input = usize::from(if up { F1U } else { N3 });
            world.relay.process(input, &mut vector, time::now_ns(), &mut ports);
        }
        let taken = wires[usize::from(if up { N3 } else { F1U })].take();
        if taken.len() != sent.len() {
            bail!("{} of {} packets came out", taken.len(), sent.len());
        }
        for (at, (message, to)) in sent.into_iter().zip(taken) {
            let packet = gtpu::Packet::new(&message)?;
            let found = if up {
                packet.payload().to_vec()
            } else {
                let mut pdu = packet.payload().to_vec();
                let Verdict::Deliver { sdu, .. } = receivers[at].open(&mut pdu, 0) else {
                    bail!("the UE refuses a PDU")
                };
                pdu[sdu.start + 1..sdu.end].to_vec()
            };
            if found != expected || packet.teid() != at as u32 || to != peer() {
                bail!("a packet of {size} octets came out otherwise than it must, up: {up}");
            }
        }
    }
    Ok(())
}
