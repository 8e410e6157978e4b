//! Tests of the guard: which requests are accepted, which are refused, and with which answer.

use super::*;
use crate::{
    access::{Audience, SigningKey},
    op::{
        smf::SMF_CALLBACK,
        udm::NUDM_SDM,
        udr::{NUDR_DR, READ_CREDENTIALS},
    },
};

fn id() -> NfInstanceId {
    NfInstanceId::from_random(9)
}

fn key() -> SigningKey {
    SigningKey::from_pkcs8(&SigningKey::generate().unwrap()).unwrap()
}

fn now() -> u64 {
    seconds(time::wall_clock())
}

fn claims(aud: &str, scope: &str) -> AccessTokenClaims {
    AccessTokenClaims {
        iss: NfInstanceId::from_random(1).to_string(),
        sub: NfInstanceId::from_random(2),
        aud: Audience::Type(aud.to_owned()),
        scope: scope.to_owned(),
        exp: now() + 100,
        // One that may use the service.
        nf_type: Some(if scope.starts_with("nudr-dr") { NfType::Udm } else { NfType::Smf }),
    }
}

fn header(key: &SigningKey, claims: &AccessTokenClaims) -> String {
    format!("Bearer {}", key.sign(claims).unwrap())
}

/// Status and challenge of a refusal.
fn refused(result: Result<Caller, Refusal>) -> (u16, String) {
    let refusal = result.unwrap_err();
    (refusal.problem().status, refusal.challenge.into())
}

#[test]
fn a_token_opens_what_it_names_and_nothing_else() {
    let key = key();
    let guard = Guard::new(NfType::Udr, id(), key.public());
    let check =
        |access, claims: &AccessTokenClaims| guard.check(&NUDR_DR, access, Some(&header(&key, claims)));
    let plain = claims("UDR", "nudr-dr");
    let caller = check(Access::Service, &plain).unwrap();
    assert_eq!((caller.id(), caller.nf_type()), (Some(plain.sub), Some(&NfType::Udm)));
    let (status, challenge) = refused(check(Access::Scope(READ_CREDENTIALS), &plain));
    assert_eq!(status, 403);
    assert!(challenge.contains("insufficient_scope") && challenge.contains(READ_CREDENTIALS), "{challenge}");
    let full = claims("UDR", &format!("nudr-dr {READ_CREDENTIALS}"));
    check(Access::Scope(READ_CREDENTIALS), &full).unwrap();
    // The resource-level scope alone is not enough: the standard has both.
    assert_eq!(refused(check(Access::Scope(READ_CREDENTIALS), &claims("UDR", READ_CREDENTIALS))).0, 403);
    assert_eq!(refused(check(Access::Service, &claims("UDR", "nudm-sdm"))).0, 403);
    let (status, challenge) = refused(check(Access::Service, &claims("UDM", "nudr-dr")));
    assert_eq!(status, 401);
    assert!(challenge.contains("invalid_token"), "{challenge}");
    let instance = AccessTokenClaims { aud: Audience::Instances(vec![id().to_string()]), ..plain };
    check(Access::Service, &instance).unwrap();
}

#[test]
fn without_a_valid_token_the_answer_says_what_is_needed() {
    let key = key();
    let guard = Guard::new(NfType::Udm, id(), key.public());
    let check = |authorization: Option<&str>| guard.check(&NUDM_SDM, Access::Service, authorization);
    let (status, challenge) = refused(check(None));
    assert_eq!((status, challenge.as_str()), (401, "Bearer realm=\"5gc\", scope=\"nudm-sdm\""));
    let good = claims("UDM", "nudm-sdm");
    let text = header(&key, &good);
    check(Some(&text)).unwrap();
    check(Some(&text.replace("Bearer", "bearer"))).unwrap();
    let stranger = header(&self::key(), &good);
    let basic = text.replace("Bearer", "Basic");
    for wrong in ["", "Bearer", "Bearer ", "Bearer x", "Bearer a.b.c", stranger.as_str(), basic.as_str()] {
        assert_eq!(refused(check(Some(wrong))).0, 401, "{wrong}");
    }
    guard.check(&NUDM_SDM, Access::Open, None).unwrap();
}

