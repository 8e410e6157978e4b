//! Serde over [`Node`]: each error names the line and the key where it occurred.
//!
//! The type that is read decides what the text of a scalar means, so a number needs no quotes to become
//! a string, and a quoted number is read as a number. `deserialize_any` (used by untagged enums)
//! follows YAML's core schema for plain scalars.

use std::fmt;

use serde::Deserialize;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};

use super::Problem;
use super::yaml::{Key, Node, Value};

/// Jaro-Winkler similarity above which a word is suggested even if more than two letters differ.
const SIMILAR_ENOUGH: f64 = 0.85;

/// Reads `node` as a `T`; `path` is the node's key from the top of the file.
pub fn read<'a, T: Deserialize<'a>>(node: &'a Node, path: &str) -> Result<T, Problem> {
    T::deserialize(NodeDeserializer { node, secret: false }).map_err(|error| {
        let mut full = path.to_owned();
        for part in error.path.iter().rev() {
            if !full.is_empty() && !part.starts_with('[') {
                full.push('.');
            }
            full.push_str(part);
        }
        Problem::at(error.line.unwrap_or(node.line), &full, error.message)
    })
}

/// The candidate that a mistyped word was probably meant to be: one or two letters differ, or the
/// beginnings agree.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let near = |candidate: &str| {
        let slips = strsim::damerau_levenshtein(&word, candidate);
        let similar = strsim::jaro_winkler(&word, candidate);
        (slips <= 1 + word.len() / 5 || similar >= SIMILAR_ENOUGH).then_some(similar)
    };
    candidates
        .into_iter()
        .filter_map(|candidate| near(&candidate.to_lowercase()).map(|similar| (similar, candidate)))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// An error inside a value. Each level adds its key to the path, the innermost level first.
#[derive(Debug)]
pub struct Error {
    line: Option<usize>,
    path: Vec<String>,
    message: String,
}

impl Error {
    fn on_line(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }

    fn within(mut self, part: String) -> Self {
        self.path.push(part);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Error { line: None, path: Vec::new(), message: message.to_string() }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let mut error = Self::custom(unknown("key", field, expected));
        error.path.push(field.to_owned());
        error
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format!("`{variant}`: {}", unknown("value", variant, expected)))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::custom(format!("`{field}` is missing"))
    }
}

fn unknown(what: &str, word: &str, expected: &[&str]) -> String {
    match did_you_mean(word, expected.iter().copied()) {
        Some(candidate) => format!("unknown {what}; did you mean `{candidate}`?"),
        None if expected.is_empty() => format!("unknown {what}; none is expected here"),
        None => format!("unknown {what}; known are {}", expected.join(", ")),
    }
}

/// Parts of the names of keys whose values must not appear in a message.
fn is_secret(key: &str) -> bool {
    matches!(key, "k" | "op" | "opc")
        || key.contains("key")
        || key.contains("password")
        || key.contains("secret")
}

struct NodeDeserializer<'a> {
    node: &'a Node,
    /// The value is a key or password and must not appear in a message.
    secret: bool,
}

impl<'a> NodeDeserializer<'a> {
    fn scalar(&self) -> Option<(&'a str, bool)> {
        match &self.node.value {
            Value::Scalar { text, plain } => Some((text, *plain)),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self.scalar(), Some(("" | "~" | "null", true)))
    }

    /// Adds line and value to an error about this node.
    fn explain(&self, mut error: Error) -> Error {
        if let (Some((text, _)), None, false) = (self.scalar(), error.line, self.secret)
            && !text.is_empty()
            && !error.message.contains(text)
        {
            error.message = format!("`{text}`: {}", error.message);
        }
        error.on_line(self.node.line)
    }

    fn unexpected(&self) -> Unexpected<'a> {
        match &self.node.value {
            _ if self.secret => Unexpected::Other("something else"),
            _ if self.is_null() => Unexpected::Other("nothing"),
            Value::Scalar { text, .. } => Unexpected::Str(text),
            Value::Sequence(_) => Unexpected::Seq,
            Value::Mapping(_) => Unexpected::Map,
        }
    }

    fn wrong_type<E: de::Expected>(&self, expected: &E) -> Error {
        self.explain(de::Error::invalid_type(self.unexpected(), expected))
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// A decimal number with optional `_`, or one with `0x` or `0o`.
fn parse_integer(text: &str) -> Option<i128> {
    let text = text.replace('_', "");
    if let Some(hex) = text.strip_prefix("0x") {
        return i128::from_str_radix(hex, 16).ok();
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return i128::from_str_radix(octal, 8).ok();
    }
    text.parse().ok()
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty;)*) => {$(
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
            let value = self.scalar().and_then(|(text, _)| parse_integer(text));
            match value.map(<$type>::try_from) {
                Some(Ok(value)) => visitor.$visit(value).map_err(|error| self.explain(error)),
                Some(Err(_)) => Err(self.explain(de::Error::custom(format!(
                    "out of range, {} to {} is allowed", <$type>::MIN, <$type>::MAX
                )))),
                None => Err(self.wrong_type(&visitor)),
            }
        }
    )*};
}

