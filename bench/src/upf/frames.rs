//! User planes on frame ports: AF_XDP and DPDK. Whole frames come in on one port and leave by the other, and the other way.
//!
//! One side is gNB and data network: it makes frames from templates, answers questions for link-layer addresses, and
//! counts and times what comes back ([`Generator`]). The other serves its two ports on a core of its own: a user plane, or,
//! as the limit of the backend, a bare forwarder that swaps the Ethernet addresses ([`forward_all`]).

use anyhow::bail;
use net::time::{self, Duration};
use packet::ethernet::{self, Mac};
use packet::{gtpu, ipv4, protocol};
use pktio::{Batch, FramePort};
use upf::pipeline::{BATCH, PACKET};

use super::subscriber::{CP, UPF};
use super::traffic::{Direction, Draw, TUNNEL, Template, marked};
use super::world::World;
use crate::stats::quantile;

/// Octets of Ethernet, IPv4 and UDP headers.
const ETHERNET: usize = 14;
const OUTER: usize = ETHERNET + 20 + 8;
/// Longest frame.
const FRAME: usize = 2048;
/// Our address on both links: locally administered.
const MAC: Mac = [0x02, 0x67, 0x77, 0, 0, 1];
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
    teids: Vec<u32>,
    out: Batch,
    taken: Batch,
    all: Vec<u16>,
    /// Number of the next packet that is timed. Others have number 0: what is left of an earlier sample, wherever it lay,
    /// is not taken for this one's.
    number: u32,
}

/// Frames of random subscribers in one direction.
struct Source {
    up: bool,
    frame: Vec<u8>,
    template: Template,
    draw: Draw,
}

impl Source {
    fn new(up: bool, size: usize, sessions: usize, to: Mac) -> anyhow::Result<Source> {
        let template = Template::new(up, size)?;
        let length = size.max(super::traffic::SMALLEST) + if up { TUNNEL } else { 0 };
        let payload = vec![0; length];
        let packet = if up {
            let mut datagram = Vec::with_capacity(8 + length);
            for field in [gtpu::PORT, gtpu::PORT, (8 + length) as u16, 0] {
                datagram.extend(field.to_be_bytes());
            }
            datagram.extend(&payload);
            ipv4::Header::new(CP, UPF, protocol::UDP).build(&datagram)?
        } else {
            payload
        };
        let frame = ethernet::build(to, MAC, None, ethernet::IPV4, &packet);
        Ok(Source { up, frame, template, draw: Draw::new(sessions, 9) })
    }

    fn fill(&mut self, batch: &mut Batch, count: usize, teids: &[u32], marks: Option<(u32, u64)>) {
        let at = if self.up { OUTER } else { ETHERNET };
        batch.clear();
        for number in 0..count as u32 {
            let (subscriber, service) = self.draw.next();
            if let Some((first, time_ns)) = marks {
                self.template.mark(first + number, time_ns);
            }
            let packet = self.template.fill(subscriber, teids[subscriber.0 as usize], service);
            self.frame[at..at + packet.len()].copy_from_slice(packet);
            batch.push(&self.frame, World::peer());
        }
    }
}

impl<F: FramePort> Generator<F> {
    /// With the ports towards N3 and N6, the addresses at their other ends, and TEIDs of the sessions there.
    pub(super) fn new(ports: [F; 2], peers: [Mac; 2], teids: Vec<u32>) -> Generator<F> {
        Generator {
            ports,
            peers,
            teids,
            out: Batch::new(BATCH, FRAME),
            taken: Batch::new(BATCH, FRAME),
            all: (0..BATCH as u16).collect(),
            number: 1,
        }
    }

    /// Whether user packets of `size` octets fit into frames with their tunnel.
    pub(super) fn fits(&self, size: usize) -> bool {
        size + TUNNEL + OUTER - ETHERNET <= self.ports[0].mtu()
    }

    /// TEIDs of the sessions at the other side.
    pub(super) fn teids(&mut self, teids: Vec<u32>) {
        self.teids = teids;
    }

    /// The ports, N3 first.
    #[cfg(feature = "dpdk")]
    pub(super) fn ports(&self) -> &[F] {
        &self.ports
    }

    /// Looks at both ports once, as some must be looked at to come up.
    #[cfg(feature = "dpdk")]
    pub(super) fn idle(&mut self) -> std::io::Result<()> {
        (0..2).try_for_each(|end| self.take(end, |_, _| ()).map(drop))
    }

