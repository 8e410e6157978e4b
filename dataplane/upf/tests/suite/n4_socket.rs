//! The N4 task over real sockets: it keeps serving all CP functions within bounds while some of them flood it, are silent,
//! or send malformed messages or very many rules. Time is virtual: hours pass in moments.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use crate::without_user_plane::Upf;
use net::udp::UdpSocket;
use net::udp::burst::{self, Burst};
use pfcp::endpoint::{Config as EndpointConfig, Endpoint, Event, Handle};
use pfcp::message::*;
use pfcp::*;
use pktio::memory::Sink;
use pktio::{Port, Sent, Vector};
use serde_json::Value;
use upf::mailbox::Command;
use upf::n4::Query;
use upf::pipeline::Event as PacketEvent;
use upf::plan::Peer;

/// A CP function.
struct Cp {
    endpoint: Endpoint,
    started: NtpSeconds,
    socket: UdpSocket,
    upf: SocketAddr,
    burst: Burst,
    responses: Vec<(Handle, Message)>,
    /// Requests that the UPF did not answer, or whose answers say that it restarted.
    trouble: Vec<Event>,
    /// Usage reports received, by SEID and sequence number.
    usage: Vec<(u64, u32)>,
    /// The UPF's SEIDs by its own.
    seids: HashMap<u64, u64>,
    /// Error indications received, by SEID.
    errors: Vec<u64>,
    /// Whether it answers reports.
    answers: bool,
    /// Whether it has released its association.
    released: bool,
    /// Whether it does not know Association Update Requests, and ignores them.
    ignores_updates: bool,
    /// Whether it ignores heartbeats, as some do until they have an association.
    ignores_heartbeats: bool,
}

/// Longest that an answer may take: three tries.
const PATIENCE: Duration = Duration::from_secs(4);

impl Cp {
    /// With this address and, for the UPF's requests, this port.
    async fn new(upf: &Upf, place: &str) -> Cp {
        Cp::started_at(upf, place, 1).await
    }

    async fn started_at(upf: &Upf, place: &str, stamp: u32) -> Cp {
        let address = place.parse().map(|address| SocketAddr::new(address, upf.address.port()));
        let socket = net::udp::bind(address.or_else(|_| place.parse()).unwrap()).await.unwrap();
        let config = EndpointConfig::new(NodeId::Ipv4(SMF), NtpSeconds(stamp), stamp.into());
        Cp {
            endpoint: Endpoint::new(config),
            started: NtpSeconds(stamp),
            socket,
            upf: upf.address,
            burst: Burst::new(65_535),
            responses: Vec::new(),
            trouble: Vec::new(),
            usage: Vec::new(),
            seids: HashMap::new(),
            errors: Vec::new(),
            answers: true,
            released: false,
            ignores_updates: false,
            ignores_heartbeats: false,
        }
    }

    async fn associated(upf: &Upf) -> Cp {
        Cp::associated_from(upf, "127.0.0.2").await
    }

    async fn associated_from(upf: &Upf, address: &str) -> Cp {
        let mut cp = Cp::new(upf, address).await;
        assert_eq!(cp.associate(1).await.cause, Cause::ACCEPTED);
        cp.endpoint.add_peer(now(), cp.upf);
        cp
    }

    async fn associate(&mut self, stamp: u32) -> AssociationSetupResponse {
        match self.ask(0, setup(stamp)).await {
            Message::AssociationSetupResponse(response) => response,
            other => panic!("{other:?}"),
        }
    }

    fn request(&mut self, seid: u64, message: impl Into<Message>) -> Handle {
        self.endpoint.send_request(now(), self.upf, seid, message).unwrap()
    }