impl<'a> Deserializer<'a> for NodeDeserializer<'a> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::Sequence(_) => self.deserialize_seq(visitor),
            Value::Mapping(_) => self.deserialize_map(visitor),
            Value::Scalar { text, plain } => {
                let result = if !plain {
                    visitor.visit_borrowed_str(text)
                } else if self.is_null() {
                    visitor.visit_unit()
                } else if let Some(value) = parse_bool(text) {
                    visitor.visit_bool(value)
                } else if let Some(value) = parse_integer(text) {
                    match (u64::try_from(value), i64::try_from(value)) {
                        (Ok(value), _) => visitor.visit_u64(value),
                        (_, Ok(value)) => visitor.visit_i64(value),
                        _ => visitor.visit_borrowed_str(text),
                    }
                } else if let Ok(value) = text.parse::<f64>() {
                    visitor.visit_f64(value)
                } else {
                    visitor.visit_borrowed_str(text)
                };
                result.map_err(|error| self.explain(error))
            }
        }
    }

    integers! {
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
    }

    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.scalar().and_then(|(text, _)| parse_bool(text)) {
            Some(value) => visitor.visit_bool(value).map_err(|error| self.explain(error)),
            None => Err(self.wrong_type(&"true or false")),
        }
    }

    fn deserialize_f32<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.scalar().and_then(|(text, _)| text.parse::<f64>().ok()) {
            Some(value) => visitor.visit_f64(value).map_err(|error| self.explain(error)),
            None => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_str<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.scalar() {
            Some((text, _)) if !self.is_null() => {
                visitor.visit_borrowed_str(text).map_err(|error| self.explain(error))
            }
            _ => Err(self.wrong_type(&visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() { visitor.visit_unit() } else { Err(self.wrong_type(&visitor)) }
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        let Value::Sequence(items) = &self.node.value else {
            return Err(self.wrong_type(&"a list, such as [a, b]"));
        };
        visitor
            .visit_seq(Items { items, next: 0, secret: self.secret })
            .map_err(|error| error.on_line(self.node.line))
    }

    fn deserialize_tuple<V: Visitor<'a>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Error> {
        let entries = match &self.node.value {
            Value::Mapping(entries) => entries.as_slice(),
            // `amf:` with nothing below it is a section in which every value has its default.
            _ if self.is_null() => &[],
            _ => return Err(self.wrong_type(&"keys and values, such as {key: value}")),
        };
        visitor.visit_map(Entries { entries, next: 0 }).map_err(|error| error.on_line(self.node.line))
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let (name, content) = match &self.node.value {
            Value::Scalar { text, .. } => (text.as_str(), None),
            Value::Mapping(entries) if entries.len() == 1 => {
                (entries[0].0.name.as_str(), Some(&entries[0].1))
            }
            _ => return Err(self.wrong_type(&"one word, or one word with its settings")),
        };
        visitor.visit_enum(Variant { name, content }).map_err(|error| error.on_line(self.node.line))
    }

    serde::forward_to_deserialize_any! { <V: Visitor<'a>> bytes byte_buf unit_struct tuple_struct ignored_any }
}

struct Items<'a> {
    items: &'a [Node],
    next: usize,
    secret: bool,
}

impl<'a> SeqAccess<'a> for Items<'a> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(node) = self.items.get(self.next) else { return Ok(None) };
        let index = self.next;
        self.next += 1;
        let value = seed.deserialize(NodeDeserializer { node, secret: self.secret });
        value.map(Some).map_err(|error| error.on_line(node.line).within(format!("[{index}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.next)
    }
}

struct Entries<'a> {
    entries: &'a [(Key, Node)],
    next: usize,
}

impl<'a> MapAccess<'a> for Entries<'a> {
    type Error = Error;

    fn next_key_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some((key, _)) = self.entries.get(self.next) else { return Ok(None) };
        let deserializer = de::value::BorrowedStrDeserializer::new(key.name.as_str());
        seed.deserialize(deserializer).map(Some).map_err(|error: Error| error.on_line(key.line))
    }

    fn next_value_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let (key, node) = &self.entries[self.next];
        self.next += 1;
        let value = seed.deserialize(NodeDeserializer { node, secret: is_secret(&key.name) });
        value.map_err(|error| error.on_line(node.line).within(key.name.clone()))
    }
}

