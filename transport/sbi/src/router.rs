//! The handlers of operations.
//!
//! A [`Router`] has one type-erased endpoint per operation. A binding finds it with `Router::answer`,
//! which parses parameters and content, calls the handler, and turns its result into an answer. Every
//! refusal before the handler is counted and answered as TS 29.500 §5.2.7.2 says.

use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc};

use crate::{
    access::{Access, Caller, Guard},
    codec::{Codec, DecodeError},
    counters::{SERVER_PROBLEMS, SERVER_REJECTED, SERVER_REQUESTS},
    exchange::{Answer, Incoming, Remedy},
    message::Media,
    operation::{Body, Method, Operation, OperationError, Request, Response, Service},
    param::{InvalidParam, ParamReader},
    problem::ProblemDetails,
};

/// An async function that serves operation `O` with state `S`.
pub trait Handler<S, O: Operation>: Fn(Arc<S>, O::Request) -> Self::Future + Send + Sync + 'static {
    /// The handler's future.
    type Future: Future<Output = Result<O::Response, O::Error>> + Send + 'static;
}

impl<S, O, F, Fut> Handler<S, O> for F
where
    O: Operation,
    F: Fn(Arc<S>, O::Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O::Response, O::Error>> + Send + 'static,
{
    type Future = Fut;
}

type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;
/// Parses the request and starts the handler; answers at once if parsing fails.
type Endpoint =
    Box<dyn Fn(&ParamReader<'_>, Incoming<'_>, Codec, &dyn Fn(&str) -> String) -> Pending + Send + Sync>;

struct Route {
    method: Method,
    /// Segments of the template; parameters in braces.
    template: Vec<&'static str>,
    operation: &'static str,
    offered: Service,
    access: Access,
    media: Option<Media>,
    endpoint: Endpoint,
}

/// The operations that an NF offers, for [`crate::serve`].
pub struct Router<S> {
    state: Arc<S>,
    table: Table,
}

/// Routes by `service/version`.
#[derive(Default)]
pub(crate) struct Table {
    services: HashMap<(&'static str, &'static str), Vec<Route>>,
    offered: Vec<Service>,
}

impl<S> std::fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("services", &self.table.offered).finish_non_exhaustive()
    }
}

impl<S: Send + Sync + 'static> Router<S> {
    /// A router whose handlers share `state`.
    pub fn new(state: Arc<S>) -> Self {
        Self { state, table: Table::default() }
    }

    /// Serves operation `O` with `handler`, an `async fn(Arc<S>, O::Request) -> Result<O::Response, O::Error>`.
    #[must_use]
    pub fn on<O: Operation>(self, handler: impl Handler<S, O>) -> Self {
        self.on_behalf::<O, _, _>(move |state, request, _| handler(state, request))
    }

    /// As [`Self::on`], with a handler that also gets the caller.
    #[must_use]
    pub fn on_behalf<O, F, Fut>(mut self, handler: F) -> Self
    where
        O: Operation,
        F: Fn(Arc<S>, O::Request, Caller) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O::Response, O::Error>> + Send + 'static,
    {
        let state = self.state.clone();
        let endpoint: Endpoint = Box::new(move |params, incoming, codec, resource_root| {
            let Incoming { api_root, payload, caller, .. } = incoming;
            let body = match <O::Request as Request>::Body::decode(payload, codec) {
                Ok(body) => body,
                Err(error) => return Box::pin(std::future::ready(reject_body(&error, codec))),
            };
            let request = match O::Request::read(params, body) {
                Ok(request) => request,
                Err(error) => return Box::pin(std::future::ready(reject_param(error, codec))),
            };
            let root = resource_root(&api_root);
            let future = handler(state.clone(), request, caller);
            let no_store = O::ACCESS == Access::Open;
            Box::pin(async move { Answer { no_store, ..answer::<O>(future.await, codec, &root) } })
        });
        let route = Route {
            method: O::METHOD,
            template: segments(O::PATH).collect(),
            operation: O::NAME,
            offered: O::SERVICE,
            access: O::ACCESS,
            media: <O::Request as Request>::Body::MEDIA,
            endpoint,
        };
        if !self.table.offered.contains(&O::SERVICE) {
            self.table.offered.push(O::SERVICE);
        }
        self.table.services.entry((O::SERVICE.name, O::SERVICE.version)).or_default().push(route);
        self
    }

    /// The services of the operations added so far, for an NF profile. Callbacks are left out.
    pub fn services(&self) -> Vec<Service> {
        self.table.offered.iter().filter(|s| s.offered_by.is_some()).cloned().collect()
    }

    pub(crate) fn into_table(self) -> Table {
        self.table
    }
}

/// The route for a path, with its parameters.
pub(crate) struct Found<'a> {
    route: &'a Route,
    params: Vec<(&'static str, &'a str)>,
    service: (&'a str, &'a str),
}

impl Found<'_> {
    /// Media type of the content the operation expects.
    pub(crate) fn media(&self) -> Option<Media> {
        self.route.media
    }

    /// Name of the operation.
    pub(crate) fn operation(&self) -> &'static str {
        self.route.operation
    }

    /// Whether it needs no access token.
    pub(crate) fn is_open(&self) -> bool {
        self.route.access == Access::Open
    }

    /// Who calls, when `guard` lets the request pass.
    ///
    /// # Errors
    /// 401 or 403, ready to send.
    pub(crate) fn admit(&self, guard: &Guard, authorization: Option<&str>) -> Result<Caller, Answer> {
        guard.check(&self.route.offered, self.route.access, authorization).map_err(|refusal| {
            let problem = refusal.problem();
            tracing::debug!(operation = self.operation(), %problem, "refused");
            Answer { remedy: Some(Remedy::Authenticate(refusal.challenge)), ..reject(problem, Codec::Json) }
        })
    }
}

