//! One test suite for every binding: the data of an operation arrives, and kinds of failure are
//! distinguished.
//!
//! Each check is a generic function over [`Binding`]; the macro at the end makes a test of every pair.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use sbi::{
    ApiRoot, BinaryPart, CallError, Client, ClientConfig, Created, Initiated, Notification, ProblemDetails,
    ResourceUri, Router, Server, ServerConfig, Stored, Target, callback_uri,
    model::{amf::*, ausf::*, common::*, nrf::*, smf::*, udm::*},
    op::{amf::*, ausf::*, nrf::*, smf::*, udm::*, udr::*},
};
use types::{Key, PduSessionId, Plmn, SNssai, Supi};

/// A way to serve a router and to call it.
trait Binding {
    async fn serve<S: Send + Sync + 'static>(router: Router<S>) -> Server;
    fn client(timeout: Duration) -> Client;
}

struct HttpJson;

impl Binding for HttpJson {
    async fn serve<S: Send + Sync + 'static>(router: Router<S>) -> Server {
        sbi::serve(router, "127.0.0.1:0".parse().unwrap(), ServerConfig::default()).await.unwrap()
    }

    fn client(timeout: Duration) -> Client {
        Client::new(ClientConfig { timeout, ..ClientConfig::default() })
    }
}

const LONG: Duration = Duration::from_secs(20);
/// Octets that would break a careless multipart reader or writer.
const HOSTILE: &[u8] = b"\r\n--\r\n\r\n--boundary--\r\n\0\xff\r\n\r\nContent-Id: n2SmInfo\r\n";

fn supi() -> Supi {
    "imsi-999700000000001".parse().unwrap()
}

fn plmn() -> Plmn {
    Plmn::new("999", "70").unwrap()
}

fn slice() -> SNssai {
    SNssai::new(1, Some(0xabcdef)).unwrap()
}

fn id() -> NfInstanceId {
    NfInstanceId::from_name("test")
}

/// A handler that compares its request with the expected one and answers with a fixed response.
fn expecting<R, T, E>(request: R, response: T) -> impl Fn(Arc<()>, R) -> std::future::Ready<Result<T, E>>
where
    R: PartialEq + std::fmt::Debug + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    move |_, got| {
        assert_eq!(got, request);
        std::future::ready(Ok(response.clone()))
    }
}

async fn parameters_of_every_kind_arrive<B: Binding>() {
    let sm_data = GetSmDataRequest {
        supi: supi(),
        single_nssai: Some(slice()),
        dnn: Some("internet.example".parse().unwrap()),
        plmn_id: Some(plmn()),
        body: (),
    };
    let sm_answer = SmSubsData(vec![SessionManagementSubscriptionData {
        single_nssai: slice(),
        dnn_configurations: BTreeMap::new(),
    }]);
    let bare = GetSmDataRequest { single_nssai: None, dnn: None, plmn_id: None, ..sm_data.clone() };
    let discover = DiscoverNfRequest {
        target_nf_type: NfType::Smf,
        requester_nf_type: NfType::Other("X & Y=Z".into()),
        service_names: Some(vec!["nsmf-pdusession".into(), "nsmf-event-exposure".into()]),
        dnn: Some("ims".parse().unwrap()),
        snssais: Some(vec![slice(), SNssai::new(2, None).unwrap()]),
        target_plmn_list: Some(vec![plmn()]),
        guami: None,
        target_nf_instance_id: Some(id()),
        limit: Some(3),
        body: (),
    };
    let found = SearchResult { validity_period: 5, nf_instances: vec![] };
    let deregister =
        DeregisterSmfRequest { ue_id: supi(), pdu_session_id: PduSessionId::new(7).unwrap(), body: () };
    let plmn_path = QueryAmDataRequest { ue_id: supi(), serving_plmn_id: VarPlmnId(plmn()), body: () };
    let calls = Arc::new(AtomicUsize::new(0));
    let (full, without) = (sm_data.clone(), bare.clone());
    let answer = sm_answer.clone();
    let router = Router::new(Arc::new(()))
        .on::<GetSmData>(move |_: Arc<()>, got: GetSmDataRequest| {
            assert_eq!(got, [&full, &without][calls.fetch_add(1, SeqCst)].clone());
            std::future::ready(Ok(answer.clone()))
        })
        .on::<DiscoverNf>(expecting(discover.clone(), found.clone()))
        .on::<DeregisterSmf>(expecting(deregister.clone(), ()))
        .on::<QueryAmData>(expecting(plmn_path.clone(), AccessAndMobilitySubscriptionData::default()));
    let server = B::serve(router).await;
    let client = B::client(LONG);
    let at = server.address();
    assert_eq!(client.call::<GetSmData>(at, sm_data).await.unwrap(), sm_answer);
    assert_eq!(client.call::<GetSmData>(at, bare).await.unwrap(), sm_answer);
    assert_eq!(client.call::<DiscoverNf>(at, discover).await.unwrap(), found);
    client.call::<DeregisterSmf>(at, deregister).await.unwrap();
    client.call::<QueryAmData>(at, plmn_path).await.unwrap();
}

