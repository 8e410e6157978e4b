//! Clock, sockets, SCTP, namespaces and netlink: the only crate that touches them.
//!
//! Everything above takes its time from [`time`] and its sockets from here, which is what lets a simulation or a
//! test replace them. Start reading at [`sctp`] (N2) or [`netns`] and [`link`] (how a lab is built).
//!
//! Invariants: no protocol knowledge beyond SCTP itself; nothing named is left in the system (namespaces are held
//! by file descriptors, helper processes die with us).

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
pub mod tcp;
pub mod time;
pub mod udp;
pub mod uds;

pub use readable::readable;
