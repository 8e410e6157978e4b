//! The ends of a path through a user plane: sockets of gNB and data network, used by the one measuring thread.
//!
//! Arrivals are counted by the interface's own counters, so that receiving costs little while a rate is
//! measured. Several datagrams may pass the interface as one frame, which the kernel cuts behind it (`UDP_SEGMENT`), so
//! packets are counted by their octets. Sockets hold what fits and the kernel drops the rest, which is the cheapest possible receiver. A
//! batch in [`COMPARED`] is compared octet by octet while a rate is measured ([`super::contents`]), the packets left in the
//! sockets after it, and so is every packet that is timed. [`Ends::verify`] requires every packet to arrive.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::time::{self, Duration};
use packet::gtpu;
use pktio::udp::UdpPort;
use pktio::{Port as _, Vector};
use upf::pipeline::BATCH;

use super::contents::{self, Contents, Found, Tally, Wrong};
use super::network::Network;
use super::subscriber::{CP, OTHER_PORT, SERVER, Subscriber};
use super::traffic::{Draw, SMALLEST, TUNNEL, Template, UDP_HEADER, UE_PORT};
use crate::stats::quantile;

/// Octets of a buffer: the longest packet.
const PACKET: usize = 2048;
/// Octets of the headers of a datagram over IPv4: Ethernet, and IP with UDP.
const ETHERNET: usize = 14;
const IP_UDP: usize = 28;
/// Time after which a packet counts as lost.
const LOST: Duration = Duration::from_millis(50);
/// The same when every packet has to arrive, even on a busy machine.
const LAST_OF_ALL: Duration = Duration::from_secs(2);
/// Packets under way at once when every packet has to arrive: as many as every socket on the way can hold.
const WINDOW: usize = 32;
/// In a flood, a batch is received and compared for this many batches that are sent.
const COMPARED: usize = 8;
/// Number of the first packet of [`Ends::verify`]; higher than those of all other packets.
const VERIFIED: u32 = 1 << 30;
/// Octets of user packets when all sizes come in turn: the longest size, and the step.
const LONGEST: usize = 1500;
const SIZE_STEP: usize = 73;

/// A path through the user plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Path {
    /// gNB to data network.
    Uplink,
    /// Data network to gNB.
    Downlink,
    /// gNB to another UPF (N9): UDP sockets on both sides.
    Relay,
}

impl Path {
    pub(super) const ALL: [Path; 3] = [Path::Uplink, Path::Downlink, Path::Relay];

    pub(super) fn name(self) -> &'static str {
        match self {
            Path::Uplink => "uplink",
            Path::Downlink => "downlink",
            Path::Relay => "relay",
        }
    }
}

/// The addresses of a contender for a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// Its GTP-U socket.
    pub(super) n3: SocketAddr,
    /// TEIDs of its subscribers.
    pub(super) teids: &'a [u32],
    /// Added to UE addresses.
    pub(super) shift: u32,
    /// TEIDs of the packets that come out in tunnels.
    pub(super) sends: Teid,
}

/// The TEID that a contender sets in a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Teid {
    /// The subscriber's TEID at its gNB.
    OfSubscriber,
    /// The same TEID for all packets.
    Fixed(u32),
    /// The TEID with which the packet came.
    Kept,
}

/// Sockets of gNB, data network and the other UPF.
pub(super) struct Ends {
    gnb: UdpPort,
    server: UdpPort,
    other_upf: UdpPort,
    counters: [Counter; 2],
    batch: Vector,
    taken: Vector,
    all: Vec<u16>,
    contents: Contents,
    tally: Tally,
    /// Number of the next packet that [`Ends::verify`] sends.
    next: u32,
}

/// The other UPF's GTP-U address.
pub(super) fn other_upf() -> SocketAddr {
    SocketAddr::new(SERVER.into(), gtpu::PORT)
}

/// The gNB's GTP-U address.
pub(super) fn gnb() -> SocketAddr {
    SocketAddr::new(CP.into(), gtpu::PORT)
}

/// One-way times of packets, microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) lost: usize,
    pub(super) timed: usize,
}

impl Ends {
    pub(super) fn new(network: &Network) -> anyhow::Result<Ends> {
        let bind = |namespace: &NetNs, address| {
            let bound = namespace.enter(|| UdpPort::bind(address, false))?;
            bound.with_context(|| format!("bind {address}"))
        };
        Ok(Ends {
            gnb: bind(&network.gnb, gnb())?,
            server: bind(&network.dn, SocketAddr::new(SERVER.into(), OTHER_PORT))?,
            other_upf: bind(&network.dn, other_upf())?,
            counters: [Counter::open(&network.gnb, "n3")?, Counter::open(&network.dn, "n6")?],
            batch: Vector::new(BATCH, PACKET),
            taken: Vector::new(BATCH, PACKET),
            all: (0..BATCH as u16).collect(),
            contents: Contents::new(0),
            tally: Tally::default(),
            next: VERIFIED,
        })
    }

