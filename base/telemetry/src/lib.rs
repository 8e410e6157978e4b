//! Counters, drop reasons, captures, metrics and logs, used by every other crate.
//!
//! - [`drops`]: the one list of reasons why a packet was not forwarded (UP-4).
//! - [`worker`]: counters of the packet path, one cache-aligned copy per worker, summed when read.
//! - [`counters`]: named event counters for network functions, declared as statics.
//! - [`pcapng`]: capture files that Wireshark and tshark read.
//! - [`prometheus`]: the text that a metrics server answers with.
//! - [`log`]: start of the structured log.
//!
//! Nothing here opens a socket, reads a clock or starts a thread. Callers pass time stamps in. The OAM
//! sockets and the metrics server read the counters here.
#![forbid(unsafe_code)]

pub mod counters;
pub mod drops;
pub mod log;
pub mod pcapng;
pub mod prometheus;
pub mod worker;

pub use drops::DropReason;
