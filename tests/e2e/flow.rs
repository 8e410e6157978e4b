//! One flow of numbered packets ([`lab::traffic`]), and waiting for what is to become so.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

pub(crate) use lab::traffic::Counts as Found;
use lab::traffic::{self, Ends, Traffic};
use net::netns::NetNs;
use net::time::{self, Duration};

/// Packets in a millisecond each way: 2.
const INTERVAL: Duration = Duration::from_micros(500);
const OCTETS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn bind(space: &NetNs, address: Ipv4Addr, port: u16) -> UdpSocket {
    traffic::bind(space, address, port).unwrap()
}

/// Numbered packets from one socket to another.
pub(crate) struct Flow(Traffic);

impl Flow {
    pub(crate) fn start(from: &UdpSocket, to: &UdpSocket, address: SocketAddr) -> Flow {
        let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        Flow(Traffic::start(vec![Ends { from, to, address }], INTERVAL, OCTETS))
    }

    /// What has become of the packets from a number on.
    pub(crate) async fn since(&self, first: u64) -> Found {
        self.0.since(first).await[0].counts
    }

    pub(crate) fn next(&self) -> u64 {
        self.0.next()
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
