//! A distributed unit of a gNB (TS 38.401): F1 on one side, a simulated radio link on the other.
#![forbid(unsafe_code)]
