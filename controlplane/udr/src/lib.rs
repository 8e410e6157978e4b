//! Unified data repository (TS 29.504, TS 29.505).
#![forbid(unsafe_code)]
