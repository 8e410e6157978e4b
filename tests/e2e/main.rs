//! End-to-end tests: parts of the core together, and whole networks in namespaces.
#![forbid(unsafe_code)]

mod authentication;
