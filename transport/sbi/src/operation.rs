//! SBI operations: a type that declares its request, its answer, its path and method.
//!
//! This module is independent of the transport. A binding (such as `http_json`) asks an operation for
//! its parameters and body, sends them, and rebuilds the request on the other side with the same
//! traits. So each path, parameter and status code is written once, in [`crate::op`].
//!
//! Read first: [`Operation`], then the `operation!` macro in `op/mod.rs`.

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    access::Access,
    codec::{Codec, DecodeError, Payload},
    message::{Media, PartSlot},
    model::nrf::NfType,
    param::{InvalidParam, ParamReader, ParamWriter},
    problem::ProblemDetails,
};

/// A service of TS 29.5xx: the API name and version that begin its paths, and the NF type that offers it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Service {
    /// API name in the URI, such as `nudm-sdm`.
    pub name: &'static str,
    /// API version in the URI, such as `v2`.
    pub version: &'static str,
    /// Version as NRF profiles state it in full, such as `2.2.0`.
    pub full_version: &'static str,
    /// The NF type that offers it, for discovery. `None` for callbacks, which are called at a given
    /// URI.
    pub offered_by: Option<NfType>,
    /// NF types that may use it; empty: all.
    pub consumers: &'static [NfType],
}

impl Service {
    /// Whether NFs of this type may use it.
    pub fn is_for(&self, consumer: &NfType) -> bool {
        self.consumers.is_empty() || self.consumers.contains(consumer)
    }
}

/// HTTP method of an operation; other bindings only carry it for logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Read a resource.
    Get,
    /// Create a resource under a collection, or act on one.
    Post,
    /// Create or replace a resource whose name the caller knows.
    Put,
    /// Change part of a resource.
    Patch,
    /// Remove a resource.
    Delete,
}

impl Method {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// Whether a repetition has the same effect as a single request (RFC 9110 §9.2.2).
    pub const fn is_idempotent(self) -> bool {
        matches!(self, Self::Get | Self::Put | Self::Delete)
    }
}

/// One 3GPP service operation. Types that implement it are never built: they only name the operation.
pub trait Operation: Send + Sync + 'static {
    /// The service it belongs to.
    const SERVICE: Service;
    /// Name for logs, counters and captures, such as `Nudm_SDM_Get(am-data)`.
    const NAME: &'static str;
    /// HTTP method.
    const METHOD: Method;
    /// Path below `{apiRoot}/{service}/{version}`, with parameters in braces.
    const PATH: &'static str;
    /// What a caller needs besides an access token for the service.
    const ACCESS: Access = Access::Service;
    /// Parameters and body.
    type Request: Request;
    /// The successful answer.
    type Response: Response;
    /// The answer of a failure; [`ProblemDetails`] unless the standard adds attributes.
    type Error: OperationError;
}

/// A notification that one NF sends to a URI another NF gave it earlier.
///
/// Our own NFs serve callbacks under their own paths, ending in an identifier they chose;
/// [`callback_uri`] writes that URI, `Client::notify` calls whatever URI the peer gave.
pub trait Callback:
    Operation<Request = Notification<Self::Body>, Response = (), Error = ProblemDetails>
{
    /// Body of the notification.
    type Body: Message;
}

/// A received notification.
#[derive(Debug, Clone, PartialEq)]
pub struct Notification<B> {
    /// The last path segment of the URI that the receiver gave out.
    pub id: String,
    /// The content of the notification.
    pub body: B,
}

/// The URI to give to a peer, so that its notifications arrive at `Router::on::<O>` with `id`.
pub fn callback_uri<O: Callback>(api_root: &str, id: &str) -> String {
    let mut path = ParamWriter::new(O::PATH);
    path.path(&id.to_owned());
    let Service { name, version, .. } = O::SERVICE;
    format!("{}/{name}/{version}{}", api_root.trim_end_matches('/'), path.finish())
}

