//! A steady downlink flow to one UE, and its packets that arrive at two gNBs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::Context as _;
use net::time::{self, Duration};
use packet::gtpu::{self, message_type};
use pktio::udp::UdpPort;
use pktio::{Port as _, Vector};
use upf::pipeline::BATCH;

use crate::upf::contents::{self, Contents, Found, Tally, Wrong};
use crate::upf::network::Network;
use crate::upf::subscriber::{CP, OTHER_PORT, SERVER, Subscriber, UPF};
use crate::upf::traffic::{SMALLEST, Template, UDP_HEADER, UE_PORT};

/// Octets of a buffer.
const PACKET: usize = 2048;
/// Octets of the longest user packet; packets of all sizes come in turn, at this distance.
const LONGEST: usize = 400;
const SIZE_STEP: usize = 37;
/// How long the gNBs listen after the last packet was sent.
const AFTER: Duration = Duration::from_millis(100);

/// TEID at the gNB to which the UE moves.
pub(super) const NEW_TEID: u32 = 0x0200_0002;

/// TEIDs at both gNBs.
pub(super) fn teids() -> [u32; 2] {
    [Subscriber(0).gnb_teid(), NEW_TEID]
}

/// The UE's first gNB, and the one to which it moves.
pub(super) fn gnbs() -> [SocketAddr; 2] {
    let at = |number: u32| Ipv4Addr::from_bits(CP.to_bits() + number);
    [0, 1].map(|number| SocketAddr::new(IpAddr::V4(at(number)), gtpu::PORT))
}

/// A packet that arrived, or an End Marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Number of the gNB.
    pub(super) gnb: usize,
    /// The packet's number; `None` for an End Marker.
    pub(super) sequence: Option<u32>,
    /// Nanoseconds since the flow's epoch.
    pub(super) sent_ns: u64,
    /// Arrival time, in nanoseconds since the flow's epoch.
    pub(super) at_ns: u64,
}

/// Packets that were sent and arrived.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Packets sent.
    pub(super) sent: u32,
    /// Arrivals, in order for each gNB.
    pub(super) arrivals: Vec<Arrival>,
    /// When the packets were released.
    pub(super) origin_ns: u64,
    /// Packets compared at the gNBs.
    pub(super) tally: Tally,
}

/// The sockets at both ends of the flow.
pub(super) struct Flow {
    server: UdpPort,
    gnbs: [UdpPort; 2],
    batch: Vector,
    taken: Vector,
    /// A packet of each size.
    templates: Vec<Template>,
    contents: Contents,
}

impl Flow {
    /// Opens the sockets.
    ///
    /// # Errors
    /// They cannot be opened.
    pub(super) fn new(network: &Network) -> anyhow::Result<Flow> {
        let bind = |namespace: &net::netns::NetNs, address: SocketAddr| {
            let bound = namespace.enter(|| UdpPort::bind(address, false))?;
            bound.with_context(|| format!("bind {address}"))
        };
        let [first, second] = gnbs();
        let sizes = (SMALLEST..=LONGEST).step_by(SIZE_STEP);
        Ok(Flow {
            templates: sizes.map(|size| Template::new(false, size)).collect::<anyhow::Result<_>>()?,
            contents: Contents::new(0),
            server: bind(&network.dn, SocketAddr::new(SERVER.into(), OTHER_PORT))?,
            gnbs: [bind(&network.gnb, first)?, bind(&network.gnb, second)?],
            batch: Vector::new(BATCH, PACKET),
            taken: Vector::new(BATCH, PACKET),
        })
    }

    /// Sends `rate` packets per second until told to stop, and records arrivals.
    pub(super) fn run(
        &mut self,
        rate: f64,
        epoch: Instant,
        stop: &AtomicBool,
        record: &mut Record,
    ) -> anyhow::Result<()> {
        let to = SocketAddr::new(Subscriber(0).ue().into(), UE_PORT);
        let started = time::now_std();
        let mut stopped: Option<Instant> = None;
        loop {
            let now = time::now_std();
            match stopped {
                None if stop.load(Relaxed) => stopped = Some(now),
                Some(at) if now - at > AFTER => return Ok(()),
                _ => {}
            }
            let due = ((now - started).as_secs_f64() * rate) as u32;
            if stopped.is_none() && due > record.sent {
                self.batch.clear();
                let count = (due - record.sent).min(BATCH as u32);
                for number in record.sent..record.sent + count {
                    let turn = number as usize % self.templates.len();
                    let template = &mut self.templates[turn];
                    template.mark(number, (now - epoch).as_nanos() as u64);
                    let packet = template.fill(Subscriber(0), 0, false);
                    // The socket makes the headers itself.
                    self.batch.push(&packet[packet::ipv4::HEADER_LEN + UDP_HEADER..], to);
                }
                let all: Vec<u16> = (0..count as u16).collect();
                let sent = self.server.transmit(&mut self.batch, &all);
                // Packets that the socket did not take are sent again with the same numbers, as they were never
                // sent.
                record.sent += sent.packets as u32;
            }
            self.take(epoch, record)?;
        }
    }

