//! The 3GPP binding: HTTP/2 with prior knowledge, JSON, `multipart/related` for binary parts (TS 29.500
//! §5.2, §6.1.2). Every vendor's NFs support it.
//!
//! It uses `h2` directly. A call takes one task switch on each side: the connection's task reads and
//! writes, the caller's task waits. The server polls a handler once inside the connection's task, and
//! spawns it only if it has to wait, which most handlers never do.

mod client;
mod connections;
mod content;
mod server;

pub(crate) use client::Peer;
pub(crate) use server::{Offer, run};

/// Entry point for fuzzing: the content of a message, JSON or multipart.
#[doc(hidden)]
pub fn fuzz_content(content_type: &str, body: &[u8]) {
    if let Ok(payload) = content::read(content_type, bytes::Bytes::copy_from_slice(body)) {
        // Content that was understood can be written again.
        let (content_type, body) = content::write(payload);
        assert!(content::read(&content_type, body).is_ok());
    }
}
