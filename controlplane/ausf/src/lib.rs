//! Authentication server function (TS 29.509).
#![forbid(unsafe_code)]
