//! Packet classifiers for PDR look-up.
#![forbid(unsafe_code)]
