//! Clock, sockets, SCTP, namespaces and netlink: the only crate that accesses them.
//!
//! All other crates take the time from [`time`] and their sockets from here, so that a simulation or a
//! test can replace them. Start reading at [`sctp`] (N2) or [`netns`] and [`link`] (with which labs are
//! built).
//!
//! Invariants: the crate knows no protocol other than SCTP; it leaves nothing with a name in the system
//! (file descriptors hold namespaces, helper processes die with this process).

pub mod capability;
pub mod limits;
pub mod link;
pub mod nat;
pub mod netns;
pub mod precise;
pub mod private_file;
pub mod privileges;
pub mod process;
mod readable;
pub mod sctp;
pub mod sysctl;
pub mod task;
pub mod tcp;
pub mod time;
pub mod udp;
pub mod uds;

pub use readable::readable;
