//! Nnrf_AccessToken (TS 29.510 §5.4, TS 33.501 §13.4.1.1): which NF gets which access token.
//!
//! A request passes these checks: the form is complete; the NF has proved its instance and type
//! ([`Authority::authenticate`]); its type may use every requested service, and the target offers them
//! (`granted`). Then the token is signed. Errors are those of RFC 6749 §5.2, always with status 400.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use net::time::{self, Duration, Instant};
use nf::{Trust, TrustError};
use sbi::{
    access::{AccessTokenClaims, Audience, CALLBACK_AUDIENCE, Secret, SigningKey, jws},
    model::{
        common::NfInstanceId,
        nrf::{AccessTokenErr, AccessTokenReq, AccessTokenRsp, NfType},
    },
    op::{RESOURCE_SCOPES, services},
};
use telemetry::counters::{Counter, Family};

use crate::{context::Registry, owners::Owners};

/// Most scopes in one request; our own requests have one.
const MAX_SCOPES: usize = 32;
/// Shortest time between two refusals in the log: anyone who reaches the NRF can cause them. The counter has all.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two reads of the secrets. An assertion that matches none may be signed with a
/// new one.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// NF types of our own core, each with a secret on the NRF's machine.
const LOCAL_TYPES: [NfType; 7] =
    [NfType::Nrf, NfType::Udr, NfType::Udm, NfType::Ausf, NfType::Pcf, NfType::Smf, NfType::Amf];

static GRANTED: Counter = Counter::new("nrf_tokens_granted");
static REFUSED: Family = Family::new("nrf_tokens_refused", "error");

/// The keys with which the NRF signs tokens and authenticates NFs.
#[derive(Debug)]
pub struct Authority {
    id: NfInstanceId,
    key: SigningKey,
    life: Duration,
    trust: Trust,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Secrets by NF type, with the time they were read.
    secrets: HashMap<NfType, (Instant, Vec<(String, Secret)>)>,
    owners: Owners,
    /// When a refusal was logged last.
    logged: Option<Instant>,
}

/// A consumer that has proved its identity.
#[derive(Debug)]
struct Consumer {
    id: NfInstanceId,
    nf_type: NfType,
}

impl Authority {
    /// The authority of an NRF instance.
    ///
    /// # Errors
    /// The signing key cannot be used.
    pub fn new(id: NfInstanceId, trust: Trust, life: Duration) -> Result<Self, TrustError> {
        let key = trust.signing_key()?;
        // Created and read now, while the process may still have the rights to do so.
        let mut known = Known { owners: Owners::open(trust.folder()), ..Known::default() };
        for nf_type in LOCAL_TYPES {
            trust.secret(&nf_type)?;
            let secrets = trust.secrets(&nf_type)?;
            known.secrets.insert(nf_type, (time::now(), secrets));
        }
        Ok(Self { id, key, life, trust, known: Mutex::new(known) })
    }

    /// Answers a request for a token; `certified` is the NF instance that the client's TLS certificate names.
    ///
    /// # Errors
    /// The error for the requester.
    pub fn grant(
        &self,
        registry: &Registry,
        request: &AccessTokenReq,
        certified: Option<NfInstanceId>,
    ) -> Result<AccessTokenRsp, AccessTokenErr> {
        let granted = self.try_grant(registry, request, certified);
        match &granted {
            Ok(_) => GRANTED.inc(),
            Err(error) => {
                REFUSED.inc(&error.error);
                self.log_refusal(request, error);
            }
        }
        granted
    }

