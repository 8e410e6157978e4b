//! The task that receives: datagrams, timers, and what the endpoint makes of them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use gtpv2c::endpoint::{Endpoint, Event, Failure, Handle, RequestId};
use gtpv2c::{CauseValue, Message};
use net::time;
use net::udp::burst::Burst;
use tokio::sync::mpsc::Permit;

use crate::{Answer, Gtpc, GtpcError, GtpcEvent, Outcome, State, Waiting};

/// How long the receiving task sleeps when no timer runs. A request wakes it.
const NO_TIMER: Duration = Duration::from_secs(3600);

/// Largest datagram that is received: what UDP can carry.
const DATAGRAM: usize = 65_535;

/// Receives for GTP-C. When it ends, so do all requests that wait for an answer.
pub(crate) struct Receiver(pub Gtpc);

impl Receiver {
    /// Receives datagrams, keeps the timers, and passes on the endpoint's events.
    pub async fn run(self) {
        let gtpc = &self.0;
        let mut burst = Burst::new(DATAGRAM);
        loop {
            let (armed, behind) = {
                let mut state = gtpc.lock();
                state.armed = state.endpoint.poll_timeout();
                (state.armed, !state.restarted.is_empty())
            };
            let wait = armed.map_or_else(|| time::now() + NO_TIMER, time::Instant::from_std);
            tokio::select! {
                // In this order a restart that waits gets the first place that is free.
                biased;
                room = gtpc.inner.events.reserve(), if behind => gtpc.catch_up(room.ok()),
                () = time::sleep_until(wait) => gtpc.process(|endpoint, now| endpoint.handle_timeout(now)),
                received = burst.receive(&gtpc.inner.socket) => match received {
                    Ok(_) => gtpc.process(|endpoint, now| {
                        burst.iter().for_each(|(from, datagram)| endpoint.handle_datagram(now, from, datagram));
                    }),
                    // ICMP errors of unreachable peers; requests to them time out.
                    Err(error) => tracing::debug!(%error, "GTP-C socket"),
                },
                () = gtpc.inner.rearm.notified() => {}
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.stopped = true;
        // Dropping their senders ends the requests.
        state.waiting.clear();
    }
}

impl Gtpc {
    /// Performs one step of the endpoint and handles its events and datagrams.
    fn process(&self, step: impl FnOnce(&mut Endpoint, Instant)) {
        let mut state = self.lock();
        step(&mut state.endpoint, time::now().into_std());
        while let Some(event) = state.endpoint.poll_event() {
            self.handle_event(&mut state, event);
        }
        self.flush(&mut state);
    }

    fn handle_event(&self, state: &mut State, event: Event) {
        match event {
            // The procedure may have stopped waiting for any of these.
            Event::Response { handle, teid, message, .. } => {
                let answer = Answer { teid, message };
                match state.waiting.remove(&handle) {
                    Some(Waiting::Request(sender)) => drop(sender.send(Ok(answer))),
                    Some(Waiting::Command(sender)) => drop(sender.send(Ok(Outcome::Refused(answer)))),
                    None => {}
                }
            }
            Event::Failed { handle, failure, .. } => state.fail(handle, failure),
            Event::Request { id, teid, message, command, .. } => {
                self.begun(state, id, teid, message, command);
            }
            Event::MalformedRequest { id, teid, error, command, .. } => {
                if let Some(command) = command {
                    state.fail(command, Failure::Malformed(error));
                }
                if !self.queue(GtpcEvent::Malformed { id, teid, error }) {
                    let _ = state.endpoint.reject(time::now().into_std(), id, 0, CauseValue::NO_RESOURCES);
                }
            }
            Event::Indication { peer, teid, message } => {
                self.queue(GtpcEvent::Indication { peer: peer.ip(), teid, message });
            }
            Event::PeerRestarted { peer, since, .. } => self.peer_restarted(state, peer, since),
            Event::PeerFailed { peer } => tracing::warn!(%peer, "GTP-C peer does not answer Echo Requests"),
            Event::PeerRecovered { peer } => tracing::info!(%peer, "GTP-C peer answers again"),
        }
    }

    /// Gives a request to who has triggered it with a command and still waits, or else to the owner.
    fn begun(&self, state: &mut State, id: RequestId, teid: u32, message: Message, command: Option<Handle>) {
        let mut request = (teid, message);
        if let Some(Waiting::Command(sender)) = command.and_then(|command| state.waiting.remove(&command)) {
            let (teid, message) = request;
            match sender.send(Ok(Outcome::Triggered { id, teid, message })) {
                Err(Ok(Outcome::Triggered { teid, message, .. })) => request = (teid, message),
                _ => return,
            }
        }
        let (teid, message) = request;
        if !self.queue(GtpcEvent::Request { id, teid, message }) {
            // The endpoint gives a repeated request to nobody.
            let _ = state.endpoint.reject(time::now().into_std(), id, 0, CauseValue::NO_RESOURCES);
        }
    }

    /// A restart is told once only, so it waits if there is no room. A later one of the same peer includes it.
    fn peer_restarted(&self, state: &mut State, peer: IpAddr, since: Instant) {
        let event = GtpcEvent::PeerRestarted { peer, since };
        if state.restarted.contains_key(&peer) || self.inner.events.try_send(event).is_err() {
            state.restarted.insert(peer, since);
        }
    }

    /// Tells of a restart that waits. `None`: the owner takes no events any more.
    fn catch_up(&self, room: Option<Permit<'_, GtpcEvent>>) {
        let mut state = self.lock();
        let Some(room) = room else { return state.restarted.clear() };
        if let Some(&peer) = state.restarted.keys().next()
            && let Some(since) = state.restarted.remove(&peer)
        {
            room.send(GtpcEvent::PeerRestarted { peer, since });
        }
    }

    /// Whether there was room.
    fn queue(&self, event: GtpcEvent) -> bool {
        let queued = self.inner.events.try_send(event).is_ok();
        if !queued {
            self.inner.counts.events_dropped.inc();
        }
        queued
    }
}

impl State {
    fn fail(&mut self, handle: Handle, failure: Failure) {
        match self.waiting.remove(&handle) {
            Some(Waiting::Request(sender)) => drop(sender.send(Err(GtpcError::Failed(failure)))),
            Some(Waiting::Command(sender)) => drop(sender.send(Err(GtpcError::Failed(failure)))),
            None => {}
        }
    }
}
