//! JSON web tokens in compact form (RFC 7515 §7.1, RFC 7519): `header.claims.signature`, each in base64url.
//!
//! Two algorithms, each tied to its kind of key, so that a header cannot choose another: ES256 for access tokens
//! ([`SigningKey`], [`VerifyingKey`]), HS256 for assertions ([`Secret`]). What is read is bounded in length; a header
//! with critical extensions is refused (RFC 7515 §4.1.11).

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64URL};
use ring::{
    hmac,
    rand::{SecureRandom as _, SystemRandom},
    signature::{self, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use types::Key;

use crate::model::{common::NfInstanceId, nrf::NfType};

/// Longest token read. Ours have some 500 octets; those with many scopes or audiences have more.
const MAX_LENGTH: usize = 4096;
/// How far clocks of different machines may differ.
pub const CLOCK_SKEW: Duration = Duration::from_secs(30);

/// Why a token is not accepted. Contains nothing of the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a JWT, or its claims do not have the standard's form.
    #[error("it is malformed")]
    Malformed,
    /// Longer than any valid token.
    #[error("it is too long")]
    TooLong,
    /// Signed with another algorithm than the key's.
    #[error("its algorithm is not accepted")]
    Algorithm,
    /// The signature was not made with the issuer's key.
    #[error("its signature is wrong")]
    Signature,
    /// The token has expired.
    #[error("it has expired")]
    Expired,
    /// The token is for another audience.
    #[error("it has another audience")]
    Audience,
}

/// A key could not be created or read. Contains nothing of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key is not usable: {0}")]
pub struct KeyError(&'static str);

/// The audience of a token: an NF type, or instances (TS 29.510 §6.3.5.2.4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Audience {
    /// Every instance of a type.
    Type(String),
    /// These instances.
    Instances(Vec<String>),
}

impl Audience {
    /// Whether the audience includes this instance.
    pub fn includes(&self, nf_type: &NfType, id: NfInstanceId) -> bool {
        match self {
            Self::Type(named) => named == nf_type.as_str(),
            Self::Instances(ids) => ids.iter().any(|named| named.parse() == Ok(id)),
        }
    }
}

/// Claims of an access token (TS 29.510 §6.3.5.2.4). Others are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessTokenClaims {
    /// NF instance of the NRF.
    pub iss: String,
    /// NF instance of the consumer.
    pub sub: NfInstanceId,
    /// The audience.
    pub aud: Audience,
    /// Names of services and resource-level scopes, separated by spaces.
    pub scope: String,
    /// Seconds since 1970 at which it expires.
    pub exp: u64,
    /// NF type of the consumer: our own claim, the type that the consumer proved to the NRF.
    #[serde(default, rename = "nfType", skip_serializing_if = "Option::is_none")]
    pub nf_type: Option<NfType>,
}

impl AccessTokenClaims {
    /// Whether the token grants a service or a resource-level scope.
    pub fn grants(&self, scope: &str) -> bool {
        self.scope.split(' ').any(|granted| granted == scope)
    }
}

/// Claims with which an NF proves its identity to the NRF: those of client credentials assertions (TS
/// 33.501 §13.3.8.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssertionClaims {
    /// The NF instance (RFC 7523 §3: issuer and subject are the same).
    pub iss: NfInstanceId,
    /// The NF instance.
    pub sub: NfInstanceId,
    /// `NRF`.
    pub aud: String,
    /// Seconds since 1970 at which it was made.
    pub iat: u64,
    /// Seconds since 1970 at which it expires.
    pub exp: u64,
}

impl AssertionClaims {
    /// Lifetime of our assertions; a client makes one per request.
    pub const LIFE: Duration = Duration::from_secs(60);

    /// The claims of an NF at `now`.
    pub fn new(id: NfInstanceId, now: SystemTime) -> Self {
        let iat = seconds(now);
        let aud = NfType::Nrf.as_str().to_owned();
        Self { iss: id, sub: id, aud, iat, exp: iat + Self::LIFE.as_secs() }
    }

    /// Checks all but the signature.
    ///
    /// # Errors
    /// The assertion is of another instance, for another audience, or not valid now.
    pub fn check(&self, id: NfInstanceId, now: SystemTime) -> Result<(), TokenError> {
        if self.iss != id || self.sub != id {
            return Err(TokenError::Signature);
        }
        if self.aud != NfType::Nrf.as_str() {
            return Err(TokenError::Audience);
        }
        let (now, skew) = (seconds(now), CLOCK_SKEW.as_secs());
        let from_now_on = self.iat <= now.saturating_add(skew) && now < self.exp.saturating_add(skew);
        // An assertion that is valid for years would not prove that the sender has the secret now.
        let short = self.exp.saturating_sub(self.iat) <= 5 * Self::LIFE.as_secs();
        if from_now_on && short { Ok(()) } else { Err(TokenError::Expired) }
    }
}

/// Whole seconds since 1970.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    typ: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crit: Option<serde_json::Value>,
}

/// The parts of a token, not verified yet.
struct Parts<'a> {
    header: Header,
    claims: Vec<u8>,
    signed: &'a [u8],
    signature: Vec<u8>,
}

fn parse(token: &str) -> Result<Parts<'_>, TokenError> {
    if token.len() > MAX_LENGTH {
        return Err(TokenError::TooLong);
    }
    let decode = |text: &str| BASE64URL.decode(text).map_err(|_| TokenError::Malformed);
    let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
    let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
    let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Malformed)?;
    if header.crit.is_some() {
        return Err(TokenError::Malformed);
    }
    Ok(Parts { header, claims: decode(claims)?, signed: signed.as_bytes(), signature: decode(signature)? })
}