async fn hostile_path_parameters_stay_one_segment<B: Binding>() {
    let body = AuthenticationInfoRequest {
        serving_network_name: plmn().serving_network_name(),
        resynchronization_info: Some(ResynchronizationInfo {
            rand: Key::new([1; 16]),
            auts: Key::new([2; 14]),
        }),
        ausf_instance_id: id(),
        supported_features: None,
    };
    let supi_or_suci = "suci-0-999/../70?a=b&c#d %2F ü+".to_owned();
    let request = GenerateAuthDataRequest { supi_or_suci, body };
    let answer = AuthenticationInfoResult {
        auth_type: AuthType::FiveGAka,
        authentication_vector: Some(Av5GHeAka {
            av_type: AvType::FiveGHeAka,
            rand: Key::new([3; 16]),
            xres_star: Key::new([4; 16]),
            autn: Key::new([5; 16]),
            kausf: Key::new([6; 32]),
        }),
        supi: Some(supi()),
        supported_features: None,
    };
    let router = Router::new(Arc::new(())).on::<GenerateAuthData>(expecting(request.clone(), answer.clone()));
    let server = B::serve(router).await;
    let got = B::client(LONG).call::<GenerateAuthData>(server.address(), request).await.unwrap();
    assert_eq!(got, answer);
}

async fn created_resources_have_absolute_locations<B: Binding>() {
    let body = AuthenticationInfo {
        supi_or_suci: supi().to_string(),
        serving_network_name: plmn().serving_network_name(),
        resynchronization_info: None,
        pei: None,
        supported_features: None,
    };
    let context = UeAuthenticationCtx {
        auth_type: AuthType::FiveGAka,
        five_g_auth_data: Av5gAka {
            rand: Key::new([1; 16]),
            hxres_star: Key::new([2; 16]),
            autn: Key::new([3; 16]),
        },
        links: BTreeMap::from([("5g-aka".into(), Link { href: "http://x/y".into() })]),
        serving_network_name: None,
    };
    let created = Created { location: "/ue-authentications/a%2Fb".into(), body: context.clone() };
    let confirm = Confirm5gAkaRequest {
        auth_ctx_id: "a/b".into(),
        body: ConfirmationData { res_star: None, supported_features: None },
    };
    let verdict = ConfirmationDataResponse {
        auth_result: AuthResult::Failure,
        supi: None,
        kseaf: None,
        supported_features: None,
    };
    let request = AuthenticateRequest { body };
    let router = Router::new(Arc::new(()))
        .on::<Authenticate>(expecting(request.clone(), created))
        .on::<Confirm5gAka>(expecting(confirm.clone(), verdict.clone()));
    let server = B::serve(router).await;
    let client = B::client(LONG);
    let got = client.call::<Authenticate>(server.address(), request).await.unwrap();
    assert_eq!(got.body, context);
    let resource = ResourceUri::parse(&got.location, &NAUSF_AUTH).unwrap();
    assert_eq!(resource.api_root, ApiRoot::from(server.address()));
    let confirm = Confirm5gAkaRequest { auth_ctx_id: resource.id.clone(), ..confirm };
    assert_eq!(client.call::<Confirm5gAka>(&resource, confirm).await.unwrap(), verdict);
}

