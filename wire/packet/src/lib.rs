//! Borrowed views and builders for L2-L4 headers and GTP-U (TS 29.281).
#![forbid(unsafe_code)]
