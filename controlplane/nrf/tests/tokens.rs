//! Access tokens between real NFs: who gets which token, what a token permits, and what survives a
//! restart.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use nf::{Env, Instance, Oam, Running, Trust, TrustError, security::Config as Security};
use nrf::Config;
use sbi::{
    CallError, Client, ClientConfig, Credentials, ProblemDetails, Router, Target,
    access::{AccessTokenClaims, AssertionClaims, Audience, Secret, SigningKey},
    model::{
        common::{NfInstanceId, Patch},
        nrf::*,
        pcf::{PolicyUpdate, SmPolicyNotification, TerminationNotification},
        udm::{ModificationNotification, SdmSubscription},
        udr::{DataChangeNotify, SubscriptionDataSubscriptions},
    },
    op::{nrf::*, pcf::*, udm::*, udr::*},
    operation::{Callback, callback_uri},
};

fn security(folder: &Path) -> Security {
    Security { trust: folder.join("trust"), ..Security::default() }
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 78, last], 7777))
}

/// A folder, an environment with tokens, and the NRF.
struct World {
    folder: tempfile::TempDir,
    env: Env,
    nrf: Running,
    at: SocketAddr,
}

impl World {
    async fn start(last: u8, token_s: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = address(last);
        let env = Env::new(folder.path(), Some(at.into())).secured(&security(folder.path()), true).unwrap();
        let nrf = nrf::start(Config { sbi: at, token_s, ..Config::default() }, env.clone()).await.unwrap();
        Self { folder, env, nrf, at }
    }

    /// A stand-in for the UDR: it answers every admitted request with 404.
    async fn udr(&self, last: u8) -> Running {
        let instance = Instance::bind(NfType::Udr, address(last), &self.env).await.unwrap();
        let router = Router::new(Arc::new(()))
            .on::<QueryAuthSubscription>(async |_: Arc<()>, _| Err(ProblemDetails::user_not_found()))
            .on::<QueryAmData>(async |_: Arc<()>, _| Err(ProblemDetails::user_not_found()))
            .on::<QueryAmPolicyData>(async |_: Arc<()>, _| Err(ProblemDetails::user_not_found()))
            .on::<PutSdmSubscription>(async |_: Arc<()>, _| Err(ProblemDetails::user_not_found()))
            .on::<SubscribeToData>(async |_: Arc<()>, _| Err(ProblemDetails::user_not_found()));
        instance.start(router, Oam::new()).unwrap()
    }

    fn token_request(&self, nf_type: NfType, target: NfType, scope: &str) -> AccessTokenReq {
        let trust = self.env.trust.as_ref().unwrap();
        let id = test_id(&nf_type);
        let secret = trust.secret(&nf_type).unwrap();
        AccessTokenReq {
            grant_type: AccessTokenReq::CLIENT_CREDENTIALS.to_owned(),
            nf_instance_id: id,
            nf_type: Some(nf_type),
            target_nf_type: Some(target),
            scope: scope.to_owned(),
            target_nf_instance_id: None,
            client_assertion_type: Some(AccessTokenReq::JWT_BEARER.to_owned()),
            client_assertion: Some(secret.sign(&AssertionClaims::new(id, net::time::wall_clock())).into()),
        }
    }

    async fn ask(&self, body: AccessTokenReq) -> Result<AccessTokenRsp, CallError<AccessTokenErr>> {
        let client = Client::new(ClientConfig::default());
        client.call::<RequestToken>(self.at, RequestTokenRequest { body }).await
    }
}

/// The instance for which [`World::token_request`] asks.
fn test_id(nf_type: &NfType) -> NfInstanceId {
    NfInstanceId::from_name(&format!("a test as {nf_type}"))
}

fn auth_data() -> QueryAuthSubscriptionRequest {
    QueryAuthSubscriptionRequest { ue_id: "imsi-999700000000001".parse().unwrap(), body: () }
}

