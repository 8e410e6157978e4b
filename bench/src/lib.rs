//! Experiments behind `godwit bench`.
#![forbid(unsafe_code)]
