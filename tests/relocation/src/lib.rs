//! The test of this crate copies an S-GW whose P-GW is apart, with our own gateways (TOP-5): see `tests/relocation.rs`.
#![forbid(unsafe_code)]
