//! Content of HTTP messages: a JSON document, `multipart/related` (RFC 2387) if there are binary parts,
//! or a form.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::LazyLock,
};

use bytes::{Bytes, BytesMut};

use crate::{
    codec::{Part, Payload},
    message::Media,
    param::{percent_decode, percent_encode},
};

/// Most binary parts of one message: the standard uses a handful.
const MAX_PARTS: usize = 16;
/// Most fields of one form: the request for a token has a dozen.
const MAX_FIELDS: usize = 64;
/// Our boundary, random and fixed for the process. Binary parts contain data from UEs, so a UE must not
/// be able to guess it and end a part early.
static BOUNDARY: LazyLock<String> = LazyLock::new(|| {
    // `RandomState` takes its keys from the operating system.
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
});

/// Why content was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContentError {
    /// An unknown media type.
    #[error("the media type is not supported")]
    MediaType,
    /// The multipart structure is broken.
    #[error("multipart content is broken: {0}")]
    Multipart(&'static str),
    /// The form is broken.
    #[error("the form is broken: {0}")]
    Form(&'static str),
}

/// Media type and octets to send.
pub(crate) fn write(payload: Payload) -> (String, Bytes) {
    if payload.media == Media::Form {
        return (payload.media.as_str().to_owned(), write_form(&payload.root));
    }
    if payload.parts.is_empty() {
        return (payload.media.as_str().to_owned(), payload.root);
    }
    let boundary = BOUNDARY.as_str();
    let size = payload.parts.iter().map(|p| p.data.len() + 160).sum::<usize>() + payload.root.len() + 160;
    let mut out = BytesMut::with_capacity(size);
    let mut part = |headers: &[&str], data: &[u8]| {
        for text in ["--", boundary, "\r\n"].iter().chain(headers) {
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    };
    part(&["Content-Type: ", payload.media.as_str(), "\r\n"], &payload.root);
    for p in &payload.parts {
        part(&["Content-Type: ", p.media.as_str(), "\r\nContent-Id: ", &p.id, "\r\n"], &p.data);
    }
    for text in ["--", boundary, "--\r\n"] {
        out.extend_from_slice(text.as_bytes());
    }
    let root = payload.media.as_str();
    (format!("multipart/related; boundary=\"{boundary}\"; type=\"{root}\""), out.freeze())
}

/// Reads content by its `content-type`.
///
/// # Errors
/// An unknown media type, or a broken multipart structure.
pub(crate) fn read(content_type: &str, body: Bytes) -> Result<Payload, ContentError> {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("multipart/related") {
        let boundary = parameter(content_type, "boundary").ok_or(ContentError::Multipart("no boundary"))?;
        return read_multipart(boundary, &body);
    }
    let media = Media::parse(content_type);
    if media == Some(Media::Form) {
        return Ok(Payload { media: Media::Form, root: read_form(&body)?, parts: Vec::new() });
    }
    let media = media.filter(|m| m.is_json()).ok_or(ContentError::MediaType)?;
    Ok(Payload { media, root: body, parts: Vec::new() })
}

/// A JSON object of texts as a form. Members that are not texts are left out.
fn write_form(json: &[u8]) -> Bytes {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json).unwrap_or_default();
    let mut form = String::with_capacity(json.len());
    for (name, value) in &fields {
        let Some(value) = value.as_str() else { continue };
        if !form.is_empty() {
            form.push('&');
        }
        percent_encode(&mut form, name);
        form.push('=');
        percent_encode(&mut form, value);
    }
    form.into()
}

/// A form as a JSON object of texts. A field that occurs twice is refused (RFC 6749 §3.2).
fn read_form(body: &[u8]) -> Result<Bytes, ContentError> {
    let broken = ContentError::Form;
    let text = std::str::from_utf8(body).map_err(|_| broken("it is not text"))?;
    let mut fields = serde_json::Map::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |raw| percent_decode(raw, true).ok_or(broken("its percent-encoding is broken"));
        if fields.len() == MAX_FIELDS {
            return Err(broken("too many fields"));
        }
        if fields.insert(decode(name)?, decode(value)?.into()).is_some() {
            return Err(broken("a field comes twice"));
        }
    }
    let json = serde_json::to_vec(&fields).map_err(|_| broken("it is not text"))?;
    Ok(json.into())
}

/// A parameter of a header value; quotes removed.
fn parameter<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    let parameters = value.split(';').skip(1).filter_map(|p| p.split_once('='));
    let (_, text) = parameters.into_iter().find(|(n, _)| n.trim().eq_ignore_ascii_case(name))?;
    let text = text.trim().trim_matches('"');
    // RFC 2046 §5.1.1: one to seventy characters.
    (1..=70).contains(&text.len()).then_some(text)
}

fn read_multipart(boundary: &str, body: &Bytes) -> Result<Payload, ContentError> {
    let broken = ContentError::Multipart;
    let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
    // The first delimiter may be at the very start, without its CRLF.
    let first = delimiter.get(2..).unwrap_or_default();
    let mut at = if body.starts_with(first) {
        first.len()
    } else {
        find(body, &delimiter, 0).ok_or(broken("no delimiter"))? + delimiter.len()
    };
    let mut root: Option<Payload> = None;
    let mut parts = Vec::new();
    loop {
        let rest = body.get(at..).unwrap_or_default();
        if rest.starts_with(b"--") {
            break;
        }
        // Padding may follow the delimiter.
        let line_end = find(body, b"\r\n", at).ok_or(broken("delimiter line without end"))?;
        let end = find(body, &delimiter, line_end).ok_or(broken("no closing delimiter"))?;
        // A part without headers begins with the empty line itself.
        let headers_end =
            find(body, b"\r\n\r\n", line_end).filter(|h| *h + 2 <= end).ok_or(broken("no header end"))?;
        let headers = body.get(line_end..headers_end).unwrap_or_default();
        let headers = std::str::from_utf8(headers).map_err(|_| broken("headers are not text"))?;
        let data = body.slice((headers_end + 4).min(end)..end);
        let media = header(headers, "content-type").and_then(Media::parse);
        if root.is_none() {
            let media = media.filter(|m| m.is_json()).ok_or(broken("the first part is not JSON"))?;
            root = Some(Payload { media, root: data, parts: Vec::new() });
        } else {
            let id = header(headers, "content-id").ok_or(broken("a part without Content-Id"))?;
            let id = id.trim_start_matches('<').trim_end_matches('>').to_owned();
            parts.push(Part { id, media: media.unwrap_or(Media::Ngap), data });
        }
        if parts.len() > MAX_PARTS {
            return Err(broken("too many parts"));
        }
        at = end + delimiter.len();
    }
    let root = root.ok_or(broken("no part"))?;
    Ok(Payload { parts, ..root })
}

/// Value of a header in the head of a part.
fn header<'a>(headers: &'a str, name: &str) -> Option<&'a str> {
    let lines = headers.split("\r\n").filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(n, _)| n.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// First position of `needle` from `from` on. Needles are short and start with CR, which is rare in
/// binary parts.
fn find(haystack: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    let haystack = haystack.get(from..)?;
    haystack.windows(needle.len()).position(|window| window == needle).map(|i| i + from)
}
