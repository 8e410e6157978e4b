//! The central unit of a gNB (TS 38.401): N3 on one side, F1 on the other.
//!
//! [`user_plane`] is the CU-UP: it ends the tunnels of N3 and those of F1-U, with SDAP and PDCP in between. A [`Node`] runs it on
//! the interfaces of a [`Config`].
#![forbid(unsafe_code)]

mod config;
mod node;
pub mod user_plane;

pub use config::Config;
pub use node::{Node, StartError};