    /// Receives and answers messages for this time.
    async fn turn(&mut self, time: Duration) {
        let end = net::time::now() + time;
        loop {
            self.endpoint.handle_timeout(now());
            self.handle_events();
            let out: Vec<_> = std::iter::from_fn(|| self.endpoint.poll_transmit()).collect();
            let out: Vec<_> = out.into_iter().map(|transmit| (transmit.to, transmit.payload)).collect();
            burst::send_all(&self.socket, &out, |to, error| panic!("{to}: {error}")).await;
            let next = self.endpoint.poll_timeout().map(net::time::Instant::from_std);
            let next = next.unwrap_or(end).min(end);
            let left = next.saturating_duration_since(net::time::now());
            if let Ok(received) = net::time::timeout(left, self.burst.receive(&self.socket)).await {
                received.unwrap();
                let ignored = |datagram: &[u8]| self.ignores_heartbeats && datagram.get(1) == Some(&1);
                for (from, datagram) in self.burst.iter().filter(|(_, datagram)| !ignored(datagram)) {
                    self.endpoint.handle_datagram(now(), from, datagram);
                }
            } else if net::time::now() >= end {
                return self.handle_events();
            }
        }
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Response { handle, message, .. } => self.responses.push((handle, message)),
                Event::Request { id, seid, message: Message::SessionReportRequest(report) } => {
                    if !self.answers {
                        continue;
                    }
                    let seid = seid.unwrap();
                    self.errors.extend(report.error_indication_report.as_ref().map(|_| seid));
                    self.usage.extend(report.usage_reports.iter().map(|usage| (seid, usage.sequence.0)));
                    let response = SessionReportResponse { cause: Cause::ACCEPTED, ..Default::default() };
                    let upf = self.seids.get(&seid).copied().unwrap_or(0);
                    self.endpoint.respond(now(), id, upf, response).unwrap();
                }
                Event::Request { id, message: Message::AssociationSetupRequest(_), .. } => {
                    let response = AssociationSetupResponse {
                        node_id: NodeId::Ipv4(SMF),
                        cause: Cause::ACCEPTED,
                        recovery_time_stamp: self.started,
                        ..Default::default()
                    };
                    self.endpoint.respond(now(), id, 0, response).unwrap();
                }
                Event::Request { message: Message::AssociationUpdateRequest(_), .. }
                    if self.ignores_updates => {}
                Event::Request { id, message: Message::AssociationUpdateRequest(_), .. } => {
                    let cause = if self.released { Cause::NO_ASSOCIATION } else { Cause::ACCEPTED };
                    let response = AssociationUpdateResponse { cause, ..Default::default() };
                    self.endpoint.respond(now(), id, 0, response).unwrap();
                }
                other => self.trouble.push(other),
            }
        }
    }

    async fn wait(&mut self, handle: Handle) -> Message {
        for _ in 0..PATIENCE.as_millis() {
            if let Some(at) = self.responses.iter().position(|(answered, _)| *answered == handle) {
                return self.responses.swap_remove(at).1;
            }
            self.turn(Duration::from_millis(1)).await;
        }
        panic!("no answer: {:?}", self.trouble);
    }

    async fn ask(&mut self, seid: u64, message: impl Into<Message>) -> Message {
        let handle = self.request(seid, message);
        self.wait(handle).await
    }

    async fn establish(&mut self, request: SessionEstablishmentRequest) -> SessionEstablishmentResponse {
        let own = request.cp_f_seid.seid;
        match self.ask(0, request).await {
            Message::SessionEstablishmentResponse(response) => {
                self.seids.extend(response.up_f_seid.map(|f_seid| (own, f_seid.seid)));
                response
            }
            other => panic!("{other:?}"),
        }
    }

    async fn modify(
        &mut self,
        seid: u64,
        request: SessionModificationRequest,
    ) -> SessionModificationResponse {
        match self.ask(seid, request).await {
            Message::SessionModificationResponse(response) => response,
            other => panic!("{other:?}"),
        }
    }

    /// Sends octets as they are.
    async fn send(&self, datagrams: &[Vec<u8>]) {
        let datagrams: Vec<_> = datagrams.iter().map(|octets| (self.upf, octets)).collect();
        burst::send_all(&self.socket, &datagrams, |to, error| panic!("{to}: {error}")).await;
    }

    async fn heartbeat(&mut self) {
        let request = HeartbeatRequest { recovery_time_stamp: NtpSeconds(1) };
        assert!(matches!(self.ask(0, request).await, Message::HeartbeatResponse(_)));
    }
}

fn now() -> std::time::Instant {
    net::time::now().into_std()
}

/// The ordinary session for UE number `n`.
fn session(n: u16) -> SessionEstablishmentRequest {
    let mut request = establishment(u64::from(n) + 1);
    for pdr in &mut request.create_pdrs {
        if let Some(ue) = &mut pdr.pdi.ue_ip_address {
            ue.ipv4 = Some((u32::from(UE_V4) + u32::from(n)).into());
            ue.ipv6 = None;
        }
    }
    request
}

fn seid_of(response: &SessionEstablishmentResponse) -> u64 {
    assert_eq!(response.cause, Cause::ACCEPTED, "{response:?}");
    response.up_f_seid.unwrap().seid
}

fn small_pdr(id: u16) -> CreatePdr {
    let pdi = Pdi { f_teid: choose(1), ..Default::default() };
    CreatePdr {
        pdr_id: PdrId(id),
        precedence: Precedence(u32::from(id)),
        pdi,
        far_id: Some(FarId(1)),
        ..Default::default()
    }
}

/// A session gets all 65,536 PDRs that it can name, in requests as long as datagrams. A request with more rules of a kind
/// is refused as a whole, and the answer names the first rule without room.
#[tokio::test(start_paused = true)]
async fn a_session_has_as_many_pdrs_as_it_can_name() {
    let upf = Upf::with(Sink::default(), |config| config.dnn[0].any_source = true).await;
    let mut cp = Cp::associated(&upf).await;
    let mut request = session(0);
    request.create_pdrs = (0..1400).map(small_pdr).collect();
    let seid = seid_of(&cp.establish(request).await);
    for first in (1400..=u16::MAX).step_by(1400) {
        let last = first.saturating_add(1399);
        let create_pdrs = (first..=last).map(small_pdr).collect();
        let answer = cp.modify(seid, SessionModificationRequest { create_pdrs, ..Default::default() }).await;
        assert_eq!(answer.cause, Cause::ACCEPTED, "{first}");
        assert_eq!(answer.created_pdrs.len(), usize::from(last - first) + 1);
    }
    assert_eq!(upf.ask(Query::Sessions).await[0]["pdrs"], 65_536);
    let again = SessionModificationRequest { create_pdrs: vec![small_pdr(7)], ..Default::default() };
    let answer = cp.modify(seid, again).await;
    assert_eq!((answer.cause, answer.failed_rule_id), (Cause::RULE_FAILURE, Some(FailedRuleId::Pdr(7))));
    assert!(matches!(cp.ask(seid, SessionDeletionRequest {}).await, Message::SessionDeletionResponse(_)));
    assert_eq!(upf.ask(Query::Sessions).await, Value::Array(vec![]));
}

/// Random octets of all lengths up to that of a datagram, and requests with one octet changed or cut anywhere.
#[tokio::test(start_paused = true)]
async fn nonsense_is_survived_and_counted() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let mut valid = Vec::new();
    Message::from(session(0)).encode(0, 77, &mut valid).unwrap();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    for round in 0..200 {
        let mut datagrams = vec![vec![0; next() % 65_508], vec![0xff; next() % 65_508]];
        // A header with a length that is too high or too low.
        datagrams.push([&[0x20, 1][..], &(next() as u16).to_be_bytes(), &vec![0; next() % 3000]].concat());
        datagrams.push(valid[..next() % valid.len()].to_vec());
        for _ in 0..8 {
            let mut broken = valid.clone();
            let at = next() % broken.len();
            broken[at] = next() as u8;
            // Each has another sequence number, because they would be taken for repetitions otherwise.
            broken[12..15].copy_from_slice(&(10_000 + round * 8 + next() as u32 % 8).to_be_bytes()[1..]);
            datagrams.push(broken);
        }
        cp.send(&datagrams).await;
        cp.heartbeat().await;
    }
    let status = upf.ask(Query::Status).await;
    assert!(status["pfcp"]["malformed"].as_u64().unwrap() > 300, "{status}");
    assert!(status["sessions"].as_u64().unwrap() <= 256, "the UE has one address: {status}");
    seid_of(&cp.establish(session(300)).await);
}

