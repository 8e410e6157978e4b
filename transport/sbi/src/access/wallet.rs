//! Client side: the tokens of an NF, and how it gets them.

use std::{
    collections::HashMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::HeaderValue;
use net::time::{self, Duration, Instant};
use tokio::sync::OwnedMutexGuard;

use super::{AssertionClaims, CALLBACK_AUDIENCE, Secret};
use crate::{
    Client, Target,
    counters::TOKENS_REQUESTED,
    model::{
        common::NfInstanceId,
        nrf::{AccessTokenReq, NfType},
    },
    op::nrf::{RequestToken, RequestTokenRequest},
    operation::Service,
};

/// A token is replaced this long before it expires; a short-lived one after four fifths of its
/// lifetime.
const REPLACE_BEFORE: Duration = Duration::from_secs(60);
/// Time between two attempts to replace a token that is still valid.
const RETRY: Duration = Duration::from_secs(1);
/// Lifetime of a token if the NRF does not state it.
const DEFAULT_LIFE_S: u32 = 60;

/// The identity of an NF, and its proof for the NRF.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// NF instance.
    pub id: NfInstanceId,
    /// NF type.
    pub nf_type: NfType,
    /// Signs assertions; `None` if the TLS certificate is the proof.
    pub secret: Option<Secret>,
}

/// A token, ready to be sent.
#[derive(Debug, Clone)]
struct Token {
    header: HeaderValue,
    replace_at: Instant,
    expires: Instant,
}

/// The tokens of one client, by service name.
#[derive(Debug, Default)]
pub(crate) struct Wallet {
    tokens: Mutex<HashMap<&'static str, Token>>,
    /// Held during a request to the NRF: a thousand calls at the start make one request per service.
    asking: Arc<tokio::sync::Mutex<()>>,
    /// Number of failed requests, and the reason of the latest: calls that waited for it get the same
    /// answer.
    failure: Mutex<(u64, Option<(&'static str, String)>)>,
}

impl Wallet {
    /// The `Authorization` header for calls to `service`, stored or fetched from the NRF.
    pub(crate) async fn token(
        &self,
        client: &Client,
        credentials: &Credentials,
        service: &Service,
    ) -> Result<HeaderValue, String> {
        let now = time::now();
        if let Some(token) = self.held(service.name, now) {
            // A task fetches the next token while calls use this one: the NRF may be slow or down.
            if now >= token.replace_at
                && let Ok(asking) = self.asking.clone().try_lock_owned()
            {
                tokio::spawn(replace(client.clone(), credentials.clone(), service.clone(), asking));
            }
            return Ok(token.header);
        }
        let failures_before = self.failure().0;
        let _asking = self.asking.lock().await;
        if let Some(token) = self.held(service.name, now) {
            return Ok(token.header);
        }
        if let (count, Some((failed, reason))) = self.failure()
            && count != failures_before
            && failed == service.name
        {
            return Err(reason);
        }
        match fetch(client, credentials, service).await {
            Ok(token) => {
                let header = token.header.clone();
                self.tokens().insert(service.name, token);
                Ok(header)
            }
            Err(reason) => {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                *failure = (failure.0 + 1, Some((service.name, reason.clone())));
                Err(reason)
            }
        }
    }

    /// Deletes a token that a server refused.
    pub(crate) fn forget(&self, service: &Service, refused: &HeaderValue) {
        let mut tokens = self.tokens();
        if tokens.get(service.name).is_some_and(|token| token.header == refused) {
            tokens.remove(service.name);
        }
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<&'static str, Token>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> (u64, Option<(&'static str, String)>) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn held(&self, service: &str, now: Instant) -> Option<Token> {
        let tokens = self.tokens();
        tokens.get(service).filter(|token| now < token.expires).cloned()
    }
}

/// Replaces a token that expires soon. After a failure the next attempt comes [`RETRY`] later.
///
/// The result has a named type because a call starts this task and the task makes a call: the compiler cannot
/// infer a type that contains itself.
fn replace(
    client: Client,
    credentials: Credentials,
    service: Service,
    asking: OwnedMutexGuard<()>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let fetched = fetch(&client, &credentials, &service).await;
        let mut tokens = client.wallet().tokens();
        match fetched {
            Ok(token) => _ = tokens.insert(service.name, token),
            Err(reason) => {
                tracing::debug!(service = service.name, reason, "the access token was not replaced");
                if let Some(token) = tokens.get_mut(service.name) {
                    token.replace_at = time::now() + RETRY;
                }
            }
        }
        drop(asking);
    })
}

/// Requests a token from the NRF (TS 29.510 §5.4.2.2).
async fn fetch(client: &Client, credentials: &Credentials, service: &Service) -> Result<Token, String> {
    let nrf = client.config().nrf.clone().ok_or("no address of the NRF is configured")?;
    TOKENS_REQUESTED.inc();
    let asked = time::now();
    let assertion = credentials
        .secret
        .as_ref()
        .map(|secret| secret.sign(&AssertionClaims::new(credentials.id, time::wall_clock())));
    let target = service.offered_by.clone().unwrap_or(NfType::Other(CALLBACK_AUDIENCE.into()));
    let body = AccessTokenReq {
        grant_type: AccessTokenReq::CLIENT_CREDENTIALS.to_owned(),
        nf_instance_id: credentials.id,
        nf_type: Some(credentials.nf_type.clone()),
        target_nf_type: Some(target),
        scope: service.name.to_owned(),
        target_nf_instance_id: None,
        client_assertion_type: assertion.as_ref().map(|_| AccessTokenReq::JWT_BEARER.to_owned()),
        client_assertion: assertion.map(Into::into),
    };
    let call = client.call::<RequestToken>(Target::At(nrf), RequestTokenRequest { body });
    let answer = call.await.map_err(|error| error.to_string())?;
    // Not marked as sensitive, so HPACK indexes it: from a connection's second call on it takes one
    // octet.
    let header = HeaderValue::try_from(format!("Bearer {}", answer.access_token.expose()))
        .map_err(|_| "the NRF's access token is no token".to_owned())?;
    let life = Duration::from_secs(answer.expires_in.unwrap_or(DEFAULT_LIFE_S).into());
    let replace_after = life.saturating_sub(REPLACE_BEFORE).max(life * 4 / 5);
    Ok(Token { header, replace_at: asked + replace_after, expires: asked + life })
}