fn am_data() -> QueryAmDataRequest {
    let (ue_id, serving_plmn_id) = ("imsi-999700000000001".parse().unwrap(), "99970".parse().unwrap());
    QueryAmDataRequest { ue_id, serving_plmn_id, body: () }
}

fn policy_data() -> QueryAmPolicyDataRequest {
    QueryAmPolicyDataRequest { ue_id: "imsi-999700000000001".parse().unwrap(), body: () }
}

fn subscription() -> SdmSubscription {
    SdmSubscription {
        nf_instance_id: NfInstanceId::from_random(1),
        callback_reference: "http://127.0.78.42:1/x".to_owned(),
        monitored_resource_uris: vec![],
        implicit_unsubscribe: None,
        expires: None,
        single_nssai: None,
        dnn: None,
        plmn_id: None,
        subscription_id: None,
        supported_features: None,
    }
}

fn sdm_subscription() -> PutSdmSubscriptionRequest {
    let (ue_id, subs_id) = ("imsi-999700000000001".parse().unwrap(), "1".to_owned());
    PutSdmSubscriptionRequest { ue_id, subs_id, body: subscription() }
}

fn data_subscription() -> SubscribeToDataRequest {
    let callback_reference = "http://127.0.78.42:1/x".to_owned();
    let body =
        SubscriptionDataSubscriptions { ue_id: None, callback_reference, monitored_resource_uris: vec![] };
    SubscribeToDataRequest { body }
}

/// `error` of a refused request for a token.
fn error(answer: Result<AccessTokenRsp, CallError<AccessTokenErr>>) -> String {
    answer.unwrap_err().refusal().unwrap().error.clone()
}

#[tokio::test]
async fn credentials_are_for_the_udm_and_nothing_is_for_strangers() {
    let world = World::start(1, 3600).await;
    let udr = world.udr(2).await;
    udr.registered().await;
    let (udm, pcf) = (world.env.client(NfType::Udm).unwrap(), world.env.client(NfType::Pcf).unwrap());
    let reached = |error: CallError| error.is("USER_NOT_FOUND");
    assert!(reached(udm.call::<QueryAuthSubscription>(Target::Discover, auth_data()).await.unwrap_err()));
    assert!(reached(udm.call::<QueryAmData>(Target::Discover, am_data()).await.unwrap_err()));
    assert!(reached(pcf.call::<QueryAmPolicyData>(Target::Discover, policy_data()).await.unwrap_err()));
    let refused = pcf.call::<QueryAuthSubscription>(Target::Discover, auth_data()).await.unwrap_err();
    assert_eq!((refused.status(), refused.is("INSUFFICIENT_SCOPE")), (Some(403), true), "{refused}");
    // Policies are for the PCF, and subscriptions with those who want to hear of them for the UDM.
    let refused = [
        udm.call::<QueryAmPolicyData>(Target::Discover, policy_data()).await.unwrap_err().status(),
        pcf.call::<QueryAmData>(Target::Discover, am_data()).await.unwrap_err().status(),
        pcf.call::<PutSdmSubscription>(Target::Discover, sdm_subscription()).await.unwrap_err().status(),
        pcf.call::<SubscribeToData>(Target::Discover, data_subscription()).await.unwrap_err().status(),
    ];
    assert_eq!(refused, [Some(403); 4]);
    // The AMF does not use the UDR: it gets no token for it.
    let amf = world.env.client(NfType::Amf).unwrap();
    let refused =
        amf.call::<QueryAuthSubscription>(Target::At(udr.sbi().into()), auth_data()).await.unwrap_err();
    assert!(refused.to_string().contains("invalid_scope"), "{refused}");
    // A client without token may call neither the UDR nor the NRF.
    let stranger = Client::new(ClientConfig::default());
    let refused = stranger.call::<QueryAuthSubscription>(udr.sbi(), auth_data()).await.unwrap_err();
    assert_eq!((refused.status(), refused.is("ACCESS_TOKEN_MISSING")), (Some(401), true));
    let list = ListNfRequest { nf_type: None, limit: None, body: () };
    assert_eq!(stranger.call::<ListNf>(world.at, list).await.unwrap_err().status(), Some(401));
    udr.stop().await;
    world.nrf.stop().await;
}