/// One CP function sends requests without end and reads no answers: another one is served meanwhile.
#[tokio::test(start_paused = true)]
async fn a_flood_of_one_cp_function_leaves_room_for_another() {
    let upf = Upf::start().await;
    let mut flooding = Cp::associated(&upf).await;
    let mut stranger = Cp::new(&upf, "127.0.0.4").await;
    let mut other = Cp::associated_from(&upf, "127.0.0.3").await;
    let encoded = |message: Message, seid, sequence| {
        let mut out = Vec::new();
        message.encode(seid, sequence, &mut out).unwrap();
        out
    };
    for round in 0..100u32 {
        let sequence = |n: u32| round * 100 + n + 1000;
        let flood: Vec<Vec<u8>> = (0..100)
            .map(|n| match n % 4 {
                0 => encoded(session((n % 50) as u16).into(), 0, sequence(n)),
                1 => encoded(SessionDeletionRequest {}.into(), u64::from(n), sequence(n)),
                2 => encoded(HeartbeatRequest { recovery_time_stamp: NtpSeconds(1) }.into(), 0, sequence(n)),
                _ => encoded(SessionModificationRequest::default().into(), u64::from(n), sequence(n)),
            })
            .collect();
        flooding.send(&flood).await;
        stranger.send(&flood).await;
        other.heartbeat().await;
        if round % 20 == 0 {
            // Each request is for the same UE and replaces the session before.
            assert_eq!(other.establish(session(1000)).await.cause, Cause::ACCEPTED);
        }
    }
    // Both are served when they read again.
    flooding.heartbeat().await;
    assert_eq!(stranger.establish(session(7)).await.cause, Cause::NO_ASSOCIATION);
    seid_of(&flooding.establish(session(600)).await);
}

/// Usage reports without answer are kept up to a bound. When the CP function is back they are sent again, not faster than
/// its socket can take them.
#[tokio::test(start_paused = true)]
async fn unanswered_reports_are_bounded_and_arrive_in_the_end() {
    const SESSIONS: u16 = 20;
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    for n in 0..SESSIONS {
        let mut request = session(n);
        let urr = &mut request.create_urrs[0];
        urr.reporting_triggers = ReportingTriggers::PERIO;
        urr.measurement_period = Some(Seconds(1));
        seid_of(&cp.establish(request).await);
    }
    cp.answers = false;
    let silence = Duration::from_secs(1000);
    net::time::sleep(silence).await;
    let status = upf.ask(Query::Status).await;
    let (kept, unanswered) =
        (status["usage_reports"]["kept"].clone(), status["usage_reports"]["unanswered"].as_u64().unwrap());
    assert_eq!(kept, 16_384, "{status}");
    assert!(unanswered <= 65_536 && unanswered > 0, "{status}");
    assert!(status["pfcp"]["timeouts"].as_u64().unwrap() > 16_384, "{status}");

    // Messages from the time of silence are not used.
    while cp.burst.receive_now(&cp.socket).is_ok() {}
    cp.answers = true;
    for _ in 0..60 {
        cp.turn(Duration::from_secs(1)).await;
    }
    let status = upf.ask(Query::Status).await;
    assert_eq!(status["usage_reports"]["kept"], 0, "{status}");
    assert!(cp.usage.len() >= 16_384, "{} of the reports that were kept", cp.usage.len());
    // The first reports of all sessions are among them: the newest were lost, not the oldest.
    for seid in 1..=u64::from(SESSIONS) {
        assert!(cp.usage.contains(&(seid, 0)), "the first of session {seid}");
    }
}

/// Usage reports that do not fit into the response follow in further messages (§5.2.2.3.1).
#[tokio::test(start_paused = true)]
async fn more_usage_reports_than_fit_come_in_parts() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let mut request = session(0);
    let urr = |id| CreateUrr {
        urr_id: UrrId(id),
        measurement_method: MeasurementMethod::VOLUM | MeasurementMethod::DURAT,
        measurement_information: Some(MeasurementInformation::MNOP),
        ..Default::default()
    };
    request.create_urrs.extend((2..=900).map(urr));
    let seid = seid_of(&cp.establish(request).await);
    let query = SessionModificationRequest { flags: Some(SmReqFlags::QAURR), ..Default::default() };
    let answer = cp.modify(seid, query).await;
    assert_eq!((answer.cause, answer.usage_reports.len()), (Cause::ACCEPTED, 200));
    let additional = answer.additional_usage_reports.unwrap();
    assert_eq!((additional.more, additional.count), (false, 700));
    cp.turn(Duration::from_millis(100)).await;
    assert_eq!(cp.usage.len(), 700);

    cp.usage.clear();
    let Message::SessionDeletionResponse(answer) = cp.ask(seid, SessionDeletionRequest {}).await else {
        panic!()
    };
    assert_eq!((answer.cause, answer.usage_reports.len()), (Cause::ACCEPTED, 200));
    cp.turn(Duration::from_millis(100)).await;
    assert_eq!(cp.usage.len(), 700);
    let status = upf.ask(Query::Status).await;
    assert_eq!((&status["sessions"], &status["usage_reports"]["unanswered"]), (&0.into(), &0.into()));
}

