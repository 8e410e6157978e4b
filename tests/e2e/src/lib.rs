//! End-to-end tests: whole networks in namespaces.
#![forbid(unsafe_code)]