#[test]
fn tokens_expire_also_those_that_are_remembered() {
    let key = key();
    let guard = Guard::new(NfType::Udm, id(), key.public());
    let at = |exp| header(&key, &AccessTokenClaims { exp, ..claims("UDM", "nudm-sdm") });
    let check = |text: &str| guard.check(&NUDM_SDM, Access::Service, Some(text));
    assert_eq!(refused(check(&at(now() - 31))).0, 401);
    check(&at(now() - 5)).unwrap();
    assert_eq!(refused(check(&at(0))).0, 401);
    let short = at(now() - 29);
    check(&short).unwrap();
    assert_eq!(guard.verified.lock().unwrap().len(), 2);
    #[allow(clippy::disallowed_methods, reason = "the wall clock has no virtual time")]
    std::thread::sleep(std::time::Duration::from_millis(2_100));
    assert_eq!(refused(check(&short)).0, 401, "remembered, and yet over");
}

#[test]
fn memory_is_bounded_and_only_for_valid_tokens() {
    let key = key();
    let guard = Guard::new(NfType::Udm, id(), key.public());
    let check = |text: &str| guard.check(&NUDM_SDM, Access::Service, Some(text));
    for exp in 0..20 {
        assert!(check(&header(&self::key(), &claims("UDM", "nudm-sdm"))).is_err());
        assert!(check(&header(&key, &AccessTokenClaims { exp, ..claims("UDM", "nudm-sdm") })).is_err());
    }
    assert_eq!(guard.verified.lock().unwrap().len(), 0);
    for more in 0..MAX_REMEMBERED as u64 + 5 {
        let claims = AccessTokenClaims { exp: now() + 1000 + more, ..claims("UDM", "nudm-sdm") };
        check(&header(&key, &claims)).unwrap();
    }
    assert!(guard.verified.lock().unwrap().len() <= MAX_REMEMBERED);
    // The same token is not verified a second time.
    let text = header(&key, &claims("UDM", "nudm-sdm"));
    check(&text).unwrap();
    let before = guard.verified.lock().unwrap().len();
    check(&text).unwrap();
    assert_eq!(guard.verified.lock().unwrap().len(), before);
}

#[test]
fn notifications_have_tokens_of_their_own_or_none_where_that_is_configured() {
    let key = key();
    let guard = Guard::new(NfType::Amf, id(), key.public());
    let token = header(&key, &claims(CALLBACK_AUDIENCE, "nsmf-callback"));
    guard.check(&SMF_CALLBACK, Access::Service, Some(&token)).unwrap();
    assert_eq!(refused(guard.check(&SMF_CALLBACK, Access::Service, None)).0, 401);
    // It grants no service, even if its scope names one.
    let wide = header(&key, &claims(CALLBACK_AUDIENCE, "nsmf-callback nudm-sdm"));
    assert_eq!(refused(guard.check(&NUDM_SDM, Access::Service, Some(&wide))).0, 401);
    let lenient = Guard::new(NfType::Amf, id(), key.public()).without_callbacks();
    lenient.check(&SMF_CALLBACK, Access::Service, None).unwrap();
    assert_eq!(refused(lenient.check(&NUDM_SDM, Access::Service, None)).0, 401);
    assert_eq!(refused(lenient.check(&SMF_CALLBACK, Access::Service, Some("Bearer x"))).0, 401);
}

#[test]
fn a_token_of_an_nf_type_that_has_no_business_with_a_service_opens_nothing() {
    let key = key();
    let types = [NfType::Nrf, NfType::Udr, NfType::Udm, NfType::Ausf, NfType::Pcf, NfType::Smf, NfType::Amf];
    for service in crate::op::services() {
        let producer = service.offered_by.clone().unwrap_or(NfType::Amf);
        let audience = service.offered_by.as_ref().map_or(CALLBACK_AUDIENCE, NfType::as_str);
        let guard = Guard::new(producer, id(), key.public());
        for nf_type in &types {
            let claims =
                AccessTokenClaims { nf_type: Some(nf_type.clone()), ..claims(audience, service.name) };
            let passed = guard.check(service, Access::Service, Some(&header(&key, &claims)));
            let meant = service.consumers.is_empty() || service.consumers.contains(nf_type);
            match passed {
                Ok(_) => assert!(meant, "{} for {nf_type}", service.name),
                Err(refusal) => {
                    assert_eq!((meant, refusal.problem().status), (false, 403), "{}", service.name)
                }
            }
        }
        // Every notification has one NF type that sends it.
        assert!(service.offered_by.is_some() || service.consumers.len() == 1, "{}", service.name);
        // An NRF of another maker does not say the type: it has looked itself.
        let claims = AccessTokenClaims { nf_type: None, ..claims(audience, service.name) };
        guard.check(service, Access::Service, Some(&header(&key, &claims))).unwrap();
    }
}