#[tokio::test]
async fn a_token_says_who_for_whom_and_how_long() {
    let world = World::start(11, 120).await;
    let answer = world.ask(world.token_request(NfType::Udm, NfType::Udr, "nudr-dr")).await.unwrap();
    assert_eq!((answer.token_type.as_str(), answer.expires_in), ("Bearer", Some(120)));
    // The token has more scopes than requested: a UDM that does not know resource-level scopes gets
    // those of its type.
    let scope = format!("nudr-dr {SUBSCRIPTION_DATA} {MODIFY_CREDENTIALS} {READ_CREDENTIALS}");
    assert_eq!(answer.scope.as_ref(), Some(&scope));
    let key = world.env.trust.as_ref().unwrap().verifying_key();
    let claims = key.verify(answer.access_token.expose()).unwrap();
    assert_eq!(claims.iss, world.nrf.id().to_string());
    assert_eq!(claims.sub, test_id(&NfType::Udm));
    assert_eq!(claims.aud, Audience::Type("UDR".to_owned()));
    assert_eq!((claims.scope, claims.nf_type), (scope, Some(NfType::Udm)));
    let life = claims.exp - sbi::access::jws::seconds(net::time::wall_clock());
    assert!((110..=120).contains(&life), "{life}");
    // Formatting the answer does not show the token.
    assert!(!format!("{answer:?}").contains(answer.access_token.expose()));
    world.nrf.stop().await;
}

#[tokio::test]
async fn the_nrf_grants_only_what_the_standard_has_and_only_to_those_who_prove_themselves() {
    let world = World::start(21, 3600).await;
    let request = |nf, target, scope| world.token_request(nf, target, scope);
    for (nf, target, scope) in [
        (NfType::Amf, NfType::Udr, "nudr-dr"),
        (NfType::Amf, NfType::Udm, "nudm-ueau"),
        (NfType::Smf, NfType::Ausf, "nausf-auth"),
        (NfType::Pcf, NfType::Udr, READ_CREDENTIALS),
        (NfType::Pcf, NfType::Udr, SUBSCRIPTION_DATA),
        (NfType::Pcf, NfType::Udm, "nudm-sdm"),
        (NfType::Amf, "CALLBACK".parse().unwrap(), "npcf-callback"),
        (NfType::Udm, "CALLBACK".parse().unwrap(), "nnrf-callback"),
        (NfType::Udm, "CALLBACK".parse().unwrap(), "nudr-callback"),
        (NfType::Udm, NfType::Udm, "nudr-dr"),
        (NfType::Udm, NfType::Udr, "nudr-dr nausf-auth"),
        (NfType::Udm, NfType::Udr, ""),
        (NfType::Udm, NfType::Udr, "unknown-service"),
        (NfType::Amf, "CALLBACK".parse().unwrap(), "nudm-callback"),
        (NfType::Udm, NfType::Amf, "nudm-callback"),
    ] {
        let answer = world.ask(request(nf.clone(), target, scope)).await;
        assert_eq!(error(answer), "invalid_scope", "{nf} {scope}");
    }
    let good = || request(NfType::Udm, NfType::Udr, "nudr-dr");
    let other_secret = request(NfType::Amf, NfType::Udr, "nudr-dr").client_assertion;
    let expired = {
        let trust = world.env.trust.as_ref().unwrap();
        let past = net::time::wall_clock() - Duration::from_secs(200);
        let claims = AssertionClaims::new(good().nf_instance_id, past);
        trust.secret(&NfType::Udm).unwrap().sign(&claims)
    };
    for (what, body) in [
        ("no assertion", AccessTokenReq { client_assertion: None, ..good() }),
        ("no type of assertion", AccessTokenReq { client_assertion_type: None, ..good() }),
        ("the AMF's secret", AccessTokenReq { client_assertion: other_secret, ..good() }),
        ("another instance", AccessTokenReq { nf_instance_id: NfInstanceId::from_random(3), ..good() }),
        ("an old assertion", AccessTokenReq { client_assertion: Some(expired.into()), ..good() }),
        ("nonsense", AccessTokenReq { client_assertion: Some("a.b.c".to_owned().into()), ..good() }),
    ] {
        assert_eq!(error(world.ask(body).await), "invalid_client", "{what}");
    }
    let body = AccessTokenReq { grant_type: "password".to_owned(), ..good() };
    assert_eq!(error(world.ask(body).await), "unsupported_grant_type");
    let body = AccessTokenReq { target_nf_type: None, ..good() };
    assert_eq!(error(world.ask(body).await), "invalid_request");
    world.ask(good()).await.unwrap();
    world.nrf.stop().await;
}

