//! Policy control function (TS 29.507, TS 29.512).
#![forbid(unsafe_code)]