async fn every_kind_of_success_is_told_apart<B: Binding>() {
    let registration = SmfRegistration {
        smf_instance_id: id(),
        pdu_session_id: PduSessionId::new(1).unwrap(),
        single_nssai: slice(),
        dnn: None,
        plmn_id: plmn(),
        emergency_services: None,
        registration_time: None,
        supported_features: None,
    };
    let answers = Arc::new(std::sync::Mutex::new(vec![
        Stored::Replaced(None),
        Stored::Replaced(Some(registration.clone())),
        Stored::Created(Created {
            location: "/x/registrations/smf-registrations/1".into(),
            body: registration.clone(),
        }),
    ]));
    let transfer = N1N2MessageTransferRspData {
        cause: N1N2MessageTransferCause::AttemptingToReachUe,
        supported_features: None,
    };
    let pending = Initiated::Pending { location: Some("http://amf/x".into()), body: transfer };
    let pending_answer = pending.clone();
    let router = Router::new(answers)
        .on::<RegisterSmf>(async |answers: Arc<std::sync::Mutex<Vec<_>>>, _| {
            Ok(answers.lock().unwrap().pop().unwrap())
        })
        .on::<N1N2MessageTransfer>(move |_, _: N1N2MessageTransferRequest| {
            std::future::ready(Ok(pending_answer.clone()))
        })
        .on::<UpdateSmContext>(|_, request: UpdateSmContextRequest| {
            let data = SmContextUpdatedData { data_forwarding: Some(true), ..Default::default() };
            std::future::ready(Ok((request.sm_context_ref == "content").then_some(data)))
        })
        .on::<ReleaseSmContext>(|_, request: ReleaseSmContextRequest| {
            assert_eq!(request.body.is_some(), request.sm_context_ref == "content");
            std::future::ready(Ok(()))
        });
    let server = B::serve(router).await;
    let (client, at) = (B::client(LONG), server.address());
    let register = RegisterSmfRequest {
        ue_id: supi(),
        pdu_session_id: registration.pdu_session_id,
        body: registration.clone(),
    };
    let Stored::Created(created) = client.call::<RegisterSmf>(at, register.clone()).await.unwrap() else {
        panic!("201 expected")
    };
    assert!(
        created.location.ends_with("/nudm-uecm/v1/x/registrations/smf-registrations/1"),
        "{}",
        created.location
    );
    assert_eq!(
        client.call::<RegisterSmf>(at, register.clone()).await.unwrap(),
        Stored::Replaced(Some(registration))
    );
    assert_eq!(client.call::<RegisterSmf>(at, register).await.unwrap(), Stored::Replaced(None));
    let request = N1N2MessageTransferRequest { ue_context_id: "x".into(), body: Default::default() };
    assert_eq!(client.call::<N1N2MessageTransfer>(at, request).await.unwrap(), pending);
    for with_content in [true, false] {
        let sm_context_ref = if with_content { "content" } else { "none" }.to_owned();
        let update =
            UpdateSmContextRequest { sm_context_ref: sm_context_ref.clone(), body: Default::default() };
        assert_eq!(client.call::<UpdateSmContext>(at, update).await.unwrap().is_some(), with_content);
        let release = ReleaseSmContextRequest { sm_context_ref, body: with_content.then(Default::default) };
        client.call::<ReleaseSmContext>(at, release).await.unwrap();
    }
}

async fn binary_parts_arrive_whole<B: Binding>() {
    for (n1, n2) in
        [(None, Some(HOSTILE)), (Some(HOSTILE), None), (Some(HOSTILE), Some(&[][..])), (None, None)]
    {
        let part = |octets: Option<&'static [u8]>| octets.map(BinaryPart::from);
        let body = SmContextUpdateData {
            n1_sm_msg: part(n1),
            n2_sm_info: part(n2),
            n2_sm_info_type: Some(N2SmInfoType::PduResSetupRsp),
            ..Default::default()
        };
        let router =
            Router::new(Arc::new(())).on::<UpdateSmContext>(move |_, request: UpdateSmContextRequest| {
                let octets = |part: &Option<BinaryPart>| part.as_ref().map(|p| p.bytes().clone());
                assert_eq!(octets(&request.body.n1_sm_msg).as_deref(), n1);
                assert_eq!(octets(&request.body.n2_sm_info).as_deref(), n2);
                let (n1_sm_msg, n2_sm_info) = (part(n2), part(n1));
                std::future::ready(Ok(Some(SmContextUpdatedData {
                    n1_sm_msg,
                    n2_sm_info,
                    ..Default::default()
                })))
            });
        let server = B::serve(router).await;
        let request = UpdateSmContextRequest { sm_context_ref: "1".into(), body };
        let answer =
            B::client(LONG).call::<UpdateSmContext>(server.address(), request).await.unwrap().unwrap();
        assert_eq!(answer.n1_sm_msg.map(BinaryPart::into_bytes).as_deref(), n2);
        assert_eq!(answer.n2_sm_info.map(BinaryPart::into_bytes).as_deref(), n1);
    }
}