    fn take(&mut self, epoch: Instant, record: &mut Record) -> anyhow::Result<()> {
        for (gnb, port) in self.gnbs.iter_mut().enumerate() {
            if port.receive(&mut self.taken)? == 0 {
                continue;
            }
            let at_ns = (time::now_std() - epoch).as_nanos() as u64;
            for (frame, peer) in self.taken.frames().iter().zip(self.taken.peers()) {
                let bytes = frame.packet();
                let message_type = gtpu::Packet::new(bytes).map(|outer| outer.message_type());
                let (sequence, sent_ns) = if message_type == Ok(message_type::END_MARKER) {
                    (None, 0)
                } else {
                    let compared = compare(gnb, bytes, *peer, &mut self.contents);
                    match record.tally.count(compared, bytes) {
                        Some(found) => (Some(found.number), found.time_ns),
                        None => continue,
                    }
                };
                record.arrivals.push(Arrival { gnb, sequence, sent_ns, at_ns });
            }
        }
        Ok(())
    }
}

/// Compares a packet that a gNB received with what the server sent.
fn compare(gnb: usize, bytes: &[u8], peer: SocketAddr, contents: &mut Contents) -> Result<Found, Wrong> {
    let (teid, user) = contents::gpdu(false, bytes)?;
    if teid != teids()[gnb] || peer.ip() != IpAddr::V4(UPF) {
        return Err("the tunnel's addresses");
    }
    contents.sent_by_socket(user)
}

/// Numbers of packets that were lost, duplicated or reordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wrongs {
    pub(super) lost: u32,
    pub(super) duplicated: u32,
    /// Packets that arrived after a later one at the same gNB, or that the UPF sent to the old gNB although the
    /// new one got an earlier one.
    pub(super) reordered: u32,
}

impl Record {
    /// Counts lost, duplicated and reordered packets.
    pub(super) fn wrongs(&self) -> Wrongs {
        let mut times = vec![0_u32; self.sent as usize];
        let mut wrongs = Wrongs::default();
        let mut highest = [None; 2];
        for arrival in &self.arrivals {
            let Some(sequence) = arrival.sequence else { continue };
            if let Some(times) = times.get_mut(sequence as usize) {
                *times += 1;
            }
            let highest = &mut highest[arrival.gnb];
            wrongs.reordered += u32::from(highest.is_some_and(|highest| sequence < highest));
            *highest = (*highest).max(Some(sequence));
        }
        let first_at_new = self.at(1).filter_map(|arrival| arrival.sequence).min();
        if let Some(first) = first_at_new {
            let behind = self.at(0).filter(|arrival| arrival.sequence.is_some_and(|of| of > first));
            wrongs.reordered += behind.count() as u32;
        }
        wrongs.lost = times.iter().filter(|times| **times == 0).count() as u32;
        wrongs.duplicated = times.iter().map(|times| times.saturating_sub(1)).sum();
        wrongs
    }

    /// Whether packets were lost, and all of them because the UPF held `bound` packets already: they came one after the
    /// other, and the `bound` packets right before them arrived after the release.
    pub(super) fn filled(&self, bound: usize) -> bool {
        let mut arrived = vec![None; self.sent as usize];
        for arrival in &self.arrivals {
            if let Some(at_ns) = arrival.sequence.and_then(|sequence| arrived.get_mut(sequence as usize)) {
                *at_ns = Some(arrival.at_ns);
            }
        }
        let Some(first) = arrived.iter().position(Option::is_none) else { return false };
        let mut behind = arrived[first..].iter().skip_while(|at_ns| at_ns.is_none());
        let held = |at_ns: &Option<u64>| at_ns.is_some_and(|at_ns| at_ns >= self.origin_ns);
        first >= bound && arrived[first - bound..first].iter().all(held) && behind.all(Option::is_some)
    }

    /// Arrivals at a gNB.
    pub(super) fn at(&self, gnb: usize) -> impl Iterator<Item = &Arrival> {
        self.arrivals.iter().filter(move |arrival| arrival.gnb == gnb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sent: u32, arrivals: &[(usize, u32)]) -> Record {
        let arrivals = arrivals.iter().map(|(gnb, sequence)| Arrival {
            gnb: *gnb,
            sequence: Some(*sequence),
            sent_ns: 0,
            at_ns: 0,
        });
        Record { sent, arrivals: arrivals.collect(), ..Record::default() }
    }

    /// Of packets 0 to 9, two are buffered (they arrive at 100, after the release at 50), as many as there is room for.
    #[test]
    fn losses_of_a_full_buffer_are_told_from_others() {
        let with = |lost: &[u32], buffered: std::ops::Range<u32>| {
            let arrivals = (0..10).filter(|number| !lost.contains(number)).map(|number| Arrival {
                gnb: 0,
                sequence: Some(number),
                sent_ns: 0,
                at_ns: if buffered.contains(&number) { 100 } else { u64::from(number) },
            });
            Record { sent: 10, arrivals: arrivals.collect(), origin_ns: 50, ..Record::default() }
        };
        assert!(with(&[5, 6], 3..5).filled(2));
        assert!(!with(&[], 3..5).filled(2), "nothing is lost");
        assert!(!with(&[5, 6], 4..5).filled(2), "there was room for one more");
        assert!(!with(&[5, 8], 3..5).filled(2), "8 was lost when there was room again");
        assert!(!with(&[1], 0..1).filled(2), "the first packets");
    }

    #[test]
    fn what_is_wrong_is_counted() {
        let wrongs = |lost, duplicated, reordered| Wrongs { lost, duplicated, reordered };
        assert_eq!(record(4, &[(0, 0), (0, 1), (1, 2), (1, 3)]).wrongs(), wrongs(0, 0, 0));
        assert_eq!(record(4, &[(0, 1), (0, 0), (1, 3), (1, 3)]).wrongs(), wrongs(1, 1, 1));
        // The old gNB gets a packet that is later than one at the new gNB.
        assert_eq!(record(3, &[(0, 0), (0, 2), (1, 1)]).wrongs(), wrongs(0, 0, 1));
    }
}
