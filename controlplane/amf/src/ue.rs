//! The task of one UE: its main loop, and the functions by which procedures send and wait.
//!
//! [`Ue::run`] takes one event at a time and runs its procedure to the end. A procedure is an `async
//! fn` in `procedure/`. It sends with [`Ue::send_nas`] and [`Ue::send`], and waits with [`Ue::expect`]
//! or [`Ue::exchange`] (send, wait, retransmit). Events that arrive while it waits are handled so:
//!
//! - an event that the procedure waits for is passed to it;
//! - an event that can wait (session signalling, notifications) is deferred to the main loop, bounded
//!   by [`MAX_DEFERRED`];
//! - an event that takes precedence (connection lost, new connection, registration, deregistration,
//!   release) ends the wait as an [`Interrupt`]; the procedure cleans up and returns it to the main
//!   loop.
//!
//! No UE can delay another one: queues are bounded, every wait has a deadline, nothing panics.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nas::gmm::RegistrationRequest;
use nas::{GmmCause, Message};
use net::time::Instant;
use ngap::cause::RadioNetwork;
use ngap::{AmfUeNgapId, Cause, DownlinkNasTransport, Pdu, RanUeNgapId};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use types::{PduSessionId, Supi};

use crate::admission::{Admission, Class, Gate, Place, Room};
use crate::context::{Amf, SessionView, UeContext, UeHandle, UeView};
use crate::counters;
use crate::event::{Arrival, Initial, Interrupt, UeEvent};
use crate::gnb::{LinkDown, N2Link};
use crate::n1::InitialCheck;
use crate::n2;
use crate::procedure;
use crate::samples::{Sample, Stopwatch};
use crate::state::{Cm, CmEvent, Mm, MmEvent};

/// Most events that wait until the running procedure has ended. A well-behaved UE and its SMFs send
/// fewer during one procedure: two per PDU session.
const MAX_DEFERRED: usize = 32;

/// How often a message that needs an answer is sent: once, and again on the first four expiries of its
/// timer; the fifth expiry ends the procedure (TS 24.501 §5.4.1.3.7 and the like).
const MAX_ATTEMPTS: u32 = 5;

/// How long a UE's silence holds a place of `limits.registrations`. UEs answer within some hundred
/// milliseconds, also over a busy radio. The place of a UE that never answers is free again after this time.
pub(crate) const UE_PATIENCE: Duration = Duration::from_secs(1);

/// Which side a procedure waits for. Time waiting for the radio side is not core time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The UE or its gNB.
    Radio,
    /// Another network function.
    Core,
}

/// A NAS or guard timer: its name in TS 24.501 and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    pub name: &'static str,
    pub length: Duration,
}

impl Timer {
    pub fn ms(name: &'static str, ms: u64) -> Timer {
        Timer { name, length: Duration::from_millis(ms) }
    }
}

/// Why an exchange with the UE got no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The timer expired for the fifth time.
    Timeout(&'static str),
    /// Another event took precedence.
    Interrupted(Interrupt),
}

impl From<Interrupt> for NoAnswer {
    fn from(interrupt: Interrupt) -> NoAnswer {
        NoAnswer::Interrupted(interrupt)
    }
}

/// The N2 connection in use, with the state that ends with it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub n2: N2Link,
    /// Secure exchange of NAS messages is established on it (TS 24.501 §4.4.2.5).
    pub secure: bool,
    /// The gNB has a UE context (Initial Context Setup done).
    pub context: bool,
    /// Lost sessions that an accept on it has told the UE of, until the UE has shown that it has the accept.
    pub told: BTreeSet<PduSessionId>,
    /// NAS COUNT of the last verified message on it.
    pub last_count: u32,
    /// NAS COUNT from which KgNB is derived (TS 33.501 §6.8.1.2.2): that of the message that started
    /// secure exchange.
    pub kgnb_count: u32,
}

/// A registration under way, kept to distinguish repeated requests from new ones (TS 24.501 §5.5.1.2.8
/// d, e).
#[derive(Debug)]
pub(crate) struct Registering {
    pub request: RegistrationRequest,
    /// The accept, once it was sent.
    pub accept: Option<Message>,
}