async fn nested_parts_arrive_in_their_places<B: Binding>() {
    let content = N2InfoContent {
        ngap_message_type: None,
        ngap_ie_type: Some(N2SmInfoType::PduResSetupReq),
        ngap_data: BinaryPart::from(&b"ngap"[..]),
    };
    let body = N1N2MessageTransferReqData {
        n1_message_container: Some(N1MessageContainer {
            n1_message_class: N1MessageClass::Sm,
            n1_message_content: BinaryPart::from(&b"nas"[..]),
            nf_id: None,
        }),
        n2_info_container: Some(N2InfoContainer {
            n2_information_class: N2InformationClass::Sm,
            sm_info: Some(N2SmInformation {
                pdu_session_id: PduSessionId::new(5).unwrap(),
                n2_info_content: Some(content),
                s_nssai: Some(slice()),
                subject_to_ho: None,
            }),
        }),
        pdu_session_id: PduSessionId::new(5).ok(),
        ..Default::default()
    };
    let router =
        Router::new(Arc::new(())).on::<N1N2MessageTransfer>(|_, request: N1N2MessageTransferRequest| {
            let n1 = request.body.n1_message_container.unwrap().n1_message_content;
            let n2 = request.body.n2_info_container.unwrap().sm_info.unwrap().n2_info_content.unwrap();
            assert_eq!((&n1.bytes()[..], &n2.ngap_data.bytes()[..]), (&b"nas"[..], &b"ngap"[..]));
            let cause = N1N2MessageTransferCause::Initiated;
            std::future::ready(Ok(Initiated::Done(N1N2MessageTransferRspData {
                cause,
                supported_features: None,
            })))
        });
    let server = B::serve(router).await;
    let request = N1N2MessageTransferRequest { ue_context_id: supi().to_string(), body };
    let answer = B::client(LONG).call::<N1N2MessageTransfer>(server.address(), request).await.unwrap();
    assert_eq!(answer.body().cause, N1N2MessageTransferCause::Initiated);
}

fn create_context() -> CreateSmContextRequest {
    let body = SmContextCreateData {
        supi: Some(supi()),
        unauthenticated_supi: None,
        pei: None,
        gpsi: None,
        pdu_session_id: PduSessionId::new(1).ok(),
        dnn: None,
        selected_dnn: None,
        s_nssai: Some(slice()),
        hplmn_snssai: None,
        serving_nf_id: id(),
        guami: None,
        service_name: None,
        serving_network: plmn(),
        request_type: Some(RequestType::InitialRequest),
        n1_sm_msg: Some(BinaryPart::from(&b"establishment request"[..])),
        an_type: AccessType::ThreeGpp,
        rat_type: Some(RatType::Nr),
        ue_location: None,
        ue_time_zone: None,
        sm_context_status_uri: "http://amf/x".into(),
        old_pdu_session_id: None,
        pcf_id: None,
        sel_mode: None,
        supported_features: None,
    };
    CreateSmContextRequest { body }
}

