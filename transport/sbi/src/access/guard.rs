//! Server side: whether a request may reach its handler.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use net::time;

use super::{
    Access, AccessTokenClaims, CALLBACK_AUDIENCE, Caller, TokenError, VerifyingKey,
    jws::{CLOCK_SKEW, seconds},
};
use crate::{
    counters::TOKENS_VERIFIED,
    model::{common::NfInstanceId, nrf::NfType},
    operation::Service,
    problem::ProblemDetails,
};

/// Most verified tokens that are remembered: several per consumer. Only valid tokens are stored, so
/// strangers cannot fill the table.
const MAX_REMEMBERED: usize = 1024;

/// Checks the access tokens of requests. One per server.
#[derive(Debug)]
pub struct Guard {
    nf_type: NfType,
    id: NfInstanceId,
    key: VerifyingKey,
    callbacks: bool,
    /// Tokens with verified signature and audience, by their text.
    verified: Mutex<HashMap<Box<str>, Arc<AccessTokenClaims>>>,
}

/// A request is refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    reason: Reason,
    /// Value of `WWW-Authenticate` (RFC 6750 §3).
    pub(crate) challenge: Box<str>,
}

/// Why the request is refused.
#[derive(Debug, Clone, Copy)]
enum Reason {
    Missing,
    Invalid(TokenError),
    Scope,
}

impl Refusal {
    fn new(reason: Reason, service: &Service, access: Access) -> Self {
        let error = match reason {
            Reason::Missing => "",
            Reason::Invalid(_) => ", error=\"invalid_token\"",
            Reason::Scope => ", error=\"insufficient_scope\"",
        };
        let resource = match access {
            Access::Scope(scope) => format!(" {scope}"),
            Access::Service | Access::Open => String::new(),
        };
        let challenge = format!("Bearer realm=\"5gc\", scope=\"{}{resource}\"{error}", service.name);
        Self { reason, challenge: challenge.into() }
    }

    /// The content of the answer: 401, or 403 if the token is valid but does not grant the service or
    /// scope.
    pub(crate) fn problem(&self) -> ProblemDetails {
        match self.reason {
            Reason::Missing => {
                ProblemDetails::new(401, "ACCESS_TOKEN_MISSING").detail("an access token is needed")
            }
            Reason::Invalid(error) => {
                ProblemDetails::new(401, "ACCESS_TOKEN_INVALID").detail(format!("the access token: {error}"))
            }
            Reason::Scope => {
                ProblemDetails::new(403, "INSUFFICIENT_SCOPE").detail("the access token does not grant this")
            }
        }
    }
}

impl Guard {
    /// A guard for an instance that accepts tokens signed with `key`.
    pub fn new(nf_type: NfType, id: NfInstanceId, key: VerifyingKey) -> Self {
        Self { nf_type, id, key, callbacks: true, verified: Mutex::default() }
    }

    /// Accepts notifications without token, from NFs that have no tokens for them.
    #[must_use]
    pub fn without_callbacks(mut self) -> Self {
        self.callbacks = false;
        self
    }

    /// The caller, if a request to `service` with this `Authorization` is accepted.
    ///
    /// # Errors
    /// 401 without a valid token, 403 if the token does not grant the service or scope.
    pub(crate) fn check(
        &self,
        service: &Service,
        access: Access,
        authorization: Option<&str>,
    ) -> Result<Caller, Refusal> {
        let callback = service.offered_by.is_none();
        if access == Access::Open {
            return Ok(Caller::default());
        }
        let refuse = |reason| Refusal::new(reason, service, access);
        let Some(authorization) = authorization else {
            if callback && !self.callbacks {
                return Ok(Caller::default());
            }
            return Err(refuse(Reason::Missing));
        };
        let token = bearer(authorization)
            .ok_or(TokenError::Malformed)
            .and_then(|text| self.verified(text, callback))
            .map_err(|error| refuse(Reason::Invalid(error)))?;
        let granted = token.grants(service.name)
            && token.nf_type.as_ref().is_none_or(|consumer| service.is_for(consumer))
            && match access {
                Access::Scope(scope) => token.grants(scope),
                Access::Service | Access::Open => true,
            };
        if granted { Ok(Caller::with_token(token)) } else { Err(refuse(Reason::Scope)) }
    }

    /// The claims of a token, remembered or verified now.
    fn verified(&self, text: &str, callback: bool) -> Result<Arc<AccessTokenClaims>, TokenError> {
        let now = seconds(time::wall_clock());
        let alive = |claims: &AccessTokenClaims| now < claims.exp.saturating_add(CLOCK_SKEW.as_secs());
        let remembered = self.verified.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        let claims = match remembered {
            Some(claims) => claims,
            None => {
                let claims = Arc::new(self.key.verify(text)?);
                TOKENS_VERIFIED.inc();
                if alive(&claims) {
                    self.remember(text, &claims, alive);
                }
                claims
            }
        };
        if !alive(&claims) {
            return Err(TokenError::Expired);
        }
        let for_callbacks = matches!(&claims.aud, super::Audience::Type(t) if t == CALLBACK_AUDIENCE);
        // A token for notifications grants nothing else.
        let meant = if for_callbacks { callback } else { claims.aud.includes(&self.nf_type, self.id) };
        if meant { Ok(claims) } else { Err(TokenError::Audience) }
    }

    fn remember(
        &self,
        text: &str,
        claims: &Arc<AccessTokenClaims>,
        alive: impl Fn(&AccessTokenClaims) -> bool,
    ) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= MAX_REMEMBERED {
            verified.retain(|_, claims| alive(claims));
        }
        if verified.len() >= MAX_REMEMBERED {
            verified.clear();
        }
        verified.insert(text.into(), claims.clone());
    }
}

/// The token of `Bearer <token>`; the scheme is case-insensitive (RFC 9110 §11.1).
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

#[cfg(test)]
mod tests;