/// Heartbeats of both sides are answered under a full load of establishments and deletions (§6.2.2).
#[tokio::test(start_paused = true)]
async fn heartbeats_pass_under_load() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let mut made = 0;
    for round in 0..120u16 {
        let handles: Vec<Handle> = (0..50).map(|n| cp.request(0, session(round * 50 + n))).collect();
        for handle in handles {
            let Message::SessionEstablishmentResponse(response) = cp.wait(handle).await else { panic!() };
            let seid = seid_of(&response);
            cp.request(seid, SessionModificationRequest::default());
            cp.request(seid, SessionDeletionRequest {});
            made += 1;
        }
        cp.turn(Duration::from_millis(500)).await;
        cp.responses.clear();
    }
    assert_eq!((made, upf.ask(Query::Status).await["sessions"].clone()), (6000, 0.into()));
    assert!(cp.trouble.is_empty(), "{:?}", cp.trouble);
    let (own, status) = (cp.endpoint.counters(), upf.ask(Query::Status).await);
    assert_eq!((own.timeouts, &status["pfcp"]["timeouts"]), (0, &0.into()));
    // The messages of a minute: requests, their answers, and six heartbeats of each side, which wait for answers.
    assert!(own.received > 3 * 6000 + 3, "{own:?}");
}

fn setup(stamp: u32) -> AssociationSetupRequest {
    AssociationSetupRequest {
        node_id: NodeId::Ipv4(SMF),
        recovery_time_stamp: NtpSeconds(stamp),
        ..Default::default()
    }
}

fn octets(message: impl Into<Message>, seid: u64, sequence: u32) -> Vec<u8> {
    let mut out = Vec::new();
    message.into().encode(seid, sequence, &mut out).unwrap();
    out
}

#[tokio::test(start_paused = true)]
async fn only_configured_cp_functions_associate() {
    let upf = Upf::with(Sink::default(), |config| {
        config.smf = vec!["127.0.0.4".parse().unwrap(), "127.9.0.0/16".parse().unwrap()];
    })
    .await;
    for (address, cause) in [
        ("127.0.0.1:0", Cause::REJECTED),
        ("127.0.0.5:0", Cause::REJECTED),
        ("127.0.0.4:0", Cause::ACCEPTED),
        ("127.9.200.1:0", Cause::ACCEPTED),
    ] {
        let mut cp = Cp::new(&upf, address).await;
        assert_eq!(cp.associate(1).await.cause, cause, "{address}");
    }
    assert_eq!(upf.count("associations").await, 2);
}

/// Forged datagrams end no session, not even with the CP function's own address and port.
#[tokio::test(start_paused = true)]
async fn forged_messages_end_no_session() {
    let upf = Upf::with(Sink::default(), |config| config.session_sets = true).await;
    let mut cp = Cp::associated(&upf).await;
    let mut request = session(0);
    request.fq_csids = vec![FqCsid { node: CsidNode::Ipv4(SMF), csids: vec![1], node_type: None }];
    let seid = seid_of(&cp.establish(request.clone()).await);
    let sets = SessionSetDeletionRequest { fq_csids: request.fq_csids.clone(), ..Default::default() };
    let forged = |first: u32| {
        [
            octets(HeartbeatRequest { recovery_time_stamp: NtpSeconds(9) }, 0, first),
            octets(setup(9), 0, first + 1),
            octets(AssociationReleaseRequest { node_id: NodeId::Ipv4(SMF) }, 0, first + 2),
        ]
        .into_iter()
        .chain((0..500).map(|n| octets(HeartbeatResponse { recovery_time_stamp: NtpSeconds(9) }, 0, n)))
        .collect::<Vec<_>>()
    };
    // From another port of its address; session set deletions and messages with guessed SEIDs are among them.
    let intruder = Cp::new(&upf, "127.0.0.2:0").await;
    intruder.send(&forged(9000)).await;
    let more = [
        octets(sets.clone(), 0, 9100),
        octets(SessionSetDeletionRequest::default(), 0, 9101),
        octets(SessionDeletionRequest {}, seid ^ 1, 9102),
        octets(update_far(2, ApplyAction::DROP), 1, 9103),
    ];
    intruder.send(&more).await;
    cp.turn(Duration::from_secs(20)).await;
    // From its own port.
    cp.send(&forged(9500)).await;
    cp.send(&[octets(SessionSetDeletionRequest::default(), 0, 9510)]).await;
    cp.turn(Duration::from_secs(20)).await;
    assert_eq!((upf.count("sessions").await, upf.count("associations").await), (1, 1));
    assert_eq!(cp.modify(seid, update_far(2, ApplyAction::FORW)).await.cause, Cause::ACCEPTED);
    // The CP function itself can do all of this.
    let Message::SessionSetDeletionResponse(answer) = cp.ask(0, sets).await else { panic!() };
    assert_eq!((answer.cause, upf.count("sessions").await), (Cause::ACCEPTED, 0));
    seid_of(&cp.establish(session(0)).await);
    cp.released = true;
    let release = AssociationReleaseRequest { node_id: NodeId::Ipv4(SMF) };
    let Message::AssociationReleaseResponse(answer) = cp.ask(0, release).await else { panic!() };
    assert_eq!(answer.cause, Cause::ACCEPTED);
    cp.turn(Duration::from_secs(1)).await;
    assert_eq!((upf.count("sessions").await, upf.count("associations").await), (0, 0));
}

