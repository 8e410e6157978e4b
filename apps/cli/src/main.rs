//! The one binary, `godwit`.
#![forbid(unsafe_code)]

fn main() {}
