//! Numbered packets between sockets, to see at the far end what was lost, doubled or overtaken, and how long nothing came.
//!
//! One thread sends the packets of all flows, one after the other in each tick: flows differ by their ways only, not by when their
//! sender had the processor. Arrivals have the kernel's time, so that a busy receiver does not count either.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context as _;
use net::netns::NetNs;
use net::time::{self, Duration};
use net::udp;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long a packet may take to arrive before it counts as lost.
const SETTLE: Duration = Duration::from_millis(500);
/// Room for what arrives while the receiving thread of a busy machine waits.
const RECEIVE_BUFFER: usize = 8 << 20;
/// How often the threads look whether they are to end.
const LOOK: u16 = 100;
/// Number and time, which each packet begins with.
const HEADER: usize = 16;
const LARGEST: usize = 9000;

/// A flow: its packets go from one socket to the other one's address.
pub struct Ends {
    /// Sends.
    pub from: UdpSocket,
    /// Receives; made by [`bind`].
    pub to: UdpSocket,
    /// Where the packets are sent.
    pub address: SocketAddr,
}

/// Opens a socket for [`Ends`].
///
/// # Errors
/// The address is in use, or not one of the namespace.
pub fn bind(space: &NetNs, address: impl Into<IpAddr>, port: u16) -> anyhow::Result<UdpSocket> {
    let options =
        udp::Options { receive_buffer: Some(RECEIVE_BUFFER), stamped: true, ..udp::Options::default() };
    let address = SocketAddr::new(address.into(), port);
    let patience = time::now() + Duration::from_secs(1);
    loop {
        match space.enter(|| udp::bind_std(address, options))? {
            // A child that another thread has just forked has copies of all sockets, closed ones too, until it runs its program.
            Err(error) if error.kind() == ErrorKind::AddrInUse && time::now() < patience => {
                time::sleep_thread(Duration::from_millis(1));
            }
            bound => return bound.with_context(|| format!("open UDP port {address}")),
        }
    }
}

/// What has become of packets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Sent.
    pub sent: u64,
    /// Never received.
    pub lost: usize,
    /// Received again.
    pub doubled: usize,
    /// Received behind a later one.
    pub reordered: usize,
}

/// What has become of a part of a flow.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Found {
    /// How many.
    pub counts: Counts,
    /// The longest time without an arrival.
    pub longest_gap: Duration,
    /// From sender to receiver, of each packet, in the order of arrival.
    pub delays: Vec<Duration>,
}

/// A packet that has arrived; times are since 1970.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    number: u64,
    sent: Duration,
    received: Duration,
}