/// A session set deletion cannot be confirmed, so it is refused unless the configuration allows it.
#[tokio::test(start_paused = true)]
async fn session_set_deletions_must_be_allowed() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let mut request = session(0);
    request.fq_csids = vec![FqCsid { node: CsidNode::Ipv4(SMF), csids: vec![1], node_type: None }];
    let seid = seid_of(&cp.establish(request.clone()).await);
    let sets = SessionSetDeletionRequest { fq_csids: request.fq_csids, ..Default::default() };
    let Message::SessionSetDeletionResponse(answer) = cp.ask(0, sets).await else { panic!() };
    assert_eq!((answer.cause, upf.count("sessions").await), (Cause::SERVICE_NOT_SUPPORTED, 1));
    assert_eq!(cp.modify(seid, update_far(2, ApplyAction::FORW)).await.cause, Cause::ACCEPTED);
}

/// A CP function that ignores Association Update Requests, as some do, keeps its sessions after a forged release.
#[tokio::test(start_paused = true)]
async fn a_release_is_confirmed_by_heartbeats_when_updates_are_ignored() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    cp.ignores_updates = true;
    let seid = seid_of(&cp.establish(session(0)).await);
    let release = |sequence| octets(AssociationReleaseRequest { node_id: NodeId::Ipv4(SMF) }, 0, sequence);
    for sequence in [9000, 9001] {
        cp.send(&[release(sequence)]).await;
        cp.turn(Duration::from_secs(20)).await;
        assert_eq!((upf.count("sessions").await, upf.count("associations").await), (1, 1));
    }
    assert_eq!(cp.modify(seid, update_far(2, ApplyAction::FORW)).await.cause, Cause::ACCEPTED);
    // It releases the association and answers no heartbeat.
    cp.send(&[release(9002)]).await;
    drop(cp);
    net::time::sleep(Duration::from_secs(20)).await;
    assert_eq!((upf.count("sessions").await, upf.count("associations").await), (0, 0));
}

/// A CP function sends from any of its ports, and gets the UPF's requests at the port of PFCP (TS 29.244 §4.2.2).
#[tokio::test(start_paused = true)]
async fn a_cp_function_sends_from_any_port() {
    let upf = Upf::start().await;
    let mut listener = Cp::new(&upf, "127.0.0.2").await;
    let mut sender = Cp::new(&upf, "127.0.0.2:0").await;
    assert_eq!(sender.associate(1).await.cause, Cause::ACCEPTED);
    let mut request = session(0);
    request.create_urrs[0].reporting_triggers = ReportingTriggers::PERIO;
    request.create_urrs[0].measurement_period = Some(Seconds(1));
    let seid = seid_of(&sender.establish(request).await);
    listener.seids.insert(1, seid);
    let mut other = Cp::new(&upf, "127.0.0.2:0").await;
    assert_eq!(other.modify(seid, update_far(2, ApplyAction::DROP)).await.cause, Cause::ACCEPTED);
    listener.turn(Duration::from_secs(30)).await;
    let status = upf.ask(Query::Status).await;
    assert_eq!((&status["pfcp"]["timeouts"], &status["usage_reports"]["kept"]), (&0.into(), &0.into()));
    assert!(listener.usage.len() >= 29 && sender.usage.is_empty(), "{:?}", listener.usage);
    // A message from another address is that of another CP function.
    let mut stranger = Cp::new(&upf, "127.0.0.3").await;
    assert_eq!(stranger.modify(seid, update_far(2, ApplyAction::DROP)).await.cause, Cause::SESSION_NOT_FOUND);
    assert_eq!(other.associate(1).await.flags, Some(AsRspFlags::PSREI));
    assert!(matches!(other.ask(seid, SessionDeletionRequest {}).await, Message::SessionDeletionResponse(_)));
    assert_eq!(upf.count("sessions").await, 0);
}

/// A restarted CP function confirms its restart by a heartbeat. Messages from other ports of its address do not replace
/// its association.
#[tokio::test(start_paused = true)]
async fn a_restarted_cp_function_gets_a_new_association() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    seid_of(&cp.establish(session(0)).await);
    let address = cp.socket.local_addr().unwrap().to_string();
    drop(cp);
    let mut cp = Cp::started_at(&upf, &address, 2).await;
    let answer = cp.associate(2).await;
    assert_eq!((answer.cause, answer.flags), (Cause::ACCEPTED, None));
    assert_eq!((upf.count("sessions").await, upf.count("associations").await), (0, 1));
    seid_of(&cp.establish(session(0)).await);
    // Without a restart it keeps its sessions.
    let answer = cp.associate(2).await;
    assert_eq!((answer.cause, answer.flags), (Cause::ACCEPTED, Some(AsRspFlags::PSREI)));
    assert_eq!(upf.count("sessions").await, 1);
    // While it answers, its association is not replaced.
    let mut other = Cp::started_at(&upf, "127.0.0.2:0", 3).await;
    let handle = other.request(0, setup(3));
    other.turn(Duration::from_millis(5)).await;
    cp.turn(Duration::from_secs(1)).await;
    let Message::AssociationSetupResponse(refused) = other.wait(handle).await else { panic!() };
    assert_eq!((refused.cause, upf.count("sessions").await), (Cause::REJECTED, 1));
    drop(cp);
    other.request(0, setup(3));
    other.turn(Duration::from_secs(20)).await;
    assert_eq!(upf.count("sessions").await, 1);
    let mut cp = Cp::started_at(&upf, &address, 3).await;
    let handle = other.request(0, setup(3));
    other.turn(Duration::from_millis(5)).await;
    cp.turn(Duration::from_secs(1)).await;
    let Message::AssociationSetupResponse(answer) = other.wait(handle).await else { panic!() };
    assert_eq!((answer.cause, upf.count("sessions").await), (Cause::ACCEPTED, 0));
    seid_of(&other.establish(session(0)).await);
}

