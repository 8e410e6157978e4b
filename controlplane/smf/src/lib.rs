//! Session management function (TS 29.502, TS 29.244).
#![forbid(unsafe_code)]