fn claims<T: DeserializeOwned>(parts: &Parts<'_>) -> Result<T, TokenError> {
    serde_json::from_slice(&parts.claims).map_err(|_| TokenError::Malformed)
}

/// Header and claims in the form that is signed.
fn unsigned<T: Serialize>(algorithm: &str, claims: &T) -> String {
    let header = Header { alg: algorithm.to_owned(), typ: Some("JWT".to_owned()), crit: None };
    let encode = |json: Result<Vec<u8>, _>| {
        let json: Vec<u8> = json.map_err(|_: serde_json::Error| ()).expect("claims have string keys only");
        BASE64URL.encode(json)
    };
    format!("{}.{}", encode(serde_json::to_vec(&header)), encode(serde_json::to_vec(claims)))
}

/// The NRF's key, which signs access tokens with ES256.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

impl SigningKey {
    /// Creates a new key and returns its octets in PKCS #8.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Vec<u8>, KeyError> {
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new())
            .map(|document| document.as_ref().to_vec())
            .map_err(|_| KeyError("the system gives no random numbers"))
    }

    /// Reads a key in the form of [`Self::generate`].
    ///
    /// # Errors
    /// It is not a key of the curve P-256 in PKCS #8.
    pub fn from_pkcs8(octets: &[u8]) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        EcdsaKeyPair::from_pkcs8(algorithm, octets, &random)
            .map(|pair| Self { pair, random })
            .map_err(|_| KeyError("expected a P-256 key in PKCS #8"))
    }

    /// The key that verifies this key's signatures.
    pub fn public(&self) -> VerifyingKey {
        let mut point = [0; POINT];
        point.copy_from_slice(self.pair.public_key().as_ref());
        VerifyingKey(point)
    }

    /// Signs the claims of an access token.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn sign(&self, claims: &AccessTokenClaims) -> Result<String, KeyError> {
        let mut token = unsigned("ES256", claims);
        let signature = self
            .pair
            .sign(&self.random, token.as_bytes())
            .map_err(|_| KeyError("the system gives no random numbers"))?;
        token.push('.');
        BASE64URL.encode_string(signature, &mut token);
        Ok(token)
    }
}

/// Octets of an uncompressed point of P-256.
const POINT: usize = 65;
/// The octets before the point in a SubjectPublicKeyInfo of P-256 (RFC 5480 §2).
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// The NRF's public key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VerifyingKey([u8; POINT]);

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerifyingKey(P-256)")
    }
}

impl VerifyingKey {
    /// The SubjectPublicKeyInfo in DER, which other programs read.
    pub fn to_spki(&self) -> Vec<u8> {
        [SPKI_PREFIX.as_slice(), &self.0].concat()
    }

    /// Reads [`Self::to_spki`].
    ///
    /// # Errors
    /// It is not a key of the curve P-256.
    pub fn from_spki(der: &[u8]) -> Result<Self, KeyError> {
        der.strip_prefix(&SPKI_PREFIX)
            .and_then(|point| point.try_into().ok())
            .map(Self)
            .ok_or(KeyError("expected a P-256 public key"))
    }

    /// Verifies the signature of an access token and returns its claims. The caller has to check the
    /// claims.
    ///
    /// # Errors
    /// Malformed, or signed with another key.
    pub fn verify(&self, token: &str) -> Result<AccessTokenClaims, TokenError> {
        let parts = parse(token)?;
        if parts.header.alg != "ES256" {
            return Err(TokenError::Algorithm);
        }
        UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, &self.0)
            .verify(parts.signed, &parts.signature)
            .map_err(|_| TokenError::Signature)?;
        claims(&parts)
    }
}

/// A secret that only an NF and the NRF know: signs assertions with HS256.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Creates the octets of a new secret.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Key<32>, KeyError> {
        let mut octets = [0; 32];
        let filled = SystemRandom::new().fill(&mut octets);
        filled.map(|()| Key::new(octets)).map_err(|_| KeyError("the system gives no random numbers"))
    }

    /// A secret with these octets.
    pub fn new(octets: &Key<32>) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, octets.expose()))
    }

    /// Signs an assertion.
    pub fn sign(&self, claims: &AssertionClaims) -> String {
        let mut token = unsigned("HS256", claims);
        let signature = hmac::sign(&self.0, token.as_bytes());
        token.push('.');
        BASE64URL.encode_string(signature, &mut token);
        token
    }

    /// Verifies the signature of an assertion and returns its claims; [`AssertionClaims::check`] has to
    /// follow.
    ///
    /// # Errors
    /// Malformed, or signed with another secret.
    pub fn verify(&self, token: &str) -> Result<AssertionClaims, TokenError> {
        let parts = parse(token)?;
        if parts.header.alg != "HS256" {
            return Err(TokenError::Algorithm);
        }
        hmac::verify(&self.0, parts.signed, &parts.signature).map_err(|_| TokenError::Signature)?;
        claims(&parts)
    }
}

/// Entry point for fuzzing: a token from a peer.
#[doc(hidden)]
pub fn fuzz_token(data: &[u8]) {
    let Ok(token) = std::str::from_utf8(data) else { return };
    if let Ok(parts) = parse(token) {
        assert!(parts.claims.len() < token.len() && parts.signed.len() < token.len());
        let _ = claims::<AssertionClaims>(&parts);
        if let Ok(read) = claims::<AccessTokenClaims>(&parts) {
            let written = serde_json::to_vec(&read).expect("claims have string keys only");
            assert_eq!(serde_json::from_slice::<AccessTokenClaims>(&written).ok(), Some(read));
        }
    }
}

#[cfg(test)]
mod tests;
