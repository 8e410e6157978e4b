//! Layer 2 of NR above MAC: SDAP (TS 37.324), PDCP (TS 38.323) and RLC (TS 38.322): headers, and entities without I/O.
//!
//! Times and packets are passed in; an entity neither reads a clock nor sends anything.
#![forbid(unsafe_code)]

pub mod keys;
pub mod pdcp;
pub mod rlc;
pub mod sdap;
pub mod security;
pub mod srb;
pub mod uu;