async fn refusals_carry_causes_and_parts<B: Binding>() {
    let router = Router::new(Arc::new(()))
        .on::<CreateSmContext>(|_, _: CreateSmContextRequest| {
            let error = ProblemDetails::forbidden("DNN_DENIED").detail("not subscribed");
            let n1_sm_msg = Some(BinaryPart::from(&b"reject"[..]));
            std::future::ready(Err(SmContextCreateError { n1_sm_msg, ..error.into() }))
        })
        .on::<UpdateSmContext>(|_, _: UpdateSmContextRequest| {
            std::future::ready(Err(ProblemDetails::context_not_found().into()))
        })
        .on::<GetAmData>(|_, _: GetAmDataRequest| std::future::ready(Err(ProblemDetails::user_not_found())));
    let server = B::serve(router).await;
    let (client, at) = (B::client(LONG), server.address());
    let error = client.call::<CreateSmContext>(at, create_context()).await.unwrap_err();
    assert!(error.is("DNN_DENIED"));
    assert_eq!(error.status(), Some(403));
    let reject = error.refusal().unwrap();
    assert_eq!(reject.error.detail.as_deref(), Some("not subscribed"));
    assert_eq!(&reject.n1_sm_msg.as_ref().unwrap().bytes()[..], b"reject");
    let update = UpdateSmContextRequest { sm_context_ref: "9".into(), body: Default::default() };
    let error = client.call::<UpdateSmContext>(at, update).await.unwrap_err();
    assert_eq!((error.status(), error.is("CONTEXT_NOT_FOUND")), (Some(404), true));
    let request = GetAmDataRequest { supi: supi(), plmn_id: None, body: () };
    let error = client.call::<GetAmData>(at, request).await.unwrap_err();
    assert!(matches!(&error, CallError::Problem { error, .. } if *error == ProblemDetails::user_not_found()));
}

async fn notifications_reach_the_uri_that_was_given<B: Binding>() {
    let (sender, mut received) = tokio::sync::mpsc::channel(1);
    let router = Router::new(Arc::new(sender)).on::<SmContextStatusNotify>(
        |sender: Arc<tokio::sync::mpsc::Sender<_>>,
         notification: Notification<SmContextStatusNotification>| async move {
            sender.send(notification).await.unwrap();
            Ok(())
        },
    );
    assert_eq!(router.services(), [], "callbacks are not offered in NRF");
    let server = B::serve(router).await;
    let root = ApiRoot::from(server.address());
    let uri = callback_uri::<SmContextStatusNotify>(root.as_str(), "imsi-1/5");
    let status_info = StatusInfo {
        resource_status: ResourceStatus::Released,
        cause: Some(Cause::RelDueToHo),
        an_type: None,
    };
    let body = SmContextStatusNotification { status_info };
    let client = B::client(LONG);
    client.notify::<SmContextStatusNotify>(&uri, body.clone()).await.unwrap();
    assert_eq!(received.recv().await.unwrap(), Notification { id: "imsi-1/5".into(), body: body.clone() });
    for bad in ["", "http://", "https://x/y", "amf", "http://a b/c"] {
        let error = client.notify::<SmContextStatusNotify>(bad, body.clone()).await.unwrap_err();
        assert!(matches!(error, CallError::Unreachable { .. }), "{bad}: {error}");
    }
}

async fn answers_reach_the_right_caller_under_load<B: Binding>() {
    let router =
        Router::new(Arc::new(())).on::<GetSmfSelectData>(async |_, request: GetSmfSelectDataRequest| {
            // Some answers overtake others.
            if request.supi.to_string().ends_with('7') {
                net::time::sleep(Duration::from_millis(20)).await;
            }
            let supported_features = Some(request.supi.to_string());
            Ok(SmfSelectionSubscriptionData { supported_features, ..Default::default() })
        });
    let server = B::serve(router).await;
    let client = B::client(LONG);
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..2000 {
        let (client, at) = (client.clone(), server.address());
        calls.spawn(async move {
            let supi: Supi = format!("imsi-99970{n:010}").parse().unwrap();
            let request = GetSmfSelectDataRequest { supi, plmn_id: None, body: () };
            let answer = client.call::<GetSmfSelectData>(at, request).await.unwrap();
            assert_eq!(answer.supported_features, Some(supi.to_string()));
        });
    }
    let mut done = 0;
    while let Some(result) = calls.join_next().await {
        result.unwrap();
        done += 1;
    }
    assert_eq!(done, 2000);
}

