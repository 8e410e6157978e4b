//! User planes on frame ports: AF_XDP and DPDK. Whole frames come in on one port and leave by the other, and the other way.
//!
//! One side is gNB and data network: it makes frames ([`Source`]), answers questions for link-layer addresses, and counts,
//! compares and times what comes back ([`Generator`]). The other serves its two ports on a core of its own: a user plane, or,
//! as the limit of the backend, a bare forwarder that swaps the Ethernet addresses ([`forward_all`]).
//!
//! Frames are compared octet by octet ([`Forwarder::compare`]): all of [`Generator::verify`], which demands each frame
//! back, and all that are timed; of a flood one batch in [`COMPARED`] while its rate is measured, and all before and after.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::bail;
use net::time::{self, Duration};
use packet::ethernet::{self, Mac};
use packet::gtpu;
use pktio::{Batch, FramePort};
use upf::pipeline::{BATCH, PACKET};

use super::contents::{self, Contents, Found, Tally, Wrong};
use super::source::{self, Deck, ETHERNET, MAC, Source};
use super::subscriber::{CP, Subscriber, UPF};
use super::traffic::{Direction, SMALLEST};
use super::world::World;
use crate::stats::quantile;

/// Longest frame.
const FRAME: usize = 2048;
/// Cards from the begin of one sample to that of the next: no part of a deck's number.
const STEP: usize = 9973;
/// How long the first packets may take, with the questions for neighbours.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two batches of the first packets.
const PAUSE: Duration = Duration::from_micros(500);
/// How long to wait for the last packets.
const LAST: Duration = Duration::from_millis(20);
/// The same where each has to come, on a machine that has other things to do.
const LAST_OF_ALL: Duration = Duration::from_secs(2);
/// In a flood one batch of so many is compared while its rate is measured.
const COMPARED: usize = 8;
/// Frames under way at once when each has to come back: fewer than any queue on the way holds.
const WINDOW: usize = 64;
/// Octets of user packets when all sizes come in turn: the longest, and from one to the next.
const LONGEST: usize = 1500;
const SIZE_STEP: usize = 73;

/// Forwards frames both ways and does nothing else, until `stop` says so.
///
/// # Errors
/// A port fails.
pub(super) fn forward_all<F: FramePort>(
    (mut n3, mut n6): (F, F),
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    let mut batch = Batch::new(BATCH, PACKET);
    let all: Vec<u16> = (0..BATCH as u16).collect();
    while !stop() {
        // Looking whether to stop is dearer than a poll.
        for _ in 0..64 {
            forward(&mut n3, &mut n6, &mut batch, &all)?;
            forward(&mut n6, &mut n3, &mut batch, &all)?;
        }
    }
    Ok(())
}