struct Variant<'a> {
    name: &'a str,
    content: Option<&'a Node>,
}

impl<'a> EnumAccess<'a> for Variant<'a> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'a>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let name: de::value::StrDeserializer<'_, Error> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'a> VariantAccess<'a> for Variant<'a> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.content {
            None => Ok(()),
            Some(node) => {
                Err(<Error as de::Error>::custom(format!("`{}` takes no settings", self.name))
                    .on_line(node.line))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'a>>(self, seed: T) -> Result<T::Value, Error> {
        match self.content {
            Some(node) => seed.deserialize(NodeDeserializer { node, secret: false }),
            None => Err(de::Error::custom(format!("`{0}` needs settings: {{{0}: …}}", self.name))),
        }
    }

    fn tuple_variant<V: Visitor<'a>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        match self.content {
            Some(node) => NodeDeserializer { node, secret: false }.deserialize_seq(visitor),
            None => Err(de::Error::custom(format!("`{0}` needs settings: {{{0}: […]}}", self.name))),
        }
    }

    fn struct_variant<V: Visitor<'a>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.content {
            Some(node) => NodeDeserializer { node, secret: false }.deserialize_map(visitor),
            None => Err(de::Error::custom(format!("`{0}` needs settings: {{{0}: {{…}}}}", self.name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::config::yaml;

    // A small section like those of the NFs.
    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Section {
        sbi: SocketAddr,
        mnc: String,
        #[serde(default)]
        tac: Vec<u16>,
        #[serde(default)]
        mode: Mode,
        #[serde(default)]
        private_key: Option<u8>,
        #[serde(default)]
        nat: Option<bool>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        #[default]
        Auto,
        Raw,
        Udp {
            port: u16,
        },
    }

    fn section(text: &str) -> Result<Section, Problem> {
        read(&yaml::parse(text).unwrap(), "amf")
    }

    fn problem(text: &str) -> (usize, String, String) {
        let problem = section(text).unwrap_err();
        (problem.line, problem.path, problem.message)
    }

    #[test]
    fn text_becomes_what_the_type_expects() {
        let read =
            section("sbi: 127.0.0.5:7777\nmnc: 01\ntac: [1, 0x10]\nmode: {udp: {port: 9899}}\nnat: true\n");
        let expected = Section {
            sbi: "127.0.0.5:7777".parse().unwrap(),
            mnc: "01".into(),
            tac: vec![1, 16],
            mode: Mode::Udp { port: 9899 },
            private_key: None,
            nat: Some(true),
        };
        assert_eq!(read.unwrap(), expected);
        assert_eq!(section("sbi: \"[::1]:1\"\nmnc: \"1\"\nmode: raw\nnat: ~\n").unwrap().mode, Mode::Raw);
    }

    #[test]
    fn errors_name_line_key_and_suggestion() {
        let (line, path, message) = problem("sbi: 127.0.0.5:7777\nmnc: 1\ntacs: [1]\n");
        assert_eq!((line, path.as_str()), (3, "amf.tacs"));
        assert!(message.contains("did you mean `tac`?"), "{message}");

        let (line, path, message) = problem("mnc: 1\nsbi: 127.0.0.5\n");
        assert_eq!((line, path.as_str()), (2, "amf.sbi"));
        assert!(message.contains("`127.0.0.5`: invalid socket address"), "{message}");

        let (line, path, message) = problem("sbi: 127.0.0.5:7777\nmnc: 1\ntac:\n  - 1\n  - 70000\n");
        assert_eq!((line, path.as_str()), (5, "amf.tac[1]"));
        assert!(message.contains("0 to 65535"), "{message}");

        let (line, path, message) = problem("sbi: 127.0.0.5:7777\nmnc: 1\nmode: rwa\n");
        assert_eq!((line, path.as_str()), (3, "amf.mode"));
        assert!(message.contains("did you mean `raw`?"), "{message}");

        let (line, path, message) = problem("tac: [1]\nmnc: 1\n");
        assert_eq!((line, path.as_str(), message.as_str()), (1, "amf", "`sbi` is missing"));

        let (_, path, message) = problem("sbi: 127.0.0.5:7777\nmnc: 1\nnat: yes\n");
        assert_eq!(path, "amf.nat");
        assert!(message.contains("true or false"), "{message}");
    }

    #[test]
    fn secrets_are_not_repeated() {
        let (_, path, message) = problem("sbi: 127.0.0.5:7777\nmnc: 1\nprivate_key: c0ffee\n");
        assert_eq!(path, "amf.private_key");
        assert!(!message.contains("c0ffee"), "{message}");
    }
}
