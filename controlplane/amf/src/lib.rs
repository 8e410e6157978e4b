//! Access and mobility management function (TS 23.502, TS 24.501, TS 38.413).
#![forbid(unsafe_code)]