    /// The packets compared since the last call.
    pub(super) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Sends packets as fast as this core can for `time`, after a warm-up; returns the packets per second that
    /// arrived.
    pub(super) fn flood(
        &mut self,
        path: Path,
        size: usize,
        target: Target<'_>,
        duration: Duration,
    ) -> anyhow::Result<f64> {
        let mut source = Source::new(path, size, target)?;
        // A user's datagram without its headers, or the user's packet in a tunnel.
        let payload = if path == Path::Uplink { size - IP_UDP } else { size + TUNNEL };
        self.flood_for(&mut source, duration / 4);
        let (before, start) = (self.arrived(path)?, time::now_std());
        self.flood_for(&mut source, duration);
        let (after, took) = (self.arrived(path)?, start.elapsed());
        self.settle(path, target);
        Ok(before.datagrams_until(after, payload) / took.as_secs_f64())
    }

    /// Sends for a time, and compares a batch of what arrives for some that are sent.
    fn flood_for(&mut self, source: &mut Source<'_>, duration: Duration) {
        let (start, mut batches) = (time::now_std(), 0_usize);
        while start.elapsed() < duration {
            self.send(source, BATCH, None);
            batches += 1;
            if batches.is_multiple_of(COMPARED) {
                self.take(source.path, source.target, |_| ());
            }
        }
    }

    /// Sends `count` packets of the source. With `marks`, they contain their number and the time.
    fn send(&mut self, source: &mut Source<'_>, count: usize, marks: Option<(u32, u64)>) -> usize {
        source.fill(&mut self.batch, count, marks);
        let port = if source.path == Path::Downlink { &mut self.server } else { &mut self.gnb };
        port.transmit(&mut self.batch, &self.all[..count]).packets
    }

    /// What the interface at the path's end has received.
    fn arrived(&mut self, path: Path) -> anyhow::Result<Received> {
        self.counters[usize::from(path != Path::Downlink)].read()
    }

    /// Receives packets until no more come.
    pub(super) fn settle(&mut self, path: Path, target: Target<'_>) {
        let mut quiet = time::now_std();
        while quiet.elapsed() < Duration::from_millis(5) {
            if self.take(path, target, |_| ()) > 0 {
                quiet = time::now_std();
            }
        }
    }

    /// Sends `count` packets of all sizes in turn, few at a time, and checks that each arrives once and is as
    /// expected.
    ///
    /// # Errors
    /// A packet is missing, arrives twice, or differs.
    pub(super) fn verify(&mut self, path: Path, target: Target<'_>, count: u32) -> anyhow::Result<()> {
        self.settle(path, target);
        let sizes = (SMALLEST..=LONGEST).step_by(SIZE_STEP);
        let mut sources: Vec<Source<'_>> =
            sizes.map(|size| Source::new(path, size, target)).collect::<anyhow::Result<_>>()?;
        let mut under_way: HashMap<u32, usize> = HashMap::new();
        let first = self.next;
        self.next += count;
        let (mut sent, mut last) = (0, time::now_std());
        while sent < count || !under_way.is_empty() {
            if last.elapsed() > LAST_OF_ALL {
                bail!("of {sent} packets {} did not arrive", under_way.len());
            }
            while under_way.len() < WINDOW && sent < count {
                let (turn, number) = (sent as usize % sources.len(), first + sent);
                if self.send(&mut sources[turn], 1, Some((number, 0))) == 0 {
                    break;
                }
                under_way.insert(number, sources[turn].size);
                sent += 1;
            }
            let mut found = Vec::new();
            self.take(path, target, |one| found.push(one));
            // Lower numbers belong to earlier samples.
            for one in found.into_iter().filter(|one| one.number >= first) {
                let known = under_way.remove(&one.number);
                if known != Some(one.size) {
                    bail!("a packet arrived that is not under way: {one:?}, sent with {known:?} octets");
                }
                last = time::now_std();
            }
        }
        Ok(())
    }

