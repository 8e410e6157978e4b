//! Whether the CUs can be reached: Echo on F1-U (TS 29.281 §7.2.1, TS 23.007 §20.3.1).
//!
//! Each CU to which a bearer leads gets an Echo Request now and then. One that does not answer several in a row has failed: control
//! is told, and told again when it answers. What depends on the path is control's decision.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use packet::gtpu::Signalling;
use path::Ports;

use crate::control::{Event, Tunnel};
use crate::graph::UserPlane;
use crate::timers::{Task, Timers};

/// When Echo Requests are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo {
    /// Time from an answer to the next request: 60 s at least, by the standard.
    pub interval: Duration,
    /// T3-RESPONSE: time to wait for an answer.
    pub response: Duration,
    /// N3-REQUESTS: requests without answer with which a path has failed.
    pub requests: u8,
}

impl Default for Echo {
    fn default() -> Echo {
        Echo { interval: Duration::from_secs(60), response: Duration::from_secs(3), requests: 3 }
    }
}

#[derive(Debug, Default)]
struct Path {
    /// Bearers that lead there.
    users: usize,
    sequence: u16,
    /// Requests since the last answer.
    unanswered: u8,
    has_failed: bool,
    due_ns: u64,
}

/// The CUs to which bearers lead.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    echo: Option<Echo>,
    known: HashMap<(u8, SocketAddr), Path>,
}

impl Paths {
    pub(crate) fn new(echo: Option<Echo>) -> Paths {
        Paths { echo, known: HashMap::new() }
    }

    /// One more bearer leads to a CU. The first request is sent at once.
    pub(crate) fn add_user(&mut self, cu: &Tunnel, timers: &mut Timers, now_ns: u64) {
        if self.echo.is_none() {
            return;
        }
        let path = self.known.entry((cu.interface, cu.address)).or_default();
        path.users += 1;
        if path.users == 1 {
            path.due_ns = now_ns;
            timers.set(now_ns, Task::Echo(cu.interface, cu.address));
        }
    }

    pub(crate) fn remove_user(&mut self, cu: &Tunnel) {
        let Some(path) = self.known.get_mut(&(cu.interface, cu.address)) else { return };
        path.users -= 1;
        if path.users == 0 {
            self.known.remove(&(cu.interface, cu.address));
        }
    }
}

impl UserPlane {
    /// Sends an Echo Request, or notes that one was not answered.
    pub(crate) fn echo_is_due(
        &mut self,
        interface: u8,
        address: SocketAddr,
        due_ns: u64,
        now_ns: u64,
        ports: &mut Ports,
    ) {
        let Some(echo) = self.paths.echo else { return };
        let Some(path) = self.paths.known.get_mut(&(interface, address)).filter(|path| path.due_ns == due_ns)
        else {
            return;
        };
        let fails = !path.has_failed && path.unanswered >= echo.requests;
        path.has_failed |= fails;
        path.unanswered = path.unanswered.saturating_add(1);
        path.sequence = path.sequence.wrapping_add(1);
        let wait = if path.has_failed { echo.interval } else { echo.response };
        path.due_ns = now_ns + wait.as_nanos().max(1) as u64;
        let request = Signalling::EchoRequest { sequence: path.sequence };
        self.timers.set(path.due_ns, Task::Echo(interface, address));
        self.exits.push(interface, &request.build(), address, &self.stats, ports);
        if fails {
            self.tell(Event::PathFailed { interface, address });
        }
    }

    /// A CU has answered.
    pub(crate) fn echo_response(&mut self, interface: u8, address: SocketAddr, sequence: u16, now_ns: u64) {
        let Some(echo) = self.paths.echo else { return };
        let Some(path) = self.paths.known.get_mut(&(interface, address)) else { return };
        if path.unanswered == 0 || path.sequence != sequence {
            return;
        }
        path.unanswered = 0;
        path.due_ns = now_ns + echo.interval.as_nanos().max(1) as u64;
        self.timers.set(path.due_ns, Task::Echo(interface, address));
        if std::mem::take(&mut path.has_failed) {
            self.tell(Event::PathRestored { interface, address });
        }
    }
}