/// An event deferred until the running procedure has ended.
#[derive(Debug)]
enum Deferred {
    Message(Box<Message>),
    Event(UeEvent),
}

/// The reachability timer that runs for an idle UE (TS 24.501 §5.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reachability {
    MobileReachable,
    ImplicitDeregistration,
}

/// One UE.
#[derive(Debug)]
pub(crate) struct Ue {
    pub amf: Arc<Amf>,
    pub handle: Arc<UeHandle>,
    pub ctx: UeContext,
    pub connection: Option<Connection>,
    pub stopwatch: Option<Stopwatch>,
    pub registering: Option<Registering>,
    /// The subscriber that the UE may be: see [`Initial::claimed`].
    pub claimed: Option<Supi>,
    queue: mpsc::Receiver<UeEvent>,
    deferred: VecDeque<Deferred>,
    reachability: Option<(Reachability, Instant)>,
    /// The task ends after the current procedure.
    pub ended: bool,
    /// The place of `limits.registrations` that the running registration holds. Given back when the UE is
    /// silent for [`UE_PATIENCE`].
    pub start: Option<Place>,
    /// Memory reserved for the UE until its identity is proven.
    room: Option<Room>,
    /// The permit of `limits.ues` that it holds afterwards.
    permit: Option<OwnedSemaphorePermit>,
}

impl Ue {
    /// Starts a UE's task with its first message.
    pub fn spawn(
        amf: Arc<Amf>,
        handle: Arc<UeHandle>,
        queue: mpsc::Receiver<UeEvent>,
        room: Room,
        start: Option<Place>,
        initial: Box<Initial>,
    ) {
        let ue = Ue {
            amf,
            handle,
            ctx: UeContext::new(),
            connection: None,
            stopwatch: None,
            registering: None,
            claimed: None,
            queue,
            deferred: VecDeque::from([Deferred::Event(UeEvent::Initial(initial))]),
            reachability: None,
            ended: false,
            start,
            room: Some(room),
            permit: None,
        };
        tokio::spawn(ue.run());
    }

    async fn run(mut self) {
        loop {
            let mut outcome = match self.next().await {
                Next::Event(event) => self.handle_event(event).await,
                Next::Message(message) => self.handle_message(*message).await,
                Next::ConfigurationUpdate => {
                    Box::pin(procedure::configuration_update::configuration_update(&mut self)).await
                }
                Next::Interrupt(interrupt) => Err(interrupt),
                Next::Expired(which) => self.unreachable(which).await,
            };
            loop {
                outcome = match outcome {
                    Err(interrupt) => self.handle_interrupt(interrupt).await,
                    Ok(()) if self.is_stranded() => {
                        Box::pin(procedure::an_release::release(
                            &mut self,
                            ngap::cause::Nas::Unspecified.into(),
                        ))
                        .await
                    }
                    Ok(()) => break,
                };
            }
            if let Some(connection) = &self.connection {
                connection.n2.settled();
            }
            self.stopwatch = None;
            let nothing_left = self.connection.is_none() && self.ctx.mm == Mm::Deregistered;
            if self.ended || nothing_left {
                break;
            }
            self.publish();
        }
        if self.ctx.policy.is_some() || self.ctx.uecm_registered || !self.ctx.sessions.is_empty() {
            // However the context ended, the other NFs must not keep their contexts of the UE.
            Box::pin(procedure::deregistration::local(&mut self, false)).await;
        }
        self.end().await;
    }

    /// Whether the connection belongs to no registered UE and no procedure is left: nothing else would
    /// end it. Anybody can open such a connection, so it must not count towards `limits.ues`.
    fn is_stranded(&self) -> bool {
        self.ctx.mm == Mm::Deregistered && self.connection.is_some() && self.deferred.is_empty()
    }

    /// Waits for what the main loop handles next.
    async fn next(&mut self) -> Next {
        if let Some(deferred) = self.deferred.pop_front() {
            return match deferred {
                Deferred::Message(message) => Next::Message(message),
                Deferred::Event(event) => Next::Event(event),
            };
        }
        if procedure::configuration_update::is_due(self) {
            return Next::ConfigurationUpdate;
        }
        Box::pin(procedure::paging::report_reachable(self)).await;
        let deadline = self.reachability;
        match self.receive(deadline.map(|(_, at)| at)).await {
            Ok(Some(event)) => Next::Event(event),
            Ok(None) => match deadline {
                Some((which, _)) => Next::Expired(which),
                None => Next::Interrupt(Interrupt::Superseded),
            },
            Err(interrupt) => Next::Interrupt(interrupt),
        }
    }

