//! `ProblemDetails` (TS 29.571 §5.2.4.1, RFC 9457) and the protocol and application causes of
//! TS 29.500 table 5.2.7.2-1 that every API shares.

use serde::{Deserialize, Serialize};

use crate::{message::Media, operation::Message};

/// Why a request failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", default)]
#[error("{status} {cause}{}", detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
pub struct ProblemDetails {
    /// HTTP status code.
    pub status: u16,
    /// Machine-readable cause, such as `USER_NOT_FOUND`; empty when the peer gave none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// Short text for users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Details for users; never contains keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The wrong parameters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub invalid_params: Vec<InvalidParamInfo>,
}

/// One entry of `invalidParams`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvalidParamInfo {
    /// JSON pointer, or the name of the query or path parameter.
    pub param: String,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Message for ProblemDetails {
    const MEDIA: Media = Media::Problem;
}

impl ProblemDetails {
    /// A problem with a status code and a cause.
    pub fn new(status: u16, cause: &str) -> Self {
        Self { status, cause: cause.to_owned(), ..Self::default() }
    }

    /// Adds a sentence for users.
    #[must_use]
    pub fn detail(mut self, detail: impl std::fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    /// Adds a wrong parameter.
    #[must_use]
    pub fn invalid_param(mut self, param: impl Into<String>, reason: impl Into<String>) -> Self {
        self.invalid_params.push(InvalidParamInfo { param: param.into(), reason: Some(reason.into()) });
        self
    }

    /// 400: the message could not be parsed.
    pub fn invalid_msg_format() -> Self {
        Self::new(400, "INVALID_MSG_FORMAT")
    }

    /// 400: a mandatory attribute has a value it must not have.
    pub fn mandatory_ie_incorrect(attribute: &str, reason: impl Into<String>) -> Self {
        Self::new(400, "MANDATORY_IE_INCORRECT").invalid_param(attribute, reason)
    }

    /// 400: a mandatory attribute is missing.
    pub fn mandatory_ie_missing(attribute: &str) -> Self {
        Self::new(400, "MANDATORY_IE_MISSING").invalid_param(attribute, "must be given")
    }

    /// 403: the request is valid but must not be served; `cause` is the API's own.
    pub fn forbidden(cause: &str) -> Self {
        Self::new(403, cause)
    }

    /// 404: no such subscriber.
    pub fn user_not_found() -> Self {
        Self::new(404, "USER_NOT_FOUND")
    }

    /// 404: no such context (SM context, policy association, UE context…).
    pub fn context_not_found() -> Self {
        Self::new(404, "CONTEXT_NOT_FOUND")
    }

    /// 404: the URI names no resource of this API.
    pub fn resource_uri_structure_not_found() -> Self {
        Self::new(404, "RESOURCE_URI_STRUCTURE_NOT_FOUND")
    }

    /// 500: an internal error. The details are logged, not sent to the peer.
    pub fn system_failure() -> Self {
        Self::new(500, "SYSTEM_FAILURE")
    }

    /// 503: overloaded.
    pub fn nf_congestion() -> Self {
        Self::new(503, "NF_CONGESTION")
    }

    /// 504: another NF on which the answer depends did not answer.
    pub fn peer_not_responding() -> Self {
        Self::new(504, "TARGET_NF_NOT_REACHABLE")
    }

    /// Whether the cause is `cause`.
    pub fn is(&self, cause: &str) -> bool {
        self.cause == cause
    }
}
