//! N4 against a UPF whose part each test plays step by step, over UDP on loopback.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests: a panic is how they fail")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use n4::{Config, N4, N4Error, N4Event, Seids};
use net::time;
use net::udp::UdpSocket;
use pfcp::endpoint::{Endpoint, Event, Failure, RequestId};
use pfcp::message::*;
use pfcp::{Cause, DownlinkDataReport, FSeid, Message, NodeId, NtpSeconds, ReportType, UpFunctionFeatures};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(20);
/// Our SEID and the UPF's.
const SEIDS: Seids = Seids { own: 0x1111, upf: 0x2222 };
/// In a session establishment the UPF's is not known yet.
const NEW: Seids = Seids { own: 0x1111, upf: 0 };

/// A loopback network of a test: addresses that no other test uses.
struct Network(u32);

impl Network {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn address(&self, host: u8) -> SocketAddr {
        format!("127.{}.{}.{host}:8805", 20 + std::process::id() % 200, self.0).parse().unwrap()
    }
}

/// N4 with its events and tasks.
struct Control {
    n4: N4,
    events: mpsc::Receiver<N4Event>,
    tasks: JoinSet<()>,
}

impl Control {
    /// With timers that do not expire during a test.
    async fn start(network: &Network, upfs: &[SocketAddr]) -> Self {
        let hour = Duration::from_secs(3600);
        Self::with_timers(network, upfs, hour, hour).await
    }

    async fn with_timers(
        network: &Network,
        upfs: &[SocketAddr],
        t1: Duration,
        heartbeat_interval: Duration,
    ) -> Self {
        let config = Config { local: network.address(4), upfs: upfs.to_vec(), t1, n1: 3, heartbeat_interval };
        let mut tasks = JoinSet::new();
        let (n4, events) = N4::start(&config, &mut tasks).await.unwrap();
        Self { n4, events, tasks }
    }

    /// With one UPF that is associated.
    async fn with_upf() -> (Self, Upf) {
        let network = Network::new();
        let mut upf = Upf::start(network.address(7)).await;
        let control = Self::start(&network, &[upf.address]).await;
        control.associate(&mut upf).await;
        (control, upf)
    }

    async fn associate(&self, upf: &mut Upf) {
        let address = upf.address;
        tokio::select! {
            () = self.until_up(address, true) => {}
            () = upf.accept_associations() => unreachable!("it accepts until it is dropped"),
        }
    }