    /// The next event from outside; `None` at the deadline, or if no other task can reach the UE any
    /// more.
    async fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<UeEvent>, Interrupt> {
        let link = self.connection.as_mut();
        tokio::select! {
            biased;
            () = self.handle.superseded.notified() => Err(Interrupt::Superseded),
            event = self.queue.recv() => Ok(event),
            why = link_down(link) => Err(Interrupt::LinkDown(why)),
            () = sleep_until(deadline) => Ok(None),
        }
    }

    /// Waits for this UE's turn at `gate` under the name `identity`, at most for `timers.admission_ms` (`None` then,
    /// counted).
    pub async fn place(
        &mut self,
        gate: fn(&Admission) -> &Arc<Gate>,
        class: Class,
        identity: &str,
    ) -> Result<Option<Place>, Interrupt> {
        let Some(connection) = &self.connection else {
            return Err(Interrupt::LinkDown(LinkDown::AssociationLost));
        };
        let mut ticket = gate(&self.amf.admission).enter(class, connection.n2.gnb.host(), identity);
        let deadline = net::time::now() + Duration::from_millis(self.amf.config.timers.admission_ms);
        loop {
            let event = tokio::select! {
                biased;
                place = ticket.granted() => return Ok(place),
                event = self.receive(Some(deadline)) => event?,
            };
            let Some(event) = event else {
                counters::NOT_ADMITTED.inc(class.name());
                return Ok(None);
            };
            if let Some(arrival) = self.check(event).await? {
                self.unexpected(arrival).await?;
            }
        }
    }

    /// The UE has proven that it is `supi`: this task becomes the subscriber's, and the previous task
    /// ends. `false` if `limits.ues` is reached.
    pub fn claim(&mut self, supi: Supi) -> bool {
        if self.permit.is_none() {
            let Ok(permit) = self.amf.ue_permits.clone().try_acquire_owned() else {
                counters::N2_REJECTED.inc("too_many_ues");
                return false;
            };
            self.permit = Some(permit);
        }
        if self.room.take().is_some() {
            // In the same moment a newer registration of its name may have been about to end this one, which is proven
            // now and stays.
            std::pin::pin!(self.handle.superseded.notified()).enable();
        }
        self.ctx.supi = Some(supi);
        if let Some(old) = self.amf.ues.claim(supi, &self.handle) {
            old.superseded.notify_one();
        }
        true
    }

    /// Waits until `take` accepts an arrival, at most until `deadline` (`None` then).
    pub async fn expect<T>(
        &mut self,
        waiting: Waiting,
        deadline: Instant,
        mut take: impl FnMut(Arrival) -> ControlFlow<T, Arrival>,
    ) -> Result<Option<T>, Interrupt> {
        let patience = net::time::now() + UE_PATIENCE;
        loop {
            let began = net::time::now();
            let impatient = self.start.is_some() && waiting == Waiting::Radio && patience < deadline;
            let event = self.receive(Some(if impatient { patience } else { deadline })).await;
            let until = match &event {
                Ok(Some(UeEvent::Nas { received, .. } | UeEvent::N2 { received, .. })) => *received,
                _ => net::time::now(),
            };
            if waiting == Waiting::Radio
                && let Some(stopwatch) = &mut self.stopwatch
            {
                stopwatch.waited(began, until);
            }
            let Some(event) = event? else {
                if impatient {
                    self.start = None;
                    continue;
                }
                return Ok(None);
            };
            let Some(arrival) = self.check(event).await? else { continue };
            match take(arrival) {
                ControlFlow::Break(taken) => return Ok(Some(taken)),
                ControlFlow::Continue(arrival) => self.unexpected(arrival).await?,
            }
        }
    }