/// Takes a batch of frames from one port and sends them back to where they came from, by the other.
fn forward<F: FramePort>(from: &mut F, to: &mut F, batch: &mut Batch, all: &[u16]) -> std::io::Result<()> {
    let received = from.receive(batch)?;
    if received > 0 {
        for buffer in batch.buffers_mut() {
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

/// One-way times, microseconds, and what was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) lost: f64,
}

/// What is done to frames between the ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forwarder {
    /// Only the Ethernet addresses change: [`forward_all`].
    Bare,
    /// Tunnel headers are taken off and put on. The sessions are spread over so many gNBs.
    UserPlane {
        /// Addresses from [`CP`] on.
        gnbs: u32,
    },
}

impl Forwarder {
    /// Whether packets of a direction come out in tunnels.
    fn tunnels(self, up: bool) -> bool {
        match self {
            Forwarder::Bare => up,
            Forwarder::UserPlane { .. } => !up,
        }
    }

    /// Octets of the frames that come out for user packets of `size` octets.
    fn length_out(self, up: bool, size: usize) -> usize {
        source::frame_length(self.tunnels(up), size)
    }

    /// Compares a frame that came out. `peers` are the addresses at the far ends of N3 and N6.
    pub(super) fn compare(
        self,
        up: bool,
        frame: &[u8],
        (peers, deck): ([Mac; 2], &Deck),
        contents: &mut Contents,
    ) -> Result<Found, Wrong> {
        // A user plane sends with the address of its other port, the bare forwarder with that at which frames came in.
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

/// How frames that come back are looked at.
#[derive(Clone, Copy)]
enum Look {
    /// All are compared.
    Compare,
    /// Those of this length are counted without a look at them, as a network card would: reading what another core has
    /// just written costs more than all else here.
    Count(usize),
}

/// gNB and data network.
pub(super) struct Generator<F> {
    ports: [F; 2],
    /// The other side's addresses on N3 and N6.
    peers: [Mac; 2],
    /// What is at the other side.
    forwarder: Forwarder,
    deck: Arc<Deck>,
    contents: Contents,
    tally: Tally,
    /// Where in the deck the next sample begins: each sees other packets.
    place: usize,
    out: Batch,
    taken: Batch,
    all: Vec<u16>,
    /// Number of the next packet that is timed. Others have number 0: what is left of an earlier sample, wherever it lay,
    /// is not taken for this one's.
    number: u32,
}

impl<F: FramePort> Generator<F> {
    /// With the ports towards N3 and N6, the addresses at their other ends, what is there, and whose packets come.
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
            out: Batch::new(BATCH, FRAME),
            taken: Batch::new(BATCH, FRAME),
            all: (0..BATCH as u16).collect(),
            number: 1,
        }
    }

    /// Whether user packets of `size` octets fit into frames with their tunnel.
    pub(super) fn fits(&self, size: usize) -> bool {
        source::tunnelled(size) <= self.ports[0].mtu()
    }

    /// Whose packets come from here on.
    pub(super) fn play(&mut self, deck: Arc<Deck>) {
        self.deck = deck;
    }

    /// The ports, N3 first.
    pub(super) fn ports(&self) -> &[F] {
        &self.ports
    }

    /// Looks at both ports once, as some must be looked at to come up.
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

    /// What was compared since this was last called.
    pub(super) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    /// Sends packets until some come back, in both directions, so that neighbours are known.
    ///
    /// # Errors
    /// None come.
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
            // Not a flood: it would crowd out the answers to the other side's questions for neighbours.
            let sent = time::now_std();
            while sent.elapsed() < PAUSE {
                for (end, arrived) in arrived.iter_mut().enumerate() {
                    *arrived += self.take(end, Look::Compare, |_, _| ())?;
                }
            }
        }
        self.settle()
    }

    /// Sends `count` packets of all sizes in turn, few at a time, and takes each back once and as it must be.
    ///
    /// # Errors
    /// One is missing, twice, or other than it must be.
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
                // Lower numbers are those of earlier samples.
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

    /// Packets per second that come out while as many go in as this side can send.
    pub(super) fn flood(
        &mut self,
        direction: Direction,
        size: usize,
        duration: Duration,
    ) -> anyhow::Result<f64> {
        let mut sources = self.sources(direction, size)?;
        let counted = [false, true].map(|up| Look::Count(self.forwarder.length_out(up, size)));
        let mut start = time::now_std();
        let (mut warm, mut arrived, mut batches) = (true, 0, 0);
        loop {
            // A look at the clock for some batches.
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
                (start, arrived, warm) = (time::now_std(), 0, false);
            } else if !warm && elapsed > duration {
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
        // Numbers go up for minutes of any rate there is, then begin again.
        self.number = if first < u32::MAX / 2 { first + sent } else { 1 };
        let lost = 100.0 * (1.0 - times.len() as f64 / f64::from(sent.max(1)));
        Ok(Latency { p50: quantile(&times, 0.5), p99: quantile(&times, 0.99), lost: lost.max(0.0) })
    }

    fn send(&mut self, source: &mut Source, count: usize, marks: Option<(u32, u64)>) -> usize {
        let port = &mut self.ports[usize::from(!source.up)];
        let count = port.draw(&mut self.out, count);
        source.fill(self.out.buffers_mut(), marks);
        port.transmit(&mut self.out, &self.all[..count]).packets
    }

    /// Takes frames at an end; returns how many packets of users were among them. `see` gets each one that was compared
    /// and found right, with the time when it was taken.
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
        for buffer in self.taken.buffers() {
            let frame = buffer.packet();
            if matches!(look, Look::Count(length) if length == frame.len()) {
                packets += 1;
                continue;
            }
            match frame.get(12..14) {
                Some([0x08, 0x06]) => answers.extend(source::arp_reply(frame)),
                // Of the kernels at both ends: router solicitations and the like.
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

    /// Takes what still comes.
    fn settle(&mut self) -> anyhow::Result<()> {
        let mut quiet = time::now_std();
        while quiet.elapsed() < LAST {
            for end in 0..2 {
                if self.take(end, Look::Compare, |_, _| ())? > 0 {
                    quiet = time::now_std();
                }
            }
        }
        Ok(())
    }
}
