//! Workers on ports of the test.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::common::*;
use openflow::*;
use pktio::interface::WorkersConfig;
use pktio::memory::{self, MemoryPort};
use pktio::{Port, Sent, Vector};
use switch::core::{Identity, PortCounts, Switch, SwitchPort};
use switch::host::{self, PortSet};

/// A port that does not come back from receiving while the test holds it.
struct Held {
    port: MemoryPort,
    hold: Arc<Hold>,
}

#[derive(Default)]
struct Hold {
    lock: Mutex<()>,
    /// Whether the worker waits for the lock, or is about to.
    waits: AtomicBool,
}

impl Hold {
    /// Holds the worker, which is there when this returns.
    fn hold(&self) -> MutexGuard<'_, ()> {
        let guard = self.lock.lock().unwrap();
        // A worker that has had the lock has said so before it gave it back.
        while !self.waits.load(SeqCst) {
            std::thread::yield_now();
        }
        guard
    }
}

impl Port for Held {
    fn receive(&mut self, vector: &mut Vector) -> std::io::Result<usize> {
        self.hold.waits.store(true, SeqCst);
        let turn = self.hold.lock.lock().unwrap();
        self.hold.waits.store(false, SeqCst);
        drop(turn);
        self.port.receive(vector)
    }

    fn transmit(&mut self, vector: &mut Vector, selected: &[u16]) -> Sent {
        self.port.transmit(vector, selected)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A controller sends more than a worker that is held up can take: what waits is bounded by octets and by number, what is lost
/// is counted, and the worker sends what it has when it comes back.
#[test]
fn packets_of_controllers_do_not_pile_up() {
    let port = SwitchPort { number: 1, name: "port1".to_owned(), mac: [0; 6], counts: PortCounts::default() };
    let identity = Identity { datapath_id: 7, description: String::new() };
    let switch = Switch::new(identity, pipeline(), vec![port], 1000);
    let hold = Arc::<Hold>::default();
    let (port, wire) = memory::pair(usize::MAX);
    let ports: path::Ports = vec![Box::new(Held { port, hold: Arc::clone(&hold) })];
    let sets = vec![PortSet { ports, inputs: vec![0] }];
    let host = host::start(&switch, sets, &WorkersConfig::default()).unwrap();
    let held = hold.hold();
    let counts = &switch.ports()[0].counts;
    let send = |octets: usize, times: usize| {
        for _ in 0..times {
            switch.packet_out(PortNo::CONTROLLER, &[output(1)], vec![0; octets]);
        }
        times - counts.tx_dropped.swap(0, Relaxed) as usize
    };
    let long = send(9000, 1000);
    assert!((100..=120).contains(&long), "{long} octets of a megabyte");
    let short = send(60, 10_000);
    assert!(short < 40, "{short} in what is left");
    assert_eq!(switch.counts.packet_out_lost.load(Relaxed) as usize, 11_000 - long - short);
    drop(held);
    switch.settle();
    let frames = wire.take();
    assert_eq!(frames.len(), long + short);
    // There is room again, and short ones do not come in endless numbers.
    let held = hold.hold();
    let short = send(60, 10_000);
    drop(held);
    switch.settle();
    assert!((3200..=3400).contains(&short), "{short} of 316 octets");
    assert_eq!(wire.take().len(), short);
    drop(host);
}
