//! The steering program in the kernel, against a model of it. Needs root, and clang (feature `clang`).
#![cfg(feature = "clang")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking, and show what the verifier counts"
)]

mod agreement;
mod commits;
mod frames;
mod model;
mod rig;
mod veth;

use rig::Rig;
use xdp::steer::Steer;

/// What the verifier has to look at stays far below what it accepts. `-- --nocapture` shows the figure of `docs/xdp-steering.md`.
#[test]
fn the_program_is_far_below_the_verifiers_limit() {
    let mut steer = Steer::new(rig::small()).unwrap();
    let rig = Rig::new(&mut steer);
    let verified = rig.loaded.verified_instructions().unwrap();
    println!("verified instructions: {verified:?}");
    assert!(verified.iter().all(|verified| *verified < 300_000), "{verified:?} of a million");
}
