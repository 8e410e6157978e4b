//! gNB and UE simulator: real NGAP over SCTP, real 5G NAS, real GTP-U. It works with any 5G core.
//!
//! There are two ways to use it:
//! - [`run()`]: many UEs over some gNBs, driven by a [`Config`]; what happens is printed as JSON lines
//!   ([`Event`]). This is `godwit ran`.
//! - [`Gnb`] and [`Ue`]: one gNB and one UE, step by step. Tests use this; see [`ue`] for how to send
//!   wrong, replayed or raw messages.
//!
//! ```text
//! Ue ── NAS ── Access ─┬─ gnb::Connection ── NGAP ── Gnb ── SCTP ── AMF       a gNB in one piece
//!  │                   └─ ue::Connection ── RRC ── uu ── DU ── CU ── AMF        a gNB in parts
//!  └─ Session ── Bearer ─┬─ Tunnel ── UserPlane (one thread per N3 address) ── GTP-U ── UPF
//!        │               └─ ue::Bearer ── SDAP, PDCP, RLC ── uu ── DU ── CU ── UPF
//!        └─ Interface (TUN device in a namespace)
//! ```
//!
//! Invariants: one task owns a UE, and the UE acts only in its methods; no UE waits for another UE of
//! its gNB; queues are bounded; keys are not printed. To a gNB in one piece there is no radio: everything
//! between it and the UE arrives at once.
//!
//! ```no_run
//! use std::sync::Arc;
//! use simulator::{Config, Gnb, Ue, UserPlane};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::default();
//! let user_plane = UserPlane::start(config.n2)?;
//! let gnb = Gnb::connect(config.gnb(0), Some(user_plane)).await?;
//! let mut ue = Ue::new(Arc::new(config.ue), 0, gnb)?;
//! let registered = ue.register().await?;
//! println!("registered in {:?}", registered.took);
//! let request = ue.default_session().expect("the default configuration asks for a session");
//! let (session, took) = ue.establish_session(request).await?;
//! println!("{:?} in {took:?}", session.ipv4);
//! ue.deregister(false).await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod config;
pub mod event;
pub mod gnb;
pub mod interface;
mod network;
pub mod router_discovery;
mod run;
pub mod ue;
pub mod user_plane;

pub use access::Access;
pub use config::{Config, Hold, SuciScheme, UeConfig};
pub use event::{Event, Totals};
pub use gnb::{Gnb, GnbConfig, GnbError};
pub use interface::Interface;
pub use run::{RunError, run, run_all, run_with};
pub use ue::{Failure, Session, Ue};
pub use user_plane::UserPlane;
