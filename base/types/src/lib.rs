//! 3GPP identities and values (TS 23.003, TS 29.571) that every layer names.
#![forbid(unsafe_code)]
