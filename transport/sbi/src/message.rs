//! Message content: media types and binary parts.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Media types of the SBI (TS 29.500 §5.2.2.2, §6.1.2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Media {
    /// `application/json`.
    Json,
    /// `application/problem+json` (RFC 9457).
    Problem,
    /// `application/json-patch+json` (RFC 6902).
    JsonPatch,
    /// `application/merge-patch+json` (RFC 7396).
    MergePatch,
    /// `application/3gppHal+json`.
    Hal,
    /// `application/x-www-form-urlencoded`; within this crate a JSON object of texts.
    Form,
    /// `application/vnd.3gpp.5gnas`: a NAS message or container.
    Nas,
    /// `application/vnd.3gpp.ngap`: an NGAP information element or transfer.
    Ngap,
}

impl Media {
    /// Every media type.
    pub const ALL: [Self; 8] = [
        Self::Json,
        Self::Problem,
        Self::JsonPatch,
        Self::MergePatch,
        Self::Hal,
        Self::Form,
        Self::Nas,
        Self::Ngap,
    ];

    /// Name in `content-type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Problem => "application/problem+json",
            Self::JsonPatch => "application/json-patch+json",
            Self::MergePatch => "application/merge-patch+json",
            Self::Hal => "application/3gppHal+json",
            Self::Form => "application/x-www-form-urlencoded",
            Self::Nas => "application/vnd.3gpp.5gnas",
            Self::Ngap => "application/vnd.3gpp.ngap",
        }
    }

    /// Reads a `content-type`, parameters such as `charset` ignored.
    pub fn parse(content_type: &str) -> Option<Self> {
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        Self::ALL.into_iter().find(|media| media.as_str().eq_ignore_ascii_case(essence))
    }

    /// Whether the content is a JSON document.
    pub const fn is_json(self) -> bool {
        !matches!(self, Self::Form | Self::Nas | Self::Ngap)
    }
}

/// A binary attribute (`RefToBinaryData`): the octets of an N1 message or N2 information element.
///
/// The JSON document contains only its content identifier; the octets are sent beside it (a part of
/// `multipart/related` in `http_json`). Users see only the octets.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BinaryPart {
    pub(crate) content_id: String,
    #[serde(skip)]
    pub(crate) data: Bytes,
}

impl BinaryPart {
    /// The octets.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The octets, owned.
    pub fn into_bytes(self) -> Bytes {
        self.data
    }
}

impl<T: Into<Bytes>> From<T> for BinaryPart {
    fn from(data: T) -> Self {
        Self { content_id: String::new(), data: data.into() }
    }
}

impl std::fmt::Debug for BinaryPart {
    /// Shows only the length: N1 containers may contain what must not be logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BinaryPart({} octets)", self.data.len())
    }
}

/// One binary attribute of a message, as [`crate::Message::parts`] visits it.
#[derive(Debug)]
pub struct PartSlot<'a> {
    /// Content identifier from the encoder: the attribute's name.
    pub id: &'static str,
    /// [`Media::Nas`] or [`Media::Ngap`].
    pub media: Media,
    /// The attribute.
    pub part: &'a mut BinaryPart,
}

/// Calls `visit` with `part`, if there is one.
pub(crate) fn visit_part(
    visit: &mut dyn FnMut(PartSlot<'_>),
    id: &'static str,
    media: Media,
    part: &mut Option<BinaryPart>,
) {
    if let Some(part) = part {
        visit(PartSlot { id, media, part });
    }
}
