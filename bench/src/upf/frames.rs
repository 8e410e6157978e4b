//! User planes on frame ports (AF_XDP and DPDK): whole frames come in on one port and leave by the other, in
//! both directions.
//!
//! One side is gNB and data network. It makes frames ([`Source`]), answers ARP requests, and counts, compares
//! and times the frames that come back ([`Generator`]). The other side serves its two ports on a core of its
//! own. It is a user plane, or, as the upper limit of the backend, a bare forwarder that swaps the Ethernet
//! addresses ([`forward_all`]).
//!
//! Frames are compared octet by octet ([`Forwarder::compare`]): all frames of [`Generator::verify`], which
//! requires each frame to come back, and all that are timed. Of a flood, one batch in [`COMPARED`] is compared
//! while its rate is measured, and all batches before and after.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::bail;
use net::time::{self, Duration};
use packet::ethernet::{self, Mac};
use packet::gtpu;
use pktio::{FramePort, Vector};
use upf::pipeline::{BATCH, PACKET};

use super::contents::{self, Contents, Found, Tally, Wrong};
use super::source::{self, Deck, ETHERNET, MAC, Source};
use super::subscriber::{CP, Subscriber, UPF};
use super::traffic::{Direction, SMALLEST};
use super::world::World;
use crate::stats::quantile;

/// Longest frame.
const FRAME: usize = 2048;
/// Cards by which the start of a sample moves on; has no factor in common with the size of a deck.
const STEP: usize = 9973;
/// Time limit for the first packets, including ARP.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two batches of the first packets.
const PAUSE: Duration = Duration::from_micros(500);
/// How long to wait for the last packets of a sample of one-way times.
const LAST: Duration = Duration::from_millis(20);
/// Time without packets after which none of an earlier sample is left.
const QUIET: Duration = Duration::from_millis(5);
/// The same when every packet has to come back, even on a busy machine.
const LAST_OF_ALL: Duration = Duration::from_secs(2);
/// In a flood, one of this many batches is compared while the rate is measured.
const COMPARED: usize = 8;
/// Frames under way at once when each has to come back: fewer than any queue on the way can hold.
const WINDOW: usize = 64;
/// Octets of user packets when all sizes come in turn: the longest size, and the step.
const LONGEST: usize = 1500;
const SIZE_STEP: usize = 73;

/// Forwards frames in both directions, without any other work, until `stop` is set.
///
/// # Errors
/// A port fails.
pub(super) fn forward_all<F: FramePort>(
    (mut n3, mut n6): (F, F),
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    let mut batch = Vector::new(BATCH, PACKET);
    let all: Vec<u16> = (0..BATCH as u16).collect();
    while !stop() {
        // Checking `stop` costs more than a poll.
        for _ in 0..64 {
            forward(&mut n3, &mut n6, &mut batch, &all)?;
            forward(&mut n6, &mut n3, &mut batch, &all)?;
        }
    }
    Ok(())
}

/// Receives a batch from one port and sends it by the other, with the Ethernet addresses swapped.
fn forward<F: FramePort>(from: &mut F, to: &mut F, batch: &mut Vector, all: &[u16]) -> std::io::Result<()> {
    let received = from.receive(batch)?;
    if received > 0 {
        for mut buffer in batch.frames_mut() {
            if let Some((destination, rest)) = buffer.packet_mut().split_at_mut_checked(6)
                && let Some(source) = rest.get_mut(..6)
            {
                destination.swap_with_slice(source);
            }
        }
        to.transmit(batch, &all[..received]);
    }
    Ok(())
}

/// One-way times in microseconds, and the number of lost packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) lost: f64,
}

/// What the forwarder does to frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forwarder {
    /// Only the Ethernet addresses change: [`forward_all`].
    Bare,
    /// Tunnel headers are removed and added. The sessions are spread over a number of gNBs.
    UserPlane {
        /// Number of gNBs; their addresses start at [`CP`].
        gnbs: u32,
    },
}

impl Forwarder {
    /// Whether packets of a direction leave in tunnels.
    fn tunnels(self, up: bool) -> bool {
        match self {
            Forwarder::Bare => up,
            Forwarder::UserPlane { .. } => !up,
        }
    }

    /// Length of the output frames for user packets of `size` octets.
    fn length_out(self, up: bool, size: usize) -> usize {
        source::frame_length(self.tunnels(up), size)
    }

