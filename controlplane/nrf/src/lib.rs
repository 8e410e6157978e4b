//! Network repository function (TS 29.510).
#![forbid(unsafe_code)]
