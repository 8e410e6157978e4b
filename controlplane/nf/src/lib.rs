//! Life cycle, OAM and NRF registration that every network function shares.
#![forbid(unsafe_code)]