#[tokio::test]
async fn a_profile_is_its_owners() {
    let world = World::start(31, 3600).await;
    let udr = world.udr(32).await;
    udr.registered().await;
    let other = world.env.client(NfType::Udr).unwrap();
    let get = || GetNfRequest { nf_instance_id: udr.id(), body: () };
    let profile = other.call::<GetNf>(world.at, get()).await.unwrap();
    assert_eq!(profile.nf_services[0].oauth2_required, Some(true));
    assert_eq!(profile.nf_services[0].allowed_nf_types, [NfType::Udm, NfType::Pcf, NfType::Nef]);
    let moved = NfProfile { ipv4_addresses: vec![[127, 6, 6, 6].into()], ..profile.clone() };
    let steal = RegisterNfRequest { nf_instance_id: udr.id(), body: moved };
    let refused = [
        other.call::<RegisterNf>(world.at, steal).await.unwrap_err().status(),
        other
            .call::<UpdateNf>(
                world.at,
                UpdateNfRequest {
                    nf_instance_id: udr.id(),
                    body: Patch::replace("/nfStatus", "SUSPENDED".into()),
                },
            )
            .await
            .unwrap_err()
            .status(),
        other
            .call::<DeregisterNf>(world.at, DeregisterNfRequest { nf_instance_id: udr.id(), body: () })
            .await
            .unwrap_err()
            .status(),
    ];
    assert_eq!(refused, [Some(403); 3]);
    assert_eq!(other.call::<GetNf>(world.at, get()).await.unwrap(), profile);
    // An instance has also proved its type.
    let amf = world.env.client(NfType::Amf).unwrap();
    let id = amf.config().credentials.as_ref().unwrap().id;
    let posing = NfProfile { nf_instance_id: id, nf_type: NfType::Udm, ..profile };
    let request = RegisterNfRequest { nf_instance_id: id, body: posing };
    assert_eq!(amf.call::<RegisterNf>(world.at, request).await.unwrap_err().status(), Some(403));
    udr.stop().await;
    world.nrf.stop().await;
}

#[tokio::test]
async fn subscriptions_end_by_whoever_made_them() {
    let world = World::start(41, 3600).await;
    let (amf, smf) = (world.env.client(NfType::Amf).unwrap(), world.env.client(NfType::Smf).unwrap());
    let body = SubscriptionData {
        nf_status_notification_uri: "http://127.0.78.42:1/x".to_owned(),
        req_nf_instance_id: None,
        subscr_cond: None,
        subscription_id: None,
        validity_time: None,
        req_notif_events: vec![],
        req_nf_type: None,
    };
    let created = amf.call::<SubscribeNf>(world.at, SubscribeNfRequest { body }).await.unwrap();
    let subscription_id = created.body.subscription_id.unwrap();
    let end = || UnsubscribeNfRequest { subscription_id: subscription_id.clone(), body: () };
    assert_eq!(smf.call::<UnsubscribeNf>(world.at, end()).await.unwrap_err().status(), Some(404));
    amf.call::<UnsubscribeNf>(world.at, end()).await.unwrap();
    world.nrf.stop().await;
}

