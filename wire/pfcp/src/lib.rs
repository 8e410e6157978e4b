//! PFCP (TS 29.244): codec and sans-IO endpoint.
#![forbid(unsafe_code)]
