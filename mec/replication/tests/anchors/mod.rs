//! Anchors for the tests of the replicator: what their control planes ask of them, and what they answer.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use replication::replicator::Protocol;

mod spgw;
mod upf;

pub use spgw::{MME_TEID, Spgw, octets as gtp_octets};
pub use upf::{SMF_SEID, Upf, octets as pfcp_octets, restored};

/// Where packets of active users go.
pub const STATION: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);

/// An anchor, and what is said to it. Requests have no sequence numbers before [`Model::number`].
pub trait Model: Send + 'static {
    const PROTOCOL: Protocol;
    const PORT: u16;

    /// `secret`: where its TEIDs begin.
    fn new(own: Ipv4Addr, secret: u32) -> Self;
    fn own(&self) -> Ipv4Addr;
    /// What it says when it gets a message; nothing to answers.
    fn answer(&mut self, octets: &[u8]) -> Vec<Vec<u8>>;
    fn restart(&mut self);
    /// Its users, each with the TEID at the base station; `None`: the user is idle.
    fn users(&self) -> BTreeMap<u32, Option<u32>>;

    fn number(request: &mut [u8], sequence: u32);
    fn attach(control: Ipv4Addr, ue: u32) -> Vec<u8>;
    /// By what the anchor is addressed for this user, as it has answered to [`Model::attach`].
    fn given(answer: &[u8]) -> u64;
    fn activate(to: u64, station: u32) -> Vec<u8>;
    fn idle(to: u64) -> Vec<u8>;
    fn detach(to: u64) -> Vec<u8>;
    /// How the user is listed.
    fn name(control: Ipv4Addr, ue: u32) -> String;
}

/// A number that was not given before.
fn next(last: &mut u32) -> u32 {
    *last = last.wrapping_mul(0x9e37_79b1).wrapping_add(1);
    *last
}
