//! One function per decoder and endpoint that takes bytes from outside; none of them may panic.
//!
//! Two drivers run the same functions: `cargo run -p fuzz` (stable Rust, a seeded mutator, seconds per target: the
//! smoke test of `make test`) and `libfuzzer/` (nightly, coverage-guided, for as long as you like). An input that
//! broke something is kept in `regressions/<target>/<what it broke>` and replayed by every test run.
//!
//! Read first: [`targets`]; [`smoke`] is the driver.
#![forbid(unsafe_code)]

mod cotcp;
mod cu;
mod cu_control;
mod du;
mod du_control;
mod epc;
mod epc_peers;
mod gtpv2c;
pub mod mutate;
mod n4;
mod offload;
mod pdcp;
mod pipeline;
mod replicas;
mod rlc;
mod rrc;
mod rules;
pub mod smoke;
mod switch;
pub mod targets;
mod ue;
mod ue_rrc;

pub use targets::{TARGETS, Target};

/// Runs one target on one input; libFuzzer calls this.
///
/// # Panics
/// When the target does not exist, or when the decoder panics, which is the finding.
pub fn run(name: &str, data: &[u8]) {
    let target =
        TARGETS.iter().find(|target| target.name == name).expect("a target of this name is in TARGETS");
    (target.run)(data);
}
