//! UE addresses of data networks: IPv4 addresses, and IPv6 prefixes of 64 bits.
//!
//! [`UePool`] is the configuration of a data network's pool, [`Pool`] hands out its addresses; their order is
//! decided in `numbers.rs`. The SMF has one pool for each of its data networks, a gateway of the EPC one for
//! each of its APNs.
//!
//! Nothing here reads the clock, draws random numbers or locks: the owner does.
#![forbid(unsafe_code)]

mod numbers;
mod pool;
mod prefix;

pub use pool::{Addresses, Pool, PoolError};
pub use prefix::{Prefix, UePool};