#[tokio::test]
async fn tokens_are_fetched_once_replaced_in_time_and_outlive_the_nrf() {
    // Valid for ten seconds: replaced after eight.
    let world = World::start(51, 10).await;
    let udr = world.udr(52).await;
    udr.registered().await;
    let client = world.env.client(NfType::Udm).unwrap();
    let requested = async || {
        let status = nf::oam::call(world.nrf.oam(), "GET", "/status", None).await.unwrap();
        status["counters"]["nrf_tokens_granted"].as_u64().unwrap()
    };
    let before = requested().await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let client = client.clone();
        calls
            .spawn(async move { client.call::<QueryAmData>(Target::Discover, am_data()).await.unwrap_err() });
    }
    assert!(calls.join_all().await.iter().all(|error| error.is("USER_NOT_FOUND")));
    // Tests of this file run at the same time and count as well, but not a hundred.
    assert!(requested().await - before < 100);
    let verified = async || {
        let status = nf::oam::call(udr.oam(), "GET", "/status", None).await.unwrap();
        status["counters"]["sbi_tokens_verified"].as_u64().unwrap()
    };
    let before = verified().await;
    for _ in 0..300 {
        assert!(client.call::<QueryAmData>(udr.sbi(), am_data()).await.unwrap_err().is("USER_NOT_FOUND"));
    }
    assert!(verified().await - before < 100, "a token is verified once");
    // The NRF restarts with its key: earlier tokens stay valid, and new ones are accepted.
    world.nrf.stop().await;
    assert!(client.call::<QueryAmData>(udr.sbi(), am_data()).await.unwrap_err().is("USER_NOT_FOUND"));
    let again = nrf::start(Config { sbi: world.at, ..Config::default() }, world.env.clone()).await.unwrap();
    let fresh = world.env.client(NfType::Udm).unwrap();
    assert!(fresh.call::<QueryAmData>(udr.sbi(), am_data()).await.unwrap_err().is("USER_NOT_FOUND"));
    udr.stop().await;
    again.stop().await;
}

/// Between the time when a token is to be replaced and its end, calls go on with it, whatever the NRF does.
#[tokio::test]
async fn a_silent_nrf_delays_no_call_that_has_a_token() {
    let world = World::start(54, 10).await;
    let udr = world.udr(55).await;
    udr.registered().await;
    let client = world.env.client(NfType::Udm).unwrap();
    let call = async || client.call::<QueryAmData>(udr.sbi(), am_data()).await.unwrap_err();
    assert!(call().await.is("USER_NOT_FOUND"));
    let fetched = net::time::now();
    world.nrf.stop().await;
    // Takes connections and answers nothing.
    let silent = net::tcp::TcpListener::bind(world.at).await.unwrap();
    let silent = tokio::spawn(async move {
        let mut connections = Vec::new();
        loop {
            connections.push(silent.accept().await.unwrap());
        }
    });
    net::time::sleep_until(fetched + Duration::from_millis(8_100)).await;
    let mut calls = 0;
    while net::time::now() < fetched + Duration::from_millis(9_000) {
        let error = call().await;
        assert!(error.is("USER_NOT_FOUND"), "call {calls}: {error}");
        calls += 1;
    }
    assert!(calls > 0);
    silent.abort();
    udr.stop().await;
}