/// A CP function that has restarted and does not answer heartbeats before it has an association is asked by an
/// Association Setup Request.
#[tokio::test(start_paused = true)]
async fn a_restarted_cp_function_may_ignore_heartbeats_until_it_is_associated() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    seid_of(&cp.establish(session(0)).await);
    drop(cp);
    // A set-up from an address where nobody answers has no effect.
    let forger = Cp::new(&upf, "127.0.0.2:0").await;
    forger.send(&[octets(setup(7), 0, 9000)]).await;
    net::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(upf.count("sessions").await, 1);
    // Neither has one whose recovery time stamp differs from that of the CP function.
    let mut cp = Cp::started_at(&upf, "127.0.0.2", 2).await;
    cp.ignores_heartbeats = true;
    forger.send(&[octets(setup(7), 0, 9001)]).await;
    cp.turn(Duration::from_secs(20)).await;
    cp.request(0, setup(2));
    cp.turn(Duration::from_secs(20)).await;
    cp.ignores_heartbeats = false;
    assert_eq!(upf.count("sessions").await, 0);
    assert_eq!(cp.associate(2).await.cause, Cause::ACCEPTED);
    seid_of(&cp.establish(session(0)).await);
    cp.turn(Duration::from_secs(60)).await;
    assert_eq!((upf.count("sessions").await, upf.count("associations").await), (1, 1));
}

/// CP functions that do not answer any more lose their slots, so that others can associate.
#[tokio::test(start_paused = true)]
async fn silent_cp_functions_give_their_slots_back() {
    let upf = Upf::start().await;
    for n in 0..600u16 {
        let [high, low] = n.to_be_bytes();
        let mut gone = Cp::new(&upf, &format!("127.7.{high}.{low}:0")).await;
        assert_eq!(gone.associate(1).await.cause, Cause::ACCEPTED, "{n}");
        if n % 200 == 199 {
            net::time::sleep(Duration::from_secs(30)).await;
        }
    }
    assert!(upf.count("associations").await <= 256);
    // Those with sessions stay, but do not use a slot.
    for n in 0..300u16 {
        let [high, low] = n.to_be_bytes();
        let mut gone = Cp::associated_from(&upf, &format!("127.8.{high}.{low}:0")).await;
        seid_of(&gone.establish(session(n)).await);
        if n % 100 == 99 {
            net::time::sleep(Duration::from_secs(30)).await;
        }
    }
    assert_eq!(upf.count("sessions").await, 300);
    let mut cp = Cp::associated(&upf).await;
    seid_of(&cp.establish(session(1000)).await);
}

/// A datagram, and where it was sent.
type Datagram = (Vec<u8>, SocketAddr);

/// N3 that keeps what is sent.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Datagram>>>);