    /// Waits for the gNB's answer, at most for `timers.n2_guard_ms` (`None` then, counted). `take`
    /// returns messages that answer another request.
    pub async fn expect_n2<T>(
        &mut self,
        take: impl Fn(Pdu) -> Result<T, Box<Pdu>>,
    ) -> Result<Option<T>, Interrupt> {
        let guard = Duration::from_millis(self.amf.config.timers.n2_guard_ms);
        let answer = self.expect(Waiting::Radio, net::time::now() + guard, |arrival| match arrival {
            Arrival::N2(pdu) => match take(*pdu) {
                Ok(taken) => ControlFlow::Break(taken),
                Err(pdu) => ControlFlow::Continue(Arrival::N2(pdu)),
            },
            other => ControlFlow::Continue(other),
        });
        let answer = answer.await?;
        if answer.is_none() {
            counters::TIMER_EXPIRIES.inc("n2_guard");
        }
        Ok(answer)
    }

    /// Sends a NAS message and waits for its answer, retransmitting when `timer` expires.
    pub async fn exchange<T>(
        &mut self,
        timer: Timer,
        message: &Message,
        mut take: impl FnMut(Arrival) -> ControlFlow<T, Arrival>,
    ) -> Result<T, NoAnswer> {
        for _ in 0..MAX_ATTEMPTS {
            self.send_nas(message).await?;
            let deadline = net::time::now() + timer.length;
            if let Some(taken) = self.expect(Waiting::Radio, deadline, &mut take).await? {
                return Ok(taken);
            }
            counters::TIMER_EXPIRIES.inc(timer.name);
        }
        Err(NoAnswer::Timeout(timer.name))
    }

    /// Turns an event into an arrival: checks it, handles what needs no procedure, and raises an
    /// interrupt for what takes precedence over any procedure.
    async fn check(&mut self, event: UeEvent) -> Result<Option<Arrival>, Interrupt> {
        match event {
            UeEvent::Initial(initial) => match self.verify_initial(initial) {
                InitialCheck::Ours(initial, message) => Err(Interrupt::Initial(initial, Box::new(message))),
                InitialCheck::Unusable(initial, cause) => Err(Interrupt::Unusable(initial, cause)),
                InitialCheck::Elsewhere => Ok(None),
            },
            UeEvent::Nas { link, pdu, location, .. } => {
                if !self.is_current(link) {
                    return Ok(None);
                }
                self.ctx.location = location.or(self.ctx.location);
                let message = self.receive_nas(&pdu).await?;
                if let Some(message) = &message {
                    self.shows_accept(message);
                }
                match message {
                    None => Ok(None),
                    Some(Message::RegistrationRequest(request)) if self.repeats(&request).await? => Ok(None),
                    Some(
                        message @ (Message::RegistrationRequest(_) | Message::DeregistrationRequestUe(_)),
                    ) => Err(Interrupt::Nas(Box::new(message))),
                    Some(message) => Ok(Some(Arrival::Nas(message))),
                }
            }
            UeEvent::N2 { link, pdu, .. } => {
                if !self.is_current(link) {
                    return Ok(None);
                }
                self.check_n2(pdu)
            }
            UeEvent::Transfer(transfer) => Ok(Some(Arrival::Transfer(transfer))),
            UeEvent::SessionGone { session, serial } => {
                let known = self.ctx.sessions.get(&session).filter(|known| known.serial == serial);
                match known.map(|known| known.active || !known.release_completed) {
                    Some(true) => self.forget_session(session),
                    Some(false) => _ = self.ctx.sessions.remove(&session),
                    None => {}
                }
                Ok(None)
            }
            UeEvent::Deregister(_)
            | UeEvent::SubscriptionChanged
            | UeEvent::SmfStarted(_)
            | UeEvent::PcfStarted(_)
            | UeEvent::PolicyUpdated { .. }
            | UeEvent::PolicyTerminated => {
                self.defer(Deferred::Event(event));
                Ok(None)
            }
        }
    }

    /// Whether a registration request repeats the one under way; then it does not start anew. If the
    /// accept was sent already, it is repeated (TS 24.501 §5.5.1.2.8 d, e).
    async fn repeats(&mut self, request: &RegistrationRequest) -> Result<bool, Interrupt> {
        let Some(registering) = &self.registering else { return Ok(false) };
        if registering.request != *request {
            return Ok(false);
        }
        counters::NAS_REJECTED.inc("repeated_registration_request");
        if let Some(accept) = registering.accept.clone() {
            self.send_nas(&accept).await?;
        }
        Ok(true)
    }