    /// Receives waiting packets at a path's end and compares them; calls `see` with each that is as expected.
    fn take(&mut self, path: Path, target: Target<'_>, mut see: impl FnMut(Found)) -> usize {
        let port = match path {
            Path::Uplink => &mut self.server,
            Path::Downlink => &mut self.gnb,
            Path::Relay => &mut self.other_upf,
        };
        // An ICMP error caused by an earlier packet counts as nothing received.
        let received = port.receive(&mut self.taken).unwrap_or(0);
        for (frame, peer) in self.taken.frames().iter().zip(self.taken.peers()) {
            let compared = compare(path, target, (frame.packet(), *peer), &mut self.contents);
            let Some(compared) = compared else { continue };
            if let Some(found) = self.tally.count(compared, frame.packet()) {
                see(found);
            }
        }
        received
    }

    /// Sends one packet at a time with pauses of `every`: the time of a packet when nothing else is under way.
    pub(super) fn latency_low(
        &mut self,
        path: Path,
        target: Target<'_>,
        (count, every): (usize, Duration),
    ) -> anyhow::Result<Latency> {
        let mut source = Source::new(path, SMALLEST + 24, target)?;
        let (mut times, mut lost) = (Vec::with_capacity(count), 0);
        let epoch = time::now_std();
        for number in 0..count as u32 {
            let start = time::now_std();
            self.send(&mut source, 1, Some((number, (start - epoch).as_nanos() as u64)));
            let mut found = None;
            while found.is_none() && start.elapsed() < LOST {
                let mut arrived = false;
                self.take(path, target, |one| arrived |= one.number == number);
                found = arrived.then(|| start.elapsed());
            }
            match found {
                Some(took) => times.push(took.as_nanos() as f64 / 1e3),
                None => lost += 1,
            }
            while start.elapsed() < every {
                std::hint::spin_loop();
            }
        }
        Ok(Latency { p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), lost, timed: times.len() })
    }

    /// Sends a steady stream of `rate` packets per second for `duration`.
    pub(super) fn latency_loaded(
        &mut self,
        path: Path,
        target: Target<'_>,
        (rate, duration): (f64, Duration),
    ) -> anyhow::Result<Latency> {
        let mut source = Source::new(path, SMALLEST + 24, target)?;
        let mut times = Vec::with_capacity((rate * duration.as_secs_f64()) as usize + BATCH);
        let epoch = time::now_std();
        let mut sent = 0_u32;
        let mut last = epoch;
        loop {
            let now = time::now_std();
            let elapsed = now - epoch;
            if elapsed < duration {
                let due = (elapsed.as_secs_f64() * rate) as u32;
                // Few at a time, because packets of one burst wait for each other.
                let count = (due.saturating_sub(sent) as usize).min(BATCH / 4);
                if count > 0 {
                    self.send(&mut source, count, Some((sent, elapsed.as_nanos() as u64)));
                    sent += count as u32;
                }
            } else if now - last > LOST {
                break;
            }
            let mut marks = [0_u64; BATCH];
            let mut found = 0;
            let taken_at = time::now_std();
            self.take(path, target, |one| {
                marks[found.min(BATCH - 1)] = one.time_ns;
                found += 1;
            });
            if found > 0 {
                last = taken_at;
                let now_ns = (last - epoch).as_nanos() as u64;
                let took = marks[..found.min(BATCH)].iter().map(|at| now_ns.saturating_sub(*at) as f64 / 1e3);
                times.extend(took);
            }
        }
        let lost = (sent as usize).saturating_sub(times.len());
        Ok(Latency { p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), lost, timed: times.len() })
    }
}

/// Compares a packet that came out of a path with the expected one; the peer is its sender. `None` for packets
/// of others: late packets of another contender, and packets that a kernel sends by itself.
fn compare(
    path: Path,
    target: Target<'_>,
    (bytes, peer): (&[u8], SocketAddr),
    contents: &mut Contents,
) -> Option<Result<Found, Wrong>> {
    if path == Path::Uplink {
        let ue = contents::v4(peer.ip());
        let first = Subscriber(0).ue().to_bits() + target.shift;
        let number = ue.to_bits().checked_sub(first)?;
        let found = (number < target.teids.len() as u32).then(|| contents.datagram(true, ue, bytes))?;
        return Some(
            found.and_then(|one| if peer.port() == UE_PORT { Ok(one) } else { Err("the UE's port") }),
        );
    }
    if peer != target.n3 || contents::is_echo_request(bytes) {
        return None;
    }
    let user = match contents::gpdu(path == Path::Relay, bytes) {
        Ok((_, user)) if user.first().is_some_and(|first| first >> 4 == 6) => return None,
        Ok(tunnelled) => tunnelled,
        Err(wrong) => return Some(Err(wrong)),
    };
    Some(compare_tunnelled(path, target, user, contents))
}