    async fn until_up(&self, upf: SocketAddr, up: bool) {
        let deadline = time::now() + PATIENCE;
        while self.n4.is_up(upf) != up {
            assert!(time::now() < deadline, "{:?}", self.n4.status());
            time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The next event; until then the UPF accepts associations.
    async fn next_event_with(&mut self, upf: &mut Upf) -> N4Event {
        tokio::select! {
            event = self.next_event() => event,
            () = upf.accept_associations() => unreachable!("it accepts until it is dropped"),
        }
    }

    async fn next_event(&mut self) -> N4Event {
        time::timeout(PATIENCE, self.events.recv()).await.expect("an event").expect("N4 runs")
    }

    /// A session request under way; a test plays the UPF meanwhile.
    fn request(&self, upf: &Upf, seids: Seids, message: impl Into<Message>) -> Requested {
        let (n4, upf, message) = (self.n4.clone(), upf.address, message.into());
        Requested(tokio::spawn(async move { n4.request(upf, seids, message).await }))
    }
}

struct Requested(tokio::task::JoinHandle<Result<Message, N4Error>>);

impl Requested {
    async fn outcome(self) -> Result<Message, N4Error> {
        time::timeout(PATIENCE, self.0).await.expect("every request ends").unwrap()
    }
}

/// A UPF that does what a test says. While the test waits for its next message, it answers heartbeats.
struct Upf {
    address: SocketAddr,
    socket: UdpSocket,
    endpoint: Endpoint,
    stamp: NtpSeconds,
}

impl Upf {
    async fn start(address: SocketAddr) -> Self {
        let socket = net::udp::bind(address).await.unwrap();
        let stamp = NtpSeconds(1000);
        Self { address, socket, endpoint: endpoint(address, stamp), stamp }
    }

    /// Forgets everything, and has another recovery time stamp from now on.
    fn restart(&mut self) {
        self.stamp.0 += 1;
        self.endpoint = endpoint(self.address, self.stamp);
    }

    fn node_id(&self) -> NodeId {
        self.address.ip().into()
    }

    async fn flush(&mut self) {
        while let Some(transmit) = self.endpoint.poll_transmit() {
            self.socket.send_to(&transmit.payload, transmit.to).await.unwrap();
        }
    }

    async fn next_event(&mut self) -> Event {
        let mut buffer = [0; 2048];
        loop {
            if let Some(event) = self.endpoint.poll_event() {
                return event;
            }
            let received = time::timeout(PATIENCE, self.socket.recv_from(&mut buffer)).await;
            let (length, from) = received.expect("a message for the UPF").unwrap();
            self.endpoint.handle_datagram(time::now().into_std(), from, &buffer[..length]);
            self.flush().await;
        }
    }

    /// The next request that is no heartbeat, and the UPF's SEID in it.
    async fn next(&mut self) -> (RequestId, u64, Message) {
        loop {
            if let Event::Request { id, seid, message } = self.next_event().await {
                return (id, seid.unwrap_or(0), message);
            }
        }
    }

    async fn answer(&mut self, id: RequestId, seid: u64, response: impl Into<Message>) {
        self.endpoint.respond(time::now().into_std(), id, seid, response).unwrap();
        self.flush().await;
    }

    /// Answers the next request, which sets up an association.
    async fn answer_association(&mut self, cause: Cause) {
        let (id, _, message) = self.next().await;
        assert!(matches!(message, Message::AssociationSetupRequest(_)), "{message:?}");
        let response = AssociationSetupResponse {
            node_id: self.node_id(),
            cause,
            recovery_time_stamp: self.stamp,
            up_function_features: Some(UpFunctionFeatures::FTUP),
            ..Default::default()
        };
        self.answer(id, 0, response).await;
    }

    async fn accept_associations(&mut self) {
        loop {
            self.answer_association(Cause::ACCEPTED).await;
        }
    }

    async fn send(&mut self, control: &Control, seid: u64, request: impl Into<Message>) {
        self.endpoint.send_request(time::now().into_std(), control.n4.local(), seid, request).unwrap();
        self.flush().await;
    }

    async fn next_report_response(&mut self) -> (Option<u64>, SessionReportResponse) {
        loop {
            if let Event::Response { seid, message: Message::SessionReportResponse(response), .. } =
                self.next_event().await
            {
                return (seid, response);
            }
        }
    }

    /// Session Establishment Response with this SEID of the UPF.
    fn established(&self, up_seid: u64) -> SessionEstablishmentResponse {
        SessionEstablishmentResponse {
            node_id: self.node_id(),
            cause: Cause::ACCEPTED,
            up_f_seid: Some(FSeid::new(up_seid, self.address.ip())),
            ..Default::default()
        }
    }
}

fn endpoint(address: SocketAddr, stamp: NtpSeconds) -> Endpoint {
    Endpoint::new(pfcp::endpoint::Config::new(address.ip().into(), stamp, 1))
}

fn establishment(control: &Control) -> SessionEstablishmentRequest {
    let node = control.n4.local().ip();
    SessionEstablishmentRequest {
        node_id: node.into(),
        cp_f_seid: FSeid::new(SEIDS.own, node),
        ..Default::default()
    }
}

fn modified(cause: Cause) -> SessionModificationResponse {
    SessionModificationResponse { cause, ..Default::default() }
}

fn downlink_data() -> SessionReportRequest {
    let pdr_ids = vec![pfcp::PdrId(2)];
    SessionReportRequest {
        report_type: ReportType::DLDR,
        downlink_data_report: Some(DownlinkDataReport { pdr_ids, ..Default::default() }),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_upf_is_associated_and_serves_session_requests() {
    let network = Network::new();
    let mut upf = Upf::start(network.address(7)).await;
    let mut control = Control::start(&network, &[upf.address]).await;
    assert_eq!(control.n4.select_upf(), Err(N4Error::NoUpf));
    control.associate(&mut upf).await;
    assert_eq!(control.n4.select_upf(), Ok(upf.address));
    let status = control.n4.status();
    assert_eq!((status.len(), status[0].address, status[0].associated), (1, upf.address, true));
    assert_eq!(status[0].recovery_time_stamp, Some(1000));

    let requested = control.request(&upf, NEW, establishment(&control));
    let (id, seid, message) = upf.next().await;
    let Message::SessionEstablishmentRequest(request) = message else { panic!("{message:?}") };
    assert_eq!((seid, request.cp_f_seid.seid), (0, SEIDS.own));
    upf.answer(id, SEIDS.own, upf.established(SEIDS.upf)).await;
    assert!(matches!(requested.outcome().await, Ok(Message::SessionEstablishmentResponse(_))));

    let requested = control.request(&upf, SEIDS, SessionDeletionRequest {});
    let (id, seid, _) = upf.next().await;
    assert_eq!(seid, SEIDS.upf);
    let response = SessionDeletionResponse { cause: Cause::ACCEPTED, ..Default::default() };
    upf.answer(id, SEIDS.own, response).await;
    assert!(requested.outcome().await.is_ok());
    // The first association restores nothing.
    assert!(control.events.try_recv().is_err());
    assert_eq!(control.n4.epoch(upf.address), 0);
}

#[tokio::test]
async fn sessions_go_to_the_first_upf_that_is_associated() {
    let network = Network::new();
    let mut first = Upf::start(network.address(7)).await;
    let mut second = Upf::start(network.address(8)).await;
    let control = Control::start(&network, &[first.address, second.address]).await;
    control.associate(&mut second).await;
    assert_eq!(control.n4.select_upf(), Ok(second.address));
    control.associate(&mut first).await;
    assert_eq!(control.n4.select_upf(), Ok(first.address));
}

/// A UPF that starts later than the control plane, and that refuses at first.
#[tokio::test]
async fn an_association_is_tried_until_the_upf_accepts_it() {
    let network = Network::new();
    let address = network.address(7);
    let (t1, hour) = (Duration::from_millis(200), Duration::from_secs(3600));
    let control = Control::with_timers(&network, &[address], t1, hour).await;
    let answer = control.n4.request(address, SEIDS, SessionDeletionRequest {}).await;
    assert_eq!(answer.unwrap_err(), N4Error::Failed(Failure::TimedOut));
    let mut upf = Upf::start(address).await;
    upf.answer_association(Cause::NO_RESOURCES).await;
    assert!(!control.n4.is_up(address));
    control.associate(&mut upf).await;
}

#[tokio::test]
async fn after_a_restart_of_the_upf_its_sessions_are_to_be_restored() {
    let network = Network::new();
    let mut upf = Upf::start(network.address(7)).await;
    let (t1, heartbeat_interval) = (Duration::from_secs(3600), Duration::from_millis(50));
    let mut control = Control::with_timers(&network, &[upf.address], t1, heartbeat_interval).await;
    control.associate(&mut upf).await;
    for restarts in 1..=2 {
        // A heartbeat shows the new time stamp.
        upf.restart();
        let event = control.next_event_with(&mut upf).await;
        assert!(matches!(event, N4Event::Restore { upf: at, lost: true } if at == upf.address), "{event:?}");
        assert_eq!(control.n4.epoch(upf.address), restarts);
        assert_eq!(control.n4.status()[0].recovery_time_stamp, Some(upf.stamp.0));
    }
}

/// The owner is slow: a UPF that reports much gets refusals, and the restoration of its sessions is not lost.
#[tokio::test]
async fn a_restoration_waits_for_room_in_the_queue() {
    let (mut control, mut upf) = Control::with_upf().await;
    let mut refused = None;
    while refused.is_none() {
        for _ in 0..64 {
            upf.send(&control, SEIDS.own, downlink_data()).await;
        }
        let refusal = time::timeout(Duration::from_millis(5), upf.next_report_response()).await;
        refused = refusal.ok().map(|(_, response)| response.cause);
    }
    assert_eq!(refused, Some(Cause::NO_RESOURCES));
    let request = control.request(&upf, SEIDS, SessionDeletionRequest {});
    let (id, ..) = upf.next().await;
    let cause = Cause::NO_ASSOCIATION;
    upf.answer(id, SEIDS.own, SessionDeletionResponse { cause, ..Default::default() }).await;
    assert_eq!(request.outcome().await.unwrap_err(), N4Error::Refused(Cause::NO_ASSOCIATION));
    control.until_up(upf.address, false).await;
    control.associate(&mut upf).await;
    let lost = loop {
        match control.next_event().await {
            N4Event::Restore { lost, .. } => break lost,
            N4Event::Report { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(lost);
}

/// The UPF answers nothing for a while, and then has the same time stamp as before.
#[tokio::test]
async fn after_a_silence_of_the_upf_its_sessions_may_be_lost() {
    let network = Network::new();
    let mut upf = Upf::start(network.address(7)).await;
    let (t1, heartbeat_interval) = (Duration::from_millis(200), Duration::from_millis(50));
    let mut control = Control::with_timers(&network, &[upf.address], t1, heartbeat_interval).await;
    control.associate(&mut upf).await;
    // Nobody plays the UPF meanwhile.
    control.until_up(upf.address, false).await;
    assert_eq!(control.n4.select_upf(), Err(N4Error::NoUpf));
    // Now it finds the request for an association in its socket.
    let event = control.next_event_with(&mut upf).await;
    assert!(matches!(event, N4Event::Restore { lost: false, .. }), "{event:?}");
    assert_eq!(control.n4.epoch(upf.address), 0);
}

/// The UPF says that it has no association, in a whole response and in one that has only the cause.
#[tokio::test]
async fn without_association_at_the_upf_there_is_a_new_one() {
    let (mut control, mut upf) = Control::with_upf().await;
    for lost in 1..=2 {
        let refused = if lost == 1 {
            let requested = control.request(&upf, SEIDS, SessionModificationRequest::default());
            let (id, _, _) = upf.next().await;
            upf.answer(id, 0, modified(Cause::NO_ASSOCIATION)).await;
            requested
        } else {
            let requested = control.request(&upf, NEW, establishment(&control));
            let (id, _, _) = upf.next().await;
            upf.socket.send_to(&only_a_cause(id, Cause::NO_ASSOCIATION), id.peer).await.unwrap();
            requested
        };
        assert_eq!(refused.outcome().await.unwrap_err(), N4Error::Refused(Cause::NO_ASSOCIATION));
        assert!(!control.n4.is_up(upf.address));
        let event = control.next_event_with(&mut upf).await;
        assert!(matches!(event, N4Event::Restore { lost: true, .. }), "{event:?}");
        assert_eq!(control.n4.epoch(upf.address), lost);
    }
}

/// Session Establishment Response without Node ID (§7.2.2, §8.2.1).
fn only_a_cause(id: RequestId, cause: Cause) -> Vec<u8> {
    let sequence = id.sequence.to_be_bytes();
    let header = [&[0x21, 51, 0, 17][..], &SEIDS.own.to_be_bytes(), &sequence[1..], &[0]].concat();
    [&header[..], &[0, 19, 0, 1, cause.0]].concat()
}

#[tokio::test]
async fn responses_about_another_session_are_unusable() {
    let (control, mut upf) = Control::with_upf().await;
    // The SEID in the header, and the UPF's SEID in the response.
    for (seid, up_seid) in [(SEIDS.own ^ 1, SEIDS.upf), (0, SEIDS.upf), (SEIDS.own, 0)] {
        let requested = control.request(&upf, NEW, establishment(&control));
        let (id, _, _) = upf.next().await;
        upf.answer(id, seid, upf.established(up_seid)).await;
        assert_eq!(requested.outcome().await.unwrap_err(), N4Error::Unusable, "{seid:#x} {up_seid:#x}");
    }
    // A UPF that does not know the session does not know our SEID either.
    for (seid, cause, error) in [
        (0, Cause::SESSION_NOT_FOUND, N4Error::Refused(Cause::SESSION_NOT_FOUND)),
        (SEIDS.own, Cause::SESSION_NOT_FOUND, N4Error::Refused(Cause::SESSION_NOT_FOUND)),
        (SEIDS.own ^ 1, Cause::SESSION_NOT_FOUND, N4Error::Unusable),
        (SEIDS.own ^ 1, Cause::ACCEPTED, N4Error::Unusable),
    ] {
        let requested = control.request(&upf, SEIDS, SessionModificationRequest::default());
        let (id, _, _) = upf.next().await;
        upf.answer(id, seid, modified(cause)).await;
        assert_eq!(requested.outcome().await.unwrap_err(), error, "{seid:#x} {cause:?}");
    }
    assert!(control.n4.is_up(upf.address));
}

#[tokio::test]
async fn reports_of_a_upf_are_events_that_the_owner_answers() {
    let (mut control, mut upf) = Control::with_upf().await;
    upf.send(&control, SEIDS.own, downlink_data()).await;
    let event = control.next_event().await;
    let N4Event::Report { id, seid, report } = event else { panic!("{event:?}") };
    assert_eq!((id.peer, seid, report), (upf.address, SEIDS.own, downlink_data()));
    let accepted = SessionReportResponse { cause: Cause::ACCEPTED, ..Default::default() };
    control.n4.respond(id, SEIDS.upf, accepted);
    let (seid, response) = upf.next_report_response().await;
    assert_eq!((seid, response.cause), (Some(SEIDS.upf), Cause::ACCEPTED));

    // Session Report Request without Report Type.
    let malformed = [&[0x21, 56, 0, 12][..], &SEIDS.own.to_be_bytes(), &[0, 0, 77, 0]].concat();
    upf.socket.send_to(&malformed, control.n4.local()).await.unwrap();
    let event = control.next_event().await;
    let N4Event::Malformed { id, seid, error } = event else { panic!("{event:?}") };
    assert_eq!((seid, error.cause()), (SEIDS.own, Some(Cause::MANDATORY_IE_MISSING)));
    control.n4.reject(id, SEIDS.upf, Cause::MANDATORY_IE_MISSING, error.offending_ie());
    let mut buffer = [0; 2048];
    let (length, _) = upf.socket.recv_from(&mut buffer).await.unwrap();
    assert_eq!((buffer[1], &buffer[12..15]), (57, &[0, 0, 77][..]), "{:?}", &buffer[..length]);

    // The same from an address that is not configured.
    let mut stranger = Upf::start(SocketAddr::new(upf.address.ip(), 0)).await;
    stranger.send(&control, SEIDS.own, downlink_data()).await;
    let (_, response) = stranger.next_report_response().await;
    assert_eq!(response.cause, Cause::NO_ASSOCIATION);
    assert!(control.events.try_recv().is_err());
}

/// Associations are set up by our own request only; a UPF that asks for one changes nothing.
#[tokio::test]
async fn an_association_that_the_upf_asks_for_is_answered_and_changes_nothing() {
    let (mut control, mut upf) = Control::with_upf().await;
    let request = AssociationSetupRequest {
        node_id: upf.node_id(),
        recovery_time_stamp: NtpSeconds(9999),
        ..Default::default()
    };
    upf.send(&control, 0, request).await;
    let response = loop {
        if let Event::Response { message: Message::AssociationSetupResponse(response), .. } =
            upf.next_event().await
        {
            break response;
        }
    };
    assert_eq!(response.cause, Cause::ACCEPTED);
    assert_eq!(control.n4.status()[0].recovery_time_stamp, Some(1000), "what the UPF itself has confirmed");
    assert!(control.n4.is_up(upf.address) && control.events.try_recv().is_err());
}

#[tokio::test]
async fn requests_end_when_n4_stops() {
    let (mut control, mut upf) = Control::with_upf().await;
    let requested = control.request(&upf, SEIDS, SessionDeletionRequest {});
    upf.next().await;
    control.tasks = JoinSet::new();
    assert_eq!(requested.outcome().await.unwrap_err(), N4Error::Stopped);
    let later = control.request(&upf, SEIDS, SessionDeletionRequest {});
    assert_eq!(later.outcome().await.unwrap_err(), N4Error::Stopped);
}