impl Port for Recorder {
    fn receive(&mut self, _: &mut Vector) -> std::io::Result<usize> {
        Ok(0)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let sent =
            batch.frames().iter().zip(batch.peers()).map(|(frame, peer)| (frame.packet().to_vec(), *peer));
        self.0.lock().unwrap().extend(sent);
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl Recorder {
    /// The sequence numbers of the Echo Requests to a peer.
    fn echoes(&self, peer: Peer) -> Vec<u16> {
        let sent = self.0.lock().unwrap();
        let to_peer = sent.iter().filter(|(octets, to)| to.ip() == peer.address && octets[1] == 1);
        to_peer.map(|(octets, _)| u16::from_be_bytes([octets[8], octets[9]])).collect()
    }

    /// Number of End Markers to a peer.
    fn end_markers(&self, peer: IpAddr) -> usize {
        let sent = self.0.lock().unwrap();
        sent.iter().filter(|(octets, to)| to.ip() == peer && octets[1] == 254).count()
    }
}

/// N4 compares its time with that at which workers have heard an address: both read one clock.
#[tokio::test(start_paused = true)]
async fn an_address_is_silent_by_the_clock_of_the_workers() {
    let factory = ethernet_config("gw0", "tap0").dnn.remove(1);
    let upf = Upf::with(Sink::default(), |config| config.dnn.push(factory)).await;
    let mut cp = Cp::associated(&upf).await;
    let mut request = ethernet_establishment(1);
    request.create_urrs[0].reporting_triggers = ReportingTriggers::MACAR;
    request.create_urrs[0].ethernet_inactivity_timer = Some(Seconds(10));
    let seid = seid_of(&cp.establish(request).await);
    // What a worker does, by whose clock the test began now.
    let (bridge, station, mac) = (upf.tables.bridge(2).unwrap(), 1, [2, 0, 0, 0, 0, 7]);
    let start_s = (net::time::now_ns() / 1_000_000_000) as u32;
    bridge.learn(station, 0, mac, start_s);
    upf.events.send(PacketEvent::Address { seid, mac, c_tag: None, s_tag: None }).await.unwrap();
    cp.turn(Duration::from_secs(6)).await;
    assert_eq!((cp.usage.len(), bridge.addresses(station).len()), (1, 1), "the address is new");
    bridge.learn(station, 0, mac, start_s + 6);
    cp.turn(Duration::from_secs(7)).await;
    assert_eq!((cp.usage.len(), bridge.addresses(station).len()), (1, 1), "heard seven seconds ago");
    cp.turn(Duration::from_secs(7)).await;
    assert_eq!((cp.usage.len(), bridge.addresses(station).len()), (2, 0), "silent for fourteen seconds");
}

/// Readers of the tables that are not workers, such as programs in the kernel. They read until the test says that they
/// have finished.
#[derive(Clone, Default)]
struct Elsewhere(Arc<[AtomicU64; 2]>);

impl Elsewhere {
    fn finish(&self) {
        let [taken, oldest] = &*self.0;
        oldest.store(taken.load(Relaxed) + 1, Relaxed);
    }
}

impl rcu::Source for Elsewhere {
    fn take(&self) -> u64 {
        self.0[0].fetch_add(1, Relaxed) + 1
    }

    fn oldest(&self) -> u64 {
        self.0[1].load(Relaxed)
    }
}

/// An End Marker follows the last packet of every tier. N4 serves its CP functions while it waits, and does not wait for
/// ever.
#[tokio::test(start_paused = true)]
async fn end_markers_wait_for_readers_outside_the_workers_and_n4_does_not() {
    let n3 = Recorder::default();
    let upf = Upf::with_n3(n3.clone()).await;
    let elsewhere = Elsewhere::default();
    upf.tables.domain().add_source(Box::new(elsewhere.clone())).unwrap();
    let mut cp = Cp::associated(&upf).await;
    let seid = seid_of(&cp.establish(session(0)).await);
    let other = IpAddr::from([127, 0, 0, 21]);
    // To the other gNB and back: the first one's tunnel ends, and then the other's.
    assert_eq!(cp.modify(seid, path_switch(1, other)).await.cause, Cause::ACCEPTED);
    for n in 1..20 {
        seid_of(&cp.establish(session(n)).await);
        cp.heartbeat().await;
    }
    cp.turn(Duration::from_millis(500)).await;
    assert_eq!(n3.end_markers(GNB.into()), 0);
    elsewhere.finish();
    cp.turn(Duration::from_millis(5)).await;
    assert_eq!((n3.end_markers(GNB.into()), n3.end_markers(other)), (1, 0));

    // These readers never finish.
    assert_eq!(cp.modify(seid, path_switch(2, GNB.into())).await.cause, Cause::ACCEPTED);
    cp.turn(Duration::from_millis(900)).await;
    assert_eq!(n3.end_markers(other), 0);
    cp.turn(Duration::from_millis(200)).await;
    assert_eq!((n3.end_markers(GNB.into()), n3.end_markers(other)), (1, 1));
}

/// Many Error Indications for one tunnel: one Echo Request to the peer and one report to the CP function at a time.
#[tokio::test(start_paused = true)]
async fn error_indications_are_confirmed_by_the_peer_and_reported_once() {
    let n3 = Recorder::default();
    let upf = Upf::with_n3(n3.clone()).await;
    let mut cp = Cp::associated(&upf).await;
    seid_of(&cp.establish(session(0)).await);
    let (gnb, other) = (GNB_PEER, Peer { address: [127, 0, 0, 21].into(), ..GNB_PEER });
    let indication = |peer| PacketEvent::ErrorIndication { peer, teid: GNB_TEID };
    for _ in 0..500 {
        upf.events.send(indication(gnb)).await.unwrap();
        // Not the far end of the tunnel.
        upf.events.send(indication(other)).await.unwrap();
    }
    cp.turn(Duration::from_millis(10)).await;
    assert_eq!((n3.echoes(gnb).len(), n3.echoes(other).len(), cp.errors.len()), (1, 0, 0));
    let sequence = n3.echoes(gnb)[0];
    for (peer, sequence) in [(gnb, sequence.wrapping_add(1)), (other, sequence)] {
        upf.events.send(PacketEvent::EchoResponse { peer, sequence }).await.unwrap();
    }
    cp.turn(Duration::from_millis(10)).await;
    assert!(cp.errors.is_empty());
    upf.events.send(PacketEvent::EchoResponse { peer: gnb, sequence }).await.unwrap();
    cp.turn(Duration::from_millis(10)).await;
    assert_eq!(cp.errors, [1]);
    // An Error Indication of a peer that does not answer is not reported.
    upf.events.send(indication(gnb)).await.unwrap();
    cp.turn(Duration::from_secs(15)).await;
    let asked = n3.echoes(gnb);
    assert!(asked.len() == 4 && asked[1] != sequence, "{asked:?}");
    upf.events.send(PacketEvent::EchoResponse { peer: gnb, sequence: asked[1] }).await.unwrap();
    cp.turn(Duration::from_millis(10)).await;
    assert_eq!(cp.errors, [1]);
}

/// A refused modification has no effect (§6.3.3.3), also on buffered packets.
#[tokio::test(start_paused = true)]
async fn only_an_accepted_modification_drops_what_is_buffered() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let seid = seid_of(&cp.establish(session(0)).await);
    assert_eq!(cp.modify(seid, update_far(2, ApplyAction::BUFF)).await.cause, Cause::ACCEPTED);
    upf.mailbox.take();
    let dropping = |far| SessionModificationRequest {
        flags: Some(SmReqFlags::DROBU),
        ..update_far(far, ApplyAction::FORW)
    };
    assert_eq!(cp.modify(seid, dropping(99)).await.cause, Cause::RULE_FAILURE);
    assert_eq!(upf.mailbox.take(), []);
    assert_eq!(cp.modify(seid, dropping(2)).await.cause, Cause::ACCEPTED);
    assert_eq!(upf.mailbox.take(), [Command::Discard(seid)]);
}

/// An answer with the SEID of another session is ignored: the report is kept and sent again.
#[tokio::test(start_paused = true)]
async fn answers_to_reports_name_the_session() {
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    let mut request = session(0);
    request.create_urrs[0].reporting_triggers = ReportingTriggers::PERIO;
    request.create_urrs[0].measurement_period = Some(Seconds(5));
    let seid = seid_of(&cp.establish(request).await);
    cp.seids.insert(1, seid ^ 1);
    cp.turn(Duration::from_secs(6)).await;
    assert_eq!(upf.count("sessions").await, 1);
    assert!(!cp.usage.is_empty());
    let kept = upf.ask(Query::Status).await["usage_reports"]["kept"].as_u64().unwrap();
    cp.seids.insert(1, seid);
    cp.turn(Duration::from_secs(6)).await;
    let first = cp.usage.iter().filter(|(_, sequence)| *sequence == 0).count();
    assert!(kept == 1 && first == 2, "{kept} {:?}", cp.usage);
}

/// Wrong answers to many reports cause no further reports. If only some answers are wrong, a report has a few attempts.
#[tokio::test(start_paused = true)]
async fn wrong_answers_to_reports_cause_no_storm() {
    const SESSIONS: u16 = 20;
    const SECONDS: usize = 30;
    let upf = Upf::start().await;
    let mut cp = Cp::associated(&upf).await;
    for n in 0..SESSIONS {
        let mut request = session(n);
        request.create_urrs[0].reporting_triggers = ReportingTriggers::PERIO;
        request.create_urrs[0].measurement_period = Some(Seconds(1));
        seid_of(&cp.establish(request).await);
    }
    let right = std::mem::take(&mut cp.seids);
    // It answers with SEID 0.
    cp.turn(Duration::from_secs(SECONDS as u64)).await;
    let made = SECONDS * usize::from(SESSIONS);
    assert!(cp.usage.len() <= made, "{} reports where {made} were made", cp.usage.len());
    // It answers with its own SEID for half of the sessions.
    cp.usage.clear();
    cp.seids = right.iter().map(|(own, upf)| (*own, if own % 2 == 0 { *own } else { *upf })).collect();
    cp.turn(Duration::from_secs(10 * SECONDS as u64)).await;
    let mut attempts: HashMap<(u64, u32), usize> = HashMap::new();
    for report in &cp.usage {
        *attempts.entry(*report).or_default() += 1;
    }
    assert!(attempts.values().all(|attempts| *attempts <= 3), "{attempts:?}");
    // The reports of the other half arrive after the wrongly answered ones were given up.
    cp.seids = right;
    cp.turn(Duration::from_secs(10 * SECONDS as u64)).await;
    assert_eq!(upf.ask(Query::Status).await["usage_reports"]["kept"], 0);
}

/// An N3 with a defect: sending a message to a peer in this network panics.
struct Defective;

const POISON: [u8; 3] = [127, 66, 6];

impl Port for Defective {
    fn receive(&mut self, _: &mut Vector) -> std::io::Result<usize> {
        Ok(0)
    }

