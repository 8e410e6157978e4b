//! The task that receives: datagrams, timers, and what the endpoint makes of them.

use std::net::SocketAddr;
use std::time::Duration;

use net::time;
use net::udp::burst::Burst;
use pfcp::endpoint::{Endpoint, Event, Failure, RequestId};
use pfcp::message::*;
use pfcp::{Cause, CpFunctionFeatures, Message, NodeId};
use telemetry::counters::Counter;
use tokio::sync::mpsc::Permit;

use crate::{N4, N4Error, N4Event, State, cause_of};

static EVENTS_DROPPED: Counter = Counter::new("n4_events_dropped");
static UNEXPECTED: Counter = Counter::new("n4_unexpected_request");
static WRONG_SEIDS: Counter = Counter::new("n4_wrong_seids");

/// Largest datagram that is received: what UDP can carry.
const DATAGRAM: usize = 65_535;

/// Receives for N4. When it ends, so do all requests that wait for a response.
pub(crate) struct Receiver(pub N4);

impl Receiver {
    /// Receives datagrams, keeps the timers, and passes on the endpoint's events.
    pub async fn run(self) {
        let n4 = &self.0;
        let mut burst = Burst::new(DATAGRAM);
        loop {
            let (armed, behind) = {
                let mut state = n4.lock();
                state.armed = state.endpoint.poll_timeout();
                (state.armed, !state.restore.is_empty())
            };
            // Without a timer, the next request wakes this task.
            let wait = armed.map_or_else(|| time::now() + Duration::from_secs(3600), time::Instant::from_std);
            tokio::select! {
                // In this order a restoration that waits gets the first place that is free.
                biased;
                room = n4.inner.events.reserve(), if behind => n4.catch_up(room.ok()),
                () = time::sleep_until(wait) => n4.process(|endpoint, now| endpoint.handle_timeout(now)),
                received = burst.receive(&n4.inner.socket) => match received {
                    Ok(_) => n4.process(|endpoint, now| {
                        burst.iter().for_each(|(from, datagram)| endpoint.handle_datagram(now, from, datagram));
                    }),
                    // ICMP errors of unreachable peers; requests to them time out.
                    Err(error) => tracing::debug!(%error, "N4 socket"),
                },
                () = n4.inner.rearm.notified() => {}
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

impl N4 {
    /// Performs one step of the endpoint and handles its events and datagrams.
    fn process(&self, step: impl FnOnce(&mut Endpoint, std::time::Instant)) {
        let mut state = self.lock();
        step(&mut state.endpoint, time::now().into_std());
        while let Some(event) = state.endpoint.poll_event() {
            self.handle_event(&mut state, event);
        }
        self.flush(&mut state);
    }

    fn handle_event(&self, state: &mut State, event: Event) {
        match event {
            Event::Response { handle, seid, message, .. } => {
                if let Some(waiting) = state.waiting.remove(&handle) {
                    let answer = if matches_request(waiting.seid, seid, &message) {
                        Ok(message)
                    } else {
                        WRONG_SEIDS.inc();
                        Err(N4Error::Unusable)
                    };
                    // The procedure may have stopped waiting.
                    let _ = waiting.sender.send(answer);
                }
            }
            Event::Failed { handle, failure, .. } => {
                if let Some(waiting) = state.waiting.remove(&handle) {
                    let error = match failure {
                        Failure::Refused(cause) => N4Error::Refused(cause),
                        failure => N4Error::Failed(failure),
                    };
                    let _ = waiting.sender.send(Err(error));
                }
            }
            Event::Request { id, seid, message } => self.handle_request(state, id, seid, message),
            Event::MalformedRequest { id, seid, error } => {
                if state.upfs.iter().any(|upf| upf.address == id.peer) {
                    self.queue(state, id, N4Event::Malformed { id, seid: seid.unwrap_or(0), error });
                }
            }
            Event::PeerRestarted { peer, .. } => {
                tracing::warn!(%peer, "UPF restarted: its sessions will be set up again");
                state.restarted(peer);
            }
            Event::PeerFailed { peer } => {
                tracing::warn!(%peer, "UPF does not answer: the association is set up again when it does");
                state.set_alive(peer, false);
            }
            Event::PeerRecovered { peer } => {
                tracing::info!(%peer, "UPF answers again");
                state.set_alive(peer, true);
            }
        }
    }

    /// Handles the requests of UPFs to a CP function (§6.2, §7.4).
    fn handle_request(&self, state: &mut State, id: RequestId, seid: Option<u64>, message: Message) {
        let now = time::now().into_std();
        let node_id = NodeId::from(self.inner.local.ip());
        let upf = state.upfs.iter_mut().find(|upf| upf.address == id.peer);
        let response: Message = match (message, upf) {
            (Message::SessionReportRequest(report), Some(_)) => {
                return self.queue(state, id, N4Event::Report { id, seid: seid.unwrap_or(0), report });
            }
            (Message::AssociationSetupRequest(_), Some(upf)) => {
                // We set up associations by our own request. Whether the UPF has restarted, we ask the
                // UPF itself.
                state.endpoint.ask(now, upf.address.ip());
                AssociationSetupResponse {
                    node_id,
                    cause: Cause::ACCEPTED,
                    recovery_time_stamp: self.inner.recovery,
                    cp_function_features: Some(CpFunctionFeatures::default()),
                    ..Default::default()
                }
                .into()
            }
            (Message::AssociationUpdateRequest(_), Some(upf)) => {
                let cause = if upf.associated { Cause::ACCEPTED } else { Cause::NO_ASSOCIATION };
                AssociationUpdateResponse { node_id, cause, ..Default::default() }.into()
            }
            (Message::NodeReportRequest(report), Some(upf)) => {
                tracing::warn!(upf = %upf.address, report = ?report.report_type, "node report");
                NodeReportResponse { node_id, cause: Cause::ACCEPTED, offending_ie: None }.into()
            }
            // Not one of our UPFs, or not a request that a UPF may send.
            (_, upf) => {
                UNEXPECTED.inc();
                let cause = if upf.is_some() { Cause::SERVICE_NOT_SUPPORTED } else { Cause::NO_ASSOCIATION };
                let _ = state.endpoint.reject(now, id, 0, cause, None);
                return;
            }
        };
        let _ = state.endpoint.respond(now, id, 0, response);
    }

    /// Queues what a UPF's request has become. Without room the request is refused: the endpoint gives a repeated one to nobody.
    fn queue(&self, state: &mut State, id: RequestId, event: N4Event) {
        if self.inner.events.try_send(event).is_err() {
            EVENTS_DROPPED.inc();
            let _ = state.endpoint.reject(time::now().into_std(), id, 0, Cause::NO_RESOURCES, None);
        }
    }

    /// Asks the owner to restore the sessions of a UPF. It is asked once, so this waits if there is no room.
    pub(crate) fn restore(&self, state: &mut State, upf: SocketAddr, lost: bool) {
        if let Some(waiting) = state.restore.get_mut(&upf) {
            *waiting |= lost;
        } else if self.inner.events.try_send(N4Event::Restore { upf, lost }).is_err() {
            state.restore.insert(upf, lost);
            self.inner.rearm.notify_one();
        }
    }

    /// Passes on a restoration that waits. `None`: the owner takes no events any more.
    fn catch_up(&self, room: Option<Permit<'_, N4Event>>) {
        let mut state = self.lock();
        let Some(room) = room else { return state.restore.clear() };
        if let Some(&upf) = state.restore.keys().next()
            && let Some(lost) = state.restore.remove(&upf)
        {
            room.send(N4Event::Restore { upf, lost });
        }
    }
}

/// Whether a response belongs to the session of the request, that is, carries our SEID. A rejection may
/// carry 0 if the UPF does not know the session (TS 29.244 §7.2.2.4.2).
fn matches_request(own: Option<u64>, seid: Option<u64>, message: &Message) -> bool {
    let refused = cause_of(message).is_some_and(|cause| !cause.is_accepted());
    own.is_none() || seid == own || refused && seid == Some(0)
}