/// The names of NF instances can be foreseen; whoever proved one first has it, also after the NRF restarted.
#[tokio::test]
async fn an_instance_stays_its_owners_when_the_nrf_restarts() {
    let world = World::start(57, 3600).await;
    let good = || world.token_request(NfType::Udm, NfType::Nrf, "nnrf-disc");
    world.ask(good()).await.unwrap();
    world.nrf.stop().await;
    let again = nrf::start(Config { sbi: world.at, ..Config::default() }, world.env.clone()).await.unwrap();
    let mut posing = world.token_request(NfType::Amf, NfType::Nrf, "nnrf-disc");
    let secret = world.env.trust.as_ref().unwrap().secret(&NfType::Amf).unwrap();
    posing.nf_instance_id = test_id(&NfType::Udm);
    let claims = AssertionClaims::new(posing.nf_instance_id, net::time::wall_clock());
    posing.client_assertion = Some(secret.sign(&claims).into());
    let client = Client::new(ClientConfig::default());
    let ask = async |body| client.call::<RequestToken>(world.at, RequestTokenRequest { body }).await;
    assert_eq!(error(ask(posing).await), "invalid_client");
    ask(good()).await.unwrap();
    again.stop().await;
}

#[tokio::test]
async fn an_nf_on_another_machine_needs_the_public_key_and_its_own_secret() {
    let world = World::start(61, 3600).await;
    let udr = world.udr(62).await;
    udr.registered().await;
    let trust = world.folder.path().join("trust");
    let elsewhere = tempfile::tempdir().unwrap();
    let missing = Trust::open(elsewhere.path(), false).unwrap_err();
    assert!(matches!(missing, TrustError::NoVerifyingKey(_)), "{missing}");
    std::fs::copy(trust.join("nrf-token.pub"), elsewhere.path().join("nrf-token.pub")).unwrap();
    let config = Security { trust: elsewhere.path().to_owned(), ..Security::default() };
    let env = Env::new(elsewhere.path(), Some(world.at.into())).secured(&config, false).unwrap();
    let ask = async |client: &Client| client.call::<QueryAmData>(udr.sbi(), am_data()).await.unwrap_err();
    // The NF has created a secret that the NRF does not know.
    let client = env.client(NfType::Udm).unwrap();
    assert!(ask(&client).await.to_string().contains("invalid_client"));
    // The operator copies it to the NRF under another name; the NRF finds it without a restart.
    std::fs::copy(elsewhere.path().join("udm.secret"), trust.join("udm-east.secret")).unwrap();
    net::time::sleep(Duration::from_millis(1100)).await;
    assert!(ask(&client).await.is("USER_NOT_FOUND"));
    // The instance belongs to that secret now: the local UDM cannot use its identity.
    let id = client.config().credentials.as_ref().unwrap().id;
    let local = world.env.trust.as_ref().unwrap().secret(&NfType::Udm).unwrap();
    let credentials = Arc::new(Credentials { id, nf_type: NfType::Udm, secret: Some(local) });
    let posing = Client::new(ClientConfig { credentials: Some(credentials), ..client.config().clone() });
    assert!(ask(&posing).await.to_string().contains("belongs to another NF"));
    udr.stop().await;
    world.nrf.stop().await;
}

/// An NRF that grants everything to everybody with the key of ours, and clients of any type that ask it.
struct Lenient {
    _nrf: sbi::Server,
    at: SocketAddr,
}

impl Lenient {
    async fn start(key: SigningKey) -> Self {
        let router = Router::new(Arc::new(key)).on::<RequestToken>(async |key: Arc<SigningKey>, request| {
            let RequestTokenRequest { body } = request;
            let claims = AccessTokenClaims {
                iss: NfInstanceId::from_random(1).to_string(),
                sub: body.nf_instance_id,
                aud: Audience::Type(body.target_nf_type.unwrap().to_string()),
                scope: body.scope,
                exp: sbi::access::jws::seconds(net::time::wall_clock()) + 1000,
                nf_type: body.nf_type,
            };
            let access_token = key.sign(&claims).unwrap().into();
            let token_type = "Bearer".to_owned();
            Ok(AccessTokenRsp { access_token, token_type, expires_in: Some(1000), scope: None })
        });
        let nrf = sbi::serve(router, "127.0.0.1:0".parse().unwrap(), Default::default()).await.unwrap();
        Self { at: nrf.address(), _nrf: nrf }
    }

