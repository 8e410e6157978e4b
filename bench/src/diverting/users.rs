//! A base station with many users, and two anchors, at a switch: one thread sends the packets of users, and notes at which anchor each of them
//! arrives. It answers what neighbours ask, and GTP-U Echo, so that a controller sees anchors that are alive.
//!
//! All packets are numbered, and users take turns. So the sequence of packets shows, for all users together, from which packet on
//! a change of rules was effective, as finely as packets follow each other, however many users there are ([`Record::judge`]).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context as _, ensure};
use controller::frame::{self as neighbours, Neighbour, Station};
use net::netns::NetNs;
use net::time::{self, Duration};
use openflow::MacAddr;
use packet::gtpu::{self, Signalling};
use packet::{ethernet, ipv4, protocol, transport};
use pktio::af_xdp::{AfXdpPort, Interface, Memory, Options};
use pktio::bpf::filter::Select;
use pktio::{Port as _, VECTOR, Vector};

use super::frames::{self, FIRST_TEID, GW1, GW2, STATION};
use crate::machine;
use crate::stats::median;

/// Interfaces of the ends, in their namespace: the base station's, and the anchors'.
pub(super) const DEVICES: [&str; 3] = ["enb", "gw1", "gw2"];
/// Their addresses.
pub(super) const ADDRESSES: [Ipv4Addr; 3] = [STATION, GW1, GW2];
/// Their link-layer addresses.
pub(super) const MACS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 11], [2, 0, 0, 0, 0, 12]];
/// The anchors among the ends.
pub(super) const OLD: usize = 1;
/// See [`OLD`].
pub(super) const NEW: usize = 2;

/// Where the TEID is in a frame, and the packet's number, which are the user's last octets.
const TEID_AT: usize = 46;
const NUMBER: usize = 4;
/// Octets of the smallest packet of a user.
const SMALLEST: usize = ipv4::HEADER_LEN + transport::UDP_HEADER_LEN + NUMBER;
/// Pause of the thread between two looks at its interfaces, while there is traffic and while there is none.
const PAUSE: Duration = Duration::from_micros(20);
const IDLE_PAUSE: Duration = Duration::from_millis(2);
/// Packets that have not arrived so long after the last one was sent are lost.
const LOST: Duration = Duration::from_millis(150);
/// Time limit for an answer of the thread.
const PATIENCE: Duration = Duration::from_secs(10);

/// The user's TEID at its first anchor.
pub(super) fn teid(user: u32) -> u32 {
    FIRST_TEID + user
}

/// The user's address.
pub(super) fn ue(user: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 64, 0, 0).to_bits() + user)
}

/// Traffic of users, each in turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// How many there are, from user 0 on.
    pub(super) users: u32,
    /// How many of them are about to move, from user 0 on.
    pub(super) moved: u32,
    /// Packets of all of them in a second.
    pub(super) pps: u32,
    /// The anchor to which these move. It is looked at before the other one, so that a packet that is found
    /// at the other one later has arrived there later.
    pub(super) to: usize,
}

enum Command {
    Begin(Load),
    End(mpsc::Sender<Record>),
    Stop,
}

/// Where and when a packet arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrival {
    number: u32,
    end: usize,
    at_ns: u64,
    /// Which look at the interfaces found it.
    look: u32,
}

/// Packets that were sent, and where they arrived.
#[derive(Debug, Default)]
pub(super) struct Record {
    users: u32,
    sent: u32,
    arrivals: Vec<Arrival>,
    /// Packets with other octets than were sent.
    wrong: u64,
}

