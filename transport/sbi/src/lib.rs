//! Service-based interface: operations, models and the bindings that move them.
#![forbid(unsafe_code)]

pub mod codec;
pub mod message;
pub mod model;
pub mod op;
pub mod operation;
pub mod param;
pub mod problem;