    fn client(&self, nf_type: NfType) -> Client {
        let credentials = Credentials { id: test_id(&nf_type), nf_type: nf_type.clone(), secret: None };
        let (nrf, credentials) = (Some(self.at.into()), Some(Arc::new(credentials)));
        Client::new(ClientConfig { nrf, credentials, requester: nf_type, ..ClientConfig::default() })
    }

    /// A notification is taken from `sender` and from nobody else.
    async fn only<O: Callback<Body: Clone>>(&self, sender: NfType, receiver: &Running, body: O::Body) {
        let uri = callback_uri::<O>(&format!("http://{}", receiver.sbi()), "1");
        let types = [NfType::Nrf, NfType::Udr, NfType::Udm, NfType::Pcf, NfType::Smf, NfType::Amf];
        for nf_type in types {
            let sent = self.client(nf_type.clone()).notify::<O>(&uri, body.clone()).await;
            match sent {
                Ok(()) => assert_eq!(nf_type, sender, "{}", O::NAME),
                Err(error) => {
                    assert_ne!(nf_type, sender, "{error}");
                    let refused = (error.status(), error.is("INSUFFICIENT_SCOPE"));
                    assert_eq!(refused, (Some(403), true), "{} of {nf_type}: {error}", O::NAME);
                }
            }
        }
    }
}

#[tokio::test]
async fn each_notification_and_subscription_is_for_the_nf_types_that_the_standard_names() {
    let world = World::start(81, 3600).await;
    let instance = Instance::bind(NfType::Udm, address(82), &world.env).await.unwrap();
    let router = Router::new(Arc::new(()))
        .on::<AmPolicyUpdateNotify>(async |_: Arc<()>, _| Ok(()))
        .on::<AmPolicyTerminateNotify>(async |_: Arc<()>, _| Ok(()))
        .on::<SmPolicyUpdateNotify>(async |_: Arc<()>, _| Ok(()))
        .on::<NfStatusNotify>(async |_: Arc<()>, _| Ok(()))
        .on::<SdmNotify>(async |_: Arc<()>, _| Ok(()))
        .on::<DataChange>(async |_: Arc<()>, _| Ok(()))
        .on::<SdmSubscribe>(async |_: Arc<()>, _| Err(ProblemDetails::user_not_found()));
    let receiver = instance.start(router, Oam::new()).unwrap();
    let lenient = Lenient::start(world.env.trust.as_ref().unwrap().signing_key().unwrap()).await;

    let resource_uri = "http://127.0.78.83:7777/policies/1".to_owned();
    let policy =
        PolicyUpdate { resource_uri: resource_uri.clone(), triggers: vec![], rfsp: None, ue_ambr: None };
    lenient.only::<AmPolicyUpdateNotify>(NfType::Pcf, &receiver, policy).await;
    let ended = TerminationNotification { resource_uri: resource_uri.clone(), cause: "X".to_owned() };
    lenient.only::<AmPolicyTerminateNotify>(NfType::Pcf, &receiver, ended).await;
    let policy = SmPolicyNotification { resource_uri, sm_policy_decision: None };
    lenient.only::<SmPolicyUpdateNotify>(NfType::Pcf, &receiver, policy).await;
    let status = NotificationData {
        event: NotificationEventType::Registered,
        nf_instance_uri: "http://127.0.78.81:7777/x".to_owned(),
        nf_profile: None,
    };
    lenient.only::<NfStatusNotify>(NfType::Nrf, &receiver, status).await;
    let modified = ModificationNotification { notify_items: vec![], subscription_id: None };
    lenient.only::<SdmNotify>(NfType::Udm, &receiver, modified).await;
    let changed = DataChangeNotify { original_callback_reference: vec![], ue_id: None, notify_items: vec![] };
    lenient.only::<DataChange>(NfType::Udr, &receiver, changed).await;

    let subscribe =
        || SdmSubscribeRequest { ue_id: "imsi-999700000000001".parse().unwrap(), body: subscription() };
    for (nf_type, status) in
        [(NfType::Amf, 404), (NfType::Smf, 404), (NfType::Pcf, 403), (NfType::Udr, 403), (NfType::Nrf, 403)]
    {
        let refused = lenient.client(nf_type.clone()).call::<SdmSubscribe>(receiver.sbi(), subscribe()).await;
        assert_eq!(refused.unwrap_err().status(), Some(status), "{nf_type}");
    }
    receiver.stop().await;
    world.nrf.stop().await;
}