/// What a record says of a move.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Move {
    /// When all of the moved users' packets had begun to arrive at the new anchor: the arrival of the first one behind the last
    /// that still went to the old one.
    pub(super) effective_ns: u64,
    /// When the first packet arrived at the new anchor.
    pub(super) first_ns: u64,
    /// When each user's first packet did: the median, and the last user's. A user has its next packet after the others'.
    pub(super) median_ns: u64,
    pub(super) last_ns: u64,
    /// Packets of moved users from the first one that took the new way to the last one that took the old way: 0 if all were
    /// moved at one moment.
    pub(super) mixed: u64,
    /// Packets that arrived nowhere, twice, or changed.
    pub(super) lost: u64,
    pub(super) twice: u64,
    pub(super) wrong: u64,
    /// Packets of a user at the old anchor behind one at the new anchor: in the order of sending, or of arrival.
    pub(super) back: u64,
    /// Packets of users who were not to be moved, at the new anchor.
    pub(super) others: u64,
    /// All packets.
    pub(super) sent: u64,
}

impl Record {
    /// Looks at a move of the first `moved` users from one anchor to the other.
    ///
    /// # Errors
    /// Some user's packets do not get to the new anchor.
    pub(super) fn judge(&self, moved: u32, [from, to]: [usize; 2]) -> anyhow::Result<Move> {
        let mut found = Move { wrong: self.wrong, sent: self.sent.into(), ..Move::default() };
        let mut ways: Vec<Option<Arrival>> = vec![None; self.sent as usize];
        for arrival in &self.arrivals {
            match ways.get_mut(arrival.number as usize) {
                Some(way @ None) => *way = Some(*arrival),
                Some(Some(_)) => found.twice += 1,
                None => found.wrong += 1,
            }
        }
        found.lost = ways.iter().filter(|way| way.is_none()).count() as u64;
        let user = |arrival: &Arrival| arrival.number % self.users;
        let (of_moved, others): (Vec<Arrival>, Vec<Arrival>) =
            ways.into_iter().flatten().partition(|arrival| user(arrival) < moved);
        // Others stay with the first anchor, in whichever direction the users move.
        found.others = others.iter().filter(|arrival| arrival.end != OLD).count() as u64;
        let last_old = of_moved.iter().rposition(|arrival| arrival.end == from);
        let behind = last_old.map_or(0, |at| at + 1);
        let first_new = of_moved.iter().position(|arrival| arrival.end == to);
        let (Some(first_new), Some(effective)) = (first_new, of_moved.get(behind)) else {
            anyhow::bail!("packets do not get to the other anchor: {found:?}");
        };
        found.effective_ns = effective.at_ns;
        found.mixed = behind.saturating_sub(first_new) as u64;
        // Each user's first packet at the new anchor, and what came to the old one behind it.
        let mut firsts: Vec<Option<Arrival>> = vec![None; moved as usize];
        for arrival in &of_moved {
            let first = &mut firsts[user(arrival) as usize];
            match (arrival.end == to, *first) {
                (true, None) => *first = Some(*arrival),
                (false, Some(_)) => found.back += 1,
                _ => {}
            }
        }
        // In order of arrival the earliest at the new anchor counts.
        let mut looks: Vec<u32> = vec![u32::MAX; moved as usize];
        for arrival in of_moved.iter().filter(|arrival| arrival.end == to) {
            let look = &mut looks[user(arrival) as usize];
            *look = (*look).min(arrival.look);
        }
        let late = |arrival: &&Arrival| arrival.end == from && arrival.look > looks[user(arrival) as usize];
        found.back += of_moved.iter().filter(late).count() as u64;
        let missing = firsts.iter().filter(|first| first.is_none()).count();
        ensure!(missing == 0, "{missing} of {moved} users do not get to the other anchor: {found:?}");
        let times: Vec<f64> = firsts.iter().flatten().map(|arrival| arrival.at_ns as f64).collect();
        found.first_ns = times.iter().copied().fold(f64::INFINITY, f64::min) as u64;
        found.last_ns = times.iter().copied().fold(0.0, f64::max) as u64;
        found.median_ns = median(&times) as u64;
        Ok(found)
    }

    /// How many packets arrived at each end, in all.
    pub(super) fn at_ends(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        self.arrivals.iter().for_each(|arrival| counts[arrival.end] += 1);
        counts
    }
}

