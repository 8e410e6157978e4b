//! Service-based interface: operations, models and the bindings that move them.
#![forbid(unsafe_code)]