    /// Whether a message belongs to the current connection: queued messages of an earlier one are
    /// obsolete.
    fn is_current(&self, link: AmfUeNgapId) -> bool {
        let current = self.connection.as_ref().is_some_and(|connection| connection.n2.amf_id == link);
        if !current {
            counters::N2_REJECTED.inc("stale_connection");
        }
        current
    }

    fn check_n2(&mut self, pdu: Box<Pdu>) -> Result<Option<Arrival>, Interrupt> {
        match *pdu {
            Pdu::UeContextReleaseRequest(request) => Err(Interrupt::ReleaseRequested(request.cause)),
            // The gNB asks the UE for its capabilities after Initial Context Setup. They are kept only
            // for authenticated UEs.
            Pdu::UeRadioCapabilityInfoIndication(_) if !self.is_secure() => Ok(None),
            Pdu::UeRadioCapabilityInfoIndication(info) => {
                self.ctx.radio_capability = info.ue_radio_capability.or(self.ctx.radio_capability.take());
                Ok(None)
            }
            Pdu::NasNonDeliveryIndication(indication) => {
                // The timer of the undelivered message repeats it; the counter informs the operator. It may have been
                // an accept.
                if let Some(connection) = &mut self.connection {
                    connection.told.clear();
                }
                counters::N2_REJECTED.inc("nas_not_delivered");
                tracing::debug!(supi = ?self.ctx.supi, cause = %indication.cause, "NAS message not delivered");
                Ok(None)
            }
            Pdu::ErrorIndication(indication) => {
                let gone = matches!(
                    indication.cause,
                    Some(Cause::RadioNetwork(
                        RadioNetwork::UnknownLocalUeNgapId | RadioNetwork::InconsistentRemoteUeNgapId
                    ))
                );
                if gone { Err(Interrupt::LinkDown(LinkDown::Reset)) } else { Ok(None) }
            }
            _ => Ok(Some(Arrival::N2(pdu))),
        }
    }

    /// Handles an arrival that the waiting procedure does not expect.
    pub async fn unexpected(&mut self, arrival: Arrival) -> Result<(), Interrupt> {
        match arrival {
            Arrival::Transfer(transfer) => self.defer(Deferred::Event(UeEvent::Transfer(transfer))),
            // A report of the gNB answers nothing: it is handled after the procedure.
            Arrival::N2(pdu) if matches!(*pdu, Pdu::PduSessionResourceNotify(_)) => {
                if let Some(connection) = &self.connection {
                    let link = connection.n2.amf_id;
                    self.defer(Deferred::Event(UeEvent::N2 { link, pdu, received: net::time::now() }));
                }
            }
            Arrival::N2(pdu) => {
                counters::N2_REJECTED.inc("unexpected");
                tracing::debug!(message = pdu.name(), "unexpected N2 message of a UE");
                self.set_up_late(&pdu);
            }
            Arrival::Nas(message @ (Message::UlNasTransport(_) | Message::ServiceRequest(_)))
                if self.may_request_service() =>
            {
                self.defer(Deferred::Message(Box::new(message)));
            }
            Arrival::Nas(message) => self.refuse_message(&message).await?,
        }
        Ok(())
    }

    /// Whether the UE may ask for sessions and service: it is registered, or was sent the accept. It
    /// acts on the accept at once, before REGISTRATION COMPLETE or the gNB's response need have
    /// arrived.
    fn may_request_service(&self) -> bool {
        let accepted = self.registering.as_ref().is_some_and(|registering| registering.accept.is_some());
        self.ctx.registered || (accepted && self.is_secure())
    }

    fn defer(&mut self, what: Deferred) {
        if self.deferred.len() < MAX_DEFERRED {
            self.deferred.push_back(what);
            return;
        }
        let name = match what {
            Deferred::Message(_) => "nas",
            Deferred::Event(event) => event.name(),
        };
        counters::UE_QUEUE_FULL.inc(name);
    }