#[tokio::test]
async fn a_rejected_token_is_replaced_and_the_call_made_again() {
    let world = World::start(71, 3600).await;
    let udr = world.udr(72).await;
    udr.registered().await;
    let client = world.env.client(NfType::Udm).unwrap();
    assert!(client.call::<QueryAmData>(udr.sbi(), am_data()).await.unwrap_err().is("USER_NOT_FOUND"));
    udr.stop().await;
    world.nrf.stop().await;
    // The operator replaces the NRF's key and restarts the NRF; the client still holds a token of the
    // old key.
    let trust = world.folder.path().join("trust");
    std::fs::remove_file(trust.join("nrf-token.key")).unwrap();
    std::fs::remove_file(trust.join("nrf-token.pub")).unwrap();
    let env = Env::new(world.folder.path(), Some(world.at.into()));
    let env = env.secured(&security(world.folder.path()), true).unwrap();
    let nrf = nrf::start(Config { sbi: world.at, ..Config::default() }, env.clone()).await.unwrap();
    let world = World { folder: world.folder, env, nrf, at: world.at };
    let udr = world.udr(72).await;
    assert!(client.call::<QueryAmData>(udr.sbi(), am_data()).await.unwrap_err().is("USER_NOT_FOUND"));
    udr.stop().await;
    world.nrf.stop().await;
}

#[test]
fn keys_are_made_once_by_whoever_comes_first_and_only_for_their_owner() {
    let folder = tempfile::tempdir().unwrap();
    let trust = folder.path().join("var/trust");
    // Processes that start at the same time get the same key.
    let open = || {
        let trust = Trust::open(&trust, true).unwrap();
        let claims = AssertionClaims::new(NfInstanceId::from_random(1), std::time::UNIX_EPOCH);
        (trust.verifying_key(), trust.secret(&NfType::Amf).unwrap().sign(&claims))
    };
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(results.iter().all(|result| *result == results[0]));
    let mode = |name: &str| std::fs::metadata(trust.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("nrf-token.key"), mode("amf.secret"), mode("nrf-token.pub")), (0o600, 0o600, 0o600));
    assert_eq!(std::fs::metadata(&trust).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(std::fs::read_dir(&trust).unwrap().count(), 3, "no drafts remain");

    let opened = Trust::open(&trust, true).unwrap();
    let set = |name: &str, mode| {
        std::fs::set_permissions(trust.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, mode) in [("amf.secret", 0o640), ("amf.secret", 0o604), ("nrf-token.key", 0o644)] {
        set(name, mode);
        let error = match name {
            "amf.secret" => opened.secret(&NfType::Amf).unwrap_err(),
            _ => opened.signing_key().unwrap_err(),
        };
        assert!(error.to_string().contains("chmod 0600"), "{error}");
        set(name, 0o600);
    }
    for (name, content) in [("amf.secret", "short"), ("nrf-token.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n")]
    {
        let before = std::fs::read(trust.join(name)).unwrap();
        std::fs::write(trust.join(name), content).unwrap();
        let error = match name {
            "amf.secret" => opened.secret(&NfType::Amf).unwrap_err(),
            _ => opened.signing_key().unwrap_err(),
        };
        assert!(error.to_string().contains(name) && !error.to_string().contains("short"), "{error}");
        std::fs::write(trust.join(name), before).unwrap();
    }
    let _: Secret = opened.secret(&NfType::Amf).unwrap();
    std::fs::remove_file(trust.join("nrf-token.key")).unwrap();
    assert!(opened.signing_key().unwrap_err().to_string().contains("does not belong to"));
}