    /// Compares an output frame. `peers` are the addresses at the far ends of N3 and N6.
    pub(super) fn compare(
        self,
        up: bool,
        frame: &[u8],
        (peers, deck): ([Mac; 2], &Deck),
        contents: &mut Contents,
    ) -> Result<Found, Wrong> {
        // A user plane sends with the address of its other port, the bare forwarder with that of the port on
        // which frames came in.
        let from = peers[usize::from(up == (self != Forwarder::Bare))];
        let (link, packet) = frame.split_at_checked(ETHERNET).ok_or("an Ethernet header")?;
        if link[..6] != MAC || link[6..12] != from || link[12..] != ethernet::IPV4.to_be_bytes() {
            return Err("an Ethernet header");
        }
        if !self.tunnels(up) {
            return contents.user_packet(up, packet);
        }
        let (from, to, datagram) = contents::datagram(packet)?;
        let (teid, user) = contents::gpdu(up, datagram.payload())?;
        let found = contents.user_packet(up, user)?;
        let at_gnb = |gnbs: u32| Ipv4Addr::from_bits(CP.to_bits() + found.subscriber.0 % gnbs.max(1));
        let wanted = match self {
            Forwarder::Bare => (deck.teid(found.subscriber), CP, UPF),
            Forwarder::UserPlane { gnbs } => (Some(found.subscriber.gnb_teid()), UPF, at_gnb(gnbs)),
        };
        match (Some(teid), from, to) == wanted && datagram.destination_port() == gtpu::PORT {
            true => Ok(found),
            false => Err("the tunnel's addresses"),
        }
    }
}

/// How frames that come back are checked.
#[derive(Clone, Copy)]
enum Look {
    /// All are compared.
    Compare,
    /// Frames of this length are counted without reading them, as a network card would: reading what another
    /// core has just written would cost more than all the rest here.
    Count(usize),
}

/// gNB and data network.
pub(super) struct Generator<F> {
    ports: [F; 2],
    /// The other side's addresses on N3 and N6.
    peers: [Mac; 2],
    /// The contender on the other side.
    forwarder: Forwarder,
    deck: Arc<Deck>,
    contents: Contents,
    tally: Tally,
    /// Position in the deck at which the next sample begins, so that each sample has other packets.
    place: usize,
    out: Vector,
    taken: Vector,
    all: Vec<u16>,
    /// Number of the next packet that is timed. Other packets have number 0, so that packets left over from an
    /// earlier sample are not counted in this one.
    number: u32,
}

impl<F: FramePort> Generator<F> {
    /// `ports` towards N3 and N6, `peers` the addresses at their other ends, the contender there, and the deck
    /// of packets.
    pub(super) fn new(
        ports: [F; 2],
        peers: [Mac; 2],
        forwarder: Forwarder,
        deck: &Arc<Deck>,
    ) -> Generator<F> {
        Generator {
            ports,
            peers,
            forwarder,
            deck: Arc::clone(deck),
            contents: Contents::new(0),
            tally: Tally::default(),
            place: 0,
            out: Vector::new(BATCH, FRAME),
            taken: Vector::new(BATCH, FRAME),
            all: (0..BATCH as u16).collect(),
            number: 1,
        }
    }

    /// Whether user packets of `size` octets fit into frames together with their tunnel.
    pub(super) fn fits(&self, size: usize) -> bool {
        source::tunnelled(size) <= self.ports[0].mtu()
    }

    /// Sends the packets of this deck from now on.
    pub(super) fn play(&mut self, deck: Arc<Deck>) {
        self.deck = deck;
    }

    /// The ports, N3 first.
    pub(super) fn ports(&self) -> &[F] {
        &self.ports
    }

    /// Polls both ports once; some ports need that to come up.
    #[cfg(feature = "dpdk")]
    pub(super) fn idle(&mut self) -> std::io::Result<()> {
        (0..2).try_for_each(|end| self.take(end, Look::Compare, |_, _| ()).map(drop))
    }

    fn sources(&mut self, direction: Direction, size: usize) -> anyhow::Result<Vec<Source>> {
        let ups: &[bool] = match direction {
            Direction::Uplink => &[true],
            Direction::Downlink => &[false],
            Direction::Mixed => &[true, false],
        };
        self.place = (self.place + STEP) % source::CARDS;
        let source =
            |up: &bool| Source::new(*up, size, (&self.deck, self.place), self.peers[usize::from(!up)]);
        ups.iter().map(source).collect()
    }

