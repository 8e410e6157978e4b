//! Tests of tokens: a vector of the RFC, signatures, false headers, limits.

use std::time::Duration;

use super::*;

fn id(bits: u128) -> NfInstanceId {
    NfInstanceId::from_random(bits)
}

fn claims() -> AccessTokenClaims {
    AccessTokenClaims {
        iss: id(1).to_string(),
        sub: id(2),
        aud: Audience::Type("UDR".to_owned()),
        scope: "nudr-dr nudr-dr:policy-data".to_owned(),
        exp: 2_000_000_000,
        nf_type: Some(NfType::Pcf),
    }
}

fn key() -> SigningKey {
    SigningKey::from_pkcs8(&SigningKey::generate().unwrap()).unwrap()
}

#[test]
fn the_example_of_rfc_7515_verifies_and_a_changed_one_does_not() {
    // Appendix A.3: the point of its key, and its token.
    let decode = |text: &str| BASE64URL.decode(text).unwrap();
    let point = [
        vec![4],
        decode("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"),
        decode("x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"),
    ];
    let key = VerifyingKey(point.concat().try_into().unwrap());
    let token = "eyJhbGciOiJFUzI1NiJ9\
        .eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ\
        .DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    // The signature is right, but the claims are not those of an access token.
    assert_eq!(key.verify(token), Err(TokenError::Malformed));
    assert_eq!(key.verify(&token.replace("eyJpc3Mi", "eyJpc3Nj")), Err(TokenError::Signature));
}

#[test]
fn tokens_are_read_as_they_were_signed_and_by_the_right_key_only() {
    let key = key();
    let token = key.sign(&claims()).unwrap();
    assert_eq!(key.public().verify(&token), Ok(claims()));
    let spki = VerifyingKey::from_spki(&key.public().to_spki()).unwrap();
    assert_eq!(spki.verify(&token), Ok(claims()));
    assert_eq!(self::key().public().verify(&token), Err(TokenError::Signature));
    // A change of any octet makes the verification fail.
    for at in (0..token.len()).step_by(7) {
        let mut changed = token.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        assert!(key.public().verify(&changed).is_err(), "octet {at}");
        assert!(key.public().verify(&token[..at]).is_err(), "cut at {at}");
    }
}

#[test]
fn a_header_cannot_choose_the_algorithm() {
    let key = key();
    let token = key.sign(&claims()).unwrap();
    let rest = &token[token.find('.').unwrap()..];
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"HS256"}"#,
        r#"{"alg":"ES384"}"#,
        r#"{"alg":"ES256","crit":["exp"]}"#,
        r#"{"alg":"ES256","alg":"none"}"#,
        "{}",
        "7",
        "",
    ] {
        let forged = format!("{}{rest}", BASE64URL.encode(header));
        assert!(key.public().verify(&forged).is_err(), "{header}");
    }
    // The public key used as secret of HS256: the well-known algorithm confusion.
    let body = unsigned("HS256", &claims());
    let confused = hmac::Key::new(hmac::HMAC_SHA256, &key.public().0);
    let signature = BASE64URL.encode(hmac::sign(&confused, body.as_bytes()));
    assert_eq!(key.public().verify(&format!("{body}.{signature}")), Err(TokenError::Algorithm));
    let unsigned_token = format!("{}.", unsigned("none", &claims()));
    assert_eq!(key.public().verify(&unsigned_token), Err(TokenError::Algorithm));
}

#[test]
fn texts_that_are_no_token_are_refused() {
    let key = key().public();
    for text in ["", ".", "..", "...", "a.b", "a.b.c", "ä.ö.ü", "e30.e30.", "bnVsbA.bnVsbA.AA"] {
        assert!(key.verify(text).is_err(), "{text}");
    }
    assert_eq!(key.verify(&"a".repeat(MAX_LENGTH + 1)), Err(TokenError::TooLong));
}

#[test]
fn an_audience_is_a_type_or_a_list_of_instances() {
    let read = |json: &str| serde_json::from_str::<Audience>(json).unwrap();
    assert!(read(r#""UDM""#).includes(&NfType::Udm, id(1)));
    assert!(!read(r#""UDM""#).includes(&NfType::Udr, id(1)));
    let instances = read(&format!(r#"["{}","{}"]"#, id(7), id(1).to_string().to_uppercase()));
    assert!(instances.includes(&NfType::Udm, id(1)) && !instances.includes(&NfType::Udm, id(2)));
    assert!(!read("[]").includes(&NfType::Udm, id(1)));
}

#[test]
fn scopes_are_whole_words() {
    assert!(claims().grants("nudr-dr") && claims().grants("nudr-dr:policy-data"));
    for other in ["nudr", "nudr-d", "nudr-dr:policy", "policy-data", "nudr-dr nudr-dr:policy-data", ""] {
        assert!(!claims().grants(other), "{other}");
    }
}

#[test]
fn assertions_prove_one_instance_for_a_minute() {
    let secret = Secret::new(&Secret::generate().unwrap());
    let now = UNIX_EPOCH + Duration::from_secs(1_900_000_000);
    let token = secret.sign(&AssertionClaims::new(id(5), now));
    let read = secret.verify(&token).unwrap();
    assert_eq!(read.check(id(5), now), Ok(()));
    assert_eq!(read.check(id(6), now), Err(TokenError::Signature));
    assert_eq!(read.check(id(5), now + Duration::from_secs(89)), Ok(()), "clocks differ");
    assert_eq!(read.check(id(5), now + Duration::from_secs(91)), Err(TokenError::Expired));
    assert_eq!(read.check(id(5), now - Duration::from_secs(31)), Err(TokenError::Expired), "not yet");
    let elsewhere = AssertionClaims { aud: "AMF".to_owned(), ..read.clone() };
    assert_eq!(elsewhere.check(id(5), now), Err(TokenError::Audience));
    let eternal = AssertionClaims { exp: u64::MAX, ..read };
    assert_eq!(eternal.check(id(5), now), Err(TokenError::Expired));
    let other = Secret::new(&Secret::generate().unwrap());
    assert_eq!(other.verify(&token), Err(TokenError::Signature));
    // An access token is not accepted as an assertion, nor an assertion as an access token.
    assert_eq!(secret.verify(&key().sign(&claims()).unwrap()), Err(TokenError::Algorithm));
    assert_eq!(key().public().verify(&token), Err(TokenError::Algorithm));
}

#[test]
fn secrets_are_not_shown() {
    let secret = Secret::generate().unwrap();
    let shown = format!("{:?} {:?} {:?}", Secret::new(&secret), secret, key());
    assert!(!shown.contains(&secret.to_hex()), "{shown}");
}
