//! Round trips of small packets inside a tunnel, and their jitter: the paper's Figures 10 and 11.
//!
//! The measuring thread is the base station: it sends a G-PDU each [`INTERVAL`] and waits until the anchor's program has sent it back
//! ([`super::mirror`]). Packets are compared: the same message, from the anchor to which the user is diverted. All contenders take turns
//! within a round, and each is measured with and without steering right behind one another.

use anyhow::{Context as _, bail};
use net::netns::NetNs;
use net::time::{self, Duration};
use packet::ipv4;
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::frame::NO_PEER;
use pktio::{Port as _, Vector};

use super::frames::{self, FIRST_TEID, GW1, GW2};
use super::mirror::{Mirror, Then};
use super::site::{CORE_LINKS, Contender, STATION_LINK, Site, Steering};
use super::{Figure, Run};
use crate::samples::{Axes, Results};
use crate::stats::quantile;

const US: Axes = Axes { x: "octets", y: "round trip", unit: "us" };
const JITTER: Axes = Axes { x: "octets", y: "difference of consecutive round trips", unit: "us" };
const SHARE: Axes = Axes { x: "round trip, ns", y: "share of packets", unit: "%" };
/// Octets of the user's packet.
const SIZE: usize = 64;
/// Time between packets.
const INTERVAL: Duration = Duration::from_micros(100);
/// A packet that has not come back by then is lost.
const LOST: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(10);
/// Packets that come back as they must before the first one is measured.
const WARM: usize = 50;
/// Steps of the histogram in a decade.
const STEPS: f64 = 20.0;
/// Octets of an Ethernet header.
const ETHERNET: usize = 14;
/// Where the GTP-U message is in a frame.
const MESSAGE: usize = ETHERNET + ipv4::HEADER_LEN + packet::transport::UDP_HEADER_LEN;

/// Extent.
pub(super) struct Plan {
    /// Round trips of a turn.
    pub(super) packets: usize,
}

impl Plan {
    pub(super) fn new(quick: bool) -> Plan {
        Plan { packets: if quick { 500 } else { 3000 } }
    }
}

/// Measures all sites.
///
/// # Errors
/// Packets do not come back.
pub(super) fn run(run: &mut Run, sites: &mut [Site]) -> anyhow::Result<()> {
    let mut stations = Vec::new();
    for site in sites.iter() {
        stations.push((Station::open(&site.station)?, anchors(site)?));
    }
    for round in 0..run.plan.rounds {
        run.add_distance();
        for (site, (station, anchors)) in sites.iter_mut().zip(&mut stations) {
            let name = site.contender.name();
            run.progress.say(&format!("round trips: {name}, round {round}"));
            let mut modes = site.contender.modes(1);
            if round % 2 == 1 {
                modes.reverse();
            }
            for steering in modes {
                turn(run, site, station, anchors, steering)
                    .with_context(|| format!("{name}, steering {}", steering.name()))?;
            }
        }
    }
    Ok(())
}

/// The anchors that are there.
fn anchors(site: &Site) -> anyhow::Result<Vec<Mirror>> {
    let count = if site.contender == Contender::Wire { 1 } else { 2 };
    let ends = CORE_LINKS.into_iter().zip([GW1, GW2]).take(count);
    ends.map(|(link, own)| Mirror::start(&site.core, site.core_index(link)?, own, Then::Return)).collect()
}