    async fn handle_event(&mut self, event: UeEvent) -> Result<(), Interrupt> {
        self.stopwatch = Some(Stopwatch::start(match &event {
            UeEvent::Nas { received, .. } | UeEvent::N2 { received, .. } => *received,
            UeEvent::Initial(initial) => initial.received,
            // What another NF or an operator starts has no first N2 message: it begins now.
            _ => net::time::now(),
        }));
        match event {
            UeEvent::Deregister(order) => Box::pin(procedure::deregistration::by_network(self, order)).await,
            UeEvent::SubscriptionChanged => {
                Box::pin(procedure::subscription_change::subscription_change(self)).await
            }
            UeEvent::PolicyUpdated { ue_ambr } => {
                Box::pin(procedure::policy_association::updated(self, ue_ambr)).await
            }
            UeEvent::PolicyTerminated => Box::pin(procedure::policy_association::terminated(self)).await,
            UeEvent::PcfStarted(pcf) => {
                Box::pin(procedure::policy_association::pcf_started(self, &pcf)).await
            }
            UeEvent::SmfStarted(smf) => {
                Box::pin(procedure::session_loss::check(self, &smf)).await;
                Ok(())
            }
            event => match self.check(event).await? {
                None => Ok(()),
                Some(Arrival::Nas(message)) => self.handle_message(message).await,
                Some(Arrival::Transfer(transfer)) => {
                    Box::pin(procedure::n1n2_transfer::deliver(self, *transfer)).await
                }
                Some(Arrival::N2(pdu)) => {
                    self.stopwatch = None;
                    Box::pin(procedure::unsolicited_n2::unsolicited_n2(self, *pdu)).await
                }
            },
        }
    }

    /// Runs the procedure for a verified NAS message.
    async fn handle_message(&mut self, message: Message) -> Result<(), Interrupt> {
        if self.stopwatch.is_none() {
            self.stopwatch = Some(Stopwatch::start(net::time::now()));
        }
        match message {
            Message::RegistrationRequest(request) => {
                Box::pin(procedure::registration::registration(self, request)).await
            }
            Message::DeregistrationRequestUe(request) => {
                Box::pin(procedure::deregistration::by_ue(self, request)).await
            }
            Message::ServiceRequest(request) => {
                Box::pin(procedure::service_request::service_request(self, request)).await
            }
            Message::UlNasTransport(transport) if self.ctx.registered => {
                Box::pin(procedure::ul_nas_transport::ul_nas_transport(self, transport)).await
            }
            message => self.refuse_message(&message).await,
        }
    }

    async fn handle_interrupt(&mut self, interrupt: Interrupt) -> Result<(), Interrupt> {
        match interrupt {
            Interrupt::LinkDown(why) => {
                Box::pin(procedure::an_release::connection_lost(self, why)).await;
                Ok(())
            }
            Interrupt::Superseded => {
                Box::pin(procedure::deregistration::superseded(self)).await;
                Ok(())
            }
            Interrupt::ReleaseRequested(cause) => {
                Box::pin(procedure::an_release::an_release(self, cause)).await
            }
            Interrupt::Initial(initial, message) => {
                self.stopwatch = Some(Stopwatch::start(initial.received));
                Box::pin(procedure::an_release::adopt(self, *initial)).await;
                self.handle_message(*message).await
            }
            Interrupt::Unusable(initial, cause) => {
                Box::pin(procedure::an_release::adopt(self, *initial)).await;
                if let Some(cause) = cause {
                    self.send_status(cause).await?;
                }
                Box::pin(procedure::an_release::release(self, ngap::cause::Nas::Unspecified.into())).await
            }
            Interrupt::Nas(message) => {
                self.stopwatch = Some(Stopwatch::start(net::time::now()));
                self.handle_message(*message).await
            }
        }
    }

    /// Sends a NAS message in a DOWNLINK NAS TRANSPORT, protected if the connection is.
    pub async fn send_nas(&mut self, message: &Message) -> Result<(), Interrupt> {
        let Some(nas_pdu) = self.protect(message) else { return Ok(()) };
        self.send_nas_pdu(nas_pdu).await
    }