/// The thread with the ends. It ends when this is dropped.
pub(super) struct Ends {
    commands: mpsc::Sender<Command>,
    there: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl Ends {
    /// Opens the interfaces in their namespace, and starts the thread on any of these cores.
    ///
    /// # Errors
    /// The process lacks rights.
    pub(super) fn start(space: &NetNs, cores: &[usize]) -> anyhow::Result<Ends> {
        let mut own = space.enter(Own::open)??;
        let (commands, received) = mpsc::channel();
        let there = Arc::clone(&own.there);
        let cores = cores.to_vec();
        let thread = space.spawn("ends", move || {
            machine::pin(&cores);
            own.run(&received);
        })?;
        Ok(Ends { commands, there, thread: Some(thread) })
    }

    /// How many of the users who are to move have had a packet at the new place since the load began.
    pub(super) fn there(&self) -> u32 {
        self.there.load(Relaxed)
    }

    /// Begins to send.
    pub(super) fn begin(&self, load: Load) {
        self.there.store(0, Relaxed);
        // If the thread has ended, `end` says so.
        let _ = self.commands.send(Command::Begin(load));
    }

    /// Stops sending; waits for what is under way.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn end(&self) -> anyhow::Result<Record> {
        let (answer, record) = mpsc::channel();
        let _ = self.commands.send(Command::End(answer));
        record.recv_timeout(PATIENCE).context("the thread of the ends has ended")
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

/// What the thread owns.
struct Own {
    ports: [AfXdpPort; 3],
    sending: Vector,
    received: Vector,
    /// A user's packet to the first anchor.
    frame: Vec<u8>,
    record: Record,
    load: Option<Load>,
    /// Which users are where they move to, and how many.
    moved: Vec<bool>,
    there: Arc<AtomicU32>,
    begun_ns: u64,
    look: u32,
}

impl Own {
    fn open() -> anyhow::Result<Own> {
        let interfaces = DEVICES.map(|name| Interface::open(name, None, &[Select::Everything]));
        let [enb, gw1, gw2] = interfaces;
        let interfaces = [enb?, gw1?, gw2?];
        let devices = interfaces.iter().map(|interface| interface.device());
        let mut memory = Memory::with_more(interfaces.len(), 4 * VECTOR, devices)?;
        let mut open = |at: usize| AfXdpPort::open(&interfaces[at], [0], &mut memory, Options::default());
        let ports = [open(0)?, open(OLD)?, open(NEW)?];
        let [mut sending, mut received] = [Vector::new(VECTOR, 2048), Vector::new(VECTOR, 2048)];
        if let Some(pool) = ports[0].pool() {
            sending.settle(&pool);
            received.settle(&pool);
        }
        Ok(Own {
            ports,
            sending,
            received,
            frame: frame(OLD, SMALLEST)?,
            record: Record::default(),
            load: None,
            moved: Vec::new(),
            there: Arc::default(),
            begun_ns: 0,
            look: 0,
        })
    }

    fn run(&mut self, commands: &mpsc::Receiver<Command>) {
        loop {
            match commands.try_recv() {
                Ok(Command::Begin(load)) => {
                    self.record = Record { users: load.users, ..Record::default() };
                    self.moved = vec![false; load.moved as usize];
                    (self.load, self.begun_ns, self.look) = (Some(load), time::now_ns(), 0);
                }
                Ok(Command::End(answer)) => {
                    let to = self.load.take().map_or(NEW, |load| load.to);
                    let until = time::now_std() + LOST;
                    while self.record.arrivals.len() < self.record.sent as usize && time::now_std() < until {
                        self.take(to);
                        time::sleep_thread(PAUSE);
                    }
                    // Who asked may have gone.
                    let _ = answer.send(std::mem::take(&mut self.record));
                }
                Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return,
                Err(mpsc::TryRecvError::Empty) => {}
            }
            self.take(self.load.map_or(NEW, |load| load.to));
            if let Some(load) = self.load {
                self.send(load);
            }
            time::sleep_thread(if self.load.is_some() { PAUSE } else { IDLE_PAUSE });
        }
    }

    /// Sends what is due.
    fn send(&mut self, load: Load) {
        let due = u128::from(time::now_ns() - self.begun_ns) * u128::from(load.pps) / 1_000_000_000;
        let behind = (due as u32).saturating_sub(self.record.sent).min(VECTOR as u32);
        if behind == 0 {
            return;
        }
        self.sending.clear();
        for number in self.record.sent..self.record.sent + behind {
            mark(&mut self.frame, number, number % load.users);
            if !self.sending.push(&self.frame, nowhere()) {
                break;
            }
        }
        let all: Vec<u16> = (0..self.sending.len() as u16).collect();
        // Numbers of packets that were not taken are those of the next ones.
        self.record.sent += self.ports[0].transmit(&mut self.sending, &all).packets as u32;
    }

    /// Takes what has arrived; the anchor `first` comes first.
    fn take(&mut self, first: usize) {
        self.look += 1;
        for end in [first, OLD + NEW - first, 0] {
            while let Ok(count @ 1..) = self.ports[end].receive(&mut self.received) {
                let at_ns = time::now_ns();
                let mut answers = Vec::new();
                for taken in self.received.frames() {
                    let octets = taken.packet();
                    match number(octets, &self.frame, self.record.users) {
                        Some(Ok(number)) => {
                            let arrival = Arrival { number, end, at_ns, look: self.look };
                            self.record.arrivals.push(arrival);
                            let user = (number % self.record.users) as usize;
                            if end == first && self.moved.get(user) == Some(&false) {
                                self.moved[user] = true;
                                self.there.fetch_add(1, Relaxed);
                            }
                        }
                        Some(Err(())) => self.record.wrong += 1,
                        None => answers.extend(answer(octets, end)),
                    }
                }
                for frame in answers {
                    self.sending.clear();
                    self.sending.push(&frame, nowhere());
                    self.ports[end].transmit(&mut self.sending, &[0]);
                }
                if count < self.received.capacity() {
                    break;
                }
            }
        }
    }
}

fn nowhere() -> std::net::SocketAddr {
    (Ipv4Addr::UNSPECIFIED, 0).into()
}

/// A user's packet of `size` octets to an anchor, as the base station sends it. [`mark`] makes it that of another user.
pub(super) fn frame(to: usize, size: usize) -> anyhow::Result<Vec<u8>> {
    let ends = frames::Ends { macs: [MACS[to], MACS[0]], source: STATION, destination: ADDRESSES[to] };
    let size = size.max(SMALLEST);
    let mut frame = frames::uplink(ends, FIRST_TEID, size, false)?;
    // Numbers are changed in place: there is no checksum over them.
    let checksum = frames::HEADERS + SMALLEST - NUMBER - 2;
    frame[checksum..checksum + 2].fill(0);
    Ok(frame)
}

/// Makes it that of a user, with a number.
pub(super) fn mark(frame: &mut [u8], number: u32, user: u32) {
    let at = frame.len() - NUMBER;
    frame[TEID_AT..TEID_AT + 4].copy_from_slice(&teid(user).to_be_bytes());
    frame[at..].copy_from_slice(&number.to_be_bytes());
}

/// The number of a user's packet; an error if it is not as it was sent behind its outer headers; `None` for other frames.
fn number(octets: &[u8], sent: &[u8], users: u32) -> Option<Result<u32, ()>> {
    let (_, _, udp) = neighbours::datagram(octets)?;
    let message = udp.payload();
    if gtpu::Packet::new(message).ok()?.message_type() != gtpu::message_type::G_PDU {
        return None;
    }
    // Between the TEID and the number nothing changes from packet to packet.
    let (own, after) = (&sent[TEID_AT - 4..], 8..message.len().saturating_sub(NUMBER));
    if message.len() != own.len() || message[after.clone()] != own[after.clone()] || users == 0 {
        return Some(Err(()));
    }
    let word = |at: usize| message[at..at + 4].iter().fold(0, |word, octet| word << 8 | u32::from(*octet));
    let number = word(after.end);
    Some(if word(4) == teid(number % users) { Ok(number) } else { Err(()) })
}

/// What an end answers.
fn answer(octets: &[u8], end: usize) -> Option<Vec<u8>> {
    let own = Station { mac: MacAddr(MACS[end]), ip: ADDRESSES[end].into() };
    if let Some(Neighbour::Asked { by, target }) = neighbours::neighbour(octets) {
        return (target == own.ip).then(|| neighbours::tell(own, Some(by)));
    }
    let (source, destination, udp) = neighbours::datagram(octets)?;
    let Ok(Some(Signalling::EchoRequest { sequence })) = gtpu::decode(udp.payload()) else { return None };
    let (IpAddr::V4(source), true) = (source, destination == own.ip) else { return None };
    let response = Signalling::EchoResponse { sequence }.build();
    let (from, to) = ((own.ip, gtpu::PORT), (source.into(), udp.source_port()));
    let datagram = transport::build_udp(from, to, &response).ok()?;
    let packet = ipv4::Header::new(ADDRESSES[end], source, protocol::UDP).build(&datagram).ok()?;
    let asker = ethernet::Frame::new(octets).ok()?.source();
    Some(ethernet::build(asker, own.mac.0, None, ethernet::IPV4, &packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two users of which the first moves, and a third who stays: packets 0, 3, 6, … are the first user's.
    fn record(ends: &[usize]) -> Record {
        let arrivals = (0..).zip(ends).map(|(number, end)| Arrival {
            number,
            end: *end,
            at_ns: 100 * u64::from(number),
            look: number,
        });
        Record { users: 3, sent: ends.len() as u32, arrivals: arrivals.collect(), wrong: 0 }
    }

    #[test]
    fn a_move_is_effective_behind_the_last_packet_of_the_old_way() {
        let moved = |ends: &[usize]| record(ends).judge(2, [OLD, NEW]);
        // Users 0 and 1 move between packets 3 and 4.
        let found = moved(&[1, 1, 1, 1, 2, 1, 2, 2, 1]).unwrap();
        assert_eq!((found.effective_ns, found.first_ns, found.last_ns), (400, 400, 600));
        assert_eq!((found.mixed, found.back, found.lost, found.others), (0, 0, 0, 0));
        // User 1 moves later than user 0.
        let found = moved(&[1, 1, 1, 2, 1, 1, 2, 2, 1]).unwrap();
        assert_eq!((found.effective_ns, found.first_ns, found.mixed), (600, 300, 2));
        // A packet of user 0 goes back, in both orders; one of another user moves; one is lost.
        let mut broken = record(&[2, 2, 1, 1, 2, 2, 2, 2, 1]);
        broken.arrivals.pop();
        let found = broken.judge(2, [OLD, NEW]).unwrap();
        assert_eq!((found.back, found.others, found.lost), (2, 1, 1));
        assert!(moved(&[1, 1, 1, 2, 1, 1]).is_err(), "user 1 does not move");
    }

    #[test]
    fn packets_are_known_again_and_changes_are_seen() {
        let mut sent = frame(OLD, SMALLEST).unwrap();
        mark(&mut sent, 17, 17 % 5);
        assert_eq!(number(&sent, &frame(OLD, SMALLEST).unwrap(), 5), Some(Ok(17)));
        for at in [TEID_AT, TEID_AT + 5, sent.len() - 10] {
            let mut changed = sent.clone();
            changed[at] ^= 1;
            assert_ne!(number(&changed, &frame(OLD, SMALLEST).unwrap(), 5), Some(Ok(17)), "octet {at}");
        }
        let asker = Station { mac: MacAddr([2; 6]), ip: "10.0.0.250".parse().unwrap() };
        let to = Station { mac: MacAddr(MACS[NEW]), ip: ADDRESSES[NEW].into() };
        let echo = neighbours::echo_request(asker, to, 9).unwrap();
        assert_eq!(number(&echo, &sent, 5), None);
        let answered = neighbours::echo_response(&answer(&echo, NEW).unwrap());
        assert_eq!(answered, Some((to.ip, 9)));
        assert_eq!(answer(&echo, OLD), None);
    }
}
