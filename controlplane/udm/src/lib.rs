//! Unified data management (TS 29.503).
#![forbid(unsafe_code)]