    /// Sends an encoded NAS message in a DOWNLINK NAS TRANSPORT.
    pub async fn send_nas_pdu(&mut self, nas_pdu: Bytes) -> Result<(), Interrupt> {
        self.send(|amf_ue_ngap_id, ran_ue_ngap_id| {
            Pdu::DownlinkNasTransport(DownlinkNasTransport {
                amf_ue_ngap_id,
                ran_ue_ngap_id,
                old_amf: None,
                nas_pdu,
                ue_ambr: None,
                allowed_nssai: None,
            })
        })
        .await
    }

    /// Sends an N2 message about this UE.
    pub async fn send(
        &mut self,
        build: impl FnOnce(AmfUeNgapId, RanUeNgapId) -> Pdu,
    ) -> Result<(), Interrupt> {
        let Some(connection) = &mut self.connection else {
            return Err(Interrupt::LinkDown(LinkDown::AssociationLost));
        };
        let pdu = build(connection.n2.amf_id, connection.n2.ran_id);
        // `None`: a value of ours that NGAP cannot carry. The UE did not cause this and cannot repeat it.
        let Some(octets) = n2::encode(&pdu) else { return Ok(()) };
        connection.n2.send(octets).await.map_err(Interrupt::LinkDown)?;
        if let Some(stopwatch) = &mut self.stopwatch {
            stopwatch.sent(net::time::now());
        }
        Ok(())
    }

    /// The UE's Configured NSSAI (TS 23.501 §5.15.3).
    pub fn configured_slices(&self) -> Vec<types::SNssai> {
        let subscription = self.ctx.subscription.as_ref();
        subscription.map(|s| s.configured_slices(&self.amf.config.slices)).unwrap_or_default()
    }

    /// Answers a message that does not fit the state (TS 24.501 §7.4) with 5GMM STATUS, unless it can
    /// only be a repeated answer to a message that we retransmitted.
    async fn refuse_message(&mut self, message: &Message) -> Result<(), Interrupt> {
        counters::NAS_REJECTED.inc("wrong_state");
        let repeated_answer = matches!(
            message,
            Message::AuthenticationResponse(_)
                | Message::AuthenticationFailure(_)
                | Message::IdentityResponse(_)
                | Message::SecurityModeComplete(_)
                | Message::RegistrationComplete
                | Message::ConfigurationUpdateComplete
                | Message::DeregistrationAcceptNetwork
                | Message::Status(_)
        );
        if repeated_answer || self.connection.is_none() {
            return Ok(());
        }
        self.send_status(GmmCause::MessageTypeNotCompatible).await
    }

    /// Sends 5GMM STATUS.
    pub async fn send_status(&mut self, cause: GmmCause) -> Result<(), Interrupt> {
        self.send_nas(&Message::Status(nas::gmm::Status { cause })).await
    }

    /// Puts an event back. It is handled first after the next procedure.
    pub fn put_back(&mut self, event: UeEvent) {
        self.deferred.push_front(Deferred::Event(event));
    }

    /// Takes a connection into use.
    pub fn connect(&mut self, initial: Initial) {
        self.claimed = initial.claimed;
        self.ctx.location = Some(initial.location);
        self.ctx.cm_event(CmEvent::N2Established);
        self.reachability = None;
        self.connection = Some(Connection {
            n2: initial.link,
            secure: initial.verified.is_some(),
            context: false,
            told: BTreeSet::new(),
            last_count: initial.verified.unwrap_or(0),
            kgnb_count: initial.verified.unwrap_or(0),
        });
        self.handle.set_connected(true);
    }

    /// Drops the connection: the UE is CM-IDLE, and the mobile reachable timer starts (TS 24.501
    /// §5.3.7).
    pub fn disconnect(&mut self) {
        if self.connection.take().is_none() {
            return;
        }
        // Deferred messages of the UE on this connection are dropped: no answer could reach the UE.
        self.deferred.retain(|deferred| !matches!(deferred, Deferred::Message(_)));
        self.ctx.cm_event(CmEvent::N2Released);
        self.handle.set_connected(false);
        if self.ctx.registered {
            let at = net::time::now() + self.amf.config.timers.mobile_reachable();
            self.reachability = Some((Reachability::MobileReachable, at));
        }
    }

