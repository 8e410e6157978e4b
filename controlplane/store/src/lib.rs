//! Durable storage behind one trait.
#![forbid(unsafe_code)]