    /// The packets compared since the last call.
    pub(super) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Sends packets in both directions until some come back, so that neighbours are known.
    ///
    /// # Errors
    /// No packets come back.
    pub(super) fn warm_up(&mut self) -> anyhow::Result<()> {
        let mut sources = self.sources(Direction::Mixed, 64)?;
        let start = time::now_std();
        let mut arrived = [0; 2];
        while arrived.iter().any(|count| *count < 10 * BATCH) {
            if start.elapsed() > PATIENCE {
                bail!("frames do not come back: {arrived:?} on N3 and N6");
            }
            for source in &mut sources {
                self.send(source, BATCH, None);
            }
            // Not a flood, which would crowd out the answers to the other side's ARP requests.
            let sent = time::now_std();
            while sent.elapsed() < PAUSE {
                for (end, arrived) in arrived.iter_mut().enumerate() {
                    *arrived += self.take(end, Look::Compare, |_, _| ())?;
                }
            }
        }
        self.settle()
    }

    /// Sends `count` packets of all sizes in turn, few at a time, and checks that each comes back once and is
    /// as expected.
    ///
    /// # Errors
    /// A packet is missing, comes back twice, or differs.
    pub(super) fn verify(&mut self, direction: Direction, count: u32) -> anyhow::Result<()> {
        let sizes: Vec<usize> =
            (SMALLEST..=LONGEST).step_by(SIZE_STEP).take_while(|size| self.fits(*size)).collect();
        let mut sources: Vec<Source> = Vec::new();
        for size in sizes {
            sources.extend(self.sources(direction, size)?);
        }
        let first = self.number;
        let mut under_way: HashMap<u32, (bool, Subscriber, usize)> = HashMap::new();
        let (mut sent, mut last) = (0, time::now_std());
        while sent < count || !under_way.is_empty() {
            if last.elapsed() > LAST_OF_ALL {
                bail!(
                    "of {sent} frames {} did not come back, among them {:?}",
                    under_way.len(),
                    under_way.iter().next()
                );
            }
            let room = (WINDOW - under_way.len()).min(BATCH).min((count - sent) as usize);
            for _ in 0..room {
                let turn = sent as usize % sources.len();
                let source = &mut sources[turn];
                let (number, subscriber) = (first + sent, source.upcoming());
                let (Some(subscriber), (up, size)) = (subscriber, (source.up, source.size)) else { break };
                if self.send(&mut sources[turn], 1, Some((number, 0))) == 0 {
                    break;
                }
                under_way.insert(number, (up, subscriber, size));
                sent += 1;
            }
            for end in 0..2 {
                let mut found = Vec::new();
                self.take(end, Look::Compare, |one, _| found.push(one))?;
                // Lower numbers belong to earlier samples.
                for one in found.into_iter().filter(|one| one.number >= first) {
                    let known = under_way.remove(&one.number);
                    if known != Some((end == 1, one.subscriber, one.size)) {
                        bail!(
                            "a frame came back that is not under way: {one:?} at end {end}, sent as {known:?}"
                        );
                    }
                    last = time::now_std();
                }
            }
        }
        self.number = if first < u32::MAX / 2 { first + sent } else { 1 };
        let (ok, detail) = self.tally.judge();
        if ok { Ok(()) } else { bail!("{detail}") }
    }

