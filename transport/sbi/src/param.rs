//! Path and query parameters: each is declared once per operation, for writing and reading.
//!
//! Texts are percent-encoded (RFC 3986 §2.1); arrays of names are comma-separated (`style=form`,
//! `explode=false`), objects are JSON, as TS 29.501 §5.3 and the 3GPP OpenAPI files have them.

use std::fmt::Write as _;

use types::{Dnn, Guami, PduSessionId, Plmn, SNssai, Supi};

use crate::model::{common::NfInstanceId, common::VarPlmnId, nrf::NfType};

/// A missing or invalid parameter; becomes `invalidParams` of a 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {reason}")]
pub struct InvalidParam {
    /// Name on the wire.
    pub name: String,
    /// What is wrong with it.
    pub reason: String,
    /// Whether it is missing, not wrong.
    pub missing: bool,
    /// Whether it is in the path, not in the query.
    pub in_path: bool,
}

/// A value that can be a path or query parameter.
pub trait Param: Sized {
    /// Text before percent-encoding.
    fn to_text(&self) -> String;
    /// Reads the text after percent-decoding.
    ///
    /// # Errors
    /// What was expected.
    fn from_text(text: &str) -> Result<Self, String>;
}

/// Parameters that look like their `Display`.
macro_rules! param_as_text {
    ($($t:ty),*) => {$(
        impl Param for $t {
            fn to_text(&self) -> String {
                self.to_string()
            }
            fn from_text(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error: <$t as std::str::FromStr>::Err| error.to_string())
            }
        }
    )*};
}

/// Parameters that are JSON documents.
macro_rules! param_as_json {
    ($($t:ty),*) => {$(
        impl Param for $t {
            fn to_text(&self) -> String {
                serde_json::to_string(self).expect("these types are valid JSON")
            }
            fn from_text(text: &str) -> Result<Self, String> {
                serde_json::from_str(text).map_err(|error| error.to_string())
            }
        }
    )*};
}

param_as_text!(String, bool, u8, u16, u32, u64, Dnn, Supi, NfInstanceId, NfType, VarPlmnId);
param_as_json!(SNssai, Vec<SNssai>, Plmn, Vec<Plmn>, Guami);

impl Param for PduSessionId {
    fn to_text(&self) -> String {
        self.value().to_string()
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let value: u8 = text.parse().map_err(|_| "expected a number".to_owned())?;
        Self::new(value).map_err(|error| error.to_string())
    }
}

impl Param for Vec<String> {
    fn to_text(&self) -> String {
        self.join(",")
    }

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(text.split(',').map(str::to_owned).collect())
    }
}

/// Whether the parameters of a template are `names`, in this order. Runs when an operation is compiled.
pub(crate) const fn template_has(template: &str, names: &[&str]) -> bool {
    let template = template.as_bytes();
    let (mut at, mut next) = (0, 0);
    while at < template.len() {
        if template[at] == b'{' {
            if next == names.len() {
                return false;
            }
            let name = names[next].as_bytes();
            let mut i = 0;
            while i < name.len() {
                if at + 1 + i >= template.len() || template[at + 1 + i] != name[i] {
                    return false;
                }
                i += 1;
            }
            at += 1 + name.len();
            if at >= template.len() || template[at] != b'}' {
                return false;
            }
            next += 1;
        }
        at += 1;
    }
    next == names.len()
}

/// Builds path and query from a template. Path parameters must come in the order of the template.
#[derive(Debug)]
pub struct ParamWriter {
    out: String,
    rest: &'static str,
    in_query: bool,
}

impl ParamWriter {
    /// Begins with a template such as `/{supi}/am-data`.
    pub fn new(template: &'static str) -> Self {
        Self { out: String::with_capacity(template.len() + 64), rest: template, in_query: false }
    }

    /// Begins with text before the template.
    pub(crate) fn with_prefix(mut prefix: String, template: &'static str) -> Self {
        prefix.reserve(template.len() + 64);
        Self { out: prefix, rest: template, in_query: false }
    }