    /// A reachability timer of an idle UE has expired (TS 24.501 §5.3.7).
    async fn unreachable(&mut self, which: Reachability) -> Result<(), Interrupt> {
        match which {
            Reachability::MobileReachable => {
                counters::TIMER_EXPIRIES.inc("mobile_reachable");
                let at = net::time::now() + self.amf.config.timers.implicit_deregistration();
                self.reachability = Some((Reachability::ImplicitDeregistration, at));
            }
            Reachability::ImplicitDeregistration => {
                counters::TIMER_EXPIRIES.inc("implicit_deregistration");
                self.reachability = None;
                tracing::info!(supi = ?self.ctx.supi, "implicit deregistration");
                Box::pin(procedure::deregistration::local(self, false)).await;
                self.ctx.mm_event(MmEvent::DeregistrationAccepted);
            }
        }
        Ok(())
    }

    /// Adds a procedure's times to `GET /procedures`.
    pub fn record(&mut self, procedure: &'static str, outcome: impl Into<String>) {
        let outcome = outcome.into();
        counters::PROCEDURES.inc(&format!("{procedure}:{outcome}"));
        let Some(stopwatch) = &self.stopwatch else { return };
        let (core_us, total_us) = stopwatch.read();
        self.amf.samples.push(Sample { procedure, supi: self.ctx.supi, outcome, core_us, total_us });
    }

    /// Publishes the UE's state for `GET /ues`, after each change by a procedure.
    pub fn publish(&self) {
        let connection = self.connection.as_ref();
        let security = self.ctx.security.as_ref();
        let cell = match self.ctx.location {
            Some(ngap::UserLocation::Nr { ncgi, .. }) => Some(ncgi.nr_cell_id.to_string()),
            _ => None,
        };
        self.handle.publish(UeView {
            supi: self.ctx.supi,
            pei: self.ctx.pei,
            guti: self.ctx.tmsi().map(|tmsi| self.amf.guti(tmsi).to_string()),
            mm_state: self.ctx.mm,
            rm_state: self.ctx.mm.rm(self.ctx.registered),
            cm_state: self.ctx.cm,
            gnb: connection.map(|connection| connection.n2.gnb.label()),
            amf_ue_ngap_id: connection.map(|connection| connection.n2.amf_id.0),
            ran_ue_ngap_id: connection.map(|connection| connection.n2.ran_id.0),
            tai: self.ctx.tai(),
            cell,
            allowed_nssai: self.ctx.allowed_nssai.clone(),
            integrity: security.map(|security| security.integrity().to_string()),
            ciphering: security.map(|security| security.ciphering().to_string()),
            sessions: self
                .ctx
                .sessions
                .iter()
                .map(|(id, session)| SessionView {
                    id: *id,
                    dnn: session.dnn.clone(),
                    s_nssai: session.s_nssai,
                    active: session.active,
                })
                .collect(),
        });
    }

    /// Ends the task and frees the UE's identities.
    async fn end(mut self) {
        self.disconnect();
        self.amf.ues.remove(self.ctx.supi, &self.ctx.tmsis, &self.handle);
        // Queued events are dropped with their `done` channels, which informs their senders. A new
        // connection among them goes to a new task: the UE registers again right after its
        // deregistration.
        self.queue.close();
        for deferred in std::mem::take(&mut self.deferred) {
            if let Deferred::Event(event) = deferred {
                self.keep_initial(event);
            }
        }
        while let Ok(event) = self.queue.try_recv() {
            self.keep_initial(event);
        }
        debug_assert_eq!(self.ctx.cm, Cm::Idle);
    }

    /// Moves a new connection that reached a task at its end to a new task.
    fn keep_initial(&self, event: UeEvent) {
        if let UeEvent::Initial(initial) = event {
            let _ = self.pass_on(initial);
        }
    }
}

/// What the main loop handles.
enum Next {
    Event(UeEvent),
    Message(Box<Message>),
    ConfigurationUpdate,
    Interrupt(Interrupt),
    Expired(Reachability),
}

async fn link_down(connection: Option<&mut Connection>) -> LinkDown {
    match connection {
        Some(connection) => connection.n2.down().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => net::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
