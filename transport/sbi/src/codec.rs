//! Encoding of messages. JSON is the form that every peer supports; other forms can be added to this
//! enum.

use bytes::Bytes;

use crate::{
    message::{Media, PartSlot},
    operation::Message,
};

/// Form of the structured part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// JSON with the attribute names of TS 29.5xx.
    Json,
}

/// Encoded content: the structured part and the binary parts it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// Media type of `root`.
    pub media: Media,
    /// The structured part.
    pub root: Bytes,
    /// Binary parts; empty for most messages.
    pub parts: Vec<Part>,
}

/// A binary part beside the structured one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The identifier by which the structured part refers to it.
    pub id: String,
    /// [`Media::Nas`] or [`Media::Ngap`].
    pub media: Media,
    /// The octets.
    pub data: Bytes,
}

/// Content that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The content is missing and required.
    #[error("content is missing")]
    Missing,
    /// A resource was created, but the answer has no `Location`.
    #[error("the Location header is missing")]
    MissingLocation,
    /// Not a document at all, or one whose attributes do not fit.
    #[error("{attribute}: {reason}")]
    Malformed {
        /// Where, as far as known: an attribute or a position.
        attribute: String,
        /// What was expected.
        reason: String,
        /// Whether an attribute was absent or wrong in a document that is otherwise well formed.
        well_formed: bool,
    },
    /// The document refers to a part that is missing.
    #[error("no part has the content identifier `{0}`")]
    MissingPart(String),
}

impl Codec {
    /// Writes `message`, naming its binary parts.
    pub fn encode<T: Message>(self, mut message: T) -> Payload {
        let mut parts = Vec::new();
        message.parts(&mut |PartSlot { id, media, part }| {
            id.clone_into(&mut part.content_id);
            parts.push(Part { id: id.to_owned(), media, data: std::mem::take(&mut part.data) });
        });
        let Self::Json = self;
        let root = serde_json::to_vec(&message).expect("models have string keys only, so JSON takes them");
        Payload { media: T::MEDIA, root: root.into(), parts }
    }

    /// Reads a message and joins its binary parts.
    ///
    /// # Errors
    /// A document that is malformed, or refers to a missing part.
    pub fn decode<T: Message>(self, payload: Payload) -> Result<T, DecodeError> {
        let Self::Json = self;
        let mut message: T = serde_json::from_slice(&payload.root).map_err(|error| json_error(&error))?;
        let mut missing = None;
        message.parts(&mut |slot| match payload.parts.iter().find(|part| part.id == slot.part.content_id) {
            Some(part) => slot.part.data = part.data.clone(),
            None => missing = Some(slot.part.content_id.clone()),
        });
        missing.map_or(Ok(message), |id| Err(DecodeError::MissingPart(id)))
    }
}

/// Finds the place of an error in the document; serde_json names the attribute in its message.
fn json_error(error: &serde_json::Error) -> DecodeError {
    DecodeError::Malformed {
        attribute: format!("line {} column {}", error.line(), error.column()),
        reason: error.to_string(),
        well_formed: error.is_data(),
    }
}
