//! The central unit of a gNB (TS 38.401): N2 and N3 on one side, F1 on the other.
//!
//! ```text
//!  AMF ──N2── amf.rs ┐                        ┌ f1c.rs ──F1-C── DUs
//!                    ├── ue.rs, procedure/ ───┤
//!  UPF ──N3──────────┴── user_plane/ ─────────┴─────────F1-U── DUs
//! ```
//! [`Cu`] is a whole CU. Each UE with a connection has a task that owns its context (`ue.rs`) and runs procedures, each an
//! `async fn` in `procedure/`; `shared.rs` is what the tasks share. [`user_plane`] is the CU-UP: it ends the tunnels of N3 and those
//! of F1-U, with SDAP and PDCP in between. A [`Node`] runs it alone on the interfaces of a [`Config`].
#![forbid(unsafe_code)]

mod amf;
mod config;
pub mod counters;
mod cu;
mod dus;
mod f1c;
mod node;
mod paths;
mod procedure;
mod rrc;
mod sessions;
mod shared;
mod ue;
pub mod user_plane;

pub use config::{Ciphering, Config, DuLink, Echo, N2};
pub use cu::{Cu, Status};
pub use dus::{Cell, Du};
pub use node::{Node, StartError};