/// Parameters and body of a request; implemented by the `operation!` macro.
pub trait Request: Sized + Send + 'static {
    /// The content; `()` if there is none, `Option` if it is optional.
    type Body: Body;
    /// Writes the path parameters in the order of the template, then the query parameters.
    fn write_params(&self, params: &mut ParamWriter);
    /// Returns the body and drops the rest.
    fn into_body(self) -> Self::Body;
    /// Builds the request from received parameters and body.
    ///
    /// # Errors
    /// The parameter that is missing or invalid.
    fn read(params: &ParamReader<'_>, body: Self::Body) -> Result<Self, InvalidParam>;
}

impl<B: Message> Request for Notification<B> {
    type Body = B;

    fn write_params(&self, params: &mut ParamWriter) {
        params.path(&self.id);
    }

    fn into_body(self) -> B {
        self.body
    }

    fn read(params: &ParamReader<'_>, body: B) -> Result<Self, InvalidParam> {
        Ok(Self { id: params.path("id")?, body })
    }
}

/// A data type of the standard that is sent as content.
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// Media type in the JSON binding.
    const MEDIA: Media = Media::Json;

    /// Visits the binary parts (N1 and N2 containers) in a fixed order.
    fn parts(&mut self, _visit: &mut dyn FnMut(PartSlot<'_>)) {}
}

/// Content of a request: none, mandatory or optional.
pub trait Body: Sized + Send + 'static {
    /// Media types accepted; empty when no content is expected.
    const MEDIA: Option<Media>;
    /// Writes the content with `codec`.
    fn encode(self, codec: Codec) -> Option<Payload>;
    /// Reads the content with `codec`.
    ///
    /// # Errors
    /// Content that is missing, malformed or lacks a part it refers to.
    fn decode(payload: Option<Payload>, codec: Codec) -> Result<Self, DecodeError>;
}

impl Body for () {
    const MEDIA: Option<Media> = None;

    fn encode(self, _: Codec) -> Option<Payload> {
        None
    }

    /// Content nobody asked for is ignored (RFC 9110 §9.3.1).
    fn decode(_: Option<Payload>, _: Codec) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<T: Message> Body for T {
    const MEDIA: Option<Media> = Some(T::MEDIA);

    fn encode(self, codec: Codec) -> Option<Payload> {
        Some(codec.encode(self))
    }

    fn decode(payload: Option<Payload>, codec: Codec) -> Result<Self, DecodeError> {
        codec.decode(payload.ok_or(DecodeError::Missing)?)
    }
}

impl<T: Message> Body for Option<T> {
    const MEDIA: Option<Media> = Some(T::MEDIA);

    fn encode(self, codec: Codec) -> Option<Payload> {
        self.map(|body| codec.encode(body))
    }

    fn decode(payload: Option<Payload>, codec: Codec) -> Result<Self, DecodeError> {
        payload.map(|payload| codec.decode(payload)).transpose()
    }
}

/// The kind of success of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Success {
    /// 200: the content is the result.
    Ok,
    /// 201: a resource was created; its URI is in `Location`.
    Created,
    /// 202: accepted, not done yet.
    Accepted,
    /// 204: done, without content.
    NoContent,
}

/// A successful answer to be sent, or a received one.
#[derive(Debug)]
pub struct Reply {
    /// Kind of success.
    pub success: Success,
    /// URI of the resource that was created.
    pub location: Option<String>,
    /// Content.
    pub payload: Option<Payload>,
}

/// The success answer of an operation: says which status codes it uses.
///
/// `()` is 204, a message 200, `Option<message>` 200 or 204, [`Created`] 201, [`Stored`] 201 or 200 or 204,
/// [`Initiated`] 200 or 202.
pub trait Response: Sized + Send + 'static {
    /// Writes status, location and content.
    fn into_reply(self, codec: Codec) -> Reply;
    /// Reads status, location and content. Any success status is accepted if the content fits.
    ///
    /// # Errors
    /// Content or a location that is missing or malformed.
    fn from_reply(reply: Reply, codec: Codec) -> Result<Self, DecodeError>;
}

impl Response for () {
    fn into_reply(self, _: Codec) -> Reply {
        Reply { success: Success::NoContent, location: None, payload: None }
    }