/// The same for a TEID and the user's packet in its tunnel.
fn compare_tunnelled(
    path: Path,
    target: Target<'_>,
    (teid, user): (u32, &[u8]),
    contents: &mut Contents,
) -> Result<Found, Wrong> {
    let found = match path {
        Path::Relay => contents.user_packet(true, user)?,
        _ => contents.sent_by_socket(user)?,
    };
    let wanted = match target.sends {
        Teid::OfSubscriber => Some(found.subscriber.gnb_teid()),
        Teid::Fixed(teid) => Some(teid),
        Teid::Kept => {
            let number = found.subscriber.0.checked_sub(target.shift);
            number.and_then(|number| target.teids.get(number as usize).copied())
        }
    };
    if wanted == Some(teid) { Ok(found) } else { Err("the TEID") }
}

/// Packets of random subscribers for a path.
struct Source<'a> {
    path: Path,
    /// Octets of user packets.
    size: usize,
    target: Target<'a>,
    template: Template,
    draw: Draw,
}

impl<'a> Source<'a> {
    fn new(path: Path, size: usize, target: Target<'a>) -> anyhow::Result<Source<'a>> {
        let template = Template::new(path != Path::Downlink, size)?.shifted(target.shift);
        Ok(Source { path, size, target, template, draw: Draw::new(target.teids.len(), 9) })
    }

    fn fill(&mut self, batch: &mut Vector, count: usize, marks: Option<(u32, u64)>) {
        batch.clear();
        for at in 0..count as u32 {
            let (subscriber, _) = self.draw.next();
            if let Some((number, time_ns)) = marks {
                self.template.mark(number + at, time_ns);
            }
            let teid = self.target.teids[subscriber.0 as usize];
            let packet = self.template.fill(subscriber, teid, false);
            match self.path {
                Path::Uplink | Path::Relay => batch.push(packet, self.target.n3),
                // The socket makes the headers itself.
                Path::Downlink => {
                    let payload = packet::ipv4::HEADER_LEN + UDP_HEADER;
                    batch.push(&packet[payload..], ue_socket(subscriber, self.target.shift))
                }
            };
        }
    }
}

fn ue_socket(subscriber: Subscriber, shift: u32) -> SocketAddr {
    let address = Ipv4Addr::from_bits(subscriber.ue().to_bits() + shift);
    SocketAddr::new(IpAddr::V4(address), UE_PORT)
}

/// The counters of an interface, from /proc.
struct Counter {
    file: File,
    interface: &'static str,
}

impl Counter {
    fn open(namespace: &NetNs, interface: &'static str) -> anyhow::Result<Counter> {
        // The file belongs to the namespace in which it was opened, whoever reads it.
        let file = namespace.enter(|| File::open("/proc/thread-self/net/dev"))??;
        Ok(Counter { file, interface })
    }

    fn read(&mut self) -> anyhow::Result<Received> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        Received::parse(&text, self.interface).with_context(|| format!("{} is not in {text}", self.interface))
    }
}

/// What an interface has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Received {
    octets: u64,
    frames: u64,
}

impl Received {
    /// The first two numbers of an interface's line.
    fn parse(text: &str, interface: &str) -> Option<Received> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'))?;
        let mut numbers = line.split_whitespace().map_while(|number| number.parse().ok());
        Some(Received { octets: numbers.next()?, frames: numbers.next()? })
    }

    /// Datagrams of `payload` octets that have come since, in frames with any number of them.
    fn datagrams_until(self, later: Received, payload: usize) -> f64 {
        let headers = (later.frames - self.frames) * (ETHERNET + IP_UDP) as u64;
        (later.octets - self.octets).saturating_sub(headers) as f64 / payload as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_counted_by_their_octets() {
        let text = |octets: u64, frames: u64| {
            format!(
                "Inter-| Receive\n face |bytes packets\n    lo:  1 2 3\n  n3: {octets} {frames} 0 0 5 6\n"
            )
        };
        let before = Received::parse(&text(700, 9), "n3").unwrap();
        assert_eq!(
            (before, Received::parse(&text(700, 9), "n6")),
            (Received { octets: 700, frames: 9 }, None)
        );
        // One datagram by itself, and a frame with three.
        let after = Received::parse(&text(700 + 42 + 80 + 42 + 240, 11), "n3").unwrap();
        assert_eq!(before.datagrams_until(after, 80), 4.0);
    }
}
