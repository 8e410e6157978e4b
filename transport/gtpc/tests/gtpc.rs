//! Two ends of GTP-C over loopback.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::Ipv4Addr;
use std::time::Duration;

use gtpc::{Config, Counts, Gtpc, GtpcError, GtpcEvent, Outcome};
use gtpv2c::endpoint::{Failure, PORT};
use gtpv2c::message::*;
use gtpv2c::value::*;
use telemetry::counters::{Counter, Family};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

static COUNTS: Counts = Counts {
    failures: Family::new("test_gtpc_failure", "cause"),
    events_dropped: Counter::new("test_gtpc_events_dropped"),
    watch_refused: Counter::new("test_gtpc_watch_refused"),
};

struct End {
    gtpc: Gtpc,
    events: mpsc::Receiver<GtpcEvent>,
    tasks: JoinSet<()>,
}

async fn end(test: u8, host: u8) -> End {
    started(test, host, host, &COUNTS).await
}

async fn started(test: u8, host: u8, restart_counter: u8, counts: &'static Counts) -> End {
    let config = Config {
        address: (Ipv4Addr::new(127, 12, test, host), PORT).into(),
        restart_counter: Recovery(restart_counter),
        t3_response: Duration::from_millis(100),
        n3_requests: 2,
        echo_interval: Duration::from_secs(60),
        counts,
    };
    let mut tasks = JoinSet::new();
    let (gtpc, events) = Gtpc::start(config, &mut tasks).await.unwrap();
    End { gtpc, events, tasks }
}

impl End {
    fn f_teid(&self, teid: u32) -> FTeid {
        FTeid::new(InterfaceType::S11_MME, teid, self.gtpc.local().ip())
    }

    async fn event(&mut self) -> GtpcEvent {
        net::time::timeout(Duration::from_secs(5), self.events.recv()).await.unwrap().unwrap()
    }
}

fn command() -> DeleteBearerCommand {
    let bearer = gtpv2c::BearerInDeleteCommand { ebi: Ebi(6), ..Default::default() };
    DeleteBearerCommand { bearers: vec![bearer], ..Default::default() }
}

#[tokio::test]
async fn a_request_gets_its_answer() {
    let (mme, mut sgw) = (end(1, 1).await, end(1, 2).await);
    let (to, peer) = (sgw.gtpc.local(), sgw.f_teid(7));
    let serve = async {
        let GtpcEvent::Request { id, teid: 7, message: Message::ReleaseAccessBearersRequest(_) } =
            sgw.event().await
        else {
            panic!()
        };
        let cause = CauseValue::ACCEPTED.into();
        sgw.gtpc.respond(id, 9, ReleaseAccessBearersResponse { cause, ..Default::default() });
        let GtpcEvent::Request { id, .. } = sgw.event().await else { panic!() };
        sgw.gtpc.reject(id, 9, CauseValue::NO_RESOURCES);
    };
    let ask = async {
        let first = mme.gtpc.exchange(to, 7, ReleaseAccessBearersRequest::default()).await.unwrap();
        (first, mme.gtpc.request(peer, ReleaseAccessBearersRequest::default()).await.unwrap())
    };
    let ((first, second), ()) = tokio::join!(ask, serve);
    let cause = |message| match message {
        Message::ReleaseAccessBearersResponse(response) => response.cause.value,
        other => panic!("{other:?}"),
    };
    assert_eq!((first.teid, cause(first.message)), (9, CauseValue::ACCEPTED));
    assert_eq!(cause(second), CauseValue::NO_RESOURCES);
}

#[tokio::test]
async fn a_command_ends_with_the_request_that_it_triggers_or_a_refusal() {
    let (mme, mut sgw) = (end(2, 1).await, end(2, 2).await);
    let to = sgw.gtpc.local();
    let back = mme.f_teid(9);
    let serve = async {
        let GtpcEvent::Request { id, .. } = sgw.event().await else { panic!() };
        let request = DeleteBearerRequest { ebis: vec![Ebi(6)], ..Default::default() };
        let answer = sgw.gtpc.request_triggered(id, back, request).await.unwrap();
        assert!(matches!(answer, Message::DeleteBearerResponse(_)), "{answer:?}");
        let GtpcEvent::Request { id, .. } = sgw.event().await else { panic!() };
        sgw.gtpc.reject(id, 9, CauseValue::CONTEXT_NOT_FOUND);
    };
    let ask = async {
        let outcome = mme.gtpc.command(to, 7, command()).await.unwrap();
        let Outcome::Triggered { id, teid: 9, message: Message::DeleteBearerRequest(_) } = outcome else {
            panic!("{outcome:?}")
        };
        let cause = CauseValue::ACCEPTED.into();
        mme.gtpc.respond(id, 7, DeleteBearerResponse { cause, ..Default::default() });
        mme.gtpc.command(to, 7, command()).await.unwrap()
    };
    let (refused, ()) = tokio::join!(ask, serve);
    let Outcome::Refused(answer) = refused else { panic!("{refused:?}") };
    let Message::DeleteBearerFailureIndication(refusal) = answer.message else { panic!() };
    assert_eq!(refusal.cause.value, CauseValue::CONTEXT_NOT_FOUND);
}

