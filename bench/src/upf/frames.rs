//! User planes on frame ports: AF_XDP and DPDK. Whole frames come in on one port and leave by the other, and the other way.
//!
//! One side is gNB and data network: it makes frames ([`Source`]), answers questions for link-layer addresses, and counts
//! and times what comes back ([`Generator`]). The other serves its two ports on a core of its own: a user plane, or,
//! as the limit of the backend, a bare forwarder that swaps the Ethernet addresses ([`forward_all`]).

use std::sync::Arc;

use anyhow::bail;
use net::time::{self, Duration};
use packet::ethernet::Mac;
use pktio::{Batch, FramePort};
use upf::pipeline::{BATCH, PACKET};

use super::source::{self, Deck, Source};
use super::traffic::{Direction, marked};
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

/// gNB and data network.
pub(super) struct Generator<F> {
    ports: [F; 2],
    /// The other side's addresses on N3 and N6.
    peers: [Mac; 2],
    deck: Arc<Deck>,
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
    /// With the ports towards N3 and N6, the addresses at their other ends, and whose packets come.
    pub(super) fn new(ports: [F; 2], peers: [Mac; 2], deck: &Arc<Deck>) -> Generator<F> {
        Generator {
            ports,
            peers,
            deck: Arc::clone(deck),
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
        (0..2).try_for_each(|end| self.take(end, None, |_, _| ()).map(drop))
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
                    *arrived += self.take(end, None, |_, _| ())?;
                }
            }
        }
        self.settle()
    }

    /// Packets per second that come out while as many go in as this side can send. Frames of the right length are not
    /// looked at: with many sizes in turn what is left of the last one is none.
    pub(super) fn flood(
        &mut self,
        direction: Direction,
        size: usize,
        duration: Duration,
    ) -> anyhow::Result<f64> {
        let mut sources = self.sources(direction, size)?;
        let lengths = [false, true].map(|up| source::length_out(up, size));
        let mut start = time::now_std();
        let (mut warm, mut arrived) = (true, 0);
        loop {
            // A look at the clock for some batches.
            for _ in 0..8 {
                for source in &mut sources {
                    self.send(source, BATCH, None);
                }
                for (end, length) in lengths.into_iter().enumerate() {
                    arrived += self.take(end, Some(length), |_, _| ())?;
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
                let found = self.take(end, None, |number, sent_ns| {
                    let now_ns = epoch.elapsed().as_nanos() as u64;
                    if number >= first {
                        times.push(now_ns.saturating_sub(sent_ns) as f64 / 1e3);
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

    /// Takes frames at an end; returns how many were IP packets. `see` gets number and time of marked ones. Frames of
    /// length `blind` are counted without a look at them, as a network card would: reading what another core has
    /// just written costs more than all else here.
    fn take(
        &mut self,
        end: usize,
        blind: Option<usize>,
        mut see: impl FnMut(u32, u64),
    ) -> std::io::Result<usize> {
        let received = self.ports[end].receive(&mut self.taken)?;
        let mut packets = 0;
        let mut answers = Vec::new();
        for buffer in self.taken.buffers() {
            let frame = buffer.packet();
            if blind == Some(frame.len()) {
                packets += 1;
                continue;
            }
            match frame.get(12..14) {
                Some([0x08, 0x00]) => {
                    packets += 1;
                    let inner = frame.get(source::inner_offset(frame)..).unwrap_or_default();
                    if let Some((number, time_ns)) = marked(inner) {
                        see(number, time_ns);
                    }
                }
                Some([0x08, 0x06]) => answers.extend(source::arp_reply(frame)),
                _ => {}
            }
        }
        if received > 0 {
            self.taken.clear();
        }
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
                if self.take(end, None, |_, _| ())? > 0 {
                    quiet = time::now_std();
                }
            }
        }
        Ok(())
    }
}