async fn a_slow_handler_times_out_and_holds_nobody_up<B: Binding>() {
    let router = Router::new(Arc::new(()))
        .on::<GetAmData>(async |_, _: GetAmDataRequest| std::future::pending().await)
        .on::<GetNssai>(|_, _: GetNssaiRequest| std::future::ready(Err(ProblemDetails::user_not_found())));
    let server = B::serve(router).await;
    let at = server.address();
    let slow_request = || GetAmDataRequest { supi: supi(), plmn_id: None, body: () };
    // The handler never answers: whenever the quick one answers, the slow one is still waiting.
    let client = B::client(LONG);
    let slow = {
        let client = client.clone();
        tokio::spawn(async move { client.call::<GetAmData>(at, slow_request()).await })
    };
    let request = GetNssaiRequest { supi: supi(), plmn_id: None, body: () };
    let quick = client.call::<GetNssai>(at, request).await.unwrap_err();
    assert!(quick.is("USER_NOT_FOUND"), "{quick}");
    assert!(!slow.is_finished());
    slow.abort();
    let impatient = B::client(Duration::from_millis(200)).call::<GetAmData>(at, slow_request()).await;
    assert!(matches!(impatient, Err(CallError::Timeout { .. })), "{impatient:?}");
}

async fn a_peer_that_is_down_is_unreachable_at_once_and_found_again<B: Binding>() {
    let nssai = || async |_: Arc<()>, _: GetNssaiRequest| Err(ProblemDetails::user_not_found());
    let server = B::serve(Router::new(Arc::new(())).on::<GetNssai>(nssai())).await;
    let at = server.address();
    let client = B::client(LONG);
    let request = || GetNssaiRequest { supi: supi(), plmn_id: None, body: () };
    assert!(client.call::<GetNssai>(at, request()).await.unwrap_err().is("USER_NOT_FOUND"));
    server.stop().await;
    let started = net::time::now();
    let error = client.call::<GetNssai>(at, request()).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
    assert!(net::time::now() - started < LONG / 2, "must not wait for the timeout");
    let router = Router::new(Arc::new(())).on::<GetNssai>(nssai());
    let _again = sbi::serve(router, at, ServerConfig::default()).await.unwrap();
    assert!(client.call::<GetNssai>(at, request()).await.unwrap_err().is("USER_NOT_FOUND"));
}

async fn stopping_lets_requests_finish<B: Binding>() {
    let started = Arc::new(tokio::sync::Notify::new());
    let router = Router::new(started.clone()).on::<GetNssai>(async |started: Arc<tokio::sync::Notify>, _| {
        started.notify_one();
        net::time::sleep(Duration::from_millis(100)).await;
        Err(ProblemDetails::user_not_found())
    });
    let server = B::serve(router).await;
    let (client, at) = (B::client(LONG), server.address());
    let request = GetNssaiRequest { supi: supi(), plmn_id: None, body: () };
    let call = tokio::spawn(async move { client.call::<GetNssai>(at, request).await });
    started.notified().await;
    server.stop().await;
    assert!(call.await.unwrap().unwrap_err().is("USER_NOT_FOUND"));
}

async fn discovery_needs_a_source<B: Binding>() {
    let request = GetNssaiRequest { supi: supi(), plmn_id: None, body: () };
    let error = B::client(LONG).call::<GetNssai>(Target::Discover, request).await.unwrap_err();
    assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
}

/// Makes a test of every check for a binding.
macro_rules! conformance {
    ($module:ident, $binding:ty: $($check:ident),* $(,)?) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                super::$check::<$binding>().await;
            })*
        }
    };
}

conformance!(http_json, super::HttpJson:
    parameters_of_every_kind_arrive,
    hostile_path_parameters_stay_one_segment,
    created_resources_have_absolute_locations,
    every_kind_of_success_is_told_apart,
    binary_parts_arrive_whole,
    nested_parts_arrive_in_their_places,
    refusals_carry_causes_and_parts,
    notifications_reach_the_uri_that_was_given,
    answers_reach_the_right_caller_under_load,
    a_slow_handler_times_out_and_holds_nobody_up,
    a_peer_that_is_down_is_unreachable_at_once_and_found_again,
    stopping_lets_requests_finish,
    discovery_needs_a_source,
);