#[tokio::test]
async fn a_triggered_request_that_nobody_waits_for_any_more_is_an_event() {
    let (mut mme, mut sgw) = (end(3, 1).await, end(3, 2).await);
    let (to, back) = (sgw.gtpc.local(), mme.f_teid(9));
    let id = {
        let command = std::pin::pin!(mme.gtpc.command(to, 7, command()));
        tokio::select! {
            outcome = command => panic!("{outcome:?}"),
            event = sgw.event() => match event {
                GtpcEvent::Request { id, .. } => id,
                other => panic!("{other:?}"),
            },
        }
    };
    let request = DeleteBearerRequest { ebis: vec![Ebi(6)], ..Default::default() };
    let answer = async {
        let GtpcEvent::Request { id, teid: 9, .. } = mme.event().await else { panic!() };
        mme.gtpc.reject(id, 7, CauseValue::CONTEXT_NOT_FOUND);
    };
    let (answered, ()) = tokio::join!(sgw.gtpc.request_triggered(id, back, request), answer);
    assert!(matches!(answered, Ok(Message::DeleteBearerResponse(_))), "{answered:?}");
}

#[tokio::test]
async fn a_silent_peer_is_given_up() {
    let mme = end(4, 1).await;
    let peer = FTeid::new(InterfaceType::S11_S4_SGW, 7, Ipv4Addr::new(127, 12, 4, 2).into());
    let _silent = net::udp::bind((Ipv4Addr::new(127, 12, 4, 2), PORT).into()).await.unwrap();
    let answer = mme.gtpc.request(peer, ReleaseAccessBearersRequest::default()).await;
    assert_eq!(answer.unwrap_err(), GtpcError::Failed(Failure::TimedOut));
    assert!(COUNTS.failures.get("timeout") >= 1);
    assert_eq!(mme.gtpc.counters().retransmissions, 1);
}

#[tokio::test]
async fn requests_end_when_gtp_c_stops() {
    let (mut mme, mut sgw) = (end(5, 1).await, end(5, 2).await);
    let (to, gtpc) = (sgw.gtpc.local(), mme.gtpc.clone());
    let request = async { gtpc.exchange(to, 7, ReleaseAccessBearersRequest::default()).await };
    let command = async { gtpc.command(to, 7, command()).await };
    let stop = async {
        sgw.event().await;
        sgw.event().await;
        mme.tasks.shutdown().await;
    };
    // T3-RESPONSE has not passed yet.
    let all = async { tokio::join!(request, command, stop) };
    let (request, command, ()) = net::time::timeout(Duration::from_secs(5), all).await.expect("they end");
    assert_eq!((request, command), (Err(GtpcError::Stopped), Err(GtpcError::Stopped)));
    let later = mme.gtpc.exchange(to, 7, ReleaseAccessBearersRequest::default()).await;
    assert_eq!(later, Err(GtpcError::Stopped));
}

/// The owner is slow and more messages come than the queue has room for.
#[tokio::test]
async fn a_restart_of_a_peer_is_told_although_the_queue_is_full() {
    static COUNTS: Counts = Counts {
        failures: Family::new("test_gtpc_full_failure", "cause"),
        events_dropped: Counter::new("test_gtpc_full_events_dropped"),
        watch_refused: Counter::new("test_gtpc_full_watch_refused"),
    };
    let mut sgw = started(6, 2, 2, &COUNTS).await;
    let mut mme = started(6, 1, 1, &COUNTS).await;
    let peer = mme.gtpc.local();
    sgw.gtpc.watch(peer.ip());
    // An answer shows that the Echo Response before it has been read.
    sgw.gtpc.exchange(peer, 0, ReleaseAccessBearersRequest::default()).await.unwrap_err();

    let cause = CauseValue::UE_NOT_RESPONDING.into();
    let noise = DownlinkDataNotificationFailureIndication { cause, ..Default::default() };
    while COUNTS.events_dropped.get() == 0 {
        for _ in 0..64 {
            mme.gtpc.indicate(sgw.gtpc.local(), 7, noise.clone());
        }
        tokio::task::yield_now().await;
    }
    mme.tasks.shutdown().await;
    drop(mme);
    let mme = started(6, 1, 9, &COUNTS).await;
    // Its counter makes the gateway ask for it, and the answer finds no room.
    let recovery = Some(Recovery(9));
    let request = ReleaseAccessBearersRequest::default();
    let modify = ModifyBearerRequest { recovery, ..Default::default() };
    mme.gtpc.exchange(sgw.gtpc.local(), 7, modify).await.unwrap();
    mme.gtpc.exchange(sgw.gtpc.local(), 7, request).await.unwrap();
    net::time::sleep(Duration::from_millis(50)).await;
    let restarted = loop {
        match sgw.event().await {
            GtpcEvent::PeerRestarted { peer, .. } => break peer,
            GtpcEvent::Indication { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(restarted, peer.ip());
}

#[tokio::test]
async fn peers_that_are_not_watched_are_counted() {
    static COUNTS: Counts = Counts {
        failures: Family::new("test_gtpc_many_failure", "cause"),
        events_dropped: Counter::new("test_gtpc_many_events_dropped"),
        watch_refused: Counter::new("test_gtpc_many_watch_refused"),
    };
    let sgw = started(7, 2, 2, &COUNTS).await;
    for number in 0..4098u16 {
        let [high, low] = number.to_be_bytes();
        sgw.gtpc.watch(Ipv4Addr::new(127, 13, high, low).into());
    }
    assert_eq!(COUNTS.watch_refused.get(), 2);
}