    fn sources(&self, direction: Direction, size: usize) -> anyhow::Result<Vec<Source>> {
        let ups: &[bool] = match direction {
            Direction::Uplink => &[true],
            Direction::Downlink => &[false],
            Direction::Mixed => &[true, false],
        };
        let source = |up: &bool| Source::new(*up, size, self.teids.len(), self.peers[usize::from(!up)]);
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
                    *arrived += self.take(end, |_, _| ())?;
                }
            }
        }
        self.settle()
    }

    /// Packets per second that come out while as many go in as this side can send.
    pub(super) fn flood(
        &mut self,
        direction: Direction,
        size: usize,
        duration: Duration,
    ) -> anyhow::Result<f64> {
        let mut sources = self.sources(direction, size)?;
        let mut start = time::now_std();
        let (mut warm, mut arrived) = (true, 0);
        loop {
            // A look at the clock for some batches.
            for _ in 0..8 {
                for source in &mut sources {
                    self.send(source, BATCH, None);
                }
                for end in 0..2 {
                    arrived += self.take(end, |_, _| ())?;
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
                let found = self.take(end, |number, sent_ns| {
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
        source.fill(&mut self.out, count, &self.teids, marks);
        let port = &mut self.ports[usize::from(!source.up)];
        port.transmit(&mut self.out, &self.all[..count]).packets
    }

    /// Takes frames at an end; returns how many were IP packets. `see` gets number and time of marked ones.
    fn take(&mut self, end: usize, mut see: impl FnMut(u32, u64)) -> std::io::Result<usize> {
        let received = self.ports[end].receive(&mut self.taken)?;
        let mut packets = 0;
        let mut answers = Vec::new();
        for buffer in self.taken.buffers() {
            let frame = buffer.packet();
            match frame.get(12..14) {
                Some([0x08, 0x00]) => {
                    packets += 1;
                    let inner = frame.get(inner_offset(frame)..).unwrap_or_default();
                    if let Some((number, time_ns)) = marked(inner) {
                        see(number, time_ns);
                    }
                }
                Some([0x08, 0x06]) => answers.extend(arp_reply(frame)),
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
                if self.take(end, |_, _| ())? > 0 {
                    quiet = time::now_std();
                }
            }
        }
        Ok(())
    }
}

/// Where the user packet begins: behind a tunnel if there is one.
#[inline]
fn inner_offset(frame: &[u8]) -> usize {
    let is_tunnel = frame.get(ETHERNET + 9) == Some(&protocol::UDP)
        && frame.get(ETHERNET + 22..ETHERNET + 24) == Some(&gtpu::PORT.to_be_bytes());
    if is_tunnel { OUTER + TUNNEL } else { ETHERNET }
}

/// The answer to a question for a link-layer address (RFC 826): all addresses but the asking one's are ours.
fn arp_reply(frame: &[u8]) -> Option<Vec<u8>> {
    let request = frame.get(ETHERNET..ETHERNET + 28)?;
    let (sender, sender_ip, target_ip) = (&request[8..14], &request[14..18], &request[24..28]);
    if request[6..8] != [0, 1] || sender_ip == target_ip {
        return None;
    }
    let mut reply = request[..8].to_vec();
    reply[7] = 2;
    reply.extend(MAC);
    reply.extend(target_ip);
    reply.extend(sender);
    reply.extend(sender_ip);
    Some(ethernet::build(sender.try_into().ok()?, MAC, None, ethernet::ARP, &reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_for_addresses_are_answered() {
        let asker: Mac = [2, 0, 0, 0, 0, 9];
        let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
        request.extend(asker);
        request.extend([10, 200, 0, 1, 0, 0, 0, 0, 0, 0, 10, 200, 0, 5]);
        let question = ethernet::build([0xFF; 6], asker, None, ethernet::ARP, &request);
        let answer = arp_reply(&question).unwrap();
        assert_eq!((&answer[..6], &answer[6..12], answer[21]), (&asker[..], &MAC[..], 2));
        assert_eq!((&answer[22..28], &answer[28..32]), (&MAC[..], &[10, 200, 0, 5][..]));
        assert!(arp_reply(&question[..30]).is_none() && arp_reply(&answer).is_none());
    }

    #[test]
    fn frames_carry_what_the_templates_say() {
        for up in [true, false] {
            let mut source = Source::new(up, 100, 1, [1; 6]).unwrap();
            let mut batch = Batch::new(4, 256);
            source.fill(&mut batch, 2, &[0x77], Some((8, 99)));
            let frame = batch.buffers()[1].packet();
            let inner = &frame[inner_offset(frame)..];
            assert_eq!((inner.len(), marked(inner)), (100, Some((9, 99))));
            assert!(ipv4::Packet::new(&frame[ETHERNET..]).unwrap().checksum_ok());
        }
    }
}
