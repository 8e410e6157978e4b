//! The 3GPP binding: HTTP/2 with prior knowledge, JSON, `multipart/related` for binary parts
//! (TS 29.500 §5.2, §6.1.2). It is the one every third-party NF speaks.
//!
//! It sits directly on `h2`. Per call there is one task switch on each side: the connection's task reads
//! and writes, the caller's waits. The server polls a handler once inside the connection's task and only
//! spawns it when it has to wait, which most handlers never do.

mod client;
mod connections;
mod content;
mod server;

pub(crate) use client::Peer;
pub(crate) use server::{Offer, run};

/// Entry of fuzzing: the content of a message, JSON or multipart.
#[doc(hidden)]
pub fn fuzz_content(content_type: &str, body: &[u8]) {
    if let Ok(payload) = content::read(content_type, bytes::Bytes::copy_from_slice(body)) {
        // What was understood can be written again.
        let (content_type, body) = content::write(payload);
        assert!(content::read(&content_type, body).is_ok());
    }
}