    fn from_reply(_: Reply, _: Codec) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<T: Message> Response for T {
    fn into_reply(self, codec: Codec) -> Reply {
        Reply { success: Success::Ok, location: None, payload: Some(codec.encode(self)) }
    }

    fn from_reply(reply: Reply, codec: Codec) -> Result<Self, DecodeError> {
        Body::decode(reply.payload, codec)
    }
}

impl<T: Message> Response for Option<T> {
    fn into_reply(self, codec: Codec) -> Reply {
        let success = if self.is_some() { Success::Ok } else { Success::NoContent };
        Reply { success, location: None, payload: self.encode(codec) }
    }

    fn from_reply(reply: Reply, codec: Codec) -> Result<Self, DecodeError> {
        Body::decode(reply.payload, codec)
    }
}

/// 201: a resource was created by POST.
///
/// The server may give `location` relative to its service (`/sm-contexts/7`): the router completes it.
/// The client always sees an absolute URI and takes `ResourceUri` from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Created<T> {
    /// URI of the resource.
    pub location: String,
    /// The representation of the resource.
    pub body: T,
}

impl<T: Message> Response for Created<T> {
    fn into_reply(self, codec: Codec) -> Reply {
        let payload = Some(codec.encode(self.body));
        Reply { success: Success::Created, location: Some(self.location), payload }
    }

    fn from_reply(reply: Reply, codec: Codec) -> Result<Self, DecodeError> {
        let location = reply.location.ok_or(DecodeError::MissingLocation)?;
        Ok(Self { location, body: Body::decode(reply.payload, codec)? })
    }
}

/// Answer to PUT: the resource is new (201) or existed before (200 with content, 204 without).
#[derive(Debug, Clone, PartialEq)]
pub enum Stored<T> {
    /// 201, with the URI of the new resource.
    Created(Created<T>),
    /// 200 or 204.
    Replaced(Option<T>),
}

impl<T: Message> Response for Stored<T> {
    fn into_reply(self, codec: Codec) -> Reply {
        match self {
            Self::Created(created) => created.into_reply(codec),
            Self::Replaced(body) => body.into_reply(codec),
        }
    }

    fn from_reply(reply: Reply, codec: Codec) -> Result<Self, DecodeError> {
        if reply.success == Success::Created {
            return Response::from_reply(reply, codec).map(Self::Created);
        }
        Response::from_reply(reply, codec).map(Self::Replaced)
    }
}

/// Done at once (200), or begun (202) with a URI for the pending work.
#[derive(Debug, Clone, PartialEq)]
pub enum Initiated<T> {
    /// 200.
    Done(T),
    /// 202.
    Pending {
        /// URI of the pending work, if the server gave one.
        location: Option<String>,
        /// The result so far.
        body: T,
    },
}

impl<T> Initiated<T> {
    /// The content in either case.
    pub fn body(&self) -> &T {
        match self {
            Self::Done(body) | Self::Pending { body, .. } => body,
        }
    }
}

impl<T: Message> Response for Initiated<T> {
    fn into_reply(self, codec: Codec) -> Reply {
        match self {
            Self::Done(body) => body.into_reply(codec),
            Self::Pending { location, body } => {
                Reply { success: Success::Accepted, location, payload: Some(codec.encode(body)) }
            }
        }
    }

    fn from_reply(reply: Reply, codec: Codec) -> Result<Self, DecodeError> {
        let body = Body::decode(reply.payload, codec)?;
        Ok(match reply.success {
            Success::Accepted => Self::Pending { location: reply.location, body },
            _ => Self::Done(body),
        })
    }
}

/// The failure answer of an operation. Handlers may always answer with plain [`ProblemDetails`].
pub trait OperationError: std::fmt::Debug + From<ProblemDetails> + Send + 'static {
    /// Status, cause and detail.
    fn problem(&self) -> &ProblemDetails;
    /// Writes the content with its own media type.
    fn encode(self, codec: Codec) -> Payload;
    /// Reads the content; `None` when it is not of this form.
    fn decode(payload: Payload, codec: Codec) -> Option<Self>;
}

impl OperationError for ProblemDetails {
    fn problem(&self) -> &ProblemDetails {
        self
    }

    fn encode(self, codec: Codec) -> Payload {
        codec.encode(self)
    }

    fn decode(payload: Payload, codec: Codec) -> Option<Self> {
        codec.decode(payload).ok()
    }
}
