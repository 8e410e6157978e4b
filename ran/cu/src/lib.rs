//! The central unit of a gNB (TS 38.401): N3 on one side, F1 on the other.
#![forbid(unsafe_code)]
