//! Which cases are measured, and for how long.

use net::time::Duration;

use super::params::{Load, Protocol, Serve};

/// The paper's numbers of connections.
pub(super) const CONNECTIONS: [u32; 4] = [1, 10, 100, 500];
/// The paper's delays, milliseconds.
pub(super) const DELAYS: [u64; 3] = [0, 10, 100];
/// The paper's number of workers.
pub(super) const WORKERS: u32 = 500;
/// The paper's size of bodies, octets.
pub(super) const BODY: usize = 10;
/// Without a delay, a worker times one transaction in this many: reading the clock takes up to a tenth of the
/// fastest transaction.
const TIME_EVERY: u32 = 8;

/// Extent of the measurement.
pub(super) struct Plan {
    pub quick: bool,
    /// Samples of each figure.
    pub rounds: usize,
}

/// One case of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell {
    /// Milliseconds.
    pub delay: u64,
    pub connections: u32,
}

impl Plan {
    pub(super) fn new(quick: bool) -> Plan {
        Plan { quick, rounds: if quick { 3 } else { 5 } }
    }

    /// All cases, and the contenders of each, in the order of their turns.
    pub(super) fn cells(&self) -> Vec<(Cell, Vec<Protocol>)> {
        use Protocol::{Cotcp, CotcpInline, CotcpPool, Grpc, Http2, Tcp, Yamux};
        let cell = |delay, connections| {
            let protocols = match (delay, connections) {
                (0, 100 | 500) if self.quick => vec![Tcp, Http2, Grpc, Cotcp, CotcpInline, CotcpPool],
                // A pool with one connection is the same as a single connection.
                (0, 1) => vec![Tcp, Http2, Grpc, Yamux, Cotcp, CotcpInline],
                (0, _) => vec![Tcp, Http2, Grpc, Yamux, Cotcp, CotcpInline, CotcpPool],
                (_, 10 | 100) if self.quick => vec![Tcp, Cotcp],
                (100, 500) if self.quick => vec![Tcp, Cotcp],
                (_, _) if self.quick => vec![Tcp, Http2, Cotcp],
                (_, _) => vec![Tcp, Http2, Grpc, Yamux, Cotcp],
            };
            (Cell { delay, connections }, protocols)
        };
        DELAYS.iter().flat_map(|delay| CONNECTIONS.map(|connections| cell(*delay, connections))).collect()
    }

    /// Whether a case is measured in this round: the quick run omits slow cases in its last round.
    pub(super) fn includes(&self, cell: Cell, round: usize) -> bool {
        !self.quick || cell.delay == 0 || round < 2
    }

    /// Seconds of warming up, and of measuring.
    fn times(&self, delay: u64) -> (f64, f64) {
        match (self.quick, delay) {
            (true, 0) => (0.06, 0.2),
            (true, 10) => (0.06, 0.22),
            (true, _) => (0.2, 0.4),
            (false, 0) => (0.2, 1.0),
            (false, 10) => (0.2, 1.5),
            (false, _) => (0.3, 2.0),
        }
    }

    /// Parameters of server and client for a case.
    pub(super) fn pair(&self, cell: Cell, protocol: Protocol) -> (Serve, Load) {
        let (warm_up, seconds) = self.times(cell.delay);
        let serve = serve(protocol, Duration::from_millis(cell.delay));
        let load = Load {
            connections: cell.connections,
            warm_up,
            seconds,
            time_every: if cell.delay == 0 { TIME_EVERY } else { 1 },
            ..load(protocol)
        };
        (serve, load)
    }

    /// Parameters of server and client for small requests, with or without large ones on the same connection.
    pub(super) fn beside_large(&self, protocol: Protocol, large: bool) -> (Serve, Load) {
        let (warm_up, seconds) = if self.quick { (0.1, 0.5) } else { (0.3, 2.0) };
        let load = Load {
            workers: 10,
            pause: Duration::from_millis(1),
            large_workers: u32::from(large),
            warm_up,
            seconds,
            ..load(protocol)
        };
        (serve(protocol, Duration::ZERO), load)
    }
}

fn serve(protocol: Protocol, delay: Duration) -> Serve {
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    Serve { protocol, listen, delay, response: BODY, cpus: 1, pin: Vec::new() }
}

fn load(protocol: Protocol) -> Load {
    Load {
        protocol,
        server: std::net::SocketAddr::from(([127, 0, 0, 1], 0)),
        connections: 1,
        workers: WORKERS,
        request: BODY,
        response: BODY,
        seconds: 1.0,
        warm_up: 0.2,
        pause: Duration::ZERO,
        time_every: 1,
        large_workers: 0,
        large: 1 << 20,
        cpus: 1,
        pin: Vec::new(),
        server_pid: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_run_ends_within_a_minute() {
        let plan = Plan::new(true);
        let mut seconds = 0.0;
        for round in 0..plan.rounds {
            for (cell, protocols) in plan.cells() {
                let (_, load) = plan.pair(cell, Protocol::Tcp);
                let each = load.warm_up + load.seconds + 0.06;
                if plan.includes(cell, round) {
                    seconds += each * protocols.len() as f64;
                }
            }
            let (_, load) = plan.beside_large(Protocol::Cotcp, true);
            seconds += (load.warm_up + load.seconds + 0.06) * 6.0;
        }
        assert!(seconds < 56.0, "{seconds}");
    }
}