/// A turn of a contender with or without steering.
fn turn(
    run: &mut Run,
    site: &mut Site,
    station: &mut Station,
    anchors: &[Mirror],
    steering: Steering,
) -> anyhow::Result<()> {
    let mut packet = Packet::new(site, steering)?;
    site.set(steering)?;
    settle(site, station, &mut packet)?;
    let (steered, in_xdp) = (site.steered()?, site.in_xdp());
    let arrived: Vec<_> = anchors.iter().map(Mirror::arrived).collect();
    let count = run.plan.rtt.packets;
    let (mut times, mut jitter, mut lost) = (Vec::with_capacity(count), Vec::with_capacity(count), 0);
    let (mut last, mut next) = (None, time::now_ns());
    for _ in 0..count {
        while time::now_ns() < next {
            std::hint::spin_loop();
        }
        next = time::now_ns() + INTERVAL.as_nanos() as u64;
        let took = station.round_trip(&mut packet)?.map(|ns| ns as f64 / 1000.0);
        match took {
            Some(took) => times.push(took),
            None => lost += 1,
        }
        // RFC 4689 §3.2.5: of two consecutive packets that were received.
        jitter.extend(last.zip(took).map(|(last, took): (f64, f64)| (took - last).abs()));
        last = took;
    }
    let (name, mode) = (site.contender.name(), steering.name());
    for (of, share) in [("p50", 0.5), ("p99", 0.99)] {
        run.results.add(format!("rtt.{name}.{mode}.{of}"), US, SIZE, quantile(&times, share));
    }
    for (of, share) in [("p50", 0.5), ("p75", 0.75), ("p99", 0.99)] {
        run.results.add(format!("jitter.{name}.{mode}.{of}"), JITTER, SIZE, quantile(&jitter, share));
    }
    histogram(&mut run.results, &format!("histogram.{name}.{mode}"), &times);
    run.count(&format!("round trips lost by {name}"), lost);
    let sent = count as u64 - lost;
    if steering != Steering::Off {
        let more = site.wait_for_steered(steered + sent)? - steered;
        let short = sent.saturating_sub(more);
        run.count(&format!("packets of round trips that {name} did not steer"), short);
    }
    if let (Some(before), Some(now)) = (in_xdp, site.in_xdp()) {
        run.count(
            "packets of round trips that did not go by XDP, there and back",
            (2 * sent).saturating_sub(now - before),
        );
    }
    let wrong = anchors.iter().enumerate().zip(arrived).map(|((at, anchor), before)| {
        let now = anchor.arrived();
        let own = now.own - before.own;
        if at == steering.anchor() {
            now.other - before.other + sent.saturating_sub(own)
        } else {
            own + now.other - before.other
        }
    });
    run.count(&format!("packets of round trips that {name} brought to the wrong anchor"), wrong.sum());
    Ok(())
}

/// The shares of times in a round, by logarithmic steps.
fn histogram(results: &mut Results, name: &str, times_us: &[f64]) {
    let mut counts = std::collections::BTreeMap::<i32, usize>::new();
    for time in times_us {
        *counts.entry((STEPS * (time * 1000.0).log10()).floor() as i32).or_default() += 1;
    }
    for (step, count) in counts {
        let from_ns = 10_f64.powf(f64::from(step) / STEPS).round() as usize;
        results.add(name.to_owned(), SHARE, from_ns, 100.0 * count as f64 / times_us.len() as f64);
    }
}

/// Waits until packets come back as they must, and by XDP if that is the contender.
fn settle(site: &Site, station: &mut Station, packet: &mut Packet) -> anyhow::Result<()> {
    let start = time::now_std();
    loop {
        let before = site.in_xdp();
        let mut in_a_row = 0;
        while in_a_row < WARM {
            match station.round_trip(packet)? {
                Some(_) => in_a_row += 1,
                None => in_a_row = 0,
            }
            if start.elapsed() > PATIENCE {
                bail!("packets do not come back as they must");
            }
        }
        match (before, site.in_xdp()) {
            (Some(before), Some(now)) if now - before < 2 * WARM as u64 => {
                if start.elapsed() > PATIENCE {
                    bail!("XDP does not learn the tunnel");
                }
                time::sleep_thread(Duration::from_millis(20));
            }
            _ => return Ok(()),
        }
    }
}

/// A packet of the user, and how it comes back.
struct Packet {
    frame: Vec<u8>,
    sequence: u32,
    /// Ethernet destination and outer source of the answer.
    to: [u8; 6],
    from: [u8; 4],
}

impl Packet {
    fn new(site: &Site, steering: Steering) -> anyhow::Result<Packet> {
        let frame = frames::uplink(site.uplink(), FIRST_TEID, SIZE, false)?;
        let from = [GW1, GW2][steering.anchor()].octets();
        Ok(Packet { frame, sequence: 0, to: site.macs[0], from })
    }

