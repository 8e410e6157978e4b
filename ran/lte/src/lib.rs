//! Simulator of 4G: an MME with its eNBs and UEs, against the S-GW and P-GW of any core.
//!
//! There are two ways to use it:
//! - [`run()`]: many UEs, driven by a [`Config`]; what happens is printed as JSON lines ([`Event`]). This is `godwit ran --4g`.
//! - [`Mme`], [`Enb`] and [`Ue`]: one UE, step by step. Tests use this.
//!
//! ```text
//! Ue ─┬─ S11 (a TEID of its own) ── Mme (one socket and task) ── GTPv2-C ── S-GW
//!     └─ PdnConnection ─┬─ Bearer: default, dedicated ── Tunnel ── Enb (one thread) ── GTP-U ── S-GW
//!                       └─ Interface (TUN device in a namespace)
//! ```
//!
//! S11 and S1-U are real. Between UE, eNB and MME nothing is on a wire: there is no NAS, no S1AP and no radio, and what one of them
//! tells another arrives at once. So a [`Ue`] acts for all three.
//!
//! Invariants: one task owns a UE, and the UE acts only in its methods; an idle UE has no tunnel; queues are bounded.
//!
//! ```no_run
//! use std::sync::Arc;
//! use lte::{Config, Enb, Mme, Ue};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::default();
//! let mme = Mme::start(&config.mme).await?;
//! let enb = Enb::start(1, config.enbs[0])?;
//! let mut ue = Ue::new(Arc::new(config.ue), 0, mme, enb)?;
//! let attached = ue.attach().await?;
//! println!("{:?} in {:?}", attached.ipv4, attached.took);
//! ue.detach().await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod config;
pub mod enb;
pub mod event;
pub mod filter;
pub mod mme;
pub mod run;
pub mod ue;

pub use config::{Config, UeConfig};
pub use enb::Enb;
pub use event::{Event, Totals};
pub use mme::{Mme, MmeConfig, S11Error};
pub use run::{RunError, run, run_with};
pub use ue::{Failure, Ue};