/// Flows that run. Dropping it ends them.
pub struct Traffic {
    sent: Arc<AtomicU64>,
    received: Vec<Arc<Mutex<Vec<Arrival>>>>,
    /// The sender is to end, and the receiver.
    ends: [Arc<AtomicBool>; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.ends.iter().for_each(|ends| ends.store(true, Ordering::Relaxed));
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn lock(list: &Mutex<Vec<Arrival>>) -> MutexGuard<'_, Vec<Arrival>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Traffic {
    /// Starts flows of packets of so many octets, one in each interval.
    pub fn start(flows: Vec<Ends>, interval: Duration, octets: usize) -> Traffic {
        let (sent, ends) = (Arc::<AtomicU64>::default(), <[Arc<AtomicBool>; 2]>::default());
        let received: Vec<Arc<Mutex<Vec<Arrival>>>> = flows.iter().map(|_| Arc::default()).collect();
        let (from, to): (Vec<_>, Vec<_>) =
            flows.into_iter().map(|flow| ((flow.from, flow.address), flow.to)).unzip();
        let (count, over) = (Arc::clone(&sent), Arc::clone(&ends[0]));
        let octets = octets.clamp(HEADER, LARGEST);
        let sender = std::thread::spawn(move || send(&from, interval, octets, &count, &over));
        let (lists, over) = (received.clone(), Arc::clone(&ends[1]));
        let receiver = std::thread::spawn(move || receive(&to, &lists, &over));
        Traffic { sent, received, ends, threads: vec![sender, receiver] }
    }

    /// Sends no more, and takes what is on its way; what has become of all packets of each flow.
    pub async fn finish(mut self) -> Vec<Found> {
        self.ends[0].store(true, Ordering::Relaxed);
        // It ends within its next look.
        let _ = self.threads.remove(0).join();
        self.since(0).await
    }

    /// The number of the next packet; the same in all flows.
    pub fn next(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// What has become of the packets of each flow from a number on until now. Waits for those that are on their way.
    pub async fn since(&self, first: u64) -> Vec<Found> {
        let numbers = first..self.next();
        self.settle().await;
        (0..self.received.len()).map(|flow| self.of(flow, numbers.clone())).collect()
    }

    /// Waits until what was sent up to now has arrived.
    pub async fn settle(&self) {
        time::sleep(SETTLE).await;
    }

    /// What has become of these packets of a flow so far.
    pub fn of(&self, flow: usize, numbers: Range<u64>) -> Found {
        let arrivals: Vec<Arrival> =
            lock(&self.received[flow]).iter().filter(|one| numbers.contains(&one.number)).copied().collect();
        judge(&arrivals, numbers)
    }
}

fn judge(arrivals: &[Arrival], numbers: Range<u64>) -> Found {
    let mut counts = Counts { sent: numbers.end.saturating_sub(numbers.start), ..Counts::default() };
    let (mut seen, mut highest, mut before) = (HashSet::new(), None, None);
    let mut longest_gap = Duration::ZERO;
    for one in arrivals {
        counts.doubled += usize::from(!seen.insert(one.number));
        counts.reordered += usize::from(highest.is_some_and(|highest| one.number < highest));
        highest = highest.max(Some(one.number));
        if let Some(before) = before.replace(one.received) {
            longest_gap = longest_gap.max(one.received.saturating_sub(before));
        }
    }
    counts.lost = counts.sent as usize - seen.len();
    let delays = arrivals.iter().map(|one| one.received.saturating_sub(one.sent)).collect();
    Found { counts, longest_gap, delays }
}

fn since_1970() -> Duration {
    time::wall_clock().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Sends until it is over. What is late is made up for.
fn send(
    flows: &[(UdpSocket, SocketAddr)],
    interval: Duration,
    octets: usize,
    count: &AtomicU64,
    over: &AtomicBool,
) {
    let began = time::now();
    let mut packet = vec![0; octets];
    while !over.load(Ordering::Relaxed) {
        let number = count.load(Ordering::Relaxed);
        let due = began + interval * u32::try_from(number).unwrap_or(u32::MAX);
        let wait = due.saturating_duration_since(time::now());
        if !wait.is_zero() {
            time::sleep_thread(wait.min(Duration::from_millis(LOOK.into())));
            continue;
        }
        packet[..8].copy_from_slice(&number.to_be_bytes());
        for (socket, address) in flows {
            packet[8..HEADER].copy_from_slice(&(since_1970().as_nanos() as u64).to_be_bytes());
            // What cannot be sent is lost: no packet of that number arrives.
            let _ = socket.send_to(&packet, *address);
        }
        count.store(number + 1, Ordering::Relaxed);
    }
}

fn receive(sockets: &[UdpSocket], lists: &[Arc<Mutex<Vec<Arrival>>>], over: &AtomicBool) {
    let mut buffer = [0; LARGEST];
    while !over.load(Ordering::Relaxed) {
        let mut waiting: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        let _ = poll(&mut waiting, PollTimeout::from(LOOK));
        for (socket, list) in sockets.iter().zip(lists) {
            loop {
                match udp::receive_stamped(socket, &mut buffer) {
                    Ok((length, at)) => {
                        let word = |at: usize| {
                            let octets = buffer[..length].get(at..at + 8)?;
                            Some(u64::from_be_bytes(octets.try_into().ok()?))
                        };
                        let (Some(number), Some(sent)) = (word(0), word(8)) else { continue };
                        let received = at.duration_since(std::time::SystemTime::UNIX_EPOCH);
                        let received = received.unwrap_or_default();
                        lock(list).push(Arrival { number, sent: Duration::from_nanos(sent), received });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // ICMP errors of hosts that were asked.
                    Err(_) => break,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_become_of_packets_is_counted() {
        let at = |number: u64, ms: u64| Arrival {
            number,
            sent: Duration::from_millis(number),
            received: Duration::from_millis(ms),
        };
        let arrivals = [at(10, 20), at(12, 22), at(11, 29), at(12, 30), at(15, 31)];
        let found = judge(&arrivals, 10..16);
        assert_eq!(found.counts, Counts { sent: 6, lost: 2, doubled: 1, reordered: 1 });
        assert_eq!(found.longest_gap, Duration::from_millis(7));
        assert_eq!(found.delays[2], Duration::from_millis(18));
        let nothing = judge(&[], 3..5);
        assert_eq!(nothing.counts, Counts { sent: 2, lost: 2, doubled: 0, reordered: 0 });
    }
}
