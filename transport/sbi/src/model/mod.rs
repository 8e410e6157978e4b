//! Data types of TS 29.5xx, by the API that defines them.
//!
//! Attribute names are those of the standard (`camelCase` in JSON, `snake_case` here), so the standard
//! documents them. Attributes that Godwit does not use are missing here and ignored when received. Open
//! enumerations keep unknown values.
#![allow(missing_docs, reason = "attributes are named and documented by the standard")]

pub mod amf;
pub mod ausf;
pub mod common;
pub mod nrf;
pub mod pcf;
pub mod smf;
pub mod udm;
pub mod udr;

/// Lists and maps that are not written when empty.
pub(crate) trait Emptiness {
    /// Whether it is empty.
    fn is_empty(&self) -> bool;
}

impl<T> Emptiness for Vec<T> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

impl<K, V> Emptiness for std::collections::BTreeMap<K, V> {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }
}

/// Reads `null` as an empty list or map: some implementations write that.
pub(crate) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + serde::Deserialize<'de>,
{
    Ok(<Option<T> as serde::Deserialize>::deserialize(deserializer)?.unwrap_or_default())
}

/// Declares data types: `name: T` is mandatory, `? name: T` optional, `* name: T` a list or map left out when empty.
macro_rules! model {
    ($($(#[$meta:meta])* pub struct $name:ident $(: $media:ident)? { $($fields:tt)* })*) => {$(
        $crate::model::model!(@fields [$(#[$meta])* $name] [] $($fields)*);
        $crate::model::model!(@message $name $($media)?);
    )*};
    (@fields [$(#[$meta:meta])* $name:ident] [$($out:tt)*]) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub struct $name { $($out)* }
    };
    (@fields $head:tt [$($out:tt)*] $(#[$meta:meta])* ? $field:ident : $ty:ty, $($rest:tt)*) => {
        $crate::model::model!(@fields $head [$($out)*
            $(#[$meta])*
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $field: Option<$ty>,
        ] $($rest)*);
    };
    (@fields $head:tt [$($out:tt)*] $(#[$meta:meta])* * $field:ident : $ty:ty, $($rest:tt)*) => {
        $crate::model::model!(@fields $head [$($out)*
            $(#[$meta])*
            #[serde(
                default,
                deserialize_with = "crate::model::null_is_empty",
                skip_serializing_if = "crate::model::Emptiness::is_empty"
            )]
            pub $field: $ty,
        ] $($rest)*);
    };
    (@fields $head:tt [$($out:tt)*] $(#[$meta:meta])* $field:ident : $ty:ty, $($rest:tt)*) => {
        $crate::model::model!(@fields $head [$($out)* $(#[$meta])* pub $field: $ty,] $($rest)*);
    };
    // Types with binary parts say `: manual` and implement `Message` themselves.
    (@message $name:ident manual) => {};
    (@message $name:ident) => {
        impl $crate::operation::Message for $name {}
    };
    (@message $name:ident $media:ident) => {
        impl $crate::operation::Message for $name {
            const MEDIA: $crate::message::Media = $crate::message::Media::$media;
        }
    };
}
pub(crate) use model;

/// Declares an enumeration that is open, as 3GPP's are: a value of a later release is kept as `Other`.
macro_rules! open_enum {
    ($($(#[$meta:meta])* pub enum $name:ident { $($variant:ident = $text:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`.")] $variant,)*
            /// An unknown value.
            Other(std::borrow::Cow<'static, str>),
        }
        impl $name {
            /// Name on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)*
                    Self::Other(text) => text,
                }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl std::str::FromStr for $name {
            type Err = std::convert::Infallible;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Ok(match text {
                    $($text => Self::$variant,)*
                    other => Self::Other(other.to_owned().into()),
                })
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("a ", stringify!($name)))
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                d.deserialize_str(Text)
            }
        }
    )*};
}
pub(crate) use open_enum;

/// Makes a type with an `error: ProblemDetails` attribute the failure answer of an operation.
macro_rules! error_with_problem {
    ($name:ident { $($optional:ident),* }) => {
        impl From<$crate::problem::ProblemDetails> for $name {
            fn from(error: $crate::problem::ProblemDetails) -> Self {
                Self { error, $($optional: None),* }
            }
        }
        impl $crate::operation::OperationError for $name {
            fn problem(&self) -> &$crate::problem::ProblemDetails {
                &self.error
            }
            fn encode(self, codec: $crate::codec::Codec) -> $crate::codec::Payload {
                codec.encode(self)
            }
            fn decode(payload: $crate::codec::Payload, codec: $crate::codec::Codec) -> Option<Self> {
                if payload.media == $crate::message::Media::Problem {
                    return codec.decode(payload).ok().map(|p: $crate::problem::ProblemDetails| p.into());
                }
                codec.decode(payload).ok()
            }
        }
    };
}
pub(crate) use error_with_problem;