    /// Packets per second that come out, while this side sends as many as it can. Calls `limit` when the measured time begins and
    /// when it ends.
    pub(super) fn flood(
        &mut self,
        (direction, size): (Direction, usize),
        duration: Duration,
        limit: &mut dyn FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<f64> {
        let mut sources = self.sources(direction, size)?;
        let counted = [false, true].map(|up| Look::Count(self.forwarder.length_out(up, size)));
        let mut start = time::now_std();
        let (mut warm, mut arrived, mut batches) = (true, 0, 0);
        loop {
            // Reads the clock once for several batches.
            for _ in 0..8 {
                for source in &mut sources {
                    self.send(source, BATCH, None);
                }
                batches += 1;
                let compare = warm || batches % COMPARED == 0;
                for (end, counted) in counted.into_iter().enumerate() {
                    let look = if compare { Look::Compare } else { counted };
                    arrived += self.take(end, look, |_, _| ())?;
                }
            }
            let elapsed = start.elapsed();
            if warm && elapsed > duration / 4 {
                limit()?;
                (start, arrived, warm) = (time::now_std(), 0, false);
            } else if !warm && elapsed > duration {
                limit()?;
                self.settle()?;
                return Ok(arrived as f64 / elapsed.as_secs_f64());
            }
        }
    }

    /// One-way times at `rate` packets per second.
    pub(super) fn latency(
        &mut self,
        direction: Direction,
        rate: f64,
        duration: Duration,
    ) -> anyhow::Result<Latency> {
        let mut sources = self.sources(direction, 64)?;
        let mut times = Vec::with_capacity((rate * duration.as_secs_f64()) as usize + BATCH);
        let epoch = time::now_std();
        let first = self.number;
        let (mut sent, mut last) = (0_u32, epoch);
        loop {
            let now = time::now_std();
            let elapsed = now - epoch;
            if elapsed < duration {
                let due = (elapsed.as_secs_f64() * rate) as u32;
                let count = (due.saturating_sub(sent) as usize).min(BATCH / 4);
                if count > 0 {
                    let turn = sent as usize % sources.len();
                    let marks = (first + sent, elapsed.as_nanos() as u64);
                    sent += self.send(&mut sources[turn], count, Some(marks)) as u32;
                }
            } else if now - last > LAST {
                break;
            }
            for end in 0..2 {
                let found = self.take(end, Look::Compare, |found, at| {
                    if found.number >= first {
                        let now_ns = (at - epoch).as_nanos() as u64;
                        times.push(now_ns.saturating_sub(found.time_ns) as f64 / 1e3);
                    }
                })?;
                if found > 0 {
                    last = time::now_std();
                }
            }
        }
        // Numbers suffice for minutes at any rate, and then begin again.
        self.number = if first < u32::MAX / 2 { first + sent } else { 1 };
        let lost = 100.0 * (1.0 - times.len() as f64 / f64::from(sent.max(1)));
        Ok(Latency { p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), lost: lost.max(0.0) })
    }

    fn send(&mut self, source: &mut Source, count: usize, marks: Option<(u32, u64)>) -> usize {
        let port = &mut self.ports[usize::from(!source.up)];
        let count = port.draw(&mut self.out, count);
        source.fill(&mut self.out, marks);
        port.transmit(&mut self.out, &self.all[..count]).packets
    }

    /// Receives frames at an end; returns how many users' packets were among them. Calls `see` with each packet
    /// that was compared and found right, and the time at which it was received.
    fn take(
        &mut self,
        end: usize,
        look: Look,
        mut see: impl FnMut(Found, std::time::Instant),
    ) -> std::io::Result<usize> {
        let received = self.ports[end].receive(&mut self.taken)?;
        if received == 0 {
            return Ok(0);
        }
        let (mut packets, mut answers, at) = (0, Vec::new(), time::now_std());
        for buffer in self.taken.frames() {
            let frame = buffer.packet();
            if matches!(look, Look::Count(length) if length == frame.len()) {
                packets += 1;
                continue;
            }
            match frame.get(12..14) {
                Some([0x08, 0x06]) => answers.extend(source::arp_reply(frame)),
                // Packets of the kernels at both ends, such as router solicitations.
                Some([0x86, 0xDD]) => {}
                _ => {
                    let place = (self.peers, &*self.deck);
                    let compared = self.forwarder.compare(end == 1, frame, place, &mut self.contents);
                    packets += 1;
                    if let Some(found) = self.tally.count(compared, frame) {
                        see(found, at);
                    }
                }
            }
        }
        self.taken.clear();
        for answer in answers {
            self.out.clear();
            self.out.push(&answer, World::peer());
            self.ports[end].transmit(&mut self.out, &[0]);
        }
        Ok(packets)
    }

    /// Receives the frames that still come.
    fn settle(&mut self) -> anyhow::Result<()> {
        let mut quiet = time::now_std();
        while quiet.elapsed() < QUIET {
            for end in 0..2 {
                if self.take(end, Look::Compare, |_, _| ())? > 0 {
                    quiet = time::now_std();
                }
            }
        }
        Ok(())
    }
}
