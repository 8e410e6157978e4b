//! NGAP (TS 38.413) behind Godwit's own message types.
#![forbid(unsafe_code)]
