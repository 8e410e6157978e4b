//! Numbered packets both ways, to see at the far end what was lost, doubled or overtaken.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use net::netns::NetNs;
use net::time::{self, Duration};
use net::udp;

/// Packets in a millisecond each way.
const RATE: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(60);

/// A socket of a namespace, with room for what arrives while threads of a busy machine wait.
pub(crate) fn bind(space: &NetNs, address: Ipv4Addr, port: u16) -> UdpSocket {
    let options = udp::Options { receive_buffer: Some(8 << 20), ..udp::Options::default() };
    let socket: UdpSocket = space.enter(|| udp::bind_std((address, port).into(), options).unwrap()).unwrap();
    socket.set_nonblocking(false).unwrap();
    socket
}

/// Numbered packets from one socket to another.
pub(crate) struct Flow {
    sent: Arc<AtomicU64>,
    received: Arc<Mutex<Vec<u64>>>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// What has become of a part of a flow.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) sent: u64,
    pub(crate) lost: usize,
    pub(crate) doubled: usize,
    pub(crate) reordered: usize,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Flow {
    pub(crate) fn start(from: &UdpSocket, to: &UdpSocket, address: SocketAddr) -> Flow {
        let (sent, received, ends) =
            (Arc::<AtomicU64>::default(), Arc::<Mutex<Vec<u64>>>::default(), Arc::<AtomicBool>::default());
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        to.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (count, over) = (Arc::clone(&sent), Arc::clone(&ends));
        let sender = std::thread::spawn(move || {
            let began = time::now();
            while !over.load(Relaxed) {
                let due = (time::now() - began).as_millis() as u64 * RATE;
                while count.load(Relaxed) < due {
                    let number = count.load(Relaxed);
                    from.send_to(&number.to_be_bytes(), address).unwrap();
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
                list.lock().unwrap().push(number);
            }
        });
        Flow { sent, received, ends, threads: vec![sender, receiver] }
    }

    /// What has become of the packets from a number on.
    pub(crate) async fn since(&self, first: u64) -> Found {
        let end = self.sent.load(Relaxed);
        time::sleep(Duration::from_millis(500)).await;
        let received = self.received.lock().unwrap();
        let numbers = received.iter().copied().filter(|number| (first..end).contains(number));
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

    pub(crate) fn next(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

pub(crate) async fn until<T>(what: &str, mut is_so: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = time::now() + PATIENCE;
    loop {
        if let Some(found) = is_so().await {
            return found;
        }
        assert!(time::now() < deadline, "{what} does not become so");
        time::sleep(Duration::from_millis(50)).await;
    }
}