    /// The next one has another number at its end.
    fn advance(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        let at = self.frame.len() - 4;
        self.frame[at..].copy_from_slice(&self.sequence.to_be_bytes());
    }

    fn is_answer(&self, frame: &[u8]) -> bool {
        frame.len() >= self.frame.len()
            && frame[..6] == self.to
            && frame[26..30] == self.from
            && frame[MESSAGE..self.frame.len()] == self.frame[MESSAGE..]
    }
}

/// The base station's link.
struct Station {
    port: AfXdpPort,
    vector: Vector,
    _interface: std::sync::Arc<Interface>,
    _memory: Memory,
}

impl Station {
    fn open(space: &NetNs) -> anyhow::Result<Station> {
        let open = || -> anyhow::Result<Station> {
            let interface = Interface::open(STATION_LINK, None, &[Select::Everything])?;
            let mut memory = Memory::with_more(1, 256, [interface.device()])?;
            let port = AfXdpPort::open(&interface, [0], &mut memory, Options::default())?;
            let vector = Vector::of(&port.pool().context("a port of AF_XDP has a pool")?);
            Ok(Station { port, vector, _interface: interface, _memory: memory })
        };
        space.enter(open)?
    }

    /// Nanoseconds until the packet has come back, unless it is lost.
    fn round_trip(&mut self, packet: &mut Packet) -> anyhow::Result<Option<u64>> {
        packet.advance();
        self.vector.clear();
        if !self.vector.push(&packet.frame, NO_PEER) {
            bail!("the packet is too long");
        }
        let start = time::now_ns();
        if self.port.transmit(&mut self.vector, &[0]).packets != 1 {
            bail!("the packet was not sent");
        }
        loop {
            let count = self.port.receive(&mut self.vector)?;
            let now = time::now_ns();
            if count > 0 && self.vector.frames().iter().any(|frame| packet.is_answer(frame.packet())) {
                return Ok(Some(now - start));
            }
            if now - start > LOST.as_nanos() as u64 {
                return Ok(None);
            }
        }
    }
}

/// What steering adds, round by round.
pub(super) fn add_differences(results: &mut Results) {
    for contender in Contender::STEERING {
        let name = contender.name();
        let of = |what: &str, mode: &str, quantile: &str| format!("{what}.{name}.{mode}.{quantile}");
        for (what, axes, quantile) in [("rtt", US, "p50"), ("rtt", US, "p99"), ("jitter", JITTER, "p75")] {
            let (on, off) = (of(what, "on", quantile), of(what, "off", quantile));
            results.add_pairs(&of(what, "added", quantile), axes, (&on, &off), |on, off| on - off);
        }
    }
}

/// The paper's medians are of pings between virtual machines, 1.7 and 1.6 ms.
pub(super) fn summarise(results: &Results, figure: Figure<'_>) {
    let median = |name: String| results.median(&name, SIZE);
    figure("rtt_us_wire", median("rtt.wire.off.p50".to_owned()), None);
    for contender in Contender::STEERING {
        let name = contender.name();
        // The paper's switch is Open vSwitch.
        let published = |value: f64| (contender == Contender::Ovs).then_some(value);
        let of = |what: &str, rest: &str| median(format!("{what}.{name}.{rest}"));
        figure(&format!("rtt_added_us_{name}"), of("rtt", "added.p50"), published(100.0));
        figure(&format!("rtt_us_{name}_off"), of("rtt", "off.p50"), published(1600.0));
        figure(&format!("rtt_us_{name}_on"), of("rtt", "on.p50"), published(1700.0));
        figure(&format!("rtt_added_p99_us_{name}"), of("rtt", "added.p99"), None);
        figure(&format!("jitter_added_us_{name}"), of("jitter", "added.p75"), published(0.0));
        figure(&format!("jitter_p75_us_{name}_on"), of("jitter", "on.p75"), published(500.0));
    }
}