    fn transmit(&mut self, batch: &mut Vector, selected: &[u16]) -> Sent {
        let peer = batch.peer(0).ip();
        assert!(!matches!(peer, IpAddr::V4(peer) if peer.octets().starts_with(&POISON)), "a test's defect");
        Sent { packets: selected.len(), ..Sent::default() }
    }

    fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// A panic ends one request and its session. The CP function is told and may set the session up again, and N4 serves it
/// and all others.
#[tokio::test(start_paused = true)]
async fn a_defect_costs_the_request_and_its_session() {
    let upf = Upf::with_n3(Defective).await;
    let mut cp = Cp::associated(&upf).await;
    let gnb = |last| IpAddr::from([POISON[0], POISON[1], POISON[2], last]);
    let other = seid_of(&cp.establish(session(1)).await);
    for round in 0..3u8 {
        let seid = seid_of(&cp.establish(session(0)).await);
        assert_eq!(cp.modify(seid, path_switch(1, gnb(round))).await.cause, Cause::ACCEPTED);
        // The path switch back to the ordinary gNB fails: its End Marker goes to the defective network.
        let response = cp.modify(seid, path_switch(2, GNB.into())).await;
        assert_eq!(response.cause, Cause::SESSION_NOT_FOUND);
        // The session is removed with its tunnels and addresses, which the next round uses again.
        assert_eq!(cp.modify(seid, update_far(2, ApplyAction::FORW)).await.cause, Cause::SESSION_NOT_FOUND);
        assert_eq!(upf.ask(Query::Sessions).await.as_array().unwrap().len(), 1);
        assert_eq!(cp.modify(other, update_far(2, ApplyAction::FORW)).await.cause, Cause::ACCEPTED);
        cp.heartbeat().await;
    }
}

/// A session with a tunnel to a peer to which sending panics: the Echo Request fails every minute.
async fn with_a_poisoned_path() -> (Upf, Cp, u64) {
    let upf = Upf::with_n3(Defective).await;
    let mut cp = Cp::associated(&upf).await;
    let seid = seid_of(&cp.establish(session(0)).await);
    let gnb = IpAddr::from([POISON[0], POISON[1], POISON[2], 1]);
    assert_eq!(cp.modify(seid, path_switch(1, gnb)).await.cause, Cause::ACCEPTED);
    (upf, cp, seid)
}

/// Timers that panic are not run again for a moment, and N4 requests are served meanwhile.
#[tokio::test(start_paused = true)]
async fn defects_of_timers_do_not_keep_others_waiting() {
    let (_upf, mut cp, seid) = with_a_poisoned_path().await;
    // The path is checked every minute (TS 29.281 §7.2.1), and each check fails.
    for _ in 0..10 {
        cp.turn(Duration::from_secs(60)).await;
        assert_eq!(cp.modify(seid, update_far(2, ApplyAction::FORW)).await.cause, Cause::ACCEPTED);
    }
    cp.heartbeat().await;
    // The only report is that the peer does not answer.
    let path_failure = |event: &Event| match event {
        Event::Request { message: Message::NodeReportRequest(report), .. } => report.path_failure.is_some(),
        _ => false,
    };
    assert!(!cp.trouble.is_empty() && cp.trouble.iter().all(path_failure), "{:?}", cp.trouble);
}

/// If every action of N4 panics, N4 ends, and the process with it, so that a supervisor starts it again.
#[tokio::test(start_paused = true)]
async fn n4_that_only_fails_ends() {
    let (upf, mut cp, _) = with_a_poisoned_path().await;
    // Three Echo Requests a minute, each of which fails.
    cp.turn(Duration::from_secs(10 * 60)).await;
    assert!(!upf.task.is_finished());
    cp.turn(Duration::from_secs(20 * 60)).await;
    assert!(upf.task.await.unwrap_err().is_panic());
}