impl Table {
    /// Finds the operation for a method and path, before any content is read.
    ///
    /// # Errors
    /// 404 or 405, ready to send.
    pub(crate) fn find<'a>(&'a self, method: &str, path: &'a str) -> Result<Found<'a>, Answer> {
        SERVER_REQUESTS.inc();
        let mut path_segments = segments(path);
        let (name, version) =
            (path_segments.next().unwrap_or_default(), path_segments.next().unwrap_or_default());
        let Some(routes) = self.services.get(&(name, version)) else {
            let known = self.services.keys().any(|(n, _)| *n == name);
            let cause = if known { "INVALID_API" } else { "RESOURCE_URI_STRUCTURE_NOT_FOUND" };
            return Err(reject(ProblemDetails::new(if known { 400 } else { 404 }, cause), Codec::Json));
        };
        let rest: Vec<&str> = path_segments.collect();
        let mut allowed = Vec::new();
        for route in routes {
            let Some(params) = match_template(&route.template, &rest) else { continue };
            if route.method.as_str() == method {
                return Ok(Found { route, params, service: (name, version) });
            }
            allowed.push(route.method.as_str());
        }
        if allowed.is_empty() {
            return Err(reject(ProblemDetails::resource_uri_structure_not_found(), Codec::Json));
        }
        let problem = ProblemDetails::new(405, "METHOD_NOT_ALLOWED");
        let remedy = Some(Remedy::Allow(allowed.join(", ").into()));
        Err(Answer { remedy, ..reject(problem, Codec::Json) })
    }

    /// Runs the operation.
    pub(crate) fn answer(&self, found: &Found<'_>, incoming: Incoming<'_>, codec: Codec) -> Pending {
        let params = ParamReader::new(found.params.clone(), incoming.query);
        let (name, version) = found.service;
        let root = move |api_root: &str| format!("{api_root}/{name}/{version}");
        (found.route.endpoint)(&params, incoming, codec, &root)
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

/// Compares a path with a template; returns the parameters if they match.
fn match_template<'a>(template: &[&'static str], path: &[&'a str]) -> Option<Vec<(&'static str, &'a str)>> {
    if template.len() != path.len() {
        return None;
    }
    let mut params = Vec::new();
    for (expected, segment) in template.iter().zip(path) {
        match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(name) => params.push((name, *segment)),
            None if expected == segment => {}
            None => return None,
        }
    }
    Some(params)
}

/// Turns a handler's result into an answer; completes a relative `Location`.
fn answer<O: Operation>(result: Result<O::Response, O::Error>, codec: Codec, resource_root: &str) -> Answer {
    match result {
        Ok(response) => {
            let mut reply = response.into_reply(codec);
            if let Some(location) = reply.location.as_mut().filter(|location| location.starts_with('/')) {
                location.insert_str(0, resource_root);
            }
            Answer::success(reply)
        }
        Err(error) => {
            let problem = error.problem();
            SERVER_PROBLEMS.inc(&problem.cause);
            tracing::debug!(operation = O::NAME, %problem, "refused");
            // If a handler forgot the status, the answer must not look like a success.
            let status = if (400..600).contains(&problem.status) { problem.status } else { 500 };
            Answer::failure(status, error.encode(codec))
        }
    }
}

/// Counts and answers a request that does not reach a handler.
pub(crate) fn reject(problem: ProblemDetails, codec: Codec) -> Answer {
    SERVER_REJECTED.inc(&problem.cause);
    Answer::failure(problem.status, codec.encode(problem))
}

fn reject_body(error: &DecodeError, codec: Codec) -> Answer {
    let problem = match error {
        DecodeError::Missing => ProblemDetails::new(400, "MANDATORY_IE_MISSING").detail("content is missing"),
        DecodeError::Malformed { attribute, reason, well_formed } => {
            let cause = match (*well_formed, reason.contains("missing field")) {
                (false, _) => "INVALID_MSG_FORMAT",
                (true, true) => "MANDATORY_IE_MISSING",
                (true, false) => "MANDATORY_IE_INCORRECT",
            };
            ProblemDetails::new(400, cause).invalid_param(attribute, reason)
        }
        DecodeError::MissingPart(id) => ProblemDetails::mandatory_ie_missing(id).detail(error),
        DecodeError::MissingLocation => ProblemDetails::invalid_msg_format(),
    };
    reject(problem, codec)
}

fn reject_param(error: InvalidParam, codec: Codec) -> Answer {
    let cause = match (error.in_path, error.missing) {
        (true, _) => "INVALID_RESOURCE_URI",
        (false, true) => "MANDATORY_QUERY_PARAM_MISSING",
        (false, false) => "INVALID_QUERY_PARAM",
    };
    // An impossible identifier in the path is a bad request: TS 29.500 has no separate cause for it.
    let cause = if error.in_path { "MANDATORY_IE_INCORRECT" } else { cause };
    reject(ProblemDetails::new(400, cause).invalid_param(error.name, error.reason), codec)
}
