//! Numbered packets of users that come and go: what was lost, doubled or overtaken, and the longest time without one.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use lab::traffic;
use net::netns::NetNs;
use net::time::{self, Duration, Instant};

/// Packets in a millisecond each way.
const RATE: u64 = 2;

/// A socket of a namespace, for threads that wait for packets.
pub(crate) fn bind(space: &NetNs, address: Ipv4Addr, port: u16) -> Result<UdpSocket, String> {
    let socket = traffic::bind(space, address, port).map_err(|error| format!("{error:#}"))?;
    socket.set_nonblocking(false).map_err(|error| error.to_string())?;
    Ok(socket)
}

/// Numbered packets from one socket to another.
pub(crate) struct Stream {
    sent: Arc<AtomicU64>,
    /// Numbers, and when they came.
    received: Arc<Mutex<Vec<(u64, Instant)>>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    began: Instant,
}

/// What has become of a part of a flow.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) sent: u64,
    pub(crate) lost: usize,
    pub(crate) doubled: usize,
    pub(crate) reordered: usize,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Stream {
    pub(crate) fn start(from: &UdpSocket, to: &UdpSocket, address: SocketAddr) -> Stream {
        let (sent, received, ends) =
            (Arc::<AtomicU64>::default(), Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        to.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (count, over) = (Arc::clone(&sent), Arc::clone(&ends));
        let sender = std::thread::spawn(move || {
            let began = time::now();
            while !over.load(Relaxed) {
                let due = (time::now() - began).as_millis() as u64 * RATE;
                while count.load(Relaxed) < due {
                    let number = count.load(Relaxed);
                    // Without a way it is lost like any other.
                    let _ = from.send_to(&number.to_be_bytes(), address);
                    count.store(number + 1, Relaxed);
                }
                time::sleep_thread(Duration::from_micros(300));
            }
        });
        let (list, over) = (Arc::clone(&received), Arc::clone(&ends));
        let receiver = std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !over.load(Relaxed) {
                let Ok(length) = to.recv(&mut buffer) else { continue };
                let number = u64::from_be_bytes(buffer[..length].try_into().unwrap());
                list.lock().unwrap().push((number, time::now()));
            }
        });
        Stream { sent, received, ends, threads: vec![sender, receiver], began: time::now() }
    }

    /// What has become of the packets from a number on.
    pub(crate) async fn since(&self, first: u64) -> Found {
        let end = self.sent.load(Relaxed);
        time::sleep(Duration::from_millis(500)).await;
        self.between(first, end)
    }

    /// What has become of packets with these numbers so far.
    pub(crate) fn between(&self, first: u64, end: u64) -> Found {
        let received = self.received.lock().unwrap();
        let numbers =
            received.iter().map(|(number, _)| *number).filter(|number| (first..end).contains(number));
        let (mut found, mut seen, mut highest) =
            (Found { sent: end - first, ..Found::default() }, BTreeSet::new(), 0);
        for number in numbers {
            found.doubled += usize::from(!seen.insert(number));
            found.reordered += usize::from(number < highest);
            highest = highest.max(number);
        }
        found.lost = (end - first) as usize - seen.len();
        found
    }

    /// The longest time without a packet since packet `first` was sent: when it began, and how long it was.
    pub(crate) fn longest_gap(&self, first: u64) -> Option<(Instant, Duration)> {
        let received = self.received.lock().unwrap();
        let from = received.partition_point(|(number, _)| *number < first).saturating_sub(1);
        let gap = |pair: &[(u64, Instant)]| (pair[0].1, pair[1].1.saturating_duration_since(pair[0].1));
        received[from..].windows(2).map(gap).max_by_key(|(_, length)| *length)
    }

    /// When it began.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Packets that have come so far.
    pub(crate) fn come(&self) -> usize {
        self.received.lock().unwrap().len()
    }

    pub(crate) fn next(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}
