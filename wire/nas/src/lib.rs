//! 5G NAS (TS 24.501), NAS security, 5G-AKA and SUCI behind Godwit's own types.
#![forbid(unsafe_code)]