    fn log_refusal(&self, request: &AccessTokenReq, error: &AccessTokenErr) {
        let now = time::now();
        let mut known = self.known();
        if known.logged.is_some_and(|last| now - last < LOG_INTERVAL) {
            return;
        }
        known.logged = Some(now);
        drop(known);
        tracing::info!(
            id = %request.nf_instance_id,
            nf_type = request.nf_type.as_ref().map(|nf_type| printable(nf_type.as_str())),
            scope = printable(&request.scope),
            error = error.error,
            reason = error.description,
            "no access token"
        );
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_grant(
        &self,
        registry: &Registry,
        request: &AccessTokenReq,
        certified: Option<NfInstanceId>,
    ) -> Result<AccessTokenRsp, AccessTokenErr> {
        if request.grant_type != AccessTokenReq::CLIENT_CREDENTIALS {
            return Err(AccessTokenErr::new("unsupported_grant_type", "only client_credentials"));
        }
        if certified.is_some_and(|certified| certified != request.nf_instance_id) {
            return Err(AccessTokenErr::new("invalid_client", "the certificate names another NF instance"));
        }
        let consumer = self.authenticate(request)?;
        let audience = audience(registry, request)?;
        let asked: Vec<&str> = request.scope.split(' ').filter(|scope| !scope.is_empty()).collect();
        if asked.is_empty() || asked.len() > MAX_SCOPES {
            return Err(AccessTokenErr::new("invalid_scope", "name the services"));
        }
        let mut scopes: Vec<&str> = Vec::new();
        for scope in &asked {
            if !granted(registry, &consumer.nf_type, &audience.target, scope) {
                let reason = format!(
                    "{} is not for {} from {}",
                    printable(scope),
                    consumer.nf_type,
                    printable(audience.target.as_str())
                );
                return Err(AccessTokenErr::new("invalid_scope", reason));
            }
            scopes.push(scope);
            // With a service, the token contains the service's resource-level scopes that this type of
            // NF may have: NFs that do not know them request only the service.
            let within =
                |resource: &str| resource.strip_prefix(scope).is_some_and(|rest| rest.starts_with(':'));
            let entitled =
                RESOURCE_SCOPES.iter().filter(|(resource, nf)| *nf == consumer.nf_type && within(resource));
            scopes.extend(entitled.map(|(resource, _)| *resource));
        }
        scopes.sort_unstable();
        scopes.dedup();
        let scope = scopes.join(" ");
        let claims = AccessTokenClaims {
            iss: self.id.to_string(),
            sub: consumer.id,
            aud: audience.claim,
            scope: scope.clone(),
            exp: jws::seconds(time::wall_clock()) + self.life.as_secs(),
            nf_type: Some(consumer.nf_type),
        };
        let token = self.key.sign(&claims).map_err(|error| {
            tracing::error!(%error, "cannot sign");
            AccessTokenErr::new("invalid_request", "the NRF cannot sign")
        })?;
        Ok(AccessTokenRsp {
            access_token: token.into(),
            token_type: "Bearer".to_owned(),
            expires_in: Some(self.life.as_secs() as u32),
            scope: (scope != request.scope).then_some(scope),
        })
    }

    /// Authenticates the requester by the assertion that its secret signed.
    fn authenticate(&self, request: &AccessTokenReq) -> Result<Consumer, AccessTokenErr> {
        let invalid = |reason: &str| AccessTokenErr::new("invalid_client", reason);
        let nf_type = request
            .nf_type
            .clone()
            .ok_or_else(|| AccessTokenErr::new("invalid_request", "nfType is missing"))?;
        if request.client_assertion_type.as_deref() != Some(AccessTokenReq::JWT_BEARER) {
            return Err(invalid("prove yourself: client_assertion_type must be that of RFC 7523"));
        }
        let assertion =
            request.client_assertion.as_ref().ok_or_else(|| invalid("client_assertion is missing"))?;
        let id = request.nf_instance_id;
        let signer = self
            .signer(&nf_type, assertion.expose(), false)
            .or_else(|| self.signer(&nf_type, assertion.expose(), true));
        let (name, claims) = signer.ok_or_else(|| invalid("the assertion fits no secret of this NF type"))?;
        claims.check(id, time::wall_clock()).map_err(|error| invalid(&format!("the assertion: {error}")))?;
        if !self.known().owners.claim(id, &name) {
            return Err(invalid("the instance belongs to another NF"));
        }
        Ok(Consumer { id, nf_type })
    }

    /// Name of the secret that signed an assertion. `reload` reads the secrets again, unless that was
    /// done shortly before.
    fn signer(
        &self,
        nf_type: &NfType,
        assertion: &str,
        reload: bool,
    ) -> Option<(String, sbi::access::AssertionClaims)> {
        let mut known = self.known();
        let now = time::now();
        let read = known.secrets.get(nf_type).map(|(read, _)| *read);
        let due = match read {
            None => true,
            Some(read) => reload && now - read >= RELOAD_INTERVAL,
        };
        if due {
            match self.trust.secrets(nf_type) {
                // A type without secrets is not stored, because callers can invent any number of types.
                Ok(secrets) if secrets.is_empty() => _ = known.secrets.remove(nf_type),
                Ok(secrets) => _ = known.secrets.insert(nf_type.clone(), (now, secrets)),
                // The secrets read before are kept: this process may have given up the right to read
                // them.
                Err(error) => {
                    tracing::debug!(%error, "cannot read the secrets of NFs");
                    if let Some((read, _)) = known.secrets.get_mut(nf_type) {
                        *read = now;
                    }
                }
            }
        } else if reload {
            return None;
        }
        let (_, secrets) = known.secrets.get(nf_type)?;
        secrets.iter().find_map(|(name, secret)| Some((name.clone(), secret.verify(assertion).ok()?)))
    }
}

/// The audience of a token.
struct Target {
    target: NfType,
    claim: Audience,
}

fn audience(registry: &Registry, request: &AccessTokenReq) -> Result<Target, AccessTokenErr> {
    let invalid = |reason: &str| AccessTokenErr::new("invalid_request", reason);
    if let Some(id) = request.target_nf_instance_id {
        let profile =
            registry.get(id, time::now()).ok_or_else(|| invalid("targetNfInstanceId is not registered"))?;
        return Ok(Target { target: profile.nf_type, claim: Audience::Instances(vec![id.to_string()]) });
    }
    let target = request.target_nf_type.clone().ok_or_else(|| invalid("targetNfType is missing"))?;
    let claim = Audience::Type(target.to_string());
    Ok(Target { target, claim })
}

/// Whether NFs of type `consumer` may have `scope` at NFs of type `target`.
///
/// For 3GPP services that we know, the consumers that TS 23.501 names are allowed, whatever a profile
/// says. For other services, those that a registered instance allows.
fn granted(registry: &Registry, consumer: &NfType, target: &NfType, scope: &str) -> bool {
    if let Some((_, nf)) = RESOURCE_SCOPES.iter().find(|(resource, _)| *resource == scope) {
        let service = scope.split(':').next().unwrap_or_default();
        return nf == consumer && granted(registry, consumer, target, service);
    }
    if let Some(service) = services().find(|service| service.name == scope) {
        let offered = match &service.offered_by {
            Some(offers) => offers == target,
            None => target.as_str() == CALLBACK_AUDIENCE,
        };
        return offered && service.is_for(consumer);
    }
    registry.list(Some(target), usize::MAX, time::now()).iter().any(|profile| {
        let services = profile.nf_services.iter().chain(profile.nf_service_list.values());
        let allows = |allowed: &[NfType]| allowed.is_empty() || allowed.contains(consumer);
        allows(&profile.allowed_nf_types)
            && services.into_iter().any(|s| s.service_name == scope && allows(&s.allowed_nf_types))
    })
}

/// Text of a peer, for the log and for answers.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}