    /// Fills the next path parameter.
    pub fn path<T: Param>(&mut self, value: &T) {
        if let Some((literal, after)) = self.rest.split_once('{') {
            self.out.push_str(literal);
            percent_encode(&mut self.out, &value.to_text());
            self.rest = after.split_once('}').map_or("", |(_, rest)| rest);
        }
    }

    /// Adds a query parameter.
    pub fn query<T: Param>(&mut self, name: &str, value: &T) {
        self.out.push_str(std::mem::take(&mut self.rest));
        self.out.push(if std::mem::replace(&mut self.in_query, true) { '&' } else { '?' });
        self.out.push_str(name);
        self.out.push('=');
        percent_encode(&mut self.out, &value.to_text());
    }

    /// Path and query.
    pub fn finish(mut self) -> String {
        self.out.push_str(self.rest);
        self.out
    }
}

/// Reads the parameters of a request.
#[derive(Debug)]
pub struct ParamReader<'a> {
    /// Path parameters: name in the template, raw segment.
    path: Vec<(&'static str, &'a str)>,
    query: &'a str,
}

impl<'a> ParamReader<'a> {
    /// Parameters taken from a path, and the raw query.
    pub fn new(path: Vec<(&'static str, &'a str)>, query: &'a str) -> Self {
        Self { path, query }
    }

    /// A path parameter.
    ///
    /// # Errors
    /// When it is not valid.
    pub fn path<T: Param>(&self, name: &'static str) -> Result<T, InvalidParam> {
        let raw = self.path.iter().find(|(n, _)| *n == name).map(|(_, raw)| *raw);
        read(name, raw, true)
    }

    /// A query parameter that must be there.
    ///
    /// # Errors
    /// When it is missing or not valid.
    pub fn query<T: Param>(&self, name: &'static str) -> Result<T, InvalidParam> {
        read(name, self.raw_query(name), false)
    }

    /// A query parameter that may be left out.
    ///
    /// # Errors
    /// When it is not valid.
    pub fn query_optional<T: Param>(&self, name: &'static str) -> Result<Option<T>, InvalidParam> {
        self.raw_query(name).map(|raw| read(name, Some(raw), false)).transpose()
    }

    fn raw_query(&self, name: &str) -> Option<&'a str> {
        self.query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(n, _)| *n == name)
            .map(|(_, v)| v)
    }
}

fn read<T: Param>(name: &'static str, raw: Option<&str>, in_path: bool) -> Result<T, InvalidParam> {
    let invalid = |reason: String, missing| InvalidParam { name: name.to_owned(), reason, missing, in_path };
    let raw = raw.ok_or_else(|| invalid("must be given".to_owned(), true))?;
    let text = percent_decode(raw, !in_path)
        .ok_or_else(|| invalid("percent-encoding is broken".to_owned(), false))?;
    T::from_text(&text).map_err(|reason| invalid(reason, false))
}

/// Appends `text` with everything but unreserved characters percent-encoded.
pub(crate) fn percent_encode(out: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' => {
                out.push(byte.into())
            }
            // Writing to a String cannot fail.
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
}

/// Undoes percent-encoding; `None` when it is broken or not UTF-8. In a query `+` is a space.
pub(crate) fn percent_decode(raw: &str, in_query: bool) -> Option<String> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |b: Option<u8>| char::from(b?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                (high << 4 | low) as u8
            }
            b'+' if in_query => b' ',
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_compared_by_name_and_order() {
        assert!(template_has("/{a}/x/{bc}/y", &["a", "bc"]));
        assert!(template_has("/x", &[]));
        let wrong: [&[&str]; 6] = [&[], &["a"], &["bc", "a"], &["a", "b"], &["a", "bcd"], &["a", "bc", "d"]];
        for names in wrong {
            assert!(!template_has("/{a}/x/{bc}/y", names), "{names:?}");
        }
        assert!(!template_has("/{a", &["a"]));
    }

    #[test]
    fn broken_percent_encoding_is_no_text() {
        for broken in ["%", "%4", "%zz", "%ff", "a%"] {
            assert_eq!(percent_decode(broken, false), None, "{broken}");
        }
        assert_eq!(percent_decode("a+%20%c3%bc", true).as_deref(), Some("a  ü"));
        assert_eq!(percent_decode("a+", false).as_deref(), Some("a+"));
    }
}
