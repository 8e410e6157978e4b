//! UEs of a gNB in parts: TUN devices on one side, the link to the distributed units on the other.
#![forbid(unsafe_code)]
