//! Authorization: OAuth 2.0 access tokens (TS 33.501 §13.4.1, TS 29.510 §5.4, RFC 6749 §4.4).
//!
//! ```text
//! Client ── POST /oauth2/token, proof of identity ─▶ NRF      Wallet: one token per service, kept until shortly
//!        ◀─ JWT: subject, audience, scope, expiry ──                   before it expires
//! Client ── request, Authorization: Bearer JWT ────▶ server   Guard: signature, audience, expiry and scope, before
//!                                                             any content is read
//! ```
//! A token is a JWT that the NRF signs with ES256 ([`SigningKey`]). An NF proves to the NRF who it is with an assertion
//! that it signs with a secret of its own ([`Secret`], RFC 7523), or with its TLS certificate. Servers remember the
//! tokens they have verified, so that a call costs a look-up and no signature.
//!
//! Read first: [`jws`] (the form of a token), then `guard.rs` (server) and `wallet.rs` (client).

mod guard;
pub mod jws;
mod wallet;

use std::sync::Arc;

pub use guard::Guard;
pub use jws::{AccessTokenClaims, AssertionClaims, Audience, Secret, SigningKey, TokenError, VerifyingKey};
pub use wallet::Credentials;
pub(crate) use wallet::Wallet;

use crate::model::{common::NfInstanceId, nrf::NfType};

/// What a caller needs for an operation besides a token for the operation's service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing more.
    Service,
    /// A resource-level scope, such as `nudr-dr:subscription-data:authentication-subscription:read`.
    Scope(&'static str),
    /// No token at all; only for the request for a token, which has its own proof.
    Open,
}

/// Audience of tokens for callbacks. The standard defines none: the receiver of a notification is known
/// by its URI, not by an NF type.
pub const CALLBACK_AUDIENCE: &str = "CALLBACK";

/// The sender of a request, as far as proven.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    token: Option<Arc<AccessTokenClaims>>,
    certified: Option<NfInstanceId>,
}

impl Caller {
    /// The caller that a verified token names.
    pub(crate) fn with_token(token: Arc<AccessTokenClaims>) -> Self {
        Self { token: Some(token), certified: None }
    }

    /// The same caller on a connection whose certificate names this instance.
    pub(crate) fn certified_as(self, certified: Option<NfInstanceId>) -> Self {
        Self { certified, ..self }
    }

    /// Whether its token names another instance than its certificate.
    pub(crate) fn contradicts_certificate(&self) -> bool {
        self.certified.zip(self.id()).is_some_and(|(certified, id)| certified != id)
    }

    /// The NF instance that the client's TLS certificate names; `None` in clear.
    pub fn certified(&self) -> Option<NfInstanceId> {
        self.certified
    }

    /// NF instance of its token; `None` if it is not proven (tokens are switched off, or the operation needs none).
    pub fn id(&self) -> Option<NfInstanceId> {
        self.token.as_ref().map(|token| token.sub)
    }

    /// NF type, if it is proven.
    pub fn nf_type(&self) -> Option<&NfType> {
        self.token.as_ref().and_then(|token| token.nf_type.as_ref())
    }
}
